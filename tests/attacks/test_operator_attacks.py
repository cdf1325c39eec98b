"""Small documents of operators that ask for much: refused, or planned in little time with their memory counted."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from tests.support.http_app import assert_problem, frame_bytes, http_app

from tensorpost.descriptors import parse_operator
from tensorpost.values.problems import InvalidDescriptor
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.forms import BoxFunction, Copies
from tensorpost_server.planning import Plan, make_plan

MOST = 2**32 - 1
X = {"DataType": "FLOAT32", "Sizes": [2, 3]}
ONE_BYTE = {"DataType": "UINT8", "Sizes": [MOST], "Strides": [0]}


def plan_of(kind: str, **desc: Any) -> Plan:
    return make_plan(parse_operator({"type": kind, "desc": desc}, complete=True), 1 << 20)


def broadcast(*sizes: int) -> dict[str, Any]:
    """Four bytes that stand for a tensor of any size."""
    return {"DataType": "FLOAT32", "Sizes": list(sizes), "Strides": [0] * len(sizes)}


@pytest.mark.parametrize(
    ("kind", "desc", "place"),
    [
        ("SPLIT", {"InputTensor": ONE_BYTE, "OutputCount": MOST, "Axis": 0}, "OutputTensors"),
        ("SPLIT", {"InputTensor": X, "OutputCount": 2, "Axis": -3}, "Axis"),
        ("JOIN", {"InputTensors": [X], "Axis": -3}, "Axis"),
        ("JOIN", {"InputTensors": [X], "Axis": -(10**400)}, "Axis"),
        ("GATHER", {"InputTensor": X, "IndicesTensor": X, "Axis": -3}, "Axis"),
        ("TOP_K1", {"InputTensor": X, "Axis": -3, "K": 1}, "Axis"),
        ("FILL_VALUE_SEQUENCE", {"OutputTensor": X, "ValueStart": math.inf, "ValueDelta": 1}, "ValueStart"),
        ("FILL_VALUE_SEQUENCE", {"OutputTensor": X, "ValueStart": 0, "ValueDelta": 1e39}, "ValueDelta"),
        (
            "PADDING1",
            {
                "InputTensor": X,
                "PaddingMode": 0,
                "PaddingValue": math.nan,
                "StartPadding": [1, 1],
                "EndPadding": [0, 0],
            },
            "PaddingValue",
        ),
    ],
)
def test_refused_by_its_field(kind: str, desc: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidDescriptor) as error:
        parse_operator({"type": kind, "desc": desc}, complete=True)
    assert place in {violation.path[1] for violation in error.value.violations}


@pytest.mark.parametrize(
    "activation",
    [
        {"type": "ACTIVATION_RELU", "Type": "ACTIVATION_GELU"},
        {"type": "ACTIVATION_RELU", "desc": {"output_tensor": X}},
        {"type": "ACTIVATION_RELU", "desc": {1: 2}},
    ],
)
def test_nothing_of_a_fused_activation_is_ignored(activation: Any) -> None:
    square = {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 2]}
    with pytest.raises(InvalidDescriptor, match="FusedActivation"):
        plan_of("GEMM", ATensor=square, BTensor=square, FusedActivation=activation)


@pytest.mark.parametrize("mode", ["REFLECTION", "SYMMETRIC", "WRAP"])
@pytest.mark.parametrize(("sizes", "padding"), [([2], 10**6), ([2] * 8, 5)])
def test_a_padding_of_many_periods_is_one_function(mode: str, sizes: list[int], padding: int) -> None:
    tensor = {"DataType": "UINT8", "Sizes": sizes}
    pads = [padding] * len(sizes)
    plan = plan_of("PADDING1", InputTensor=tensor, PaddingMode=mode, StartPadding=pads, EndPadding=pads)
    assert isinstance(plan.steps[0].form, BoxFunction)


@pytest.mark.parametrize(
    ("plan", "least"),
    [
        (plan_of("TOP_K1", InputTensor=ONE_BYTE, Axis=0, K=1), 8 * MOST),  # positions of 64 bits are sorted
        (
            plan_of(
                "GEMM",
                ATensor={"DataType": "FLOAT16", "Sizes": [1, 1, 1, 1 << 24], "Strides": [0, 0, 0, 0]},
                BTensor={"DataType": "FLOAT16", "Sizes": [1, 1, 1 << 24, 1], "Strides": [0, 0, 0, 0]},
            ),
            8 << 24,  # both operands as float32
        ),
        (
            plan_of(
                "REDUCE", Function="LOG_SUM_EXP", InputTensor={"DataType": "FLOAT32", "Sizes": [1 << 23]}, Axes=[0]
            ),
            8 << 23,
        ),
        (
            plan_of(
                "MULTIHEAD_ATTENTION",
                **{name: broadcast(1, 1 << 20, 8) for name in ("QueryTensor", "KeyTensor", "ValueTensor")},
                HeadCount=8,
            ),
            2 * 8 * 4 << 20,  # keys and values as float32
        ),
        (plan_of("NONZERO_COORDINATES", InputTensor={"DataType": "UINT8", "Sizes": [1] * 7 + [1 << 21]}), 8 << 24),
        (
            plan_of(
                "QUANTIZE",
                InputTensor={"DataType": "FLOAT32", "Sizes": [1 << 24], "Strides": [0]},
                QuantizationTensors=[{"DataType": "FLOAT32", "Sizes": [1]}],
                OutputTensor={"DataType": "INT4", "Sizes": [1 << 24]},
            ),
            2 << 24,  # a byte for each element, before two of them are one, and with it
        ),
        (
            plan_of(
                "SCATTER_ND",
                InputTensor={"DataType": "UINT8", "Sizes": [1, 4]},
                IndicesTensor={"DataType": "UINT32", "Sizes": [1 << 24, 1], "Strides": [1, 0]},
                UpdatesTensor={"DataType": "UINT8", "Sizes": [1, 1 << 24], "Strides": [0, 0]},
                InputDimensionCount=1,
                IndicesDimensionCount=2,
            ),
            8 << 24,  # places of 64 bits
        ),
    ],
    ids=lambda value: value.operator if isinstance(value, Plan) else "",
)
def test_memory_beside_the_slices_is_held_against_the_budget(plan: Plan, least: int) -> None:
    assert NumpyBackend().held_bytes(plan) >= least


def test_windows_are_planned_without_looking_at_each_of_their_elements() -> None:
    """2^31 elements of four bytes of input: the copies are found by their ends, and every element is work."""
    image, most = {"DataType": "FLOAT32", "Sizes": [1, 1, 1, 1]}, 1 << 31
    columns = {"DataType": "FLOAT32", "Sizes": [1, most, 1], "Strides": [0, 0, 0]}
    covering = {"WindowSizes": [1 << 16, 1 << 15], "StartPadding": [(1 << 16) - 1, (1 << 15) - 1], "EndPadding": [0, 0]}
    inside = {"DataType": "FLOAT32", "Sizes": [1, 1, most], "Strides": [0, 0, 0]}
    assert isinstance(plan_of("UNFOLD", InputTensor=image, **covering).steps[0].form, BoxFunction)
    assert isinstance(plan_of("UNFOLD", InputTensor=inside, WindowSizes=[most]).steps[0].form, Copies)
    assert plan_of("FOLD", InputTensor=columns, OutputTensor=image, **covering).work >= 1000 * most


def test_every_step_of_a_recurrent_network_is_work() -> None:
    tensors = {"InputTensor": broadcast(1, MOST, 1, 1), "WeightTensor": broadcast(1, 1, 1, 1)}
    last = {"DataType": "FLOAT32", "Sizes": [1, 1, 1, 1]}
    plan = plan_of("RNN", **tensors, RecurrenceTensor=tensors["WeightTensor"], OutputSingleTensor=last)
    assert plan.work > 10**12  # TENSORPOST_MAX_WORK


def test_every_tap_of_a_filter_is_work() -> None:
    image = {"DataType": "FLOAT32", "Sizes": [1, 1, 256, 256], "Strides": [0, 0, 0, 0]}
    assert plan_of("CONVOLUTION", InputTensor=image, FilterTensor=image).work >= 1000 * 256 * 256


def test_types_of_4_bits_are_refused_not_failed() -> None:
    document = {"type": "ELEMENT_WISE_IDENTITY", "desc": {"InputTensor": {"DataType": "UINT4", "Sizes": [4]}}}
    with http_app() as client:
        json_headers = {"content-type": "application/json"}
        answer = client.post("/v1/validate", content=json.dumps(document).encode(), headers=json_headers)
        assert (answer.status_code, answer.json()["valid"]) == (200, False)
        frame = frame_bytes({"input": ("U8", [2], b"12")}, {"op": json.dumps(document)})
        headers = {"content-type": "application/vnd.safetensors"}
        answer = client.post("/v1/operators/element_wise_identity", content=frame, headers=headers)
        assert_problem(answer, 422, "unsupported-at-feature-level")
