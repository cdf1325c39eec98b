"""Dynamic batching: calls of a stored graph that wait are computed together, and each gets its own rows."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import struct
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.support.http_app import JSON, NPY, AppClient, assert_problem, eventually, frame_bytes, http_app, serving

from tensorpost import Client
from tensorpost.problems import TooBusy
from tensorpost_server import commands
from tensorpost_server.engine import Ticket

SIDE = 512  # so that a call is not computed at once by the event loop
RNG = np.random.default_rng(7)
W = RNG.integers(-3, 4, (SIDE, SIDE)).astype(np.float32)  # products of whole numbers are exact, however they are added
PRODUCT: dict[str, Any] = {
    "inputs": {
        "x": {"data_type": "FLOAT32", "sizes": ["n", SIDE]},
        "w": {"data_type": "FLOAT32", "sizes": [SIDE, SIDE]},
    },
    "nodes": [
        {"name": "p", "op_type": "MatMul", "inputs": ["x", "w"]},
        {"name": "y", "op_type": "Relu", "inputs": ["p"]},
    ],
    "outputs": {"y": "y", "p": "p"},
}
LOOK_UP: dict[str, Any] = {
    "inputs": {
        "table": {"data_type": "FLOAT32", "sizes": [SIDE, SIDE]},
        "which": {"data_type": "INT64", "sizes": ["n", 400]},
    },
    "nodes": [{"name": "y", "op_type": "Gather", "inputs": ["table", "which"]}],
    "outputs": {"y": "y"},
}  # fmt: skip


def weighted(graph: dict[str, Any], **weights: Any) -> bytes:
    """A frame with the graph and its weights."""
    parts = {name: ("F32", x.shape, x.tobytes()) for name, x in weights.items()}
    return frame_bytes(parts, {"graph": json.dumps(graph)})


def store(app: AppClient, name: str, content: bytes, query: str) -> Any:
    return app.request("PUT", f"/v1/graphs/{name}?{query}", content=content)


def rows(count: int = 1) -> Any:
    return RNG.integers(-3, 4, (count, SIDE)).astype(np.float32)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def together(app: AppClient, calls: Sequence[Awaitable[Any]]) -> list[Any]:
    """Make calls at the same time."""

    async def gather() -> list[Any]:
        return await asyncio.gather(*calls, return_exceptions=True)

    return app.run(gather())


def post(app: AppClient, name: str, array: Any, query: str = "", **headers: str) -> Awaitable[httpx.Response]:
    return app.client.post(f"/v1/graphs/{name}{query}", content=npy(array), headers={**NPY, **headers})


def batches(app: AppClient, name: str) -> tuple[int, int]:
    """How many calls of a graph were joined, and in how many batches."""
    graph = app.service.graphs.find("", name)
    return graph.joined_calls, graph.batches_computed


@pytest.fixture
def app() -> Iterator[AppClient]:
    with http_app(backend="numpy") as client:
        yield client


def tensor_of(answer: Any, name: str) -> Any:
    assert answer.status_code == 200, answer.text
    with np.load(io.BytesIO(answer.content)) as found:
        return found[name]


NPZ = {"accept": "application/x-npz"}


@pytest.mark.parametrize("delay", [0, 20_000])
def test_each_call_gets_its_own_rows(app: AppClient, delay: int) -> None:
    query = f"max_batch_size=8&max_queue_delay_microseconds={delay}"
    assert store(app, "product", weighted(PRODUCT, w=W), query).status_code == 201
    tensors = [rows(1 + number % 3) for number in range(30)]
    answers = together(app, [post(app, "product", x, **NPZ) for x in tensors])
    for x, answer in zip(tensors, answers, strict=True):
        np.testing.assert_array_equal(tensor_of(answer, "p"), x @ W)
        np.testing.assert_array_equal(tensor_of(answer, "y"), np.maximum(x @ W, 0))
    calls, computed = batches(app, "product")
    assert calls == 30
    assert 8 <= computed < 20  # 60 rows, at most 8 in each
    kept = app.service.graphs.find("", "product").size_in_bytes
    assert app.service.admission.bytes_in_flight == kept


def test_executions_are_counted_for_each_caller_and_door(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = {name: {"x-api-key": commands.add_key(file, name, scopes=("run", "graphs"))} for name in ("alice", "bob")}
    folder = tmp_path / "graphs"
    (folder / "product" / "1").mkdir(parents=True)
    (folder / "product" / "1" / "model.safetensors").write_bytes(weighted(PRODUCT, w=W))
    config = {"max_batch_size": 64, "dynamic_batching": {"max_queue_delay_microseconds": 500_000}}
    (folder / "product" / "config.json").write_text(json.dumps(config))
    with http_app(backend="numpy", keys_file=file, graphs=folder) as app:

        def infer(caller: str) -> Awaitable[httpx.Response]:
            document = {"inputs": [{"name": "x", "shape": [1, SIDE], "datatype": "FP32", "data": [1.0] * SIDE}]}
            return app.client.post("/v2/models/product/infer", json=document, headers=keys[caller])

        calls: list[Awaitable[Any]] = [infer("alice") for _ in range(3)] + [infer("bob") for _ in range(2)]
        calls += [post(app, "product", rows(), **keys["alice"], **NPZ) for _ in range(5)]
        assert [answer.status_code for answer in together(app, calls)] == [200] * 10
        assert batches(app, "product") == (10, 1)
        for caller, count in (("alice", 3), ("bob", 2)):
            answer = app.get("/v2/models/product/stats", headers=keys[caller])
            (found,) = answer.json()["model_stats"]
            assert (found["inference_count"], found["execution_count"]) == (count, 1)


def test_calls_are_not_joined_unless_that_was_asked_for(app: AppClient) -> None:
    assert store(app, "product", weighted(PRODUCT, w=W), "").status_code == 201
    answers = together(app, [post(app, "product", rows(), **NPZ) for _ in range(8)])
    assert [answer.status_code for answer in answers] == [200] * 8
    assert batches(app, "product") == (0, 0)


def test_a_call_that_fails_fails_alone(app: AppClient) -> None:
    table = RNG.random((SIDE, SIDE), np.float32)
    query = "max_batch_size=16&max_queue_delay_microseconds=20000"
    assert store(app, "look_up", weighted(LOOK_UP, table=table), query).status_code == 201
    indices = [RNG.integers(0, SIDE, (1, 400)) for _ in range(9)]
    indices[4][0, 7] = SIDE
    answers = together(app, [post(app, "look_up", each) for each in indices])
    for number, (each, answer) in enumerate(zip(indices, answers, strict=True)):
        if number == 4:
            problem = assert_problem(answer, 422, "invalid-descriptor")
            assert "indices[0, 7] is 512" in problem["detail"]
        else:
            np.testing.assert_array_equal(np.load(io.BytesIO(answer.content)), table[each])


def test_deadlines_and_callers_that_leave_do_not_hurt_others(app: AppClient) -> None:
    query = "max_batch_size=16&max_queue_delay_microseconds=1500000"
    assert store(app, "product", weighted(PRODUCT, w=W), query).status_code == 201

    async def calls() -> list[Any]:
        tensors = [rows() for _ in range(4)]
        kept = [asyncio.ensure_future(post(app, "product", x, **NPZ)) for x in tensors]
        late = asyncio.ensure_future(post(app, "product", rows(), **NPZ, prefer="wait=1"))
        gone = asyncio.ensure_future(post(app, "product", rows()))
        await asyncio.sleep(0.05)
        gone.cancel()
        assert (await late).status_code == 504
        assert not any(each.done() for each in kept)
        return [*zip(tensors, await asyncio.gather(*kept), strict=True)]

    for x, answer in app.run(calls()):
        np.testing.assert_array_equal(tensor_of(answer, "p"), x @ W)
    assert batches(app, "product") == (4, 1)
    eventually(lambda: app.service.admission.requests_in_flight == 0, "the memory is released")
    assert app.service.admission.bytes_in_flight == app.service.graphs.find("", "product").size_in_bytes


def test_a_call_that_leaves_while_its_batch_is_computed(app: AppClient) -> None:
    query = "max_batch_size=6&max_queue_delay_microseconds=10000000"
    assert store(app, "product", weighted(PRODUCT, w=W), query).status_code == 201
    admission, batcher = app.service.admission, app.service.batches

    async def calls() -> list[Any]:
        tensors = [rows() for _ in range(4)]
        kept = [asyncio.ensure_future(post(app, "product", x, **NPZ)) for x in tensors]
        gone = [asyncio.ensure_future(post(app, "product", rows(), **NPZ)) for _ in range(2)]
        while not batcher.computed_calls:
            await asyncio.sleep(0)
        assert batcher.computed_calls == 6
        for each in gone:
            each.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        return [*zip(tensors, await asyncio.gather(*kept), strict=True)]

    for x, answer in app.run(calls()):
        np.testing.assert_array_equal(tensor_of(answer, "p"), x @ W)
    assert batches(app, "product") == (6, 1)
    eventually(lambda: admission.requests_in_flight == 0, "all calls have ended")
    assert admission.bytes_in_flight == app.service.graphs.find("", "product").size_in_bytes


def test_a_caller_that_closes_its_connection_leaves_the_batch() -> None:
    query = "max_batch_size=4&max_queue_delay_microseconds=10000000"
    with serving(backend="numpy") as server:
        connections = [HTTPConnection(server.host, server.port) for _ in range(2)]
        connections[0].request("PUT", f"/v1/graphs/product?{query}", weighted(PRODUCT, w=W))
        assert connections[0].getresponse().read()
        for connection in connections:
            connection.request("POST", "/v1/graphs/product", npy(rows()), {**NPY, **NPZ})
        admission = server.service.admission
        eventually(lambda: admission.requests_in_flight == 2, "both calls wait")
        for left, connection in zip((1, 0), connections, strict=True):
            assert connection.sock is not None
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # sends a reset
            connection.close()
            eventually(lambda left=left: admission.requests_in_flight == left, "the call has ended")
        assert server.service.graphs.find("", "product").batches_computed == 0


def test_a_full_batch_does_not_wait(app: AppClient) -> None:
    assert store(
        app, "product", weighted(PRODUCT, w=W), "max_batch_size=4&max_queue_delay_microseconds=10000000"
    ).status_code == 201  # fmt: skip
    together(app, [post(app, "product", rows(), **NPZ, prefer="wait=5") for _ in range(4)])
    assert batches(app, "product") == (4, 1)


def test_calls_that_wait_for_a_deleted_graph_are_answered(app: AppClient) -> None:
    query = "max_batch_size=4&max_queue_delay_microseconds=10000000"
    assert store(app, "product", weighted(PRODUCT, w=W), query).status_code == 201
    x = rows()

    async def calls() -> Any:
        waiting = asyncio.ensure_future(post(app, "product", x, **NPZ))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert (await app.client.delete("/v1/graphs/product")).status_code == 204
        return await waiting

    np.testing.assert_array_equal(tensor_of(app.run(calls()), "p"), x @ W)


def test_without_memory_for_a_batch_each_call_is_computed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_app(backend="numpy") as app:
        query = "max_batch_size=64&max_queue_delay_microseconds=20000"
        assert store(app, "product", weighted(PRODUCT, w=W), query).status_code == 201
        tensors = [rows(8) for _ in range(6)]
        together(app, [post(app, "product", x, **NPZ) for x in tensors[:1]])  # a plan is made
        kept, grown = batches(app, "product"), Ticket.grow

        def grow(ticket: Ticket, size_in_bytes: int) -> None:
            if size_in_bytes == 3 * tensors[0].nbytes:  # what a call's rows take in a batch: one input, two outputs
                raise TooBusy("no memory")
            grown(ticket, size_in_bytes)

        monkeypatch.setattr(Ticket, "grow", grow)
        answers = together(app, [post(app, "product", x, **NPZ) for x in tensors])
        for x, answer in zip(tensors, answers, strict=True):
            np.testing.assert_array_equal(tensor_of(answer, "p"), x @ W)
        assert batches(app, "product") == kept
        assert app.service.admission.requests_in_flight == 0


def test_calls_are_joined_when_no_more_requests_are_admitted() -> None:
    with http_app(backend="numpy", max_requests=8, caller_share=1) as app:
        query = "max_batch_size=8&max_queue_delay_microseconds=10000000"
        assert store(app, "product", weighted(PRODUCT, w=W), query).status_code == 201
        answers = together(app, [post(app, "product", rows(), **NPZ) for _ in range(8)])
        assert [answer.status_code for answer in answers] == [200] * 8
        assert batches(app, "product") == (8, 1)


def test_inputs_of_other_sizes_are_other_batches(app: AppClient) -> None:
    graph = {
        "inputs": {"x": {"data_type": "FLOAT32", "sizes": ["n", "k"]}},
        "nodes": [{"name": name, "op_type": op_type, "inputs": [source]} for name, op_type, source in
                  [("a", "Neg", "x"), ("b", "Abs", "a"), ("c", "Sqrt", "b"), ("d", "Tanh", "c"), ("e", "Sin", "d")]],
        "outputs": {"e": "e"},
    }  # fmt: skip
    query = "max_batch_size=6&max_queue_delay_microseconds=10000000"
    assert store(app, "waves", json.dumps(graph).encode(), query).status_code == 201
    tensors = [RNG.random((2, 70_000 + number % 2), np.float32) for number in range(6)]
    answers = together(app, [post(app, "waves", x) for x in tensors])
    for x, answer in zip(tensors, answers, strict=True):
        found = np.load(io.BytesIO(answer.content))
        np.testing.assert_allclose(found, np.sin(np.tanh(np.sqrt(np.abs(x)))), rtol=1e-5)
    assert batches(app, "waves") == (6, 2)


def test_nodes_of_onnx_runtime_are_called_once_for_a_batch(app: AppClient) -> None:
    onnx = pytest.importorskip("onnx", reason="the model for this test is made by the package onnx")
    pytest.importorskip("onnxruntime", reason="ONNX Runtime computes the convolution")
    text = """<ir_version: 8, opset_import: ["": 17]> m (float[n, 1, 6, 6] x) => (float[n, 1, 4, 4] y)
        <float[1, 1, 3, 3] w = {1, 0, -1, 2, 0, -2, 1, 0, -1}> { c = Conv(x, w) y = Relu(c) }"""
    content = onnx.parser.parse_model(text).SerializeToString()
    query = "max_batch_size=9&max_queue_delay_microseconds=10000000"
    assert store(app, "edges", content, query).status_code == 201
    tensors = [RNG.integers(-9, 9, (1 + number % 2, 1, 6, 6)).astype(np.float32) for number in range(6)]
    answers = together(app, [post(app, "edges", x) for x in tensors])
    weights = np.array([[1, 0, -1], [2, 0, -2], [1, 0, -1]], np.float32)
    for x, answer in zip(tensors, answers, strict=True):
        assert answer.status_code == 200, answer.text
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
        expected = np.maximum((windows * weights).sum((-2, -1)), 0)
        np.testing.assert_array_equal(np.load(io.BytesIO(answer.content)), expected)
        assert "onnxruntime" in answer.headers["tensorpost-backend"]
    assert batches(app, "edges") == (6, 1)


def test_more_rows_than_a_batch_are_refused(app: AppClient) -> None:
    assert store(app, "product", weighted(PRODUCT, w=W), "max_batch_size=4").status_code == 201
    (answer,) = together(app, [post(app, "product", rows(5))])
    problem = assert_problem(answer, 400, "tensor-mismatch")
    assert "at most 4 rows" in problem["detail"]
    assert together(app, [post(app, "product", rows(4), **NPZ)])[0].status_code == 200
    assert app.get("/v1/graphs/product").json()["max_batch_size"] == 4


@pytest.mark.parametrize(
    ("graph", "query", "says"),
    [
        ({**PRODUCT, "nodes": [{"name": "y", "op_type": "Softmax", "inputs": ["x"], "attributes": {"axis": 0}}],
          "inputs": {"x": PRODUCT["inputs"]["x"]}, "outputs": {"y": "y"}}, "max_batch_size=4", "from other rows"),
        ({**PRODUCT, "inputs": {**PRODUCT["inputs"], "x": {"data_type": "FLOAT32", "sizes": [2, SIDE]}}},
         "max_batch_size=4", "free first size"),
        (PRODUCT, "max_batch_size=4", "'w' has"),
        (PRODUCT, "max_batch_size=0", "from 1 to"),
        (PRODUCT, "max_batch_size=x", "from 1 to"),
        (PRODUCT, "max_queue_delay_microseconds=5", "needs max_batch_size"),
        (PRODUCT, "batch=4", "batch"),
    ],
)  # fmt: skip
def test_graphs_whose_calls_cannot_be_joined(app: AppClient, graph: Any, query: str, says: str) -> None:
    refused = app.request("PUT", f"/v1/graphs/g?{query}", content=json.dumps(graph).encode(), headers=JSON)
    problem = assert_problem(refused, 400, "invalid-parameter")
    assert says in problem["detail"]
    assert app.get("/v1/graphs").json() == {"graphs": []}


def test_tritonclient_calls_are_joined_over_http_and_grpc() -> None:
    triton_http = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    triton_grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    config = {
        "max_batch_size": 16, "dynamic_batching": {"max_queue_delay_microseconds": "20000"},
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [SIDE]}],
    }  # fmt: skip
    with serving(backend="numpy", grpc_port=0) as server, Client(server.url):
        for module, port in ((triton_http, server.port), (triton_grpc, server.app.state.grpc_port)):
            address = f"127.0.0.1:{port}"
            with closing(module.InferenceServerClient(address)) as client:
                client.load_model(
                    "product", config=json.dumps(config), files={"file:1/model.safetensors": weighted(PRODUCT, w=W)}
                )
                said = client.get_model_config("product", **({} if module is triton_http else {"as_json": True}))
                said = said.get("config", said)
                assert said["max_batch_size"] == 16
                assert int(said["dynamic_batching"]["max_queue_delay_microseconds"]) == 20000
                assert [int(size) for size in said["input"][0]["dims"]] == [SIDE]

            def infer(x: Any, module: Any = module, address: str = address) -> Any:
                with closing(module.InferenceServerClient(address)) as client:
                    given = module.InferInput("x", [*x.shape], "FP32").set_data_from_numpy(x)
                    found = client.infer("product", [given])
                    return found.as_numpy("p"), found.as_numpy("y")

            tensors = [rows() for _ in range(12)]
            with ThreadPoolExecutor(12) as threads:
                found = [*threads.map(infer, tensors)]
            for x, (p, y) in zip(tensors, found, strict=True):
                np.testing.assert_array_equal(p, x @ W)
                np.testing.assert_array_equal(y, np.maximum(x @ W, 0))
            graph = server.service.graphs.find("", "product")
            assert graph.joined_calls == 12
            assert graph.batches_computed < 12
            with closing(module.InferenceServerClient(address)) as client:
                options = {} if module is triton_http else {"as_json": True}
                (counts,) = client.get_inference_statistics("product", **options)["model_stats"]
                assert int(counts["inference_count"]) - int(counts["execution_count"]) > 0
        with closing(triton_http.InferenceServerClient(f"127.0.0.1:{server.port}")) as client:
            client.unload_model("product")
        eventually(server.idle, "all memory is released")
