"""How much memory a large answer takes: 1 MiB of float32, tiled and streamed from a server to a client.

What arrives is counted, and elements of every block are compared with what they must be by the operator's definition.
The kernel keeps the peaks (VmHWM in /proc, set back before the stream), so nothing between two samples is missed.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tensorpost import BufferTensorDesc, Client, TileOperatorDesc

from . import servers
from .bench import Bench
from .report import Cell, Figure, Table, Target
from .sockets import MIB

SIDE = 512  # 512 x 512 float32 are 1 MiB
COPIES_ACROSS = 128
LOOKS_PER_BLOCK = 4
FLAT = 32  # MiB


def measure(bench: Bench) -> Iterator[Table]:
    """One stream, and what both sides grew by."""
    if sys.platform != "linux":
        bench.leave_out("memory, which is read from /proc, and only Linux has one with peaks that can be set back")
        return
    bench.note("Growth is the highest resident memory during the stream less that before it, after a small request.")
    copies_down = max(1, round((0.25 if bench.quick else bench.gibibytes) * 1024 / COPIES_ACROSS))
    # Each element is its own place in the tensor, exact in float32, so that one out of place is seen.
    x = np.arange(SIDE * SIDE, dtype=np.float32).reshape(1, 1, SIDE, SIDE)
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", x.shape), (1, 1, copies_down, COPIES_ACROSS))
    expected = x.nbytes * copies_down * COPIES_ACROSS
    with servers.tensorpost() as server, Client(server.url) as tp:
        tp.tile(x[:, :, :2, :2], (1, 1, 2, 2))  # both sides have loaded all they need
        processes = {"server": server.process, "client": os.getpid()}
        idle = {name: servers.resident(process) for name, process in processes.items()}
        for process in processes.values():
            Path(f"/proc/{process}/clear_refs").write_text("5")  # the peak starts again at what is resident now
        begin = time.perf_counter()
        received, compared = take(tp, desc, x)
        took = time.perf_counter() - begin
        growth = {name: servers.resident(process, "VmHWM") - idle[name] for name, process in processes.items()}
    if received != expected:
        raise RuntimeError(f"{received:,} bytes of {expected:,} arrived")
    bench.note(
        f"{received:,} bytes arrived in {took:.1f} s; {compared:,} elements were compared, and all were correct."
    )
    size = f"{received / 2**30:g} GiB"
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            Figure(idle[name] / MIB, 1),
            Figure(
                growth[name] / MIB,
                1,
                Target(f"{size} out from 1 MiB in, growth of the {name}, MiB", FLAT, at_most=True),
            ),
        )
        for name in processes
    ]
    yield Table(f"Memory while {size} stream out of 1 MiB", ("side", "before, MiB", "growth, MiB"), tuple(rows))


def take(tp: Client, desc: TileOperatorDesc, x: np.ndarray) -> tuple[int, int]:
    """Receive every block, compare some elements of each; bytes received and elements compared."""
    width = SIDE * COPIES_ACROSS
    choose = random.Random(0)
    at = compared = 0
    for block in tp.stream(desc, x):
        elements = np.frombuffer(block, np.float32)
        first, last = at // 4, at // 4 + len(elements) - 1
        for index in (first, last, *(choose.randint(first, last) for _ in range(LOOKS_PER_BLOCK))):
            row, column = divmod(index, width)
            want = (row % SIDE) * SIDE + column % SIDE
            if elements[index - first] != want:
                raise RuntimeError(f"element [0, 0, {row}, {column}] is {elements[index - first]}, not {want}")
            compared += 1
        at += len(block)
    return at, compared
