"""Prepare an inference: from its request to a planned call, and the elements that came in other forms than bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tensorpost.json_tensor import tensor_from_json
from tensorpost.layout import Layout
from tensorpost.onnx import OnnxNode
from tensorpost.onnx.strings import StringCall, StringTable, has_strings, numbers_node
from tensorpost.problems import InvalidParameter

from ...planning import Plan, make_plan
from ...settings import Settings
from ..call_cache import PreparedCall
from ..parse_call import AnnouncedTensor, RunOptions
from ..responses import JSON_BYTES_PER_ELEMENT, check_limits, slices_bytes
from .byte_strings import decode_strings
from .content_coding import Coding
from .infer_request import InferInput, InferRequest, refuse
from .infer_response import ResponseForm, response_form
from .models import Model
from .translation import announced, operation_of, output_type

__all__ = ["PreparedInference", "elements_from_json", "numbers_of_strings", "prepare_inference", "raw_request"]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedInference(PreparedCall):
    """A planned inference.

    Attributes:
        form: how the outputs come back.
        timeout: how long it may wait until its answer begins, seconds; None for as long as it takes.
    """

    form: ResponseForm | None = None
    timeout: float | None = None


def raw_request(model: Model, length: int) -> InferRequest:
    """The request that a body without any JSON stands for.

    Raises:
        InvalidParameter: the model has not one input with at most one free size, or one of several strings.
    """
    free = [size for tensor in model.inputs for size in tensor.shape if size < 0]
    fixed = math.prod([size for tensor in model.inputs for size in tensor.shape if size >= 0])
    is_text = any(not tensor.data_type.item_size for tensor in model.inputs)
    if len(model.inputs) != 1 or len(free) > 1 or (is_text and fixed != 1):
        raise InvalidParameter(
            f"model {model.name!r} takes no raw request: it needs one input with at most one free size, of strings a "
            "single one; send the JSON part, or make a preset with a shape"
        )
    tensor, count = model.inputs[0], 1
    if not is_text:
        known = fixed * tensor.data_type.item_size
        count, rest = divmod(length, known) if known else (0, length)
        if rest or (not free and count != 1):
            refuse(("inputs", 0), f"a raw body of model {model.name!r} has {known:,} bytes", length, f"{known:,} bytes")
    shape = tuple([count if size < 0 else size for size in tensor.shape])
    return InferRequest(
        "", {}, (InferInput(tensor.name, tensor.data_type, shape, binary_bytes=length),), binary_output=True
    )


def elements_from_json(tensor: InferInput, index: int) -> memoryview:
    """The bytes of a tensor that came as JSON."""
    path = ("inputs", index)
    document = {"dtype": tensor.data_type.open_inference, "shape": list(tensor.shape), "data": _leaves(tensor.data)}
    array = np.ascontiguousarray(tensor_from_json(document, path=path))
    return array.reshape(-1).view(np.uint8).data  # memoryview has no bfloat16


def numbers_of_strings(tensor: InferInput, raw: memoryview | None, index: int, table: StringTable) -> memoryview:
    """The numbers that stand for the elements of a BYTES tensor."""
    count = math.prod(tensor.shape)
    if raw is not None:
        elements = decode_strings(raw, count, tensor.name)
    else:
        leaves = _leaves(tensor.data)
        if len(leaves) != count or not all(isinstance(leaf, str) for leaf in leaves):
            message = f"has {len(leaves):,} elements; {count:,} texts were expected"
            refuse(("inputs", index, "data"), message, None, f"{count:,} texts")
        elements = [leaf.encode() for leaf in cast("list[str]", leaves)]
    return table.numbers(elements).view(np.uint8).data


def _leaves(data: object) -> list[object]:
    """The elements in a row, however they nest."""
    found: list[object] = []
    left = [data]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left.extend(reversed(cast("list[object]", node)))
        else:
            found.append(node)
    return found


def prepare_inference(
    model: Model, request: InferRequest, memory: Mapping[str, memoryview], small: frozenset[str],
    table: StringTable, coding: Coding | None, settings: Settings,
) -> PreparedInference:  # fmt: skip
    """Translate and plan an inference.

    Raises:
        InvalidRequest: it is malformed.
        LimitExceeded: the plan is above a limit.
    """
    worked_on = [tensor for tensor in request.inputs if tensor.name not in small]
    values = {tensor.name: _values(tensor, memory[tensor.name]) for tensor in request.inputs if tensor.name in small}
    tensors = [announced(model, tensor) for tensor in worked_on]
    operation, options = operation_of(model, request.parameters, tensors, values)
    strings = StringCall(cast("OnnxNode", operation), table) if has_strings(operation) else None
    plan = make_plan(operation if strings is None else numbers_node(strings.node), settings.slice_bytes)
    check_limits(plan, settings)
    rows = [output_type(model, worked_on, slot.layout.data_type) for slot in operation.outputs]
    form = response_form(model, request, plan.outputs, rows, coding, settings.max_json_elements)
    return _prepared(options, plan, form, tensors, bool(memory), request.timeout, strings, settings)


def _prepared(
    options: RunOptions, plan: Plan, form: ResponseForm, tensors: Sequence[AnnouncedTensor],
    in_memory: bool, timeout: float | None, strings: StringCall | None, settings: Settings,
) -> PreparedInference:  # fmt: skip
    sizes = tuple([tensor.size_in_bytes for tensor in tensors])
    index_of = {tensor.name: index for index, tensor in enumerate(tensors)}
    order = tuple([index_of[slot.name] for slot in plan.inputs])
    starts = [*itertools.accumulate(sizes, initial=0)]
    aligned = all(
        starts[at] % slot.layout.data_type.item_size == 0 for at, slot in zip(order, plan.inputs, strict=True)
    )
    memory_bytes = slices_bytes(plan, settings) + (0 if in_memory else sum(sizes))
    if not form.streams:
        memory_bytes += sum([output.size_in_bytes for output in form.outputs if output.region is None])
        memory_bytes += form.json_elements * JSON_BYTES_PER_ELEMENT
        memory_bytes += plan.output_bytes if form.coding else 0
    return PreparedInference(
        plan, options, form.id or None, sizes, order, aligned, memory_bytes, strings=strings, form=form, timeout=timeout
    )


def _values(tensor: InferInput, block: memoryview) -> NDArray[Any]:
    return Layout.row_major(tensor.data_type, tensor.shape).view(block)
