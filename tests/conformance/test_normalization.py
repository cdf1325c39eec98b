"""Normalization on every backend: sums of `math` in float64, in any layout, and ONNX's reference evaluator."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.conformance.suite import check_bytes
from tests.support.onnx_reference import reference_outputs
from tests.support.operator_cases import call, eighths, small_sizes, tensor
from tests.support.vectors import Case

from tensorpost.descriptors import operator_class
from tensorpost_server.backends import Backend

Array = NDArray[Any]
ACTIVATIONS: Mapping[str, Any] = {
    "none": (None, lambda x: x),
    "leaky": ({"type": "ACTIVATION_LEAKY_RELU", "desc": {"Alpha": 0.5}}, lambda x: x if x >= 0 else x / 2),
}


def broadcastable(draw: st.DrawFn, sizes: Sequence[int]) -> list[int]:
    return [draw(st.sampled_from((1, size))) for size in sizes]


def element(x: Array, at: Sequence[int]) -> float:
    return float(x[tuple(0 if size == 1 else c for c, size in zip(at, x.shape, strict=True))])


@st.composite
def batches(draw: st.DrawFn) -> Case:
    data_type, sizes = draw(st.sampled_from(("FLOAT32", "FLOAT16"))), small_sizes(draw, high=8)
    activation, applied = ACTIVATIONS[draw(st.sampled_from(tuple(ACTIVATIONS)))]
    names = ("mean_tensor", "variance_tensor", "scale_tensor", "bias_tensor")
    fields: dict[str, Any] = {
        "input_tensor": tensor(draw, data_type, sizes),
        **{name: tensor(draw, data_type, broadcastable(draw, sizes)) for name in names},
        "output_tensor": tensor(draw, data_type, sizes, output=True), "epsilon": 0.25, "fused_activation": activation,
    }  # fmt: skip

    def oracle(x: Array, mean: Array, variance: Array, scale: Array, bias: Array) -> Array:
        made = np.empty(x.shape)
        for at in np.ndindex(*x.shape):
            deviation = math.sqrt(element(variance, at) + 0.25)
            normal = (element(x, at) - element(mean, at)) / deviation
            made[at] = applied(normal * element(scale, at) + element(bias, at))
        return made.astype(x.dtype)

    fills = {"*": eighths, "variance": lambda *drawn: np.abs(eighths(*drawn))}
    return call(draw, "BATCH_NORMALIZATION", fields, fills, oracle, ulp=4, absolute=4e-6)


@st.composite
def means(draw: st.DrawFn) -> Case:
    data_type, sizes = draw(st.sampled_from(("FLOAT32", "FLOAT16"))), small_sizes(draw, high=5)
    axes = draw(st.permutations(range(len(sizes))))[: draw(st.integers(1, len(sizes)))]
    use_mean, use_variance = draw(st.booleans()), draw(st.booleans())
    activation, applied = ACTIVATIONS[draw(st.sampled_from(tuple(ACTIVATIONS)))]
    fields: dict[str, Any] = {"input_tensor": tensor(draw, data_type, sizes)}
    for name in ("scale_tensor", "bias_tensor"):
        if draw(st.booleans()):
            fields[name] = tensor(draw, data_type, broadcastable(draw, sizes))
    has_scale = "scale_tensor" in fields
    fields |= {
        "output_tensor": tensor(draw, data_type, sizes, output=True), "axes": axes, "use_mean": use_mean,
        "use_variance": use_variance, "epsilon": 0.25, "fused_activation": activation,
    }  # fmt: skip

    def oracle(x: Array, *others: Array) -> Array:
        made = np.empty(x.shape)
        for at in np.ndindex(*x.shape):
            places = [range(size) if axis in axes else (at[axis],) for axis, size in enumerate(x.shape)]
            line = [float(x[place]) for place in itertools.product(*places)]
            mean = math.fsum(line) / len(line) if use_mean else 0.0
            variance = math.fsum((v - mean) ** 2 for v in line) / len(line)
            normal = (float(x[at]) - mean) / (math.sqrt(variance + 0.25) if use_variance else 1)
            scale = element(others[0], at) if has_scale else 1.0
            bias = element(others[-1], at) if len(others) > has_scale else 0.0
            made[at] = applied(normal * scale + bias)
        return made.astype(x.dtype)

    return call(draw, "MEAN_VARIANCE_NORMALIZATION2", fields, {"*": eighths}, oracle, ulp=4, absolute=4e-6)


@st.composite
def norms(draw: st.DrawFn) -> Case:
    data_type, sizes = draw(st.sampled_from(("FLOAT32", "FLOAT16"))), small_sizes(draw, high=8)
    axis, p, epsilon = (
        draw(st.integers(0, len(sizes) - 1)),
        draw(st.sampled_from((1, 2))),
        draw(st.sampled_from((1, 4))),
    )
    fields = {
        "input_tensor": tensor(draw, data_type, sizes), "output_tensor": tensor(draw, data_type, sizes, output=True),
        "axis": axis, "p": p, "epsilon": epsilon,
    }  # fmt: skip

    def oracle(x: Array) -> Array:
        made = np.empty(x.shape)
        for at in np.ndindex(*x.shape):
            line = [abs(float(x[(*at[:axis], c, *at[axis + 1 :])])) for c in range(x.shape[axis])]
            squared = math.fsum(line) ** 2 if p == 1 else math.fsum(v * v for v in line)
            made[at] = float(x[at]) / math.sqrt(squared + epsilon)
        return made.astype(x.dtype)

    return call(draw, "LP_NORMALIZATION", fields, {"*": eighths}, oracle, ulp=2)


@st.composite
def neighbours(draw: st.DrawFn) -> Case:
    sizes = draw(st.permutations((1, *[draw(st.integers(1, 4)) for _ in range(3)])))
    cross, local = draw(st.booleans()), draw(st.integers(1, 6))
    fields = {
        "input_tensor": tensor(draw, "FLOAT32", sizes), "output_tensor": tensor(draw, "FLOAT32", sizes, output=True),
        "cross_channel": cross, "local_size": local, "alpha": 2.0, "beta": 0.5, "bias": 0.25,
    }  # fmt: skip
    before, behind = (local - 1) // 2, local // 2

    def oracle(x: Array) -> Array:
        made = np.empty(x.shape)
        for at in np.ndindex(*x.shape):
            axes = (1,) if cross else (2, 3)
            spans = [
                range(max(0, c - before), min(size, c + behind + 1)) if axis in axes else (c,)
                for axis, (c, size) in enumerate(zip(at, x.shape, strict=True))
            ]
            squares = math.fsum(float(x[place]) ** 2 for place in itertools.product(*spans))
            made[at] = float(x[at]) / math.sqrt(0.25 + 2 / local * squares)
        return made.astype(x.dtype)

    return call(draw, "LOCAL_RESPONSE_NORMALIZATION", fields, {"*": eighths}, oracle, ulp=4)


@pytest.mark.parametrize(
    "drawn",
    [batches(), means(), norms(), neighbours()],
    ids=["by given statistics", "by its own", "by norms", "by neighbours"],
)
@given(data=st.data(), slice_bytes=st.one_of(st.just(1 << 20), st.integers(1, 300)), at_once=st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_call(backends: list[Backend], drawn: Any, data: st.DataObject, slice_bytes: int, at_once: bool) -> None:
    case = data.draw(drawn)
    for backend in backends:
        check_bytes(backend, case, slice_bytes, at_once=at_once)


# ONNX's reference sums p = 1 without magnitudes, and LRN over as many channels as there are images.
# DirectML's operator and attributes; ONNX's operator and attributes; the sizes of the inputs after the first.
IMAGE, CHANNELS = (2, 5, 3, 4), (1, 5, 1, 1)
Row = tuple[str, Mapping[str, Any], str, Mapping[str, Any], Sequence[tuple[str, tuple[int, ...]]]]
IN_ONNX: list[Row] = [
    ("LP_NORMALIZATION", {"axis": 3, "p": 2, "epsilon": 0}, "LpNormalization", {"axis": 3, "p": 2}, ()),
    (
        "MEAN_VARIANCE_NORMALIZATION1", {"axes": [1, 2, 3], "normalize_variance": 1, "epsilon": 0.25},
        "LayerNormalization", {"axis": 1, "epsilon": 0.25},
        (("scale_tensor", (1, 5, 3, 4)), ("bias_tensor", (1, 5, 3, 4))),
    ),
    (
        "MEAN_VARIANCE_NORMALIZATION", {"cross_channel": 0, "normalize_variance": 1, "epsilon": 0.25},
        "InstanceNormalization", {"epsilon": 0.25}, (("scale_tensor", CHANNELS), ("bias_tensor", CHANNELS)),
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", IN_ONNX, ids=lambda row: f"{row[0]} {row[2]}")
def test_numbers_are_those_of_onnx(backend: Backend, row: Row) -> None:
    pytest.importorskip("onnx")
    ours, desc, theirs, attributes, others = row
    random = np.random.default_rng(13)
    x = random.standard_normal(IMAGE).astype(np.float32)
    rest = [random.standard_normal(sizes).astype(np.float32) for _, sizes in others]
    flat = [y.ravel() if theirs == "InstanceNormalization" else y[0] for y in rest]
    (made,) = reference_outputs(theirs, 20, [x, *flat], attributes)
    fields = {"input_tensor": {"DataType": "FLOAT32", "Sizes": IMAGE}, **desc}
    fields |= {name: {"DataType": "FLOAT32", "Sizes": sizes} for name, sizes in others}
    call_ = operator_class(ours).completed(fields)
    inputs = tuple(array.tobytes() for array in (x, *rest))
    check_bytes(backend, Case(ours, call_, inputs, made.astype(np.float32).tobytes(), ulp=8, absolute=1e-6))


def test_given_statistics_are_those_of_onnx(backend: Backend) -> None:
    pytest.importorskip("onnx")
    random = np.random.default_rng(17)
    x = random.standard_normal(IMAGE).astype(np.float32)
    scale, bias, mean, variance = [random.random(5).astype(np.float32) + 0.5 for _ in range(4)]
    (made,) = reference_outputs("BatchNormalization", 15, [x, scale, bias, mean, variance], {"epsilon": 0.25})
    names = ("mean_tensor", "variance_tensor", "scale_tensor", "bias_tensor")
    fields = {name: {"DataType": "FLOAT32", "Sizes": CHANNELS} for name in names}
    desc = operator_class("BATCH_NORMALIZATION").completed(
        {**fields, "input_tensor": {"DataType": "FLOAT32", "Sizes": IMAGE}, "epsilon": 0.25}
    )
    inputs = tuple(array.tobytes() for array in (x, mean, variance, scale, bias))
    check_bytes(backend, Case("batch", desc, inputs, made.tobytes(), ulp=8, absolute=1e-6))
