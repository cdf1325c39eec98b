"""What the compiled kernels compute: the slow oracles' numbers, and the numpy backend's bits whatever the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support import resample_oracle as oracle
from tests.support import strategies as ours
from tests.support.batches import each

from tensorpost.descriptors import (
    BufferTensorDesc,
    OperatorDesc,
    Resample1OperatorDesc,
    Resample2OperatorDesc,
    Resample3OperatorDesc,
    ResampleGrad1OperatorDesc,
    ResampleGradOperatorDesc,
    ResampleOperatorDesc,
)
from tensorpost.onnx import OnnxNode
from tensorpost_server.backends.numba_ import NumbaBackend, copy_plan, sum_plan, tap_tables
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.forms.resample_axes import LinearAxis
from tensorpost_server.planning import make_plan

FORWARD = (ResampleOperatorDesc, Resample1OperatorDesc, Resample2OperatorDesc, Resample3OperatorDesc)
BACKWARD = (ResampleGradOperatorDesc, ResampleGrad1OperatorDesc)
SUMMED = ("float32", "float16", "uint8", "int8")
COPIED = (*SUMMED, "int16", "uint32", "int64", "float64")

# Small arrays take the ways of large ones: short blocks of columns, tables of a part of an axis, boxes cut in halves.
DEFAULT: dict[str, int] = {}
CUT = {"WIDE": 5, "SHORTEST_REGION": 3, "MOST_ENTRIES": 6, "MOST_BETWEEN": 30, "SHORT_ITEM": 5}
WAYS = pytest.mark.parametrize("way", [DEFAULT, CUT], ids=["default", "cut"])


@contextmanager
def tuned(numba: NumbaBackend, way: dict[str, int]) -> Iterator[None]:
    numba.close()  # what it knows about plans
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tap_tables, "_TABLES", tap_tables._Tables(1 << 20))
        for module in (tap_tables, copy_plan, sum_plan):
            for name in way.keys() & vars(module).keys():
                patch.setattr(module, name, way[name])
        yield
    numba.close()


def run(backend: Any, subject: Any, x: bytes, slice_bytes: int = 1 << 20) -> bytes:
    """The whole output, slice after slice."""
    plan = make_plan(subject, slice_bytes)
    if isinstance(backend, NumbaBackend):
        assert backend.uses_numpy(plan) is None
    run = backend.start(plan, [memoryview(x)])
    output = b""
    for index, piece in enumerate(plan.slices):
        output += bytes(run.compute(index)) + bytes(piece.padding)
    run.close()
    return output


def same(mine: bytes, theirs: bytes, dtype: np.dtype[Any]) -> None:
    """The same bits, but that a NaN is a NaN."""
    a, b = np.frombuffer(mine, dtype), np.frombuffer(theirs, dtype)
    if dtype.kind == "f":
        nan = np.isnan(a)
        np.testing.assert_array_equal(nan, np.isnan(b))
        a, b = np.where(nan, dtype.type(1), a), np.where(nan, dtype.type(1), b)
    np.testing.assert_array_equal(a.view(f"u{dtype.itemsize}"), b.view(f"u{dtype.itemsize}"))


SCALES = st.one_of(
    st.sampled_from([1, 1, 2, 2, 3, 4, 0.5, 0.25, 1.5, 1.7, 0.6, 0.1]),
    st.floats(1 / 16, 20, width=32),
)
OFFSETS = st.one_of(st.sampled_from([0.5, -0.5, 0, 1]), st.floats(-9, 9, width=32))


@st.composite
def cases(
    draw: st.DrawFn,
    classes: Sequence[type[OperatorDesc]],
    dtypes: Sequence[str],
    modes: Sequence[str] = ("LINEAR", "NEAREST_NEIGHBOR"),
) -> tuple[Any, NDArray[Any]]:
    """A descriptor and its input: ranks 1 to 5, any scales and offsets, outputs of any size, gaps between elements."""
    cls, dtype = draw(st.sampled_from(classes)), np.dtype(draw(st.sampled_from(dtypes)))
    rank = draw(st.integers(1, 5))
    # At most 63, so that no sum has the 64 elements that the backend leaves to numpy (test_bounds.py).
    lengths = st.integers(1, {1: 63, 2: 30, 3: 9, 4: 5, 5: 4}[rank])
    sizes, outputs = (draw(st.lists(lengths, min_size=rank, max_size=rank)) for _ in range(2))
    if draw(st.booleans()):
        outputs[-1] = sizes[-1]  # often the last axis is channels
    scales = [
        1 if out == size and draw(st.booleans()) else draw(SCALES) for size, out in zip(sizes, outputs, strict=True)
    ]
    mode = draw(st.sampled_from(modes))
    names = ("OutputGradientTensor", "InputGradientTensor") if cls in BACKWARD else ("InputTensor", "OutputTensor")
    layouts: list[BufferTensorDesc] = []
    for shape in (sizes, outputs):
        strides = draw(st.none() | ours.one_to_one_strides(shape))
        layouts.append(BufferTensorDesc(data_type=dtype.name.upper(), sizes=shape, strides=strides))
    fields: dict[str, Any] = {**dict(zip(names, layouts, strict=True)), "InterpolationMode": mode, "Scales": scales}
    if cls not in (ResampleOperatorDesc,):
        offsets = [(0.5, -0.5) if scale == 1 else (draw(OFFSETS), draw(OFFSETS)) for scale in scales]
        fields |= {"InputPixelOffsets": [a for a, _ in offsets], "OutputPixelOffsets": [b for _, b in offsets]}
    if "rounding_direction" in cls.model_fields:
        fields["RoundingDirection"] = draw(st.sampled_from(["INCREASING", "DECREASING"]))
    if cls is Resample3OperatorDesc:
        fields["Antialiased"] = draw(st.booleans())
    desc = cls.completed(fields)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    _, source = desc.tensors()[0]  # of a gradient, InputGradientTensor
    shape = source.layout.size_in_bytes // dtype.itemsize
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        return desc, random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    x = random.standard_normal(shape).astype(dtype)
    if draw(st.booleans()):
        x[random.integers(0, shape, 3)] = [np.inf, -np.inf, -0.0]
    return desc, x


@WAYS
@given(case=cases(FORWARD + BACKWARD, SUMMED[:2]), slice_bytes=st.integers(1, 900))
@settings(max_examples=120, deadline=None)
def test_floats_have_the_bits_of_the_numpy_backend(
    numba: NumbaBackend, way: dict[str, int], case: tuple[Any, NDArray[Any]], slice_bytes: int
) -> None:
    desc, x = case
    with tuned(numba, way):
        mine = run(numba, desc, x.tobytes(), slice_bytes)

    same(mine, run(NumpyBackend(), desc, x.tobytes()), x.dtype)


@WAYS
@given(case=cases(FORWARD, SUMMED[2:]), slice_bytes=st.integers(1, 900))
@settings(max_examples=120, deadline=None)
def test_integers_have_the_bits_of_the_numpy_backend(
    numba: NumbaBackend, way: dict[str, int], case: tuple[Any, NDArray[Any]], slice_bytes: int
) -> None:
    desc, x = case
    with tuned(numba, way):
        mine = run(numba, desc, x.tobytes(), slice_bytes)

    same(mine, run(NumpyBackend(), desc, x.tobytes()), x.dtype)


@WAYS
@given(case=cases(FORWARD[:1], SUMMED), slice_bytes=st.integers(100, 900))
@settings(max_examples=60, deadline=None)
def test_sums_are_the_oracles(
    numba: NumbaBackend, way: dict[str, int], case: tuple[Any, NDArray[Any]], slice_bytes: int
) -> None:
    desc, x = case
    x = np.nan_to_num(x, nan=0, posinf=1, neginf=1)
    source, target = desc.input_tensor.layout, desc.output_tensor.layout
    values, magnitudes = oracle.resample(oracle.axes_of(desc), source.view(x.tobytes()))

    with tuned(numba, way):
        result = target.view(run(numba, desc, x.tobytes(), slice_bytes)).astype(np.float64)

    if x.dtype.kind != "f":
        slack = 1e-3  # only where the sum is a whole number but for float32
        assert ((np.trunc(values - slack) == result) | (np.trunc(values + slack) == result)).all()
    else:
        ulp = np.spacing(np.maximum(magnitudes, np.finfo(x.dtype).tiny).astype(x.dtype)).astype(np.float64)
        assert (np.abs(result - values) / ulp < {"float32": 8, "float16": 0.51}[x.dtype.name]).all()


@WAYS
@given(case=cases(FORWARD, COPIED, ["NEAREST_NEIGHBOR"]), slice_bytes=st.integers(1, 900))
@settings(max_examples=120, deadline=None)
def test_nearest_copies_every_bit(
    numba: NumbaBackend, way: dict[str, int], case: tuple[Any, NDArray[Any]], slice_bytes: int
) -> None:
    desc, x = case
    memory = np.random.default_rng(x.size).bytes(x.nbytes)  # NaN of every kind too
    unsigned = np.dtype(f"u{x.itemsize}")
    expected = oracle.gather(oracle.axes_of(desc), desc.input_tensor.layout.view(memory, unsigned))

    with tuned(numba, way):
        output = run(numba, desc, memory, slice_bytes)

    np.testing.assert_array_equal(desc.output_tensor.layout.view(output, unsigned), expected)


@each("scale", [2, 3, 4, 5, 1.7183, 0.5, 0.3183])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
@each("shape", [(3, 41, 53), (41, 53, 3), (5, 2000)])
def test_nearest_of_pictures(numba: NumbaBackend, scale: float, dtype: str, shape: tuple[int, ...]) -> None:
    """Long enough rows for every loop: repeated items, every second item, wide items."""
    factors = [1 if axis == 3 else scale for axis in shape]
    desc = ResampleOperatorDesc.completed(
        {
            "InputTensor": BufferTensorDesc.packed(np.dtype(dtype), shape),
            "InterpolationMode": "NEAREST_NEIGHBOR",
            "Scales": factors,
        }
    )
    x = np.random.default_rng(1).random(shape).astype(dtype)
    # floor((o + 0.5) / scale), the plain reading of half-pixel nearest, away from ties
    index = [
        np.clip(np.floor((np.arange(size) + 0.5) / factor), 0, length - 1).astype(int)
        for size, factor, length in zip(desc.output_tensor.sizes, factors, shape, strict=True)
    ]

    assert run(numba, desc, x.tobytes(), 4096) == x[np.ix_(*index)].tobytes()


@each("scale", [2, 3, 4, 1.7, 1.3, 0.7, 0.5, 0.3])
@pytest.mark.parametrize("dtype", SUMMED)
@each("shape", [(2, 41, 63), (41, 63, 2), (41, 63, 3), (23, 31, 4), (9, 17, 22), (1500,)])
@each("antialiased", [False, True], ids=["linear", "antialiased"])
def test_linear_of_pictures(
    numba: NumbaBackend, scale: float, dtype: str, shape: tuple[int, ...], antialiased: bool
) -> None:
    """Long enough rows for the vectorised loops, in slices of any size."""
    factors = [1 if axis in (2, 3, 4) else scale for axis in shape]
    desc = Resample3OperatorDesc.completed(
        {
            "InputTensor": BufferTensorDesc.packed(np.dtype(dtype), shape),
            "InterpolationMode": "LINEAR",
            "Scales": factors,
            "RoundingDirection": "DECREASING",
            "InputPixelOffsets": [0.5] * len(shape),
            "OutputPixelOffsets": [-0.5] * len(shape),
            "Antialiased": antialiased,
        }
    )
    x = (np.random.default_rng(1).random(shape) * 250 - (0 if dtype == "uint8" else 125)).astype(dtype)
    if x.dtype.kind == "f":
        x.flat[::97] = np.inf  # which weights of 0 must not see
    expected = run(NumpyBackend(), desc, x.tobytes())

    for slice_bytes in (1 << 20, 5000, 700):
        same(run(numba, desc, x.tobytes(), slice_bytes), expected, x.dtype)


@given(
    entries=st.integers(1, 300), scale=st.floats(0.25, 20, width=32), channels=st.integers(1, 5),
    ends=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_what_is_read_together_lies_in_the_row(
    entries: int, scale: float, channels: int, ends: tuple[float, float]
) -> None:
    """The loop reads 8 or 16 entries for each 8 outputs, and as many a pixel further, from the first output's on."""
    axis = LinearAxis(entries, max(1, int(entries * scale)), scale, 0.5, -0.5)
    table = tap_tables.table_of(axis, 0, axis.output_size, channels)
    start, stop = sorted(int(end * axis.output_size) * channels for end in ends)
    for block in [*table.blocks, *(table.blocks_of(start, stop) if start < stop else ())]:
        if block.phases < tap_tables.NEAR:
            continue
        wide = block.phases > tap_tables.NEAR
        assert not wide or block.phases - tap_tables.WIDE_NEAR == channels
        assert wide or channels == 1
        assert block.start <= block.start + block.first < block.start + block.last <= block.stop
        for group in range(block.start + block.first, block.start + block.last, 8):
            base, first = table.index[0, group] - channels + 1, table.index[0, group : group + 8]
            assert block.low <= base
            assert base + channels + (16 if wide else 8) <= block.high
            assert ((first >= base) & (first < base + (16 if wide else 8))).all()


def test_enlarged_pictures_are_read_together() -> None:
    """The loop is taken at all, for nearly all of a row."""
    for channels in (1, 3, 4):
        (block,) = tap_tables.table_of(LinearAxis(400, 680, 1.7, 0.5, -0.5), 0, 680, channels).blocks
        assert block.phases >= tap_tables.NEAR
        assert block.last - block.first > 0.9 * 680 * channels


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("scale", [2, 3, 1.7, 0.5, 0.37])
def test_a_constant_picture_stays_constant(numba: NumbaBackend, dtype: str, scale: float) -> None:
    desc = ResampleOperatorDesc.completed(
        {
            "InputTensor": BufferTensorDesc.packed(np.dtype(dtype), (256, 20, 21)),
            "InterpolationMode": "LINEAR",
            "Scales": [1, scale, scale],
        }
    )
    values = np.arange(256, dtype=np.uint8).view(dtype)
    x = np.repeat(values, 20 * 21).reshape(256, 20, 21)

    result = desc.output_tensor.layout.view(run(numba, desc, x.tobytes(), 10_000))

    np.testing.assert_array_equal(result, np.broadcast_to(values[:, None, None], result.shape))


def test_every_half_is_widened_and_rounded_right(numba: NumbaBackend) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = halves[np.isfinite(halves)].reshape(-1, 1)
    desc = ResampleOperatorDesc.completed(
        {
            "InputTensor": BufferTensorDesc.packed(np.dtype("float16"), (len(numbers), 2)),
            "InterpolationMode": "LINEAR",
            "Scales": [1, 2],
        }
    )
    x = np.concatenate([numbers, np.roll(numbers, 7919)], axis=1)
    a, b = x.astype(np.float32).T
    quarter, three = np.float32(0.25), np.float32(0.75)
    with np.errstate(over="ignore"):
        expected = np.stack([a, three * a + quarter * b, quarter * a + three * b, b], axis=1).astype(np.float16)

    assert run(numba, desc, x.tobytes(), 5000) == expected.tobytes()


NODES = {
    "linear": {"mode": "linear"},
    "linear, corners aligned": {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    "cubic": {"mode": "cubic"},
    "cubic, outside excluded": {"mode": "cubic", "exclude_outside": 1},
    "cubic, antialiased": {"mode": "cubic", "antialias": 1},
    "linear, antialiased": {"mode": "linear", "antialias": 1},
    "nearest": {"mode": "nearest", "nearest_mode": "ceil"},
}


@each("attributes", NODES.values(), ids=list(NODES))
@each("scales", [(1, 1, 2, 2), (1, 1, 0.6, 0.7), (1, 2, 1.7, 3), (1, 1, 2, 0.4)])
@each("dtype", ["float32", "float16"])
def test_onnx_resize_has_the_bits_of_the_numpy_backend(
    numba: NumbaBackend, attributes: dict[str, Any], scales: tuple[float, ...], dtype: str
) -> None:
    node = OnnxNode.from_json(
        {
            "op_type": "Resize",
            "opset": 18,
            "inputs": {"X": {"data_type": dtype, "shape": [2, 3, 23, 31]}, "scales": list(scales)},
            "attributes": attributes,
        }
    )
    x = np.random.default_rng(3).standard_normal((2, 3, 23, 31)).astype(dtype)

    same(run(numba, node, x.tobytes(), 3000), run(NumpyBackend(), node, x.tobytes()), x.dtype)


@given(case=ours.tile_cases(), slice_bytes=st.integers(1, 700))
@settings(max_examples=60, deadline=None)
def test_tile_is_the_same_in_slices_of_any_size(numba: NumbaBackend, case: tuple[Any, bytes], slice_bytes: int) -> None:
    desc, memory = case

    assert run(numba, desc, memory, slice_bytes) == run(numba, desc, memory)


def test_tile_of_rows_of_every_short_length(numba: NumbaBackend) -> None:
    from tensorpost.descriptors import TileOperatorDesc

    for length in (*range(1, 40), *range(40, 300, 13)):  # every remainder of a vector's bytes, and longer ones
        for repeats in ((2, 1), (1, 2), (3, 300)):
            x = np.random.default_rng(length).integers(0, 256, (3, length), np.uint8)
            desc = TileOperatorDesc.of(BufferTensorDesc.packed(x.dtype, x.shape), repeats)
            assert run(numba, desc, x.tobytes(), 3 * length + 1) == np.tile(x, repeats).tobytes(), (length, repeats)
