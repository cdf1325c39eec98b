"""Data that decide what is read or written: indices, lengths, regions and places out of every range.

Expected elements are worked out here with Python's integers, from the operators' pages. Memory is watched by the
system: inputs end, and begin, at pages that nobody may touch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.http_app import FRAME, assert_problem, frame_bytes, http_app
from tests.support.index_cases import ADDRESSING, INDEXED, drawn_case, hostile_vectors
from tests.support.vectors import Case, elements

from tensorpost.descriptors import parse_operator
from tensorpost.descriptors.catalogue import facts_of, operator_names
from tensorpost.values.problems import InvalidDescriptor
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import make_plan

Array = NDArray[Any]
CASES = 40  # of each operator


def computed(case: Case) -> list[Array]:
    """The outputs, by NumPy."""
    plan = make_plan(case.desc, 1 << 20)
    memory = [memoryview(data) for data in case.inputs]
    plan.check_indices(memory)
    run = NumpyBackend().start(plan, memory)
    answer = b"".join([bytes(run.compute(index)) + bytes(piece.padding) for index, piece in enumerate(plan.slices)])
    run.close()
    return [elements(slot, part) for slot, part in zip(case.desc.outputs, case.split(answer), strict=True)]


def place(index: int, length: int) -> int:
    """From the end where it is negative; possibly outside."""
    return index + length if index < 0 else index


def inside(index: int, length: int) -> int:
    """The nearest element."""
    return min(max(place(index, length), 0), length - 1)


def moved(at: tuple[int, ...], axis: int, index: int) -> tuple[int, ...]:
    return (*at[:axis], index, *at[axis + 1 :])


# ---- what the pages say, element by element --------------------------------------------------------------------------


def gather_elements(desc: Any, x: Array, indices: Array) -> Array:
    made = np.empty(indices.shape, x.dtype)
    for at in np.ndindex(*indices.shape):
        made[at] = x[moved(at, desc.axis, inside(int(indices[at]), x.shape[desc.axis]))]
    return made


def gather(desc: Any, x: Array, indices: Array) -> Array:
    picked = [inside(int(index), x.shape[desc.axis]) for index in indices.ravel()]
    return np.stack([np.take(x, index, desc.axis) for index in picked], desc.axis).reshape(desc.output_tensor.sizes)


def gather_nd(desc: Any, x: Array, indices: Array) -> Array:
    batch = getattr(desc, "batch_dimension_count", 0)
    x = x.reshape(x.shape[x.ndim - desc.input_dimension_count :])
    indices = indices.reshape(indices.shape[indices.ndim - desc.indices_dimension_count :])
    made: list[Array] = []
    for at in np.ndindex(*indices.shape[:-1]):
        tuple_ = [inside(int(n), size) for n, size in zip(indices[at], x.shape[batch:], strict=False)]
        made.append(x[(*at[:batch], *tuple_)])
    return np.array(made).reshape(desc.output_tensor.sizes)


def scatter_elements(desc: Any, x: Array, indices: Array, updates: Array) -> Array:
    made, length = x.copy(), x.shape[desc.axis]
    for at in np.ndindex(*indices.shape):
        index = place(int(indices[at]), length)
        if 0 <= index < length:
            made[moved(at, desc.axis, index)] = updates[at]
    return made


def scatter_nd(desc: Any, x: Array, indices: Array, updates: Array) -> Array:
    made = x.copy()
    target = made.reshape(x.shape[x.ndim - desc.input_dimension_count :])
    rows = indices.reshape(-1, indices.shape[-1])
    for row, update in zip(rows, updates.reshape(len(rows), -1), strict=True):
        at = [place(int(n), size) for n, size in zip(row, target.shape, strict=False)]
        if all(0 <= n < size for n, size in zip(at, target.shape, strict=False)):
            target[tuple(at)] = update.reshape(target.shape[len(at) :])
    return made


def one_hot(desc: Any, indices: Array, values: Array) -> Array:
    off, on = values.ravel()[:2]
    made = np.full(desc.output_tensor.sizes, off, values.dtype)
    for at in np.ndindex(*indices.shape):
        index = place(int(indices[at]), made.shape[desc.axis])
        if 0 <= index < made.shape[desc.axis]:
            made[moved(at, desc.axis, index)] = on
    return made


def reverse(desc: Any, x: Array, lengths: Array) -> Array:
    made = x.copy()
    for at in np.ndindex(*x.shape):
        count = int(lengths[moved(at, desc.axis, 0)]) % 2**32
        if at[desc.axis] < count:
            made[at] = x[moved(at, desc.axis, min(count - 1 - at[desc.axis], x.shape[desc.axis] - 1))]
    return made


def max_unpooling(desc: Any, x: Array, indices: Array) -> Array:
    made = np.zeros(desc.output_tensor.sizes, x.dtype)
    for value, index in zip(x.ravel(), indices.ravel().tolist(), strict=True):
        if index < made.size:
            made.reshape(-1)[index] = value
    return made


ORACLES: dict[str, Callable[..., Array]] = {
    "GATHER": gather,
    "GATHER_ELEMENTS": gather_elements,
    "GATHER_ND": gather_nd,
    "GATHER_ND1": gather_nd,
    "SCATTER_ELEMENTS": scatter_elements,
    "SCATTER_ND": scatter_nd,
    "ONE_HOT": one_hot,
    "REVERSE_SUBSEQUENCES": reverse,
    "MAX_UNPOOLING": max_unpooling,
}


def same_target_twice(case: Case) -> bool:
    """Whether two updates may meet, where either may win."""
    desc: Any = case.desc
    arrays = {slot.name: elements(slot, data) for slot, data in zip(desc.inputs, case.inputs, strict=True)}
    if desc.name == "SCATTER_ELEMENTS":
        length = desc.input_tensor.sizes[desc.axis]
        lines = np.moveaxis(arrays["indices"], desc.axis, -1).reshape(-1, arrays["indices"].shape[desc.axis])
        rows = [[place(int(index), length) for index in line] for line in lines]
        return any(len(set(row)) < len(row) for row in rows)
    if desc.name == "SCATTER_ND":
        sizes = desc.input_tensor.sizes[len(desc.input_tensor.sizes) - desc.input_dimension_count :]
        rows = arrays["indices"].reshape(-1, arrays["indices"].shape[-1])
        found = [tuple(place(int(n), size) for n, size in zip(row, sizes, strict=False)) for row in rows]
        return len(set(found)) < len(found)
    if desc.name == "MAX_UNPOOLING":
        found = [index for index in arrays["indices"].ravel().tolist() if index < np.prod(desc.output_tensor.sizes)]
        return len(set(found)) < len(found)
    return False


@pytest.mark.parametrize("operator", ORACLES)
def test_indices_out_of_range_read_and_write_what_the_pages_say(operator: str) -> None:
    compared = 0
    for seed in range(CASES):
        case = drawn_case(np.random.default_rng([seed, 1]), operator)
        if same_target_twice(case):
            continue
        arrays = [elements(slot, data) for slot, data in zip(case.desc.inputs, case.inputs, strict=True)]
        (found,) = computed(case)
        wanted = ORACLES[operator](case.desc, *arrays)
        assert found.tobytes() == wanted.tobytes(), (seed, case, case.inputs)
        compared += 1
    assert compared >= 5


def test_every_operator_with_an_input_of_indices_is_in_the_table() -> None:
    """Found by the names of the catalogue's fields, so that an operator of the next DirectML is not forgotten."""
    words = ("indices", "lengths", "roi", "mask")
    named = {
        name
        for name in operator_names()
        for field in facts_of(name).fields
        if field.kind == "input" and any(word in field.attribute_name for word in words)
    }
    assert named <= ADDRESSING.keys(), named - ADDRESSING.keys()
    assert len(named) >= 15


# ---- memory ----------------------------------------------------------------------------------------------------------

_GUARDED = """
import ctypes, mmap, os, sys
import numpy as np
from tests.support.index_cases import INDEXED, drawn_case
from tensorpost.problems import InvalidDescriptor
from tensorpost_server.backends import load_backend
from tensorpost_server.planning import make_plan

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
kept = []

def guarded(data, at_end):
    "Memory before or behind which is a page that nobody may touch."
    size = -(-len(data) // PAGE) * PAGE or PAGE
    block = mmap.mmap(-1, size + 2 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    start = PAGE + (size - len(data) if at_end else 0)
    block[start : start + len(data)] = data
    for guard in (address, address + PAGE + size):
        assert libc.mprotect(ctypes.c_void_p(guard), PAGE, 0) == 0
    kept.append(block)
    return memoryview(block)[start : start + len(data)]

try:
    backend = load_backend(sys.argv[1])()
except (ImportError, RuntimeError) as error:  # without Numba, or its kernels
    print(error, flush=True)
    os._exit(77)
ran = refused = 0
for number, operator in enumerate(INDEXED):
    for seed in range(int(sys.argv[2])):
        case = drawn_case(np.random.default_rng([seed, number, 3]), operator)
        plan = make_plan(case.desc, 1 << 20)
        if backend.refusal_reason(plan) is not None:
            continue
        memory = [guarded(data, seed % 2 == 0) for data in case.inputs]
        try:
            plan.check_indices(memory)
        except InvalidDescriptor:
            refused += 1
            continue
        run = backend.start(plan, memory)
        for index in range(len(plan.slices)):
            run.compute(index)
        run.close()
        ran += 1
        if len(kept) > 2000:
            del memory, run
            kept.clear()
print(ran, refused, flush=True)
os._exit(0)  # without giving back pages that arrays may still name
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected by Linux's mprotect")
@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_nothing_is_read_before_or_behind_an_input(backend: str) -> None:
    command = [sys.executable, "-c", _GUARDED, backend, "6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == 77:
        pytest.skip(f"the backend {backend} cannot be opened here: {done.stdout.strip()}")
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    ran, refused = map(int, done.stdout.split())
    assert ran > 3 * len(INDEXED)
    assert refused > 5


@pytest.mark.parametrize("operator", ADDRESSING)
def test_vectors_with_hostile_data_are_computed(operator: str) -> None:
    """No exception but a named refusal, in slices of a few bytes too."""
    random = np.random.default_rng(5)
    for slice_bytes in (1 << 20, 16):
        for case in hostile_vectors(random, operator):
            plan = make_plan(case.desc, slice_bytes)
            run = NumpyBackend().start(plan, [memoryview(data) for data in case.inputs])
            for index, piece in enumerate(plan.slices):
                assert run.compute(index).nbytes == piece.computed
            run.close()


# ---- places that float32 rounds --------------------------------------------------------------------------------------


def regions_on(width: int, mode: str, reduction: str) -> dict[str, Any]:
    """A ROI_ALIGN1 on an image of one row that is a single element in memory."""
    return {
        "InputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 1, width], "Strides": [0, 0, 0, 0]},
        "ROITensor": {"DataType": "FLOAT32", "Sizes": [2, 4]},
        "BatchIndicesTensor": {"DataType": "UINT32", "Sizes": [2]},
        "OutputTensor": {"DataType": "FLOAT32", "Sizes": [2, 1, 1, 2]}, "ReductionFunction": reduction,
        "InterpolationMode": mode, "SpatialScaleX": 1, "SpatialScaleY": 1, "InputPixelOffset": 0.5,
        "OutputPixelOffset": -0.5, "OutOfBoundsInputValue": 0, "MinimumSamplesPerOutput": 1,
        "MaximumSamplesPerOutput": 1, "AlignRegionsToCorners": False,
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["NEAREST_NEIGHBOR", "LINEAR"])
@pytest.mark.parametrize("reduction", ["AVERAGE", "MAX"])
@pytest.mark.parametrize("width", [2**23 + 2, 2**24 + 4, 2**25 + 4])
def test_a_sample_on_the_last_element_of_a_long_axis_is_that_element(mode: str, reduction: str, width: int) -> None:
    """float32 rounds its place to the element behind it, which there is not."""
    desc = parse_operator({"type": "ROI_ALIGN1", "desc": regions_on(width, mode, reduction)}, complete=True)
    rois = np.array([[width - 3, 0, width + 1, 1], [width - 2, 0, width, 1]], np.float32)
    inputs = (np.ones(1, np.float32).tobytes(), rois.tobytes(), bytes(8))

    (found,) = computed(Case("the last elements", desc, inputs, b""))

    assert found.min() >= 0
    assert found.max() <= 1


# ---- over HTTP -------------------------------------------------------------------------------------------------------


def test_an_index_outside_is_an_answer_over_http_and_in_onnx_a_named_refusal() -> None:
    indices = np.array([2**63 - 1, -(2**63)], np.int64).tobytes()
    frame = frame_bytes(
        {"input": ("F32", [3], np.array([1, 2, 3], np.float32).tobytes()), "indices": ("I64", [2], indices)}, {}
    )
    node = frame_bytes(
        {"data": ("F32", [3], np.array([1, 2, 3], np.float32).tobytes()), "indices": ("I64", [2], indices)}, {}
    )
    with http_app() as client:
        answer = client.post("/v1/operators/gather?axis=0", frame, {**FRAME, "accept": "application/x-npy"})
        refused = client.post("/v1/onnx/Gather?opset=18", node, FRAME)

    assert answer.status_code == 200, answer.content
    assert np.frombuffer(answer.content[-8:], np.float32).tolist() == [3, 1]
    problem = assert_problem(refused, 422, "invalid-descriptor")
    assert problem["violations"][0]["code"] == "index-out-of-bounds"


def test_a_region_on_the_last_elements_of_a_long_axis_is_an_answer_over_http() -> None:
    """Less than a kilobyte of request: the image is one element in memory."""
    width = 2**23 + 2
    rois = np.array([[width - 3, 0, width + 1, 1], [width - 2, 0, width, 1]], np.float32)
    tensors = {
        "input": ("U8", [4], np.ones(1, np.float32).tobytes()), "roi": ("F32", [2, 4], rois.tobytes()),
        "batch_indices": ("U32", [2], bytes(8)),
    }  # fmt: skip
    operation = {"type": "ROI_ALIGN1", "desc": regions_on(width, "NEAREST_NEIGHBOR", "AVERAGE")}
    body = frame_bytes(tensors, {"op": json.dumps(operation)})
    assert len(body) < 1024
    with http_app() as client:
        answer = client.post("/v1/operators/roi_align1?backend=numpy", body, FRAME)

    assert answer.status_code == 200, answer.content
    assert np.frombuffer(answer.content[-16:], np.float32).tolist() == [1, 1, 1, 1]


def test_onnx_refuses_before_it_computes() -> None:
    outcomes = set[str]()
    for operator in set(INDEXED) - ADDRESSING.keys():
        for seed in range(CASES):
            try:
                computed(drawn_case(np.random.default_rng([seed, 2]), operator))
                outcomes.add("computed")
            except InvalidDescriptor as error:
                outcomes.add(error.violations[0].code)
    assert outcomes == {"computed", "index-out-of-bounds"}
