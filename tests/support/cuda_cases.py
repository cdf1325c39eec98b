"""Calls for the CUDA kernels, and what they must give: any array library can be handed them, and any box of an output.

The expected elements are NumPy's, by the same kernel object; tests/operators holds those against oracles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorpost_server.forms import Box, Form
from tensorpost_server.forms.axes import AxisMap, Taps
from tensorpost_server.forms.separable import Rounding, Separable
from tensorpost_server.operators.resample import AdjointAxis, LinearAxis, Nearest, NearestAxis, TriangleAxis
from tensorpost_server.operators.tile import TileKernel

__all__ = ["Call", "Strided", "agree", "is_exact", "packed", "resample_calls", "tile_calls"]


@dataclass(frozen=True, eq=False)
class Strided:
    """An array somewhere in a block of memory.

    Attributes:
        memory: all of it, one-dimensional.
        first: index of the array's first element.
        shape: its sizes.
        strides: in elements.
    """

    memory: NDArray[Any]
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, xp: Any, memory: Any) -> Any:
        """The array in this block, or in a copy of it."""
        strides = [stride * self.memory.itemsize for stride in self.strides]
        return xp.lib.stride_tricks.as_strided(memory[self.first :], self.shape, strides)

    def __repr__(self) -> str:
        return f"{self.memory.dtype} {self.shape} from {self.first} by {self.strides}"

    @property
    def view(self) -> NDArray[Any]:
        """The array."""
        return self.of(np, self.memory)


def packed(array: NDArray[Any]) -> Strided:
    """An array that fills its memory."""
    return Strided(array.reshape(-1), 0, array.shape, tuple(stride // array.itemsize for stride in array.strides))


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a kernel's fill.

    Attributes:
        kernel: the operator.
        x: the input.
        box: part of the output.
        out: where it goes; its memory holds other bytes.
    """

    kernel: Form
    x: Strided
    box: Box
    out: Strided

    def expected(self) -> NDArray[Any]:
        """The output's whole memory as NumPy leaves it."""
        memory = self.out.memory.copy()
        self.kernel.fill(np, [self.x.view], self.box, self.out.of(np, memory))
        return memory


def agree(call: Call, memory: NDArray[Any], *, exactly: bool) -> None:
    """This memory holds NumPy's answer, and outside the output what was there before."""
    expected = call.expected()
    if exactly:
        np.testing.assert_array_equal(memory.view(np.uint8), expected.view(np.uint8))
        return
    got, want = call.out.of(np, memory).copy(), call.out.of(np, expected).copy()
    for block in (memory, expected):
        call.out.of(np, block)[...] = 0
    assert memory.tobytes() == expected.tobytes(), "something was written outside of the output"
    # Sums in float32, in whatever order, are off by a few roundings of the largest term each.
    largest = max(1.0, float(np.abs(call.x.view.astype(np.float64)).max()) if call.x.view.size else 1.0)
    off = 16 * 2.0**-24 * largest * _sum_of_weights(call.kernel)
    if want.dtype.kind == "f":
        finest = np.finfo(want.dtype).eps
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=2 * finest, atol=off)
        return
    # Integers are what is left of some number that near the exact sum.
    assert isinstance(call.kernel, Separable)
    assert call.kernel.rounding is Rounding.TRUNCATE
    exact = np.empty(want.shape)
    in_float64 = replace(call.kernel, accumulate="float64", rounding=Rounding.NONE)
    in_float64.fill(np, [call.x.view.astype(np.float64)], call.box, exact)
    limits = np.iinfo(want.dtype)
    least, most = (np.clip(np.trunc(exact + far), limits.min, limits.max) for far in (-off, off))
    assert ((least <= got) & (got <= most)).all()


def _sum_of_weights(kernel: Any) -> float:
    """At least the largest factor between a term and its sum, however many taps are added."""
    product = 1.0
    for axis in kernel.axes:
        if axis is not None:
            weight = axis.taps(0, axis.output_size)[1]
            product *= 1.0 if weight is None else max(1.0, float(np.abs(weight).sum(axis=0).max()))
    return product


@st.composite
def strided(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype[Any], *, shares: bool) -> Strided:
    """An array of these sizes with its axes in any order in memory, and gaps; `shares` allows strides of 0."""
    strides, reach = [0] * len(shape), 1
    order = list(range(len(shape)))
    if draw(st.integers(0, 3)) == 0:
        order = draw(st.permutations(order))
    for axis in reversed(order):
        strides[axis] = reach * draw(st.sampled_from([1, 1, 1, 1, 2, 3]))
        reach = strides[axis] * (shape[axis] - 1) + reach + draw(st.sampled_from([0, 0, 0, 0, 1]))
    if shares and shape and draw(st.integers(0, 4)) == 0:
        strides[draw(st.integers(0, len(shape) - 1))] = 0
    first = draw(st.sampled_from([0, 0, 0, 1, 2, 3]))
    size = first + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 1
    seed = draw(st.integers(0, 2**32 - 1))
    noise = np.random.default_rng(seed).integers(0, 256, (size + 16) * dtype.itemsize, np.uint8)
    return Strided(noise.view(dtype), first, shape, tuple(strides))


@st.composite
def boxes(draw: st.DrawFn, sizes: list[int]) -> Box:
    """All of an output, or any part of it that is not empty."""
    box = [(0, size) for size in sizes]
    if draw(st.booleans()):
        for axis, size in enumerate(sizes):
            if draw(st.booleans()):
                start = draw(st.integers(0, size - 1))
                box[axis] = (start, draw(st.integers(start + 1, size)))
    return tuple(box)


@st.composite
def tile_calls(draw: st.DrawFn, dtypes: tuple[str, ...]) -> Call:
    """Tile of any rank up to 8, of rows of all lengths, up to some thousands of elements."""
    sizes, repeats = list[int](), list[int]()
    left = 4_000
    for _ in range(draw(st.integers(1, 8))):
        size = min(left, draw(st.sampled_from([1, 1, 2, 3, 4, 5, 8, 16, 33, 64])))
        repeat = min(left // size, draw(st.sampled_from([1, 1, 1, 2, 3, 7, 40, 300])))
        sizes.append(size)
        repeats.append(repeat)
        left //= size * repeat
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    x = draw(strided(tuple(sizes), dtype, shares=True))
    box = draw(boxes([size * repeat for size, repeat in zip(sizes, repeats, strict=True)]))
    out = draw(strided(tuple(stop - start for start, stop in box), dtype, shares=False))
    return Call(TileKernel(tuple(sizes)), x, box, out)


@dataclass(frozen=True)
class Cubic:
    """Four taps around each coordinate, fewer where they fall together at an end. Exact in float32 only by chance."""

    input_size: int
    output_size: int

    def most_taps(self, start: int, stop: int) -> int:
        del start, stop
        return 4

    def taps(self, start: int, stop: int) -> Taps:
        x = (np.arange(start, stop) + 0.5) * self.input_size / self.output_size - 0.5
        t = x - np.floor(x)
        near = np.floor(x).astype(np.int64) + np.arange(-1, 3)[:, np.newaxis]
        weight = np.stack([-0.1 * t, 1 - 0.7 * t, 0.9 * t, -0.1 * t])
        return np.clip(near, 0, self.input_size - 1), weight


@dataclass(frozen=True)
class Uneven:
    """Any number of taps, none for some outputs, with weights of 0 between them."""

    input_size: int
    output_size: int
    seed: int

    def most_taps(self, start: int, stop: int) -> int:
        del start, stop
        return 6

    def taps(self, start: int, stop: int) -> Taps:
        random = np.random.default_rng(self.seed)
        index = random.integers(0, self.input_size, (6, self.output_size))
        weight = random.choice([0.0, 0.0, 0.0, 1.0, 0.25, -0.75, 2.0], (6, self.output_size))
        weight[:, random.random(self.output_size) < 0.2] = 0
        return index[:, start:stop], weight[:, start:stop]


def _axis(draw: st.DrawFn, kind: str, size: int) -> AxisMap:
    output = draw(st.sampled_from([1, 2, 3, 5, 8, 13, 20, 40, 64]))
    scale = draw(st.sampled_from([output / size, output / size, 2.0, 0.5, 1.7, 0.3, 0.04]))
    numbers = float(np.float32(scale)), draw(st.sampled_from([0.5, 0.5, 0.0, -0.3])), draw(st.sampled_from([-0.5, 0.0]))
    forward, backward = (size, output, *numbers), (output, size, *numbers)
    match kind:
        case "nearest":
            return NearestAxis(*forward, draw(st.sampled_from(list(Nearest))))
        case "linear":
            return LinearAxis(*forward)
        case "antialias":
            return TriangleAxis(*forward) if scale < 0.5 else LinearAxis(*forward)
        case "linear gradient":
            return AdjointAxis(LinearAxis(*backward))
        case "nearest gradient":
            return AdjointAxis(NearestAxis(*backward, Nearest.FLOOR))
        case "cubic":
            return Cubic(size, output)
        case _:
            return Uneven(size, output, draw(st.integers(0, 1000)))


KINDS = ("nearest", "linear", "antialias", "linear gradient", "nearest gradient", "cubic", "uneven")


@st.composite
def resample_calls(draw: st.DrawFn, dtypes: tuple[str, ...], kinds: tuple[str, ...] = KINDS) -> Call:
    """A resampling of ranks 1 to 5 with up to as many resampled axes, all of one kind."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    sums_to_1 = tuple(kind for kind in kinds if kind in ("nearest", "linear", "antialias"))
    kind = draw(st.sampled_from(kinds if dtype.kind == "f" or not sums_to_1 else sums_to_1))
    sizes, axes, read, made = list[int](), list[AxisMap | None](), 1, 1
    for _ in range(draw(st.integers(1, 5))):
        size = draw(st.sampled_from([1, 2, 3, 5, 8, 16, 17]))
        axis = _axis(draw, kind, size) if draw(st.booleans()) else None
        output = size if axis is None else axis.output_size
        if max(read * size, made * output) > 3_000:
            break
        read, made = read * size, made * output
        sizes.append(size)
        axes.append(axis)
    x = draw(strided(tuple(sizes), dtype, shares=True))
    if kind != "nearest" and dtype.kind == "f":
        x.memory[:] = np.random.default_rng(x.memory.size).standard_normal(x.memory.size)
    rounding = Rounding.NONE if dtype.kind == "f" else Rounding.TRUNCATE
    outputs = [size if axis is None else axis.output_size for size, axis in zip(sizes, axes, strict=True)]
    box = draw(boxes(outputs))
    out = draw(strided(tuple(stop - start for start, stop in box), dtype, shares=False))
    return Call(Separable(tuple(axes), rounding=rounding), x, box, out)


def is_exact(call: Call) -> bool:
    """Whether nothing is summed, so that every bit must be NumPy's."""
    return isinstance(call.kernel, TileKernel) or all(
        axis is None or isinstance(axis, NearestAxis)
        for axis in call.kernel.axes  # type: ignore[attr-defined] # every other kernel of these cases has axes
    )
