"""One suite, every backend that computes. The `backend` fixture is in conftest.py, the checks are in suite.py."""

from __future__ import annotations

import gc
import pickle
import random
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.suite import (
    ORACLES,
    Case,
    check_bytes,
    check_explained,
    in_other_layout,
    known_failures,
    layouts,
    running,
)
from tests.support import operator_cases
from tests.support import strategies as ours
from tests.support.batches import each
from tests.support.vectors import VectorsFile, all_hold, cases_of, vectors_files

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost_server.backends import BACKENDS, Backend
from tensorpost_server.planning import make_plan

TILES, LAYOUTS = cases_of("TILE"), layouts()


def known(backend: Backend, file: VectorsFile) -> dict[str, str]:
    """The cases of the file that this backend is known to fail, with their reasons."""
    entries = known_failures(backend.name)
    return {case.name: entries[f"{file} [{case}]"] for case in file.cases if f"{file} [{case}]" in entries}


@pytest.mark.parametrize("file", vectors_files(), ids=str)
def test_vectors(backend: Backend, file: VectorsFile):
    """At once, and in the smallest slices."""
    all_hold(file.cases, lambda case: check_bytes(backend, case), known(backend, file))
    all_hold(file.cases, lambda case: check_bytes(backend, case, 1, at_once=True), known(backend, file))


@pytest.mark.parametrize("file", vectors_files(), ids=str)
def test_vectors_in_other_layouts(backend: Backend, file: VectorsFile):
    """Where the elements lie in memory does not change them: permuted strides with gaps, drawn for every tensor."""
    if backend.name == "directml":
        pytest.skip("DirectML takes no strides in many of its tensors; its layouts are drawn in test_any_call")
    cases = [found for case in file.cases if (found := in_other_layout(case, random.Random(case.name))) is not None]
    all_hold(cases, lambda case: check_bytes(backend, case), known(backend, file))


@each("source", dict.fromkeys(case.name.split(" to ")[0] for case in LAYOUTS))
def test_every_type_in_every_kind_of_layout(backend: Backend, source: str):
    cases = [case for case in LAYOUTS if case.name.startswith(f"{source} to ")]
    assert len(cases) == 5
    all_hold(cases, lambda case: check_bytes(backend, case, 100))


@pytest.mark.parametrize("operator", operator_cases.STRATEGIES)
@given(data=st.data(), slice_bytes=st.one_of(st.just(1 << 20), st.integers(1, 700)), at_once=st.booleans())
@settings(max_examples=15, deadline=None)
def test_any_call(backends: list[Backend], operator: str, data: st.DataObject, slice_bytes: int, at_once: bool):
    case = data.draw(operator_cases.STRATEGIES[operator])
    for backend in backends:
        check = check_explained if backend.name == "directml" else check_bytes
        check(backend, case, slice_bytes, at_once=at_once)


@given(call=ours.tile_cases(), slice_bytes=st.integers(1, 700), at_once=st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_tile(backends: list[Backend], call: tuple[Any, bytes], slice_bytes: int, at_once: bool):
    desc, buffer = call
    case = Case("drawn", desc, (buffer,), ORACLES[type(desc)](desc, buffer))

    for backend in backends:
        check_bytes(backend, case, slice_bytes, at_once=at_once)


def test_slices_may_be_computed_in_any_order_and_twice(backend: Backend):
    case = LAYOUTS[0]
    with running(backend, case, 100) as (plan, run):
        forth = [bytes(run.compute(index)) for index in range(len(plan.slices))]
        back = [bytes(run.compute(index)) for index in reversed(range(len(plan.slices)))]

        assert len(forth) > 3
        assert forth == back[::-1]


def test_runs_at_the_same_time_do_not_mix(backend: Backend):
    first, second = TILES[0], TILES[5]
    with running(backend, first, 1 << 20) as (plan, run), running(backend, second, 1 << 20) as (other_plan, other):
        a, b = run.compute(0), other.compute(0)

        assert first.expected[: plan.output_bytes] == bytes(a)
        assert second.expected[: other_plan.output_bytes] == bytes(b)


def test_a_slice_stays_as_it_is_after_the_run_is_closed(backend: Backend):
    case = TILES[0]
    with running(backend, case, 1 << 20) as (_plan, run):
        block = run.compute(0)

    assert case.expected == bytes(block)


def test_a_closed_run_holds_no_input(backend: Backend):
    plan = make_plan(TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (64,)), (2,)), 1 << 20)
    memory = np.zeros(64, np.uint8)
    gone = weakref.ref(memory)
    run = backend.start(plan, [memory.data])
    run.compute(0)

    run.close()
    del memory
    gc.collect()

    assert gone() is None


def test_inputs_may_be_read_only(backend: Backend):
    plan = make_plan(TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (4,)), (2,)), 1 << 20)
    run = backend.start(plan, [memoryview(b"abcd")])

    assert bytes(run.compute(0)) == b"abcdabcd"
    run.close()


def test_a_backend_runs_a_plan_that_was_pickled(backend: Backend):
    plan = make_plan(TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (2, 2)), (2, 1)), 1 << 20)
    run = backend.start(pickle.loads(pickle.dumps(plan)), [memoryview(b"abcd")])

    assert bytes(run.compute(0)) == b"abcdabcd"
    run.close()


def test_a_backend_says_what_it_is(backend: Backend):
    assert backend.name in BACKENDS
    assert backend.device.isascii(), "it travels in a header"
    assert backend.device.isprintable()
    assert backend.threads >= 1
