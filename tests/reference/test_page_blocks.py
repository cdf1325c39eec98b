"""Blocks as Markdown and HTML: what is text stays text, whatever characters it has."""

from __future__ import annotations

import html.parser

from tensorpost.reference.page_blocks import (
    PageCode,
    PageHeading,
    PageTable,
    PageText,
    blocks_html,
    blocks_markdown,
)

BLOCKS = (
    PageHeading("GATHER_ND", 1),
    PageText("A << B & `a <b> | c`; [x] and *y*."),
    PageTable(("Field", "Meaning"), (("`A|B`", "1 | 2"),)),
    PageCode("text", "y = a < b"),
)


class Texts(html.parser.HTMLParser):
    """The tags and texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html_escapes_everything() -> None:
    page = Texts()
    page.feed(blocks_html(BLOCKS))

    assert "b" not in page.tags
    text = "".join(page.texts)
    assert "A << B & a <b> | c; [x] and *y*." in text
    assert "y = a < b" in text
    assert page.tags.count("td") == page.tags.count("th") == 2


def test_markdown_has_no_markup_of_its_own() -> None:
    heading, text, table, code = blocks_markdown(BLOCKS).rstrip("\n").split("\n\n")

    assert heading == "# GATHER_ND"
    assert text == "A &lt;&lt; B & `a <b> | c`; \\[x\\] and \\*y\\*."
    assert table == "| Field | Meaning |\n| --- | --- |\n| `A\\|B` | 1 \\| 2 |"
    assert code == "```text\ny = a < b\n```"
