"""Partitions: nodes that ONNX Runtime computes become one step where they hang together.

A step of ONNX Runtime crosses to its process and back. A partition crosses once: its nodes are those that ONNX Runtime
computes anyway, and those between them of which it gives the same bytes. It is convex: no node outside reads what it
makes and makes what it reads. Plans with such a step are a processor's, so nothing is taken from a device.

Of a stored graph, whose constants stay where they are, sessions hold them. ONNX Runtime optimizes such a session, so
that last bits differ; nodes that differ in no more are part of it, too.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

from tensorpost.onnx import OnnxNode
from tensorpost.onnx.proto_node import OnnxProtoNode
from tensorpost.onnx.schemas import schema_of
from tensorpost.values.graph import Graph, GraphConstant, Node, NodeOutput, Ref
from tensorpost.values.operation import Slot
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter, NoBackend, UnknownOperator

from ..operators.onnx_partition import (
    LEAST_OPSET,
    PartitionNode,
    fits_session,
    gives_near_bytes,
    gives_same_bytes,
    may_join,
    partition_form,
)
from .step import PlanStep

__all__ = ["in_one_partition", "partitioned"]


def partitioned(graph: Graph, steps: Sequence[PlanStep]) -> tuple[tuple[PlanStep, ...], tuple[NodeOutput, ...]]:
    """The steps with those of partitions as one, and where the graph's outputs come from then.

    Args:
        graph: the graph.
        steps: the step of each of its nodes.
    """
    groups = _groups(graph, steps, is_near=_keeps_weights(graph))
    return _joined(graph, steps, groups) if groups else (tuple(steps), graph.outputs)


def in_one_partition(graph: Graph, steps: Sequence[PlanStep]) -> tuple[tuple[PlanStep, ...], tuple[NodeOutput, ...]]:
    """All steps as one that ONNX Runtime computes.

    Args:
        graph: the graph.
        steps: the step of each of its nodes.

    Raises:
        InvalidParameter: a node is none of ONNX's, or the nodes' opsets mean different versions of an operator.
        NoBackend: ONNX Runtime is not installed.
    """
    for node in graph.nodes:
        if not isinstance(node.operation, OnnxNode):
            raise _not_onnx(f"the node {node.name!r} is DirectML's {node.operation.name}")
        if node.operation.is_bounded:
            raise _not_onnx(f"the sizes that the node {node.name!r} ({node.operation.name}) makes depend on elements")
    everything = range(len(graph.nodes))
    opsets = _opsets_of(graph, everything, least=1)
    for number in everything:
        if not _is_same_at(opsets, graph.nodes[number].operation):
            node = graph.nodes[number]
            raise _not_onnx(f"the node {node.name!r} ({node.operation.name}) is another version at opset {opsets['']}")
    return _joined(graph, steps, [everything], as_ours=False)


def _not_onnx(why: str) -> InvalidParameter:
    message = f"backend=onnxruntime computes graphs of ONNX nodes of one opset, and {why}; use another backend"
    return InvalidParameter(message, extra={"parameter": "backend"})


def _keeps_weights(graph: Graph) -> bool:
    """Whether ONNX Runtime's sessions hold the graph's constants: those of a stored graph, where there is room."""
    is_kept = any(isinstance(data, memoryview) for _, data in graph.constants)
    return is_kept and fits_session(sum([len(data) for _, data in graph.constants]))


def _groups(graph: Graph, steps: Sequence[PlanStep], *, is_near: bool) -> list[list[int]]:
    """The nodes of each partition, in their order.

    Args:
        graph: the graph.
        steps: the step of each of its nodes.
        is_near: whether last bits may differ from those of our own forms.
    """
    theirs, joins = set[int](), set[int]()
    for number, node in enumerate(graph.nodes):
        if isinstance(node.operation, OnnxNode):
            if may_join(node.operation, steps[number].form):
                theirs.add(number)
            elif gives_same_bytes(node.operation) if not is_near else _is_near(node):
                joins.add(number)
    if len(theirs) < (1 if is_near else 2):
        return []
    joins |= theirs
    opsets = _opsets_of(graph, joins)
    joins = {number for number in joins if _is_same_at(opsets, graph.nodes[number].operation)}
    before = {
        number: [ref.node for ref in node.inputs if isinstance(ref, NodeOutput)]
        for number, node in enumerate(graph.nodes)
    }
    # Of a node that joins, how many times a way to it leaves such nodes; of any other, how often it would then.
    level: dict[int, int] = {}
    first: dict[int, int] = {}  # of the nodes of its level that hang together
    for number, sources in before.items():
        joined = number in joins
        level[number] = max([level[source] + (not joined and source in joins) for source in sources], default=0)
        if joined:
            first[number] = number
            for source in sources:
                if source in joins and level[source] == level[number]:
                    one, other = sorted((_root(first, source), _root(first, number)))
                    first[other] = one
    after_theirs, before_theirs = {*theirs}, {*theirs}  # or among them
    for number in sorted(joins):
        if any(source in after_theirs for source in _within(before, first, number)):
            after_theirs.add(number)
    for number in sorted(joins, reverse=True):
        if number in before_theirs:
            before_theirs |= {*_within(before, first, number)}
    found: dict[int, list[int]] = {}
    roots = {_root(first, number) for number in theirs & joins}  # of what hangs together with nodes of ONNX Runtime
    for number in sorted(joins if is_near else after_theirs & before_theirs & joins):
        if (root := _root(first, number)) in roots:
            found.setdefault(root, []).append(number)
    return [group for group in found.values() if len(group) > 1 or _constants_read(graph, group)]


def _is_near(node: Node) -> bool:
    """Whether a node may be part of a partition whose weights are held; indices that are sent are checked here."""
    indices = node.inputs[1] if node.operation.op_type == "Gather" else None
    return (
        isinstance(node.operation, OnnxNode)
        and (indices is None or isinstance(indices, GraphConstant))
        and gives_near_bytes(node.operation)
    )


def _constants_read(graph: Graph, group: Sequence[int]) -> bool:
    """Whether nodes read constants that a stored graph keeps, and that ONNX Runtime's session may hold."""
    sources = [ref for number in group for ref in graph.nodes[number].inputs if isinstance(ref, GraphConstant)]
    return _keeps_weights(graph) and any(isinstance(graph.constants[ref.index][1], memoryview) for ref in sources)


def _root(first: dict[int, int], number: int) -> int:
    while first[number] != number:
        first[number] = first[first[number]]
        number = first[number]
    return number


def _within(before: Mapping[int, Sequence[int]], first: dict[int, int], number: int) -> list[int]:
    """The nodes of the same group that a node reads."""
    root = _root(first, number)
    return [source for source in before[number] if source in first and _root(first, source) == root]


def _opsets_of(graph: Graph, numbers: Collection[int], least: int = LEAST_OPSET) -> dict[str, int]:
    """The opset of each domain: that of nodes with subgraphs, if there are any, whose nodes are read at it.

    Otherwise the lowest one that has all the nodes' versions: ONNX Runtime may not know the one that was sent.
    """
    operations = _operations(graph, numbers)
    fixed: dict[str, int] = {}
    for operation in operations:
        if isinstance(operation, OnnxProtoNode):
            fixed = {**dict(operation.opsets), **fixed}
    versions = [each.schema.since_version for each in operations if not isinstance(each, OnnxProtoNode)]
    return {"": max([least, *versions]), **fixed}


def _operations(graph: Graph, numbers: Collection[int]) -> list[OnnxNode]:
    found = [graph.nodes[number].operation for number in sorted(numbers)]
    return [operation for operation in found if isinstance(operation, OnnxNode)]


def _is_same_at(opsets: Mapping[str, int], operation: object) -> bool:
    """Whether the node is the same version of its operator at these opsets."""
    assert isinstance(operation, OnnxNode)
    if isinstance(operation, OnnxProtoNode):
        return all(opsets.get(domain) == version for domain, version in operation.opsets)
    try:
        return schema_of(operation.op_type, opsets[""]).since_version == operation.schema.since_version
    except (InvalidDescriptor, NoBackend, UnknownOperator):
        return False


def _joined(
    graph: Graph, steps: Sequence[PlanStep], groups: Sequence[Sequence[int]], *, as_ours: bool = True
) -> tuple[tuple[PlanStep, ...], tuple[NodeOutput, ...]]:
    """The steps with those of each group as one, in an order in which each reads only what was made before it."""
    group_of = {number: group[0] for group in groups for number in group}
    members = {group[0]: group for group in groups}
    places = [group_of.get(number, number) for number in range(len(steps))]
    read_by: dict[NodeOutput, set[int]] = {}
    for number, step in enumerate(steps):
        for source in step.sources:
            if isinstance(source, NodeOutput):
                read_by.setdefault(source, set()).add(places[number])
    outputs = {*graph.outputs}

    def is_sent(ref: NodeOutput) -> bool:
        return ref in outputs or bool(read_by.get(ref, set[int]()) - {places[ref.node]})

    made: dict[int, PlanStep] = {}
    moved: dict[NodeOutput, NodeOutput] = {}  # by the first number of its group instead of its own
    for number, step in enumerate(steps):
        if number in members:
            sent = [ref for each in members[number] for ref in _outputs_of(steps, each) if is_sent(ref)]
            made[number] = _step_of(graph, steps, members[number], sent, as_ours=as_ours)
            moved |= {ref: NodeOutput(number, index) for index, ref in enumerate(sent)}
        elif places[number] == number:
            made[number] = step
    order = _ordered(made, places)
    numbers = {number: place for place, number in enumerate(order)}

    def renumbered(ref: NodeOutput) -> NodeOutput:
        ref = moved.get(ref, ref)
        return NodeOutput(numbers[ref.node], ref.index)

    found: list[PlanStep] = []
    for number in order:
        step = made[number]
        sources = tuple([renumbered(source) if isinstance(source, NodeOutput) else source for source in step.sources])
        found.append(PlanStep(step.form, sources, step.inputs, step.outputs, step.name))
    return tuple(found), tuple([renumbered(ref) for ref in graph.outputs])


def _outputs_of(steps: Sequence[PlanStep], number: int) -> list[NodeOutput]:
    return [NodeOutput(number, index) for index in range(len(steps[number].outputs))]


def _step_of(
    graph: Graph, steps: Sequence[PlanStep], group: Sequence[int], sent: Sequence[NodeOutput], *, as_ours: bool
) -> PlanStep:  # fmt: skip
    """The step of a partition, whose outputs are `sent`."""
    numbers: dict[Ref, int] = {}
    inputs: dict[Ref, Slot] = {}
    made: dict[Ref, Slot] = {}
    nodes: list[PartitionNode] = []
    for number in group:
        node, step = graph.nodes[number], steps[number]
        assert isinstance(node.operation, OnnxNode)
        outputs = _outputs_of(steps, number)
        for ref, slot in zip(node.inputs, node.operation.inputs, strict=True):
            if ref not in made:
                inputs.setdefault(ref, slot)
        made |= zip(outputs, node.operation.outputs, strict=True)
        for ref in (*node.inputs, *outputs):
            numbers.setdefault(ref, len(numbers))
        read, written = tuple([numbers[ref] for ref in node.inputs]), tuple([numbers[ref] for ref in outputs])
        nodes.append(PartitionNode(node.operation, step.form, node.name, read, written))
    opsets = _opsets_of(graph, group, LEAST_OPSET if as_ours else 1)
    given, made_here = [numbers[ref] for ref in inputs], [numbers[ref] for ref in sent]
    weights = _weights(graph, inputs)
    form = partition_form(
        nodes, given, made_here, opsets, as_ours=as_ours and not weights,
        weights={numbers[ref]: data for ref, data in weights.items()},
    )  # fmt: skip
    inputs = {ref: slot for ref, slot in inputs.items() if ref not in weights}
    slots = [Slot(f"input_{place}", slot.layout) for place, slot in enumerate(inputs.values())]
    results = [Slot(f"output_{place}", made[ref].layout) for place, ref in enumerate(sent)]
    return PlanStep(form, tuple(inputs), tuple(slots), tuple(results), graph.nodes[group[-1]].name)


def _weights(graph: Graph, inputs: Collection[Ref]) -> dict[Ref, bytes | memoryview]:
    """The constants of a partition that ONNX Runtime's session holds."""
    found = {ref: graph.constants[ref.index][1] for ref in inputs if isinstance(ref, GraphConstant)}
    is_kept = any(isinstance(data, memoryview) for data in found.values())
    return {**found} if is_kept and _keeps_weights(graph) else {}


def _ordered(made: Mapping[int, PlanStep], places: Sequence[int]) -> list[int]:
    """The steps in an order in which each comes after those that it reads; else in that of the graph."""
    waits = {
        number: {places[source.node] for source in step.sources if isinstance(source, NodeOutput)}
        for number, step in made.items()
    }
    readers: dict[int, list[int]] = {}
    for number, sources in waits.items():
        for source in sources:
            readers.setdefault(source, []).append(number)
    ready, found = [number for number, sources in waits.items() if not sources], list[int]()
    heapq.heapify(ready)
    while ready:
        number = heapq.heappop(ready)
        found.append(number)
        for reader in readers.get(number, ()):
            waits[reader].discard(number)
            if not waits[reader]:
                heapq.heappush(ready, reader)
    assert len(found) == len(made), "a partition is not convex"
    return found
