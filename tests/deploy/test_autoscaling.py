"""The number of replicas by queued bytes: Ray Serve's controller calls the policy with such a context."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tensorpost_server.autoscaling import QueuedBytesPolicy


def wanted(replicas: int, *queued_bytes: float) -> int:
    """Replicas wanted of 1 to 4, each of which may have 100 bytes waiting, with so many waiting at each."""
    metrics = {"queued_bytes": {f"replica {i}": queued for i, queued in enumerate(queued_bytes)}}
    context = SimpleNamespace(
        aggregated_metrics=metrics if queued_bytes else {},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=4,
        target_num_replicas=replicas,
    )
    return QueuedBytesPolicy(100)(context)[0]


@pytest.mark.parametrize(
    ("queued", "replicas"), [((), 1), ((0,), 1), ((100,), 1), ((101,), 2), ((150, 150), 3), ((9000,), 4)]
)
def test_it_grows_to_one_replica_for_each_share_of_the_queue(queued: tuple[int, ...], replicas: int) -> None:
    assert wanted(1, *queued) == replicas


def test_it_takes_one_replica_at_a_time() -> None:
    assert [wanted(replicas, 0) for replicas in (4, 3, 2, 1)] == [3, 2, 1, 1]
    assert wanted(4, 150, 150) == 3
    assert wanted(3, 150, 150) == 3
