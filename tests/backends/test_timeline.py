"""Phases of a run whose system clock is set while it lasts."""

from __future__ import annotations

import time

import pytest

from tensorpost_server.backends.timeline import Timeline, next_phase

DAY = 86_400 * 10**9


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_a_clock_that_is_set_changes_no_phase(monkeypatch: pytest.MonkeyPatch, jump: int):
    timeline = Timeline()
    actual = time.time_ns

    def run() -> None:
        monkeypatch.setattr(time, "time_ns", lambda: actual() + jump)
        next_phase("download")

    timeline.timed("kernel", run)()

    assert list(timeline.phases) == ["queue", "kernel", "download"]
    for phase in timeline.phases.values():
        assert 0 <= phase.busy < DAY // 2
        assert timeline.begin <= phase.begin <= phase.end < timeline.begin + DAY // 2
