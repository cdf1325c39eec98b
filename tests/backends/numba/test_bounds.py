"""What the numba backend leaves to numpy so that its memory stays bounded, and what it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorpost.descriptors import BufferTensorDesc, OperatorDesc, ResampleGradOperatorDesc, ResampleOperatorDesc
from tensorpost.descriptors import TileOperatorDesc as Tile
from tensorpost_server.backends import numba_ as module
from tensorpost_server.backends.numba_ import NumbaBackend
from tensorpost_server.planning import make_plan


def linear(entries: int, outputs: int, scale: float) -> OperatorDesc:
    """A Resample of one axis to so many outputs, whatever the scale says."""
    return ResampleOperatorDesc.completed(
        {
            "InputTensor": BufferTensorDesc.packed(np.dtype(np.uint8), (entries,)),
            "OutputTensor": BufferTensorDesc.packed(np.dtype(np.uint8), (outputs,)),
            "InterpolationMode": "LINEAR",
            "Scales": [scale],
        }
    )


def reason(numba: NumbaBackend, subject: Any) -> str | None:
    return numba.uses_numpy(make_plan(subject, 1 << 20))


@pytest.mark.parametrize(
    ("entries", "outputs", "scale", "taken"),
    [
        (1 << 20, 1 << 15, 1 / 32, True),
        (1 << 20, 1 << 13, 1 / 128, False),
        (1 << 26, 64, 64 / (1 << 26), False),
        (1 << 26, 64, 1.0, True),  # 64 neighbours, wherever the axis ends
    ],
)
def test_outputs_that_are_far_apart_in_the_input_are_numpys(
    numba: NumbaBackend, entries: int, outputs: int, scale: float, taken: bool
):
    said = reason(numba, linear(entries, outputs, scale))

    assert (said is None) is taken, said
    if not taken:
        assert said == "an axis that skips more than 64 entries between two is computed by numpy"


@pytest.mark.parametrize(("elements", "taken"), [(63, True), (64, False)])
def test_sums_of_64_elements_are_numpys(numba: NumbaBackend, elements: int, taken: bool):
    of, to = (BufferTensorDesc.packed(np.dtype(np.float32), (size,)) for size in (elements, 1))
    fields = {"InputGradientTensor": of, "OutputGradientTensor": to, "InterpolationMode": "LINEAR", "Scales": [1]}

    said = reason(numba, ResampleGradOperatorDesc.completed(fields))

    assert said == (None if taken else "sums of 64 or more elements are computed by numpy")


def test_gradients_of_integers_are_numpys(numba: NumbaBackend):
    of, to = (BufferTensorDesc.packed(np.dtype(np.float32), (size,)) for size in (16, 8))
    fields = {
        "InputGradientTensor": of,
        "OutputGradientTensor": to,
        "InterpolationMode": "LINEAR",
        "Scales": [2],
    }
    plan = make_plan(ResampleGradOperatorDesc.completed(fields), 1 << 20)

    assert numba.uses_numpy(plan) is None
    assert (
        module._planner_for(plan.steps[0].form, ("int8",), ("int8",)) == "gradients of integers are computed by numpy"
    )


def test_calls_that_are_kept_for_the_next_request_are_counted(numba: NumbaBackend, monkeypatch: pytest.MonkeyPatch):
    numba.close()
    monkeypatch.setattr(module, "MOST_KEPT", 5000)
    desc = Tile.of(BufferTensorDesc(data_type="UINT8", sizes=(3, 5), strides=(7, 1)), (40, 3))
    plan = make_plan(desc, 15)
    run = numba.start(plan, [memoryview(bytes(plan.inputs[0].layout.size_in_bytes))])
    for index in range(len(plan.slices)):
        run.compute(index)

    recipe = numba._recipe(plan.steps[0])
    assert 0 < len(recipe.launch_plans) < len(plan.slices), "the first slices are kept, as many as fit"
    assert sum(recipe.kept.values()) <= 5000
    assert sum(made.nbytes for made in recipe.launch_plans.values()) <= sum(recipe.kept.values())
    run.close()
    numba.close()
