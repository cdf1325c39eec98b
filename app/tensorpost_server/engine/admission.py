"""The memory budget. A request gets its bytes before any of its tensors is read, or is refused before they are sent.

A refused request costs a few hundred bytes, and an admitted one always has the memory it needs. Used from the event
loop's thread only.

Nobody gets everything: a caller that has requests in flight gets another one only while all of its requests together
keep to a share of what the others left (dynamic thresholds after Choudhury and Hahne, "Dynamic queue length thresholds
for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998). So there is room for one more
caller, whatever one caller does. When there is none, the slowest upload makes room.

Several processes have one budget: each counts what it has, and `counts` has what the others have.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tensorpost.values.problems import InsufficientStorage, LimitExceeded, TooBusy

from ..shared.counts import NoOthers, ProcessCounts
from .buffer_pool import BufferPool

REFUSALS_PER_SECOND = 100
"""So many callers are told to come back in the same second. A refusal costs as much time as a small answer."""

LONGEST_WAIT_SECONDS = 30
"""The SDK gives up when its waits are longer."""

_KEPT = "\0kept"  # no caller is called so


class Ticket:
    """A request's share of the budget, from `Admission.admit` until `release`; also a context manager."""

    def __init__(self, admission: Admission, reserved: int, caller: str = "") -> None:
        self._admission: Admission | None = admission
        self.reserved = reserved
        self.caller = caller

    def memory(self, size_in_bytes: int, source: Callable[[int], memoryview | None] | None = None) -> memoryview:
        """Writable bytes out of the share, in use for as long as a view of them exists; their content is undefined.

        Args:
            size_in_bytes: how many.
            source: where they come from, if it has any: a backend's `host_memory`, if the tensor is for its device.
        """
        assert self._admission is not None, "released"
        memory = None if source is None else source(size_in_bytes)
        return self._admission.buffers.allocate(size_in_bytes) if memory is None else memory

    def grow(self, size_in_bytes: int) -> None:
        """Reserve more for the same request.

        Raises:
            LimitExceeded: both together are more than the whole budget.
            TooBusy: more than is free now. The ticket keeps what it had.
        """
        assert self._admission is not None, "released"
        self._admission.reserve(size_in_bytes, self.reserved + size_in_bytes, self.caller, self)
        self.reserved += size_in_bytes

    def uploading(self, length: int, received: Callable[[], int], end: Callable[[], object]) -> None:
        """The request's body is arriving, from now until `uploaded`; a slow one may be ended.

        Args:
            length: length of the body, bytes.
            received: says how many of them have arrived.
            end: called if the upload is ended, after the ticket was released.
        """
        if self._admission is not None:
            self._admission.uploads[self] = Upload(self._admission.clock(), length, received, end)

    def uploaded(self) -> None:
        """The body is complete."""
        if self._admission is not None:
            self._admission.uploads.pop(self, None)

    def release(self) -> None:
        """Release the share; a second call does nothing."""
        if self._admission is not None:
            self._admission.release(self)
            self._admission = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class Upload:
    """A body that is arriving.

    Attributes:
        began: time at which it began, by the admission's clock.
        length: bytes of the body.
        received: says how many of them have arrived.
        end: called if the upload is ended.
    """

    began: float
    length: int
    received: Callable[[], int]
    end: Callable[[], object]

    def bytes_per_second(self, now: float) -> float:
        """The mean rate of the upload so far."""
        return self.received() / max(now - self.began, 1e-9)

    def is_slow(self, now: float, seconds: float) -> bool:
        """Whether the upload has taken that many seconds, and needs more than that again at its rate."""
        missing = self.length - self.received()
        return now - self.began >= seconds and missing > self.bytes_per_second(now) * seconds


@dataclass(slots=True)
class Held:
    """What one caller holds: requests, and their bytes."""

    requests: int = 0
    bytes: int = 0


_NOTHING = Held()


@dataclass(slots=True)
class Admission:
    """Counts bytes and requests in flight.

    Attributes:
        memory_bytes: bytes that all requests together may hold.
        max_requests: requests that may be in flight.
        retry_after_seconds: what a refused caller is told to wait at least.
        own_bytes: bytes of this process.
        own_requests: requests of this process.
        own_kept_bytes: bytes that stay beyond requests, of those of this process.
        buffers: the pool that the memory comes from.
        caller_share: part, up to 1, of what the others left, that one caller may hold with more than one request.
        slow_upload_seconds: how long a body may arrive before it may be ended to make room.
        clock: seconds, ascending.
        held: what each caller holds in this process, by caller; those that hold nothing are left out.
        uploads: uploads in progress, by ticket; the oldest first.
        counts: what other processes have, in requests and bytes.
    """

    memory_bytes: int
    max_requests: int
    retry_after_seconds: int
    own_bytes: int = 0
    own_requests: int = 0
    own_kept_bytes: int = 0
    buffers: BufferPool = field(default_factory=lambda: BufferPool(0))
    caller_share: float = 1.0
    slow_upload_seconds: float = math.inf
    clock: Callable[[], float] = time.monotonic
    held: dict[str, Held] = field(default_factory=dict[str, Held])
    uploads: dict[Ticket, Upload] = field(default_factory=dict[Ticket, Upload])
    counts: ProcessCounts = field(default_factory=NoOthers)
    _next_turn: float = 0.0

    @property
    def bytes_in_flight(self) -> int:
        """Bytes that requests hold, and bytes that stay."""
        return self.own_bytes + self.counts.others(None).second + self.counts.held_bytes

    @property
    def requests_in_flight(self) -> int:
        """Requests that have a place."""
        return self.own_requests + self.counts.others(None).first

    @property
    def kept_bytes(self) -> int:
        """Bytes that stay beyond requests, of those in flight."""
        return self.own_kept_bytes + self.counts.others(_KEPT).first + self.counts.held_bytes

    def admit(self, size_in_bytes: int, caller: str = "") -> Ticket:
        """Reserve a slot and bytes for one request.

        Args:
            size_in_bytes: memory that it needs.
            caller: whose request it is.

        Raises:
            LimitExceeded: more than the whole budget; waiting will not help.
            TooBusy: more than is free now, or too many requests; `extra["retry_after_seconds"]` says when to come back.
        """
        self._refuse_larger_than_budget(size_in_bytes)
        with self.counts.lock():
            while self.requests_in_flight >= self.max_requests:
                if not self._end_slow_upload(caller):
                    raise self._busy(f"{self.requests_in_flight} requests are in flight", "TENSORPOST_MAX_REQUESTS")
            while (held := self._held_by(caller)).requests:
                most = math.ceil(self.caller_share * (self.max_requests - self.requests_in_flight + held.requests))
                if held.requests < most:
                    break
                if not self._end_slow_upload(caller, own_only=True):
                    raise self._busy(
                        f"{held.requests} requests of this caller are in flight", "TENSORPOST_CALLER_SHARE"
                    )
            self._reserve(size_in_bytes, caller)
            self.own_requests += 1
            self.held[caller].requests += 1
            self._publish(caller)
        return Ticket(self, size_in_bytes, caller)

    def keep(self, size_in_bytes: int, copies: int = 1) -> None:
        """Count bytes that stay beyond the request that brought them, until `give_back`; they are nobody's share.

        All that stays together is at most half of the budget, so that there is always room for requests.

        Args:
            size_in_bytes: how many.
            copies: the number of processes in which they will stay; each counts them, and there must be room for all.

        Raises:
            LimitExceeded: more than half of the budget.
            InsufficientStorage: more than is left of that half; waiting does not change that.
            TooBusy: more than is free of the budget now.
        """
        with self.counts.lock():
            self._check_kept(size_in_bytes * copies)
            self._add_kept(size_in_bytes)

    def give_back(self, size_in_bytes: int) -> None:
        """End what `keep` counted."""
        self._add_kept(-size_in_bytes)

    def hold(self, size_in_bytes: int) -> None:
        """Count bytes of a held tensor, which belongs to no process; see `keep`. Ended by `let_go`."""
        with self.counts.lock():
            self._check_kept(size_in_bytes)
            self.counts.hold(size_in_bytes)

    def let_go(self, size_in_bytes: int) -> None:
        """End what `hold` counted."""
        self.counts.hold(-size_in_bytes)

    def lend(self, size_in_bytes: int) -> None:
        """Go on counting bytes of a request that ends now, whose memory others use for a while; until `return_lent`."""
        self.own_bytes += size_in_bytes
        self._publish()

    def return_lent(self, size_in_bytes: int) -> None:
        """End what `lend` counted."""
        self.own_bytes -= size_in_bytes
        self._publish()

    def has_room(self, size_in_bytes: int) -> bool:
        """Whether `admit` would admit such a request now."""
        others = self.counts.others(None)
        in_flight = self.own_bytes + others.second + self.counts.held_bytes
        return self.own_requests + others.first < self.max_requests and in_flight + size_in_bytes <= self.memory_bytes

    def reserve(self, size_in_bytes: int, whole: int, caller: str = "", ticket: Ticket | None = None) -> None:
        """Count bytes for a request that then has `whole`; called by its ticket.

        Args:
            size_in_bytes: how many.
            whole: bytes of the request together.
            caller: whose request it is.
            ticket: the request's ticket, if it has one.

        Raises:
            LimitExceeded: `whole` is more than the budget.
            TooBusy: `size_in_bytes` are not free now; see `admit`.
        """
        self._refuse_larger_than_budget(whole)
        with self.counts.lock():
            self._reserve(size_in_bytes, caller, ticket)
            self._publish(caller)

    def release(self, ticket: Ticket) -> None:
        """Return a ticket's bytes; called by the ticket."""
        self.uploads.pop(ticket, None)
        self.own_bytes -= ticket.reserved
        self.own_requests -= 1
        held = self.held[ticket.caller]
        held.bytes -= ticket.reserved
        held.requests -= 1
        if not held.requests:
            del self.held[ticket.caller]
        self._publish(ticket.caller)

    def _reserve(self, size_in_bytes: int, caller: str, ticket: Ticket | None = None) -> None:
        """See `reserve`."""
        while size_in_bytes > (free := self.memory_bytes - self.bytes_in_flight):
            if not self._end_slow_upload(caller, ticket):
                raise self._busy(
                    f"this request needs {size_in_bytes:,} bytes and {free:,} of {self.memory_bytes:,} are free now",
                    "TENSORPOST_MEMORY_BYTES",
                )
        only = 0 if ticket is None else 1  # a caller's only request may have any size
        while (held := self._held_by(caller)).requests > only:
            most = math.ceil(self.caller_share * (free + held.bytes))
            if held.bytes + size_in_bytes <= most:
                break
            if not self._end_slow_upload(caller, ticket, own_only=True):
                raise self._busy(
                    f"this request needs {size_in_bytes:,} bytes, and {held.bytes:,} of {most:,} that this caller may "
                    "have now are in use",
                    "TENSORPOST_CALLER_SHARE",
                )
            free = self.memory_bytes - self.bytes_in_flight
        self.own_bytes += size_in_bytes
        self.held.setdefault(caller, Held()).bytes += size_in_bytes

    def _held_by(self, caller: str) -> Held:
        """What a caller holds in all processes."""
        others, own = self.counts.others(caller), self.held.get(caller, _NOTHING)
        return Held(own.requests + others.first, own.bytes + others.second)

    def _publish(self, caller: str | None = None) -> None:
        """Let the other processes know what this one has, and a caller in it."""
        self.counts.publish(None, self.own_requests, self.own_bytes)
        if caller is not None:
            held = self.held.get(caller, _NOTHING)
            self.counts.publish(caller, held.requests, held.bytes)

    def _check_kept(self, size_in_bytes: int) -> None:
        most, kept = self.memory_bytes // 2, self.kept_bytes
        if size_in_bytes > most:
            raise LimitExceeded.of(
                "the memory that is kept", size_in_bytes, most, "TENSORPOST_MEMORY_BYTES, half of it"
            )
        if kept + size_in_bytes > most:
            setting, actual = "TENSORPOST_MEMORY_BYTES, half of it", kept + size_in_bytes
            raise InsufficientStorage(
                f"the memory of all that stays here would be {actual:,} bytes, and this server allows {most:,} "
                f"(setting {setting}); delete held tensors or stored graphs",
                extra={"limit": most, "actual": actual, "setting": setting},
            )
        free = self.memory_bytes - self.bytes_in_flight
        if size_in_bytes > free:
            raise self._busy(
                f"{size_in_bytes:,} bytes are to be kept, and {free:,} of {self.memory_bytes:,} are free now",
                "TENSORPOST_MEMORY_BYTES",
            )

    def _add_kept(self, size_in_bytes: int) -> None:
        self.own_bytes += size_in_bytes
        self.own_kept_bytes += size_in_bytes
        self._publish()
        self.counts.publish(_KEPT, self.own_kept_bytes)

    def _end_slow_upload(self, caller: str, own_ticket: Ticket | None = None, *, own_only: bool = False) -> bool:
        """End the slowest upload to make room for a request of this caller; False if none may be ended.

        An upload of another caller is ended only if that caller holds more than this one: nobody can push out a caller
        by coming back again and again.

        Args:
            caller: the caller whose request wants room.
            own_ticket: the ticket of that request, which is not ended, if it has one.
            own_only: whether only uploads of this caller may be ended.
        """
        now, mine = self.clock(), self._held_by(caller)
        slow = [
            (upload.bytes_per_second(now), index, ticket, upload)
            for index, (ticket, upload) in enumerate(self.uploads.items())
            if ticket is not own_ticket
            and (ticket.caller == caller if own_only else self._may_push_out(mine, caller, ticket))
            and upload.is_slow(now, self.slow_upload_seconds)
        ]
        if not slow:
            return False
        _, _, ticket, upload = min(slow)
        ticket.release()
        upload.end()
        return True

    def _may_push_out(self, mine: Held, caller: str, ticket: Ticket) -> bool:
        theirs = self._held_by(ticket.caller)
        return ticket.caller == caller or theirs.requests > mine.requests or theirs.bytes > mine.bytes

    def _refuse_larger_than_budget(self, whole: int) -> None:
        if whole > self.memory_bytes:
            raise LimitExceeded.of(
                "the memory this request needs (inputs and a few output slices)", whole, self.memory_bytes,
                "TENSORPOST_MEMORY_BYTES",
            )  # fmt: skip

    def _busy(self, why: str, setting: str) -> TooBusy:
        wait = self._wait()
        return TooBusy(
            f"too busy: {why} (setting {setting}); try again in {wait} s",
            extra={"retry_after_seconds": wait, "setting": setting},
        )

    def _wait(self) -> int:
        """Seconds to tell a refused caller: REFUSALS_PER_SECOND callers are told to come back in each second."""
        now, least = self.clock(), self.retry_after_seconds
        self._next_turn = min(max(self._next_turn, now) + 1 / REFUSALS_PER_SECOND, now + LONGEST_WAIT_SECONDS)
        return max(least, min(least + int(self._next_turn - now), LONGEST_WAIT_SECONDS))
