"""What holds for the whole run: the same drawn cases each time, compiled kernels before, and what it says at its end.

The summary is here because of the folders' own files the process that sums up may read none.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

# A change is judged by the same cases as the one before it; `make fuzz` draws new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("new", derandomize=False, print_blob=True)
settings.load_profile("same")


def pytest_configure(config: Any) -> None:
    """Have the numba backend ready, in a cache of the tests: compiled once, which takes a minute, then found there."""
    if hasattr(config, "workerinput"):
        return  # it inherits the variable, and reports to the process that prints
    config.pluginmanager.register(FailuresAtOnce(config))
    if os.environ.get("TEST_KERNELS") == "0":
        return  # they are skipped where nothing was compiled before
    if importlib.util.find_spec("numba") is None:
        return  # the backend's tests are skipped with that reason
    os.environ.setdefault("NUMBA_CACHE_DIR", str(config.rootpath / "build" / "test-kernels"))
    subprocess.run([sys.executable, "-m", "tensorpost", "warmup"], check=True, stdout=subprocess.DEVNULL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let no collection of garbage look at the objects of 15,000 tests: a full one takes 10 ms instead of a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.collect()  # so that the next full one comes after as many new objects as without them


class FailuresAtOnce:
    """Names each test that fails when it fails; pytest by itself does so in the summary."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Print the name of a failed test."""
        if report.failed:
            terminal = self._config.pluginmanager.get_plugin("terminalreporter")
            terminal.ensure_newline()
            terminal.write_line(f"FAILED {report.nodeid}", red=True)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line per foreign suite: how many ran, agreed, and are expected not to."""
    for name, file in (("ONNX Runtime CPU", "test_onnxruntime.py"),):
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
