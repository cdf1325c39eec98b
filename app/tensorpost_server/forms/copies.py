"""`Copies`: strided boxes of inputs laid into boxes of the outputs, over a fill value, with NumPy or CuPy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np

from .base import Box, BoxForm, Reads, extents
from .copy_loops import ByteLoops, Copy, byte_loops, uncovered

LONG_ROW = 256  # bytes; from here on NumPy's loop over a row's elements is no slower than one move of the row
SMALL = 64 * 1024  # bytes; up to this size an assignment costs most by the views that it takes
FEW_COPIES = 16  # up to this many copies of a short row, a loop over copies beats an inner loop of that length
MOST_COMPOSED = 64  # copies of an output that are made of others; each costs some microseconds for every slice


@dataclass(frozen=True, slots=True)
class Copies(BoxForm):
    """Every element of the outputs is an element of an input, bit for bit, or the fill value.

    Attributes:
        ranks: dimensions of each input.
        outputs: the copies into each output, which do not overlap.
        fill_value: what elements are that no copy writes to; None if the copies write to all of them.
        input_sizes: the sizes that packed inputs are read with if not with their own; the elements are the same.
    """

    ranks: tuple[int, ...]
    outputs: tuple[tuple[Copy, ...], ...]
    fill_value: int | float | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    _kept: dict[int, _Assignments] = field(
        init=False, repr=False, compare=False, default_factory=dict[int, "_Assignments"]
    )  # what was done last, by output

    @classmethod
    def of_box(
        cls,
        sizes: Sequence[int],
        *,
        source_start: Sequence[int] | None = None,
        source_steps: Sequence[int] | None = None,
        target_start: Sequence[int] | None = None,
        fill_value: int | float | None = None,
        input_sizes: tuple[tuple[int, ...], ...] = (),
    ) -> Copies:
        """One box of the only input, copied into the only output; see `Copy.of_box`."""
        copy = Copy.of_box(sizes, source_start=source_start, source_steps=source_steps, target_start=target_start)
        return cls((len(sizes),), ((copy,),), fill_value, input_sizes)

    def within(self, box: Box, output: int = 0) -> Iterator[Copy]:
        """The parts of an output's copies that fall into a box of it, as every backend runs them."""
        for copy in self.outputs[output]:
            yield from copy.within(box)

    def reads(self, box: Box, output: int = 0) -> tuple[Reads, ...]:
        """See `Form.reads`: the smallest boxes of the inputs around what is copied."""
        found: list[list[tuple[int, int]] | None] = [None] * len(self.ranks)
        for copy in self.within(box, output):
            ends = copy.source_box()
            before = found[copy.input]
            if before is not None:
                ends = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(before, ends, strict=True)]
            found[copy.input] = ends
        return tuple(
            [((0, 0),) * rank if ends is None else tuple(ends) for rank, ends in zip(self.ranks, found, strict=True)]
        )

    def localized(self, box: Box, output: int = 0) -> Copies:
        """See `Form.localized`: the copies that fall into the box, from the boxes of the inputs around them."""
        starts = [[start for start, _ in read or ()] for read in self.reads(box, output)]
        found = [
            replace(copy, source_start=tuple([
                at - start for at, start in zip(copy.source_start, starts[copy.input], strict=True)
            ]))
            for copy in self.within(box, output)
        ]  # fmt: skip
        return Copies(self.ranks, (tuple(found),), self.fill_value)

    def work(self, box: Box, output: int = 0) -> int:
        """See `Form.work`: one read per element."""
        return math.prod(extents(box))

    def keeps_order(self, sizes: Sequence[int]) -> bool:
        """Whether the only output has the elements of the only input, of these sizes, in the same order."""
        whole = () if 0 in sizes else (Copy.of_box(sizes),)
        return self.ranks == (len(sizes),) and self.outputs == (whole,) and self.fill_value is None

    def after(self, first: Copies, place: int, sizes: Sequence[int], read: Sequence[int]) -> Copies | None:
        """The copies that both make; None if they are not composed, or would repeat elements of the first's output.

        It reads the inputs of the first in the place of the input that the first makes.

        Args:
            first: makes an input of this one, its only output, which is packed.
            place: the input's place.
            sizes: the sizes of the first's output.
            read: the sizes that this one reads it with.
        """
        own = [copy for copies in self.outputs for copy in copies if copy.input == place]
        fills = {repr(form.fill_value) for form in (self, first) if form.fill_value is not None}
        if sum([copy.size for copy in own]) > math.prod(sizes) or len(fills) > 1:
            return None
        (made,), shift = first.outputs, len(first.ranks) - 1
        if len(self.ranks) > 1 and any(copy.repeats for copy in made):
            return None  # the other inputs would not be streamed
        found: list[tuple[Copy, ...]] = []
        for copies in self.outputs:
            parts: list[Copy] = []
            for copy in copies:
                if copy.input != place:
                    parts.append(replace(copy, input=copy.input + shift * (copy.input > place)))
                    continue
                composed = copy.after(made, sizes, read, covered=first.fill_value is None)
                if composed is None:
                    return None
                parts += [replace(each, input=each.input + place) for each in composed]
            found.append(tuple(parts))
        if max(map(len, found)) > MOST_COMPOSED:
            return None
        ranks = (*self.ranks[:place], *first.ranks, *self.ranks[place + 1 :])
        return Copies(ranks, tuple(found), self.fill_value if first.fill_value is None else first.fill_value)

    def fill_element(self, dtype: np.dtype[Any]) -> Any:
        """The fill value as an element of this type, 0 if there is none.

        Of a 64-bit integer every digit counts, so it does not pass through a float.
        """
        value = 0 if self.fill_value is None else self.fill_value
        return dtype.type(value) if isinstance(value, int) else np.float64(value).astype(dtype)

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        kept = self._kept.get(output)
        if kept is not None and kept.box is box and kept.dtype is out.dtype and kept.strides == out.strides:
            if kept.packed is not None:
                index, strides, target_shape, source_shape = kept.packed
                x = inputs[index]
                if x.strides == strides:
                    out.reshape(target_shape)[...] = x.reshape(source_shape)
                    return
            elif kept.source_strides == [x.strides for x in inputs]:
                kept.run(inputs, out)
                return
        found = list(self.within(box, output))
        if self.fill_value is not None:
            value = self.fill_element(out.dtype)
            for part in uncovered(box, found):
                out[tuple([slice(*span) for span in part])] = value
        if xp is not np or out.dtype.kind == "O":
            assign = _copy_on_device if xp is not np else _copy_objects
            for copy in found:
                assign(xp, inputs[copy.input], out, copy)
            return
        kept = _Assignments(box, out.dtype, out.strides, [x.strides for x in inputs])
        kept.plan(found, inputs, out)
        if self.fill_value is None:
            self._kept[output] = kept
        kept.run(inputs, out)


@dataclass(slots=True)
class _Assignments:
    """The NumPy assignments for a box, planned once: planning costs more than copying a small output.

    Attributes:
        box: the very box.
        dtype: the very type of the elements.
        strides: strides of the array that holds the box, bytes.
        source_strides: strides of each input, bytes.
        packed: where one assignment of reshaped arrays does it: the input, its strides, and both shapes.
        views: where it does not: for each assignment the input, and the views of the output and of the input.
    """

    box: Box
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    source_strides: list[tuple[int, ...]]
    packed: tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None
    views: list[tuple[int, _View, _View]] = field(default_factory=list["tuple[int, _View, _View]"])

    def plan(self, copies: Sequence[Copy], inputs: Sequence[Any], out: Any) -> None:
        """Find the assignments that make these copies."""
        loops = [byte_loops(copy, inputs[copy.input].strides, out.strides) for copy in copies]
        if len(copies) == 1 and out.nbytes <= SMALL:
            index = copies[0].input
            shapes = _reshaped(loops[0], inputs[index], out)
            if shapes is not None:
                self.packed = (index, inputs[index].strides, *shapes)
                return
        for copy, each in zip(copies, loops, strict=True):
            self.views += [(copy.input, *views) for views in _views(each, self.dtype.itemsize)]

    def run(self, inputs: Sequence[Any], out: Any) -> None:
        """Run the assignments."""
        if self.packed is not None:
            index, _, target_shape, source_shape = self.packed
            out.reshape(target_shape)[...] = inputs[index].reshape(source_shape)
        for index, target, source in self.views:
            _seen(out, target)[...] = _seen(inputs[index], source)


_View = tuple[tuple[int, ...], str, int, tuple[int, ...]]
"""A view of an array's memory: shape, type, first byte, strides in bytes."""


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
    """A type of `item` bytes of which every bit pattern is a value."""
    return f"<u{item}" if item in (1, 2, 4, 8) else f"|V{item}"


def _reshaped(found: ByteLoops, source: Any, target: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shapes in which one assignment makes the copy, the fastest way for a small one; None if there are none."""
    loops = found[2]
    target_shape = tuple([loop[0] for loop in loops])
    source_shape = tuple([loop[0] if loop[2] else 1 for loop in loops])
    whole = (math.prod(target_shape), math.prod(source_shape)) == (target.size, source.size)
    if not (whole and target.flags.c_contiguous and source.flags.c_contiguous):
        return None
    steps = [math.prod(source_shape[axis + 1 :]) * source.itemsize for axis in range(len(source_shape))]
    in_order = all(own in (0, step) for (_, _, own), step in zip(loops, steps, strict=True))
    return (target_shape, source_shape) if in_order else None


class _ArrayInterface:
    """A view of an array's memory by other loops: NumPy's array interface, which keeps the array alive."""

    __slots__ = ("__array_interface__", "array")

    def __init__(self, array: Any, interface: dict[str, Any]) -> None:
        self.array, self.__array_interface__ = array, interface


def _seen(array: Any, view: _View) -> Any:
    shape, kind, at, strides = view
    address, read_only = array.__array_interface__["data"]
    interface = {"data": (address + at, read_only), "shape": shape, "strides": strides, "typestr": kind, "version": 3}
    return np.asarray(_ArrayInterface(array, interface))


def _copy_on_device(xp: ModuleType, source: Any, target: Any, copy: Copy) -> None:
    source_at, target_at, loops = byte_loops(copy, source.strides, target.strides)
    shape = tuple([loop[0] for loop in loops])
    target_view, source_view = [
        xp.ndarray(shape, array.dtype, memptr=array.data + at, strides=tuple([loop[side] for loop in loops]))
        for array, at, side in ((target, target_at, 1), (source, source_at, 2))
    ]
    target_view[...] = source_view


def _copy_objects(xp: ModuleType, source: Any, target: Any, copy: Copy) -> None:
    """Strings, which only NumPy has, are copied as references."""
    as_strided = xp.lib.stride_tricks.as_strided
    _, _, loops = byte_loops(copy, source.strides, target.strides)
    shape = [loop[0] for loop in loops]
    part = source[tuple([slice(at, None) for at in copy.source_start])]
    goal = target[tuple([slice(at, None) for at in copy.target_start])]
    as_strided(goal, shape, [loop[1] for loop in loops])[...] = as_strided(part, shape, [loop[2] for loop in loops])
