"""The kernels' source on the host: its indices, tables and structures, against NumPy. See tests/support/cuda_emulation.

Few types, since every variant takes the C++ compiler some tenths of a second. test_device.py runs all of them.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray
from tests.support.cuda_cases import Call, agree, is_exact, packed, resample_calls, tile_calls
from tests.support.cuda_emulation import COMPILER, Emulator, address

from tensorpost_server.backends.cuda import geometry, resampling, staging, tables, tiling, variants
from tensorpost_server.backends.cuda.planning import Layout, plan
from tensorpost_server.backends.cuda.tables import array_of
from tensorpost_server.forms.separable import Rounding, Separable
from tensorpost_server.operators.resample import LinearAxis

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler: g++ or clang++ on PATH, or CXX")
EXAMPLES = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="session")
def emulator(emulation: Path) -> Emulator:
    return Emulator(emulation)


def layout(array: NDArray[Any]) -> Layout:
    return Layout(array.dtype, array.strides, address(array) % 16)


def run(emulator: Emulator, call: Call) -> NDArray[Any]:
    """The output's memory afterwards."""
    aligned = np.zeros(call.out.memory.nbytes + 16, np.uint8)
    memory = aligned[-aligned.ctypes.data % 16 :][: call.out.memory.nbytes].view(call.out.memory.dtype)
    memory[:] = call.out.memory
    x, out = call.x.view, call.out.of(np, memory)
    steps = plan(call.kernel, layout(x), call.box, layout(out))
    assert steps is not None, "our kernels can do all of these"
    of, kept = address(x), list[Any]()
    for step in steps:
        assert step.launch.variant in variants.VARIANTS
        arrays = {name: array_of(part.table).view(np.uint8)[part.first :] for name, part in step.tables.items()}
        target = np.full(max(1, step.made), 0xA5, np.uint8)
        kept += [arrays, target]
        places = {name: address(array) for name, array in arrays.items()}
        emulator.run(step.launch, of, address(target) if step.made else address(out), places)
        if step.made:
            of = address(target)
    return memory


@given(call=tile_calls(("uint8", "float32", "complex128")))
@EXAMPLES
def test_tile(emulator: Emulator, call: Call):
    agree(call, run(emulator, call), exactly=True)


@given(call=tile_calls(("float32",)))
@EXAMPLES
def test_tile_with_wide_offsets(emulator: Emulator, call: Call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiling, "fits_in_32_bits", lambda _: False)  # as beyond 2 GiB
        agree(call, run(emulator, call), exactly=True)


@given(call=tile_calls(("float32",)))
@EXAMPLES
def test_tile_in_several_launches(emulator: Emulator, call: Call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiling, "LARGEST_COUNT", 1000)  # as beyond 2 GiB
        agree(call, run(emulator, call), exactly=True)


@given(call=resample_calls(("uint8", "int32", "float32")))
@settings(EXAMPLES, max_examples=200)
def test_resample(emulator: Emulator, call: Call):
    agree(call, run(emulator, call), exactly=is_exact(call))


@pytest.mark.parametrize(("width", "rows", "shared", "blocks"), [(1, 2, 400, 1), (2, 3, 4000, 1), (4, 16, 1200, 10**6)])
@given(call=resample_calls(("uint8", "float16", "float32"), ("nearest", "linear", "cubic")))
@EXAMPLES
def test_resample_in_any_tiles(emulator: Emulator, width: int, rows: int, shared: int, blocks: int, call: Call):
    constants = {"ROWS": rows, "MOST_SHARED": shared, "ENOUGH_BLOCKS": blocks}
    largest = staging._largest_tile  # pyright: ignore[reportPrivateUsage] # rows here are far shorter than a block's
    with pytest.MonkeyPatch.context() as patched:
        for name, value in constants.items():
            patched.setattr(staging, name, value)
        patched.setattr(staging, "_largest_tile", lambda slots, *of: largest(min(slots, width), *of))
        agree(call, run(emulator, call), exactly=is_exact(call))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_tall_and_narrow(emulator: Emulator, dtype: str):
    x = (np.random.default_rng(9).random((3, 5000, 2)) * 255).astype(dtype)
    axes = (None, *(LinearAxis(size, size * 2, 2.0, 0.5, -0.5) for size in x.shape[1:]))
    shape = (3, 10_000, 4)
    kernel = Separable(axes, rounding=Rounding.NONE if dtype == "float32" else Rounding.TRUNCATE)
    call = Call(kernel, packed(x), tuple((0, size) for size in shape), packed(np.ones(shape, dtype)))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(staging, "ENOUGH_BLOCKS", 1)
        steps = plan(kernel, layout(x), call.box, layout(call.out.view))
        agree(call, run(emulator, call), exactly=False)

    assert steps is not None
    assert steps[0].launch.shared <= 48 << 10, "more than any device gives without being asked"


@pytest.mark.parametrize("sizes", [(6, 16, 48), (6, 16, 46), (4, 9, 24)], ids=str)
def test_halves_of_half_the_size(emulator: Emulator, sizes: tuple[int, ...]):
    x = np.random.default_rng(8).standard_normal(sizes).astype(np.float16)
    axes = (None, *(LinearAxis(size, size // 2, 0.5, 0.5, -0.5) for size in sizes[1:]))
    shape = (sizes[0], sizes[1] // 2, sizes[2] // 2)
    steps = plan(Separable(axes), layout(x), tuple((0, size) for size in shape), layout(np.empty(shape, x.dtype)))
    assert steps is not None
    assert steps[0].launch.parameters["paired"]
    call = Call(Separable(axes), packed(x), tuple((0, size) for size in shape), packed(np.ones(shape, x.dtype)))

    agree(call, run(emulator, call), exactly=False)


@given(call=resample_calls(("float32",), ("linear", "linear gradient")))
@EXAMPLES
def test_resample_with_tables_of_a_part_of_an_axis(emulator: Emulator, call: Call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "WHOLE_AXIS", 0)  # as beyond 65536 outputs
        patch.setattr(tables, "AT_ONCE", 4)
        patch.setattr(tables, "_TAPS", tables.Kept(0))
        agree(call, run(emulator, call), exactly=is_exact(call))


@pytest.mark.parametrize(
    ("variant", "name", "dtype"),
    [
        (variants.copy_variant(16, 16, splat=False, wide=False), "Copy", tiling.COPY),
        (variants.unit_variant(4, wide=False), "Unit", tiling.UNIT),
        (variants.gather_variant(4), "Gather", resampling.GATHER),
        (variants.blend_variant("float32", 2, 2, 1), "Tiles", staging.TILES),
        (variants.pass_variant("float32", "float32"), "Pass", resampling.PASS),
        (variants.gather_variant(4), "Axis", geometry.AXIS),
        (variants.gather_variant(4), "Tap", tables.TAP),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_structures_have_the_size_that_the_kernels_expect(
    emulator: Emulator, variant: variants.Variant, name: str, dtype: np.dtype[Any]
):
    library = ctypes.CDLL(str(emulator.library(variant, f'extern "C" unsigned size() {{ return sizeof({name}); }}')))

    assert library.size() == dtype.itemsize
