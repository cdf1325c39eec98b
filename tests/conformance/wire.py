"""A case of the vectors as an HTTP request, in each form that can say it, and its answer read back as bytes.

Requests and answers are written and read here from docs/wire.md; nothing of the packages does it.
"""

from __future__ import annotations

import http.client
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray
from tests.support.http_app import FRAME, JSON, NPY, frame_bytes, split_frame
from tests.support.vectors import Case, elements, written

from tensorpost.descriptors import OperatorDesc
from tensorpost.onnx import OnnxNode
from tensorpost.values.operation import Slot

__all__ = ["FORMS", "Request", "Server", "answer_bytes", "requests"]

_WIRE_TYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16", "uint32": "U32",
    "int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64", "float64": "F64",
}  # fmt: skip
FORMS = ("frame", "npy", "JSON")


@dataclass(frozen=True)
class Request:
    """What is posted, and how the answer is read.

    Attributes:
        path: with its query.
        headers: `Content-Type` and `Accept`.
        body: whole.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes


def requests(case: Case, form: str) -> Iterator[Request]:
    """The request of a case in one of `FORMS`; nothing if the form cannot say it."""
    operation = case.desc
    packed = all(slot.layout.packed for slot in (*operation.inputs, *operation.outputs))
    if form == "frame":
        tensors = {
            slot.name: _frame_entry(slot, data) for slot, data in zip(operation.inputs, case.inputs, strict=True)
        }
        body = frame_bytes(tensors, {"op": operation.to_document_text()})
        yield Request(operation.endpoint + "?backend=numpy", {**FRAME, "accept": FRAME["content-type"]}, body)
    elif form == "npy" and packed and _takes_one_tensor(operation):
        accept = NPY if len(operation.outputs) == 1 else FRAME
        body = io.BytesIO()
        for array in arrays_of(case):
            np.lib.format.write_array(body, array, version=(1, 0))
        query = _onnx_query(operation) if isinstance(operation, OnnxNode) else _query(operation)
        headers = {**NPY, "accept": accept["content-type"]}
        yield Request(f"{operation.endpoint}?backend=numpy&{query}", headers, body.getvalue())
    elif form == "JSON" and packed:
        arrays = [*arrays_of(case), *case.outputs()]
        if all(array.dtype.kind != "f" or np.isfinite(array).all() for array in arrays):
            tensors = {
                slot.name: {
                    "dtype": _WIRE_TYPES[array.dtype.name],
                    "shape": array.shape,
                    "data": array.ravel().tolist(),
                }
                for slot, array in zip(operation.inputs, arrays, strict=False)
            }
            document = {"op": json.loads(operation.to_document_text()), "tensors": tensors}
            body = json.dumps(document).encode()
            yield Request(operation.endpoint + "?backend=numpy", {**JSON, "accept": JSON["content-type"]}, body)


def _takes_one_tensor(operation: Any) -> bool:
    """Whether there is one input or none, and could not be more: npy holds one tensor without a name."""
    arrays: set[str] = set()
    if isinstance(operation, OperatorDesc):
        arrays = {field.attribute_name for field in operation.facts.fields if field.is_array}
    return len(operation.inputs) <= 1 and not arrays & {"input_tensors"}


def arrays_of(case: Case) -> list[NDArray[Any]]:
    """The input tensors as arrays of their sizes."""
    return [elements(slot, data) for slot, data in zip(case.desc.inputs, case.inputs, strict=True)]


def _frame_entry(slot: Slot, data: bytes) -> tuple[str, list[int], bytes]:
    if slot.layout.packed:
        return _WIRE_TYPES[slot.layout.data_type.numpy_name], list(slot.layout.sizes), data
    return "U8", [len(data)], data


def _query(operation: Any) -> str:
    """Attributes as query parameters, and what the outputs are."""
    assert isinstance(operation, OperatorDesc)
    document = operation.to_json()
    pairs: dict[str, str] = {}
    for name in operation.fields_of_kind("attribute"):
        value = document.get(name.title().replace("_", ""))
        if isinstance(value, list):
            pairs[name] = ",".join(map(str, value))
        elif value is not None:
            pairs[name] = value if isinstance(value, str) else json.dumps(value)
    outputs = [slot.layout for slot in operation.outputs]
    pairs["output_sizes"] = ";".join(",".join(map(str, layout.sizes)) for layout in outputs)
    pairs["output_data_type"] = ";".join(str(layout.data_type.directml) for layout in outputs)
    return "&".join(f"{name}={quote(value)}" for name, value in pairs.items())


def _onnx_query(node: OnnxNode) -> str:
    document = json.loads(node.to_document_text())
    pairs: dict[str, Any] = {"opset": document["opset"], **document.get("attributes", {})}
    pairs |= {name: value for name, value in document["inputs"].items() if isinstance(value, (list, int, float))}
    texts = {name: ",".join(map(str, v)) if isinstance(v, list) else str(v) for name, v in pairs.items()}
    return "&".join(f"{name}={quote(value)}" for name, value in texts.items())


class Server:
    """A connection to a server, kept open.

    Args:
        url: where it listens.
        seconds: how long an answer may be silent.
    """

    def __init__(self, url: str, seconds: float = 60) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds)

    def close(self) -> None:
        self._connection.close()

    def post(self, request: Request) -> tuple[int, str, bytes]:
        """Status, media type and body of the answer."""
        self._connection.request("POST", request.path, request.body, dict(request.headers))
        answer = self._connection.getresponse()
        return answer.status, answer.headers.get_content_type(), answer.read()

    def check(self, case: Case, request: Request) -> None:
        """Post a case and compare its answer.

        Raises:
            AssertionError: it is refused, or its outputs are wrong.
        """
        status, media_type, body = self.post(request)
        assert status == 200, f"{status} {body[:600]!r}"
        assert media_type == request.headers["accept"]
        case.check(answer_bytes(case, media_type, body))


def answer_bytes(case: Case, media_type: str, body: bytes) -> bytes:
    """The outputs' bytes, one after the other, whatever form they came in."""
    slots = case.desc.outputs
    if media_type == NPY["content-type"]:
        (slot,) = slots
        return written(slot, np.load(io.BytesIO(body), allow_pickle=False))
    if media_type == FRAME["content-type"]:
        head, buffers = split_frame(body)
        assert [name for name in head if name != "__metadata__"] == [slot.name for slot in slots]
        for slot in slots:
            dtype, shape = head[slot.name]["dtype"], head[slot.name]["shape"]
            assert (dtype, shape) == _frame_entry(slot, buffers[slot.name])[:2]
        return b"".join(buffers[slot.name] for slot in slots)
    tensors = json.loads(body)["tensors"]
    assert list(tensors) == [slot.name for slot in slots]
    arrays: list[bytes] = []
    for slot in slots:
        found = tensors[slot.name]
        assert found["dtype"] == _WIRE_TYPES[slot.layout.data_type.numpy_name]
        values = np.array(found["data"], slot.layout.data_type.numpy_name)
        arrays.append(written(slot, values.reshape(found["shape"])))
    return b"".join(arrays)
