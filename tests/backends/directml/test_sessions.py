"""The cache of sessions on a fake ONNX Runtime: options, bounds, locks, and what failures become."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.support.fake_onnxruntime import FakeRuntime

from tensorpost.datatypes import data_type
from tensorpost.problems import NoBackend, ServerFault, Unavailable
from tensorpost_server.backends.directml.model import Constant, Node, TensorType, model_bytes
from tensorpost_server.backends.directml.runtime import CPU, DIRECTML
from tensorpost_server.backends.directml.sessions import MOST_REFUSALS, Sessions


def tile(size: int) -> Node:
    given, made = (TensorType(data_type("uint8"), (length,)) for length in (size, 2 * size))
    return Node("Tile", 13, (given, Constant.vector("int64", (2,))), (made,))


def sessions(runtime: object, provider: str = DIRECTML, **bounds: int) -> Sessions:
    return Sessions(runtime, provider, 3, **bounds)  # pyright: ignore[reportArgumentType] # a fake is no module


def test_a_session_has_the_options_that_the_provider_demands() -> None:
    runtime = FakeRuntime()
    sessions(runtime).get(tile(1))

    ((model, options, providers),) = runtime.made
    assert model == model_bytes(tile(1))
    assert options.execution_mode == "sequential"
    assert options.enable_mem_pattern is False
    assert options.entries == {"session.disable_cpu_ep_fallback": "1"}
    assert providers == [("DmlExecutionProvider", {"device_id": "3"})]


def test_on_the_cpu_there_is_nothing_to_fall_back_from() -> None:
    """ONNX Runtime refuses a session that names the CPU provider and forbids falling back to it."""
    runtime = FakeRuntime()
    sessions(runtime, CPU).get(tile(1))

    ((_, options, providers),) = runtime.made
    assert options.entries == {}
    assert providers == [("CPUExecutionProvider", {})]


def test_a_session_is_made_once() -> None:
    runtime = FakeRuntime()
    kept = sessions(runtime)

    assert kept.get(tile(1)) is kept.get(tile(1))
    assert kept.get(tile(2)) is not kept.get(tile(1))
    assert len(runtime.made) == 2


def test_the_least_used_goes_first() -> None:
    runtime = FakeRuntime()
    kept = sessions(runtime, most=2)
    first = kept.get(tile(1))
    kept.get(tile(2))
    kept.get(tile(1))
    kept.get(tile(3))

    assert len(kept) == 2
    assert kept.get(tile(1)) is first
    assert len(runtime.made) == 3
    kept.get(tile(2))
    assert len(runtime.made) == 4, "it had been dropped"


def test_bytes_are_bounded_and_the_newest_stays() -> None:
    kept = sessions(FakeRuntime(), most_bytes=30)
    for size in (5, 5, 4, 5):
        kept.get(tile(size))
    assert len(kept) == 2, "15 + 12 bytes"
    large = kept.get(tile(1000))

    assert len(kept) == 1
    assert kept.get(tile(1000)) is large


def test_data_go_to_the_provider_s_device() -> None:
    runtime = FakeRuntime()
    for provider in (DIRECTML, CPU):
        kept = sessions(runtime, provider)
        kept.upload(kept.get(tile(1)), [np.zeros(1, np.uint8)])

    assert runtime.uploads == [("dml", 3), ("cpu", 0)]


def test_one_thread_at_a_time_runs_a_session() -> None:
    runtime = FakeRuntime()
    kept = sessions(runtime)
    session = kept.get(tile(4))
    with ThreadPoolExecutor(4) as threads:
        outs = list(threads.map(lambda _: kept.run(session, [None]), range(12)))

    assert runtime.most_at_once == 1
    assert all(out.tolist() == [1] * 8 for (out,) in outs)
    assert len({out.ctypes.data for (out,) in outs}) == 12, "each run has memory of its own"


def test_what_the_provider_does_not_take_is_remembered() -> None:
    runtime = FakeRuntime(fails_to_make=RuntimeError("Could not\n find an implementation"))
    kept = sessions(runtime)
    assert kept.refusal(tile(1)) is None

    with pytest.raises(NoBackend, match="DmlExecutionProvider does not take this Tile: Could not find an") as raised:
        kept.get(tile(1))

    assert raised.value.extra["refused"] == {"directml": kept.refusal(tile(1))}
    for size in range(2, MOST_REFUSALS + 2):
        with pytest.raises(NoBackend):
            kept.get(tile(size))
    assert kept.refusal(tile(1)) is None, "forgotten, so that memory is bounded"
    assert kept.refusal(tile(2)) is not None


@pytest.mark.parametrize(
    ("said", "expected", "words"),
    [
        ("hr 887A0005 The GPU device instance has been suspended", ServerFault, "was lost in a Tile"),
        ("DXGI_ERROR_DEVICE_HUNG", ServerFault, "was lost in a Tile"),
        ("Exception(1) tid(2) 8007000E Not enough memory resources", Unavailable, "has no memory for this Tile"),
        ("80004005 Unspecified error", ServerFault, "failed in a Tile: 80004005"),
    ],
)
def test_after_a_failure_everything_is_made_anew(said: str, expected: type[Exception], words: str) -> None:
    runtime = FakeRuntime()
    kept = sessions(runtime)
    session, other = kept.get(tile(1)), kept.get(tile(2))
    runtime.fails_to_run = RuntimeError(said)

    with pytest.raises(expected, match=words):
        kept.run(session, [None])

    runtime.fails_to_run = None
    assert len(kept) == 0
    again = kept.get(tile(1))
    assert again is not session
    assert again is not other
    assert kept.run(again, [None])[0].tolist() == [1, 1]


@pytest.mark.parametrize(("said", "expected"), [("887A0006", ServerFault), ("8007000E", Unavailable)])
def test_a_device_that_fails_while_a_session_is_made_is_no_refusal(said: str, expected: type[Exception]) -> None:
    runtime = FakeRuntime()
    kept = sessions(runtime)
    kept.get(tile(2))
    runtime.fails_to_make = RuntimeError(said)

    with pytest.raises(expected):
        kept.get(tile(1))

    assert kept.refusal(tile(1)) is None
    assert len(kept) == 0
