"""`tensorpost tensor` and `@NAME` in the place of files, against the real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.command_line import Done, invoke
from tests.support.live_server import live_process

A = np.arange(6, dtype=np.float32).reshape(2, 3)
GRAPH = {
    "inputs": {"x": {}, "w": {}},
    "nodes": [{"name": "y", "op_type": "Mul", "inputs": ["x", "w"]}],
    "outputs": {"y": "y"},
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_process(TENSORPOST_BACKEND="numpy") as (address, _):
        yield address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", A)
    return tmp_path


def done(url: str, folder: Path, *arguments: object) -> Done:
    found = invoke(*arguments, "--url", url, cwd=folder)
    assert found.returncode == 0, found.stderr
    return found


def test_a_tensor_is_put_listed_read_and_deleted(url: str, folder: Path) -> None:
    assert "no tensor is held" in done(url, folder, "tensor", "list").stdout
    assert "mask: float32 of 2x3" in done(url, folder, "tensor", "put", "a.npy", "mask").stdout
    refused = invoke("tensor", "put", "a.npy", "mask", "--url", url, cwd=folder)
    assert (refused.returncode, "'mask' already; write --replace to replace it" in refused.stderr) == (1, True)
    done(url, folder, "tensor", "put", "a.npy", "mask", "--replace")
    listed = done(url, folder, "tensor", "list").stdout
    assert all(word in listed for word in ("mask", "float32", "2x3", "host memory"))
    done(url, folder, "tensor", "get", "mask", "b.npy")
    np.testing.assert_array_equal(np.load(folder / "b.npy"), A)
    done(url, folder, "tensor", "get", "mask", "b.npy", "--box", ":,1:")
    np.testing.assert_array_equal(np.load(folder / "b.npy"), A[:, 1:])
    assert done(url, folder, "tensor", "delete", "mask").stdout == "mask is deleted\n"
    refused = invoke("tensor", "get", "mask", "b.npy", "--url", url, cwd=folder)
    assert (refused.returncode, "was deleted" in refused.stderr) == (1, True)


def test_a_part_is_written_as_a_picture(url: str, folder: Path) -> None:
    picture = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(5).integers(0, 256, (3, 4, 5, 3), np.uint8)
    np.save(folder / "film.npy", pixels)
    done(url, folder, "tensor", "put", "film.npy", "film")
    done(url, folder, "tensor", "get", "film", "frame.png", "--box", "1")
    np.testing.assert_array_equal(np.asarray(picture.open(folder / "frame.png")), pixels[1])
    refused = invoke("tensor", "get", "film", "all.zarr", "--url", url, cwd=folder)
    assert (refused.returncode, "end OUT in .npy" in refused.stderr) == (1, True)
    done(url, folder, "tensor", "delete", "film")


def test_commands_take_a_held_tensor_in_place_of_a_file(url: str, folder: Path) -> None:
    done(url, folder, "tensor", "put", "a.npy", "held")
    done(url, folder, "run", "join", "@held", "a.npy", "-s", "axis=0", "-o", "y.npy")
    np.testing.assert_array_equal(np.load(folder / "y.npy"), np.concatenate([A, A]))
    done(url, folder, "onnx", "Neg", "@held[0]", "-o", "y.npy")
    np.testing.assert_array_equal(np.load(folder / "y.npy"), -A[0])
    (folder / "g.json").write_text(json.dumps(GRAPH))
    done(url, folder, "graph", "run", "g.json", "x=@held", "w=@held[:,:1]", "-o", "y=y.npy")
    np.testing.assert_array_equal(np.load(folder / "y.npy"), A * A[:, :1])
    done(url, folder, "graph", "store", "g.json", "--name", "mul")
    done(url, folder, "graph", "call", "mul", "x=a.npy", "w=@held", "-o", "y=y.npy")
    np.testing.assert_array_equal(np.load(folder / "y.npy"), A * A)
    for wrong, words in (
        ("@", "names no held tensor"),
        ("@held[0", "names no held tensor"),
        ("@other", "no held tensor"),
    ):
        refused = invoke("onnx", "Neg", wrong, "-o", "y.npy", "--url", url, cwd=folder)
        assert (refused.returncode, words in refused.stderr) == (1, True)


def test_a_model_takes_held_tensors_in_place_of_files(url: str, folder: Path) -> None:
    parser = pytest.importorskip("onnx.parser", reason="models for this test are made by the package onnx")
    text = """<ir_version: 8, opset_import: ["": 17]>
        m (float[n, k] x, float[n, j] w) => (float[n, k] y) { y = Mul(x, w) }"""
    (folder / "model.onnx").write_bytes(parser.parse_model(text).SerializeToString())
    done(url, folder, "tensor", "put", "a.npy", "rows", "--replace")
    done(url, folder, "model", "run", "model.onnx", "x=@rows", "w=a.npy", "-o", "y=y.npy")
    np.testing.assert_array_equal(np.load(folder / "y.npy"), A * A)
    done(url, folder, "model", "run", "model.onnx", "x=@rows", "w=@rows[:,:1]", "-o", "y=y.npy")
    np.testing.assert_array_equal(np.load(folder / "y.npy"), A * A[:, :1])
    refused = invoke("model", "run", "model.onnx", "x=@none", "w=a.npy", "-o", "y=y.npy", "--url", url, cwd=folder)
    assert (refused.returncode, "no held tensor" in refused.stderr) == (1, True)
