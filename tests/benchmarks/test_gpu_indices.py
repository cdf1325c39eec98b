"""The script for compute-sanitizer, on a stand-in of CuPy: that it runs, and sees an element that is another one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.fake_cupy import FakeCupy, using


@pytest.fixture
def cupy(tmp_path: Path) -> Iterator[FakeCupy]:
    """In the place of CuPy, without a pool; kernels are NumPy's."""
    found = FakeCupy()
    found.cuda.Memory = lambda _size: SimpleNamespace(free=lambda _size: None)
    found.cuda.MemoryPointer = lambda memory, _offset: memory
    with using(found, tmp_path):
        yield found


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
