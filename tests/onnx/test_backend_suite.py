"""The onnx package's own backend node tests for Tile, Resize and Upsample, run against our nodes and kernels.

Known differences stand in `backend-xfails.txt`, each with its reason.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorpost.onnx import OnnxNode

OPERATORS = ("Tile", "Resize", "Upsample")
XFAILS = Path(__file__).with_name("backend-xfails.txt")
MISSING = (
    None if importlib.util.find_spec("onnx") else "the package onnx is not installed; it has no wheel for every Python"
)
KNOWN_COUNT = 42  # of onnx 1.23; a newer release may bring more, none may vanish


@cache
def cases() -> dict[str, Any]:
    """Name to test case. Only these modules are imported: the others compute hundreds of unrelated cases."""
    if MISSING:
        return {}
    node = importlib.import_module("onnx.backend.test.case.node")
    for operator in OPERATORS:
        importlib.import_module(f"onnx.backend.test.case.node.{operator.lower()}")
    return {
        case.name: case
        for case in node._NodeTestCases  # its public door, collect_testcases, imports all operators
        if case.model.graph.node[0].op_type in OPERATORS
    }


@cache
def xfails() -> dict[str, str]:
    entries: dict[str, str] = {}
    for line in XFAILS.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, reason = line.partition(":")
            entries[name.strip()] = reason.strip()
    return entries


def parameters() -> list[Any]:
    if MISSING:
        return [pytest.param("all", marks=pytest.mark.skip(reason=MISSING))]
    return [
        pytest.param(name, marks=[pytest.mark.xfail(reason=xfails()[name], strict=True)] if name in xfails() else [])
        for name in sorted(cases())
    ]


@pytest.mark.parametrize("name", parameters())
def test_case(name: str, run: Any) -> None:
    case = cases()[name]
    (proto,) = case.model.graph.node
    (opset,) = [entry.version for entry in case.model.opset_import if entry.domain == ""]
    names = [value.name for value in case.model.graph.input]
    assert len(case.data_sets) >= 1
    for inputs, (expected,) in case.data_sets:
        values = dict(zip(names, inputs, strict=True))
        node = OnnxNode.from_node_proto(proto, opset, values)
        got = run(node, values[proto.input[0]])
        assert node.output.shape == expected.shape
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=case.rtol, atol=case.atol)


def test_every_expected_failure_has_a_test_and_a_reason() -> None:
    for name, reason in xfails().items():
        assert len(reason) > 20, f"{name}: say why"
        assert MISSING or name in cases(), f"{name} is no test of the onnx package any more"


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_the_totals() -> None:
    """A suite that silently shrinks, or a list of failures that silently grows, shows here."""
    assert len(cases()) >= KNOWN_COUNT
    assert len(xfails()) == 2
