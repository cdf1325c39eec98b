"""Heads and buffers to bytes and back: the native frame, npy, and plain JSON for tiny tensors.

A frame is the safetensors layout::

    8 bytes    N, little-endian
    N bytes    {"__metadata__": {"id": "7"}, "x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}} and spaces
    the rest   the buffers, in the order of their offsets, with nothing between, before or behind them

The rules of this file:

1. No I/O. Readers are fed bytes as they come, in pieces of any size, and say how many they took.
2. A head is read completely, and found true, before its value exists. From then on nothing checks it again: its sizes
   are exact integers that NumPy can hold, and its spans cover the body without hole or overlap.
3. No memory is taken for tensors here. Bodies are copied once, piece by piece, into memory the caller gives.
4. The order of checks is the order of costs: announced length, JSON, entries, spans, total.
5. What cannot be read is refused with the exceptions of `problems.py`, and with nothing else.

Sources: the safetensors README ("Format"), NumPy's npy format (NEP 1 and `numpy.lib.format`). What we add to them:
heads are padded to 64 bytes, at most 64 dimensions (NumPy's own limit), sizes that fit a signed 64-bit integer.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, NoReturn, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from .datatypes import DATA_TYPES, DataType
from .problems import (
    BodyMismatch,
    InvalidDescriptor,
    InvalidFrame,
    InvalidJson,
    InvalidParameter,
    LimitExceeded,
    Violation,
    json_path,
    nearest,
)
from .strict_json import read_json

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
ALSO_READ = ("application/x-safetensors", "application/octet-stream")
"""Media types read as if they were `MEDIA_TYPE`."""
NPY_MEDIA_TYPE = "application/x-npy"
HEAD_ALIGNMENT = 64
"""Bytes; every head we write is a multiple long, so the first buffer is aligned for any vector unit and in browsers."""

_Path = tuple[str | int, ...]

_METADATA = "__metadata__"
_MOST_DIMENSIONS = 64  # NumPy's limit since 2.0
_MOST_BYTES = 2**63 - 1  # of one tensor; what NumPy's and safetensors' signed 64-bit sizes can say
_MOST_VIOLATIONS = 8  # of a JSON tensor's elements; a million wrong numbers need no million messages
_LONGEST_NAME_SHOWN = 80

_SAFETENSORS_README = "safetensors README, Format"
_NPY_FORMAT = "NumPy's npy format (NEP 1)"
_OUR_JSON = "tensorpost's JSON form of a tensor"

_FRAME_TYPES = {row.safetensors: row for row in DATA_TYPES if row.safetensors is not None}
_ANY_NAME = {
    name: row
    for row in DATA_TYPES
    for name in (row.numpy_name, row.directml, row.onnx, row.open_inference, row.safetensors)
    if name is not None
}
_JSON_TYPES = tuple(row for row in _FRAME_TYPES.values() if row.numpy_name != "complex64")
# By kind and item size, as in "f4". npy has no bfloat16 (NumPy saves it as void); strings would be pickles.
_NPY_TYPES = {row.dtype.str[1:]: row for row in DATA_TYPES if row.numpy_name not in ("bfloat16", "str")}


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
        tensors: in the order of their offsets.
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
        there = ", ".join(repr(_shown(n)) for n in self.names[:8]) + (", ..." if len(self.tensors) > 8 else "")
        raise InvalidFrame(f"the frame has no tensor {_shown(str(name))!r}; it has {there or 'none at all'}")


@dataclass(frozen=True, slots=True)
class NpyHead:
    """An npy head, checked: row-major and little-endian.

    Attributes:
        data_type: the row of its type.
        shape: sizes, row-major; empty for a scalar.
        head_bytes: length of the head, magic and padding included.
    """

    data_type: DataType
    shape: tuple[int, ...]
    head_bytes: int

    @property
    def body_bytes(self) -> int:
        """Bytes after the head."""
        return _byte_count(self.data_type, self.shape)

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole npy file: what Content-Length must say."""
        return self.head_bytes + self.body_bytes


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

    Example:
        >>> from tensorpost.datatypes import data_type
        >>> len(encode_head([("input", data_type("float32"), (2, 3))], {"id": "7"}))
        128

    Raises:
        InvalidParameter: a name that is used twice, reserved or no Unicode text; metadata that is no text; a type that
            the format does not have; a shape that no array can have.
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
            raise InvalidParameter(f"two tensors are named {_shown(name)!r}; names in a frame are unique")
        if row.safetensors is None:
            raise InvalidParameter(
                f"tensor {_shown(name)!r} is {row.numpy_name}, which a frame cannot carry; "
                f"it carries {', '.join(row.numpy_name for row in _FRAME_TYPES.values())}"
            )
        sizes = _sizes_to_write(row, shape, f"tensor {_shown(name)!r}")
        end = at + _byte_count(row, sizes)
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


def encode_npy_head(data_type: DataType, shape: Sequence[int]) -> bytes:
    """Write the head of an npy file; the elements follow it directly, row-major and little-endian.

    It is version 1.0, which every reader knows: 64 sizes of at most 19 digits always fit its 65,535 bytes.

    Returns:
        A multiple of `HEAD_ALIGNMENT` bytes.

    Raises:
        InvalidParameter: bfloat16 and strings, which npy cannot carry; a shape that no array can have.
    """
    if data_type not in _NPY_TYPES.values():
        other = "; send a frame (safetensors) instead" if data_type.safetensors else ""
        raise InvalidParameter(f"npy cannot carry {data_type.numpy_name}{other}")
    sizes = tuple(_sizes_to_write(data_type, shape, "the array"))
    text = f"{{'descr': '{data_type.dtype.str}', 'fortran_order': False, 'shape': {sizes}, }}".encode()
    text += b" " * (-(len(_NPY_START) + 2 + len(text) + 1) % HEAD_ALIGNMENT) + b"\n"
    return _NPY_START + len(text).to_bytes(2, "little") + text


def _sizes_to_write(row: DataType, shape: Sequence[int], what: str) -> list[int]:
    # NumPy's integers are as good as Python's; booleans are integers to operator.index, but no sizes.
    sizes = [operator.index(s) if hasattr(s, "__index__") and not isinstance(s, bool) else s for s in shape]
    broken = _shape_violation(row, sizes)
    if broken is not None:
        raise InvalidParameter(f"{what}: shape{json_path(broken.path)[1:]}: {broken.message}", (broken,))
    return sizes


# ---- reading heads ---------------------------------------------------------------------------------------------------

Head = TypeVar("Head", FrameHead, NpyHead)


class _PieceReader(ABC, Generic[Head]):
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
        piece = _as_bytes(data)
        taken = 0
        while self.head is None:
            part = piece[taken : taken + self._wanted - len(self._collected)]
            self._collected += part
            taken += len(part)
            if len(self._collected) < self._wanted:
                break
            self._step()
        return taken

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
                f"the head describes {head.body_bytes:,} bytes of tensors behind {head.head_bytes:,} of head, "
                f"{head.total_bytes:,} in all; the body has {length:,}",
                extra={"expected": head.total_bytes, "actual": length},
            )
        self.head = head
        self._collected.clear()


class HeadReader(_PieceReader[FrameHead]):
    """Reads a frame's head from pieces of any size.

    Attributes:
        head: the head once it is complete and checked, before that None.

    Args:
        max_head_bytes: longest JSON text accepted. Default 1 MiB, room for some 10,000 tensors.
        content_length: length of the whole body, if it is known; the head must agree with it.

    Example:
        >>> from tensorpost.datatypes import data_type
        >>> reader = HeadReader()
        >>> reader.feed(encode_head([("x", data_type("int8"), (3,))]) + b"abc")
        64
        >>> reader.finish()["x"].nbytes
        3
    """

    def __init__(self, *, max_head_bytes: int = 1 << 20, content_length: int | None = None) -> None:
        super().__init__(8, max_head_bytes, content_length)

    def _step(self) -> None:
        if len(self._collected) == 8:
            try:
                self._expect_head_of(int.from_bytes(self._collected, "little"))
            except (LimitExceeded, BodyMismatch):
                _refuse_other_containers(self._collected)
                raise
        else:
            if self._collected[8] != ord("{"):
                _refuse_other_containers(self._collected)
            self._accept(_frame_head(bytes(self._collected[8:])))


def _frame_head(text: bytes) -> FrameHead:
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
            what = "leaves a hole behind" if entry.begin > at else "overlaps"
            message = f"begins at byte {entry.begin} and so {what} what stands before it, which ends at byte {at}"
            raise _refused(
                "offsets-not-contiguous", (entry.name, "data_offsets"), message, [entry.begin, entry.end],
                f"[{at}, {at + entry.nbytes}]",
            )  # fmt: skip
        at = entry.end
    return FrameHead(tuple(entries), metadata, 8 + len(text))


def _metadata(member: object) -> Mapping[str, str]:
    if not _is_object(member):
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
    if not _is_object(member):
        raise _refused("not-an-object", (name,), f"must be an object with the members {keys}", member, keys)
    for key in _ENTRY_KEYS:
        if key not in member:
            raise _refused("field-missing", (name, key), "is required", None, keys)
    for key in member:
        if key not in _ENTRY_KEYS:
            raise _refused("field-unknown", (name, key), "is no member of a tensor's entry", member[key], keys)
    dtype, shape, offsets = (member[key] for key in _ENTRY_KEYS)
    row = _FRAME_TYPES.get(dtype) if isinstance(dtype, str) else None
    if row is None:
        raise _refused("data-type-unknown", (name, "dtype"), _unknown_type(dtype), dtype, ", ".join(_FRAME_TYPES))
    if not _is_array(shape):
        raise _refused("not-an-array", (name, "shape"), "must be an array of sizes", shape, "for instance [3, 64]")
    broken = _shape_violation(row, shape)
    if broken is not None:
        raise _refused(broken.code, (name, "shape", *broken.path), broken.message, broken.value, broken.expected)
    if not (_is_array(offsets) and len(offsets) == 2 and all(map(_is_size, offsets))):
        message = "must be two whole numbers, the first byte and the byte after the last, counted from the head's end"
        raise _refused("offsets-malformed", (name, "data_offsets"), message, offsets, "[begin, end]")
    begin, end = offsets
    needed = _byte_count(row, shape)
    if end - begin != needed:
        message = f"spans {end - begin} bytes; {row.safetensors} of shape {shape} has {needed}"
        raise _refused("offsets-span", (name, "data_offsets"), message, offsets, f"[{begin}, {begin + needed}]")
    return TensorEntry(name, row, tuple(shape), begin, end)


def _unknown_type(dtype: object) -> str:
    if isinstance(dtype, str):
        row = _ANY_NAME.get(dtype)
        if row is not None and row.safetensors is not None:
            return f"is not how a frame's head says {row.numpy_name}; write {row.safetensors!r}"
        guess = nearest(dtype, _FRAME_TYPES)
        if guess:
            return f"is no data type of a frame; did you mean {guess!r}?"
    return "is no data type of a frame"


def _refused(
    code: str, path: _Path, message: str, value: object, expected: str, source: str = _SAFETENSORS_README
) -> InvalidFrame:
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


def _refuse_other_containers(start: bytes | bytearray) -> None:
    for magic, advice in _OTHER_CONTAINERS:
        if start.startswith(magic):
            raise InvalidFrame(f"the body is not what its Content-Type says; it looks like {advice}")


# ---- npy -------------------------------------------------------------------------------------------------------------

_NPY_MAGIC = b"\x93NUMPY"
_NPY_START = _NPY_MAGIC + b"\x01\x00"
_NPY_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4, (3, 0): 4}

# The head is the text of a Python dict. It is matched, entry by entry, and never evaluated.
_NPY_ENTRY = re.compile(
    rb"""[ \t\n]*+ (?P<quote>['"]) (?P<key>[A-Za-z_]*+) (?P=quote) [ \t\n]*+ : [ \t\n]*+
    (?: '(?P<text>[^'"\\\n]*+)' | "(?P<text2>[^'"\\\n]*+)" | (?P<flag>True|False) | \((?P<sizes>[^()\[\]{}]*+)\) )
    [ \t\n]*+ (?P<comma>,?) [ \t\n]*+""",
    re.VERBOSE,
)
_NPY_SIZE = re.compile(rb"[ \t\n]*+ (0|-?[1-9][0-9]{0,39}) [ \t\n]*+", re.VERBOSE)
_NPY_KEYS = ("descr", "fortran_order", "shape")
_NPY_KINDS = {
    "O": "Python objects, which would have to be unpickled; convert them to numbers",
    "U": "text; only numbers and booleans are read here",
    "S": "text; only numbers and booleans are read here",
    "a": "text; only numbers and booleans are read here",
    "M": "dates; send them as .view('<i8')",
    "m": "time spans; send them as .view('<i8')",
    "V": "raw void (NumPy saves bfloat16 so); send bfloat16 as a frame (safetensors), dtype BF16",
}


class NpyHeadReader(_PieceReader[NpyHead]):
    """Reads the head of an npy file, version 1.0, 2.0 or 3.0, from pieces of any size.

    Attributes:
        head: the head once it is complete and checked, before that None.

    Args:
        max_head_bytes: longest header text accepted. Default 64 KiB, the most that version 1.0 can have.
        content_length: length of the whole body, if it is known; the head must agree with it.
    """

    def __init__(self, *, max_head_bytes: int = 1 << 16, content_length: int | None = None) -> None:
        super().__init__(len(_NPY_START), max_head_bytes, content_length)
        self._text_at = 0

    def _step(self) -> None:
        start_bytes = len(_NPY_START)
        if not self._text_at:
            start = bytes(self._collected)
            if not start.startswith(_NPY_MAGIC):
                _refuse_other_containers(start)
                raise InvalidFrame(f"an npy file begins with {_NPY_MAGIC!r}; the body begins with {start!r}")
            version = (start[6], start[7])
            if version not in _NPY_LENGTH_BYTES:
                raise InvalidFrame(
                    f"npy version {version[0]}.{version[1]} is not read here; NumPy's versions 1.0, 2.0 and 3.0 are"
                )
            self._wanted = self._text_at = start_bytes + _NPY_LENGTH_BYTES[version]
        elif len(self._collected) == self._text_at:
            self._expect_head_of(int.from_bytes(self._collected[start_bytes:], "little"))
        else:
            self._accept(_npy_head(bytes(self._collected[self._text_at :]), len(self._collected)))


def _npy_head(text: bytes, head_bytes: int) -> NpyHead:
    entries = _npy_entries(text)
    for key in _NPY_KEYS:
        if key not in entries:
            raise _npy_refused("field-missing", key, "is required", None, ", ".join(_NPY_KEYS))
    descr, fortran, shape = (entries[key] for key in _NPY_KEYS)
    row = _npy_type(descr)
    if not isinstance(fortran, bool):
        raise _npy_refused("not-a-flag", "fortran_order", "must be True or False", fortran, "False")
    if not isinstance(shape, tuple):
        raise _npy_refused("not-an-array", "shape", "must be a tuple of sizes", shape, "for instance (2, 3) or (3,)")
    broken = _shape_violation(row, shape)
    if broken is not None:
        raise _npy_refused(broken.code, "shape", broken.message, broken.value, broken.expected, *broken.path)
    if fortran and 0 not in shape and sum(size != 1 for size in shape) > 1:
        raise _npy_refused(
            "fortran-order", "fortran_order", "is True: the elements stand column by column; send a row-major copy, "
            "np.ascontiguousarray(x)", fortran, "False",
        )  # fmt: skip
    return NpyHead(row, shape, head_bytes)


def _npy_entries(text: bytes) -> dict[str, str | bool | tuple[int, ...]]:
    """Match the whole header text as a dict of texts, flags and tuples of whole numbers."""
    body = text.strip(b" \t\n")
    if not (body.startswith(b"{") and body.endswith(b"}")):
        raise InvalidFrame(f"an npy header is the text of a dict, {{...}}; this one is {_shown(repr(text))}")
    entries: dict[str, str | bool | tuple[int, ...]] = {}
    at, last, comma = 1, len(body) - 1, True
    while at < last:
        match = _NPY_ENTRY.match(body, at, last)
        if match is None or not comma:
            if re.match(rb"\s*(['\"])descr\1\s*:\s*\[", body[at:last]):
                raise _npy_refused(
                    "data-type-unknown", "descr", "is a structured type; send each field as an array of its own",
                    body[at:last].decode("latin-1"), "one of " + ", ".join(_NPY_TYPES),
                )  # fmt: skip
            raise InvalidFrame(
                f"the npy header cannot be read at its byte {at}, near {body[at : at + 40]!r}; its entries are quoted "
                "names with a text, True, False or a tuple of whole numbers, and nothing is evaluated"
            )
        key = match["key"].decode("ascii")
        if key not in _NPY_KEYS:
            raise _npy_refused("field-unknown", key, "is no entry of an npy header", None, ", ".join(_NPY_KEYS))
        if key in entries:
            raise _npy_refused("field-twice", key, "stands twice", None, "once")
        value = match["text"] if match["text"] is not None else match["text2"]
        if value is not None:
            entries[key] = value.decode("latin-1")
        elif match["flag"] is not None:
            entries[key] = match["flag"] == b"True"
        else:
            entries[key] = _npy_sizes(key, match["sizes"])
        at, comma = match.end(), bool(match["comma"])
    return entries


def _npy_sizes(key: str, text: bytes) -> tuple[int, ...]:
    parts = text.split(b",", _MOST_DIMENSIONS + 2)
    if not parts[-1].strip():
        parts.pop()  # the comma behind the last size, or no size at all
    elif len(parts) == 1:
        parts = [b""]  # (3) is a number in Python, (3,) a tuple
    matches = [_NPY_SIZE.fullmatch(part) for part in parts]
    if None in matches:
        raise _npy_refused(
            "shape-size", key, "must be a tuple of whole numbers, with a comma behind a single one",
            f"({text.decode('latin-1')})", "for instance (2, 3), (3,) or ()",
        )  # fmt: skip
    return tuple(int(match[1]) for match in matches if match is not None)


def _npy_type(descr: object) -> DataType:
    text = descr if isinstance(descr, str) else ""
    order, code = (text[:1], text[1:]) if text[:1] in tuple("<>|=") else ("", text)
    row = _NPY_TYPES.get(code)
    expected = "one of " + ", ".join(row.dtype.str for row in _NPY_TYPES.values())
    if row is None:
        kind = _NPY_KINDS.get(code[:1], "no data type that is read here")
        raise _npy_refused("data-type-unknown", "descr", f"is {kind}", descr, expected)
    if row.item_size > 1 and order == ">":
        raise _npy_refused("byte-order", "descr", f"is big-endian; send x.astype('<{code}')", descr, row.dtype.str)
    if row.item_size > 1 and order != "<":
        raise _npy_refused("byte-order", "descr", f"must name its byte order; write '<{code}'", descr, row.dtype.str)
    return row


def _npy_refused(code: str, key: str, message: str, value: object, expected: str, *place: str | int) -> InvalidFrame:
    return _refused(code, (key, *place), message, value, expected, _NPY_FORMAT)


# ---- bodies ----------------------------------------------------------------------------------------------------------


class BodyWriter:
    """Copies a body, piece by piece, into the buffers it consists of. Pieces are copied once and never joined.

    Attributes:
        received: bytes copied so far.
        expected: bytes of all buffers together.

    Args:
        views: writable, contiguous memory, in the order of the body; empty ones are allowed.

    Example:
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
        self._views = [_as_bytes(view) for view in views if view.nbytes]
        self._index = 0
        self._at = 0
        self.received = 0
        self.expected = sum(view.nbytes for view in self._views)

    def feed(self, data: bytes | memoryview) -> None:
        """Copy the next piece.

        Raises:
            BodyMismatch: the piece reaches beyond the last buffer. Nothing of it was written.
        """
        # Slice assignment between memoryviews was 20 % faster than NumPy's for pieces of 256 KiB, and needs no wrapper.
        piece = _as_bytes(data)
        size = len(piece)
        total = self.received + size
        if total > self.expected:
            raise BodyMismatch(
                f"the body is longer than its head says: {self.expected:,} bytes of tensors were expected, "
                f"at least {total:,} came",
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
                self._at = 0
        self.received = total

    def finish(self) -> None:
        """Say that the body has ended.

        Raises:
            BodyMismatch: bytes are missing.
        """
        if self.received != self.expected:
            raise BodyMismatch(
                f"the body is shorter than its head says: {self.expected:,} bytes of tensors were expected, "
                f"{self.received:,} came",
                extra={"expected": self.expected, "actual": self.received},
            )


# ---- JSON ------------------------------------------------------------------------------------------------------------


def tensor_to_json(array: NDArray[Any]) -> dict[str, Any]:
    """Write a small array as plain JSON: `{"dtype": "F32", "shape": [2], "data": [0.1, 2.0]}`.

    The data is flat, row-major. Floats have short decimals that read back to the same bits, integers are exact
    (readers that hold numbers as float64, browsers for one, round integers beyond 2^53). -0.0 is kept.

    Raises:
        InvalidParameter: NaN or infinity, which JSON cannot say; complex numbers, text and other types.
    """
    array = np.asarray(array)
    row = _ANY_NAME.get(array.dtype.name)
    if row not in _JSON_TYPES:
        raise InvalidParameter(
            f"an array of {array.dtype} has no JSON form here; JSON tensors hold numbers and booleans"
        )
    flat = array.ravel()
    if row.dtype.kind in "biu":
        data: list[Any] = flat.tolist()
    else:
        with np.errstate(invalid="ignore"):  # a signalling NaN is refused below, like any other
            exact = flat.astype(np.float64)
        bad = np.flatnonzero(~np.isfinite(exact))
        if bad.size:
            place = json_path(map(int, np.unravel_index(int(bad[0]), array.shape)))[1:] or "[]"
            raise InvalidParameter(
                f"{bad.size} of {flat.size} elements are not finite, the first at {place}, and JSON has no words for "
                "them; ask for a binary form, npy or a frame (safetensors)"
            )
        short = np.array([float(str(element)) for element in flat], np.float64)
        # Seldom, decimals that are right for the narrow type land beside it when read as float64 first.
        data = np.where(short.astype(flat.dtype) == flat, short, exact).tolist()
    return {"dtype": row.safetensors, "shape": list(array.shape), "data": data}


def tensor_from_json(document: Mapping[str, Any], *, path: tuple[str | int, ...] = ()) -> NDArray[Any]:
    """Read `{"dtype": ..., "shape": [...], "data": [...]}`, the data nested like the shape, or flat.

    Numbers must suit the type: no fractions or decimal points in integers, nothing out of range, `true` and `false` in
    booleans and nowhere else. Decimals are rounded to the nearest value. NaN and infinities, which only reach this
    function if the JSON's reader let them pass, are kept in floating-point types.

    Args:
        document: the parsed JSON object; `dtype` may be any of the type's names.
        path: where the object stands in the whole document, for the paths of violations.

    Returns:
        A new row-major array, its memory in proportion to the document.

    Raises:
        InvalidDescriptor: with up to 8 violations and their JSON paths.
        ModuleNotFoundError: bfloat16 without the package `ml_dtypes`.
    """
    row, sizes, data = _json_members(document, path)
    flat, grid = _flat_data(data, sizes, (*path, "data"))
    count = math.prod(sizes)
    if len(flat) != count:
        raise _invalid(
            "data-count", (*path, "data"), f"has {len(flat):,} elements; shape {list(sizes)} needs {count:,}",
            len(flat), f"{count:,} elements",
        )  # fmt: skip

    def refuse(code: str, wrong: Iterable[int], expected: str) -> NoReturn:
        places = ((index, map(int, np.unravel_index(index, grid))) for index in wrong)
        raise InvalidDescriptor.of(
            [
                Violation(code, (*path, "data", *place), f"must be {expected}", flat[index], expected, _OUR_JSON)
                for index, place in itertools.islice(places, _MOST_VIOLATIONS)
            ]
        )

    dtype = row.dtype
    allowed, words = _JSON_ELEMENTS.get(dtype.kind, _JSON_REAL)
    if not allowed.issuperset(map(type, flat)):
        refuse("element-type", (i for i, x in enumerate(flat) if type(x) not in allowed), words)
    if dtype.kind in "iu":
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        if flat and (min(flat) < low or max(flat) > high):
            wrong = (i for i, x in enumerate(flat) if not low <= x <= high)
            refuse("element-range", wrong, f"from {low} to {high} in {row.numpy_name}")
    if dtype.kind in "biu":
        return np.array(flat, dtype).reshape(sizes)
    too_large = f"small enough for {row.numpy_name}"
    try:
        wide = np.array(flat, np.float64)
    except OverflowError:
        most = sys.float_info.max
        refuse("element-range", (i for i, x in enumerate(flat) if type(x) is int and abs(x) > most), too_large)
    with np.errstate(over="ignore"):
        array = wide.astype(dtype)
    infinite = np.flatnonzero(np.isinf(array) & np.isfinite(wide))
    if infinite.size:
        refuse("element-range", map(int, infinite), too_large)
    return array.reshape(sizes)


_JSON_KEYS = ("dtype", "shape", "data")
# What a JSON reader makes of an element, by NumPy's kind of dtype; bool is not int here.
_JSON_INTEGER = (frozenset({int}), "a whole number, without a decimal point")
_JSON_ELEMENTS = {"b": (frozenset({bool}), "true or false"), "i": _JSON_INTEGER, "u": _JSON_INTEGER}
_JSON_REAL = (frozenset({int, float}), "a number")


def _json_members(document: object, path: _Path) -> tuple[DataType, tuple[int, ...], object]:
    keys = ", ".join(_JSON_KEYS)
    if not _is_object(document):
        raise _invalid("not-an-object", path, f"must be an object with the members {keys}", document, keys)
    missing = [(key, "field-missing", "is required") for key in _JSON_KEYS if key not in document]
    unknown = [(key, "field-unknown", "is no member of a tensor") for key in document if key not in _JSON_KEYS]
    if missing or unknown:
        raise InvalidDescriptor.of(
            [
                Violation(code, (*path, key), message, document.get(key), keys, _OUR_JSON)
                for key, code, message in [*missing, *unknown][:_MOST_VIOLATIONS]
            ]
        )
    dtype, shape, data = (document[key] for key in _JSON_KEYS)
    row = _ANY_NAME.get(dtype) if isinstance(dtype, str) else None
    if row is None or row not in _JSON_TYPES:
        message = "is no data type that JSON numbers or booleans can say"
        names = ", ".join(row.safetensors or "" for row in _JSON_TYPES)
        raise _invalid("data-type-unknown", (*path, "dtype"), message, dtype, names)
    if not _is_array(shape):
        raise _invalid("not-an-array", (*path, "shape"), "must be an array of sizes", shape, "for instance [3, 64]")
    broken = _shape_violation(row, shape)
    if broken is not None:
        raise InvalidDescriptor.of([broken.under(*path, "shape")])
    return row, tuple(shape), data


def _flat_data(data: object, sizes: tuple[int, ...], path: _Path) -> tuple[list[Any], tuple[int, ...]]:
    """The elements in a row, and the shape they stood in, for the paths of violations."""
    if not _is_array(data):
        if sizes:
            message = "must be an array of elements, flat or nested like shape"
            raise _invalid("not-an-array", path, message, data, "an array")
        return [data], ()
    if not any(map(_is_array, data)):
        return data, (len(data),)
    flat: list[Any] = []

    def descend(node: object, sizes: tuple[int, ...], place: tuple[int, ...]) -> None:
        # One level per size, so never deeper than _MOST_DIMENSIONS.
        if not sizes:
            flat.append(node)
        elif not _is_array(node) or len(node) != sizes[0]:
            found = f"{len(node):,} elements" if _is_array(node) else "no array"
            message = f"is {found}; data that nests must follow shape: {sizes[0]:,} elements here"
            raise _invalid("data-nesting", (*path, *place), message, found, f"{sizes[0]} elements")
        elif len(sizes) == 1:
            flat.extend(node)
        else:
            for index, child in enumerate(node):
                descend(child, sizes[1:], (*place, index))

    descend(data, sizes, ())
    return flat, sizes


def _invalid(code: str, path: _Path, message: str, value: object, expected: str) -> InvalidDescriptor:
    return InvalidDescriptor.of([Violation(code, path, message, value, expected, _OUR_JSON)])


# ---- shared ----------------------------------------------------------------------------------------------------------


def _as_bytes(data: bytes | memoryview) -> memoryview:
    view = memoryview(data)
    # A memoryview with a dimension of 0 cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")


def _is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a JSON reader made it from an object."""
    return isinstance(value, Mapping)


def _is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether a JSON reader made it from an array."""
    return isinstance(value, list)


def _byte_count(row: DataType, sizes: Sequence[int]) -> int:
    return row.item_size * math.prod(sizes)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST_BYTES


def _shape_violation(row: DataType, sizes: Sequence[object]) -> Violation | None:
    """What keeps this shape from being an array's, or None. Paths start at the shape."""
    if len(sizes) > _MOST_DIMENSIONS:
        return Violation(
            "dimension-count", (), f"has {len(sizes)} dimensions; at most {_MOST_DIMENSIONS} are read",
            len(sizes), f"0 to {_MOST_DIMENSIONS} sizes", "NumPy's limit of dimensions",
        )  # fmt: skip
    for axis, size in enumerate(sizes):
        if not _is_size(size):
            return Violation(
                "shape-size", (axis,), "must be a whole number, 0 or larger, that fits a signed 64-bit integer",
                size, "0 to 2^63 - 1", _SAFETENSORS_README,
            )  # fmt: skip
    # A size of 0 empties the tensor, but NumPy's strides still multiply the other sizes.
    extent = row.item_size * math.prod(size or 1 for size in cast("Sequence[int]", sizes))
    if extent > _MOST_BYTES:
        return Violation(
            "shape-too-large", (), "needs more bytes than a signed 64-bit integer can count",
            list(sizes), "at most 2^63 - 1 bytes", "NumPy's limit of an array's extent",
        )  # fmt: skip
    return None


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME_SHOWN else f"{text[:_LONGEST_NAME_SHOWN]}..."
