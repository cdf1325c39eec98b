"""Counters and histograms of requests, and their collector for prometheus-client, which writes them when they are read.

They are counted here and not by prometheus-client's own counters, which take a lock and look labels up for every value,
of which a request has a dozen (docs/decisions/0027-metrics-and-access-log.md has the figures).

Numbers are kept per application and changed on the event loop's thread alone, so there are no locks. The values of a
label are bounded: operators that there are, backends, statuses, stages and problem codes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ...engine import STAGES
from .request_record import CLIENT_DISCONNECTED, RequestRecord

MetricFamily = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

BOUNDS = (25e-6, 1e-4, 2.5e-4, 1e-3, 2.5e-3, 1e-2, 2.5e-2, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0)
"""Upper ends of the buckets of every histogram, seconds: from a replayed call to a large tensor on a slow line."""


class Metric(NamedTuple):
    """What a metric says.

    Attributes:
        kind: counter, gauge or histogram.
        labels: their names.
        help: one sentence.
    """

    kind: str
    labels: tuple[str, ...]
    help: str


_CALL = ("operator", "backend")
_DEVICE = ("backend", "device")

METRICS: Mapping[str, Metric] = {
    "tensorpost_requests_total": Metric(
        "counter", (*_CALL, "status"),
        "Requests that have ended. operator: none where no known operator was called; backend: none if "
        "none was chosen; status: none if the caller left before there was one.",
    ),
    "tensorpost_request_seconds": Metric(
        "histogram", _CALL, "From the head of a request to the end of its response, refusals included."
    ),
    "tensorpost_stage_seconds": Metric(
        "histogram", ("stage", "backend"),
        f"Seconds of each stage of a call: {', '.join(STAGES)}. compute ends with the first slice.",
    ),
    "tensorpost_received_bytes_total": Metric("counter", _CALL, "Bytes of request bodies of operator calls."),
    "tensorpost_sent_bytes_total": Metric("counter", _CALL, "Bytes of response bodies."),
    "tensorpost_slices_total": Metric(
        "counter", _CALL, "Slices of outputs that were sent; a response that was sent whole is one."
    ),
    "tensorpost_refusals_total": Metric(
        "counter", ("reason",), "Requests that were refused or failed, by problem code (docs/errors.md)."
    ),
    "tensorpost_cancellations_total": Metric(
        "counter", (), "Requests whose caller closed the connection before the response was complete."
    ),
    "tensorpost_requests_in_flight": Metric("gauge", (), "Admitted calls that have not ended."),
    "tensorpost_requests_limit": Metric("gauge", (), "Calls that may be in flight (TENSORPOST_MAX_REQUESTS)."),
    "tensorpost_memory_reserved_bytes": Metric("gauge", (), "Memory that calls in flight have reserved."),
    "tensorpost_memory_limit_bytes": Metric(
        "gauge", (), "Memory that all calls in flight may reserve (TENSORPOST_MEMORY_BYTES)."
    ),
    "tensorpost_buffer_pool_lent_bytes": Metric("gauge", (), "Large buffers in use."),
    "tensorpost_buffer_pool_kept_bytes": Metric("gauge", (), "Large buffers kept for the next call."),
    "tensorpost_buffer_pool_reused_total": Metric("counter", (), "Large buffers that were used again."),
    "tensorpost_ready": Metric("gauge", (), "1 if requests are served, else 0."),
    "tensorpost_device_up": Metric("gauge", _DEVICE, "1 if the device can be used; 0 if it failed for good."),
    "tensorpost_device_queue_bytes": Metric("gauge", _DEVICE, "Input and output bytes of the calls in its queue."),
    "tensorpost_device_busy_seconds": Metric(
        "gauge", _DEVICE, "How long the longest call of the device that has not returned has been running."
    ),
    "tensorpost_device_memory_bytes": Metric("gauge", _DEVICE, "Memory of the device."),
    "tensorpost_device_memory_limit_bytes": Metric("gauge", _DEVICE, "Memory that this server may take there."),
    "tensorpost_device_memory_free_bytes": Metric("gauge", _DEVICE, "Memory that nobody uses there."),
    "tensorpost_device_memory_held_bytes": Metric("gauge", _DEVICE, "Memory that this server holds there."),
    "tensorpost_device_memory_used_bytes": Metric("gauge", _DEVICE, "Of that, what calls use now."),
    "tensorpost_pinned_bytes": Metric("gauge", _DEVICE, "Page-locked host memory for the device."),
    "tensorpost_pinned_used_bytes": Metric("gauge", _DEVICE, "Of that, what calls use now."),
    "tensorpost_pinned_misses": Metric("gauge", _DEVICE, "Tensors that page-locked memory had no room for."),
    "tensorpost_compiled_operators": Metric("gauge", _DEVICE, "Operators that are compiled for the device."),
    "tensorpost_access_lines_dropped_total": Metric(
        "counter", (), "Lines of the access log that were lost, because nobody read them fast enough."
    ),
    "tensorpost_library_processes": Metric(
        "gauge", ("library",), "Processes of a library that computes or checks in processes of its own."
    ),
    "tensorpost_library_processes_ended_total": Metric(
        "counter", ("library", "reason"),
        "Such processes that ended. failed: by the library; killed: from outside, as by the system without memory; "
        "timed_out: the call took too long; abandoned: nobody waited for the result; retired: it kept too much memory.",
    ),
    "tensorpost_traces_dropped_total": Metric(
        "counter", (), "Requests whose spans were lost, because more ended than spans could be made of."
    ),
    "tensorpost_build_info": Metric("gauge", ("version", "python"), "Always 1."),
}  # fmt: skip
"""Every metric of ours by name, in the order in which they are written; process_* are prometheus-client's."""

_FAMILIES: Mapping[str, type[MetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
_UPPER_ENDS = (*map(repr, BOUNDS), "+Inf")


class Sample(NamedTuple):
    """One value of a metric.

    Attributes:
        metric: its name in `METRICS`.
        labels: their values, in the order of the metric's names.
        value: a number, or a histogram.
    """

    metric: str
    labels: tuple[str, ...]
    value: float | Histogram


class Histogram:
    """Counts values by `BOUNDS`."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count a value."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def copy(self) -> Histogram:
        """The same, which stays as it is."""
        copied = Histogram()
        copied.counts, copied.sum = self.counts.copy(), self.sum
        return copied

    def buckets(self) -> list[tuple[str, int]]:
        """The upper end of each bucket, and how many values are at most that."""
        return [*zip(_UPPER_ENDS, accumulate(self.counts), strict=True)]


class _CallCounts:
    """What requests of the same operator and backend have in common."""

    __slots__ = ("received_bytes", "seconds", "sent_bytes", "slices", "stages", "statuses")

    def __init__(self, stages: dict[str, Histogram]) -> None:
        self.stages = stages
        self.seconds = Histogram()
        self.statuses: dict[int | None, int] = {}
        self.received_bytes = self.sent_bytes = self.slices = 0


class RequestMetrics:
    """Counts the requests of one application."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str | None, str | None], _CallCounts] = {}
        self._stages: dict[str | None, dict[str, Histogram]] = {}
        self._refusals: dict[str, int] = {}
        self._cancellations = 0

    def observe(self, records: Sequence[RequestRecord]) -> None:
        """Count requests that have ended."""
        for record in records:
            key = record.operator, record.backend
            calls = self._calls.get(key)
            if calls is None:
                stages = self._stages.setdefault(record.backend, {})
                calls = self._calls[key] = _CallCounts(stages)
            calls.statuses[record.status] = calls.statuses.get(record.status, 0) + 1
            calls.received_bytes += record.received_bytes
            calls.sent_bytes += record.sent_bytes
            calls.slices += record.slices
            calls.seconds.add(record.seconds)
            for stage, took in record.stages.items():
                histogram = calls.stages.get(stage)
                if histogram is None:
                    histogram = calls.stages[stage] = Histogram()
                histogram.add(took / 1e3)
            if record.reason == CLIENT_DISCONNECTED:
                self._cancellations += 1
            elif record.reason is not None:
                self._refusals[record.reason] = self._refusals.get(record.reason, 0) + 1

    def samples(self) -> Iterator[Sample]:
        """What was counted; it stays as it is when more is."""
        for (operator, backend), calls in self._calls.items():
            labels = operator or "none", backend or "none"
            for status, count in calls.statuses.items():
                yield Sample("tensorpost_requests_total", (*labels, str(status or "none")), count)
            yield Sample("tensorpost_request_seconds", labels, calls.seconds.copy())
            yield Sample("tensorpost_received_bytes_total", labels, calls.received_bytes)
            yield Sample("tensorpost_sent_bytes_total", labels, calls.sent_bytes)
            yield Sample("tensorpost_slices_total", labels, calls.slices)
        for backend, stages in self._stages.items():
            for stage, histogram in stages.items():
                yield Sample("tensorpost_stage_seconds", (stage, backend or "none"), histogram.copy())
        for reason, count in self._refusals.items():
            yield Sample("tensorpost_refusals_total", (reason,), count)
        yield Sample("tensorpost_cancellations_total", (), self._cancellations)


class SampleCollector(Collector):
    """Hands samples to prometheus-client.

    Args:
        samples: values of `METRICS`, in any order.
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[MetricFamily]:
        """Every metric of `METRICS` with its samples."""
        families = {
            name: _FAMILIES[metric.kind](name, metric.help, labels=metric.labels) for name, metric in METRICS.items()
        }
        for sample in self._samples:
            family, value = families[sample.metric], sample.value
            if isinstance(family, HistogramMetricFamily):
                assert isinstance(value, Histogram)
                family.add_metric(sample.labels, value.buckets(), value.sum)
            else:
                assert not isinstance(value, Histogram)
                family.add_metric(sample.labels, value)
        yield from families.values()
