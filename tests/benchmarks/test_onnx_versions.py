"""The command for ONNX's releases, on a release made here: what it reads of a wheel, runs, counts and says."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.live_server import default_server

pytest.importorskip("onnx", reason="the package onnx is not installed; it has no wheel for every Python")

from benchmarks.onnx_versions import (
    ATOL,
    RTOL,
    Case,
    CaseRunner,
    Known,
    known,
    onnx_backend,
    published,
    save,
    subject_of,
    unexpected,
)
from benchmarks.onnx_versions_page import page

from onnx import TensorProto, helper, numpy_helper
from tensorpost import Client

X = np.array([-1.5, 2.0], np.float32)
BITS = np.array([0x3F80, 0xC000], np.uint16)  # 1 and -2 in bfloat16


def files_of(op_type: str, opset: int, x: Any, y: Any, kind: int, made: int, **attributes: Any) -> dict[str, bytes]:
    """A case of one node, whose model declares these types."""
    node = helper.make_node(op_type, ["x"], ["y"], **attributes)
    inputs, outputs = [helper.make_tensor_value_info("x", kind, [2])], [helper.make_tensor_value_info("y", made, [2])]
    graph = helper.make_graph([node], "case", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return {
        "model.onnx": model.SerializeToString(),
        "test_data_set_0/input_0.pb": numpy_helper.from_array(x, "x").SerializeToString(),
        "test_data_set_0/output_0.pb": numpy_helper.from_array(y, "y").SerializeToString(),
    }


def release(path: Path) -> Path:
    """A wheel with cases that pass, one whose value is wrong, one that is refused, and one as onnx 1.0 has them."""
    number, small = TensorProto.FLOAT, TensorProto.BFLOAT16
    cases = {
        "test_abs": files_of("Abs", 13, X, abs(X), number, number),
        "test_cast_bfloat16": files_of("Cast", 13, BITS, np.array([1, -2], np.float32), small, number, to=number),
        "test_wrong": files_of("Neg", 13, X, X, number, number),
        "test_refused": files_of("NoSuchOperator", 13, X, X, number, number),
        "test_constant_pad": {
            "node.pb": helper.make_node("Pad", ["x"], ["y"], pads=[1, 0], value=7.0).SerializeToString(),
            "input_0.pb": numpy_helper.from_array(X, "x").SerializeToString(),
            "output_0.pb": numpy_helper.from_array(np.array([7, -1.5, 2], np.float32), "y").SerializeToString(),
        },
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, files in cases.items():
            for file, content in files.items():
                archive.writestr(f"onnx/backend/test/data/node/{name}/{file}", content)
    return path


def test_a_release(tmp_path: Path) -> None:
    cases = list[Case]()
    for name, files in published(release(tmp_path / "onnx.whl")):
        save(tmp_path, name, files)
        cases.append(Case(name, "1.0.1", name, *subject_of(files["model.onnx"]), RTOL, ATOL))
    found = {case.name: (case.operator, case.version) for case in cases}
    assert found["test_constant_pad"] == ("Pad", 2)
    assert found["test_refused"] == ("NoSuchOperator", 0)
    with default_server() as url, Client(url) as client:
        runner = CaseRunner(onnx_backend(client, "numpy"), cases, tmp_path)
        results = {case.key: runner.failure(case) for case in cases}
    assert [key for key, why in results.items() if not why] == [
        "test_abs@1.0.1", "test_cast_bfloat16@1.0.1", "test_constant_pad@1.0.1",
    ]  # fmt: skip
    assert results["test_wrong@1.0.1"].startswith("differs: ")
    assert results["test_refused@1.0.1"].startswith("refused: ")

    wrong = Known("test_wrong", "the value", "Values")
    lines = [wrong, Known("test_abs@1.0.*", "none", "Values"), Known("test_x", "none", "Values")]
    said = " ".join(unexpected(cases, results, lines))
    assert "test_x: listed, but no case has this name" in said
    assert "test_abs@1.0.1: passes, but test_abs@1.0.* is listed" in said
    assert "test_refused@1.0.1 (NoSuchOperator-0): refused: " in said
    assert "test_wrong" not in said

    lines = [wrong, Known("test_refused@1.0.1", "no operator", "Operators")]
    text = page(cases, {"numpy": results}, lines)
    assert "| together | 5 | 3 |" in text
    assert "| Neg | 13: 0 of 1 |" in text
    assert "| NoSuchOperator | experimental: 0 of 1 |" in text
    assert "* No operator: `test_refused` (1.0.1)." in text
    with pytest.raises(SystemExit, match=r"test_refused@1\.0\.1 fails"):
        page(cases, {"numpy": results}, lines[:1])


def test_every_reason_says_something() -> None:
    for line in known():
        assert line.heading, f"{line.pattern}: stands under no heading"
        assert len(line.reason) > 5, f"{line.pattern}: say why"


def test_the_page_has_every_reason() -> None:
    """It is written by the command, which downloads the releases; the reasons are edited by hand."""
    text = (Path(__file__).parents[2] / "docs" / "onnx-versions.md").read_text("utf-8")
    for line in known():
        assert f"* {line.reason[:1].upper()}{line.reason[1:]}: " in text, f"{line.pattern}: run make onnx-versions"
