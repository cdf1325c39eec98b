"""Limits of containers, read from folders like those of Linux's control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tensorpost_server import machine

HERE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
ALL = machine.memory(Path("nowhere"), Path("nowhere"))
SMALL = 1 << 20  # bytes; less than any machine has, so that it is what counts
DOCKER_1 = "5:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n1:name=systemd:/docker/a\n0::/system.slice\n"


def groups(root: Path, ours: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        file = root / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (root / "cgroup").write_text(ours)
    return root / "groups", root / "cgroup"


@pytest.mark.parametrize(
    ("ours", "files", "expected"),
    [
        ("0::/\n", {"memory.max": f"{SMALL}\n"}, SMALL),  # in a container, which sees itself as the root
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{SMALL}\n"}, SMALL),  # a limit further up holds
        ("0::/a/b\n", {"a/b/memory.max": f"{SMALL}\n", "a/memory.max": f"{2 * SMALL}\n"}, SMALL),
        ("0::/a\n", {"b/memory.max": f"{SMALL}\n"}, ALL),  # another's
        ("0::/\n", {"memory.max": "max\n"}, ALL),
        ("0::/\n", {"memory.max": f"{1 << 60}\n"}, ALL),  # more than there is
        (DOCKER_1, {"memory/docker/a/memory.limit_in_bytes": f"{SMALL}\n"}, SMALL),  # seen from the host
        (DOCKER_1, {"memory/memory.limit_in_bytes": f"{SMALL}\n"}, SMALL),  # seen from inside
        (DOCKER_1, {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, ALL),
        (DOCKER_1, {"cpu/memory.limit_in_bytes": f"{SMALL}\n"}, ALL),
        ("", {"memory.max": f"{SMALL}\n"}, ALL),  # no groups: another system
    ],
)
def test_memory_is_the_smallest_limit_on_the_way_up(
    tmp_path: Path, ours: str, files: dict[str, str], expected: int
) -> None:
    assert machine.memory(*groups(tmp_path, ours, files)) == expected


@pytest.mark.parametrize(
    ("ours", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, min(2, HERE)),  # one and a half: the half is used too
        ("0::/\n", {"cpu.max": "1000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, HERE),
        ("0::/\n", {"cpu.max": "99900000 100000\n"}, HERE),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 1),
        (DOCKER_1, {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        (DOCKER_1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, HERE),
        ("", {}, HERE),
    ],
)
def test_cores_are_those_whose_time_is_ours(tmp_path: Path, ours: str, files: dict[str, str], expected: int) -> None:
    assert machine.cores(*groups(tmp_path, ours, files)) == expected


def test_the_machine_has_some_of_both() -> None:
    assert machine.memory() >= 1 << 20
    assert 1 <= machine.cores() <= HERE
