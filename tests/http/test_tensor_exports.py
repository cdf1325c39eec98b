"""Held tensors that others open on a device, over a stand-in for CuPy: copies of their own, lent for a time."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.support.fake_cupy import CUDARuntimeError, FakeCupy, using
from tests.support.http_app import Answer, Serving, assert_problem, eventually, request_bytes, serving

from tensorpost import Client
from tensorpost_server.backends.cuda import ipc
from tensorpost_server.http.access.api_keys import ApiKey, digest, write_keys
from tensorpost_server.http.wires import tensor_exports

X = np.random.default_rng(8).normal(size=(100, 300)).astype(np.float32)
BLOCK = 2 << 20  # CUDA's smallest unit of memory that only one allocation has
HOST_TO_DEVICE, DEVICE_TO_DEVICE = 1, 3


@pytest.fixture
def cupy(tmp_path: Path) -> Iterator[FakeCupy]:
    found = FakeCupy()
    with using(found, tmp_path) as patch:
        patch.setattr(ipc, "allocation_of", found.allocation_of)
        yield found
    assert not found.allocations, "exports are left"
    assert all(pool.used == 0 for pool in found.pools)


@pytest.fixture
def server(cupy: FakeCupy) -> Iterator[Serving]:
    with serving(cuda_shared_memory=True) as found:
        yield found
        found.on_loop(found.service.tensors.close)
        eventually(found.idle, "all memory is released")


def ask(server: Serving, method: str, path: str, headers: Any = None) -> Answer:
    return server.ask(request_bytes(method, f"/v1/tensors/{path}", b"", headers))


def end(server: Serving, name: str, export: str, headers: Any = None) -> int:
    return httpx.delete(f"{server.url}/v1/tensors/{name}/exports/{export}", headers=headers).status_code


def export(server: Serving, name: str = "x", query: str = "") -> dict[str, Any]:
    answer = ask(server, "POST", f"{name}/exports{query}")
    assert answer.status == 201, answer.body
    said = answer.json()
    assert answer.headers["location"] == f"/v1/tensors/{name}/exports/{said['export']}"
    return said


def memory_of(cupy: FakeCupy, said: dict[str, Any]) -> np.ndarray[Any, Any]:
    """What another process finds behind the handle."""
    return cupy.shared[base64.b64decode(said["raw_handle"]["b64"])]


def gauges(server: Serving, index: int = 0) -> Any:
    return server.app.state.service.pool.workers[f"cuda:{index}"].backend.gauges()


def test_an_export_is_a_copy_of_its_own_until_it_ends(server: Serving, cupy: FakeCupy) -> None:
    with Client(server.url) as tp:
        held = tp.put(X, "x")
        before = len(cupy.copies)
        first = export(server)
        assert cupy.copies[before:] == [HOST_TO_DEVICE]
        assert {**first, "export": "", "raw_handle": ""} == {
            "export": "", "raw_handle": "", "offset": 0, "size_in_bytes": X.nbytes, "data_type": "FLOAT32",
            "dtype": "float32", "sizes": [100, 300], "device_id": 0, "pci_bus_id": "0000:1b:00.0", "seconds": 60.0,
        }  # fmt: skip
        memory = memory_of(cupy, first)
        assert memory[: X.nbytes].tobytes() == X.tobytes()
        assert (memory.nbytes, memory[X.nbytes :].any()) == (BLOCK, False), "the rest shows what lay there before"
        np.testing.assert_array_equal(tp.onnx("Neg", held, backend="cuda", device=0), -X)
        before = len(cupy.copies)
        second = export(server)
        assert cupy.copies[before:] == [DEVICE_TO_DEVICE], "there is a copy on the device"
        memory[:] = 255  # whoever has it open may write there
        assert memory_of(cupy, second)[: X.nbytes].tobytes() == X.tobytes()
        np.testing.assert_array_equal(tp.onnx("Neg", held, backend="cuda", device=0), -X)
        np.testing.assert_array_equal(held.get(), X)
        assert gauges(server)["device_exported_bytes"] == 2 * BLOCK
        tp.delete_tensor("x")
        assert memory_of(cupy, second)[: X.nbytes].tobytes() == X.tobytes(), "an export outlives the tensor"
        for each in (first, second):
            assert end(server, "x", each["export"]) == 204
        eventually(lambda: not cupy.allocations, "they are freed")
        assert gauges(server)["device_exported_bytes"] == 0
        problem = assert_problem(ask(server, "DELETE", f"x/exports/{first['export']}"), 404, "not-found")
        assert "freed after 60 s" in problem["detail"]


def test_the_device_is_the_one_that_was_named_or_that_has_it(server: Serving, cupy: FakeCupy) -> None:
    with Client(server.url) as tp:
        held = tp.put(X, "x")
        assert export(server, query="?device=1")["pci_bus_id"] == "0000:1c:00.0"
        tp.onnx("Neg", held, backend="cuda", device=1)
        assert export(server)["device_id"] == 1
        problem = assert_problem(ask(server, "POST", "x/exports?device=2"), 400, "invalid-parameter")
        assert "there is no CUDA device 2" in problem["detail"]
        assert_problem(ask(server, "POST", "x/exports?device=-1"), 400, "invalid-parameter")
        assert_problem(ask(server, "POST", "x/exports?devise=1"), 400, "invalid-parameter")
        tp.put(np.empty((0, 3), np.float32), "none")
        assert "no elements" in assert_problem(ask(server, "POST", "none/exports"), 400, "invalid-request")["detail"]
        assert_problem(ask(server, "POST", "y/exports"), 404, "tensor-not-found")
    # Those that are left end with the server: see the fixture.


def test_exports_are_bounded_by_number_by_memory_and_in_time(
    server: Serving, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_exports, "MOST_EXPORTS", 3)
    with Client(server.url) as tp:
        tp.put(X, "x")
        made = [export(server) for _ in range(3)]
        problem = assert_problem(ask(server, "POST", "x/exports"), 507, "insufficient-storage")
        assert (problem["limit"], problem["actual"]) == (3, 4)
        assert end(server, "x", made[0]["export"]) == 204
        monkeypatch.setattr(tensor_exports, "EXPORT_SECONDS", 0.0)
        export(server)
        server.on_loop(server.service.sweep)
        eventually(lambda: len(cupy.allocations) == 2, "the one whose time is over is freed")
        monkeypatch.undo()
        cupy.failing = CUDARuntimeError(2)
        assert_problem(ask(server, "POST", "x/exports"), 503, "out-of-device-memory")
        cupy.failing = None
        assert gauges(server)["device_exported_bytes"] == 2 * BLOCK, "what failed is not counted"


def test_exports_take_at_most_a_quarter_and_calls_keep_to_the_rest(tmp_path: Path) -> None:
    cupy = FakeCupy(devices=("NVIDIA H100",))
    with using(cupy, tmp_path), serving(cuda_shared_memory=True, cuda_memory_bytes=4 * BLOCK) as server:
        with Client(server.url) as tp:
            tp.put(X, "x")
            large = [tp.put(np.full(BLOCK // 4, n, np.float32)) for n in range(6)]
            for n, each in enumerate(large[:3]):
                assert tp.onnx("ReduceMax", each, backend="cuda", keepdims=0) == n
            assert gauges(server)["device_copy_bytes"] == 3 * BLOCK
            export(server)
            assert gauges(server)["device_memory_used_bytes"] <= 3 * BLOCK
            problem = assert_problem(ask(server, "POST", "x/exports"), 507, "insufficient-storage")
            assert (problem["limit"], problem["actual"]) == (BLOCK, 2 * BLOCK)
            for n, each in enumerate(large):
                assert tp.onnx("ReduceMax", each, backend="cuda", keepdims=0) == n
                assert cupy.pools[0].held + BLOCK <= 4 * BLOCK
        server.on_loop(server.service.tensors.close)
        eventually(server.idle, "all memory is released")
    assert not cupy.allocations
    assert all(pool.used == 0 for pool in cupy.pools)


def test_who_may_export(cupy: FakeCupy, tmp_path: Path) -> None:
    with serving() as server, Client(server.url) as tp:
        tp.put(X, "x")
        problem = assert_problem(ask(server, "POST", "x/exports"), 501, "no-backend")
        assert "TENSORPOST_CUDA_SHARED_MEMORY" in problem["detail"]
    path, now = tmp_path / "keys", datetime.now(UTC)
    keys = [
        ApiKey(name=name, sha256=digest(f"tp_{name}".encode()), scopes=("run", "tensors"), created=now)
        for name in ("anna", "bob")
    ]
    write_keys(path, keys)
    path.chmod(0o600)
    with serving(cuda_shared_memory=True, keys_file=path) as server:
        mine, other = ({"authorization": f"Bearer tp_{name}"} for name in ("anna", "bob"))
        with Client(server.url, api_key="tp_anna") as tp:
            tp.put(X, "x")
            assert_problem(ask(server, "POST", "x/exports", other), 404, "tensor-not-found")
            assert_problem(ask(server, "POST", "x/exports"), 401, "unauthenticated")
            proxied = {**mine, "x-forwarded-for": "10.0.0.1"}
            assert_problem(ask(server, "POST", "x/exports", proxied), 403, "forbidden")
            made = ask(server, "POST", "x/exports", mine).json()
            assert_problem(ask(server, "DELETE", f"x/exports/{made['export']}", other), 404, "not-found")
            assert end(server, "x", made["export"], mine) == 204
