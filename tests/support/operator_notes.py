"""Writes `operator_notes.json`: ONNX's twins of DirectML's operators, and what DirectML itself answers otherwise."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from tests.conformance.suite import HERE, expected_failures
from tests.support.vectors import vectors_files

from tensorpost.descriptors import OPERATORS
from tensorpost.onnx import ONNX_OPERATORS, OnnxNode, OnnxSchema, lower
from tensorpost.onnx.directml_twins import ElementWiseTwin, untranslated
from tensorpost.onnx.schemas import WRITTEN_BY_HAND
from tensorpost.onnx.shapes import row_of
from tensorpost.values.problems import InvalidDescriptor

__all__ = ["notes_text", "twins"]

_RELATIVES: Mapping[str, str] = {
    "BitShift": "ELEMENT_WISE_BIT_SHIFT_LEFT ELEMENT_WISE_BIT_SHIFT_RIGHT",
    "Clip": "ELEMENT_WISE_CLIP ELEMENT_WISE_CLIP1",
    "CumProd": "CUMULATIVE_PRODUCT",
    "DequantizeLinear": "ELEMENT_WISE_DEQUANTIZE_LINEAR DEQUANTIZE",
    "DynamicQuantizeLinear": "DYNAMIC_QUANTIZE_LINEAR",
    "EyeLike": "DIAGONAL_MATRIX DIAGONAL_MATRIX1",
    "Gather": "GATHER",
    "GatherElements": "GATHER_ELEMENTS",
    "GatherND": "GATHER_ND GATHER_ND1",
    "HardSwish": "ACTIVATION_HARD_SWISH",
    "MatMulInteger": "MATRIX_MULTIPLY_INTEGER",
    "OneHot": "ONE_HOT",
    "Pad": "PADDING PADDING1",
    "QuantizeLinear": "ELEMENT_WISE_QUANTIZE_LINEAR QUANTIZE",
    "Range": "FILL_VALUE_SEQUENCE",
    "ReverseSequence": "REVERSE_SUBSEQUENCES",
    "Scatter": "SCATTER_ELEMENTS",
    "ScatterElements": "SCATTER_ELEMENTS",
    "ScatterND": "SCATTER_ND",
    "TopK": "TOP_K TOP_K1",
    "Trilu": "DIAGONAL_MATRIX1",
}
"""Operators of ONNX that have no twin here, with DirectML's of the same kind."""


def twins() -> Mapping[str, set[str]]:
    """By DirectML's operator, those of ONNX of which some node is lowered to it."""
    found: dict[str, set[str]] = {cls.operator_type: set() for cls in OPERATORS}
    for op_type in {schema.op_type for schema in ONNX_OPERATORS} - WRITTEN_BY_HAND:
        twin = row_of(op_type).twin
        if isinstance(twin, ElementWiseTwin):
            found[twin.operator].add(op_type)
    for node in _nodes():
        lowered = lower(node).descriptor
        if lowered is not None:
            found[lowered.operator_type].add(node.op_type)
    return found


def _nodes() -> list[OnnxNode]:
    """Nodes of the vectors, and the samples of the operators whose twin is a function of the node."""
    from tests.onnx.test_versions import SAMPLES, call  # needs ONNX Runtime, which has no wheel for every Python

    found = [case.desc for file in vectors_files() for case in file.cases if isinstance(case.desc, OnnxNode)]
    for schema in ONNX_OPERATORS:
        if schema.op_type in SAMPLES and schema.last_opset is None and row_of(schema.op_type).twin is not untranslated:
            calls = [call(schema, tensors, settings) for tensors, settings in SAMPLES[schema.op_type]]
            for arguments in filter(None, calls):
                with suppress(InvalidDescriptor):  # some samples are for types of older versions
                    found.append(_node(schema, *arguments))
    return found


def _node(schema: OnnxSchema, arrays: list[Any], attributes: Mapping[str, Any]) -> OnnxNode:
    names = [slot.name for slot in schema.inputs if not slot.variadic]
    names += [f"{slot.name}_{at}" for slot in schema.inputs if slot.variadic for at in range(len(arrays))]
    given = {name: np.asarray(x) for name, x in zip(names, arrays, strict=False) if x is not None}
    return OnnxNode.of(schema.op_type, given, opset=schema.since_version, **attributes)


def notes_text() -> str:
    """The text of `operator_notes.json`, one operator a line."""
    answers, found = _different_answers(), twins()
    unknown = _not_compared()
    rows: dict[str, Any] = {}
    for cls in OPERATORS:
        name = cls.operator_type
        relatives = sorted(op_type for op_type, kin in _RELATIVES.items() if name in kin.split())
        directml = [{"reason": reason, "cases": cases} for reason, cases in answers.get(name, {}).items()]
        rows[name] = {"twins": sorted(found[name]), "relatives": relatives, "directml": directml}
        rows[name]["not_compared"] = unknown[name]
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()) + "\n}\n"


def _not_compared() -> Counter[str]:
    """By operator, how many of the vectors' cases say nothing of DirectML, since Wine or the device differs."""
    operators = {file.path: file.operator for file in vectors_files()}
    listed = expected_failures((HERE / "directml-xfails.txt").read_text("utf-8"))
    files = [entry.partition(" [")[0] for entry, reason in listed.items() if reason.startswith("under Wine")]
    return Counter(operators[file] for file in files if file in operators)


def _different_answers() -> Mapping[str, Mapping[str, list[str]]]:
    """By operator and reason, the vectors' cases that DirectML answers otherwise, Wine's doing left out."""
    operators = {file.path: file.operator for file in vectors_files()}
    found: dict[str, dict[str, list[str]]] = {}
    for entry, reason in expected_failures((HERE / "directml-xfails.txt").read_text("utf-8")).items():
        file, _, case = entry.partition(" [")
        if file in operators and reason.startswith("DirectML: "):
            reasons = found.setdefault(operators[file], {})
            reasons.setdefault(reason.removeprefix("DirectML: "), []).append(case.removesuffix("]"))
    return found
