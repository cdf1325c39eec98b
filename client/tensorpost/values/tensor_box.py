"""Boxes of a tensor as NumPy slices them: `0:10,:,::2` as text, and where the elements of one lie.

Source: NumPy, "Basic indexing"; steps are above 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias, cast

from .checks import whole_number
from .layout import Layout, last_index, packed_strides
from .problems import InvalidParameter

__all__ = ["BoxIndex", "BoxPart", "box_in_box", "box_ranges", "box_text", "part_of_box", "read_box"]

BoxIndex: TypeAlias = "int | slice | EllipsisType | Sequence[int | slice | EllipsisType]"
"""What stands in brackets behind an array: an index, a slice, or one of them for each axis."""
BoxItems: TypeAlias = "Sequence[int | slice | EllipsisType]"
"""The items of a box, as `read_box` returns them."""

_NUMBER = r"[+-]?[0-9]{1,18}"
_ITEM = re.compile(rf"({_NUMBER})|({_NUMBER})?:({_NUMBER})?(?::({_NUMBER})?)?", re.ASCII)
_MOST_AXES = 64
_ADVICE = "write as NumPy does, an item for each axis: 0:10,:,::2 or 5"


class BoxPart(NamedTuple):
    """Where a box of a packed tensor lies.

    Attributes:
        begin: its first byte in the tensor.
        layout: its sizes, and strides from there on; packed if its elements follow each other.
    """

    begin: int
    layout: Layout


def read_box(text: str) -> tuple[int | slice | EllipsisType, ...]:
    """The items of a box.

    Args:
        text: the box, as in `0:10,:,::2`; `...` stands for all axes that are not named. Empty for the whole tensor.

    Raises:
        InvalidParameter: an item is neither an index nor a slice.
    """
    if not text.strip():
        return ()
    if text.count(",") >= _MOST_AXES:
        raise InvalidParameter(f"box has {text.count(',') + 1:,} items; a tensor has at most {_MOST_AXES} axes")
    items: list[int | slice | EllipsisType] = []
    for item in [each.strip() for each in text.split(",")]:
        found = _ITEM.fullmatch(item)
        if item == "...":
            items.append(...)
        elif found is None:
            raise InvalidParameter(f"box has {item[:40]!r}, which is no index and no slice; {_ADVICE}")
        elif found[1] is not None:
            items.append(int(found[1]))
        else:
            items.append(slice(*[None if number is None else int(number) for number in found.groups()[1:]]))
    return tuple(items)


def box_text(index: BoxIndex) -> str:
    """An index of Python as text; `read_box` reads it.

    Raises:
        InvalidParameter: it has anything but whole numbers, slices and one `...`.
    """
    items = index if isinstance(index, tuple) else (index,)
    return ",".join([_item_text(item) for item in cast("tuple[object, ...]", items)])


def _item_text(item: object) -> str:
    if item is Ellipsis:
        return "..."
    if isinstance(item, slice):
        part_of = cast("Any", item)
        ends: tuple[object, ...] = (part_of.start, part_of.stop, part_of.step)
        parts = ["" if part is None else str(whole_number("box", part)) for part in ends]
        return ":".join(parts if parts[2] else parts[:2])
    if item is None:
        raise InvalidParameter(f"box has None, and parts have no new axes; slice the array that you get; {_ADVICE}")
    return str(whole_number("box", item))


def box_in_box(sizes: Sequence[int], outer: BoxItems, inner: BoxItems) -> BoxItems:
    """The box of a tensor that is the same as a box of one of its boxes: `x[outer][inner]` is `x[box_in_box(...)]`.

    Args:
        sizes: the tensor's.
        outer: a box of the tensor, which `part_of_box` takes.
        inner: a box of what `outer` is, which `part_of_box` takes for the sizes of that.
    """
    kept = [range(size)[item] for item, size in zip(_every(outer, len(sizes)), sizes, strict=True)]
    within = iter(_every(inner, len([each for each in kept if isinstance(each, range)])))
    found = [each if isinstance(each, int) else each[next(within)] for each in kept]
    return tuple([each if isinstance(each, int) else _slice_of(each) for each in found])


def _slice_of(entries: range) -> slice:
    if len(entries) < 2:  # whose step may be too large to be written
        return slice(entries.start, entries.start + len(entries), None)
    return slice(entries.start, entries.stop, None if entries.step == 1 else entries.step)


def _every(items: BoxItems, rank: int) -> list[int | slice]:
    """The items with one for each axis."""
    at = next((place for place, item in enumerate(items) if item is Ellipsis), len(items))
    named = [*items[:at], *items[at + 1 :]]
    named[at:at] = [slice(None)] * (rank - len(named))
    return cast("list[int | slice]", named)


def box_ranges(sizes: Sequence[int], items: BoxItems) -> tuple[list[range], list[bool]]:
    """The coordinates that a box has along each axis, and whether the axis stays: an index drops its axis.

    Args:
        sizes: the tensor's.
        items: see `read_box`; axes that are not named are taken whole.

    Raises:
        InvalidParameter: there are more items than axes, an index outside of its axis, or a step below 1.
    """
    rank = len(sizes)
    named = len([item for item in items if item is not Ellipsis])
    if named > rank or len(items) - named > 1:
        what = "two '...'" if len(items) - named > 1 else f"{named} items"
        raise InvalidParameter(f"box has {what}, and the tensor has {rank} axes; {_ADVICE}")
    ranges, kept = list[range](), list[bool]()
    for axis, (item, size) in enumerate(zip(_every(items, rank), sizes, strict=True)):
        if isinstance(item, int):
            if not -size <= item < size:
                raise InvalidParameter(f"box has the index {item} for axis {axis}, which has {size} entries")
            ranges.append(range(item % size, item % size + 1))
        else:
            if item.step is not None and item.step < 1:
                raise InvalidParameter(f"box has the step {item.step} for axis {axis}; steps are 1 or more")
            ranges.append(range(*item.indices(size)))
        kept.append(not isinstance(item, int))
    return ranges, kept


def part_of_box(layout: Layout, items: BoxItems) -> BoxPart:
    """Where a box lies in a packed tensor.

    Args:
        layout: the tensor's.
        items: see `box_ranges`.

    Raises:
        InvalidParameter: there is no such box.
    """
    begin, sizes, strides = 0, list[int](), list[int]()
    ranges, kept = box_ranges(layout.sizes, items)
    for entries, is_kept, stride in zip(ranges, kept, layout.strides, strict=True):
        count = len(entries)
        begin += entries.start * stride if count else 0
        if is_kept:
            sizes.append(count)
            strides.append(stride * entries.step if count > 1 else 0)  # a step beyond the axis may be of any size
    if 0 in sizes:
        return BoxPart(0, Layout.row_major(layout.data_type, sizes))
    packed = all(
        size == 1 or own == stride for size, own, stride in zip(sizes, strides, packed_strides(sizes), strict=True)
    )
    if packed:
        return BoxPart(begin * layout.data_type.item_size, Layout.row_major(layout.data_type, sizes))
    length = (last_index(sizes, strides) + 1) * layout.data_type.item_size
    part = Layout(layout.data_type, tuple(sizes), tuple(strides), length, packed=False)
    return BoxPart(begin * layout.data_type.item_size, part)
