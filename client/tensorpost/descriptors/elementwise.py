"""Element-wise operators that compute with numbers; comparisons and bits are in `logic.py`, bounds in `clip.py`.

Sources: the DML_ELEMENT_WISE_*_OPERATOR_DESC pages and DML_CAST_OPERATOR_DESC. What they leave open is tensorpost's
choice, and stands with each formula in the server's `operators/elementwise.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated

from ..values.datatypes import TensorDataType
from ..values.problems import Violation
from .activation import FusedActivation, WithFusedActivation
from .elementwise_base import Binary, ElementWise, ScaleBias, Unary, UnaryWithoutScale
from .feature_levels import FeatureLevel
from .fields import CEnum, Float
from .tensor import BufferTensorDesc

__all__ = [
    "CastOperatorDesc",
    "ElementWiseAbsOperatorDesc",
    "ElementWiseAcosOperatorDesc",
    "ElementWiseAcoshOperatorDesc",
    "ElementWiseAdd1OperatorDesc",
    "ElementWiseAddOperatorDesc",
    "ElementWiseAsinOperatorDesc",
    "ElementWiseAsinhOperatorDesc",
    "ElementWiseAtanOperatorDesc",
    "ElementWiseAtanYxOperatorDesc",
    "ElementWiseAtanhOperatorDesc",
    "ElementWiseCeilOperatorDesc",
    "ElementWiseConstantPowOperatorDesc",
    "ElementWiseCosOperatorDesc",
    "ElementWiseCoshOperatorDesc",
    "ElementWiseDifferenceSquareOperatorDesc",
    "ElementWiseDivideOperatorDesc",
    "ElementWiseErfOperatorDesc",
    "ElementWiseExpOperatorDesc",
    "ElementWiseFloorOperatorDesc",
    "ElementWiseIdentityOperatorDesc",
    "ElementWiseIfOperatorDesc",
    "ElementWiseLogOperatorDesc",
    "ElementWiseMaxOperatorDesc",
    "ElementWiseMeanOperatorDesc",
    "ElementWiseMinOperatorDesc",
    "ElementWiseModulusFloorOperatorDesc",
    "ElementWiseModulusTruncateOperatorDesc",
    "ElementWiseMultiplyOperatorDesc",
    "ElementWiseNegateOperatorDesc",
    "ElementWisePowOperatorDesc",
    "ElementWiseRecipOperatorDesc",
    "ElementWiseRoundOperatorDesc",
    "ElementWiseSignOperatorDesc",
    "ElementWiseSinOperatorDesc",
    "ElementWiseSinhOperatorDesc",
    "ElementWiseSqrtOperatorDesc",
    "ElementWiseSubtractOperatorDesc",
    "ElementWiseTanOperatorDesc",
    "ElementWiseTanhOperatorDesc",
    "RoundingMode",
]


class RoundingMode(enum.IntEnum):
    """`DML_ROUNDING_MODE`: which neighbouring integer a number is rounded to."""

    HALVES_TO_NEAREST_EVEN = 0
    TOWARD_ZERO = 1
    TOWARD_INFINITY = 2


class ElementWiseIdentityOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_IDENTITY`: each element itself; changes the strides of a tensor."""


class ElementWiseAbsOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ABS`: the absolute value of each element."""


class ElementWiseAcosOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ACOS`: the angle of a cosine, 0 to pi; NaN beyond 1."""


class ElementWiseAsinOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ASIN`: the angle of a sine, -pi/2 to pi/2; NaN beyond 1."""


class ElementWiseAtanOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ATAN`: the angle of a tangent, -pi/2 to pi/2."""


class ElementWiseCeilOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_CEIL`: the least whole number that is not below the element."""


class ElementWiseCosOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_COS`: the cosine of an angle in radians."""


class ElementWiseExpOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_EXP`: e to the power of each element."""


class ElementWiseFloorOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_FLOOR`: the largest whole number that is not above the element."""


class ElementWiseLogOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_LOG`: the natural logarithm; -infinity of 0, NaN below."""


class ElementWisePowOperatorDesc(ElementWise):
    """`DML_OPERATOR_ELEMENT_WISE_POW`: each element to the power of the exponent at its place.

    Attributes:
        input_tensor: the bases.
        exponent_tensor: exponents; from level 3_0 on any supported DataType, below it the input's.
        output_tensor: result, of the input's DataType.
        scale_bias: applied to the bases and, as DirectML does, to the exponents.
    """

    other_types = frozenset({"exponent_tensor"})

    input_tensor: BufferTensorDesc
    exponent_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    scale_bias: ScaleBias | None = None

    def level_rules(self, level: FeatureLevel) -> Iterator[Violation]:
        """Below level 3_0 the exponents have the input's DataType."""
        wanted, found = self.input_tensor.data_type.name, self.exponent_tensor.data_type.name
        if level < FeatureLevel.L3_0 and wanted != found:
            message = f"ExponentTensor is {found} and InputTensor {wanted}, which needs feature level 3_0, not {level}"
            yield self.broken("data-types-differ", ("ExponentTensor", "DataType"), message, found, wanted)


class ElementWiseConstantPowOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW`: each element to the power of a constant.

    Attributes:
        exponent: the power; NaN is the result for a negative element, unless it is a whole number.
    """

    exponent: Float


class ElementWiseRecipOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_RECIP`: 1 / x; infinite where x is 0."""


class ElementWiseSinOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_SIN`: the sine of an angle in radians."""


class ElementWiseSqrtOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_SQRT`: the square root of each element; NaN below 0."""


class ElementWiseTanOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_TAN`: the tangent of an angle in radians."""


class ElementWiseErfOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ERF`: the error function."""


class ElementWiseSinhOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_SINH`: the hyperbolic sine."""


class ElementWiseCoshOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_COSH`: the hyperbolic cosine."""


class ElementWiseTanhOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_TANH`: the hyperbolic tangent."""


class ElementWiseAsinhOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ASINH`: the inverse of the hyperbolic sine."""


class ElementWiseAcoshOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ACOSH`: the inverse of the hyperbolic cosine; NaN below 1."""


class ElementWiseAtanhOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ATANH`: the inverse of the hyperbolic tangent; NaN beyond 1."""


class ElementWiseSignOperatorDesc(UnaryWithoutScale):
    """`DML_OPERATOR_ELEMENT_WISE_SIGN`: -1, 0 or 1 as the element is below, at or above 0; 0 for NaN."""


class ElementWiseNegateOperatorDesc(UnaryWithoutScale):
    """`DML_OPERATOR_ELEMENT_WISE_NEGATE`: -x; of the least integer of 8 or 16 bits the largest, of more bits itself."""


class ElementWiseRoundOperatorDesc(UnaryWithoutScale):
    """`DML_OPERATOR_ELEMENT_WISE_ROUND`: each element as a whole number.

    Attributes:
        rounding_mode: halves to the even number, all toward zero, or (TOWARD_INFINITY) halves away from zero.
    """

    rounding_mode: Annotated[RoundingMode, CEnum("DML_ROUNDING_MODE_")]


class ElementWiseAddOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_ADD`: the sum of two tensors; integers wrap."""


class ElementWiseAdd1OperatorDesc(WithFusedActivation, Binary):
    """`DML_OPERATOR_ELEMENT_WISE_ADD1`: the sum of two tensors, to which an activation may be applied.

    Attributes:
        fused_activation: an activation without tensors, computed before the sum is rounded to FLOAT16.
    """

    fused_activation: FusedActivation | None = None


class ElementWiseSubtractOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_SUBTRACT`: A - B; integers wrap."""


class ElementWiseMultiplyOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MULTIPLY`: the product of two tensors; integers wrap."""


class ElementWiseDivideOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_DIVIDE`: A / B; integers are truncated toward zero."""


class ElementWiseMaxOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MAX`: the larger of two elements; NaN if either is NaN."""


class ElementWiseMinOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MIN`: the smaller of two elements; NaN if either is NaN."""


class ElementWiseMeanOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MEAN`: (A + B) / 2; a sum of integers wraps, and is halved toward zero."""


class ElementWiseDifferenceSquareOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_DIFFERENCE_SQUARE`: (A - B) * (A - B); integers wrap."""


class ElementWiseModulusTruncateOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MODULUS_TRUNCATE`: the remainder of A / B with the sign of A; exact."""


class ElementWiseModulusFloorOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MODULUS_FLOOR`: the remainder of A / B with the sign of B."""


class ElementWiseAtanYxOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_ATAN_YX`: the angle of the point (B, A), -pi to pi."""


class ElementWiseIfOperatorDesc(ElementWise):
    """`DML_OPERATOR_ELEMENT_WISE_IF`: the element of A where the condition is not 0, else that of B, bit for bit.

    Attributes:
        condition_tensor: UINT8 tensor; 0 stands for false.
        a_tensor: what is taken where the condition holds.
        b_tensor: what is taken elsewhere.
        output_tensor: result, of A's DataType.
    """

    typed_like = "a_tensor"
    other_types = frozenset({"condition_tensor"})

    condition_tensor: BufferTensorDesc
    a_tensor: BufferTensorDesc
    b_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc

    def operator_rules(self) -> Iterator[Violation]:
        """See `ElementWise`; the condition is UINT8 at every level."""
        yield from super().operator_rules()
        yield from self.data_type_is(TensorDataType.UINT8, "condition_tensor")


class CastOperatorDesc(ElementWise):
    """`DML_OPERATOR_CAST`: converts each element to the output's DataType.

    The page defines no conversion. As DirectML answers: what becomes a floating-point number is rounded to nearest
    even; floating-point numbers become integers toward zero, saturated, NaN becomes 0; integers that become 32 or 64
    bits keep their low bits. Those that become 8 or 16 bits are taken as 32 bits of the output's sign and limited to
    its range: -1 becomes 255 as UINT8 and 65535 as UINT16, 300 becomes 127 as INT8.
    """

    other_types = frozenset({"output_tensor"})

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
