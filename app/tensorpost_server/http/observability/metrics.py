"""Counters and histograms of requests, and their collector for prometheus-client, which writes them when they are read.

They are counted here and not by prometheus-client's own counters, which take a lock and look labels up for every value,
of which a request has a dozen (docs/decisions/0027-metrics-and-access-log.md has the figures).

Numbers are kept per application and changed on the event loop's thread alone, so there are no locks. The values of a
label are bounded: operators that there are, backends, statuses, stages and problem codes.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ...engine import STAGES
from .request_record import CLIENT_DISCONNECTED, RequestRecord

MetricFamily = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

BOUNDS = (25e-6, 1e-4, 2.5e-4, 1e-3, 2.5e-3, 1e-2, 2.5e-2, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0)
"""Upper ends of the buckets of every histogram, seconds: from a replayed call to a large tensor on a slow line."""


class Metric(NamedTuple):
    """What a metric says."""

    kind: str
    labels: tuple[str, ...]
    help: str


METRICS: Mapping[str, Metric] = {
    name: Metric(row["kind"], tuple(row["labels"]), row["help"].format(stages=", ".join(STAGES)))
    for name, row in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8")).items()
}
"""Every metric of ours by name, in the order in which they are written; process_* are prometheus-client's."""

_FAMILIES: Mapping[str, type[MetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
_UPPER_ENDS = (*map(repr, BOUNDS), "+Inf")


class Sample(NamedTuple):
    """One value of a metric."""

    metric: str
    labels: tuple[str, ...]
    value: float | Histogram


class Histogram:
    """Counts values by `BOUNDS`."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: Sequence[float]) -> None:
        """Count values."""
        counts = self.counts
        for each in seconds:
            counts[bisect_left(BOUNDS, each)] += 1
        self.sum += sum(seconds)

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

    def add(self, records: Sequence[RequestRecord]) -> None:
        """Count sizes and times."""
        self.received_bytes += sum([record.received_bytes for record in records])
        self.sent_bytes += sum([record.sent_bytes for record in records])
        self.slices += sum([record.slices for record in records])
        self.seconds.add([record.seconds for record in records])
        by_stage: dict[str, list[float]] = {}
        for record in records:
            for stage, milliseconds in record.stages.items():
                if stage in by_stage:
                    by_stage[stage].append(milliseconds / 1e3)
                else:
                    by_stage[stage] = [milliseconds / 1e3]
        for stage, seconds in by_stage.items():
            histogram = self.stages.get(stage)
            if histogram is None:
                histogram = self.stages[stage] = Histogram()
            histogram.add(seconds)


class RequestMetrics:
    """Counts the requests of one application."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str | None, str | None], _CallCounts] = {}
        self._stages: dict[str | None, dict[str, Histogram]] = {}
        self._refusals: dict[str, int] = {}
        self._cancellations = 0

    def observe(self, records: Sequence[RequestRecord]) -> None:
        """Count requests that have ended; those of equal labels together, in two thirds of the time."""
        groups: dict[tuple[str | None, str | None, int | None, str | None], list[RequestRecord]] = {}
        for record in records:
            key = record.operator, record.backend, record.status, record.reason
            group = groups.get(key)
            if group is None:
                groups[key] = [record]
            else:
                group.append(record)
        for (operator, backend, status, reason), group in groups.items():
            calls = self._calls.get((operator, backend))
            if calls is None:
                stages = self._stages.setdefault(backend, {})
                calls = self._calls[operator, backend] = _CallCounts(stages)
            calls.statuses[status] = calls.statuses.get(status, 0) + len(group)
            calls.add(group)
            if reason == CLIENT_DISCONNECTED:
                self._cancellations += len(group)
            elif reason is not None:
                self._refusals[reason] = self._refusals.get(reason, 0) + len(group)

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
    """Hands samples to prometheus-client."""

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
