"""What calls give back beside arrays: plain values, re-exported by `tensorpost`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from .. import descriptors as dml
from ..descriptors.feature_levels import FeatureLevel
from ..onnx import OnnxNode
from ..values.problems import InvalidDescriptor, InvalidParameter, UnsupportedAtLevel, Violation

if TYPE_CHECKING:
    from .held_tensors import KeepNames

_DURATION = re.compile(r'(?:\A|;)[\t ]*dur="?([0-9]{1,15}(?:\.[0-9]{1,15})?)"?[\t ]*(?:;|\Z)')
Scalar_co = TypeVar("Scalar_co", bound=np.generic, covariant=True)


class ServerTiming(Mapping[str, float]):
    """Milliseconds by stage: a `Server-Timing` header (W3C Server Timing), parsed when it is first read.

    Entries without a duration are left out.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _milliseconds(self) -> dict[str, float]:
        entries = [entry.partition(";") for entry in self._text.split(",")]
        durations = {stage.strip(): _DURATION.search(parameters) for stage, _, parameters in entries}
        return {stage: float(duration[1]) for stage, duration in durations.items() if duration}

    def __getitem__(self, stage: str) -> float:
        return self._milliseconds[stage]

    def __iter__(self) -> Iterator[str]:
        return iter(self._milliseconds)

    def __len__(self) -> int:
        return len(self._milliseconds)

    def __repr__(self) -> str:
        return repr(self._milliseconds)


@dataclass(frozen=True, slots=True, eq=False)
class Result(Generic[Scalar_co]):
    """The output tensors of a call and how they were computed.

    Attributes:
        arrays: the outputs by name, in the descriptor's order; handles of held tensors with `keep`.
        backend: name of the backend that computed them, for instance `numpy`.
        device: the device that computed them, in the server's words.
        server_timing: milliseconds by stage, from the `Server-Timing` header (W3C Server Timing).
        request_id: the server's `X-Request-ID`; None if it sent none.
    """

    arrays: Mapping[str, NDArray[Scalar_co]]
    backend: str
    device: str
    server_timing: Mapping[str, float]
    request_id: str | None

    @property
    def array(self) -> NDArray[Scalar_co]:
        """The only output.

        Raises:
            InvalidParameter: there are several.
        """
        if len(self.arrays) != 1:
            raise InvalidParameter(
                f"there are several outputs: {', '.join(self.arrays)}; take them from `arrays` by name"
            )
        return next(iter(self.arrays.values()))

    def _repr_html_(self) -> str:
        from ..values import notebooks as _html  # for notebooks only

        arrays = {name: array for name, array in self.arrays.items() if isinstance(cast("object", array), np.ndarray)}
        said = [(name, repr(held)) for name, held in self.arrays.items() if name not in arrays]  # whose elements stay
        said += [("backend", f"{self.backend}, {self.device}"), ("request id", self.request_id or "none")]
        return f"{_html.arrays_html(arrays)}{_html.table_html(said)}{_html.timing_html(self.server_timing)}"


@dataclass(frozen=True, slots=True, eq=False)
class TensorBlock:
    """A block of a stream of several outputs.

    Attributes:
        output: the output's name.
        start: where the block begins in that output, in bytes.
        data: the bytes, of this output only.
    """

    output: str
    start: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class Validation:
    """What a server says about a descriptor that it would accept.

    Attributes:
        operator: the descriptor or ONNX node as the server understood it, with everything filled in that may be left
            out; None for a graph. For a node, `document["lowering"]` says how well DirectML can express it; for a
            graph, `document["nodes"]` the tensors that each node makes.
        feature_level: the level it was checked against.
        lowest_feature_level: the lowest level at which it is legal.
        input_bytes: bytes of all input tensors together.
        output_bytes: bytes of all output tensors together.
        document: the whole answer.
        filled_in: the fields that an operator document left out and the server completed, by DirectML's names, as
            `("OutputTensor", "Scales")`; those of a graph with the names of its nodes, as `("small.Scales",)`; empty
            for ONNX nodes.
    """

    operator: dml.OperatorDesc | OnnxNode | None
    feature_level: FeatureLevel
    lowest_feature_level: FeatureLevel | None
    input_bytes: int
    output_bytes: int
    document: Mapping[str, Any]
    filled_in: tuple[str, ...] = ()

    def __repr__(self) -> str:
        kind = "graph" if self.operator is None else self.operator.name
        level, lowest = self.feature_level, self.lowest_feature_level
        levels = f"feature level {level}" + ("" if lowest is None else f", lowest {lowest}")
        return (
            f"<Validation of {kind}: valid, {levels}, {self.input_bytes:,} bytes in, {self.output_bytes:,} bytes out>"
        )

    @classmethod
    def from_document(cls, said: Any, request_id: str | None) -> Validation:
        """Read the answer to a validation.

        Raises:
            UnsupportedAtLevel, InvalidDescriptor: the server's verdict, if it is one of these.
            KeyError, TypeError, AttributeError, InvalidParameter: it is not the answer to a validation.
        """
        lowest = said["lowest_feature_level"]
        if not said["valid"]:
            violations = tuple(Violation.from_json(v) for v in said["violations"])
            # With a canonical document the descriptor is well formed, so that only the level can be at fault.
            refusal = UnsupportedAtLevel if said["op"] is not None else InvalidDescriptor
            error = refusal.of(violations)
            raise refusal(error.detail, violations, {"lowest_feature_level": lowest}, request_id=request_id)
        op = said["op"]
        operator = None
        if "nodes" not in said:
            operator = OnnxNode.from_json(op) if "op_type" in op else dml.parse_operator(op)
        return cls(
            operator=operator,
            feature_level=FeatureLevel.parse(said["feature_level"]),
            lowest_feature_level=None if lowest is None else FeatureLevel.parse(lowest),
            input_bytes=int(said["input_bytes"]),
            output_bytes=int(said["output_bytes"]),
            document=said,
            filled_in=tuple(map(str, said.get("filled_in") or ())),
        )

    def _repr_html_(self) -> str:
        from ..values import notebooks as _html  # for notebooks only

        lowest = "none has it" if self.lowest_feature_level is None else str(self.lowest_feature_level)
        rows = [
            ("valid at feature level", str(self.feature_level)),
            ("lowest feature level", lowest),
            ("bytes in", f"{self.input_bytes:,}"),
            ("bytes out", f"{self.output_bytes:,}"),
        ]
        if cost := self.document.get("cost"):
            rows.append(("cost", str(cost.get("summary"))))
        rows += [("warning", str(warning)) for warning in self.document.get("warnings", ())]
        shown = "" if self.operator is None else _html.operation_html(self.operator)
        return f"{_html.table_html(rows)}{shown}"


@dataclass(frozen=True, slots=True)
class StoredGraph:
    """A graph that a server keeps, from `Client.store`. Calling it sends nothing but tensors.

    Attributes:
        name: its name on the server.
        kind: `graph`, or `onnx` for a model.
        inputs: the names of its inputs.
        outputs: the names of its outputs.
        digest: `sha256:` and the SHA-256 of what was stored.
        size_in_bytes: the memory that it takes on the server.
        idle_seconds: seconds since its last call, at the time when the server was asked.
        version: the number of the version that calls go to; None for the newest at the time of the call.
        versions: the numbers of all versions of the graph, at the time when the server was asked.
        input_sizes: the sizes that each of its inputs declares: numbers, names, and None for any; None if it declares
            none.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    digest: str
    size_in_bytes: int
    idle_seconds: float
    version: int | None
    versions: tuple[int, ...]
    _run: Callable[..., Any] = field(repr=False, compare=False)
    input_sizes: tuple[tuple[int | str | None, ...] | None, ...] = field(default=(), repr=False)

    def __call__(
        self, inputs: Any, *, backend: str | None = None, device: int | None = None, rows: slice | None = None,
        keep: KeepNames = False,
    ) -> Any:  # fmt: skip
        """The outputs by their names; see `Client.run_stored`. An `AsyncClient`'s handle returns an awaitable.

        Args:
            inputs: its inputs by name, or its only input; see `Client.run_stored`.
            backend: see `Client.run`.
            device: see `Client.run`.
            rows: see `Client.run`.
            keep: see `Client.run`.
        """
        return self._run(self, inputs, backend=backend, device=device, rows=rows, keep=keep)

    @classmethod
    def from_document(cls, said: Mapping[str, Any], run: Callable[..., Any], version: int | None) -> StoredGraph:
        """Read a server's description of a version, or of the newest one.

        Raises:
            KeyError, TypeError: it is none.
        """
        inputs, outputs = (tuple([str(each["name"]) for each in said[key]]) for key in ("inputs", "outputs"))
        versions = tuple([int(each) for each in said["versions"]])
        return cls(
            str(said["name"]), str(said["kind"]), inputs, outputs, str(said["digest"]), int(said["size_in_bytes"]),
            float(said["idle_seconds"]), version, versions, run,
            tuple([_sizes(each.get("sizes")) for each in said["inputs"]]),
        )  # fmt: skip


def _sizes(said: object) -> tuple[int | str | None, ...] | None:
    return tuple(cast("list[int | str | None]", said)) if isinstance(said, list) else None
