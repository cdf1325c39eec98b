"""Everything that is measured, in one run: `python -m benchmarks`, or `make bench`."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tensorpost.values.problems import TensorpostError

from . import plots
from .bench import Bench
from .machine import BUSY, Machine, busy_cores, commit
from .peers.products import versions
from .report import Run, Section, Table, verdicts
from .servers import ROOT

SECTIONS = {
    "startup": ("benchmarks.startup", "imports, and a server that serves"),
    "memory": ("benchmarks.memory", "while a large answer is streamed"),
    "wire": ("benchmarks.wire", "bodies in and out, against plain TCP"),
    "sizes": ("benchmarks.sizes", "one call from 1 KiB to 1 GiB, or to --gibibytes"),
    "sdk": ("benchmarks.sdk", "our client against httpx"),
    "small": ("benchmarks.small", "rate and latency of small requests"),
    "observability": ("benchmarks.observability", "small requests with keys, access log and metrics, and without"),
    "graphs": ("benchmarks.graphs", "several operators in one request, against one by one, and torch"),
    "peers": ("benchmarks.peers.bulk", "large tensors, against other products"),
    "kernels": ("benchmarks.kernels", "on the CPU, against torch, ONNX Runtime, OpenCV and OpenVINO"),
}


def main() -> int:
    """Run, print and write; the exit status is 1 if a section failed. A target that is missed is no failure."""
    options = arguments()
    bench = {
        "quick": options.quick,
        "peers": options.peers,
        "gibibytes": options.gibibytes,
    }
    # No server may compile its kernels while it is timed.
    subprocess.run([sys.executable, "-m", "tensorpost", "warmup"], check=True)
    machine = Machine.here(versions(options.peers))
    print("\n".join(machine.lines()))
    run = Run(machine, options.quick, ())
    if options.update and options.json.exists():
        run = Run.read(options.json).with_sections_of(run)
    failed: list[str] = []
    for name in options.only:
        module, title = SECTIONS[name]
        print(f"\n# {name}: {title}", flush=True)
        try:
            section = measured(name, module, Bench(**bench))
        except (TensorpostError, RuntimeError, OSError, AssertionError, subprocess.SubprocessError) as error:
            failed.append(name)
            print(f"{name} failed: {type(error).__name__}: {error}", flush=True)
            continue
        run = run.with_sections_of(Run(machine, options.quick, (section,)))
        run.write(options.json)  # each, so that a run that is broken off leaves what it found
    written = ", ".join(map(str, (options.json, *plots.write(run, options.json.parent))))
    print(f"\n# targets\n\n{verdicts(run.sections).markdown()}\n\nwritten: {written}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def measured(name: str, module: str, bench: Bench) -> Section:
    """One section, each table printed when it is there."""
    others = busy_cores()
    if others is not None and others > BUSY:
        print(f"The machine is busy: others kept {others:.2f} cores at work in the last second. Read ratios with care.")
    began, begin = datetime.now(UTC), time.perf_counter()
    tables: list[Table] = []
    for table in importlib.import_module(module).measure(bench):
        tables.append(table)
        print(f"\n{table.title}\n\n{table.markdown()}", flush=True)
    for note in bench.notes:
        print(f"* {note}")
    return Section(
        name=name,
        began=began.isoformat(timespec="seconds"),
        commit=commit(),
        seconds=round(time.perf_counter() - begin, 1),
        others=others,
        tables=tuple(tables),
        notes=tuple(bench.notes),
        left_out=tuple(bench.left_out),
    )


def arguments() -> argparse.Namespace:
    """What was asked for."""
    lines = "\n".join(f"  {name:15}{title}" for name, (_, title) in SECTIONS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{__doc__}\n\nsections:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer and smaller calls; about two minutes for everything"
    )
    parser.add_argument("--only", type=sections, default=tuple(SECTIONS), metavar="NAMES", help="sections, with commas")
    parser.add_argument(
        "--peers", type=Path, metavar="DIR", help="other products; see python -m benchmarks.peers --help"
    )
    parser.add_argument(
        "--json", type=Path, default=ROOT / "build" / "bench.json", metavar="FILE", help="where to write"
    )
    parser.add_argument("--update", action="store_true", help="keep the other sections of that file")
    parser.add_argument(
        "--gibibytes",
        type=float,
        default=1.0,
        help="output of the memory section, and of a last row of the sizes; default 1",
    )
    return parser.parse_args()


def sections(text: str) -> tuple[str, ...]:
    """Names of sections, in their order here."""
    names = text.split(",")
    if unknown := sorted(set(names) - set(SECTIONS)):
        raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    return tuple(name for name in SECTIONS if name in names)


if __name__ == "__main__":
    sys.exit(main())
