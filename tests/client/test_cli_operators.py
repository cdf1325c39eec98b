"""The command `operators`: lists, and what it says of one operator, as text and as JSON."""

from __future__ import annotations

import json

import pytest
from tests.support.command_line import invoke

from tensorpost.descriptors import operator_names
from tensorpost.onnx import ONNX_OPERATORS


def test_an_operator_is_described_by_its_name():
    done = invoke("operators", "gather")
    text = done.stdout

    assert done.returncode == 0
    assert text.startswith("GATHER\n")
    for words in (
        "Output[.., i, ..] = Input[.., Indices[i], ..]",
        "IndexDimensions",
        "how many of the last dimensions",
    ):
        assert words in text
    assert "const DML_TENSOR_DESC* IndicesTensor;" in text
    assert "`" not in text
    assert "Other operators of this name: gather_elements, gather_nd, gather_nd1" in text


@pytest.mark.parametrize("name", ["resample2", "RESAMPLE2", "DML_OPERATOR_RESAMPLE2"])
def test_the_json_of_an_operator_has_its_fields(name: str):
    found = json.loads(invoke("operators", name, "--json").stdout)

    assert found["name"] == "resample2"
    (mode,) = [field for field in found["fields"] if field["attribute_name"] == "interpolation_mode"]
    assert (mode["default"], mode["bounds"]) == ("required", "NEAREST_NEIGHBOR, LINEAR")
    assert found["onnx"] == ["Resize", "Upsample"]
    assert found["example"]["outputs"]["output"]["data"]


def test_onnx_operators_are_listed_and_described():
    every = json.loads(invoke("operators", "--onnx", "--json").stdout)
    assert {row["op_type"] for row in every} == {schema.op_type for schema in ONNX_OPERATORS}
    rows = invoke("operators", "--onnx", "softm").stdout.splitlines()
    assert [line.split() for line in rows[1:]] == [
        ["LogSoftmax", "1,", "11,", "13", "ACTIVATION_LOG_SOFTMAX1"],
        ["Softmax", "1,", "11,", "13", "ACTIVATION_SOFTMAX1"],
    ]
    resize = invoke("operators", "--onnx", "resize").stdout
    assert "coordinate_transformation_mode" in resize
    assert "half_pixel_symmetric" in resize
    assert json.loads(invoke("operators", "--onnx", "Resize", "--json").stdout)["directml"] == ["RESAMPLE2"]


def test_a_word_that_is_no_name_lists_what_has_it():
    done = invoke("operators", "pooling")
    names = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert {"average_pooling", "max_pooling2", "roi_pooling"} <= {*names}
    assert {name.upper() for name in names if not name.startswith("-")} & {*operator_names()}


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [(["gathre"], "did you mean 'GATHER'"), (["--onnx", "Resise"], "did you mean 'Resize'")],
)
def test_a_name_that_is_not_there_gets_the_one_that_may_be_meant(arguments: list[str], hint: str):
    done = invoke("operators", *arguments)
    assert done.returncode == 1
    assert hint in " ".join(done.stderr.split())
