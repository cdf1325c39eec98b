"""What a run found, as values: printed as tables, written as JSON, read back for docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from .machine import Machine


@dataclass(frozen=True)
class Target:
    """A ratio that is wanted.

    Attributes:
        measure: what it is a ratio of; cells that share it are judged together.
        bound: the ratio.
        at_most: whether smaller is better.
    """

    measure: str
    bound: float
    at_most: bool = False

    def met_by(self, value: float) -> bool:
        """Whether a ratio, as it was measured and not as it is printed, is good enough."""
        return value <= self.bound if self.at_most else value >= self.bound

    def worst(self, values: Iterable[float]) -> float:
        """The ratio that is furthest from what is wanted."""
        return max(values) if self.at_most else min(values)

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.bound:g}"


@dataclass(frozen=True)
class Figure:
    """A number in a table, and what it should be, if anything was said about it."""

    value: float
    digits: int = 2
    target: Target | None = None

    def __str__(self) -> str:
        text = f"{self.value:,.{self.digits}f}"
        if self.target is None:
            return text
        return f"{text} ({self.target}{'' if self.target.met_by(self.value) else ', missed'})"


Cell = Figure | str | None  # None: not measured


@dataclass(frozen=True)
class Table:
    """Rows under a title; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: {len(row)} cells under {len(self.columns)} columns: {row}")

    def markdown(self) -> str:
        """The table with its columns in line, which is readable in a terminal too."""
        return markdown(self.columns, [[in_words(cell) for cell in row] for row in self.rows])


@dataclass(frozen=True)
class Section:
    """One group of measurements.

    Attributes:
        name: what `--only` calls it.
        began: time at which it began, in ISO 8601.
        commit: the commit of the code that was measured; with "+" if files differed from it.
        seconds: how long it took.
        others: cores that other programs kept busy in the second before; None where the system does not tell.
        tables: what was found.
        notes: how it was found.
        left_out: what could not be compared, and why.
    """

    name: str
    began: str
    commit: str
    seconds: float
    others: float | None
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """Everything, and on what."""

    machine: Machine
    quick: bool
    sections: tuple[Section, ...]

    def with_sections_of(self, newer: Run) -> Run:
        """The same run with what another measured anew on the same machine.

        Raises:
            ValueError: the machine, a version or the kind of run is another; such figures do not belong together.
        """
        if self.machine.fixed() != newer.machine.fixed() or self.quick != newer.quick:
            raise ValueError("those figures are of another machine, of other versions, or of a quick run: start anew")
        sections = {section.name: section for section in (*self.sections, *newer.sections)}
        return Run(newer.machine, self.quick, tuple(sections.values()))

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_ADAPTER.dump_json(self, indent=1) + b"\n")

    @staticmethod
    def read(path: Path) -> Run:
        """Read it from JSON; raises `pydantic.ValidationError` if the file is something else."""
        return _ADAPTER.validate_json(path.read_bytes())


_ADAPTER = TypeAdapter(Run)


def verdicts(sections: Iterable[Section]) -> Table:
    """Every target, the ratio that is furthest from it, and whether it is met everywhere."""
    found: dict[Target, list[float]] = {}
    for section in sections:
        for table in section.tables:
            for cell in (cell for row in table.rows for cell in row):
                if isinstance(cell, Figure) and cell.target is not None:
                    found.setdefault(cell.target, []).append(cell.value)
    rows: list[tuple[Cell, ...]] = []
    for target, values in found.items():
        met = sum(target.met_by(value) for value in values)
        verdict = ("yes" if met else "no") if len(values) == 1 else f"in {met} of {len(values)}"
        if len(values) > 1 and met == len(values):
            verdict = f"yes, in all {met}"
        rows.append((target.measure, str(target), Figure(target.worst(values)), verdict))
    return Table("Targets", ("measure", "target", "measured, worst", "met"), tuple(rows))


def in_words(cell: Cell) -> str:
    """What stands in a table."""
    return "-" if cell is None else str(cell)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns that hold only numbers are aligned to the right."""
    widths = [max(len(row[index]) for row in [columns, *rows]) for index in range(len(columns))]
    right = [all(row[index][:1] in "-0123456789" for row in rows) for index in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(cells, widths, right, strict=True)]
        return f"| {' | '.join(padded)} |"

    rule = [f"{'-' * (width - 1)}{':' if r else '-'}" for width, r in zip(widths, right, strict=True)]
    return "\n".join([line(columns), line(rule), *map(line, rows)])
