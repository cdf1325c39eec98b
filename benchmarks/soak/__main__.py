"""Every row of the proof, and the table of what was seen: `make soak`, or `python -m benchmarks.soak --seconds 60`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ..machine import BUSY, Machine, busy_cores
from ..report import markdown
from ..servers import ROOT
from .attacks import ATTACKS, attacks
from .callers import callers
from .finding import Finding
from .graph_fuzz import graph_fuzz
from .grpc_fuzz import grpc_attacks
from .lifecycle import lifecycle
from .limits import limits
from .mixed import mixed
from .onnx_fuzz import onnx_fuzz
from .operator_fuzz import operator_fuzz
from .overload import overload
from .parsers import parsers
from .picture_fuzz import picture_fuzz
from .suites import access_suites, attack_suites
from .turns import turns

ROWS: dict[str, tuple[float, Callable[[float], Iterator[Finding]]]] = {
    "mixed": (180, mixed),
    "overload": (30, overload),
    "attacks": (130, attacks),
    "grpc": (40, grpc_attacks),
    "lifecycle": (40, lifecycle),
    "attack suites": (60, attack_suites),
    "parsers": (60, parsers),
    "operator fuzz": (50, operator_fuzz),
    "graph fuzz": (75, graph_fuzz),
    "pictures": (60, picture_fuzz),
    "callers": (20, callers),
    "limits": (30, limits),
    "turns": (60, turns),
    "access": (30, access_suites),
    "onnx fuzz": (100, onnx_fuzz),
}
"""Each row with its part of the time, in proportion."""
WHOLE = sum(part for part, _ in ROWS.values())
WORDS = {True: "yes", False: "NO", None: "not tried"}


def main() -> int:
    """Run the rows, print each line as it is found, then the table; 1 if one does not hold."""
    options = arguments()
    if sys.platform != "linux":
        print("the soak reads /proc, and starts servers in namespaces: it runs on Linux only", file=sys.stderr)
        return 1
    machine = "\n".join(Machine.here({}).lines())
    others = busy_cores()
    if others is not None and others > BUSY:
        machine += f"\nOther programs kept {others:.1f} cores busy when it began: read latencies with care."
    print(machine, flush=True)
    lines: list[tuple[str, str, str, str]] = []
    begin = time.monotonic()
    for name in options.only:
        part, row = ROWS[name]
        if name == "attacks":
            row = partial(attacks, named=options.attack)
        for found in row(part / WHOLE * options.seconds):
            lines.append((name, found.done, found.seen, WORDS[found.holds]))
            print(" | ".join(lines[-1]), flush=True)
    table = markdown(("row", "done", "seen", "holds"), lines)
    text = f"{table}\n\n{time.monotonic() - begin:.0f} s; {machine}\n"
    options.into.parent.mkdir(parents=True, exist_ok=True)
    options.into.write_text(text)
    print(f"\n{text}written to {options.into}")
    return int(any(line[-1] == WORDS[False] for line in lines))


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="for all rows together; default 600")
    parser.add_argument("--only", type=rows, default=tuple(ROWS), metavar="ROWS", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--attack", default="", metavar="WORDS", help="only attacks whose names have these words")
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "soak.md", metavar="FILE", help="where to write")
    options = parser.parse_args()
    if not any(options.attack in each.name for each in ATTACKS):
        parser.error(f"no attack has {options.attack!r} in its name; there are {', '.join(a.name for a in ATTACKS)}")
    return options


def rows(text: str) -> tuple[str, ...]:
    """Names of rows, in their order here."""
    names = text.split(",")
    if unknown := sorted(set(names) - set(ROWS)):
        raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; there are {', '.join(ROWS)}")
    return tuple(name for name in ROWS if name in names)


if __name__ == "__main__":
    sys.exit(main())
