"""`TileOperatorDesc` against the DML_TILE_OPERATOR_DESC page, and the oracle against the page's examples."""

import json
import pickle
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import oracles
from tests.support.batches import each
from tests.support.strategies import DATA_TYPE_BITS, TILE_DATA_TYPES, tile_cases, tile_descs

from tensorpost.descriptors import BufferTensorDesc, FeatureLevel, TileOperatorDesc
from tensorpost.values.datatypes import TensorDataType
from tensorpost.values.problems import InvalidDescriptor, UnsupportedAtLevel

FLOATS = {"FLOAT32", "FLOAT16"}
TO_32 = FLOATS | {"INT32", "INT16", "INT8", "UINT32", "UINT16", "UINT8"}
TO_64 = TO_32 | {"INT64", "UINT64"}
TO_DOUBLE = TO_64 | {"FLOAT64"}  # which the page has not, and DirectML takes
# Every level of the enum, with what the page's tables say holds there; 1_0, 2_1, 3_1 and 4_1 have tables of their own,
# and levels are strict supersets.
SUPPORT = {
    "1_0": (range(4, 5), FLOATS), "2_0": (range(4, 5), FLOATS), "2_1": (range(4, 5), TO_32),
    "3_0": (range(4, 5), TO_32), "3_1": (range(1, 9), TO_32), "4_0": (range(1, 9), TO_32),
    "4_1": (range(1, 9), TO_64), "5_0": (range(1, 9), TO_DOUBLE), "5_1": (range(1, 9), TO_DOUBLE),
    "5_2": (range(1, 9), TO_DOUBLE), "6_0": (range(1, 9), TO_DOUBLE), "6_1": (range(1, 9), TO_DOUBLE),
    "6_2": (range(1, 9), TO_DOUBLE), "6_3": (range(1, 9), TO_DOUBLE), "6_4": (range(1, 9), TO_DOUBLE),
}  # fmt: skip


def tensor(name: str, dims: Any, **more: Any) -> BufferTensorDesc:
    return BufferTensorDesc(data_type=name, sizes=dims, **more)


def refusal(**fields: Any) -> InvalidDescriptor:
    with pytest.raises(InvalidDescriptor) as error:
        TileOperatorDesc(**fields)
    return error.value


def found(error: InvalidDescriptor) -> list[list[str]]:
    return sorted([violation.code, violation.where] for violation in error.violations)


# The values, by the page's examples: a check of the oracle that the kernels are held to


@pytest.mark.parametrize(
    ("source", "values", "repeats", "want"),
    [
        ({"sizes": (2, 3)}, [1, 2, 3, 4, 5, 6], (2, 2), [1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6] * 2),
        ({"sizes": (3,)}, [7, 8, 9], (2,), [7, 8, 9, 7, 8, 9]),
        ({"sizes": (2, 3), "strides": (0, 1)}, [1, 2, 3], (1, 2), [1, 2, 3, 1, 2, 3] * 2),
        ({"sizes": (2, 2)}, [1, 2, 3, 4], (1, 1), [1, 2, 3, 4]),
    ],
    ids=["both dimensions", "whole blocks", "broadcast", "a copy"],
)
def test_worked_examples(source: dict[str, Any], values: list[int], repeats: Any, want: list[int]) -> None:
    desc = TileOperatorDesc.of(BufferTensorDesc(data_type="UINT32", **source), repeats)
    result = oracles.tile_oracle(desc, oracles.pack_elements(TensorDataType.UINT32, values))
    assert oracles.read_values(desc.output_tensor, result) == want


def test_coordinate_3_4_of_the_first_example_reads_1_1() -> None:
    desc = TileOperatorDesc.of(tensor("UINT32", (2, 3)), (2, 2))
    assert desc.output_tensor.sizes == (4, 6)
    result = oracles.tile_oracle(desc, oracles.pack_elements(TensorDataType.UINT32, [1, 2, 3, 4, 5, 6]))
    assert desc.output_tensor.view(result)[3, 4] == 5


def test_the_oracle_leaves_zeros_in_the_padding() -> None:
    desc = TileOperatorDesc(
        input_tensor=tensor("UINT8", (2,)), output_tensor=tensor("UINT8", (2, ), strides=(2,)), repeats=(1,)
    )  # fmt: skip
    assert oracles.tile_oracle(desc, b"\x07\x08\xff\xff") == b"\x07\x00\x08\x00"


def test_the_oracle_refuses_to_read_outside() -> None:
    desc = TileOperatorDesc.of(tensor("UINT16", (3,)), (2,))
    with pytest.raises(oracles.OutsideBuffer):
        oracles.tile_oracle(desc, bytes(5))


@settings(max_examples=60, deadline=None)
@given(tile_cases(max_elements=256))
def test_the_oracle_agrees_with_numpy(case: tuple[TileOperatorDesc, bytes]) -> None:
    desc, buffer = case
    want = np.tile(desc.input_tensor.view(buffer), desc.repeats)
    got = desc.output_tensor.view(oracles.tile_oracle(desc, buffer))
    assert want.shape == got.shape
    assert want.tobytes() == got.tobytes()  # bytes, so that NaNs count


# What is refused


@pytest.mark.parametrize(
    ("output", "repeats", "count", "want"),
    [
        (("FLOAT32", (2, 3)), (1, 0), None, [["repeat-zero", "$.Repeats[1]"]]),
        (("FLOAT32", (2, 3)), (0, 0), None, [["repeat-zero", "$.Repeats[0]"], ["repeat-zero", "$.Repeats[1]"]]),
        (("FLOAT32", (2, 5)), (1, 2), None, [["output-sizes", "$.OutputTensor.Sizes"]]),
        (("FLOAT32", (2, 3)), (1, 2), None, [["output-sizes", "$.OutputTensor.Sizes"]]),
        (("FLOAT16", (2, 6)), (1, 2), None, [["data-types-differ", "$.OutputTensor.DataType"]]),
        (("FLOAT32", (2, 6, 1)), (1, 2), None, [["dimension-counts-differ", "$.OutputTensor.Sizes"]]),
        (("FLOAT32", (2, 6)), (2,), None, [["array-length", "$.Repeats"]]),
        (("FLOAT32", (2, 6)), (1, 2, 1), None, [["array-length", "$.Repeats"]]),
        (("FLOAT32", (2, 6)), (1, 2), 3, [["count-disagrees", "$.RepeatsCount"]]),
        (("FLOAT32", (2, 6)), (1, 2), 0, [["count-disagrees", "$.RepeatsCount"]]),
        (("FLOAT32", (2, 6)), (), None, [["dimension-count", "$.Repeats"]]),
        (("FLOAT32", (2, 6)), (1,) * 9, None, [["dimension-count", "$.Repeats"]]),
        (("FLOAT32", (2, 6)), (1, -2), None, [["out-of-range", "$.Repeats[1]"]]),
        (("FLOAT32", (2, 6)), (1, 2.0), None, [["not-an-integer", "$.Repeats[1]"]]),
        (("FLOAT32", (2, 6)), (1, True), None, [["not-an-integer", "$.Repeats[1]"]]),
        (("FLOAT32", (2, 6)), "12", None, [["not-an-array", "$.Repeats"]]),
    ],
)  # fmt: skip
def test_refused(output: tuple[str, Any], repeats: Any, count: int | None, want: list[list[str]]) -> None:
    counts = {} if count is None else {"repeats_count": count}
    error = refusal(
        input_tensor=tensor("FLOAT32", (2, 3)), output_tensor=tensor(*output), repeats=repeats, **counts
    )  # fmt: skip
    assert found(error) == want


@pytest.mark.parametrize(
    ("layout", "want"),
    [
        ({"strides": (0, 1)}, ["strides-overlap", "$.OutputTensor.Strides"]),
        ({"strides": (5, 1)}, ["strides-overlap", "$.OutputTensor.Strides"]),
        ({"flags": "OWNED_BY_DML"}, ["owned-output", "$.OutputTensor.Flags"]),
    ],
)
def test_outputs_are_one_to_one_and_not_owned(layout: dict[str, Any], want: list[str]) -> None:
    fields = {"input_tensor": tensor("FLOAT32", (2, 3)), "repeats": (1, 2)}
    assert found(refusal(output_tensor=tensor("FLOAT32", (2, 6), **layout), **fields)) == [want]
    # The same layout is fine for an input.
    TileOperatorDesc.of(tensor("FLOAT32", (2, 6), **layout), (1, 1))


def test_a_stride_of_0_is_fine_where_the_output_has_one_element() -> None:
    output = tensor("FLOAT32", (1, 6), strides=(0, 1))
    assert TileOperatorDesc(input_tensor=tensor("FLOAT32", (1, 3)), output_tensor=output, repeats=(1, 2))


def test_everything_wrong_is_said_at_once() -> None:
    error = refusal(
        InputTensor={"DataType": "FLOAT32", "Sizes": [0, 3], "GuaranteedBaseOffsetAlignment": 3},
        OutputTensor={"Type": "BUFFER", "Desc": {"DataType": "FLOAT16", "Sizes": [2, 3, 1], "Strides": [0, 1, 1]}},
        Repeats=[0, 1, 1],
        RepeatsCount=7,
    )
    assert found(error) == [
        ["alignment", "$.InputTensor.GuaranteedBaseOffsetAlignment"],
        ["array-length", "$.Repeats"],
        ["count-disagrees", "$.RepeatsCount"],
        ["data-types-differ", "$.OutputTensor.Desc.DataType"],
        ["dimension-counts-differ", "$.OutputTensor.Desc.Sizes"],
        ["repeat-zero", "$.Repeats[0]"],
        ["size-zero", "$.InputTensor.Sizes[0]"],
        ["strides-overlap", "$.OutputTensor.Desc.Strides"],
    ]


def test_what_cannot_be_read_and_what_breaks_a_rule_are_said_together() -> None:
    error = refusal(
        InputTensor={"DataType": "FLOAT32", "Sizes": [0, 3]},
        OutputTensor={"DataType": "FLOAT31", "Sizes": [2, 3]},
        Repeats=[1, "1"],
        Repeat=[1],
    )
    assert found(error) == [
        ["enum-unknown", "$.OutputTensor.DataType"],
        ["field-unknown", "$.Repeat"],
        ["not-an-integer", "$.Repeats[1]"],
        ["size-zero", "$.InputTensor.Sizes[0]"],
    ]


@pytest.mark.parametrize("value", [None, 3, "FLOAT32", [], [1, 2], True, {1: 2}])
def test_a_tensor_is_an_object(value: Any) -> None:
    error = refusal(input_tensor=tensor("FLOAT32", (2,)), output_tensor=value, repeats=(1,))
    assert found(error) == [["not-an-object", "$.OutputTensor"]]
    assert "OutputTensor must be a JSON object" in str(error)


# An output that follows from the rest


@pytest.mark.parametrize(
    "repeats", [(1, 2), [1, 2], np.array([1, 2]), [np.int64(1), np.uint8(2)], np.array([1, 2], np.uint16)], ids=repr
)
def test_of(repeats: Any) -> None:
    desc = TileOperatorDesc.of(tensor("FLOAT16", (2, 3), strides=(5, 1)), repeats)
    assert desc.repeats == (1, 2)
    assert all(type(repeat) is int for repeat in desc.repeats)
    assert desc.output_tensor == BufferTensorDesc.packed("FLOAT16", (2, 6))


@pytest.mark.parametrize(
    ("repeats", "want"),
    [
        ((1, 0), [["repeat-zero", "$.Repeats[1]"]]),
        ((1,), [["array-length", "$.Repeats"]]),
        ((1, 2, 3), [["array-length", "$.Repeats"]]),
        ((1, 2.0), [["not-an-integer", "$.Repeats[1]"]]),
        (np.array([1.0, 2.0]), [["not-an-integer", "$.Repeats[0]"], ["not-an-integer", "$.Repeats[1]"]]),
        ((-1, 1), [["out-of-range", "$.Repeats[0]"]]),
        ("12", [["not-an-array", "$.Repeats"]]),
        (None, [["not-an-array", "$.Repeats"]]),
        (np.array(3), [["not-an-array", "$.Repeats"]]),
    ],
    ids=repr,
)
def test_of_names_what_is_wrong_with_the_repeats_and_not_the_output(repeats: Any, want: list[list[str]]) -> None:
    with pytest.raises(InvalidDescriptor) as error:
        TileOperatorDesc.of(tensor("FLOAT32", (2, 3)), repeats)
    assert found(error.value) == want


@pytest.mark.parametrize(
    ("repeats", "words"),
    [
        (
            (1, 2**31),
            ("Sizes[1]: in the output, Sizes[1] is 6442450944, which does not fit DirectML's UINT: a whole number "
            "from 0 to 4294967295"),
        ),
        ((2**15, 2**16), ("Sizes: in the output, Sizes multiply to 12884901888 elements; a DirectML buffer tensor has "
                          "at most 2^32 - 1 = 4294967295")),
    ],
)  # fmt: skip
def test_of_an_output_that_is_too_large(repeats: Any, words: str) -> None:
    with pytest.raises(InvalidDescriptor) as error:
        TileOperatorDesc.of(tensor("FLOAT32", (2, 3)), repeats)
    assert str(error.value) == "$.OutputTensor." + words


def test_the_largest_output_is_legal() -> None:
    desc = TileOperatorDesc.of(tensor("FLOAT32", (5,)), (858993459,))
    assert desc.output_tensor.sizes == (2**32 - 1,)
    assert desc.output_tensor.total_tensor_size_in_bytes == 17179869180


def test_an_output_that_is_given_is_not_replaced() -> None:
    given_output = {"DataType": "FLOAT32", "Sizes": [9]}
    for name in ("OutputTensor", "output_tensor"):
        document = {"InputTensor": {"DataType": "FLOAT32", "Sizes": [3]}, "Repeats": [2], name: given_output}
        before = json.dumps(document)
        with pytest.raises(InvalidDescriptor) as error:
            TileOperatorDesc.completed(document)
        assert found(error.value) == [["output-sizes", "$.OutputTensor.Sizes"]]
        assert json.dumps(document) == before


def test_complete_reads_either_spelling_and_either_form() -> None:
    short = {"DataType": "FLOAT32", "Sizes": [3]}
    for source in (short, {"Type": "BUFFER", "Desc": short}, BufferTensorDesc(**short)):
        for names in (("InputTensor", "Repeats"), ("input_tensor", "repeats"), ("InputTensor", "repeats")):
            desc = TileOperatorDesc.completed({names[0]: source, names[1]: [2]})
            assert desc == TileOperatorDesc.of(BufferTensorDesc(**short), (2,))


def test_a_misspelt_output_field_is_still_the_callers() -> None:
    with pytest.raises(InvalidDescriptor) as error:
        TileOperatorDesc.completed(
            {"InputTensor": {"DataType": "UINT8", "Sizes": [0]}, "OutputTensor": {"Sizes": [1]}, "Repeats": [1]}
        )
    assert found(error.value) == [
        ["field-missing", "$.OutputTensor.DataType"], ["size-zero", "$.InputTensor.Sizes[0]"]
    ]  # fmt: skip


# Feature levels


def test_the_table_here_has_every_level() -> None:
    assert list(SUPPORT) == [str(level) for level in FeatureLevel]


@each("level", SUPPORT)
@each("name", DATA_TYPE_BITS)
def test_support_at_every_level(level: str, name: str) -> None:
    dims, types = SUPPORT[level]
    for rank in range(1, 9):
        desc = TileOperatorDesc.of(tensor(name, (1,) * rank), (1,) * rank)
        want: list[list[str]] = []
        for field in ("InputTensor", "OutputTensor"):
            want += [["dimension-count-unsupported", f"$.{field}.Sizes"]] if rank not in dims else []
            want += [["data-type-unsupported", f"$.{field}.DataType"]] if name not in types else []
        if want:
            with pytest.raises(UnsupportedAtLevel) as error:
                desc.validate_for(level)
            assert found(error.value) == sorted(want)
        else:
            desc.validate_for(level)


@each("name", DATA_TYPE_BITS)
@each("rank", range(1, 9))
def test_lowest_feature_level(name: str, rank: int) -> None:
    lowest = TileOperatorDesc.of(tensor(name, (2,) * rank), (1,) * rank).lowest_feature_level()
    want = next((level for level, (dims, types) in SUPPORT.items() if rank in dims and name in types), None)
    assert (None if lowest is None else str(lowest)) == want


@pytest.mark.parametrize("name", ["INT4", "UINT4"])
def test_types_that_no_level_supports_say_so(name: str) -> None:
    desc = TileOperatorDesc.of(tensor(name, (1, 1, 2, 4)), (1, 1, 1, 2))
    assert desc.lowest_feature_level() is None
    with pytest.raises(UnsupportedAtLevel) as error:
        desc.validate_for()
    assert error.value.violations[0].message == (
        f"DML_OPERATOR_TILE does not take {name} at feature level 6_4, and no level does; "
        f"it takes {', '.join(('FLOAT64', *TILE_DATA_TYPES))}"
    )
    assert error.value.violations[0].expected == "one of " + ", ".join(("FLOAT64", *TILE_DATA_TYPES))


def test_the_reason_names_the_level_that_does() -> None:
    desc = TileOperatorDesc.of(tensor("INT64", (2, 3)), (1, 2))
    with pytest.raises(UnsupportedAtLevel) as error:
        desc.validate_for("2_0")
    assert [v.message for v in error.value.violations[:2]] == [
        "DML_OPERATOR_TILE takes 4 dimensions at feature level 2_0, not 2; it does from 3_1 on",
        "DML_OPERATOR_TILE does not take INT64 at feature level 2_0; it does from 4_1 on",
    ]


# Values


@settings(max_examples=100, deadline=None)
@given(tile_descs())
def test_the_canonical_document_reads_back_the_same(desc: TileOperatorDesc) -> None:
    document = json.loads(desc.to_document_text())
    assert document == desc.to_document()
    assert document["type"] == "DML_OPERATOR_TILE"
    again = TileOperatorDesc(**document["desc"])
    assert again == desc
    assert hash(again) == hash(desc)
    assert pickle.loads(pickle.dumps(desc)) == desc
    assert again.to_document_text() == desc.to_document_text()


def test_equal_descriptors_are_one_key() -> None:
    first = TileOperatorDesc.of(tensor("FLOAT32", (2, 3)), (1, 2))
    other: dict[str, Any] = {
        "input_tensor": {"DataType": 1, "Sizes": [2, 3]},
        "output_tensor": {"Type": 1, "Desc": {"DataType": "FLOAT32", "Sizes": [2, 6], "DimensionCount": 2}},
        "repeats": np.array([1, 2]),
        "repeats_count": 2,
    }
    second = TileOperatorDesc(**other)
    assert {first: "found"}[second] == "found"


def test_what_a_caller_chooses() -> None:
    assert TileOperatorDesc.fields_of_kind("attribute") == ("repeats_count", "repeats")
    paths = [path for path, _ in TileOperatorDesc.of(tensor("UINT8", (1,)), (1,)).tensors()]
    assert paths == [("input_tensor",), ("output_tensor",)]


# The JSON schema that we publish


def _schema(mode: Any) -> jsonschema.Draft202012Validator:
    schema = TileOperatorDesc.model_json_schema(by_alias=True, mode=mode)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


SCHEMAS = {mode: _schema(mode) for mode in ("validation", "serialization")}


@settings(max_examples=50, deadline=None)
@given(tile_descs(), st.sampled_from(("validation", "serialization")))
def test_the_schema_accepts_what_we_write(desc: TileOperatorDesc, mode: str) -> None:
    SCHEMAS[mode].validate(desc.to_json())


@pytest.mark.parametrize(
    "change",
    [
        {"Repeats": []}, {"Repeats": [1] * 9}, {"Repeats": [-1]}, {"Repeats": "1"}, {"Repeats": None},
        {"RepeatsCount": "1"}, {"InputTensor": None}, {"OutputTensor": []}, {"Repeat": [1]},
        {"InputTensor": {"DataType": "FLOAT32"}}, {"InputTensor": {"DataType": "F32", "Sizes": [1]}},
    ],
)  # fmt: skip
def test_the_schema_refuses(change: dict[str, Any]) -> None:
    good = TileOperatorDesc.of(tensor("FLOAT32", (2,)), (2,)).to_json()
    for validator in SCHEMAS.values():
        validator.validate(good)
        assert not validator.is_valid({**good, **change})
    for missing in ("InputTensor", "OutputTensor", "Repeats"):
        assert not SCHEMAS["validation"].is_valid({key: value for key, value in good.items() if key != missing})
