"""DirectML's Resample family and its gradients as separable sums, each axis with the map of its version."""

from __future__ import annotations

from tensorpost.descriptors import (
    AxisDirection,
    DirectedRounding,
    InterpolationMode,
    PixelOffsets,
    Resample1OperatorDesc,
    Resample2OperatorDesc,
    Resample3OperatorDesc,
    ResampleGrad1OperatorDesc,
    ResampleGradient,
    ResampleGradOperatorDesc,
    ResampleOperatorDesc,
    Upsample2DOperatorDesc,
)

from ..forms import Separable
from ..forms.axes import AxisMap
from ..forms.resample_axes import AdjointAxis, LinearAxis, Nearest, NearestAxis, PyramidAxis, linear_axis
from ..forms.separable import Rounding
from .registry import form_of_class

ResampleDesc = (
    Upsample2DOperatorDesc
    | ResampleOperatorDesc
    | Resample1OperatorDesc
    | Resample2OperatorDesc
    | Resample3OperatorDesc
    | ResampleGradOperatorDesc
    | ResampleGrad1OperatorDesc
)


@form_of_class(
    Upsample2DOperatorDesc,
    ResampleOperatorDesc,
    Resample1OperatorDesc,
    Resample2OperatorDesc,
    Resample3OperatorDesc,
    ResampleGradOperatorDesc,
    ResampleGrad1OperatorDesc,
)
def resample_form(desc: ResampleDesc) -> Separable:
    """The form of any descriptor of the family.

    Nearest copies bit for bit. Everything else sums in float32, long sums pairwise, and casts once: float16 to nearest
    even, integers toward zero.
    """
    linear = desc.interpolation_mode is InterpolationMode.LINEAR
    scales = desc.scales
    input_offsets, output_offsets = (0.5,) * len(scales), (-0.5,) * len(scales)
    if isinstance(desc, PixelOffsets):
        input_offsets, output_offsets = desc.input_pixel_offsets, desc.output_pixel_offsets
    gradient = isinstance(desc, ResampleGradient)
    if gradient:
        sizes, output_sizes = desc.output_gradient_tensor.sizes, desc.input_gradient_tensor.sizes
        # The input offset is that of the gradient operator's own input, which is the forward operator's output.
        input_offsets, output_offsets = output_offsets, input_offsets
    else:
        sizes, output_sizes = desc.input_tensor.sizes, desc.output_tensor.sizes
    antialiased = isinstance(desc, Resample3OperatorDesc) and desc.antialiased
    # DirectML has other shaders for 8 bits, which read the element below x.
    bytes_ = (desc.output_gradient_tensor if gradient else desc.output_tensor).item_size == 1
    rule = Nearest.FLOOR if bytes_ else Nearest.HALF_UP
    if isinstance(desc, DirectedRounding):
        rule = Nearest.CEIL if desc.rounding_direction is AxisDirection.INCREASING else Nearest.FLOOR

    axes: list[AxisMap | None] = []
    for numbers in zip(sizes, output_sizes, scales, input_offsets, output_offsets, strict=True):
        size, output_size, scale, input_offset, output_offset = numbers
        copies = size == output_size and scale == 1 and input_offset + output_offset == 0  # x = o
        if copies and (gradient or not linear or 0 <= input_offset <= 1 or len(scales) == 1):
            axes.append(None)
        elif gradient:
            axes.append(AdjointAxis(LinearAxis(*numbers) if linear else NearestAxis(*numbers, rule)))
        elif linear:
            axes.append(
                PyramidAxis(*numbers) if antialiased and scale < 0.5 else linear_axis(*numbers, alone=len(scales) == 1)
            )
        else:
            axes.append(NearestAxis(*numbers, rule))
    if gradient:
        return Separable(tuple(axes))
    integers = desc.output_tensor.data_type.name.lstrip("U").startswith("INT")
    return Separable(tuple(axes), rounding=Rounding.TRUNCATE if integers else Rounding.NONE)
