"""The examples of CONTRIBUTING.md are added to a copy of the tree, as the page says, and then served."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
BLOCK = re.compile(
    r"^In `(?P<path>[\w./]+)`(?:, below `(?P<above>[^`]+)`)?:\n\n"
    r"(?:<!--[^\n]*-->\n)?```(?:python|text|json)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SHOWN = re.compile(r"^<!-- in (?P<path>[\w./]+): [^\n]*-->\n```text\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = {"ELEMENT_WISE_SQRT": 2, "SLICE": 34}
"""Operator to the most lines of its row or class, its form and its name in `__all__`, blank ones not counted."""

SERVED = """
import sys
from tests.conformance.suite import check_bytes
from tests.support.live_server import live_server
from tests.support.vectors import elements, vectors_files
from tensorpost import Client
from tensorpost_server.backends.numpy_ import NumpyBackend

files = [file for file in vectors_files() if file.operator in sys.argv[1:]]
with live_server(TENSORPOST_BACKEND="numpy") as url, Client(url) as tp:
    listed = {entry["name"] for entry in tp.operators()["operators"]}
    for file in files:
        assert file.operator.lower() in listed, file.operator
        for case in file.cases:
            check_bytes(NumpyBackend(), case)
            tensors = {slot.name: elements(slot, data) for slot, data in zip(case.desc.inputs, case.inputs)}
            case.check_array("output", tp.run(case.desc, tensors), *case.outputs())
        for rejected in file.rejected:
            rejected.check()
        print(file.operator, len(file.cases), len(file.rejected))
"""


def blocks() -> list[tuple[Path, str, str | None]]:
    """The files that the page names, with what it puts there, and below which line; None for the end."""
    return [(Path(match["path"]), match["text"], match["above"]) for match in BLOCK.finditer(PAGE)]


def remove(tree: Path) -> None:
    """Take what the page shows out of this tree, where it is by now: word for word, so that the page stays true."""
    for path, text, _ in blocks():
        if path.suffix == ".json":
            (tree / path).unlink(missing_ok=True)
            continue
        code = (tree / path).read_text("utf-8")
        for name in re.findall(r"^class (\w+)", text, re.MULTILINE):
            code = code.replace(f'    "{name}",\n', "", 1)
        (tree / path).write_text(code.replace(text, "", 1), "utf-8")
    run(tree, "-m", "tests.support.families").check_returncode()


def add(tree: Path) -> None:
    """Do what the page says, in this tree: what it shows goes below a line, to the end of a file or is a new one."""
    for path, text, above in blocks():
        if path.suffix == ".json":
            (tree / path).write_text(text, "utf-8")
            continue
        code = (tree / path).read_text("utf-8")
        for name in re.findall(r"^class (\w+)", text, re.MULTILINE):
            code = code.replace("__all__ = [\n", f'__all__ = [\n    "{name}",\n', 1)
        added = code.replace(f"{above}\n", f"{above}\n{text}", 1) if above else f"{code}\n\n{text}"
        (tree / path).write_text(added, "utf-8")
    run(tree, "-m", "tests.support.families").check_returncode()


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, in this tree."""
    paths = os.pathsep.join(str(tree / name) for name in ("client", "app", "."))
    return subprocess.run(
        [sys.executable, *arguments], cwd=tree, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip


def operators(tree: Path) -> set[str]:
    """The operators that this tree has."""
    code = "from tensorpost.descriptors import OPERATORS; print(*[cls.operator_type for cls in OPERATORS])"
    ran = run(tree, "-c", code)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split())


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("tree")
    for name in ("client", "app", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    remove(copy)
    assert not EXAMPLES.keys() & operators(copy), "the page shows other lines than the tree has"
    add(copy)
    return copy


def test_the_examples_are_served_and_right(tree: Path) -> None:
    ran = run(tree, "-c", SERVED, *EXAMPLES)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["ELEMENT_WISE_SQRT", "3", "0", "SLICE", "2", "1"]


def test_rows_of_onnx_operators_are_those_of_the_tree() -> None:
    rows = [(match["path"], match["text"]) for match in SHOWN.finditer(PAGE)]

    assert len(rows) == 3
    for path, text in rows:
        assert text in (ROOT / path).read_text("utf-8"), f"{path} has another row"


@pytest.mark.parametrize("operator", EXAMPLES)
def test_they_are_as_short_as_the_page_says(operator: str) -> None:
    stem = operator.title().replace("_", "")
    code = [(text, above) for path, text, above in blocks() if path.suffix == ".py"]
    shown = [(text, above) for text, above in code if f"{stem}OperatorDesc" in text or f'"{operator}"' in text]
    named = sum(1 for text, above in shown if text.startswith("class "))  # in __all__
    lines = sum(1 for text, _ in shown for line in text.splitlines() if line) + named

    assert len(shown) == 2, "two files beside the vectors"
    assert lines <= EXAMPLES[operator]
