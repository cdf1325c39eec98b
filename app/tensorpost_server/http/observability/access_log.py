"""The access log: one line for each request that has ended, as JSON or for people.

`logging` with a line per request would take as long as a small operator, most of it for the system call; so a thread
writes many lines at a time. A reader that does not read cannot stop the server: lines are then dropped and counted.
"""

from __future__ import annotations

import codecs
import json
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

from ...engine import GraphRecord
from ..headers import SECRET
from .batch_thread import BatchThread
from .request_record import RequestRecord

_LONGEST_TEXT = 200
_MOST_READ = _LONGEST_TEXT + 46  # to the end of a key that begins in the text

codecs.lookup("unicode_escape")  # Python reads its file at the first use, where perhaps no descriptor is free


def printable(text: str) -> str:
    r"""A text from a caller in printable ASCII without spaces, of which at most 200 characters.

    Spaces, line ends, escape sequences of terminals and what is not ASCII are written as in a Python string: `\x20`.
    `***` stands for what looks like an API key or a token.
    """
    return _printable(text[:_MOST_READ])


@lru_cache(4096)
def _printable(text: str) -> str:
    masked = SECRET.sub("***", text)
    cut = masked if len(text) <= _LONGEST_TEXT else masked[:_LONGEST_TEXT] + "..."
    return cut.encode("unicode_escape").decode("ascii").replace(" ", "\\x20")


def json_line(record: RequestRecord) -> str:
    """A record as a JSON object in one line."""
    (
        ended, id_, caller, method, path, operator, backend, status, reason, received, sent, _, stages, seconds, _,
        version, graph, _, _, timing,
    ) = record  # fmt: skip
    known = _members(caller, method, path[:_MOST_READ], operator, version, backend, status, reason)
    if timing is None:
        took = _stages_format(tuple(stages)) % tuple(stages.values())
    else:  # writing the numbers again would take half of the line's time
        took = '"' + timing.replace(";dur=", '":').replace(", ", ',"')
    in_graph = "" if graph is None else "".join([f',"{name}":{json.dumps(each)}' for name, each in _of_graph(graph)])
    return (
        f'{{"time":"{timestamp(ended)}","event":"request","id":"{id_}",{known}{in_graph},"bytes_in":{received},'
        f'"bytes_out":{sent},"ms":{seconds * 1e3:.3f},"stages_ms":{{{took}}}}}\n'
    )


@lru_cache(4096)
def _members(
    caller: str | None, method: str, path: str, operator: str | None, opset_version: int | None, backend: str | None,
    status: int | None, reason: str | None,
) -> str:  # fmt: skip
    """The members that are the same in most lines: a line takes two thirds of the time with them in one cache."""
    texts = {"caller": caller, "method": method, "path": path, "operator": operator, "backend": backend}
    members = {name: None if text is None else printable(text) for name, text in texts.items()}
    others = {"opset_version": opset_version, "status": status, "reason": reason}
    return json.dumps({**members, **others}, separators=(",", ":"))[1:-1]


def _of_graph(graph: GraphRecord) -> list[tuple[str, str | int | float]]:
    """The members that only graphs have."""
    found: list[tuple[str, str | int | float]] = [("nodes", graph.nodes)]
    if graph.slowest is not None:
        found.append(("slowest_node", printable(graph.slowest.node)))
        found.append(("slowest_node_ms", round(graph.slowest.phase.busy / 1e6, 3)))
    return found


@lru_cache(64)
def _stages_format(names: tuple[str, ...]) -> str:
    return ",".join([f'"{name}":%.3f' for name in names])


def console_line(record: RequestRecord) -> str:
    """A record as a line for people: what is not there is left out."""
    parts = [timestamp(record.ended), str(record.status or "---"), printable(record.method), printable(record.path)]
    for name, value in (
        ("operator", record.operator),
        ("opset_version", None if record.opset_version is None else str(record.opset_version)),
        ("backend", record.backend),
        ("caller", record.caller),
        ("reason", record.reason),
    ):
        if value is not None:
            parts.append(f"{name}={printable(value)}")
    if record.graph is not None:
        parts += [f"{name}={value}" for name, value in _of_graph(record.graph)]
    parts.append(f"in={record.received_bytes} out={record.sent_bytes} ms={record.seconds * 1e3:.3f}")
    parts += [f"{name}={took:.3f}" for name, took in record.stages.items()]
    return " ".join([*parts, f"id={record.id}\n"])


def timestamp(moment: float) -> str:
    """UTC with milliseconds, as RFC 3339 writes it."""
    return _time(int(moment * 1e3))


@lru_cache(4)
def _time(milliseconds: int) -> str:
    """UTC as RFC 3339 writes it."""
    second, rest = divmod(milliseconds, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}.{rest:03d}Z"


class AccessLog:
    """Writes the lines of requests that have ended."""

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
