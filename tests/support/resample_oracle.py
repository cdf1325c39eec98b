"""The Resample family again, index by index: slow, plain, and sharing no code with the kernels.

Coordinates are NumPy float32 scalars, one output at a time, because that arithmetic is part of the meaning. Weights and
sums are Python floats (float64). Own error: a sum of n products is off by at most (n + 3) * 2^-53 of the sum of their
magnitudes, which is below a thousandth of a float32 unit in the last place for every n used here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.descriptors import OperatorDesc

Tap = tuple[int, float]


@dataclass(frozen=True)
class OracleAxis:
    """One axis. `how` is half-up, floor, ceil, linear, linear alone, linear gradient or pyramid."""

    size: int
    output_size: int
    scale: float
    input_offset: float
    output_offset: float
    how: str


def coordinates(axis: OracleAxis, o: int) -> tuple[float, float]:
    """y = (o - output offset) / scale and y - input offset, rounded to float32; float64 for axes beyond 2^24."""
    real: Any = np.float32 if max(axis.size, axis.output_size) <= 2**24 else np.float64
    with np.errstate(over="ignore"):
        shifted = real(o) - real(axis.output_offset)
        scaled = shifted / real(axis.scale)
        return float(scaled), float(scaled - real(axis.input_offset))


def between(axis: OracleAxis, y: float, x: float) -> list[Tap]:
    """DirectML's linear taps: one is at y, the other on the side of x, however far x is from both."""
    near = math.floor(y)
    if axis.how == "linear alone":  # of one dimension
        lower = min(near, math.floor(x)) if axis.input_offset > 1 else near if axis.input_offset < 0 else math.floor(x)
    else:
        lower = near if x >= near else near - 1
    if axis.how == "linear" and axis.scale == 1 and axis.input_offset + axis.output_offset == 0:
        return [(lower, 1.0)]
    if lower < 0 or lower >= axis.size - 1:
        return [(lower, 1.0)]  # both are one element
    return [(lower, 1.0 - (x - lower)), (lower + 1, x - lower)]


def pyramid(axis: OracleAxis, o: int) -> list[Tap]:
    """Linear steps from the output back to the input, each of all taps of the step before."""
    sizes = [axis.output_size]
    if axis.size > 2 * axis.output_size:
        sizes += [2**n for n in range(40) if axis.output_size < 2**n < axis.size]
    else:
        sizes.append(axis.output_size)
    found: list[Tap] = [(o, 1.0)]
    for target, size in itertools.pairwise([*sizes, axis.size]):
        ratio = float(np.float32(target / size))
        step = OracleAxis(size, target, ratio, axis.input_offset, axis.output_offset, "linear")
        found = [(i, weight * share) for index, weight in found for i, share in taps(step, index)]
    return found


def taps(axis: OracleAxis, o: int) -> list[Tap]:
    """Which input elements the output reads, and with which weights; no element twice."""
    y, x = coordinates(axis, o)
    if axis.how == "pyramid":
        return merged(axis, pyramid(axis, o))
    if math.isinf(y):
        return [(axis.size - 1 if y > 0 else 0, 1.0)]
    if math.isinf(x):
        return [(axis.size - 1 if x > 0 else 0, 1.0)]
    if axis.how in ("half-up", "floor", "ceil"):
        if axis.how == "half-up":
            real: Any = np.float32 if max(axis.size, axis.output_size) <= 2**24 else np.float64
            nearest = math.floor(real(x) + real(0.5))
        else:
            nearest = math.floor(x) if axis.how == "floor" else math.ceil(x)
        raw = [(nearest, 1.0)]
    elif axis.how in ("linear", "linear alone"):
        raw = between(axis, y, x)
    else:
        floor = math.floor(x)
        raw = [(floor, 1.0 - (x - floor)), (floor + 1, x - floor)]
    return merged(axis, raw)


def merged(axis: OracleAxis, raw: Sequence[Tap]) -> list[Tap]:
    """Indices inside the axis, each once, without weights of 0."""
    found: dict[int, float] = {}
    for i, weight in raw:
        inside = min(max(i, 0), axis.size - 1)
        found[inside] = found.get(inside, 0.0) + weight
    return [(i, weight) for i, weight in found.items() if weight != 0.0]


def resample(axes: Sequence[OracleAxis], x: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The forward operator before rounding: its values, and for each the sum of the magnitudes that were added."""
    shape = [axis.output_size for axis in axes]
    values, magnitudes = np.zeros(shape), np.zeros(shape)
    per_axis = [[taps(axis, o) for o in range(axis.output_size)] for axis in axes]
    for output in np.ndindex(*shape):
        chosen = itertools.product(*(per_axis[dim][o] for dim, o in enumerate(output)))
        terms = [math.prod(w for _, w in tap) * float(x[tuple(i for i, _ in tap)]) for tap in chosen]
        values[output] = math.fsum(terms)
        magnitudes[output] = math.fsum(map(abs, terms))
    return values, magnitudes


def gradient(axes: Sequence[OracleAxis], g: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The adjoint: scatters every output's gradient to the elements it was read from. As `resample` otherwise."""
    shape = [axis.size for axis in axes]
    values, magnitudes = np.zeros(shape), np.zeros(shape)
    for output in np.ndindex(*g.shape):
        for tap in itertools.product(*(taps(axis, o) for axis, o in zip(axes, output, strict=True))):
            term = math.prod(w for _, w in tap) * float(g[output])
            values[tuple(i for i, _ in tap)] += term
            magnitudes[tuple(i for i, _ in tap)] += abs(term)
    return values, magnitudes


def gather(axes: Sequence[OracleAxis], x: NDArray[Any]) -> NDArray[Any]:
    """The forward operator where every tap is a copy, without arithmetic."""
    out = np.empty([axis.output_size for axis in axes], x.dtype)
    for output in np.ndindex(*out.shape):
        found = [taps(axis, o) for axis, o in zip(axes, output, strict=True)]
        assert all(len(t) == 1 for t in found)
        out[output] = x[tuple(t[0][0] for t in found)]
    return out


def axes_of(desc: OperatorDesc) -> list[OracleAxis]:
    """The axes of a descriptor, read from its canonical JSON."""
    document = desc.to_document()
    kind, fields = document["type"].removeprefix("DML_OPERATOR_"), document["desc"]
    backward = kind.startswith("RESAMPLE_GRAD")
    sizes = fields["OutputGradientTensor" if backward else "InputTensor"]["Sizes"]
    output_sizes = fields["InputGradientTensor" if backward else "OutputTensor"]["Sizes"]
    rank = len(sizes)
    if kind == "UPSAMPLE_2D":
        scales = [*[1.0] * (rank - 2), fields["ScaleSize"]["Height"], fields["ScaleSize"]["Width"]]
    else:
        scales = fields["Scales"]
    inputs = fields.get("InputPixelOffsets", [0.5] * rank)
    outputs = fields.get("OutputPixelOffsets", [-0.5] * rank)
    if backward:  # each offset is of the gradient operator's own tensor
        inputs, outputs = outputs, inputs
    if fields["InterpolationMode"] == "LINEAR":
        plain = "linear gradient" if backward else "linear" if rank > 1 else "linear alone"
        how = ["pyramid" if fields.get("Antialiased") and np.float32(s) < 0.5 else plain for s in scales]
    else:
        eight = desc.outputs[0].layout.data_type.item_size == 1  # DirectML reads the element below
        rule = {None: "floor" if eight else "half-up", "DECREASING": "floor", "INCREASING": "ceil"}[
            fields.get("RoundingDirection")
        ]
        how = [rule] * rank
    single = [[float(np.float32(v)) for v in values] for values in (scales, inputs, outputs)]
    return [OracleAxis(*axis) for axis in zip(sizes, output_sizes, *single, how, strict=True)]
