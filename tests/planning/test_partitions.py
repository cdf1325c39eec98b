"""Which nodes ONNX Runtime computes as one model, and that they give the bytes that each gives by itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.conformance.test_graphs import node_by_node, outputs_of
from tests.onnx.test_versions import SAMPLES, call
from tests.support.graph_cases import layouts_of
from tests.support.onnx_nodes import compute

from tensorpost.graphs.graph_document import read_graph
from tensorpost.onnx import ONNX_OPERATORS, OnnxNode
from tensorpost.values.graph import Graph
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter
from tensorpost_server.backends import Backend
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.operators.onnx_partition import gives_same_bytes
from tensorpost_server.planning import Plan, make_plan

onnx = pytest.importorskip("onnx", reason="onnx is not installed; it has no wheel for every Python")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python")

CHANCE = np.random.default_rng(3)
X = CHANCE.standard_normal((1, 4, 8, 8)).astype(np.float32)
W = CHANCE.standard_normal((4, 4, 3, 3)).astype(np.float32)
SAME = {"pads": [1, 1, 1, 1]}
ODD = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-42, -1e-42, 0.5, -2.5, 3.4e38, -3.4e38, 1.0]


def node(name: str, op_type: str, inputs: Sequence[str], **attributes: Any) -> dict[str, Any]:
    return {"name": name, "op_type": op_type, "opset": 17, "inputs": [*inputs], "attributes": attributes}


def conv(name: str, *inputs: str) -> dict[str, Any]:
    return node(name, "Conv", [*inputs, "w"], **SAME)


def graph_of(nodes: Sequence[dict[str, Any]], *outputs: str) -> Graph:
    read = {name for each in nodes for name in each["inputs"]}
    document = {
        "inputs": {name: {} for name in ("x", "w") if name in read}, "nodes": [*nodes],
        "outputs": {name.replace(".", "_"): name for name in outputs or (nodes[-1]["name"],)},
    }  # fmt: skip
    arrays = {name: array for name, array in (("x", X), ("w", W)) if name in read}
    return read_graph(document, layouts_of(arrays))


def names(plan: Plan) -> list[str]:
    """The steps; each with how many nodes it has, if ONNX Runtime computes it."""
    found: list[str] = []
    for step in plan.steps:
        nodes = dict(getattr(step.form, "parameters", ())).get("nodes", ())
        found.append(f"{step.name} {len(nodes) or 1}" if step.form.library else step.name)
    return found


def planned(nodes: Sequence[dict[str, Any]], *outputs: str) -> list[str]:
    """The names of the steps, whose bytes are those of the nodes one after another."""
    graph = graph_of(nodes, *outputs)
    inputs = [{"x": X, "w": W}[slot.name].tobytes() for slot in graph.inputs]
    assert outputs_of(NumpyBackend(), graph, inputs, 1 << 20) == node_by_node(NumpyBackend(), graph, inputs)
    return names(make_plan(graph, 1 << 20))


def test_what_hangs_together_is_one_step():
    nodes = [
        conv("a", "x"), node("r", "Relu", ["a"]), node("p", "MaxPool", ["r"], kernel_shape=[2, 2]), conv("b", "p"),
        node("sum", "Add", ["b", "p"]), conv("c", "sum"), node("soft", "Softmax", ["c"]),
    ]  # fmt: skip

    assert planned(nodes) == ["c 6", "soft"]
    assert planned(nodes, "soft", "r", "sum") == ["c 6", "soft"]


def test_what_comes_before_and_after_stays_with_the_backend():
    nodes = [
        node("m", "Mul", ["x", "x"]), conv("a", "m"), node("r", "Relu", ["a"]), conv("b", "r"), node("s", "Relu", ["b"])
    ]  # fmt: skip

    assert planned(nodes) == ["m", "b 3", "s"]


def test_a_node_between_two_others_parts_them():
    """`soft` reads what `a` makes, and `b` reads `soft`: one step of both would wait for itself."""
    nodes = [
        conv("a", "x"), node("soft", "Softmax", ["a"]), node("sum", "Add", ["a", "soft"]), conv("b", "sum"),
        conv("c", "b"), conv("d", "a"), node("last", "Sum", ["d", "c"]), conv("e", "last"),
    ]  # fmt: skip

    assert planned(nodes) == ["d 2", "soft", "sum", "e 4"]


def test_single_nodes_stay_steps():
    assert planned([conv("a", "x"), node("soft", "Softmax", ["a"])]) == ["a 1", "soft"]
    assert planned([conv("a", "x"), node("s", "Sigmoid", ["a"]), conv("b", "s")]) == ["a 1", "s", "b 1"]


def test_nodes_of_two_opsets_are_computed_as_each_says():
    """ReduceSum-like change of meaning: Dropout-7 and Dropout-13 do not fit into one model, so the older stays alone."""
    nodes = [
        conv("a", "x"), conv("b", "a"),
        node("old", "AveragePool", ["b"], kernel_shape=[2, 2]) | {"opset": 7},
        node("new", "AveragePool", ["b"], kernel_shape=[2, 2]) | {"opset": 19},
    ]  # fmt: skip

    assert planned(nodes, "old", "new") == ["new 3", "old 1"]


def test_what_a_partition_holds():
    """Tensors of 1 KiB: of a chain the input, the weights (576 bytes), and two at a time; here the output is kept."""
    graph = graph_of([conv("a", "x"), conv("b", "a"), conv("c", "b"), conv("d", "c")])

    (step,) = make_plan(graph, 1 << 20).steps

    columns = 4 * 9 * 64 * 8  # of one image, for a convolution as a product
    assert dict(step.form.parameters)["memory_bytes"] == 2 * (1024 + 576 + 2 * 1024) + columns + (64 << 20)


def drawn(chance: random.Random) -> tuple[list[dict[str, Any]], list[str]]:
    """Nodes that keep the sizes of X, mostly; some are ONNX Runtime's, some give its bytes, some do neither."""
    tensors, nodes = ["x"], list[dict[str, Any]]()
    for place in range(chance.randint(2, 14)):
        read = [chance.choice(tensors[-4:]) for _ in range(2)]
        name = f"n{place}"
        kind = chance.choice(["Conv", "Conv", "Pool", "Norm", "Relu", "Add", "Mul", "Sub", "Sum", "Softmax", "Sigmoid",
                              "Transpose", "Parts"])  # fmt: skip
        if kind == "Conv":
            nodes.append(conv(name, read[0]))
        elif kind == "Pool":
            nodes.append(node(name, "MaxPool", read[:1], kernel_shape=[3, 3], **SAME))
        elif kind == "Norm":
            nodes.append(node(name, "LpNormalization", read[:1], axis=1))
        elif kind == "Parts":
            nodes.append(node(f"{name}s", "Split", read[:1], axis=1) | {"outputs": 2, "opset": 13})
            nodes.append(node(name, "Concat", [f"{name}s.output_1", f"{name}s.output_0"], axis=1))
        elif kind == "Transpose":
            nodes.append(node(name, kind, read[:1], perm=[0, 1, 3, 2]))
        else:
            nodes.append(node(name, kind, read if kind in ("Add", "Mul", "Sub", "Sum") else read[:1]))
        tensors.append(name)
    made = [each["name"] for each in nodes if not each["name"].endswith("s")]
    return nodes, sorted({made[-1], *chance.sample(made, k=min(2, len(made)))})


@pytest.mark.parametrize("seed", range(40))
def test_drawn_graphs_give_the_bytes_of_their_nodes(backend: Backend, seed: int):
    if not backend.inline or backend.name == "null":
        pytest.skip("devices do not compute what ONNX Runtime does")
    nodes, outputs = drawn(random.Random(seed))
    graph = graph_of(nodes, *outputs)
    inputs = [{"x": X, "w": W}[slot.name].tobytes() for slot in graph.inputs]

    assert outputs_of(backend, graph, inputs, 1 << 20) == node_by_node(backend, graph, inputs)


def by_runtime(op: OnnxNode, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """What the model that is written of a node gives, in a graph that ONNX Runtime computes as a whole."""
    slots = [slot.name for slot in op.inputs]
    members = op.to_json() | {"name": "node"}
    members["inputs"] |= {name: name for name in slots}
    outputs = {slot.name: "node" if len(op.outputs) == 1 else f"node.{slot.name}" for slot in op.outputs}
    document = {"inputs": {name: {} for name in slots}, "nodes": [members], "outputs": outputs}
    graph = read_graph(document, layouts_of(dict(zip(slots, arrays, strict=True))))
    plan = make_plan(graph, 1 << 20, by_onnx_runtime=True)
    run = NumpyBackend().start(plan, [np.ascontiguousarray(each).reshape(-1).view(np.uint8).data for each in arrays])
    blocks = b"".join([bytes(run.compute(index)) for index in range(len(plan.slices))])
    found: list[NDArray[Any]] = []
    for slot in plan.outputs:
        found.append(slot.layout.view(blocks[: slot.layout.size_in_bytes]))
        blocks = blocks[slot.layout.size_in_bytes :]
    return found
