"""The error function against C's, in units in the last place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorpost_server.forms.special import BLOCK, erf

MOST_ULP = {"float32": 3.0, "float64": 3.0, "float16": 0.51}


def places(dtype: str) -> NDArray[Any]:
    """Every magnitude, and both sides of every limit of the approximation; more than one block."""
    random = np.random.default_rng(5)
    spread = [random.standard_normal(2 * BLOCK) * 2, np.linspace(-7, 7, 20_001), 10.0 ** np.linspace(-37, 1, 2000)]
    limits = np.array([edge * (1 + side * 2.0**-20) for edge in (-6, -4, -1, 1, 4, 6) for side in (-1, 0, 1)])
    with np.errstate(over="ignore", under="ignore"):
        return np.concatenate([*spread, limits]).astype(dtype)


@pytest.mark.parametrize("dtype", list(MOST_ULP))
def test_erf_is_near_the_exact_number(dtype: str):
    x = places(dtype)
    exact = np.array([math.erf(value) for value in x.astype(np.float64)])
    ulp = np.spacing(np.maximum(np.abs(exact), np.finfo(dtype).tiny).astype(dtype)).astype(np.float64)

    result = erf(np, x)

    assert result.dtype == dtype
    assert (np.abs(result.astype(np.float64) - exact) / ulp).max() <= MOST_ULP[dtype]


@pytest.mark.parametrize("dtype", list(MOST_ULP))
def test_erf_of_special_numbers(dtype: str):
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)

    result = erf(np, x)

    np.testing.assert_array_equal(result, np.array([np.nan, 1, -1, 0, 0], dtype))
    assert list(np.signbit(result[1:])) == [False, True, False, True]


def test_erf_of_any_layout():
    x = np.linspace(-3, 3, 60).reshape(3, 4, 5)

    for view in (x.T, x[::2, :, ::-1], x[:0], np.broadcast_to(x[:1], (3, 4, 5))):
        np.testing.assert_allclose(erf(np, view), np.vectorize(math.erf, otypes=[np.float64])(view), rtol=1e-15)
