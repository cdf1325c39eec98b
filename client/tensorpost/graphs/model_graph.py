"""An ONNX model as a graph's document: nodes by name, small constants by value, large ones as inputs beside it.

Sizes follow node by node from the tensors that arrive, and what follows from sizes alone is computed here
(`constant_folding.py`). Nodes that no output needs are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ..bodies.json_tensor import tensor_to_json
from ..descriptors import NEWEST
from ..onnx.model_reader import ModelNode, ModelTensor, OnnxModel, refused
from ..onnx.operator_schema import OnnxSchema
from ..onnx.report import did_you_mean
from ..onnx.schemas import find_schema
from ..values.datatypes import data_type
from ..values.graph import GraphInput
from ..values.layout import Layout
from ..values.problems import InvalidDescriptor, InvalidParameter, UnknownOperator
from .constant_folding import folded, shape_of
from .graph_document import LONGEST_NAME
from .graph_node import ReadableTensor, read_node

__all__ = ["ModelGraph", "model_graph"]

MOST_BY_VALUE = 1024
"""Elements of a constant of whole numbers that stands in the document; larger ones are inputs."""
MOST_FLOATS_BY_VALUE = 64
"""The same of other constants, which decide no sizes: as text they are longer and take longer to read. `MOST_BY_VALUE`
where there are more than `MOST_WEIGHTS` of them."""
MOST_WEIGHTS = 512

_NO_VALUES: Mapping[str, NDArray[Any]] = {}
_NO_NAME = re.compile(r"[^A-Za-z0-9_/:-]+")


class ModelGraph(NamedTuple):
    """A model as a graph.

    Attributes:
        document: the graph's document, for tensors of the sizes that it was made for.
        inputs: the name in the document of each input that a node reads, by its name in the model.
        weights: what other inputs of the document are: the model's large constants.
    """

    document: dict[str, Any]
    inputs: Mapping[str, str]
    weights: Mapping[str, NDArray[Any]]


def model_graph(
    model: OnnxModel, sent: Mapping[str, Layout], outputs: Sequence[str] | None = None,
    values: Mapping[str, NDArray[Any]] = _NO_VALUES,
) -> ModelGraph:  # fmt: skip
    """The graph of a model, for tensors of these types and sizes.

    Args:
        model: the model.
        sent: the tensors that are given, by the names of the model's inputs; an input with an initializer may be left
            out.
        outputs: names of the outputs that are wanted; default all.
        values: the elements of some of the tensors; those that decide sizes become constants of the graph.

    Raises:
        InvalidParameter: there is no such input or output, an input is missing, or it has another type or other sizes.
        InvalidDescriptor: a node breaks a rule, or needs what is not computed; it names the node.
        UnknownOperator: there is no such operator.
    """
    wanted = _wanted(model, outputs)
    _check_inputs(model, sent)
    nodes, known = _needed(model, wanted), set[str]()
    used = frozenset([*wanted, *[name for _, node in nodes for name in node.inputs if name]])
    while True:
        reader = _ModelReader(model, sent, {name: values[name] for name in known}, used)
        try:
            for place, node in nodes:
                reader.add(place, node)
            return reader.graph(wanted)
        except InvalidDescriptor:
            # What a size is computed from must be known; it is not known in advance which inputs these are.
            more = {name for name in reader.read_by_last(nodes) if name in values} - known
            if not more:
                raise
            known |= more


def _wanted(model: OnnxModel, outputs: Sequence[str] | None) -> list[str]:
    there = [tensor.name for tensor in model.outputs]
    for name in outputs or ():
        if name not in there:
            known = ", ".join(there)
            raise InvalidParameter(f"the model has no output {name[:60]!r}{did_you_mean(name, there)}; it has {known}")
    return there if outputs is None else [*outputs]


def _check_inputs(model: OnnxModel, sent: Mapping[str, Layout]) -> None:
    there = [tensor.name for tensor in model.inputs]
    for name in sent:
        if name not in there and name not in model.initializers:
            known = ", ".join(there) or "none"
            raise InvalidParameter(
                f"the model has no input {name[:60]!r}{did_you_mean(name, there)}; its inputs: {known}"
            )
    bound: dict[str, tuple[int, str]] = {}
    for tensor in model.inputs:
        if (layout := sent.get(tensor.name)) is None:
            raise InvalidParameter(f"the model's input {tensor.name!r} is missing; it is {described(tensor)}")
        sizes = tensor.sizes
        wrong = tensor.data_type is not None and tensor.data_type is not layout.data_type
        wrong = wrong or (sizes is not None and len(sizes) != len(layout.sizes))
        pairs = list(zip(sizes, layout.sizes, strict=True)) if sizes is not None and not wrong else []
        wrong = wrong or any(isinstance(size, int) and size != got for size, got in pairs)
        if wrong:
            got = f"{layout.data_type.numpy_name} of shape {list(layout.sizes)}"
            raise InvalidParameter(f"the model's input {tensor.name!r} is {described(tensor)}, and {got} was sent")
        for size, got in pairs:
            if isinstance(size, str):
                first, where = bound.setdefault(size, (got, tensor.name))
                if first != got:
                    raise InvalidParameter(
                        f"the size {size!r} is {got} in the input {tensor.name!r}, and {first} in {where!r}; it must "
                        "be the same number in the whole model"
                    )


def described(tensor: ModelTensor) -> str:
    """A tensor's type and sizes in words: `float32 of shape [n, 3, 224, 224]`."""
    kind = "of any type" if tensor.data_type is None else tensor.data_type.numpy_name
    if tensor.sizes is None:
        return f"{kind} of any shape"
    return f"{kind} of shape [{', '.join(['?' if size is None else str(size) for size in tensor.sizes])}]"


def _needed(model: OnnxModel, outputs: Sequence[str]) -> list[tuple[int, ModelNode]]:
    """The nodes that the outputs need, in the model's order, each with its place in it."""
    wanted, found = {*outputs}, list[tuple[int, ModelNode]]()
    for place in reversed(range(len(model.nodes))):
        node = model.nodes[place]
        if wanted & {*node.outputs}:
            wanted |= {*node.inputs}
            found.append((place, node))
    return found[::-1]


class _ModelReader:
    """Reads the nodes of a model one after another.

    Args:
        model: the model.
        sent: the tensors that are given, by the model's names.
        values: the elements of the tensors that are constants of the graph.
        used: the tensors that some node reads, or that are outputs.
    """

    def __init__(
        self, model: OnnxModel, sent: Mapping[str, Layout], values: Mapping[str, NDArray[Any]], used: Container[str]
    ) -> None:
        self._taken, self._read = set[str](), used
        self._values = {name: array for name, array in model.initializers.items() if name not in sent} | {**values}
        self._last = 0  # the place of the node that was read last
        self._texts: dict[str, str] = {}  # what the document calls a tensor, by its name in the model
        self._tensors: dict[str, ReadableTensor] = {}  # by that text
        self._constants: dict[str, NDArray[Any]] = {}  # by name in the document
        self._inputs: dict[str, str] = {}  # in use, by name in the model
        self._nodes: list[dict[str, Any]] = []
        self._sent = sent

    def add(self, place: int, node: ModelNode) -> None:
        """Read a node: as a constant, as another name of its input, or as a node of the graph."""
        self._last = place
        path = ("graph", "node", place)
        if node.domain:
            message = (
                f"the node {_called(node)} is of the domain {node.domain!r}; only ONNX's own operators are computed"
            )
            raise refused(path, message, node.domain, "an operator of ONNX, or a function of the model")
        known = [name == "" or name in self._values for name in node.inputs]
        made: list[NDArray[Any]] | None = None
        if node.op_type == "Constant":
            made = [_constant(node, path)]
        elif node.op_type in ("Shape", "Size") and len(node.inputs) == 1 and node.inputs[0]:
            sizes = shape_of(node, self._layout(node.inputs[0], node, path).sizes)
            made = None if sizes is None else [sizes]
        elif node.op_type == "CastLike" and len(node.inputs) == 2 and known[0] and node.inputs[1]:
            code = self._layout(node.inputs[1], node, path).data_type.onnx_code
            made = folded(replace(node, op_type="Cast", attributes={"to": code}), [self._values.get(node.inputs[0])])
        elif all(known):
            made = folded(node, [self._values.get(name) for name in node.inputs])
        if made is not None:
            self._values |= {name: array for name, array in zip(node.outputs, made, strict=False) if name}
        elif self._is_alias(node):
            source, target = node.inputs[0], node.outputs[0]
            if source in self._values:
                self._values[target] = self._values[source]
            else:
                self._texts[target] = self._text(source, node, path)
        else:
            self._add_node(node, path)

    def read_by_last(self, nodes: Sequence[tuple[int, ModelNode]]) -> set[str]:
        """What the node that was read last depends on."""
        found = set[str]()
        for place, node in reversed(nodes):
            if place == self._last or (place < self._last and found & {*node.outputs}):
                found |= {*node.inputs}
        return found

    def _is_alias(self, node: ModelNode) -> bool:
        """Whether the output that is read is the node's first input: Identity, and Dropout outside of training."""
        if not any(node.inputs[:1]) or not any(node.outputs[:1]):
            return False
        if node.op_type == "Identity":
            return True
        trains = any(node.inputs[2:]) or (node.opset < 7 and not node.attributes.get("is_test", 0))
        return node.op_type == "Dropout" and not trains and not any(name in self._read for name in node.outputs[1:])

    def _add_node(self, node: ModelNode, path: tuple[str | int, ...]) -> None:
        inputs = [self._numbers(place, node) or self._text(name, node, path) for place, name in enumerate(node.inputs)]
        while inputs and not inputs[-1]:
            inputs.pop()
        texts = [each for each in inputs if isinstance(each, str)]
        outputs = [*node.outputs]
        while len(outputs) > 1 and outputs[-1] not in self._read:
            outputs.pop()
        name = self._free_name(node.name or node.op_type)
        members: dict[str, Any] = {"name": name, "op_type": node.op_type, "opset": node.opset, "inputs": inputs}
        if node.attributes:
            members["attributes"] = {key: _as_json(value) for key, value in node.attributes.items()}
        if len(outputs) > 1:
            members["outputs"] = len(outputs)
        try:
            operation, _ = read_node(members, {text: self._tensors[text] for text in texts if text}, NEWEST)
        except InvalidDescriptor as error:
            found = error.prefixed(*path)
            raise type(error)(f"the node {_called(node)}: {found.detail}", found.violations) from None
        except UnknownOperator as error:
            raise UnknownOperator(f"the node {_called(node)}: {error.detail}") from None
        self._nodes.append(members)
        for output, slot in zip(outputs, operation.outputs, strict=False):
            text = name if len(operation.outputs) == 1 else f"{name}.{slot.name}"
            self._texts[output] = text
            self._tensors[text] = ReadableTensor(GraphInput(0), slot.layout)

    def _numbers(self, place: int, node: ModelNode) -> Mapping[str, Any] | None:
        """A constant that must be given by value and is infinite or NaN, which no constant of a document can be."""
        value = self._values.get(node.inputs[place])
        if value is None or value.size != 1 or _has_json(value):
            return None
        schema = find_schema(node.op_type, node.opset)
        if not isinstance(schema, OnnxSchema) or place >= len(schema.inputs) or schema.inputs[place].data:
            return None
        number = float(value.reshape(())[()])
        word = "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
        return {"data_type": data_type(value.dtype).numpy_name, "data": [word]}

    def _text(self, name: str, node: ModelNode, path: tuple[str | int, ...]) -> str:
        """What the document calls a tensor, which becomes an input or a constant of it where it is needed first."""
        if not name:
            return ""
        if (text := self._texts.get(name)) is not None:
            return text
        if (value := self._values.get(name)) is not None:
            text = self._texts[name] = self._free_name(name)
            self._constants[text] = value
            self._tensors[text] = ReadableTensor(
                GraphInput(0), Layout.row_major(data_type(value.dtype), value.shape), value
            )
            return text
        if (layout := self._sent.get(name)) is not None:
            text = self._texts[name] = self._inputs[name] = self._free_name(name)
            self._tensors[text] = ReadableTensor(GraphInput(0), layout)
            return text
        message = f"the node {_called(node)} reads {name[:60]!r}, which no node before it makes"
        raise refused((*path, "input"), message, name, "an input, an initializer, or an output of a node before it")

    def _layout(self, name: str, node: ModelNode, path: tuple[str | int, ...]) -> Layout:
        if (value := self._values.get(name)) is not None:
            return Layout.row_major(data_type(value.dtype), value.shape)
        if name not in self._texts and (layout := self._sent.get(name)) is not None:
            return layout
        return self._tensors[self._text(name, node, path)].layout

    def _free_name(self, name: str) -> str:
        stem = _NO_NAME.sub("_", name)[: LONGEST_NAME - 8] or "tensor"
        found, count = stem, 1
        while found in self._taken:
            count += 1
            found = f"{stem}_{count}"
        self._taken.add(found)
        return found

    def graph(self, outputs: Sequence[str]) -> ModelGraph:
        """The graph with these outputs."""
        node = ModelNode("", "Identity", "", 13, (), (), {})
        named: dict[str, str] = {}
        for place, name in enumerate(outputs):
            text = self._text(name, node, ("graph", "output", place))
            if text in self._constants or text in self._inputs.values():
                copied = self._free_name(f"{name}_copied")
                self._nodes.append({"name": copied, "op_type": "Identity", "opset": 13, "inputs": [text]})
                text = copied
            named[name[:LONGEST_NAME]] = text
        inputs: dict[str, Any] = {}
        for text in self._inputs.values():
            layout = self._tensors[text].layout
            inputs[text] = {"data_type": layout.data_type.numpy_name, "sizes": [*layout.sizes]}
        constants: dict[str, Any] = {}
        weights: dict[str, NDArray[Any]] = {}
        most = MOST_FLOATS_BY_VALUE if len(self._constants) <= MOST_WEIGHTS else MOST_BY_VALUE
        for text, value in self._constants.items():
            if value.size <= (MOST_BY_VALUE if data_type(value.dtype).kind in "biu" else most) and _has_json(value):
                constants[text] = tensor_to_json(value)
            else:
                weights[text] = value
                inputs[text] = {"data_type": data_type(value.dtype).numpy_name, "sizes": [*value.shape]}
        document: dict[str, Any] = {"inputs": inputs, "constants": constants, "nodes": self._nodes, "outputs": named}
        return ModelGraph(document, self._inputs, weights)


def _called(node: ModelNode) -> str:
    made = node.outputs[0] if node.outputs else ""
    return f"{node.name!r} ({node.op_type})" if node.name else f"({node.op_type}) that makes {made!r}"


def _constant(node: ModelNode, path: tuple[str | int, ...]) -> NDArray[Any]:
    """The value of Constant. Source: ONNX, Constant-13."""
    types = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    for key, value in node.attributes.items():
        if key == "value" and isinstance(value, np.ndarray):
            return cast("NDArray[Any]", value)
        if key in types:
            return np.array(value, types[key])
    message = f"the node {_called(node)} has {', '.join(node.attributes) or 'no value'}, which is not computed"
    raise refused(path, message, None, "numbers: value, value_float, value_floats, value_int or value_ints")


def _as_json(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    array = cast("NDArray[Any]", value)
    if array.size != 1:
        return array.tolist()
    return {"data_type": data_type(array.dtype).numpy_name, "shape": [1], "data": array.reshape(-1).tolist()}


def _has_json(value: NDArray[Any]) -> bool:
    row = data_type(value.dtype)
    return row.safetensors is not None and bool(row.kind in "biu" or np.isfinite(value.astype(np.float64)).all())
