"""Captured plans on an NVIDIA device: drawn graphs, run again with other inputs, beside the usual way."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.conformance.suite import vectors
from tests.support.cuda_device import missing_device
from tests.support.graph_cases import drawn_graph

from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.problems import InvalidDescriptor
from tensorpost_server.backends import Run
from tensorpost_server.backends.cuda.backend import CudaBackend
from tensorpost_server.backends.cuda.captured_plans import RUNS_BEFORE, CapturedRun
from tensorpost_server.backends.device_run import DeviceRun
from tensorpost_server.planning import Plan, make_plan

if (MISSING := missing_device()) is not None:
    pytest.skip(MISSING, allow_module_level=True)


def outputs_of(run: Run, plan: Plan) -> bytes:
    try:
        return b"".join([run.compute(index) for index in range(len(plan.slices))])
    finally:
        run.close()


def blocks_of(plan: Plan, inputs: Mapping[str, Any], turn: int) -> list[memoryview]:
    """The inputs with their elements moved around, so that indices stay within their axes."""
    moved = [np.roll(np.ascontiguousarray(inputs[slot.name]).reshape(-1), turn) for slot in plan.inputs]
    return [array.view(np.uint8).data for array in moved]


def test_drawn_graphs_give_the_bytes_of_the_usual_way():
    backend, captured = CudaBackend(), 0
    try:
        for seed in range(200):
            case = drawn_graph(random.Random(f"captured {seed}"), 8)
            plan = make_plan(case.read(), 1 << 20)
            if backend.refusal_reason(plan) is not None:
                continue
            for turn in range(RUNS_BEFORE + 4):
                blocks = blocks_of(plan, case.inputs, turn)
                try:
                    plan.check_indices(blocks)
                    expected = outputs_of(DeviceRun(backend, plan, blocks), plan)
                except InvalidDescriptor:  # an index that fits elsewhere only
                    continue
                run = backend.start(plan, blocks)
                captured += isinstance(run, CapturedRun) and turn == RUNS_BEFORE + 3
                found = outputs_of(run, plan)
                assert found == expected, (seed, turn, isinstance(run, CapturedRun))
    finally:
        backend.close()
    assert captured > 60, captured


def test_single_operators_give_the_bytes_of_the_usual_way():
    backend, captured = CudaBackend(), 0
    try:
        for case in vectors()[::8]:
            plan = make_plan(case.desc, 1 << 20)
            if backend.refusal_reason(plan) is not None:
                continue
            blocks = [memoryview(data) for data in case.inputs]
            runs = [backend.start(plan, blocks) for _ in range(RUNS_BEFORE + 3)]
            captured += isinstance(runs[-1], CapturedRun)
            expected = outputs_of(DeviceRun(backend, plan, blocks), plan)
            for run in runs:
                assert outputs_of(run, plan) == expected, case
    finally:
        backend.close()
    assert captured > 50, captured


def test_products_between_launches_give_the_bytes_of_the_usual_way():
    backend, rng = CudaBackend(), np.random.default_rng(2)
    nodes = [
        node
        for at in range(4)
        for node in (
            {"name": f"s{at}", "op_type": "Sigmoid", "inputs": [f"m{at - 1}" if at else "x"]},
            {"name": f"t{at}", "op_type": "Transpose", "inputs": [f"s{at}"], "attributes": {"perm": [1, 0]}},
            {"name": f"m{at}", "op_type": "MatMul", "inputs": [f"t{at}", f"s{at}"]},
        )
    ]
    document = {
        "inputs": {"x": {"data_type": "FLOAT32", "sizes": [64, 64]}}, "nodes": nodes, "outputs": {"m": "m3", "s": "s2"}
    }  # fmt: skip
    plan = make_plan(read_graph(document, None), 1 << 20)
    try:
        for turn in range(RUNS_BEFORE + 4):
            blocks = [rng.standard_normal((64, 64)).astype(np.float32).reshape(-1).view(np.uint8).data]
            run = backend.start(plan, blocks)
            assert isinstance(run, CapturedRun) == (turn >= RUNS_BEFORE)
            assert outputs_of(run, plan) == outputs_of(DeviceRun(backend, plan, blocks), plan), turn
    finally:
        backend.close()
