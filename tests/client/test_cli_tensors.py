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


@pytest.mark.parametrize("word", ["float32", "FLOAT32", "float", "F32", "FP32", "<f4", "np.float32", "tensor(float)"])
def test_a_file_of_raw_bytes_is_put(url: str, folder: Path, word: str) -> None:
    (folder / "a.bin").write_bytes(A.tobytes())
    put = ("tensor", "put", "a.bin", "raw", "--data-type", word, "--sizes", "2,3", "--replace")
    assert "raw: float32 of 2x3" in done(url, folder, *put).stdout
    done(url, folder, "tensor", "get", "raw", "b.npy")
    np.testing.assert_array_equal(np.load(folder / "b.npy"), A, strict=True)


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ((), 1, "of raw bytes say what they are: --data-type float32 --sizes 2,3"),
        (("--data-type", "float32"), 1, "give their --sizes too"),
        (("--sizes", "2,3"), 1, "give their --data-type too"),
        (("--data-type", "float33", "--sizes", "2,3"), 2, "'float33' is not a data type; there are float32, float16,"),
        (("--data-type", "str", "--sizes", "2,3"), 2, "texts have no fixed number of bytes"),
        (("--data-type", "float64", "--sizes", "2,3"), 1, "a.bin has 24 bytes, and float64 of sizes 2,3 has 48"),
        (("--data-type", "float32", "--sizes", "2,x"), 2, "'2,x' is not a list of whole numbers"),
    ],
)
def test_raw_bytes_that_are_not_described(
    url: str, folder: Path, options: tuple[str, ...], status: int, said: str
) -> None:
    (folder / "a.bin").write_bytes(A.tobytes())
    refused = invoke("tensor", "put", "a.bin", "raw", *options, "--url", url, cwd=folder)
    assert (refused.returncode, said in " ".join(refused.stderr.split())) == (status, True), refused.stderr


@pytest.mark.parametrize(
    "word", ["FLOAT16", "float16", "F16", "half", "DML_TENSOR_DATA_TYPE_FLOAT16", "tensor(float16)"]
)
def test_types_in_all_words(url: str, folder: Path, word: str) -> None:
    expected = A.astype(np.float16)
    for call in (
        ("run", "cast", "a.npy", "-s", f"output_data_type={word}"),
        ("onnx", "Cast", "a.npy", "-s", f"to={word}"),
    ):
        done(url, folder, *call, "-o", "y.npy")
        np.testing.assert_array_equal(np.load(folder / "y.npy"), expected, strict=True)


def test_a_type_that_there_is_not_is_refused_with_those_that_there_are(url: str, folder: Path) -> None:
    call = ("cast", "a.npy", "-s", "output_data_type=float33", "-o", "y.npy", "--url", url)
    refused = invoke("run", *call, cwd=folder)
    assert (refused.returncode, "expected UNKNOWN, FLOAT32, FLOAT16, UINT32" in refused.stderr) == (1, True)
    picture = pytest.importorskip("PIL.Image")
    picture.fromarray(np.zeros((2, 2, 3), np.uint8)).save(folder / "x.png")
    preprocess = ("preprocess", "x.png", "-o", "x.npy", "--url", url, "--dtype")
    assert invoke(*preprocess, "FLOAT16", cwd=folder).returncode == 0
    assert np.load(folder / "x.npy").dtype == np.float16
    refused = invoke(*preprocess, "float33", cwd=folder)
    assert (refused.returncode, "dtype is 'float33'; it must be float32 or float16" in refused.stderr) == (1, True)
