"""DirectML's 177 operators as data: what `catalogue.json` says about each, as frozen values.

The file restates `DirectML.h` of feature level 6_4 and the tables of the operators' pages; one line is one operator.
Two rows are not the pages' but what releases of DirectML that tell the level were seen to accept: at 5_0 FLOAT64 in
TILE, at 5_2 1 to 4 dimensions in RESAMPLE_GRAD ([DirectML itself](../../../docs/directml.md)).
PastSequenceLengthsTensor of MULTIHEAD_ATTENTION1 is INT32, as ONNX Runtime binds it; the page repeats the types of the
other tensors there.
Every descriptor class takes its number, fields, levels and support tables from here, and a test compares the class with
them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from ..values.datatypes import TensorDataType
from .feature_levels import FeatureLevel

__all__ = [
    "FieldFacts",
    "OperatorFacts",
    "SupportRow",
    "facts_of",
    "operator_names",
    "pascal_case",
    "slot_name",
    "snake_case",
]


@lru_cache(maxsize=1024)  # the names of all fields of the catalogue
def pascal_case(name: str) -> str:
    """`input_pixel_offsets` to `InputPixelOffsets`, `roi_tensor` to `ROITensor`."""
    return "".join(map(str.capitalize, name.split("_"))).replace("Roi", "ROI")


def snake_case(name: str) -> str:
    """`InputPixelOffsets` to `input_pixel_offsets`, `ROITensor` to `roi_tensor`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name.replace("ROI", "Roi")).lower()


def slot_name(field: str) -> str:
    """The name that a tensor field has in a frame: `input` for `input_tensor` and `input_tensors`."""
    return field.removesuffix("s").removesuffix("_tensor")


@dataclass(frozen=True, slots=True)
class FieldFacts:
    """One field of an operator's struct.

    Attributes:
        name: DirectML's name, for instance `InputTensor`.
        kind: `input`, `output` or `attribute`.
        type: DirectML's schema type: `TENSOR_DESC`, `TENSOR_DESC_ARRAY`, `UINT`, `FLOAT_ARRAY` and so on.
        optional: whether the pointer may be null.
        attribute_name: the name as a Python attribute.
        slot_name: the name in a frame, if it is a tensor.
        is_array: whether the field points to several tensors or numbers, whose count another field holds.
    """

    name: str
    kind: str
    type: str
    optional: bool
    attribute_name: str
    slot_name: str
    is_array: bool

    @classmethod
    def parse(cls, text: str) -> FieldFacts:
        """Read `InputTensor: input TENSOR_DESC`, with `optional` at its end."""
        name, _, rest = text.partition(": ")
        kind, type_, *optional = rest.split()
        attribute = snake_case(name)
        return cls(name, kind, type_, bool(optional), attribute, slot_name(attribute), type_.endswith("_ARRAY"))


@dataclass(frozen=True, slots=True)
class SupportRow:
    """What a tensor of an operator may be from a feature level on, until the next row of its table.

    Attributes:
        since: first level that the row holds for.
        dimension_counts: lowest and highest DimensionCount.
        data_types: the DataTypes that the tensor may have.
        functions: functions of REDUCE that the row holds for; empty if it holds for all.
    """

    since: FeatureLevel
    dimension_counts: tuple[int, int]
    data_types: tuple[TensorDataType, ...]
    functions: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> SupportRow:
        """Read `2_1 1-8 FLOAT32 FLOAT16 if Function MIN MAX`."""
        row, _, condition = text.partition(" if Function ")
        since, span, *types = row.split()
        low, _, high = span.partition("-")
        names = tuple([TensorDataType[name] for name in types])
        return cls(FeatureLevel.parse(since), (int(low), int(high or low)), names, tuple(condition.split()))


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """What the catalogue says about an operator.

    Attributes:
        name: short name, `TILE` for `DML_OPERATOR_TILE`.
        number: the value in `DML_OPERATOR_TYPE`.
        since: the feature level that brought it.
        family: the group it belongs to, in words.
        in_place: whether an output may share memory with an input in DirectML. Requests never do.
        fields: the fields of the C struct, in its order.
        fields_by_kind: the same by kind: `input`, `output` or `attribute`.
        support: rows by tensor field, oldest first; `*` stands for every tensor.
    """

    name: str
    number: int
    since: FeatureLevel
    family: str
    in_place: bool
    fields: tuple[FieldFacts, ...]
    fields_by_kind: Mapping[str, tuple[FieldFacts, ...]]
    support: Mapping[str, tuple[SupportRow, ...]]

    def rows(self, tensor: str, function: str | None = None) -> tuple[SupportRow, ...]:
        """The support table of a tensor field.

        Args:
            tensor: DirectML's name of the field.
            function: the reduction that is asked for, where the table depends on it.
        """
        rows = self.support["*"] if "*" in self.support else self.support[tensor]
        return tuple([row for row in rows if not row.functions or function in row.functions])

    def row_at(self, level: FeatureLevel, tensor: str, function: str | None = None) -> SupportRow | None:
        """The last row of a tensor's table at or below the level; None if there is none."""
        found: SupportRow | None = None
        for row in self.support["*"] if "*" in self.support else self.support[tensor]:
            is_meant = not row.functions or function in row.functions
            if is_meant and row.since <= level and (found is None or row.since > found.since):
                found = row
        return found

    def tables(self) -> Iterator[tuple[str, Sequence[SupportRow]]]:
        """Every tensor field with its whole support table."""
        for field in self.fields:
            if field.kind != "attribute":
                yield field.name, self.support["*"] if "*" in self.support else self.support[field.name]


@cache
def _catalogue() -> Mapping[str, Any]:
    return json.loads(resources.files(__name__.rpartition(".")[0]).joinpath("catalogue.json").read_text("utf-8"))


def operator_names() -> list[str]:
    """The short names of all operators of DirectML, by number."""
    return list(_catalogue())


_CLASS_SUFFIX = "OperatorDesc"


@cache
def operators_by_class() -> Mapping[str, str]:
    """The short names of all operators, by the names of their classes in lower case."""
    return {f"{name.replace('_', '')}{_CLASS_SUFFIX}".lower(): name for name in operator_names()}


def operator_of_class(class_name: str) -> str | None:
    """The short name of the operator that a descriptor class is of, by the class's name; None if it is of none.

    Examples:
        >>> operator_of_class("ElementWiseAdd1OperatorDesc")
        'ELEMENT_WISE_ADD1'
    """
    return operators_by_class().get(class_name.lower()) if class_name.endswith(_CLASS_SUFFIX) else None


@cache
def facts_of(name: str) -> OperatorFacts:
    """What the catalogue says about an operator.

    Raises:
        KeyError: DirectML has no operator of this short name.
    """
    entry = _catalogue()[name]
    fields = tuple([FieldFacts.parse(text) for text in entry["fields"]])
    return OperatorFacts(
        name=name,
        number=entry["number"],
        since=FeatureLevel.parse(entry["since"]),
        family=entry["family"],
        in_place=entry["in_place"],
        fields=fields,
        fields_by_kind={
            kind: tuple([field for field in fields if field.kind == kind]) for kind in ("input", "output", "attribute")
        },
        support={tensor: tuple([SupportRow.parse(row) for row in rows]) for tensor, rows in entry["support"].items()},
    )
