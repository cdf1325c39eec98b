"""The forms a call can take: npy and a query, a frame, or plain JSON. Each is read into one `Call` and written back.

Content-Type picks the reader; Accept picks the writer, and without it the answer has the form of the request.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from starlette.datastructures import QueryParams

from tensorpost import frame
from tensorpost.datatypes import DataType, data_type
from tensorpost.descriptors import NEWEST, FeatureLevel, OperatorDesc, operator_class, parse_operator
from tensorpost.problems import (
    InvalidDescriptor,
    InvalidFrame,
    InvalidJson,
    InvalidParameter,
    NotAcceptable,
    UnsupportedMediaType,
    Violation,
    json_path,
    nearest,
)
from tensorpost.strict_json import read_json

__all__ = ["Call", "Form", "Options", "Tensor", "answer_form", "call_from", "request_form", "tensors_of_document"]


class Form(enum.Enum):
    """A media type we read and write."""

    NPY = frame.NPY_MEDIA_TYPE
    FRAME = frame.MEDIA_TYPE
    JSON = "application/json"


_READS: Mapping[str, Form] = {
    frame.NPY_MEDIA_TYPE: Form.NPY,
    frame.MEDIA_TYPE: Form.FRAME,
    **dict.fromkeys(frame.ALSO_READ, Form.FRAME),
    "application/json": Form.JSON,
}


def request_form(content_type: str | None) -> Form:
    """The reader for a Content-Type.

    Raises:
        UnsupportedMediaType: none, or one we do not read; the message lists those we do.
    """
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type in _READS:
        return _READS[media_type]
    known = ", ".join(form.value for form in Form)
    what = f"Content-Type {media_type[:80]!r} is not read here" if media_type else "there is no Content-Type"
    raise UnsupportedMediaType(f"{what}; send {known}", extra={"accept": known})


def answer_form(accept: str | None, request: Form) -> Form:
    """The writer for an Accept header (RFC 9110, section 12.5.1); a wildcard keeps the form of the request.

    Raises:
        NotAcceptable: nothing in it can be written.
    """
    wishes: list[tuple[float, int, Form]] = []
    for order, item in enumerate((accept or "*/*").split(",")):
        media_type, *parameters = [part.strip().lower() for part in item.split(";")]
        quality = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        try:
            weight = float(quality)
        except ValueError:
            raise InvalidParameter(f"Accept has the malformed quality {quality[:40]!r}; send a number") from None
        form = request if media_type in ("*/*", "application/*") else _READS.get(media_type)
        if form is not None and weight > 0:
            wishes.append((-weight, order, form))
    if not wishes:
        known = ", ".join(form.value for form in Form)
        raise NotAcceptable(f"nothing in Accept {(accept or '')[:80]!r} can be written here; there are {known}")
    return min(wishes, key=lambda wish: wish[:2])[2]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a request announces it."""

    name: str
    data_type: DataType
    shape: tuple[int, ...]
    size_in_bytes: int


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller chooses besides the operator.

    Attributes:
        backend: `auto` or a backend's name; None for the server's default.
        feature_level: DirectML level to validate at; None for the newest.
    """

    backend: str | None = None
    feature_level: FeatureLevel | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A request, understood: nothing of it has been computed and no tensor has been read.

    Attributes:
        desc: the operator.
        options: backend and feature level.
        tensors: the tensors in the order of their bytes in the body.
        id: the caller's id for the call, echoed in a frame.
    """

    desc: OperatorDesc
    options: Options
    tensors: tuple[Tensor, ...]
    id: str | None = None


def call_from(
    operator: str,
    query: str,
    tensors: Sequence[Tensor],
    document: str | None = None,
    id: str | None = None,  # noqa: A002 # the frame's own word
) -> Call:
    """Make a call from a path, a query, the announced tensors and, where the form has one, an operator document.

    The document may leave out what the tensors say (an input's type and sizes) and what follows (the output).

    Args:
        operator: the name in the path.
        query: the query string, undecoded.
        tensors: what the body announces, in the order of its bytes.
        document: the operator document as JSON text.
        id: the caller's id, echoed.

    Raises:
        UnknownOperator: the path or the document names no operator.
        InvalidJson: the document is not JSON.
        InvalidParameter: a query parameter that is unknown, repeated, or doubles the document.
        InvalidDescriptor: the description breaks a rule.
        InvalidFrame: the tensors do not fit the description.
    """
    small = len(query) + len(document or "") <= _CACHED_TEXT
    understand = _understand if small else _understand.__wrapped__
    desc, options = understand(operator, query, tuple(tensors), document)
    return Call(desc, options, tuple(tensors), id)


_CACHED_TEXT = 8192  # characters; longer calls are understood anew each time, so that the cache stays small


@lru_cache(maxsize=1024)  # the same call with other numbers in it is what a server mostly gets
def _understand(
    operator: str, query: str, tensors: tuple[Tensor, ...], document: str | None
) -> tuple[OperatorDesc, Options]:
    cls = operator_class(operator)
    attributes, options = _read_query(cls, QueryParams(query))
    members = _operator_document(cls, document)
    if document is not None and attributes:
        names = ", ".join(sorted(attributes))
        raise InvalidParameter(f"the operator document is sent, so the query must not repeat it: remove {names}")
    desc = {**members["desc"], **attributes}
    slots = {cls.slot_name(name): name for name in cls.input_fields}
    _match_names(tensors, slots)
    if output_sizes := desc.pop("output_sizes", None):
        output = {"DataType": _directml_name(tensors[0]), "Sizes": output_sizes}
        desc[_alias(cls.output_fields[0])] = output
    for tensor in tensors:
        if not {slots[tensor.name], _alias(slots[tensor.name])} & desc.keys():
            desc[_alias(slots[tensor.name])] = {"DataType": _directml_name(tensor), "Sizes": list(tensor.shape)}
    parsed = parse_operator({**members, "desc": desc}, complete=True)
    for tensor in tensors:
        _match_tensor(tensor, slots[tensor.name], getattr(parsed, slots[tensor.name]))
    parsed.validate_for(options.feature_level or NEWEST)
    return parsed, options


def _operator_document(cls: type[OperatorDesc], text: str | None) -> Mapping[str, Any]:
    """The document's members; it must describe the operator that the path names."""
    if text is None:
        return {"type": cls.operator_type, "desc": {}}
    try:
        document = read_json(text.encode())
    except InvalidJson as error:
        raise InvalidJson(f"{json_path(('__metadata__', 'op'))}: {error.detail}") from None
    members: Mapping[str, Any] = cast("Any", document) if isinstance(document, Mapping) else {}
    if not isinstance(members.get("type"), str) or not isinstance(members.get("desc"), Mapping):
        parse_operator(document)  # raises, and names what is missing
    if operator_class(members["type"]) is not cls:
        raise InvalidParameter(
            f"the path names {cls.operator_type} but the document's type is {members['type'][:60]!r}; "
            "post to the operator that the document describes"
        )
    return members


def _alias(field_name: str) -> str:
    return "".join(part.capitalize() for part in field_name.split("_"))


def _directml_name(tensor: Tensor) -> str:
    if tensor.data_type.directml is None:
        known = ", ".join(row.directml for row in _directml_rows() if row.directml)
        raise InvalidDescriptor.of(
            [
                Violation(
                    "data-type-unsupported", (tensor.name, "dtype"),
                    f"DirectML has no type for {tensor.data_type.numpy_name}; convert the array first",
                    tensor.data_type.numpy_name, f"one of {known}", "DML_TENSOR_DATA_TYPE",
                )
            ]
        )  # fmt: skip
    return tensor.data_type.directml


def _directml_rows() -> list[DataType]:
    from tensorpost.datatypes import DATA_TYPES

    return [row for row in DATA_TYPES if row.directml]


def _match_names(tensors: Sequence[Tensor], slots: Mapping[str, str]) -> None:
    names = [tensor.name for tensor in tensors]
    wrong = [name for name in names if name not in slots]
    missing = [name for name in slots if name not in names]
    if wrong or missing:
        said = ", ".join(map(repr, names)) or "none"
        raise InvalidFrame(f"the operator takes the tensors {', '.join(map(repr, slots))}; the body has {said}")


def _match_tensor(tensor: Tensor, field_name: str, described: Any) -> None:
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
        f"{list(tensor.shape)}, but {_alias(field_name)} describes {expected}"
    )


def _read_query(cls: type[OperatorDesc], query: QueryParams) -> tuple[dict[str, Any], Options]:
    fields = cls.attribute_fields()
    known = [*fields, "output_sizes", "backend", "feature_level"]
    attributes: dict[str, Any] = {}
    chosen: dict[str, str] = {}
    for name, text in query.multi_items():
        if name not in known:
            guess = nearest(name, known)
            hint = f"did you mean {guess!r}?" if guess else f"there are {', '.join(known)}"
            raise InvalidParameter(f"there is no query parameter {name[:60]!r}; {hint}", extra={"parameter": name[:60]})
        if name in chosen:
            raise InvalidParameter(
                f"query parameter {name!r} is sent twice; separate several values by commas",
                extra={"parameter": name},
            )
        chosen[name] = text
        if name == "output_sizes" or name in fields:
            is_array = name == "output_sizes" or "tuple" in str(fields[name].annotation)
            attributes["output_sizes" if name == "output_sizes" else _alias(name)] = _value(text, array=is_array)
    level = chosen.get("feature_level")
    return attributes, Options(chosen.get("backend"), FeatureLevel.parse(level) if level is not None else None)


def _value(text: str, *, array: bool) -> Any:
    """A query value: numbers and objects as JSON would read them, names as text; the descriptor judges them."""
    if array:
        return [_value(item.strip(), array=False) for item in text.split(",")]
    try:
        return read_json(text.encode())
    except InvalidJson:
        return text


def tensors_of_document(document: object) -> tuple[str | None, list[Any], list[Tensor], str | None]:
    """Read a JSON call: `{"op": {...}, "tensors": {"input": {"dtype", "shape", "data"}}, "id": ...}`.

    Returns:
        The operator document as text (None if left out), the arrays, their announcements, and the id.

    Raises:
        InvalidDescriptor: a member is missing, unknown or malformed.
    """
    expected = '{"op": {...}, "tensors": {"input": {"dtype": "F32", "shape": [...], "data": [...]}}}'
    members: Mapping[str, Any] = cast("Any", document) if isinstance(document, Mapping) else {}
    found = [
        Violation("document", (key,), f"there is no member {key[:60]!r} in a JSON call", None, expected)
        for key in members
        if key not in ("op", "tensors", "id")
    ]
    given: Any = members.get("tensors")
    if not isinstance(given, Mapping):
        found.append(Violation("document", ("tensors",), "tensors must be an object of named tensors", given, expected))
    if not isinstance(members.get("id"), (str, type(None))):
        found.append(Violation("document", ("id",), "id must be text", members.get("id"), "text"))
    if found:
        raise InvalidDescriptor.of(found)
    arrays: list[Any] = []
    tensors: list[Tensor] = []
    for name, content in cast("Mapping[str, Any]", given).items():
        array = frame.tensor_from_json(content, path=("tensors", name))
        arrays.append(array)
        tensors.append(Tensor(name, data_type(array.dtype), array.shape, array.nbytes))
    described = json.dumps(members["op"]) if "op" in members else None
    return described, arrays, tensors, members.get("id")


def metadata_of(call: Call, backend: str, device: str) -> dict[str, str]:
    """The metadata of a frame that answers a call; with it, a saved answer explains itself."""
    metadata = {"op": json.dumps(call.desc.to_document(), separators=(",", ":")), "backend": backend, "device": device}
    if call.id is not None:
        metadata["id"] = call.id
    return metadata
