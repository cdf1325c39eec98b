"""The dialect of ONNX nodes: `/v1/onnx`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, cast

from tensorpost.onnx import NEWEST_OPSET, ONNX_OPERATORS, OnnxSchema, OnnxTensor, find_schema
from tensorpost.onnx.bounded_node import BoundedNode, node_class
from tensorpost.onnx.schemas import is_own
from tensorpost.values.graph import Graph
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter, TensorMismatch, UnknownOperator

from ..calls.call import AnnouncedTensor
from ..declared_pictures import DeclaredInputs
from .call_parser import (
    MOST_ITEMS,
    CallInput,
    ParsedCall,
    is_input,
    led_by_parameter,
    match_names,
    query_number,
    refuse_repeated,
    take_options,
)
from .staged_calls import RestOfModel


class OnnxParser:
    """`/v1/onnx/{op_type}?opset=19`. See `CallParser`.

    Attributes:
        inputs: the inputs of the operator's newest version.
        value_names: the inputs that decide the output's shape, in any version; the node refuses those its own has not.

    Raises:
        UnknownOperator: there is no operator of that name; with the nearest name.
    """

    document_name = "op"

    def __init__(self, name: str) -> None:
        schema = find_schema(name, NEWEST_OPSET)
        self._name = name
        self._schema = schema if isinstance(schema, OnnxSchema) else _versions(name)[-1]
        self.inputs = [
            CallInput(entry.name, entry.optional, entry.variadic, not entry.data) for entry in self._schema.inputs
        ]
        self.value_names = _value_names(name)  # here, since the package onnx may have to be asked for the versions

    def has_input(self, name: str) -> bool:
        return name in self.value_names or is_input(self.inputs, name)

    def declared(self, document: Mapping[str, Any] | None) -> DeclaredInputs:
        """See `CallParser.declared`: nothing."""
        return {}

    def parse(
        self, parameters: Mapping[str, object], tensors: Sequence[AnnouncedTensor],
        document: Mapping[str, Any] | None, values: Mapping[str, Any],
    ) -> ParsedCall:  # fmt: skip
        """Parse a call; the node comes from the document or the query, and may leave out what the tensors say.

        Raises:
            InvalidParameter: a parameter that is repeated or sent beside a document; no such opset.
            InvalidDescriptor: the node breaks a rule of ONNX.
            TensorMismatch: the tensors do not match the node.
        """
        name = self._name
        sent = {**parameters}
        options = take_options(sent, ("backend", "device"))
        number = sent.pop("opset", None)
        range_ = f"is not a number; send one from 1 to {NEWEST_OPSET}"
        opset = None if number is None else query_number("opset", str(number), range_)
        if document is not None:
            refuse_repeated(sent)
        for parameter, value in sent.items():
            if (count := _entries(value)) > MOST_ITEMS:
                raise InvalidParameter(
                    f"{parameter[:60]} has {count:,} entries; at most {MOST_ITEMS} are read from the query",
                    extra={"parameter": parameter[:60]},
                )
        if is_own(name) and not any(entry.variadic for entry in self._schema.inputs):
            required, optional = _data_names(name)
            match_names(tensors, required, sorted(optional | self.value_names))
        announced = {
            tensor.name: OnnxTensor(tensor.data_type.numpy_name, tensor.shape)
            for tensor in tensors
            if tensor.name not in self.value_names
        }
        kind = node_class(name)
        if document is None:
            at = NEWEST_OPSET if opset is None else opset
            try:
                node = kind.from_query(name, at, sent, {**announced, **values})
            except InvalidDescriptor as error:
                raise led_by_parameter(error, {parameter: parameter for parameter in sent}) from None
        else:
            node = kind.from_json(_completed(document, name, opset, announced, values))
        for slot, (_, tensor) in zip(node.inputs, node.tensors, strict=True):
            if announced.get(slot.name) != tensor:
                sent = announced[slot.name].to_json() if slot.name in announced else "missing"
                raise TensorMismatch(
                    f"tensor {slot.name!r} is {sent} in the body, but {tensor.to_json()} in the document"
                )
        match_names(tensors, [slot.name for slot in node.inputs], sorted(self.value_names))
        return ParsedCall(Graph.of(node), options, RestOfModel.of_node(node) if isinstance(node, BoundedNode) else None)


def _entries(value: object) -> int:
    """How many entries a parameter has."""
    if isinstance(value, str):
        return value.count(",") + 1
    return len(cast("list[object]", value)) if isinstance(value, list) else 1


@cache
def _versions(op_type: str) -> tuple[OnnxSchema, ...]:
    versions = [schema for schema in ONNX_OPERATORS if schema.op_type == op_type]
    if not versions:
        schemas = (find_schema(op_type, opset) for opset in range(NEWEST_OPSET, 0, -1))
        versions = [*islice((schema for schema in schemas if isinstance(schema, OnnxSchema)), 1)]
    if not versions:
        raise UnknownOperator(f"ONNX's {op_type[:60]} works on no tensors that travel here")
    return tuple(versions)


@cache
def _data_names(op_type: str) -> tuple[Sequence[str], frozenset[str]]:
    """Tensors that every version requires, and others that some version has."""
    versions = [{entry.name: entry.optional for entry in each.data_inputs} for each in _versions(op_type)]
    known = {name: None for version in versions for name in version}
    required = [name for name in known if all(version.get(name) is False for version in versions)]
    return required, frozenset(known.keys() - {*required})


@cache
def _value_names(op_type: str) -> frozenset[str]:
    return frozenset(entry.name for schema in _versions(op_type) for entry in schema.value_inputs)


def _completed(
    members: Mapping[str, Any],
    name: str,
    opset: int | None,
    announced: Mapping[str, OnnxTensor],
    values: Mapping[str, Any],
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
        inputs = {**announced, **sent, **values}
    return {"opset": NEWEST_OPSET if opset is None else opset, **members, "op_type": name, "inputs": inputs}
