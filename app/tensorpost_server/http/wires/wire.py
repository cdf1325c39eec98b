"""`Wire`: one form of requests and answers; and what it may use while it reads a body."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

from ...engine import Ticket
from ...settings import Settings
from ..background_threads import CallerThreads
from ..caller_watch import CallerWatch
from ..calls.call import Answer, Call, CallFormat, OpenSink
from ..request_body import RequestBody


class ReadContext(Protocol):
    """The request that a wire reads.

    Attributes:
        query: the query string, undecoded.
        head_has_arrived: whether the head is short and already in memory, so that nothing is reserved for it.
        large: whether the call is parsed on a thread.
        parsing: the thread that parses what is large.
        slow_threads: the threads for what may take seconds.
        watch: started as soon as the whole body has been received.
    """

    body: RequestBody
    query: str
    head_has_arrived: bool
    large: bool
    settings: Settings
    parsing: CallerThreads
    slow_threads: CallerThreads
    watch: CallerWatch

    def reserve(self, size_in_bytes: int) -> Ticket:
        """Admit the request, or reserve more for it, in bytes.

        Raises:
            TooBusy: the memory is not there now.
            LimitExceeded: there is never so much.
        """
        ...


class Wire(Protocol):
    """Reads the request of one path into a call; one for each request."""

    @property
    def key(self) -> Hashable:
        """What of the path decides what a call means."""
        ...

    @property
    def takes_long(self) -> bool:
        """Whether reading and planning its calls may take long, whatever their size."""
        ...

    @property
    def needs_devices(self) -> bool:
        """Whether its calls are refused when a device was lost; a read of host memory is not."""
        ...

    def format(self, fields: Mapping[bytes, bytes], length: int) -> CallFormat:
        """How the request is read and answered.

        Args:
            fields: the header fields by name.
            length: bytes of the body; of a chunked body that has not arrived, the most that there may be.

        Raises:
            InvalidRequest: the header fields name none that there is.
        """
        ...

    async def open(self, slow_threads: CallerThreads) -> str | None:
        """Find the operator, before anything of the body is read.

        Returns:
            Its name for the records, if only a library could tell that there is such an operator.

        Raises:
            UnknownOperator: there is none of this name.
        """
        ...

    async def read(self, context: ReadContext, format_: CallFormat) -> Call:
        """Read and parse a call up to its tensors' bytes; and those as well where the operation depends on them.

        Raises:
            TensorpostError: the call is malformed, too large, or the memory is not there now.
        """
        ...

    async def open_sinks(self, answer: Answer) -> Sequence[OpenSink | None]:
        """Memory of the caller for the outputs; None for those that go into the body, or nowhere.

        Raises:
            InvalidRequest: the caller has no such memory.
        """
        ...

    async def finish_sinks(self) -> None:
        """Called when an answer that does not stream has all of its outputs, before it is written.

        Raises:
            TensorpostError: the outputs cannot be where the caller wants them.
        """
        ...

    def close(self) -> None:
        """Release what reading and sinks hold; called once, when the request has ended."""
