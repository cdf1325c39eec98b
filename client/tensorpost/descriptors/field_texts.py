"""What each field of an operator means, in words: the entries of its classes' docstrings, else the common ones.

An operator's page, the OpenAPI document, the command line and the docstrings of the classes show these texts.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .operator_desc import OperatorDesc

__all__ = ["documented", "field_texts"]

_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")
_HEAD = "Attributes:\n"
_WIDTH = 116  # columns of a docstring, without the indentation of its class
_INDENT = 4

COMMON: Mapping[str, str] = {
    "input_tensor": "tensor whose elements are read.",
    "output_tensor": "tensor that the result is written to; it follows from the other fields if it is left out.",
    "scale_bias": "what is done to each input element first, `x * Scale + Bias`; null for nothing.",
    "a_tensor": "first operand, A; an axis of stride 0 is broadcast.",
    "b_tensor": "second operand, B, with the sizes of A; an axis of stride 0 is broadcast.",
    "input_gradient_tensor": "gradient of the loss by each output element of the forward operator.",
    "output_gradient_tensor": "gradient of the loss by each element of `input_tensor`.",
}
"""Texts of fields that mean the same in every operator whose class says nothing of them, by attribute name."""


def field_texts(cls: type[OperatorDesc]) -> Mapping[str, str]:
    """The meaning of each field of an operator, by attribute name, in the order of the C struct.

    Texts begin in lower case and end with a full stop. Those of the class itself come first, then those of its bases,
    then the ones that all operators share.

    Args:
        cls: the operator's class.

    Raises:
        KeyError: a field has no text; a test looks at every operator.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= _entries(base.__dict__.get("__doc__") or "")
    return {
        field.attribute_name: found.get(field.attribute_name) or COMMON[field.attribute_name]
        for field in cls.facts.fields
    }


def documented(cls: type[OperatorDesc]) -> str:
    """The docstring of an operator's class with an entry for each field, in the order of the C struct.

    Args:
        cls: the operator's class, whose docstring may have entries for some of its fields.
    """
    text = inspect.cleandoc(cls.__doc__ or "")  # Python 3.13 and newer have done that already
    before, _, rest = text.partition(_HEAD)
    behind = rest.partition("\n\n")[2] if "\n\n" in rest else ""
    lines = [_wrapped(f"{name}: {meaning}") for name, meaning in field_texts(cls).items()]
    tail = f"\n\n{behind.rstrip()}" if behind.strip() else ""
    return f"{before.rstrip()}\n\n{_HEAD}" + "\n".join(lines) + tail


def _wrapped(entry: str) -> str:
    return textwrap.fill(
        entry,
        _WIDTH,
        initial_indent=" " * _INDENT,
        subsequent_indent=" " * 2 * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _entries(docstring: str) -> Mapping[str, str]:
    """The entries under `Attributes:`, by name; several names before one colon have one text."""
    _, _, section = inspect.cleandoc(docstring).partition(_HEAD)
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        indent = len(line) - len(line.lstrip())
        if not line.strip() or indent < _INDENT:
            break
        if indent == _INDENT and (entry := _ENTRY.match(line.strip())):
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        else:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found
