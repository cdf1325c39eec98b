"""`tensorpost.compat` against the libraries themselves: every row of benchmarks/compat.py, and what no row covers.

A library that is not installed is skipped. The bounds are what was measured with torch 2.13.0, opencv-python-headless
5.0.0.93, pillow 13.0.0 and scipy 1.17.1 on these very cases, and half as much again (`python benchmarks/compat.py`
measures more of them, for docs/compat.md). ULP are those of values in [1/2, 1).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.compat import ROWS, Row, all_pairs, nearest, run, shapes, weighted

from tensorpost import compat
from tensorpost.values.problems import InvalidParameter

REASONS = {
    "torch": "torch is not installed (hundreds of megabytes; pip install torch)",
    "cv2": "OpenCV is not installed (pip install opencv-python-headless)",
    "PIL": "Pillow is not installed (pip install pillow)",
    "scipy": "SciPy is not installed (pip install scipy)",
}
PAIRS = 200  # pairs of sizes up to 64, of which there are 4096


def library(name: str) -> Any:
    return pytest.importorskip(name, reason=REASONS[name])


@dataclass(frozen=True)
class Bound:
    """What a row may differ by.

    Attributes:
        share: of the indices, or of the elements of integer types, from 0 to 1.
        small: largest difference for axes of up to 17 elements, in ULP or levels.
        large: the same for axes of 100 to 300.
    """

    share: float = 1.0
    small: float = 0.0
    large: float = 0.0


# Nearest: theirs is floating point at a tie, ours exact. Twice the share of all pairs up to 96, or half as much again
# as this sample has, where it holds more ties than most.
NEAREST = {
    "torch interpolate(mode='nearest') float32": Bound(0.0005),
    "torch interpolate(mode='nearest', scale_factor) float32": Bound(0.004),
    "torch interpolate(mode='nearest') uint8": Bound(0.0005),
    "torch interpolate(mode='nearest-exact') float32": Bound(0.0006),
    "torch interpolate(mode='nearest-exact', scale_factor) float32": Bound(0.004),
    "cv2 resize(INTER_NEAREST) float32": Bound(0.0022),
    "cv2 resize(INTER_NEAREST, fx, fy) float32": Bound(0.0),
    "cv2 resize(INTER_NEAREST_EXACT) float32": Bound(0.011),
    "PIL resize(NEAREST) float32": Bound(0.011),
    "scipy zoom(order=0, mode='nearest') float32": Bound(0.0005),
    "scipy zoom(order=0, mode='constant') float32": Bound(0.0015),
    "scipy zoom(order=0, mode='nearest', grid_mode=True) float32": Bound(0.001),
}
FLOATS = {
    # PyTorch computes coordinates in float32, so that its error grows with the axis.
    "torch interpolate(mode='bilinear') float32": Bound(small=32, large=709),
    "torch interpolate(mode='bilinear', scale_factor) float32": Bound(small=41, large=657),
    "torch interpolate(mode='bilinear', align_corners=True) float32": Bound(small=26, large=621),
    "torch interpolate(mode='bilinear') float16": Bound(small=1.5, large=3),
    "torch interpolate(mode='bilinear') float64": Bound(small=17, large=279),
    "torch interpolate(mode='bicubic') float32": Bound(small=31, large=531),
    "torch interpolate(mode='bicubic', align_corners=True) float32": Bound(small=31, large=842),
    "torch interpolate(mode='bilinear', antialias=True) float32": Bound(small=18, large=239),
    "torch interpolate(mode='bicubic', antialias=True) float32": Bound(small=22, large=336),
    # The others compute them in float64.
    "cv2 resize(INTER_LINEAR) float32": Bound(small=7.5, large=4.5),
    "cv2 resize(INTER_LINEAR, fx, fy) float32": Bound(small=18, large=306),
    "cv2 resize(INTER_LINEAR_EXACT) float32": Bound(small=7.5, large=4.5),
    "cv2 resize(INTER_CUBIC) float32": Bound(small=18, large=12),
    "PIL resize(BILINEAR) float32": Bound(small=4.5, large=4.5),
    "PIL resize(BICUBIC) float32": Bound(small=6, large=9),
    "scipy zoom(order=1, mode='nearest') float32": Bound(small=3, large=4.5),
    "scipy zoom(order=1, mode='nearest', grid_mode=True) float32": Bound(small=3, large=4.5),
}
# Levels are whole numbers: 1 is 1. The shares are for axes of 100 to 300.
INTEGERS = {
    "torch interpolate(mode='bilinear') uint8 enlarging": Bound(0.012, 2, 2),
    "torch interpolate(mode='bilinear') uint8 shrinking": Bound(0.55, 2, 2),  # truncated, not rounded
    "torch interpolate(mode='bicubic') uint8 enlarging": Bound(0.0125, 2, 2),
    "torch interpolate(mode='bilinear', antialias=True) uint8": Bound(0.01, 1, 1),
    "torch interpolate(mode='bicubic', antialias=True) uint8": Bound(0.01, 2, 2),
    "cv2 resize(INTER_LINEAR) uint8": Bound(0.45, 1, 1),
    "cv2 resize(INTER_LINEAR_EXACT) uint8": Bound(0.55, 2, 2),
    "cv2 resize(INTER_CUBIC) uint8": Bound(0.55, 1, 1),
    "cv2 resize(INTER_LINEAR) uint16": Bound(0.55, 1, 1),
    "PIL resize(BILINEAR) uint8 width first": Bound(0.009, 1, 1),
    "PIL resize(BILINEAR) uint8 height first": Bound(0.36, 1, 1),
    "PIL resize(BICUBIC) uint8 width first": Bound(0.0002, 2, 2),
    "PIL resize(BICUBIC) uint8 height first": Bound(0.43, 36, 36),
    "PIL resize(BICUBIC) int32 width first": Bound(0.0002, 1, 1),
    "scipy zoom(order=1, mode='nearest') uint8": Bound(0.55, 1, 1),
}
BOUNDS = {**NEAREST, **FLOATS, **INTEGERS}


def of_kind(bounds: dict[str, Bound]) -> list[Row]:
    return [row for row in ROWS if row.name in bounds]


def test_every_row_has_a_bound() -> None:
    assert len(ROWS) == len({row.name for row in ROWS})
    assert {row.name for row in ROWS} == set(BOUNDS)


def test_the_page_has_every_row() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compat.md").read_text("utf-8")
    tables, _ = page.split("## Names of other operations")
    measured = [line for line in tables.splitlines() if "ULP;" in line or "% differ" in line or " indices" in line]
    listed = [tuple(cell.strip() for cell in line.strip("|").split("|")[:2]) for line in measured if line[0] == "|"]
    assert listed == [(row.in_table, row.dtype) for row in ROWS]


@pytest.mark.parametrize("row", of_kind(NEAREST), ids=lambda row: row.name)
def test_nearest(row: Row) -> None:
    library(row.library)
    pairs = list(all_pairs(row, 64))
    chosen = np.random.default_rng(7).choice(len(pairs), min(PAIRS, len(pairs)), replace=False)
    found = nearest(row, [pairs[index] for index in sorted(chosen)])
    assert found.sent == {"RESAMPLE2"}
    assert found.elements > 4000
    assert found.share <= BOUNDS[row.name].share


@pytest.mark.parametrize("row", of_kind(FLOATS), ids=lambda row: row.name)
def test_weighted_floating_point(row: Row) -> None:
    library(row.library)
    assert weighted(row, shapes(row, 60, 1, 17, seed=2)).largest <= BOUNDS[row.name].small
    assert weighted(row, shapes(row, 2, 100, 300, seed=3)).largest <= BOUNDS[row.name].large


@pytest.mark.parametrize("row", of_kind(INTEGERS), ids=lambda row: row.name)
def test_weighted_integers(row: Row) -> None:
    library(row.library)
    bound = BOUNDS[row.name]
    assert weighted(row, shapes(row, 40, 1, 17, seed=2)).largest <= bound.small
    large = weighted(row, shapes(row, 2, 100, 300, seed=3))
    assert large.largest <= bound.large
    assert large.share <= bound.share


def noise(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(11)
    return rng.random(shape).astype(dtype) if dtype[0] == "f" else rng.integers(0, 256, shape).astype(dtype)


def ulps(theirs: Any, ours: Any) -> float:
    """The largest difference of float32 values up to 1."""
    assert theirs.shape == ours.shape
    return float(np.abs(theirs.astype(np.float64) - ours.astype(np.float64)).max()) * 2**24


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


def interpolate(x: Any, **options: Any) -> Any:
    torch = library("torch")
    return importlib.import_module("torch.nn.functional").interpolate(torch.from_numpy(x), **options).numpy()


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 3, 9), {"size": 13, "mode": "linear"}),
        ((2, 3, 9), {"size": 4, "mode": "linear", "align_corners": True}),
        ((2, 3, 5, 6, 7), {"size": (7, 5, 9), "mode": "trilinear"}),
        ((2, 3, 5, 6, 7), {"size": (7, 5, 9), "mode": "trilinear", "align_corners": True}),
        ((2, 3, 5, 6, 7), {"size": (7, 5, 9), "mode": "nearest"}),
        ((2, 3, 5, 6, 7), {"size": 4, "mode": "nearest-exact"}),
        ((2, 3, 5, 6), {"scale_factor": (1.5, 0.7), "mode": "bilinear", "recompute_scale_factor": True}),
        ((2, 3, 5, 6), {"scale_factor": (1.1, 1.1), "mode": "bilinear"}),  # 5 and 6 stay: copied
        ((2, 3, 5, 6), {"scale_factor": (1.1, 2), "mode": "nearest"}),
        ((2, 3, 5, 6), {"scale_factor": (1.1, 1.7), "mode": "bicubic"}),  # not copied
        ((2, 3, 5, 6), {"scale_factor": (1.1, 0.5), "mode": "bicubic", "antialias": True}),
        ((2, 3, 5, 10), {"scale_factor": 0.7, "mode": "bicubic"}),
        ((2, 3, 5, 10), {"scale_factor": 0.7, "mode": "bilinear", "align_corners": True}),
        ((1, 1, 1, 1), {"size": (3, 4), "mode": "bicubic"}),
        ((1, 1, 4, 4), {"size": 1, "mode": "bilinear", "align_corners": True}),
    ],
)
def test_torch(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    x = noise(*shape)
    theirs, ours = interpolate(x, **options), run(compat.torch_interpolate(x, **options), x)
    assert ulps(theirs, ours) <= (0 if options["mode"].startswith("nearest") else 24)


def test_torch_of_a_single_column_is_wrong_and_ours_is_not() -> None:
    x = noise(1, 1, 9, 1)
    ours = run(compat.torch_interpolate(x, (4, 1), mode="bilinear", antialias=True), x)
    assert ulps(pillow(x[0, 0], (1, 4), "BILINEAR"), ours[0, 0]) <= 4.5
    # The height alone, in two equal columns, where PyTorch is right:
    twice = np.concatenate([x, x], axis=3)
    assert ulps(interpolate(twice, size=(4, 2), mode="bilinear", antialias=True)[..., :1], ours) <= 18


@pytest.mark.parametrize(
    ("dtype", "shape", "options"),
    [
        ("float32", (1, 1, 4, 4), {"size": 2, "mode": "linear"}),
        ("float32", (1, 1, 4, 4), {"size": 2, "mode": "nearest", "align_corners": False}),
        ("float32", (1, 1, 4, 4), {"size": 2, "mode": "nearest", "antialias": True}),
        ("float32", (1, 1, 4, 4), {"size": 2, "scale_factor": 2}),
        ("float32", (1, 1, 4, 4), {}),
        ("float32", (1, 1, 4, 4), {"size": 2, "recompute_scale_factor": True}),
        ("float32", (1, 1, 4, 4), {"size": (2, 2, 2)}),
        ("float32", (1, 1, 4, 4), {"size": 0}),
        ("float32", (1, 1, 4, 4), {"scale_factor": 0.1}),
        ("float32", (4, 4), {"size": 2}),
        ("uint8", (1, 1, 4), {"size": 8, "mode": "linear"}),
        ("uint8", (1, 1, 4, 4, 4), {"size": 8, "mode": "trilinear"}),
        ("int32", (1, 1, 4, 4), {"size": 8, "mode": "bilinear"}),
    ],
)
def test_torch_refuses_it_too(dtype: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    x = noise(*shape, dtype=dtype)
    with pytest.raises((ValueError, RuntimeError, NotImplementedError, TypeError, AssertionError)):
        interpolate(x, **options)
    with pytest.raises(InvalidParameter):
        compat.torch_interpolate(x, **options)


# ---- OpenCV ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interpolation", [0, 1, 2, 5, 6])
@pytest.mark.parametrize("channels", [(), (1,), (3,), (4,)])
def test_opencv_channels(interpolation: int, channels: tuple[int, ...]) -> None:
    cv2 = library("cv2")
    x = noise(11, 13, *channels)
    theirs = cv2.resize(x, (23, 7), interpolation=interpolation)
    ours = run(compat.opencv_resize(x, (23, 7), interpolation=interpolation), x)
    assert ulps(theirs.reshape(ours.shape), ours) <= (18 if interpolation in (1, 2, 5) else 0)


@pytest.mark.parametrize("interpolation", ["INTER_NEAREST", "INTER_LINEAR", "INTER_CUBIC", "INTER_NEAREST_EXACT"])
@pytest.mark.parametrize(("fx", "fy"), [(1.05, 1.05), (1.05, 2), (0.5, 1.5), (1, 1), (0.25, 3.3)])
def test_opencv_factors(interpolation: str, fx: float, fy: float) -> None:
    cv2 = library("cv2")
    x = noise(7, 9)
    theirs = cv2.resize(x, None, fx=fx, fy=fy, interpolation=getattr(cv2, interpolation))
    ours = run(compat.opencv_resize(x, fx=fx, fy=fy, interpolation=interpolation), x)
    assert ulps(theirs, ours) <= (0 if "NEAREST" in interpolation else 18)


def test_opencv_shrinking_by_two_is_the_average_of_four() -> None:
    cv2 = library("cv2")
    x = noise(8, 10)
    area = cv2.resize(x, (5, 4), interpolation=cv2.INTER_AREA)
    assert ulps(area, run(compat.opencv_resize(x, (5, 4)), x)) <= 2


@pytest.mark.parametrize(("interpolation", "share"), [("INTER_LINEAR", 0.2), ("INTER_CUBIC", 0.002)])
def test_opencv_of_uint8_is_nearer_when_float32_is_rounded(interpolation: str, share: float) -> None:
    cv2 = library("cv2")
    x = noise(90, 120, 3, dtype="uint8")
    theirs = cv2.resize(x, (200, 70), interpolation=getattr(cv2, interpolation))
    wide = x.astype(np.float32)
    ours = run(compat.opencv_resize(wide, (200, 70), interpolation=interpolation), wide)
    rounded = np.clip(np.rint(ours), 0, 255)
    assert np.abs(theirs - rounded).max() <= 1
    assert np.mean(theirs != rounded) <= share


@pytest.mark.parametrize("dtype", ["int8", "int32", "float16", "bool"])
def test_opencv_refuses_it_too(dtype: str) -> None:
    cv2 = library("cv2")
    x = np.zeros((4, 4), dtype)
    with pytest.raises(cv2.error):
        cv2.resize(x, (2, 2), interpolation=cv2.INTER_LINEAR)
    with pytest.raises(InvalidParameter):
        compat.opencv_resize(x, (2, 2))


# ---- Pillow ----------------------------------------------------------------------------------------------------------


def pillow(x: Any, size: tuple[int, int], name: str) -> Any:
    library("PIL")
    image = importlib.import_module("PIL.Image")
    return np.asarray(image.fromarray(x).resize(size, image.Resampling[name]))


@pytest.mark.parametrize("name", ["NEAREST", "BILINEAR", "BICUBIC"])
def test_pillow_resizes_bool_by_nearest(name: str) -> None:
    x = noise(11, 13) < 0.5
    np.testing.assert_array_equal(pillow(x, (23, 7), name), run(compat.pillow_resize(x, (23, 7), name), x))


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
@pytest.mark.parametrize("name", ["NEAREST", "BILINEAR", "BICUBIC"])
def test_pillow_wider_integers(name: str, dtype: str) -> None:
    x = np.random.default_rng(3).integers(0, 60000, (19, 29)).astype(dtype)
    theirs, ours = pillow(x, (41, 23), name), run(compat.pillow_resize(x, (41, 23), name), x)
    assert theirs.dtype == ours.dtype == np.dtype(dtype)
    assert np.abs(theirs.astype(int) - ours).max() <= 1


@pytest.mark.parametrize("name", ["BILINEAR", "BICUBIC"])
@pytest.mark.parametrize("size", [(61, 23), (53, 17), (90, 39)])
def test_pillow_height_first_is_the_image_on_its_side(name: str, size: tuple[int, int]) -> None:
    x = noise(40, 50, 3, dtype="uint8")  # the height shrinks and the width grows
    theirs = pillow(x, size, name).astype(int)
    side = np.ascontiguousarray(x.swapaxes(0, 1))
    ours = run(compat.pillow_resize(side, size[::-1], name), side).swapaxes(0, 1)
    assert np.abs(theirs - ours).max() <= 1
    assert np.mean(theirs != ours) <= 0.01


def test_pillow_multiplies_by_alpha_unless_it_is_done_already() -> None:
    library("PIL")
    image = importlib.import_module("PIL.Image")
    x = noise(12, 10, 4, dtype="uint8")
    done = image.frombytes("RGBa", (10, 12), x.tobytes())
    resized = done.resize((15, 18), image.Resampling.BICUBIC).tobytes()
    theirs = np.frombuffer(resized, np.uint8).reshape(18, 15, 4).astype(int)
    ours = run(compat.pillow_resize(x, (15, 18), premultiplied=True), x)
    assert np.abs(theirs - ours).max() <= 2
    assert np.mean(theirs != ours) <= 0.002
    straight = pillow(x, (15, 18), "BICUBIC").astype(int)
    assert np.abs(straight - ours).max() > 20  # which is why it is refused without a word


# ---- SciPy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["constant", "nearest", "reflect", "grid-mirror", "mirror", "wrap", "grid-wrap"])
@pytest.mark.parametrize("order", [0, 1])
def test_scipy_corners_do_not_look_beyond_the_edges(mode: str, order: int) -> None:
    ndimage = pytest.importorskip("scipy.ndimage", reason=REASONS["scipy"])
    x = noise(5, 6, 4)
    zoom = (1.8, 0.5, 2)
    theirs = ndimage.zoom(x, zoom, order=order, mode=mode)
    assert ulps(theirs, run(compat.scipy_zoom(x, zoom, order=order, mode=mode), x)) <= (3 if order else 0)


@pytest.mark.parametrize("mode", ["nearest", "reflect", "grid-mirror"])
@pytest.mark.parametrize("order", [0, 1])
def test_scipy_grid_mode_edges_that_repeat(mode: str, order: int) -> None:
    ndimage = pytest.importorskip("scipy.ndimage", reason=REASONS["scipy"])
    x = noise(5, 6, 4)
    zoom = (1.8, 0.5, 2)
    theirs = ndimage.zoom(x, zoom, order=order, mode=mode, grid_mode=True)
    ours = run(compat.scipy_zoom(x, zoom, order=order, mode=mode, grid_mode=True), x)
    assert ulps(theirs, ours) <= (3 if order else 0)


@pytest.mark.parametrize("dtype", ["float64", "complex64", "int8", "int32", "uint16", "bool"])
def test_scipy_order_0_of_any_type(dtype: str) -> None:
    ndimage = pytest.importorskip("scipy.ndimage", reason=REASONS["scipy"])
    x = (noise(5, 6) * 100).astype(dtype)
    theirs = ndimage.zoom(x, (1.8, 0.5), order=0)
    np.testing.assert_array_equal(theirs, run(compat.scipy_zoom(x, (1.8, 0.5), order=0), x))


def test_scipy_loses_the_last_element_to_its_own_rounding() -> None:
    ndimage = pytest.importorskip("scipy.ndimage", reason=REASONS["scipy"])
    lost = [
        (size, length)
        for size in range(2, 40)
        for length in range(2, 40)
        if ndimage.zoom(np.ones(size), length / size, order=1).size == length
        and ndimage.zoom(np.ones(size), length / size, order=1)[-1] == 0
    ]
    assert 0 < len(lost) < 60
    for size, length in lost:
        x = np.ones(size)
        assert run(compat.scipy_zoom(x, length / size, order=1), x).tolist() == [1.0] * length
