"""The dashboard and the alert rules ask for metrics and labels that there are, and each alert is explained."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tensorpost_server.http.observability.metrics import METRICS as OURS
from tensorpost_server.http.observability.metrics import Metric

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")

_NAME = re.compile(r"\b(?:tensorpost|process)_[a-z_]+")
_SELECTOR = re.compile(r"((?:tensorpost|process)_[a-z_]+)\{([^}]*)\}")
_GROUPED = re.compile(r"\bby \(([a-z_, ]*)\)")
FROM_PROMETHEUS = {"instance", "job"}
# What prometheus-client says of a process on Linux; tests/http/test_metrics.py holds the names to what it says.
PROCESS = ("cpu_seconds_total", "max_fds", "open_fds", "resident_memory_bytes", "start_time_seconds")
METRICS = {**OURS, **{f"process_{name}": Metric("gauge", (), "") for name in PROCESS}}
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "tensorpost.json").read_text("utf-8"))
ALERTS = dict(
    re.findall(r"- alert: (\w+)\n +expr: (.+)\n", (GRAFANA / "alerts.yaml").read_text("utf-8")),
)
EXPRESSIONS = [
    *[target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]],
    *ALERTS.values(),
    *[variable["query"] for variable in DASHBOARD["templating"]["list"]],
]


def metric_of(name: str) -> str:
    """The metric that a name in an expression means; a histogram has three."""
    for suffix in ("_bucket", "_sum", "_count"):
        if METRICS.get(short := name.removesuffix(suffix), METRICS["tensorpost_ready"]).kind == "histogram":
            return short
    return name


def problems(expression: str) -> list[str]:
    """What an expression asks for that there is not."""
    names = {metric_of(name) for name in _NAME.findall(expression)}
    found = [f"no metric {name}" for name in names - METRICS.keys()]
    labels = {label for name in names & METRICS.keys() for label in METRICS[name].labels} | FROM_PROMETHEUS | {"le"}
    for name, selector in _SELECTOR.findall(expression):
        known = METRICS.get(metric_of(name))
        for label in re.findall(r"(\w+) *[=!]", selector):
            if known is not None and label not in {*known.labels, *FROM_PROMETHEUS}:
                found.append(f"{name} has no label {label}")
    for group in _GROUPED.findall(expression):
        found += [f"no label {label}" for label in re.split(r", *", group) if label not in labels]
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_asks_for_what_there_is(expression: str) -> None:
    assert problems(expression) == []


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("rate(tensorpost_request_total[5m])", ["no metric tensorpost_request_total"]),
        ('tensorpost_ready{operator="TILE"}', ["tensorpost_ready has no label operator"]),
        ("sum by (operator) (tensorpost_ready)", ["no label operator"]),
        ('tensorpost_request_seconds_bucket{operator="TILE",instance=~"a"} and tensorpost_request_seconds', []),
        ("tensorpost_ready_sum", ["no metric tensorpost_ready_sum"]),
    ],
)
def test_what_there_is_not_is_found(expression: str, found: list[str]) -> None:
    assert problems(expression) == found


def test_there_are_panels_and_alerts() -> None:
    text = (GRAFANA / "alerts.yaml").read_text("utf-8")

    assert len(ALERTS) == text.count("- alert:") >= 8
    assert len(DASHBOARD["panels"]) >= 15
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    used = {metric_of(name) for expression in EXPRESSIONS for name in _NAME.findall(expression)}
    assert len(used) > len(METRICS) * 0.6


def test_every_alert_is_in_the_table_of_failures_and_no_other() -> None:
    assert set(re.findall(r"`(Tensorpost\w+)`", OPERATIONS)) == ALERTS.keys()


def test_every_setting_that_the_page_names_is_one() -> None:
    from tensorpost_server.settings import Settings, setting_variable

    named = set(re.findall(r"TENSORPOST_[A-Z_]+[A-Z]", OPERATIONS))

    assert named <= {setting_variable(name) for name in Settings.model_fields}
