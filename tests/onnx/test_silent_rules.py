"""What ONNX's text leaves open, or ONNX Runtime answers otherwise: what tensorpost answers, worked by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.support.live_server import default_server

from tensorpost import Client
from tensorpost.values.problems import InvalidDescriptor

X = np.array([1, 2, 3], np.float32)
SEQUENCES = np.arange(6, dtype=np.float32).reshape(3, 2)
MOST = np.iinfo(np.int64).max


@pytest.fixture(scope="module")
def tp() -> Iterator[Client]:
    with default_server() as url, Client(url) as client:
        yield client


@pytest.mark.parametrize(
    ("mode", "pads", "wanted"),
    [
        ("reflect", [4, 5], [1, 2, 3, 2, 1, 2, 3, 2, 1, 2, 3, 2]),  # mirrored again at each end
        ("reflect", [-1, 2], [2, 3, 2, 1]),  # the data as given are mirrored, not what is left of them
        ("edge", [-1, 2], [2, 3, 3, 3]), ("edge", [-3, 2], [3, 3]), ("edge", [-4, 2], [3]),
        ("wrap", [-1, 2], [2, 3, 1, 2]), ("wrap", [5, 0], [2, 3, 1, 2, 3, 1, 2, 3]), ("wrap", [-3, 3], [1, 2, 3]),
    ],
)  # fmt: skip
def test_pad_beyond_the_extent(tp: Client, mode: str, pads: list[int], wanted: list[float]) -> None:
    assert tp.onnx("Pad", X, pads, opset=19, mode=mode).tolist() == wanted


def test_pad_of_no_elements(tp: Client) -> None:
    nothing = np.zeros((0, 2), np.float32)
    assert tp.onnx("Pad", nothing, [0, 1, 0, 1], opset=19, mode="edge").shape == (0, 4)
    assert tp.onnx("Pad", nothing, [1, 0, 0, 0], opset=19).tolist() == [[0, 0]]
    for mode in ("edge", "reflect", "wrap"):
        with pytest.raises(InvalidDescriptor, match="padding"):
            tp.onnx("Pad", nothing, [1, 0, 0, 0], opset=19, mode=mode)


def test_split_into_more_parts_than_elements(tp: Client) -> None:
    parts = tp.onnx("Split", X, opset=18, num_outputs=5, outputs=5)
    assert [part.tolist() for part in parts] == [[1], [2], [3], [], []]
    parts = tp.onnx("Split", np.arange(5), opset=18, num_outputs=4, outputs=4)
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3], [4], []]


def test_one_hot_of_a_scalar(tp: Client) -> None:
    assert tp.onnx("OneHot", np.array(2), [4], np.array([0, 1], np.float32)).tolist() == [0, 0, 1, 0]
    assert tp.onnx("OneHot", np.array(-5), [4], np.array([0, 1], np.float32)).tolist() == [0, 0, 0, 0]


def test_a_scalar_of_axes_is_one_axis(tp: Client) -> None:
    assert tp.onnx("ReduceSum", SEQUENCES, np.array(0)).tolist() == [[6, 9]]
    assert tp.onnx("ReduceMax", SEQUENCES, np.array(1), opset=18).tolist() == [[1], [3], [5]]


@pytest.mark.parametrize(("lengths", "place"), [([4, 2], 0), ([3, -1], 1)])
def test_lengths_of_sequences_are_checked(tp: Client, lengths: list[int], place: int) -> None:
    says = rf"sequence_lens\[{place}\] is {lengths[place]}, but axis 0 of data has 3 elements; valid: 0 to 3"
    with pytest.raises(InvalidDescriptor, match=says):
        tp.onnx("ReverseSequence", SEQUENCES, np.array(lengths))


def test_lengths_from_none_to_all(tp: Client) -> None:
    assert tp.onnx("ReverseSequence", SEQUENCES, np.array([0, 3])).tolist() == [[0, 5], [2, 3], [4, 1]]


def test_top_of_no_elements(tp: Client) -> None:
    for opset in (10, 11):
        values, places = tp.onnx("TopK", X, [0], opset=opset)
        assert (values.shape, places.shape) == ((0,), (0,))
    with pytest.raises(InvalidDescriptor, match="TopK-1 takes one element or more"):
        tp.onnx("TopK", X, opset=9, k=0)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_integers_divided_by_0(tp: Client, dtype: Any) -> None:
    a, zeros = np.array([7, -7, 0], dtype), np.zeros(3, dtype)
    assert tp.onnx("Div", a, zeros).tolist() == [-1, 1, -1]  # as DirectML
    assert tp.onnx("Mod", a, zeros).tolist() == [0, 0, 0]
    assert tp.onnx("Div", np.array([7, 0], np.uint8), np.zeros(2, np.uint8)).tolist() == [255, 255]
    least = np.array([np.iinfo(dtype).min], dtype)
    assert tp.onnx("Div", least, np.array([-1], dtype)).tolist() == least.tolist()  # wraps


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_means_that_fit_though_the_sum_does_not(tp: Client, dtype: Any) -> None:
    most, least = int(np.iinfo(dtype).max), int(np.iinfo(dtype).min)
    chance = np.random.default_rng(0)
    chosen = [[most] * 5, [least] * 5, [most, most - 2, 7, 0, 1], [least, least + 1, 3, 0, least]]
    lines = np.concatenate([np.array(chosen, dtype), chance.integers(least, most, (20, 5), dtype)])
    found = tp.onnx("ReduceMean", lines, [1], opset=18, keepdims=0)
    assert found.dtype == lines.dtype
    exact = [sum(map(int, line)) for line in lines]
    assert found.tolist() == [abs(total) // 5 * (1 if total > 0 else -1) for total in exact]


@pytest.mark.parametrize(
    ("elements", "dtype", "norm"),
    [([50_000, 50_000], np.int32, 70_710), ([3 * 10**9, 4 * 10**9], np.int64, 5 * 10**9), ([3, -4], np.int64, 5),
     ([1 << 31, 0], np.uint32, 1 << 31)],
)  # fmt: skip
def test_norms_that_fit_though_the_squares_do_not(tp: Client, elements: list[int], dtype: Any, norm: int) -> None:
    found = tp.onnx("ReduceL2", np.array(elements, dtype), opset=18, keepdims=0)
    assert (int(found), found.dtype) == (norm, np.dtype(dtype))


def test_sums_wrap(tp: Client) -> None:
    assert tp.onnx("ReduceSum", np.array([(1 << 31) - 1, 1], np.int32)).tolist() == [-(1 << 31)]


@pytest.mark.parametrize("opset", [10, 11, 13])
def test_slices_of_a_reversed_axis(tp: Client, opset: int) -> None:
    x = np.array([1, 2, 3, 4], np.float32)

    def cut(start: int, end: int, step: int) -> list[float]:
        return tp.onnx("Slice", x, [start], [end], [0], [step], opset=opset).tolist()

    assert cut(-1, -MOST, -1) == cut(3, -5, -1) == cut(9, -9, -1) == [4, 3, 2, 1]
    assert cut(3, -1, -1) == []  # -1 is the last element, not the one before the first
    assert (cut(10, 0, -2), cut(10, -MOST, -2)) == ([4, 2], [4, 2])


@pytest.mark.parametrize("dtype", [np.float64, ml_dtypes.bfloat16, np.float16, np.float32, np.int8, np.bool_])
def test_constants_keep_the_type_of_their_array(tp: Client, dtype: Any) -> None:
    found = tp.onnx("ConstantOfShape", [2], opset=21, value=np.array([1], dtype))
    assert (found.dtype, found.astype(float).tolist()) == (np.dtype(dtype), [1, 1])
    assert tp.onnx("ConstantOfShape", [1], value=1.5).dtype == np.float32
    assert tp.onnx("ConstantOfShape", [1], value=[1.5]).dtype == np.float32


def test_an_empty_permutation_is_that_of_a_scalar(tp: Client) -> None:
    assert tp.onnx("Transpose", np.float32(3), perm=[]).tolist() == 3
    with pytest.raises(InvalidDescriptor, match="perm must list each of 2 axes once"):
        tp.onnx("Transpose", SEQUENCES, perm=[])
