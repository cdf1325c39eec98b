"""Graphs give the bytes that their nodes give one after another, on every backend."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from tests.support.graph_cases import POINTWISE, GraphCase, drawn_graph, drawn_photograph, layouts_of

from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.graph import Graph, GraphConstant, GraphInput, NodeOutput
from tensorpost.values.operation import Operation, Slot
from tensorpost.values.problems import InvalidDescriptor
from tensorpost_server.backends import Backend
from tensorpost_server.planning import make_plan

GRAPHS = 40
"""Of each backend; `make soak` draws more."""


def outputs_of(backend: Backend, asked: Graph | Operation, inputs: Sequence[bytes], slice_bytes: int) -> list[bytes]:
    """The bytes of every output, in slices of this size; indices are checked as the worker checks them."""
    plan = make_plan(asked, slice_bytes)
    blocks = [memoryview(data) for data in inputs]
    plan.check_indices(blocks)
    run = backend.start(plan, blocks)
    try:
        found = [bytearray() for _ in plan.outputs]
        for index, piece in enumerate(plan.slices):
            found[piece.output] += bytes(run.compute(index))
        return [bytes(data) for data in found]
    finally:
        run.close()


def node_by_node(backend: Backend, graph: Graph, inputs: Sequence[bytes]) -> list[bytes]:
    """The bytes of every output of a graph, each node computed alone."""
    made: list[list[bytes]] = []
    for node in graph.nodes:
        taken: list[bytes] = []
        for ref in node.inputs:
            match ref:
                case GraphInput(index):
                    taken.append(inputs[index])
                case GraphConstant(index):
                    taken.append(bytes(graph.constants[index][1]))
                case NodeOutput(number, index):
                    taken.append(made[number][index])
        operation, plan = node.operation, make_plan(node.operation, 1 << 20)
        by_name = dict(zip([slot.name for slot in operation.inputs], taken, strict=True))
        made.append(outputs_of(backend, operation, [by_name[slot.name] for slot in plan.inputs], 1 << 20))
    return [made[ref.node][ref.index] for ref in graph.outputs]


def without_nan(slot: Slot, data: bytes) -> bytes:
    """The bytes with one NaN for all: which one NumPy's functions give depends on where a slice begins."""
    array = np.frombuffer(bytearray(data), slot.layout.data_type.dtype)
    if array.dtype.kind == "f":
        array[np.isnan(array)] = np.nan
    return array.tobytes()


def check(backend: Backend, case: GraphCase, slice_bytes: int) -> None:
    """The graph's bytes are its nodes' bytes; or both are refused for the same index."""
    graph = case.read()
    if any(node.operation.op_type == "MatMul" for node in graph.nodes):
        slice_bytes = 1 << 20  # the order of a product's sums depends on the slice
    if backend.refusal_reason(make_plan(graph, slice_bytes)) is not None:
        return  # CuPy's arrays of some types
    inputs = [case.inputs[slot.name].tobytes() for slot in graph.inputs]
    try:
        expected = node_by_node(backend, graph, inputs)
    except InvalidDescriptor:
        with pytest.raises(InvalidDescriptor, match=r"node 'n\d+': indices"):
            outputs_of(backend, graph, inputs, slice_bytes)
        return
    found = outputs_of(backend, graph, inputs, slice_bytes)
    for slot, ours, theirs in zip(graph.output_slots, found, expected, strict=True):
        assert without_nan(slot, ours) == without_nan(slot, theirs), f"{slot.name} of {case.document}"


@pytest.mark.parametrize("part", range(4))
def test_a_graph_gives_the_bytes_of_its_nodes(backend: Backend, part: int):
    if backend.name == "directml":
        pytest.skip("DirectML computes one operator at a time")
    for seed in range(part, GRAPHS, 4):
        chance = random.Random(seed)
        check(backend, drawn_graph(chance), chance.choice([1 << 20, 64, 1000]))


def test_what_is_fused_gives_the_bytes_of_its_parts(backend: Backend):
    if backend.name == "directml":
        pytest.skip("DirectML computes one operator at a time")
    parts = 0
    for seed in range(GRAPHS):
        case = drawn_graph(random.Random(seed), 12, POINTWISE)
        parts += len(case.document["nodes"]) - len(make_plan(case.read(), 1 << 20).steps)
        check(backend, case, 1 << 20)
    assert parts > GRAPHS, "most graphs have something to fuse"


def test_a_photograph_that_is_converted_first_gives_the_same_bytes(backend: Backend):
    if backend.name == "directml":
        pytest.skip("DirectML computes one operator at a time")
    fused = 0
    for seed in range(GRAPHS):
        chance = random.Random(seed)
        case = drawn_photograph(chance)
        fused += make_plan(case.read(), 1 << 20).steps[0].name == "small"
        check(backend, case, chance.choice([1 << 20, 1 << 20, 500]))
    assert fused > GRAPHS // 4, "many conversions have no step of their own"


def test_a_pipeline_is_what_numpy_computes(backend: Backend):
    """Worked in integers and halves, so that nothing is rounded."""
    if backend.name == "directml":
        pytest.skip("DirectML computes one operator at a time")
    photo = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    graph = read_graph(
        {
            "inputs": {"photo": {"data_type": "UINT8", "sizes": ["h", "w", 3]}},
            "constants": {"mean": {"dtype": "F32", "shape": [3], "data": [1, 2, 3]}},
            "nodes": [
                {"name": "chw", "op_type": "Transpose", "inputs": ["half"], "attributes": {"perm": [2, 0, 1]}},
                {
                    "name": "half",
                    "type": "ELEMENT_WISE_IDENTITY",
                    "inputs": "c",
                    "desc": {"ScaleBias": {"Scale": 0.5, "Bias": 0}},
                },
                {"name": "c", "op_type": "Sub", "inputs": ["f", "mean"]},
                {"name": "f", "op_type": "Cast", "inputs": ["photo"], "attributes": {"to": "float32"}},
            ],
            "outputs": {"image": "chw", "centred": "c"},
        },
        layouts_of({"photo": photo}),
    )

    image, centred = outputs_of(backend, graph, [photo.tobytes()], 1 << 20)

    wanted = photo.astype(np.float32) - np.array([1, 2, 3], np.float32)
    assert centred == wanted.tobytes()
    assert image == np.ascontiguousarray((wanted * 0.5).transpose(2, 0, 1)).tobytes()
