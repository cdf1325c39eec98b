"""Spans of OpenTelemetry's real SDK, kept in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

__all__ = ["SpanMemory", "attributes", "begin_and_end", "ids_of"]


class SpanMemory:
    """A tracer provider, and the spans that ended."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        return [*self._exporter.get_finished_spans()]

    def roots(self) -> list[ReadableSpan]:
        """Spans that are not below another one of these, in the order in which they ended."""
        ids = {ids_of(span)[1] for span in self.spans}
        return [span for span in self.spans if span.parent is None or span.parent.span_id not in ids]

    def below(self, parent: ReadableSpan) -> dict[str, ReadableSpan]:
        """The spans directly below one, by name, as they began."""
        found = [span for span in self.spans if span.parent is not None and span.parent.span_id == ids_of(parent)[1]]
        return {span.name: span for span in found}


def ids_of(span: ReadableSpan) -> tuple[int, int]:
    """The ids of its trace and of itself."""
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def begin_and_end(span: ReadableSpan) -> tuple[int, int]:
    """Nanoseconds since 1970."""
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return dict(span.attributes or {})
