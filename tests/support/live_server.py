"""A real server on a port of its own, in a process of its own, for as long as a test needs it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

# The child says its port once it serves, and stops when its standard input closes: a test run that is killed leaves no
# server behind. After that line its standard output is its log file too, so that no full pipe can stop it.
_CHILD = """
import os, socket, sys, threading
import uvicorn

class Announcing(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        if self.started:
            print(listener.getsockname()[1], flush=True)
            os.dup2(2, 1)

listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
listener.bind(("127.0.0.1", 0))
server = Announcing(uvicorn.Config("tensorpost_server.main:create_app", factory=True, log_level="info", access_log=False))

def stop_with_parent():
    sys.stdin.read()
    server.should_exit = True

threading.Thread(target=stop_with_parent, daemon=True).start()
server.run(sockets=[listener])
"""


@contextlib.contextmanager
def live_server(**env: object) -> Iterator[str]:
    """Start the real server and yield its base URL, for instance `http://127.0.0.1:40123`.

    Args:
        env: environment variables for the server, for instance `TENSORPOST_MAX_BODY_BYTES=1000`. Variables of that
            prefix in the test's own environment are not passed on.

    Raises:
        RuntimeError: it did not start; the message holds its log.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENSORPOST_")}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            env={**inherited, **{name: str(value) for name, value in env.items()}},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            if not port:
                process.wait(10)
                log.seek(0)
                raise RuntimeError(f"the server did not start:\n{log.read().decode(errors='replace')}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.stdin.close()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
