"""`Call`: what came in, and where its outputs go. A wire makes it; the execution knows nothing else of the wire."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from numpy.typing import NDArray

from tensorpost.descriptors import FeatureLevel
from tensorpost.onnx.strings import StringCall
from tensorpost.values.datatypes import DataType
from tensorpost.values.graph import Graph
from tensorpost.values.layout import Layout

from ...backends import DeviceMemory
from ...engine import Worker
from ...planning import Plan
from ...settings import Settings
from ..connection.whole_messages import field_lines
from ..headers import NO_SNIFFING
from .batch_settings import BatchSettings


@dataclass(frozen=True, slots=True)
class AnnouncedTensor:
    """A tensor as the head of a body announces it.

    Attributes:
        is_held: whether the server holds it, and the body only refers to it.
    """

    name: str
    data_type: DataType
    shape: tuple[int, ...]
    size_in_bytes: int
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a caller chooses besides the operator.

    Attributes:
        backend: `auto` or a backend's name; None for the server's default.
        device: index of one of the backend's devices; None for any.
        feature_level: DirectML feature level to validate at; None for the newest.
    """

    backend: str | None = None
    device: int | None = None
    feature_level: FeatureLevel | None = None


class CallFormat(Hashable, Protocol):
    """How a request is read and its response is written, as its header fields say."""

    @property
    def may_replay(self) -> bool:
        """Whether a later request with the same head may be replayed: its body begins with a head of its own."""
        ...

    def head_length(self, begin: bytes | memoryview) -> int:
        """Length of the head that a body begins with, in bytes, as far as its first bytes tell.

        Returns:
            0 if it is not worth a cache entry: the head is long, not there yet, or of a rare kind.
        """
        ...

    def text_bytes(self, length: int) -> int:
        """The most bytes that are parsed of a body of this length: its head, or its JSON."""
        ...


# ---- where the tensors are -------------------------------------------------------------------------------------------


class Encoded(Protocol):
    """The tensors of a body that was received and not decoded yet."""

    @property
    def tensors(self) -> Sequence[tuple[str, DataType, tuple[int, ...]]]:
        """Name, type and shape of each tensor, in the order of the body."""
        ...

    @property
    def working_bytes(self) -> int:
        """Memory that decoding takes beside the tensors."""
        ...

    def decode_into(self, memory: Sequence[memoryview], first: int = 0) -> None:
        """Decode some of the tensors.

        Args:
            memory: where to: a block for each of them, as long as the tensor.
            first: index of the first of them.

        Raises:
            InvalidFrame: the body is broken.
        """


class DeviceSource(Protocol):
    """The bytes of an input that lie on a device already."""

    @property
    def worker(self) -> Worker:
        """The worker of that device."""
        ...

    @property
    def memory(self) -> DeviceMemory:
        """Where they lie."""
        ...

    async def read_into(self, target: memoryview) -> None:
        """Copy them to host memory of the same length."""


class OpenSink(Protocol):
    """Memory of the caller that the bytes of an output go to."""

    @property
    def worker(self) -> Worker | None:
        """The worker of the device that it lies on; None for host memory."""
        ...

    def device_memory(self, size_in_bytes: int) -> DeviceMemory:
        """Its first bytes, on a device."""
        ...

    async def write(self, block: memoryview, begin: int) -> None:
        """Copy bytes to a place in it.

        Raises:
            InvalidRequest: they do not lie in it.
        """


class Sink(NamedTuple):
    """Where an output goes.

    Attributes:
        wanted: whether it goes anywhere.
        in_body: whether it goes into the answer's body; else into memory of the caller, or nowhere.
        is_text: whether its elements are strings, whose bytes are known when they are computed.
    """

    wanted: bool = True
    in_body: bool = True
    is_text: bool = False


# ---- the answer ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class PreparedHead:
    """What the answer to a call begins with if a certain worker computes it.

    Attributes:
        headers: the header fields that are the same for each request.
        lines: the same, as they are sent.
        body_head: the bytes of the body before its tensors.
        backend: the backend's name, as in the headers.
        inline: whether that worker computes the call on the event loop's thread, except for the first time.
    """

    headers: tuple[tuple[bytes, bytes], ...]
    lines: bytes
    body_head: bytes
    backend: str
    inline: bool


def prepared_head(
    plan: Plan, worker: Worker, content_type: str, body_head: bytes, length: int, *,
    inline: bool, fields: tuple[tuple[bytes, bytes], ...] = (),
) -> PreparedHead:  # fmt: skip
    """The head of an answer 200."""
    backend = worker.computed_by(plan)
    headers = (
        (b"content-type", content_type.encode()),
        (b"content-length", str(length).encode()),
        (NO_SNIFFING[0].lower().encode(), NO_SNIFFING[1].encode()),
        (b"tensorpost-backend", backend.encode()),
        (b"tensorpost-device", worker.backend.device.encode()),
        *fields,
    )
    return PreparedHead(headers, field_lines(headers), body_head, backend, inline)


class Answer(Protocol):
    """How the outputs of a call go back: frozen, and known before anything is computed."""

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Where each output goes."""
        ...

    @property
    def streams(self) -> bool:
        """Whether the body is a head and then the outputs, so that they are sent while they are computed."""
        ...

    @property
    def encodes(self) -> bool:
        """Whether writing it takes long whatever its size: pictures, archives, compressed bodies."""
        ...

    def check(self, plan: Plan, settings: Settings) -> None:
        """Refuse outputs that it cannot hold.

        Raises:
            LimitExceeded: they are above a limit of this kind of answer.
            NotAcceptable: it holds no such tensors.
        """

    def json_elements(self, plan: Plan) -> int:
        """Elements that are written as JSON."""
        ...

    def working_bytes(self, plan: Plan) -> int:
        """Memory that writing it takes beside the slices, bytes: collected outputs, and what is made of them."""
        ...

    def head(self, plan: Plan, worker: Worker) -> PreparedHead:
        """The head of an answer that streams."""
        ...

    def whole(self, plan: Plan, worker: Worker, outputs: Sequence[bytearray | bytes]) -> tuple[PreparedHead, bytes]:
        """The head and the body of an answer that does not stream.

        Args:
            plan: what was computed.
            worker: the worker that computed it.
            outputs: the bytes of each output that goes into the body, of strings as `encode_strings` writes them;
                empty for the others.
        """
        ...


class CallRest(Protocol):
    """What is left of a call whose sizes depend on results of its first part."""

    def call(self, memory: Sequence[memoryview], results: Mapping[str, NDArray[Any]]) -> Call:
        """The call of what is left, or of its next part. It takes as long as reading a model.

        Args:
            memory: the bytes of the first part's `Call.tensors`.
            results: its outputs, by their names.

        Raises:
            InvalidDescriptor, InvalidParameter, UnknownOperator, NoBackend: a node that is left breaks a rule.
        """
        ...


PlanKind: TypeAlias = Literal["processor", "device", "whole"]
"""What computes a plan: a processor, a device with memory of its own, or ONNX Runtime all of it."""


class KeptGraph(Protocol):
    """A graph that the server keeps.

    Attributes:
        version: the number of its version.
        batches: how many rows its calls may have, and whether they are joined; None for any number.
        is_kept: whether it is still kept.
        plans: plans of its calls, by the identity of their graph and by what computes it.
    """

    version: int
    batches: BatchSettings | None
    is_kept: bool
    plans: dict[tuple[int, PlanKind], Plan]

    @property
    def input_names(self) -> frozenset[str]:
        """The inputs that each call sends."""
        ...

    def graph_of(self, sent: Mapping[str, Layout], outputs: Sequence[str]) -> Graph:
        """The graph for tensors of these types and sizes; of a model, what these outputs need.

        Raises:
            InvalidDescriptor: it breaks rules for them.
        """
        ...

    def count_batch(self, calls: int) -> None:
        """Take note of a batch of so many calls."""
        ...

    def use(self) -> bool:
        """Take note of a call; False if it is not kept any more, and calls that were prepared with it are not right."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A valid call; nothing of it has been planned or computed yet.

    Attributes:
        tensors: what the body announces, in the order of its bytes.
        memory: the bytes of these tensors, if they were read to understand the call; else None.
        encoded: the body, if it was received and its tensors are to be decoded; else None.
        strings: the node with strings, if it works on any; numbers stand for them in the memory.
        timeout: how long it may wait until its answer begins, seconds; None for as long as it takes.
        rows: the rows of the output that are wanted, begin and end; None for all that there is.
        stored: the stored graph that is called; None if the graph came with the request.
        held: the bytes of the last of the tensors, which the server holds; the body has no bytes of them.
        stored_tags: what tells its stored graph and held tensors from others.
        is_repeatable: whether a request of the same bytes means the same; not where it refers to held tensors.
        rest: what follows when this part of the call was computed, whose results are no answer; None of a whole call.
    """

    graph: Graph
    options: RunOptions
    tensors: Sequence[AnnouncedTensor]
    answer: Answer
    memory: Sequence[memoryview | DeviceSource] | None = None
    encoded: Encoded | None = None
    strings: StringCall | None = None
    timeout: float | None = None
    rows: tuple[int, int | None] | None = None
    stored: KeptGraph | None = None
    held: Sequence[memoryview] = ()
    stored_tags: Sequence[str] = ()
    is_repeatable: bool = True
    rest: CallRest | None = None
