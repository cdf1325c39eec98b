"""Training operators, computed in float64 and rounded once.

DirectML's answers decide where the pages are silent or wrong: a variance is that of the whole population; Adam's step 0
has no correction of its bias; the gradient of batch normalization centers the input by the mean that is given; that of
local response normalization sums over the forward operator's regions, also where an even LocalSize has its other
element on the high side, so that it is not quite the derivative there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost import descriptors as dml
from tensorpost.descriptors import OperatorDesc

from ..forms import Array, Pointwise
from ..forms.base import blocks, go_on, whole_box
from ..forms.in_blocks import BLOCK, in_blocks, same
from .product import activation_form, finish
from .registry import form_of_class


def _array(desc: OperatorDesc, function: Any, parameters: Mapping[str, Any], steps: int) -> Array:
    """The form of a function that reads the first input `steps` times and allocates `steps` arrays of its size."""
    elements = math.prod(desc.inputs[0].layout.sizes)
    return Array(function, len(desc.inputs), 4 * steps * elements, tuple(parameters.items()), 8 * steps * elements)


@form_of_class(dml.AdamOptimizerOperatorDesc)
def adam_form(desc: dml.AdamOptimizerOperatorDesc) -> Array:
    """A step of Adam (DML_ADAM_OPTIMIZER_OPERATOR_DESC)."""
    names = ("learning_rate", "beta1", "beta2", "epsilon")
    return _array(desc, _adam, {name: getattr(desc, name) for name in names}, 10)


def _adam(
    xp: ModuleType, *tensors: Any, learning_rate: float, beta1: float, beta2: float, epsilon: float
) -> tuple[Any, ...]:
    *given, step = tensors
    step = step.astype("float64").reshape(())
    rate = learning_rate * xp.where(step == 0, 1, xp.sqrt(1 - beta2**step) / (1 - beta1**step))
    made = tuple([xp.empty(given[0].shape, given[0].dtype) for _ in range(3)])
    for part in blocks(whole_box(given[0].shape), BLOCK if xp is np else max(1, given[0].size)):
        go_on()
        where = tuple([slice(*span) for span in part])
        x, first, second, gradient = [tensor[where].astype("float64") for tensor in given]
        first = (beta1 * first + (1 - beta1) * gradient).astype("float32")
        second = (beta2 * second + (1 - beta2) * gradient * gradient).astype("float32")
        x -= rate * first / (xp.sqrt(second.astype("float64")) + epsilon)
        for target, values in zip(made, (x, first, second), strict=True):
            target[where] = values
    return made


@form_of_class(dml.BatchNormalizationTrainingOperatorDesc)
def normalization_form(desc: dml.BatchNormalizationTrainingOperatorDesc) -> Array:
    """Normalized by mean and variance of the input (DML_BATCH_NORMALIZATION_TRAINING_OPERATOR_DESC)."""
    parameters = {"epsilon": desc.epsilon, "activation": activation_form(desc.fused_activation)}
    return _array(desc, _normalize, parameters, 6)


def _total(xp: ModuleType, x: Any, parameter: Any) -> Any:
    """The sums in float64 along the dimensions in which a parameter has one element."""
    axes = tuple([axis for axis, size in enumerate(parameter.shape) if size == 1])
    return xp.sum(x, axis=axes, keepdims=True, dtype="float64") if axes else x.astype("float64")


def _normalize(
    xp: ModuleType, x: Any, scale: Any, bias: Any, *added: Any, epsilon: float, activation: Pointwise | None
) -> tuple[Any, ...]:
    made, count = xp.empty(x.shape, x.dtype), x.size // scale.size
    mean = _total(xp, x, scale) / count
    centered = in_blocks(xp, xp.subtract, xp.empty(x.shape, "float64"), x, mean)
    result = in_blocks(xp, xp.square, xp.empty_like(centered), centered)
    variance = _total(xp, result, scale) / count
    in_blocks(xp, xp.multiply, result, centered, scale / xp.sqrt(variance + epsilon))
    for summand in (bias, *added):
        in_blocks(xp, xp.add, result, result, summand)
    finish(xp, result, made, activation)
    return made, mean.astype(x.dtype), variance.astype(x.dtype)


@form_of_class(dml.BatchNormalizationGradOperatorDesc, dml.BatchNormalizationTrainingGradOperatorDesc)
def normalization_gradient_form(desc: dml.BatchNormalizationGradient) -> Array:
    """Gradients of input, scale and bias (DML_BATCH_NORMALIZATION_GRAD, DML_BATCH_NORMALIZATION_TRAINING_GRAD)."""
    own = isinstance(desc, dml.BatchNormalizationTrainingGradOperatorDesc)
    return _array(desc, _normalize_gradient, {"epsilon": desc.epsilon, "own": own}, 12)


def _normalize_gradient(
    xp: ModuleType, x: Any, gradient: Any, mean: Any, variance: Any, scale: Any, epsilon: float, own: bool
) -> tuple[Any, ...]:
    """Gradients of input, scale and bias; with `own`, mean and variance depend on the input."""
    dtype, whole = x.dtype, xp.empty(x.shape, "float64")
    gradient = in_blocks(xp, same, xp.empty_like(whole), gradient)
    spread, count = variance.astype("float64") + epsilon, x.size // mean.size
    centered = in_blocks(xp, xp.subtract, xp.empty_like(whole), in_blocks(xp, same, whole, x), mean)
    total, products = _total(xp, gradient, mean), in_blocks(xp, xp.multiply, whole, gradient, centered)
    slope, factor = _total(xp, products, mean), 1 / xp.sqrt(spread)
    if own:
        share = in_blocks(xp, xp.multiply, whole, centered, slope / count / spread)
        in_blocks(xp, xp.subtract, gradient, gradient, total / count)
        in_blocks(xp, xp.subtract, gradient, gradient, share)
    result = in_blocks(xp, xp.multiply, xp.empty(x.shape, dtype), gradient, scale.astype("float64") * factor)
    return result, (slope * factor).astype(dtype), total.astype(dtype)


@form_of_class(dml.LocalResponseNormalizationGradOperatorDesc)
def local_response_gradient_form(desc: dml.LocalResponseNormalizationGradOperatorDesc) -> Array:
    """The derivative of the forward operator (DML_LOCAL_RESPONSE_NORMALIZATION_GRAD_OPERATOR_DESC)."""
    axes = (1,) if desc.cross_channel else (2, 3)
    parameters = {"axes": axes, **{name: getattr(desc, name) for name in ("local_size", "alpha", "beta", "bias")}}
    taps = sum([min(desc.local_size, 2 * desc.input_tensor.sizes[axis]) for axis in axes])
    form = _array(desc, _local_response_gradient, parameters, 8)
    return Array(form.function, form.inputs, form.total_work * taps, form.parameters, form.scratch)


def _local_response_gradient(
    xp: ModuleType,
    x: Any,
    gradient: Any,
    axes: tuple[int, ...],
    local_size: int,
    alpha: float,
    beta: float,
    bias: float,
) -> Any:
    dtype, low, high = x.dtype, (local_size - 1) // 2, local_size // 2
    squares = in_blocks(xp, same, xp.empty(x.shape, "float64"), x)
    in_blocks(xp, xp.square, squares, squares)
    for axis in axes:
        squares = _local_sum(xp, squares, axis, low, high)

    def spread_of(squares: Any) -> Any:
        return bias + alpha / local_size * squares

    def slope(x: Any, gradient: Any, spread: Any) -> Any:
        return gradient.astype("float64") * x.astype("float64") * spread ** (-beta - 1)

    def changed(x: Any, gradient: Any, spread: Any, slopes: Any) -> Any:
        x, gradient = x.astype("float64"), gradient.astype("float64")
        return gradient * spread**-beta - 2 * alpha * beta / local_size * x * slopes

    spread = in_blocks(xp, spread_of, squares, squares)
    slopes = in_blocks(xp, slope, xp.empty(x.shape, "float64"), x, gradient, spread)
    for axis in axes:
        slopes = _local_sum(xp, slopes, axis, low, high)
    return in_blocks(xp, changed, xp.empty(x.shape, dtype), x, gradient, spread, slopes)


def _local_sum(xp: ModuleType, x: Any, axis: int, low: int, high: int) -> Any:
    """The sums of every element, `low` before it and `high` after it along an axis."""
    size, lines = x.shape[axis], xp.moveaxis(x, axis, 0)
    made = xp.zeros(lines.shape, x.dtype)
    for offset in range(-min(low, size - 1), min(high, size - 1) + 1):
        go_on()
        target = made[max(0, -offset) : size - max(0, offset)]
        in_blocks(xp, xp.add, target, target, lines[max(0, offset) : size + min(0, offset)])
    return xp.moveaxis(made, 0, axis)
