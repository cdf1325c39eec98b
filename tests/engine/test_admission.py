"""The memory budget: what is reserved is counted exactly, refused before it is exceeded, and always released."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tensorpost.values.problems import LimitExceeded, TooBusy
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


def test_bytes_that_are_lent_count_after_their_request_has_ended():
    admission = Admission(100, 9, 1)
    ticket = admission.admit(60)

    admission.lend(60)
    ticket.release()

    assert lent_out(admission) == (60, 0)
    with pytest.raises(TooBusy):
        admission.admit(50)
    admission.return_lent(60)
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


# ---- callers ---------------------------------------------------------------------------------------------------------


def admitted(admission: Admission, caller: str, size: int = 0) -> list[Ticket]:
    """Tickets for this caller until it is refused."""
    tickets: list[Ticket] = []
    with suppress(TooBusy):
        while True:
            tickets.append(admission.admit(size, caller))
    return tickets


def test_one_caller_leaves_room_for_others():
    admission = Admission(1000, 256, 1, caller_share=0.75)

    counts = [len(admitted(admission, caller)) for caller in "abc"]

    assert counts == [192, 48, 12]  # three quarters of 256, of 64, of 16


def test_the_refusal_names_the_setting():
    admission = Admission(1000, 4, 1, caller_share=0.5)
    tickets = admitted(admission, "a")

    with pytest.raises(TooBusy, match="2 requests of this caller") as caught:
        admission.admit(0, "a")

    assert (len(tickets), caught.value.extra["setting"]) == (2, "TENSORPOST_CALLER_SHARE")


def test_one_caller_leaves_memory_for_others():
    admission = Admission(1000, 256, 1, caller_share=0.75)

    assert len(admitted(admission, "a", 10)) == 75
    with pytest.raises(TooBusy, match="needs 11 bytes, and 750 of 750 that this caller may have now") as caught:
        admission.admit(11, "a")

    assert caught.value.extra["setting"] == "TENSORPOST_CALLER_SHARE"
    admission.admit(250, "b").release()


def test_an_only_request_may_have_all_the_memory():
    admission = Admission(1000, 9, 1, caller_share=0.5)

    with admission.admit(600, "a") as ticket:
        ticket.grow(400)
        assert lent_out(admission) == (1000, 1)

    assert not admission.held


def test_what_a_caller_releases_it_may_have_again():
    admission = Admission(1000, 4, 1, caller_share=0.5)
    first, _second = admitted(admission, "a")

    first.release()

    admission.admit(0, "a")
    with pytest.raises(TooBusy):
        admission.admit(0, "a")


# ---- slow uploads ----------------------------------------------------------------------------------------------------


class Uploads:
    """An admission with a clock that stands still, and uploads in it."""

    def __init__(self, max_requests: int, caller_share: float = 1) -> None:
        self.now = 0.0
        self.ended: list[str] = []
        self.admission = Admission(
            1000, max_requests, 1, caller_share=caller_share, slow_upload_seconds=10, clock=lambda: self.now
        )

    def begin(self, name: str, received: int, caller: str = "a") -> Ticket:
        ticket = self.admission.admit(10, caller)
        ticket.uploading(100, lambda: received, lambda: self.ended.append(name))
        return ticket


def test_the_slowest_upload_makes_room():
    uploads = Uploads(3)
    for name, received in (("some", 20), ("slowest", 3), ("fast", 60)):
        uploads.begin(name, received)
    uploads.now = 10

    new = uploads.admission.admit(10, "b")

    assert uploads.ended == ["slowest"]
    assert lent_out(uploads.admission) == (30, 3)
    new.release()


def test_uploads_are_not_ended_while_there_is_room():
    uploads = Uploads(3)
    uploads.begin("slow", 0)
    uploads.now = 1000

    uploads.admission.admit(10, "b")

    assert not uploads.ended


@pytest.mark.parametrize(
    ("seconds", "received"),
    [(9.9, 0), (10, 50), (10, 100)],
    ids=["young", "done in the same time again", "complete"],
)
def test_an_upload_that_is_not_slow_is_kept(seconds: float, received: int):
    uploads = Uploads(1)
    uploads.begin("only", received)
    uploads.now = seconds

    with pytest.raises(TooBusy):
        uploads.admission.admit(10, "b")

    assert not uploads.ended


def test_a_complete_body_is_no_upload():
    uploads = Uploads(1)
    uploads.begin("only", 0).uploaded()
    uploads.now = 1000

    with pytest.raises(TooBusy):
        uploads.admission.admit(10, "b")


def test_a_caller_with_more_requests_pushes_nobody_out():
    uploads = Uploads(3)
    uploads.begin("patient", 1, "b")
    uploads.admission.admit(20, "a")
    uploads.admission.admit(20, "a")
    uploads.now = 1000

    with pytest.raises(TooBusy):
        uploads.admission.admit(10, "a")

    assert not uploads.ended


def test_a_caller_above_its_share_loses_its_own_slow_upload():
    uploads = Uploads(4, caller_share=0.5)
    uploads.begin("other", 0, "b")
    uploads.begin("own", 1, "a")
    uploads.begin("own, faster", 2, "a")
    uploads.now = 20

    uploads.admission.admit(10, "a")

    assert uploads.ended == ["own"]


def test_memory_is_taken_from_a_slow_upload_as_well():
    uploads = Uploads(9)
    uploads.begin("slow", 0).grow(900)
    uploads.now = 20

    uploads.admission.admit(500, "b")

    assert uploads.ended == ["slow"]
    assert lent_out(uploads.admission) == (500, 1)


def test_many_that_are_refused_at_once_are_told_to_come_back_apart() -> None:
    now = [1000.0]
    admission = Admission(100, 0, 1, clock=lambda: now[0])

    def wait() -> int:
        with pytest.raises(TooBusy) as refusal:
            admission.admit(1, "anna")
        return refusal.value.extra["retry_after_seconds"]

    waits = [wait() for _ in range(2000)]
    assert waits[0] == 1
    assert waits == sorted(waits)
    assert {second: waits.count(second) for second in range(2, 20)} == dict.fromkeys(range(2, 20), 100)
    assert {wait() for _ in range(3000)} <= set(range(21, 31)), "the SDK gives up after 30 s"
    now[0] += 31
    assert wait() == 1
