"""Rules, completions, levels and documents of all operators, by table.

What each operator rejects stands beside its numbers, in the `rejected` cases of `tests/vectors/<operator>.json`.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.batches import each
from tests.support.vectors import Rejected, VectorsFile, vectors_files

from tensorpost.descriptors import (
    OPERATORS,
    ActivationGeluOperatorDesc,
    ActivationReluOperatorDesc,
    BufferTensorDesc,
    ConvolutionOperatorDesc,
    ElementWiseAddOperatorDesc,
    ElementWiseClipOperatorDesc,
    FeatureLevel,
    GemmOperatorDesc,
    OperatorDesc,
    Padding1OperatorDesc,
    ReduceOperatorDesc,
    ScaleBias,
    Slice1OperatorDesc,
    parse_operator,
)
from tensorpost.descriptors.catalogue import facts_of
from tensorpost.onnx import OnnxNode
from tensorpost.values.problems import InvalidDescriptor, UnsupportedAtLevel, json_path

FILES = [file for file in vectors_files() if not file.path.startswith("onnx/")]
BY_FILE = each("file", FILES, ids=str)
TRAINING = "Training: gradients and optimizer"
REJECTED = [(file, case) for file in vectors_files() for case in file.rejected]


def tensor(data_type: str, *sizes: int, **fields: Any) -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes), **fields}


def completed(operator: str, **desc: Any) -> Any:
    return parse_operator({"type": operator, "desc": desc}, complete=True)


def descs(file: VectorsFile) -> list[OperatorDesc]:
    found = [case.desc for case in file.cases]
    assert not any(isinstance(desc, OnnxNode) for desc in found)
    return found  # pyright: ignore[reportReturnType] # as was just seen


# ---- what is rejected ------------------------------------------------------------------------------------------------


@each("file, case", REJECTED, ids=[f"{file}, {case.name}" for file, case in REJECTED])
def test_everything_that_is_wrong_is_named_at_once(file: VectorsFile, case: Rejected) -> None:
    case.check()


@each("document", [case.document for _, case in REJECTED], ids=[case.name for _, case in REJECTED])
def test_a_violation_explains_itself(document: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidDescriptor) as error:
        parse_operator(document, complete=True)
    for violation in error.value.violations:
        assert violation.message[-1] != "."
        assert len(violation.message) > 10
        assert violation.source
        assert violation.expected or violation.code == "field-missing"
        json.dumps(violation.to_json())


def test_every_family_has_rejected_cases() -> None:
    """Tile's and the Resample family's rules have files of their own here; a new operator may share a family's."""
    rejecting = {facts_of(file.operator).family for file in FILES if len(file.rejected) > 2}
    assert {cls.facts.family for cls in OPERATORS} - rejecting <= {"Imaging and resampling", TRAINING}
    assert len(REJECTED) > 100


T4 = tensor("FLOAT32", 2, 3, 4, 5)
WINDOW: dict[str, Any] = {"StartPadding": [0, 0], "EndPadding": [0, 0]}


@pytest.mark.parametrize(
    ("operator", "fields", "path"),
    [
        ("JOIN", {"InputTensors": [T4, T4], "Axis": 9}, "$.Axis"),
        ("SPLIT", {"InputTensor": T4, "OutputCount": 2, "Axis": 4}, "$.Axis"),
        ("TOP_K", {"InputTensor": T4, "Axis": 9, "K": 1}, "$.Axis"),
        ("GATHER", {"InputTensor": T4, "IndicesTensor": tensor("UINT32", 1, 1, 1, 2), "Axis": 9}, "$.Axis"),
        (
            "GATHER",
            {"InputTensor": T4, "IndicesTensor": tensor("UINT32", 1, 1, 1, 2), "Axis": 0, "IndexDimensions": 9},
            "$.IndexDimensions",
        ),
        ("ONE_HOT", {"IndicesTensor": T4, "ValuesTensor": tensor("FLOAT32", 1, 1, 1, 2), "Axis": 9}, "$.Axis"),
        ("MAX_POOLING", {"InputTensor": T4, "WindowSize": [1, 1], "Strides": [0, 1], **WINDOW}, "$.Strides[0]"),
        (
            "CONVOLUTION",
            {
                "InputTensor": T4, "FilterTensor": T4, "Mode": "CROSS_CORRELATION", "Direction": "FORWARD",
                "Strides": [1, 0], "Dilations": [1, 1], "OutputPadding": [0, 0], "GroupCount": 1, **WINDOW,
            },
            "$.Strides[1]",
        ),
        ("SPLIT", {"InputTensor": T4, "OutputCount": 2, "Axis": 1}, "$.OutputTensors"),  # 3 elements are not halved
    ],
)  # fmt: skip
def test_an_attribute_is_blamed_and_not_the_output_that_it_hides(operator: str, fields: Any, path: str) -> None:
    with pytest.raises(InvalidDescriptor) as refused:
        completed(operator, **fields)

    assert [json_path(v.path) for v in refused.value.violations] == [path.replace("$", "$.desc")]
    if path == "$.Axis":
        assert refused.value.violations[0].message.endswith("there are 4 dimensions: 0 to 3")


# ---- documents -------------------------------------------------------------------------------------------------------


@BY_FILE
def test_documents_read_back(file: VectorsFile) -> None:
    for desc in descs(file):
        text = desc.to_document_text()
        again = parse_operator(json.loads(text))
        assert again == desc
        assert again.to_document_text() == text, "it is canonical"


@BY_FILE
def test_descriptors_are_values(file: VectorsFile) -> None:
    for desc in descs(file):
        copy = pickle.loads(pickle.dumps(desc))
        assert copy == desc
        assert hash(copy) == hash(desc)
        assert desc.model_copy() == desc
        with pytest.raises(Exception, match="frozen"):
            desc.operator_type_that_there_is_not = 1  # pyright: ignore[reportAttributeAccessIssue] # on purpose
    assert len(set(descs(file))) == len({desc.to_document_text() for desc in descs(file)})


@BY_FILE
def test_operations_say_where_they_go_and_what_travels(file: VectorsFile) -> None:
    for desc in descs(file):
        assert desc.endpoint == f"/v1/operators/{file.operator.lower()}"
        assert desc.name == file.operator
        names = [slot.name for slot in (*desc.inputs, *desc.outputs)]
        assert len(set(names)) == len(names)
        assert not any(name.endswith("_tensor") for name in names)
        assert len(desc.outputs) > 1 or [slot.name for slot in desc.outputs] == ["output"]
        assert len(list(desc.tensors())) == len(desc.inputs) + len(desc.outputs)


def test_names_of_slots() -> None:
    split = completed("SPLIT", InputTensor=tensor("FLOAT32", 4), OutputCount=2, Axis=0)
    assert [slot.name for slot in split.outputs] == ["output_0", "output_1"]
    assert [path for path, _ in split.tensors("output")] == [("output_tensors", 0), ("output_tensors", 1)]
    join = completed("JOIN", InputTensors=[tensor("FLOAT32", 4)] * 3, Axis=0)
    assert [slot.name for slot in join.inputs] == ["input_0", "input_1", "input_2"]
    gemm = completed("GEMM", ATensor=tensor("FLOAT32", 2, 2), BTensor=tensor("FLOAT32", 2, 2))
    assert [slot.name for slot in gemm.inputs] == ["a", "b"], "C is absent"
    top_k = completed("TOP_K1", InputTensor=tensor("FLOAT32", 4), Axis=0, K=2)
    assert [slot.name for slot in top_k.outputs] == ["output_value", "output_index"]
    one = completed("SPLIT", InputTensor=tensor("FLOAT32", 4), OutputCount=1, Axis=0)
    assert [slot.name for slot in one.outputs] == ["output"], "a sole output is named output, whatever its field"
    assert not completed("FILL_VALUE_SEQUENCE", OutputTensor=tensor("INT8", 4), ValueStart=0, ValueDelta=1).inputs


# ---- completion ------------------------------------------------------------------------------------------------------

F, H = "FLOAT32", "FLOAT16"


@pytest.mark.parametrize(
    ("operator", "desc", "follows"),
    [
        ("ELEMENT_WISE_ABS", {"InputTensor": tensor(H, 2, 3, Strides=[0, 1])}, {"OutputTensor": tensor(H, 2, 3)}),
        ("ELEMENT_WISE_ADD", {"ATensor": tensor("INT8", 2), "BTensor": tensor("INT8", 2)},
         {"OutputTensor": tensor("INT8", 2)}),
        ("ELEMENT_WISE_IF", {"ConditionTensor": tensor("UINT8", 2), "ATensor": tensor(H, 2), "BTensor": tensor(H, 2)},
         {"OutputTensor": tensor(H, 2)}),
        ("SLICE1", {"InputTensor": tensor(F, 9, 4), "InputWindowOffsets": [1, 0], "InputWindowSizes": [8, 4],
                    "InputWindowStrides": [-3, 4]}, {"OutputTensor": tensor(F, 3, 1), "DimensionCount": 2}),
        ("JOIN", {"InputTensors": [tensor(F, 2, 1), tensor(F, 2, 3)], "Axis": 1},
         {"OutputTensor": tensor(F, 2, 4), "InputCount": 2}),
        ("SPLIT", {"InputTensor": tensor(F, 6, 2), "OutputCount": 3, "Axis": 0},
         {"OutputTensors": [tensor(F, 2, 2)] * 3}),
        ("PADDING1", {"InputTensor": tensor("INT16", 2), "PaddingMode": "EDGE", "StartPadding": [1], "EndPadding": [3]},
         {"OutputTensor": tensor("INT16", 6), "PaddingValueDataType": "INT16", "PaddingValue": 0, "DimensionCount": 1}),
        ("GATHER", {"InputTensor": tensor(F, 5, 2), "IndicesTensor": tensor("UINT32", 1, 3), "Axis": 0},
         {"OutputTensor": tensor(F, 3, 2), "IndexDimensions": 1}),
        ("GATHER", {"InputTensor": tensor(F, 5), "IndicesTensor": tensor("UINT32", 1), "Axis": 0},
         {"OutputTensor": tensor(F, 1), "IndexDimensions": 0}),
        ("SCATTER_ELEMENTS", {"InputTensor": tensor(F, 5), "IndicesTensor": tensor("INT32", 2),
                              "UpdatesTensor": tensor(F, 2), "Axis": 0}, {"OutputTensor": tensor(F, 5)}),
        ("NONZERO_COORDINATES", {"InputTensor": tensor(F, 2, 3)},
         {"OutputCountTensor": tensor("UINT32", 1), "OutputCoordinatesTensor": tensor("UINT32", 6, 2)}),
        ("REDUCE", {"Function": "SUM", "InputTensor": tensor(F, 2, 3, 4), "Axes": [0, 2]},
         {"OutputTensor": tensor(F, 1, 3, 1), "AxisCount": 2}),
        ("REDUCE", {"Function": "DML_REDUCE_FUNCTION_ARGMIN", "InputTensor": tensor(F, 2, 3), "Axes": [1]},
         {"OutputTensor": tensor("UINT32", 2, 1)}),
        ("REDUCE", {"Function": 0, "InputTensor": tensor("INT8", 2, 3), "Axes": [1]},
         {"OutputTensor": tensor("UINT32", 2, 1)}),
        ("TOP_K1", {"InputTensor": tensor(H, 2, 9), "Axis": 1, "K": 4},
         {"OutputValueTensor": tensor(H, 2, 4), "OutputIndexTensor": tensor("UINT32", 2, 4),
          "AxisDirection": "DECREASING"}),
        ("FILL_VALUE_SEQUENCE", {"OutputTensor": tensor("INT8", 2), "ValueStart": 0, "ValueDelta": 1},
         {"ValueDataType": "INT8"}),
        ("GEMM", {"ATensor": tensor(F, 2, 5, 3), "BTensor": tensor(F, 2, 4, 5), "TransA": 1, "TransB": "TRANSPOSE"},
         {"OutputTensor": tensor(F, 2, 3, 4), "Alpha": 1.0, "Beta": 1.0}),
        ("CONVOLUTION", {"InputTensor": tensor(F, 2, 4, 9), "FilterTensor": tensor(F, 6, 2, 3), "GroupCount": 2,
                         "Strides": [2], "StartPadding": [1]},
         {"OutputTensor": tensor(F, 2, 6, 4), "Mode": "CROSS_CORRELATION", "Direction": "FORWARD", "Dilations": [1],
          "DimensionCount": 1}),
        ("CONVOLUTION", {"InputTensor": tensor(F, 1, 6, 2, 2), "FilterTensor": tensor(F, 6, 2, 3, 3), "GroupCount": 2,
                         "Direction": "BACKWARD", "Strides": [2, 2], "OutputPadding": [0, 1]},
         {"OutputTensor": tensor(F, 1, 4, 5, 6)}),
    ],
)  # fmt: skip
def test_what_follows_is_filled_in(operator: str, desc: dict[str, Any], follows: dict[str, Any]) -> None:
    found = completed(operator, **desc)
    document = found.to_json()
    assert {name: shown(document[name]) for name in follows} == follows
    assert found == parse_operator(found.to_document())


def shown(value: Any) -> Any:
    """A tensor by its type and sizes."""
    if isinstance(value, list):
        return [shown(item) for item in value]
    return {name: value[name] for name in ("DataType", "Sizes")} if isinstance(value, dict) else value


@BY_FILE
def test_what_was_given_is_not_replaced(file: VectorsFile) -> None:
    for desc in descs(file):
        assert parse_operator(desc.to_document(), complete=True) == desc


@pytest.mark.parametrize(
    "value", [None, 7, "x", {"a": 1}, [[1]], 2**70]
)  # more in tests/attacks/test_descriptor_attacks.py
@each("cls", OPERATORS, ids=lambda cls: cls.operator_type)
def test_nonsense_in_every_field_is_refused_and_never_breaks(cls: type[OperatorDesc], value: Any) -> None:
    names = [str(info.alias) for info in cls.model_fields.values()]
    for complete in (False, True):
        with pytest.raises(InvalidDescriptor) as error:
            parse_operator({"type": cls.operator_type, "desc": dict.fromkeys(names, value)}, complete=complete)
        assert all(violation.path[0] == "desc" for violation in error.value.violations)


# ---- levels ----------------------------------------------------------------------------------------------------------


@BY_FILE
def test_from_its_lowest_level_on_a_descriptor_is_legal(file: VectorsFile) -> None:
    for desc in descs(file):
        lowest = desc.lowest_feature_level()
        assert lowest is not None
        for level in FeatureLevel:
            legal = not any(desc.unsupported_at(level))
            assert legal == (level >= lowest), (desc, level)


ABS = {"InputTensor": tensor(F, 1, 1, 2, 3)}
GEMM_2D = {"ATensor": tensor(F, 2, 2), "BTensor": tensor(F, 2, 2)}
GEMM_4D = {"ATensor": tensor(F, 1, 1, 2, 2), "BTensor": tensor(F, 1, 1, 2, 2)}
PADDING = {"StartPadding": [1, 0, 0, 0], "EndPadding": [0, 0, 0, 0], "InputTensor": tensor(F, 2, 1, 1, 1)}


@pytest.mark.parametrize(
    ("operator", "desc", "level"),
    [
        ("ELEMENT_WISE_ABS", ABS, "1_0"),
        ("ELEMENT_WISE_ABS", {"InputTensor": tensor("INT8", 1, 1, 2, 3)}, "2_1"),
        ("ELEMENT_WISE_ABS", {"InputTensor": tensor(F, 2, 3)}, "3_0"),
        ("ELEMENT_WISE_ABS", {"InputTensor": tensor("UINT8", 2, 3)}, None),
        ("ELEMENT_WISE_EXP", {"InputTensor": tensor("INT32", 2, 3)}, None),
        ("CAST", {"InputTensor": tensor(F, 1, 1, 1, 2), "OutputTensor": tensor("INT8", 1, 1, 1, 2)}, "1_0"),
        ("CAST", {"InputTensor": tensor(F, 2), "OutputTensor": tensor("INT8", 2)}, "3_1"),
        ("CAST", {"InputTensor": tensor("FLOAT64", 1, 1, 1, 2), "OutputTensor": tensor(F, 1, 1, 1, 2)}, "4_1"),
        ("REDUCE", {"Function": "SUM", "InputTensor": tensor("INT32", 1, 1, 2, 2), "Axes": [3]}, "2_1"),
        ("REDUCE", {"Function": "SUM", "InputTensor": tensor("INT8", 1, 1, 2, 2), "Axes": [3]}, None),
        ("REDUCE", {"Function": "MAX", "InputTensor": tensor("INT8", 1, 1, 2, 2), "Axes": [3]}, "3_0"),
        ("REDUCE", {"Function": "L1", "InputTensor": tensor("INT32", 1, 1, 2, 2), "Axes": [3]}, "5_0"),
        ("REDUCE", {"Function": "L2", "InputTensor": tensor("INT32", 1, 1, 2, 2), "Axes": [3]}, None),
        ("REDUCE", {"Function": "ARGMAX", "InputTensor": tensor("INT64", 1, 1, 2, 2), "Axes": [3]}, "4_1"),
        ("REDUCE", {"Function": "ARGMAX", "InputTensor": tensor(F, 1, 1, 2, 2), "Axes": [3]}, "1_0"),
        ("REDUCE", {"Function": "ARGMAX", "InputTensor": tensor(F, 1, 1, 2, 2), "Axes": [3],
                    "OutputTensor": tensor("INT64", 1, 1, 2, 1)}, "3_0"),
        ("GATHER", {"InputTensor": tensor(F, 1, 1, 1, 4), "IndicesTensor": tensor("INT32", 1, 1, 1, 2), "Axis": 3,
                    "IndexDimensions": 1}, "3_0"),
        ("PADDING1", {**PADDING, "PaddingMode": "REFLECTION"}, "5_0"),
        ("PADDING1", {**PADDING, "PaddingMode": "WRAP"}, "6_4"),
        ("GEMM", GEMM_4D, "1_0"),
        ("GEMM", GEMM_2D, "4_0"),
        ("GEMM", {**GEMM_4D, "FusedActivation": {"Type": "ACTIVATION_RELU"}}, "1_0"),
        ("GEMM", {**GEMM_4D, "FusedActivation": {"Type": "ACTIVATION_GELU"}}, "5_1"),
        ("GEMM", {**GEMM_4D, "FusedActivation": {"Type": "ELEMENT_WISE_CLIP", "Desc": {"Min": 0, "Max": 1}}}, "6_0"),
        ("GEMM", {**GEMM_4D, "FusedActivation": {"Type": "ACTIVATION_SOFTMAX"}}, "6_1"),
        ("CONVOLUTION", {"InputTensor": tensor(F, 1, 1, 3), "FilterTensor": tensor(F, 1, 1, 3)}, "4_0"),
        ("CONVOLUTION", {"InputTensor": tensor(F, 1, 1, 1, 3), "FilterTensor": tensor(F, 1, 1, 1, 3),
                         "FusedActivation": {"Type": "ACTIVATION_GELU"}}, "5_1"),
        ("ACTIVATION_GELU", ABS, "5_1"),
        ("NONZERO_COORDINATES", {"InputTensor": tensor(F, 2, 3)}, "4_0"),
    ],
)  # fmt: skip
def test_lowest_feature_level(operator: str, desc: dict[str, Any], level: str | None) -> None:
    found = completed(operator, **desc).lowest_feature_level()
    assert (found if found is None else str(found)) == level


def test_a_level_names_every_tensor_that_it_does_not_support() -> None:
    desc = completed("GATHER", InputTensor=tensor("INT64", 4), IndicesTensor=tensor("INT64", 2), Axis=0)
    with pytest.raises(UnsupportedAtLevel) as error:
        desc.validate_for("2_1")
    assert {(v.code, json_path(v.path)) for v in error.value.violations} == {
        ("dimension-count-unsupported", "$.InputTensor.Sizes"),
        ("dimension-count-unsupported", "$.IndicesTensor.Sizes"),
        ("dimension-count-unsupported", "$.OutputTensor.Sizes"),
        ("data-type-unsupported", "$.InputTensor.DataType"),
        ("data-type-unsupported", "$.IndicesTensor.DataType"),
        ("data-type-unsupported", "$.OutputTensor.DataType"),
    }


def test_tensors_of_an_array_are_named_by_index() -> None:
    join = completed("JOIN", InputTensors=[tensor("INT64", 4), tensor("INT64", 1)], Axis=0)
    with pytest.raises(UnsupportedAtLevel) as error:
        join.validate_for("2_1")
    assert ("data-type-unsupported", "$.InputTensors[1].DataType") in {
        (v.code, json_path(v.path)) for v in error.value.violations
    }


def test_one_region_without_a_dimension_for_regions_breaks_only_the_rank_of_the_levels() -> None:
    regions = {"ROITensor": tensor("FLOAT32", 4), "BatchIndicesTensor": tensor("UINT32", 1)}
    image, output = tensor("FLOAT32", 1, 1, 4, 4), tensor("FLOAT32", 1, 1, 2, 2)
    desc = completed("ROI_ALIGN", InputTensor=image, OutputTensor=output, InterpolationMode="LINEAR", **regions)
    with pytest.raises(UnsupportedAtLevel) as error:
        desc.validate_for("6_4")
    assert [json_path(v.path) for v in error.value.violations] == ["$.ROITensor.Sizes"]


def test_a_mode_and_an_activation_that_are_newer_are_named() -> None:
    padding = completed("PADDING1", PaddingMode="WRAP", **PADDING)
    gemm = completed("GEMM", **GEMM_4D, FusedActivation={"Type": "ACTIVATION_GELU"})
    for desc, level, path in ((padding, "6_3", "$.PaddingMode"), (gemm, "5_0", "$.FusedActivation")):
        with pytest.raises(UnsupportedAtLevel, match="needs feature level") as error:
            desc.validate_for(level)
        assert [json_path(v.path) for v in error.value.violations] == [path]


# ---- structures in fields --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [
        {"Type": "ACTIVATION_RELU"},
        {"type": "DML_OPERATOR_ACTIVATION_RELU", "desc": {}},
        {"Type": "DML_OPERATOR_ACTIVATION_RELU", "Desc": {"InputTensor": None, "OutputTensor": None}},
    ],
)
def test_a_fused_activation_is_read_in_any_spelling(document: Any) -> None:
    gemm = completed("GEMM", **GEMM_2D, FusedActivation=document)
    assert isinstance(gemm.fused_activation, ActivationReluOperatorDesc)
    assert gemm.to_json()["FusedActivation"] == {"Type": "DML_OPERATOR_ACTIVATION_RELU", "Desc": {}}
    assert gemm == completed("GEMM", **GEMM_2D, FusedActivation={"Type": "ACTIVATION_RELU"})
    assert gemm != completed("GEMM", **GEMM_2D, FusedActivation={"Type": "ACTIVATION_GELU"})
    assert gemm != completed("GEMM", **GEMM_2D)
    assert hash(gemm) == hash(parse_operator(gemm.to_document()))


@pytest.mark.parametrize(
    "document",
    [
        {}, [], 7, "ACTIVATION_RELU", {"Type": None}, {"Type": "TILE"}, {"Type": "ACTIVATION_RELUX"},
        {"Type": "ACTIVATION_RELU", "Desc": []}, {"Type": "ACTIVATION_RELU", "More": 1}, {"Type": 44},
        {"Type": "ACTIVATION_RELU", "Desc": {"OutputTensor": tensor(F, 1)}},
        {"Type": "ACTIVATION_RELU", "Desc": {"Alpha": 1}},
    ],
)  # fmt: skip
def test_what_is_no_fused_activation(document: Any) -> None:
    with pytest.raises(InvalidDescriptor) as error:
        completed("GEMM", **GEMM_2D, FusedActivation=document)
    assert [json_path(violation.path) for violation in error.value.violations] == ["$.desc.FusedActivation"]


def test_an_activation_that_was_made_in_python_can_be_fused() -> None:
    x = BufferTensorDesc.packed(F, (2, 2))
    gelu = ActivationGeluOperatorDesc(input_tensor=x, output_tensor=x)
    gemm = GemmOperatorDesc(a_tensor=x, b_tensor=x, output_tensor=x, fused_activation=gelu)
    assert gemm.to_json()["FusedActivation"]["Type"] == "DML_OPERATOR_ACTIVATION_GELU"
    assert parse_operator(gemm.to_document()) == gemm


def test_descriptors_are_made_in_python_with_pythons_names() -> None:
    x = BufferTensorDesc.packed("INT8", (2, 3))
    assert ElementWiseAddOperatorDesc(a_tensor=x, b_tensor=x, output_tensor=x).a_tensor is x
    clip = ElementWiseClipOperatorDesc(
        input_tensor=x, output_tensor=x, min=-1, max=2.5, scale_bias=ScaleBias(scale=2, bias=0.1)
    )
    assert clip.to_json()["ScaleBias"] == {"Scale": 2.0, "Bias": 0.1}, "as short as a FLOAT is"
    assert (clip.min, clip.max) == (-1.0, 2.5)
    sliced = Slice1OperatorDesc(
        input_tensor=x, output_tensor=BufferTensorDesc.packed("INT8", (1, 2)), input_window_offsets=(0, 0),
        input_window_sizes=(2, 3), input_window_strides=(-2, 2),
    )  # fmt: skip
    assert sliced.dimension_count == 2
    reduced = ReduceOperatorDesc.completed({"InputTensor": x, "function": "MAX", "axes": (0,)})
    assert reduced.output_tensor.sizes == (1, 3)
    padded = Padding1OperatorDesc.completed(
        {"InputTensor": x, "PaddingMode": "CONSTANT", "PaddingValue": -3, "StartPadding": [0, 1], "EndPadding": [0, 0]}
    )
    assert padded.to_json()["PaddingValue"] == -3


def test_a_64_bit_constant_keeps_every_digit() -> None:
    for value in (9007199254740993, -(2**63), 2**63 - 1):
        desc = completed("FILL_VALUE_SEQUENCE", OutputTensor=tensor("INT64", 2), ValueStart=value, ValueDelta=1)
        assert parse_operator(json.loads(desc.to_document_text())).to_json()["ValueStart"] == value


def test_convolution_infers_no_size_below_1() -> None:
    with pytest.raises(InvalidDescriptor) as error:
        ConvolutionOperatorDesc.completed({"InputTensor": tensor(F, 1, 1, 3), "FilterTensor": tensor(F, 1, 1, 9)})
    assert "filter-too-large" in {violation.code for violation in error.value.violations}
