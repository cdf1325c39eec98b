"""Stored graphs through both clients: a handle that is called like a function, and what it sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.command_line import invoke
from tests.support.http_app import Serving, serving

from tensorpost import AsyncClient, Client, HeldTensor
from tensorpost.problems import GraphNotFound, InvalidParameter

SCALE: dict[str, Any] = {
    "inputs": {"x": {}, "w": {}},
    "nodes": [{"name": "y", "op_type": "Mul", "inputs": ["x", "w"]}],
    "outputs": {"y": "y"},
}
X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.array([1, 10, 100], np.float32)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(backend="numpy") as found:
        yield found


def test_a_stored_graph_is_called_like_a_function(server: Serving) -> None:
    with Client(server.url) as tp:
        scale = tp.store(SCALE, "scale", weights={"w": W})
        assert (scale.name, scale.inputs, scale.outputs) == ("scale", ("x",), ("y",))
        assert scale.size_in_bytes > W.nbytes
        for _ in range(3):  # the third is replayed
            np.testing.assert_array_equal(scale(X)["y"], X * W)
        np.testing.assert_array_equal(scale({"x": X})["y"], X * W)
        np.testing.assert_array_equal(tp.run_graph(scale, {"x": X})["y"], X * W)
        out = np.empty_like(X)
        assert tp.run_stored(scale, X, out=out)["y"] is out
        np.testing.assert_array_equal(out, X * W)
        results = [result["y"] for result in tp.map(scale, [X, X + 1, -X], in_flight=2)]
        np.testing.assert_array_equal(results, [X * W, (X + 1) * W, -X * W])

        again = tp.stored_graph("scale")
        assert again.digest == scale.digest
        assert [each.name for each in tp.stored_graphs()] == ["scale"]
        tp.delete_graph("scale")
        with pytest.raises(GraphNotFound, match="no stored graph 'scale'"):
            scale(X)
        with pytest.raises(GraphNotFound):
            tp.delete_graph("scale")


def test_a_stored_graph_is_called_by_its_name(server: Serving) -> None:
    with Client(server.url) as tp:
        scale = tp.store(SCALE, "scale", weights={"w": W})
        np.testing.assert_array_equal(tp.run_stored("scale", X)["y"], X * W)
        np.testing.assert_array_equal(tp.run_stored("scale", {"x": X}, rows=np.s_[1:])["y"], (X * W)[1:])
        np.testing.assert_array_equal(scale(X, rows=np.s_[:1])["y"], (X * W)[:1])
        for kept in (scale(X, keep=True), tp.run_stored("scale", X, keep={"y": "scaled"})):
            assert isinstance(kept["y"], HeldTensor)
            np.testing.assert_array_equal(scale(kept["y"])["y"], X * W * W)
        assert [each.name for each in tp.tensors() if each.name == "scaled"] == ["scaled"]
        with pytest.raises(GraphNotFound, match="no stored graph 'scales'; did you mean 'scale'"):
            tp.run_stored("scales", X)
        wrong: Any = 5
        with pytest.raises(InvalidParameter, match="graph is 5; it must be a StoredGraph, or its name"):
            tp.run_stored(wrong, X)
        tp.delete_tensor("scaled")
        tp.delete_graph("scale")


def test_the_same_from_asyncio(server: Serving) -> None:
    async def call() -> Any:
        async with AsyncClient(server.url) as tp:
            scale = await tp.store(SCALE, weights={"w": W})
            assert scale.digest == f"sha256:{scale.name}"
            found = await asyncio.gather(scale(X), tp.run_stored(scale.name, X + 1))
            await tp.delete_graph(scale.name)
            return found

    first, second = asyncio.run(call())
    np.testing.assert_array_equal(first["y"], X * W)
    np.testing.assert_array_equal(second["y"], (X + 1) * W)


def test_files_of_graphs_models_and_weights(server: Serving, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="models for this test are made by the package onnx")
    x = {"data_type": "FLOAT32", "sizes": ["n", 3]}
    (tmp_path / "scale.json").write_text(json.dumps({**SCALE, "inputs": {"x": x, "w": {}}}))
    np.save(tmp_path / "w.npy", W)
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> m (float[n, 3] x) => (float[n, 3] y) <float[3] w = {1, 10, 100}>
        { y = Mul(x, w) }"""
    )
    onnx.save(model, tmp_path / "model.onnx")
    with Client(server.url) as tp:
        several = [
            tp.store(tmp_path / "scale.json", "a", weights={"w": tmp_path / "w.npy"}),
            tp.store(tmp_path / "model.onnx", "b"),
            tp.store(model, "c"),
            tp.store(model.SerializeToString(), "d"),
        ]
        for stored in several:
            np.testing.assert_array_equal(stored(X)["y"], X * W)
        assert [each.kind for each in several] == ["graph", "onnx", "onnx", "onnx"]
        for stored in several:
            tp.delete_graph(stored.name)


def test_a_picture_travels_as_its_file(server: Serving, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    image.fromarray(pixels).save(tmp_path / "x.png")
    graph = {
        "inputs": {"photo": {"data_type": "UINT8", "sizes": [1, "h", "w", 3]}},
        "nodes": [{"name": "y", "op_type": "Transpose", "inputs": ["photo"], "attributes": {"perm": [0, 3, 1, 2]}}],
        "outputs": {"y": "y"},
    }
    with Client(server.url) as tp:
        chw = tp.store(graph, "chw")
        np.testing.assert_array_equal(chw(tmp_path / "x.png")["y"][0], pixels.transpose(2, 0, 1))


def test_what_is_wrong_is_said_before_anything_is_sent(server: Serving) -> None:
    with Client(server.url) as tp:
        with pytest.raises(InvalidParameter, match="its initializers"):
            tp.store(b"\x08\x08", "m", weights={"w": W})
        with pytest.raises(InvalidParameter, match="name"):
            tp.store(SCALE, 3)  # pyright: ignore[reportArgumentType] # wrong on purpose
        both = tp.store(SCALE, "both")
        with pytest.raises(InvalidParameter, match="the inputs x, w"):
            both(X)
        with pytest.raises(InvalidParameter, match="numbers and booleans"):
            both({"x": X, "w": np.array(["a"])})
        with pytest.raises(InvalidParameter, match="its document is needed"):
            next(tp.stream_graph(both, {"x": X}))


def test_after_a_restart_a_handle_raises_graph_not_found() -> None:
    with serving(backend="numpy") as first, Client(first.url) as tp:
        neg = tp.store(
            {**SCALE, "inputs": {"x": {}}, "nodes": [{"name": "y", "op_type": "Neg", "inputs": ["x"]}]}, "neg"
        )
    with serving(backend="numpy") as second, Client(second.url) as tp, pytest.raises(GraphNotFound):
        tp.run_stored(neg, X)


def test_calls_of_threads_are_joined(server: Serving) -> None:
    side = 512
    weights = np.eye(side, dtype=np.float32)[::-1].copy()
    graph = {
        "inputs": {
            "x": {"data_type": "FLOAT32", "sizes": ["n", side]},
            "w": {"data_type": "FLOAT32", "sizes": [side, side]},
        },
        "nodes": [{"name": "y", "op_type": "MatMul", "inputs": ["x", "w"]}],
        "outputs": {"y": "y"},
    }
    with Client(server.url) as tp:
        reverse = tp.store(
            graph, "reverse", weights={"w": weights}, max_batch_size=8, max_queue_delay_microseconds=50_000
        )
        tensors = [np.full((1, side), number, np.float32) + np.arange(side, dtype=np.float32) for number in range(8)]
        with ThreadPoolExecutor(8) as threads:
            found = [*threads.map(lambda x: reverse(x)["y"], tensors)]
        for x, y in zip(tensors, found, strict=True):
            np.testing.assert_array_equal(y, x[:, ::-1])
        entry = server.service.graphs.find("", "reverse")
        assert entry.joined_calls == 8
        assert entry.batches_computed < 8
        tp.delete_graph("reverse")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"max_batch_size": 2.5}, "max_batch_size is 2.5"),
        ({"max_batch_size": 2, "max_queue_delay_microseconds": -1}, "max_queue_delay_microseconds is -1"),
        ({"max_queue_delay_microseconds": 5}, "needs max_batch_size"),
    ],
)
def test_numbers_of_a_batch_are_checked_before_anything_is_sent(options: dict[str, Any], says: str) -> None:
    with Client("http://127.0.0.1:9") as tp, pytest.raises(InvalidParameter, match=says):
        tp.store(SCALE, "g", **options)


def test_the_command_line_stores_calls_lists_and_deletes(server: Serving, tmp_path: Path) -> None:
    x = {"data_type": "FLOAT32", "sizes": ["n", 3]}
    (tmp_path / "scale.json").write_text(json.dumps({**SCALE, "inputs": {"x": x, "w": {}}}))
    np.save(tmp_path / "w.npy", W)
    np.save(tmp_path / "x.npy", X)
    at = ("--url", server.url)

    joined = ("--max-batch-size", "8", "--max-queue-delay-microseconds", "100")
    made = invoke("graph", "store", "scale.json", "w=w.npy", "--name", "cli", *joined, *at, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    batches = server.service.graphs.find("", "cli").batches
    assert batches is not None
    assert (batches.max_batch_size, batches.max_queue_delay_microseconds) == (8, 100)
    assert "cli: inputs x; outputs y;" in made.stdout
    called = invoke("graph", "call", "cli", "x=x.npy", "-o", "y=y.npy", *at, cwd=tmp_path)
    assert called.returncode == 0, called.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), X * W)
    assert "cli" in invoke("graph", "list", *at).stdout
    wrong = invoke("graph", "call", "cli", "x=x.npy", "-o", "z=z.npy", *at, cwd=tmp_path)
    assert wrong.returncode == 1
    assert "has the outputs y" in " ".join(wrong.stderr.split())
    assert invoke("graph", "delete", "cli", *at).returncode == 0
    gone = invoke("graph", "call", "cli", "x=x.npy", "-o", "y=y.npy", *at, cwd=tmp_path)
    assert "no stored graph 'cli'" in " ".join(gone.stderr.split())
