"""Products of matrices: GEMM. Source: the DML_GEMM page."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Annotated

from ..problems import Violation
from .activation import FusedActivation, WithFusedActivation
from .fields import CEnum, Float
from .operator_desc import Given, Inferred, packed
from .tensor import BufferTensorDesc

__all__ = [
    "GemmOperatorDesc",
    "MatrixTransform",
]


class MatrixTransform(enum.IntEnum):
    """`DML_MATRIX_TRANSFORM`."""

    NONE = 0
    TRANSPOSE = 1


Transform = Annotated[MatrixTransform, CEnum("DML_MATRIX_TRANSFORM_")]


class GemmOperatorDesc(WithFusedActivation):
    """`DML_OPERATOR_GEMM`: `FusedActivation(Alpha * A' x B' + Beta * C)` on the last two dimensions.

    Attributes:
        a_tensor: M x K matrices, or K x M if `trans_a` is TRANSPOSE; equal leading dimensions in all tensors.
        b_tensor: K x N matrices, or N x K.
        c_tensor: of the output's sizes, or absent; broadcast by strides of 0.
        output_tensor: M x N matrices.
        trans_a: NONE or TRANSPOSE.
        trans_b: NONE or TRANSPOSE.
        alpha: factor of the product.
        beta: factor of C.
        fused_activation: applied to the result; absent for none.
    """

    operator_type = "GEMM"

    a_tensor: BufferTensorDesc
    b_tensor: BufferTensorDesc
    c_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc
    trans_a: Transform = MatrixTransform.NONE
    trans_b: Transform = MatrixTransform.NONE
    alpha: Float = 1.0
    beta: Float = 1.0
    fused_activation: FusedActivation | None = None

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """See `OperatorDesc.inferred`: the output."""
        a, b = given.tensor("a_tensor"), given.tensor("b_tensor")
        if min(len(a.sizes), len(b.sizes)) >= 2:
            rows = _matrix(a.sizes, _transform(given, "trans_a"))[0]
            columns = _matrix(b.sizes, _transform(given, "trans_b"))[1]
            yield "output_tensor", packed(a.data_type, [*a.sizes[:-2], rows, columns])

    def operator_rules(self) -> Iterator[Violation]:
        """All tensors agree in type, rank and leading sizes; the inner sizes are equal."""
        yield from self.same_type_and_rank()
        a, b, rank = self.a_tensor.sizes, self.b_tensor.sizes, len(self.output_tensor.sizes)
        if len(a) != rank or len(b) != rank or rank < 2:
            return
        (rows, inner), (other, columns) = _matrix(a, self.trans_a), _matrix(b, self.trans_b)
        if inner != other:
            message = f"A has {inner} columns and B {other} rows, after TransA and TransB; they must be equal"
            yield self.broken("inner-sizes", ("BTensor", "Sizes"), message, list(b), f"{inner} rows")
        yield from self.sizes_are([*a[:-2], *b[-2:]], "A's before the last two", "b_tensor")
        wanted = [*a[:-2], rows, columns]
        yield from self.sizes_are(wanted, "A's rows and B's columns", "output_tensor", "c_tensor")


def _transform(given: Given, field: str) -> MatrixTransform:
    return given.member(field, MatrixTransform, "DML_MATRIX_TRANSFORM_", MatrixTransform.NONE)


def _matrix(sizes: Sequence[int], transform: int) -> tuple[int, int]:
    return (sizes[-1], sizes[-2]) if transform else (sizes[-2], sizes[-1])
