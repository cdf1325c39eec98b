"""Blocks of a page about an operator, and the same page as Markdown or HTML.

In a text, what stands between backticks is code; nothing else is markup.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["PageBlock", "PageCode", "PageHeading", "PageTable", "PageText", "blocks_html", "blocks_markdown"]

_CODE = re.compile(r"(`[^`]+`)")


@dataclass(frozen=True, slots=True)
class PageHeading:
    """A heading.

    Attributes:
        text: its words.
        level: 1 for the page's own, 2 for a section.
    """

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class PageText:
    """A paragraph.

    Attributes:
        text: its sentences, in one line.
    """

    text: str


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table.

    Attributes:
        heads: the titles of the columns.
        rows: the cells of each row, as many as there are columns.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class PageCode:
    """Lines of code, or of a formula.

    Attributes:
        language: Markdown's name of the language; `text` for a formula.
        text: the lines, without a line feed at the end.
    """

    language: str
    text: str


PageBlock: TypeAlias = PageHeading | PageText | PageTable | PageCode


def blocks_markdown(blocks: Sequence[PageBlock]) -> str:
    """The page as Markdown, with a line feed at its end."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def blocks_html(blocks: Sequence[PageBlock]) -> str:
    """The page as the content of an HTML body; everything is escaped."""
    return "\n".join(map(_html, blocks)) + "\n"


def _markdown(block: PageBlock) -> str:
    match block:
        case PageHeading(text, level):
            return f"{'#' * level} {text}"
        case PageText(text):
            return _inline_markdown(text)
        case PageCode(language, text):
            return f"```{language}\n{text}\n```"
        case PageTable(heads, rows):
            lines = [heads, tuple(["---"] * len(heads)), *rows]
            return "\n".join(f"| {' | '.join(map(_cell_markdown, line))} |" for line in lines)


def _cell_markdown(text: str) -> str:
    return _inline_markdown(text).replace("|", "\\|")


def _inline_markdown(text: str) -> str:
    """Text in which no character outside of code begins markup."""
    return _apart(
        text, lambda plain: re.sub(r"([\\*\[\]#]|(?<!\w)_|_(?!\w))", r"\\\1", plain).replace("<", "&lt;"), str
    )


def _html(block: PageBlock) -> str:
    match block:
        case PageHeading(text, level):
            anchor = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
            return f'<h{level} id="{anchor}">{_inline_html(text)}</h{level}>'
        case PageText(text):
            return f"<p>{_inline_html(text)}</p>"
        case PageCode(_, text):
            return f"<pre><code>{html.escape(text)}</code></pre>"
        case PageTable(heads, rows):
            head = "".join(f"<th>{_inline_html(cell)}</th>" for cell in heads)
            body = "\n".join(f"<tr>{''.join(map(_cell_html, heads, row))}</tr>" for row in rows)
            return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'


def _cell_html(head: str, cell: str) -> str:
    """A cell that names its column, for screens on which a row is shown as a list."""
    return f'<td data-column="{html.escape(head.replace("`", ""))}">{_inline_html(cell)}</td>'


def _inline_html(text: str) -> str:
    return _apart(text, html.escape, lambda code: f"<code>{html.escape(code[1:-1])}</code>")


def _apart(text: str, plain: Callable[[str], str], code: Callable[[str], str]) -> str:
    """The text with one function applied to its code, backticks included, and another one to the rest."""
    return "".join(code(part) if _CODE.fullmatch(part) else plain(part) for part in _CODE.split(text))
