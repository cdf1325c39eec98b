"""The dialect of DirectML's descriptors: `/v1/operators`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import Any, cast

from tensorpost.bodies.strict_json import read_json
from tensorpost.descriptors import NEWEST, BufferTensorDesc, OperatorDesc, operator_class, parse_operator
from tensorpost.descriptors.catalogue import pascal_case
from tensorpost.descriptors.documents import operator_members
from tensorpost.descriptors.operator_desc import TensorPath, in_attribute_names, output_settings
from tensorpost.descriptors.tensor import MOST_TENSORS
from tensorpost.values.datatypes import DATA_TYPES, directml_word
from tensorpost.values.graph import Graph
from tensorpost.values.problems import (
    InvalidDescriptor,
    InvalidJson,
    InvalidParameter,
    TensorMismatch,
    UnknownOperator,
    Violation,
)
from tensorpost.values.sentences import named

from ..calls.call import AnnouncedTensor
from ..declared_pictures import DeclaredInputs
from .call_parser import (
    MOST_ITEMS,
    CallInput,
    ParsedCall,
    is_input,
    led_by_parameter,
    match_names,
    refuse_repeated,
    refuse_unknown,
    take_options,
)

_OPTIONS = ("backend", "device", "feature_level")
_SHORT_NUMBER = re.compile(r"-?(\d+\.|\.\d+)", re.ASCII)
"""Numbers that people write and JSON does not have: `.5` and `1.`."""


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

    document_name = "op"
    value_names = frozenset[str]()
    """None: a descriptor says everything."""

    def __init__(self, name: str) -> None:
        self._cls = served_operator(name)
        fields = self._cls.facts.fields_by_kind["input"]
        self.inputs = [CallInput(field.slot_name, field.optional, field.is_array) for field in fields]

    def has_input(self, name: str) -> bool:
        return is_input(self.inputs, name)

    def declared(self, document: Mapping[str, Any] | None) -> DeclaredInputs:
        """See `CallParser.declared`: nothing."""
        return {}

    def parse(
        self, parameters: Mapping[str, object], tensors: Sequence[AnnouncedTensor],
        document: Mapping[str, Any] | None, values: Mapping[str, Any],
    ) -> ParsedCall:  # fmt: skip
        """Parse a call; its document may leave out what the tensors say (inputs) and what follows (outputs).

        Raises:
            UnknownOperator: the document names no operator.
            InvalidParameter: a parameter that is unknown, repeated, or sent beside a document.
            InvalidDescriptor: the description breaks a rule.
            TensorMismatch: the tensors do not match the description.
        """
        cls = self._cls
        refuse_unknown(parameters, [*cls.fields_of_kind("attribute"), "output_sizes", "output_data_type", *_OPTIONS])
        sent = {**parameters}
        options = take_options(sent, _OPTIONS)
        desc: dict[str, Any] = {}
        if document is not None:
            refuse_repeated(sent)
            desc = _described(cls, document)
        for field in cls.facts.fields_by_kind["attribute"]:
            if field.attribute_name in sent:
                desc[field.name] = _value(field.attribute_name, sent[field.attribute_name], array=field.is_array)
        _describe_inputs(cls, desc, tensors)
        if "output_sizes" in sent or "output_data_type" in sent:
            _describe_outputs(cls, desc, tensors, sent)
        desc_member = "desc"
        if document is not None:
            members = operator_members(document)
            desc_member = members[1]
            if document.keys() - {*members}:
                parse_operator({**document, desc_member: desc}, complete=True)  # raises, and names other members too
        try:
            parsed = cls.completed(desc)
            parsed.validate_for(options.feature_level or NEWEST)
        except InvalidDescriptor as error:
            if document is None:
                raise _by_query_names(cls, error) from None
            raise error.prefixed(desc_member) from None
        slots, announced = parsed.inputs, {tensor.name: tensor for tensor in tensors}
        if {slot.name for slot in slots} != announced.keys():
            match_names(tensors, [slot.name for slot in slots])
        for slot, (path, tensor) in zip(slots, parsed.tensors("input"), strict=True):
            _match_tensor(announced[slot.name], pascal_case(path[0]), tensor)
        return ParsedCall(Graph.of(parsed), options)


def _by_query_names(cls: type[OperatorDesc], error: InvalidDescriptor) -> InvalidDescriptor:
    """The error of a call without a document: its messages name the query's parameters, and so does its detail."""
    names = {field.name: field.attribute_name for field in cls.facts.fields_by_kind["attribute"]}
    violations = [violation.prefixed("desc") for violation in in_attribute_names(cls, error.violations)]
    for index, violation in enumerate(violations):
        if settings := output_settings(violation):
            field = str(violation.path[-1])
            message = _required(field, settings) + ", since the output does not follow"
            violations[index], names[field] = replace(violation, message=message), settings[0]
    return led_by_parameter(type(error).of(violations), names)


def _required(field: str, settings: Sequence[str]) -> str:
    """What of an output a query has to say."""
    advice = {
        "output_data_type": " is required: the output's type, as in output_data_type=FLOAT32",
        "output_sizes": " is required, as in output_sizes=1,1,4,4",
    }
    first, *more = [named(field, text=name) + advice[name] for name in settings]
    return first + "".join(["; " + sentence for sentence in more])


def _described(cls: type[OperatorDesc], document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields in a document, which must be of this operator."""
    type_member, desc_member = operator_members(document)
    kind, desc = document.get(type_member), document.get(desc_member)
    if not isinstance(kind, str) or not isinstance(desc, Mapping):
        parse_operator(document)  # raises, and names what is missing
        raise AssertionError("a document without a type or a desc is refused")
    if operator_class(kind) is not cls:
        raise InvalidParameter(
            f"the path names {cls.operator_type} but the document's type is {kind[:60]!r}; "
            "post to the operator that the document describes"
        )
    return {**cast("Mapping[str, Any]", desc)}


def _describe_inputs(cls: type[OperatorDesc], desc: dict[str, Any], tensors: Sequence[AnnouncedTensor]) -> None:
    """Add to the fields what the body announces about inputs that they leave out."""
    by_field: dict[str, list[tuple[TensorPath, AnnouncedTensor]]] = {}
    for tensor in tensors:
        path = cls.path_of_slot(tensor.name)
        if path is not None:
            by_field.setdefault(path[0], []).append((path, tensor))
    required: list[str] = []
    optional: list[str] = []
    more = ""
    for field in cls.facts.fields_by_kind["input"]:
        name, announced = field.slot_name, by_field.get(field.attribute_name, [])
        names = [f"{name}_{index}" for index in range(max(1, len(announced)))] if field.is_array else [name]
        (optional if field.optional else required).extend(names)
        more = f"{name}_{len(names)}" if field.is_array else more
        if announced and not {field.name, field.attribute_name} & desc.keys():
            announced.sort(key=itemgetter(0))
            described = [{"DataType": _directml_name(tensor), "Sizes": list(tensor.shape)} for _, tensor in announced]
            desc[field.name] = described if field.is_array else described[0]
    match_names(tensors, required, optional, more=more)


def _describe_outputs(
    cls: type[OperatorDesc], desc: dict[str, Any], tensors: Sequence[AnnouncedTensor], sent: Mapping[str, object]
) -> None:
    """Add to the fields the outputs that the parameters describe; in a text, several are separated by semicolons.

    What the parameters leave out of a description is that of the first tensor in the body.
    """
    sizes = [_value("output_sizes", entry, array=True) for entry in _several(sent, "output_sizes")]
    types = [directml_word(entry) for entry in _several(sent, "output_data_type")]
    outputs: list[dict[str, Any]] = []
    for index in range(max(len(sizes), len(types))):
        output: dict[str, Any] = {}
        if tensors:
            output = {"DataType": types[0] if types else _directml_name(tensors[0]), "Sizes": list(tensors[0].shape)}
        for key, entries in (("DataType", types), ("Sizes", sizes)):
            if entries:
                output[key] = entries[min(index, len(entries) - 1)]
        outputs.append(output)
    fields = cls.facts.fields_by_kind["output"]
    if len(outputs) > len(fields) and not fields[-1].is_array:
        raise InvalidParameter(
            f"the query describes {len(outputs)} outputs, but {cls.operator_type} has {len(fields)}",
            extra={"parameter": "output_sizes"},
        )
    for field, output in zip(fields, outputs, strict=False):
        desc[field.name] = outputs[len(fields) - 1 :] if field.is_array else output


def _several(sent: Mapping[str, object], name: str) -> list[object]:
    """The values of a parameter, one for each output."""
    value = sent.get(name, "")
    if not isinstance(value, str):
        return [value]
    if (count := value.count(";")) >= MOST_TENSORS:
        raise InvalidParameter(
            f"{name} describes {count + 1:,} tensors; at most {MOST_TENSORS:,} are read", extra={"parameter": name}
        )
    return [text for text in value.split(";") if text]


def _value(name: str, sent: object, *, array: bool) -> Any:
    """The value of a parameter. Of a text: numbers, objects and bracketed arrays as in JSON, arrays with commas."""
    if array:
        is_list = isinstance(sent, list)
        count = len(cast("list[object]", sent)) if is_list else sent.count(",") + 1 if isinstance(sent, str) else 1
        if count > MOST_ITEMS:
            message = f"{name} has {count:,} entries; at most {MOST_ITEMS} are read from the query"
            raise InvalidParameter(message, extra={"parameter": name})
    if not isinstance(sent, str):
        return cast("Any", sent)
    if array and not sent.lstrip().startswith("["):
        items = sent.split(",")
        with suppress(InvalidJson):
            values = read_json(f"[{sent}]".encode())
            if len(values) == len(items):  # no comma is inside an item
                return values
        return [_value(name, item.strip(), array=False) for item in items]
    with suppress(InvalidJson):
        return read_json(sent.encode())
    return float(sent) if _SHORT_NUMBER.fullmatch(sent) else sent


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

    A held tensor is a buffer of at least as many bytes.
    """
    layout, size = described.layout, described.total_tensor_size_in_bytes
    is_same = tensor.data_type is layout.data_type or tensor.data_type.numpy_name == "uint8"
    if tensor.is_held and is_same and tensor.size_in_bytes >= size:
        return  # what is there already may be read with other sizes and strides
    if layout.packed and tensor.data_type is layout.data_type and tensor.shape == layout.sizes:
        return
    if tensor.data_type.numpy_name == "uint8" and tensor.shape == (size,):
        return
    raw = f"U8 with shape [{size}]"
    if layout.packed:
        expected = f"describes {layout.data_type.safetensors} with shape {list(layout.sizes)} or {raw}"
    else:
        why = "a TotalTensorSizeInBytes beyond its elements" if described.strides is None else "Strides"
        expected = f"has {why}: send the tensor's whole buffer as U8 of {size} bytes, {raw}"
    raise TensorMismatch(
        f"tensor {tensor.name!r} is {tensor.data_type.safetensors or tensor.data_type.numpy_name} with shape "
        f"{list(tensor.shape)}, but {field} {expected}"
    )
