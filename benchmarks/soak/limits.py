"""Servers that lack something: disk, memory, descriptors, shared memory, a clock that goes forward."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from tests.attacks.test_connection_attacks import open_sockets
from tests.support.http_app import NPY, npy_bytes, request_bytes

from ..servers import answers, resident, running
from .finding import LIVE, LOCAL, SMALL, Finding, ask

MIB = 1 << 20
AT_ONCE = 8
CGROUP = 256 * MIB
LARGE = request_bytes("POST", "/v1/operators/tile?repeats=1", npy_bytes(np.zeros(16 * MIB, np.uint8)), NPY | LOCAL)
SERVE = "import sys; from tensorpost.__main__ import main; sys.argv = ['tensorpost', *sys.argv[1:]]; main()"
STEP = """
import signal, time
real, step = time.time, [0.0]
time.time = lambda: real() + step[0]
time.time_ns = lambda: int(time.time() * 1e9)
def back(*_):
    step[0] -= 86400.0
signal.signal(signal.SIGUSR1, back)
"""
MOUNT = "mount --make-rprivate / && "


@dataclass(frozen=True)
class Lack:
    """Something that is missing.

    Attributes:
        name: what is missing, in words.
        before: Python that the server's process runs first.
        mounts: shell commands in a namespace of the server's own, which need root.
        variables: variables of the server's environment.
        most_resident: bytes that it may have in memory.
    """

    name: str
    before: str = ""
    mounts: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    most_resident: int | None = None


def limits(_seconds: float) -> Iterator[Finding]:
    """One after the other."""
    with tempfile.TemporaryDirectory() as folder:
        for lack in lacks(Path(folder)):
            yield tried(lack)


def lacks(folder: Path) -> list[Lack]:
    """All of them."""
    for name in ("full", "groups"):
        (folder / name).mkdir()
    (folder / "own").write_text("0::/\n")
    (folder / "groups" / "memory.max").write_text(f"{CGROUP}\n")
    limit = "import resource; resource.setrlimit(resource.{0}, ({1}, {1}))"
    return [
        Lack(
            "full disk for caches (a file system of 64 KiB)",
            mounts=f"mount -t tmpfs -o size=64k none {folder}/full && head -c 65536 /dev/zero > {folder}/full/full; ",
            variables={"NUMBA_CACHE_DIR": f"{folder}/full", "XDG_CACHE_HOME": f"{folder}/full"},
        ),
        Lack("read-only root", mounts="mount -o remount,ro,bind / && mount -o remount,ro,bind /tmp 2>/dev/null; "),
        Lack("no /dev/shm", mounts="umount -l /dev/shm && "),
        Lack(
            "a control group's limit of 256 MiB (as the server reads it; resident memory is looked at)",
            before="from pathlib import Path; from tensorpost_server import machine; machine.memory.__defaults__ = "
            f"(Path({str(folder / 'groups')!r}), Path({str(folder / 'own')!r}))",
            most_resident=CGROUP,
        ),
        Lack("address space of 2 GiB", before=limit.format("RLIMIT_AS", 2 << 30)),
        Lack("64 descriptors, 200 idle connections", before=limit.format("RLIMIT_NOFILE", 64)),
        Lack("a clock that is set back by a day, twice", before=STEP),
    ]  # fmt: skip


def tried(lack: Lack) -> Finding:
    """Start it, make small and large calls, and see whether it says what is missing, or goes on."""
    if lack.mounts and (os.geteuid() != 0 or shutil.which("unshare") is None):
        return Finding(lack.name, "needs root and unshare", holds=None)
    code = f"{lack.before}\n{SERVE}"

    def command(port: int) -> list[str]:
        python = [sys.executable, "-c", code, "serve", "--port", str(port), "--log-level", "warning"]
        if not lack.mounts:
            return python
        return ["unshare", "-m", "sh", "-c", f'{MOUNT}{lack.mounts}exec "$0" "$@"', *python]

    try:
        with running("tensorpost", command, answers("/v2/health/ready"), environment=lack.variables, wait=90) as server:
            statuses = [ask(server.port, SMALL).status]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                statuses += pool.map(partial(_status, server.port), [LARGE] * (3 * AT_ONCE))
            if "descriptors" in lack.name:
                with contextlib.ExitStack() as stack:
                    open_sockets(stack, server.port, 200)
                    statuses += [ask(server.port, LIVE).status for _ in range(5)]
            if lack.before == STEP:
                for _ in range(2):
                    os.kill(server.process, signal.SIGUSR1)
                    time.sleep(1.2)
                    statuses += [ask(server.port, SMALL).status, ask(server.port, LIVE).status]
            most = resident(server.process, "VmHWM")
            statuses += [ask(server.port, SMALL).status, ask(server.port, LIVE).status]
    except RuntimeError as error:
        said = str(error).strip().splitlines()[-1][-200:]
        return Finding(
            lack.name, f"does not start: {said}", holds="Traceback" not in str(error) and "TENSORPOST" in said
        )
    seen = f"starts in {server.seconds:.1f} s; statuses {sorted(set(statuses))}; at most {most / MIB:.0f} MiB resident"
    fits = lack.most_resident is None or most <= lack.most_resident
    good = set(statuses) <= {200, 413, 429, 503} and statuses[0] == 200 and statuses[-2:] == [200, 200]
    return Finding(lack.name, seen, good and fits)


def _status(port: int, data: bytes) -> int:
    try:
        return ask(port, data).status
    except (OSError, EOFError):
        return 0
