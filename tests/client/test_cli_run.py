"""`tensorpost run`, against the real server: any operator on npy files."""

from __future__ import annotations

import json
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
    assert (done.returncode, "takes the tensors input_0, ..., and the npz file has a, b" in done.stderr) == (1, True)
    done = invoke("tile", str(archive), "--repeats", "2", "-o", str(target), "--url", url)
    assert (done.returncode, "holds 2 arrays (a, b), and this command takes one" in done.stderr) == (1, True)
    archive.write_bytes(archive.read_bytes()[:100])
    done = invoke("tile", str(archive), "--repeats", "2", "-o", str(target), "--url", url)
    assert (done.returncode, "no whole archive" in done.stderr) == (1, True)


def test_every_output_has_a_file(url: str, tmp_path: Path) -> None:
    done = run(url, tmp_path, SPLIT, "a.npy", "-o", "0.npy", "-o", "1.npy", "-o", "2.npy")

    assert done.returncode == 0, done.stderr
    for index in range(3):
        np.testing.assert_array_equal(np.load(tmp_path / f"{index}.npy"), A[:, index : index + 1])


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
