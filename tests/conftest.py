"""What the whole run says at its end. Here, since of the folders' own files the process that sums up may read none."""

from __future__ import annotations

from typing import Any


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
