"""Reads the settings for a command. Errors name the variable, its value, what is expected and an example."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from tensorpost.values.problems import InvalidParameter, nearest

from .settings import ENVIRONMENT_PREFIX, Settings, origins, setting_variable

_PRESET = 'for instance {"twice": {"operator": "tile", "attributes": {"repeats": [2, 2]}}}'
_MEMBER_WORDS: Mapping[str, str] = {
    "dict_type": "expected an object",
    "extra_forbidden": "there is no such member",
    "int_from_float": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "model_type": "expected an object with operator, attributes, datatype and shape",
    "string_type": "expected a text",
    "tuple_type": "expected a list",
}
"""Pydantic's types of errors in members of presets."""
_BOUNDS = {"gt": "more than", "ge": "at least", "le": "at most"}


def read_settings(**arguments: Any) -> Settings:
    """The settings of the environment and files, with these arguments before them.

    Raises:
        InvalidParameter: a value cannot be right; every such value is named.
    """
    try:
        settings = Settings(**arguments)
    except ValidationError as error:
        sentences = [_sentence(dict(line), arguments) for line in error.errors(include_url=False)]
        raise InvalidParameter("; ".join(sentences)) from None
    if settings.backend != "auto":
        _check_backend(settings.backend, arguments)
    return settings


def _check_backend(backend: str, arguments: Mapping[str, Any]) -> None:
    from .backends import BACKENDS  # all that computes comes with it, which takes seconds to load

    if backend not in BACKENDS:
        guess = nearest(backend, BACKENDS)
        hint = f"; did you mean {guess}?" if guess else ""
        where = _where("backend", backend, arguments)
        raise InvalidParameter(f"{where}: there is no such backend; expected auto, {', '.join(BACKENDS)}{hint}")


def _sentence(line: dict[str, Any], arguments: Mapping[str, Any]) -> str:
    """One of Pydantic's errors in our words."""
    name, *members = map(str, line["loc"])
    if line["type"] == "value_error":
        return f"{_where(name, line['input'], arguments)}: {line['ctx']['error']}"
    if name != "presets":
        return f"{_where(name, line['input'], arguments)}: expected {_expected(name, Settings.model_fields[name])}"
    where = _where(name, line["input"], arguments, ".".join(members)[:80])
    if line["type"] == "missing":
        return f"{where.rpartition(' is ')[0]} is missing; {_PRESET}"
    return f"{where}: {_MEMBER_WORDS.get(line['type'], line['msg'][0].lower() + line['msg'][1:])}; {_PRESET}"


def _where(name: str, value: object, arguments: Mapping[str, Any], member: str = "") -> str:
    """What says the value, and the value: `TENSORPOST_PORT is '-1'`."""
    origin, shown = origins()[name], repr(str(value)[:80])
    if name in arguments:
        where = f"--{name}"
    elif origin in ("environment", "default"):
        where = setting_variable(name)
    elif origin.startswith(ENVIRONMENT_PREFIX):
        where, shown = origin, "the content of its file"  # which may be a secret
    else:
        where = f"{name} in {origin}"
    return f"{where}, {member}, is {shown}" if member else f"{where} is {shown}"


def _expected(name: str, field: FieldInfo) -> str:
    """What a setting can be, and an example, as its field says."""
    kind: Any = field.annotation
    if typing.get_origin(kind) is types.UnionType:
        kind = next(each for each in typing.get_args(kind) if each is not type(None))
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(typing.get_args(kind))}"
    if kind is bool:
        return "true or false (1 or 0, yes or no, on or off)"
    if kind not in (int, float):
        return "a text"
    bounds = {word: getattr(each, word) for each in field.metadata for word in _BOUNDS if hasattr(each, word)}
    least = "".join([f", {words} {bounds[word]}" for word, words in _BOUNDS.items() if word in bounds])
    default: Any = field.default if isinstance(field.default, int | float) else None
    if kind is int and "_bytes" in name:
        example = "1GiB" if default is None else _size(default)
        return f"a whole number of bytes{least}, with or without a unit (GB, GiB, ...), for instance {example}"
    example = bounds.get("ge", 1) if default is None else default
    return f"a {'whole ' if kind is int else ''}number{least}, for instance {example}"


def _size(count: int) -> str:
    """Bytes in the largest binary unit that divides them."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count and not count % (1 << power):
            return f"{count >> power}{unit}"
    return str(count)
