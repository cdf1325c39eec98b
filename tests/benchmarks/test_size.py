"""What `make size` counts, of texts and imports that are counted by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from benchmarks.size import arrows_back, floors, imports_of, lines_of, strongly_connected

TEXT = '''"""Two lines,

and a blank one inside."""

import os  # beside code

# alone
NAMES = """
  # no comment

"""
"""Of an attribute."""


def f() -> str:
    """One line."""
    return "x"
'''


def edges(**targets: str) -> dict[str, Counter[str]]:
    return {name: Counter(found) for name, found in targets.items()}


def test_lines_are_told_apart() -> None:
    assert lines_of(TEXT) == {"docstrings": 5, "code": 7, "comments": 1, "blanks": 4}


def test_a_chain_has_a_floor_for_each() -> None:
    chain = edges(a="bc", b="c", c="")
    assert (floors(chain), [len(group) for group in strongly_connected(chain)]) == (3, [1, 1, 1])


def test_of_a_circle_the_fewest_imports_run_back() -> None:
    """Of d to b and b to c, the cheaper way to an order is without the one import from d to b."""
    circle = edges(a="bb", b="ccc", c="dd", d="b", e="a")

    assert strongly_connected(circle) == [("e",), ("a",), ("b", "c", "d")]
    assert arrows_back(circle, ("b", "c", "d")) == [("d", "b", 1)]
    assert floors(circle) == 3


def test_imports_of_every_kind_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "client" / "tensorpost"
    texts = {
        "__init__": "from .a import x",
        "a": "import tensorpost.b\nimport os",
        "b": "def f():\n    from tensorpost import inner, y",
        "inner/__init__": "from . import leaf",
        "inner/leaf": "from .. import a\nfrom ..b import f",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(text)

    found = imports_of(tmp_path, sorted(folder.rglob("*.py")))

    assert {"/".join(module[1:]): {"/".join(each[1:]) for each in targets} for module, targets in found.items()} == {
        "__init__": {"a"}, "a": {"b"}, "b": {"inner/__init__", "__init__"}, "inner/__init__": {"inner/leaf"},
        "inner/leaf": {"a", "b"},
    }  # fmt: skip
