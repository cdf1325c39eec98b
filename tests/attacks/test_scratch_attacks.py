"""Small requests whose windows are huge: what is computed between input and output stays within a bound."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from tests.support.descriptors import made

from tensorpost.descriptors import Resample2OperatorDesc, Resample3OperatorDesc, ResampleGrad1OperatorDesc
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import Plan, make_plan

MOST_SCRATCH = 32 << 20  # bytes for one slice, its output included


def broadcast(data_type: str, *sizes: int) -> dict[str, Any]:
    """Four bytes, or less, that stand for a tensor of any size."""
    return {"DataType": data_type, "Sizes": sizes, "Strides": [0] * len(sizes)}


def packed(data_type: str, *sizes: int) -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": sizes}


def resample(source: dict[str, Any], target: dict[str, Any], scales: list[float], **fields: Any) -> Plan:
    rank = len(scales)
    cls = Resample3OperatorDesc if "antialiased" in fields else Resample2OperatorDesc
    desc = cls.model_validate(
        {
            "input_tensor": source, "output_tensor": target, "interpolation_mode": "LINEAR",
            "rounding_direction": "DECREASING", "scales": scales, "input_pixel_offsets": [0.5] * rank,
            "output_pixel_offsets": [-0.5] * rank, **fields,
        }
    )  # fmt: skip
    return make_plan(desc, 2 << 20)


def gradient(data_type: str, *sizes: int) -> Plan:
    desc = made(
        ResampleGrad1OperatorDesc, input_gradient_tensor=broadcast(data_type, *sizes),
        output_gradient_tensor=packed(data_type, *[1] * len(sizes)),
        interpolation_mode="LINEAR", rounding_direction="DECREASING", scales=[1] * len(sizes),
        input_pixel_offsets=[0.5] * len(sizes), output_pixel_offsets=[-0.5] * len(sizes),
    )  # fmt: skip
    return make_plan(desc, 2 << 20)


def resize(data_type: str, shape: tuple[int, ...], mode: str = "linear", **inputs: Any) -> Plan:
    attributes: dict[str, Any] = {"mode": mode, "antialias": 1}
    if "roi" in inputs:
        attributes |= {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 1.0}
    return make_plan(OnnxNode("Resize", {"X": OnnxTensor(data_type, shape), **inputs}, attributes, opset=19), 2 << 20)


def crop(data_type: str, mode: str) -> Plan:
    """Five elements seen through a filter of 2^18 or 2^19 taps, 16 times."""
    scale = 2.0**-17
    return resize(data_type, (5,), mode, roi=[0.0, 16.5 / scale / 5], scales=[scale])


def scratch(plan: Plan) -> tuple[int, np.ndarray[Any, Any]]:
    """Bytes that the first slice took at most, and its elements, all inputs being 1."""
    (slot,) = plan.inputs
    memory = np.ones(slot.layout.size_in_bytes // slot.layout.data_type.item_size, slot.layout.data_type.dtype)
    run = NumpyBackend().start(plan, [memory.view(np.uint8).data])
    tracemalloc.start()
    try:
        made = run.compute(0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak, np.frombuffer(made, plan.outputs[0].layout.data_type.dtype)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(
            lambda: resample(broadcast("UINT8", 1 << 22), packed("UINT8", 1), [1.2e-7], antialiased=True),
            id="one window of 2^22 taps",
        ),
        pytest.param(
            lambda: resample(
                broadcast("UINT8", 1024, 1 << 16), packed("UINT8", 1024, 1 << 16), [1e-3, 1], antialiased=True
            ),
            id="wide windows across long rows",
        ),
        pytest.param(
            lambda: resample(
                broadcast("FLOAT32", 256, 256, 256), packed("FLOAT32", 1, 1, 1), [1.2e-7] * 3, antialiased=True
            ),
            id="windows in three dimensions",
        ),
        pytest.param(
            lambda: resample(broadcast("FLOAT32", 9, 1 << 24), packed("FLOAT32", 1, 1 << 20), [0.1, 2.0**-12]),
            id="few outputs far apart",
        ),
        pytest.param(
            lambda: resample(
                broadcast("UINT8", 64, 1 << 22), packed("UINT8", 64, 1 << 16), [1, 2.0**-9], antialiased=True
            ),
            id="half of the outputs past the end",
        ),
        pytest.param(lambda: crop("uint8", "linear"), id="a few integers under a wide filter"),
        pytest.param(lambda: crop("float32", "cubic"), id="a few floats under a wide cubic filter"),
        pytest.param(lambda: resize("uint8", (1 << 14, 1), sizes=[1, 1 << 9]), id="rounded between the axes"),
        pytest.param(lambda: resize("int64", (1 << 14, 1), sizes=[1, 1 << 7]), id="the same with 64 bits"),
        pytest.param(lambda: resize("uint8", (1 << 18, 1), sizes=[1, 32]), id="the same with a window of 2^19 taps"),
    ],
)
def test_memory_does_not_grow_with_windows(plan: Any) -> None:
    peak, ones = scratch(plan())

    assert peak < MOST_SCRATCH
    if ones.dtype.kind == "f":
        np.testing.assert_allclose(ones, 1, rtol=1e-6)
    else:
        assert (ones == 1).all()


def test_a_gradient_that_gathers_everything_takes_little_memory() -> None:
    peak, (total,) = scratch(gradient("FLOAT32", 1 << 21))

    assert peak < MOST_SCRATCH
    assert total == 1 << 21
