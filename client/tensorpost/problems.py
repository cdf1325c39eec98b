"""Everything that can be refused, and the one JSON shape it travels in (RFC 9457, `application/problem+json`).

The tree::

    TensorpostError
    |-- InvalidRequest (also a ValueError)   what was sent cannot be right; sending it again will not help
    |   |-- InvalidDescriptor                a rule of DirectML or ONNX is broken; every violation is listed
    |   |-- UnsupportedAtLevel               legal, but not at the feature level asked for
    |   |-- UnknownOperator                  no operator of that name
    |   |-- InvalidJson                      not JSON, or JSON with duplicate keys, NaN or absurd depth
    |   |-- InvalidFrame                     a head that lies about its buffers, or is none; a broken npy header
    |   |-- InvalidParameter                 a query parameter or header that is unknown or malformed
    |   |-- BodyMismatch                     the body is shorter or longer than its head says
    |   |-- LengthRequired                   no Content-Length
    |   |-- UnsupportedMediaType             a Content-Type we do not read
    |   |-- NotAcceptable                    an Accept we cannot write
    |   |-- NotFound                         no such path
    |   |-- MethodNotAllowed                 the path exists, the method does not
    |   `-- LimitExceeded                    larger than a named setting allows
    |-- Unavailable                          right, but not here or not now
    |   |-- TooBusy                          every byte of the budget is lent out; try again
    |   |-- NotReady                         starting or draining
    |   |-- NoBackend                        no device here can run it, with each device's reason
    |   `-- ReceiveTimeout                   the body stopped arriving
    |-- ServerFault                          our mistake, or a device's
    `-- ConnectionProblem                    the SDK got no whole answer
        |-- ConnectFailed                    no server there
        |-- RequestTimeout                   the server took longer than the timeout
        `-- IncompleteBody                   the answer broke off after its first byte

Each class has one `code`; on the wire it is `type`, as `urn:tensorpost:problem:<code>`. The codes are stable.
A status belongs to HTTP, so the table from class to status lives in the server (`tensorpost_server.http.problems`).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

__all__ = [
    "BodyMismatch",
    "ConnectFailed",
    "ConnectionProblem",
    "IncompleteBody",
    "InvalidDescriptor",
    "InvalidFrame",
    "InvalidJson",
    "InvalidParameter",
    "InvalidRequest",
    "LengthRequired",
    "LimitExceeded",
    "MethodNotAllowed",
    "NoBackend",
    "NotAcceptable",
    "NotFound",
    "NotReady",
    "ReceiveTimeout",
    "RequestTimeout",
    "ServerFault",
    "TensorpostError",
    "TooBusy",
    "Unavailable",
    "UnknownOperator",
    "UnsupportedAtLevel",
    "UnsupportedMediaType",
    "Violation",
    "from_problem",
    "json_path",
    "nearest",
    "problem_classes",
]

PROBLEM_TYPE_PREFIX = "urn:tensorpost:problem:"
_LONGEST_VALUE = 200  # characters; an offending value is echoed to be recognised, not to be returned whole


def json_path(path: Iterable[str | int]) -> str:
    """Write a path of keys and indices as JSONPath (RFC 9535), for instance `$.desc.InputTensor.Sizes[2]`."""
    text = "$"
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier():
            text += f".{step}"
        else:
            text += "['" + step.replace("\\", "\\\\").replace("'", "\\'") + "']"
    return text


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that looks most like this one, or None if none is near."""
    matches = difflib.get_close_matches(word[:100].upper(), {k.upper(): k for k in known}, n=1)
    return next((k for k in known if matches and k.upper() == matches[0]), None)


def _presentable(value: object) -> object:
    """The value if it is small and plain JSON, otherwise a shortened text of it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 1 << 53:
        return int(value)  # an enum member is shown as its number
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and len(value) <= _LONGEST_VALUE:
        return value
    if isinstance(value, (list, tuple)) and len(value) <= 16:  # pyright: ignore[reportUnknownArgumentType] # any JSON
        items = [_presentable(item) for item in value]  # pyright: ignore[reportUnknownVariableType] # any JSON
        if len(str(items)) <= _LONGEST_VALUE:
            return items
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}... ({len(text)} characters)"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule.

    Attributes:
        code: stable name of the rule, for instance `strides-overlap`.
        path: keys and indices from the document's root to the field.
        message: a sentence: what is wrong and what to change.
        value: what was found there.
        expected: what would have been right.
        source: the document and section the rule comes from.
    """

    code: str
    path: tuple[str | int, ...]
    message: str
    value: object = None
    expected: str = ""
    source: str = ""

    def under(self, *prefix: str | int) -> Violation:
        """The same violation seen from further up the document."""
        return Violation(self.code, (*prefix, *self.path), self.message, self.value, self.expected, self.source)

    def to_json(self) -> dict[str, Any]:
        """The member of a problem's `violations`."""
        return {
            "code": self.code,
            "path": json_path(self.path),
            "message": self.message,
            "value": _presentable(self.value),
            "expected": self.expected,
            "source": self.source,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Violation:
        """Read what `to_json` wrote; the path stays one JSONPath text."""
        return cls(
            code=str(document.get("code", "")),
            path=(str(document.get("path", "$")),),
            message=str(document.get("message", "")),
            value=document.get("value"),
            expected=str(document.get("expected", "")),
            source=str(document.get("source", "")),
        )


@dataclass(eq=False)
class TensorpostError(Exception):
    """Base of every error this project raises.

    Attributes:
        detail: a sentence: what was wrong, what was expected, what to change.
        violations: the broken rules, where there are several or where one has a place in a document.
        extra: further members of the problem, such as `limit`, `actual` and `setting`.
        status: the HTTP status, on errors that came from a server.
        request_id: the server's `X-Request-ID`, on errors that came from a server.
    """

    code: ClassVar[str] = "error"
    title: ClassVar[str] = "Error"

    detail: str
    violations: tuple[Violation, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    status: int | None = None
    request_id: str | None = None

    def __str__(self) -> str:
        lines = [self.detail]
        if len(self.violations) > 1 or any(v.message not in self.detail for v in self.violations):
            lines += [f"  {self._at(v)}: {v.message}" for v in self.violations]
        return "\n".join(lines)

    @staticmethod
    def _at(violation: Violation) -> str:
        first = violation.path[0] if violation.path else None
        return first if isinstance(first, str) and first.startswith("$") else json_path(violation.path)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by their args; ours are fields.
        return (type(self), (self.detail, self.violations, self.extra, self.status, self.request_id))

    def to_problem(self, status: int | None = None) -> dict[str, Any]:
        """The RFC 9457 document. `status` is the server's; members of `extra` stand beside the standard ones."""
        problem: dict[str, Any] = {"type": PROBLEM_TYPE_PREFIX + self.code, "title": self.title}
        if status is not None:
            problem["status"] = status
        problem["detail"] = self.detail
        if self.violations:
            problem["violations"] = [v.to_json() for v in self.violations]
        return {**self.extra, **problem}


class InvalidRequest(TensorpostError, ValueError):
    """What was sent cannot be right; sending it again will not help."""

    code = "invalid-request"
    title = "The request is not valid"


class InvalidDescriptor(InvalidRequest):
    """A descriptor breaks rules of DirectML or ONNX; `violations` lists them all."""

    code = "invalid-descriptor"
    title = "The operator or tensor description breaks a rule"

    @classmethod
    def of(cls, violations: Sequence[Violation]) -> InvalidDescriptor:
        """Build the error from its violations; the first one speaks for all."""
        first = violations[0]
        others = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        return cls(f"{json_path(first.path)}: {first.message}{others}", tuple(violations))

    def under(self, *prefix: str | int) -> InvalidDescriptor:
        """The same error seen from further up the document."""
        return type(self).of([v.under(*prefix) for v in self.violations])


class UnsupportedAtLevel(InvalidDescriptor):
    """The descriptor is well formed, but DirectML does not accept it at this feature level."""

    code = "unsupported-at-feature-level"
    title = "Not supported at this DirectML feature level"


class UnknownOperator(InvalidRequest):
    """No operator of this name; `extra["nearest"]` names the one that looks most like it."""

    code = "unknown-operator"
    title = "There is no such operator"


class InvalidJson(InvalidRequest):
    """The text is not JSON, or is JSON that two readers could understand differently."""

    code = "invalid-json"
    title = "The JSON cannot be read"


class InvalidFrame(InvalidRequest):
    """The head of a frame or of an npy body is malformed, or contradicts itself."""

    code = "invalid-frame"
    title = "The tensor container cannot be read"


class InvalidParameter(InvalidRequest):
    """A query parameter, header or argument is unknown, missing or malformed."""

    code = "invalid-parameter"
    title = "A parameter is not valid"


class BodyMismatch(InvalidRequest):
    """The body is shorter or longer than the description says."""

    code = "body-length-mismatch"
    title = "The body's length contradicts its description"


class LengthRequired(InvalidRequest):
    """The request has a body but no Content-Length."""

    code = "length-required"
    title = "Content-Length is required"


class UnsupportedMediaType(InvalidRequest):
    """The Content-Type is none that this resource reads."""

    code = "unsupported-media-type"
    title = "This Content-Type is not read here"


class NotAcceptable(InvalidRequest):
    """The Accept header names nothing that this resource can write."""

    code = "not-acceptable"
    title = "None of the accepted media types can be written"


class NotFound(InvalidRequest):
    """There is nothing at this path."""

    code = "not-found"
    title = "There is nothing at this path"


class MethodNotAllowed(InvalidRequest):
    """The path exists, but not with this method."""

    code = "method-not-allowed"
    title = "This method is not allowed here"


class LimitExceeded(InvalidRequest):
    """Larger than a setting allows. `extra` holds `limit`, `actual` and `setting`."""

    code = "limit-exceeded"
    title = "Larger than this server allows"

    @classmethod
    def of(cls, what: str, actual: int, limit: int, setting: str, unit: str = "bytes") -> LimitExceeded:
        """Name the limit, the actual value and the setting that an operator would raise."""
        return cls(
            f"{what} is {actual:,} {unit}; this server allows {limit:,} (setting {setting})",
            extra={"limit": limit, "actual": actual, "setting": setting, "unit": unit},
        )


class Unavailable(TensorpostError):
    """The request is right, but cannot be served here or now."""

    code = "unavailable"
    title = "Not available here or now"


class TooBusy(Unavailable):
    """Every byte of the memory budget is lent out. `extra["retry_after_seconds"]` says when to try again."""

    code = "too-busy"
    title = "Too busy"


class NotReady(Unavailable):
    """The server is starting or draining."""

    code = "not-ready"
    title = "Starting or draining"


class NoBackend(Unavailable):
    """No device here can run the request; `extra["refused"]` has each device's reason."""

    code = "no-backend"
    title = "No device here can run this"


class ReceiveTimeout(Unavailable):
    """The body stopped arriving before it was complete."""

    code = "receive-timeout"
    title = "The body stopped arriving"


class ServerFault(TensorpostError):
    """The server failed; the fault is not in the request."""

    code = "internal-error"
    title = "The server failed"


class ConnectionProblem(TensorpostError, ConnectionError):
    """The SDK got no whole answer. Raised on the client only."""

    code = "connection-problem"
    title = "No whole answer"


class ConnectFailed(ConnectionProblem):
    """No connection to the server could be made."""

    code = "connect-failed"
    title = "No server there"


class RequestTimeout(ConnectionProblem, TimeoutError):
    """The server did not answer, or stopped answering, within the timeout."""

    code = "request-timeout"
    title = "The server took too long"


class IncompleteBody(ConnectionProblem):
    """The answer broke off after its first byte. `extra` holds `received` and `expected` in bytes."""

    code = "incomplete-body"
    title = "The answer broke off"


def problem_classes() -> Mapping[str, type[TensorpostError]]:
    """Every class by its code, the abstract ones included."""
    found: dict[str, type[TensorpostError]] = {}
    todo: list[type[TensorpostError]] = [TensorpostError]
    while todo:
        cls = todo.pop()
        found[cls.code] = cls
        todo.extend(cls.__subclasses__())
    return found


def from_problem(document: Mapping[str, Any], status: int, request_id: str | None = None) -> TensorpostError:
    """The exception that a problem document describes.

    A `type` this version does not know becomes `InvalidRequest` (4xx), `Unavailable` (429, 503) or `ServerFault`.
    """
    code = str(document.get("type", "")).removeprefix(PROBLEM_TYPE_PREFIX)
    cls = problem_classes().get(code)
    if cls is None or cls is TensorpostError:
        cls = Unavailable if status in (429, 503) else InvalidRequest if status < 500 else ServerFault
    violations: list[Any] = document["violations"] if isinstance(document.get("violations"), list) else []
    standard = {"type", "title", "status", "detail", "violations"}
    return cls(
        detail=str(document.get("detail") or document.get("title") or f"HTTP status {status}"),
        violations=tuple(Violation.from_json(v) for v in violations if isinstance(v, Mapping)),
        extra={key: value for key, value in document.items() if key not in standard},
        status=status,
        request_id=request_id,
    )
