r"""Everything on an NVIDIA device: each kernel compiled there, the conformance suite's cases through `compute.fill`.

Skipped, with what is missing as the reason, where there is no CuPy or no device. For compute-sanitizer, which makes
kernels many times slower, there are fewer examples, and no memory pool hides where arrays end:

    TENSORPOST_SANITIZE=1 compute-sanitizer --tool memcheck \
        python -m pytest tests/backends/cuda/test_device.py -k "not compiles and not gib"
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.conformance.suite import Case, check_bytes, layouts, vectors
from tests.operators.test_resample import BACKWARD, FORWARD, cases, describe
from tests.support import resample_oracle as oracle
from tests.support.cuda_cases import (
    CONVERSIONS,
    FUNCTION_TYPES,
    TOLERANCES,
    Call,
    Strided,
    agree,
    choice_of_halves,
    conversion,
    copy_calls,
    erf_of_every_half,
    function_cases,
    is_exact,
    packed,
    pointwise_calls,
    resample_calls,
    tile_calls,
)
from tests.support.cuda_device import missing_device

from tensorpost.descriptors import Resample2OperatorDesc
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost.values.layout import Layout
from tensorpost_server.backends import RunWithoutStages
from tensorpost_server.backends.cuda.launch_plan import plan
from tensorpost_server.backends.cuda.launches import ArrayLayout
from tensorpost_server.backends.cuda.variants import PASS_TYPES, VARIANTS, Variant
from tensorpost_server.forms import Box, Copies, Copy, Loop, Pointwise
from tensorpost_server.forms.expression import operand
from tensorpost_server.forms.resample_axes import LinearAxis
from tensorpost_server.forms.separable import Separable
from tensorpost_server.operators import form_of
from tensorpost_server.operators.tile import tile
from tensorpost_server.planning import Plan

if (MISSING := missing_device()) is not None:
    pytest.skip(MISSING, allow_module_level=True)

import cupy  # pyright: ignore[reportMissingImports] # both only where there is a device

from tensorpost_server.backends.cuda import compute

SANITIZED = "TENSORPOST_SANITIZE" in os.environ
if SANITIZED:
    cupy.cuda.set_allocator(None)  # each array by itself, so that what is read beside one is noticed


def examples(count: int) -> settings:
    """So many, fewer where each takes long."""
    return settings(max_examples=max(10, count // 20) if SANITIZED else count, deadline=None)


ALL_TYPES = ("uint8", "int16", "float16", "float32", "int64", "complex128")


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant_compiles(variant: Variant):
    function = cupy.RawKernel(variant.source, variant.kernel, options=variant.options)

    function.compile()

    assert function.attributes["local_size_bytes"] == 0, "registers were spilled, or an array went to local memory"


# ---- against NumPy ---------------------------------------------------------------------------------------------------


def run(call: Call) -> NDArray[Any]:
    """The output's memory after the call on the device."""
    sides = (*call.inputs, call.out)
    blocks = [cupy.asarray(side.memory.view(np.uint8)) for side in sides]
    *inputs, target = (
        side.array(cupy, block.view(side.memory.dtype)) for side, block in zip(sides, blocks, strict=True)
    )
    compute.fill(call.form, inputs, call.box, target)
    *inputs, out = blocks
    for x, block in zip(call.inputs, inputs, strict=True):
        assert (cupy.asnumpy(block) == x.memory.view(np.uint8)).all(), "an input was written to"
    return cupy.asnumpy(out).view(call.out.memory.dtype)


@given(call=st.one_of(tile_calls(ALL_TYPES), copy_calls(ALL_TYPES)))
@examples(1000)
def test_copies(call: Call):
    agree(call, run(call), exactly=True)


@pytest.mark.parametrize("sizes", [(300, 517), (256, 512), (3, 40_000), (40_000, 3), (7, 65, 130)], ids=str)
@pytest.mark.parametrize("dtype", ALL_TYPES)
def test_large_transposes(dtype: str, sizes: tuple[int, ...]):
    x = np.random.default_rng(7).integers(0, 256, (*sizes, np.dtype(dtype).itemsize), np.uint8).view(dtype)[..., 0]
    last = len(sizes) - 1
    loops = tuple(Loop(size, (last - axis, 1), ((axis, 1),)) for axis, size in enumerate(sizes))
    zeros = (0,) * len(sizes)
    form = Copies((len(sizes),), ((Copy(0, zeros, zeros, loops),),))

    assert filled(form, x, sizes[::-1]).tobytes() == x.T.tobytes()


@given(call=pointwise_calls(("add",), tuple((name, name, name) for name in ("float32", "int8", "float64"))))
@examples(200)
def test_pointwise_in_any_layout(call: Call):
    agree(call, run(call), exactly=False)


@given(
    # GELU is among the conformance vectors: near -2.3 and below, its terms cancel, and no relative tolerance holds.
    call=pointwise_calls(("clip", "if"), (("float32", "float32", "float32"), ("float16", "float32", "float16")))
)
@examples(60)
def test_expressions(call: Call):
    agree(call, run(call), exactly=False)


@pytest.mark.parametrize("dtype", FUNCTION_TYPES)
def test_every_function_of_expressions(dtype: str):
    for name, case in function_cases(dtype):
        agree(case, run(case), exactly=False, tolerance=TOLERANCES.get(name, 0), name=name)


@pytest.mark.parametrize(("stored", "computed_in", "result"), CONVERSIONS)
def test_types_are_converted_as_numpy_converts_them(stored: str, computed_in: str, result: str):
    case = conversion(stored, computed_in, result)

    agree(case, run(case), exactly=True)


def test_erf_of_every_half():
    case = erf_of_every_half()

    agree(case, run(case), exactly=False, tolerance=1)


def test_a_choice_between_halves_keeps_every_bit():
    case = choice_of_halves()

    agree(case, run(case), exactly=True)


def test_expressions_are_compiled_without_a_folder_to_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nothing"))
    compute._function.cache_clear()
    compute.clear_caches()
    x = np.linspace(-4, 4, 1000, dtype=np.float32)
    for operator, expected in (("Mish", x * np.tanh(np.log1p(np.exp(x)))), ("Relu", np.maximum(x, 0))):
        form = form_of(OnnxNode(operator, {"X": OnnxTensor("float", (1000,))}, {}, opset=18))
        out = cupy.empty(1000, np.float32)
        compute.fill(form, [cupy.asarray(x)], ((0, 1000),), out)
        np.testing.assert_allclose(cupy.asnumpy(out), expected, rtol=1e-5, atol=1e-6)
    assert list(tmp_path.iterdir()) == []


def test_complex_numbers_are_computed_by_cupy():
    x = np.arange(6) + 1j

    assert filled(Pointwise(operand(0) * 2, ("complex128",), "complex128"), x, (6,)).tolist() == (x * 2).tolist()


@given(call=resample_calls(ALL_TYPES, ("nearest",)))
@examples(400)
def test_nearest(call: Call):
    agree(call, run(call), exactly=True)


@pytest.mark.parametrize("dtype", [dtype for dtype in PASS_TYPES if dtype != "bfloat16"])
@given(data=st.data())
@examples(150)
def test_resample(dtype: str, data: st.DataObject):
    call = data.draw(resample_calls((dtype,)))

    agree(call, run(call), exactly=is_exact(call))


def filled(kernel: Any, x: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """All of an output, on the device."""
    out = cupy.full(shape, 77, x.dtype)
    compute.fill(kernel, [cupy.asarray(x)], tuple((0, size) for size in shape), out)
    return cupy.asnumpy(out)


@given(case=cases(FORWARD + BACKWARD, ["float32", "float16"]))
@examples(300)
def test_floats_are_within_the_oracles_tolerance(case: tuple[Any, NDArray[Any]]):
    desc, x = case
    evaluate = oracle.gradient if isinstance(desc, BACKWARD) else oracle.resample
    values, magnitudes = evaluate(oracle.axes_of(desc), x)

    result = filled(form_of(desc), x, values.shape)

    # The bounds of tests/operators/test_resample.py.
    ulp = np.spacing(np.maximum(magnitudes, np.finfo(x.dtype).tiny).astype(x.dtype)).astype(np.float64)
    np.testing.assert_array_less(np.abs(result - values) / ulp, {"float32": 8, "float16": 0.51}[x.dtype.name])


@given(case=cases(FORWARD, ["uint8", "int8"]))
@examples(200)
def test_integers_truncate_toward_zero(case: tuple[Any, NDArray[Any]]):
    desc, x = case
    values, magnitudes = oracle.resample(oracle.axes_of(desc), x)

    result = filled(form_of(desc), x, values.shape)

    # The bounds of tests/operators/test_resample.py: extrapolated values beyond the type's range saturate.
    slack, limits = 1e-3 + 1e-5 * magnitudes, np.iinfo(x.dtype)
    low, high = (np.clip(np.trunc(values + by), limits.min, limits.max) for by in (-slack, slack))
    assert ((low <= result) & (result <= high)).all()


@pytest.mark.parametrize("shape", [(1, 3, 40, 56), (300, 2, 9, 7), (2, 5, 30, 1, 77)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_any_box_has_the_bits_of_the_whole(shape: tuple[int, ...], dtype: str):
    x = (np.random.default_rng(1).random(shape) * 255).astype(dtype)
    desc = doubled(shape, dtype)
    whole = filled(form_of(desc), x, desc.output_tensor.sizes)
    source = cupy.asarray(x)
    for axis, cuts in itertools.product(range(whole.ndim), ((0, 1), (1, 3), (2, None))):
        span = slice(*cuts).indices(whole.shape[axis])[:2]
        box = tuple(span if i == axis else (0, size) for i, size in enumerate(whole.shape))
        if span[0] >= span[1]:
            continue
        part = cupy.empty([stop - start for start, stop in box], x.dtype)
        compute.fill(form_of(desc), [source], box, part)
        expected = whole[tuple(slice(*edge) for edge in box)]
        assert cupy.asnumpy(part).tobytes() == expected.tobytes()


def doubled(shape: tuple[int, ...], dtype: str) -> Any:
    """RESAMPLE2, linear, of all dimensions but the first two."""
    sizes = tuple(size * 2 if axis >= 2 else size for axis, size in enumerate(shape))
    scales = [2.0 if axis >= 2 else 1.0 for axis in range(len(shape))]
    return describe(Resample2OperatorDesc, dtype, shape, sizes, Scales=scales)


# ---- values that arithmetic may lose ---------------------------------------------------------------------------------


def halved(size: int) -> Separable:
    return Separable((None, LinearAxis(size, size * 2, 2.0, 0.5, -0.5)))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_subnormal_numbers_are_not_flushed_to_zero(dtype: str):
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.full((3, 8), tiny * np.array(1000, dtype))

    assert (filled(halved(8), x, (3, 16)) == x[0, 0]).all()


def test_infinite_edges_are_repeated_and_not_nan():
    x = np.array([[np.inf, 1, 2, -np.inf]], np.float32)

    assert filled(halved(4), x, (1, 8)).tolist() == [[np.inf, np.inf, np.inf, 1.25, 1.75, -np.inf, -np.inf, -np.inf]]


@pytest.mark.parametrize("shape", [(1, 100_003), (5, 40_000), (700, 300)], ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128"])
def test_rows_longer_than_shared_memory(shape: tuple[int, int], dtype: str):
    x = np.random.default_rng(2).integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8).view(dtype)[..., 0]
    call = Call(tile(shape, (2, 3)), (packed(x),), ((0, shape[0] * 2), (1, shape[1] * 3 - 1)), _room(x, 2, 3, -2))

    agree(call, run(call), exactly=True)


def _room(x: NDArray[Any], down: int, across: int, more: int) -> Strided:
    shape = (x.shape[0] * down, x.shape[1] * across + more)
    return Strided(np.zeros(shape[0] * shape[1], x.dtype), 0, shape, (shape[1], 1))


def test_an_input_of_more_than_4_gib_and_an_output_of_more_than_2():
    free = cupy.cuda.runtime.memGetInfo()[0]
    if free < 16 << 30:
        pytest.skip(f"needs 16 GiB of free device memory, there are {free >> 30}")
    x = cupy.arange(5 << 30, dtype=cupy.uint8).reshape(5, 1 << 30)
    x[:, -1] = cupy.arange(5, dtype=cupy.uint8)
    out = cupy.full((5, 513), 99, np.uint8)
    compute.fill(tile(x.shape, (1, 2)), [x], ((0, 5), ((1 << 30) - 512, (1 << 30) + 1)), out)
    assert (out[:, :512] == x[:, -512:]).all()
    assert (out[:, 512] == x[:, 0]).all()
    del x

    y = cupy.arange(1000, dtype=np.uint8).reshape(10, 100)
    wide = cupy.zeros((10, 300 << 20), np.uint8)
    compute.fill(tile((10, 100), (1, 4 << 20)), [y], ((0, 10), (0, 300 << 20)), wide)
    for column in (0, 99, 100, (1 << 28) + 5, (300 << 20) - 1):
        assert (wide[:, column] == y[:, column % 100]).all()
    # Every byte: the sum of a row is the sum of its whole copies and of the cut one.
    copies, rest = divmod(300 << 20, 100)
    expected = y.astype(np.int64).sum(axis=1) * copies + y[:, :rest].astype(np.int64).sum(axis=1)
    assert (wide.sum(axis=1, dtype=np.int64) == expected).all()


# ---- the conformance suite's Tile cases ------------------------------------------------------------------------------


@dataclass
class Device:
    """A backend made of `compute.fill` alone, as numpy_.py is made of `Form.fill`."""

    name: str = "cuda"
    device: str = "the current one"
    threads: int = 2

    def refusal_reason(self, plan: Plan) -> None:
        del plan

    def start(self, plan: Plan, inputs: Sequence[memoryview]) -> DeviceRun:
        return DeviceRun(plan, [cupy.asarray(np.frombuffer(memory, np.uint8)) for memory in inputs])

    def close(self) -> None:
        pass


@dataclass
class DeviceRun(RunWithoutStages):
    plan: Plan
    inputs: list[Any]

    def compute(self, index: int) -> memoryview:
        plan = self.plan
        piece = plan.slices.piece(index)
        whole = plan.outputs[piece.output].layout
        sizes = tuple(stop - start for start, stop in piece.box)
        block = cupy.full(piece.computed, 0 if plan.slices.has_gaps else 0x5A, np.uint8)
        inputs = [_view(layout, layout.sizes, x) for layout, x in zip(plan.input_layouts, self.inputs, strict=True)]
        compute.fill(plan.steps[0].form, inputs, piece.box, _view(whole, sizes, block), piece.output)
        return cupy.asnumpy(block).data

    def close(self) -> None:
        self.inputs = []


def _view(layout: Layout, sizes: Sequence[int], memory: Any) -> Any:
    item = layout.data_type.item_size
    usable = memory[: memory.size // item * item].view(layout.data_type.dtype)
    return cupy.lib.stride_tricks.as_strided(usable, sizes, [stride * item for stride in layout.strides])


@pytest.mark.parametrize("slice_bytes", [1 << 20, 100, 1])
@pytest.mark.parametrize("case", vectors(), ids=str)
def test_vectors_worked_by_hand(case: Case, slice_bytes: int):
    check_bytes(Device(), case, slice_bytes)  # type: ignore[arg-type] # what it says of Backend is enough here


@pytest.mark.parametrize("case", layouts(), ids=str)
def test_every_type_in_every_kind_of_layout(case: Case):
    check_bytes(Device(), case, 100)  # type: ignore[arg-type] # as above


# ---- ONNX, what CuPy computes, and streams ---------------------------------------------------------------------------

Given = dict[str, Any]
RESIZES: list[tuple[str, Given]] = [
    (mode, {"mode": mode, **more})
    for mode in ("nearest", "linear", "cubic")
    for more in (
        {"scales": (1, 1, 2.0, 2.0)},
        {"scales": (1, 1, 1.7, 0.6), "coordinate_transformation_mode": "align_corners"},
        {"scales": (1, 2.0, 0.4, 3.0), "antialias": 0 if mode == "nearest" else 1},
        {
            "sizes": (2, 3, 9, 14),
            "roi": (0.0, 0.0, -0.2, 0.3, 1.0, 1.0, 1.4, 0.9),
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "extrapolation_value": 7.0,
        },
    )
]


@pytest.mark.parametrize(
    ("onnx_type", "dtype"),
    [("float", "float32"), ("float16", "float16"), ("double", "float64"), ("uint8", "uint8"), ("int32", "int32")],
)
@pytest.mark.parametrize(("mode", "given_attributes"), RESIZES, ids=lambda value: str(value)[:60])
def test_onnx_resize(mode: str, given_attributes: Given, onnx_type: str, dtype: str):
    attributes = dict(given_attributes)
    inputs = {name: attributes.pop(name) for name in ("scales", "sizes", "roi") if name in attributes}
    x = (np.random.default_rng(3).random((2, 3, 11, 8)) * 250).astype(dtype)
    node = OnnxNode("Resize", {"X": OnnxTensor(onnx_type, x.shape), **inputs}, attributes, opset=19)
    expected = np.empty(node.outputs[0].layout.sizes, x.dtype)
    box: Box = tuple((0, size) for size in expected.shape)
    form_of(node).fill(np, [x], box, expected)

    result = filled(form_of(node), x, expected.shape)

    if mode == "nearest":
        assert result.tobytes() == expected.tobytes()
    elif x.dtype.kind == "f":
        np.testing.assert_allclose(result, expected, rtol=float(2 * np.finfo(dtype).eps), atol=1e-4)
    else:
        assert np.abs(result.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda: Separable((LinearAxis(50, 100, 2.0, 0.5, -0.5),), "float64"), "float64"),
        (lambda: Separable((LinearAxis(50, 100, 2.0, 0.5, -0.5),) * 2, "float32"), "float64"),
    ],
)
def test_what_our_kernels_do_not_do_cupy_does(make: Callable[[], Separable], dtype: str):
    kernel = make()
    x = np.random.default_rng(4).random((50,) * len(kernel.axes)).astype(dtype)
    strides = tuple(8 * 100**i for i in reversed(range(x.ndim)))
    out = ArrayLayout(x.dtype, strides, 0)
    assert plan(kernel, [ArrayLayout(x.dtype, x.strides, 0)], ((0, 100),) * x.ndim, out) is None
    expected = np.empty((100,) * x.ndim, dtype)
    kernel.fill(np, [x], ((0, 100),) * x.ndim, expected)

    np.testing.assert_allclose(filled(kernel, x, expected.shape), expected, rtol=1e-6)


def test_streams_do_not_mix():
    """Tables are made on one stream after the other, evicted, and made again, while kernels of both are under way."""
    compute.clear_caches()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    x = np.random.default_rng(5).random((64, 500)).astype(np.float32)
    found: list[tuple[int, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compute, "KEPT_BYTES", 20_000)
        for turn in range(60):
            with streams[turn % 3]:
                size = 400 + turn % 7 * 100
                source, out = cupy.asarray(x), cupy.empty((64, size), np.float32)
                axis = LinearAxis(500, size, float(np.float32(size / 500)), 0.5, -0.5)
                compute.fill(Separable((None, axis)), [source], ((0, 64), (0, size)), out)
                found.append((size, out))
        for stream in streams:
            stream.synchronize()
    compute.clear_caches()
    for size, out in found:
        axis = LinearAxis(500, size, float(np.float32(size / 500)), 0.5, -0.5)
        expected = np.empty((64, size), np.float32)
        Separable((None, axis)).fill(np, [x], ((0, 64), (0, size)), expected)
        np.testing.assert_allclose(cupy.asnumpy(out), expected, rtol=1e-6, atol=1e-6)
