"""Boxes of held tensors, against NumPy's own slicing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpost.problems import InvalidParameter
from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost.values.tensor_box import BoxIndex, box_in_box, box_text, part_of_box, read_box

_LARGE = 10**18 - 1


@st.composite
def tensors_and_boxes(draw: st.DrawFn) -> tuple[Any, tuple[Any, ...]]:
    sizes = draw(st.lists(st.integers(0, 5), max_size=4))
    array = np.arange(int(np.prod(sizes)), dtype=np.int16).reshape(sizes)
    return array, draw(boxes(sizes))


@st.composite
def boxes(draw: st.DrawFn, sizes: Sequence[int]) -> tuple[Any, ...]:
    ends = st.none() | st.integers(-7, 7) | st.sampled_from([-_LARGE, _LARGE])
    items: list[Any] = []
    for size in sizes:
        steps = st.none() | st.integers(1, 4) | st.just(_LARGE)
        choices: list[st.SearchStrategy[Any]] = [st.builds(slice, ends, ends, steps)]
        if size:
            choices.append(st.integers(-size, size - 1))
        items.append(draw(st.one_of(choices)))
    count = draw(st.integers(0, len(items)))
    if draw(st.booleans()):
        return (..., *items[count:])
    return tuple(items[:count])


@given(tensors_and_boxes())
def test_a_box_is_what_numpy_slices(case: tuple[Any, tuple[Any, ...]]) -> None:
    array, items = case
    text = box_text(items)
    begin, layout = part_of_box(Layout.row_major(data_type(array.dtype), array.shape), read_box(text))
    expected = array[items]
    found = layout.view(memoryview(array.tobytes())[begin : begin + layout.size_in_bytes])
    assert layout.sizes == expected.shape
    assert np.array_equal(found, expected)
    assert not layout.packed or layout.size_in_bytes == expected.nbytes


@given(tensors_and_boxes(), st.data())
def test_a_box_of_a_box_is_one_box(case: tuple[Any, tuple[Any, ...]], data: st.DataObject) -> None:
    array, outer = case
    inner = data.draw(boxes(array[outer].shape))
    found = box_in_box(array.shape, outer, inner)
    assert np.array_equal(array[tuple(read_box(box_text(tuple(found))))], array[outer][inner])


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ((slice(0, 10), slice(None), slice(None, None, 2)), "0:10,:,::2"),
        (5, "5"),
        (slice(-3, None), "-3:"),
        ((Ellipsis, np.int64(1)), "...,1"),
    ],
)
def test_an_index_is_written_as_numpy_writes_it(index: BoxIndex, text: str) -> None:
    assert box_text(index) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "no index and no slice"),
        ("1::2:3", "no index and no slice"),
        ("0,0,0,0", "4 items, and the tensor has 3 axes"),
        ("...,...", "two '...'"),
        ("5", "index 5 for axis 0, which has 2 entries"),
        ("-3", "index -3 for axis 0"),
        (":,::0", "step 0 for axis 1; steps are 1 or more"),
        ("::-1", "step -1 for axis 0"),
        ("," * 64, "65 items"),
        ("9" * 30, "no index and no slice"),
    ],
)
def test_what_is_no_box_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        part_of_box(Layout.row_major(data_type("float32"), (2, 3, 4)), read_box(text))


@pytest.mark.parametrize("index", [True, 1.5, "a", (slice(0, 2.5),)])
def test_an_index_of_anything_but_whole_numbers_is_refused(index: Any) -> None:
    with pytest.raises(InvalidParameter, match="must be a whole number"):
        box_text(index)
