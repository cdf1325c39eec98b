"""Products of matrices by the array library's matrix multiplication.

FLOAT16 is multiplied and summed in float32 and rounded once. The order of these sums is the library's. Integers are
summed exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost import descriptors as dml
from tensorpost.descriptors import MatrixTransform, OperatorDesc

from ..forms import Array, Box, BoxFunction, Lines
from ..forms.base import blocks, go_on, whole_box
from ..forms.float16 import wide
from ..forms.pointwise import Pointwise
from .quantized import along, by_name, centered, names_of, quantize, wrapped
from .registry import form_of, form_of_class
from .softmax import softmax_lines


@form_of_class(dml.GemmOperatorDesc)
def gemm_form(desc: dml.GemmOperatorDesc) -> BoxFunction | Array:
    """`FusedActivation(Alpha * A' x B' + Beta * C)` (DML_GEMM_OPERATOR_DESC); without C, Beta has no effect.

    A fused softmax needs whole lines, so that everything is computed together.
    """
    inner = desc.a_tensor.sizes[-2 if desc.trans_a is MatrixTransform.TRANSPOSE else -1]
    product = (
        ("transposed", (desc.trans_a is MatrixTransform.TRANSPOSE, desc.trans_b is MatrixTransform.TRANSPOSE)),
        ("alpha", desc.alpha),
        ("beta", desc.beta),
    )
    sizes, scratch, fused = desc.output_tensor.sizes, product_scratch(desc), desc.fused_activation
    if not isinstance(fused, (dml.ActivationSoftmaxOperatorDesc, dml.ActivationSoftmax1OperatorDesc)):
        parameters = (*product, ("activation", activation_form(fused)))
        least = least_slice_work(sizes, inner)
        return BoxFunction(gemm, len(desc.inputs), parameters, 2 * inner, scratch=scratch, least_slice_work=least)
    axes = tuple(sorted(set(getattr(fused, "axes", (len(sizes) - 1,)))))
    lines = softmax_lines(sizes, axes, logarithm=False)
    scratch += lines.scratch_bytes(whole_box(sizes))
    work = (2 * inner + 4) * math.prod(sizes)
    return Array(_gemm_lines, len(desc.inputs), work, (("lines", lines), *product), scratch)


AT_ONCE = 1 << 28  # products that are added up at a time
LEAST_ROWS = 128  # of a slice: the library copies all of B for each


def least_slice_work(sizes: Sequence[int], inner: int) -> int:
    """The least work of a slice of matrices of these sizes, each element the sum of so many products."""
    return 2 * inner * sizes[-1] * LEAST_ROWS


def _gemm_lines(xp: ModuleType, *inputs: Any, lines: Lines, **product: Any) -> Any:
    whole, out = whole_box(lines.sizes), xp.empty(lines.sizes, inputs[0].dtype)
    made = xp.empty(lines.sizes, "float32")
    inner = inputs[0].shape[-2 if product["transposed"][0] else -1]
    inputs = tuple([wide(xp, x) for x in inputs])  # once for all blocks
    for part in blocks(whole, max(1, AT_ONCE // max(1, inner))) if xp is np else (whole,):
        go_on()
        gemm(xp, inputs, part, made[tuple([slice(*span) for span in part])], activation=None, **product)
    lines.fill(xp, [made], whole, out)
    return out


def product_scratch(desc: OperatorDesc, item: int = 4) -> int:
    """Bytes of operands in the type that they are multiplied in, as libraries copy them, the sums and a summand."""
    elements = [math.prod(slot.layout.sizes) for slot in (*desc.inputs, *desc.outputs)]
    return item * (sum(elements) + elements[-1])


def gemm(
    xp: ModuleType,
    inputs: Sequence[Any],
    box: Box,
    out: Any,
    transposed: tuple[bool, bool],
    alpha: float,
    beta: float,
    activation: Pointwise | None,
) -> None:
    """Fill a box of `activation(alpha * A x B + beta * C)`."""
    a, b = [xp.swapaxes(x, -1, -2) if turned else x for x, turned in zip(inputs[:2], transposed, strict=True)]
    *leading, rows, columns = [slice(*span) for span in box]
    left, right = a[(*leading, rows, slice(None))], b[(*leading, slice(None), columns)]
    made = _multiply(xp, wide(xp, left), wide(xp, right), sums_of(xp, out, activation))
    if alpha != 1:
        made *= made.dtype.type(alpha)
    if len(inputs) > 2:
        made += wide(xp, inputs[2][(*leading, rows, columns)]) * made.dtype.type(beta)
    finish(xp, made, out, activation)


def _multiply(xp: ModuleType, left: Any, right: Any, out: Any) -> Any:
    width = max(64, AT_ONCE // max(1, left.size))
    if xp is not np or out.shape[-1] <= width:
        return xp.matmul(left, right, out=out)
    for start in range(0, out.shape[-1], width):
        go_on()
        columns = (..., slice(start, start + width))
        np.matmul(left, right[columns], out=out[columns])
    return out


def activation_form(desc: OperatorDesc | None) -> Pointwise | None:
    """The form of a fused activation; None for none."""
    if desc is None:
        return None
    form = form_of(desc)
    assert isinstance(form, Pointwise)
    return form


def sums_of(xp: ModuleType, out: Any, activation: Pointwise | None) -> Any:
    """An array for the sums of an output, which `finish` writes to it: the output itself where nothing follows."""
    if activation is None and out.dtype.name != "float16" and out.flags.c_contiguous:
        return out
    return xp.empty(out.shape, "float32" if out.dtype.name == "float16" else out.dtype)


def finish(xp: ModuleType, made: Any, out: Any, activation: Pointwise | None) -> None:
    """Write sums, rounded once, after an activation if there is one."""
    if activation is None:
        if made is not out:
            out[...] = made
    else:
        activation.fill(xp, [made], whole_box(made.shape), out)


# ---- integers --------------------------------------------------------------------------------------------------------


def _integer_form(desc: OperatorDesc, function: Any, scratch: int) -> BoxFunction:
    inner = desc.inputs[0].layout.sizes[-1]
    least = least_slice_work(desc.outputs[0].layout.sizes, inner)
    return BoxFunction(function, len(desc.inputs), names_of(desc), 2 * inner, scratch=scratch, least_slice_work=least)


@form_of_class(dml.MatrixMultiplyIntegerOperatorDesc)
def integer_form(desc: dml.MatrixMultiplyIntegerOperatorDesc) -> BoxFunction:
    """`(A - zero) x (B - zero)`, modulo 2^32."""
    return _integer_form(desc, _multiply_integers, product_scratch(desc, 8))


@form_of_class(dml.QuantizedLinearMatrixMultiplyOperatorDesc)
def quantized_form(desc: dml.QuantizedLinearMatrixMultiplyOperatorDesc) -> BoxFunction:
    """`(A - zero) x (B - zero) * scale of the row * scale of the column`, quantized."""
    return _integer_form(desc, _multiply_quantized, product_scratch(desc, 8))


@form_of_class(dml.MatrixMultiplyIntegerToFloatOperatorDesc)
def integer_to_float_form(desc: dml.MatrixMultiplyIntegerToFloatOperatorDesc) -> BoxFunction:
    """`(A - zero) x (B - zero) * scale of the row * scale of the column + Bias`, rounded once."""
    return _integer_form(desc, _multiply_to_float, product_scratch(desc, 32 if desc.a_tensor.item_size == 4 else 8))


def _sums(xp: ModuleType, named: Mapping[str, Any], box: Box) -> Any:
    """The exact product of integers less their zero points, as float64."""
    *leading, rows, columns = box
    head = tuple([slice(*span) for span in leading])
    rank = len(box)
    a = centered(named["a"][(*head, slice(*rows))], along(xp, named.get("a_zero_point"), rank, rank - 2, rows, 0))
    b = centered(
        named["b"][(*head, slice(None), slice(*columns))],
        along(xp, named.get("b_zero_point"), rank, rank - 1, columns, 0),
    )
    if named["a"].dtype.itemsize < 4:
        return xp.matmul(a, b)
    # Products of 33 bits each do not fit float64; those of their halves do, up to 2^18 of them.
    (a_high, a_low), (b_high, b_low) = ((high := xp.floor(x / 65536), x - high * 65536) for x in (a, b))
    middle = xp.matmul(a_high, b_low) + xp.matmul(a_low, b_high)
    return xp.matmul(a_high, b_high) * 2.0**32 + middle * 65536.0 + xp.matmul(a_low, b_low)


def _scaled(xp: ModuleType, named: Mapping[str, Any], box: Box) -> Any:
    """The product of the real numbers, as float64."""
    made, rank = _sums(xp, named, box), len(box)
    made *= along(xp, named["a_scale"], rank, rank - 2, box[-2], 1)
    made *= along(xp, named["b_scale"], rank, rank - 1, box[-1], 1)
    return made


def _multiply_integers(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, names: tuple[str, ...]) -> None:
    wrapped(_sums(xp, by_name(names, inputs), box), out)


def _multiply_quantized(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, names: tuple[str, ...]) -> None:
    named, rank = by_name(names, inputs), len(box)
    scale = along(xp, named["output_scale"], rank, rank - 2, box[-2], 1)
    zero = along(xp, named.get("output_zero_point"), rank, rank - 2, box[-2], 0)
    quantize(xp, _scaled(xp, named, box), scale, zero, out)


def _multiply_to_float(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, names: tuple[str, ...]) -> None:
    named = by_name(names, inputs)
    made = _scaled(xp, named, box)
    if "bias" in named:
        made += named["bias"][tuple([slice(*span) for span in box])]
    out[...] = made
