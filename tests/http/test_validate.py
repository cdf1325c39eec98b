"""`/v1/validate`: what DirectML says about a document, without a tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from tests.support import strategies as ours
from tests.support.http_app import JSON, AppClient, Controlled, assert_problem, http_app, use_backend

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc, operator_names, parse_operator

TILE = {"InputTensor": {"DataType": "INT16", "Sizes": [2, 3]}, "Repeats": [1, 2]}
MEMBERS = {
    "valid", "feature_level", "violations", "lowest_feature_level", "op", "output", "inputs", "outputs",
    "input_bytes", "output_bytes", "cost", "filled_in",
}  # fmt: skip


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app(max_json_bytes=5000) as client:
        yield client


def verdict(app: AppClient, document: Any, query: str = "") -> dict[str, Any]:
    answer = app.post("/v1/validate" + query, json.dumps(document).encode(), JSON)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    is_graph = isinstance(document, dict) and ("nodes" in document or "Nodes" in document)
    assert found.keys() == MEMBERS | ({"nodes", "onnx_runtime"} if is_graph else set[str]())
    assert found["valid"] is (found["violations"] == [])
    return found


def test_a_valid_document(app: AppClient):
    found = verdict(app, {"type": "TILE", "desc": TILE})

    assert found["valid"]
    assert (found["feature_level"], found["lowest_feature_level"]) == ("6_4", "3_1")
    assert (found["input_bytes"], found["output_bytes"]) == (12, 24)
    assert (
        found["output"]["Sizes"], found["output"]["DataType"], found["output"]["TotalTensorSizeInBytes"],
    ) == ([2, 6], "INT16", 24)  # fmt: skip
    assert parse_operator(found["op"]) == TileOperatorDesc.of(BufferTensorDesc.packed("INT16", (2, 3)), (1, 2))


def test_byte_counts_are_those_on_the_wire(app: AppClient):
    # A packed tensor of 3 bytes travels as 3 bytes; a strided one with its buffer, which is rounded up to 4.
    packed = {"InputTensor": {"DataType": "UINT8", "Sizes": [3]}, "Repeats": [1]}
    strided = {**packed, "InputTensor": {"DataType": "UINT8", "Sizes": [3], "Strides": [2]}}

    assert (verdict(app, {"type": "TILE", "desc": packed})["input_bytes"],) * 2 == (3, 3)
    assert tuple(verdict(app, {"type": "TILE", "desc": strided})[key] for key in ("input_bytes", "output_bytes")) == (
        8,
        3,
    )


def test_every_violation_is_listed_and_the_answer_is_200(app: AppClient):
    desc = {
        "InputTensor": {"DataType": "INT16", "Sizes": [2, 0]},
        "OutputTensor": {"DataType": "INT32", "Sizes": [2, 6]},
        "Repeats": [1, 0],
        "RepeatsCount": 3,
    }

    found = verdict(app, {"type": "TILE", "desc": desc})

    assert {
        ("size-zero", "$.desc.InputTensor.Sizes[1]"),
        ("data-types-differ", "$.desc.OutputTensor.DataType"),
        ("count-disagrees", "$.desc.RepeatsCount"),
        ("repeat-zero", "$.desc.Repeats[1]"),
    } == {(violation["code"], violation["path"]) for violation in found["violations"]}
    assert tuple(found[key] for key in sorted(MEMBERS - {"valid", "feature_level", "violations"})) == (None,) * 9


def test_a_level_that_does_not_take_it(app: AppClient):
    found = verdict(app, {"type": "TILE", "desc": TILE}, "?feature_level=2_1")

    assert not found["valid"]
    assert (found["feature_level"], found["lowest_feature_level"]) == ("2_1", "3_1")
    assert {("dimension-count-unsupported", "$.desc.InputTensor.Sizes")} <= {
        (violation["code"], violation["path"]) for violation in found["violations"]
    }
    assert found["op"] is not None, "it is well formed, and can be shown"


def test_every_operator_of_directml_is_known(app: AppClient):
    for name in operator_names():
        found = verdict(app, {"type": f"DML_OPERATOR_{name}", "desc": {}})
        assert found["violations"], name
        assert "operator-not-served" not in {violation["code"] for violation in found["violations"]}, name


@pytest.mark.parametrize("document", [None, [], "TILE", 7, {}, {"type": "TILE"}, {"desc": {}}, {"type": 1, "desc": {}}])
def test_what_is_no_document_is_not_valid(app: AppClient, document: Any):
    assert not verdict(app, document)["valid"]


@pytest.mark.parametrize(
    ("query", "body", "status", "code"),
    [
        ("", b"{", 400, "invalid-json"),
        ("", b"", 400, "invalid-json"),
        ("", b'{"type": 1, "type": 2}', 400, "invalid-json"),
        ("", b"[" * 4000, 400, "invalid-json"),
        ("", b" " * 5001, 413, "limit-exceeded"),
        ("", b'{"type": "TIEL", "desc": {}}', 404, "unknown-operator"),
        ("?feature_level=7_0", b"{}", 400, "invalid-parameter"),
        ("?feature_level=1_0&feature_level=2_0", b"{}", 400, "invalid-parameter"),
        ("?level=1_0", b"{}", 400, "invalid-parameter"),
    ],
)
def test_a_question_that_cannot_be_read(app: AppClient, query: str, body: bytes, status: int, code: str):
    assert_problem(app.post("/v1/validate" + query, body, JSON), status, code)


def test_a_question_is_json(app: AppClient):
    answer = app.post("/v1/validate", b"", {"content-type": "image/png"})

    assert assert_problem(answer, 415, "unsupported-media-type")["detail"].endswith("send application/json")
    assert answer.headers["accept"] == "application/json"


def test_a_compressed_question_is_not_read(app: AppClient):
    answer = app.post("/v1/validate", b"{}", JSON | {"content-encoding": "gzip"})

    assert_problem(answer, 415, "unsupported-media-type")
    assert answer.headers["accept-encoding"] == "identity"


def test_nothing_is_computed_and_nothing_lent_out(app: AppClient):
    backend = Controlled()
    with use_backend(app.service, backend):
        found = verdict(app, {"type": "TILE", "desc": {**TILE, "Repeats": [30000, 20000]}})

    assert found["output_bytes"] == 2 * 30000 * 3 * 20000 * 2
    assert backend.started == 0
    assert app.in_use() == {"bytes_in_flight": 0, "requests_in_flight": 0}


def test_a_node_is_a_request_like_others():
    """Comparing coordinates keeps a thread busy; so many at a time as there may be requests."""
    node = {"op_type": "Resize", "opset": 19, "inputs": {"X": {"data_type": "float32", "shape": [4]}, "scales": [2]}}
    with http_app(max_requests=1) as app:
        with app.service.admission.admit(1):
            refused = app.post("/v1/validate", json.dumps(node).encode(), JSON)
        answer = app.post("/v1/validate", json.dumps(node).encode(), JSON)
        assert app.in_use() == {"bytes_in_flight": 0, "requests_in_flight": 0}

    assert_problem(refused, 429, "too-busy")
    assert answer.json()["valid"]


@given(desc=ours.tile_descs())
@settings(max_examples=40, deadline=None)
def test_what_it_says_is_valid_can_be_run(app: AppClient, desc: TileOperatorDesc):
    found = verdict(app, desc.to_document())

    assert found["valid"]
    assert desc.to_document() == found["op"]


@given(document=ours.json_values())
@settings(max_examples=80, deadline=None)
def test_anything_gets_a_verdict_or_a_problem(app: AppClient, document: Any):
    for asked in (document, {"type": "TILE", "desc": document}):
        try:
            body = json.dumps(asked).encode()
        except ValueError:  # json.dumps writes no integers of more than 4300 digits
            return
        answer = app.post("/v1/validate", body, JSON)
        if answer.status_code == 200:
            assert answer.json().keys() == MEMBERS
        else:
            assert_problem(answer, answer.status_code, answer.json()["type"].rpartition(":")[2])
            assert answer.status_code in (400, 404, 413)


def test_a_tensor_with_strides_is_said_to_travel_as_bytes(app: AppClient):
    strided = {**TILE, "InputTensor": {"DataType": "INT16", "Sizes": [2, 3], "Strides": [4, 1]}}

    (found,) = verdict(app, {"type": "TILE", "desc": strided})["inputs"]

    assert (found["dtype"], found["shape"], found["size_in_bytes"]) == ("uint8", [16], 16)


def test_fields_that_were_filled_in_are_listed_or_refused(app: AppClient):
    document = {"type": "TILE", "desc": TILE}
    loose, strict = verdict(app, document), verdict(app, document, "?strict=1")

    assert (loose["filled_in"], loose["valid"]) == (["OutputTensor"], True)
    assert [(each["code"], each["path"]) for each in strict["violations"]] == [("field-missing", "$.desc.OutputTensor")]
    assert verdict(app, loose["op"], "?strict=1")["filled_in"] == []


RESAMPLES = {
    "inputs": {"x": {"data_type": "float32", "sizes": [1, 1, 2, 3]}},
    "nodes": [
        {"name": "relu", "op_type": "Relu", "inputs": "small"},
        {
            "name": "small",
            "type": "RESAMPLE1",
            "inputs": {"InputTensor": "x"},
            "desc": {"InterpolationMode": "LINEAR", "Scales": [1, 1, 2, 2]},
        },
    ],
    "outputs": {"y": "relu"},
}


def test_what_nodes_of_a_graph_leave_out_is_listed_or_refused(app: AppClient):
    """RESAMPLE1 has the fields InputTensor, OutputTensor, InterpolationMode, Scales and two arrays of pixel offsets."""
    omitted = ["OutputTensor", "InputPixelOffsets", "OutputPixelOffsets"]

    loose, strict = verdict(app, RESAMPLES), verdict(app, RESAMPLES, "?strict=1")

    assert (loose["valid"], loose["filled_in"]) == (True, [f"small.{field}" for field in omitted])
    assert (strict["valid"], strict["filled_in"]) == (False, loose["filled_in"])
    assert [each["path"] for each in strict["violations"]] == [f"$.nodes[1].desc.{field}" for field in omitted]


def test_a_graph_with_every_field_is_strictly_valid(app: AppClient):
    small, tensor = RESAMPLES["nodes"][1], {"DataType": "FLOAT32", "Sizes": [1, 1, 4, 6]}
    offsets = {"InputPixelOffsets": [0.5] * 4, "OutputPixelOffsets": [-0.5] * 4, "OutputTensor": tensor}
    whole = RESAMPLES | {"nodes": [RESAMPLES["nodes"][0], small | {"desc": small["desc"] | offsets}]}

    answer = verdict(app, whole, "?strict=1")

    assert (answer["valid"], answer["filled_in"]) == (True, [])


def test_what_directml_s_structs_leave_out_is_named_by_its_place(app: AppClient):
    tensor = {"DataType": "FLOAT32", "Sizes": [2]}
    relu = {"Type": "DML_OPERATOR_ACTIVATION_RELU", "Desc": {"InputTensor": tensor}}
    graph = {
        "InputCount": 1, "OutputCount": 1,
        "Nodes": [{"Type": "OPERATOR", "Desc": {"Operator": relu, "Name": "relu"}}],
        "InputEdges": [{"Type": "INPUT", "Desc": {"GraphInputIndex": 0, "ToNodeIndex": 0, "ToNodeInputIndex": 0}}],
        "OutputEdges": [
            {"Type": "OUTPUT", "Desc": {"FromNodeIndex": 0, "FromNodeOutputIndex": 0, "GraphOutputIndex": 0}},
        ],
    }  # fmt: skip

    loose, strict = verdict(app, graph), verdict(app, graph, "?strict=1")

    assert loose["filled_in"] == ["Nodes[0].OutputTensor"]
    assert [each["path"] for each in strict["violations"]] == ["$.Nodes[0].Desc.Operator.Desc.OutputTensor"]


@pytest.mark.parametrize(
    ("query", "document", "said"),
    [("strict=yes", {}, "it must be 1"), ("strict=1", {"op_type": "Abs"}, "leave it out for ONNX nodes")],
)
def test_strict_is_for_operators(app: AppClient, query: str, document: Any, said: str):
    answer = app.post(f"/v1/validate?{query}", json.dumps(document).encode(), JSON)

    assert_problem(answer, 400, "invalid-parameter")
    assert said in answer.json()["detail"]
