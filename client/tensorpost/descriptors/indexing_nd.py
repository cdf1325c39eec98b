"""Indexing by several coordinates at once.

Sources: the DML_GATHER_ND, DML_GATHER_ND1 and DML_SCATTER_ND pages, whose examples count: their formulas of sizes are
wrong. Negative indices, and those outside, are as in `indexing.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from ..values.problems import Violation
from ..values.sentences import named
from .catalogue import pascal_case
from .completion import Given, Inferred, packed
from .fields import UInt
from .indexing import without_leading_ones
from .operator_desc import OperatorDesc
from .plain_operators import plain_operator as __getattr__  # noqa: F401 # rows of this family, by its own path
from .tensor import BufferTensorDesc

__all__ = ["GatherNd1OperatorDesc", "ScatterNdOperatorDesc"]


class GatheringNd(OperatorDesc):
    """Base of both versions of GATHER_ND.

    Attributes:
        input_tensor: tensor to read.
        indices_tensor: each line along the last dimension is the first coordinates of a part, one or more. A negative
            coordinate counts from the end of its axis, and one that is beyond the axis takes its first or last index.
        output_tensor: the indices' sizes without the last, then those of a part, aligned to the right.
        input_dimension_count: how many of the last dimensions of the input count; those before are 1.
        indices_dimension_count: how many of the last dimensions of the indices count; those before are 1.
    """

    input_tensor: BufferTensorDesc
    indices_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    input_dimension_count: UInt
    indices_dimension_count: UInt

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """The output; all dimensions count, but for leading ones."""
        source, indices = given.tensor("input_tensor"), given.tensor("indices_tensor")
        batch = given.integer("batch_dimension_count") if given.has("batch_dimension_count") else 0
        counted = _inferred_counts(source.sizes, indices.sizes, batch)
        yield from counted.items()
        first, second = [given.integer(name) if given.has(name) else count for name, count in counted.items()]
        sizes = _by_coordinates(source.sizes, indices.sizes, first, second, batch)
        if sizes is not None:
            yield "output_tensor", packed(source.data_type, sizes)

    def operator_rules(self) -> Iterator[Violation]:
        """Ranks and types agree, and the output's sizes are the indices' and a part's."""
        yield from self.same_type_and_rank("input_tensor", "output_tensor")
        batch = self.batch_dimension_count if isinstance(self, GatherNd1OperatorDesc) else 0
        yield from _coordinate_rules(self, "output_tensor", batch)


class GatherNd1OperatorDesc(GatheringNd):
    """`DML_OPERATOR_GATHER_ND1`: GATHER_ND of each pair in a batch of inputs and indices.

    Attributes:
        batch_dimension_count: how many of the first dimensions that count are the batch's, alike in all tensors; the
            coordinates are those of the dimensions after them.
    """

    batch_dimension_count: UInt


class ScatterNdOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_SCATTER_ND`: the input, with some parts replaced by updates.

    Attributes:
        input_tensor: what is not replaced.
        indices_tensor: each line along the last dimension is the first coordinates of a part; no two lines may be
            equal, else one of the updates wins. A negative coordinate counts from the end of its axis, and an update
            with one that is beyond its axis is ignored.
        updates_tensor: the indices' sizes without the last, then those of a part, aligned to the right.
        output_tensor: result, of the input's sizes and DataType.
        input_dimension_count: how many of the last dimensions of the input count; those before are 1.
        indices_dimension_count: how many of the last dimensions of the indices count; those before are 1.
    """

    outputs_like: ClassVar = {"output_tensor": "input_tensor"}

    input_tensor: BufferTensorDesc
    indices_tensor: BufferTensorDesc
    updates_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    input_dimension_count: UInt
    indices_dimension_count: UInt

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """All dimensions count, but for leading ones."""
        yield from super().inferred(given)
        sizes, indices = given.tensor("input_tensor").sizes, given.tensor("indices_tensor").sizes
        yield from _inferred_counts(sizes, indices, 0).items()

    def operator_rules(self) -> Iterator[Violation]:
        """Ranks and types agree, and the updates' sizes are the indices' and a part's.

        Indices that are repeated by a stride of 0 name one part twice, and DirectML refuses them.
        """
        yield from self.same_type_and_rank("input_tensor", "updates_tensor", "output_tensor")
        indices = self.indices_tensor
        for axis, (size, stride) in enumerate(zip(indices.sizes, indices.strides or (), strict=False)):
            if size > 1 and stride == 0:
                message = "indices are not repeated by a stride of 0"
                yield self.broken("broadcast-indices", ("IndicesTensor", "Strides", axis), message, 0, "1 or more")
        yield from _coordinate_rules(self, "updates_tensor")


def _inferred_counts(sizes: Sequence[int], indices: Sequence[int], batch: int) -> dict[str, int]:
    """The dimensions that count: all but leading ones, and no fewer than are indexed."""
    return {
        "input_dimension_count": max(min(len(sizes), batch + indices[-1]), len(without_leading_ones(sizes))),
        "indices_dimension_count": max(min(len(indices), batch + 1), len(without_leading_ones(indices))),
    }


def _by_coordinates(
    sizes: Sequence[int], indices: Sequence[int], input_count: int, indices_count: int, batch: int
) -> list[int] | None:
    """The sizes of all parts that indices name, aligned to the right into as many dimensions; None if they do not fit.

    Args:
        sizes: the input's.
        indices: the indices'.
        input_count: how many of the input's last dimensions count.
        indices_count: how many of the indices' last dimensions count.
        batch: how many of these, in both, are the batch's.
    """
    rank = len(sizes)
    part = sizes[max(0, rank - input_count) :][batch + indices[-1] :]
    whole = [*indices[max(0, len(indices) - indices_count) : -1], *part]
    return None if len(whole) > rank else [1] * (rank - len(whole)) + whole


def _coordinate_rules(desc: GatheringNd | ScatterNdOperatorDesc, parts: str, batch: int = 0) -> Iterator[Violation]:
    """What counts is there, the indices have no more coordinates than the input, and all parts have their sizes."""
    tensors = {"input_dimension_count": "input_tensor", "indices_dimension_count": "indices_tensor"}
    counted: list[Sequence[int]] = []
    for field, name in tensors.items():
        count, sizes = getattr(desc, field), getattr(desc, name).sizes
        if not 1 <= count <= len(sizes):
            message = named(pascal_case(field)) + f" is {count}, but there are {len(sizes)} dimensions"
            yield desc.broken("index-dimensions", (pascal_case(field),), message, count, f"1 to {len(sizes)}")
        elif any(size != 1 for size in sizes[: len(sizes) - count]):
            message = f"the dimensions before the last {count}, which do not count, must be 1"
            yield desc.broken("index-sizes", (pascal_case(name), "Sizes"), message, list(sizes), "leading ones")
        else:
            counted.append(sizes[len(sizes) - count :])
    if len(counted) < len(tensors):
        return
    source, indices = counted
    most, length = min(len(source), len(indices)) - 1, indices[-1]
    where = ("IndicesTensor", "Sizes")
    if batch > most:
        message = named("BatchDimensionCount") + f" is {batch}, but one dimension of each tensor must be left"
        yield desc.broken("index-dimensions", ("BatchDimensionCount",), message, batch, f"0 to {most}")
    elif source[:batch] != indices[:batch]:
        message = f"the first {batch} sizes that count must be the input's"
        yield desc.broken("index-sizes", where, message, list(indices), f"{list(source[:batch])} first")
    elif length > len(source) - batch:
        message = f"an index has {length} coordinates, the input {len(source) - batch} dimensions for them"
        yield desc.broken("index-sizes", where, message, list(indices), f"1 to {len(source) - batch} last")
    else:
        wanted = _by_coordinates(desc.input_tensor.sizes, indices, len(source), len(indices), batch)
        if wanted is None:
            message = "the indices without the last dimension, and a part, have more dimensions than the tensors"
            found, rank = list(getattr(desc, parts).sizes), len(desc.input_tensor.sizes)
            yield desc.broken("output-sizes", (pascal_case(parts), "Sizes"), message, found, f"{rank} dimensions")
        else:
            yield from desc.sizes_are(wanted, "the indices' without the last, then a part's", parts)
