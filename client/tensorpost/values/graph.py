"""`Graph`: operations and the tensors between them. A request of one operator is the graph of one node.

A graph is a frozen value and says nothing about how it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .operation import Operation, Slot

__all__ = ["Graph", "GraphConstant", "GraphInput", "Node", "NodeOutput", "Ref"]


@dataclass(frozen=True, slots=True)
class GraphInput:
    """An input of the graph.

    Attributes:
        index: its place in `Graph.inputs`.
    """

    index: int


@dataclass(frozen=True, slots=True)
class GraphConstant:
    """A constant of the graph.

    Attributes:
        index: its place in `Graph.constants`.
    """

    index: int


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """An output of a node.

    Attributes:
        node: the node's place in `Graph.nodes`.
        index: the output's place in the outputs of the node's operation.
    """

    node: int
    index: int


Ref: TypeAlias = GraphInput | GraphConstant | NodeOutput
"""Where the tensor that a node reads comes from."""


@dataclass(frozen=True, slots=True)
class Node:
    """An operation in a graph.

    Attributes:
        operation: a descriptor or an ONNX node, whose own rules hold.
        inputs: where each of the operation's inputs comes from, in binding order.
        name: what messages call it; empty in the graph of one node.
    """

    operation: Operation
    inputs: tuple[Ref, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which each reads only inputs of the graph and outputs of nodes before it.

    Attributes:
        inputs: the tensors that are sent.
        nodes: the operations.
        outputs: the tensors that come back.
        constants: tensors that are part of the graph, each with its bytes: `bytes` if they came with the request, a
            view of memory that a server keeps if they belong to a stored graph.
        output_names: the names of the outputs; empty in the graph of one node, which has those of its operation.

    Examples:
        >>> from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
        >>> desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 3)), (1, 2))
        >>> Graph.of(desc).outputs
        (NodeOutput(node=0, index=0),)
    """

    inputs: tuple[Slot, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[NodeOutput, ...]
    constants: tuple[tuple[Slot, bytes | memoryview], ...] = ()
    output_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, operation: Operation) -> Graph:
        """The graph of one node, which has the inputs and outputs of its operation."""
        inputs = operation.inputs
        node = Node(operation, tuple([GraphInput(index) for index in range(len(inputs))]))
        return cls(inputs, (node,), tuple([NodeOutput(0, index) for index in range(len(operation.outputs))]))

    @property
    def output_slots(self) -> tuple[Slot, ...]:
        """The outputs by their names."""
        if not self.output_names:
            return self.operation.outputs
        layouts = [self.nodes[ref.node].operation.outputs[ref.index].layout for ref in self.outputs]
        return tuple([Slot(name, layout) for name, layout in zip(self.output_names, layouts, strict=True)])

    @property
    def operation(self) -> Operation:
        """The operation of a graph of one node.

        Raises:
            ValueError: it has several nodes.
        """
        (node,) = self.nodes
        return node.operation
