"""A span for each call, in programs that use OpenTelemetry: those that have set a tracer provider.

Such a program has imported OpenTelemetry's API, so it is looked for among the modules that are loaded, and never loaded
here. Calls of other programs cost a look into a dictionary.

Sources: OpenTelemetry's semantic conventions for HTTP client spans (1.44); W3C Trace Context, section 3.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from ..network.origin import Origin
from ..values.problems import TensorpostError
from .http1 import FieldLines, Request

if TYPE_CHECKING:  # for annotations only: it need not be installed
    from opentelemetry.trace import Span, Tracer, TracerProvider


class CallSpan:
    """The span of one call, its repetitions included, until its answer is closed.

    Attributes:
        fields: the header fields that tell the server of it.
    """

    def __init__(self, tracer: Tracer, origin: Origin, request: Request) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        path = request.target.partition("?")[0]
        address, port = (origin.host, origin.port) if origin.uds is None else (origin.uds, None)
        attributes: dict[str, str | int] = {
            "http.request.method": request.method,
            "server.address": address,
            "url.full": f"{origin.scheme}://{origin.authority}{origin.prefix}{path}",
        }
        if port is not None:
            attributes["server.port"] = port
        self._error = trace.StatusCode.ERROR
        self._span: Span = tracer.start_span(f"{request.method} {path}", None, trace.SpanKind.CLIENT, attributes)
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(self._span))
        self.fields: FieldLines = tuple(carrier.items())

    def repeats(self, retry: int, error: TensorpostError) -> None:
        """Take note that the call is repeated, for this reason."""
        self._span.add_event("retry", {"error.type": error.code, "http.request.resend_count": retry})

    def end(self, status: int | None, error: BaseException | None) -> None:
        """End the span with the status of the answer, if there was one, and what was raised."""
        if status is not None:
            self._span.set_attribute("http.response.status_code", status)
        if error is not None and not isinstance(error, GeneratorExit):  # a stream that its reader ends is not an error
            kind = error.code if isinstance(error, TensorpostError) else type(error).__name__
            self._span.set_attribute("error.type", kind)
            self._span.set_status(self._error, kind)
        self._span.end()


def begin_span(origin: Origin, request: Request) -> CallSpan | None:
    """Begin the span of a call; None if the program uses no OpenTelemetry, or its own headers hold a trace context."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None or not hasattr(api, "get_tracer_provider"):  # while another thread imports it
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)) or "traceparent" in origin.headers:
        return None
    return CallSpan(_tracer(provider), origin, request)


@lru_cache(maxsize=1)
def _tracer(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("tensorpost", version("tensorpost"))
