"""Tile on arrays: bit for bit, for any box, any layout, and nothing but what NumPy and CuPy both have."""

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

from tensorpost.datatypes import data_type
from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost.layout import Layout
from tensorpost_server.forms import Box
from tensorpost_server.operators import form_of
from tensorpost_server.operators.tile import FEW_COPIES, LONG_ROW, SMALL, SmallOutput, TileKernel

# All that the kernel may use of an array library: CuPy has it too.
PORTABLE = cast(
    "types.ModuleType",
    types.SimpleNamespace(lib=types.SimpleNamespace(stride_tricks=np.lib.stride_tricks)),
)
LIBRARIES = pytest.mark.parametrize("xp", [np, PORTABLE], ids=["numpy", "any library"])


def numbered(shape: Sequence[int], dtype: str = "int32") -> NDArray[Any]:
    return np.arange(math.prod(shape)).astype(dtype).reshape(shape)


def whole(sizes: Sequence[int]) -> Box:
    return tuple((0, size) for size in sizes)


def fill(x: NDArray[Any], box: Box, out: NDArray[Any], xp: types.ModuleType = np) -> None:
    """Into `out`; first by a kernel that knows the whole output, if it is one, and both must agree."""
    if box == whole(out.shape) and all(size % of == 0 for size, of in zip(out.shape, x.shape, strict=True)):
        output = Layout.row_major(data_type("U8"), out.shape)  # of small enough elements, so that the way is taken
        TileKernel.of(x.shape, output).fill(xp, [x], box, out)
        known = out.copy()
        out[...] = 0
        TileKernel(x.shape).fill(xp, [x], box, out)
        np.testing.assert_array_equal(known, out)
    else:
        TileKernel(x.shape).fill(xp, [x], box, out)


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
        np, [views_of(desc.input_tensor, buffer)], whole(desc.output_tensor.sizes), views_of(desc.output_tensor, output)
    )

    assert oracles.tile_oracle(desc, buffer) == bytes(output)


@LIBRARIES
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_boxes_make_the_whole(xp: types.ModuleType, data: st.DataObject):
    desc = data.draw(ours.tile_descs(max_elements=300))
    x = numbered(desc.input_tensor.sizes)
    sizes = desc.output_tensor.sizes
    found = np.full(sizes, -1, x.dtype)
    cuts = [sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=2))}) for size in sizes]

    for box in itertools.product(*(list(itertools.pairwise(points)) for points in cuts)):
        fill(x, box, found[tuple(slice(*ends) for ends in box)], xp)

    assert_tiled(x, whole(sizes), found)


@pytest.mark.parametrize("data_type", ours.TILE_DATA_TYPES)
def test_every_type_keeps_every_bit(data_type: str):
    # Every 16-bit pattern is there, in wider types as the upper half: all float16 values, and every kind of NaN.
    bits = ours.DATA_TYPE_BITS[data_type]
    patterns = np.arange(2**16, dtype=np.uint64) << np.uint64(max(0, bits - 16)) | np.uint64(bits > 16)
    x = patterns.astype(f"<u{bits // 8}").view(BufferTensorDesc.packed(data_type, (1,)).dtype).reshape(256, 256)
    out = np.empty((256, 512), x.dtype)

    fill(x, whole(out.shape), out)

    assert out.tobytes() == b"".join(row.tobytes() * 2 for row in x)


@LIBRARIES
@pytest.mark.parametrize("item", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("row_bytes", [8, LONG_ROW - 8, LONG_ROW, LONG_ROW + 8])
@pytest.mark.parametrize("copies", [1, 2, FEW_COPIES, FEW_COPIES + 1])
@pytest.mark.parametrize("rows", [1, 3])
def test_on_both_sides_of_every_threshold(xp: types.ModuleType, item: str, row_bytes: int, copies: int, rows: int):
    x = numbered((rows, row_bytes // np.dtype(item).itemsize), item)
    out = np.empty((rows * 2, x.shape[1] * copies), item)

    fill(x, whole(out.shape), out, xp)

    assert_tiled(x, whole(out.shape), out)


@LIBRARIES
@pytest.mark.parametrize("extra", [0, 1], ids=["small", "a little larger"])
def test_on_both_sides_of_a_small_output(xp: types.ModuleType, extra: int):
    x = numbered((4, 1024 + extra), "uint8")
    out = np.empty((16, 4 * x.shape[1]), "uint8")
    assert (out.nbytes <= SMALL) is (extra == 0)

    fill(x, whole(out.shape), out, xp)

    assert_tiled(x, whole(out.shape), out)


@pytest.mark.parametrize("axis", range(8))
def test_each_of_eight_dimensions(axis: int):
    x = numbered((2,) * 8)
    sizes = [2] * 8
    sizes[axis] = 6
    out = np.empty(sizes, x.dtype)

    fill(x, whole(sizes), out)

    assert_tiled(x, whole(sizes), out)


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

    fill(x, whole(out.shape), out, xp)

    assert_tiled(before, whole(out.shape), out)
    np.testing.assert_array_equal(before, x, "the input was written to")
    assert (block[:, 14:] == 65535).all(), "something between the elements was written"


def test_an_unaligned_buffer():
    buffer = bytearray(b"\0" + numbered((2, 3), "uint32").tobytes())
    x = np.frombuffer(buffer, "<u4", 6, 1).reshape(2, 3)
    assert not x.flags.aligned
    out = np.empty((4, 6), "uint32")

    fill(x, whole(out.shape), out)

    assert_tiled(numbered((2, 3), "uint32"), whole(out.shape), out)


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

    fill(x, whole(first.shape), first)
    fill(first, whole(second.shape), second)
    fill(x, whole(once.shape), once)

    np.testing.assert_array_equal(once, second)


@given(sizes=ours.sizes(max_dims=5, max_elements=60), repeats=st.lists(st.integers(1, 4), min_size=5, max_size=5))
@settings(max_examples=60, deadline=None)
def test_against_numpys_own(sizes: tuple[int, ...], repeats: list[int]):
    x = numbered(sizes)
    out = np.empty([size * repeat for size, repeat in zip(sizes, repeats, strict=False)], x.dtype)

    fill(x, whole(out.shape), out)

    np.testing.assert_array_equal(np.tile(x, repeats[: len(sizes)]), out)


def test_a_kernel_is_a_value():
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT16", (2, 3)), (2, 1))
    kernel = form_of(desc)

    again = TileKernel.of((2, 3), desc.output_tensor.layout)
    assert again == kernel == pickle.loads(pickle.dumps(kernel))
    assert hash(kernel) == hash(again)


@pytest.mark.parametrize(
    ("sizes", "output", "split", "apart"),
    [
        # the axes of copies and of elements, by hand: untiled axes join the one before
        ((1, 3, 8, 8), (1, 3, 16, 16), (3, 2, 8, 2, 8), (3, 1, 8, 1, 8)),
        ((2, 3), (4, 3), (2, 6), (1, 6)),
        ((2, 3), (2, 6), (2, 2, 3), (2, 1, 3)),
        ((2, 3, 4), (2, 3, 4), (24,), (24,)),
        ((1, 1), (5, 1), (5, 1), (1, 1)),
    ],
)
def test_a_small_output_as_one_assignment(sizes, output, split, apart):
    small = SmallOutput.of(sizes, output)

    assert (small.split, small.apart) == (split, apart)


def test_only_small_packed_outputs_are_assigned_at_once():
    assert TileKernel.of((SMALL,), Layout.row_major(data_type("U8"), (SMALL,))).small is not None
    assert TileKernel.of((SMALL + 1,), Layout.row_major(data_type("U8"), (SMALL + 1,))).small is None
    assert TileKernel.of((2,), Layout(data_type("U8"), (2,), (9,), 12, packed=False)).small is None


def test_a_small_output_that_is_not_contiguous_is_filled_where_it_lies():
    x, out = numbered((2, 3)), np.zeros((3, 4), np.int32).T
    kernel = TileKernel.of((2, 3), Layout.row_major(data_type("I32"), (4, 3)))

    kernel.fill(np, [x], whole((4, 3)), out)

    assert_tiled(x, whole((4, 3)), out)
