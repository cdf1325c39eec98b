"""What every descriptor shares: reading DirectML's JSON, collecting violations, support by feature level.

A descriptor is a frozen Pydantic model. Pydantic reads its structure; `rules()` states DirectML's rules. Both report all
that they find at once, as one `InvalidDescriptor`. JSON keys are DirectML's own names, Python attributes snake_case.
"""

from __future__ import annotations

import enum
import json
import operator
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self, cast, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tensorpost.problems import InvalidDescriptor, UnsupportedAtLevel, Violation, json_path, nearest

from .feature_levels import NEWEST, FeatureLevel, SupportRow, support_at

__all__ = ["UINT_MAX", "CEnum", "Descriptor", "OperatorDesc", "UInt", "UIntArray"]

UINT_MAX = 2**32 - 1
MAX_DIMENSIONS = 8  # DML_TENSOR_DIMENSION_COUNT_MAX1, level 3_0 and above; no array of a descriptor is longer
_MOST_UNKNOWN_FIELDS = 20  # listed by name; a document with more of them is no misspelling but something else

# Set while an operator is re-read only to learn which of its own rules break as well: its tensors then stay silent,
# because the operator's `rules()` repeats theirs with the right path.
_rules_postponed: ContextVar[bool] = ContextVar("_rules_postponed", default=False)


@contextmanager
def _postponed_rules() -> Generator[None]:
    token = _rules_postponed.set(True)
    try:
        yield
    finally:
        _rules_postponed.reset(token)


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
    expected = {"expected": f"a whole number from 0 to {highest}"}
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        number = operator.index(cast("Any", value))
    except TypeError:
        raise PydanticCustomError("not-an-integer", "must be a whole number", expected) from None
    if not 0 <= number <= highest:
        raise PydanticCustomError(f"outside-{kind.lower()}", f"does not fit DirectML's {kind}", expected)  # pyright: ignore[reportArgumentType] # two kinds exist, both literal
    return number


def _to_uint(value: object) -> int:
    return whole_number(value, UINT_MAX, "UINT")


def _to_list(value: object) -> object:
    """NumPy arrays and any sequence are as good as a JSON array; text and bytes are not.

    The length is checked first, so that a million wrong entries are one error.
    """
    if isinstance(value, (str, bytes, bytearray)) or not (hasattr(value, "tolist") or isinstance(value, Sequence)):
        raise PydanticCustomError("not-an-array", "must be an array", {"expected": "an array of whole numbers"})
    try:
        length = len(cast("Any", value))
    except TypeError:  # a NumPy scalar
        raise PydanticCustomError(
            "not-an-array", "must be an array", {"expected": "an array of whole numbers"}
        ) from None
    if not 1 <= length <= MAX_DIMENSIONS:
        raise PydanticCustomError(
            "dimension-count", "has {length} entries, not 1 to {most}",
            {"length": length, "most": MAX_DIMENSIONS, "expected": f"1 to {MAX_DIMENSIONS} entries"},
        )  # fmt: skip
    return list(cast("Any", value).tolist() if hasattr(value, "tolist") else cast("Sequence[object]", value))


UInt = Annotated[int, BeforeValidator(_to_uint), WithJsonSchema({"type": "integer", "minimum": 0, "maximum": UINT_MAX})]
UIntArray = Annotated[tuple[UInt, ...], BeforeValidator(_to_list), Field(min_length=1, max_length=MAX_DIMENSIONS)]


@dataclass(frozen=True)
class CEnum:
    """Marks a field as a C enum: reads full and short names and the header's numbers, writes the short name.

    Used as `Annotated[TensorDataType, CEnum("DML_TENSOR_DATA_TYPE_")]`.

    Attributes:
        prefix: what the header puts before each name.
    """

    prefix: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: self.read(source, value),
            serialization=core_schema.plain_serializer_function_ser_schema(
                self.write, return_schema=core_schema.str_schema()
            ),
            metadata={"c_enum": source},
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        cls = cast("Any", schema)["metadata"]["c_enum"]
        names = self.names(cls)
        if handler.mode == "serialization":
            return {"type": "string", "enum": names}
        numbers = [0, *map(int, cls)] if issubclass(cls, enum.IntFlag) else [*map(int, cls)]
        return {"enum": [*names, *(self.prefix + name for name in names), *numbers]}

    @staticmethod
    def names(cls: type[enum.IntEnum | enum.IntFlag]) -> list[str]:
        """The short names, NONE first where the enum is a set of flags."""
        none = ["NONE"] if issubclass(cls, enum.IntFlag) else []
        return [*none, *(member.name or "" for member in cls)]

    def read(self, cls: Any, value: object) -> enum.IntEnum | enum.IntFlag:
        """The member that a name or a number means.

        Raises:
            PydanticCustomError: none does; `Descriptor` makes a violation of it.
        """
        names, what = self.names(cls), self.prefix.rstrip("_")
        expected = {"what": what, "expected": ", ".join(names)}
        if isinstance(value, str):
            short = value.removeprefix(self.prefix)
            if short in names:
                return cls(0) if short == "NONE" and issubclass(cls, enum.IntFlag) else cls[short]
            guess = nearest(short, names)
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise PydanticCustomError(
                "enum-unknown", "{found} is no {what}{hint}", {"found": repr(value[:60]), "hint": hint, **expected}
            )
        try:
            number = None if isinstance(value, bool) else operator.index(cast("Any", value))
        except TypeError:
            number = None
        if number is None:
            raise PydanticCustomError("enum-unknown", "must be the name or number of a {what}", expected)
        members = [int(member) for member in cls]
        known = number in range(sum(members) + 1) if issubclass(cls, enum.IntFlag) else number in members
        if not known:
            raise PydanticCustomError("enum-unknown", "is the number of no {what}", expected)
        return cls(number)

    @staticmethod
    def write(value: enum.IntEnum | enum.IntFlag) -> str:
        """The short name."""
        return value.name or "NONE"


def _pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


class Descriptor(BaseModel):
    """A frozen, hashable DirectML structure.

    Fields are given by DirectML's names or by Python's; errors always use DirectML's.

    Raises:
        InvalidDescriptor: the fields cannot be read, or break a rule; every violation found is listed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_pascal, populate_by_name=True)

    def __init__(self, /, **data: Any) -> None:
        fields, found = self._unwrap(data)
        known, unknown = _split_fields(type(self), fields)
        found += unknown
        try:
            super().__init__(**known)
        except ValidationError as error:
            refused = _violations_of(error, type(self))
            try:
                # Where the structure is sound and only rules are broken, this pass sees all of them at once: the
                # tensors' and the operator's own.
                with _postponed_rules():
                    super().__init__(**known)
                refused = list(self.rules()) or refused
            except ValidationError:
                pass  # the structure itself is broken: what the first pass found says all that can be said
            found += refused
        if found:
            raise InvalidDescriptor.of([_where_written(violation, data) for violation in found]) from None

    @classmethod
    def _unwrap(cls, data: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Violation]]:
        """The fields in a document that may wrap them, and what is wrong with the wrapping."""
        return data, []

    @model_validator(mode="before")
    @classmethod
    def _refuse_odd_keys(cls, data: object) -> object:
        # JSON cannot bring these; a dict made in Python can.
        if isinstance(data, Mapping) and not all(isinstance(key, str) for key in cast("Mapping[object, object]", data)):
            raise PydanticCustomError("not-an-object", "must have text for keys", {"expected": "a JSON object"})
        return cast("object", data)

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

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
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
            found.append(
                Violation(
                    "field-twice",
                    (alias,),
                    f"{alias} is given twice, as {alias} and as {snake_case(alias)}; keep one",
                    value,
                    "one of the two",
                    "tensorpost's choice",
                )  # fmt: skip
            )
        else:
            known[alias] = value
    fields = list(dict.fromkeys(names.values()))
    for key in unknown[:_MOST_UNKNOWN_FIELDS]:
        guess = nearest(key, fields)
        found.append(
            Violation(
                "field-unknown",
                (key,),
                f"{cls.__name__} has no such field" + (f"; did you mean {guess!r}?" if guess else ""),
                data[key],
                "one of " + ", ".join(fields),
                f"{cls.__name__} in DirectML.h",
            )  # fmt: skip
        )
    if len(unknown) > _MOST_UNKNOWN_FIELDS:
        more = len(unknown) - _MOST_UNKNOWN_FIELDS
        found.append(Violation("field-unknown", (), f"there are {more} more members that are no fields", more))
    return known, found


def _where_written(violation: Violation, data: Mapping[str, Any]) -> Violation:
    """The violation with its path as the document has it: through `Desc` where a tensor is written in the long form."""
    path: list[str | int] = []
    node: object = data
    for step in violation.path:
        if isinstance(node, Mapping):
            here = cast("Mapping[object, object]", node)
            if "Desc" in here and step not in here:
                path.append("Desc")
                inner = here["Desc"]
                here = cast("Mapping[object, object]", inner) if isinstance(inner, Mapping) else {}
            node = here.get(step, here.get(snake_case(str(step))))
        else:
            node = None
        path.append(step)
    return replace(violation, path=tuple(path))


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
