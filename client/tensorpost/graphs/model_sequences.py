"""Sequences and optional values within a model: lists of its tensors, known before anything is computed.

A sequence is never a value of a graph. A node that takes one out of it is another name of a tensor, one that splits or
joins tensors is Split and Concat, and the body of SequenceMap is computed once for each element.

Source: ONNX, SequenceConstruct-11, SequenceEmpty-11, SequenceInsert-11, SequenceErase-11, SequenceAt-11,
SequenceLength-11, SplitToSequence-24, ConcatFromSequence-11, SequenceMap-17, Optional-15, OptionalGetElement-18,
OptionalHasElement-18.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..onnx.model_reader import MOST_INLINED, ModelNode, inlined_nodes, refused
from ..onnx.node_reading import MOST_ENTRIES
from ..values.layout import Layout
from ..values.problems import counted
from .model_nodes import called

__all__ = ["Expansion", "ModelSequences", "UnknownPosition"]

MOST_ELEMENTS = 1024
"""Tensors of a sequence; a node has no more outputs."""
OPERATORS = frozenset({
    "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct",
    "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap", "SplitToSequence",
})  # fmt: skip
"""ONNX's operators of sequences and optional values."""
_OPSET = 13  # of the nodes that are written here


class UnknownPosition(Exception):
    """The elements of a tensor must be known to say what a node makes.

    Attributes:
        name: the tensor.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Expansion(NamedTuple):
    """What stands in the place of a node that works on sequences.

    Attributes:
        nodes: nodes of tensors.
        constants: tensors whose elements are known, by name.
    """

    nodes: Sequence[ModelNode] = ()
    constants: Mapping[str, NDArray[Any]] = {}


class ModelSequences:
    """The sequences and the optional values of a model.

    Args:
        values: the tensors whose elements are known, by name; it grows while the model is read.
        layout_of: type and sizes of a tensor that a node reads.
    """

    def __init__(
        self, values: Mapping[str, NDArray[Any]], layout_of: Callable[[str, ModelNode], Layout]
    ) -> None:  # fmt: skip
        self._values, self._layout_of = values, layout_of
        self._sequences: dict[str, list[str]] = {}
        self._optionals: dict[str, str] = {}  # what is in it; empty if nothing is
        self._written = 0  # nodes in the place of others

    def takes(self, node: ModelNode) -> bool:
        """Whether a node makes or reads a sequence or an optional value."""
        return not node.domain and (
            node.op_type in OPERATORS or (node.op_type == "Identity" and self.has(node.inputs[0]))
        )

    def has(self, name: str) -> bool:
        """Whether a name is that of a sequence or an optional value."""
        return name in self._sequences or name in self._optionals

    def expand(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        """What a node is without sequences.

        Args:
            node: a node that it `takes`.
            path: where it is in the model.

        Raises:
            InvalidDescriptor: it breaks a rule.
            UnknownPosition: which tensor it takes, or how it splits, depends on elements.
        """
        rules: dict[str, Callable[[ModelNode, Sequence[str | int]], Expansion]] = {
            "ConcatFromSequence": self._concat,
            "Identity": self._same,
            "Optional": self._optional,
            "OptionalGetElement": self._element,
            "OptionalHasElement": self._has_element,
            "SequenceAt": self._at,
            "SequenceConstruct": self._construct,
            "SequenceEmpty": self._empty,
            "SequenceErase": self._erase,
            "SequenceInsert": self._insert,
            "SequenceLength": self._length,
            "SequenceMap": self._map,
            "SplitToSequence": self._split,
        }
        found = rules[node.op_type](node, path)
        self._count(len(found.nodes), path)
        return found

    def _count(self, nodes: int, path: Sequence[str | int]) -> None:
        """Refuse what becomes too many nodes."""
        self._written += nodes
        if self._written > MOST_INLINED:
            message = f"the model has more than {MOST_INLINED:,} nodes once its sequences are written out"
            raise refused(path, message, self._written, f"at most {MOST_INLINED} nodes")

    # ---- rules -------------------------------------------------------------------------------------------------------

    def _same(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        del path
        return self._alias(node.inputs[0], node.outputs[0])

    def _empty(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        del path
        self._sequences[node.outputs[0]] = []
        return Expansion()

    def _construct(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        self._make(node, path, [*node.inputs])
        return Expansion()

    def _insert(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        found = [*self._sequence(node, 0, path)]
        at = self._position(node, 2, len(found), len(found) + 1, path)
        found.insert(at, node.inputs[1])
        self._make(node, path, found)
        return Expansion()

    def _erase(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        found = [*self._sequence(node, 0, path)]
        del found[self._position(node, 1, len(found) - 1, len(found), path)]
        self._make(node, path, found)
        return Expansion()

    def _at(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        found = self._sequence(node, 0, path)
        return self._alias(found[self._position(node, 1, None, len(found), path)], node.outputs[0])

    def _length(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        return Expansion(constants={node.outputs[0]: np.array(len(self._sequence(node, 0, path)), np.int64)})

    def _split(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        source, out = node.inputs[0], node.outputs[0]
        sizes = self._layout_of(source, node).sizes
        axis = _whole(node, "axis")
        if not -len(sizes) <= axis < len(sizes):
            message = f"the node {called(node)} splits the axis {axis} of {counted(len(sizes), 'dimension')}"
            raise refused(path, message, axis, f"{-len(sizes)} to {len(sizes) - 1}")
        axis %= len(sizes)
        length, by = sizes[axis], self._known(node, 1)
        step = 1 if by is None else int(by) if not by.ndim else 0
        count = -(-length // step) if step > 0 else 0 if by is None or not by.ndim else by.size
        self._check_length(node, path, count)
        if by is None or not by.ndim:
            parts = [min(step, length - at) for at in range(0, length, step)] if step > 0 else []
        else:
            parts = [int(each) for each in by]
        if sum(parts) != length or any(part < 0 for part in parts):
            message = f"the node {called(node)} splits {length} elements into {parts[:16]}"
            raise refused(path, message, parts[:16], f"parts of {length} together")
        names = [f"{out}/{place}" for place in range(len(parts))]
        self._make(node, path, names)
        if not parts:
            return Expansion()
        squeezes = by is None and node.attributes.get("keepdims", 1) == 0
        made = [f"{name}/kept" for name in names] if squeezes else names
        nodes = [_node("Split", (source, f"{out}/sizes"), made, axis=axis)]
        constants = {f"{out}/sizes": np.array(parts, np.int64), f"{out}/axis": np.array([axis], np.int64)}
        if len(parts) > MOST_ENTRIES:  # more than Split takes by value
            ends = [*accumulate(parts)]
            starts = {f"{name}/start": end - part for name, end, part in zip(made, ends, parts, strict=True)}
            bounds = starts | {f"{name}/end": end for name, end in zip(made, ends, strict=True)}
            constants |= {name: np.array([place], np.int64) for name, place in bounds.items()}
            nodes = [_node("Slice", (source, f"{name}/start", f"{name}/end", f"{out}/axis"), [name]) for name in made]
        if squeezes:
            nodes += [_node("Squeeze", (kept, f"{out}/axis"), [name]) for kept, name in zip(made, names, strict=True)]
        return Expansion(nodes, constants)

    def _concat(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        found, out = self._sequence(node, 0, path), node.outputs[0]
        axis = _whole(node, "axis")
        if not found:
            raise refused(path, f"the node {called(node)} joins a sequence of no tensors", None, "at least one tensor")
        if not node.attributes.get("new_axis", 0):
            return Expansion([_node("Concat", tuple(found), [out], axis=axis)])
        names = [f"{out}/{place}" for place in range(len(found))]
        nodes = [_node("Unsqueeze", (source, f"{out}/axis"), [name]) for source, name in zip(found, names, strict=True)]
        nodes.append(_node("Concat", tuple(names), [out], axis=axis))
        return Expansion(nodes, {f"{out}/axis": np.array([axis], np.int64)})

    def _map(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        body = node.subgraphs.get("body")
        if body is None or len(body.inputs) != len(node.inputs) or len(body.outputs) < len(node.outputs):
            expected = f"a graph of {counted(len(node.inputs), 'input')} and {counted(len(node.outputs), 'output')}"
            raise refused(path, f"the body of {called(node)} must be {expected}", None, expected)
        count = len(self._sequence(node, 0, path))
        lists = [self._sequences.get(name, [name] * count) for name in node.inputs]
        if count * body.node_count > MOST_INLINED:
            self._count(count * body.node_count, path)
        if any(len(each) != count for each in lists):
            lengths = ", ".join([str(len(each)) for each in lists])
            message = f"the node {called(node)} reads sequences of {lengths} tensors"
            raise refused(path, message, None, "sequences of one length")
        nodes, constants = list[ModelNode](), dict[str, NDArray[Any]]()
        for place in range(count):
            given = {each.name: names[place] for each, names in zip(body.inputs, lists, strict=True)}
            outputs = [name and f"{name}/{place}" for name in node.outputs]
            prefix = f"{node.outputs[0]}/{place}"
            inner, values = inlined_nodes(body, outputs, {**node.captures, **given}, prefix)
            nodes, constants = [*nodes, *inner], {**constants, **values}
        for name in filter(None, node.outputs):
            self._sequences[name] = [f"{name}/{place}" for place in range(count)]
        return Expansion(nodes, constants)

    def _optional(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        del path
        self._optionals[node.outputs[0]] = node.inputs[0] if node.inputs else ""
        return Expansion()

    def _element(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        source = self._optionals.get(node.inputs[0], node.inputs[0])
        if not source:
            message = f"the node {called(node)} takes the element of an optional value that has none"
            raise refused(path, message, None, "a value")
        return self._alias(source, node.outputs[0])

    def _has_element(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        del path
        (source, *_) = node.inputs or ("",)
        return Expansion(constants={node.outputs[0]: np.array(bool(self._optionals.get(source, source)))})

    # ---- what they read ----------------------------------------------------------------------------------------------

    def _alias(self, source: str, target: str) -> Expansion:
        """Another name of a tensor, a sequence or an optional value."""
        if source in self._sequences:
            self._sequences[target] = self._sequences[source]
        elif source in self._optionals:
            self._optionals[target] = self._optionals[source]
        else:
            return Expansion([_node("Identity", (source,), [target])])
        return Expansion()

    def _make(self, node: ModelNode, path: Sequence[str | int], names: list[str]) -> None:
        self._check_length(node, path, len(names))
        self._sequences[node.outputs[0]] = names

    def _check_length(self, node: ModelNode, path: Sequence[str | int], count: int) -> None:
        if count > MOST_ELEMENTS:
            message = f"the node {called(node)} makes a sequence of {count:,} tensors"
            raise refused(path, message, count, f"at most {MOST_ELEMENTS} tensors")

    def _sequence(self, node: ModelNode, place: int, path: Sequence[str | int]) -> list[str]:
        name = node.inputs[place] if place < len(node.inputs) else ""
        found = self._sequences.get(self._optionals.get(name, name))
        if found is None:
            message = f"the node {called(node)} reads {name[:60]!r}, which is no sequence that a node before it makes"
            raise refused((*path, "input"), message, name, "a sequence")
        return found

    def _known(self, node: ModelNode, place: int) -> NDArray[Any] | None:
        """The elements of an input; None if it is left out."""
        name = node.inputs[place] if place < len(node.inputs) else ""
        if not name:
            return None
        if name not in self._values:
            raise UnknownPosition(name)
        return self._values[name]

    def _position(
        self, node: ModelNode, place: int, default: int | None, count: int, path: Sequence[str | int]
    ) -> int:  # fmt: skip
        """A place in a sequence, counted from the front."""
        known = self._known(node, place)
        at = default if known is None or not known.size else int(known.reshape(-1)[0])
        if at is None or not -count <= at < count:
            message = f"the node {called(node)} has the position {at} in a sequence of {counted(count, 'place')}"
            raise refused(path, message, at, f"{-count} to {count - 1}")
        return at % count


def _whole(node: ModelNode, name: str) -> int:
    """An attribute of one whole number; 0 if it is left out."""
    found: Any = node.attributes.get(name, 0)
    return found if isinstance(found, int) else 0


def _node(op_type: str, inputs: tuple[str, ...], outputs: Sequence[str], **attributes: Any) -> ModelNode:
    return ModelNode("", op_type, "", _OPSET, inputs, tuple(outputs), attributes)
