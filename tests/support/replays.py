"""Count the requests that are answered by a replay."""

from __future__ import annotations

from typing import Any

import pytest

from tensorpost_server.http.replay import Replay

__all__ = ["count_replays"]


def count_replays(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A list that grows with each request whose head is known: whether a replay answered it."""
    seen: list[bool] = []

    usual = Replay.__call__

    def counted(self: Replay, *args: Any) -> Any:
        answer = usual(self, *args)
        seen.append(answer is not None)
        return answer

    monkeypatch.setattr(Replay, "__call__", counted)
    return seen
