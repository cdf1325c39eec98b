"""`tensorpost.distributed` without a cluster: stand-ins for ray and zarr run each task here when it is waited for.

What only a cluster shows (several nodes, one of them lost) is in test_ray.py.
"""

from __future__ import annotations

import io
import json
import random
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.graph_cases import drawn_graph

from tensorpost import Progress, ProgressBar, distributed
from tensorpost.distributed import HeldArray
from tensorpost.onnx import OnnxNode
from tensorpost.values.datatypes import data_type
from tensorpost.values.graph import Graph
from tensorpost.values.layout import Layout
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter
from tensorpost_server.backends import load_backend
from tensorpost_server.chunked_run import HeldChunks
from tensorpost_server.chunked_run.chunks import Chunks, chunk_shape
from tensorpost_server.chunked_run.graph_part import GraphPart, InputPart
from tensorpost_server.planning import make_plan

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


# ---- held arrays: what is refused before a cluster is asked; the rest is in test_ray_arrays.py -----------------------


def held_array(sizes: tuple[int, ...], dtype: str = "float32") -> HeldArray:
    layout = Layout.row_major(data_type(dtype), sizes)
    return HeldArray(HeldChunks(Chunks(layout, (1, *sizes[1:])), "of a test", "make it again"))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"A": held_array((6, 1024), "float64"), "B": X}, r"A is a held array of float64 and shape \(6, 1024\), but"),
        (
            (X, held_array((6, 1))),
            r"B is a held array of float32 and shape \(6, 1\), but its descriptor says float32 of",
        ),
        ({"A": X, "C": held_array((6, 1024))}, r"Add-13 has the inputs A, B; got A, C"),
        ({"A": held_array((6, 1024))}, r"Add-13 has the inputs A, B; got A"),
        ([held_array((6, 1024))], r"Add-13 takes the inputs A, B; got 1 arrays"),
        ((held_array((6, 1024)), X[:2]), r"B is float32 of shape \(2, 1024\), but its descriptor says"),
    ],
)
def test_a_held_array_that_is_not_the_input_is_refused(inputs: Any, message: str) -> None:
    node = OnnxNode.of("Add", {"A": X, "B": X}, opset=13)
    with pytest.raises(InvalidParameter, match=message):
        distributed.run(node, inputs, keep=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: distributed.run(TILE, X, keep=True, store="y"),
            r"keep is True and store 'y'; keep is True or",
        ),
        (lambda: distributed.run(TILE, X, keep=cast("Any", "y")), r"keep is 'y' and store None"),
        (lambda: distributed.put(X, chunks=(1,)), r"chunks is \[1\]; it must have a size for each axis of \[6, 1024\]"),
        (lambda: distributed.put(X, chunks=(1, 0)), r"chunks is 0; it must be a whole number of at least 1"),
        (lambda: distributed.put(X, chunks=cast("Any", 6)), r"chunks is 6; it must have a size for each axis"),
        (lambda: distributed.put(X, chunk_bytes=0), r"chunk_bytes is 0"),
        (lambda: distributed.put(np.array(["a"])), r"x is an array of <U1; held arrays are numbers and booleans"),
        (lambda: distributed.put(np.ma.masked_less(X, 5)), r"x is a masked array"),
        (lambda: distributed.read_zarr(""), r"store is ''; it must be a path or URL"),
        (lambda: held_array((6, 8))[cast("Any", None)], r"box has None"),
        (lambda: held_array((6, 8))[7], r"box has the index 7 for axis 0"),
    ],
)
def test_arguments_of_held_arrays_are_checked(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        call()


def test_an_element_that_depends_on_too_much_of_a_held_array_is_refused_by_name(
    stores: dict[str, np.ndarray[Any, Any]],
) -> None:
    held = held_array((6, 1024))
    with pytest.raises(InvalidParameter, match=r"ReduceSum-13 needs all of the held input 'data' \(24,576 bytes\) for"):
        distributed.run(OnnxNode.of("ReduceSum", {"data": held}, opset=13), held, store="y", chunk_bytes=24_575)
    graph = {
        "inputs": {"x": {}, "y": {}},
        "nodes": [{"name": "w", "op_type": "MatMul", "inputs": ["x", "y"]}],
        "outputs": {"w": "w"},
    }
    with pytest.raises(InvalidParameter, match=r"node 'w' needs all of the held input 'x'.* raise chunk_bytes"):
        distributed.run_graph(graph, {"x": held, "y": X.T}, store="y", chunk_bytes=20 << 10)
    assert not stores


# ---- graphs ----------------------------------------------------------------------------------------------------------

# Of 24 KiB: means (24 bytes), which all of the rest needs, then 96 KiB that are made box by box.
GRAPH: dict[str, Any] = {
    "inputs": {"x": {"sizes": ["rows", 1024]}},
    "constants": {"two": {"dtype": "F32", "shape": [], "data": [2]}},
    "nodes": [
        {"name": "means", "op_type": "ReduceMean", "inputs": {"data": "x", "axes": [1]}},
        {"name": "wide", "op_type": "Resize", "inputs": {"X": "x", "sizes": [6, 4096]},
         "attributes": {"mode": "nearest"}},
        {"name": "half", "op_type": "Cast", "inputs": "wide", "attributes": {"to": "float16"}},
        {"name": "float", "op_type": "Cast", "inputs": "half", "attributes": {"to": "float32"}},
        {"name": "centred", "op_type": "Sub", "inputs": ["float", "means"]},
        {"name": "twice", "op_type": "Mul", "inputs": ["centred", "two"]},
    ],
    "outputs": {"y": "twice", "means": "means", "w": "wide"},
}  # fmt: skip


def in_one_piece(device: Any, graph: Graph, arrays: Mapping[str, NDArray[Any]]) -> dict[str, bytes]:
    """The outputs by their names, as the service computes them with this backend."""
    plan = make_plan(graph, 1 << 20)
    run = device.start(plan, [np.ascontiguousarray(arrays[slot.name]).data.cast("B") for slot in plan.inputs])
    found = {slot.name: b"" for slot in plan.outputs}
    for index, piece in enumerate(plan.slices):
        found[plan.outputs[piece.output].name] += run.compute(index)
    return found


def test_a_graph_is_written_output_by_output(stores: dict[str, np.ndarray[Any, Any]], tmp_path: Path) -> None:
    x = X / 7
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(GRAPH))
    calls = list[Progress]()
    found = distributed.run_graph(
        file, {"x": x}, store="s3://bucket/out/", chunk_bytes=20 << 10, backend="numpy", progress=calls.append
    )

    wide = np.repeat(x, 4, axis=1)  # round_prefer_floor of (i + 0.5) / 4 - 0.5 is i // 4
    means = x.mean(axis=1, keepdims=True)
    assert stores.keys() == {f"s3://bucket/out/{name}" for name in ("y", "means", "w")}
    assert all(stores[f"s3://bucket/out/{name}"] is array for name, array in found.items())
    np.testing.assert_array_equal(found["w"], wide)
    np.testing.assert_allclose(found["means"], means, rtol=1e-6)
    np.testing.assert_array_equal(found["y"], (wide.astype(np.float16).astype(np.float32) - found["means"]) * 2)
    assert calls[-1] == Progress(0, 0, 2 * (96 << 10) + 24, 2 * (96 << 10) + 24)
    assert len(calls) == 1 + 6 + 1 + 6


def test_without_a_store_a_graph_gives_references_by_the_names_of_its_outputs(
    stores: dict[str, np.ndarray[Any, Any]],
) -> None:
    found = distributed.run_graph(GRAPH, {"x": X}, chunk_bytes=48 << 10, backend="numpy")

    assert [len(parts) for parts in found.values()] == [2, 1, 2]
    assert [box for box, _ in found["w"]] == [((0, 3), (0, 4096)), ((3, 6), (0, 4096))]
    np.testing.assert_array_equal(np.concatenate([ref() for _, ref in found["w"]]), np.repeat(X, 4, axis=1))
    assert not stores


def test_results_that_are_needed_whole_and_are_larger_than_a_chunk_are_refused_by_name(
    stores: dict[str, np.ndarray[Any, Any]],
) -> None:
    last = {"name": "flat", "op_type": "Transpose", "inputs": "twice", "attributes": {"perm": [1, 0]}}
    graph = {**GRAPH, "nodes": [*GRAPH["nodes"], last], "outputs": {"y": "flat"}}
    with pytest.raises(InvalidParameter, match=r"node 'flat' needs all of 'twice' at once.*raise chunk_bytes, or run"):
        distributed.run_graph(graph, {"x": X}, store="y", chunk_bytes=64 << 10, backend="numpy")
    assert not stores

    # Resize, the cast to float16 and the rest, 96 + 48 + 96 KiB and 24 bytes
    found = distributed.run_graph(graph, {"x": X}, store="y", chunk_bytes=(240 << 10) + 24, backend="numpy")
    whole = distributed.run_graph(GRAPH, {"x": X}, store="z", chunk_bytes=1 << 20, backend="numpy")
    np.testing.assert_array_equal(found["y"], whole["y"].T)


@pytest.mark.parametrize("name", ["../y", ".y", "a/b", "\u00e4"])
def test_an_output_whose_name_no_store_has_is_refused(stores: dict[str, np.ndarray[Any, Any]], name: str) -> None:
    graph = {**GRAPH, "outputs": {"means": "means", name: "twice"}}
    with pytest.raises(InvalidParameter, match=r"rename it in outputs"):
        distributed.run_graph(graph, {"x": X}, store="y", backend="numpy")
    assert not stores


def test_an_index_that_a_node_computes_is_checked_in_the_task(stores: dict[str, np.ndarray[Any, Any]]) -> None:
    nodes = [
        {"name": "far", "op_type": "Cast", "inputs": "i", "attributes": {"to": "int64"}},
        {"name": "y", "op_type": "Gather", "inputs": ["x", "far"]},
    ]
    graph = {"inputs": {"x": {}, "i": {}}, "nodes": nodes, "outputs": {"y": "y"}}

    def run(*indices: int) -> Any:
        return distributed.run_graph(graph, {"x": X, "i": np.array(indices, np.int32)}, store="y", backend="numpy")

    np.testing.assert_array_equal(run(5, 0)["y"], X[[5, 0]])
    with pytest.raises(InvalidDescriptor, match=r"node 'y': indices\[1\] is 6"):
        run(0, 6)


def test_a_long_chain_of_which_each_node_reads_the_one_before_twice(stores: dict[str, np.ndarray[Any, Any]]) -> None:
    """Rounded to float16 after each node, none is fused: 2^600 additions if nothing were kept."""
    nodes = [{"name": f"n{at}", "op_type": "Max", "inputs": [f"n{at - 1}" if at else "x"] * 2} for at in range(600)]
    graph = {"inputs": {"x": {}}, "nodes": nodes, "outputs": {"y": "n599"}}
    x = X.astype(np.float16)

    found = distributed.run_graph(graph, {"x": x}, store="y", chunk_bytes=4 << 10, backend="numpy")

    np.testing.assert_array_equal(found["y"], x)


@pytest.mark.parametrize("name", ["numpy", "numba"])
def test_boxes_of_random_graphs_are_those_of_the_whole(name: str) -> None:
    try:
        kind: Any = load_backend(name)
        device = kind(threads=1)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"the backend {name} cannot be opened here: {error}")
    several = 0
    for seed in range(80):
        case = drawn_graph(random.Random(f"distributed {seed}"), 7)
        graph = case.read()
        plan = make_plan(graph, 1 << 20)
        inputs = [
            InputPart.of(slot.layout, np.ascontiguousarray(case.inputs[slot.name]).reshape(-1).view(np.uint8).data)
            for slot in plan.inputs
        ]
        for slot, ref in zip(plan.outputs, plan.output_sources, strict=True):
            layout, expected = slot.layout, in_one_piece(device, graph, case.inputs)[slot.name]
            chunks = Chunks(layout, chunk_shape(layout.sizes, layout.data_type.item_size, 64))
            several += len(chunks) > 1
            for piece in map(chunks.piece, range(len(chunks))):
                made = GraphPart(device, plan, inputs).compute(ref, piece.box)
                assert made.tobytes() == expected[piece.begin : piece.begin + piece.computed], (seed, slot.name, piece)
    assert several > 40
