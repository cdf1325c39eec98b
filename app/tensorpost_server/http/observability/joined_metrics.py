"""The metrics of several processes as those of one server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

_JOINED_BY: Mapping[str, Callable[[Iterable[float]], float]] = {
    **dict.fromkeys(
        (
            # What all processes count together, which each of them says.
            "tensorpost_requests_in_flight",
            "tensorpost_requests_limit",
            "tensorpost_memory_reserved_bytes",
            "tensorpost_memory_limit_bytes",
            "tensorpost_held_tensors",
            "tensorpost_held_tensor_bytes",
            "tensorpost_held_tensors_dropped_total",
            "tensorpost_build_info",
            # What is the device's.
            "tensorpost_device_memory_bytes",
            "tensorpost_device_memory_free_bytes",
            "tensorpost_device_busy_seconds",
            "process_max_fds",
        ),
        max,
    ),
    **dict.fromkeys(("tensorpost_ready", "tensorpost_device_up", "process_start_time_seconds"), min),
}
"""How samples of a name become one, by its name; the others are added."""


class JoinedMetrics(Collector):
    """Hands samples of several processes to prometheus-client.

    Args:
        texts: the metrics of each process, in Prometheus's text format.
        ended: the same of processes that have ended, of which only what was counted is used.
    """

    def __init__(self, texts: Sequence[str], ended: Sequence[str] = ()) -> None:
        self._texts, self._ended = texts, ended

    def collect(self) -> Iterator[Metric]:
        """Every metric, with one sample for each name and labels."""
        metrics: dict[str, Metric] = {}
        values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], list[float]]] = {}
        for text, is_ended in [*((text, False) for text in self._texts), *((text, True) for text in self._ended)]:
            for metric in text_string_to_metric_families(text):
                if is_ended and metric.type not in ("counter", "histogram"):
                    continue
                metrics.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                found = values.setdefault(metric.name, {})
                for sample in metric.samples:
                    found.setdefault((sample.name, tuple(sample.labels.items())), []).append(sample.value)
        for name, metric in metrics.items():
            for (sample, labels), each in values[name].items():
                metric.add_sample(sample, dict(labels), _JOINED_BY.get(sample, sum)(each))
            yield metric
