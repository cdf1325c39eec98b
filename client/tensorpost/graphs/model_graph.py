"""An ONNX model as a graph's document: nodes by name, small constants by value, large ones as inputs beside it.

Sizes follow node by node from the tensors that arrive, and what follows from sizes alone is computed here
(`constant_folding.py`). Nodes that no output needs are left out.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..bodies.json_tensor import tensor_to_json
from ..descriptors import NEWEST
from ..onnx.model_reader import ML_DOMAIN, ModelNode, ModelTensor, OnnxModel, inlined_nodes, refused
from ..onnx.operator_schema import OnnxSchema
from ..onnx.proto_node import canonical_node
from ..onnx.report import did_you_mean
from ..onnx.schemas import find_schema
from ..values.datatypes import data_type
from ..values.graph import GraphInput
from ..values.layout import Layout
from ..values.problems import InvalidDescriptor, InvalidParameter, NoBackend, UnknownOperator
from .graph_document import LONGEST_NAME
from .graph_node import ReadableTensor, read_node
from .model_nodes import BY_LAYOUT, called, constants_made, is_alias, node_members
from .proto_node_reader import is_proto_node, read_proto_node, taken_branch

__all__ = ["ModelGraph", "model_graph", "needed_nodes"]

MOST_BY_VALUE = 1024
"""Elements of a constant of whole numbers that stands in the document; larger ones are inputs."""
MOST_FLOATS_BY_VALUE = 64
"""The same of other constants, which decide no sizes: as text they are longer and take longer to read. `MOST_BY_VALUE`
where there are more than `MOST_WEIGHTS` of them."""
MOST_WEIGHTS = 512
_MOST_INNER_NODES = 10_000  # as of a model

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
        NoBackend: ONNX Runtime computes a node, and is not installed.
    """
    wanted = _wanted(model, outputs)
    _check_inputs(model, sent)
    nodes, known = needed_nodes(model, wanted), set[str]()
    used = frozenset([*wanted, *[name for _, node in nodes for name in node.reads if name]])
    while True:
        reader = _ModelReader(model, sent, {name: values[name] for name in known}, used, {*values} - known)
        try:
            for place, node in nodes:
                reader.add(place, node)
            return reader.graph(wanted)
        except _Unknown as unknown:
            known |= unknown.inputs
        except InvalidDescriptor:
            # What a size is computed from must be known; it is not known in advance which inputs these are.
            more = {name for name in reader.read_by_last(nodes) if name in values} - known
            if not more:
                raise
            known |= more


class _Unknown(Exception):
    """Elements of inputs must be known to read on.

    Attributes:
        inputs: names of the inputs.
    """

    def __init__(self, inputs: set[str]) -> None:
        super().__init__()
        self.inputs = inputs


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
        if name not in there and name not in model.defaults:
            known = ", ".join(there) or "none"
            guess = did_you_mean(name, there)
            if name in model.initializers:
                guess = ", which is a constant of it (an initializer that is no input): leave it out"
            raise InvalidParameter(f"the model has no input {name[:60]!r}{guess}; its inputs: {known}")
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


def needed_nodes(model: OnnxModel, outputs: Sequence[str]) -> list[tuple[int, ModelNode]]:
    """The nodes that the outputs need, in the model's order, each with its place in it."""
    wanted, found = {*outputs}, list[tuple[int, ModelNode]]()
    for place in reversed(range(len(model.nodes))):
        node = model.nodes[place]
        if wanted & {*node.outputs}:
            wanted |= {*node.reads}
            found.append((place, node))
    return found[::-1]


class _ModelReader:
    """Reads the nodes of a model one after another.

    Args:
        model: the model.
        sent: the tensors that are given, by the model's names.
        values: the elements of the tensors that are constants of the graph.
        used: the tensors that some node reads, or that are outputs.
        knowable: inputs whose elements are there, and may become constants, too.
    """

    def __init__(
        self, model: OnnxModel, sent: Mapping[str, Layout], values: Mapping[str, NDArray[Any]], used: Collection[str],
        knowable: Container[str],
    ) -> None:  # fmt: skip
        self._taken, self._read, self._knowable, self._opsets = set[str](), {*used}, knowable, model.opsets
        self._added: list[ModelNode] = []  # with those of branches
        self._values = {name: array for name, array in model.initializers.items() if name not in sent} | {**values}
        self._last = 0  # the place of the node that was read last
        self._texts: dict[str, str] = {}  # what the document calls a tensor, by its name in the model
        self._tensors: dict[str, ReadableTensor] = {}  # by that text
        self._constants: dict[str, NDArray[Any]] = {}  # by name in the document
        self._inputs: dict[str, str] = {}  # in use, by name in the model
        self._nodes: list[dict[str, Any]] = []
        self._sent = sent

    def add(self, place: int, node: ModelNode) -> None:
        """Read a node: as a constant, as another name of its input, as the branch it takes, or as one of the graph."""
        self._last = place
        self._add(node, ("graph", "node", place))

    def _add(self, node: ModelNode, path: tuple[str | int, ...]) -> None:
        if node.domain not in ("", ML_DOMAIN):
            message = (
                f"the node {called(node)} is of the domain {node.domain!r}; only ONNX's own operators are computed"
            )
            raise refused(path, message, node.domain, "an operator of ONNX, or a function of the model")
        self._added.append(node)
        layouts = list[Layout | None]()
        if node.op_type in BY_LAYOUT:
            layouts = [self._layout(name, node, path) if name else None for name in node.inputs]
        made = constants_made(node, [self._values.get(name) if name else None for name in node.inputs], layouts, path)
        if made is not None:
            self._values |= {name: array for name, array in zip(node.outputs, made, strict=False) if name}
        elif is_alias(node, self._read):
            source, target = node.inputs[0], node.outputs[0]
            if source in self._values:
                self._values[target] = self._values[source]
            else:
                self._texts[target] = self._text(source, node, path)
        elif node.op_type == "If" and (branch := self._branch_of(node)) is not None:
            prefix = self._free_name(node.op_type)
            inner, constants = inlined_nodes(node.subgraphs[branch], node.outputs, node.captures, prefix)
            self._values |= constants
            self._read |= {name for each in inner for name in each.reads}
            for each in inner:
                self._add(each, (*path, "attribute", branch))
        else:
            self._add_node(node, path)

    def _branch_of(self, node: ModelNode) -> str | None:
        """The branch of an If that is taken; None if that is not known.

        Raises:
            _Unknown: it follows from inputs whose elements are there.
        """
        (condition, *_) = node.inputs or ("",)
        value = self._values.get(condition)
        if value is None:
            if (inputs := self._inputs_of(condition)) and all(name in self._knowable for name in inputs):
                raise _Unknown(inputs)
            return None
        return taken_branch(
            node, ReadableTensor(GraphInput(0), Layout.row_major(data_type(value.dtype), value.shape), value)
        )

    def _inputs_of(self, name: str) -> set[str]:
        """The inputs without known elements that a tensor is computed from."""
        needed = {name}
        for node in reversed(self._added):
            if needed & {*node.outputs} and node.op_type not in ("Shape", "Size"):
                needed |= {*node.reads}
        return {each for each in needed if each in self._sent and each not in self._values}

    def read_by_last(self, nodes: Sequence[tuple[int, ModelNode]]) -> set[str]:
        """What the node that was read last depends on."""
        found = set[str]()
        for place, node in reversed(nodes):
            if place == self._last or (place < self._last and found & {*node.outputs}):
                found |= {*node.reads}
        return found

    def _add_node(self, node: ModelNode, path: tuple[str | int, ...]) -> None:
        outputs = [*node.outputs]
        name = self._free_name(node.name or node.op_type)
        found = None
        if is_proto_node(node):
            if node.domain:  # of others, the subgraphs say how many there are
                outputs = [each if each in self._read else "" for each in outputs]
            found = canonical_node(node, self._opsets, outputs, self._values, MOST_FLOATS_BY_VALUE)
            texts = [self._text(each, node, path) for each in found.reads]
            for place, array in enumerate(found.weights):
                self._values[weight := f"{name}/weight_{place}"] = array
                texts.append(self._text(weight, node, path))
            members: dict[str, Any] = {"name": name, "op_type": node.op_type, "opset": node.opset}
            members |= {"inputs": texts, "proto": base64.b64encode(found.model).decode()}
            outputs = [each for each in outputs if each]
        else:
            inputs = [
                self._numbers(place, node) or (each and self._text(each, node, path))
                for place, each in enumerate(node.inputs)
            ]
            texts = [each for each in inputs if isinstance(each, str)]
            while len(outputs) > 1 and outputs[-1] not in self._read:
                outputs.pop()
            members = node_members(node, name, inputs, len(outputs))
        read = {each: self._tensors[each] for each in texts if each}
        try:
            operation, _ = (
                read_node(members, read, NEWEST) if found is None else read_proto_node(members, read, _MOST_INNER_NODES)
            )
        except InvalidDescriptor as error:
            prefixed = error.prefixed(*path)
            raise type(error)(f"the node {called(node)}: {prefixed.detail}", prefixed.violations) from None
        except (UnknownOperator, NoBackend) as error:
            raise type(error)(f"the node {called(node)}: {error.detail}") from None
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
        message = f"the node {called(node)} reads {name[:60]!r}, which no node before it makes"
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
        nodes, used = _read_nodes(self._nodes, [*named.values()])
        self._inputs = {name: text for name, text in self._inputs.items() if text in used}
        inputs: dict[str, Any] = {}
        for text in self._inputs.values():
            layout = self._tensors[text].layout
            inputs[text] = {"data_type": layout.data_type.numpy_name, "sizes": [*layout.sizes]}
        constants: dict[str, Any] = {}
        weights: dict[str, NDArray[Any]] = {}
        most = MOST_FLOATS_BY_VALUE if len(self._constants) <= MOST_WEIGHTS else MOST_BY_VALUE
        for text, value in self._constants.items():
            if text not in used:
                continue
            if value.size <= (MOST_BY_VALUE if data_type(value.dtype).kind in "biu" else most) and _has_json(value):
                constants[text] = tensor_to_json(value)
            else:
                weights[text] = value
                inputs[text] = {"data_type": data_type(value.dtype).numpy_name, "sizes": [*value.shape]}
        document: dict[str, Any] = {"inputs": inputs, "constants": constants, "nodes": nodes, "outputs": named}
        return ModelGraph(document, self._inputs, weights)


def _read_nodes(
    nodes: Sequence[Mapping[str, Any]], outputs: Sequence[str]
) -> tuple[list[Mapping[str, Any]], set[str]]:  # fmt: skip
    """The nodes that outputs need, and what these read: of a branch that is not taken, others may be left."""
    used, found = {text.partition(".")[0] for text in outputs}, list[Mapping[str, Any]]()
    for node in reversed(nodes):
        if node["name"] in used:
            used |= {text.partition(".")[0] for text in node["inputs"] if isinstance(text, str)}
            found.append(node)
    return found[::-1], used


def _has_json(value: NDArray[Any]) -> bool:
    row = data_type(value.dtype)
    return row.safetensors is not None and bool(row.kind in "biu" or np.isfinite(value.astype(np.float64)).all())
