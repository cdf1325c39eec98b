"""Servers in processes of their own, started, waited for and ended in one way."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READY = "/v2/health/ready"
LONGEST_END = 20.0  # seconds; then it is killed


@dataclass(frozen=True)
class Server:
    """A server that answers.

    Attributes:
        port: the port on 127.0.0.1.
        process: its id.
        seconds: time from the start of its process until it answered.
    """

    port: int
    process: int
    seconds: float

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"


def free_port() -> int:
    """A TCP port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    name: str,
    command: Callable[[int], Sequence[str]],
    ready: Callable[[int], object],
    *,
    environment: Mapping[str, str] | None = None,
    wait: float = 60.0,
) -> Iterator[Server]:
    """Start a server and end it, with every process that it started.

    Args:
        name: what messages call the server.
        command: makes the command to run, given a port that is free.
        ready: is called with the port until it raises neither OSError nor HTTPException.
        environment: variables to add to ours.
        wait: seconds until we give up.

    Raises:
        RuntimeError: it ended or was not ready in time; the message holds the end of what it said.
    """
    port = free_port()
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    everything = {**os.environ, "PYTHONPATH": paths, **(environment or {})}
    with tempfile.TemporaryFile() as log:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command(port), env=everything, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            trouble: Exception | None = None
            while True:
                try:
                    ready(port)
                    break
                except (OSError, HTTPException) as error:
                    trouble = error
                if process.poll() is not None or time.perf_counter() > begin + wait:
                    log.seek(0)
                    said = log.read().decode(errors="replace")[-1500:]
                    ended = "is not ready" if process.poll() is None else f"ended with status {process.returncode}"
                    raise RuntimeError(f"{name} {ended} ({trouble}):\n{said}")
                time.sleep(0.005)
            yield Server(port, process.pid, time.perf_counter() - begin)
        finally:
            _end(process)


def tensorpost(**settings: object) -> contextlib.AbstractContextManager[Server]:
    """Our server as `tensorpost serve` runs it; settings by name without their prefix, for instance `pool_bytes=0`.

    `log_level` is its option of that name, `warning` by default. With TLS it is not waited for until it is ready.
    """
    log_level = str(settings.pop("log_level", "warning"))
    return running(
        "tensorpost",
        lambda port: [sys.executable, "-m", "tensorpost", "serve", "--port", str(port), "--log-level", log_level],
        listens if "tls_certificate" in settings else answers(READY),
        environment={f"TENSORPOST_{name.upper()}": str(value) for name, value in settings.items()},
    )


def uvicorn(application: str, workers: int = 1) -> contextlib.AbstractContextManager[Server]:
    """An ASGI application of a module of ours, with httptools and uvloop where they are installed."""
    command = [sys.executable, "-m", "uvicorn", application, "--log-level", "warning", "--no-access-log"]
    command += ["--workers", str(workers)] if workers > 1 else []
    command += ["--timeout-keep-alive", "75"]  # as ours: others' turns may take longer than its own 5 seconds
    return running(application, lambda port: [*command, "--port", str(port)], answers(READY))


def answers(path: str) -> Callable[[int], None]:
    """A check that a server says 200 to a GET."""

    def check(port: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise ConnectionError(f"GET {path} is answered with {answer.status}")
        finally:
            connection.close()

    return check


def listens(port: int) -> None:
    """A check that a server takes connections."""
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


def resident(process: int, what: str = "VmRSS") -> int:
    """Bytes of a process in memory: VmRSS now, VmHWM at most. Linux only."""
    found = re.search(rf"^{what}:\s+(\d+) kB$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"the kernel does not say {what} of process {process}")
    return int(found[1]) * 1024


def resident_family(process: int) -> int:
    """Bytes of a process and all below it in memory now; memory that they share is counted for each. Linux only."""
    total = 0
    for each in (process, *_descendants(process)):
        with contextlib.suppress(OSError, RuntimeError):  # it has ended
            total += resident(each)
    return total


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, then make it; the same for what it leaves behind."""
    left = _descendants(process.pid)
    process.terminate()
    try:
        process.wait(LONGEST_END)
    except subprocess.TimeoutExpired:
        left |= _descendants(process.pid)
        process.kill()
        process.wait()
    for pid, started in left.items():
        found = _stat(pid)
        if found is not None and found[1] == started:  # ids are used again
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _descendants(process: int) -> dict[int, int]:
    """The start of every process below this one, by its id; empty where there is no /proc."""
    stats = {int(path.name): _stat(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    below: dict[int, int] = {}
    while True:
        parents = {process, *below}
        more = {pid: stat[1] for pid, stat in stats.items() if stat and stat[0] in parents and pid not in below}
        if not more:
            return below
        below |= more


def _stat(process: int) -> tuple[int, int] | None:
    """Parent and start time of a process, by the kernel's count; None if there is no such process."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), int(fields[19])
