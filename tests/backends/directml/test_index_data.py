"""No index that a caller sends makes DirectML read or write outside: what is bound is looked at, byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.fake_directml import FakeWindows
from tests.support.index_cases import drawn_case
from tests.support.vectors import Case, cases_of, elements

from tensorpost.descriptors import parse_operator
from tensorpost.values.problems import InvalidDescriptor
from tensorpost_server.backends.directml import DirectmlBackend
from tensorpost_server.planning import make_plan

READING = ("GATHER", "GATHER_ELEMENTS", "GATHER_ND", "GATHER_ND1", "ROI_POOLING", "ROI_ALIGN", "ROI_ALIGN1")
WRITING = ("SCATTER_ELEMENTS", "SCATTER_ND", "MAX_UNPOOLING", "ROI_ALIGN_GRAD")


def bound(case: Case) -> tuple[bytes, list[bytes]]:
    """The answer, and the bytes of each input as the device sees them."""
    windows = FakeWindows()
    made = DirectmlBackend(libraries=windows.libraries())
    plan = make_plan(case.desc, 1 << 20)
    try:
        run = made.start(plan, [memoryview(data) for data in case.inputs])
        answer = b"".join([bytes(run.compute(index)) for index in range(len(plan.slices))])
        run.close()
    finally:
        made.close()
    return answer, windows.bound


def outside(case: Case, inputs: list[bytes] | tuple[bytes, ...]) -> list[int | float]:
    """The indices that name no element, in Python's numbers, from the operators' pages."""
    desc: Any = case.desc
    arrays = {slot.name: elements(slot, data) for slot, data in zip(desc.inputs, inputs, strict=True)}
    name = desc.name
    if name.startswith("ROI"):
        batch = (desc.input_tensor or desc.output_gradient_tensor).sizes[0]
        held = arrays["roi"][..., 0] if name == "ROI_POOLING" else arrays["batch_indices"]
        return [index for index in held.ravel().tolist() if not 0 <= index < batch]
    if name == "MAX_UNPOOLING":
        return [index for index in arrays["indices"].ravel().tolist() if index >= np.prod(desc.output_tensor.sizes)]
    if "ND" in name:
        sizes = desc.input_tensor.sizes[len(desc.input_tensor.sizes) - desc.input_dimension_count :]
        sizes = sizes[getattr(desc, "batch_dimension_count", 0) :]
        rows = arrays["indices"].reshape(-1, desc.indices_tensor.sizes[-1]).tolist()
        pairs = [pair for row in rows for pair in zip(row, sizes, strict=False)]
    else:
        pairs = [(index, desc.input_tensor.sizes[desc.axis]) for index in arrays["indices"].ravel().tolist()]
    return [index for index, length in pairs if not -length <= index < length]


@pytest.mark.parametrize("operator", READING)
def test_operators_that_read_get_the_nearest_index_inside(operator: str) -> None:
    hostile = 0
    cases = [drawn_case(np.random.default_rng([seed, 7]), operator) for seed in range(30)] + cases_of(operator)
    for case in cases:
        hostile += bool(outside(case, case.inputs))
        _, inputs = bound(case)
        inputs = [data[: len(whole)] for data, whole in zip(inputs, case.inputs, strict=True)]
        assert outside(case, inputs) == [], case
    assert hostile > 5


@pytest.mark.parametrize("operator", WRITING)
def test_operators_that_write_are_refused_an_index_outside(operator: str) -> None:
    refused = accepted = 0
    for seed in range(40):
        case = drawn_case(np.random.default_rng([seed, 7]), operator)
        found = outside(case, case.inputs)
        try:
            _, inputs = bound(case)
        except InvalidDescriptor as error:
            (violation,) = error.violations
            assert violation.code == "index-out-of-bounds"
            assert violation.value in found, case
            refused += 1
        else:
            inputs = [data[: len(whole)] for data, whole in zip(inputs, case.inputs, strict=True)]
            assert found == outside(case, inputs) == [], case
            accepted += 1
    assert refused > 5 < accepted


@pytest.mark.parametrize("operator", [*READING, *WRITING])
def test_indices_inside_reach_directml_as_they_are(operator: str) -> None:
    for case in cases_of(operator):
        if not outside(case, case.inputs) and not any(b"\xff" in data for data in case.inputs):  # no negative ones
            _, inputs = bound(case)
            for data, whole in zip(inputs, case.inputs, strict=True):
                assert data.rstrip(b"\0") == whole.rstrip(b"\0"), case


def test_elements_that_share_memory_and_would_differ_are_refused() -> None:
    indices = {"DataType": "INT32", "Sizes": [2, 2], "Strides": [1, 1]}
    fields = {
        "InputTensor": {"DataType": "FLOAT32", "Sizes": [5, 2]}, "IndicesTensor": indices, "InputDimensionCount": 2,
        "IndicesDimensionCount": 2, "OutputTensor": {"DataType": "FLOAT32", "Sizes": [1, 2]},
    }  # fmt: skip
    desc = parse_operator({"type": "GATHER_ND", "desc": fields}, complete=True)
    numbers = np.array([0, 4, 0], np.int32).tobytes().ljust(desc.inputs[1].layout.size_in_bytes, b"\0")

    with pytest.raises(InvalidDescriptor, match="elements of indices share memory"):
        bound(Case("columns of different lengths", desc, (bytes(40), numbers), b""))


def test_what_is_refused_is_named() -> None:
    fields = {
        "InputTensor": {"DataType": "UINT8", "Sizes": [2, 3]},
        "IndicesTensor": {"DataType": "INT64", "Sizes": [2, 1]},
        "UpdatesTensor": {"DataType": "UINT8", "Sizes": [2, 1]},
        "Axis": 1,
    }
    desc = parse_operator({"type": "SCATTER_ELEMENTS", "desc": fields}, complete=True)
    numbers = np.array([-3, 2**40], np.int64).tobytes()

    with pytest.raises(
        InvalidDescriptor,
        match=r"indices\[1, 0\] is 1099511627776, but there are 3 elements; valid here: -3 to 2; DirectML",
    ):
        bound(Case("beyond 32 bits", desc, (bytes(8), numbers, bytes(4)), b""))
