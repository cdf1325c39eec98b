"""`DML_TILE_OPERATOR_DESC`: lay whole copies of the input side by side.

Source: the DML_TILE_OPERATOR_DESC page, with the support table of feature level 4_1.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import Field, ValidationError

from ..datatypes import TensorDataType as T
from ..problems import Violation
from .base import OperatorDesc, postponed_rules
from .feature_levels import FeatureLevel, SupportRow
from .fields import UInt, UIntArray, length_of
from .tensor import BufferTensorDesc

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["TileOperatorDesc"]

_FLOATS = (T.FLOAT32, T.FLOAT16)
_UP_TO_32_BITS = (*_FLOATS, T.INT32, T.INT16, T.INT8, T.UINT32, T.UINT16, T.UINT8)
_WITH_64_BITS = (*_FLOATS, T.INT64, T.INT32, T.INT16, T.INT8, T.UINT64, T.UINT32, T.UINT16, T.UINT8)


class TileOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_TILE`: `Output[c] = Input[c[i] mod Input.Sizes[i]]`, bit for bit.

    Attributes:
        input_tensor: tensor to read; strides of 0 broadcast.
        output_tensor: same DataType and rank; `Sizes[i] = Input.Sizes[i] * Repeats[i]`; strides must be one-to-one.
        repeats_count: derived; must agree with `repeats` if given.
        repeats: copies per dimension, each larger than 0.

    Example:
        >>> TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (1, 1, 2, 3)), (1, 1, 3, 3)).output_tensor.sizes
        (1, 1, 6, 9)

    Raises:
        InvalidDescriptor: with every rule that is broken.
    """

    operator_type: ClassVar[str] = "TILE"
    operator_value: ClassVar[int] = 70
    summary: ClassVar[str] = "Lays whole copies of the input side by side, Repeats[i] of them along dimension i."
    support: ClassVar[tuple[SupportRow, ...]] = (
        SupportRow(FeatureLevel.L1_0, (4, 4), _FLOATS),
        SupportRow(FeatureLevel.L2_1, (4, 4), _UP_TO_32_BITS),
        SupportRow(FeatureLevel.L3_1, (1, 8), _UP_TO_32_BITS),
        SupportRow(FeatureLevel.L4_1, (1, 8), _WITH_64_BITS),
    )

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    repeats: UIntArray
    repeats_count: UInt = Field(default_factory=length_of("repeats"))

    if TYPE_CHECKING:
        # What the constructor takes is wider than what the fields hold; `data` are the same by DirectML's names.
        def __init__(
            self,
            *,
            input_tensor: BufferTensorDesc | Mapping[str, Any] = ...,
            output_tensor: BufferTensorDesc | Mapping[str, Any] = ...,
            repeats: Sequence[int] | NDArray[np.integer[Any]] = ...,
            repeats_count: int = ...,
            **data: Any,
        ) -> None: ...

        def __hash__(self) -> int: ...  # Pydantic makes it, since the model is frozen

    @classmethod
    def of(cls, input_tensor: BufferTensorDesc, repeats: Sequence[int] | NDArray[np.integer[Any]]) -> TileOperatorDesc:
        """Tile this input into a packed output.

        Raises:
            InvalidDescriptor: the repeats do not fit the input.
        """
        return cls.completed({"InputTensor": input_tensor, "Repeats": repeats})

    @classmethod
    def complete(cls, desc: Mapping[str, Any]) -> dict[str, Any]:
        """Add a packed OutputTensor if there is none and it follows from the rest."""
        desc = dict(desc)
        if "OutputTensor" in desc or "output_tensor" in desc:
            return desc
        try:
            with postponed_rules():  # broken rules, and repeats that are none, are named when the whole is read
                tensor = BufferTensorDesc.model_validate(desc.get("InputTensor", desc.get("input_tensor")))
            given = cast("Any", desc.get("Repeats", desc.get("repeats")))
            repeats = [operator.index(repeat) for repeat, _ in zip(given, tensor.sizes, strict=False)]
        except (ValidationError, TypeError):
            return desc
        sizes = [size * repeat for size, repeat in zip(tensor.sizes, repeats, strict=False)]
        desc["OutputTensor"] = {"DataType": tensor.data_type, "Sizes": [*sizes, *tensor.sizes[len(sizes) :]]}
        return desc

    def rules(self) -> Iterator[Violation]:
        """Every broken rule of the DML_TILE_OPERATOR_DESC page, and of its tensors."""
        yield from self.tensor_rules()
        yield from self.same_type_and_rank()
        yield from self.count_rules("repeats_count", "repeats")
        for axis, repeat in enumerate(self.repeats):
            if repeat == 0:
                yield Violation(
                    "repeat-zero", ("Repeats", axis), "every repeat must be larger than 0", 0, "at least 1",
                    self._page(),
                )  # fmt: skip
        if len(self.repeats) == len(self.input_tensor.sizes) == len(self.output_tensor.sizes):
            want = [size * repeat for size, repeat in zip(self.input_tensor.sizes, self.repeats, strict=True)]
            if all(self.repeats) and list(self.output_tensor.sizes) != want:
                yield Violation(
                    "output-sizes", ("OutputTensor", "Sizes"),
                    f"OutputTensor.Sizes must be InputTensor.Sizes times Repeats, which is {want}",
                    list(self.output_tensor.sizes), str(want), self._page(),
                )  # fmt: skip
