"""Write the tables of docs/performance.md from a run: `python -m benchmarks.page build/bench.json`.

The run is kept beside the page as docs/performance.json. What stands between the page's markers is written from it; the
rest of the page is written by hand.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from .report import Run, Section, markdown, verdicts
from .servers import ROOT

PAGE = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "docs" / "performance.json"
MARKED = re.compile(r"(<!-- begin (?P<name>[a-z]+): written by benchmarks/page\.py -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Copy the figures, and write the page anew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("json", type=Path, help="what python -m benchmarks wrote")
    run = Run.read(parser.parse_args().json)
    run.write(FIGURES)
    PAGE.write_text(filled(PAGE.read_text(), run))


def filled(page: str, run: Run) -> str:
    """The page with what the run found between its markers.

    Raises:
        ValueError: a marker names what the run has not, or a section of the run has no place on the page.
    """
    parts: dict[str, Callable[[], str]] = {
        "machine": lambda: "\n".join(run.machine.lines()),
        "targets": lambda: verdicts(run.sections).markdown(),
        "sections": lambda: markdown(
            ("section", "begun, UTC", "commit", "seconds", "cores others used"), list(_when(run))
        ),
        **{section.name: lambda section=section: of_section(section) for section in run.sections},
    }
    placed = [match["name"] for match in MARKED.finditer(page)]
    if set(placed) != set(parts):
        raise ValueError(f"the page has places for {sorted(placed)}, and there are {sorted(parts)}")
    return MARKED.sub(lambda match: f"{match[1]}{parts[match['name']]()}\n{match[3]}", page)


def of_section(section: Section) -> str:
    """Tables, notes, and what is missing."""
    tables = [f"**{table.title}**\n\n{table.markdown()}" for table in section.tables]
    notes = "\n".join(f"* {note}" for note in section.notes)
    missing = "\n".join(f"* Left out: {what}" for what in section.left_out)
    return "\n\n".join(filter(None, [*tables, "\n".join(filter(None, [notes, missing]))]))


def _when(run: Run) -> Iterator[list[str]]:
    """One row per section."""
    for section in run.sections:
        began = section.began.removesuffix("+00:00").replace("T", " ")
        others = "-" if section.others is None else f"{section.others:.2f}"
        yield [section.name, began, section.commit, f"{section.seconds:.0f}", others]


if __name__ == "__main__":
    main()
