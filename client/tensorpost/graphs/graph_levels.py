"""The DirectML feature level of a graph."""

from __future__ import annotations

from ..descriptors import FeatureLevel, OperatorDesc
from ..values.graph import Graph

__all__ = ["lowest_level_of"]


def lowest_level_of(graph: Graph) -> FeatureLevel | None:
    """The lowest level at which DirectML has all of a graph's DirectML operators.

    None if there are none: ONNX nodes have no level.
    """
    levels = [node.operation.lowest_feature_level() for node in graph.nodes if isinstance(node.operation, OperatorDesc)]
    return max([level for level in levels if level is not None], default=None)
