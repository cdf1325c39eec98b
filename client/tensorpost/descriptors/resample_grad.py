"""The Resample family's gradients: RESAMPLE_GRAD and RESAMPLE_GRAD1, the adjoints of RESAMPLE1 and RESAMPLE2.

Their input is shaped like the forward operator's output, and each offset belongs to the gradient's own tensor: with o an
index of the input gradient, `x = (o - InputPixelOffset) / Scale - OutputPixelOffset` in the output gradient. That is the
forward operator with its two offsets exchanged; the Scale stays the forward one's. The pages say that the offsets are the
forward operator's, but DirectML 1.15.4 computes this (114 probes of both operators, nearest and linear), and TensorFlow's
plugin relies on it: half-pixel centers, forward 0.5 and -0.5, are -0.5 and 0.5 here.

Sources: DirectML itself; the DML_RESAMPLE_GRAD and DML_RESAMPLE_GRAD1 pages, `DirectML.h`, and "DirectML feature level
history".
"""

from __future__ import annotations

from typing import ClassVar

from .fields import FloatArray, UInt, count_of
from .resample import Direction, Interpolation, ResampleFamily
from .tensor import BufferTensorDesc

__all__ = ["ResampleGrad1OperatorDesc", "ResampleGradOperatorDesc"]


class ResampleGradOperatorDesc(ResampleFamily):
    """`DML_OPERATOR_RESAMPLE_GRAD`: the adjoint of RESAMPLE1 with the same scales and the two offsets exchanged.

    Every weight of the forward operator is applied in the opposite direction, and what reaches one element is summed.

    Attributes:
        input_gradient_tensor: shaped like the forward operator's output.
        output_gradient_tensor: shaped like the forward operator's input; same DataType and rank.
        interpolation_mode: the forward operator's.
        scales: the forward operator's: one factor per dimension, 32-bit, finite and above 0.
        input_pixel_offsets: of the input gradient: the forward operator's output offsets.
        output_pixel_offsets: of the output gradient: the forward operator's input offsets.
        dimension_count: derived; must agree with the arrays if given.

    Raises:
        InvalidDescriptor: with every rule that is broken.
    """

    operator_type = "RESAMPLE_GRAD"
    summary: ClassVar[str] = "Carries a gradient back through RESAMPLE1: its adjoint, with the offsets exchanged."

    input_gradient_tensor: BufferTensorDesc
    output_gradient_tensor: BufferTensorDesc
    interpolation_mode: Interpolation
    scales: FloatArray
    input_pixel_offsets: FloatArray
    output_pixel_offsets: FloatArray
    dimension_count: UInt = count_of("scales")


class ResampleGrad1OperatorDesc(ResampleFamily):
    """`DML_OPERATOR_RESAMPLE_GRAD1`: the adjoint of RESAMPLE2 with the same scales and the two offsets exchanged.

    Attributes:
        input_gradient_tensor: shaped like the forward operator's output.
        output_gradient_tensor: shaped like the forward operator's input; same DataType and rank.
        interpolation_mode: the forward operator's.
        rounding_direction: the forward operator's. Required, as in the C struct.
        scales: the forward operator's: one factor per dimension, 32-bit, finite and above 0.
        input_pixel_offsets: of the input gradient: the forward operator's output offsets.
        output_pixel_offsets: of the output gradient: the forward operator's input offsets.
        dimension_count: derived; must agree with the arrays if given.

    Raises:
        InvalidDescriptor: with every rule that is broken.
    """

    operator_type = "RESAMPLE_GRAD1"
    summary: ClassVar[str] = "Carries a gradient back through RESAMPLE2: its adjoint, with the offsets exchanged."

    input_gradient_tensor: BufferTensorDesc
    output_gradient_tensor: BufferTensorDesc
    interpolation_mode: Interpolation
    rounding_direction: Direction
    scales: FloatArray
    input_pixel_offsets: FloatArray
    output_pixel_offsets: FloatArray
    dimension_count: UInt = count_of("scales")
