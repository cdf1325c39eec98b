"""What is kept of the calls of the package onnx."""

from __future__ import annotations

from typing import Any

import pytest

from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost_server.child_processes.libraries import ONNX, close_libraries, open_libraries

pytest.importorskip("onnx", reason="onnx is not installed; it has no wheel for every Python")


def test_a_node_is_inferred_once(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    call = ONNX.call

    def counted(function: str, *args: Any, **options: Any) -> Any:
        asked.append(function)
        return call(function, *args, **options)

    monkeypatch.setattr(ONNX, "call", counted)
    open_libraries(1, 1, 10.0, 1 << 28, ahead=False)
    try:
        x = OnnxTensor("float", (5, 3, 3))
        first, again = (OnnxNode.of("Det", {"X": x}, opset=11) for _ in range(2))
        other = OnnxNode.of("Det", {"X": OnnxTensor("float", (6, 3, 3))}, opset=11)
    finally:
        close_libraries()

    assert first.parameters == again.parameters != other.parameters
    assert (first.output.shape, other.output.shape) == ((5,), (6,))
    assert asked.count("infer_node") == 2
