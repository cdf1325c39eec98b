"""Indices in tensors, checked and limited in host memory: DirectML reads or writes other memory where one is outside.

DirectML's pages leave an index outside of its axis undefined, and DirectML 1.15.4 reads what lies behind the tensor, or
writes another element. So no such index reaches it. Operators that read get the nearest index inside, which is what
every other backend reads; operators that write leave such an element out on other backends, which no index says in
DirectML's words, so that they are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tensorpost import descriptors as dml
from tensorpost.descriptors import OperatorDesc
from tensorpost.values.layout import Layout
from tensorpost.values.problems import InvalidDescriptor, Violation, counted


@dataclass(frozen=True, slots=True)
class _IndexSlot:
    """Where the indices of an operator are.

    Attributes:
        slot: the input that holds them.
        lengths: how many elements an index may name, of a descriptor: one number, or one for each entry of the last
            dimension; None for an entry that is no index.
        writes: whether elements are written, so that one outside is refused.
    """

    slot: str
    lengths: Callable[[Any], tuple[int | None, ...]]
    writes: bool = False


def _along_axis(desc: Any) -> tuple[int | None, ...]:
    return (desc.input_tensor.sizes[desc.axis],)


def _coordinates(desc: Any) -> tuple[int | None, ...]:
    sizes = desc.input_tensor.sizes
    first = len(sizes) - desc.input_dimension_count + getattr(desc, "batch_dimension_count", 0)
    return sizes[first : first + desc.indices_tensor.sizes[-1]]


def _whole_output(desc: Any) -> tuple[int | None, ...]:
    return (math.prod(desc.output_tensor.sizes),)


def _batch(desc: Any) -> tuple[int | None, ...]:
    return (desc.input_tensor.sizes[0],)


def _gradient_batch(desc: Any) -> tuple[int | None, ...]:
    return ((desc.input_tensor or desc.output_gradient_tensor).sizes[0],)


def _batch_of_regions(desc: Any) -> tuple[int | None, ...]:
    return (desc.input_tensor.sizes[0], None, None, None, None)


_INDEX_SLOTS: dict[type[OperatorDesc], _IndexSlot] = {
    dml.GatherOperatorDesc: _IndexSlot("indices", _along_axis),
    dml.GatherElementsOperatorDesc: _IndexSlot("indices", _along_axis),
    dml.GatherNdOperatorDesc: _IndexSlot("indices", _coordinates),
    dml.GatherNd1OperatorDesc: _IndexSlot("indices", _coordinates),
    dml.RoiPoolingOperatorDesc: _IndexSlot("roi", _batch_of_regions),
    dml.RoiAlignOperatorDesc: _IndexSlot("batch_indices", _batch),
    dml.RoiAlign1OperatorDesc: _IndexSlot("batch_indices", _batch),
    dml.ScatterElementsOperatorDesc: _IndexSlot("indices", _along_axis, writes=True),
    dml.ScatterNdOperatorDesc: _IndexSlot("indices", _coordinates, writes=True),
    dml.MaxUnpoolingOperatorDesc: _IndexSlot("indices", _whole_output, writes=True),
    dml.RoiAlignGradOperatorDesc: _IndexSlot("batch_indices", _gradient_batch, writes=True),
}
"""ONE_HOT, REVERSE_SUBSEQUENCES, recurrent networks and attention compare their indices and lengths, or take them
modulo a size: vectors with such ones outside get the same answers of DirectML as of other backends."""


def has_indices(desc: OperatorDesc) -> str | None:
    """The name of the input whose indices must lie inside of an axis; None if the operator has none."""
    rule = _INDEX_SLOTS.get(type(desc))
    return None if rule is None else rule.slot


def limited(desc: OperatorDesc, inputs: Sequence[memoryview]) -> Sequence[memoryview]:
    """The inputs, those with indices changed where one is outside or counts from the end; the others as they are.

    Args:
        desc: the operator.
        inputs: the bytes of its input tensors, in binding order; they are not written to.

    Raises:
        InvalidDescriptor: an index is outside, and elements are written; the code is `index-out-of-bounds`.
    """
    rule = _INDEX_SLOTS.get(type(desc))
    if rule is None:
        return inputs
    place = next(at for at, slot in enumerate(desc.inputs) if slot.name == rule.slot)
    layout, lengths = desc.inputs[place].layout, rule.lengths(desc)
    values = layout.view(inputs[place])
    nearest = _nearest(values, lengths)
    if nearest.tobytes() == values.tobytes():  # NaN is equal to itself
        return inputs
    if rule.writes:
        _refuse_outside(desc, rule.slot, values, lengths)
    changed = _written(desc, rule.slot, layout, inputs[place], nearest)
    return [*inputs[:place], changed, *inputs[place + 1 :]]


def _nearest(values: Any, lengths: Sequence[int | None]) -> Any:
    """The indices counted from the begin of their axis, and the nearest inside; an array of the same type."""
    found = values.copy()
    for at, length in enumerate(lengths):
        if length is not None:
            column = (..., slice(at, at + 1)) if len(lengths) > 1 else ...
            found[column] = _nearest_of_axis(values[column], length)
    return found


def _nearest_of_axis(values: Any, length: int) -> Any:
    last = length - 1
    if values.dtype.kind == "f":
        most = values.dtype.type(last)
        if most > last:  # rounded up
            most = np.nextafter(most, values.dtype.type(0))
        return np.minimum(np.fmax(values, values.dtype.type(0)), most)  # NaN is 0
    if values.dtype.kind == "u":
        return np.minimum(values, min(last, int(np.iinfo(values.dtype).max)))
    wide = values.astype(np.int64)
    wide[wide < 0] += length
    return np.minimum(np.maximum(wide, 0), last)


def _refuse_outside(desc: OperatorDesc, slot: str, values: Any, lengths: Sequence[int | None]) -> None:
    """Refuse the first index that neither lies inside nor counts from the end to an element inside."""
    for at, length in enumerate(lengths):
        if length is None:
            continue
        column = values[..., at : at + 1] if len(lengths) > 1 else values
        signed = values.dtype.kind == "i"
        outside = column >= length if length <= np.iinfo(values.dtype).max else np.zeros(column.shape, bool)
        outside |= column < -length if signed else False
        if outside.any():
            where = [int(entry) for entry in np.argwhere(outside)[0]]
            index = int(column[tuple(where)])
            where[-1] += at if len(lengths) > 1 else 0
            written = f"{slot}[{', '.join(map(str, where))}]"
            reach = f"{-length if signed else 0} to {length - 1}"
            message = (
                f"{written} is {index}, but there are {counted(length, 'element')}; valid here: {reach}; DirectML "
                "would write outside of the tensor, and other backends leave such an element out"
            )
            source = f"DML_{desc.name}_OPERATOR_DESC leaves an index outside undefined"
            path = ("inputs", slot, *where)
            raise InvalidDescriptor.of([Violation("index-out-of-bounds", path, message, index, reach, source)])


def _written(desc: OperatorDesc, slot: str, layout: Layout, memory: memoryview, values: Any) -> memoryview:
    """A copy of a tensor's bytes with these elements.

    Raises:
        InvalidDescriptor: two elements share their bytes, and would not be equal any more.
    """
    changed = bytearray(memory)
    flat = np.frombuffer(changed, values.dtype, len(changed) // values.itemsize)
    view = as_strided(flat, values.shape, [stride * values.itemsize for stride in layout.strides])
    view[...] = values
    if view.tobytes() != values.tobytes():
        message = f"elements of {slot} share memory, and one of them is an index outside its axis"
        source = f"DML_{desc.name}_OPERATOR_DESC leaves an index outside undefined"
        path = ("inputs", slot)
        raise InvalidDescriptor.of([Violation("index-out-of-bounds", path, message, None, "indices inside", source)])
    return memoryview(changed)
