"""The whole numbers below a straight line, exactly, whatever the line's denominators: a few fractions, then int64."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

MOST_COUNT = 1 << 31  # its square, which int64 holds, is the largest product below


def floors(slope: Fraction, start: Fraction, count: int) -> NDArray[np.int64]:
    """`floor(slope * i + start)` for i from 0 to count - 1.

    Take the i for which `slope * i + start` is the least above its floor, by f, and let t count from there. Every other
    value is at least f above its floor too, so f can be subtracted from all of them and no floor changes: what is left
    is that floor plus `floor(slope * t)`, with |t| < count. Only the fraction of the slope matters now, since the whole
    part adds whole numbers. If p/q is the largest fraction up to it of a denominator up to count, then
    `floor(fraction * t)` is `floor(p * t / q)` for every t from 0 to count: for k the former, k/t is a fraction of such
    a denominator, so it is p/q at most. For t below 0 the same holds of the smallest fraction from it on. These numbers
    are small.

    Args:
        slope: increment from one i to the next.
        start: the line at i = 0.
        count: 1 to `MOST_COUNT`. All results must be well within int64.
    """
    one = math.lcm(slope.denominator, start.denominator)
    whole, part = divmod(int(slope * one), one)
    lowest = _lowest(part, int(start * one) % one, one, count)
    anchor = math.floor(slope * lowest + start)
    if count == 1:
        return np.array([anchor], np.int64)
    (p, q), (p_above, q_above) = _neighbours(Fraction(part, one), count)
    t = np.arange(-lowest, count - lowest)
    values = t * whole + anchor
    values[:lowest] += t[:lowest] * p_above // q_above
    values[lowest:] += t[lowest:] * p // q
    return values


def _lowest(step: int, start: int, one: int, count: int) -> int:
    """The i from 0 to count - 1 where `(step * i + start) % one` is least; step and start are in [0, one).

    From one i that is lower than all before it the next one is as many steps away as it takes to go down, modulo one,
    by no more than what is there. The fewest steps that go up or down by little are found as in Euclid's algorithm.
    """
    place, height = 0, start
    up, rise = 1, step
    down, fall = 1, one - step
    while rise:
        if height < fall:
            needed = -(-(fall - height) // rise)
            if needed * rise > fall:  # even the smallest fall of this kind is too much
                needed = fall // rise
            if needed * rise == fall:
                break  # rise is the greatest common divisor now, and height is less
            down, fall = down + needed * up, fall - needed * rise
        if height >= fall:
            times = min(height // fall, (count - 1 - place) // down)
            place, height = place + times * down, height - times * fall
        if down > count - 1 - place:
            break
        up, rise = up + rise // fall * down, rise % fall
    return place


def _neighbours(number: Fraction, most: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The largest fraction up to a number in [0, 1), and the smallest from it on, of denominators up to `most`."""
    near = number.limit_denominator(most)
    p, q = near.numerator, near.denominator
    if near == number:
        return (p, q), (p, q)
    # Of two neighbours p/q < p'/q' among these fractions, p' q - p q' is 1, and q' is the largest that can be.
    inverse = pow(p, -1, q)
    if near < number:
        other = most - (most + inverse) % q
        return (p, q), ((p * other + 1) // q, other)
    other = most - (most - inverse) % q
    return ((p * other - 1) // q, other), (p, q)
