"""Error responses: the status of each error class, and problem documents (RFC 9457)."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from tensorpost import problems as p

from .documents.problem_page import PAGE_POLICY, problem_page, wants_page
from .headers import NO_SNIFFING
from .observability.request_record import observation_of

_log = logging.getLogger(__name__)

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_MEDIA_TYPE = "application/problem+json"

STATUS: Mapping[type[p.TensorpostError], int] = {
    p.InvalidRequest: 400,
    p.Unauthenticated: 401,
    p.Forbidden: 403,
    p.InvalidDescriptor: 422,
    p.UnsupportedAtLevel: 422,
    p.LibraryFailed: 422,
    p.UnknownOperator: 404,
    p.InvalidJson: 400,
    p.InvalidFrame: 400,
    p.TensorMismatch: 400,
    p.InvalidParameter: 400,
    p.BodyMismatch: 400,
    p.LengthRequired: 411,
    p.CallChanged: 412,
    p.UnsupportedMediaType: 415,
    p.NotAcceptable: 406,
    p.NotFound: 404,
    p.RegionNotFound: 404,
    p.GraphNotFound: 404,
    p.TensorNotFound: 404,
    p.TensorGone: 410,
    p.TensorExists: 409,
    p.MethodNotAllowed: 405,
    p.LimitExceeded: 413,
    p.Unavailable: 503,
    p.InsufficientStorage: 507,
    p.TooBusy: 429,
    p.QuotaExceeded: 429,
    p.NotReady: 503,
    p.NoBackend: 501,
    p.LibraryUnavailable: 503,
    p.OutOfDeviceMemory: 503,
    p.DeviceLost: 503,
    p.ReceiveTimeout: 408,
    p.DeadlineExceeded: 504,
    p.ServerFault: 500,
}


_INFERENCE_STATUS = {422: 400, 504: 503}
"""What other statuses are in answers of `/v2`; its clients know no others."""


_OBJECT = {"schema": {"type": "object"}}

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {_MEDIA_TYPE: _OBJECT, "application/json": _OBJECT}}
    for status, text in (
        ("4XX", "What was wrong with the request (RFC 9457)."),
        ("501", "No device here can do it, or it is not offered."),
        ("503", "Not ready, or no memory is left; Retry-After says when to come back."),
        ("507", "No room for a tensor that is to stay; the setting is named."),
        ("504", "The deadline of the request has passed."),
    )
}
"""What every path may answer, for the OpenAPI document; /v2 in the shape of the Open Inference Protocol. Any other
status of 500 and more is a fault."""


def in_open_inference(scope: Scope) -> bool:
    """Whether the request is one of the Open Inference Protocol."""
    return f"{route_path(scope)}/".startswith("/v2/")


def route_path(scope: Scope) -> str:
    """The path that a request is routed by: without what the application is mounted under."""
    path, root = scope["path"], scope.get("root_path", "")
    return path[len(root) :] if path.startswith(f"{root}/") else path


def status_of(error: p.TensorpostError) -> int:
    """The status of an error: its class's row, or that of the nearest base class that has one."""
    return next((STATUS[cls] for cls in type(error).__mro__ if cls in STATUS), 500)


def answer_error(request: Request, error: Exception) -> Response:
    """The problem document of a `TensorpostError`, with Retry-After where waiting helps."""
    assert isinstance(error, p.TensorpostError)
    return _answer(request, error, status_of(error), {})


def _answer(request: Request, error: p.TensorpostError, status: int, headers: dict[str, str]) -> Response:
    if "retry_after_seconds" in error.extra:
        headers["Retry-After"] = str(error.extra["retry_after_seconds"])
    if isinstance(error, (p.Unauthenticated, p.Forbidden)):
        headers["WWW-Authenticate"] = str(error.extra.get("www_authenticate", "Bearer"))
    if isinstance(error, p.MethodNotAllowed):
        headers["Allow"] = str(error.extra.get("allow", ""))
    if isinstance(error, p.UnsupportedMediaType) and "accept" in error.extra:
        headers["Accept"] = str(error.extra["accept"])
    if isinstance(error, p.UnsupportedMediaType) and "accept_encoding" in error.extra:
        headers["Accept-Encoding"] = str(error.extra["accept_encoding"])
    if (observation := observation_of(request.scope)) is not None:
        observation.reason = error.code
    is_inference = in_open_inference(request.scope)
    id_ = request.scope.get("tensorpost.request_id")
    status, media_type, problem = problem_document(error, status, id_, is_inference=is_inference)
    if id_:
        headers["X-Request-ID"] = id_
    headers[NO_SNIFFING[0]] = NO_SNIFFING[1]
    headers["Vary"] = "Accept"
    if not is_inference and wants_page(request.headers.get("accept", "")):
        headers["Content-Security-Policy"] = PAGE_POLICY
        return Response(problem_page(problem, request.scope.get("root_path", "")), status, headers, "text/html")
    body = json.dumps(problem, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
    return Response(body, status, headers, media_type)


def problem_document(
    error: p.TensorpostError, status: int, id_: str | None, *, is_inference: bool
) -> tuple[int, str, dict[str, Any]]:
    """Status, media type and document of an error; for clients of the Open Inference Protocol in the form they read."""
    media_type = _MEDIA_TYPE
    if is_inference:
        status, media_type = _INFERENCE_STATUS.get(status, status), "application/json"
    problem = error.to_problem(status)
    if is_inference:
        problem["error"] = str(error)  # the only member that these clients show
    if id_:
        problem["request_id"] = id_
    return status, media_type, problem


def answer_http_exception(request: Request, error: Exception) -> Response:
    """A refusal of the router, the framework or a middleware as a problem document; status and headers stay.

    The problem is of the family that the status belongs to: `invalid-request`, `unavailable` (503) or
    `internal-error`.
    """
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path[:200]
    if error.status_code == 404:
        return answer_error(request, p.NotFound(f"there is nothing at {path}; /docs lists what there is"))
    if error.status_code == 405:
        allow = ", ".join(allowed_methods(request))
        refusal = p.MethodNotAllowed(f"{method} is not allowed at {path}; use {allow}", extra={"allow": allow})
        return answer_error(request, refusal)
    family = (
        p.InvalidRequest if error.status_code < 500 else p.Unavailable if error.status_code == 503 else p.ServerFault
    )
    detail = f"{method} {path}: {error.detail}"
    return _answer(request, family(detail), error.status_code, dict(error.headers or {}))


def allowed_methods(request: Request) -> list[str]:
    """All methods of the path, none if there is nothing; the router's Allow header names those of one route only."""
    routed = [
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    ]
    also = {"OPTIONS", "HEAD"} if "GET" in routed else {"OPTIONS"} if routed else set[str]()
    return [method for method in _METHODS if method in {*routed, *also}]


def answer_options(request: Request) -> Response:
    """The methods of a path (RFC 9110, section 9.3.7).

    Raises:
        HTTPException: 404, there is nothing at the path.
    """
    allow = allowed_methods(request)
    if not allow:
        raise HTTPException(404)
    return Response(status_code=204, headers={"Allow": ", ".join(allow)})


class _NoResponse(Response):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send nothing."""


def answer_disconnected(request: Request, error: Exception) -> Response:
    """The caller closed the connection: no response is sent, and nothing is logged."""
    del request, error
    return _NoResponse()


def out_of_memory(retry_after_seconds: int) -> p.Unavailable:
    """The error for a request that the machine had no memory for, or no thread, which needs memory as well."""
    return p.Unavailable(
        "the machine has no memory left for this now; try again later, or with less (setting TENSORPOST_MEMORY_BYTES "
        "says how much the server may lend out)",
        extra={"retry_after_seconds": retry_after_seconds},
    )


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory was refused: an allocation, a mapping, or a new thread with its stack."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and "can't start new thread" in str(error))
    )


def answer_out_of_memory(request: Request, error: Exception) -> Response:
    """503 with Retry-After; the server goes on, and the connection stays."""
    _log.warning("request %s: %r", request.scope.get("tensorpost.request_id"), error)
    return answer_error(request, out_of_memory(request.app.state.service.settings.retry_after_seconds))


def answer_unexpected(request: Request, error: Exception) -> Response:
    """A fault of the server or of the machine, as 500 or 503 without details, which are in the log."""
    # The server logs the traceback; this line ties it to the request.
    _log.error("request %s failed: %r", request.scope.get("tensorpost.request_id"), error)
    if is_out_of_memory(error):
        fault = out_of_memory(request.app.state.service.settings.retry_after_seconds)
    else:
        fault = p.ServerFault("the server failed; its log has the details under this request id")
    answer = answer_error(request, fault)
    answer.headers["Connection"] = "close"  # as servers do after an exception; callers should know
    return answer
