"""Compare the validation of descriptors with DirectML's own: `python -m tests.directml_device.validation COMMAND`.

* `ask COUNT`: ask DirectML about so many random descriptors, or those from `--start` on, in Windows processes of a
  thousand each; a process that ends early costs one case, which is listed. Needs a command that runs Windows
  Python, in DIRECTML_PYTHON.
* `compare`: judge the same descriptors here; print how the verdicts differ, by operator and rule. Fails where one has
  no reason in `differences`.
* `keep`: write the fixture that `tests/contract/test_directml_verdicts.py` reads.

The answers stay in `build/directml/` until they are kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import os
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorpost.descriptors import operator_class
from tensorpost.values.problems import InvalidDescriptor, UnsupportedAtLevel

from .descriptor_cases import cases
from .differences import difference_of

__all__ = ["ACCEPTED", "ANSWERS", "FIXTURE", "Judged", "codes_of", "kept", "ours", "told_verdicts"]

ROOT = Path(__file__).parents[2]
ANSWERS = ROOT / "build" / "directml"
FIXTURE = ROOT / "tests" / "directml_device" / "verdicts.jsonl.gz"
CHUNK = 1000
MOST_FAILURES = 5  # of processes that open no device
ACCEPTED = "0x00000000"


@dataclass(frozen=True)
class Judged:
    """A descriptor with both verdicts.

    Attributes:
        operator: short name.
        fields: of the C struct.
        mutations: how it was made.
        code: CreateOperator's HRESULT; `ended` if the process ended instead.
    """

    operator: str
    fields: dict[str, Any]
    mutations: tuple[str, ...]
    code: str

    @property
    def accepted(self) -> bool:
        """Whether DirectML creates the operator."""
        return self.code == ACCEPTED


def ours(operator: str, fields: dict[str, Any]) -> tuple[str, ...]:
    """The codes of the rules that tensorpost says are broken, sorted; empty if it accepts the descriptor at 6_4."""
    try:
        desc = operator_class(operator)(**fields)
        desc.validate_for()
    except (InvalidDescriptor, UnsupportedAtLevel) as refusal:
        return tuple(sorted({f"{found.code}@{found.path[0] if found.path else ''}" for found in refusal.violations}))
    return ()


# ---- asking ----------------------------------------------------------------------------------------------------------


def ask(start: int, stop_at: int) -> None:
    """See the module."""
    codes = codes_of(start, stop_at)
    # With the documents: a later catalogue draws others.
    items = [Judged(case.operator, case.fields, case.mutations, codes[case.index]) for case in cases(stop_at)[start:]]
    _write(ANSWERS / f"verdicts-{start:06}.jsonl.gz", items)


def codes_of(start: int, stop_at: int, library: str = "") -> dict[int, str]:
    """What CreateOperator says of these cases, by their numbers.

    Args:
        start: first case.
        stop_at: behind the last one.
        library: path of a DirectML.dll, for Windows Python; by default the wheel's.
    """
    command = shlex.split(os.environ["DIRECTML_PYTHON"])
    answers: dict[int, str] = {}
    wanted, failures = range(start, stop_at), 0
    while start < stop_at:
        stop = min(stop_at, start + CHUNK)
        told = subprocess.run(
            [*command, "-m", "tests.directml_device.ask", "validation", str(start), str(stop)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace", check=False, timeout=900,
            env={**os.environ, "DIRECTML_DLL": library},
        ).stdout  # fmt: skip
        asked = None
        for line in told.splitlines():
            if not line.startswith("{"):
                continue
            told_line = json.loads(line)
            asked = told_line.get("asking", asked)
            if "code" in told_line:
                answers[told_line["case"]] = told_line["code"]
        if asked is None:
            failures += 1
            if failures > MOST_FAILURES:
                sys.exit(f"DirectML answered nothing: {told[-2000:]}")
            continue
        missing = [index for index in range(start, stop) if index not in answers]
        if missing:
            answers[missing[0]] = "ended"
            print(f"the process ended at case {missing[0]}", flush=True)
        start = missing[0] + 1 if missing else stop
        print(f"{len(answers)} of {len(wanted)}", flush=True)
    return answers


def told_verdicts() -> list[Judged]:
    """What was asked, in order."""
    return [item for file in sorted(ANSWERS.glob("verdicts-*.jsonl.gz")) for item in _read(file)]


def _write(file: Path, items: Iterable[Judged]) -> None:
    lines = [json.dumps(dataclasses.astuple(item), separators=(",", ":")) for item in items]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def _read(file: Path) -> list[Judged]:
    found: list[Judged] = []
    for line in gzip.decompress(file.read_bytes()).decode().splitlines():
        operator, fields, mutations, code = json.loads(line)
        found.append(Judged(operator, fields, tuple(mutations), code))
    return found


# ---- comparing -------------------------------------------------------------------------------------------------------


def differences(items: Iterable[Judged]) -> Iterator[tuple[Judged, tuple[str, ...]]]:
    """The cases in which the verdicts differ, with our codes."""
    for item in items:
        codes = ours(item.operator, item.fields)
        if item.accepted == bool(codes):
            yield item, codes


def compare(examples: int) -> int:
    """See the module; how many verdicts nobody has explained."""
    items = told_verdicts()
    found = list(differences(items))
    print(f"{len(items)} descriptors, {sum(item.accepted for item in items)} accepted by DirectML, {len(found)} differ")
    print(Counter(item.code for item in items))
    groups: dict[tuple[str, ...], list[Judged]] = defaultdict(list)
    for item, codes in found:
        what = codes or tuple(sorted({mutation.partition(": ")[2] for mutation in item.mutations}))
        groups["DirectML accepts" if item.accepted else "DirectML refuses", *what].append(item)
    for key, members in sorted(groups.items(), key=lambda pair: (pair[0][0], -len(pair[1]))):
        print(len(members), *key, dict(Counter(member.operator for member in members).most_common(6)))
        for member in members[:examples]:
            print("     ", member.operator, member.mutations, json.dumps(member.fields))
    unexplained = [(item, codes) for item, codes in found if difference_of(item, codes) is None]
    for item, codes in unexplained:
        print("not explained:", item.code, *codes, item.operator, item.mutations, json.dumps(item.fields))
    print(f"{len(unexplained)} not explained")
    return len(unexplained)


# ---- keeping ---------------------------------------------------------------------------------------------------------


def keep(most: int) -> None:
    """See the module: all cases that differ, then as many of each operator and verdict.

    Of a known difference that the run has not shown, the cases of the fixture stay.
    """
    items = told_verdicts()
    differ = list(differences(items))
    chosen = [item for item, _ in differ]
    shown = {difference_of(item, codes) for item, codes in differ}
    chosen += [item for item, codes in differences(kept()) if difference_of(item, codes) not in {None, *shown}]
    have = {id(item) for item in chosen}
    per_group: Counter[tuple[str, bool]] = Counter()
    for item in items:
        group = (item.operator, item.accepted)
        if id(item) not in have and len(chosen) < most and per_group[group] < (most - len(have)) // 68 + 1:
            per_group[group] += 1
            chosen.append(item)
    _write(FIXTURE, chosen)
    print(f"{len(chosen)} descriptors, {FIXTURE.stat().st_size} bytes")


def kept() -> list[Judged]:
    """The descriptors of the fixture."""
    return _read(FIXTURE)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.directml_device.validation")
    commands = parser.add_subparsers(dest="command", required=True)
    of_ask = commands.add_parser("ask")
    of_ask.add_argument("count", type=int)
    of_ask.add_argument("--start", type=int, default=0)
    commands.add_parser("compare").add_argument("--examples", type=int, default=0)
    commands.add_parser("keep").add_argument("--most", type=int, default=2000)
    options = parser.parse_args()
    match options.command:
        case "ask":
            ask(options.start, options.count)
        case "compare":
            sys.exit(int(compare(options.examples) > 0))
        case _:
            keep(options.most)


if __name__ == "__main__":
    main()
