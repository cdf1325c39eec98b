"""Copies as nests of loops, cut to boxes of the output, and as loops over bytes.

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
from dataclasses import dataclass, replace
from functools import lru_cache

from .base import Box, coalesced, extents

MOST_FILLED = 64  # boxes that are filled one by one; more are filled together with what is copied over them


_Steps = tuple[tuple[int, int], ...]
"""Input axes, each with a step in coordinates."""


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
    def of_box(
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

    def within(self, box: Box) -> Iterator[Copy]:
        """The parts of the copy that fall into a box of the output; target coordinates count from the box's start."""
        by_axis: list[list[int]] = [[] for _ in box]
        for index, loop in enumerate(self.loops):
            by_axis[loop.target[0]].append(index)
        parts: list[list[_LoopRanges]] = []
        for axis, (start, stop) in enumerate(box):
            nest = [self.loops[index] for index in by_axis[axis]]
            shape = tuple([(loop.extent, loop.target[1]) for loop in nest])
            found = _parts(shape, self.target_start[axis], start, stop)
            if not found:
                return
            parts.append(found)
        for combination in itertools.product(*parts):
            source = list(self.source_start)
            target = [at - start for at, (start, _) in zip(self.target_start, box, strict=True)]
            loops: list[Loop | None] = [None] * len(self.loops)
            for indices, ranges in zip(by_axis, combination, strict=True):
                for index, (low, high) in zip(indices, ranges, strict=True):
                    loop = self.loops[index]
                    target[loop.target[0]] += low * loop.target[1]
                    for axis, step in loop.source:
                        source[axis] += low * step
                    if high - low > 1:
                        loops[index] = Loop(high - low, loop.target, loop.source)
            yield Copy(self.input, tuple(source), tuple(target), tuple([loop for loop in loops if loop is not None]))

    @property
    def size(self) -> int:
        """Elements that it copies."""
        return math.prod([loop.extent for loop in self.loops])

    @property
    def repeats(self) -> bool:
        """Whether it copies an element several times."""
        return not all(any(step for _, step in loop.source) for loop in self.loops)

    def after(
        self, made: Sequence[Copy], sizes: Sequence[int], read: Sequence[int], *, covered: bool
    ) -> list[Copy] | None:
        """Copies from where others took the elements that this one reads; None if they are not found this way.

        Args:
            made: the copies that made the tensor that it reads.
            sizes: the tensor's sizes.
            read: the sizes that this one reads it with; the same elements in the same order.
            covered: whether the copies made all of it.
        """
        steps = made[0].axis_steps(sizes, read) if covered and len(made) == 1 else None
        if steps is not None:
            return [self._moved(made[0], steps)]
        axes = [axis for loop in self.loops for axis, _ in loop.source]
        is_box = all(loop.target[1] == 1 and len(loop.source) == 1 and loop.source[0][1] == 1 for loop in self.loops)
        if not is_box or len(set(axes)) < len(axes) or tuple(read) != tuple(sizes):
            return None
        moved = {loop.source[0][0]: loop.target[0] for loop in self.loops}
        if len(set(moved.values())) < len(moved):
            return None
        found: list[Copy] = []
        for copy in made:
            for part in copy.within(tuple(self.source_box())):
                target = list(self.target_start)
                for axis, to in moved.items():
                    target[to] += part.target_start[axis]
                loops = [replace(loop, target=(moved[loop.target[0]], loop.target[1])) for loop in part.loops]
                found.append(Copy(part.input, part.source_start, tuple(target), tuple(loops)))
        return found

    def axis_steps(self, sizes: Sequence[int], read: Sequence[int]) -> list[_Steps] | None:
        """What a step along each axis of the output is in the input; None if the steps of an axis differ.

        Args:
            sizes: the output's sizes, all of which the copy writes.
            read: the sizes that the output is read with, whose axes may be parts of its axes.
        """
        own: list[_Steps] = [()] * len(sizes)
        for loop in self.loops:
            if loop.extent != sizes[loop.target[0]]:
                return None
            own[loop.target[0]] = loop.source
        found: list[_Steps] = []
        axes, steps, left = iter(zip(sizes, own, strict=True)), _Steps(), 1
        for size in read:
            while left == 1 and size != 1:
                left, steps = next(axes)
            if left % size:
                return None
            left //= size
            found.append(tuple([(axis, step * left) for axis, step in steps]) if size != 1 else ())
        return found

    def _moved(self, made: Copy, steps: Sequence[_Steps]) -> Copy:
        start = list(made.source_start)
        for axis, at in enumerate(self.source_start):
            for source, step in steps[axis]:
                start[source] += at * step
        loops: list[Loop] = []
        for loop in self.loops:
            moves: dict[int, int] = {}
            for axis, step in loop.source:
                for source, each in steps[axis]:
                    moves[source] = moves.get(source, 0) + step * each
            loops.append(Loop(loop.extent, loop.target, tuple(moves.items())))
        return Copy(made.input, tuple(start), self.target_start, tuple(loops))

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


def uncovered(box: Box, copies: Sequence[Copy]) -> list[Box]:
    """Boxes, counted from the first coordinate of `box`, that hold every element which no copy writes to.

    They are disjoint. Where the copies leave too many boxes, or write to some elements of a box only, parts that are
    copied over afterwards may be among them: fill first.
    """
    boxes: list[Box] = [tuple([(0, stop - start) for start, stop in box])]
    for copy in copies:
        dense = copy.target_box(len(box))
        if dense is None:
            continue
        rest: list[Box] = []
        for part in boxes:
            rest += _outside(part, dense)
        if len(rest) > MOST_FILLED:
            break
        boxes = rest
    return boxes


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


_LoopRanges = tuple[tuple[int, int], ...]
"""A half-open range of iterations for each loop of a nest."""


@lru_cache(maxsize=4096)  # slices of one output share most of their ranges
def _parts(nest: tuple[tuple[int, int], ...], base: int, start: int, stop: int) -> list[_LoopRanges]:
    """The iterations of a nest of (extent, step) loops whose position, counted from `base`, is in [start, stop)."""
    if not nest:
        return [()] if start <= base < stop else []
    (extent, step), rest = nest[0], nest[1:]
    span = 1 + sum((count - 1) * inner for count, inner in rest)
    first = max(0, -((base + span - 1 - start) // step))  # the first iteration that reaches `start`
    last = min(extent, -((base - stop) // step))  # after the last one that begins before `stop`
    full_first = max(first, -((base - start) // step))
    full_last = min(last, (stop - base - span) // step + 1)
    found: list[_LoopRanges] = []
    if full_first >= full_last:
        full_first = full_last = last
    for iteration in range(first, full_first):
        found += [((iteration, iteration + 1), *part) for part in _parts(rest, base + iteration * step, start, stop)]
    if full_first < full_last:
        found.append(((full_first, full_last), *[(0, count) for count, _ in rest]))
    for iteration in range(full_last, last):
        found += [((iteration, iteration + 1), *part) for part in _parts(rest, base + iteration * step, start, stop)]
    return found


ByteLoops = tuple[int, int, tuple[tuple[int, ...], ...]]
"""First source byte, first target byte, and (extent, target stride, source stride) of each loop in bytes."""


def byte_loops(copy: Copy, source_strides: Sequence[int], target_strides: Sequence[int]) -> ByteLoops:
    """A copy as loops over bytes, outermost (with the largest target stride) first, as few as possible.

    Args:
        copy: what is copied.
        source_strides: strides of the input array, bytes.
        target_strides: strides of the array that holds the box, bytes.
    """
    first_source = sum([at * stride for at, stride in zip(copy.source_start, source_strides, strict=True)])
    first_target = sum([at * stride for at, stride in zip(copy.target_start, target_strides, strict=True)])
    loops = [
        (
            loop.extent,
            loop.target[1] * target_strides[loop.target[0]],
            sum([step * source_strides[axis] for axis, step in loop.source]),
        )
        for loop in copy.loops
    ]
    loops.sort(key=lambda loop: -loop[1])
    return first_source, first_target, tuple(coalesced(loops))
