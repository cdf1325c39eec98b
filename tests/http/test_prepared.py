"""Calls that are remembered hold about as much memory as is counted for them."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from tests.support.http_app import http_app, npy_bytes


def tile(rank: int, number: int) -> str:
    repeats = [1 + number % 7, 1 + number // 7, *[1] * (rank - 2)]
    return "/v1/operators/tile?repeats=" + ",".join(map(str, repeats))


def resize(rank: int, number: int) -> str:
    sizes = [2 + number % 7, 1 + number // 7, *[1] * (rank - 2)]
    return "/v1/onnx/Resize?opset=19&mode=linear&sizes=" + ",".join(map(str, sizes))


@pytest.mark.parametrize(("url", "rank"), [(tile, 2), (tile, 8), (resize, 2), (resize, 16), (resize, 64)])
def test_a_remembered_call_holds_what_is_counted(url: Callable[[int, int], str], rank: int) -> None:
    body = npy_bytes(np.ones([2] + [1] * (rank - 1), np.float32))
    calls = 60
    with http_app(backend="numpy") as app:
        remembered = app.service.prepared.calls

        def post(numbers: range) -> None:
            for number in numbers:
                assert app.post(url(rank, number), body).status_code == 200

        post(range(calls))  # and whatever else is made once
        before = remembered._young_bytes
        tracemalloc.start()
        try:
            post(range(calls, 2 * calls))
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert len(remembered) == 2 * calls
    assert 0.4 < held / (remembered._young_bytes - before) < 1.3
