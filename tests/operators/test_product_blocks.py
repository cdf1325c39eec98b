"""Products and convolutions that are computed in several blocks, slices and groups: exact sums of small integers."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.onnx_runtime import completed, run, tensor

from tensorpost_server.backends import blas_threads
from tensorpost_server.planning import make_plan

Array = NDArray[Any]


def drawn(seed: int, dtype: str, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


def convolved(x: Array, w: Array, strides: list[int], padding: int, dilation: int, groups: int) -> Array:
    """The definition, with one array expression for each element of a filter, in integers."""
    x, w = x.astype(np.int64), w.astype(np.int64)
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    height, width = [
        (n - (k - 1) * dilation - 1) // s + 1 for n, k, s in zip(x.shape[2:], w.shape[2:], strides, strict=True)
    ]
    made = np.zeros((len(x), len(w), height, width), np.int64)
    own, count = len(w) // groups, w.shape[1]
    for out, channel, i, j in itertools.product(range(len(w)), *map(range, w.shape[1:])):
        part = x[:, out // own * count + channel, i * dilation :, j * dilation :]
        made[:, out] += w[out, channel, i, j] * part[:, :: strides[0], :: strides[1]][:, :height, :width]
    return made


CONVOLUTIONS = {
    "pictures of more than a block": ((1, 3, 70, 90), (5, 3, 3, 3), [1, 1], 1, 1, 1),
    "rows of more than a block": ((1, 2, 3, 5000), (4, 2, 3, 3), [1, 1], 1, 1, 1),
    "several pictures in a block": ((9, 8, 7, 6), (6, 8, 3, 3), [1, 1], 1, 1, 1),
    "several groups in a block": ((2, 12, 9, 8), (24, 1, 3, 3), [1, 1], 1, 1, 12),
    "groups of more than a block": ((1, 8, 64, 65), (8, 4, 5, 5), [1, 1], 2, 1, 2),
    "steps and gaps": ((2, 4, 40, 41), (6, 2, 3, 3), [2, 3], 2, 2, 2),
    "one element": ((3, 32, 20, 21), (16, 32, 1, 1), [1, 1], 0, 1, 1),
    "one element, with steps": ((2, 16, 21, 20), (8, 16, 1, 1), [2, 2], 0, 1, 1),
    "filters with many channels": ((1, 1100, 12, 11), (3, 1100, 3, 3), [1, 1], 1, 1, 1),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_in_blocks_are_exact(name: str, dtype: str) -> None:
    shape, filters, strides, padding, dilation, groups = CONVOLUTIONS[name]
    x, w = drawn(1, dtype, *shape), drawn(2, dtype, *filters)
    wanted = convolved(x, w, strides, padding, dilation, groups)
    fields = {
        "InputTensor": tensor(x), "FilterTensor": tensor(w), "Strides": strides, "GroupCount": groups,
        "StartPadding": [padding] * 2, "EndPadding": [padding] * 2, "Dilations": [dilation] * 2,
    }  # fmt: skip
    (found,) = run(completed("CONVOLUTION", **fields), x, w)
    np.testing.assert_array_equal(found, wanted.astype(dtype))


def test_a_convolution_of_channels_last_is_the_same() -> None:
    x, w = drawn(3, "float32", 2, 5, 30, 31), drawn(4, "float32", 7, 5, 3, 3)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    strides = [30 * 31 * 5, 1, 31 * 5, 5]
    out = {"DataType": "FLOAT32", "Sizes": [2, 7, 28, 29], "Strides": [28 * 29 * 7, 1, 29 * 7, 7]}
    desc = completed(
        "CONVOLUTION", InputTensor={**tensor(x), "Strides": strides}, FilterTensor=tensor(w), OutputTensor=out
    )
    (found,) = run(desc, last, w)
    found = found.reshape(2, 28, 29, 7).transpose(0, 3, 1, 2)  # its bytes, as they lie
    np.testing.assert_array_equal(found, convolved(x, w, [1, 1], 0, 1, 1))


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_in_blocks_are_exact(groups: int) -> None:
    """Every element of the input is added, times the filter, where the filter lies then."""
    x, w = drawn(5, "float32", 2, 4, 90, 80), drawn(6, "float32", 4, 3, 4, 3)
    made = np.zeros((2, 3 * groups, 89 * 2 + 4, 79 * 3 + 3), np.int64)
    for channel, out, i, j in itertools.product(range(4), range(3), range(4), range(3)):
        group = channel // (4 // groups)
        made[:, group * 3 + out, i : i + 179 : 2, j : j + 238 : 3] += x[:, channel].astype(np.int64) * int(
            w[channel, out, i, j]
        )
    fields = {"InputTensor": tensor(x), "FilterTensor": tensor(w), "Strides": [2, 3], "GroupCount": groups}
    padding = {"StartPadding": [1, 2], "EndPadding": [2, 0]}
    (found,) = run(completed("CONVOLUTION", Direction="BACKWARD", **fields, **padding), x, w)
    np.testing.assert_array_equal(found, made[:, :, 1:-2, 2:])


def test_an_infinite_filter_times_padding_adds_nothing() -> None:
    """Otherwise the ends would be NaN."""
    x, w = np.ones((1, 1, 1, 4), np.float32), np.array([[[[np.inf, 1, 2]]]], np.float32)
    fields = {"InputTensor": tensor(x), "FilterTensor": tensor(w), "StartPadding": [0, 1], "EndPadding": [0, 1]}
    (found,) = run(completed("CONVOLUTION", **fields), x, w)
    np.testing.assert_array_equal(found, [[[[3, np.inf, np.inf, np.inf]]]])


@pytest.mark.parametrize("turned", [False, True])
def test_products_in_blocks_are_exact(turned: bool) -> None:
    """More columns than are multiplied at once, in several slices."""
    a, b, c = drawn(7, "float32", 300, 1100), drawn(8, "float32", 1100, 2500), drawn(9, "float32", 300, 2500)
    given = np.ascontiguousarray(b.T) if turned else b
    fields = {"ATensor": tensor(a), "BTensor": tensor(given), "TransB": "TRANSPOSE" if turned else "NONE"}
    desc = completed("GEMM", **fields, CTensor=tensor(c), Alpha=2.0, Beta=-1.0)
    (found,) = run(desc, a, given, c)
    np.testing.assert_array_equal(found, 2 * (a.astype(np.float64) @ b) - c)


def test_slices_of_a_product_have_enough_rows() -> None:
    """Work alone would cut them to 8 rows, each of which needs all of the second matrix again."""
    a = {"DataType": "FLOAT32", "Sizes": [2048, 2048]}
    plan = make_plan(completed("GEMM", ATensor=a, BTensor=a), 2 << 20)
    rows = [high - low for low, high in (piece.box[0] for piece in plan.slices)]
    assert sum(rows) == 2048
    assert min(rows) >= 128


def test_slices_of_a_convolution_have_enough_channels() -> None:
    x, w = ({"DataType": "FLOAT32", "Sizes": sizes} for sizes in ([1, 512, 28, 28], [512, 512, 3, 3]))
    plan = make_plan(completed("CONVOLUTION", InputTensor=x, FilterTensor=w), 2 << 20)
    channels = [high - low for low, high in (piece.box[1] for piece in plan.slices)]
    assert sum(channels) == 512
    assert min(channels) >= 128


PROGRAM = """
from tensorpost_server.backends import blas_threads
before = blas_threads.count()
from tensorpost_server.backends.numpy_ import NumpyBackend
NumpyBackend()
print(before, blas_threads.count())
"""


def threads(**more: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name not in blas_threads.VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment | more, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


@pytest.mark.skipif(blas_threads.count() is None, reason="this BLAS library cannot be asked how many threads it uses")
def test_products_use_one_thread_unless_a_variable_says_otherwise() -> None:
    assert threads()[1] == "1"
    assert threads(OPENBLAS_NUM_THREADS="2", MKL_NUM_THREADS="2") == ["2", "2"]
