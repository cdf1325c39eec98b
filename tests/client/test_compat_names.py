"""The table of names in docs/compat.md: what it calls an operator of ours, of ONNX and of NumPy is there."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import pytest

from tensorpost.descriptors import operator_names

PAGE = Path(__file__).parents[2] / "docs" / "compat.md"


def test_the_names_in_the_table_exist() -> None:
    _, _, table = PAGE.read_text("utf-8").partition("## Names of the same operator")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:3] != "| -"]
    rows = [row for row in rows if len(row) == 5][1:]
    assert len(rows) > 100
    assert {row[0].partition(" ")[0] for row in rows} <= set(operator_names())
    defs = pytest.importorskip("onnx.defs", reason="the package onnx has no wheel for every Python")
    for _, onnx_names, _, numpy_names, _ in rows:
        assert all(defs.has(name) for name in re.findall(r"`([^`]+)`", onnx_names)), onnx_names
        for name in re.findall(r"`([^`]+)`", numpy_names):
            assert callable(functools.reduce(getattr, name.split("."), np)), name
