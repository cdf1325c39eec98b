"""How many replicas Ray Serve runs. Serve's controller imports this, so it imports neither Ray nor the service."""

from __future__ import annotations

import math
from typing import Any


class QueuedBytesPolicy:
    """Chooses the number of replicas by the bytes that wait at all of them; too many of them leave one by one.

    How long there must be too many, or too few, is Ray's `downscale_delay_s` and `upscale_delay_s`.

    Args:
        queued_bytes: what may wait at each.
    """

    def __init__(self, queued_bytes: int) -> None:
        self._queued_bytes = queued_bytes

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas, and nothing to remember until the next time. Called by Serve's controller."""
        waiting = sum(context.aggregated_metrics.get("queued_bytes", {}).values())
        least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
        wanted = min(most, max(least, math.ceil(waiting / self._queued_bytes)))
        return max(wanted, int(context.target_num_replicas) - 1), {}
