"""Separable resampling on arrays: every output axis reads its input axis through a few taps, one axis after the other.

DML Resample, its gradients and ONNX Resize all are of this form; they differ in their `AxisMap`s only. A kernel fills any
box of the output and reads only the part of the input that the box needs.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .base import Box

__all__ = ["AxisMap", "Rounding", "SeparableKernel", "Taps"]

Taps = tuple[NDArray[np.int64], NDArray[np.floating[Any]] | None]


class AxisMap(Protocol):
    """How one output axis reads its input axis: a frozen, hashable, picklable value.

    Attributes:
        input_size: entries of the input axis.
        output_size: entries of the output axis.
        max_taps: the most taps any output has; bounds what one call of `taps` may return.
    """

    @property
    def input_size(self) -> int: ...

    @property
    def output_size(self) -> int: ...

    @property
    def max_taps(self) -> int: ...

    def taps(self, start: int, stop: int) -> Taps:
        """The taps of outputs start to stop - 1.

        Returns:
            Indices of shape (k, stop - start), each in [0, input_size), and weights of that shape. Weights of None mean
            a pure gather with k = 1. A tap of weight 0 is absent: its sample is not read, be it infinite or NaN. The
            taps of one output must not depend on start and stop, but for absent ones.
        """
        ...


class Rounding(enum.Enum):
    """How sums become elements of the output's type."""

    NONE = "none"
    """Cast once; for floating point outputs, to nearest even."""
    TRUNCATE = "truncate"
    """Toward zero, then saturate; for integers."""
    NEAREST_EVEN = "nearest-even"
    """To the nearest integer, ties to even, then saturate; for integers."""


@dataclass(frozen=True, slots=True)
class SeparableKernel:
    """Resample every axis through its map.

    Attributes:
        axes: one map per dimension; None copies that axis, index by index.
        accumulate: dtype of sums and weights, `float32` or `float64`.
        rounding: how sums become elements; has no effect where every axis is a pure gather, which copies bit for bit.
        round_each_axis: round after every axis instead of once at the end.
    """

    axes: tuple[AxisMap | None, ...]
    accumulate: str = "float32"
    rounding: Rounding = Rounding.NONE
    round_each_axis: bool = False

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any) -> None:
        """See `Kernel.fill`."""
        (x,) = inputs
        for axis, (mapping, (start, stop)) in enumerate(zip(self.axes, box, strict=True)):
            at = (slice(None),) * axis
            if mapping is None:
                x = x[(*at, slice(start, stop))]
                continue
            indices, weights = mapping.taps(start, stop)
            if weights is None:
                x = xp.take(x, xp.asarray(indices[0]), axis=axis)
                continue
            tail = (1,) * (len(box) - axis - 1)
            total: Any = None
            for index, weight in zip(indices, weights, strict=True):
                w = xp.asarray(weight.astype(self.accumulate)).reshape((-1, *tail))
                part = xp.take(x, xp.asarray(index), axis=axis).astype(self.accumulate)
                part = xp.where(w != 0, part * w, 0)
                total = part if total is None else total + part
            x = total
        if x.dtype != out.dtype and np.dtype(out.dtype).kind in "iu":
            limits = np.iinfo(out.dtype)
            x = xp.clip(xp.trunc(x) if self.rounding is Rounding.TRUNCATE else xp.rint(x), limits.min, limits.max)
        out[...] = x
