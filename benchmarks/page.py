"""Write the tables and plots of docs/performance.md and performance-tables.md, and tables of two other pages of docs/.

    python -m benchmarks.page build/bench.json
    python -m benchmarks.page --gpu build/gpu.json build/gpu-service.json
    python -m benchmarks.page --inference build/open-inference.json

The runs are kept beside the pages as docs/performance.json, docs/open-inference.json and, one for each kind of GPU,
docs/performance-gpu.json. What stands between a page's markers and docs/images/performance-*.svg are written from them,
docs/deploy.md and docs/open-inference.md included; the rest of a page is written by hand.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import plots
from .__main__ import SECTIONS
from .capacity import capacity
from .losses import losses
from .report import Figure, Run, Section, Table, markdown
from .servers import ROOT

PAGES = ROOT / "docs" / "performance.md", ROOT / "docs" / "performance-tables.md"
FIGURES = ROOT / "docs" / "performance.json"
DEPLOY = ROOT / "docs" / "deploy.md"
GPU_FIGURES = ROOT / "docs" / "performance-gpu.json"
INFERENCE_PAGE = ROOT / "docs" / "open-inference.md"
INFERENCE_FIGURES = ROOT / "docs" / "open-inference.json"
MISSING = "Not measured in the run that this page shows; `python -m benchmarks --only {}` measures it."
MARKED = re.compile(r"(<!-- begin (?P<name>[a-z]+): written by benchmarks/page\.py -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Copy the figures, and write the page anew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("json", type=Path, nargs="?", help="what python -m benchmarks wrote")
    parser.add_argument(
        "--gpu", type=Path, nargs=2, metavar=("FORMS", "SERVICE"), help="what gpu.py and gpu_service.py wrote"
    )
    parser.add_argument("--inference", type=Path, metavar="JSON", help="what python -m benchmarks.open_inference wrote")
    options = parser.parse_args()
    if options.inference:
        Run.read(options.inference).write(INFERENCE_FIGURES)
    INFERENCE_PAGE.write_text(with_inference(INFERENCE_PAGE.read_text(), Run.read(INFERENCE_FIGURES)))
    if options.json:
        Run.read(options.json).write(FIGURES)
    if options.gpu:
        kernels, service = (json.loads(path.read_text()) for path in options.gpu)
        known = json.loads(GPU_FIGURES.read_text()) | {kernels["device"]: {"kernels": kernels, "service": service}}
        GPU_FIGURES.write_text(json.dumps(known, indent=1) + "\n")
    run = Run.read(FIGURES)
    plots.write(run, plots.IMAGES)
    DEPLOY.write_text(with_capacity(DEPLOY.read_text(), run))
    texts = filled([page.read_text() for page in PAGES], run, json.loads(GPU_FIGURES.read_text()))
    for page, text in zip(PAGES, texts, strict=True):
        page.write_text(text)


def filled(pages: Sequence[str], run: Run, gpu: dict[str, Any]) -> list[str]:
    """The texts of the pages with what the run found between their markers.

    A section that the run lacks is named as missing.

    Raises:
        ValueError: a marker names what there is not, or a section has no place on any page.
    """
    parts: dict[str, Callable[[], str]] = {
        **{name: lambda name=name: MISSING.format(name) for name in SECTIONS},
        "losses": lambda: titled(losses(run, gpu)),
        "plots": lambda: plots.markdown(plots.plots(run)),
        "gpu": lambda: "\n\n".join(of_gpu_kernels(found["kernels"]) for found in gpu.values()),
        "gpuservice": lambda: "\n\n".join(of_gpu_service(found["service"]) for found in gpu.values()),
        **_common_parts(run),
    }
    return _with_parts(pages, parts)


def with_inference(page: str, run: Run) -> str:
    """docs/open-inference.md with what the run found between its markers.

    Raises:
        ValueError: a marker names what there is not, or a section has no place on the page.
    """
    return _with_parts([page], _common_parts(run))[0]


def _common_parts(run: Run) -> dict[str, Callable[[], str]]:
    return {
        "machine": lambda: "\n".join(run.machine.lines()),
        "sections": lambda: markdown(
            ("section", "begun, UTC", "commit", "seconds", "cores others used"), list(_when(run))
        ),
        **{section.name: lambda section=section: of_section(section) for section in run.sections},
    }


def _with_parts(pages: Sequence[str], parts: Mapping[str, Callable[[], str]]) -> list[str]:
    placed = [match["name"] for page in pages for match in MARKED.finditer(page)]
    if set(placed) != set(parts):
        raise ValueError(f"the pages have places for {sorted(placed)}, and there are {sorted(parts)}")
    return [MARKED.sub(lambda match: f"{match[1]}{parts[match['name']]()}\n{match[3]}", page) for page in pages]


def with_capacity(page: str, run: Run) -> str:
    """docs/deploy.md with what one server does in that run."""
    return MARKED.sub(lambda match: f"{match[1]}{capacity(run)}\n{match[3]}", page)


def titled(tables: Iterable[Table]) -> str:
    """Each table under its title; a table without rows is left out."""
    return "\n\n".join(f"**{table.title}**\n\n{without_targets(table).markdown()}" for table in tables if table.rows)


def without_targets(table: Table) -> Table:
    """The table as users read it: figures without what we want them to be."""
    rows = [
        tuple([replace(cell, target=None) if isinstance(cell, Figure) else cell for cell in row]) for row in table.rows
    ]
    return replace(table, rows=tuple(rows))


def of_section(section: Section) -> str:
    """Tables, notes, and what is missing."""
    notes = "\n".join(f"* {note}" for note in section.notes)
    missing = "\n".join(f"* Left out: {what}" for what in section.left_out)
    return "\n\n".join(filter(None, [titled(section.tables), "\n".join(filter(None, [notes, missing]))]))


def of_gpu_kernels(found: dict[str, Any]) -> str:
    """What benchmarks/gpu.py found: shares of the device's own copy."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    rows: list[list[str]] = []
    for row in found["rows"]:
        shares: dict[str, float] = row["share"]
        cells = [f"{shares[name]:.2f}" if name in shares else "-" for name in ("ours", "torch", "cupy")]
        rows.append([row["group"], row["job"], row["dtype"], f"{row['MiB']:.0f}", *cells])
    head = ("", "job", "type", "MiB moved", "ours", "torch", "CuPy")
    copy = sorted(row["copy GB/s"] for row in found["rows"])[len(found["rows"]) // 2]
    overhead = markdown(("call", "us"), [[name, f"{value:.1f}"] for name, value in found["overhead"].items()])
    return (
        f"### {found['device']}\n\n"
        f"{versions}; the device's own copy moves {copy:,.0f} GB/s. Medians of {found['rounds']} rounds.\n\n"
        f"{markdown(head, rows)}\n\n**Host time of a call on a small tensor**\n\n{overhead}"
    )


def of_gpu_service(found: dict[str, Any]) -> str:
    """What benchmarks/gpu_service.py found: the service beside its null backend, and one GPU beside all of them."""
    rows: list[list[str]] = []
    for job, seconds in found.items():
        if job not in ("devices", "batch"):
            cells = [f"{seconds[backend] * 1e3:.2f}" for backend in ("null", "cuda")]
            rows.append([job, *cells, f"{seconds['null'] / seconds['cuda']:.2f}"])
    batch: dict[str, float] = found["batch"]
    one = batch["one device"]
    compared = [[name, f"{seconds:.2f}", f"{one / seconds:.2f}"] for name, seconds in batch.items()]
    through = f"### {', '.join(found['devices'])}\n\n{markdown(('job', 'null, ms', 'cuda, ms', 'null / cuda'), rows)}"
    if len(batch) == 1:
        return through
    return f"{through}\n\n**A batch of 64 requests, without the wire**\n\n{markdown(('', 's', 'times one'), compared)}"


def _when(run: Run) -> Iterator[list[str]]:
    """One row per section."""
    for section in run.sections:
        began = section.began.removesuffix("+00:00").replace("T", " ")
        others = "-" if section.others is None else f"{section.others:.2f}"
        yield [section.name, began, section.commit, f"{section.seconds:.0f}", others]


if __name__ == "__main__":
    main()
