"""`OnnxProtoNode`: a node that is known by the bytes of its NodeProto, which ONNX Runtime computes as they are.

If, Loop and Scan, whose attributes are graphs, and the operators of the domain ai.onnx.ml, which
`graphs/proto_node_reader.py` reads. What lies in such a node is renamed when it becomes part of a model.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ..values.datatypes import data_type
from ..values.operation import Operation
from ..values.packed_elements import packed_elements
from .model_reader import ML_DOMAIN, ModelNode
from .node import OnnxNode
from .operator_schema import OnnxInput, OnnxOutput, OnnxSchema
from .parameters import ModelParameters
from .protobuf import fields, message_field, text_field, whole_field
from .result_bounds import BOUNDED_BY_RUNTIME
from .schemas import is_own
from .tensor import OnnxTensor

__all__ = [
    "CONTROL_FLOW",
    "CanonicalNode",
    "OnnxProtoNode",
    "canonical_node",
    "is_by_onnx_runtime",
    "renamed_node",
    "tensor_message",
]

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
"""Operators with graphs in their attributes."""
_IR_VERSION = 8
_IS_TAKEN = re.compile(r"[cio][0-9]+|s\..*", re.DOTALL)
"""Names that tensors of a subgraph do not have here."""


@dataclass(frozen=True, slots=True, init=False)
class OnnxProtoNode(OnnxNode):
    """A node whose inputs are called `i0`, `i1` and so on in its model, those of its subgraphs after its own.

    Attributes:
        opsets: the version of each domain in the model; ONNX's own is the empty name.
        inner: the nodes of its subgraphs, each once; empty of ai.onnx.ml.
        repeats: how often they are computed; None if that follows from elements.
    """

    opsets: tuple[tuple[str, int], ...]
    inner: tuple[OnnxNode, ...]
    repeats: int | None

    def __init__(
        self, node: ModelNode, model: bytes, opsets: Mapping[str, int], tensors: Sequence[OnnxTensor],
        results: Sequence[OnnxTensor], inner: Sequence[OnnxNode] = (), repeats: int | None = 1,
    ) -> None:  # fmt: skip
        given = OnnxInput("input", (), data=True, variadic=True)
        made = OnnxOutput("output", (), variadic=True)
        named = ["output"] if len(results) == 1 else [f"output_{place}" for place in range(len(results))]
        everything: dict[str, object] = {
            "op_type": node.op_type, "opset": node.opset, "values": (), "attributes": (),
            "tensors": tuple([(f"i{place}", tensor) for place, tensor in enumerate(tensors)]),
            "results": tuple(zip(named, results, strict=True)),
            "schema": OnnxSchema(node.op_type, node.opset, None, (given,), (), outputs=(made,)),
            "meaning": ModelParameters(model), "warnings": (), "opsets": tuple(sorted(opsets.items())),
            "inner": tuple(inner), "repeats": repeats,
        }  # fmt: skip
        for name, value in everything.items():
            object.__setattr__(self, name, value)

    @property
    def model(self) -> bytes:
        """The model of the node alone, in which its tensors have no types."""
        return self.parameters_as(ModelParameters).model

    def to_json(self) -> dict[str, Any]:
        """The node's members in a graph's document, with the types and shapes of its inputs by name."""
        inputs = {name: tensor.to_json() for name, tensor in self.tensors}
        proto = base64.b64encode(self.model).decode()
        return {"op_type": self.op_type, "opset": self.opset, "inputs": inputs, "proto": proto}

    def to_document_text(self) -> str:
        """See `Operation.to_document_text`: the model, and the tensors that it was read for."""
        return json.dumps(self.to_json(), separators=(",", ":"))


def is_by_onnx_runtime(operation: Operation) -> bool:
    """Whether ONNX Runtime computes an operation on every backend, since tensorpost has no code of its own for it."""
    if isinstance(operation, OnnxNode):
        is_ours = is_own(operation.op_type) or (operation.is_bounded and operation.op_type not in BOUNDED_BY_RUNTIME)
        return isinstance(operation, OnnxProtoNode) or not is_ours
    return False


class CanonicalNode(NamedTuple):
    """A node alone, for any graph.

    Attributes:
        model: the model of the node, whose inputs are called `i0`, `i1` and so on, and its outputs `o0` and so on.
            Small constants that it reads are its initializers, since they may decide sizes: `c0`, `c1` and so on.
        reads: the tensors that the inputs are, without those in `weights`, which come after them.
        weights: large constants of its subgraphs, which are inputs here.
    """

    model: bytes
    reads: Sequence[str]
    weights: Sequence[NDArray[Any]]


def canonical_node(
    node: ModelNode, opsets: Mapping[str, int], outputs: Sequence[str], values: Mapping[str, NDArray[Any]],
    most_by_value: int,
) -> CanonicalNode:  # fmt: skip
    """A node alone.

    Args:
        node: the node, with its message.
        opsets: the version of each domain.
        outputs: its outputs; empty texts for those that nobody reads.
        values: the tensors outside whose elements are known.
        most_by_value: elements of a constant that is part of the model.
    """
    assert node.message is not None
    reads = [*dict.fromkeys([name for name in node.reads if name])]
    known = [name for name in reads if name in values and _is_small(values[name], most_by_value)]
    reads = [name for name in reads if name not in known]
    places = {name: f"i{place}" for place, name in enumerate(reads)}
    places |= {name: f"c{place}" for place, name in enumerate(known)}
    names = {inner: places[outer] for inner, outer in node.captures.items()}
    weights = {
        name: array for name, array in _constants_of(node).items() if array.size > most_by_value and name not in names
    }
    names |= {name: f"i{place}" for place, name in enumerate(weights, len(reads))}
    inputs = [places.get(name, "") for name in node.inputs]
    made = [name and f"o{place}" for place, name in enumerate(outputs)]

    def renamed(name: str) -> str:
        return names.get(name) or (f"s.{name}" if _IS_TAKEN.fullmatch(name) else name)

    content = renamed_node(node.message, inputs, made, renamed, node.name, weights)
    graph = [message_field(1, content), text_field(2, "node")]
    graph += [message_field(5, tensor_message(values[name]) + text_field(8, places[name])) for name in known]
    graph += [message_field(11, text_field(1, f"i{place}")) for place in range(len(reads) + len(weights))]
    graph += [message_field(12, text_field(1, name)) for name in made if name]
    domains = {ML_DOMAIN} if node.domain else {"", ML_DOMAIN}  # others mean nothing here
    imported = [
        message_field(8, text_field(1, name) + whole_field(2, opsets[name])) for name in opsets if name in domains
    ]
    model = b"".join([whole_field(1, _IR_VERSION), message_field(7, b"".join(graph)), *imported])
    return CanonicalNode(model, reads, [*weights.values()])


def _is_small(array: NDArray[Any], most: int) -> bool:
    return array.size <= most and array.dtype.kind in "biuf"


def tensor_message(array: NDArray[Any]) -> bytes:
    """A TensorProto without a name."""
    sizes, row = b"".join([whole_field(1, size) for size in array.shape]), data_type(array.dtype)
    raw = packed_elements(array.reshape(-1).view(np.uint8), row.bits) if row.bits else array.tobytes()
    return sizes + whole_field(2, row.onnx_code) + message_field(9, raw)


def _constants_of(node: ModelNode) -> dict[str, NDArray[Any]]:
    """The constants of a node's subgraphs, without those whose name is that of another tensor."""
    found: dict[str, NDArray[Any]] = {}
    taken: Counter[str] = Counter()
    for graph in node.subgraphs.values():
        taken.update([*graph.initializers, *[each.name for each in graph.inputs]])
        found |= graph.initializers
        for inner in graph.nodes:
            taken.update(inner.outputs)
            value = inner.attributes.get("value")
            if inner.op_type == "Constant" and not inner.domain and isinstance(value, np.ndarray):
                found[inner.outputs[0]] = cast("NDArray[Any]", value)
            deeper = _constants_of(inner)
            taken.update(deeper)
            found |= deeper
    return {name: array for name, array in found.items() if taken[name] == 1}


def renamed_node(
    message: memoryview, inputs: Sequence[str], outputs: Sequence[str], rename: Callable[[str], str], name: str,
    left_out: Container[str] = (),
) -> bytes:  # fmt: skip
    """A NodeProto with other names.

    Args:
        message: the node.
        inputs: what its inputs are called.
        outputs: what its outputs are called.
        rename: gives each name in its subgraphs another one.
        name: what it is called itself.
        left_out: constants of its subgraphs that are inputs now, by the names before.
    """
    parts = [*[text_field(1, each) for each in inputs], *[text_field(2, each) for each in outputs], text_field(3, name)]
    for field in fields(message):
        if field.number == 5:
            parts.append(message_field(5, _renamed_attribute(field.data, rename, left_out)))
        elif field.number in (4, 7):
            parts.append(message_field(field.number, field.data))
    return b"".join(parts)


def _renamed_attribute(
    message: memoryview, rename: Callable[[str], str], left_out: Container[str]
) -> bytes | memoryview:  # fmt: skip
    found = [*fields(message)]
    graphs = [field.data for field in found if field.number == 6]
    if not graphs:
        return message
    name = b"".join([message_field(1, field.data) for field in found if field.number == 1])
    return name + whole_field(20, 5) + message_field(6, _renamed_graph(graphs[-1], rename, left_out))  # 5: GRAPH


def _renamed_graph(message: memoryview, rename: Callable[[str], str], left_out: Container[str]) -> bytes:
    parts = list[bytes]()
    for field in fields(message):
        match field.number:
            case 1:
                parts += _renamed_inner(field.data, rename, left_out)
            case 2:
                parts.append(message_field(2, field.data))
            case 5:
                name = _last_text(field.data, 8)
                if name not in left_out:
                    parts.append(
                        message_field(5, b"".join([field.data, text_field(8, rename(name))]))
                    )  # the last counts
            case 11 | 12 | 13:
                kinds = [message_field(2, each.data) for each in fields(field.data) if each.number == 2]
                name = rename(_last_text(field.data, 1))
                parts.append(message_field(field.number, b"".join([text_field(1, name), *kinds])))
            case _:
                pass
    return b"".join(parts)


def _renamed_inner(message: memoryview, rename: Callable[[str], str], left_out: Container[str]) -> Iterator[bytes]:
    found = [*fields(message)]
    inputs, outputs = ([field.text for field in found if field.number == number] for number in (1, 2))
    if not inputs and len(outputs) == 1 and outputs[0] in left_out:
        return
    inputs, outputs = ([name and rename(name) for name in names] for names in (inputs, outputs))
    name = (name := _last_text(message, 3)) and rename(name)
    yield message_field(1, renamed_node(message, inputs, outputs, rename, name, left_out))


def _last_text(message: memoryview, number: int) -> str:
    found = [field.text for field in fields(message) if field.number == number]
    return found[-1] if found else ""
