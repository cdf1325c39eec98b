"""`tensorpost validate` of graphs, and what it says of fields that were left out; `tensorpost graph check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tensorpost import parse_operator
from tensorpost.command_line.cli import app
from tensorpost.descriptors.documents import fields_filled_in
from tensorpost.problems import InvalidDescriptor

TENSOR = {"DataType": "FLOAT32", "Sizes": [1, 1, 4, 4]}
RELU = {"name": "r", "type": "ACTIVATION_RELU", "inputs": ["x"]}
ABS = {"name": "y", "op_type": "Abs", "opset": 13, "inputs": ["r"]}
GRAPH = {
    "inputs": {"x": {"data_type": "FLOAT32", "sizes": [2, 3]}},
    "nodes": [{"name": "r", "type": "TILE", "inputs": {"InputTensor": "x"}, "desc": {"Repeats": [2, 1]}}, ABS],
    "outputs": {"y": "y"},
}
CONVOLUTION = {
    "type": "DML_OPERATOR_CONVOLUTION",
    "desc": {"InputTensor": TENSOR, "FilterTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 3, 3]}},
}
# The fields of DML_CONVOLUTION_OPERATOR_DESC in DirectML.h that are neither optional pointers nor DimensionCount.
FILLED_IN = [
    "OutputTensor", "Mode", "Direction", "Strides", "Dilations", "StartPadding", "EndPadding", "OutputPadding",
    "GroupCount",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


@pytest.fixture(params=["offline", "online"])
def where(request: pytest.FixtureRequest) -> list[str]:
    return [] if request.param == "offline" else ["--url", request.getfixturevalue("server_url")]


def ran(*arguments: str, document: Any = None) -> tuple[int, str, str]:
    if document is not None:
        Path("document.json").write_text(json.dumps(document))
    result = CliRunner().invoke(app, [*arguments])
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


@pytest.mark.usefixtures("folder")
def test_a_graph_is_validated(where: list[str]):
    code, said, _ = ran("validate", "document.json", *where, document=GRAPH)

    assert (code, said.partition(")")[0]) == (0, "valid at feature level 6_4 (graph of 2 nodes; lowest level 3_1")
    assert ("this would take about" in said) is bool(where)


@pytest.mark.usefixtures("folder")
def test_a_graph_that_is_newer_than_the_level_is_refused(where: list[str]):
    code, _, why = ran("validate", "document.json", "--level", "2_1", *where, document=GRAPH)

    assert code == 1
    assert "$.nodes.r.desc" in why or "$.nodes[0].desc" in why


@pytest.mark.usefixtures("folder")
def test_a_checked_graph_has_its_level():
    code, said, _ = ran("graph", "check", "document.json", document=GRAPH)
    refused, _, why = ran("graph", "check", "document.json", "--level", "2_1")
    nodes = ran("graph", "check", "document.json", document={**GRAPH, "nodes": [{**ABS, "inputs": ["x"]}]})

    assert (code, said.split("\n")[0]) == (0, "valid at feature level 6_4 (graph of 2 nodes; lowest level 3_1)")
    assert (refused, "at feature level 2_1" in why) == (1, True)
    assert nodes[1].split("\n")[0].endswith("lowest level -)")


@pytest.mark.usefixtures("folder")
def test_fields_that_were_filled_in_are_said(where: list[str]):
    code, said, _ = ran("validate", "document.json", *where, document=CONVOLUTION)
    as_json = json.loads(ran("validate", "document.json", "--json", *where)[1])
    refused, _, why = ran("validate", "document.json", "--strict", *where)

    assert (code, refused) == (0, 1)
    assert f"left out: {', '.join(FILLED_IN)} (" in said
    assert as_json["filled_in"] == FILLED_IN
    assert "$.desc.GroupCount: GroupCount is left out" in why


@pytest.mark.usefixtures("folder")
def test_a_whole_document_is_strictly_valid(where: list[str]):
    whole = parse_operator(CONVOLUTION, complete=True).to_document()

    code, said, _ = ran("validate", "document.json", "--strict", *where, document=whole)

    assert (code, said.count("\n")) == (0, 1)


@pytest.mark.usefixtures("folder")
def test_strict_is_for_operators():
    code, _, why = ran("validate", "document.json", "--strict", document=ABS)

    assert (code, "leave it out for ONNX nodes" in why) == (1, True)


@pytest.mark.usefixtures("folder")
def test_fields_of_a_graph_that_were_filled_in_are_said(where: list[str]):
    node = {"name": "half", "type": "RESAMPLE", "inputs": "x", "desc": {"InterpolationMode": "LINEAR"}}
    node["desc"] |= {"OutputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 2]}}
    graph = {
        "inputs": {"x": {"data_type": "float32", "sizes": [1, 1, 4, 4]}},
        "nodes": [node],
        "outputs": {"y": "half"},
    }

    code, said, _ = ran("validate", "document.json", *where, document=graph)
    as_json = json.loads(ran("validate", "document.json", "--json", *where)[1])
    refused, _, why = ran("validate", "document.json", "--strict", *where)

    assert (code, refused) == (0, 1)
    assert "filled in, since left out: half.Scales (--strict refuses this)" in said
    assert as_json["filled_in"] == ["half.Scales"]
    assert "$.nodes[0].desc.Scales: Scales is left out, and strict validation fills nothing in" in why


def test_the_fields_are_named_in_either_spelling():
    desc = {"input_tensor": TENSOR, "FilterTensor": CONVOLUTION["desc"]["FilterTensor"], "group_count": 1}
    document = {"type": "CONVOLUTION", "desc": desc}

    found = fields_filled_in(document, parse_operator(document, complete=True))

    assert found == FILLED_IN[:-1]


def test_a_graph_is_no_operator():
    with pytest.raises(InvalidDescriptor, match=r"^\$: this is a graph, not an operator; run_graph\(\)") as caught:
        parse_operator(GRAPH)

    assert len(caught.value.violations) == 1


def test_type_and_desc_are_read_as_directml_spells_them():
    document = {"Type": CONVOLUTION["type"], "Desc": CONVOLUTION["desc"]}

    assert parse_operator(document, complete=True) == parse_operator(CONVOLUTION, complete=True)
    with pytest.raises(InvalidDescriptor, match=r"\$\.Desc\.InputTensor"):
        parse_operator({**document, "Desc": {}})
    with pytest.raises(InvalidDescriptor, match=r"\$\.Desc: an operator document has the members type and desc only"):
        parse_operator({**document, "type": "CONVOLUTION"})


@pytest.mark.usefixtures("folder")
def test_run_lays_out_the_elements_of_a_tensor_with_strides(server_url: str):
    tensor = {"DataType": "FLOAT32", "Sizes": [2, 3], "Strides": [0, 1]}
    document = {"type": "TILE", "desc": {"InputTensor": tensor, "Repeats": [1, 2]}}
    x = np.array([[1, 2, 3], [1, 2, 3]], np.float32)
    np.save("x.npy", x)
    np.save("buffer.npy", x[0].view(np.uint8))
    np.save("wrong.npy", x.T.copy())

    codes = [
        ran("run", "document.json", f"{name}.npy", "-o", f"{name}-y.npy", "--url", server_url, document=document)
        for name in ("x", "buffer", "wrong")
    ]

    assert [code for code, _, _ in codes] == [0, 0, 1]
    np.testing.assert_array_equal(np.load("x-y.npy"), np.tile(x, (1, 2)))
    np.testing.assert_array_equal(np.load("buffer-y.npy"), np.tile(x, (1, 2)))
    assert "its elements, float32 of shape (2, 3), or its whole buffer, uint8 of shape (12,)" in codes[2][2]
