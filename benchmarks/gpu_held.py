"""Held tensors on a GPU: that every element is right, and what it gains that a tensor lies there.

    python -m benchmarks.gpu_held

It takes about a minute, and needs one NVIDIA GPU and the extras server and cuda12 or cuda13. Servers are processes of
their own, so what is shared by CUDA IPC is opened by this one. Each line is a check with what it measured: medians, in
milliseconds, over loopback. The exit status is 1 if one failed.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import itertools
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks import servers
from tensorpost import Client
from tensorpost.calls.cuda_arrays import import_cupy

MIB = 1 << 20
COUNTED = ("dropped", "uploaded_again")
BUDGET = 256 * MIB
"""Device memory of the server that is put under pressure."""


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        mib: size of the tensor that is held, sent and shared, MiB.
        rounds: calls of each median.
        tensors: tensors under pressure, each an eighth of the budget.
        budget: device memory of the server under pressure, bytes.
    """

    mib: int = 64
    rounds: int = 15
    tensors: int = 12
    budget: int = BUDGET

    def large(self) -> Any:
        """A tensor of `mib` MiB, of float32."""
        return np.random.default_rng(1).normal(size=(self.mib, 256, 1024)).astype(np.float32)


def medians(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Milliseconds of each call, the calls in turn; the first two rounds are not counted."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 2):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(each[2:]) for name, each in times.items()}


def shown(times: Mapping[str, float]) -> str:
    """The figures of a line."""
    return ", ".join([f"{name} {value:.2f}" for name, value in times.items()])


def equal(found: Any, expected: Any) -> None:
    """Compare bytes.

    Raises:
        AssertionError: they differ.
    """
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), (found.dtype, found.shape)
    assert found.tobytes() == expected.tobytes(), "elements differ"


def figures(url: str) -> dict[str, float]:
    """The metrics of the first device's memory, without their prefix."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    found = [line for line in lines if line.startswith("tensorpost_device_") and 'backend="cuda",device="0"' in line]
    return {line.partition("{")[0].removeprefix("tensorpost_device_"): float(line.split()[-1]) for line in found}


# ---- the checks ------------------------------------------------------------------------------------------------------


def correctness(url: str, scale: Scale) -> str:
    """Calls with held inputs on the device have the bytes that NumPy makes; the tensor is uploaded once."""
    rng, options = np.random.default_rng(2), {"backend": "cuda", "device": 0}
    with Client(url) as tp:
        for dtype in ("float32", "float16", "int64", "uint8", "bool"):
            x = rng.integers(0, 2 if dtype == "bool" else 100, (300, 257)).astype(dtype)
            held = tp.put(x)
            for _ in range(3):
                equal(tp.onnx("Transpose", held, **options), x.T)
                equal(tp.onnx("Tile", held, np.array([2, 1]), **options), np.tile(x, (2, 1)))
            equal(tp.onnx("Concat", held.part(np.s_[3:9]), held, axis=0, **options), np.concatenate([x[3:9], x]))
        x = rng.normal(size=(1 << 20,)).astype(np.float32)
        held = tp.put(x, "gpu-held")
        equal(tp.onnx("Neg", held, **options), -x)
        assert "cuda:0" in tp.tensor("gpu-held").device, "the listing names no copy"
        kept = tp.onnx("Neg", held, keep=True, **options)
        equal(kept.get(), -x)
        tp.delete_tensor("gpu-held")
        uploaded = figures(url)
        for _ in range(scale.rounds):
            tp.onnx("Neg", kept, **options)
        copies = figures(url)["copies"] - uploaded["copies"]
    assert copies == 1, f"{copies:.0f} copies of one tensor were made"
    return f"5 types, parts and kept outputs have NumPy's bytes; {scale.rounds} calls made {copies:.0f} copy"


def held_or_sent(url: str, scale: Scale) -> str:
    """A reduction of a tensor that lies on the device, and of one that is sent."""
    x, options = scale.large(), {"keepdims": 0, "backend": "cuda", "device": 0}
    with Client(url) as tp:
        held = tp.put(x)
        for value in (held, x):
            equal(tp.onnx("ReduceMax", value, **options), x.max())
        times = medians(
            {
                "held": partial(tp.onnx, "ReduceMax", held, **options),
                "sent": partial(tp.onnx, "ReduceMax", x, **options),
            },
            scale.rounds,
        )
    return f"ReduceMax of {scale.mib} MiB: {shown(times)}"


def shared(url: str, scale: Scale) -> str:
    """Elements come to and go from this process within the device, and nothing stays shared."""
    cupy, x = import_cupy(), scale.large()
    before = figures(url)
    with Client(url, cuda_shared_memory=True) as tp, Client(url) as plain:
        held = tp.put(x)
        array = tp.get_cupy(held)
        equal(array.get(), x)
        equal(tp.get_cupy(held.part(np.s_[1:3, ::7])).get(), x[1:3, ::7])
        by_dlpack = cupy.from_dlpack(held)
        equal(by_dlpack.get(), x)
        again = tp.put(array)
        equal(again.get(), x)
        tp.onnx("ReduceMax", held, keepdims=0, backend="cuda", device=0)  # from here on there is a copy on the device
        times = medians(
            {
                "get by CUDA IPC": partial(tp.get_cupy, held),
                "get through host memory": lambda: cupy.asarray(plain.get_tensor(held.name)),
                "put by CUDA IPC": partial(tp.put, array, "gpu-held", replace=True),
                "put through host memory": partial(plain.put, array, "gpu-held", replace=True),
            },
            scale.rounds,
        )
        tp.delete_tensor("gpu-held")
    exported = figures(url)["exported_bytes"]
    assert exported == 0, f"{exported:,} bytes are still exported"
    lost = before["memory_free_bytes"] - figures(url)["memory_free_bytes"]
    return f"{scale.mib} MiB: {shown(times)}; free memory of the device fell by {lost / MIB:.0f} MiB"


def written_by_others(url: str, scale: Scale) -> str:
    """Whoever opens an export may write there; calls read the tensor as it was, and the rest of the memory is zero."""
    cupy, x = import_cupy(), np.arange(scale.mib << 10, dtype=np.float32)
    runtime = cupy.cuda.runtime
    with Client(url) as tp:
        held = tp.put(x, "gpu-written")
        tp.onnx("Neg", held, backend="cuda", device=0)
        said = request(url, "POST", "/v1/tensors/gpu-written/exports")
        address = runtime.ipcOpenMemHandle(base64.b64decode(said["raw_handle"]["b64"]))
        try:
            found = np.empty(2 * MIB, np.uint8)
            runtime.memcpy(found.ctypes.data, address, found.nbytes, runtime.memcpyDeviceToHost)
            equal(found[: x.nbytes].view(np.float32), x)
            assert not found[x.nbytes :].any(), "the rest of the allocation is not zero"
            found[:] = 255
            runtime.memcpy(address, found.ctypes.data, found.nbytes, runtime.memcpyHostToDevice)
        finally:
            runtime.ipcCloseMemHandle(address)
        equal(tp.onnx("Neg", held, backend="cuda", device=0), -x)
        equal(held.get(), x)
        request(url, "DELETE", f"/v1/tensors/gpu-written/exports/{said['export']}")
        tp.delete_tensor("gpu-written")
    return f"the tensor stayed as it was; an export of {x.nbytes:,} bytes shows {found.nbytes:,}, the rest zero"


def killed(url: str, scale: Scale) -> str:
    """A process that is killed while it has an export open: the server goes on."""
    with Client(url) as tp:
        x = np.arange(scale.mib << 10, dtype=np.float32)
        held = tp.put(x, "gpu-killed")
        script = (
            "import base64, os, sys; import cupy; from benchmarks.gpu_held import request\n"
            f"said = request({url!r}, 'POST', '/v1/tensors/gpu-killed/exports')\n"
            "cupy.cuda.runtime.ipcOpenMemHandle(base64.b64decode(said['raw_handle']['b64']))\n"
            "os.kill(os.getpid(), 9)"
        )
        ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
        assert ended.returncode == -9, ended.stderr[-800:]
        equal(tp.onnx("Neg", held, backend="cuda", device=0), -x)
        open_bytes = figures(url)["exported_bytes"]
        assert open_bytes == 2 * MIB, "it is freed after 60 seconds, and not before"
        tp.delete_tensor("gpu-killed")
    return "the server answers, and has the memory until the export's time is over"


def pressure(url: str, scale: Scale) -> str:
    """More tensors than the device has room for, in turn: every element is right, and copies are dropped."""
    count = scale.budget // 8 // 4
    tensors = [np.full(count, n, np.float32) for n in range(scale.tensors)]
    options = {"keepdims": 0, "backend": "cuda", "device": 0}
    with Client(url) as tp:
        held = [tp.put(each) for each in tensors]
        before = figures(url)
        for _ in range(3):
            for n, each in enumerate(held):
                equal(tp.onnx("ReduceMax", each, **options), np.float32(n))
        after = figures(url)
        turns = itertools.count()
        times = medians(
            {
                "there already": partial(tp.onnx, "ReduceMax", held[0], **options),
                "uploaded again": lambda: tp.onnx("ReduceMax", held[1 + next(turns) % (len(held) - 1)], **options),
            },
            scale.rounds,
        )
        dropped, again = (after[f"copies_{what}_total"] - before[f"copies_{what}_total"] for what in COUNTED)
        assert dropped > 0, "nothing gave way"
        assert again > 0, "nothing was uploaded again"
        assert after["memory_used_bytes"] <= scale.budget, "more than the budget is used"
        with Client(url, cuda_shared_memory=True) as sharing:
            equal(sharing.get_cupy(held[2]).get(), tensors[2])  # an export makes room, too
    return (
        f"{scale.tensors} tensors of {count * 4 / MIB:g} MiB in {scale.budget / MIB:g} MiB: {dropped:.0f} dropped, "
        f"{again:.0f} uploaded again in {3 * scale.tensors} calls; {shown(times)}"
    )


def uploads(_url: str, scale: Scale) -> str:
    """Ways to upload a tensor: from ordinary memory, and from page-locked memory in three ways."""
    cupy = import_cupy()
    x = scale.large().reshape(-1).view(np.uint8)
    target, stream, runtime = cupy.empty(x.nbytes, np.uint8), cupy.cuda.Stream(non_blocking=True), cupy.cuda.runtime
    step = 4 * MIB
    locked = [np.frombuffer(cupy.cuda.alloc_pinned_memory(step), np.uint8, step) for _ in range(2)]
    events = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]
    whole = np.frombuffer(cupy.cuda.alloc_pinned_memory(x.nbytes), np.uint8, x.nbytes)
    whole[:] = x

    def copy(source: Any, begin: int = 0) -> None:
        kind = runtime.memcpyHostToDevice
        runtime.memcpyAsync(target.data.ptr + begin, source.ctypes.data, source.nbytes, kind, stream.ptr)

    def ordinary() -> None:
        copy(x)
        stream.synchronize()

    def staged() -> None:
        for at, begin in enumerate(range(0, x.nbytes, step)):
            part = locked[at % 2][: min(step, x.nbytes - begin)]
            if at > 1:
                events[at % 2].synchronize()
            part[:] = x[begin : begin + part.nbytes]
            copy(part, begin)
            events[at % 2].record(stream)
        stream.synchronize()

    def already() -> None:
        copy(whole)
        stream.synchronize()

    def locked_for_it() -> None:
        runtime.hostRegister(x.ctypes.data, x.nbytes, 0)
        try:
            copy(x)
            stream.synchronize()
        finally:
            runtime.hostUnregister(x.ctypes.data)

    ways = {
        "from ordinary memory": ordinary,
        "by way of page-locked memory": staged,
        "from page-locked memory": already,
        "page-locked for it": locked_for_it,
    }
    for way in ways.values():
        target.fill(0)
        cupy.cuda.get_current_stream().synchronize()
        way()
        equal(target.get(), x)
    return f"upload of {scale.mib} MiB: {shown(medians(ways, scale.rounds))}"


CHECKS: tuple[tuple[Callable[[str, Scale], str], bool], ...] = (
    (correctness, False),
    (held_or_sent, False),
    (shared, False),
    (written_by_others, False),
    (killed, False),
    (pressure, True),
    (uploads, False),
)
"""The checks in order, and whether they are of the server that has little memory."""


def request(url: str, method: str, path: str) -> Any:
    """A request without a body; its JSON.

    Raises:
        AssertionError: it was refused.
    """
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status < 300, text
    return json.loads(text) if text else None


@contextmanager
def both_servers(scale: Scale) -> Iterator[tuple[str, str]]:
    """A server with the usual memory of the device, and one with little; their addresses."""
    with ExitStack() as stack:
        settings: dict[str, Any] = {"cuda_shared_memory": 1, "backend": "auto"}
        usual = stack.enter_context(servers.tensorpost(**settings))
        little = stack.enter_context(servers.tensorpost(**settings, cuda_memory_bytes=scale.budget))
        yield usual.url, little.url


def check_all(usual: str, little: str, scale: Scale, skipped: frozenset[str] = frozenset()) -> int:
    """Print a line for each check.

    Returns:
        How many failed.
    """
    failed = 0
    for check, is_little in CHECKS:
        if check.__name__ in skipped:
            continue
        begin = time.perf_counter()
        try:
            said = check(little if is_little else usual, scale)
        except Exception as error:  # noqa: BLE001 # each check is told of
            failed += 1
            said = f"FAILED: {type(error).__name__}: {error}"
            traceback.print_exc(file=sys.stderr)
        print(f"{check.__name__}: {said} ({time.perf_counter() - begin:.1f} s)", flush=True)
    return failed


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description="Held tensors on a GPU.")
    parser.add_argument("--rounds", type=int, default=Scale.rounds, help="calls of each median")
    given = parser.parse_args(arguments)
    scale = Scale(rounds=given.rounds)
    with both_servers(scale) as (usual, little):
        with Client(usual) as tp:
            devices = [str(each["device"]) for each in tp.devices()["devices"] if each["name"] == "cuda"]
        print(f"device: {', '.join(devices)}", flush=True)
        return 1 if check_all(usual, little, scale) else 0


if __name__ == "__main__":
    sys.exit(main())
