"""`GET /metrics`: what is counted is what was sent, in texts that prometheus-client's parsers take, and a reader of
the text format that was written here from the format's page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from tests.support.http_app import NPY, Serving, assert_problem, eventually, http_app, npy_bytes, request_bytes, serving

from tensorpost_server.http.observability.metrics import BOUNDS, METRICS, RequestMetrics, SampleCollector
from tensorpost_server.http.observability.request_record import CLIENT_DISCONNECTED, RequestRecord

TILE = "/v1/operators/tile?repeats=2&backend=numpy"
CALL = {"operator": "TILE", "backend": "numpy"}
Labels = frozenset[tuple[str, str]]

_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"(?:,|$)')
_LINE = re.compile(r"([a-z_:]+)(?:\{(.*)\})? ([0-9.e+-]+|\+Inf)")


def read(text: str) -> dict[str, dict[Labels, float]]:
    """Every sample by its name and labels; asserts what the format asks for: HELP, TYPE, no line twice, order."""
    found: dict[str, dict[Labels, float]] = {}
    current = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("#"):
            _, word, current, rest = line.split(" ", 3)
            assert word in ("HELP", "TYPE")
            assert word == "HELP" or rest in ("counter", "gauge", "histogram")
            continue
        matched = _LINE.fullmatch(line)
        assert matched is not None, line
        name, labels, value = matched[1], frozenset(_LABEL.findall(matched[2] or "")), float(matched[3])
        assert name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") == current or name == current
        assert len(labels) == (matched[2] or "").count('="'), line
        assert labels not in found.setdefault(name, {}), line
        found[name][labels] = value
    return found


def at(**labels: str) -> Labels:
    return frozenset(labels.items())


def scrape(server: Serving) -> dict[str, dict[Labels, float]]:
    answer = server.ask(request_bytes("GET", "/metrics"))
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return read(answer.body.decode())


def test_requests_of_every_path_are_counted():
    small, large = npy_bytes([1, 2]), npy_bytes(np.zeros(1 << 20, "float32"))
    with serving() as server:
        scrape(server)
        with server.wire() as wire:
            for _ in range(5):  # parsed, prepared, then replayed
                wire.send(request_bytes("POST", TILE, small, NPY))
                assert wire.answer().status == 200
        streamed = server.ask(request_bytes("POST", TILE, large, NPY))
        server.ask(request_bytes("POST", "/v1/operators/tile?repeats=x", small, NPY))
        server.ask(request_bytes("POST", "/v1/operators/DML_OPERATOR_TILE?repeats=x", small, NPY))
        server.ask(request_bytes("POST", "/v1/operators/tiel", small, NPY))
        server.ask(b"this is no request\r\n\r\n")
        found = scrape(server)

    requests = found["tensorpost_requests_total"]
    assert requests[at(**CALL, status="200")] == 6
    assert requests[at(operator="TILE", backend="none", status="422")] == 2
    assert requests[at(operator="none", backend="none", status="404")] == 1
    assert requests[at(operator="none", backend="none", status="400")] == 1
    assert requests[at(operator="none", backend="none", status="200")] == 1  # the first scrape
    assert found["tensorpost_refusals_total"] == {
        at(reason="invalid-descriptor"): 2, at(reason="unknown-operator"): 1, at(reason="invalid-request"): 1,
    }  # fmt: skip
    assert found["tensorpost_received_bytes_total"][at(**CALL)] == 5 * len(small) + len(large)
    assert found["tensorpost_sent_bytes_total"][at(**CALL)] == 5 * len(npy_bytes([1] * 4)) + len(streamed.body)
    assert found["tensorpost_slices_total"][at(**CALL)] == 5 + 4  # 8 MiB in slices of 2 MiB
    assert found["tensorpost_request_seconds_count"][at(**CALL)] == 6
    for stage in ("head", "plan", "admit", "receive", "compute"):
        assert found["tensorpost_stage_seconds_count"][at(stage=stage, backend="numpy")] == 6
    assert found["tensorpost_device_up"][at(backend="numpy", device="0")] == 1
    assert found["tensorpost_ready"][at()] == 1


OPENMETRICS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
"""What Prometheus 3 sends."""

PROCESS = {
    "process_cpu_seconds", "process_max_fds", "process_open_fds", "process_resident_memory_bytes",
    "process_start_time_seconds", "process_virtual_memory_bytes",
}  # fmt: skip
"""Of prometheus-client, on Linux."""

Parse = Callable[[str], Iterable[Metric]]
FORMATS: list[tuple[str | None, str, Parse]] = [
    (None, "text/plain; version=0.0.4; charset=utf-8", text_string_to_metric_families),
    ("*/*", "text/plain; version=0.0.4; charset=utf-8", text_string_to_metric_families),
    (OPENMETRICS, "application/openmetrics-text; version=1.0.0;", openmetrics.text_string_to_metric_families),
    # No version is a number: what everybody reads, and no fault of the server.
    ("application/openmetrics-text;version=x", "text/plain; version=0.0.4;", text_string_to_metric_families),
]


@pytest.mark.parametrize(("accept", "media_type", "parse"), FORMATS, ids=["none", "any", "openmetrics", "malformed"])
def test_prometheus_reads_what_was_sent(accept: str | None, media_type: str, parse: Parse):
    small = npy_bytes([1, 2])
    with http_app() as app:
        for _ in range(3):
            assert app.post(TILE, small).status_code == 200
        app.post("/v1/operators/tile?repeats=x", small)
        answer = app.get("/metrics", headers={} if accept is None else {"accept": accept})

    assert answer.headers["content-type"].startswith(media_type)
    families = {family.name: family for family in parse(answer.text)}
    counters = {name for name, metric in METRICS.items() if metric.kind == "counter"}
    assert counters == {
        f"{name}_total" for name, family in families.items() if name not in PROCESS and family.type == "counter"
    }
    assert METRICS.keys() <= families.keys() | {f"{name}_total" for name in families}
    process = {name for name in families if name.startswith("process_")}
    assert process == PROCESS if Path("/proc/self/stat").exists() else not process
    values = {(sample.name, frozenset(sample.labels.items())): sample.value
              for family in families.values() for sample in family.samples}  # fmt: skip
    assert values["tensorpost_requests_total", at(**CALL, status="200")] == 3
    assert values["tensorpost_requests_total", at(operator="TILE", backend="none", status="422")] == 1
    assert values["tensorpost_received_bytes_total", at(**CALL)] == 3 * len(small)
    assert values["tensorpost_sent_bytes_total", at(**CALL)] == 3 * len(npy_bytes([1] * 4))
    assert values["tensorpost_request_seconds_bucket", at(**CALL, le="+Inf")] == 3
    assert values["tensorpost_request_seconds_bucket", at(**CALL, le="60.0")] == 3
    assert values["tensorpost_request_seconds_count", at(**CALL)] == 3
    assert values["tensorpost_stage_seconds_count", at(stage="compute", backend="numpy")] == 3
    assert values["tensorpost_refusals_total", at(reason="invalid-descriptor")] == 1
    assert values["tensorpost_memory_limit_bytes", at()] == app.service.admission.memory_bytes


def test_callers_that_leave_are_cancellations():
    with serving() as server:
        with server.wire() as wire:
            wire.send(request_bytes("POST", TILE, b"", {**NPY, "content-length": 1000}))
        eventually(lambda: scrape(server)["tensorpost_cancellations_total"][at()] == 1, "it is counted")
        requests = scrape(server)["tensorpost_requests_total"]

    assert sum(count for labels, count in requests.items() if ("status", "none") in labels) == 1


def test_no_caller_makes_up_a_label():
    with http_app() as app:
        for index in range(50):
            app.post(f"/v1/operators/made-up-{index}", npy_bytes([1]))
            app.post(f"/v1/operators/tile?repeats=2&backend=made-up-{index}", npy_bytes([1]))
            app.get(f"/made-up-{index}", headers={"x-request-id": f"made-up-{index}"})
        text = app.get("/metrics").text

    assert "made-up" not in text
    assert read(text)["tensorpost_requests_total"] == {
        at(operator="none", backend="none", status="404"): 100,
        at(operator="TILE", backend="none", status="400"): 50,
    }


def test_two_applications_count_apart():
    with http_app() as one, http_app() as other:
        one.post(TILE, npy_bytes([1]))

        assert at(**CALL, status="200") in read(one.get("/metrics").text)["tensorpost_requests_total"]
        assert "tensorpost_requests_total" not in read(other.get("/metrics").text)


def test_they_can_be_turned_off():
    with http_app(metrics=False) as app:
        assert app.post(TILE, npy_bytes([1])).status_code == 200
        assert_problem(app.get("/metrics"), 404, "not-found")


def request_of(seconds: float) -> RequestRecord:
    return RequestRecord(0, "", None, "POST", "/", "TILE", "numpy", 200, None, 1, 2, 1, {"head": 1.0}, seconds)


def test_samples_stay_as_they_are_while_a_thread_writes_them():
    metrics = RequestMetrics()
    metrics.observe([request_of(0.5)])
    collector = SampleCollector([*metrics.samples()])
    before = generate_latest(collector)
    metrics.observe([request_of(0.5)])

    assert generate_latest(collector) == before
    assert generate_latest(SampleCollector([*metrics.samples()])) != before


def test_a_histogram_counts_what_is_at_most_its_upper_ends():
    metrics = RequestMetrics()
    seconds = [0.0, BOUNDS[0], BOUNDS[0] * 1.001, 0.0009, 70.0]
    for took in seconds:
        metrics.observe([request_of(took)])
    found = read(generate_latest(SampleCollector([*metrics.samples()])).decode())

    buckets = {float(dict(labels)["le"]): n for labels, n in found["tensorpost_request_seconds_bucket"].items()}
    assert buckets == {upper: sum(took <= upper for took in seconds) for upper in (*BOUNDS, float("inf"))}
    assert found["tensorpost_request_seconds_sum"][at(**CALL)] == pytest.approx(sum(seconds))


def test_a_batch_counts_what_its_requests_count_one_by_one():
    usual, refused = request_of(0.5), request_of(0.001)._replace(status=429, reason="too-busy", stages={})
    other = request_of(0.25)._replace(operator="CAST", stages={"head": 2.0, "compute": 300.0}, slices=5)
    gone = usual._replace(status=None, reason=CLIENT_DISCONNECTED, stages={"head": 0.01})
    records = [usual, other, refused, usual, gone, refused, other, usual]
    one_by_one, together = RequestMetrics(), RequestMetrics()
    for record in records:
        one_by_one.observe([record])
    together.observe(records)
    found, expected = (
        read(generate_latest(SampleCollector([*each.samples()])).decode()) for each in (together, one_by_one)
    )

    assert found.keys() == expected.keys()
    for name, samples in expected.items():
        assert found[name] == pytest.approx(samples), name
    assert found["tensorpost_requests_total"][at(**CALL, status="200")] == 3
    assert found["tensorpost_refusals_total"] == {at(reason="too-busy"): 2}
    assert found["tensorpost_cancellations_total"] == {at(): 1}
    assert found["tensorpost_stage_seconds_sum"][at(stage="compute", backend="numpy")] == pytest.approx(0.6)


BACKENDS = "app/tensorpost_server/backends"
GAUGES = {"cuda": f"{BACKENDS}/cuda/backend.py", "directml": f"{BACKENDS}/directml/backend.py"}


@pytest.mark.parametrize("path", GAUGES.values(), ids=GAUGES)
def test_every_gauge_of_a_device_is_a_metric(path: str):
    text = (Path(__file__).parents[2] / path).read_text()
    _, _, body = text.partition("def gauges(self)")
    names = re.findall(r'^ +"(\w+)":', body.partition("\n    def ")[0], re.MULTILINE)

    assert len(names) >= 4
    assert {f"tensorpost_{name}" for name in names} <= METRICS.keys()


def test_devices_with_memory_of_their_own_show_it(monkeypatch: pytest.MonkeyPatch):
    gauges: Mapping[str, Any] = {"device_memory_bytes": 7, "not_in_the_table": 8}
    with http_app() as app:
        assert app.service.pool is not None
        backend = app.service.pool.workers["numpy"].backend
        monkeypatch.setattr(type(backend), "gauges", lambda _: gauges)
        found = read(app.get("/metrics").text)

    assert found["tensorpost_device_memory_bytes"][at(backend="numpy", device="0")] == 7
    assert not [name for name in found if "not_in" in name]
