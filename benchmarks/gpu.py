"""The CUDA kernels beside torch and CuPy: same arrays, same device, same run.

    python benchmarks/gpu.py
    python benchmarks/gpu.py linear nearest --rounds 31 --json gpu.json

Every figure is a share of what the device's own copy moves, counting bytes read and bytes written. The copy, ours and
the peers run in turn on one stream between CUDA events, each behind a copy that is long enough to hide how long the
host took to launch it; a figure is the median over the rounds. Outputs are filled with other bytes first and then
compared: with torch's, bit for bit or within a tolerance, and in random boxes with NumPy's kernels.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorpost_server.forms import Form
from tensorpost_server.forms.separable import Separable
from tensorpost_server.operators.resample import LinearAxis, Nearest, NearestAxis
from tensorpost_server.operators.tile import TileKernel

MIB = 1 << 20
COPY_BYTES = 1 << 29  # of the copy that all is measured against; far beyond any cache
BOXES, BOX_ELEMENTS = 12, 50_000  # compared with NumPy in each job


@dataclass(frozen=True)
class Job:
    """One row of the table.

    Attributes:
        group: for choosing rows.
        name: of the row.
        dtype: of the elements.
        shape: of the input.
        kernel: what is done.
        sizes: of the output.
        target: least share of the copy, or None.
        ratio: least multiple of torch's speed, or None.
        peer: the same by torch.
        reads: share of the input that counts as read.
        tolerance: between torch's result and ours; 0 for every bit.
    """

    group: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    kernel: Form
    sizes: tuple[int, ...]
    target: float | None
    ratio: float | None
    peer: Callable[[Any], Any] | None
    reads: float = 1.0
    tolerance: float = 0.0

    @property
    def bytes(self) -> int:
        """Bytes that must be read and written."""
        item = np.dtype(self.dtype).itemsize
        return int(np.prod(self.shape, dtype=np.int64) * self.reads + np.prod(self.sizes, dtype=np.int64)) * item


def tile(
    group: str,
    shape: tuple[int, ...],
    repeats: tuple[int, ...],
    dtype: str,
    target: float | None = None,
    ratio: float | None = None,
) -> Job:
    sizes = tuple(size * repeat for size, repeat in zip(shape, repeats, strict=True))
    name = f"{shape} x {repeats}".replace(" ", "")
    return Job(group, name, dtype, shape, TileKernel(shape), sizes, target, ratio, lambda x: x.tile(repeats))


def resample(
    mode: str,
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    dtype: str,
    target: float,
    ratio: float | None = 1.0,
) -> Job:
    axes: list[LinearAxis | NearestAxis | None] = []
    for size, output in zip(shape, sizes, strict=True):
        numbers = (size, output, float(np.float32(output / size)), 0.5, -0.5)
        if size == output:
            axes.append(None)
        else:
            axes.append(LinearAxis(*numbers) if mode == "linear" else NearestAxis(*numbers, Nearest.HALF_UP))
    mapped = sum(axis is not None for axis in axes)
    modes = {"linear": {1: "linear", 2: "bilinear", 3: "trilinear"}.get(mapped), "nearest": "nearest-exact"}
    peer: Callable[[Any], Any] | None = None
    if modes[mode] is not None and mapped == len(shape) - 2:

        def peer_of_torch(x: Any) -> Any:
            functional = importlib.import_module("torch.nn.functional")
            return functional.interpolate(x, size=sizes[2:], mode=modes[mode])

        peer = peer_of_torch
    # Nearest reads whole rows, but only those that some output asks for.
    reads = min(1.0, sizes[-2] / shape[-2]) if mode == "nearest" else 1.0
    tolerance = 0.0 if mode == "nearest" else {"float32": 2e-6, "float16": 1e-3, "uint8": 1.0}[dtype]
    name = f"{shape} to {sizes[-mapped:]}".replace(", ", ",")
    return Job(mode, name, dtype, shape, Separable(tuple(axes)), sizes, target, ratio, peer, reads, tolerance)


def jobs() -> Iterator[Job]:
    big = (("float32", 1), ("uint8", 4))
    yield tile("tile", (1, 3, 512, 512), (40, 1, 4, 4), "float32", 0.90)
    yield tile("tile", (1, 3, 512, 512), (160, 1, 4, 4), "uint8", 0.90)
    yield tile("tile", (128, 1024, 1), (2, 1, 1024), "float32", 0.80)
    yield tile("tile", (1, 1, 1, 1024), (8, 64, 1024, 1), "float16", 0.90)
    for dtype, times in big:
        yield tile("tile", (16, 7, 33, 5), (24 * times, 5, 7, 11), dtype, 0.55, 2.5)
    yield tile("tile", (4,) * 8, (3,) * 7 + (1,), "float32", 0.80)
    for dtype in ("float32", "uint8"):
        yield tile("peers", (1, 3, 512, 512), (8, 1, 4, 4), dtype, ratio=2)
    yield tile("peers", (64, 1024, 1), (1, 1, 1024), "float32", ratio=2)
    yield tile("peers", (1, 1, 1, 1024), (4, 64, 1024, 1), "float16", ratio=2)
    for dtype in ("float32", "uint8"):
        yield tile("peers", (16, 7, 33, 5), (3, 5, 7, 11), dtype, ratio=2)
    yield tile("peers", (4,) * 8, (3,) * 7 + (1,), "float32", ratio=2)
    for dtype, target in (("float32", 0.80), ("float16", 0.70)):
        yield resample("linear", (8, 3, 1080, 1920), (8, 3, 2160, 3840), dtype, target)
        yield resample("linear", (8, 3, 1080, 1920), (8, 3, 1836, 3264), dtype, target)
        yield resample("linear", (8, 3, 2160, 3840), (8, 3, 1080, 1920), dtype, target)
    yield resample("linear", (64, 256, 32, 32), (64, 256, 64, 64), "float32", 0.75)
    yield resample("linear", (1, 4, 128, 256, 256), (1, 4, 256, 512, 512), "float32", 0.65)
    yield resample("linear", (1, 1, 24, 48, 64, 64), (1, 1, 48, 96, 128, 128), "float32", 0.5)
    for dtype in ("float32", "float16"):
        yield resample("nearest", (8, 3, 1080, 1920), (8, 3, 2160, 3840), dtype, 0.85)
        yield resample("nearest", (8, 3, 1080, 1920), (8, 3, 1836, 3264), dtype, 0.85)
        yield resample("nearest", (8, 3, 2160, 3840), (8, 3, 1080, 1920), dtype, 0.85)


class Bench:
    """The device, its libraries and one stream for all of them."""

    def __init__(self, rounds: int) -> None:
        self.cupy = importlib.import_module("cupy")
        self.compute = importlib.import_module("tensorpost_server.backends.cuda.compute")
        self.torch: Any = None
        try:
            self.torch = importlib.import_module("torch")
        except ModuleNotFoundError:
            print("torch is not installed: its column is left out")
        self.rounds = rounds
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.stream.use()
        if self.torch is not None:
            self.torch.cuda.set_stream(self.torch.cuda.ExternalStream(self.stream.ptr))
        self.source = self.cupy.random.randint(0, 256, COPY_BYTES, dtype=np.uint8)
        self.target = self.cupy.empty(COPY_BYTES, np.uint8)

    def copy(self) -> None:
        """The device's own copy."""
        self.cupy.cuda.runtime.memcpyAsync(self.target.data.ptr, self.source.data.ptr, COPY_BYTES, 3, self.stream.ptr)

    def times(self, works: list[Callable[[], Any]]) -> list[float]:
        """Median milliseconds of the copy and of each work, all in turn in every round."""
        taken: list[list[float]] = [[] for _ in range(len(works) + 1)]
        for turn in range(self.rounds + 3):
            events: list[tuple[Any, Any]] = []
            for work in works:
                marks = [self.cupy.cuda.Event() for _ in range(3)]
                with self.stream:  # sharing an array with torch has been seen to change CuPy's current one
                    marks[0].record(self.stream)
                    self.copy()
                    marks[1].record(self.stream)
                    work()
                    marks[2].record(self.stream)
                events += [(marks[0], marks[1]), (marks[1], marks[2])]
            events[-1][1].synchronize()
            if turn < 3:
                continue  # compiling, allocating
            for number, pair in enumerate(events):
                elapsed = float(self.cupy.cuda.get_elapsed_time(*pair))
                taken[0 if number % 2 == 0 else number // 2 + 1].append(elapsed)
        return [statistics.median(one) for one in taken]

    def run(self, job: Job) -> dict[str, Any]:
        """A row: shares of the copy, torch's and CuPy's beside ours, and whether the result is right."""
        cupy = self.cupy
        host = np.random.default_rng(1).integers(0, 256, job.shape, np.uint8).astype(job.dtype)
        if host.dtype.kind == "f":
            host /= host.dtype.type(256)
        x, out = cupy.asarray(host), cupy.empty(job.sizes, job.dtype)
        out.view(np.uint8)[...] = 0xA5
        box = tuple((0, size) for size in job.sizes)
        works: dict[str, Callable[[], Any]] = {"ours": lambda: self.compute.fill(job.kernel, [x], box, out)}
        works["ours"]()
        wrong = self.wrong_box(job, host, out)
        if self.torch is not None and job.peer is not None:
            peer, theirs = job.peer, self.torch.as_tensor(x, device="cuda")
            wrong = wrong or self.differs(job, peer(theirs), out)
            works["torch"] = lambda: peer(theirs)
        if isinstance(job.kernel, TileKernel):
            repeats = [size // was for size, was in zip(job.sizes, job.shape, strict=True)]
            works["cupy"] = lambda: cupy.tile(x, repeats)
        copy, *taken = self.times(list(works.values()))
        rate = 2 * COPY_BYTES / copy
        row: dict[str, Any] = {"group": job.group, "job": job.name, "dtype": job.dtype, "MiB": job.bytes / MIB}
        row |= {"copy GB/s": rate / 1e6, "milliseconds": dict(zip(works, taken, strict=True))}
        row |= {"share": {name: job.bytes / ms / rate for name, ms in zip(works, taken, strict=True)}}
        row |= {"target": job.target, "ratio": job.ratio, "wrong": wrong}
        return row

    def wrong_box(self, job: Job, host: Any, out: Any) -> str | None:
        """Where NumPy's kernel gives something else, in some random boxes and the output's last elements."""
        random = np.random.default_rng(2)
        for number in range(BOXES):
            box, left = [(0, 1)] * len(job.sizes), BOX_ELEMENTS
            for axis in random.permutation(len(job.sizes)):
                extent = int(min(job.sizes[axis], left, random.integers(1, 400)))
                start = int(random.integers(0, job.sizes[axis] - extent + 1)) if number else job.sizes[axis] - extent
                box[axis], left = (start, start + extent), left // extent
            expected = np.empty([stop - start for start, stop in box], job.dtype)
            job.kernel.fill(np, [host], tuple(box), expected)
            got = self.cupy.asnumpy(out[tuple(slice(*span) for span in box)])
            if job.tolerance == 0:
                if got.tobytes() != expected.tobytes():
                    return f"not NumPy's bits in {box}"
            elif not np.abs(got.astype(np.float64) - expected.astype(np.float64)).max() <= job.tolerance:
                return f"far from NumPy's in {box}"
        return None

    def differs(self, job: Job, theirs: Any, out: Any) -> str | None:
        """Why torch's result is another one."""
        ours = self.torch.as_tensor(out, device="cuda")
        if job.tolerance == 0:
            count = int((theirs.reshape(ours.shape) != ours).sum())
            # Torch's coordinates are rounded differently; ours are NumPy's to the bit, which is checked above.
            allowed = 0 if job.group != "nearest" or job.sizes[-1] % job.shape[-1] == 0 else ours.numel() // 100
            return f"{count} elements are not torch's" if count > allowed else None
        far = float((theirs.reshape(ours.shape) - ours).abs().max())
        # For scales that are no power of two torch's float32 coordinates are up to 2^-11 off in rows of this length.
        return f"up to {far:.1e} from torch's" if not far <= job.tolerance + 1e-3 else None

    def overhead(self) -> dict[str, float]:
        """Microseconds of the host for each call on tensors so small that the device waits for it."""
        cupy = self.cupy
        x = cupy.zeros((1, 3, 8, 8), np.float32)
        out = cupy.empty((1, 3, 16, 16), np.float32)
        box = ((0, 1), (0, 3), (0, 16), (0, 16))
        axis = LinearAxis(8, 16, 2.0, 0.5, -0.5)
        linear, tiled = Separable((None, None, axis, axis)), TileKernel((1, 3, 8, 8))
        works: dict[str, Callable[[], Any]] = {
            "ours, tile": lambda: self.compute.fill(tiled, [x], box, out),
            "ours, linear": lambda: self.compute.fill(linear, [x], box, out),
            "cupy.tile": lambda: cupy.tile(x, (1, 1, 2, 2)),
        }
        if self.torch is not None:
            theirs, interpolate = self.torch.as_tensor(x, device="cuda"), self.torch.nn.functional.interpolate
            works["torch.tile"] = lambda: theirs.tile((1, 1, 2, 2))
            works["torch, bilinear"] = lambda: interpolate(theirs, scale_factor=2, mode="bilinear")
        found: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(9):
            for name, work in works.items():
                work()
                self.stream.synchronize()
                begin = time.perf_counter()
                for _ in range(300):
                    work()
                self.stream.synchronize()
                found[name].append((time.perf_counter() - begin) / 300 * 1e6)
        return {name: statistics.median(taken) for name, taken in found.items()}


def judge(row: dict[str, Any]) -> str:
    """Whether a row reaches its target."""
    if row["wrong"]:
        return f"WRONG: {row['wrong']}"
    share, verdicts = row["share"], list[str]()
    if row["target"] is not None:
        verdicts.append("" if share["ours"] >= row["target"] else f"below {row['target']:.2f}")
    if row["ratio"] is not None and "torch" in share:
        verdicts.append("" if share["ours"] >= row["ratio"] * share["torch"] else f"below {row['ratio']:g} x torch")
    return ", ".join(verdict for verdict in verdicts if verdict) or "ok"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("groups", nargs="*", help="tile, peers, linear, nearest, overhead; all if none is given")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="where to write all figures")
    arguments = parser.parse_args()
    bench = Bench(arguments.rounds)
    name = bench.cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    versions = {one: importlib.import_module(one).__version__ for one in ("cupy", "numpy")}
    if bench.torch is not None:
        versions["torch"] = bench.torch.__version__
    print(name, versions)
    print(f"{'':9}{'job':52}{'type':9}{'MiB':>7}{'ours':>7}{'torch':>7}{'cupy':>7}{'copy GB/s':>11}")
    rows: list[dict[str, Any]] = []
    for job in jobs():
        if arguments.groups and job.group not in arguments.groups:
            continue
        with bench.stream:
            row = bench.run(job)
        rows.append(row)
        shares = "".join(
            f"{row['share'][one]:7.2f}" if one in row["share"] else f"{'':7}" for one in ("ours", "torch", "cupy")
        )
        print(
            f"{job.group:9}{job.name:52}{job.dtype:9}{row['MiB']:7.0f}{shares}{row['copy GB/s']:11.0f}  {judge(row)}",
            flush=True,
        )
        bench.cupy.get_default_memory_pool().free_all_blocks()
    with bench.stream:
        overhead = bench.overhead() if not arguments.groups or "overhead" in arguments.groups else {}
    for what, microseconds in overhead.items():
        print(f"host time of a call on a small tensor: {what:16}{microseconds:6.1f} us")
    if arguments.json:
        result = {"device": name, "versions": versions, "rounds": arguments.rounds, "rows": rows, "overhead": overhead}
        arguments.json.write_text(json.dumps(result, indent=1))
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
