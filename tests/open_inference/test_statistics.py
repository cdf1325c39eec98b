"""Counts of inferences, by themselves: how many models they are kept of."""

from __future__ import annotations

import pytest

from tensorpost_server.http.observability.request_record import RequestRecord
from tensorpost_server.http.open_inference import statistics
from tensorpost_server.http.open_inference.statistics import ModelStatistics


def infer(model: str) -> RequestRecord:
    path = f"/v2/models/{model}/infer"
    return RequestRecord(1.0, "", "alice", "POST", path, None, "numpy", 200, None, 1, 2, 1, {}, 0.5, model_version=1)


def counted(found: ModelStatistics, model: str) -> int:
    return found.of_model("alice", model, [1])["model_stats"][0]["inference_count"]


def test_those_that_were_called_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MOST_MODELS", 2)
    found = ModelStatistics(lambda caller, name: (caller, name))
    found.observe([infer("a"), infer("b"), infer("a"), infer("c")])
    assert [counted(found, each) for each in "abc"] == [2, 0, 1]
    assert [each["name"] for each in found.to_json("alice")["model_stats"]] == ["a", "c"]
