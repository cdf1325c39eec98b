"""Activations along whole lines: softmax, its logarithm, and the place of the maximum.

Sources: the DML_ACTIVATION_SOFTMAX, LOG_SOFTMAX and HARDMAX pages, and those of the same names with a 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..values.problems import Violation
from .elementwise_base import UnaryWithoutScale
from .fields import UInt, UIntArray, count_of
from .plain_operators import plain_operator as __getattr__  # noqa: F401 # rows of this family, by its own path

__all__ = [
    "AxesActivation",
    "LineActivation",
]


class LineActivation(UnaryWithoutScale):
    """Base of activations along the last dimension; all but the last two sizes are 1."""

    def operator_rules(self) -> Iterator[Violation]:
        yield from super().operator_rules()
        sizes = self.input_tensor.sizes
        if any(size != 1 for size in sizes[:-2]):
            message = f"{list(sizes)} has more than two dimensions that are not 1; {self.operator_type}1 takes any"
            yield self.broken("effective-rank", ("InputTensor", "Sizes"), message, list(sizes), "1 before the last two")


class AxesActivation(UnaryWithoutScale):
    """Base of activations along some dimensions together.

    Attributes:
        axes: dimensions; one that is there twice counts once. Elements that differ in these alone are one line,
            row-major.
        axis_count: number of entries of `axes`; derived.
    """

    axes: UIntArray
    axis_count: UInt = count_of("axes")

    def operator_rules(self) -> Iterator[Violation]:
        yield from super().operator_rules()
        yield from self.count_is_length("axis_count", "axes")
        yield from self.axes_are_below(len(self.input_tensor.sizes))
