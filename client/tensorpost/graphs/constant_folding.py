"""Nodes of an ONNX model whose results are small and known before it runs: sizes that are read, joined and reshaped.

Exporters compute the sizes for Reshape, Slice and Expand by nodes; these sizes must be known to plan a graph. Only
operators are folded whose result is exact: whole numbers, comparisons, and moves of elements.

Source: the pages of ONNX's operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..onnx.model_reader import ModelNode
from ..values.datatypes import DATA_TYPES

__all__ = ["MOST_FOLDED", "folded", "shape_of"]

MOST_FOLDED = 4096
"""Elements of a result that is folded."""

_FOLDED_TYPES = {row.onnx_code: row for row in DATA_TYPES if not (row.is_small or row.numpy_name == "str")}
"""Types that Cast makes here. A type's `dtype` is read with the first Cast to it: bfloat16 needs `ml_dtypes`."""
_KnownArray: TypeAlias = NDArray[Any]
_KnownInputs: TypeAlias = Sequence[_KnownArray | None]
_NodeAttributes: TypeAlias = Mapping[str, Any]


def shape_of(node: ModelNode, sizes: Sequence[int]) -> _KnownArray | None:
    """What Shape and Size make of a tensor of these sizes; None if the node is wrong."""
    if node.op_type == "Size":
        return np.array(math.prod(sizes), np.int64)
    start, end = node.attributes.get("start", 0), node.attributes.get("end", len(sizes))
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    return np.array([*sizes][start:end], np.int64)


def folded(node: ModelNode, inputs: Sequence[_KnownArray | None]) -> list[_KnownArray] | None:
    """The outputs of a node; None if it is not folded.

    Args:
        node: the node.
        inputs: its inputs, all known; None for those that are left out.
    """
    function = _FUNCTIONS.get(node.op_type)
    if function is None or any(array is not None and array.size > MOST_FOLDED for array in inputs):
        return None
    if node.op_type in _WHOLE and any(array is not None and array.dtype.kind == "f" for array in inputs):
        return None
    try:
        with np.errstate(all="ignore"):
            made = function(inputs, node.attributes)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None  # the node is wrong, and whoever reads it says why
    except ImportError:
        return None  # NumPy does not have the type of a Cast here
    outputs = made if isinstance(made, list) else [made]
    return outputs if all(array.size <= MOST_FOLDED for array in outputs) else None


def _given(inputs: _KnownInputs, place: int) -> _KnownArray | None:
    return inputs[place] if place < len(inputs) else None


def _needed(inputs: _KnownInputs, place: int) -> _KnownArray:
    found = _given(inputs, place)
    if found is None:
        raise ValueError("an input is missing")
    return found


def _axes(inputs: _KnownInputs, attributes: _NodeAttributes) -> list[int] | None:
    found = _given(inputs, 1)
    return found.reshape(-1).tolist() if found is not None else attributes.get("axes")


def _unsqueeze(inputs: _KnownInputs, attributes: _NodeAttributes) -> _KnownArray:
    array, axes = _needed(inputs, 0), _axes(inputs, attributes)
    return np.expand_dims(array, tuple(axes or ()))


def _squeeze(inputs: _KnownInputs, attributes: _NodeAttributes) -> _KnownArray:
    axes = _axes(inputs, attributes)
    return np.squeeze(_needed(inputs, 0), None if axes is None else tuple(axes))


def _reshape(inputs: _KnownInputs, attributes: _NodeAttributes) -> _KnownArray:
    array, sizes = _needed(inputs, 0), _needed(inputs, 1).tolist()
    if not attributes.get("allowzero", 0):
        sizes = [array.shape[at] if size == 0 else size for at, size in enumerate(sizes)]
    return array.reshape(sizes)


def _slice(inputs: _KnownInputs, attributes: _NodeAttributes) -> _KnownArray:
    array = _needed(inputs, 0)
    if len(inputs) > 1:
        starts, ends = _needed(inputs, 1).tolist(), _needed(inputs, 2).tolist()
        axes, steps = _given(inputs, 3), _given(inputs, 4)
    else:
        starts, ends = attributes["starts"], attributes["ends"]
        axes, steps = (np.array(attributes["axes"]) if "axes" in attributes else None), None
    where = [slice(None)] * array.ndim
    chosen = range(len(starts)) if axes is None else axes.tolist()
    by = [1] * len(starts) if steps is None else steps.tolist()
    for axis, start, end, step in zip(chosen, starts, ends, by, strict=True):
        size = array.shape[axis]
        if step < 0:
            stop = None if end < -size else end
            where[axis] = slice(min(start, size - 1) if start >= 0 else start, stop, step)
        else:
            where[axis] = slice(start, end, step)
    return array[tuple(where)]


def _concat(inputs: _KnownInputs, attributes: _NodeAttributes) -> _KnownArray:
    return np.concatenate([_needed(inputs, place) for place in range(len(inputs))], attributes["axis"])


def _cast(inputs: _KnownInputs, attributes: _NodeAttributes) -> _KnownArray:
    array, kind = _needed(inputs, 0), _FOLDED_TYPES[attributes["to"]].dtype
    if array.dtype.kind == "f" and kind.kind in "iu":
        array = np.trunc(array)
    return array.astype(kind)


def _divide(inputs: _KnownInputs, _: _NodeAttributes) -> _KnownArray:
    a, b = _needed(inputs, 0), _needed(inputs, 1)
    if not np.all(b):
        raise ZeroDivisionError
    quotient = np.abs(a) // np.abs(b)  # towards zero
    return (np.sign(a) * np.sign(b) * quotient).astype(a.dtype) if a.dtype.kind == "i" else quotient


def _remainder(inputs: _KnownInputs, attributes: _NodeAttributes) -> _KnownArray:
    a, b = _needed(inputs, 0), _needed(inputs, 1)
    if not np.all(b):
        raise ZeroDivisionError
    return np.asarray(np.fmod(a, b) if attributes.get("fmod", 0) else np.mod(a, b), a.dtype)


def _range(inputs: _KnownInputs, _: _NodeAttributes) -> _KnownArray:
    start, limit, delta = (_needed(inputs, place).item() for place in range(3))
    if abs(limit - start) > MOST_FOLDED * abs(delta):
        raise ValueError("the range is long")
    return np.arange(start, limit, delta, dtype=_needed(inputs, 0).dtype)


def _filled(inputs: _KnownInputs, attributes: _NodeAttributes) -> _KnownArray:
    sizes: list[int] = _needed(inputs, 0).tolist()
    value: _KnownArray = attributes.get("value", np.zeros(1, np.float32))
    if math.prod(sizes) > MOST_FOLDED:
        raise ValueError("it is large")
    return np.repeat(value.reshape(-1)[:1], math.prod(sizes)).reshape(sizes)


def _expand(inputs: _KnownInputs, _: _NodeAttributes) -> _KnownArray:
    array, sizes = _needed(inputs, 0), _needed(inputs, 1).tolist()
    shape = np.broadcast_shapes(array.shape, tuple(sizes))
    if math.prod(shape) > MOST_FOLDED:
        raise ValueError("it is large")
    return np.broadcast_to(array, shape).copy()


def _product(inputs: _KnownInputs, attributes: _NodeAttributes) -> _KnownArray:
    axes, keep = _axes(inputs, attributes), bool(attributes.get("keepdims", 1))
    array = _needed(inputs, 0)
    where = tuple(range(array.ndim)) if axes is None else tuple(axes)
    return np.asarray(array.prod(where, array.dtype, keepdims=keep))


def _of(function: Callable[..., Any]) -> Callable[[_KnownInputs, _NodeAttributes], _KnownArray]:
    return lambda inputs, _: np.asarray(function(*[_needed(inputs, place) for place in range(len(inputs))]))


def _same_type(function: Callable[..., Any]) -> Callable[[_KnownInputs, _NodeAttributes], _KnownArray]:
    def call(inputs: _KnownInputs, _: _NodeAttributes) -> _KnownArray:
        arrays = [_needed(inputs, place) for place in range(len(inputs))]
        return np.asarray(function(*arrays), arrays[0].dtype)

    return call


_FUNCTIONS: Mapping[str, Callable[[_KnownInputs, _NodeAttributes], _KnownArray | list[_KnownArray]]] = {
    "Add": _same_type(np.add),
    "And": _of(np.logical_and),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Div": _divide,
    "Equal": _of(np.equal),
    "Expand": _expand,
    "Gather": lambda inputs, attributes: np.take(
        _needed(inputs, 0), _needed(inputs, 1), attributes.get("axis", 0)
    ),
    "Greater": _of(np.greater),
    "Identity": lambda inputs, _: _needed(inputs, 0),
    "Less": _of(np.less),
    "Max": _same_type(lambda *arrays: np.maximum.reduce(np.broadcast_arrays(*arrays))),
    "Min": _same_type(lambda *arrays: np.minimum.reduce(np.broadcast_arrays(*arrays))),
    "Mod": _remainder,
    "Mul": _same_type(np.multiply),
    "Neg": _same_type(np.negative),
    "NonZero": lambda inputs, _: np.stack(np.nonzero(np.asarray(_needed(inputs, 0)))).astype(np.int64),
    "Not": _of(np.logical_not),
    "Or": _of(np.logical_or),
    "Range": _range,
    "ReduceProd": _product,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _same_type(np.subtract),
    "Transpose": lambda inputs, attributes: np.transpose(_needed(inputs, 0), attributes.get("perm")),
    "Unsqueeze": _unsqueeze,
    "Where": lambda inputs, _: np.where(*[_needed(inputs, place) for place in range(3)]),
}  # fmt: skip
_WHOLE = frozenset({"Add", "Div", "Max", "Min", "Mod", "Mul", "Neg", "Range", "ReduceProd", "Sub"})
"""Operators that are folded of whole numbers only."""
