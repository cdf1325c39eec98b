"""The access log: one line for each request that has ended, as JSON or for people.

`logging` with a line per request would take as long as a small operator, most of it for the system call; so lines are
collected, and a thread writes them some times a second. A reader that does not read cannot stop the server: lines are
then dropped and counted.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import Callable
from functools import lru_cache

from .request_record import RequestRecord

__all__ = ["AccessLog", "console_line", "json_line", "printable"]

FLUSH_SECONDS = 0.1
MOST_LINES = 20_000
"""Lines that wait to be written; about 6 MB."""
_LONGEST_TEXT = 200


@lru_cache(4096)
def printable(text: str) -> str:
    r"""A text from a caller in printable ASCII without spaces, of which at most 200 characters.

    Spaces, line ends, escape sequences of terminals and what is no ASCII are written as in a Python string: `\x20`.
    """
    cut = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."
    return cut.encode("unicode_escape").decode("ascii").replace(" ", "\\x20")


def json_line(moment: float, record: RequestRecord) -> str:
    """A record as a JSON object in one line.

    Args:
        moment: seconds since 1970, when the request ended.
        record: of the request.
    """
    stages = ",".join([f'"{name}":{took:.3f}' for name, took in record.stages.items()])
    return (
        f'{{"time":"{_time(moment)}","event":"request","id":"{record.id}","caller":{_quoted(record.caller)},'
        f'"method":{_quoted(record.method)},"path":{_quoted(record.path)},"operator":{_quoted(record.operator)},'
        f'"backend":{_quoted(record.backend)},"status":{record.status or "null"},"reason":{_quoted(record.reason)},'
        f'"bytes_in":{record.received_bytes},"bytes_out":{record.sent_bytes},"ms":{record.seconds * 1e3:.3f},'
        f'"stages_ms":{{{stages}}}}}\n'
    )


def console_line(moment: float, record: RequestRecord) -> str:
    """A record as a line for people: what is not there is left out."""
    parts = [_time(moment), str(record.status or "---"), printable(record.method), printable(record.path)]
    for name, value in (
        ("operator", record.operator),
        ("backend", record.backend),
        ("caller", record.caller),
        ("reason", record.reason),
    ):
        if value is not None:
            parts.append(f"{name}={printable(value)}")
    parts.append(f"in={record.received_bytes} out={record.sent_bytes} ms={record.seconds * 1e3:.3f}")
    parts += [f"{name}={took:.3f}" for name, took in record.stages.items()]
    return " ".join([*parts, f"id={record.id}\n"])


@lru_cache(4096)
def _quoted(text: str | None) -> str:
    """A text as JSON; None as null."""
    return "null" if text is None else json.dumps(printable(text))


def _time(moment: float) -> str:
    """UTC with milliseconds, as RFC 3339 writes it."""
    return f"{_second(int(moment))}.{int(moment % 1 * 1e3):03d}Z"


@lru_cache(4)
def _second(moment: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))


class AccessLog:
    """Collects lines on the event loop's thread and writes them on another.

    Args:
        line: how a record is written.
        write: writes lines; may block.

    Attributes:
        dropped: lines that were lost because too many waited.
    """

    def __init__(self, line: Callable[[float, RequestRecord], str], write: Callable[[str], object]) -> None:
        self._line, self._write = line, write
        self._lines: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._batches: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._written = threading.Event()
        self._written.set()
        self._thread = threading.Thread(target=self._write_batches, name="tensorpost-access-log", daemon=True)
        self._thread.start()
        self.dropped = 0

    def observe(self, record: RequestRecord) -> None:
        """Add the line of a request that has ended."""
        if len(self._lines) >= MOST_LINES:
            self.dropped += 1
            return
        self._lines.append(self._line(time.time(), record))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    def close(self, patience: float = 2.0) -> None:
        """Write what waits, for at most so many seconds."""
        if self._timer is not None:
            self._timer.cancel()
        if self._lines and self._written.wait(patience):
            self._hand_over()
        self._batches.put(None)
        self._thread.join(patience)

    def _flush(self) -> None:
        self._timer = None
        if self._written.is_set():
            self._hand_over()
        else:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    def _hand_over(self) -> None:
        lines, self._lines = self._lines, []
        self._written.clear()
        self._batches.put("".join(lines))

    def _write_batches(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._write(batch)
            except (OSError, ValueError):  # the reader is gone, or standard error is closed: nobody can be told
                self.dropped += batch.count("\n")
            finally:
                self._written.set()
