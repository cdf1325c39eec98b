"""Draw docs/images/performance-*.svg: what a call costs by its size, and the same beside other products.

    python -m benchmarks.plots [RUN.json] [--into FOLDER]

`python -m benchmarks` draws them beside its JSON, and `python -m benchmarks.page` beside the page's other pictures.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from .peers.bulk import TITLE as BULK_TABLE
from .report import Figure, Run, Table
from .servers import ROOT
from .sizes import TITLE as SIZES_TABLE
from .sizes import in_bytes, words
from .small import PRODUCTS_TITLE as SMALL_TABLE

IMAGES = ROOT / "docs" / "images"
PREFIX = "performance-"
SMALL_OUTPUT = 3 << 10  # bytes that the job `small` gives back
WIDTH, HEIGHT = 760, 470
LEFT, TOP, RIGHT, BOTTOM = 70, 66, 176, 56  # margins; the names of the lines stand in the right one
LABEL = 17  # pixels between the names of two lines
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "\N{MICRO SIGN}s"))
# Colours that people with any kind of colour vision tell apart (Okabe and Ito's, darker or lighter), for either scheme.
LIGHT = ("#0b5cad", "#a34700", "#007a5a", "#9c3d79", "#6b5b00", "#4f5b66", "#b3261e", "#00727f", "#5e45b8", "#c2185b")
DARK = ("#6cb6ff", "#f0a35e", "#4ac69b", "#e597c4", "#d9c74a", "#adbac7", "#ff8a80", "#56d4dd", "#b8a6ff", "#ff79b0")
MARKS = ("circle", "square", "diamond", "triangle")
NAMES = {
    "NumPy": "NumPy, no server",
    "TCP": "plain TCP, no work",
    "HTTP": "tensorpost, HTTP",
    "SDK": "tensorpost, SDK",
    "SDK, null": "SDK, null backend",
}  # of columns of the section sizes
Axis = Callable[[float], float]


@dataclass(frozen=True)
class Line:
    """Seconds of a call by the bytes of its output.

    Attributes:
        name: the text beside its end.
        points: bytes and seconds, by bytes.
        strong: whether it is ours, drawn thicker.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    strong: bool = False


@dataclass(frozen=True)
class Plot:
    """A picture and its words.

    Attributes:
        title: what it shows.
        text: what stands under it on the page, and is read out in its place.
        lines: the lines of the plot, in the order of their colours.
    """

    title: str
    text: str
    lines: tuple[Line, ...]


def plots(run: Run) -> dict[str, Plot]:
    """The plots that a run has the sections for, by their file names."""
    tables = {(section.name, table.title): table for section in run.sections for table in section.tables}
    found: dict[str, Plot] = {}
    sizes = tables.get(("sizes", SIZES_TABLE))
    if sizes is not None:
        found[f"{PREFIX}sizes.svg"] = by_size(sizes)
    small, large = tables.get(("small", SMALL_TABLE)), tables.get(("peers", BULK_TABLE))
    if small is not None and large is not None and small.rows:
        found[f"{PREFIX}products.svg"] = beside_products(small, large)
    return found


def by_size(table: Table) -> Plot:
    """One line for each way of the section `sizes`."""
    lines: list[Line] = []
    for index, column in enumerate(table.columns[1:], 1):
        points = [(in_bytes(str(row[0])), row[index]) for row in table.rows]
        seconds = tuple((size, cell.value / 1e3) for size, cell in points if isinstance(cell, Figure))
        name = column.removesuffix(", ms")
        lines.append(Line(NAMES.get(name, name), seconds, strong=name in ("HTTP", "SDK")))
    ends = f"{table.rows[0][0]} to {table.rows[-1][0]}"
    text = (
        f"Time of one call of Tile, from {ends} of output; the input is a quarter of it. Client and server share one "
        "machine. The notes of the table of this name say how each line was measured."
    )
    return Plot("What one call costs, by the size of its output", text, tuple(lines))


def beside_products(small: Table, large: Table) -> Plot:
    """Three sizes for tensorpost and for each product, from the sections `small` and `peers`."""
    ours: dict[float, list[float]] = {}
    http: list[float] = []
    theirs: dict[str, dict[float, float]] = {}
    for row in _named(small):
        if _value(row["connections"]) != 1:
            continue
        by_sdk = str(row["asked by"]).endswith("our SDK")
        (ours.setdefault(SMALL_OUTPUT, []) if by_sdk else http).append(_value(row["ours, p50 us"]) / 1e6)
        theirs.setdefault(str(row["against"]), {})[SMALL_OUTPUT] = _value(row["theirs, p50 us"]) / 1e6
    for row in _named(large):
        size = float(in_bytes(str(row["job"])))
        ours.setdefault(size, []).append(size / _value(row["tensorpost, GB/s"]) / 1e9)
        theirs.setdefault(str(row["product"]), {})[size] = size / _value(row["theirs, GB/s"]) / 1e9
    lines = [
        Line("tensorpost, SDK", tuple((size, statistics.median(ours[size])) for size in sorted(ours)), strong=True)
    ]
    lines.append(Line("tensorpost, HTTP", ((SMALL_OUTPUT, statistics.median(http)),), strong=True))
    lines += [Line(name, tuple(sorted(points.items()))) for name, points in theirs.items()]
    text = (
        "Time of one call of Tile on one connection. At 3 KiB: the median under load. There a product with a client "
        "of its own is asked by that client, and the others by a load generator over HTTP: compare those with the "
        "point of tensorpost over HTTP. At 16 and 256 MiB: the whole call, client included; tensorpost is asked by its "
        "SDK. Nothing was measured between the marks."
    )
    return Plot("What one call costs, beside other products", text, tuple(lines))


def svg(plot: Plot) -> str:
    """The picture, both axes logarithmic; it follows the reader's light or dark colour scheme."""
    sizes = [size for line in plot.lines for size, _ in line.points]
    times = [seconds for line in plot.lines for _, seconds in line.points]
    first, last = math.log2(min(sizes)), math.log2(max(sizes))
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))

    def x(size: float) -> float:
        return LEFT + (math.log2(size) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(seconds) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [*_grid(sorted(set(sizes)), range(low, high + 1), x, y)]
    heights: dict[Line, float] = dict(
        zip(plot.lines, _apart([y(line.points[-1][1]) for line in plot.lines]), strict=True)
    )
    for line in sorted(plot.lines, key=lambda line: line.strong):  # ours above the others
        parts += _drawn(line, plot.lines.index(line), heights[line], x, y)
    return "\n".join([*_head(plot), *parts, "</svg>\n"])


def markdown(plotted: Mapping[str, Plot]) -> str:
    """The pictures as the page shows them, each with its text."""
    return "\n\n".join(f"![{plot.title}](images/{name})\n\n{plot.text}" for name, plot in plotted.items())


def write(run: Run, folder: Path) -> list[Path]:
    """Write every plot of a run; a plot that it has not is removed."""
    plotted = plots(run)
    for path in folder.glob(f"{PREFIX}*.svg"):
        if path.name not in plotted:
            path.unlink()
    for name, plot in plotted.items():
        (folder / name).write_text(svg(plot), "utf-8")
    return [folder / name for name in plotted]


def main() -> None:
    """Draw them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("json", type=Path, nargs="?", default=ROOT / "docs" / "performance.json", metavar="RUN.json")
    parser.add_argument("--into", type=Path, default=IMAGES, metavar="FOLDER", help="default: docs/images")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    for path in write(Run.read(options.json), options.into):
        print(path)


# ---- parts of a picture ----------------------------------------------------------------------------------------------


def _head(plot: Plot) -> Iterator[str]:
    """The title, the description, the colours."""
    colours = " ".join(f".c{number}{{--c:{light}}}" for number, light in enumerate(LIGHT))
    dark = " ".join(f".c{number}{{--c:{colour}}}" for number, colour in enumerate(DARK))
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" aria-labelledby="t d" font-family="system-ui,sans-serif" font-size="13">'
    )
    yield f'<title id="t">{escape(plot.title)}</title>'
    yield f'<desc id="d">{escape(plot.text)} {escape(_spoken(plot.lines))}</desc>'
    yield (
        "<style>\n"
        ":root{--back:#ffffff;--text:#24292f;--soft:#57606a;--grid:#d8dee4}\n"
        f"{colours}\n"
        "@media (prefers-color-scheme:dark){\n"
        ":root{--back:#161b22;--text:#e6edf3;--soft:#9ea7b3;--grid:#30363d}\n"
        f"{dark}\n"
        "}\n"
        "text{fill:var(--text)} .soft{fill:var(--soft)} .grid{stroke:var(--grid)} .back{fill:var(--back)}\n"
        ".line{fill:none;stroke:var(--c);stroke-linejoin:round} .mark{fill:var(--c);stroke:var(--back)} "
        ".name{fill:var(--c)} .to{stroke:var(--c);stroke-opacity:.4;fill:none}\n"
        "</style>"
    )
    yield f'<rect class="back" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
    yield f'<text x="16" y="28" font-size="16" font-weight="600">{escape(plot.title)}</text>'
    yield '<text class="soft" x="16" y="49">time of one call; less is better</text>'


def _grid(sizes: Sequence[float], powers: Sequence[int], x: Axis, y: Axis) -> Iterator[str]:
    """Lines and numbers of both axes."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for power in powers:
        height = y(10.0**power)
        yield f'<line class="grid" x1="{LEFT}" y1="{height:.1f}" x2="{right}" y2="{height:.1f}"/>'
        yield f'<text class="soft" x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{_seconds(10.0**power)}</text>'
    for size in sizes:
        across = x(size)
        yield f'<line class="grid" x1="{across:.1f}" y1="{TOP}" x2="{across:.1f}" y2="{bottom}"/>'
        yield f'<text class="soft" x="{across:.1f}" y="{bottom + 18}" text-anchor="middle">{words(int(size))}</text>'
    middle = (LEFT + right) / 2
    yield f'<text class="soft" x="{middle:.1f}" y="{HEIGHT - 12}" text-anchor="middle">bytes of output</text>'


def _drawn(line: Line, index: int, height: float, x: Axis, y: Axis) -> Iterator[str]:
    """A line with its marks, and its name in the right margin."""
    at = [(x(size), y(seconds)) for size, seconds in line.points]
    yield f'<g class="c{index % len(LIGHT)}">'
    thickness = 3 if line.strong else 1.6
    listed = " ".join(f"{across:.1f},{down:.1f}" for across, down in at)
    yield f'<polyline class="line" stroke-width="{thickness}" points="{listed}"/>'
    for across, down in at:
        yield _mark(MARKS[index % len(MARKS)], across, down, 5.0 if line.strong else 4.0)
    across, down = at[-1]
    begin = WIDTH - RIGHT + 12.0
    if len(at) == 1:
        begin, height = across, down  # its name stands beside it
    else:
        yield f'<path class="to" d="M{across + 7:.1f} {down:.1f}L{begin:.1f} {height:.1f}h6"/>'
    weight = ' font-weight="600"' if line.strong else ""
    yield f'<text class="name" x="{begin + 10:.1f}" y="{height + 4:.1f}"{weight}>{escape(line.name)}</text>'
    yield "</g>"


def _mark(kind: str, x: float, y: float, r: float) -> str:
    """A mark around a point."""
    match kind:
        case "circle":
            return f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
        case "square":
            return f'<rect class="mark" x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r}" height="{2 * r}"/>'
        case "diamond":
            r *= 1.25
            return f'<path class="mark" d="M{x:.1f} {y - r:.1f}l{r} {r}l{-r} {r}l{-r} {-r}z"/>'
        case _:
            r *= 1.2
            return f'<path class="mark" d="M{x:.1f} {y - r:.1f}l{r} {2 * r}h{-2 * r}z"/>'


def _apart(heights: Sequence[float]) -> list[float]:
    """The same heights, moved so that no two names overlap and all stay within the plot."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed, least = dict[int, float](), TOP + 0.0
    for index in order:
        placed[index] = least = max(heights[index], least)
        least += LABEL
    most = HEIGHT - BOTTOM + 0.0
    for index in reversed(order):
        placed[index] = most = min(placed[index], most)
        most -= LABEL
    return [placed[index] for index in range(len(heights))]


def _spoken(lines: Sequence[Line]) -> str:
    """The first and the last point of every line."""
    said: list[str] = []
    for line in lines:
        ends = dict(line.points[:1] + line.points[-1:])
        said.append(f"{line.name}: " + ", ".join(f"{_seconds(t)} at {words(int(size))}" for size, t in ends.items()))
    return "; ".join(said) + "."


def _seconds(seconds: float) -> str:
    """A time with its unit, to three digits."""
    size, unit = next(((size, unit) for size, unit in UNITS if seconds >= size * 0.9999), UNITS[-1])
    return f"{seconds / size:.3g} {unit}" if seconds / size < 1000 else f"{seconds / size:.0f} {unit}"


def _named(table: Table) -> Iterator[dict[str, object]]:
    for row in table.rows:
        yield dict(zip(table.columns, row, strict=True))


def _value(cell: object) -> float:
    assert isinstance(cell, Figure)
    return cell.value


if __name__ == "__main__":
    main()
