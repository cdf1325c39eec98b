"""`Replay`: identical small calls are answered before ASGI.

With a small response, the application hands a `Replay` to the server. A server that receives the same HTTP head again,
byte for byte, calls the `Replay` with the body: no parsing of HTTP, no scope, no task, no messages, which together take
longer than the operator.
"""

from __future__ import annotations

import time

from starlette.types import Scope

from tensorpost.values.problems import TensorpostError

from ..engine import Stages, StepTimes
from .caller_address import FORWARDED_FOR
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

    __slots__ = ("_forwarded", "_key", "_key_name", "_path", "_proxies", "_sent_id", "_service")

    def __init__(self, service: Service, key: RequestKey, sent_id: bytes | None, scope: Scope) -> None:
        self._service, self._key, self._sent_id = service, key, sent_id
        self._path = scope["path"]
        self._proxies = service.proxies
        self._forwarded = None if self._proxies is None else header_fields(scope["headers"]).get(FORWARDED_FOR)
        self._key_name = None if service.access.anonymous else scope.get("tensorpost.caller")

    def __call__(self, body: bytes, address: str | None) -> tuple[bytes, bytes, int] | None:
        """Compute the response to a request with this body.

        Returns:
            The lines of the response's header fields, its body, and how many nodes were computed. None if the call is
            not in the cache, not small, or cannot be answered with 200 now; nothing has changed then, and the
            application has the right answer.
        """
        service, key, stages = self._service, self._key, Stages()
        length = key.format.head_length(body)
        prepared = service.calls.get((key, body[:length])) if length else None
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
            # The memory is not reserved, because nothing else runs on this thread until the response is made.
            if head is None or not head.inline or memory is None:
                return None
            if not service.admission.has_room(prepared.memory_bytes + worker.backend.held_bytes(prepared.plan)):
                return None
            stages.done("admit")
            inputs = [memory[index] for index in prepared.order]
            stages.done("receive")
            steps = StepTimes(prepared.plan) if prepared.plan.is_graph else None
            head, output = prepared.respond_now(worker, inputs, head, steps)
        except (TensorpostError, MemoryError):
            return None  # the application meets the same error, and answers it
        stages.done("compute")
        id_, took = request_id(self._sent_id), stages.milliseconds
        if service.records is not None:
            plan = prepared.plan
            if self._proxies is not None:
                address = self._proxies.caller(address, self._forwarded)
            record = RequestRecord(
                time.time(), id_, self._key_name or address or "local", "POST", self._path, plan.op_type,
                head.backend, 200, None, len(body), len(output), 1, took, sum(took.values()) / 1e3, None,
                plan.opset_version, None if steps is None else steps.record(every_step=False),
                model_version=None if prepared.stored is None else prepared.stored.version,
            )  # fmt: skip
            service.records.add(record)
        return head.lines + changing_field_lines(id_, stages), output, len(prepared.plan.graph.nodes)
