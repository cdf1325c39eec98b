"""If, Loop, Scan and ai.onnx.ml in models, beside ONNX Runtime, which runs the models as they are."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from tests.support.http_app import FRAME, JSON, AppClient, assert_problem, frame_bytes, http_app, split_frame
from typer.testing import CliRunner

import onnx
from onnx import TensorProto, helper, numpy_helper
from tensorpost import Client
from tensorpost.calls.model_calls import model_call
from tensorpost.command_line.cli import app as command_line
from tensorpost.graphs.graph_document import read_graph
from tensorpost.graphs.graph_wordings import dml_graph_of, document_of
from tensorpost.problems import InvalidDescriptor, TensorpostError
from tensorpost_server.planning import make_plan

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 12)).astype(np.float32)
WEIGHT = RNG.standard_normal((12, 12)).astype(np.float32)


def value(name: str, kind: int = FLOAT, *sizes: int | str | None) -> Any:
    return helper.make_tensor_value_info(name, kind, sizes)


def graph(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], constants: Mapping[str, Any] | None = None
) -> Any:  # fmt: skip
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    return helper.make_graph(nodes, "graph", inputs, outputs, initializers)


def model_of(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], constants: Mapping[str, Any] | None = None,
    functions: Sequence[Any] = (), **domains: int,
) -> onnx.ModelProto:  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    opsets += [helper.make_opsetid(domain.replace("_", "."), version) for domain, version in domains.items()]
    made = helper.make_model(
        graph(nodes, inputs, outputs, constants), opset_imports=opsets, ir_version=8, functions=functions
    )
    onnx.checker.check_model(made)
    return made


def by_runtime(model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: Any = session.run(None, dict(inputs))
    return [*found]


node = helper.make_node
OF_SUM = [node("ReduceSum", ["x"], ["sum"], keepdims=0), node("Greater", ["sum", "zero"], ["positive"])]
ZERO = {"zero": np.float32(0)}


def branches() -> onnx.ModelProto:
    """A condition that depends on elements; both branches read the graph outside, and use one name for two tensors."""
    then = graph(
        [node("MatMul", ["h", "w"], ["inner"]), node("Tanh", ["inner"], ["t"])], [], [value("t", FLOAT, 4, 12)]
    )
    other = graph([node("Neg", ["h"], ["inner"]), node("Abs", ["inner"], ["e"])], [], [value("e", FLOAT, 4, 12)])
    choice = node("If", ["positive"], ["chosen"], then_branch=then, else_branch=other, name="choice")
    nodes = [*OF_SUM, node("Relu", ["x"], ["h"]), choice, node("Add", ["chosen", "x"], ["y"])]
    return model_of(nodes, [value("x", FLOAT, 4, 12)], [value("y", FLOAT, 4, 12)], {**ZERO, "w": WEIGHT})


def counted_loop() -> onnx.ModelProto:
    """Five iterations: one carried tensor, a stacked result, weights in the body and outside."""
    constants = {"w": WEIGHT, "half": np.float32(0.5)}
    body = graph(
        [
            node("Identity", ["more"], ["more_out"]),
            node("MatMul", ["state", "w"], ["m"]),
            node("Mul", ["m", "half"], ["n"]),
            node("Add", ["n", "outside"], ["state_out"]),
            node("ReduceMax", ["state_out"], ["largest"], axes=[1], keepdims=0),
        ],
        [value("i", INT64), value("more", BOOL), value("state", FLOAT, 4, 12)],
        [value("more_out", BOOL), value("state_out", FLOAT, 4, 12), value("largest", FLOAT, 4)],
        constants,
    )
    loop = node("Loop", ["count", "", "x"], ["last", "all"], body=body, name="loop")
    outputs = [value("last", FLOAT, 4, 12), value("all", FLOAT, 5, 4)]
    nodes = [node("Sigmoid", ["x"], ["outside"]), loop]
    return model_of(nodes, [value("x", FLOAT, 4, 12)], outputs, {"count": np.int64(5)})


def while_loop() -> onnx.ModelProto:
    """Doubled until the sum is large enough; how often that is depends on elements."""
    body = graph(
        [
            node("Add", ["state", "state"], ["state_out"]),
            node("ReduceSum", ["state_out"], ["s"], keepdims=0),
            node("Less", ["s", "limit"], ["more_out"]),
        ],
        [value("i", INT64), value("more", BOOL), value("state", FLOAT, 4, 12)],
        [value("more_out", BOOL), value("state_out", FLOAT, 4, 12)],
    )
    nodes = [node("Abs", ["x"], ["a"]), node("Loop", ["", "yes", "a"], ["y"], body=body, name="loop")]
    constants = {"yes": np.array(True), "limit": np.float32(1000)}
    return model_of(nodes, [value("x", FLOAT, 4, 12)], [value("y", FLOAT, 4, 12)], constants)


def scan() -> onnx.ModelProto:
    """A running sum along axis 1, from the end, stacked along the last axis."""
    body = graph(
        [node("Add", ["state", "column"], ["state_out"]), node("Mul", ["state_out", "scale"], ["row"])],
        [value("state", FLOAT, 4), value("column", FLOAT, 4)], [value("state_out", FLOAT, 4), value("row", FLOAT, 4)],
    )  # fmt: skip
    directions: dict[str, Any] = {"scan_input_axes": [1], "scan_input_directions": [1], "scan_output_axes": [-1]}
    nodes = [node("Scan", ["start", "x"], ["end", "y"], body=body, num_scan_inputs=1, name="scan", **directions)]
    outputs = [value("end", FLOAT, 4), value("y", FLOAT, 4, 12)]
    return model_of(
        nodes, [value("x", FLOAT, 4, 12)], outputs, {"start": np.zeros(4, np.float32), "scale": np.float32(2)}
    )


def scan_without_shapes() -> onnx.ModelProto:
    """A body that declares no shapes: those of its outputs follow from a constant outside, the axes of an Unsqueeze."""
    untyped = helper.make_empty_tensor_value_info
    body = graph(
        [node("Unsqueeze", ["row", "axes"], ["wide"]), node("Add", ["state", "wide"], ["state_out"]),
         node("Identity", ["state_out"], ["out"])],
        [untyped("state"), untyped("row")], [untyped("state_out"), untyped("out")],
    )  # fmt: skip
    nodes = [node("Neg", ["x"], ["n"]), node("Scan", ["start", "n"], ["end", "y"], body=body, num_scan_inputs=1)]
    outputs = [value("end", FLOAT, 1, 12), value("y", FLOAT, 4, 1, 12)]
    constants = {"start": np.zeros((1, 12), np.float32), "axes": np.array([0])}
    return model_of(nodes, [value("x", FLOAT, 4, 12)], outputs, constants)


def nested() -> onnx.ModelProto:
    """A loop in a branch, whose body has a branch, which reads all three graphs around it."""
    inner_then = graph([node("Mul", ["state", "w1"], ["it"])], [], [value("it", FLOAT, 4, 12)])
    inner_else = graph([node("Sub", ["state", "b"], ["ie"])], [], [value("ie", FLOAT, 4, 12)])
    body = graph(
        [
            node("Cast", ["i"], ["even"], to=BOOL),
            node("If", ["even"], ["state_out"], then_branch=inner_then, else_branch=inner_else),
            node("Identity", ["more"], ["more_out"]),
        ],
        [value("i", INT64), value("more", BOOL), value("state", FLOAT, 4, 12)],
        [value("more_out", BOOL), value("state_out", FLOAT, 4, 12)],
    )
    then = graph(
        [node("Neg", ["x"], ["b"]), node("Loop", ["three", "", "x"], ["looped"], body=body)], [],
        [value("looped", FLOAT, 4, 12)], {"three": np.int64(3)},
    )  # fmt: skip
    other = graph([node("Identity", ["x"], ["same"])], [], [value("same", FLOAT, 4, 12)])
    choice = node("If", ["positive"], ["y"], then_branch=then, else_branch=other, name="outer")
    constants = {**ZERO, "w1": RNG.standard_normal(12).astype(np.float32)}
    return model_of([*OF_SUM, choice], [value("x", FLOAT, 4, 12)], [value("y", FLOAT, 4, 12)], constants)


def in_function() -> onnx.ModelProto:
    """The same function called twice, with a branch in it."""
    then = graph([node("Exp", ["a"], ["t"])], [], [value("t", FLOAT, 4, 12)])
    other = graph([node("Mul", ["a", "twice"], ["e"])], [], [value("e", FLOAT, 4, 12)])
    nodes = [
        node("Constant", [], ["twice"], value=numpy_helper.from_array(np.array(2, np.float32))),
        node("Constant", [], ["none"], value=numpy_helper.from_array(np.array(0, np.float32))),
        node("ReduceSum", ["a"], ["s"], keepdims=0),
        node("Greater", ["s", "none"], ["c"]),
        node("If", ["c"], ["r"], then_branch=then, else_branch=other),
    ]
    function = helper.make_function("local", "either", ["a"], ["r"], nodes, [helper.make_opsetid("", 17)])
    calls = [node("either", ["x"], ["h"], domain="local"), node("Neg", ["h"], ["n"])]
    calls += [node("either", ["n"], ["y"], domain="local")]
    return model_of(calls, [value("x", FLOAT, 4, 12)], [value("y", FLOAT, 4, 12)], functions=[function], local=1)


def of_trees() -> onnx.ModelProto:
    """A tree of one split, then scaled: 10 where the first column is at most 0, else 20."""
    trees = node(
        "TreeEnsembleRegressor", ["x"], ["t"], domain="ai.onnx.ml", n_targets=1, nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0], nodes_values=[0.0, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[10.0, 20.0], name="trees",
    )  # fmt: skip
    scaler = node("Scaler", ["t"], ["scaled"], domain="ai.onnx.ml", offset=[10.0], scale=[0.5])
    nodes = [trees, scaler, node("Add", ["scaled", "t"], ["y"])]
    return model_of(nodes, [value("x", FLOAT, 4, 12)], [value("y", FLOAT, 4, 1)], ai_onnx_ml=3)


def of_classes() -> onnx.ModelProto:
    weights = RNG.standard_normal(36).astype(np.float32)
    classifier = node(
        "LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", coefficients=weights, name="classifier",
        intercepts=[0.1, 0.2, 0.3], classlabels_ints=[7, 8, 9], post_transform="SOFTMAX",
    )  # fmt: skip
    nodes = [classifier, node("Normalizer", ["scores"], ["y"], domain="ai.onnx.ml", norm="L1")]
    outputs = [value("label", INT64, 4), value("y", FLOAT, 4, 3)]
    return model_of(nodes, [value("x", FLOAT, 4, 12)], outputs, ai_onnx_ml=3)


MODELS: Sequence[Callable[[], onnx.ModelProto]] = [
    branches, counted_loop, while_loop, scan, scan_without_shapes, nested, in_function, of_trees, of_classes,
]  # fmt: skip


@pytest.mark.parametrize("backend", [None, "onnxruntime"])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_models_give_what_onnx_runtime_gives(
    server_url: str, make: Callable[[], onnx.ModelProto], backend: str | None
) -> None:  # fmt: skip
    model = make()
    with Client(server_url) as tp:
        for x in (X, -X, np.abs(X), -np.abs(X)):
            found = tp.run_model(model, {"x": x}, backend=backend)
            for array, expected in zip(found.values(), by_runtime(model, {"x": x}), strict=True):
                assert array.dtype == expected.dtype
                np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5)


def test_numbers_worked_by_hand(server_url: str) -> None:
    x = np.zeros((4, 12), np.float32)
    x[:, 0] = [-1, 0, 1, 2]
    with Client(server_url) as tp:
        trees = tp.run_model(of_trees(), {"x": x})["y"]
        doubled = tp.run_model(while_loop(), {"x": np.full((4, 12), 1, np.float32)})["y"]
        summed = tp.run_model(scan(), {"x": np.full((4, 12), 1, np.float32)})

    assert trees.reshape(-1).tolist() == [10, 10, 25, 25]  # t + (t - 10) / 2
    assert doubled[0, 0] == 32  # 48 times 2, 4, ... until at least 1000
    assert summed["end"].tolist() == [12] * 4
    assert summed["y"][0].tolist() == [*range(2, 26, 2)]


def with_a_switch(name: str = "sr") -> onnx.ModelProto:
    """Branches of other sizes; which is taken says an input, which is the shape of neither."""
    then = graph([node("MatMul", ["x", "w"], ["t"])], [], [value("t", FLOAT, 4, 2)], {"w": WEIGHT[:, :2]})
    other = graph([node("MatMul", ["x", "w"], ["e"])], [], [value("e", FLOAT, 4, 3)], {"w": WEIGHT[:, :3]})
    nodes = [node("Equal", [name, "first"], ["c"]), node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    nodes += [node("Neg", ["y"], ["z"])]
    inputs = [value("x", FLOAT, 4, 12), value(name, INT64)]
    return model_of(nodes, inputs, [value("z", FLOAT, 4, "k")], {"first": np.int64(16000)})


def test_a_branch_that_an_input_decides_is_computed_by_itself(server_url: str) -> None:
    model = with_a_switch()
    for rate, columns in ((16000, 2), (8000, 3)):
        inputs = {"x": X, "sr": np.array(rate)}
        call = model_call(model, inputs, None)
        assert [each["op_type"] for each in call.document["nodes"]] == ["MatMul", "Neg"]
        with Client(server_url) as tp:
            (found,) = tp.run_model(model, inputs).values()
        assert found.shape == (4, columns)
        np.testing.assert_allclose(found, -X @ WEIGHT[:, :columns], rtol=1e-5)


def test_iterations_count_as_work() -> None:
    work: list[int] = []
    for count in (5, 50):
        model = counted_loop()
        (constant,) = [each for each in model.graph.initializer if each.name == "count"]
        constant.CopyFrom(numpy_helper.from_array(np.array(count), "count"))
        work.append(make_plan(read_graph(model_call(model, {"x": X}, None).document, None), 1 << 20).work)

    assert 9 < work[1] / work[0] < 10  # and a Sigmoid before
    endless = make_plan(read_graph(model_call(while_loop(), {"x": X}, None).document, None), 1 << 20)
    assert endless.work >= 1 << 25


def test_large_constants_of_bodies_travel_as_weights() -> None:
    call = model_call(counted_loop(), {"x": X}, None)
    (loop,) = [each for each in call.document["nodes"] if "proto" in each]
    weights = [name for name in call.arrays if name != "x"]

    assert [call.arrays[name].tolist() for name in weights] == [WEIGHT.tolist()]
    assert weights[0] in loop["inputs"]
    assert WEIGHT.tobytes() not in str(call.document).encode()


# ---- what is refused -------------------------------------------------------------------------------------------------


def loop_of(nodes: Sequence[Any], carried: Any, after: Any, **constants: Any) -> onnx.ModelProto:
    body = graph(
        [node("Identity", ["more"], ["more_out"]), *nodes], [value("i", INT64), value("more", BOOL), carried],
        [value("more_out", BOOL), after], constants,
    )  # fmt: skip
    loop = node("Loop", ["count", "", "x"], ["y"], body=body, name="grow")
    made = graph([loop], [value("x", FLOAT, 4, 12)], [value("y", FLOAT, None, None)], {"count": np.int64(2)})
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def growing() -> onnx.ModelProto:
    """Until its sum is large enough."""
    body = graph(
        [node("Concat", ["s", "s"], ["t"], axis=0), node("ReduceSum", ["t"], ["sum"], keepdims=0),
         node("Less", ["sum", "limit"], ["more_out"])],
        [value("i", INT64), value("more", BOOL), value("s", FLOAT, None, 12)],
        [value("more_out", BOOL), value("t", FLOAT, None, 12)], {"limit": np.float32(1000)},
    )  # fmt: skip
    loop = node("Loop", ["", "yes", "x"], ["y"], body=body, name="grow")
    return model_of([loop], [value("x", FLOAT, 4, 12)], [value("y", FLOAT, None, 12)], {"yes": np.array(True)})


def with_external_data() -> onnx.ModelProto:
    nodes = [node("Add", ["s", "w"], ["t"])]
    model = loop_of(nodes, value("s", FLOAT, 4, 12), value("t", FLOAT, 4, 12), w=np.zeros(12, np.float32))
    (weight,) = model.graph.node[0].attribute[0].g.initializer
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"
    return model


def of_another_domain() -> onnx.ModelProto:
    nodes = [node("Odd", ["s"], ["t"], domain="com.example", name="odd")]
    return loop_of(nodes, value("s", FLOAT, 4, 12), value("t", FLOAT, 4, 12))


def deep() -> onnx.ModelProto:
    made = graph([node("Identity", ["x"], ["y0"])], [], [value("y0", FLOAT, 4, 12)])
    for level in range(1, 20):
        inner = node("If", ["c"], [f"y{level}"], then_branch=made, else_branch=made if level < 3 else graph(
            [node("Identity", ["x"], [f"e{level}"])], [], [value(f"e{level}", FLOAT, 4, 12)]))  # fmt: skip
        made = graph([inner], [], [value(f"y{level}", FLOAT, 4, 12)])
    outer = node("If", ["c"], ["y"], then_branch=made, else_branch=made, name="deep")
    whole = graph([outer], [value("x", FLOAT, 4, 12), value("c", BOOL)], [value("y", FLOAT, 4, 12)])
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def uneven() -> onnx.ModelProto:
    then = graph([node("Neg", ["x"], ["t"])], [], [value("t", FLOAT, 4, 12)])
    other = graph([node("ReduceSum", ["x"], ["e"], keepdims=1)], [], [value("e", FLOAT, 1, 1)])
    choice = node("If", ["positive"], ["y"], then_branch=then, else_branch=other, name="choice")
    return model_of([*OF_SUM, choice], [value("x", FLOAT, 4, 12)], [value("y", FLOAT, None, None)], ZERO)


def stacked() -> onnx.ModelProto:
    body = graph(
        [node("ReduceSum", ["x"], ["sum"], keepdims=0), node("Less", ["sum", "four"], ["more_out"]),
         node("Neg", ["x"], ["t"])],
        [value("i", INT64), value("more", BOOL)], [value("more_out", BOOL), value("t", FLOAT, 4, 12)],
        {"four": np.float32(4)},
    )  # fmt: skip
    loop = node("Loop", ["", "yes"], ["y"], body=body, name="while")
    return model_of([loop], [value("x", FLOAT, 4, 12)], [value("y", FLOAT, None, 4, 12)], {"yes": np.array(True)})


def zipped() -> onnx.ModelProto:
    zipper = node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[*range(12)], name="zip")
    whole = graph([zipper], [value("x", FLOAT, 4, 12)], [value("y", FLOAT, 4, 12)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (growing, r"'s' is float32 of shape \[4, 12\] before an iteration of 'grow' \(Loop\) and .*\[8, 12\] after it"),
        (with_external_data, r"'w' lies in another file \(external data\); no file is read"),
        (of_another_domain, r"in the body of 'grow' \(Loop\): the node 'odd' \(Odd\) is of the domain 'com.example'"),
        (deep, "subgraphs lie 16 deep within each other"),
        (uneven, r"'choice' \(If\) makes float32 of shape \[4, 12\] in one branch and .*\[1, 1\] in the other"),
        (stacked, r"'while' \(Loop\) stacks the results of its iterations, whose number depends on elements"),
        (zipped, r"'zip' \(ZipMap\).*options=\{'zipmap': False\}"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_is_not_computed_is_named(make: Callable[[], onnx.ModelProto], words: str) -> None:
    model = make()
    inputs = {"x": X} | ({"c": np.array(True)} if make is deep else {})

    with pytest.raises(InvalidDescriptor, match=words):
        model_call(model, inputs, None)


# ---- the server ------------------------------------------------------------------------------------------------------


@pytest.fixture
def app() -> Iterator[AppClient]:
    with http_app(backend="numpy") as client:
        yield client


def test_a_loop_without_end_is_ended_and_the_server_goes_on() -> None:
    body = graph(
        [node("Identity", ["more"], ["more_out"]), node("Neg", ["s"], ["t"])],
        [value("i", INT64), value("more", BOOL), value("s", FLOAT, 4, 12)],
        [value("more_out", BOOL), value("t", FLOAT, 4, 12)],
    )
    loop = node("Loop", ["", "yes", "x"], ["y"], body=body, name="endless")
    model = model_of([loop], [value("x", FLOAT, 4, 12)], [value("y", FLOAT, 4, 12)], {"yes": np.array(True)})

    with http_app(backend="numpy", max_seconds=1) as app:
        ended = app.get("/v1/devices").json()["libraries"][1]["ended"]["timed_out"]
        problem = assert_problem(run(app, model), 413, "limit-exceeded")
        assert problem["setting"] == "TENSORPOST_MAX_SECONDS"
        answer = run(app, counted_loop())
        assert answer.status_code == 200, answer.text
        assert app.get("/v1/devices").json()["libraries"][1]["ended"]["timed_out"] == ended + 1


def run(app: AppClient, model: onnx.ModelProto) -> Any:
    """Call a model as the SDK does."""
    call = model_call(model, {"x": X}, None)
    tensors = {name: ("F32" if array.dtype == np.float32 else "I64", array.shape, array.tobytes())
               for name, array in call.arrays.items()}  # fmt: skip
    return app.post("/v1/graphs", frame_bytes(tensors, {"graph": json.dumps(call.document)}), FRAME)


def test_a_document_with_another_model_in_it_is_refused(app: AppClient) -> None:
    call = model_call(counted_loop(), {"x": X}, None)
    document = dict(call.document)
    for proto, words in (("", "one node as base64"), ("%%", "one node as base64"), ("AAAA", "not an ONNX model")):
        nodes = [each | {"proto": proto} if "proto" in each else each for each in document["nodes"]]
        answer = app.post("/v1/validate", json.dumps(document | {"nodes": nodes}).encode(), JSON)
        assert answer.json()["valid"] is False, answer.text
        assert words in answer.text


def test_nodes_of_subgraphs_count() -> None:
    document = json.dumps(model_call(nested(), {"x": X}, None).document).encode()
    for most, valid in ((5, False), (50, True)):
        with http_app(backend="numpy", max_graph_nodes=most) as app:
            answer = app.post("/v1/validate", document, JSON)
        assert answer.json()["valid"] is valid, answer.text
        assert valid or "the subgraphs of If have" in answer.text


def test_what_computes_a_node_is_said(app: AppClient, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(counted_loop().SerializeToString())
    call = model_call(path, {"x": X}, None)

    said = app.post("/v1/validate", json.dumps(call.document).encode(), JSON).json()
    printed = CliRunner().invoke(command_line, ["model", "check", str(path)])

    assert said["onnx_runtime"] == ["loop"]
    assert [each["shape"] for each in said["outputs"]] == [[4, 12], [5, 4]]
    assert printed.exit_code == 0, printed.output
    assert re.search(r"^loop +Loop-17 +float32 +5x4 +80 bytes +ONNX Runtime", printed.output, re.MULTILINE)
    assert re.search(r"^Sigmoid +Sigmoid-13 +float32 +4x12 +192 bytes *$", printed.output, re.MULTILINE)


def test_a_graph_with_a_loop_is_written_as_it_was_read() -> None:
    call = model_call(counted_loop(), {"x": X}, None)
    read = read_graph(call.document, None)

    assert read_graph(document_of(read), None) == read
    with pytest.raises(InvalidDescriptor, match="'loop'"):
        dml_graph_of(read)


def test_a_stored_model_with_a_loop(app: AppClient) -> None:
    model = counted_loop()
    stored = app.request("PUT", "/v1/graphs/loop", content=model.SerializeToString(), headers=JSON | {
        "content-type": "application/onnx"})  # fmt: skip
    assert stored.status_code == 201, stored.text

    tensors = {"x": ("F32", X.shape, X.tobytes())}
    answer = app.post("/v1/graphs/loop", frame_bytes(tensors, {}), FRAME)

    assert answer.status_code == 200, answer.text
    _, buffers = split_frame(answer.content)
    last, rows = by_runtime(model, {"x": X})
    found = np.frombuffer(buffers["last"], np.float32).reshape(4, 12)
    np.testing.assert_allclose(found, last, rtol=1e-5, atol=1e-5)
    assert len(buffers["all"]) == rows.nbytes


def test_any_bytes_are_read_or_refused() -> None:
    """Bytes of the models, and of the nodes in their documents, changed at random."""
    chance = random.Random(4)
    read = refused = 0
    for make in MODELS:
        content = bytearray(make().SerializeToString())
        document = model_call(make(), {"x": X}, None).document
        protos = [each for each in document["nodes"] if "proto" in each]
        for _ in range(60):
            changed = bytearray(content)
            for _ in range(chance.choice((1, 2, 8))):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            try:
                model_call(bytes(changed), {"x": X}, None)
                read += 1
            except TensorpostError:
                refused += 1
        for _ in range(60):
            node_ = chance.choice(protos)
            proto = bytearray(base64.b64decode(node_["proto"]))
            for _ in range(chance.choice((1, 2, 8))):
                proto[chance.randrange(len(proto))] = chance.randrange(256)
            nodes = [each | {"proto": base64.b64encode(proto).decode()} if each is node_ else each
                     for each in document["nodes"]]  # fmt: skip
            try:
                make_plan(read_graph({**document, "nodes": nodes}, None), 1 << 20)
                read += 1
            except TensorpostError:
                refused += 1
    assert read > 100
    assert refused > 100


def _graphs(graph_: Any) -> Iterator[Any]:
    """A graph and those within it."""
    yield graph_
    for inner in graph_.node:
        for attribute in inner.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _change(model: onnx.ModelProto, chance: random.Random) -> None:
    """Change something in a model that stays one."""
    changed = chance.choice([*_graphs(model.graph)])
    inner = chance.choice(changed.node)
    names = ["", "x", "nothing", *[name for each in changed.node for name in each.output]]
    match chance.randrange(8):
        case 0 if inner.input:
            inner.input[chance.randrange(len(inner.input))] = chance.choice(names)
        case 1:
            del inner.input[chance.randrange(len(inner.input) + 1) :]
        case 2:
            del inner.output[chance.randrange(len(inner.output) + 1) :]
        case 3:
            inner.output.append(chance.choice(names))
        case 4 if changed.input:
            del changed.input[chance.randrange(len(changed.input))]
        case 5 if changed.output:
            del changed.output[chance.randrange(len(changed.output))]
        case 6:
            inner.op_type = chance.choice(["If", "Loop", "Scan", "Identity", "Dropout", "Constant", "Neg", "Concat"])
        case _:
            inner.domain = chance.choice(["", "ai.onnx.ml", "com.example"])
            if inner.attribute:
                del inner.attribute[chance.randrange(len(inner.attribute))]


def test_any_nodes_are_read_or_refused() -> None:
    chance, outcomes = random.Random(8), {"read": 0, "refused": 0}
    for make in (*MODELS, with_a_switch):
        content = make().SerializeToString()
        inputs = {"x": X} | ({"sr": np.array(8000)} if make is with_a_switch else {})
        for _ in range(120):
            model = onnx.ModelProto.FromString(content)
            for _ in range(chance.randint(1, 3)):
                _change(model, chance)
            try:
                call = model_call(model.SerializeToString(), inputs, None)
                make_plan(read_graph(call.document, None), 1 << 20)
                outcomes["read"] += 1
            except TensorpostError:
                outcomes["refused"] += 1
    assert min(outcomes.values()) > 50, outcomes
