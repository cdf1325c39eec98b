"""SPACE_TO_DEPTH and DEPTH_TO_SPACE as one copy, whose loops are those over images, channels, blocks and pixels."""

from __future__ import annotations

from collections.abc import Sequence

from tensorpost import descriptors as dml

from ..forms import Copies, Copy, Loop
from .registry import form_of_class

_SpaceToDepthDesc = dml.SpaceToDepthOperatorDesc | dml.SpaceToDepth1OperatorDesc
_DepthToSpaceDesc = dml.DepthToSpaceOperatorDesc | dml.DepthToSpace1OperatorDesc


@form_of_class(
    dml.SpaceToDepthOperatorDesc,
    dml.SpaceToDepth1OperatorDesc,
    dml.DepthToSpaceOperatorDesc,
    dml.DepthToSpace1OperatorDesc,
)
def depth_space_form(desc: _SpaceToDepthDesc | _DepthToSpaceDesc) -> Copies:
    """Depth [n, d, y, x] and space [n, c, y * B + by, x * B + bx]; d counts c, by and bx in either order."""
    to_depth = isinstance(desc, _SpaceToDepthDesc)
    space, depth = desc.input_tensor.sizes, desc.output_tensor.sizes
    if not to_depth:
        space, depth = depth, space
    plain = isinstance(desc, dml.SpaceToDepthOperatorDesc | dml.DepthToSpaceOperatorDesc)
    channels_first = not plain and desc.order is dml.DepthSpaceOrder.COLUMN_ROW_DEPTH
    return depth_space_copies(space, depth, desc.block_size, to_depth=to_depth, channels_first=channels_first)


def depth_space_copies(
    space: Sequence[int], depth: Sequence[int], block: int, *, to_depth: bool, channels_first: bool
) -> Copies:
    """Blocks of a tensor of the sizes `space` become channels of one of the sizes `depth`, or the reverse."""
    channels = space[1]
    row, column, channel = (block, 1, block * block) if channels_first else (block * channels, channels, 1)
    # (extent, axis and step in space, axis and step in depth), larger steps of each axis first
    in_block = [(block, (2, 1), (1, row)), (block, (3, 1), (1, column))]
    of_channels = [(channels, (1, 1), (1, channel))]
    walks = [
        (space[0], (0, 1), (0, 1)),
        (depth[2], (2, block), (2, 1)),
        (depth[3], (3, block), (3, 1)),
        *(of_channels + in_block if channels_first else in_block + of_channels),
    ]
    loops = [
        Loop(extent, in_depth, (in_space,)) if to_depth else Loop(extent, in_space, (in_depth,))
        for extent, in_space, in_depth in walks
        if extent > 1
    ]
    start = (0, 0, 0, 0)
    return Copies((4,), (() if 0 in space else (Copy(0, start, start, tuple(loops)),),))
