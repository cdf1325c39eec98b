"""Calls whose sizes depend on elements that they compute: a part after the other, each planned as a call of its own.

NonZero, or a Reshape whose shape is computed, leaves the sizes of what follows unknown. So what such nodes read is
computed first, as a graph; then the rest of the model is read with these results, whose sizes are known, and is planned
as any graph is. Source: docs/decisions/0047-sizes-that-depend-on-elements.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorpost.descriptors import NEWEST, FeatureLevel
from tensorpost.graphs.graph_document import read_graph
from tensorpost.graphs.model_graph import ModelGraph, ModelStage, StageResult, model_stage
from tensorpost.graphs.model_graph_reader import MOST_DECIDING
from tensorpost.onnx.bounded_node import BoundedNode
from tensorpost.onnx.model_reader import ModelTensor, OnnxModel
from tensorpost.onnx.result_bounds import SIZES
from tensorpost.values.datatypes import data_type
from tensorpost.values.graph import Graph
from tensorpost.values.layout import Layout
from tensorpost.values.problems import InvalidDescriptor, Violation

from ...engine import Worker
from ...planning import Plan
from ...settings import Settings
from ..calls.call import AnnouncedTensor, Answer, Call, PreparedHead, RunOptions, Sink

MOST_STAGES = 64
"""Parts of a call; each is admitted and may take as long as a call."""


class StoredConstant(NamedTuple):
    """A constant that a stored model keeps, and its bytes."""

    array: NDArray[Any]
    memory: memoryview


@dataclass(frozen=True, slots=True, eq=False)
class RestOfModel:
    """What is left of a model, or of a node, when its first part was computed.

    Attributes:
        results: the tensors that the first part makes for it.
        model: what is left.
        most_nodes: nodes that a graph may have.
        level: the feature level that descriptors are validated at.
        views: the constants that a stored model keeps, and this, too, by the identity of their arrays; None of a model
            that came with its call.
    """

    results: Sequence[StageResult]
    model: OnnxModel
    most_nodes: int
    level: FeatureLevel = NEWEST
    views: Mapping[int, StoredConstant] | None = None

    @classmethod
    def of_stage(
        cls, stage: ModelStage, most_nodes: int, level: FeatureLevel = NEWEST,
        views: Mapping[int, StoredConstant] | None = None,
    ) -> RestOfModel:  # fmt: skip
        """What is left after a part of a model.

        Raises:
            InvalidDescriptor: there are too many nodes, which are read again after each part.
        """
        count = len(stage.graph.document["nodes"]) + len(stage.rest.nodes)
        if count > most_nodes:
            message = f"the model has {count:,} nodes; at most {most_nodes:,} are computed here (setting "
            expected = f"at most {most_nodes} nodes"
            raise InvalidDescriptor.of([
                Violation("graph-size", ("graph", "node"), f"{message}TENSORPOST_MAX_GRAPH_NODES)", count, expected)
            ])  # fmt: skip
        return cls(stage.results, stage.rest, most_nodes, level, views)

    @classmethod
    def of_node(cls, node: BoundedNode) -> RestOfModel:
        """What is left after a bounded node: nothing but its results, with their sizes."""
        results, first = list[StageResult](), 0
        for name, each in zip(node.result_names, node.bounds, strict=True):
            results.append(StageResult(name, each.name, each.rank, SIZES, first))
            first += each.rank
        tensors = tuple([ModelTensor(each.name) for each in results])
        return cls(results, OnnxModel(tensors, tensors, {}, (), node.opset), len(results))


class GivenTensor(NamedTuple):
    """A tensor of a call, and its bytes."""

    layout: Layout
    memory: memoryview


@dataclass(frozen=True, slots=True, eq=False)
class StageAnswer:
    """The outputs of a part of a call, which are collected in memory. See `Answer`."""

    graph: Graph
    streams: bool = False
    encodes: bool = False

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """See `Answer.sinks`: all of them are wanted."""
        return (Sink(),) * len(self.graph.outputs)

    def check(self, plan: Plan, settings: Settings) -> None:
        """See `Answer.check`: any results will do."""

    def json_elements(self, plan: Plan) -> int:
        return 0

    def working_bytes(self, plan: Plan) -> int:
        """See `Answer.working_bytes`: the results, which stay until the call has ended."""
        return plan.output_bytes

    def head(self, plan: Plan, worker: Worker) -> PreparedHead:
        raise AssertionError("a part of a call is not answered")

    def whole(self, plan: Plan, worker: Worker, outputs: Sequence[bytearray | bytes]) -> tuple[PreparedHead, bytes]:
        raise AssertionError("a part of a call is not answered")


@dataclass(frozen=True, slots=True, eq=False)
class StagedCall:
    """See `CallRest`.

    Attributes:
        rest: what is left.
        names: what the model calls the tensors of the call before it, in their order.
        tensors: the same as the call announces them.
        options: how to run it.
        answered: the answer that the last part's graph gives.
        rows: see `Call`; of the last part.
        stored_tags: see `Call`.
        timeout: see `Call`.
        stage: how many parts there were before.
    """

    rest: RestOfModel
    names: Sequence[str]
    tensors: Sequence[AnnouncedTensor]
    options: RunOptions
    answered: Callable[[Graph], Answer]
    rows: tuple[int, int | None] | None = None
    stored_tags: Sequence[str] = ()
    timeout: float | None = None
    stage: int = 1

    def call(self, memory: Sequence[memoryview], results: Mapping[str, NDArray[Any]]) -> Call:
        rest = self.rest
        layouts = [Layout.row_major(each.data_type, each.shape) for each in self.tensors]
        sent = dict(zip(self.names, map(GivenTensor, layouts, memory), strict=True))
        given = {each.name: sent[each.name] for each in rest.model.inputs if each.name in sent}
        given |= {each.name: _given_of(_whole(each, results)) for each in rest.results}
        small = {name: each.layout.view(each.memory) for name, each in given.items() if _may_decide(each.layout)}
        found = model_stage(rest.model, {name: each.layout for name, each in given.items()}, None, small)
        part = found.graph if isinstance(found, ModelStage) else found
        layouts = {name: each.layout for name, each in given.items()}
        graph, constants = bound(part, layouts, rest.views, rest.level, rest.most_nodes)
        given |= constants
        tensors = announced(given)
        blocks = [each.memory for each in given.values()]
        if not isinstance(found, ModelStage):
            return Call(
                graph, self.options, tensors, self.answered(graph), blocks, timeout=self.timeout, rows=self.rows,
                stored_tags=self.stored_tags, is_repeatable=False,
            )  # fmt: skip
        if self.stage >= MOST_STAGES:
            message = f"the sizes of the model depend {MOST_STAGES} times on elements that are computed before"
            raise InvalidDescriptor.of([
                Violation("onnx-model", ("graph", "node"), message, self.stage + 1, f"at most {MOST_STAGES} times")
            ])  # fmt: skip
        left = RestOfModel.of_stage(found, rest.most_nodes, rest.level, rest.views)
        further = replace(self, rest=left, names=[*given], tensors=tensors, stage=self.stage + 1)
        return stage_call(graph, self.options, tensors, further, memory=blocks)


def stage_call(
    graph: Graph, options: RunOptions, tensors: Sequence[AnnouncedTensor], rest: StagedCall, **tensors_at: Any
) -> Call:
    """The call of a part.

    Args:
        graph: what it computes.
        options: how to run it.
        tensors: what the body announces.
        rest: what follows.
        tensors_at: where the tensors are; see `Call`.
    """
    return Call(graph, options, tensors, StageAnswer(graph), rest=rest, is_repeatable=False, **tensors_at)


def stage_of_model(
    stage: ModelStage, given: Mapping[str, GivenTensor], options: RunOptions, most_nodes: int,
    answered: Callable[[Graph], Answer], rows: tuple[int, int | None] | None, stored_tags: Sequence[str],
) -> Call:  # fmt: skip
    """The call of the first part of a model that came with its call.

    Args:
        stage: the part.
        given: the tensors that came, and those that are held, by the model's names.
        options: how to run it.
        most_nodes: see `RestOfModel`.
        answered: see `StagedCall`.
        rows: see `StagedCall`.
        stored_tags: see `StagedCall`.
    """
    rest = RestOfModel.of_stage(stage, most_nodes, options.feature_level or NEWEST)
    layouts = {name: each.layout for name, each in given.items()}
    graph, constants = bound(stage.graph, layouts, rest.views, rest.level, most_nodes)
    given = {**given, **constants}
    tensors = announced(given)
    left = StagedCall(rest, [*given], tensors, options, answered, rows, stored_tags)
    return stage_call(graph, options, tensors, left, memory=[each.memory for each in given.values()])


class BoundGraph(NamedTuple):
    """The graph of a model, or of a part of one, for certain tensors.

    Attributes:
        graph: the graph, whose inputs are called as in the model.
        constants: inputs that are the model's constants, under names that none of its tensors has.
    """

    graph: Graph
    constants: Mapping[str, GivenTensor]


def bound(
    part: ModelGraph, given: Mapping[str, Layout], views: Mapping[int, StoredConstant] | None, level: FeatureLevel,
    most_nodes: int,
) -> BoundGraph:  # fmt: skip
    """The graph of a model for tensors of these types and sizes.

    Args:
        part: the model as a graph.
        given: the tensors by the model's names.
        views: see `RestOfModel`; constants of a stored model are constants of the graph, others are inputs.
        level: see `RestOfModel`.
        most_nodes: see `RestOfModel`.

    Raises:
        InvalidDescriptor, UnknownOperator: the graph breaks rules for them.
    """
    read = {text: given[name] for name, text in part.inputs.items()}
    names = {text: name for name, text in part.inputs.items()}
    constants = dict[str, GivenTensor]()
    weights = dict[str, tuple[Layout, memoryview]]()
    prefix = "constant/"
    while any(name.startswith(prefix) for name in given):
        prefix = f"_{prefix}"
    for text, array in part.weights.items():
        layout = Layout.row_major(data_type(array.dtype), array.shape)
        if views is None:
            read[text], names[text] = layout, f"{prefix}{text}"
            constants[names[text]] = _given_of(array)
        else:
            weights[text] = (layout, views[id(array)].memory if id(array) in views else _given_of(array).memory)
    graph = read_graph(part.document, read, level=level, most_nodes=most_nodes, weights=weights)
    inputs = tuple([replace(slot, name=names[slot.name]) for slot in graph.inputs])
    return BoundGraph(replace(graph, inputs=inputs), constants)


def announced(given: Mapping[str, GivenTensor]) -> list[AnnouncedTensor]:
    """The tensors as a body would announce them."""
    return [
        AnnouncedTensor(name, each.layout.data_type, each.layout.sizes, each.layout.size_in_bytes)
        for name, each in given.items()
    ]


def _whole(result: StageResult, results: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """A result of a part with the sizes that it has."""
    found = results[result.output]
    if result.rank is None:
        return found
    sizes = results[result.sizes][result.first : result.first + result.rank].tolist()
    return found[: int(np.prod(sizes, dtype=np.int64))].reshape(sizes)


def _given_of(array: NDArray[Any]) -> GivenTensor:
    array = np.require(array, requirements=["C", "ALIGNED"])
    return GivenTensor(
        Layout.row_major(data_type(array.dtype), array.shape), array.reshape(-1).view(np.uint8).data.toreadonly()
    )


def _may_decide(layout: Layout) -> bool:
    elements = layout.size_in_bytes // layout.data_type.item_size
    return len(layout.sizes) <= 1 and elements <= MOST_DECIDING and layout.data_type.dtype.kind in "iubf"
