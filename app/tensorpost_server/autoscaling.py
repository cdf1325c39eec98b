"""How many replicas Ray Serve runs. Serve's controller imports this, so it imports neither Ray nor the service."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["QueuedBytesPolicy"]


class QueuedBytesPolicy:
    """Chooses the number of replicas by the bytes that wait at all of them; too many of them leave one by one.

    Args:
        queued_bytes: what may wait at each.
        calm_seconds: how long there must be fewer before one replica is taken away.
    """

    def __init__(self, queued_bytes: int, calm_seconds: float = 300) -> None:
        self._queued_bytes, self._calm_seconds = queued_bytes, calm_seconds

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas, and what to remember until the next time. Called by Serve's controller."""
        waiting = sum(context.aggregated_metrics.get("queued_bytes", {}).values())
        least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
        wanted = min(most, max(least, math.ceil(waiting / self._queued_bytes)))
        now, current = float(context.current_time or 0), int(context.target_num_replicas)
        if wanted >= current:
            return wanted, {"busy_at": now}
        if now - float(context.policy_state.get("busy_at", now)) < self._calm_seconds:
            return current, {"busy_at": context.policy_state.get("busy_at", now)}
        return current - 1, {"busy_at": now}
