"""Sums and largest elements by the compiled loops, against exact sums and NumPy's maxima of the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.batches import each

from tensorpost.descriptors import BufferTensorDesc, ReduceOperatorDesc
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost_server.backends.numba_ import NumbaBackend
from tensorpost_server.planning import make_plan

Array = NDArray[Any]
EPSILON = {"float32": 2.0**-24, "float16": 2.0**-11}  # of one rounding


def tensor(dtype: str, sizes: Sequence[int], order: Sequence[int] | None, gap: int = 0) -> BufferTensorDesc:
    """A tensor whose axes lie in this order in memory, largest stride first, with unused elements after each line."""
    strides, reach = [0] * len(sizes), 1
    for axis in reversed(order if order is not None else range(len(sizes))):
        strides[axis], reach = reach, reach * sizes[axis] + gap
    count = 1 + sum([(size - 1) * step for size, step in zip(sizes, strides, strict=True)])
    size = (count * np.dtype(dtype).itemsize + 3) // 4 * 4
    return BufferTensorDesc(data_type=dtype.upper(), sizes=sizes, strides=strides, total_tensor_size_in_bytes=size)


def reduced(
    numba: NumbaBackend, function: str, x: Array, axes: Sequence[int], order: Sequence[int] | None = None,
    gap: int = 0, slice_bytes: int = 1 << 20,
) -> Array:  # fmt: skip
    """What the backend makes of an array that lies in memory as `tensor` says; so does the output."""
    sizes = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    source, target = tensor(x.dtype.name, x.shape, order, gap), tensor(x.dtype.name, sizes, order, gap)
    fields = {"InputTensor": source, "OutputTensor": target, "Function": function, "Axes": list(axes)}
    plan = make_plan(ReduceOperatorDesc.completed(fields), slice_bytes)
    assert numba.uses_numpy(plan) is None
    memory = np.full(plan.input_bytes, 0x7F, np.uint8)  # a read of what is no element would be seen: NaN or 127
    plan.input_layouts[0].view(memory)[...] = x
    run = numba.start(plan, [memory.data])
    made = b"".join([bytes(run.compute(at)) + bytes(piece.padding) for at, piece in enumerate(plan.slices)])
    run.close()
    return plan.outputs[0].layout.view(np.frombuffer(made, np.uint8))


def numbers(dtype: str, shape: Sequence[int]) -> Array:
    random = np.random.default_rng(len(shape) + sum(shape))
    if dtype.startswith("float"):
        return (random.standard_normal(shape) + 0.5).astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None, int]] = [
    # sizes, axes, order in memory, gap: a row of one, short ones, whole vectors and more, several axes
    ((1, 1), (0, 1), None, 0),
    ((7,), (0,), None, 0),
    ((40, 16), (1,), None, 0),
    ((3, 512), (1,), None, 0),
    ((3, 1203), (1,), None, 3),
    ((5, 64, 9), (1,), None, 0),
    ((300, 3), (0,), None, 0),
    ((37, 3, 5), (0,), (0, 2, 1), 0),
    ((9, 70), (0,), None, 1),
    ((17, 1100), (0,), None, 0),
    ((2, 2500), (0,), None, 0),
    ((4, 6, 130), (0, 2), None, 0),
    ((3, 4, 5, 3, 2), (0, 2, 4), None, 1),
    ((3, 4, 5, 3, 2), (1, 3), (4, 2, 0, 3, 1), 2),
    ((64, 21), (1,), (1, 0), 0),
]


@each("shape,axes,order,gap", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint32"])
def test_sums_are_near_the_exact_ones(
    numba: NumbaBackend, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...], order: Any, gap: int
):
    x = numbers(dtype, shape)
    found = reduced(numba, "SUM", x, axes, order, gap)

    if dtype not in EPSILON:
        np.testing.assert_array_equal(found, x.astype(np.int64).sum(axes, keepdims=True).astype(dtype))  # it wraps
        return
    exact = x.astype(np.float64).sum(axes, keepdims=True)
    in_float32 = 4 * EPSILON["float32"] * abs(x.astype(np.float64)).sum(axes, keepdims=True)
    assert (abs(found - exact) <= EPSILON[dtype] * abs(exact) + in_float32).all()
    mean = reduced(numba, "AVERAGE", x, axes, order, gap)
    count = x.size // exact.size
    assert (abs(mean - exact / count) <= 2 * EPSILON[dtype] * abs(exact / count) + in_float32 / count).all()


@each("shape,axes,order,gap", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
def test_largest_and_smallest_are_numpys(
    numba: NumbaBackend, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...], order: Any, gap: int
):
    x = numbers(dtype, shape)

    for function, oracle in (("MAX", np.max), ("MIN", np.min)):
        for few in (x, -abs(x) if dtype != "uint8" else x // 2):
            found = reduced(numba, function, few, axes, order, gap)
            np.testing.assert_array_equal(found, oracle(few, axis=axes, keepdims=True))


@each("count", [1, 5, 16, 63, 64, 129, 700])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nan_infinities_and_zeros(numba: NumbaBackend, dtype: str, count: int):
    """NaN of any sign wins wherever it stands, in a row and in a column; 0 is larger than -0."""
    bits, sign = f"u{np.dtype(dtype).itemsize}", np.array(-0.0, dtype)
    nans = [np.array(np.nan, dtype), np.array(np.nan, dtype).view(bits) | sign.view(bits)]
    zeros = np.full((count, count), -0.0, dtype)
    zeros[np.arange(count), np.arange(count)] = 0
    for axis in (0, 1):
        kept = [slice(None), slice(None)]
        for nan in nans:
            x = np.full((count, count), np.inf, dtype)
            x[np.arange(count), np.arange(count)] = nan.view(dtype)
            for function in ("MAX", "MIN", "SUM", "AVERAGE"):
                assert np.isnan(reduced(numba, function, x, (axis,))).all(), (function, axis)
        for value in (np.inf, -np.inf, np.finfo(dtype).smallest_subnormal, np.finfo(dtype).min):
            x = np.full((count, count), value, dtype)
            for function in ("MAX", "MIN"):
                assert (reduced(numba, function, x, (axis,)) == x[tuple(kept)].max(axis, keepdims=True)).all()
        largest, smallest = (reduced(numba, name, zeros, (axis,)) for name in ("MAX", "MIN"))
        assert not np.signbit(largest).any()
        assert np.signbit(smallest).all() == (count > 1)
        assert np.signbit(reduced(numba, "SUM", np.full((count, count), -0.0, dtype), (axis,))).all()
    assert np.isnan(reduced(numba, "SUM", np.array([np.inf, -np.inf], dtype), (0,))).all()


def test_float16_is_summed_in_float32_and_rounded_once(numba: NumbaBackend):
    large = np.full((3, 5000), 60000, np.float16)
    cancelling = np.tile(np.array([60000, -60000, 0.5], np.float16), 1000)[np.newaxis]

    for axes in ((1,), (0, 1)):
        assert np.isinf(reduced(numba, "SUM", large, axes)).all()
        assert (reduced(numba, "AVERAGE", large, axes) == 60000).all()  # though its sum is no float16
    assert reduced(numba, "SUM", cancelling, (1,)).item() == 500
    assert reduced(numba, "SUM", np.ones((5000, 2), np.float16), (0,)).tolist() == [[5000, 5000]]


@each("shape,axis", [((1 << 22,), 0), ((1 << 18, 4), 0), ((1 << 12, 64), 0)])
def test_long_sums_lose_no_digits(numba: NumbaBackend, shape: tuple[int, ...], axis: int):
    """What is added one by one to a large float32 is lost: here as much as 4 million times 0.1."""
    x = np.full(shape, 0.1, np.float32)
    x[0] = 2.0**24

    found, exact = reduced(numba, "SUM", x, (axis,)), x.astype(np.float64).sum(axis, keepdims=True)

    np.testing.assert_allclose(found, exact, rtol=2 * EPSILON["float32"])


def test_every_cut_gives_the_same_bits(numba: NumbaBackend):
    x = numbers("float32", (30, 40, 50))

    for axes in ((0,), (1,), (2,), (0, 2)):
        whole = reduced(numba, "SUM", x, axes)
        for slice_bytes in (4, 36, 1000):
            np.testing.assert_array_equal(reduced(numba, "SUM", x, axes, slice_bytes=slice_bytes), whole)


def test_a_reduction_of_nothing_and_other_types_are_numpys(numba: NumbaBackend):
    empty = OnnxNode.of("ReduceMax", {"data": OnnxTensor("float32", (2, 0)), "axes": [1]}, opset=18)
    wide = ReduceOperatorDesc.completed(
        {"InputTensor": BufferTensorDesc.packed(np.dtype(np.int64), (4,)), "Function": "SUM", "Axes": [0]}
    )

    assert numba.uses_numpy(make_plan(empty, 1 << 20)) == "it has no Lines"
    assert numba.uses_numpy(make_plan(wide, 1 << 20)) == "it has no SUM of int64"
