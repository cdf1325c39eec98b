"""The Resample family: scale any dimensions by 32-bit factors, with nearest-neighbour or linear interpolation.

Sources: the DML_UPSAMPLE_2D_OPERATOR_DESC, DML_RESAMPLE_OPERATOR_DESC and DML_RESAMPLE1 to DML_RESAMPLE3 pages,
`DirectML.h`, and "DirectML feature level history".

The output's sizes are whatever OutputTensor says: a scale need not be output size / input size. Input that falls beyond
the output is cropped, and output beyond the input repeats the edge. The members differ in fields and in how nearest
rounds the coordinate `x = (o - OutputPixelOffset) / Scale - InputPixelOffset` of output index o:

====================  ==================  ==================================================
operator              offsets             nearest index of x, before clamping to the input
====================  ==================  ==================================================
UPSAMPLE_2D           0.5 and -0.5        floor(x + 0.5)
RESAMPLE              0.5 and -0.5        floor(x + 0.5)
RESAMPLE1             given               floor(x + 0.5)
RESAMPLE2, RESAMPLE3  given               floor(x) for DECREASING, ceil(x) for INCREASING
====================  ==================  ==================================================

The adjoints are in `resample_grad.py`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, ClassVar

from ..values.problems import Violation
from ..values.sentences import named
from .base import Descriptor
from .completion import Given, Inferred, Output, packed
from .fields import UINT_MAX, Bool, CEnum, FloatArray, UInt, count_of
from .operator_desc import OperatorDesc
from .tensor import BufferTensorDesc

__all__ = [
    "AxisDirection",
    "AxisDirectionField",
    "DirectedRounding",
    "ForwardResample",
    "Interpolation",
    "InterpolationMode",
    "PixelOffsets",
    "Resample1OperatorDesc",
    "Resample2OperatorDesc",
    "Resample3OperatorDesc",
    "ResampleFamily",
    "ResampleOperatorDesc",
    "Size2D",
    "Upsample2DOperatorDesc",
]


_SMALLEST_SCALE = 2.0**-23

_SOURCE_OF_SIZES = "the input's with height and width times " + named("ScaleSize")


class InterpolationMode(enum.IntEnum):
    """`DML_INTERPOLATION_MODE`: copy the nearest element, or blend the two neighbours of every axis."""

    NEAREST_NEIGHBOR = 0
    LINEAR = 1


class AxisDirection(enum.IntEnum):
    """`DML_AXIS_DIRECTION`: as a RoundingDirection, INCREASING is ceil and DECREASING is floor."""

    INCREASING = 0
    DECREASING = 1


Interpolation = Annotated[InterpolationMode, CEnum("DML_INTERPOLATION_MODE_")]
AxisDirectionField = Annotated[AxisDirection, CEnum("DML_AXIS_DIRECTION_")]


class Size2D(Descriptor):
    """`DML_SIZE_2D`.

    Attributes:
        width: elements along the last dimension.
        height: elements along the last dimension but one.
    """

    width: UInt
    height: UInt


class ResampleFamily(OperatorDesc):
    """Base of the members with arrays: an entry per dimension in `scales` and, but for RESAMPLE, two pixel offsets.

    Attributes:
        forward_tensors: the names of the fields for the forward operator's input and output.
    """

    forward_tensors: ClassVar[tuple[str, str]] = ("input_tensor", "output_tensor")

    if TYPE_CHECKING:
        scales: FloatArray  # stands after the tensors in each struct

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """What DirectMLX infers.

        An output tensor gets the sizes floor(input size * scale), exact for the 32-bit scale. Scales become output size
        / input size, rounded to 32 bits; offsets become 0.5 (input) and -0.5 (output), or the reverse for a gradient,
        which is the adjoint then. A gradient operator cannot know the size of the forward input from that of the
        forward output, so no tensor is inferred.
        """
        source, target = (given.structure(BufferTensorDesc, name) for name in cls.forward_tensors)
        known = source or target
        if known is not None and issubclass(cls, PixelOffsets):
            input_offset = 0.5 if issubclass(cls, ForwardResample) else -0.5
            yield "input_pixel_offsets", [input_offset] * len(known.sizes)
            yield "output_pixel_offsets", [-input_offset] * len(known.sizes)
        if given.has("scales"):
            scales = given.floats("scales")
        elif source is not None and target is not None:
            pairs = zip(source.sizes, target.sizes, strict=False)
            scales = [out / size if size else 0.0 for size, out in pairs]
            yield "scales", scales
        else:
            return
        if source is not None and issubclass(cls, ForwardResample):
            # What is wrong with a scale or with their count is left for the rules to name.
            scaled = zip(source.sizes, scales, strict=False)
            sizes = [math.floor(size * Fraction(scale)) if scale > 0 else size for size, scale in scaled]
            yield "output_tensor", packed(source.data_type, [*sizes, *source.sizes[len(sizes) :]])

    def operator_rules(self) -> Iterator[Violation]:
        """Every broken rule of the operator's page.

        The pages say nothing of scales that are not positive or very small; DirectML refuses them.
        """
        yield from self.same_type_and_rank()
        yield from self.count_rules("dimension_count" if isinstance(self, PixelOffsets) else "scale_count", "scales")
        if isinstance(self, PixelOffsets):
            yield from self.one_entry_per_dimension("input_pixel_offsets", "output_pixel_offsets")
        for axis, scale in enumerate(self.scales):
            if scale <= 0:
                yield Violation(
                    "scale-not-positive", ("Scales", axis),
                    "every scale must be larger than 0 after rounding to 32 bits", scale, "a finite number above 0",
                    "CreateOperator; the page is silent",
                )  # fmt: skip
            elif scale < _SMALLEST_SCALE:
                yield Violation(
                    "scale-too-small", ("Scales", axis), "every scale must be at least 2^-23, the FLT_EPSILON of C",
                    scale, f"at least {_SMALLEST_SCALE}", "CreateOperator; the page is silent",
                )  # fmt: skip


class ForwardResample(ResampleFamily):
    """Base of the members that scale a tensor.

    Attributes:
        input_tensor: tensor to read.
        output_tensor: same DataType and rank; any sizes: the scaled input is cropped, or its edge repeated, to fit.
        interpolation_mode: NEAREST_NEIGHBOR or LINEAR.
    """

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    interpolation_mode: Interpolation


class PixelOffsets(ResampleFamily):
    """Base of the members with scales and pixel offsets.

    Attributes:
        scales: one factor per dimension, 32-bit, finite and above 0.
        input_pixel_offsets: added to input coordinates before scaling; 0.5 for pixel centres.
        output_pixel_offsets: added after scaling; -0.5 for pixel centres.
        dimension_count: derived; must agree with the arrays if given.
    """

    scales: FloatArray
    input_pixel_offsets: FloatArray
    output_pixel_offsets: FloatArray
    dimension_count: UInt = count_of("scales")


class DirectedRounding(ResampleFamily):
    """Base of the members whose nearest neighbour is rounded as the caller says.

    Attributes:
        rounding_direction: INCREASING (ceil) or DECREASING (floor); LINEAR ignores it. Required, as in the C struct.
    """

    rounding_direction: AxisDirectionField


class Upsample2DOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_UPSAMPLE_2D`: scale the last two dimensions by whole numbers, pixel centres aligned.

    Attributes:
        input_tensor: N, C, H, W or N, C, D, H, W.
        output_tensor: same DataType; the input's sizes with H and W multiplied by the scales.
        scale_size: factors of width and height, each from 1 to UINT_MAX / input size.
        interpolation_mode: NEAREST_NEIGHBOR or LINEAR, which is bilinear in H and W.
    """

    summary: ClassVar[str] = "scales height and width by whole numbers, nearest neighbour or bilinear."

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    scale_size: Size2D
    interpolation_mode: Interpolation

    @property
    def scales(self) -> tuple[float, ...]:
        """One factor per dimension, as RESAMPLE has them; 1 for all but the last two."""
        untouched = (1.0,) * (len(self.input_tensor.sizes) - 2)
        return (*untouched, float(self.scale_size.height), float(self.scale_size.width))

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        source, scale = given.tensor("input_tensor"), given.structure(Size2D, "scale_size")
        if scale is None or len(source.sizes) < 2:
            return
        *untouched, height, width = source.sizes
        products = [height * scale.height, width * scale.width]
        # A product that is too large is the scale's fault, which the rules name.
        legal = len(source.sizes) in (4, 5) and all(0 < product <= UINT_MAX for product in products)
        why = _SOURCE_OF_SIZES if legal else ""
        sizes = [*untouched, *[min(product, UINT_MAX) for product in products]]
        yield Output("output_tensor", source.data_type, sizes, why)

    def operator_rules(self) -> Iterator[Violation]:
        """Every broken rule of the DML_UPSAMPLE_2D_OPERATOR_DESC page."""
        yield from self.same_type_and_rank()
        sizes = self.input_tensor.sizes
        if len(sizes) not in (4, 5):
            yield Violation(
                "dimension-count", ("InputTensor", "Sizes"),
                f"UPSAMPLE_2D takes N, C, H, W or N, C, D, H, W, not {len(sizes)} dimensions", list(sizes),
                "4 or 5 dimensions", self.page(),
            )  # fmt: skip
            return
        for name, scale, size in (
            ("Height", self.scale_size.height, sizes[-2]),
            ("Width", self.scale_size.width, sizes[-1]),
        ):
            most = UINT_MAX // max(1, size)
            if not 0 < scale <= most:
                yield Violation(
                    "scale-size", ("ScaleSize", name),
                    f"{name} must be larger than 0 and at most UINT_MAX / input size, which is {most}", scale,
                    f"1 to {most}", self.page(),
                )  # fmt: skip


class ResampleOperatorDesc(ForwardResample):
    """`DML_OPERATOR_RESAMPLE`: scale any dimensions, pixel centres aligned; nearest rounds halves up.

    Attributes:
        scales: one factor per dimension, 32-bit, finite and above 0.
        scale_count: derived; must agree with `scales` if given.
    """

    summary: ClassVar[str] = "scales any dimensions by factors, nearest neighbour or linear, pixel centres aligned."

    scales: FloatArray
    scale_count: UInt = count_of("scales")


class Resample1OperatorDesc(PixelOffsets, ForwardResample):
    """`DML_OPERATOR_RESAMPLE1`: RESAMPLE with the pixel offsets chosen by the caller; nearest rounds halves up."""

    summary: ClassVar[str] = "scales any dimensions by factors with chosen pixel offsets; nearest rounds halves up."


class Resample2OperatorDesc(PixelOffsets, DirectedRounding, ForwardResample):
    """`DML_OPERATOR_RESAMPLE2`: RESAMPLE1 where nearest takes the floor or the ceiling, with no half added.

    To round halves up as RESAMPLE1 does, use DECREASING and lower every InputPixelOffset by 0.5. (The page says to
    lower OutputPixelOffsets; that shifts by 0.5 / Scale and gives other pixels for most scales.)
    """

    summary: ClassVar[str] = "scales any dimensions by factors with chosen pixel offsets and rounding direction."


class Resample3OperatorDesc(PixelOffsets, DirectedRounding, ForwardResample):
    """`DML_OPERATOR_RESAMPLE3`: RESAMPLE2 that can filter while it shrinks.

    With Antialiased TRUE and LINEAR, an axis with Scale < 0.5 is shrunk as DirectML answers it: by linear steps over
    the powers of two between its sizes (20 to 6 by way of 16 and 8), each with the ratio of its sizes for a scale,
    whatever Scale is, and the descriptor's offsets; where at least half of the elements remain, by one step and another
    one that keeps the size. Every other axis is plain LINEAR.

    Attributes:
        antialiased: default FALSE; NEAREST_NEIGHBOR ignores it.
    """

    summary: ClassVar[str] = "as RESAMPLE2, optionally in steps of halves against aliasing when shrinking."

    antialiased: Bool = False
