"""The DirectML operator that is the same function as an ONNX node, for all operators but Tile and Resize."""

from __future__ import annotations

from collections.abc import Mapping

from ..descriptors import OperatorDesc
from ..descriptors.feature_levels import FeatureLevel
from .directml_twins import DirectmlTwin, NotExpressible, untranslated
from .inferred_node import InferredNode
from .shapes import RULES, row_of

__all__ = ["LOWERED", "lower_operator"]

LOWERED: Mapping[str, DirectmlTwin] = {
    name: row.twin for name, row in RULES.items() if row.twin is not None and row.twin is not untranslated
}
"""What makes the descriptor of a node, by operator."""


def lower_operator(node: InferredNode, level: FeatureLevel) -> OperatorDesc:
    """The operator.

    Raises:
        NotExpressible: there is none.
        InvalidDescriptor: DirectML's rules refuse the descriptor.
    """
    twin = row_of(node.op_type).twin
    assert twin is not None, "Tile and Resize are lowered in lowering.py"
    desc = twin(node, 4 if level < FeatureLevel.L3_0 else 1)
    # A descriptor's tensors are bound in the order of the node's, byte for byte.
    for slots, bound in ((node.inputs, desc.inputs), (node.outputs, desc.outputs)):
        if [slot.layout.size_in_bytes for slot in slots] != [slot.layout.size_in_bytes for slot in bound]:
            raise NotExpressible("DirectML's tensors have other sizes in bytes than the node's")
    return desc
