"""What is read from the `onnx` package: operators that tensorpost has no rule for, as models of one node.

The package checks such a node and infers its outputs; ONNX Runtime computes it on the server. The extra `onnx` installs
both, and is needed on the side of the caller too, who must know the outputs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..datatypes import DATA_TYPES, data_type
from ..extras import install_command
from .given_node import GivenNode, InferredOutputs

__all__ = ["infer_by_package", "schema_row", "since_version", "tensor_of_proto"]

_IN_DIRECTML: Mapping[str, str] = {
    "AveragePool": "AVERAGE_POOLING", "BatchNormalization": "BATCH_NORMALIZATION", "Conv": "CONVOLUTION",
    "ConvInteger": "CONVOLUTION_INTEGER", "ConvTranspose": "CONVOLUTION", "GRU": "GRU",
    "GlobalAveragePool": "AVERAGE_POOLING", "GlobalMaxPool": "MAX_POOLING",
    "LRN": "LOCAL_RESPONSE_NORMALIZATION", "LSTM": "LSTM", "LpNormalization": "LP_NORMALIZATION",
    "LpPool": "LP_POOLING", "MaxPool": "MAX_POOLING", "MaxRoiPool": "ROI_POOLING", "MaxUnpool": "MAX_UNPOOLING",
    "MeanVarianceNormalization": "MEAN_VARIANCE_NORMALIZATION", "NonZero": "NONZERO_COORDINATES", "RNN": "RNN",
    "RoiAlign": "ROI_ALIGN",
}  # fmt: skip
"""Operators of ONNX that only ONNX Runtime computes here, and DirectML's operator of the same kind; for messages."""
_NOT_IN_DIRECTML = frozenset((
    "AffineGrid", "Attention", "Bernoulli", "BitCast", "BlackmanWindow", "CausalConvWithState", "CenterCropPad",
    "Col2Im", "Compress", "DFT", "DeformConv", "Det", "Dropout", "Einsum", "GlobalLpPool", "GridSample",
    "GroupNormalization", "HammingWindow", "HannWindow", "InstanceNormalization", "LayerNormalization",
    "LinearAttention", "MelWeightMatrix", "NegativeLogLikelihoodLoss", "NonMaxSuppression", "QLinearConv",
    "QLinearMatMul", "RMSNormalization", "RotaryEmbedding", "STFT", "SoftmaxCrossEntropyLoss", "SwiGLU",
    "TensorScatter", "Unique",
))  # fmt: skip
_ATTRIBUTE_FIELDS = {"FLOAT": "f", "INT": "i", "STRING": "s", "FLOATS": "floats", "INTS": "ints"}
_FLAGS = {"Single": "", "Optional": "?", "Variadic": "*"}


def schema_row(schema: Any) -> dict[str, Any]:
    """A version of an operator as `operators.json` has it, from an `onnx.defs.OpSchema`.

    Types that no tensor here has are left out: sequences, and those of fewer than 8 bits.
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
        "types": {name: " ".join(found) for name, found in types.items()},
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


def since_version(op_type: str, opset: int) -> tuple[int, dict[str, Any]] | str:
    """The number and the row of the version that the opset means; why there is none if it cannot be computed.

    Raises:
        KeyError: ONNX has no such operator; or the package is not installed, and then the text says so of an operator
            that needs it.
    """
    try:
        defs: Any = importlib.import_module("onnx.defs")
    except ModuleNotFoundError:
        raise KeyError(_how_to_install(op_type)) from None
    if not defs.has(op_type):
        raise KeyError("")
    try:
        schema = defs.get_schema(op_type, max(1, opset), "")
    except defs.SchemaError:
        return f"there is no {op_type} at opset {opset}"
    row = schema_row(schema)
    if schema.deprecated:
        return f"{op_type} is deprecated at opset {opset}"
    for name, kind, *flag in (*row["inputs"], *row["outputs"]):
        if not (row["types"].get(kind, kind) or flag):
            return f"{op_type} has {name}, which is not a tensor of a type that travels here"
    for name, (kind, *default) in row["attributes"].items():
        if kind not in (*_ATTRIBUTE_FIELDS, "TENSOR") and default == ["required"]:
            return f"{op_type} has the attribute {name}, of the kind {kind}, which no node here can have"
    return schema.since_version, row


def _how_to_install(op_type: str) -> str:
    if op_type not in _IN_DIRECTML and op_type not in _NOT_IN_DIRECTML:
        return ""
    hint = f"; DirectML's own {_IN_DIRECTML[op_type]}, for run, needs no extra" if op_type in _IN_DIRECTML else ""
    needed = "it needs the extra 'onnx' where the call is made and on the server"
    return f"ONNX Runtime computes {op_type}, and {needed}: {install_command('onnx')}{hint}"


def infer_by_package(given: GivenNode) -> InferredOutputs:
    """Check a node and infer its outputs; its meaning is the model."""
    onnx: Any = importlib.import_module("onnx")
    helper: Any = onnx.helper
    schema = given.schema
    formal = [f"{slot.name}" for slot in schema.inputs if not slot.variadic]
    names = [name if name in given.tensors or name in given.values else "" for name in formal]
    names += [name for name in given.tensors if name not in formal]
    while names and not names[-1]:
        names.pop()
    least = [entry.name for entry in schema.outputs if not entry.optional]
    outputs = [entry.name for entry in schema.outputs][: given.outputs or max(1, len(least))]
    if schema.outputs and schema.outputs[-1].variadic:
        outputs = [f"{schema.outputs[-1].name}_{index}" for index in range(given.outputs or 1)]
    tensors = [
        helper.make_tensor_value_info(name, tensor.row.onnx_code, tensor.shape)
        for name, tensor in given.tensors.items()
    ]
    attributes = {name: _attribute(value, onnx) for name, value in given.attributes.items() if value != ()}
    node = helper.make_node(schema.op_type, names, outputs, **attributes)
    made = [helper.make_empty_tensor_value_info(name) for name in outputs]
    opset, problem = helper.make_opsetid("", schema.since_version), ""
    model: Any = None
    for scalars in (False, True):  # a number alone may stand for a tensor of rank 1 or 0, whichever the operator takes
        constants = [_constant(given, name, onnx, scalars=scalars) for name in given.values]
        graph = helper.make_graph([node], schema.op_type, tensors, made, constants)
        try:
            model = helper.make_model(graph, opset_imports=[opset], ir_version=8, producer_name="tensorpost")
            model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
            onnx.checker.check_model(model)
            break
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError) as error:
            problem, model = problem or str(error).strip().splitlines()[-1][:300], None
    if model is None:
        given.refuse("onnx", (), f"onnx refuses the node: {problem}", None, "a node that its checker takes")
    shapes: list[tuple[int, ...]] = []
    types: dict[str, str] = {}
    for entry, found in zip(schema.outputs, model.graph.output, strict=False):
        tensor = found.type.tensor_type
        sizes = [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
        _check_shape(given, found.name, sizes if tensor.HasField("shape") else None)
        kind = [row.numpy_name for row in DATA_TYPES if row.onnx_code == tensor.elem_type]
        if not kind:
            given.refuse("onnx", (), f"{found.name} has a type that travels nowhere here", None, "another type")
        types[entry.variable or entry.name] = kind[0]
        shapes.append(tuple([size for size in sizes if size is not None]))
    return InferredOutputs(shapes, (("model", model.SerializeToString(deterministic=True)),), types)


def _check_shape(given: GivenNode, name: str, sizes: Sequence[int | None] | None) -> None:
    """Refuse an output whose shape the package does not know (None for unknown sizes), or of negative sizes."""
    schema, known = given.schema, sizes is not None and None not in sizes
    if known and min([size for size in sizes or () if size is not None], default=0) >= 0:
        return
    if known or schema.attribute("kernel_shape") is not None:
        kernel = cast("tuple[int, ...] | None", given.attributes.get("kernel_shape"))  # ints, as its schema says
        window = f"the window {list(kernel)}" if kernel else "the window"
        would = f": {name} would have the shape {list(sizes or ())}" if known else ""
        message = f"{window} of {schema.op_type} is larger than the input with its padding{would}"
        given.refuse("shape", ("attributes", "kernel_shape"), message, kernel, "a window that fits into the input")
    message = f"the shape of {name} depends on elements, and it must be known before anything is computed"
    if len(schema.inputs) > 1:
        message += "; give small inputs that decide it as lists of numbers"
    given.refuse("onnx", ("inputs",), message, None, "lists of numbers for small inputs")


def _attribute(value: Any, onnx: Any) -> Any:
    """The value, or the tensor of one number that it says."""
    match value:
        case (str() as kind, number):
            return onnx.numpy_helper.from_array(np.array([number], data_type(kind).dtype))
        case _:
            return value


def _constant(given: GivenNode, name: str, onnx: Any, *, scalars: bool) -> Any:
    slot, values = given.schema.input(name), given.values[name]
    assert slot is not None
    whole = all(isinstance(value, int) for value in values)
    fitting = [kind for kind in slot.types if (data_type(kind).dtype.kind in "iu") == whole] or list(slot.types)
    kind = given.types.get(slot.variable) or ("int64" if "int64" in fitting and whole else fitting[0])
    array = np.array(values, data_type(kind).dtype)
    return onnx.numpy_helper.from_array(array.reshape(()) if scalars and array.size == 1 else array, name)
