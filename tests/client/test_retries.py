from __future__ import annotations

from collections.abc import Callable

import pytest

from tensorpost import problems
from tensorpost.transport.one_server import wait_before_retry, worth_retrying

WORTH = {
    "ConnectFailed",
    "ConnectionProblem",
    "DeviceLost",
    "NotReady",
    "OutOfDeviceMemory",
    "QuotaExceeded",
    "TooBusy",
    "Unavailable",
}


@pytest.mark.parametrize("cls", problems.problem_classes().values(), ids=lambda cls: cls.__name__)
def test_only_what_may_pass_by_itself_is_worth_retrying(cls: type[problems.TensorpostError]) -> None:
    assert worth_retrying(cls("")) == (cls.__name__ in WORTH)


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`spread(number)`: what `random.random` gives from then on."""
    return lambda number: monkeypatch.setattr("random.random", lambda: number)


def test_waits_grow(spread: Callable[[float], None]) -> None:
    spread(1.0)
    busy = problems.TooBusy("")

    waits = [wait_before_retry(retry, busy, 0.0) for retry in (1, 2, 3)]

    assert waits == [pytest.approx(0.1), pytest.approx(0.2), pytest.approx(0.4)]


@pytest.mark.parametrize(("number", "wait"), [(0.0, 0.05), (1.0, 0.1)])
def test_the_spread_is_between_a_half_and_a_whole_backoff(
    spread: Callable[[float], None], number: float, wait: float
) -> None:
    spread(number)
    assert wait_before_retry(1, problems.TooBusy(""), 0.0) == pytest.approx(wait)


@pytest.mark.parametrize(("number", "wait"), [(0.0, 3.0), (1.0, 3.1)])
def test_what_the_server_asks_for_is_never_cut_short(
    spread: Callable[[float], None], number: float, wait: float
) -> None:
    spread(number)
    busy = problems.TooBusy("", extra={"retry_after_seconds": 3})

    assert wait_before_retry(1, busy, 0.0) == pytest.approx(wait)


@pytest.mark.parametrize(("asked", "waited", "wait"), [(31, 0.0, None), (29, 2.0, None), (29, 1.0, 29.0)])
def test_a_server_that_asks_for_more_than_the_patience_left_ends_the_call(
    spread: Callable[[float], None], asked: int, waited: float, wait: float | None
) -> None:
    spread(0.0)
    not_ready = problems.NotReady("", extra={"retry_after_seconds": asked})

    assert wait_before_retry(1, not_ready, waited) == (None if wait is None else pytest.approx(wait))


def test_a_retry_after_that_is_no_number_counts_as_none(spread: Callable[[float], None]) -> None:
    spread(1.0)
    odd = problems.TooBusy("", extra={"retry_after_seconds": "soon"})

    assert wait_before_retry(1, odd, 0.0) == pytest.approx(0.1)
