"""`catalogue.json` and the descriptor classes, against each other and against numbers written out from DirectML.h."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from tests.support.batches import each
from tests.support.families import GENERATED
from tests.support.operator_cases import STRATEGIES
from tests.support.vectors import VECTORS, load, vectors_files

from tensorpost.descriptors import (
    OPERATORS,
    Activation,
    BufferTensorDesc,
    FeatureLevel,
    OperatorDesc,
    ScaleBias,
    SupportRow,
    operator_names,
    plain_operators,
)
from tensorpost.descriptors.catalogue import FieldFacts, OperatorFacts, facts_of
from tensorpost.descriptors.families import find_operator, module_of_name, operator_summaries, operator_types
from tensorpost.descriptors.resample import Size2D
from tensorpost.onnx.schemas import WRITTEN_BY_HAND
from tensorpost.values.datatypes import TensorDataType
from tensorpost_server.operators import FORMS

FACTS = [facts_of(name) for name in operator_names()]
BY_CLASS = each("cls", OPERATORS, ids=lambda cls: cls.operator_type)
BY_FACTS = each("facts", FACTS, ids=lambda facts: facts.name)

# DML_OPERATOR_TYPE: number in DirectML.h, and the level that brought it ("DirectML feature level history").
HEADER = {
    "ELEMENT_WISE_IDENTITY": (1, "1_0"), "ELEMENT_WISE_ABS": (2, "1_0"), "ELEMENT_WISE_ADD": (4, "1_0"),
    "ELEMENT_WISE_CLIP": (8, "1_0"), "ELEMENT_WISE_DIVIDE": (10, "1_0"), "ELEMENT_WISE_EXP": (11, "1_0"),
    "ELEMENT_WISE_MAX": (21, "1_0"), "ELEMENT_WISE_MIN": (23, "1_0"), "ELEMENT_WISE_MULTIPLY": (24, "1_0"),
    "ELEMENT_WISE_SUBTRACT": (30, "1_0"), "ACTIVATION_RELU": (44, "1_0"), "CONVOLUTION": (53, "1_0"),
    "GEMM": (54, "1_0"), "REDUCE": (55, "1_0"), "CAST": (61, "1_0"), "SPLIT": (62, "1_0"), "JOIN": (63, "1_0"),
    "UPSAMPLE_2D": (66, "1_0"), "GATHER": (67, "1_0"), "TILE": (70, "1_0"), "ELEMENT_WISE_IF": (88, "2_0"),
    "SCATTER_ELEMENTS": (94, "2_0"), "RESAMPLE": (96, "2_0"), "FILL_VALUE_SEQUENCE": (104, "2_1"),
    "SLICE1": (111, "2_1"), "TOP_K1": (112, "2_1"), "RESAMPLE1": (116, "2_1"), "NONZERO_COORDINATES": (133, "3_0"),
    "RESAMPLE_GRAD": (134, "3_0"), "PADDING1": (155, "5_0"), "ACTIVATION_GELU": (157, "5_1"),
    "RESAMPLE2": (161, "5_1"), "RESAMPLE_GRAD1": (162, "5_1"), "RESAMPLE3": (175, "6_4"),
}  # fmt: skip

FLOATS = "FLOAT32 FLOAT16"
TO_32_BITS = f"{FLOATS} INT32 INT16 INT8 UINT32 UINT16 UINT8"
TO_64_BITS = f"{FLOATS} INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8"
WITH_8_BITS = f"{FLOATS} INT8 UINT8"
# The pages' support tables, every tensor alike; RESAMPLE1's of 5_1 and 6_2 are taken from RESAMPLE's page. Those of
# TILE at 5_0 and RESAMPLE_GRAD at 5_2 are what DirectML accepts (docs/directml.md).
TABLES = {
    "UPSAMPLE_2D": [("1_0", 4, 5, FLOATS)],
    "TILE": [
        ("1_0", 4, 4, FLOATS),
        ("2_1", 4, 4, TO_32_BITS),
        ("3_1", 1, 8, TO_32_BITS),
        ("4_1", 1, 8, TO_64_BITS),
        ("5_0", 1, 8, f"FLOAT64 {TO_64_BITS}"),
    ],
    "RESAMPLE": [("2_0", 4, 4, FLOATS), ("5_1", 1, 4, FLOATS), ("6_2", 1, 4, WITH_8_BITS)],
    "RESAMPLE1": [("2_1", 4, 4, FLOATS), ("5_1", 1, 4, FLOATS), ("6_2", 1, 4, WITH_8_BITS)],
    "RESAMPLE2": [("5_1", 1, 4, FLOATS), ("6_2", 1, 4, WITH_8_BITS)],
    "RESAMPLE3": [("6_4", 1, 4, WITH_8_BITS)],
    "RESAMPLE_GRAD": [("3_0", 4, 4, FLOATS), ("5_2", 1, 4, FLOATS)],
    "RESAMPLE_GRAD1": [("5_1", 1, 4, FLOATS)],
}

# Levels that are no supersets of the ones before, tensor by tensor, with the reason. There is none in the pages: their
# one gap, FLOAT32 in ELEMENT_WISE_IF at 2_0, is taken for an omission.
NOT_SUPERSETS: dict[tuple[str, str], str] = {}


# ---- the file --------------------------------------------------------------------------------------------------------


def test_there_are_177_operators_with_the_numbers_from_1_on() -> None:
    assert [facts.number for facts in FACTS] == list(range(1, 178))
    assert len(set(operator_names())) == 177
    assert all(name == name.upper() and name.isidentifier() for name in operator_names())


@BY_FACTS
def test_fields_are_those_of_a_c_struct(facts: OperatorFacts) -> None:
    names = [field.name for field in facts.fields]
    assert len(set(names)) == len(names)
    assert all(name[0].isupper() and name.isalnum() for name in names)
    assert {field.kind for field in facts.fields} <= {"input", "output", "attribute"}
    assert facts.fields_by_kind["output"], "an operator has an output"
    for field in facts.fields:
        assert field.type in KINDS
        assert field.type.startswith("TENSOR_DESC") == (field.kind != "attribute")
        # An array is a pointer: what it has is said by a UINT in front of it.
        if field.is_array:
            before = facts.fields[: names.index(field.name)]
            assert any(other.type == "UINT" and other.name.endswith("Count") for other in before), field.name


@BY_FACTS
def test_support_tables_are_of_tensors_and_rise(facts: OperatorFacts) -> None:
    tensors = [field.name for field in facts.fields if field.kind != "attribute"]
    assert facts.support.keys() in ({"*"}, set(tensors))
    for tensor, rows in facts.tables():
        assert rows, tensor
        assert min(row.since for row in rows) == facts.since
        for row in rows:
            low, high = row.dimension_counts
            assert 1 <= low <= high <= 8
            assert row.data_types
            assert len(set(row.data_types)) == len(row.data_types)
            assert TensorDataType.UNKNOWN not in row.data_types


@BY_FACTS
def test_levels_are_supersets_of_those_before(facts: OperatorFacts) -> None:
    for tensor, rows in facts.tables():
        for table in _by_function(rows):
            assert [row.since for row in table] == sorted({row.since for row in table})
            for older, newer in itertools.pairwise(table):
                grown = (
                    set(older.data_types) <= set(newer.data_types)
                    and newer.dimension_counts[0] <= older.dimension_counts[0]
                    and older.dimension_counts[1] <= newer.dimension_counts[1]
                )
                assert grown == ((facts.name, tensor) not in NOT_SUPERSETS), f"{tensor} at {newer.since}"


def _by_function(rows: Sequence[SupportRow]) -> Iterator[list[SupportRow]]:
    for functions in dict.fromkeys(row.functions for row in rows):
        yield [row for row in rows if row.functions == functions]


def test_operators_have_the_headers_number_and_first_level() -> None:
    for name, (number, since) in HEADER.items():
        facts = facts_of(name)
        assert (facts.number, str(facts.since)) == (number, since), name
    numbers = [cls.facts.number for cls in OPERATORS]
    assert numbers == sorted(set(numbers)), "in the header's order"
    assert HEADER.keys() <= {cls.operator_type for cls in OPERATORS}


@pytest.mark.parametrize("name", TABLES)
def test_the_resample_familys_and_tiles_tables(name: str) -> None:
    for _, rows in facts_of(name).tables():
        assert [
            (str(row.since), *row.dimension_counts, [data_type.name for data_type in row.data_types]) for row in rows
        ] == [(since, low, high, names.split()) for since, low, high, names in TABLES[name]]


# DML_REDUCE_OPERATOR_DESC: types of the input at three levels.
@pytest.mark.parametrize(
    ("functions", "at_2_1", "at_3_0", "newest"),
    [
        ("ARGMIN ARGMAX", TO_32_BITS, TO_32_BITS, TO_64_BITS),
        ("AVERAGE L2 LOG_SUM LOG_SUM_EXP", FLOATS, FLOATS, FLOATS),
        ("L1 SUM_SQUARE", FLOATS, FLOATS, f"{FLOATS} INT64 INT32 UINT64 UINT32"),
        ("MIN MAX", f"{FLOATS} INT32 UINT32", TO_32_BITS, TO_64_BITS),
        ("MULTIPLY SUM", f"{FLOATS} INT32 UINT32", f"{FLOATS} INT32 UINT32", f"{FLOATS} INT64 INT32 UINT64 UINT32"),
    ],
)
def test_the_tables_of_reduce_differ_by_function(functions: str, at_2_1: str, at_3_0: str, newest: str) -> None:
    facts = facts_of("REDUCE")
    for function in functions.split():
        for level, names in (("2_1", at_2_1), ("3_0", at_3_0), ("6_4", newest)):
            row = facts.row_at(FeatureLevel.parse(level), "InputTensor", function)
            assert row is not None
            assert {data_type.name for data_type in row.data_types} == set(names.split()), (function, level)
            out = facts.row_at(FeatureLevel.parse(level), "OutputTensor", function)
            assert out is not None
            positions = {"UINT32"} if level == "2_1" else {"INT64", "INT32", "UINT64", "UINT32"}
            expected = positions if function.startswith("ARG") else set(names.split())
            assert {data_type.name for data_type in out.data_types} == expected


# ---- the classes -----------------------------------------------------------------------------------------------------

# DirectML's schema type -> what the class holds. A UINT may be an enum of the header.
KINDS: dict[str, Any] = {
    "TENSOR_DESC": BufferTensorDesc, "TENSOR_DESC_ARRAY": (BufferTensorDesc,), "UINT": int, "UINT_ARRAY": (int,),
    "INT": int, "INT_ARRAY": (int,), "FLOAT": float, "FLOAT_ARRAY": (float,), "BOOL": bool, "SIZE_2D": Size2D,
    "SCALE_BIAS": ScaleBias, "SCALAR_UNION": int | float, "OPERATOR_DESC": Activation,
    "OPERATOR_DESC_ARRAY": (Activation,),
}  # fmt: skip

# BOOL in the header, UINT in the schema.
BOOLS = {
    "Antialiased",
    "HasExclusiveSum",
    "HasExclusiveProduct",
    "CrossChannel",
    "NormalizeVariance",
    "UseMean",
    "UseVariance",
    "Spatial",
    "IncludePadding",
    "AlignRegionsToCorners",
    "LinearBeforeReset",
    "UseClipThreshold",
    "CoupleInputForget",
}


def held(annotation: Any) -> tuple[Any, bool]:
    """What a field holds, as in `KINDS`, and whether it may be None."""
    if get_origin(annotation) is Annotated:
        return held(get_args(annotation)[0])
    if get_origin(annotation) in (types.UnionType, Union):
        inner = [member for member in get_args(annotation) if member is not type(None)]
        optional = len(inner) < len(get_args(annotation))
        return (held(inner[0])[0] if len(inner) == 1 else Union[tuple(inner)], optional)  # noqa: UP007 # made at run time
    if get_origin(annotation) is tuple:
        return (held(get_args(annotation)[0])[0],), False
    if isinstance(annotation, type) and issubclass(annotation, IntEnum):
        return int, False
    return annotation, False


def same_but_counts(fields: list[str]) -> list[str]:
    """Derived counts may stand behind the array that they count."""
    return [name for name in fields if not name.endswith("_count")]


@BY_CLASS
def test_a_class_has_the_fields_of_the_struct(cls: type[OperatorDesc]) -> None:
    struct = [field.attribute_name for field in cls.facts.fields]
    assert sorted(cls.model_fields) == sorted(struct)
    assert same_but_counts(list(cls.model_fields)) == same_but_counts(struct)
    assert [info.alias for info in cls.model_fields.values()] == [
        {field.attribute_name: field.name for field in cls.facts.fields}[name] for name in cls.model_fields
    ]


@BY_CLASS
def test_a_class_holds_what_the_struct_points_to(cls: type[OperatorDesc]) -> None:
    for field in cls.facts.fields:
        info = cls.model_fields[field.attribute_name]
        kind, optional = held(info.annotation)
        assert (bool if field.name in BOOLS else KINDS[field.type]) in (kind, *get_args(kind)[:1]), field.name
        assert optional == field.optional, field.name
        if optional:
            assert info.default is None
        if field.kind != "attribute":
            assert info.is_required() == (not optional), field.name


@BY_CLASS
def test_kinds_of_a_class(cls: type[OperatorDesc]) -> None:
    for kind in ("input", "output", "attribute"):
        expected = [field.attribute_name for field in cls.facts.fields if field.kind == kind]
        assert list(cls.fields_of_kind(kind)) == expected
    assert cls.summary.endswith(".")
    assert not re.match(r"[A-Z][a-z]", cls.summary), "a phrase in lower case, a formula, or an operator's name"


@BY_CLASS
def test_slots_have_paths(cls: type[OperatorDesc]) -> None:
    def name(field: FieldFacts) -> str:
        return field.attribute_name.removesuffix("s").removesuffix("_tensor")

    for field in cls.facts.fields_by_kind["input"]:
        if field.is_array:
            assert cls.path_of_slot(name(field) + "_0") == (field.attribute_name, 0)
            assert cls.path_of_slot(name(field) + "_12") == (field.attribute_name, 12)
            wrong = ["", "_", "_01", "_-1", "_\u0661", "_123456", "_x"]
        else:
            assert cls.path_of_slot(name(field)) == (field.attribute_name,)
            wrong = ["_0", "s", "_tensor"]
        assert [cls.path_of_slot(name(field) + end) for end in wrong] == [None] * len(wrong)
    assert cls.path_of_slot("output") is None


# ---- that every operator is complete ---------------------------------------------------------------------------------


def test_every_class_has_a_form_and_every_form_a_class() -> None:
    assert {cls for cls in FORMS if issubclass(cls, OperatorDesc)} == set(OPERATORS)


def test_every_operator_has_vectors_and_every_vectors_file_an_operator() -> None:
    onnx = {*WRITTEN_BY_HAND}  # all others: the onnx package's own node tests
    files = vectors_files()
    assert {file.operator for file in files} == {cls.operator_type for cls in OPERATORS} | onnx
    for file in files:
        where = "onnx/" if file.operator in onnx else ""
        assert file.path == where + file.operator.lower(), "a file has the name of its operator"


def test_every_file_under_vectors_is_read() -> None:
    """A file that discovery does not see, by its suffix or its place, would run nowhere, and no test would fail."""
    found = {path.relative_to(VECTORS) for path in VECTORS.glob("**/*") if path.is_file()}
    assert found == {Path(file.path + ".json") for file in vectors_files()}


def test_operators_are_drawn_too() -> None:
    """The Resample family has tests of its own; an operator whose vectors say it all needs no strategy."""
    assert STRATEGIES.keys() == {name for name in HEADER if not name.startswith(("RESAMPLE", "UPSAMPLE"))}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"case": []}, "members"),
        ({"cases": []}, "no case"),
        ({"operator": "TILES"}, "there is no operator"),
        ({"cases": [{"name": "a"}]}, "members"),
    ],
)
def test_a_file_that_is_not_of_the_form_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    _refused(tmp_path, change, words)


TENSOR = {"DataType": "UINT8", "Values": [1, 2]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"desc": {"Repeats": [2], "OutputTensor": TENSOR}}, "in desc as well"),
        ({"desc": {"Repeats": [3]}}, "must be InputTensor.Sizes times Repeats"),
        ({"inputs": {}}, "InputTensor is required"),
        ({"inputs": {"InputTensor": {**TENSOR, "Values": [1, 256]}}}, "uint8 cannot hold 256"),
        ({"inputs": {"InputTensor": {**TENSOR, "Values": [1, 2.0]}}}, "uint8 cannot hold 2.0"),
        ({"inputs": {"InputTensor": {**TENSOR, "Value": [1, 2]}}}, "members"),
        ({"inputs": {"InputTensor": {**TENSOR, "Sizes": [2], "Values": [1, 2, 3]}}}, "3 values"),
        ({"inputs": {"InputTensor": {**TENSOR, "Sizes": [2], "Strides": [0]}}}, "share an address"),
        ({"tolerance": {"ulps": 3}}, "members"),
        ({"name": "b", "outputs": {"OutputTensor": {"DataType": "INT8", "Values": [1, 2, 1, 2]}}}, "INT8"),
    ],
)
def test_a_case_that_is_not_of_the_form_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    case = {
        "name": "a", "desc": {"Repeats": [2]}, "inputs": {"InputTensor": TENSOR},
        "outputs": {"OutputTensor": {"DataType": "UINT8", "Values": [1, 2, 1, 2]}},
    }  # fmt: skip
    _refused(tmp_path, {"cases": [case, case]}, "two of one name")
    _refused(tmp_path, {"cases": [{**case, **change}]}, words)


def _refused(folder: Path, change: dict[str, Any], words: str) -> None:
    path = folder / "tile.json"
    document = {**json.loads((VECTORS / "tile.json").read_text("utf-8")), **change}
    path.write_text(json.dumps(document), "utf-8")
    with pytest.raises(Exception, match=words) as error:
        load(path)
    assert "tile.json" in str(error.value), "the message names the file"


def test_every_operator_is_found_where_the_families_have_it() -> None:
    for path, text in GENERATED.items():
        assert path.read_text("utf-8") == text(), "run: python -m tests.support.families"
    assert operator_types() == [cls.operator_type for cls in OPERATORS] == operator_names()
    assert operator_summaries() == {cls.operator_type: cls.summary for cls in OPERATORS}
    for cls in OPERATORS:
        assert find_operator(cls.operator_type) is cls
        assert cls.__module__ == f"tensorpost.descriptors.{module_of_name()[cls.__name__]}"


def test_a_row_is_a_class_of_its_base_that_is_built_once_for_all_threads() -> None:
    code = """
import sys
from concurrent.futures import ThreadPoolExecutor
sys.setswitchinterval(1e-6)
from tensorpost.descriptors import elementwise, elementwise_base, plain_operators
assert "ElementWiseAbsOperatorDesc" not in vars(plain_operators)
with ThreadPoolExecutor(8) as threads:
    found = set(threads.map(lambda _: elementwise.ElementWiseAbsOperatorDesc, range(64)))
print(found, [cls.__base__ is elementwise_base.Unary for cls in found])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)

    assert ran.stdout == "{<class 'tensorpost.descriptors.plain_operators.ElementWiseAbsOperatorDesc'>} [True]\n"
    with pytest.raises(AttributeError, match=r"plain_operators' has no attribute 'Absolute'"):
        _ = plain_operators.Absolute  # pyright: ignore[reportAttributeAccessIssue] # wrong on purpose
    with pytest.raises(AttributeError, match="ElementwiseADDOperatorDesc"):  # which would be a second class
        _ = plain_operators.ElementwiseADDOperatorDesc  # pyright: ignore[reportAttributeAccessIssue] # wrong on purpose


def test_a_family_s_module_hands_on_all_operators_too() -> None:
    code = "from tensorpost.descriptors.operator_desc import OPERATORS; print(len(OPERATORS))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "177\n"
