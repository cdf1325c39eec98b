"""One client of two servers, directly and through one proxy in front (HAProxy, leastconn), in turn in one run.

    python -m benchmarks.many_servers

It needs `haproxy` on the PATH. Both ways have the same threads and servers; figures are the medians of the rounds.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tensorpost import Client

ROUNDS, THREADS = 7, 4
CASES = (("256 B", 64, 400), ("1 MiB", 1 << 18, 40), ("64 MiB", 1 << 24, 2))
CONFIG = """\
global
  maxconn 1000
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  option http-keep-alive
frontend all
  bind 127.0.0.1:{port}
  default_backend servers
backend servers
  balance leastconn
  option httpchk GET /v2/health/ready
{servers}
"""


@contextlib.contextmanager
def server() -> Iterator[str]:
    command = [sys.executable, "-m", "tensorpost", "serve", "--port", "0", "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


@contextlib.contextmanager
def proxy(urls: Sequence[str]) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines = [f"  server s{i} {url.removeprefix('http://')} check inter 1s" for i, url in enumerate(urls)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "haproxy.cfg"
        file.write_text(CONFIG.format(port=port, servers="\n".join(lines)))
        with subprocess.Popen(["haproxy", "-f", str(file)], stderr=subprocess.DEVNULL) as process:
            yield f"http://127.0.0.1:{port}"
            process.terminate()


def seconds(tp: Client, elements: int, calls: int) -> float:
    """Seconds that so many calls take of a Tile that repeats once, on all threads together."""
    x = np.ones(elements, np.float32)
    with ThreadPoolExecutor(THREADS) as threads:
        begin = time.perf_counter()
        list(threads.map(lambda _: tp.tile(x, (1,)), range(calls)))
        return time.perf_counter() - begin


def main() -> None:
    if shutil.which("haproxy") is None:
        sys.exit("haproxy is not installed")
    with (
        server() as first,
        server() as second,
        proxy([first, second]) as front,
        Client([first, second]) as direct,
        Client(front) as through,
    ):
        while not through.ready():
            time.sleep(0.1)
        print(f"{'body':>8} {'itself':>12} {'proxy':>12}  itself / proxy")
        for name, elements, calls in CASES:
            taken: tuple[list[float], list[float]] = ([], [])
            for _ in range(ROUNDS):
                for way, tp in zip(taken, (direct, through), strict=True):
                    way.append(calls / seconds(tp, elements, calls))
            a, b = statistics.median(taken[0]), statistics.median(taken[1])
            print(f"{name:>8} {a:>8.1f} /s {b:>8.1f} /s  {a / b:.2f}")


if __name__ == "__main__":
    main()
