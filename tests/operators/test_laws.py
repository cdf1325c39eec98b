"""Laws that hold between operators, for any layouts and bits: splitting and joining, padding and slicing, and so on.

Answers element by element are in tests/vectors and tests/support/operator_cases.py; every backend goes through both.
"""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support import operator_cases
from tests.support import strategies as ours
from tests.support.vectors import Case, elements

from tensorpost.descriptors import OperatorDesc, operator_class, parse_operator
from tensorpost.onnx import OnnxNode, OnnxTensor
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.operators import form_of
from tensorpost_server.planning import make_plan

BACKEND = NumpyBackend()
TYPES = ours.TILE_DATA_TYPES
SEEDS = st.integers(0, 2**32)


def run(desc: OperatorDesc | OnnxNode, *buffers: bytes, slice_bytes: int = 1 << 20) -> list[bytes]:
    """The outputs' buffers."""
    plan = make_plan(desc, slice_bytes)
    started = BACKEND.start(plan, [memoryview(buffer) for buffer in buffers])
    found = [bytearray() for _ in plan.outputs]
    for index, piece in enumerate(plan.slices):
        found[piece.output] += bytes(started.compute(index)) + bytes(piece.padding)
    started.close()
    return [bytes(buffer) for buffer in found]


def packed(data_type: str, sizes: Any) -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes)}


def bits(data_type: str, sizes: Any, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(math.prod(sizes) * np.dtype(data_type.lower()).itemsize)


def completed(operator: str, **fields: Any) -> Any:
    return parse_operator({"type": operator, "desc": fields}, complete=True)


def array(desc: OperatorDesc, buffer: bytes) -> NDArray[Any]:
    return elements(desc.outputs[0], buffer)


SMALL = ours.sizes(max_dims=4, max_elements=60)


# ---- movement --------------------------------------------------------------------------------------------------------


@given(st.sampled_from(TYPES), SMALL, SEEDS, st.data())
@settings(max_examples=40, deadline=None)
def test_what_is_split_and_joined_is_what_it_was(data_type: str, sizes: Any, seed: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(sizes) - 1))
    cuts = sorted(data.draw(st.sets(st.integers(1, sizes[axis] - 1), max_size=3))) if sizes[axis] > 1 else []
    lengths = [stop - start for start, stop in zip([0, *cuts], [*cuts, sizes[axis]], strict=True)]
    parts = [packed(data_type, [*sizes[:axis], length, *sizes[axis + 1 :]]) for length in lengths]
    x = bits(data_type, sizes, seed)

    split = completed("SPLIT", InputTensor=packed(data_type, sizes), OutputTensors=parts, Axis=axis)
    join = completed("JOIN", InputTensors=parts, Axis=axis)

    assert run(join, *run(split, x)) == [x]
    # One part is what slicing takes.
    start = [0] * len(sizes)
    start[axis] = sum(lengths[:-1])
    window = completed(
        "SLICE1", InputTensor=packed(data_type, sizes), InputWindowOffsets=start,
        InputWindowSizes=parts[-1]["Sizes"], InputWindowStrides=[1] * len(sizes),
    )  # fmt: skip
    assert run(window, x) == run(split, x)[-1:]


@given(
    st.sampled_from(TYPES), SMALL, SEEDS, st.data(),
    st.sampled_from(["CONSTANT", "EDGE", "REFLECTION", "SYMMETRIC", "WRAP"]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_the_middle_of_what_was_padded_is_what_it_was(
    data_type: str, sizes: Any, seed: int, data: st.DataObject, mode: str
) -> None:
    paddings = st.lists(st.integers(0, 4), min_size=len(sizes), max_size=len(sizes))
    start, end = data.draw(paddings), data.draw(paddings)
    x = bits(data_type, sizes, seed)

    pad = completed(
        "PADDING1", InputTensor=packed(data_type, sizes), PaddingMode=mode, StartPadding=start, EndPadding=end
    )
    cut = completed(
        "SLICE1", InputTensor=pad.output_tensor, InputWindowOffsets=start, InputWindowSizes=list(sizes),
        InputWindowStrides=[1] * len(sizes),
    )  # fmt: skip

    assert run(cut, *run(pad, x)) == [x]


@given(st.sampled_from(TYPES), SMALL, SEEDS, st.data())
@settings(max_examples=40, deadline=None)
def test_reversing_twice_changes_nothing_and_wrapping_is_tiling(
    data_type: str, sizes: Any, seed: int, data: st.DataObject
) -> None:
    x, rank = bits(data_type, sizes, seed), len(sizes)
    back = completed(
        "SLICE1", InputTensor=packed(data_type, sizes), InputWindowOffsets=[0] * rank, InputWindowSizes=list(sizes),
        InputWindowStrides=data.draw(st.lists(st.sampled_from([1, -1]), min_size=rank, max_size=rank)),
    )  # fmt: skip
    assert run(back, *run(back, x)) == [x]

    copies = data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    end = [size * (count - 1) for size, count in zip(sizes, copies, strict=True)]
    tile = completed("TILE", InputTensor=packed(data_type, sizes), Repeats=copies)
    wrap = completed(
        "PADDING1", InputTensor=packed(data_type, sizes), PaddingMode="WRAP", StartPadding=[0] * rank, EndPadding=end
    )
    assert run(tile, x) == run(wrap, x)


@given(st.sampled_from(TYPES), SMALL, SEEDS, st.data())
@settings(max_examples=40, deadline=None)
def test_identity_between_layouts_keeps_every_element(
    data_type: str, sizes: Any, seed: int, data: st.DataObject
) -> None:
    there = data.draw(ours.tensor_descs(data_types=(data_type,), of=sizes, output=True))
    x = bits(data_type, sizes, seed)
    if data_type.startswith("FLOAT"):
        x = np.nan_to_num(np.frombuffer(x, data_type.lower())).tobytes()
    away = completed("ELEMENT_WISE_IDENTITY", InputTensor=packed(data_type, sizes), OutputTensor=there)
    home = completed("ELEMENT_WISE_IDENTITY", InputTensor=there, OutputTensor=packed(data_type, sizes))

    assert run(home, *run(away, x)) == [x]


# ---- indexing --------------------------------------------------------------------------------------------------------


@given(st.sampled_from(TYPES), SMALL, SEEDS, st.data())
@settings(max_examples=40, deadline=None)
def test_gathering_in_order_changes_nothing_and_scattering_undoes_it(
    data_type: str, sizes: Any, seed: int, data: st.DataObject
) -> None:
    axis, rank = data.draw(st.integers(0, len(sizes) - 1)), len(sizes)
    length = sizes[axis]
    x = bits(data_type, sizes, seed)
    fields = {
        "InputTensor": packed(data_type, sizes), "IndicesTensor": packed("UINT32", [*[1] * (rank - 1), length]),
        "Axis": axis, "IndexDimensions": 1,
    }  # fmt: skip
    gather = completed("GATHER", **fields)
    assert run(gather, x, np.arange(length, dtype="<u4").tobytes()) == [x]

    order = np.array(data.draw(st.permutations(range(length))), "<u4")
    (mixed,) = run(gather, x, order.tobytes())
    lines = np.broadcast_to(order.reshape([-1 if at == axis else 1 for at in range(rank)]), sizes)
    scatter = completed(
        "SCATTER_ELEMENTS", InputTensor=packed(data_type, sizes), IndicesTensor=packed("UINT32", sizes),
        UpdatesTensor=packed(data_type, sizes), Axis=axis,
    )  # fmt: skip
    assert run(scatter, bytes(len(x)), lines.astype("<u4").tobytes(), mixed) == [x]


@given(SMALL, SEEDS)
@settings(max_examples=30, deadline=None)
def test_coordinates_of_what_is_not_zero_find_it(sizes: Any, seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 3, sizes, dtype=np.int32)
    desc = completed("NONZERO_COORDINATES", InputTensor=packed("INT32", sizes))

    counted, rows = run(desc, x.tobytes())

    count = int(np.frombuffer(counted, "<u4")[0])
    places = np.frombuffer(rows, "<u4").reshape(-1, len(sizes))
    assert count == np.count_nonzero(x)
    assert not places[count:].any()
    assert all(x[tuple(place)] for place in places[:count])
    assert len({tuple(place) for place in places[:count].tolist()}) == count


# ---- lines and products ----------------------------------------------------------------------------------------------


@given(st.sampled_from(TYPES), SMALL, SEEDS, st.data())
@settings(max_examples=40, deadline=None)
def test_all_of_top_k_is_a_sorted_permutation(data_type: str, sizes: Any, seed: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(sizes) - 1))
    x = bits(data_type, sizes, seed)
    desc = completed("TOP_K1", InputTensor=packed(data_type, sizes), Axis=axis, K=sizes[axis], AxisDirection=0)

    values, places = run(desc, x)

    order = np.frombuffer(places, "<u4").reshape(sizes).astype(np.int64)
    line = np.arange(sizes[axis]).reshape([-1 if at == axis else 1 for at in range(len(sizes))])
    assert np.array_equal(np.sort(order, axis), np.broadcast_to(line, sizes))
    whole = np.frombuffer(x, data_type.lower()).reshape(sizes)
    assert np.take_along_axis(whole, order, axis).tobytes() == values
    found = np.nan_to_num(np.frombuffer(values, data_type.lower()).reshape(sizes), nan=np.inf)
    assert not (np.take(found, range(1, sizes[axis]), axis) < np.take(found, range(sizes[axis] - 1), axis)).any()
    # The first of them is what MIN and ARGMIN find; NaN is larger than everything, but MIN passes it on.
    if not np.isnan(whole.astype(np.float64)).any():
        for function, expected in (("MIN", values), ("ARGMIN", places)):
            reduce = completed("REDUCE", InputTensor=packed(data_type, sizes), Function=function, Axes=[axis])
            first = np.take(np.frombuffer(expected, np.dtype(expected_type(reduce))).reshape(sizes), [0], axis)
            assert np.array_equal(array(reduce, run(reduce, x)[0]), first)


def expected_type(desc: Any) -> str:
    return desc.output_tensor.data_type.name.lower()


@pytest.mark.parametrize("function", ["SUM", "MAX", "MIN", "MULTIPLY", "L1", "SUM_SQUARE"])
@given(SMALL, SEEDS, st.data())
@settings(max_examples=15, deadline=None)
def test_reducing_axis_by_axis_is_reducing_at_once(function: str, sizes: Any, seed: int, data: st.DataObject) -> None:
    """Of integers, which wrap: any order gives the same bits. Squares and magnitudes are taken in the first step."""
    x = bits("INT32", sizes, seed)
    axes = data.draw(st.permutations(range(len(sizes))))
    whole = completed("REDUCE", InputTensor=packed("INT32", sizes), Function=function, Axes=axes)
    expected = run(whole, x)

    step = completed("REDUCE", InputTensor=packed("INT32", sizes), Function=function, Axes=axes[:1])
    (x,) = run(step, x)
    if function in ("SUM_SQUARE", "L1"):
        function = "SUM"
    for axis in axes[1:]:
        step = completed("REDUCE", InputTensor=step.output_tensor, Function=function, Axes=[axis])
        (x,) = run(step, x)

    assert [x] == expected


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), SEEDS)
@settings(max_examples=30, deadline=None)
def test_a_convolution_of_one_element_is_a_product(batch: int, into: int, out: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    x, w = (random.integers(-8, 9, shape).astype("<f4") for shape in ((batch, into), (out, into)))
    gemm = completed("GEMM", ATensor=packed("FLOAT32", x.shape), BTensor=packed("FLOAT32", w.shape), TransB="TRANSPOSE")
    convolution = completed(
        "CONVOLUTION", InputTensor=packed("FLOAT32", (*x.shape, 1)), FilterTensor=packed("FLOAT32", (*w.shape, 1))
    )
    assert run(gemm, x.tobytes(), w.tobytes()) == run(convolution, x.tobytes(), w.tobytes())


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_transposed_convolution_is_the_adjoint(data: st.DataObject) -> None:
    """`<conv(x), y> = <x, transposed(y)>` with one filter, whose first two dimensions change their meaning only."""
    case = data.draw(operator_cases.STRATEGIES["CONVOLUTION"].filter(lambda case: _forward(case.desc)))
    desc: Any = case.desc
    random = np.random.default_rng(1)
    x, w, y = (
        random.integers(-4, 5, tensor.sizes).astype("<f4")
        for tensor in (desc.input_tensor, desc.filter_tensor, desc.output_tensor)
    )
    fields = {
        name: value
        for name, value in desc.to_json().items()
        if name not in ("OutputTensor", "BiasTensor", "FusedActivation")
    } | {"InputTensor": packed("FLOAT32", x.shape), "FilterTensor": packed("FLOAT32", w.shape)}
    forward = completed("CONVOLUTION", **fields)
    backward = completed(
        "CONVOLUTION",
        **{**fields, "Direction": "BACKWARD", "InputTensor": packed("FLOAT32", y.shape)},
        OutputTensor=packed("FLOAT32", x.shape),
    )

    there = array(forward, run(forward, x.tobytes(), w.tobytes())[0])
    back = array(backward, run(backward, y.tobytes(), w.tobytes())[0])

    assert np.vdot(there, y) == np.vdot(x, back), "whole numbers, so exactly"


def _forward(desc: Any) -> bool:
    """Whether it goes forward without appended zeros, and its steps use the whole input."""
    if desc.direction.name != "FORWARD" or any(desc.output_padding):
        return False
    numbers = zip(
        desc.input_tensor.sizes[2:], desc.start_padding, desc.end_padding, desc.filter_tensor.sizes[2:],
        desc.dilations, desc.strides, strict=True,
    )  # fmt: skip
    return all((n + a + b - (taps - 1) * d - 1) % stride == 0 for n, a, b, taps, d, stride in numbers)


# ---- slices and values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", operator_cases.STRATEGIES)
@given(data=st.data(), slice_bytes=st.integers(1, 300))
@settings(max_examples=8, deadline=None)
def test_slices_of_any_size_give_the_same_bytes(operator: str, data: st.DataObject, slice_bytes: int) -> None:
    case: Case = data.draw(operator_cases.STRATEGIES[operator])
    desc: Any = case.desc

    assert run(desc, *case.inputs, slice_bytes=slice_bytes) == run(desc, *case.inputs)


@pytest.mark.parametrize("operator", operator_cases.STRATEGIES)
@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_forms_are_values_and_read_inside_their_inputs(operator: str, data: st.DataObject) -> None:
    desc: Any = data.draw(operator_cases.STRATEGIES[operator]).desc
    form = form_of(desc)

    assert hash(form) == hash(form_of(parse_operator(desc.to_document())))
    assert pickle.loads(pickle.dumps(form)) == form
    assert isinstance(desc, operator_class(operator))
    for index, slot in enumerate(desc.outputs):
        box = tuple((0, size) for size in slot.layout.sizes)
        reads = form.reads(box, index)
        assert len(reads) == len(desc.inputs)
        assert form.work(box, index) >= math.prod(slot.layout.sizes)
        for source, read in zip(desc.inputs, reads, strict=True):
            for (low, high), size in zip(read or (), source.layout.sizes, strict=read is not None):
                assert 0 <= low <= high <= size


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("op_type", "empty"), [("ReduceSum", 0), ("ReduceMax", -np.inf), ("ReduceMin", np.inf), ("ReduceProd", 1)]
)
def test_lines_without_elements_are_reduced_as_onnx_says(op_type: str, empty: float, dtype: str) -> None:
    x = OnnxTensor(dtype, (0, 2))

    (found,) = run(OnnxNode.of(op_type, {"data": x, "axes": [0]}, opset=20), b"")

    assert np.frombuffer(found, dtype).tolist() == [empty, empty]
