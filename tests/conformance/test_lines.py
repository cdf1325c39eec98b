"""Positions, selections and scans along lines, on every backend: loops over Python numbers, in any layout.

The oracles call nothing of the packages under test; where ONNX has the same operator, its reference evaluator is asked.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.conformance.suite import check_bytes
from tests.support.onnx_reference import reference_outputs
from tests.support.operator_cases import (
    FLOATS,
    NUMBERS,
    any_numbers,
    call,
    eighths,
    finite,
    numpy_name,
    powers,
    small_sizes,
    tensor,
    wrapped,
)  # fmt: skip
from tests.support.vectors import Case

from tensorpost.descriptors import operator_class
from tensorpost_server.backends import Backend
from tensorpost_server.forms import Array as ArrayForm
from tensorpost_server.forms import Lines
from tensorpost_server.operators import form_of

Array = NDArray[Any]
DIRECTIONS = st.sampled_from(("INCREASING", "DECREASING"))
WIDE = (*FLOATS, "INT32", "INT64", "UINT32", "UINT64")


@st.composite
def positions(draw: st.DrawFn) -> Case:
    name, data_type, sizes = draw(st.sampled_from(("ARGMIN", "ARGMAX"))), draw(st.sampled_from(NUMBERS)), draw(SIZES)
    axes = draw(st.permutations(range(len(sizes))))[: draw(st.integers(1, len(sizes)))]
    target, direction = draw(st.sampled_from(WIDE[2:])), draw(DIRECTIONS)
    kept = [1 if axis in axes else size for axis, size in enumerate(sizes)]
    fields = {
        "input_tensor": tensor(draw, data_type, sizes), "output_tensor": tensor(draw, target, kept, output=True),
        "axes": axes, "axis_direction": direction,
    }  # fmt: skip

    def oracle(x: Array) -> Array:
        rest = [axis for axis in range(x.ndim) if axis not in axes]
        found: list[int] = []
        for line in x.transpose([*rest, *sorted(axes)]).reshape(math.prod(kept), -1).tolist():
            best = (max if name == "ARGMAX" else min)(line)
            places = [place for place, value in enumerate(line) if value == best]
            found.append(places[0 if direction == "INCREASING" else -1])
        return np.array(found, numpy_name(target))

    # Which of several NaN is found is not defined.
    return call(draw, name, fields, {"*": finite if data_type in FLOATS else any_numbers}, oracle)


@st.composite
def selections(draw: st.DrawFn) -> Case:
    data_type, sizes = draw(st.sampled_from(NUMBERS)), draw(SIZES)
    axis = draw(st.integers(0, len(sizes) - 1))
    k = draw(st.integers(1, sizes[axis]))
    out = [*sizes[:axis], k, *sizes[axis + 1 :]]
    fields = {
        "input_tensor": tensor(draw, data_type, sizes),
        "output_value_tensor": tensor(draw, data_type, out, output=True),
        "output_index_tensor": tensor(draw, "UINT64", out, output=True),
        "axis": axis, "k": k,
    }  # fmt: skip

    def oracle(x: Array) -> tuple[Array, Array]:
        # Positions that lose against fewer than K others: those that are larger, or equal and before them.
        lines = np.moveaxis(x, axis, -1)
        places = np.empty((*lines.shape[:-1], k), np.uint64)
        for at in np.ndindex(*lines.shape[:-1]):
            keys = [(math.isnan(v), 0 if math.isnan(v) else v) for v in lines[at].tolist()]
            for place, key in enumerate(keys):
                lost = sum(other > key or (other == key and i < place) for i, other in enumerate(keys))
                if lost < k:
                    places[(*at, lost)] = place
        values = np.take_along_axis(lines, places.astype(np.int64), -1)
        return np.moveaxis(values, -1, axis), np.moveaxis(places, -1, axis)

    return call(draw, "TOP_K", fields, {}, oracle, any_nan=True)


@st.composite
def scans(draw: st.DrawFn) -> Case:
    name, function, identity = draw(st.sampled_from((("SUMMATION", operator.add, 0), ("PRODUCT", operator.mul, 1))))
    data_type, sizes = draw(st.sampled_from(WIDE)), draw(SIZES)
    axis, direction, exclusive = draw(st.integers(0, len(sizes) - 1)), draw(DIRECTIONS), draw(st.booleans())
    fields = {
        "input_tensor": tensor(draw, data_type, sizes), "output_tensor": tensor(draw, data_type, sizes, output=True),
        "axis": axis, "axis_direction": direction, f"has_exclusive_{'sum' if identity == 0 else 'product'}": exclusive,
    }  # fmt: skip
    step = 1 if direction == "INCREASING" else -1

    def oracle(x: Array) -> Array:
        lines, dtype = np.moveaxis(x, axis, -1), numpy_name(data_type)
        made = np.empty(lines.shape, dtype)
        for at in np.ndindex(*lines.shape[:-1]):
            running = [*itertools.accumulate(lines[at].tolist()[::step], function, initial=identity)]
            line = (running[:-1] if exclusive else running[1:])[::step]
            made[at] = wrapped(line, dtype) if dtype.kind in "iu" else line
        return np.moveaxis(made, -1, axis)

    exact = eighths if identity == 0 else powers
    fill = exact if data_type in FLOATS else any_numbers
    return call(draw, f"CUMULATIVE_{name}", fields, {"*": fill}, oracle, absolute=5e-324)


SIZES = st.composite(lambda draw: small_sizes(draw, high=5))()


@pytest.mark.parametrize("drawn", [positions(), selections(), scans()], ids=["positions", "selections", "scans"])
@given(data=st.data(), slice_bytes=st.one_of(st.just(1 << 20), st.integers(1, 300)), at_once=st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_call(backends: list[Backend], drawn: Any, data: st.DataObject, slice_bytes: int, at_once: bool) -> None:
    case = data.draw(drawn)
    for backend in backends:
        check_bytes(backend, case, slice_bytes, at_once=at_once)


# DirectML's operator and attributes, ONNX's operator, attributes and constant inputs.
Row = tuple[Mapping[str, Any], str, Mapping[str, Any], tuple[Array, ...]]
AXIS = np.array(1, np.int64)
IN_ONNX: Mapping[str, list[Row]] = {
    "ARGMIN": [
        ({"axes": [1], "axis_direction": last}, "ArgMin", {"axis": 1, "select_last_index": last}, ()) for last in (0, 1)
    ],
    "ARGMAX": [
        ({"axes": [1], "axis_direction": last}, "ArgMax", {"axis": 1, "select_last_index": last}, ()) for last in (0, 1)
    ],
    "TOP_K": [({"axis": 1, "k": 3}, "TopK", {"axis": 1}, (np.array([3], np.int64),))],
    "CUMULATIVE_SUMMATION": [
        (
            {"axis": 1, "axis_direction": back, "has_exclusive_sum": exclusive},
            "CumSum", {"reverse": back, "exclusive": exclusive}, (AXIS,),
        )
        for back, exclusive in itertools.product((0, 1), (0, 1))
    ],
}  # fmt: skip


@pytest.mark.parametrize("operator_type", IN_ONNX)
def test_numbers_are_those_of_onnx(backend: Backend, operator_type: str) -> None:
    random = np.random.default_rng(11)
    for desc, theirs, attributes, constants in IN_ONNX[operator_type]:
        for data_type in ("FLOAT32", "INT32", "INT64"):
            x = random.integers(-9, 10, (5, 17, 3)).astype(numpy_name(data_type))
            made = reference_outputs(theirs, 20, [x, *constants], attributes, 1 + (theirs == "TopK"))
            fields = {"InputTensor": {"DataType": data_type, "Sizes": list(x.shape)}, **desc}
            call_ = operator_class(operator_type).completed(fields)
            types = [np.dtype(slot.layout.data_type.numpy_name) for slot in call_.outputs]
            expected = b"".join(y.astype(dtype).tobytes() for y, dtype in zip(made, types, strict=True))
            check_bytes(backend, Case(f"{operator_type} {data_type}", call_, (x.tobytes(),), expected))


def test_columns_of_a_large_output_are_made_once(backend: Backend) -> None:
    """Slices are rows, each of which would need all columns whole."""
    random = np.random.default_rng(19)
    x = random.integers(-(2**31), 2**31, (700, 400)).astype(np.int32)
    desc = operator_class("CUMULATIVE_SUMMATION").completed(
        {"InputTensor": {"DataType": "INT32", "Sizes": x.shape}, "Axis": 0}
    )
    assert isinstance(form_of(desc), ArrayForm)
    check_bytes(backend, Case("columns", desc, (x.tobytes(),), np.cumsum(x, axis=0, dtype=np.int32).tobytes()))

    y, bias = random.standard_normal((700, 400)).astype(np.float32), np.arange(400, dtype=np.float32)
    fields = {"Axes": [0], "NormalizeVariance": False, "Epsilon": 0}
    tensors = {"InputTensor": {"DataType": "FLOAT32", "Sizes": y.shape}}
    tensors["BiasTensor"] = {"DataType": "FLOAT32", "Sizes": [1, 400]}
    desc = operator_class("MEAN_VARIANCE_NORMALIZATION1").completed({**fields, **tensors})
    assert isinstance(form_of(desc), ArrayForm)
    expected = (y.astype(np.float64) - y.mean(0, np.float64) + bias).astype(np.float32)
    inputs = (y.tobytes(), bias.tobytes())
    check_bytes(backend, Case("columns", desc, inputs, expected.tobytes(), absolute=5e-5))

    transposed = {"DataType": "INT32", "Sizes": x.shape, "Strides": [1, 700]}
    desc = operator_class("CUMULATIVE_SUMMATION").completed(
        {"InputTensor": {"DataType": "INT32", "Sizes": x.shape}, "Axis": 0, "OutputTensor": transposed}
    )
    assert isinstance(form_of(desc), Lines), "a slice is columns"
