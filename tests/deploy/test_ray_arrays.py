"""Arrays that a cluster holds: three nodes of this machine, each with room for about half of an array.

Run where ray is installed (`make ray-test`); skipped elsewhere. The figures that it prints are in docs/deploy.md.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.processes import descendants

from tensorpost import Progress, distributed
from tensorpost.distributed import HeldArray
from tensorpost.onnx import OnnxNode
from tensorpost.values.problems import InvalidParameter, TensorGone, Unavailable
from tensorpost_server.chunked_run import held_chunks

ray: Any = pytest.importorskip("ray", reason="needs ray: make ray-test")
zarr: Any = pytest.importorskip("zarr", reason="needs zarr: make ray-test")

pytestmark = pytest.mark.filterwarnings("default")  # of Ray's own libraries
STORE = 80 << 20  # bytes of each node's object store
ROWS = 150  # of 1 MiB each
CHUNK = 10 << 20
SIZES = (ROWS, 512, 512)


def plane(row: int) -> NDArray[np.float32]:
    """A row of the array, by hand."""
    return (np.arange(512 * 512, dtype=np.float32) % 4096 + row).reshape(512, 512)


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


def peaks(found: dict[int, int]) -> None:
    """Note the most resident bytes that each process of a task has had, by its id."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
                (most,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
                found[pid] = int(most) << 10


def places(array: HeldArray) -> list[tuple[str, ...]]:
    """Where Ray says that the object of each chunk lies."""
    refs = array.held_chunks.refs
    found = ray.experimental.get_object_locations(refs)
    return [tuple(found[ref]["node_ids"]) for ref in refs]


def copied(before: list[tuple[str, ...]], after: list[tuple[str, ...]]) -> list[int]:
    """The chunks that lie on a node where they did not. Copies that nobody needs, Ray drops when it likes."""
    return [index for index, (then, now) in enumerate(zip(before, after, strict=True)) if {*now} - {*then}]


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
    assert not copied(before, places(held))


def test_all_elements_come_if_they_are_asked_for(held: HeldArray) -> None:
    found = np.asarray(held)
    assert found.shape == SIZES
    assert all(np.array_equal(found[row], plane(row)) for row in range(ROWS))


@pytest.mark.parametrize("box", [np.s_[150], np.s_[0, 0, 0, 0], np.s_[::-1], np.s_[..., ...]])
def test_boxes_that_there_are_not_are_refused(held: HeldArray, box: Any) -> None:
    with pytest.raises(InvalidParameter, match="box has"):
        held[box]


# ---- runs ------------------------------------------------------------------------------------------------------------

HALF = {"inputs": {"x": {}, "scale": {}}, "outputs": {"half": "half", "sums": "sums"}, "nodes": [
    {"name": "half", "op_type": "Mul", "inputs": ["x", "scale"]},
    {"name": "sums", "op_type": "ReduceSum", "inputs": {"data": "x", "axes": [0]}, "attributes": {"keepdims": 0}},
]}  # fmt: skip


def test_a_graph_reads_a_held_array_where_it_lies_and_its_outputs_are_written(held: HeldArray, tmp_path: Path) -> None:
    calls = list[Progress]()
    scale = np.array([0.5], np.float32)
    found = distributed.run_graph(
        HALF, {"x": held, "scale": scale}, store=tmp_path, chunk_bytes=CHUNK, backend="numpy", progress=calls.append
    )

    assert all(np.array_equal(found["half"][row], plane(row) / 2) for row in range(ROWS))
    np.testing.assert_array_equal(found["sums"][:], 150 * plane(0) + 149 * 75)  # all below 2^24
    assert calls[-1] == Progress(0, 0, (150 << 20) + (1 << 20), (150 << 20) + (1 << 20))


def test_an_output_that_is_kept_lies_where_its_input_does_and_is_an_input_again(held: HeldArray) -> None:
    before = places(held)
    node = OnnxNode.of("Slice", {"data": held, "starts": [0, 0, 100], "ends": [150, 512, 140]}, opset=13)
    with distributed.run(node, held, keep=True, chunk_bytes=1 << 20, backend="numpy") as part:
        assert isinstance(part, HeldArray)
        assert part.shape == (150, 512, 40)
        assert not copied(before, places(held))
        assert len(part.bytes_by_node()) == 3
        kept = OnnxNode.of("Transpose", {"data": part}, opset=13, perm=[2, 0, 1])
        with distributed.run(kept, part, keep=True, chunk_bytes=1 << 20, backend="numpy") as turned:
            np.testing.assert_array_equal(turned[3, :, ::2], Volume()[:, ::2, 103])


def test_without_a_store_the_chunks_that_are_computed_of_a_held_array_are_references(held: HeldArray) -> None:
    node = OnnxNode.of("Slice", {"data": held, "starts": [70, 0, 0], "ends": [90, 2, 512]}, opset=13)
    parts = distributed.run(node, {"data": held}, chunk_bytes=40 << 10, backend="numpy")

    assert [box[0] for box, _ in parts] == [(row, row + 10) for row in (0, 10)]
    np.testing.assert_array_equal(np.concatenate(ray.get([ref for _, ref in parts])), Volume()[70:90, :2, :])


def test_resampling_reads_no_more_than_it_needs_and_its_tasks_hold_chunks(held: HeldArray) -> None:
    """Each plane is the mean of two; an axis that is resampled is read in parts, too."""
    resident: dict[int, int] = {}

    def progress(_: Progress) -> None:
        peaks(resident)

    node = OnnxNode.of("Resize", {"X": held, "scales": [0.5, 1, 1]}, opset=19, mode="linear")
    with distributed.run(node, held, keep=True, chunk_bytes=CHUNK, backend="numpy", progress=progress) as means:
        assert means.shape == (75, 512, 512)
        assert means.chunks == (5, 512, 512)  # of which each reads ten planes
        assert all(np.array_equal(means[row], plane(2 * row) + 0.5) for row in range(75))
    print(f"\nMiB that {len(resident)} processes of tasks had resident: {sorted(n >> 20 for n in resident.values())}")
    assert max(resident.values()) < 300 << 20


def test_what_needs_too_much_of_a_held_array_is_refused_before_anything_is_computed(
    held: HeldArray, tmp_path: Path
) -> None:
    node = OnnxNode.of("ReduceSum", {"data": held}, opset=13)
    with pytest.raises(
        InvalidParameter, match=r"ReduceSum-13 needs all of the held input 'data' \(157,286,400 bytes\)"
    ):
        distributed.run(node, held, store=tmp_path / "y", chunk_bytes=CHUNK)
    assert not [*tmp_path.iterdir()]


# ---- Zarr ------------------------------------------------------------------------------------------------------------


def test_what_is_held_is_written_to_zarr_and_read_from_it(held: HeldArray, tmp_path: Path) -> None:
    written = held.write_zarr(tmp_path / "x")

    assert (written.shape, written.chunks, written.dtype) == (SIZES, (10, 512, 512), np.float32)
    assert all(np.array_equal(written[row], plane(row)) for row in range(ROWS))
    with distributed.read_zarr(tmp_path / "x", chunk_bytes=25 << 20) as again:
        assert again.chunks == (20, 512, 512)  # two of the store's chunks
        assert len(again.bytes_by_node()) == 3
        np.testing.assert_array_equal(again[15:25, 7], Volume()[15:25, 7, :])
    with distributed.read_zarr(tmp_path / "x", chunks=(150, 64, 64)) as columns:
        np.testing.assert_array_equal(columns[:, 100, 100], Volume()[:, 100, 100])


def test_what_was_deleted_is_gone(cluster: Any) -> None:
    held = distributed.put(np.arange(6).reshape(2, 3), chunks=(1, 2))
    with held:
        assert held[:, 1].tolist() == [1, 4]
        assert held[()].tolist() == [[0, 1, 2], [3, 4, 5]]
    for read in (held.get, held.bytes_by_node, lambda: held.write_zarr("/nowhere")):
        with pytest.raises(TensorGone, match=r"was deleted at \d\d:\d\d:\d\d UTC; .*put the array again") as raised:
            read()
        assert raised.value.extra["reason"] == "deleted"


def test_the_lines_of_the_page(cluster: Any, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text("utf-8")
    (block,) = [text for text in re.findall(r"```python\n(.*?)```", page, re.S) if "read_zarr" in text]
    x = np.arange(4 * 3 * 50, dtype=np.float32).reshape(4, 3, 50)
    zarr.create_array(tmp_path / "scan.zarr", data=x, chunks=(1, 3, 50))
    np.save(tmp_path / "mask.npy", np.full(x.shape, 2, np.float32))
    names: dict[str, Any] = {}
    exec(block.replace("/shared/", f"{tmp_path}/"), names)

    np.testing.assert_array_equal(names["middle"], 2 * x[:, 1])
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "masked.zarr")[:], 2 * x)


def test_a_process_that_ends_while_an_array_is_put(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(_: Any) -> None:
        os._exit(1)

    monkeypatch.setattr(held_chunks, "_kept", dies)
    with pytest.raises(Unavailable, match="ended while the array was put: put it again"):
        distributed.put(np.zeros((2, 3)), chunks=(1, 3))


# ---- a lost node -----------------------------------------------------------------------------------------------------


def test_chunks_of_a_lost_node_are_read_and_computed_again_or_gone(cluster: Any, tmp_path: Path) -> None:
    """Last, since it takes a node away."""
    x = np.arange(30 << 18, dtype=np.float32).reshape(30, 512, 512)
    zarr.create_array(tmp_path / "x", data=x, chunks=(1, 512, 512))
    own = distributed.put(x, chunk_bytes=2 << 20)
    read = distributed.read_zarr(tmp_path / "x", chunk_bytes=2 << 20)
    made = distributed.run(OnnxNode.of("Neg", {"X": read}, opset=13), read, keep=True, chunk_bytes=2 << 20)
    read_of_own = distributed.run(OnnxNode.of("Neg", {"X": own}, opset=13), own, keep=True, chunk_bytes=2 << 20)
    deleted = distributed.put(x, chunk_bytes=2 << 20)
    read_of_deleted = distributed.run(OnnxNode.of("Neg", {"X": own}, opset=13), deleted, keep=True, chunk_bytes=2 << 20)
    deleted.delete()
    zarr.create_array(tmp_path / "removed", data=x, chunks=(1, 512, 512))
    removed = distributed.read_zarr(tmp_path / "removed", chunk_bytes=2 << 20)
    shutil.rmtree(tmp_path / "removed")
    lost = cluster.extra[-1].node_id
    rows = [2 * index for index, nodes in enumerate(places(own)) if nodes == (lost,)]
    there = [2 * index for index, nodes in enumerate(places(own)) if lost not in nodes]
    assert rows
    assert there
    for array in (read, made, read_of_own, read_of_deleted, removed):
        assert lost in array.bytes_by_node()

    cluster.remove_node(cluster.extra.pop(), allow_graceful=False)

    with pytest.raises(
        TensorGone, match=rf"the chunk \[{rows[0]}:{rows[0] + 2},0:512,0:512\] .* lay on node"
    ) as raised:
        own[rows[0]]
    print(f"\n{raised.value}")
    assert raised.value.extra == {"reason": "lost", "box": f"{rows[0]}:{rows[0] + 2},0:512,0:512", "node": lost}
    np.testing.assert_array_equal(own[there[0]], x[there[0]])
    np.testing.assert_array_equal(read.get(), x)
    np.testing.assert_array_equal(made.get(), -x)
    with pytest.raises(TensorGone, match=r"'output' of Neg-13 cannot be computed again .* that was put lay on node"):
        read_of_own.get()
    with pytest.raises(TensorGone, match=r"'output' of Neg-13 was lost, and what it was computed from was deleted"):
        read_of_deleted.get()
    with pytest.raises(TensorGone, match=r"removed was lost, and making it again failed .* does not exist\. Read the"):
        removed.get()
    with pytest.raises(TensorGone, match="that was put"):
        distributed.run(OnnxNode.of("Abs", {"X": own}, opset=13), own, keep=True, chunk_bytes=2 << 20)
