"""Hypothesis strategies for whole calls with their answers: random legal descriptors, layouts and elements.

Every answer is computed here, by NumPy's own functions or by loops over Python numbers, from the pages' formulas and
nothing of the packages under test; layouts are drawn by tests/support/strategies.py. Elements are chosen so that
answers are exact whatever the order of sums: small multiples of an eighth, powers of two, whole numbers. What is left
is a tolerance in the case.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support import oracles
from tests.support import strategies as ours
from tests.support.vectors import Case, elements, written

from tensorpost.descriptors import BufferTensorDesc, OperatorDesc, operator_class

__all__ = ["STRATEGIES", "rounded", "saturated"]

Array = NDArray[Any]
FLOATS = ("FLOAT32", "FLOAT16")
SIGNED = ("INT8", "INT16", "INT32", "INT64")
UNSIGNED = ("UINT8", "UINT16", "UINT32", "UINT64")
NUMBERS = ours.TILE_DATA_TYPES  # all but FLOAT64
WITH_FLOAT64 = (*NUMBERS, "FLOAT64")
NO_SIGN_OF_ZERO = 5e-324  # an absolute tolerance that lets +0 and -0 be equal, and nothing else


def numpy_name(data_type: str) -> np.dtype[Any]:
    return np.dtype(data_type.lower())


# ---- drawing tensors -------------------------------------------------------------------------------------------------


def small_sizes(draw: st.DrawFn, low: int = 1, high: int = 4, most: int = 48) -> tuple[int, ...]:
    return draw(ours.sizes(min_dims=low, max_dims=high, max_elements=most))


def tensor(draw: st.DrawFn, data_type: str, sizes: Sequence[int], *, output: bool = False) -> BufferTensorDesc:
    return draw(ours.tensor_descs(data_types=(data_type,), of=tuple(sizes), output=output))


def bits_of(draw: st.DrawFn, count: int, dtype: np.dtype[Any]) -> Array:
    """Any bits: NaNs with payloads, infinities, subnormals, every integer."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    return np.frombuffer(random.bytes(count * dtype.itemsize), dtype)


def any_numbers(draw: st.DrawFn, count: int, dtype: np.dtype[Any]) -> Array:
    """Integers of the whole range, floating-point numbers of all magnitudes, infinities, zeros and the usual NaN."""
    found = bits_of(draw, count, dtype).copy()
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    if dtype.kind == "f":
        special = np.array([0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 2.5, 1e-6, -7.0, 60000.0], dtype)
        chosen = random.random(count) < 0.7
        found[chosen | np.isnan(found)] = random.choice(special, np.count_nonzero(chosen | np.isnan(found)))
    else:
        limits = np.iinfo(dtype)
        special = np.array([0, 1, 2, limits.max, limits.min, limits.max - 1], dtype)
        chosen = random.random(count) < 0.5
        found[chosen] = random.choice(special, np.count_nonzero(chosen))
    return found


def eighths(draw: st.DrawFn, count: int, dtype: np.dtype[Any]) -> Array:
    """Multiples of 1/8 up to 4 in magnitude; whole numbers from 0 to 20 (or -20) for integers."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    if dtype.kind == "f":
        return (random.integers(-32, 33, count) / 8).astype(dtype)
    return random.integers(0 if dtype.kind == "u" else -20, 21, count).astype(dtype)


def whole_numbers(draw: st.DrawFn, count: int, dtype: np.dtype[Any]) -> Array:
    return np.random.default_rng(draw(st.integers(0, 2**32))).integers(-4, 5, count).astype(dtype)


def finite(draw: st.DrawFn, count: int, dtype: np.dtype[Any]) -> Array:
    return (np.random.default_rng(draw(st.integers(0, 2**32))).standard_normal(count) * 4).astype(dtype)


Fill = Callable[[st.DrawFn, int, np.dtype[Any]], Array]
Oracle = Callable[..., Array | tuple[Array, ...]]


def call(
    draw: st.DrawFn, name: str, fields: Mapping[str, Any], fills: Mapping[str, Fill], oracle: Oracle, **tolerance: Any
) -> Case:
    """The case of a descriptor whose inputs are filled: whole buffers, whatever their strides.

    Args:
        draw: Hypothesis.
        name: the operator.
        fields: of the descriptor, by Python's names.
        fills: how the elements of each slot are drawn; "*" for all others.
        oracle: from the input arrays to the output array, or to a tuple of them.
        tolerance: members of `Case`.
    """
    desc: OperatorDesc = operator_class(name)(**fields)
    buffers: list[bytes] = []
    for slot in desc.inputs:
        dtype = np.dtype(slot.layout.data_type.numpy_name)
        drawn = fills.get(slot.name, fills.get("*", any_numbers))(
            draw, slot.layout.size_in_bytes // dtype.itemsize, dtype
        )
        buffers.append(drawn.tobytes().ljust(slot.layout.size_in_bytes, b"\0"))
    with np.errstate(all="ignore"):
        arrays = [elements(slot, buffer) for slot, buffer in zip(desc.inputs, buffers, strict=True)]
        made = oracle(*arrays)
    outputs = made if isinstance(made, tuple) else (made,)
    expected = [
        written(slot, np.ascontiguousarray(array).reshape(slot.layout.sizes))
        for slot, array in zip(desc.outputs, outputs, strict=True)
    ]
    return Case(f"{name} {fields}", desc, tuple(buffers), b"".join(expected), **tolerance)


# ---- exact conversions -----------------------------------------------------------------------------------------------


def rounded(value: Fraction, dtype: np.dtype[Any]) -> Any:
    """The floating-point number next to an exact one, halves to even; infinite beyond the range."""
    near = float(value) if abs(value) < 2**1023 else math.copysign(math.inf, value)
    with np.errstate(over="ignore"):
        middle = dtype.type(near)
        candidates = [np.nextafter(middle, dtype.type(-math.inf)), middle, np.nextafter(middle, dtype.type(math.inf))]
    beyond = Fraction(2) ** (int(np.finfo(dtype).maxexp))

    def exact(number: Any) -> Fraction:
        return beyond * (1 if number > 0 else -1) if np.isinf(number) else Fraction(float(number))

    def key(number: Any) -> tuple[Fraction, int]:
        return abs(exact(number) - value), int(np.array(number).view(f"u{dtype.itemsize}")) & 1

    return min(candidates, key=key)


def saturated(value: float, dtype: np.dtype[Any]) -> int:
    """Toward zero, limited to the type's range, NaN as 0.

    The upper limit of a 64-bit type is the largest FLOAT64 in its range: 2^63 - 1024, 2^64 - 2048; tensorpost's choice.
    """
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    if dtype.itemsize == 8:
        high -= 1023 if dtype.kind == "i" else 2047
    if not math.isfinite(value):
        return 0 if math.isnan(value) else high if value > 0 else low
    return min(max(math.trunc(value), low), high)


def wrapped(values: Any, dtype: np.dtype[Any]) -> Array:
    """Python integers modulo the type's range."""
    bits = 8 * dtype.itemsize
    flat = np.asarray(values, object)
    unsigned = np.array([int(value) % 2**bits for value in flat.ravel()], f"u{dtype.itemsize}")
    return unsigned.view(dtype).reshape(flat.shape)


def limited(value: int, dtype: np.dtype[Any]) -> int:
    """As 32 bits or more of the type's sign, then as Direct3D writes 8 and 16 bits: the nearest number they hold."""
    limits = np.iinfo(dtype)
    wide = int(wrapped(value, np.dtype(f"{dtype.kind}{max(4, dtype.itemsize)}")))
    return min(max(wide, int(limits.min)), int(limits.max))


def map_elements(function: Callable[..., Any], dtype: np.dtype[Any], *arrays: Array) -> Array:
    flat = [function(*items) for items in zip(*[array.ravel().tolist() for array in arrays], strict=True)]
    return np.array(flat, dtype).reshape(arrays[0].shape)


def wide(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype == np.float16 else x


# ---- element-wise ----------------------------------------------------------------------------------------------------


def scale_biased(x: Array, scale_bias: Any) -> Array:
    """`x * Scale + Bias`: in float32, rounded twice."""
    if scale_bias is None:
        return wide(x)
    scale, bias = scale_bias["Scale"], scale_bias["Bias"]
    x = x.astype(np.float32) if x.dtype.itemsize < 8 else x
    return x * x.dtype.type(scale) + x.dtype.type(bias)


def narrowed(y: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "f" or y.dtype == dtype:
        return y.astype(dtype)
    return map_elements(lambda value: saturated(value, dtype), dtype, y)


@st.composite
def unary(
    draw: st.DrawFn, name: str, types: Sequence[str], formula: Callable[[Array], Array], *,
    scaled: bool = True, fill: Fill = any_numbers, **tolerance: Any,
) -> Case:  # fmt: skip
    data_type, sizes = draw(st.sampled_from(types)), small_sizes(draw, high=8)
    fields: dict[str, Any] = {}
    if scaled and draw(st.booleans()):
        pair = st.sampled_from([1.0, 2.0, 0.5, -1.0, 0.25, -3.0])
        wide = data_type.endswith("64")  # not scaled
        fields["scale_bias"] = {"Scale": 1.0, "Bias": 0.0} if wide else {"Scale": draw(pair), "Bias": draw(pair)}
    fields["input_tensor"] = tensor(draw, data_type, sizes)
    fields["output_tensor"] = tensor(draw, data_type, sizes, output=True)

    def oracle(x: Array) -> Array:
        return narrowed(formula(scale_biased(x, fields.get("scale_bias"))), x.dtype)

    return call(draw, name, fields, {"*": fill}, oracle, any_nan=True, **tolerance)


def gelu(x: Array) -> Array:
    made = map_elements(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))), np.dtype(np.float64), x)
    return np.where(np.isneginf(x), -0.0, made)


@st.composite
def clips(draw: st.DrawFn) -> Case:
    low, high = (draw(st.sampled_from([-1e30, -300.5, -2.75, 0.0, 0.1, 1.5, 100.25, 1e30])) for _ in range(2))
    base = draw(unary("ELEMENT_WISE_IDENTITY", NUMBERS, lambda x: x))
    desc: Any = base.desc
    dtype = np.dtype(desc.input_tensor.data_type.name.lower())

    def bound(value: float) -> Any:
        if dtype.kind != "f":
            return value
        with np.errstate(over="ignore"):
            return np.float32(dtype.type(np.float32(value)))

    def oracle(x: Array) -> Array:
        scale_bias = None
        if desc.scale_bias is not None and dtype.name not in ("int64", "uint64"):  # these are not scaled
            scale_bias = {"Scale": desc.scale_bias.scale, "Bias": desc.scale_bias.bias}
        y = scale_biased(x, scale_bias)
        if dtype.kind != "f" and scale_bias is None:
            ends = [int(value) for value in (low, high)]
            ends = [min(max(end, int(np.iinfo(dtype).min)), int(np.iinfo(dtype).max)) for end in ends]
            return map_elements(lambda v: max(min(v, ends[1]), ends[0]), dtype, y)
        return narrowed(np.maximum(np.minimum(y, bound(high)), bound(low)), dtype)

    fields = {name: getattr(desc, name) for name in ("input_tensor", "output_tensor", "scale_bias")}
    fields |= {"min": low, "max": high}
    return call(draw, "ELEMENT_WISE_CLIP", fields, {}, oracle, any_nan=True, absolute=NO_SIGN_OF_ZERO)


@st.composite
def binary(draw: st.DrawFn, name: str, formula: Callable[[Any, Any], Any], **tolerance: Any) -> Case:
    data_type, sizes = draw(st.sampled_from(NUMBERS)), small_sizes(draw, high=8)
    fields = {field: tensor(draw, data_type, sizes) for field in ("a_tensor", "b_tensor")}
    fields["output_tensor"] = tensor(draw, data_type, sizes, output=True)

    def oracle(a: Array, b: Array) -> Array:
        if a.dtype.kind == "f":
            return formula(wide(a), wide(b)).astype(a.dtype)
        flat = [formula(left, right) for left, right in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)]
        return wrapped(np.array(flat, object).reshape(a.shape), a.dtype)

    return call(draw, name, fields, {}, oracle, any_nan=True, **tolerance)


def divided(a: Any, b: Any) -> Any:
    if not isinstance(a, int):
        return a / b
    if b == 0:
        return 1 if a < 0 else -1  # as DirectML's; an unsigned one has all bits set
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


def larger(a: Any, b: Any) -> Any:
    return max(a, b) if isinstance(a, int) else np.maximum(a, b)


def smaller(a: Any, b: Any) -> Any:
    return min(a, b) if isinstance(a, int) else np.minimum(a, b)


@st.composite
def choices(draw: st.DrawFn) -> Case:
    data_type, sizes = draw(st.sampled_from(WITH_FLOAT64)), small_sizes(draw, high=8)
    fields = {
        "condition_tensor": tensor(draw, "UINT8", sizes),
        "a_tensor": tensor(draw, data_type, sizes),
        "b_tensor": tensor(draw, data_type, sizes),
        "output_tensor": tensor(draw, data_type, sizes, output=True),
    }

    def oracle(condition: Array, a: Array, b: Array) -> Array:
        bits = np.dtype(f"u{a.itemsize}")
        return np.where(condition != 0, a.view(bits), b.view(bits)).view(a.dtype)

    return call(draw, "ELEMENT_WISE_IF", fields, {"*": bits_of}, oracle)


@st.composite
def casts(draw: st.DrawFn) -> Case:
    source, target = draw(st.sampled_from(WITH_FLOAT64)), draw(st.sampled_from(WITH_FLOAT64))
    sizes, dtype = small_sizes(draw, high=8, most=24), numpy_name(target)
    fields = {"input_tensor": tensor(draw, source, sizes), "output_tensor": tensor(draw, target, sizes, output=True)}

    def convert(value: Any) -> Any:
        if dtype.kind != "f":
            return saturated(value, dtype) if isinstance(value, float) else limited(value, dtype)
        if isinstance(value, float) and (not math.isfinite(value) or value == 0):
            return value
        return rounded(Fraction(value), dtype)

    return call(
        draw, "CAST", fields, {}, lambda x: map_elements(convert, dtype, x), any_nan=True, absolute=NO_SIGN_OF_ZERO
    )


# ---- movement --------------------------------------------------------------------------------------------------------

_NUMPY_MODES = {
    "CONSTANT": "constant", "EDGE": "edge", "REFLECTION": "reflect", "SYMMETRIC": "symmetric", "WRAP": "wrap",
}  # fmt: skip


@st.composite
def paddings(draw: st.DrawFn) -> Case:
    data_type, sizes = draw(st.sampled_from(NUMBERS)), small_sizes(draw, most=24)
    mode, value = draw(st.sampled_from(list(_NUMPY_MODES))), draw(st.integers(0, 100))
    start, end = ([draw(st.integers(0, 3)) for _ in sizes] for _ in range(2))
    if len(sizes) == 1:
        start[0] += draw(st.integers(0, 12))
    fields = {
        "input_tensor": tensor(draw, data_type, sizes),
        "output_tensor": tensor(draw, data_type, [sum(t) for t in zip(sizes, start, end, strict=True)], output=True),
        "padding_mode": mode, "padding_value_data_type": data_type, "padding_value": value,
        "start_padding": start, "end_padding": end,
    }  # fmt: skip

    def oracle(x: Array) -> Array:
        bits = np.dtype(f"u{x.itemsize}")
        constant = {"constant_values": np.array(value, x.dtype).view(bits)} if mode == "CONSTANT" else {}
        arguments: Any = {"mode": _NUMPY_MODES[mode], **constant}
        return np.pad(x.view(bits), list(zip(start, end, strict=True)), **arguments).view(x.dtype)

    return call(draw, "PADDING1", fields, {"*": bits_of}, oracle)


@st.composite
def slices(draw: st.DrawFn) -> Case:
    data_type, sizes = draw(st.sampled_from(NUMBERS)), small_sizes(draw, high=8)
    offsets = [draw(st.integers(0, size - 1)) for size in sizes]
    windows = [draw(st.integers(1, size - offset)) for size, offset in zip(sizes, offsets, strict=True)]
    steps = [draw(st.integers(-3, 3).filter(bool)) for _ in sizes]
    reached = [len(range(0, size, abs(step))) for size, step in zip(windows, steps, strict=True)]
    out = [draw(st.integers(1, count)) for count in reached]
    fields = {
        "input_tensor": tensor(draw, data_type, sizes), "output_tensor": tensor(draw, data_type, out, output=True),
        "input_window_offsets": offsets, "input_window_sizes": windows, "input_window_strides": steps,
    }  # fmt: skip

    def oracle(x: Array) -> Array:
        window = x[tuple([slice(at, at + size) for at, size in zip(offsets, windows, strict=True)])]
        return window[tuple([slice(None, None, step) for step in steps])][tuple([slice(0, count) for count in out])]

    return call(draw, "SLICE1", fields, {"*": bits_of}, oracle)


def parts_of(draw: st.DrawFn) -> tuple[str, int, list[list[int]], list[int]]:
    """A type, an axis, the sizes of parts along it, and the sizes of the whole."""
    data_type, sizes = draw(st.sampled_from(NUMBERS)), list(small_sizes(draw, most=24))
    axis = draw(st.integers(0, len(sizes) - 1))
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    parts = [[*sizes[:axis], length, *sizes[axis + 1 :]] for length in lengths]
    return data_type, axis, parts, [*sizes[:axis], sum(lengths), *sizes[axis + 1 :]]


@st.composite
def joins(draw: st.DrawFn) -> Case:
    data_type, axis, parts, whole = parts_of(draw)
    fields = {
        "input_tensors": [tensor(draw, data_type, part) for part in parts],
        "output_tensor": tensor(draw, data_type, whole, output=True), "axis": axis,
    }  # fmt: skip

    def oracle(*arrays: Array) -> Array:
        bits = np.dtype(f"u{arrays[0].itemsize}")
        return np.concatenate([array.view(bits) for array in arrays], axis).view(arrays[0].dtype)

    return call(draw, "JOIN", fields, {"*": bits_of}, oracle)


@st.composite
def splits(draw: st.DrawFn) -> Case:
    data_type, axis, parts, whole = parts_of(draw)
    fields = {
        "input_tensor": tensor(draw, data_type, whole),
        "output_tensors": [tensor(draw, data_type, part, output=True) for part in parts], "axis": axis,
    }  # fmt: skip
    ends = list(itertools.accumulate(part[axis] for part in parts))
    return call(draw, "SPLIT", fields, {"*": bits_of}, lambda x: tuple(np.split(x, ends[:-1], axis)))


# ---- indexing --------------------------------------------------------------------------------------------------------


def some_indices(length: int, *, unsigned: bool) -> Fill:
    """Indices mostly inside an axis of this length, negative ones too, some outside."""

    def fill(draw: st.DrawFn, count: int, dtype: np.dtype[Any]) -> Array:
        inside = list(range(0 if unsigned else -length, length))
        outside = [
            length,
            length + 3,
            int(np.iinfo(dtype).max),
            *([] if unsigned else [-length - 1, int(np.iinfo(dtype).min)]),
        ]
        random = np.random.default_rng(draw(st.integers(0, 2**32)))
        chosen = [int(random.choice(inside)) for _ in range(count)]
        return np.array(
            [outside[i % len(outside)] if random.random() < 0.15 else c for i, c in enumerate(chosen)], dtype
        )

    return fill


@st.composite
def gathers(draw: st.DrawFn) -> Case:
    data_type = draw(st.sampled_from(WITH_FLOAT64))
    index_type = draw(st.sampled_from(("INT32", "INT64", "UINT32", "UINT64")))
    sizes, shape = small_sizes(draw, high=3, most=16), draw(st.lists(st.integers(1, 3), max_size=2))
    rank = max(len(sizes), len(shape), len(sizes) - 1 + len(shape)) + draw(st.integers(0, 2))
    inner = draw(st.integers(0, len(sizes) - 1))
    ones = [1] * (rank - len(sizes))
    out = [*sizes[:inner], *shape, *sizes[inner + 1 :]]
    fields = {
        "input_tensor": tensor(draw, data_type, [*ones, *sizes]),
        "indices_tensor": tensor(draw, index_type, [*[1] * (rank - len(shape)), *shape]),
        "output_tensor": tensor(draw, data_type, [*[1] * (rank - len(out)), *out], output=True),
        "axis": len(ones) + inner, "index_dimensions": len(shape),
    }  # fmt: skip

    def oracle(x: Array, indices: Array) -> Array:
        length = sizes[inner]
        wanted = [int(index) + (length if index < 0 else 0) for index in indices.ravel()]
        limited = np.array([min(max(index, 0), length - 1) for index in wanted], np.int64).reshape(shape)
        return np.take(x.reshape(sizes), limited, axis=inner)

    fills: dict[str, Fill] = {"input": bits_of}
    fills["indices"] = some_indices(sizes[inner], unsigned=index_type.startswith("U"))
    return call(draw, "GATHER", fields, fills, oracle)


@st.composite
def scatters(draw: st.DrawFn) -> Case:
    data_type = draw(st.sampled_from(WITH_FLOAT64))
    index_type = draw(st.sampled_from(("INT32", "INT64", "UINT32", "UINT64")))
    sizes = small_sizes(draw, high=3, most=24)
    axis = draw(st.integers(0, len(sizes) - 1))
    length, count = sizes[axis], draw(st.integers(1, sizes[axis]))
    shape = [*sizes[:axis], count, *sizes[axis + 1 :]]
    fields = {
        "input_tensor": tensor(draw, data_type, sizes),
        # Two updates of one element may come in any order, so every line of indices is a permutation: packed.
        "indices_tensor": BufferTensorDesc.packed(index_type, shape),
        "updates_tensor": tensor(draw, data_type, shape),
        "output_tensor": tensor(draw, data_type, sizes, output=True), "axis": axis,
    }  # fmt: skip

    def fill(draw: st.DrawFn, total: int, dtype: np.dtype[Any]) -> Array:
        random = np.random.default_rng(draw(st.integers(0, 2**32)))
        found = np.empty(shape, dtype)
        for line in np.ndindex(*[1 if at == axis else size for at, size in enumerate(shape)]):
            order = random.permutation(length)[:count].astype(object)
            if dtype.kind == "i":
                order = np.where(random.random(count) < 0.5, order - length, order)
            order = np.where(random.random(count) < 0.1, length + 2, order)
            found[tuple([slice(None) if at == axis else i for at, i in enumerate(line)])] = order.astype(dtype)
        return found.ravel()[:total]

    def oracle(x: Array, indices: Array, updates: Array) -> Array:
        made = x.copy()
        for place in np.ndindex(*indices.shape):
            index = int(indices[place])
            index += length if index < 0 else 0
            if 0 <= index < length:
                made[(*place[:axis], index, *place[axis + 1 :])] = updates[place]
        return made

    return call(draw, "SCATTER_ELEMENTS", fields, {"indices": fill, "*": any_numbers}, oracle, any_nan=True)


@st.composite
def nonzeros(draw: st.DrawFn) -> Case:
    data_type = draw(st.sampled_from((*FLOATS, *SIGNED[:3], *UNSIGNED[:3])))
    sizes = small_sizes(draw, most=24)
    effective = len(sizes) - next((axis for axis, size in enumerate(sizes) if size != 1), len(sizes))
    columns, total = draw(st.integers(max(1, effective), len(sizes))), math.prod(sizes)
    fields = {
        "input_tensor": tensor(draw, data_type, sizes),
        "output_count_tensor": tensor(draw, "UINT32", [1] * draw(st.integers(1, 3)), output=True),
        "output_coordinates_tensor": tensor(draw, "UINT32", [total, columns], output=True),
    }

    def oracle(x: Array) -> tuple[Array, Array]:
        rows = np.zeros((total, columns), np.uint32)
        found = [place for place in np.ndindex(*sizes) if x[place] != 0]
        for row, place in enumerate(found):
            rows[row] = place[len(sizes) - columns :]
        return np.array([len(found)], np.uint32), rows

    def fill(draw: st.DrawFn, count: int, dtype: np.dtype[Any]) -> Array:
        drawn = any_numbers(draw, count, dtype)
        drawn[::2] = 0
        return drawn

    return call(draw, "NONZERO_COORDINATES", fields, {"*": fill}, oracle)


# ---- lines -----------------------------------------------------------------------------------------------------------

_EXACT_SUMS = ("SUM", "L1", "SUM_SQUARE")
_ALL_TYPES = ("ARGMAX", "ARGMIN", "MAX", "MIN")


def powers(draw: st.DrawFn, count: int, dtype: np.dtype[Any]) -> Array:
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    if dtype.kind == "f":
        return random.choice(np.array([1, -1, 2, 0.5, -0.5], dtype), count)
    return random.choice(np.array([1, 2, 3, 5], dtype), count)


@st.composite
def reductions(draw: st.DrawFn) -> Case:
    function = draw(st.sampled_from((*_ALL_TYPES, *_EXACT_SUMS, "MULTIPLY", "AVERAGE", "L2", "LOG_SUM", "LOG_SUM_EXP")))
    types = NUMBERS if function in _ALL_TYPES else FLOATS
    if function in (*_EXACT_SUMS, "MULTIPLY"):
        types = (*FLOATS, "INT32", "INT64", "UINT32", "UINT64")
    data_type, sizes = draw(st.sampled_from(types)), small_sizes(draw, high=5)
    axes = draw(st.permutations(range(len(sizes))))[: draw(st.integers(1, len(sizes)))]
    index = function.startswith("ARG")
    target = draw(st.sampled_from(("INT32", "INT64", "UINT32", "UINT64"))) if index else data_type
    kept = [1 if axis in axes else size for axis, size in enumerate(sizes)]
    fields = {
        "function": function, "input_tensor": tensor(draw, data_type, sizes),
        "output_tensor": tensor(draw, target, kept, output=True), "axes": axes,
    }  # fmt: skip

    def oracle(x: Array) -> Array:
        rest = [axis for axis in range(x.ndim) if axis not in axes]
        lines = x.transpose([*rest, *sorted(axes)]).reshape(math.prod(kept), -1)
        dtype = numpy_name(target)
        made = [_reduced(function, [*line.tolist()]) for line in lines]
        return wrapped(made, dtype) if dtype.kind in "iu" else np.array(made).astype(dtype)

    fill = {"MULTIPLY": powers}.get(function, any_numbers if function in _ALL_TYPES else eighths)
    if index and numpy_name(data_type).kind == "f":
        fill = finite  # which of several NaN is the largest is not defined
    tolerance = {"AVERAGE": {"ulp": 1}, "L2": {"ulp": 2}, "LOG_SUM": {"ulp": 4, "absolute": 1e-6}}.get(function, {})
    if function == "LOG_SUM_EXP":
        tolerance = {"ulp": 4, "absolute": 1e-6}
    absolute = {"absolute": NO_SIGN_OF_ZERO} if not tolerance else {}
    return call(draw, "REDUCE", fields, {"*": fill}, oracle, any_nan=True, **tolerance, **absolute)


def _reduced(function: str, line: list[Any]) -> Any:
    """A function of Python numbers; every sum of eighths is exact."""
    total = sum(line)
    match function:
        case "ARGMAX":
            return line.index(max(line))
        case "ARGMIN":
            return line.index(min(line))
        case "MAX" | "MIN":
            if any(value != value for value in line):
                return math.nan
            return max(line) if function == "MAX" else min(line)
        case "SUM":
            return total
        case "AVERAGE":
            return total / len(line)
        case "L1":
            return sum(abs(value) for value in line)
        case "SUM_SQUARE":
            return sum(value * value for value in line)
        case "L2":
            return math.sqrt(sum(value * value for value in line))
        case "MULTIPLY":
            return math.prod(line)
        case "LOG_SUM":
            return math.nan if total < 0 else -math.inf if total == 0 else math.log(total)
        case _:
            return math.log(sum(math.exp(value) for value in line))


@st.composite
def top_ks(draw: st.DrawFn) -> Case:
    data_type, sizes = draw(st.sampled_from(NUMBERS)), small_sizes(draw)
    axis = draw(st.integers(0, len(sizes) - 1))
    k, direction = draw(st.integers(1, sizes[axis])), draw(st.sampled_from(("INCREASING", "DECREASING")))
    index_type = draw(st.sampled_from(("UINT32", "UINT64")))
    out = [*sizes[:axis], k, *sizes[axis + 1 :]]
    fields = {
        "input_tensor": tensor(draw, data_type, sizes),
        "output_value_tensor": tensor(draw, data_type, out, output=True),
        "output_index_tensor": tensor(draw, index_type, out, output=True),
        "axis": axis, "k": k, "axis_direction": direction,
    }  # fmt: skip

    def oracle(x: Array) -> tuple[Array, Array]:
        lines = np.moveaxis(x, axis, -1)
        values, places = (np.empty((*lines.shape[:-1], k), t) for t in (x.dtype, numpy_name(index_type)))
        for line in np.ndindex(*lines.shape[:-1]):
            numbers = lines[line].tolist()

            def rank(place: int, numbers: list[Any] = numbers) -> tuple[bool, Any]:
                value = numbers[place]
                return (True, 0) if value != value else (False, value)

            # A sort keeps the order of equal elements, in reverse too.
            order = sorted(range(len(numbers)), key=rank, reverse=direction == "DECREASING")[:k]
            values[line], places[line] = lines[line][order], order
        return np.moveaxis(values, -1, axis), np.moveaxis(places, -1, axis)

    return call(draw, "TOP_K1", fields, {}, oracle, any_nan=True)


# ---- generators and products -----------------------------------------------------------------------------------------


@st.composite
def sequences(draw: st.DrawFn) -> Case:
    data_type, sizes = draw(st.sampled_from(NUMBERS)), small_sizes(draw, high=8)
    dtype = numpy_name(data_type)
    if dtype.kind == "f":
        start, delta = (draw(st.integers(-800, 800)) / 8 for _ in range(2))
    else:
        limits = np.iinfo(dtype)
        start = draw(st.integers(int(limits.min), int(limits.max)))
        delta = draw(st.one_of(st.integers(-3, 3), st.integers(int(limits.min), int(limits.max))))
    fields = {
        "output_tensor": tensor(draw, data_type, sizes, output=True),
        "value_data_type": data_type, "value_start": start, "value_delta": delta,
    }  # fmt: skip

    def oracle() -> Array:
        values = [start + delta * k for k in range(math.prod(sizes))]
        return wrapped(values, dtype) if dtype.kind in "iu" else np.array(values).astype(dtype)

    return call(draw, "FILL_VALUE_SEQUENCE", fields, {}, oracle, absolute=NO_SIGN_OF_ZERO)


def activated(draw: st.DrawFn) -> tuple[dict[str, Any], Callable[[Array], Array]]:
    """A fused RELU or none, as a field of the descriptor and as a function."""
    if draw(st.booleans()):
        return {"fused_activation": {"Type": "ACTIVATION_RELU"}}, lambda y: np.maximum(y, 0)
    return {}, lambda y: y


@st.composite
def gemms(draw: st.DrawFn) -> Case:
    data_type, leading = draw(st.sampled_from(FLOATS)), draw(st.lists(st.integers(1, 2), max_size=2))
    rows, inner, columns = (draw(st.integers(1, 6)) for _ in range(3))
    turned = [draw(st.booleans()) for _ in range(2)]
    alpha, beta = (draw(st.sampled_from([1.0, 0.5, -2.0, 0.0])) for _ in range(2))
    fused, activate = activated(draw)
    fields: dict[str, Any] = {
        "a_tensor": tensor(draw, data_type, [*leading, *((inner, rows) if turned[0] else (rows, inner))]),
        "b_tensor": tensor(draw, data_type, [*leading, *((columns, inner) if turned[1] else (inner, columns))]),
        "output_tensor": tensor(draw, data_type, [*leading, rows, columns], output=True),
        "trans_a": int(turned[0]), "trans_b": int(turned[1]), "alpha": alpha, "beta": beta, **fused,
    }  # fmt: skip
    if draw(st.booleans()):
        fields["c_tensor"] = tensor(draw, data_type, [*leading, rows, columns])

    def oracle(a: Array, b: Array, *c: Array) -> Array:
        formula = f"...{'km' if turned[0] else 'mk'},...{'nk' if turned[1] else 'kn'}->...mn"
        made = alpha * np.einsum(formula, a.astype(np.float64), b.astype(np.float64))
        return activate(made + beta * c[0].astype(np.float64) if c else made).astype(a.dtype)

    return call(draw, "GEMM", fields, {"*": whole_numbers}, oracle, absolute=NO_SIGN_OF_ZERO)


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    data_type, spatial = draw(st.sampled_from(FLOATS)), draw(st.integers(1, 3))
    small = st.integers(1, 2)
    batch, groups, into, out = (draw(small) for _ in range(4))
    backward, mode = draw(st.booleans()), draw(st.sampled_from(("CONVOLUTION", "CROSS_CORRELATION")))
    window = [draw(st.integers(1, 3 if spatial < 3 else 2)) for _ in range(spatial)]
    strides, dilations = ([draw(small) for _ in range(spatial)] for _ in range(2))
    extents = [(taps - 1) * dilation + 1 for taps, dilation in zip(window, dilations, strict=True)]
    start, end = ([draw(st.integers(0, min(2, extent - 1))) for extent in extents] for _ in range(2))
    extra = [draw(st.integers(0, 1)) for _ in range(spatial)]
    numbers = list(zip(extents, strides, start, end, strict=True))
    if backward:
        source = [draw(st.integers(1, 4 if spatial == 1 else 2)) for _ in range(spatial)]
        # Padding may not cut more than there is.
        whole = [(n - 1) * stride + extent for n, (extent, stride, _, _) in zip(source, numbers, strict=True)]
        start = [min(a, (n - 1) // 2) for a, n in zip(start, whole, strict=True)]
        end = [min(a, (n - 1) // 2) for a, n in zip(end, whole, strict=True)]
        summed = [n - a - b for n, a, b in zip(whole, start, end, strict=True)]
    else:
        source = [max(1, extent - a - b) + draw(st.integers(0, 2)) for extent, _, a, b in numbers]
        summed = [(n + a + b - extent) // stride + 1 for n, (extent, stride, a, b) in zip(source, numbers, strict=True)]
    sizes = [n + more for n, more in zip(summed, extra, strict=True)]
    fused, activate = activated(draw)
    filters = [groups * into, out, *window] if backward else [groups * out, into, *window]
    fields: dict[str, Any] = {
        "input_tensor": tensor(draw, data_type, [batch, groups * into, *source]),
        "filter_tensor": tensor(draw, data_type, filters),
        "output_tensor": tensor(draw, data_type, [batch, groups * out, *sizes], output=True),
        "mode": mode, "direction": "BACKWARD" if backward else "FORWARD", "strides": strides, "dilations": dilations,
        "start_padding": start, "end_padding": end, "output_padding": extra, "group_count": groups, **fused,
    }  # fmt: skip
    if draw(st.booleans()):
        fields["bias_tensor"] = tensor(draw, data_type, [1, groups * out, *[1] * spatial])

    def oracle(x: Array, w: Array, *bias: Array) -> Array:
        """The page's sums as loops; transposed, every input element adds the filter."""
        made = np.zeros([batch, groups * out, *sizes])
        x, w = x.astype(np.float64), w.astype(np.float64)
        if mode == "CONVOLUTION":
            w = w[(slice(None), slice(None), *[slice(None, None, -1)] * spatial)]
        for group, i, o in itertools.product(range(groups), range(into), range(out)):
            channel, target = group * into + i, group * out + o
            for k in np.ndindex(*window):
                weight = w[(channel, o, *k)] if backward else w[(target, i, *k)]
                moved = [a * dilation - b for a, dilation, b in zip(k, dilations, start, strict=True)]
                for place in np.ndindex(*(source if backward else summed)):
                    other = tuple([p * stride + m for p, stride, m in zip(place, strides, moved, strict=True)])
                    limits = summed if backward else source
                    if all(0 <= p < limit for p, limit in zip(other, limits, strict=True)):
                        read, write = (place, other) if backward else (other, place)
                        made[(slice(None), target, *write)] += weight * x[(slice(None), channel, *read)]
        if bias:
            made[(slice(None), slice(None), *[slice(n) for n in summed])] += bias[0].astype(np.float64)
        return activate(made).astype(x.dtype if data_type == "FLOAT64" else numpy_name(data_type))

    return call(draw, "CONVOLUTION", fields, {"*": whole_numbers}, oracle, absolute=NO_SIGN_OF_ZERO)


@st.composite
def tiles(draw: st.DrawFn) -> Case:
    desc, buffer = draw(ours.tile_cases())
    return Case("drawn", desc, (buffer,), oracles.tile_oracle(desc, buffer))


def _plus(a: Any, b: Any) -> Any:
    return a + b


STRATEGIES: Mapping[str, st.SearchStrategy[Case]] = {
    "ELEMENT_WISE_IDENTITY": unary("ELEMENT_WISE_IDENTITY", NUMBERS, lambda x: x),
    "ELEMENT_WISE_ABS": unary(
        "ELEMENT_WISE_ABS",
        (*FLOATS, *SIGNED),
        lambda x: np.abs(x) if x.dtype.kind == "f" else map_elements(lambda v: limited(abs(v), x.dtype), x.dtype, x),
    ),
    "ELEMENT_WISE_EXP": unary(
        "ELEMENT_WISE_EXP", FLOATS, lambda x: np.exp(x.astype(np.float64)), fill=finite, ulp=2, absolute=1e-44
    ),
    "ELEMENT_WISE_CLIP": clips(),
    "ACTIVATION_RELU": unary(
        "ACTIVATION_RELU", (*FLOATS, *SIGNED[:3]), lambda x: np.maximum(x, 0), scaled=False, absolute=NO_SIGN_OF_ZERO
    ),
    "ACTIVATION_GELU": unary("ACTIVATION_GELU", FLOATS, gelu, scaled=False, ulp=4, absolute=5e-7),
    "ELEMENT_WISE_ADD": binary("ELEMENT_WISE_ADD", _plus),
    "ELEMENT_WISE_SUBTRACT": binary("ELEMENT_WISE_SUBTRACT", lambda a, b: a - b),
    "ELEMENT_WISE_MULTIPLY": binary("ELEMENT_WISE_MULTIPLY", lambda a, b: a * b),
    "ELEMENT_WISE_DIVIDE": binary("ELEMENT_WISE_DIVIDE", divided),
    "ELEMENT_WISE_MAX": binary("ELEMENT_WISE_MAX", larger, absolute=NO_SIGN_OF_ZERO),
    "ELEMENT_WISE_MIN": binary("ELEMENT_WISE_MIN", smaller, absolute=NO_SIGN_OF_ZERO),
    "ELEMENT_WISE_IF": choices(),
    "CAST": casts(),
    "TILE": tiles(),
    "PADDING1": paddings(),
    "SLICE1": slices(),
    "JOIN": joins(),
    "SPLIT": splits(),
    "GATHER": gathers(),
    "SCATTER_ELEMENTS": scatters(),
    "NONZERO_COORDINATES": nonzeros(),
    "REDUCE": reductions(),
    "TOP_K1": top_ks(),
    "FILL_VALUE_SEQUENCE": sequences(),
    "GEMM": gemms(),
    "CONVOLUTION": convolutions(),
}
"""A strategy for the calls of each operator; the Resample family has tests of its own (tests/operators)."""
