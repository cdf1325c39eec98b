"""Write what a run found: `python -m tests.directml_device.page` makes docs/directml.json and the page's tables.

Reads what `validation ask` and `conformance ask` left in build/directml. With `--page` only the tables of
docs/directml.md and docs/directml-windows.md are written anew, from the JSON and the list of known failures.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorpost_server.backends import load_backend

from .conformance import Difference, computed, difference, told_answers
from .deviations import DEVIATIONS, FOLLOWS
from .differences import DIFFERENCES, difference_of
from .levels import LEVEL_DIFFERENCES, compared_levels
from .validation import ours, told_verdicts
from .xfail_reasons import listed

__all__ = ["JSON", "PAGE", "WINDOWS_PAGE", "listed_table", "tables", "with_listed", "written"]

_EACH = ("same", "rounding", "different", "none", "not explained")
ROOT = Path(__file__).parents[2]
JSON = ROOT / "docs" / "directml.json"
PAGE = ROOT / "docs" / "directml.md"
WINDOWS_PAGE = ROOT / "docs" / "directml-windows.md"


def found() -> dict[str, Any]:
    """The counts of a run."""
    verdicts = told_verdicts()
    known: Counter[str] = Counter()
    for item in verdicts:
        codes = ours(item.operator, item.fields)
        if item.accepted == bool(codes):
            reason = difference_of(item, codes)
            known[f"{_named(reason.operators)}{reason.what}" if reason else "not explained"] += 1
    words: dict[str, Counter[str]] = defaultdict(Counter)
    numpy = load_backend("numpy")()
    for call in told_answers():
        words[call.operator].update(["none"] if call.error else _words(difference(call, computed(numpy, call))))
    return {
        "descriptors": len(verdicts),
        "accepted": sum(item.accepted for item in verdicts),
        "ended": sum(item.code in ("ended", "0xC0000005") for item in verdicts),
        "differences": dict(known),
        "levels": compared_levels(),
        "answers": {operator: dict(counts) for operator, counts in sorted(words.items())},
    }


def _words(seen: Difference) -> list[str]:
    if seen.unexplained:
        return ["not explained"]
    if seen.reasons:
        return ["different", *seen.reasons]
    return ["same" if seen.same else "rounding"]


def tables(run: dict[str, Any]) -> dict[str, str]:
    """The tables of the page, by the name in their markers."""
    differences = run["differences"]
    verdicts = [
        ["asked", f"{run['descriptors']:,}", ""],
        ["accepted by both or refused by both", f"{run['descriptors'] - sum(differences.values()):,}", ""],
        *[
            [
                f"{_named(known.operators)}{known.what}",
                str(differences.get(f"{_named(known.operators)}{known.what}", 0)),
                known.reason,
            ]
            for known in DIFFERENCES
        ],
        ["not explained", str(differences.get("not explained", 0)), ""],
        ["DirectML read foreign memory, which ends a process", str(run["ended"]), "refused here"],
    ]
    answers: list[list[str]] = []
    alike: list[str] = []
    for operator, counts in run["answers"].items():
        numbers = [counts.get(word, 0) for word in ("same", "rounding", "different", "none")]
        cells = [str(number) if number else "" for number in numbers]
        if cells[1:] == ["", "", ""]:
            alike.append(f"`{operator}`")
        else:
            answers.append([f"`{operator}`", *cells])
    calls = sum(sum(counts.get(word, 0) for word in _EACH) for counts in run["answers"].values())
    totals = [sum(counts.get(word, 0) for counts in run["answers"].values()) for word in _EACH]
    answers.insert(0, [f"all {len(run['answers'])}, {calls:,} calls", *[f"{number:,}" for number in totals[:4]]])
    reasons = [
        [
            known.reason,
            str(sum(counts.get(known.reason, 0) for counts in run["answers"].values())),
            ", ".join(f"`{name}`" for name, counts in run["answers"].items() if known.reason in counts),
            FOLLOWS[known.follows],
        ]
        for known in DEVIATIONS
    ]
    reasons.append(["not explained", str(totals[4]), "", ""])
    return {
        "verdicts": _table(
            ["descriptors", "how many", "why tensorpost refuses what DirectML accepts, or the other way"], verdicts
        ),
        "answers": f"Every byte of all calls of {len(alike)} operators: {', '.join(alike)}. The others:\n\n"
        + _table(["operator", "same", "within 8 units", "different", "no answer"], answers),
        "levels": _table(
            ["DirectML", "level", "accepted", "refused", "as tensorpost says", "otherwise"], _levels(run["levels"])
        )
        + "\n\n"
        + _table(["otherwise", "why tensorpost says so"], [[known.what, known.reason] for known in LEVEL_DIFFERENCES]),
        "reasons": _table(["why", "calls", "operators", "who follows the page"], reasons),
    }


def _levels(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows: list[list[str]] = []
    for one in found:
        accepted, refused, differ = one.get("accepted", 0), one.get("refused", 0), sum(one["differ"].values())
        what = "; ".join(f"{number}: {words}" for words, number in one["differ"].items())
        rows.append([one["version"], one["level"], *map(str, (accepted, refused, accepted + refused - differ)), what])
    return rows


def _named(operators: Sequence[str]) -> str:
    if len(operators) > 4:
        return f"{operators[0]} and {len(operators) - 1} like it: "
    return f"{', '.join(operators)}: " if operators else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def listed_table() -> str:
    """What the backend answers otherwise than the vectors have it, by reason."""
    rows = [
        [str(len(row.files)), row.reason, ", ".join(f"`{name}`" for name in dict.fromkeys(row.files)), row.follows]
        for row in listed()
    ]
    rows.append([str(sum(int(row[0]) for row in rows)), "all", "", ""])
    return _table(["cases", "what", "files of vectors", "who follows the page"], rows)


def written(page: str, run: dict[str, Any]) -> str:
    """The page with its tables replaced."""
    for name, table in tables(run).items():
        page = _replaced(page, name, table)
    return page


def with_listed(page: str) -> str:
    """The page of the backend with its table of known failures replaced."""
    return _replaced(page, "listed", listed_table())


def _replaced(page: str, name: str, table: str) -> str:
    pattern = rf"(<!-- begin {name}: [^\n]*-->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda match: f"{match[1]}{table}\n{match[2]}", page, count=1, flags=re.DOTALL)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.directml_device.page")
    parser.add_argument("--page", action="store_true", help="from the JSON that is there")
    if not parser.parse_args().page:
        JSON.write_text(json.dumps(found(), indent=1) + "\n")
    PAGE.write_text(written(PAGE.read_text(), json.loads(JSON.read_text())))
    WINDOWS_PAGE.write_text(with_listed(WINDOWS_PAGE.read_text()))


if __name__ == "__main__":
    main()
