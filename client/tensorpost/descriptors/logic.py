"""Comparisons, logical and bit operations, element by element.

Sources: the DML_ELEMENT_WISE_LOGICAL_*, BIT_*, IS_NAN and IS_INFINITY pages. An output of truth values that is left out
is UINT8. What the pages leave open stands with each formula in the server's `operators/logic.py`.
"""

from __future__ import annotations

import enum
from typing import Annotated

from ..values.datatypes import TensorDataType
from .elementwise_base import Binary, UnaryWithoutScale
from .fields import CEnum

__all__ = [
    "Comparison",
    "ElementWiseBitAndOperatorDesc",
    "ElementWiseBitCountOperatorDesc",
    "ElementWiseBitNotOperatorDesc",
    "ElementWiseBitOrOperatorDesc",
    "ElementWiseBitShiftLeftOperatorDesc",
    "ElementWiseBitShiftRightOperatorDesc",
    "ElementWiseBitXorOperatorDesc",
    "ElementWiseIsInfinityOperatorDesc",
    "ElementWiseIsNanOperatorDesc",
    "ElementWiseLogicalAndOperatorDesc",
    "ElementWiseLogicalEqualsOperatorDesc",
    "ElementWiseLogicalGreaterThanOperatorDesc",
    "ElementWiseLogicalGreaterThanOrEqualOperatorDesc",
    "ElementWiseLogicalLessThanOperatorDesc",
    "ElementWiseLogicalLessThanOrEqualOperatorDesc",
    "ElementWiseLogicalNotOperatorDesc",
    "ElementWiseLogicalOrOperatorDesc",
    "ElementWiseLogicalXorOperatorDesc",
    "InfinityMode",
    "Predicate",
]


class InfinityMode(enum.IntEnum):
    """`DML_IS_INFINITY_MODE`: which infinities count."""

    EITHER = 0
    POSITIVE = 1
    NEGATIVE = 2


class Comparison(Binary):
    """Base of operators that compare two tensors: 1 where it is so, else 0; NaN compares as unequal to everything."""

    other_types = frozenset({"output_tensor"})
    output_type = TensorDataType.UINT8


class ElementWiseLogicalEqualsOperatorDesc(Comparison):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_EQUALS`: whether A is equal to B, as 1 or 0."""


class ElementWiseLogicalGreaterThanOperatorDesc(Comparison):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_GREATER_THAN`: whether A is above B, as 1 or 0."""


class ElementWiseLogicalLessThanOperatorDesc(Comparison):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_LESS_THAN`: whether A is below B, as 1 or 0."""


class ElementWiseLogicalGreaterThanOrEqualOperatorDesc(Comparison):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL`: whether A is not below B, as 1 or 0."""


class ElementWiseLogicalLessThanOrEqualOperatorDesc(Comparison):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL`: whether A is not above B, as 1 or 0."""


class ElementWiseLogicalAndOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_AND`: 1 where neither element is 0, else 0."""


class ElementWiseLogicalOrOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_OR`: 1 where one of the elements is not 0, else 0."""


class ElementWiseLogicalXorOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_XOR`: 1 where exactly one of the elements is 0, else 0."""


class ElementWiseLogicalNotOperatorDesc(UnaryWithoutScale):
    """`DML_OPERATOR_ELEMENT_WISE_LOGICAL_NOT`: 1 where the element is 0, else 0."""


class Predicate(UnaryWithoutScale):
    """Base of operators that say something of each element: an output of a type of its own."""

    other_types = frozenset({"output_tensor"})
    output_type = TensorDataType.UINT8


class ElementWiseIsNanOperatorDesc(Predicate):
    """`DML_OPERATOR_ELEMENT_WISE_IS_NAN`: 1 where the element is a NaN, else 0."""


class ElementWiseIsInfinityOperatorDesc(Predicate):
    """`DML_OPERATOR_ELEMENT_WISE_IS_INFINITY`: 1 where the element is infinite, else 0.

    Attributes:
        infinity_mode: which infinities count.
    """

    infinity_mode: Annotated[InfinityMode, CEnum("DML_IS_INFINITY_MODE_")]


class ElementWiseBitCountOperatorDesc(Predicate):
    """`DML_OPERATOR_ELEMENT_WISE_BIT_COUNT`: how many bits of the element are set."""


class ElementWiseBitAndOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_BIT_AND`: the bits that are set in both elements, of any type."""


class ElementWiseBitOrOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_BIT_OR`: the bits that are set in one of the elements, of any type."""


class ElementWiseBitXorOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_BIT_XOR`: the bits that are set in exactly one of the elements, of any type."""


class ElementWiseBitNotOperatorDesc(UnaryWithoutScale):
    """`DML_OPERATOR_ELEMENT_WISE_BIT_NOT`: the bits that are not set, of any type."""


class ElementWiseBitShiftLeftOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_BIT_SHIFT_LEFT`: A << B; 0 from a count of the width of the type on."""


class ElementWiseBitShiftRightOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_BIT_SHIFT_RIGHT`: A >> B; 0 from a count of the width of the type on."""
