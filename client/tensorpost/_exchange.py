"""What a call says and hears, without a socket: the one core under `Client` and `AsyncClient`.

Each call is a `Flow` (`_steps.py`); what its answer means is in `_replies.py`. The rules of these files:

1. Nothing here blocks, sleeps, opens or knows the time.
2. A request's body is a tuple of views of the caller's memory, never joined; it can be read again, and so repeated.
3. Output memory is taken after the answer's head was found right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode

import numpy as np
from numpy.typing import NDArray

from ._answers import Result, Validation
from ._arrays import (
    Subject,
    Tensor,
    TensorData,
    check_out,
    input_tensors,
    output_memory,
    output_tensor,
    wire_form,
    wire_inputs,
)
from ._checks import shown, text, whole_number
from ._replies import ask, server_timing
from ._retries import RetryPolicy
from ._steps import Flow, HandOut, Meter, Report, Request, Wait
from .descriptors import FeatureLevel, OperatorDesc, parse_operator
from .frame import MEDIA_TYPE, encode_head
from .onnx import OnnxNode
from .problems import (
    ConnectionProblem,
    InvalidDescriptor,
    InvalidParameter,
    TensorpostError,
    Unavailable,
    UnsupportedAtLevel,
    Violation,
)

__all__ = ["compute", "document", "health", "stream", "validate"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Prepared:
    """An operator call whose arguments have been found right."""

    request: Request
    output: Tensor


def _prepare(
    subject: Subject,
    inputs: TensorData | Mapping[str, TensorData],
    backend: str | None,
    device: int | None,
    feature_level: str | int | FeatureLevel | None,
    report: Report | None,
) -> _Prepared:
    if not isinstance(cast("object", subject), (OperatorDesc, OnnxNode)):
        raise InvalidParameter(
            f"desc must be an operator's descriptor or an OnnxNode, not {type(subject).__name__}; "
            "parse_operator(document, complete=True) and OnnxNode.from_json(document) read documents"
        )
    head = _frame_head(subject)  # pyright: ignore[reportArgumentType] # frozen models are hashable; Pydantic does not say so
    tensors = wire_inputs(subject, inputs)
    query: dict[str, str] = {}
    if backend is not None:
        query["backend"] = text("backend", backend, "the name of one, as devices() lists them, or 'auto'")
    if device is not None:
        query["device"] = str(whole_number("device", device, 0, ", as devices() counts them"))
    if report is not None and not callable(cast("object", report)):
        raise InvalidParameter(f"progress is {shown(report)}; it must be a function that takes a Progress")
    if isinstance(subject, OnnxNode):
        if feature_level is not None:
            raise InvalidParameter("feature levels are DirectML's; an ONNX node has an opset instead")
        path = f"/v1/onnx/{subject.op_type}"
    else:
        path = f"/v1/operators/{subject.operator_type.lower()}"
        if feature_level is not None:
            query["feature_level"] = str(FeatureLevel.parse(feature_level))
    target = path + (f"?{urlencode(query)}" if query else "")
    request = Request(
        "POST",
        target,
        {"content-type": MEDIA_TYPE, "accept": MEDIA_TYPE},
        (memoryview(head), *tensors),
        Meter(report),
    )
    return _Prepared(request, output_tensor(subject))


@lru_cache(maxsize=256)  # a caller with the next array of the same shape is the common one
def _frame_head(subject: Subject) -> bytes:
    if isinstance(subject, OnnxNode):
        for tensor in (subject.input, subject.output):
            tensor.require_carriable("frame")
    tensors = [(name, *wire_form(tensor)) for name, tensor in input_tensors(subject).items()]
    op = subject.to_json_text() if isinstance(subject, OnnxNode) else subject.to_document_text()
    return encode_head(tensors, {"op": op})


def compute(
    policy: RetryPolicy,
    subject: Subject,
    inputs: TensorData | Mapping[str, TensorData],
    *,
    out: NDArray[Any] | None = None,
    backend: str | None = None,
    device: int | None = None,
    feature_level: str | int | FeatureLevel | None = None,
    progress: Report | None = None,
) -> Flow[Result[Any]]:
    """Run an operator and receive its output whole. Arguments are checked now, the rest happens when it is driven."""
    call = _prepare(subject, inputs, backend, device, feature_level, progress)
    check_out(call.output, out)

    def attempt() -> Flow[Result[Any]]:
        answer = yield from ask(call.request)
        frame = yield from answer.frame_head(call.output)
        memory, array = output_memory(call.output, out)
        yield from answer.fill(memory)
        yield from answer.finish()
        timing = server_timing(answer.head.headers.get("server-timing", ""))
        named = frame.metadata.get("backend", ""), frame.metadata.get("device", "")
        return Result(array, *named, timing, answer.head.request_id)

    return _with_retries(policy, attempt)


def stream(
    policy: RetryPolicy,
    subject: Subject,
    inputs: TensorData | Mapping[str, TensorData],
    *,
    block_bytes: int,
    backend: str | None = None,
    device: int | None = None,
    feature_level: str | int | FeatureLevel | None = None,
    progress: Report | None = None,
) -> Flow[None]:
    """Run an operator and hand out its output's bytes block by block. Arguments are checked now, as in `compute`."""
    block_bytes = whole_number("block_bytes", block_bytes, 1)
    call = _prepare(subject, inputs, backend, device, feature_level, progress)

    def attempt() -> Flow[None]:
        answer = yield from ask(call.request)
        frame = yield from answer.frame_head(call.output)
        if frame.body_bytes == 0:
            yield from answer.finish()
        for start in range(0, frame.body_bytes, block_bytes):
            # Fresh memory for each block: a caller may keep one while the next arrives.
            block = np.empty(min(block_bytes, frame.body_bytes - start), np.uint8).data
            yield from answer.fill(block)
            if start + len(block) == frame.body_bytes:
                yield from answer.finish()
            yield HandOut(block)

    return _with_retries(policy, attempt)


def document(policy: RetryPolicy, path: str, *segments: str) -> Flow[Any]:
    """GET a JSON document. `segments` are appended to the path, percent-encoded.

    Raises:
        InvalidParameter: a segment is no text.
    """
    for segment in segments:
        text("name", segment, "the name of an operator, for instance 'TILE'")
    target = "/".join([path, *(quote(segment, safe="") for segment in segments)])
    request = Request("GET", target, {"accept": "application/json"})

    def attempt() -> Flow[Any]:
        answer = yield from ask(request)
        return (yield from answer.json())

    return _with_retries(policy, attempt)


def health(path: str) -> Flow[bool]:
    """Whether a health page answers with success. No server, a busy one and one that is draining are a plain no."""

    def attempt() -> Flow[bool]:
        try:
            answer = yield from ask(Request("GET", path, {"accept": "application/json"}))
            yield from answer.drain()
        except (ConnectionProblem, Unavailable):
            return False
        return True

    return attempt()


def validate(
    policy: RetryPolicy,
    operator: Subject | Mapping[str, Any],
    *,
    feature_level: str | int | FeatureLevel | None = None,
) -> Flow[Validation]:
    """Ask a server whether it would accept a descriptor."""
    if isinstance(operator, OperatorDesc):
        body = operator.to_document_text()
    else:
        body = operator.to_json_text() if isinstance(operator, OnnxNode) else _json_text(operator)
    level = "" if feature_level is None else f"?feature_level={FeatureLevel.parse(feature_level)}"
    headers = {"content-type": "application/json", "accept": "application/json"}
    request = Request("POST", "/v1/validate" + level, headers, (memoryview(body.encode()),))

    def attempt() -> Flow[Validation]:
        answer = yield from ask(request)
        said = yield from answer.json()
        try:
            return _validation(said, answer.head.request_id)
        except (KeyError, TypeError, AttributeError, InvalidParameter) as error:
            raise answer.fault(f"the answer to a validation cannot be understood ({error!r})") from error

    return _with_retries(policy, attempt)


def _json_text(operator: Mapping[str, Any]) -> str:
    try:
        return json.dumps(operator, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidParameter(f"the operator document cannot be written as JSON: {error}") from None


def _validation(said: Any, request_id: str | None) -> Validation:
    lowest = said["lowest_feature_level"]
    if not said["valid"]:
        violations = tuple(Violation.from_json(v) for v in said["violations"])
        # With a canonical document the descriptor is well formed, so that only the level can be at fault.
        cls = UnsupportedAtLevel if said["op"] is not None else InvalidDescriptor
        first = violations[0]
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        detail = f"{first.path[0]}: {first.message}{more}"
        raise cls(detail, violations, {"lowest_feature_level": lowest}, request_id=request_id)
    return Validation(
        operator=OnnxNode.from_json(said["op"]) if "op_type" in said["op"] else parse_operator(said["op"]),
        feature_level=FeatureLevel.parse(said["feature_level"]),
        lowest_feature_level=None if lowest is None else FeatureLevel.parse(lowest),
        input_bytes=int(said["input_bytes"]),
        output_bytes=int(said["output_bytes"]),
        document=said,
    )


def _with_retries(policy: RetryPolicy, attempt: Callable[[], Flow[T]]) -> Flow[T]:
    retry, waited = 1, 0.0
    while True:
        try:
            return (yield from attempt())
        except TensorpostError as error:
            wait = policy.wait_before(retry, error, waited)
            if wait is None:
                raise
        yield Wait(wait)
        retry, waited = retry + 1, waited + wait
