"""Calls of the `onnx` package, which is imported here and nowhere else: JSON values in, JSON values and bytes out.

So a server can make the same calls in a child process: the package checks and infers in C++ what strangers sent. It
stands outside of `tensorpost.onnx`, whose import such a process does without: a second of processor time.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .datatypes import DATA_TYPES, data_type

__all__ = ["InferredModel", "SchemaVersion", "infer_model", "schema_row", "schema_version", "tensor_of_proto"]

SchemaVersion: TypeAlias = tuple[int, dict[str, Any]]
"""The number of a version of an operator, and its row as `operators.json` has it."""

_ATTRIBUTE_FIELDS = {"FLOAT": "f", "INT": "i", "STRING": "s", "FLOATS": "floats", "INTS": "ints"}
_PLACE = re.compile(r"/[^ ]+:[0-9]+ ")
"""A place in a source file, in messages of C++."""
_POOLS = ("AveragePool", "LpPool", "MaxPool")
_FLAGS = {"Single": "", "Optional": "?", "Variadic": "*"}


def schema_row(schema: Any) -> dict[str, Any]:
    """A version of an operator as `operators.json` has it, from an `onnx.defs.OpSchema`.

    Types that no tensor here has are left out: sequences and optional values.
    """
    types = {entry.type_param_str: _types(entry.allowed_type_strs) for entry in schema.type_constraints}
    attributes: dict[str, list[Any]] = {}
    for name in sorted(schema.attributes):
        attribute = schema.attributes[name]
        kind, default = attribute.type.name, attribute.default_value
        value = None
        if default.name and kind in _ATTRIBUTE_FIELDS:
            value = getattr(default, _ATTRIBUTE_FIELDS[kind])
            value = value.decode() if kind == "STRING" else list(value) if kind.endswith("S") else value
        attributes[name] = [kind, "required"] if attribute.required else [kind] if value is None else [kind, value]
    return {
        "inputs": [_parameter(entry, types) for entry in schema.inputs],
        "outputs": [_parameter(entry, types) for entry in schema.outputs],
        "types": {name: " ".join(names) for name, names in types.items()},
        "attributes": attributes,
    }


def _parameter(entry: Any, types: dict[str, list[str]]) -> list[Any]:
    kind = entry.type_str
    if kind not in types:
        kind = " ".join(_types([kind]))
    return [entry.name.rstrip("."), kind, _FLAGS[entry.option.name]][: 2 if entry.option.name == "Single" else 3]


def _types(names: Any) -> list[str]:
    return [row.onnx for row in DATA_TYPES if f"tensor({row.onnx})" in names]


def tensor_of_proto(tensor: Any) -> Any:
    """The array of an `onnx.TensorProto`."""
    return importlib.import_module("onnx.numpy_helper").to_array(tensor)


class InferredModel(NamedTuple):
    """What the package says of a node.

    Attributes:
        problem: why it refuses the node; empty if it does not.
        model: the model of the node, serialized.
        outputs: name, ONNX's number of the element type, and sizes of each output: None for an unknown one, or instead
            of all if not even their number is known.
    """

    problem: str
    model: bytes = b""
    outputs: Sequence[tuple[str, int, Sequence[int | None] | None]] = ()


def schema_version(op_type: str, opset: int) -> SchemaVersion | str | None:
    """The version of an operator that the opset means; why it cannot be computed; None if ONNX has no such operator.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    defs: Any = importlib.import_module("onnx.defs")
    if not defs.has(op_type):
        return None
    try:
        schema = defs.get_schema(op_type, max(1, opset), "")
    except defs.SchemaError:
        return f"there is no {op_type} at opset {opset}"
    row = schema_row(schema)
    if schema.deprecated:
        return f"{op_type} is deprecated at opset {opset}"
    for name, kind, *flag in (*row["inputs"], *row["outputs"]):
        if not (row["types"].get(kind, kind) or flag):
            return f"{op_type} has {name}, which is not a tensor of a supported type"
    for name, (kind, *default) in row["attributes"].items():
        if kind not in (*_ATTRIBUTE_FIELDS, "TENSOR") and default == ["required"]:
            return f"{op_type} has the attribute {name}, of the kind {kind}, which is not supported"
    return schema.since_version, row


def infer_model(node: Mapping[str, Any]) -> InferredModel:
    """Make the model of one node, check it, and infer its outputs.

    Args:
        node: `op_type`; `version`, which is an opset; names of `inputs`, empty for one that is left out, and of
            `outputs`; `tensors`: name, ONNX's number of the element type, and shape of each; `attributes` by name;
            `constants`: name, NumPy name of the type, and numbers of each input that is given by value.

    Raises:
        ModuleNotFoundError: the package is not installed.
        MemoryError: there is too little memory for it.
    """
    onnx: Any = importlib.import_module("onnx")
    importlib.import_module("onnx.shape_inference")
    importlib.import_module("onnx.checker")
    problem = ""
    for scalars in (False, True):  # a number alone may stand for a tensor of rank 1 or 0, whichever the operator takes
        try:
            model = _model(node, onnx, scalars=scalars)
            model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
            _leave_out_windows(model, node)
            outputs = [_output(value) for value in model.graph.output]
            if all(sizes is not None for _, _, sizes in outputs):  # else the checker says that a field is missing
                onnx.checker.check_model(model)
            return InferredModel("", model.SerializeToString(deterministic=True), outputs)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 # of C++, of protobuf and of Python, of many classes; all refuse the node
            problem = problem or _reason(error)
    return InferredModel(problem)


def _reason(error: Exception) -> str:
    """The last line of its message, without places in its source."""
    lines = _PLACE.sub("", str(error)).strip().splitlines()
    return (lines[-1] if lines else type(error).__name__)[:300]


def _model(node: Mapping[str, Any], onnx: Any, *, scalars: bool) -> Any:
    helper = onnx.helper
    tensors = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in node["tensors"]]
    attributes = {name: _attribute(value, onnx) for name, value in node["attributes"].items()}
    proto = helper.make_node(node["op_type"], node["inputs"], node["outputs"], **attributes)
    outputs = [helper.make_empty_tensor_value_info(name) for name in node["outputs"]]
    known = _known_outputs(node)
    outputs = [
        helper.make_tensor_value_info(each.name, *known[each.name]) if each.name in known else each for each in outputs
    ]
    constants = [_constant(name, kind, values, onnx, scalars=scalars) for name, kind, values in node["constants"]]
    graph = helper.make_graph([proto], node["op_type"], tensors, outputs, constants)
    opset = helper.make_opsetid("", node["version"])
    return helper.make_model(graph, opset_imports=[opset], ir_version=8, producer_name="tensorpost")


def _known_outputs(node: Mapping[str, Any]) -> Mapping[str, tuple[int, Sequence[int]]]:
    """Type and shape of outputs of which the operator's text says it and the package does not infer it."""
    tensors = {name: (kind, shape) for name, kind, shape in node["tensors"]}
    if node["op_type"] == "GroupNormalization" and "X" in tensors:
        return {"Y": tensors["X"]}
    if node["op_type"] == "MaxUnpool" and "X" in tensors:
        given = {name: values for name, _, values in node["constants"]}
        return {"output": (tensors["X"][0], given["output_shape"])} if "output_shape" in given else {}
    if node["op_type"] == "Attention" and "past_key" not in tensors:  # what is present is what was given
        heads = node["attributes"].get("kv_num_heads", 0)
        pairs = (("present_key", "K"), ("present_value", "V"))
        present = {name: tensors[letter] for name, letter in pairs if letter in tensors}
        return {name: (kind, _by_heads(shape, heads)) for name, (kind, shape) in present.items()}
    return {}


def _leave_out_windows(model: Any, node: Mapping[str, Any]) -> None:
    """Leave out the last window of a pool with `ceil_mode` that would begin in the padding after the data.

    The package infers it before opset 22, and ONNX Runtime and PyTorch leave it out. Source: MaxPool-22.
    """
    attributes: Mapping[str, Any] = node["attributes"]
    if node["op_type"] not in _POOLS or node["version"] >= 22 or not attributes.get("ceil_mode"):
        return
    _, _, shape = node["tensors"][0]
    for output in model.graph.output:
        spatial = output.type.tensor_type.shape.dim[2:]
        strides, pads = attributes.get("strides") or (1,) * len(spatial), attributes.get("pads") or (0,) * len(spatial)
        for made, size, stride, before in zip(spatial, shape[2:], strides, pads, strict=False):
            if (made.dim_value - 1) * stride >= size + before:
                made.dim_value -= 1


def _by_heads(shape: Sequence[int], heads: int) -> Sequence[int]:
    """The shape of keys or values with the heads as a dimension of their own."""
    if len(shape) != 3 or heads < 1:
        return shape
    batch, length, width = shape
    return batch, heads, length, width // heads


def _attribute(value: Any, onnx: Any) -> Any:
    """The value, or the tensor of one number that it says."""
    match value:
        case (str() as kind, number):
            return onnx.numpy_helper.from_array(np.array([number], data_type(kind).dtype))
        case _:
            return value


def _constant(name: str, kind: str, values: Sequence[int | float], onnx: Any, *, scalars: bool) -> Any:
    array = np.array(values, data_type(kind).dtype)
    return onnx.numpy_helper.from_array(array.reshape(()) if scalars and array.size == 1 else array, name)


def _output(value: Any) -> tuple[str, int, list[int | None] | None]:
    tensor = value.type.tensor_type
    sizes = [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
    return value.name, tensor.elem_type, sizes if tensor.HasField("shape") else None
