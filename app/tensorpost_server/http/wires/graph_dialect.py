"""The dialect of graphs: `POST /v1/graphs`, with the graph in a frame's metadata, in JSON, or in the query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorpost.descriptors import NEWEST
from tensorpost.graphs.graph_document import input_names, read_graph
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter

from ..calls.call import AnnouncedTensor, RunOptions
from ..declared_pictures import DeclaredInputs
from .call_parser import CallInput, ParsedCall, layouts_of, read_document, read_query, refuse_unknown, take_options
from .graph_sources import declared_inputs

GRAPHS_PATH = "/v1/graphs"
MODELS_PATH = "/v1/onnx"
GRAPH_NAME = "graph"
"""What records call the operator of a graph."""

_OPTIONS = ("backend", "device", "feature_level")


@dataclass(frozen=True, slots=True)
class GraphDialect:
    """The dialect of a request whose graph may be in its query. See `Dialect`.

    Attributes:
        query: the query string, undecoded.
        most_nodes: nodes that a graph may have.
        of_model: whether an ONNX model is sent in the place of a graph.
    """

    query: str
    most_nodes: int
    of_model: bool = False

    def __call__(self, name: str) -> GraphParser:
        return GraphParser(self)


class GraphParser:
    """See `CallParser`. A graph's inputs are known before the body if the graph is in the query.

    Attributes:
        most_nodes: nodes that a graph may have.
        of_model: whether an ONNX model is sent in the place of a graph.

    Raises:
        InvalidParameter: the query is malformed.
        InvalidJson: the graph in the query is not JSON.
    """

    document_name = "graph"
    value_names = frozenset[str]()
    """None: the graph's constants are in its document."""

    def __init__(self, dialect: GraphDialect) -> None:
        self.most_nodes, self.of_model = dialect.most_nodes, dialect.of_model
        self._parameters = ("outputs" if self.of_model else "graph", *_OPTIONS)
        self._document = None
        if not self.of_model:
            self._document = read_document(read_query(dialect.query).get("graph"), "graph")

    @property
    def inputs(self) -> Sequence[CallInput]:
        """The inputs of the graph in the query.

        Raises:
            InvalidParameter: there is no graph in the query, and the body has no place for one.
        """
        if self._document is None:
            raise _missing_graph()
        return [CallInput(name, optional=False, is_array=False) for name in input_names(self._document)]

    def has_input(self, name: str) -> bool:
        return name not in self._parameters

    def declared(self, document: Mapping[str, Any] | None) -> DeclaredInputs:
        """See `CallParser.declared`; the graph is in the body or in the query."""
        graph = self._document if document is None else document
        return {} if graph is None else {tensor.name: tensor for tensor in declared_inputs(graph)}

    def options_of(self, parameters: Mapping[str, object]) -> RunOptions:
        """How to run a call.

        Raises:
            InvalidParameter: a parameter is unknown, or has a value that it cannot have.
        """
        refuse_unknown(parameters, self._parameters)
        return take_options({**parameters}, _OPTIONS)

    def parse(
        self, parameters: Mapping[str, object], tensors: Sequence[AnnouncedTensor],
        document: Mapping[str, Any] | None, values: Mapping[str, Any],
    ) -> ParsedCall:  # fmt: skip
        """Parse a call.

        Raises:
            InvalidParameter: a parameter that is unknown; the graph is missing, or sent twice.
            InvalidDescriptor: the graph breaks rules; every violation is listed.
            TensorMismatch: a tensor of strings.
        """
        options = self.options_of(parameters)
        if document is not None and self._document is not None:
            raise InvalidParameter("the graph is sent in the query and in the body; send it once")
        if (graph := self._document if document is None else document) is None:
            raise _missing_graph()
        sent = layouts_of(tensors)
        try:
            level = options.feature_level or NEWEST
            return ParsedCall(read_graph(graph, sent, level=level, most_nodes=self.most_nodes), options)
        except InvalidDescriptor as error:
            raise error.prefixed("graph") from None


def read_outputs(query: str) -> list[str] | None:
    """The outputs of a model that are wanted, of the parameter `outputs`; None for all."""
    text = read_query(query).get("outputs")
    return None if text is None else text.split(",")


def _missing_graph() -> InvalidParameter:
    return InvalidParameter(
        "the graph is missing: send it in a frame (safetensors), as JSON text in the metadata under graph; in JSON, as "
        "the member graph beside tensors; as the part graph of multipart/form-data (curl -F graph=@graph.json -F "
        "photo=@cat.jpg); or beside any other body in the query parameter graph",
        extra={"parameter": "graph"},
    )
