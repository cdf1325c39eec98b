"""Models: `/v2` means the same operators as `/v1`, and the schema of their attributes says what calls need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import JSON, NPY, http_app, npy_array, npy_bytes
from tests.support.vectors import vectors_files

from tensorpost.descriptors import OPERATORS, OperatorDesc, parse_operator
from tensorpost.values.problems import InvalidDescriptor
from tensorpost_server.http.open_inference.models import ModelCatalogue
from tensorpost_server.settings import Preset

X = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)


def schema_of(name: str, models: ModelCatalogue | None = None) -> Mapping[str, Any]:
    config = (models or ModelCatalogue({})).find(name).to_config()
    return json.loads(config["parameters"]["attributes_schema"]["string_value"])


SCALES = {"scales": "[1,1,2,2]", "interpolation_mode": "LINEAR"}
CALLS: list[Mapping[str, str]] = [SCALES, SCALES | {"rounding_direction": "INCREASING"}]


@pytest.mark.parametrize("name", ["resample", "resample1", "resample2", "resample3"])
def test_attributes_that_v1_takes_are_those_that_v2_takes(name: str):
    tensor = {"name": "input", "shape": [1, 1, 2, 2], "datatype": "FP32", "data": X.reshape(-1).tolist()}
    served: list[bool] = []
    with http_app() as app:
        for given in CALLS:
            one = app.request("POST", f"/v1/operators/{name}", params=given, content=npy_bytes(X), headers=NPY)
            document = {"inputs": [tensor], "parameters": given}
            other = app.post(f"/v2/models/{name}/infer", json.dumps(document), JSON)
            assert (one.status_code == 200) == (other.status_code == 200), (one.text, other.text)
            served.append(one.status_code == 200)
            if served[-1]:
                assert npy_array(one.content).reshape(-1).tolist() == other.json()["outputs"][0]["data"]

    assert served == ([True, False] if name in ("resample", "resample1") else [False, True])


def test_every_model_of_directml_has_the_operator_of_its_name():
    models = ModelCatalogue({})

    assert {name: models.find(name).operator for name in models.names if not name.startswith("onnx.")} == {
        cls.operator_type.lower(): cls.operator_type.lower() for cls in OPERATORS
    }


def test_no_two_tensors_of_a_model_have_one_name():
    models = ModelCatalogue({})
    outputs = {name: [each.name for each in models.find(name).outputs] for name in models.names}

    assert outputs["onnx.topk"] == ["Values", "Indices"]
    assert [name for name, names in outputs.items() if len(names) != len({*names})] == []


def test_attributes_have_their_words_and_types():
    found = schema_of("resample")["properties"]
    assert found["interpolation_mode"] == {"type": "string", "enum": ["NEAREST_NEIGHBOR", "LINEAR"]}
    assert found["output_data_type"]["enum"][:2] == ["FLOAT32", "FLOAT16"]
    assert schema_of("upsample_2d")["properties"]["scale_size"] == {"type": "object"}
    assert schema_of("max_pooling_grad")["properties"]["strides"] == {"type": "array", "items": {"type": "integer"}}
    assert schema_of("cumulative_summation")["properties"]["has_exclusive_sum"] == {"type": "boolean"}
    onnx = schema_of("onnx.depthtospace")
    assert onnx["properties"]["mode"] == {"type": "string", "enum": ["DCR", "CRD"]}
    assert onnx["required"] == ["blocksize"]
    preset = Preset(operator="tile", attributes={"repeats": [1, 2]})
    assert (schema_of("tile")["required"], schema_of("twice", ModelCatalogue({"twice": preset}))["required"]) == (
        ["repeats"], [],
    )  # fmt: skip


def without(op: OperatorDesc, name: str, outputs: bool) -> Mapping[str, Any]:
    """The document without an attribute, the counts that follow, and perhaps the outputs."""
    left_out = {name} | {field.name for field in op.facts.fields_by_kind["output"] if outputs}
    derived = {info.alias for info in type(op).model_fields.values() if info.default_factory is not None}
    document = op.to_document()
    return document | {"desc": {key: document["desc"][key] for key in document["desc"].keys() - left_out - derived}}


def reads(document: Mapping[str, Any]) -> bool:
    try:
        parse_operator(document, complete=True)
    except InvalidDescriptor:
        return False
    return True


def test_what_is_required_is_what_no_call_can_leave_out():
    """The vectors' cases are the oracle: an attribute is required if none of them is valid without it."""
    wrong: list[str] = []
    for file in vectors_files():
        ops = [case.desc for case in file.cases[:4] if isinstance(case.desc, OperatorDesc)]
        if not ops:
            continue
        required = {*schema_of(ops[0].operator_type.lower())["required"]}
        for field in ops[0].facts.fields_by_kind["attribute"]:
            if type(ops[0]).model_fields[field.attribute_name].default_factory is not None:
                continue
            optional = any(reads(without(op, field.name, outputs)) for op in ops for outputs in (True, False))
            if optional == (field.attribute_name in required):
                wrong.append(f"{ops[0].operator_type} {field.attribute_name}")

    assert not wrong
