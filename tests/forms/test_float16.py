"""float16 conversion by bits, against NumPy's own cast: every half there is, and every tie."""

from __future__ import annotations

import types
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorpost_server.forms import float16
from tensorpost_server.forms.float16 import narrow, widen

EVERY_HALF = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
OTHER = cast("types.ModuleType", types.SimpleNamespace())  # an array library whose arrays cast by themselves


def same(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Equal to the bit, but for which NaN it is."""
    assert left.dtype == right.dtype
    nan = np.isnan(right)
    kind = f"u{left.itemsize}"
    return bool((np.isnan(left) == nan).all() and (left.view(kind)[~nan] == right.view(kind)[~nan]).all())


def narrowed(floats: NDArray[np.float32], xp: types.ModuleType = np) -> NDArray[np.float16]:
    out = np.full(floats.shape, 7, np.float16)
    narrow(xp, floats, out)
    return out


@pytest.mark.parametrize("xp", [np, OTHER], ids=["numpy", "any library"])
@pytest.mark.parametrize("finite", [False, True])
def test_every_half_widens_exactly(xp: types.ModuleType, finite: bool) -> None:
    halves = EVERY_HALF[np.isfinite(EVERY_HALF)] if finite else EVERY_HALF
    assert halves.size >= float16.SHORT
    assert same(widen(xp, halves), halves.astype(np.float32))


def test_strided_halves_widen() -> None:
    halves = EVERY_HALF.reshape(256, 256)[::-2, 1::3]
    assert same(widen(np, halves), halves.astype(np.float32))


@pytest.mark.parametrize("chunk", [float16.CHUNK, 5000])
@pytest.mark.parametrize("limit", [65519.99, np.inf], ids=["finite results", "overflow too"])
def test_ties_and_their_neighbours_narrow_as_numpy_does(
    monkeypatch: pytest.MonkeyPatch, chunk: int, limit: float
) -> None:
    monkeypatch.setattr(float16, "CHUNK", chunk)
    finite = np.sort(EVERY_HALF[np.isfinite(EVERY_HALF)]).astype(np.float32)
    ties = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    up, down = np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))
    tiny = np.array([0.0, -0.0, 1e-45, -1e-45, 2.0**-25, -(2.0**-25), 1.5 * 2.0**-25], np.float32)
    huge = np.array([65519.99, 65520, -65520, 65536, 1e30, np.inf, -np.inf, np.nan, -np.nan], np.float32)
    values = np.concatenate([finite, ties, up, down, tiny, huge])
    values = values[np.abs(values) <= limit] if np.isfinite(limit) else values
    with np.errstate(over="ignore"):
        want = values.astype(np.float16)
    assert same(narrowed(values), want)


@pytest.mark.parametrize("xp", [np, OTHER], ids=["numpy", "any library"])
def test_random_bits_narrow_as_numpy_does(xp: types.ModuleType) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    values[1 << 16 :] = np.clip(np.nan_to_num(values[1 << 16 :]), -60000, 60000)
    with np.errstate(over="ignore"):
        want = values.astype(np.float16)
    assert same(narrowed(values, xp), want)


@pytest.mark.parametrize("shape", [(300_000,), (1, 1, 3, 70_000), (1, 600, 500), (5000, 7), (4, 1)])
def test_shapes_and_strided_outputs(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    out = np.full((*shape, 2), 7, np.float16)
    narrow(np, values, out[..., 1])
    np.testing.assert_array_equal(out[..., 1], values.astype(np.float16))
    np.testing.assert_array_equal(out[..., 0], 7)
