"""Rules of ONNX's reductions, selections, scans, products and quantization; see `shapes.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..values.problems import counted
from .given_node import GivenNode, InferredOutputs, Meaning, Shape
from .movement_shapes import type_of_code

__all__ = ["LINES"]


def _without(shape: Shape, axes: tuple[int, ...], *, keep: bool) -> Shape:
    if keep:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _reduced(given: GivenNode) -> InferredOutputs:
    """Shape of a reduction; without axes along all of them, or along none with `noop_with_empty_axes`."""
    shape = given.first.shape
    axes = given.axes("axes", len(shape)) or ()
    if not axes and not given.attributes.get("noop_with_empty_axes"):
        axes = tuple(range(len(shape)))
    output = _without(shape, axes, keep=bool(given.attributes["keepdims"]))
    return InferredOutputs([output], (("axes", tuple(sorted(axes))),))


def _position(given: GivenNode) -> InferredOutputs:
    shape = given.first.shape
    axis = given.axis("axis", len(shape), 0)
    if shape[axis] == 0:
        given.refuse("shape", ("inputs", "data"), f"axis {axis} has no element", list(shape), "at least one")
    last = bool(given.attributes.get("select_last_index"))
    output = _without(shape, (axis,), keep=bool(given.attributes["keepdims"]))
    return InferredOutputs([output], (("axes", (axis,)), ("last", last)))


def _top_k(given: GivenNode) -> InferredOutputs:
    shape = given.first.shape
    axis = given.axis("axis", len(shape), -1)
    name = "k" if given.since == 1 else "K"
    k = given.integer(name)
    if not 0 <= k <= shape[axis]:
        message = f"there are no {k} elements along axis {axis}"
        given.refuse("value", given.place(name), message, k, f"0 to {shape[axis]}")
    output = (*shape[:axis], k, *shape[axis + 1 :])
    largest = bool(given.attributes.get("largest", 1))
    return InferredOutputs([output, output], (("axis", axis), ("k", k), ("largest", largest)))


def _scanned(given: GivenNode) -> InferredOutputs:
    shape = given.first.shape
    backward, exclusive = (bool(given.attributes[name]) for name in ("reverse", "exclusive"))
    axis = given.axis("axis", len(shape))
    return InferredOutputs([shape], (("axis", axis), ("backward", backward), ("exclusive", exclusive)))


def _gemm(given: GivenNode) -> InferredOutputs:
    a, b, *c = given.shapes
    if len(a) != 2 or len(b) != 2:
        given.refuse("rank", ("inputs",), "A and B must be matrices", [list(a), list(b)], "2 dimensions")
    turned = bool(given.attributes["transA"]), bool(given.attributes["transB"])
    (rows, inner), (other, columns) = a[::-1] if turned[0] else a, b[::-1] if turned[1] else b
    if inner != other:
        left, right = [f"{name}, transposed," if by else name for name, by in zip("AB", turned, strict=True)]
        message = f"{left} has {counted(inner, 'column')} and {right} has {counted(other, 'row')}; they must be equal"
        given.refuse("shapes-differ", ("inputs", "B"), message, [list(a), list(b)], "an equal inner size")
    output = (rows, columns)
    for shape in c:
        small = (1,) * (2 - len(shape)) + shape
        broadcasts = given.since >= 7 or given.attributes.get("broadcast")
        if len(small) > 2 or any(own not in (1, size) for own, size in zip(small, output, strict=True)):
            given.refuse("shapes-differ", ("inputs", "C"), "C does not fit", list(shape), f"{list(output)}, or 1")
        if not broadcasts and shape != output:
            given.refuse("shapes-differ", ("inputs", "C"), "set broadcast=1", list(shape), str(list(output)))
    alpha, beta = given.attributes["alpha"], given.attributes["beta"]
    return InferredOutputs([output], (("turned", turned), ("alpha", alpha), ("beta", beta), ("inner", inner)))


def _matmul(given: GivenNode) -> InferredOutputs:
    """NumPy's matmul."""
    a, b = given.shapes[:2]
    if not a or not b:
        given.refuse("rank", ("inputs",), "numbers have no product of matrices; use Mul", None, "rank 1 or more")
    left, right = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    rank = max(len(left), len(right)) - 2
    batches = [(1,) * (rank - len(shape) + 2) + shape[:-2] for shape in (left, right)]
    batch = tuple(y if x == 1 else x for x, y in zip(*batches, strict=True))
    fits = all(y in (1, size) for y, size in zip(batches[1], batch, strict=True))
    if left[-1] != right[-2] or not fits:
        message = f"matrices of shapes {list(a)} and {list(b)} cannot be multiplied"
        given.refuse("shapes-differ", ("inputs",), message, None, "an equal inner size, batches that broadcast")
    whole = (*batch, left[-2], right[-1])
    output = (*batch, *((left[-2],) if len(a) > 1 else ()), *((right[-1],) if len(b) > 1 else ()))
    return InferredOutputs([output], (("whole", whole), ("inner", left[-1])))


def _matmul_integer(given: GivenNode) -> InferredOutputs:
    found = _matmul(given)
    for name, axis in (("a_zero_point", -2), ("b_zero_point", -1)):
        zero = given.tensors.get(name)
        matrix = given.tensors[name[0].upper()].shape
        if zero is not None and math.prod(zero.shape) != 1 and (len(matrix) < 2 or zero.shape != (matrix[axis],)):
            message = f"{name} must be one number, or one for each row of A or column of B"
            given.refuse("shapes-differ", ("inputs", name), message, list(zero.shape), f"[] or [{matrix[axis]}]")
    present = tuple(name for name in ("a_zero_point", "b_zero_point") if name in given.tensors)
    return found._replace(meaning=(*found.meaning, ("zeros", present)))


def _scales(given: GivenNode) -> Meaning:
    """How scales and zero points are spread over x: one number, one for each entry of an axis, or for each block."""
    x, *parameters = given.shapes
    block = given.attributes.get("block_size", 0)
    if block:
        axis = given.axis("axis", len(x), 1)
        wanted = (*x[:axis], -(-x[axis] // block), *x[axis + 1 :]) if block > 0 else ()
        if any(shape != wanted for shape in parameters):
            message = f"blocks of {block} along axis {axis} need scales and zero points of shape {list(wanted)}"
            given.refuse("shapes-differ", ("inputs",), message, list(parameters[0]), str(list(wanted)))
        return (("axis", axis), ("block", block))
    input_sizes = [x]
    for shape in parameters:
        aligned = (1,) * len(x)
        if len(shape) > 1 or (shape and shape != (1,)):
            axis = given.axis("axis", len(x), 1)
            if shape != (x[axis],):
                message = f"a scale and a zero point of shape {list(shape)} do not fit to axis {axis}"
                given.refuse("shapes-differ", ("inputs",), message, list(shape), f"[] or [{x[axis]}]")
            aligned = (*aligned[:axis], x[axis], *aligned[axis + 1 :])
        input_sizes.append(aligned)
    return (("input_sizes", tuple(input_sizes)),)


def _quantized(given: GivenNode) -> InferredOutputs:
    zero, output = given.tensors.get("y_zero_point"), given.schema.outputs[0]
    default = type_of_code(given, "output_dtype", "uint8", output.types)
    kind = zero.data_type if zero is not None else default
    if zero is not None and given.attributes.get("output_dtype") and default != kind:
        message = "y_zero_point is of another type than output_dtype"
        given.refuse("data-types-differ", ("attributes", "output_dtype"), message, default, kind)
    return InferredOutputs([given.first.shape], _scales(given), {output.variable: kind})


def _dequantized(given: GivenNode) -> InferredOutputs:
    output = given.schema.outputs[0]
    default = given.tensors["x_scale"].data_type
    kind = type_of_code(given, "output_dtype", default, output.types)
    return InferredOutputs([given.first.shape], _scales(given), {output.variable: kind})


def _quantized_dynamically(given: GivenNode) -> InferredOutputs:
    return InferredOutputs([given.first.shape, (), ()])


LINES: Mapping[str, Callable[[GivenNode], InferredOutputs]] = {
    "ArgMax": _position,
    "ArgMin": _position,
    "CumProd": _scanned,
    "CumSum": _scanned,
    "DequantizeLinear": _dequantized,
    "DynamicQuantizeLinear": _quantized_dynamically,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MatMulInteger": _matmul_integer,
    "QuantizeLinear": _quantized,
    **dict.fromkeys(
        [
            "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
            "ReduceProd", "ReduceSum", "ReduceSumSquare",
        ],
        _reduced,
    ),
    "TopK": _top_k,
}  # fmt: skip
