"""The CUDA backend over a stand-in for CuPy: memory, streams and errors. What GPUs compute is shown on a GPU."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conformance.suite import ORACLES, Case, check_bytes, layouts, vectors
from tests.support import strategies as ours
from tests.support.fake_cupy import CUBLAS, CUDADriverError, CUDARuntimeError, FakeCupy, OutOfMemoryError, modules
from tests.support.graph_cases import drawn_graph
from tests.support.http_app import collect

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost.values.operation import Slot
from tensorpost.values.problems import DeviceLost, OutOfDeviceMemory
from tensorpost_server.backends import CannotOpen, DeviceOptions, KeptMemory, device_run
from tensorpost_server.backends.cuda import backend as module
from tensorpost_server.backends.cuda import captured_plans
from tensorpost_server.backends.cuda.backend import LOST, CudaBackend
from tensorpost_server.backends.device_run import SMALLEST_PART
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.backends.timeline import Timeline
from tensorpost_server.chunked_run.chunks import Chunks, chunk_shape
from tensorpost_server.chunked_run.graph_part import GraphPart, InputPart
from tensorpost_server.engine import StepTimes, Worker
from tensorpost_server.engine.step_times import TimedRun
from tensorpost_server.forms import Array, Copies, Copy, Form
from tensorpost_server.planning import OutputSlices, Plan, PlanStep, Stage, cut, make_plan

Fill = Callable[..., None]
CASES = [*vectors(), *layouts()]


class Compute:
    """Stands in for `compute.py`; `before` is called with the number of bytes to fill."""

    def __init__(self) -> None:
        self.before: Callable[[int], object] = lambda _size: None
        self.forgotten = 0

    def forget(self) -> None:
        self.forgotten += 1

    def fill(self, form: Any, inputs: Any, box: Any, out: Any, output: int = 0) -> None:
        self.before(out.nbytes)
        form.fill(np, inputs, box, out, output)

    def fill_keeping(self, keep: list[Any], form: Any, inputs: Any, box: Any, out: Any, output: int = 0) -> None:
        keep.append(form)
        fake: Any = sys.modules["cupy"]
        fake.capturing.todo.append(lambda: form.fill(np, inputs, box, out, output))


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> Compute:
    found = Compute()
    module: Any = SimpleNamespace(
        fill=found.fill, fill_keeping=found.fill_keeping, clear_caches=found.forget
    )  # by its names
    monkeypatch.setitem(sys.modules, "tensorpost_server.backends.cuda.compute", module)
    return found


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, compute: Compute, tmp_path: Path) -> FakeCupy:
    found = FakeCupy()
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    for name, each in modules(found).items():
        monkeypatch.setitem(sys.modules, name, each)
    monkeypatch.setattr(captured_plans, "consists_of_kernels", lambda _graph, _blocks: True)  # asks the driver
    return found


def tile(rows: int, columns: int = 1024) -> tuple[Plan, memoryview, bytes]:
    """So many copies of a row of float32: the plan in one slice, the input, the output."""
    row = np.arange(columns, dtype="<f4")
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (1, columns)), (rows, 1))
    return make_plan(desc, 1 << 30), memoryview(row.tobytes()), np.tile(row, (rows, 1)).tobytes()


def test_a_timeline_has_upload_kernel_and_download_apart(cupy: FakeCupy, compute: Compute):
    """Of the part that is uploaded, what is computed, and what is brought down, also where a slice is halved."""
    plan, x, expected = tile(256)
    backend = CudaBackend(memory_bytes=x.nbytes + len(expected) // 2 + (64 << 10))
    worker, timeline = Worker(backend, 3), Timeline()
    try:
        assert asyncio.run(collect(worker.run(plan, [x], timeline=timeline))) == expected
        untimed = asyncio.run(collect(worker.run(plan, [x])))
    finally:
        worker.close()
    phases = timeline.phases

    assert untimed == expected
    assert list(phases) == ["queue", "upload", "kernel", "download"]
    assert (phases["queue"].parts, phases["upload"].parts) == (1, 1)
    assert phases["download"].parts >= 2 <= phases["kernel"].parts
    assert phases["queue"].begin <= phases["upload"].begin <= phases["kernel"].begin <= phases["download"].begin
    assert all(0 <= phase.busy <= phase.end - phase.begin for phase in phases.values())


# ---- computing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slice_bytes", [1, 1 << 20])
def test_the_conformance_cases(cupy: FakeCupy, slice_bytes: int):
    backend = CudaBackend(pinned_bytes=1 << 16)
    some = CASES[:: 7 if slice_bytes == 1 else 1]
    for case in some:
        check_bytes(backend, case, slice_bytes)
    assert len(some) > 50
    assert cupy.pools[0].used == 0, "device memory is still held"


@given(
    call=ours.tile_cases(), slice_bytes=st.integers(1, 700), at_once=st.booleans(), pinned=st.sampled_from([0, 8192])
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tile(cupy: FakeCupy, call: tuple[Any, bytes], slice_bytes: int, at_once: bool, pinned: int):
    desc, buffer = call
    check_bytes(
        CudaBackend(pinned_bytes=pinned),
        Case("drawn", desc, (buffer,), ORACLES[type(desc)](desc, buffer)), slice_bytes, at_once=at_once,
    )  # fmt: skip


def kept_graph(w: Any) -> Plan:
    """A graph whose second operand is kept by a server."""
    document = {
        "inputs": {"w": {}, "x": {}},
        "nodes": [{"name": "y", "op_type": "Sub", "inputs": ["x", "w"]}],
        "outputs": {"y": "y"},
    }
    layout, data = Layout.row_major(data_type("float32"), w.shape), w.view(np.uint8).data.toreadonly()
    return make_plan(read_graph(document, {"x": layout}, weights={"w": (layout, data)}), 1 << 20)


def test_constants_of_stored_graphs_are_uploaded_once_and_freed_with_them(cupy: FakeCupy):
    backend = CudaBackend(memory_bytes=1 << 20)
    worker, x = Worker(backend, 3), np.arange(64, dtype=np.float32)
    w = np.full(64, 3, np.float32)
    plan = kept_graph(w)
    uploads: list[int] = []
    try:
        for _ in range(3):
            before = cupy.copies.count(1)
            found = asyncio.run(collect(worker.run(plan, [x.view(np.uint8).data])))
            np.testing.assert_array_equal(np.frombuffer(found, np.float32), x - 3)
            uploads.append(cupy.copies.count(1) - before)
        assert uploads == [2, 1, 1]
        assert cupy.pools[0].used >= w.nbytes
    finally:
        worker.close()
    assert cupy.pools[0].used == 0


def chain(count: int) -> Plan:
    """A graph of products and transposes of 6 x 8 numbers, which is no single step."""
    nodes: list[dict[str, Any]] = []
    for at in range(count):
        before = f"n{at - 1}" if at else "x"
        nodes += [
            {"name": f"m{at}", "op_type": "Mul", "inputs": [before, "two"]},
            {"name": f"n{at}", "op_type": "Tile", "inputs": [f"m{at}", "repeats"]},
        ]
    document = {
        "inputs": {"x": {"data_type": "FLOAT32", "sizes": [6, 8]}},
        "constants": {
            "two": {"dtype": "F32", "shape": [1], "data": [2]},
            "repeats": {"dtype": "I64", "shape": [2], "data": [2, 1]},
        },
        "nodes": nodes,
        "outputs": {"y": f"n{count - 1}", "z": "m0"},
    }
    return make_plan(read_graph(document, None), 1 << 20)


@pytest.mark.parametrize("staged_bytes", [1 << 18, 0])
def test_a_small_plan_that_comes_again_is_one_launch(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch, staged_bytes: int
):
    """The same bytes in each run, with its own inputs; in the first runs, and while it is timed, in the usual way."""
    monkeypatch.setattr(captured_plans, "STAGED_BYTES", staged_bytes)
    backend, plan, rng = CudaBackend(), chain(3), np.random.default_rng(1)
    worker = Worker(backend, 3)
    launches: list[int] = []
    try:
        for run in range(6):
            x = rng.random((6, 8)).astype(np.float32)
            timeline = Timeline() if run == 4 else None
            found = asyncio.run(collect(worker.run(plan, [x.view(np.uint8).reshape(-1).data], timeline=timeline)))
            assert bytes(found) == np.tile(x * 8, (8, 1)).tobytes() + (x * 2).tobytes(), run
            launches.append(cupy.launches)
        assert launches == [0, 0, 0, 1, 1, 2]
        assert len(backend._captured) == 1
        steps = StepTimes(plan)
        worker.run_now(plan, [memoryview(bytes(192))], steps=steps)
        assert steps.record(every_step=True).slowest is None, "one launch has no slowest step"
    finally:
        worker.close()
    assert cupy.pools[0].used == 0, "device memory is still held"


def test_a_captured_plan_is_forgotten_with_its_plan_and_when_memory_is_short(cupy: FakeCupy):
    backend = CudaBackend()
    x = [memoryview(bytes(192))]
    for short in (False, True):
        plan = chain(2)
        plan = replace(plan)  # which no cache holds
        for _ in range(5):
            backend.start(plan, x).close()
        assert len(backend._captured) == 1
        if short:
            backend.trim()
        del plan
        assert len(backend._captured) == 0
        assert cupy.pools[0].used == 0, "device memory is still held"
    backend.close()


def test_plans_are_counted_up_to_a_bound(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(captured_plans, "_MOST_COUNTED", 8)
    backend, x = CudaBackend(), [memoryview(bytes(192))]
    plans = [replace(chain(1)) for _ in range(10)]
    counts: list[int] = []
    for plan in plans:
        backend.start(plan, x).close()
        counts.append(len(backend._captured._plans))
    assert counts == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8]
    backend.close()


def test_no_plan_gets_the_kernels_of_one_that_is_gone(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch):
    """Python gives the identity of an object that is gone to another one."""
    monkeypatch.setattr(captured_plans, "_MOST_COUNTED", 4)
    backend, x = CudaBackend(), np.ones((6, 8), np.float32)
    block = [x.view(np.uint8).reshape(-1).data]
    first = replace(chain(2))
    for _ in range(5):
        backend.start(first, block).close()
    others = [replace(chain(1)) for _ in range(6)]
    for other in others:  # so many that the first is no longer counted
        backend.start(other, block).close()
    plans = backend._captured
    assert len(plans) == 0
    for _ in range(5):
        backend.start(first, block).close()
    (counted,) = [each for each in plans._plans.values() if each.captured is not None]
    plans._plans[id(others[0])] = counted  # as if it had the identity
    run = backend.start(others[0], block)
    found = b"".join([run.compute(index) for index in range(len(others[0].slices))])
    run.close()
    assert found == np.tile(x * 2, (2, 1)).tobytes() + (x * 2).tobytes()
    backend.close()


@pytest.mark.parametrize("reason", ["a copy inside", "no page-locked memory", "large"])
def test_what_is_not_captured_is_computed_in_the_usual_way(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch, reason: str
):
    monkeypatch.setattr(captured_plans, "consists_of_kernels", lambda _graph, _blocks: reason != "a copy inside")
    backend = CudaBackend(pinned_bytes=0 if reason == "no page-locked memory" else 1 << 20)
    plan, x, expected = tile(4, 1 << 18 if reason == "large" else 16)
    for _ in range(6):
        run = backend.start(plan, [x])
        assert b"".join([run.compute(index) for index in range(len(plan.slices))]) == expected
        run.close()
    assert (cupy.launches, len(backend._captured)) == (0, 0)
    backend.close()
    assert cupy.pools[0].used == 0, "device memory is still held"


def test_a_product_of_cublas_is_computed_between_two_launches(
    cupy: FakeCupy, compute: Compute, monkeypatch: pytest.MonkeyPatch
):
    document = {
        "inputs": {"x": {"data_type": "FLOAT32", "sizes": [8, 8]}},
        "nodes": [
            {"name": "a", "op_type": "Relu", "inputs": ["x"]},
            {"name": "b", "op_type": "MatMul", "inputs": ["a", "a"]},
            {"name": "c", "op_type": "Relu", "inputs": ["b"]},
            {"name": "d", "op_type": "MatMul", "inputs": ["c", "x"]},
            {"name": "e", "op_type": "Relu", "inputs": ["d"]},
        ],
        "outputs": {"e": "e"},
    }
    plan, keeping, fill = make_plan(read_graph(document, None), 1 << 20), compute.fill_keeping, compute.fill

    def without_library(keep: list[Any], form: Any, *arguments: Any) -> None:
        if getattr(form, "function", None) is not None:
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        keeping(keep, form, *arguments)

    def after_launches(*arguments: Any) -> None:
        for stream in [*cupy.streams.values()]:  # which a GPU does in order
            stream.synchronize()
        fill(*arguments)

    backend, rng = CudaBackend(), np.random.default_rng(1)
    monkeypatch.setattr(backend, "_fill_keeping", without_library)
    monkeypatch.setattr(backend, "_fill", after_launches)
    for _ in range(6):
        x = rng.standard_normal((8, 8)).astype(np.float32)
        run = backend.start(plan, [x.view(np.uint8).reshape(-1).data])
        found = np.frombuffer(run.compute(0), np.float32).reshape(8, 8)
        run.close()
        a = np.maximum(x, 0)
        np.testing.assert_allclose(found, np.maximum(np.maximum(a @ a, 0) @ x, 0), rtol=1e-5)
    assert cupy.launches == 3 * 3
    backend.close()


def test_steps_of_a_large_graph_are_waited_for_together(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch):
    """Each with its own time, as the device says; after so much work others get a turn."""
    plan = chain(12)
    for most, expected in ((1 << 34, 1), (0, len(plan.stages))):
        monkeypatch.setattr(device_run, "MOST_TOGETHER", most)
        backend = CudaBackend()
        run, times = backend.start(plan, [memoryview(bytes(192))]), StepTimes(plan)
        timed = TimedRun(run, plan, times)
        assert sum(map(run.parts, range(len(plan.stages)))) == expected
        for stage in range(len(plan.stages)):
            for part in range(run.parts(stage)):
                timed.prepare(stage, part)
            timed.finish(stage)
        run.close()
        backend.close()
        assert len(times.record(every_step=True).steps) == len(plan.stages)


def test_threads_run_a_captured_plan_in_turn_or_the_usual_way(cupy: FakeCupy):
    """One at a time has its memory; the others do not wait."""
    backend, plan = CudaBackend(), chain(2)
    expected = {n: np.full((6, 8), n, np.float32) for n in range(8)}

    def call(n: int) -> bool:
        run = backend.start(plan, [expected[n].view(np.uint8).reshape(-1).data])
        found = b"".join([run.compute(index) for index in range(len(plan.slices))])
        run.close()
        return found == np.tile(expected[n] * 4, (4, 1)).tobytes() + (expected[n] * 2).tobytes()

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(call, [n % 8 for n in range(400)]))
    assert cupy.launches > 100
    backend.close()


def test_a_kept_constant_is_freed_when_nobody_holds_its_memory(cupy: FakeCupy):
    backend = CudaBackend(memory_bytes=1 << 20)
    x = np.ones(64, np.float32)
    layout, data = Layout.row_major(data_type("float32"), x.shape), x.view(np.uint8).data.toreadonly()
    try:
        assert backend.put_kept(layout, data).array is backend.put_kept(layout, data).array
        assert cupy.pools[0].used == x.nbytes
        del data
        assert cupy.pools[0].used == 0
    finally:
        backend.close()


def test_a_held_tensor_is_uploaded_once_and_freed_with_its_memory(cupy: FakeCupy):
    backend = CudaBackend(memory_bytes=1 << 20)
    worker, x, w = Worker(backend, 3), np.arange(64, dtype=np.float32), np.full(64, 3, np.float32)
    layout, data = Layout.row_major(data_type("float32"), w.shape), w.view(np.uint8).data.toreadonly()
    document = {"inputs": {"x": {}, "w": {}}, "nodes": [{"name": "y", "op_type": "Sub", "inputs": ["w", "x"]}],
                "outputs": {"y": "y"}}  # fmt: skip
    uploads: list[int] = []
    try:
        for held_first in (False, True, False):
            graph = {**document, "inputs": {"w": {}, "x": {}} if held_first else {"x": {}, "w": {}}}
            plan = make_plan(read_graph(graph, {"x": layout, "w": layout}), 1 << 20)
            inputs: list[Any] = [x.view(np.uint8).data, KeptMemory(data)]
            before = cupy.copies.count(1)
            found = asyncio.run(collect(worker.run(plan, inputs[::-1] if held_first else inputs)))
            np.testing.assert_array_equal(np.frombuffer(found, np.float32), 3 - x)
            uploads.append(cupy.copies.count(1) - before)
        assert uploads == [2, 1, 1]
        assert backend.has_copy(data)
        assert not backend.has_copy(memoryview(b"other"))
        del inputs, data
        assert not backend.gauges()["device_copies"]
    finally:
        worker.close()
    assert cupy.pools[0].used == 0


def test_memory_that_is_short_takes_back_what_is_kept(cupy: FakeCupy):
    backend = CudaBackend(memory_bytes=4 * SMALLEST_PART)
    worker, plans = Worker(backend, 3), list[Plan]()
    x = np.zeros(SMALLEST_PART // 8, np.float32)  # half of the smallest part
    try:
        for _ in range(12):  # which keep more than there is, together
            plans.append(kept_graph(np.ones_like(x)))
            found = asyncio.run(collect(worker.run(plans[-1], [x.view(np.uint8).data])))
            np.testing.assert_array_equal(np.frombuffer(found, np.float32), x - 1)
    finally:
        worker.close()
    assert cupy.pools[0].used == 0


def test_a_captured_plan_gives_way_after_copies_that_nobody_reads(cupy: FakeCupy):
    backend, w, other = CudaBackend(memory_bytes=1 << 20), np.full(64, 3, np.float32), np.zeros(1 << 14, np.uint8)
    plan = kept_graph(w)
    constant, held = plan.graph.constants[0][1], other.data.toreadonly()
    assert isinstance(constant, memoryview)

    def call(n: int) -> None:
        x = np.full(64, n, np.float32)
        run = backend.start(plan, [x.view(np.uint8).data])
        np.testing.assert_array_equal(np.frombuffer(run.compute(0), np.float32), x - 3)
        run.close()

    for n in range(5):
        call(n)
    assert (cupy.launches, len(backend._captured)) == (2, 1)
    backend.put_kept(Layout.row_major(data_type("uint8"), other.shape), held)
    sizes = ((1 << 20) - other.nbytes, True), (1 << 20, False)  # too much beside the copy; beside the captured plan
    for size, stays in sizes:
        with backend.working(backend.lane()):
            backend.room(size)
        assert not backend.has_copy(held)
        assert (backend.has_copy(constant), len(backend._captured)) == (stays, int(stays))
    backend.close()
    assert cupy.pools[0].used == 0


def test_chunks_of_graphs_are_those_of_numpy_and_hold_no_memory(cupy: FakeCupy):
    backend, count = CudaBackend(), 0
    for seed in range(20):
        case = drawn_graph(random.Random(f"chunks {seed}"), 6)
        plan = make_plan(case.read(), 1 << 20)
        inputs = [
            InputPart.of(slot.layout, np.ascontiguousarray(case.inputs[slot.name]).reshape(-1).view(np.uint8).data)
            for slot in plan.inputs
        ]
        for slot, ref in zip(plan.outputs, plan.output_sources, strict=True):
            sizes = slot.layout.sizes
            chunks = Chunks(slot.layout, chunk_shape(sizes, slot.layout.data_type.item_size, 64))
            for piece in map(chunks.piece, range(len(chunks))):
                parts = [
                    GraphPart(device, plan, inputs).compute(ref, piece.box) for device in (backend, NumpyBackend())
                ]
                assert parts[0].tobytes() == parts[1].tobytes(), (seed, slot.name, piece)
                count += 1
    assert count > 100
    assert cupy.pools[0].used == 0, "device memory is still held"


def test_through_a_worker_with_page_locked_memory(cupy: FakeCupy):
    plan, row, expected = tile(3000)
    plan = make_plan(TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (1, 1024)), (3000, 1)), 1 << 18)
    backend = CudaBackend(pinned_bytes=1 << 23)
    worker = Worker(backend, 3)
    try:
        source = backend.host_memory(row.nbytes)
        assert source is not None
        source[:] = row
        assert not worker.is_small(tile(1)[0]), "small plans must not run on the event loop's thread"
        assert asyncio.run(collect(worker.run(plan, [source]))) == expected
        del source
        assert backend.gauges()["pinned_used_bytes"] == 0
        assert backend.gauges()["pinned_misses"] == 0
    finally:
        worker.close()


def test_closing_waits_for_the_inputs_to_be_read(cupy: FakeCupy):
    plan, row, _ = tile(2)
    backend = CudaBackend()
    run = backend.start(plan, [row])
    assert any(stream.todo for stream in cupy.streams.values()), "the copy was done at once: nothing is shown"

    run.close()

    assert not any(stream.todo for stream in cupy.streams.values()), "memory is given back while the device reads it"


def test_a_kernel_that_raises_leaves_nothing_under_way(cupy: FakeCupy, compute: Compute):
    plan, row, expected = tile(2)
    backend = CudaBackend()

    def fail(_size: int) -> None:
        raise ValueError("a mistake of ours")

    compute.before = fail
    run = backend.start(plan, [row])
    with pytest.raises(ValueError, match="a mistake of ours"):
        run.compute(0)
    run.close()
    compute.before = lambda _size: None

    assert cupy.pools[0].used == 0
    assert serve(backend, plan, row) == expected


def serve(backend: CudaBackend, plan: Plan, *inputs: memoryview) -> bytes:
    run = backend.start(plan, inputs)
    try:
        return b"".join(bytes(run.compute(index)) for index in range(len(plan.slices)))
    finally:
        run.close()


def test_what_it_says_about_itself(cupy: FakeCupy):
    backend = CudaBackend(1, memory_bytes=1 << 30, pinned_bytes=1 << 20)

    assert (backend.name, backend.index, backend.inline, backend.threads) == ("cuda", 1, False, 2)
    assert backend.device == "cuda:1 NVIDIA H200"
    assert backend.gauges() == {
        "device_memory_bytes": 140 << 30, "device_memory_limit_bytes": 1 << 30,
        "device_memory_free_bytes": 100 << 30, "device_memory_held_bytes": 0, "device_memory_used_bytes": 0,
        "pinned_bytes": 1 << 20, "pinned_used_bytes": 0, "pinned_misses": 0,
        "device_exported_bytes": 0, "device_copies": 0, "device_copy_bytes": 0, "device_copies_dropped_total": 0,
        "device_copies_uploaded_again_total": 0,
    }  # fmt: skip


def test_three_quarters_of_what_is_free_unless_told_otherwise(cupy: FakeCupy):
    cupy.free = {0: 8 << 30}

    assert CudaBackend().memory_bytes == 6 << 30
    assert CudaBackend(memory_bytes=9 << 30).memory_bytes == 8 << 30, "more than there is"


def test_memory_kept_for_reuse_is_given_back(cupy: FakeCupy, compute: Compute):
    plan, row, _ = tile(64)
    backend = CudaBackend()
    serve(backend, plan, row)
    assert cupy.pools[0].held > 0

    backend.trim()

    assert cupy.pools[0].held == 0
    assert compute.forgotten == 1, "tables of taps are device memory as well"


# ---- several outputs, no input, and forms that compute all outputs together ------------------------------------------

Given = Mapping[str, tuple[str, tuple[int, ...]]]


def made_plan(form: Form, inputs: Given, outputs: Given, slice_bytes: int = 1 << 20) -> Plan:
    """A plan without an operation: tensors by their names, each with its type and sizes."""
    received, sent = (
        tuple(Slot(name, Layout.row_major(data_type(dtype), sizes)) for name, (dtype, sizes) in side.items())
        for side in (inputs, outputs)
    )
    cuts = tuple(cut(slot.layout, slice_bytes, number) for number, slot in enumerate(sent))
    held = sum(slot.layout.size_in_bytes for slot in sent) if form.computed_whole else 0
    step = PlanStep(form, (), received, sent)
    slices = cuts[0] if len(cuts) == 1 else OutputSlices(cuts)
    stages = (Stage(0, slices, (), 1),) if form.computed_whole else ()
    return Plan(cast("Any", None), (step,), slices, 1, held, stages=stages)


@pytest.mark.parametrize("slice_bytes", [16, 1 << 20])
def test_copies_into_several_outputs(cupy: FakeCupy, slice_bytes: int):
    x = np.arange(40, dtype=np.float32).reshape(8, 5)
    form = Copies((2,), tuple((Copy.of_box((rows, 5), source_start=(first, 0)),) for first, rows in ((0, 3), (3, 5))))
    outputs = {"a": ("float32", (3, 5)), "b": ("float32", (5, 5))}
    plan = made_plan(form, {"x": ("float32", (8, 5))}, outputs, slice_bytes)

    assert serve(CudaBackend(), plan, memoryview(x.tobytes())) == x.tobytes()


def counted(xp: Any, *, count: int) -> Any:
    return xp.arange(count, dtype=np.int32)


def test_a_form_without_inputs(cupy: FakeCupy):
    plan = made_plan(Array(counted, 0, 1, (("count", 9),)), {}, {"out": ("int64", (3, 3))})

    assert serve(CudaBackend(), plan) == np.arange(9, dtype=np.int64).tobytes()


def test_outputs_that_are_computed_together_are_computed_once(cupy: FakeCupy):
    calls: list[int] = []

    def both(xp: Any, x: Any) -> Any:
        calls.append(1)
        return xp.sort(x), xp.argsort(x)

    x = np.random.default_rng(1).permutation(1000).astype(np.float32)
    plan = made_plan(
        Array(both, 1, 1), {"x": ("float32", (1000,))}, {"a": ("float32", (1000,)), "i": ("uint32", (1000,))}, 256
    )
    backend = CudaBackend()
    run = backend.start(plan, [memoryview(x.tobytes())])
    with ThreadPoolExecutor(3) as threads:
        parts = list(threads.map(run.compute, range(len(plan.slices))))
    run.close()

    assert len(parts) > 20
    assert b"".join(parts) == np.sort(x).tobytes() + np.argsort(x).astype(np.uint32).tobytes()
    assert calls == [1]
    del parts, run
    assert cupy.pools[0].used == 0


def test_outputs_that_are_computed_together_and_find_no_room_are_a_refusal(cupy: FakeCupy):
    def fail(xp: Any, x: Any) -> Any:
        del xp, x
        raise OutOfMemoryError

    plan = made_plan(Array(fail, 1, 1), {"x": ("uint8", (8,))}, {"out": ("uint8", (8,))})
    run = CudaBackend().start(plan, [memoryview(bytes(8))])
    with pytest.raises(OutOfDeviceMemory):
        run.compute(0)
    run.close()

    huge = made_plan(Array(fail, 1, 1), {"x": ("uint8", (8,))}, {"out": ("uint8", (1 << 20,))})
    assert "its inputs, constants and intermediate results need 1,114,120 bytes" in str(
        CudaBackend(memory_bytes=1 << 20).refusal_reason(huge)
    )


def test_strings_are_refused(cupy: FakeCupy):
    plan = made_plan(Copies((1,), ((Copy.of_box((2,)),),)), {"x": ("str", (2,))}, {"out": ("str", (2,))})

    assert "strings" in str(CudaBackend().refusal_reason(plan))


@pytest.mark.usefixtures("cupy")
def test_a_device_is_not_opened_where_cupy_could_not_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with monkeypatch.context() as without:
        without.setattr(tempfile, "tempdir", str(tmp_path / "nothing"))
        with pytest.raises(CannotOpen, match=r"No such file or directory; set CUPY_CACHE_IN_MEMORY=1"):
            CudaBackend()
        without.setenv("CUPY_CACHE_IN_MEMORY", "1")
        CudaBackend().close()

    def unwritable(_name: str) -> None:
        raise PermissionError(13, "Permission denied")  # as CuPy does when it is imported

    (tmp_path / "file").touch()
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    monkeypatch.setattr(module.importlib, "import_module", unwritable)
    with pytest.raises(CannotOpen, match=r"Not a directory; set CUPY_CACHE_IN_MEMORY=1"):
        CudaBackend()


# ---- out of memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in CASES if case.name.startswith(("UINT8,", "FLOAT16, pa"))], ids=str)
def test_parts_of_a_slice_are_the_same_bytes(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch, compute: Compute, case: Case
):
    # Everything that is larger than one element finds no room.
    monkeypatch.setattr(device_run, "SMALLEST_PART", 1)
    desc = case.desc
    item = make_plan(desc, 1 << 20).outputs[0].layout.data_type.item_size

    def no_room(size: int) -> None:
        if size > item:
            raise CUDADriverError(2)

    compute.before = no_room
    check_bytes(CudaBackend(), case, 1 << 20)


def test_a_slice_without_room_is_made_in_smaller_parts(cupy: FakeCupy):
    plan, row, expected = tile(1024)
    backend = CudaBackend(memory_bytes=1 << 20)
    assert len(plan.slices) == 1
    assert plan.output_bytes == 4 << 20

    assert serve(backend, plan, row) == expected
    assert 1 << 18 < cupy.largest_block <= 1 << 20, "in parts as large as possible"


def test_without_room_for_a_small_part_it_is_a_refusal_and_the_next_request_is_served(cupy: FakeCupy, compute: Compute):
    plan, row, expected = tile(1024)
    backend = CudaBackend(memory_bytes=1 << 20)
    tried: list[int] = []

    def no_room(size: int) -> None:
        tried.append(size)
        raise CUDARuntimeError(2)

    compute.before = no_room
    run = backend.start(plan, [row])
    with pytest.raises(
        OutOfDeviceMemory, match=r"cuda:0 NVIDIA H200 has no room .* 1,048,576 bytes .*CUDA_MEMORY_BYTES"
    ):
        run.compute(0)
    run.close()
    assert min(tried) >= SMALLEST_PART
    compute.before = lambda _size: None

    assert cupy.pools[0].used == 0
    assert serve(backend, plan, row) == expected


def test_what_is_kept_for_reuse_makes_room_for_a_request_of_another_size(cupy: FakeCupy):
    backend = CudaBackend(memory_bytes=1 << 20)
    for size in (300_000, 400_000, 500_000, 900_000):
        with backend.working(backend.lane()):
            block = backend.room(size)
            assert block.size == size
            del block

    assert cupy.pools[0].held == 900_000


def test_inputs_that_find_no_room_are_a_refusal(cupy: FakeCupy):
    plan, row, expected = tile(2)
    backend = CudaBackend(memory_bytes=1 << 20)
    with backend.working(backend.lane()):
        others = backend.room((1 << 20) - 100)

        with pytest.raises(OutOfDeviceMemory):
            backend.start(plan, [row])
        del others

    assert serve(backend, plan, row) == expected


def test_inputs_that_never_fit_are_refused_before_they_are_read(cupy: FakeCupy):
    backend = CudaBackend(memory_bytes=1 << 20)

    assert backend.refusal_reason(tile(1)[0]) is None
    huge = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (1, 1024)), (1 << 20, 1))
    assert backend.refusal_reason(make_plan(huge, 1 << 20)) is None, "an output of any size is made in slices"
    reason = backend.refusal_reason(tile(1, 1 << 18)[0])
    assert reason == (
        f"its inputs need {(1 << 20) + SMALLEST_PART:,} bytes of device memory, and this server may take 1,048,576 "
        "(setting TENSORPOST_CUDA_MEMORY_BYTES)"
    )


# ---- lost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [CUDARuntimeError, CUDADriverError])
@pytest.mark.parametrize("status", [700, 719, 214])
def test_an_error_that_stays_is_a_lost_device(cupy: FakeCupy, error: type[CUDARuntimeError], status: int):
    plan, row, _ = tile(2)
    backend = CudaBackend()
    run = backend.start(plan, [row])
    cupy.failing = error(status)

    with pytest.raises(
        DeviceLost, match=rf"cuda:0 NVIDIA H200 failed permanently: {LOST[status][:20]}.*cudaError{status}"
    ) as lost:
        run.compute(0)
    for call in (lambda: backend.start(plan, [row]), lambda: run.compute(0), backend.trim):
        with pytest.raises(DeviceLost, match="failed permanently"):
            call()
    assert str(lost.value)
    assert "device_memory_used_bytes" not in backend.gauges(), "a lost device is not asked"
    backend.close()


def test_other_errors_are_passed_on_and_the_device_goes_on(cupy: FakeCupy):
    plan, row, expected = tile(2)
    backend = CudaBackend()
    run = backend.start(plan, [row])
    cupy.failing = CUDARuntimeError(1)

    with pytest.raises(CUDARuntimeError, match="cudaError1"):
        run.compute(0)
    cupy.failing = None
    run.close()

    assert serve(backend, plan, row) == expected


# ---- opening ---------------------------------------------------------------------------------------------------------


def opened(**options: Any) -> list[tuple[int, Any]]:
    return list(CudaBackend.open_all(DeviceOptions(**options)))


def test_every_device_is_opened_with_the_settings(cupy: FakeCupy):
    found = opened(threads={"cuda": 3}, cuda_memory_bytes=1 << 30, cuda_pinned_bytes=1 << 20)

    assert [(index, backend.device) for index, backend in found] == [
        (0, "cuda:0 NVIDIA H200"),
        (1, "cuda:1 NVIDIA H200"),
    ]
    assert {(backend.threads, backend.memory_bytes) for _, backend in found} == {(3, 1 << 30)}
    assert {backend.gauges()["pinned_bytes"] for _, backend in found} == {1 << 20}


def test_a_device_that_is_full_does_not_hide_the_others(cupy: FakeCupy):
    cupy.free = {0: 1000}

    (_, full), (_, open_one) = opened()

    assert str(full).startswith("no memory is left on cuda:0 NVIDIA H200: 1,000 bytes are free; nvidia-smi shows which")
    assert open_one.device == "cuda:1 NVIDIA H200"


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (2, "no memory is left on cuda:0"),
        (46, "another process uses it exclusively"),
        (999, "could not be opened: cudaError999"),
    ],
)
def test_a_device_that_fails_while_it_is_opened_says_why(cupy: FakeCupy, status: int, says: str):
    cupy.failing = CUDARuntimeError(status)

    with pytest.raises(CannotOpen, match=says):
        CudaBackend()


def test_host_memory_that_cannot_be_locked_says_which_setting(cupy: FakeCupy):
    cupy.pinned_error = 2

    with pytest.raises(CannotOpen, match=r"1,048,576 bytes of host memory .* lower TENSORPOST_CUDA_PINNED_BYTES"):
        CudaBackend(pinned_bytes=1 << 20)
    assert CudaBackend(pinned_bytes=0).gauges()["pinned_bytes"] == 0


def test_a_device_that_is_not_there(cupy: FakeCupy):
    for index in (2, -1):
        with pytest.raises(CannotOpen, match=rf"there is no CUDA device {index}: this process sees 2"):
            CudaBackend(index)


def test_no_driver_an_old_one_and_no_device(cupy: FakeCupy):
    for error, driver, says in (
        (35, 0, "no NVIDIA driver was found: install one"),
        (
            35,
            12_020,
            r"the NVIDIA driver is too old: it supports CUDA 12\.2 and CuPy needs 13\.2; update it, or pip install",
        ),
        (100, 13_000, "CUDA shows no device to this process: nvidia-smi lists"),
        (802, 13_000, "CUDA cannot list its devices: cudaError802"),
    ):
        cupy.count_error, cupy.driver = error, driver
        with pytest.raises(CannotOpen, match=says):
            opened()
    cupy.count_error, cupy.devices = None, ()
    with pytest.raises(CannotOpen, match="CUDA shows no device"):
        opened()


def test_a_cupy_that_cannot_compile(cupy: FakeCupy):
    cupy.nvrtc = False

    with pytest.raises(CannotOpen, match=r"CuPy finds no NVRTC to compile kernels with: pip install '\.\[cuda13\]'"):
        opened()


def test_a_cupy_without_cublas(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, CUBLAS, None)  # what Python takes for a module that is not there
    with pytest.raises(CannotOpen, match=r"finds no cuBLAS to multiply matrices with: .*cuda13"):
        CudaBackend()


def test_no_cupy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # what Python takes for a module that is not there

    with pytest.raises(CannotOpen, match=r"CuPy .*: pip install '\.\[cuda13\]' .* or with cuda12"):
        opened()
