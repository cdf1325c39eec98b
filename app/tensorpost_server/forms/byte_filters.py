"""Filters of 8-bit integers along one axis, rounded to 8 bits, as products of matrices in float32.

The bytes are those of sums in float64: a float32 sum that lies so near to a tie that its error could change the byte
is computed again in float64. So it does not matter in which order a library adds, nor how the outputs are cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .axes import AxisMap
from .base import go_on

OUTPUTS = 16  # of a product: more would multiply more zeros, fewer would convert more inputs twice
WIDTH = 60  # columns of a product: so small a one is left to one thread, whose result comes sooner on a busy machine
ELEMENTS = 1 << 20  # of the input converted at a time, 4 MiB of float32; of fewer, the calls of NumPy take longest
SHORTEST_RUN = 8  # elements beyond the axis that are copied as a run; fewer, as channels are, line by line
MOST_TAPS = 256  # of an output; with more, too many sums lie near to a tie
_TIE = 2.0**-32  # a sum this near below a tie counts as the tie, as in `onnx_resize.py`

Bytes = NDArray[np.uint8] | NDArray[np.int8]


def filter_axis(x: Bytes, axis: int, mapping: AxisMap, span: tuple[int, int], low: int) -> Bytes:
    """Weighted sums along an axis, rounded to the type of the input, ties away from zero.

    Args:
        x: uint8 or int8.
        axis: axis of the sums.
        mapping: taps of each output, at most `MOST_TAPS`, and weights.
        span: first output and one past the last.
        low: input index of the axis that is the first one in `x`.
    """
    lead, length, tail = int(np.prod(x.shape[:axis])), x.shape[axis], int(np.prod(x.shape[axis + 1 :]))
    source = x.reshape(lead, length, tail)
    start, stop = span
    made: Any = np.empty((lead, stop - start, tail), x.dtype)
    row, column = max(1, WIDTH // max(1, tail)), max(1, min(tail, WIDTH))
    for first in range(start, stop, OUTPUTS):
        last = min(first + OUTPUTS, stop)
        begin, end, matrix, index, weight = _weights(mapping, first, last)
        most = max(1, ELEMENTS // ((end - begin) * row * column))
        for rows in _spans(lead, row, most):
            for columns in _spans(tail, column, most if row == 1 else 1):
                go_on()
                part = source[rows, begin - low : end - low, columns]
                height, count, width = part.shape
                r, c = min(row, height), min(column, width)
                # One product for each r rows and c columns.
                cut = part.reshape(height // r, r, count, width // c, c)
                if tail < SHORTEST_RUN:
                    lines = cut.transpose(0, 3, 1, 4, 2).astype(np.float32, order="C")
                    samples = lines.reshape(-1, r * c, count).swapaxes(1, 2)
                else:
                    samples = cut.transpose(0, 3, 2, 1, 4).astype(np.float32, order="C").reshape(-1, count, r * c)
                result = _rounded(samples, matrix, index, weight, x.dtype).reshape(height // r, width // c, -1, r, c)
                target = made[rows, first - start : last - start, columns]
                target[...] = result.transpose(0, 3, 2, 1, 4).reshape(target.shape)
    return made.reshape(*x.shape[:axis], stop - start, *x.shape[axis + 1 :])


@lru_cache(maxsize=128)  # at most some 10 MiB; every slice of an output needs those of the other axes again
def _weights(
    mapping: AxisMap, first: int, last: int
) -> tuple[int, int, NDArray[np.float64], NDArray[np.int64], NDArray[np.floating[Any]]]:
    """First and last input of some outputs, their weights as a matrix, and the taps counted from the first input."""
    index, weight = mapping.taps(first, last)
    assert weight is not None
    begin, end = int(index.min()), int(index.max()) + 1
    index = index - begin
    matrix = np.zeros((last - first, end - begin))
    np.add.at(matrix, (np.broadcast_to(np.arange(last - first), index.shape), index), weight)
    return begin, end, matrix, index, weight


def _spans(count: int, unit: int, most: int) -> Iterator[slice]:
    """Cut a range into spans of at most `most` whole units, and one of what is left."""
    whole = count - count % unit
    for start in range(0, whole, unit * most):
        yield slice(start, min(start + unit * most, whole))
    if whole < count:
        yield slice(whole, count)


def _rounded(
    samples: NDArray[np.float32],
    matrix: NDArray[np.float64],
    index: NDArray[np.int64],
    weight: NDArray[np.floating[Any]],
    dtype: np.dtype[Any],
) -> Bytes:
    """Outputs of samples (products, inputs, places); `matrix` holds the same weights as `index` and `weight`."""
    limits = np.iinfo(dtype)
    sums = matrix.astype(np.float32) @ samples
    # Each weight, product and addition errs by at most 2^-24 of the sum of what is added, and so does the half.
    error = (len(index) + 4) * 2.0**-24 * (256 * float(np.abs(matrix).sum(axis=1).max()) + 1)
    negative = limits.min < 0
    sums += np.copysign(np.float32(0.5), sums) if negative else np.float32(0.5)
    np.clip(sums, limits.min, limits.max, out=sums)
    whole = np.trunc(sums)
    made = whole.astype(dtype)
    fraction = np.abs(np.subtract(sums, whole, out=sums), out=sums) if negative else np.subtract(sums, whole, out=sums)
    fraction -= np.float32(0.5)
    at = np.flatnonzero(np.abs(fraction, out=fraction) >= np.float32(0.5 - error))
    if at.size:
        product, output, place = np.unravel_index(at, made.shape)
        exact = np.zeros(at.size)
        for tap in range(len(index)):
            exact += weight[tap, output] * samples[product, index[tap, output], place]
        exact += np.copysign(0.5 + _TIE, exact)
        made.reshape(-1)[at] = np.trunc(np.clip(exact, limits.min, limits.max)).astype(dtype)
    return made
