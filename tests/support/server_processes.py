"""The processes of a server with several, and connections to each of them."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.processes import descendants


def server_processes(supervisor: int) -> set[int]:
    """Ids of the processes that serve."""
    found = set[int]()
    for process in descendants(supervisor):
        try:
            command = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if b"tensorpost_server.server_process" in command:
            found.add(process)
    return found


def shared_folder(processes: set[int]) -> Path:
    """The folder that the processes of a server share; their last argument names it."""
    arguments = Path(f"/proc/{min(processes)}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    return Path(json.loads(arguments[-1])["folder"])


def process_of(connection: socket.socket, processes: set[int]) -> int | None:
    """The process at the other end of a connection over loopback."""
    port = f"{connection.getsockname()[1]:04X}"
    inodes = {
        fields[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if (fields := line.split())[2].endswith(f":{port}") and fields[9] != "0"
    }
    for process in processes:
        for entry in Path(f"/proc/{process}/fd").iterdir():
            try:
                target = entry.readlink()
            except OSError:
                continue  # it was closed
            if str(target) in {f"socket:[{inode}]" for inode in inodes}:
                return process
    return None


class Connection:
    """A connection to one of the processes, which stays open.

    Attributes:
        process: the process's id.
    """

    def __init__(self, url: str, processes: set[int]) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.http = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
        self.http.request("GET", "/v2/health/live")
        self.http.getresponse().read()
        self.process = process_of(self.http.sock, processes)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:  # fmt: skip
        """Status and body of an answer."""
        self.http.request(method, path, body, headers or {})
        answer = self.http.getresponse()
        return answer.status, answer.read()

    def json(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Any:
        """An answer of JSON, of status 200 or 201."""
        text = None if body is None else json.dumps(body).encode()
        status, content = self.ask(method, path, text, {"content-type": "application/json", **(headers or {})})
        assert status in (200, 201), content
        return json.loads(content)


@contextmanager
def connections(url: str, supervisor: int) -> Iterator[list[Connection]]:
    """A connection to each process."""
    processes = server_processes(supervisor)
    opened, found = list[Connection](), dict[int | None, Connection]()
    try:
        end = time.monotonic() + 30
        while not processes <= found.keys():
            assert time.monotonic() < end, f"no connection to {processes - found.keys()}"
            connection = Connection(url, processes)
            opened.append(connection)
            if connection.process in found:  # one of the others is not ready yet
                time.sleep(0.05)
            found.setdefault(connection.process, connection)
        yield [found[process] for process in sorted(processes)]
    finally:
        for connection in opened:
            connection.http.close()
