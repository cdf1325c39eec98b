"""Large tensors from end to end: the real SDK and the real server beside other products and their clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import servers
from benchmarks.bench import Bench
from benchmarks.report import Cell, Figure, Table, Target
from benchmarks.timing import in_turn
from tensorpost import Client

from .jobs import REPEATS, SHAPES, compare, tensor
from .products import Asker, Product, found

TITLE = "Tile x2x2 of float32, end to end"
JOBS = tuple(job for job in SHAPES if job != "small")
SLOW = 4.0  # seconds; calls that take so long are made twice, without one that does not count
TARGETS = {
    "16 MiB": Target("SDK `tile` 16 MiB end to end, speed against the best peer product", 3),
    "256 MiB": Target("SDK `tile` 256 MiB end to end, speed against the best peer product", 6),
}
OURS, OURS_OUT = "Client.tile", "Client.tile, out="


def measure(bench: Bench) -> Iterator[Table]:
    """One row per product and size, ours measured in turn with it."""
    bench.note(
        "GB/s of output over the whole call, client included, at the lower quartile; the input is a quarter of it."
    )
    bench.note(
        "tensorpost is called by `Client.tile`, which returns a new array; with out= it fills an existing array."
    )
    bench.note("Products called over HTTP are called by Python's http.client, which reads into existing memory.")
    bench.note("Each product runs one worker with its default settings otherwise, and tiles with NumPy.")
    rows: list[tuple[Cell, ...]] = []
    for product, python in found(bench):
        try:
            rows += _against(bench, product, python)
        except (RuntimeError, OSError) as error:
            bench.leave_out(f"{product.name}: {error}")
    columns = ("product", "asked by", "job", "tensorpost, GB/s", "with out=, GB/s", "theirs, GB/s", "ratio")
    yield Table(TITLE, columns, tuple(rows))


def _against(bench: Bench, product: Product, python: Path) -> list[tuple[Cell, ...]]:
    """The jobs that a product can do."""
    rows: list[tuple[Cell, ...]] = []
    with servers.tensorpost() as server, Client(server.url) as tp, product.asked(python) as asker:
        for job in JOBS:
            if bench.quick and job != "16 MiB":
                continue
            if job not in product.jobs:
                bench.leave_out(f"{product.name}, {job}: {product.client} would take minutes")
                continue
            bench.doing(f"peers: {product.name}, {job}")
            x = tensor(job)
            out = np.empty([size * count for size, count in zip(x.shape, REPEATS, strict=True)], np.float32)
            out.fill(0)  # mapped before it is timed
            calls = {
                OURS: partial(tp.tile, x, REPEATS),
                OURS_OUT: partial(tp.tile, x, REPEATS, out=out),
                "theirs": partial(asker.call, job),
            }
            begin = time.perf_counter()
            _check(job, tp, out, asker)
            slow = time.perf_counter() - begin > SLOW
            took = in_turn(calls, least=2 if slow else 5, seconds=2 if bench.quick else 5, warm_up=0 if slow else 1)
            if not slow:
                _check(job, tp, out, asker)
            rates = {name: out.nbytes / times.quartile / 1e9 for name, times in took.items()}
            figures = [Figure(rates[OURS]), Figure(rates[OURS_OUT]), Figure(rates["theirs"], 3)]
            ratio = Figure(rates[OURS] / rates["theirs"], target=TARGETS[job])
            rows.append((product.name, product.client, job, *figures, ratio))
    return rows


def _check(job: str, tp: Client, out: np.ndarray, asker: Asker) -> None:
    """Compare what everybody returns."""
    compare("tensorpost", job, tp.tile(tensor(job), REPEATS))
    compare("tensorpost with out=", job, tp.tile(tensor(job), REPEATS, out=out))
    asker.check(job)
