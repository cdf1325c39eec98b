"""The iterations of a Loop one after another, each as the nodes of its body.

So sizes may change from one iteration to the next, follow from the number of the iteration, and sequences be carried.
How many iterations there are must follow from what is known: the count, and the condition after each of them.

Source: ONNX, Loop-21.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..onnx.model_reader import MOST_INLINED, ModelNode, ModelSubgraph, inlined_nodes
from .model_nodes import Expansion

__all__ = ["LoopIterations", "UnknownIteration", "iterations_of"]

_OPSET = 13  # of the nodes that are written here


class UnknownIteration(Exception):
    """Whether there is another iteration is not known, there are too many, or none whose results could be stacked."""


class LoopIterations:
    """The iterations of a Loop.

    Args:
        node: the node.
        body: its body.
        most: the number of iterations, if no condition ends them before; None if nothing is said of it.
    """

    def __init__(self, node: ModelNode, body: ModelSubgraph, most: int | None) -> None:
        self._node, self._body, self._most = node, body, most
        self._carried = node.inputs[2:]
        self._stacked: list[list[str]] = [[] for _ in body.outputs[1 + len(self._carried) :]]
        self._count, self._condition = 0, ""
        self._name = next(filter(None, node.outputs))

    def next_one(self, values: Mapping[str, NDArray[Any]]) -> Expansion | None:
        """The nodes of the next iteration; None if there is none.

        Args:
            values: the tensors whose elements are known, by name.

        Raises:
            UnknownIteration: see there.
        """
        if self._condition:
            if (condition := values.get(self._condition)) is None:
                raise UnknownIteration
            if not condition.any():
                return None
        if self._count == self._most:
            return None
        if (self._count + 1) * max(1, self._body.node_count) > MOST_INLINED:
            raise UnknownIteration
        prefix = f"{self._name}/{self._count}"
        number, going = self._body.inputs[:2]
        made = [f"{prefix}/output_{place}" for place in range(len(self._body.outputs))]
        given = {number.name: f"{prefix}/number", going.name: f"{prefix}/condition"}
        inputs = [each.name for each in self._body.inputs[2:]]
        given |= dict(zip(inputs, self._carried, strict=True))
        nodes, constants = inlined_nodes(self._body, made, {**self._node.captures, **given}, prefix)
        constants[given[number.name]] = np.full((1,) if number.sizes == (1,) else (), self._count, np.int64)
        constants[given[going.name]] = np.full((1,) if going.sizes == (1,) else (), fill_value=True)
        self._condition, *after = made
        self._carried = tuple(after[: len(self._carried)])
        for results, name in zip(self._stacked, after[len(self._carried) :], strict=True):
            results.append(name)
        self._count += 1
        return Expansion(nodes, constants)

    def results(self) -> Expansion:
        """The nodes that make the outputs, once there is no further iteration.

        Raises:
            UnknownIteration: see there.
        """
        nodes, axes = list[ModelNode](), f"{self._name}/axes"
        outputs = [*self._node.outputs, *[""] * len(self._body.outputs)]
        for source, target in zip(self._carried, outputs, strict=False):
            if target:
                nodes.append(ModelNode("", "Identity", "", _OPSET, (source,), (target,), {}))
        for sources, target in zip(self._stacked, outputs[len(self._carried) :], strict=False):
            if target and not sources:
                raise UnknownIteration
            if target:
                rows = [f"{source}/row" for source in sources]
                for source, row in zip(sources, rows, strict=True):
                    nodes.append(ModelNode("", "Unsqueeze", "", _OPSET, (source, axes), (row,), {}))
                nodes.append(ModelNode("", "Concat", "", _OPSET, tuple(rows), (target,), {"axis": 0}))
        return Expansion(nodes, {axes: np.array([0])})


def iterations_of(node: ModelNode, values: Mapping[str, NDArray[Any]]) -> LoopIterations | None:
    """The iterations of a Loop whose count and first condition are known; None of any other node.

    Args:
        node: the node.
        values: the tensors whose elements are known, by name.
    """
    body = node.subgraphs.get("body")
    if node.op_type != "Loop" or node.domain or body is None or not any(node.outputs):
        return None
    carried = len(node.inputs) - 2
    if carried < 0 or len(body.inputs) != 2 + carried or len(body.outputs) < 1 + carried or not all(node.inputs[2:]):
        return None
    known = [values.get(name) for name in node.inputs[:2] if name]
    sure = [each for each in known if each is not None and each.size == 1]
    if not known or len(sure) < len(known):
        return None
    most = max(0, int(sure[0].reshape(())[()])) if node.inputs[0] else None
    if node.inputs[1] and not sure[-1].any():
        most = 0
    return LoopIterations(node, body, most)
