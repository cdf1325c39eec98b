"""The bytes of a model, read back by the `onnx` package and judged by its checker and its shape inference."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from tensorpost.datatypes import DATA_TYPES, data_type
from tensorpost_server.backends.directml import Constant, Node, model_bytes

pytestmark = pytest.mark.skipif(find_spec("onnx") is None, reason="onnx has no wheel for every Python")

TILE = Node("Tile", 13, data_type("uint32"), (2, 3), (4, 300), (Constant.int64("repeats", (2, 100)),))
RESIZE = Node(
    "Resize", 19, data_type("float16"), (1, 1, 4, 4), (1, 1, 8, 10),
    (None, Constant.float32("scales", (1.0, 1.0, 2.0, 2.5))),
    (("mode", "nearest"), ("coordinate_transformation_mode", "asymmetric"), ("antialias", 0)),
)  # fmt: skip
ROOMY = Node("Tile", 13, data_type("int8"), (1 << 20, 129), (1 << 40, 129), (Constant.int64("repeats", (1 << 20, 1)),))


def read(node: Node) -> Any:
    onnx = importlib.import_module("onnx")
    model = onnx.load_model_from_string(model_bytes(node))
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("node", [TILE, RESIZE, ROOMY], ids=["Tile", "Resize", "long sizes"])
def test_a_model_says_what_the_node_says(node: Node) -> None:
    onnx = importlib.import_module("onnx")
    model = read(node)

    (opset,) = model.opset_import
    assert (opset.domain, opset.version, model.ir_version) == ("", node.opset, 9)
    (proto,) = model.graph.node
    constants = [constant for constant in node.constants if constant is not None]
    assert proto.op_type == node.op_type
    assert list(proto.input) == ["X", *["" if c is None else c.name for c in node.constants]]
    assert list(proto.output) == ["Y"]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
    assert attributes == {name: v.encode() if isinstance(v, str) else v for name, v in node.attributes}
    found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert {c.name: (c.data_type.dtype, list(c.entries)) for c in constants} == {
        name: (array.dtype, array.tolist()) for name, array in found.items()
    }
    for value, shape in ((model.graph.input[0], node.shape), (model.graph.output[0], node.output_shape)):
        assert tuple(d.dim_value for d in value.type.tensor_type.shape.dim) == shape
        assert value.type.tensor_type.elem_type == onnx.helper.np_dtype_to_tensor_dtype(node.data_type.dtype)


def test_nothing_is_in_it_that_onnx_would_not_write() -> None:
    """Unknown fields would be read back silently; writing the parsed message anew must give as many bytes."""
    for node in (TILE, RESIZE, ROOMY):
        assert len(read(node).SerializeToString()) == len(model_bytes(node))


def test_shape_inference_gives_the_sizes_that_we_say() -> None:
    onnx = importlib.import_module("onnx")
    for node in (TILE, RESIZE):
        model = read(node)
        model.graph.output[0].type.tensor_type.ClearField("shape")
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output[0]
        assert tuple(d.dim_value for d in inferred.type.tensor_type.shape.dim) == node.output_shape


def test_wrong_sizes_are_found_out() -> None:
    """The checks above can fail."""
    onnx = importlib.import_module("onnx")
    wrong = Node("Tile", 13, data_type("uint8"), (2,), (5,), (Constant.int64("repeats", (2,)),))
    with pytest.raises(onnx.shape_inference.InferenceError):
        read(wrong)


@pytest.mark.parametrize("name", [row.numpy_name for row in DATA_TYPES if row.item_size])
def test_every_element_type_is_onnx_s(name: str) -> None:
    if name == "bfloat16" and find_spec("ml_dtypes") is None:
        pytest.skip("ml_dtypes is not installed")
    row = data_type(name)
    model = read(Node("Tile", 13, row, (2,), (4,), (Constant.int64("repeats", (2,)),)))
    onnx = importlib.import_module("onnx")
    expected = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    assert np.dtype(expected).name == name
