"""Normalization: by given statistics as expressions, by those of the tensor itself along lines.

Choices where the pages are silent: FLOAT16 is computed in float32 and rounded once; the variance is the mean of the
squared deviations, of all elements of a line.

DirectML's answers decide: LP_NORMALIZATION adds Epsilon to the square of the norm, of the sum of absolute values too;
the neighbours of LOCAL_RESPONSE_NORMALIZATION are one more after than before if LocalSize is even, the divisor is
always LocalSize, and what is outside counts as 0; MEAN_VARIANCE_NORMALIZATION2 without the mean takes the mean of the
squares.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost import descriptors as dml

from ..forms import Array, BoxFunction, Lines, Pointwise, cut_by_lines
from ..forms.base import Box, blocks, extents, go_on, whole_box
from ..forms.expression import call
from ..forms.in_blocks import in_blocks, same
from ..forms.pointwise import BLOCK
from .activation import activated
from .elementwise_base import operands, pointwise
from .registry import form_of, form_of_class


@form_of_class(dml.BatchNormalizationOperatorDesc)
def batch_form(desc: dml.BatchNormalizationOperatorDesc) -> Pointwise:
    """`Scale * (x - Mean) / sqrt(Variance + Epsilon) + Bias` (DML_BATCH_NORMALIZATION_OPERATOR_DESC)."""
    x, mean, variance, scale, bias = operands(desc)
    made = (x - mean) / call("sqrt", variance + desc.epsilon) * scale + bias
    return pointwise(desc, activated(desc.fused_activation, made))


@form_of_class(
    dml.MeanVarianceNormalizationOperatorDesc, dml.MeanVarianceNormalization1OperatorDesc,
    dml.MeanVarianceNormalization2OperatorDesc,
)  # fmt: skip
def mean_variance_form(desc: Any) -> Lines | Array:
    """`Scale * (x - Mean) / sqrt(Variance + Epsilon) + Bias` (DML_MEAN_VARIANCE_NORMALIZATION1_OPERATOR_DESC)."""
    use_mean = use_variance = True
    if isinstance(desc, dml.MeanVarianceNormalization2OperatorDesc):
        axes, use_mean, use_variance = {*desc.axes}, desc.use_mean, desc.use_variance
    elif isinstance(desc, dml.MeanVarianceNormalization1OperatorDesc):
        axes, use_variance = {*desc.axes}, desc.normalize_variance
    else:
        axes, use_variance = {1, 2, 3} if desc.cross_channel else {2, 3}, desc.normalize_variance
    activation = desc.fused_activation
    parameters = (
        ("axes", tuple(sorted(axes))),
        ("use_mean", use_mean),
        ("epsilon", desc.epsilon if use_variance else None),
        ("scaled", desc.scale_tensor is not None),
        ("activation", None if activation is None else form_of(activation)),
    )
    sizes, others = desc.input_tensor.sizes, tuple([tensor.sizes for _, tensor in desc.tensors("input")[1:]])
    lines = Lines(_mean_variance, tuple(axes), sizes, (sizes,), (parameters,), 16, 4, others)
    return cut_by_lines(lines, desc.output_tensor.effective_strides, desc.output_tensor.dtype.name)


def _mean_variance(
    xp: ModuleType,
    x: Any,
    out: Any,
    *others: Any,
    axes: tuple[int, ...],
    use_mean: bool,
    epsilon: float | None,
    scaled: bool,
    activation: Pointwise | None,
) -> None:
    made = in_blocks(xp, same, xp.empty_like(x, dtype="float32"), x)
    if use_mean:
        in_blocks(xp, xp.subtract, made, made, xp.mean(made, axis=axes, keepdims=True))
    if epsilon is not None:
        squares = in_blocks(xp, xp.square, xp.empty_like(made), made)
        spread = xp.sqrt(xp.mean(squares, axis=axes, keepdims=True) + made.dtype.type(epsilon))
        in_blocks(xp, xp.divide, made, made, spread)
    if scaled:
        in_blocks(xp, xp.multiply, made, made, others[0])
    if len(others) > scaled:
        in_blocks(xp, xp.add, made, made, others[-1])
    if activation is None:
        in_blocks(xp, same, out, made)
    else:
        activation.fill(xp, [made], whole_box(made.shape), out)


@form_of_class(dml.LpNormalizationOperatorDesc)
def lp_form(desc: dml.LpNormalizationOperatorDesc) -> Lines | Array:
    """`x / sqrt(norm^2 + Epsilon)` (DML_LP_NORMALIZATION_OPERATOR_DESC)."""
    parameters = (("axis", desc.axis), ("epsilon", desc.epsilon), ("squares", desc.p == 2))
    sizes = desc.input_tensor.sizes
    lines = Lines(_divided_by_norm, (desc.axis,), sizes, (sizes,), (parameters,), 8, 2)
    return cut_by_lines(lines, desc.output_tensor.effective_strides, desc.output_tensor.dtype.name)


def _divided_by_norm(xp: ModuleType, x: Any, out: Any, axis: int, epsilon: float, squares: bool) -> None:
    x = x.astype("float32", copy=False)
    powers = in_blocks(xp, xp.square if squares else xp.abs, xp.empty_like(x), x)
    total = xp.sum(powers, axis=axis, keepdims=True)
    in_blocks(xp, xp.divide, out, x, xp.sqrt((total if squares else total * total) + total.dtype.type(epsilon)))


@form_of_class(dml.LocalResponseNormalizationOperatorDesc)
def local_response_form(desc: dml.LocalResponseNormalizationOperatorDesc) -> BoxFunction:
    """`x / (Bias + Alpha / LocalSize * sum)^Beta` (DML_LOCAL_RESPONSE_NORMALIZATION_OPERATOR_DESC)."""
    axes = (1,) if desc.cross_channel else (2, 3)
    return neighbours_form(desc.input_tensor.sizes, axes, desc.local_size, desc.alpha, desc.beta, desc.bias)


def neighbours_form(
    sizes: Sequence[int], axes: Sequence[int], local_size: int, alpha: float, beta: float, bias: float
) -> BoxFunction:
    """`x / (bias + alpha / local_size * sum)^beta`, the sum that of the squares of neighbours along the axes."""
    before = (local_size - 1) // 2
    after = local_size - 1 - before
    steps = tuple(
        [
            range(-min(before, size - 1), min(after, size - 1) + 1) if axis in axes else range(1)
            for axis, size in enumerate(sizes)
        ]
    )
    factors = (("factor", alpha / local_size), ("beta", beta), ("bias", bias))
    work = math.prod(map(len, steps))
    return BoxFunction(_by_neighbours, 1, (("steps", steps), *factors), 2 + work, 1000 * work)


def _by_neighbours(
    xp: ModuleType,
    inputs: Sequence[Any],
    box: Box,
    out: Any,
    steps: tuple[range, ...],
    factor: float,
    beta: float,
    bias: float,
) -> None:
    (x,), begins = inputs, [start for start, _ in box]
    for part in blocks(box, BLOCK) if xp is np else (box,):
        total = xp.zeros(extents(part), "float32")
        for step in itertools.product(*steps):
            go_on()
            spans = [
                (max(low + by, 0), min(high + by, size))
                for (low, high), by, size in zip(part, step, x.shape, strict=True)
            ]
            if all(low < high for low, high in spans):
                near = x[tuple([slice(*span) for span in spans])].astype("float32", copy=False)
                moved = zip(spans, step, part, strict=True)
                total[tuple([slice(low - by - at, high - by - at) for (low, high), by, (at, _) in moved])] += (
                    near * near
                )
        divisor = (total * total.dtype.type(factor) + total.dtype.type(bias)) ** total.dtype.type(beta)
        within = tuple([slice(low - at, high - at) for at, (low, high) in zip(begins, part, strict=True)])
        out[within] = x[tuple([slice(*span) for span in part])].astype("float32", copy=False) / divisor
