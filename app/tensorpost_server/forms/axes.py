"""Axis maps: which entries of an input axis each output reads, and with what weights.

A map is a value and computes nothing. `separable.py` runs it on arrays; backends with kernels of their own make their
tables of the same taps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .base import Box, BoxForm, Reads, extents

Taps = tuple[NDArray[np.int64], NDArray[np.floating[Any]] | None]


class AxisMap(Protocol):
    """How one output axis reads its input axis: a frozen, hashable, picklable value."""

    @property
    def input_size(self) -> int:
        """Entries of the input axis."""
        ...

    @property
    def output_size(self) -> int:
        """Entries of the output axis."""
        ...

    def most_taps(self, start: int, stop: int) -> int:
        """An upper bound of the k that `taps(start, stop)` would return, found without computing the taps."""
        ...

    def taps(self, start: int, stop: int) -> Taps:
        """The taps of outputs start to stop - 1, as NumPy arrays.

        Returns:
            Indices of shape (k, stop - start), each in [0, input_size), and weights of that shape. Weights of None mean
            a pure gather with k = 1. A tap of weight 0 is absent: its sample is not read, be it infinite or NaN. But
            for absent ones, the taps of an output must not depend on start and stop.
        """
        ...


@runtime_checkable
class CountsReads(Protocol):
    """An axis map whose outputs have very different numbers of taps, so that the maximum is a poor bound of all."""

    @property
    def most_reads(self) -> int:
        """An upper bound of the taps of all outputs together, found without computing any."""
        ...


@runtime_checkable
class Windowed(AxisMap, Protocol):
    """An axis map whose outputs may have more taps than fit into memory; taps can be computed a part at a time."""

    def widest(self) -> int:
        """An upper bound of the taps of one output, found without computing all; at most `input_size`."""
        ...

    def reach(self, start: int, stop: int) -> tuple[int, int]:
        """A half-open range of input indices that holds all taps of outputs start to stop - 1."""
        ...

    def readers(self, low: int, high: int) -> tuple[int, int]:
        """A half-open range of outputs that holds all with a tap in [low, high)."""
        ...

    def taps_within(self, start: int, stop: int, low: int, high: int) -> Taps:
        """The taps of outputs start to stop - 1 that lie in [low, high), with the weights that `taps` gives them."""
        ...


AXES_WEIGHT = 8
"""The cut weight of an element whose weight is computed too, for wide filters and gradients: 4 to 40 ns each."""


@dataclass(frozen=True, slots=True)
class AxesForm(BoxForm):
    """Base of forms of one input that is read along every axis through a map.

    Attributes:
        axes: one map per dimension; None copies that axis, index by index.
    """

    axes: tuple[AxisMap | None, ...]

    cut_weight = AXES_WEIGHT

    def reads(self, box: Box, output: int = 0) -> tuple[Reads, ...]:
        """See `Form.reads`: the box of the input that holds all taps."""
        return (
            tuple([span if axis is None else _reach(axis, *span) for axis, span in zip(self.axes, box, strict=True)]),
        )

    def work(self, box: Box, output: int = 0) -> int:
        """See `Form.work`: the taps that are read, axis after axis in any order."""
        sizes = extents(box)
        if 0 in sizes:
            return 0
        larger = [max(size, axis.input_size) if axis else size for axis, size in zip(self.axes, sizes, strict=True)]
        whole = math.prod(larger)
        work = math.prod(sizes)
        for axis, size, large in zip(self.axes, sizes, larger, strict=True):
            if axis is not None:
                reads = axis.most_reads if isinstance(axis, CountsReads) else axis.most_taps(0, size) * size
                work += reads * (whole // large)
        return work


def _reach(axis: AxisMap, start: int, stop: int) -> tuple[int, int]:
    if start >= stop:
        return 0, 0
    if isinstance(axis, Windowed):
        return axis.reach(start, stop)
    indices = axis.taps(start, stop)[0]
    return int(indices.min()), int(indices.max()) + 1
