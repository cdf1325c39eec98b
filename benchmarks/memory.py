"""How much memory a large answer takes: 1 MiB of float32 tiled to 10 GiB, streamed from a server to a client.

    python benchmarks/memory.py                     about ten seconds
    python benchmarks/memory.py --gibibytes 0.25    a first look

Neither side may grow by more than 64 MiB over what it holds when idle; if one does, the exit status is 1. What arrives
is counted, and elements of every block are compared with what they must be by the operator's definition. The kernel
keeps the peaks (VmHWM in /proc, set back before the stream), so nothing between two samples is missed. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tensorpost import BufferTensorDesc, Client, TileOperatorDesc

MIB = 1 << 20
SIDE = 512  # 512 x 512 float32 are 1 MiB
COPIES_ACROSS = 160
MOST_GROWTH = 64 * MIB
LOOKS_PER_BLOCK = 4


def main() -> None:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gibibytes", type=float, default=10.0, help="size of the output; default 10")
    chosen = parser.parse_args()
    copies_down = max(1, round(chosen.gibibytes * 1024 / COPIES_ACROSS))

    # Each element is its own place in the tensor, exact in float32, so that one out of place is seen.
    x = np.arange(SIDE * SIDE, dtype=np.float32).reshape(1, 1, SIDE, SIDE)
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", x.shape), (1, 1, copies_down, COPIES_ACROSS))
    expected = x.nbytes * copies_down * COPIES_ACROSS

    with running_server() as (url, pid), Client(url) as tp:
        tp.tile(x[:, :, :2, :2], (1, 1, 2, 2))  # both sides have loaded all they need
        processes = {"server": pid, "client": os.getpid()}
        idle = {name: resident(process, "VmRSS") for name, process in processes.items()}
        for process in processes.values():
            Path(f"/proc/{process}/clear_refs").write_text("5")  # the peak starts again at what is resident now
        begin = time.perf_counter()
        received, compared = take(tp, desc, x)
        took = time.perf_counter() - begin
        growth = {name: resident(process, "VmHWM") - idle[name] for name, process in processes.items()}

    print(f"in:   {x.nbytes / MIB:.0f} MiB of float32, sizes {list(x.shape)}, Repeats {list(desc.repeats)}")
    print(f"out:  {received:,} bytes of {expected:,}, in {took:.1f} s, which is {received / took / 1e9:.2f} GB/s")
    print(f"      {compared:,} elements compared, all as they must be")
    for name in processes:
        print(f"{name}: {idle[name] / MIB:.1f} MiB idle, at most {growth[name] / MIB:.1f} MiB more while streaming")
    if received != expected or max(growth.values()) >= MOST_GROWTH:
        raise SystemExit(f"failed: everything must arrive, and neither side may grow by {MOST_GROWTH // MIB} MiB")


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
                raise SystemExit(f"failed: element [0, 0, {row}, {column}] is {elements[index - first]}, not {want}")
            compared += 1
        at += len(block)
    return at, compared


@contextlib.contextmanager
def running_server() -> Iterator[tuple[str, int]]:
    """A server in a process of its own, on a free port: its address and process id."""
    command = [sys.executable, "-m", "tensorpost", "serve", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start: {' '.join(command)} ended with status {process.wait()}")
        yield line.split()[-1], process.pid
    finally:
        process.terminate()
        process.wait()


def resident(process: int, what: str) -> int:
    """Bytes of a process in memory: VmRSS now, VmHWM at most."""
    found = re.search(rf"^{what}:\s+(\d+) kB$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    main()
