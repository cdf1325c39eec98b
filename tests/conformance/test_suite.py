"""The suite itself: it can fail, it covers what it says, and the lists of known failures say nothing but what is so."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance import suite, test_backends
from tests.conformance.suite import layouts
from tests.support import strategies as ours
from tests.support.batches import each
from tests.support.vectors import Case, VectorsFile, all_hold, cases_of, vectors_files

from tensorpost_server.backends import BACKENDS, HostBackend
from tensorpost_server.backends.null import NullBackend
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import Plan

LISTS = {path.name.removesuffix("-xfails.txt"): path for path in Path(__file__).parent.glob("*-xfails.txt")}


@dataclass
class Spoilt(HostBackend):
    """The numpy backend, with something done to every slice."""

    spoil: Any
    name: str = "spoilt"
    device: str = "cpu"
    threads: int = 2
    block: bytearray = field(default_factory=lambda: bytearray(1000))

    def refusal_reason(self, plan: Plan) -> None:
        del plan

    def start(self, plan: Plan, inputs: Any) -> Any:
        self.run, self.plan, self.inputs = NumpyBackend().start(plan, inputs), plan, inputs
        return self

    def compute(self, index: int) -> memoryview:
        return self.spoil(self, index, self.run.compute(index))

    def close(self) -> None:
        self.run.close()


def last_byte_wrong(spoilt: Spoilt, index: int, block: memoryview) -> memoryview:
    block[-1] ^= 1
    return block


def always_the_first(spoilt: Spoilt, index: int, block: memoryview) -> memoryview:
    return spoilt.run.compute(0) if block.nbytes == spoilt.run.compute(0).nbytes else block


def too_short(spoilt: Spoilt, index: int, block: memoryview) -> memoryview:
    return block[:-1]


def one_block_for_all(spoilt: Spoilt, index: int, block: memoryview) -> memoryview:
    spoilt.block[: block.nbytes] = block
    return memoryview(spoilt.block)[: block.nbytes]


def writes_to_its_input(spoilt: Spoilt, index: int, block: memoryview) -> memoryview:
    spoilt.inputs[0][0] ^= 1
    return block


def nans_made_quiet(spoilt: Spoilt, index: int, block: memoryview) -> memoryview:
    floats = block.cast("I")
    for at, bits in enumerate(floats):
        if bits & 0x7F800000 == 0x7F800000 and bits & 0x7FFFFF:
            floats[at] = bits | 0x400000
    return block


def swapped(spoilt: Spoilt, index: int, block: memoryview) -> memoryview:
    """Slices in another order: the second output in the place of the first."""
    count = len(spoilt.plan.slices)
    other = spoilt.run.compute(count - 1 - index)
    return other if other.nbytes == block.nbytes else block


def one_unit_off(spoilt: Spoilt, index: int, block: memoryview) -> memoryview:
    floats = np.frombuffer(block, np.float32).copy()
    floats[0] = np.nextafter(np.float32(np.nextafter(np.float32(np.nextafter(floats[0], 9)), 9)), 9)
    return floats.view(np.uint8).data


CASES = {f"{file}: {case}": case for file in vectors_files() for case in file.cases}
CASES |= {case.name: case for case in layouts()}


@pytest.mark.parametrize(
    ("spoil", "case"),
    [
        (last_byte_wrong, "tile: whole copies, not repeated elements"),
        (always_the_first, "tile: both dimensions, twice"),
        (too_short, "tile: repeats of 1 copy"),
        (one_block_for_all, "tile: both dimensions, twice"),
        (writes_to_its_input, "tile: eight dimensions"),
        (
            nans_made_quiet,
            "tile: float32: -0.0, infinity, a subnormal, a quiet NaN with a payload, a signalling NaN, a negative one",
        ),
        (nans_made_quiet, "element_wise_if: every bit of a NaN passes, of signalling ones too"),
        (swapped, "split: page, example 2"),
        (one_unit_off, "element_wise_exp: numbers"),
        (last_byte_wrong, "nonzero_coordinates: row-major order of the coordinates"),
        (last_byte_wrong, "gemm: A by columns, B with rows apart, an output by columns with a gap"),
    ],
)
def test_a_backend_that_is_wrong_is_found_out(spoil: Any, case: str):
    suite.check_bytes(NumpyBackend(), CASES[case], 12)

    with pytest.raises(AssertionError):
        suite.check_bytes(Spoilt(spoil), CASES[case], 12)


@pytest.mark.parametrize("case", layouts()[::35], ids=str)
def test_zeros_are_not_enough(case: Case):
    with pytest.raises(AssertionError):
        suite.check_bytes(NullBackend(), case)


@each("file", vectors_files(), ids=str)
def test_a_file_holds_a_case_whose_answer_is_not_zeros(file: VectorsFile):
    with pytest.raises(AssertionError, match="cases failed"):
        all_hold(file.cases, lambda case: suite.check_bytes(NullBackend(), case))


def test_failures_are_named_and_those_that_are_known_must_fail():
    good, bad = cases_of("TILE")[:2]

    def check(case: Case) -> None:
        assert case is good, "different"

    with pytest.raises(AssertionError, match=f"1 cases failed:\n{bad.name}: AssertionError: different"):
        all_hold([good, bad], check)
    all_hold([good, bad], check, {bad.name: "the driver loses it"})
    with pytest.raises(AssertionError, match="passes, but is listed as a known failure: the driver loses it"):
        all_hold([good], check, {good.name: "the driver loses it"})


def test_every_backend_is_in_it_but_null():
    assert {*suite.COMPUTING, "null"} == BACKENDS.keys()


def test_every_type_of_tile_is_in_it():
    types = {case.desc.inputs[0].layout.data_type.directml for case in layouts()}
    assert {*ours.TILE_DATA_TYPES} == types
    assert len(CASES) == len(cases_of()) + len(layouts()), "two cases have one name"


@pytest.mark.parametrize("name", LISTS)
def test_every_known_failure_names_a_backend_a_test_and_a_case(name: str):
    assert name in suite.COMPUTING
    for entry in suite.expected_failures(LISTS[name].read_text()):
        test, _, case = entry.partition(" [")
        assert f"{test}: {case.removesuffix(']')}" in CASES if case else hasattr(test_backends, test)


def test_a_list_of_known_failures_is_read():
    text = "# why\n\ntest_any_tile: the driver loses NaNs\ntile [eight dimensions]: at most five\n"

    assert suite.expected_failures(text) == {
        "test_any_tile": "the driver loses NaNs",
        "tile [eight dimensions]": "at most five",
    }


@pytest.mark.parametrize(
    "text",
    [
        "test_any_tile",
        "test_any_tile:",
        "test_any_tile: todo",
        "all: the driver loses NaNs",
        "test_a: a long reason\n" * 2,
    ],
)
def test_a_list_of_known_failures_without_reasons_is_refused(text: str):
    with pytest.raises(ValueError, match="is no new entry"):
        suite.expected_failures(text)
