"""Statistics of each version of each model, from the records of requests that have ended: cumulative since the start.

Source: Triton's "statistics" extension. perf_analyzer reads every number as an unsigned 64-bit integer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from ..observability.request_record import RequestRecord
from .models import VERSION

INFER_PATH = re.compile(r".*?/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
"""Path of an inference: the model and the version in it, if any."""

MOST_MODELS = 10_000
"""The versions of models whose counts are kept: of all operators, and of the stored graphs that were called last."""

_STAGES = {"queue": ("plan", "admit"), "compute_input": ("head", "receive"), "compute_infer": ("compute",)}
"""The stages of a call whose time each duration has; what is left of the whole is `compute_output`."""


class _Counts:
    """Numbers of one version of a model."""

    __slots__ = ("executed", "failed", "last", "nanoseconds", "served")

    def __init__(self) -> None:
        self.executed = self.served = self.failed = self.last = 0
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
        self.executed += not record.is_joined
        self.nanoseconds["success"] += max(whole, parts)
        self.nanoseconds["compute_output"] += max(0, whole - parts)
        self.last = round(record.ended * 1e3)

    def to_json(self, name: str, version: int) -> dict[str, Any]:
        served, ns = self.served, self.nanoseconds
        durations = ("success", "fail", *_STAGES, "compute_output")
        return {
            "name": name,
            "version": str(version),
            "last_inference": self.last,
            "inference_count": served,
            "execution_count": self.executed,
            "inference_stats": {
                **{each: {"count": self.failed if each == "fail" else served, "ns": ns[each]} for each in durations},
                "cache_hit": {"count": 0, "ns": 0},
                "cache_miss": {"count": 0, "ns": 0},
            },
            "response_stats": {},
            "batch_stats": [],
            "memory_usage": [],
        }


def joined_statistics(documents: Sequence[Any]) -> dict[str, Any]:
    """The statistics of several processes, in the form of `ModelStatistics.to_json`, as those of one."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in [row for document in documents for row in document["model_stats"]]:
        key = row["name"], row["version"]
        rows[key] = _added(rows[key], row) if key in rows else row
    return {"model_stats": [*rows.values()]}


def _added(one: Any, other: Any) -> Any:
    """Two JSON values with numbers added, but for the time of the last inference."""
    if isinstance(one, dict):
        mine, others = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        return {
            name: max(mine[name], others[name]) if name == "last_inference" else _added(mine[name], others[name])
            for name in mine
        }
    return one + other if isinstance(one, int) else one


class ModelStatistics:
    """Counts the inferences of each version of each model, of the `MOST_MODELS` that were called last.

    Args:
        key_of: what the counts of a caller's model are kept by: whose it is, and its name; None for a name that is
            none.
    """

    def __init__(self, key_of: Callable[[str | None, str], tuple[str | None, str] | None]) -> None:
        self._key_of = key_of
        self._counts: dict[tuple[str | None, str, int], _Counts] = {}

    def observe(self, records: Sequence[RequestRecord]) -> None:
        """Count the inferences among these requests."""
        for record in records:
            if not record.path.endswith("/infer") or record.method != "POST":
                continue
            if inference := INFER_PATH.fullmatch(record.path):
                key = self._key_of(record.caller, inference[1])
                if key is not None:
                    version = record.model_version or int(VERSION)
                    counts = self._counts[*key, version] = self._counts.pop((*key, version), None) or _Counts()
                    counts.add(record)
                    if len(self._counts) > MOST_MODELS:
                        del self._counts[next(iter(self._counts))]

    def of_model(self, owner: str, name: str, versions: Sequence[int]) -> dict[str, Any]:
        """The answer to `GET /v2/models/{model}/stats`.

        Args:
            owner: the caller, whose stored graph the model may be.
            name: the model's name.
            versions: the versions to show.
        """
        found = [
            (self._counts.get((None, name, each)) or self._counts.get((owner, name, each)) or _Counts(), each)
            for each in versions
        ]  # fmt: skip
        return {"model_stats": [counts.to_json(name, version) for counts, version in found]}

    def to_json(self, owner: str) -> dict[str, Any]:
        """The answer to `GET /v2/models/stats`: every model that was called.

        Args:
            owner: the caller, whose stored graphs are shown beside operators.
        """
        shown = {(name, version): counts for (of, name, version), counts in self._counts.items() if of in (None, owner)}
        return {
            "model_stats": [counts.to_json(*key) for key, counts in sorted(shown.items(), key=lambda item: item[0])]
        }
