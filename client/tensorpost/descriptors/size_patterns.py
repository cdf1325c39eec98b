"""Sizes of tensors as patterns of letters: `"1 D G*H I"` is a tensor of four dimensions, the third G times H."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["shown_pattern", "sizes_by_pattern"]


def sizes_by_pattern(pattern: str, known: Mapping[str, int]) -> list[int]:
    """The sizes, one for each word: sums of products of letters and whole numbers.

    >>> sizes_by_pattern("B 2*H+1", {"B": 3, "H": 5})
    [3, 11]
    """

    def factor(text: str) -> int:
        return known[text] if text.isalpha() else int(text)

    return [
        sum([math.prod(map(factor, term.split("*"))) for term in size.split("+")]) for size in pattern.split()
    ]  # fmt: skip


def shown_pattern(pattern: str, known: Mapping[str, int]) -> str:
    """The pattern for a message, with its letters' values: `{B, 2*H+1} with B = 3, H = 5`."""
    letters = [f"{letter} = {size}" for letter, size in known.items() if letter in pattern]
    return "{" + pattern.replace(" ", ", ") + "}" + (f" with {', '.join(letters)}" if letters else "")
