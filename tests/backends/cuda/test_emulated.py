"""The kernels' source on the host: its indices, tables and structures, against NumPy. See tests/support/cuda_emulation.

Few types, since every variant takes the C++ compiler some tenths of a second. test_device.py runs all of them.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
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
from tests.support.cuda_emulation import COMPILER, Emulator, layout, run

from tensorpost_server.backends.cuda import (
    copy_kernels,
    direct_resample,
    geometry,
    interleave_kernels,
    pointwise_kernels,
    resample_kernels,
    row_kernels,
    staged_resample,
    tap_tables,
    transpose_kernels,
    variants,
)
from tensorpost_server.backends.cuda.launch_plan import plan
from tensorpost_server.backends.cuda.launches import ArrayLayout, NestStart
from tensorpost_server.forms import Copies, Copy, Loop, Pointwise
from tensorpost_server.forms.expression import operand
from tensorpost_server.forms.resample_axes import LinearAxis, linear_axis
from tensorpost_server.forms.separable import Rounding, Separable
from tensorpost_server.operators.tile import tile

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler: g++ or clang++ on PATH, or CXX")
COPIED = ("uint8", "float16", "float32", "complex128")
EXAMPLES = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="session")
def emulator(emulation: Path) -> Emulator:
    return Emulator(emulation)


@given(call=st.one_of(tile_calls(COPIED), copy_calls(COPIED)))
@settings(EXAMPLES, max_examples=200)
def test_copies(emulator: Emulator, call: Call):
    agree(call, run(emulator, call), exactly=True)


@given(call=st.one_of(tile_calls(("float32",)), copy_calls(("float32",))))
@EXAMPLES
def test_copies_with_wide_offsets(emulator: Emulator, call: Call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_kernels, "fits_in_32_bits", lambda _: False)  # as beyond 2 GiB
        patch.setattr(transpose_kernels, "fits_in_32_bits", lambda _: False)
        agree(call, run(emulator, call), exactly=True)


@given(call=st.one_of(tile_calls(("float32",)), copy_calls(("float32",))))
@EXAMPLES
def test_copies_in_several_launches(emulator: Emulator, call: Call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_kernels, "LARGEST_COUNT", 1000)  # as beyond 2 GiB
        patch.setattr(row_kernels, "LARGEST_COUNT", 1000)
        agree(call, run(emulator, call), exactly=True)


def copied(form: Copies, x: Strided, shape: tuple[int, ...], skip: int = 0) -> Call:
    """All of an output that begins `skip` elements behind an aligned address."""
    size = math.prod(shape)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    out = Strided(np.zeros(size + skip, x.memory.dtype), skip, shape, tuple(strides))
    return Call(form, (x,), tuple((0, extent) for extent in shape), out)


def at(shape: tuple[int, ...], dtype: str, skip: int = 0, gap: int = 0) -> Strided:
    """An input that begins `skip` elements behind an aligned address, its rows followed by `gap` others."""
    strides = [1]
    for axis in reversed(range(1, len(shape))):
        strides.insert(0, strides[0] * shape[axis] + (gap if axis == len(shape) - 1 else 0))
    item = np.dtype(dtype).itemsize
    memory = np.random.default_rng(1).integers(0, 256, (math.prod(shape) + shape[0] * gap + skip + 99) * item, np.uint8)
    return Strided(memory.view(dtype), skip, shape, tuple(strides))


def every_copy() -> Iterator[Call]:
    """Copies that together need every kernel of copy.cu."""
    for item, dtype in ((1, "uint8"), (2, "uint16"), (4, "uint32"), (8, "uint64"), (16, "complex128")):
        vector = 16 // item
        whole = Copies((2,), ((Copy.of_box((6, vector * 2)),),))
        for skip in range(0 if item == 16 else 1):
            yield copied(whole, at((6, vector * 2), dtype, skip, gap=vector), (6, vector * 2))
        if item < 16:
            # The output is aligned and the input is not; then neither is, and rows are long.
            yield copied(whole, at((6, vector * 2), dtype, 1, gap=vector), (6, vector * 2))
            long = 600 // item + 1
            yield copied(Copies((2,), ((Copy.of_box((3, long)),),)), at((3, long), dtype, 1, gap=3), (3, long), skip=1)
            halves = tuple(Copy.of_box((3, long), target_start=(0, first)) for first in (0, long))
            yield copied(Copies((2,), (halves,)), at((3, long), dtype), (3, 2 * long))
            yield copied(tile((7, 3), (1, 300)), at((7, 3), dtype), (7, 900))
            yield copied(tile((4, 1), (1, vector * 3)), at((4, 1), dtype), (4, vector * 3))
            yield copied(
                Copies((2,), ((Copy.of_box((6, 5), source_steps=(1, -1), source_start=(0, 4)),),)),
                at((6, 5), dtype),
                (6, 5),
            )
        yield copied(Copies((2,), ((Copy.of_box((1, 1)),),), 7), at((1, 1), dtype), (4, vector * 4))
        yield copied(Copies((2,), ((),), 7), at((1, 1), dtype), (3, 5), skip=1 if item < 16 else 0)
        for rows, columns in (
            (40, 40),
            (44, 44),
            (42, 42),
            (37, 37),
            (3, 88),
            (88, 3),
            (6, 88),
            (90, 6),
            (3, 5000),
            (2, 48),
            (48, 2),
            (4, 48),
            (48, 4),
            (97, 130),
        ):
            loops = (Loop(columns, (1, 1), ((0, 1),)), Loop(rows, (0, 1), ((1, 1),)))
            form = Copies((2,), ((Copy(0, (0, 0), (0, 0), loops),),))
            yield copied(form, at((columns, rows), dtype), (rows, columns))


def test_every_copying_kernel_is_used(emulator: Emulator, monkeypatch: pytest.MonkeyPatch):
    used: set[variants.Variant] = set()
    for fits in (True, False):
        monkeypatch.setattr(copy_kernels, "fits_in_32_bits", lambda _, fits=fits: fits)
        monkeypatch.setattr(transpose_kernels, "fits_in_32_bits", lambda _, fits=fits: fits)
        for copy in every_copy():
            agree(copy, run(emulator, copy, used), exactly=True)

    files = ("copy.cu", "rows.cu", "transpose.cu", "transpose_bytes.cu")
    assert {str(v) for v in variants.VARIANTS if v.file in files} == set(map(str, used))


def row_major(array: NDArray[Any], skip: int) -> Strided:
    """A packed array that begins `skip` elements behind an aligned address."""
    strides = tuple([stride // array.itemsize for stride in array.strides])
    return Strided(np.concatenate([np.zeros(skip, array.dtype), array.ravel()]), skip, array.shape, strides)


def rows_calls(dtype: str, skip: int) -> Iterator[Call]:
    """Joins, paddings and slices of long rows, with what NumPy makes of them."""
    random = np.random.default_rng(4)

    def case(form: Copies, inputs: list[NDArray[Any]], expected: NDArray[Any]) -> Call:
        out = row_major(np.zeros_like(expected), skip)
        whole = tuple((0, size) for size in expected.shape)
        return Call(form, tuple(row_major(x, skip) for x in inputs), whole, out, expected)

    for axis, shapes in (
        (0, [(40, 300), (30, 300)]),
        (1, [(9, 300), (9, 513)]),
        (1, [(2, 5, 301), (2, 7, 301), (2, 3, 301)]),
        (1, [(3, 257 + 40 * i) for i in range(9)]),
        (2, [(2, 3, 4000), (2, 3, 1000)]),
    ):
        arrays = [random.integers(0, 99, shape).astype(dtype) for shape in shapes]
        starts = np.cumsum([0, *(shape[axis] for shape in shapes)])
        copies = [
            Copy.of_box(shape, target_start=[int(start) if i == axis else 0 for i in range(len(shape))], input=number)
            for number, (shape, start) in enumerate(zip(shapes, starts, strict=False))
        ]
        yield case(Copies((len(shapes[0]),) * len(shapes), (tuple(copies),)), arrays, np.concatenate(arrays, axis))
    x = random.integers(0, 99, (2, 3, 5, 520)).astype(dtype)
    for pads in ((0, 0, 1, 1), (0, 0, 3, 64), (0, 0, 0, 5), (0, 0, 2, 0), (1, 2, 1, 7)):
        padded = Copies((4,), ((Copy.of_box(x.shape, target_start=pads),),), 7)
        yield case(padded, [x], np.pad(x, [(pad, pad) for pad in pads], constant_values=7))
    for steps in ((1, 1, 1, 1), (1, 1, 2, 1)):
        sliced = x[:, 1:, 1 :: steps[2], 3:]
        copy = Copy.of_box(sliced.shape, source_start=(0, 1, 1, 3), source_steps=steps)
        yield case(Copies((4,), ((copy,),)), [x], sliced.copy())


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64", "complex128"])
def test_joins_paddings_and_slices_are_made_in_rows(emulator: Emulator, dtype: str, skip: int):
    used: set[variants.Variant] = set()
    for case in rows_calls(dtype, skip):
        agree(case, run(emulator, case, used), exactly=True)

    kernels = {variant.kernel for variant in used}
    assert kernels == {"copy_rows"} if dtype != "complex128" else kernels <= {"copy_rows", "copy_words"}


@pytest.mark.parametrize(("skip", "gap"), [(0, 0), (1, 0), (0, 3), (1, 3)])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64", "complex128"])
def test_transposes_of_any_sizes_and_alignment(emulator: Emulator, dtype: str, skip: int, gap: int):
    sizes = (
        (40, 40),
        (37, 37),
        (3, 5000),
        (5000, 3),
        (6, 88),
        (256, 136),
        (300, 301),
        (1000, 2),
        (8, 300),
        (129, 121),
        (700, 97),
    )
    used: set[variants.Variant] = set()
    for rows, columns in sizes:
        loops = (Loop(columns, (1, 1), ((0, 1),)), Loop(rows, (0, 1), ((1, 1),)))
        form = Copies((2,), ((Copy(0, (0, 0), (0, 0), loops),),))
        x = at((columns, rows), dtype, skip, gap)
        case = copied(form, x, (rows, columns), skip)
        agree(replace(case, want=x.view.T), run(emulator, case, used), exactly=True)

    bytewise = {"transpose_bytes"} if dtype == "uint8" else set[str]()
    assert {variant.kernel for variant in used} - {"copy_interleaved"} == {"transpose", *bytewise}


@pytest.mark.parametrize("item", [1, 2, 4, 8, 16])
def test_tiles_of_any_transpose_have_room(item: int):
    sizes, gaps = (2, 3, 8, 17, 40, 64, 129, 1000, 5000), (0, 1, 16)
    for a, b, gap_a, gap_b, skip in itertools.product(sizes, sizes, gaps, gaps, (0, item)):
        nest = [geometry.ByteLoop(b, (a + gap_a) * item, item), geometry.ByteLoop(a, item, (b + gap_b) * item)]
        launch = transpose_kernels.plan_transpose(nest, item, NestStart(0, 0, 0, skip % 16, skip % 16))
        assert (launch is None) == (a * b < transpose_kernels.LEAST_TILE)
        assert launch is None or launch.shared <= 48 << 10, "more than any device gives without being asked"


# ---- pointwise -------------------------------------------------------------------------------------------------------

SAME = tuple((dtype, dtype, dtype) for dtype in ("float32", "int8"))


@given(call=pointwise_calls(("add",), SAME))
@EXAMPLES
def test_pointwise_in_any_layout(emulator: Emulator, call: Call):
    agree(call, run(emulator, call), exactly=False)


@given(call=pointwise_calls(("add",), SAME[:1]))
@settings(EXAMPLES, max_examples=30)
def test_pointwise_in_several_launches_with_wide_offsets(emulator: Emulator, call: Call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pointwise_kernels, "LARGEST_COUNT", 500)  # as beyond 2 GiB
        agree(call, run(emulator, call), exactly=False)


@pytest.mark.parametrize("dtype", FUNCTION_TYPES)
def test_every_function_of_expressions(emulator: Emulator, dtype: str):
    for name, case in function_cases(dtype):
        agree(case, run(emulator, case), exactly=False, tolerance=TOLERANCES.get(name, 0), name=name)


@pytest.mark.parametrize(("stored", "computed_in", "result"), CONVERSIONS)
def test_types_are_converted_as_numpy_converts_them(emulator: Emulator, stored: str, computed_in: str, result: str):
    case = conversion(stored, computed_in, result)

    agree(case, run(emulator, case), exactly=True)


def test_erf_of_every_half(emulator: Emulator):
    case = erf_of_every_half()

    agree(case, run(emulator, case), exactly=False, tolerance=1)


def test_a_choice_between_halves_keeps_every_bit(emulator: Emulator):
    case = choice_of_halves()

    agree(case, run(emulator, case), exactly=True)


def test_constants_are_parameters_of_one_kernel(emulator: Emulator):
    x, used = np.arange(100, dtype=np.float32), set[variants.Variant]()
    for factor in (2.0, 0.1, 7):
        form = Pointwise(operand(0) * factor, ("float32",), "float32")
        call_ = Call(form, (packed(x),), ((0, 100),), packed(np.zeros_like(x)), x * np.float32(factor))
        agree(call_, run(emulator, call_, used), exactly=True)
    assert len(used) == 1


@pytest.mark.parametrize(("dtype", "computed_in"), [("float16", "float32"), ("float32", "float32"), ("int64", "int64")])
def test_an_expression_that_changes_nothing_is_a_copy(emulator: Emulator, dtype: str, computed_in: str):
    x = np.random.default_rng(6).integers(0, 256, 70 * 90 * np.dtype(dtype).itemsize, np.uint8).view(dtype)
    turned, out = Strided(x, 0, (90, 70), (1, 90)), Strided(np.zeros(50 * 70, dtype), 0, (50, 70), (70, 1))
    form = Pointwise(operand(0), (computed_in,), computed_in)
    case, used = Call(form, (turned,), ((20, 70), (0, 70)), out, turned.view[20:70]), set[variants.Variant]()

    agree(case, run(emulator, case, used), exactly=True)

    assert {variant.kernel for variant in used} == {"transpose"}


def test_what_has_no_kernel_is_left_to_cupy():
    x = np.zeros(4, np.complex64)
    assert plan(Pointwise(operand(0) * 2, ("complex64",), "complex64"), [layout(x)], ((0, 4),), layout(x)) is None
    off = np.zeros(17, np.uint8)[1:].view(np.float32)
    assert plan(Pointwise(operand(0) * 2, ("float32",), "float32"), [layout(off)], ((0, 4),), layout(off)) is None


# ---- resampling ------------------------------------------------------------------------------------------------------


@given(call=resample_calls(("uint8", "int32", "float32")))
@settings(EXAMPLES, max_examples=200)
def test_resample(emulator: Emulator, call: Call):
    agree(call, run(emulator, call), exactly=is_exact(call))


@pytest.mark.parametrize(("width", "rows", "shared", "blocks"), [(1, 2, 400, 1), (2, 3, 4000, 1), (4, 16, 1200, 10**6)])
@given(call=resample_calls(("uint8", "float16", "float32"), ("nearest", "linear", "cubic")))
@EXAMPLES
def test_resample_in_any_tiles(emulator: Emulator, width: int, rows: int, shared: int, blocks: int, call: Call):
    constants = {"ROWS": rows, "MOST_SHARED": shared, "ENOUGH_BLOCKS": blocks}
    largest = staged_resample._largest_tile  # pyright: ignore[reportPrivateUsage] # rows here are far shorter than a block's
    with pytest.MonkeyPatch.context() as patched:
        for name, value in constants.items():
            patched.setattr(staged_resample, name, value)
        patched.setattr(staged_resample, "_largest_tile", lambda slots, *source: largest(min(slots, width), *source))
        agree(call, run(emulator, call), exactly=is_exact(call))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_tall_and_narrow(emulator: Emulator, dtype: str):
    x = (np.random.default_rng(9).random((3, 5000, 2)) * 255).astype(dtype)
    axes = (None, *(LinearAxis(size, size * 2, 2.0, 0.5, -0.5) for size in x.shape[1:]))
    shape = (3, 10_000, 4)
    kernel = Separable(axes, rounding=Rounding.NONE if dtype == "float32" else Rounding.TRUNCATE)
    call = Call(kernel, (packed(x),), tuple((0, size) for size in shape), packed(np.ones(shape, dtype)))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(staged_resample, "ENOUGH_BLOCKS", 1)
        steps = plan(kernel, [layout(x)], call.box, layout(call.out.view))
        agree(call, run(emulator, call), exactly=False)

    assert steps is not None
    assert steps[0].launch.shared <= 48 << 10, "more than any device gives without being asked"


@pytest.mark.parametrize("sizes", [(6, 16, 48), (6, 16, 46), (4, 9, 24)], ids=str)
def test_halves_of_half_the_size(emulator: Emulator, sizes: tuple[int, ...]):
    x = np.random.default_rng(8).standard_normal(sizes).astype(np.float16)
    axes = (None, *(LinearAxis(size, size // 2, 0.5, 0.5, -0.5) for size in sizes[1:]))
    shape = (sizes[0], sizes[1] // 2, sizes[2] // 2)
    steps = plan(Separable(axes), [layout(x)], tuple((0, size) for size in shape), layout(np.empty(shape, x.dtype)))
    assert steps is not None
    assert steps[0].launch.parameters["paired"]
    call = Call(Separable(axes), (packed(x),), tuple((0, size) for size in shape), packed(np.ones(shape, x.dtype)))

    agree(call, run(emulator, call), exactly=False)


@pytest.mark.parametrize("scale", [2.0, 1.7, 1.2, 1.0, 0.75, 0.5], ids=str)
def test_bytes_read_where_they_are_have_the_bits_of_staged_ones(emulator: Emulator, scale: float):
    x = np.random.default_rng(5).integers(0, 256, (3, 45, 52), np.uint8)
    sizes = [int(size * scale) for size in x.shape[1:]]
    offset = -0.5 if scale != 1 else -0.375  # what is not scaled would be copied
    pairs = zip(x.shape[1:], sizes, strict=True)
    axes = (None, *(LinearAxis(size, out, float(np.float32(out / size)), 0.5, offset) for size, out in pairs))
    form = Separable(axes, rounding=Rounding.TRUNCATE)
    rows, columns = sizes
    for box in (
        ((0, 3), (0, rows), (0, columns)),
        ((1, 3), (2, rows - 1), (1, columns - 4)),
        ((2, 3), (3, 9), (5, 13)),
    ):
        call = Call(form, (packed(x),), box, packed(np.ones([stop - start for start, stop in box], np.uint8)))
        kernels = [set[variants.Variant](), set[variants.Variant]()]
        direct = run(emulator, call, kernels[0])
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(resample_kernels, "plan_bytes", lambda *_: None)
            staged = run(emulator, call, kernels[1])

        assert [one.kernel for used in kernels for one in used] == ["resample_bytes", "resample_staged"]
        assert direct.tobytes() == staged.tobytes()


def test_bytes_with_weights_beyond_0_and_1_are_staged():
    x, out = (ArrayLayout(np.dtype(np.uint8), (48 * 64 * n * n, 64 * n, 1), 0) for n in (1, 2))
    for offset, kernel in ((0.5, "resample_bytes"), (-0.5, "resample_staged")):
        axes = (None, *(linear_axis(size, 2 * size, 2.0, offset, -0.5) for size in (48, 64)))
        steps = plan(Separable(axes, rounding=Rounding.TRUNCATE), [x], ((0, 3), (0, 96), (0, 128)), out)
        assert steps is not None
        assert [step.launch.variant.kernel for step in steps] == [kernel]


@given(call=resample_calls(("float32",), ("linear", "linear gradient")))
@EXAMPLES
def test_resample_with_tables_of_a_part_of_an_axis(emulator: Emulator, call: Call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tap_tables, "WHOLE_AXIS", 0)  # as beyond 65536 outputs
        patch.setattr(tap_tables, "AT_ONCE", 4)
        patch.setattr(tap_tables, "_TAPS", tap_tables.ByteCache(0))
        agree(call, run(emulator, call), exactly=is_exact(call))


@pytest.mark.parametrize(
    ("variant", "name", "dtype"),
    [
        (variants.copy_variant(16, 16, splat=False, wide=False), "Copy", copy_kernels.COPY),
        (variants.units_variant(4, wide=False), "Unit", copy_kernels.UNIT),
        (variants.interleave_variant(4, 2), "Interleave", interleave_kernels.INTERLEAVE),
        (variants.rows_variant(4, 1), "Rows", row_kernels.ROWS[1]),
        (variants.rows_variant(4, 4), "Rows", row_kernels.ROWS[4]),
        (variants.transpose_variant(4, wide=False), "Transpose", transpose_kernels.TRANSPOSE),
        (variants.gather_variant(4), "Gather", direct_resample.GATHER),
        (variants.bytes_variant(4, whole=True), "Bytes", direct_resample.BYTES),
        (variants.blend_variant("float32", 2, 2, 1), "Tiles", staged_resample.TILES),
        (variants.pass_variant("float32", "float32"), "Pass", resample_kernels.PASS),
        (variants.gather_variant(4), "Axis", geometry.AXIS),
        (variants.gather_variant(4), "Tap", tap_tables.TAP),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_structures_have_the_size_that_the_kernels_expect(
    emulator: Emulator, variant: variants.Variant, name: str, dtype: np.dtype[Any]
):
    library = ctypes.CDLL(str(emulator.library(variant, f'extern "C" unsigned size() {{ return sizeof({name}); }}')))

    assert library.size() == dtype.itemsize
