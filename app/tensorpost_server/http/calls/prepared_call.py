"""`PreparedCall`: a planned call, which the call cache keeps, and the memory that it takes.

Callers send the same small call over and over with other numbers in it. Everything that is decided about a call follows
from the bytes before its tensors: operator, query, header fields, Content-Length and the head of its body. They are the
key of a `PreparedCall`. What depends on the moment (the choice of a device, the memory budget) is never part of it, and
refusals are not cached.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from tensorpost.bodies.answer_rows import OutputRows
from tensorpost.onnx.strings import StringCall, numbers_node
from tensorpost.values.graph import Graph
from tensorpost.values.operation import Operation
from tensorpost.values.problems import InvalidParameter, LimitExceeded, NotAcceptable

from ...engine import StepTimes, Worker
from ...planning import Plan, make_device_plan, make_plan, plan_of_rows
from ...settings import Settings
from .call import Answer, Call, CallFormat, KeptGraph, PlanKind, PreparedHead, RunOptions

ONNX_RUNTIME_BACKEND = "onnxruntime"
"""What a call of a graph names as its backend, so that ONNX Runtime computes all of it."""

_MOST_PLANS = 8  # of a stored graph; one of silero-vad, whose calls have an input that decides, takes 5 ms to make
_ALIGNMENT = 16  # bytes; bytes objects of CPython have their content at such an address, and our heads fill such blocks


class RequestKey(NamedTuple):
    """What the HTTP head of a request says about the call."""

    wire: Hashable
    format: CallFormat
    query: bytes
    body_bytes: int


CallKey = tuple[RequestKey, bytes]
"""All that decides what a call means: with the bytes of the body before its tensors."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedCall:
    """A call that is valid, planned and within the limits, whatever its tensors hold.

    Attributes:
        options: the backend and device that were asked for.
        sizes: bytes of each tensor in the body, in its order.
        order: the index of each of the plan's inputs among the tensors in the body and the held ones after them.
        aligned: whether every tensor in the body begins at a multiple of its item size, counted from the first.
        memory_bytes: what to reserve for it; see `call_bytes`.
        strings: the node with strings, if it works on any; the plan is of numbers that stand for them.
        rows: the rows of the output that are wanted; None for the whole answer.
        stored: the stored graph that is called, if it is one.
        device: the call as a device computes it, if a library computes some of `plan` on processors; None if none does.
        stored_tags: what tells its stored graph and held tensors from others.
        joins: whether it may be computed together with other calls of the stored graph; see `CallBatches`.
        heads: heads of answers, by worker, if they stream or are inline; filled when they are first sent.
    """

    plan: Plan
    options: RunOptions
    answer: Answer
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    aligned: bool
    memory_bytes: int
    strings: StringCall | None = None
    timeout: float | None = None
    rows: OutputRows | None = None
    stored: KeptGraph | None = None
    device: PreparedCall | None = None
    stored_tags: Sequence[str] = ()
    joins: bool = False
    heads: dict[Worker, PreparedHead] = field(default_factory=dict[Worker, PreparedHead])

    def respond_now(
        self, worker: Worker, inputs: Sequence[memoryview], head: PreparedHead, steps: StepTimes | None
    ) -> tuple[PreparedHead, bytes]:
        """The answer, computed on the caller's thread."""
        if self.answer.streams:
            return head, worker.run_now(self.plan, inputs, head.body_head, steps)
        data, outputs = worker.run_now(self.plan, inputs, b"", steps), list[bytes]()
        for slot in self.plan.outputs:
            size = slot.layout.size_in_bytes
            outputs.append(data[:size])
            data = data[size:]
        return self.answer.whole(self.plan, worker, outputs)

    @property
    def operation(self) -> Operation:
        """What was asked for."""
        return self.plan.operation if self.strings is None else self.strings.node


def prepare(call: Call, settings: Settings, *, has_devices: bool = False) -> PreparedCall:
    """Plan a call.

    Args:
        call: the call.
        settings: limits and sizes.
        has_devices: whether there are devices with memory of their own, for which it may be planned otherwise.

    Raises:
        LimitExceeded: the plan is above a limit.
        NotAcceptable: the answer cannot hold the outputs, or rows of them.
        InvalidParameter: there are no such rows; or ONNX Runtime cannot compute all of it, as was asked for.
        NoBackend: ONNX Runtime is needed and not installed.
    """
    graph = call.graph if call.strings is None else Graph.of(numbers_node(call.strings.node))
    if graph.constants:
        check_constants(graph, settings)
    options = call.options
    by_onnx_runtime = options.backend == ONNX_RUNTIME_BACKEND
    if by_onnx_runtime:
        check_whole(graph, options)
        options = replace(options, backend="numpy")  # which is always there, and holds the tensors
    slice_bytes = settings.slice_bytes
    plan = _plan_of(
        graph, call.stored, "whole" if by_onnx_runtime else "processor",
        partial(make_plan, graph, slice_bytes, by_onnx_runtime=by_onnx_runtime),
    )  # fmt: skip
    assert plan is not None
    _check_limits(plan, settings)
    call.answer.check(plan, settings)
    rows = None
    if call.rows is not None:
        if not call.answer.streams:
            raise NotAcceptable(
                "rows are sent as npy, a frame or raw bytes; accept application/x-npy, application/vnd.safetensors or "
                "application/octet-stream"
            )
        rows = OutputRows.of(plan.outputs[0].layout, *call.rows)
        plan = plan_of_rows(plan, rows)
    in_body = call.tensors[: len(call.tensors) - len(call.held)]
    sizes = tuple([tensor.size_in_bytes for tensor in in_body])
    index_of = {tensor.name: index for index, tensor in enumerate(call.tensors)}
    order = tuple([index_of[slot.name] for slot in plan.inputs])
    starts = [*itertools.accumulate(sizes, initial=0)]
    item_sizes = [slot.layout.data_type.item_size for slot in plan.inputs]
    aligned = all(at >= len(sizes) or starts[at] % item == 0 for at, item in zip(order, item_sizes, strict=True))
    decoding_bytes = 0 if call.encoded is None else call.encoded.working_bytes
    memory_bytes = call_bytes(plan, call.answer, 0 if call.memory else sum(sizes), decoding_bytes, settings)
    prepared = PreparedCall(
        plan, options, call.answer, sizes, order, aligned, memory_bytes, call.strings, call.timeout, rows,
        call.stored, None, call.stored_tags, rows is None and not by_onnx_runtime and _joins(plan, call.stored),
    )  # fmt: skip
    names_processor = options.backend is not None and options.backend not in ("auto", "cuda", "directml")
    if not has_devices or not plan.libraries or names_processor or by_onnx_runtime or rows is not None:
        return prepared
    device_plan = _plan_of(graph, call.stored, "device", partial(make_device_plan, graph, slice_bytes))
    if device_plan is None or not _is_within(device_plan, settings):
        return prepared
    device = replace(prepared, plan=device_plan, heads=dict[Worker, PreparedHead]())
    return replace(prepared, device=device)


def _joins(plan: Plan, stored: KeptGraph | None) -> bool:
    """Whether each tensor of the call has the rows of one batch, which are fewer than a batch may have."""
    if stored is None or stored.batches is None or stored.batches.max_queue_delay_microseconds is None:
        return False
    if frozenset([slot.name for slot in plan.inputs]) != stored.input_names or plan.slices.has_gaps:
        return False
    rows = {slot.layout.sizes[0] if slot.layout.sizes else 0 for slot in (*plan.inputs, *plan.outputs)}
    return len(rows) == 1 and 0 < min(rows) < stored.batches.max_batch_size


def _plan_of(graph: Graph, stored: KeptGraph | None, kind: PlanKind, make: Callable[[], Plan | None]) -> Plan | None:
    """The plan of a graph; for the same value of a stored one, the same plan."""
    plans = {} if stored is None else stored.plans
    key = (id(graph), kind)  # the plan holds the graph, so that no other one has its identity
    plan = plans.get(key)
    if plan is None and (plan := make()) is not None:
        plans[key] = plan
        if len(plans) > _MOST_PLANS:
            del plans[next(iter(plans))]
    return plan


def check_whole(graph: Graph, options: RunOptions) -> None:
    """Refuse `backend=onnxruntime` of what is no graph, or with a device.

    Raises:
        InvalidParameter: it is refused.
    """
    if not graph.output_names:
        message = (
            "backend=onnxruntime computes models and graphs (POST /v1/onnx and /v1/graphs, run_model and run_graph); a "
            "single operator is computed by it if it has no form of its own, with backend=auto"
        )
        raise InvalidParameter(message, extra={"parameter": "backend"})
    if options.device is not None:
        message = "device names a device of another backend; backend=onnxruntime computes on the processor"
        raise InvalidParameter(message, extra={"parameter": "device"})


def check_constants(graph: Graph, settings: Settings) -> None:
    """Refuse constants that are too large, before anything is planned.

    Raises:
        LimitExceeded: they are.
    """
    size = sum(
        [len(data) for _, data in graph.constants if isinstance(data, bytes)]
    )  # others are kept by a stored graph
    most = settings.max_graph_constant_bytes
    if size > most:
        raise LimitExceeded.of("the size of the graph's constants", size, most, "TENSORPOST_MAX_GRAPH_CONSTANT_BYTES")


def _check_limits(plan: Plan, settings: Settings) -> None:
    """Refuse outputs that are too large, or too much work."""
    if plan.output_bytes > settings.max_output_bytes:
        raise LimitExceeded.of(
            "the output", plan.output_bytes, settings.max_output_bytes, "TENSORPOST_MAX_OUTPUT_BYTES"
        )
    if plan.work > settings.max_work:
        raise LimitExceeded.of(
            "the work of this operator", plan.work, settings.max_work, "TENSORPOST_MAX_WORK", "elements to add up,"
        )


def _is_within(plan: Plan, settings: Settings) -> bool:
    """Whether a plan for devices is within the limits, which count its work otherwise."""
    try:
        _check_limits(plan, settings)
    except LimitExceeded:
        return False
    return True


def call_bytes(plan: Plan, answer: Answer, received_bytes: int, decoding_bytes: int, settings: Settings) -> int:
    """The memory that a call takes, in bytes, beside what its worker holds for it (`Backend.held_bytes`)."""
    sent_bytes = received_bytes + decoding_bytes + plan.constant_bytes - plan.kept_bytes
    return sent_bytes + slices_bytes(plan, settings) + answer.working_bytes(plan)


def slices_bytes(plan: Plan, settings: Settings) -> int:
    """Memory of as many slices as may exist at the same time."""
    count = min(len(plan.slices), settings.slices_ahead + 2)
    return min(plan.output_bytes, count * settings.slice_bytes)


def received_tensors(received: memoryview, sizes: Sequence[int]) -> list[memoryview] | None:
    """The tensors of a small body that has arrived; None if they are not all there, or not immutable.

    They are used where they are, or copied if the first is not aligned, as after a head of any length (`/v2`).
    """
    if not received.readonly or len(received) != sum(sizes) or not received:
        return None
    if np.frombuffer(received, np.uint8).__array_interface__["data"][0] % _ALIGNMENT:
        received = memoryview(bytes(received))
    if len(sizes) == 1:
        return [received]
    memory: list[memoryview] = []
    for size in sizes:
        memory.append(received[:size])
        received = received[size:]
    return memory
