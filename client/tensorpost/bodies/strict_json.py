"""JSON that has one reading only (RFC 8259, with the choices it leaves open closed).

RFC 8259 lets two readers differ about duplicate keys (section 4), numbers beyond their precision (section 6), lone
surrogates (section 8.2) and depth (section 9). What could be understood in two ways is refused here. The work and the
memory are linear in the text, whatever the text: nothing recurses deeper than `max_depth`, no number is longer than a
few hundred characters, and no pattern backtracks.
"""

from __future__ import annotations

import functools
import json
import math
import re
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..values.problems import InvalidJson

__all__ = ["count_objects", "read_json"]

_MOST_INTEGER_DIGITS = 40  # 2^128 has 39; int() takes time quadratic in the digits
_MOST_REAL_CHARACTERS = 1_100  # the longest exact float64, the smallest subnormal, has 1,076 characters
_LONGEST_SHOWN = 60  # characters of a name or number repeated in a message
_BRACE_BIT = ord("{") - ord("[")  # the bit that makes a bracket a brace

# Escapes are read one after the other, so an escaped backslash before a `u` is not taken for an escape.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def read_json(
    text: bytes | bytearray | memoryview,
    *,
    max_bytes: int | None = None,
    max_depth: int = 64,
    max_containers: int | None = None,
    allow_non_finite: bool = False,
) -> Any:
    """Read UTF-8 JSON, refusing whatever two readers could understand differently.

    Refused besides what is not JSON: duplicate keys; the words NaN and Infinity; integers of more than 40 digits;
    numbers too large for a float64; lone surrogates (they cannot be written again as UTF-8); a byte order mark. `-0` is
    the float -0.0, as in JavaScript.

    Args:
        text: the whole document; white space around it is allowed.
        max_bytes: longest text that is looked at. Default: no limit.
        max_depth: how many arrays and objects may be open at once.
        max_containers: how many arrays and objects there may be in all; brackets inside texts count as well. Default:
            no limit.
        allow_non_finite: read the words NaN, Infinity and -Infinity, which Triton's clients write in tensor data.

    Examples:
        >>> read_json(b'{"Sizes": [1, 2]}')
        {'Sizes': [1, 2]}

    Raises:
        InvalidJson: the text is not such JSON; the message gives the position, in characters from 0, or the key.
    """
    size = memoryview(text).nbytes
    if max_bytes is not None and size > max_bytes:
        raise InvalidJson(
            f"the JSON is {size:,} bytes long; at most {max_bytes:,} are read here",
            extra={"limit": max_bytes, "actual": size},
        )
    raw = bytes(text)
    if raw.startswith(b"\xef\xbb\xbf"):
        raise InvalidJson("the JSON begins with a byte order mark; leave it out (RFC 8259 section 8.1)")
    try:
        characters = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJson(
            f"the JSON is not UTF-8: {error.reason} at byte {error.start}", extra={"position": error.start}
        ) from None
    if not raw.strip():
        raise InvalidJson("the JSON text is empty", extra={"position": 0})
    containers = raw.count(b"[") + raw.count(b"{")
    if max_containers is not None and containers > max_containers:
        raise InvalidJson(
            f"the JSON has {containers:,} opening brackets; at most {max_containers:,} are read here, so send the "
            "elements of a tensor in one flat array",
            extra={"limit": max_containers, "actual": containers},
        )
    if containers > max_depth and _depth(raw) > max_depth:
        raise InvalidJson(f"the JSON nests deeper than {max_depth} levels", extra={"limit": max_depth})
    try:
        value = _decoder(allow_non_finite).decode(characters)
    except json.JSONDecodeError as error:
        near = characters[max(0, error.pos - 20) : error.pos + 20]
        place = f"character {error.pos} (line {error.lineno}, column {error.colno})"
        raise InvalidJson(
            f"not JSON: {error.msg.removesuffix(' at')} at {place}" + (f", near {near!r}" if near else ""),
            extra={"position": error.pos},
        ) from None
    except RecursionError:
        # Only where the caller raised max_depth beyond the interpreter's own limit.
        raise InvalidJson("the JSON nests deeper than this interpreter can read") from None
    if "\\u" in characters:
        _refuse_lone_surrogates(characters)
    return value


def count_objects(text: bytes | bytearray) -> int:
    """How many objects open in a JSON text, those inside strings left out; nothing is built."""
    return int(np.count_nonzero(_outside_strings(text) == ord("{")))


def _depth(raw: bytes) -> int:
    """How deep brackets nest, those inside strings left out.

    Up to the first syntax error this is exactly the depth a parser reaches; no parser gets beyond it.
    """
    codes = _outside_strings(raw) | _BRACE_BIT
    steps = (codes == ord("{")).view(np.int8) - (codes == ord("}")).view(np.int8)
    return int(steps.cumsum(dtype=np.int32).max(initial=0))


def _outside_strings(text: bytes | bytearray) -> NDArray[np.uint8]:
    """The text with zeros for its strings, but for their closing quotes.

    Python's lock is free meanwhile, which a regular expression would hold for tens of milliseconds.
    """
    codes = np.frombuffer(text, np.uint8)
    quotes = codes == ord('"')
    if b"\\" in text:
        places = np.arange(len(codes), dtype=np.int32)
        last_other = np.maximum.accumulate(np.where(codes == ord("\\"), np.int32(-1), places))
        backslashes = places - last_other  # in a row, up to and with this place
        quotes[1:] &= backslashes[:-1] % 2 == 0  # an odd number of them escapes the quote
    return codes * ~np.logical_xor.accumulate(quotes)


@functools.cache
def _decoder(allow_non_finite: bool) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_object,
        parse_int=_integer,
        parse_float=_real,
        parse_constant=None if allow_non_finite else _refuse_constant,
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise InvalidJson(
            f"the key {_shown(twice)} occurs twice in one object; keep one (RFC 8259 section 4)",
            extra={"key": twice[:_LONGEST_SHOWN]},
        )
    return members


def _integer(digits: str) -> int | float:
    if digits == "-0":
        return -0.0  # C's printf writes the float so; as an integer its sign would be lost
    count = len(digits.removeprefix("-"))
    if count > _MOST_INTEGER_DIGITS:
        raise InvalidJson(f"the integer {digits[:12]}... has {count:,} digits; at most {_MOST_INTEGER_DIGITS} are read")
    return int(digits)


def _real(digits: str) -> float:
    if len(digits) > _MOST_REAL_CHARACTERS:
        raise InvalidJson(
            f"the number {digits[:12]}... has {len(digits):,} characters; at most {_MOST_REAL_CHARACTERS:,} are read"
        )
    value = float(digits)
    if math.isinf(value):
        raise InvalidJson(f"the number {_shown(digits, str)} is too large for a float64, at most 1.8e308 in size")
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise InvalidJson(f"{word} is not a JSON number (RFC 8259 section 6); send non-finite values in a binary form")


def _refuse_lone_surrogates(characters: str) -> None:
    for escape in _ESCAPE.finditer(characters):
        if escape["lone"]:
            raise InvalidJson(
                f"\\{escape['lone']} at character {escape.start()} is half of a surrogate pair; write both halves, or "
                "the character itself (RFC 8259 section 8.2)",
                extra={"position": escape.start()},
            )


def _shown(text: str, write: Any = repr) -> str:
    return write(text) if len(text) <= _LONGEST_SHOWN else f"{write(text[:_LONGEST_SHOWN])}..."
