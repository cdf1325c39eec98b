"""Checks of single arguments, whose errors name the argument, what was given and what is expected."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from .datatypes import BOOLEANS
from .problems import InvalidParameter, presentable

_LONGEST_SHOWN = 60  # characters of a text in a message
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 section 5.1
_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?")  # RFC 9110 section 5.5


def shown(value: object) -> str:
    """The value as a short text for a message."""
    return repr(value[:_LONGEST_SHOWN]) if isinstance(value, str) else str(presentable(value))


def whole_number(name: str, value: object, least: int | None = None, hint: str = "") -> int:
    """A whole number as Python's, NumPy's included; booleans, texts and floating-point numbers are none.

    Raises:
        InvalidParameter: no whole number, or less than `least`; the message ends with the hint.
    """
    try:
        number = None if isinstance(value, BOOLEANS) else operator.index(cast("Any", value))
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise InvalidParameter(name + f" is {shown(value)}; it must be a whole number{bound}{hint}")
    return number


def real_number(name: str, value: object) -> float:
    """A number of any kind as Python's; booleans and texts are not numbers.

    Raises:
        InvalidParameter: it is no number, or larger than a float can be.
    """
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        return float(cast("Any", value))
    except (TypeError, ValueError, OverflowError):
        raise InvalidParameter(name + f" is {shown(value)}; it must be a number") from None


def entries_of(value: object) -> list[object] | None:
    """The entries of a sequence; None for a text and for what has no entries, such as a number."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return None
    return list(cast("Iterable[object]", value))


def text(name: str, value: object, expected: str) -> str:
    """A text that UTF-8 can carry, and not an empty one.

    Raises:
        InvalidParameter: anything else; the message ends with what was expected.
    """
    try:
        if isinstance(value, str) and value.encode():
            return value
    except UnicodeEncodeError:
        pass  # half of a surrogate pair
    raise InvalidParameter(f"{name} is {shown(value)}; it must be {expected}")


def headers_of(headers: object) -> dict[str, str]:
    """HTTP headers with their names in lower case.

    Raises:
        InvalidParameter: no mapping from texts to texts, or a header that would break a request.
    """
    if not isinstance(headers, Mapping):
        raise InvalidParameter(
            f"headers is {shown(headers)}; it must be a mapping from names to texts, for instance "
            '{"Authorization": "Bearer ..."}'
        )
    checked: dict[str, str] = {}
    for name, value in cast("Mapping[object, object]", headers).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidParameter(f"header {shown(name)} is {shown(value)}; its name and its value must be texts")
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise InvalidParameter(
                f"header {name[:60]!r} is not a valid header: its name must have letters, digits and hyphens, its "
                "value printable ASCII in one line, without spaces around it"
            )
        checked[name.lower()] = value
    return checked
