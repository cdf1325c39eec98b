"""Arrays that a cluster holds: three nodes of this machine, each with room for about half of an array.

Run where ray is installed (`make ray-test`); skipped elsewhere. The figures that it prints are in docs/deploy.md.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorpost import Progress, distributed
from tensorpost.distributed import HeldArray
from tensorpost.onnx import OnnxNode
from tensorpost.values.problems import InvalidParameter, TensorGone

ray: Any = pytest.importorskip("ray", reason="needs ray: make ray-test")
zarr: Any = pytest.importorskip("zarr", reason="needs zarr: make ray-test")

pytestmark = pytest.mark.filterwarnings("default")  # of Ray's own libraries
STORE = 80 << 20  # bytes of each node's object store
ROWS = 150  # of 1 MiB each
CHUNK = 10 << 20
SIZES = (ROWS, 512, 512)


def plane(row: int) -> NDArray[np.float32]:
    """A row of the array, by hand."""
    return (np.arange(512 * 512, dtype=np.float32) + row).reshape(512, 512)


class Volume:
    """An array whose elements are made when they are asked for, and which is never there as a whole."""

    shape = SIZES
    dtype = np.dtype(np.float32)

    def __init__(self) -> None:
        self.most = 0

    def __getitem__(self, box: tuple[Any, ...]) -> NDArray[np.float32]:
        rows = range(*box[0].indices(ROWS))
        self.most = max(self.most, len(rows))
        return np.stack([plane(row)[box[1:]] for row in rows])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and two nodes."""
    os.environ["RAY_health_check_timeout_ms"] = "3000"  # so that a lost node is noticed soon
    new_cluster: Any = importlib.import_module("ray.cluster_utils").Cluster
    nodes = new_cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False},
    )
    nodes.extra = [nodes.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(2)]
    ray.init(address=nodes.address, configure_logging=False, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(scope="module")
def held(cluster: Any) -> Iterator[HeldArray]:
    volume = Volume()
    with distributed.put(volume, chunk_bytes=CHUNK) as array:
        assert volume.most == 10, "more than a chunk was asked for at once"
        yield array


def places(array: HeldArray) -> list[tuple[str, ...]]:
    """Where Ray says that the object of each chunk lies."""
    refs = array.held_chunks.refs
    found = ray.experimental.get_object_locations(refs)
    return [tuple(found[ref]["node_ids"]) for ref in refs]


def test_no_node_has_all_of_an_array_that_was_put(held: HeldArray) -> None:
    assert held.nbytes == 150 << 20 > STORE
    assert (held.shape, held.dtype, held.chunks) == (SIZES, np.float32, (10, 512, 512))
    by_node = held.bytes_by_node()

    print(f"\nMiB of {held.nbytes >> 20} on each node: {sorted(size >> 20 for size in by_node.values())}")
    assert len(by_node) == 3
    assert sum(by_node.values()) == held.nbytes
    assert max(by_node.values()) < STORE


@pytest.mark.parametrize(
    "box",
    [np.s_[7], np.s_[:, 3, 5], np.s_[5:145:7, ::100, 1:3], np.s_[..., -1], np.s_[-1, 2:2], np.s_[8:12, 500:, :10]],
)
def test_of_a_box_only_its_elements_travel(held: HeldArray, box: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before, fetched, get = places(held), [0], ray.get

    def counted(ref: Any) -> Any:
        value = get(ref)
        fetched[0] += value.nbytes
        return value

    monkeypatch.setattr(ray, "get", counted)
    found = held[box]
    monkeypatch.undo()

    expected = Volume()[:, :, :][box]
    np.testing.assert_array_equal(found, expected)
    assert fetched[0] == expected.nbytes
    assert places(held) == before, "a chunk was copied to another node"


def test_all_elements_come_if_they_are_asked_for(held: HeldArray) -> None:
    found = np.asarray(held)
    assert found.shape == SIZES
    assert all(np.array_equal(found[row], plane(row)) for row in range(ROWS))


@pytest.mark.parametrize("box", [np.s_[150], np.s_[0, 0, 0, 0], np.s_[::-1], np.s_[..., ...]])
def test_boxes_that_there_are_not_are_refused(held: HeldArray, box: Any) -> None:
    with pytest.raises(InvalidParameter, match="box has"):
        held[box]
