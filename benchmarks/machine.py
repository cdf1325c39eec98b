"""What the figures were measured on, and who else was using it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .servers import ROOT

DISTRIBUTIONS = (
    "tensorpost", "numpy", "numba", "fastapi", "starlette", "uvicorn", "uvloop", "httptools", "pydantic", "httpx",
    "httpcore", "h11", "torch", "onnxruntime", "opencv-python-headless", "opencv-python", "openvino",
)  # fmt: skip
BUSY = 0.25  # cores; beyond that a run on few cores measures the neighbours as well


@dataclass(frozen=True)
class Machine:
    """The machine, and the programs compared on it.

    Attributes:
        processor: its model.
        cores: how many cores this process may use.
        memory: memory in bytes; None where the system does not tell.
        system: kernel and its version.
        python: implementation and version.
        versions: version of every library and tool that takes part, by name.
        load: load average over the last minute when the run began; None where the system does not tell.
    """

    processor: str
    cores: int
    memory: int | None
    system: str
    python: str
    versions: Mapping[str, str]
    load: float | None

    @classmethod
    def here(cls, more_versions: Mapping[str, str]) -> Machine:
        """This machine, now."""
        versions: dict[str, str] = {}
        for name in DISTRIBUTIONS:
            try:
                versions[name] = version(name)
            except PackageNotFoundError:
                continue  # whoever would have used it says that it is left out
        if found := wrk_version():
            versions["wrk"] = found
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return cls(
            processor=_first(r"^model name\s*:\s*(.+)$", "/proc/cpuinfo") or platform.processor() or platform.machine(),
            cores=cores,
            memory=int(kib) * 1024 if (kib := _first(r"^MemTotal:\s+(\d+) kB$", "/proc/meminfo")) else None,
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=f"{platform.python_implementation()} {platform.python_version()}",
            versions={**versions, **more_versions},
            load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        )

    def fixed(self) -> Machine:
        """The machine without what changes from minute to minute."""
        return replace(self, load=None)

    def lines(self) -> list[str]:
        """The lines of Markdown that describe the machine."""
        memory = "of unknown size" if self.memory is None else f"{self.memory / 2**30:.1f} GiB"
        load = "unknown" if self.load is None else f"{self.load:.2f}"
        return [
            f"* Processor: {self.processor}, {self.cores} cores; memory: {memory}",
            f"* System: {self.system}, {self.python}",
            f"* Load average over the minute before the run: {load}",
            f"* Versions: {', '.join(f'{name} {number}' for name, number in self.versions.items())}",
        ]


def busy_cores(seconds: float = 1.0) -> float | None:
    """How many cores other programs keep busy, on average over so long; None where there is no /proc."""
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    if before is None or after is None:
        return None
    total, idle = (b - a for a, b in zip(before, after, strict=True))
    return round((1 - idle / max(1, total)) * (os.cpu_count() or 1), 2)


def commit() -> str:
    """The commit of the working tree, with "+" if a file differs; empty outside of a checkout."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return ""
    found = [
        subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        for command in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "app", "client"])
    ]
    return found[0] + ("+" if found[1] else "")


@cache
def wrk_version() -> str | None:
    """The version of the load generator `wrk`; None if it is not installed."""
    if shutil.which("wrk") is None:
        return None
    said = subprocess.run(["wrk", "-v"], capture_output=True, text=True, check=False).stdout  # it ends with status 1
    found = re.match(r"wrk (\S+)", said)
    return found[1] if found else "of unknown version"


def _ticks() -> tuple[int, int] | None:
    """Clock ticks of all cores so far, and those of them in which nothing ran."""
    if not (stat := Path("/proc/stat")).exists():
        return None
    numbers = [int(number) for number in stat.read_text().splitlines()[0].split()[1:9]]
    return sum(numbers), numbers[3] + numbers[4]


def _first(pattern: str, path: str) -> str | None:
    """The first match in a file of the kernel's; None where there is no such file."""
    if not Path(path).exists():
        return None
    found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    return found[1].strip() if found else None
