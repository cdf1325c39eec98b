"""The cut of an output: every byte once, in memory order, in pieces of bounded size, for any one-to-one layout."""

from __future__ import annotations

import math
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import oracles
from tests.support import strategies as ours

from tensorpost.descriptors import BufferTensorDesc
from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost_server.planning import cut
from tensorpost_server.planning.slices import SMALL_GAP

F32, U8 = data_type("F32"), data_type("U8")


@st.composite
def outputs(draw: st.DrawFn) -> Layout:
    return draw(ours.tensor_descs(output=True, max_elements=200)).layout


@given(layout=outputs(), slice_bytes=st.integers(1, 2000))
@settings(max_examples=200, deadline=None)
def test_slices_are_a_partition_of_the_bytes_and_of_the_elements_in_memory_order(layout: Layout, slice_bytes: int):
    slices = cut(layout, slice_bytes)
    pieces = list(slices)
    item = layout.data_type.item_size

    assert len(slices) == len(pieces)
    seen = np.zeros(layout.sizes, int)
    at = farthest = 0
    for piece in pieces:
        assert at == piece.begin, "a hole or an overlap"
        offsets = [
            oracles.element_offset([start + c for (start, _), c in zip(piece.box, inner, strict=True)], layout.strides)
            for inner in oracles.coordinates([stop - start for start, stop in piece.box])
        ]
        assert min(offsets) * item == piece.begin
        assert (max(offsets) + 1) * item <= piece.begin + piece.computed
        assert farthest <= min(offsets), "elements of a later slice lie before those of an earlier one"
        farthest = max(offsets)
        assert (max(offsets) + 1 - min(offsets)) * item <= max(slice_bytes, item), "larger than asked for"
        assert piece.computed <= max(slice_bytes, item) + SMALL_GAP
        seen[tuple(slice(start, stop) for start, stop in piece.box)] += 1
        at += piece.computed + piece.padding
    assert at == layout.size_in_bytes
    np.testing.assert_array_equal(seen, 1)


@pytest.mark.parametrize(
    ("sizes", "strides", "total", "slice_bytes", "expected"),
    [
        # (box, begin, computed, padding), worked by hand
        pytest.param((2, 3), (3, 1), 24, 12, [(((0, 1), (0, 3)), 0, 12, 0), (((1, 2), (0, 3)), 12, 12, 0)], id="rows"),
        pytest.param(
            (4,), (1,), 16, 8, [(((0, 2),), 0, 8, 0), (((2, 4),), 8, 8, 0)], id="half of one dimension each"
        ),
        # columns are the outer axis in memory: element (r, c) lies at c * 2 + r
        pytest.param(
            (2, 3), (1, 2), 24, 8,
            [(((0, 2), (0, 1)), 0, 8, 0), (((0, 2), (1, 2)), 8, 8, 0), (((0, 2), (2, 3)), 16, 8, 0)], id="transposed",
        ),
        # rows of 2 elements, 5 apart; 3 elements of padding are sent with the row before them
        pytest.param((2, 2), (5, 1), 28, 8, [(((0, 1), (0, 2)), 0, 20, 0), (((1, 2), (0, 2)), 20, 8, 0)], id="padded"),
        # an element larger than a slice is whole
        pytest.param((2,), (1,), 8, 1, [(((0, 1),), 0, 4, 0), (((1, 2),), 4, 4, 0)], id="one element"),
        # 2 elements 4 GiB apart: what lies between them is no part of any slice
        pytest.param(
            (2,), (2**30,), 2**32 + 4, 1 << 20,
            [(((0, 1),), 0, 4, 2**32 - 4), (((1, 2),), 2**32, 4, 0)], id="a gap of 4 GiB",
        ),
        # 64 KiB between two elements are sent as they are; more are not made
        pytest.param(
            (2,), (16385,), 65544, 4096, [(((0, 1),), 0, 65540, 0), (((1, 2),), 65540, 4, 0)], id="a gap of 64 KiB"
        ),
        pytest.param(
            (2,), (16386,), 65548, 4096, [(((0, 1),), 0, 4, 65540), (((1, 2),), 65544, 4, 0)], id="a larger gap"
        ),
        # the buffer goes on for 1 MiB after the only element
        pytest.param((1, 1), (9, 9), 1 << 20, 4096, [(((0, 1), (0, 1)), 0, 4, (1 << 20) - 4)], id="a tail"),
        pytest.param((), (), 4, 4096, [((), 0, 4, 0)], id="rank 0"),
        pytest.param((3, 0), (0, 1), 0, 4096, [], id="no elements"),
    ],
)  # fmt: skip
def test_by_hand(sizes, strides, total, slice_bytes, expected):
    slices = cut(Layout(F32, sizes, strides, total, packed=False), slice_bytes)

    assert expected == [(piece.box, piece.begin, piece.computed, piece.padding) for piece in slices]


@given(
    sizes=ours.sizes(max_elements=4000),
    slice_bytes=st.integers(4, 4000),
)
@settings(max_examples=100, deadline=None)
def test_packed_outputs_have_no_splinters(sizes: tuple[int, ...], slice_bytes: int):
    # A row a little longer than a slice must not make every second slice tiny: tiny slices cost as much as large ones.
    layout = Layout.row_major(F32, sizes)

    pieces = list(cut(layout, slice_bytes))

    if len(pieces) > 1:
        assert min(piece.computed for piece in pieces) * 3 >= min(slice_bytes, layout.size_in_bytes)


def test_a_row_one_element_longer_than_a_slice_is_cut_in_halves():
    layout = Layout.row_major(F32, (3, 1025))

    assert [piece.computed for piece in cut(layout, 4096)] == [2048, 2052] * 3


def test_a_piece_far_inside_a_huge_output_is_found_without_walking_to_it():
    layout = Layout.row_major(U8, (2**16, 2**15, 2))  # 4 GiB
    slices = cut(layout, 1 << 20)

    last = slices.piece(len(slices) - 1)

    assert len(slices) == 4096
    assert last.begin + last.computed == 2**32
    assert last.box == ((2**16 - 16, 2**16), (0, 2**15), (0, 2))


def test_the_cut_of_huge_gaps_takes_no_memory():
    # 3 x 2 elements, 2^30 and 2^31 elements apart; some 30 GiB of int64, almost all of it padding.
    tensor = BufferTensorDesc(data_type="INT64", sizes=(2, 1, 2), strides=(2**31, 7, 2**30))
    layout = tensor.layout

    tracemalloc.start()
    try:
        pieces = list(cut(layout, 1 << 20))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert [piece.computed for piece in pieces] == [8, 8, 8, 8]
    assert layout.size_in_bytes == sum(piece.computed + piece.padding for piece in pieces) == (2**31 + 2**30 + 1) * 8
    assert peak < 100_000


@given(layout=outputs(), slice_bytes=st.integers(1, 2000))
@settings(max_examples=50, deadline=None)
def test_slices_are_values(layout: Layout, slice_bytes: int):
    slices = cut(layout, slice_bytes)

    assert slices == pickle.loads(pickle.dumps(slices))
    assert hash(slices) == hash(cut(layout, slice_bytes))
    assert slices.has_gaps is not layout.packed


@given(layout=outputs(), slice_bytes=st.integers(1, 2000))
@settings(max_examples=100, deadline=None)
def test_the_number_of_slices_is_bounded(layout: Layout, slice_bytes: int):
    # Each slice boundary is paid for: there are never more slices than elements, nor many more than the bytes need.
    slices = cut(layout, slice_bytes)

    assert len(slices) <= math.prod(layout.sizes)
    if layout.packed:
        assert len(slices) <= 1 + 3 * layout.size_in_bytes // slice_bytes
