"""`mkdocs.yml` names every page, and the Python page names what exists. The site itself is built by `make docs`."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tensorpost
from tensorpost.descriptors import operator_names
from tensorpost.reference.onnx_page import onnx_names

ROOT = Path(__file__).parents[2]
AT_THE_TOP = {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}


def test_every_page_has_its_place_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    named = re.findall(r": ([\w/-]+\.md)$", navigation, re.MULTILINE)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").glob("*.md")}
    assert len(named) == len(set(named))
    assert set(named) == pages | AT_THE_TOP | {"decisions/README.md"}


@pytest.mark.parametrize("name", re.findall(r"^::: (\S+)$", (ROOT / "docs/python.md").read_text("utf-8"), re.MULTILINE))
def test_what_the_python_page_names_exists_and_is_described(name: str) -> None:
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        found = getattr(importlib.import_module(module), attribute)
    assert found.__doc__


def test_the_python_page_names_every_call_of_the_client() -> None:
    page = (ROOT / "docs/python.md").read_text("utf-8")
    table = page.partition("## At a glance")[2].partition("## Calling a server")[0]
    calls = {name for name in vars(tensorpost.Client) if not name.startswith("_")}
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
    assert calls <= named
    assert {name for name in named if name[0].islower()} <= {*dir(tensorpost.Client)}


def test_the_site_is_built(tmp_path: Path) -> None:
    python = ROOT / "build" / "docs-environment" / "bin" / "python"
    if not python.exists():
        pytest.skip("MkDocs is not there; `make docs` installs it")
    command = [str(python), "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr
    assert "Descriptor" in (tmp_path / "python.html").read_text("utf-8")
    listed = (tmp_path / "operators.html").read_text("utf-8")
    for address in ("operators/gather.html", "operators/resample2.html", "operators/onnx/Resize.html"):
        assert f'href="{address}"' in listed
        assert (tmp_path / address).exists()
    assert len(re.findall(r'<a href="operators/[^"]+"', listed)) == len(operator_names()) + len(onnx_names())
    assert "IndexDimensions" in (tmp_path / "operators/gather.html").read_text("utf-8")
    for page in tmp_path.rglob("*.html"):
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://[^"]+"', page.read_text("utf-8")), (
            page.name
        )
    assert sys.platform == "win32" or (tmp_path / "search" / "search_index.js").exists()
