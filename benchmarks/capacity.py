"""What one server does, for the arithmetic of docs/deploy.md, from the figures of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .report import Cell, Figure, Run, markdown
from .sizes import in_bytes
from .sockets import MIB

LARGE = 64 * MIB  # bytes of a body from which on the wire is the limit


def capacity(run: Run) -> str:
    """Rates of one server and what limits each, as a table."""
    small = [*_rows(run, "small")]
    bodies = [row for row in _rows(run, "wire") if in_bytes(str(row["size"])) >= LARGE]
    calls = [_value(row["ours, req/s"]) for row in small if _value(row["connections"]) > 1 and not _by_sdk(row)]
    client = [_value(row["ours, req/s"]) for row in small if _by_sdk(row)]
    # Bytes of an element over nanoseconds of an element.
    float32 = [row for row in _rows(run, "kernels") if row["type"] == "float32" and "numba" in row]
    tile, linear = (
        max((4 / _value(row["numba"]) for row in float32 if str(row["work"]).startswith(work)), default=0.0)
        for work in ("rows of 256", "linear x2")
    )
    speeds = [_value(row["tensorpost, GB/s"]) for row in bodies]
    loop, copy = "the event loop: one core", "the event loop and the kernel's copy: one core"
    rows = [
        ["small calls (768 bytes in, 3 KiB out), 8 and 64 connections", _range(calls, "a second"), loop],
        ["large bodies in, or out", _range(speeds, "GB/s"), copy],
        ["output of Tile and linear Resample x2, float32, backend `numba`", f"{tile:.0f}, {linear:.0f} GB/s", "memory"],
    ]
    if client:
        rows.append(["small calls of one process with the Python client", _range(client, "a second"), "Python"])
    return markdown(("", "measured", "limited by"), rows)


def _rows(run: Run, name: str) -> Iterator[Mapping[str, Cell]]:
    for section in run.sections:
        for table in section.tables if section.name == name else ():
            for row in table.rows:
                yield dict(zip(table.columns, row, strict=True))


def _by_sdk(row: Mapping[str, Cell]) -> bool:
    return str(row["asked by"]).endswith("our SDK")


def _range(values: list[float], unit: str) -> str:
    """The least and the most, to two digits."""
    least, most = (f"{float(f'{value:.2g}'):,g}" for value in (min(values), max(values)))
    return f"{least} to {most} {unit}"


def _value(cell: Cell) -> float:
    assert isinstance(cell, Figure)
    return cell.value
