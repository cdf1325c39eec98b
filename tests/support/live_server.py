"""A real server on a port of its own, in a process of its own, for as long as a test needs it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

# What `tensorpost serve --port 0` runs. It also stops when its standard input closes, so that a test run that is killed
# leaves no server behind.
_CHILD = """
import os, signal, sys, threading
from tensorpost_server.commands import serve

def stop_with_parent():
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=stop_with_parent, daemon=True).start()
serve(host="127.0.0.1", port=0, log_level="warning")
"""


UNDER_TEST = "SERVER_UNDER_TEST"
"""Environment variable: the base URL of a server that runs already, which the tests of `default_server` call instead of
one of their own. It has default settings; `make ray-test` gives them replicas on Ray."""


@contextlib.contextmanager
def default_server() -> Iterator[str]:
    """The base URL of a real server with default settings: that of `SERVER_UNDER_TEST`, or one started here."""
    if url := os.environ.get(UNDER_TEST):
        yield url
    else:
        with live_server() as url:
            yield url


@contextlib.contextmanager
def live_server(before: str = "", **env: object) -> Iterator[str]:
    """As `live_process`; yields the base URL only."""
    with live_process(before, **env) as (url, _):
        yield url


@contextlib.contextmanager
def live_process(before: str = "", **env: object) -> Iterator[tuple[str, int]]:
    """Start the real server and yield its base URL, for instance `http://127.0.0.1:40123`, and its process id.

    Args:
        before: Python that its process runs first.
        env: environment variables for the server, for instance `TENSORPOST_MAX_BODY_BYTES=1000`. Variables of that
            prefix in the test's own environment are not passed on. Processes of ONNX Runtime start with the first call
            if nothing else is said: hundreds of servers are started, and few need one.

    Raises:
        RuntimeError: it did not start; the message holds its log.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENSORPOST_")}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-c", before + _CHILD],
            env={**inherited, "TENSORPOST_ONNX_AHEAD": "0", **{name: str(value) for name, value in env.items()}},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            announcement = process.stdout.readline()
            _, _, url = announcement.strip().rpartition(" ")
            if not url.startswith(("http://", "https://")):
                process.wait(10)
                log.seek(0)
                raise RuntimeError(f"the server did not start:\n{announcement}{log.read().decode(errors='replace')}")
            yield url, process.pid
        finally:
            process.stdin.close()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
