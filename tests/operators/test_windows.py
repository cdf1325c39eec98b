"""Windows: loops over exact numbers and ONNX Runtime as oracles, and the memory and the steps that windows take."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.onnx_runtime import completed, onnxruntime, run, tensor

from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import make_plan

Array = NDArray[Any]


# ---- loops -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """A drawn window over a drawn input."""

    shape: tuple[int, ...]
    out: tuple[int, ...]
    taps: list[int]
    strides: list[int]
    dilations: list[int]
    start: list[int]
    end: list[int]

    @classmethod
    def drawn(cls, source: random.Random, *, dilated: bool = True, rounded_down: bool = False) -> Windows:
        axes = source.choice([2, 3])

        def some(low: int, high: int) -> list[int]:
            return [source.randint(low, high) for _ in range(axes)]

        taps, strides = some(1, source.choice([3, 9] if axes == 2 else [3])), some(1, 4)
        dilations, start, end = some(1, 3) if dilated else [1] * axes, some(0, 4), some(0, 4)
        extents = [(k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True)]
        sizes = [max(1, e - a - b) + more for e, a, b, more in zip(extents, start, end, some(0, 4), strict=True)]
        rest = [n + a + b - e for n, a, b, e in zip(sizes, start, end, extents, strict=True)]
        more = 0.0 if rounded_down else 0.2
        out = [r // s + 1 + (source.random() < more and r % s > 0) for r, s in zip(rest, strides, strict=True)]
        batch = (source.randint(1, 2), source.randint(1, 2))
        return cls((*batch, *sizes), (*batch, *out), taps, strides, dilations, start, end)

    def fields(self, x: Array, **more: Any) -> dict[str, Any]:
        return {
            "InputTensor": tensor(x), "OutputTensor": {**tensor(x), "Sizes": self.out}, "WindowSize": self.taps,
            "Strides": self.strides, "StartPadding": self.start, "EndPadding": self.end, "Dilations": self.dilations,
            **more,
        }  # fmt: skip

    def elements(self, x: Array) -> Iterator[tuple[tuple[int, ...], list[tuple[int, Any]]]]:
        """Each output's coordinate with the places and elements that its window has, in row-major order."""
        axes = list(zip(self.strides, self.dilations, self.start, strict=True))
        for at in np.ndindex(*self.out):
            found: list[tuple[int, Any]] = []
            for k in np.ndindex(*self.taps):
                place = [o * s + j * d - a for o, j, (s, d, a) in zip(at[2:], k, axes, strict=True)]
                if all(0 <= p < n for p, n in zip(place, x.shape[2:], strict=True)):
                    whole = (*at[:2], *place)
                    found.append((int(np.ravel_multi_index(whole, x.shape)), x[whole].item()))
            yield at, found


def largest(found: Sequence[tuple[int, float]], first: int) -> tuple[int, float]:
    """The place and the value: NaN before all, then the largest, the first of equals."""
    nans = [pair for pair in found if math.isnan(pair[1])]
    return (nans or sorted(found, key=lambda pair: (-pair[1], pair[0])) or [(first, -math.inf)])[0]


@pytest.mark.parametrize("seed", range(4))
def test_pools_are_what_loops_over_numbers_give(seed: int) -> None:
    source, generator = random.Random(seed), np.random.default_rng(seed)
    for _ in range(12):
        windows = Windows.drawn(source)
        x = generator.integers(-3, 4, windows.shape).astype(np.float32)
        special = x.copy()
        special[generator.random(x.shape) < 0.1] = np.nan
        special[generator.random(x.shape) < 0.2] = -np.inf
        slices = source.choice([1 << 20, 7, 64])
        indices = {"OutputIndicesTensor": {"DataType": "UINT32", "Sizes": windows.out}}
        values, places = run(
            completed("MAX_POOLING2", **windows.fields(special, **indices)), special, slice_bytes=slices
        )
        image = math.prod(x.shape[2:])
        for at, found in windows.elements(special):
            place, value = largest(found, (at[0] * x.shape[1] + at[1]) * image)
            assert (int(places[at]), str(values[at].item())) == (place, str(value)), at
        counted = source.choice([0, 1])
        (averages,) = run(
            completed("AVERAGE_POOLING1", **windows.fields(x, IncludePadding=counted)), x, slice_bytes=slices
        )
        (norms,) = run(completed("LP_POOLING1", **windows.fields(x, P=3)), x, slice_bytes=slices)
        for at, found in windows.elements(x):
            numbers = [number for _, number in found]
            count = math.prod(windows.taps) if counted else max(1, len(numbers))
            assert math.isclose(averages[at], math.fsum(numbers) / count, rel_tol=1e-5, abs_tol=1e-6)
            assert math.isclose(norms[at], math.fsum(abs(v) ** 3 for v in numbers) ** (1 / 3), rel_tol=1e-5)


@pytest.mark.parametrize("seed", range(2))
def test_gradients_of_pools_are_what_loops_over_numbers_give(seed: int) -> None:
    source, generator = random.Random(seed), np.random.default_rng(seed)
    for _ in range(12):
        windows, counted, slices = (
            Windows.drawn(source, dilated=False, rounded_down=True),  # DirectML has no gradient of others
            source.choice([0, 1]),
            source.choice([1 << 20, 28]),
        )
        x = generator.integers(-3, 4, windows.shape).astype(np.float32)
        gradient = generator.integers(-8, 9, windows.out).astype(np.float32)
        fields = {
            **windows.fields(x), "InputGradientTensor": tensor(gradient), "OutputGradientTensor": tensor(x),
        }  # fmt: skip
        del fields["OutputTensor"]
        largest_of, shared = np.zeros(x.size), np.zeros(x.size)
        for at, found in windows.elements(x):
            if found:
                largest_of[largest(found, 0)[0]] += gradient[at]
                share = gradient[at] / (math.prod(windows.taps) if counted else len(found))
                for place, _ in found:
                    shared[place] += share
        (made,) = run(completed("MAX_POOLING_GRAD", **fields), x, gradient)
        np.testing.assert_array_equal(made.ravel(), largest_of)
        del fields["Dilations"], fields["InputTensor"]
        (made,) = run(completed("AVERAGE_POOLING_GRAD", **fields, IncludePadding=counted), gradient, slice_bytes=slices)
        np.testing.assert_allclose(made.ravel(), shared, rtol=1e-5, atol=1e-5)


# ---- ONNX Runtime ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_pools_are_onnx_runtimes(seed: int) -> None:
    source, generator = random.Random(seed), np.random.default_rng(seed)
    ran = 0
    while ran < 8:
        windows = Windows.drawn(source)
        pads = zip(windows.start, windows.end, windows.taps, windows.dilations, strict=True)
        if any(max(a, b) >= k or (max(a, b) > 0 and d > 1) for a, b, k, d in pads):  # which ONNX Runtime refuses
            continue
        ran += 1
        x = generator.standard_normal(windows.shape).astype(np.float32)
        attributes = {
            "kernel_shape": windows.taps, "strides": windows.strides, "pads": [*windows.start, *windows.end],
            "dilations": windows.dilations, "opset": 22,
        }  # fmt: skip
        fields = {name: value for name, value in windows.fields(x).items() if name != "OutputTensor"}
        values, places = onnxruntime("MaxPool", {"x": x}, 2, **attributes)
        indices = {"OutputIndicesTensor": {"DataType": "UINT64", "Sizes": list(values.shape)}}
        found = run(completed("MAX_POOLING2", **fields, **indices), x)
        np.testing.assert_array_equal(found[0], values)
        np.testing.assert_array_equal(found[1], places)
        for counted in (0, 1):
            (expected,) = onnxruntime("AveragePool", {"x": x}, count_include_pad=counted, **attributes)
            (averages,) = run(completed("AVERAGE_POOLING1", **fields, IncludePadding=counted), x)
            np.testing.assert_allclose(averages, expected, rtol=1e-5, atol=1e-6)
        for p in (1, 2, 3):
            (expected,) = onnxruntime("LpPool", {"x": x}, p=p, **attributes)
            np.testing.assert_allclose(run(completed("LP_POOLING1", **fields, P=p), x)[0], expected, rtol=1e-5)


# ---- integers --------------------------------------------------------------------------------------------------------


def convolved(x: Array, w: Array, windows: Windows, groups: int) -> Array:
    """The sums of a convolution of integers of 64 bits: every element of the filter adds a part of the padded input."""
    channels, each, *taps = w.shape
    padded = np.pad(x, [(0, 0), (0, 0), *zip(windows.start, windows.end, strict=True)])
    axes = list(zip(padded.shape[2:], taps, windows.strides, windows.dilations, strict=True))
    out = [(n - (k - 1) * d - 1) // s + 1 for n, k, s, d in axes]
    made = np.zeros((x.shape[0], channels, *out), np.int64)
    for channel, inner in np.ndindex(channels, each):
        source = padded[:, channel // (channels // groups) * each + inner]
        for at in np.ndindex(*taps):
            part = [slice(j * d, j * d + s * (n - 1) + 1, s) for j, n, (_, _, s, d) in zip(at, out, axes, strict=True)]
            made[:, channel] += source[(slice(None), *part)] * w[(channel, inner, *at)]
    return made


@pytest.mark.parametrize("seed", range(2))
def test_convolutions_of_integers_are_exact(seed: int) -> None:
    """Integers of 64 bits, and fractions: ONNX Runtime's products of 8 bits are not the same on every processor."""
    source, generator = random.Random(seed), np.random.default_rng(seed)
    ran = 0
    while ran < 8:
        windows = Windows.drawn(source)
        if len(windows.taps) != 2:  # DirectML takes no volumes
            continue
        ran += 1
        groups, channels = source.choice([(1, 3), (2, 4)])
        x = generator.integers(0, 256, (windows.shape[0], groups * 2, *windows.shape[2:])).astype(np.uint8)
        w = generator.integers(0, 256, (channels, 2, *windows.taps)).astype(np.uint8)
        zeros = [np.array(generator.integers(0, 256), np.uint8) for _ in range(2)]
        fields = {
            "InputTensor": tensor(x), "FilterTensor": tensor(w), "Strides": windows.strides,
            "Dilations": windows.dilations, "StartPadding": windows.start, "EndPadding": windows.end,
            "GroupCount": groups,
        }  # fmt: skip
        point = {"DataType": "UINT8", "Sizes": [1]}
        sums = convolved(x.astype(np.int64) - int(zeros[0]), w.astype(np.int64) - int(zeros[1]), windows, groups)
        points = {"InputZeroPointTensor": point, "FilterZeroPointTensor": point}
        (found,) = run(completed("CONVOLUTION_INTEGER", **fields, **points), x, zeros[0], w, zeros[1])
        np.testing.assert_array_equal(found, sums)

        one, each = {"DataType": "FLOAT32", "Sizes": [1]}, {"DataType": "FLOAT32", "Sizes": [1, channels, 1, 1]}
        scales = [np.float32(0.02), (generator.random(channels) / 50 + 0.01).astype(np.float32), np.float32(1.7)]
        bias = generator.integers(-9000, 9000, channels).astype(np.int32)
        points |= {
            "InputScaleTensor": one, "FilterScaleTensor": each, "OutputScaleTensor": one,
            "FilterZeroPointTensor": {"DataType": "UINT8", "Sizes": [1, channels, 1, 1]},
            "OutputZeroPointTensor": point, "BiasTensor": {"DataType": "INT32", "Sizes": [1, channels, 1, 1]},
        }  # fmt: skip
        desc = completed("QUANTIZED_LINEAR_CONVOLUTION", **fields, **points)
        filter_zeros = np.full(channels, zeros[1])
        (found,) = run(desc, x, scales[0], zeros[0], w, scales[1], filter_zeros, bias, scales[2], zeros[0])
        for channel, (scale, added) in enumerate(zip(scales[1].tolist(), bias.tolist(), strict=True)):
            factor = Fraction(float(scales[0])) * Fraction(scale) / Fraction(float(scales[2]))
            totals = (sums[:, channel] + added).ravel().tolist()
            wanted = [round(total * factor) + int(zeros[0]) for total in totals]  # halves to even
            np.testing.assert_array_equal(found[:, channel].ravel(), np.clip(wanted, 0, 255))


# ---- memory and steps ------------------------------------------------------------------------------------------------


def planned(operator: str, **fields: Any) -> Any:
    return make_plan(completed(operator, **fields), 2 << 20)


@pytest.mark.parametrize("function", ["MAX", "AVERAGE"])
def test_memory_of_gradients_stays_within_the_bound(function: str) -> None:
    x, gradient = np.ones((1, 16, 300, 300), np.float16), np.ones((1, 16, 100, 298), np.float16)
    fields: dict[str, Any] = {"WindowSize": [3, 3], "Strides": [3, 1], "OutputGradientTensor": tensor(x)}
    fields |= {"InputGradientTensor": tensor(gradient)} | ({"InputTensor": tensor(x)} if function == "MAX" else {})
    plan = planned(f"{function}_POOLING_GRAD", **fields)
    inputs = [a.reshape(-1).view(np.uint8).data for a in ((x, gradient) if function == "MAX" else (gradient,))]
    started = NumpyBackend().start(plan, inputs)
    tracemalloc.start()
    try:
        started.compute(0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= plan.scratch_bytes + plan.held_bytes + (4 << 20)


@pytest.mark.parametrize(
    ("operator", "more"),
    [("MAX_POOLING2", {}), ("AVERAGE_POOLING1", {}), ("LP_POOLING1", {"P": 3}), ("MAX_POOLING2", {"places": True})],
)
@pytest.mark.parametrize(
    ("sizes", "window"),
    [
        ([2, 64, 128, 128], {"WindowSize": [3, 3], "StartPadding": [1, 1], "EndPadding": [1, 1]}),
        ([1, 1, 1024, 1024], {"WindowSize": [1024, 1024]}),
        ([1, 1, 4000, 1], {"WindowSize": [4000, 999], "StartPadding": [0, 998], "EndPadding": [0, 998]}),
        ([1, 4, 600, 600], {"WindowSize": [200, 200], "Strides": [3, 3], "Dilations": [2, 2]}),
    ],
)
def test_memory_stays_within_the_bound(
    operator: str, more: dict[str, Any], sizes: list[int], window: dict[str, Any]
) -> None:
    x, fields = np.ones(sizes, np.float16), {**window, **more}
    places = fields.pop("places", False)
    plan = planned(operator, InputTensor=tensor(x), **fields)
    if places:
        out = {"DataType": "UINT32", "Sizes": plan.outputs[0].layout.sizes}
        plan = planned(operator, InputTensor=tensor(x), OutputIndicesTensor=out, **fields)
    run = NumpyBackend().start(plan, [x.reshape(-1).view(np.uint8).data])
    tracemalloc.start()
    try:
        run.compute(len(plan.slices) - 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= plan.scratch_bytes + (4 << 20), "the slice and NumPy's blocks beside the bound"


def test_huge_windows_in_padding_are_counted_not_walked() -> None:
    """2^31 taps, of which one and two are inside the input."""
    x = np.array([[[[3.0], [8.0]]]], np.float32)
    far = 2**31
    fields = {"WindowSize": [far, 1], "StartPadding": [far - 1, 0], "EndPadding": [far - 1, 0], "Strides": [far - 1, 1]}
    (found,) = run(completed("MAX_POOLING", InputTensor=tensor(x), **fields), x)
    assert found.ravel().tolist() == [3, 8]
    (found,) = run(completed("AVERAGE_POOLING", InputTensor=tensor(x), IncludePadding=1, **fields), x)
    assert found.ravel().tolist() == [3 / far, 11 / far]
