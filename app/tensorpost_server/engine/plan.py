"""From a descriptor or node to a plan: layouts, byte counts, slices and the kernel. Pure and cached."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, cast

from tensorpost.descriptors import OperatorDesc
from tensorpost.layout import last_index
from tensorpost.onnx import OnnxNode

from ..backends import Plan, Slot, cut
from ..backends.slices import Slices
from ..operators import kernel_for

__all__ = ["make_plan"]

SLICE_WORK = 1 << 26
"""Elements read for one slice, beyond which slices are cut smaller.

A second or two where the weights of wide filters and gradients are made as well, 10 to 40 ns each; far less elsewhere.
One element is never cut, however much it reads, up to `TENSORPOST_MAX_WORK`; NumPy's kernels can be stopped between two
blocks (`stoppable`), so it ends soon after its caller has gone.
"""


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
    slices = _cut_by_work(cut(output, slice_bytes), work)
    return Plan(name, inputs, Slot("output", output), kernel, slices, work, approximate, subject)


def _cut_by_work(slices: Slices, work: int) -> Slices:
    """Smaller slices, where these would take long; other requests wait for a slice, small as its bytes may be."""
    elements = math.prod(slices.layout.sizes)
    if work <= SLICE_WORK or not elements:
        return slices
    # The last slice is as large as any.
    extents = [stop - start for start, stop in slices.piece(len(slices) - 1).box]
    span = (last_index(extents, slices.layout.strides) + 1) * slices.layout.data_type.item_size
    held, wanted = math.prod(extents), SLICE_WORK * elements // work
    return slices if held <= wanted else cut(slices.layout, max(1, span * wanted // held))
