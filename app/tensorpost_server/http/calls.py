"""A call, understood: what a dialect (DirectML, ONNX) makes of a path, a query, announced tensors and a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from starlette.datastructures import QueryParams

from tensorpost.datatypes import DataType
from tensorpost.descriptors import FeatureLevel, OperatorDesc
from tensorpost.onnx import OnnxNode
from tensorpost.problems import InvalidFrame, InvalidJson, InvalidParameter, json_path, nearest
from tensorpost.strict_json import read_json

__all__ = ["Call", "Dialect", "Options", "Tensor", "match_names", "read_document", "read_options"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a body announces it."""

    name: str
    data_type: DataType
    shape: tuple[int, ...]
    size_in_bytes: int


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller chooses besides the operator.

    Attributes:
        backend: `auto` or a backend's name; None for the server's default.
        device: which of the backend's devices; None for any.
        feature_level: DirectML level to validate at; None for the newest.
    """

    backend: str | None = None
    device: int | None = None
    feature_level: FeatureLevel | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """Nothing of it has been computed, and no tensor of `tensors` that is worked on has been read.

    Attributes:
        subject: the operator with its attributes.
        document: its canonical document as JSON text.
        options: backend and feature level.
    """

    subject: OperatorDesc | OnnxNode
    document: str
    options: Options


class Dialect(Protocol):
    """How one of the languages is read. The door to it is a path of its own."""

    def check_name(self, name: str) -> None:
        """Refuse an unknown operator before anything else is read."""
        ...

    def lone_tensor(self, name: str) -> str:
        """The name that the one tensor of an npy body has."""
        ...

    def value_names(self, name: str) -> frozenset[str]:
        """Tensors whose elements, not only shapes, are needed to know what will be computed."""
        ...

    def understand(
        self, name: str, query: str, tensors: Sequence[Tensor], document: str | None, values: Mapping[str, Any]
    ) -> Call:
        """Make sense of a call.

        Args:
            name: the operator's name in the path.
            query: the query string, undecoded.
            tensors: what the body announces, in the order of its bytes.
            document: the operation's JSON text, if the body has one.
            values: the elements of the tensors in `value_names`, as arrays.
        """
        ...


def read_options(query: str, known: Sequence[str], options: Sequence[str]) -> tuple[dict[str, str], Options]:
    """Split a query into the dialect's own parameters and the options.

    Args:
        query: the query string, undecoded.
        known: the dialect's parameters; empty means that the dialect judges them itself.
        options: which of `backend`, `device` and `feature_level` there are.

    Raises:
        InvalidParameter: a parameter that is unknown, sent twice, or an option with a value that it cannot have.
    """
    given: dict[str, str] = {}
    for name, text in QueryParams(query).multi_items():
        if known and name not in known and name not in options:
            guess = nearest(name, [*known, *options])
            hint = f"did you mean {guess!r}?" if guess else f"there are {', '.join([*known, *options])}"
            raise InvalidParameter(f"there is no query parameter {name[:60]!r}; {hint}", extra={"parameter": name[:60]})
        if name in given:
            raise InvalidParameter(
                f"query parameter {name[:60]!r} is sent twice; separate several values by commas",
                extra={"parameter": name[:60]},
            )
        given[name] = text
    level = given.pop("feature_level", None) if "feature_level" in options else None
    backend = given.pop("backend", None)
    device = given.pop("device", None) if "device" in options else None
    return given, Options(backend, _device(device), FeatureLevel.parse(level) if level is not None else None)


def _device(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise InvalidParameter(
            f"device {text[:40]!r} is no number of a device; they are counted from 0, and /v1/devices lists them",
            extra={"parameter": "device"},
        )
    return int(text)


def read_document(text: str | None, doubled: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Parse a document's text; None if there is none.

    Raises:
        InvalidJson: it is not JSON, or no object.
        InvalidParameter: the query says the same things (`doubled`) as well.
    """
    if text is None:
        return None
    if doubled:
        names = ", ".join(sorted(doubled))
        raise InvalidParameter(f"the operator document is sent, so the query must not repeat it: remove {names}")
    try:
        document = read_json(text.encode())
    except InvalidJson as error:
        raise InvalidJson(f"{json_path(('op',))}: {error.detail}") from None
    if not isinstance(document, Mapping):
        raise InvalidJson(f"$.op must be a JSON object, not {type(document).__name__}")
    return cast("Mapping[str, Any]", document)


def match_names(tensors: Sequence[Tensor], required: Sequence[str], optional: Sequence[str] = ()) -> None:
    """The body's tensors must be the operation's.

    Raises:
        InvalidFrame: one is missing, or unknown.
    """
    names = [tensor.name for tensor in tensors]
    if any(name not in (*required, *optional) for name in names) or any(name not in names for name in required):
        said = ", ".join(repr(name[:60]) for name in names[:8]) or "none"
        said += f" and {len(names) - 8} more" if len(names) > 8 else ""
        may = f" and may have {', '.join(map(repr, optional))}" if optional else ""
        raise InvalidFrame(f"the operator takes the tensors {', '.join(map(repr, required))}{may}; the body has {said}")
