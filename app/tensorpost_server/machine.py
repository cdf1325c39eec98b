"""What this process may use of the machine: cores, memory and open files, less what a container's limits take away.

Linux sets a container's limits in control groups (kernel documentation, "Control Group v2" and "Control Groups version
1"). A group's limit holds for all groups below it, so the smallest one from the process's own group up to the root
counts. Inside a container its own group is often the root of what is mounted.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_UNKNOWN = 4 << 30  # bytes, where neither a limit nor the machine's memory can be read


def connections() -> int:
    """Connections that fit beside this process's other files: the limit of open files, less an eighth; at most 57,344.

    At least 32 descriptors are left for files, devices and health checks, or half of all if there are fewer than 64.
    """
    if sys.platform == "win32":  # sockets are not files there, and memory is the bound
        return 16_384
    import resource  # not there on Windows

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 65_536 if soft == resource.RLIM_INFINITY else min(soft, 65_536)
    return max(files - max(32, files // 8), files // 2, 1)


def memory(groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """Bytes this process may use: the smallest limit of its groups, at most what the machine has; else 4 GiB.

    Args:
        groups: where control groups are mounted.
        own_groups: the file that lists the groups of this process.
    """
    found = [
        int(text)
        for folder, version in _cgroup_directories(groups, own_groups, "memory")
        # without a limit version 2 says "max", and version 1 a number larger than any memory
        if (text := _text(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))).isdigit()
    ]
    found += _installed()
    return min(found, default=_UNKNOWN)


def _installed() -> list[int]:
    """Bytes of memory that the machine has; empty where the system does not say."""
    load = getattr(ctypes, "WinDLL", None)
    if load is not None:  # Windows
        status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX: its own length first, ullTotalPhys at byte 8
        return [status[1]] if load("kernel32").GlobalMemoryStatusEx(ctypes.byref(status)) else []
    if "SC_PHYS_PAGES" in os.sysconf_names:
        return [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    return []


def cores(groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """Cores this process may keep busy: those it may run on, at most its groups' share of time, rounded up.

    Args:
        groups: where control groups are mounted.
        own_groups: the file that lists the groups of this process.
    """
    runs_on = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = [runs_on]
    for folder, version in _cgroup_directories(groups, own_groups, "cpu"):
        if version == 2:
            quota, _, period = _text(folder / "cpu.max").partition(" ")
        else:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):  # not "max", nor -1
            found.append(max(1, math.ceil(int(quota) / int(period))))
    return min(found)


def nvidia_gpus(devices: Path = Path("/dev")) -> int:
    """How many NVIDIA GPUs this process may use, found without their driver (Linux)."""
    found = sum(each.name.removeprefix("nvidia").isdigit() for each in devices.glob("nvidia*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else min(found, len([each for each in visible.split(",") if each.strip()]))


def _cgroup_directories(groups: Path, own_groups: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """The cgroup directories of this process for a controller, from its own to the root, with the cgroup version."""
    for line in _text(own_groups).splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            root, version = groups, 2
        elif controller in names.split(","):
            root, version = groups / controller, 1
        else:
            continue
        folder = root.joinpath(path.lstrip("/"))
        while folder != root:
            yield folder, version
            folder = folder.parent
        yield root, version


def _text(file: Path) -> str:
    """The content of a file; empty if there is none, or it cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def resident_memory() -> int | None:
    """Bytes of this process that are in RAM; None where there is no Linux /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def private_memory() -> int:
    """What RLIMIT_DATA limits: private memory that can be written to, bytes (proc(5), statm, the sixth number)."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text("ascii").split()[5]) * os.sysconf("SC_PAGE_SIZE")


def free_unused_memory() -> None:
    """Let the C library give unused memory back to the system, where it can (malloc_trim(3), glibc).

    Of blocks up to 32 MiB it keeps what was freed, in an arena for each thread.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none, and keep less
        if trim is not None:
            trim(0)
