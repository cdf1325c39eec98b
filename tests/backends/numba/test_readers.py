"""Axes on which entries are read by more outputs, or lie further apart, than the scale says."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpost.descriptors import BufferTensorDesc, OperatorDesc, ResampleGrad1OperatorDesc
from tensorpost.descriptors import Resample1OperatorDesc as Resample1
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost_server.backends.numba_ import NumbaBackend, launch_plan
from tensorpost_server.backends.numba_.tap_tables import MOST_ENTRIES, MOST_READ, most_taps, table_of
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.forms.resample_axes import AdjointAxis, LinearAxis, Nearest, NearestAxis
from tensorpost_server.forms.separable import Separable
from tensorpost_server.planning import make_plan

EVERY_512TH, EVERY_16TH = 1.5 * 2.0**32, 1.5 * 2.0**27  # float32 numbers there are so far apart


def gradient(elements: int, step: int, far: float) -> OperatorDesc:
    """A gradient of scale 1 in which o - OutputPixelOffset is rounded to a multiple of `step`; no output is clamped."""
    of, to = (BufferTensorDesc(data_type="FLOAT32", sizes=(n,)) for n in (elements - 4 * step, elements))
    return ResampleGrad1OperatorDesc.completed(
        {
            "InputGradientTensor": of,
            "OutputGradientTensor": to,
            "InterpolationMode": "LINEAR",
            "RoundingDirection": "DECREASING",
            "Scales": [1],
            "InputPixelOffsets": [far - 2 * step],
            "OutputPixelOffsets": [-far],
        }
    )


def test_a_gradient_whose_readers_come_together_by_rounding_is_numpys(numba: NumbaBackend):
    plan = make_plan(gradient(60_000, 512, EVERY_512TH), 1 << 20)
    assert isinstance(plan.steps[0].form, Separable)
    axis = plan.steps[0].form.axes[0]
    assert axis is not None

    assert axis.most_taps(0, 4096) > 256, "the case is what it says"
    assert numba.uses_numpy(plan) == "sums of 64 or more elements are computed by numpy"


def test_a_few_readers_more_are_summed_as_numpy_does(numba: NumbaBackend):
    plan = make_plan(gradient(3000, 16, EVERY_16TH), 1 << 20)
    inputs = [memoryview(np.random.default_rng(1).standard_normal(3000 - 64, np.float32).tobytes())]

    assert numba.uses_numpy(plan) is None
    got, expected = (backend.start(plan, inputs).compute(0) for backend in (numba, NumpyBackend()))
    assert bytes(got) == bytes(expected)


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    scale=st.floats(2.0**-6, 2.0**6, width=32),
    far=st.floats(-(2.0**34), 2.0**34, width=32),
    near=st.floats(-300, 300, width=32),
    rule=st.sampled_from([None, *Nearest]),
)
def test_no_element_has_more_readers_than_the_bound(
    sizes: tuple[int, int], scale: float, far: float, near: float, rule: Nearest | None
):
    shift = float(np.float32(-far / scale + near))  # so that some outputs fall on the input
    numbers = (*sizes, scale, shift, far)
    axis = AdjointAxis(LinearAxis(*numbers) if rule is None else NearestAxis(*numbers, rule))

    assert most_taps(axis) >= axis.most_taps(0, axis.output_size)


@pytest.mark.parametrize("scale", [1.0, 2.0, 2.5, 16.0, 31.0])
def test_the_bound_is_what_the_scale_says_where_nothing_is_rounded(scale: float):
    axis = AdjointAxis(LinearAxis(1000, int(1000 * scale), scale, 0.5, -0.5))

    assert most_taps(axis) == 2 * scale + 1


@pytest.mark.parametrize("roi", [(0.0, 1.0), (1.0, 0.0)])
def test_a_roi_read_backwards_is_as_dense_as_forwards(numba: NumbaBackend, roi: tuple[float, float]):
    attributes = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    inputs = {"X": OnnxTensor("float16", (1 << 20,)), "roi": roi, "sizes": [64]}
    plan = make_plan(OnnxNode("Resize", inputs, attributes, opset=19), 1 << 20)

    assert numba.uses_numpy(plan) == "an axis that skips more than 64 entries between two is computed by numpy"


def resampled(entries: int, outputs: int, scale: float, shift: float, far: float) -> OperatorDesc:
    """A Resample of as many float16 as wanted, all of them the same two bytes."""
    return Resample1.completed(
        {
            "InputTensor": BufferTensorDesc(data_type="FLOAT16", sizes=(entries,), strides=(0,)),
            "OutputTensor": BufferTensorDesc(data_type="FLOAT16", sizes=(outputs,)),
            "InterpolationMode": "LINEAR",
            "Scales": [scale],
            "InputPixelOffsets": [shift],
            "OutputPixelOffsets": [far],
        }
    )


@pytest.mark.parametrize(
    "desc",
    [
        resampled(1 << 24, 1 << 20, 1e-6, 0.5, -0.5),  # 17 outputs far apart, all others at the end
        resampled((1 << 20) + 1, 1 << 20, 1.0, 1.5 * 2.0**41, -1.5 * 2.0**41),  # 2^18 outputs at one place, then a leap
    ],
    ids=["clamped", "rounded"],
)
def test_an_uneven_axis_needs_no_more_scratch_memory_than_an_even_one(numba: NumbaBackend, desc: OperatorDesc):
    plan = make_plan(desc, 1 << 21)
    run = numba.start(plan, [memoryview(np.ones(1, np.float16).tobytes())])

    out = np.frombuffer(run.compute(0), np.float16)
    recipe = numba._recipe(plan.steps[0])
    plan_of_slice = recipe.new_launch_plan((0, 0), recipe.targets[0], plan.slices.piece(0).box)
    numba.close()

    assert numba.uses_numpy(plan) is None
    assert plan_of_slice.scratch < 16 * MOST_READ
    assert (out == 1).all()


def test_an_uneven_axis_is_read_as_it_says(numba: NumbaBackend):
    step, far = 1 << 14, 1.5 * 2.0**37
    of, to = (BufferTensorDesc.packed(np.dtype(np.float32), (size,)) for size in ((1 << 16) + 1, 1 << 16))
    fields: dict[str, Any] = {"InputTensor": of, "OutputTensor": to, "InterpolationMode": "LINEAR", "Scales": [1]}
    desc = Resample1.completed({**fields, "InputPixelOffsets": [far], "OutputPixelOffsets": [-far]})
    plan = make_plan(desc, 1 << 20)

    run = numba.start(plan, [memoryview(np.arange((1 << 16) + 1, dtype=np.float32).tobytes())])
    out = np.frombuffer(run.compute(0), np.float32)

    # o + far to the nearest multiple of `step`, of two equally near ones the even multiple, as IEEE 754 rounds
    assert np.array_equal(out, np.round(np.arange(1 << 16) / step) * step)
    assert isinstance(plan.steps[0].form, Separable)
    axis = plan.steps[0].form.axes[0]
    assert axis is not None
    table = table_of(axis, 0, 1 << 16)
    ends = [0, *(block.stop for block in table.blocks)]
    assert ends == [*(block.start for block in table.blocks), 1 << 16]
    assert max(block.high - block.low for block in table.blocks) <= MOST_READ


def test_a_table_of_many_taps_is_made_in_parts_one_at_a_time(numba: NumbaBackend):
    elements, scale = 1 << 17, 30
    of, to = (BufferTensorDesc(data_type="FLOAT16", sizes=(n,), strides=(0 if n > elements else 1,))
              for n in (elements * scale, elements))  # fmt: skip
    fields: dict[str, Any] = {"InputGradientTensor": of, "OutputGradientTensor": to, "InterpolationMode": "LINEAR"}
    desc = ResampleGrad1OperatorDesc.completed({**fields, "RoundingDirection": "DECREASING", "Scales": [scale]})
    plan = make_plan(desc, 1 << 20)
    inputs = [memoryview(np.ones(1, np.float16).tobytes())]

    tracemalloc.start()
    try:
        out = bytes(numba.start(plan, inputs).compute(0))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 200 * MOST_ENTRIES
    assert out == bytes(NumpyBackend().start(plan, inputs).compute(0))


def test_large_scratch_memory_is_given_back():
    scratch = launch_plan.Scratch()

    small = scratch.block(100)
    scratch.block(launch_plan.MOST_SCRATCH_KEPT + 1)

    assert scratch.kept is small, "and the small block is still there for the next plan"
    assert scratch.block(50) is small
    assert scratch.block(launch_plan.MOST_SCRATCH_KEPT)[0].size == launch_plan.MOST_SCRATCH_KEPT
    assert scratch.kept is not small
