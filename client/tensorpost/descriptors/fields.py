"""The C types of `DirectML.h` as fields of a descriptor: UINT, FLOAT, BOOL and enums, and arrays of the first two.

Each reads what JSON or Python may send for it and says what is wrong with anything else; nothing is rounded to a whole
number, and no text is taken for a number. The name of a field is DirectML's in JSON and snake_case in Python.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import partial
from typing import Annotated, Any, cast

import numpy as np
from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, PlainSerializer, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from ..values.datatypes import BOOLEANS
from ..values.problems import nearest, presentable

__all__ = [
    "MAX_DIMENSIONS",
    "UINT_MAX",
    "Bool",
    "CEnum",
    "FactorArray",
    "Float",
    "FloatArray",
    "Int",
    "IntArray",
    "ScalarUnion",
    "UInt",
    "UIntArray",
    "WholeNumber",
    "count_of",
    "length_of",
    "to_float32",
    "to_list",
]

UINT_MAX = 2**32 - 1
INT_MAX = 2**31 - 1
MAX_DIMENSIONS = 8  # DML_TENSOR_DIMENSION_COUNT_MAX1, level 3_0 and above; no array of a descriptor is longer
_LONGEST_SHOWN = 60  # characters of a value in a message; the violation's `value` has more
_MOST_NAMES_SHOWN = 12  # of an enum's members in a message; the violation's `expected` has all
_FLOAT_RANGE = "a finite number of at most 3.4028235e38 in magnitude"


NATIVE, CONVERTED = "native integer", "converted integer"
"""The two ways of `WholeNumber` in the `loc` of Pydantic's errors: what the second one says is what counts."""


@dataclass(frozen=True)
class WholeNumber:
    """Marks a field as one of C's integer types.

    Pydantic takes Python's integers without a call into Python, 14 times as fast. NumPy's are converted. Text, booleans
    and floating-point numbers are refused, whole ones too: a size that was computed in floating point is often a
    mistake.

    Attributes:
        kind: the C type.
        highest: the largest number allowed.
        lowest: the smallest number allowed.
        sensible: the smallest number that no rule refuses, for the message; None for `lowest`.
    """

    kind: str
    highest: int
    lowest: int = 0
    sensible: int | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        native = core_schema.int_schema(strict=True, ge=self.lowest, le=self.highest)
        converted = core_schema.no_info_plain_validator_function(self.read)
        return core_schema.union_schema(
            [(native, NATIVE), (converted, CONVERTED)],
            mode="left_to_right",
            serialization=core_schema.simple_ser_schema("int"),
        )

    def read(self, value: object) -> int:
        """The integer that a Python or NumPy integer is.

        Raises:
            PydanticCustomError: the value is not such an integer; `Descriptor` makes a violation of the error's code.
        """
        number = _index(value)
        if number is not None and self.lowest <= number <= self.highest:
            return number
        lowest = self.lowest if self.sensible is None else self.sensible
        expected = f"a whole number from {lowest} to {self.highest}"
        context = {"expected": expected, "kind": self.kind, "found": _shown(value)}
        if number is None:
            raise PydanticCustomError("not-an-integer", "must be a whole number, not {found}", context)
        raise PydanticCustomError(
            "out-of-range", "is {found}, which does not fit DirectML's {kind}: {expected}", context
        )


def _index(value: object) -> int | None:
    """The integer that a Python or NumPy integer is; None for anything else, booleans included."""
    if isinstance(value, (*BOOLEANS, str)):
        return None
    try:
        return operator.index(cast("Any", value))
    except TypeError:
        return None


def _shown(value: object) -> str:
    """The value for a message, at most 60 characters; what is no text as in JSON, whose words the documents have."""
    found = repr(value[: _LONGEST_SHOWN + 1]) if isinstance(value, str) else presentable(value)
    text = found if isinstance(found, str) else json.dumps(found)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def _to_scalar(value: object) -> int | float:
    """A number of any of DirectML's types: whole numbers keep all their digits, others are FLOAT64."""
    number = _index(value)
    if number is not None and -(2**63) <= number < 2**64:
        return number
    if number is not None or not isinstance(value, (float, np.floating)):
        raise PydanticCustomError("not-a-number", "must be a number of at most 64 bits", {"expected": "a number"})
    return float(cast("Any", value))


def to_list(value: object) -> object:
    """NumPy arrays and any sequence are read like a JSON array; text and bytes are not.

    The length is checked first, so that a million wrong entries are one error.

    Raises:
        PydanticCustomError: it is not an array, or one of a length that no array of DirectML has.
    """
    array = cast("Any", value)
    expected = {"expected": f"an array of 1 to {MAX_DIMENSIONS} numbers"}
    try:
        if isinstance(value, (str, bytes, bytearray)) or not (isinstance(value, Sequence) or hasattr(array, "tolist")):
            raise TypeError
        length = len(array)
    except TypeError:  # len() of a NumPy scalar raises it too
        raise PydanticCustomError("not-an-array", "must be an array", expected) from None
    if not 1 <= length <= MAX_DIMENSIONS:
        raise PydanticCustomError(
            "dimension-count", "has {length} entries, not 1 to {most}",
            {"length": length, "most": MAX_DIMENSIONS, **expected},
        )  # fmt: skip
    return list(array.tolist() if hasattr(array, "tolist") else array)


_UINT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": UINT_MAX}
_UINTS: dict[str, Any] = {"type": "array", "items": _UINT, "minItems": 1, "maxItems": MAX_DIMENSIONS}
UInt = Annotated[int, WholeNumber("UINT", UINT_MAX), WithJsonSchema(_UINT)]
Int = Annotated[int, WholeNumber("INT", INT_MAX, -INT_MAX - 1), WithJsonSchema({"type": "integer"})]
IntArray = Annotated[
    tuple[Int, ...], BeforeValidator(to_list), WithJsonSchema({"type": "array", "items": {"type": "integer"}})
]
ScalarUnion = Annotated[int | float, BeforeValidator(_to_scalar), WithJsonSchema({"type": "number"})]
"""`DML_SCALAR_UNION`: a number that is read as the data type that another field names."""
UIntArray = Annotated[tuple[UInt, ...], BeforeValidator(to_list), WithJsonSchema(_UINTS)]
_Factor = Annotated[int, WholeNumber("UINT", UINT_MAX, sensible=1), WithJsonSchema(_UINT)]
FactorArray = Annotated[tuple[_Factor, ...], BeforeValidator(to_list), WithJsonSchema(_UINTS)]
"""Numbers of which a rule refuses 0, under a code of its own."""


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
            partial(self.read, source, _members(source, self.prefix)),
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

    def read(
        self, cls: type[IntEnum | IntFlag], members: Mapping[str | int, IntEnum | IntFlag], value: object
    ) -> IntEnum | IntFlag:
        """The member of the enum `cls` that a name or a number means.

        Args:
            cls: the enum.
            members: its members, by names and numbers.
            value: what was sent.

        Raises:
            PydanticCustomError: none does; `Descriptor` makes a violation of it.
        """
        if self.first is not None and not isinstance(value, (str, int)):
            value = self.first(value)
        key = value if isinstance(value, str) else _index(value)
        if isinstance(key, str) and key not in members:
            key = _SHORTER.get(key.upper(), key.upper())  # in either case
        if key is not None and key in members:
            return members[key]
        names, number, hint = _member_names(cls), _index(value), ""
        if isinstance(value, str):
            guess = nearest(value.removeprefix(self.prefix), names)
            hint = f"; did you mean {guess!r}?" if guess else ""
        context = {"what": self.prefix.rstrip("_"), "found": _shown(value), "expected": ", ".join(names), "hint": hint}
        if number is None and not isinstance(value, str):
            raise PydanticCustomError("enum-unknown", "must be the name or number of a {what}, not {found}", context)
        if len(names) <= _MOST_NAMES_SHOWN:
            raise PydanticCustomError("enum-unknown", "{found} is not one of {expected}{hint}", context)
        raise PydanticCustomError("enum-unknown", "{found} is not a {what}{hint}", context)

    @staticmethod
    def write(value: IntEnum | IntFlag) -> str:
        """The short name."""
        return value.name or "NONE"


_SHORTER = {"NEAREST": "NEAREST_NEIGHBOR"}
"""The SDK's and ONNX's word for one of DirectML's."""


def _member_names(cls: type[IntEnum | IntFlag]) -> list[str]:
    """The short names, NONE first where the enum is a set of flags."""
    return [*(["NONE"] if issubclass(cls, IntFlag) else []), *cls.__members__]


def _members(cls: type[IntEnum | IntFlag], prefix: str) -> Mapping[str | int, IntEnum | IntFlag]:
    """The members by short name, full name and number."""
    named = {**({"NONE": cls(0)} if issubclass(cls, IntFlag) else {}), **cls.__members__}
    return {key: member for name, member in named.items() for key in (name, prefix + name, int(member))}


def _member_numbers(cls: type[IntEnum | IntFlag]) -> list[int]:
    """The header's numbers; DirectML has no enum of flags with more than one bit, so there is nothing to combine."""
    return [*([0] if issubclass(cls, IntFlag) else []), *map(int, cls.__members__.values())]


def to_float32(value: object) -> float:
    """The 32-bit float next to the value, which is what DirectML's FLOAT would hold."""
    if isinstance(value, (*BOOLEANS, str)) or not hasattr(value, "__float__"):
        context = {"expected": _FLOAT_RANGE, "found": _shown(value)}
        raise PydanticCustomError("not-a-number", "must be a number, not {found}", context)
    try:
        number = float(cast("Any", value))
    except OverflowError:
        number = math.inf  # an integer beyond every double
    with np.errstate(over="ignore"):
        rounded = float(np.float32(number))
    if not math.isfinite(rounded):
        raise PydanticCustomError("not-finite", "must be finite as a 32-bit FLOAT", {"expected": _FLOAT_RANGE})
    return rounded


def _shortest(value: float) -> float:
    """The shortest decimal that reads back as the same 32-bit float: 1.7, not 1.7000000476837158."""
    return float(str(np.float32(value)))


def _to_bool(value: object) -> bool:
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise PydanticCustomError("not-a-bool", "must be true or false", {"expected": "true, false, 1 or 0"})


Float = Annotated[
    float,
    BeforeValidator(to_float32),
    PlainSerializer(_shortest, return_type=float, when_used="json"),
    WithJsonSchema({"type": "number"}),
]
FloatArray = Annotated[tuple[Float, ...], BeforeValidator(to_list), Field(min_length=1, max_length=MAX_DIMENSIONS)]
Bool = Annotated[bool, BeforeValidator(_to_bool), WithJsonSchema({"type": "boolean"})]


def length_of(field: str) -> Callable[[dict[str, Any]], int]:
    """Default for a derived count: the length of the array field, 0 if that could not be read."""
    return lambda data: len(data.get(field, ()))


def count_of(field: str) -> Any:
    """A field that counts the entries of an array field; derived where it is left out."""
    return Field(default_factory=length_of(field))
