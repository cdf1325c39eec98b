"""What a model becomes: a graph, or the part of it that must be computed before the sizes of the rest are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ..onnx.model_reader import OnnxModel
from .model_lists import NO_LISTS, ListedOutputs

__all__ = ["ModelGraph", "ModelStage", "StageResult"]


class ModelGraph(NamedTuple):
    """A model as a graph.

    Attributes:
        document: the graph's document, for tensors of the sizes that it was made for.
        inputs: the name in the document of each input that a node reads, by its name in the model.
        weights: what other inputs of the document are: the model's large constants.
        lists: the outputs that are sequences or optional values; see `ListedOutputs`.
    """

    document: dict[str, Any]
    inputs: Mapping[str, str]
    weights: Mapping[str, NDArray[Any]]
    lists: ListedOutputs = NO_LISTS


class StageResult(NamedTuple):
    """A tensor that a stage makes for the rest of the model.

    Attributes:
        name: its name in the rest of the model.
        output: the output of the stage's graph that it is, or of which it is the begin.
        rank: how many sizes it has, if it is the result of a bounded node; else None.
        sizes: the output with the sizes of the bounded node's results; empty if it is none.
        first: where its sizes begin there.
    """

    name: str
    output: str
    rank: int | None = None
    sizes: str = ""
    first: int = 0


class ModelStage(NamedTuple):
    """What of a model is computed before the sizes of the rest are known.

    Attributes:
        graph: computes the results.
        results: the tensors that the rest reads.
        rest: the rest of the model, whose inputs are these, and inputs of the model.
    """

    graph: ModelGraph
    results: Sequence[StageResult]
    rest: OnnxModel
