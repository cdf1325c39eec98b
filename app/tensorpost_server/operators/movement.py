"""Data movement as copies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost import descriptors as dml
from tensorpost.descriptors import BufferTensorDesc, PaddingMode
from tensorpost.descriptors.operator_desc import with_size

from ..forms import Box, BoxFunction, Copies, Copy, Loop
from .registry import form_of_class

MOST_COPIES = 256
"""Copies of one padding; each costs some microseconds for every slice, and for the plan."""


@form_of_class(dml.SliceOperatorDesc)
def plain_slice_form(desc: dml.SliceOperatorDesc) -> Copies:
    """`Output[c] = Input[Offsets + c * Strides]`."""
    return Copies.of_box(desc.sizes, source_start=desc.offsets, source_steps=desc.strides)


@form_of_class(dml.Slice1OperatorDesc)
def slice_form(desc: dml.Slice1OperatorDesc) -> Copies:
    """`Output[c] = Input[start + c * stride]`; a negative stride starts at the window's last element."""
    return Copies.of_box(
        desc.output_tensor.sizes, source_start=_window_start(desc), source_steps=desc.input_window_strides
    )


@form_of_class(dml.SliceGradOperatorDesc)
def slice_grad_form(desc: dml.SliceGradOperatorDesc) -> Copies:
    """`OutputGradient[start + c * stride] = InputGradient[c]`, 0 elsewhere; backwards where the stride is negative."""
    counts, steps = desc.input_gradient_tensor.sizes, desc.input_window_strides
    axes = list(zip(counts, _window_start(desc), steps, strict=True))
    source = [count - 1 if step < 0 else 0 for count, _, step in axes]
    target = [start + (count - 1) * min(step, 0) for count, start, step in axes]
    loops = [
        Loop(count, (axis, abs(step)), ((axis, 1 if step > 0 else -1),))
        for axis, (count, _, step) in enumerate(axes)
        if count > 1
    ]
    return Copies((len(counts),), ((Copy(0, tuple(source), tuple(target), tuple(loops)),),), 0)


def _window_start(desc: dml.Slice1OperatorDesc | dml.SliceGradOperatorDesc) -> list[int]:
    """The first element that SLICE1 reads along each axis."""
    windows = zip(desc.input_window_offsets, desc.input_window_sizes, desc.input_window_strides, strict=True)
    return [offset + (size - 1 if step < 0 else 0) for offset, size, step in windows]


@form_of_class(dml.JoinOperatorDesc)
def join_form(desc: dml.JoinOperatorDesc) -> Copies:
    """Every input is a copy, and each begins where the one before ends."""
    rank, parts = len(desc.output_tensor.sizes), enumerate(_parts(desc.input_tensors, desc.axis))
    copies = [Copy.of_box(sizes, target_start=start, input=index) for index, (sizes, start) in parts]
    return Copies((rank,) * len(copies), (tuple(copies),))


@form_of_class(dml.SplitOperatorDesc)
def split_form(desc: dml.SplitOperatorDesc) -> Copies:
    """Every output is a copy of a part of the input."""
    parts = _parts(desc.output_tensors, desc.axis)
    copies = [(Copy.of_box(sizes, source_start=start),) for sizes, start in parts]
    return Copies((len(desc.input_tensor.sizes),), tuple(copies))


def _parts(tensors: Sequence[BufferTensorDesc], axis: int) -> Iterator[tuple[Sequence[int], list[int]]]:
    """The sizes of tensors that lie one after the other along an axis, and where each begins in the whole."""
    begin = 0
    for tensor in tensors:
        yield tensor.sizes, with_size([0] * len(tensor.sizes), axis, begin)
        begin += tensor.sizes[axis]


@form_of_class(dml.PaddingOperatorDesc, dml.Padding1OperatorDesc)
def padding_form(desc: dml.PaddingOperatorDesc | dml.Padding1OperatorDesc) -> Copies | BoxFunction:
    """Copies: the output is, along each axis, a few runs of the input, forwards, backwards or of one element.

    Where that makes many copies, elements are taken by their indices instead.
    """
    sizes, rank = desc.input_tensor.sizes, len(desc.input_tensor.sizes)
    if desc.padding_mode is PaddingMode.CONSTANT:
        value = desc.padding_value
        if isinstance(desc, dml.PaddingOperatorDesc):
            value = cast_value(value, desc.input_tensor.dtype)
        return Copies.of_box(sizes, target_start=desc.start_padding, fill_value=value)
    axes = list(zip(sizes, desc.start_padding, desc.output_tensor.sizes, strict=True))
    periods = [3 if desc.padding_mode is PaddingMode.EDGE else 2 * (whole // size + 2) for size, _, whole in axes]
    if math.prod(periods) > MOST_COPIES:
        return BoxFunction(pad, 1, (("axes", tuple(axes)), ("mode", desc.padding_mode)), rank + 1)
    runs = [_runs(size, before, whole, desc.padding_mode) for size, before, whole in axes]
    copies = [
        Copy.of_box(
            [length for _, _, length, _ in parts],
            source_start=[source for _, source, _, _ in parts],
            source_steps=[step for _, _, _, step in parts],
            target_start=[target for target, _, _, _ in parts],
        )
        for parts in itertools.product(*runs)
    ]
    return Copies((rank,), (tuple(copies),))


def cast_value(value: float, dtype: np.dtype[Any]) -> int | float:
    """A FLOAT attribute in the type of a tensor, as DirectML casts it: rounded for floats, truncated for integers.

    Of an integer beyond the type the low bits are kept. It is one of 32 bits first, or of 64 for UINT32 and 64-bit
    types; beyond these it is their lowest number, 2^63 for UINT64: so C's casts are done on x86-64.
    """
    if dtype.kind == "f":
        with np.errstate(over="ignore"):  # infinite beyond FLOAT16
            return float(dtype.type(value))
    lowest = -(2**31) if dtype.itemsize < 4 or dtype.name == "int32" else -(2**63)
    whole = int(value)
    if not lowest <= whole < (2**64 if dtype.name == "uint64" else -lowest):
        whole = lowest
    return int(np.array(whole % 2**64, np.uint64).astype(dtype))


def pad(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, axes: tuple[tuple[int, int, int], ...], mode: PaddingMode
) -> None:
    """Fill a box of a padded tensor; `axes` are size, elements before it and size of the result."""
    taken = [
        _index(np.arange(start, stop) - before, size, mode)
        for (start, stop), (size, before, _) in zip(box, axes, strict=True)
    ]
    out[...] = inputs[0][xp.ix_(*[xp.asarray(index) for index in taken])]


def _index(place: NDArray[np.int64], size: int, mode: PaddingMode) -> NDArray[np.int64]:
    """The input index of places counted from the input's first element; see DML_PADDING_MODE."""
    if mode is PaddingMode.EDGE or size == 1:
        return np.clip(place, 0, size - 1)
    if mode is PaddingMode.WRAP:
        return place % size
    period = 2 * size - (2 if mode is PaddingMode.REFLECTION else 0)
    within = place % period
    last = period if mode is PaddingMode.REFLECTION else period - 1
    return np.where(within < size, within, last - within)


def _runs(size: int, before: int, whole: int, mode: PaddingMode) -> list[tuple[int, int, int, int]]:
    """(target, source, length, step) of the runs that an output axis consists of; see DML_PADDING_MODE."""
    if mode is PaddingMode.EDGE or size == 1:
        parts = [(0, 0, before, 0), (before, 0, size, 1), (before + size, size - 1, whole - before - size, 0)]
        return [part for part in parts if part[2]]
    # A period is the input forwards, then backwards but for WRAP, without its ends (REFLECTION) or with them.
    ends = 0 if mode is PaddingMode.SYMMETRIC else 1
    back = 0 if mode is PaddingMode.WRAP else size - 2 * ends
    period, found, target = size + back, list[tuple[int, int, int, int]](), 0
    while target < whole:
        place = (target - before) % period
        if place < size:
            length, source, step = min(size - place, whole - target), place, 1
        else:
            length, source, step = min(period - place, whole - target), size - 1 - ends - (place - size), -1
        found.append((target, source, length, step))
        target += length
    return found
