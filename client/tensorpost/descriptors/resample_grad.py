"""The Resample family's gradients: RESAMPLE_GRAD and RESAMPLE_GRAD1, the adjoints of RESAMPLE1 and RESAMPLE2.

They have the attributes of their forward operators, read in the opposite direction: the input is shaped like the
forward operator's output. The two offsets change places: as DirectML computes it, InputPixelOffsets belong to the input
gradient and OutputPixelOffsets to the output gradient, so that the adjoint of offsets 0.5 and -0.5 has -0.5 and 0.5.
The pages do not say so. Sources: the DML_RESAMPLE_GRAD and DML_RESAMPLE_GRAD1 pages, `DirectML.h`, "DirectML feature
level history", and DirectML's own answers (tests/directml_device).
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
    """`DML_OPERATOR_RESAMPLE_GRAD`: the adjoint of RESAMPLE1 with the same scales, and its offsets exchanged.

    Every weight of the forward operator is applied in the opposite direction, and what reaches one element is summed.

    Raises:
        InvalidDescriptor: with every rule that is broken.
    """

    operator_type = "RESAMPLE_GRAD"
    summary: ClassVar[str] = "Carries a gradient back through RESAMPLE1: its adjoint, with the two offsets exchanged."


class ResampleGrad1OperatorDesc(PixelOffsets, DirectedRounding, ResampleGradient):
    """`DML_OPERATOR_RESAMPLE_GRAD1`: the adjoint of RESAMPLE2 with its offsets exchanged.

    Raises:
        InvalidDescriptor: with every rule that is broken.
    """

    operator_type = "RESAMPLE_GRAD1"
    summary: ClassVar[str] = "Carries a gradient back through RESAMPLE2: its adjoint, with the two offsets exchanged."
