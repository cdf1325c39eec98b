"""What the readers and writers of heads share: collecting a head from pieces, checking shapes, refusing.

The rules that every form of a tensor keeps:

1. No I/O. Readers are fed bytes as they come, in pieces of any size, and say how many they took.
2. A head is read completely, and found true, before its value exists. From then on nothing checks it again: its sizes
   are exact integers that NumPy can hold.
3. Memory grows with what came, never by what was announced.
4. What cannot be read is refused with the exceptions of `problems.py`, and with nothing else.

Sizes have NumPy's own limits: at most 64 dimensions, and an extent that fits a signed 64-bit integer.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeGuard, TypeVar, cast

from ..values.datatypes import BOOLEANS, DATA_TYPES, DataType
from ..values.problems import BodyMismatch, InvalidFrame, InvalidParameter, LimitExceeded, Violation, json_path

NPY_MEDIA_TYPE = "application/x-npy"
HEAD_ALIGNMENT = 64
"""Bytes; every head we write is a multiple long, so the first buffer is aligned for any vector unit and in browsers."""
SAFETENSORS_README = "safetensors README, Format"
MOST_DIMENSIONS = 64  # NumPy's limit since 2.0

JsonPath = tuple[str | int, ...]
"""Where a violation stands, from the document's root."""

_MOST_BYTES = 2**63 - 1  # of one tensor; what NumPy's and safetensors' signed 64-bit sizes can say
_LONGEST_NAME_SHOWN = 80
# Heads of one tensor and its operator have a few hundred bytes. At most 64 * 4 KiB of texts are kept of each form.
_LONGEST_REMEMBERED = 4096
_MOST_REMEMBERED = 64

ANY_NAME = {
    name: row
    for row in DATA_TYPES
    for name in (row.numpy_name, row.directml, row.onnx, row.open_inference, row.safetensors)
    if name is not None
}
"""Rows by each of their names, in whatever system."""


# ---- reading heads ---------------------------------------------------------------------------------------------------


class _HeadLengths(Protocol):
    @property
    def head_bytes(self) -> int: ...
    @property
    def body_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...


Head = TypeVar("Head", bound=_HeadLengths)


class PieceReader(ABC, Generic[Head]):
    """Collects a head from pieces: waits for `_wanted` bytes, then takes a step, until a step gives the head.

    A refusal leaves the reader as it was before the step, so feeding it again refuses again.
    """

    def __init__(self, wanted: int, max_head_bytes: int, content_length: int | None) -> None:
        self.head: Head | None = None
        self._collected = bytearray()  # grows with what came, never by what was announced
        self._wanted = wanted
        self._max_head_bytes = max_head_bytes
        self._content_length = content_length

    def feed(self, data: bytes | memoryview) -> int:
        """Take the head's bytes from the front of `data`.

        Returns:
            How many bytes were taken; the rest belongs to the buffers. 0 once `head` is set.

        Raises:
            InvalidFrame: the head is malformed, or contradicts itself.
            LimitExceeded: it announces more bytes than `max_head_bytes`.
            BodyMismatch: it contradicts `content_length`.
        """
        piece = as_bytes(data)
        taken = 0
        while self.head is None:
            part = piece[taken : taken + self._wanted - len(self._collected)]
            self._collected += part
            taken += len(part)
            if len(self._collected) < self._wanted:
                break
            self._step()
        return taken

    @property
    def wanted(self) -> int:
        """Length in bytes of what has to be collected before the next step, as far as is known."""
        return self._wanted

    @property
    def missing(self) -> int:
        """How many of them have not been fed, at least 1 until there is a head."""
        return self._wanted - len(self._collected)

    def finish(self) -> Head:
        """The head, once the input has ended.

        Raises:
            BodyMismatch: the input ended inside the head.
        """
        if self.head is None:
            got = len(self._collected)
            raise BodyMismatch(
                f"the body ended after {got} bytes, inside its head, which needs at least {self._wanted}",
                extra={"expected": self._wanted, "actual": got},
            )
        return self.head

    @abstractmethod
    def _step(self) -> None:
        """Use the bytes collected: raise `_wanted` or set `head`."""

    def _expect_head_of(self, text_bytes: int) -> None:
        """Accept or refuse the announced length of the head's text, then wait for it."""
        limit, length = self._max_head_bytes, self._content_length
        if text_bytes < 2:
            raise InvalidFrame(f"the announced head is {text_bytes} bytes long; the shortest one, {{}}, has 2")
        if text_bytes > limit:
            raise LimitExceeded.of("the announced head", text_bytes, limit, "TENSORPOST_MAX_HEAD_BYTES")
        head_bytes = len(self._collected) + text_bytes
        if length is not None and head_bytes > length:
            raise BodyMismatch(
                f"the head announces that it ends at byte {head_bytes:,}; the body has {length:,} bytes only",
                extra={"expected": head_bytes, "actual": length},
            )
        self._wanted = head_bytes

    def _accept(self, head: Head) -> None:
        """Set the head, unless the body cannot be what it describes."""
        length = self._content_length
        if length is not None and head.total_bytes != length:
            raise BodyMismatch(
                f"the head describes {head.body_bytes:,} bytes of tensors after a head of {head.head_bytes:,}, "
                f"{head.total_bytes:,} in all; the body has {length:,}",
                extra={"expected": head.total_bytes, "actual": length},
            )
        self.head = head
        self._collected.clear()


def remember_small(read: Callable[[bytes, int], Head]) -> Callable[[bytes, int], Head]:
    """Let a function that reads a head's text remember what it lately read.

    Callers send the same head again and again. Only short texts are remembered, a few of them, and no refusals; what
    `read` returns must be immutable, for all readers of the same text share it.
    """
    remembered = lru_cache(_MOST_REMEMBERED)(read)

    def read_or_remember(text: bytes, head_bytes: int) -> Head:
        return (remembered if len(text) <= _LONGEST_REMEMBERED else read)(text, head_bytes)

    return read_or_remember


# ---- refusing --------------------------------------------------------------------------------------------------------


def refused(code: str, path: JsonPath, message: str, value: object, expected: str, source: str) -> InvalidFrame:
    """The refusal of a head for what stands at `path`."""
    return InvalidFrame(f"{json_path(path)}: {message}", (Violation(code, path, message, value, expected, source),))


# What people send by mistake, by its first bytes: (bytes, what it is and what to do).
_OTHER_CONTAINERS = (
    (b"\x93NUMPY", f"an npy file: send it with Content-Type {NPY_MEDIA_TYPE}"),
    ((b'{"', b"{ ", b"{\n"), "JSON text: send it with Content-Type application/json"),
    (b"\x89PNG", "a PNG picture: send it with Content-Type image/png"),
    (b"\xff\xd8\xff", "a JPEG picture: send it with Content-Type image/jpeg"),
    (b"RIFF", "a WebP picture: send it with Content-Type image/webp"),
    (b"PK\x03\x04", "a zip or npz archive: send one array as npy, or several as a frame"),
    (b"\x1f\x8b", "gzip: name it in Content-Encoding, or unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstd: name it in Content-Encoding, or unpack it first"),
)


def refuse_other_containers(start: bytes | bytearray) -> None:
    """Raise InvalidFrame if the body begins like something else that people send; the message says what to do."""
    for magic, advice in _OTHER_CONTAINERS:
        if start.startswith(magic):
            raise InvalidFrame(f"the body is not what its Content-Type says; it looks like {advice}")


def shown(text: str) -> str:
    """The text, shortened if it is too long to be repeated in a message."""
    return text if len(text) <= _LONGEST_NAME_SHOWN else f"{text[:_LONGEST_NAME_SHOWN]}..."


# ---- shapes and sizes ------------------------------------------------------------------------------------------------


def sizes_to_write(row: DataType, shape: Sequence[int], what: str) -> list[int]:
    """A caller's shape as Python integers.

    Raises:
        InvalidParameter: no array of this type can have the shape; the message begins with `what`.
    """
    # NumPy's integers are as good as Python's; booleans are integers to operator.index, but no sizes.
    sizes = [operator.index(s) if hasattr(s, "__index__") and not isinstance(s, BOOLEANS) else s for s in shape]
    broken = shape_violation(row, sizes)
    if broken is not None:
        raise InvalidParameter(f"{what}: shape{json_path(broken.path)[1:]}: {broken.message}", (broken,))
    return sizes


def shape_violation(row: DataType, sizes: Sequence[object]) -> Violation | None:
    """What keeps this shape from being an array's, or None. Paths start at the shape."""
    if len(sizes) > MOST_DIMENSIONS:
        return Violation(
            "dimension-count", (), f"has {len(sizes)} dimensions; at most {MOST_DIMENSIONS} are read",
            len(sizes), f"0 to {MOST_DIMENSIONS} sizes", "NumPy's limit of dimensions",
        )  # fmt: skip
    for axis, size in enumerate(sizes):
        if type(size) is not int or not 0 <= size <= _MOST_BYTES:  # as `is_size`, without a call for each
            return Violation(
                "shape-size", (axis,), "must be a whole number, 0 or larger, that fits a signed 64-bit integer",
                size, "0 to 2^63 - 1", SAFETENSORS_README,
            )  # fmt: skip
    # A size of 0 empties the tensor, but NumPy's strides still multiply the other sizes.
    extent = row.item_size * math.prod(filter(None, cast("Sequence[int]", sizes)))
    if extent > _MOST_BYTES:
        return Violation(
            "shape-too-large", (), "needs more bytes than a signed 64-bit integer can count",
            list(sizes), "at most 2^63 - 1 bytes", "NumPy's limit of an array's extent",
        )  # fmt: skip
    return None


def is_size(value: object) -> bool:
    """Whether it is a whole number, 0 or larger, that fits a signed 64-bit integer."""
    return type(value) is int and 0 <= value <= _MOST_BYTES


def byte_count(row: DataType, sizes: Sequence[int]) -> int:
    """Bytes of a tensor of this type and shape."""
    return row.item_size * math.prod(sizes)


# ---- values ----------------------------------------------------------------------------------------------------------


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a JSON reader made it from an object."""
    return isinstance(value, Mapping)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether a JSON reader made it from an array."""
    return isinstance(value, list)


def as_bytes(data: bytes | memoryview) -> memoryview:
    """The same memory as a flat view of bytes."""
    view = memoryview(data)
    # A memoryview with a dimension of 0 cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")
