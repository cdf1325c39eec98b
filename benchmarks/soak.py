"""Many requests of all sizes, some of them cut off: memory stays flat and is freed, and none fails without a reason.

Tensors of 1 KB to 64 MB, as many of 1 to 10 KB as of 1 to 10 MB, go to Tile and to a nearest-neighbour Resample over a
few connections at a time. One request in fifty is cut off at a random byte of the request or the answer, by closing or
by a reset. Every answer is compared with what NumPy says, whole.

It fails if an answer that was waited for is not the right one, if memory is in use at the end, if the server's resident
memory in the last third is more than 5 % above that in the first third after the warm-up, or if the server keeps a
connection. The kernel's own figures are read; Linux only.
"""

from __future__ import annotations

import json
import random
import socket
import statistics
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

from . import servers
from .bench import Bench
from .report import Cell, Figure, Table, Target
from .servers import resident
from .sockets import MIB, as_bytes, connected, receive_body, receive_head, request

SMALLEST, LARGEST = 1_000, 64_000_000
CUT_ONE_IN = 50
WARM_UP = 0.1  # of the requests, but at least this many, or half of all:
WARM_UP_REQUESTS = 1500
GROWTH = Target("soak, resident memory of the last third against the first", 1.05, at_most=True)
SAMPLES = 100
CONNECTIONS = 4
SEED = 0


def measure(bench: Bench) -> Iterator[Table]:
    """One soak, judged."""
    if sys.platform != "linux":
        bench.leave_out("the soak, which reads /proc")
        return
    count = min(bench.requests, 1000) if bench.quick else bench.requests
    bench.note(
        f"{count:,} requests of {SMALLEST:,} to {LARGEST:,} bytes, {CONNECTIONS} connections, one in {CUT_ONE_IN} cut."
    )
    with servers.tensorpost() as server:
        soak = Soak(server.port, server.process, count, SEED)
        begin = time.perf_counter()
        threads = [threading.Thread(target=soak.work, args=(index,)) for index in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - begin
        in_use = settled(server.port)
        rows = soak.judge(in_use, took)
    yield Table("Soak", ("what", "measured"), tuple(rows))
    if soak.failures:
        raise RuntimeError(f"the soak failed: {'; '.join(soak.failures[:10])}")


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
                    connection = connected(self.port)
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
        parts = [memoryview(head), as_bytes(x)]
        sent = request(f"/v1/operators/{path}", parts, {"content-type": "application/x-npy"}) + head
        cut = dice.randrange(len(sent) + size + answer) if dice.randrange(CUT_ONE_IN) == 0 else None
        if cut is not None and cut < len(sent) + size:
            connection.sendall(sent[:cut])
            connection.sendall(x[: max(0, cut - len(sent))].data)
            return self.hang_up(connection, dice)
        connection.sendall(sent)
        connection.sendall(x.data)
        left = answer if cut is None else cut - len(sent) - size
        self.compare(connection, expected, answer, left, memory)
        self.moved += size + left
        return "answered" if cut is None else self.hang_up(connection, dice)

    def compare(
        self, connection: socket.socket, expected: np.ndarray[Any, Any], answer: int, left: int, memory: memoryview
    ) -> None:
        """Receive so many bytes of an answer, and compare them with the expected bytes, over and over."""
        head = receive_head(connection)
        assert head.length == answer, f"{head.length} bytes instead of {answer}"
        at = -128  # of the npy head

        def look(piece: memoryview) -> None:
            nonlocal at
            begin = max(0, -at)
            while begin < len(piece):
                start = (at + begin) % len(expected)
                count = min(len(piece) - begin, len(expected) - start)
                found = np.frombuffer(piece[begin : begin + count], np.uint8)
                same = np.array_equal(found, expected[start : start + count])
                assert same, f"other bytes than NumPy's near byte {at + begin}"
                begin += count
            at += len(piece)

        receive_body(connection, left, head.rest, look, memory)

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

    def judge(self, in_use: dict[str, int], took: float) -> list[tuple[Cell, ...]]:
        """The figures; what is wrong with them is added to the failures."""
        begin = max(self.requests * WARM_UP, min(WARM_UP_REQUESTS, self.requests / 2))
        warm = [size for number, size in self.resident if number >= begin]
        third = max(1, len(warm) // 3)
        first, last = statistics.mean(warm[:third]), statistics.mean(warm[-third:])
        if any(in_use.values()):
            self.failures.append(f"still in use: {in_use}")
        if not GROWTH.met_by(last / first):
            self.failures.append(f"resident memory grew from {first / MIB:.0f} to {last / MIB:.0f} MiB")
        if self.outcomes["answered"] + self.outcomes["cut"] != self.requests:
            self.failures.append(f"{self.outcomes}")
        tenths = [
            round(statistics.mean([size for number, size in self.resident if self.tenth(number) == tenth]) / MIB)
            for tenth in sorted({self.tenth(number) for number, _ in self.resident})
        ]
        return [
            ("requests answered", Figure(self.outcomes["answered"], 0)),
            ("cut off on purpose", Figure(self.outcomes["cut"], 0)),
            ("failed", Figure(self.outcomes["failed"], 0)),
            ("moved, GB", Figure(self.moved / 1e9, 1)),
            ("seconds", Figure(took, 1)),
            ("resident, first third, MiB", Figure(first / MIB, 1)),
            ("resident, last third, MiB", Figure(last / MIB, 1)),
            ("growth", Figure(last / first, 3, GROWTH)),
            ("most, MiB", Figure(max(warm) / MIB, 1)),
            ("resident by tenth of the run, MiB", ", ".join(map(str, tenths))),
            ("in use at the end", ", ".join(f"{name} {value}" for name, value in in_use.items())),
        ]


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
