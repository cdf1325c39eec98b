"""What every descriptor shares: reading DirectML's JSON, collecting violations, support by feature level.

A descriptor is a frozen Pydantic model. Pydantic reads its structure; `rules()` states DirectML's rules. Both report
all that they find at once, as one `InvalidDescriptor`. JSON keys are DirectML's own names, Python attributes are
snake_case.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from ..problems import InvalidDescriptor, UnsupportedAtLevel, Violation, json_path, nearest, presentable
from .feature_levels import NEWEST, FeatureLevel, SupportRow, support_at

__all__ = ["UINT_MAX", "CEnum", "Descriptor", "OperatorDesc", "UInt", "UIntArray"]

UINT_MAX = 2**32 - 1
MAX_DIMENSIONS = 8  # DML_TENSOR_DIMENSION_COUNT_MAX1, level 3_0 and above; no array of a descriptor is longer
_LONGEST_SHOWN = 60  # characters of a value in a message; the violation's `value` has more
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


def whole_number(value: object, highest: int, kind: str) -> int:
    """Read an integer from 0 to `highest`, NumPy's included.

    Text, booleans and floating-point numbers are refused, whole ones too: a size that was computed in floating point
    is a mistake often enough.

    Args:
        value: what was sent.
        highest: the largest number allowed.
        kind: the C type, for the message.

    Raises:
        PydanticCustomError: with the rule's code; `Descriptor` makes a violation of it.
    """
    number = _index(value)
    if number is not None and 0 <= number <= highest:
        return number
    context = {"expected": f"a whole number from 0 to {highest}", "kind": kind, "found": _shown(value)}
    if number is None:
        raise PydanticCustomError("not-an-integer", "must be a whole number, not {found}", context)
    raise PydanticCustomError("out-of-range", "is {found}, which does not fit DirectML's {kind}", context)


def _index(value: object) -> int | None:
    """The integer that a Python or NumPy integer is; None for anything else, booleans included."""
    if isinstance(value, (bool, str)):
        return None
    try:
        return operator.index(cast("Any", value))
    except TypeError:
        return None


def _shown(value: object) -> str:
    """The value for a message, at most 60 characters."""
    text = repr(value[: _LONGEST_SHOWN + 1]) if isinstance(value, str) else str(presentable(value))
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def _to_uint(value: object) -> int:
    return whole_number(value, UINT_MAX, "UINT")


def _to_list(value: object) -> object:
    """NumPy arrays and any sequence are as good as a JSON array; text and bytes are not.

    The length is checked first, so that a million wrong entries are one error.
    """
    array = cast("Any", value)
    try:
        if isinstance(value, (str, bytes, bytearray)) or not (isinstance(value, Sequence) or hasattr(array, "tolist")):
            raise TypeError
        length = len(array)
    except TypeError:  # len() of a NumPy scalar raises it too
        raise PydanticCustomError("not-an-array", "must be an array", {"expected": "an array"}) from None
    if not 1 <= length <= MAX_DIMENSIONS:
        raise PydanticCustomError(
            "dimension-count", "has {length} entries, not 1 to {most}",
            {"length": length, "most": MAX_DIMENSIONS, "expected": f"1 to {MAX_DIMENSIONS} entries"},
        )  # fmt: skip
    return list(array.tolist() if hasattr(array, "tolist") else array)


_UINT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": UINT_MAX}
_UINTS: dict[str, Any] = {"type": "array", "items": _UINT, "minItems": 1, "maxItems": MAX_DIMENSIONS}
UInt = Annotated[int, BeforeValidator(_to_uint), WithJsonSchema(_UINT)]
UIntArray = Annotated[tuple[UInt, ...], BeforeValidator(_to_list), WithJsonSchema(_UINTS)]


@dataclass(frozen=True)
class CEnum:
    """Marks a field as a C enum: reads full and short names and the header's numbers, writes the short name.

    Used as `Annotated[TensorDataType, CEnum("DML_TENSOR_DATA_TYPE_")]`.

    Attributes:
        prefix: what the header puts before each name.
        first: reads what Python callers may send besides, and returns anything else as it is; None for nothing more.
    """

    prefix: str
    first: Callable[[object], object] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: self.read(source, value),
            serialization=core_schema.plain_serializer_function_ser_schema(
                self.write, return_schema=core_schema.str_schema()
            ),
            metadata={"enum": source},
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        cls = cast("Any", schema)["metadata"]["enum"]
        names = _member_names(cls)
        if handler.mode == "serialization":
            return {"type": "string", "enum": names}
        return {"enum": [*names, *(self.prefix + name for name in names), *_member_numbers(cls)]}

    def read(self, cls: Any, value: object) -> IntEnum | IntFlag:
        """The member of the enum `cls` that a name or a number means.

        Raises:
            PydanticCustomError: none does; `Descriptor` makes a violation of it.
        """
        if self.first is not None:
            value = self.first(value)
        names, hint = _member_names(cls), ""
        if isinstance(value, str):
            short = value.removeprefix(self.prefix)
            if short in names:
                return cls[short] if short in cls.__members__ else cls(0)
            guess = nearest(short, names)
            hint = f"; did you mean {guess!r}?" if guess else ""
        number = _index(value)
        if number in _member_numbers(cls):
            return cls(number)
        context = {"what": self.prefix.rstrip("_"), "found": _shown(value), "expected": ", ".join(names), "hint": hint}
        if number is None and not isinstance(value, str):
            raise PydanticCustomError("enum-unknown", "must be the name or number of a {what}, not {found}", context)
        raise PydanticCustomError("enum-unknown", "{found} is no {what}{hint}", context)

    @staticmethod
    def write(value: IntEnum | IntFlag) -> str:
        """The short name."""
        return value.name or "NONE"


def _member_names(cls: type[IntEnum | IntFlag]) -> list[str]:
    """The short names, NONE first where the enum is a set of flags."""
    return [*(["NONE"] if issubclass(cls, IntFlag) else []), *cls.__members__]


def _member_numbers(cls: type[IntEnum | IntFlag]) -> list[int]:
    """The header's numbers; DirectML has no enum of flags with more than one bit, so there is nothing to combine."""
    return [*([0] if issubclass(cls, IntFlag) else []), *map(int, cls.__members__.values())]


def _pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


class Descriptor(BaseModel):
    """A frozen, hashable DirectML structure.

    Fields are given by DirectML's names or by Python's; errors always use DirectML's.

    Raises:
        InvalidDescriptor: the fields cannot be read, or break a rule; every violation found is listed.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=_pascal,
        populate_by_name=True,
        field_title_generator=lambda name, _: _pascal(name),
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
            outputs = [(_pascal(field),) for field in cls.output_fields]
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
                    "dimension-count-unsupported", (_pascal(field), "Sizes"),
                    f"{name} takes {_span(low, high)} dimensions at feature level {level}, not {count}{needs}",
                    list(tensor.sizes), f"{_span(low, high)} dimensions", source,
                )  # fmt: skip
            if tensor.data_type not in row.data_types:
                needs = self._first_level(lambda r, t=tensor.data_type: t in r.data_types)
                allowed = ", ".join(t.name for t in row.data_types)
                yield Violation(
                    "data-type-unsupported", (_pascal(field), "DataType"),
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
            name = _pascal(field)
            for violation in tensor.rules():
                yield violation.under(name)
            if field in self.output_fields:
                for violation in tensor.output_rules():
                    yield violation.under(name)

    def same_type_and_rank(self) -> Iterator[Violation]:
        """The constraint most operators share: all tensors agree in DataType and DimensionCount."""
        fields = list(self.tensors().items())
        first_name, first = _pascal(fields[0][0]), fields[0][1]
        for field, tensor in fields[1:]:
            name = _pascal(field)
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
                "count-disagrees", (_pascal(count_field),),
                f"{_pascal(count_field)} is {count} but {_pascal(array_field)} has {length} entries; "
                "leave the count out or send the array's length", count, str(length), self._page(),
            )  # fmt: skip
        rank = len(next(iter(self.tensors().values())).sizes)
        if length != rank:
            yield Violation(
                "array-length", (_pascal(array_field),),
                f"{_pascal(array_field)} has {length} entries but the tensors have {rank} dimensions; "
                "send one entry per dimension", list(getattr(self, array_field)), f"{rank} entries", self._page(),
            )  # fmt: skip


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def length_of(field: str) -> Callable[[dict[str, Any]], int]:
    """Default for a derived count: the length of the array field, 0 if that could not be read."""
    return lambda data: len(data.get(field, ()))


def field_types(cls: type[BaseModel], name: str) -> tuple[Any, ...]:
    """The type arguments of a field's annotation."""
    return get_args(cls.model_fields[name].annotation)


def snake_case(name: str) -> str:
    """`InputPixelOffsets` to `input_pixel_offsets`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
