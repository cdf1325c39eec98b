"""The suite itself: it can fail, it covers what it says, and the lists of known failures say nothing but what is so."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import suite, test_backends
from tests.support import strategies as ours

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

    def refuses(self, plan: Plan) -> None:
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


CASES = {case.name: case for case in (*test_backends.VECTORS, *test_backends.LAYOUTS)}


@pytest.mark.parametrize(
    ("spoil", "case"),
    [
        (last_byte_wrong, "whole copies, not repeated elements"),
        (always_the_first, "both dimensions, twice"),
        (too_short, "repeats of 1 copy"),
        (one_block_for_all, "both dimensions, twice"),
        (writes_to_its_input, "eight dimensions"),
        (
            nans_made_quiet,
            "float32: -0.0, infinity, a subnormal, a quiet NaN with a payload, a signalling NaN, a negative one",
        ),
    ],
)
def test_a_backend_that_is_wrong_is_found_out(spoil: Any, case: str):
    suite.check_bytes(NumpyBackend(), CASES[case], 12)

    with pytest.raises(AssertionError):
        suite.check_bytes(Spoilt(spoil), CASES[case], 12)


@pytest.mark.parametrize("case", test_backends.LAYOUTS[::35], ids=str)
def test_zeros_are_not_enough(case: suite.Case):
    with pytest.raises(AssertionError):
        suite.check_bytes(NullBackend(), case)


def test_every_backend_is_in_it_but_null():
    assert {*suite.COMPUTING, "null"} == BACKENDS.keys()


def test_every_type_of_tile_is_in_it():
    assert {*ours.TILE_DATA_TYPES} == {case.desc.input_tensor.data_type.name for case in test_backends.LAYOUTS}
    assert len(CASES) == len(test_backends.VECTORS) + len(test_backends.LAYOUTS), "two cases have one name"


@pytest.mark.parametrize("name", LISTS)
def test_every_known_failure_names_a_backend_a_test_and_a_case(name: str):
    assert name in suite.COMPUTING
    for entry in suite.expected_failures(LISTS[name].read_text()):
        test, _, case = entry.partition(" [")
        assert hasattr(test_backends, test)
        assert not case or case.removesuffix("]") in CASES


def test_a_list_of_known_failures_is_read():
    text = (
        "# why\n\ntest_any_tile: the driver loses NaNs\ntest_vectors_worked_by_hand [eight dimensions]: at most five\n"
    )

    assert suite.expected_failures(text) == {
        "test_any_tile": "the driver loses NaNs",
        "test_vectors_worked_by_hand [eight dimensions]": "at most five",
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
