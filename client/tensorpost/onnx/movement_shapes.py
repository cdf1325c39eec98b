"""ONNX's operators that move elements: shapes, parameters and DirectML's twins; a row of `MOVEMENT` for each.

Indices outside of their axis are an error in ONNX. No shape depends on them, and only the server has them: it refuses
them before it computes (`tensorpost_server.forms.IndexRange`), those of Scatter-9 too, whose text is silent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from ..values.datatypes import DATA_TYPES
from ..values.problems import entry_count
from ..values.sentences import named
from .directml_twins import (
    DirectmlTwin,
    descriptor,
    mapped,
    packed,
    padded,
    shifted,
    spread_strides,
    strided,
    untranslated,
)
from .inference_context import InferenceContext, InferredOutputs
from .inferred_node import InferredNode
from .operator_row import Choices, OperatorRow
from .parameters import (
    AxisParameters,
    BatchParameters,
    BlockParameters,
    ConstantParameters,
    DiagonalParameters,
    ExpandParameters,
    OneHotParameters,
    PadParameters,
    RangeParameters,
    ReductionParameters,
    ScatterParameters,
    SequenceParameters,
    ShapeParameters,
    SliceParameters,
    TransposeParameters,
    TriangleParameters,
)
from .tensor import Shape

if TYPE_CHECKING:
    from ..descriptors import OperatorDesc

__all__ = ["MOVEMENT", "refuse_type", "type_of_code"]


def type_of_code(context: InferenceContext, name: str, default: str, allowed: tuple[str, ...]) -> str:
    """The type that an attribute names by its number in ONNX; the default if it is left out."""
    code = context.attributes.get(name, 0)
    if not code:
        return default
    data_type = next((row.numpy_name for row in DATA_TYPES if row.onnx_code == code), "")
    if data_type not in allowed:
        refuse_type(context, name, "does not make", code, allowed)
    return data_type


def refuse_type(context: InferenceContext, name: str, does_not: str, code: object, allowed: Sequence[str]) -> NoReturn:
    """Refuse the type that an attribute names, by its number in ONNX or its name."""
    names = ", ".join(f"{row.onnx_code} ({row.onnx})" for row in DATA_TYPES if row.numpy_name in allowed)
    known = next((row.onnx for row in DATA_TYPES if code in (row.onnx_code, row.onnx)), None)
    shown = known or f"type {code!r}, which no tensor here can have"
    message = f"{context.schema.name} {does_not} {shown}; `" + named(name) + f"` must be one of {names}"
    context.refuse("data-type-unsupported", ("attributes", name), message, code, f"one of {names}")


def _reshaped(context: InferenceContext) -> InferredOutputs:
    """0 keeps a size, unless `allowzero`; one -1 takes what is left."""
    shape, count = context.first.shape, context.first.element_count
    wanted = list(context.integers("shape") or ())
    path = context.place("shape")
    if any(size < -1 for size in wanted) or wanted.count(-1) > 1:
        context.refuse("shape", path, f"{wanted} is not a shape: sizes are 0 or more, one may be -1", wanted, "a shape")
    if not context.attributes.get("allowzero"):
        if any(size == 0 and axis >= len(shape) for axis, size in enumerate(wanted)):
            context.refuse("shape", path, "a 0 keeps the input's size, which has fewer dimensions", wanted, "sizes")
        wanted = [shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    if -1 in wanted:
        others = math.prod(size for size in wanted if size != -1)
        wanted[wanted.index(-1)] = count // others if others else 0
        if 0 in wanted and context.attributes.get("allowzero") and count == 0 and not others:
            context.refuse("shape", path, "with a size of 0, a size of -1 is ambiguous", wanted, "no -1")
    if math.prod(wanted) != count:
        message = f"{count:,} elements cannot have the shape {wanted}"
        context.refuse("shape", path, message, wanted, f"{count:,} elements")
    return InferredOutputs([tuple(wanted)])


def _flattened(context: InferenceContext) -> InferredOutputs:
    shape = context.first.shape
    axis = context.axis("axis", len(shape), 1, end=True)
    return InferredOutputs([(math.prod(shape[:axis]), math.prod(shape[axis:]))])


def _squeezed(context: InferenceContext) -> InferredOutputs:
    shape = context.first.shape
    axes = context.axes("axes", len(shape))
    if axes is None:
        axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
    for axis in axes:
        if shape[axis] != 1:
            message = f"axis {axis} has {shape[axis]} elements; only sizes of 1 can be left out"
            context.refuse("shape", context.place("axes"), message, axis, "axes of size 1")
    return InferredOutputs([tuple(size for axis, size in enumerate(shape) if axis not in axes)])


def _unsqueezed(context: InferenceContext) -> InferredOutputs:
    added = context.integers("axes") or ()
    rank = len(context.first.shape) + len(added)
    axes, sizes = context.axes("axes", rank) or (), iter(context.first.shape)
    return InferredOutputs([tuple(1 if axis in axes else next(sizes) for axis in range(rank))])


def _transposed(context: InferenceContext) -> InferredOutputs:
    shape = context.first.shape
    perm = context.integers("perm")
    perm = tuple(reversed(range(len(shape)))) if perm is None else perm
    if sorted(perm) != list(range(len(shape))):
        message = named("perm") + f" must list each of {len(shape)} axes once, not {list(perm)}"
        context.refuse("axis", ("attributes", "perm"), message, list(perm), f"each of 0 to {len(shape) - 1} once")
    return InferredOutputs([tuple(shape[axis] for axis in perm)], TransposeParameters(perm))


def _expanded(context: InferenceContext) -> InferredOutputs:
    shape, wanted = context.first.shape, context.integers("shape") or ()
    rank = max(len(shape), len(wanted))
    aligned, target = ((1,) * (rank - len(sizes)) + tuple(sizes) for sizes in (shape, wanted))
    output = tuple(b if a == 1 else a for a, b in zip(aligned, target, strict=True))
    if any(b not in (1, size) or b < 0 for b, size in zip(target, output, strict=True)):
        message = f"shape {list(shape)} cannot be broadcast to {list(wanted)}"
        context.refuse("shapes-differ", ("inputs", "shape"), message, list(wanted), "equal sizes, or 1 in either")
    return InferredOutputs([output], ExpandParameters(aligned))


def _sliced(context: InferenceContext) -> InferredOutputs:
    shape = context.first.shape
    starts, ends = context.integers("starts") or (), context.integers("ends") or ()
    axes = context.axes("axes", len(shape))
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = context.integers("steps") or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or len(starts) > len(shape):
        message = named("starts") + ", ends, axes and steps must have one entry for each axis that is cut"
        context.refuse("array-length", context.place("starts"), message, list(starts), "arrays of equal lengths")
    output, first, every = list(shape), [0] * len(shape), [1] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step == 0:
            context.refuse("window", context.place("steps"), "a step must not be 0", 0, "another number")
        # Python's slices clamp as ONNX's do.
        taken = range(*slice(start, end, step).indices(shape[axis]))
        output[axis], first[axis], every[axis] = len(taken), taken.start if taken else 0, step
    return InferredOutputs([tuple(output)], SliceParameters(tuple(first), tuple(every)))


def _concatenated(context: InferenceContext) -> InferredOutputs:
    first, *others = context.shapes
    axis = context.axis("axis", len(first), 1 if context.since < 4 else None)
    for shape in others:
        if len(shape) != len(first) or (*shape[:axis], *shape[axis + 1 :]) != (*first[:axis], *first[axis + 1 :]):
            message = f"shapes {list(first)} and {list(shape)} differ in another axis than {axis}"
            context.refuse("shapes-differ", ("inputs",), message, list(shape), "equal sizes along all other axes")
    total = sum(shape[axis] for shape in context.shapes)
    return InferredOutputs([(*first[:axis], total, *first[axis + 1 :])], AxisParameters(axis))


def _split(context: InferenceContext) -> InferredOutputs:
    """Shapes of the parts, by sizes or equal; from opset 18 on the last equal part may be smaller."""
    shape = context.first.shape
    axis = context.axis("axis", len(shape), 0)
    sizes = context.integers("split")
    if sizes is None:
        parts = context.integer("num_outputs", context.outputs or 0)
        if parts < 1:
            what = "num_outputs" if context.since >= 18 else "outputs"
            context.refuse("output-count", (what,), f"give the number of parts: split or {what}", None, "1 or more")
        part = -(-shape[axis] // parts)
        if context.since < 18 and part * parts != shape[axis]:
            message = f"{shape[axis]} elements cannot be split into {parts} equal parts"
            context.refuse("output-sizes", context.place("split"), message, parts, "a divisor, or split")
        sizes = tuple(max(0, min(part, shape[axis] - index * part)) for index in range(parts))
    if min(sizes, default=0) < 0 or sum(sizes) != shape[axis] or not sizes:
        message = f"parts of {list(sizes)} do not add up to the {shape[axis]} elements of axis {axis}"
        context.refuse("output-sizes", context.place("split"), message, list(sizes), f"a sum of {shape[axis]}")
    return InferredOutputs([(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes], AxisParameters(axis))


def _padded(context: InferenceContext) -> InferredOutputs:
    """Negative pads cut elements off."""
    shape = context.first.shape
    name = "paddings" if context.since == 1 else "pads"
    pads, axes = context.integers(name) or (), context.axes("axes", len(shape))
    axes = tuple(range(len(shape))) if axes is None else axes
    if len(pads) != 2 * len(axes):
        message = (
            named(name)
            + f" has {entry_count(len(pads))}; it needs a start for each of {len(axes)} axes, then an end for each"
        )
        context.refuse("array-length", context.place(name), message, list(pads), f"{2 * len(axes)} entries")
    before, after = [0] * len(shape), [0] * len(shape)
    for axis, low, high in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        before[axis], after[axis] = low, high
    output = tuple(low + size + high for low, size, high in zip(before, shape, after, strict=True))
    mode = context.attributes["mode"]
    empty = any(size == 0 < whole for size, whole in zip(shape, output, strict=True))
    if min(output, default=0) < 0 or (empty and mode != "constant"):
        message = f"padding {list(shape)} by {list(pads)} would make {list(output)}"
        context.refuse(
            "padding", context.place(name), message, list(pads), "no negative size, nothing made of no elements"
        )
    value = context.values.get("constant_value", (context.attributes.get("value", 0),))
    if len(value) > 1:
        context.refuse(
            "array-length", ("inputs", "constant_value"), named("constant_value") + " must be one number", None, "one"
        )
    return InferredOutputs([output], PadParameters(tuple(before), mode, value[0] if value else 0))


def _blocks(context: InferenceContext) -> tuple[Shape, int, str]:
    shape, block = context.first.shape, context.integer("blocksize")
    if len(shape) != 4 or block < 1:
        message = f"{context.schema.name} needs a tensor of 4 dimensions and a blocksize of at least 1"
        context.refuse("rank", ("inputs", "input"), message, [list(shape), block], "4 dimensions, blocksize 1 or more")
    return shape, block, context.attributes.get("mode", "DCR")


def _depth_to_space(context: InferenceContext) -> InferredOutputs:
    (n, c, h, w), block, mode = _blocks(context)
    if c % block**2:
        message = f"{c} channels cannot be divided into {block} x {block} blocks"
        context.refuse("shape", ("attributes", "blocksize"), message, block, "blocksize^2 must divide the channels")
    return InferredOutputs([(n, c // block**2, h * block, w * block)], BlockParameters(block, mode))


def _space_to_depth(context: InferenceContext) -> InferredOutputs:
    (n, c, h, w), block, mode = _blocks(context)
    if h % block or w % block:
        message = f"{h} x {w} elements cannot be divided into blocks of {block} x {block}"
        context.refuse("shape", ("attributes", "blocksize"), message, block, "a divisor of height and width")
    return InferredOutputs([(n, c * block**2, h // block, w // block)], BlockParameters(block, mode))


def _shape_of(context: InferenceContext) -> InferredOutputs:
    """Sizes of the axes `start` to `end` (opset 15 on), which are clamped; negative ones count from the end."""
    shape = context.first.shape
    span = slice(context.integer("start", 0), context.integer("end", len(shape)))
    return InferredOutputs([(len(shape[span]),)], ShapeParameters(shape[span]))


def _size_of(context: InferenceContext) -> InferredOutputs:
    return InferredOutputs([()], ConstantParameters(context.first.element_count))


# ---- by index --------------------------------------------------------------------------------------------------------


def _not_empty(context: InferenceContext, length: int, output: Shape) -> None:
    if length == 0 and 0 not in output:
        context.refuse(
            "shape", ("inputs",), "the axis has no elements, so no index is valid", None, "a tensor with some"
        )


def _gathered(context: InferenceContext) -> InferredOutputs:
    data, indices = context.shapes
    axis = context.axis("axis", len(data), 0)
    output = (*data[:axis], *indices, *data[axis + 1 :])
    _not_empty(context, data[axis], output)
    return InferredOutputs([output], AxisParameters(axis))


def _fits(indices: Shape, data: Shape, axis: int) -> bool:
    """Whether indices are of the data's rank, and no larger along other axes than the one that they count along."""
    if len(data) != len(indices):
        return False
    return all(i <= d for at, (i, d) in enumerate(zip(indices, data, strict=True)) if at != axis)


def _gathered_elements(context: InferenceContext) -> InferredOutputs:
    data, indices = context.shapes
    axis = context.axis("axis", len(data), 0)
    if not _fits(indices, data, axis):
        message = f"indices of shape {list(indices)} do not fit into {list(data)} beside axis {axis}"
        context.refuse("shapes-differ", ("inputs", "indices"), message, list(indices), "no larger sizes, equal ranks")
    _not_empty(context, data[axis], indices)
    return InferredOutputs([indices], AxisParameters(axis))


def _index_tuples(context: InferenceContext, data: Shape, indices: Shape, batch: int) -> int:
    """How many leading axes an index tuple names."""
    if not indices or not data or not 0 <= batch < min(len(data), len(indices)) or data[:batch] != indices[:batch]:
        message = f"indices of shape {list(indices)} do not fit to data of shape {list(data)}"
        context.refuse("shapes-differ", ("inputs", "indices"), message, list(indices), "rank 1 or more, equal batches")
    if not 0 <= indices[-1] <= len(data) - batch:
        message = f"an index of {indices[-1]} numbers is too long for {len(data) - batch} axes"
        context.refuse("shapes-differ", ("inputs", "indices"), message, indices[-1], f"at most {len(data) - batch}")
    return indices[-1]


def _gathered_nd(context: InferenceContext) -> InferredOutputs:
    data, indices = context.shapes
    batch = context.integer("batch_dims", 0)
    count = _index_tuples(context, data, indices, batch)
    output = (*indices[:-1], *data[batch + count :])
    _not_empty(context, math.prod(data), output)
    return InferredOutputs([output], BatchParameters(batch))


def _scattered(context: InferenceContext) -> InferredOutputs:
    data, indices, updates = context.shapes
    axis = context.axis("axis", len(data), 0)
    if indices != updates or not _fits(indices, data, axis):
        message = f"indices {list(indices)} and updates {list(updates)} do not fit into {list(data)}"
        context.refuse("shapes-differ", ("inputs", "indices"), message, list(indices), "equal shapes, equal ranks")
    return InferredOutputs([data], ScatterParameters(axis, context.attributes.get("reduction", "none")))


def _scattered_nd(context: InferenceContext) -> InferredOutputs:
    data, indices, updates = context.shapes
    count = _index_tuples(context, data, indices, 0)
    if updates != (*indices[:-1], *data[count:]):
        message = f"updates have the shape {list(updates)}"
        expected = str([*indices[:-1], *data[count:]])
        context.refuse("shapes-differ", ("inputs", "updates"), message, list(updates), expected)
    return InferredOutputs([data], ReductionParameters(context.attributes.get("reduction", "none")))


def _one_hot(context: InferenceContext) -> InferredOutputs:
    indices, values = context.shapes
    depth = context.integer("depth")
    axis = context.axis("axis", len(indices) + 1)
    if depth < 0 or values != (2,):
        message = "OneHot needs a depth of 0 or more, and values of shape [2]: off, on"
        context.refuse("shape", ("inputs", "values"), message, [depth, list(values)], "depth, [2]")
    return InferredOutputs([(*indices[:axis], depth, *indices[axis:])], OneHotParameters(axis, depth))


def _reversed(context: InferenceContext) -> InferredOutputs:
    shape, lengths = context.shapes
    batch, time = context.integer("batch_axis", 1), context.integer("time_axis", 0)
    if {batch, time} != {0, 1} or len(shape) < 2 or lengths != (shape[batch],):
        message = "ReverseSequence needs a batch and a time axis, 0 and 1, and a length for each entry of the batch"
        context.refuse("shapes-differ", ("inputs", "sequence_lens"), message, list(lengths), "[batch size]")
    return InferredOutputs([shape], SequenceParameters(time))


# ---- made of numbers -------------------------------------------------------------------------------------------------


def _filled(context: InferenceContext) -> InferredOutputs:
    shape = context.integers("input") or ()
    if min(shape, default=0) < 0:
        context.refuse("shape", ("inputs", "input"), f"{list(shape)} is not a shape", list(shape), "sizes of 0 or more")
    kind, value = context.attributes.get("value", ("float32", 0.0))
    if kind not in context.schema.outputs[0].types:
        message = f"{context.schema.name} makes no tensor of {kind}"
        context.refuse("data-type-unsupported", ("attributes", "value"), message, kind, "a type of T2")
    return InferredOutputs([shape], ConstantParameters(value), {"T2": kind})


def _range(context: InferenceContext) -> InferredOutputs:
    numbers = [context.values[name] for name in ("start", "limit", "delta")]
    if any(len(number) != 1 for number in numbers):
        context.refuse("array-length", ("inputs",), "start, limit and delta must be one number each", None, "scalars")
    (start,), (limit,), (delta,) = numbers
    if delta == 0 or not all(map(math.isfinite, (start, limit, delta))):
        context.refuse(
            "value", ("inputs", "delta"), "a range needs finite numbers, and a delta that is not 0", delta, ""
        )
    if all(isinstance(number, int) for number in (start, limit, delta)):
        count = max(0, -(-(limit - start) // delta))
    else:
        ratio = (limit - start) / delta
        if not abs(ratio) < 2.0**63:
            context.refuse(
                "value", ("inputs", "delta"), "no array can have the length of this range", delta, "a larger delta"
            )
        count = max(0, math.ceil(ratio))
    return InferredOutputs([(int(count),)], RangeParameters(start, delta))


def _eye(context: InferenceContext) -> InferredOutputs:
    shape = context.first.shape
    if len(shape) != 2:
        context.refuse("rank", ("inputs", "input"), "EyeLike takes a matrix", list(shape), "2 dimensions")
    types = context.schema.outputs[0].types
    kind = type_of_code(context, "dtype", context.first.data_type, types)
    return InferredOutputs([shape], DiagonalParameters(context.integer("k", 0)), {"T2": kind})


def _triangle(context: InferenceContext) -> InferredOutputs:
    shape = context.first.shape
    if len(shape) < 2:
        context.refuse("rank", ("inputs", "input"), "Trilu takes matrices", list(shape), "at least 2 dimensions")
    return InferredOutputs([shape], TriangleParameters(context.integer("k", 0), bool(context.attributes["upper"])))


# ---- in DirectML -----------------------------------------------------------------------------------------------------


def _to_same_bytes(node: InferredNode, least_rank: int) -> OperatorDesc:
    """The same bytes under another shape."""
    tensor = packed(node.input, least_rank, (node.input.element_count,))
    return descriptor("ELEMENT_WISE_IDENTITY", input_tensor=tensor, output_tensor=tensor)


def _identity_of(node: InferredNode, strides: Sequence[int], least_rank: int) -> OperatorDesc:
    output = packed(node.output, least_rank)
    source = strided(node.input, output.sizes, strides)
    return descriptor("ELEMENT_WISE_IDENTITY", input_tensor=source, output_tensor=output)


def _to_transposed(node: InferredNode, least_rank: int) -> OperatorDesc:
    shape, perm = node.input.shape, node.parameters_as(TransposeParameters).perm
    return _identity_of(node, [math.prod(shape[axis + 1 :]) for axis in perm], least_rank)


def _to_expanded(node: InferredNode, least_rank: int) -> OperatorDesc:
    aligned = node.parameters_as(ExpandParameters).aligned
    return _identity_of(node, spread_strides(aligned, node.output.shape), least_rank)


def _to_join(node: InferredNode, least_rank: int) -> OperatorDesc:
    (axis,) = shifted(node, [node.parameters_as(AxisParameters).axis], least_rank)
    tensors = [packed(tensor, least_rank) for _, tensor in node.tensors]
    return descriptor("JOIN", input_tensors=tensors, output_tensor=packed(node.output, least_rank), axis=axis)


def _to_split(node: InferredNode, least_rank: int) -> OperatorDesc:
    (axis,) = shifted(node, [node.parameters_as(AxisParameters).axis], least_rank)
    tensors = [packed(tensor, least_rank) for _, tensor in node.results]
    return descriptor("SPLIT", input_tensor=packed(node.input, least_rank), output_tensors=tensors, axis=axis)


def _to_slice(node: InferredNode, least_rank: int) -> OperatorDesc:
    window, output = node.parameters_as(SliceParameters), padded(node.output.shape, least_rank)
    more = len(output) - len(node.input.shape)
    start, steps = (0,) * more + window.start, (1,) * more + window.steps
    # A window that is walked backwards begins at its end.
    reach = [abs(step) * (size - 1) + 1 for step, size in zip(steps, output, strict=True)]
    offsets = [at if step > 0 else at - size + 1 for at, step, size in zip(start, steps, reach, strict=True)]
    fields = {"input_window_offsets": offsets, "input_window_sizes": reach, "input_window_strides": steps}
    return mapped("SLICE1", node, least_rank, **{name: tuple(numbers) for name, numbers in fields.items()})


def _to_blocks(name: str) -> DirectmlTwin:
    def make(node: InferredNode, least_rank: int) -> OperatorDesc:
        parameters = node.parameters_as(BlockParameters)
        order = {"DCR": "DEPTH_COLUMN_ROW", "CRD": "COLUMN_ROW_DEPTH"}[parameters.mode]
        return mapped(name, node, least_rank, block_size=parameters.block, order=order)

    return make


_COMBINATIONS: Choices = {16: ("none", "add", "mul"), 18: ("none", "add", "mul", "max", "min")}
_PADDINGS: Choices = {1: ("constant", "reflect", "edge"), 19: ("constant", "reflect", "edge", "wrap")}

MOVEMENT: Mapping[str, OperatorRow] = {
    "Concat": OperatorRow(_concatenated, _to_join),
    "ConstantOfShape": OperatorRow(_filled, untranslated, "input"),
    "DepthToSpace": OperatorRow(_depth_to_space, _to_blocks("DEPTH_TO_SPACE1"), choices={"mode": {11: ("DCR", "CRD")}}),
    "Expand": OperatorRow(_expanded, _to_expanded, "shape"),
    "EyeLike": OperatorRow(_eye, untranslated),
    "Flatten": OperatorRow(_flattened, _to_same_bytes),
    "Gather": OperatorRow(_gathered, untranslated),
    "GatherElements": OperatorRow(_gathered_elements, untranslated),
    "GatherND": OperatorRow(_gathered_nd, untranslated),
    "OneHot": OperatorRow(_one_hot, untranslated, "depth"),
    "Pad": OperatorRow(_padded, untranslated, "pads constant_value axes", {"mode": _PADDINGS}),
    "Range": OperatorRow(_range, untranslated, "start limit delta"),
    "Reshape": OperatorRow(_reshaped, _to_same_bytes, "shape"),
    "ReverseSequence": OperatorRow(_reversed, untranslated),
    "Scatter": OperatorRow(_scattered, untranslated),
    "ScatterElements": OperatorRow(_scattered, untranslated, choices={"reduction": _COMBINATIONS}),
    "ScatterND": OperatorRow(_scattered_nd, untranslated, choices={"reduction": _COMBINATIONS}),
    "Shape": OperatorRow(_shape_of, untranslated),
    "Size": OperatorRow(_size_of, untranslated),
    "Slice": OperatorRow(_sliced, _to_slice, "starts ends axes steps"),
    "SpaceToDepth": OperatorRow(_space_to_depth, _to_blocks("SPACE_TO_DEPTH1"), choices={"mode": {28: ("DCR", "CRD")}}),
    "Split": OperatorRow(_split, _to_split, "split"),
    "Squeeze": OperatorRow(_squeezed, _to_same_bytes, "axes"),
    "Transpose": OperatorRow(_transposed, _to_transposed),
    "Trilu": OperatorRow(_triangle, untranslated, "k"),
    "Unsqueeze": OperatorRow(_unsqueezed, _to_same_bytes, "axes"),
}
