"""`ProcessPool`: child processes of one library, each of which does one call at a time."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from tensorpost.values.problems import LibraryFailed, LibraryUnavailable, LimitExceeded

from .process import (
    CHECK_SECONDS,
    START_SECONDS,
    CannotStart,
    ChildEnded,
    ChildFailed,
    ChildOutOfMemory,
    ChildProcess,
    ChildTimedOut,
    FunctionRefused,
)

END_REASONS = ("failed", "killed", "timed_out", "abandoned", "retired")
"""Why a process ended; see `LibraryState.ended`."""

MOST_FAILURES = 2
REFUSED_SECONDS = 600.0
_MOST_REMEMBERED = 1024
_SMALL_BYTES = 512
_RETRY_AFTER_SECONDS = 1
_FORGETTING_BYTES = 16 << 20
_START_PAUSE_SECONDS = 5.0
"""Seconds without a new process after one could not start."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LibraryState:
    """A library and its processes, for people and monitors.

    Attributes:
        name: the module, as in `onnxruntime`.
        version: the version of its distribution; None if it is not installed.
        processes: how many exist now.
        ended: how many ended during or after a call, by reason: `failed`, the library ended it; `killed`, it was ended
            from outside, as by a machine without memory; `timed_out`; `abandoned`, the result was not needed any more;
            `retired`, it kept too much memory.
    """

    name: str
    version: str | None
    processes: int
    ended: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class KeptArrays:
    """Arrays that a process keeps for later calls, as a session that holds them.

    Attributes:
        key: what they are kept by; equal for equal arrays and functions.
        names: what the function calls them.
        arrays: packed arrays.
    """

    key: str
    names: Sequence[str]
    arrays: Sequence[Any]

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum([array.nbytes for array in self.arrays])


def _digest_of(key: bytes, arrays: Sequence[Any]) -> bytes:
    """What failures of a call are remembered by: one caller's elements, such as a count, refuse no other caller's."""
    digest = hashlib.blake2b(key, digest_size=16)
    for array in arrays:
        if array.nbytes <= _SMALL_BYTES:
            digest.update(b"%d;" % array.nbytes + array.tobytes())
    return digest.digest()


def _nothing() -> None:
    """Do nothing: a call that is always wanted."""


class ProcessPool:
    """Processes that are started ahead, and started again when they end. May be used from any thread.

    A pool that was not opened starts a process with the first call.

    Args:
        title: the library's name in messages.
        modules: what a process imports before its first call.
        seconds: the longest that one call may take.
        setting: the variable that sets `seconds`; empty if none does.
        name: the library's distribution package; by default that of the first module's name.

    Attributes:
        name: the library's distribution package, in metrics and `/v1/devices`.
        seconds: the longest that one call may take.
        threads: how many threads of the library one call may use.
        session_bytes: memory of sessions with their weights that each process may keep; 0 for none.
    """

    def __init__(
        self, title: str, modules: Sequence[str], *, seconds: float, setting: str = "", name: str = ""
    ) -> None:  # fmt: skip
        self.title, self.seconds, self.threads, self.session_bytes = title, seconds, 1, 0
        self._forgotten: deque[str] = deque()  # keys whose sessions are not needed any more
        self.name = name or modules[0]
        self._modules, self._setting, self._count = tuple(modules), setting, 1
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()
        self._changed = threading.Condition()
        self._long = 0  # calls in progress that may take long
        self._failures: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self._ended: Counter[str] = Counter()
        self._no_start_until = 0.0
        self._closed = False

    @cached_property
    def installed(self) -> bool:
        """Whether the modules can be imported."""
        return all(find_spec(module.partition(".")[0]) is not None for module in self._modules)

    @cached_property
    def _version(self) -> str | None:
        try:
            return version(self.name)
        except PackageNotFoundError:
            return None

    def open(self, count: int, *, ahead: bool) -> None:
        """Say how many processes there are at most, and start them; returns before they are ready.

        Args:
            count: how many.
            ahead: whether they are started now, if the library is installed; else with the first calls.
        """
        with self._changed:
            self._count, self._closed = count, False
            while ahead and self.installed and len(self._all) < count:
                try:
                    self._idle.append(self._new())
                except OSError as error:
                    _log.warning("no process can be started for %s: %s", self.title, error)
                    return

    def close(self) -> None:
        """End all processes; calls in progress fail. A later call starts another one."""
        with self._changed:
            idle, self._idle, self._closed = self._idle, [], True
            self._all.difference_update(idle)
            for process in self._all:
                process.kill()  # the thread that waits for it closes it
        for process in idle:
            process.close()

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes."""
        with self._changed:
            return [process.pid for process in self._all]

    @property
    def state(self) -> LibraryState:
        with self._changed:
            ended = {reason: self._ended[reason] for reason in END_REASONS}
            return LibraryState(self.name, self._version, len(self._all), ended)

    def call(
        self, function: str, arguments: Mapping[str, Any], arrays: Sequence[Any] = (), *, subject: str,
        memory_bytes: int, output_bytes: int = 0, key: bytes = b"", check: Callable[[], object] = _nothing,
        long: bool = False, kept: KeptArrays | None = None,
    ) -> tuple[dict[str, Any], list[Any]]:  # fmt: skip
        """Call a function in a process; waits for one that does nothing.

        While all processes work on long calls, one more is started for the others, which would wait for minutes.

        Args:
            function: name of a function of `child.FUNCTIONS`.
            arguments: JSON values for it.
            arrays: packed arrays for it.
            subject: what it works on, for messages: the operator's name.
            memory_bytes: memory that the call may take in the process (Linux).
            output_bytes: bytes of the arrays that come back, at most, each rounded up to 64.
            key: what is refused for a while, with arrays of few elements as these, after it ended a process twice;
                empty for nothing.
            check: called many times a second; what it raises ends the call, and its process.
            long: whether it may take longer than others should wait.
            kept: further arrays, which are sent if the process does not have them; a process that has is preferred.

        Raises:
            FunctionRefused: the function says so.
            LibraryFailed: the library ended the process, needs more memory, or did so twice before.
            LimitExceeded: it took longer than it may.
            LibraryUnavailable: there is no process now, or it was ended from outside.
        """
        digest = _digest_of(key, arrays) if key else b""
        self._refuse_known(digest, subject)
        head = {
            **arguments, "function": function, "memory_bytes": memory_bytes, "seconds": self.seconds,
            "threads": self.threads,
        }  # fmt: skip
        reason = "abandoned"
        process = self._take(check, long, "" if kept is None else kept.key)
        try:
            if kept is None:
                found = process.call(head, arrays, output_bytes, check)
            else:
                found = self._call_with(process, kept, head, arrays, output_bytes, check)
            reason = "retired"
        except FunctionRefused:
            reason = "retired"
            raise
        except ChildOutOfMemory:
            reason = "retired"
            raise LibraryFailed(
                f"{self.title} needed more memory for {subject} than the {memory_bytes:,} bytes that were reserved "
                "by its tensors and attributes; send smaller tensors, or other attributes",
                extra={"reason": "memory", "limit": memory_bytes},
            ) from None
        except ChildTimedOut:
            reason = "timed_out"
            self._note_failure(digest)
            raise self._too_slow(subject) from None
        except ChildEnded as error:
            reason = "failed" if error.cause else "killed"
            raise self._end_of(error, digest, subject) from error
        except (ChildFailed, OSError) as error:
            reason = "killed"
            raise self._unavailable(error) from error
        finally:
            self._put_back(process, reason, long)
        return found

    def _call_with(
        self, process: ChildProcess, kept: KeptArrays, head: Mapping[str, Any], arrays: Sequence[Any],
        output_bytes: int, check: Callable[[], object],
    ) -> tuple[dict[str, Any], list[Any]]:  # fmt: skip
        """Call a function with arrays that the process has, or is given now."""
        head = {**head, "session": kept.key, "session_bytes": self.session_bytes, "weights": []}
        if kept.key in process.sessions:
            try:
                return self._noted(process, process.call(head, arrays, output_bytes, check))
            except FunctionRefused as refusal:
                if refusal.kind != "forgotten" or process.ended:
                    raise
        head["weights"] = [*kept.names]
        return self._noted(process, process.call(head, [*arrays, *kept.arrays], output_bytes, check))

    @staticmethod
    def _noted(process: ChildProcess, found: tuple[dict[str, Any], list[Any]]) -> tuple[dict[str, Any], list[Any]]:
        process.sessions = frozenset(map(str, found[0].get("sessions", ())))
        return found

    def forget(self, key: str) -> None:
        """Let the processes drop what they keep by this key, soon. May be called while an object is destroyed."""
        self._forgotten.append(key)
        with suppress(RuntimeError):  # the interpreter ends, and the processes with it
            threading.Thread(target=self._send_forgotten, daemon=True).start()

    def _send_forgotten(self) -> None:
        keys = set[str]()
        with suppress(IndexError):
            while True:
                keys.add(self._forgotten.popleft())
        deadline = time.monotonic() + self.seconds
        with self._changed:
            waiting = {process for process in self._all if keys & process.sessions}
        while waiting and time.monotonic() < deadline:
            with self._changed:
                waiting &= self._all
                idle = [process for process in self._idle if process in waiting]
                for process in idle:
                    self._idle.remove(process)
                if not idle and waiting:
                    self._changed.wait(CHECK_SECONDS)
            for process in idle:
                waiting.discard(process)
                head = {"function": "forget_sessions", "keys": [*keys], "memory_bytes": _FORGETTING_BYTES}
                head |= {"seconds": START_SECONDS, "threads": 1}
                try:
                    self._noted(process, process.call(head, (), 0, _nothing))
                except (ChildFailed, OSError) as error:
                    _log.warning("a process of %s cannot drop weights, and is ended: %s", self.title, error)
                    process.close()
                self._put_back(process, "retired", long=False)

    def _refuse_known(self, digest: bytes, subject: str) -> None:
        """Refuse what ended a process twice lately."""
        with self._changed:
            failures, until = self._failures.get(digest, (0, 0.0)) if digest else (0, 0.0)
        left = until - time.monotonic()
        if failures >= MOST_FAILURES and left > 0:
            raise LibraryFailed(
                f"{subject} with these attributes, types and small tensors has ended a process of {self.title} "
                f"{failures} times, and is refused for {left:.0f} s more; change the attributes, the shapes or "
                "the elements of small tensors",
                extra={"reason": "refused", "refused_seconds": round(left)},
            )

    def _end_of(self, error: ChildEnded, digest: bytes, subject: str) -> LibraryFailed | LibraryUnavailable:
        if not error.cause:
            return self._unavailable(error)
        self._note_failure(digest)
        _log.warning(
            "%s ended its process while it worked on %s: %s%s", self.title, subject, error.cause,
            f"\n{error.traceback}" if error.traceback else "",
        )  # fmt: skip
        return LibraryFailed(
            f"{self.title} ended its process ({error.cause}) while it worked on {subject}; it does not check every "
            "value of attributes and elements, so change these",
            extra={"reason": "ended", "ended_by": error.cause},
        )

    def _too_slow(self, subject: str) -> LimitExceeded | LibraryFailed:
        what = f"{self.title} worked on {subject} for longer than the {self.seconds:g} s that are allowed"
        if not self._setting:
            return LibraryFailed(f"{what}; send other attributes or fewer numbers", extra={"reason": "time"})
        limit = {"limit": self.seconds, "actual": self.seconds, "setting": self._setting, "unit": "seconds"}
        return LimitExceeded(f"{what} (setting {self._setting})", extra=limit)

    def _unavailable(self, error: Exception) -> LibraryUnavailable:
        if isinstance(error, (CannotStart, OSError)):
            _log.error("a process of %s cannot work: %s", self.title, error)
            with self._changed:
                self._no_start_until = time.monotonic() + _START_PAUSE_SECONDS
        return LibraryUnavailable(
            f"the process of {self.title} that had this call was ended or could not start; try again later",
            extra={"retry_after_seconds": _RETRY_AFTER_SECONDS},
        )

    def _new(self) -> ChildProcess:
        """Start a process. The caller holds the lock.

        Raises:
            OSError: none can be started.
        """
        process = ChildProcess(self._modules)
        self._all.add(process)
        return process

    def _take(self, check: Callable[[], object], long: bool, key: str = "") -> ChildProcess:
        """A process that does nothing, one that keeps something by the key if there is one; a new one if there may be.

        Raises:
            LibraryUnavailable: none can be started.
        """
        while True:
            with self._changed:
                ended = [process for process in self._idle if process.ended]
                for process in ended:
                    self._idle.remove(process)
                    self._all.discard(process)
                    self._ended["killed"] += 1
                failed, found = None, None
                if not long or self._long < self._count:
                    try:
                        if self._idle:
                            having = [process for process in self._idle if key and key in process.sessions]
                            found = having[-1] if having else self._idle[-1]
                            self._idle.remove(found)
                        elif len(self._all) < self._count + (self._long >= self._count):
                            found = self._new()
                    except OSError as error:
                        failed = error
                if found is not None:
                    self._long += long
                    return found
                if failed is None:
                    self._changed.wait(CHECK_SECONDS)
            for process in ended:
                process.close()
            if failed is not None:
                raise self._unavailable(failed) from failed
            check()

    def _put_back(self, process: ChildProcess, reason: str, long: bool) -> None:
        """Make the process available again, or start another one if it has ended."""
        if ended := process.ended:
            process.close()
        with self._changed:
            self._long -= long
            if not ended:
                self._idle.append(process)
            else:
                self._all.discard(process)
                self._ended[reason] += 1
                if not self._closed and time.monotonic() >= self._no_start_until and len(self._all) < self._count:
                    try:
                        self._idle.append(self._new())
                    except OSError as error:  # the next call tries again, and says so
                        _log.warning("no process can be started for %s: %s", self.title, error)
            self._changed.notify()

    def _note_failure(self, digest: bytes) -> None:
        if not digest:
            return
        with self._changed:
            failures, _ = self._failures.pop(digest, (0, 0.0))
            self._failures[digest] = (failures + 1, time.monotonic() + REFUSED_SECONDS)
            if len(self._failures) > _MOST_REMEMBERED:
                self._failures.popitem(last=False)
