"""The null backend: everything but the computation."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import strategies as ours
from tests.support.http_app import collect

from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost_server.backends import BACKENDS, load_backend
from tensorpost_server.backends.null import NullBackend
from tensorpost_server.engine import Worker
from tensorpost_server.planning import make_plan


@given(desc=ours.tile_descs(), slice_bytes=st.integers(8, 500))
@settings(max_examples=50, deadline=None)
def test_an_answer_is_zeros_of_the_right_length(desc: TileOperatorDesc, slice_bytes: int):
    plan = make_plan(desc, slice_bytes)
    backend = NullBackend()
    run = backend.start(plan, [])

    pieces = [(bytes(run.compute(index)), piece) for index, piece in enumerate(plan.slices)]

    assert all(block == bytes(piece.computed) for block, piece in pieces)
    assert plan.output_bytes == sum(len(block) + piece.padding for block, piece in pieces)
    run.close()
    backend.close()


@pytest.mark.parametrize("repeats", [3, 300_000], ids=["small", "long"])
def test_through_a_worker(repeats: int):
    plan = make_plan(TileOperatorDesc.of(BufferTensorDesc.packed("INT32", (2,)), (repeats,)), 65536)
    worker = Worker(NullBackend(), 3)
    try:
        found = worker.run_now(plan, []) if worker.is_small(plan) else asyncio.run(collect(worker.run(plan, [])))
    finally:
        worker.close()

    assert bytes(2 * 4 * repeats) == found


def test_it_takes_every_plan_and_is_never_chosen_by_auto():
    plan = make_plan(TileOperatorDesc.of(BufferTensorDesc.packed("UINT64", (2,)), (2,)), 65536)

    assert NullBackend().refusal_reason(plan) is None
    assert not BACKENDS["null"].auto
    assert load_backend("null") is NullBackend
    assert (NullBackend().name, NullBackend().device, NullBackend(4).threads) == ("null", "none (returns zeros)", 4)
