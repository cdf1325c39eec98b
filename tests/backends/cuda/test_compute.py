"""`compute.fill` from call to launch, with a stand-in for CuPy that runs the kernels on the host."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.cuda_cases import Call, agree, copy_calls, is_exact, pointwise_calls, resample_calls, tile_calls
from tests.support.cuda_emulation import COMPILER
from tests.support.cuda_stand_in import stand_in

from tensorpost.descriptors import ReduceFunction
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost_server.forms import BoxFunction, Copies, Copy, FusedLines, Lines, Pointwise, fused_lines
from tensorpost_server.forms.expression import call, operand
from tensorpost_server.forms.resample_axes import LinearAxis
from tensorpost_server.forms.separable import Separable
from tensorpost_server.operators import form_of
from tensorpost_server.operators.reduction import reduce_lines
from tensorpost_server.operators.tile import tile

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler: g++ or clang++ on PATH, or CXX")
NAME = "tensorpost_server.backends.cuda.compute"
FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def compute(emulation: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "cupy", stand_in(emulation))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield importlib.import_module(NAME)
    sys.modules.pop(NAME)


def run(compute: Any, call: Call) -> None:
    *blocks, memory = (compute.cupy.asarray(side.memory) for side in (*call.inputs, call.out))
    inputs = [x.array(compute.cupy, block) for x, block in zip(call.inputs, blocks, strict=True)]

    compute.fill(call.form, inputs, call.box, call.out.array(compute.cupy, memory))

    agree(call, np.asarray(memory), exactly=is_exact(call))
    assert [block.tobytes() for block in blocks] == [x.memory.tobytes() for x in call.inputs]


@given(call=st.one_of(tile_calls(("float32",)), copy_calls(("float32",))))
@FEW
def test_copies(compute: Any, call: Call):
    run(compute, call)


@given(call=pointwise_calls(("add", "clip"), (("float32", "float32", "float32"),)))
@settings(FEW, max_examples=20)
def test_pointwise(compute: Any, call: Call):
    run(compute, call)


@given(call=resample_calls(("float32",)))
@FEW
def test_resample(compute: Any, call: Call):
    run(compute, call)


def filled(compute: Any, kernel: Any, x: Any, shape: tuple[int, ...]) -> Any:
    out = compute.cupy.empty(shape, x.dtype)
    compute.fill(kernel, [compute.cupy.asarray(x)], tuple((0, size) for size in shape), out)
    return np.asarray(out)


@pytest.mark.parametrize("most", [210, 1 << 26])
def test_a_reduction_of_an_expression(compute: Any, monkeypatch: pytest.MonkeyPatch, most: int):
    """In blocks of memory it has the bytes of both by themselves."""
    monkeypatch.setattr(fused_lines, "DEVICE_BLOCK", most)
    x, row = np.random.default_rng(5).normal(size=(2, 3, 40, 7)).astype(np.float32).clip(-2, 2), np.float32(0.5)
    scaled = Pointwise(call("exp", operand(0) * operand(1)), ("float32", "float32"), "float32")
    lines = Lines(
        reduce_lines, (1, 3), x.shape, ((2, 1, 40, 1),), ((("axes", (1, 3)), ("function", ReduceFunction.SUM)),), 0
    )
    form = FusedLines(scaled, replace(lines, reduction="SUM"))
    repeated = np.broadcast_to(compute.cupy.asarray(row.reshape(1)), x.shape, subok=True)
    inputs, box = [compute.cupy.asarray(x), repeated], ((0, 2), (0, 1), (5, 33), (0, 1))
    made, out = compute.cupy.empty(x.shape, np.float32), compute.cupy.empty((2, 1, 28, 1), np.float32)

    compute.fill(scaled, inputs, tuple((0, size) for size in x.shape), made)
    compute.fill(form, inputs, box, out)
    apart = compute.cupy.empty((2, 1, 40, 1), np.float32)
    compute.fill(form.lines, [made], ((0, 2), (0, 1), (0, 40), (0, 1)), apart)

    np.testing.assert_array_equal(np.asarray(out), np.asarray(apart)[:, :, 5:33])
    exact = np.asarray(made)[:, :, 5:33].astype(np.float64).sum((1, 3), keepdims=True)
    np.testing.assert_allclose(np.asarray(out), exact, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(made), np.exp(x.astype(np.float64) / 2), rtol=1e-6)


def test_an_empty_box_is_filled_by_nothing(compute: Any):
    out = compute.cupy.empty((0, 4), np.float32)

    compute.fill(tile((2, 2), (1, 2)), [compute.cupy.asarray(np.ones((2, 2), np.float32))], ((1, 1), (0, 4)), out)


def test_what_our_kernels_do_not_do_cupy_does(compute: Any):
    kernel = Separable((LinearAxis(5, 10, 2.0, 0.5, -0.5),), "float64")
    x, expected = np.arange(5.0), np.empty(10)
    kernel.fill(np, [x], ((0, 10),), expected)

    assert filled(compute, kernel, x, (10,)).tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int32"])
def test_an_extrapolation_value_is_laid_over_the_result(compute: Any, dtype: str):
    node = OnnxNode(
        "Resize",
        {"X": OnnxTensor("float" if dtype == "float32" else dtype, (4, 4)), "sizes": (8, 8), "roi": (-0.5, 0, 1.5, 1)},
        {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0, "mode": "linear"},
        opset=19,
    )
    x = np.arange(16).astype(dtype).reshape(4, 4)
    expected = np.empty((8, 8), dtype)
    form_of(node).fill(np, [x], ((0, 8), (0, 8)), expected)

    got = filled(compute, form_of(node), x, (8, 8))

    assert (expected[0] == 9).all()
    np.testing.assert_allclose(got, expected, atol=0 if dtype == "int32" else 1e-6 if dtype == "float32" else 1)


def test_each_output_is_its_own(compute: Any):
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    form = Copies((2,), tuple((Copy.of_box((2, 3), source_start=(first, 0)),) for first in (0, 2)))
    for output in (0, 1):
        out = compute.cupy.empty((2, 3), np.float32)
        compute.fill(form, [compute.cupy.asarray(x)], ((0, 2), (0, 3)), out, output)
        assert np.asarray(out).tolist() == x[2 * output : 2 * output + 2].tolist()


def test_a_form_without_inputs_or_kernel_is_cupys(compute: Any):
    form = BoxFunction(_ramp, 0)

    out = compute.cupy.empty((3,), np.float32)
    compute.fill(form, [], ((2, 5),), out)

    assert np.asarray(out).tolist() == [2, 3, 4]


def _ramp(xp: Any, inputs: Any, box: Any, out: Any) -> None:
    assert not inputs
    out[...] = xp.arange(*box[0], dtype=out.dtype)


def test_plans_and_tables_are_made_once_for_a_stream(compute: Any, monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []
    plan, array_of = compute.plan, compute.array_of
    monkeypatch.setattr(compute, "plan", lambda *given: made.append("plan") or plan(*given))
    monkeypatch.setattr(compute, "array_of", lambda table: made.append(table.form) or array_of(table))
    kernel = Separable((None, LinearAxis(5, 10, 2.0, 0.5, -0.5)))
    x = np.random.default_rng(1).random((3, 5)).astype(np.float32)

    first = filled(compute, kernel, x, (3, 10))
    assert made == ["plan", "padded"]
    assert filled(compute, kernel, x, (3, 10)).tolist() == first.tolist()
    assert made == ["plan", "padded"]

    monkeypatch.setattr(compute.cupy.cuda, "get_current_stream", lambda: type("Stream", (), {"ptr": 7}))
    filled(compute, kernel, x, (3, 10))
    assert made == ["plan", "padded"] * 2

    compute.clear_caches()
    filled(compute, kernel, x, (3, 10))
    assert made == ["plan", "padded"] * 3
