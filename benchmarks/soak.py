"""Many requests of all sizes, some of them cut off: memory stays flat, nothing stays lent, nothing fails unasked.

    python benchmarks/soak.py                      20,000 requests, about ten minutes
    python benchmarks/soak.py --requests 2000      a first look

Tensors of 1 KB to 64 MB, as many of 1 to 10 KB as of 1 to 10 MB, go to Tile and to a nearest-neighbour Resample over a
few connections at a time. One request in fifty is cut off at a random byte of the request or the answer, by closing or
by a reset. Every answer is compared with what NumPy says, whole.

It fails (exit status 1) if an answer that was waited for is not the right one, if anything is lent at the end, if the
server's resident memory in the last third is more than 5 % above that in the first third after the warm-up, or if the
server keeps a connection. The kernel's own figures are read; Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

from tensorpost import frame
from tensorpost.datatypes import data_type

MIB = 1 << 20
SMALLEST, LARGEST = 1_000, 64_000_000
CUT_ONE_IN = 50
WARM_UP = 0.1  # of the requests, but at least this many, or half of all:
WARM_UP_REQUESTS = 1500
MOST_GROWTH = 1.05
SAMPLES = 100


def main() -> None:
    """Run, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="how many; default 20,000")
    parser.add_argument("--connections", type=int, default=4, help="at a time; default 4")
    parser.add_argument("--seed", type=int, default=0, help="of the sizes and cuts; default 0")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    chosen = parser.parse_args()
    with running_server() as (port, process):
        soak = Soak(port, process, chosen.requests, chosen.seed)
        begin = time.perf_counter()
        threads = [threading.Thread(target=soak.work, args=(index,)) for index in range(chosen.connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - begin
        in_use = settled(port)
        found = soak.judge(in_use, took)
    print(json.dumps(found, indent=2))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2))
    if found["failures"]:
        raise SystemExit(f"failed: {'; '.join(found['failures'][:10])}")


@dataclass
class Soak:
    """The run, shared by its threads.

    Attributes:
        port: of the server.
        process: its id.
        requests: how many to make in all.
        seed: of what is random.
    """

    port: int
    process: int
    requests: int
    seed: int
    begun: int = 0
    moved: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    failures: list[str] = field(default_factory=list[str])
    resident: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.source = np.random.default_rng(self.seed).integers(0, 256, LARGEST + 2 * MIB, np.uint8)

    def next(self) -> int | None:
        """The number of the next request; None when all are made. Looks at the server's memory now and then."""
        with self.lock:
            number = self.begun
            if number >= self.requests or len(self.failures) > 20:
                return None
            self.begun += 1
            if number % max(1, self.requests // (SAMPLES * 3)) == 0:
                self.resident.append((number, resident(self.process)))
            return number

    def work(self, index: int) -> None:
        """Make requests over one connection, or a new one after a cut, until all are made."""
        connection: socket.socket | None = None
        memory = memoryview(bytearray(MIB))
        while (number := self.next()) is not None:
            dice = random.Random(f"{self.seed} {number}")
            try:
                if connection is None:
                    connection = socket.create_connection(("127.0.0.1", self.port), timeout=120)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                outcome = self.one(connection, dice, memory)
            except (OSError, AssertionError, ValueError, StopIteration) as error:
                outcome = "failed"
                self.failures.append(f"request {number} on connection {index}: {type(error).__name__}: {error}")
            with self.lock:
                self.outcomes[outcome] += 1
            if outcome != "answered" and connection is not None:
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def one(self, connection: socket.socket, dice: random.Random, memory: memoryview) -> str:
        """Make one request; what became of it."""
        size = round(SMALLEST * (LARGEST / SMALLEST) ** dice.random()) // 4 * 4
        at = dice.randrange(MIB)
        x = self.source[at : at + size]
        head = frame.encode_npy_head(data_type("uint8"), (size,))
        if dice.random() < 0.5:
            copies = dice.choice([1, 1, 2, 3])
            path, expected, answer = f"tile?repeats={copies}", x, 128 + size * copies
        else:
            taken = size // 4
            path = f"resample?interpolation_mode=NEAREST_NEIGHBOR&output_sizes={taken}"
            expected, answer = x[2::4], 128 + taken
        request = b"POST /v1/operators/%b HTTP/1.1\r\nHost: soak\r\n" % path.encode()
        request += b"Content-Type: application/x-npy\r\nContent-Length: %d\r\n\r\n%b" % (len(head) + size, head)
        cut = dice.randrange(len(request) + size + answer) if dice.randrange(CUT_ONE_IN) == 0 else None
        if cut is not None and cut < len(request) + size:
            connection.sendall(request[:cut])
            connection.sendall(x[: max(0, cut - len(request))].data)
            return self.hang_up(connection, dice)
        connection.sendall(request)
        connection.sendall(x.data)
        left = answer if cut is None else cut - len(request) - size
        self.compare(connection, expected, answer, left, memory)
        self.moved += size + left
        return "answered" if cut is None else self.hang_up(connection, dice)

    def compare(
        self, connection: socket.socket, expected: np.ndarray[Any, Any], answer: int, left: int, memory: memoryview
    ) -> None:
        """Receive so many bytes of an answer, and compare them with the expected bytes, over and over."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(4096)
            assert piece, "the server hung up before an answer"
            data += piece
        text, _, rest = data.partition(b"\r\n\r\n")
        assert text.startswith(b"HTTP/1.1 200"), data[:300]
        length = next(line for line in text.lower().split(b"\r\n") if line.startswith(b"content-length"))
        assert int(length.split(b":")[1]) == answer, f"{length!r} instead of {answer}"
        at = -128
        piece = memoryview(rest)[:left]
        while True:
            begin = max(0, -at)
            while begin < len(piece):
                start = (at + begin) % len(expected)
                count = min(len(piece) - begin, len(expected) - start)
                same = np.array_equal(
                    np.frombuffer(piece[begin : begin + count], np.uint8), expected[start : start + count]
                )
                assert same, f"other bytes than NumPy's near byte {at + begin}"
                begin += count
            at += len(piece)
            left -= len(piece)
            if not left:
                return
            count = connection.recv_into(memory, min(left, len(memory)))
            assert count, f"the server hung up {left} bytes before the end"
            piece = memory[:count]

    @staticmethod
    def hang_up(connection: socket.socket, dice: random.Random) -> str:
        """Be gone, politely or not."""
        if dice.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        connection.close()
        return "cut"

    def tenth(self, number: int) -> int:
        """In which tenth of the run a request is."""
        return number * 10 // self.requests

    def judge(self, in_use: dict[str, int], took: float) -> dict[str, Any]:
        """The figures, and what is wrong with them."""
        begin = max(self.requests * WARM_UP, min(WARM_UP_REQUESTS, self.requests / 2))
        warm = [size for number, size in self.resident if number >= begin]
        third = max(1, len(warm) // 3)
        first, last = statistics.mean(warm[:third]), statistics.mean(warm[-third:])
        failures = list(self.failures)
        if any(in_use.values()):
            failures.append(f"still in use: {in_use}")
        if last > first * MOST_GROWTH:
            failures.append(f"resident memory grew from {first / MIB:.0f} to {last / MIB:.0f} MiB")
        if self.outcomes["answered"] + self.outcomes["cut"] != self.requests:
            failures.append(f"{self.outcomes}")
        return {
            "requests": self.requests,
            "outcomes": dict(self.outcomes),
            "gigabytes": round(self.moved / 1e9, 1),
            "seconds": round(took, 1),
            "resident MiB": {
                "first third": round(first / MIB, 1),
                "last third": round(last / MIB, 1),
                "growth": round(last / first, 3),
                "most": round(max(warm) / MIB, 1),
                "at the end": round(resident(self.process) / MIB, 1),
            },
            "resident MiB by tenth": [
                round(statistics.mean([size for number, size in self.resident if self.tenth(number) == tenth]) / MIB)
                for tenth in sorted({self.tenth(number) for number, _ in self.resident})
            ],
            "in use at the end": in_use,
            "failures": failures,
        }


def settled(port: int) -> dict[str, int]:
    """What the server has in use when it has had time to notice the last cut; its connections counted in."""
    found: dict[str, int] = {}
    for _ in range(100):
        with urlopen(f"http://127.0.0.1:{port}/v1/limits") as answer:
            said = json.load(answer)
        lent = said["large_blocks"]["lent_bytes"]
        found = {**said["in_use"], "lent_bytes": lent, "connections": open_connections(port)}
        if not any(found.values()):
            break
        time.sleep(0.1)
    return found


def open_connections(port: int) -> int:
    """Connections of the server that are established or half closed, by the kernel's table."""
    wanted = f"0100007F:{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    states = [fields[3] for line in lines if (fields := line.split())[1] == wanted]
    return sum(state in ("01", "08") for state in states)  # ESTABLISHED, CLOSE_WAIT


@contextlib.contextmanager
def running_server() -> Iterator[tuple[int, int]]:
    """A server in a process of its own, on a free port: the port and its process id."""
    command = [sys.executable, "-m", "tensorpost", "serve", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start: {' '.join(command)} ended with status {process.wait()}")
        yield int(line.rsplit(":", 1)[1]), process.pid
    finally:
        process.terminate()
        process.wait()


def resident(process: int) -> int:
    """Bytes of the process in memory."""
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    main()
