"""Calls for the CUDA kernels, and what they must give: any array library can be handed them, and any box of an output.

The expected elements are NumPy's, by the same kernel object; tests/operators holds those against oracles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorpost_server.forms import Box, Copies, Copy, Form, Loop, Pointwise
from tensorpost_server.forms.axes import AxisMap, Taps
from tensorpost_server.forms.expression import FUNCTIONS, Expression, call, operand, where
from tensorpost_server.forms.resample_axes import AdjointAxis, LinearAxis, Nearest, NearestAxis, PyramidAxis
from tensorpost_server.forms.separable import Rounding, Separable
from tensorpost_server.operators.tile import tile

__all__ = ["CONVERSIONS", "EXPRESSIONS", "FUNCTION_TYPES", "TOLERANCES", "Call", "Strided", "agree", "choice_of_halves"]
__all__ += ["conversion", "copy_calls", "erf_of_every_half", "function_cases", "is_exact", "packed", "pointwise_calls"]
__all__ += ["resample_calls", "tile_calls"]


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

    def array(self, xp: Any, memory: Any) -> Any:
        """The array in this block, or in a copy of it."""
        strides = [stride * self.memory.itemsize for stride in self.strides]
        return xp.lib.stride_tricks.as_strided(memory[self.first :], self.shape, strides)

    def __repr__(self) -> str:
        return f"{self.memory.dtype} {self.shape} from {self.first} by {self.strides}"

    @property
    def view(self) -> NDArray[Any]:
        """The array."""
        return self.array(np, self.memory)


def packed(array: NDArray[Any]) -> Strided:
    """An array that fills its memory."""
    return Strided(array.reshape(-1), 0, array.shape, tuple(stride // array.itemsize for stride in array.strides))


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a form's fill.

    Attributes:
        form: what is computed.
        inputs: the input arrays.
        box: part of the output.
        out: where it goes; its memory holds other bytes.
        want: the box as another formula gives it; None for what NumPy makes of the form.
    """

    form: Form
    inputs: tuple[Strided, ...]
    box: Box
    out: Strided
    want: NDArray[Any] | None = None

    def expected(self) -> NDArray[Any]:
        """The output's whole memory as NumPy leaves it."""
        memory = self.out.memory.copy()
        out = self.out.array(np, memory)
        if self.want is None:
            self.form.fill(np, [x.view for x in self.inputs], self.box, out)
        else:
            out[...] = self.want
        return memory


def agree(call: Call, memory: NDArray[Any], *, exactly: bool, tolerance: int | None = None, name: str = "") -> None:
    """This memory holds NumPy's answer, and outside the output what was there before.

    Args:
        call: what was called.
        memory: the output's, afterwards.
        exactly: whether every bit must be NumPy's.
        tolerance: of expressions, units in the last place; None for 4 where functions are not rounded correctly.
        name: for the message.
    """
    expected = call.expected()
    if exactly:
        np.testing.assert_array_equal(memory.view(np.uint8), expected.view(np.uint8))
        return
    got, want = call.out.array(np, memory).copy(), call.out.array(np, expected).copy()
    for block in (memory, expected):
        call.out.array(np, block)[...] = 0
    assert memory.tobytes() == expected.tobytes(), "something was written outside of the output"
    if isinstance(call.form, Pointwise):
        # NaN of any bits; functions of either library are within 2 units in the last place of the exact value.
        inexact = 4 if call.form.expression.functions() & set(TOLERANCES) else 0
        off = inexact if tolerance is None else tolerance
        finest = float(np.finfo(want.dtype).eps) if want.dtype.kind == "f" else 0
        least = float(np.finfo(want.dtype).smallest_subnormal) if want.dtype.kind == "f" else 0
        if want.dtype.kind in "fc":
            np.testing.assert_allclose(got, want, rtol=off * finest, atol=off * least, equal_nan=True, err_msg=name)
        else:
            np.testing.assert_array_equal(got, want, err_msg=name)
        return
    # Sums in float32, in whatever order, are off by a few roundings of the largest term each.
    (x,) = [one.view for one in call.inputs]
    largest = max(1.0, float(np.abs(x.astype(np.float64)).max()) if x.size else 1.0)
    off = 16 * 2.0**-24 * largest * _sum_of_weights(call.form)
    if want.dtype.kind == "f":
        finest = np.finfo(want.dtype).eps
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=2 * finest, atol=off)
        return
    # Integers are what is left of some number that near the exact sum.
    assert isinstance(call.form, Separable)
    assert call.form.rounding is Rounding.TRUNCATE
    exact = np.empty(want.shape)
    in_float64 = replace(call.form, accumulate="float64", rounding=Rounding.NONE)
    in_float64.fill(np, [x.astype(np.float64)], call.box, exact)
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
    want = np.tile(x.view, repeats)[tuple(slice(*span) for span in box)]
    return Call(tile(sizes, repeats), (x,), box, out, want)


@st.composite
def copy_calls(draw: st.DrawFn, dtypes: tuple[str, ...]) -> Call:
    """Transposes with any steps, joins and paddings of some thousands of elements, against NumPy's own functions."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    kind = draw(st.sampled_from(["transposed", "transposed", "joined", "padded", "mirrored"]))
    sizes, left = list[int](), 6_000
    for _ in range(draw(st.integers(1, 5))):
        sizes.append(min(left, draw(st.sampled_from([1, 2, 3, 4, 8, 16, 31, 33, 64, 130, 400]))))
        left //= sizes[-1]
    x = draw(strided(tuple(sizes), dtype, shares=True))
    inputs = (x,)
    match kind:
        case "transposed":
            form, want = _transposed(draw, x)
        case "joined":
            axis = draw(st.integers(0, len(sizes) - 1))
            shapes = [(*sizes[:axis], draw(st.sampled_from([1, 2, 5, 16])), *sizes[axis + 1 :]) for _ in range(2)]
            inputs = (x, *(draw(strided(shape, dtype, shares=True)) for shape in shapes))
            starts = np.cumsum([0, *(one.shape[axis] for one in inputs)])
            parts = [
                Copy.of_box(
                    one.shape, target_start=[int(start) if i == axis else 0 for i in range(len(sizes))], input=number
                )
                for number, (one, start) in enumerate(zip(inputs, starts, strict=False))
            ]
            form = Copies((len(sizes),) * len(inputs), (tuple(parts),))
            want = np.concatenate([one.view for one in inputs], axis)
        case "padded":
            pads = [draw(st.sampled_from([(0, 0), (0, 0), (1, 0), (0, 3), (2, 5)])) for _ in sizes]
            value = draw(st.sampled_from([0, 1, 7]))
            part = Copy.of_box(sizes, target_start=[before for before, _ in pads])
            form, want = Copies((len(sizes),), ((part,),), value), np.pad(x.view, pads, constant_values=value)
        case _:
            form, want = _mirrored(x)
    box = draw(boxes(list(want.shape)))
    out = draw(strided(tuple(stop - start for start, stop in box), dtype, shares=False))
    return Call(form, inputs, box, out, want[tuple(slice(*span) for span in box)])


def _transposed(draw: st.DrawFn, x: Strided) -> tuple[Copies, NDArray[Any]]:
    """A slice with any steps, its axes in any order."""
    order = draw(st.permutations(range(len(x.shape))))
    loops, start, index = list[Loop](), list[int](), list[Any]()
    for axis, size in enumerate(x.shape):
        step = draw(st.sampled_from([1, 1, 1, 1, -1, 2, -3, 0]))
        first = 0 if step >= 0 else size - 1
        count = size if step == 0 else -(-size // abs(step))
        start.append(first)
        index.append([first + i * step for i in range(count)])
        loops.append(Loop(count, (order.index(axis), 1), ((axis, step),)))
    copy = Copy(0, tuple(start), (0,) * len(start), tuple(loop for loop in loops if loop.extent > 1))
    return Copies((len(start),), ((copy,),)), x.view[np.ix_(*index)].transpose(order)


def _mirrored(x: Strided) -> tuple[Copies, NDArray[Any]]:
    """The first axis with its mirror image before it and its last element behind it."""
    size, rest = x.shape[0], x.shape[1:]
    zeros = (0,) * len(rest)
    ones = (1,) * len(rest)
    parts = (
        Copy.of_box((size, *rest), source_start=(size - 1, *zeros), source_steps=(-1, *ones)),
        Copy.of_box((size, *rest), target_start=(size, *zeros)),
        Copy.of_box(
            (3, *rest), source_start=(size - 1, *zeros), source_steps=(0, *ones), target_start=(2 * size, *zeros)
        ),
    )
    return Copies((len(x.shape),), (parts,)), np.concatenate([x.view[::-1], x.view, np.repeat(x.view[-1:], 3, 0)])


# ---- expressions -----------------------------------------------------------------------------------------------------

_X, _Y = operand(0), operand(1)
TOLERANCES: dict[str, int] = dict.fromkeys(
    (
        "exp", "log", "tanh", "erf", "expm1", "log1p", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2",
        "sinh", "cosh", "arcsinh", "arccosh", "arctanh", "power",
    ),
    4,
)  # fmt: skip
"""Units in the last place that NumPy's results and a device's may be apart, by function; 0 for all others."""
FUNCTION_TYPES = ("float32", "float64", "float16", "int8", "uint8", "int64", "bool")
_NUMBERS = {
    "f": [0.0, -0.0, 1.5, -2.5, 0.5, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 88.0, 3.0, *np.linspace(-9, 9, 25)],
    "i": [0, 1, -1, 127, -128, 100, 3, 90, -90, 5, 64, 2],
    "u": [0, 1, 255, 127, 128, 100, 3, 90, 200, 5, 64, 2],
    "b": [True, False] * 6,
}
_OF_FLOATS = frozenset({"divide", "sqrt", "floor", "ceil", "trunc", "rint", *TOLERANCES})
_SATURATING = frozenset({"saturate_int32", "saturate_uint32"})
_CONVERTING = frozenset({"as_int32", "as_uint32", "as_int64"})
_SHIFTS = frozenset({"left_shift", "right_shift"})
_OF_INTEGERS = frozenset({"bitwise_and", "bitwise_or", "bitwise_xor", "invert", "divide_integers", "power_integers"})
_OF_INTEGERS |= _SHIFTS
_NOT_OF_BOOL = frozenset({"negative", "subtract", "divide_integers", "power_integers", "fmod"}) | _SHIFTS


def _power(base: int, exponent: int) -> int:
    """Toward zero; 0 to a negative power is 0."""
    if exponent >= 0:
        return pow(base, exponent, 2**64)
    return 0 if abs(base) != 1 else base if exponent % 2 else 1


def function_cases(dtype: str) -> Iterator[tuple[str, Call]]:
    """Every function for pairs of numbers, infinities and NaN among them: one expression that chooses by an operand."""
    kind = np.dtype(dtype).kind
    left_out = {"f": _OF_INTEGERS, "b": _OF_FLOATS | _NOT_OF_BOOL}.get(kind, _OF_FLOATS)
    left_out |= _SATURATING if dtype != "float64" else frozenset[str]()  # which holds what they give
    left_out |= _CONVERTING if dtype != "int64" else frozenset[str]()
    names = [name for name in FUNCTIONS if name not in left_out]
    counts = [FUNCTIONS[name].c.count("{") if name != "divide_integers" else 2 for name in names]
    expression: Expression = operand(0)
    for number, (name, count) in enumerate(zip(names, counts, strict=True)):
        part = where(_X < _Y, _X, _Y) if name == "where" else call(name, *[_X, _Y][: 1 if count == 1 else 2])
        expression = where(call("equal", operand(2), number), part, expression)
    form = Pointwise(expression, (dtype, dtype, "uint8"), "uint8" if kind == "b" else dtype)
    numbers = np.array(_NUMBERS[kind], dtype)
    a, b = (grid.reshape(-1) for grid in np.meshgrid(numbers, numbers))
    for number, name in enumerate(names):
        inputs = tuple(packed(x) for x in (a, b, np.full(a.shape, number, np.uint8)))
        with np.errstate(all="ignore"):
            match name:
                case "where":
                    want = np.where(a < b, a, b)
                case "erf":
                    want = np.array([math.erf(value) for value in a.astype(float)])
                case "saturate_int32" | "saturate_uint32":
                    limits = np.iinfo(name.removeprefix("saturate_"))
                    want = np.trunc(np.clip(np.nan_to_num(a), limits.min, limits.max))
                case "as_int32" | "as_uint32" | "as_int64":
                    want = a.astype(name.removeprefix("as_"))
                case "divide_integers":
                    want = np.where(b == 0, 0, np.trunc(a.astype(float) / b.astype(float)))
                case "power_integers":
                    want = np.array([_power(*pair) for pair in zip(a.tolist(), b.tolist(), strict=True)], object)
                    want = (want % 2**64).astype(np.uint64)
                case _:
                    want = getattr(np, name)(*[a, b][: 1 if counts[number] == 1 else 2])
            yield name, Call(form, inputs, ((0, a.size),), packed(np.zeros_like(a)), want.astype(dtype))


CONVERSIONS = [
    ("float16", "float32", "float16"), ("float16", "float32", "float32"), ("float64", "float64", "float16"),
    ("float32", "float32", "uint8"), ("float32", "float32", "int64"), ("float64", "float64", "uint64"),
    ("int32", "int32", "int8"), ("int64", "int64", "float16"), ("uint16", "float32", "float32"),
    ("uint64", "uint64", "bool"), ("bool", "float32", "int16"), ("uint32", "uint32", "float64"),
]  # fmt: skip
"""Types of an input, of the expression and of the output."""


def conversion(stored: str, computed_in: str, result: str) -> Call:
    """Numbers that all three types have room for."""
    least, most = (0, 250) if stored[0] in "ub" or result[0] == "u" else (-120, 120)
    x = (np.random.default_rng(3).random(1001) * (most - least) + least).astype(stored)
    form = Pointwise(_X, (computed_in,), computed_in)
    want = x.astype(computed_in).astype(result)
    return Call(form, (packed(x),), ((0, x.size),), packed(np.zeros(x.shape, result)), want)


def erf_of_every_half() -> Call:
    """erf in float32 of all numbers of float16, rounded to float16; the exact value by the C library."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    exact = np.array([math.erf(value) for value in x.tolist()]).astype(np.float16)
    form = Pointwise(call("erf", operand(0)), ("float32",), "float32")
    return Call(form, (packed(x),), ((0, x.size),), packed(np.zeros_like(x)), exact)


def choice_of_halves() -> Call:
    """One of two float16 elements, of all their bits."""
    a, b = (np.arange(1 << 16, dtype=np.uint16)[::step].copy().view(np.float16) for step in (1, -1))
    pick = np.arange(1 << 16).astype(np.uint8)
    form = Pointwise(where(_X, _Y, operand(2)), ("uint8", "float16", "float16"), "float16")
    inputs = (packed(pick), packed(a), packed(b))
    return Call(form, inputs, ((0, a.size),), packed(np.zeros_like(a)), np.where(pick, a, b))


GELU = _X * 0.5 * (1.0 + call("erf", _X * 0.7071067811865476))
EXPRESSIONS: dict[str, Expression] = {
    "add": _X + _Y,
    "gelu": GELU,
    "clip": call("minimum", call("maximum", _X, 3), 100),
    "if": where(_X < _Y, _X, _Y * 2),
}
"""Expressions of numbers; `gelu` of floating-point ones alone."""


@st.composite
def pointwise_calls(draw: st.DrawFn, names: tuple[str, ...], types: tuple[tuple[str, str, str], ...]) -> Call:
    """Expressions of arrays with any strides, by (stored, computed, result) types."""
    expression = EXPRESSIONS[draw(st.sampled_from(names))]
    stored, computed, result = draw(st.sampled_from(types))
    sizes, left = list[int](), 2_000
    for _ in range(draw(st.integers(1, 4))):
        sizes.append(min(left, draw(st.sampled_from([1, 2, 3, 8, 16, 33, 64, 500]))))
        left //= sizes[-1]
    count = 2 if expression in (EXPRESSIONS["add"], EXPRESSIONS["if"]) else 1
    inputs = tuple(draw(strided(tuple(sizes), np.dtype(stored), shares=True)) for _ in range(count))
    if np.dtype(result).kind in "iu" and np.dtype(computed).kind == "f":
        for x in inputs:
            x.memory[:] = np.random.default_rng(x.memory.size).integers(-100, 100, x.memory.size).astype(stored)
    box = draw(boxes(sizes))
    out = draw(strided(tuple(stop - start for start, stop in box), np.dtype(result), shares=False))
    return Call(Pointwise(expression, (computed,) * count, computed), inputs, box, out)


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
            return PyramidAxis(*forward) if scale < 0.5 else LinearAxis(*forward)
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
    return Call(Separable(tuple(axes), rounding=rounding), (x,), box, out)


def is_exact(call: Call) -> bool:
    """Whether nothing is summed, so that every bit must be NumPy's."""
    match call.form:
        case Copies():
            return True
        case Separable(axes):
            return all(axis is None or isinstance(axis, NearestAxis) for axis in axes)
        case _:
            return False
