"""ONNX's operators that move elements, as copies and by indices; a new one is a row here and a rule in the contract."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.descriptors import PaddingMode
from tensorpost.onnx import OnnxNode
from tensorpost.onnx.parameters import (
    AxisParameters,
    BatchParameters,
    BlockParameters,
    ConstantParameters,
    ExpandParameters,
    PadParameters,
    ReductionParameters,
    ScatterParameters,
    SequenceParameters,
    SliceParameters,
    TransposeParameters,
)

from ..forms import Array, Box, BoxFunction, Copies, Copy, IndexRange, Loop
from .depth_space import depth_space_copies
from .generator import sequence
from .indexing import BLOCK, along, array_parts, element_scatters, gather_elements, nonnegative, scatter_scratch
from .movement import pad
from .registry import form_of_node


def _copies(node: OnnxNode, *loops: Loop, start: Sequence[int] | None = None) -> Copies:
    """One copy of the only input by these loops, of which those of one iteration are left out."""
    source, target = len(node.input.shape), len(node.output.shape)
    if 0 in node.output.shape:
        return Copies((source,), ((),))
    kept = tuple([loop for loop in loops if loop.extent > 1])
    return Copies((source,), ((Copy(0, tuple(start or (0,) * source), (0,) * target, kept),),))


@form_of_node("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
def packed_form(node: OnnxNode) -> Copies:
    """All elements in their order, whatever the shapes."""
    shape = node.output.shape
    return Copies((len(shape),), ((),)) if 0 in shape else Copies.of_box(shape, input_sizes=(shape,))


@form_of_node("Transpose")
def transpose_form(node: OnnxNode) -> Copies:
    """Axis i of the output is axis perm[i] of the input."""
    perm = node.parameters_as(TransposeParameters).perm
    return _copies(node, *[Loop(node.input.shape[axis], (to, 1), ((axis, 1),)) for to, axis in enumerate(perm)])


@form_of_node("Expand")
def expand_form(node: OnnxNode) -> Copies:
    """Copies that repeat the element along axes of size 1."""
    aligned, shape = node.parameters_as(ExpandParameters).aligned, node.output.shape
    loops = [Loop(size, (axis, 1), ((axis, int(aligned[axis] != 1)),)) for axis, size in enumerate(shape) if size > 1]
    zeros = (0,) * len(shape)
    copies = () if 0 in shape else (Copy(0, zeros, zeros, tuple(loops)),)
    return Copies((len(shape),), (copies,), input_sizes=(aligned,))


@form_of_node("Slice")
def slice_form(node: OnnxNode) -> Copies:
    """`output[c] = input[start + c * step]`."""
    window = node.parameters_as(SliceParameters)
    sizes = zip(node.output.shape, window.steps, strict=True)
    loops = [Loop(size, (axis, 1), ((axis, step),)) for axis, (size, step) in enumerate(sizes)]
    return _copies(node, *loops, start=window.start)


@form_of_node("Concat")
def concat_form(node: OnnxNode) -> Copies:
    """Every input is a copy, and each begins where the one before ends."""
    axis = node.parameters_as(AxisParameters).axis
    begin, copies = 0, list[Copy]()
    for index, (_, tensor) in enumerate(node.tensors):
        if 0 not in tensor.shape:
            copies.append(Copy.of_box(tensor.shape, target_start=_at(tensor.shape, axis, begin), input=index))
        begin += tensor.shape[axis]
    return Copies(tuple([len(tensor.shape) for _, tensor in node.tensors]), (tuple(copies),))


@form_of_node("Split")
def split_form(node: OnnxNode) -> Copies:
    """Every output is a copy of a part of the input."""
    axis = node.parameters_as(AxisParameters).axis
    begin, parts = 0, list[tuple[Copy, ...]]()
    for _, tensor in node.results:
        start = _at(tensor.shape, axis, begin)
        parts.append(() if 0 in tensor.shape else (Copy.of_box(tensor.shape, source_start=start),))
        begin += tensor.shape[axis]
    return Copies((len(node.input.shape),), tuple(parts))


def _at(shape: tuple[int, ...], axis: int, place: int) -> tuple[int, ...]:
    return tuple([place if at == axis else 0 for at in range(len(shape))])


@form_of_node("DepthToSpace", "SpaceToDepth")
def depth_space_form(node: OnnxNode) -> Copies:
    """Channels become blocks or the reverse: numbered (row, column, channel) in DCR, (channel, row, column) in CRD."""
    parameters, to_depth = node.parameters_as(BlockParameters), node.op_type == "SpaceToDepth"
    space, depth = (node.input, node.output) if to_depth else (node.output, node.input)
    channels_first = parameters.mode == "CRD"
    return depth_space_copies(
        space.shape, depth.shape, parameters.block, to_depth=to_depth, channels_first=channels_first
    )


_PADDING_MODES = {"reflect": PaddingMode.REFLECTION, "edge": PaddingMode.EDGE, "wrap": PaddingMode.WRAP}


@form_of_node("Pad")
def pad_form(node: OnnxNode) -> Copies | BoxFunction:
    """Constants lie around a copy of what is not cut off; other modes take elements by their indices."""
    parameters, shape, output = node.parameters_as(PadParameters), node.input.shape, node.output.shape
    before = parameters.before
    if parameters.mode != "constant":
        mode = _PADDING_MODES[parameters.mode]
        axes = tuple(zip(shape, before, output, strict=True))
        return BoxFunction(pad, 1, (("axes", axes), ("mode", mode)), len(shape) + 1, of_bits=True)
    start = [max(0, -low) for low in before]
    target = [max(0, low) for low in before]
    sizes = [min(size - first, whole - at) for size, first, whole, at in zip(shape, start, output, target, strict=True)]
    copy = () if min(sizes, default=1) < 1 else (Copy.of_box(sizes, source_start=start, target_start=target),)
    return Copies((len(shape),), (copy,), parameters.value)


@form_of_node("ConstantOfShape")
def constant_form(node: OnnxNode) -> Copies:
    """Copies of nothing over the value."""
    return Copies((), ((),), node.parameters_as(ConstantParameters).value)


@form_of_node("Shape")
def shape_form(node: OnnxNode) -> BoxFunction:
    """The sizes of the input, whose elements are not read."""
    return BoxFunction(_sizes, 1, node.meaning.named())


def _sizes(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, values: tuple[int, ...]) -> None:
    del inputs
    out[...] = xp.asarray(values[slice(*box[0])], "int64")


@form_of_node("Size")
def size_form(node: OnnxNode) -> BoxFunction:
    """The number of the input's elements, which are not read."""
    return BoxFunction(_size, 1, node.meaning.named())


def _size(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, value: int) -> None:
    del xp, inputs, box
    out[...] = value


@form_of_node("Range")
def range_form(node: OnnxNode) -> BoxFunction:
    """`start + k * delta`, computed in float64 or modulo 2^64, and rounded once."""
    return BoxFunction(sequence, 0, (("strides", (1,)), *node.meaning.named()))


# ---- by index --------------------------------------------------------------------------------------------------------
# Indices are checked before anything is computed (`IndexRange`). The functions clip them all the same: memory that a
# caller shares may change after the check, and no index may lead outside of an array.


def _index_range(node: OnnxNode) -> IndexRange:
    """The range of indices along the node's axis."""
    axis = node.parameters_as(AxisParameters).axis
    return IndexRange(node.schema.name, 1, (axis,), (node.input.shape[axis],))


def _tuple_range(node: OnnxNode, batch: int = 0) -> IndexRange | None:
    """The ranges of index tuples; None for tuples of no numbers."""
    axes = tuple(range(batch, batch + node.tensors[1][1].shape[-1]))
    lengths = tuple([node.input.shape[axis] for axis in axes])
    return IndexRange(node.schema.name, 1, axes, lengths) if axes else None


@form_of_node("Gather")
def gather_form(node: OnnxNode) -> BoxFunction:
    """`output[a, k, b] = data[a, indices[k], b]`."""
    return BoxFunction(_gather, 2, node.meaning.named(), 2, index_range=_index_range(node), of_bits=True)


def _gather(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, axis: int) -> None:
    x, indices = inputs
    part = [slice(*span) for span in box]
    trailing = part[axis + indices.ndim :]
    picked = nonnegative(xp, indices[(*part[axis : axis + indices.ndim], ...)], x.shape[axis])
    source = x[(*part[:axis], slice(None), *trailing)]
    out[...] = xp.take(source, xp.clip(picked, 0, x.shape[axis] - 1).reshape(-1), axis=axis).reshape(out.shape)


@form_of_node("GatherElements")
def gather_elements_form(node: OnnxNode) -> BoxFunction:
    """`output[c] = data[c with c[axis] = indices[c]]`."""
    return BoxFunction(
        gather_elements, 2, node.meaning.named(), 2, block=BLOCK, index_range=_index_range(node), of_bits=True
    )


def _work(node: OnnxNode) -> int:
    return sum([tensor.element_count for _, tensor in (*node.tensors, *node.results)])


@form_of_node("GatherND")
def gather_nd_form(node: OnnxNode) -> Array:
    """`output[b, k] = data[b][indices[b, k]]`, where indices hold index tuples."""
    scratch = 16 * node.tensors[1][1].element_count
    index_range = _tuple_range(node, node.parameters_as(BatchParameters).batch)
    return Array(_gather_nd, 2, _work(node), node.meaning.named(), scratch, index_range=index_range, of_bits=True)


def _gather_nd(xp: ModuleType, x: Any, indices: Any, batch: int) -> Any:
    shape, count, batches = x.shape, indices.shape[-1], math.prod(x.shape[:batch])
    output = (*indices.shape[:-1], *shape[batch + count :])
    if 0 in output:
        return xp.empty(output, x.dtype)
    rows = indices.reshape(batches, -1, count)
    places = [_inside(xp, rows[..., at], shape[batch + at]) for at in range(count)]
    first = xp.broadcast_to(xp.arange(batches)[:, None], rows.shape[:2])
    return x.reshape(batches, *shape[batch:])[(first, *places)].reshape(output)


def _inside(xp: ModuleType, indices: Any, length: int) -> Any:
    return xp.clip(nonnegative(xp, indices, length), 0, length - 1)


@form_of_node("Scatter", "ScatterElements")
def scatter_form(node: OnnxNode) -> Array:
    """The data, then `output[c with c[axis] = indices[c]]` is the update, or takes it in by the reduction."""
    parameters = node.parameters_as(ScatterParameters)
    scratch = scatter_scratch(node.tensors[1][1].shape) + _combined_bytes(node, parameters.reduction)
    library, index_range = _combining_library(parameters.reduction), _index_range(node)
    moves = parameters.reduction == "none"
    return Array(_scatter, 3, _work(node), parameters.named(), scratch, library, index_range=index_range, of_bits=moves)


def _scatter(xp: ModuleType, x: Any, indices: Any, updates: Any, axis: int, reduction: str) -> Any:
    output = _combinable(x, reduction)
    for target, places, values in element_scatters(xp, output, indices, updates, axis):
        _update(target, places, values, reduction)
    return output.astype(x.dtype, copy=False)


@form_of_node("ScatterND")
def scatter_nd_form(node: OnnxNode) -> Array:
    """The data, then `output[indices[k]]` is the update, or takes it in by the reduction."""
    parameters = node.parameters_as(ReductionParameters)
    scratch = 24 * node.tensors[1][1].element_count + _combined_bytes(node, parameters.reduction)
    library, index_range = _combining_library(parameters.reduction), _tuple_range(node)
    named, moves = parameters.named(), parameters.reduction == "none"
    return Array(_scatter_nd, 3, _work(node), named, scratch, library, index_range=index_range, of_bits=moves)


def _scatter_nd(xp: ModuleType, x: Any, indices: Any, updates: Any, reduction: str) -> Any:
    if not indices.size and indices.shape[-1]:
        return x
    output = _combinable(x, reduction)
    length = indices.shape[-1]
    target = output if length else output[None]  # tuples of no numbers name the whole tensor
    for part in array_parts(xp, indices.shape[:-1], math.prod(x.shape[length:])):
        picked = indices[part]
        places = tuple([_inside(xp, picked[..., at], x.shape[at]) for at in range(length)])
        _update(target, places or (xp.zeros(picked.shape[:-1], "int64"),), updates[part], reduction)
    return output.astype(x.dtype, copy=False)


def _combining_library(reduction: str) -> str:
    """NumPy, if values that meet are combined: CuPy has no product of this kind."""
    return "" if reduction == "none" else "numpy"


def _combined_bytes(node: OnnxNode, reduction: str) -> int:
    """Bytes of what halves are combined in: the data, and the updates at most, as float32."""
    (_, data), _, (_, updates) = node.tensors
    halves = reduction != "none" and data.row.numpy_name in ("float16", "bfloat16")
    return 4 * (data.element_count + updates.element_count) if halves else 0


def _combinable(x: Any, reduction: str) -> Any:
    """A copy that takes updates in: of float32 for halves whose updates are combined."""
    halves = reduction != "none" and x.dtype.name in ("float16", "bfloat16")
    return x.astype("float32" if halves else x.dtype)


def _update(target: Any, places: tuple[Any, ...], values: Any, reduction: str) -> None:
    """Set elements, or combine them with all values that meet there."""
    if reduction == "none":
        target[places] = values
    else:
        function = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction]
        function.at(target, places, values.astype(target.dtype))


@form_of_node("OneHot")
def one_hot_form(node: OnnxNode) -> BoxFunction:
    """The second value where the coordinate along the axis is the index, else the first."""
    return BoxFunction(_one_hot, 2, node.meaning.named(), block=BLOCK, of_bits=True)


def _one_hot(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, axis: int, depth: int) -> None:
    indices, values = inputs
    others = [slice(*span) for at, span in enumerate(box) if at != axis]
    picked = nonnegative(xp, indices[(*others, ...)].astype("int64"), depth)
    hot = along(xp, box[axis], axis, len(box)) == xp.expand_dims(picked, axis)
    out[...] = xp.where(hot, values[1], values[0])


@form_of_node("ReverseSequence")
def reverse_form(node: OnnxNode) -> BoxFunction:
    """The first elements of each entry of the batch reversed along the time axis, as many as its length says."""
    time = node.parameters_as(SequenceParameters).time
    lengths = IndexRange(node.schema.name, 1, (time,), (node.input.shape[time],), "sequence_lens")
    return BoxFunction(_reverse, 2, node.meaning.named(), 2, block=BLOCK, index_range=lengths, of_bits=True)


def _reverse(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, time: int) -> None:
    x, lengths = inputs
    part, rank = [slice(*span) for span in box], len(box)
    count = xp.clip(lengths[part[1 - time]], 0, x.shape[time])
    count = count.reshape([-1 if axis == 1 - time else 1 for axis in range(rank)])
    part[time] = slice(None)
    place = along(xp, box[time], time, rank)
    source = xp.where(place < count, count - 1 - place, place)
    out[...] = xp.take_along_axis(x[tuple(part)], xp.broadcast_to(source, out.shape), time)


@form_of_node("EyeLike")
def eye_form(node: OnnxNode) -> BoxFunction:
    """1 on the k-th diagonal; the input's elements are not read."""
    return BoxFunction(_eye, 1, node.meaning.named())


def _eye(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, k: int) -> None:
    del inputs
    rows, columns = [along(xp, span, axis, 2) for axis, span in enumerate(box)]
    out[...] = columns - rows == k


@form_of_node("Trilu")
def triangle_form(node: OnnxNode) -> BoxFunction:
    """The elements on the k-th diagonal and above it, or below it; 0 elsewhere."""
    return BoxFunction(_triangle, 1, node.meaning.named(), block=BLOCK, of_bits=True)


def _triangle(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, k: int, upper: bool) -> None:
    rank = len(box)
    rows, columns = [along(xp, box[axis], axis, rank) for axis in (rank - 2, rank - 1)]
    kept = columns - rows >= k if upper else columns - rows <= k
    part = inputs[0][tuple([slice(*span) for span in box])]
    out[...] = xp.where(kept, part, part.dtype.type(0))
