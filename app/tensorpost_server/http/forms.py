"""The forms a call can take: npy and a query, a frame, or plain JSON.

Content-Type picks the reader; Accept picks the writer, and without it the answer has the form of the request.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from typing import Any, cast

from tensorpost import frame
from tensorpost.datatypes import data_type
from tensorpost.problems import InvalidDescriptor, InvalidParameter, NotAcceptable, UnsupportedMediaType, Violation

from .calls import Tensor

__all__ = ["Form", "answer_form", "refuse_encoding", "request_form", "tensors_of_document"]


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


def refuse_encoding(content_encoding: str | None) -> None:
    """Bodies are read as they are (RFC 9110, section 8.4).

    Raises:
        UnsupportedMediaType: the body is compressed.
    """
    if content_encoding is not None and content_encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            f"Content-Encoding {content_encoding[:80]!r} is not read here; send the body uncompressed",
            extra={"accept_encoding": "identity"},
        )


def answer_form(accept: str | None, request: Form) -> Form:
    """The writer for an Accept header (RFC 9110, section 12.5.1); a wildcard keeps the form of the request.

    Raises:
        InvalidParameter: a malformed quality.
        NotAcceptable: nothing in it can be written.
    """
    if accept is None or accept == "*/*":
        return request
    wishes: list[tuple[float, int, Form]] = []
    excluded: set[Form] = set()
    for order, item in enumerate(accept.split(",")):
        media_type, *parameters = [part.strip().lower() for part in item.split(";")]
        quality = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        if not re.fullmatch(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?", quality):
            raise InvalidParameter(f"Accept has the malformed quality {quality[:40]!r}; send a number from 0 to 1")
        weight = float(quality)
        form = request if media_type in ("*/*", "application/*") else _READS.get(media_type)
        if form is not None and weight > 0:
            wishes.append((-weight, order, form))
        elif form is not None and media_type in _READS:
            excluded.add(form)
    wishes = [wish for wish in wishes if wish[2] not in excluded]
    if not wishes:
        known = ", ".join(form.value for form in Form)
        raise NotAcceptable(f"nothing in Accept {accept[:80]!r} can be written here; there are {known}")
    return min(wishes, key=lambda wish: wish[:2])[2]


def tensors_of_document(document: object) -> tuple[str | None, list[Any], list[Tensor], str | None]:
    """Read a JSON call: `{"op": {...}, "tensors": {"input": {"dtype", "shape", "data"}}, "id": ...}`.

    Returns:
        The operation as text (None if left out), the arrays, their announcements, and the id.

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
    return json.dumps(members["op"]) if members.get("op") is not None else None, arrays, tensors, members.get("id")
