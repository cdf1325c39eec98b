"""Graphs that DirectML compiles whole, on a stand-in of Direct3D 12 and DirectML: structs, constants, indices."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.conformance.test_graphs import outputs_of
from tests.support.fake_directml import FakeWindows
from tests.support.graph_cases import drawn_graph

from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.datatypes import data_type
from tensorpost.values.graph import Graph
from tensorpost.values.layout import Layout
from tensorpost.values.problems import InvalidDescriptor, NoBackend
from tensorpost_server.backends.directml import DirectmlBackend
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import make_plan

X = np.arange(6, dtype=np.float32).reshape(2, 3)
F32 = {"data_type": "FLOAT32", "sizes": [2, 3]}


@contextmanager
def opened(windows: FakeWindows) -> Iterator[DirectmlBackend]:
    made = DirectmlBackend(libraries=windows.libraries())
    try:
        yield made
    finally:
        made.close()
    assert windows.wrong == []
    assert windows.alive == []


def graph_of(document: Mapping[str, Any], **inputs: np.ndarray[Any, Any]) -> Graph:
    return read_graph(document, {name: Layout.row_major(data_type(x.dtype), x.shape) for name, x in inputs.items()})


def computed(made: DirectmlBackend, graph: Graph, *inputs: Any) -> list[bytes]:
    return outputs_of(made, graph, [np.ascontiguousarray(x).tobytes() for x in inputs], 1 << 20)


CHAIN: dict[str, Any] = {
    "inputs": {"x": F32},
    "constants": {"two": {"dtype": "F32", "shape": [1], "data": [2]}},
    "nodes": [
        {"name": "a", "op_type": "Mul", "inputs": ["x", "two"]},
        {"name": "b", "type": "ELEMENT_WISE_ABS", "inputs": "a", "desc": {}},
        {"name": "c", "op_type": "Add", "inputs": ["b", "a"]},
    ],
    "outputs": {"c": "c", "a": "a"},
}


@pytest.mark.parametrize("persistent", [0, 64])
def test_a_graph_is_compiled_once_and_its_constant_bound_once(persistent: int) -> None:
    windows = FakeWindows(persistent=persistent)
    with opened(windows) as made:
        graph = graph_of(CHAIN, x=X)
        for shift in (0, -9):
            c, a = computed(made, graph, X + shift)
            np.testing.assert_array_equal(np.frombuffer(a, np.float32).reshape(2, 3), 2 * (X + shift))
            expected = np.abs(2 * (X + shift)) + 2 * (X + shift)
            np.testing.assert_array_equal(np.frombuffer(c, np.float32).reshape(2, 3), expected)
    assert windows.calls == ["compile a graph of 3", "dispatch a graph of 3", "dispatch a graph of 3"]


def test_other_constants_are_another_graph() -> None:
    windows = FakeWindows()
    with opened(windows) as made:
        for factor in (2, 3, 2):
            constants = {"two": {"dtype": "F32", "shape": [1], "data": [factor]}}
            _, a = computed(made, graph_of({**CHAIN, "constants": constants}, x=X), X)
            np.testing.assert_array_equal(np.frombuffer(a, np.float32).reshape(2, 3), factor * X)
    assert windows.calls.count("compile a graph of 3") == 2


def test_drawn_graphs_are_those_of_numpy() -> None:
    windows, count = FakeWindows(persistent=16), 0
    with opened(windows) as made:
        for seed in range(60):
            case = drawn_graph(random.Random(f"directml {seed}"), 2 + seed % 9)
            graph = case.read()
            plan = make_plan(graph, 1 << 20)
            if made.refusal_reason(plan) is not None:
                continue
            inputs = [case.inputs[slot.name] for slot in plan.inputs]
            found = computed(made, graph, *inputs)
            expected = outputs_of(NumpyBackend(), graph, [np.ascontiguousarray(x).tobytes() for x in inputs], 1 << 20)
            for one, other, slot in zip(found, expected, graph.output_slots, strict=True):
                x, y = (np.frombuffer(data, slot.layout.data_type.dtype) for data in (one, other))
                np.testing.assert_array_equal(x, y)
            count += 1
    assert count > 30


def test_an_output_that_nobody_reads_is_connected() -> None:
    document = {
        "inputs": {"x": F32},
        "nodes": [{"name": "s", "type": "SPLIT", "inputs": "x", "desc": {"Axis": 1, "OutputCount": 3}}],
        "outputs": {"first": "s.output_0"},
    }
    windows = FakeWindows()
    with opened(windows) as made:
        (first,) = computed(made, graph_of(document, x=X), X)
    np.testing.assert_array_equal(np.frombuffer(first, np.float32), X[:, 0])


def gather(indices: Any) -> dict[str, Any]:
    return {
        "inputs": {"x": F32, **({"i": {}} if indices is None else {})},
        "constants": {} if indices is None else {"i": {"dtype": "I32", "shape": [1, len(indices)], "data": indices}},
        "nodes": [
            {"name": "n", "op_type": "Neg", "inputs": ["x"]},
            {"name": "y", "type": "GATHER", "inputs": {"InputTensor": "n", "IndicesTensor": "i"},
             "desc": {"Axis": 1, "IndexDimensions": 1}},
        ],
        "outputs": {"y": "y"},
    }  # fmt: skip


def test_indices_are_limited_before_directml_sees_them() -> None:
    windows, indices = FakeWindows(), np.array([[9, -1]], np.int32)
    with opened(windows) as made:
        (y,) = computed(made, graph_of(gather(None), x=X, i=indices), X, indices)
        (z,) = computed(made, graph_of(gather([9, -1]), x=X), X)
    np.testing.assert_array_equal(np.frombuffer(y, np.float32).reshape(2, 2), -X[:, [2, 2]])
    np.testing.assert_array_equal(np.frombuffer(z, np.float32).reshape(2, 2), -X[:, [2, 2]])


def test_an_index_that_writes_outside_is_refused() -> None:
    document = {
        "inputs": {"x": F32, "i": {}, "u": {}},
        "nodes": [
            {"name": "y", "type": "SCATTER_ELEMENTS", "desc": {"Axis": 0},
             "inputs": {"InputTensor": "x", "IndicesTensor": "i", "UpdatesTensor": "u"}},
            {"name": "z", "op_type": "Neg", "inputs": ["y"]},
        ],
        "outputs": {"z": "z"},
    }  # fmt: skip
    i, u = np.array([[7, 0, 0]], np.int32), np.ones((1, 3), np.float32)
    with opened(FakeWindows()) as made, pytest.raises(InvalidDescriptor, match="DirectML would write outside"):
        computed(made, graph_of(document, x=X, i=i, u=u), X, i, u)


def reason(made: DirectmlBackend, document: Mapping[str, Any], **inputs: np.ndarray[Any, Any]) -> str:
    found = made.refusal_reason(make_plan(graph_of(document, **inputs), 1 << 20))
    assert found is not None
    return found


def test_what_it_does_not_take_is_said_with_the_node() -> None:
    computed_indices = {
        "inputs": {"x": F32},
        "nodes": [
            {
                "name": "i",
                "type": "CAST",
                "inputs": "x",
                "desc": {"OutputTensor": {"DataType": "INT32", "Sizes": [2, 3]}},
            },
            {"name": "y", "type": "GATHER_ELEMENTS", "inputs": {"InputTensor": "x", "IndicesTensor": "i"},
             "desc": {"Axis": 0}},
        ],
        "outputs": {"y": "y"},
    }  # fmt: skip
    unknown = {
        "inputs": {"x": F32},
        "nodes": [{"name": "big", "op_type": "Cast", "inputs": ["x"], "attributes": {"to": "bfloat16"}}],
        "outputs": {"y": "big"},
    }
    with opened(FakeWindows()) as made:
        assert reason(made, computed_indices, x=X) == (
            "node 'y': its indices are computed by a node, and DirectML does not check them"
        )
        assert reason(made, unknown, x=X).startswith("node 'big': ")
    with opened(FakeWindows(level=0x1000)) as made:
        assert "CompileGraph" in reason(made, CHAIN, x=X)


def test_an_output_that_a_join_reads_is_refused() -> None:
    """DirectML 1.15.4 gives another answer for it: see `_joined_output`."""
    document: dict[str, Any] = {
        "inputs": {"x": F32},
        "nodes": [
            {"name": "a", "type": "JOIN", "inputs": {"InputTensors": ["x", "x"]}, "desc": {"Axis": 0}},
            {"name": "b", "op_type": "Identity", "inputs": ["a"]},
            {"name": "c", "type": "JOIN", "inputs": {"InputTensors": ["b", "b"]}, "desc": {"Axis": 0}},
            {"name": "d", "op_type": "Neg", "inputs": ["c"]},
        ],
        "outputs": {"d": "d", "a": "a"},
    }
    with opened(FakeWindows()) as made:
        assert reason(made, document, x=X).startswith("node 'a': DirectML 1.15.4 may write over an output")
        without = {**document, "outputs": {"d": "d"}}
        assert made.refusal_reason(make_plan(graph_of(without, x=X), 1 << 20)) is None


def test_a_graph_that_directml_does_not_compile_is_refused_from_then_on() -> None:
    with opened(FakeWindows(not_compiled=("GRAPH",))) as made:
        plan = make_plan(graph_of(CHAIN, x=X), 1 << 20)
        assert made.refusal_reason(plan) is None
        with pytest.raises(NoBackend, match=r"CompileGraph\(3 nodes\) returned 0x80004005"):
            made.start(plan, [X.view(np.uint8).reshape(-1).data])
        assert "CompileGraph" in str(made.refusal_reason(plan))
