"""ONNX's RNN, GRU, LSTM and Attention on a device, and on a processor where ONNX Runtime does not compute a node.

A recurrent network is DirectML's of the same name (`recurrent.py`): the same order of gates, outputs beyond a row's
length are 0, and a clip limits the gates' inputs. Attention masks with minus infinity, as ONNX's text has it; a query
of which all keys are masked gives 0. FLOAT16 is computed in float32 and rounded once, attention of float64 in float64.

Source: ONNX, RNN-22, GRU-22, LSTM-22, Attention-25.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.onnx import OnnxNode

from ..forms import Array, Pointwise
from ..forms.base import go_on
from ..forms.expression import call, operand
from ..forms.float16 import wide
from .activation import sigmoid
from .onnx_device import on_device
from .recurrent import STEP_WORK, gru_step, lstm_step, recur, rnn_step

# ---- recurrent networks ----------------------------------------------------------------------------------------------

_SIGMOID = Pointwise(sigmoid(operand(0)), ("float32",), "float32")
_TANH = Pointwise(call("tanh", operand(0)), ("float32",), "float32")
_ACTIVATIONS = {"RNN": (_TANH,), "GRU": (_SIGMOID, _TANH), "LSTM": (_SIGMOID, _TANH, _TANH)}
_CELL_STEPS = {"RNN": rnn_step, "GRU": gru_step, "LSTM": lstm_step}
_NAMES = {
    "X": "input_tensor", "W": "weight_tensor", "R": "recurrence_tensor", "B": "bias_tensor", "P": "peephole_tensor",
    "sequence_lens": "sequence_lengths_tensor", "initial_h": "hidden_init_tensor", "initial_c": "cell_mem_init_tensor",
    "Y": "output_sequence_tensor", "Y_h": "output_single_tensor", "Y_c": "output_cell_single_tensor",
}  # fmt: skip
"""What DirectML calls the tensors."""
_BACKWARD = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@on_device("RNN", "GRU", "LSTM")
def recurrent_node_form(node: OnnxNode) -> Array | None:
    """All steps of each direction, with the activations that ONNX names first; float32, or float16."""
    tensors, backward = dict(node.tensors), _BACKWARD.get(str(node.attribute("direction") or "forward"))
    if backward is None or any(tensor.data_type == "float64" for tensor in tensors.values()):
        return None
    x, (_, rows, hidden) = tensors["X"], tensors["R"].shape
    steps, batch = x.shape[:2] if not node.attribute("layout") else x.shape[1::-1]
    clip: Any = node.attribute("clip")
    parameters = (
        ("names", tuple(tensors)),
        ("outputs", tuple([entry.name for entry in node.schema.outputs[: len(node.results)]])),
        ("by_batch", bool(node.attribute("layout"))),
        ("step", _CELL_STEPS[node.op_type]),
        ("backward", backward),
        ("activations", (_ACTIVATIONS[node.op_type],) * len(backward)),
        ("linear_before_reset", bool(node.attribute("linear_before_reset"))),
        ("limit", clip or None),
        ("coupled", bool(node.attribute("input_forget"))),
    )
    products = 2 * batch * rows * (x.shape[2] + hidden)
    scratch = 4 * (rows * (x.shape[2] + hidden + 4) + batch * (x.shape[2] + 10 * rows))
    scratch += sum([tensor.size_in_bytes for _, tensor in (*node.tensors, *node.results)])
    work = steps * len(backward) * (products + rows // hidden * STEP_WORK)
    return Array(_recurrent, len(tensors), work, parameters, scratch)


def _recurrent(
    xp: ModuleType, *tensors: Any, names: Sequence[str], outputs: Sequence[str], by_batch: bool, **attributes: Any
) -> tuple[Any, ...]:
    given = dict(zip(names, tensors, strict=True))
    if by_batch:
        moved = ("X", "initial_h", "initial_c")
        given = {name: array.swapaxes(0, 1) if name in moved else array for name, array in given.items()}
    called = [_NAMES[name] for name in given]
    arrays = [array[None] if name in ("X", "R") else array for name, array in given.items()]
    found = recur(xp, *arrays, names=called, outputs=[_NAMES[name] for name in outputs], **attributes)
    made = [array if name == "Y" else array[0] for name, array in zip(outputs, found, strict=True)]
    if not by_batch:
        return tuple(made)
    order = {"Y": (2, 0, 1, 3), "Y_h": (1, 0, 2), "Y_c": (1, 0, 2)}
    return tuple([array.transpose(order[name]) for name, array in zip(outputs, made, strict=True)])


# ---- attention -------------------------------------------------------------------------------------------------------


@on_device("Attention")
def attention_node_form(node: OnnxNode) -> Array | None:
    """`softmax(scale * Q K' masked) V`, for several heads; the softmax is computed in float32 at least."""
    tensors = dict(node.tensors)
    query, key = tensors["Q"], tensors["K"]
    queries, shared = node.attribute("q_num_heads"), node.attribute("kv_num_heads")
    if len(query.shape) == 4:
        queries, shared = query.shape[1], key.shape[1]
    if not isinstance(queries, int) or not isinstance(shared, int):
        return None
    past = tensors["past_key"].shape[2] if "past_key" in tensors else 0
    scores = query.shape[0] * queries * query.shape[-2] * (key.shape[-2] + past)
    parameters = (
        ("names", tuple(tensors)),
        ("outputs", tuple([entry.name for entry in node.schema.outputs[: len(node.results)]])),
        ("heads", (queries, shared)),
        ("sides", tuple([_side(node, name) for name in ("left_window_size", "right_window_size")])),
        *[(name, node.attribute(name)) for name in ("scale", "softcap", "qk_matmul_output_mode")],
    )
    width = query.shape[-1] if len(query.shape) == 4 else query.shape[-1] // queries
    held = sum([tensor.element_count for _, tensor in (*node.tensors, *node.results)])
    item = 8 if query.data_type == "float64" else 4
    return Array(_attention, len(tensors), scores * (4 * width + 20), parameters, item * (3 * held + 6 * scores))


def _side(node: OnnxNode, name: str) -> int | None:
    """How many places a query sees before it, or after it; None for all."""
    found: Any = node.attribute(name)
    if name == "right_window_size" and node.attribute("is_causal"):
        return 0
    return None if found in (None, -1) else found


def _attention(
    xp: ModuleType, *tensors: Any, names: Sequence[str], outputs: Sequence[str], heads: tuple[int, int],
    sides: tuple[int | None, int | None], scale: float | None, softcap: float | None, qk_matmul_output_mode: int | None,
) -> tuple[Any, ...]:  # fmt: skip
    given = dict(zip(names, tensors, strict=True))
    kind, is_flat = given["Q"].dtype, given["Q"].ndim == 3
    query, key, value = (_by_heads(given[name], heads[name != "Q"]) for name in ("Q", "K", "V"))
    if "past_key" in given:
        key = xp.concatenate((given["past_key"], key), axis=2)
        value = xp.concatenate((given["past_value"], value), axis=2)
    made: dict[str, Any] = {"present_key": key, "present_value": value}
    root = math.sqrt(scale if scale else 1 / math.sqrt(query.shape[3]))
    keys, values = (widest(xp, xp.repeat(each, heads[0] // heads[1], axis=1)) for each in (key, value))
    queries = widest(xp, query)
    go_on()
    scores = xp.matmul(queries * queries.dtype.type(root), (keys * keys.dtype.type(root)).swapaxes(2, 3))
    made["qk_matmul_output"] = scores
    go_on()
    if softcap:
        scores = xp.tanh(scores / scores.dtype.type(softcap)) * scores.dtype.type(softcap)
        if qk_matmul_output_mode == 1:
            made["qk_matmul_output"] = scores
    bias = _bias(xp, given, scores, sides)
    if bias is not None:
        scores = scores + bias
    if qk_matmul_output_mode == 2:
        made["qk_matmul_output"] = scores
    chances = _softmax(xp, scores)
    if bias is not None:
        chances = xp.where(xp.max(bias, axis=-1, keepdims=True) == -np.inf, chances.dtype.type(0), chances)
    if qk_matmul_output_mode == 3:
        made["qk_matmul_output"] = chances
    go_on()
    found = xp.matmul(chances, values)
    made["Y"] = found.transpose(0, 2, 1, 3).reshape(*given["Q"].shape[:2], -1) if is_flat else found
    return tuple([made[name].astype(kind, copy=False) for name in outputs])


def widest(xp: ModuleType, x: Any) -> Any:
    """The array in the type that it is multiplied in: float16 and bfloat16 in float32."""
    return x.astype("float32") if x.dtype.name == "bfloat16" else wide(xp, x)


def _by_heads(x: Any, heads: int) -> Any:
    """A tensor of {batch, length, heads * size}, or of {batch, heads, length, size}, as the latter."""
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _bias(xp: ModuleType, given: Mapping[str, Any], scores: Any, sides: tuple[int | None, int | None]) -> Any:
    """What is added to the scores: minus infinity where a key is masked; None if nothing is."""
    length, total = scores.shape[2:]
    zero, never = scores.dtype.type(0), scores.dtype.type(-np.inf)
    parts: list[Any] = []
    if (mask := given.get("attn_mask")) is not None:
        added = xp.where(mask, zero, never) if mask.dtype.kind == "b" else mask.astype(scores.dtype)
        if mask.shape[-1] < total:
            rest = xp.full((*mask.shape[:-1], total - mask.shape[-1]), never, scores.dtype)
            added = xp.concatenate((added, rest), axis=-1)
        parts.append(added)
    lengths, places = given.get("nonpad_kv_seqlen"), xp.arange(total)
    if lengths is not None:
        lengths = lengths.reshape(-1, 1, 1, 1)
        parts.append(xp.where(places < lengths, zero, never))
    before = given["past_key"].shape[2] if "past_key" in given else 0
    if lengths is not None and "past_key" not in given:
        before = lengths - length
    ahead = places - xp.arange(length)[:, None] - before  # of the query's own place
    for side, distance in zip(sides, (-ahead, ahead), strict=True):
        if side is not None:
            parts.append(xp.where(distance <= side, zero, never))
    if not parts:
        return None
    bias = parts[0]
    for part in parts[1:]:
        bias = bias + part
    return bias


def _softmax(xp: ModuleType, scores: Any) -> Any:
    most = xp.max(scores, axis=-1, keepdims=True)
    powers = xp.exp(scores - xp.where(most == -np.inf, scores.dtype.type(0), most))
    sums = xp.sum(powers, axis=-1, keepdims=True)
    return powers / xp.where(sums == 0, scores.dtype.type(1), sums)


# ---- on processors ---------------------------------------------------------------------------------------------------


def own_form_of_sequences(node: OnnxNode) -> Array | None:
    """The form of a node of these operators that ONNX Runtime does not compute on a processor; see `own_form`."""
    tensors = dict(node.tensors)
    if node.op_type in _CELL_STEPS:
        return recurrent_node_form(node) if node.attribute("layout") else None
    if node.op_type != "Attention":
        return None
    total = tensors["K"].shape[-2] + (tensors["past_key"].shape[2] if "past_key" in tensors else 0)
    is_short = "attn_mask" in tensors and tensors["attn_mask"].shape[-1:] < (total,)
    is_shown = len(node.results) > 3 and node.attribute("qk_matmul_output_mode") == 2
    return attention_node_form(node) if is_short or is_shown or tensors["Q"].data_type == "bfloat16" else None
