"""`write_zarr` and `-o x.zarr`: arrays as Zarr's specification has them, and writes that go on where one stopped.

What is written is read by a reader made here from the specification, and by the package zarr if it is installed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.client.conftest import BlockingAsyncClient
from tests.support.command_line import invoke
from tests.support.cutting_proxy import cutting_proxy
from tests.support.live_server import live_server

from tensorpost import BufferTensorDesc, Client, Progress, TileOperatorDesc
from tensorpost.onnx import OnnxNode
from tensorpost.problems import CallChanged, IncompleteBody, InvalidParameter

X = np.random.default_rng(0).integers(0, 255, (1, 3, 101, 977), np.uint8)
REPEATS = (1, 1, 7, 10)
WHOLE = np.tile(X, REPEATS)
DESC = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", X.shape), REPEATS)
MIB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with live_server(TENSORPOST_BACKEND="numpy") as url:
        yield url


@pytest.fixture
def tp(server: str) -> Iterator[Client]:
    with Client(server) as client:
        yield client


def read_zarr(path: Path) -> NDArray[Any]:
    """Read an array by the specification: chunks of one shape, uncompressed, those at the ends filled up."""
    document = json.loads((path / "zarr.json").read_text())
    assert (document["zarr_format"], document["node_type"]) == (3, "array")
    assert document["codecs"][0]["name"] == "bytes"
    shape, chunks = document["shape"], document["chunk_grid"]["configuration"]["chunk_shape"]
    found = np.full(shape, 77).astype(document["data_type"])
    for place in itertools.product(*(range(-(-size // part)) for size, part in zip(shape, chunks, strict=True))):
        data = np.fromfile(path / "/".join(["c", *map(str, place)]), document["data_type"]).reshape(chunks)
        box = tuple(slice(at * part, (at + 1) * part) for at, part in zip(place, chunks, strict=True))
        target = found[(*box, ...)]
        target[...] = data[tuple(slice(size) for size in target.shape)]
    return found


def identity(x: NDArray[Any]) -> OnnxNode:
    return OnnxNode.of("Identity", {"input": x}, opset=21)


@pytest.mark.parametrize(
    ("shape", "dtype", "chunk_bytes"),
    [
        ((5, 7, 11), "float32", 1000), ((5, 7, 11), "float32", 44 * 7 * 2), ((5, 7, 11), "int64", 30),
        ((1000,), "uint16", 128), ((3, 4), "bool", 5), ((6, 2), "complex64", 32), ((), "float64", 1),
        ((4, 4), "int8", 1), ((3, 50), "float16", 1 << 20), ((2, 0, 3), "int32", 64),
    ],
)  # fmt: skip
def test_arrays_of_every_cut(tp: Client, tmp_path: Path, shape: tuple[int, ...], dtype: str, chunk_bytes: int) -> None:
    x = np.random.default_rng(1).integers(0, 100, shape).astype(dtype)
    path = tmp_path / "y.zarr"
    tp.write_zarr(identity(x), x, path, chunk_bytes=chunk_bytes)
    found = read_zarr(path)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x)
    assert [each.name for each in tmp_path.iterdir()] == ["y.zarr"]
    assert not list(path.rglob("*.part"))


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool", "complex64"])
def test_the_package_zarr_reads_them(tp: Client, tmp_path: Path, dtype: str) -> None:
    zarr: Any = pytest.importorskip("zarr", reason="zarr is not installed (pip install zarr)")
    x = np.random.default_rng(1).integers(0, 100, (5, 7, 11)).astype(dtype)
    tp.write_zarr(identity(x), x, tmp_path / "y.zarr", chunk_bytes=100)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "y.zarr", mode="r")[:], x)


def test_another_shape_of_the_same_elements(tp: Client, tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.int32).reshape(2, 12)
    tp.write_zarr(identity(x), x, tmp_path / "y.zarr", shape=(4, 3, 2), chunk_bytes=16)
    np.testing.assert_array_equal(read_zarr(tmp_path / "y.zarr"), x.reshape(4, 3, 2))


@pytest.mark.parametrize("kind", [Client, BlockingAsyncClient])
@pytest.mark.parametrize("chunk_bytes", [MIB, 3000])  # a chunk of many rows, and chunks of a part of a row
def test_a_later_process_asks_for_the_rest(server: str, tmp_path: Path, kind: Any, chunk_bytes: int) -> None:
    path, seen = tmp_path / "y.zarr", list[Progress]()
    with cutting_proxy(server, [9 * MIB]) as proxy, kind(proxy.url, retries=0) as tp:
        with pytest.raises(IncompleteBody):
            tp.write_zarr(DESC, X, path, chunk_bytes=chunk_bytes)
        assert not path.exists()
        assert (tmp_path / "y.zarr.part").exists()
        tp.write_zarr(DESC, X, path, chunk_bytes=chunk_bytes, progress=seen.append)
        begin = int(proxy.heads[1].partition(b"rows=")[2].partition(b":")[0]) * 9770
        assert 8 * MIB - 9770 <= begin <= 9 * MIB
        assert proxy.passed[1] < WHOLE.nbytes - begin + 4096
    assert seen[-1].received == seen[-1].to_receive == WHOLE.nbytes
    assert seen[0].received >= 0
    np.testing.assert_array_equal(read_zarr(path), WHOLE)
    assert not (tmp_path / "y.zarr.part").exists()


def interrupted(server: str, path: Path) -> None:
    with cutting_proxy(server, [9 * MIB]) as proxy, Client(proxy.url, retries=0) as tp, pytest.raises(IncompleteBody):
        tp.write_zarr(DESC, X, path, chunk_bytes=MIB)


def test_another_call_does_not_go_on(server: str, tp: Client, tmp_path: Path) -> None:
    path = tmp_path / "y.zarr"
    interrupted(server, path)
    before = {each: each.stat().st_mtime_ns for each in (tmp_path / "y.zarr.part").rglob("*")}
    other = X.copy()
    other[-1, -1, -1, -1] += 1
    with pytest.raises(CallChanged, match="its operation or its inputs are others; remove it to begin again"):
        tp.write_zarr(DESC, other, path, chunk_bytes=MIB)
    with pytest.raises(CallChanged, match="is of an array with other sizes"):
        tp.write_zarr(DESC, X, path, chunk_bytes=2 * MIB)
    assert {each: each.stat().st_mtime_ns for each in (tmp_path / "y.zarr.part").rglob("*")} == before
    tp.write_zarr(DESC, X, path, chunk_bytes=MIB)
    np.testing.assert_array_equal(read_zarr(path), WHOLE)


def test_a_chunk_that_is_damaged_or_missing_is_asked_for_again(server: str, tp: Client, tmp_path: Path) -> None:
    path = tmp_path / "y.zarr"
    interrupted(server, path)
    chunks = sorted((tmp_path / "y.zarr.part").rglob("c/*/*/*/*"))
    chunks[3].write_bytes(b"")
    chunks[5].unlink()
    tp.write_zarr(DESC, X, path, chunk_bytes=MIB)
    np.testing.assert_array_equal(read_zarr(path), WHOLE)


def test_what_was_complete_gets_its_name(server: str, tp: Client, tmp_path: Path) -> None:
    """A process that ended after the last chunk leaves nothing to ask for."""
    path = tmp_path / "y.zarr"
    tp.write_zarr(DESC, X, path)
    path.rename(tmp_path / "y.zarr.part")
    with Client("http://127.0.0.1:9") as offline:
        offline.write_zarr(DESC, X, path)
    np.testing.assert_array_equal(read_zarr(path), WHOLE)


def test_places_that_are_taken(tp: Client, tmp_path: Path) -> None:
    x = np.zeros(3, np.float32)
    (tmp_path / "a.zarr").mkdir()
    with pytest.raises(FileExistsError, match="exists; remove it or name another place"):
        tp.write_zarr(identity(x), x, tmp_path / "a.zarr")
    with pytest.raises(FileNotFoundError, match="its folder does not exist"):
        tp.write_zarr(identity(x), x, tmp_path / "none" / "b.zarr")
    (tmp_path / "c.zarr.part").mkdir()
    (tmp_path / "c.zarr.part" / "mine.txt").write_text("mine")
    with pytest.raises(InvalidParameter, match="is not an incomplete array that tensorpost began; remove it"):
        tp.write_zarr(identity(x), x, tmp_path / "c.zarr")
    assert (tmp_path / "c.zarr.part" / "mine.txt").read_text() == "mine"


def test_outputs_that_are_no_zarr_array(tp: Client, tmp_path: Path) -> None:
    path, x = tmp_path / "y.zarr", np.zeros((4, 4), np.float32)
    with pytest.raises(InvalidParameter, match="has the outputs outputs_0, outputs_1"):
        tp.write_zarr(OnnxNode.of("Split", {"input": x}, opset=18, num_outputs=2), x, path)
    strided = BufferTensorDesc(data_type="FLOAT32", sizes=(4, 4), strides=(8, 1))
    desc = TileOperatorDesc(
        input_tensor=BufferTensorDesc.packed("FLOAT32", (4, 4)), output_tensor=strided, repeats=(1, 1)
    )
    with pytest.raises(InvalidParameter, match="strides or padding"):
        tp.write_zarr(desc, x, path)
    with pytest.raises(InvalidParameter, match="Zarr has no bfloat16"):
        tp.write_zarr(OnnxNode.of("Cast", {"input": x}, opset=21, to="bfloat16"), x, path)
    with pytest.raises(InvalidParameter, match="shape is"):
        tp.write_zarr(identity(x), x, path, shape=(3, 3))
    assert not list(tmp_path.iterdir())


# ---- the command line ------------------------------------------------------------------------------------------------


def test_the_command_goes_on(server: str, tmp_path: Path) -> None:
    source, path = tmp_path / "x.npy", tmp_path / "y.zarr"
    np.save(source, X)
    words = ("tile", str(source), "--repeats", "1,1,7,40", "-o", str(path), "--timeout", "1")
    with cutting_proxy(server, [40 * MIB]) as proxy:
        proxy.silent_after = 1
        done = invoke(*words, "--url", proxy.url)
    assert done.returncode != 0
    assert "y.zarr.part keeps what has arrived; the same command continues from there" in done.stderr
    assert not path.exists()
    with cutting_proxy(server, []) as proxy:
        done = invoke(*words, "--url", proxy.url)
        assert done.returncode == 0, done.stderr
        assert int(proxy.heads[0].partition(b"rows=")[2].partition(b":")[0]) > 300
    np.testing.assert_array_equal(read_zarr(path), np.tile(X, (1, 1, 7, 40)))


@pytest.mark.parametrize(
    "words",
    [
        ("resample", "--size", "4,6", "--axes", "3,4"),
        ("run", "element_wise_abs"),
        ("onnx", "Abs"),
    ],
)
def test_every_command_that_writes_arrays(server: str, tmp_path: Path, words: tuple[str, ...]) -> None:
    source, path = tmp_path / "x.npy", tmp_path / "y.zarr"
    x = np.random.default_rng(2).random((2, 2, 3, 2, 3)).astype(np.float32)
    np.save(source, x)
    command, *options = words
    names = [] if command == "resample" else [options.pop(0)]
    done = invoke(command, *names, str(source), *options, "-o", str(path), "--url", server)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    shape = (2, 2, 3, 4, 6) if command == "resample" else x.shape
    assert read_zarr(path).shape == shape
    again = invoke(command, *names, str(source), *options, "-o", str(path), "--url", server)
    assert again.returncode == 1
    assert "exists" in again.stderr


GRAPH: dict[str, Any] = {
    "inputs": {"x": {}},
    "nodes": [
        {"name": "t", "op_type": "Tile", "inputs": {"input": "x", "repeats": [*REPEATS]}},
        {"name": "y", "op_type": "BitwiseNot", "inputs": ["t"]},
    ],
    "outputs": {"y": "y"},
}


@pytest.mark.parametrize("kind", [Client, BlockingAsyncClient])
def test_a_graph_goes_on_where_it_stopped(server: str, tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "y.zarr"
    with cutting_proxy(server, [9 * MIB]) as proxy, kind(proxy.url, retries=0) as tp:
        with pytest.raises(IncompleteBody):
            tp.write_zarr(GRAPH, {"x": X}, path, chunk_bytes=MIB)
        tp.write_zarr(GRAPH, {"x": X}, path, chunk_bytes=MIB)
        begin = int(proxy.heads[1].partition(b"rows=")[2].partition(b":")[0]) * 9770
    assert 8 * MIB - 9770 <= begin <= 9 * MIB
    np.testing.assert_array_equal(read_zarr(path), ~WHOLE)


def test_the_command_writes_a_graph(server: str, tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(json.dumps(GRAPH))
    np.save(tmp_path / "x.npy", X)
    words = ("graph", "run", str(tmp_path / "g.json"), f"x={tmp_path / 'x.npy'}", "-o", f"y={tmp_path / 'y.zarr'}")
    done = invoke(*words, "--url", server)
    assert (done.returncode, done.stderr) == (0, "")
    np.testing.assert_array_equal(read_zarr(tmp_path / "y.zarr"), ~WHOLE)


def test_a_graph_of_several_outputs_writes_no_zarr(server: str, tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(json.dumps({**GRAPH, "outputs": {"t": "t", "y": "y"}}))
    np.save(tmp_path / "x.npy", X)
    words = ("graph", "run", str(tmp_path / "g.json"), f"x={tmp_path / 'x.npy'}")
    done = invoke(*words, "-o", f"y={tmp_path / 'y.zarr'}", "-o", f"t={tmp_path / 't.npy'}", "--url", server)
    assert done.returncode == 1
    assert "Zarr is written for graphs with one output only" in done.stderr


def test_a_part_of_another_backend_is_refused_in_the_command_s_words(server: str, tmp_path: Path) -> None:
    source, part = tmp_path / "x.npy", tmp_path / "y.zarr.part"
    np.save(source, X)
    words = ("tile", str(source), "--repeats", "1,1,7,40", "-o", str(tmp_path / "y.zarr"), "--timeout", "1")
    with cutting_proxy(server, [40 * MIB]) as proxy:
        proxy.silent_after = 1
        invoke(*words, "--url", proxy.url)

    done = invoke(*words, "--url", server, "--backend", "null")

    assert done.returncode == 1
    assert "goes on from there" not in done.stderr
    assert "If-Range" not in done.stderr
    assert f"choose numpy, or remove {part} to begin again" in " ".join(done.stderr.split())
