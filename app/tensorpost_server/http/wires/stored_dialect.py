"""The dialect of stored graphs: `POST /v1/graphs/{name}`, whose body has nothing but tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from numpy.typing import NDArray

from tensorpost.descriptors import NEWEST
from tensorpost.values.problems import InvalidParameter, TensorMismatch

from ..calls.call import AnnouncedTensor
from ..declared_pictures import DeclaredInputs
from .call_parser import CallInput, ParsedCall, layouts_of, match_names, refuse_unknown, take_options
from .graph_store import StoreEntry

_OPTIONS = ("backend", "device", "feature_level")
_PARAMETERS = ("outputs", *_OPTIONS)


@dataclass(frozen=True, slots=True)
class StoredDialect:
    """The dialect of calls of a stored graph; equal for calls of the same one. See `Dialect`.

    Attributes:
        stored: the graph.
        most_nodes: nodes that a graph may have.
        version: the version in the query, by which the graph was found; None if there is none.
    """

    stored: StoreEntry
    most_nodes: int
    version: str | None = None

    def __call__(self, name: str) -> StoredParser:
        return StoredParser(self)


class StoredParser:
    """See `CallParser`."""

    document_name = "graph"

    def __init__(self, dialect: StoredDialect) -> None:
        self._source, self._most_nodes = dialect.stored.source, dialect.most_nodes
        self._known = ("outputs", *_OPTIONS) if dialect.version is None else ("outputs", "version", *_OPTIONS)
        self._name, self._batches = dialect.stored.name, dialect.stored.batches
        self._batched = dialect.stored.input_names
        self.inputs: Sequence[CallInput] = self._source.call_inputs
        self.value_names = self._source.value_names
        self.of_model = self._source.kind == "onnx"

    def has_input(self, name: str) -> bool:
        return name not in self._known

    def declared(self, document: Mapping[str, Any] | None) -> DeclaredInputs:
        """See `CallParser.declared`."""
        return {tensor.name: tensor for tensor in self._source.inputs}

    def parse(
        self, parameters: Mapping[str, object], tensors: Sequence[AnnouncedTensor],
        document: Mapping[str, Any] | None, values: Mapping[str, Any],
    ) -> ParsedCall:  # fmt: skip
        """Parse a call.

        Raises:
            InvalidParameter: a parameter that is unknown; a graph is sent, too.
            InvalidDescriptor, UnknownOperator: the graph breaks rules for these tensors.
            TensorMismatch: a tensor that the graph has not, a missing one, or one of strings.
        """
        refuse_unknown(parameters, self._known)
        options = take_options({**parameters}, _OPTIONS)
        if document is not None:
            raise InvalidParameter(
                f"the graph {self._name!r} is stored, and the body has a graph too; send only tensors"
            )
        required = [each.name for each in self.inputs if not each.optional]
        for tensor in tensors:
            if tensor.name in self._source.constants:
                takes = ", ".join(map(repr, required)) or "none"
                raise TensorMismatch(
                    f"{tensor.name[:60]!r} is a constant of the graph {self._name!r}, which is stored with it; send "
                    f"only its inputs: {takes}"
                )
        match_names(
            tensors, required, [each.name for each in self.inputs if each.optional], what=f"the graph {self._name!r}"
        )
        if self._batches is not None:
            self._check_rows(tensors, self._batches.max_batch_size)
        sent = layouts_of(tensors)
        outputs = parameters.get("outputs")
        wanted = None if outputs is None else str(outputs).split(",")
        elements = cast("Mapping[str, NDArray[Any]]", values)
        level = options.feature_level or NEWEST
        graph, rest = self._source.first_graph(sent, elements, wanted, level, self._most_nodes)
        return ParsedCall(graph, options, rest)

    def _check_rows(self, tensors: Sequence[AnnouncedTensor], most: int) -> None:
        for tensor in tensors:
            if tensor.name in self._batched and tensor.shape and tensor.shape[0] > most:
                raise TensorMismatch(
                    f"the graph {self._name!r} takes at most {most:,} rows in a call (max_batch_size), and "
                    f"{tensor.name!r} has {tensor.shape[0]:,}"
                )
