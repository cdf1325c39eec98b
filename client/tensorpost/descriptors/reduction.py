"""Reductions and selections along axes.

Sources: the DML_REDUCE, DML_ARGMIN, DML_ARGMAX, DML_TOP_K and DML_TOP_K1 pages, and DML_REDUCE_FUNCTION.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Annotated

from ..values.datatypes import TensorDataType
from ..values.problems import Violation
from ..values.sentences import named
from .fields import CEnum, UInt, UIntArray, count_of
from .operator_desc import Given, Inferred, OperatorDesc, packed, with_size
from .resample import AxisDirection, AxisDirectionField
from .tensor import BufferTensorDesc

__all__ = [
    "ArgmaxOperatorDesc",
    "ArgminOperatorDesc",
    "Positions",
    "ReduceFunction",
    "ReduceOperatorDesc",
    "Selection",
    "TopK1OperatorDesc",
    "TopKOperatorDesc",
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
    def inferred(cls, given: Given) -> Inferred:
        """See `OperatorDesc.inferred`: the output; positions are UINT32."""
        source, axes = given.tensor("input_tensor"), given.integers("axes")
        function = given.member("function", ReduceFunction, "DML_REDUCE_FUNCTION_", ReduceFunction.SUM)
        data_type = TensorDataType.UINT32 if function.is_index else source.data_type
        yield "output_tensor", packed(data_type, _reduced(source.sizes, axes))

    def operator_rules(self) -> Iterator[Violation]:
        """The output has the input's rank, and one element along each axis."""
        yield from self.same_type_and_rank(*(["input_tensor"] if self.function.is_index else []))
        yield from _axes_rules(self)

    def function_name(self) -> str:
        """The support tables differ by function."""
        return self.function.name


def _reduced(sizes: Sequence[int], axes: Sequence[int]) -> list[int]:
    return [1 if axis in axes else size for axis, size in enumerate(sizes)]


def _axes_rules(desc: ReduceOperatorDesc | Positions) -> Iterator[Violation]:
    """The axes are dimensions, as DirectML has it even if one is there twice; each has one element in the output."""
    yield from desc.count_is_length("axis_count", "axes")
    sizes = desc.input_tensor.sizes
    yield from desc.axes_are_below(len(sizes))
    yield from desc.sizes_are(_reduced(sizes, desc.axes), "the input's with 1 for each axis", "output_tensor")


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
    def inferred(cls, given: Given) -> Inferred:
        """See `OperatorDesc.inferred`: the output, UINT32."""
        sizes, axes = given.tensor("input_tensor").sizes, given.integers("axes")
        yield "output_tensor", packed(TensorDataType.UINT32, _reduced(sizes, axes))

    def operator_rules(self) -> Iterator[Violation]:
        """The output has the input's rank, and one element along each axis."""
        yield from self.same_type_and_rank("input_tensor")
        yield from _axes_rules(self)


class ArgminOperatorDesc(Positions):
    """`DML_OPERATOR_ARGMIN`: the position of the smallest element along some axes; of NaN, if there is any."""


class ArgmaxOperatorDesc(Positions):
    """`DML_OPERATOR_ARGMAX`: the position of the largest element along some axes; of NaN, if there is any."""


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
    def inferred(cls, given: Given) -> Inferred:
        """See `OperatorDesc.inferred`: both outputs; positions are UINT32."""
        source = given.tensor("input_tensor")
        sizes = with_size(source.sizes, given.axis("axis", len(source.sizes)), given.integer("k"))
        yield "output_value_tensor", packed(source.data_type, sizes)
        yield "output_index_tensor", packed(TensorDataType.UINT32, sizes)

    def operator_rules(self) -> Iterator[Violation]:
        """The outputs have the input's sizes with K for the axis."""
        yield from self.same_type_and_rank("input_tensor", "output_value_tensor")
        sizes = self.input_tensor.sizes
        yield from self.axis_is_below(len(sizes))
        if self.axis < len(sizes):
            if not 1 <= self.k <= sizes[self.axis]:
                message = named("K") + f" is {self.k}, but the axis has {sizes[self.axis]} elements"
                yield self.broken("k", ("K",), message, self.k, f"1 to {sizes[self.axis]}")
            wanted, outputs = with_size(sizes, self.axis, self.k), ("output_value_tensor", "output_index_tensor")
            yield from self.sizes_are(wanted, "the input's with " + named("K") + " for the axis", *outputs)


class TopKOperatorDesc(Selection):
    """`DML_OPERATOR_TOP_K`: the K largest elements of every line, largest first, and their positions."""


class TopK1OperatorDesc(Selection):
    """`DML_OPERATOR_TOP_K1`: the K largest or smallest elements of every line, in order, and their positions.

    Attributes:
        axis_direction: INCREASING for the smallest first, DECREASING for the largest.
    """

    axis_direction: AxisDirectionField = AxisDirection.DECREASING
