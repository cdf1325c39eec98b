"""Models: what the Open Inference Protocol calls each operator, and what it says about one.

A model is made from the catalogue: `tile` is DirectML's TILE, `onnx.tile` ONNX's Tile, `tile.uint8` the same with
another datatype in its metadata. Presets, operators whose attributes are fixed, come from the settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

from pydantic.fields import FieldInfo

from tensorpost.descriptors import OPERATORS, BufferTensorDesc, OperatorDesc, operator_class
from tensorpost.descriptors.catalogue import FieldFacts, SupportRow
from tensorpost.descriptors.operator_desc import Given, NotGiven
from tensorpost.onnx import ONNX_OPERATORS, OnnxSchema
from tensorpost.values.datatypes import DATA_TYPES, DataType, TensorDataType, data_type
from tensorpost.values.problems import InvalidParameter, UnknownOperator, nearest

from ...settings import Preset
from ..wires.call_parser import CallParser
from ..wires.dialects import DIALECTS
from ..wires.stored_dialect import StoredDialect
from ..wires.version_policy import policy_document

VERSION = "1"
"""The version of every model but stored graphs that have another one. Clients read it as a number."""

_FLOAT32 = data_type("float32")
_SUFFIXES = {row.open_inference.lower(): row for row in DATA_TYPES if row.open_inference is not None}
_MOST_RANK = 4
"""Free dimensions that the metadata shows where an operator takes any number; a request may have fewer or more."""
_ARRAY_TENSORS = 2
"""Tensors that the metadata shows of an array of tensors; a request may have fewer or more."""
_SCHEMA_TYPES = {"UINT": "integer", "INT": "integer", "FLOAT": "number", "SCALAR_UNION": "number"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a model's metadata."""

    name: str
    data_type: DataType
    shape: tuple[int, ...]

    def to_metadata(self) -> dict[str, Any]:
        """The entry of the model's metadata."""
        return {"name": self.name, "datatype": self.data_type.open_inference, "shape": list(self.shape)}

    def to_config(self, skipped: int = 0) -> dict[str, Any]:
        """The entry of the model's configuration, which calls BYTES a string; without the first sizes, if so."""
        name = self.data_type.open_inference
        return {
            "name": self.name,
            "data_type": f"TYPE_{'STRING' if name == 'BYTES' else name}",
            "dims": list(self.shape[skipped:]),
        }


@dataclass(frozen=True)
class Model:
    """An operator as a model.

    Attributes:
        dialect: path of the operator's dialect in `DIALECTS`.
        inputs: the tensors that it is always given, in the order of the operator.
        attributes: what may be given as a parameter or a small tensor, with its schema.
        fixed: attributes of a preset, by name, as JSON values.
        stored: the stored graph that it is; None of an operator.
    """

    name: str
    dialect: str
    operator: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    attributes: Mapping[str, Any]
    fixed: Mapping[str, Any]
    stored: StoredDialect | None = None

    @property
    def is_onnx(self) -> bool:
        """Whether the operator is ONNX's."""
        return self.dialect == "/v1/onnx"

    @cached_property
    def parser(self) -> CallParser:
        """Parses calls of the operator."""
        if self.stored is not None:
            return self.stored(self.operator)
        return DIALECTS[self.dialect](self.operator)

    @cached_property
    def small_tensors(self) -> frozenset[str]:
        """Names of the tensors whose elements are part of the operation: attributes that come as tensors."""
        known = {*self.attributes, *self.parser.value_names}
        return frozenset(known.difference([tensor.name for tensor in self.inputs]))

    @property
    def version(self) -> str:
        """Its version; an operator has only one."""
        return VERSION if self.stored is None else str(self.stored.stored.version)

    @property
    def platform(self) -> str:
        """What the metadata says of the format of models."""
        if self.stored is not None:
            return "onnx" if self.stored.stored.source.kind == "onnx" else "tensorpost_graph"
        return "onnx_operator" if self.is_onnx else "dml_operator"

    def check_version(self, version: str | None) -> None:
        """Refuse another version of an operator's model than its only one.

        Raises:
            UnknownOperator: it is not the only one.
        """
        if version not in (None, self.version):
            raise UnknownOperator(
                f"model {self.name!r} has no version {version[:20]!r}; it has version {self.version} only"
            )

    def to_metadata(self, versions: Sequence[str] = (VERSION,)) -> dict[str, Any]:
        """The answer to `GET /v2/models/{model}`, for a model with these versions."""
        return {
            "name": self.name,
            "versions": [*versions],
            "platform": self.platform,
            "inputs": [tensor.to_metadata() for tensor in self.inputs],
            "outputs": [tensor.to_metadata() for tensor in self.outputs],
        }

    def to_config(self, versions: Sequence[str] = (VERSION,)) -> dict[str, Any]:
        """The answer to `GET /v2/models/{model}/config`, with these versions: the JSON form of Triton's ModelConfig."""
        batches = None if self.stored is None else self.stored.stored.batches
        most, delay = (0, None) if batches is None else (batches.max_batch_size, batches.max_queue_delay_microseconds)
        return {
            "name": self.name,
            "platform": self.platform,
            "backend": "tensorpost",
            "max_batch_size": most,
            "version_policy": policy_document(versions),
            "input": [tensor.to_config(min(most, 1)) for tensor in self.inputs],
            "output": [tensor.to_config(min(most, 1)) for tensor in self.outputs],
            "parameters": self._parameters(),
            **({} if delay is None else {"dynamic_batching": {"max_queue_delay_microseconds": delay}}),
        }

    def _parameters(self) -> dict[str, Any]:
        """What the configuration says of attributes, which a stored graph has not."""
        if self.stored is not None:
            return {}
        names = _required_by_onnx(self.operator) if self.is_onnx else _required_by_directml(self.operator)
        required = [name for name in names if name not in self.fixed]
        schema = {"type": "object", "properties": self.attributes, "required": required}
        return {
            "attributes_schema": {"string_value": json.dumps(schema)},
            "attributes": {"string_value": json.dumps(dict(self.fixed))},
        }


class ModelCatalogue:
    """Every model by its name. What a model's metadata says is made when somebody asks.

    Raises:
        InvalidParameter: a preset has the name of an operator, one that no path can hold, or an operator that there is
            not.
    """

    def __init__(self, presets: Mapping[str, Preset]) -> None:
        self._presets: dict[str, Model] = {}
        for name, preset in presets.items():
            self._presets[name] = self._preset(name, preset)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Presets, then every operator; the same with other datatypes are not listed."""
        return (*self._presets, *_OPERATORS)

    def find(self, name: str, version: str | None = None) -> Model:
        """The model of this name.

        Raises:
            UnknownOperator: there is no such model, or no such version of it.
        """
        model = self._presets.get(name) or _operator_model(name)
        if model is None:
            guess = nearest(name, self.names)
            hint = f"did you mean {guess!r}?" if guess else "POST /v2/repository/index lists them"
            raise UnknownOperator(f"unknown model {name[:60]!r}; {hint}", extra={"nearest": guess})
        model.check_version(version)
        return model

    def has(self, name: str) -> bool:
        """Whether this is the name of a preset, or of an operator's model, with a datatype or without."""
        return name in self._presets or _operator_model(name) is not None

    def replace_preset(self, model: Model) -> None:
        """Put a preset in the place of the one of the same name: its outputs became known."""
        self._presets[model.name] = model

    @property
    def presets(self) -> tuple[Model, ...]:
        """The presets."""
        return tuple(self._presets.values())

    @staticmethod
    def _preset(name: str, preset: Preset) -> Model:
        if name == "stats" or not name or set("/%? #\\") & {*name}:
            raise InvalidParameter(
                f"a preset cannot have the name {name[:60]!r}: the path of a model cannot contain it"
            )
        if _operator_model(name) is not None:
            raise InvalidParameter(f"the preset {name!r} has the name of an operator; give it another one")
        model = _operator_model(preset.operator)
        if model is None:
            guess = nearest(preset.operator, _OPERATORS)
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise InvalidParameter(
                f"the preset {name!r} is of {preset.operator[:60]!r}, which is not an operator{hint}"
            )
        row = _SUFFIXES.get(preset.datatype.lower())
        if row is None:
            raise InvalidParameter(
                f"the preset {name!r} has the datatype {preset.datatype[:40]!r}, which does not exist"
            )
        inputs = list(model.inputs)
        if inputs:
            shape = inputs[0].shape if preset.shape is None else tuple(preset.shape)
            inputs[0] = TensorInfo(inputs[0].name, row, shape)
        rank = len(inputs[0].shape) if inputs else _MOST_RANK
        outputs = [TensorInfo(output.name, row, (-1,) * rank) for output in model.outputs]
        return replace(model, name=name, inputs=tuple(inputs), outputs=tuple(outputs), fixed=preset.attributes)


def input_rank(low: int, high: int) -> int:
    """How many free dimensions the metadata shows of a tensor that has from `low` to `high`."""
    return min(max(_MOST_RANK, low), high)


_OPERATORS: Mapping[str, type[OperatorDesc] | str] = {
    **{cls.operator_type.lower(): cls for cls in OPERATORS},
    **{f"onnx.{schema.op_type.lower()}": schema.op_type for schema in ONNX_OPERATORS},
}
"""The operator of each model by the model's name: a descriptor's class, or the op_type of an ONNX node."""

_KNOWN: dict[str, Model] = {}
"""Models that were asked for; at most all names with all datatypes."""


def _operator_model(name: str) -> Model | None:
    known = _KNOWN.get(name)
    if known is not None:
        return known
    base, _, suffix = name.rpartition(".")
    row = _FLOAT32
    operator = _OPERATORS.get(name)
    if operator is None:
        operator, row = _OPERATORS.get(base), _SUFFIXES.get(suffix)
        if operator is None or row is None:
            return None
    model = _of_onnx(name, operator, row) if isinstance(operator, str) else _of_directml(name, operator, row)
    if row is not _FLOAT32 and all(tensor.data_type is not row for tensor in model.inputs):
        return None
    _KNOWN[name] = model
    return model


# ---- DirectML --------------------------------------------------------------------------------------------------------


def _of_directml(name: str, cls: type[OperatorDesc], wanted: DataType) -> Model:
    facts = cls.facts
    inputs = [
        info
        for field in facts.fields_by_kind["input"]
        if not field.optional
        for info in _field_tensors(cls, field, wanted)
    ]
    outputs = [info for field in facts.fields_by_kind["output"] for info in _field_tensors(cls, field, wanted)]
    attributes = {
        field.attribute_name: _field_schema(field, cls.model_fields[field.attribute_name])
        for field in facts.fields_by_kind["attribute"]
        # Counts of arrays follow from them; those of groups or heads do not.
        if not field.name.endswith("Count") or cls.model_fields[field.attribute_name].default_factory is None
    }
    attributes["output_sizes"] = {"type": "array", "items": {"type": "integer"}}
    attributes["output_data_type"] = _enum_schema(TensorDataType)
    path, operator = "/v1/operators", cls.operator_type.lower()
    return Model(name, path, operator, tuple(inputs), tuple(outputs), attributes, {})


class _EveryTensor(Given):
    """A document with every tensor and whole number, of which only enums are missing."""

    _tensor = BufferTensorDesc.packed("FLOAT32", (1,) * _MOST_RANK)

    def __init__(self) -> None:
        super().__init__({})

    def structure(self, cls: type[Any], name: str) -> Any:
        return self._tensor if cls is BufferTensorDesc else None

    def tensors(self, name: str) -> list[BufferTensorDesc]:
        return [self._tensor] * _ARRAY_TENSORS

    def integers(self, name: str) -> list[int]:
        return [1, 1]

    def integer(self, name: str) -> int:
        return 1


def _required_by_directml(operator: str) -> Iterator[str]:
    """The attributes that do not follow from tensors and have no value that is usual."""
    cls, follow = operator_class(operator), set[str]()
    with suppress(NotGiven):  # an attribute decides the rest, which are outputs
        for name, _ in cls.inferred(_EveryTensor()):
            follow.add(name)
    for field in cls.facts.fields_by_kind["attribute"]:
        name = field.attribute_name
        if cls.model_fields[name].is_required() and name not in follow:
            yield name


def _field_tensors(cls: type[OperatorDesc], field: FieldFacts, wanted: DataType) -> list[TensorInfo]:
    support = cls.facts.support
    rows = support["*"] if "*" in support else support[field.name]
    rank = input_rank(min([row.dimension_counts[0] for row in rows]), max([row.dimension_counts[1] for row in rows]))
    names = [f"{field.slot_name}_{index}" for index in range(_ARRAY_TENSORS)] if field.is_array else [field.slot_name]
    return [TensorInfo(name, _shown_type(rows, wanted), (-1,) * rank) for name in names]


def _shown_type(rows: Sequence[SupportRow], wanted: DataType) -> DataType:
    """The type that the metadata shows; see `_advertised`."""
    for shown in (wanted, _FLOAT32):
        type_ = TensorDataType.__members__.get(shown.directml or "")
        if type_ is not None and any(type_ in row.data_types for row in rows):
            return shown
    types = [type_ for row in rows for type_ in row.data_types]
    return _advertised([type_.row for type_ in types if type_ not in _FOUR_BITS], wanted)


_FOUR_BITS = (TensorDataType.UINT4, TensorDataType.INT4)


def _field_schema(field: FieldFacts, info: FieldInfo) -> dict[str, Any]:
    annotation: Any = info.annotation
    if isinstance(annotation, type) and issubclass(annotation, IntEnum):
        return _enum_schema(annotation)
    kind = {"type": "boolean" if annotation is bool else _SCHEMA_TYPES.get(field.type.removesuffix("_ARRAY"), "object")}
    return {"type": "array", "items": kind} if field.is_array else kind


def _enum_schema(cls: type[IntEnum]) -> dict[str, Any]:
    """The names that messages and documents have; requests may also hold full names and the header's numbers."""
    return {"type": "string", "enum": [name for name in cls.__members__ if name != "UNKNOWN"]}


# ---- ONNX ------------------------------------------------------------------------------------------------------------


def _of_onnx(name: str, op_type: str, wanted: DataType) -> Model:
    schema = _newest_schema(op_type)
    free = (-1,) * _MOST_RANK
    inputs: list[TensorInfo] = []
    for entry in schema.data_inputs:
        if not entry.optional:
            types = _advertised([data_type(known) for known in entry.types], wanted)
            names = [f"{entry.name}_{index}" for index in range(_ARRAY_TENSORS)] if entry.variadic else [entry.name]
            inputs += [TensorInfo(each, types, free) for each in names]
    first = inputs[0].data_type if inputs else wanted
    outputs: list[TensorInfo] = []
    for entry in schema.outputs:
        if entry.optional:
            continue
        types = _advertised([data_type(known) for known in entry.types], wanted) if entry.types else first
        only = entry.name if len(schema.outputs) > 1 else "output"
        names = [f"{entry.name}_{index}" for index in range(_ARRAY_TENSORS)] if entry.variadic else [only]
        outputs += [TensorInfo(each, types, free) for each in names]
    path, attributes = "/v1/onnx", _onnx_attributes(schema)
    return Model(name, path, op_type, tuple(inputs), tuple(outputs), attributes, {})


def _newest_schema(op_type: str) -> OnnxSchema:
    return [schema for schema in ONNX_OPERATORS if schema.op_type == op_type][-1]


def _required_by_onnx(op_type: str) -> list[str]:
    schema = _newest_schema(op_type)
    required = [entry.name for entry in schema.value_inputs if not entry.optional]
    return required + [attribute.name for attribute in schema.attributes if attribute.required]


def _onnx_attributes(schema: OnnxSchema) -> dict[str, Any]:
    schemas: dict[str, Any] = {"opset": {"type": "integer"}}
    for entry in schema.value_inputs:
        kind = "integer" if {*entry.types} <= {"int64", "int32"} else "number"
        schemas[entry.name] = {"type": "array", "items": {"type": kind}}
    for attribute in schema.attributes:
        kind = {"INT": "integer", "FLOAT": "number"}.get(attribute.type.removesuffix("S"), "string")
        is_array = attribute.type in ("INTS", "FLOATS")
        plain = {"type": kind, "enum": list(attribute.choices)} if attribute.choices else {"type": kind}
        schemas[attribute.name] = {"type": "array", "items": plain} if is_array else plain
    return schemas


def _advertised(types: Sequence[DataType], wanted: DataType) -> DataType:
    """The wanted type if it is one of these, else float32, else the first that the protocol has."""
    known = [row for row in types if row.open_inference is not None]
    return next((row for row in (wanted, _FLOAT32) if row in known), known[0] if known else _FLOAT32)
