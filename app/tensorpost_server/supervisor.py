"""Several processes that serve one port: `tensorpost serve --workers`.

The supervisor has the listening sockets and the folder that the processes share, and serves nothing itself. It starts a
process again that ended by itself, and says so; it passes signals on; and it replaces the processes one after the other
at SIGUSR2, during which the port stays open.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tensorpost.values.problems import InvalidParameter, ServerFault, TensorpostError, from_problem

from .shared.process_group import ProcessGroup, places_of
from .shared.shared_folder import SharedFolder, parent_folder

_RESTART_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""How long a process waits that ended by itself, one time after the other; from the start when it has run a minute."""

_STEADY_SECONDS = 60.0
_AGAIN_SECONDS = 1.0  # until what the system has refused is tried again
_AFTER_DRAIN_SECONDS = 5.0  # beyond `shutdown_seconds`, for a process that does not end
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Process:
    """A process that was started.

    Attributes:
        place: which one it is; see `ProcessGroup`.
        running: the process.
        said: the end of a pipe on which it says that it is ready, or why not.
        began: when it was started.
        is_ready: whether it takes connections.
        ends: whether it was told to end.
        replaces: the process that ends when this one is ready; None from then on.
        rereads: whether it is to read the folder of graphs again as soon as it is ready.
        turn: how many times the processes had been told to be replaced when it was started.
    """

    place: int
    running: subprocess.Popen[bytes]
    said: int
    began: float
    is_ready: bool = False
    ends: bool = False
    replaces: _Process | None = None
    rereads: bool = False
    turn: int = 0
    _text: bytearray = field(default_factory=bytearray)

    def read(self) -> dict[str, Any] | None:
        """What it says: an empty object if it is ready, a problem if it cannot be; None if there is no whole line."""
        part = os.read(self.said, 65536)
        self._text += part
        if b"\n" in self._text:
            return json.loads(self._text.partition(b"\n")[0])
        return None if part else {"detail": "it ended before it was ready; its messages are above"}


class Supervisor:
    """Starts processes and keeps them running.

    Args:
        processes: how many.
        listener: the socket that all listen on.
        grpc: the same for gRPC; None without it.
        chosen: the settings that were given as options, as `read_settings` takes them.
        log_level: the least important messages that are shown.
        drain_seconds: how long a process may take to end in order.
        announce: called once, when all processes take connections.

    Raises:
        InvalidParameter: what they share cannot be made.
    """

    def __init__(
        self, processes: int, listener: socket.socket, grpc: socket.socket | None, chosen: Mapping[str, Any],
        log_level: str, drain_seconds: float, announce: Callable[[], object],
    ) -> None:  # fmt: skip
        self._processes, self._listener, self._grpc = processes, listener, grpc
        self._chosen = {name: str(value) if isinstance(value, Path) else value for name, value in chosen.items()}
        self._log_level, self._drain_seconds, self._announce = log_level, drain_seconds, announce
        self._folder, self._group = _shared(processes)
        self._life, self._life_of_processes = os.pipe()  # the processes have the reading end
        self._running: list[_Process] = []
        self._due: list[tuple[float, int]] = []  # places whose process is started again, and when
        self._uncleared: set[int] = set()  # places of processes that have ended, whose counts are not taken out yet
        self._failures = [0] * places_of(processes)
        self._to_replace: list[_Process] = []
        self._turns = 0  # times that all were told to be replaced
        self._was_announced = self._stops = False
        self._signals: list[int] = []
        self._stop_at = 0.0
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Run until told to stop.

        Raises:
            TensorpostError: a process could not start when the server began; the message is the process's.
        """
        wake, woken = socket.socketpair()
        wake.setblocking(False)
        woken.setblocking(False)
        self._selector.register(woken, selectors.EVENT_READ)
        handled = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2]
        before = {number: signal.signal(number, self._take) for number in [*handled, signal.SIGCHLD]}
        before_wake = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        try:
            for place in range(self._processes):
                self._start(place)
            while self._running or self._due:
                self._turn(woken)
        finally:
            signal.set_wakeup_fd(before_wake)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._end_now()
            os.close(self._life_of_processes)
            os.close(self._life)
            self._selector.close()
            self._group.release()
            wake.close()
            woken.close()
            self._folder.release()

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _turn(self, woken: socket.socket) -> None:
        """Wait until something happens, and do what follows from it."""
        now = time.monotonic()
        times = [when for when, _ in self._due] + ([self._stop_at] if self._stops else [])
        times += [now + _AGAIN_SECONDS] if self._uncleared else []
        for key, _ in self._selector.select(max(0.0, min(times) - now) if times else None):
            if key.data is None:
                with suppress(BlockingIOError):
                    woken.recv(4096)
            else:
                self._hear(key.data)
        signals, self._signals = self._signals, []
        for number in signals:
            self._handle(number)
        self._reap()
        self._clear()
        self._replace_next()
        now = time.monotonic()
        due = [place for when, place in self._due if when <= now and place not in self._uncleared]
        self._due = [(when, place) for when, place in self._due if place not in due]
        for place in due:
            self._start_again(place)
        if self._stops and now >= self._stop_at:
            for process in self._running:
                _log.error("process %d did not end in time, and is ended now", process.running.pid)
                process.running.kill()
            self._stop_at = now + _AFTER_DRAIN_SECONDS

    def _start_again(self, place: int, replaces: _Process | None = None) -> None:
        """Start a process; where the system has no room for one, later, unless it were a successor."""
        try:
            self._start(place, replaces)
        except OSError as error:
            if replaces is None:
                _log.error("no process can be started (%s); the next try is in %g s", error.strerror, _AGAIN_SECONDS)
                self._due.append((time.monotonic() + _AGAIN_SECONDS, place))
            else:
                self._to_replace = []
                _log.error("no process can be started (%s), so no more are replaced", error.strerror)

    def _start(self, place: int, replaces: _Process | None = None) -> None:
        said, told = os.pipe()
        passed = [self._listener.fileno(), told, self._life]
        arguments: dict[str, Any] = {
            "folder": str(self._folder.path), "place": place, "processes": self._processes,
            "listener": self._listener.fileno(), "grpc": None, "ready": told, "life": self._life,
            "log_level": self._log_level, "chosen": self._chosen,
        }  # fmt: skip
        if self._grpc is not None:
            arguments["grpc"] = self._grpc.fileno()
            passed.append(self._grpc.fileno())
        # With -P, files of the current folder are not imported in place of ours, as they are not by one process.
        safe = ["-P"] if sys.flags.safe_path or not _imports_from_here() else []
        command = [sys.executable, *safe, "-m", "tensorpost_server.server_process", json.dumps(arguments)]
        try:
            # In a session of its own: the terminal's Ctrl+C is for the supervisor, which passes it on.
            running = subprocess.Popen(  # noqa: S603 # our own interpreter and module
                command, pass_fds=passed, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except BaseException:
            os.close(said)
            raise
        finally:
            os.close(told)
        process = _Process(place, running, said, time.monotonic(), replaces=replaces, turn=self._turns)
        self._running.append(process)
        self._selector.register(said, selectors.EVENT_READ, process)

    def _hear(self, process: _Process) -> None:
        said = process.read()
        if said is None:
            return
        self._selector.unregister(process.said)
        os.close(process.said)
        process.said = -1
        if said:
            self._cannot_start(process, said)
            return
        process.is_ready = True
        if process.replaces is not None:
            _log.info("process %d takes the place of %d", process.running.pid, process.replaces.running.pid)
            self._tell(process.replaces, signal.SIGTERM)
            process.replaces = None
        if process.rereads:
            self._tell(process, signal.SIGHUP, ends=False)
        if not self._was_announced and sum(each.is_ready for each in self._running) == self._processes:
            self._was_announced = True
            self._announce()
        self._replace_next()

    def _cannot_start(self, process: _Process, said: dict[str, Any]) -> None:
        if self._was_announced or self._stops:
            _log.error("process %d could not start: %s", process.running.pid, said.get("detail"))
            return
        self._stop(signal.SIGTERM)
        for each in self._running:
            with suppress(subprocess.TimeoutExpired):
                each.running.wait(max(0.0, self._stop_at - time.monotonic()))
        raise from_problem(said, 500) if "type" in said else ServerFault(f"a process could not start: {said['detail']}")

    def _handle(self, number: int) -> None:
        if number in (signal.SIGINT, signal.SIGTERM):
            self._stop(number)
        elif number == signal.SIGHUP:
            for process in self._running:
                if process.is_ready:
                    self._tell(process, number, ends=False)
                else:  # the signal would end it, as long as nothing handles it there
                    process.rereads = True
        elif number == signal.SIGUSR2 and not self._stops:
            self._turns += 1
            self._to_replace = [each for each in self._running if not each.ends]
            self._replace_next()

    def _stop(self, number: int) -> None:
        """Let all processes end in order; a second signal ends them at once, as in one process."""
        self._stops, self._due, self._to_replace = True, [], []
        self._stop_at = time.monotonic() + self._drain_seconds + _AFTER_DRAIN_SECONDS
        for process in self._running:
            self._tell(process, number)

    def _replace_next(self) -> None:
        """Start the successor of the next process that is to be replaced, unless one is being replaced."""
        if self._stops or not self._to_replace or any(not each.is_ready or each.ends for each in self._running):
            return
        old = self._to_replace[0]
        place = (old.place + self._processes) % places_of(self._processes)  # at the same devices
        if place in self._uncleared:
            return
        del self._to_replace[0]
        if old in self._running:
            self._start_again(place, old)
        else:
            self._replace_next()

    @staticmethod
    def _tell(process: _Process, number: int, *, ends: bool = True) -> None:
        process.ends = process.ends or ends
        with suppress(ProcessLookupError):
            process.running.send_signal(number)

    def _reap(self) -> None:
        """Take note of processes that have ended, and start those again that were not told to."""
        for process in [each for each in self._running if each.running.poll() is not None]:
            self._running.remove(process)
            if process.said >= 0:
                self._hear_last(process)
            self._uncleared.add(process.place)
            if process.ends or self._stops or self._has_stand_in(process):
                continue
            now = time.monotonic()
            steady = now - process.began > _STEADY_SECONDS
            count = self._failures[process.place] = 1 if steady else self._failures[process.place] + 1
            wait = _RESTART_SECONDS[min(count, len(_RESTART_SECONDS)) - 1]
            _log.error(
                "process %d ended %s; another one is started%s", process.running.pid, _how(process.running.returncode),
                f" in {wait:g} s" if wait else "",
            )  # fmt: skip
            self._due.append((now + wait, process.place))

    def _has_stand_in(self, process: _Process) -> bool:
        """Whether no other process need be started for one that has ended by itself; the reason is logged then."""
        how = _how(process.running.returncode)
        if process.replaces is not None and process.replaces in self._running:
            _log.error(
                "process %d ended %s before it was ready, so %d goes on, and no more are replaced",
                process.running.pid, how, process.replaces.running.pid,
            )  # fmt: skip
            if process.turn == self._turns:
                self._to_replace = []
            return True
        for each in self._running:
            if each.replaces is process:
                _log.error("process %d ended %s; %d takes its place", process.running.pid, how, each.running.pid)
                return True
        return False

    def _clear(self) -> None:
        """Take out what processes had counted that have ended; what cannot be done now is tried again."""
        for place in [*self._uncleared]:
            try:
                self._group.clear(place)
            except (OSError, TensorpostError) as error:  # the file system is full, or a process is stopped in a change
                _log.error("what an ended process had counted stays until the next try: %s", error)
                return
            self._uncleared.remove(place)

    def _end_now(self) -> None:
        for process in self._running:
            process.running.kill()
            process.running.wait()

    def _hear_last(self, process: _Process) -> None:
        """A process ended before it was ready."""
        said = process.read()
        self._selector.unregister(process.said)
        os.close(process.said)
        process.said = -1
        self._cannot_start(process, said or {"detail": "it ended before it was ready"})


def _shared(processes: int) -> tuple[SharedFolder, ProcessGroup]:
    """What so many processes share, new."""
    folder: SharedFolder | None = None
    try:
        folder = SharedFolder.make()
        ProcessGroup.create(folder.path, processes)
        return folder, ProcessGroup.join(folder.path, 0, processes)
    except (OSError, sqlite3.Error) as error:
        if folder is not None:
            folder.release()
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidParameter(
            f"what {processes} processes share cannot be made in {parent_folder()}: {reason}; make room there (docker "
            "run --shm-size), let this user write there, or use one process (--workers 1)"
        ) from None


def _imports_from_here() -> bool:
    """Whether this process imports modules of the current folder."""
    return not {"", str(Path.cwd())}.isdisjoint(sys.path)


def _how(status: int) -> str:
    """A process's end in words."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
