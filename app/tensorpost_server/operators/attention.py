"""Attention of several heads, a head and a block of queries at a time.

FLOAT16 is computed in float32 and rounded once. Masks are as DirectML has them, where the page contradicts itself: each
adds MaskFilterValue to the scores that it masks, so that the scores decide where all are masked; so does the mask of
what comes after a query, with PastSequenceLengthsTensor. Places in the present are computed as DirectML 1.15.4 does it,
in unsigned numbers of 32 bits: a query sees the places up to its length plus its index, and the places of the new keys
are taken modulo the present's size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from tensorpost import descriptors as dml
from tensorpost.descriptors import MultiheadAttentionMaskType as Mask

from ..forms import Array
from ..forms.base import go_on
from .registry import form_of_class

_UINT32 = 1 << 32
_BLOCK = 1 << 18  # scores computed at a time
_HEAD = 200_000  # elements that are added up in the time of the calls of the array library for a head
_STACKS = {
    "stacked_query_key_tensor": ("query", "key"),
    "stacked_key_value_tensor": ("key", "value"),
    "stacked_query_key_value_tensor": ("query", "key", "value"),
}


@form_of_class(dml.MultiheadAttentionOperatorDesc, dml.MultiheadAttention1OperatorDesc)
def attention_form(desc: dml.Attention) -> Array:
    """`softmax(Scale * Q K' + bias, masked) V` (DML_MULTIHEAD_ATTENTION_OPERATOR_DESC)."""
    at = desc.letters
    parameters = (
        ("names", tuple([str(path[0]) for path, _ in desc.tensors("input")])),
        ("outputs", tuple([(str(path[0]), tensor.sizes) for path, tensor in desc.tensors("output")])),
        ("letters", tuple(at.items())),
        ("scale", desc.scale),
        ("filtered", desc.mask_filter_value),
        ("mask_type", desc.mask_type),
    )
    scores = at["B"] * at["H"] * at["S"] * at["T"]
    blocks = at["B"] * at["H"] * -(-at["S"] // _rows_of_block(at["T"]))
    work = scores * (2 * (at["E"] + at["V"]) + 20) + blocks * _HEAD
    elements = [math.prod(slot.layout.sizes) for slot in (*desc.inputs, *desc.outputs)]
    joined = at["B"] * at["T"] * at["K"] * (at["E"] + at["V"])
    return Array(_attend, len(desc.inputs), work, parameters, 4 * (sum(elements) + joined + 6 * max(_BLOCK, at["T"])))


def _rows_of_block(keys: int) -> int:
    return max(1, _BLOCK // max(1, keys))


def _attend(
    xp: ModuleType,
    *tensors: Any,
    names: Sequence[str],
    outputs: Sequence[tuple[str, tuple[int, ...]]],
    letters: tuple[tuple[str, int], ...],
    scale: float,
    filtered: float,
    mask_type: Mask,
) -> tuple[Any, ...]:
    given, at = dict(zip(names, tensors, strict=True)), dict(letters)
    parts = _parts(given, at)
    lengths = given.get("past_sequence_lengths_tensor")
    starts = [at["P"]] * at["B"] if lengths is None else [length % _UINT32 for length in lengths.reshape(-1).tolist()]
    keys, values = (_joined(xp, given, parts[name], name, starts, at) for name in ("key", "value"))
    output = xp.zeros((at["B"], at["S"], at["H"], at["V"]), next(iter(given.values())).dtype)
    score_bias = given.get("relative_position_bias_tensor", given.get("attention_bias_tensor"))
    added = None if score_bias is None else score_bias.reshape(score_bias.shape[-4:])
    masked = _masked(xp, mask_type, given.get("mask_tensor"), at)
    block, places = _rows_of_block(at["T"]), xp.arange(at["T"])
    for row, head, first in itertools.product(range(at["B"]), range(at["H"]), range(0, at["S"], block)):
        go_on()
        shared, part = head // (at["H"] // at["K"]), slice(first, min(first + block, at["S"]))
        scores = xp.matmul(parts["query"][row, part, head].astype("float32"), keys[row, :, shared].T)
        scores *= xp.float32(scale)
        if added is not None:
            scores += added[row, head, part].astype("float32")
        if mask_type is not Mask.NONE:
            scores += masked(row, head, part).astype("float32") * xp.float32(filtered)
        if lengths is not None:
            later = places > (starts[row] + xp.arange(part.start, part.stop)[:, None]) % _UINT32
            scores += later.astype("float32") * xp.float32(filtered)
        powers = xp.exp(scores - xp.max(scores, axis=1, keepdims=True))
        powers /= xp.sum(powers, axis=1, keepdims=True)
        output[row, part, head] = xp.matmul(powers, values[row, :, shared])
    made = {
        "output_tensor": output,
        "output_present_key_tensor": keys.transpose(0, 2, 1, 3),
        "output_present_value_tensor": values.transpose(0, 2, 1, 3),
    }
    return tuple([made[name].astype(output.dtype, copy=False).reshape(sizes) for name, sizes in outputs])


def _parts(given: Mapping[str, Any], at: Mapping[str, int]) -> Mapping[str, Any]:
    """Query, key and value as {B, S or L, heads, size of a head}, with their biases."""
    found: dict[str, Any] = {}
    heads = {"query": at["H"], "key": at["K"], "value": at["K"]}
    for name, count in heads.items():
        if (x := given.get(f"{name}_tensor")) is not None:
            found[name] = x.reshape(*x.shape[-3:-1], count, -1)
    for stack, members in _STACKS.items():
        if stack in given:
            found |= {member: given[stack][:, :, :, place] for place, member in enumerate(members)}
    if "bias_tensor" in given:
        bias, end = given["bias_tensor"].reshape(-1), 0
        for name, count in heads.items():
            start, end = end, end + count * at["V" if name == "value" else "E"]
            found[name] = found[name].astype("float32") + bias[start:end].reshape(count, -1).astype("float32")
    return found


def _joined(
    xp: ModuleType, given: Mapping[str, Any], new: Any, name: str, starts: Sequence[int], at: Mapping[str, int]
) -> Any:
    """All keys or values as float32 {B, T, K, size}: the past, and the new ones where each row's start."""
    made = xp.zeros((at["B"], at["T"], at["K"], at["E" if name == "key" else "V"]), "float32")
    if (past := given.get(f"past_{name}_tensor")) is not None:
        made[:, : at["P"]] = past.reshape(past.shape[-4:]).transpose(0, 2, 1, 3)
    for row, start in enumerate(starts):
        for place, first, size in _runs_of_places(start, at["L"], at["T"]):
            made[row, place : place + size] = new[row, first : first + size]
    return made


def _runs_of_places(start: int, keys: int, total: int) -> Iterator[tuple[int, int, int]]:
    """Where new keys go in the present: runs of place, first key and number of keys; a later run overwrites."""
    first = 0
    while first < keys:
        number = (start + first) % _UINT32
        size = min(keys - first, total - number % total, _UINT32 - number)
        yield number % total, first, size
        first += size


def _masked(xp: ModuleType, mask_type: Mask, mask: Any, at: Mapping[str, int]) -> Callable[[int, int, slice], Any]:
    """How much of each score is masked, of a row, a head and some queries: 0 or 1 unless the mask is an odd number."""
    places, batch = xp.arange(at["T"]), at["B"]
    if mask_type is Mask.BOOLEAN:
        whole = mask.reshape(mask.shape[-4:])
        return lambda row, head, part: 1 - whole[row, head, part].astype("float32")
    numbers: list[int] = [] if mask is None else mask.reshape(-1).tolist()

    def by_length(row: int, head: int, part: slice) -> Any:
        del head
        start, end = 0, numbers[row]
        if mask_type is Mask.KEY_SEQUENCE_END_START:
            start = numbers[batch + row]
        if mask_type is not Mask.KEY_QUERY_SEQUENCE_LENGTH_START_END:
            return (places < start) | (places >= end)
        start = numbers[2 * batch + 1 + row] - row * at["T"]
        first, last = [number - row * at["S"] for number in numbers[batch + row : batch + row + 2]]
        queries = xp.arange(part.start, part.stop)[:, None]
        return (queries < first) | (queries >= last) | (places < start) | (places >= start + end)

    return by_length
