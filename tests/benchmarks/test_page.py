"""The pages of measurements and the plots say what docs/performance.json holds, and the losses what the figures say."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from benchmarks.losses import losses
from benchmarks.page import (
    DEPLOY,
    FIGURES,
    GPU_FIGURES,
    INFERENCE_FIGURES,
    INFERENCE_PAGE,
    PAGES,
    filled,
    titled,
    with_capacity,
    with_inference,
)
from benchmarks.report import Cell, Figure, Run, Section, Table, Target
from benchmarks.sizes import Job, in_bytes, words

from benchmarks import plots

RUN = Run.read(FIGURES)
GPU = json.loads(GPU_FIGURES.read_text())
TEXTS = [page.read_text() for page in PAGES]


def run_of(name: str, title: str, columns: tuple[str, ...], *rows: tuple[Cell, ...]) -> Run:
    section = Section(name, "2026-01-01T00:00:00+00:00", "abc", 1.0, None, (Table(title, columns, rows),))
    return replace(RUN, sections=(section,))


def cells(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in row] for row in table.rows]


def test_the_pages_tables_are_those_of_the_committed_run() -> None:
    assert filled(TEXTS, RUN, GPU) == TEXTS, "run: python -m benchmarks.page docs/performance.json"


def test_the_deployment_page_counts_with_the_committed_run() -> None:
    text = DEPLOY.read_text()
    assert with_capacity(text, RUN) == text, "run: python -m benchmarks.page docs/performance.json"


def test_the_tables_of_the_open_inference_protocol_are_those_of_the_committed_run() -> None:
    text, run = INFERENCE_PAGE.read_text(), Run.read(INFERENCE_FIGURES)

    assert with_inference(text, run) == text, "run: python -m benchmarks.page"
    assert all(table.rows for section in run.sections for table in section.tables)


def test_the_plots_are_those_of_the_committed_run() -> None:
    drawn = {path.name: path.read_text("utf-8") for path in plots.IMAGES.glob(f"{plots.PREFIX}*.svg")}
    assert drawn == {name: plots.svg(plot) for name, plot in plots.plots(RUN).items()}, (
        "run: python -m benchmarks.plots"
    )
    assert drawn


def test_the_committed_run_is_a_full_one() -> None:
    assert not RUN.quick
    assert {section.name for section in RUN.sections} >= {
        "startup",
        "memory",
        "wire",
        "sdk",
        "small",
        "peers",
        "kernels",
    }
    assert all(table.rows for section in RUN.sections for table in section.tables)


def test_a_section_without_a_place_on_the_page_is_refused() -> None:
    with pytest.raises(ValueError, match="places"):
        filled(TEXTS, replace(RUN, sections=(*RUN.sections, replace(RUN.sections[0], name="weather"))), GPU)


def test_a_section_that_was_not_measured_is_named_on_the_page() -> None:
    without = replace(RUN, sections=tuple(section for section in RUN.sections if section.name != "startup"))
    assert "`python -m benchmarks --only startup` measures it" in filled(TEXTS, without, GPU)[1]


def test_losses_are_the_rows_behind_by_time_and_by_speed() -> None:
    # Times by hand: 3 against 2 is 1.5 times; 4 against 4 and 1 against 2 are not behind.
    kernels = run_of(
        "kernels", "Tile", ("work", "type", "numba", "torch", "numba / fastest"),
        ("long", "uint8", Figure(3), Figure(2), Figure(9)),
        ("short", "uint8", Figure(1), Figure(2), Figure(9)),
        ("even", "uint8", Figure(4), Figure(4), Figure(9)),
        ("alone", "uint8", Figure(4), None, Figure(9)),
    )  # fmt: skip
    programs, limits = losses(kernels, {})
    assert cells(programs) == [["Tile, numba backend", "torch", "1 of 3", "1.50", "long, uint8"]]
    assert not limits.rows
    # Speeds by hand: 2 GB/s against 5 take 2.5 times as long.
    wire = run_of(
        "wire", "Bodies in", ("size", "TCP, GB/s", "tensorpost, GB/s", "FastAPI, GB/s"),
        ("1 MiB", Figure(5), Figure(2), Figure(1)),
        ("2 MiB", Figure(2), Figure(3), Figure(1)),
    )  # fmt: skip
    programs, limits = losses(wire, {})
    assert not programs.rows
    assert cells(limits) == [["Bodies in", "TCP", "1 of 2", "2.50", "1 MiB"]]


def test_pages_have_no_targets() -> None:
    table = Table("t", ("row", "x"), (("1 MiB", Figure(1.5, target=Target("speed", 2))),))
    assert titled([table]) == "**t**\n\n|   row |    x |\n| ----: | ---: |\n| 1 MiB | 1.50 |"


def test_a_plot_has_both_axes_logarithmic_and_words_for_those_who_do_not_see_it() -> None:
    line = plots.Line("a & b", ((1024.0, 1e-4), (32768.0, 1e-3), (1048576.0, 1e-2)))
    picture = ElementTree.fromstring(plots.svg(plots.Plot("<t>", "text", (line,))))
    name = "{http://www.w3.org/2000/svg}"
    points = picture.find(f".//{name}polyline")
    assert points is not None
    (x0, y0), (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in points.attrib["points"].split())
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)  # 32 times as many bytes both times
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.2)  # 10 times as long
    assert picture.findtext(f"{name}title") == "<t>"
    assert "a & b: 100 \N{MICRO SIGN}s at 1 KiB, 10 ms at 1 MiB" in str(picture.findtext(f"{name}desc"))


@pytest.mark.parametrize(
    ("size", "repeats"), [(1 << 10, (1, 1, 2, 2)), (1 << 25, (1, 1, 2, 2)), (10 << 30, (10, 1, 2, 2))]
)
def test_jobs_have_the_size_of_their_row(size: int, repeats: tuple[int, ...]) -> None:
    job = Job.of_size(size)
    assert (job.nbytes, job.repeats, in_bytes(words(size))) == (size, repeats, size)
