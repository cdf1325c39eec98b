"""The bytes of a model, read back by the `onnx` package and judged by its checker and its shape inference."""

from __future__ import annotations

import importlib
import math
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from tensorpost.datatypes import DATA_TYPES, data_type
from tensorpost_server.backends.directml import Constant, Node, TensorType, model_bytes

pytestmark = pytest.mark.skipif(find_spec("onnx") is None, reason="onnx has no wheel for every Python")


def tensor(name: str, *shape: int) -> TensorType:
    return TensorType(data_type(name), shape)


TILE = Node("Tile", 13, (tensor("uint32", 2, 3), Constant.vector("int64", (2, 100))), (tensor("uint32", 4, 300),))
RESIZE = Node(
    "Resize", 19,
    (tensor("float16", 1, 1, 4, 4), None, Constant.vector("float32", (1.0, 1.0, 2.0, 2.5))),
    (tensor("float16", 1, 1, 8, 10),),
    (("mode", "nearest"), ("coordinate_transformation_mode", "asymmetric"), ("antialias", 0)),
)  # fmt: skip
ROOMY = Node(
    "Tile", 13, (tensor("int8", 1 << 20, 129), Constant.vector("int64", (1 << 20, 1))), (tensor("int8", 1 << 40, 129),)
)
SLICE = Node(
    "Slice", 13,
    (tensor("uint8", 9), *[Constant.vector("int64", (entry,)) for entry in (8, -10, 0, -3)]),
    (tensor("uint8", 3),),
)  # fmt: skip
CLIP = Node(
    "Clip", 13, (tensor("float16", 2), *[Constant(data_type("float16"), (), (entry,)) for entry in (-1.5, math.inf)]),
    (tensor("float16", 2),),
)  # fmt: skip
GEMM = Node(
    "Gemm", 13, (tensor("float32", 3, 2), tensor("float32", 3, 4), tensor("float32", 2, 4)),
    (tensor("float32", 2, 4),), (("alpha", 0.5), ("beta", -2.0), ("transA", 1)),
)  # fmt: skip
TOP_K = Node(
    "TopK", 11, (tensor("int32", 2, 5), Constant.vector("int64", (3,))), (tensor("int32", 2, 3), tensor("int64", 2, 3)),
    (("axis", 1),),
)  # fmt: skip
CONV = Node(
    "Conv", 11, (tensor("float32", 1, 1, 5), tensor("float32", 1, 1, 3)), (tensor("float32", 1, 1, 3),),
    (("strides", (2,)), ("pads", (1, 1))),
)  # fmt: skip
NODES = {
    "Tile": TILE, "Resize": RESIZE, "long sizes": ROOMY, "negative constants": SLICE, "scalars": CLIP,
    "three inputs": GEMM, "two outputs": TOP_K, "integers": CONV,
}  # fmt: skip


def read(node: Node) -> Any:
    onnx = importlib.import_module("onnx")
    model = onnx.load_model_from_string(model_bytes(node))
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_a_model_says_what_the_node_says(node: Node) -> None:
    onnx = importlib.import_module("onnx")
    model = read(node)

    (opset,) = model.opset_import
    assert (opset.domain, opset.version, model.ir_version) == ("", node.opset, 9)
    (proto,) = model.graph.node
    assert proto.op_type == node.op_type
    assert list(proto.input) == ["" if value is None else f"I{at}" for at, value in enumerate(node.inputs)]
    assert list(proto.output) == [f"O{at}" for at in range(len(node.outputs))]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
    written = {str: lambda v: v.encode(), tuple: list}
    assert attributes == {name: written.get(type(value), lambda v: v)(value) for name, value in node.attributes}
    found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert {name: (array.dtype, array.shape, array.ravel().tolist()) for name, array in found.items()} == {
        f"I{at}": (value.data_type.dtype, value.shape, list(value.entries))
        for at, value in enumerate(node.inputs)
        if isinstance(value, Constant)
    }
    fed = {f"I{at}": value for at, value in enumerate(node.inputs) if isinstance(value, TensorType)}
    assert [value.name for value in model.graph.input] == list(fed)
    for value, expected in zip([*model.graph.input, *model.graph.output], [*fed.values(), *node.outputs], strict=True):
        assert tuple(d.dim_value for d in value.type.tensor_type.shape.dim) == expected.shape
        assert value.type.tensor_type.elem_type == onnx.helper.np_dtype_to_tensor_dtype(expected.data_type.dtype)


def test_nothing_is_in_it_that_onnx_would_not_write() -> None:
    """Unknown fields would be read back silently; writing the parsed message anew must give as many bytes."""
    for node in NODES.values():
        assert len(read(node).SerializeToString()) == len(model_bytes(node))


def test_shape_inference_gives_the_sizes_that_we_say() -> None:
    onnx = importlib.import_module("onnx")
    for name in NODES.keys() - {"long sizes"}:
        model = read(NODES[name])
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        for output, expected in zip(inferred.graph.output, NODES[name].outputs, strict=True):
            assert tuple(d.dim_value for d in output.type.tensor_type.shape.dim) == expected.shape


def test_wrong_sizes_are_found_out() -> None:
    """The checks above can fail."""
    onnx = importlib.import_module("onnx")
    wrong = Node("Tile", 13, (tensor("uint8", 2), Constant.vector("int64", (2,))), (tensor("uint8", 5),))
    with pytest.raises(onnx.shape_inference.InferenceError):
        read(wrong)


@pytest.mark.parametrize("name", [row.numpy_name for row in DATA_TYPES if row.item_size])
def test_every_element_type_is_onnx_s(name: str) -> None:
    if name == "bfloat16" and find_spec("ml_dtypes") is None:
        pytest.skip("ml_dtypes is not installed")
    row = data_type(name)
    model = read(Node("Tile", 13, (TensorType(row, (2,)), Constant.vector("int64", (2,))), (TensorType(row, (4,)),)))
    onnx = importlib.import_module("onnx")
    expected = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    assert np.dtype(expected).name == name
