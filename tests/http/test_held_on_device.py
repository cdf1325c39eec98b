"""Held tensors on a device with memory of its own, over a stand-in for CuPy: uploaded once, freed with their name."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.fake_cupy import FakeCupy, using
from tests.support.http_app import Serving, eventually, serving

from tensorpost import Client

X = np.random.default_rng(6).normal(size=(64, 300)).astype(np.float32)
HOST_TO_DEVICE = 1
GRAPH: dict[str, Any] = {
    "inputs": {"x": {}, "w": {}},
    "nodes": [{"name": "y", "op_type": "Mul", "inputs": ["x", "w"]}],
    "outputs": {"y": "y"},
}


@pytest.fixture
def cupy(tmp_path: Any) -> Iterator[FakeCupy]:
    found = FakeCupy()
    with using(found, tmp_path):
        yield found


@pytest.fixture
def server(cupy: FakeCupy) -> Iterator[Serving]:
    with serving() as found:
        yield found
        found.app.state.service.tensors.close()
        eventually(found.idle, "all memory is released")
    assert all(pool.used == 0 for pool in cupy.pools)


def test_a_held_tensor_is_uploaded_once(server: Serving, cupy: FakeCupy) -> None:
    with Client(server.url) as tp:
        held = tp.put(X, "x")
        assert tp.tensor("x").device == "host memory"

        def uploads(call: Any, expected: Any) -> int:
            before = cupy.copies.count(HOST_TO_DEVICE)
            np.testing.assert_array_equal(call(), expected)
            return cupy.copies.count(HOST_TO_DEVICE) - before

        options: dict[str, Any] = {"backend": "cuda", "device": 0}
        counts = [uploads(lambda: tp.onnx("Neg", held, **options), -X) for _ in range(3)]
        assert counts == [1, 0, 0]
        assert tp.tensor("x").device == "host memory, cuda:0"
        graph = {"x": held, "w": np.full(300, 2, np.float32)}
        assert uploads(lambda: tp.run_graph(GRAPH, graph, **options)["y"], X * 2) == 1  # the other input
        assert uploads(lambda: tp.onnx("Neg", held.part(np.s_[3:5]), **options), -X[3:5]) == 1
        assert uploads(lambda: held[:, 7], X[:, 7]) == 0  # parts are read in host memory
        kept = tp.onnx("Neg", held, keep=True, **options)
        np.testing.assert_array_equal(kept.get(), -X)
        tp.put(2 * X, "x", replace=True)
        assert uploads(lambda: tp.onnx("Neg", held, **options), -2 * X) == 1
        tp.delete_tensor("x")
    gc.collect()


def test_indices_of_a_held_tensor_are_checked_in_host_memory(server: Serving) -> None:
    from tensorpost.problems import InvalidDescriptor

    with Client(server.url) as tp:
        held, index, wrong = tp.put(X), tp.put(np.array([3, 1])), tp.put(np.array([64]))
        options: dict[str, Any] = {"axis": 0, "backend": "cuda", "device": 0}
        np.testing.assert_array_equal(tp.onnx("Gather", held, index, **options), X[[3, 1]])
        with pytest.raises(InvalidDescriptor):
            tp.onnx("Gather", held, wrong, **options)
