"""The processes that another one has started, from /proc."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path


def descendants(process: int) -> set[int]:
    """Ids of the processes that this one has started, and that those have."""
    children: dict[int, set[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
        children.setdefault(parent, set()).add(int(stat.parent.name))
    found, to_visit = set[int](), [process]
    while to_visit:
        new = children.get(to_visit.pop(), set()) - found
        found |= new
        to_visit += new
    return found


def remaining(processes: Iterable[int], seconds: float = 10) -> set[int]:
    """Those of these processes that still exist; waits so many seconds at most until there are none."""
    end = time.monotonic() + seconds
    while (left := {pid for pid in processes if Path(f"/proc/{pid}").exists()}) and time.monotonic() < end:
        time.sleep(0.1)
    return left
