"""Reads the nodes of an ONNX model into a graph's document, or into that of the part that others must wait for.

Sizes follow node by node. Nodes whose sizes depend on elements that are computed are left for the rest of the model.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bodies.json_tensor import tensor_to_json
from ..descriptors import NEWEST
from ..onnx.bounded_node import BoundedNode
from ..onnx.model_reader import (
    ML_DOMAIN,
    MOST_INLINED,
    ModelNode,
    ModelTensor,
    OnnxModel,
    inlined_nodes,
    refused,
    tensor_names,
)
from ..onnx.operator_schema import OnnxSchema
from ..onnx.proto_node import canonical_node
from ..onnx.result_bounds import BOUNDED, DEPENDS_ON_ELEMENTS, SIZES
from ..onnx.schemas import find_schema, is_own
from ..values.datatypes import data_type
from ..values.graph import GraphInput
from ..values.layout import Layout
from ..values.problems import InvalidDescriptor, NoBackend, UnknownOperator, Violation
from .graph_document import LONGEST_NAME
from .graph_node import ReadableTensor, read_node
from .loop_iterations import UnknownIteration, iterations_of
from .model_lists import ListedOutput
from .model_nodes import BY_LAYOUT, Expansion, called, constants_made, is_alias, node_members
from .model_sequences import ModelSequences, UnknownPosition
from .model_stages import ModelGraph, ModelStage, StageResult
from .proto_node_reader import is_proto_node, read_proto_node, taken_branch
from .withdrawn_operators import is_withdrawn, later_nodes

__all__ = ["ModelGraphReader", "UnknownElements"]

MOST_BY_VALUE = 1024
"""Elements of a constant of whole numbers that stands in the document; larger ones are inputs."""
MOST_FLOATS_BY_VALUE = 64
"""The same of other constants, which decide no sizes: as text they are longer and take longer to read. `MOST_BY_VALUE`
where there are more than `MOST_WEIGHTS` of them."""
MOST_WEIGHTS = 512
MOST_DECIDING = 64
"""Elements of a tensor that may decide sizes, as the shape of Reshape does."""
_MOST_INNER_NODES = 10_000  # as of a model

_NO_NAME = re.compile(r"[^A-Za-z0-9_/:-]+")


class UnknownElements(Exception):
    """Elements of inputs must be known to read on.

    Attributes:
        inputs: names of the inputs.
    """

    def __init__(self, inputs: set[str]) -> None:
        super().__init__()
        self.inputs = inputs


class ModelGraphReader:
    """Reads the nodes of a model one after another.

    Args:
        model: the model.
        sent: the tensors that are given, by the model's names.
        values: the elements of the tensors that are constants of the graph.
        used: the tensors that some node reads, or that are outputs.
        knowable: inputs whose elements are there, and may become constants, too.
        in_stages: whether nodes are left for later, whose sizes depend on elements that are computed.

    Attributes:
        waits: the nodes whose sizes depend on elements that nodes before them compute, or that they make themselves.
    """

    def __init__(
        self, model: OnnxModel, sent: Mapping[str, Layout], values: Mapping[str, NDArray[Any]], used: Collection[str],
        knowable: Container[str], *, in_stages: bool = False,
    ) -> None:  # fmt: skip
        self.waits: list[ModelNode] = []
        self._in_stages, self._later, self._lines = in_stages, set[str](), dict[str, StageResult]()
        self._of_texts: dict[str, ModelNode] = {}  # the node that a node of the document is
        self._taken, self._read, self._knowable, self._opsets = set[str](), {*used}, knowable, model.opsets
        self._added: list[ModelNode] = []  # with those of branches
        self._values: dict[str, NDArray[Any]] = {
            name: array for name, array in model.initializers.items() if name not in sent
        } | {**values}
        self._written = 0  # nodes in the place of others
        self._last = 0  # the place of the node that was read last
        self._texts: dict[str, str] = {}  # what the document calls a tensor, by its name in the model
        self._tensors: dict[str, ReadableTensor] = {}  # by that text
        self._constants: dict[str, NDArray[Any]] = {}  # by name in the document
        self._inputs: dict[str, str] = {}  # in use, by name in the model
        self._nodes: list[dict[str, Any]] = []
        self._sent = sent
        self._may_be_lists = {each.name for each in model.outputs if each.kind != "tensor"}
        self._model, self._scopes = model, 0
        self._sequences = ModelSequences(self._values, lambda name, node: self._layout(name, node, ()), self._scope_of)

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
        if not self._later.isdisjoint(node.reads):
            self._later |= {name for name in node.outputs if name}
            return
        if self._sequences.takes(node):
            self._add_expanded(node, path)
            return
        if is_withdrawn(node) and any(node.inputs[:1]) and node.outputs:
            self._added.pop()  # what is read in its place comes instead
            self._add_in_place(later_nodes(node, self._layout(node.inputs[0], node, path), path), path)
            return
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
            self._added.pop()  # what is read in its place comes instead
            scope = self._scope_of(node.name or node.op_type)
            inner, constants = inlined_nodes(node.subgraphs[branch], node.outputs, node.captures, scope)
            self._values |= constants
            self._read |= {name for each in inner for name in each.reads}
            for each in inner:
                self._add(each, (*path, "attribute", branch))
        elif self._in_stages and node.op_type in BOUNDED and not node.domain:
            self._add_node(node, path, is_bounded=True)
            self._wait(node)
        else:
            try:
                self._add_node(node, path)
            except (InvalidDescriptor, UnknownOperator, NoBackend) as error:
                if isinstance(error, InvalidDescriptor) and self._add_iterations(node, path, error):
                    return
                if not self._in_stages or not self._is_later(node, error):
                    raise
                self._wait(node)

    @cached_property
    def _prefix(self) -> str:
        """Begins no name of the model: of no tensor of it, nor of one that was made by an earlier part."""
        model, prefix = self._model, "expanded/"
        outside = [*self._sent, *model.initializers, *[each.name for each in (*model.inputs, *model.outputs)]]
        taken = {name[: name.find("/") + 1] for name in (*outside, *tensor_names(model.nodes))}
        while prefix in taken:
            prefix = f"_{prefix}"
        return prefix

    def _scope_of(self, name: str) -> str:
        """Begins the names of tensors that are made in the place of what has this name; each time another one."""
        self._scopes += 1
        return f"{self._prefix}{self._scopes}/{name[:60]}"

    def _wait(self, node: ModelNode) -> None:
        self.waits.append(node)
        self._later |= {name for name in node.outputs if name}

    def _add_expanded(self, node: ModelNode, path: tuple[str | int, ...]) -> None:
        """Read a node of sequences: what it is without them."""
        try:
            found = self._sequences.expand(node, path)
        except UnknownPosition as unknown:
            self._require_knowable([unknown.name])
            if not self._in_stages or not self._is_made_small([unknown.name]):
                message = f"{unknown.name!r} decides what the node {called(node)} makes, and it depends on elements"
                expected = "a constant, or an input of few whole numbers"
                raise InvalidDescriptor.of([
                    Violation(DEPENDS_ON_ELEMENTS, (*path, "input"), message, None, expected)
                ]) from None  # fmt: skip
            self._wait(node)
            return
        if not any(self._sequences.has(name) for name in node.outputs):
            self._added.pop()  # what is read in its place comes instead
        self._add_in_place(found, path)

    def _add_in_place(self, found: Expansion, path: tuple[str | int, ...]) -> None:
        """Read what stands in the place of a node."""
        self._written += len(found.nodes)
        if self._written > MOST_INLINED:
            message = f"the model has more than {MOST_INLINED:,} nodes once its loops are written out"
            raise refused(path, message, self._written, f"at most {MOST_INLINED:,}")
        self._values |= found.constants
        self._read |= {name for each in found.nodes for name in (*each.reads, *each.outputs)}
        for each in found.nodes:
            self._add(each, path)

    def _add_iterations(self, node: ModelNode, path: tuple[str | int, ...], error: InvalidDescriptor) -> bool:
        """Read the iterations of a Loop one after another, if it is known how many there are; whether it is.

        Args:
            node: the node, which was added last.
            path: where it is in the model.
            error: why it is not read as a node; raised again if one of its iterations is not read.
        """
        iterations = iterations_of(node, self._values)
        if iterations is None:
            return False
        self._added.pop()  # what is read in its place comes instead
        try:
            while (found := iterations.next_one(self._values)) is not None:
                self._add_in_place(found, path)
            self._add_in_place(iterations.results(), path)
        except (InvalidDescriptor, UnknownOperator, UnknownIteration):
            raise error from None
        return True

    def _branch_of(self, node: ModelNode) -> str | None:
        """The branch of an If that is taken; None if that is not known.

        Raises:
            UnknownElements: it follows from inputs whose elements are there.
        """
        (condition, *_) = node.inputs or ("",)
        value = self._values.get(condition)
        if value is None:
            if (inputs := self._inputs_of(condition)) and all(name in self._knowable for name in inputs):
                raise UnknownElements(inputs)
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

    def _add_node(self, node: ModelNode, path: tuple[str | int, ...], *, is_bounded: bool = False) -> None:
        outputs = [*node.outputs]
        name = self._free_name(node.name or node.op_type)
        found = None
        if is_proto_node(node):
            if node.domain:  # of others, the subgraphs say how many there are
                outputs = [each if each in self._read else "" for each in outputs]
            found = canonical_node(node, self._opsets, outputs, self._values, MOST_FLOATS_BY_VALUE)
            texts = [self._text(each, node, path) for each in found.reads]
            for place, array in enumerate(found.weights):
                self._values[weight := self._scope_of(f"{name}/weight_{place}")] = array
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
        if is_bounded:
            members["bounded"] = True
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
        self._of_texts[name] = node
        if isinstance(operation, BoundedNode):
            self._add_lines(name, outputs, operation)
            return
        for output, slot in zip(outputs, operation.outputs, strict=False):
            text = name if len(operation.outputs) == 1 else f"{name}.{slot.name}"
            self._texts[output] = text
            self._tensors[text] = ReadableTensor(GraphInput(0), slot.layout)

    def _is_later(self, node: ModelNode, error: InvalidDescriptor | UnknownOperator | NoBackend) -> bool:
        """Whether a node can be read once what is before it was computed.

        Raises:
            UnknownElements: it can be read with elements of inputs that are there.
        """
        violations = error.violations if isinstance(error, InvalidDescriptor) else ()
        is_choice = node.op_type == "If" and not node.domain  # of which only the branch that is taken must be right
        if not is_choice and not any(each.code == DEPENDS_ON_ELEMENTS for each in violations):
            return False
        deciding = [name for name in self._deciding(node) if name and name not in self._values]
        self._require_knowable(deciding)
        return self._is_made_small(deciding)

    def _require_knowable(self, names: Sequence[str]) -> None:
        """Read again with the elements of inputs that these tensors follow from.

        Raises:
            UnknownElements: there are such inputs.
        """
        inputs = {name for each in names for name in self._inputs_of(each)}
        if known := {name for name in inputs if name in self._knowable}:
            raise UnknownElements(known)

    def _is_made_small(self, names: Sequence[str]) -> bool:
        """Whether one of these tensors is computed, and has so few elements that they may decide sizes."""
        texts = [self._texts[name] for name in names if name in self._texts]
        made = [self._tensors[text].layout for text in texts if text.partition(".")[0] in self._of_texts]
        return any(len(each.sizes) <= 1 and math.prod(each.sizes) <= MOST_DECIDING for each in made)

    def _deciding(self, node: ModelNode) -> Sequence[str]:
        """The inputs of a node whose elements decide sizes."""
        if node.message is not None:
            return node.inputs[:1]  # the condition of If, the count of Loop
        schema = find_schema(node.op_type, node.opset)
        if not isinstance(schema, OnnxSchema):
            return ()
        if is_own(node.op_type):
            return [name for name, entry in zip(node.inputs, schema.inputs, strict=False) if not entry.data]
        layouts = {name: self._layout(name, node, ()) for name in node.inputs if name}
        return [name for name, layout in layouts.items() if layout.data_type.dtype.kind in "iu"]

    def _add_lines(self, name: str, outputs: Sequence[str], node: BoundedNode) -> None:
        """The results of a bounded node, which are for the rest of the model."""
        first = 0
        for output, result in zip(outputs, node.bounds, strict=False):
            if output:
                self._lines[output] = StageResult(
                    output, f"{name}.{result.name}", result.rank, f"{name}.{SIZES}", first
                )
            first += result.rank

    def stage(self, model: OnnxModel, outputs: Sequence[str]) -> ModelGraph | ModelStage:
        """The graph that nodes of the rest wait for; the whole one if none does.

        Args:
            model: the model.
            outputs: the outputs that are wanted.
        """
        bounded = [self._lines[name] for node in self.waits for name in node.outputs if name in self._lines]
        read = {self._texts[name] for node in self.waits for name in node.reads if name in self._texts}
        nodes, _ = _read_nodes(self._nodes, [*read, *[each.output for each in bounded]])
        computed = {id(self._of_texts[each["name"]]) for each in nodes}
        there = {name for node in self._added if id(node) in computed for name in node.outputs if name}
        needed, rest = {*outputs}, list[ModelNode]()
        for node in reversed(self._added):
            is_known = all(not name or name in self._values for name in node.outputs)
            if id(node) not in computed and not is_known and needed & {*node.outputs}:
                needed |= {name for name in node.reads if name}
                rest.append(node)
        results = [each for name, each in self._lines.items() if name in needed]
        whole = sorted((there & needed) - self._lines.keys() - self._values.keys())
        results += [StageResult(name, self._texts[name]) for name in whole]
        if not results:  # what waits belongs to a branch that is not taken
            return self.graph(outputs)
        texts = dict.fromkeys([text for each in results for text in (each.output, each.sizes) if text])
        names = {text: f"result_{place}" for place, text in enumerate(texts)} | {"": ""}
        results = [each._replace(output=names[each.output], sizes=names[each.sizes]) for each in results]
        given = [ModelTensor(name) for name in self._sent if name in needed and name not in self._values]
        values = {name: array for name, array in self._values.items() if name in needed}
        inputs = (*given, *[ModelTensor(each.name) for each in results])
        ends = tuple([each for each in model.outputs if each.name in {*outputs}])
        left = replace(
            model, inputs=inputs, outputs=ends, initializers=values, nodes=tuple(rest[::-1]), defaults=frozenset()
        )
        return ModelStage(self._graph_of({names[text]: text for text in texts}), results, left)

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
        if self._sequences.has(name):
            message = f"{name[:60]!r} is a sequence or an optional value, and the node {called(node)} takes tensors"
            raise refused((*path, "input"), message, name, "a tensor of it, as SequenceAt makes")
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
        tensors, lists = self._listed_outputs(outputs)
        for place, name in enumerate(tensors):
            text = self._text(name, node, ("graph", "output", place))
            if text in self._constants or text in self._inputs.values():
                copied = self._free_name(f"{name}_copied")
                self._nodes.append({"name": copied, "op_type": "Identity", "opset": 13, "inputs": [text]})
                text = copied
            named[name[:LONGEST_NAME]] = text
        return self._graph_of(named)._replace(lists=lists)

    def _listed_outputs(self, outputs: Sequence[str]) -> tuple[list[str], dict[str, ListedOutput]]:
        """The tensors of outputs, and the outputs that are sequences or optional values."""
        tensors, lists = list[str](), dict[str, ListedOutput]()
        for place, name in enumerate(outputs):
            if name not in self._may_be_lists or not self._sequences.has(name):
                tensors.append(name)
                continue
            listed = self._sequences.listed(name)
            names = [f"{name}/{at}" for at in range(len(listed))] if isinstance(listed, list) else [f"{name}/value"]
            for source, target in zip(listed if isinstance(listed, list) else [listed], names, strict=True):
                if source is not None:
                    self._add(ModelNode("", "Identity", "", 13, (source,), (target,), {}), ("graph", "output", place))
                    tensors.append(target)
            lists[name] = names if isinstance(listed, list) else names[0] if listed is not None else None
        if not tensors:
            message = "the outputs have no tensors: sequences without elements, optional values without a value"
            raise refused(("graph", "output"), message, None, "an output with tensors")
        return tensors, lists

    def _graph_of(self, named: Mapping[str, str]) -> ModelGraph:
        """The graph with these outputs, each the name of a node's output."""
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
        document: dict[str, Any] = {"inputs": inputs, "constants": constants, "nodes": nodes, "outputs": {**named}}
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
