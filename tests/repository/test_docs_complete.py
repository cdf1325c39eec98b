"""What the documentation lists is what there is: settings, problems, endpoints, commands, both ways."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.docs_tables import DOCS, TABLES, between_marks, with_table

ROOT = DOCS.parent
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


@pytest.mark.parametrize("page", TABLES)
def test_tables_say_what_the_code_says(page: str) -> None:
    table = TABLES[page]()

    assert table == between_marks((DOCS / page).read_text()), "run: python -m tests.support.docs_tables"
    assert table.count("\n") > 6, "a table with almost no rows was not read from the code"


@pytest.mark.parametrize("page", TABLES)
def test_a_row_that_is_missing_is_seen(page: str) -> None:
    text, table = (DOCS / page).read_text(), TABLES[page]()
    shorter = "".join(table.splitlines(keepends=True)[:-1])

    assert between_marks(with_table(text, shorter)) != table
    assert with_table(with_table(text, shorter), table) == text


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
