"""What is read from the `onnx` package: operators that tensorpost has no rule for, as models of one node.

The package checks such a node and infers its outputs; ONNX Runtime computes it on the server. The extra `onnx` installs
both. The caller must know the outputs, too: by the package, or by what a server said (`server_answers.py`).
`values/onnx_package.py` calls the package, in this process; a server has it called in a child process instead
(`call_package_by`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..values.datatypes import DATA_TYPES, data_type
from ..values.extras import install_command
from ..values.onnx_package import (
    InferredModel,
    SchemaVersion,
    infer_model,
    schema_row,
    schema_version,
    tensor_of_proto,
)
from ..values.problems import NoBackend
from .inference_context import InferenceContext, InferredOutputs
from .parameters import BoundedParameters, ModelParameters
from .preconditions import check_preconditions
from .result_bounds import DEPENDS_ON_ELEMENTS, bounds_of
from .server_answers import InferenceQuestion, SchemaQuestion, answer_of

__all__ = [
    "ONLY_BFLOAT16",
    "PackageCalls",
    "call_package_by",
    "infer_by_package",
    "is_of_runtime",
    "missing_on_server",
    "schema_row",
    "since_version",
    "tensor_of_proto",
]


@dataclass(frozen=True, slots=True)
class PackageCalls:
    """The functions that call the package: those of `values/onnx_package.py`, or others of the same meaning.

    Attributes:
        schema_version: see `_onnx_package.schema_version`.
        infer_model: see `_onnx_package.infer_model`.
        is_server: whether this process is a server, which needs the extra itself; for messages.
    """

    schema_version: Callable[[str, int], SchemaVersion | str | None] = schema_version
    infer_model: Callable[[Mapping[str, Any]], InferredModel] = infer_model
    is_server: bool = False


_calls = PackageCalls()


def call_package_by(calls: PackageCalls) -> PackageCalls:
    """Call the package by these functions from now on, in the whole process; returns those before."""
    global _calls  # which functions there are is a choice of the process, made when it starts
    before, _calls = _calls, calls
    return before


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
ONLY_BFLOAT16 = frozenset((
    "Bernoulli", "GlobalLpPool", "MaxRoiPool", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "RoiAlign",
))  # fmt: skip
"""Operators whose version 22 is the one before with bfloat16, and of which ONNX Runtime has that only: models of one
node are written in it."""
_NOT_IN_DIRECTML = frozenset((
    "AffineGrid", "Attention", "Bernoulli", "BlackmanWindow", "CausalConvWithState", "CenterCropPad",
    "Col2Im", "Compress", "DeformConv", "Det", "Dropout", "Einsum", "GlobalLpPool", "GridSample",
    "GroupNormalization", "HammingWindow", "HannWindow", "InstanceNormalization", "LayerNormalization",
    "LinearAttention", "MelWeightMatrix", "NegativeLogLikelihoodLoss", "NonMaxSuppression", "QLinearConv",
    "QLinearMatMul", "RMSNormalization", "RotaryEmbedding", "SoftmaxCrossEntropyLoss",
    "TensorScatter", "Unique",
))  # fmt: skip


def since_version(op_type: str, opset: int) -> SchemaVersion | str:
    """The number and the row of the version that the opset means; why there is none if it cannot be computed.

    Raises:
        KeyError: ONNX has no such operator.
        NoBackend: it is one that ONNX Runtime computes, and the package is not installed.
    """
    try:
        version = _calls.schema_version(op_type, opset)
    except ModuleNotFoundError:
        version = answer_of(SchemaQuestion(op_type, opset)) if is_of_runtime(op_type) else None
        if version is None and is_of_runtime(op_type):
            raise NoBackend(_how_to_install(op_type)) from None
    if version is None:
        raise KeyError(op_type)
    return version


def is_of_runtime(op_type: str) -> bool:
    """Whether it is an operator of ONNX that only ONNX Runtime computes here; known without the package."""
    return op_type in _IN_DIRECTML or op_type in _NOT_IN_DIRECTML


def missing_on_server(operator: str) -> str:
    """What a server without ONNX Runtime says of an operator that it would compute."""
    return (
        f"this server lacks ONNX Runtime, which computes {operator}; install the extra onnx there "
        f"({install_command('onnx')}) and restart it"
    )


def _how_to_install(op_type: str) -> str:
    hint = f"; DirectML's own {_IN_DIRECTML[op_type]}, for run, needs no extra" if op_type in _IN_DIRECTML else ""
    if _calls.is_server:
        return missing_on_server(op_type) + hint
    needed = "it needs the extra 'onnx' on the server, and here unless tp.onnx asks a server about it"
    return f"ONNX Runtime computes {op_type}, and {needed}: {install_command('onnx')}{hint}"


def infer_by_package(context: InferenceContext) -> InferredOutputs:
    """Check a node and infer its outputs; its meaning is the model."""
    schema, node = context.schema, _node_document(context)
    try:
        inferred = _calls.infer_model(node)
    except ModuleNotFoundError:
        inferred = answer_of(InferenceQuestion.of(node))
        if inferred is None:
            raise
    if inferred.problem:
        context.refuse("onnx", (), f"onnx refuses the node: {inferred.problem}", None, "a node that its checker takes")
    if context.is_bounded:
        return _bounded(context, inferred)
    check_preconditions(context)
    shapes: list[tuple[int, ...]] = []
    types: dict[str, str] = {}
    for entry, (name, element_type, sizes) in zip(schema.outputs, inferred.outputs, strict=False):
        _check_shape(context, name, sizes)
        kind = [row.numpy_name for row in DATA_TYPES if row.onnx_code == element_type]
        if not kind:
            context.refuse("onnx", (), f"{name} has a type that is not supported here", None, "another type")
        types[entry.variable or entry.name] = kind[0]
        shapes.append(tuple([size for size in sizes or () if size is not None]))
    return InferredOutputs(shapes, ModelParameters(inferred.model), types)


def _bounded(context: InferenceContext, inferred: InferredModel) -> InferredOutputs:
    """The outputs as lines of the most elements that they may have, and their sizes."""
    results = tuple(bounds_of(context))
    shapes = [(each.elements,) for each in results]
    return InferredOutputs(
        [*shapes, (sum([each.rank for each in results]),)], BoundedParameters(inferred.model, results)
    )


def _node_document(context: InferenceContext) -> dict[str, Any]:
    """The node as JSON values, of which `_onnx_package.infer_model` makes the model."""
    schema = context.schema
    formal = [slot.name for slot in schema.inputs if not slot.variadic]
    names = [name if name in context.tensors or name in context.values else "" for name in formal]
    names += [name for name in context.tensors if name not in formal]
    while names and not names[-1]:
        names.pop()
    least = [entry.name for entry in schema.outputs if not entry.optional]
    outputs = [entry.name for entry in schema.outputs][: context.outputs or max(1, len(least))]
    if schema.outputs and schema.outputs[-1].variadic:
        outputs = [f"{schema.outputs[-1].name}_{index}" for index in range(context.outputs or 1)]
    version = schema.since_version
    if version == 22 and schema.op_type in ONLY_BFLOAT16:
        version = 22 if any(tensor.data_type == "bfloat16" for tensor in context.tensors.values()) else 21
    return {
        "op_type": schema.op_type,
        "version": version,
        "inputs": names,
        "outputs": outputs,
        "tensors": [(name, tensor.row.onnx_code, tensor.shape) for name, tensor in context.tensors.items()],
        "attributes": {name: value for name, value in context.attributes.items() if value != ()},
        "constants": [(name, _constant_type(context, name), context.values[name]) for name in context.values],
    }


def _check_shape(context: InferenceContext, name: str, sizes: Sequence[int | None] | None) -> None:
    """Refuse an output whose shape the package does not know (None for unknown sizes), or of negative sizes."""
    schema, known = context.schema, sizes is not None and None not in sizes
    if known and min([size for size in sizes or () if size is not None], default=0) >= 0:
        return
    if known or schema.attribute("kernel_shape") is not None:
        kernel = cast("tuple[int, ...] | None", context.attributes.get("kernel_shape"))  # ints, as its schema says
        window = f"the window {list(kernel)}" if kernel else "the window"
        would = f": {name} would have the shape {list(sizes or ())}" if known else ""
        message = f"{window} of {schema.op_type} is larger than the input with its padding{would}"
        context.refuse("shape", ("attributes", "kernel_shape"), message, kernel, "a window that fits into the input")
    if sizes is None and not context.values:
        message = (
            f"onnx does not infer the shape of {name} of {schema.op_type} from these inputs, and it must be known "
        )
        message += "before anything is computed"
        if len(schema.inputs) > 1:
            message += "; if it depends on elements, give the inputs that decide it by value, as lists of numbers"
        context.refuse(
            DEPENDS_ON_ELEMENTS, ("inputs",), message, None, f"inputs from which the shape of {name} follows"
        )
    message = f"the shape of {name} depends on elements, and it must be known before anything is computed"
    if len(schema.inputs) > 1:
        message += "; give the inputs that decide it by value, as lists of numbers"
    context.refuse(DEPENDS_ON_ELEMENTS, ("inputs",), message, None, "lists of numbers for small inputs")


def _constant_type(context: InferenceContext, name: str) -> str:
    """The NumPy name of the type that an input given by value has."""
    slot, values = context.schema.input(name), context.values[name]
    assert slot is not None
    whole = all(isinstance(value, int) for value in values)
    fitting = [kind for kind in slot.types if (data_type(kind).dtype.kind in "iu") == whole] or list(slot.types)
    return context.types.get(slot.variable) or ("int64" if "int64" in fitting and whole else fitting[0])
