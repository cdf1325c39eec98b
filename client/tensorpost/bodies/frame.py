"""Heads and buffers to bytes and back: the native frame. The other forms, npy and plain JSON, are re-exported here.

A frame is the safetensors layout::

    8 bytes    N, little-endian
    N bytes    {"__metadata__": {"id": "7"}, "x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}} and spaces
    the rest   the buffers, in the order of their offsets, with nothing between, before or after them

The rules of this file, besides those of `bodies/heads.py`:

1. A head's spans cover the body without hole or overlap.
2. No memory is taken for tensors here. Bodies are copied once, piece by piece, into memory the caller gives.
3. The order of checks is the order of costs: announced length, JSON, entries, spans, total.

Source: the safetensors README ("Format"). What we add to it: heads are padded to 64 bytes, at most 64 dimensions
(NumPy's own limit), sizes that fit a signed 64-bit integer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from ..values.datatypes import DATA_TYPES, DataType
from ..values.problems import BodyMismatch, InvalidFrame, InvalidJson, InvalidParameter, LimitExceeded, nearest
from .heads import (
    ANY_NAME,
    HEAD_ALIGNMENT,
    SAFETENSORS_README,
    JsonPath,
    PieceReader,
    as_bytes,
    byte_count,
    is_array,
    is_object,
    is_size,
    refuse_other_containers,
    refused,
    remember_small,
    shape_violation,
    shown,
    sizes_to_write,
)
from .json_tensor import tensor_from_json, tensor_to_json
from .npy import NPY_MEDIA_TYPE, NpyHead, NpyHeadReader, encode_npy_head
from .strict_json import count_objects, read_json

__all__ = [
    "ALSO_READ",
    "HEAD_ALIGNMENT",
    "MEDIA_TYPE",
    "NPY_MEDIA_TYPE",
    "BodyWriter",
    "FrameHead",
    "HeadReader",
    "NpyHead",
    "NpyHeadReader",
    "TensorEntry",
    "encode_head",
    "encode_npy_head",
    "tensor_from_json",
    "tensor_to_json",
]

MEDIA_TYPE = "application/vnd.safetensors"
"""What we write for a frame."""
ALSO_READ = ("application/x-safetensors",)
"""Media types read as if they were `MEDIA_TYPE`."""

_METADATA = "__metadata__"
_FRAME_TYPES = {row.safetensors: row for row in DATA_TYPES if row.safetensors is not None}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a frame's head.

    Attributes:
        name: any text.
        data_type: the row of its type.
        shape: sizes, row-major; empty for a scalar.
        begin: first byte, counted from the end of the head.
        end: byte after the last one; `end - begin` is the shape's product times the item size.
    """

    name: str
    data_type: DataType
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class FrameHead:
    """A frame's head, checked: the tensors cover the body exactly, in this order.

    Attributes:
        tensors: the tensors' entries, in the order of their offsets.
        metadata: the `__metadata__` texts; empty if there were none.
        head_bytes: length of the head, the 8 length bytes and the padding included.
    """

    tensors: tuple[TensorEntry, ...]
    metadata: Mapping[str, str]
    head_bytes: int

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors' names in the order of their offsets."""
        return tuple(tensor.name for tensor in self.tensors)

    @property
    def body_bytes(self) -> int:
        """Bytes after the head."""
        return self.tensors[-1].end if self.tensors else 0

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole frame: what Content-Length must say."""
        return self.head_bytes + self.body_bytes

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> TensorEntry:
        """The tensor of this name.

        Raises:
            InvalidFrame: there is none; the message lists those there are.
        """
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        there = ", ".join(repr(shown(n)) for n in self.names[:8]) + (", ..." if len(self.tensors) > 8 else "")
        raise InvalidFrame(f"the frame has no tensor {shown(str(name))!r}; it has {there or 'none at all'}")


# ---- writing heads ---------------------------------------------------------------------------------------------------


def encode_head(
    tensors: Sequence[tuple[str, DataType, tuple[int, ...]]],
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Write a frame's head; the tensors' bytes follow it directly, in the order given.

    Give the tensors by descending item size: then each is aligned to its own, without gaps (which the format forbids).

    Args:
        tensors: name, type and shape of each.
        metadata: texts for `__metadata__`, which is left out if there are none.

    Returns:
        8 length bytes, JSON, and spaces up to a multiple of `HEAD_ALIGNMENT`.

    Examples:
        >>> from tensorpost.datatypes import data_type
        >>> len(encode_head([("input", data_type("float32"), (2, 3))], {"id": "7"}))
        128

    Raises:
        InvalidParameter: a name that is used twice, reserved or not Unicode text; metadata that is not text; a type
            that the format does not have; a shape that no array can have.
    """
    head: dict[str, Any] = {}
    for key, text in metadata.items():
        if not isinstance(cast("object", key), str) or not isinstance(cast("object", text), str):
            raise InvalidParameter(f"metadata maps text to text; {key!r} holds {type(text).__name__}: write it as JSON")
    if metadata:
        head[_METADATA] = dict(metadata)
    at = 0
    for name, row, shape in tensors:
        if not isinstance(cast("object", name), str) or name == _METADATA:
            raise InvalidParameter(f"{name!r} cannot name a tensor; {_METADATA} is reserved, every other text is free")
        if name in head:
            raise InvalidParameter(f"two tensors are named {shown(name)!r}; names in a frame are unique")
        if row.safetensors is None:
            raise InvalidParameter(
                f"tensor {shown(name)!r} is {row.numpy_name}, which a frame cannot carry; "
                f"it carries {', '.join(row.numpy_name for row in _FRAME_TYPES.values())}"
            )
        sizes = sizes_to_write(row, shape, f"tensor {shown(name)!r}")
        end = at + byte_count(row, sizes)
        head[name] = {"dtype": row.safetensors, "shape": sizes, "data_offsets": [at, end]}
        at = end
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":"))
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(
            f"names and metadata must be Unicode text; {text[error.start]!r} is half of a surrogate pair"
        ) from None
    encoded += b" " * (-(8 + len(encoded)) % HEAD_ALIGNMENT)
    return len(encoded).to_bytes(8, "little") + encoded


# ---- reading heads ---------------------------------------------------------------------------------------------------


class HeadReader(PieceReader[FrameHead]):
    """Reads a frame's head from pieces of any size.

    Attributes:
        head: the head once it is complete and checked, before that None.

    Args:
        max_head_bytes: longest JSON text accepted. Default 1 MiB, room for some 10,000 tensors.
        content_length: length of the whole body, if it is known; the head must agree with it.
        max_tensors: most tensors accepted, which are counted before any entry is read. Default: no limit.

    Examples:
        >>> from tensorpost.datatypes import data_type
        >>> reader = HeadReader()
        >>> reader.feed(encode_head([("x", data_type("int8"), (3,))]) + b"abc")
        64
        >>> reader.finish()["x"].nbytes
        3
    """

    def __init__(
        self, *, max_head_bytes: int = 1 << 20, content_length: int | None = None, max_tensors: int | None = None
    ) -> None:
        super().__init__(8, max_head_bytes, content_length)
        self._max_tensors = max_tensors

    def _step(self) -> None:
        if len(self._collected) == 8:
            try:
                self._expect_head_of(int.from_bytes(self._collected, "little"))
            except (LimitExceeded, BodyMismatch):
                refuse_other_containers(self._collected)
                raise
        else:
            if self._collected[8] != ord("{"):
                refuse_other_containers(self._collected)
            if self._max_tensors is not None:
                self._refuse_more_tensors(self._max_tensors)
            self._accept(_read_head(bytes(self._collected[8:]), len(self._collected)))

    def _refuse_more_tensors(self, most: int) -> None:
        # Besides the tensors there are the head and its metadata; braces inside texts are not counted.
        if self._collected.count(b"{", 8) > most + 2 and (found := count_objects(self._collected[8:]) - 1) > most + 1:
            raise InvalidFrame(
                f"the frame's head has {found:,} entries; at most {most:,} tensors are read here",
                extra={"limit": most, "actual": found},
            )


@remember_small
def _read_head(text: bytes, head_bytes: int) -> FrameHead:
    if not text.startswith(b"{"):
        raise InvalidFrame(f"the frame's head must begin with '{{' at byte 8; it begins with {text[:8]!r}")
    try:
        document: dict[str, Any] = read_json(text, max_depth=8)
    except InvalidJson as error:
        raise InvalidFrame(f"the frame's head: {error.detail}", extra=error.extra) from None
    metadata = _metadata(document.pop(_METADATA, {}))
    entries = [_entry(name, member) for name, member in document.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    at = 0
    for entry in entries:
        if entry.begin != at:
            what = "leaves a gap after" if entry.begin > at else "overlaps"
            message = f"begins at byte {entry.begin} and so {what} what stands before it, which ends at byte {at}"
            raise _refused(
                "offsets-not-contiguous", (entry.name, "data_offsets"), message, [entry.begin, entry.end],
                f"[{at}, {at + entry.nbytes}]",
            )  # fmt: skip
        at = entry.end
    return FrameHead(tuple(entries), metadata, head_bytes)


def _metadata(member: object) -> Mapping[str, str]:
    if not is_object(member):
        raise _refused("not-an-object", (_METADATA,), "must be a JSON object of texts", member, "an object")
    for key, text in member.items():
        if not isinstance(text, str):
            message = "must be a text; write other values as JSON text"
            raise _refused("not-a-text", (_METADATA, key), message, text, "text")
    return MappingProxyType(member)


_ENTRY_KEYS = ("dtype", "shape", "data_offsets")


def _entry(name: str, member: object) -> TensorEntry:
    """Read `{"dtype": ..., "shape": [...], "data_offsets": [begin, end]}`, or refuse it at its place."""
    keys = ", ".join(_ENTRY_KEYS)
    if not is_object(member):
        raise _refused("not-an-object", (name,), f"must be an object with the members {keys}", member, keys)
    for key in _ENTRY_KEYS:
        if key not in member:
            raise _refused("field-missing", (name, key), "is required", None, keys)
    for key in member:
        if key not in _ENTRY_KEYS:
            raise _refused("field-unknown", (name, key), "is not a member of a tensor's entry", member[key], keys)
    dtype, shape, offsets = (member[key] for key in _ENTRY_KEYS)
    row = _FRAME_TYPES.get(dtype) if isinstance(dtype, str) else None
    if row is None:
        raise _refused("data-type-unknown", (name, "dtype"), _unknown_type(dtype), dtype, ", ".join(_FRAME_TYPES))
    if not is_array(shape):
        raise _refused("not-an-array", (name, "shape"), "must be an array of sizes", shape, "for instance [3, 64]")
    broken = shape_violation(row, shape)
    if broken is not None:
        raise _refused(broken.code, (name, "shape", *broken.path), broken.message, broken.value, broken.expected)
    if not (is_array(offsets) and len(offsets) == 2 and all(map(is_size, offsets))):
        message = "must be two whole numbers, the first byte and the byte after the last, counted from the head's end"
        raise _refused("offsets-malformed", (name, "data_offsets"), message, offsets, "[begin, end]")
    begin, end = offsets
    needed = byte_count(row, shape)
    if end - begin != needed:
        message = f"spans {end - begin} bytes; {row.safetensors} of shape {shape} has {needed}"
        raise _refused("offsets-span", (name, "data_offsets"), message, offsets, f"[{begin}, {begin + needed}]")
    return TensorEntry(name, row, tuple(shape), begin, end)


def _unknown_type(dtype: object) -> str:
    if isinstance(dtype, str):
        row = ANY_NAME.get(dtype)
        if row is not None and row.safetensors is not None:
            return f"is not how a frame's head says {row.numpy_name}; write {row.safetensors!r}"
        guess = nearest(dtype, _FRAME_TYPES)
        if guess:
            return f"is not a data type of a frame; did you mean {guess!r}?"
    return "is not a data type of a frame"


def _refused(code: str, path: JsonPath, message: str, value: object, expected: str) -> InvalidFrame:
    return refused(code, path, message, value, expected, SAFETENSORS_README)


# ---- bodies ----------------------------------------------------------------------------------------------------------


class BodyWriter:
    """Copies a body, piece by piece, into the buffers it consists of. Pieces are copied once and never joined.

    Attributes:
        received: bytes copied so far.
        expected: bytes of all buffers together.

    Args:
        views: writable, contiguous memory, in the order of the body; empty ones are allowed.

    Examples:
        >>> first, second = bytearray(2), bytearray(3)
        >>> writer = BodyWriter([memoryview(first), memoryview(second)])
        >>> writer.feed(b"ab1"); writer.feed(b"23"); writer.finish()
        >>> bytes(first), bytes(second)
        (b'ab', b'123')

    Raises:
        InvalidParameter: a view that is read-only or not contiguous.
    """

    __slots__ = ("_at", "_index", "_views", "expected", "received")

    def __init__(self, views: Sequence[memoryview]) -> None:
        for index, view in enumerate(views):
            if view.readonly or not view.c_contiguous:
                raise InvalidParameter(f"view {index} must be writable, contiguous memory")
        self._views = [as_bytes(view) for view in views if view.nbytes]
        self._index: int = 0
        self._at: int = 0
        self.received = 0
        self.expected = sum(view.nbytes for view in self._views)

    def feed(self, data: bytes | memoryview) -> None:
        """Copy the next piece.

        Raises:
            BodyMismatch: the piece reaches beyond the last buffer. Nothing of it was written.
        """
        # Slice assignment between memoryviews was 20 % faster than NumPy's for pieces of 256 KiB, and needs no wrapper.
        piece = as_bytes(data)
        size = len(piece)
        total = self.received + size
        if total > self.expected:
            raise BodyMismatch(
                f"the body is longer than its head says: {self.expected:,} bytes of tensors were expected, "
                f"at least {total:,} arrived",
                extra={"expected": self.expected, "actual": total},
            )
        taken = 0
        while taken < size:
            view = self._views[self._index]
            count = min(size - taken, len(view) - self._at)
            view[self._at : self._at + count] = piece[taken : taken + count]
            taken += count
            self._at += count
            if self._at == len(view):
                self._index += 1
                self._at: int = 0
        self.received = total

    def left(self) -> list[memoryview]:
        """The memory that is still to be filled, in order, for a reader that can write there without `feed`."""
        first, rest = self._views[self._index : self._index + 1], self._views[self._index + 1 :]
        return [*[view[self._at :] for view in first], *rest]

    def finish(self) -> None:
        """Say that the body has ended.

        Raises:
            BodyMismatch: bytes are missing.
        """
        if self.received != self.expected:
            raise BodyMismatch(
                f"the body is shorter than its head says: {self.expected:,} bytes of tensors were expected, "
                f"{self.received:,} arrived",
                extra={"expected": self.expected, "actual": self.received},
            )
