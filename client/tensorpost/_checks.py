"""Checks of single arguments, whose errors name the argument, what was given and what is expected."""

from __future__ import annotations

import operator
from typing import Any, cast

from .problems import InvalidParameter, presentable

__all__ = ["shown", "text", "whole_number"]

_LONGEST_SHOWN = 60  # characters of a text in a message


def shown(value: object) -> str:
    """The value for a message, short."""
    return repr(value[:_LONGEST_SHOWN]) if isinstance(value, str) else str(presentable(value))


def whole_number(name: str, value: object, least: int, hint: str = "") -> int:
    """A whole number as Python's, NumPy's included; booleans, texts and floating-point numbers are none.

    Raises:
        InvalidParameter: no whole number, or less than `least`; the message ends with the hint.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(cast("Any", value))
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
