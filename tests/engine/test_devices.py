"""Devices: which one gets a plan, what becomes of a failure, and what is kept for how long."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from tests.support.http_app import PATIENCE, Controlled, collect

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost.values.problems import DeviceLost, InvalidParameter, NoBackend, OutOfDeviceMemory, ServerFault
from tensorpost_server.backends import BackendRow, CannotOpen, DeviceOptions
from tensorpost_server.engine import Admission, Pool, Worker, pool
from tensorpost_server.planning import Plan, make_plan

SLICE = 4096
INPUTS = [memoryview(bytes(SLICE))]


def plan_of(slices: int) -> Plan:
    return make_plan(TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (SLICE,)), (slices,)), SLICE)


LONG = plan_of(80)


def gpu(index: int = 0, **options: Any) -> Controlled:
    """A device with memory of its own."""
    return Controlled(name="cuda", device=f"cuda:{index}", index=index, inline=False, threads=2, **options)


# ---- starting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2])
def test_a_caller_who_is_cancelled_while_a_run_is_started_leaves_none_behind(times: int):
    begun, go_on = threading.Event(), threading.Event()

    def start() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    backend = gpu(starting=start)
    worker = Worker(backend, 3)

    async def run() -> None:
        task = asyncio.ensure_future(collect(worker.run(LONG, INPUTS)))
        await asyncio.to_thread(begun.wait, PATIENCE)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done(), "the inputs would be given back while they are read"
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (backend.started, backend.closed_runs) == (1, 1)

    try:
        asyncio.run(run())
        assert not backend.begun
    finally:
        go_on.set()
        worker.close()


def test_a_caller_who_is_cancelled_while_a_start_fails_hears_of_the_cancellation():
    begun, go_on = threading.Event(), threading.Event()

    def start() -> None:
        begun.set()
        go_on.wait(PATIENCE)
        raise RuntimeError("no stream")

    worker = Worker(gpu(starting=start), 3)

    async def run() -> None:
        task = asyncio.ensure_future(collect(worker.run(LONG, INPUTS)))
        await asyncio.to_thread(begun.wait, PATIENCE)
        task.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    try:
        asyncio.run(run())
    finally:
        worker.close()


def test_a_run_that_waits_for_a_thread_is_never_started_once_its_caller_is_gone():
    begun, go_on = threading.Event(), threading.Event()
    backend = gpu(before=lambda _index: (begun.set(), go_on.wait(PATIENCE)))
    backend.threads = 1
    worker = Worker(backend, 0)

    async def run() -> None:
        first = asyncio.ensure_future(collect(worker.run(plan_of(1), INPUTS)))
        await asyncio.to_thread(begun.wait, PATIENCE)
        second = asyncio.ensure_future(collect(worker.run(LONG, INPUTS)))
        await asyncio.sleep(0.01)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        go_on.set()
        await first

    try:
        asyncio.run(run())
        assert (backend.started, backend.closed_runs) == (1, 1)
    finally:
        go_on.set()
        worker.close()


# ---- failing ---------------------------------------------------------------------------------------------------------


@contextmanager
def working(backend: Controlled, **options: Any) -> Iterator[Worker]:
    worker = Worker(backend, 3, **options)
    try:
        yield worker
    finally:
        worker.close()


def fail_once_at(index: int, error: Exception) -> Any:
    left = [error]

    def before(at: int) -> None:
        if at == index and left:
            raise left.pop()

    return before


@pytest.mark.parametrize("at", [0, 40])
@pytest.mark.parametrize("error", [OutOfDeviceMemory("full"), ValueError("a mistake")])
def test_after_a_failure_the_next_request_is_served(at: int, error: Exception):
    backend = gpu(before=fail_once_at(at, error))

    with working(backend) as worker:
        with pytest.raises(type(error), match=str(error)):
            asyncio.run(collect(worker.run(LONG, INPUTS)))
        assert backend.closed_runs == 1
        assert worker.lost is None

        assert len(asyncio.run(collect(worker.run(LONG, INPUTS)))) == LONG.output_bytes
        assert backend.closed_runs == 2


def test_a_full_device_is_passed_over_for_a_while(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    with working(gpu(before=fail_once_at(3, OutOfDeviceMemory("full"))), retry_after_seconds=7) as worker:
        with pytest.raises(OutOfDeviceMemory) as caught:
            asyncio.run(collect(worker.run(LONG, INPUTS)))
        assert caught.value.extra["retry_after_seconds"] == 7

        assert not worker.is_preferred(LONG)
        now[0] += 6.9
        assert not worker.is_preferred(LONG)
        now[0] += 0.2
        assert worker.is_preferred(LONG)


@pytest.mark.parametrize("at", ["start", 0, 40])
def test_a_lost_device_is_told_of_once_and_never_asked_again(at: Any):
    told: list[str] = []
    error = DeviceLost("cuda:0 failed permanently: ECC")

    def start() -> None:
        raise error

    backend = gpu(starting=start) if at == "start" else gpu(before=lambda index: index >= at and _raise(error))
    with working(backend, when_lost=told.append, retry_after_seconds=5) as worker:
        for _ in range(2):
            with pytest.raises(DeviceLost, match="ECC") as caught:
                asyncio.run(collect(worker.run(LONG, INPUTS)))
            assert caught.value.extra["retry_after_seconds"] == 5
        assert told == ["cuda:0 failed permanently: ECC"]
        assert worker.refusal_reason(LONG) == "cuda:0 failed permanently: ECC"
        assert backend.started == (0 if at == "start" else 1), "a lost device was asked again"
        assert backend.closed_runs == backend.started


def _raise(error: Exception) -> None:
    raise error


# ---- choosing --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Table:
    """What stands behind the names of a table of backends; the tests change it before the pool is opened."""

    gpus: list[Any] = dataclasses.field(default_factory=lambda: [gpu(0), gpu(1)])
    cpu: Controlled = dataclasses.field(default_factory=Controlled)
    given: list[DeviceOptions] = dataclasses.field(default_factory=list)
    error: Exception | None = None

    def open_all(self, options: DeviceOptions) -> Iterator[tuple[int, Any]]:
        self.given.append(options)
        if self.error is not None:
            raise self.error
        yield from enumerate(self.gpus)

    def load(self, name: str) -> Any:
        if name == "cuda":
            return self
        return lambda threads: self.cpu if name == "numpy" else Controlled(name="null")  # noqa: ARG005 # as it is called


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    found = Table()
    rows = {
        "cuda": BackendRow("x:cuda", auto=True, summary="cuda", several=True),
        "numpy": BackendRow("x:numpy", auto=True, summary="numpy"),
        "null": BackendRow("x:null", auto=False, summary="null"),
    }
    monkeypatch.setattr(pool, "BACKENDS", rows)
    monkeypatch.setattr(pool, "load_backend", found.load)
    return found


@contextmanager
def opened(default: str = "auto", **options: Any) -> Iterator[Pool]:
    found = Pool.open(default, DeviceOptions(cuda_memory_bytes=5), 3, **{"minimum_work": 2 * SLICE, **options})
    try:
        yield found
    finally:
        found.close()


def test_every_device_has_a_worker_of_its_own(table: Table):
    with opened() as found:
        assert list(found.workers) == ["cuda:0", "cuda:1", "numpy", "null"]
        rows = [(s.name, s.index, s.device, s.reason, s.minimum_work) for s in found.status()]

    assert table.given == [DeviceOptions(cuda_memory_bytes=5)]
    assert rows == [
        ("cuda", 0, "cuda:0", None, 8192),
        ("cuda", 1, "cuda:1", None, 8192),
        ("numpy", 0, "a test's", None, 0),
        ("null", 0, "a test's", None, 0),
    ]
    assert [backend.closed for backend in table.gpus] == [1, 1]


def test_one_device_that_cannot_be_opened_does_not_hide_the_others(table: Table):
    table.gpus[0] = CannotOpen("no memory is left on cuda:0")
    with opened() as found:
        assert list(found.workers) == ["cuda:1", "numpy", "null"]
        assert [(s.name, s.index, s.device, s.reason) for s in found.status()][:2] == [
            ("cuda", 0, None, "no memory is left on cuda:0"),
            ("cuda", 1, "cuda:1", None),
        ]
        assert found.choose(LONG, "cuda").backend.index == 1
        with pytest.raises(NoBackend, match="cuda:0: no memory is left on cuda:0") as caught:
            found.choose(LONG, "cuda", 0)
        assert caught.value.extra["refused"] == {"cuda:0": "no memory is left on cuda:0"}


def test_a_sentence_stands_alone_and_other_errors_say_what_they_are(table: Table):
    for error, reason in (
        (CannotOpen("CuPy is not installed: pip install it"), "CuPy is not installed: pip install it"),
        (OSError("libcuda.so"), "OSError: libcuda.so"),
    ):
        table.error = error
        with opened() as found:
            assert found.refused == {"cuda": reason}
            assert (found.status()[0].index, found.status()[0].reason) == (None, reason)
            with pytest.raises(NoBackend, match=reason):
                found.choose(LONG, "cuda", 1)
            assert found.choose(LONG).backend.name == "numpy"
    with (
        pytest.raises(NoBackend, match=r"'cuda' was requested and cannot be opened: OSError: libcuda\.so"),
        opened("cuda"),
    ):
        pytest.fail("it opened")


def test_auto_prefers_a_device_for_what_is_large_and_a_processor_for_what_is_small(table: Table):
    with opened() as found:
        assert found.choose(plan_of(1)).backend.name == "numpy"
        assert found.choose(plan_of(2)).backend.name == "cuda"
        assert found.choose(plan_of(1), "cuda").backend.name == "cuda", "named is forced"


def test_auto_gives_a_device_a_small_plan_if_no_other_backend_can_run_it(table: Table):
    table.cpu.refusal = "not in NumPy"
    with opened() as found:
        assert found.choose(plan_of(1)).backend.name == "cuda"


def test_auto_gives_a_processor_what_a_full_device_cannot_take(table: Table):
    with opened() as found:
        for backend in table.gpus:
            backend.starting = lambda: _raise(OutOfDeviceMemory("full"))
        for key in ("cuda:0", "cuda:1"):
            assert found.choose(LONG).backend.name == "cuda", "one is left"
            with pytest.raises(OutOfDeviceMemory):
                asyncio.run(collect(found.workers[key].run(LONG, INPUTS)))
        assert found.choose(LONG).backend.name == "numpy"
        assert found.choose(LONG, "cuda").backend.name == "cuda"


def test_among_devices_the_one_with_the_fewest_queued_bytes(table: Table):
    async def run(found: Pool) -> list[int]:
        places, chosen = ExitStack(), []
        with places:
            for slices in (40, 10, 10, 10, 10):
                worker = found.choose(plan_of(slices), "cuda")
                chosen.append(worker.backend.index)
                places.enter_context(worker.enqueue(plan_of(slices)))
            assert [s.queued_bytes for s in found.status()][:2] == [41 * SLICE, 4 * 11 * SLICE]
        assert [s.queued_bytes for s in found.status()] == [0, 0, 0, 0]
        return chosen

    with opened() as found:
        assert asyncio.run(run(found)) == [0, 1, 1, 1, 1]


def test_a_device_that_is_named_is_forced(table: Table):
    table.gpus[1].refusal = "no float64 units"
    with opened() as found:
        assert found.choose(LONG, "cuda", 0).backend.index == 0
        with pytest.raises(NoBackend, match="cuda:1: no float64 units") as caught:
            found.choose(LONG, "cuda", 1)
        assert caught.value.extra["refused"] == {"cuda:1": "no float64 units"}
        assert found.choose(LONG, "numpy", 0).backend.name == "numpy"


@pytest.mark.parametrize(
    ("name", "device", "says"),
    [
        ("cuda", 2, "cuda:2: there is no device 2 of cuda here; there are devices 0, 1"),
        ("numpy", 1, "numpy:1: there is no device 1 of numpy here; there is only device 0"),
    ],
)
def test_a_device_that_is_not_there_is_named_with_those_that_are(table: Table, name: str, device: int, says: str):
    with opened() as found, pytest.raises(NoBackend, match=says):
        found.choose(LONG, name, device)


def test_a_device_needs_its_backend_s_name(table: Table):
    with opened() as found, pytest.raises(InvalidParameter, match="backend=cuda&device=1") as caught:
        found.choose(LONG, device=1)
    assert caught.value.extra["parameter"] == "device"
    with opened("cuda") as found:
        assert found.choose(LONG, device=1).backend.index == 1, "the default is a name"


def test_a_lost_device_is_refused_and_told_of(table: Table):
    told: list[str] = []
    with opened(when_lost=told.append) as found:
        table.gpus[0].starting = lambda: _raise(DeviceLost("cuda:0 failed permanently"))
        with pytest.raises(DeviceLost):
            asyncio.run(collect(found.workers["cuda:0"].run(LONG, INPUTS)))

        assert (found.lost, told) == ("cuda:0 failed permanently", ["cuda:0 failed permanently"])
        assert found.choose(LONG, "cuda").backend.index == 1
        assert found.status()[0].reason == "cuda:0 failed permanently"


# ---- measuring -------------------------------------------------------------------------------------------------------


def test_what_pays_is_measured_for_each_device(table: Table):
    # The processor's time per element is whatever it is; a device that needs ten times as long must be given more.
    table.gpus = [gpu(0, before=lambda _index: time.sleep(0.001)), gpu(1, before=lambda _index: time.sleep(0.02))]
    with opened(minimum_work=None) as found:
        quick, slow, cpu, _ = (status.minimum_work for status in found.status())

    assert quick > 0
    assert slow > 4 * quick
    assert cpu == 0


def test_what_pays_may_be_set(table: Table):
    with opened(minimum_work=12345) as found:
        assert [status.minimum_work for status in found.status()] == [12345, 12345, 0, 0]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("no kernel image"), "it opened, but failed its first Tile: RuntimeError: no kernel image"),
        (Exception("no header cuda_fp16.h"), "it opened, but failed its first Tile: Exception: no header cuda_fp16.h"),
        (ServerFault("the session failed"), "it opened, but failed its first Tile: the session failed"),
        (DeviceLost("cuda:0 failed permanently"), "it opened, but failed its first Tile: cuda:0 failed permanently"),
    ],
)
def test_a_device_that_fails_the_first_time_is_closed_and_refused(table: Table, error: Exception, reason: str):
    told: list[str] = []
    table.gpus[0].before = lambda _index: _raise(error)
    with opened(when_lost=told.append) as found:
        assert found.refused == {"cuda:0": reason}
        assert list(found.workers) == ["cuda:1", "numpy", "null"]
        assert (found.lost, told) == (None, []), "a device that was never used is no reason to end"

    assert table.gpus[0].closed == 1


# ---- resting ---------------------------------------------------------------------------------------------------------


def test_what_is_kept_is_given_back_when_nothing_has_run_for_a_while():
    backend = gpu()

    async def run(worker: Worker) -> None:
        with worker.enqueue(LONG), worker.enqueue(LONG):
            await asyncio.sleep(0.05)
        assert backend.trimmed == 0, "not while it is used"
        with worker.enqueue(LONG):
            await asyncio.sleep(0.05)
            assert backend.trimmed == 0, "a request came in time"
        while not backend.trimmed:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert backend.trimmed == 1, "once is enough"

    with working(backend, idle_seconds=0.03) as worker:
        asyncio.run(asyncio.wait_for(run(worker), PATIENCE))


def test_a_processor_keeps_nothing():
    backend = Controlled()

    async def run(worker: Worker) -> None:
        with worker.enqueue(LONG):
            pass
        await asyncio.sleep(0.02)

    with working(backend, idle_seconds=0.001) as worker:
        asyncio.run(run(worker))
    assert backend.trimmed == 0


def test_a_request_s_memory_comes_from_where_its_device_wants_it():
    asked: list[int] = []

    def source(size: int) -> memoryview:
        asked.append(size)
        return memoryview(bytearray(size))

    with Admission(1000, 1, 1).admit(100) as ticket:
        assert ticket.memory(60, source).nbytes == 60
        assert ticket.memory(40).nbytes == 40
    assert asked == [60]
