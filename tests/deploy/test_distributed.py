"""`tensorpost.distributed` without a cluster: stand-ins for ray and zarr run each task here when it is waited for.

What only a cluster shows (several nodes, one of them lost) is in test_ray.py.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorpost import Progress, ProgressBar, distributed
from tensorpost.onnx import OnnxNode
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter

X = np.arange(6 << 10, dtype=np.float32).reshape(6, 1024)
TILE = OnnxNode.of("Tile", {"input": X, "repeats": [4, 1]}, opset=13)  # 96 KiB


class Task:
    """What `ray.remote` returns; calling it returns the function that computes the task."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def options(self, **_: Any) -> Task:
        return self

    def remote(self, *arguments: Any) -> Callable[[], Any]:
        return lambda: self._function(*arguments)


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of the stores that are created, by their paths."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}

    def create_array(path: str, *, shape: tuple[int, ...], dtype: Any, **_: Any) -> None:
        arrays[path] = np.zeros(shape, dtype)

    ray = SimpleNamespace(
        is_initialized=lambda: True,
        put=lambda value: value,
        remote=Task,
        wait=lambda refs, num_returns: (refs[-num_returns:], refs[:-num_returns]),  # the last one ends first
        get=lambda ref: ref(),
        cluster_resources=lambda: {"CPU": 2.0},
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    zarr = SimpleNamespace(create_array=create_array, open_array=lambda path, **_: arrays[path])
    monkeypatch.setitem(sys.modules, "zarr", zarr)
    return arrays


def test_a_store_is_filled_and_progress_counts_its_bytes(stores: dict[str, np.ndarray[Any, Any]]) -> None:
    calls = list[Progress]()
    y = distributed.run(TILE, X, store="y", chunk_bytes=20 << 10, backend="numpy", progress=calls.append)

    assert np.array_equal(y, np.tile(X, (4, 1)))
    assert stores["y"] is y
    assert [call.received for call in calls[:2]] == [0, 20 << 10]
    assert {call.received - before.received for before, call in pairwise(calls)} == {
        20 << 10, 16 << 10  # 4 chunks of 5 rows, and one of the 4 rows that are left
    }  # fmt: skip
    assert calls[-1] == Progress(0, 0, 96 << 10, 96 << 10)
    assert len(calls) == 6


def test_a_progress_bar_shows_it(stores: dict[str, np.ndarray[Any, Any]]) -> None:
    file, seconds = io.StringIO(), iter([0.0, 1.0, 2.0])
    bar = ProgressBar(file, lambda: next(seconds))
    distributed.run(TILE, X, store="y", chunk_bytes=48 << 10, backend="numpy", progress=bar)

    assert [line.split("]")[0] for line in file.getvalue().split("\r")[1:]] == [
        f"{doing} [{'#' * full}{'.' * (24 - full)}"
        for doing, full in (("computing", 0), ("receiving", 12), ("receiving", 24))
    ]
    assert stores.keys() == {"y"}


@pytest.mark.parametrize("options", [{"progress": print}, {"store": "y", "progress": True}])
def test_progress_that_could_not_be_told_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match=r"progress is .* a function that takes a Progress, and needs a store"):
        distributed.run(TILE, X, **options)


def test_indices_out_of_bounds_are_refused_before_any_task(stores: dict[str, np.ndarray[Any, Any]]) -> None:
    indices = np.array([0, 6])
    node = OnnxNode.of("Gather", {"data": X, "indices": indices}, opset=13)
    with pytest.raises(
        InvalidDescriptor, match=r"indices\[1\] is 6, but axis 0 of data has 6 elements; valid: -6 to 5"
    ):
        distributed.run(node, [X, indices], store="y", backend="numpy")
    assert not stores
