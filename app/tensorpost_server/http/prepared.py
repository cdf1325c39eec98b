"""Calls that are understood, planned and found within the limits, and where they are remembered.

Everything here follows from the bytes of a request before its tensors: path, query, three header fields, Content-Length
and the head of the body. So the same bytes need to be understood once. What depends on the moment, a device's choice
and the memory budget, is never part of it, and refusals are not remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..engine import Worker
from ..planning import Plan
from .calls import Call, Dialect
from .forms import Form
from .remembered import Remembered

__all__ = ["AnswerHead", "HeadKey", "Opening", "OpeningKey", "Prepared", "PreparedCalls", "head_length"]

_LONGEST_HEAD = 4096  # bytes; ours have a few hundred, and a longer one is most likely not sent again
_NPY_START = b"\x93NUMPY\x01\x00"
_MOST_OPENINGS, _OPENINGS_BYTES = 256, 256 * 1024
_MOST_CALLS, _CALLS_BYTES = 1024, 8 * 1024 * 1024
_OBJECTS = 6 * 1024  # bytes of the objects of one call beside its texts: descriptor, plan and answer heads
_DIMENSION = 192  # bytes of those for each dimension of its tensors, which are up to 64 in ONNX


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """What path and header fields say.

    Attributes:
        name: the operator's name in the path; it exists.
        dialect: how to read it.
        form: of the body.
        answer: form of the answer.
        lone_tensor: the name of the one tensor of an npy body; empty for other forms.
    """

    name: str
    dialect: Dialect
    form: Form
    answer: Form
    lone_tensor: str


@dataclass(frozen=True, slots=True, eq=False)
class AnswerHead:
    """What an answer begins with if a certain worker makes it.

    Attributes:
        headers: all but those that differ from request to request.
        lines: the same, as they are sent.
        head: the bytes before the output's.
        small: whether that worker computes the output on the event loop's thread, but for the first time.
    """

    headers: tuple[tuple[bytes, bytes], ...]
    lines: bytes
    head: bytes
    small: bool


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A call that has been found right, whatever its tensors hold.

    Attributes:
        call: what is asked for.
        id: the caller's id for it.
        plan: what will be done; within the limits.
        sizes: bytes of each tensor, in the order of the body.
        order: which of them each input of the plan is.
        memory_bytes: what to reserve for it, tensors included.
        answers: by worker; filled as workers are chosen.
    """

    call: Call
    id: str | None
    plan: Plan
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    memory_bytes: int
    answers: dict[Worker, AnswerHead] = field(default_factory=dict[Worker, AnswerHead])


OpeningKey = tuple[Dialect, str, bytes | None, bytes | None, bytes | None]
HeadKey = tuple[Opening, bytes, int, bytes]


class PreparedCalls:
    """What one application remembers; its settings do not change."""

    __slots__ = ("calls", "openings")

    def __init__(self) -> None:
        self.openings = Remembered[OpeningKey, Opening](_MOST_OPENINGS, _OPENINGS_BYTES)
        self.calls = Remembered[HeadKey, Prepared](_MOST_CALLS, _CALLS_BYTES)

    def keep_opening(self, key: OpeningKey, opening: Opening) -> None:
        """Remember an opening."""
        self.openings.put(key, opening, sum(len(part) for part in key[1:] if part is not None) + 256)

    def keep_call(self, key: HeadKey, prepared: Prepared) -> None:
        """Remember a call that nothing but its head decides."""
        # The head that is answered repeats the document, and so does the descriptor.
        texts = len(key[1]) + len(key[3]) + 3 * len(prepared.call.document)
        slots = (*prepared.plan.inputs, *prepared.plan.outputs)
        dimensions = sum(len(slot.layout.sizes) for slot in slots)
        self.calls.put(key, prepared, texts + _OBJECTS + _DIMENSION * dimensions)


def head_length(form: Form, begin: bytes | memoryview) -> int:
    """Length of the head that a body begins with, in bytes, as far as its first bytes tell.

    Returns:
        0 where it is not worth remembering: the head is long, not there yet, or of a rare kind.
    """
    if form is Form.NPY:
        length = 10 + int.from_bytes(begin[8:10], "little") if bytes(begin[:8]) == _NPY_START else 0
    elif form is Form.FRAME:
        length = 8 + int.from_bytes(begin[:8], "little")
    else:
        length = 0
    return length if length <= _LONGEST_HEAD and length <= len(begin) else 0
