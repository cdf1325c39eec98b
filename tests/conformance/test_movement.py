"""Movement, indexing and generators on every backend, by loops over coordinates, in any layout and slices of any size.

The oracles call nothing of the packages under test: NumPy's functions, ONNX's reference evaluator where the operator is
the same function there, Python's integers for random bits, and the pages' formulas otherwise.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.conformance.suite import check_bytes
from tests.support.onnx_reference import reference_outputs
from tests.support.operator_cases import (
    FLOATS,
    NO_SIGN_OF_ZERO,
    WITH_FLOAT64,
    any_numbers,
    bits_of,
    call,
    eighths,
    numpy_name,
    small_sizes,
    some_indices,
    tensor,
    wrapped,
)
from tests.support.vectors import Case

from tensorpost.descriptors import BufferTensorDesc
from tensorpost_server.backends import Backend
from tensorpost_server.operators import form_of

Array = NDArray[Any]
INDICES = ("INT32", "INT64", "UINT32", "UINT64")


def nearest(index: Any, length: int) -> int:
    """The entry that an index reads."""
    index = int(index)
    return min(max(index + length if index < 0 else index, 0), length - 1)


def placed(index: Any, length: int) -> int | None:
    """The entry that an index writes, if any."""
    index = int(index)
    index += length if index < 0 else 0
    return index if 0 <= index < length else None


# ---- copies ----------------------------------------------------------------------------------------------------------


@st.composite
def plain_slices(draw: st.DrawFn) -> Case:
    data_type, sizes = draw(st.sampled_from(WITH_FLOAT64)), small_sizes(draw, high=8)
    offsets = [draw(st.integers(0, size - 1)) for size in sizes]
    steps = [draw(st.integers(1, 3)) for _ in sizes]
    reached = [len(range(at, size, step)) for at, size, step in zip(offsets, sizes, steps, strict=True)]
    counts = [draw(st.integers(1, count)) for count in reached]
    fields = {
        "input_tensor": tensor(draw, data_type, sizes), "output_tensor": tensor(draw, data_type, counts, output=True),
        "offsets": offsets, "sizes": counts, "strides": steps,
    }  # fmt: skip

    def oracle(x: Array) -> Array:
        return x[np.ix_(*[at + step * np.arange(n) for at, step, n in zip(offsets, steps, counts, strict=True)])]

    return call(draw, "SLICE", fields, {"*": bits_of}, oracle)


@st.composite
def slice_gradients(draw: st.DrawFn) -> Case:
    data_type, sizes = draw(st.sampled_from(WITH_FLOAT64)), small_sizes(draw, high=8)
    offsets = [draw(st.integers(0, size - 1)) for size in sizes]
    windows = [draw(st.integers(1, size - at)) for size, at in zip(sizes, offsets, strict=True)]
    steps = [draw(st.integers(-3, 3).filter(bool)) for _ in sizes]
    reached = [len(range(0, size, abs(step))) for size, step in zip(windows, steps, strict=True)]
    counts = [draw(st.integers(1, count)) for count in reached]
    fields = {
        "input_gradient_tensor": tensor(draw, data_type, counts),
        "output_gradient_tensor": tensor(draw, data_type, sizes, output=True),
        "input_window_offsets": offsets, "input_window_sizes": windows, "input_window_strides": steps,
    }  # fmt: skip

    def oracle(x: Array) -> Array:
        made = np.zeros(sizes, x.dtype)
        window = made[tuple([slice(at, at + size) for at, size in zip(offsets, windows, strict=True)])]
        window[tuple([slice(None, None, step) for step in steps])][tuple([slice(n) for n in counts])] = x
        return made

    return call(draw, "SLICE_GRAD", fields, {"*": bits_of}, oracle)


@st.composite
def paddings(draw: st.DrawFn) -> Case:
    data_type, sizes = draw(st.sampled_from(WITH_FLOAT64)), small_sizes(draw, most=24)
    modes = {"EDGE": "edge", "REFLECTION": "reflect", "SYMMETRIC": "symmetric", "WRAP": "wrap", "CONSTANT": "constant"}
    mode, value = draw(st.sampled_from(list(modes))), draw(st.sampled_from([0.0, -10.625, 7.5, 1e30, -1e30, 65504.0]))
    start, end = ([draw(st.integers(0, 3)) for _ in sizes] for _ in range(2))
    fields = {
        "input_tensor": tensor(draw, data_type, sizes),
        "output_tensor": tensor(draw, data_type, [sum(t) for t in zip(sizes, start, end, strict=True)], output=True),
        "padding_mode": mode, "padding_value": value, "start_padding": start, "end_padding": end,
    }  # fmt: skip

    def oracle(x: Array) -> Array:
        bits = np.dtype(f"u{x.itemsize}")
        constant = {"constant_values": flat_value(value, x.dtype).view(bits)} if mode == "CONSTANT" else {}
        arguments: Any = {"mode": modes[mode], **constant}
        return np.pad(x.view(bits), list(zip(start, end, strict=True)), **arguments).view(x.dtype)

    return call(draw, "PADDING", fields, {"*": bits_of}, oracle)


def flat_value(value: float, dtype: np.dtype[Any]) -> Array:
    """A FLOAT in another type: integers wrap, and what no integer of 64 bits is becomes what x86-64 makes of it."""
    if dtype.kind == "f":
        return np.array(np.float32(value)).astype(dtype)
    if abs(value) < 2**31:
        return wrapped(int(value), dtype)
    lowest = {"int32": -(2**31), "int64": -(2**63), "uint64": 2**63}
    return np.array(lowest.get(dtype.name, 0), dtype)


@st.composite
def depths(draw: st.DrawFn) -> Case:
    """Both directions, by ONNX's DepthToSpace: forwards, or as the inverse that it is of."""
    name = draw(st.sampled_from(("SPACE_TO_DEPTH", "DEPTH_TO_SPACE"))) + draw(st.sampled_from(("", "1")))
    data_type, block = draw(st.sampled_from(WITH_FLOAT64)), draw(st.integers(1, 3))
    order = draw(st.sampled_from(("DEPTH_COLUMN_ROW", "COLUMN_ROW_DEPTH"))) if name.endswith("1") else None
    batch, channels, height, width = (draw(st.integers(1, 2)) for _ in range(4))
    deep, wide = [batch, channels * block**2, height, width], [batch, channels, height * block, width * block]
    source, target = (wide, deep) if name.startswith("SPACE") else (deep, wide)
    fields: dict[str, Any] = {
        "input_tensor": tensor(draw, data_type, source), "output_tensor": tensor(draw, data_type, target, output=True),
        "block_size": block, **({"order": order} if order else {}),
    }  # fmt: skip

    def oracle(x: Array) -> Array:
        places = np.arange(math.prod(deep)).reshape(deep)
        attributes = {"blocksize": block, "mode": "CRD" if order == "COLUMN_ROW_DEPTH" else "DCR"}
        (moved,) = reference_outputs("DepthToSpace", 13, [places], attributes)
        if source is deep:
            return x.reshape(-1)[moved]
        return x.reshape(-1)[np.argsort(moved, axis=None)].reshape(deep)

    return call(draw, name, fields, {"*": bits_of}, oracle)


# ---- indexing --------------------------------------------------------------------------------------------------------


@st.composite
def gathered_elements(draw: st.DrawFn) -> Case:
    data_type, index_type = draw(st.sampled_from(WITH_FLOAT64)), draw(st.sampled_from(INDICES))
    sizes = small_sizes(draw, most=24)
    axis = draw(st.integers(0, len(sizes) - 1))
    shape = [*sizes[:axis], draw(st.integers(1, 5)), *sizes[axis + 1 :]]
    fields = {
        "input_tensor": tensor(draw, data_type, sizes), "indices_tensor": tensor(draw, index_type, shape),
        "output_tensor": tensor(draw, data_type, shape, output=True), "axis": axis,
    }  # fmt: skip

    def oracle(x: Array, indices: Array) -> Array:
        made = np.empty(shape, x.dtype)
        for at in np.ndindex(*shape):
            made[at] = x[(*at[:axis], nearest(indices[at], sizes[axis]), *at[axis + 1 :])]
        return made

    fills = {"input": any_numbers, "indices": some_indices(sizes[axis], unsigned=index_type.startswith("U"))}
    return call(draw, "GATHER_ELEMENTS", fields, fills, oracle, any_nan=True)


def coordinates(draw: st.DrawFn, batch: Sequence[int]) -> tuple[list[int], list[int], list[int], int]:
    """Sizes of an input and of indices after the batch, those of all parts, and a rank that all fit into."""
    source = [*batch, *draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))]
    length = draw(st.integers(1, len(source) - len(batch)))
    indices = [*batch, *draw(st.lists(st.integers(1, 3), max_size=2)), length]
    parts = [*indices[:-1], *source[len(batch) + length :]]
    return source, indices, parts, max(len(source), len(indices), len(parts)) + draw(st.integers(0, 1))


def led(sizes: Sequence[int], rank: int) -> list[int]:
    return [1] * (rank - len(sizes)) + list(sizes)


@st.composite
def gathered_parts(draw: st.DrawFn) -> Case:
    data_type, index_type = draw(st.sampled_from(WITH_FLOAT64)), draw(st.sampled_from(INDICES))
    batch = draw(st.sampled_from(([], [], [2], [1, 3])))
    source, shape, parts, rank = coordinates(draw, batch)
    name = "GATHER_ND1" if batch or draw(st.booleans()) else "GATHER_ND"
    fields = {
        "input_tensor": tensor(draw, data_type, led(source, rank)),
        "indices_tensor": tensor(draw, index_type, led(shape, rank)),
        "output_tensor": tensor(draw, data_type, led(parts, rank), output=True),
        "input_dimension_count": len(source), "indices_dimension_count": len(shape),
        **({"batch_dimension_count": len(batch)} if name.endswith("1") else {}),
    }  # fmt: skip

    def oracle(x: Array, indices: Array) -> Array:
        inside = np.empty(shape, np.int64)
        for at, index in np.ndenumerate(indices.reshape(shape)):
            inside[at] = nearest(index, source[len(batch) + at[-1]])
        places = np.arange(math.prod(source)).reshape(source)
        (taken,) = reference_outputs("GatherND", 13, [places, inside], {"batch_dims": len(batch)})
        return x.reshape(-1)[taken]

    unsigned = index_type.startswith("U")
    return call(draw, name, fields, {"indices": some_indices(2, unsigned=unsigned), "*": bits_of}, oracle)


@st.composite
def scattered_parts(draw: st.DrawFn) -> Case:
    data_type, index_type = draw(st.sampled_from(WITH_FLOAT64)), draw(st.sampled_from(INDICES))
    source, shape, parts, rank = coordinates(draw, [])
    length = shape[-1]
    fields = {
        "input_tensor": tensor(draw, data_type, led(source, rank)),
        # Two updates of one part may come in any order, so all indices differ: packed.
        "indices_tensor": BufferTensorDesc.packed(index_type, led(shape, rank)),
        "updates_tensor": tensor(draw, data_type, led(parts, rank)),
        "output_tensor": tensor(draw, data_type, led(source, rank), output=True),
        "input_dimension_count": len(source), "indices_dimension_count": len(shape),
    }  # fmt: skip

    def fill(draw: st.DrawFn, total: int, dtype: np.dtype[Any]) -> Array:
        random = np.random.default_rng(draw(st.integers(0, 2**32)))
        every = list(np.ndindex(*source[:length]))
        rows = np.full((math.prod(shape[:-1]), length), 3, object)  # outside
        for row, which in enumerate(random.permutation(len(every))[: len(rows)]):
            rows[row] = every[which]
            if dtype.kind == "i" and random.random() < 0.5:
                rows[row] -= source[:length]
        return rows.astype(dtype).reshape(-1)[:total]

    def oracle(x: Array, indices: Array, updates: Array) -> Array:
        made, updates = x.copy(), updates.reshape(parts)
        target = made.reshape(source)
        for at in np.ndindex(*shape[:-1]):
            where = [placed(index, size) for index, size in zip(indices.reshape(shape)[at], source, strict=False)]
            if None not in where:
                target[tuple(where)] = updates[at]
        return made

    return call(draw, "SCATTER_ND", fields, {"indices": fill, "*": any_numbers}, oracle, any_nan=True)


@st.composite
def one_hots(draw: st.DrawFn) -> Case:
    data_type, index_type = draw(st.sampled_from(WITH_FLOAT64)), draw(st.sampled_from(INDICES))
    sizes = small_sizes(draw, most=24)
    axis, count = draw(st.integers(0, len(sizes) - 1)), draw(st.integers(0, len(sizes) - 1))
    one = [1 if at == axis else size for at, size in enumerate(sizes)]
    values = [draw(st.integers(1, 2)) if at != count else draw(st.integers(2, 3)) for at in range(len(sizes))]
    fields = {
        "indices_tensor": tensor(draw, index_type, one), "values_tensor": tensor(draw, data_type, values),
        "output_tensor": tensor(draw, data_type, sizes, output=True), "axis": axis,
    }  # fmt: skip

    def oracle(indices: Array, values: Array) -> Array:
        made = np.empty(sizes, values.dtype)
        for at in np.ndindex(*sizes):
            index = indices[tuple([0 if other == axis else i for other, i in enumerate(at)])]
            made[at] = values.reshape(-1)[int(placed(index, sizes[axis]) == at[axis])]
        return made

    fills = {"indices": some_indices(sizes[axis], unsigned=index_type.startswith("U")), "*": any_numbers}
    return call(draw, "ONE_HOT", fields, fills, oracle, any_nan=True)


@st.composite
def reversals(draw: st.DrawFn) -> Case:
    data_type, length_type = draw(st.sampled_from(WITH_FLOAT64)), draw(st.sampled_from(("UINT32", "UINT64")))
    sizes = small_sizes(draw, most=24)
    axis = draw(st.integers(0, len(sizes) - 1))
    fields = {
        "input_tensor": tensor(draw, data_type, sizes),
        "sequence_lengths_tensor": tensor(draw, length_type, [1 if at == axis else n for at, n in enumerate(sizes)]),
        "output_tensor": tensor(draw, data_type, sizes, output=True), "axis": axis,
    }  # fmt: skip

    def oracle(x: Array, lengths: Array) -> Array:
        made = x.copy()
        for line in np.ndindex(*lengths.shape):
            count = int(lengths[line]) % 2**32
            for k in range(min(count, sizes[axis])):
                read = min(count - 1 - k, sizes[axis] - 1)
                source, target = ((*line[:axis], at, *line[axis + 1 :]) for at in (read, k))
                made[target] = x[source]
        return made

    fills = {"sequence_lengths": some_indices(sizes[axis], unsigned=True), "*": any_numbers}
    return call(draw, "REVERSE_SUBSEQUENCES", fields, fills, oracle, any_nan=True)


# ---- windows ---------------------------------------------------------------------------------------------------------


@st.composite
def windows(draw: st.DrawFn) -> Case:
    """Columns by loops over windows; images by ONNX's Col2Im."""
    name, data_type, spatial = draw(st.sampled_from(("UNFOLD", "FOLD"))), draw(st.sampled_from(FLOATS)), 1
    spatial += draw(st.integers(0, 2))
    few = st.integers(1, 3 if spatial < 3 else 2)
    batch, channels = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    image, taps, strides, dilations = ([draw(few) for _ in range(spatial)] for _ in range(4))
    start, end = ([draw(st.integers(0, 2)) for _ in range(spatial)] for _ in range(2))
    extents = [(k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True)]
    image = [n + max(0, e - n - a - b) for n, e, a, b in zip(image, extents, start, end, strict=True)]
    counts = [(n + a + b - e) // s + 1 for n, e, s, a, b in zip(image, extents, strides, start, end, strict=True)]
    whole, columns = [batch, channels, *image], [batch, channels * math.prod(taps), math.prod(counts)]
    source, target = (whole, columns) if name == "UNFOLD" else (columns, whole)
    fields = {
        "input_tensor": tensor(draw, data_type, source), "output_tensor": tensor(draw, data_type, target, output=True),
        "window_sizes": taps, "strides": strides, "dilations": dilations, "start_padding": start, "end_padding": end,
    }  # fmt: skip

    def unfolded(x: Array) -> Array:
        made = np.zeros((batch, channels, *taps, *counts), x.dtype)
        for tap in np.ndindex(*taps):
            for block in np.ndindex(*counts):
                place = [b * s + k * d - a for b, s, k, d, a in zip(block, strides, tap, dilations, start, strict=True)]
                if all(0 <= p < size for p, size in zip(place, image, strict=True)):
                    made[(slice(None), slice(None), *tap, *block)] = x[(slice(None), slice(None), *place)]
        return made

    def folded(x: Array) -> Array:
        arrays = [x.astype(np.float32), np.array(image), np.array(taps)]
        attributes = {"dilations": dilations, "strides": strides, "pads": [*start, *end]}
        return reference_outputs("Col2Im", 18, arrays, attributes)[0].astype(x.dtype)

    if name == "UNFOLD":
        return call(draw, name, fields, {"*": bits_of}, unfolded)
    return call(draw, name, fields, {"*": eighths}, folded, absolute=NO_SIGN_OF_ZERO)


# ---- generators ------------------------------------------------------------------------------------------------------


@st.composite
def diagonals(draw: st.DrawFn) -> Case:
    data_type, sizes = draw(st.sampled_from(WITH_FLOAT64)), small_sizes(draw, low=2, high=4)
    output = {"output_tensor": tensor(draw, data_type, sizes, output=True)}
    edges = st.one_of(st.integers(-4, 4), st.sampled_from((-(2**31), 2**31 - 1)))
    dtype = numpy_name(data_type)
    if draw(st.booleans()):
        offset, value = draw(edges), draw(st.sampled_from([1.0, -3.75, 1e30]))
        matrix = np.eye(sizes[-2], sizes[-1], min(max(offset, -99), 99), bool)
        made = np.where(matrix, flat_value(value, dtype), np.zeros((), dtype))
        fields = {**output, "offset": offset, "value": value}
        return call(draw, "DIAGONAL_MATRIX", fields, {}, lambda: np.broadcast_to(made, sizes))
    begin, end = draw(edges), draw(edges)
    fields = {**output, "value_data_type": data_type, "value": 7, "diagonal_fill_begin": begin,
              "diagonal_fill_end": end}  # fmt: skip
    if draw(st.booleans()):
        fields = {"input_tensor": tensor(draw, data_type, sizes), **fields}

    def oracle(x: Array | None = None) -> Array:
        made = np.zeros(sizes, dtype) if x is None else x.copy()
        for place in np.ndindex(*sizes):
            t = place[-1] - place[-2]
            if (end >= begin) ^ (t >= begin) ^ (t < end):
                made[place] = 7
        return made

    return call(draw, "DIAGONAL_MATRIX1", fields, {"*": any_numbers}, oracle, any_nan=True)


@st.composite
def constants(draw: st.DrawFn) -> Case:
    data_type, sizes = draw(st.sampled_from(WITH_FLOAT64)), small_sizes(draw, high=8)
    dtype = numpy_name(data_type)
    ends = (0, 1) if dtype.kind == "f" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    value = draw(st.one_of(st.integers(*ends), st.sampled_from(ends)))
    fields = {"output_tensor": tensor(draw, data_type, sizes, output=True), "value_data_type": data_type,
              "value": value}  # fmt: skip
    return call(draw, "FILL_VALUE_CONSTANT", fields, {}, lambda: np.full(sizes, value, dtype))


def philox(counter: int, key: int) -> list[int]:
    """A block of Philox 4x32-10, as the paper has its rounds, in Python's integers."""
    words, keys = [counter >> 32 * i & 0xFFFFFFFF for i in range(4)], [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        first, second = divmod(words[0] * 0xD2511F53, 2**32), divmod(words[2] * 0xCD9E8D57, 2**32)
        words = [second[0] ^ words[1] ^ keys[0], second[1], first[0] ^ words[3] ^ keys[1], first[1]]
        keys = [(keys[0] + 0x9E3779B9) % 2**32, (keys[1] + 0xBB67AE85) % 2**32]
    return words


@st.composite
def random_bits(draw: st.DrawFn) -> Case:
    sizes, ranks = small_sizes(draw, high=8), [1] * draw(st.integers(0, 3))
    fields = {"input_state_tensor": tensor(draw, "UINT32", [*ranks, 6]),
              "output_tensor": tensor(draw, "UINT32", sizes, output=True)}  # fmt: skip
    with_state = draw(st.booleans())
    if with_state:
        fields["output_state_tensor"] = tensor(draw, "UINT32", [*ranks, 6], output=True)

    def oracle(state: Array) -> Any:
        words = [int(word) for word in state.reshape(-1)]
        counter, key = sum(word << 32 * i for i, word in enumerate(words[:4])), words[4] | words[5] << 32
        blocks = -(-math.prod(sizes) // 4)
        made = [word for block in range(blocks) for word in philox((counter + block) % 2**128, key)]
        after = (counter + blocks) % 2**128
        last = [after >> 32 * i & 0xFFFFFFFF for i in range(4)] + words[4:]
        first = np.array(made[: math.prod(sizes)], np.uint32)
        return (first, np.array(last, np.uint32)) if with_state else first

    return call(draw, "RANDOM_GENERATOR", fields, {"*": any_numbers}, oracle)


@st.composite
def value_scales(draw: st.DrawFn) -> Case:
    data_type, channels = draw(st.sampled_from(FLOATS)), draw(st.sampled_from((1, 3)))
    sizes = [draw(st.integers(1, 3)), channels, draw(st.integers(1, 4)), draw(st.integers(1, 4))]
    scale = draw(st.sampled_from([0.5, -3.0, 1e30]))
    bias = [draw(st.sampled_from([0.0, 0.1, -7.0])) for _ in range(channels)]
    fields = {
        "input_tensor": tensor(draw, data_type, sizes), "output_tensor": tensor(draw, data_type, sizes, output=True),
        "scale": scale, "bias": bias,
    }  # fmt: skip

    def oracle(x: Array) -> Array:
        scaled = x.astype(np.float32) * np.float32(scale)
        return (scaled + np.array(bias, np.float32)[:, None, None]).astype(x.dtype)

    return call(draw, "VALUE_SCALE_2D", fields, {}, oracle, any_nan=True)


DRAWN: Mapping[str, Callable[[], st.SearchStrategy[Case]]] = {
    "SLICE": plain_slices, "SLICE_GRAD": slice_gradients, "PADDING": paddings, "blocks": depths,
    "GATHER_ELEMENTS": gathered_elements, "GATHER_ND": gathered_parts, "SCATTER_ND": scattered_parts,
    "ONE_HOT": one_hots, "REVERSE_SUBSEQUENCES": reversals, "FOLD": windows, "diagonals": diagonals,
    "FILL_VALUE_CONSTANT": constants, "RANDOM_GENERATOR": random_bits, "VALUE_SCALE_2D": value_scales,
}  # fmt: skip


@pytest.mark.parametrize("what", DRAWN)
@given(data=st.data(), slice_bytes=st.one_of(st.just(1 << 20), st.integers(1, 300)))
@settings(max_examples=15, deadline=None)
def test_any_call(backends: list[Backend], what: str, data: st.DataObject, slice_bytes: int):
    case = data.draw(DRAWN[what]())
    form = form_of(case.desc)

    for backend in backends:
        check_bytes(backend, case, slice_bytes)

    assert pickle.loads(pickle.dumps(form)) == form
    for index, slot in enumerate(case.desc.outputs):
        box = tuple([(0, size) for size in slot.layout.sizes])
        assert form.work(box, index) >= math.prod(slot.layout.sizes)
        for source, read in zip(case.desc.inputs, form.reads(box, index), strict=True):
            for (low, high), size in zip(read or (), source.layout.sizes, strict=read is not None):
                assert 0 <= low <= high <= size
