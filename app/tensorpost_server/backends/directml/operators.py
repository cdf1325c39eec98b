"""Which descriptor an operation is, and DirectML's compiled operators, kept for the next request."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from tensorpost.descriptors import (
    BufferTensorDesc,
    FeatureLevel,
    OperatorDesc,
    ReduceFunction,
    RoiAlignGradOperatorDesc,
)
from tensorpost.onnx import OnnxNode, Verdict, lower
from tensorpost.values.graph import Graph
from tensorpost.values.operation import Operation
from tensorpost.values.problems import InvalidDescriptor

from ...planning import Plan
from .c_structs import OperatorStruct
from .com import ComObject
from .d3d12 import BindingProperties
from .device import Device, binding_properties
from .device_buffers import Buffer
from .graph_compiler import GraphDesc, constants_of, graph_desc
from .queue import Binding

MOST_DESCRIPTORS = 1024
"""Operations whose descriptors are kept, or why they have none."""
REFUSED_SECONDS = 600.0
"""How long an operator that DirectML did not take is refused, before it is tried again: a driver may fail once."""
MOST_GRAPHS = 64
"""Plans of graphs whose words are kept."""
MOST_KEPT_WEIGHTS = 1 << 20
"""Bytes of a stored graph's constants up to which its words are kept."""
MOST_OPERATORS = 256
"""Compiled operators in the cache. One holds shaders; compiling one takes milliseconds."""
MOST_PERSISTENT_BYTES = 256 << 20
"""Device memory that compiled operators may keep together; the newest stays whatever its size."""


class Descriptors:
    """What operations are in DirectML's words on one device. Its methods may be called on any thread.

    Args:
        device: whose level and types count.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._known: OrderedDict[str, tuple[OperatorDesc | str, float]] = OrderedDict()  # until when, in monotonic time
        self._lock = Lock()

    def get(self, operation: Operation) -> OperatorDesc | str:
        """The descriptor, or a sentence why DirectML does not compute the operation on this device."""
        key = operation.to_document_text()
        with self._lock:
            found, until = self._known.get(key, (None, math.inf))
        if found is None or until <= time.monotonic():
            found = self._found(operation)
            self._keep(key, found)
        return found

    def of_graph(self, graph: Graph) -> GraphDesc | str:
        """The graph in DirectML's words, or a sentence why DirectML does not compile it on this device."""
        if self._device.level < FeatureLevel.L2_1:
            return (
                f"graphs need IDMLDevice1::CompileGraph of feature level 2_1, and this device has {self._device.level}"
            )
        return graph_desc(graph, self.get)

    def refuse(self, operation: Operation, reason: str) -> None:
        """Remember for `REFUSED_SECONDS` that DirectML did not take the operation."""
        self._keep(operation.to_document_text(), reason, time.monotonic() + REFUSED_SECONDS)

    def _keep(self, key: str, found: OperatorDesc | str, until: float = math.inf) -> None:
        with self._lock:
            self._known[key] = found, until
            if len(self._known) > MOST_DESCRIPTORS:
                self._known.popitem(last=False)

    def _found(self, operation: Operation) -> OperatorDesc | str:
        level = self._device.level
        if isinstance(operation, OnnxNode):
            lowering = lower(operation, level)
            if lowering.verdict is not Verdict.EXACT or lowering.descriptor is None:
                return f"in DirectML it is {lowering.verdict.value}: {lowering.reason}"
            operation = lowering.descriptor
        if not isinstance(operation, OperatorDesc):
            return f"{operation.name} is not a DirectML operator"
        try:
            operation.validate_for(level)
        except InvalidDescriptor as error:
            return error.detail
        if _binds_unread_input(operation):
            return "an InputTensor that is not read, for averages without OutputROIGradientTensor: leave it out"
        missing = {tensor.data_type for _, tensor in operation.tensors()} - self._device.data_types
        if missing:
            return f"this device has no tensors of {', '.join(sorted(kind.name for kind in missing))}"
        return operation


class GraphDescs:
    """What graphs are in DirectML's words on one device; those of large weights are not kept.

    Args:
        descriptors: the descriptors of their nodes.
    """

    def __init__(self, descriptors: Descriptors) -> None:
        self._descriptors = descriptors
        self._known: OrderedDict[int, tuple[Plan, GraphDesc | str, float]] = OrderedDict()  # by the plan's identity
        self._lock = Lock()

    def get(self, plan: Plan) -> GraphDesc | str:
        """The graph, or a sentence why DirectML does not compute it on this device."""
        with self._lock:
            _, found, until = self._known.get(id(plan), (plan, None, math.inf))
        if found is None or until <= time.monotonic():
            found = self._descriptors.of_graph(plan.graph)
            if plan.kept_bytes <= MOST_KEPT_WEIGHTS:
                self._keep(plan, found)
        return found

    def refuse(self, plan: Plan, reason: str) -> None:
        """Remember for `REFUSED_SECONDS` that DirectML did not take the graph."""
        self._keep(plan, reason, time.monotonic() + REFUSED_SECONDS)

    def _keep(self, plan: Plan, found: GraphDesc | str, until: float = math.inf) -> None:
        with self._lock:
            self._known[id(plan)] = plan, found, until
            if len(self._known) > MOST_GRAPHS:
                self._known.popitem(last=False)


def _binds_unread_input(desc: OperatorDesc) -> bool:
    """Whether a dispatch removes the device, as DirectML 1.15.4 does where a tensor is bound that it does not read."""
    return (
        isinstance(desc, RoiAlignGradOperatorDesc)
        and desc.input_tensor is not None
        and desc.output_roi_gradient_tensor is None
        and desc.reduction_function is not ReduceFunction.MAX
    )


@dataclass(frozen=True, slots=True, eq=False)
class CompiledOperator:
    """An operator that may be dispatched as often as needed.

    Attributes:
        compiled: the object, initialized.
        properties: what a dispatch needs.
        persistent: what its initializer has filled for it; None if it needs nothing.
        inputs: bytes that are bound of each input; None for an optional tensor that is absent.
        outputs: bytes that are bound of each output; None for an optional tensor that is absent.
    """

    compiled: ComObject
    properties: BindingProperties
    persistent: Buffer | None
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]


class CompiledOperators:
    """A cache of compiled operators by their documents, bounded in number and in device memory. For one thread.

    Args:
        device: where they are compiled.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: OrderedDict[str, CompiledOperator] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, desc: OperatorDesc) -> CompiledOperator:
        """The compiled operator, made now if it is not there.

        Raises:
            ComError: DirectML refuses the descriptor, or the device fails.
        """
        return self._get(desc.to_document_text(), lambda: self._made(desc))

    def _get(self, key: str, make: Callable[[], CompiledOperator]) -> CompiledOperator:
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make()
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and self._too_many():
            self._drop(self._kept.popitem(last=False)[1])
        return found

    def get_graph(self, desc: GraphDesc) -> CompiledOperator:
        """The compiled graph, made now if it is not there.

        Raises:
            ComError: DirectML refuses a node or the graph, or the device fails.
        """
        return self._get(desc.key, lambda: self._made_graph(desc))

    def clear(self) -> None:
        """Drop every operator."""
        while self._kept:
            self._drop(self._kept.popitem()[1])

    def _too_many(self) -> bool:
        total = sum(one.persistent.size for one in self._kept.values() if one.persistent is not None)
        return len(self._kept) > MOST_OPERATORS or total > MOST_PERSISTENT_BYTES

    def _drop(self, operator: CompiledOperator) -> None:
        if operator.persistent is not None:
            self._device.buffers.give(operator.persistent)
        self._device.queue.retire(operator.compiled)

    def _made(self, desc: OperatorDesc) -> CompiledOperator:
        compiled = self._device.compile_operator(OperatorStruct.from_desc(desc, owned=False))
        inputs, outputs = (
            tuple([None if one is None else one.total_tensor_size_in_bytes for one in bindings(desc, kind)])
            for kind in ("input", "output")
        )
        return self._initialized(compiled, inputs, outputs, [])

    def _made_graph(self, desc: GraphDesc) -> CompiledOperator:
        compiled, owned = self._device.compile_graph(desc), constants_of(desc)
        constants = [
            None if (data := owned.get(at)) is None or size is None else (data, size)
            for at, size in enumerate(desc.inputs)
        ]
        # Those that were bound when it was initialized are not bound again.
        inputs = tuple([None if at in owned else size for at, size in enumerate(desc.inputs)])
        return self._initialized(compiled, inputs, desc.outputs, constants if owned else [])

    def _initialized(
        self, compiled: ComObject, inputs: tuple[int | None, ...], outputs: tuple[int | None, ...],
        constants: Sequence[tuple[memoryview, int] | None],
    ) -> CompiledOperator:  # fmt: skip
        """Initialize what was compiled.

        Args:
            compiled: an operator or a graph.
            inputs: bytes of each input that is bound to a dispatch.
            outputs: bytes of each output.
            constants: the bytes that each input is initialized with, and their size; empty if there are none.
        """
        device = self._device
        uploaded: list[Binding] = []
        persistent: Buffer | None = None
        temporary: Buffer | None = None
        initializer: ComObject | None = None
        try:
            properties = binding_properties(compiled)
            initializer = device.create_initializer(compiled)
            first = binding_properties(initializer)
            if properties.PersistentResourceSize:
                persistent = device.buffers.take(properties.PersistentResourceSize)
            if first.TemporaryResourceSize:
                temporary = device.buffers.take(first.TemporaryResourceSize)
            kept: list[Binding] = [] if persistent is None else [(persistent, properties.PersistentResourceSize)]
            for one in constants:
                uploaded.append(None if one is None else (device.buffers.take(one[1]), one[1]))
            with device.queue.recording() as recording:
                for one, binding in zip(constants, uploaded, strict=True):
                    if one is not None and binding is not None:
                        recording.upload(one[0], binding[0])
                recording.dispatch(initializer, first, [], kept, temporary, owned=uploaded)
        except BaseException:
            if persistent is not None:
                device.buffers.give(persistent)
            device.queue.retire(compiled)
            raise
        finally:
            for buffer, _ in filter(None, uploaded):
                device.buffers.give(buffer)
            if temporary is not None:
                device.buffers.give(temporary)
            if initializer is not None:
                device.queue.retire(initializer)
        return CompiledOperator(compiled, properties, persistent, inputs, outputs)


def bindings(desc: OperatorDesc, kind: str) -> Iterator[BufferTensorDesc | None]:
    """The tensors in the order in which they are bound; None for an optional one that is absent."""
    for field in desc.fields_of_kind(kind):
        value: Any = getattr(desc, field)
        if isinstance(value, tuple):
            yield from value
        else:
            yield value


def dispatch(
    device: Device, operator: CompiledOperator, inputs: Sequence[memoryview], *, clear: bool = False
) -> list[Buffer]:
    """Copy the inputs to the device and submit the operator; it may still be under way when this returns.

    Args:
        device: where the operator was compiled.
        operator: what is dispatched.
        inputs: the bytes of the tensors that are there, in binding order.
        clear: fill the outputs with zeros before.

    Returns:
        The outputs in device memory, which the caller gives back.

    Raises:
        ComError: the device has no memory for it, or fails.
    """
    taken: list[Buffer] = []
    outputs: list[Buffer] = []

    def take(size: int) -> tuple[Buffer, int]:
        taken.append(device.buffers.take(size))
        return taken[-1], size

    try:
        sources = [None if size is None else take(size) for size in operator.inputs]
        targets = [None if size is None else take(size) for size in operator.outputs]
        needed = operator.properties.TemporaryResourceSize
        temporary = take(needed)[0] if needed else None
        with device.queue.recording() as recording:
            for memory, (buffer, _) in zip(inputs, filter(None, sources), strict=True):
                recording.upload(memory, buffer)
            for buffer, size in filter(None, targets) if clear else ():
                recording.upload(memoryview(bytes(size)), buffer)
            recording.dispatch(operator.compiled, operator.properties, sources, targets, temporary, operator.persistent)
        outputs = [buffer for buffer, _ in filter(None, targets)]
    finally:
        for buffer in taken:
            if buffer not in outputs:
                device.buffers.give(buffer)
    return outputs
