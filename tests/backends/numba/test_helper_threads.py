"""Boxes that several threads compute in parts: the bytes that one thread makes, whoever computes beside it."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tensorpost.descriptors import BufferTensorDesc, OperatorDesc, parse_operator
from tensorpost_server.backends.numba_ import NumbaBackend
from tensorpost_server.planning import make_plan

SLICE_BYTES = 1 << 22
RNG = np.random.default_rng(28)
EXP, SUM = "ELEMENT_WISE_EXP", "REDUCE"


def call(kind: str, x: np.ndarray, strides: tuple[int, ...] | None = None, **fields: object) -> OperatorDesc:
    packed = BufferTensorDesc.packed(x.dtype, x.shape)
    tensor = {"DataType": packed.data_type, "Sizes": list(x.shape), "Strides": None if strides is None else [*strides]}
    return parse_operator({"type": kind, "desc": {"InputTensor": tensor, **fields}}, complete=True)


def made(backend: NumbaBackend, desc: OperatorDesc, x: np.ndarray) -> bytes:
    plan = make_plan(desc, SLICE_BYTES)
    assert backend.uses_numpy(plan) is None
    run = backend.start(plan, [np.ascontiguousarray(x).data.cast("B")])
    try:
        return b"".join([bytes(run.compute(index)) for index in range(len(plan.slices))])
    finally:
        run.close()


def parts(backend: NumbaBackend) -> list[int]:
    """How many parts each box fell into that was computed."""
    recipes = [*backend._recipes.values()]  # pyright: ignore[reportPrivateUsage] # what shows that the test tests it
    return [len(plan.programs) for recipe in recipes for plan in recipe.launch_plans.values()]


def helpers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("tensorpost-helper")}


def eventually(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while not holds() and time.monotonic() < end:
        time.sleep(0.001)
    return holds()


@pytest.fixture
def opened(numba: NumbaBackend) -> Iterator[Callable[[int], NumbaBackend]]:
    """Opens backends of so many threads."""
    backends: list[NumbaBackend] = []

    def one(threads: int) -> NumbaBackend:
        backends.append(NumbaBackend(threads=threads, kernels=numba.kernels))
        return backends[-1]

    yield one
    for backend in backends:
        backend.close()


X = RNG.standard_normal((2100, 1000), np.float32)  # 8.4 MB: of less nothing is divided
CASES = {
    "exp": call(EXP, X),
    "exp, input transposed": call(EXP, X.T, (1, 1000)),
    "sum of rows": call(SUM, X, Function="SUM", Axes=[1]),
    "sum of columns": call(SUM, X, Function="SUM", Axes=[0]),
    "largest of planes": call(SUM, X.reshape(21, 100, 1000), Function="MAX", Axes=[0, 2]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("threads", [2, 3, 9])
def test_the_bytes_do_not_depend_on_how_many_threads_compute(
    name: str, threads: int, opened: Callable[[int], NumbaBackend]
) -> None:
    alone, together = opened(1), opened(threads)
    expected = made(alone, CASES[name], X)

    assert {made(together, CASES[name], X) for _ in range(10)} == {expected}
    assert max(parts(together)) > 1


def test_callers_that_compute_at_the_same_time_get_their_own_bytes(opened: Callable[[int], NumbaBackend]) -> None:
    backend, desc = opened(3), CASES["exp"]
    inputs = [X + number for number in range(5)]
    expected = [made(opened(1), desc, x) for x in inputs]

    def repeat(number: int) -> set[bytes]:
        return {made(backend, desc, inputs[number]) for _ in range(10)}

    with ThreadPoolExecutor(5) as pool:
        assert [*pool.map(repeat, range(5))] == [{each} for each in expected]


def test_helpers_are_started_for_large_boxes_sleep_and_end_with_the_backend(
    opened: Callable[[int], NumbaBackend],
) -> None:
    before, backend = helpers(), opened(3)
    made(backend, call(EXP, X[:1500]), X[:1500])
    assert not helpers() - before, "what is small is computed by the thread that asks"

    made(backend, CASES["exp"], X)
    assert len(helpers() - before) == backend.helpers.count == 2
    assert eventually(lambda: backend.helpers.asleep == 2)
    backend.close()
    assert eventually(lambda: not helpers() - before)
    assert made(backend, CASES["exp"], X) == made(opened(1), CASES["exp"], X), "without helpers"


def test_helpers_end_when_nobody_uses_the_backend(numba: NumbaBackend) -> None:
    before, backend = helpers(), NumbaBackend(threads=2, kernels=numba.kernels)
    made(backend, CASES["exp"], X)
    assert helpers() - before

    del backend
    gc.collect()

    assert eventually(lambda: not helpers() - before)
