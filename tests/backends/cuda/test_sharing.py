r"""CUDA shared memory between processes, on an NVIDIA device; prints the speed too.

    python -m pytest -n 0 -s tests/backends/cuda/test_sharing.py

It needs the extras server, grpc and cuda13; tritonclient is asked too where it is installed with NVIDIA's bindings.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from tests.support.cuda_device import missing_device
from tests.support.cuda_sharing import Asker, infer_request, region_input
from tests.support.http_app import Serving, eventually, serving

if (MISSING := missing_device()) is not None:
    pytest.skip(MISSING, allow_module_level=True)


@pytest.fixture(scope="module")
def device_server() -> Iterator[Serving]:
    with serving(shared_memory=True, cuda_shared_memory=True, grpc_port=0) as found:
        yield found
        eventually(found.idle, "all memory is released")
        assert found.service.pool is not None
        assert found.service.pool.lost is None


def other_process(server: Serving, check: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "tests.support.cuda_sharing",
        check,
        str(server.port),
        str(server.app.state.grpc_port),
    ]
    return subprocess.run(command, check=False, text=True, capture_output=True, timeout=300)


def test_another_process_shares_its_memory(device_server: Serving):
    ended = other_process(device_server, "share")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("tritonclient", "geventhttpclient", "cuda")),
    reason="tritonclient[http,cuda] is not installed",
)
def test_tritonclient_shares_its_memory(device_server: Serving):
    ended = other_process(device_server, "triton")
    assert ended.returncode == 0, ended.stderr


def test_a_process_that_is_killed_leaves_memory_until_it_is_closed(device_server: Serving):
    pool, regions = device_server.service.pool, device_server.service.regions
    assert pool is not None
    backend = pool.workers["cuda:0"].backend

    def free() -> int:
        return backend.gauges()["device_memory_free_bytes"]

    before = free()
    assert other_process(device_server, "leave").returncode == -9
    # 8 GiB; 4 GiB for what the tests beside this one take and give back at the same time.
    assert before - free() >= 4 << 30, "the driver keeps what is open here"
    x, asker = np.arange(1000, dtype=np.float32), Asker(device_server.port)
    request = infer_request([region_input("input", x, "left")], [{"name": "output"}], repeats="[2]")
    found, _ = asker.done("POST", "/v2/models/tile/infer", request)
    assert found["outputs"][0]["data"] == [*x, *x]
    asker.unregister()
    eventually(lambda: before - free() < 4 << 30, "the memory is free")
    assert regions.status(None, "127.0.0.1", "cuda") == []
    device_server.assert_serves_on()


@pytest.mark.parametrize("check", ["correctness", "shared", "written_by_others", "killed"])
def test_held_tensors_come_to_another_process(device_server: Serving, check: str):
    script = f"from benchmarks import gpu_held as g; print(g.{check}({device_server.url!r}, g.Scale(mib=4, rounds=2)))"
    ended = subprocess.run([sys.executable, "-c", script], check=False, text=True, capture_output=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_the_speed(device_server: Serving):
    ended = other_process(device_server, "speed")
    assert ended.returncode == 0, ended.stderr
    sys.stdout.write(f"\nTile, 32 MiB to 64 MiB, ms: {ended.stdout}\n")
