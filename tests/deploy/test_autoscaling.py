"""The number of replicas by queued bytes: Ray Serve's controller calls the policy with such a context."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tensorpost_server.autoscaling import QueuedBytesPolicy


class Deployment:
    """1 to 4 replicas, each of which may have 100 bytes waiting; it follows the policy as the controller does."""

    def __init__(self, replicas: int) -> None:
        self.replicas, self._state = replicas, dict[str, object]()
        self._policy = QueuedBytesPolicy(100, calm_seconds=300)

    def after(self, seconds: float, *queued_bytes: float) -> int:
        """Replicas wanted at this time, with so many bytes waiting at each."""
        metrics = {"queued_bytes": {f"replica {i}": queued for i, queued in enumerate(queued_bytes)}}
        context = SimpleNamespace(
            aggregated_metrics=metrics if queued_bytes else {},
            capacity_adjusted_min_replicas=1,
            capacity_adjusted_max_replicas=4,
            target_num_replicas=self.replicas,
            current_time=1000.0 + seconds,
            policy_state=self._state,
        )
        self.replicas, self._state = self._policy(context)
        return self.replicas


@pytest.mark.parametrize(
    ("queued", "wanted"), [((), 1), ((0,), 1), ((100,), 1), ((101,), 2), ((150, 150), 3), ((9000,), 4)]
)
def test_it_grows_at_once_to_one_replica_for_each_share_of_the_queue(queued: tuple[int, ...], wanted: int) -> None:
    assert Deployment(1).after(0, *queued) == wanted


def test_it_keeps_replicas_until_the_queue_was_short_for_300_seconds_and_takes_one() -> None:
    deployment = Deployment(4)

    assert [deployment.after(t, 0) for t in (0, 299, 300, 599, 600, 900, 1200, 2000)] == [4, 4, 3, 3, 2, 1, 1, 1]


def test_a_long_queue_begins_the_300_seconds_again() -> None:
    deployment = Deployment(2)

    assert [deployment.after(t, queued) for t, queued in ((0, 0), (290, 150), (310, 0), (589, 0), (590, 0))] == [
        2, 2, 2, 2, 1
    ]  # fmt: skip
