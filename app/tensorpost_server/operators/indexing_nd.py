"""Indexing by several coordinates at once, with array functions that take and put parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tensorpost import descriptors as dml

from ..forms import Array, Box, BoxFunction
from .indexing import BLOCK, along, array_parts, nonnegative
from .registry import form_of_class


@form_of_class(dml.GatherNdOperatorDesc, dml.GatherNd1OperatorDesc)
def gather_nd_form(desc: dml.GatherNdOperatorDesc | dml.GatherNd1OperatorDesc) -> BoxFunction:
    """`Output[b, q, r] = Input[b, Indices[b, q, :], r]`, aligned to the right; b is the batch, r inside a part."""
    batch = desc.batch_dimension_count if isinstance(desc, dml.GatherNd1OperatorDesc) else 0
    counted = (desc.input_dimension_count, desc.indices_dimension_count)
    return BoxFunction(
        _gather_nd, 2, (("counted", counted), ("batch", batch)), 1 + desc.indices_tensor.sizes[-1], block=BLOCK
    )


def _gather_nd(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, counted: tuple[int, int], batch: int) -> None:
    x, indices = [_last_dimensions(array, count) for array, count in zip(inputs, counted, strict=True)]
    length, inside = indices.shape[-1], x.ndim - batch - indices.shape[-1]
    spans = box[len(box) - (indices.ndim - 1 + inside) :]
    places, rest = spans[: indices.ndim - 1], [slice(*span) for span in spans[indices.ndim - 1 :]]
    picked = indices[tuple([slice(*span) for span in places])]
    coordinates = [
        xp.broadcast_to(along(xp, span, axis, len(places)), picked.shape[:-1]).reshape(-1)
        for axis, span in enumerate(places[:batch])
    ]
    for axis, size in enumerate(x.shape[batch : batch + length]):
        index = nonnegative(xp, picked[..., axis].reshape(-1), size)
        coordinates.append(xp.clip(index, 0, size - 1))
    out[...] = x[(*coordinates, *rest)].reshape(out.shape)


def _last_dimensions(array: Any, count: int) -> Any:
    """The array without its first dimensions, which are 1."""
    return array[(0,) * (array.ndim - count)]


@form_of_class(dml.ScatterNdOperatorDesc)
def scatter_nd_form(desc: dml.ScatterNdOperatorDesc) -> Array:
    """The input, then `Output[Indices[q, :], r] = Updates[q, r]`, r inside a part."""
    updates, indices = desc.updates_tensor, math.prod(desc.indices_tensor.sizes)
    work = math.prod(desc.output_tensor.sizes) + 2 * updates.element_count + 2 * indices
    scratch = 2 * updates.element_count * updates.item_size + indices * 48
    counted = (desc.input_dimension_count, desc.indices_dimension_count)
    return Array(_scatter_nd, 3, work, (("counted", counted),), scratch)


def _scatter_nd(xp: ModuleType, x: Any, indices: Any, updates: Any, counted: tuple[int, int]) -> Any:
    output = x.copy()
    target, indices = _last_dimensions(output, counted[0]), _last_dimensions(indices, counted[1])
    length = indices.shape[-1]
    rows, sizes = indices.reshape(-1, length), target.shape
    values = updates.reshape(len(rows), *sizes[length:])
    for (part,) in array_parts(xp, (len(rows),), math.prod(sizes[length:])):
        places = [nonnegative(xp, rows[part, axis], sizes[axis]) for axis in range(length)]
        inside = xp.ones(len(rows[part]), bool)
        for place, size in zip(places, sizes, strict=False):
            inside &= (place >= 0) & (place < size)
        target[tuple([place[inside] for place in places])] = values[part][inside]
    return output
