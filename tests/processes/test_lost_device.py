"""A device that fails for good in one of several processes: held tensors, and what callers see."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import eventually, npy_bytes
from tests.support.live_server import live_process
from tests.support.server_processes import connections, server_processes

from tensorpost import Client

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="which process answers is read from /proc")

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
NPY = {"content-type": "application/x-npy", "accept": "application/x-npy"}

LOSES_ITS_DEVICE = """
    import sys
    if "tensorpost_server.server_process" in " ".join(sys.orig_argv):
        from tensorpost.problems import DeviceLost
        from tensorpost_server.backends.numpy_ import NumpyBackend

        def start(self, plan, inputs, usual=NumpyBackend.start):
            if plan.output_bytes == 7:
                raise DeviceLost("cuda:0 failed permanently: a kernel touched memory that is not its own")
            return usual(self, plan, inputs)

        NumpyBackend.start = start
"""
"""What each Python runs first: a request whose output has seven bytes loses the device of the process that gets it."""


def test_the_others_go_on_with_held_tensors_and_the_process_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(LOSES_ITS_DEVICE))
    log = tmp_path / "log"
    # All processes write their messages there; the supervisor's standard error is theirs.
    before = f"import os; os.dup2(os.open({str(log)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)\n"
    settings: dict[str, Any] = {
        "TENSORPOST_WORKERS": 2, "TENSORPOST_BACKEND": "numpy",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
    }  # fmt: skip
    with (
        live_process(before, **settings) as (url, supervisor),
        connections(url, supervisor) as (first, second),
        Client(url) as tp,
    ):
        processes = server_processes(supervisor)
        held = tp.put(X, "x")
        status, content = first.ask("POST", "/v1/operators/tile?repeats=7", npy_bytes(np.zeros(1, np.uint8)), NPY)
        assert status == 503, content
        assert b"a kernel touched memory" in content
        # The other process has the tensor, and computes with it.
        assert second.ask("GET", "/v2/health/ready")[0] == 200
        assert second.ask("POST", "/v1/onnx/Neg?X=@x", b"", NPY) == (200, npy_bytes(-X))
        # So does a client, whichever process its connection is to: it repeats what is refused or broken off.
        for _ in range(20):
            np.testing.assert_array_equal(tp.onnx("Neg", held), -X)
        eventually(lambda: len(server_processes(supervisor) - {first.process}) == 2, "another process is started")
        assert processes - {first.process} < server_processes(supervisor)
        with connections(url, supervisor) as both:
            for each in both:
                assert each.ask("POST", "/v1/onnx/Neg?X=@x", b"", NPY) == (200, npy_bytes(-X))
        tp.delete_tensor("x")
    text = log.read_text()
    assert "cuda:0 failed permanently: a kernel touched memory that is not its own; this process ends" in text
    assert "another one is started" in text
    assert "Traceback" not in text
