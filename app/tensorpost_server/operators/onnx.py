"""ONNX nodes on arrays: Tile, Resize and Upsample, each for every type and shape that ONNX gives it.

Unlike DirectML's operators, these take empty tensors, rank 0, and more than 8 dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.onnx import OnnxNode, Tiling

from .base import Box, Kernel
from .onnx_resize import kernel_for_resize
from .tile import TileKernel

__all__ = ["OnnxTileKernel", "kernel_for_onnx"]


@dataclass(frozen=True, slots=True)
class OnnxTileKernel:
    """ONNX Tile: `output[c] = input[c[i] mod shape[i]]`, bit for bit, for any shape.

    Attributes:
        shape: the input's shape; may be empty or contain 0.
        tile: what copies numbers; None for shapes that it does not take.
    """

    shape: tuple[int, ...]
    tile: TileKernel | None

    def work(self, sizes: Sequence[int]) -> int:
        """See `Kernel.work`: one read per element."""
        return math.prod(sizes)

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any) -> None:
        """See `Kernel.fill`. Strings, which only NumPy has, are copied as references."""
        if any(start == stop for start, stop in box):
            return
        (x,) = inputs
        if not self.shape:
            out[...] = x
        elif self.tile is None or x.dtype.kind == "O":
            picks = [np.arange(start, stop) % size for (start, stop), size in zip(box, self.shape, strict=True)]
            out[...] = x[np.ix_(*picks)]
        else:
            self.tile.fill(xp, inputs, box, out)


def kernel_for_onnx(node: OnnxNode) -> Kernel:
    """The kernel of a node."""
    if isinstance(node.meaning, Tiling):
        shape = node.input.shape
        return OnnxTileKernel(shape, TileKernel.of(shape, node.output.layout) if shape and 0 not in shape else None)
    return kernel_for_resize(node.meaning)
