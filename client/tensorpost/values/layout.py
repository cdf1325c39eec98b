"""Where a tensor's elements lie in a block of bytes, for any dialect; the only place that makes a view of one.

DirectML calls this part of DML_BUFFER_TENSOR_DESC. ONNX and Open Inference tensors are always packed, may be empty and
may have rank 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .datatypes import DataType
from .problems import BodyMismatch

__all__ = ["Layout", "is_one_to_one", "last_index", "packed_strides"]


def packed_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements: 1 for the last dimension, each earlier one the product of all later sizes."""
    strides = [1] * len(sizes)
    for axis in range(len(sizes) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * sizes[axis + 1]
    return tuple(strides)


def last_index(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """The largest element offset that any coordinate reaches: the sum of (size - 1) * stride, exact."""
    return sum([(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)])


def is_one_to_one(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether different coordinates always have different offsets, by the sufficient test of nested strides.

    Dimensions of size 1 do not count. Each stride must be larger than the largest offset that all smaller strides
    reach together. A few exotic interleavings that happen to be one-to-one are refused; that is our choice.
    """
    reach = 0
    for stride, size in sorted((st, sz) for sz, st in zip(sizes, strides, strict=True) if sz > 1):
        if stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor's type, sizes, strides and bytes.

    Attributes:
        data_type: row of the element type.
        sizes: elements per dimension; may be empty (rank 0) or contain 0 (no elements).
        strides: elements to the next entry of each dimension; 0 broadcasts.
        size_in_bytes: bytes of the whole block, in memory and on the wire.
        packed: whether the block is exactly the row-major array.
    """

    data_type: DataType
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    size_in_bytes: int
    packed: bool

    @classmethod
    def row_major(cls, data_type: DataType, sizes: Sequence[int]) -> Layout:
        """The packed row-major layout of these sizes."""
        sizes = tuple(sizes)
        return cls(data_type, sizes, packed_strides(sizes), math.prod(sizes) * data_type.item_size, packed=True)

    def broadcast(self, sizes: Sequence[int]) -> Layout:
        """The same block read at more coordinates: sizes of 1 are repeated by strides of 0, missing ones come first.

        Args:
            sizes: sizes to broadcast to, as many or more; each size of the layout is 1 or that of its dimension.
        """
        if self.sizes == tuple(sizes):
            return self
        more = len(sizes) - len(self.sizes)
        steps = zip(self.sizes, self.strides, sizes[more:], strict=True)
        strides = (*[0] * more, *[stride if own == size else 0 for own, stride, size in steps])
        return Layout(self.data_type, tuple(sizes), strides, self.size_in_bytes, packed=False)

    @property
    def data_size_in_bytes(self) -> int:
        """Bytes from the block's start to the end of the farthest element; 0 without elements."""
        if 0 in self.sizes:
            return 0
        return (last_index(self.sizes, self.strides) + 1) * self.data_type.item_size

    def view(self, buffer: Any, dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
        """The elements in a block of bytes, as an array of `sizes`; no copy.

        Read-only if the block is, or if elements share addresses.

        Args:
            buffer: anything with the buffer protocol, at least `data_size_in_bytes` long.
            dtype: read the elements as this dtype of the same item size instead of their own.

        Raises:
            BodyMismatch: the block ends before the farthest element does; nothing was read.
        """
        dtype = self.data_type.dtype if dtype is None else dtype
        needed = self.size_in_bytes if self.packed else self.data_size_in_bytes
        if needed == 0:
            return np.empty(self.sizes, dtype)
        memory = memoryview(buffer)
        if memory.nbytes < needed:
            raise BodyMismatch(
                f"the tensor reaches {needed} bytes into its buffer, which has only {memory.nbytes}",
                extra={"expected": needed, "actual": memory.nbytes},
            )
        strides = None if self.packed else [stride * dtype.itemsize for stride in self.strides]
        view = np.ndarray(self.sizes, dtype, memory, 0, strides)  # faster than other views; it checks the ends, too
        if not self.packed and not is_one_to_one(self.sizes, self.strides):
            view.flags.writeable = False
        return view
