"""Division by multiplication, loops and how axes are cut: all of it plain numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tensorpost_server.backends.cuda import geometry
from tensorpost_server.backends.cuda.geometry import ByteLoop, divide, merged, reciprocal


def test_division_by_every_small_number_of_every_small_number():
    numbers = np.arange(1 << 12, dtype=np.uint64)
    for divisor in range(1, 1 << 10):
        magic, shift = reciprocal(divisor)
        quotient = ((numbers * np.uint64(magic) >> np.uint64(32)) + numbers) >> np.uint64(shift)
        assert (quotient == numbers // np.uint64(divisor)).all()


@given(divisor=st.integers(1, 2**31 - 1), quotient=st.integers(0, 2**31 - 1))
@example(divisor=2**31 - 1, quotient=1)
@example(divisor=2**30 + 1, quotient=1)
@settings(max_examples=1000, deadline=None)
def test_division_around_every_multiple(divisor: int, quotient: int):
    magic, shift = reciprocal(divisor)
    assert 0 < magic < 2**32

    for number in (divisor * quotient - 1, divisor * quotient, divisor * quotient + 1, 2**31 - 1):
        if 0 <= number < 2**31:
            assert divide(number, magic, shift) == number // divisor


@pytest.mark.parametrize("divisor", [0, -1, 2**31])
def test_what_a_kernel_cannot_divide_by_is_refused(divisor: int):
    with pytest.raises(ValueError, match="divides by 1 to"):
        reciprocal(divisor)


def offsets(loops: list[ByteLoop]) -> list[tuple[int, int]]:
    """Output and input offset of every turn, in the order of the output's memory."""
    turns = itertools.product(*(range(loop.extent) for loop in loops))
    found = [
        (
            sum(i * loop.target for i, loop in zip(turn, loops, strict=True)),
            sum(i * loop.source for i, loop in zip(turn, loops, strict=True)),
        )
        for turn in turns
    ]
    return sorted(found)


@given(
    st.lists(
        st.builds(ByteLoop, st.integers(1, 4), st.sampled_from([1, 2, 4, 8, 16, 64]), st.sampled_from([0, 1, 2, 4, 8])),
        max_size=5,
    )
)
@settings(max_examples=300, deadline=None)
def test_merged_loops_copy_the_same(loops: list[ByteLoop]):
    assert offsets(merged(loops)) == offsets(loops)


@pytest.mark.parametrize(
    ("loops", "count"),
    [
        ([ByteLoop(2, 12, 12), ByteLoop(3, 4, 4)], 1),
        ([ByteLoop(3, 4, 4), ByteLoop(2, 12, 12)], 1),  # the order of the axes does not matter, memory's does
        ([ByteLoop(2, 12, 0), ByteLoop(3, 4, 0)], 1),
        ([ByteLoop(2, 12, 0), ByteLoop(3, 4, 4)], 2),
        ([ByteLoop(2, 16, 12), ByteLoop(3, 4, 4)], 2),
        ([ByteLoop(1, 5, 7)], 0),
    ],
)
def test_loops_are_merged_where_both_sides_follow(loops: list[ByteLoop], count: int):
    assert len(merged(loops)) == count


@given(numbers=st.lists(st.integers(-(2**40), 2**40), max_size=5))
@settings(max_examples=200, deadline=None)
def test_alignment_divides_everything(numbers: list[int]):
    found = geometry.alignment(numbers)

    assert found in (1, 2, 4, 8, 16)
    assert all(number % found == 0 for number in numbers)
    assert found == 16 or any(number % (2 * found) for number in numbers)
