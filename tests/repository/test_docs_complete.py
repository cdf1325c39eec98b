"""What the documentation lists is what there is: settings, problems, endpoints, commands, both ways."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from tests.support.conformance_table import conformance, conformance_text
from tests.support.docs_tables import DOCS, TABLES, between_marks, with_table
from tests.support.openapi_examples import examples_text
from tests.support.operator_notes import notes_text

from tensorpost.descriptors import OPERATORS
from tensorpost.reference.operator_reference import EXAMPLES, NOTES
from tensorpost_server.http.documents.conformance import CONFORMANCE

ROOT = DOCS.parent
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


NO_ONNX = "the package onnx, which lists ONNX's operators, is not installed; it has no wheel for every Python"
PAGES_WITH_TABLES = [
    pytest.param(page, marks=pytest.mark.skipif(importlib.util.find_spec("onnx") is None, reason=NO_ONNX))
    if page == "operators.md"
    else page
    for page in TABLES
]


@pytest.mark.parametrize("page", PAGES_WITH_TABLES)
def test_tables_say_what_the_code_says(page: str) -> None:
    table = TABLES[page]()

    assert table == between_marks((DOCS / page).read_text()), "run: python -m tests.support.docs_tables"
    assert table.count("\n") > 6, "a table with almost no rows was not read from the code"


@pytest.mark.parametrize("page", PAGES_WITH_TABLES)
def test_a_row_that_is_missing_is_seen(page: str) -> None:
    text, table = (DOCS / page).read_text(), TABLES[page]()
    shorter = "".join(table.splitlines(keepends=True)[:-1])

    assert between_marks(with_table(text, shorter)) != table
    assert with_table(with_table(text, shorter), table) == text


def test_conformance_says_what_the_backends_planners_say() -> None:
    assert CONFORMANCE.read_text() == conformance_text(), "run: python -m tests.support.docs_tables"
    assert EXAMPLES.read_text() == examples_text(), "run: python -m tests.support.docs_tables"


def test_the_notes_of_operators_say_what_lowering_and_the_list_of_differences_say() -> None:
    pytest.importorskip("onnxruntime", reason="the samples of ONNX's operators are compared with ONNX Runtime")
    assert NOTES.read_text() == notes_text(), "run: python -m tests.support.docs_tables"


def test_conformance_of_operators_whose_ways_are_known() -> None:
    found = conformance()
    ways = {name: {backend: set(ways) for backend, ways in row["backends"].items()} for name, row in found.items()}

    assert len(found) == len(OPERATORS) == 177
    for row in found.values():
        assert {row["cases"]} == {sum(counts.values()) for counts in row["backends"].values()}
    # Copies have kernels everywhere but in NumPy; recurrent operators have none; float32 loops compute no bits.
    assert ways["TILE"] == {"numpy": {"arrays"}, "numba": {"fused"}, "cuda": {"fused"}, "directml": {"library"}}
    assert ways["LSTM"] == {"numpy": {"arrays"}, "numba": {"arrays"}, "cuda": {"arrays"}, "directml": {"library"}}
    assert (ways["ELEMENT_WISE_BIT_AND"]["numba"], ways["ELEMENT_WISE_BIT_AND"]["cuda"]) == ({"arrays"}, {"fused"})
    assert (found["TILE"]["ulp"], found["TILE"]["absolute"]) == (0, 0)
    assert found["ELEMENT_WISE_EXP"]["ulp"] > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            todo += [(page.parent / target).resolve() for target in _LINK.findall(page.read_text())]

    assert {page for page in PAGES if DOCS in page.parents} <= seen
