"""`rows=` of the calls: a part of an output, over real servers, by both clients. The numbers are NumPy's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.client.conftest import WAYS
from tests.support.command_line import invoke
from tests.support.cutting_proxy import cutting_proxy
from tests.support.live_server import live_server

from tensorpost import BufferTensorDesc, Progress, TileOperatorDesc, parse_operator
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.problems import InvalidParameter

X = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
REPEATS = (1, 1, 3, 2)
ROWS = np.tile(X, REPEATS).reshape(-1, 10)  # 72 rows
DESC = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", X.shape), REPEATS)
GRAPH = {
    "inputs": {"x": {"data_type": "float32", "sizes": [2, 3, 4, 5]}},
    "nodes": [{"name": "t", "op_type": "Tile", "inputs": {"input": "x", "repeats": [*REPEATS]}}],
    "outputs": {"y": "t"},
}
MIB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with live_server(TENSORPOST_BACKEND="numpy") as url:
        yield url


@pytest.fixture(params=WAYS)
def new_client(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return WAYS[request.param]


@pytest.mark.parametrize(
    "rows", [np.s_[12:36], np.s_[:1], np.s_[71:], np.s_[:], slice(0, 72, 1), slice(np.int64(3), np.int64(5))]
)
def test_rows_of_an_operator(server: str, new_client: Any, rows: slice) -> None:
    with new_client(server) as tp:
        result = tp.run(DESC, X, rows=rows)
        np.testing.assert_array_equal(result, ROWS[rows])
        assert result.dtype == np.float32
        assert tp.call(DESC, X, rows=rows).backend == "numpy"
        assert b"".join(tp.stream(DESC, X, rows=rows, block_bytes=7)) == ROWS[rows].tobytes()


def test_a_plane_of_a_volume(server: str, new_client: Any) -> None:
    with new_client(server) as tp:
        plane = tp.run(DESC, X, rows=np.s_[12 * 4 : 12 * 5])
    np.testing.assert_array_equal(plane, np.tile(X, REPEATS)[1, 1])


def test_an_output_of_one_dimension_has_a_row_for_each_element(server: str, new_client: Any) -> None:
    with new_client(server) as tp:
        found = tp.onnx("Tile", X.reshape(-1), [2], rows=np.s_[100:150])
    np.testing.assert_array_equal(found, np.tile(X.reshape(-1), 2)[100:150])


def test_rows_of_nodes_graphs_and_stored_graphs(server: str, new_client: Any) -> None:
    rows = np.s_[5:9]
    node = OnnxNode.of("Tile", {"input": OnnxTensor("float32", X.shape), "repeats": [*REPEATS]}, opset=13)
    with new_client(server) as tp:
        np.testing.assert_array_equal(tp.run(node, X, rows=rows), ROWS[rows])
        np.testing.assert_array_equal(tp.onnx("Tile", X, [*REPEATS], rows=rows), ROWS[rows])
        np.testing.assert_array_equal(tp.run_graph(GRAPH, {"x": X}, rows=rows)["y"], ROWS[rows])
        blocks = list(tp.stream_graph(GRAPH, {"x": X}, rows=rows, block_bytes=64))
        assert {block.output for block in blocks} == {"y"}
        assert b"".join(block.data for block in blocks) == ROWS[rows].tobytes()
        stored = tp.store(GRAPH)
        np.testing.assert_array_equal(tp.run_stored(stored, {"x": X}, rows=rows)["y"], ROWS[rows])
        np.testing.assert_array_equal(tp.run_graph(stored, {"x": X}, rows=rows)["y"], ROWS[rows])


def test_rows_of_a_model(server: str, new_client: Any) -> None:
    parse_model: Any = pytest.importorskip("onnx.parser", reason="the package onnx is not installed").parse_model
    text = '<ir_version: 8, opset_import: ["": 17]> neg (float[n, m] x) => (float[n, m] y) { y = Neg(x) }'
    with new_client(server) as tp:
        found = tp.run_model(parse_model(text), X.reshape(24, 5), rows=np.s_[20:])["y"]
    np.testing.assert_array_equal(found, -X.reshape(24, 5)[20:])


def test_rows_of_strings(server: str, new_client: Any) -> None:
    words = np.array([["a", "bc"], ["d", ""]], dtype=object)
    with new_client(server) as tp:
        found = tp.onnx("Tile", words, [2, 1], rows=np.s_[1:3])
    assert found.tolist() == [["d", ""], ["a", "bc"]]


def test_rows_are_received_into_memory_of_their_shape(server: str, new_client: Any) -> None:
    out = np.empty((4, 10), np.float32)
    with new_client(server) as tp:
        assert tp.run(DESC, X, rows=np.s_[8:12], out=out) is out
        np.testing.assert_array_equal(out, ROWS[8:12])
        with pytest.raises(InvalidParameter, match=r"out must be an array of float32 and shape \(3, 10\)"):
            tp.run(DESC, X, rows=np.s_[8:11], out=out)


@pytest.mark.parametrize("way", ["sockets", "asyncio"])
def test_rows_go_through_the_socket_beside_shared_memory(way: str) -> None:
    x = np.ones((64, 4096), np.float32)
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", x.shape), (2, 1))
    with live_server(TENSORPOST_SHARED_MEMORY="1") as url, WAYS[way](url, shared_memory=True) as tp:
        assert tp.run(desc, x).shape == (128, 4096)
        assert tp.run(desc, x, rows=np.s_[100:]).shape == (28, 4096)


def test_rows_of_a_broken_answer_go_on(server: str, new_client: Any) -> None:
    x = np.random.default_rng(0).integers(0, 255, (1, 3, 101, 977), np.uint8)
    repeats = (1, 1, 10, 10)
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", x.shape), repeats)
    whole, rows = np.tile(x, repeats).reshape(-1, 9770), np.s_[17:3000]
    seen: list[Progress] = []

    with cutting_proxy(server, [7 * MIB + 123, 9 * MIB]) as proxy, new_client(proxy.url) as tp:
        np.testing.assert_array_equal(tp.run(desc, x, rows=rows, progress=seen.append), whole[rows])
        asked = [head.partition(b"rows=")[2].partition(b" ")[0].partition(b"&")[0].decode() for head in proxy.heads]
    assert asked[0] == "17%3A3000"
    assert len(asked) == 3
    assert all(17 < int(each.partition(":")[0]) < 3000 for each in asked[1:])
    assert all(each.endswith(":3000") for each in asked[1:])
    assert b"rows=" in proxy.heads[1]
    assert proxy.heads[1].count(b"rows=") == 1
    received = [each.received for each in seen]
    assert received == sorted(received)
    assert seen[-1].received == seen[-1].to_receive

    with cutting_proxy(server, [7 * MIB]) as proxy, new_client(proxy.url) as tp:
        assert b"".join(tp.stream(desc, x, rows=np.s_[17:])) == whole[17:].tobytes()
        assert len(proxy.heads) == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("12:36", r"rows is '12:36'; it must be a slice without a step, as in np\.s_\[128:256\]"),
        ((12, 36), r"rows is .*; it must be a slice without a step"),
        (12, "rows is 12; it must be a slice without a step"),
        (np.s_[::2], "it must be a slice without a step"),
        (np.s_[::-1], "it must be a slice without a step"),
        (np.s_[-3:], "the start of rows is -3; it must be a whole number of at least 0, counted from the first row"),
        (np.s_[:-3], "the stop of rows is -3; it must be a whole number of at least 0"),
        (np.s_[0.5:], "the start of rows is 0.5; it must be a whole number"),
        (np.s_[36:12], "rows is 36:12; it must be begin:end with 0 <= begin < end <= 72"),
        (np.s_[5:5], "rows is 5:5; it must be"),
        (np.s_[72:], "rows is 72:; it must be"),
        (
            np.s_[:73],
            r"rows is 0:73; it must be .* 72 is the number of rows of an output of the sizes \[2, 3, 12, 10\]",
        ),
    ],
)
def test_other_rows_are_refused_before_anything_is_sent(new_client: Any, rows: Any, message: str) -> None:
    with new_client("http://127.0.0.1:9") as tp:
        with pytest.raises(InvalidParameter, match=message):
            tp.run(DESC, X, rows=rows)
        with pytest.raises(InvalidParameter, match=message):
            tp.stream(DESC, X, rows=rows)
        with pytest.raises(InvalidParameter, match=message):
            tp.run_graph(GRAPH, {"x": X}, rows=rows)


def test_rows_of_several_outputs_and_of_strides_are_refused(new_client: Any) -> None:
    fields = {"InputTensor": {"DataType": "FLOAT32", "Sizes": [4, 2]}, "OutputCount": 2, "Axis": 0}
    split = parse_operator({"type": "SPLIT", "desc": fields}, complete=True)
    strided = TileOperatorDesc(
        input_tensor=BufferTensorDesc.packed("FLOAT32", (2, 3)),
        output_tensor=BufferTensorDesc(data_type="FLOAT32", sizes=(2, 6), strides=(8, 1)),
        repeats=(1, 2),
    )
    with new_client("http://127.0.0.1:9") as tp:
        with pytest.raises(
            InvalidParameter,
            match="rows select from a single output, and SPLIT has the outputs output_0, output_1; leave rows out",
        ):
            tp.run(split, np.ones((4, 2), np.float32), rows=np.s_[:1])
        with pytest.raises(InvalidParameter, match="rows select from a packed output"):
            tp.run(strided, np.ones((2, 3), np.float32), rows=np.s_[:1])


def test_a_stored_graph_without_such_rows_is_refused_by_the_server(server: str, new_client: Any) -> None:
    with new_client(server) as tp, pytest.raises(InvalidParameter, match="rows is 0:73; it must be begin:end"):
        tp.run_stored(tp.store(GRAPH), {"x": X}, rows=np.s_[:73])


# ---- the command line ------------------------------------------------------------------------------------------------


def test_rows_on_the_command_line(server: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    words = ["-s", "repeats=1,1,3,2", "--rows", "12:24", "--url", server]
    for target in ("y.npy", "y.safetensors", "y.bin"):
        done = invoke("run", "tile", f"{tmp_path / 'x.npy'}", "-o", f"{tmp_path / target}", *words)
        assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), ROWS[12:24])
    np.testing.assert_array_equal(load_file(tmp_path / "y.safetensors")["output"], ROWS[12:24])
    assert (tmp_path / "y.bin").read_bytes() == ROWS[12:24].tobytes()

    words[3] = "60:"
    done = invoke("onnx", "Tile", f"{tmp_path / 'x.npy'}", "-o", f"{tmp_path / 'z.npy'}", *words)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "z.npy"), ROWS[60:])


def test_rows_of_graphs_and_stored_graphs_on_the_command_line(server: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "g.json").write_text(json.dumps(GRAPH))
    words = [f"x={tmp_path / 'x.npy'}", "-o", f"y={tmp_path / 'y.npy'}", "--rows", ":5", "--url", server]
    done = invoke("graph", "run", f"{tmp_path / 'g.json'}", *words)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), ROWS[:5])

    assert invoke("graph", "store", f"{tmp_path / 'g.json'}", "--name", "rows", "--url", server).returncode == 0
    words[4] = "70:72"
    done = invoke("graph", "call", "rows", *words)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), ROWS[70:])


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--rows", "12-24", "-o", "y.npy"], 2, "rows is '12-24'; it must be begin:end, as in 128:256, :256 or 128:"),
        (["--rows", "-3:", "-o", "y.npy"], 2, "it must be begin:end"),
        (["--rows", "0:73", "-o", "y.npy"], 1, "--rows is 0:73; it must be begin:end with 0 <= begin < end <= 72"),
        (["--rows", "5:5", "-o", "y.npy"], 1, "--rows is 5:5"),
        (["--rows", "0:1", "-o", "y.png"], 1, "--rows writes no PNG; end -o in .npy or .safetensors"),
        (["--rows", "0:1", "-o", "y.zarr"], 1, "--rows writes no zarr; end -o in .npy or .safetensors"),
        (["--rows", "0:1", "-o", "y.npy", "-o", "z.npy"], 1, "--rows writes one file, and -o names 2; name one"),
    ],
)
def test_other_rows_are_refused_in_the_commands_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], status: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    done = invoke("run", "tile", "x.npy", "-s", "repeats=1,1,3,2", "--url", "http://127.0.0.1:9", *words)
    assert done.returncode == status
    assert message in " ".join(done.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_rows_of_a_graph_of_several_outputs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    Path("g.json").write_text(json.dumps(GRAPH | {"outputs": {"y": "t", "z": "t"}}))
    words = ["x=x.npy", "-o", "y=y.npy", "-o", "z=z.npy", "--rows", ":5", "--url", "http://127.0.0.1:9"]
    done = invoke("graph", "run", "g.json", *words)
    assert done.returncode == 1
    message = "--rows select from a single output, and the graph has the outputs y, z; leave --rows out, or run a graph"
    assert message in " ".join(done.stderr.split())
