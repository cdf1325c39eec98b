"""The Resample family's gradients: RESAMPLE_GRAD and RESAMPLE_GRAD1, the adjoints of RESAMPLE1 and RESAMPLE2.

They have the attributes of their forward operators, read in the opposite direction: the input is shaped like the
forward operator's output. Sources: the DML_RESAMPLE_GRAD and DML_RESAMPLE_GRAD1 pages, `DirectML.h`, and "DirectML
feature level history".
"""

from __future__ import annotations

from typing import ClassVar

from .fields import FloatArray, UInt, count_of
from .resample import Direction, Interpolation, ResampleFamily
from .tensor import BufferTensorDesc

__all__ = ["ResampleGrad1OperatorDesc", "ResampleGradOperatorDesc"]


class ResampleGradOperatorDesc(ResampleFamily):
    """`DML_OPERATOR_RESAMPLE_GRAD`: the adjoint of RESAMPLE1 with the same scales and offsets.

    Every weight of the forward operator is applied in the opposite direction, and what reaches one element is summed.
    (One client passes negated offsets; that is not the adjoint, and not what the page says.)

    Attributes:
        input_gradient_tensor: shaped like the forward operator's output.
        output_gradient_tensor: shaped like the forward operator's input; same DataType and rank.
        interpolation_mode: the forward operator's.
        scales: the forward operator's: one factor per dimension, 32-bit, finite and above 0.
        input_pixel_offsets: the forward operator's.
        output_pixel_offsets: the forward operator's.
        dimension_count: derived; must agree with the arrays if given.

    Raises:
        InvalidDescriptor: with every rule that is broken.
    """

    operator_type = "RESAMPLE_GRAD"
    summary: ClassVar[str] = "Carries a gradient back through RESAMPLE1: its adjoint with the same scales and offsets."

    input_gradient_tensor: BufferTensorDesc
    output_gradient_tensor: BufferTensorDesc
    interpolation_mode: Interpolation
    scales: FloatArray
    input_pixel_offsets: FloatArray
    output_pixel_offsets: FloatArray
    dimension_count: UInt = count_of("scales")


class ResampleGrad1OperatorDesc(ResampleFamily):
    """`DML_OPERATOR_RESAMPLE_GRAD1`: the adjoint of RESAMPLE2 with the same fields.

    Attributes:
        input_gradient_tensor: shaped like the forward operator's output.
        output_gradient_tensor: shaped like the forward operator's input; same DataType and rank.
        interpolation_mode: the forward operator's.
        rounding_direction: the forward operator's. Required, as in the C struct.
        scales: the forward operator's: one factor per dimension, 32-bit, finite and above 0.
        input_pixel_offsets: the forward operator's.
        output_pixel_offsets: the forward operator's.
        dimension_count: derived; must agree with the arrays if given.

    Raises:
        InvalidDescriptor: with every rule that is broken.
    """

    operator_type = "RESAMPLE_GRAD1"
    summary: ClassVar[str] = "Carries a gradient back through RESAMPLE2: its adjoint with the same fields."

    input_gradient_tensor: BufferTensorDesc
    output_gradient_tensor: BufferTensorDesc
    interpolation_mode: Interpolation
    rounding_direction: Direction
    scales: FloatArray
    input_pixel_offsets: FloatArray
    output_pixel_offsets: FloatArray
    dimension_count: UInt = count_of("scales")
