"""docs/performance.md and docs/open-inference.md say what their JSON holds, and the README what the first says."""

import json
from dataclasses import replace

import pytest
from benchmarks.page import FIGURES, GPU_FIGURES, INFERENCE_FIGURES, INFERENCE_PAGE, PAGE, filled, inference_filled
from benchmarks.report import Run

RUN = Run.read(FIGURES)
GPU = json.loads(GPU_FIGURES.read_text())
TEXT = PAGE.read_text()


def test_the_pages_tables_are_those_of_the_committed_run() -> None:
    assert filled(TEXT, RUN, GPU) == TEXT, "run: python -m benchmarks.page docs/performance.json"


def test_the_tables_of_the_open_inference_protocol_are_those_of_the_committed_run() -> None:
    text = INFERENCE_PAGE.read_text()
    run = Run.read(INFERENCE_FIGURES)

    assert inference_filled(text, run) == text, "run: python -m benchmarks.page"
    assert all(table.rows for section in run.sections for table in section.tables)


def test_the_committed_run_is_a_full_one() -> None:
    assert not RUN.quick
    assert {section.name for section in RUN.sections} >= {
        "startup",
        "memory",
        "wire",
        "sdk",
        "small",
        "peers",
        "kernels",
    }
    assert all(table.rows for section in RUN.sections for table in section.tables)


def test_a_section_without_a_place_on_the_page_is_refused() -> None:
    with pytest.raises(ValueError, match="places"):
        filled(TEXT, replace(RUN, sections=RUN.sections[1:]), GPU)
