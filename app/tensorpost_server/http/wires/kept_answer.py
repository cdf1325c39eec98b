"""Outputs that the server keeps as held tensors (`keep=NAME`); the answer describes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorpost.values.graph import Graph
from tensorpost.values.problems import InvalidParameter, NotAcceptable

from ...backends import DeviceMemory
from ...engine import Worker
from ...planning import Plan
from ...settings import Settings
from ..background_threads import CallerThreads
from ..calls.call import PreparedHead, Sink, prepared_head
from .held_inputs import CallerTensors
from .held_tensor import HeldTensorRow
from .tensor_store import TensorPlace

_INLINE_COPY_BYTES = 256 * 1024  # some 50 microseconds
_KEPT = Sink(in_body=False)


@dataclass(frozen=True, slots=True, eq=False)
class KeepRequest:
    """What the parameters `keep` and `replace` say.

    Attributes:
        names: a name for each output, None for one that the server makes.
        replaces: whether tensors of these names give way.
    """

    names: tuple[str | None, ...]
    replaces: bool

    @classmethod
    def of(cls, parameters: dict[str, str]) -> KeepRequest | None:
        """Take both parameters out of a query's; None if nothing is kept.

        Raises:
            InvalidParameter: `replace` is neither true nor false, or stands alone; a name stands there twice.
        """
        keep, replace = parameters.pop("keep", None), replace_of(parameters)
        if keep is None:
            if replace:
                raise InvalidParameter("replace=true goes with keep=NAME", extra={"parameter": "replace"})
            return None
        names = [name.strip() or None for name in keep.split(",")]
        named = [name for name in names if name is not None]
        if len({*named}) < len(named):
            raise InvalidParameter(f"keep={keep[:60]} has a name twice", extra={"parameter": "keep"})
        return cls(tuple(names), replace)


def replace_of(parameters: dict[str, str]) -> bool:
    """Take the parameter `replace` out of a query's.

    Raises:
        InvalidParameter: it is neither true (1) nor false (0).
    """
    text = parameters.pop("replace", "false")
    if text not in ("true", "1", "false", "0"):
        raise InvalidParameter(f"replace is {text[:40]!r}; it must be true or false", extra={"parameter": "replace"})
    return text in ("true", "1")


@dataclass(slots=True, eq=False)
class KeptAnswer:
    """See `Answer`. One for each request, whose outputs it holds until they have their names.

    Attributes:
        graph: what is computed.
        keep: the names of the outputs.
        tensors: whose they are to be.
    """

    graph: Graph
    keep: KeepRequest
    tensors: CallerTensors
    _places: list[TensorPlace] = field(default_factory=list[TensorPlace])
    _made: list[HeldTensorRow] = field(default_factory=list[HeldTensorRow])

    streams = False
    encodes = False

    @property
    def sinks(self) -> tuple[Sink, ...]:
        return (_KEPT,) * len(self.graph.output_slots)

    def check(self, plan: Plan, settings: Settings) -> None:
        """See `Answer.check`: a name for each output, and outputs that can be held."""
        slots = self.graph.output_slots
        if len(slots) != len(self.keep.names):
            outputs = ", ".join([slot.name for slot in slots])
            raise InvalidParameter(
                f"keep has {len(self.keep.names)} names, and the outputs are {outputs}; give one for each, separated "
                "by commas, where nothing stands for a name that the server makes",
                extra={"parameter": "keep"},
            )
        for slot in slots:
            if not slot.layout.data_type.item_size or not slot.layout.packed:
                what = "strings" if not slot.layout.data_type.item_size else "strides or padding"
                raise NotAcceptable(f"the output {slot.name!r} has {what}, and held tensors are packed numbers")

    def json_elements(self, plan: Plan) -> int:
        return 0

    def working_bytes(self, plan: Plan) -> int:
        return 0

    def head(self, plan: Plan, worker: Worker) -> PreparedHead:
        raise AssertionError("the answer does not stream")

    def whole(self, plan: Plan, worker: Worker, outputs: Sequence[bytearray | bytes]) -> tuple[PreparedHead, bytes]:
        """See `Answer.whole`: the tensors, which have their names, are described."""
        slots = self.graph.output_slots
        kept = {slot.name: tensor.describe() for slot, tensor in zip(slots, self._made, strict=True)}
        document: Mapping[str, Any] = {
            "backend": worker.computed_by(plan), "device": worker.backend.device, "tensors": kept
        }  # fmt: skip
        body = json.dumps(document).encode() + b"\n"
        return prepared_head(plan, worker, "application/json", b"", len(body), inline=False), body

    async def open(self, slow_threads: CallerThreads) -> list[KeptSink]:
        """Make room for all outputs.

        Raises:
            InvalidParameter, TensorExists, InsufficientStorage, TooBusy: see `TensorStore.place`.
        """
        sinks: list[KeptSink] = []
        for name, slot in zip(self.keep.names, self.graph.output_slots, strict=True):
            place = await self.tensors.store.place(self.tensors.owner, name, slot.layout, replaces=self.keep.replaces)
            self._places.append(place)
            sinks.append(KeptSink(place.memory, slow_threads))
        return sinks

    async def finish(self) -> None:
        """Give all outputs their names, or none of them.

        Raises:
            TensorExists, TensorGone: see `TensorStore.finish`.
        """
        self._made = [tensor for tensor, _ in await self.tensors.store.finish(self._places)]

    def close(self) -> None:
        """Give back the room of outputs that have not got their names."""
        for place in self._places:
            place.close()


@dataclass(frozen=True, slots=True)
class KeptSink:
    """Memory of a tensor that is to be held. See `OpenSink`."""

    memory: memoryview
    slow_threads: CallerThreads
    worker: None = None

    def device_memory(self, size_in_bytes: int) -> DeviceMemory:
        raise AssertionError("it lies in host memory")

    async def write(self, block: memoryview, begin: int) -> None:
        await self.slow_threads.run(len(block) > _INLINE_COPY_BYTES, self._copy, block, begin)

    def _copy(self, block: memoryview, begin: int) -> None:
        self.memory[begin : begin + len(block)] = block
