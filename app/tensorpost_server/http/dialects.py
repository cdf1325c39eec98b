"""The two dialects of a call: DirectML's descriptors (`/v1/operators`) and ONNX nodes (`/v1/onnx`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import islice
from operator import itemgetter
from typing import Any, cast

from tensorpost.datatypes import DATA_TYPES
from tensorpost.descriptors import NEWEST, BufferTensorDesc, OperatorDesc, operator_class, parse_operator
from tensorpost.descriptors.catalogue import pascal_case
from tensorpost.descriptors.operator_desc import TensorPath, in_attribute_names, output_settings
from tensorpost.descriptors.tensor import MOST_TENSORS
from tensorpost.onnx import NEWEST_OPSET, ONNX_OPERATORS, OnnxNode, OnnxSchema, OnnxTensor, find_schema
from tensorpost.onnx.schemas import is_own
from tensorpost.operation import Operation
from tensorpost.problems import (
    InvalidDescriptor,
    InvalidJson,
    InvalidParameter,
    TensorMismatch,
    UnknownOperator,
    Violation,
    json_path,
)
from tensorpost.strict_json import read_json

from .parse_call import AnnouncedTensor, Dialect, RunOptions, match_names, parse_document, parse_query, query_number

__all__ = ["DIALECTS", "DirectmlParser", "OnnxParser", "served_operator", "takes_long"]

_MOST_ITEMS = 256
"""Entries of one array in the query. A tensor has 8 dimensions at most; the rest is room for mistakes to be named."""

_SHORT_NUMBER = re.compile(r"-?(\d+\.|\.\d+)", re.ASCII)
"""Numbers that people write and JSON does not have: `.5` and `1.`."""

_ONE_TENSOR = "npy holds one tensor, but the operator takes {}; send npz or a frame, which is a safetensors file"


def _numbered(inputs: Sequence[tuple[str, bool]], count: int) -> list[str]:
    """The names of `count` tensors: each input's own, and numbered names for an input that is an array."""
    found: list[str] = []
    for name, is_array in inputs:
        found += [f"{name}_{index}" for index in range(count - len(found))] if is_array else [name]
    return found[:count]


def served_operator(name: str) -> type[OperatorDesc]:
    """The class of an operator.

    Raises:
        UnknownOperator: there is none of that name; with the nearest name, or where all of them are listed.
    """
    try:
        return operator_class(name)
    except UnknownOperator as error:
        if error.extra["nearest"] is None:
            error.detail += "; GET /v1/operators lists them"
        raise


class DirectmlParser:
    """`/v1/operators/{operator}`. See `CallParser`.

    Raises:
        UnknownOperator: there is no operator of that name; with the nearest name.
    """

    value_names = frozenset[str]()
    """None: a descriptor says everything."""

    def __init__(self, name: str) -> None:
        self._cls = served_operator(name)

    def npy_tensor(self, *, empty: bool) -> str | None:
        """See `CallParser.npy_tensor`."""
        fields = self._cls.facts.fields_by_kind["input"]
        required = [field for field in fields if not field.optional]
        if not required and (empty or not fields):
            return None
        only = required or fields
        if len(only) == 1 and not only[0].is_array:
            return only[0].slot_name
        names = [field.slot_name + (f"_0, {field.slot_name}_1, ..." if field.is_array else "") for field in fields]
        raise TensorMismatch(_ONE_TENSOR.format(", ".join(names)))

    def tensor_names(self, count: int) -> list[str]:
        """See `CallParser.tensor_names`."""
        fields = self._cls.facts.fields_by_kind["input"]
        return _numbered([(field.slot_name, field.is_array) for field in fields], count)

    def parse(
        self, query: str, tensors: Sequence[AnnouncedTensor], document: str | None, values: Mapping[str, Any]
    ) -> tuple[Operation, RunOptions]:
        """Parse a call; its document may leave out what the tensors say (inputs) and what follows (outputs).

        Raises:
            UnknownOperator: the document names no operator.
            InvalidJson: the document is not JSON.
            InvalidParameter: a query parameter that is unknown, repeated, or sent beside a document.
            InvalidDescriptor: the description breaks a rule.
            TensorMismatch: the tensors do not match the description.
        """
        del values
        cls = self._cls
        known = [*cls.fields_of_kind("attribute"), "output_sizes", "output_data_type"]
        sent, options = parse_query(query, known, ["backend", "device", "feature_level"])
        members = parse_document(document, sent)
        desc = {} if members is None else _described(cls, members)
        for field in cls.facts.fields_by_kind["attribute"]:
            if field.attribute_name in sent:
                desc[field.name] = _query_value(field.attribute_name, sent[field.attribute_name], array=field.is_array)
        _describe_inputs(cls, desc, tensors)
        if "output_sizes" in sent or "output_data_type" in sent:
            _describe_outputs(cls, desc, tensors, sent)
        if members is not None and members.keys() - {"type", "desc"}:
            parse_operator({**members, "desc": desc}, complete=True)  # raises, and names the other members as well
        try:
            parsed = cls.completed(desc)
            parsed.validate_for(options.feature_level or NEWEST)
        except InvalidDescriptor as error:
            if members is None:
                raise _by_query_names(cls, error) from None
            raise error.prefixed("desc") from None
        slots, announced = parsed.inputs, {tensor.name: tensor for tensor in tensors}
        if {slot.name for slot in slots} != announced.keys():
            match_names(tensors, [slot.name for slot in slots])
        for slot, (path, tensor) in zip(slots, parsed.tensors("input"), strict=True):
            _match_tensor(announced[slot.name], pascal_case(path[0]), tensor)
        return parsed, options


def _by_query_names(cls: type[OperatorDesc], error: InvalidDescriptor) -> InvalidDescriptor:
    """The error of a call without a document: its messages name the query's parameters, and so does its detail."""
    names = {field.name: field.attribute_name for field in cls.facts.fields_by_kind["attribute"]}
    found = [violation.prefixed("desc") for violation in in_attribute_names(cls, error.violations)]
    for index, violation in enumerate(found):
        if settings := output_settings(violation):
            found[index] = replace(violation, message=f"{_required(settings)}, since the output does not follow")
            names[str(violation.path[-1])] = settings[0]
    return _led_by_parameter(type(error).of(found), names)


def _required(settings: Sequence[str]) -> str:
    """What of an output a query has to say."""
    what = {
        "output_data_type": "output_data_type is required: the output's type, as in output_data_type=FLOAT32",
        "output_sizes": "output_sizes is required, as in output_sizes=1,1,4,4",
    }
    return "; ".join([what[name] for name in settings])


def _led_by_parameter(error: InvalidDescriptor, names: Mapping[str, str]) -> InvalidDescriptor:
    """The error with a detail that names the query's parameter instead of the place in a document.

    Args:
        error: its violations have paths of a document, a field or an attribute second.
        names: the parameter of each of those.
    """
    first, count = error.violations[0], len(error.violations)
    name = names.get(str(first.path[1])) if len(first.path) > 1 else None
    if name is None:
        return error
    is_named = re.search(rf"\b{re.escape(name)}\b", first.message)
    lead = "" if is_named else f"parameter {name}{json_path(first.path[2:])[1:]}: "
    return type(error)(f"{lead}{first.message}" + (f" (and {count - 1} more)" if count > 1 else ""), error.violations)


def _described(cls: type[OperatorDesc], document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields in a document, which must be of this operator.

    Raises:
        UnknownOperator: the document names no operator.
        InvalidDescriptor: its type is not text, or its desc not an object.
        InvalidParameter: it describes another operator.
    """
    if not isinstance(document.get("type"), str) or not isinstance(document.get("desc"), Mapping):
        parse_operator(document)  # raises, and names what is missing
    if operator_class(document["type"]) is not cls:
        raise InvalidParameter(
            f"the path names {cls.operator_type} but the document's type is {document['type'][:60]!r}; "
            "post to the operator that the document describes"
        )
    return {**document["desc"]}


def _describe_inputs(cls: type[OperatorDesc], desc: dict[str, Any], tensors: Sequence[AnnouncedTensor]) -> None:
    """Add to the fields what the body announces about inputs that they leave out.

    Raises:
        TensorMismatch: a required tensor is missing, or a name is of no field.
    """
    by_field: dict[str, list[tuple[TensorPath, AnnouncedTensor]]] = {}
    for tensor in tensors:
        path = cls.path_of_slot(tensor.name)
        if path is not None:
            by_field.setdefault(path[0], []).append((path, tensor))
    required: list[str] = []
    optional: list[str] = []
    more = ""
    for field in cls.facts.fields_by_kind["input"]:
        name, own = field.slot_name, by_field.get(field.attribute_name, [])
        names = [f"{name}_{index}" for index in range(max(1, len(own)))] if field.is_array else [name]
        (optional if field.optional else required).extend(names)
        more = f"{name}_{len(names)}" if field.is_array else more
        if own and not {field.name, field.attribute_name} & desc.keys():
            own.sort(key=itemgetter(0))
            found = [{"DataType": _directml_name(tensor), "Sizes": list(tensor.shape)} for _, tensor in own]
            desc[field.name] = found if field.is_array else found[0]
    match_names(tensors, required, optional, more=more)


def _describe_outputs(
    cls: type[OperatorDesc], desc: dict[str, Any], tensors: Sequence[AnnouncedTensor], sent: Mapping[str, str]
) -> None:
    """Add to the fields the outputs that the query describes; several are separated by semicolons.

    What the query leaves out of a description is that of the first tensor in the body.
    """
    for name in ("output_sizes", "output_data_type"):
        if (count := sent.get(name, "").count(";")) >= MOST_TENSORS:
            raise InvalidParameter(
                f"{name} describes {count + 1:,} tensors; at most {MOST_TENSORS:,} are read", extra={"parameter": name}
            )
    sizes = [_query_value("output_sizes", text, array=True) for text in sent.get("output_sizes", "").split(";") if text]
    types = [text.strip() for text in sent.get("output_data_type", "").split(";") if text]
    found: list[dict[str, Any]] = []
    for index in range(max(len(sizes), len(types))):
        output: dict[str, Any] = {}
        if tensors:
            output = {"DataType": types[0] if types else _directml_name(tensors[0]), "Sizes": list(tensors[0].shape)}
        for key, entries in (("DataType", types), ("Sizes", sizes)):
            if entries:
                output[key] = entries[min(index, len(entries) - 1)]
        found.append(output)
    fields = cls.facts.fields_by_kind["output"]
    if len(found) > len(fields) and not fields[-1].is_array:
        raise InvalidParameter(
            f"the query describes {len(found)} outputs, but {cls.operator_type} has {len(fields)}",
            extra={"parameter": "output_sizes"},
        )
    for field, output in zip(fields, found, strict=False):
        desc[field.name] = found[len(fields) - 1 :] if field.is_array else output


def _query_value(name: str, text: str, *, array: bool) -> Any:
    """A value from the query: numbers, objects and bracketed arrays as in JSON, names as text, arrays with commas.

    Raises:
        InvalidParameter: an array has more entries than any operator takes.
    """
    if array and (count := text.count(",") + 1) > _MOST_ITEMS:
        raise InvalidParameter(
            f"{name} has {count:,} entries; at most {_MOST_ITEMS} are read from the query", extra={"parameter": name}
        )
    if array and not text.lstrip().startswith("["):
        items = text.split(",")
        with suppress(InvalidJson):
            values = read_json(f"[{text}]".encode())
            if len(values) == len(items):  # no comma is inside an item
                return values
        return [_query_value(name, item.strip(), array=False) for item in items]
    with suppress(InvalidJson):
        return read_json(text.encode())
    return float(text) if _SHORT_NUMBER.fullmatch(text) else text


def _directml_name(tensor: AnnouncedTensor) -> str:
    if tensor.data_type.directml is None:
        known = ", ".join(row.directml for row in DATA_TYPES if row.directml)
        raise InvalidDescriptor.of(
            [
                Violation(
                    "data-type-unsupported", (tensor.name, "dtype"),
                    f"DirectML has no type for {tensor.data_type.numpy_name}; convert the array first, or use "
                    "/v1/onnx, whose Tile takes every type", tensor.data_type.numpy_name, f"one of {known}",
                    "DML_TENSOR_DATA_TYPE",
                )
            ]
        )  # fmt: skip
    return tensor.data_type.directml


def _match_tensor(tensor: AnnouncedTensor, field: str, described: BufferTensorDesc) -> None:
    """Compare a body's tensor with its description: it holds the elements, or the raw bytes as U8.

    Raises:
        TensorMismatch: it is neither.
    """
    layout, size = described.layout, described.total_tensor_size_in_bytes
    if layout.packed and tensor.data_type is layout.data_type and tensor.shape == layout.sizes:
        return
    if tensor.data_type.numpy_name == "uint8" and tensor.shape == (size,):
        return
    raw = f"U8 with shape [{size}]"
    expected = f"{layout.data_type.safetensors} with shape {list(layout.sizes)} or {raw}" if layout.packed else raw
    raise TensorMismatch(
        f"tensor {tensor.name!r} is {tensor.data_type.safetensors or tensor.data_type.numpy_name} with shape "
        f"{list(tensor.shape)}, but {field} describes {expected}"
    )


class OnnxParser:
    """`/v1/onnx/{op_type}?opset=19`. See `CallParser`.

    Attributes:
        value_names: the inputs that decide the output's shape, in any version; the node refuses those its own has not.

    Raises:
        UnknownOperator: there is no operator of that name; with the nearest name.
    """

    def __init__(self, name: str) -> None:
        schema = find_schema(name, NEWEST_OPSET)
        self._name = name
        self._schema = schema if isinstance(schema, OnnxSchema) else _versions(name)[-1]
        self.value_names = _value_names(name)  # here, since the package onnx may have to be asked for the versions

    def npy_tensor(self, *, empty: bool) -> str | None:
        """See `CallParser.npy_tensor`: of the operator's newest version."""
        inputs = self._schema.data_inputs
        required = [entry for entry in inputs if not entry.optional]
        if not required and (empty or not inputs):
            return None
        only = required or inputs
        if len(only) == 1 and not only[0].variadic:
            return only[0].name
        names = [entry.name + (f"_0, {entry.name}_1, ..." if entry.variadic else "") for entry in inputs]
        raise TensorMismatch(_ONE_TENSOR.format(", ".join(names)))

    def tensor_names(self, count: int) -> list[str]:
        """See `CallParser.tensor_names`: of the operator's newest version."""
        return _numbered([(entry.name, entry.variadic) for entry in self._schema.inputs], count)

    def parse(
        self, query: str, tensors: Sequence[AnnouncedTensor], document: str | None, values: Mapping[str, Any]
    ) -> tuple[Operation, RunOptions]:
        """Parse a call; the node comes from the document or the query, and may leave out what the tensors say.

        Raises:
            InvalidJson: the document is not JSON.
            InvalidParameter: a query parameter that is repeated or sent beside a document; no such opset.
            InvalidDescriptor: the node breaks a rule of ONNX.
            TensorMismatch: the tensors do not match the node.
        """
        name = self._name
        parameters, options = parse_query(query, (), ["backend", "device"])
        text = parameters.pop("opset", None)
        range_ = f"is not a number; send one from 1 to {NEWEST_OPSET}"
        opset = None if text is None else query_number("opset", text, range_)
        members = parse_document(document, parameters)
        for parameter, value in parameters.items():
            if (count := value.count(",") + 1) > _MOST_ITEMS:
                raise InvalidParameter(
                    f"{parameter[:60]} has {count:,} entries; at most {_MOST_ITEMS} are read from the query",
                    extra={"parameter": parameter[:60]},
                )
        if is_own(name) and not any(entry.variadic for entry in self._schema.inputs):
            required, optional = self._names()
            match_names(tensors, required, sorted(optional | self.value_names))
        found = {
            tensor.name: OnnxTensor(tensor.data_type.numpy_name, tensor.shape)
            for tensor in tensors
            if tensor.name not in self.value_names
        }
        if members is None:
            at = NEWEST_OPSET if opset is None else opset
            try:
                node = OnnxNode.from_query(name, at, parameters, {**found, **values})
            except InvalidDescriptor as error:
                raise _led_by_parameter(error, {parameter: parameter for parameter in parameters}) from None
        else:
            node = OnnxNode.from_json(_completed(members, name, opset, found, values))
        for slot, (_, tensor) in zip(node.inputs, node.tensors, strict=True):
            if found.get(slot.name) != tensor:
                sent = found[slot.name].to_json() if slot.name in found else "missing"
                raise TensorMismatch(
                    f"tensor {slot.name!r} is {sent} in the body, but {tensor.to_json()} in the document"
                )
        match_names(tensors, [slot.name for slot in node.inputs], sorted(self.value_names))
        return node, options

    def _names(self) -> tuple[list[str], set[str]]:
        """Tensors that every version requires, and others that some version has."""
        versions = [{entry.name: entry.optional for entry in each.data_inputs} for each in _versions(self._name)]
        known = {name: None for version in versions for name in version}
        required = [name for name in known if all(version.get(name) is False for version in versions)]
        return required, known.keys() - {*required}


@cache
def _versions(op_type: str) -> tuple[OnnxSchema, ...]:
    own = [schema for schema in ONNX_OPERATORS if schema.op_type == op_type]
    if not own:
        found = (find_schema(op_type, opset) for opset in range(NEWEST_OPSET, 0, -1))
        own = [*islice((schema for schema in found if isinstance(schema, OnnxSchema)), 1)]
    if not own:
        raise UnknownOperator(f"ONNX's {op_type[:60]} works on no tensors that travel here")
    return tuple(own)


@cache
def _value_names(op_type: str) -> frozenset[str]:
    return frozenset(entry.name for schema in _versions(op_type) for entry in schema.value_inputs)


def _completed(
    members: Mapping[str, Any], name: str, opset: int | None, found: Mapping[str, OnnxTensor], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The node document with what the path and the tensors say."""
    if members.get("op_type", name) != name:
        raise InvalidParameter(
            f"the path names {name} but the document's op_type is {str(members['op_type'])[:60]!r}; "
            "post to the operator that the document describes"
        )
    if opset is not None and members.get("opset", opset) != opset:
        raise InvalidParameter(f"the query says opset {opset}, the document {members['opset']!r}; send it once")
    inputs: Any = members.get("inputs", {})
    if isinstance(inputs, Mapping):
        sent = cast("Mapping[str, Any]", inputs)
        twice = sorted(sent.keys() & values.keys())
        if twice:
            raise TensorMismatch(f"{', '.join(twice)} stand in the node document and among the tensors; send each once")
        inputs = {**found, **sent, **values}
    return {"opset": NEWEST_OPSET if opset is None else opset, **members, "op_type": name, "inputs": inputs}


def takes_long(dialect: Dialect, operator: str) -> bool:
    """Whether parsing and planning may take long: by the package onnx and ONNX Runtime, which a first call imports."""
    return dialect is OnnxParser and not is_own(operator)


DIALECTS: Mapping[str, Dialect] = {"/v1/operators": DirectmlParser, "/v1/onnx": OnnxParser}
"""The dialect of each path that operators are posted to."""
