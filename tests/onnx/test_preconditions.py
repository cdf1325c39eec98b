"""What inference does not look at is refused before anything is computed; ONNX Runtime refuses the same nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx
import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from tests.support.live_server import default_server

import onnx
from onnx import helper
from tensorpost import Client
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.problems import InvalidDescriptor


class Wrong(NamedTuple):
    """A node that breaks a rule: shapes of its inputs by name, the rule's path and a part of its message."""

    op_type: str
    opset: int
    shapes: dict[str, tuple[int, ...]]
    path: str
    words: str
    attributes: Mapping[str, Any] = {}


def attention(path: str, words: str, shapes: dict[str, tuple[int, ...]] | None = None, **attributes: Any) -> Wrong:
    good = {"Q": (2, 4, 3, 8), "K": (2, 2, 5, 8), "V": (2, 2, 5, 6)}
    return Wrong("Attention", 23, good | (shapes or {}), path, words, attributes)


def einsum(equation: str, words: str, *shapes: tuple[int, ...]) -> Wrong:
    given = {f"Inputs_{place}": shape for place, shape in enumerate(shapes)}
    return Wrong("Einsum", 12, given, "$.attributes.equation", words, {"equation": equation})


def convolution(path: str, words: str, **shapes: tuple[int, ...]) -> Wrong:
    good: dict[str, tuple[int, ...]] = {"x": (1, 2, 6, 5), "w": (4, 2, 3, 2), "x_zero_point": (), "w_zero_point": (4,)}
    return Wrong("ConvInteger", 10, good | shapes, path, words)


def recurrent(op_type: str, gates: int, name: str, *shape: int, **attributes: Any) -> Wrong:
    good: dict[str, tuple[int, ...]] = {
        "X": (5, 3, 4), "W": (1, gates * 6, 4), "R": (1, gates * 6, 6), "B": (1, 2 * gates * 6),
        "initial_h": (1, 3, 6),
    }  # fmt: skip
    shapes = good | ({name: shape} if shape else {})
    return Wrong(op_type, 14, shapes, f"$.inputs.{name}", f"{name} of {op_type} has the shape",
                 {"hidden_size": 6} | attributes)  # fmt: skip


FLAT = {"Q": (2, 3, 8), "K": (2, 5, 6), "V": (2, 5, 6)}
WRONG = [
    attention("$.attributes.scale", "scale of Attention is -1.0", scale=-1.0),
    attention("$.attributes.scale", "scale of Attention is 0.0", scale=0.0),
    attention("$.inputs.K", "4 heads of Q and 3 of K", {"K": (2, 3, 5, 8), "V": (2, 3, 5, 6)}),
    attention("$.inputs.K", "4 heads of Q and 3 of K", FLAT, q_num_heads=4, kv_num_heads=3),
    attention("$.attributes.q_num_heads", "Q has 8 elements of all heads", FLAT, q_num_heads=3, kv_num_heads=3),
    attention("$.inputs.K", "batch 2 and heads of 8", {"K": (2, 2, 5, 7)}),
    attention("$.inputs.V", "2 heads and length 5", {"V": (2, 2, 4, 6)}),
    attention("$.inputs.attn_mask", r"repeated to \[2, 4, 3, 5\]", {"attn_mask": (2, 5)}),
    attention("$.inputs.past_key", r"not \[2, 2, past length, 8\]",
              {"past_key": (2, 2, 1, 7), "past_value": (2, 2, 1, 6)}),
    einsum("ii->i", "'i' of the sizes 2 and 3", (2, 3)),
    einsum("i->ii", "a letter of 'ii' twice", (3,)),
    einsum("ij,jk->ik", "'j' of the sizes 3 and 2", (2, 3), (2, 4)),
    einsum("ij->->i", "is none", (2, 3)),
    einsum("...->", "has no ... after ->", (2, 3)),
    convolution("$.inputs.w_zero_point", r"the shape \[3\], not one number, or one for each of the 4 filters",
                w_zero_point=(3,)),
    convolution("$.inputs.w_zero_point", r"the shape \[2\]", w_zero_point=(2,)),
    convolution("$.inputs.x_zero_point", "not one number", x_zero_point=(2,)),
    recurrent("RNN", 1, "W", 1, 6, 3),
    recurrent("RNN", 1, "W", direction="bidirectional"),
    recurrent("GRU", 3, "R", 1, 18, 5),
    recurrent("GRU", 3, "B", 1, 18),
    recurrent("LSTM", 4, "initial_h", 3, 1, 6),
    recurrent("LSTM", 4, "W", hidden_size=5),
    Wrong("BatchNormalization", 9, {"X": (1, 2, 4), "scale": (3,), "B": (2,), "mean": (2,), "var": (2,)},
          "$.inputs.scale", r"the shape \[3\], not \[2\], one for each channel"),
    convolution("$.inputs.w", "filters for 2 channels in 1 group", w=(4, 3, 3, 2)),
]  # fmt: skip


def kind_of(case: Wrong, name: str) -> str:
    if case.op_type == "ConvInteger":
        return "uint8" if name.startswith("x") else "int8"
    return "float32"


def slots(case: Wrong) -> list[str]:
    """Its inputs by position."""
    names = [*case.shapes]
    if case.op_type == "Attention":
        names = ["Q", "K", "V", "attn_mask", "past_key", "past_value"]
    if case.op_type in ("RNN", "GRU", "LSTM"):
        names = ["X", "W", "R", "B", "sequence_lens", "initial_h"]
    return [name if name in case.shapes else "" for name in names]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: f"{case.op_type} {case.words}")
def test_what_does_not_fit_is_refused_by_name(case: Wrong) -> None:
    inputs = {name: OnnxTensor(kind_of(case, name), shape) for name, shape in case.shapes.items()}
    outputs = 3 if "past_key" in inputs else 1
    with pytest.raises(InvalidDescriptor, match=case.words) as caught:
        OnnxNode(case.op_type, inputs, case.attributes, opset=case.opset, outputs=outputs)
    assert [each.where for each in caught.value.violations] == [case.path]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: f"{case.op_type} {case.words}")
def test_onnx_runtime_refuses_it_too(case: Wrong) -> None:
    arrays = {name: np.ones(shape, kind_of(case, name)) for name, shape in case.shapes.items()}
    outputs = ["y", "present_key", "present_value"][: 3 if "past_key" in arrays else 1]
    graph = helper.make_graph(
        [helper.make_node(case.op_type, slots(case), outputs, **case.attributes)], "g",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
         for name, array in arrays.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )  # fmt: skip
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", case.opset)])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, arrays)


def test_states_lie_as_the_layout_says() -> None:
    """ONNX Runtime computes no network with `layout=1`, so the server does it itself."""
    shapes = {"X": (3, 5, 4), "W": (1, 6, 4), "R": (1, 6, 6), "sequence_lens": (3,)}
    inputs = {name: OnnxTensor("int32" if name[0] == "s" else "float32", shape) for name, shape in shapes.items()}

    def output(*state: int) -> tuple[int, ...]:
        given = inputs | {"initial_h": OnnxTensor("float32", state)}
        node = OnnxNode("RNN", given, {"hidden_size": 6, "layout": 1}, opset=14, outputs=2)
        return node.results[1][1].shape

    assert output(3, 1, 6) == (3, 1, 6)
    with pytest.raises(InvalidDescriptor, match=r"initial_h of RNN has the shape \[1, 3, 6\], not \[3, 1, 6\]"):
        output(1, 3, 6)


def test_the_server_refuses_a_node_alone_and_one_of_a_model() -> None:
    tensor = {"dtype": "BF16", "shape": [2, 3], "data": [1] * 6}
    graph = helper.make_graph(
        [helper.make_node("Einsum", ["x"], ["y"], name="diagonal", equation="ii->i")], "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.BFLOAT16, None)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.BFLOAT16, None)],
    )  # fmt: skip
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 28)])
    with default_server() as url, Client(url) as tp:
        answer = httpx.post(f"{url}/v1/onnx/Einsum?equation=ii-%3Ei", json={"tensors": {"Inputs_0": tensor}})
        assert (answer.status_code, answer.json()["violations"][0]["path"]) == (422, "$.attributes.equation")
        with pytest.raises(
            InvalidDescriptor, match=r"the node 'diagonal' \(Einsum\): \$\.graph\.node\[0\].*'i' of the"
        ):
            tp.run_model(model, np.ones((2, 3), ml_dtypes.bfloat16))


def test_a_number_by_value_is_not_left_out_where_the_server_computes_by_itself() -> None:
    """ONNX Runtime computes no zero point for each filter, and functions of arrays know no numbers by value."""
    x = np.arange(12, dtype=np.uint8).reshape(1, 1, 3, 4)
    arrays: dict[str, Any] = {"x": x, "w": np.ones((2, 1, 1, 1), np.int8), "zeros": np.array([0, 3], np.int8)}
    inputs = {"x": "x", "w": "w", "x_zero_point": 7, "w_zero_point": "zeros"}
    node = {"name": "sums", "op_type": "ConvInteger", "opset": 10, "inputs": inputs}
    described = {name: {"data_type": array.dtype.name, "sizes": array.shape} for name, array in arrays.items()}
    document = {"inputs": described, "nodes": [node], "outputs": {"y": "sums"}}
    with default_server() as url, Client(url) as tp, pytest.raises(InvalidDescriptor, match="Non per-tensor"):
        tp.run_graph(document, arrays)
