"""What every descriptor shares: reading DirectML's JSON, collecting violations, support by feature level.

A descriptor is a frozen Pydantic model. Pydantic reads its structure; `rules()` states DirectML's rules. Both report
all that they find at once, as one `InvalidDescriptor`. JSON keys are DirectML's own names, Python attributes are
snake_case.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from ..operation import Slot
from ..problems import InvalidDescriptor, UnsupportedAtLevel, Violation, json_path, nearest
from .feature_levels import NEWEST, FeatureLevel, SupportRow, support_at
from .fields import pascal_case, snake_case

__all__ = ["Descriptor", "OperatorDesc", "json_object", "postponed_rules"]

_MOST_UNKNOWN_FIELDS = 20  # listed by name; a document with more of them is no misspelling but something else

# Set while a descriptor is read only for its structure: its tensors then stay silent about DirectML's rules, and
# whoever reads it asks `rules()` later. An operator's `rules()` repeats those of its tensors.
_rules_postponed: ContextVar[bool] = ContextVar("_rules_postponed", default=False)


@contextmanager
def postponed_rules() -> Generator[None]:
    """Inside, descriptors are read for their structure only."""
    token = _rules_postponed.set(True)
    try:
        yield
    finally:
        _rules_postponed.reset(token)


def json_object(value: object) -> Mapping[str, Any] | None:
    """The value as a mapping with text for keys, or None if it is no such mapping."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in cast("Mapping[object, object]", value)):
        return cast("Mapping[str, Any]", value)
    return None


def _has_odd_keys(value: Any) -> bool:
    return isinstance(value, Mapping) and json_object(cast("object", value)) is None


class Descriptor(BaseModel):
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
        fields, within, found = self._unwrap(data)
        known, own = _split_fields(type(self), fields)
        try:
            super().__init__(**known)
        except ValidationError as error:
            refused = _violations_of(error, type(self))
            try:
                # Where the structure is sound and only rules are broken, this pass sees all of them at once: the
                # tensors' and the operator's own.
                with postponed_rules():
                    super().__init__(**known)
                refused = [_through_desc(violation, known) for violation in self.rules()] or refused
            except ValidationError:
                pass  # the structure itself is broken: what the first pass found says all that can be said
            own += refused
        if found or own:
            raise InvalidDescriptor.of([*found, *(violation.under(*within) for violation in own)]) from None

    @classmethod
    def _unwrap(cls, data: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...], list[Violation]]:
        """The fields in a document that may wrap them, the path to them, and what is wrong with the wrapping."""
        return data, (), []

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...  # frozen makes Pydantic add it; type checkers do not see that

    def rules(self) -> Iterator[Violation]:
        """Every DirectML rule that these values break, those of nested tensors included."""
        yield from ()

    @model_validator(mode="after")
    def _refuse_broken_rules(self) -> Self:
        if not _rules_postponed.get():
            found = list(self.rules())
            if found:
                raise InvalidDescriptor.of(found)
        return self

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002 # see Args
        """A descriptor with some fields replaced: checked like a new one, and with what was derived derived anew.

        Args:
            update: new values by Python name.
            deep: of no effect; descriptors are frozen all the way down.

        Raises:
            InvalidDescriptor: the new values do not fit the rest.
        """
        kept = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**kept, **(update or {})})

    def to_json(self) -> dict[str, Any]:
        """The canonical JSON object: DirectML's field names, short enum names, counts included, nulls left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _names(cls: type[BaseModel]) -> dict[str, str]:
    """DirectML's name by either name."""
    aliases = {name: info.alias or name for name, info in cls.model_fields.items()}
    return {**aliases, **{alias: alias for alias in aliases.values()}}


def _split_fields(cls: type[BaseModel], data: Mapping[str, Any]) -> tuple[dict[str, Any], list[Violation]]:
    """The fields that the class has, and a violation for each member that is none of them."""
    names = _names(cls)
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
            # A mapping with keys that are no text comes from Python only; as pairs it is refused for being no object.
            known[alias] = list(value.items()) if _has_odd_keys(value) else value
    fields = list(dict.fromkeys(names.values()))
    expected, source = "one of " + ", ".join(fields), f"{cls.__name__} in DirectML.h"
    for key in unknown[:_MOST_UNKNOWN_FIELDS]:
        guess = nearest(key, fields)
        message = f"{cls.__name__} has no field {key[:60]!r}" + (f"; did you mean {guess!r}?" if guess else "")
        found.append(Violation("field-unknown", (key,), message, data[key], expected, source))
    if len(unknown) > _MOST_UNKNOWN_FIELDS:
        more = len(unknown) - _MOST_UNKNOWN_FIELDS
        found.append(Violation("field-unknown", (), f"there are {more} more members that are no fields", more))
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


def _violations_of(error: ValidationError, cls: type[Descriptor]) -> list[Violation]:
    """Translate Pydantic's report; errors of nested descriptors are spliced in under their field."""
    found: list[Violation] = []
    names = _names(cls)
    for line in error.errors(include_url=False):
        if line["type"] == "default_factory_not_called":
            continue  # a derived count could not be derived; what it derives from is reported itself
        path = tuple(names.get(step, step) if isinstance(step, str) else step for step in line["loc"])
        context: Mapping[str, Any] = line.get("ctx", {})
        nested = context.get("error")
        if isinstance(nested, InvalidDescriptor):
            found += [v.under(*path) for v in nested.violations]
            continue
        code, message = _MESSAGES.get(line["type"], (line["type"].replace("_", "-"), line["msg"]))
        name = json_path(path)[2:] or cls.__name__
        value = None if line["type"] == "missing" else line["input"]
        found.append(Violation(code, path, f"{name} {message}", value, str(context.get("expected", "")), "DirectML.h"))
    return found


class OperatorDesc(Descriptor):
    """Base of every operator descriptor: which operator, which tensors, supported since when.

    Attributes:
        operator_type: short name, `TILE` for `DML_OPERATOR_TILE`.
        operator_value: the number in `DML_OPERATOR_TYPE`.
        support: rows by feature level, oldest first.
        input_fields: attribute names of the input tensors, in binding order.
        output_fields: attribute names of the output tensors, in binding order.
        approximate: why results may differ from DirectML's in more than rounding; None if they do not.
        summary: what the operator does, in a sentence.
    """

    operator_type: ClassVar[str]
    operator_value: ClassVar[int]
    support: ClassVar[tuple[SupportRow, ...]]
    input_fields: ClassVar[tuple[str, ...]] = ("input_tensor",)
    output_fields: ClassVar[tuple[str, ...]] = ("output_tensor",)
    approximate: ClassVar[str | None] = None
    summary: ClassVar[str] = ""

    @classmethod
    def attribute_fields(cls) -> Mapping[str, FieldInfo]:
        """The fields that are neither tensors nor derived counts: what a caller chooses."""
        fixed = {*cls.input_fields, *cls.output_fields}
        return {
            name: info for name, info in cls.model_fields.items() if name not in fixed and not name.endswith("_count")
        }

    @classmethod
    def complete(cls, desc: Mapping[str, Any]) -> dict[str, Any]:
        """Fill in what follows from the rest (an output tensor that was left out), for callers who send less.

        The mapping may use DirectML's names or Python's; what is there is never changed. The base version adds nothing.
        """
        return dict(desc)

    @classmethod
    def completed(cls, desc: Mapping[str, Any]) -> Self:
        """Read a descriptor that may leave out what follows from the rest, as `complete` fills it in.

        Raises:
            InvalidDescriptor: with the violations of what was sent. What was filled in is blamed only where nothing
                else is wrong, for instance an output of more than 2^32 - 1 elements.
        """
        whole = dict(desc) if any(map(_has_odd_keys, desc.values())) else cls.complete(desc)
        names = _names(cls)
        try:
            return cls(**whole)
        except InvalidDescriptor as error:
            sent = {names.get(key, key) for key in desc}
            own = [v for v in error.violations if not v.path or v.path[0] in sent or v.code == "field-missing"]
            outputs = [(pascal_case(field),) for field in cls.output_fields]
            causes = [v for v in own if v.code != "field-missing" or v.path not in outputs]
            if causes or own:
                raise InvalidDescriptor.of(causes or own) from None
            raise InvalidDescriptor.of(
                [replace(v, message=f"what follows from the other fields: {v.message}") for v in error.violations]
            ) from None

    @staticmethod
    def slot_name(field: str) -> str:
        """The name a tensor field has in a frame: `input` for `input_tensor`."""
        return field.removesuffix("_tensor")

    def tensors(self) -> Mapping[str, Any]:
        """Attribute name to `BufferTensorDesc`, inputs first."""
        return {name: getattr(self, name) for name in (*self.input_fields, *self.output_fields)}

    @property
    def name(self) -> str:
        """See `Operation.name`: the short name, as `operator_type`."""
        return self.operator_type

    @property
    def endpoint(self) -> str:
        """See `Operation.endpoint`."""
        return f"/v1/operators/{self.operator_type.lower()}"

    @property
    def inputs(self) -> tuple[Slot, ...]:
        """See `Operation.inputs`."""
        return tuple([Slot(self.slot_name(field), getattr(self, field).layout) for field in self.input_fields])

    @property
    def outputs(self) -> tuple[Slot, ...]:
        """See `Operation.outputs`. The only output is named `output`, whatever its field."""
        return tuple([Slot("output", getattr(self, field).layout) for field in self.output_fields])

    def to_document(self) -> dict[str, Any]:
        """`{"type": "DML_OPERATOR_...", "desc": {...}}`, which `parse_operator` and DxDispatch read."""
        return {"type": f"DML_OPERATOR_{self.operator_type}", "desc": self.to_json()}

    def to_document_text(self) -> str:
        """`to_document` as compact JSON text, as it travels in a frame's head."""
        return json.dumps(self.to_document(), separators=(",", ":"))

    def validate_for(self, feature_level: str | int | FeatureLevel = NEWEST) -> None:
        """Check the descriptor against the operator's support table.

        Args:
            feature_level: `"2_1"`, `FeatureLevel.L2_1` or the header's number; default the newest, 6_4.

        Raises:
            UnsupportedAtLevel: every field that the level does not support, and the level that does.
            InvalidParameter: there is no such level.
        """
        found = list(self.unsupported_at(FeatureLevel.parse(feature_level)))
        if found:
            raise UnsupportedAtLevel.of(found)

    def unsupported_at(self, level: FeatureLevel) -> Iterator[Violation]:
        """What the level does not support, one violation per tensor field."""
        name = f"DML_OPERATOR_{self.operator_type}"
        source = f"{name} page, tensor support"
        row = support_at(self.support, level)
        if row is None:
            first = self.support[0].since
            yield Violation(
                "operator-newer-than-level", (), f"{name} needs feature level {first}, not {level}",
                str(level), f"{first} or above", source,
            )  # fmt: skip
            return
        for field, tensor in self.tensors().items():
            low, high = row.dimension_counts
            count = len(tensor.sizes)
            if not low <= count <= high:
                needs = self._first_level(lambda r, n=count: r.dimension_counts[0] <= n <= r.dimension_counts[1])
                yield Violation(
                    "dimension-count-unsupported", (pascal_case(field), "Sizes"),
                    f"{name} takes {_span(low, high)} dimensions at feature level {level}, not {count}{needs}",
                    list(tensor.sizes), f"{_span(low, high)} dimensions", source,
                )  # fmt: skip
            if tensor.data_type not in row.data_types:
                needs = self._first_level(lambda r, t=tensor.data_type: t in r.data_types)
                allowed = ", ".join(t.name for t in row.data_types)
                yield Violation(
                    "data-type-unsupported", (pascal_case(field), "DataType"),
                    f"{name} does not take {tensor.data_type.name} at feature level {level}{needs}",
                    tensor.data_type.name, f"one of {allowed}", source,
                )  # fmt: skip

    def _first_level(self, accepts: Callable[[SupportRow], bool]) -> str:
        level = next((row.since for row in self.support if accepts(row)), None)
        return f"; it does from {level} on" if level else ", and no level does"

    def lowest_feature_level(self) -> FeatureLevel | None:
        """The lowest level at which this descriptor is legal; None if it is at none (`validate_for()` says why)."""
        return next((level for level in FeatureLevel if not list(self.unsupported_at(level))), None)

    def tensor_rules(self) -> Iterator[Violation]:
        """The rules of every tensor, under its field, with what only its role as input or output forbids."""
        for field, tensor in self.tensors().items():
            name = pascal_case(field)
            for violation in tensor.rules():
                yield violation.under(name)
            if field in self.output_fields:
                for violation in tensor.output_rules():
                    yield violation.under(name)

    def same_type_and_rank(self) -> Iterator[Violation]:
        """The constraint most operators share: all tensors agree in DataType and DimensionCount."""
        fields = list(self.tensors().items())
        first_name, first = pascal_case(fields[0][0]), fields[0][1]
        for field, tensor in fields[1:]:
            name = pascal_case(field)
            if tensor.data_type != first.data_type:
                yield Violation(
                    "data-types-differ", (name, "DataType"),
                    f"{name} is {tensor.data_type.name} but {first_name} is {first.data_type.name}; they must agree",
                    tensor.data_type.name, first.data_type.name, f"{self._page()}, tensor constraints",
                )  # fmt: skip
            if len(tensor.sizes) != len(first.sizes):
                yield Violation(
                    "dimension-counts-differ", (name, "Sizes"),
                    f"{name} has {len(tensor.sizes)} dimensions but {first_name} has {len(first.sizes)}",
                    list(tensor.sizes), f"{len(first.sizes)} dimensions", f"{self._page()}, tensor constraints",
                )  # fmt: skip

    def _page(self) -> str:
        return f"DML_{self.operator_type}_OPERATOR_DESC"

    def count_rules(self, count_field: str, array_field: str) -> Iterator[Violation]:
        """A count that was sent must be its array's length, and the tensors' DimensionCount."""
        count, length = getattr(self, count_field), len(getattr(self, array_field))
        if count != length:
            yield Violation(
                "count-disagrees", (pascal_case(count_field),),
                f"{pascal_case(count_field)} is {count} but {pascal_case(array_field)} has {length} entries; "
                "leave the count out or send the array's length", count, str(length), self._page(),
            )  # fmt: skip
        rank = len(next(iter(self.tensors().values())).sizes)
        if length != rank:
            yield Violation(
                "array-length", (pascal_case(array_field),),
                f"{pascal_case(array_field)} has {length} entries but the tensors have {rank} dimensions; "
                "send one entry per dimension", list(getattr(self, array_field)), f"{rank} entries", self._page(),
            )  # fmt: skip


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
