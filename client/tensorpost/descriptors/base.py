"""What every descriptor shares: reading DirectML's JSON and collecting violations.

A descriptor is a frozen Pydantic model. Pydantic reads its structure; `rules()` states DirectML's rules. Both report
all that they find at once, as one `InvalidDescriptor`. JSON keys are DirectML's own names, Python attributes are
snake_case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast, dataclass_transform, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from ..values.problems import InvalidDescriptor, Violation, json_path, nearest
from ..values.sentences import named
from .catalogue import pascal_case, snake_case
from .fields import CONVERTED, NATIVE

__all__ = ["Descriptor", "has_odd_keys", "json_object"]

_MOST_UNKNOWN_FIELDS = 20  # listed by name; a document with more of them is not a misspelling but something else

# Set while a descriptor is read only for its structure: its tensors then stay silent about DirectML's rules, and
# the reader calls `rules()` later. An operator's `rules()` repeats those of its tensors.
_rules_postponed: ContextVar[bool] = ContextVar("_rules_postponed", default=False)


def json_object(value: object) -> Mapping[str, Any] | None:
    """The value as a mapping with text for keys, or None if it is not such a mapping."""
    if not isinstance(value, Mapping):
        return None
    for key in cast("Mapping[object, object]", value):
        if not isinstance(key, str):
            return None
    return cast("Mapping[str, Any]", value)


def has_odd_keys(value: Any) -> bool:
    """Whether the value is a mapping that no JSON object can be, which comes from Python only."""
    return isinstance(value, Mapping) and json_object(cast("object", value)) is None


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class _FrozenModel(type(BaseModel)):
    """Pydantic's metaclass; says to type checkers that descriptors are frozen, hence hashable."""


class Descriptor(BaseModel, metaclass=_FrozenModel):
    """A frozen, hashable DirectML structure.

    Fields are given by DirectML's names or by Python's; errors always use DirectML's.

    Raises:
        InvalidDescriptor: the fields cannot be read, or break a rule; every violation found is listed.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=pascal_case,
        populate_by_name=True,
        field_title_generator=lambda name, _: pascal_case(name),
    )

    def __init__(self, /, **data: Any) -> None:
        try:
            self._read_structure(data)
            sound = _rules_postponed.get() or not any(self.rules())
        except (ValidationError, TypeError):  # keys that are not text cannot be passed on
            sound = False
        if not sound:
            self._read_for_violations(data)

    def _read_structure(self, fields: Mapping[str, Any]) -> None:
        """Set the fields. The rules of the tensors in them are looked at later, together with this descriptor's own."""
        token = _rules_postponed.set(True)
        try:
            super().__init__(**fields)
        finally:
            _rules_postponed.reset(token)

    def _read_for_violations(self, data: Mapping[str, Any]) -> None:
        """Read what is wrong, or wrapped, or both, and name everything that is wrong."""
        fields, within, found = self._unwrap(data)
        known, own = _split_fields(type(self), fields)
        try:
            self._read_structure(known)
            if not _rules_postponed.get():
                own += [_through_desc(violation, known) for violation in self.rules()]
        except ValidationError as error:
            if _rules_postponed.get():
                raise
            own += self._all_violations(known, error)
        if found or own:
            raise InvalidDescriptor.of([*found, *(violation.prefixed(*within) for violation in own)]) from None

    def _all_violations(self, known: Mapping[str, Any], error: ValidationError) -> list[Violation]:
        """What is wrong with a broken structure, the rules that its sound tensors break included."""
        found = _violations_of(error, type(self))
        try:
            super().__init__(**known)
        except ValidationError as second:
            found = _violations_of(second, type(self))
        for name, value in known.items():
            if isinstance(value, Descriptor):  # its rules may be postponed (`structure`)
                found += [violation.prefixed(name) for violation in value.rules()]
        order = {alias: place for place, alias in enumerate(self.names_of_fields().values())}
        return sorted(found, key=lambda violation: order[str(violation.path[0])] if violation.path else -1)

    @classmethod
    def structure(cls, value: object) -> Self | None:
        """The value as a descriptor whose rules are not looked at yet; None if it cannot be read."""
        token = _rules_postponed.set(True)
        try:
            return cls.model_validate(value)
        except (ValidationError, TypeError):
            return None
        finally:
            _rules_postponed.reset(token)

    @classmethod
    def _unwrap(cls, data: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...], list[Violation]]:
        """The fields in a document that may wrap them, the path to them, and what is wrong with the wrapping."""
        return data, (), []

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...  # frozen makes Pydantic add it; type checkers do not see that

    _names: ClassVar[dict[str, str] | None] = None

    @classmethod
    def names_of_fields(cls) -> dict[str, str]:
        """DirectML's name of every field, by DirectML's and by Python's name."""
        if "_names" not in cls.__dict__:
            aliases = {name: info.alias or name for name, info in cls.model_fields.items()}
            cls._names = {**aliases, **{alias: alias for alias in aliases.values()}}
        return cls._names or {}

    def rules(self) -> Iterator[Violation]:
        """Every DirectML rule that these values break, those of nested tensors included."""
        yield from ()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A descriptor with some fields replaced: checked like a new one, and with what was derived derived anew.

        Args:
            update: new values by Python name.
            deep: ignored: descriptors are frozen all the way down.

        Raises:
            InvalidDescriptor: the new values do not fit the rest.
        """
        kept = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**kept, **(update or {})})

    def __str__(self) -> str:
        return f"{type(self).__name__}{_brief(self)}"

    def to_json(self) -> dict[str, Any]:
        """The canonical JSON object: DirectML's field names, short enum names, counts included, nulls left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _brief(value: object) -> str:
    """A value for people: DirectML's names, and of a structure what is neither derived nor a default."""
    if isinstance(value, Descriptor):
        fields = type(value).model_fields
        shown = {name: getattr(value, name) for name in fields if name in value.model_fields_set}
        parts = [
            f"{pascal_case(name)} {_brief(found)}"
            for name, found in shown.items()
            if fields[name].default_factory is None and found != fields[name].default
        ]
        return f"({', '.join(parts)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_brief, cast('tuple[object, ...]', value)))})"
    return value.name or "NONE" if isinstance(value, (IntEnum, IntFlag)) else str(value)


def _split_fields(cls: type[Descriptor], data: Mapping[str, Any]) -> tuple[dict[str, Any], list[Violation]]:
    """The fields that the class has, and a violation for each member that is none of them."""
    names = cls.names_of_fields()
    known: dict[str, Any] = {}
    unknown: list[str] = []
    found: list[Violation] = []
    for key, value in data.items():
        alias = names.get(key)
        if alias is None:
            unknown.append(key)
        elif alias in known:
            message = f"{alias} is given twice, as {alias} and as {snake_case(alias)}; keep one"
            found.append(Violation("field-twice", (alias,), message, value, "one of the two", "tensorpost's choice"))
        else:
            # A mapping with keys that are not text comes from Python only; as pairs it is refused as not an object.
            known[alias] = list(value.items()) if has_odd_keys(value) else value
    fields = list(dict.fromkeys(names.values()))
    expected, source = "one of " + ", ".join(fields), f"{cls.__name__} in DirectML.h"
    for key in unknown[:_MOST_UNKNOWN_FIELDS]:
        guess = nearest(key, fields)
        message = named(cls.__name__) + f" has no field {key[:60]!r}" + (f"; did you mean {guess!r}?" if guess else "")
        found.append(Violation("field-unknown", (key,), message, data[key], expected, source))
    if len(unknown) > _MOST_UNKNOWN_FIELDS:
        more = len(unknown) - _MOST_UNKNOWN_FIELDS
        found.append(Violation("field-unknown", (), f"there are {more} more members that are not fields", more))
    return known, found


def _through_desc(violation: Violation, known: Mapping[str, Any]) -> Violation:
    """A tensor's violation with its path as the document has it: through `Desc` where the long form was used."""
    field, inner = violation.path[:1], violation.path[1:]
    wrapped = field and inner and "Desc" in (json_object(known.get(str(field[0]))) or {})
    return replace(violation, path=(*field, "Desc", *inner)) if wrapped else violation


# Pydantic's error types that are left, with our stable code and sentence.
_MESSAGES: Mapping[str, tuple[str, str]] = {
    "missing": ("field-missing", "is required"),
    "model_type": ("not-an-object", "must be a JSON object"),
    "dict_type": ("not-an-object", "must be a JSON object"),
    "model_attributes_type": ("not-an-object", "must be a JSON object"),
}


def _kind_of_field(info: FieldInfo) -> str:
    """What a field takes, in words."""
    annotation: object = cast("Any", info).annotation
    if isinstance(annotation, type) and issubclass(annotation, IntEnum):
        return "one of " + ", ".join(annotation.__members__)
    if get_origin(annotation) is tuple:
        return "an array"
    kinds: Mapping[object, str] = {int: "a whole number", float: "a number", bool: "true or false"}
    return kinds.get(cast("object", annotation), "an object")


def _violations_of(error: ValidationError, cls: type[Descriptor]) -> list[Violation]:
    """Translate Pydantic's report; errors of nested descriptors are spliced in under their field."""
    found: list[Violation] = []
    names = cls.names_of_fields()
    for line in error.errors(include_url=False):
        if line["type"] == "default_factory_not_called":
            continue  # a derived count could not be derived; what it derives from is reported itself
        if NATIVE in line["loc"]:
            continue  # the other way of reading the same number says why it is none
        path = tuple(
            names.get(step, step) if isinstance(step, str) else step for step in line["loc"] if step != CONVERTED
        )
        context: Mapping[str, Any] = line.get("ctx", {})
        nested = context.get("error")
        if isinstance(nested, InvalidDescriptor):
            found += [v.prefixed(*path) for v in nested.violations]
            continue
        code, message = _MESSAGES.get(line["type"], (line["type"].replace("_", "-"), line["msg"]))
        value = None if line["type"] == "missing" else line["input"]
        if code == "not-an-object" and value is None:
            message = "must be a JSON object: it is required, and cannot be null"
        expected = str(context.get("expected", ""))
        if line["type"] == "missing" and len(path) == 1:
            expected = _kind_of_field(next(info for info in cls.model_fields.values() if info.alias == path[0]))
            message += f": {expected}" if expected.startswith("one of") else ""
        found.append(
            Violation(code, path, _field_named(path, cls.__name__) + f" {message}", value, expected, "DirectML.h")
        )
    return found


def _field_named(path: tuple[str | int, ...], otherwise: str) -> str:
    """The field at a path as the beginning of a message: the first name and an index after it are a reference."""
    if not path:
        return otherwise
    name, *rest = path
    index = rest[0] if rest and isinstance(rest[0], int) else None
    return named(str(name), index) + json_path(rest if index is None else rest[1:])[1:]
