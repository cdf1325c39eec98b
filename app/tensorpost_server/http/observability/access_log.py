"""The access log: one line for each request that has ended, as JSON or for people.

`logging` with a line per request would take as long as a small operator, most of it for the system call; so a thread
writes many lines at a time. A reader that does not read cannot stop the server: lines are then dropped and counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

from .batch_thread import BatchThread
from .request_record import RequestRecord

__all__ = ["AccessLog", "console_line", "json_line", "printable"]

_LONGEST_TEXT = 200


@lru_cache(4096)
def printable(text: str) -> str:
    r"""A text from a caller in printable ASCII without spaces, of which at most 200 characters.

    Spaces, line ends, escape sequences of terminals and what is not ASCII are written as in a Python string: `\x20`.
    """
    cut = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."
    return cut.encode("unicode_escape").decode("ascii").replace(" ", "\\x20")


def json_line(record: RequestRecord) -> str:
    """A record as a JSON object in one line."""
    stages = ",".join([f'"{name}":{took:.3f}' for name, took in record.stages.items()])
    return (
        f'{{"time":"{_time(record.ended)}","event":"request","id":"{record.id}","caller":{_quoted(record.caller)},'
        f'"method":{_quoted(record.method)},"path":{_quoted(record.path)},"operator":{_quoted(record.operator)},'
        f'"backend":{_quoted(record.backend)},"status":{record.status or "null"},"reason":{_quoted(record.reason)},'
        f'"bytes_in":{record.received_bytes},"bytes_out":{record.sent_bytes},"ms":{record.seconds * 1e3:.3f},'
        f'"stages_ms":{{{stages}}}}}\n'
    )


def console_line(record: RequestRecord) -> str:
    """A record as a line for people: what is not there is left out."""
    parts = [_time(record.ended), str(record.status or "---"), printable(record.method), printable(record.path)]
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
    """Writes the lines of requests that have ended.

    Args:
        line: how a record is written.
        write: writes lines; called on a thread, where it may block.
    """

    def __init__(self, line: Callable[[RequestRecord], str], write: Callable[[str], object]) -> None:
        self._line = line
        self._thread = BatchThread[str]("tensorpost-access-log", lambda lines: write("".join(lines)))

    @property
    def dropped(self) -> int:
        """Lines that were lost because too many waited, or nobody reads."""
        return self._thread.dropped

    def observe(self, records: Sequence[RequestRecord]) -> None:
        """Write the lines of these requests, soon."""
        if self._thread.full:  # and no line is made for nothing
            self._thread.dropped += len(records)
        else:
            self._thread.put([self._line(record) for record in records])

    def close(self, patience: float = 2.0) -> None:
        """Write the lines that wait; take at most `patience` seconds."""
        self._thread.close(patience)
