"""`Copies`: strided boxes of inputs laid into boxes of the outputs, over a fill value.

A copy is a nest of loops. Each loop steps along one axis of the output and along none, one or several axes of the
input; an input axis that no loop steps along stays at its start. Loops that step along the same output axis are nested:
the step of an outer loop is at least the extent that the inner ones cover, so no output element is written twice.

Tile along one axis, for example, is two loops: over the copies (output step `size`, no input step) and over the
elements of a copy (output step 1, input step 1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from .base import Box, BoxForm, Reads, extents

__all__ = ["ByteLoops", "Copies", "Copy", "Loop", "Move", "byte_loops", "moves", "uncovered"]

LONG_ROW = 256  # bytes; from here on NumPy's loop over a row's elements is no slower than one move of the row
SMALL = 64 * 1024  # bytes; up to this size an assignment costs most by the views that it takes
FEW_COPIES = 16  # up to this many copies of a short row, a loop over copies beats an inner loop of that length


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a copy.

    Attributes:
        extent: iterations, at least 1.
        target: the output axis that it steps along, and the step in coordinates, at least 1.
        source: the input axes that it steps along, each with its step in coordinates, which may be negative or 0.
    """

    extent: int
    target: tuple[int, int]
    source: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """A box of an input, copied into a box of an output.

    Attributes:
        input: which input, in binding order.
        source_start: the input coordinate of the first iteration.
        target_start: the output coordinate of the first iteration.
        loops: outermost first; of the loops along one output axis the one with the larger step comes first. Output axes
            without a loop have one coordinate.
    """

    input: int
    source_start: tuple[int, ...]
    target_start: tuple[int, ...]
    loops: tuple[Loop, ...]

    @classmethod
    def of(
        cls,
        sizes: Sequence[int],
        *,
        source_start: Sequence[int] | None = None,
        source_steps: Sequence[int] | None = None,
        target_start: Sequence[int] | None = None,
        input: int = 0,  # noqa: A002 # the field's name
    ) -> Copy:
        """A copy of a box of these sizes, axis by axis: the form of slices, joins and paddings.

        Args:
            sizes: elements copied along each axis.
            source_start: the first coordinate in the input; default 0.
            source_steps: how far apart the elements are in the input, default 1; 0 repeats one, -1 reverses.
            target_start: the first coordinate in the output; default 0. Elements lie side by side there.
            input: which input.
        """
        if 0 in sizes:
            raise ValueError(f"a copy of sizes {list(sizes)} has no elements; leave it out")
        zeros = (0,) * len(sizes)
        steps = (1,) * len(sizes) if source_steps is None else source_steps
        loops = [
            Loop(size, (axis, 1), ((axis, step),))
            for axis, (size, step) in enumerate(zip(sizes, steps, strict=True))
            if size != 1
        ]
        return cls(input, tuple(source_start or zeros), tuple(target_start or zeros), tuple(loops))


@dataclass(frozen=True, slots=True)
class Copies(BoxForm):
    """Every element of the outputs is an element of an input, bit for bit, or the fill value.

    Attributes:
        ranks: dimensions of each input.
        outputs: for each output the copies into it, which do not overlap.
        fill_value: what elements are that no copy writes to; None if the copies write to all of them.
    """

    ranks: tuple[int, ...]
    outputs: tuple[tuple[Copy, ...], ...]
    fill_value: int | float | None = None
    _kept: dict[int, _Assignments] = field(
        init=False, repr=False, compare=False, default_factory=dict[int, "_Assignments"]
    )  # what was done last, by output

    def reads(self, box: Box, output: int = 0) -> tuple[Reads, ...]:
        """See `Form.reads`: the smallest boxes of the inputs around what is copied."""
        found: list[list[tuple[int, int]] | None] = [None] * len(self.ranks)
        for move in moves(self, box, output):
            ends = move.source_box()
            before = found[move.input]
            if before is not None:
                ends = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(before, ends, strict=True)]
            found[move.input] = ends
        return tuple(
            [((0, 0),) * rank if ends is None else tuple(ends) for rank, ends in zip(self.ranks, found, strict=True)]
        )

    def work(self, box: Box, output: int = 0) -> int:
        """See `Form.work`: one read per element."""
        del output
        return math.prod(extents(box))

    def fill_element(self, dtype: np.dtype[Any]) -> Any:
        """The fill value as an element of this type, 0 if there is none.

        Of a 64-bit integer every digit counts, so it does not pass through a float.
        """
        value = self.fill_value or 0
        return dtype.type(value) if isinstance(value, int) else np.float64(value).astype(dtype)

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        """See `Form.fill`."""
        kept = self._kept.get(output)
        if kept is not None and kept.box is box and kept.dtype is out.dtype and kept.strides == out.strides:
            if kept.packed is not None:
                index, strides, split, apart = kept.packed
                x = inputs[index]
                if x.strides == strides:
                    out.reshape(split)[...] = x.reshape(apart)
                    return
            elif kept.source_strides == [x.strides for x in inputs]:
                kept.run(inputs, out)
                return
        found = list(moves(self, box, output))
        if self.fill_value is not None:
            value = self.fill_element(out.dtype)
            for part in uncovered(box, found):
                out[tuple([slice(*span) for span in part])] = value
        if xp is not np or out.dtype.kind == "O":
            copy = _copy_on_device if xp is not np else _copy_objects
            for move in found:
                copy(xp, inputs[move.input], out, move)
            return
        kept = _Assignments(box, out.dtype, out.strides, [x.strides for x in inputs])
        kept.plan(found, inputs, out)
        if self.fill_value is None:
            self._kept[output] = kept
        kept.run(inputs, out)


@dataclass(slots=True)
class _Assignments:
    """How NumPy copies into a box, worked out once: finding it out costs more than copying a small output.

    Attributes:
        box: the very box.
        dtype: the very type of the elements.
        strides: of the array that holds the box.
        source_strides: of each input.
        packed: where one assignment of reshaped arrays does it: the input, its strides, and both shapes.
        views: where it does not: for each assignment the input, and the views of the output and of the input.
    """

    box: Box
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    source_strides: list[tuple[int, ...]]
    packed: tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None
    views: list[tuple[int, _View, _View]] = field(default_factory=list["tuple[int, _View, _View]"])

    def plan(self, found: Sequence[Move], inputs: Sequence[Any], out: Any) -> None:
        """Find the assignments that make these moves."""
        loops = [byte_loops(move, inputs[move.input].strides, out.strides) for move in found]
        if len(found) == 1 and out.nbytes <= SMALL:
            index = found[0].input
            shapes = _reshaped(loops[0], inputs[index], out)
            if shapes is not None:
                self.packed = (index, inputs[index].strides, *shapes)
                return
        for move, each in zip(found, loops, strict=True):
            self.views += [(move.input, *views) for views in _views(each, self.dtype.itemsize)]

    def run(self, inputs: Sequence[Any], out: Any) -> None:
        """Assign."""
        if self.packed is not None:
            index, _, split, apart = self.packed
            out.reshape(split)[...] = inputs[index].reshape(apart)
        for index, target, source in self.views:
            _seen(out, target)[...] = _seen(inputs[index], source)


@dataclass(frozen=True, slots=True)
class Move:
    """The part of a copy that falls into a box of the output.

    Attributes:
        input: which input, in binding order.
        source_start: input coordinate of the first iteration.
        target_start: coordinate of the first iteration, counted from the box's first one.
        loops: outermost first.
    """

    input: int
    source_start: tuple[int, ...]
    target_start: tuple[int, ...]
    loops: tuple[Loop, ...]

    def source_box(self) -> list[tuple[int, int]]:
        """The smallest box of the input that holds what is read."""
        low, high = list(self.source_start), list(self.source_start)
        for loop in self.loops:
            for axis, step in loop.source:
                reach = (loop.extent - 1) * step
                low[axis] += min(0, reach)
                high[axis] += max(0, reach)
        return [(first, last + 1) for first, last in zip(low, high, strict=True)]

    def target_box(self, rank: int) -> Box | None:
        """The box of the output that is written to, as `target_start` counts; None if only parts of it are."""
        last, written = list(self.target_start), 1
        for loop in self.loops:
            last[loop.target[0]] += (loop.extent - 1) * loop.target[1]
            written *= loop.extent
        spans = tuple([(first, last[axis] + 1) for axis, first in zip(range(rank), self.target_start, strict=True)])
        return spans if math.prod(extents(spans)) == written else None


def moves(form: Copies, box: Box, output: int = 0) -> Iterator[Move]:
    """The parts of an output's copies that fall into a box: what every backend runs."""
    for copy in form.outputs[output]:
        yield from _moves(copy, box)


def _moves(copy: Copy, box: Box) -> Iterator[Move]:
    by_axis: list[list[int]] = [[] for _ in box]
    for index, loop in enumerate(copy.loops):
        by_axis[loop.target[0]].append(index)
    parts: list[list[_Part]] = []
    for axis, (start, stop) in enumerate(box):
        nest = [copy.loops[index] for index in by_axis[axis]]
        shape = tuple([(loop.extent, loop.target[1]) for loop in nest])
        found = _parts(shape, copy.target_start[axis], start, stop)
        if not found:
            return
        parts.append(found)
    for combination in itertools.product(*parts):
        source, target = (
            list(copy.source_start),
            [at - start for at, (start, _) in zip(copy.target_start, box, strict=True)],
        )
        loops: list[Loop | None] = [None] * len(copy.loops)
        for indices, ranges in zip(by_axis, combination, strict=True):
            for index, (low, high) in zip(indices, ranges, strict=True):
                loop = copy.loops[index]
                target[loop.target[0]] += low * loop.target[1]
                for axis, step in loop.source:
                    source[axis] += low * step
                if high - low > 1:
                    loops[index] = Loop(high - low, loop.target, loop.source)
        yield Move(copy.input, tuple(source), tuple(target), tuple([loop for loop in loops if loop is not None]))


MOST_FILLED = 64  # boxes that are filled one by one; more are filled together with what is copied over them


def uncovered(box: Box, found: Sequence[Move]) -> list[Box]:
    """Boxes, counted from the first coordinate of `box`, that hold every element which no move writes to.

    They are disjoint. Where the moves leave too many boxes, or write to some elements of a box only, parts that are
    copied over afterwards may be among them: fill first.
    """
    left: list[Box] = [tuple([(0, stop - start) for start, stop in box])]
    for move in found:
        dense = move.target_box(len(box))
        if dense is None:
            continue
        rest: list[Box] = []
        for part in left:
            rest += _outside(part, dense)
        if len(rest) > MOST_FILLED:
            break
        left = rest
    return left


def _outside(box: Box, hole: Box) -> Iterator[Box]:
    """The box without the hole, as disjoint boxes."""
    if any(high <= first or last <= low for (low, high), (first, last) in zip(box, hole, strict=True)):
        yield box
        return
    for axis, ((low, high), (first, last)) in enumerate(zip(box, hole, strict=True)):
        if low < first:
            yield (*box[:axis], (low, first), *box[axis + 1 :])
        if last < high:
            yield (*box[:axis], (last, high), *box[axis + 1 :])
        box = (*box[:axis], (max(low, first), min(high, last)), *box[axis + 1 :])


_Part = tuple[tuple[int, int], ...]
"""A half-open range of iterations for each loop of a nest."""


@lru_cache(maxsize=4096)  # slices of one output share most of their ranges
def _parts(nest: tuple[tuple[int, int], ...], base: int, start: int, stop: int) -> list[_Part]:
    """The iterations of a nest of (extent, step) loops whose position, counted from `base`, is in [start, stop)."""
    if not nest:
        return [()] if start <= base < stop else []
    (extent, step), rest = nest[0], nest[1:]
    span = 1 + sum((count - 1) * inner for count, inner in rest)
    first = max(0, -((base + span - 1 - start) // step))  # the first iteration that reaches `start`
    last = min(extent, -((base - stop) // step))  # behind the last one that begins before `stop`
    full_first = max(first, -((base - start) // step))
    full_last = min(last, (stop - base - span) // step + 1)
    found: list[_Part] = []
    if full_first >= full_last:
        full_first = full_last = last
    for iteration in range(first, full_first):
        found += [((iteration, iteration + 1), *part) for part in _parts(rest, base + iteration * step, start, stop)]
    if full_first < full_last:
        found.append(((full_first, full_last), *[(0, count) for count, _ in rest]))
    for iteration in range(full_last, last):
        found += [((iteration, iteration + 1), *part) for part in _parts(rest, base + iteration * step, start, stop)]
    return found


ByteLoops = tuple[int, int, tuple[tuple[int, int, int], ...]]
"""First source byte, first target byte, and (extent, target stride, source stride) of each loop in bytes."""


def byte_loops(move: Move, source_strides: Sequence[int], target_strides: Sequence[int]) -> ByteLoops:
    """A move as loops over bytes, outermost (with the largest target stride) first, as few as possible.

    Args:
        move: what is copied.
        source_strides: of the input array, in bytes.
        target_strides: of the array that holds the box, in bytes.
    """
    source = sum([at * stride for at, stride in zip(move.source_start, source_strides, strict=True)])
    target = sum([at * stride for at, stride in zip(move.target_start, target_strides, strict=True)])
    loops = [
        (
            loop.extent,
            loop.target[1] * target_strides[loop.target[0]],
            sum([step * source_strides[axis] for axis, step in loop.source]),
        )
        for loop in move.loops
    ]
    loops.sort(key=lambda loop: -loop[1])
    merged: list[tuple[int, int, int]] = []
    for extent, into, of in loops:
        if merged and merged[-1][1] == extent * into and merged[-1][2] == extent * of:
            merged[-1] = (merged[-1][0] * extent, into, of)
        else:
            merged.append((extent, into, of))
    return source, target, tuple(merged)


_View = tuple[tuple[int, ...], str, int, tuple[int, ...]]
"""How an array's memory is seen: shape, type, first byte, strides in bytes."""


def _views(found: ByteLoops, item: int) -> Iterator[tuple[_View, _View]]:
    """The loops as assignments of strided arrays, of elements or of short rows as single elements.

    A view stays inside its array, since the coordinates of a copy lie inside the tensor's sizes.
    """
    source_at, target_at, loops = found
    copies = range(1)
    if len(loops) > 1 and loops[-1][1] == loops[-1][2] == item and loops[-1][0] * item < LONG_ROW:
        item *= loops[-1][0]
        loops = loops[:-1]
        if loops[-1][2] == 0 and loops[-1][0] <= FEW_COPIES:
            copies = range(0, loops[-1][0] * loops[-1][1], loops[-1][1])
            loops = loops[:-1]
    shape, kind = tuple([loop[0] for loop in loops]), _unsigned(item)
    source = (shape, kind, source_at, tuple([loop[2] for loop in loops]))
    for copy in copies:
        yield (shape, kind, target_at + copy, tuple([loop[1] for loop in loops])), source


def _unsigned(item: int) -> str:
    """A type of so many bytes that any bits may have."""
    return f"<u{item}" if item in (1, 2, 4, 8) else f"|V{item}"


def _reshaped(found: ByteLoops, source: Any, target: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shapes in which one array is assigned to the other, if that makes the copy: fastest for a small one."""
    loops = found[2]
    split, apart = tuple([loop[0] for loop in loops]), tuple([loop[0] if loop[2] else 1 for loop in loops])
    whole = (math.prod(split), math.prod(apart)) == (target.size, source.size)
    if not (whole and target.flags.c_contiguous and source.flags.c_contiguous):
        return None
    steps = [math.prod(apart[axis + 1 :]) * source.itemsize for axis in range(len(apart))]
    in_order = all(own in (0, step) for (_, _, own), step in zip(loops, steps, strict=True))
    return (split, apart) if in_order else None


class _ArrayInterface:
    """An array's memory, seen through other loops: NumPy's array interface, which keeps the array alive."""

    __slots__ = ("__array_interface__", "array")

    def __init__(self, array: Any, interface: dict[str, Any]) -> None:
        self.array, self.__array_interface__ = array, interface


def _seen(array: Any, view: _View) -> Any:
    shape, kind, at, strides = view
    address, read_only = array.__array_interface__["data"]
    interface = {"data": (address + at, read_only), "shape": shape, "strides": strides, "typestr": kind, "version": 3}
    return np.asarray(_ArrayInterface(array, interface))


def _copy_on_device(xp: ModuleType, source: Any, target: Any, move: Move) -> None:
    source_at, target_at, loops = byte_loops(move, source.strides, target.strides)
    shape = tuple([loop[0] for loop in loops])
    goal, made = [
        xp.ndarray(shape, array.dtype, memptr=array.data + at, strides=tuple([loop[side] for loop in loops]))
        for array, at, side in ((target, target_at, 1), (source, source_at, 2))
    ]
    goal[...] = made


def _copy_objects(xp: ModuleType, source: Any, target: Any, move: Move) -> None:
    """Strings, which only NumPy has, are copied as references."""
    as_strided = xp.lib.stride_tricks.as_strided
    _, _, loops = byte_loops(move, source.strides, target.strides)
    shape = [loop[0] for loop in loops]
    part = source[tuple([slice(at, None) for at in move.source_start])]
    goal = target[tuple([slice(at, None) for at in move.target_start])]
    as_strided(goal, shape, [loop[1] for loop in loops])[...] = as_strided(part, shape, [loop[2] for loop in loops])
