"""The CUDA reductions and transposes: whether they are right, and how fast beside CuPy, torch and the device's copy.

    python -m benchmarks.gpu_reductions --quick
    python -m benchmarks.gpu_reductions --full --json gpu-reductions.json

Results are compared with sums in float64 and with NumPy's integers, for odd sizes, unaligned arrays, parts of outputs
and special numbers; the same call must give the same bytes twice, at another address and in parts. A figure is a share
of what the device's own copy of 512 MiB moves, counting bytes read and written. The copy, ours, CuPy's and torch's run
in turn on one stream between CUDA events; a figure is the median over the rounds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.descriptors import ReduceFunction
from tensorpost_server.backends.cuda import reduce_kernels, transpose_kernels
from tensorpost_server.backends.cuda.launch_plan import plan
from tensorpost_server.backends.cuda.launches import ArrayLayout
from tensorpost_server.forms import Box, Copies, Copy, FusedLines, Lines, Loop, Pointwise
from tensorpost_server.forms.base import whole_box
from tensorpost_server.forms.expression import call, operand
from tensorpost_server.operators.reduction import reduce_lines

from .gpu import COPY_BYTES, MIB, Bench

INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
FLOATS = ("float16", "float32", "float64")
FUNCTIONS = ("SUM", "AVERAGE", "MAX", "MIN", "L1", "L2", "SUM_SQUARE", "MULTIPLY", "LOG_SUM", "LOG_SUM_EXP")
OF_INTEGERS = ("SUM", "MAX", "MIN", "L1", "SUM_SQUARE", "MULTIPLY")
SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((37, 67), (1,)), ((37, 67), (0,)), ((5, 9, 21), (0, 2)), ((5, 9, 21), (1,)), ((300, 40), (0,)), ((64, 128), (1,)),
    ((130, 514), (0, 1)), ((7, 600, 16), (1,)), ((3, 70_001), (1,)), ((70_001, 3), (0,)), ((2, 3, 40, 7), (1, 3)),
    ((2050, 515), (0,)), ((515, 2050), (1,)), ((4, 1_000_003), (1,)), ((33, 1), (0,)), ((9, 4), ()),
)  # fmt: skip
"""Sizes and axes that are checked."""
ROUNDS = 9


def lines_form(function: str, sizes: tuple[int, ...], axes: tuple[int, ...]) -> Lines:
    """A reduction of any type, whatever its operator accepts."""
    kept = tuple([1 if axis in axes else size for axis, size in enumerate(sizes)])
    parameters = (("axes", axes), ("function", ReduceFunction[function]))
    return Lines(reduce_lines, axes, sizes, (kept,), (parameters,), 0, reduction=function)


def expected(function: str, x: NDArray[Any], axes: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The result in float64 or in exact integers, and how far from it a result may be."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    sizes = [1 if axis in axes else x.shape[axis] for axis in range(x.ndim)]
    lines = np.ascontiguousarray(x.transpose([*kept, *axes])).reshape([math.prod(x.shape[a] for a in kept), -1])
    if x.dtype.kind in "iu":
        whole: dict[str, Callable[[], Any]] = {
            "SUM": lambda: np.add.reduce(lines, -1, dtype=x.dtype),
            "MAX": lambda: lines.max(-1),
            "MIN": lambda: lines.min(-1),
            "L1": lambda: np.add.reduce(np.abs(lines), -1, dtype=x.dtype),
            "SUM_SQUARE": lambda: np.add.reduce(lines * lines, -1, dtype=x.dtype),
            "MULTIPLY": lambda: np.multiply.reduce(lines, -1, dtype=x.dtype),
        }
        return whole[function]().reshape(sizes), np.zeros(sizes)
    y = lines.astype(np.float64)
    largest = y.max(-1, keepdims=True)
    shift = np.where(np.isfinite(largest), largest, 0)
    made: dict[str, Callable[[], Any]] = {
        "SUM": lambda: y.sum(-1),
        "AVERAGE": lambda: y.mean(-1),
        "MAX": lambda: y.max(-1),
        "MIN": lambda: y.min(-1),
        "L1": lambda: np.abs(y).sum(-1),
        "L2": lambda: np.sqrt((y * y).sum(-1)),
        "SUM_SQUARE": lambda: (y * y).sum(-1),
        "MULTIPLY": lambda: np.multiply.reduce(y, -1),
        "LOG_SUM": lambda: np.log(y.sum(-1)),
        "LOG_SUM_EXP": lambda: np.log(np.exp(y - shift).sum(-1)) + shift[:, 0],
    }
    with np.errstate(all="ignore"):
        want = made[function]().reshape(sizes)
        # float16 is computed in float32. A thread adds at most some hundred elements, and the rest is a tree.
        computed = np.finfo(np.float32 if x.dtype.itemsize < 4 else x.dtype).eps
        room = 2 * np.finfo(x.dtype).eps * np.abs(want) + float(np.finfo(x.dtype).smallest_subnormal)
        if function in ("SUM", "AVERAGE"):
            room = room + 32 * computed * (np.abs(y).sum(-1) / (y.shape[-1] if function == "AVERAGE" else 1)).reshape(
                sizes
            )
        elif function == "MULTIPLY":
            room = room + 4 * math.sqrt(y.shape[-1]) * computed * np.abs(want)
        elif function not in ("MAX", "MIN"):
            room = room + 32 * computed * np.maximum(np.abs(want), 1)
        else:
            room = np.zeros(sizes)
    return want, room


def difference(function: str, x: NDArray[Any], axes: tuple[int, ...], got: NDArray[Any]) -> str | None:
    """The first element that is wrong, or None."""
    want, room = expected(function, x, axes)
    with np.errstate(all="ignore"):
        if got.dtype.kind in "iu":
            right = got == want
        else:
            stored = want.astype(got.dtype)
            near = np.abs(got.astype(np.float64) - want) <= room
            right = near | (got == stored) | (np.isnan(got) & np.isnan(stored))
    if right.all():
        return None
    first = tuple(int(i) for i in np.argwhere(~right)[0])
    return f"{(~right).sum()} of {right.size} differ; {first}: {got[first]!r}, not {want[first]!r}"


@dataclass(frozen=True)
class Checked:
    """A call that is checked: the function, the elements' type, sizes, axes, and elements before the first."""

    function: str
    dtype: str
    sizes: tuple[int, ...]
    axes: tuple[int, ...]
    skip: int
    special: bool = False

    def elements(self) -> NDArray[Any]:
        """The input: numbers whose result is far from the type's limits."""
        random = np.random.default_rng(math.prod(self.sizes) + self.skip)
        dtype = np.dtype(self.dtype)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            low, high = (limits.min, limits.max) if self.function != "MULTIPLY" else (1, 4)
            return random.integers(low, high, self.sizes, dtype, endpoint=True)
        length = max(1, math.prod(self.sizes[axis] for axis in self.axes))
        x = random.standard_normal(self.sizes)
        if self.function == "MULTIPLY":
            x = np.exp(x / math.sqrt(length)) if self.dtype != "float16" else 2.0 ** random.integers(-1, 2, self.sizes)
        elif self.function == "LOG_SUM" or self.dtype == "float16":
            x = np.abs(x) * (1 if length < 4000 else 0.01) if self.function != "LOG_SUM_EXP" else x * 3
        x = x.astype(dtype)
        if self.special:
            for place, value in enumerate((np.nan, np.inf, -np.inf, -0.0)):
                x.reshape(-1)[place * (x.size // 5)] = value
        return x


def checked(full: bool) -> Iterator[Checked]:
    """What is checked; every function of every type, sizes in turn unless `full`."""
    number = 0
    for dtype in (*FLOATS, *INTEGERS):
        for function in OF_INTEGERS if dtype in INTEGERS else FUNCTIONS:
            for place, (sizes, axes) in enumerate(SHAPES):
                if function == "MULTIPLY" and dtype == "float16" and math.prod(sizes[a] for a in axes) > 300:
                    continue
                main = dtype in ("float32", "float16", "uint8") and function in ("SUM", "MAX")
                number += 1
                if full or main or (number + place) % 4 == 0:
                    yield Checked(function, dtype, sizes, axes, skip=number % 3)
        if dtype in FLOATS:
            for function in ("SUM", "MAX", "MIN", "LOG_SUM_EXP"):
                for sizes, axes in SHAPES[:6]:
                    yield Checked(function, dtype, sizes, axes, 0, special=True)


class Reductions:
    """The device, and what is asked of it.

    Args:
        full: every check and every row.
    """

    def __init__(self, full: bool) -> None:
        self.bench = Bench(ROUNDS)
        self.cupy, self.compute, self.torch = self.bench.cupy, self.bench.compute, self.bench.torch
        self.full = full
        self.wrong: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def placed(self, x: NDArray[Any], skip: int) -> Any:
        """The array on the device, `skip` elements behind an aligned address."""
        memory = self.cupy.zeros(x.size + skip, x.dtype)
        part = memory[skip:].reshape(x.shape)
        part[...] = self.cupy.asarray(x)
        return part

    def filled(self, form: Any, inputs: Sequence[Any], box: Box, dtype: Any) -> Any:
        """A box of the form's output, by our kernels."""
        out = self.cupy.empty([stop - start for start, stop in box], dtype)
        out.view(np.uint8)[...] = 0xA5
        self.compute.fill(form, inputs, box, out)
        return out

    def compile(self, wanted: Sequence[Checked]) -> None:
        """Compile the kernels of all checks at once."""
        variants: dict[Any, None] = {}
        for one in wanted:
            form = lines_form(one.function, one.sizes, one.axes)
            item = np.dtype(one.dtype).itemsize
            strides, kept = _packed(one.sizes, item), _packed(form.outputs[0], item)
            for skip in (0, one.skip):
                x = ArrayLayout(np.dtype(one.dtype), strides, skip * item % 16)
                steps = plan(form, [x], whole_box(form.outputs[0]), ArrayLayout(np.dtype(one.dtype), kept, 0))
                if steps is None and reduce_kernels.cupy_is_faster(form, x):
                    continue
                if steps is None:
                    self.failed(f"{one}: there is no kernel")
                variants.update({step.launch.variant: None for step in steps or ()})
        begin = time.perf_counter()

        def compiled(variant: Any) -> None:
            with self.cupy.cuda.Device(0):
                self.compute._function(0, variant)  # noqa: SLF001 # else each check waits for its compiler

        with ThreadPoolExecutor(16) as threads:
            for made in [threads.submit(compiled, variant) for variant in variants]:
                made.result()
        print(f"{len(variants)} kernels compiled in {time.perf_counter() - begin:.1f} s", flush=True)

    def failed(self, what: str) -> None:
        self.wrong.append(what)
        if len(self.wrong) <= 20:
            print("WRONG", what, flush=True)

    def check(self) -> None:
        """Every check."""
        wanted = list(checked(self.full))
        self.compile(wanted)
        begin = time.perf_counter()
        for one in wanted:
            self.check_one(one)
        self.check_fused()
        print(
            f"{len(wanted)} calls checked in {time.perf_counter() - begin:.1f} s, {len(self.wrong)} things wrong",
            flush=True,
        )

    def check_one(self, one: Checked) -> None:
        x = one.elements()
        form = lines_form(one.function, one.sizes, one.axes)
        given, box = self.placed(x, one.skip), whole_box(form.outputs[0])
        got = self.cupy.asnumpy(self.filled(form, [given], box, x.dtype))
        far = difference(one.function, x, one.axes, got)
        if far:
            self.failed(f"{one}: {far}")
        if self.cupy.asnumpy(self.filled(form, [given], box, x.dtype)).tobytes() != got.tobytes():
            self.failed(f"{one}: other bytes the second time")
        elsewhere = self.placed(x, 0 if one.skip else 1)
        if self.cupy.asnumpy(self.filled(form, [elsewhere], box, x.dtype)).tobytes() != got.tobytes():
            self.failed(f"{one}: other bytes at another address")
        part = tuple([(stop // 3, stop - stop // 4) if stop > 1 else (0, 1) for _, stop in box])
        of_whole = got[tuple([slice(*span) for span in part])]
        if self.cupy.asnumpy(self.filled(form, [given], part, x.dtype)).tobytes() != of_whole.tobytes():
            self.failed(f"{one}: other bytes in the part {part}")

    def check_fused(self) -> None:
        """An expression and its reduction as one step have the bytes of both by themselves."""
        for sizes, axes in SHAPES[:8]:
            x = self.placed(np.random.default_rng(3).standard_normal(sizes).astype(np.float32), 1)
            scaled = Pointwise(call("exp", operand(0) * operand(1)), ("float32", "float32"), "float32")
            row = self.cupy.broadcast_to(self.cupy.full((1,) * len(sizes), 0.5, np.float32), sizes)
            lines = lines_form("SUM", sizes, axes)
            made = self.filled(scaled, [x, row], whole_box(sizes), np.float32)
            box = whole_box(lines.outputs[0])
            apart = self.filled(lines, [made], box, np.float32)
            fused = self.filled(FusedLines(scaled, lines), [x, row], box, np.float32)
            if self.cupy.asnumpy(apart).tobytes() != self.cupy.asnumpy(fused).tobytes():
                self.failed(f"exp and the sum of {sizes} along {axes}: other bytes as one step")

    # ---- Times -------------------------------------------------------------------------------------------------------

    def time(self, group: str, name: str, moved: int, works: dict[str, Callable[[], Any]]) -> None:
        """Print shares of the copy as a line."""
        self.cupy.get_default_memory_pool().free_all_blocks()
        working: dict[str, Callable[[], Any]] = {}
        for who, work in works.items():
            try:
                work()
                self.cupy.cuda.runtime.deviceSynchronize()
                working[who] = work
            except Exception as error:  # noqa: BLE001 # torch has no such function of this type: its column stays empty
                print(f"{who} has no {name}: {str(error).splitlines()[0][:90]}")
        copy, *taken = self.bench.times(list(working.values()))
        rate = 2 * COPY_BYTES / copy
        shares = {who: moved / ms / rate for who, ms in zip(working, taken, strict=True)}
        micro = {who: ms * 1e3 for who, ms in zip(working, taken, strict=True)}
        row = {"group": group, "job": name, "MiB": moved / MIB, "copy GB/s": rate / 1e6, "share": shares, "us": micro}
        self.rows.append(row)
        columns = "".join(f"  {who} {shares[who]:5.2f} {micro[who]:8.1f} us" for who in working)
        print(f"{group:10}{name:46}{moved / MIB:6.0f} MiB{columns}  copy {rate / 1e6:5.0f} GB/s", flush=True)

    def random(self, dtype: str, sizes: Sequence[int]) -> Any:
        if np.dtype(dtype).kind == "f":
            random = self.cupy.random.RandomState(1)
            return random.standard_normal(math.prod(sizes), dtype=np.float32).astype(dtype).reshape(sizes)
        item = np.dtype(dtype).itemsize
        made = self.cupy.random.randint(0, 256, math.prod(sizes) * item, dtype=np.uint8)
        return made.view(dtype).reshape(sizes)

    def torch_work(self, function: str, x: Any, axes: tuple[int, ...]) -> Callable[[], Any] | None:
        torch = self.torch
        if torch is None or x.dtype.name in ("uint16", "uint32", "uint64"):
            return None
        given = torch.as_tensor(x, device="cuda")
        named: dict[str, Callable[[], Any]] = {
            "SUM": lambda: torch.sum(given, axes, keepdim=True),
            "AVERAGE": lambda: torch.mean(given, axes, keepdim=True),
            "MAX": lambda: torch.amax(given, axes, keepdim=True),
            "MIN": lambda: torch.amin(given, axes, keepdim=True),
            "L1": lambda: torch.linalg.vector_norm(given, 1, axes, keepdim=True),
            "L2": lambda: torch.linalg.vector_norm(given, 2, axes, keepdim=True),
            "LOG_SUM_EXP": lambda: torch.logsumexp(given, axes, keepdim=True),
            "MULTIPLY": lambda: torch.prod(given, axes[0], keepdim=True),
        }
        return named.get(function) if function != "MULTIPLY" or len(axes) == 1 else None

    def reduction(self, function: str, dtype: str, sizes: tuple[int, ...], axes: tuple[int, ...], where: str) -> None:
        x = self.random(dtype, sizes)
        form = lines_form(function, sizes, axes)
        out = self.cupy.empty(form.outputs[0], dtype)
        box = whole_box(form.outputs[0])
        works: dict[str, Callable[[], Any]] = {"ours": lambda: self.compute.fill(form, [x], box, out)}
        works["cupy"] = lambda: form.fill(self.cupy, [x], box, out)
        if (theirs := self.torch_work(function, x, axes)) is not None:
            works["torch"] = theirs
        self.time("reduce", f"{function} of {where}, {dtype}", x.nbytes + out.nbytes, works)

    def reductions(self) -> None:
        """The table."""
        for dtype in ("float32", "float16", "uint8", "int32", "float64"):
            wide = 32768 // np.dtype(dtype).itemsize
            for function in ("SUM", "MAX"):
                for where, axes in (("rows", (1,)), ("columns", (0,)), ("all", (0, 1))):
                    self.reduction(function, dtype, (8192, wide), axes, where)
        for dtype in ("float32", "float16", "uint8"):
            item = np.dtype(dtype).itemsize
            odd = (8191, 32768 // item - 1)
            for where, axes in (("odd rows", (1,)), ("odd columns", (0,))):
                self.reduction("SUM", dtype, odd, axes, where)
            shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
                ("rows of 1 KiB", (262144, 1024 // item), (1,)),
                ("rows of 64 bytes", (4194304, 64 // item), (1,)),
                ("rows of 15", (256 * MIB // (15 * item), 15), (1,)),
                ("columns of 8", (8, 32 * MIB // item), (0,)),
                ("3 columns", (256 * MIB // (3 * item), 3), (0,)),
                ("64 columns", (4 * MIB // item, 64), (0,)),
                ("images by channel (0,2,3)", (64, 64, 128, 512 // item), (0, 2, 3)),
                ("channels last (1,2)", (64, 128, 128, 256 // item), (1, 2)),
            ]
            for where, sizes, axes in shapes:
                self.reduction("MAX" if dtype == "uint8" else "SUM", dtype, sizes, axes, where)
        for function in ("AVERAGE", "L1", "L2", "MULTIPLY", "LOG_SUM_EXP"):
            for dtype in ("float32", "float16"):
                for where, axes in (("rows", (1,)), ("columns", (0,))):
                    self.reduction(function, dtype, (8192, 32768 // np.dtype(dtype).itemsize), axes, where)

    def transposes(self) -> None:
        """Transposes of single bytes, by the kernel for lines of any alignment and by the one for all types."""
        least = transpose_kernels.LEAST_BYTES
        for sizes in ((97, 130), (300, 301), (1000, 1537), (8191, 32763), (32763, 8191), (16384, 16385), (3001, 90001)):
            x = self.random("uint8", sizes)
            loops = (Loop(sizes[0], (1, 1), ((0, 1),)), Loop(sizes[1], (0, 1), ((1, 1),)))
            out, box = self.cupy.empty(sizes[::-1], np.uint8), whole_box(sizes[::-1])
            works: dict[str, Callable[[], Any]] = {}
            for fill, (who, bound) in enumerate((("ours", least), ("before", 1 << 31))):
                transpose_kernels.LEAST_BYTES = bound
                # The plan is kept for the form; of two fill values, which nothing uses, there are two forms.
                form = Copies((2,), ((Copy(0, (0, 0), (0, 0), loops),),), fill)
                works[who] = partial(self.compute.fill, form, [x], box, out)
                out[...] = 0xA5
                works[who]()
                if not bool((out == x.T).all()):
                    self.failed(f"transpose of {sizes} by {who}: {int((out != x.T).sum())} bytes differ")
            transpose_kernels.LEAST_BYTES = least
            if self.torch is not None:
                given = self.torch.as_tensor(x, device="cuda")
                works["torch"] = lambda given=given: given.t().contiguous()
            self.time("transpose", f"uint8 {sizes}", 2 * x.nbytes, works)

    def tune(self) -> None:
        """The main rows with other constants of reduce_kernels.py."""
        usual = ("AHEAD", "SEGMENT_VECTORS", "COLUMN_SEGMENT", "ROW_VECTORS")
        settings: list[dict[str, int]] = [{}]
        settings += [{"AHEAD": ahead} for ahead in (2, 8)]
        settings += [{"SEGMENT_VECTORS": n} for n in (4, 16, 32)]
        settings += [{"COLUMN_SEGMENT": n} for n in (64, 256, 512)]
        settings += [{"AHEAD": 8, "COLUMN_SEGMENT": 256, "SEGMENT_VECTORS": 16}]
        settings += [{"ROW_VECTORS": n} for n in (2, 8)]
        before = {name: getattr(reduce_kernels, name) for name in usual}
        for dtype in ("float32", "float16", "uint8"):
            item = np.dtype(dtype).itemsize
            jobs = [
                ("rows", (8192, 32768 // item), (1,)), ("columns", (8192, 32768 // item), (0,)),
                ("all", (8192, 32768 // item), (0, 1)), ("1 KiB", (262144, 1024 // item), (1,)),
                ("odd columns", (8191, 32768 // item - 1), (0,)),
            ]  # fmt: skip
            for where, sizes, axes in jobs:
                line: list[str] = []
                for chosen in settings:
                    for name, value in {**before, **chosen}.items():
                        setattr(reduce_kernels, name, value)
                    share = self.share_of_sum(dtype, sizes, axes)
                    label = ",".join(f"{name[0]}{name.split('_')[-1][0]}{value}" for name, value in chosen.items())
                    line.append(f"{label or 'usual'} {share:.2f}")
                    self.rows.append({"group": "tune", "job": f"{where}, {dtype}", **chosen, "share": share})
                print(f"tune SUM of {where}, {dtype}: {'  '.join(line)}", flush=True)
        for name, value in before.items():
            setattr(reduce_kernels, name, value)
        self.compute.clear_caches()

    def share_of_sum(self, dtype: str, sizes: tuple[int, ...], axes: tuple[int, ...]) -> float:
        """The share of the copy of one sum, planned anew."""
        x, form = self.random(dtype, sizes), lines_form("SUM", sizes, axes)
        out, box = self.cupy.empty(form.outputs[0], dtype), whole_box(form.outputs[0])
        self.compute.clear_caches()
        copy, ours = self.bench.times([lambda: self.compute.fill(form, [x], box, out)])
        return (x.nbytes + out.nbytes) / ours / (2 * COPY_BYTES / copy)


def _packed(sizes: Sequence[int], item: int) -> tuple[int, ...]:
    return tuple([item * math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="some of the checks, and every row; the default")
    how.add_argument("--full", action="store_true", help="every check, and the rows with other constants too")
    parser.add_argument("--only", choices=("check", "times", "transposes", "tune"), help="one part")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    run = Reductions(arguments.full)
    name = run.cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(name, {one: importlib.import_module(one).__version__ for one in ("cupy", "numpy")}, flush=True)
    parts: dict[str, Callable[[], None]] = {"check": run.check, "times": run.reductions, "transposes": run.transposes}
    parts["tune"] = run.tune
    with run.bench.stream:
        for part, work in parts.items():
            if arguments.only == part or (arguments.only is None and (part != "tune" or arguments.full)):
                work()
    print(f"{len(run.wrong)} things wrong, {time.perf_counter() - begin:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps({"device": name, "rows": run.rows, "wrong": run.wrong}, indent=1))
    return 1 if run.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
