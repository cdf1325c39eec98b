"""Hooks of MkDocs: the documents at the top of the repository become pages, and links to other files become names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files  # pyright: ignore[reportMissingImports] # installed by `make docs` only

__all__ = ["on_files", "on_page_markdown"]

_ROOT = Path(__file__).parents[1]
_TOP = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([^)#]+)(#[^)]*)?\)")
_INSIDE = re.compile(r"\]\(docs/")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the top documents to the pages."""
    for name in _TOP:
        text = _INSIDE.sub("](", (_ROOT / name).read_text("utf-8"))
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that leave the site's folder: to a top document as it is placed here, else the name without a link."""
    depth = page.file.src_uri.count("/")

    def place(match: re.Match[str]) -> str:
        text, climbs, target, anchor = match.groups()
        if climbs.count("../") <= depth:
            return match[0]
        if target in _TOP:
            return f"[{text}]({'../' * depth}{target}{anchor or ''})"
        return f"{text} (`{target}` in the repository)"

    return _OUTSIDE.sub(place, markdown)
