"""WebNN: `resample2d` as a RESAMPLE2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from ..calls.resampling import DML_TYPES, build_descriptor, simplest_ratio
from ..descriptors import OperatorDesc
from ..onnx import OnnxNode
from ..values.problems import InvalidParameter
from .arguments import Described, no_such, read_numbers, read_sizes, read_tensor
from .sent_resize import axis_of, nearest_resize, packed, untouched

__all__ = ["webnn_resample2d"]


def webnn_resample2d(
    x: Described,
    *,
    mode: str = "nearest-neighbor",
    scales: Sequence[float] = (1.0, 1.0),
    sizes: Sequence[int] | None = None,
    axes: Sequence[int] = (2, 3),
) -> OperatorDesc | OnnxNode:
    """`MLGraphBuilder.resample2d` of WebNN.

    What is sent is RESAMPLE2, pixel centres aligned, with Scale = size / input size even where `scales` are given, as
    the specification has it. `nearest-neighbor` rounds halves down: RoundingDirection INCREASING, OutputPixelOffset
    -0.5 and InputPixelOffset 1, or a little more (see `tensorpost.resampling`). `linear` has offsets 0.5 and -0.5. On
    axes of thousands of elements where float32 would miss an element in nearest it is ONNX Resize.

    Args:
        x: 4 dimensions: float32, float16, int8 or uint8.
        mode: `nearest-neighbor` or `linear`.
        scales: factors along each of `axes`; the result has floor(size * scale) elements.
        sizes: elements of the result along each of `axes`; as in WebNN they win over `scales`.
        axes: two axes.

    Raises:
        InvalidParameter: WebNN refuses the arguments.
    """
    tensor = read_tensor(x)
    if len(tensor.shape) != 4:
        raise InvalidParameter(f"resample2d takes 4 dimensions; x has {len(tensor.shape)}")
    if tensor.data_type not in DML_TYPES:
        raise InvalidParameter(f"resample2d takes {', '.join(DML_TYPES)}, not {tensor.data_type}; convert x first")
    if mode not in ("nearest-neighbor", "linear"):
        raise InvalidParameter(no_such("mode", mode, ("nearest-neighbor", "linear")))
    chosen = read_sizes("axes", axes, 2, least=0)
    if chosen[0] == chosen[1] or max(chosen) > 3:
        raise InvalidParameter(f"axes are {list(chosen)}; they must be two different ones of 0 to 3")
    if sizes is not None:
        lengths = read_sizes("sizes", sizes, 2)
    else:
        factors = read_numbers("scales", scales, 2)
        lengths = tuple(
            math.floor(tensor.shape[axis] * simplest_ratio(factor, "scales"))
            for axis, factor in zip(chosen, factors, strict=True)
        )
        if 0 in lengths:
            raise InvalidParameter(f"scales are {list(factors)}, which leaves nothing of {list(tensor.shape)}")
    outputs = dict(zip(chosen, lengths, strict=True))
    resized = [
        axis_of(n, outputs[index], Fraction(outputs[index], n), "half_pixel", "round_prefer_floor")
        if index in outputs
        else untouched(n)
        for index, n in enumerate(tensor.shape)
    ]
    if mode == "linear":
        return build_descriptor(packed(tensor), resized, "linear")[0]
    return nearest_resize(tensor, resized, "half_pixel", "round_prefer_floor")
