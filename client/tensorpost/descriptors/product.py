"""Products of matrices, of floating-point numbers and of integers with scales and zero points.

Sources: the DML_GEMM, DML_MATRIX_MULTIPLY_INTEGER, DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY and
DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT pages. Parameters of one dimension are one value, or those of B's columns; those of
A's rows, which the pages have too, DirectML refuses.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from ..values.datatypes import TensorDataType
from ..values.problems import Violation
from ..values.sentences import named
from .activation import Activation, WithFusedActivation, fused
from .clip import ElementWiseClipOperatorDesc
from .completion import Given, Output
from .fields import CEnum, Float
from .operator_desc import OperatorDesc
from .plain_operators import ActivationSoftmax1OperatorDesc, ActivationSoftmaxOperatorDesc
from .quantized import Quantized
from .tensor import BufferTensorDesc

__all__ = [
    "GemmOperatorDesc",
    "MatrixMultiplyIntegerOperatorDesc",
    "MatrixMultiplyIntegerToFloatOperatorDesc",
    "MatrixTransform",
    "QuantizedLinearMatrixMultiplyOperatorDesc",
]


class MatrixTransform(enum.IntEnum):
    """`DML_MATRIX_TRANSFORM`: whether a matrix is transposed before it is multiplied."""

    NONE = 0
    TRANSPOSE = 1


Transform = Annotated[MatrixTransform, CEnum("DML_MATRIX_TRANSFORM_")]


MoreIntoGemm = ElementWiseClipOperatorDesc | ActivationSoftmaxOperatorDesc | ActivationSoftmax1OperatorDesc
FusedIntoGemm = Annotated[
    Activation | MoreIntoGemm,
    *fused(ElementWiseClipOperatorDesc, ActivationSoftmaxOperatorDesc, ActivationSoftmax1OperatorDesc),
]
PARAMETERS = ("a_scale_tensor", "a_zero_point_tensor", "b_scale_tensor", "b_zero_point_tensor")


class MatrixProduct(OperatorDesc):
    """Base of products: A is M x K, B is K x N and the output M x N in the last two dimensions.

    Attributes:
        output_type: DataType of an output that is left out; None if it follows from the inputs.
    """

    output_type: ClassVar[TensorDataType | None] = None

    if TYPE_CHECKING:
        a_tensor: BufferTensorDesc
        b_tensor: BufferTensorDesc
        output_tensor: BufferTensorDesc

    @classmethod
    def made_type(cls, given: Given) -> TensorDataType:
        """The DataType of an output that is left out: that of its zero point, if there is one, or of A."""
        zero = given.structure(BufferTensorDesc, "output_zero_point_tensor")
        return cls.output_type or (zero or given.tensor("a_tensor")).data_type

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        a, b = given.tensor("a_tensor").sizes, given.tensor("b_tensor").sizes
        if min(len(a), len(b)) >= 2:
            rows = _matrix(a, _transform(given, "trans_a"))[0]
            columns = _matrix(b, _transform(given, "trans_b"))[1]
            why = "A's rows and B's columns" if len(a) == len(b) else ""
            yield Output("output_tensor", cls.made_type(given), [*a[:-2], rows, columns], why)

    def type_rules(self) -> Iterator[Violation]:
        """Which tensors agree in DataType and DimensionCount."""
        raise NotImplementedError

    def operator_rules(self) -> Iterator[Violation]:
        """Tensors agree in rank and leading sizes; the inner sizes are equal."""
        yield from self.type_rules()
        a, b, rank = self.a_tensor.sizes, self.b_tensor.sizes, len(self.output_tensor.sizes)
        if len(a) != rank or len(b) != rank or rank < 2:
            return
        none = MatrixTransform.NONE
        (_, inner), (other, _) = (
            _matrix(sizes, getattr(self, name, none)) for name, sizes in (("trans_a", a), ("trans_b", b))
        )
        if inner != other:
            message = f"A has {inner} columns and B {other} rows, after " + named("TransA") + " and " + named("TransB")
            message += "; they must be equal"
            yield self.broken("inner-sizes", ("BTensor", "Sizes"), message, list(b), f"{inner} rows")
        yield from self.sizes_are([*a[:-2], *b[-2:]], "A's before the last two", "b_tensor")
        for output in self.output_layouts(Given(vars(self))):
            yield from self.sizes_are(output.sizes, output.why, "c_tensor", "bias_tensor")


class GemmOperatorDesc(MatrixProduct, WithFusedActivation):
    """`DML_OPERATOR_GEMM`: `FusedActivation(Alpha * A' x B' + Beta * C)` on the last two dimensions.

    Attributes:
        a_tensor: M x K matrices, or K x M if `trans_a` is TRANSPOSE; equal leading dimensions in all tensors.
        b_tensor: K x N matrices, or N x K.
        c_tensor: summand of the output's sizes, or absent; broadcast by strides of 0.
        output_tensor: M x N matrices.
        trans_a: NONE or TRANSPOSE.
        trans_b: NONE or TRANSPOSE.
        alpha: factor of the product.
        beta: factor of C.
        fused_activation: applied to the result; absent for none. ACTIVATION_SOFTMAX is along the rows
            of a single matrix.
    """

    a_tensor: BufferTensorDesc
    b_tensor: BufferTensorDesc
    c_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc
    trans_a: Transform = MatrixTransform.NONE
    trans_b: Transform = MatrixTransform.NONE
    alpha: Float = 1.0
    beta: Float = 1.0
    fused_activation: FusedIntoGemm | None = None

    def type_rules(self) -> Iterator[Violation]:
        """All tensors agree in type and rank; a fused softmax is along axes that the output has."""
        yield from self.same_type_and_rank()
        yield from self.fused_rules()
        rank, activation = len(self.output_tensor.sizes), self.fused_activation
        if isinstance(activation, ActivationSoftmax1OperatorDesc) and max(activation.axes) >= rank:
            message, found = f"has axes beyond the {rank} dimensions of the output", list(activation.axes)
            yield self.broken("axis", ("FusedActivation",), message, found, f"axes up to {rank - 1}")
        leading = self.output_tensor.sizes[:-2]
        if isinstance(activation, ActivationSoftmaxOperatorDesc) and math.prod(leading) != 1:
            message = "is along the rows of one matrix; a fused ACTIVATION_SOFTMAX1 says along which axes it is"
            yield self.broken("fused-activation", ("FusedActivation",), message, list(leading), "leading sizes of 1")


class IntegerProduct(MatrixProduct, Quantized):
    """Base of products of integers: a zero point and a scale for all of A or each row, for all of B or each column."""

    def type_rules(self) -> Iterator[Violation]:
        """Tensors agree in rank, and parameters in it among each other; each zero point has its tensor's type."""
        yield from self.same_dimension_count("a_tensor", "b_tensor", "bias_tensor", "output_tensor")
        columns = self.b_tensor.sizes[-1]
        for name, count, axis, each in (("a", self.rows, -2, "row"), ("b", columns, -1, "column")):
            parameters = (f"{name}_scale_tensor", f"{name}_zero_point_tensor")
            yield from self.same_data_type(f"{name}_tensor", parameters[1])
            yield from self.one_value_or(count, axis, each, *parameters)

    @property
    def rows(self) -> int:
        """Rows of A."""
        return self.a_tensor.sizes[-2] if len(self.a_tensor.sizes) > 1 else 1


class MatrixMultiplyIntegerOperatorDesc(IntegerProduct):
    """`DML_OPERATOR_MATRIX_MULTIPLY_INTEGER`: the exact product of 8-bit matrices less their zero points.

    Attributes:
        a_tensor: M x K matrices, INT8 or UINT8; equal leading dimensions in all tensors.
        a_zero_point_tensor: one value or one for each row, of A's DataType; absent for 0.
        b_tensor: K x N matrices, INT8 or UINT8.
        b_zero_point_tensor: one value or one for each column, of B's DataType; absent for 0.
        output_tensor: M x N matrices, INT32; sums wrap.
    """

    output_type = TensorDataType.INT32

    a_tensor: BufferTensorDesc
    a_zero_point_tensor: BufferTensorDesc | None = None
    b_tensor: BufferTensorDesc
    b_zero_point_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc


class QuantizedLinearMatrixMultiplyOperatorDesc(IntegerProduct):
    """`DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY`: the product of quantized matrices, quantized again.

    Attributes:
        a_tensor: M x K matrices, INT8 or UINT8; equal leading dimensions in all tensors.
        a_scale_tensor: one value or one for each row.
        a_zero_point_tensor: zero points, one for each scale, of A's DataType; absent for 0.
        b_tensor: K x N matrices, INT8 or UINT8.
        b_scale_tensor: one value or one for each column.
        b_zero_point_tensor: zero points, one for each scale, of B's DataType; absent for 0.
        output_scale_tensor: one value or one for each row.
        output_zero_point_tensor: zero points, one for each scale, of the output's DataType; absent for 0.
        output_tensor: M x N matrices, INT8 or UINT8.
    """

    a_tensor: BufferTensorDesc
    a_scale_tensor: BufferTensorDesc
    a_zero_point_tensor: BufferTensorDesc | None = None
    b_tensor: BufferTensorDesc
    b_scale_tensor: BufferTensorDesc
    b_zero_point_tensor: BufferTensorDesc | None = None
    output_scale_tensor: BufferTensorDesc
    output_zero_point_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc

    def type_rules(self) -> Iterator[Violation]:
        yield from super().type_rules()
        yield from self.same_data_type("output_zero_point_tensor", "output_tensor")
        parameters = ("output_scale_tensor", "output_zero_point_tensor")
        yield from self.one_value_or(self.rows, -2, "row", *parameters)
        yield from self.same_dimension_count(*PARAMETERS, *parameters)


class MatrixMultiplyIntegerToFloatOperatorDesc(IntegerProduct):
    """`DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT`: the product of quantized matrices as floating-point numbers.

    Attributes:
        a_tensor: M x K matrices of integers of 8 to 32 bits; equal leading dimensions in all tensors.
        a_scale_tensor: one value or one for each row, of the output's DataType.
        a_zero_point_tensor: zero points, one for each scale, of A's DataType; absent for 0.
        b_tensor: K x N matrices, of A's DataType.
        b_scale_tensor: one value or one for each column, of the output's DataType.
        b_zero_point_tensor: zero points, one for each scale, of B's DataType; absent for 0.
        bias_tensor: added to the product, of its sizes and DataType; or absent.
        output_tensor: M x N matrices, FLOAT32 or FLOAT16.
    """

    a_tensor: BufferTensorDesc
    a_scale_tensor: BufferTensorDesc
    a_zero_point_tensor: BufferTensorDesc | None = None
    b_tensor: BufferTensorDesc
    b_scale_tensor: BufferTensorDesc
    b_zero_point_tensor: BufferTensorDesc | None = None
    bias_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc

    @classmethod
    def made_type(cls, given: Given) -> TensorDataType:
        """See `MatrixProduct`: the scales'."""
        return given.tensor("a_scale_tensor").data_type

    def type_rules(self) -> Iterator[Violation]:
        yield from super().type_rules()
        yield from self.same_data_type("a_tensor", "b_tensor")
        yield from self.same_data_type("a_scale_tensor", "b_scale_tensor", "bias_tensor", "output_tensor")
        yield from self.same_dimension_count(*PARAMETERS)


def _transform(given: Given, field: str) -> MatrixTransform:
    return given.member(field, MatrixTransform, "DML_MATRIX_TRANSFORM_", MatrixTransform.NONE)


def _matrix(sizes: Sequence[int], transform: int) -> tuple[int, int]:
    return (sizes[-1], sizes[-2]) if transform else (sizes[-2], sizes[-1])
