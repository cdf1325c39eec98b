"""Messages name fields by reference, so that a query and the command line can word them without reading sentences."""

from __future__ import annotations

import json
import pickle
import re
from copy import deepcopy

import pytest
from tests.support.vectors import vectors_files

from tensorpost.descriptors import TileOperatorDesc, operator_class
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter, Violation
from tensorpost.values.sentences import Reference, Sentence, named, references_of, worded

REJECTED = [(file.operator, case.document["desc"]) for file in vectors_files() for case in file.rejected]


def spoken(reference: Reference) -> str:
    return f"--{reference.name.lower()}"


def test_a_message_is_text_whose_references_are_worded_anew():
    message = "either " + named("Axis", 2) + f" is {9}, or " + named("x", text="the input") + " is empty"
    assert message == "either Axis[2] is 9, or the input is empty"
    assert json.dumps(message) == f'"{message}"'
    assert worded(message, spoken) == "either --axis is 9, or --x is empty"
    assert worded(worded(message, spoken), lambda reference: reference.text_of(reference.name.upper())) == (
        "either AXIS[2] is 9, or X is empty"
    )
    assert [reference.name for reference in references_of(message)] == ["Axis", "x"]
    assert (worded("plain", spoken), references_of("plain")) == ("plain", [])


def test_references_survive_what_errors_go_through():
    message = named("Axis") + " is 9"
    error = InvalidParameter(message)
    several = InvalidDescriptor.of([Violation("axis", ("Axis",), message)] * 2)
    assert worded(several.detail, spoken) == "$.Axis: --axis is 9 (and 1 more)"
    for copy in (pickle.loads(pickle.dumps(error)), deepcopy(error)):
        assert worded(copy.detail, spoken) == "--axis is 9"
        assert isinstance(copy.detail, Sentence)


@pytest.mark.parametrize("operator", sorted({operator for operator, _ in REJECTED}))
def test_operators_name_their_attributes_by_reference(operator: str):
    """What is left of a message without its references has none of the operator's attributes in it."""
    cls = operator_class(operator)
    names = [field.name for field in cls.facts.fields_by_kind["attribute"]]
    attribute = re.compile(rf"(?<![\w.'])({'|'.join(names)})(?![\w'])") if names else None
    for _, desc in [each for each in REJECTED if each[0] == operator]:
        try:
            cls.completed(desc).validate_for("1_0")
        except InvalidDescriptor as error:
            for violation in error.violations:
                plain = worded(violation.message, lambda _: "")
                assert attribute is None or not attribute.search(plain), violation.message


def test_references_survive_in_messages_about_outputs_that_follow():
    tensor = {"DataType": "FLOAT32", "Sizes": [2, 3]}
    with pytest.raises(InvalidDescriptor) as error:
        TileOperatorDesc.completed({"InputTensor": tensor, "Repeats": [1, 2**31]})
    (violation,) = error.value.violations
    assert [reference.name for reference in references_of(violation.message)] == ["Sizes"]


@pytest.mark.parametrize(
    ("op_type", "opset", "data", "parameters"),
    [
        ("Resize", 10, "X", {"scales": "-1"}),
        ("Resize", 13, "X", {"sizes": "2,-1"}),
        ("Resize", 10, "X", {"antialias": "1", "scales": "1,1"}),
        ("Resize", 18, "X", {"axes": "0,0", "scales": "1,1"}),
        ("Resize", 13, "X", {"scales": ""}),
        ("ArgMax", 13, "data", {"axis": "9"}),
        ("Cast", 13, "input", {"to": "99"}),
        ("Slice", 1, "data", {"starts": "1,1", "ends": "1"}),
    ],
)
def test_nodes_name_a_wrong_parameter_by_reference(op_type: str, opset: int, data: str, parameters: dict[str, str]):
    """So that an answer to a query does not name it a second time in front."""
    with pytest.raises(InvalidDescriptor) as error:
        OnnxNode.from_query(op_type, opset, parameters, {data: OnnxTensor("float32", (2, 3))})
    message = error.value.violations[0].message
    assert next(iter(parameters)) in [reference.name for reference in references_of(message)], message
