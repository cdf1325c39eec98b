"""Indexing: operators that read or write elements where an index tensor says.

Sources: the DML_GATHER, GATHER_ELEMENTS, SCATTER_ELEMENTS, NONZERO_COORDINATES, ONE_HOT and REVERSE_SUBSEQUENCES pages.
From 3_0 on a negative index of a signed type counts from the end. An index outside the axis reads the nearest element
of the axis (GATHER and its kin) or writes nothing (SCATTER and its kin): the pages leave that open, it is tensorpost's
choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

from ..values.datatypes import TensorDataType
from ..values.problems import Violation
from ..values.sentences import named
from .completion import Given, Inferred, Output, packed, with_size
from .fields import UInt
from .operator_desc import OperatorDesc
from .tensor import BufferTensorDesc

__all__ = [
    "GatherElementsOperatorDesc",
    "GatherOperatorDesc",
    "NonzeroCoordinatesOperatorDesc",
    "OneHotOperatorDesc",
    "ReverseSubsequencesOperatorDesc",
    "ScatterElementsOperatorDesc",
]


class GatherOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_GATHER`: takes whole slices of the input along an axis, in the order of the indices.

    Attributes:
        input_tensor: tensor to read.
        indices_tensor: which slices; a negative index counts from the end of the axis, and one that is beyond the axis
            takes the first or the last slice. Leading dimensions that `index_dimensions` does not count are 1.
        output_tensor: the input's sizes with the axis replaced by the sizes of the indices, aligned to the right.
        axis: the dimension that is indexed.
        index_dimensions: how many of the last dimensions of the indices count.
    """

    input_tensor: BufferTensorDesc
    indices_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    axis: UInt
    index_dimensions: UInt

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """The output; all dimensions of the indices count, but for leading ones."""
        source, indices = given.tensor("input_tensor"), given.tensor("indices_tensor")
        counted = len(without_leading_ones(indices.sizes))
        yield "index_dimensions", counted
        axis = given.axis("axis", len(source.sizes))
        count = given.integer("index_dimensions") if given.has("index_dimensions") else counted
        sizes = _gathered(source.sizes, indices.sizes, axis, count)
        if sizes is not None:
            yield "output_tensor", packed(source.data_type, sizes)

    def operator_rules(self) -> Iterator[Violation]:
        """Ranks and types agree, and the output's sizes are the input's with the axis replaced."""
        yield from self.same_type_and_rank("input_tensor", "output_tensor")
        rank = len(self.input_tensor.sizes)
        yield from self.axis_is_below(rank)
        counted = len(self.indices_tensor.sizes)
        if self.index_dimensions > counted:
            message = (
                named("IndexDimensions") + f" is {self.index_dimensions}, but the indices have {counted} dimensions"
            )
            yield self.broken(
                "index-dimensions", ("IndexDimensions",), message, self.index_dimensions, f"0 to {counted}"
            )
        elif any(size != 1 for size in self.indices_tensor.sizes[: counted - self.index_dimensions]):
            message = "the dimensions of the indices that do not count must be 1"
            sizes = list(self.indices_tensor.sizes)
            yield self.broken("index-sizes", ("IndicesTensor", "Sizes"), message, sizes, "leading ones")
        elif self.axis < rank == counted:
            sizes = _gathered(self.input_tensor.sizes, self.indices_tensor.sizes, self.axis, self.index_dimensions)
            if sizes is None:
                message = "the input with the axis replaced by the indices has more dimensions than the tensors"
                found = list(self.output_tensor.sizes)
                yield self.broken("output-sizes", ("OutputTensor", "Sizes"), message, found, f"{rank} dimensions")
            else:
                yield from self.sizes_are(sizes, "the input's with the axis replaced by the indices'", "output_tensor")


def without_leading_ones(sizes: Sequence[int]) -> Sequence[int]:
    first = next((axis for axis, size in enumerate(sizes) if size != 1), len(sizes))
    return sizes[first:]


def _gathered(sizes: Sequence[int], indices: Sequence[int], axis: int, count: int) -> list[int] | None:
    """The output's sizes, aligned to the right into as many dimensions; None if they do not fit."""
    rank = len(sizes)
    whole = [*sizes[:axis], *(indices[len(indices) - count :] if count else ()), *sizes[axis + 1 :]]
    if any(size != 1 for size in whole[: max(0, len(whole) - rank)]):
        return None
    kept = whole[max(0, len(whole) - rank) :]
    return [1] * (rank - len(kept)) + kept


class GatherElementsOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_GATHER_ELEMENTS`: takes single elements along an axis, each by an index of its own.

    Attributes:
        input_tensor: tensor to read.
        indices_tensor: where along the axis each element is; of the input's sizes but for the axis. A negative index
            counts from the end of the axis, and one that is beyond the axis takes the first or the last element.
        output_tensor: result, of the indices' sizes and the input's DataType.
        axis: the dimension that is indexed.
    """

    input_tensor: BufferTensorDesc
    indices_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    axis: UInt

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        data_type, sizes = given.tensor("input_tensor").data_type, given.tensor("indices_tensor").sizes
        yield Output("output_tensor", data_type, sizes, "IndicesTensor.Sizes")

    def operator_rules(self) -> Iterator[Violation]:
        """Ranks, types and sizes agree; along the axis there may be any number of indices."""
        yield from self.same_type_and_rank("input_tensor", "output_tensor")
        sizes, indices = self.input_tensor.sizes, self.indices_tensor.sizes
        yield from self.axis_is_below(len(sizes))
        if self.axis < len(sizes) == len(indices):
            wanted = with_size(sizes, self.axis, indices[self.axis])
            yield from self.sizes_are(wanted, "the input's but for the axis", "indices_tensor", code="index-sizes")


class ScatterElementsOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_SCATTER_ELEMENTS`: the input, with some elements replaced by updates.

    Attributes:
        input_tensor: what is not replaced.
        indices_tensor: where along the axis each update goes; no two of a line may be equal, else one of them wins. A
            negative index counts from the end of the axis, and the update of one that is beyond the axis is ignored.
        updates_tensor: the new elements, of the indices' sizes and the input's DataType.
        output_tensor: result, of the input's sizes and DataType.
        axis: the dimension that is indexed.
    """

    outputs_like: ClassVar = {"output_tensor": "input_tensor"}

    input_tensor: BufferTensorDesc
    indices_tensor: BufferTensorDesc
    updates_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    axis: UInt

    def operator_rules(self) -> Iterator[Violation]:
        """Ranks, types and sizes agree; the indices may be shorter than the input along the axis only."""
        yield from self.same_type_and_rank("input_tensor", "updates_tensor", "output_tensor")
        sizes, indices = self.input_tensor.sizes, self.indices_tensor.sizes
        yield from self.axis_is_below(len(sizes))
        yield from self.sizes_are(indices, "IndicesTensor.Sizes", "updates_tensor")
        if self.axis < len(sizes) == len(indices):
            most = min(indices[self.axis], sizes[self.axis])  # DirectML refuses more indices than elements
            wanted = with_size(sizes, self.axis, most)
            yield from self.sizes_are(wanted, "the input's, or less along the axis", "indices_tensor")


class NonzeroCoordinatesOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_NONZERO_COORDINATES`: where the elements are that are not 0, in row-major order, and how many.

    The coordinates are as many as the input has elements; the rows after the count are 0 here, undefined in DirectML.

    Attributes:
        input_tensor: tensor to read.
        output_count_tensor: UINT32, one element: how many rows of coordinates hold.
        output_coordinates_tensor: UINT32, one row per input element, with the last entries of its coordinate.
    """

    input_tensor: BufferTensorDesc
    output_count_tensor: BufferTensorDesc
    output_coordinates_tensor: BufferTensorDesc

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """A count of one element, and whole coordinates."""
        sizes = given.tensor("input_tensor").sizes
        yield "output_count_tensor", packed(TensorDataType.UINT32, [1])
        yield "output_coordinates_tensor", packed(TensorDataType.UINT32, [math.prod(sizes), len(sizes)])

    def operator_rules(self) -> Iterator[Violation]:
        """The outputs are UINT32; one element, and a row of coordinates for every element of the input."""
        yield from self.data_type_is(TensorDataType.UINT32, "output_count_tensor", "output_coordinates_tensor")
        count, coordinates = self.output_count_tensor.sizes, self.output_coordinates_tensor.sizes
        yield from self.sizes_are([1] * len(count), "all ones", "output_count_tensor")
        sizes = self.input_tensor.sizes
        effective, rank = len(without_leading_ones(sizes)), len(sizes)
        if len(coordinates) < 2 or not max(1, effective) <= coordinates[-1] <= rank:
            message = (
                f"the last size of the coordinates must be {max(1, effective)} to {rank}, as the input has dimensions"
            )
            where = ("OutputCoordinatesTensor", "Sizes")
            yield self.broken("output-sizes", where, message, list(coordinates), f"{max(1, effective)} to {rank} last")
        else:
            wanted = [*[1] * (len(coordinates) - 2), math.prod(sizes), coordinates[-1]]
            yield from self.sizes_are(wanted, "one row per input element", "output_coordinates_tensor")


class OneHotOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_ONE_HOT`: makes a line of each index: one value where the index says, another one elsewhere.

    Attributes:
        indices_tensor: indices, of size 1 along the axis. An index outside the axis is nowhere: its line has one value
            only.
        values_tensor: what is elsewhere and what is at the index: its first two elements in row-major order.
        output_tensor: the indices' sizes with the axis made longer, which follows from nothing; the values' DataType.
        axis: the dimension of the lines.
    """

    indices_tensor: BufferTensorDesc
    values_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    axis: UInt

    def operator_rules(self) -> Iterator[Violation]:
        """Ranks and types agree, indices are 1 along the axis, and there are two values."""
        yield from self.same_type_and_rank("values_tensor", "output_tensor")
        sizes, values = self.output_tensor.sizes, self.values_tensor.sizes
        yield from self.axis_is_below(len(sizes))
        if self.axis < len(sizes):
            wanted = with_size(sizes, self.axis, 1)
            yield from self.sizes_are(
                wanted, "the output's with 1 along the axis", "indices_tensor", code="index-sizes"
            )
        if math.prod(values) < 2:
            message = "there must be two values: what is elsewhere, and what is at the index"
            yield self.broken("value-count", ("ValuesTensor", "Sizes"), message, list(values), "2 elements or more")


class ReverseSubsequencesOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_REVERSE_SUBSEQUENCES`: reverses the first elements of every line along an axis.

    Attributes:
        input_tensor: tensor to read.
        sequence_lengths_tensor: how many elements of each line are reversed; of size 1 along the axis. The page leaves
            open what a length beyond the line does; in DirectML the elements that it lacks are its last one, and of 64
            bits the lower 32 count.
        output_tensor: result, of the input's sizes and DataType.
        axis: the dimension of the lines.
    """

    outputs_like: ClassVar = {"output_tensor": "input_tensor"}

    input_tensor: BufferTensorDesc
    sequence_lengths_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    axis: UInt

    def operator_rules(self) -> Iterator[Violation]:
        """Ranks, types and sizes agree; lengths are 1 along the axis."""
        yield from self.same_type_and_rank("input_tensor", "output_tensor")
        sizes = self.input_tensor.sizes
        yield from self.axis_is_below(len(sizes))
        if self.axis < len(sizes):
            wanted, why = with_size(sizes, self.axis, 1), "the input's with 1 along the axis"
            yield from self.sizes_are(wanted, why, "sequence_lengths_tensor", code="index-sizes")
