"""Windows of images as columns, and columns summed into images.

Sources: the DML_UNFOLD and DML_FOLD pages; ONNX's Col2Im. The pages ask for equal ranks and pair tensors of 3 and 4
dimensions: columns have 3, as DirectML requires, an image as many as it needs. That strides, dilations and windows are
at least 1, and windows lie inside the padded image, is needed by the formula. That strides, dilations and padding are
at most 65535 is CreateOperator's rule (DirectML 1.15.4); the pages are silent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

from ..values.problems import Violation
from .catalogue import pascal_case
from .completion import Given, Inferred, packed
from .fields import UInt, UIntArray, count_of
from .operator_desc import OperatorDesc
from .tensor import BufferTensorDesc

__all__ = ["FoldOperatorDesc", "UnfoldOperatorDesc"]

MOST = 0xFFFF
"""The largest stride, dilation or padding."""

DEFAULTS = {"strides": 1, "dilations": 1, "start_padding": 0, "end_padding": 0}


class _Windows(OperatorDesc):
    """Base of both: an image N, C, spatial, and columns N, C * window elements, windows.

    Attributes:
        input_tensor: tensor to read.
        output_tensor: same DataType.
        dimension_count: spatial dimensions; derived.
        window_sizes: elements of a window along each spatial dimension.
        strides: distance from one window to the next, elements.
        dilations: distance from one element of a window to the next, elements.
        start_padding: elements before the image that windows cover.
        end_padding: elements after it.
        image_field: which tensor is the image; the other one has the columns.
    """

    image_field: ClassVar[str]

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    window_sizes: UIntArray
    dimension_count: UInt = count_of("window_sizes")
    strides: UIntArray
    dilations: UIntArray
    start_padding: UIntArray
    end_padding: UIntArray

    @property
    def image(self) -> tuple[int, ...]:
        """The image's sizes."""
        return getattr(self, self.image_field).sizes

    def windows(self) -> list[int]:
        """How many windows there are along each spatial dimension."""
        return _counted(
            self.image[2:], self.window_sizes, self.strides, self.dilations, self.start_padding, self.end_padding
        )

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """Steps of 1 and no padding where they are left out; columns from an image."""
        window = given.integers("window_sizes")
        defaults = {name: [value] * len(window) for name, value in DEFAULTS.items()}
        yield from defaults.items()
        arrays = [given.integers(name) if given.has(name) else value for name, value in defaults.items()]
        source = given.tensor("input_tensor")
        sizes = source.sizes
        if len(sizes) == 2 + len(window) and all(len(array) == len(window) for array in arrays) and 0 not in arrays[0]:
            sizes = _columns(sizes, window, [max(1, count) for count in _counted(sizes[2:], window, *arrays)])
        if cls.image_field == "input_tensor":
            yield "output_tensor", packed(source.data_type, sizes)

    def operator_rules(self) -> Iterator[Violation]:
        """Types and lengths agree, windows lie inside the padded image, and the columns are as many as they."""
        yield from self.data_type_is(self.input_tensor.data_type, "output_tensor")
        yield from self.count_is_length("dimension_count", "window_sizes")
        spatial, rules = len(self.window_sizes), list[Violation]()
        rules += self.one_entry_per_dimension(*DEFAULTS, rank=spatial)
        for name in ("window_sizes", "strides", "dilations"):
            for axis, value in enumerate(getattr(self, name)):
                if value == 0:
                    where = (pascal_case(name), axis)
                    rules.append(self.broken("zero", where, "must be at least 1", value, "at least 1"))
        for name in DEFAULTS:
            for axis, value in enumerate(getattr(self, name)):
                if value > MOST:
                    where = (pascal_case(name), axis)
                    rules.append(self.broken("too-large", where, "DirectML takes no more", value, f"at most {MOST}"))
        other = "output_tensor" if self.image_field == "input_tensor" else "input_tensor"
        for name, rank in ((self.image_field, 2 + spatial), (other, 3)):
            sizes: tuple[int, ...] = getattr(self, name).sizes
            if len(sizes) != rank:
                message = f"with {spatial} spatial dimensions this tensor has {rank} dimensions, not {len(sizes)}"
                where = (pascal_case(name), "Sizes")
                rules.append(self.broken("dimension-count", where, message, list(sizes), f"{rank} dimensions"))
        yield from rules
        if rules:
            return
        counts = self.windows()
        for axis, count in enumerate(counts):
            if count < 1:
                message, value = "the window is larger than the padded image", self.window_sizes[axis]
                yield self.broken("window", ("WindowSizes", axis), message, value, "a window inside the padded image")
        if min(counts) >= 1:
            wanted = _columns(self.image, self.window_sizes, counts)
            ones = [1] * (len(getattr(self, other).sizes) - 3)
            yield from self.sizes_are(
                ones + wanted, "N, channels times window elements, windows", other, code="columns"
            )


def _counted(
    sizes: Sequence[int], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    start: Sequence[int], end: Sequence[int],
) -> list[int]:  # fmt: skip
    """How many windows there are along each spatial dimension; less than 1 where the window is too large."""
    axes = zip(sizes, window, strides, dilations, start, end, strict=True)
    return [(n + a + b - (taps - 1) * dilation - 1) // stride + 1 for n, taps, stride, dilation, a, b in axes]


def _columns(image: Sequence[int], window: Sequence[int], counts: Sequence[int]) -> list[int]:
    return [image[0], image[1] * math.prod(window), math.prod(counts)]


class UnfoldOperatorDesc(_Windows):
    """`DML_OPERATOR_UNFOLD`: makes a column of every window of an image, 0 where it covers the padding."""

    image_field = "input_tensor"


class FoldOperatorDesc(_Windows):
    """`DML_OPERATOR_FOLD`: adds up columns at the places of an image that UNFOLD read; its adjoint.

    The image's sizes do not follow from the columns'. What falls on the padding is dropped.
    """

    image_field = "output_tensor"
