"""Statistics of each model, from the records of requests that have ended: cumulative since the start.

Source: Triton's "statistics" extension. perf_analyzer reads every number as an unsigned 64-bit integer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tensorpost.values.problems import UnknownOperator

from ..observability.request_record import RequestRecord
from .models import VERSION, ModelCatalogue

INFER_PATH = re.compile(r".*?/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
"""Path of an inference: the model and the version in it, if any."""

_STAGES = {"queue": ("plan", "admit"), "compute_input": ("head", "receive"), "compute_infer": ("compute",)}
"""The stages of a call whose time each duration has; what is left of the whole is `compute_output`."""


class _Counts:
    """Numbers of one model."""

    __slots__ = ("failed", "last", "nanoseconds", "served")

    def __init__(self) -> None:
        self.served = self.failed = self.last = 0
        self.nanoseconds = Counter[str]()

    def add(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        whole = round(record.seconds * 1e9)
        if record.status != 200 or record.reason is not None:
            self.failed += 1
            self.nanoseconds["fail"] += whole
            return
        parts = 0
        for name, stages in _STAGES.items():
            took = sum([round(record.stages.get(stage, 0) * 1e6) for stage in stages])
            self.nanoseconds[name] += took
            parts += took
        self.served += 1
        self.nanoseconds["success"] += max(whole, parts)
        self.nanoseconds["compute_output"] += max(0, whole - parts)
        self.last = round(record.ended * 1e3)

    def to_json(self, name: str) -> dict[str, Any]:
        served, ns = self.served, self.nanoseconds
        durations = ("success", "fail", *_STAGES, "compute_output")
        return {
            "name": name,
            "version": VERSION,
            "last_inference": self.last,
            "inference_count": served,
            "execution_count": served,
            "inference_stats": {
                **{each: {"count": self.failed if each == "fail" else served, "ns": ns[each]} for each in durations},
                "cache_hit": {"count": 0, "ns": 0},
                "cache_miss": {"count": 0, "ns": 0},
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
