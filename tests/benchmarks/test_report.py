"""What a run found keeps its meaning: in words, in JSON and back, and when part of it is measured anew."""

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.machine import Machine
from benchmarks.report import Figure, Run, Section, Table, Target, verdicts

AT_LEAST = Target("speed", 0.8)
AT_MOST = Target("time", 1.2, at_most=True)
MACHINE = Machine("a processor", 2, 1 << 30, "a system", "a Python", {"numpy": "2.0"}, 0.5)


def section(name: str, *rows: tuple[Figure | str | None, ...]) -> Section:
    return Section(
        name, "2026-01-01T00:00:00+00:00", "abc", 1.5, None, (Table("t", ("what", "x"), rows),), ("n",), ("l",)
    )


@pytest.mark.parametrize(
    ("value", "target", "words"),
    [
        (0.8, AT_LEAST, "0.80 (>= 0.8)"),
        (0.7999, AT_LEAST, "0.80 (>= 0.8, missed)"),
        (1.2, AT_MOST, "1.20 (<= 1.2)"),
        (1.2001, AT_MOST, "1.20 (<= 1.2, missed)"),
        (1234.5, None, "1,234.50"),
    ],
)
def test_a_figure_is_judged_as_measured_and_not_as_printed(value: float, target: Target | None, words: str) -> None:
    assert str(Figure(value, target=target)) == words


def test_cells_of_one_target_are_judged_together_by_the_worst() -> None:
    fast = section("a", ("one", Figure(0.9, target=AT_LEAST)), ("two", Figure(0.5, target=AT_LEAST)), ("no", None))
    slow = section("b", ("one", Figure(1.0, target=AT_MOST)), ("two", Figure(1.1, target=AT_MOST)), ("no", Figure(9)))

    assert [[str(cell) for cell in row] for row in verdicts([fast, slow]).rows] == [
        ["speed", ">= 0.8", "0.50", "in 1 of 2"],
        ["time", "<= 1.2", "1.10", "yes, in all 2"],
    ]


def test_a_table_refuses_a_row_that_is_too_short() -> None:
    with pytest.raises(ValueError, match="1 cells under 2 columns"):
        Table("t", ("what", "x"), (("one",),))


def test_markdown_aligns_numbers_to_the_right() -> None:
    assert Table("t", ("what", "x"), (("one", Figure(10)), ("two", None))).markdown().splitlines() == [
        "| what |     x |",
        "| ---- | ----: |",
        "| one  | 10.00 |",
        "| two  |     - |",
    ]


def test_a_run_comes_back_from_its_file(tmp_path: Path) -> None:
    run = Run(MACHINE, False, (section("a", ("one", Figure(0.5, 3, AT_MOST)), ("two", "words"), ("three", None)),))

    run.write(tmp_path / "new" / "run.json")

    assert Run.read(tmp_path / "new" / "run.json") == run


def test_a_section_measured_anew_replaces_the_old_one() -> None:
    old = Run(MACHINE, False, (section("a", ("old", None)), section("b", ("kept", None))))
    new = Run(replace(MACHINE, load=1.5), False, (section("a", ("new", None)),))

    merged = old.with_sections_of(new)

    assert [(one.name, one.tables[0].rows[0][0]) for one in merged.sections] == [("a", "new"), ("b", "kept")]


@pytest.mark.parametrize(
    "other",
    [
        Run(replace(MACHINE, versions={"numpy": "2.1"}), False, ()),
        Run(replace(MACHINE, processor="another"), False, ()),
        Run(MACHINE, True, ()),
    ],
)
def test_figures_that_do_not_belong_together_stay_apart(other: Run) -> None:
    with pytest.raises(ValueError, match="start anew"):
        Run(MACHINE, False, ()).with_sections_of(other)
