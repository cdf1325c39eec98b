"""Requests that compute for long: refused by their estimate, before a tensor is read, or ended between two slices."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.support.costly import means_of_columns
from tests.support.http_app import FRAME, JSON, assert_problem, frame_bytes, http_app, npy_bytes, request_bytes, serving

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost.onnx import OnnxNode
from tensorpost.values.problems import LimitExceeded
from tensorpost_server.engine.cost import CostMeter
from tensorpost_server.forms import base
from tensorpost_server.planning import Plan, make_plan


class Clock:
    """`time`, for a computation that takes so many seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(base, "time", found)
    return found


def tile(elements: int, slices: int = 4) -> Plan:
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (1, 1, 1, 1)), (1, 1, 1, elements))
    return make_plan(desc, elements // slices)


def takes(clock: Clock, seconds: float) -> Any:
    def compute(_index: int) -> memoryview:
        clock.now += seconds
        return memoryview(b"")

    return compute


def test_an_element_costs_what_it_was_seen_to_cost(clock: Clock) -> None:
    meter, plan = CostMeter(1, processor=True), tile(4 << 20)
    assert meter.seconds(plan) == pytest.approx(5e-9 * plan.work)  # 87 minutes for 10^12

    compute = meter.timer(plan).timed(plan.work // len(plan.slices), takes(clock, (1 << 20) * 2e-9))
    for index in range(4):
        compute(index)

    assert meter.seconds_per_element == pytest.approx({"*": 5e-9, "TILE": 2e-9 * (4 << 20) / plan.work})
    assert meter.seconds(plan) == pytest.approx(4 * (1 << 20) * 2e-9)


@pytest.mark.parametrize(("seconds", "rate"), [(1000.0, 16 * 5e-9), (0.0, 5e-9 / 16)])
def test_what_is_learnt_is_bounded(clock: Clock, seconds: float, rate: float) -> None:
    meter, plan = CostMeter(1, processor=True), tile(4 << 20)

    meter.timer(plan).timed(plan.work // len(plan.slices), takes(clock, seconds))(0)

    assert meter.seconds_per_element["TILE"] == pytest.approx(rate)


def test_threads_that_have_slices_share_the_time() -> None:
    plan = tile(4 << 20)

    assert [CostMeter(threads, processor=True).seconds(plan) / CostMeter(1, processor=True).seconds(plan)
            for threads in (1, 2, 4, 8)] == [1, 1 / 2, 1 / 4, 1 / 4]  # fmt: skip


def test_a_run_that_takes_longer_than_it_may_ends_between_two_slices(clock: Clock) -> None:
    meter, plan = CostMeter(2, processor=True), tile(4 << 20)
    meter.max_seconds = 10
    compute = meter.timer(plan).timed(plan.work // len(plan.slices), takes(clock, 7.0))

    for index in range(3):
        compute(index)  # 21 s on one thread are 10.5 s on two
    with pytest.raises(LimitExceeded, match="TENSORPOST_MAX_SECONDS"):
        compute(3)

    assert clock.now == 21


def test_one_slice_has_the_time_of_one_thread(clock: Clock) -> None:
    meter = CostMeter(8, processor=True)
    meter.max_seconds = 10
    plan = tile(4 << 20, slices=1)
    compute = meter.timer(plan).timed(plan.work, takes(clock, 11.0))

    compute(0)
    with pytest.raises(LimitExceeded, match="TENSORPOST_MAX_SECONDS"):
        compute(0)


def test_a_request_that_would_take_too_long_is_refused_before_its_tensor_is_read() -> None:
    desc = means_of_columns(8_000_000, 500)
    head = frame_bytes({"input": ("U8", [4], b"")}, {"op": json.dumps(desc.to_document())})
    head = head.replace(
        b'"data_offsets": [0, 0]', b'"data_offsets": [0, 4]'
    )  # the four bytes are announced and never sent
    with serving(max_seconds=1, backend="numpy", numpy_threads=1) as server:
        request = request_bytes("POST", "/v1/operators/resample3", head, FRAME | {"content-length": len(head) + 4})
        refused = server.ask(request)
        assert server.idle()

    problem = assert_problem(refused, 413, "limit-exceeded")
    assert (problem["setting"], problem["limit"], problem["unit"]) == ("TENSORPOST_MAX_SECONDS", 1, "seconds")


def test_validate_says_what_a_call_would_cost() -> None:
    desc = means_of_columns(8_000_000, 500)
    with http_app(backend="numpy", numpy_threads=1) as app:
        long: Any = app.post("/v1/validate", json.dumps(desc.to_document()), JSON).json()["cost"]
        node = {
            "op_type": "Tile",
            "opset": 13,
            "inputs": {"input": {"data_type": "float", "shape": [2]}, "repeats": [3]},
        }
        short: Any = app.post("/v1/validate", json.dumps(node), JSON).json()["cost"]
        invalid: Any = app.post("/v1/validate", "{}", JSON).json()
        rates: Any = app.get("/v1/limits").json()["seconds_per_element"]

    assert long["seconds"] == pytest.approx(long["work"] * 5e-9, rel=0.1)
    assert long["summary"] == f"this would take about {long['seconds']:.2g} s and 504 bytes"
    assert short["summary"] == "this would take about 30 ns and 32 bytes"
    assert (short["work"], short["memory_bytes"]) == (6, 4 * 2 + 4 * 6)
    assert "cost" not in invalid or invalid["cost"] is None
    assert rates[long["backend"]]["*"] == 5e-9


def test_the_bound_holds_for_calls_that_are_in_the_call_cache() -> None:
    target = f"/v1/operators/tile?repeats={1 << 27}"
    body = npy_bytes([1], "uint8")
    with serving(max_seconds=60, numpy_threads=1) as server:
        with server.wire() as wire:
            wire.send(request_bytes("POST", target, body, {"content-type": "application/x-npy"}))
            assert wire.head()[0] == 200
        for worker in server.service.workers().workers.values():
            worker.costs.max_seconds = 1e-6
        refused = server.ask(request_bytes("POST", target, body, {"content-type": "application/x-npy"}))

    assert_problem(refused, 413, "limit-exceeded")


def test_resampled_integers_have_a_cost_of_their_own(clock: Clock) -> None:
    def resized(dtype: str) -> Plan:
        inputs = {"X": np.zeros((64, 64), dtype), "scales": [2.0, 2.0]}
        return make_plan(OnnxNode.of("Resize", inputs, opset=19, mode="linear"), 1 << 30)

    meter, floats, integers = CostMeter(1, processor=True), resized("float32"), resized("uint16")

    meter.timer(floats).timed(1 << 20, takes(clock, 1e-3))(0)

    assert meter.seconds(integers) == pytest.approx(5e-9 * integers.work), "what floats took says nothing of them"
    meter.timer(integers).timed(1 << 20, takes(clock, 8e-3))(0)
    assert meter.seconds(integers) / meter.seconds(floats) == pytest.approx(8 * integers.work / floats.work)


def test_what_onnx_runtime_computes_has_a_cost_of_its_own(clock: Clock) -> None:
    """ResNet-50 with 32 images reads 1.3e11 elements, which ONNX Runtime takes seconds for."""
    pytest.importorskip("onnx", reason="it infers the node's output")
    pytest.importorskip("onnxruntime", reason="it computes the node")
    inputs = {"X": np.zeros((8, 64, 64, 64), np.float32), "W": np.zeros((64, 64, 3, 3), np.float32)}
    convolution = make_plan(OnnxNode.of("Conv", inputs, opset=11, pads=[1, 1, 1, 1]), 1 << 30)
    meter, copies = CostMeter(1, processor=True), tile(4 << 20)

    assert convolution.work > 8 * 64 * 64 * 64 * 64 * 9 / 2
    assert meter.seconds(convolution) == pytest.approx(2e-10 * convolution.work)
    meter.timer(convolution).timed(1 << 20, takes(clock, 1e-5))(0)
    assert meter.seconds(convolution) < 2e-11 * convolution.work
    assert meter.seconds(copies) == pytest.approx(5e-9 * copies.work)
