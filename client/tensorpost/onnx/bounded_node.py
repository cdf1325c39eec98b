"""`BoundedNode`: a node whose results have sizes that depend on elements, in memory for the most that they may have.

Memory is admitted before anything is computed, and the sizes of NonZero's result are known afterwards only. Such a node
makes each result as a line of as many elements as there may be. The first of them are those of the result, row-major;
the last output says its sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .node import OnnxNode
from .parameters import BoundedParameters, BoundedResult
from .result_bounds import BOUNDED

__all__ = ["BoundedNode", "node_class"]


@dataclass(frozen=True, slots=True, init=False)
class BoundedNode(OnnxNode):
    """A node of NonZero, Compress, Unique or NonMaxSuppression. See `OnnxNode`.

    Its outputs are a line for each result, called as in ONNX, and `sizes`: int64, those of the results one after the
    other.

    Examples:
        >>> from tensorpost.onnx import OnnxTensor
        >>> BoundedNode.of("NonZero", {"X": OnnxTensor("float", (3, 4))}, opset=13).outputs[0].layout.sizes
        (24,)
    """

    is_bounded: ClassVar[bool] = True

    @property
    def bounds(self) -> tuple[BoundedResult, ...]:
        """The results that it has at most."""
        return self.parameters_as(BoundedParameters).results

    @property
    def result_names(self) -> tuple[str, ...]:
        """What the results are called where the node is computed alone: an only one `output`, as of any operation."""
        return tuple([each.name for each in self.bounds]) if len(self.bounds) > 1 else ("output",)

    def asked_document(self) -> dict[str, Any]:
        """The document of the node alone, whose results have the sizes that they have."""
        return {name: value for name, value in self.to_json().items() if name != "bounded"}

    def to_json(self) -> dict[str, Any]:
        """See `OnnxNode.to_json`: the node of a graph's document."""
        document = super(BoundedNode, self).to_json()  # a class with slots is made anew, and has no plain super()
        if len(self.bounds) > 1:
            document["outputs"] = len(self.bounds)
        else:
            document.pop("outputs", None)
        return {**document, "bounded": True}


def node_class(op_type: object) -> type[OnnxNode]:
    """The class of a node of this operator that is computed alone: `BoundedNode` if its sizes depend on elements."""
    return BoundedNode if isinstance(op_type, str) and op_type in BOUNDED else OnnxNode
