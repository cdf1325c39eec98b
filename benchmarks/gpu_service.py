"""A server with GPUs: what a request costs beside the same request to the `null` backend, and what a second GPU gives.

    python benchmarks/gpu_service.py
    python benchmarks/gpu_service.py --json service.json

Through the wire: one server and one client on this machine, over loopback; 256 MiB go in and come back (a Tile with
one repeat), 1 MiB goes in and 1 GiB comes back, and a small tensor. `cuda` and `null` are asked in turn, and every
answer is compared with what NumPy says. Without the wire: a batch of 64 requests that compute for long is given to one
GPU and to all of them, by the pool's own placement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tensorpost import Client
from tensorpost.descriptors import BufferTensorDesc, OperatorDesc, Resample3OperatorDesc, TileOperatorDesc
from tensorpost_server.backends import DeviceOptions
from tensorpost_server.engine import Pool
from tensorpost_server.planning import make_plan

MIB = 1 << 20
REQUESTS = 64
ROUNDS = 7
TARGETS = {"256 MiB in and out": 0.8, "two devices": 1.8}


@contextmanager
def server() -> Iterator[str]:
    """A server with the usual settings; its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorpost", "serve", "--port", "0"], stdout=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("TENSORPOST_")},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"listens on (\S+)", line)
        if found is None:
            raise SystemExit(f"the server did not start: {line!r}")
        yield found[1]
    finally:
        process.terminate()
        process.wait(30)


def through_the_wire(tp: Client) -> Iterator[tuple[str, dict[str, float]]]:
    """Seconds of each job on `null` and `cuda`, the fastest of some rounds in turn; the small one's median."""
    rng = np.random.default_rng(1)
    jobs: list[tuple[str, Any, tuple[int, ...], int]] = [
        ("256 MiB in and out", rng.random((64, 1024, 1024), np.float32), (1, 1, 1), ROUNDS),
        ("1 MiB in, 1 GiB out", rng.random((1, 512, 512), np.float32), (1024, 1, 1), ROUNDS),
        ("3 KiB in, 12 KiB out", rng.random((1, 3, 16, 16), np.float32), (1, 1, 2, 2), 300),
    ]
    for name, x, repeats, rounds in jobs:
        desc = TileOperatorDesc.of(BufferTensorDesc.packed(x.dtype, x.shape), repeats)
        out = np.empty([size * repeat for size, repeat in zip(x.shape, repeats, strict=True)], x.dtype)
        out[:] = 0  # mapped before anybody measures
        seconds: dict[str, list[float]] = {"null": [], "cuda": []}
        for _ in range(rounds):
            for backend, taken in seconds.items():
                begin = time.perf_counter()
                result = tp.call(desc, x, out=out, backend=backend)
                taken.append(time.perf_counter() - begin)
                assert result.backend == backend
            part = out.reshape(repeats[0], x.shape[0], *out.shape[1:])[:, 0]
            expected = np.tile(x[0], repeats[1:])
            assert all(np.array_equal(each, expected) for each in part), "cuda answered something else"
        taken = {backend: sorted(times) for backend, times in seconds.items()}
        yield name, {backend: times[len(times) // 2 if rounds > 99 else 0] for backend, times in taken.items()}


def long_sums() -> tuple[OperatorDesc, Any]:
    """256 MiB in, 4 MiB out, each output a sum of some 1,000 inputs: the GPU fetches and adds, the host only waits."""
    x = np.random.default_rng(2).random((1, 1024, 65536), np.float32)
    desc = Resample3OperatorDesc.completed(
        {
            "InputTensor": BufferTensorDesc.packed(x.dtype, x.shape),
            "OutputTensor": BufferTensorDesc.packed(x.dtype, (1, 16, x.shape[2])),
            "InterpolationMode": "LINEAR",
            "RoundingDirection": "DECREASING",
            "Scales": [1, 0.002, 1],
            "InputPixelOffsets": [0.5] * 3,
            "OutputPixelOffsets": [-0.5] * 3,
            "Antialiased": True,
        }
    )
    return desc, x


async def batch(pool: Pool, plan: Any, inputs: list[memoryview], device: int | None) -> float:
    """Seconds for all requests at the same time."""

    async def one() -> None:
        worker = pool.choose(plan, "cuda", device)
        with worker.enqueue(plan):
            async for block in worker.run(plan, inputs):
                del block

    begin = time.perf_counter()
    await asyncio.gather(*[one() for _ in range(REQUESTS)])
    return time.perf_counter() - begin


def without_the_wire() -> Iterator[tuple[str, float]]:
    """Seconds of the batch on each number of devices, the fastest of three."""
    desc, x = long_sums()
    plan = make_plan(desc, 2 * MIB)
    pool = Pool.open("cuda", DeviceOptions(threads={}, cuda_pinned_bytes=1 << 30), 3)
    try:
        devices = [worker for worker in pool.workers.values() if worker.backend.name == "cuda"]
        memory = devices[0].backend.host_memory(x.nbytes)  # as the server receives bodies
        assert memory is not None
        memory[:] = memoryview(x).cast("B")
        inputs = [memory]
        firsts = [bytes(worker.run_now(plan, inputs)[: 2 * MIB]) for worker in devices]
        assert firsts == [firsts[0]] * len(devices), "devices differ"
        for _ in range(1 if len(devices) == 1 else 2):
            asyncio.run(batch(pool, plan, inputs, None))  # kernels are compiled, memory is there
        yield "one device", min(asyncio.run(batch(pool, plan, inputs, 0)) for _ in range(3))
        if len(devices) > 1:
            yield f"{len(devices)} devices", min(asyncio.run(batch(pool, plan, inputs, None)) for _ in range(3))
        del memory, inputs
    finally:
        pool.close()


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with server() as url, Client(url) as tp:
        found["devices"] = [row["device"] for row in tp.devices()["devices"] if row["name"] == "cuda"]
        print(*found["devices"], sep=", ")
        print(f"{'through the wire':<22}{'null':>10}{'cuda':>10}   null / cuda")
        for name, seconds in through_the_wire(tp):
            found[name] = seconds
            ratio = seconds["null"] / seconds["cuda"]
            target = f" (>= {TARGETS[name]})" if name in TARGETS else ""
            cells = "".join(f"{seconds[backend] * 1e3:>7.2f} ms" for backend in ("null", "cuda"))
            print(f"{name:<22}{cells}   {ratio:.2f}{target}", flush=True)
    found["batch"] = batches = dict(without_the_wire())
    print(f"a batch of {REQUESTS} requests: {', '.join(f'{name} {taken:.2f} s' for name, taken in batches.items())}")
    if len(batches) == 2:
        one, several = batches.values()
        print(f"{one / several:.2f} times one device (>= {TARGETS['two devices']} for two)")
    else:
        print("there is one device here: nothing to compare it with")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
