"""The catalogue of versions against the onnx package's own schemas, for every opset there is."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.support import onnx_schemas

from tensorpost.onnx import NEWEST_OPSET, ONNX_OPERATORS, OnnxSchema, find_schema
from tensorpost.onnx.schemas import WRITTEN_BY_HAND
from tensorpost.values.problems import UnknownOperator, Violation

NO_ONNX = "the package onnx is not installed; it has no wheel for every Python"


@pytest.mark.parametrize(
    ("op_type", "opset", "name"),
    [
        ("Tile", 1, "Tile-1"), ("Tile", 5, "Tile-1"), ("Tile", 6, "Tile-6"), ("Tile", 12, "Tile-6"),
        ("Tile", 13, "Tile-13"), ("Tile", 28, "Tile-13"),
        ("Resize", 10, "Resize-10"), ("Resize", 11, "Resize-11"), ("Resize", 12, "Resize-11"),
        ("Resize", 13, "Resize-13"), ("Resize", 14, "Resize-13"), ("Resize", 17, "Resize-13"),
        ("Resize", 18, "Resize-18"), ("Resize", 19, "Resize-19"), ("Resize", 28, "Resize-19"),
        ("Upsample", 7, "Upsample-7"), ("Upsample", 8, "Upsample-7"), ("Upsample", 9, "Upsample-9"),
    ],
)  # fmt: skip
def test_an_opset_means_the_newest_version_at_or_below_it(op_type: str, opset: int, name: str) -> None:
    schema = find_schema(op_type, opset)
    assert isinstance(schema, OnnxSchema)
    assert schema.name == name


@pytest.mark.parametrize(
    ("op_type", "opset", "words"),
    [
        ("Tile", 0, "exists from opset 1"),
        ("Resize", 9, "exists from opset 10"),
        ("Resize", -3, "exists from opset 10"),
        ("Upsample", 10, "deprecated from opset 10 on; use Resize"),
        ("Upsample", 19, "deprecated from opset 10 on; use Resize"),
        ("Upsample", 6, "Upsample-1 .* was experimental"),
        ("Tile", NEWEST_OPSET + 1, "newer than 28"),
    ],
)
def test_an_opset_without_a_version_says_why(op_type: str, opset: int, words: str) -> None:
    found = find_schema(op_type, opset)
    assert isinstance(found, Violation)
    assert found.path == ("opset",)
    assert re.search(words, found.message), found.message


@pytest.mark.parametrize(("name", "guess"), [("Tiles", "Tile"), ("resize", "Resize"), ("Upsampling", "Upsample")])
def test_an_unknown_operator_names_the_nearest(name: str, guess: str) -> None:
    with pytest.raises(UnknownOperator, match=f"did you mean '{guess}'") as caught:
        find_schema(name, 19)
    assert caught.value.extra["nearest"] == guess
    with pytest.raises(UnknownOperator, match=r"nor one of a similar name; docs/operators\.md lists them"):
        find_schema("Qqq", 19)


def test_the_catalogue_is_plain_json() -> None:
    entries = [schema.to_json() for schema in ONNX_OPERATORS]
    assert json.loads(json.dumps(entries)) == entries
    newest = next(entry for entry in entries if (entry["op_type"], entry["since_version"]) == ("Tile", 13))
    assert newest == {
        "op_type": "Tile",
        "since_version": 13,
        "last_opset": None,
        "summary": "repeats the whole input along each dimension.",
        "inputs": [
            {"name": "input", "role": "tensor", "optional": False, "types": newest["inputs"][0]["types"]},
            {"name": "repeats", "role": "value", "optional": False, "types": ["int64"]},
        ],
        "attributes": [],
    }
    assert len(newest["inputs"][0]["types"]) == 16


# -- the onnx package as the judge --


def defs() -> Any:
    return pytest.importorskip("onnx.defs", reason=NO_ONNX)


def test_the_file_of_operators_is_what_the_package_says() -> None:
    """A release of onnx with newer versions fails here: python -m tests.support.onnx_schemas writes the file anew."""
    assert onnx_schemas.PATH.read_text("utf-8") == onnx_schemas.text()


@pytest.mark.parametrize("op_type", ["Tile", "Resize", "Upsample", "Add", "Clip", "Cast"])
def test_every_opset_has_the_version_onnx_says(op_type: str) -> None:
    for opset in range(1, min(defs().onnx_opset_version(), NEWEST_OPSET) + 1):
        ours = find_schema(op_type, opset)
        try:
            theirs = defs().get_schema(op_type, opset, "")
        except Exception:  # noqa: BLE001 # onnx raises a class of its C++ module
            assert isinstance(ours, Violation)
            continue
        if theirs.deprecated or (theirs.name == "Upsample" and theirs.since_version == 1):
            assert isinstance(ours, Violation)
        else:
            assert isinstance(ours, OnnxSchema)
            assert ours.since_version == theirs.since_version


BY_HAND = [schema for schema in ONNX_OPERATORS if schema.op_type in WRITTEN_BY_HAND]


@pytest.mark.parametrize("schema", BY_HAND, ids=lambda schema: schema.name)
def test_inputs_types_and_attributes_are_those_of_onnx(schema: OnnxSchema) -> None:
    theirs = defs().get_schema(schema.op_type, schema.since_version, "")
    types = {entry.type_param_str: set(entry.allowed_type_strs) for entry in theirs.type_constraints}
    listed = {entry["name"]: entry for entry in schema.to_json()["inputs"]}
    assert list(listed) == [entry.name for entry in theirs.inputs]
    for entry in theirs.inputs:
        expected = types.get(entry.type_str, {entry.type_str})
        ours = {f"tensor({name})" for name in listed[entry.name]["types"]}
        if schema.name == "Tile-1" and entry.name != "input":
            # The signature's T, and int64 from the text of T1, which no input carries.
            expected = expected | {"tensor(int64)"}
        assert ours == expected, entry.name
        assert listed[entry.name]["optional"] == entry.option.name.endswith("Optional"), entry.name
    assert {entry.name for entry in schema.attributes} == set(theirs.attributes)
    for entry in schema.attributes:
        attribute = theirs.attributes[entry.name]
        assert attribute.type.name == entry.type
        assert attribute.required == entry.required
        default = attribute.default_value
        if not default.name:
            assert entry.default is None
        else:
            value = {"FLOAT": default.f, "INT": default.i, "STRING": default.s.decode()}[entry.type]
            assert entry.default == value
        for choice in entry.choices:
            if isinstance(choice, str):
                assert choice in attribute.description.replace('"', "") + theirs.doc, choice
