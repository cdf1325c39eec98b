"""What must hold of a node before it is computed, and what the inference of the package `onnx` does not look at.

ONNX Runtime refuses the same nodes, and functions of arrays, which compute some of them, would fail.

Source: ONNX, Attention-25, BatchNormalization-15, ConvInteger-10, Einsum-12, RNN-22, GRU-22, LSTM-22; where the text is
silent, ONNX Runtime.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from ..values.problems import counted
from .inference_context import InferenceContext
from .tensor import Shape

__all__ = ["check_preconditions"]


def check_preconditions(context: InferenceContext) -> None:
    """Refuse a node whose attributes and shapes do not fit each other.

    Raises:
        Broken: a rule is broken; the report says which.
    """
    rule = _RULES.get(context.schema.op_type)
    if rule is not None and not any(0 in shape for shape in context.shapes):
        rule(context)


def _require(context: InferenceContext, name: str, fits: bool, expected: str) -> None:
    """Refuse a tensor of another shape."""
    if not fits:
        message = f"{name} of {context.schema.op_type} has the shape {[*context.tensors[name].shape]}, not {expected}"
        context.refuse("shape", ("inputs", name), message, [*context.tensors[name].shape], expected)


# ---- Attention -------------------------------------------------------------------------------------------------------


def _attention(context: InferenceContext) -> None:
    tensors, attributes = context.tensors, context.attributes
    scale = attributes.get("scale")
    if scale is not None and not 0 < scale < float("inf"):
        message = f"scale of Attention is {scale}, and the square root of it multiplies Q and K"
        context.refuse("attribute-value", ("attributes", "scale"), message, scale, "a finite number above 0")
    if not {"Q", "K", "V"} <= tensors.keys():  # given by value
        return
    (batch, heads, length, width), key, value = (
        _by_heads(context, name, "kv_num_heads" if name != "Q" else "q_num_heads") for name in ("Q", "K", "V")
    )
    shared, total = key[1], key[2]
    if shared == 0 or heads % shared:
        message = f"Attention has {counted(heads, 'head')} of Q and {shared} of K, which several heads of Q share"
        context.refuse("shape", ("inputs", "K"), message, shared, f"a divisor of {heads}")
    _require(context, "K", (key[0], key[3]) == (batch, width), f"that of Q with batch {batch} and heads of {width}")
    _require(context, "V", value[:3] == key[:3], f"that of K with batch {batch}, {shared} heads and length {total}")
    for name, size in (("past_key", width), ("past_value", value[3])):
        if name in tensors:
            past = tensors[name].shape
            expected = f"[{batch}, {shared}, past length, {size}]"
            _require(context, name, len(past) == 4 and (*past[:2], past[3]) == (batch, shared, size), expected)
    if "past_key" in tensors and "past_value" in tensors:
        before = tensors["past_key"].shape[2]
        _require(context, "past_value", tensors["past_value"].shape[2] == before, f"that of past_key, {before} long")
        total += before
    if "attn_mask" in tensors:
        mask = tensors["attn_mask"].shape
        pairs = zip(mask[-2::-1], (length, heads, batch), strict=False)
        fits = 1 <= len(mask) <= 4 and mask[-1] <= total and all(size in (1, whole) for size, whole in pairs)
        _require(context, "attn_mask", fits, f"one that is repeated to [{batch}, {heads}, {length}, {total}]")
    if "nonpad_kv_seqlen" in tensors:
        _require(context, "nonpad_kv_seqlen", tensors["nonpad_kv_seqlen"].shape == (batch,), f"[{batch}]")


def _by_heads(context: InferenceContext, name: str, attribute: str) -> tuple[int, int, int, int]:
    """Batch, heads, length, and size of a head."""
    shape = context.tensors[name].shape
    if len(shape) == 4:
        return (shape[0], shape[1], shape[2], shape[3])
    heads = int(context.attributes.get(attribute) or 0)
    _require(context, name, len(shape) == 3, "[batch, heads, length, size] or [batch, length, heads * size]")
    if heads < 1 or shape[2] % heads:
        message = f"{attribute} of Attention is {heads}, and {name} has {shape[2]} elements of all heads together"
        context.refuse("attribute-value", ("attributes", attribute), message, heads, f"a divisor of {shape[2]}")
    return (shape[0], heads, shape[1], shape[2] // heads)


# ---- Einsum ----------------------------------------------------------------------------------------------------------

_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


def _einsum(context: InferenceContext) -> None:
    equation = "".join(str(context.attributes.get("equation", "")).split())
    left, *right = equation.split("->")
    terms = left.split(",")
    if len(right) > 1 or not all(_TERM.fullmatch(term) for term in (*terms, *right)):
        expected = "letters and ... for each input, commas between them, and at most one ->"
        _refuse_equation(context, equation, "is none", expected)
    if context.values or len(terms) != len(context.shapes):  # the inference refuses another number of inputs
        return
    sizes, most = dict[str, int](), 0
    for place, (term, shape) in enumerate(zip(terms, context.shapes, strict=True)):
        hidden = len(shape) - len(term.replace("...", ""))  # the inference refuses letters for other ranks
        most = max(most, hidden)
        labels = [*term.replace("...", "*")]
        at = labels.index("*") if "*" in labels else len(labels)
        labels[at : at + 1] = [f".{axis}" for axis in range(hidden, 0, -1)]
        own = dict[str, int]()
        for label, size in zip(labels, shape, strict=True):
            known = own.setdefault(label, size)
            if size != known or (size != sizes.get(label, size) and 1 not in (size, sizes.get(label))):
                other = known if size != known else sizes[label]
                what = f"has {label!r} of the sizes {other} and {size}, the latter in input {place}"
                _refuse_equation(context, equation, what, "one size, or 1, for each letter")
        sizes |= {label: max(size, sizes.get(label, 1)) for label, size in own.items()}
    for result in right:
        letters = result.replace("...", "")
        if len({*letters}) < len(letters):
            _refuse_equation(context, equation, f"has a letter of {result!r} twice", "each letter once after ->")
        if most and "..." not in result:
            _refuse_equation(context, equation, "has no ... after ->, and inputs have", "... after ->")


def _refuse_equation(context: InferenceContext, equation: str, what: str, expected: str) -> NoReturn:
    message = f"the equation {equation[:60]!r} of Einsum {what}"
    context.refuse("attribute-value", ("attributes", "equation"), message, equation[:60], expected)


# ---- ConvInteger -----------------------------------------------------------------------------------------------------


def _integer_convolution(context: InferenceContext) -> None:
    shapes = {name: tensor.shape for name, tensor in context.tensors.items()}
    if not {"x", "w"} <= shapes.keys():  # given by value
        return
    groups, filters, channels = int(context.attributes.get("group") or 1), shapes["w"][0], shapes["x"][1]
    fits = groups > 0 and filters % groups == 0 and shapes["w"][1] * groups == channels
    _require(context, "w", fits, f"that of filters for {channels} channels in {counted(groups, 'group')}")
    if "x_zero_point" in shapes:
        _require(context, "x_zero_point", _is_line(shapes["x_zero_point"], 1), "one number")
    if "w_zero_point" in shapes:
        expected = f"one number, or one for each of the {counted(filters, 'filter')}"
        _require(context, "w_zero_point", _is_line(shapes["w_zero_point"], 1, filters), expected)


def _is_line(shape: Shape, *lengths: int) -> bool:
    return shape == () or (len(shape) == 1 and shape[0] in lengths)


# ---- recurrent networks and normalization ----------------------------------------------------------------------------

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _recurrent(context: InferenceContext) -> None:
    shapes = {name: tensor.shape for name, tensor in context.tensors.items()}
    if not {"X", "W", "R"} <= shapes.keys() or {len(shapes[name]) for name in ("X", "W", "R")} != {3}:
        return  # given by value, or what the inference refuses
    directions = 2 if context.attributes.get("direction") == "bidirectional" else 1
    hidden = int(context.attributes.get("hidden_size") or shapes["R"][2])
    by_batch, (*_, width) = bool(context.attributes.get("layout")), shapes["X"]
    batch, rows = shapes["X"][0 if by_batch else 1], _GATES[context.schema.op_type] * hidden
    state = (batch, directions, hidden) if by_batch else (directions, batch, hidden)
    wanted: Mapping[str, Shape] = {
        "W": (directions, rows, width), "R": (directions, rows, hidden), "B": (directions, 2 * rows),
        "sequence_lens": (batch,), "initial_h": state, "initial_c": state, "P": (directions, 3 * hidden),
    }  # fmt: skip
    for name, shape in wanted.items():
        if name in shapes:
            _require(context, name, shapes[name] == shape, f"{[*shape]}")


def _batch_normalization(context: InferenceContext) -> None:
    if not context.attributes.get("spatial", 1):  # up to opset 8: for each element of an image
        return
    _, *others = context.tensors
    channels = context.first.shape[1] if len(context.first.shape) > 1 else 1
    for name in others:
        _require(context, name, context.tensors[name].shape == (channels,), f"[{channels}], one for each channel")


_RULES: Mapping[str, Callable[[InferenceContext], None]] = {
    "Attention": _attention, "BatchNormalization": _batch_normalization, "ConvInteger": _integer_convolution,
    "Einsum": _einsum, "GRU": _recurrent, "LSTM": _recurrent, "RNN": _recurrent,
}  # fmt: skip
