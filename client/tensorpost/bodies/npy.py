"""The head of an npy file, written and read; the file's elements follow it, row-major and little-endian.

The rules of this file, besides those of `bodies/heads.py`:

1. The head is the text of a Python dict. It is matched, entry by entry, and never evaluated.
2. Nothing is unpickled, swapped or transposed: object arrays are refused, and so are big-endian and column-major ones
   unless the caller can read them; the message says what to send.

Source: NumPy's npy format (NEP 1 and `numpy.lib.format`). What we add to it: types of `ml_dtypes` by their names
(`'descr': 'bfloat16'`), which `np.load` reads once `ml_dtypes` is imported; heads are padded to 64 bytes, at most 64
dimensions (NumPy's own limit), sizes that fit a signed 64-bit integer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..values.datatypes import DATA_TYPES, DataType
from ..values.problems import InvalidFrame, InvalidParameter
from .heads import (
    HEAD_ALIGNMENT,
    MOST_DIMENSIONS,
    NPY_MEDIA_TYPE,
    PieceReader,
    refuse_other_containers,
    refused,
    remember_small,
    shape_violation,
    shown,
    sizes_to_write,
)

__all__ = ["NPY_MEDIA_TYPE", "NpyHead", "NpyHeadReader", "encode_npy_head"]

_NPY_FORMAT = "NumPy's npy format (NEP 1)"
# By kind and item size, as in "f4"; types of ml_dtypes by their names, which np.load knows where ml_dtypes is loaded.
# np.save writes those as void. Strings would be pickles.
_TYPES = {
    row.numpy_name if row.in_ml_dtypes else row.dtype.str[1:]: row for row in DATA_TYPES if row.numpy_name != "str"
}
_DESCRS = {row.numpy_name: code if row.in_ml_dtypes else row.dtype.str for code, row in _TYPES.items()}
_EVERY_DESCR = "one of " + ", ".join(_DESCRS.values())

NPY_MAGIC = b"\x93NUMPY"
_START = NPY_MAGIC + b"\x01\x00"
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4, (3, 0): 4}

_ENTRY = re.compile(
    rb"""[ \t\n]*+ (?P<quote>['"]) (?P<key>[A-Za-z_]*+) (?P=quote) [ \t\n]*+ : [ \t\n]*+
    (?: '(?P<text>[^'"\\\n]*+)' | "(?P<text2>[^'"\\\n]*+)" | (?P<flag>True|False) | \((?P<sizes>[^()\[\]{}]*+)\) )
    [ \t\n]*+ (?P<comma>,?) [ \t\n]*+""",
    re.VERBOSE,
)
_SIZE = re.compile(rb"[ \t\n]*+ (0|-?[1-9][0-9]{0,39}) [ \t\n]*+", re.VERBOSE)
_KEYS = ("descr", "fortran_order", "shape")
_KINDS = {
    "O": "Python objects, which would have to be unpickled; convert them to numbers",
    "U": "text; only numbers and booleans are read here",
    "S": "text; only numbers and booleans are read here",
    "a": "text; only numbers and booleans are read here",
    "M": "dates; send them as .view('<i8')",
    "m": "time spans; send them as .view('<i8')",
    "V": "raw void (np.save writes bfloat16 and the other types of ml_dtypes so); write its name, 'bfloat16', as the "
    "descr, or send a frame (safetensors)",
}


@dataclass(frozen=True, slots=True)
class NpyHead:
    """An npy head, checked. Row-major and little-endian unless the reader was told to take `any_order`.

    Attributes:
        data_type: the row of its type.
        shape: sizes; empty for a scalar.
        head_bytes: length of the head, magic and padding included.
        big_endian: whether the bytes of each element stand in the other order.
        column_major: whether the elements stand column by column, and it makes a difference.
    """

    data_type: DataType
    shape: tuple[int, ...]
    head_bytes: int
    big_endian: bool = False
    column_major: bool = False

    @property
    def body_bytes(self) -> int:
        """Bytes after the head."""
        return self.data_type.item_size * math.prod(self.shape)

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole npy file: what Content-Length must say."""
        return self.head_bytes + self.body_bytes


def encode_npy_head(data_type: DataType, shape: Sequence[int]) -> bytes:
    """Write the head of an npy file; the elements follow it directly, row-major and little-endian.

    It is version 1.0, which every reader knows: 64 sizes of at most 19 digits always fit its 65,535 bytes.

    Returns:
        A multiple of `HEAD_ALIGNMENT` bytes.

    Raises:
        InvalidParameter: strings, which npy cannot carry; a shape that no array can have.
    """
    descr = _DESCRS.get(data_type.numpy_name)
    if descr is None:
        other = "; send a frame (safetensors) instead" if data_type.safetensors else ""
        raise InvalidParameter(f"npy cannot carry {data_type.numpy_name}{other}")
    sizes = tuple(sizes_to_write(data_type, shape, "the array"))
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {sizes}, }}".encode()
    text += b" " * (-(len(_START) + 2 + len(text) + 1) % HEAD_ALIGNMENT) + b"\n"
    return _START + len(text).to_bytes(2, "little") + text


class NpyHeadReader(PieceReader[NpyHead]):
    """Reads the head of an npy file, version 1.0, 2.0 or 3.0, from pieces of any size.

    Attributes:
        head: the head once it is complete and checked, before that None.

    Args:
        max_head_bytes: longest header text accepted. Default 64 KiB, the most that version 1.0 can have.
        content_length: length of the whole body, if it is known; the head must agree with it.
        any_order: also take big-endian and column-major elements; the head says so.
    """

    def __init__(
        self, *, max_head_bytes: int = 1 << 16, content_length: int | None = None, any_order: bool = False
    ) -> None:
        super().__init__(len(_START), max_head_bytes, content_length)
        self._text_at = 0
        self._any_order = any_order

    def finish(self) -> NpyHead:
        """The head, once the input has ended.

        Raises:
            BodyMismatch: the input ended inside the head.
            InvalidFrame: it ended before one, and does not begin as an npy file does.
        """
        start = bytes(self._collected)
        if self.head is None and not self._text_at and not NPY_MAGIC.startswith(start[: len(NPY_MAGIC)]):
            raise _not_npy(start, start)
        return super().finish()

    def _step(self) -> None:
        start_bytes = len(_START)
        if not self._text_at:
            start = bytes(self._collected)
            if not start.startswith(NPY_MAGIC):
                refuse_other_containers(start)
                raise _not_npy(start, start + b"...")
            version = (start[6], start[7])
            if version not in _LENGTH_BYTES:
                raise InvalidFrame(
                    f"npy version {version[0]}.{version[1]} is not read here; NumPy's versions 1.0, 2.0 and 3.0 are"
                )
            self._wanted = self._text_at = start_bytes + _LENGTH_BYTES[version]
        elif len(self._collected) == self._text_at:
            self._expect_head_of(int.from_bytes(self._collected[start_bytes:], "little"))
        else:
            head = _read_head(bytes(self._collected[self._text_at :]), len(self._collected))
            if not self._any_order:
                _refuse_other_orders(head)
            self._accept(head)


def _not_npy(start: bytes, name: bytes) -> InvalidFrame:
    """The refusal of what is no npy file, and perhaps the name of one."""
    text = start.decode("latin-1")
    hint = f"; to send a file with curl write an @ before its name: --data-binary @{name.decode('latin-1')}"
    return InvalidFrame(
        f"this is not an npy file: an npy file begins with {NPY_MAGIC!r}; the body begins with {start!r}"
        + (hint if text.isascii() and text.isprintable() and " " not in text else "")
    )


@remember_small
def _read_head(text: bytes, head_bytes: int) -> NpyHead:
    entries = _entries(text)
    for key in _KEYS:
        if key not in entries:
            raise _refused("field-missing", key, "is required", None, ", ".join(_KEYS))
    descr, fortran, shape = entries["descr"], entries["fortran_order"], entries["shape"]
    row, big_endian = _data_type(descr)
    if not isinstance(fortran, bool):
        raise _refused("not-a-flag", "fortran_order", "must be True or False", fortran, "False")
    if not isinstance(shape, tuple):
        raise _refused("not-an-array", "shape", "must be a tuple of sizes", shape, "for instance (2, 3) or (3,)")
    broken = shape_violation(row, shape)
    if broken is not None:
        raise _refused(broken.code, "shape", broken.message, broken.value, broken.expected, *broken.path)
    column_major = fortran and 0 not in shape and sum(size != 1 for size in shape) > 1
    return NpyHead(row, shape, head_bytes, big_endian, column_major)


def _refuse_other_orders(head: NpyHead) -> None:
    if head.big_endian:
        code, expected = head.data_type.dtype.str[1:], _DESCRS[head.data_type.numpy_name]
        raise _refused("byte-order", "descr", f"is big-endian; send x.astype('<{code}')", f">{code}", expected)
    if head.column_major:
        raise _refused(
            "fortran-order", "fortran_order", "is True: the elements stand column by column; send a row-major copy, "
            "np.ascontiguousarray(x)", True, "False",
        )  # fmt: skip


def _entries(text: bytes) -> dict[str, str | bool | tuple[int, ...]]:
    """Match the whole header text as a dict of texts, flags and tuples of whole numbers."""
    body = text.strip(b" \t\n")
    if not (body.startswith(b"{") and body.endswith(b"}")):
        raise InvalidFrame(f"an npy header is the text of a dict, {{...}}; this one is {shown(repr(text))}")
    entries: dict[str, str | bool | tuple[int, ...]] = {}
    at, last, comma = 1, len(body) - 1, True
    while at < last:
        match = _ENTRY.match(body, at, last)
        if match is None or not comma:
            if re.match(rb"\s*(['\"])descr\1\s*:\s*\[", body[at:last]):
                raise _refused(
                    "data-type-unknown", "descr", "is a structured type; send each field as an array of its own",
                    body[at:last].decode("latin-1"), "one of " + ", ".join(_TYPES),
                )  # fmt: skip
            raise InvalidFrame(
                f"the npy header cannot be read at its byte {at}, near {body[at : at + 40]!r}; its entries are quoted "
                "names with a text, True, False or a tuple of whole numbers, and nothing is evaluated"
            )
        key = match["key"].decode("ascii")
        if key not in _KEYS:
            raise _refused("field-unknown", key, "is not an entry of an npy header", None, ", ".join(_KEYS))
        if key in entries:
            raise _refused("field-twice", key, "occurs twice", None, "once")
        value = match["text"] if match["text"] is not None else match["text2"]
        if value is not None:
            entries[key] = value.decode("latin-1")
        elif match["flag"] is not None:
            entries[key] = match["flag"] == b"True"
        else:
            entries[key] = _sizes(key, match["sizes"])
        at, comma = match.end(), bool(match["comma"])
    return entries


def _sizes(key: str, text: bytes) -> tuple[int, ...]:
    parts = text.split(b",", MOST_DIMENSIONS + 2)
    if not parts[-1].strip():
        parts.pop()  # the comma after the last size, or no size at all
    elif len(parts) == 1:
        parts = [b""]  # (3) is a number in Python, (3,) a tuple
    matches = [_SIZE.fullmatch(part) for part in parts]
    if None in matches:
        raise _refused(
            "shape-size", key, "must be a tuple of whole numbers, with a comma after a single one",
            f"({text.decode('latin-1')})", "for instance (2, 3), (3,) or ()",
        )  # fmt: skip
    return tuple([int(match[1]) for match in matches if match is not None])


def _data_type(descr: object) -> tuple[DataType, bool]:
    """The row, and whether the elements are big-endian."""
    text = descr if isinstance(descr, str) else ""
    order, code = (text[:1], text[1:]) if text[:1] in tuple("<>|=") else ("", text)
    row = _TYPES.get(code)
    if row is None:
        kind = _KINDS.get(code[:1], "not a data type that is read here")
        raise _refused("data-type-unknown", "descr", f"is {kind}", descr, _EVERY_DESCR)
    if row.item_size > 1 and order not in ("<", ">") and not row.in_ml_dtypes:
        expected = _DESCRS[row.numpy_name]
        raise _refused("byte-order", "descr", f"must name its byte order; write '<{code}'", descr, expected)
    return row, row.item_size > 1 and order == ">"


def _refused(code: str, key: str, message: str, value: object, expected: str, *place: str | int) -> InvalidFrame:
    return refused(code, (key, *place), message, value, expected, _NPY_FORMAT)
