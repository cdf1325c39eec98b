"""Plans: everything that is decided about a call, as one value."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from tests.support import oracles
from tests.support import strategies as ours
from tests.support.costly import means_of_columns

from tensorpost.descriptors import OPERATORS, BufferTensorDesc, TileOperatorDesc
from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout
from tensorpost.values.problems import BodyMismatch
from tensorpost_server.forms.axes import AXES_WEIGHT
from tensorpost_server.operators import FORMS
from tensorpost_server.planning import make_plan
from tensorpost_server.planning.plan import SLICE_WORK

PACKED = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT16", (3,)), (2,))
STRIDED = TileOperatorDesc(
    input_tensor=BufferTensorDesc(data_type="UINT8", sizes=(2, 3), strides=(0, 1), total_tensor_size_in_bytes=8),
    output_tensor=BufferTensorDesc(data_type="UINT8", sizes=(2, 6), strides=(8, 1)),
    repeats=(1, 2),
)


def test_a_plan_says_everything():
    plan = make_plan(PACKED, 4096)

    assert plan.operator == "TILE"
    assert [slot.name for slot in plan.inputs] == ["input"]
    assert plan.outputs[0].name == "output"
    assert (plan.input_bytes, plan.output_bytes) == (6, 12), "a packed tensor is its elements, not rounded up to 4"
    assert (plan.outputs[0].layout.data_type.numpy_name, plan.outputs[0].layout.sizes) == ("float16", (6,))
    assert [piece.box for piece in plan.slices] == [((0, 6),)]


def test_a_strided_tensor_is_its_whole_buffer():
    plan = make_plan(STRIDED, 4096)

    assert (plan.input_bytes, plan.output_bytes) == (8, 16)
    assert (plan.inputs[0].layout.strides, plan.inputs[0].layout.packed) == ((0, 1), False)
    assert (plan.outputs[0].layout.strides, plan.outputs[0].layout.packed) == ((8, 1), False)


def test_equal_descriptors_share_a_plan():
    again = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT16", (3,)), (2,))

    assert again is not PACKED
    assert make_plan(PACKED, 4096) is make_plan(again, 4096)


@pytest.mark.parametrize(
    ("desc", "slice_bytes"),
    [
        pytest.param(PACKED, 8, id="slice size"),
        pytest.param(TileOperatorDesc.of(BufferTensorDesc.packed("INT16", (3,)), (2,)), 4096, id="type"),
        pytest.param(TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT16", (3,)), (3,)), 4096, id="repeats"),
        pytest.param(TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT16", (1, 3)), (1, 2)), 4096, id="rank"),
    ],
)
def test_whatever_differs_makes_another_plan(desc, slice_bytes):
    assert make_plan(desc, slice_bytes) != make_plan(PACKED, 4096)


@given(desc=ours.tile_descs())
@settings(max_examples=60, deadline=None)
def test_plans_are_picklable_hashable_values(desc):
    plan = make_plan(desc, 4096)

    copy = pickle.loads(pickle.dumps(plan))

    assert plan == copy
    assert hash(plan) == hash(copy)
    assert len(pickle.dumps(plan)) < 10_000, "no arrays in it"
    with pytest.raises(AttributeError):
        plan.work = 2  # pyright: ignore[reportAttributeAccessIssue] # that is the test


def test_a_plan_runs_in_another_process():
    # As a device's worker in a process of its own would: unpickled, without the descriptor.
    code = (
        "import pickle, sys\n"
        "from tensorpost_server.backends.numpy_ import NumpyBackend\n"
        "plan = pickle.loads(sys.stdin.buffer.read())\n"
        "run = NumpyBackend().start(plan, [memoryview(b'\\1\\2\\3\\4\\5\\6\\7\\7')])\n"
        "sys.stdout.buffer.write(run.compute(0))\n"
    )

    plan = pickle.dumps(make_plan(STRIDED, 4096))
    done = subprocess.run([sys.executable, "-c", code], input=plan, capture_output=True, check=False)

    assert done.stderr == b""
    assert done.stdout == b"\1\2\3\1\2\3\0\0\1\2\3\1\2\3\0\0"


@given(tensor=ours.tensor_descs())
@settings(max_examples=100, deadline=None)
def test_a_layout_addresses_the_tensors_own_elements(tensor):
    layout = tensor.layout
    buffer = np.arange(tensor.total_tensor_size_in_bytes, dtype=np.uint32).astype(np.uint8).tobytes()

    elements = [element.tobytes() for element in layout.view(buffer).ravel()]

    assert oracles.read_elements(tensor, buffer) == elements
    assert layout.data_size_in_bytes <= layout.size_in_bytes <= tensor.total_tensor_size_in_bytes
    if layout.packed:
        assert layout.size_in_bytes == math.prod(tensor.sizes) * oracles.item_bytes(tensor.data_type)
    else:
        assert layout.size_in_bytes == tensor.total_tensor_size_in_bytes


# ---- slices of costly outputs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [1, 2, 100, 4095])
def test_no_slice_is_much_work_however_few_bytes_it_has(columns: int):
    plan = make_plan(means_of_columns(1 << 20, columns), 2 << 20)

    assert plan.work >= columns << 20
    held = [math.prod(stop - start for start, stop in piece.box) for piece in plan.slices]
    assert sum(held) == columns
    assert max(held) << 20 <= SLICE_WORK // AXES_WEIGHT
    assert len(held) <= 3 * AXES_WEIGHT * plan.work // SLICE_WORK + 1


def test_what_cannot_be_cut_is_one_element(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tensorpost_server.planning.plan.SLICE_WORK", 1 << 20)
    plan = make_plan(means_of_columns(1 << 23, 3), 2 << 20)

    assert [piece.computed for piece in plan.slices] == [1, 1, 1]


def test_costly_elements_far_apart_are_cut_by_what_lies_between_them():
    packed = means_of_columns(1 << 20, 128)
    output = BufferTensorDesc(data_type="UINT8", sizes=(1, 128), strides=(0, 1000))
    plan = make_plan(packed.model_copy(update={"output_tensor": output}), 2 << 20)

    held = [math.prod(stop - start for start, stop in piece.box) for piece in plan.slices]
    assert sum(held) == 128
    assert max(held) << 20 <= SLICE_WORK // AXES_WEIGHT
    assert len(held) <= 3 * AXES_WEIGHT * plan.work // SLICE_WORK + 1


# ---- layouts: the only place that makes a view of a caller's bytes ---------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "strides", "needed"),
    [
        ((2, 3), (3, 1), 12),
        ((2, 3), (5, 1), 16),
        ((2, 3), (0, 1), 6),
        ((4,), (0,), 2),
        ((), (), 2),
        ((1, 1), (9, 9), 2),
    ],
)
def test_a_view_needs_all_its_bytes(sizes, strides, needed):
    layout = Layout(data_type("U16"), sizes, strides, needed, packed=False)

    assert layout.data_size_in_bytes == needed
    assert layout.view(bytes(needed)).shape == sizes
    assert layout.view(bytes(needed + 7)).shape == sizes
    with pytest.raises(
        BodyMismatch, match=f"reaches {needed} bytes into its buffer, which has only {needed - 1}"
    ) as caught:
        layout.view(bytes(needed - 1))
    assert caught.value.extra == {"expected": needed, "actual": needed - 1}


def test_a_view_is_the_same_memory():
    buffer = bytearray(range(1, 13))
    layout = Layout(data_type("U8"), (2, 3), (5, 2), 12, packed=False)

    view = layout.view(buffer)

    assert view.tolist() == [[1, 3, 5], [6, 8, 10]]
    view[1, 2] = 99
    assert buffer[9] == 99


@pytest.mark.parametrize(
    ("strides", "buffer", "writable"),
    [
        ((3, 1), bytearray(6), True),
        ((3, 1), bytes(6), False),
        ((0, 1), bytearray(6), False),
        ((1, 1), bytearray(6), False),
    ],
)
def test_a_view_can_be_written_only_if_no_element_is_shared(strides, buffer, writable):
    layout = Layout(data_type("U8"), (2, 3), strides, 6, packed=strides == (3, 1))

    assert layout.view(buffer).flags.writeable is writable


@pytest.mark.parametrize("sizes", [(0,), (3, 0), (0, 4, 2)])
def test_a_tensor_without_elements_has_no_bytes(sizes):
    layout = Layout.row_major(data_type("F64"), sizes)

    assert (layout.size_in_bytes, layout.data_size_in_bytes) == (0, 0)
    assert layout.view(b"").shape == sizes


def test_a_view_may_read_the_elements_as_another_type_of_their_size():
    layout = Layout.row_major(data_type("F32"), (1,))

    assert layout.view(b"\x00\x00\x80\x7f", np.dtype("<u4")).tolist() == [0x7F800000]


@pytest.mark.parametrize("cls", OPERATORS, ids=lambda cls: cls.operator_type)
def test_every_operator_of_the_contract_has_a_kernel(cls):
    assert cls in FORMS
