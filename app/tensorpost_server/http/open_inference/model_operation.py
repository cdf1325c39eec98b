"""The operation (descriptor or ONNX node) that a model, parameters and tensors mean, or a refusal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from tensorpost.bodies.strict_json import read_json
from tensorpost.descriptors import operator_class
from tensorpost.values.datatypes import DataType, data_type
from tensorpost.values.problems import InvalidJson, InvalidParameter, TensorpostError

from ..calls.call import AnnouncedTensor
from ..wires.call_parser import ParsedCall, as_document, read_document
from .infer_request import InferInput
from .models import Model, ModelCatalogue, TensorInfo

_OPTIONS = ("backend", "device", "feature_level")
_UINT8, _BOOL = data_type("uint8"), data_type("bool")


def announced(model: Model, tensor: InferInput) -> AnnouncedTensor:
    """The tensor as the operator's path knows it. DirectML has no booleans and takes them as UINT8."""
    row = _UINT8 if tensor.data_type is _BOOL and _has_no_booleans(model) else tensor.data_type
    return AnnouncedTensor(tensor.name, row, tensor.shape, tensor.packed_bytes)


def graph_of(
    model: Model, parameters: Mapping[str, Any], tensors: Sequence[AnnouncedTensor], values: Mapping[str, NDArray[Any]]
) -> ParsedCall:
    """The operation, or the stored graph, that a request asks for, and how to run it.

    Args:
        model: the model that the request was sent to.
        parameters: attributes and options; texts hold JSON, or are names. `op` is a whole operator or node document.
        tensors: the tensors that are worked on.
        values: attributes that came as tensors.

    Raises:
        InvalidRequest: any of them is malformed, or they contradict each other.
    """
    parser = model.parser
    attributes = {**model.fixed, **parameters}
    for kind, names in (("fixed by the model", model.fixed.keys()), ("sent as a tensor as well", values.keys())):
        if twice := sorted(names & parameters.keys()):
            raise InvalidParameter(f"the parameter {twice[0][:60]!r} is {kind}; leave one of them out")
    if twice := sorted(model.fixed.keys() & values.keys()):
        raise InvalidParameter(f"the tensor {twice[0][:60]!r} is fixed by the model; leave it out")
    by_value = {name: array for name, array in values.items() if name in parser.value_names}
    attributes |= {name: array.tolist() for name, array in values.items() if name not in by_value}
    document: Mapping[str, Any] | None = None
    if model.stored is not None:
        tensors = [*tensors, *[_announced_value(name, array) for name, array in by_value.items()]]
    elif "op" in attributes:
        sent = attributes.pop("op")
        document = read_document(sent) if isinstance(sent, str) else as_document(sent)
    elif not model.is_onnx and any(name.endswith("_desc") for name in attributes):
        document, attributes = _document(model, attributes)
    return parser.parse(attributes, tensors, document, by_value)


def _document(model: Model, attributes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The operator's document, for tensors with strides: `input_desc` is a whole buffer tensor description."""
    cls = operator_class(model.operator)
    names = {field.attribute_name: field.name for field in cls.facts.fields if field.kind == "attribute"}
    names |= {f"{field.slot_name}_desc": field.name for field in cls.facts.fields if field.kind != "attribute"}
    options = {name: value for name, value in attributes.items() if name in _OPTIONS}
    for name in attributes:
        if name not in names and name not in options:
            raise InvalidParameter(f"there is no parameter {name[:60]!r} beside a tensor's description")
    desc = {names[name]: _json_or_text(value) for name, value in attributes.items() if name in names}
    return {"type": cls.operator_type, "desc": desc}, options


def _json_or_text(value: object) -> Any:
    if isinstance(value, str):
        with suppress(InvalidJson):
            return read_json(value.encode())
    return value


def _has_no_booleans(model: Model) -> bool:
    return not model.is_onnx and model.stored is None


def _announced_value(name: str, array: NDArray[Any]) -> AnnouncedTensor:
    return AnnouncedTensor(name, data_type(array.dtype), array.shape, array.nbytes)


def resolve_presets(models: ModelCatalogue) -> None:
    """Find out the outputs of presets whose input has a fixed shape.

    Raises:
        InvalidParameter: such a preset cannot work.
    """
    for model in models.presets:
        if len(model.inputs) != 1 or not all(size >= 0 for size in model.inputs[0].shape):
            continue
        tensor = model.inputs[0]
        size = math.prod(tensor.shape) * tensor.data_type.item_size
        try:
            graph = graph_of(model, {}, [AnnouncedTensor(tensor.name, tensor.data_type, tensor.shape, size)], {}).graph
        except TensorpostError as error:
            raise InvalidParameter(f"the preset {model.name!r} does not work: {error.detail}") from None
        outputs = [TensorInfo(slot.name, slot.layout.data_type, slot.layout.sizes) for slot in graph.operation.outputs]
        models.replace_preset(replace(model, outputs=tuple(outputs)))


def output_type(model: Model, tensors: Sequence[InferInput], row: DataType) -> DataType:
    """The type that an output has for the caller: BOOL where DirectML's UINT8 holds what came as BOOL."""
    moved = _has_no_booleans(model) and row is _UINT8 and bool(tensors)
    return _BOOL if moved and all(tensor.data_type is _BOOL for tensor in tensors) else row
