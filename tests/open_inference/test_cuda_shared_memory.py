"""CUDA shared memory over a stand-in for CuPy. `tests/backends/cuda/test_sharing.py` has it between real processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.support import cuda_sharing
from tests.support.cuda_sharing import Asker, infer_request, region_input, region_output
from tests.support.fake_cupy import CUDARuntimeError, FakeCupy, using
from tests.support.http_app import Serving, app_settings, eventually, request_bytes, serving

from tensorpost.values.problems import NoBackend
from tensorpost_server.backends.cuda import ipc
from tensorpost_server.http.open_inference import cuda_region
from tensorpost_server.http.open_inference.shared_memory import SharedMemory

X = np.random.default_rng(3).normal(size=(64, 300)).astype(np.float32)
TILED = np.tile(X, (2, 3))
DEVICE_TO_DEVICE = 3


@pytest.fixture(scope="module")
def cupy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCupy]:
    found, folder = FakeCupy(), tmp_path_factory.mktemp("kernels")
    found.shared = {bytes([1] * 64): np.zeros(1 << 20, np.uint8), bytes([2] * 64): np.zeros(1 << 20, np.uint8)}
    with using(found, folder) as patch:
        patch.setattr(ipc, "allocation_of", found.allocation_of)
        yield found


@pytest.fixture(scope="module")
def server(cupy: FakeCupy) -> Iterator[Serving]:
    with serving(shared_memory=True, cuda_shared_memory=True, grpc_port=0, slice_bytes=1 << 16) as found:
        yield found
        eventually(found.idle, "all memory is released")
    assert not +cupy.opened, "memory of another process is still open"
    assert all(pool.used == 0 for pool in cupy.pools)


def shared(cupy: FakeCupy, number: int) -> np.ndarray[Any, Any]:
    return cupy.shared[bytes([number] * 64)]


def test_tensors_are_copied_within_the_device(server: Serving, cupy: FakeCupy):
    asker = Asker(server.port)
    assert asker.done("GET", "/v2")[0]["extensions"][-1] == "cuda_shared_memory"
    assert asker.register("x", bytes([1] * 64), 1 << 20) == (200, "")
    assert asker.register("y", bytes([2] * 64), 1 << 20, 1) == (200, "")
    x, y = shared(cupy, 1), shared(cupy, 2)
    x[3 : 3 + X.nbytes] = np.frombuffer(X.tobytes(), np.uint8)

    def infer(output: Any, **parameters: Any) -> tuple[Any, bytes]:
        request = infer_request([region_input("input", X, "x", 3)], [output], repeats="[2,3]", **parameters)
        return asker.done("POST", "/v2/models/tile/infer", request)

    begin = len(cupy.copies)
    found, _ = infer(region_output("output", "x", 2 * TILED.nbytes, 100_001))
    assert found["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [128, 900]}]
    assert asker.last["tensorpost-backend"] == "cuda"
    assert x[100_001 : 100_001 + TILED.nbytes].tobytes() == TILED.tobytes()
    assert not x[100_001 + TILED.nbytes :].any()
    assert {*cupy.copies[begin:]} == {DEVICE_TO_DEVICE}, "something passed the host"
    # Whoever wants another backend, and whoever has the output on another device, gets it through the host.
    for region, memory, options in (("y", y, {}), ("x", x, {"backend": "numpy"}), ("y", y, {"backend": "numpy"})):
        memory[200_000:] = 0
        infer(region_output("output", region, TILED.nbytes, 200_000), **options)
        assert memory[200_000 : 200_000 + TILED.nbytes].tobytes() == TILED.tobytes(), (region, options)
    binary = {"name": "output", "parameters": {"binary_data": True}}
    assert infer(binary)[1] == TILED.tobytes()
    asker.unregister("x")
    eventually(lambda: not cupy.opened[x.__array_interface__["data"][0]], "the memory is closed")
    assert asker.status() == [{"name": "y", "device_id": 1, "byte_size": 1 << 20}]
    asker.unregister()


def test_what_another_process_does_on_a_device(server: Serving, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch):
    class Memory(cuda_sharing.Memory):
        def __post_init__(self) -> None:
            self.handle = os.urandom(64)
            self.memory = cupy.shared[self.handle] = np.zeros(self.size, np.uint8)

        def put(self, array: np.ndarray[Any, Any], offset: int = 0) -> None:
            self.memory[offset : offset + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)

        def get(self, like: np.ndarray[Any, Any], offset: int = 0) -> np.ndarray[Any, Any]:
            return np.frombuffer(self.memory[offset : offset + like.nbytes].tobytes(), like.dtype).reshape(like.shape)

        def free(self) -> None:
            eventually(lambda: not cupy.opened[self.memory.__array_interface__["data"][0]], "it is closed")

    monkeypatch.setattr(cuda_sharing, "Memory", Memory)
    cuda_sharing.share(server.port, server.app.state.grpc_port)


def test_strings_and_attributes_pass_through_the_host(server: Serving, cupy: FakeCupy):
    asker, x = Asker(server.port), shared(cupy, 1)
    assert asker.register("x", bytes([1] * 64), 1 << 20) == (200, "")
    x[:16] = np.frombuffer(np.array([2, 1]).tobytes(), np.uint8)
    text = b"".join(len(word).to_bytes(4, "little") + word for word in (b"ab", b""))
    x[100 : 100 + len(text)] = np.frombuffer(text, np.uint8)
    words = {
        "name": "input", "datatype": "BYTES", "shape": [2, 1],
        "parameters": {"shared_memory_region": "x", "shared_memory_byte_size": len(text), "shared_memory_offset": 100},
    }  # fmt: skip
    repeats = region_input("repeats", np.array([2, 1]), "x")
    request = infer_request([words, repeats], [region_output("output", "x", 100, 1000)])
    found, _ = asker.done("POST", "/v2/models/onnx.tile/infer", request)
    assert found["outputs"] == [{"name": "output", "datatype": "BYTES", "shape": [4, 1]}]
    assert x[1000 : 1000 + 2 * len(text)].tobytes() == text * 2
    asker.unregister()


def test_indices_on_a_device_are_checked_there_too(server: Serving, cupy: FakeCupy):
    """Of ONNX's Gather; those of DirectML's are read as they are."""
    asker, x = Asker(server.port), shared(cupy, 1)
    assert asker.register("x", bytes([1] * 64), 1 << 20) == (200, "")
    data = X[:3, :4]
    x[: data.nbytes] = np.frombuffer(data.tobytes(), np.uint8)
    for indices, status in (([2, 0, -3], 200), ([2, 0, 3], 400)):
        at = np.array(indices)
        x[1000 : 1000 + at.nbytes] = np.frombuffer(at.tobytes(), np.uint8)
        inputs = [region_input("data", data, "x"), region_input("indices", at, "x", 1000)]
        request = infer_request(inputs, [region_output("output", "x", data.nbytes, 2000)])
        answer = server.ask(request_bytes("POST", "/v2/models/onnx.gather/infer", json.dumps(request).encode()))
        assert answer.status == status, answer
        if status == 200:
            assert x[2000 : 2000 + data.nbytes].tobytes() == data[indices].tobytes()
        else:
            assert b"indices[2] is 3, but axis 0 of data has 3 elements" in answer.body
    asker.unregister()


def test_who_may_register_what(server: Serving, cupy: FakeCupy):
    asker, handle = Asker(server.port), bytes([1] * 64)
    for name, given, size, device, status, says in (
        ("r", bytes(64), 10, 0, 400, "cannot be opened on cuda:0"), ("r", b"short", 10, 0, 400, "64 bytes"),
        ("r", handle, (1 << 20) + 1, 0, 400, "has 1,048,576 bytes"), ("r", handle, 0, 0, 400, "1 or more"),
        ("r", handle, 10, 2, 400, "device_id is one of 0, 1"), ("r", handle, 10, -1, 400, "whole number"),
        ("n" * 300, handle, 10, 0, 400, "1 to 256"),
    ):  # fmt: skip
        found, text = asker.register(name, given, size, device)
        assert (found, says in text) == (status, True), text
    path = "/v2/cudasharedmemory/region/r/register"
    for wrong in ({}, {"raw_handle": "x"}, {"raw_handle": {"b64": "?"}}, {"raw_handle": {"b64": 7}}):
        answer = server.ask(request_bytes("POST", path, json.dumps({"device_id": 0, "byte_size": 1} | wrong).encode()))
        assert (answer.status, "64 bytes" in answer.json()["error"]) == (400, True)
    proxied = request_bytes("POST", path, b'{"device_id": 0}', {"x-forwarded-for": "10.0.0.1"})
    assert server.ask(proxied).status == 403
    eventually(lambda: not +cupy.opened, "what was refused is closed")
    assert asker.register("r", handle, 1000) == (200, "")
    assert "already in manager" in asker.register("r", handle, 1000)[1]
    assert asker.done("GET", "/v2/systemsharedmemory/status")[0] == []
    small = np.zeros(10, np.uint8)
    for offset, wanted in ((991, 10), (0, 1001), (1000, 0)):
        request = infer_request([region_input("input", small, "r", offset)], [region_output("output", "r", wanted)])
        assert asker.ask("POST", "/v2/models/tile/infer", request)[0] == 400
    cupy.failing = CUDARuntimeError(999)  # whatever the driver says of the bytes that a caller chose
    assert asker.register("s", handle, 10)[0] == 400
    cupy.failing = None
    asker.unregister()
    server.assert_serves_on()


def test_a_region_that_nobody_uses_is_dropped(server: Serving, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch):
    asker, regions = Asker(server.port), server.service.regions
    assert asker.register("r", bytes([1] * 64), 1000) == (200, "")
    regions.sweep()
    assert len(asker.status()) == 1
    monkeypatch.setattr(cuda_region, "UNUSED_SECONDS", 0.0)
    regions.sweep()
    assert asker.status() == []
    eventually(lambda: not +cupy.opened, "it is closed")


def test_it_is_off_unless_it_is_turned_on():
    with pytest.raises(NoBackend, match="TENSORPOST_CUDA_SHARED_MEMORY"):
        SharedMemory(app_settings(shared_memory=True)).check({"client": None}, {}, "cuda")
