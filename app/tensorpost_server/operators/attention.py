"""Attention of several heads, a head and a block of queries at a time.

Choices where the pages are silent or contradict themselves: FLOAT16 is computed in float32 and rounded once; a BOOLEAN
mask adds MaskFilterValue to the scores, masks by length put it in their place. Packed rows are as ONNX Runtime's CUDA
provider has them: the B*S queries and B*L keys lie one after the other in memory, those of a row together, anywhere; a
query of no row is 0, and so is one without keys. With PastSequenceLengthsTensor, keys after the query's own are not
seen, whatever MaskFilterValue is; a length that leaves no room for the new keys counts as the largest that does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from tensorpost import descriptors as dml
from tensorpost.descriptors import MultiheadAttentionMaskType as Mask

from ..forms import Array
from ..forms.base import go_on
from .registry import form_of_class

__all__ = ["attention_form"]

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
    room = at["T"] - at["L"]
    starts = [room] * at["B"] if lengths is None else xp.clip(lengths.reshape(-1), 0, room).tolist()
    keys, values = (_joined(xp, given, parts.get(name), name, starts, at) for name in ("key", "value"))
    output = xp.zeros((at["B"], at["S"], at["H"], at["V"]), next(iter(given.values())).dtype)
    mask: Any = given.get("mask_tensor")
    score_bias = given.get("relative_position_bias_tensor", given.get("attention_bias_tensor"))
    added = None if score_bias is None else score_bias.reshape(score_bias.shape[-4:])
    whole = None if mask_type is not Mask.BOOLEAN else mask.reshape(mask.shape[-4:])
    block = _rows_of_block(at["T"])
    for row, (query, key, value, out) in enumerate(_rows(mask_type, mask, at, parts["query"], keys, values, output)):
        count = len(key) if lengths is None else starts[row] + at["L"]
        places = xp.arange(count)
        hidden = _hidden(mask_type, mask, row, places)
        for head, first in (
            (head, first) for head in range(at["H"]) for first in range(0, len(query) if count else 0, block)
        ):
            go_on()
            shared, part = head // (at["H"] // at["K"]), slice(first, min(first + block, len(query)))
            scores = xp.matmul(query[part, head].astype("float32"), key[:count, shared].T) * xp.float32(scale)
            if added is not None:
                scores += added[row, head, part, :count].astype("float32")
            if whole is not None:
                scores += xp.where(whole[row, head, part, :count] == 0, xp.float32(filtered), xp.float32(0))
            if hidden is not None:
                scores = xp.where(hidden, xp.float32(filtered), scores)
            if lengths is not None:
                own = starts[row] + xp.arange(part.start, part.stop)
                scores = xp.where(places > own[:, None], xp.float32(-math.inf), scores)
            powers = xp.exp(scores - xp.max(scores, axis=1, keepdims=True))
            out[part, head] = xp.matmul(powers / xp.sum(powers, axis=1, keepdims=True), value[:count, shared])
    made = {
        "output_tensor": output,
        "output_present_key_tensor": keys.transpose(0, 2, 1, 3),
        "output_present_value_tensor": values.transpose(0, 2, 1, 3),
    }
    return tuple([made[name].astype(output.dtype, copy=False).reshape(sizes) for name, sizes in outputs])


def _parts(given: Mapping[str, Any], at: Mapping[str, int]) -> Mapping[str, Any]:
    """Query, key and value as {B, S or L, heads, size of a head}, with their biases; none of the past."""
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
            if name in found:
                found[name] = found[name].astype("float32") + bias[start:end].reshape(count, -1).astype("float32")
    return found


def _joined(
    xp: ModuleType, given: Mapping[str, Any], new: Any, name: str, starts: Sequence[int], at: Mapping[str, int]
) -> Any:
    """All keys or values as float32 {B, T, K, size}: the past, and the new ones where each row's start."""
    made = xp.zeros((at["B"], at["T"], at["K"], at["E" if name == "key" else "V"]), "float32")
    if (past := given.get(f"past_{name}_tensor")) is not None:
        made[:, : at["P"]] = past.reshape(past.shape[-4:]).transpose(0, 2, 1, 3)
    if new is not None:
        for row, start in enumerate(starts):
            made[row, start : start + at["L"]] = new[row]
    return made


def _rows(mask_type: Mask, mask: Any, at: Mapping[str, int], *arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Queries, keys, values and output of each row of the batch."""
    if mask_type is not Mask.KEY_QUERY_SEQUENCE_LENGTH_START_END:
        yield from zip(*arrays, strict=True)
        return
    flat = [array.reshape(-1, *array.shape[2:]) for array in arrays]
    numbers, batch = mask.reshape(-1).tolist(), at["B"]
    for row in range(batch):
        start, end = (min(max(0, place), batch * at["S"]) for place in numbers[batch + row : batch + row + 2])
        queries = slice(start, min(end, start + at["S"]))
        first = min(max(0, numbers[2 * batch + 1 + row]), batch * at["L"])
        keys = slice(first, first + min(max(0, numbers[row]), at["L"]))
        yield flat[0][queries], flat[1][keys], flat[2][keys], flat[3][queries]


def _hidden(mask_type: Mask, mask: Any, row: int, places: Any) -> Any:
    """Which keys a mask by length hides from the queries of a row; None if it is no such mask."""
    if mask_type is Mask.KEY_SEQUENCE_LENGTH:
        return places >= mask.reshape(-1)[row]
    if mask_type is Mask.KEY_SEQUENCE_END_START:
        ends, starts = mask.reshape(2, -1)
        return (places >= ends[row]) | (places < starts[row])
    return None
