"""Products by the array library's matrix multiplication: GEMM.

FLOAT16 is multiplied and summed in float32 and rounded once. The order of sums is the library's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tensorpost import descriptors as dml
from tensorpost.descriptors import Activation, MatrixTransform, OperatorDesc

from ..forms import Box, BoxFunction
from ..forms.base import whole_box
from ..forms.float16 import widen
from ..forms.pointwise import Pointwise
from .registry import form_of, form_of_class

__all__ = ["activation_form", "finish", "gemm", "gemm_form", "product_scratch", "wide"]


@form_of_class(dml.GemmOperatorDesc)
def gemm_form(desc: dml.GemmOperatorDesc) -> BoxFunction:
    """`FusedActivation(Alpha * A' x B' + Beta * C)` (DML_GEMM_OPERATOR_DESC); without C, Beta has no effect."""
    inner = desc.a_tensor.sizes[-2 if desc.trans_a is MatrixTransform.TRANSPOSE else -1]
    parameters = (
        ("transposed", (desc.trans_a is MatrixTransform.TRANSPOSE, desc.trans_b is MatrixTransform.TRANSPOSE)),
        ("alpha", desc.alpha),
        ("beta", desc.beta),
        ("activation", activation_form(desc.fused_activation)),
    )
    return BoxFunction(gemm, len(desc.inputs), parameters, 2 * inner, scratch=product_scratch(desc))


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
    made = xp.matmul(wide(xp, left), wide(xp, right))
    made *= made.dtype.type(alpha)
    if len(inputs) > 2:
        made += wide(xp, inputs[2][(*leading, rows, columns)]) * made.dtype.type(beta)
    finish(xp, made, out, activation)


def wide(xp: ModuleType, x: Any) -> Any:
    """The array in the type that it is multiplied in."""
    return widen(xp, x) if x.dtype.name == "float16" else x


def activation_form(desc: Activation | None) -> Pointwise | None:
    """The form of a fused activation; None for none."""
    if desc is None:
        return None
    form = form_of(desc)
    assert isinstance(form, Pointwise)
    return form


def finish(xp: ModuleType, made: Any, out: Any, activation: Pointwise | None) -> None:
    """Write sums, rounded once, after an activation if there is one."""
    if activation is None:
        out[...] = made
    else:
        activation.fill(xp, [made], whole_box(made.shape), out)
