"""Running sums and products along an axis. Sources: the DML_CUMULATIVE_SUMMATION and DML_CUMULATIVE_PRODUCT pages."""

from __future__ import annotations

from collections.abc import Iterator

from ..values.problems import Violation
from .elementwise_base import UnaryWithoutScale
from .fields import Bool, UInt
from .resample import AxisDirection, AxisDirectionField

__all__ = ["CumulativeProductOperatorDesc", "CumulativeSummationOperatorDesc", "Scan"]


class Scan(UnaryWithoutScale):
    """Base of operators whose output elements are made of all elements of the line up to theirs.

    Attributes:
        axis: the dimension that the lines run along.
        axis_direction: direction of the running result: from the first element on (INCREASING) or from the last one
            back (DECREASING).
    """

    axis: UInt
    axis_direction: AxisDirectionField = AxisDirection.INCREASING

    def operator_rules(self) -> Iterator[Violation]:
        yield from super().operator_rules()
        yield from self.axis_is_below(len(self.input_tensor.sizes))


class CumulativeSummationOperatorDesc(Scan):
    """`DML_OPERATOR_CUMULATIVE_SUMMATION`: the sum of the line's elements up to each one; integers wrap.

    Attributes:
        has_exclusive_sum: whether the element itself is left out, so that the first result is 0.
    """

    has_exclusive_sum: Bool = False


class CumulativeProductOperatorDesc(Scan):
    """`DML_OPERATOR_CUMULATIVE_PRODUCT`: the product of the line's elements up to each one; integers wrap.

    Attributes:
        has_exclusive_product: whether the element itself is left out, so that the first result is 1.
    """

    has_exclusive_product: Bool = False
