"""`ChildProcess`: one child process as the server sees it."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

from .messages import INLINE_BYTES, MalformedMessage, receive, send_parts
from .segment import SharedSegment

START_SECONDS = 60.0
CHECK_SECONDS = 0.05
"""How often a call that waits looks whether its result is still wanted."""
STALL_SECONDS = 5
"""How long a read or a write waits for a process that stops in the middle of a message."""

_KEPT_BYTES = 32 << 20  # glibc takes no larger threshold
_MOST_HEAD_BYTES = 64 << 20
"""Largest size of an answer without its arrays: outputs that were inferred, and what a library says."""


class ChildFailed(Exception):
    """A call of a child process has no result."""


class CannotStart(ChildFailed):
    """The process ended before its first call, or took too long to start."""


class ChildEnded(ChildFailed):
    """The process ended during the call.

    Attributes:
        cause: name of the signal by which the library ended it, as SIGABRT, or of the exception that its function let
            through; empty if it was ended from outside.
        traceback: where that exception was raised.
    """

    def __init__(self, cause: str, traceback: str = "") -> None:
        super().__init__(cause)
        self.cause, self.traceback = cause, traceback


class ChildTimedOut(ChildFailed):
    """The call took longer than it may; the process was ended."""


class ChildOutOfMemory(ChildFailed):
    """The call needed more memory than it may take."""


class FunctionRefused(ChildFailed):
    """The function says why it did not do what it was asked for.

    Attributes:
        kind: see `FunctionRefusal.kind`.
        message: the library's own words.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


class ChildProcess:
    """Starts a process; used by one thread at a time, but for `kill`.

    Args:
        modules: what it imports before its first call.

    Attributes:
        sessions: keys of what it keeps for later calls, as it said last.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._connection, theirs = Pipe()
        _limit_waits(self._connection.fileno())
        self._segment: SharedSegment | None = None
        try:
            with suppress(OSError):  # there is no such memory: arrays travel through the connection
                self._segment = SharedSegment()
            self._process = _start(theirs.fileno(), self._segment, modules)
        except BaseException:
            self._connection.close()
            self._close_segment()
            raise
        finally:
            theirs.close()
        self._ready = self._closed = False
        self.sessions: frozenset[str] = frozenset()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._closed or self._process.poll() is not None

    def call(
        self, head: Mapping[str, Any], arrays: Sequence[Any], output_bytes: int, check: Callable[[], object]
    ) -> tuple[dict[str, Any], list[Any]]:
        """Call a function and return its head and arrays, which are the caller's own.

        If anything is raised but `ChildOutOfMemory` and `FunctionRefused`, the process has been ended.

        Args:
            head: `function`, `seconds`, `memory_bytes`, `threads`, and the function's own arguments.
            arrays: packed arrays.
            output_bytes: bytes of the arrays that come back, at most, each rounded up to 64.
            check: called many times a second while the call waits; what it raises ends the process and is raised.

        Raises:
            CannotStart: the process has not started.
            ChildEnded: the process ended.
            ChildTimedOut: it took longer than `seconds`.
            ChildOutOfMemory: it needed more than `memory_bytes`.
            FunctionRefused: the function says so.
            OSError: the system has no shared memory for the arrays.
        """
        try:
            self._await_start(check)
            return self._call(dict(head), arrays, output_bytes, check)
        except (ChildOutOfMemory, FunctionRefused):
            raise
        except BlockingIOError as error:  # it was stopped, or gets no processor: no fault of what it works on
            self.close()
            raise ChildEnded("") from error
        except (EOFError, ConnectionError, MalformedMessage) as error:
            raise self._end_of_call() from error
        except BaseException:
            self.close()
            raise

    def kill(self) -> None:
        """End the process now; whichever thread waits for an answer learns it. May be called from any thread."""
        self._process.kill()

    def close(self) -> None:
        """End the process, and free what it held."""
        if not self._closed:
            self._closed = True
            self._process.kill()
            self._process.wait()
            self._connection.close()
            self._close_segment()

    def _await_start(self, check: Callable[[], object]) -> None:
        if self._ready:
            return
        try:
            self._await(time.monotonic() + START_SECONDS, check)
            self._connection.recv_bytes(64)
        except (EOFError, ConnectionError, BlockingIOError, ChildTimedOut) as error:
            self.close()
            raise CannotStart(f"it ended with the status {self._process.returncode}") from error
        self._ready = True

    def _call(
        self, head: dict[str, Any], arrays: Sequence[Any], output_bytes: int, check: Callable[[], object]
    ) -> tuple[dict[str, Any], list[Any]]:
        segment, begin = self._segment, SharedSegment.bytes_of([array.nbytes for array in arrays])
        if segment is not None and begin + output_bytes > INLINE_BYTES:
            segment.reserve(begin + output_bytes)
        head |= {"outputs_at": begin, "output_bytes": output_bytes}
        deadline = time.monotonic() + head["seconds"]
        self._connection.send_bytes(b"".join(send_parts(head, arrays, segment)))
        self._await(deadline, check)
        answer, views = receive(self._connection.recv_bytes(_MOST_HEAD_BYTES + output_bytes), segment)
        if SharedSegment.bytes_of([view.nbytes for view in views]) > output_bytes:  # they are copied
            raise MalformedMessage("the arrays are larger than was reserved")
        found = [view.copy() for view in views]
        del views
        if answer.get("retiring"):
            self.close()
        elif segment is not None:
            segment.trim()  # after a refusal, too: its inputs may be as large
        if (kind := answer.get("refused")) is not None:
            if kind == "memory":
                raise ChildOutOfMemory
            if kind == "fault":
                raise ChildEnded(str(answer.get("error")), str(answer.get("message", "")))
            raise FunctionRefused(str(kind), str(answer.get("message", "")))
        return answer, found

    def _await(self, deadline: float, check: Callable[[], object]) -> None:
        while not self._connection.poll(CHECK_SECONDS):
            check()
            if time.monotonic() > deadline:
                raise ChildTimedOut

    def _end_of_call(self) -> ChildFailed:
        """Why a process has ended, or sent what is no answer."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        status = self._process.poll()
        self.close()
        if status == -getattr(signal, "SIGXCPU", 0):
            return ChildTimedOut()
        if status is None or status == -getattr(signal, "SIGKILL", 0):
            return ChildEnded("" if status is not None else "an answer that cannot be read")
        return ChildEnded(signal.Signals(-status).name if status < 0 else f"the exit status {status}")

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None


def _limit_waits(connection: int) -> None:
    """Let no read and no write of a socket wait for long: a process may stop in the middle of a message (socket(7))."""
    if sys.platform == "win32":
        return  # where it is no socket
    with socket.socket(fileno=os.dup(connection)) as end:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", STALL_SECONDS, 0))


def _start(connection: int, segment: SharedSegment | None, modules: Sequence[str]) -> subprocess.Popen[bytes]:
    inherited = [connection] + ([segment.descriptor] if segment is not None else [])
    shared = -1 if segment is None else segment.descriptor
    command = [sys.executable, "-P", "-m", f"{__package__}.child", str(connection), str(shared), str(os.getpid())]
    command.append(",".join(modules))
    # The server's settings, and so its secrets, are none of the child's business. Two arenas keep malloc from holding
    # memory for each thread, and it keeps 32 MiB of what a call has freed for the next one: fresh pages took half of
    # the time of a JPEG of 2 megapixels. ONNX Runtime 1.32 writes events to a database below the home and sends them to
    # its maker, unless it is told not to.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TENSORPOST_", "XDG_"))}
    environment |= {"MALLOC_ARENA_MAX": "2", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment |= {"MALLOC_TRIM_THRESHOLD_": str(_KEPT_BYTES), "MALLOC_MMAP_THRESHOLD_": str(_KEPT_BYTES)}
    environment |= {"ORT_DISABLE_TELEMETRY": "1"} | ({} if sys.platform == "win32" else {"HOME": os.devnull})
    if sys.platform == "win32":
        os.set_handle_inheritable(connection, True)
        startup = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [connection]})
        return subprocess.Popen(  # noqa: S603 # our own program
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment, startupinfo=startup
        )
    return subprocess.Popen(  # noqa: S603 # our own program
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment, pass_fds=inherited
    )
