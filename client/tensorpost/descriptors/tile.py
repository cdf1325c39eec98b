"""`DML_TILE_OPERATOR_DESC`: lay whole copies of the input side by side.

Source: the DML_TILE_OPERATOR_DESC page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..values.problems import Violation
from ..values.sentences import named
from .completion import Given, Output
from .fields import FactorArray, UInt, count_of
from .operator_desc import OperatorDesc
from .tensor import BufferTensorDesc

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["TileOperatorDesc"]

_SOURCE_OF_SIZES = "InputTensor.Sizes times " + named("Repeats")


class TileOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_TILE`: `Output[c] = Input[c[i] mod Input.Sizes[i]]`, bit for bit.

    Attributes:
        input_tensor: tensor to read; strides of 0 broadcast.
        output_tensor: same DataType and rank; `Sizes[i] = Input.Sizes[i] * Repeats[i]`; strides must be one-to-one.
        repeats_count: derived; must agree with `repeats` if given.
        repeats: copies per dimension, each larger than 0.

    Examples:
        >>> TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (1, 1, 2, 3)), (1, 1, 3, 3)).output_tensor.sizes
        (1, 1, 6, 9)
    """

    summary: ClassVar[str] = "repeats the whole input, Repeats[i] times along dimension i."

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    repeats: FactorArray
    repeats_count: UInt = count_of("repeats")

    @classmethod
    def of(cls, input_tensor: BufferTensorDesc, repeats: Sequence[int] | NDArray[np.integer[Any]]) -> TileOperatorDesc:
        """Tile this input into a packed output.

        Raises:
            InvalidDescriptor: the repeats do not fit the input.
        """
        return cls.completed({"InputTensor": input_tensor, "Repeats": repeats})

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        """Where repeats are missing the output has the input's sizes."""
        tensor, repeats = given.tensor("input_tensor"), given.integers("repeats")
        sizes = [size * repeat for size, repeat in zip(tensor.sizes, repeats, strict=False)]
        why = _SOURCE_OF_SIZES if len(repeats) == len(tensor.sizes) and all(repeats) else ""
        yield Output("output_tensor", tensor.data_type, [*sizes, *tensor.sizes[len(sizes) :]], why)

    def operator_rules(self) -> Iterator[Violation]:
        """Every broken rule of the DML_TILE_OPERATOR_DESC page."""
        yield from self.same_type_and_rank()
        yield from self.count_rules("repeats_count", "repeats")
        for axis, repeat in enumerate(self.repeats):
            if repeat == 0:
                yield self.broken(
                    "repeat-zero", ("Repeats", axis), "every repeat must be larger than 0", 0, "at least 1"
                )  # fmt: skip
