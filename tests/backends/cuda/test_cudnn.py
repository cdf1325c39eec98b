"""Convolutions by cuDNN on an NVIDIA device, beside the same form on NumPy's arrays."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.support.cuda_device import missing_device

from tensorpost_server.backends.cuda.backend import CudaBackend
from tensorpost_server.backends.cuda.cudnn import Cudnn
from tensorpost_server.forms import Window
from tensorpost_server.forms.convolutions import Convolution

if (MISSING := missing_device()) is not None:
    pytest.skip(MISSING, allow_module_level=True)

try:
    Cudnn()
except OSError as error:
    pytest.skip(f"cuDNN is not installed: {error}", allow_module_level=True)


def drawn(chance: random.Random) -> tuple[Convolution, tuple[int, ...], tuple[int, ...]]:
    """A convolution, and the sizes of its input and of its filters."""
    rank, groups = chance.randint(1, 3), chance.choice([1, 1, 2, 4])
    channels, filters = groups * chance.randint(1, 5), groups * chance.randint(1, 5)
    sizes, taps = [chance.randint(4, 12) for _ in range(rank)], [chance.randint(1, 3) for _ in range(rank)]
    strides, dilations = ([chance.randint(1, 2) for _ in range(rank)] for _ in range(2))
    before, after = ([chance.randint(0, 2) for _ in range(rank)] for _ in range(2))
    out = [
        (size + low + high - (tap - 1) * dilation - 1) // stride + 1
        for size, low, high, tap, dilation, stride in zip(sizes, before, after, taps, dilations, strides, strict=True)
    ]
    batch = chance.randint(1, 3)
    window = Window(tuple(taps), tuple(strides), tuple(dilations), tuple(before))
    form = Convolution(window, groups, (batch, filters, *out), channels // groups)
    return form, (batch, channels, *sizes), (filters, channels // groups, *taps)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12), ("float16", 2e-3)])
def test_drawn_convolutions(dtype: str, tolerance: float):
    backend, chance, rng, computed = CudaBackend(), random.Random(dtype), np.random.default_rng(1), 0
    cupy = backend.cupy
    assert backend.cudnn is not None
    try:
        for _ in range(150):
            form, sizes, filters = drawn(chance)
            x, weights = (rng.standard_normal(each).astype(dtype) for each in (sizes, filters))
            (expected,) = form.compute(np, [x.astype("float64"), weights.astype("float64")])
            with backend.working(backend.lane()):
                found = backend.cudnn.convolve(cupy, form, cupy.asarray(x), cupy.asarray(weights))
                if found is None:
                    continue
                made = cupy.asnumpy(found)
            computed += 1
            assert (made.shape, made.dtype.name) == (form.sizes, dtype)
            scale = max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(made / scale, expected / scale, atol=tolerance, err_msg=str((form, sizes)))
    finally:
        backend.close()
    assert computed > 100, computed
