"""Hooks of MkDocs: top documents become pages, links to other files become names, nothing comes from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files  # pyright: ignore[reportMissingImports] # installed by `make docs` only

__all__ = ["on_files", "on_page_markdown", "on_post_page", "on_post_template"]

_ROOT = Path(__file__).parents[1]
_TOP = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([^)#]+)(#[^)]*)?\)")
_INSIDE = re.compile(r"\]\(docs/")
# The theme loads a script from the network, which makes the search work in pages that no server serves.
_SCRIPT = re.compile(r'<script src="https?://[^"]*"></script>')


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


def on_post_page(output: str, **_: Any) -> str:
    """Leave out scripts of other hosts."""
    return _SCRIPT.sub("", output)


def on_post_template(output_content: str, **_: Any) -> str:
    """The same in pages that are made from no document, such as the one for a missing page."""
    return _SCRIPT.sub("", output_content)
