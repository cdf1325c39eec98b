"""Where the samples of a region lie along an axis, and what they read: computed on the host, in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Sampling:
    """Where samples are along one axis.

    Attributes:
        scale: factor of the region's coordinates.
        offsets: offset of the input's elements, and that of the output's.
        least: samples of a cell, at least.
        most: samples of a cell, at most.
        corners: whether the first and the last sample lie on the region's ends.
        cells: cells of the grid.
        size: elements of the image along the axis.
        nearest: whether samples take the nearest element.
    """

    scale: float
    offsets: tuple[float, float]
    least: int
    most: int
    corners: bool
    cells: int
    size: int
    nearest: bool

    def samples(self, low: float, high: float, span: tuple[int, int]) -> Samples:
        """The samples of a region's cells inside a span, on the host."""
        begin, extent = low * self.scale, high * self.scale - low * self.scale
        if not math.isfinite(begin) or not math.isfinite(extent):
            none = np.zeros(0, int)
            return Samples(1, none, none, none, np.zeros(0), 1, 0)
        count = min(max(math.ceil(abs(extent) / self.cells), self.least), self.most)
        steps = self.cells * count - self.corners
        step = extent / steps if steps else 0.0
        # One sample alone, of all cells, lies in the middle of its region if samples lie on the corners.
        offset = begin - self.offsets[0] + (extent / 2 if not steps else -self.offsets[1] * step)
        lowest, highest = (0, self.size - 1) if self.corners else (-1, self.size)
        first, last = span[0] * count, span[1] * count
        if step:
            # One more on both sides; what is outside is left out below.
            ends = sorted([(lowest - offset) / step, (highest - offset) / step])
            first, last = max(first, math.floor(ends[0]) - 1), min(last, math.ceil(ends[1]) + 2)
        index = np.arange(first, max(first, last))
        # Rounded, so that a sample on a corner, or halfway between elements, is just there.
        at = (index * step + offset).astype(np.float32)
        inside = ((at >= lowest) if self.corners else (at > lowest)) & (at <= highest)
        before, cell, at = at[inside] < 0, index[inside] // count - span[0], np.clip(at[inside], 0, self.size - 1)
        # Limited once more as integers: beyond 2^23 float32 rounds the last element's place to the one behind it.
        left = np.minimum(np.floor(at + 0.5 * self.nearest).astype(int), self.size - 1)
        right = left if self.nearest else np.where(before, left, np.minimum(left + 1, self.size - 1))
        weight = np.zeros(len(at)) if self.nearest else at - left
        return Samples(count, cell, left, right, weight, steps, self.size - self.corners)

    def most_samples(self, cells: int) -> int:
        """Upper bound of the samples of a region's cells that lie inside the image."""
        return max(cells * self.least, min(cells * self.most, cells + 2 * self.size + 6))


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples along an axis that lie inside the image, by cell: `image[left] * (1 - weight) + image[right] * weight`.

    Attributes:
        count: samples of each cell, those outside as well.
        cell: the cell of each sample, counted from the first of the span.
        left: an element.
        right: the next one; the same at the last element, and where the sample was moved to the first.
        weight: weight of `right`.
        steps: distances between samples in the region.
        extent: length of the image, in elements, or from the first to the last with AlignRegionsToCorners.
    """

    count: int
    cell: Any
    left: Any
    right: Any
    weight: Any
    steps: int
    extent: int

    def pull(self, cell: Any) -> Any:
        """How a cell follows the region's high end, from 0 to 1, as DirectML has it: cells by samples."""
        return cell / self.steps if self.steps else 0.5 + 0 * cell

    def averages(self, xp: ModuleType, cells: int) -> Iterator[tuple[int, Any, Any]]:
        """Each cell that has samples, with an index of the elements that it reads, and the weight of each as float32.

        Elements of no weight are not read: infinity times 0 is NaN.
        """
        for cell, (low, high) in enumerate(self.bounds(cells)):
            if low < high:
                left, right, weight = (array[low:high] for array in (self.left, self.right, self.weight))
                first = int(min(left.min(), right.min()))
                end = int(max(left.max(), right.max())) + 1
                made, read = np.bincount(left - first, 1 - weight, end - first), slice(first, end)
                made += np.bincount(right - first, weight, end - first)
                used = np.flatnonzero(made)
                if len(used) < len(made):
                    made, read = made[used], xp.asarray(used + first)
                yield cell, read, xp.asarray((made / self.count).astype(np.float32))

    def bounds(self, cells: int) -> list[tuple[int, int]]:
        """The first and the last sample of each cell, half open."""
        ends = np.searchsorted(self.cell, np.arange(cells + 1)).tolist()
        return list(itertools.pairwise(ends))

    def share(self, cells: int) -> Any:
        """How much of each cell lies inside the image, from 0 to 1, as float32."""
        return (np.bincount(self.cell, minlength=cells) / self.count).astype(np.float32)

    def taken(self, xp: ModuleType, x: Any, axis: int, part: slice = slice(None)) -> Any:
        """The values at some of the samples, between the elements along an axis."""
        made = xp.take(x, xp.asarray(self.left[part]), axis=axis)
        weight = xp.asarray(self.weight[part].astype(np.float32)).reshape(
            [-1 if at == axis else 1 for at in range(x.ndim)]
        )
        right = xp.take(x, xp.asarray(self.right[part]), axis=axis)
        return xp.where(weight == 0, made, made * (1 - weight) + right * weight)
