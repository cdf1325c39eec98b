"""From a descriptor or node to a plan: layouts, byte counts, slices and the kernel. Pure and cached."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from tensorpost.descriptors import OperatorDesc
from tensorpost.onnx import OnnxNode

from ..backends import Plan, Slot, cut
from ..operators import kernel_for

__all__ = ["make_plan"]

SLICE_WORK = 1 << 28
"""Elements read for one slice, beyond which slices are cut smaller; about a second or two."""


def make_plan(subject: OperatorDesc | OnnxNode, slice_bytes: int) -> Plan:
    """Decide everything about one operator call.

    Args:
        subject: a descriptor or a node; its own rules hold already.
        slice_bytes: the most bytes of output made at a time.
    """
    return _make_plan(cast("Any", subject), slice_bytes)


@lru_cache(maxsize=1024)  # descriptors are frozen, hence hashable; type checkers do not see Pydantic's __hash__
def _make_plan(subject: Any, slice_bytes: int) -> Plan:
    kernel = kernel_for(subject)
    if isinstance(subject, OnnxNode):
        name, approximate = subject.schema.name, None
        inputs = (Slot(subject.schema.data_input.name, subject.input.layout),)
        output = subject.output.layout
    else:
        desc: OperatorDesc = subject
        name, approximate = desc.operator_type, desc.approximate
        inputs = tuple(Slot(desc.slot_name(field), getattr(desc, field).layout) for field in desc.input_fields)
        output = getattr(desc, desc.output_fields[0]).layout
    work = kernel.work(output.sizes)
    slices = cut(output, slice_bytes)
    if work > SLICE_WORK * len(slices) and len(slices):
        # A slice cannot be interrupted, so a costly one is smaller.
        slices = cut(output, max(1, slice_bytes * SLICE_WORK * len(slices) // work))
    return Plan(name, inputs, Slot("output", output), kernel, slices, work, approximate, subject)
