"""What every descriptor shares: reading DirectML's JSON, collecting violations, support by feature level.

A descriptor is a frozen Pydantic model. Pydantic reads its structure; `rules()` states DirectML's rules. Both report all
they find at once, as one `InvalidDescriptor`. JSON keys are DirectML's own names, Python attributes are snake_case.
"""

from __future__ import annotations

import enum
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from ..problems import InvalidDescriptor, UnsupportedAtLevel, Violation, json_path, nearest
from .feature_levels import NEWEST, FeatureLevel, SupportRow, support_at

__all__ = ["UINT_MAX", "Descriptor", "OperatorDesc", "UInt", "UIntArray", "enum_field"]

UINT_MAX = 2**32 - 1
E = TypeVar("E", bound=enum.IntEnum | enum.IntFlag)

# Set while an operator is re-read only to learn which of its own rules break as well: its tensors then stay silent,
# because the operator's `rules()` repeats theirs with the right path.
_rules_postponed: ContextVar[bool] = ContextVar("_rules_postponed", default=False)


@contextmanager
def _postponed_rules() -> Iterator[None]:
    token = _rules_postponed.set(True)
    try:
        yield
    finally:
        _rules_postponed.reset(token)


def _to_uint(value: object) -> int:
    if isinstance(value, (bool, str)) or not hasattr(value, "__index__"):
        raise PydanticCustomError("not-an-integer", "must be a whole number", {"expected": f"0 to {UINT_MAX}"})
    number = operator.index(cast(Any, value))
    if not 0 <= number <= UINT_MAX:
        raise PydanticCustomError(
            "outside-uint", "does not fit DirectML's 32-bit UINT", {"expected": f"0 to {UINT_MAX}"}
        )
    return number


def _to_list(value: object) -> object:
    """NumPy arrays and any sequence are as good as a JSON array; text is not."""
    if hasattr(value, "tolist"):
        value = cast(Any, value).tolist()
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise PydanticCustomError("not-an-array", "must be an array", {"expected": "an array of whole numbers"})
    return cast(Sequence[object], value)


UInt = Annotated[
    int, BeforeValidator(_to_uint), WithJsonSchema({"type": "integer", "minimum": 0, "maximum": UINT_MAX})
]
UIntArray = Annotated[tuple[UInt, ...], BeforeValidator(_to_list), Field(min_length=1, max_length=8)]


def enum_field(cls: type[E], prefix: str) -> Any:
    """Annotation for a C enum: reads full and short names and the header's numbers, writes the short name."""
    names = [member.name or "" for member in cls]
    if issubclass(cls, enum.IntFlag):
        names = ["NONE", *names]

    def read(value: object) -> object:
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            short = value.removeprefix(prefix)
            if short in names:
                return cls(0) if short == "NONE" and issubclass(cls, enum.IntFlag) else cls[short]
            guess = nearest(short, names)
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise PydanticCustomError(
                "enum-unknown", "{found} is no {what}{hint}",
                {"found": repr(value[:60]), "what": prefix.rstrip("_"), "hint": hint, "expected": ", ".join(names)},
            )  # fmt: skip
        if isinstance(value, int) and not isinstance(value, bool):
            known = (
                0 <= value <= sum(m.value for m in cls) if issubclass(cls, enum.IntFlag) else value in list(cls)
            )
            if known:
                return cls(value)
        raise PydanticCustomError(
            "enum-unknown", "is no {what}", {"what": prefix.rstrip("_"), "expected": ", ".join(names)}
        )

    def write(value: Any) -> str:
        return value.name or "NONE"

    schema = {"type": ["string", "integer"], "enum": [*names, *(prefix + n for n in names), *map(int, cls), 0]}
    schema["enum"] = list(dict.fromkeys(schema["enum"]))
    return Annotated[
        cls, BeforeValidator(read), PlainSerializer(write, return_type=str), WithJsonSchema(cast(Any, schema))
    ]


def _pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


class Descriptor(BaseModel):
    """A frozen, hashable DirectML structure.

    Raises:
        InvalidDescriptor: the fields cannot be read, or break a rule; every violation found is listed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_pascal, populate_by_name=True)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            found = _violations_of(error, type(self))
            if all(_is_rule(line) for line in error.errors(include_url=False, include_input=False)):
                # Only tensors' rules are broken: read once more with those postponed, to see the operator's own too.
                with _postponed_rules():
                    super().__init__(**data)
                found = list(self.rules()) or found
            raise InvalidDescriptor.of(found) from None

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

    def to_json(self) -> dict[str, Any]:
        """The canonical JSON object: DirectML's field names, short enum names, counts included, nulls left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _is_rule(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("ctx", {}).get("error"), InvalidDescriptor)


_MESSAGES: Mapping[str, tuple[str, str]] = {
    # Pydantic's error type -> our stable code and sentence
    "missing": ("field-missing", "is required"),
    "extra_forbidden": ("field-unknown", "is no field of"),
    "too_long": ("dimension-count", "has too many entries"),
    "too_short": ("dimension-count", "must not be empty"),
    "model_type": ("not-an-object", "must be a JSON object"),
    "dict_type": ("not-an-object", "must be a JSON object"),
    "model_attributes_type": ("not-an-object", "must be a JSON object"),
}


def _violations_of(error: ValidationError, cls: type[Descriptor]) -> list[Violation]:
    """Translate Pydantic's report; errors of nested descriptors are spliced in under their field."""
    found: list[Violation] = []
    for line in error.errors(include_url=False):
        if line["type"] == "default_factory_not_called":
            continue  # a derived count could not be derived; what it derives from is reported itself
        path = tuple(line["loc"])
        context: Mapping[str, Any] = line.get("ctx", {})
        nested = context.get("error")
        if isinstance(nested, InvalidDescriptor):
            found += [v.under(*path) for v in nested.violations]
            continue
        code, message = _MESSAGES.get(line["type"], (line["type"].replace("_", "-"), line["msg"]))
        expected = str(context.get("expected", ""))
        if line["type"] == "extra_forbidden":
            names = [info.alias or name for name, info in cls.model_fields.items()]
            guess = nearest(str(path[-1]), names)
            message += f" {cls.__name__}" + (f"; did you mean {guess!r}?" if guess else "")
            expected = "one of " + ", ".join(names)
        elif code == "dimension-count":
            expected = "1 to 8 entries"
        value = None if line["type"] == "missing" else line["input"]
        name = json_path(path).removeprefix("$").rpartition(".")[2] or cls.__name__
        found.append(Violation(code, path, f"{name} {message}", value, expected, "DirectML.h"))
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
            name: info
            for name, info in cls.model_fields.items()
            if name not in fixed and not name.endswith("_count")
        }

    @classmethod
    def complete(cls, desc: Mapping[str, Any]) -> dict[str, Any]:
        """Fill in what follows from the rest (an output tensor that was left out), for callers who send less.

        The mapping may use DirectML's names or Python's; what is there is never changed. The base version adds nothing.
        """
        return dict(desc)

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
