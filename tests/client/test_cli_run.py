"""`tensorpost run`, against the real server: any operator on npy files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.command_line import Done, invoke
from tests.support.live_server import default_server

A = np.arange(6, dtype=np.float32).reshape(2, 3)
JOIN = {"type": "JOIN", "desc": {"Axis": 0}}
SPLIT = {"type": "SPLIT", "desc": {"Axis": 1, "OutputCount": 3}}
SEQUENCE = {
    "type": "DML_OPERATOR_FILL_VALUE_SEQUENCE",
    "desc": {"OutputTensor": {"DataType": "INT32", "Sizes": [5]}, "ValueStart": 3, "ValueDelta": 2},
}
NODE = {"op_type": "Tile", "opset": 13, "inputs": {"repeats": [2, 1]}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with default_server() as address:
        yield address


def run(url: str, folder: Path, document: Any, *arguments: str) -> Done:
    (folder / "op.json").write_text(json.dumps(document), encoding="utf-8")
    np.save(folder / "a.npy", A)
    return invoke("run", "op.json", *arguments, "--url", url, cwd=folder)


def test_an_array_of_tensors_takes_the_files_in_order(url: str, tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", -A[:1])

    done = run(url, tmp_path, JOIN, "a.npy", "b.npy", "-o", "y.npy")

    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.concatenate([A, -A[:1]]))


def test_an_npz_archive_gives_its_arrays_by_name_or_in_order(url: str, tmp_path: Path) -> None:
    archive, target = tmp_path / "in.npz", tmp_path / "y.npy"

    def joined(**arrays: Any) -> Done:
        np.savez(archive, **arrays)
        return invoke("run", "join", str(archive), "-s", "axis=0", "-o", str(target), "--url", url)

    for name in ("input", "arr"):
        done = joined(**{f"{name}_1": -A, f"{name}_0": A})  # the names decide, not the order in the archive
        assert done.returncode == 0, done.stderr
        np.testing.assert_array_equal(np.load(target), np.concatenate([A, -A]))
    done = joined(a=A, b=A)
    assert (done.returncode, "takes the tensors input_0, ..., and the file has a, b" in done.stderr) == (1, True)
    done = invoke("tile", str(archive), "--repeats", "2", "-o", str(target), "--url", url)
    assert (done.returncode, "holds 2 arrays (a, b), and this command takes one" in done.stderr) == (1, True)
    archive.write_bytes(archive.read_bytes()[:100])
    done = invoke("tile", str(archive), "--repeats", "2", "-o", str(target), "--url", url)
    assert (done.returncode, "not a complete archive" in done.stderr) == (1, True)


def test_every_output_has_a_file(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path, SPLIT, "a.npy", "-o", "0.npy", "-o", "1.npy", "-o", "2.npy")

    assert done.returncode == 0, done.stderr
    for index in range(3):
        np.testing.assert_array_equal(np.load(tmp_path / f"{index}.npy"), A[:, index : index + 1])


def hand_written(**arrays: np.ndarray) -> bytes:
    """A safetensors file, written as its README says: eight bytes of length, JSON, the tensors' bytes."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, array in arrays.items():
        span = [len(body), len(body) + array.nbytes]
        dtype = {"float32": "F32", "uint8": "U8", "int16": "I16"}[array.dtype.name]
        entries[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": span}
        body += array.tobytes()
    head = json.dumps(entries).encode()
    return struct.pack("<Q", len(head)) + head + body


def read_by_hand(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The head of a safetensors file, and the bytes of each tensor."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    head, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    spans = {name: entry["data_offsets"] for name, entry in head.items() if name != "__metadata__"}
    assert sum(end - begin for begin, end in spans.values()) == len(body)
    return head, {name: body[begin:end] for name, (begin, end) in spans.items()}


def test_an_output_as_safetensors(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path, NODE, "a.npy", "-o", "y.safetensors")

    assert done.returncode == 0, done.stderr
    head, tensors = read_by_hand(tmp_path / "y.safetensors")
    assert head["output"] == {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}
    assert json.loads(head["__metadata__"]["op"])["op_type"] == "Tile"
    assert tensors == {"output": np.tile(A, (2, 1)).tobytes()}


def test_several_outputs_are_the_tensors_of_one_safetensors_file(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path, SPLIT, "a.npy", "-o", "y.safetensors")

    assert done.returncode == 0, done.stderr
    head, tensors = read_by_hand(tmp_path / "y.safetensors")
    assert [head[f"output_{i}"]["shape"] for i in range(3)] == [[2, 1]] * 3
    assert tensors == {f"output_{i}": np.ascontiguousarray(A[:, i]).tobytes() for i in range(3)}
    done = invoke(
        "run", "op.json", "a.npy", "-o", "a.safetensors", "-o", "b.npy", "-o", "c.bin", "--url", url, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert read_by_hand(tmp_path / "a.safetensors")[1] == {"output_0": A[:, 0].tobytes()}
    assert tmp_path.joinpath("c.bin").read_bytes() == A[:, 2].tobytes()


def test_the_output_of_a_graph_as_safetensors(url: str, tmp_path: Path) -> None:
    node = {"name": "y", "op_type": "Neg", "inputs": "x"}
    graph = {"inputs": {"x": {}}, "nodes": [node], "outputs": {"y": "y"}}
    tmp_path.joinpath("graph.json").write_text(json.dumps(graph))
    tmp_path.joinpath("x.safetensors").write_bytes(hand_written(anything=A))

    done = invoke("graph", "run", "graph.json", "x=x.safetensors", "-o", "y=y.safetensors", "--url", url, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    head, tensors = read_by_hand(tmp_path / "y.safetensors")
    assert (head["y"]["shape"], tensors) == ([2, 3], {"y": (-A).tobytes()})


def test_an_output_with_strides_is_its_whole_buffer_in_safetensors_or_packed(url: str, tmp_path: Path) -> None:
    output = {"DataType": "FLOAT32", "Sizes": [2, 3], "Strides": [4, 1]}
    identity = {"type": "ELEMENT_WISE_IDENTITY", "desc": {"OutputTensor": output}}

    whole = run(url, tmp_path, identity, "a.npy", "-o", "whole.safetensors")
    packed = run(url, tmp_path, identity, "a.npy", "-o", "packed.safetensors", "--packed")
    refused = run(url, tmp_path, identity, "a.npy", "-o", "y.npy")

    assert (whole.returncode, packed.returncode, refused.returncode) == (0, 0, 1), whole.stderr + packed.stderr
    head, tensors = read_by_hand(tmp_path / "whole.safetensors")
    assert head["output"] == {"dtype": "U8", "shape": [28], "data_offsets": [0, 28]}
    assert np.frombuffer(tensors["output"], np.float32)[[0, 1, 2, 4, 5, 6]].tolist() == A.ravel().tolist()
    assert json.loads(head["__metadata__"]["op"])["desc"]["OutputTensor"]["Strides"] == [4, 1]
    head, tensors = read_by_hand(tmp_path / "packed.safetensors")
    assert (head["output"]["dtype"], head["output"]["shape"], tensors["output"]) == ("F32", [2, 3], A.tobytes())
    assert "end -o in .safetensors or .bin" in refused.stderr


def test_safetensors_files_are_inputs_by_name_or_in_order(url: str, tmp_path: Path) -> None:
    files = {
        "named": hand_written(input_1=-A, input_0=A),
        "one": hand_written(anything=A),  # its head has no padding, so its elements are not aligned
        "other": hand_written(a=A, b=A),
        "cut": hand_written(x=A)[:-1],
        "long": hand_written(x=A) + b"0",
        "broken": struct.pack("<Q", 3) + b"{1}",
    }
    for name, content in files.items():
        tmp_path.joinpath(f"{name}.safetensors").write_bytes(content)

    def joined(*names: str) -> Done:
        paths = [f"{name}.safetensors" for name in names]
        return invoke("run", "join", *paths, "-s", "axis=0", "-o", "y.npy", "--url", url, cwd=tmp_path)

    for names, expected in [(["named"], [A, -A]), (["one", "one"], [A, A])]:
        done = joined(*names)
        assert done.returncode == 0, done.stderr
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.concatenate(expected))
    for name, said in [
        ("other", "takes the tensors input_0, ..., and the file has a, b: save them under these names"),
        ("cut", "cut.safetensors cannot be read as safetensors: the head describes 24 bytes of tensors"),
        ("long", "long.safetensors cannot be read as safetensors: the head describes 24 bytes of tensors"),
        ("broken", "broken.safetensors cannot be read as safetensors: the frame's head"),
    ]:
        done = joined(name)
        assert (done.returncode, said in " ".join(done.stderr.split())) == (1, True), done.stderr
    done = invoke("tile", "one.safetensors", "--repeats", "1,2", "-o", "y.safetensors", "--url", url, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_by_hand(tmp_path / "y.safetensors")[1] == {"output": np.tile(A, (1, 2)).tobytes()}


def test_no_input_is_fine_where_the_operator_has_none(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path, SEQUENCE, "-o", "y.npy")

    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "y.npy").tolist() == [3, 5, 7, 9, 11]


def test_an_onnx_node(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path, NODE, "a.npy", "-o", "y.npy")

    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.tile(A, (2, 1)))


@pytest.mark.parametrize(
    ("document", "arguments", "status", "said"),
    [
        (SPLIT, ("a.npy", "-o", "y.npy"), 1, "SPLIT has 3 outputs (output_0, output_1, output_2)"),
        (SEQUENCE, ("a.npy", "-o", "y.npy"), 1, "FILL_VALUE_SEQUENCE has 0 inputs (none), not 1"),
        ({"type": "GATHERR", "desc": {}}, ("a.npy", "-o", "y.npy"), 1, "GATHER"),
        ([], ("-o", "y.npy"), 1, "must be a JSON object"),
        (JOIN, ("a.npy", "-o", "y.npy", "--level", "9_9"), 2, "9_9"),
        (JOIN, ("a.npy", "-o", "nowhere/y.npy"), 1, "folder does not exist"),
    ],
)
def test_what_is_wrong_is_said(
    url: str, tmp_path: Path, document: Any, arguments: tuple[str, ...], status: int, said: str
) -> None:
    done = run(url, tmp_path, document, *arguments)

    assert (done.returncode, said in " ".join(done.stderr.split())) == (status, True), done.stderr
    assert not (tmp_path / "y.npy").exists()
