"""Every error that can be reported, and its JSON form (RFC 9457, `application/problem+json`).

The tree::

    TensorpostError
    |-- InvalidRequest (also a ValueError)   the request is wrong; sending it again will not help
    |   |-- InvalidDescriptor                a rule of DirectML or ONNX is broken; every violation is listed
    |   |   `-- UnsupportedAtLevel           legal, but not at the feature level asked for
    |   |-- LibraryFailed                    a library ended its process, or needs too much, on this node
    |   |-- UnknownOperator                  no operator of that name
    |   |-- InvalidJson                      not JSON, or JSON with duplicate keys, NaN or too deep nesting
    |   |-- InvalidFrame                     a head that contradicts its buffers, or cannot be read; a broken npy header
    |   |-- InvalidParameter                 a query parameter or header that is unknown or malformed
    |   |-- TensorMismatch                   other tensors than the operation takes: names, number, types or shapes
    |   |-- BodyMismatch                     the body is shorter or longer than its head says
    |   |-- CallChanged                      the rest of an answer was requested, and the call has changed
    |   |-- LengthRequired                   no body: neither Content-Length nor chunked
    |   |-- UnsupportedMediaType             a Content-Type we do not read
    |   |-- NotAcceptable                    an Accept we cannot write
    |   |-- Unauthenticated                  no API key, or none that is valid
    |   |-- Forbidden                        a valid API key that does not allow this
    |   |-- NotFound                         no such path
    |   |   |-- RegionNotFound               no shared memory region of that name
    |   |   |-- GraphNotFound                no stored graph of that name
    |   |   `-- TensorNotFound               no held tensor of that name
    |   |       `-- TensorGone               there was one, and the server has freed or lost it
    |   |-- TensorExists                     a held tensor has that name already
    |   |-- MethodNotAllowed                 the path exists, the method does not
    |   `-- LimitExceeded                    larger than a named setting allows
    |-- Unavailable                          the request is right, but cannot be served here or now
    |   |-- InsufficientStorage              no room for what is to stay on the server
    |   |-- TooBusy                          all requests, connections or memory are in use; try again
    |   |-- QuotaExceeded                    the API key has used up its requests or bytes; try again
    |   |-- NotReady                         starting or draining
    |   |-- NoBackend                        no device here can run it, with each device's reason
    |   |-- LibraryUnavailable               a library's process was ended or cannot start; try again
    |   |-- OutOfDeviceMemory                no room on the device now, even in small slices; try again
    |   |-- DeviceLost                       the device failed permanently; the server's process ends
    |   |-- ReceiveTimeout                   the body stopped arriving, or came too slowly while others waited
    |   `-- DeadlineExceeded                 the caller's time ended before the answer began
    |-- ServerFault                          an error of the server, or of a device
    `-- ConnectionProblem                    the SDK got no complete response
        |-- ConnectFailed                    no connection to the server
        |-- RequestTimeout                   the server took longer than the timeout
        `-- IncompleteBody                   the response ended after its first byte

Each class has one `code`; on the wire it is `type`, as `urn:tensorpost:problem:<code>`. The codes are stable.
A status belongs to HTTP, so the table from class to status is the server's (`tensorpost_server.http.error_responses`).
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, ClassVar, cast

__all__ = [
    "BodyMismatch",
    "CallChanged",
    "ConnectFailed",
    "ConnectionProblem",
    "DeadlineExceeded",
    "DeviceLost",
    "Forbidden",
    "GraphNotFound",
    "IncompleteBody",
    "InsufficientStorage",
    "InvalidDescriptor",
    "InvalidFrame",
    "InvalidJson",
    "InvalidParameter",
    "InvalidRequest",
    "LengthRequired",
    "LibraryFailed",
    "LibraryUnavailable",
    "LimitExceeded",
    "MethodNotAllowed",
    "NoBackend",
    "NotAcceptable",
    "NotFound",
    "NotReady",
    "OutOfDeviceMemory",
    "QuotaExceeded",
    "ReceiveTimeout",
    "RegionNotFound",
    "RequestTimeout",
    "ServerFault",
    "TensorExists",
    "TensorGone",
    "TensorMismatch",
    "TensorNotFound",
    "TensorpostError",
    "TooBusy",
    "Unauthenticated",
    "Unavailable",
    "UnknownOperator",
    "UnsupportedAtLevel",
    "UnsupportedMediaType",
    "Violation",
    "from_problem",
    "json_path",
    "nearest",
    "presentable",
    "problem_classes",
]

PROBLEM_TYPE_PREFIX = "urn:tensorpost:problem:"
_LONGEST_VALUE = 200  # characters; an offending value is echoed to be recognised, not to be returned whole
_LONGEST_KEY = 100  # characters of a key in a path, for the same reason
_MOST_ENTRIES = 16  # of an array or object that is echoed
_DEEPEST_VALUE = 3  # nested arrays and objects of one that is echoed
_MOST_BITS = 256  # of an integer that is echoed in decimal
_FEWEST_LETTERS = 3  # of the beginning of a word
_ALIKE_PARTS = 0.75  # similarity of a part of a word: short words are alike by chance
_CUT = object()


def json_path(path: Iterable[str | int]) -> str:
    """Write a path of keys and indices as JSONPath (RFC 9535), for instance `$.desc.InputTensor.Sizes[2]`.

    Keys that are not plain names stand in brackets, escaped; a key of more than 100 characters is cut.
    """
    text = "$"
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier() and len(step) <= _LONGEST_KEY:
            text += f".{step}"
        else:
            key = step if len(step) <= _LONGEST_KEY else step[:_LONGEST_KEY] + "..."
            quoted = json.dumps(key, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("'", "\\'")
            text += f"['{_encodable(quoted)}']"
    return text


def nearest(word: str, known: Iterable[str], *, alike: float = 0.6) -> str | None:
    """The known word that is meant most likely, or None if none is near.

    Its plural (`scale`: scales); then the one of the same words (`PaddingStart`: StartPadding); then of those of which
    it is a whole part the shortest, one that ends with it first (`add`: ELEMENT_WISE_ADD); then of those that begin
    with it the first of the shortest (`float`: FLOAT32); then the one that looks most like it; then the shortest of
    those with a part that looks like it (`cilp`: ELEMENT_WISE_CLIP).

    Args:
        word: what was written.
        known: the words that there are.
        alike: the least similarity of a word that only looks like it, 0 to 1 (`difflib.SequenceMatcher.ratio`).
    """
    by_upper = {k.upper(): k for k in known}
    upper = word[:100].upper()
    plural = [k for k in by_upper if k == f"{upper}S"]
    whole = [k for k in by_upper if upper in k.split("_")]
    begun = [k for k in by_upper if k.startswith(upper)] if len(upper) >= _FEWEST_LETTERS else []
    whole.sort(key=lambda k: (not k.endswith(upper), len(k)))
    begun.sort(key=len)
    words = _words(word[:100])
    same = [k for k, shown in by_upper.items() if len(words) > 1 and _words(shown) == words]
    matches = plural or same or whole or begun or difflib.get_close_matches(upper, by_upper, n=1, cutoff=alike)
    if not matches and len(upper) > _FEWEST_LETTERS:
        parts = difflib.get_close_matches(
            upper, dict.fromkeys(part for k in by_upper for part in k.split("_")), n=1, cutoff=max(alike, _ALIKE_PARTS)
        )
        matches = [k for k in by_upper if parts and parts[0] in k.split("_")]
        matches.sort(key=lambda k: (not k.endswith(parts[0]), len(k)))
    return by_upper[matches[0]] if matches else None


def _words(name: str) -> list[str]:
    """The words of a name in capitals or with underscores, sorted."""
    return sorted(re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name).upper().split("_"))


def counted(count: int, noun: str) -> str:
    """A number with its noun: `1 input`, `1,000 inputs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def entry_count(count: int) -> str:
    """`1 entry`, `2 entries`."""
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def presentable(value: object) -> object:
    """The value itself if it is small and plain JSON, otherwise a short text of it.

    The work does not grow with the value: values come from outside, and may be huge, deep or not UTF-8.
    """
    whole: Any = _whole(value, _DEEPEST_VALUE)
    if whole is not _CUT and (not isinstance(whole, (list, dict)) or len(str(cast("object", whole))) <= _LONGEST_VALUE):
        return cast("object", whole)
    text = _text(value, _DEEPEST_VALUE)
    if isinstance(value, (str, bytes, bytearray)):
        size = f"{len(value)} {'characters' if isinstance(value, str) else 'bytes'}"
    elif isinstance(value, (list, tuple, Mapping)):
        size = f"{len(value)} entries"  # pyright: ignore[reportUnknownArgumentType] # any JSON
    else:
        size = f"{len(text)} characters"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}... ({size})"


def _whole(value: object, depth: int) -> object:
    """The value as plain JSON, or `_CUT` if it is none or is large."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 1 << 53:
        return int(value)  # an enum member is shown as its number
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, str) and len(value) <= _LONGEST_VALUE:
        return _encodable(value)
    if depth and isinstance(value, (list, tuple)):
        entries = cast("Sequence[object]", value)
        if len(entries) <= _MOST_ENTRIES:
            items = [_whole(entry, depth - 1) for entry in entries]
            return _CUT if any(item is _CUT for item in items) else items
    if depth and isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value)
        if len(members) <= _MOST_ENTRIES and all(isinstance(k, str) and len(k) <= _LONGEST_KEY for k in members):
            shown = {_encodable(str(key)): _whole(member, depth - 1) for key, member in members.items()}
            return _CUT if any(member is _CUT for member in shown.values()) else shown
    return _CUT


def _text(value: object, depth: int) -> str:
    """A text of the value, longer than `_LONGEST_VALUE` only by a bounded amount."""
    if isinstance(value, (str, bytes, bytearray)):
        text = value[: _LONGEST_VALUE + 1]
        return _encodable(text if depth == _DEEPEST_VALUE and isinstance(text, str) else repr(text))
    if isinstance(value, int) and not isinstance(value, bool):
        # Python refuses to write integers of more than 4300 digits in decimal.
        return str(int(value)) if value.bit_length() <= _MOST_BITS else f"an integer of {value.bit_length()} bits"
    if isinstance(value, (list, tuple)):
        entries = cast("Sequence[object]", value)
        if not depth:
            return f"[{len(entries)} entries]"
        texts = [_text(entry, depth - 1) for entry in entries[:_MOST_ENTRIES]]
        return "[" + ", ".join(texts) + (", ..." if len(entries) > _MOST_ENTRIES else "") + "]"
    if isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value)
        if not depth:
            return f"{{{len(members)} members}}"
        pairs = [f"{_text(k, 0)}: {_text(v, depth - 1)}" for k, v in islice(members.items(), _MOST_ENTRIES)]
        return "{" + ", ".join(pairs) + (", ..." if len(members) > _MOST_ENTRIES else "") + "}"
    try:
        return _encodable(repr(value)[: _LONGEST_VALUE + 1])
    except Exception:  # noqa: BLE001 # a foreign __repr__ may raise anything, and another error is being reported here
        return f"<{type(value).__name__}>"


def _encodable(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot carry, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


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
        members: members of a missing tensor that do not follow from the rest, `DataType`, `Sizes` or both. Not sent.
    """

    code: str
    path: tuple[str | int, ...]
    message: str
    value: object = None
    expected: str = ""
    source: str = ""
    members: tuple[str, ...] = ()

    def prefixed(self, *prefix: str | int) -> Violation:
        """The same violation seen from further up the document."""
        return replace(self, path=(*prefix, *self.path))

    @property
    def where(self) -> str:
        """The path as JSONPath, whether it was found here or read from a server's answer."""
        first = self.path[0] if len(self.path) == 1 else None
        if isinstance(first, str) and (first == "$" or first.startswith(("$.", "$["))):
            return first
        return json_path(self.path)

    def to_json(self) -> dict[str, Any]:
        """The member of a problem's `violations`."""
        return {
            "code": self.code,
            "path": self.where,
            "message": self.message,
            "value": presentable(self.value),
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
        lines = [f"  {v.where}: {v.message}" for v in self.violations]
        if lines and lines[0].strip() in self.detail:
            del lines[0]  # the detail mostly is the first violation
        return "\n".join([self.detail, *lines])

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
        return problem | {key: value for key, value in self.extra.items() if key not in problem}


class InvalidRequest(TensorpostError, ValueError):
    """The request is wrong; the same request would be refused again."""

    code = "invalid-request"
    title = "The request is not valid"


class InvalidDescriptor(InvalidRequest):
    """A descriptor breaks rules of DirectML or ONNX; `violations` lists them."""

    code = "invalid-descriptor"
    title = "The operator or tensor description breaks a rule"

    @classmethod
    def of(cls, violations: Sequence[Violation]) -> InvalidDescriptor:
        """Build the error from its violations; the detail is the first one."""
        first = violations[0]
        others = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        return cls(f"{first.where}: " + first.message + others, tuple(violations))

    def prefixed(self, *prefix: str | int) -> InvalidDescriptor:
        """The same error with paths that start further up the document."""
        return type(self).of([v.prefixed(*prefix) for v in self.violations])


class UnsupportedAtLevel(InvalidDescriptor):
    """The descriptor is well formed, but DirectML does not accept it at this feature level."""

    code = "unsupported-at-feature-level"
    title = "Not supported at this DirectML feature level"


class LibraryFailed(InvalidRequest):
    """The library that computes the operator failed. `extra["reason"]`: `ended`, `memory`, `time` or `refused`."""

    code = "library-failed"
    title = "The library that computes this operator failed"


class UnknownOperator(InvalidRequest):
    """No operator of this name; `extra["nearest"]` names the most similar one."""

    code = "unknown-operator"
    title = "There is no such operator"


class InvalidJson(InvalidRequest):
    """The text is not JSON, or is JSON that two readers could understand differently."""

    code = "invalid-json"
    title = "The JSON cannot be read"


class InvalidFrame(InvalidRequest):
    """A frame, an npy or npz body or a picture is malformed, or contradicts itself."""

    code = "invalid-frame"
    title = "The tensor container cannot be read"


class TensorMismatch(InvalidRequest):
    """The body was read, but its tensors are not those that the operation takes: names, number, types or shapes."""

    code = "tensor-mismatch"
    title = "The body's tensors are not those that the operation takes"


class InvalidParameter(InvalidRequest):
    """A query parameter, header or argument is unknown, missing or malformed."""

    code = "invalid-parameter"
    title = "A parameter is not valid"


class BodyMismatch(InvalidRequest):
    """The body is shorter or longer than the description says."""

    code = "body-length-mismatch"
    title = "The body's length contradicts its description"


class CallChanged(InvalidRequest):
    """The rest of an answer was requested, but the call has changed. `extra["reason"]`: `call` or `backend`."""

    code = "call-changed"
    title = "The tag belongs to another call"


class LengthRequired(InvalidRequest):
    """The request has no body: it has neither Content-Length nor `Transfer-Encoding: chunked`."""

    code = "length-required"
    title = "The request has no body"


class UnsupportedMediaType(InvalidRequest):
    """This resource does not read the Content-Type."""

    code = "unsupported-media-type"
    title = "This resource does not read this Content-Type"


class NotAcceptable(InvalidRequest):
    """This resource can write none of the media types in Accept."""

    code = "not-acceptable"
    title = "None of the accepted media types can be written"


class Unauthenticated(InvalidRequest):
    """The request had no API key, or an invalid or expired one."""

    code = "unauthenticated"
    title = "A valid API key is required"

    SEND_KEY: ClassVar[str] = "send the header Authorization: Bearer KEY, or X-API-Key: KEY"
    """What a server advises; the SDK and the command line say what to do there instead."""


class Forbidden(InvalidRequest):
    """The API key is valid, but does not allow this."""

    code = "forbidden"
    title = "This API key does not allow this"


class NotFound(InvalidRequest):
    """There is nothing at this path."""

    code = "not-found"
    title = "There is nothing at this path"


class RegionNotFound(NotFound):
    """No shared memory region of this name is registered by this caller."""

    code = "region-not-found"
    title = "There is no such shared memory region"


class GraphNotFound(NotFound):
    """No stored graph of this name, or it was deleted, or not used for too long. `extra["nearest"]` names one."""

    code = "graph-not-found"
    title = "There is no such stored graph"


class TensorNotFound(NotFound):
    """No held tensor of this name. `extra["tensor"]` is the name, and `extra["nearest"]` one that there is."""

    code = "tensor-not-found"
    title = "There is no such held tensor"


class TensorGone(TensorNotFound):
    """The server has freed or lost this tensor. `extra["reason"]`: deleted, idle, expired, lost or restarted.

    Of an array that a Ray cluster holds, lost means that a node was, and with it chunks that nothing can make again.
    """

    code = "tensor-gone"
    title = "This held tensor is no longer there"


class TensorExists(InvalidRequest):
    """A held tensor has this name already, and the request did not ask to replace it."""

    code = "tensor-exists"
    title = "There is a held tensor of this name"


class MethodNotAllowed(InvalidRequest):
    """The path exists, but not with this method."""

    code = "method-not-allowed"
    title = "This method is not allowed here"


class LimitExceeded(InvalidRequest):
    """The request is larger than a setting allows. `extra` holds `limit`, `actual` and `setting`."""

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
    """The request is valid, but cannot be served by this server or at this time."""

    code = "unavailable"
    title = "Not available here or now"


class InsufficientStorage(Unavailable):
    """No room for a tensor that is to stay on the server. `extra` holds `limit`, `actual` and `setting`."""

    code = "insufficient-storage"
    title = "No room for what is to stay"


class TooBusy(Unavailable):
    """All requests, connections or memory, or the caller's share, are in use. Wait `extra["retry_after_seconds"]`."""

    code = "too-busy"
    title = "Too busy"


class QuotaExceeded(Unavailable):
    """The API key has used up its requests or bytes. `extra["retry_after_seconds"]` says when to try again."""

    code = "quota-exceeded"
    title = "The quota of this API key is used up"


class NotReady(Unavailable):
    """The server is starting or draining."""

    code = "not-ready"
    title = "Starting or draining"


class NoBackend(Unavailable):
    """No device here can run the request; `extra["refused"]` has each device's reason."""

    code = "no-backend"
    title = "No device here can run this"


class LibraryUnavailable(Unavailable):
    """The process of the library that computes the operator was killed or cannot start. Try again later."""

    code = "library-unavailable"
    title = "The library that computes this is not available now"


class OutOfDeviceMemory(Unavailable):
    """The device does not have enough free memory for this request now, even in small slices. Try again later."""

    code = "out-of-device-memory"
    title = "The device has no memory left"


class DeviceLost(Unavailable):
    """The device failed permanently in this process, which ends; its supervisor starts another one."""

    code = "device-lost"
    title = "The device was lost"


class ReceiveTimeout(Unavailable):
    """The body stopped arriving before it was complete, or was the slowest one when others needed its memory."""

    code = "receive-timeout"
    title = "The body stopped arriving"


class DeadlineExceeded(Unavailable, TimeoutError):
    """The caller's time (`Prefer: wait`, sent for `Timeout(total=...)`) ended before the answer began."""

    code = "deadline-exceeded"
    title = "Deadline exceeded"


class ServerFault(TensorpostError):
    """The server failed; the fault is not in the request."""

    code = "internal-error"
    title = "The server failed"


class ConnectionProblem(TensorpostError, ConnectionError):
    """The SDK got no complete response. Raised on the client only."""

    code = "connection-problem"
    title = "No complete response"


class ConnectFailed(ConnectionProblem):
    """No connection to the server could be made."""

    code = "connect-failed"
    title = "No connection to the server"


class RequestTimeout(ConnectionProblem, TimeoutError):
    """The server did not answer, or stopped answering, within the timeout."""

    code = "request-timeout"
    title = "The request timed out"


class IncompleteBody(ConnectionProblem):
    """The response ended after its first byte and before its last. `extra` holds `received` and `expected` in bytes."""

    code = "incomplete-body"
    title = "The response ended early"


def problem_classes() -> Mapping[str, type[TensorpostError]]:
    """Every class by its code, the abstract ones included."""
    classes: dict[str, type[TensorpostError]] = {}
    todo: list[type[TensorpostError]] = [TensorpostError]
    while todo:
        cls = todo.pop()
        classes.setdefault(cls.code, cls)  # a subclass without a code of its own does not stand in for its parent
        todo.extend(cls.__subclasses__())
    return classes


def from_problem(document: Mapping[str, Any], status: int, request_id: str | None = None) -> TensorpostError:
    """The exception that a problem document describes.

    A `type` this version does not know becomes `InvalidRequest` (4xx), `Unavailable` (429, 503) or `ServerFault`.
    """
    code = str(document.get("type", "")).removeprefix(PROBLEM_TYPE_PREFIX)
    cls = problem_classes().get(code)
    if cls is None or cls is TensorpostError:
        cls = Unavailable if status in (429, 503) else InvalidRequest if status < 500 else ServerFault
    listed: object = document.get("violations")
    violations = cast("list[object]", listed) if isinstance(listed, list) else []
    standard = {"type", "title", "status", "detail", "violations"}
    return cls(
        detail=str(document.get("detail") or document.get("title") or f"HTTP status {status}"),
        violations=tuple(
            Violation.from_json(cast("Mapping[str, Any]", v)) for v in violations if isinstance(v, Mapping)
        ),
        extra={key: value for key, value in document.items() if key not in standard},
        status=status,
        request_id=request_id,
    )
