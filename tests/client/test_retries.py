from __future__ import annotations

import pytest

from tensorpost import problems
from tensorpost._retries import RetryPolicy, worth_retrying

WORTH = {
    "ConnectFailed",
    "ConnectionProblem",
    "DeviceLost",
    "NotReady",
    "OutOfDeviceMemory",
    "TooBusy",
    "Unavailable",
}


@pytest.mark.parametrize("cls", problems.problem_classes().values(), ids=lambda cls: cls.__name__)
def test_only_what_may_pass_by_itself_is_worth_retrying(cls: type[problems.TensorpostError]) -> None:
    assert worth_retrying(cls("")) == (cls.__name__ in WORTH)


def test_waits_grow_and_end_with_the_number_of_retries() -> None:
    policy = RetryPolicy(3, spread=lambda: 1.0)
    busy = problems.TooBusy("")

    waits = [policy.wait_before(retry, busy, 0.0) for retry in (1, 2, 3, 4)]

    assert waits == [pytest.approx(0.1), pytest.approx(0.2), pytest.approx(0.4), None]


def test_the_spread_is_between_a_half_and_a_whole_backoff() -> None:
    busy = problems.TooBusy("")

    assert RetryPolicy(1, spread=lambda: 0.0).wait_before(1, busy, 0.0) == pytest.approx(0.05)
    assert RetryPolicy(1, spread=lambda: 1.0).wait_before(1, busy, 0.0) == pytest.approx(0.1)


def test_what_the_server_asks_for_is_never_cut_short() -> None:
    busy = problems.TooBusy("", extra={"retry_after_seconds": 3})

    assert RetryPolicy(1, spread=lambda: 0.0).wait_before(1, busy, 0.0) == pytest.approx(3.0)
    assert RetryPolicy(1, spread=lambda: 1.0).wait_before(1, busy, 0.0) == pytest.approx(3.1)


def test_a_server_that_asks_for_more_than_the_patience_left_ends_the_call() -> None:
    policy = RetryPolicy(5, patience_seconds=10.0, spread=lambda: 0.0)

    assert policy.wait_before(1, problems.NotReady("", extra={"retry_after_seconds": 11}), 0.0) is None
    assert policy.wait_before(2, problems.NotReady("", extra={"retry_after_seconds": 9}), 2.0) is None
    assert policy.wait_before(2, problems.NotReady("", extra={"retry_after_seconds": 9}), 1.0) == pytest.approx(9.0)


def test_a_retry_after_that_is_no_number_counts_as_none() -> None:
    odd = problems.TooBusy("", extra={"retry_after_seconds": "soon"})

    assert RetryPolicy(1, spread=lambda: 1.0).wait_before(1, odd, 0.0) == pytest.approx(0.1)
