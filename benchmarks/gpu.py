"""The CUDA kernels beside torch and CuPy: same arrays, same device, same run.

    python benchmarks/gpu.py
    python benchmarks/gpu.py linear nearest --rounds 31 --json gpu.json

Every figure is a share of what the device's own copy moves, counting bytes read and bytes written. The copy, ours and
the peers run in turn on one stream between CUDA events, each behind a copy that is long enough to hide how long the
host took to launch it; a figure is the median over the rounds. Outputs are filled with other bytes first and then
compared: with torch's, bit for bit or within a tolerance, and in random boxes with what NumPy makes of the form.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorpost import descriptors as dml
from tensorpost.descriptors import OperatorDesc
from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost_server.forms import Form, Pointwise
from tensorpost_server.forms.base import whole_box
from tensorpost_server.forms.expression import operand
from tensorpost_server.forms.resample_axes import LinearAxis, Nearest, NearestAxis
from tensorpost_server.forms.separable import Rounding, Separable
from tensorpost_server.operators import form_of
from tensorpost_server.operators.tile import tile as tile_form

MIB = 1 << 20
COPY_BYTES = 1 << 29  # of the copy that all is measured against; far beyond any cache
BOXES, BOX_ELEMENTS = 12, 50_000  # compared with NumPy in each job


@dataclass(frozen=True)
class Job:
    """One row of the table.

    Attributes:
        group: name by which rows are chosen together.
        name: name of the row.
        form: what is done.
        inputs: the input tensors.
        output: the output tensor, packed.
        target: least share of the copy, or None.
        ratio: least multiple of torch's speed, or None.
        torch: the same by torch, of its arrays.
        cupy: the same by CuPy, of its arrays.
        reads: bytes of the inputs that count as read.
        tolerance: largest difference between two results, relative to numbers above 1; 0 for every bit.
        resampled: whether the bits of torch's result depend on how it rounds coordinates.
    """

    group: str
    name: str
    form: Form
    inputs: tuple[Layout, ...]
    output: Layout
    target: float | None
    ratio: float | None
    torch: Callable[..., Any] | None
    cupy: Callable[..., Any] | None
    reads: int
    tolerance: float = 0.0
    resampled: bool = False

    @property
    def dtype(self) -> str:
        """The elements' type."""
        return self.output.data_type.numpy_name

    @property
    def bytes(self) -> int:
        """Bytes that must be read and written."""
        return self.reads + self.output.size_in_bytes


def layout(dtype: str, sizes: Sequence[int]) -> Layout:
    return Layout.row_major(data_type(dtype), sizes)


def tile(
    group: str,
    shape: tuple[int, ...],
    repeats: tuple[int, ...],
    dtype: str,
    target: float | None = None,
    ratio: float | None = None,
) -> Job:
    x = layout(dtype, shape)
    out = layout(dtype, [size * repeat for size, repeat in zip(shape, repeats, strict=True)])
    name = f"{shape} x {repeats}".replace(" ", "")
    form = tile_form(shape, repeats)
    by_cupy = _cupy("tile", repeats)
    return Job(group, name, form, (x,), out, target, ratio, lambda y: y.tile(repeats), by_cupy, x.size_in_bytes)


def _cupy(name: str, *more: Any, **named: Any) -> Callable[..., Any]:
    return lambda *arrays: getattr(importlib.import_module("cupy"), name)(*arrays, *more, **named)


def _torch(name: str, *more: Any, **named: Any) -> Callable[..., Any]:
    return lambda *arrays: getattr(importlib.import_module("torch"), name)(*arrays, *more, **named)


def _functional(name: str, *more: Any, **named: Any) -> Callable[..., Any]:
    return lambda *arrays: getattr(importlib.import_module("torch.nn.functional"), name)(*arrays, *more, **named)


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
    if modes[mode] is not None and mapped == len(shape) - 2 and dtype != "uint8":  # which torch has on the CPU only
        peer = _functional("interpolate", size=sizes[2:], mode=modes[mode])
    x = layout(dtype, shape)
    # Nearest reads whole rows, but only those that some output asks for.
    reads = int(x.size_in_bytes * min(1.0, sizes[-2] / shape[-2])) if mode == "nearest" else x.size_in_bytes
    tolerance = 0.0 if mode == "nearest" else {"float32": 2e-6, "float16": 1e-3, "uint8": 1.0}[dtype]
    name = f"{shape} to {sizes[-mapped:]}".replace(", ", ",")
    rounding = Rounding.TRUNCATE if dtype == "uint8" and mode == "linear" else Rounding.NONE  # as RESAMPLE has it
    form, out = Separable(tuple(axes), rounding=rounding), layout(dtype, sizes)
    return Job(mode, name, form, (x,), out, target, ratio, peer, None, reads, tolerance, resampled=True)


def operator(
    group: str,
    name: str,
    desc: OperatorDesc,
    target: float,
    torch: Callable[..., Any],
    cupy: Callable[..., Any] | None,
    tolerance: float = 0.0,
) -> Job:
    """A row by its descriptor; of an input that is larger than the output, as much as that counts as read."""
    inputs = tuple(slot.layout for slot in desc.inputs)
    out = desc.outputs[0].layout
    reads = sum(min(x.data_size_in_bytes, out.size_in_bytes) for x in inputs)
    return Job(group, name, form_of(desc), inputs, out, target, 1.0, torch, cupy, reads, tolerance)


def pointwise(dtype: str, mib: int) -> Iterator[Job]:
    """Add, multiply, exp and gelu of tensors of so many MiB."""
    tensor = dml.BufferTensorDesc.packed(np.dtype(dtype), (mib, MIB // np.dtype(dtype).itemsize))
    pair, single = {"ATensor": tensor, "BTensor": tensor}, {"InputTensor": tensor}
    tolerance = {"float32": 2e-6, "float16": 1e-3}[dtype]
    rows: list[tuple[str, OperatorDesc, Any, Any]] = [
        ("add", dml.ElementWiseAddOperatorDesc.completed(pair), _torch("add"), _cupy("add")),
        ("multiply", dml.ElementWiseMultiplyOperatorDesc.completed(pair), _torch("mul"), _cupy("multiply")),
        ("exp", dml.ElementWiseExpOperatorDesc.completed(single), _torch("exp"), _cupy("exp")),
        ("gelu", dml.ActivationGeluOperatorDesc.completed(single), _functional("gelu"), cupy_gelu),
    ]
    for name, desc, torch, cupy in rows:
        yield operator("pointwise", f"{name}, {mib} MiB", desc, 0.85, torch, cupy, tolerance)


def cupy_gelu(x: Any) -> Any:
    special = importlib.import_module("cupyx.scipy.special")
    return x * x.dtype.type(0.5) * (1 + special.erf(x * x.dtype.type(0.7071067811865476)))


def copies(dtype: str) -> Iterator[Job]:
    """Transposes by strides, slices, joins and paddings."""
    item = np.dtype(dtype).itemsize

    def packed(*sizes: int) -> dml.BufferTensorDesc:
        return dml.BufferTensorDesc.packed(np.dtype(dtype), sizes)

    def contiguous(x: Any) -> Any:
        return x.contiguous()

    for sizes, order in [
        ((8192, 32768 // item), (1, 0)),
        ((32, 256, 8192 // item * 4), (0, 2, 1)),
        ((16, 1024, 1536 // item * 4, 3), (0, 3, 1, 2)),
        ((16, 3, 1024, 1536 // item * 4), (0, 2, 3, 1)),
        ((8191, 32764 // item - 1), (1, 0)),
    ]:
        strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
        turned = dml.BufferTensorDesc(
            data_type=packed(1).data_type,
            sizes=tuple(sizes[axis] for axis in order),
            strides=tuple(strides[axis] for axis in order),
        )
        desc = dml.ElementWiseIdentityOperatorDesc.completed(
            {"InputTensor": turned, "OutputTensor": packed(*turned.sizes)}
        )
        name = f"transpose {sizes} by {order}".replace(", ", ",")
        yield operator("copies", name, desc, 0.7, contiguous, _cupy("ascontiguousarray"))
    wide = 32768 // item
    for offset, steps, target in (((64, 64), (1, 1), 0.85), ((65, 67), (1, 1), 0.85), ((64, 64), (2, 1), 0.85)):
        window = [8000, wide - 192]
        given = {"InputTensor": packed(8192, wide), "InputWindowOffsets": offset, "InputWindowSizes": window}
        desc = dml.Slice1OperatorDesc.completed({**given, "InputWindowStrides": steps})
        part = tuple(slice(at, at + size, step) for at, size, step in zip(offset, window, steps, strict=True))
        name = f"slice from {offset} by {steps}".replace(", ", ",")
        yield operator(
            "copies", name, desc, target, lambda x, part=part: x[part].contiguous(),
            lambda x, part=part: importlib.import_module("cupy").ascontiguousarray(x[part]),
        )  # fmt: skip
    for axis, widths in ((0, (4096, 4096)), (1, (wide // 2, wide // 2)), (1, (wide // 2 + 1, wide // 4 + 3))):
        parts = [packed(*((width, wide) if axis == 0 else (8192, width))) for width in widths]
        desc = dml.JoinOperatorDesc.completed({"InputTensors": parts, "Axis": axis})
        name = f"join of {widths} along {axis}".replace(", ", ",")
        yield operator(
            "copies", name, desc, 0.85, lambda *x, axis=axis: _torch("cat", axis)(x),
            lambda *x, axis=axis: _cupy("concatenate", axis)(x),
        )  # fmt: skip
    for name, cls, image in (
        ("unshuffle", dml.SpaceToDepth1OperatorDesc, packed(16, 16 // item, 1024, 1024)),
        ("shuffle", dml.DepthToSpace1OperatorDesc, packed(16, 64 // item, 512, 512)),
    ):
        desc = cls.completed({"InputTensor": image, "BlockSize": 2, "Order": "COLUMN_ROW_DEPTH"})
        yield operator("copies", f"pixel {name} by 2", desc, 0.7, _functional(f"pixel_{name}", 2), None)
    for pads in ((1, 1), (16, 64)):
        x = packed(8, 3, 1024, 8192 // item)
        given = {"PaddingMode": "CONSTANT", "PaddingValueDataType": x.data_type.name, "PaddingValue": 0}
        ends = {"StartPadding": (0, 0, *pads), "EndPadding": (0, 0, *pads)}
        desc = dml.Padding1OperatorDesc.completed({"InputTensor": x, **given, **ends})
        around = ((0, 0), (0, 0), (pads[0],) * 2, (pads[1],) * 2)
        yield operator(
            "copies", f"pad {pads}".replace(", ", ","), desc, 0.85,
            _functional("pad", (pads[1], pads[1], pads[0], pads[0])), _cupy("pad", around),
        )  # fmt: skip


def reductions(dtype: str) -> Iterator[Job]:
    """Sums and maxima of rows, of columns and of all elements of 256 MiB, which count as read."""
    x = dml.BufferTensorDesc.packed(np.dtype(dtype), (8192, 32768 // np.dtype(dtype).itemsize))
    for function, named in (("SUM", "sum"), ("MAX", "amax")):
        for where, axes in (("rows", (1,)), ("columns", (0,)), ("all elements", (0, 1))):
            desc = dml.ReduceOperatorDesc.completed({"Function": function, "InputTensor": x, "Axes": axes})
            source, out = desc.inputs[0].layout, desc.outputs[0].layout
            # Sums of 16,384 elements in another order.
            tolerance = 0.0 if named == "amax" else {"float32": 1e-3, "float16": 2e-3}[dtype]
            yield Job(
                "reductions", f"{named} of {where}", form_of(desc), (source,), out, None, 1.0,
                _torch(named, axes, True), _cupy(named, axes, keepdims=True), source.size_in_bytes, tolerance,
            )  # fmt: skip


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
    for dtype in ("float32", "float16"):
        for mib in (64, 256):
            yield from pointwise(dtype, mib)
    for dtype in ("float32", "float16", "uint8"):
        yield from copies(dtype)
    for dtype in ("float32", "float16"):
        yield from reductions(dtype)
    for dtype, target in (("float32", 0.80), ("float16", 0.70), ("uint8", 0.60)):
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

    def array(self, job: Job, x: Layout, seed: int) -> tuple[Any, Any]:
        """An input's elements on the device and on the host, both in the tensor's layout."""
        cupy, dtype = self.cupy, x.data_type.dtype
        count = x.data_size_in_bytes // dtype.itemsize
        random = cupy.random.RandomState(seed)
        if job.group in ("pointwise", "reductions"):
            elements = random.standard_normal(count, dtype=np.float32).astype(dtype)
        else:
            elements = random.randint(0, 256, count, dtype=np.uint8).astype(dtype)
            if dtype.kind == "f":
                elements /= dtype.type(256)
        strides = [stride * dtype.itemsize for stride in x.strides]
        return tuple(
            library.lib.stride_tricks.as_strided(flat, x.sizes, strides)
            for library, flat in ((cupy, elements), (np, cupy.asnumpy(elements)))
        )

    def run(self, job: Job) -> dict[str, Any]:
        """A row: shares of the copy and nanoseconds per output, ours and the peers', and whether it is right."""
        arrays = [self.array(job, x, seed) for seed, x in enumerate(job.inputs)]
        inputs, hosts = [x for x, _ in arrays], [host for _, host in arrays]
        out = self.cupy.empty(job.output.sizes, job.dtype)
        out.view(np.uint8)[...] = 0xA5
        box = whole_box(job.output.sizes)
        works: dict[str, Callable[[], Any]] = {"ours": lambda: self.compute.fill(job.form, inputs, box, out)}
        works["ours"]()
        wrong = self.wrong_box(job, hosts, out)
        if self.torch is not None and job.torch is not None:
            by_torch, theirs = job.torch, [self.torch.as_tensor(x, device="cuda") for x in inputs]
            wrong = wrong or self.differs(job, by_torch(*theirs), out)
            works["torch"] = lambda: by_torch(*theirs)
        if job.cupy is not None:
            by_cupy = job.cupy
            works["cupy"] = lambda: by_cupy(*inputs)
        copy, *taken = self.times(list(works.values()))
        rate = 2 * COPY_BYTES / copy
        row: dict[str, Any] = {"group": job.group, "job": job.name, "dtype": job.dtype, "MiB": job.bytes / MIB}
        row |= {"copy GB/s": rate / 1e6, "milliseconds": dict(zip(works, taken, strict=True))}
        row |= {"share": {name: job.bytes / ms / rate for name, ms in zip(works, taken, strict=True)}}
        row |= {"ns per element": {name: ms * 1e6 / out.size for name, ms in zip(works, taken, strict=True)}}
        row |= {"target": job.target, "ratio": job.ratio, "wrong": wrong}
        return row

    def wrong_box(self, job: Job, hosts: list[Any], out: Any) -> str | None:
        """Where NumPy gives something else for the form, in some random boxes and the output's last elements."""
        random, sizes = np.random.default_rng(2), job.output.sizes
        for number in range(BOXES):
            box, left = [(0, 1)] * len(sizes), BOX_ELEMENTS
            for axis in random.permutation(len(sizes)):
                extent = int(min(sizes[axis], left, random.integers(1, 400)))
                start = int(random.integers(0, sizes[axis] - extent + 1)) if number else sizes[axis] - extent
                box[axis], left = (start, start + extent), left // extent
            expected = np.empty([stop - start for start, stop in box], job.dtype)
            job.form.fill(np, hosts, tuple(box), expected)
            got = self.cupy.asnumpy(out[tuple(slice(*span) for span in box)])
            if job.tolerance == 0:
                if got.tobytes() != expected.tobytes():
                    return f"not NumPy's bits in {box}"
                continue
            want = expected.astype(np.float64)
            room = np.maximum(1, np.abs(want)) if expected.dtype.kind == "f" else 1
            if not (np.abs(got.astype(np.float64) - want) / room).max() <= job.tolerance:
                return f"far from NumPy's in {box}"
        return None

    def differs(self, job: Job, theirs: Any, out: Any) -> str | None:
        """Why torch's result is another one."""
        ours = self.torch.as_tensor(out, device="cuda")
        theirs = theirs.reshape(ours.shape)
        if job.tolerance == 0:
            count = int((theirs != ours).sum())
            # Torch's coordinates are rounded differently; ours are NumPy's to the bit, which is checked above.
            whole = not job.resampled or job.output.sizes[-1] % job.inputs[0].sizes[-1] == 0
            return f"{count} elements are not torch's" if count > (0 if whole else ours.numel() // 100) else None
        far = float(((theirs - ours).abs() / theirs.abs().clamp(min=1)).max())
        # For scales that are no power of two torch's float32 coordinates are up to 2^-11 off in rows of this length.
        return f"up to {far:.1e} from torch's" if not far <= job.tolerance + 1e-3 else None

    def overhead(self) -> dict[str, float]:
        """Microseconds of the host for each call on tensors so small that the device waits for it."""
        cupy = self.cupy
        x = cupy.zeros((1, 3, 8, 8), np.float32)
        out, same = cupy.empty((1, 3, 16, 16), np.float32), cupy.empty(x.shape, np.float32)
        box = whole_box(out.shape)
        axis = LinearAxis(8, 16, 2.0, 0.5, -0.5)
        linear, tiled = Separable((None, None, axis, axis)), tile_form((1, 3, 8, 8), (1, 1, 2, 2))
        added = Pointwise(operand(0) + operand(1), ("float32", "float32"), "float32")
        works: dict[str, Callable[[], Any]] = {
            "ours, tile": lambda: self.compute.fill(tiled, [x], box, out),
            "ours, linear": lambda: self.compute.fill(linear, [x], box, out),
            "ours, add": lambda: self.compute.fill(added, [x, x], whole_box(x.shape), same),
            "cupy.add": lambda: cupy.add(x, x),
            "cupy.tile": lambda: cupy.tile(x, (1, 1, 2, 2)),
        }
        if self.torch is not None:
            theirs, interpolate = self.torch.as_tensor(x, device="cuda"), self.torch.nn.functional.interpolate
            works["torch.tile"] = lambda: theirs.tile((1, 1, 2, 2))
            works["torch.add"] = lambda: theirs.add(theirs)
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
    parser.add_argument(
        "groups",
        nargs="*",
        help="tile, peers, pointwise, copies, reductions, linear, nearest, overhead; all if none is given",
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="where to write all figures")
    arguments = parser.parse_args()
    bench = Bench(arguments.rounds)
    name = bench.cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    versions = {one: importlib.import_module(one).__version__ for one in ("cupy", "numpy")}
    if bench.torch is not None:
        versions["torch"] = bench.torch.__version__
    print(name, versions)
    print(f"{'':11}{'job':48}{'type':9}{'MiB':>6}{'ours':>7}{'torch':>7}{'cupy':>7}{'ours, ns':>10}{'copy GB/s':>11}")
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
            f"{job.group:11}{job.name:48}{job.dtype:9}{row['MiB']:6.0f}{shares}"
            f"{row['ns per element']['ours']:10.5f}{row['copy GB/s']:11.0f}  {judge(row)}",
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
