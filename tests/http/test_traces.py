"""Traces: a span for each request and the phases below it, by OpenTelemetry's own SDK and over OTLP."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode
from tests.support.http_app import (
    JSON,
    NPY,
    Serving,
    eventually,
    http_app,
    npy_array,
    npy_bytes,
    request_bytes,
    serving,
)
from tests.support.live_server import live_server
from tests.support.request_records import Records
from tests.support.spans import SpanMemory, attributes, begin_and_end, ids_of

from tensorpost import Client
from tensorpost.values.problems import InvalidParameter
from tensorpost_server.http.observability.traces import Traces

ONE = np.array([1, 2], "float32")
TILE = "/v1/operators/tile?repeats=2"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextmanager
def traced(memory: SpanMemory) -> Iterator[Serving]:
    with serving() as server:
        server.service.observe_by(None, Traces(memory.provider, ours=False))
        yield server


def test_a_large_call_has_a_span_for_each_stage_and_phase_of_its_run():
    memory = SpanMemory()
    body = npy_bytes(np.zeros(3 << 20, "float32"))
    with traced(memory) as server:
        answer = server.ask(request_bytes("POST", TILE, body, {**NPY, "traceparent": PARENT}))
        eventually(lambda: bool(memory.roots()), "the request has ended")
    assert answer.status == 200
    (root,) = memory.roots()

    assert root.name == "POST /v1/operators/{operator}"
    assert root.kind is SpanKind.SERVER
    assert root.parent is not None
    assert (f"{root.parent.trace_id:032x}", f"{root.parent.span_id:016x}") == (PARENT[3:35], PARENT[36:52])
    assert f"{ids_of(root)[0]:032x}" == PARENT[3:35]
    found = attributes(root)
    assert found["tensorpost.request_id"] == answer.headers["x-request-id"]
    assert found["http.route"] == "/v1/operators/{operator}"
    assert found["url.path"] == "/v1/operators/tile"
    assert (found["http.response.status_code"], found["tensorpost.operator"]) == (200, "TILE")
    assert (found["http.request.body.size"], found["http.response.body.size"]) == (len(body), len(answer.body))

    children = memory.below(root)
    assert list(children) == ["head", "plan", "admit", "receive", "queue", "kernel", "send"]
    assert attributes(children["kernel"])["tensorpost.parts"] == found["tensorpost.slices"]
    for child in children.values():
        (first, last), (begin, end) = begin_and_end(root), begin_and_end(child)
        assert first <= begin <= end <= last
    assert begin_and_end(children["queue"])[1] <= begin_and_end(children["kernel"])[0]


def test_replayed_calls_have_spans_and_calls_with_a_context_are_not_replayed():
    memory = SpanMemory()
    call = request_bytes("POST", TILE, npy_bytes([1, 2]), NPY)
    others = _shared_replays()  # of servers before this one
    with traced(memory) as server:
        with server.wire() as wire:
            for _ in range(4):
                wire.send(call)
                np.testing.assert_array_equal(npy_array(wire.answer().body), [1, 2, 1, 2])
            for number in range(3):
                parent = PARENT.replace("b7ad6b7169203331", f"b7ad6b716920333{number}")
                wire.send(request_bytes("POST", TILE, npy_bytes([1, 2]), {**NPY, "traceparent": parent}))
                wire.answer()
        (shared,) = [share for share in _shared_replays() if share and not any(share is other for other in others)]
        eventually(lambda: len(memory.roots()) == 7, "every request has ended")
    assert len(shared) == 1  # nothing was kept for heads that never come again
    own, theirs = memory.roots()[:4], memory.roots()[4:]
    assert len({ids_of(root)[0] for root in own}) == 4
    assert {ids_of(root)[0] for root in theirs} == {int(PARENT[3:35], 16)}
    assert [root.parent.span_id & 15 for root in theirs if root.parent is not None] == [0, 1, 2]
    for root in own[2:]:  # replayed
        assert list(memory.below(root)) == ["head", "plan", "admit", "receive", "kernel"]
        assert attributes(root)["tensorpost.operator"] == "TILE"


def _shared_replays() -> list[Any]:
    from tensorpost_server.http.connection import shared_state

    return [share.replays for share in shared_state._SHARED.values()]


def test_refused_requests_and_faults_have_spans():
    memory = SpanMemory()
    with traced(memory) as server:
        server.ask(request_bytes("POST", "/v1/operators/tile?repeats=x", npy_bytes([1]), NPY))
        server.ask(request_bytes("POST", f"/v1/operators/{'x' * 500}", npy_bytes([1]), NPY))
        server.ask(request_bytes("BREW", "/pot"))
        server.ask(b"this is no request\r\n\r\n")
        server.service.draining = True
        server.ask(request_bytes("GET", "/v2/health/ready"))
        eventually(lambda: len(memory.roots()) == 5, "every request has ended")
    refused, unknown, brewed, malformed, unready = memory.roots()

    assert attributes(refused)["error.type"] == "invalid-descriptor"
    assert refused.status.status_code is StatusCode.UNSET  # the caller's mistake (conventions, "Status")
    assert len(str(attributes(unknown)["url.path"])) < 220
    assert (unknown.name, unknown.parent) == ("POST", None)
    assert (brewed.name, attributes(brewed)["http.request.method"]) == ("HTTP", "_OTHER")
    assert attributes(malformed)["http.response.status_code"] == 400
    assert unready.status.status_code is StatusCode.ERROR


def test_a_context_that_is_none_begins_a_trace():
    memory = SpanMemory()
    with traced(memory) as server:
        for context in ("rubbish", f"{PARENT}, {PARENT}", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "\xff"):
            server.ask(request_bytes("GET", "/v1/limits", headers={"traceparent": context}))
        eventually(lambda: len(memory.roots()) == 4, "every request has ended")
    assert [root.parent for root in memory.roots()] == [None] * 4


def test_the_samplers_word_counts():
    memory = SpanMemory(ParentBased(ALWAYS_OFF))
    with traced(memory) as server:
        for context in ({}, {"traceparent": PARENT[:-1] + "0"}, {"traceparent": PARENT}):
            server.ask(request_bytes("POST", TILE, npy_bytes([1]), {**NPY, **context}))
        eventually(lambda: bool(memory.roots()), "every request has ended")
    assert len(memory.roots()) == 1


def test_json_and_small_first_calls_run_on_a_thread():
    memory = SpanMemory()
    with http_app() as app:
        app.service.observe_by(None, Traces(memory.provider, ours=False))
        document = {
            "tensors": {"input": {"dtype": "float32", "shape": [2], "data": [1, 2]}},
        }
        answer = app.post("/v1/operators/tile?repeats=2", npy_bytes([1, 2]))
        json = app.request("POST", TILE, json=document, headers=JSON)
        app.service.observe_by(None)
    assert answer.status_code == 200
    assert json.status_code == 200, json.text
    for root in memory.roots():
        assert {"queue", "kernel"} <= set(memory.below(root))


def test_off_nothing_is_kept_of_a_request():
    with http_app() as app:
        app.service.records = records = Records()
        app.post(TILE, npy_bytes([1, 2]), headers={**NPY, "traceparent": PARENT})
    assert [record.trace for record in records.found] == [None]


# ---- OTLP ------------------------------------------------------------------------------------------------------------


class Collector(http.server.ThreadingHTTPServer):
    """As much of an OpenTelemetry collector as receives OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _CollectorHandler)
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: set[str] = set()

    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _CollectorHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        collector = self.server
        assert isinstance(collector, Collector)
        body = self.rfile.read(int(self.headers["content-length"]))
        collector.requests.append(ExportTraceServiceRequest.FromString(body))
        collector.paths.add(self.path)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the name in its base
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def test_a_server_exports_to_a_collector_and_the_rest_when_it_stops(collector: Collector):
    endpoint = f"http://127.0.0.1:{collector.server_address[1]}"
    environment = {
        "TENSORPOST_TRACES": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "600000",
    }
    with live_server(**environment) as url, Client(url) as tp:
        y = tp.tile(ONE, (2,))
        np.testing.assert_array_equal(y, [1, 2, 1, 2])
        assert not collector.requests
    spans = collector.spans()

    assert collector.paths == {"/v1/traces"}
    (root,) = [span for span in spans if span.name == "POST /v1/operators/{operator}"]
    below = [span.name for span in spans if span.parent_span_id == root.span_id]
    assert below[:4] == ["head", "plan", "admit", "receive"]
    assert "kernel" in below
    named = {each.key: each.value.string_value for each in collector.requests[0].resource_spans[0].resource.attributes}
    assert named["service.name"] == "tensorpost"


def test_nobody_to_export_to_costs_no_request():
    environment = {
        "TENSORPOST_TRACES": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
    }
    with live_server(**environment) as url, Client(url) as tp:
        assert tp.tile(ONE, (2,)).tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]
)
def test_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str, value: str):
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidParameter, match=variable):
        Traces.open()


def test_without_the_packages_the_start_says_what_to_install():
    code = "import sys; sys.modules['opentelemetry.sdk'] = None; "
    code += "from tensorpost_server.commands import serve; serve(port=0)"
    environment = {**os.environ, "TENSORPOST_TRACES": "1"}
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode != 0
    assert "pip install '.[otel]' in a clone" in ran.stderr
