"""How many elements results may have whose sizes depend on elements: of NonZero, Compress, Unique, NonMaxSuppression.

Source: ONNX, NonZero-13, Compress-11, Unique-11, NonMaxSuppression-11. A scalar has one element and no coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ..values.problems import counted
from ..values.sentences import named
from .inference_context import InferenceContext
from .parameters import BoundedResult
from .tensor import OnnxTensor

__all__ = ["BOUNDED", "BOUNDED_BY_RUNTIME", "DEPENDS_ON_ELEMENTS", "SIZES", "bounds_of"]

DEPENDS_ON_ELEMENTS = "depends-on-elements"
"""The code of the rule that sizes must be known before anything is computed."""
SIZES = "sizes"
"""The last output of a bounded node: the sizes of its results, one after the other."""


def bounds_of(context: InferenceContext) -> list[BoundedResult]:
    """The results that a node has at most, in the signature's order.

    Args:
        context: the node, whose operator is in `BOUNDED`.
    """
    found, wanted = [*BOUNDED[context.schema.op_type](context)], context.outputs or 1
    if wanted > len(found):
        message = f"{context.schema.name} has {counted(len(found), 'output')}, not {wanted}"
        context.refuse("output-count", ("outputs",), message, wanted, f"at most {len(found)}")
    return found[:wanted]


def _tensor(context: InferenceContext, name: str, rank: int | None = None) -> OnnxTensor:
    """An input, which must be a tensor, of this rank if one is said."""
    found = context.tensors.get(name)
    if found is None or rank not in (None, len(found.shape)):
        expected = "a tensor" if rank is None else f"a tensor of {counted(rank, 'dimension')}"
        shape = None if found is None else list(found.shape)
        context.refuse("input-shape", ("inputs", name), named(name) + f" must be {expected}", shape, expected)
    return found


def _nonzero(context: InferenceContext) -> Sequence[BoundedResult]:
    x = _tensor(context, "X")
    return [BoundedResult("Y", "int64", len(x.shape) * x.element_count, 2)]


def _compress(context: InferenceContext) -> Sequence[BoundedResult]:
    x = _tensor(context, "input")
    sizes = (x.element_count,)
    axis = 0
    if context.attributes.get("axis") is not None:
        sizes, axis = x.shape, context.axis("axis", len(x.shape))
    chosen = _tensor(context, "condition", 1).element_count
    if chosen > sizes[axis]:
        message = named("condition") + f" has {chosen} entries, and there are {sizes[axis]} to choose from"
        context.refuse("array-length", ("inputs", "condition"), message, chosen, f"at most {sizes[axis]}")
    most = math.prod([chosen if place == axis else size for place, size in enumerate(sizes)])
    return [BoundedResult("output", x.data_type, most, len(sizes))]


def _unique(context: InferenceContext) -> Sequence[BoundedResult]:
    x = _tensor(context, "X")
    along, rank = x.element_count, 1
    if context.attributes.get("axis") is not None:
        rank = len(x.shape)
        along = x.shape[context.axis("axis", rank)]
    lines = [BoundedResult(name, "int64", along, 1) for name in ("indices", "inverse_indices", "counts")]
    return [BoundedResult("Y", x.data_type, x.element_count, rank), *lines]


def _non_max_suppression(context: InferenceContext) -> Sequence[BoundedResult]:
    boxes, scores = _tensor(context, "boxes", 3), _tensor(context, "scores", 3)
    each = boxes.shape[1]
    if most := context.values.get("max_output_boxes_per_class"):
        each = min(each, max(0, int(most[0])))
    return [BoundedResult("selected_indices", "int64", 3 * scores.shape[0] * scores.shape[1] * each, 2)]


BOUNDED: Mapping[str, Callable[[InferenceContext], Sequence[BoundedResult]]] = {
    "Compress": _compress,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _nonzero,
    "Unique": _unique,
}
"""What each of these operators makes at most, all of its outputs."""
BOUNDED_BY_RUNTIME = frozenset({"NonMaxSuppression"})
"""The operators of `BOUNDED` that ONNX Runtime computes."""
