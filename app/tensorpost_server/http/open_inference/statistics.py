"""Statistics of each model, from the records of requests that have ended: cumulative since the start.

Source: Triton's "statistics" extension. perf_analyzer reads every number as an unsigned 64-bit integer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tensorpost.values.problems import UnknownOperator

from ..observability.request_record import RequestRecord
from .models import VERSION, ModelCatalogue

INFER_PATH = re.compile(r".*?/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
"""Path of an inference: the model and the version in it, if any."""

_QUEUE = ("plan", "admit")
_INPUT = ("head", "receive")
_NANOSECONDS = 1e9


class _Counts:
    """Numbers of one model."""

    __slots__ = ("failed", "failed_ns", "infer_ns", "input_ns", "last", "output_ns", "queue_ns", "served", "served_ns")

    def __init__(self) -> None:
        self.served = self.failed = self.last = 0
        self.served_ns = self.failed_ns = self.queue_ns = self.input_ns = self.infer_ns = self.output_ns = 0

    def add(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        whole = round(record.seconds * _NANOSECONDS)
        if record.status != 200 or record.reason is not None:
            self.failed += 1
            self.failed_ns += whole
            return
        stages = {name: round(took * 1e6) for name, took in record.stages.items()}
        queue, received = sum(stages.get(name, 0) for name in _QUEUE), sum(stages.get(name, 0) for name in _INPUT)
        infer = stages.get("compute", 0)
        self.served += 1
        self.served_ns += max(whole, queue + received + infer)
        self.queue_ns += queue
        self.input_ns += received
        self.infer_ns += infer
        self.output_ns += max(0, whole - queue - received - infer)
        self.last = round(record.ended * 1e3)

    def to_json(self, name: str) -> dict[str, Any]:
        served = self.served

        def duration(count: int, ns: int) -> dict[str, int]:
            return {"count": count, "ns": ns}

        return {
            "name": name,
            "version": VERSION,
            "last_inference": self.last,
            "inference_count": served,
            "execution_count": served,
            "inference_stats": {
                "success": duration(served, self.served_ns),
                "fail": duration(self.failed, self.failed_ns),
                "queue": duration(served, self.queue_ns),
                "compute_input": duration(served, self.input_ns),
                "compute_infer": duration(served, self.infer_ns),
                "compute_output": duration(served, self.output_ns),
                "cache_hit": duration(0, 0),
                "cache_miss": duration(0, 0),
            },
            "response_stats": {},
            "batch_stats": [],
            "memory_usage": [],
        }


class ModelStatistics:
    """Counts the inferences of each model.

    Args:
        models: whose names count; others are made up by callers.
    """

    def __init__(self, models: ModelCatalogue) -> None:
        self._models = models
        self._counts: dict[str, _Counts] = {}

    def observe(self, records: Sequence[RequestRecord]) -> None:
        """Count the inferences among these requests."""
        for record in records:
            if not record.path.endswith("/infer") or record.method != "POST":
                continue
            if inference := INFER_PATH.fullmatch(record.path):
                counts = self._counts.get(inference[1])
                if counts is None:
                    try:
                        self._models.find(inference[1])
                    except UnknownOperator:
                        continue
                    counts = self._counts[inference[1]] = _Counts()
                counts.add(record)

    def to_json(self, name: str | None = None) -> dict[str, Any]:
        """The answer to `GET /v2/models/{model}/stats`; of all models that were called without a name."""
        if name is not None:
            return {"model_stats": [self._counts.get(name, _Counts()).to_json(name)]}
        return {"model_stats": [counts.to_json(each) for each, counts in sorted(self._counts.items())]}
