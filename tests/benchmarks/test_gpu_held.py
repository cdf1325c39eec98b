"""The checks of held tensors on a GPU, over stand-ins for CuPy: that they run, and that one fails where it should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.client_cupy import ClientCupy, as_client_cupy
from tests.support.fake_cupy import FakeCupy, using
from tests.support.http_app import Serving, eventually, serving

from benchmarks import gpu_held
from tensorpost_server.backends.cuda import ipc

SCALE = gpu_held.Scale(mib=1, rounds=2, tensors=12, budget=8 << 20)
NEEDS_A_GPU = frozenset(("killed", "uploads"))


@pytest.fixture
def cupy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    found = FakeCupy()
    client = ClientCupy(found)
    monkeypatch.setattr(gpu_held, "import_cupy", lambda: client)
    with using(found, tmp_path) as patch, as_client_cupy(client):
        patch.setattr(ipc, "allocation_of", found.allocation_of)
        yield found


@pytest.fixture
def servers(cupy: FakeCupy) -> Iterator[tuple[Serving, Serving]]:
    with (
        serving(cuda_shared_memory=True) as usual,
        serving(cuda_shared_memory=True, cuda_memory_bytes=SCALE.budget) as little,
    ):
        yield usual, little
        for each in (usual, little):
            each.on_loop(each.service.tensors.close)
            eventually(each.idle, "all memory is released")


def test_every_check_that_needs_no_gpu(servers: tuple[Serving, Serving], capsys: pytest.CaptureFixture[str]) -> None:
    usual, little = servers
    failed = gpu_held.check_all(usual.url, little.url, SCALE, NEEDS_A_GPU)
    said = capsys.readouterr().out
    assert failed == 0, said
    lines = [line.partition(":")[0] for line in said.splitlines()]
    assert lines == ["correctness", "held_or_sent", "shared", "written_by_others", "pressure"]


def test_a_wrong_element_fails(
    servers: tuple[Serving, Serving], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, little = servers
    monkeypatch.setattr(np, "tile", lambda x, _: np.concatenate([x, 1 - x.astype(int)]).astype(x.dtype))
    assert gpu_held.check_all(usual.url, little.url, SCALE, frozenset(("shared", "pressure", *NEEDS_A_GPU))) == 1
    assert "correctness: FAILED: AssertionError: elements differ" in capsys.readouterr().out
