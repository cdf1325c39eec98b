"""The answer to an inference: its header fields and JSON part, and outputs as bytes, as JSON, or in shared memory.

Source: Open Inference Protocol, "Inference Response JSON Object"; Triton's extension "binary tensor data".
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorpost.values.datatypes import DataType
from tensorpost.values.layout import Layout
from tensorpost.values.operation import Slot
from tensorpost.values.problems import InvalidParameter, LimitExceeded, NotAcceptable

from ...engine import Worker
from ...planning import Plan
from ...settings import Settings
from ..calls.byte_strings import decode_strings
from ..calls.call import PreparedHead, Sink, prepared_head
from ..json_numbers import JSON_BYTES_PER_ELEMENT, json_numbers
from .content_coding import Coding, compressed
from .infer_format import JSON_LENGTH
from .infer_request import InferRequest, RegionPart, refuse

_ALIGNMENT = 64
"""Bytes; the JSON part is filled with spaces up to a multiple of it, so that the first tensor is aligned."""
_NOT_IN_JSON = ("FP16", "BF16")


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How one output of the operation comes back.

    Attributes:
        data_type: the type that the caller is told.
        size_in_bytes: length of its packed elements.
        binary: whether as bytes of the body.
        region: where in shared memory; None if in the body.
        wanted: whether it comes back at all.
    """

    name: str
    data_type: DataType
    shape: tuple[int, ...]
    size_in_bytes: int
    binary: bool
    region: RegionPart | None
    wanted: bool

    @property
    def as_json(self) -> bool:
        """Whether its elements are written as JSON."""
        return self.wanted and not self.binary and self.region is None

    @property
    def is_text(self) -> bool:
        """Whether its elements are strings, whose bytes are known when they are computed."""
        return not self.data_type.item_size


@dataclass(frozen=True, slots=True, eq=False)
class InferenceAnswer:
    """See `Answer`."""

    model: str
    version: str
    id: str
    outputs: tuple[OutputForm, ...]
    coding: Coding | None = None

    @property
    def sinks(self) -> tuple[Sink, ...]:
        return tuple([
            Sink(output.wanted, output.wanted and output.region is None, output.is_text) for output in self.outputs
        ])  # fmt: skip

    @property
    def streams(self) -> bool:
        """See `Answer.streams`: every output is in the body, as bytes."""
        in_body = [output.wanted and output.binary and not output.is_text for output in self.outputs]
        return self.coding is None and all(in_body)

    @property
    def encodes(self) -> bool:
        """See `Answer.encodes`: whether the body is compressed."""
        return self.coding is not None

    def check(self, plan: Plan, settings: Settings) -> None:
        """See `Answer.check`: too many elements as JSON."""
        elements = self.json_elements(plan)
        if elements > settings.max_json_elements:
            raise LimitExceeded.of(
                "the output as JSON numbers", elements, settings.max_json_elements, "TENSORPOST_MAX_JSON_ELEMENTS",
                "elements, so request binary data",
            )  # fmt: skip

    def json_elements(self, plan: Plan) -> int:
        return sum([math.prod(output.shape) for output in self.outputs if output.as_json])

    def working_bytes(self, plan: Plan) -> int:
        if self.streams:
            return 0
        collected = sum([output.size_in_bytes for output in self.outputs if output.region is None])
        compressed_bytes = plan.output_bytes if self.coding else 0
        return collected + self.json_elements(plan) * JSON_BYTES_PER_ELEMENT + compressed_bytes

    def head(self, plan: Plan, worker: Worker) -> PreparedHead:
        body_head, json_bytes = self._json_part()
        length = len(body_head) + plan.output_bytes
        return self._head(plan, worker, body_head, json_bytes, length, inline=worker.is_small(plan))

    def whole(self, plan: Plan, worker: Worker, outputs: Sequence[bytearray | bytes]) -> tuple[PreparedHead, bytes]:
        data = [
            _json_data(output, memoryview(content)) if output.as_json else None
            for output, content in zip(self.outputs, outputs, strict=True)
        ]
        body_head, json_bytes = self._json_part(data, [len(content) for content in outputs])
        in_body = zip(self.outputs, outputs, strict=True)
        parts = [body_head, *[content for output, content in in_body if output.wanted and output.binary]]
        body = b"".join(parts) if self.coding is None else compressed(parts, self.coding)
        return self._head(plan, worker, b"", json_bytes, len(body), inline=False), body

    def _head(
        self, plan: Plan, worker: Worker, body_head: bytes, json_bytes: int, length: int, *, inline: bool
    ) -> PreparedHead:
        fields: tuple[tuple[bytes, bytes], ...] = ()
        if json_bytes:
            fields += ((JSON_LENGTH, str(json_bytes).encode()),)
        if self.coding is not None:
            fields += ((b"content-encoding", self.coding.encode()),)
        content_type = "application/octet-stream" if json_bytes else "application/json"
        return prepared_head(plan, worker, content_type, body_head, length, inline=inline, fields=fields)

    def _json_part(self, data: Sequence[str | None] = (), sizes: Sequence[int] = ()) -> tuple[bytes, int]:
        """The JSON part.

        Args:
            data: elements of each output as JSON; None or missing for those that are elsewhere.
            sizes: bytes of each output in the body; missing for those of fixed size.

        Returns:
            The JSON part, and the value of Inference-Header-Content-Length; 0 if no output has bytes in the body, so
            that the field is left out.
        """
        members: dict[str, Any] = {"model_name": self.model, "model_version": self.version}
        if self.id:
            members = {"id": self.id, **members}
        entries: list[str] = []
        binary_bytes = 0
        for index, output in enumerate(self.outputs):
            if not output.wanted:
                continue
            entry: dict[str, Any] = {
                "name": output.name,
                "datatype": output.data_type.open_inference,
                "shape": list(output.shape),
            }
            if output.binary:
                size = sizes[index] if sizes else output.size_in_bytes
                entry["parameters"] = {"binary_data_size": size}
                binary_bytes += size
            text = _compact(entry)
            elements = data[index] if index < len(data) else None
            entries.append(text if elements is None else f'{text[:-1]},"data":[{elements}]}}')
        head = f'{_compact(members)[:-1]},"outputs":[{",".join(entries)}]}}'.encode()
        if not binary_bytes:
            return head, 0
        head += b" " * (-len(head) % _ALIGNMENT)
        return head, len(head)


def output_forms(request: InferRequest, slots: Sequence[Slot], rows: Sequence[DataType]) -> tuple[OutputForm, ...]:
    """How the outputs of an operation come back to this request.

    Raises:
        InvalidDescriptor: an output is asked for that there is not.
        InvalidParameter: a type that JSON cannot hold is wanted as JSON.
        NotAcceptable: the protocol has no name for an output's type.
    """
    wanted = None if request.outputs is None else {output.name: output for output in request.outputs}
    names = [slot.name for slot in slots]
    for name in wanted or ():
        if name not in names:
            refuse(("outputs",), f"there is no output {name[:60]!r}", name, ", ".join(names))
    outputs: list[OutputForm] = []
    for slot, row in zip(slots, rows, strict=True):
        shape = slot.layout.sizes if slot.layout.packed else (slot.layout.size_in_bytes,)
        asked = None if wanted is None else wanted.get(slot.name)
        binary = request.binary_output if asked is None else asked.binary
        region = None if asked is None else asked.region
        is_wanted = wanted is None or asked is not None
        if row.open_inference is None:
            raise NotAcceptable(f"the protocol has no datatype for {row.numpy_name}, the type of {slot.name!r}")
        if is_wanted and not binary and region is None and row.open_inference in _NOT_IN_JSON:
            raise InvalidParameter(
                f"output {slot.name!r} is {row.open_inference}, for which JSON has no numbers; request binary data"
            )
        if region is not None and row.item_size and slot.layout.size_in_bytes > region.size:
            refuse(
                ("outputs", names.index(slot.name)),
                f"{region.size:,} bytes of the region {region.region!r} are for output {slot.name!r}; they should be "
                f"at least {slot.layout.size_in_bytes:,} bytes to hold the results",
                region.size, f"at least {slot.layout.size_in_bytes:,}",
            )  # fmt: skip
        outputs.append(OutputForm(slot.name, row, shape, slot.layout.size_in_bytes, binary, region, is_wanted))
    return tuple(outputs)


def _json_data(output: OutputForm, data: memoryview) -> str:
    """The elements as JSON, flat and without brackets. NaN and infinities are Triton's words, which are no JSON."""
    if output.is_text:
        try:
            texts = [element.decode() for element in decode_strings(data, math.prod(output.shape), output.name)]
        except UnicodeDecodeError:
            raise InvalidParameter(f"output {output.name!r} is not Unicode text; request binary data") from None
        return json.dumps(texts, separators=(",", ":"), ensure_ascii=False)[1:-1]
    return json_numbers(Layout.row_major(output.data_type, output.shape).view(data)).decode()


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
