"""From a descriptor or node to a plan: layouts, byte counts, slices and the kernel. Pure and cached."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from tensorpost.descriptors import OperatorDesc
from tensorpost.onnx import OnnxNode

from ..backends import Plan, Slot, cut
from ..operators import kernel_for

__all__ = ["make_plan"]


def make_plan(subject: OperatorDesc | OnnxNode, slice_bytes: int) -> Plan:
    """Decide everything about one operator call.

    Args:
        subject: a descriptor or a node; its own rules hold already.
        slice_bytes: the most bytes of output made at a time.
    """
    return _make_plan(cast("Any", subject), slice_bytes)


@lru_cache(maxsize=1024)  # descriptors are frozen, hence hashable; type checkers do not see Pydantic's __hash__
def _make_plan(subject: Any, slice_bytes: int) -> Plan:
    if isinstance(subject, OnnxNode):
        inputs = (Slot(subject.schema.data_input.name, subject.input.layout),)
        output = subject.output.layout
        return Plan(subject.schema.name, inputs, Slot("output", output), kernel_for(subject), cut(output, slice_bytes))
    desc: OperatorDesc = subject
    field = desc.output_fields[0]
    output = getattr(desc, field).layout
    return Plan(
        operator=desc.operator_type,
        inputs=tuple(Slot(desc.slot_name(name), getattr(desc, name).layout) for name in desc.input_fields),
        output=Slot("output", output),
        kernel=kernel_for(desc),
        slices=cut(output, slice_bytes),
        approximate=desc.approximate,
    )

