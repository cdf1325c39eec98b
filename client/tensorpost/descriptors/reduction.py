"""Reductions and selections along axes.

Sources: the DML_REDUCE, DML_ARGMIN, DML_ARGMAX, DML_TOP_K and DML_TOP_K1 pages, and DML_REDUCE_FUNCTION.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated

from ..values.datatypes import TensorDataType
from ..values.problems import Violation
from ..values.sentences import named
from .completion import Given, Output, with_size
from .fields import CEnum, UInt, UIntArray, count_of
from .operator_desc import OperatorDesc
from .plain_operators import plain_operator as __getattr__  # noqa: F401 # rows of this family, by its own path
from .resample import AxisDirection, AxisDirectionField
from .tensor import BufferTensorDesc

__all__ = [
    "Positions",
    "ReduceFunction",
    "ReduceOperatorDesc",
    "Selection",
    "TopK1OperatorDesc",
]


class ReduceFunction(enum.IntEnum):
    """`DML_REDUCE_FUNCTION`: what one value is made of the elements."""

    ARGMAX = 0
    ARGMIN = 1
    AVERAGE = 2
    L1 = 3
    L2 = 4
    LOG_SUM = 5
    LOG_SUM_EXP = 6
    MAX = 7
    MIN = 8
    MULTIPLY = 9
    SUM = 10
    SUM_SQUARE = 11

    @property
    def is_index(self) -> bool:
        """Whether the result is a position, not a value."""
        return self in (ReduceFunction.ARGMAX, ReduceFunction.ARGMIN)


class ReduceOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_REDUCE`: one value for all elements along some axes.

    Attributes:
        function: the value; ARGMAX and ARGMIN give the first position in row-major order of the axes.
        input_tensor: tensor to read.
        output_tensor: the input's sizes with 1 for each axis; the input's DataType, or that of an index.
        axis_count: number of entries of `axes`; derived.
        axes: dimensions; one that is there twice counts once.
    """

    function: Annotated[ReduceFunction, CEnum("DML_REDUCE_FUNCTION_")]
    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    axes: UIntArray
    axis_count: UInt = count_of("axes")

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        """One element along each axis; positions are UINT32."""
        function = given.member("function", ReduceFunction, "DML_REDUCE_FUNCTION_", ReduceFunction.SUM)
        output = _reduced(given)
        yield output if function.is_index else output._replace(data_type=given.tensor("input_tensor").data_type)

    def operator_rules(self) -> Iterator[Violation]:
        """The output has the input's rank, and one element along each axis."""
        yield from self.same_type_and_rank(*(["input_tensor"] if self.function.is_index else []))
        yield from _axes_rules(self)

    def function_name(self) -> str:
        """The support tables differ by function."""
        return self.function.name


def _reduced(given: Given) -> Output:
    """An output of positions."""
    sizes, axes = given.tensor("input_tensor").sizes, given.integers("axes")
    reduced = [1 if axis in axes else size for axis, size in enumerate(sizes)]
    return Output("output_tensor", TensorDataType.UINT32, reduced, "the input's with 1 for each axis")


def _axes_rules(desc: ReduceOperatorDesc | Positions) -> Iterator[Violation]:
    """The axes are dimensions, as DirectML has it even if one is there twice."""
    yield from desc.count_is_length("axis_count", "axes")
    yield from desc.axes_are_below(len(desc.input_tensor.sizes))


class Positions(OperatorDesc):
    """Base of operators that find one element along some axes.

    Attributes:
        input_tensor: tensor to read.
        output_tensor: positions in row-major order of the axes; the input's sizes with 1 for each axis.
        axis_count: number of entries of `axes`; derived.
        axes: dimensions; one that is there twice counts once.
        axis_direction: which one of equal elements is found: the first (INCREASING) or the last (DECREASING).
    """

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    axes: UIntArray
    axis_count: UInt = count_of("axes")
    axis_direction: AxisDirectionField = AxisDirection.INCREASING

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        yield _reduced(given)

    def operator_rules(self) -> Iterator[Violation]:
        """The output has the input's rank, and one element along each axis."""
        yield from self.same_type_and_rank("input_tensor")
        yield from _axes_rules(self)


class Selection(OperatorDesc):
    """Base of operators that take the first K elements of every line in an order of values.

    Attributes:
        input_tensor: tensor to read.
        output_value_tensor: the input's sizes with K for the axis; equal elements by ascending position.
        output_index_tensor: positions along the axis; of the same sizes.
        axis: a dimension.
        k: 1 to the input's size along the axis (the page says less than that size; ONNX TopK needs it itself).
    """

    input_tensor: BufferTensorDesc
    output_value_tensor: BufferTensorDesc
    output_index_tensor: BufferTensorDesc
    axis: UInt
    k: UInt

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        """Both outputs; positions are UINT32."""
        source = given.tensor("input_tensor")
        sizes = with_size(source.sizes, given.axis("axis", len(source.sizes)), given.integer("k"))
        why = "the input's with " + named("K") + " for the axis"
        yield Output("output_value_tensor", source.data_type, sizes, why)
        yield Output("output_index_tensor", TensorDataType.UINT32, sizes, why)

    def operator_rules(self) -> Iterator[Violation]:
        """The axis is a dimension, and has K elements."""
        yield from self.same_type_and_rank("input_tensor", "output_value_tensor")
        sizes = self.input_tensor.sizes
        yield from self.axis_is_below(len(sizes))
        if self.axis < len(sizes) and not 1 <= self.k <= sizes[self.axis]:
            message = named("K") + f" is {self.k}, but the axis has {sizes[self.axis]} elements"
            yield self.broken("k", ("K",), message, self.k, f"1 to {sizes[self.axis]}")


class TopK1OperatorDesc(Selection):
    """`DML_OPERATOR_TOP_K1`: the K largest or smallest elements of every line, in order, and their positions.

    Attributes:
        axis_direction: INCREASING for the smallest first, DECREASING for the largest.
    """

    axis_direction: AxisDirectionField = AxisDirection.DECREASING
