"""Names of inputs in a mapping: those of a frame, of DirectML's struct, and of the descriptor class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorpost import Client
from tensorpost import descriptors as dml
from tensorpost.problems import InvalidParameter

A, B = np.array([1, 2], np.float32), np.array([10, 20], np.float32)
TENSOR = dml.BufferTensorDesc(data_type="FLOAT32", sizes=[2])
ADD = dml.ElementWiseAddOperatorDesc(a_tensor=TENSOR, b_tensor=TENSOR, output_tensor=TENSOR)
JOIN = dml.JoinOperatorDesc(
    input_tensors=(TENSOR, TENSOR), output_tensor=dml.BufferTensorDesc(data_type="FLOAT32", sizes=[4]), axis=0
)


@pytest.mark.parametrize(
    "inputs",
    [{"a": A, "b": B}, {"ATensor": A, "BTensor": B}, {"b_tensor": B, "a_tensor": A}, {"ATensor": A, "b": B.tobytes()}],
)
def test_inputs_by_any_of_their_names(server_url: str, inputs: dict[str, Any]) -> None:
    with Client(server_url) as tp:
        assert tp.run(ADD, inputs).tolist() == [11, 22]
        assert b"".join(map(bytes, tp.stream(ADD, inputs))) == np.array([11, 22], np.float32).tobytes()


@pytest.mark.parametrize("inputs", [{"input_0": A, "input_1": B}, {"InputTensors": [A, B]}, {"input_tensors": (A, B)}])
def test_several_tensors_of_one_field(server_url: str, inputs: dict[str, Any]) -> None:
    with Client(server_url) as tp:
        assert tp.run(JOIN, inputs).tolist() == [1, 2, 10, 20]


@pytest.mark.parametrize(
    ("desc", "inputs", "says"),
    [
        (ADD, {"ATensor": A, "a": A}, "'a' of ELEMENT_WISE_ADD is given twice, the second time as 'a'"),
        (ADD, {"ATensor": A}, "takes the inputs a, b; got a"),
        (ADD, {"ATensor": A, "CTensor": B}, "got a, CTensor"),
        (JOIN, {"InputTensors": A}, "InputTensors is a ndarray; it must be a list of arrays"),
        (JOIN, {"InputTensors": [A]}, "takes the inputs input_0, input_1; got input_0"),
    ],
)
def test_what_does_not_name_each_input_once_is_refused(desc: Any, inputs: dict[str, Any], says: str) -> None:
    with Client("http://127.0.0.1:9") as offline, pytest.raises(InvalidParameter, match=says):
        offline.run(desc, inputs)
