"""The memory budget. A request gets its bytes before any of its tensors is read, or is refused before they are sent.

A refused request costs a few hundred bytes, and an admitted one always has the memory it needs. Used from the event
loop's thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tensorpost.problems import LimitExceeded, TooBusy

from .buffer_pool import BufferPool

__all__ = ["Admission", "Ticket"]


class Ticket:
    """A request's share of the budget, from `Admission.admit` until `release`; also a context manager."""

    def __init__(self, admission: Admission, reserved: int) -> None:
        self._admission: Admission | None = admission
        self.reserved = reserved

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
        self._admission.reserve(size_in_bytes, self.reserved + size_in_bytes)
        self.reserved += size_in_bytes

    def release(self) -> None:
        """Release the share; a second call does nothing."""
        if self._admission is not None:
            self._admission.release(self.reserved)
            self._admission = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@dataclass(slots=True)
class Admission:
    """Counts bytes and requests in flight.

    Attributes:
        memory_bytes: bytes that all requests together may hold.
        max_requests: requests that may be in flight.
        retry_after_seconds: what a refused caller is told to wait.
        buffers: the pool that the memory comes from.
    """

    memory_bytes: int
    max_requests: int
    retry_after_seconds: int
    bytes_in_flight: int = 0
    requests_in_flight: int = 0
    buffers: BufferPool = field(default_factory=lambda: BufferPool(0))

    def admit(self, size_in_bytes: int) -> Ticket:
        """Reserve a slot and bytes for one request.

        Raises:
            LimitExceeded: more than the whole budget; waiting will not help.
            TooBusy: more than is free now, or too many requests; `extra["retry_after_seconds"]` says when to come back.
        """
        self._refuse_larger_than_budget(size_in_bytes)
        if self.requests_in_flight >= self.max_requests:
            raise self._busy(f"{self.requests_in_flight} requests are in flight", "TENSORPOST_MAX_REQUESTS")
        self.reserve(size_in_bytes, size_in_bytes)
        self.requests_in_flight += 1
        return Ticket(self, size_in_bytes)

    def has_room(self, size_in_bytes: int) -> bool:
        """Whether `admit` would admit such a request now."""
        return self.requests_in_flight < self.max_requests and self.bytes_in_flight + size_in_bytes <= self.memory_bytes

    def reserve(self, size_in_bytes: int, whole: int) -> None:
        """Count bytes for a request that then has `whole`; called by its ticket.

        Raises:
            LimitExceeded: `whole` is more than the budget.
            TooBusy: as `admit`.
        """
        self._refuse_larger_than_budget(whole)
        free = self.memory_bytes - self.bytes_in_flight
        if size_in_bytes > free:
            raise self._busy(
                f"this request needs {size_in_bytes:,} bytes and {free:,} of {self.memory_bytes:,} are free now",
                "TENSORPOST_MEMORY_BYTES",
            )
        self.bytes_in_flight += size_in_bytes

    def release(self, size_in_bytes: int) -> None:
        """Return a ticket's bytes; called by the ticket."""
        self.bytes_in_flight -= size_in_bytes
        self.requests_in_flight -= 1

    def _refuse_larger_than_budget(self, whole: int) -> None:
        if whole > self.memory_bytes:
            raise LimitExceeded.of(
                "the memory this request needs (inputs and a few output slices)", whole, self.memory_bytes,
                "TENSORPOST_MEMORY_BYTES",
            )  # fmt: skip

    def _busy(self, why: str, setting: str) -> TooBusy:
        return TooBusy(
            f"too busy: {why} (setting {setting}); try again in {self.retry_after_seconds} s",
            extra={"retry_after_seconds": self.retry_after_seconds, "setting": setting},
        )
