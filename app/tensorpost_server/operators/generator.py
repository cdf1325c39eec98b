"""Generators: outputs that follow from attributes, or from a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost import descriptors as dml
from tensorpost.values.layout import packed_strides

from ..forms import Box, BoxFunction, Copies
from .movement import cast_value
from .registry import form_of_class

BLOCK = 1 << 16  # elements at a time, whose temporaries stay in a CPU's cache


@form_of_class(dml.FillValueConstantOperatorDesc)
def constant_form(desc: dml.FillValueConstantOperatorDesc) -> Copies:
    """A fill with `Value`; no input is copied."""
    return Copies((), ((),), desc.value)


@form_of_class(dml.FillValueSequenceOperatorDesc)
def sequence_form(desc: dml.FillValueSequenceOperatorDesc) -> BoxFunction:
    """`ValueStart + k * ValueDelta`, rounded once for floating-point types and modulo 2^bits for integers."""
    strides = packed_strides(desc.output_tensor.sizes)
    return BoxFunction(sequence, 0, (("strides", strides), ("start", desc.value_start), ("delta", desc.value_delta)))


def sequence(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, strides: tuple[int, ...], start: float, delta: float
) -> None:
    """Fill a box with `start + k * delta`, where k is the place in row-major order."""
    del inputs
    integers = out.dtype.kind in "iu"
    index = _places(xp, box, strides, "uint64" if integers else "float64")
    if integers:
        wrap = 2**64 - 1
        out[...] = (index * index.dtype.type(int(delta) & wrap) + index.dtype.type(int(start) & wrap)).astype(out.dtype)
    else:
        out[...] = index * float(delta) + float(start)


def _places(xp: ModuleType, box: Box, strides: tuple[int, ...], dtype: str) -> Any:
    """Which element in row-major order each element of a box is, in an array of the box's shape."""
    index = xp.zeros((1,) * len(box), dtype)
    for axis, ((low, high), stride) in enumerate(zip(box, strides, strict=True)):
        entries = xp.arange(low, high).astype(index.dtype) * index.dtype.type(stride)
        index = index + entries.reshape([-1 if at == axis else 1 for at in range(len(box))])
    return index


@form_of_class(dml.DiagonalMatrixOperatorDesc)
def diagonal_form(desc: dml.DiagonalMatrixOperatorDesc) -> BoxFunction:
    """DIAGONAL_MATRIX1 with one diagonal and no input."""
    value = cast_value(desc.value, desc.output_tensor.dtype)
    return _band(0, value, desc.offset, desc.offset + 1)


@form_of_class(dml.DiagonalMatrix1OperatorDesc)
def diagonal1_form(desc: dml.DiagonalMatrix1OperatorDesc) -> BoxFunction:
    """The value where `Begin <= x - y < End`, or outside of `End <= x - y < Begin`; else the input, or 0."""
    return _band(len(desc.inputs), desc.value, desc.diagonal_fill_begin, desc.diagonal_fill_end)


def _band(inputs: int, value: float, begin: int, end: int) -> BoxFunction:
    return BoxFunction(_diagonal, inputs, (("value", value), ("begin", begin), ("end", end)), block=BLOCK)


def _diagonal(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, value: float, begin: int, end: int) -> None:
    rows, columns = [xp.arange(*span, dtype="int64") for span in box[-2:]]
    diagonal = columns - rows[:, None]
    filled = (diagonal >= begin) & (diagonal < end) if begin <= end else (diagonal >= begin) | (diagonal < end)
    element = xp.asarray(np.asarray(value).astype(out.dtype))  # of a 64-bit integer every digit counts
    rest = inputs[0][tuple([slice(*span) for span in box])] if inputs else xp.zeros((), out.dtype)
    out[...] = xp.where(filled, element, rest)


@form_of_class(dml.RandomGeneratorOperatorDesc)
def random_form(desc: dml.RandomGeneratorOperatorDesc) -> BoxFunction:
    """Block `k // 4` of Philox for element k; the state after it is the counter plus all blocks."""
    strides, blocks = packed_strides(desc.output_tensor.sizes), -(-desc.output_tensor.element_count // 4)
    parameters = (("strides", strides), ("blocks", blocks))
    return BoxFunction(_random, 1, parameters, work_per_element=8, block=BLOCK, outputs=len(desc.outputs))


def _random(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, strides: tuple[int, ...], blocks: int, output: int = 0
) -> None:
    state = inputs[0].reshape(-1).astype("uint64")
    if output:
        after = xp.concatenate([*_counter(state, xp.full(1, blocks, "uint64")), state[4:]])
        out[...] = after.reshape(inputs[0].shape)[tuple([slice(*span) for span in box])]
        return
    first = sum([low * stride for (low, _), stride in zip(box, strides, strict=True)])
    last = sum([(high - 1) * stride for (_, high), stride in zip(box, strides, strict=True)])
    if last - first < out.size:  # one after the other: each block is made once
        words = _philox(xp, state, xp.arange(first // 4, last // 4 + 1).astype("uint64"))
        made = words.reshape(-1)[first % 4 : first % 4 + out.size]
    else:
        places = _places(xp, box, strides, "uint64").reshape(-1)
        made = xp.take_along_axis(_philox(xp, state, places >> 2), (places & 3).astype("int64")[:, None], 1)
    out[...] = made.reshape(out.shape)


_WORD = 0xFFFFFFFF


def _counter(state: Any, blocks: Any) -> list[Any]:
    """The four words of the counter plus a number of blocks, modulo 2^128, lowest first; each in 64 bits."""
    words: list[Any] = []
    for at in range(4):
        total = state[at : at + 1] + blocks
        words.append(total & _WORD)
        blocks = total >> 32
    return words


def _philox(xp: ModuleType, state: Any, blocks: Any) -> Any:
    """Rows of the four words of each block: ten rounds of two products, whose halves cross over, and of the key."""
    a, b, c, d = _counter(state, blocks)
    low_key, high_key = state[4:5], state[5:6]
    for _ in range(10):
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (q >> 32) ^ b ^ low_key, q & _WORD, (p >> 32) ^ d ^ high_key, p & _WORD
        low_key, high_key = (low_key + 0x9E3779B9) & _WORD, (high_key + 0xBB67AE85) & _WORD
    return xp.stack([a, b, c, d], axis=-1)
