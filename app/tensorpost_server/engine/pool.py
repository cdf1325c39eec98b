"""The pool of workers, one for every device that can be opened, and the choice of the worker for a plan.

A backend that is named is forced. `auto` takes the first of the table that can run the plan exactly and for which the
plan is large enough. The smallest plan for a device with memory of its own is measured when the pool is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost.values.library_message import without_paths
from tensorpost.values.problems import InvalidParameter, NoBackend, TensorpostError, nearest

from ..backends import BACKENDS, CannotOpen, DeviceOptions, load_backend
from ..planning import Plan, make_plan
from .worker import IDLE_SECONDS, RETRY_AFTER_SECONDS, InlineLimits, Worker, ignore_loss, timed

_log = logging.getLogger(__name__)

TRIALS = 20
"""Repetitions when a device's speed is measured; the shortest time counts."""


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device, or why there is none.

    Attributes:
        name: the backend.
        index: which of its devices; None for a backend that could not be opened at all.
        device: the device in words; None if it could not be opened.
        reason: why it cannot be used; None if it can.
        auto: whether `auto` may choose it.
        threads: slices it computes at the same time.
        minimum_work: elements that a plan must read for `auto` to prefer it; 0 for processors.
        queued_bytes: input and output bytes of the requests in its queue.
        gauges: other quantities in use now, by name.
    """

    name: str
    index: int | None
    device: str | None
    reason: str | None
    auto: bool
    threads: int
    minimum_work: int
    queued_bytes: int
    gauges: Mapping[str, int]


@dataclass(slots=True)
class Pool:
    """All workers of this server.

    Attributes:
        default: the backend used when a request names none: `auto` or a name.
        workers: workers by key: the backend's name, with `:` and the index for backends that may have several devices.
            In the order of `BACKENDS`.
        refused: reasons why devices could not be opened, by key.
        home: devices, by key, that this process uses for calls that name none, before those of other processes.
        lost: which device failed permanently and why; None if none did.
        when_lost: called with the same on any thread.
    """

    default: str
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    home: set[str] = field(default_factory=set[str])
    lost: str | None = None
    when_lost: Callable[[str], object] = ignore_loss

    @classmethod
    def open(
        cls,
        default: str,
        options: DeviceOptions,
        slices_ahead: int,
        *,
        minimum_work: int | None = None,
        idle_seconds: float = IDLE_SECONDS,
        retry_after_seconds: int = RETRY_AFTER_SECONDS,
        when_lost: Callable[[str], object] = ignore_loss,
    ) -> Pool:
        """Open every device that can be opened; a forced default that cannot is an error, not a fallback.

        Args:
            default: `auto` or a backend's name.
            options: what devices may take.
            slices_ahead: slices of a request that may be computed before they can be sent; see `Worker`.
            minimum_work: elements that a plan must read for `auto` to prefer a device with memory of its own; None
                measures it (`_measured_minimum`).
            idle_seconds: how long nothing must have run before memory kept for reuse is given back, seconds; see
                `Worker`.
            retry_after_seconds: what a caller is told to wait whose device has no memory left, seconds; see `Worker`.
            when_lost: called on any thread when a device was lost; see the attributes.

        Raises:
            InvalidParameter: the default names no backend.
            NoBackend: the default backend cannot be opened.
        """
        pool = cls(default)
        pool._known(default)
        with ExitStack() as unless_opened:
            unless_opened.callback(pool.close)
            for name, row in BACKENDS.items():
                try:
                    loaded: Any = load_backend(name)
                    threads = options.threads.get(name, 1)
                    found = loaded.open_all(options) if row.several else [(0, loaded(threads=threads))]
                    opened_or_not = [*found]
                    for index, opened in opened_or_not:
                        key = f"{name}:{index}" if row.several else name
                        if options.is_home(index, len(opened_or_not)):
                            pool.home.add(key)
                        if isinstance(opened, CannotOpen):
                            pool.refused[key] = str(opened)
                        else:
                            pool.workers[key] = Worker(
                                opened,
                                slices_ahead,
                                idle_seconds=idle_seconds,
                                retry_after_seconds=retry_after_seconds,
                                when_lost=pool._lose,
                            )
                except (ImportError, OSError, RuntimeError) as error:
                    pool.refused[name] = _sentence(error)
            pool._try_devices(minimum_work)
            pool.when_lost = when_lost
            if default != "auto" and not pool._keys(default):
                raise NoBackend(f"backend {default!r} was requested and cannot be opened: {pool._reasons(default)}")
            unless_opened.pop_all()
        return pool

    def choose(self, plan: Plan, wanted: str | None = None, device: int | None = None) -> Worker:
        """The worker that runs this plan.

        A backend that is named is forced, and so is a device: there is no falling back. Otherwise (`auto`) it is the
        first backend of the table that can run the plan exactly: a device with memory of its own is passed over for a
        small plan that another backend can run. Among several devices of a backend it is the one with the fewest
        queued bytes.

        Args:
            plan: what to run.
            wanted: `auto` or a backend's name; None for the default.
            device: which of the backend's devices; None for any.

        Raises:
            InvalidParameter: there is no such backend, or a device is named without one.
            NoBackend: none is available here, or each refuses the plan; the reasons are in `extra["refused"]`.
        """
        wanted = self.default if wanted is None else wanted
        if wanted != "auto":
            self._known(wanted)
        elif device is not None:
            raise InvalidParameter(
                f"device {device} needs a backend; name one, as in backend=cuda&device={device} (auto selects devices "
                "itself)",
                extra={"parameter": "device"},
            )
        best: Worker | None = None
        best_is_preferred = best_is_home = False
        refused: dict[str, str] = {}
        for key, worker in self.workers.items():
            name = worker.backend.name
            if (name != wanted) if wanted != "auto" else not BACKENDS[name].auto:
                continue
            if device is not None and worker.backend.index != device:
                continue
            reason = worker.refusal_reason(plan)
            if reason is not None:
                refused[key] = reason
                continue
            pays = worker.is_preferred(plan)
            is_home = key in self.home
            same = best is not None and best_is_preferred == pays and best.backend.name == name
            nearer = is_home > best_is_home
            if (
                best is None
                or pays > best_is_preferred
                or (same and (nearer or (is_home == best_is_home and worker.queued_bytes < best.queued_bytes)))
            ):
                best, best_is_preferred, best_is_home = worker, pays, is_home
        if best is not None:
            return best
        if device is None:
            refused |= {key: why for key, why in self.refused.items() if wanted in ("auto", _backend_of(key))}
        elif not refused:
            refused = self._no_such_device(wanted, device)
        refused = {key: without_paths(reason) for key, reason in refused.items()}
        reasons = "; ".join(f"{key}: {reason}" for key, reason in refused.items())
        raise NoBackend(f"no backend here can run {plan.operator}: {reasons}", extra={"refused": refused})

    @property
    def has_devices(self) -> bool:
        """Whether a device with memory of its own is open."""
        return any(not worker.backend.inline for worker in self.workers.values())

    def status(self) -> list[DeviceStatus]:
        """Every device of every backend in the table, open or not."""
        found: list[DeviceStatus] = []
        for name, row in BACKENDS.items():
            for key, reason in self.refused.items():
                if _backend_of(key) == name:
                    index = int(key.partition(":")[2]) if ":" in key else None
                    found.append(DeviceStatus(name, index, None, reason, row.auto, 0, 0, 0, {}))
            for key in self._keys(name):
                worker = self.workers[key]
                backend = worker.backend
                found.append(
                    DeviceStatus(
                        name, backend.index, backend.device, worker.lost, row.auto, backend.threads,
                        worker.minimum_work, worker.queued_bytes, backend.gauges(),
                    )
                )  # fmt: skip
        return found

    def fault(self, stuck_seconds: float) -> str | None:
        """Why a device does not work any more; None if all of them do. Also starts a tiny Tile on each device.

        It does not wait for the Tile: the next call reports its failure, and a thread that does not return is reported
        when it has computed for `stuck_seconds`. So a device that failed while there were no requests is found too.

        Args:
            stuck_seconds: how long a thread may compute before it counts as stuck.
        """
        if self.lost is not None:
            return self.lost
        plan, inputs = _tile(4), [memoryview(bytes(1024))]
        for key, worker in self.workers.items():
            failed = worker.check_health(plan, inputs)
            if worker.lost is not None:
                return worker.lost
            if failed is not None:
                return f"{key} failed a Tile of 4 KiB: {failed}"
            if (busy := worker.busy_seconds) > stuck_seconds:
                return f"a thread of {key} has computed for {busy:.0f} s, longer than {stuck_seconds:g} s"
        return None

    def close(self) -> None:
        """Close every worker."""
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()

    def _lose(self, reason: str) -> None:
        if self.lost is None:
            self.lost = reason
            self.when_lost(reason)

    def _keys(self, name: str) -> list[str]:
        return [key for key in self.workers if _backend_of(key) == name]

    def _reasons(self, name: str) -> str:
        return "; ".join(reason for key, reason in self.refused.items() if _backend_of(key) == name)

    def _no_such_device(self, name: str, device: int) -> dict[str, str]:
        key = f"{name}:{device}"
        if key in self.refused:
            return {key: self.refused[key]}
        if name in self.refused:
            return {name: self.refused[name]}
        known = [self.workers[key].backend.index for key in self._keys(name)]
        known += [int(key.partition(":")[2]) for key in self.refused if _backend_of(key) == name]
        known_devices = "is only device 0" if known == [0] else f"are devices {', '.join(map(str, sorted(known)))}"
        return {key: f"there is no device {device} of {name} here; there {known_devices}"}

    def _try_devices(self, minimum_work: int | None) -> None:
        """Run a small Tile on every device; measure the smallest plan for devices with memory of their own.

        One that fails is closed and refused: it would fail the first request as well.
        """
        for key, worker in [*self.workers.items()]:
            try:
                if worker.backend.inline:
                    worker.run_now(_tile(4), [memoryview(bytes(1024))])
                    continue
                measured = self._measured_minimum(worker)
            except Exception as error:  # noqa: BLE001 # CuPy's, ONNX Runtime's, ours: no reason to stop the others
                self.refused[key] = f"it opened, but failed its first Tile: {_sentence(error)}"
                _log.warning("%s is not used: %s", key, self.refused[key])
                self.lost = None
                self.workers.pop(key).close()
            else:
                worker.minimum_work = measured if minimum_work is None else minimum_work

    def _measured_minimum(self, worker: Worker) -> int:
        """How many elements a processor copies in the time that this device needs for a Tile of 4 KiB.

        Both are the shortest of some times. The device's includes a switch of threads, a KiB to the device, a kernel,
        and 4 KiB back; the processor is the first one that `auto` may choose. The time of large tensors on the bus is
        not counted: their transfer over the network takes longer, and both happen at the same time.
        """
        inputs = [memoryview(bytes(1024))]
        tiny, small = _tile(4), _tile(256)
        device = min(worker.time_once(tiny, inputs) for _ in range(TRIALS))
        processors = [w for w in self.workers.values() if w.backend.inline and BACKENDS[w.backend.name].auto]
        if not processors:
            return 0
        processor = min(timed(processors[0].run_now, small, inputs) for _ in range(TRIALS))
        return int(small.work * device / processor)

    @staticmethod
    def _known(name: str) -> str:
        names = ["auto", *BACKENDS]
        if name not in names:
            guess = nearest(name, names)
            hint = f"did you mean {guess!r}?" if guess else f"there are {', '.join(names)}"
            raise InvalidParameter(f"there is no backend {name[:60]!r}; {hint}", extra={"parameter": "backend"})
        return name


def _backend_of(key: str) -> str:
    return key.partition(":")[0]


def _sentence(error: Exception) -> str:
    """The message of an error of this project; of any other error its class and message."""
    ours = isinstance(error, (CannotOpen, TensorpostError))
    return str(error) if ours else f"{type(error).__name__}: {error}"


@cache
def _tile(rows: int) -> Plan:
    """The plan of a Tile of `rows` rows of 1 KiB, in the four dimensions that every DirectML level takes."""
    row = BufferTensorDesc.packed("FLOAT32", (1, 1, 1, 256))
    return make_plan(TileOperatorDesc.of(row, (1, 1, rows, 1)), InlineLimits().bytes)
