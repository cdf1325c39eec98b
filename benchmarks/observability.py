"""What it costs that a small request is allowed, counted and logged; and what libraries would take for the same."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import prometheus_client
import structlog
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from tensorpost.descriptors import OPERATORS
from tensorpost_server import commands
from tensorpost_server.http.observability.access_log import console_line, json_line, printable
from tensorpost_server.http.observability.metrics import BOUNDS, RequestMetrics, SampleCollector
from tensorpost_server.http.observability.request_record import RequestRecord

from . import load, servers
from .bench import Bench
from .report import Cell, Figure, Table, Target
from .small import CONNECTIONS, our_request
from .soak.finding import processor_seconds
from .timing import in_turn

KEPT = Target("small Tile with keys, access log and metrics, share of the rate without them", 0.85)
RECORD = RequestRecord(
    1_700_000_000.25, "0123456789abcdef0123456789abcdef", "anna", "POST", "/v1/operators/tile", "TILE", "numba", 200,
    None, 896, 3200, 1, {"head": 0.011, "plan": 0.002, "admit": 0.001, "receive": 0.001, "compute": 0.008}, 3.9e-5,
)  # fmt: skip
BATCH = [RECORD] * 200


def measure(bench: Bench) -> Iterator[Table]:
    """The rate with all of it beside that with none; then one record beside libraries, and a scrape."""
    bench.note(
        f"HTTP load is made by {load.generator()}: a Tile of 768 bytes, replayed, asked of two servers in turn. One "
        "has an API key, writes the access log as JSON to a file, and is asked for its metrics every second; the other "
        "one has no keys, no access log and no metrics."
    )
    bench.note("Figures are lower quartiles of several runs, those of the first table of a second each.")
    bench.note("CPU: processor time of the server for a request, its threads and the system's calls included.")
    columns = (
        "connections", "without, req/s", "with, req/s", "with / without", "without, CPU us", "with, CPU us",
        "without, p99 us", "with, p99 us",
    )  # fmt: skip
    yield Table("With keys, access log and metrics", columns, tuple(_rates(bench)))
    yield Table("Recording one request", ("what", "by", "us", "times ours"), tuple(_records()))
    yield Table("Reading the metrics of every operator of DirectML", ("step", "thread", "ms"), tuple(_scrape()))


def _rates(bench: Bench) -> Iterator[tuple[Cell, ...]]:
    """A row for each number of connections."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "keys.jsonl")
        allowed = {"authorization": f"Bearer {commands.add_key(keys, 'bench', scopes=('run', 'admin'))}"}
        plain = our_request()
        keyed = replace(plain, headers={**plain.headers, **allowed})
        with (
            servers.tensorpost(access_log="off", metrics=0) as bare,
            servers.tensorpost(log_level="info", access_log="json", keys_file=keys) as whole,
            _scraped(whole.port, allowed),
        ):
            asked = {"without": (bare, plain), "with": (whole, keyed)}
            for connections in CONNECTIONS:
                bench.doing(f"observability: {connections} connections")
                # Of each run: seconds, processor seconds and p99 of a request.
                runs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in asked}
                for number in range(2 if bench.quick else 12):
                    for name in sorted(asked, reverse=number % 2 == 1):
                        server, request = asked[name]
                        before = processor_seconds(server.process)
                        made = load.put(server.port, request, connections, 1)
                        used = processor_seconds(server.process) - before
                        runs[name].append((1 / made.rate, used / made.rate, made.p99))
                found = {name: np.quantile(numbers, 0.25, axis=0) for name, numbers in runs.items()}
                seconds, used, p99 = ([float(found[name][index]) for name in asked] for index in range(3))
                yield (
                    Figure(connections, 0),
                    *(Figure(1 / value, 0) for value in seconds),
                    Figure(seconds[0] / seconds[1], target=KEPT),
                    *(Figure(value * 1e6, 1) for value in used),
                    *(Figure(value * 1e6, 0) for value in p99),
                )


@contextlib.contextmanager
def _scraped(port: int, headers: Mapping[str, str]) -> Iterator[None]:
    """Read the metrics every second, as Prometheus may.

    Raises:
        RuntimeError: an answer was something else.
    """
    ended, faults = threading.Event(), list[str]()

    def scrape() -> None:
        while not ended.wait(1):
            connection = HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/metrics", headers=dict(headers))
            answer = connection.getresponse()
            if b"tensorpost_ready 1.0" not in answer.read():
                faults.append(f"GET /metrics is answered with {answer.status}")
            connection.close()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if faults:
        raise RuntimeError(faults[0])


def _records() -> Iterator[tuple[Cell, ...]]:
    """Counting a request, and its line."""
    as_json, for_people = structlog.processors.JSONRenderer(), structlog.dev.ConsoleRenderer(colors=False)
    ways: dict[str, dict[str, Callable[[], object]]] = {
        "count": {
            "tensorpost": partial(RequestMetrics().observe, BATCH),
            "prometheus-client": partial(_count_by_library(), BATCH),
        },
        "line as JSON": {"tensorpost": _lines(json_line), "structlog": _lines(_structlog(as_json))},
        "line for people": {"tensorpost": _lines(console_line), "structlog": _lines(_structlog(for_people))},
    }
    for what, calls in ways.items():
        took = {name: times.quartile / len(BATCH) for name, times in in_turn(calls, least=40, warm_up=3).items()}
        for name, seconds in took.items():
            yield what, name, Figure(seconds * 1e6), Figure(seconds / took["tensorpost"])


def _lines(write: Callable[[RequestRecord], object]) -> Callable[[], object]:
    return lambda: [write(record) for record in BATCH]


def _structlog(render: structlog.typing.Processor) -> Callable[[RequestRecord], object]:
    """A line with the same members by structlog, with as few processors as it can have; `render` makes it a text."""

    class Nowhere:
        def info(self, message: str) -> None:
            """Lose the line."""

    times = structlog.processors.TimeStamper(fmt="iso", key="time")
    logger = structlog.make_filtering_bound_logger("info")
    info = structlog.wrap_logger(Nowhere(), [times, render], logger, cache_logger_on_first_use=True).bind().info
    return lambda record: info(
        "request", id=record.id, caller=record.caller and printable(record.caller), method=printable(record.method),
        path=printable(record.path), operator=record.operator, backend=record.backend, status=record.status,
        reason=record.reason, bytes_in=record.received_bytes, bytes_out=record.sent_bytes,
        ms=round(record.seconds * 1e3, 3), stages_ms=record.stages,
    )  # fmt: skip


def _count_by_library() -> Callable[[Sequence[RequestRecord]], None]:
    """The same counts in prometheus-client's own metrics, whose children are kept, so that no label is looked up."""
    registry, call = prometheus_client.CollectorRegistry(), ("operator", "backend")
    requests = prometheus_client.Counter("requests", "", (*call, "status"), registry=registry)
    totals = [prometheus_client.Counter(name, "", call, registry=registry) for name in ("received", "sent", "slices")]
    took = prometheus_client.Histogram("took", "", call, buckets=BOUNDS, registry=registry)
    stages = prometheus_client.Histogram("stages", "", ("stage", "backend"), buckets=BOUNDS, registry=registry)
    children: dict[tuple[str | None, str | None, int | None], Any] = {}

    def count(records: Sequence[RequestRecord]) -> None:
        for record in records:
            key = record.operator, record.backend, record.status
            if key not in children:
                labels = record.operator or "none", record.backend or "none"
                by_call = [family.labels(*labels) for family in (*totals, took)]
                by_stage = {stage: stages.labels(stage, labels[1]) for stage in record.stages}
                children[key] = (requests.labels(*labels, str(record.status)), *by_call, by_stage)
            ended, received, sent, slices, seconds, by_stage = children[key]
            ended.inc()
            received.inc(record.received_bytes)
            sent.inc(record.sent_bytes)
            slices.inc(record.slices)
            seconds.observe(record.seconds)
            for stage, milliseconds in record.stages.items():
                by_stage[stage].observe(milliseconds / 1e3)

    return count


def _scrape() -> Iterator[tuple[Cell, ...]]:
    """What one scrape takes."""
    metrics = RequestMetrics()
    metrics.observe([RECORD._replace(operator=operator.operator_type) for operator in OPERATORS])
    collector = SampleCollector([*metrics.samples()])
    calls: dict[str, Callable[[], object]] = {
        "copy what was counted": lambda: [*metrics.samples()],
        "write it as text": partial(prometheus_client.generate_latest, collector),
        "write it as OpenMetrics": partial(openmetrics, collector),
    }
    took = in_turn(calls, least=10)
    for name, thread in zip(calls, ("event loop", "one of its own", "one of its own"), strict=True):
        yield name, thread, Figure(took[name].quartile * 1e3)
