"""Regions of interest: ONNX Runtime and loops over samples as oracles, and the work and memory that regions take."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.onnx_runtime import completed, onnxruntime, run, tensor

from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import make_plan

Array = NDArray[Any]


def grid(rois: Array, channels: int, height: int, width: int) -> dict[str, Any]:
    return {"DataType": "FLOAT32", "Sizes": [len(rois), channels, height, width]}


def drawn(seed: int) -> tuple[Array, Array, Array]:
    """Images, regions that go beyond them, and whose they are."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((2, 3, 9, 11)).astype(np.float32)
    corners = generator.uniform(-4, 14, (12, 2, 2))
    rois = np.sort(corners, axis=1).reshape(12, 4).astype(np.float32)
    return x, rois, generator.integers(0, 2, 12).astype(np.int64)


@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("scale", [1.0, 0.6])
def test_averages_are_onnx_runtimes(ratio: int, scale: float) -> None:
    x, rois, indices = drawn(ratio)
    attributes = {
        "output_height": 3, "output_width": 4, "sampling_ratio": ratio, "spatial_scale": scale,
        "coordinate_transformation_mode": "half_pixel",
    }  # fmt: skip
    (expected,) = onnxruntime("RoiAlign", {"x": x, "rois": rois, "of": indices}, opset=16, **attributes)
    counts = {"MinimumSamplesPerOutput": ratio, "MaximumSamplesPerOutput": ratio} if ratio else {}
    desc = completed(
        "ROI_ALIGN", InputTensor=tensor(x), ROITensor=tensor(rois), InterpolationMode="LINEAR", SpatialScaleX=scale,
        BatchIndicesTensor={"DataType": "UINT64", "Sizes": [12]}, OutputTensor=grid(rois, 3, 3, 4),
        SpatialScaleY=scale, **counts,
    )  # fmt: skip
    for slices in (1 << 20, 40):
        (found,) = run(desc, x, rois, indices.astype(np.uint64), slice_bytes=slices)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def is_inside(at: float, size: int, corners: bool) -> bool:
    """As DirectML answers it: with corners no sample beyond the outer elements counts."""
    return 0 <= at <= size - 1 if corners else -1 < at <= size


def sampled(x: Array, y_at: float, x_at: float, nearest: bool, outside: float, corners: bool) -> float:
    """One sample, as the page, ONNX and DirectML say."""
    height, width = x.shape
    if not (is_inside(y_at, height, corners) and is_inside(x_at, width, corners)):
        return outside
    y_at, x_at = min(max(y_at, 0), height - 1), min(max(x_at, 0), width - 1)
    if nearest:
        return float(x[math.floor(y_at + 0.5), math.floor(x_at + 0.5)])
    top, left = math.floor(y_at), math.floor(x_at)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    down, across = y_at - top, x_at - left
    above = x[top, left] * (1 - across) + x[top, right] * across
    below = x[bottom, left] * (1 - across) + x[bottom, right] * across
    return float(above * (1 - down) + below * down)


@pytest.mark.parametrize("function", ["AVERAGE", "MAX"])
@pytest.mark.parametrize("mode", ["LINEAR", "NEAREST_NEIGHBOR"])
def test_samples_are_those_of_loops(function: str, mode: str) -> None:
    x, rois, indices = drawn(5)
    rois[:3] = rois[:3][:, [2, 3, 0, 1]]  # turned round
    offsets, corners = (0.25, -0.125), function == "MAX"
    desc = completed(
        "ROI_ALIGN1", InputTensor=tensor(x), ROITensor=tensor(rois), InterpolationMode=mode, ReductionFunction=function,
        BatchIndicesTensor={"DataType": "UINT32", "Sizes": [12]}, OutputTensor=grid(rois, 3, 2, 3),
        SpatialScaleX=0.75, SpatialScaleY=1.25, InputPixelOffset=offsets[0], OutputPixelOffset=offsets[1],
        OutOfBoundsInputValue=0.5, MinimumSamplesPerOutput=2, MaximumSamplesPerOutput=3, AlignRegionsToCorners=corners,
    )  # fmt: skip
    (found,) = run(desc, x, rois, indices.astype(np.uint32), slice_bytes=60)
    for (region, channel, row, column), value in np.ndenumerate(found):
        places: list[list[float]] = []
        for low, high, scale, cells, cell in (
            (rois[region, 1], rois[region, 3], 1.25, 2, row), (rois[region, 0], rois[region, 2], 0.75, 3, column),
        ):  # fmt: skip
            begin, size = float(low) * scale, (float(high) - float(low)) * scale
            count = min(max(math.ceil(abs(size) / cells), 2), 3)
            step = size / (cells * count - corners)
            places.append([(cell * count + s - offsets[1]) * step + begin - offsets[0] for s in range(count)])
        image = x[indices[region], channel]
        values = [sampled(image, a, b, mode != "LINEAR", 0.5, corners) for a in places[0] for b in places[1]]
        expected = max(values) if function == "MAX" else math.fsum(values) / len(values)
        assert math.isclose(value, expected, rel_tol=1e-4, abs_tol=1e-5), (region, channel, row, column)


@pytest.mark.parametrize("mode", ["LINEAR", "NEAREST_NEIGHBOR"])
@pytest.mark.parametrize("function", ["AVERAGE", "MAX"])
def test_the_gradient_of_the_image_is_the_adjoint(function: str, mode: str) -> None:
    """`<align(x), g> = <x, gradient(g)>`, of MAX for the x that chose the samples, which is linear near it."""
    x, rois, indices = drawn(7)
    g = np.random.default_rng(8).standard_normal((12, 3, 2, 3)).astype(np.float32)
    fields: dict[str, Any] = {
        "ROITensor": tensor(rois), "BatchIndicesTensor": {"DataType": "UINT32", "Sizes": [12]},
        "InterpolationMode": mode, "ReductionFunction": function, "InputTensor": tensor(x),
    }  # fmt: skip
    if function == "MAX":
        rois[:] = np.clip(rois, 0, 9)  # outside, 0 may be the largest going forward
    (aligned,) = run(completed("ROI_ALIGN", **fields, OutputTensor=tensor(g)), x, rois, indices.astype(np.uint32))
    desc = completed("ROI_ALIGN_GRAD", **fields, InputGradientTensor=tensor(g))
    (back,) = run(desc, x, g, rois, indices.astype(np.uint32))
    assert math.isclose(np.vdot(aligned, g), np.vdot(x, back), rel_tol=1e-4)


def around(at: float, size: int) -> tuple[int, int, float]:
    """The elements on both sides and the place; one that is moved to the first element has only that."""
    left = min(max(math.floor(at), 0), size - 1)
    return left, left if at < 0 else min(left + 1, size - 1), min(max(at, 0.0), size - 1.0)


def test_the_gradient_of_the_regions_is_directmls() -> None:
    """One sample for each cell: the page's slopes, each end's share of them, times the image's sizes of 11 and 9."""
    x, rois, indices = drawn(9)
    g = np.random.default_rng(8).standard_normal((12, 3, 2, 3)).astype(np.float32)
    expected = np.zeros((12, 4))
    for (region, channel, py, px), w in np.ndenumerate(g):
        x1, y1, x2, y2 = rois[region].astype(float)
        in_x = (px + 0.5) * (x2 - x1) / 3 + x1 - 0.5
        in_y = (py + 0.5) * (y2 - y1) / 2 + y1 - 0.5
        if not (-1 < in_y <= 9 and -1 < in_x <= 11):
            continue
        (fx, cx, in_x), (fy, cy, in_y) = around(in_x, 11), around(in_y, 9)
        lx, ly, image = in_x - fx, in_y - fy, x[indices[region], channel]
        tl, tr, bl, br = image[fy, fx], image[fy, cx], image[cy, fx], image[cy, cx]
        g_y = w * ((1 - lx) * (bl - tl) + lx * (br - tr))
        g_x = w * ((1 - ly) * (tr - tl) + ly * (br - bl))
        expected[region] += [g_x * (1 - px / 3) * 11, g_y * (1 - py / 2) * 9, g_x * px / 3 * 11, g_y * py / 2 * 9]
    desc = completed(
        "ROI_ALIGN_GRAD", InputTensor=tensor(x), InputGradientTensor=tensor(g), ROITensor=tensor(rois),
        BatchIndicesTensor={"DataType": "UINT32", "Sizes": [12]}, OutputROIGradientTensor=tensor(rois),
        InterpolationMode="LINEAR", MaximumSamplesPerOutput=1,
    )  # fmt: skip
    (found,) = run(desc, x, g, rois, indices.astype(np.uint32))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_pooled_regions_are_onnx_runtimes() -> None:
    """Regions inside the image whose sizes the grid divides; ONNX Runtime divides in float32 elsewhere."""
    x, _, indices = drawn(2)
    generator = np.random.default_rng(3)
    low = generator.integers(0, 4, (12, 2))
    rois = np.column_stack([indices, low, low + generator.choice([3, 1], (12, 2))]).astype(np.float32)
    (expected,) = onnxruntime("MaxRoiPool", {"x": x, "rois": rois}, opset=21, pooled_shape=[2, 2])
    desc = completed(
        "ROI_POOLING", InputTensor=tensor(x), ROITensor={"DataType": "FLOAT32", "Sizes": [1, 1, 12, 5]},
        PooledSize={"Width": 2, "Height": 2},
    )  # fmt: skip
    for slices in (1 << 20, 40):
        (found,) = run(desc, x, rois, slice_bytes=slices)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("function", ["AVERAGE", "MAX"])
def test_regions_of_any_extent_take_bounded_memory(function: str) -> None:
    """A region of 10^22 samples: what is outside the image is not listed; images of many channels are read in parts."""
    x = np.ones((1, 256, 200, 200), np.float16)
    rois = np.array([[-60000, -60000, 60000, 60000], [0, 0, 200, 200]], np.float16)
    desc: Any = completed(
        "ROI_ALIGN", InputTensor=tensor(x), ROITensor=tensor(rois), InterpolationMode="LINEAR",
        ReductionFunction=function, SpatialScaleX=1e6, SpatialScaleY=1e6,
        BatchIndicesTensor={"DataType": "UINT32", "Sizes": [2]},
        OutputTensor={"DataType": "FLOAT16", "Sizes": [2, 256, 7, 7]},
    )  # fmt: skip
    plan = make_plan(desc, 1 << 20)
    started = NumpyBackend().start(plan, [a.reshape(-1).view(np.uint8).data for a in (x, rois, np.zeros(2, np.uint32))])
    tracemalloc.start()
    try:
        started.compute(0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= plan.scratch_bytes + (4 << 20)


def test_samples_that_are_asked_for_are_counted() -> None:
    """The work of MinimumSamplesPerOutput is known before a region is."""
    fields: dict[str, Any] = {
        "InputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 9, 9]}, "InterpolationMode": "LINEAR",
        "ROITensor": {"DataType": "FLOAT32", "Sizes": [1, 4]},
        "BatchIndicesTensor": {"DataType": "UINT32", "Sizes": [1]},
        "OutputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 2]}, "MinimumSamplesPerOutput": 100_000,
    }  # fmt: skip
    assert make_plan(completed("ROI_ALIGN", **fields, ReductionFunction="MAX"), 1 << 20).work >= 4 * 10**10
    assert make_plan(completed("ROI_ALIGN", **fields), 1 << 20).work >= 2 * 10**5
