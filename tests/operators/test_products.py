"""Products of integers: exact integers and fractions as oracles."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.onnx_runtime import completed, run, tensor

from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import make_plan


def drawn(generator: np.random.Generator, dtype: Any, *shape: int) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("types", [("uint8", "uint8"), ("uint8", "int8")])
@pytest.mark.parametrize("shape", [(7, 300, 5), (1, 1, 1), (33, 17, 64)])
def test_products_of_8_bits_are_exact(types: tuple[str, str], shape: tuple[int, int, int]) -> None:
    """Integers of 64 bits, and fractions.

    ONNX Runtime is no oracle: its products of uint8 and int8 add pairs in 16 bits on x86 without VNNI, which saturate.
    """
    generator = np.random.default_rng(sum(shape))
    rows, inner, columns = shape
    a, b = drawn(generator, types[0], 2, rows, inner), drawn(generator, types[1], 2, inner, columns)
    az, bz = drawn(generator, types[0], 1), drawn(generator, types[1], 1)
    points = {"AZeroPointTensor": tensor(az), "BZeroPointTensor": tensor(bz)}
    fields = {"ATensor": tensor(a), "BTensor": tensor(b), **points}
    sums = (a.astype(np.int64) - az) @ (b.astype(np.int64) - bz)
    (found,) = run(completed("MATRIX_MULTIPLY_INTEGER", **fields), a, az, b, bz)
    np.testing.assert_array_equal(found, sums)

    scales = [np.array([value], np.float32) for value in (0.013, 0.4, 0.9 * inner)]
    given = {
        name: tensor(scale)
        for name, scale in zip(("AScaleTensor", "BScaleTensor", "OutputScaleTensor"), scales, strict=True)
    }
    desc = completed("QUANTIZED_LINEAR_MATRIX_MULTIPLY", **fields, **given, OutputZeroPointTensor=tensor(az))
    (found,) = run(desc, a, scales[0], az, b, scales[1], bz, scales[2], az)
    first, second, third = [Fraction(float(scale[0])) for scale in scales]
    factor, limits = first * second / third, np.iinfo(types[0])
    wanted = [round(total * factor) + int(az[0]) for total in sums.ravel().tolist()]  # halves to even
    np.testing.assert_array_equal(found.ravel(), np.clip(wanted, limits.min, limits.max))


@pytest.mark.parametrize("data_type", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_products_to_float_are_exact_sums_rounded_once(data_type: str) -> None:
    """Python's integers and fractions; the result is the nearest float32, or next to it at a half."""
    generator = np.random.default_rng(1)
    a, b = drawn(generator, data_type, 4, 9), drawn(generator, data_type, 9, 3)
    a[0], b[:, 0] = a[0, 0], b[0, 0]
    a[0, 1::2] = ~a[0, 0]  # sums that cancel
    az, bz = drawn(generator, data_type, 4, 1), drawn(generator, data_type, 1, 3)
    a_scale, b_scale = (generator.random(z.shape).astype(np.float32) for z in (az, bz))
    bias = generator.standard_normal((4, 3)).astype(np.float32)
    desc = completed(
        "MATRIX_MULTIPLY_INTEGER_TO_FLOAT", ATensor=tensor(a), AScaleTensor=tensor(a_scale),
        AZeroPointTensor=tensor(az), BTensor=tensor(b), BScaleTensor=tensor(b_scale),
        BZeroPointTensor=tensor(bz), BiasTensor=tensor(bias),
    )  # fmt: skip
    (found,) = run(desc, a, a_scale, az, b, b_scale, bz, bias)
    for row, column in np.ndindex(4, 3):
        pairs = zip(a[row].tolist(), b[:, column].tolist(), strict=True)
        total = sum((x - int(az[row, 0])) * (y - int(bz[0, column])) for x, y in pairs)
        exact = total * Fraction(float(a_scale[row, 0])) * Fraction(float(b_scale[0, column]))
        exact += Fraction(float(bias[row, column]))
        unit = Fraction(float(np.spacing(np.float32(abs(exact)))))
        assert abs(Fraction(float(found[row, column])) - exact) <= unit * Fraction(501, 1000)


def of(data_type: str, *sizes: int) -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes)}


ONE = of("FLOAT32", 1)
SCALES = {"AScaleTensor": ONE, "BScaleTensor": ONE}
IMAGE = {"InputTensor": of("UINT8", 1, 8, 600, 600), "InputScaleTensor": ONE, "OutputScaleTensor": ONE}
CONVOLUTION = {"FilterTensor": of("UINT8", 8, 8, 3, 3), "FilterScaleTensor": ONE}


@pytest.mark.parametrize(
    ("operator", "fields"),
    [
        ("MATRIX_MULTIPLY_INTEGER", {"ATensor": of("UINT8", 2000, 100), "BTensor": of("INT8", 100, 700)}),
        (
            "QUANTIZED_LINEAR_MATRIX_MULTIPLY",
            {"ATensor": of("UINT8", 2000, 9), "BTensor": of("INT8", 9, 1000), "OutputScaleTensor": ONE, **SCALES},
        ),
        (
            "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
            {"ATensor": of("INT32", 900, 900), "BTensor": of("INT32", 900, 9), **SCALES},
        ),
        ("QUANTIZED_LINEAR_AVERAGE_POOLING", {**IMAGE, "WindowSize": [5, 5]}),
        ("QUANTIZED_LINEAR_CONVOLUTION", {**IMAGE, **CONVOLUTION}),
        ("CONVOLUTION", {"InputTensor": of("FLOAT16", 1, 8, 600, 600), "FilterTensor": of("FLOAT16", 8, 8, 3, 3)}),
        ("GEMM", {"ATensor": of("FLOAT16", 700, 700), "BTensor": of("FLOAT16", 700, 700),
                  "FusedActivation": {"Type": "ACTIVATION_SOFTMAX"}}),
    ],
)  # fmt: skip
def test_memory_stays_within_the_bound(operator: str, fields: dict[str, Any]) -> None:
    plan = make_plan(completed(operator, **fields), 2 << 20)
    inputs = [np.ones(math.prod(slot.layout.sizes), slot.layout.data_type.dtype) for slot in plan.inputs]
    started = NumpyBackend().start(plan, [x.view(np.uint8).data for x in inputs])
    tracemalloc.start()
    try:
        started.compute(len(plan.slices) - 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= plan.scratch_bytes + plan.held_bytes + (4 << 20), "the slice and NumPy's blocks beside the bound"
