"""Which nodes ONNX Runtime computes as one model, and that they give the bytes that each gives by itself."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
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
from tensorpost.values.datatypes import data_type
from tensorpost.values.graph import Graph, GraphInput
from tensorpost.values.layout import Layout
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter, LimitExceeded
from tensorpost_server.backends import Backend, load_backend
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.child_processes.libraries import ONNX_RUNTIME
from tensorpost_server.forms import Array
from tensorpost_server.operators import form_of
from tensorpost_server.operators.onnx_model_writer import WrittenNode, model_bytes
from tensorpost_server.operators.onnx_partition import (
    NEAR_FROM,
    SAME_FROM,
    TYPED_FROM,
    PartitionNode,
    gives_near_bytes,
    gives_same_bytes,
    partition_form,
)
from tensorpost_server.planning import Plan, make_plan

onnx = pytest.importorskip("onnx", reason="onnx is not installed; it has no wheel for every Python")
helper = onnx.helper
onnxruntime = pytest.importorskip(
    "onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python"
)

CHANCE = np.random.default_rng(3)
X = CHANCE.standard_normal((1, 4, 8, 8)).astype(np.float32)
W = CHANCE.standard_normal((4, 4, 3, 3)).astype(np.float32)
SAME = {"pads": [1, 1, 1, 1]}
ODD = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-42, -1e-42, 0.5, -2.5, 3.4e38, -3.4e38, 1.0]


@pytest.fixture(scope="module", autouse=True)
def ended_processes() -> Iterator[None]:
    yield
    ONNX_RUNTIME.close()


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
    """AveragePool-7 and AveragePool-19 do not fit into one model, so the older stays alone."""
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
    assert isinstance(step.form, Array)
    assert dict(step.form.parameters)["memory_bytes"] == 2 * (1024 + 576 + 2 * 1024) + columns + (64 << 20)


def test_one_thread_computes_a_partition():
    """The memory of its process is reserved once, however many threads compute what follows."""
    nodes = [conv("a", "x"), conv("b", "a"), node("s", "Sigmoid", ["b"])]
    plan = make_plan(graph_of(nodes), 64)
    assert (names(plan), plan.most_parts) == (["b 2", "s"], 16)

    assert NumpyBackend(threads=8).held_bytes(plan) - NumpyBackend(threads=1).held_bytes(plan) < 1024
    assert NumpyBackend(threads=1).held_bytes(plan) >= 64 << 20


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
            nodes.append(node(name, "Concat", [f"{name}s.outputs_1", f"{name}s.outputs_0"], axis=1))
        elif kind == "Transpose":
            nodes.append(node(name, kind, read[:1], perm=[0, 1, 3, 2]))
        else:
            nodes.append(node(name, kind, read if kind in ("Add", "Mul", "Sub", "Sum") else read[:1]))
        tensors.append(name)
    made = [each["name"] for each in nodes if not each["name"].endswith("s")]
    read = {name for each in nodes for name in each["inputs"]}
    return nodes, sorted({*made} - read | {*chance.sample(made, k=min(2, len(made)))})


@pytest.fixture(scope="module", params=["numpy", "numba"])
def backend(request: pytest.FixtureRequest) -> Backend:
    try:
        return load_backend(request.param)(threads=1)  # pyright: ignore[reportCallIssue] # a Protocol has no constructor
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"{request.param} cannot be opened here: {error}")


@pytest.mark.parametrize("seed", range(40))
def test_drawn_graphs_give_the_bytes_of_their_nodes(backend: Backend, seed: int):
    nodes, outputs = drawn(random.Random(seed))
    graph = graph_of(nodes, *outputs)
    inputs = [{"x": X, "w": W}[slot.name].tobytes() for slot in graph.inputs]

    assert outputs_of(backend, graph, inputs, 1 << 20) == node_by_node(backend, graph, inputs)


def alone(op: OnnxNode, arrays: Sequence[NDArray[Any]], *, as_ours: bool) -> list[NDArray[Any]]:
    """What ONNX Runtime makes of a partition of one node."""
    inputs = range(len(op.inputs))
    outputs = range(len(inputs), len(inputs) + len(op.outputs))
    part = PartitionNode(op, form_of(op), "node", tuple(inputs), tuple(outputs))
    opset = max(8, op.schema.since_version)
    return [*partition_form([part], inputs, outputs, {"": opset}, as_ours=as_ours).compute(np, arrays)]


def samples() -> Iterator[tuple[OnnxNode, list[NDArray[Any]]]]:
    """Nodes of every version of every operator with a form of its own, and their tensors."""
    for schema in ONNX_OPERATORS:
        for tensors, settings in SAMPLES.get(schema.op_type, ()):
            if (what := call(schema, tensors, settings)) is None or schema.since_version > 25:
                continue
            names = [slot.name for slot in schema.inputs if not slot.variadic]
            names += [f"{slot.name}_{at}" for slot in schema.inputs if slot.variadic for at in range(len(what[0]))]
            given = {name: np.asarray(x) for name, x in zip(names, what[0], strict=False) if x is not None}
            with suppress(InvalidDescriptor):  # of types that the version does not have
                op = OnnxNode.of(schema.op_type, given, opset=schema.since_version, **what[1])
                yield op, [given[slot.name] for slot in op.inputs]


def with_one_nan(array: NDArray[Any]) -> bytes:
    return (
        np.where(np.isnan(array), np.float32(np.nan), array).tobytes() if array.dtype.kind == "f" else array.tobytes()
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_joins_gives_the_same_bytes():
    compared = set[str]()
    for op, arrays in samples():
        if gives_same_bytes(op):
            found = alone(op, arrays, as_ours=True)
            ours = compute(op, {slot.name: x for slot, x in zip(op.inputs, arrays, strict=True)})
            assert [*map(with_one_nan, found)] == [*map(with_one_nan, ours)], op.name
            compared.add(op.name)
    assert {name.rpartition("-")[0] for name in compared} == {*SAME_FROM}
    assert len(compared) > 60, compared
    assert max(int(name.rpartition("-")[2]) for name in compared) == 21


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_joins_where_weights_are_held_differs_in_last_bits():
    compared = set[str]()
    for op, arrays in samples():
        if gives_near_bytes(op) and not gives_same_bytes(op):
            (found,) = alone(op, arrays, as_ours=False)
            (ours,) = compute(op, {slot.name: x for slot, x in zip(op.inputs, arrays, strict=True)})
            np.testing.assert_allclose(found, ours, rtol=1e-5, atol=1e-6, err_msg=op.name)
            compared.add(op.name)
    assert {name.rpartition("-")[0] for name in compared} == {*NEAR_FROM, *TYPED_FROM}
    assert len(compared) > 25, compared


KEPT = memoryview(CHANCE.standard_normal((3, 3, 3, 3)).astype(np.float32).tobytes())


def kept_graph(nodes: Sequence[dict[str, Any]], *outputs: str) -> Graph:
    """A graph whose input `w` a stored graph keeps."""
    document = {"inputs": {"x": {}, "w": {}}, "nodes": [*nodes], "outputs": {name: name for name in outputs}}
    kind = data_type("float32")
    weights = {"w": (Layout.row_major(kind, (3, 3, 3, 3)), KEPT)}
    return read_graph(document, {"x": Layout.row_major(kind, (1, 3, 8, 8))}, weights=weights)


def test_where_weights_are_held_what_comes_before_and_after_joins(monkeypatch: pytest.MonkeyPatch):
    nodes = [
        node("a", "Sigmoid", ["x"]), node("c", "Conv", ["a", "w"], pads=[1, 1, 1, 1]), node("s", "Softmax", ["c"]),
        node("k", "Cast", ["s"], to="int32"),
    ]  # fmt: skip
    graph = kept_graph(nodes, "k")
    monkeypatch.setattr(ONNX_RUNTIME, "session_bytes", 0)
    assert [step.name for step in make_plan(graph, 1 << 20).steps] == ["a", "c", "s", "k"]

    monkeypatch.setattr(ONNX_RUNTIME, "session_bytes", 1 << 20)
    plan = make_plan(graph, 1 << 20)
    assert [step.name for step in plan.steps] == ["s", "k"]
    assert plan.steps[0].form.library == "onnxruntime-optimized"
    assert plan.steps[0].sources == (GraphInput(0),)  # the weights are no input

    monkeypatch.setattr(ONNX_RUNTIME, "session_bytes", 2 * len(KEPT))  # too little: a session takes more
    assert [step.name for step in make_plan(graph, 1 << 20).steps] == ["a", "c", "s", "k"]


def numbers(size: int) -> NDArray[Any]:
    """Numbers of every magnitude, with those that are treated in a special way among them."""
    ordinary = [CHANCE.standard_normal(size), CHANCE.standard_normal(size) * 10.0 ** CHANCE.integers(-44, 38, size)]
    with np.errstate(over="ignore"):
        return CHANCE.permutation(np.concatenate([*ordinary, np.resize(ODD, size)])).astype(np.float32)


@pytest.mark.parametrize(
    ("op_type", "count", "attributes"),
    [
        ("Add", 2, {}), ("Sub", 2, {}), ("Mul", 2, {}), ("Div", 2, {}), ("Sum", 3, {}), ("Max", 3, {}), ("Min", 3, {}),
        ("Abs", 1, {}), ("Neg", 1, {}), ("Sqrt", 1, {}), ("LeakyRelu", 1, {"alpha": 0.1}), ("PRelu", 2, {}),
        ("Ceil", 1, {}), ("Floor", 1, {}), ("Relu", 1, {}), ("Clip", 1, {"min": 0.0, "max": 6.0}),
        ("Clip", 1, {"min": -0.5, "max": 0.0}), ("Clip", 1, {"min": -0.0}),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numbers_of_every_magnitude_give_the_same_bytes(
    backend: Backend, op_type: str, count: int, attributes: dict[str, Any]
):
    given = [numbers(20_000) for _ in range(count)]
    versions: list[OnnxNode] = []
    if op_type == "Clip":
        versions.append(OnnxNode.of("Clip", {"input": given[0]}, opset=6, **attributes))
        bounds = {name: np.float32(bound) for name, bound in attributes.items()}
        versions.append(OnnxNode.of("Clip", {"input": given[0], **bounds}, opset=13))
    else:
        named = {("X", "slope")[at] if op_type in ("PRelu", "LeakyRelu", "Relu", "Abs", "Neg", "Sqrt", "Ceil", "Floor")
                 else f"data_0_{at}" if op_type in ("Sum", "Max", "Min") else "AB"[at]: x
                 for at, x in enumerate(given)}  # fmt: skip
        versions.append(OnnxNode.of(op_type, named, opset=17, **attributes))
    for op in versions:
        names = [slot.name for slot in op.inputs]
        arrays = {name: np.asarray(attributes[name], np.float32) for name in names if name in attributes}
        arrays |= dict(zip([name for name in names if name not in attributes], given, strict=True))
        (ours,) = compute(op, arrays, backend)
        (found,) = alone(op, [arrays[name] for name in names], as_ours=True)
        assert gives_same_bytes(op)
        assert with_one_nan(found) == with_one_nan(ours)


def test_a_partition_ends_at_the_time_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ONNX_RUNTIME, "seconds", 0.3)
    kernel = 200_000
    pooled = node("p", "LpPool", ["x"], kernel_shape=[kernel, 1], pads=[kernel - 1, 0, kernel - 1, 0]) | {"opset": 11}
    plan = make_plan(graph_of([pooled, node("q", "MaxPool", ["p"], kernel_shape=[2, 1])]), 1 << 20)

    with pytest.raises(LimitExceeded, match=r"2 nodes from 'p' to 'q' for longer than the 0.3 s"):
        NumpyBackend().start(plan, [memoryview(X.tobytes())]).compute(0)


# ---- a whole graph by ONNX Runtime -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_operator_is_written_as_onnx_runtime_reads_it():
    """The models are ours, the checker is the package's, and so is what ONNX Runtime makes of the package's models."""
    compared = set[str]()
    for op, arrays in samples():
        if op.schema.since_version < 7:
            continue  # ONNX Runtime's own range
        inputs = [(slot.name, tensor) for slot, (_, tensor) in zip(op.inputs, op.tensors, strict=True)]
        written = WrittenNode(op, "node", tuple([name for name, _ in inputs]), tuple([name for name, _ in op.results]))
        model = onnx.load_from_string(model_bytes([written], inputs, op.results, {"": op.schema.since_version}))
        onnx.checker.check_model(model, full_check=True)
        expected = compute(op, {slot.name: x for slot, x in zip(op.inputs, arrays, strict=True)})
        for found, wanted in zip(alone(op, arrays, as_ours=False), expected, strict=True):
            assert (found.size, found.dtype) == (wanted.size, wanted.dtype), op.name
            np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=2e-6, atol=2e-6, err_msg=op.name)
        compared.add(op.op_type)
    assert len(compared) > 100, sorted(compared)


def test_a_whole_graph_is_one_step_of_onnx_runtime():
    nodes = [conv("a", "x"), node("s", "Sigmoid", ["a"]), node("soft", "Softmax", ["s"])]
    graph = graph_of(nodes, "soft", "a")

    plan = make_plan(graph, 1 << 20, by_onnx_runtime=True)

    assert names(plan) == ["soft 3"]
    made = [helper.make_node("Conv", ["x", "w"], ["a"], **SAME), helper.make_node("Sigmoid", ["a"], ["s"]),
            helper.make_node("Softmax", ["s"], ["soft"])]  # fmt: skip
    given = [helper.make_tensor_value_info(name, 1, array.shape) for name, array in (("x", X), ("w", W))]
    sent = [helper.make_empty_tensor_value_info(name) for name in ("soft", "a")]
    proto = helper.make_model(
        helper.make_graph(made, "g", given, sent), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    run = NumpyBackend().start(plan, [memoryview({"x": X, "w": W}[slot.name].tobytes()) for slot in plan.inputs])
    assert [bytes(run.compute(at)) for at in range(2)] == [
        each.tobytes() for each in session.run(None, {"x": X, "w": W})
    ]


def test_what_is_not_onnx_is_refused_as_a_whole():
    tile = {"name": "tile", "type": "TILE", "inputs": ["a"], "desc": {"Repeats": [1, 1, 1, 1]}}
    with pytest.raises(InvalidParameter, match=r"backend=onnxruntime computes .* 'tile' is DirectML's TILE"):
        make_plan(graph_of([conv("a", "x"), tile]), 1 << 20, by_onnx_runtime=True)
    mixed = [node("old", "Softmax", ["x"]) | {"opset": 11}, node("new", "Softmax", ["old"])]
    with pytest.raises(InvalidParameter, match=r"the node 'old' \(Softmax-11\) is another version at opset 13"):
        make_plan(graph_of(mixed), 1 << 20, by_onnx_runtime=True)
