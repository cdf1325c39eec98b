"""Stored models whose weights ONNX Runtime's sessions hold: results, what travels, and when memory is free again."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from tests.support.http_app import FRAME, AppClient, assert_problem, eventually, frame_bytes, http_app, split_frame

import onnx
from onnx import TensorProto, helper, numpy_helper
from tensorpost_server.child_processes.libraries import ONNX_RUNTIME
from tensorpost_server.child_processes.process import ChildProcess

ONNX = {"content-type": "application/onnx"}
FLOAT = TensorProto.FLOAT
OPTIMIZED = "numpy+onnxruntime-optimized"
TOLERANCE = 1e-5  # of the largest element; the same is stated in docs/models.md


def network(seed: int = 0, channels: int = 48, name: str = "x") -> onnx.ModelProto:
    """Two convolutions with batch normalization and Relu, a product, a softmax; 48 channels have 90 KiB of weights."""
    chance = np.random.default_rng(seed)

    def drawn(*shape: int) -> NDArray[Any]:
        return (chance.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    constants: dict[str, NDArray[Any]] = {"w0": drawn(channels, 3, 3, 3), "w1": drawn(channels, channels, 3, 3)}
    nodes: list[Any] = []
    source = name
    for place in range(2):
        for key in ("scale", "bias", "mean"):
            constants[f"{key}{place}"] = drawn(channels, 1).reshape(-1)
        constants[f"var{place}"] = np.abs(drawn(channels, 1).reshape(-1)) + np.float32(0.5)
        normalized = [f"conv{place}", *[f"{key}{place}" for key in ("scale", "bias", "mean", "var")]]
        nodes += [
            helper.make_node("Conv", [source, f"w{place}"], [f"conv{place}"], pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", normalized, [f"norm{place}"]),
            helper.make_node("Relu", [f"norm{place}"], [f"relu{place}"]),
        ]
        source = f"relu{place}"
    constants["fc"] = drawn(channels, 10)
    nodes += [
        helper.make_node("GlobalAveragePool", [source], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "fc"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info(name, FLOAT, ["n", 3, 8, 8])]
    outputs = [helper.make_tensor_value_info("y", FLOAT, ["n", 10])]
    weights = [numpy_helper.from_array(array, key) for key, array in constants.items()]
    graph = helper.make_graph(nodes, "network", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = np.random.default_rng(9).standard_normal((2, 3, 8, 8)).astype(np.float32)


def by_runtime(model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: Any = session.run(None, dict(inputs))
    return [*found]


@pytest.fixture
def app() -> Iterator[AppClient]:
    with http_app(backend="numpy", onnx_processes=1, pool_bytes=64 << 20) as client:
        yield client


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many arrays each call of a process has got, beside the model."""
    counts: list[int] = []
    call = ChildProcess.call

    def noted(self: ChildProcess, head: Mapping[str, Any], arrays: Sequence[Any], *rest: Any) -> Any:
        if head["function"] == "run_model":
            counts.append(len(arrays) - 1)
        return call(self, head, arrays, *rest)

    monkeypatch.setattr(ChildProcess, "call", noted)
    return counts


def store(app: AppClient, name: str, model: onnx.ModelProto) -> None:
    answer = app.request("PUT", f"/v1/graphs/{name}", content=model.SerializeToString(), headers=ONNX)
    assert answer.status_code in (200, 201), answer.text


def run(app: AppClient, name: str, x: NDArray[Any] = X, query: str = "") -> tuple[NDArray[Any], str]:
    """The output, and what computed it."""
    answer = app.post(f"/v1/graphs/{name}{query}", frame_bytes({"x": ("F32", x.shape, x.tobytes())}, {}), FRAME)
    assert answer.status_code == 200, answer.text
    head, buffers = split_frame(answer.content)
    found = np.frombuffer(buffers["y"], np.float32).reshape(head["y"]["shape"])
    return found, answer.headers["tensorpost-backend"]


def check(found: NDArray[Any], model: onnx.ModelProto, x: NDArray[Any] = X) -> None:
    (expected,) = by_runtime(model, {"x": x})
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


def kept() -> set[str]:
    with ONNX_RUNTIME._changed:  # pyright: ignore[reportPrivateUsage]
        return {key for process in ONNX_RUNTIME._all for key in process.sessions}  # pyright: ignore[reportPrivateUsage]


def test_weights_are_sent_once_and_dropped_with_the_graph(app: AppClient, sent: list[int]) -> None:
    model = network()
    store(app, "net", model)
    ended = app.get("/v1/devices").json()["libraries"][1]["ended"]

    for size in (2, 1, 2, 3):
        found, by = run(app, "net", X[:1].repeat(size, 0))
        assert by == OPTIMIZED
        check(found, model, X[:1].repeat(size, 0))

    assert sent == [12, 1, 1, 1]  # the input, and 11 constants once
    assert len(kept()) == 1

    assert app.request("DELETE", "/v1/graphs/net").status_code == 204
    gc.collect()
    eventually(lambda: not kept(), "the session is dropped")
    assert app.get("/v1/devices").json()["libraries"][1]["ended"] == ended


def test_a_replaced_graph_has_its_own_weights(app: AppClient) -> None:
    first, second = network(1), network(2)
    store(app, "net", first)
    before, _ = run(app, "net")
    store(app, "net", second)
    after, _ = run(app, "net")

    check(before, first)
    check(after, second)
    assert np.abs(before - after).max() > 1e-3


def test_graphs_that_differ_in_a_large_constant_alone(app: AppClient) -> None:
    first, second = network(1), network(1)
    (large,) = [each for each in second.graph.initializer if each.name == "w1"]
    large.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(large), "w1"))
    store(app, "first", first)
    store(app, "second", second)

    for name, model in (("first", first), ("second", second), ("first", first)):
        found, _ = run(app, name)
        check(found, model)


def test_the_same_by_onnx_runtime_as_a_whole(app: AppClient) -> None:
    model = network()
    store(app, "net", model)
    found, by = run(app, "net", query="?backend=onnxruntime")

    assert by == OPTIMIZED
    check(found, model)


def test_a_process_that_was_ended_gets_the_weights_again(app: AppClient, sent: list[int]) -> None:
    model = network()
    store(app, "net", model)
    run(app, "net")
    for process in [*ONNX_RUNTIME._all]:  # pyright: ignore[reportPrivateUsage]
        process.kill()
        process._process.wait(10)  # pyright: ignore[reportPrivateUsage]

    found, _ = run(app, "net")
    check(found, model)
    assert sent == [12, 12]


def test_weights_that_a_process_has_dropped_are_sent_again(app: AppClient, sent: list[int]) -> None:
    model = network()
    store(app, "net", model)
    run(app, "net")
    (process,) = ONNX_RUNTIME._all  # pyright: ignore[reportPrivateUsage]
    (key,) = process.sessions
    ONNX_RUNTIME.call(
        "forget_sessions", {"keys": [key]}, subject="a test", memory_bytes=1 << 24
    )  # behind the pool's back, which still takes it for kept
    assert key in process.sessions

    found, _ = run(app, "net")
    check(found, model)
    assert sent == [12, 1, 12]


def test_memory_of_sessions_is_bounded() -> None:
    models = {f"net{seed}": network(seed) for seed in range(4)}
    with http_app(backend="numpy", onnx_processes=1, pool_bytes=1 << 20) as app:
        for name, model in models.items():
            store(app, name, model)
        for name in itertools.chain(models, models):
            found, by = run(app, name)
            assert by == OPTIMIZED
            check(found, models[name])
            assert len(kept()) <= 2


def test_without_memory_for_sessions_weights_travel(sent: list[int]) -> None:
    model = network()
    with http_app(backend="numpy", onnx_processes=1, pool_bytes=0) as app:
        store(app, "net", model)
        for _ in range(2):
            found, by = run(app, "net")
            assert by == "numpy+onnxruntime"
            check(found, model)
    assert sent[0] > 1
    assert sent[0] == sent[1]


def test_weights_of_every_type(app: AppClient) -> None:
    """Constants that are given as values, and those that stand in the model: 8-bit integers, sizes, float16."""
    chance = np.random.default_rng(4)
    constants = {
        "w": chance.integers(-8, 8, (64, 3, 3, 3)).astype(np.int8), "zero": np.array(3, np.uint8),
        "half": chance.standard_normal((64, 64)).astype(np.float16), "rows": np.array([-1, 64]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Cast", ["x"], ["bytes"], to=TensorProto.UINT8),
        helper.make_node("ConvInteger", ["bytes", "w", "zero"], ["whole"], pads=[1, 1, 1, 1]),
        helper.make_node("Cast", ["whole"], ["halves"], to=TensorProto.FLOAT16),
        helper.make_node("Reshape", ["halves", "rows"], ["flat"]),
        helper.make_node("MatMul", ["flat", "half"], ["product"]),
        helper.make_node("Cast", ["product"], ["y"], to=FLOAT),
    ]
    graph = helper.make_graph(
        nodes, "types", [helper.make_tensor_value_info("x", FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", FLOAT, [64, 64])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = chance.integers(0, 9, (1, 3, 8, 8)).astype(np.float32)
    store(app, "types", model)

    for query in ("", "?backend=onnxruntime"):
        found, by = run(app, "types", x, query)
        assert by == OPTIMIZED
        (expected,) = by_runtime(model, {"x": x})
        np.testing.assert_allclose(found, expected, rtol=0.01, atol=2)  # of halves


def test_an_error_names_the_node(app: AppClient) -> None:
    indices = np.array([0, 5])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("MaxUnpool", ["c", "indices"], ["y"], kernel_shape=[2, 2], strides=[2, 2], name="unpool"),
    ]
    graph = helper.make_graph(
        nodes, "wrong", [helper.make_tensor_value_info("x", FLOAT, [1, 1, 1, 2])],
        [helper.make_tensor_value_info("y", FLOAT, [1, 1, 2, 4])],
        [numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w"),
         numpy_helper.from_array(indices.reshape(1, 1, 1, 2) + 100, "indices")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    store(app, "wrong", model)
    x = np.zeros((1, 1, 1, 2), np.float32)
    answer = app.post("/v1/graphs/wrong", frame_bytes({"x": ("F32", x.shape, x.tobytes())}, {}), FRAME)

    problem = assert_problem(answer, 422, "invalid-descriptor")
    assert "node 'unpool'" in problem["detail"]
