"""The facts of an operator of DirectML, collected from its class, the catalogue and the files beside this module.

`examples.json` has a call of each operator with the result that the service computed, `operator_notes.json` the twins
among ONNX's operators and DirectML's own answers where they differ; `python -m tests.support.docs_tables` writes both.
`formulas.json` is written by hand, in the names of the fields.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from ..descriptors import OperatorDesc, operator_class
from ..descriptors.catalogue import FieldFacts, OperatorFacts
from ..descriptors.field_texts import field_texts
from ..values.datatypes import DATA_TYPES
from ..values.problems import InvalidDescriptor

__all__ = [
    "EXAMPLES",
    "NOTES",
    "DifferentAnswer",
    "ExampleCall",
    "FieldReference",
    "OperatorReference",
    "described_inputs",
    "directml_names",
    "example_of",
    "is_of",
    "operator_reference",
]

EXAMPLES = Path(__file__).with_name("examples.json")
NOTES = Path(__file__).with_name("operator_notes.json")
_FROM_SAFETENSORS = {row.safetensors: row for row in DATA_TYPES if row.safetensors}
_FORMULAS = Path(__file__).with_name("formulas.json")
_UINT_MAX, _INT_MIN, _INT_MAX = 2**32 - 1, -(2**31), 2**31 - 1
_BOUNDS: Mapping[str, str] = {
    "UINT": f"0 to {_UINT_MAX:,}",
    "INT": f"{_INT_MIN:,} to {_INT_MAX:,}",
    "FLOAT": "finite, 32 bits",
    "BOOL": "true or false",
    "SIZE_2D": "Width and Height",
    "SCALE_BIAS": "Scale and Bias",
    "SCALAR_UNION": "a number of the tensor's type",
    "OPERATOR_DESC": "an activation",
}
"""What a value of a type may be where the class says nothing narrower."""


@dataclass(frozen=True, slots=True)
class FieldReference:
    """A field of an operator's struct.

    Attributes:
        name: DirectML's name, as in `IndexDimensions`.
        attribute_name: the name in Python, in a query and on the command line, as in `index_dimensions`.
        kind: `input`, `output` or `attribute`.
        type: DirectML's schema type, as in `UINT_ARRAY`.
        text: what it means, a phrase.
        default: what it is when it is left out; `required` if it cannot be.
        bounds: the values that it may have; empty for tensors, which `OperatorReference.levels` is about.
    """

    name: str
    attribute_name: str
    kind: str
    type: str
    text: str
    default: str
    bounds: str

    def to_json(self) -> dict[str, str]:
        """The field as an object of JSON."""
        return {
            "name": self.name,
            "attribute_name": self.attribute_name,
            "kind": self.kind,
            "type": self.type,
            "default": self.default,
            "bounds": self.bounds,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True)
class ExampleCall:
    """A call that works, and its result.

    Attributes:
        path: where it is posted, as in `/v1/operators/gather`.
        call: the body as JSON: `op` and `tensors`.
        outputs: the tensors that the service answered with, as JSON, by name.
    """

    path: str
    call: Mapping[str, Any]
    outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DifferentAnswer:
    """What DirectML answers otherwise than tensorpost.

    Attributes:
        cases: the test vectors in which it was seen.
        reason: what DirectML does.
    """

    cases: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class OperatorReference:
    """All that there is to say of an operator.

    Attributes:
        name: its short name, as in `GATHER`.
        summary: what it computes, a phrase.
        details: further paragraphs about it.
        formula: what each output element is, in the names of the fields.
        facts: what the catalogue says.
        fields: the fields of its struct, in order.
        example: a call with its result.
        twins: operators of ONNX whose nodes it can compute.
        relatives: operators of ONNX of the same kind, of which DirectML answers some nodes otherwise.
        different_answers: what DirectML itself answers otherwise.
        not_compared: how many test vectors say nothing of DirectML, since Wine, under which it ran, answers otherwise.
    """

    name: str
    summary: str
    details: tuple[str, ...]
    formula: str
    facts: OperatorFacts
    fields: tuple[FieldReference, ...]
    example: ExampleCall
    twins: tuple[str, ...]
    relatives: tuple[str, ...]
    different_answers: tuple[DifferentAnswer, ...]
    not_compared: int

    def field(self, name: str) -> FieldReference:
        """The field of this name.

        Args:
            name: DirectML's name.

        Raises:
            KeyError: the operator has no such field.
        """
        return {each.name: each for each in self.fields}[name]

    def levels(self) -> tuple[tuple[str, str, str, str], ...]:
        """Tensor, feature level from which on, dimensions and data types, a row for each change."""
        rows: list[tuple[str, str, str, str]] = []
        tables: dict[tuple[Any, ...], list[str]] = {}
        for field, table in self.facts.tables():
            tables.setdefault(tuple(table), []).append(field)
        for table, names in tables.items():
            for row in table:
                low, high = row.dimension_counts
                types = " ".join(data_type.name for data_type in row.data_types)
                function = f" (Function {', '.join(row.functions)})" if row.functions else ""
                span = str(low) if low == high else f"{low} to {high}"
                rows.append((", ".join(names), str(row.since), span, types + function))
        return tuple(rows)

    def to_json(self) -> dict[str, Any]:
        """The reference as an object of JSON."""
        return {
            "name": self.name.lower(),
            "type": f"DML_OPERATOR_{self.name}",
            "feature_level": str(self.facts.since),
            "summary": self.summary,
            "formula": self.formula,
            "fields": [field.to_json() for field in self.fields],
            "levels": [
                dict(zip(("tensors", "feature_level", "dimensions", "data_types"), row, strict=True))
                for row in self.levels()
            ],
            "example": {"request": self.example.call, "outputs": self.example.outputs},
            "onnx": list(self.twins),
            "related_onnx": list(self.relatives),
            "directml_differs": [{"reason": each.reason, "cases": list(each.cases)} for each in self.different_answers],
            "directml_not_compared": self.not_compared,
        }


@cache
def operator_reference(name: str) -> OperatorReference:
    """The facts of an operator.

    Args:
        name: its name in any spelling that `operator_class` takes, as in `gather`.

    Raises:
        UnknownOperator: there is none of that name; the message names the one that may be meant.
    """
    cls = operator_class(name)
    notes = _file(NOTES)[cls.operator_type]
    example = example_of(f"/v1/operators/{cls.operator_type.lower()}")
    assert example is not None, "each of DirectML's operators has one"
    return OperatorReference(
        name=cls.operator_type,
        summary=cls.summary,
        details=_details(cls),
        formula=_file(_FORMULAS)[cls.operator_type],
        facts=cls.facts,
        fields=_fields(cls, example),
        example=example,
        twins=tuple(notes["twins"]),
        relatives=tuple(notes["relatives"]),
        different_answers=tuple(DifferentAnswer(tuple(each["cases"]), each["reason"]) for each in notes["directml"]),
        not_compared=notes["not_compared"],
    )


def example_of(path: str) -> ExampleCall | None:
    """The example of a path, as in `/v1/onnx/Resize`; None if it has none."""
    row = _file(EXAMPLES).get(path)
    return None if row is None else ExampleCall(path, row["call"], row["outputs"])


def directml_names(op_type: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """DirectML's operators that compute nodes of one of ONNX's, and those of the same kind that differ.

    Args:
        op_type: ONNX's name, as in `Gather`.
    """
    notes = _file(NOTES)
    twins, relatives = (
        tuple([name for name, row in notes.items() if op_type in row[kind]]) for kind in ("twins", "relatives")
    )
    return twins, relatives


@cache
def _file(path: Path) -> Mapping[str, Any]:
    return json.loads(path.read_text("utf-8"))


def _details(cls: type[OperatorDesc]) -> tuple[str, ...]:
    """The paragraphs of the docstring between its first line and the fields."""
    before = inspect.cleandoc(cls.__doc__ or "").partition("\n\nAttributes:\n")[0]
    _, *paragraphs = before.split("\n\n")
    return tuple(" ".join(paragraph.split()) for paragraph in paragraphs)


def _fields(cls: type[OperatorDesc], example: ExampleCall) -> tuple[FieldReference, ...]:
    texts = field_texts(cls)
    properties: Mapping[str, Any] = cls.model_json_schema(by_alias=True)["properties"]
    sent = example.call["op"]["desc"]
    whole = cls.completed({**described_inputs(cls.facts, example.call["tensors"]), **sent}).to_json()
    return tuple(
        FieldReference(
            name=field.name,
            attribute_name=field.attribute_name,
            kind=field.kind,
            type=field.type,
            text=texts[field.attribute_name],
            default=_default(field, cls, sent, whole),
            bounds=_bounds(field, properties.get(field.name, {})),
        )
        for field in cls.facts.fields
    )


def _default(field: FieldFacts, cls: type[OperatorDesc], sent: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """What a field is when it is left out.

    Args:
        field: what the catalogue says of it.
        cls: the operator's class.
        sent: the descriptor of the example, from which all that follows was left out.
        whole: the same with all that follows.
    """
    info = cls.model_fields[field.attribute_name]
    if field.kind == "input" and info.is_required():
        return "from the tensor that is sent"
    if info.is_required():
        if field.name not in sent:
            return "follows from the rest"
        outputs = [each.name for each in cls.facts.fields_by_kind["output"]]
        if _follows(cls, whole, [field.name, *outputs]):
            return f"filled in; `{json.dumps(whole[field.name])}` in the example"
        return "required" + (", unless it follows from the other fields" if _follows(cls, whole, [field.name]) else "")
    if info.default_factory is not None:
        return "follows from the rest"
    if info.default is None:
        return "none"
    return info.default.name if isinstance(info.default, Enum) else json.dumps(info.default)


def _follows(cls: type[OperatorDesc], whole: Mapping[str, Any], fields: Sequence[str]) -> bool:
    """Whether these fields may be left out if all others are given."""
    counts = [str(info.alias) for info in cls.model_fields.values() if info.default_factory is not None]
    try:
        cls.completed({name: value for name, value in whole.items() if name not in (*fields, *counts)})
    except InvalidDescriptor:
        return False
    return True


def _bounds(field: FieldFacts, schema: Mapping[str, Any]) -> str:
    """The values that an attribute may have, in words."""
    if field.kind != "attribute":
        return ""
    plain = next((each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"), schema)
    if "enum" in plain:
        return ", ".join(each for each in plain["enum"] if isinstance(each, str) and not each.startswith("DML_"))
    one = _BOUNDS["BOOL" if plain.get("type") == "boolean" else field.type.removesuffix("_ARRAY")]
    most = plain.get("maxItems", plain.get("maxLength"))
    if field.is_array:
        return f"1 to {most} entries, each {one}" if most else f"entries: {one}"
    return one


def described_inputs(facts: OperatorFacts, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """The input tensors of a call as the fields of a document.

    Args:
        facts: the operator's.
        tensors: objects with `dtype` and `shape` by the names of a frame.
    """
    found: dict[str, Any] = {}
    for field in facts.fields_by_kind["input"]:
        names = [name for name in tensors if is_of(field, name)]
        described = [_description(tensors[name]) for name in names]
        if described:
            found[field.name] = described if field.is_array else described[0]
    return found


def is_of(field: FieldFacts, name: str) -> bool:
    """Whether a tensor of this name, in a frame, is the field or one of its tensors."""
    return bool(re.fullmatch(rf"{field.slot_name}_\d+", name)) if field.is_array else name == field.slot_name


def _description(tensor: Mapping[str, Any]) -> Mapping[str, Any]:
    row = _FROM_SAFETENSORS[tensor["dtype"]]
    return {"DataType": row.numpy_name.upper(), "Sizes": tensor["shape"]}
