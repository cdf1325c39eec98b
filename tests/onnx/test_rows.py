"""An ONNX operator is one row of `RULES`: what it says is true of its versions, and no half of it can be left out."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.batches import each

from tensorpost.descriptors import OPERATORS
from tensorpost.onnx import ONNX_OPERATORS, OnnxNode, OnnxTensor, lower
from tensorpost.onnx.directml_twins import ElementWiseTwin
from tensorpost.onnx.operator_row import OperatorRow
from tensorpost.onnx.parameters import AxesParameters, AxisParameters
from tensorpost.onnx.shapes import RULES
from tensorpost_server.operators import onnx
from tensorpost_server.operators.elementwise_base import FORMULAS
from tensorpost_server.operators.registry import NODE_FORMS

BY_ROW = each("op_type", sorted(RULES))


def test_every_row_has_versions_and_every_version_a_row() -> None:
    assert {schema.op_type for schema in ONNX_OPERATORS} == RULES.keys(), "run python -m tests.support.onnx_schemas"


@BY_ROW
def test_inputs_by_value_and_choices_are_of_some_version(op_type: str) -> None:
    versions = [schema for schema in ONNX_OPERATORS if schema.op_type == op_type]
    inputs = {entry.name for schema in versions for entry in schema.inputs}
    choices = {entry.name: entry.choices for schema in versions for entry in schema.attributes}
    row = RULES[op_type]

    assert inputs >= {*row.by_value.split()}
    for name, by_version in row.choices.items():
        assert choices[name] == by_version[max(by_version)]
        assert {schema.since_version for schema in versions} >= by_version.keys() - {1}


@BY_ROW
def test_every_row_has_a_form(op_type: str) -> None:
    assert op_type in NODE_FORMS


def test_a_row_that_says_nothing_of_directml_is_none() -> None:
    row: Any = OperatorRow
    with pytest.raises(TypeError, match="twin"):
        row(RULES["Mish"].rule)


def test_a_row_without_a_form_ends_the_import_with_its_name() -> None:
    missing = {name: form for name, form in NODE_FORMS.items() if name != "Mish"}

    with pytest.raises(ImportError, match=r"ONNX's Mish has a row .* but neither a form .* nor an ElementWiseTwin"):
        onnx.complete(missing)


def test_an_element_wise_twin_needs_no_form() -> None:
    bare = {name: form for name, form in NODE_FORMS.items() if name not in ("Sqrt", "Max", "HardSigmoid")}

    onnx.complete(bare)

    assert bare == NODE_FORMS


def test_twins_name_operators_of_directml() -> None:
    twins = {row.twin.operator for row in RULES.values() if isinstance(row.twin, ElementWiseTwin)}

    assert twins <= {cls.operator_type for cls in OPERATORS}
    assert len(twins & FORMULAS.keys()) >= 35


def test_a_node_says_which_parameters_it_has() -> None:
    node = OnnxNode.of("Softmax", {"input": OnnxTensor("float", (2, 3))}, opset=13)

    assert node.parameters_as(AxesParameters).axes == (1,)
    with pytest.raises(AssertionError, match="Softmax has AxesParameters, not AxisParameters"):
        node.parameters_as(AxisParameters)


@pytest.mark.parametrize("flags", [(2, 0), (0, 2), (7, 7)])
def test_any_number_but_0_asks_for_an_infinity(flags: tuple[int, int]) -> None:
    negative, positive = flags
    x = OnnxTensor("float", (3,))
    node = OnnxNode.of("IsInf", {"X": x}, opset=10, detect_negative=negative, detect_positive=positive)
    plain = OnnxNode.of("IsInf", {"X": x}, opset=10, detect_negative=min(negative, 1), detect_positive=min(positive, 1))

    assert lower(node) == lower(plain)
    assert NODE_FORMS["IsInf"](node) == NODE_FORMS["IsInf"](plain)
