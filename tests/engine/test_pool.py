"""Workers: slices in order, a few ahead, stopped when the caller is gone; and the choice of a backend."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import pytest
from tests.support.costly import means_of_columns
from tests.support.http_app import PATIENCE, Controlled, collect

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost.values.problems import InvalidParameter, NoBackend
from tensorpost_server.backends import BACKENDS, BackendRow, DeviceOptions
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.engine import InlineLimits, Pool, Worker, pool
from tensorpost_server.planning import Plan, cut, make_plan

SLICE = 4096
MOST = InlineLimits().bytes


def plan_of(slices: int) -> Plan:
    """A Tile of bytes whose output has so many slices."""
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (SLICE,)), (slices,))
    return make_plan(desc, SLICE)


def expected_of(plan: Plan) -> bytes:
    return b"".join(
        bytes([index % 251]) * piece.computed + bytes(piece.padding) for index, piece in enumerate(plan.slices)
    )


INPUTS = [memoryview(bytes(SLICE))]
SHORT, LONG = plan_of(3), plan_of(80)


@contextmanager
def worker_of(backend: Controlled, slices_ahead: int = 3) -> Iterator[Worker]:
    worker = Worker(backend, slices_ahead)
    try:
        yield worker
    finally:
        worker.close()
        assert backend.closed == 1


# ---- running ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slices_ahead", [0, 1, 3, 64])
def test_slices_come_in_order_and_are_computed_once(slices_ahead: int):
    backend = Controlled()

    with worker_of(backend, slices_ahead) as worker:
        found = asyncio.run(collect(worker.run(LONG, INPUTS)))

    assert expected_of(LONG) == found
    assert list(range(80)) == backend.begun
    assert (backend.started, backend.closed_runs) == (1, 1)


def test_slices_come_in_order_even_if_later_ones_are_ready_first():
    # Of each four, the first takes longest.
    backend = Controlled(threads=4, before=lambda index: time.sleep((3 - index % 4) * 0.002))

    with worker_of(backend, 4) as worker:
        found = asyncio.run(collect(worker.run(LONG, INPUTS)))

    assert expected_of(LONG) == found
    assert backend.most_computing > 1, "the threads did not work at the same time: nothing was shown"


def test_closing_early_waits_for_every_slice_at_work():
    # Slice 1 is done at once, slice 2 is not: the other thread is free to close the run, and must not.
    go_on = threading.Event()
    backend = Controlled(threads=2, before=lambda index: index != 2 or go_on.wait(PATIENCE))

    async def take_one(worker: Worker) -> None:
        async with aclosing(worker.run(LONG, INPUTS)) as blocks:
            await anext(blocks)
            while 2 not in backend.begun:
                await asyncio.sleep(0.001)
            asyncio.get_running_loop().call_later(0.05, go_on.set)

    with worker_of(backend, 3) as worker:
        asyncio.run(take_one(worker))

    assert backend.closed_runs == 1  # `Controlled` refuses to be closed while it computes


@pytest.mark.parametrize("slices_ahead", [0, 1, 5])
def test_no_more_slices_exist_than_promised(slices_ahead: int):
    # Admission counts on it: what is being sent, one more, and those ahead.
    backend = Controlled(threads=3)

    async def most_ahead(worker: Worker) -> int:
        most = 0
        async with aclosing(worker.run(LONG, INPUTS)) as blocks:
            sent = 0
            async for _ in blocks:
                sent += 1
                while len(backend.begun) < min(80, sent + slices_ahead):
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.001)  # time for the threads to run further ahead, if they may
                most = max(most, len(backend.begun) - sent)
        return most

    with worker_of(backend, slices_ahead) as worker:
        found = asyncio.run(most_ahead(worker))

    assert found == slices_ahead


def test_closing_early_stops_the_computation_and_waits_for_the_slice_at_work():
    go_on = threading.Event()
    backend = Controlled(before=lambda index: index == 0 or go_on.wait(PATIENCE))

    async def take_one(worker: Worker) -> None:
        blocks = worker.run(LONG, INPUTS)
        async with aclosing(blocks):
            await anext(blocks)
            while backend.begun != [0, 1]:
                await asyncio.sleep(0.001)
            asyncio.get_running_loop().call_later(0.02, go_on.set)

    with worker_of(backend, 3) as worker:
        asyncio.run(take_one(worker))
        assert go_on.is_set(), "it did not wait: the inputs would have been given back while they are read"
        assert backend.begun == [0, 1], "slices of a cancelled run were begun"
        assert backend.closed_runs == 1


def fail_at(failing: int) -> Callable[[int], None]:
    def before(index: int) -> None:
        if index == failing:
            raise MemoryError("device")

    return before


@pytest.mark.parametrize("failing", [0, 1, 17, 79])
def test_a_failure_is_raised_at_its_slice_and_the_run_is_closed(failing: int):
    backend = Controlled(before=fail_at(failing))
    got: list[bytes] = []

    async def run(worker: Worker) -> None:
        async for block in worker.run(LONG, INPUTS):
            got.append(bytes(block))

    with worker_of(backend) as worker:
        with pytest.raises(MemoryError, match="device"):
            asyncio.run(run(worker))
        assert failing == len(got)
        assert backend.closed_runs == 1
        assert max(backend.begun) <= failing + 3


def test_a_small_plan_is_computed_at_once_on_the_callers_thread():
    backend = Controlled()

    with worker_of(backend) as worker:
        assert worker.is_small(SHORT)
        found = worker.run_now(SHORT, INPUTS)

    assert expected_of(SHORT) == found
    assert {threading.current_thread().name} == backend.thread_names
    assert (backend.started, backend.closed_runs) == (1, 1)


@pytest.mark.parametrize("failing", [0, 2])
def test_a_failure_of_a_small_plan_closes_the_run(failing: int):
    backend = Controlled(before=fail_at(failing))

    with worker_of(backend) as worker, pytest.raises(MemoryError, match="device"):
        worker.run_now(SHORT, INPUTS)

    assert list(range(failing + 1)) == backend.begun
    assert backend.closed_runs == 1


def test_a_small_plan_with_gaps_has_its_padding():
    # two bytes 100,000 apart: too far to be one slice, near enough to be small
    desc = TileOperatorDesc(
        input_tensor=BufferTensorDesc.packed("UINT8", (1,)),
        output_tensor=BufferTensorDesc(data_type="UINT8", sizes=(2,), strides=(100_000,)),
        repeats=(2,),
    )
    plan = make_plan(desc, SLICE)
    assert [piece.computed for piece in plan.slices] == [1, 4]

    with worker_of(Controlled()) as worker:
        assert worker.is_small(plan)
        found = worker.run_now(plan, [memoryview(b"\1")])

    assert expected_of(plan) == found
    assert len(found) == 100_004


@pytest.mark.parametrize(
    ("slices", "of", "small"),
    [
        (MOST // SLICE, SLICE, True),
        (MOST // SLICE + 1, SLICE, False),
        (1, MOST + 8, False),
    ],
)
def test_small_is_judged_by_input_and_output(slices: int, of: int, small: bool):
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("UINT64", (of // 8,)), (slices,))

    with worker_of(Controlled()) as worker:
        assert small is worker.is_small(make_plan(desc, SLICE))


def test_what_is_small_can_be_said():
    with worker_of(Controlled()) as worker:
        worker.inline = InlineLimits(bytes=3 * SLICE, work=3 * SLICE)
        assert worker.is_small(SHORT)
        worker.inline = InlineLimits(bytes=3 * SLICE - 1, work=3 * SLICE)
        assert not worker.is_small(SHORT)
        worker.inline = InlineLimits(bytes=3 * SLICE, work=3 * SLICE - 1)
        assert not worker.is_small(SHORT)


def test_a_small_output_of_much_work_is_not_small():
    plan = dataclasses.replace(SHORT, work=InlineLimits().work + 1)

    with worker_of(Controlled()) as worker:
        assert not worker.is_small(plan)
        assert worker.is_small(dataclasses.replace(SHORT, work=InlineLimits().work))


def test_a_long_plan_is_computed_on_the_workers_threads():
    backend = Controlled(threads=2)

    with worker_of(backend) as worker:
        asyncio.run(collect(worker.run(LONG, INPUTS)))

    assert backend.thread_names
    assert all(name.startswith("tensorpost-numpy") for name in backend.thread_names)


def test_a_run_that_cannot_start_is_an_error_and_nothing_is_computed():
    class Refusing(Controlled):
        def start(self, plan: Any, inputs: Any) -> Any:
            del plan, inputs
            raise RuntimeError("no stream")

    backend = Refusing()
    with worker_of(backend) as worker, pytest.raises(RuntimeError, match="no stream"):
        asyncio.run(collect(worker.run(LONG, INPUTS)))

    assert not backend.begun


def test_cancelling_leaves_no_slice_at_work():
    started, go_on = threading.Event(), threading.Event()

    def wait(index: int) -> None:
        if index == 2:
            started.set()
            go_on.wait(PATIENCE)

    backend = Controlled(before=wait)

    async def run(worker: Worker) -> None:
        task = asyncio.ensure_future(collect(worker.run(LONG, INPUTS)))
        await asyncio.to_thread(started.wait, PATIENCE)
        task.cancel()
        asyncio.get_running_loop().call_later(0.02, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    with worker_of(backend) as worker:
        asyncio.run(run(worker))
        assert backend.begun == [0, 1, 2]
        assert (backend.computing, backend.closed_runs) == (0, 1)


def test_two_cancellations_leave_no_slice_at_work():
    # A server that is told to stop twice cancels twice; memory must not be given back while a slice reads it.
    started, go_on = threading.Event(), threading.Event()

    def wait(index: int) -> None:
        if index == 2:
            started.set()
            go_on.wait(PATIENCE)

    backend = Controlled(before=wait)

    async def run(worker: Worker) -> int:
        task = asyncio.ensure_future(collect(worker.run(LONG, INPUTS)))
        await asyncio.to_thread(started.wait, PATIENCE)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()
        asyncio.get_running_loop().call_later(0.02, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        return backend.computing

    with worker_of(backend) as worker:
        assert asyncio.run(run(worker)) == 0, "a slice was still being computed"
        assert backend.closed_runs == 1


def test_padding_is_sent_as_zeros_that_cost_nothing():
    # Two bytes 2^31 apart: 2 GiB of zeros between them, and each is there.
    desc = TileOperatorDesc(
        input_tensor=BufferTensorDesc.packed("UINT8", (1,)),
        output_tensor=BufferTensorDesc(data_type="UINT8", sizes=(2,), strides=(2**31,)),
        repeats=(2,),
    )
    plan = make_plan(desc, 1 << 20)
    backend = Controlled(before=lambda _index: None)

    async def sizes(worker: Worker) -> tuple[int, int]:
        total = zeros = 0
        async for block in worker.run(plan, [memoryview(b"\1")]):
            total += block.nbytes
            zeros += block.nbytes if block.nbytes > 1 and block[0] == 0 == block[-1] else 0
        return total, zeros

    with worker_of(backend) as worker:
        tracemalloc.start()
        try:
            total, zeros = asyncio.run(sizes(worker))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert plan.output_bytes == total == 2**31 + 4
    assert 2**31 - 1 <= zeros <= 2**31 + 2
    assert peak < 1 << 20


def test_requests_take_turns():
    # A long request does not keep a short one waiting until it is done: the unit of work is a slice.
    backend = Controlled(before=lambda _index: time.sleep(0.001))
    done: list[str] = []

    async def run(worker: Worker, name: str, plan: Plan) -> None:
        await collect(worker.run(plan, INPUTS))
        done.append(name)

    async def both(worker: Worker) -> None:
        long = asyncio.ensure_future(run(worker, "long", plan_of(200)))
        await asyncio.sleep(0.01)
        await run(worker, "short", plan_of(20))
        await long

    with worker_of(backend) as worker:
        asyncio.run(both(worker))

    assert done == ["short", "long"]


def test_on_a_processor_only_slices_wait_for_a_thread():
    begun, go_on = threading.Event(), threading.Event()
    backend = Controlled(before=lambda _index: (begun.set(), go_on.wait(PATIENCE)))

    async def run(worker: Worker) -> None:
        first = asyncio.ensure_future(collect(worker.run(plan_of(1), INPUTS, caller="mallory")))
        await asyncio.to_thread(begun.wait, PATIENCE)
        second = asyncio.ensure_future(collect(worker.run(LONG, INPUTS, caller="alice")))
        await asyncio.sleep(0.01)
        assert (backend.started, backend.begun) == (2, [0])  # the second has started, beside a thread that is held
        second.cancel()
        with suppress(asyncio.CancelledError):
            await second
        assert (backend.closed_runs, backend.begun) == (1, [0])
        go_on.set()
        await first

    with worker_of(backend) as worker:
        asyncio.run(run(worker))


def test_closing_a_worker_ends_its_threads():
    backend = Controlled()
    with worker_of(backend) as worker:
        asyncio.run(collect(worker.run(LONG, INPUTS)))
        threads = [thread for thread in threading.enumerate() if thread.name in backend.thread_names]
        assert threads

    assert not any(thread.is_alive() for thread in threads)


# ---- choosing --------------------------------------------------------------------------------------------------------


def missing(name: str) -> Callable[..., Any]:
    def construct(threads: int) -> Any:
        raise ImportError(f"{name} is not installed")

    return construct


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A table of three backends, of which the first is missing; the name of the constructor's argument is kept."""
    classes: dict[str, Any] = {
        "cuda": missing("cupy"),
        "numpy": lambda threads: Controlled(threads=threads, name="numpy"),
        "null": lambda threads: Controlled(threads=threads, name="null", device="none"),
    }
    table = {name: BackendRow(f"x:{name}", auto=name != "null", summary=name) for name in classes}
    monkeypatch.setattr(pool, "BACKENDS", table)
    monkeypatch.setattr(pool, "load_backend", classes.__getitem__)
    return classes


@contextmanager
def opened(default: str = "auto", threads: dict[str, int] | None = None) -> Iterator[Pool]:
    found = Pool.open(default, DeviceOptions(threads=threads or {}), 3)
    try:
        yield found
    finally:
        found.close()


def test_every_backend_is_opened_and_what_could_not_be_says_why(backends):
    with opened(threads={"numpy": 5}) as found:
        rows = [(s.name, s.device, s.reason, s.auto, s.threads) for s in found.status()]

    assert rows == [
        ("cuda", None, "ImportError: cupy is not installed", True, 0),
        ("numpy", "a test's", None, True, 5),
        ("null", "none", None, False, 1),
    ]


@pytest.mark.parametrize("error", [OSError("no driver"), RuntimeError("no device")])
def test_a_device_that_fails_to_open_is_refused_with_its_reason(backends, error):
    def construct(threads: int) -> Any:
        raise error

    backends["cuda"] = construct
    with opened() as found:
        assert f"{type(error).__name__}: {error}" == found.refused["cuda"]


def test_a_bug_in_a_backend_is_not_swallowed(backends):
    backends["cuda"] = lambda **_options: {}["bug"]

    with pytest.raises(KeyError, match="bug"):
        Pool.open("auto", DeviceOptions(), 3)


def test_auto_takes_the_first_that_can_run_the_plan(backends):
    with opened() as found:
        assert found.choose(LONG).backend.name == "numpy"
        assert found.choose(LONG, "auto").backend.name == "numpy"


def test_auto_skips_a_backend_that_refuses_and_never_takes_null(backends):
    backends["numpy"] = lambda **_options: Controlled(refusal="too exact")

    with opened() as found, pytest.raises(NoBackend, match="too exact") as caught:
        found.choose(LONG)

    assert caught.value.extra["refused"] == {"cuda": "ImportError: cupy is not installed", "numpy": "too exact"}


def test_a_backend_asked_for_is_used_even_if_auto_would_not(backends):
    with opened() as found:
        assert found.choose(LONG, "null").backend.name == "null"


def test_a_forced_backend_never_falls_back(backends):
    backends["null"] = lambda **_options: Controlled(name="null", refusal="not this one")
    with opened() as found:
        with pytest.raises(NoBackend, match=r"no backend here can run TILE: cuda: ImportError") as caught:
            found.choose(LONG, "cuda")
        assert list(caught.value.extra["refused"]) == ["cuda"]
        with pytest.raises(NoBackend, match="not this one"):
            found.choose(LONG, "null")


def test_the_default_is_what_a_request_gets_that_names_none(backends):
    with opened("null") as found:
        assert found.choose(LONG).backend.name == "null"
        assert found.choose(LONG, "auto").backend.name == "numpy"
        assert found.choose(LONG, "numpy").backend.name == "numpy"


@pytest.mark.parametrize(
    ("name", "hint"), [("nunpy", "'numpy'"), ("gpu", "auto, cuda, numpy, null"), ("", "there are")]
)
def test_a_backend_that_does_not_exist_is_named(backends, name, hint):
    with opened() as found, pytest.raises(InvalidParameter, match=hint) as caught:
        found.choose(LONG, name)
    assert caught.value.extra["parameter"] == "backend"


def test_a_default_that_does_not_exist_stops_the_start(backends):
    with pytest.raises(InvalidParameter, match="'null'"):
        Pool.open("nul", DeviceOptions(), 3)


def test_a_default_that_cannot_be_opened_stops_the_start_and_closes_the_others(backends):
    made: list[Controlled] = []

    def construct(threads: int) -> Controlled:
        made.append(Controlled())
        return made[-1]

    backends["numpy"] = backends["null"] = construct

    with pytest.raises(NoBackend, match=r"'cuda' was requested and cannot be opened: ImportError: cupy"):
        Pool.open("cuda", DeviceOptions(), 3)

    assert [1] * len(made) == [backend.closed for backend in made], "opened devices were forgotten"


def test_closing_a_pool_closes_every_backend(backends):
    with opened() as found:
        made: list[Any] = [worker.backend for worker in found.workers.values()]
        assert len(made) == 2

    assert [backend.closed for backend in made] == [1, 1]
    assert not found.workers


def test_the_real_table_opens_here():
    with opened() as found:
        assert {"numpy", "null"} <= found.workers.keys()
        assert list(BACKENDS) == list(dict.fromkeys(status.name for status in found.status()))
        assert list(BACKENDS)[-2] == "numpy", "numpy, which is always there, comes last before null"


# ---- cancelled runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1 << 23, 1 << 16], ids=["the longest windows", "wide windows across a row"])
def test_a_slice_of_minutes_ends_soon_after_its_caller_has_gone(rows: int):
    plan = make_plan(means_of_columns(rows, ((1 << 32) - 1) // rows), 2 << 20)
    plan = dataclasses.replace(
        plan, slices=cut(plan.outputs[0].layout, 2 << 20)
    )  # a single one, about 4e9 elements read
    worker = Worker(NumpyBackend(), 3)

    async def leave() -> float:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3), aclosing(worker.run(plan, [memoryview(bytes(4))])) as slices:
                await anext(slices)
        return time.monotonic()

    begin = time.monotonic()
    left = asyncio.run(leave()) - begin
    worker.close()

    assert 0.3 <= left < 5, "the generator is closed when the slice has ended"
    assert time.monotonic() - begin < 5


# ---- small plans on a thread -----------------------------------------------------------------------------------------


def test_once_on_a_thread_is_the_same_as_now():
    backend = Controlled()
    plan = plan_of(1)
    with worker_of(backend) as worker:
        now = worker.run_now(plan, INPUTS, b"head")
        assert threading.current_thread().name in backend.thread_names
        backend.thread_names.clear()
        assert asyncio.run(worker.run_once(plan, INPUTS, b"head")) == now

    assert threading.current_thread().name not in backend.thread_names
    assert (backend.started, backend.closed_runs) == (2, 2)


def test_who_gives_up_waits_for_what_reads_its_inputs():
    go_on, begun = threading.Event(), threading.Event()

    def before(_index: int) -> None:
        begun.set()
        go_on.wait(PATIENCE)

    backend = Controlled(before=before)

    async def run(worker: Worker) -> None:
        task = asyncio.ensure_future(worker.run_once(plan_of(1), INPUTS))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done(), "the thread still reads"
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.closed_runs == 1

    with worker_of(backend) as worker:
        asyncio.run(run(worker))
