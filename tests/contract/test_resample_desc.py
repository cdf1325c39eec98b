"""The Resample family's descriptors against the pages of their structs, `DirectML.h` and the feature level history."""

import json
import math
import pickle
from fractions import Fraction
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.strategies import DATA_TYPE_BITS

from tensorpost.descriptors import (
    OPERATORS,
    AxisDirection,
    BufferTensorDesc,
    FeatureLevel,
    InterpolationMode,
    OperatorDesc,
    Resample1OperatorDesc,
    Resample2OperatorDesc,
    Resample3OperatorDesc,
    ResampleGrad1OperatorDesc,
    ResampleGradOperatorDesc,
    ResampleOperatorDesc,
    Size2D,
    Upsample2DOperatorDesc,
    parse_operator,
)
from tensorpost.values.problems import InvalidDescriptor, UnsupportedAtLevel

# The structs of DirectML.h: type, value, fields in order.
HEADER: dict[type[OperatorDesc], tuple[str, int, str]] = {
    Upsample2DOperatorDesc: ("UPSAMPLE_2D", 66, "InputTensor OutputTensor ScaleSize InterpolationMode"),
    ResampleOperatorDesc: ("RESAMPLE", 96, "InputTensor OutputTensor InterpolationMode ScaleCount Scales"),
    Resample1OperatorDesc: ("RESAMPLE1", 116, (
        "InputTensor OutputTensor InterpolationMode DimensionCount Scales InputPixelOffsets OutputPixelOffsets")),
    ResampleGradOperatorDesc: ("RESAMPLE_GRAD", 134, (
        "InputGradientTensor OutputGradientTensor InterpolationMode DimensionCount Scales InputPixelOffsets "
        "OutputPixelOffsets")),
    Resample2OperatorDesc: ("RESAMPLE2", 161, (
        "InputTensor OutputTensor InterpolationMode RoundingDirection DimensionCount Scales InputPixelOffsets "
        "OutputPixelOffsets")),
    ResampleGrad1OperatorDesc: ("RESAMPLE_GRAD1", 162, (
        "InputGradientTensor OutputGradientTensor InterpolationMode RoundingDirection DimensionCount Scales "
        "InputPixelOffsets OutputPixelOffsets")),
    Resample3OperatorDesc: ("RESAMPLE3", 175, (
        "InputTensor OutputTensor InterpolationMode RoundingDirection DimensionCount Scales InputPixelOffsets "
        "OutputPixelOffsets Antialiased")),
}  # fmt: skip
FAMILY = pytest.mark.parametrize("cls", HEADER, ids=[name for name, _, _ in HEADER.values()])
WITH_ARRAYS = pytest.mark.parametrize(
    "cls", [cls for cls in HEADER if cls is not Upsample2DOperatorDesc], ids=lambda cls: cls.operator_type
)

# The tensor support tables of the pages: ranks and types from which level on. Levels are strict supersets.
FLOATS = {"FLOAT32", "FLOAT16"}
BYTES = FLOATS | {"INT8", "UINT8"}
SUPPORT: dict[type[OperatorDesc], dict[str, tuple[range, set[str]]]] = {
    Upsample2DOperatorDesc: {"1_0": (range(4, 6), FLOATS)},
    ResampleOperatorDesc: {
        "2_0": (range(4, 5), FLOATS), "5_1": (range(1, 5), FLOATS), "6_2": (range(1, 5), BYTES)},
    Resample1OperatorDesc: {
        "2_1": (range(4, 5), FLOATS), "5_1": (range(1, 5), FLOATS), "6_2": (range(1, 5), BYTES)},
    ResampleGradOperatorDesc: {"3_0": (range(4, 5), FLOATS), "5_2": (range(1, 5), FLOATS)},  # 5_2: docs/directml.md
    Resample2OperatorDesc: {"5_1": (range(1, 5), FLOATS), "6_2": (range(1, 5), BYTES)},
    ResampleGrad1OperatorDesc: {"5_1": (range(1, 5), FLOATS)},
    Resample3OperatorDesc: {"6_4": (range(1, 5), BYTES)},
}  # fmt: skip


def document(
    cls: type[OperatorDesc], dtype: str = "FLOAT32", sizes: Any = (1, 3, 4, 6), /, **fields: Any
) -> dict[str, Any]:
    """A legal document of the class, doubling height and width, with these fields instead."""
    sizes = list(sizes)
    outputs = [*sizes[:-2], *(2 * size for size in sizes[-2:])]
    layouts = [{"DataType": dtype, "Sizes": shape} for shape in (sizes, outputs)]
    names = ("InputTensor", "OutputTensor")
    if cls in (ResampleGradOperatorDesc, ResampleGrad1OperatorDesc):
        names = ("OutputGradientTensor", "InputGradientTensor")
    rank = len(sizes)
    every: dict[str, Any] = {
        **dict(zip(names, layouts, strict=True)),
        "ScaleSize": {"Width": 2, "Height": 2},
        "InterpolationMode": "LINEAR",
        "RoundingDirection": "DECREASING",
        "Scales": [*[1] * (rank - 2), *[2] * min(rank, 2)],
        "InputPixelOffsets": [0.5] * rank,
        "OutputPixelOffsets": [-0.5] * rank,
        "Antialiased": False,
    }
    return {**{name: every[name] for name in HEADER[cls][2].split() if name in every}, **fields}


def found(error: InvalidDescriptor) -> list[list[str]]:
    return sorted([violation.code, violation.where] for violation in error.violations)


def refusal(cls: type[OperatorDesc], **fields: Any) -> list[list[str]]:
    with pytest.raises(InvalidDescriptor) as error:
        cls(**document(cls, **fields))
    return found(error.value)


# The header


@FAMILY
def test_names_numbers_and_fields_are_the_headers(cls: type[OperatorDesc]) -> None:
    name, value, fields = HEADER[cls]
    assert (cls.operator_type, cls.facts.number) == (name, value)
    assert {info.alias for info in cls.model_fields.values()} == set(fields.split())
    # A derived count follows what it counts; all others stand in the struct's order.
    order = [info.alias for info in cls.model_fields.values() if not (info.alias or "").endswith("Count")]
    assert order == [field for field in fields.split() if not field.endswith("Count")]
    assert cls.__name__ == "".join(part.capitalize() for part in name.split("_")).replace("2d", "2D") + "OperatorDesc"


@FAMILY
@pytest.mark.parametrize("spell", [str, str.lower, "DML_OPERATOR_{}".format], ids=["short", "lower", "full"])
def test_found_by_name(cls: type[OperatorDesc], spell: Any) -> None:
    desc = parse_operator({"type": spell(cls.operator_type), "desc": document(cls)})
    assert type(desc) is cls
    assert desc.to_document()["type"] == f"DML_OPERATOR_{cls.operator_type}"


def test_operators_are_listed_by_number() -> None:
    values = [cls.facts.number for cls in OPERATORS]
    assert values == sorted(values)
    assert set(HEADER) <= set(OPERATORS)


@pytest.mark.parametrize(
    ("field", "cls", "names"),
    [
        ("InterpolationMode", InterpolationMode, {"NEAREST_NEIGHBOR": 0, "LINEAR": 1}),
        ("RoundingDirection", AxisDirection, {"INCREASING": 0, "DECREASING": 1}),
    ],
)
def test_enums(field: str, cls: Any, names: dict[str, int]) -> None:
    assert {member.name: member.value for member in cls} == names
    prefix = {"InterpolationMode": "DML_INTERPOLATION_MODE_", "RoundingDirection": "DML_AXIS_DIRECTION_"}[field]
    for name, number in names.items():
        spellings: list[Any] = [name, prefix + name, name.lower(), (prefix + name).title(), number, cls(number)]
        spellings += ["nearest", "NEAREST"] if name == "NEAREST_NEIGHBOR" else []
        for spelling in spellings:
            desc = Resample2OperatorDesc(**document(Resample2OperatorDesc, **{field: spelling}))
            assert desc.to_json()[field] == name
    for wrong in ("NEAR", "lineal", "decrease", 2, True, None, "DML_LINEAR"):
        assert refusal(Resample2OperatorDesc, **{field: wrong}) == [["enum-unknown", f"$.{field}"]]


@FAMILY
def test_every_field_but_counts_and_antialiased_is_required(cls: type[OperatorDesc]) -> None:
    whole = document(cls)
    for name in whole:
        fields = {key: value for key, value in whole.items() if key != name}
        if name == "Antialiased":
            assert cls(**fields).to_json()["Antialiased"] is False
            continue
        with pytest.raises(InvalidDescriptor) as error:
            cls(**fields)
        assert found(error.value) == [["field-missing", f"$.{name}"]]


def test_rounding_direction_is_required_for_linear_too() -> None:
    desc = {"type": "RESAMPLE2", "desc": {"InputTensor": {"DataType": "FLOAT32", "Sizes": [4]}, "Scales": [2],
            "InterpolationMode": "LINEAR"}}  # fmt: skip
    with pytest.raises(InvalidDescriptor) as error:
        parse_operator(desc, complete=True)
    assert found(error.value) == [["field-missing", "$.desc.RoundingDirection"]]


# Numbers


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (1.7, 1.7000000476837158),
        (1, 1.0),
        (np.float64(0.1), 0.10000000149011612),
        (np.float16(1.5), 1.5),
        (np.int64(3), 3.0),
        (3.4028235e38, 3.4028234663852886e38),
        (3.4028235677973366e38 * (1 - 2**-53), 3.4028234663852886e38),  # the last double that rounds down
        (1e-45, 1.401298464324817e-45),
        (2**24 + 1, 16777216.0),
        (Fraction(1, 3), 0.3333333432674408),
    ],
    ids=repr,
)
def test_numbers_are_rounded_to_32_bits(sent: Any, kept: float) -> None:
    desc = Resample1OperatorDesc(**document(Resample1OperatorDesc, InputPixelOffsets=[1, 1, 1, sent]))
    assert desc.input_pixel_offsets[3] == kept
    assert type(desc.scales[3]) is float
    assert float(np.float32(kept)) == kept


@pytest.mark.parametrize("field", ["Scales", "InputPixelOffsets", "OutputPixelOffsets"])
@pytest.mark.parametrize(
    ("value", "code"),
    [
        (math.nan, "not-finite"),
        (math.inf, "not-finite"),
        (-math.inf, "not-finite"),
        (np.float32(np.nan), "not-finite"),
        (3.4028236e38, "not-finite"),  # rounds to infinity
        (10**400, "not-finite"),
        ("2", "not-a-number"),
        (True, "not-a-number"),
        (None, "not-a-number"),
        ([2], "not-a-number"),
        (1 + 0j, "not-a-number"),
    ],
    ids=repr,
)
def test_what_is_no_finite_number_is_refused(field: str, value: Any, code: str) -> None:
    numbers = [1, 1, value, 1]
    assert refusal(Resample2OperatorDesc, **{field: numbers}) == [[code, f"$.{field}[2]"]]


@WITH_ARRAYS
@pytest.mark.parametrize("scale", [0, -0.0, -1, 1e-46, -1e-46])
def test_scales_are_positive_after_rounding(cls: type[OperatorDesc], scale: float) -> None:
    assert refusal(cls, Scales=[1, scale, 1, scale]) == [
        ["scale-not-positive", "$.Scales[1]"],
        ["scale-not-positive", "$.Scales[3]"],
    ]


def test_offsets_may_be_anything_finite() -> None:
    offsets = [-3.4028235e38, 3.4028235e38, 0, -7]
    desc = Resample1OperatorDesc(
        **document(Resample1OperatorDesc, InputPixelOffsets=offsets, OutputPixelOffsets=offsets)
    )
    assert desc.input_pixel_offsets == desc.output_pixel_offsets


@pytest.mark.parametrize(
    "array", [[1, 1, 2, 2], (1, 1, 2, 2), np.array([1, 1, 2, 2]), np.array([1, 1, 2, 2], np.float16)], ids=repr
)
def test_any_sequence_is_an_array(array: Any) -> None:
    assert ResampleOperatorDesc(**document(ResampleOperatorDesc, Scales=array)).scales == (1, 1, 2, 2)


@WITH_ARRAYS
@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("1122", ["not-an-array", "$.Scales"]),
        (b"1122", ["not-an-array", "$.Scales"]),
        (2, ["not-an-array", "$.Scales"]),
        (np.float32(2), ["not-an-array", "$.Scales"]),
        ({}, ["not-an-array", "$.Scales"]),
        ([], ["dimension-count", "$.Scales"]),
        ([1] * 9, ["dimension-count", "$.Scales"]),
        (["x"] * 1_000_000, ["dimension-count", "$.Scales"]),
        (np.ones(1_000_000), ["dimension-count", "$.Scales"]),
        ([1, 1, 2], ["array-length", "$.Scales"]),
        ([1, 1, 2, 2, 1], ["array-length", "$.Scales"]),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_arrays_have_an_entry_per_dimension(cls: type[OperatorDesc], value: Any, want: list[str]) -> None:
    fields = {"DimensionCount": 4} if cls is not ResampleOperatorDesc else {"ScaleCount": 4}
    wrong_length = want[0] == "array-length"
    assert refusal(cls, Scales=value, **({} if wrong_length else fields)) == [want]


def test_each_array_of_the_wrong_length_is_named() -> None:
    assert refusal(Resample2OperatorDesc, InputPixelOffsets=[0.5], OutputPixelOffsets=[0, 0, 0, 0, 0]) == [
        ["array-length", "$.InputPixelOffsets"],
        ["array-length", "$.OutputPixelOffsets"],
    ]


@WITH_ARRAYS
def test_counts_are_derived_and_must_agree_if_given(cls: type[OperatorDesc]) -> None:
    count = "ScaleCount" if cls is ResampleOperatorDesc else "DimensionCount"
    assert cls(**document(cls)).to_json()[count] == 4
    assert cls(**document(cls, **{count: 4})) == cls(**document(cls))
    assert refusal(cls, **{count: 3}) == [["count-disagrees", f"$.{count}"]]


@FAMILY
def test_both_tensors_agree_in_type_and_rank(cls: type[OperatorDesc]) -> None:
    second = HEADER[cls][2].split()[1]
    other = {"DataType": "FLOAT16", "Sizes": [1, 3, 8, 12, 1]}
    assert refusal(cls, **{second: other}) == [
        ["data-types-differ", f"$.{second}.DataType"],
        ["dimension-counts-differ", f"$.{second}.Sizes"],
    ]


@WITH_ARRAYS
def test_the_output_may_have_any_sizes(cls: type[OperatorDesc]) -> None:
    name = "InputGradientTensor" if cls.__name__.startswith("ResampleGrad") else "OutputTensor"
    for sizes in ([1, 1, 1, 1], [5, 5, 5, 5]):
        assert cls(**document(cls, **{name: {"DataType": "FLOAT32", "Sizes": sizes}}))


@pytest.mark.parametrize(("sent", "kept"), [(True, True), (False, False), (1, True), (0, False)])
def test_antialiased(sent: Any, kept: bool) -> None:
    assert Resample3OperatorDesc(**document(Resample3OperatorDesc, Antialiased=sent)).antialiased is kept


@pytest.mark.parametrize("value", ["true", 2, -1, None, 1.0, []])
def test_antialiased_is_a_boolean(value: Any) -> None:
    assert refusal(Resample3OperatorDesc, Antialiased=value) == [["not-a-bool", "$.Antialiased"]]


# UPSAMPLE_2D


def test_upsample_2d_needs_h_and_w() -> None:
    for sizes in ([4], [3, 4], [2, 3, 4], [1, 1, 1, 1, 3, 4]):
        with pytest.raises(InvalidDescriptor) as error:
            Upsample2DOperatorDesc(**document(Upsample2DOperatorDesc, "FLOAT32", sizes))
        assert found(error.value) == [["dimension-count", "$.InputTensor.Sizes"]]
    desc = Upsample2DOperatorDesc(**document(Upsample2DOperatorDesc, "FLOAT32", (1, 2, 3, 4, 5)))
    assert desc.scales == (1, 1, 1, 2, 2)


@pytest.mark.parametrize(
    ("size", "scale", "legal"),
    [(1, 2**32 - 1, True), (2, 2**31 - 1, True), (2, 2**31, False), (3, 1431655765, True), (3, 1431655766, False),
     (4, 0, False)],
)  # fmt: skip
@pytest.mark.parametrize("side", ["Height", "Width"])
def test_upsample_2d_scales_are_limited_by_uint_max(size: int, scale: int, legal: bool, side: str) -> None:
    sizes = [1, 1, size, 1] if side == "Height" else [1, 1, 1, size]
    source = {"DataType": "FLOAT32", "Sizes": sizes}
    fields = {"InputTensor": source, "ScaleSize": {"Height": 1, "Width": 1, side: scale}, "InterpolationMode": 1}
    if legal:
        assert Upsample2DOperatorDesc.completed(fields).output_tensor.element_count == size * scale
    else:
        with pytest.raises(InvalidDescriptor) as error:
            Upsample2DOperatorDesc.completed(fields)
        assert found(error.value) == [["scale-size", f"$.ScaleSize.{side}"]]


@pytest.mark.parametrize("sizes", [[1, 3, 8, 11], [1, 3, 4, 6], [2, 3, 8, 12]])
def test_upsample_2d_output_sizes_are_exact_products(sizes: list[int]) -> None:
    output = {"DataType": "FLOAT32", "Sizes": sizes}
    assert refusal(Upsample2DOperatorDesc, OutputTensor=output) == [["output-sizes", "$.OutputTensor.Sizes"]]


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ({"Width": 2}, [["field-missing", "$.ScaleSize.Height"]]),
        ({"Width": 2, "Height": 2, "Depth": 1}, [["field-unknown", "$.ScaleSize.Depth"]]),
        ({"Width": 2.0, "Height": 2}, [["not-an-integer", "$.ScaleSize.Width"]]),
        ({"Width": 2, "Height": -1}, [["out-of-range", "$.ScaleSize.Height"]]),
        ([2, 2], [["not-an-object", "$.ScaleSize"]]),
    ],
)  # fmt: skip
def test_scale_size_is_a_size_2d(value: Any, want: list[list[str]]) -> None:
    assert refusal(Upsample2DOperatorDesc, ScaleSize=value) == sorted(want)


def test_scale_size_in_python() -> None:
    desc = Upsample2DOperatorDesc(**document(Upsample2DOperatorDesc, ScaleSize=Size2D(width=2, height=2)))
    assert desc.to_json()["ScaleSize"] == {"Width": 2, "Height": 2}


# What follows from the rest


def completed(cls: type[OperatorDesc], sizes: list[int], **fields: Any) -> Any:
    return cls.completed({"InputTensor": {"DataType": "FLOAT16", "Sizes": sizes}, "InterpolationMode": 0, **fields})


@given(size=st.integers(1, 2**20), scale=st.floats(2.0**-20, 2.0**11, width=32))
@settings(max_examples=200, deadline=None)
def test_an_output_size_is_the_floor_of_input_size_times_scale(size: int, scale: float) -> None:
    want = math.floor(Fraction(size) * Fraction(scale))
    if want:
        assert completed(ResampleOperatorDesc, [size], Scales=[scale]).output_tensor.sizes == (want,)


def test_the_output_size_is_exact_for_the_32_bit_scale() -> None:
    # As a 32-bit float 0.6 is a little more, 0.7 a little less: 10 * 0.7 is 6.99999988.
    assert completed(ResampleOperatorDesc, [10, 10], Scales=[0.6, 0.7]).output_tensor.sizes == (6, 6)
    # 2^24 + 1 elements times 1 + 2^-23, which double arithmetic holds too, and float32 does not.
    desc = completed(ResampleOperatorDesc, [2**24 + 1], Scales=[1 + 2**-23])
    assert desc.output_tensor.sizes == (2**24 + 3,)


def test_scales_are_the_ratio_of_sizes() -> None:
    desc = completed(Resample1OperatorDesc, [3, 4], OutputTensor={"DataType": "FLOAT16", "Sizes": [7, 2]})
    assert desc.scales == (float(np.float32(7) / np.float32(3)), 0.5)
    assert (desc.input_pixel_offsets, desc.output_pixel_offsets) == ((0.5, 0.5), (-0.5, -0.5))


def test_offsets_that_are_there_stay() -> None:
    desc = completed(Resample1OperatorDesc, [3], Scales=[2], input_pixel_offsets=[0.25])
    assert (desc.input_pixel_offsets, desc.output_pixel_offsets) == ((0.25,), (-0.5,))


def test_a_gradient_is_completed_from_both_tensors() -> None:
    tensors = {
        "InputGradientTensor": {"DataType": "FLOAT32", "Sizes": [6]},
        "OutputGradientTensor": {"DataType": "FLOAT32", "Sizes": [4]},
    }
    desc = ResampleGradOperatorDesc.completed({**tensors, "InterpolationMode": "LINEAR"})
    assert desc.scales == (1.5,)  # the forward operator's: its output is the gradient that comes in
    assert (desc.input_pixel_offsets, desc.output_pixel_offsets) == ((-0.5,), (0.5,)), "the adjoint of 0.5 and -0.5"
    for name in tensors:
        fields = {key: value for key, value in tensors.items() if key != name}
        with pytest.raises(InvalidDescriptor) as error:
            ResampleGradOperatorDesc.completed({**fields, "InterpolationMode": "LINEAR", "Scales": [1.5]})
        assert ["field-missing", f"$.{name}"] in found(error.value)


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"Scales": [0.1]}, ["size-zero", "$.OutputTensor.Sizes[0]"]),
        ({"Scales": [3.4028235e38]}, ["out-of-range", "$.OutputTensor.Sizes[0]"]),
        ({"Scales": [2.0**31]}, ["out-of-range", "$.OutputTensor.Sizes[0]"]),
        ({"Scales": [-1]}, ["scale-not-positive", "$.Scales[0]"]),
        ({"Scales": [2, 2]}, ["array-length", "$.Scales"]),
        ({"Scales": ["2"]}, ["not-a-number", "$.Scales[0]"]),
        ({"Scales": 2}, ["not-an-array", "$.Scales"]),
        ({}, ["field-missing", "$.Scales"]),
    ],
    ids=str,
)
def test_what_was_sent_is_blamed_first(fields: dict[str, Any], want: list[str]) -> None:
    with pytest.raises(InvalidDescriptor) as error:
        completed(Resample2OperatorDesc, [4], RoundingDirection=1, **fields)
    assert found(error.value)[0] == want
    assert all(where.startswith(want[1]) or where == "$.OutputTensor" for _, where in found(error.value))


@FAMILY
def test_a_whole_document_needs_no_completion(cls: type[OperatorDesc]) -> None:
    whole = document(cls)
    before = json.dumps(whole)
    assert cls.completed(whole) == cls(**whole)
    assert json.dumps(whole) == before


@pytest.mark.parametrize("cls", [cls for cls in HEADER if "GRAD" not in cls.operator_type])
@pytest.mark.parametrize(
    "source", [None, 3, [], {"Sizes": [1]}, {"DataType": "FLOAT32", "Sizes": [0, 1, 1, 1]}], ids=repr
)
def test_an_output_that_cannot_be_completed_is_not_the_complaint(cls: type[OperatorDesc], source: Any) -> None:
    fields = {key: value for key, value in document(cls).items() if key != "OutputTensor"}
    with pytest.raises(InvalidDescriptor) as error:
        cls.completed({**fields, "InputTensor": source})
    assert all(where.startswith("$.InputTensor") for _, where in found(error.value))


# Feature levels


@FAMILY
def test_support_at_every_level(cls: type[OperatorDesc]) -> None:
    rows = SUPPORT[cls]
    for level in map(str, FeatureLevel):
        held = [row for since, row in rows.items() if since <= level]
        ranks, types = held[-1] if held else (range(0), set[str]())
        for name in DATA_TYPE_BITS:
            for rank in range(4, 6) if cls is Upsample2DOperatorDesc else range(1, 9):
                desc = cls(**document(cls, name, (2,) * rank))
                legal = rank in ranks and name in types
                if legal:
                    desc.validate_for(level)
                else:
                    with pytest.raises(UnsupportedAtLevel):
                        desc.validate_for(level)
                if level == str(max(FeatureLevel)):
                    lowest = desc.lowest_feature_level()
                    want = next((since for since, (r, t) in rows.items() if rank in r and name in t), None)
                    assert (None if lowest is None else str(lowest)) == want


# Values


@st.composite
def descs(draw: st.DrawFn) -> OperatorDesc:
    cls = draw(st.sampled_from(list(HEADER)))
    sizes = draw(st.lists(st.integers(1, 5), min_size=4, max_size=4))
    fields = document(cls, draw(st.sampled_from(sorted(BYTES))), sizes)
    rank = len(sizes)
    finite = st.floats(-(2.0**100), 2.0**100, width=32)
    for name in ("InputPixelOffsets", "OutputPixelOffsets"):
        if name in fields:
            fields[name] = draw(st.lists(finite, min_size=rank, max_size=rank))
    if "Scales" in fields:
        positive = st.floats(2.0**-23, 3.4028234663852886e38, width=32)
        fields["Scales"] = draw(st.lists(positive, min_size=rank, max_size=rank))
    for name, values in (("InterpolationMode", [0, 1]), ("RoundingDirection", [0, 1]), ("Antialiased", [True, False])):
        if name in fields:
            fields[name] = draw(st.sampled_from(values))
    return cls(**fields)


@settings(max_examples=100, deadline=None)
@given(descs())
def test_the_canonical_document_reads_back_the_same(desc: OperatorDesc) -> None:
    text = desc.to_document_text()
    again = parse_operator(json.loads(text))
    assert again == desc
    assert hash(again) == hash(desc)
    assert again.to_document_text() == text
    assert pickle.loads(pickle.dumps(desc)) == desc


@settings(max_examples=50, deadline=None)
@given(descs())
def test_the_canonical_document_fits_the_schemas(desc: OperatorDesc) -> None:
    for mode in ("serialization", "validation"):
        jsonschema.validate(desc.to_json(), type(desc).model_json_schema(mode=mode))


def test_canonical_numbers_are_the_shortest_that_read_back() -> None:
    desc = ResampleOperatorDesc(**document(ResampleOperatorDesc, Scales=[1.7, 1 / 3, 3.4028235e38, 2.0**-23]))
    assert desc.to_json()["Scales"] == [1.7, 0.33333334, 3.4028235e38, 1.1920929e-07]


@FAMILY
def test_a_descriptor_is_frozen(cls: type[OperatorDesc]) -> None:
    desc = cls(**document(cls))
    with pytest.raises(ValueError, match="frozen"):
        desc.interpolation_mode = 0  # pyright: ignore[reportAttributeAccessIssue] # that is the test
    assert BufferTensorDesc in [type(tensor) for _, tensor in desc.tensors()]
