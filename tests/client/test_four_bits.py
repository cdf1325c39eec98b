"""Elements of 4 bits as callers see them: packed, unpacked, and through a client."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from tests.support.http_app import JSON, http_app

import tensorpost
from tensorpost import four_bits
from tensorpost.values.problems import BodyMismatch, InvalidParameter


@pytest.mark.parametrize(
    ("data_type", "elements", "block"),
    [
        ("INT4", [1, -2, 3], [0xE1, 0x03]),
        ("UINT4", [[1, 15], [8, 0]], [0xF1, 0x08]),
        ("INT4", [-8, 7], [0x78]),
        ("UINT4", [], []),
        (tensorpost.TensorDataType.INT4, [[-1]], [0x0F]),
    ],
)
def test_the_first_element_is_in_the_low_half(data_type: str, elements: list[int], block: list[int]) -> None:
    array = np.array(elements, np.int64)
    packed = four_bits.pack_tensor(array, data_type)
    assert (packed.tolist(), packed.dtype) == (block, np.uint8)
    again = four_bits.unpack_tensor(packed, data_type, array.shape)
    assert np.array_equal(again, array)
    assert again.dtype == ("int8" if getattr(data_type, "name", data_type) == "INT4" else "uint8")


def test_arrays_of_ml_dtypes_are_taken() -> None:
    assert four_bits.pack_tensor(np.array([1, -2], ml_dtypes.int4), "INT4").tolist() == [0xE1]
    assert four_bits.pack_tensor(np.array([1, 14], ml_dtypes.uint4), "UINT4").tolist() == [0xE1]


@pytest.mark.parametrize(
    ("elements", "data_type", "message"),
    [
        ([16], "UINT4", "from 0 to 15"), ([-1], "UINT4", "from 0 to 15"), ([8], "INT4", "from -8 to 7"),
        ([1.5], "INT4", "whole numbers"), ([True], "INT4", "whole numbers"), ([1], "INT8", "INT8 has no elements of 4"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(elements: list[float], data_type: str, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        four_bits.pack_tensor(elements, data_type)


def test_bytes_must_be_enough() -> None:
    with pytest.raises(BodyMismatch, match="5 elements of 4 bits need 3 bytes, not 2"):
        four_bits.unpack_tensor(np.zeros(2, np.uint8), "UINT4", (5,))
    with pytest.raises(InvalidParameter, match="UNKNOWN"):
        four_bits.unpack_tensor(np.zeros(2, np.uint8), "UNKNOWN", (1,))


def test_sizes_of_4_bits_are_those_of_bytes() -> None:
    tensor = {"DataType": "UINT4", "Sizes": [3, 3]}
    document = {"type": "DEQUANTIZE", "desc": {
        "InputTensor": tensor, "QuantizationTensors": [{"DataType": "FLOAT32", "Sizes": [3, 1]}],
    }}  # fmt: skip
    with http_app() as client:
        verdict = client.post("/v1/validate", content=json.dumps(document).encode(), headers=JSON).json()
    assert verdict["valid"], verdict
    assert verdict["inputs"][0] == {"name": "input", "dtype": "uint8", "shape": [5], "size_in_bytes": 5}
    assert (verdict["input_bytes"], verdict["output_bytes"], verdict["lowest_feature_level"]) == (17, 36, "6_3")
