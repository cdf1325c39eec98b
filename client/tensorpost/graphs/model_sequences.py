"""Sequences and optional values within a model: lists of its tensors, known before anything is computed.

A sequence is never a value of a graph. A node that takes one out of it is another name of a tensor, one that splits or
joins tensors is Split and Concat, and the body of SequenceMap is computed once for each element.

Source: ONNX, SequenceConstruct-11, SequenceEmpty-11, SequenceInsert-11, SequenceErase-11, SequenceAt-11,
SequenceLength-11, SplitToSequence-24, ConcatFromSequence-11, SequenceMap-17, Optional-15, OptionalGetElement-18,
OptionalHasElement-18.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..onnx.model_reader import MOST_INLINED, ModelNode, ModelSubgraph, inlined_nodes, refused
from ..onnx.node_reading import MOST_ENTRIES
from ..values.layout import Layout
from ..values.problems import counted
from .model_nodes import Expansion, called

__all__ = ["ModelSequences", "UnknownPosition"]

MOST_ELEMENTS = 1024
"""Tensors of a sequence; a node has no more outputs."""
MOST_NAME_BYTES = 1 << 24
"""Memory of the names in the copies of SequenceMap's body, whose nodes may have many inputs and long names."""
_BYTES_OF_NAME = 100  # beside its letters, with the begin that it gets
_OPSET = 13  # of the nodes that are written here


class _Signature(NamedTuple):
    """What an operator takes.

    Attributes:
        least: inputs that must be there.
        most: inputs that there may be; None for any number, of which none is left out.
        attributes: the type of each attribute.
        required: an attribute that must be given.
    """

    least: int
    most: int | None
    attributes: Mapping[str, str] = {}
    required: str = ""


OPERATORS: Mapping[str, _Signature] = {
    "ConcatFromSequence": _Signature(1, 1, {"axis": "INT", "new_axis": "INT"}, "axis"),
    "Optional": _Signature(0, 1, {"type": "TYPE_PROTO"}),
    "OptionalGetElement": _Signature(1, 1),
    "OptionalHasElement": _Signature(0, 1),
    "SequenceAt": _Signature(2, 2),
    "SequenceConstruct": _Signature(1, None),
    "SequenceEmpty": _Signature(0, 0, {"dtype": "INT"}),
    "SequenceErase": _Signature(1, 2),
    "SequenceInsert": _Signature(2, 3),
    "SequenceLength": _Signature(1, 1),
    "SequenceMap": _Signature(1, None, {"body": "GRAPH"}, "body"),
    "SplitToSequence": _Signature(1, 2, {"axis": "INT", "keepdims": "INT"}),
}
"""ONNX's operators of sequences and optional values."""
_IDENTITY = _Signature(1, 1)


class UnknownPosition(Exception):
    """The elements of a tensor must be known to say what a node makes.

    Attributes:
        name: the tensor.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class ModelSequences:
    """The sequences and the optional values of a model.

    Args:
        values: the tensors whose elements are known, by name; it grows while the model is read.
        layout_of: type and sizes of a tensor that a node reads.
        scope_of: begins the names of tensors that are made in the place of one, such as no other tensor has.
    """

    def __init__(
        self, values: Mapping[str, NDArray[Any]], layout_of: Callable[[str, ModelNode], Layout],
        scope_of: Callable[[str], str],
    ) -> None:  # fmt: skip
        self._values, self._layout_of, self._scope_of = values, layout_of, scope_of
        self._sequences: dict[str, list[str]] = {}
        self._optionals: dict[str, str] = {}  # what is in it; empty if nothing is
        self._written = 0  # nodes in the place of others

    def takes(self, node: ModelNode) -> bool:
        """Whether a node makes or reads a sequence or an optional value."""
        return not node.domain and (
            node.op_type in OPERATORS or (node.op_type == "Identity" and any(map(self.has, node.inputs[:1])))
        )

    def has(self, name: str) -> bool:
        """Whether a name is that of a sequence or an optional value."""
        return name in self._sequences or name in self._optionals

    def listed(self, name: str) -> list[str] | str | None:
        """The tensors of a sequence, or the tensor that an optional value is; None if nothing is in it."""
        name = self._optionals.get(name, name)
        return self._sequences.get(name, name) or (None if not name else [])

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
        _check(node, path)
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
        if by is None or not by.ndim:
            step = 1 if by is None else _number(node, 1, by, path)
            if step < 1:
                message = f"the node {called(node)} splits {length} elements into parts of {step}"
                raise refused(path, message, step, "parts of 1 or more")
            self._check_length(node, path, -(-length // step))
            parts = [min(step, length - at) for at in range(0, length, step)]
        else:
            _check_numbers(node, 1, by, by.ndim == 1, path)
            self._check_length(node, path, by.size)
            parts = [int(each) for each in by]
        if sum(parts) != length or any(part < 0 for part in parts):
            message = f"the node {called(node)} splits {length} elements into {parts[:16]}"
            raise refused(path, message, parts[:16], f"parts of {length} together")
        scope = self._scope_of(out)
        names = [f"{scope}/{place}" for place in range(len(parts))]
        self._make(node, path, names)
        if not parts:
            return Expansion()
        squeezes = by is None and node.attributes.get("keepdims", 1) == 0
        made = [f"{name}/kept" for name in names] if squeezes else names
        nodes = [_node("Split", (source, f"{scope}/sizes"), made, axis=axis)]
        constants = {f"{scope}/sizes": np.array(parts, np.int64), f"{scope}/axis": np.array([axis], np.int64)}
        if len(parts) > MOST_ENTRIES:  # more than Split takes by value
            ends = [*accumulate(parts)]
            starts = {f"{name}/start": end - part for name, end, part in zip(made, ends, parts, strict=True)}
            bounds = starts | {f"{name}/end": end for name, end in zip(made, ends, strict=True)}
            constants |= {name: np.array([place], np.int64) for name, place in bounds.items()}
            nodes = [_node("Slice", (source, f"{name}/start", f"{name}/end", f"{scope}/axis"), [name]) for name in made]
        if squeezes:
            nodes += [_node("Squeeze", (kept, f"{scope}/axis"), [name]) for kept, name in zip(made, names, strict=True)]
        return Expansion(nodes, constants)

    def _concat(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        found, out = self._sequence(node, 0, path), node.outputs[0]
        axis = _whole(node, "axis")
        if not found:
            raise refused(path, f"the node {called(node)} joins a sequence of no tensors", None, "at least one tensor")
        if not node.attributes.get("new_axis", 0):
            return Expansion([_node("Concat", tuple(found), [out], axis=axis)])
        scope = self._scope_of(out)
        names, by = [f"{scope}/{place}" for place in range(len(found))], f"{scope}/axis"
        nodes = [_node("Unsqueeze", (source, by), [name]) for source, name in zip(found, names, strict=True)]
        nodes.append(_node("Concat", tuple(names), [out], axis=axis))
        return Expansion(nodes, {by: np.array([axis], np.int64)})

    def _map(self, node: ModelNode, path: Sequence[str | int]) -> Expansion:
        body = node.subgraphs.get("body")
        if body is None or len(body.inputs) != len(node.inputs) or len(body.outputs) < len(node.outputs):
            expected = f"a graph of {counted(len(node.inputs), 'input')} and {counted(len(node.outputs), 'output')}"
            raise refused(path, f"the body of {called(node)} must be {expected}", None, expected)
        count = len(self._sequence(node, 0, path))
        if count * body.node_count > MOST_INLINED:
            self._count(count * body.node_count, path)
        names = [name for each in body.nodes for name in (*each.reads, *each.outputs)]
        size = count * sum([len(name) + _BYTES_OF_NAME for name in (*names, *node.inputs, *node.outputs)])
        if size > MOST_NAME_BYTES:
            message = f"the names of the tensors in {count} copies of the body of {called(node)} take {size:,} bytes"
            raise refused(path, message, size, f"at most {MOST_NAME_BYTES} bytes: fewer tensors, or shorter names")
        lists = [self._sequences.get(name, [name] * count) for name in node.inputs]
        if any(len(each) != count for each in lists):
            lengths = ", ".join([str(len(each)) for each in lists])
            message = f"the node {called(node)} reads sequences of {lengths} tensors"
            raise refused(path, message, None, "sequences of one length")
        scope = self._scope_of(node.op_type)
        constants = {f"{scope}/{name}": array for name, array in body.initializers.items()}
        outside = {**node.captures} | dict(zip(body.initializers, constants, strict=True))
        body, nodes = replace(body, initializers={}), list[ModelNode]()
        made = {name: self._scope_of(name) for name in node.outputs if name}
        for place in range(count):
            given = {each.name: names[place] for each, names in zip(body.inputs, lists, strict=True)}
            outputs = [name and f"{made[name]}/{place}" for name in node.outputs]
            inner, _ = inlined_nodes(body, outputs, ChainMap(given, outside), self._scope_of(node.op_type))
            nodes += inner
        for name, begin in made.items():
            self._sequences[name] = [f"{begin}/{place}" for place in range(count)]
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
        at = default if known is None else _number(node, place, known, path)
        if at is None or not -count <= at < count:
            message = f"the node {called(node)} has the position {at} in a sequence of {counted(count, 'place')}"
            raise refused(path, message, at, f"{-count} to {count - 1}")
        return at % count


def _check(node: ModelNode, path: Sequence[str | int]) -> None:
    """Refuse a node with other inputs, outputs or attributes than its operator has."""
    signature = OPERATORS.get(node.op_type, _IDENTITY)
    least, most = signature.least, signature.most
    needed = node.inputs[:least] if most is not None else node.inputs
    if len(node.inputs) < least or (most is not None and len(node.inputs) > most) or not all(needed):
        expected = f"{least} or more" if most is None else f"{least}" if least == most else f"{least} to {most}"
        message = f"the node {called(node)} has the inputs {[*node.inputs[:8]]}; {node.op_type} takes {expected}"
        raise refused((*path, "input"), message, len(node.inputs), f"{expected} inputs")
    if not any(node.outputs) or (len(node.outputs) > 1 and node.op_type != "SequenceMap"):
        message = f"the node {called(node)} has {counted(len(node.outputs), 'output')}"
        raise refused((*path, "output"), message, len(node.outputs), "one output, with a name")
    types: Mapping[str, type] = {"INT": int, "GRAPH": ModelSubgraph}
    for name, value in node.attributes.items():
        kind = signature.attributes.get(name)
        if kind is None:
            known = ", ".join(signature.attributes) or "none"
            message = f"the node {called(node)} has the attribute {name[:60]!r}; {node.op_type} has {known}"
            raise refused((*path, "attribute", name), message, name, known)
        if not isinstance(value, types.get(kind, object)):
            message = f"the attribute {name} of the node {called(node)} is of another type than {kind}"
            raise refused((*path, "attribute", name), message, None, f"an attribute of the type {kind}")
    if signature.required and signature.required not in node.attributes:
        message = f"the node {called(node)} needs the attribute {signature.required}"
        raise refused((*path, "attribute", signature.required), message, None, signature.required)


def _check_numbers(
    node: ModelNode, place: int, found: NDArray[Any], fits: bool, path: Sequence[str | int]
) -> None:  # fmt: skip
    """Refuse an input of another type or rank than whole numbers that its operator reads."""
    if found.dtype.name not in ("int32", "int64") or not fits:
        message = f"{node.inputs[place][:60]!r}, the input {place} of the node {called(node)}, is {found.dtype.name} "
        expected = "one number" + (", or a line of numbers" if node.op_type == "SplitToSequence" else "")
        message += f"of shape {[*found.shape]}; it must be int32 or int64, {expected}"
        raise refused((*path, "input"), message, [*found.shape], f"int32 or int64, {expected}")


def _number(node: ModelNode, place: int, found: NDArray[Any], path: Sequence[str | int]) -> int:
    _check_numbers(node, place, found, found.size == 1, path)
    return int(found.reshape(())[()])


def _whole(node: ModelNode, name: str) -> int:
    """An attribute of one whole number; 0 if it is left out."""
    return node.attributes.get(name, 0)


def _node(op_type: str, inputs: tuple[str, ...], outputs: Sequence[str], **attributes: Any) -> ModelNode:
    return ModelNode("", op_type, "", _OPSET, inputs, tuple(outputs), attributes)
