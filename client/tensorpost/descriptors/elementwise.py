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
from .plain_operators import plain_operator as __getattr__  # noqa: F401 # rows of this family, by its own path
from .tensor import BufferTensorDesc

__all__ = [
    "CastOperatorDesc",
    "ElementWiseAdd1OperatorDesc",
    "ElementWiseConstantPowOperatorDesc",
    "ElementWiseIfOperatorDesc",
    "ElementWisePowOperatorDesc",
    "ElementWiseRoundOperatorDesc",
    "RoundingMode",
]


class RoundingMode(enum.IntEnum):
    """`DML_ROUNDING_MODE`: which neighbouring integer a number is rounded to."""

    HALVES_TO_NEAREST_EVEN = 0
    TOWARD_ZERO = 1
    TOWARD_INFINITY = 2


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


class ElementWiseRoundOperatorDesc(UnaryWithoutScale):
    """`DML_OPERATOR_ELEMENT_WISE_ROUND`: each element as a whole number.

    Attributes:
        rounding_mode: halves to the even number, all toward zero, or (TOWARD_INFINITY) halves away from zero.
    """

    rounding_mode: Annotated[RoundingMode, CEnum("DML_ROUNDING_MODE_")]


class ElementWiseAdd1OperatorDesc(WithFusedActivation, Binary):
    """`DML_OPERATOR_ELEMENT_WISE_ADD1`: the sum of two tensors, to which an activation may be applied.

    Attributes:
        fused_activation: an activation without tensors, computed before the sum is rounded to FLOAT16.
    """

    fused_activation: FusedActivation | None = None


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
