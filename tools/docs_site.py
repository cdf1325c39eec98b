"""Hooks of MkDocs: pages for top documents and operators, names for links to other files, nothing from elsewhere."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files  # pyright: ignore[reportMissingImports] # installed by `make docs` only

__all__ = ["on_files", "on_page_markdown", "on_post_page", "on_post_template", "operator_pages", "with_links"]

_ROOT = Path(__file__).parents[1]
_TOP = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([^)#]+)(#[^)]*)?\)")
_OPERATORS = "operators.md"
_ROW = re.compile(r"^\| (\w+) \|", re.MULTILINE)
_INSIDE = re.compile(r"\]\(docs/")
# The theme loads a script from the network, which makes the search work in pages that no server serves.
_SCRIPT = re.compile(r'<script src="https?://[^"]*"></script>')


def operator_pages() -> dict[str, str]:
    """Markdown of the page of each operator, by the page's path in the site."""
    sys.path.insert(0, str(_ROOT / "client"))  # the SDK of this tree, which need not be installed
    reference: Any = importlib.import_module("tensorpost.reference.operator_reference")
    directml: Any = importlib.import_module("tensorpost.reference.operator_page")
    onnx: Any = importlib.import_module("tensorpost.reference.onnx_page")
    markdown = importlib.import_module("tensorpost.reference.page_blocks").blocks_markdown
    names: list[str] = importlib.import_module("tensorpost.descriptors").operator_names()
    pages = {
        f"operators/{name.lower()}.md": markdown(directml.operator_page(reference.operator_reference(name)))
        for name in names
    }
    pages |= {
        f"operators/onnx/{name}.md": markdown(onnx.onnx_page(onnx.onnx_reference(name))) for name in onnx.onnx_names()
    }
    return pages


def with_links(markdown: str) -> str:
    """The list of operators, in which the first cell of each row leads to the operator's page.

    Args:
        markdown: the page `operators.md`.
    """
    return _ROW.sub(lambda row: f"| [{row[1]}](operators/{_page_of(row[1])}.md) |", markdown)


def _page_of(name: str) -> str:
    return name.lower() if name.isupper() else f"onnx/{name}"


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the top documents and a page for each operator to the pages."""
    for name, content in operator_pages().items():
        files.append(File.generated(config, name, content=content))
    for name in _TOP:
        text = _INSIDE.sub("](", (_ROOT / name).read_text("utf-8"))
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that leave the site's folder: to a top document as it is placed here, else the name without a link."""
    if page.file.src_uri == _OPERATORS:
        markdown = with_links(markdown)
    depth = page.file.src_uri.count("/")

    def place(match: re.Match[str]) -> str:
        text, climbs, target, anchor = match.groups()
        if climbs.count("../") <= depth:
            return match[0]
        if target in _TOP:
            return f"[{text}]({'../' * depth}{target}{anchor or ''})"
        return f"{text} (`{target}` in the repository)"

    return _OUTSIDE.sub(place, markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Leave out scripts of other hosts."""
    return _SCRIPT.sub("", output)


def on_post_template(output_content: str, **_: Any) -> str:
    """The same in pages that are made from no document, such as the one for a missing page."""
    return _SCRIPT.sub("", output_content)
