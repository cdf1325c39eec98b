"""`CallParser`: what a call of one operator means in a dialect (DirectML, ONNX); and what the dialects share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from starlette.datastructures import QueryParams

from tensorpost.bodies.strict_json import read_json
from tensorpost.descriptors import FeatureLevel
from tensorpost.values.graph import Graph
from tensorpost.values.layout import Layout
from tensorpost.values.problems import (
    InvalidDescriptor,
    InvalidJson,
    InvalidParameter,
    TensorMismatch,
    json_path,
    nearest,
)
from tensorpost.values.sentences import references_of

from ..calls.call import AnnouncedTensor, RunOptions
from ..declared_pictures import DeclaredInputs
from .staged_calls import RestOfModel

MOST_JSON_CONTAINERS = 16_384
"""Arrays and objects in a JSON body. A thousand tensors have 3 each; the rest is for data that nests like its shape."""

MOST_ITEMS = 256
"""Entries of one array in the query. A tensor has 8 dimensions at most; the rest is room for mistakes to be named."""

_MOST_OPTIONAL = 3  # names of tensors that may be sent, in a message
_MOST_PARAMETERS = 64  # in a query; an operator has at most 30 attributes


class CallInput(NamedTuple):
    """An input of an operator, as its calls name it.

    Attributes:
        name: the name of its tensor; of an array, what the names of its tensors begin with.
        optional: whether it may be left out.
        is_array: whether it is any number of tensors.
        is_value: whether its elements are part of the operation.
    """

    name: str
    optional: bool
    is_array: bool
    is_value: bool = False


class ParsedCall(NamedTuple):
    """What a call means.

    Attributes:
        graph: what is computed; of a call with a rest, its first part.
        options: how to run it.
        rest: what follows with the results of the first part; None if there is nothing.
    """

    graph: Graph
    options: RunOptions
    rest: RestOfModel | None = None


class CallParser(Protocol):
    """Parses calls of one operator in one dialect, or of graphs."""

    @property
    def document_name(self) -> str:
        """The member of a frame's metadata, or of a JSON body, that holds the document: `op`, `graph`."""
        ...

    @property
    def inputs(self) -> Sequence[CallInput]:
        """The operator's inputs, in its order."""
        ...

    @property
    def value_names(self) -> frozenset[str]:
        """Names of tensors whose elements, not only their shapes, decide what is computed."""
        ...

    def has_input(self, name: str) -> bool:
        """Whether a parameter of this name that refers to a held tensor is an input.

        True too if it is neither an input nor anything else: whatever parses the call then names the inputs that exist.
        """
        ...

    def declared(self, document: Mapping[str, Any] | None) -> DeclaredInputs:
        """What a graph or a model declares of its inputs; nothing of an operator.

        Args:
            document: the document of the body, if there is one.
        """
        ...

    def parse(
        self, parameters: Mapping[str, object], tensors: Sequence[AnnouncedTensor],
        document: Mapping[str, Any] | None, values: Mapping[str, Any],
    ) -> ParsedCall:  # fmt: skip
        """Parse a call into a valid graph, of one node or of several, and how to run it.

        Args:
            parameters: attributes and options by name: texts as a query has them, or values.
            tensors: what the body announces, in the order of its bytes.
            document: the operation's document, if there is one.
            values: the elements of the tensors in `value_names`, as arrays.

        Raises:
            InvalidRequest: any of them is malformed, or they contradict each other.
        """
        ...


Dialect = Callable[[str], CallParser]
"""Maps an operator's name in the path to its parser; raises UnknownOperator. Each dialect has a path of its own."""


def read_query(query: str) -> dict[str, str]:
    """The parameters of a query string, undecoded.

    Raises:
        InvalidParameter: there are too many, or one is sent twice.
    """
    count = query.count("&") + 1
    if count > _MOST_PARAMETERS:
        raise InvalidParameter(f"the query has {count:,} parameters; at most {_MOST_PARAMETERS} are read here")
    sent: dict[str, str] = {}
    for name, text in QueryParams(query).multi_items():
        if name in sent:
            raise InvalidParameter(
                f"query parameter {name[:60]!r} is sent twice; separate several values by commas",
                extra={"parameter": name[:60]},
            )
        sent[name] = text
    return sent


def has_parameter(query: str, name: str) -> bool:
    """Whether a query string has a parameter, in whatever way its name is encoded.

    Args:
        query: the query string, undecoded.
        name: name of the parameter, letters.
    """
    if "%" not in query:
        return name in query and any(part.partition("=")[0] == name for part in query.split("&"))
    return any(each == name for each, _ in QueryParams(query).multi_items())


def refuse_unknown(sent: Mapping[str, object], known: Sequence[str]) -> None:
    """Refuse parameters that there are not.

    Raises:
        InvalidParameter: one is unknown; the message has the nearest name, or all of them.
    """
    for name in sent:
        if name not in known:
            guess = nearest(name, known)
            hint = f"did you mean {guess!r}?" if guess else f"there are {', '.join(known)}"
            raise InvalidParameter(f"there is no query parameter {name[:60]!r}; {hint}", extra={"parameter": name[:60]})


def take_options(sent: dict[str, object], names: Sequence[str]) -> RunOptions:
    """Take the options out of the parameters.

    Raises:
        InvalidParameter: an option has a value that it cannot have.
    """
    options = {name: str(sent.pop(name)) for name in names if name in sent}
    device, level = options.get("device"), options.get("feature_level")
    if device is not None:
        query_number("device", device, "is not the number of a device; /v1/devices lists them, counted from 0")
    return RunOptions(
        options.get("backend"),
        None if device is None else int(device),
        None if level is None else FeatureLevel.parse(level),
    )


def query_number(name: str, text: str, refusal: str) -> int:
    """A query parameter of at most four decimal digits.

    Raises:
        InvalidParameter: it is something else; `refusal` is the rest of the sentence.
    """
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise InvalidParameter(f"{name} {text[:40]!r} {refusal}", extra={"parameter": name})
    return int(text)


def refuse_repeated(parameters: Mapping[str, object]) -> None:
    """Refuse attributes beside a document.

    Raises:
        InvalidParameter: there are any.
    """
    if parameters:
        names = ", ".join(sorted(parameters))
        raise InvalidParameter(f"the operator document is sent, so the query must not repeat it: remove {names}")


def read_document(text: str | None, name: str = "op") -> Mapping[str, Any] | None:
    """Read the document in the head of a frame; None if there is none.

    Args:
        text: the document's text.
        name: the member that holds it.

    Raises:
        InvalidJson: it is not JSON, or no object.
    """
    if text is None:
        return None
    try:
        document = read_json(text.encode(), max_containers=MOST_JSON_CONTAINERS)
    except InvalidJson as error:
        raise InvalidJson(f"{json_path((name,))}: {error.detail}") from None
    return as_document(document, name)


def as_document(document: object, name: str = "op") -> Mapping[str, Any]:
    """The value as a document.

    Raises:
        InvalidJson: it is no object.
    """
    if not isinstance(document, Mapping):
        raise InvalidJson(f"$.{name} must be a JSON object, not {type(document).__name__}")
    return cast("Mapping[str, Any]", document)


def match_names(
    tensors: Sequence[AnnouncedTensor],
    required: Sequence[str],
    optional: Sequence[str] = (),
    *,
    more: str = "",
    what: str = "the operator",
) -> None:
    """Compare the names of the body's tensors with those that the operation takes.

    Args:
        tensors: what the body announces.
        required: names that must be there.
        optional: names that may be there.
        what: what takes them, for the message.
        more: the first of any number of names that could follow, for the message.

    Raises:
        TensorMismatch: one is missing, or unknown.
    """
    names = [tensor.name for tensor in tensors]
    if not {*required} <= {*names} <= {*required, *optional}:
        sent = ", ".join(repr(name[:60]) for name in names[:8]) or "none"
        sent += f" and {len(names) - 8} more" if len(names) > 8 else ""
        may = f" and may have {_some(optional)}" if optional else ""
        takes = ", ".join(map(repr, required)) + (f", {more!r}, ..." if more else "")
        raise TensorMismatch(f"{what} takes the tensors {takes}{may}; the body has {sent}")


def _some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _MOST_OPTIONAL} more" if len(names) > _MOST_OPTIONAL else ""
    return ", ".join(map(repr, names[:_MOST_OPTIONAL])) + more


def layouts_of(tensors: Sequence[AnnouncedTensor]) -> dict[str, Layout]:
    """The types and sizes of the tensors that a graph is given, by name.

    Raises:
        TensorMismatch: one holds strings.
    """
    for tensor in tensors:
        if not tensor.data_type.item_size:
            raise TensorMismatch(f"tensor {tensor.name!r} holds strings, which graphs do not compute")
    return {tensor.name: Layout.row_major(tensor.data_type, tensor.shape) for tensor in tensors}


def npy_tensor(inputs: Sequence[CallInput], *, empty: bool) -> str | None:
    """The name of the tensor in an npy body: the only one that is required, or the only one there is.

    None if the body must be empty: the operator takes no tensor, or an optional one is left out.

    Raises:
        TensorMismatch: the operator requires several tensors.
    """
    tensors = [each for each in inputs if not each.is_value]
    required = [each for each in tensors if not each.optional]
    if not required and (empty or not tensors):
        return None
    only = required or tensors
    if len(only) == 1 and not only[0].is_array:
        return only[0].name
    names = [each.name + (f"_0, {each.name}_1, ..." if each.is_array else "") for each in tensors]
    raise TensorMismatch(
        f"this body holds one tensor, and {', '.join(names)} are taken; several travel as npz, as a frame, which is a "
        "safetensors file, or as JSON"
    )


def is_input(inputs: Sequence[CallInput], name: str) -> bool:
    """Whether a name is that of an input, or of a tensor of an input that is an array."""
    begin, _, number = name.rpartition("_")
    is_numbered = number.isascii() and number.isdigit()
    return any(each.name == (begin if each.is_array and is_numbered else name) for each in inputs)


def numbered_names(inputs: Sequence[CallInput], count: int) -> list[str]:
    """The names of `count` tensors: each input's own, and numbered names for an input that is an array."""
    names: list[str] = []
    for each in inputs:
        names += [f"{each.name}_{index}" for index in range(count - len(names))] if each.is_array else [each.name]
    return names[:count]


def led_by_parameter(error: InvalidDescriptor, names: Mapping[str, str]) -> InvalidDescriptor:
    """The error with a detail that names the query's parameter instead of the place in a document.

    Args:
        error: its violations have paths of a document, a field or an attribute second.
        names: the parameter of each of those.
    """
    first, count = error.violations[0], len(error.violations)
    field = str(first.path[1]) if len(first.path) > 1 else ""
    name = names.get(field)
    if name is None:
        return error
    is_named = any(reference.name == field for reference in references_of(first.message))
    lead = "" if is_named else f"parameter {name}{json_path(first.path[2:])[1:]}: "
    return type(error)(f"{lead}{first.message}" + (f" (and {count - 1} more)" if count > 1 else ""), error.violations)
