"""The lowest feature level of descriptors by older releases of DirectML: `python -m tests.directml_device.levels`.

A device takes everything that its DirectML knows, whatever level it was made for (`docs/directml.md`). Older releases
do not know more than their own level, so they are asked instead: of the descriptors that both accept at the newest
level, does an older DirectML accept those that tensorpost says its level has, and no others?

* `ask FOLDER COUNT`: FOLDER, as Windows Python sees it, holds `RELEASE/DirectML.dll` for each of `RELEASES`.
* `compare`: print what agrees, and what does not by operator and reason. Fails where something has no reason here.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorpost.descriptors import FeatureLevel, operator_class
from tensorpost.values.problems import UnsupportedAtLevel

from .validation import ACCEPTED, ANSWERS, Judged, codes_of, ours, told_verdicts

__all__ = ["LEVEL_DIFFERENCES", "RELEASES", "LevelDifference", "compared_levels"]

RELEASES = {
    "1.9.0": "1.5.1", "1.10.0": "1.8.0", "1.13.1": "1.9.1", "1.14.0": "1.10.1", "1.15.1": "1.12.0", "1.17.3": "1.13.1",
    "1.18.1": "1.14.1",
}  # fmt: skip
"""Of onnxruntime-directml, and of the DirectML in it."""


@dataclass(frozen=True)
class LevelDifference:
    """A known way in which a release differs from what tensorpost says of its level.

    Attributes:
        what: what the release does.
        reason: why tensorpost says otherwise.
        covers: whether a descriptor is of that kind, by the release, the descriptor, whether the release accepts it,
            and our codes against it.
    """

    what: str
    reason: str
    covers: Callable[[str, Judged, bool, Sequence[str]], bool]


_NEWER_INTEGERS = {"ACTIVATION_SHRINK", "ELEMENT_WISE_ADD", "ELEMENT_WISE_DIVIDE"}
LEVEL_DIFFERENCES = (
    LevelDifference(
        "1.9.1 tells 5_0 and takes what is new in 5_1 and 5_2",
        "it lies between the levels: onnxruntime-directml 1.13.1 has it from before 5_1 was named",
        lambda release, item, accepted, _: release == "1.9.1" and accepted and not accepts(item, FeatureLevel(0x5200)),
    ),
    LevelDifference(
        "integers of SHRINK, ADD and DIVIDE that their pages have from 5_1 on",
        "the releases take them earlier than the pages say; others of the level may not, so the pages are followed",
        lambda _, item, accepted, against: accepted
        and item.operator in _NEWER_INTEGERS
        and all(code.startswith("data-type-unsupported") for code in against),
    ),
    LevelDifference(
        "JOIN of other ranks than 4 and 5", "likewise: its page has them from 4_1 on",
        lambda release, item, accepted, _: accepted and item.operator == "JOIN" and release == "1.5.1",
    ),
    LevelDifference(
        "1.5.1 refuses a RELU_GRAD of fewer than 4 dimensions, and a NONZERO_COORDINATES of 5 with coordinates of 4",
        "the pages' tables of 3_0 have both",
        lambda release, item, accepted, _: release == "1.5.1"
        and not accepted
        and item.operator in ("ACTIVATION_RELU_GRAD", "NONZERO_COORDINATES"),
    ),
)  # fmt: skip


def ask(folder: str, count: int) -> None:
    """See the module."""
    for release, version in RELEASES.items():
        library = f"{folder}/{release}/DirectML.dll"
        told = subprocess.run(
            [*shlex.split(os.environ["DIRECTML_PYTHON"]), "-m", "tests.directml_device.ask", "level"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace", check=True, timeout=300,
            env={**os.environ, "DIRECTML_DLL": library},
        ).stdout  # fmt: skip
        level = json.loads(next(line for line in told.splitlines() if line.startswith("{")))["level"]
        print(version, level, flush=True)
        codes = codes_of(0, count, library)
        ANSWERS.mkdir(parents=True, exist_ok=True)
        _file(version).write_text(json.dumps({"level": level, "codes": codes}))


def _file(version: str) -> Path:
    return ANSWERS / f"levels-{version}.json"


def accepts(item: Judged, level: FeatureLevel) -> tuple[str, ...]:
    """Our reasons against a descriptor at a level; none if it is taken there."""
    try:
        operator_class(item.operator)(**item.fields).validate_for(level)
    except UnsupportedAtLevel as refusal:
        return tuple(sorted({f"{found.code}@{found.path[0] if found.path else ''}" for found in refusal.violations}))
    return ()


def compared_levels(examples: int = 0) -> list[dict[str, Any]]:
    """What each older release answered, and how often tensorpost says otherwise of its level."""
    both = [
        (index, item)
        for index, item in enumerate(told_verdicts())
        if item.accepted and not ours(item.operator, item.fields)
    ]
    found: list[dict[str, Any]] = []
    for version in RELEASES.values():
        if not _file(version).is_file():
            continue
        told = json.loads(_file(version).read_text())
        level = FeatureLevel(int(told["level"], 16))
        counts: Counter[str] = Counter()
        differ: Counter[str] = Counter()
        for index, item in both:
            code = told["codes"].get(str(index))
            if code is None:
                continue
            theirs, against = code == ACCEPTED, accepts(item, level)
            counts["accepted" if theirs else "refused"] += 1
            if theirs == bool(against):
                known = [one for one in LEVEL_DIFFERENCES if one.covers(version, item, theirs, against)]
                differ[known[0].what if known else "not explained"] += 1
                if not known or differ.total() <= examples:
                    print(version, item.operator, code, *against, json.dumps(item.fields))
        found.append({"version": version, "level": str(level), **counts, "differ": dict(differ.most_common())})
    return found


def compare(examples: int) -> int:
    """See the module; how many descriptors nobody has explained."""
    unexplained = 0
    for one in compared_levels(examples):
        differ = one.pop("differ")
        print(one, sum(differ.values()), "differ")
        for what, number in differ.items():
            print("   ", number, what)
        unexplained += differ.get("not explained", 0)
    return unexplained


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.directml_device.levels")
    commands = parser.add_subparsers(dest="command", required=True)
    of_ask = commands.add_parser("ask")
    of_ask.add_argument("folder")
    of_ask.add_argument("count", type=int)
    commands.add_parser("compare").add_argument("--examples", type=int, default=0)
    options = parser.parse_args()
    if options.command == "ask":
        ask(options.folder, options.count)
    else:
        sys.exit(int(compare(options.examples) > 0))


if __name__ == "__main__":
    main()
