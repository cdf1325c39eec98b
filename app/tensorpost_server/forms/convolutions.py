"""Convolutions: a sum over the filter's elements of matrix products over the channels, by the array library.

`Convolution` is a convolution of whole tensors, for which a device may have a library: cuDNN on CUDA.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.values.layout import Layout

from .base import Box, Reads, extents, go_on, whole_box
from .float16 import wide
from .windows import Window


@dataclass(frozen=True, slots=True)
class Convolution:
    """The cross-correlation of an input with filters, all of it together; the inputs are these two.

    Attributes:
        window: the window, over the spatial dimensions.
        groups: how many groups of channels there are.
        sizes: the output's sizes.
        channels: channels of a group, which are added up.
    """

    window: Window
    groups: int
    sizes: tuple[int, ...]
    channels: int

    computed_whole = True
    input_sizes = ()
    cut_weight = 1
    reads_again = False
    library = ""
    index_range = None

    def operand(self, layout: Layout, sizes: tuple[int, ...]) -> Layout:
        """See `Form.operand`: as it lies."""
        return layout

    def scratch_bytes(self, box: Box, output: int = 0) -> int:
        """See `Form.scratch_bytes`: a product, and what a tap reads."""
        return 8 * math.prod(self.sizes) * (1 + self.channels * self.groups // self.sizes[1])

    def localized(self, box: Box, output: int = 0) -> None:
        """See `Form.localized`: None."""

    def reads(self, box: Box, output: int = 0) -> tuple[Reads, ...]:
        """See `Form.reads`: all of both inputs."""
        return (None, None)

    def work(self, box: Box, output: int = 0) -> int:
        """See `Form.work`."""
        return 2 * math.prod(extents(box)) * self.channels * math.prod(self.window.taps)

    def fill(self, xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, output: int = 0) -> None:
        """See `Form.fill`; computes everything to give a part."""
        out[...] = self.compute(xp, inputs)[output][tuple([slice(*span) for span in box])]

    def compute(self, xp: ModuleType, inputs: Sequence[Any]) -> Sequence[Any]:
        """The output; float16 is summed in float32 and rounded once."""
        x, filters = inputs
        made = xp.zeros(self.sizes, np.float32 if x.dtype.name == "float16" else x.dtype)
        convolve(xp, x, wide(xp, filters), whole_box(self.sizes), made, self.window, self.groups)
        return (made.astype(x.dtype, copy=False),)


def convolve(
    xp: ModuleType, x: Any, filters: Any, box: Box, made: Any, window: Window, groups: int, widened: Any = wide
) -> None:
    """Add the sums of a box of a cross-correlation to an array of its shape.

    Args:
        xp: the array library.
        x: the input.
        filters: output channels x channels of a group x taps, in the type that is multiplied in; transposed, input
            channels x output channels of a group x taps.
        box: the box of the output.
        made: what is added to, of that type too.
        window: the window, over the spatial dimensions.
        groups: how many groups of channels there are.
        widened: function from `(xp, part)` of the input to the same in that type.
    """
    images, (channel, end), *spans = box
    own = (filters.shape[1] * groups if window.transposed else filters.shape[0]) // groups  # output channels of a group
    count = x.shape[1] // groups
    region = window.region(x.shape[2:], tuple(spans))
    inner = window.inside(region)
    axes = [
        list(inner.moves(axis, high - low, span))
        for axis, ((low, high), span) in enumerate(zip(region, spans, strict=True))
    ]
    every = (slice(None), slice(None))
    for group in range(channel // own, -(-end // own)):
        low, high = max(channel, group * own), min(end, (group + 1) * own)
        inside = slice(group * count, (group + 1) * count)
        source = widened(xp, x[(slice(*images), inside, *[slice(*span) for span in region])])
        mine = slice(low - group * own, high - group * own)
        weights = filters[inside, mine].swapaxes(0, 1) if window.transposed else filters[low:high]
        target = made[:, low - channel : high - channel]
        for taps in itertools.product(*axes):
            go_on()
            part = source[(*every, *[read for _, (read, _) in taps])]
            product = xp.matmul(weights[(*every, *[tap for tap, _ in taps])], part.reshape(*part.shape[:2], -1))
            target[(*every, *[write for _, (_, write) in taps])] += product.reshape(-1, high - low, *part.shape[2:])
