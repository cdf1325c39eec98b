"""Models and nodes whose sizes depend on elements, beside ONNX Runtime, which runs the models as they are."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx.parser import parse_model
from tests.support.http_app import JSON, AppClient, assert_problem, http_app, npy_bytes
from typer.testing import CliRunner

import onnx
from onnx import TensorProto, helper, numpy_helper
from tensorpost import Client
from tensorpost.calls.model_calls import SentModel, model_call, model_request
from tensorpost.command_line.cli import app as command_line
from tensorpost.graphs.model_graph import ModelStage, model_stage
from tensorpost.onnx import OnnxTensor
from tensorpost.onnx.bounded_node import BoundedNode
from tensorpost.onnx.model_reader import read_model
from tensorpost.problems import InvalidDescriptor, InvalidParameter, LimitExceeded, UnknownOperator
from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost_server import commands
from tensorpost_server.http.access import access_control

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def f32(values: Any) -> NDArray[Any]:
    return np.array(values, np.float32)


def i64(values: Any) -> NDArray[Any]:
    return np.array(values, np.int64)


X = f32([[1, -2, 3], [0, 0, 4]])

AS_JSON = {"content-type": "application/x-npy", "accept": "application/json"}

CHAIN = """<ir_version: 8, opset_import: ["": 17]> g (float[n,m] x) => (int64[k,l] y, float[z] c) {
  a = Relu(x)
  b = Neg(a)
  nz = NonZero(a)
  t = Transpose(nz)
  one = Constant<value = int64[1] {1}>()
  y = Add(t, one)
  line = Constant<value = int64[1] {-1}>()
  f = Reshape(b, line)
  chosen = Cast<to = 9>(f)
  c = Compress(f, chosen)
}"""
"""The coordinates of what is above 0, counted from 1; and what is below 0 of its negative."""

REPEATED = """<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[k] y) {
  total = ReduceSum<keepdims = 1>(x)
  count = Cast<to = 7>(total)
  y = Tile(x, count)
}"""
"""As many copies as the elements add up to."""

TWICE = """<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (int64[a,b] y) {
  nz = NonZero(x)
  zero = Constant<value = int64[1] {0}>()
  places = Squeeze(nz, zero)
  u, first, which, counts = Unique(places)
  odd = Mod(u, two)
  two = Constant<value = int64[1] {2}>()
  y = NonZero(odd)
}"""


def model_text(text: str) -> onnx.ModelProto:
    made = parse_model(text)
    nodes = sorted(made.graph.node, key=lambda each: each.op_type != "Constant")
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def by_runtime(model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: Any = session.run(None, dict(inputs))
    return [*found]


def same(found: Mapping[str, Any], expected: Sequence[NDArray[Any]]) -> None:
    for made, wanted in zip(found.values(), expected, strict=True):
        assert (made.dtype, made.shape) == (wanted.dtype, wanted.shape)
        assert made.tobytes() == wanted.tobytes()


@pytest.fixture(name="app")
def an_app() -> Iterator[AppClient]:
    with http_app() as client:
        yield client


# ---- models ----------------------------------------------------------------------------------------------------------


def test_numbers_worked_by_hand(server_url: str) -> None:
    with Client(server_url) as tp:
        found = tp.run_model(model_text(CHAIN), X)
        one = tp.run_model(model_text(CHAIN), X, ["c"])
        tiled = tp.run_model(model_text(REPEATED), f32([1, 2]))
        twice = tp.run_model(model_text(TWICE), f32([0, 1, 1, 0, 0, 1, 1]))

    assert found["y"].tolist() == [[1, 1], [1, 3], [2, 3]]
    assert found["c"].tolist() == [-1, -3, -4]
    assert [*one] == ["c"]
    assert one["c"].tolist() == [-1, -3, -4]
    assert tiled["y"].tolist() == [1, 2, 1, 2, 1, 2]
    assert twice["y"].tolist() == [[0, 2]]  # of the places 1, 2, 5 and 6


def test_nothing_that_is_chosen_is_an_empty_tensor(server_url: str) -> None:
    with Client(server_url) as tp:
        found = tp.run_model(model_text(CHAIN), np.zeros((2, 3), np.float32))
        none = tp.run_model(model_text(REPEATED), f32([1, -1]))

    assert (found["y"].shape, found["c"].shape, none["y"].shape) == ((0, 2), (0,), (0,))


def drawn_model(chance: random.Random) -> onnx.ModelProto:
    """Nodes of whole float32 numbers, whose sums are exact, and of places and counts."""
    nodes, lines, floats, count = list[Any](), list[str](), ["x"], 0
    constants = {"line": i64([-1]), "zero": f32(0), "three": i64([3]), "one": i64([1])}

    def add(op_type: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> str:
        nonlocal count
        names = [f"t{count + at}" for at in range(outputs)]
        count += outputs
        nodes.append(helper.make_node(op_type, inputs, names, **attributes))
        return names[0]

    for _ in range(chance.randint(3, 9)):
        source = chance.choice(floats)
        match chance.choice(["move", "nonzero", "compress", "unique", "repeat", "gather"]):
            case "move":
                floats.append(add(chance.choice(["Neg", "Abs", "Relu"]), [source]))
            case "nonzero":
                lines.append(add("Reshape", [add("NonZero", [source]), "line"]))
            case "compress":
                flat = add("Reshape", [source, "line"])
                floats.append(add("Compress", [flat, add("Greater", [flat, "zero"])]))
            case "unique":
                flat = add("Reshape", [source, "line"])
                unique = add("Unique", [flat], 4, sorted=chance.randint(0, 1))
                floats.append(unique)
                lines.append(f"t{int(unique[1:]) + chance.randint(1, 3)}")
            case "repeat":
                flat = add("Reshape", [source, "line"])
                total = add("Cast", [add("ReduceSum", [add("Abs", [flat])], keepdims=1)], to=INT64)
                floats.append(add("Tile", [flat, add("Add", [add("Mod", [total, "three"]), "one"])]))
            case _:
                if lines:
                    places = add("Cast", [chance.choice(lines)], to=FLOAT)
                    floats.append(add("Concat", [add("Reshape", [source, "line"]), places], axis=0))
    ends = list(dict.fromkeys([floats[-1], *lines[-2:]])) if floats[-1] != "x" else [add("Neg", ["x"])]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ends]
    given = [helper.make_tensor_value_info("x", FLOAT, ["n", "m"])]
    values = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    made = helper.make_graph(nodes, "drawn", given, outputs, values)
    model = helper.make_model(made, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return onnx.shape_inference.infer_shapes(model)


def test_drawn_models_give_what_onnx_runtime_gives(server_url: str) -> None:
    chance, numbers, staged = random.Random(5), np.random.default_rng(5), 0
    with Client(server_url) as tp:
        for _ in range(60):
            model = drawn_model(chance)
            x = numbers.integers(-2, 3, size=(chance.randint(1, 3), chance.randint(1, 4))).astype(np.float32)
            staged += isinstance(model_request(model, {"x": x}, None), SentModel)
            same(tp.run_model(model, {"x": x}), by_runtime(model, {"x": x}))
    assert staged > 40


def test_what_is_computed_first_is_not_computed_again() -> None:
    read = read_model(model_text(CHAIN).SerializeToString())
    stage = model_stage(read, {"x": Layout.row_major(data_type("float32"), (2, 3))})

    assert isinstance(stage, ModelStage)
    first = [node["op_type"] for node in stage.graph.document["nodes"]]
    assert first == ["Relu", "Neg", "NonZero", "Reshape", "Cast", "Compress"]
    assert [node.op_type for node in stage.rest.nodes] == ["Transpose", "Add"]


def test_an_if_of_uneven_branches_is_the_branch_that_it_takes(server_url: str) -> None:
    then = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["t"])], "then", [], [helper.make_tensor_value_info("t", FLOAT, [2, 3])]
    )
    other = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["p"]), helper.make_node("Cast", ["p"], ["e"], to=FLOAT)], "other", [],
        [helper.make_tensor_value_info("e", FLOAT, [2, None])],
    )  # fmt: skip
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=then, else_branch=other),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", FLOAT, [2, None])], [numpy_helper.from_array(f32(0), "zero")],
    )  # fmt: skip
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])

    with pytest.raises(InvalidDescriptor, match=r"\(If\) .*: the node \(NonZero\) that makes 'p': the shape of Y"):
        model_call(model, X, None)
    with Client(server_url) as tp:
        for x in (X, -X):
            same(tp.run_model(model, x), by_runtime(model, {"x": x}))


def test_what_computed_each_part_is_said(app: AppClient) -> None:
    boxes = f32([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]])
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["chosen"]),
                helper.make_node("Neg", ["chosen"], ["y"]),
            ],
            "g",
            [helper.make_tensor_value_info("boxes", FLOAT, [1, 3, 4]),
             helper.make_tensor_value_info("scores", FLOAT, [1, 1, 3])],
            [helper.make_tensor_value_info("y", INT64, [None, 3])],
            [numpy_helper.from_array(i64([3]), "most")],
        ),
        ir_version=8, opset_imports=[helper.make_opsetid("", 17)],
    )  # fmt: skip
    parts = {"model": model.SerializeToString(), "boxes": npy_bytes(boxes), "scores": npy_bytes([[[0.9, 0.8, 0.7]]])}

    answer = app.request("POST", "/v1/onnx", files=parts, headers={"accept": "application/x-npy"})

    assert np.load(BytesIO(answer.content)).tolist() == [[0, 0, 0], [0, 0, -2]]  # the first two overlap
    assert "onnxruntime" in answer.headers["tensorpost-backend"]
    assert app.in_use() == dict.fromkeys(app.in_use(), 0)


def test_a_stored_model_and_one_of_open_inference(app: AppClient) -> None:
    stored = app.request("PUT", "/v1/graphs/chain", content=model_text(CHAIN).SerializeToString(),
                         headers={"content-type": "application/onnx"})  # fmt: skip
    assert stored.status_code == 201, stored.text
    for x in (X, X[:, ::-1], X):
        answer = app.post("/v1/graphs/chain?outputs=y", npy_bytes(x), AS_JSON)
        expected = (np.argwhere(x > 0) + 1).tolist()
        assert np.reshape(answer.json()["tensors"]["y"]["data"], (-1, 2)).tolist() == expected
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": X.reshape(-1).tolist()}
    said = app.post("/v2/models/chain/infer", json.dumps({"inputs": [tensor]}), JSON).json()
    assert [(each["name"], each["shape"]) for each in said["outputs"]] == [("y", [3, 2]), ("c", [3])]
    assert app.get("/v2/models/chain").json()["outputs"][0]["shape"] == [-1, -1]


def test_rows_and_held_outputs(server_url: str) -> None:
    with Client(server_url) as tp:
        rows = tp.run_model(model_text(CHAIN), X, ["y"], rows=slice(1, 3))
        held = tp.run_model(model_text(CHAIN), X, keep=True)
        same({"y": held["y"].get()}, [i64([[1, 1], [1, 3], [2, 3]])])

    assert rows["y"].tolist() == [[1, 3], [2, 3]]


def choice_of(then: list[Any], other: list[Any]) -> onnx.ModelProto:
    """An If by the sum of x, each of whose branches makes `b`."""
    branches: dict[str, Any] = {
        name: helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info("b")])
        for name, nodes in (("then_branch", then), ("else_branch", other))
    }
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["outside"]),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], **branches),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", FLOAT, None)], [numpy_helper.from_array(f32(0), "zero")],
    )  # fmt: skip
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


TURNED = [
    helper.make_node("SplitToSequence", ["x"], ["rows"], axis=0),
    helper.make_node("ConcatFromSequence", ["rows"], ["b"], axis=1),
]
JOINED = [helper.make_node("ConcatFromSequence", ["outside"], ["b"], axis=0)]
LOOPED = helper.make_graph(
    [helper.make_node("Identity", ["more"], ["goes_on"]), helper.make_node("NonZero", ["x"], ["places"]),
     helper.make_node("Shape", ["places"], ["number"]), helper.make_node("Cast", ["number"], ["stacked"], to=FLOAT)],
    "body",
    [helper.make_tensor_value_info("i", TensorProto.INT64, []),
     helper.make_tensor_value_info("more", TensorProto.BOOL, [])],
    [helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
     helper.make_tensor_value_info("stacked", FLOAT, None)],
)  # fmt: skip


def test_sequences_in_a_branch_are_those_of_the_one_that_is_taken(server_url: str) -> None:
    with Client(server_url) as tp:
        for branch in (TURNED, JOINED):
            model = choice_of([helper.make_node("Relu", ["x"], ["b"])], branch)
            for x in (X, -X):
                same(tp.run_model(model, x), by_runtime(model, {"x": x}))


@pytest.mark.parametrize(
    ("nodes", "error", "words"),
    [
        ([helper.make_node("Nope", ["x"], ["b"])], UnknownOperator, r"the node \(Nope\) that makes 'y'|Nope"),
        ([helper.make_node("Concat", ["x"], ["b"], axis=5)], InvalidDescriptor, "else_branch.*axis 5 does not exist"),
        ([helper.make_node("Loop", ["", "positive"], ["b"], body=LOOPED)], InvalidDescriptor, r"\(Loop\).*NonZero"),
    ],
    ids=["no operator", "a wrong axis", "a loop of NonZero"],
)
def test_only_the_branch_that_is_taken_must_be_right(server_url: str, nodes: list[Any], error: Any, words: str) -> None:
    model = choice_of([helper.make_node("Neg", ["x"], ["b"])], nodes)
    with Client(server_url) as tp:
        x = abs(X)
        same(tp.run_model(model, x), [-x])
        with pytest.raises(error, match=words):
            tp.run_model(model, -x)


def test_a_node_that_is_wrong_later_is_named(server_url: str) -> None:
    text = CHAIN.replace("y = Add(t, one)", "w = Constant<value = int64[3] {1, 2, 3}>()\n  y = Add(t, w)")

    with Client(server_url) as tp, pytest.raises(InvalidDescriptor, match=r"the node \(Add\) that makes 'y'"):
        tp.run_model(model_text(text), X)


def test_parts_are_within_the_limits_of_calls() -> None:
    x = np.ones((4, 5), np.float32)
    parts = {"model": model_text(CHAIN).SerializeToString(), "x": npy_bytes(x)}
    with http_app(max_output_bytes=300) as app:  # the coordinates take 320 bytes at most
        problem = assert_problem(app.request("POST", "/v1/onnx", files=parts), 413, "limit-exceeded")
        assert "TENSORPOST_MAX_OUTPUT_BYTES" in problem["detail"]
        assert app.in_use() == dict.fromkeys(app.in_use(), 0)


def test_what_earlier_parts_made_stays_reserved() -> None:
    n, copies = 1 << 14, 8
    nodes = [helper.make_node("NonZero", ["x"], ["nz"]), helper.make_node("Tile", ["nz", "copies"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [n])],
        [helper.make_tensor_value_info("y", INT64, [1, None])], [numpy_helper.from_array(i64([1, copies]), "copies")],
    )  # fmt: skip
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    parts = {"model": model.SerializeToString(), "x": npy_bytes(np.ones(n, np.float32))}
    input_, made, answer = 4 * n, 8 * n, copies * 8 * n  # which is one slice
    least = 2 * input_ + input_ + made + answer  # the body as it arrives and as it is read, and each tensor once

    for budget, status in ((least, 413), (3 * least, 200)):
        with http_app(memory_bytes=budget, slice_bytes=1 << 20, pool_bytes=0) as app:
            assert app.request("POST", "/v1/onnx", files=parts).status_code == status
            assert app.in_use() == dict.fromkeys(app.in_use(), 0)


def test_each_part_counts_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_control, "time", SimpleNamespace(monotonic=lambda: 1000.0, time=time.time))
    keys = tmp_path / "keys.jsonl"
    made = commands.add_key(keys, "anna", requests_per_minute=8, bytes_per_minute=None)
    parts = {"model": model_text(CHAIN).SerializeToString(), "x": npy_bytes(X)}
    headers = {"authorization": f"Bearer {made}", "accept": "application/x-npy"}
    with http_app(keys_file=keys) as app:
        found = [app.request("POST", "/v1/onnx?outputs=y", files=parts, headers=headers) for _ in range(3)]
    assert [answer.status_code for answer in found] == [200, 200, 429]  # 4 nodes each: Relu, NonZero; Transpose, Add


def test_the_wait_for_an_answer_ends_with_the_last_part() -> None:
    pytest.importorskip("onnxruntime")
    body = helper.make_graph(
        [helper.make_node("Identity", ["more"], ["more_out"]), helper.make_node("Neg", ["s"], ["t"])], "body",
        [helper.make_tensor_value_info("i", INT64, []), helper.make_tensor_value_info("more", TensorProto.BOOL, []),
         helper.make_tensor_value_info("s", FLOAT, [])],
        [helper.make_tensor_value_info("more_out", TensorProto.BOOL, []),
         helper.make_tensor_value_info("t", FLOAT, [])],
    )  # fmt: skip
    nodes = [
        helper.make_node("NonZero", ["x"], ["nz"]), helper.make_node("Cast", ["nz"], ["numbers"], to=FLOAT),
        helper.make_node("ReduceSum", ["numbers"], ["start"], keepdims=0),
        helper.make_node("Loop", ["", "yes", "start"], ["y"], body=body),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [2])], [helper.make_tensor_value_info("y", FLOAT, [])],
        [numpy_helper.from_array(np.array(True), "yes")],
    )  # fmt: skip
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "data": [0, 1]}
    asked = json.dumps({"inputs": [tensor], "parameters": {"timeout": 1_000_000}})
    with http_app(max_seconds=6) as app:
        stored = {"content": model.SerializeToString(), "headers": {"content-type": "application/onnx"}}
        assert app.request("PUT", "/v1/graphs/endless", **stored).status_code == 201
        answer = app.post("/v2/models/endless/infer", asked, JSON)
    assert (answer.status_code, "deadline-exceeded" in answer.json()["type"]) == (503, True), answer.text


def test_models_whose_sizes_depend_too_often_are_refused(app: AppClient) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["t0"])]
    nodes += [helper.make_node("NonZero", [f"t{at}"], [f"t{at + 1}"]) for at in range(70)]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [2, 2])],
        [helper.make_tensor_value_info("t70", INT64, [2, None])],
    )  # fmt: skip
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    parts = {"model": model.SerializeToString(), "x": npy_bytes(f32(np.zeros((2, 2))))}

    problem = assert_problem(app.request("POST", "/v1/onnx", files=parts), 422, "invalid-descriptor")

    assert "depend 64 times on elements" in problem["detail"]


def test_nodes_of_all_parts_count() -> None:
    parts = {"model": model_text(CHAIN).SerializeToString(), "x": npy_bytes(X)}
    for most, status in ((7, 422), (8, 200)):
        with http_app(max_graph_nodes=most) as app:
            answer = app.request("POST", "/v1/onnx", files=parts, headers={"accept": "application/json"})
            assert (answer.status_code, "TENSORPOST_MAX_GRAPH_NODES" in answer.text) == (status, status == 422)


def test_onnx_runtime_as_a_whole_refuses_them(server_url: str) -> None:
    with Client(server_url) as tp, pytest.raises(InvalidParameter, match=r"NonZero-13\) makes depend on elements"):
        tp.run_model(model_text(CHAIN), X, backend="onnxruntime")


def test_the_command_line(server_url: str, tmp_path: Path) -> None:
    file, x, y, places = (str(tmp_path / name) for name in ("m.onnx", "x.npy", "y.npy", "places.npy"))
    onnx.save(model_text(CHAIN), file)
    np.save(x, X)

    checked = CliRunner().invoke(command_line, ["model", "check", file, "x=2,3"])
    run = CliRunner().invoke(command_line, ["model", "run", file, f"x={x}", "-o", f"y={y}", "--url", server_url])
    one = CliRunner().invoke(command_line, ["onnx", "NonZero", x, "-o", places, "--url", server_url])

    assert (checked.exit_code, run.exit_code, one.exit_code) == (0, 0, 0), (checked.output, run.output, one.output)
    assert "then 2 nodes, whose sizes follow from the elements of these: nz, c" in checked.output
    assert np.load(y).tolist() == [[1, 1], [1, 3], [2, 3]]
    assert np.load(places).tolist() == np.stack(np.nonzero(X)).tolist()


# ---- nodes alone -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float32", "int64", "uint8", "bool", "float16", "float64", "complex64"])
def test_nonzero_is_that_of_numpy(server_url: str, kind: str) -> None:
    numbers = np.random.default_rng(2)
    with Client(server_url) as tp:
        for sizes in [(5,), (2, 3), (2, 0, 3), (2, 3, 4)]:
            x = numbers.integers(0, 2, size=sizes).astype(kind)
            same({"Y": tp.onnx("NonZero", x)}, [np.stack(np.nonzero(x)).astype(np.int64)])


def test_a_scalar_has_no_coordinates(server_url: str) -> None:
    with Client(server_url) as tp:
        assert tp.onnx("NonZero", f32(3)).shape == (0, 1)
        assert tp.onnx("NonZero", f32(0)).shape == (0, 0)


def test_compress_is_that_of_numpy(server_url: str) -> None:
    numbers = np.random.default_rng(3)
    with Client(server_url) as tp:
        for axis in (None, 0, 1, -1):
            x = numbers.integers(0, 9, size=(4, 5)).astype(np.int16)
            longest = x.size if axis is None else x.shape[axis]
            condition = numbers.integers(0, 2, size=numbers.integers(0, longest + 1)).astype(bool)
            attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
            found = tp.onnx("Compress", x, condition, **attributes)
            same({"y": found}, [np.compress(condition, x, axis)])


@pytest.mark.parametrize("kind", ["float32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("ordered", [0, 1])
def test_unique_is_that_of_numpy(server_url: str, kind: str, ordered: int) -> None:
    numbers = np.random.default_rng(4)
    with Client(server_url) as tp:
        for sizes, axis in [((7,), None), ((3, 4), None), ((5, 2), 0), ((2, 6), 1), ((2, 3, 2), -1), ((0, 3), None)]:
            x = numbers.integers(0, 3, size=sizes).astype(kind)
            given: dict[str, Any] = {} if axis is None else {"axis": axis}
            found, first, which, counts = tp.onnx("Unique", x, outputs=4, sorted=ordered, **given)
            expected, places, _, times = np.unique(x, True, True, True, axis=axis)
            order = np.arange(len(places)) if ordered else np.argsort(places)
            same(
                {"Y": found, "indices": first, "counts": counts},
                [np.take(expected, order, axis or 0), places[order], times[order]],
            )
            along = x.reshape(-1) if axis is None else x
            assert np.take(found, which, axis or 0).tobytes() == along.tobytes()


def test_nan_is_one_element_at_the_end(server_url: str) -> None:
    with Client(server_url) as tp:
        found, _, which, counts = tp.onnx("Unique", f32([np.nan, 1, np.nan, -np.inf]), outputs=4)
    assert np.array_equal(found, [-np.inf, 1, np.nan], equal_nan=True)
    assert (which.tolist(), counts.tolist()) == ([2, 1, 2, 0], [1, 1, 2])


def test_names_json_out_and_run(app: AppClient, server_url: str) -> None:
    alone = app.post("/v1/onnx/Unique", npy_bytes(X), AS_JSON).json()
    several = app.post("/v1/onnx/Unique?outputs=2", npy_bytes(X), AS_JSON).json()
    out = np.zeros((2, 4), np.int64)
    with Client(server_url) as tp:
        found = tp.onnx("NonZero", X, out=out)
        node = BoundedNode.of("NonZero", {"X": OnnxTensor("float", X.shape)}, opset=13)
        ran = tp.run(node, X)
        with pytest.raises(InvalidParameter, match="NonZero-13 makes are known when they are computed"):
            next(iter(tp.stream(node, X)))
        with pytest.raises(InvalidParameter, match="shape"):
            tp.onnx("NonZero", X, out=np.zeros((2, 5), np.int64))

    assert alone["tensors"]["output"]["data"] == [-2, 0, 1, 3, 4]
    assert [*several["tensors"]] == ["Y", "indices"]
    assert found is out
    assert out.tolist() == ran.tolist() == np.stack(np.nonzero(X)).tolist()


def test_validation_says_that_sizes_are_not_known(app: AppClient) -> None:
    tensor = {"data_type": "float", "shape": [2, 3]}
    node = {"op_type": "NonZero", "opset": 13, "inputs": {"X": tensor}}

    said = app.post("/v1/validate", json.dumps(node), JSON).json()
    wrong = app.post("/v1/validate", json.dumps({**node, "attributes": {"axis": 1}}), JSON).json()

    assert said["valid"]
    assert said["outputs"] == [{"name": "output", "dtype": "int64", "shape": [None, None], "size_in_bytes": 96}]
    assert "bounded" not in said["op"]
    assert not wrong["valid"]


def test_what_a_node_cannot_take_is_named(server_url: str) -> None:
    x, long = np.zeros((2, 3), np.float32), np.ones(4, bool)
    with Client(server_url) as tp:
        with pytest.raises(InvalidDescriptor, match="condition has 4 entries, and there are 3 to choose from"):
            tp.onnx("Compress", x, long, axis=1)
        with pytest.raises(InvalidDescriptor, match="has 1 output, not 2"):
            tp.onnx("NonZero", x, outputs=2)
        with pytest.raises(InvalidDescriptor, match="Invalid value for attribute axis"):
            tp.onnx("Unique", x, axis=2)
        with pytest.raises(InvalidDescriptor, match=r"the shape of .* depends on elements"):
            tp.run_graph(
                {"inputs": {"x": {}}, "nodes": [{"name": "n", "op_type": "NonZero", "opset": 13, "inputs": ["x"]}],
                 "outputs": {"y": "n"}}, {"x": x},
            )  # fmt: skip


def test_a_graph_may_have_the_lines_of_a_bounded_node(server_url: str) -> None:
    node = {"name": "n", "op_type": "NonZero", "opset": 13, "inputs": ["x"], "bounded": True}
    graph = {"inputs": {"x": {}}, "nodes": [node], "outputs": {"line": "n.Y", "sizes": "n.sizes"}}
    other = {"name": "n", "op_type": "Relu", "opset": 13, "inputs": ["x"], "bounded": True}
    with Client(server_url) as tp:
        found = tp.run_graph(graph, {"x": X})
        with pytest.raises(InvalidDescriptor, match="only these are bounded: Compress"):
            tp.run_graph({**graph, "nodes": [other], "outputs": {"y": "n"}}, {"x": X})

    assert found["sizes"].tolist() == [2, 4]
    assert found["line"].shape == (12,)
    assert found["line"][:8].reshape(2, 4).tolist() == np.stack(np.nonzero(X)).tolist()


def test_a_node_above_the_limit_is_refused() -> None:
    with http_app(max_output_bytes=90) as app:
        refused = app.post("/v1/onnx/NonZero", npy_bytes(X), AS_JSON)
        assert_problem(refused, 413, LimitExceeded.code)
