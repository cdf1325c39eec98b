"""Activations as expressions.

Choices where the pages are silent: NaN passes, except where a comparison decides for 0 (THRESHOLDED_RELU, SHRINK,
RELU_GRAD); exponentials are of numbers up to 0 where they would overflow otherwise; the infinities give
the limits, where the formula as it stands would be NaN. DirectML's answers decide for integers that meet a FLOAT
(SHRINK): they are computed in float32, rounded to nearest even and saturated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorpost import descriptors as dml
from tensorpost.descriptors import Activation

from ..forms import Pointwise
from ..forms.expression import Expression, call, maximum, minimum, operand, where
from .elementwise_base import FORMULAS, binary, pointwise, with_formula
from .registry import form_of_class

_LARGEST = 3.4028234663852886e38  # of FLOAT32


def activated(activation: Activation | None, x: Expression) -> Expression:
    """The activation of an expression; the expression itself if there is none."""
    return x if activation is None else FORMULAS[activation.operator_type](activation, [x])


def _activation(cls: type[Activation], formula: Callable[[Expression, Any], Expression]) -> None:
    """Give an activation its formula of the element and the descriptor."""
    with_formula(cls, lambda desc, x: formula(x[0], desc))


def _expm1(x: Expression) -> Expression:
    return call("expm1", x)


def _finite(x: Expression) -> Expression:
    return minimum(maximum(x, -_LARGEST), _LARGEST)


def sigmoid(x: Expression) -> Expression:
    """`1 / (1 + e^-x)`, with the exponential of a number that is not above 0, which does not overflow."""
    power = call("exp", -abs(x))
    return where(x < 0.0, power, 1.0) / (1.0 + power)


def softplus(x: Expression) -> Expression:
    """`log(1 + e^x)`, with an exponential that does not overflow."""
    return maximum(x, 0.0) + call("log1p", call("exp", -abs(x)))


def hard_sigmoid(x: Expression, alpha: float, beta: float) -> Expression:
    """`alpha * x + beta`, limited to 0 and 1."""
    return maximum(minimum(x * alpha + beta, 1.0), 0.0)


def gelu(x: Expression) -> Expression:
    """`x * (1 + erf(x / sqrt(2))) / 2`; for -infinity its limit, by FLOAT32's lowest number."""
    finite = maximum(x, -_LARGEST)
    return finite * 0.5 * (1.0 + call("erf", finite * 0.7071067811865476))


def _gated(x: Expression, slope: float, gate: Callable[[Expression], Expression]) -> Expression:
    """`x * gate(x)`; the infinity at which the gate closes gives 0 as its limit."""
    finite = maximum(x, -_LARGEST) if slope > 0 else minimum(x, _LARGEST) if slope < 0 else _finite(x)
    return (finite if slope else x) * gate(finite)


def _shrink(x: Expression, d: dml.ActivationShrinkOperatorDesc) -> Expression:
    return where(x > d.threshold, x - d.bias, where(x < -d.threshold, x + d.bias, 0.0))


_activation(dml.ActivationReluOperatorDesc, lambda x, _: maximum(x, 0.0))
_activation(dml.ActivationGeluOperatorDesc, lambda x, _: gelu(x))
_activation(dml.ActivationIdentityOperatorDesc, lambda x, _: x)
_activation(dml.ActivationLinearOperatorDesc, lambda x, d: x * d.alpha + d.beta)
_activation(dml.ActivationLeakyReluOperatorDesc, lambda x, d: where(x >= 0.0, x, x * d.alpha))
_activation(dml.ActivationThresholdedReluOperatorDesc, lambda x, d: where(x > d.alpha, x, 0.0))
_activation(dml.ActivationEluOperatorDesc, lambda x, d: where(x >= 0.0, x, _expm1(x) * d.alpha))
_activation(dml.ActivationCeluOperatorDesc, lambda x, d: maximum(x, 0.0) + minimum(_expm1(x / d.alpha) * d.alpha, 0.0))
_activation(dml.ActivationScaledEluOperatorDesc, lambda x, d: where(x > 0.0, x, _expm1(x) * d.alpha) * d.gamma)
_activation(dml.ActivationHardSigmoidOperatorDesc, lambda x, d: hard_sigmoid(x, d.alpha, d.beta))
_activation(dml.ActivationSigmoidOperatorDesc, lambda x, _: sigmoid(x))
_activation(dml.ActivationSoftplusOperatorDesc, lambda x, d: softplus(x * d.steepness) / d.steepness)
_activation(dml.ActivationParametricSoftplusOperatorDesc, lambda x, d: softplus(x * d.beta) * d.alpha)
_activation(dml.ActivationTanhOperatorDesc, lambda x, _: call("tanh", x))
_activation(dml.ActivationScaledTanhOperatorDesc, lambda x, d: call("tanh", x * d.beta) * d.alpha)
_activation(dml.ActivationSoftsignOperatorDesc, lambda x, _: _finite(x) / (1.0 + abs(_finite(x))))
_activation(
    dml.ActivationSwishOperatorDesc,
    lambda x, d: _gated(x, d.sigmoid_input_scale, lambda y: sigmoid(y * d.sigmoid_input_scale)),
)
_activation(
    dml.ActivationHardSwishOperatorDesc,
    lambda x, d: _gated(x, d.alpha, lambda y: hard_sigmoid(y, d.alpha, d.beta)),
)
binary(dml.ActivationParameterizedReluOperatorDesc, lambda x, slope: where(x >= 0, x, x * slope))
binary(dml.ActivationReluGradOperatorDesc, lambda x, gradient: where(x > 0, gradient, 0))


FORMULAS["ACTIVATION_SHRINK"] = lambda desc, x: _shrink(x[0], desc)


@form_of_class(dml.ActivationShrinkOperatorDesc)
def shrink_form(desc: dml.ActivationShrinkOperatorDesc) -> Pointwise:
    """`x - Bias` above Threshold, `x + Bias` below -Threshold, else 0; alone with FLOATs for integers."""
    if desc.input_tensor.dtype.kind == "f":
        return pointwise(desc, _shrink(operand(0), desc))
    return pointwise(desc, call("rint", _shrink(operand(0), desc)), "float32")
