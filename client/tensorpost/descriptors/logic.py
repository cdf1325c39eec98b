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
from .plain_operators import plain_operator as __getattr__  # noqa: F401 # rows of this family, by its own path

__all__ = [
    "Comparison",
    "ElementWiseIsInfinityOperatorDesc",
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


class Predicate(UnaryWithoutScale):
    """Base of operators that say something of each element: an output of a type of its own."""

    other_types = frozenset({"output_tensor"})
    output_type = TensorDataType.UINT8


class ElementWiseIsInfinityOperatorDesc(Predicate):
    """`DML_OPERATOR_ELEMENT_WISE_IS_INFINITY`: 1 where the element is infinite, else 0.

    Attributes:
        infinity_mode: which infinities count.
    """

    infinity_mode: Annotated[InfinityMode, CEnum("DML_IS_INFINITY_MODE_")]
