"""Indexing operators, with array functions that take and put elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tensorpost import descriptors as dml

from ..forms import Array, Box, BoxFunction
from .registry import form_of_class

__all__ = ["gather_form", "nonzero_form", "scatter_form"]


@form_of_class(dml.GatherOperatorDesc)
def gather_form(desc: dml.GatherOperatorDesc) -> BoxFunction:
    """`Output[a, k, b] = Input[a, Indices[k], b]`, aligned to the right (DML_GATHER_OPERATOR_DESC)."""
    return BoxFunction(_gather, 2, (("axis", desc.axis), ("counted", desc.index_dimensions)), 2)


def _gather(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, axis: int, counted: int) -> None:
    x, indices = inputs
    indices = indices.reshape(indices.shape[indices.ndim - counted :])
    length, rank = x.shape[axis], x.ndim
    # The output's dimensions without alignment; dropped leading dimensions are ones.
    whole = [None] * axis + [True] * counted + [None] * (rank - axis - 1)
    extra = len(whole) - rank
    spans = [(0, 1)] * max(0, extra) + list(box[max(0, -extra) :])
    leading, middle, trailing = spans[:axis], spans[axis : axis + counted], spans[axis + counted :]
    picked = _nonnegative(xp, indices[tuple([slice(*span) for span in middle])], length)
    picked = xp.clip(picked, 0, length - 1)
    source = x[(*[slice(*span) for span in leading], slice(None), *[slice(*span) for span in trailing])]
    out[...] = xp.take(source, picked.reshape(-1), axis=axis).reshape(out.shape)


def _nonnegative(xp: ModuleType, indices: Any, length: int) -> Any:
    """The indices as int64, with negative ones counted from the end of the axis."""
    if indices.dtype.kind == "u":
        # What is beyond the axis stays beyond it; 64 bits would not fit int64.
        return xp.minimum(indices, indices.dtype.type(min(length, 2**32 - 1))).astype("int64")
    indices = indices.astype("int64")
    return xp.where(indices < 0, indices + length, indices)


@form_of_class(dml.ScatterElementsOperatorDesc)
def scatter_form(desc: dml.ScatterElementsOperatorDesc) -> Array:
    """The input, then `Output[c with c[Axis] = Indices[c]] = Updates[c]` (DML_SCATTER_ELEMENTS_OPERATOR_DESC)."""
    work = math.prod(desc.output_tensor.sizes) + 2 * math.prod(desc.indices_tensor.sizes)
    indices = desc.indices_tensor.sizes
    scratch = math.prod(indices) * (8 * len(indices) + 40)
    return Array(_scatter, 3, work, (("axis", desc.axis),), scratch)


def _scatter(xp: ModuleType, x: Any, indices: Any, updates: Any, axis: int) -> Any:
    length, made = x.shape[axis], x.copy()
    places = _nonnegative(xp, indices, length)
    inside = (places >= 0) & (places < length)
    coordinates = list(xp.nonzero(inside))
    values = updates[tuple(coordinates)]
    coordinates[axis] = places[inside]
    made[tuple(coordinates)] = values
    return made


@form_of_class(dml.NonzeroCoordinatesOperatorDesc)
def nonzero_form(desc: dml.NonzeroCoordinatesOperatorDesc) -> Array:
    """How many elements are not 0, and the last entries of their coordinates, in row-major order."""
    sizes = desc.input_tensor.sizes
    count, coordinates = desc.output_count_tensor.sizes, desc.output_coordinates_tensor.sizes
    work = math.prod(sizes) + math.prod(coordinates)
    scratch = math.prod(sizes) * (8 * len(sizes) + 16)
    return Array(_nonzero, 1, work, (("count", count), ("coordinates", coordinates)), scratch)


def _nonzero(xp: ModuleType, x: Any, count: tuple[int, ...], coordinates: tuple[int, ...]) -> tuple[Any, Any]:
    if x.dtype.kind == "f":
        # All bits but the sign: CuPy's kernels take subnormal numbers for 0, and they are none.
        bits = x.view(f"uint{8 * x.dtype.itemsize}")
        x = bits & bits.dtype.type((1 << (8 * x.dtype.itemsize - 1)) - 1)
    found = xp.nonzero(x)[x.ndim - coordinates[-1] :]
    rows = xp.zeros(coordinates[-2:], "uint32")
    held = len(found[0])
    for column, entries in enumerate(found):
        rows[:held, column] = entries
    return xp.full(count, held, "uint32"), rows.reshape(coordinates)
