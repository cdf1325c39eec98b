"""Blocks of pixels as channels, and back.

Sources: the DML_SPACE_TO_DEPTH, SPACE_TO_DEPTH1, DEPTH_TO_SPACE, DEPTH_TO_SPACE1 and DML_DEPTH_SPACE_ORDER pages. The
pages of SPACE_TO_DEPTH print the sizes of the opposite operator; their examples count.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from ..values.problems import Violation
from ..values.sentences import named
from .completion import Given, Output
from .fields import CEnum, UInt
from .operator_desc import OperatorDesc
from .tensor import BufferTensorDesc

__all__ = [
    "DepthSpaceOrder",
    "DepthToSpace1OperatorDesc",
    "DepthToSpaceOperatorDesc",
    "SpaceToDepth1OperatorDesc",
    "SpaceToDepthOperatorDesc",
]


class DepthSpaceOrder(enum.IntEnum):
    """`DML_DEPTH_SPACE_ORDER`: which of block row, block column and channel the depth counts first to last."""

    DEPTH_COLUMN_ROW = 0  # (block row, block column, channel); ONNX's DCR
    COLUMN_ROW_DEPTH = 1  # (channel, block row, block column); ONNX's CRD


Order = Annotated[DepthSpaceOrder, CEnum("DML_DEPTH_SPACE_ORDER_")]


class _Blocks(OperatorDesc):
    """Base of the four: tensors N, C, H, W whose sizes the block size ties together.

    Attributes:
        input_tensor: tensor to read, of 4 dimensions.
        output_tensor: same DataType; its sizes follow from the input's and the block size.
        block_size: height and width of a block, at least 1.
        divides: what the block size must divide, in words.
    """

    divides: ClassVar[str]

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    block_size: UInt

    @classmethod
    def moved(cls, sizes: Sequence[int], block: int) -> list[int] | None:
        """The output's sizes; None if the input cannot be cut into such blocks."""
        raise NotImplementedError

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        """The input's sizes, if it cannot be cut."""
        source, block = given.tensor("input_tensor"), given.integer("block_size")
        sizes = cls.moved(source.sizes, block) if len(source.sizes) == 4 and block > 0 else None
        yield Output("output_tensor", source.data_type, sizes or source.sizes, "the input's in blocks" if sizes else "")

    def operator_rules(self) -> Iterator[Violation]:
        """Four dimensions, which blocks divide without a remainder; a block size of 0 is refused."""
        yield from self.same_type_and_rank()
        sizes, block = self.input_tensor.sizes, self.block_size
        if len(sizes) != 4:
            message = f"{self.operator_type} takes N, C, H, W, not {len(sizes)} dimensions"
            yield self.broken("dimension-count", ("InputTensor", "Sizes"), message, list(sizes), "4 dimensions")
        elif not block or self.moved(sizes, block) is None:
            message = named("BlockSize") + f" is {block}; {self.divides} without a remainder"
            yield self.broken("block-size", ("BlockSize",), message, block, "a divisor, at least 1")


class _SpaceToDepth(_Blocks):
    divides = "it must divide the input's height and width"

    @classmethod
    def moved(cls, sizes: Sequence[int], block: int) -> list[int] | None:
        batch, channels, height, width = sizes
        if height % block or width % block:
            return None
        return [batch, channels * block * block, height // block, width // block]


class _DepthToSpace(_Blocks):
    divides = "its square must divide the input's channels"

    @classmethod
    def moved(cls, sizes: Sequence[int], block: int) -> list[int] | None:
        batch, channels, height, width = sizes
        return None if channels % block**2 else [batch, channels // block**2, height * block, width * block]


class SpaceToDepthOperatorDesc(_SpaceToDepth):
    """`DML_OPERATOR_SPACE_TO_DEPTH`: makes channels of the places within blocks of pixels.

    `Output[n, (by * B + bx) * C + c, y, x] = Input[n, c, y * B + by, x * B + bx]` with blocks of B x B and C channels.
    """


class SpaceToDepth1OperatorDesc(_SpaceToDepth):
    """`DML_OPERATOR_SPACE_TO_DEPTH1`: SPACE_TO_DEPTH with a choice of the channels' order.

    Attributes:
        order: DEPTH_COLUMN_ROW, as SPACE_TO_DEPTH, or COLUMN_ROW_DEPTH: `(c * B + by) * B + bx`.
    """

    order: Order


class DepthToSpaceOperatorDesc(_DepthToSpace):
    """`DML_OPERATOR_DEPTH_TO_SPACE`: makes blocks of pixels of channels; the inverse of SPACE_TO_DEPTH.

    `Output[n, c, y * B + by, x * B + bx] = Input[n, (by * B + bx) * C + c, y, x]` with blocks of B x B and C channels.
    """


class DepthToSpace1OperatorDesc(_DepthToSpace):
    """`DML_OPERATOR_DEPTH_TO_SPACE1`: DEPTH_TO_SPACE with a choice of the channels' order.

    Attributes:
        order: DEPTH_COLUMN_ROW, as DEPTH_TO_SPACE, or COLUMN_ROW_DEPTH: `(c * B + by) * B + bx`.
    """

    order: Order
