"""A tensor's raw bytes as a body: `application/octet-stream`, with shape and data type in header fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from tensorpost.values.datatypes import DataType, type_named
from tensorpost.values.problems import InvalidParameter

SHAPE_FIELD, DTYPE_FIELD = "Tensorpost-Shape", "Tensorpost-Dtype"
_MOST_DIMENSIONS = 64  # as in npy and frames
_MOST_DIGITS = 19  # of a size; more do not fit a signed 64-bit integer


class RawTensor(NamedTuple):
    """What the header fields say of a raw tensor, row-major and little-endian."""

    data_type: DataType
    shape: tuple[int, ...]

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the body."""
        return self.data_type.item_size * math.prod(self.shape)

    @classmethod
    def from_headers(cls, fields: Mapping[bytes, bytes]) -> RawTensor:
        """Read them, as in `Tensorpost-Shape: 1,3,64,64` and `Tensorpost-Dtype: float32`.

        Raises:
            InvalidParameter: one is missing, or is not what it should be.
        """
        shape, dtype = fields.get(SHAPE_FIELD.lower().encode()), fields.get(DTYPE_FIELD.lower().encode())
        if shape is None or dtype is None:
            missing = " and ".join([n for n, v in ((SHAPE_FIELD, shape), (DTYPE_FIELD, dtype)) if v is None])
            raise InvalidParameter(
                f"application/octet-stream is a tensor's raw bytes, without {missing}; send {SHAPE_FIELD}: "
                f"1,3,64,64 and {DTYPE_FIELD}: float32, or a frame as application/vnd.safetensors"
            )
        text = shape.decode("latin-1").strip().removeprefix("[").removesuffix("]").strip()
        sizes = [size.strip() for size in text.split(",")] if text else []
        right = len(sizes) <= _MOST_DIMENSIONS and all(
            size.isascii() and size.isdigit() and len(size) <= _MOST_DIGITS for size in sizes
        )
        if not right:
            raise InvalidParameter(f"{SHAPE_FIELD} {text[:60]!r} is not a shape; send sizes as in 1,3,64,64")
        name = dtype.decode("latin-1").strip()
        try:
            row = type_named(name)
        except KeyError as error:
            raise InvalidParameter(f"{DTYPE_FIELD}: {error.args[0]}") from None
        if not row.item_size:
            raise InvalidParameter(f"{DTYPE_FIELD}: raw bytes cannot hold {name!r}")
        return cls(row, tuple(map(int, sizes)))


def raw_tensor_fields(row: DataType, shape: tuple[int, ...]) -> tuple[tuple[bytes, bytes], ...]:
    """The header fields that describe a tensor, for the answer."""
    return (
        (SHAPE_FIELD.lower().encode(), ",".join(map(str, shape)).encode()),
        (DTYPE_FIELD.lower().encode(), row.numpy_name.encode()),
    )
