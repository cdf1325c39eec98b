"""Indexing operators, with array functions that take and put elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost import descriptors as dml

from ..forms import Array, Box, BoxFunction
from ..forms.base import blocks, go_on, whole_box
from .registry import form_of_class

BLOCK = 1 << 16  # elements at a time, whose indices of 64 bits stay in a CPU's cache
DEVICE_BLOCK = 1 << 23  # elements at a time on a device, where each part costs several launches


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
    picked = nonnegative(xp, indices[tuple([slice(*span) for span in middle])], length)
    picked = xp.clip(picked, 0, length - 1)
    source = x[(*[slice(*span) for span in leading], slice(None), *[slice(*span) for span in trailing])]
    out[...] = xp.take(source, picked.reshape(-1), axis=axis).reshape(out.shape)


@form_of_class(dml.GatherElementsOperatorDesc)
def gather_elements_form(desc: dml.GatherElementsOperatorDesc) -> BoxFunction:
    """`Output[c] = Input[c with c[Axis] = Indices[c]]`."""
    return BoxFunction(gather_elements, 2, (("axis", desc.axis),), 2, block=BLOCK)


def gather_elements(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, axis: int) -> None:
    """Fill a box of the elements that an index of the same shape names along an axis."""
    x, indices = inputs
    part = [slice(*span) for span in box]
    picked = nonnegative(xp, indices[tuple(part)], x.shape[axis])
    part[axis] = slice(None)
    out[...] = xp.take_along_axis(x[tuple(part)], xp.clip(picked, 0, x.shape[axis] - 1), axis)


def along(xp: ModuleType, span: tuple[int, int], axis: int, rank: int) -> Any:
    """The coordinates of a range along an axis, as an array of `rank` dimensions."""
    return xp.arange(*span, dtype="int64").reshape([-1 if at == axis else 1 for at in range(rank)])


def nonnegative(xp: ModuleType, indices: Any, length: int) -> Any:
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
    return Array(_scatter, 3, work, (("axis", desc.axis),), scatter_scratch(desc.indices_tensor.sizes))


def _scatter(xp: ModuleType, x: Any, indices: Any, updates: Any, axis: int) -> Any:
    output = x.copy()
    for target, places, values in element_scatters(xp, output, indices, updates, axis):
        target[places] = values
    return output


def scatter_scratch(sizes: Sequence[int]) -> int:
    """Bytes that `element_scatters` takes at a time, with indices of these sizes."""
    return min(math.prod(sizes), DEVICE_BLOCK) * (8 * len(sizes) + 40)


def element_scatters(
    xp: ModuleType, output: Any, indices: Any, updates: Any, axis: int
) -> Iterator[tuple[Any, tuple[Any, ...], Any]]:
    """Parts of the output in row-major order of the indices, each with the places that get updates, and these.

    An index beyond the axis names no place.
    """
    length = output.shape[axis]
    for part in array_parts(xp, indices.shape):
        places = nonnegative(xp, indices[part], length)
        inside = (places >= 0) & (places < length)
        coordinates = list(xp.nonzero(inside))
        values = updates[part][tuple(coordinates)]
        coordinates[axis] = places[inside]
        yield output[(*part[:axis], slice(None), *part[axis + 1 :])], tuple(coordinates), values


def array_parts(xp: ModuleType, sizes: Sequence[int], each: int = 1) -> Iterator[tuple[slice, ...]]:
    """Parts of an array in row-major order, between which the computation may be stopped.

    Args:
        xp: NumPy or CuPy.
        sizes: the array's sizes.
        each: elements that are moved for each of the array's.
    """
    for box in blocks(whole_box(sizes), max(1, (BLOCK if xp is np else DEVICE_BLOCK) // max(1, each))):
        go_on()
        yield tuple([slice(*span) for span in box])


@form_of_class(dml.NonzeroCoordinatesOperatorDesc)
def nonzero_form(desc: dml.NonzeroCoordinatesOperatorDesc) -> Array:
    """How many elements are not 0, and the last entries of their coordinates, in row-major order."""
    sizes = desc.input_tensor.sizes
    count, coordinates = desc.output_count_tensor.sizes, desc.output_coordinates_tensor.sizes
    work = math.prod(sizes) + math.prod(coordinates)
    scratch = min(math.prod(sizes), DEVICE_BLOCK) * (8 * len(sizes) + 16)
    return Array(_nonzero, 1, work, (("count", count), ("coordinates", coordinates)), scratch)


def _nonzero(xp: ModuleType, x: Any, count: tuple[int, ...], coordinates: tuple[int, ...]) -> tuple[Any, Any]:
    rows, taken = xp.zeros(coordinates[-2:], "uint32"), 0
    for part in array_parts(xp, x.shape):
        elements = x[part]
        if elements.dtype.kind == "f":
            # All bits but the sign: CuPy's kernels take subnormal numbers for 0, and they are none.
            bits = elements.view(f"uint{8 * elements.dtype.itemsize}")
            elements = bits & bits.dtype.type((1 << (8 * elements.dtype.itemsize - 1)) - 1)
        entries = xp.nonzero(elements)
        end = taken + len(entries[0])
        for column in range(-coordinates[-1], 0):
            rows[taken:end, column] = entries[column] + part[column].start
        taken = end
    return xp.full(count, taken, "uint32"), rows.reshape(coordinates)


@form_of_class(dml.OneHotOperatorDesc)
def one_hot_form(desc: dml.OneHotOperatorDesc) -> BoxFunction:
    """`Output[c] = Values[1 if c[Axis] == Indices[c with c[Axis] = 0] else 0]`."""
    values = desc.values_tensor.sizes
    last = max(axis for axis, size in enumerate(values) if size > 1)
    second = tuple([int(axis == last) for axis in range(len(values))])
    parameters = (("axis", desc.axis), ("length", desc.output_tensor.sizes[desc.axis]), ("second", second))
    return BoxFunction(_one_hot, 2, parameters, block=BLOCK)


def _one_hot(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, axis: int, length: int, second: tuple[int, ...]
) -> None:
    indices, values = inputs
    part = [slice(*span) for span in box]
    part[axis] = slice(None)
    hot = along(xp, box[axis], axis, len(box)) == nonnegative(xp, indices[tuple(part)], length)
    out[...] = xp.where(hot, values[second], values[(0,) * len(box)])


@form_of_class(dml.ReverseSubsequencesOperatorDesc)
def reverse_form(desc: dml.ReverseSubsequencesOperatorDesc) -> BoxFunction:
    """`Output[k] = Input[min(n - 1 - k, last)]` below the length n along each line, and the input from there on."""
    return BoxFunction(_reverse, 2, (("axis", desc.axis),), 2, block=BLOCK)


def _reverse(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, axis: int) -> None:
    x, lengths = inputs
    part = [slice(*span) for span in box]
    part[axis] = slice(None)
    count = lengths[tuple(part)].astype("uint32").astype("int64")
    place = along(xp, box[axis], axis, len(box))
    picked = xp.where(place < count, xp.minimum(count - 1 - place, x.shape[axis] - 1), place)
    out[...] = xp.take_along_axis(x[tuple(part)], picked, axis)
