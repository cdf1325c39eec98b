"""Cast between strings and numbers: what texts say, and the texts of numbers.

A text is a decimal number, with or without an exponent, or INF, +INF, -INF or NAN in upper or lower case (ONNX,
Cast-19). Choices where ONNX's text is silent: anything else is refused, and so is a number that 64 bits cannot hold;
fractions are cut where the target is of whole numbers; texts become float64 before they become another floating-point
type. Numbers are written with the fewest digits that read back to the same float32 or float64, without a point where
they are whole, as INF, -INF and NaN; narrower ones as float32 (as in ONNX Runtime), truth values as 1 and 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..values.datatypes import DataType, data_type
from ..values.problems import InvalidDescriptor, Violation

__all__ = ["LONGEST_NUMBER_BYTES", "number_of_text", "number_texts", "numbers_of_texts", "parsed_type"]

LONGEST_NUMBER_BYTES = 24
"""Bytes of the longest text of a number: -2.2250738585072014e-308."""
_NUMBER = re.compile(rb"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,4})?")
_WHOLE = re.compile(rb"[+-]?[0-9]{1,40}")
_NOT_FINITE = {b"INF": np.inf, b"+INF": np.inf, b"-INF": -np.inf, b"NAN": np.nan}
_NAMES = {"inf": b"INF", "-inf": b"-INF", "nan": b"NaN"}


def parsed_type(target: DataType) -> str:
    """NumPy name of the type that texts are read as on their way to another: one of 8 bytes."""
    if target.kind in "iu":
        return "uint64" if target.numpy_name == "uint64" else "int64"
    return "float64"


def number_of_text(text: bytes, kind: str) -> int | float:
    """The number that a text says.

    Args:
        text: the text, in UTF-8.
        kind: float64, int64 or uint64.

    Raises:
        InvalidDescriptor: it says none that the type holds.
    """
    word = text.strip(b" \t\r\n")
    if kind == "float64":
        if _NUMBER.fullmatch(word):
            return float(word)
        if word.upper() in _NOT_FINITE:
            return _NOT_FINITE[word.upper()]
    else:
        whole = int(word) if _WHOLE.fullmatch(word) else None
        if whole is None and _NUMBER.fullmatch(word) and abs(float(word)) < 2.0**64:
            whole = int(float(word))
        limits = np.iinfo(kind)
        if whole is not None and limits.min <= whole <= limits.max:
            return whole
    shown, what = text[:40].decode(errors="replace"), "a number" if kind == "float64" else f"a number of {kind}"
    message = f"the text {shown!r} is not {what}, so it cannot be cast"
    raise InvalidDescriptor.of([Violation("strings-computed", ("inputs",), message, shown, "decimal numbers")])


def number_texts(numbers: NDArray[Any]) -> list[bytes]:
    """The text of each number, in a row."""
    flat = numbers.reshape(-1)
    row = data_type(flat.dtype)
    if row.kind == "b" or row.is_small or row.item_size == 2:
        flat = flat.astype(np.float32 if row.kind == "f" else np.int32)
    bits, places = np.unique(flat.view(f"u{flat.dtype.itemsize}"), return_inverse=True)
    texts = [_text_of(value) for value in bits.view(flat.dtype)]
    return [texts[place] for place in places.reshape(-1).tolist()]


def _text_of(number: Any) -> bytes:
    text = str(number)
    return _NAMES.get(text) or text.removesuffix(".0").encode()


def numbers_of_texts(texts: Iterable[bytes], kind: str) -> NDArray[Any]:
    """The numbers of several texts; see `number_of_text`."""
    return np.array([number_of_text(text, kind) for text in texts], kind)
