"""Expressions of inputs with fewer elements than the output, each for a block of neighbours, and of 4-bit elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.values.four_bits import pack, unpack

from .arrays import Array, BoxFunction
from .base import Box, blocks, extents, go_on, whole_box
from .pointwise import BLOCK, Pointwise


@dataclass(frozen=True, slots=True)
class BlockSource:
    """How an input is read.

    Attributes:
        sizes: elements per dimension.
        blocks: neighbours in the output, along each dimension, that share an element.
        four_bits: strides of 4-bit elements, whose input is a line of bytes; None for others.
        signed: whether 4-bit elements are two's complements.
    """

    sizes: tuple[int, ...]
    blocks: tuple[int, ...]
    four_bits: tuple[int, ...] | None = None
    signed: bool = False


def blockwise(form: Pointwise, sources: tuple[BlockSource, ...]) -> BoxFunction:
    """The expression, with each input read as its source says."""
    work = 1 + 4 * len(sources)  # a gathered element takes several times as long as one that is read in sequence
    return BoxFunction(_fill, len(sources), (("form", form), ("sources", sources)), work)


def _fill(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, form: Pointwise, sources: tuple[BlockSource, ...]
) -> None:
    begins = [start for start, _ in box]
    for part in blocks(box, BLOCK) if xp is np else (box,):
        go_on()
        within = tuple([slice(low - at, high - at) for at, (low, high) in zip(begins, part, strict=True)])
        arrays = [_read(xp, x, source, part) for x, source in zip(inputs, sources, strict=True)]
        form.fill(xp, arrays, whole_box(extents(part)), out[within])


def _read(xp: ModuleType, x: Any, source: BlockSource, box: Box) -> Any:
    """The elements of an input for a box of the output."""
    if source.four_bits is None and not any(count > 1 for count in source.blocks):
        return x[tuple([slice(*span) for span in box])]
    rank, sizes, steps = len(box), extents(box), source.four_bits
    if steps is not None and _is_run(sizes, source.blocks, steps):
        first = sum([start // count * step for (start, _), count, step in zip(box, source.blocks, steps, strict=True)])
        end = first + math.prod(sizes)
        return unpack(x[first // 2 : (end + 1) // 2], signed=source.signed)[first % 2 :][: end - first].reshape(sizes)
    places: list[Any] = []
    for axis, ((start, stop), count) in enumerate(zip(box, source.blocks, strict=True)):
        places.append((xp.arange(start, stop) // count).reshape([-1 if at == axis else 1 for at in range(rank)]))
    if steps is None:
        return x[tuple(places)]
    at: Any = sum([place * step for place, step in zip(places, steps, strict=True)])
    halves = x[at >> 1] >> ((at & 1) << 2).astype("uint8") & 15
    return ((halves ^ 8) - 8).view("int8") if source.signed else halves


def _is_run(sizes: Sequence[int], blocks_: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements of a box of these extents follow each other, one for each of the output."""
    reach = 1
    for size, count, step in reversed(list(zip(sizes, blocks_, strides, strict=True))):
        if size > 1 and (count > 1 or step != reach):
            return False
        reach *= size
    return True


def to_four_bits(
    form: BoxFunction, sizes: tuple[int, ...], strides: tuple[int, ...], size_in_bytes: int, *, signed: bool
) -> Array:
    """The form's output as elements of 4 bits.

    Args:
        form: computes numbers of 4 bits.
        sizes: elements per dimension.
        strides: elements, of 4 bits, to the next entry of each dimension.
        size_in_bytes: length of the whole output, bytes; what is not an element is 0.
        signed: whether the elements are two's complements.
    """
    count = math.prod(sizes)
    integer = "int8" if signed else "uint8"  # CUDA makes 0 of a negative number that becomes an unsigned integer
    parameters = (
        ("form", form), ("sizes", sizes), ("strides", strides), ("size_in_bytes", size_in_bytes), ("integer", integer),
    )  # fmt: skip
    return Array(_pack, form.inputs, count * (1 + form.work_per_element), parameters, 6 * size_in_bytes)


def _pack(
    xp: ModuleType,
    *inputs: Any,
    form: BoxFunction,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    size_in_bytes: int,
    integer: str,
) -> Any:
    elements = xp.zeros(2 * size_in_bytes, integer)
    view = xp.lib.stride_tricks.as_strided(elements, sizes, strides)
    form.fill(xp, inputs, whole_box(sizes), view)
    return pack(elements)
