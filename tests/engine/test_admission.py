"""The memory budget: what is reserved is counted exactly, refused before it is exceeded, and always released."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tensorpost.problems import LimitExceeded, TooBusy
from tensorpost_server.engine import Admission, Ticket


def lent_out(admission: Admission) -> tuple[int, int]:
    return admission.bytes_in_flight, admission.requests_in_flight


def test_a_ticket_holds_its_bytes_until_it_is_released():
    admission = Admission(100, 9, 1)

    first = admission.admit(60)
    second = admission.admit(40)

    assert lent_out(admission) == (100, 2)
    assert (first.reserved, second.reserved) == (60, 40)
    first.release()
    assert lent_out(admission) == (40, 1)
    second.release()
    assert lent_out(admission) == (0, 0)


def test_releasing_twice_gives_back_once():
    admission = Admission(100, 9, 1)
    other, ticket = admission.admit(10), admission.admit(60)

    ticket.release()
    ticket.release()

    assert lent_out(admission) == (10, 1)
    other.release()


def test_a_context_releases_whatever_happens():
    admission = Admission(100, 9, 1)

    with pytest.raises(KeyError), admission.admit(60):  # noqa: PT012 # what is inside is what is tested
        assert lent_out(admission) == (60, 1)
        raise KeyError

    assert lent_out(admission) == (0, 0)


def test_more_than_the_whole_budget_is_refused_for_good():
    admission = Admission(1000, 9, 1)

    with pytest.raises(LimitExceeded, match=r"is 1,001 bytes; this server allows 1,000") as caught:
        admission.admit(1001)

    expected = {"limit": 1000, "actual": 1001, "setting": "TENSORPOST_MEMORY_BYTES", "unit": "bytes"}
    assert expected == caught.value.extra
    assert lent_out(admission) == (0, 0)
    admission.admit(1000).release()


def test_more_than_is_left_is_refused_for_now():
    admission = Admission(1000, 9, 7)
    ticket = admission.admit(600)

    with pytest.raises(TooBusy, match=r"needs 401 bytes and 400 of 1,000 are free now .* try again in 7 s") as caught:
        admission.admit(401)

    assert caught.value.extra == {"retry_after_seconds": 7, "setting": "TENSORPOST_MEMORY_BYTES"}
    assert lent_out(admission) == (600, 1)
    ticket.release()
    admission.admit(401).release()


def test_one_request_more_than_allowed_is_refused_for_now():
    admission = Admission(1000, 2, 1)
    tickets = [admission.admit(0), admission.admit(1)]

    with pytest.raises(TooBusy, match="2 requests are in flight") as caught:
        admission.admit(0)

    assert caught.value.extra["setting"] == "TENSORPOST_MAX_REQUESTS"
    assert lent_out(admission) == (1, 2)
    for ticket in tickets:
        ticket.release()
    admission.admit(0).release()


def test_a_ticket_may_grow_and_stays_one_request():
    admission = Admission(100, 1, 1)

    with admission.admit(60) as ticket:
        ticket.grow(30)
        assert lent_out(admission) == (90, 1)
        with pytest.raises(LimitExceeded, match="is 101 bytes"):
            ticket.grow(11)
        assert (lent_out(admission), ticket.reserved) == ((90, 1), 90)

    assert lent_out(admission) == (0, 0)


def test_a_ticket_cannot_grow_into_what_others_have():
    admission = Admission(100, 9, 1)

    with admission.admit(60), admission.admit(10) as ticket:
        with pytest.raises(TooBusy, match="needs 31 bytes and 30 of 100"):
            ticket.grow(31)
        ticket.grow(30)
        assert lent_out(admission) == (100, 2)

    assert lent_out(admission) == (0, 0)


def test_memory_of_a_ticket_can_be_written_and_is_its_own():
    with Admission(1000, 9, 1).admit(8) as ticket:
        first, second = ticket.memory(4), ticket.memory(4)
        first[:] = b"abcd"
        second[:] = b"efgh"

        assert (bytes(first), bytes(second)) == (b"abcd", b"efgh")
        assert (first.readonly, first.c_contiguous, first.format) == (False, True, "B")
        assert ticket.memory(0).nbytes == 0


class Counting(RuleBasedStateMachine):
    """Any order of requests, against a plain list of what is out."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission(100, 4, 1)
        self.out: list[Ticket] = []

    @rule(target=tickets, size=st.integers(0, 130))
    def admit(self, size: int) -> Any:
        fits = sum(ticket.reserved for ticket in self.out) + size <= 100 and len(self.out) < 4
        try:
            ticket = self.admission.admit(size)
        except TooBusy:
            assert size <= 100
            assert not fits
            return None
        except LimitExceeded:
            assert size > 100
            return None
        assert fits
        self.out.append(ticket)
        return ticket

    @rule(ticket=tickets, size=st.integers(0, 60))
    def grow(self, ticket: Ticket | None, size: int) -> None:
        if ticket is None:
            return
        together, all_together = ticket.reserved + size, sum(each.reserved for each in self.out) + size
        try:
            ticket.grow(size)
        except TooBusy:
            assert together <= 100 < all_together
        except LimitExceeded:
            assert together > 100
        else:
            assert all_together <= 100

    @rule(ticket=consumes(tickets))
    def release(self, ticket: Ticket | None) -> None:
        if ticket is not None:
            ticket.release()
            self.out.remove(ticket)

    @invariant()
    def counts_are_exact(self) -> None:
        assert (sum(ticket.reserved for ticket in self.out), len(self.out)) == lent_out(self.admission)


TestCounting = Counting.TestCase
TestCounting.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
