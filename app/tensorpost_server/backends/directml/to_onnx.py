"""Which ONNX node computes a plan exactly on DirectML, or why none does: one row per operator.

A row is a function from a descriptor to a node whose DirectML kernel in ONNX Runtime is the same operator with the same
attributes. A backend that is asked by name refuses what has no row; `auto` takes another backend.

* Tensors are packed first, so a row sees types and sizes only.
* Operators that move elements move them as unsigned integers of their size: every bit arrives.
* An ONNX Resize goes by the descriptor that `lower` finds for it, and only if that is exact.

Sources: the ONNX operators' text; the DML_*_OPERATOR_DESC pages; ONNX Runtime's DirectML provider, whose Resize becomes
`x = (o - OutputPixelOffset) / Scale - InputPixelOffset` on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tensorpost import descriptors as dml
from tensorpost.datatypes import DataType, data_type
from tensorpost.descriptors import AxisDirection, InterpolationMode, OperatorDesc
from tensorpost.descriptors.catalogue import pascal_case
from tensorpost.descriptors.product import convolved
from tensorpost.onnx import OnnxNode, Tiling, Verdict, lower
from tensorpost.operation import Slot

from ...planning import Plan
from .c_structs import scalar_bits
from .model import Attribute, Constant, Node, TensorType

__all__ = ["to_onnx"]

MOST_TILE_DIMENSIONS = 8  # DML_TENSOR_DIMENSION_COUNT_MAX1
MOST_RESIZE_DIMENSIONS = 4  # the Resample family's tables
MOST_ELEMENTS = (1 << 32) - 1  # of a buffer tensor
LONGEST_RESIZED_AXIS = 1 << 24  # beyond it a shader's float32 skips whole numbers

_CARRIERS = {1: ("uint8", 1), 2: ("uint16", 1), 4: ("uint32", 1), 8: ("uint64", 1), 16: ("uint64", 2)}
"""Item size to the type that carries the bits, and how many of it make an element."""


class _Refused(Exception):  # ends a row; `to_onnx` returns its sentence
    pass


_ROWS: dict[str, Callable[[Any], Node]] = {}


def _row(*operators: str) -> Callable[[Callable[[Any], Node]], Callable[[Any], Node]]:
    def register(make: Callable[[Any], Node]) -> Callable[[Any], Node]:
        _ROWS.update(dict.fromkeys(operators, make))
        return make

    return register


@lru_cache(maxsize=1024)
def to_onnx(plan: Plan) -> Node | str:
    """The node that computes the plan's packed outputs from its packed inputs, or a sentence why none does.

    The node's tensors are the plan's, in order. One that has other bytes than the plan's is to be converted by value.
    The outputs must have elements: no node is needed for empty ones.
    """
    operation: Any = plan.operation
    try:
        if any(math.prod(slot.layout.sizes) > MOST_ELEMENTS for slot in (*plan.inputs, *plan.outputs)):
            raise _Refused(f"DirectML's tensors have at most {MOST_ELEMENTS:,} elements")
        if isinstance(operation, OnnxNode):
            if isinstance(operation.meaning, Tiling):
                return _tile(operation)
            operation = _lowered(operation)
        row = _ROWS.get(operation.name)
        if row is None:
            raise _Refused(f"no ONNX node is known that computes {operation.name}")
        for name in ("scale_bias", "fused_activation"):
            if getattr(operation, name, None) is not None:
                raise _Refused(f"no ONNX node has a {pascal_case(name)}")
        return row(operation)
    except _Refused as reason:
        return str(reason)


def _lowered(node: OnnxNode) -> OperatorDesc:
    lowering = lower(node)
    if lowering.verdict is not Verdict.EXACT or not isinstance(lowering.descriptor, OperatorDesc):
        raise _Refused(f"in DirectML it is {lowering.verdict.value}: {lowering.reason}")
    return lowering.descriptor


def _typed(slot: Slot) -> TensorType:
    return TensorType(slot.layout.data_type, slot.layout.sizes)


def _carried(slot: Slot, sizes: Sequence[int] | None = None) -> TensorType:
    """The tensor's bits as unsigned integers, in other sizes of as many elements if these are given."""
    name, count = _CARRIERS[slot.layout.data_type.item_size]
    sizes = slot.layout.sizes if sizes is None else tuple(sizes)
    return TensorType(data_type(name), (*sizes, count) if count > 1 else tuple(sizes))


def _integers(*entries: int) -> Constant:
    return Constant.vector("int64", entries)


def _movement(
    desc: OperatorDesc, op_type: str, opset: int, *constants: Constant | None, **attributes: Attribute
) -> Node:
    """A node that moves elements, whose constants come after all tensors."""
    inputs = (*map(_carried, desc.inputs), *constants)
    return Node(op_type, opset, inputs, tuple(map(_carried, desc.outputs)), tuple(attributes.items()))


# -- element-wise operators: the sizes do not matter, only how many elements there are --

_ELEMENT_WISE = {
    "ELEMENT_WISE_IDENTITY": ("Identity", 14), "ELEMENT_WISE_ABS": ("Abs", 13), "ELEMENT_WISE_EXP": ("Exp", 13),
    "ELEMENT_WISE_ADD": ("Add", 14), "ELEMENT_WISE_SUBTRACT": ("Sub", 14), "ELEMENT_WISE_MULTIPLY": ("Mul", 14),
    "ELEMENT_WISE_DIVIDE": ("Div", 14), "ELEMENT_WISE_MAX": ("Max", 13), "ELEMENT_WISE_MIN": ("Min", 13),
    "ELEMENT_WISE_IF": ("Where", 16), "ELEMENT_WISE_CLIP": ("Clip", 13), "CAST": ("Cast", 13),
    "ACTIVATION_RELU": ("Relu", 14), "ACTIVATION_GELU": ("Gelu", 20),
}  # fmt: skip


@_row(*_ELEMENT_WISE)
def _element_wise(desc: OperatorDesc) -> Node:
    op_type, opset = _ELEMENT_WISE[desc.name]
    inputs: list[TensorType | Constant | None] = [_flat(slot) for slot in desc.inputs]
    outputs = tuple(map(_flat, desc.outputs))
    made, integer = outputs[0].data_type, outputs[0].data_type.dtype.kind in "iu"
    attributes: list[tuple[str, Attribute]] = []
    match desc:
        case dml.ElementWiseDivideOperatorDesc() if integer:
            raise _Refused("ONNX leaves open what an integer divided by 0 is")
        case dml.ElementWiseIfOperatorDesc():
            # Elements are taken bit for bit, so they travel as integers, of a type that ONNX Runtime's CPU has too.
            carrier = data_type({1: "uint8", 2: "uint16", 4: "int32", 8: "int64"}[made.item_size])
            moved = TensorType(carrier, outputs[0].shape)
            inputs[:], outputs = (TensorType(data_type("bool"), moved.shape), moved, moved), (moved,)
        case dml.ElementWiseClipOperatorDesc():
            if desc.min > desc.max:
                raise _Refused("ONNX leaves open which bound wins where Min is larger than Max")
            inputs += [_bound(bound, made) for bound in (desc.min, desc.max)]
        case dml.CastOperatorDesc():
            if integer and desc.input_tensor.dtype.kind == "f":
                raise _Refused("ONNX leaves open what numbers become that the integer type does not hold")
            attributes.append(("to", made.onnx_code))
        case _:
            pass
    return Node(op_type, opset, tuple(inputs), outputs, tuple(attributes))


def _flat(slot: Slot) -> TensorType:
    return TensorType(slot.layout.data_type, (math.prod(slot.layout.sizes),))


def _bound(bound: float, row: DataType) -> Constant:
    """A bound of Clip as a scalar of the tensor's type: truncated and saturated for integers."""
    if row.dtype.kind in "iu":
        limits = np.iinfo(row.dtype)
        return Constant(row, (), (min(max(int(bound), int(limits.min)), int(limits.max)),))
    with np.errstate(over="ignore"):
        return Constant(row, (), (float(np.array(bound, row.dtype)),))


# -- movement and indexing --


@_row("TILE")
def _tile(operation: dml.TileOperatorDesc | OnnxNode) -> Node:
    """Tile of either dialect."""
    source, target = operation.inputs[0], operation.outputs[0]
    if source.layout.data_type.item_size not in _CARRIERS:
        raise _Refused("DirectML has no strings")
    given, made = (_carried(slot, slot.layout.sizes or (1,)) for slot in (source, target))
    if len(given.shape) > MOST_TILE_DIMENSIONS:
        raise _Refused(
            f"DirectML's Tile takes {MOST_TILE_DIMENSIONS} dimensions; this one would have {len(given.shape)}"
        )
    repeats = [out // size for out, size in zip(made.shape, given.shape, strict=True)]
    return Node("Tile", 13, (given, _integers(*repeats)), (made,))


@_row("SLICE1")
def _slice(desc: dml.Slice1OperatorDesc) -> Node:
    starts, ends = list[int](), list[int]()
    windows = zip(desc.input_window_offsets, desc.input_window_sizes, desc.input_window_strides, strict=True)
    for (offset, size, step), out, length in zip(
        windows, desc.output_tensor.sizes, desc.input_tensor.sizes, strict=True
    ):
        starts.append(offset if step > 0 else offset + size - 1)
        end = starts[-1] + (out - 1) * step + (1 if step > 0 else -1)
        ends.append(end if end >= 0 else -length - 1)  # -1 would be the last element
    axes = _integers(*range(len(starts)))
    return _movement(
        desc, "Slice", 13, _integers(*starts), _integers(*ends), axes, _integers(*desc.input_window_strides)
    )


@_row("JOIN")
def _join(desc: dml.JoinOperatorDesc) -> Node:
    return _movement(desc, "Concat", 13, axis=desc.axis)


@_row("SPLIT")
def _split(desc: dml.SplitOperatorDesc) -> Node:
    return _movement(
        desc, "Split", 13, _integers(*[part.sizes[desc.axis] for part in desc.output_tensors]), axis=desc.axis
    )


@_row("PADDING1")
def _pad(desc: dml.Padding1OperatorDesc) -> Node:
    modes = {"CONSTANT": "constant", "EDGE": "edge", "REFLECTION": "reflect", "WRAP": "wrap"}
    mode, pads = modes.get(desc.padding_mode.name), (*desc.start_padding, *desc.end_padding)
    if mode is None:
        raise _Refused(f"ONNX's Pad has no mode {desc.padding_mode.name}")
    shortest = [size - (mode == "reflect") for size in desc.input_tensor.sizes] * 2
    if mode in ("reflect", "wrap") and any(pad > most for pad, most in zip(pads, shortest, strict=True)):
        raise _Refused(f"ONNX leaves open how {mode} goes on beyond the input's length")
    constants = [_integers(*pads)]
    if mode == "constant":
        carrier = _carried(desc.inputs[0]).data_type
        constants.append(Constant(carrier, (), (scalar_bits(desc.padding_value, desc.padding_value_data_type),)))
    return _movement(desc, "Pad", 19 if mode == "wrap" else 13, *constants, mode=mode)


@_row("GATHER")
def _gather(desc: dml.GatherOperatorDesc) -> Node:
    source, indices = desc.inputs
    counted = indices.layout.sizes[len(indices.layout.sizes) - desc.index_dimensions :]
    sizes = source.layout.sizes
    made = _carried(desc.outputs[0], (*sizes[: desc.axis], *counted, *sizes[desc.axis + 1 :]))
    return Node("Gather", 13, (_carried(source), _index(indices, counted)), (made,), (("axis", desc.axis),))


@_row("SCATTER_ELEMENTS")
def _scatter(desc: dml.ScatterElementsOperatorDesc) -> Node:
    source, indices, updates = desc.inputs
    inputs = (_carried(source), _index(indices, indices.layout.sizes), _carried(updates))
    return Node("ScatterElements", 13, inputs, (_carried(desc.outputs[0]),), (("axis", desc.axis),))


def _index(slot: Slot, sizes: tuple[int, ...]) -> TensorType:
    """Indices as ONNX takes them: INT32 and INT64 as they are, UINT32 by value as int64."""
    name = slot.layout.data_type.numpy_name
    if name == "uint64":
        raise _Refused("ONNX takes no indices of type UINT64")
    return TensorType(data_type("int32" if name == "int32" else "int64"), sizes)


# -- reductions and selections --

_REDUCTIONS = {
    "AVERAGE": "ReduceMean", "L1": "ReduceL1", "L2": "ReduceL2", "LOG_SUM": "ReduceLogSum",
    "LOG_SUM_EXP": "ReduceLogSumExp", "MAX": "ReduceMax", "MIN": "ReduceMin", "MULTIPLY": "ReduceProd",
    "SUM": "ReduceSum", "SUM_SQUARE": "ReduceSumSquare", "ARGMAX": "ArgMax", "ARGMIN": "ArgMin",
}  # fmt: skip


@_row("REDUCE")
def _reduce(desc: dml.ReduceOperatorDesc) -> Node:
    op_type, source, target = _REDUCTIONS[desc.function.name], _typed(desc.inputs[0]), _typed(desc.outputs[0])
    keep: tuple[str, Attribute] = ("keepdims", 1)
    if not desc.function.is_index:
        return Node(op_type, 18, (source, _integers(*desc.axes)), (target,), (keep,))
    axis, *others = desc.axes
    if others:
        raise _Refused(f"ONNX's {op_type} takes one axis")
    made = TensorType(data_type("int64"), target.shape)
    return Node(op_type, 13, (source,), (made,), (("axis", axis), keep))


@_row("TOP_K1")
def _top_k(desc: dml.TopK1OperatorDesc) -> Node:
    values, positions = map(_typed, desc.outputs)
    outputs = (values, TensorType(data_type("int64"), positions.shape))
    largest = int(desc.axis_direction is AxisDirection.DECREASING)
    return Node(
        "TopK", 11, (_typed(desc.inputs[0]), _integers(desc.k)), outputs, (("axis", desc.axis), ("largest", largest))
    )


# -- products --


@_row("GEMM")
def _gemm(desc: dml.GemmOperatorDesc) -> Node:
    tensors, made = [_typed(slot) for slot in desc.inputs], _typed(desc.outputs[0])
    if max(desc.trans_a, desc.trans_b) == 0 and desc.alpha == 1 and desc.c_tensor is None:
        return Node("MatMul", 13, tuple(tensors), (made,))
    if any(size != 1 for size in made.shape[:-2]):
        raise _Refused("ONNX's Gemm has two dimensions, and its MatMul no transposes, no factors and no C")
    matrices = [TensorType(tensor.data_type, tensor.shape[-2:]) for tensor in (*tensors, made)]
    attributes = (
        ("alpha", desc.alpha),
        ("beta", desc.beta),
        ("transA", int(desc.trans_a)),
        ("transB", int(desc.trans_b)),
    )
    return Node("Gemm", 13, tuple(matrices[:-1]), (matrices[-1],), attributes)


@_row("CONVOLUTION")
def _convolution(desc: dml.ConvolutionOperatorDesc) -> Node:
    inputs, made = [_typed(slot) for slot in desc.inputs], _typed(desc.outputs[0])
    if desc.mode.name != "CROSS_CORRELATION":
        raise _Refused("ONNX's convolutions do not turn the filter round")
    if len(inputs) > 2:
        inputs[2] = TensorType(inputs[2].data_type, inputs[2].shape[1:2])
    attributes: list[tuple[str, Attribute]] = [
        ("dilations", desc.dilations), ("group", desc.group_count), ("pads", (*desc.start_padding, *desc.end_padding)),
        ("strides", desc.strides),
    ]  # fmt: skip
    backward = desc.direction.name == "BACKWARD"
    arrays = (desc.strides, desc.dilations, desc.start_padding, desc.end_padding, desc.output_padding)
    sizes = convolved(inputs[0].shape[2:], inputs[1].shape[2:], arrays, backward=backward)
    if list(made.shape[2:]) != sizes or any(desc.output_padding):
        raise _Refused("ONNX's convolutions append no zeros, and have no output that is larger than the products reach")
    return Node("ConvTranspose" if backward else "Conv", 11, tuple(inputs), (made,), tuple(attributes))


# -- Resize: one coordinate mode and one rounding for all axes that are resized, and floor(length * scale) elements --

_RESIZE_TYPES = ("float32", "float16", "int8", "uint8")
_COORDINATES = {-0.5: ("half_pixel", 0.5), 0.0: ("asymmetric", 0.0)}
"""OutputPixelOffset to coordinate_transformation_mode and the InputPixelOffset that the mode has."""
_ROUNDINGS = {None: "half-up", AxisDirection.DECREASING: "floor", AxisDirection.INCREASING: "ceil"}
"""RoundingDirection, None for operators without it, to what nearest does with x."""
_NEAREST_MODES = {
    ("half-up", 0.0): "round_prefer_ceil", ("half-up", -0.5): "floor", ("floor", 0.0): "floor",
    ("floor", 0.5): "round_prefer_ceil", ("ceil", 0.0): "ceil", ("ceil", -0.5): "round_prefer_floor",
}  # fmt: skip
"""Rounding, and how much x is larger than the coordinate mode's, to nearest_mode."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of a Resize; `scale` is None for an axis that is copied."""

    size: int
    length: int
    scale: float | None


@_row("UPSAMPLE_2D", "RESAMPLE", "RESAMPLE1", "RESAMPLE2", "RESAMPLE3")
def _resize(desc: Any) -> Node:
    source, target = desc.inputs[0].layout, desc.outputs[0].layout
    if source.data_type.numpy_name not in _RESIZE_TYPES:
        raise _Refused(f"DirectML resamples {', '.join(_RESIZE_TYPES)}, not {source.data_type.numpy_name}")
    linear = desc.interpolation_mode is InterpolationMode.LINEAR
    rounding = "linear" if linear else _ROUNDINGS[getattr(desc, "rounding_direction", None)]
    filtered = linear and getattr(desc, "antialiased", False)
    input_offsets = getattr(desc, "input_pixel_offsets", (0.5,) * len(source.sizes))
    output_offsets = getattr(desc, "output_pixel_offsets", (-0.5,) * len(source.sizes))
    axes: list[_Axis] = []
    modes: set[tuple[str, str]] = set()
    for size, length, scale, i, o in zip(
        source.sizes, target.sizes, desc.scales, input_offsets, output_offsets, strict=True
    ):
        axis = _axis(size, length, scale, -(i + o), rounding, filtered=filtered)
        if axis.scale is not None and size > 1:
            modes.add(_modes(rounding, i, o))
        axes.append(axis)
    if len(modes) > 1:
        raise _Refused("its axes read the input in different ways, and a Resize node has one way for all")
    for axis in axes:
        _check_length(axis.size, axis.length, 1.0 if axis.scale is None else axis.scale)
    coordinates, nearest = modes.pop() if modes else ("half_pixel", "round_prefer_ceil")
    attributes = (("mode", "linear" if linear else "nearest"), ("coordinate_transformation_mode", coordinates))
    axes = _merged(axes)
    given, made = tuple([axis.size for axis in axes]), tuple([axis.length for axis in axes])
    scales = Constant.vector("float32", tuple([1.0 if axis.scale is None else axis.scale for axis in axes]))
    row = source.data_type
    return Node(
        "Resize", 19, (TensorType(row, given), None, scales), (TensorType(row, made),),
        attributes if linear else (*attributes, ("nearest_mode", nearest)),
    )  # fmt: skip


def _axis(size: int, length: int, scale: float, shift: float, rounding: str, *, filtered: bool) -> _Axis:
    """One axis; at scale 1 it reads the input at `x = o + shift`."""
    unscaled = size == length and scale == 1
    if unscaled and shift == 0:
        return _Axis(size, length, None)
    if filtered and scale < 0.5:
        raise _Refused(
            "with Antialiased TRUE DirectML's own steps are not published, and ONNX's antialias filters every scale "
            "below 1; neither is the documented filter"
        )
    if max(size, length) > LONGEST_RESIZED_AXIS:
        raise _Refused(f"an axis is longer than {LONGEST_RESIZED_AXIS:,}, and a shader's float32 skips indices there")
    rounded = {"half-up": math.floor(shift + 0.5), "floor": math.floor(shift), "ceil": math.ceil(shift), "linear": 1}
    if unscaled and rounded[rounding] == 0:
        return _Axis(size, length, None)
    # A lone element is read wherever x is, so its scale is any that makes the length.
    return _Axis(size, length, float(length) if size == 1 else scale)


def _modes(rounding: str, input_offset: float, output_offset: float) -> tuple[str, str]:
    """coordinate_transformation_mode and nearest_mode; the latter is empty for linear."""
    coordinates, own_offset = _COORDINATES.get(output_offset, ("", 0.0))
    shift = own_offset - input_offset
    nearest = _NEAREST_MODES.get((rounding, shift)) if rounding != "linear" else "" if shift == 0 else None
    if not coordinates or nearest is None:
        how = "linear" if rounding == "linear" else f"nearest ({rounding})"
        raise _Refused(
            f"no ONNX coordinate mode has the pixel offsets {input_offset:g} and {output_offset:g} for {how}"
        )
    return coordinates, nearest


def _check_length(size: int, length: int, scale: float) -> None:
    """ONNX's own output must be as long: shape inference multiplies in double, ONNX Runtime in float32."""
    with np.errstate(over="ignore"):
        in_float32 = float(np.float32(size) * np.float32(scale))
    if not math.isfinite(in_float32) or {math.floor(size * scale), math.floor(in_float32)} != {length}:
        raise _Refused(
            f"an axis of {size} with scale {scale:.9g} has {length} elements in the output; a Resize node would make "
            f"floor(length * scale), which is {size * scale:.6g} before the floor"
        )


def _merged(axes: Sequence[_Axis]) -> list[_Axis]:
    """Two to four axes: copied ones side by side become one, and those of size 1 are dropped."""
    merged: list[_Axis] = []
    was_copied = False
    for axis in axes:
        if axis.scale is None and axis.size == 1:
            continue
        if axis.scale is None and was_copied:
            axis = _Axis(merged[-1].size * axis.size, merged.pop().length * axis.length, None)  # noqa: PLW2901 # joined
        merged.append(axis)
        was_copied = axis.scale is None
    merged = [_Axis(1, 1, None)] * (2 - len(merged)) + merged  # ONNX Runtime's CPU provider has no linear of rank 1
    if len(merged) > MOST_RESIZE_DIMENSIONS:
        raise _Refused(f"DirectML resamples {MOST_RESIZE_DIMENSIONS} dimensions; this has {len(merged)} to tell apart")
    return merged
