"""The Resample family on arrays: against numbers worked by hand, a slow oracle, and laws that resampling obeys."""

from __future__ import annotations

import itertools
import pickle
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support import resample_oracle as oracle
from tests.support.tuning import tuned
from tests.support.vectors import Case, all_hold, cases_of, elements

from tensorpost.descriptors import (
    AxisDirection,
    BufferTensorDesc,
    InterpolationMode,
    OperatorDesc,
    Resample1OperatorDesc,
    Resample2OperatorDesc,
    Resample3OperatorDesc,
    ResampleGrad1OperatorDesc,
    ResampleGradOperatorDesc,
    ResampleOperatorDesc,
    Upsample2DOperatorDesc,
)
from tensorpost_server.forms import Box, axis_plans, separable
from tensorpost_server.forms.axes import Windowed
from tensorpost_server.forms.resample_axes import (
    AdjointAxis,
    LinearAxis,
    Nearest,
    NearestAxis,
    PyramidAxis,
)
from tensorpost_server.operators import form_of
from tensorpost_server.operators.resample import resample_form

FORWARD = (ResampleOperatorDesc, Resample1OperatorDesc, Resample2OperatorDesc, Resample3OperatorDesc)
BACKWARD = (ResampleGradOperatorDesc, ResampleGrad1OperatorDesc)


DEFAULT: dict[str, int] = {}
SLICES = {"LARGE": 0, "SHORTEST_RUN": 5, "BLOCK": 64, "COPIED_BLOCK": 64}
LONG_SUMS = {"LONG_SUM": 2, "MOST_TAPS": 16, "BLOCK": 16, "COPIED_BLOCK": 16}
PARTS = {"LONG_SUM": 2, "MOST_TAPS": 3, "BETWEEN": 4, "MOST_BETWEEN": 12, "MOST_CONVERTED": 8}
SETTLES_BITS = ("LONG_SUM", "MOST_TAPS", "BETWEEN")  # the order of sums; all else must not show
WAYS = (DEFAULT, SLICES, LONG_SUMS, PARTS)


def tensors(desc: OperatorDesc) -> tuple[BufferTensorDesc, BufferTensorDesc]:
    (_, source), (_, target) = desc.tensors()
    return source, target


def run(desc: OperatorDesc, x: NDArray[Any], box: Box | None = None) -> NDArray[Any]:
    """The box of the output, by default all of it. What is not written stays 77 or NaN, never zero."""
    target = tensors(desc)[1]
    box = box or tuple((0, size) for size in target.sizes)
    out = np.full([stop - start for start, stop in box], 77, target.dtype)
    form_of(desc).fill(np, [x], box, out)
    return out


def bits(array: NDArray[Any]) -> NDArray[Any]:
    return array.view(f"u{array.itemsize}")


def describe(cls: type[OperatorDesc], dtype: str, sizes: Sequence[int], outputs: Sequence[int], **fields: Any) -> Any:
    """A descriptor; pixel centres are aligned and scales are ratios unless said otherwise."""
    names = ("OutputGradientTensor", "InputGradientTensor") if cls in BACKWARD else ("InputTensor", "OutputTensor")
    layouts = [BufferTensorDesc.packed(np.dtype(dtype), shape) for shape in (sizes, outputs)]
    fields.setdefault("InterpolationMode", "LINEAR")
    if "rounding_direction" in cls.model_fields:
        fields.setdefault("RoundingDirection", "DECREASING")
    return cls.completed({**dict(zip(names, layouts, strict=True)), **fields})


SCALES = st.one_of(
    st.sampled_from([1, 2, 3, 4, 0.5, 0.25, 1.5, 1.7, 0.6, 0.1, 1 / 3]),
    st.floats(1 / 64, 50, width=32),
)
OFFSETS = st.one_of(st.sampled_from([0.5, -0.5, 0, 1, -1]), st.floats(-20, 20, width=32))


@st.composite
def cases(draw: st.DrawFn, classes: Sequence[type[OperatorDesc]], dtypes: Sequence[str]) -> tuple[Any, NDArray[Any]]:
    """A descriptor and its input: ranks 1 to 4, any scales and offsets, outputs of any size."""
    cls, dtype = draw(st.sampled_from(classes)), draw(st.sampled_from(dtypes))
    rank = draw(st.integers(1, 4))
    lengths = st.integers(1, {1: 40, 2: 12, 3: 6, 4: 4}[rank])
    sizes, outputs = (draw(st.lists(lengths, min_size=rank, max_size=rank)) for _ in range(2))

    def array(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=rank, max_size=rank))

    fields: dict[str, Any] = {"InterpolationMode": draw(st.sampled_from(["LINEAR", "NEAREST_NEIGHBOR"]))}
    fields["Scales"] = array(SCALES)
    if cls is not ResampleOperatorDesc:
        fields |= {"InputPixelOffsets": array(OFFSETS), "OutputPixelOffsets": array(OFFSETS)}
    if "rounding_direction" in cls.model_fields:
        fields["RoundingDirection"] = draw(st.sampled_from(["INCREASING", "DECREASING"]))
    if cls is Resample3OperatorDesc:
        fields["Antialiased"] = draw(st.booleans())
    desc = describe(cls, dtype, sizes, outputs, **fields)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = tensors(desc)[0].sizes
    if np.dtype(dtype).kind == "f":
        return desc, random.standard_normal(shape).astype(dtype)
    limits = np.iinfo(dtype)
    return desc, random.integers(limits.min, limits.max, shape, dtype, endpoint=True)


# ---- numbers worked by hand ------------------------------------------------------------------------------------------


FAMILY = ("UPSAMPLE_2D", *[cls.operator_type for cls in FORWARD + BACKWARD])


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("operator", FAMILY)
def test_worked_examples(operator: str, way: dict[str, int]) -> None:
    """Without backends, slices and layouts, which tests/conformance goes through."""

    def check(case: Case) -> None:
        (slot,) = case.desc.inputs
        with tuned(**way):
            case.check_array("output", run(case.desc, elements(slot, case.inputs[0])), case.outputs()[0])  # pyright: ignore[reportArgumentType] # an OperatorDesc

    all_hold(cases_of(operator), check)


@pytest.mark.parametrize("operator", FAMILY)
def test_the_oracle_gives_the_worked_examples_too(operator: str) -> None:
    def check(case: Case) -> None:
        desc: Any = case.desc
        x = elements(desc.inputs[0], case.inputs[0])
        evaluate = oracle.gradient if isinstance(desc, BACKWARD) else oracle.resample
        values = evaluate(oracle.axes_of(desc), x)[0]
        if x.dtype.kind != "f":
            values = np.trunc(values)
        np.testing.assert_allclose(values, case.outputs()[0], rtol=1e-6)

    all_hold(cases_of(operator), check)


# ---- the oracle, element by element ----------------------------------------------------------------------------------


@given(case=cases(FORWARD + BACKWARD, ["float32", "float16"]))
@settings(max_examples=80, deadline=None)
def test_floats_are_within_the_tolerance(case: tuple[Any, NDArray[Any]]) -> None:
    desc, x = case
    evaluate = oracle.gradient if isinstance(desc, BACKWARD) else oracle.resample
    values, magnitudes = evaluate(oracle.axes_of(desc), x)
    # WebNN's conformance tests allow 84 and 10 ULP. Where positive and negative terms cancel, ULP of the result would
    # ask for more than float32 sums can give, so they are counted at the sum of the terms' magnitudes.
    ulp = np.spacing(np.maximum(magnitudes, np.finfo(x.dtype).tiny).astype(x.dtype)).astype(np.float64)
    allowed = {"float32": 84, "float16": 10}[x.dtype.name]
    # Ours is far better than that: rounded once to float16, and a few float32 roundings.
    better = {"float32": 8, "float16": 0.51}[x.dtype.name]
    for way in WAYS:
        with tuned(**way):
            result = run(desc, x)
        np.testing.assert_array_less(np.abs(result - values) / ulp, min(allowed, better), str(way))


@given(case=cases(FORWARD, ["uint8", "int8"]))
@settings(max_examples=60, deadline=None)
def test_integers_truncate_toward_zero(case: tuple[Any, NDArray[Any]]) -> None:
    desc, x = case
    values, magnitudes = oracle.resample(oracle.axes_of(desc), x)
    # 1 is allowed; ours differs from the exact truncation only where the sum is a whole number but for float32.
    slack, limits = 1e-3 + 1e-5 * magnitudes, np.iinfo(x.dtype)
    low, high = (np.clip(np.trunc(values + by), limits.min, limits.max) for by in (-slack, slack))
    for way in WAYS:
        with tuned(**way):
            result = run(desc, x)
        assert ((low <= result) & (result <= high)).all(), way


@given(case=cases(FORWARD, ["float32", "float16", "uint8"]))
@settings(max_examples=60, deadline=None)
def test_nearest_copies_every_bit(case: tuple[Any, NDArray[Any]]) -> None:
    desc, x = case
    desc = desc.model_copy(update={"interpolation_mode": "NEAREST_NEIGHBOR"})
    x = np.random.default_rng(x.size).integers(0, 256, x.nbytes, np.uint8).view(x.dtype).reshape(x.shape)  # NaN too

    expected = bits(oracle.gather(oracle.axes_of(desc), x))
    for way in WAYS:
        with tuned(**way):
            result = run(desc, x)
        np.testing.assert_array_equal(bits(result), expected, str(way))


# ---- windows in parts ------------------------------------------------------------------------------------------------


@given(case=cases(FORWARD + BACKWARD, ["float32"]), data=st.data())
@settings(max_examples=100, deadline=None)
def test_parts_of_windows_together_are_the_windows(case: tuple[Any, NDArray[Any]], data: st.DataObject) -> None:
    for axis in resample_form(case[0]).axes:
        if not isinstance(axis, Windowed):
            continue
        start = data.draw(st.integers(0, axis.output_size - 1))
        stop = data.draw(st.integers(start + 1, axis.output_size))
        cuts = sorted(data.draw(st.lists(st.integers(0, axis.input_size), max_size=3)))

        parts = [matrix(axis, start, stop, *span) for span in itertools.pairwise([0, *cuts, axis.input_size])]
        whole = matrix(axis, start, stop)

        np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
        low, high = axis.reach(start, stop)
        assert not whole[:, :low].any()
        assert not whole[:, high:].any()
        first, last = axis.readers(low, high) if low < high else (0, axis.output_size)
        assert first <= start or not whole[: first - start].any()
        assert last >= stop or not whole[max(last - start, 0) :].any()
        assert np.count_nonzero(whole, axis=1).max() <= axis.widest() <= axis.input_size


def matrix(axis: Windowed, start: int, stop: int, *span: int) -> NDArray[np.float64]:
    """The weights of some outputs as rows: of all taps, or of those from the first number of `span` to the second."""
    index, weight = axis.taps_within(start, stop, *span) if span else axis.taps(start, stop)
    assert weight is not None
    low, high = span or (0, axis.input_size)
    full = np.zeros((stop - start, axis.input_size))
    np.add.at(full, (np.arange(stop - start), index), weight)
    assert not full[:, :low].any()
    assert not full[:, high:].any()
    return full[:, low:high]


def test_offsets_that_send_every_output_to_one_element_are_counted() -> None:
    # 2^40 swallows the outputs' numbers in float32, so all of them read x = 2^17, which is at no end.
    axis = AdjointAxis(LinearAxis(1 << 18, 1000, 1.0, 2.0**40 - 2**17, -(2.0**40)))
    assert axis.most_taps(1 << 17, (1 << 17) + 1) == 1000
    assert axis.most_taps(0, 1) == axis.most_taps((1 << 18) - 1, 1 << 18) == 1
    assert axis.widest() == 1000


@pytest.mark.parametrize("way", [DEFAULT, PARTS, {"MOST_TAPS": 1000}], ids=["default", "parts", "longer parts"])
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int8"])
def test_the_parts_of_wide_windows_make_their_means(way: dict[str, int], dtype: str) -> None:
    random = np.random.default_rng(8)
    x = random.integers(-100 if dtype == "int8" else 0, 100, (1, 1000)).astype(dtype)
    desc = describe(
        Resample3OperatorDesc, dtype, [1, 1000], [1, 3], Scales=[1, 2**-8], Antialiased=True,
        InputPixelOffsets=[0.5, 0.5], OutputPixelOffsets=[-0.5, -0.5],
    )  # fmt: skip
    values, _ = oracle.resample(oracle.axes_of(desc), x)

    with tuned(**way):
        result = run(desc, x)

    if dtype == "float32":
        np.testing.assert_allclose(result, values, rtol=1e-6)
    else:
        assert ((np.trunc(values - 1e-3) == result) | (np.trunc(values + 1e-3) == result)).all()


@pytest.mark.parametrize("constant", [-128, 101])
def test_a_constant_stays_constant_in_parts(constant: int) -> None:
    desc = describe(
        Resample3OperatorDesc, "int8", [60, 90], [3, 4], Scales=[0.05, 0.04], Antialiased=True,
        InputPixelOffsets=[0.5, 0.5], OutputPixelOffsets=[-0.5, -0.5],
    )  # fmt: skip
    with tuned(**PARTS):
        assert (run(desc, np.full((60, 90), constant, np.int8)) == constant).all()


def test_a_sum_longer_than_one_part_is_exact_where_float32_is() -> None:
    count = 5 * axis_plans.MOST_TAPS // 2
    desc = describe(
        ResampleGradOperatorDesc, "float32", [1], [count], Scales=[1.0], InterpolationMode="NEAREST_NEIGHBOR"
    )
    assert run(desc, np.ones(count, np.float32)).tolist() == [count]


# ---- any box, any layout ---------------------------------------------------------------------------------------------


@given(case=cases(FORWARD + BACKWARD, ["float32", "float16"]), data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_box_has_the_bits_of_the_whole(case: tuple[Any, NDArray[Any]], data: st.DataObject) -> None:
    desc, x = case
    sizes = tensors(desc)[1].sizes
    ends = [sorted(data.draw(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))) for n in sizes]
    box = tuple((low, high + 1) for low, high in ends)
    for way in WAYS:
        with tuned(**{name: value for name, value in way.items() if name in SETTLES_BITS}):
            whole = run(desc, x)
        with tuned(**way):
            part = run(desc, x, box)
        np.testing.assert_array_equal(bits(part), bits(whole[tuple(slice(*span) for span in box)].copy()), str(way))


@given(case=cases(FORWARD + BACKWARD, ["float32", "float16"]), data=st.data())
@settings(max_examples=60, deadline=None)
def test_strides_of_input_and_output_do_not_matter(case: tuple[Any, NDArray[Any]], data: st.DataObject) -> None:
    desc, x = case
    order = data.draw(st.permutations(range(x.ndim)))
    gap = data.draw(st.integers(1, 3))
    back = np.argsort(order)
    spread = np.repeat(x.transpose(order), gap, axis=-1).copy()[..., ::gap].transpose(back)
    packed = run(desc, x)
    out = np.full([packed.shape[axis] for axis in order], 77, packed.dtype).repeat(gap, axis=-1)
    between = out[..., 1::gap].copy() if gap > 1 else None
    box = tuple((0, size) for size in packed.shape)

    form_of(desc).fill(np, [spread], box, out[..., ::gap].transpose(back))

    np.testing.assert_array_equal(bits(out[..., ::gap].transpose(back).copy()), bits(packed))
    if between is not None:
        np.testing.assert_array_equal(out[..., 1::gap], between)  # nothing beside the output is written


def test_a_broadcast_input() -> None:
    row = np.array([[1, 5, 9]], np.float32)
    desc = describe(ResampleOperatorDesc, "float32", [4, 3], [8, 6])
    np.testing.assert_array_equal(run(desc, np.broadcast_to(row, (4, 3))), run(desc, np.repeat(row, 4, axis=0)))


@pytest.mark.parametrize("mode", ["LINEAR", "NEAREST_NEIGHBOR"])
@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_shrinking_much_makes_no_copy_of_the_input(mode: str, dtype: str) -> None:
    x = np.zeros((2048, 2, 2048), dtype)[:, 0]  # strided, so that a careless gather would copy all of it
    desc = describe(ResampleOperatorDesc, dtype, x.shape, [32, 32], InterpolationMode=mode)
    run(desc, x)  # whatever is made once
    tracemalloc.start()
    try:
        run(desc, x)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < x.nbytes / 8


# ---- laws ------------------------------------------------------------------------------------------------------------


@given(case=cases(FORWARD, ["float32", "float16", "uint8"]))
@settings(max_examples=40, deadline=None)
def test_scale_1_is_the_identity(case: tuple[Any, NDArray[Any]]) -> None:
    desc, x = case
    offsets = [0.25] * x.ndim
    fields: dict[str, Any] = {"output_tensor": desc.input_tensor, "scales": [1] * x.ndim}
    if "input_pixel_offsets" in type(desc).model_fields:
        fields |= {"input_pixel_offsets": offsets, "output_pixel_offsets": [-offset for offset in offsets]}
    x = np.random.default_rng(x.size).integers(0, 256, x.nbytes, np.uint8).view(x.dtype).reshape(x.shape)

    np.testing.assert_array_equal(bits(run(desc.model_copy(update=fields), x)), bits(x))


@given(case=cases([ResampleOperatorDesc], ["float32", "uint8"]))
@settings(max_examples=40, deadline=None)
def test_resample_is_resample1_with_pixel_centres_aligned(case: tuple[Any, NDArray[Any]]) -> None:
    desc, x = case
    given_fields = {
        name: getattr(desc, name) for name in ("input_tensor", "output_tensor", "interpolation_mode", "scales")
    }
    newer = Resample1OperatorDesc(
        **given_fields, input_pixel_offsets=(0.5,) * x.ndim, output_pixel_offsets=(-0.5,) * x.ndim
    )
    np.testing.assert_array_equal(run(desc, x), run(newer, x))


@given(case=cases([Resample1OperatorDesc], ["float32"]), data=st.data())
@settings(max_examples=60, deadline=None)
def test_resample1_nearest_is_resample2_decreasing_with_input_offsets_lowered(
    case: tuple[Any, NDArray[Any]], data: st.DataObject
) -> None:
    desc, x = case
    # With powers of two every step is exact, so that the two ways of writing x cannot round differently.
    fields: dict[str, Any] = {
        name: data.draw(st.lists(st.sampled_from(values), min_size=x.ndim, max_size=x.ndim))
        for name, values in {
            "scales": [0.25, 0.5, 1, 2, 4],
            "input_pixel_offsets": [-1, -0.5, 0, 0.25, 0.5, 1],
            "output_pixel_offsets": [-1, -0.5, 0, 0.25, 0.5, 1],
        }.items()
    }
    older = desc.model_copy(update={**fields, "interpolation_mode": "NEAREST_NEIGHBOR"})
    lowered = [offset - 0.5 for offset in fields.pop("input_pixel_offsets")]
    newer = Resample2OperatorDesc(
        input_tensor=desc.input_tensor,
        output_tensor=desc.output_tensor,
        interpolation_mode=InterpolationMode.NEAREST_NEIGHBOR,
        rounding_direction=AxisDirection.DECREASING,
        input_pixel_offsets=tuple(lowered),
        **fields,
    )
    np.testing.assert_array_equal(run(older, x), run(newer, x))


@pytest.mark.parametrize("scale", [2, 0.5])
def test_for_scales_2_and_a_half_the_pages_way_to_resample2_agrees(scale: float) -> None:
    fields = {"InterpolationMode": "NEAREST_NEIGHBOR", "Scales": [scale]}
    sizes, outputs, x = [8], [int(8 * scale)], np.arange(8, dtype=np.float32)
    older = describe(Resample1OperatorDesc, "float32", sizes, outputs, **fields)
    newer = describe(Resample2OperatorDesc, "float32", sizes, outputs, **fields, OutputPixelOffsets=[-1.0])
    assert run(older, x).tolist() == run(newer, x).tolist()


@pytest.mark.parametrize("mode", ["LINEAR", "NEAREST_NEIGHBOR"])
@pytest.mark.parametrize("shape", [(1, 2, 3, 4), (1, 2, 2, 3, 4)])
def test_upsample_2d_is_resample(mode: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    layout = BufferTensorDesc.packed(x.dtype, shape)
    older = Upsample2DOperatorDesc.completed(
        {"InputTensor": layout, "ScaleSize": {"Width": 3, "Height": 2}, "InterpolationMode": mode}
    )
    newer = ResampleOperatorDesc(
        input_tensor=layout,
        output_tensor=older.output_tensor,
        scales=(*[1.0] * (x.ndim - 2), 2.0, 3.0),
        interpolation_mode=older.interpolation_mode,
    )
    np.testing.assert_array_equal(run(older, x), run(newer, x))


@given(case=cases([Resample2OperatorDesc, Resample3OperatorDesc], ["float32"]), data=st.data())
@settings(max_examples=40, deadline=None)
def test_permuting_the_axes_permutes_the_result(case: tuple[Any, NDArray[Any]], data: st.DataObject) -> None:
    desc, x = case
    order = data.draw(st.permutations(range(x.ndim)))

    def permuted(values: Sequence[Any]) -> list[Any]:
        return [values[axis] for axis in order]

    arrays = ("scales", "input_pixel_offsets", "output_pixel_offsets")
    turned = desc.model_copy(
        update={
            **{name: permuted(getattr(desc, name)) for name in arrays},
            "input_tensor": BufferTensorDesc.packed(x.dtype, permuted(desc.input_tensor.sizes)),
            "output_tensor": BufferTensorDesc.packed(x.dtype, permuted(desc.output_tensor.sizes)),
        }
    )
    # The axes may be taken in another order, so sums may round differently.
    np.testing.assert_allclose(
        run(turned, x.transpose(order).copy()), run(desc, x).transpose(order), rtol=1e-5, atol=1e-5
    )


@given(case=cases(FORWARD, ["float32"]), constant=st.floats(-100, 100, width=32))
@settings(max_examples=40, deadline=None)
def test_a_constant_stays_constant(case: tuple[Any, NDArray[Any]], constant: float) -> None:
    desc, x = case
    np.testing.assert_allclose(run(desc, np.full_like(x, constant)), constant, rtol=2e-6)


@given(case=cases(FORWARD, ["uint8", "int8"]), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_constant_of_integers_stays_exactly_that(case: tuple[Any, NDArray[Any]], data: st.DataObject) -> None:
    desc, x = case
    limits = np.iinfo(x.dtype)
    constant = data.draw(st.integers(int(limits.min), int(limits.max)))
    assert (run(desc, np.full_like(x, constant)) == constant).all()


@pytest.mark.parametrize("constant", [3, 127, 255])
def test_a_constant_picture_does_not_lose_1_to_rounding(constant: int) -> None:
    # Rounded products of weights and constant can sum to just below it, which truncation would make one less.
    x = np.full((90, 91), constant, np.uint8)
    for sizes in ((37, 13), (20, 29), (41, 33)):
        desc = describe(Resample3OperatorDesc, "uint8", x.shape, sizes, Antialiased=True)
        assert (run(desc, x) == constant).all()


@given(case=cases(BACKWARD, ["float32"]))
@settings(max_examples=80, deadline=None)
def test_the_gradient_is_the_adjoint(case: tuple[Any, NDArray[Any]]) -> None:
    """<g, R x> = <R* g, x>, but for float32: each side is a sum of the same products."""
    desc, g = case
    fields = {name: getattr(desc, name) for name in type(desc).fields_of_kind("attribute")}
    # DirectML's forward operator reads other neighbours beyond these offsets; its gradient does not.
    nearest = desc.interpolation_mode is InterpolationMode.NEAREST_NEIGHBOR
    assume(nearest or all(0 <= each <= 1 for each in desc.output_pixel_offsets))
    fields["input_pixel_offsets"], fields["output_pixel_offsets"] = desc.output_pixel_offsets, desc.input_pixel_offsets
    forward = (Resample2OperatorDesc if isinstance(desc, ResampleGrad1OperatorDesc) else Resample1OperatorDesc)(
        input_tensor=desc.output_gradient_tensor, output_tensor=desc.input_gradient_tensor, **fields
    )
    x = np.random.default_rng(3).standard_normal(desc.output_gradient_tensor.sizes).astype(np.float32)
    y, back = run(forward, x), run(desc, g)
    left = np.sum(g.astype(np.float64) * y)
    right = np.sum(back.astype(np.float64) * x)
    weights = run(forward, np.abs(x)).astype(np.float64)
    assert abs(left - right) <= 1e-5 * np.sum(np.abs(g) * weights) + 1e-6


# ---- values that are no ordinary numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_tap_of_weight_0_is_not_read(way: dict[str, int]) -> None:
    x = np.array([1, np.inf, 3, np.nan, 5, 6, 7, 8, 9, 10, 11, 12], np.float32)
    desc = describe(
        Resample1OperatorDesc, "float32", [12], [25], Scales=[2], InputPixelOffsets=[0], OutputPixelOffsets=[0]
    )
    with tuned(**way):
        result = run(desc, x)
    np.testing.assert_array_equal(result[::2], [*x, 12])
    np.testing.assert_array_equal(result[1:6:2], [np.inf, np.inf, np.nan])


def test_infinite_edges_are_repeated_and_not_nan() -> None:
    x = np.array([-np.inf, -np.inf, 1, np.inf, np.inf], np.float32)
    result = run(describe(ResampleOperatorDesc, "float32", [5], [10], Scales=[2]), x)
    np.testing.assert_array_equal(result[:4], -np.inf)
    np.testing.assert_array_equal(result[-4:], np.inf)


@pytest.mark.parametrize("mode", ["LINEAR", "NEAREST_NEIGHBOR"])
@pytest.mark.parametrize(
    ("scale", "offset", "want"),
    [
        (3.4028235e38, 0.0, [1, 1, 1]),  # x = 0, and next to it
        (3.4028235e38, -1.0, [2, 2, 2]),  # x = 1
        (2.0**-23, 0.0, [1, 3, 3]),  # x = 0, then far above
        (1.0, 3.4028235e38, [1, 1, 1]),  # far below
        (1.0, -3.4028235e38, [3, 3, 3]),  # far above
    ],
)
def test_extreme_scales_and_offsets(mode: str, scale: float, offset: float, want: list[float]) -> None:
    inputs, outputs = (0, offset) if abs(offset) > 1 else (offset, 0)  # linear goes on beyond a far InputPixelOffset
    desc = describe(
        Resample2OperatorDesc, "float32", [3], [3], InterpolationMode=mode, Scales=[scale],
        InputPixelOffsets=[inputs], OutputPixelOffsets=[outputs],
    )  # fmt: skip
    assert run(desc, np.array([1, 2, 3], np.float32)).tolist() == want


@pytest.mark.parametrize("scale", [2.0**-23, 0.1, 0.49])
def test_antialiasing_goes_by_the_sizes_whatever_the_scale(scale: float) -> None:
    # 4 to 2 to 1: the mean of the means of pairs.
    desc = describe(
        Resample3OperatorDesc, "float32", [4], [1], Scales=[scale], Antialiased=True, InputPixelOffsets=[0.5],
        OutputPixelOffsets=[-0.5],
    )  # fmt: skip
    assert run(desc, np.array([1, 50, 60, 3], np.float32)).tolist() == [28.5]


# ---- the maps --------------------------------------------------------------------------------------------------------


def test_an_axis_beyond_2_24_is_evaluated_in_float64() -> None:
    last = (1 << 25) - 1
    long = NearestAxis(1 << 25, 1 << 25, 1.0, 0.0, 0.0, Nearest.FLOOR)
    assert long.taps(last - 2, last + 1)[0].tolist() == [[last - 2, last - 1, last]]
    assert np.float32(last) == last + 1  # so float32 would read past the end


def test_an_axis_up_to_2_24_is_evaluated_in_float32() -> None:
    axis = LinearAxis(4, 1 << 24, 0.6, 0.5, -0.5)
    assert axis.coordinates(np.array([1])).dtype == np.float32
    assert axis.coordinates(np.array([1])).tolist() == [2.0]


@given(
    size=st.integers(1, 60),
    output=st.integers(1, 12),
    offsets=st.sampled_from([(0.5, -0.5), (0.5, -0.5), (0.0, 0.0), (0.25, -0.5), (-0.5, 0.5), (2.0, -2.0)]),
    part=st.integers(1, 60),
)
@settings(max_examples=150, deadline=None)
def test_the_pyramid_is_all_its_steps(size: int, output: int, offsets: tuple[float, float], part: int) -> None:
    axis = PyramidAxis(size, output, 0.25, *offsets)
    wanted = np.zeros((output, size))
    for o in range(output):
        for i, w in oracle.taps(oracle.OracleAxis(size, output, 0.25, *offsets, "pyramid"), o):
            wanted[o, i] += w
    low, high = axis.reach(0, output)
    assert not wanted[:, :low].any()
    assert not wanted[:, high:].any()
    found = np.zeros((output, size))
    for low in range(0, size, part):
        high = min(low + part, size)
        first, last = axis.readers(low, high)
        assert not np.delete(wanted[:, low:high], np.s_[first:last], 0).any()
        if first < last:
            index, weight = axis.taps_within(first, last, low, high)
            assert weight is not None
            for tap in range(len(index)):
                np.add.at(found, (np.arange(first, last), index[tap]), weight[tap])
    np.testing.assert_allclose(found, wanted, atol=1e-9)


@given(case=cases(BACKWARD, ["float32"]))
@settings(max_examples=60, deadline=None)
def test_most_taps_is_no_less_than_what_taps_returns(case: tuple[Any, NDArray[Any]]) -> None:
    for axis in resample_form(case[0]).axes:
        for start, stop in [] if axis is None else [(0, axis.output_size), (0, 1)]:
            assert axis is not None
            assert len(axis.taps(start, stop)[0]) <= axis.most_taps(start, stop)


def test_where_one_element_collects_many_the_sum_does_not_lose_them() -> None:
    count = 1_000_000
    fields = {"Scales": [1.0], "InterpolationMode": "NEAREST_NEIGHBOR"}
    desc = describe(ResampleGradOperatorDesc, "float32", [2], [count], **fields)  # all but two outputs are past the end
    g = np.full(count, 0.1, np.float32)
    # One by one in float32 the sum would be 100958.34; pairwise it is right to a few ULP.
    np.testing.assert_allclose(run(desc, g), np.float32(0.1) * np.array([1.0, count - 1]), rtol=1e-6)


def test_a_gradient_of_long_lists_beside_empty_ones_takes_little_memory() -> None:
    # Every output reads element 7: one list of 50 000 beside 4 999 empty ones. As one rectangle that is 2 GB.
    count, size = 50_000, 5_000
    axis = AdjointAxis(LinearAxis(size, count, 3.4028235e38, -7.0, 0.0))
    assert axis.most_taps(0, size) == count
    kernel = separable.Separable((axis,))
    out = np.full(size, 77, np.float32)
    tracemalloc.start()
    try:
        kernel.fill(np, [np.ones(count, np.float32)], ((0, size),), out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert out[7] == count
    assert np.count_nonzero(out) == 1
    assert peak < 100e6


@example(case=(describe(ResampleOperatorDesc, "float32", [2, 2], [4, 4]), np.zeros((2, 2), np.float32)))
@given(case=cases(FORWARD + BACKWARD, ["float32", "uint8"]))
@settings(max_examples=20, deadline=None)
def test_kernels_are_values(case: tuple[Any, NDArray[Any]]) -> None:
    kernel = resample_form(case[0])
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    assert hash(kernel) == hash(resample_form(case[0]))
