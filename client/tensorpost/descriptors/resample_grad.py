"""The Resample family's gradients: RESAMPLE_GRAD and RESAMPLE_GRAD1, the adjoints of RESAMPLE1 and RESAMPLE2.

Their input is shaped like the forward operator's output, and each offset belongs to the gradient's own tensor: with o
an index of the input gradient, `x = (o - InputPixelOffset) / Scale - OutputPixelOffset` in the output gradient. That is
the forward operator with its two offsets exchanged; the Scale stays the forward one's. The pages say that the offsets
are the forward operator's, but DirectML 1.15.4 computes this (114 probes of both operators, nearest and linear), and
TensorFlow's plugin relies on it: half-pixel centers, forward 0.5 and -0.5, are -0.5 and 0.5 here.

Sources: DirectML itself; the DML_RESAMPLE_GRAD and DML_RESAMPLE_GRAD1 pages, `DirectML.h`, and "DirectML feature level
history".
"""

from __future__ import annotations

from typing import ClassVar

from .resample import DirectedRounding, Interpolation, PixelOffsets, ResampleFamily
from .tensor import BufferTensorDesc

__all__ = ["ResampleGrad1OperatorDesc", "ResampleGradOperatorDesc", "ResampleGradient"]


class ResampleGradient(ResampleFamily):
    """Base of the adjoints; every attribute but tensors and offsets is the forward operator's.

    Attributes:
        input_gradient_tensor: shaped like the forward operator's output.
        output_gradient_tensor: shaped like the forward operator's input; same DataType and rank.
        interpolation_mode: NEAREST_NEIGHBOR or LINEAR.
    """

    forward_tensors = ("output_gradient_tensor", "input_gradient_tensor")

    input_gradient_tensor: BufferTensorDesc
    output_gradient_tensor: BufferTensorDesc
    interpolation_mode: Interpolation


class ResampleGradOperatorDesc(PixelOffsets, ResampleGradient):
    """`DML_OPERATOR_RESAMPLE_GRAD`: the adjoint of RESAMPLE1 with the two offsets exchanged.

    Every weight of the forward operator is applied in the opposite direction, and what reaches one element is summed.
    """

    summary: ClassVar[str] = "the gradient of RESAMPLE1's input: the adjoint of RESAMPLE1, with the offsets exchanged."


class ResampleGrad1OperatorDesc(PixelOffsets, DirectedRounding, ResampleGradient):
    """`DML_OPERATOR_RESAMPLE_GRAD1`: the adjoint of RESAMPLE2 with the two offsets exchanged."""

    summary: ClassVar[str] = "the gradient of RESAMPLE2's input: the adjoint of RESAMPLE2, with the offsets exchanged."
