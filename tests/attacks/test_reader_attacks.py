"""A gradient that looks small, whose elements are read by hundreds of outputs each because float32 rounds."""

from __future__ import annotations

import json

import httpx
import numpy as np
import pytest
from safetensors.numpy import save
from tests.support.live_server import live_server

from tensorpost.descriptors import parse_operator
from tensorpost_server.planning import make_plan

FAR = 1.5 * 2.0**32  # float32 numbers there are 512 apart


def gradient(elements: int) -> dict[str, object]:
    of = {"DataType": "FLOAT16", "Sizes": [elements - 2048], "Strides": [0]}
    to = {"DataType": "FLOAT16", "Sizes": [elements]}
    return {
        "InputGradientTensor": of, "OutputGradientTensor": to, "InterpolationMode": "LINEAR",
        "RoundingDirection": "DECREASING", "Scales": [1], "InputPixelOffsets": [FAR - 1024],
        "OutputPixelOffsets": [-FAR],
    }  # fmt: skip


def test_its_work_counts_the_readers_that_rounding_brings_together() -> None:
    plan = make_plan(parse_operator({"type": "RESAMPLE_GRAD1", "desc": gradient(60_000)}), 1 << 20)

    assert plan.work > 60_000 * 512


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 4.0])
def test_the_work_of_an_ordinary_gradient_is_what_it_was(scale: float) -> None:
    of = {"DataType": "FLOAT32", "Sizes": [int(1000 * scale)]}
    to = {"DataType": "FLOAT32", "Sizes": [1000]}
    desc = {
        "InputGradientTensor": of, "OutputGradientTensor": to, "InterpolationMode": "LINEAR", "Scales": [scale],
        "RoundingDirection": "DECREASING", "InputPixelOffsets": [0.25], "OutputPixelOffsets": [-0.5],
    }  # fmt: skip
    plan = make_plan(parse_operator({"type": "RESAMPLE_GRAD1", "desc": desc}), 1 << 20)

    # the output, and along its only axis the two taps of each element of the gradient
    assert plan.work == 1000 + 2 * int(1000 * scale)


def test_more_of_it_than_the_setting_allows_is_refused() -> None:
    body = save({"input_gradient": np.zeros(4, np.uint8)},
                {"op": json.dumps({"type": "RESAMPLE_GRAD1", "desc": gradient(60_000)})})  # fmt: skip
    with live_server(TENSORPOST_MAX_WORK="10000000") as url:
        answer = httpx.post(
            url + "/v1/operators/resample_grad1", content=body,
            headers={"content-type": "application/vnd.safetensors"},
        )  # fmt: skip

    assert answer.status_code == 413, answer.text
    assert answer.json()["setting"] == "TENSORPOST_MAX_WORK"
