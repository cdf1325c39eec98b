"""`Replay`: identical small calls are answered before ASGI.

With a small response, the application hands a `Replay` to the server. A server that receives the same HTTP head again,
byte for byte, calls the `Replay` with the body: no parsing of HTTP, no scope, no task, no messages, which together take
longer than the operator.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from starlette.types import Scope

from tensorpost.values.problems import TensorpostError

from ..engine import Stages, StepTimes, Ticket
from .caller_address import FORWARDED_FOR, caller_name
from .calls.prepared_call import RequestKey, received_tensors
from .headers import header_fields, request_id
from .observability.request_record import RequestRecord
from .response_sender import changing_field_lines
from .service import Service


class Replay:
    """Answers requests whose HTTP head is the same, byte for byte, as that of a request that was answered.

    Args:
        service: the service of the application that answered.
        key: what the head of the answered request says.
        sent_id: the X-Request-ID in the HTTP head; None if there is none.
        scope: the ASGI scope of the answered request. Its path is that of the others too, and so is the name of its API
            key, which the head holds; an address need not be.
    """

    __slots__ = ("_declined", "_forwarded", "_key", "_key_name", "_path", "_proxies", "_sent_id", "_service")

    def __init__(self, service: Service, key: RequestKey, sent_id: bytes | None, scope: Scope) -> None:
        self._service, self._key, self._sent_id = service, key, sent_id
        self._path = scope["path"]
        self._proxies = service.proxies
        self._forwarded = None if self._proxies is None else header_fields(scope["headers"]).get(FORWARDED_FOR)
        self._key_name = None if service.access.anonymous else scope.get("tensorpost.caller")
        self._declined = False  # a body that was received for it

    def __call__(
        self, body: bytes | memoryview, address: str | None, reserved_bytes: int = 0, receive_seconds: float = 0.0
    ) -> tuple[bytes, bytes, int] | None:
        """Compute the response to a request with this body.

        Args:
            body: the whole body, which does not change any more.
            address: the peer's address; None on a Unix socket.
            reserved_bytes: memory that is reserved for the call.
            receive_seconds: how long the body was received.

        Returns:
            The lines of the response's header fields, its body, and how many nodes were computed. None if the call is
            not in the cache, not small, or cannot be answered with 200 now; nothing has changed then, and the
            application has the right answer.
        """
        service, key, stages = self._service, self._key, Stages()
        length = key.format.head_length(body)
        prepared = service.calls.get((key, bytes(body[:length]))) if length else None
        pool = service.pool
        if prepared is None or pool is None or pool.lost is not None:
            return None
        if prepared.stored is not None and not prepared.stored.use():
            return None
        stages.done("head")
        try:
            options = prepared.options
            worker = pool.choose(prepared.plan, options.backend, options.device)
            head = prepared.heads.get(worker)
            memory = received_tensors(memoryview(body)[length:], prepared.sizes) if prepared.aligned else None
            stages.done("plan")
            # No memory is reserved now, because nothing else runs on this thread until the response is made.
            if head is None or not head.inline or memory is None:
                return None
            missing = prepared.memory_bytes + worker.backend.held_bytes(prepared.plan) - reserved_bytes
            if (missing > 0 or not reserved_bytes) and not service.admission.has_room(missing):
                return None
            stages.done("admit")
            inputs = [memory[index] for index in prepared.order]
            stages.done("receive")
            stages.milliseconds["receive"] += receive_seconds * 1e3
            steps = StepTimes(prepared.plan) if prepared.plan.is_graph else None
            head, output = prepared.respond_now(worker, inputs, head, steps)
        except (TensorpostError, MemoryError):
            return None  # the application meets the same error, and answers it
        stages.done("compute")
        id_, took, timing = request_id(self._sent_id), stages.milliseconds, str(stages)
        if service.records is not None:
            plan = prepared.plan
            record = RequestRecord(
                time.time(), id_, self._caller(address), "POST", self._path, plan.op_type,
                head.backend, 200, None, len(body), len(output), 1, took, sum(took.values()) / 1e3, None,
                plan.opset_version, None if steps is None else steps.record(every_step=False), False,
                None if prepared.stored is None else prepared.stored.version, timing,
            )  # fmt: skip
            service.records.add(record)
        return head.lines + changing_field_lines(id_, timing), output, len(prepared.plan.graph.nodes)

    def receive(self, memory_bytes: int, length: int, address: str | None) -> ReplayReception | None:
        """Reserve the memory of a call whose body arrives in parts.

        Args:
            memory_bytes: memory that the call takes, the body included.
            length: length of the body, bytes.
            address: the peer's address; None on a Unix socket.

        Returns:
            What receives the body and answers it; None if the application has to: the memory is not free now, or the
            last such body could not be answered here.
        """
        admission = self._service.admission
        if self._declined or not admission.has_room(memory_bytes):
            return None
        try:
            ticket = admission.admit(memory_bytes, caller_name(self._caller(address)))
        except TensorpostError:
            return None  # the application meets the same error, and answers it
        return ReplayReception(ticket, ticket.memory(length), partial(self._answer_received, address))

    def _answer_received(
        self, address: str | None, body: memoryview, reserved_bytes: int, seconds: float
    ) -> tuple[bytes, bytes, int] | None:
        response = self(body, address, reserved_bytes, seconds)
        self._declined = response is None
        return response

    def _caller(self, address: str | None) -> str:
        """Whose request it is, as records call the caller."""
        if self._proxies is not None:
            address = self._proxies.caller(address, self._forwarded)
        return self._key_name or address or "local"


class ReplayReception:
    """Memory that the body of a call is received into; see `Reception`.

    Args:
        ticket: the call's memory, which is released when this ends.
        memory: room for the body.
        answer: answers the body, given the bytes that are reserved and the seconds since now.
    """

    __slots__ = ("_answer", "_begin", "_ticket", "memory")

    def __init__(
        self, ticket: Ticket, memory: memoryview,
        answer: Callable[[memoryview, int, float], tuple[bytes, bytes, int] | None],
    ) -> None:  # fmt: skip
        self._ticket, self.memory, self._answer = ticket, memory, answer
        self._begin = time.perf_counter()

    def answer(self) -> tuple[bytes, bytes, int] | None:
        """See `Replay.__call__`."""
        return self._answer(self.memory.toreadonly(), self._ticket.reserved, time.perf_counter() - self._begin)

    def end(self) -> None:
        """Release the memory; a second call does nothing."""
        self._ticket.release()
