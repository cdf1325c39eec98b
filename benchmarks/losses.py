"""Where something else is ahead of tensorpost, found in the figures of runs: what docs/performance.md begins with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .report import Cell, Figure, Run, Section, Table

NOISE = 1.01  # our time over theirs; less is a tie
SOCKETS = "sockets, bare"  # of the section sdk
SPEEDS = ("GB/s", "req/s")  # where more is better; of all else less is
NULL, LOCAL = "null backend, which computes nothing", "NumPy in the caller's process"
LIMITS = {"TCP", SOCKETS, "copies", NULL, LOCAL}  # not products: what is left where HTTP or computing costs nothing


@dataclass(frozen=True)
class Pair:
    """A figure of ours beside one of another's.

    Attributes:
        compared: what was measured.
        other: whose figure the other one is.
        row: which row of a table.
        slower: our time over theirs, or their speed over ours.
    """

    compared: str
    other: str
    row: str
    slower: float


def losses(run: Run, gpu: Mapping[str, Any]) -> tuple[Table, Table]:
    """Every comparison in which a row is behind, the furthest behind first: with other programs, then with limits."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in [*(pair for section in run.sections for pair in pairs(section)), *gpu_pairs(gpu)]:
        groups.setdefault((pair.compared, pair.other), []).append(pair)
    behind = [(max(group, key=lambda pair: pair.slower), group) for group in groups.values()]
    rows: list[tuple[Cell, ...]] = [
        (
            worst.compared,
            worst.other,
            f"{sum(pair.slower > NOISE for pair in group)} of {len(group)}",
            Figure(worst.slower),
            worst.row,
        )
        for worst, group in sorted(behind, key=lambda found: -found[0].slower)
        if worst.slower > NOISE
    ]
    columns = ("compared", "ahead of tensorpost", "in rows", "our time / theirs, worst", "worst row")
    programs, limits = (tuple(row for row in rows if (row[1] in LIMITS) == limit) for limit in (False, True))
    return Table("Other programs that are ahead", columns, programs), Table("Distance to the limits", columns, limits)


def pairs(section: Section) -> Iterator[Pair]:
    """Everything in a section that has ours and another's figure."""
    for table in section.tables:
        if section.name == "sdk":
            yield from _ways(table)
            continue
        for row in table.rows:
            yield from _row(section.name, table, row)


def gpu_pairs(gpu: Mapping[str, Any]) -> Iterator[Pair]:
    """Kernels beside torch and CuPy, and the service beside its null backend."""
    for device, found in gpu.items():
        for row in found["kernels"]["rows"]:
            shares: dict[str, float] = row["share"]
            for name in ("torch", "cupy"):
                if name in shares:
                    slower = shares[name] / shares["ours"]
                    yield Pair(f"kernels on {device}", name, f"{row['group']} {row['job']} {row['dtype']}", slower)
        calls: dict[str, float] = found["kernels"]["overhead"]
        for ours, theirs in (("ours, tile", "torch.tile"), ("ours, linear", "torch, bilinear")):
            slower = calls[ours] / calls[theirs]
            yield Pair(f"host time of a small call on {device}", theirs, ours.removeprefix("ours, "), slower)
        for job, seconds in found["service"].items():
            if job not in ("devices", "batch"):
                slower = seconds["cuda"] / seconds["null"]
                yield Pair(f"service on {device}", NULL, job, slower)


def _ways(table: Table) -> Iterator[Pair]:
    """The client's tables have ways down and sizes across; the ratios at their end follow from the rest."""
    rows = {str(row[0]): row[1:] for row in table.rows}
    ours = {way: cells for way, cells in rows.items() if way.startswith("tensorpost")}
    for index, size in enumerate(table.columns[1:]):
        if not size.endswith((", GB/s", ", us")):
            continue
        for way, cells in ours.items():
            for other in [name for name in rows.keys() - ours.keys() if _kind(name) == _kind(way)]:
                mine, theirs = cells[index], rows[other][index]
                if isinstance(mine, Figure) and isinstance(theirs, Figure):
                    compared = f"SDK, {table.title.lower()}"
                    yield Pair(compared, other, f"{way}: {size.rpartition(',')[0]}", _slower(size, mine, theirs))


def _kind(way: str) -> tuple[bool, bool]:
    """Whether a client of the section sdk speaks TLS, and whether it is one for asyncio."""
    return "TLS" in way, "async" in way.lower()


def _row(section: str, table: Table, row: Sequence[Cell]) -> Iterator[Pair]:
    """The comparisons in one row."""
    cells = dict(zip(table.columns, row, strict=True))
    for compared, ours, others in _sides(section, table, cells):
        mine = cells.get(ours)
        for name, column in others.items():
            theirs = cells.get(column)
            if isinstance(mine, Figure) and isinstance(theirs, Figure):
                yield Pair(compared, name, _label(cells), _slower(ours, mine, theirs))


def _sides(section: str, table: Table, cells: Mapping[str, Cell]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """What is compared in a table, our column, and the others' columns by their names."""
    match section:
        case "wire":
            names = ("TCP", "uvicorn", "FastAPI")
            yield table.title, "tensorpost, GB/s", {name: f"{name}, GB/s" for name in names}
        case "sizes":
            yield "one call, HTTP", "HTTP, ms", {"TCP": "TCP, ms", "FastAPI": "FastAPI, ms"}
            yield "one call, SDK", "SDK, ms", {"TCP": "TCP, ms", LOCAL: "NumPy, ms"}
        case "peers":
            yield "large tensors, SDK", "tensorpost, GB/s", {str(cells["product"]): "theirs, GB/s"}
        case "small":
            for what in ("req/s", "p50 us", "p99 us"):
                yield (
                    f"small requests, {what.removesuffix(' us')}",
                    f"ours, {what}",
                    {str(cells["against"]): f"theirs, {what}"},
                )
        case "kernels":
            ours = [name for name in ("numba", "numpy", "ours") if name in table.columns]
            end = next(index for index, name in enumerate(table.columns) if "/" in name)
            others = {name: name for name in table.columns[2:end] if name not in ours}
            for name in ours:
                compared = table.title if name == "ours" else f"{table.title}, {name} backend"
                yield compared, name, others
        case _:
            return


def _label(cells: Mapping[str, Cell]) -> str:
    """The words of a row without the other's name, and for small requests its connections."""
    words = [cell for name, cell in cells.items() if isinstance(cell, str) and name not in ("against", "product")]
    connections = [f"connections: {cell}" for name, cell in cells.items() if name == "connections"]
    return ", ".join([*words, *connections])


def _slower(column: str, mine: Figure, theirs: Figure) -> float:
    return theirs.value / mine.value if column.endswith(SPEEDS) else mine.value / theirs.value
