"""`Copies` on arrays: bit for bit, for any box, any layout, and nothing but what NumPy and CuPy both have."""

from __future__ import annotations

import itertools
import math
import pickle
import types
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support import oracles
from tests.support import strategies as ours
from tests.support.batches import each

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost_server.forms import Box, Copies, Copy, Loop, whole_box
from tensorpost_server.forms.copies import FEW_COPIES, LONG_ROW, SMALL
from tensorpost_server.forms.copy_loops import uncovered
from tensorpost_server.operators import form_of
from tensorpost_server.operators.tile import tile


def numbered(shape: Sequence[int], dtype: str = "int32") -> NDArray[Any]:
    return np.arange(math.prod(shape)).astype(dtype).reshape(shape)


class _At:
    """An address inside an array's memory, as CuPy's memory pointers are."""

    def __init__(self, array: NDArray[Any], at: int = 0) -> None:
        self.array, self.at = array, at

    def __add__(self, more: int) -> _At:
        return _At(self.array, self.at + more)


class _Device:
    """A NumPy array with the few members that the form uses of CuPy's."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array, self.dtype, self.strides, self.data = array, array.dtype, array.strides, _At(array)

    def __setitem__(self, part: Any, value: Any) -> None:
        self.array[part] = value


def _device_ndarray(shape: Any, dtype: Any, memptr: _At, strides: Any) -> NDArray[Any]:
    flat = np.lib.stride_tricks.as_strided(memptr.array, (1,) * memptr.array.ndim).reshape(-1)
    address, read_only = flat.__array_interface__["data"]
    interface = {"data": (address + memptr.at, read_only), "shape": shape, "strides": strides, "version": 3}
    return np.asarray(types.SimpleNamespace(__array_interface__={**interface, "typestr": dtype.str}))


# All that the form may use of an array library that is not NumPy.
PORTABLE = cast("types.ModuleType", types.SimpleNamespace(ndarray=_device_ndarray))
LIBRARIES = pytest.mark.parametrize("xp", [np, PORTABLE], ids=["numpy", "any library"])


def copied(
    form: Copies,
    inputs: Sequence[NDArray[Any]],
    box: Box,
    out: NDArray[Any],
    xp: types.ModuleType = np,
    output: int = 0,
) -> None:
    """Into `out`; twice, since the form keeps what it finds out about a box."""
    if xp is not np:
        form.fill(xp, [_Device(x) for x in inputs], box, _Device(out), output)
        return
    form.fill(xp, inputs, box, out, output)
    once = out.copy()
    out[...] = np.zeros((), out.dtype)
    form.fill(xp, inputs, box, out, output)
    np.testing.assert_array_equal(once, out)


def fill(x: NDArray[Any], box: Box, out: NDArray[Any], xp: types.ModuleType = np) -> None:
    """A box of as many tiles as reach it."""
    repeats = [max(1, -(-stop // size)) for size, (_, stop) in zip(x.shape, box, strict=True)]
    copied(tile(x.shape, repeats), [x], box, out, xp)


def assert_tiled(x: NDArray[Any], box: Box, out: NDArray[Any]) -> None:
    """Every element, by `Output[c] = Input[c mod Input.Sizes]`."""
    taken = x[np.ix_(*(np.arange(start, stop) % size for (start, stop), size in zip(box, x.shape, strict=True)))]
    np.testing.assert_array_equal(taken, out)


def views_of(tensor: BufferTensorDesc, buffer: bytes | bytearray) -> NDArray[Any]:
    """The tensor as an array, made without `Layout`: as unsigned integers, so that equality is of bits."""
    item = oracles.item_bytes(tensor.data_type)
    strides = oracles.packed(tensor.sizes) if tensor.strides is None else tensor.strides
    steps = [0 if size == 1 else stride * item for size, stride in zip(tensor.sizes, strides, strict=True)]
    return np.ndarray(tensor.sizes, f"<u{item}", buffer, 0, steps)


# ---- the rule --------------------------------------------------------------------------------------------------------


@given(case=ours.tile_cases())
@settings(max_examples=120, deadline=None)
def test_against_the_oracle_element_by_element(case: tuple[TileOperatorDesc, bytes]):
    desc, buffer = case
    output = bytearray(desc.output_tensor.total_tensor_size_in_bytes)

    form_of(desc).fill(
        np,
        [views_of(desc.input_tensor, buffer)],
        whole_box(desc.output_tensor.sizes),
        views_of(desc.output_tensor, output),
    )

    assert oracles.tile_oracle(desc, buffer) == bytes(output)


@LIBRARIES
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_boxes_make_the_whole_box(xp: types.ModuleType, data: st.DataObject):
    desc = data.draw(ours.tile_descs(max_elements=300))
    x = numbered(desc.input_tensor.sizes)
    sizes = desc.output_tensor.sizes
    found = np.full(sizes, -1, x.dtype)
    cuts = [sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=2))}) for size in sizes]

    for box in itertools.product(*(list(itertools.pairwise(points)) for points in cuts)):
        fill(x, box, found[tuple(slice(*ends) for ends in box)], xp)

    assert_tiled(x, whole_box(sizes), found)


@pytest.mark.parametrize("data_type", ours.TILE_DATA_TYPES)
def test_every_type_keeps_every_bit(data_type: str):
    # Every 16-bit pattern is there, in wider types as the upper half: all float16 values, and every kind of NaN.
    bits = ours.DATA_TYPE_BITS[data_type]
    patterns = np.arange(2**16, dtype=np.uint64) << np.uint64(max(0, bits - 16)) | np.uint64(bits > 16)
    x = patterns.astype(f"<u{bits // 8}").view(BufferTensorDesc.packed(data_type, (1,)).dtype).reshape(256, 256)
    out = np.empty((256, 512), x.dtype)

    fill(x, whole_box(out.shape), out)

    assert out.tobytes() == b"".join(row.tobytes() * 2 for row in x)


@LIBRARIES
@each("item", ["uint8", "uint16", "uint32", "uint64"])
@each("row_bytes", [8, LONG_ROW - 8, LONG_ROW, LONG_ROW + 8])
@each("copies", [1, 2, FEW_COPIES, FEW_COPIES + 1])
@each("rows", [1, 3])
def test_on_both_sides_of_every_threshold(xp: types.ModuleType, item: str, row_bytes: int, copies: int, rows: int):
    x = numbered((rows, row_bytes // np.dtype(item).itemsize), item)
    out = np.empty((rows * 2, x.shape[1] * copies), item)

    fill(x, whole_box(out.shape), out, xp)

    assert_tiled(x, whole_box(out.shape), out)


@LIBRARIES
@pytest.mark.parametrize("extra", [0, 1], ids=["small", "a little larger"])
def test_on_both_sides_of_a_small_output(xp: types.ModuleType, extra: int):
    x = numbered((4, 1024 + extra), "uint8")
    out = np.empty((16, 4 * x.shape[1]), "uint8")
    assert (out.nbytes <= SMALL) is (extra == 0)

    fill(x, whole_box(out.shape), out, xp)

    assert_tiled(x, whole_box(out.shape), out)


@pytest.mark.parametrize("axis", range(8))
def test_each_of_eight_dimensions(axis: int):
    x = numbered((2,) * 8)
    sizes = [2] * 8
    sizes[axis] = 6
    out = np.empty(sizes, x.dtype)

    fill(x, whole_box(sizes), out)

    assert_tiled(x, whole_box(sizes), out)


def test_every_box_of_a_small_output():
    x = numbered((2, 3))
    ends = [list(itertools.combinations(range(5), 2)), list(itertools.combinations(range(7), 2))]

    for box in itertools.product(*ends):
        out = np.full([stop - start for start, stop in box], -1, x.dtype)
        fill(x, box, out)
        assert_tiled(x, box, out)


# ---- layouts ---------------------------------------------------------------------------------------------------------


def layouts_of(x: NDArray[Any]) -> Iterator[Any]:
    yield pytest.param(x, id="packed")
    yield pytest.param(np.asfortranarray(x), id="columns first")
    yield pytest.param(np.repeat(x, 2, axis=0)[::2], id="rows apart")
    yield pytest.param(np.repeat(x, 2, axis=1)[:, ::2], id="elements apart")
    yield pytest.param(np.broadcast_to(x[:1], x.shape), id="one row, broadcast")
    yield pytest.param(np.broadcast_to(x[:, :1], x.shape), id="one column, broadcast")
    yield pytest.param(np.broadcast_to(x[:1, :1], x.shape), id="one element, broadcast")
    yield pytest.param(np.lib.stride_tricks.as_strided(x, x.shape, (x.itemsize, x.itemsize)), id="overlapping")
    read_only = x.copy()
    read_only.flags.writeable = False
    yield pytest.param(read_only, id="read-only")


@LIBRARIES
@pytest.mark.parametrize("x", list(layouts_of(numbered((5, 7), "uint16"))))
@pytest.mark.parametrize("target", ["packed", "columns first", "padded"])
def test_every_input_layout_into_every_output_layout(xp: types.ModuleType, x: NDArray[Any], target: str):
    before = x.copy()
    block = np.full((15, 20), 65535, x.dtype)
    if target == "packed":
        out = np.empty((15, 14), x.dtype)
    elif target == "columns first":
        out = np.empty((15, 14), x.dtype, order="F")
    else:
        out = block[:, :14]

    fill(x, whole_box(out.shape), out, xp)

    assert_tiled(before, whole_box(out.shape), out)
    np.testing.assert_array_equal(before, x, "the input was written to")
    assert (block[:, 14:] == 65535).all(), "something between the elements was written"


def test_an_unaligned_buffer():
    buffer = bytearray(b"\0" + numbered((2, 3), "uint32").tobytes())
    x = np.frombuffer(buffer, "<u4", 6, 1).reshape(2, 3)
    assert not x.flags.aligned
    out = np.empty((4, 6), "uint32")

    fill(x, whole_box(out.shape), out)

    assert_tiled(numbered((2, 3), "uint32"), whole_box(out.shape), out)


# ---- laws ------------------------------------------------------------------------------------------------------------


@given(
    sizes=ours.sizes(max_dims=4, max_elements=24),
    factors=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=4, max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_tiling_twice_is_tiling_once(sizes: tuple[int, ...], factors: list[tuple[int, int]]):
    x = numbered(sizes)
    first = np.empty([size * f[0] for size, f in zip(sizes, factors, strict=False)], x.dtype)
    second = np.empty([size * f[1] for size, f in zip(first.shape, factors, strict=False)], x.dtype)
    once = np.empty(second.shape, x.dtype)

    fill(x, whole_box(first.shape), first)
    fill(first, whole_box(second.shape), second)
    fill(x, whole_box(once.shape), once)

    np.testing.assert_array_equal(once, second)


@given(sizes=ours.sizes(max_dims=5, max_elements=60), repeats=st.lists(st.integers(1, 4), min_size=5, max_size=5))
@settings(max_examples=60, deadline=None)
def test_against_numpys_own(sizes: tuple[int, ...], repeats: list[int]):
    x = numbered(sizes)
    out = np.empty([size * repeat for size, repeat in zip(sizes, repeats, strict=False)], x.dtype)

    fill(x, whole_box(out.shape), out)

    np.testing.assert_array_equal(np.tile(x, repeats[: len(sizes)]), out)


def test_a_form_is_a_value():
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT16", (2, 3)), (2, 1))
    form = form_of(desc)

    again = tile((2, 3), (2, 1))
    again.fill(np, [np.zeros((2, 3))], whole_box((4, 3)), np.zeros((4, 3)))  # what it keeps is no part of the value
    assert again == form == pickle.loads(pickle.dumps(form))
    assert hash(form) == hash(again)


# ---- any copies ------------------------------------------------------------------------------------------------------


def by_loops(form: Copies, inputs: Sequence[NDArray[Any]], sizes: Sequence[int], output: int = 0) -> NDArray[Any]:
    """The whole output, element by element as the classes' docstrings say."""
    dtype = inputs[0].dtype
    out = np.full(sizes, form.fill_value or 0, dtype)
    for copy in form.outputs[output]:
        for counts in itertools.product(*[range(loop.extent) for loop in copy.loops]):
            source, target = list(copy.source_start), list(copy.target_start)
            for count, loop in zip(counts, copy.loops, strict=True):
                target[loop.target[0]] += count * loop.target[1]
                for axis, step in loop.source:
                    source[axis] += count * step
            out[tuple(target)] = inputs[copy.input][tuple(source)]
    return out


@st.composite
def forms(draw: st.DrawFn) -> tuple[Copies, list[NDArray[Any]], tuple[int, ...]]:
    """A form of one output, its inputs, and the output's sizes: boxes side by side along one axis, over a fill value.

    Axes of the source are in any order; steps are positive, negative and 0; loops are split in two here and there.
    """
    rank = draw(st.integers(1, 3))
    order = draw(st.permutations(range(rank)))
    side_by_side = draw(st.integers(0, rank - 1))
    copies: list[Copy] = []
    inputs: list[NDArray[Any]] = []
    begin = 0
    sizes = [1] * rank
    for number in range(draw(st.integers(1, 3))):
        box = [draw(st.integers(1, 5)) for _ in range(rank)]
        steps = [draw(st.sampled_from([1, 1, -1, 2, -3, 0])) for _ in range(rank)]
        source_sizes, source_start, target_start = [0] * rank, [0] * rank, [0] * rank
        loops: list[Loop] = []
        for axis, (extent, step) in enumerate(zip(box, steps, strict=True)):
            before, after, gap = draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.integers(0, 2))
            reach = (extent - 1) * abs(step)
            source_sizes[order[axis]] = before + reach + 1 + after
            source_start[order[axis]] = before + (reach if step < 0 else 0)
            target_start[axis] = gap + (begin if axis == side_by_side else 0)
            sizes[axis] = max(sizes[axis], target_start[axis] + extent + draw(st.integers(0, 1)))
            inner = extent // 2 if extent % 2 == 0 and draw(st.booleans()) else extent
            if inner < extent:
                loops.append(Loop(2, (axis, inner), ((order[axis], step * inner),)))
            if inner > 1:
                loops.append(Loop(inner, (axis, 1), ((order[axis], step),)))
        begin = target_start[side_by_side] + box[side_by_side]
        copies.append(Copy(number, tuple(source_start), tuple(target_start), tuple(loops)))
        inputs.append(numbered(source_sizes, "int16") + 1000 * (number + 1))
    return Copies((rank,) * len(inputs), (tuple(copies),), -7), inputs, tuple(sizes)


def boxes(data: st.DataObject, sizes: Sequence[int]) -> Box:
    ends = [sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))) for n in sizes]
    return tuple([(low, high) for low, high in ends])


@LIBRARIES
@given(case=forms(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_box_of_any_copies(xp: types.ModuleType, case: Any, data: st.DataObject):
    form, inputs, sizes = case
    box = boxes(data, sizes)
    out = np.full([stop - start for start, stop in box], 99, np.int16)

    copied(form, inputs, box, out, xp)

    expected = by_loops(form, inputs, sizes)
    np.testing.assert_array_equal(out, expected[tuple([slice(*span) for span in box])])


@given(case=forms(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_nothing_outside_reads_is_read(case: Any, data: st.DataObject):
    form, inputs, sizes = case
    box = boxes(data, sizes)
    out, again = (np.empty([stop - start for start, stop in box], np.int16) for _ in range(2))
    form.fill(np, inputs, box, out)
    poisoned = [np.full_like(x, 31_000) for x in inputs]
    for x, bad, read in zip(inputs, poisoned, form.reads(box), strict=True):
        part = tuple([slice(*span) for span in read])
        bad[part] = x[part]

    form.fill(np, poisoned, box, again)

    np.testing.assert_array_equal(out, again)


@given(case=forms(), data=st.data())
@settings(max_examples=100, deadline=None)
def test_what_no_move_writes_to_is_uncovered_once(case: Any, data: st.DataObject):
    form, _, sizes = case
    box = boxes(data, sizes)
    found = list(form.within(box))
    count = np.zeros([stop - start for start, stop in box], int)
    for part in uncovered(box, found):
        count[tuple([slice(*span) for span in part])] += 1

    written = by_loops(Copies(form.ranks, form.outputs, 0), [np.ones((20,) * len(sizes), int)] * len(form.ranks), sizes)
    inside = written[tuple([slice(*span) for span in box])]
    np.testing.assert_array_equal(count, 1 - inside)  # every copy of `forms` is dense, so nothing is filled twice


@given(sizes=ours.sizes(max_dims=4, max_elements=60), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_join_of_splits_is_the_tensor(sizes: tuple[int, ...], data: st.DataObject):
    axis = data.draw(st.integers(0, len(sizes) - 1))
    ends = sorted({0, sizes[axis], *data.draw(st.lists(st.integers(0, sizes[axis]), max_size=3))})
    shapes = [(*sizes[:axis], stop - start, *sizes[axis + 1 :]) for start, stop in itertools.pairwise(ends)]
    starts = [tuple([start if dim == axis else 0 for dim in range(len(sizes))]) for start in ends[:-1]]
    split = Copies(
        (len(sizes),), tuple([(Copy.of_box(s, source_start=at),) for s, at in zip(shapes, starts, strict=True)])
    )
    joined = [Copy.of_box(s, target_start=at, input=n) for n, (s, at) in enumerate(zip(shapes, starts, strict=True))]
    x, again = numbered(sizes), np.empty(sizes, np.int32)
    parts = [np.empty(shape, np.int32) for shape in shapes]

    for number, part in enumerate(parts):
        split.fill(np, [x], whole_box(part.shape), part, number)
    Copies((len(sizes),) * len(parts), (tuple(joined),)).fill(np, parts, whole_box(sizes), again)

    np.testing.assert_array_equal(x, again)
    for part, expected in zip(parts, np.split(x, ends[1:-1], axis), strict=True):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize(("value", "dtype"), [(2**63 - 1, "int64"), (-0.5, "float16"), (2**64 - 1, "uint64")])
def test_a_slice_of_a_padded_tensor_is_the_tensor(value: float, dtype: str):
    x = numbered((3, 4), dtype)
    pad = Copies((2,), ((Copy.of_box(x.shape, target_start=(1, 2)),),), value)
    cut = Copies((2,), ((Copy.of_box(x.shape, source_start=(1, 2)),),))
    padded, again = np.empty((5, 8), dtype), np.empty(x.shape, dtype)

    copied(pad, [x], whole_box(padded.shape), padded)
    copied(cut, [padded], whole_box(x.shape), again)

    np.testing.assert_array_equal(x, again)
    np.testing.assert_array_equal(padded, np.pad(x, ((1, 1), (2, 2)), constant_values=np.array(value, dtype)))


@LIBRARIES
@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))))
def test_transposes(xp: types.ModuleType, axes: tuple[int, ...]):
    x = numbered((2, 3, 5))
    out = np.empty([x.shape[axis] for axis in axes], x.dtype)
    loops = [Loop(x.shape[axis], (place, 1), ((axis, 1),)) for place, axis in enumerate(axes)]

    copied(Copies((3,), ((Copy(0, (0, 0, 0), (0, 0, 0), tuple(loops)),),)), [x], whole_box(out.shape), out, xp)

    np.testing.assert_array_equal(out, np.transpose(x, axes))


def test_a_diagonal_is_read_by_one_loop_along_two_axes():
    x, out = numbered((4, 4)), np.empty(4, np.int32)
    form = Copies((2,), ((Copy(0, (0, 3), (0,), (Loop(4, (0, 1), ((0, 1), (1, -1))),)),),))

    copied(form, [x], whole_box((4,)), out)

    np.testing.assert_array_equal(out, np.diagonal(x[:, ::-1]))
    assert form.reads(((1, 3),)) == (((1, 3), (1, 3)),)


def test_strings_are_copied():
    x = np.array([["a", "bc"], ["", "d"]], dtype=object)
    out = np.empty((4, 2), dtype=object)

    copied(tile((2, 2), (2, 1)), [x], whole_box((4, 2)), out)

    np.testing.assert_array_equal(out, np.tile(x, (2, 1)))


def test_what_is_kept_of_one_box_does_for_no_other():
    """The form keeps views of the last box; another type, layout or input must find its own."""
    form, box = tile((2, 3), (2, 1)), whole_box((4, 3))
    for x in (numbered((2, 3)), numbered((2, 3), "int64"), numbered((3, 2)).T, numbered((2, 6))[:, ::2]):
        for out in (np.zeros((4, 3), x.dtype), np.zeros((3, 4), x.dtype).T, np.zeros((4, 6), x.dtype)[:, :3]):
            form.fill(np, [x], box, out)
            assert_tiled(x, box, out)
            form.fill(np, [x + 1], box, out)
            assert_tiled(x + 1, box, out)
