"""Activations: element-wise functions that may also be fused into a product or a convolution.

Sources: the DML_ACTIVATION_*_OPERATOR_DESC pages, and "Using fused operators for improved performance".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from ..problems import InvalidDescriptor
from .base import json_object
from .elementwise import ElementWise
from .operator_desc import OPERATORS
from .tensor import BufferTensorDesc

__all__ = ["Activation", "ActivationGeluOperatorDesc", "ActivationReluOperatorDesc", "FusedActivation"]

_PLACEHOLDER: Mapping[str, Any] = {"DataType": "FLOAT32", "Sizes": [1, 1, 1, 1]}


class Activation(ElementWise):
    """Base of activations of one input."""

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc


class ActivationReluOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_RELU`: `max(0, x)`; NaN stays NaN."""

    operator_type = "ACTIVATION_RELU"


class ActivationGeluOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_GELU`: `0.5 * x * (1 + erf(x / sqrt(2)))`; -infinity becomes -0, as its limit."""

    operator_type = "ACTIVATION_GELU"


def _read_fused(value: object) -> object:
    """An activation without tensors: `{"type": "ACTIVATION_RELU", "desc": {...}}`, or its descriptor."""
    if value is None:
        return value
    if isinstance(value, Activation):
        value = _write_fused(value)  # its own tensors have no meaning here, so descriptors must not differ in them
    activations = {cls.operator_type: cls for cls in OPERATORS if issubclass(cls, Activation)}
    expected = {"expected": "an object with type and desc; the types are " + ", ".join(activations)}
    if not isinstance(value, Mapping):
        raise PydanticCustomError("not-an-object", "must be an object", expected)
    sent = cast("Mapping[object, Any]", value)
    members = {str(key).lower(): member for key, member in sent.items()}
    kind, desc = members.get("type"), members.get("desc", {})
    cls = activations.get(kind.removeprefix("DML_OPERATOR_")) if isinstance(kind, str) else None
    if cls is None or json_object(desc) is None or members.keys() - {"type", "desc"} or len(members) < len(sent):
        raise PydanticCustomError("fused-activation", "must name an activation that can be fused", expected)
    fields = {name: item for name, item in cast("Mapping[str, Any]", desc).items() if item is not None}
    given = [name for name in ("InputTensor", "OutputTensor", "input_tensor", "output_tensor") if name in fields]
    if given:
        message = "must have no tensors of its own, which are those of the operator that it is fused into"
        raise PydanticCustomError("fused-activation", message, {"expected": f"no {given[0]}"})
    try:
        return cls.completed({**fields, "InputTensor": _PLACEHOLDER})
    except InvalidDescriptor as error:
        context = {**expected, "detail": error.detail}
        raise PydanticCustomError("fused-activation", "cannot be read: {detail}", context) from None


def _write_fused(activation: Activation) -> dict[str, Any]:
    desc = {name: value for name, value in activation.to_json().items() if not name.endswith("Tensor")}
    return {"Type": f"DML_OPERATOR_{activation.operator_type}", "Desc": desc}


FusedActivation = Annotated[
    Activation, BeforeValidator(_read_fused), PlainSerializer(_write_fused), WithJsonSchema({"type": "object"})
]
"""A `DML_OPERATOR_DESC` whose tensors are null; its own tensors are placeholders here."""
