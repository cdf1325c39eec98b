"""`parse_operator` reads DxDispatch's documents; every path starts at the document's root."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from tests.support.batches import each
from tests.support.strategies import tile_descs

from tensorpost.descriptors import (
    OPERATORS,
    OperatorDesc,
    TileOperatorDesc,
    operator_class,
    operator_names,
    parse_operator,
)
from tensorpost.descriptors.documents import _SYNONYMS
from tensorpost.values.problems import InvalidDescriptor, UnknownOperator

TENSOR = {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 3]}
# Written by hand after DxDispatch's guide: long tensors, full names, counts included
DXDISPATCH = {
    "type": "DML_OPERATOR_TILE",
    "desc": {
        "InputTensor": {
            "Type": "DML_TENSOR_TYPE_BUFFER",
            "Desc": {"DataType": "DML_TENSOR_DATA_TYPE_FLOAT32", "DimensionCount": 4, "Sizes": [1, 1, 2, 3]},
        },
        "OutputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 6, 9]},
        "RepeatsCount": 4,
        "Repeats": [1, 1, 3, 3],
    },
}


def refusal(document: Any, *, complete: bool = False) -> InvalidDescriptor:
    with pytest.raises(InvalidDescriptor) as error:
        parse_operator(document, complete=complete)
    return error.value


def found(error: InvalidDescriptor) -> list[list[str]]:
    return sorted([violation.code, violation.where] for violation in error.violations)


def test_dxdispatch_document() -> None:
    desc = parse_operator(DXDISPATCH)
    assert isinstance(desc, TileOperatorDesc)
    assert desc.to_document() == {
        "type": "DML_OPERATOR_TILE",
        "desc": {
            "InputTensor": {
                "DataType": "FLOAT32", "Flags": "NONE", "Sizes": [1, 1, 2, 3], "DimensionCount": 4,
                "TotalTensorSizeInBytes": 24, "GuaranteedBaseOffsetAlignment": 0,
            },
            "OutputTensor": {
                "DataType": "FLOAT32", "Flags": "NONE", "Sizes": [1, 1, 6, 9], "DimensionCount": 4,
                "TotalTensorSizeInBytes": 216, "GuaranteedBaseOffsetAlignment": 0,
            },
            "Repeats": [1, 1, 3, 3],
            "RepeatsCount": 4,
        },
    }  # fmt: skip
    assert parse_operator(desc.to_document()) == desc


@pytest.mark.parametrize("name", ["DML_OPERATOR_TILE", "TILE", "tile", "Tile", "dml_operator_tile"])
def test_names_of_an_operator(name: str) -> None:
    assert operator_class(name) is TileOperatorDesc
    assert parse_operator({**DXDISPATCH, "type": name}) == parse_operator(DXDISPATCH)


@each("cls", OPERATORS, ids=lambda cls: cls.operator_type)
def test_every_operator_is_found(cls: type[OperatorDesc]) -> None:
    assert operator_class(cls.operator_type) is cls
    assert operator_class(f"DML_OPERATOR_{cls.operator_type}") is cls


def test_every_synonym_means_an_operator() -> None:
    assert {*_SYNONYMS.values()} <= {*operator_names()}
    assert not {*_SYNONYMS} & {*operator_names()}
    with pytest.raises(UnknownOperator, match="did you mean 'ELEMENT_WISE_IDENTITY' with Strides in another order"):
        operator_class("transpose")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("TYLE", "TILE"), ("DML_OPERATOR_TILES", "TILE"), ("resample 2", "RESAMPLE2"), ("RESAMPLE4", None),
     ("DML_OPERATOR_UPSAMPLE_3D", "UPSAMPLE_2D"), ("add", "ELEMENT_WISE_ADD"), ("relu", "ACTIVATION_RELU"),
     ("max", "ELEMENT_WISE_MAX"), ("conv", "CONVOLUTION"), ("pad", "PADDING"), ("Concat", "JOIN"), ("cat", "JOIN"),
     ("resize", "RESAMPLE"), ("pow", "ELEMENT_WISE_POW"), ("mul", "ELEMENT_WISE_MULTIPLY"), ("matmul", "GEMM"),
     ("sub", "ELEMENT_WISE_SUBTRACT"), ("div", "ELEMENT_WISE_DIVIDE"), ("sum", "REDUCE")],
)  # fmt: skip
def test_an_unknown_operator_gets_the_nearest_name(name: str, nearest: str | None) -> None:
    with pytest.raises(UnknownOperator) as error:
        parse_operator({**DXDISPATCH, "type": name})
    guess = error.value.extra["nearest"]
    if nearest is None:  # several are as near; any of them helps
        assert guess.startswith("RESAMPLE")
    else:
        assert guess == nearest
    assert str(error.value) == f"there is no operator {name!r} here; did you mean {guess!r}?"


@pytest.mark.parametrize(
    "name",
    ["", "CONVOLUTION_OF_THINGS", "DML_OPERATOR_", "\ud800", "t\u0131le", "TILE ", "TILE\0", "\U0001f642", "T" * 10**6,
     "\uff34\uff29\uff2c\uff25"],
    ids=lambda name: name[:12].encode("ascii", "backslashreplace").decode(),
)  # fmt: skip
def test_what_is_no_operator(name: str) -> None:
    with pytest.raises(UnknownOperator) as error:
        operator_class(name)
    assert len(str(error.value)) < 300
    json.dumps(error.value.to_problem(404), ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize(
    ("document", "want"),
    [
        (None, [["document", "$"]]),
        ([], [["document", "$"]]),
        ("TILE", [["document", "$"]]),
        ({}, [["document", "$.desc"], ["document", "$.type"]]),
        ({"type": 70, "desc": {}}, [["document", "$.type"]]),
        ({"type": None, "desc": None}, [["document", "$.desc"], ["document", "$.type"]]),
        ({"type": "TILE"}, [["document", "$.desc"]]),
        ({"type": "TILE", "desc": []}, [["document", "$.desc"]]),
        ({"type": "TILE", "desc": {1: 2}}, [["document", "$.desc"]]),
        ({**DXDISPATCH, "name": "x"}, [["document", "$.name"]]),
        ({**DXDISPATCH, None: "x"}, [["document", "$.None"]]),
        ({"type": "TILE", "desc": {"bar": 2}, "foo": 1},
         [["document", "$.foo"], ["field-missing", "$.desc.InputTensor"], ["field-missing", "$.desc.OutputTensor"],
          ["field-missing", "$.desc.Repeats"], ["field-unknown", "$.desc.bar"]]),
        ({"type": "TILE", "desc": {}},
         [["field-missing", "$.desc.InputTensor"], ["field-missing", "$.desc.OutputTensor"],
          ["field-missing", "$.desc.Repeats"]]),
    ],
)  # fmt: skip
def test_broken_documents(document: Any, want: list[list[str]]) -> None:
    assert found(refusal(document)) == want


def test_paths_start_at_the_root_and_go_through_the_long_form() -> None:
    desc: dict[str, Any] = json.loads(json.dumps(DXDISPATCH["desc"]))
    desc["InputTensor"]["Desc"]["Sizes"][2] = 0
    desc["OutputTensor"]["Strides"] = [1, 1, 1, 1]
    desc["Repeats"][1] = 0
    assert found(refusal({"type": "TILE", "desc": desc})) == [
        ["repeat-zero", "$.desc.Repeats[1]"],
        ["size-zero", "$.desc.InputTensor.Desc.Sizes[2]"],
        ["strides-overlap", "$.desc.OutputTensor.Strides"],
    ]


def test_the_first_violation_speaks_for_all() -> None:
    error = refusal({"type": "TILE", "desc": {"InputTensor": TENSOR, "OutputTensor": TENSOR, "Repeats": [1, 1, 0, 0]}})
    assert str(error).splitlines() == [
        "$.desc.Repeats[2]: every repeat must be larger than 0 (and 1 more)",
        "  $.desc.Repeats[3]: every repeat must be larger than 0",
    ]


def test_an_output_may_be_left_out_only_if_asked_for() -> None:
    document = {"type": "TILE", "desc": {"InputTensor": TENSOR, "Repeats": [1, 1, 3, 3]}}
    assert parse_operator(document, complete=True) == parse_operator(DXDISPATCH)
    assert found(refusal(document)) == [["field-missing", "$.desc.OutputTensor"]]


@pytest.mark.parametrize(
    ("desc", "want"),
    [
        ({"InputTensor": TENSOR, "Repeats": [1, 1, 0, 3]}, [["repeat-zero", "$.desc.Repeats[2]"]]),
        ({"InputTensor": TENSOR}, [["field-missing", "$.desc.Repeats"]]),
        ({"Repeats": [1]}, [["field-missing", "$.desc.InputTensor"]]),
        ({}, [["field-missing", "$.desc.InputTensor"], ["field-missing", "$.desc.Repeats"]]),
        ({"InputTensor": {"Sizes": [1]}, "Repeats": [1]}, [["field-missing", "$.desc.InputTensor.DataType"]]),
        ({"InputTensor": {"DataType": "FLOAT32", "Sizes": [0]}, "Repeats": [0]},
         [["repeat-zero", "$.desc.Repeats[0]"], ["size-zero", "$.desc.InputTensor.Sizes[0]"]]),
        ({"InputTensor": {"Desc": {"DataType": "UNKNOWN", "Sizes": [0]}}, "Repeats": [1, 1], "RepeatsCount": 9},
         [["array-length", "$.desc.Repeats"], ["count-disagrees", "$.desc.RepeatsCount"],
          ["data-type-unknown", "$.desc.InputTensor.Desc.DataType"],
          ["size-zero", "$.desc.InputTensor.Desc.Sizes[0]"]]),
        ({"InputTensor": TENSOR, "Repeats": [1, 1, 2, 2], "OutputTensor": None},
         [["not-an-object", "$.desc.OutputTensor"]]),
        ({"InputTensor": TENSOR, "Repeats": [1, 1, 2, 2], "Output": {}}, [["field-unknown", "$.desc.Output"]]),
        ({"InputTensor": TENSOR, "Repeats": [2**31, 1, 1, 2]}, [["too-many-elements", "$.desc.OutputTensor.Sizes"]]),
    ],
)  # fmt: skip
def test_an_output_that_was_left_out_is_not_blamed_for_the_rest(desc: Any, want: list[list[str]]) -> None:
    assert found(refusal({"type": "TILE", "desc": desc}, complete=True)) == want


@each("cls", OPERATORS, ids=lambda cls: cls.operator_type)
def test_every_operator_refuses_an_empty_description_with_its_fields(cls: type[OperatorDesc]) -> None:
    for complete in (False, True):
        error = refusal({"type": cls.operator_type, "desc": {}}, complete=complete)
        assert {violation.code for violation in error.violations} == {"field-missing"}
        assert all(violation.path[0] == "desc" for violation in error.violations)


@each("cls", OPERATORS, ids=lambda cls: cls.operator_type)
def test_every_operator_refuses_odd_keys(cls: type[OperatorDesc]) -> None:
    fields = [info.alias for name, info in cls.model_fields.items() if name.endswith("_tensor")]
    for complete in (False, True):
        error = refusal({"type": cls.operator_type, "desc": {str(f): {1: 2} for f in fields}}, complete=complete)
        assert {("not-an-object", f"$.desc.{field}") for field in fields} <= {tuple(pair) for pair in found(error)}


@settings(max_examples=60, deadline=None)
@given(tile_descs())
def test_documents_read_back(desc: TileOperatorDesc) -> None:
    document = json.loads(desc.to_document_text())
    assert parse_operator(document) == desc
    long = {**document["desc"], "InputTensor": {"Type": "BUFFER", "Desc": document["desc"]["InputTensor"]}}
    assert parse_operator({"type": "tile", "desc": long}) == desc


def test_all_operators_with_the_whole_name_are_suggested() -> None:
    suggested = "did you mean 'ELEMENT_WISE_QUANTIZE_LINEAR' or 'DYNAMIC_QUANTIZE_LINEAR'?"
    with pytest.raises(UnknownOperator, match=re.escape(suggested)) as error:
        operator_class("DML_OPERATOR_QUANTIZE_LINEAR")
    assert error.value.extra["nearest"] == "ELEMENT_WISE_QUANTIZE_LINEAR"


def test_a_field_of_the_same_words_is_suggested() -> None:
    fields = {"InputTensor": {}, "PaddingStart": [0]}
    with pytest.raises(InvalidDescriptor, match="'PaddingStart'; did you mean 'StartPadding'"):
        operator_class("MAX_POOLING")(**fields)
