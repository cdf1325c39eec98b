"""Docstrings begin with a noun or a verb: a name is followed by what it is, not by a preposition or one word alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("app", "benchmarks", "client")

_RELATION = (
    "of|in|at|by|from|to|for|with|as|on|into|over|under|between|after|before|without|per|that|until|till|since|among|"
    "beside|within|through|along|across|likewise|those|against|during"
)
BEGIN = re.compile(rf"({_RELATION})\b", re.IGNORECASE)
ENTRY = re.compile(rf"\s+\*{{0,2}}\w+(, \*{{0,2}}\w+)*: (({_RELATION})\b.*|\w+\.?)$")
REMEDY = """
say what it is, with its noun and unit ("name: the tensor's name.", "length: length of the body, bytes.",
"The settings of the application."), or where that is said ("timeout: see `Client`.")"""


def violations(text: str) -> Iterator[tuple[int, str]]:
    """Numbers and texts of the lines of docstrings that begin with a preposition, or are one word."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first, *rest = node.value.value.split("\n")
            if BEGIN.match(first) or not (rest or " " in first):
                yield node.lineno, first
            for number, line in enumerate(rest, node.lineno + 1):
                if ENTRY.match(line):
                    yield number, line.strip()


def test_every_docstring_names_what_it_describes() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in violations(path.read_text("utf-8"))
    ]

    assert not found, "\n".join([*found, REMEDY])


def test_a_docstring_without_a_noun_is_found() -> None:
    text = '''
def f(length: int, name: str, size: int, *rest: int) -> None:
    """Counts bytes.

    Args:
        length: of the body.
        name: the body's name.
        size: bytes.
        *rest: as in `g`.
    """

LIMIT = 1
"""Of the application."""

def g() -> None:
    """Zeros."""
'''

    assert [line for _, line in violations(text)] == [
        "Of the application.",
        "length: of the body.",
        "size: bytes.",
        "*rest: as in `g`.",
        "Zeros.",
    ]
