"""`tensorpost.descriptors.feature_levels` against the DML_FEATURE_LEVEL table and `DirectML.h`."""

import dataclasses

import numpy as np
import pytest

from tensorpost.descriptors import NEWEST, FeatureLevel, SupportRow, TileOperatorDesc
from tensorpost.values.datatypes import TensorDataType
from tensorpost.values.problems import InvalidParameter

# DirectML.h, values in hexadecimal; the decimal column is written out to catch a slip in either
TABLE = [
    ("1_0", 0x1000, 4096), ("2_0", 0x2000, 8192), ("2_1", 0x2100, 8448), ("3_0", 0x3000, 12288),
    ("3_1", 0x3100, 12544), ("4_0", 0x4000, 16384), ("4_1", 0x4100, 16640), ("5_0", 0x5000, 20480),
    ("5_1", 0x5100, 20736), ("5_2", 0x5200, 20992), ("6_0", 0x6000, 24576), ("6_1", 0x6100, 24832),
    ("6_2", 0x6200, 25088), ("6_3", 0x6300, 25344), ("6_4", 0x6400, 25600),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "decimal"), TABLE)
def test_values_and_names(name: str, value: int, decimal: int) -> None:
    level = FeatureLevel.parse(name)
    assert int(level) == value == decimal
    assert str(level) == f"{level}" == name


def test_there_is_no_other_level_and_the_order_is_that_of_the_numbers() -> None:
    assert [str(level) for level in FeatureLevel] == [name for name, _, _ in TABLE]
    assert sorted(FeatureLevel) == list(FeatureLevel)
    assert str(NEWEST) == "6_4"


@pytest.mark.parametrize(("name", "value", "_decimal"), TABLE)
def test_every_spelling(name: str, value: int, _decimal: int) -> None:  # a column of the table
    level = FeatureLevel(value)
    full = f"DML_FEATURE_LEVEL_{name}"
    for text in (name, name.replace("_", "."), f" {name}\n", full, full.lower(), value, np.int64(value), level):
        assert FeatureLevel.parse(text) is level  # pyright: ignore[reportArgumentType] # NumPy's integers are welcome


@pytest.mark.parametrize(
    "text",
    [
        "", "7_0", "2", "2_2", "2_10", "8448", "0x2100", "L2_1", "FEATURE_LEVEL_2_1", "DML_FEATURE_LEVEL_", "\ud800",
        "x" * 10**6, "\u0662_\u0661", 0, 1, -1, 0x2101, 10**5000, True, None, 2.1, 8448.0, float("nan"), b"2_1", {},
        [0x2100], np.array([1, 2]), np.True_,
    ],
    ids=lambda text: type(text).__name__,
)  # fmt: skip
def test_what_is_no_level_is_refused_with_the_list(text: object) -> None:
    with pytest.raises(InvalidParameter, match=r"does not exist; DirectML has 1_0, 2_0, .*, 6_4$") as error:
        FeatureLevel.parse(text)  # pyright: ignore[reportArgumentType] # wrong on purpose
    str(error.value).encode("utf-8")
    assert len(str(error.value)) < 400


def test_a_level_between_two_rows_has_the_last_row_at_or_below_it() -> None:
    first = SupportRow(FeatureLevel.L2_0, (4, 4), (TensorDataType.FLOAT32,))
    second = SupportRow(FeatureLevel.L3_1, (1, 8), (TensorDataType.FLOAT32,))
    for table in ((first, second), (second, first)):
        facts = dataclasses.replace(TileOperatorDesc.facts, support={"*": table})
        found = [
            facts.row_at(FeatureLevel.parse(level), "InputTensor") for level in ("1_0", "2_0", "2_1", "3_0", "3_1")
        ]
        assert found == [None, first, first, first, second]
        assert facts.row_at(NEWEST, "InputTensor") is second
    nothing = dataclasses.replace(TileOperatorDesc.facts, support={"*": ()})
    assert nothing.row_at(NEWEST, "InputTensor") is None
