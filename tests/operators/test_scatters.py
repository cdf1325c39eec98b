"""Scatters and searches that are computed in parts, against loops of Python: several parts, and places that meet."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorpost.descriptors import operator_class
from tensorpost.onnx import OnnxNode
from tensorpost.values.operation import Operation
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.forms.base import Abandoned, stoppable
from tensorpost_server.operators import form_of
from tensorpost_server.operators.indexing import BLOCK
from tensorpost_server.planning import make_plan

SIZES = (2, 3, 301, 113)
RANDOM = np.random.default_rng(5)
COUNT = 204_078  # elements of SIZES
assert np.prod(SIZES) == COUNT > 3 * BLOCK

Array = NDArray[Any]


def computed(operation: Operation, *inputs: Array) -> list[Array]:
    plan = make_plan(operation, 1 << 30)
    run = NumpyBackend().start(plan, [memoryview(array.tobytes()) for array in inputs])
    outputs = [bytes(run.compute(index)) for index in range(len(plan.slices))]
    run.close()
    return [
        np.frombuffer(data, slot.layout.data_type.dtype).reshape(slot.layout.sizes)
        for data, slot in zip(outputs, operation.outputs, strict=True)
    ]


def tensor(array: Array) -> dict[str, Any]:
    return {"DataType": array.dtype.name.upper(), "Sizes": list(array.shape)}


def combined(data: Array, updates: Array, place: Callable[[tuple[int, ...]], Any], combine: Any) -> Array:
    """The updates one after the other, in row-major order; where `place` says None an update goes nowhere."""
    result = data.copy()
    for at in itertools.product(*[range(size) for size in updates.shape]):
        target = place(at)
        if target is not None:
            result[target] = combine(result[target], updates[at])
    return result


def along(indices: Array, axis: int, length: int) -> Callable[[tuple[int, ...]], tuple[int, ...] | None]:
    def place(at: tuple[int, ...]) -> tuple[int, ...] | None:
        index = int(indices[at])
        index += length * (index < 0)
        return (*at[:axis], index, *at[axis + 1 :]) if 0 <= index < length else None

    return place


@pytest.mark.parametrize("axis", range(4))
def test_the_last_of_the_updates_that_meet_stays(axis: int):
    data = np.zeros(SIZES, np.int32)
    length = SIZES[axis]
    indices = RANDOM.integers(-length - 1, length + 1, SIZES).astype(np.int32)
    updates = np.arange(1, COUNT + 1, dtype=np.int32).reshape(SIZES)
    desc = operator_class("SCATTER_ELEMENTS").completed(
        {"InputTensor": tensor(data), "IndicesTensor": tensor(indices), "UpdatesTensor": tensor(updates), "Axis": axis}
    )

    (output,) = computed(desc, data, indices, updates)

    expected = combined(data, updates, along(indices, axis, length), lambda _, update: update)
    np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize(
    ("reduction", "combine"), [("none", lambda _, y: y), ("add", lambda x, y: x + y), ("max", max)]
)
def test_updates_of_a_node_are_combined(reduction: str, combine: Any):
    sizes = (3, 271, 113)
    data = RANDOM.integers(-9, 9, sizes).astype(np.int64)
    indices = RANDOM.integers(-271, 271, sizes).astype(np.int64)
    updates = RANDOM.integers(-9, 9, sizes).astype(np.int64)
    node = OnnxNode.from_json({
        "op_type": "ScatterElements", "opset": 18, "attributes": {"axis": 1, "reduction": reduction},
        "inputs": {name: {"data_type": "int64", "shape": list(sizes)} for name in ("data", "indices", "updates")},
    })  # fmt: skip

    (output,) = computed(node, data, indices, updates)

    np.testing.assert_array_equal(output, combined(data, updates, along(indices, 1, 271), combine))


def test_rows_of_coordinates_beyond_the_tensor_are_left_out():
    data = np.zeros((1, 1, 40, 50), np.int32)
    count = 2 * BLOCK + 17
    indices = RANDOM.integers(0, 52, (1, 1, count, 2)).astype(np.uint32)
    updates = np.arange(1, count + 1, dtype=np.int32).reshape(1, 1, 1, count)
    desc = operator_class("SCATTER_ND").completed({
        "InputTensor": tensor(data), "IndicesTensor": tensor(indices), "UpdatesTensor": tensor(updates),
        "InputDimensionCount": 2, "IndicesDimensionCount": 2,
    })  # fmt: skip

    (output,) = computed(desc, data, indices, updates)

    expected = np.zeros((40, 50), np.int32)
    for (row, column), update in zip(indices[0, 0], updates[0, 0, 0], strict=True):
        if row < 40 and column < 50:
            expected[row, column] = update
    np.testing.assert_array_equal(output[0, 0], expected)


def test_coordinates_of_all_parts_are_those_of_the_tensor():
    data = RANDOM.integers(0, 3, SIZES).astype(np.float32) * np.float32(-0.0 + 1e-45)

    count, coordinates = computed(operator_class("NONZERO_COORDINATES").completed({"InputTensor": tensor(data)}), data)

    expected = [at for at in itertools.product(*[range(size) for size in SIZES]) if data[at] != 0]
    assert int(count.reshape(-1)[0]) == len(expected)
    rows = coordinates.reshape(-1, coordinates.shape[-1])
    np.testing.assert_array_equal(rows[: len(expected)], np.array(expected)[:, -rows.shape[1] :])
    assert not rows[len(expected) :].any()


@pytest.mark.parametrize("operator", ["SCATTER_ELEMENTS", "SCATTER_ND", "NONZERO_COORDINATES"])
def test_a_computation_whose_result_nobody_needs_ends_between_two_parts(operator: str):
    data = np.ones((1, 1, 1, 4 * BLOCK), np.float32)
    along_axis = np.arange(4 * BLOCK, dtype=np.uint32).reshape(data.shape)
    rows = along_axis.reshape(1, 1, -1, 1)
    fields, inputs = {
        "SCATTER_ELEMENTS": (
            {"IndicesTensor": tensor(along_axis), "UpdatesTensor": tensor(data), "Axis": 3},
            [data, along_axis, data],
        ),
        "SCATTER_ND": (
            {
                "IndicesTensor": tensor(rows), "UpdatesTensor": tensor(data),
                "InputDimensionCount": 1, "IndicesDimensionCount": 2,
            },
            [data, rows, data],
        ),
        "NONZERO_COORDINATES": ({}, [data]),
    }[operator]  # fmt: skip
    form = form_of(operator_class(operator).completed({"InputTensor": tensor(data), **fields}))
    asked = 0

    class StoppedThen(threading.Event):
        def is_set(self) -> bool:
            nonlocal asked
            asked += 1
            return asked > 2

    with stoppable(StoppedThen()), pytest.raises(Abandoned):
        form.compute(np, inputs)

    assert asked == 3


@pytest.mark.parametrize(("op_type", "places"), [("ScatterElements", [1]), ("ScatterND", [1, 1])])
def test_halves_that_are_combined_have_their_float32_copy_reserved(op_type: str, places: list[int]):
    count = 1 << 20
    node = OnnxNode.from_json({
        "op_type": op_type, "opset": 18, "attributes": {"reduction": "add"},
        "inputs": {
            "data": {"data_type": "float16", "shape": [count]}, "indices": {"data_type": "int64", "shape": places},
            "updates": {"data_type": "float16", "shape": [1]},
        },
    })  # fmt: skip

    assert make_plan(node, 1 << 20).steps[0].form.scratch_bytes(((0, count),)) >= 4 * count
