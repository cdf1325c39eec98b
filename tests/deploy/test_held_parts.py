"""Boxes of held arrays, and what is computed from parts of inputs: without a cluster, which test_ray_arrays.py has."""

from __future__ import annotations

import random
import resource
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.graph_cases import drawn_graph

from tensorpost import parse_operator
from tensorpost.onnx import OnnxNode
from tensorpost.values.datatypes import data_type
from tensorpost.values.graph import NodeOutput
from tensorpost.values.layout import Layout
from tensorpost.values.tensor_box import box_ranges
from tensorpost_server.backends import load_backend
from tensorpost_server.chunked_run import graph_part
from tensorpost_server.chunked_run.chunks import Chunks, aligned_shape, chunk_shape, indices
from tensorpost_server.chunked_run.graph_part import GraphPart, InputPart, parts_read
from tensorpost_server.forms import Box, extents
from tensorpost_server.planning import Plan, make_plan


def item(draw: random.Random, size: int) -> int | slice:
    """An index or a slice of an axis."""
    if size and draw.random() < 0.3:
        return draw.randrange(-size, size)
    start, stop = [draw.choice([None, draw.randint(-size - 2, size + 2)]) for _ in range(2)]
    return slice(start, stop, draw.choice([None, 1, 2, 3, 40]))


def test_a_box_is_put_together_of_what_it_takes_from_each_chunk() -> None:
    draw = random.Random(3)
    several = 0
    for _ in range(400):
        sizes = tuple([draw.randint(0, 9) for _ in range(draw.randint(0, 3))])
        x = np.arange(int(np.prod(sizes, dtype=int))).reshape(sizes)
        chunks = Chunks(Layout.row_major(data_type(x.dtype), sizes), tuple([draw.randint(1, 4) for _ in sizes]))
        cut = [x[indices(chunks.box(index))] for index in range(len(chunks))]
        box = tuple([item(draw, size) for size in sizes])

        ranges, kept = box_ranges(sizes, box)
        out = np.full([len(each) for each in ranges], -1)
        taken = [*chunks.taken(ranges)]
        for one in taken:
            assert one.elements == cut[one.index][one.part].size > 0
            out[(*one.target, ...)] = cut[one.index][(*one.part, ...)]

        found = out.reshape([len(each) for each, is_kept in zip(ranges, kept, strict=True) if is_kept])
        np.testing.assert_array_equal(found, x[box])
        assert len({one.index for one in taken}) == len(taken)
        several += len(taken) > 1
    assert several > 50


def test_chunks_have_whole_chunks_of_a_store() -> None:
    assert aligned_shape((150, 512, 512), 4, 25 << 20, (10, 512, 512)) == (20, 512, 512)
    assert aligned_shape((1024, 1024, 1024), 4, 64 << 20, (64, 64, 64)) == (64, 256, 1024)
    assert aligned_shape((100, 100), 4, 1, (64, 64)) == (64, 64)
    assert aligned_shape((100, 100), 4, 1 << 20, (64, 64)) == (100, 100)
    assert aligned_shape((0, 5), 4, 1 << 20, (1, 5)) == (1, 5)


def in_parts(
    device: Any,
    plan: Plan,
    arrays: Sequence[NDArray[Any]],
    wanted: NodeOutput,
    chunk_bytes: int,
    *,
    sparse: bool = True,
) -> Any:
    """An output, each chunk from nothing but what it reads; and how many bytes the largest part had."""
    layout = plan.steps[wanted.node].outputs[wanted.index].layout
    chunks = Chunks(layout, chunk_shape(layout.sizes, layout.data_type.item_size, chunk_bytes))
    out, largest = np.zeros(layout.sizes, layout.data_type.dtype), 0
    for box in map(chunks.box, range(len(chunks))):
        reads = parts_read(plan, wanted, box, range(len(arrays)), sparse=sparse)
        inputs: list[InputPart] = []
        for place, x in enumerate(arrays):
            part = reads[place].box if place in reads else ((0, 0),) * x.ndim
            inputs.append(InputPart(x[indices(part)].copy(), part, x.shape))
            largest = max(largest, inputs[-1].array.nbytes)
        out[indices(box)] = GraphPart(device, plan, inputs, sparse=sparse).compute(wanted, box)
    return out, largest


X = np.random.default_rng(7).normal(size=(12, 10, 8)).astype(np.float32)


def opened(backend: str) -> Any:
    """The device of a backend, if it is there."""
    try:
        kind: Any = load_backend(backend)
        return kind(threads=1)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"the backend {backend} cannot be opened here: {error}")


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "part"),
    [
        ("Neg", {"X": X}, {}, 1 / 12),
        ("Slice", {"data": X, "starts": [0, 2, 1], "ends": [9, 9, 8], "steps": [2, 3, 1]}, {}, 1 / 12),
        ("Transpose", {"data": X}, {"perm": [2, 1, 0]}, 1 / 8),
        ("Transpose", {"data": X}, {"perm": [1, 0, 2]}, 1 / 10),
        ("Tile", {"input": X, "repeats": [2, 1, 1]}, {}, 1 / 12),
        ("Pad", {"data": X, "pads": [1, 0, 0, 2, 0, 0]}, {}, 1 / 12),
        ("ReduceSum", {"data": X, "axes": [0]}, {}, 1 / 10),
        ("ReduceMean", {"data": X, "axes": [2]}, {"keepdims": 0}, 1 / 12),
        ("ReduceMax", {"data": X, "axes": [1]}, {"keepdims": 0}, 1 / 12),
        ("ArgMax", {"data": X}, {"axis": 2}, 1 / 12),
        ("Softmax", {"input": X}, {"axis": 2}, 1 / 12),
        ("Softmax", {"input": X}, {"axis": 0}, 1),
        ("CumSum", {"x": X, "axis": 1}, {}, 1 / 12),
        ("Resize", {"X": X, "scales": [1, 1, 2.5]}, {"mode": "linear"}, 1 / 12),
        ("Resize", {"X": X, "scales": [1, 2, 2]}, {"mode": "cubic"}, 9 / 10 / 12),
        ("Resize", {"X": X, "scales": [2, 1, 1]}, {"mode": "linear"}, 2 / 12),
        ("Resize", {"X": X, "scales": [2, 2, 2]}, {"mode": "nearest"}, 1 / 12),
        ("Resize", {"X": X, "scales": [0.5, 0.5, 1]}, {"mode": "linear", "antialias": 1}, 5 / 12),
    ],
)
def test_operators_read_parts(
    backend: str, op_type: str, inputs: dict[str, Any], attributes: dict[str, Any], part: float
) -> None:
    device = opened(backend)
    node = OnnxNode.of(op_type, inputs, opset=18, **attributes)
    plan = make_plan(node, 1 << 20)
    arrays = [np.asarray(inputs[slot.name]) for slot in plan.graph.inputs]
    run = device.start(plan, [np.ascontiguousarray(each).reshape(-1).view(np.uint8).data for each in arrays])
    (slot,) = plan.outputs
    expected = np.frombuffer(run.compute(0), slot.layout.data_type.dtype).reshape(slot.layout.sizes)

    found, largest = in_parts(
        device, plan, arrays, NodeOutput(0, 0), expected.nbytes // max(map(len, (X, expected))) // 2
    )

    if op_type in ("ReduceSum", "ReduceMean", "Softmax"):  # sums in another order
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(found, expected)
    assert largest <= round(X.nbytes * part)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("scales", [(1, 1, 2.5), (2, 1, 1), (1.5, 2, 3), (0.5, 0.3, 1)])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resampling_reads_nothing_but_its_part(
    backend: str, scales: tuple[float, ...], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies around the part is NaN here, and nothing on a cluster; a device is given whole axes instead."""
    around = graph_part._around_part

    def of_nan(part: NDArray[Any], box: Box, seen: Box) -> NDArray[Any]:
        array = np.full(extents(seen), np.nan, part.dtype)
        inside = [slice(start - low, stop - low) for (start, stop), (low, _) in zip(box, seen, strict=True)]
        array[tuple(inside)] = part
        assert np.array_equal(around(part, box, seen)[tuple(inside)], part)
        return array

    monkeypatch.setattr(graph_part, "_around_part", of_nan)
    plan = make_plan(OnnxNode.of("Resize", {"X": X, "scales": scales}, opset=18, mode=mode), 1 << 20)
    device, (slot,) = opened(backend), plan.outputs
    run = device.start(plan, [X.reshape(-1).view(np.uint8).data])
    expected = np.frombuffer(run.compute(0), np.float32).reshape(slot.layout.sizes)

    for sparse in (True, False):
        found, _ = in_parts(device, plan, [X], NodeOutput(0, 0), 128, sparse=sparse)
        np.testing.assert_array_equal(found, expected)


def test_an_array_of_which_a_part_is_there_takes_the_memory_of_the_part() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB
    array = graph_part._around_part(
        np.ones((1, 1 << 20), np.float32), ((99, 100), (0, 1 << 20)), ((0, 1 << 18), (0, 1 << 20))
    )
    assert array.nbytes == 1 << 40
    assert array[99].all()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (64 << 10)


def test_a_normalization_reads_the_parts_of_its_scale_that_belong_to_its_lines() -> None:
    """By NumPy; the scale has an entry for each of the first axis, the bias one for each of the last."""
    scale, bias = X[:, :1, :1] + 3, X[:1, :1]
    tensors = {"InputTensor": X, "ScaleTensor": scale, "BiasTensor": bias, "OutputTensor": X}
    fields = {name: {"DataType": "FLOAT32", "Sizes": list(x.shape)} for name, x in tensors.items()}
    desc = {**fields, "AxisCount": 1, "Axes": [2], "NormalizeVariance": True, "Epsilon": 0.0}
    plan = make_plan(parse_operator({"type": "MEAN_VARIANCE_NORMALIZATION1", "desc": desc}), 1 << 20)

    found, largest = in_parts(opened("numpy"), plan, [X, scale, bias], NodeOutput(0, 0), X[0].nbytes)

    x = X.astype(float)
    normal = (x - x.mean(axis=2, keepdims=True)) / x.std(axis=2, keepdims=True)
    np.testing.assert_allclose(found, normal * scale + bias, rtol=1e-4, atol=1e-5)
    assert largest == X[0].nbytes


@pytest.mark.parametrize("name", ["numpy", "numba"])
def test_random_graphs_compute_the_same_from_parts(name: str) -> None:
    device = opened(name)
    fewer = 0
    for seed in range(80):
        case = drawn_graph(random.Random(f"parts {seed}"), 6)
        plan = make_plan(case.read(), 1 << 20)
        arrays = [case.inputs[slot.name] for slot in plan.graph.inputs]
        blocks = [np.ascontiguousarray(each).reshape(-1).view(np.uint8).data for each in arrays]
        whole = [InputPart.of(slot.layout, block) for slot, block in zip(plan.graph.inputs, blocks, strict=True)]
        for wanted in plan.output_sources:
            sizes = plan.steps[wanted.node].outputs[wanted.index].layout.sizes
            expected = GraphPart(device, plan, whole).compute(wanted, tuple([(0, size) for size in sizes]))
            found, largest = in_parts(device, plan, arrays, wanted, 64)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=f"{seed} {wanted}")
            fewer += largest < max([each.nbytes for each in arrays])
    assert fewer > 40
