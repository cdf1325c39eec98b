"""The SDK's spans: one for each call of a program that has set a tracer provider, and its context sent on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from tests.support.http_app import Serving, eventually, serving
from tests.support.spans import SpanMemory, attributes, ids_of

from tensorpost import AsyncClient, Client
from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost.values.problems import ConnectFailed, NoBackend, TooBusy
from tensorpost_server.http.observability.traces import Traces

ONE = np.array([1, 2], "float32")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> SpanMemory:
    """What a program's own provider got; `set_tracer_provider` works once in a process."""
    found = SpanMemory()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: found.provider)
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as found:
        yield found


def test_a_call_is_one_trace_from_the_program_to_the_kernel(memory: SpanMemory, server: Serving):
    server.service.observe_by(None, Traces(memory.provider, ours=False))
    try:
        with memory.provider.get_tracer("program").start_as_current_span("program"), Client(server.url) as tp:
            assert tp.tile(ONE, (2,)).tolist() == [1, 2, 1, 2]
            eventually(lambda: any(span.kind is SpanKind.SERVER for span in memory.spans), "the server's span ends")
    finally:
        server.service.observe_by(None)
    (program,) = memory.roots()
    (call,) = memory.below(program).values()
    (request,) = memory.below(call).values()

    assert (call.name, call.kind) == ("POST /v1/operators/tile", SpanKind.CLIENT)
    assert attributes(call)["http.response.status_code"] == 200
    assert attributes(call)["url.full"] == f"{server.url}/v1/operators/tile"
    assert "kernel" in memory.below(request)
    assert len({ids_of(span)[0] for span in memory.spans}) == 1


def test_asyncio_and_streams(memory: SpanMemory, server: Serving):
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2,)), (2,))

    async def calls() -> None:
        async with AsyncClient(server.url) as tp:
            await tp.tile(ONE, (2,))
            await tp.devices()

    asyncio.run(calls())
    with Client(server.url) as tp:
        blocks = tp.stream(desc, ONE, block_bytes=4)
        next(blocks)
        assert len(memory.spans) == 2  # a stream's span ends with it
        blocks.close()
    tile, devices = "POST /v1/operators/tile", "GET /v1/devices"
    assert [span.name for span in memory.spans] == [tile, devices, tile]
    assert [span.status.status_code for span in memory.spans] == [StatusCode.UNSET] * 3


def test_refusals_and_networks_that_fail(memory: SpanMemory, server: Serving):
    with Client(server.url) as tp, pytest.raises(NoBackend):
        tp.tile(ONE, (2,), backend="null", device=7)
    with Client("http://127.0.0.1:9", retries=1) as tp, pytest.raises(ConnectFailed):
        tp.tile(ONE, (2,))
    refused, failed = memory.spans

    assert attributes(refused)["http.response.status_code"] == 501
    assert attributes(refused)["error.type"] == NoBackend.code
    assert attributes(failed)["error.type"] == ConnectFailed.code
    assert "http.response.status_code" not in attributes(failed)
    assert [event.name for event in failed.events] == ["retry"]
    assert failed.status.status_code is StatusCode.ERROR


def test_repetitions_are_one_span_and_one_context(memory: SpanMemory, server: Serving):
    server.service.admission.max_requests, before = 0, server.service.admission.max_requests
    try:
        with Client(server.url, retries=2) as tp, pytest.raises(TooBusy):
            tp.tile(ONE, (2,))
    finally:
        server.service.admission.max_requests = before
    (call,) = memory.spans
    assert [dict(event.attributes or {})["http.request.resend_count"] for event in call.events] == [1, 2]


def test_a_context_of_the_callers_own_is_left_alone(memory: SpanMemory, server: Serving):
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with Client(server.url, headers={"traceparent": own}) as tp:
        tp.tile(ONE, (2,))
    assert memory.spans == []


def test_a_program_without_a_provider_has_no_spans_and_loads_nothing(server: Serving):
    code = f"""
import sys
from tensorpost import Client
with Client({server.url!r}) as tp:
    assert tp.ready()
    assert not [name for name in sys.modules if name.startswith("opentelemetry")]
    import opentelemetry.trace
    from tensorpost.transport import tracing as _tracing
    _tracing.CallSpan = None
    assert tp.ready()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
