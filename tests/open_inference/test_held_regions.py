"""Held tensors that come from shared memory: copied once, and of the server's own from then on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.cuda_sharing import Asker
from tests.support.fake_cupy import FakeCupy, using
from tests.support.http_app import Serving, assert_problem, eventually, request_bytes, serving

from tensorpost import Client
from tensorpost_server.backends.cuda import ipc

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory is offered on Linux only")

X = np.random.default_rng(4).normal(size=(300, 400)).astype(np.float32)  # above what is copied at once
QUERY = "data_type=FLOAT32&sizes=300,400"
HANDLE = bytes([7] * 64)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(shared_memory=True) as found:
        yield found
        found.on_loop(found.service.tensors.close)
        eventually(found.idle, "all memory is released")


@pytest.fixture
def region(server: Serving) -> Iterator[Path]:
    """Memory of X after 24 bytes, registered as `r`."""
    path = Path(f"/dev/shm/oip-held-{os.getpid()}")
    path.write_bytes(bytes(24) + X.tobytes())
    document = {"key": f"/{path.name}", "byte_size": 24 + X.nbytes}
    body = json.dumps(document).encode()
    assert server.ask(request_bytes("POST", "/v2/systemsharedmemory/region/r/register", body)).status == 200
    yield path
    server.ask(request_bytes("POST", "/v2/systemsharedmemory/region/r/unregister"))
    path.unlink()


def put(server: Serving, query: str, name: str = "x", body: bytes = b"", headers: Any = None) -> Any:
    return server.ask(request_bytes("PUT", f"/v1/tensors/{name}?{query}", body, headers))


def test_the_elements_are_those_of_the_region_when_it_was_sent(server: Serving, region: Path) -> None:
    made = put(server, f"region=r&offset=24&{QUERY}")
    assert made.status == 201, made.body
    assert (made.json()["sizes"], made.json()["data_type"], made.json()["device"]) == (
        [300, 400], "FLOAT32", "host memory",
    )  # fmt: skip
    with region.open("r+b") as file:  # its owner writes there, and shortens it
        file.write(bytes([255] * 1000))
        file.truncate(500)
    with Client(server.url) as tp:
        np.testing.assert_array_equal(tp.tensor("x").get(), X)
        np.testing.assert_array_equal(tp.onnx("Neg", tp.tensor("x")), -X)
        server.ask(request_bytes("POST", "/v2/systemsharedmemory/region/r/unregister"))
        np.testing.assert_array_equal(tp.tensor("x")[7], X[7])
        tp.delete_tensor("x")


def test_a_part_of_a_region_with_another_type(server: Serving, region: Path) -> None:
    made = put(server, "region=r&offset=24&data_type=UINT8&sizes=2,8", "bytes")
    assert made.status == 201
    assert put(server, "region=r&data_type=INT32&sizes=0,4", "none").status == 201
    new = server.ask(request_bytes("POST", "/v1/tensors?region=r&data_type=float64&sizes=3"))
    assert new.status == 201
    with Client(server.url) as tp:
        assert tp.tensor("bytes").get().tobytes() == X.tobytes()[:16]
        assert tp.tensor("none").get().shape == (0, 4)
        assert tp.tensor(new.json()["name"]).get().tolist() == [0, 0, 0]
        for each in tp.tensors():
            tp.delete_tensor(each)


def test_what_is_refused_takes_no_memory(server: Serving, region: Path) -> None:
    admission = server.app.state.service.admission
    for query, status, code, says in (
        (f"region=other&{QUERY}", 404, "region-not-found", "no shared memory region 'other'"),
        (f"region=r&offset=25&{QUERY}", 400, "invalid-request", "do not lie in the region"),
        ("region=r&data_type=FLOAT32&sizes=999999999999,999999999", 400, "invalid-request", "do not lie in the region"),
        ("region=r&sizes=3", 400, "invalid-parameter", "needs data_type"),
        ("region=r&data_type=FLOAT32", 400, "invalid-parameter", "needs sizes"),
        ("region=r&data_type=FLOAT32&sizes=-1", 400, "invalid-parameter", "is not a shape"),
        ("region=r&data_type=string&sizes=1", 400, "invalid-parameter", "cannot hold"),
        (f"region=r&offset=-1&{QUERY}", 400, "invalid-parameter", "number of bytes"),
        (f"offset=8&{QUERY}", 400, "invalid-parameter", "goes with region"),
        (f"region=r&offset=24&{QUERY}&ofset=3", 400, "invalid-parameter", "ofset"),
    ):
        problem = assert_problem(put(server, query), status, code)
        assert says in problem["detail"], (query, problem)
    text = put(server, f"region=r&{QUERY}", body=b"1234", headers={"content-type": "application/octet-stream"})
    assert "has no body" in assert_problem(text, 400, "invalid-parameter")["detail"]
    proxied = put(server, f"region=r&{QUERY}", headers={"x-forwarded-for": "10.0.0.1"})
    assert_problem(proxied, 403, "forbidden")
    os.truncate(region, 1000)  # registered as larger
    assert "too short" in assert_problem(put(server, f"region=r&offset=24&{QUERY}"), 400, "invalid-request")["detail"]
    eventually(lambda: not admission.kept_bytes, "the room of tensors that did not arrive is given back")
    assert put(server, "region=r&data_type=UINT8&sizes=1000").status == 201
    with Client(server.url) as tp:
        tp.delete_tensor("x")


def test_it_is_off_where_shared_memory_is() -> None:
    with serving() as server:
        problem = assert_problem(put(server, f"region=r&{QUERY}"), 501, "no-backend")
        assert "TENSORPOST_SHARED_MEMORY" in problem["detail"]


def test_memory_of_a_device_is_brought_down_once(tmp_path: Path) -> None:
    cupy = FakeCupy(shared={HANDLE: np.zeros(1 << 20, np.uint8)})
    cupy.shared[HANDLE][100 : 100 + X.nbytes] = np.frombuffer(X.tobytes(), np.uint8)
    with using(cupy, tmp_path) as patch:
        patch.setattr(ipc, "allocation_of", cupy.allocation_of)
        with serving(cuda_shared_memory=True) as server:
            asker = Asker(server.port)
            assert asker.register("d", HANDLE, 1 << 20) == (200, "")
            before = len(cupy.copies)
            assert put(server, f"region=d&offset=100&{QUERY}").status == 201
            assert put(server, "region=d&data_type=INT8&sizes=0", "none").status == 201
            assert cupy.copies[before:] == [2], "one copy, to the host"
            cupy.shared[HANDLE][:] = 255
            asker.unregister()
            with Client(server.url) as tp:
                np.testing.assert_array_equal(tp.onnx("Neg", tp.tensor("x"), backend="cuda"), -X)
                for name in ("x", "none"):
                    tp.delete_tensor(name)
            eventually(server.idle, "all memory is released")
            eventually(lambda: not +cupy.opened, "the region is closed")
    assert all(pool.used == 0 for pool in cupy.pools)
