"""What the ONNX tests share: running a node on NumPy, and one line that counts the foreign suites."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorpost.onnx import OnnxNode
from tensorpost_server.operators import kernel_for

Run = Callable[..., NDArray[Any]]


@pytest.fixture(scope="session")
def run() -> Run:
    """Run a node on an array; `box` asks for a part of the output only."""

    def run_node(node: OnnxNode, x: NDArray[Any], box: tuple[tuple[int, int], ...] | None = None) -> NDArray[Any]:
        box = tuple((0, size) for size in node.output.shape) if box is None else box
        shape = [stop - start for start, stop in box]
        if x.dtype == object:
            out = np.empty(shape, object)
        else:  # an element that is not written shows
            old = bytearray(b"\xa5" * (math.prod(shape) * x.dtype.itemsize))
            out = np.frombuffer(old, x.dtype).reshape(shape)
        kernel_for(node).fill(np, [x], box, out)
        return out

    return run_node


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line per foreign suite: how many ran, agreed, and are expected not to."""
    for name, file in (
        ("ONNX backend node tests", "test_backend_suite.py"),
        ("ONNX Runtime CPU", "test_onnxruntime.py"),
    ):
        outcomes = {
            outcome: sum(f"{file}::test_case[" in report.nodeid for report in terminalreporter.stats.get(outcome, []))
            for outcome in ("passed", "xfailed", "failed", "skipped")
        }
        ran = sum(outcomes.values())
        if ran:
            terminalreporter.write_line(
                f"{name}: {ran} run, {outcomes['passed']} agree, {outcomes['xfailed']} known to differ, "
                f"{outcomes['failed']} failed, {outcomes['skipped']} skipped"
            )
