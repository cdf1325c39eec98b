"""Activations, most of which may also be fused into a product, a convolution or a sum.

Sources: the DML_ACTIVATION_*_OPERATOR_DESC pages, and "Using fused operators for improved performance". What they leave
open is tensorpost's choice, and stands with each formula in the server's `operators/activation.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from ..values.problems import InvalidDescriptor, Violation
from ..values.sentences import named
from .base import json_object
from .elementwise_base import ElementWise, UnaryWithoutScale
from .families import find_operator, operator_types
from .feature_levels import FeatureLevel
from .fields import Float
from .operator_desc import OperatorDesc
from .plain_operators import plain_operator as __getattr__  # noqa: F401 # rows of this family, by its own path
from .tensor import BufferTensorDesc

__all__ = [
    "Activation",
    "ActivationCeluOperatorDesc",
    "ActivationEluOperatorDesc",
    "ActivationHardSigmoidOperatorDesc",
    "ActivationHardSwishOperatorDesc",
    "ActivationLeakyReluOperatorDesc",
    "ActivationLinearOperatorDesc",
    "ActivationParameterizedReluOperatorDesc",
    "ActivationParametricSoftplusOperatorDesc",
    "ActivationScaledEluOperatorDesc",
    "ActivationScaledTanhOperatorDesc",
    "ActivationShrinkOperatorDesc",
    "ActivationSoftplusOperatorDesc",
    "ActivationSwishOperatorDesc",
    "ActivationThresholdedReluOperatorDesc",
    "FusedActivation",
    "WithFusedActivation",
    "newer_activations",
]

_PLACEHOLDER: Mapping[str, Any] = {"DataType": "FLOAT32", "Sizes": [1, 1, 1, 1]}


_FUSED_SINCE = {
    "ELEMENT_WISE_CLIP": FeatureLevel.L6_0, "ACTIVATION_SOFTMAX": FeatureLevel.L6_1,
    "ACTIVATION_SOFTMAX1": FeatureLevel.L6_1,
}  # fmt: skip
"""Operators that may be fused only from a later level than their own ("DirectML feature level history")."""


class Activation(UnaryWithoutScale):
    """Base of activations of one input.

    Attributes:
        fusable: whether other operators may apply it to their results ("Using fused operators" lists which).
    """

    fusable: ClassVar[bool] = True


class WithFusedActivation(OperatorDesc):
    """Base of operators that an activation may be fused into; such a call is as new as the activation."""

    if TYPE_CHECKING:
        fused_activation: OperatorDesc | None  # stands last in each struct

    def level_rules(self, level: FeatureLevel) -> Iterator[Violation]:
        yield from newer_activations(self, self.fused_activation, level, "FusedActivation")

    def fused_rules(self) -> Iterator[Violation]:
        """A fused activation has no ScaleBias, which DirectML refuses."""
        scale_bias = getattr(self.fused_activation, "scale_bias", None)
        if scale_bias is not None and (scale_bias.scale, scale_bias.bias) != (1, 0):
            message, found = "a fused operator has no ScaleBias", scale_bias.model_dump(by_alias=True)
            yield self.broken("fused-activation", ("FusedActivation", "ScaleBias"), message, found, "no ScaleBias")


def newer_activations(
    desc: OperatorDesc, fused: OperatorDesc | None, level: FeatureLevel, *path: str | int
) -> Iterator[Violation]:
    """An activation fused into an operator, at this path, must not be newer than the level."""
    if fused is None:
        return
    since = max(fused.facts.since, _FUSED_SINCE.get(fused.operator_type, fused.facts.since))
    if level < since:
        message = f"a fused {fused.operator_type} needs feature level {since}, not {level}"
        expected = f"{since} or above"
        yield desc.broken("activation-newer-than-level", path, message, fused.name, expected)


class ActivationEluOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_ELU`: x from 0 on, `Alpha * (e^x - 1)` below.

    Attributes:
        alpha: factor; usually 1.
    """

    alpha: Float


class ActivationCeluOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_CELU`: `max(0, x) + min(0, Alpha * (e^(x / Alpha) - 1))`.

    Attributes:
        alpha: usually 1; 0 divides by 0.
    """

    alpha: Float


class ActivationScaledEluOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_SCALED_ELU`: `Gamma * x` above 0, else `Gamma * Alpha * (e^x - 1)`.

    Attributes:
        alpha: factor below 0; usually 1.6732.
        gamma: factor of every element; usually 1.0507.
    """

    alpha: Float
    gamma: Float


class ActivationHardSigmoidOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_HARD_SIGMOID`: `max(0, min(Alpha * x + Beta, 1))`.

    Attributes:
        alpha: slope; usually 0.2.
        beta: usually 0.5.
    """

    alpha: Float
    beta: Float


class ActivationLeakyReluOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_LEAKY_RELU`: x from 0 on, `Alpha * x` below.

    Attributes:
        alpha: usually 0.01.
    """

    alpha: Float


class ActivationLinearOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_LINEAR`: `Alpha * x + Beta`.

    Attributes:
        alpha: factor of x.
        beta: what is added to the product.
    """

    alpha: Float
    beta: Float


class ActivationParametricSoftplusOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_PARAMETRIC_SOFTPLUS`: `Alpha * ln(1 + e^(Beta * x))`.

    Attributes:
        alpha: factor of the logarithm.
        beta: factor of the exponent.
    """

    alpha: Float
    beta: Float


class ActivationScaledTanhOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_SCALED_TANH`: `Alpha * tanh(Beta * x)`.

    Attributes:
        alpha: factor of the result; usually 1.
        beta: factor of x; usually 0.5.
    """

    alpha: Float
    beta: Float


class ActivationSoftplusOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_SOFTPLUS`: `ln(1 + e^(Steepness * x)) / Steepness`.

    Attributes:
        steepness: 1 or above, below level 6_4.
    """

    steepness: Float

    def level_rules(self, level: FeatureLevel) -> Iterator[Violation]:
        """A steepness below 1 is newer than the operator."""
        if self.steepness < 1 and level < FeatureLevel.L6_4:
            message = named("Steepness") + f" below 1 needs feature level 6_4, not {level}"
            yield self.broken("steepness", ("Steepness",), message, self.steepness, "1 or above, or level 6_4")


class ActivationThresholdedReluOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_THRESHOLDED_RELU`: x above Alpha, else 0.

    Attributes:
        alpha: the threshold; usually 1.
    """

    alpha: Float


class ActivationShrinkOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_SHRINK`: `x - Bias` above Threshold, `x + Bias` below -Threshold, else 0.

    Attributes:
        bias: usually 0; integers are computed in float32, rounded to nearest even and saturated.
        threshold: usually 0.5.
    """

    bias: Float
    threshold: Float


class ActivationSwishOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_SWISH`: `x * sigmoid(SigmoidInputScale * x)`.

    Attributes:
        sigmoid_input_scale: factor of x inside the sigmoid; usually 1.
    """

    fusable = False

    sigmoid_input_scale: Float


class ActivationHardSwishOperatorDesc(Activation):
    """`DML_OPERATOR_ACTIVATION_HARD_SWISH`: `x * max(0, min(Alpha * x + Beta, 1))`.

    Attributes:
        alpha: slope; usually 1/6.
        beta: usually 0.5.
    """

    fusable = False

    alpha: Float
    beta: Float


class ActivationParameterizedReluOperatorDesc(ElementWise):
    """`DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU`: x from 0 on, `Slope * x` below; integers wrap.

    Attributes:
        input_tensor: tensor to read.
        slope_tensor: a factor for each element; one for a channel is broadcast by strides of 0.
        output_tensor: result, of the same DataType and sizes.
    """

    input_tensor: BufferTensorDesc
    slope_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc


@cache
def _fusable(more: tuple[type[OperatorDesc], ...]) -> Mapping[str, type[OperatorDesc]]:
    """Activations that can be fused everywhere, by number, and some more."""
    named = [find_operator(kind) for kind in operator_types() if kind.startswith("ACTIVATION_")]
    plain = [cls for cls in named if cls is not None and issubclass(cls, Activation) and cls.fusable]
    return {cls.operator_type: cls for cls in (*plain, *more)}


def _read_fused(more: tuple[type[OperatorDesc], ...], value: object) -> object:
    """An activation without tensors: `{"type": "ACTIVATION_RELU", "desc": {...}}`, or its descriptor."""
    if value is None:
        return value
    if isinstance(value, (Activation, *more)):
        value = _write_fused(value)  # its own tensors have no meaning here, so descriptors must not differ in them
    expected = {"expected": "an object with type and desc; the types are " + ", ".join(_fusable(more))}
    if not isinstance(value, Mapping):
        raise PydanticCustomError("not-an-object", "must be an object", expected)
    sent = cast("Mapping[object, Any]", value)
    members = {str(key).lower(): member for key, member in sent.items()}
    kind, desc = members.get("type"), members.get("desc", {})
    cls = _fusable(more).get(kind.removeprefix("DML_OPERATOR_")) if isinstance(kind, str) else None
    if cls is None or json_object(desc) is None or members.keys() - {"type", "desc"} or len(members) < len(sent):
        raise PydanticCustomError("fused-activation", "must name an activation that can be fused", expected)
    fields = {name: item for name, item in cast("Mapping[str, Any]", desc).items() if item is not None}
    given = [name for name in ("InputTensor", "OutputTensor", "input_tensor", "output_tensor") if name in fields]
    if given:
        message = "must have no tensors of its own; it uses those of the operator that it is fused into"
        raise PydanticCustomError("fused-activation", message, {"expected": f"no {given[0]}"})
    try:
        return cls.completed({**fields, "InputTensor": _PLACEHOLDER})
    except InvalidDescriptor as error:
        context = {**expected, "detail": error.detail}
        raise PydanticCustomError("fused-activation", "cannot be read: {detail}", context) from None


def _write_fused(activation: OperatorDesc) -> dict[str, Any]:
    desc = {name: value for name, value in activation.to_json().items() if not name.endswith("Tensor")}
    return {"Type": f"DML_OPERATOR_{activation.operator_type}", "Desc": desc}


def fused(*more: type[OperatorDesc]) -> tuple[BeforeValidator, PlainSerializer, WithJsonSchema]:
    """How a field reads and writes an activation that is fused: any that can be everywhere, and some more."""
    reads = BeforeValidator(partial(_read_fused, more))
    return reads, PlainSerializer(_write_fused), WithJsonSchema({"type": "object"})


FusedActivation = Annotated[Activation, *fused()]
"""A `DML_OPERATOR_DESC` whose tensors are null; its own tensors are placeholders here."""
