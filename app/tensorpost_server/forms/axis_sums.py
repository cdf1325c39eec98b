"""Arithmetic along one axis: gathers and weighted sums of the taps of an axis plan, as calls of the array library."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .axis_plans import LONG_SUM, SHORTEST_RUN, AxisPlan, Piece
from .base import blocks, go_on
from .float16 import widen

BLOCK = 1 << 18  # elements of a block's largest array: 1 MiB of float32

_INTEGERS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def along(axis: int, where: Any) -> tuple[Any, ...]:
    """An index tuple: `where` along one axis, and everything along the axes before it."""
    return (*(slice(None),) * axis, where)


def _read(xp: ModuleType, source: Any, axis: int, piece: Piece, tap: int) -> Any:
    """The samples of one tap for all outputs of a piece: a view of `source`, or a new array."""
    if piece.slices:
        return source[along(axis, piece.slices[tap])]
    return _take(xp, source, piece.index[tap], axis)


def _take(xp: ModuleType, source: Any, index: NDArray[np.int64], axis: int) -> Any:
    where = xp.asarray(index)
    if not _takes_cheaply(source, index, axis):
        return source[along(axis, where)]
    if xp is np:
        # No index is out of range, so nothing wraps; the loop of this mode takes two thirds of the others' time.
        return np.take(source, index, axis=axis, mode="wrap")
    return xp.take(source, where, axis=axis)


def _takes_cheaply(source: Any, index: NDArray[np.int64], axis: int) -> bool:
    """Whether `take`, the faster way, may be used: it first copies a strided source, all of it."""
    return source.flags.c_contiguous or source.shape[axis] <= 2 * index.size


def gather(xp: ModuleType, source: Any, axis: int, plan: AxisPlan, target: Any) -> None:
    """Copy one input per output, bit for bit."""
    if xp is np and plan.repeats is not None and axis == target.ndim - 1 and _repeat(source, *plan.repeats, target):
        return
    for piece in plan.pieces:
        whole = len(plan.pieces) == 1 and len(piece.index) == 1 and not piece.slices and target.flags.c_contiguous
        if xp is np and whole and _takes_cheaply(source, piece.index, axis):
            np.take(source, piece.index[0], axis=axis, out=target, mode="wrap")  # see _take
        else:
            _put(xp, target, axis, piece, _read(xp, source, axis, piece, 0) if len(piece.index) else 0)


def _repeat(source: Any, lead: int, factor: int, target: Any) -> bool:
    """Write the last axis of `source` with every element `factor` times, the first one only `lead` times.

    One multiplication by 1 + 2^bits + ... repeats the bits of an integer, so several elements are written as one.

    Returns:
        False if they do not fit one integer, or lie so that NumPy would copy them first; nothing is written then.
    """
    item = source.itemsize
    if item * factor not in _INTEGERS or item not in _INTEGERS or source.strides[-1] != item:
        return False
    count = target.shape[-1]
    groups = (count - lead) // factor
    middle = target[..., lead : lead + groups * factor]
    if groups < SHORTEST_RUN or middle.strides[-1] != item:
        return False
    wide, narrow_type = _INTEGERS[item * factor], _INTEGERS[item]
    groups_out = middle.view(wide)
    if not groups_out.flags.aligned:
        return False
    first = 1 if lead else 0
    bits = source.view(narrow_type)
    ones = wide(sum(1 << (8 * item * i) for i in range(factor)))
    np.copyto(groups_out, bits[..., first : first + groups])
    np.multiply(groups_out, ones, out=groups_out)
    if lead:
        target[..., :lead] = source[..., :1]
    if lead + groups * factor < count:
        target[..., lead + groups * factor :] = source[..., first + groups : first + groups + 1]
    return True


def _put(xp: ModuleType, target: Any, axis: int, piece: Piece, values: Any) -> None:
    where = piece.out if isinstance(piece.out, slice) else xp.asarray(piece.out)
    target[along(axis, where)] = values


def weighted_sums(xp: ModuleType, source: Any, axis: int, plan: AxisPlan, target: Any, anchored: bool) -> None:
    """Sum the weighted taps of every output. `anchored` sums differences to the first tap instead."""
    for piece in plan.pieces:
        if piece.weight is None or not len(piece.index):
            _put(xp, target, axis, piece, _read(xp, source, axis, piece, 0) if len(piece.index) else 0)
            continue
        sum_taps = _sum_long if len(piece.index) >= LONG_SUM else _sum
        if isinstance(piece.out, slice):
            sum_taps(xp, source, axis, piece, target[along(axis, piece.out)], anchored)
        else:
            shape = list(target.shape)
            shape[axis] = piece.out.size
            sums = xp.empty(shape, target.dtype)
            sum_taps(xp, source, axis, piece, sums, anchored)
            _put(xp, target, axis, piece, sums)


def _weights(xp: ModuleType, weight: NDArray[Any], tail: int) -> Any:
    """One tap's weights, shaped to lie along the axis that has `tail` axes after it; a scalar if all are equal."""
    return weight[0] if weight.size == 1 else xp.asarray(weight).reshape((-1, *(1,) * tail))


def _sum(xp: ModuleType, source: Any, axis: int, piece: Piece, target: Any, anchored: bool) -> None:
    weight = piece.weight
    assert weight is not None
    tail, last = target.ndim - axis - 1, len(piece.index) - 1
    anchor: Any = None
    total: Any = None
    for tap in range(last + 1):
        samples = _read(xp, source, axis, piece, tap)
        fresh = not piece.slices  # a gather made a new array, a slice is a view
        if samples.dtype != target.dtype:
            samples, fresh = converted(xp, samples, target.dtype), True
        if tap == 0 and anchored:
            anchor = total = samples
            continue
        room = samples if fresh else xp.empty(samples.shape, samples.dtype)
        if anchored:
            samples = xp.subtract(samples, anchor, out=room)
        goal = target if tap == last else room
        scale = _weights(xp, weight[tap], tail)
        if total is None:
            total = xp.multiply(samples, scale, out=goal)
        else:
            total = xp.add(total, xp.multiply(samples, scale, out=room), out=goal)
    if last == 0 and anchored:
        target[...] = anchor


def _sum_long(xp: ModuleType, source: Any, axis: int, piece: Piece, target: Any, anchored: bool) -> None:
    """`_sum` of many taps: gathers them along a new last axis and lets the library sum pairwise."""
    weight = piece.weight
    assert weight is not None
    taps, outputs = piece.index.shape
    tail = target.ndim - axis - 1
    others = [(0, 1) if other == axis else (0, size) for other, size in enumerate(target.shape)]
    for box in blocks(tuple(others), max(1, BLOCK // taps)):
        where = [slice(None) if other == axis else slice(*span) for other, span in enumerate(box)]
        goal, given = target[tuple(where)], source[tuple(where)]
        width = max(1, BLOCK // (taps * max(1, goal.size // outputs)))
        for start in range(0, outputs, width):
            go_on()
            part = slice(start, min(start + width, outputs))
            index = piece.index[:, part]
            samples = converted(xp, _take(xp, given, index.reshape(-1), axis), target.dtype)
            shape = samples.shape
            samples = samples.reshape((*shape[:axis], *index.shape, *shape[axis + 1 :]))
            scale = weight if weight.shape[1] == 1 else weight[:, part]
            scale = xp.asarray(scale).reshape((*scale.shape, *(1,) * tail))
            base: Any = samples[along(axis, slice(0, 1))].copy() if anchored else 0
            samples -= base
            samples *= scale
            sums = xp.ascontiguousarray(xp.moveaxis(samples, axis, -1)).sum(axis=-1, dtype=target.dtype)
            goal[along(axis, part)] = sums + base[along(axis, 0)] if anchored else sums


def converted(xp: ModuleType, array: Any, dtype: Any) -> Any:
    """The array in the accumulation type; a new array unless it has that type."""
    if array.dtype == np.float16 and np.dtype(dtype) == np.float32:
        return widen(xp, array)
    return array.astype(dtype, copy=False)
