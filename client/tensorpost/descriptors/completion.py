"""Completion of documents: fields that follow from others, and violations of outputs that do not follow."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, cast

from pydantic_core import PydanticCustomError

from ..values.datatypes import TensorDataType
from ..values.problems import InvalidDescriptor, Violation
from .base import Descriptor
from .catalogue import OperatorFacts, pascal_case
from .fields import to_float32, to_list
from .tensor import BufferTensorDesc

D = TypeVar("D", bound=Descriptor)
E = TypeVar("E", bound=IntEnum)

Inferred = Iterator[tuple[str, Any]]
"""Fields that follow from others, by attribute name."""


class Output(NamedTuple):
    """What of an output follows from other fields.

    Attributes:
        field: its attribute name.
        data_type: its DataType; None if that does not follow.
        sizes: its sizes.
        why: what the sizes follow from, for the message where they are others; empty where a rule is broken so that
            they are a guess.
    """

    field: str
    data_type: TensorDataType | None
    sizes: Sequence[int]
    why: str


class NotGiven(Exception):  # no error: the constructor names what is missing or cannot be read
    """A field of a document is missing, or cannot be read as its type."""


class Given:
    """The fields of a document under either spelling, or of a descriptor, as far as they can be read.

    The constructor of the descriptor names those that cannot be read.

    The methods named for a type raise `NotGiven` for a field that is missing or cannot be read.

    Attributes:
        fields: the document. A tensor that was read stands there as a descriptor, so that it is not read again.
    """

    def __init__(self, desc: Mapping[str, Any]) -> None:
        self.fields = dict(desc)

    def has(self, name: str) -> bool:
        """Whether the field was given, even as null."""
        return name in self.fields or pascal_case(name) in self.fields

    def value(self, name: str) -> Any:
        """The field as it was sent; None if it was not."""
        return self.fields.get(pascal_case(name), self.fields.get(name))

    def structure(self, cls: type[D], name: str) -> D | None:
        """The field read as a descriptor, whose rules are not looked at yet; None if it was not given or is broken."""
        value = self.value(name)
        if isinstance(value, cls):
            return value
        read = None if value is None else cls.structure(value)
        if read is not None and isinstance(value, Mapping) and "Desc" not in value:
            # It is not read again; the long form is, since its violations have another path.
            self.fields[pascal_case(name) if pascal_case(name) in self.fields else name] = read
        return read

    def tensor(self, name: str) -> BufferTensorDesc:
        """The field read as a tensor."""
        read = self.structure(BufferTensorDesc, name)
        if read is None:
            raise NotGiven(name)
        return read

    def tensors(self, name: str) -> list[BufferTensorDesc]:
        """The field read as an array of one or several tensors."""
        value = self.value(name)
        if not isinstance(value, (list, tuple)) or not value:
            raise NotGiven(name)
        return [Given({name: item}).tensor(name) for item in cast("Sequence[object]", value)]

    def integers(self, name: str) -> list[int]:
        """The field read as an array of whole numbers."""
        try:
            return [operator.index(cast("Any", item)) for item in cast("list[object]", to_list(self.value(name)))]
        except (PydanticCustomError, TypeError):
            raise NotGiven(name) from None

    def integer(self, name: str) -> int:
        """The field read as a whole number."""
        try:
            return operator.index(self.value(name))
        except TypeError:
            raise NotGiven(name) from None

    def axis(self, name: str, rank: int) -> int:
        """The field read as a dimension of tensors of this rank."""
        axis = self.integer(name)
        if not 0 <= axis < rank:
            raise NotGiven(name)
        return axis

    def floats(self, name: str) -> list[float]:
        """The field read as an array of 32-bit numbers."""
        try:
            return [to_float32(item) for item in cast("Sequence[object]", to_list(self.value(name)))]
        except PydanticCustomError:
            raise NotGiven(name) from None

    def member(self, name: str, cls: type[E], prefix: str, default: E) -> E:
        """The field read as a member of a C enum whose names have this prefix; the default where it is none."""
        value = self.value(name)
        try:
            return cls[value.removeprefix(prefix)] if isinstance(value, str) else cls(operator.index(value))
        except (KeyError, TypeError, ValueError):
            return default


def packed(data_type: TensorDataType, sizes: Sequence[int]) -> dict[str, Any]:
    """A packed tensor, as `inferred` returns one; its sizes may be too large, which the rules name."""
    return {"DataType": data_type, "Sizes": list(sizes)}


def with_size(sizes: Sequence[int], axis: int, size: int) -> list[int]:
    """The sizes with another one along an axis."""
    return [*sizes[:axis], size, *sizes[axis + 1 :]]


class CompletedDescriptor(Descriptor):
    """A descriptor of an operator, whose document may leave out what follows from the rest.

    Attributes:
        operator_type: short name, `TILE` for `DML_OPERATOR_TILE`; it follows from the class's name.
        facts: what the catalogue says: number, fields, levels, support tables.
        outputs_like: the outputs that have the sizes and the DataType of an input, each with that input.
    """

    operator_type: ClassVar[str]
    facts: ClassVar[OperatorFacts]
    outputs_like: ClassVar[Mapping[str, str]] = {}
    _kinds: ClassVar[Mapping[str, tuple[str, ...]]]

    @classmethod
    def fields_of_kind(cls, kind: str) -> tuple[str, ...]:
        """The attribute names of the `input`, `output` or `attribute` fields, in binding order."""
        return cls._kinds[kind]

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        """The outputs whose types or sizes follow from other fields; by default those of `outputs_like`.

        Of a document it says what an output is that was left out, of a descriptor what its outputs must be.

        Raises:
            NotGiven: raised by the methods of `given` for a field that cannot be read; what was yielded before it
                counts.
        """
        for field, source in cls.outputs_like.items():
            tensor = given.tensor(source)
            yield Output(field, tensor.data_type, tensor.sizes, f"{pascal_case(source)}.Sizes")

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """What follows from the fields that were given, as pairs of name and value; by default the outputs.

        What was given is not replaced.

        Raises:
            NotGiven: see `output_layouts`.
        """
        for output in cls.output_layouts(given):
            if output.data_type is not None:
                yield output.field, packed(output.data_type, output.sizes)

    @classmethod
    def completed(cls, desc: Mapping[str, Any]) -> Self:
        """Read a descriptor that may leave out what follows from the rest; what is there is never changed.

        Raises:
            InvalidDescriptor: the given fields break rules. Violations of fields that were filled in are reported only
            if nothing else is wrong, for instance an output of more than 2^32 - 1 elements.
        """
        given = Given(desc)
        missing: dict[str, Any] = {}
        with suppress(NotGiven):
            for name, value in cls.inferred(given):
                if not given.has(name):
                    missing[pascal_case(name)] = value
        try:
            return cls(**{**given.fields, **missing})  # with the tensors that were read
        except InvalidDescriptor as error:
            names = cls.names_of_fields()
            sent = {names.get(key, key) for key in desc}
            own = [v for v in error.violations if not v.path or v.path[0] in sent or v.code == "field-missing"]
            outputs = [(pascal_case(field),) for field in cls.fields_of_kind("output")]
            causes = [v for v in own if v.code != "field-missing" or v.path not in outputs]
            if own and not causes:
                source = _first_input(cls, given)
                tried = () if source is None else _with_outputs(cls, {**given.fields, **missing}, source, own)
                # What the shape of the input itself breaks is blamed on tensors, or on counts of them.
                attributes = {field.name for field in cls.facts.fields_by_kind["attribute"]} - {"OutputCount"}
                causes = [v for v in tried if v.path[:1] and v.path[0] in attributes]
                typed = source is not None and not any("DataType" in v.path for v in tried)
                causes = causes or _required_outputs(cls, given, own, ("Sizes",) if typed else ("DataType", "Sizes"))
            if causes:
                raise InvalidDescriptor.of(causes) from None
            of_outputs = [replace(v, message="in the output, " + v.message) for v in error.violations]
            raise InvalidDescriptor.of(of_outputs) from None


def _with_outputs(
    cls: type[CompletedDescriptor], fields: Mapping[str, Any], source: BufferTensorDesc, required: Sequence[Violation]
) -> Sequence[Violation]:
    """What is wrong with a descriptor whose required outputs are the first input once more."""
    arrays = {field.name for field in cls.facts.fields_by_kind["output"] if field.is_array}
    try:
        cls(**{**fields, **{str(v.path[0]): [source] if v.path[0] in arrays else source for v in required}})
    except InvalidDescriptor as error:
        return error.violations
    return []


def _required_outputs(
    cls: type[CompletedDescriptor], given: Given, violations: Sequence[Violation], members: tuple[str, ...]
) -> list[Violation]:
    """The violations of outputs that do not follow, with what of them has to be said: DataType, Sizes or both."""
    with suppress(NotGiven):
        if any(output.data_type is None for output in cls.output_layouts(given)):
            members = ("DataType",)
    expected = f"its {' and '.join(members)}"
    return [
        replace(v, message=v.message + ", since it does not follow from the rest", expected=expected, members=members)
        for v in violations
    ]


def _first_input(cls: type[CompletedDescriptor], given: Given) -> BufferTensorDesc | None:
    for field in cls.facts.fields_by_kind["input"]:
        name = field.attribute_name
        with suppress(NotGiven):
            return given.tensors(name)[0] if field.is_array else given.tensor(name)
    return None
