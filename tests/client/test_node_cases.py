"""ONNX's own node tests of every opset as models through a server; `node-case-failures.txt` names each that fails.

A line is a pattern of names and the reason. Every case of a pattern must fail: a pattern that stands for one that
passes, or for none that the package has, must be changed or go.
"""

from __future__ import annotations

import warnings
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from tests.support.live_server import default_server

from tensorpost import Client
from tensorpost.problems import TensorpostError

pytest.importorskip("onnx", reason="the package onnx is not installed; it has no wheel for every Python")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python")

FAILURES = Path(__file__).with_name("node-case-failures.txt")
LEAST = 1884
"""Cases of onnx 1.23; a newer release may bring more."""


def known() -> dict[str, str]:
    lines = [line for line in FAILURES.read_text("utf-8").splitlines() if line.strip() and not line.startswith("#")]
    return {name.strip(): reason.strip() for name, _, reason in (line.partition(":") for line in lines)}


def outcome(client: Client, case: Any) -> str:
    from benchmarks.onnx_models import check

    try:
        check(client, case)
    except (TensorpostError, AssertionError) as error:
        return " ".join(str(error).split())[:160] or "differs"
    return ""


def test_every_failure_is_named() -> None:
    from benchmarks.onnx_models import cases

    patterns, seen, failed, passed, count = known(), set[str](), dict[str, str](), dict[str, str](), 0
    with warnings.catch_warnings(), default_server() as url, Client(url) as client:
        warnings.simplefilter("ignore")  # of NumPy and the package, while the cases are made
        for case in cases("node"):
            count += 1
            found = [pattern for pattern in patterns if fnmatch(case.name, pattern)]
            if reason := outcome(client, case):
                seen |= {*found}
                if not found:
                    failed[case.name] = reason
            elif found:
                passed[case.name] = found[0]
    assert not failed, "\n".join(f"{name}: {why}" for name, why in failed.items())
    assert not passed, "listed, but computed:\n" + "\n".join(f"{name}: {pattern}" for name, pattern in passed.items())
    assert seen == {*patterns}, f"listed, but nothing fails: {sorted({*patterns} - seen)}"
    assert count >= LEAST


def test_every_reason_says_something() -> None:
    for name, reason in known().items():
        assert len(reason) > 20, f"{name}: say why"
