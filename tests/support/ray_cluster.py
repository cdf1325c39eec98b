"""Ray clusters of several nodes on this machine, and the replicas of Ray Serve there. Imports no Ray itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.processes import descendants


def patiently(start: Callable[[], Any]) -> Any:
    """Start a node, again if the machine is too busy for the 30 seconds that Ray gives it."""
    for left in (3, 2, 1):
        try:
            return start()
        except Exception as error:
            if not left - 1 or "timed out" not in str(error):
                raise
    raise AssertionError


def until(true: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until it is true, so many seconds at most."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def running(serve: Any) -> int:
    """Replicas that have started."""
    deployments = [one for each in serve.status().applications.values() for one in each.deployments.values()]
    return sum(int(deployment.replica_states.get("RUNNING", 0)) for deployment in deployments)


def replica_processes(ancestor: int) -> list[int]:
    """Ids of the replicas' processes that this one has started, itself or through others."""
    return [pid for pid in descendants(ancestor) if b"ServeReplica" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def replicas_of(node: Any) -> list[int]:
    """Ids of the replicas' processes of a node of a `Cluster`."""
    return replica_processes(node.all_processes["raylet"][0].process.pid)


def ports_of(process: int) -> list[int]:
    """The ports from 30000 on where a replica listens for HTTP."""
    sockets = {str(file.readlink()) for file in Path(f"/proc/{process}/fd").iterdir() if file.is_symlink()}
    found: list[int] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            port = int(fields[1].rpartition(":")[2], 16)
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets and 30000 <= port < 31000:
                found.append(port)
    return found
