"""The script for compute-sanitizer, on a stand-in of CuPy: that it runs, and sees an element that is another one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.fake_cupy import FakeCupy


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    """In the place of CuPy, without a pool; kernels are NumPy's."""
    found = FakeCupy()
    found.cuda.Memory = lambda _size: SimpleNamespace(free=lambda _size: None)
    found.cuda.MemoryPointer = lambda memory, _offset: memory

    def fill(form: Any, inputs: Any, box: Any, out: Any, output: int = 0) -> None:
        form.fill(np, inputs, box, out, output)

    compute: Any = SimpleNamespace(fill=fill, clear_caches=lambda: None)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "cupy", found)  # pyright: ignore[reportArgumentType] # by its names
    monkeypatch.setitem(sys.modules, "tensorpost_server.backends.cuda.compute", compute)
    return found


def test_all_vectors_and_some_drawn_calls(cupy: FakeCupy, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import gpu_indices

    assert gpu_indices.main(["--cases", "60"]) == 0

    said = capsys.readouterr().out
    assert "0 wrong" in said
    assert "index refused" in said
    assert " 0 allocations" not in said


def test_another_element_is_seen(
    cupy: FakeCupy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import gpu_indices

    monkeypatch.setattr(gpu_indices, "cases", lambda *_: gpu_indices.cases_of("GATHER"))
    monkeypatch.setattr(cupy, "take", lambda x, index, axis: np.roll(np.take(x, index, axis), 1), raising=False)
    monkeypatch.setattr(
        sys.modules["tensorpost_server.backends.cuda.compute"], "fill",
        lambda form, inputs, box, out, output=0: form.fill(cupy, inputs, box, out, output),
    )  # fmt: skip

    assert gpu_indices.main([]) == 1
    assert "GATHER [" in capsys.readouterr().out
