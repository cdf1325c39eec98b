"""What a node of an ONNX model is in a graph's document, and what is known of it without computing."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ..onnx.model_reader import ML_DOMAIN, ModelNode, refused
from ..onnx.package import is_of_runtime
from ..values.datatypes import data_type
from ..values.layout import Layout
from .constant_folding import folded, shape_of

__all__ = ["BY_LAYOUT", "Expansion", "called", "constants_made", "is_alias", "node_members", "runtime_operator"]


class Expansion(NamedTuple):
    """What stands in the place of a node.

    Attributes:
        nodes: nodes that graphs have.
        constants: tensors whose elements are known, by name.
    """

    nodes: Sequence[ModelNode] = ()
    constants: Mapping[str, NDArray[Any]] = {}


BY_LAYOUT = frozenset({"CastLike", "Shape", "Size"})
"""Operators whose result follows from the type or the sizes of an input."""


def called(node: ModelNode) -> str:
    """A node in messages: its name and operator, or what it makes."""
    made = node.outputs[0] if node.outputs else ""
    return f"{node.name!r} ({node.op_type})" if node.name else f"({node.op_type}) that makes {made!r}"


def constants_made(
    node: ModelNode, values: Sequence[NDArray[Any] | None], layouts: Sequence[Layout | None], path: Sequence[str | int]
) -> list[NDArray[Any]] | None:  # fmt: skip
    """What a node makes, if that is known before anything is computed.

    Args:
        node: the node.
        values: its inputs where they are known; None for others and for those that are left out.
        layouts: type and sizes of its inputs; needed for Shape, Size and CastLike, else they may be None.
        path: where it is in the model.

    Raises:
        InvalidDescriptor: it is a constant that is not read.
    """
    if node.domain:
        return None
    if node.op_type == "Constant":
        return [_constant(node, path)]
    if node.op_type in BY_LAYOUT and any(layouts):
        if node.op_type == "CastLike":
            if len(values) != 2 or values[0] is None or layouts[1] is None:
                return None
            attributes = {"to": layouts[1].data_type.onnx_code}
            return folded(replace(node, op_type="Cast", attributes=attributes), values[:1])
        found = None if layouts[0] is None else shape_of(node, layouts[0].sizes)
        return None if found is None else [found]
    known = [value is not None or not name for name, value in zip(node.inputs, values, strict=True)]
    return folded(node, values) if all(known) else None


def is_alias(node: ModelNode, read: Container[str]) -> bool:
    """Whether the output that is read is the node's first input: Identity, and Dropout outside of training.

    Args:
        node: the node.
        read: the tensors that are read somewhere.
    """
    if node.domain or not any(node.inputs[:1]) or not any(node.outputs[:1]):
        return False
    if node.op_type == "Identity":
        return True
    trains = any(node.inputs[2:]) or (node.opset < 7 and not node.attributes.get("is_test", 0))
    return node.op_type == "Dropout" and not trains and not any(name in read for name in node.outputs[1:])


def runtime_operator(nodes: Sequence[ModelNode], read: Container[str]) -> str | None:
    """The first operator that only ONNX Runtime computes; None if there is none outside of subgraphs.

    Args:
        nodes: the nodes of a model that its outputs need.
        read: the tensors that are read somewhere.
    """
    for node in nodes:
        if node.domain == ML_DOMAIN or (not node.domain and is_of_runtime(node.op_type) and not is_alias(node, read)):
            return node.op_type
    return None


def node_members(node: ModelNode, name: str, inputs: Sequence[Any], outputs: int) -> dict[str, Any]:
    """The node of a document.

    Args:
        node: the node.
        name: what the document calls it.
        inputs: what the document calls its inputs, or numbers for them.
        outputs: how many of its outputs are wanted.
    """
    given = [*inputs]
    while given and not given[-1]:
        given.pop()
    members: dict[str, Any] = {"name": name, "op_type": node.op_type, "opset": node.opset, "inputs": given}
    if node.attributes:
        members["attributes"] = {key: _as_json(value) for key, value in node.attributes.items()}
    return members | ({"outputs": outputs} if outputs > 1 else {})


def _constant(node: ModelNode, path: Sequence[str | int]) -> NDArray[Any]:
    """The value of Constant. Source: ONNX, Constant-13."""
    types = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    for key, value in node.attributes.items():
        if key == "value" and isinstance(value, np.ndarray):
            return cast("NDArray[Any]", value)
        if key in types:
            return np.array(value, types[key])
    message = f"the node {called(node)} has {', '.join(node.attributes) or 'no value'}, which is not computed"
    raise refused(path, message, None, "numbers: value, value_float, value_floats, value_int or value_ints")


def _as_json(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    array = cast("NDArray[Any]", value)
    if array.size != 1:
        return array.tolist()
    return {"data_type": data_type(array.dtype).numpy_name, "shape": [1], "data": array.reshape(-1).tolist()}
