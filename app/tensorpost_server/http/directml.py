"""The DirectML dialect: a query or an operator document becomes a descriptor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tensorpost.datatypes import DATA_TYPES, data_type
from tensorpost.descriptors import NEWEST, OperatorDesc, operator_class, parse_operator
from tensorpost.descriptors.operator_desc import slot_name
from tensorpost.problems import InvalidDescriptor, InvalidFrame, InvalidJson, InvalidParameter, Violation
from tensorpost.strict_json import read_json

from .calls import Call, Tensor, match_names, read_document, read_options

__all__ = ["DIRECTML", "DirectmlDialect"]

_CACHED_TEXT = 8192  # characters; longer calls are understood anew each time, so that the cache stays small


class DirectmlDialect:
    """`/v1/operators/{operator}`. See `Dialect` for the methods."""

    def check_name(self, name: str) -> None:
        """Raises UnknownOperator, with the nearest name."""
        operator_class(name)

    def lone_tensor(self, name: str) -> str:
        """The only input's name."""
        cls = operator_class(name)
        slots = [slot_name(field) for field in cls.fields_of_kind("input")]
        if len(slots) != 1:
            raise InvalidFrame(f"npy holds one tensor, the operator takes {', '.join(slots)}; send a frame")
        return slots[0]

    def value_names(self, name: str) -> frozenset[str]:
        """None: a descriptor says everything."""
        del name
        return frozenset()

    def understand(
        self, name: str, query: str, tensors: Sequence[Tensor], document: str | None, values: Mapping[str, Any]
    ) -> Call:
        """The document may leave out what the tensors say (an input) and what follows from the rest (the output).

        Raises:
            UnknownOperator: the document names no operator.
            InvalidJson: the document is not JSON.
            InvalidParameter: a query parameter that is unknown, repeated, or doubles the document.
            InvalidDescriptor: the description breaks a rule.
            InvalidFrame: the tensors do not fit the description.
        """
        del values
        small = len(query) + len(document or "") <= _CACHED_TEXT
        understand = _understand if small else _understand.__wrapped__
        return understand(name, query, tuple(tensors), document)


DIRECTML = DirectmlDialect()


@lru_cache(maxsize=1024)  # the same call with other numbers in it is what a server mostly gets
def _understand(name: str, query: str, tensors: tuple[Tensor, ...], text: str | None) -> Call:
    cls = operator_class(name)
    fields = cls.attribute_fields()
    given, options = read_options(query, [*fields, "output_sizes"], ["backend", "device", "feature_level"])
    attributes = {
        key: _value(value, array=key == "output_sizes" or "tuple" in str(fields[key].annotation))
        for key, value in given.items()
    }
    sent = read_document(text, attributes)
    document: Mapping[str, Any] = {"type": cls.operator_type, "desc": {}} if sent is None else sent
    if not isinstance(document.get("type"), str) or not isinstance(document.get("desc"), Mapping):
        parse_operator(document)  # raises, and names what is missing
    if operator_class(document["type"]) is not cls:
        raise InvalidParameter(
            f"the path names {cls.operator_type} but the document's type is {document['type'][:60]!r}; "
            "post to the operator that the document describes"
        )
    slots = {slot_name(field): field for field in cls.fields_of_kind("input")}
    match_names(tensors, list(slots))
    desc: dict[str, Any] = {**document["desc"]}
    for key, value in attributes.items():
        if key == "output_sizes":
            desc[_alias(cls, cls.fields_of_kind("output")[0])] = {
                "DataType": _directml_name(tensors[0]),
                "Sizes": value,
            }
        else:
            desc[_alias(cls, key)] = value
    for tensor in tensors:
        field = slots[tensor.name]
        if not {field, _alias(cls, field)} & desc.keys():
            desc[_alias(cls, field)] = {"DataType": _directml_name(tensor), "Sizes": list(tensor.shape)}
    parsed = parse_operator({**document, "desc": desc}, complete=True)
    for tensor in tensors:
        _match_tensor(tensor, _alias(cls, slots[tensor.name]), getattr(parsed, slots[tensor.name]))
    try:
        parsed.validate_for(options.feature_level or NEWEST)
    except InvalidDescriptor as error:
        raise error.under("desc") from None
    return Call(parsed, parsed.to_document_text(), options)


def _alias(cls: type[OperatorDesc], field: str) -> str:
    """DirectML's name of a field."""
    return cls.model_fields[field].alias or field


def _value(text: str, *, array: bool) -> Any:
    """A query value: numbers and objects as JSON would read them, names as text; the descriptor judges them."""
    if array:
        return [_value(item.strip(), array=False) for item in text.split(",")]
    try:
        return read_json(text.encode())
    except InvalidJson:
        return text


def _directml_name(tensor: Tensor) -> str:
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


def _match_tensor(tensor: Tensor, field: str, described: Any) -> None:
    """A body's tensor must be what the description says: its elements, or its raw bytes as U8."""
    blob = tensor.data_type.numpy_name == "uint8" and tensor.shape == (described.total_tensor_size_in_bytes,)
    same = tensor.data_type.directml == described.data_type.name and tensor.shape == described.sizes
    if blob or (described.is_packed and same):
        return
    raw = f"U8 with shape [{described.total_tensor_size_in_bytes}]"
    row = data_type(described.data_type.name)
    expected = f"{row.safetensors} with shape {list(described.sizes)} or {raw}" if described.is_packed else raw
    raise InvalidFrame(
        f"tensor {tensor.name!r} is {tensor.data_type.safetensors or tensor.data_type.numpy_name} with shape "
        f"{list(tensor.shape)}, but {field} describes {expected}"
    )
