"""Where emulated kernels are compiled to: one folder for all test processes of a run."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def emulation(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "cuda-emulation"
    folder.mkdir(exist_ok=True)
    return folder
