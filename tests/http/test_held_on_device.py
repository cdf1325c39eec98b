"""Held tensors on a device with memory of its own, over a stand-in for CuPy: uploaded once, freed with their name."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.fake_cupy import CUDARuntimeError, FakeCupy, using
from tests.support.http_app import Serving, eventually, request_bytes, serving

from tensorpost import Client
from tensorpost.problems import DeviceLost, NotReady
from tensorpost_server.http.observability.metrics import METRICS

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
        found.on_loop(found.service.tensors.close)
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


def test_copies_give_way_when_the_device_is_full_and_the_metrics_say_so(tmp_path: Path) -> None:
    """Room for three of eight tensors: each call uploads what is not there, and every element is right."""
    cupy = FakeCupy(devices=("NVIDIA H100",))
    tensors = [np.tile(X, (4, 1)) + n for n in range(8)]
    size = tensors[0].nbytes
    with using(cupy, tmp_path), serving(cuda_memory_bytes=5 * size) as server:

        def figures() -> dict[str, float]:
            lines = server.ask(request_bytes("GET", "/metrics")).body.decode().splitlines()
            found = [line for line in lines if line.startswith("tensorpost_device_cop")]
            return {line.partition("{")[0].removeprefix("tensorpost_"): float(line.split()[-1]) for line in found}

        with Client(server.url) as tp:
            held = [tp.put(x) for x in tensors]
            for _ in range(3):
                for x, each in zip(tensors, held, strict=True):
                    np.testing.assert_array_equal(tp.onnx("Neg", each, backend="cuda"), -x)
            found = figures()
            listed = [each.device for each in tp.tensors()]
            assert listed.count("host memory, cuda:0") == found["device_copies"]
            assert 0 < found["device_copies"] <= 4
            assert found["device_copy_bytes"] == size * found["device_copies"]
            # In turn, the next one is never there: all but the first eight uploads are repeated ones.
            assert found["device_copies_uploaded_again_total"] == 16
            assert found["device_copies_dropped_total"] == 24 - found["device_copies"]
            assert all(f"tensorpost_{name}" in METRICS for name in found)
        server.on_loop(server.service.tensors.close)
        eventually(server.idle, "all memory is released")
        assert figures()["device_copies"] == 0
    assert all(pool.used == 0 for pool in cupy.pools)


def test_indices_of_a_held_tensor_are_checked_in_host_memory(server: Serving) -> None:
    from tensorpost.problems import InvalidDescriptor

    with Client(server.url) as tp:
        held, index, wrong = tp.put(X), tp.put(np.array([3, 1])), tp.put(np.array([64]))
        options: dict[str, Any] = {"axis": 0, "backend": "cuda", "device": 0}
        np.testing.assert_array_equal(tp.onnx("Gather", held, index, **options), X[[3, 1]])
        with pytest.raises(InvalidDescriptor):
            tp.onnx("Gather", held, wrong, **options)


ILLEGAL_ADDRESS, ECC = 700, 214
"""cudaErrorIllegalAddress and cudaErrorECCUncorrectable: the process cannot use the device any more."""


@pytest.mark.parametrize("status", [ILLEGAL_ADDRESS, ECC])
def test_what_callers_see_when_the_device_is_lost_while_tensors_are_held(tmp_path: Path, status: int) -> None:
    cupy, ended = FakeCupy(devices=("NVIDIA H100",)), list[str]()
    with using(cupy, tmp_path), serving() as server, Client(server.url, retries=0) as tp:
        server.service.end = lambda: ended.append("ended")  # which would end this process

        def metric(name: str) -> list[float]:
            lines = server.ask(request_bytes("GET", "/metrics")).body.decode().splitlines()
            return [float(line.split()[-1]) for line in lines if re.match(rf"tensorpost_{name}[ {{]", line)]

        held = tp.put(X, "x")
        np.testing.assert_array_equal(tp.onnx("Neg", held, backend="cuda"), -X)
        assert min(metric("device_up")) == 1
        cupy.failing = CUDARuntimeError(status)  # what every call of CUDA answers from now on

        # The call that finds it, in which the tensor is copied: its part is not on the device yet.
        with pytest.raises(DeviceLost, match="cuda:0 NVIDIA H100 failed permanently"):
            tp.onnx("Neg", held.part(np.s_[2:]), backend="cuda")
        eventually(lambda: ended == ["ended"], "the process is told to end")
        # Calls after it, forced to the device or not, with the copy that lies there or without.
        for backend in ("cuda", "numpy", None):
            with pytest.raises(NotReady, match="another one should start: cuda:0 NVIDIA H100 failed permanently"):
                tp.onnx("Neg", held, backend=backend)
        with pytest.raises(NotReady, match="another one should start"):
            tp.put(X, "y")  # it would be gone with the process
        # Elements lie in host memory: they can be read as long as the process is there, all and a part.
        np.testing.assert_array_equal(held.get(), X)
        np.testing.assert_array_equal(held[3:5, 7], X[3:5, 7])
        with server.wire() as wire:
            wire.send(request_bytes("HEAD", "/v1/tensors/x"))
            assert wire.head()[0] == 200
        assert [each.name for each in tp.tensors()] == ["x"]

        assert (metric("ready"), min(metric("device_up"))) == ([0], 0)
        assert metric("held_tensor_bytes") == [X.nbytes]
        assert server.ask(request_bytes("GET", "/v2/health/ready")).status == 503
        live = server.ask(request_bytes("GET", "/v2/health/live"))
        assert live.status == 503
        assert "failed permanently" in live.json()["reason"]
        tp.delete_tensor("x")
        eventually(server.idle, "all memory is given back")
        assert metric("held_tensor_bytes") == [0]
