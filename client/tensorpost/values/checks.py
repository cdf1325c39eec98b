"""Checks of single arguments, whose errors name the argument, what was given and what is expected."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any, cast

from .datatypes import BOOLEANS
from .problems import InvalidParameter, presentable

_LONGEST_SHOWN = 60  # characters of a text in a message
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 section 5.1
_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?")  # RFC 9110 section 5.5


def shown(value: object) -> str:
    """The value for a message, short."""
    return repr(value[:_LONGEST_SHOWN]) if isinstance(value, str) else str(presentable(value))


def whole_number(name: str, value: object, least: int, hint: str = "") -> int:
    """A whole number as Python's, NumPy's included; booleans, texts and floating-point numbers are none.

    Raises:
        InvalidParameter: no whole number, or less than `least`; the message ends with the hint.
    """
    try:
        number = None if isinstance(value, BOOLEANS) else operator.index(cast("Any", value))
    except TypeError:
        number = None
    if number is None or number < least:
        raise InvalidParameter(f"{name} is {shown(value)}; it must be a whole number of at least {least}{hint}")
    return number


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
    found: dict[str, str] = {}
    for name, value in cast("Mapping[object, object]", headers).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidParameter(f"header {shown(name)} is {shown(value)}; its name and its value must be texts")
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise InvalidParameter(
                f"header {name[:60]!r} holds what no header may: a name of letters, digits and hyphens, and a "
                "value of printable ASCII in one line, without spaces around it"
            )
        found[name.lower()] = value
    return found
