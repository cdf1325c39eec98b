"""OpenTelemetry traces: spans of requests that have ended, made of their records on a thread of its own.

A request that is traced keeps a few times; one that is not keeps nothing. So the small calls that are answered before
ASGI are traced as all others, and no span is made on the event loop's thread.

Sources: OpenTelemetry's semantic conventions for HTTP spans (1.44), for the names of spans and attributes; W3C Trace
Context, for what callers send.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorpost.values.extras import install_command
from tensorpost.values.problems import InvalidParameter

from ...backends.timeline import Phase
from ...settings import setting_variable
from .access_log import printable
from .batch_thread import BatchThread
from .request_record import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer, TracerProvider

_ROUTES = ("/v1/operators", "/v1/onnx")
_OF_SEVERAL = ("/v1/graphs", "/v1/onnx")  # graphs and models
_ONLY = {
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
}
"""OpenTelemetry's variables that have one value here, if they are set."""


class SpanTimes(NamedTuple):
    """A span below a request's."""

    name: str
    begin: int
    end: int
    attributes: Mapping[str, str | int | float]


class Traces:
    """Makes spans of requests that have ended."""

    def __init__(self, provider: TracerProvider, *, ours: bool) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api, self._extract = trace, TraceContextTextMapPropagator().extract
        self._provider: Any = provider
        self._ours = ours
        self._tracer: Tracer = provider.get_tracer("tensorpost", version("tensorpost"))
        self._thread = BatchThread[RequestRecord]("tensorpost-traces", self._make_spans)

    @classmethod
    def open(cls) -> Traces:
        """Traces to the process's provider, if its program has set one; else to one of their own, that exports by OTLP.

        Raises:
            InvalidParameter: the packages are not installed, or a variable of OpenTelemetry asks for another protocol.
        """
        try:
            from opentelemetry import trace

            provider = trace.get_tracer_provider()
            if not isinstance(provider, trace.ProxyTracerProvider):
                return cls(provider, ours=False)
            for name, only in _ONLY.items():
                if (value := os.environ.get(name, only)) != only:
                    raise InvalidParameter(f"{name} is {value[:80]!r}; traces are sent by {only} only")
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ModuleNotFoundError as error:
            raise InvalidParameter(
                f"{setting_variable('traces')} is on and {error.name} is not installed: {install_command('otel')}"
            ) from None
        named = {"service.version": version("tensorpost")}
        if "OTEL_SERVICE_NAME" not in os.environ and "service.name" not in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        ):
            named["service.name"] = "tensorpost"
        provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider, ours=True)

    @property
    def dropped(self) -> int:
        """Requests whose spans were lost because too many waited."""
        return self._thread.dropped

    def observe(self, records: Sequence[RequestRecord]) -> None:
        """Make spans of these requests, soon."""
        self._thread.put(records)

    def close(self) -> None:
        """Make the spans of what waits, and export them, if the provider is ours."""
        self._thread.close()
        if self._ours:
            self._provider.shutdown()

    def _make_spans(self, records: Sequence[RequestRecord]) -> None:
        for record in records:
            self._make_span(record)

    def _make_span(self, record: RequestRecord) -> None:
        api = self._api
        end = round(record.ended * 1e9)
        parent: Context | None = self._extract(record.trace.context) if record.trace is not None else None
        route = _route(record)
        span = self._tracer.start_span(
            f"{_method(record.method)} {route}" if route else _method(record.method),
            parent, api.SpanKind.SERVER, _attributes(record, route), start_time=end - round(record.seconds * 1e9),
        )  # fmt: skip
        if span.is_recording():
            within = api.set_span_in_context(span)
            for child in child_spans(record):
                child_span = self._tracer.start_span(
                    child.name, within, attributes=child.attributes, start_time=child.begin
                )  # fmt: skip
                child_span.end(child.end)
            if record.status is None or record.status >= 500:
                span.set_status(api.StatusCode.ERROR)
        span.end(end)


def child_spans(record: RequestRecord) -> Iterator[SpanTimes]:
    """The spans below a request's: its stages, the phases of its run instead of the stage `compute`, and `send`.

    A graph has one for each step that was computed, named after the operator: there are few, unlike names of nodes.
    """
    end = round(record.ended * 1e9)
    at = end - round(record.seconds * 1e9) if record.trace is None else record.trace.timeline.begin
    phases = {} if record.trace is None else record.trace.timeline.phases
    for stage, took in record.stages.items():
        begin, at = at, at + round(took * 1e6)
        if stage != "compute":
            yield SpanTimes(stage, begin, at, {})
        elif not phases:  # on the event loop's thread
            yield SpanTimes("kernel", begin, at, {})
    for name, phase in phases.items():
        yield _phase_span(name, phase, {})
    for step in () if record.graph is None else record.graph.steps:
        attributes = {"tensorpost.node": printable(step.node), "tensorpost.operator": step.operator}
        yield _phase_span(f"step {step.operator}", step.phase, attributes)
    if phases and "compute" in record.stages:
        yield SpanTimes("send", at, end, {})


def _phase_span(name: str, phase: Phase, attributes: Mapping[str, str]) -> SpanTimes:
    times = {"tensorpost.busy_seconds": phase.busy / 1e9, "tensorpost.parts": phase.parts}
    return SpanTimes(name, phase.begin, phase.end, {**attributes, **times})


def _route(record: RequestRecord) -> str | None:
    """The path with `{operator}` in the place of a name, so that there are few; None for what is not a call."""
    for route in _OF_SEVERAL:
        if record.path.endswith(route) and record.operator is not None:
            return route
    base = record.path.rpartition("/")[0]
    prefix = next((route for route in _ROUTES if base.endswith(route)), None)
    return f"{prefix}/{{operator}}" if prefix is not None and record.operator is not None else None


def _method(sent: str) -> str:
    return sent if sent in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH") else "HTTP"


def _attributes(record: RequestRecord, route: str | None) -> dict[str, str | int]:
    """What the access log says of the request, by the names that OpenTelemetry has for it."""
    method = _method(record.method)
    values: dict[str, str | int | None] = {
        "http.request.method": "_OTHER" if method == "HTTP" else method,
        "url.path": printable(record.path),
        "http.route": route,
        "http.response.status_code": record.status,
        "http.request.body.size": record.received_bytes,
        "http.response.body.size": record.sent_bytes,
        "error.type": record.reason,
        "tensorpost.request_id": record.id,
        "tensorpost.caller": None if record.caller is None else printable(record.caller),
        "tensorpost.operator": record.operator,
        "tensorpost.opset_version": record.opset_version,
        "tensorpost.backend": record.backend,
        "tensorpost.slices": record.slices,
    }
    return {name: value for name, value in values.items() if value is not None}
