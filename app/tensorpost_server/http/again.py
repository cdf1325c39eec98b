"""The same call with other numbers: how a server may answer it without asking the application again.

Callers send the same small call over and over. All that is decided about it follows from the bytes of its head and of
the head of its body, and is remembered (`prepared.py`). A server that has seen the same head before can hand the body
to `Again`, past the parsing of the head, the scope, the task and the messages of ASGI, which together take longer than
the operator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorpost.problems import TensorpostError

from ..engine import Stages
from .middleware import request_id_of
from .prepared import Opening, head_length
from .service import Service

__all__ = ["Again", "field_lines_of_one", "in_place"]

_ALIGNED = 16  # bytes; bytes objects of CPython hold their content at such an address, and our heads fill such blocks


class Again:
    """Answers requests whose head is the same, byte for byte, as that of one that was answered.

    Args:
        service: of the application that answered.
        opening: what the head says.
        query: its query string.
        request_id: the X-Request-ID in it; None if there is none.
    """

    __slots__ = ("_given_id", "_opening", "_query", "_service")

    def __init__(self, service: Service, opening: Opening, query: bytes, request_id: bytes | None) -> None:
        self._service, self._opening, self._query, self._given_id = service, opening, query, request_id

    def __call__(self, body: bytes) -> tuple[bytes, bytes] | None:
        """The answer to a request with this body, computed now.

        Args:
            body: the whole body, as long as the head says.

        Returns:
            The header fields of the answer, as they are sent, and its body. None if this call is not known, not small
            or cannot be answered with 200 now; nothing has changed then, and the application knows what to say.
        """
        service, opening, stages = self._service, self._opening, Stages()
        length = head_length(opening.form, body)
        prepared = service.prepared.calls.get((opening, self._query, len(body), body[:length])) if length else None
        pool = service.pool
        if prepared is None or pool is None or pool.lost is not None:
            return None
        stages.done("head")
        try:
            worker = pool.choose(prepared.plan, prepared.call.options.backend, prepared.call.options.device)
            answer = prepared.answers.get(worker)
            memory = in_place(memoryview(body)[length:], prepared.sizes)
            stages.done("plan")
            # Nothing else happens until the answer is made, so its bytes need not be counted, only be there.
            if answer is None or not answer.small or memory is None:
                return None
            if not service.admission.has_room(prepared.memory_bytes):
                return None
            stages.done("admit")
            inputs = [memory[index] for index in prepared.order]
            stages.done("receive")
            output = worker.run_now(prepared.plan, inputs, answer.head)
        except (TensorpostError, MemoryError):
            return None  # the application meets the same, and answers it
        stages.done("compute")
        return answer.lines + field_lines_of_one(request_id_of(self._given_id).encode(), stages), output


def field_lines_of_one(request_id: bytes, stages: Stages) -> bytes:
    """The header fields that differ from answer to answer, as they are sent."""
    return b"x-request-id: %b\r\nserver-timing: %b\r\n" % (request_id, str(stages).encode())


def in_place(there: memoryview, sizes: Sequence[int]) -> list[memoryview] | None:
    """The tensors where they have arrived, if they lie there whole, alone, unchangeable and aligned; else None.

    Args:
        there: the bytes behind the head of a body.
        sizes: bytes of each tensor.
    """
    if not there.readonly or len(there) != sum(sizes) or not there:
        return None
    if np.frombuffer(there, np.uint8).__array_interface__["data"][0] % _ALIGNED:
        return None
    if len(sizes) == 1:
        return [there]
    memory: list[memoryview] = []
    for size in sizes:
        memory.append(there[:size])
        there = there[size:]
    return memory
