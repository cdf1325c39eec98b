"""docs/directml.md says what docs/directml.json says, and the run left no difference without a reason."""

import json

import pytest
from tests.directml_device.page import JSON, PAGE, WINDOWS_PAGE, with_listed, written
from tests.directml_device.xfail_reasons import listed

from tensorpost.descriptors import OPERATORS


def test_the_tables_are_the_runs() -> None:
    page = PAGE.read_text()
    assert written(page, json.loads(JSON.read_text())) == page


def test_every_difference_of_the_run_is_explained() -> None:
    run = json.loads(JSON.read_text())
    assert run["descriptors"] == 20_000
    assert "not explained" not in run["differences"]
    assert not any("not explained" in counts for counts in run["answers"].values())
    assert run["answers"].keys() == {cls.operator_type for cls in OPERATORS}


def test_the_table_of_known_failures_is_the_list_s() -> None:
    page = WINDOWS_PAGE.read_text()
    assert with_listed(page) == page


def test_a_reason_without_a_word_about_the_page_is_refused() -> None:
    with pytest.raises(ValueError, match="does not say who follows the page"):
        listed("tile [one]: DirectML: something that is new")
