"""Rules of ONNX's operators that move elements; see `shapes.py`.

Indices outside of their axis are an error in ONNX. No shape depends on them, and only the server has them: it refuses
them before it computes (`tensorpost_server.forms.IndexRange`), those of Scatter-9 too, whose text is silent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from ..values.datatypes import DATA_TYPES
from ..values.problems import entry_count
from .given_node import GivenNode, InferredOutputs, Shape

__all__ = ["MOVEMENT", "refuse_type", "type_of_code"]


def type_of_code(given: GivenNode, name: str, default: str, allowed: tuple[str, ...]) -> str:
    """The type that an attribute names by its number in ONNX; the default if it is left out."""
    code = given.attributes.get(name, 0)
    if not code:
        return default
    found = next((row.numpy_name for row in DATA_TYPES if row.onnx_code == code), "")
    if found not in allowed:
        refuse_type(given, name, "does not make", code, allowed)
    return found


def refuse_type(given: GivenNode, name: str, does_not: str, code: object, allowed: Sequence[str]) -> NoReturn:
    """Refuse the type that an attribute names, by its number in ONNX or its name."""
    names = ", ".join(f"{row.onnx_code} ({row.onnx})" for row in DATA_TYPES if row.numpy_name in allowed)
    known = next((row.onnx for row in DATA_TYPES if code in (row.onnx_code, row.onnx)), None)
    shown = known or f"type {code!r}, which no tensor has here (float8 and types of fewer than 8 bits are none)"
    message = f"{given.schema.name} {does_not} {shown}; `{name}` must be one of {names}"
    given.refuse("data-type-unsupported", ("attributes", name), message, code, f"one of {names}")


def _reshaped(given: GivenNode) -> InferredOutputs:
    """0 keeps a size, unless `allowzero`; one -1 takes what is left."""
    shape, count = given.first.shape, given.first.element_count
    wanted = list(given.integers("shape") or ())
    path = given.place("shape")
    if any(size < -1 for size in wanted) or wanted.count(-1) > 1:
        given.refuse("shape", path, f"{wanted} is not a shape: sizes are 0 or more, one may be -1", wanted, "a shape")
    if not given.attributes.get("allowzero"):
        if any(size == 0 and axis >= len(shape) for axis, size in enumerate(wanted)):
            given.refuse("shape", path, "a 0 keeps the input's size, which has fewer dimensions", wanted, "sizes")
        wanted = [shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    if -1 in wanted:
        others = math.prod(size for size in wanted if size != -1)
        wanted[wanted.index(-1)] = count // others if others else 0
        if 0 in wanted and given.attributes.get("allowzero") and count == 0 and not others:
            given.refuse("shape", path, "beside a 0, a size of -1 may be anything", wanted, "no -1")
    if math.prod(wanted) != count:
        message = f"{count:,} elements cannot have the shape {wanted}"
        given.refuse("shape", path, message, wanted, f"{count:,} elements")
    return InferredOutputs([tuple(wanted)])


def _flattened(given: GivenNode) -> InferredOutputs:
    shape = given.first.shape
    axis = given.axis("axis", len(shape), 1, end=True)
    return InferredOutputs([(math.prod(shape[:axis]), math.prod(shape[axis:]))])


def _squeezed(given: GivenNode) -> InferredOutputs:
    shape = given.first.shape
    axes = given.axes("axes", len(shape))
    if axes is None:
        axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
    for axis in axes:
        if shape[axis] != 1:
            message = f"axis {axis} has {shape[axis]} elements; only sizes of 1 can be left out"
            given.refuse("shape", given.place("axes"), message, axis, "axes of size 1")
    return InferredOutputs([tuple(size for axis, size in enumerate(shape) if axis not in axes)])


def _unsqueezed(given: GivenNode) -> InferredOutputs:
    added = given.integers("axes") or ()
    rank = len(given.first.shape) + len(added)
    axes, sizes = given.axes("axes", rank) or (), iter(given.first.shape)
    return InferredOutputs([tuple(1 if axis in axes else next(sizes) for axis in range(rank))])


def _transposed(given: GivenNode) -> InferredOutputs:
    shape = given.first.shape
    perm = given.integers("perm")
    perm = tuple(reversed(range(len(shape)))) if perm is None else perm
    if sorted(perm) != list(range(len(shape))):
        message = f"perm must list each of {len(shape)} axes once, not {list(perm)}"
        given.refuse("axis", ("attributes", "perm"), message, list(perm), f"each of 0 to {len(shape) - 1} once")
    return InferredOutputs([tuple(shape[axis] for axis in perm)], (("perm", perm),))


def _expanded(given: GivenNode) -> InferredOutputs:
    shape, wanted = given.first.shape, given.integers("shape") or ()
    rank = max(len(shape), len(wanted))
    own, target = ((1,) * (rank - len(sizes)) + tuple(sizes) for sizes in (shape, wanted))
    output = tuple(b if a == 1 else a for a, b in zip(own, target, strict=True))
    if any(b not in (1, size) or b < 0 for b, size in zip(target, output, strict=True)):
        message = f"shape {list(shape)} cannot be broadcast to {list(wanted)}"
        given.refuse("shapes-differ", ("inputs", "shape"), message, list(wanted), "equal sizes, or 1 in either")
    return InferredOutputs([output], (("own", own),))


def _sliced(given: GivenNode) -> InferredOutputs:
    shape = given.first.shape
    starts, ends = given.integers("starts") or (), given.integers("ends") or ()
    axes = given.axes("axes", len(shape))
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = given.integers("steps") or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or len(starts) > len(shape):
        message = "starts, ends, axes and steps must have one entry for each axis that is cut"
        given.refuse("array-length", given.place("starts"), message, list(starts), "arrays of equal lengths")
    output, first, every = list(shape), [0] * len(shape), [1] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step == 0:
            given.refuse("window", given.place("steps"), "a step of 0 leads nowhere", 0, "another number")
        # Python's slices clamp as ONNX's do.
        found = range(*slice(start, end, step).indices(shape[axis]))
        output[axis], first[axis], every[axis] = len(found), found.start if len(found) else 0, step
    return InferredOutputs([tuple(output)], (("start", tuple(first)), ("steps", tuple(every))))


def _concatenated(given: GivenNode) -> InferredOutputs:
    first, *others = given.shapes
    axis = given.axis("axis", len(first), 1 if given.since < 4 else None)
    for shape in others:
        if len(shape) != len(first) or (*shape[:axis], *shape[axis + 1 :]) != (*first[:axis], *first[axis + 1 :]):
            message = f"shapes {list(first)} and {list(shape)} differ in another axis than {axis}"
            given.refuse("shapes-differ", ("inputs",), message, list(shape), "equal sizes along all other axes")
    total = sum(shape[axis] for shape in given.shapes)
    return InferredOutputs([(*first[:axis], total, *first[axis + 1 :])], (("axis", axis),))


def _split(given: GivenNode) -> InferredOutputs:
    """Shapes of the parts, by sizes or equal; from opset 18 on the last equal part may be smaller."""
    shape = given.first.shape
    axis = given.axis("axis", len(shape), 0)
    sizes = given.integers("split")
    if sizes is None:
        parts = given.integer("num_outputs", given.outputs or 0)
        if parts < 1:
            what = "num_outputs" if given.since >= 18 else "outputs"
            given.refuse("output-count", (what,), f"say into how many parts: split or {what}", None, "1 or more")
        part = -(-shape[axis] // parts)
        if given.since < 18 and part * parts != shape[axis]:
            message = f"{shape[axis]} elements are not {parts} equal parts"
            given.refuse("output-sizes", given.place("split"), message, parts, "a divisor, or split")
        sizes = tuple(max(0, min(part, shape[axis] - index * part)) for index in range(parts))
    if min(sizes, default=0) < 0 or sum(sizes) != shape[axis] or not sizes:
        message = f"parts of {list(sizes)} do not make the {shape[axis]} elements of axis {axis}"
        given.refuse("output-sizes", given.place("split"), message, list(sizes), f"a sum of {shape[axis]}")
    return InferredOutputs([(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes], (("axis", axis),))


def _padded(given: GivenNode) -> InferredOutputs:
    """Negative pads cut elements off."""
    shape = given.first.shape
    name = "paddings" if given.since == 1 else "pads"
    pads, axes = given.integers(name) or (), given.axes("axes", len(shape))
    axes = tuple(range(len(shape))) if axes is None else axes
    if len(pads) != 2 * len(axes):
        message = (
            f"{name} has {entry_count(len(pads))}; it needs a start for each of {len(axes)} axes, then an end for each"
        )
        given.refuse("array-length", given.place(name), message, list(pads), f"{2 * len(axes)} entries")
    before, after = [0] * len(shape), [0] * len(shape)
    for axis, low, high in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        before[axis], after[axis] = low, high
    output = tuple(low + size + high for low, size, high in zip(before, shape, after, strict=True))
    mode = given.attributes["mode"]
    empty = any(size == 0 < whole for size, whole in zip(shape, output, strict=True))
    if min(output, default=0) < 0 or (empty and mode != "constant"):
        message = f"padding {list(shape)} by {list(pads)} would make {list(output)}"
        given.refuse("padding", given.place(name), message, list(pads), "no negative size, nothing made of no elements")
    value = given.values.get("constant_value", (given.attributes.get("value", 0),))
    if len(value) > 1:
        given.refuse("array-length", ("inputs", "constant_value"), "constant_value must be one number", None, "one")
    return InferredOutputs([output], (("before", tuple(before)), ("mode", mode), ("value", value[0] if value else 0)))


def _blocks(given: GivenNode) -> tuple[Shape, int, str]:
    shape, block = given.first.shape, given.integer("blocksize")
    if len(shape) != 4 or block < 1:
        message = f"{given.schema.name} moves blocks of at least 1 in tensors of 4 dimensions"
        given.refuse("rank", ("inputs", "input"), message, [list(shape), block], "4 dimensions, blocksize 1 or more")
    return shape, block, given.attributes.get("mode", "DCR")


def _depth_to_space(given: GivenNode) -> InferredOutputs:
    (n, c, h, w), block, mode = _blocks(given)
    if c % block**2:
        message = f"{c} channels are not {block} x {block} blocks"
        given.refuse("shape", ("attributes", "blocksize"), message, block, "blocksize^2 must divide the channels")
    return InferredOutputs([(n, c // block**2, h * block, w * block)], (("block", block), ("mode", mode)))


def _space_to_depth(given: GivenNode) -> InferredOutputs:
    (n, c, h, w), block, mode = _blocks(given)
    if h % block or w % block:
        message = f"{h} x {w} elements are not blocks of {block} x {block}"
        given.refuse("shape", ("attributes", "blocksize"), message, block, "a divisor of height and width")
    return InferredOutputs([(n, c * block**2, h // block, w // block)], (("block", block), ("mode", mode)))


def _shape_of(given: GivenNode) -> InferredOutputs:
    """Sizes of the axes `start` to `end` (opset 15 on), which are clamped; negative ones count from the end."""
    shape = given.first.shape
    span = slice(given.integer("start", 0), given.integer("end", len(shape)))
    return InferredOutputs([(len(shape[span]),)], (("values", shape[span]),))


def _size_of(given: GivenNode) -> InferredOutputs:
    return InferredOutputs([()], (("value", given.first.element_count),))


# ---- by index --------------------------------------------------------------------------------------------------------


def _not_empty(given: GivenNode, length: int, output: Shape) -> None:
    if length == 0 and 0 not in output:
        given.refuse("shape", ("inputs",), "there is no element that an index could name", None, "a tensor with some")


def _gathered(given: GivenNode) -> InferredOutputs:
    data, indices = given.shapes
    axis = given.axis("axis", len(data), 0)
    output = (*data[:axis], *indices, *data[axis + 1 :])
    _not_empty(given, data[axis], output)
    return InferredOutputs([output], (("axis", axis),))


def _gathered_elements(given: GivenNode) -> InferredOutputs:
    data, indices = given.shapes
    axis = given.axis("axis", len(data), 0)
    fits = len(data) == len(indices) and all(
        i <= d for a, (i, d) in enumerate(zip(indices, data, strict=True)) if a != axis
    )
    if not fits:
        message = f"indices of shape {list(indices)} do not fit into {list(data)} beside axis {axis}"
        given.refuse("shapes-differ", ("inputs", "indices"), message, list(indices), "no larger sizes, equal ranks")
    _not_empty(given, data[axis], indices)
    return InferredOutputs([indices], (("axis", axis),))


def _index_tuples(given: GivenNode, data: Shape, indices: Shape, batch: int) -> int:
    """How many leading axes an index tuple names."""
    if not indices or not data or not 0 <= batch < min(len(data), len(indices)) or data[:batch] != indices[:batch]:
        message = f"indices of shape {list(indices)} do not fit to data of shape {list(data)}"
        given.refuse("shapes-differ", ("inputs", "indices"), message, list(indices), "rank 1 or more, equal batches")
    if not 0 <= indices[-1] <= len(data) - batch:
        message = f"an index of {indices[-1]} numbers names no element of {len(data) - batch} axes"
        given.refuse("shapes-differ", ("inputs", "indices"), message, indices[-1], f"at most {len(data) - batch}")
    return indices[-1]


def _gathered_nd(given: GivenNode) -> InferredOutputs:
    data, indices = given.shapes
    batch = given.integer("batch_dims", 0)
    count = _index_tuples(given, data, indices, batch)
    output = (*indices[:-1], *data[batch + count :])
    _not_empty(given, math.prod(data), output)
    return InferredOutputs([output], (("batch", batch),))


def _scattered(given: GivenNode) -> InferredOutputs:
    data, indices, updates = given.shapes
    axis = given.axis("axis", len(data), 0)
    fits = len(data) == len(indices) and all(
        i <= d for a, (i, d) in enumerate(zip(indices, data, strict=True)) if a != axis
    )
    if indices != updates or not fits:
        message = f"indices {list(indices)} and updates {list(updates)} do not fit into {list(data)}"
        given.refuse("shapes-differ", ("inputs", "indices"), message, list(indices), "equal shapes, equal ranks")
    return InferredOutputs([data], (("axis", axis), ("reduction", given.attributes.get("reduction", "none"))))


def _scattered_nd(given: GivenNode) -> InferredOutputs:
    data, indices, updates = given.shapes
    count = _index_tuples(given, data, indices, 0)
    if updates != (*indices[:-1], *data[count:]):
        message = f"updates have the shape {list(updates)}"
        expected = str([*indices[:-1], *data[count:]])
        given.refuse("shapes-differ", ("inputs", "updates"), message, list(updates), expected)
    return InferredOutputs([data], (("reduction", given.attributes.get("reduction", "none")),))


def _one_hot(given: GivenNode) -> InferredOutputs:
    indices, values = given.shapes
    depth = given.integer("depth")
    axis = given.axis("axis", len(indices) + 1)
    if depth < 0 or values != (2,):
        message = "OneHot needs a depth of 0 or more, and values of shape [2]: off, on"
        given.refuse("shape", ("inputs", "values"), message, [depth, list(values)], "depth, [2]")
    return InferredOutputs([(*indices[:axis], depth, *indices[axis:])], (("axis", axis), ("depth", depth)))


def _reversed(given: GivenNode) -> InferredOutputs:
    shape, lengths = given.shapes
    batch, time = given.integer("batch_axis", 1), given.integer("time_axis", 0)
    if {batch, time} != {0, 1} or len(shape) < 2 or lengths != (shape[batch],):
        message = "ReverseSequence needs a batch and a time axis, 0 and 1, and a length for each entry of the batch"
        given.refuse("shapes-differ", ("inputs", "sequence_lens"), message, list(lengths), "[batch size]")
    return InferredOutputs([shape], (("time", time),))


# ---- made of numbers -------------------------------------------------------------------------------------------------


def _filled(given: GivenNode) -> InferredOutputs:
    shape = given.integers("input") or ()
    if min(shape, default=0) < 0:
        given.refuse("shape", ("inputs", "input"), f"{list(shape)} is not a shape", list(shape), "sizes of 0 or more")
    kind, value = given.attributes.get("value", ("float32", 0.0))
    if kind not in given.schema.outputs[0].types:
        message = f"{given.schema.name} makes no tensor of {kind}"
        given.refuse("data-type-unsupported", ("attributes", "value"), message, kind, "a type of T2")
    return InferredOutputs([shape], (("value", value),), {"T2": kind})


def _range(given: GivenNode) -> InferredOutputs:
    numbers = [given.values[name] for name in ("start", "limit", "delta")]
    if any(len(number) != 1 for number in numbers):
        given.refuse("array-length", ("inputs",), "start, limit and delta must be one number each", None, "scalars")
    (start,), (limit,), (delta,) = numbers
    if delta == 0 or not all(map(math.isfinite, (start, limit, delta))):
        given.refuse("value", ("inputs", "delta"), "a range needs finite numbers, and a delta that is not 0", delta, "")
    if all(isinstance(number, int) for number in (start, limit, delta)):
        count = max(0, -(-(limit - start) // delta))
    else:
        ratio = (limit - start) / delta
        if not abs(ratio) < 2.0**63:
            given.refuse("value", ("inputs", "delta"), "a range of this length fits no array", delta, "a larger delta")
        count = max(0, math.ceil(ratio))
    return InferredOutputs([(int(count),)], (("start", start), ("delta", delta)))


def _eye(given: GivenNode) -> InferredOutputs:
    shape = given.first.shape
    if len(shape) != 2:
        given.refuse("rank", ("inputs", "input"), "EyeLike takes a matrix", list(shape), "2 dimensions")
    types = given.schema.outputs[0].types
    kind = type_of_code(given, "dtype", given.first.data_type, types)
    return InferredOutputs([shape], (("k", given.integer("k", 0)),), {"T2": kind})


def _triangle(given: GivenNode) -> InferredOutputs:
    shape = given.first.shape
    if len(shape) < 2:
        given.refuse("rank", ("inputs", "input"), "Trilu takes matrices", list(shape), "at least 2 dimensions")
    return InferredOutputs([shape], (("k", given.integer("k", 0)), ("upper", bool(given.attributes["upper"]))))


MOVEMENT: Mapping[str, Callable[[GivenNode], InferredOutputs]] = {
    "Concat": _concatenated,
    "ConstantOfShape": _filled,
    "DepthToSpace": _depth_to_space,
    "Expand": _expanded,
    "EyeLike": _eye,
    "Flatten": _flattened,
    "Gather": _gathered,
    "GatherElements": _gathered_elements,
    "GatherND": _gathered_nd,
    "OneHot": _one_hot,
    "Pad": _padded,
    "Range": _range,
    "Reshape": _reshaped,
    "ReverseSequence": _reversed,
    "Scatter": _scattered,
    "ScatterElements": _scattered,
    "ScatterND": _scattered_nd,
    "Shape": _shape_of,
    "Size": _size_of,
    "Slice": _sliced,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeezed,
    "Transpose": _transposed,
    "Trilu": _triangle,
    "Unsqueeze": _unsqueezed,
}
