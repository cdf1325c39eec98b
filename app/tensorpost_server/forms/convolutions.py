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

from tensorpost.values.layout import Layout

from .arrays import Array
from .base import Box, Form, Reads, extents, go_on, whole_box
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
    least_slice_work = 0
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
        images, channels, *sizes = self.sizes
        made = xp.zeros((images, self.groups, channels // self.groups, *sizes), wide(xp, x[:0]).dtype)
        parts = wide(xp, x).reshape(images, self.groups, self.channels, *x.shape[2:])
        weights = wide(xp, filters).reshape(self.groups, channels // self.groups, self.channels, *filters.shape[2:])
        spans, head = whole_box(sizes), (slice(None),) * 3
        axes = [
            [*self.window.moves(axis, size, span)]
            for axis, (size, span) in enumerate(zip(x.shape[2:], spans, strict=True))
        ]
        for taps in itertools.product(*axes):
            go_on()
            part = parts[(*head, *[read for _, (read, _) in taps])]
            product = xp.matmul(weights[(*head, *[tap for tap, _ in taps])], part.reshape(*part.shape[:3], -1))
            made[(*head, *[write for _, (_, write) in taps])] += product.reshape(*product.shape[:3], *part.shape[3:])
        return (made.reshape(self.sizes).astype(x.dtype, copy=False),)


def with_bias(xp: ModuleType, x: Any, filters: Any, bias: Any, form: Convolution) -> Any:
    """A convolution and a bias for each channel: the function of an `Array`, float16 rounded once."""
    (made,) = form.compute(xp, [wide(xp, x), filters])
    return add_bias(made, bias)


def add_bias(made: Any, bias: Any) -> Any:
    """What a convolution made, with a bias added to each channel."""
    made += bias.astype(made.dtype, copy=False).reshape(-1, *[1] * (made.ndim - 2))
    return made


def convolution_of(form: Form) -> Convolution | None:
    """The convolution of a form, which may add a bias to it; None of any other form."""
    if isinstance(form, Array) and form.function is with_bias:
        return dict(form.parameters)["form"]
    return form if isinstance(form, Convolution) else None
