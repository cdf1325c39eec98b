"""Models of one node, which the package onnx makes and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tensorpost.values.onnx_package import infer_model

pytest.importorskip("onnx", reason="onnx is not installed; it has no wheel for every Python")

INT64 = 7


def node(op_type: str, version: int, constants: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    return {
        "op_type": op_type, "version": version, "inputs": [*constants], "outputs": ["Y"], "tensors": [],
        "attributes": {}, "constants": [(name, "int64", numbers) for name, numbers in constants.items()],
    }  # fmt: skip


def test_a_number_by_value_has_the_rank_that_the_operator_takes():
    scalars = infer_model(node("Range", 11, {"start": [2], "limit": [7], "delta": [1]}))
    vector = infer_model(node("Unsqueeze", 13, {"data": [4], "axes": [0]}))

    assert (scalars.problem, scalars.outputs) == ("", [("Y", INT64, [5])])
    assert (vector.problem, vector.outputs) == ("", [("Y", INT64, [1, 1])])


def test_a_node_that_no_rank_makes_valid_is_refused_in_the_words_of_the_package():
    found = infer_model(node("Range", 11, {"start": [2, 3], "limit": [7], "delta": [1]}))

    assert "should be scalars" in found.problem
    assert "/" not in found.problem
