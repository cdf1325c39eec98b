"""docs/architecture.md is true of the tree: its picture, paths and forms. Its table is in test_docs_complete."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from fnmatch import fnmatch

import pytest
from tests.support.batches import each
from tests.support.docs_tables import DOCS, PICTURE
from tests.support.structure import boxes, picture, rows_of
from tests.support.vectors import cases_of

from tensorpost_server.operators import form_of

ROOT = DOCS.parent
PAGE = (DOCS / "architecture.md").read_text("utf-8")
FOLDERS = (ROOT, ROOT / "app/tensorpost_server", ROOT / "client/tensorpost")
PATH = re.compile(r"`([\w*/.]+(?:/|\.py|\.json))`")


def test_the_picture_is_that_of_the_imports() -> None:
    assert PICTURE.read_text() == picture(), "run: python -m tests.support.docs_tables"


def test_every_box_is_drawn_and_every_arrow_points_down() -> None:
    svg = ET.fromstring(picture())
    names = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    arrows = [arrow.attrib["d"] for arrow in svg.iter("{http://www.w3.org/2000/svg}path") if "class" in arrow.attrib]
    ends = [(int(found[1]), int(found[2])) for d in arrows if (found := re.fullmatch(r"M\d+ (\d+)C.* (\d+)", d))]

    assert sorted(filter(None, names)) == sorted(boxes()[0])
    assert {"http", "engine", "backends", "planning", "operators", "forms", "descriptors", "calls", "values"} <= set(
        names
    )
    assert len(ends) == len(arrows) >= len(names) - 1
    assert all(begin < end for begin, end in ends)


def test_a_circle_of_imports_is_not_drawn() -> None:
    with pytest.raises(ValueError, match="a -> b -> a"):
        rows_of({"a": frozenset("b"), "b": frozenset("a")})


@each("path", sorted(set(PATH.findall(PAGE))))
def test_every_path_leads_somewhere(path: str) -> None:
    assert any(any(folder.glob(path)) for folder in FOLDERS), f"{path} is no file or folder"


def test_the_forms_are_those_that_operators_have() -> None:
    _, _, table = PAGE.partition("## Forms")
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", table.partition("\n## ")[0], re.M)
    found: dict[str, set[str]] = {}
    for case in cases_of():
        found.setdefault(type(form_of(case.desc)).__name__, set()).add(case.desc.name.partition("-")[0])

    assert {name for name, _ in rows} == found.keys()
    for name, listed in rows:
        patterns = re.findall(r"[\w*]+", listed)
        assert all(any(fnmatch(operator, pattern) for pattern in patterns) for operator in found[name]), found[name]


def test_every_package_has_a_row() -> None:
    roots = (ROOT / "app/tensorpost_server", ROOT / "client/tensorpost")
    packages = {f"{path.parent.name}/" for root in roots for path in root.glob("*/__init__.py")}
    _, _, table = PAGE.partition("## Packages")

    assert packages <= set(re.findall(r"^\| `([\w]+/)`", table, re.M))
