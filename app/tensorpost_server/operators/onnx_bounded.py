"""ONNX operators whose results have sizes that depend on elements, as lines of the most elements that there may be.

NonZero, Compress and Unique are functions of arrays; NonMaxSuppression is ONNX Runtime's. Where ONNX's text is silent,
Unique takes NaN as equal to NaN, as NumPy does, and puts it last.

Source: ONNX, NonZero-13, Compress-11, Unique-11, NonMaxSuppression-11.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.onnx.bounded_node import BoundedNode
from tensorpost.onnx.parameters import ModelParameters

from ..forms import Array
from .onnx_runtime import array_form, as_lines, require_runtime
from .onnx_runtime_cost import extra_bytes, work_of
from .registry import form_of_class

_SORT_WORK = 32  # for each element that is sorted


@form_of_class(BoundedNode)
def bounded_form(node: BoundedNode) -> Array:
    """The form of a bounded node; what is made lies three times in memory: as an array, as lines and as outputs.

    Raises:
        NoBackend: ONNX Runtime computes it, and is not installed.
    """
    most = tuple([each.elements for each in node.bounds])
    made_bytes = sum([tensor.size_in_bytes for _, tensor in node.results])
    read = sum([tensor.element_count for _, tensor in node.tensors])
    count, axis = len(node.tensors), node.attribute("axis")
    match node.op_type:
        case "NonZero":
            return Array(_nonzero, count, read + sum(most), (("most", most),), 2 * made_bytes)
        case "Compress":
            return Array(_compress, count, read + sum(most), (("most", most), ("axis", axis)), 2 * made_bytes)
        case "Unique":
            parameters = (("most", most), ("axis", axis), ("ordered", bool(node.attribute("sorted"))))
            scratch = 2 * made_bytes + 2 * node.input.size_in_bytes + 64 * node.input.element_count
            return Array(_unique, count, _SORT_WORK * read, parameters, scratch)
        case _:
            require_runtime(node.name)
            tensors = [tensor for _, tensor in (*node.tensors, *node.results)]
            held = sum([tensor.size_in_bytes for tensor in tensors])
            outputs = [tensor for _, tensor in node.results]
            return array_form(
                node.parameters_as(ModelParameters).model, node.tensors, outputs, work_of(node), held,
                extra_bytes(node), node.name, node.name, is_bounded=True,
            )  # fmt: skip


def _nonzero(xp: ModuleType, x: Any, *, most: tuple[int, ...]) -> Any:
    """The coordinates of the elements that are not 0, a row for each dimension; -0 is 0, and NaN is not."""
    if not x.ndim:
        return as_lines(xp, [xp.zeros((0, int(bool(x))), np.int64)], most)
    return as_lines(xp, [xp.stack(xp.nonzero(x)).astype(np.int64)], most)


def _compress(xp: ModuleType, x: Any, condition: Any, *, most: tuple[int, ...], axis: int | None) -> Any:
    """The slices along an axis, or the elements, at which the condition is true."""
    source, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    return as_lines(xp, [xp.take(source, xp.nonzero(condition)[0], axis=along)], most)


def _unique(xp: ModuleType, x: Any, *, most: tuple[int, ...], axis: int | None, ordered: bool) -> Any:
    """The distinct elements or slices; where each comes first, which one each element is, and how often each comes."""
    along = 0 if axis is None else axis
    source = x.reshape(-1) if axis is None else x
    lines = xp.moveaxis(source, along, 0)
    codes = _codes(xp, x.reshape(-1)).reshape(source.shape)
    numbers = _codes(xp, xp.moveaxis(codes, along, 0).reshape(lines.shape[0], math.prod(lines.shape[1:])))
    order = xp.argsort(numbers, kind="stable")
    begins = _begins(xp, numbers[order])
    first, counts = order[begins], xp.diff(xp.append(begins, numbers.size))
    if not ordered:
        by_place = xp.argsort(first, kind="stable")
        places = xp.zeros(first.size, np.int64)
        places[by_place] = xp.arange(first.size)
        first, counts, numbers = first[by_place], counts[by_place], places[numbers]
    found = xp.take(source, first, axis=along)
    return as_lines(xp, [found, *[each.astype(np.int64) for each in (first, numbers, counts)]][: len(most)], most)


def _codes(xp: ModuleType, lines: Any) -> Any:
    """A number for each element, or for each line of numbers: equal for equal ones, and in their order."""
    many = lines.ndim > 1
    if many and not lines.shape[1]:
        return xp.zeros(lines.shape[0], np.int64)
    order = xp.lexsort(lines.T[::-1]) if many else xp.argsort(lines, kind="stable")
    codes = xp.zeros(lines.shape[0], np.int64)
    starts = xp.zeros(lines.shape[0], np.int64)
    starts[_begins(xp, lines[order])[1:]] = 1
    codes[order] = xp.cumsum(starts)
    return codes


def _begins(xp: ModuleType, lines: Any) -> Any:
    """Where another element, or another line, begins than the one before it."""
    if not lines.shape[0]:
        return xp.zeros(0, np.int64)
    before, after = lines[:-1], lines[1:]
    differs = (before != after) & ((before == before) | (after == after))  # NaN is not itself
    if differs.ndim > 1:
        differs = differs.any(axis=1)
    return xp.append(xp.zeros(1, np.int64), xp.nonzero(differs)[0] + 1)
