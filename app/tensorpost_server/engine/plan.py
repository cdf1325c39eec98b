"""From a descriptor to a plan: layouts, byte counts, slices and the kernel. Pure, and cached by descriptor."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from tensorpost.datatypes import data_type
from tensorpost.descriptors import BufferTensorDesc, OperatorDesc
from tensorpost.layout import Layout

from ..backends import Plan, Slot, cut
from ..operators import kernel_for

__all__ = ["layout_of", "make_plan"]


def make_plan(desc: OperatorDesc, slice_bytes: int) -> Plan:
    """Decide everything about one operator call.

    Args:
        desc: a descriptor; its own rules hold already.
        slice_bytes: the most bytes of output made at a time.
    """
    return _make_plan(cast("Any", desc), slice_bytes)


@lru_cache(maxsize=1024)  # descriptors are frozen, hence hashable; type checkers do not see Pydantic's __hash__
def _make_plan(desc: Any, slice_bytes: int) -> Plan:
    output = layout_of(getattr(desc, desc.output_fields[0]))
    return Plan(
        operator=desc.operator_type,
        inputs=tuple(Slot(desc.slot_name(field), layout_of(getattr(desc, field))) for field in desc.input_fields),
        output=Slot(desc.slot_name(desc.output_fields[0]), output),
        kernel=kernel_for(desc),
        slices=cut(output, slice_bytes),
        approximate=desc.approximate,
    )


def layout_of(tensor: BufferTensorDesc) -> Layout:
    """A tensor descriptor's layout. A packed tensor's bytes are just its elements, without the rounding up to 4."""
    row = data_type(tensor.data_type.name)
    if tensor.is_packed:
        return Layout.row_major(row, tensor.sizes)
    return Layout(row, tensor.sizes, tensor.effective_strides, tensor.total_tensor_size_in_bytes, packed=False)
