"""OpenCV: `resize` as a RESAMPLE2 for nearest, an ONNX Resize for what is weighted."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ..calls.resampling import DML_TYPES, build_descriptor, simplest_ratio
from ..calls.resize_nodes import resize_node, resize_nodes, uneven
from ..descriptors import OperatorDesc
from ..onnx import OnnxNode
from ..values.problems import InvalidParameter
from .arguments import Described, read_constant, read_numbers, read_sizes, read_tensor
from .sent_resize import ONNX_CUBIC, Coordinates, NearestRounding, axis_of, nearest_resize, packed, untouched

__all__ = ["opencv_resize"]

_OPENCV_INTERPOLATIONS = {
    "INTER_NEAREST": 0, "INTER_LINEAR": 1, "INTER_CUBIC": 2, "INTER_AREA": 3, "INTER_LANCZOS4": 4,
    "INTER_LINEAR_EXACT": 5, "INTER_NEAREST_EXACT": 6,
}  # fmt: skip
_OPENCV_WEIGHTED = ("uint8", "uint16", "int16", "float32", "float64")


def opencv_resize(
    x: Described,
    dsize: Sequence[int] | None = None,
    *,
    fx: float = 0.0,
    fy: float = 0.0,
    interpolation: int | str = "INTER_LINEAR",
) -> OperatorDesc | OnnxNode:
    """`cv2.resize`.

    What is sent:

    * `INTER_NEAREST`: RESAMPLE2 with offsets 0, rounding down. `INTER_NEAREST_EXACT`: RESAMPLE2 with OutputPixelOffset
      -0.5, rounding down. In both InputPixelOffset may be lowered a little, see `tensorpost.resampling`. For types that
      DirectML lacks ONNX Resize.
    * `INTER_LINEAR` and `INTER_LINEAR_EXACT`: ONNX Resize, linear with half_pixel. With `fx` or `fy` and a size that
      OpenCV rounds up, which ONNX does not, it is RESAMPLE2, whose coordinates are float32.
    * `INTER_CUBIC`: ONNX Resize, cubic with coefficient -0.75. It has no size that is rounded up: give `dsize` then.

    Integer results are truncated, where OpenCV rounds. To be nearer, convert to float32 and round the result.

    Args:
        x: H, W or H, W, C.
        dsize: (width, height) of the result.
        fx: factor along the width, if there is no `dsize`; the width is rounded, halves to even.
        fy: factor along the height.
        interpolation: OpenCV's constant or its name. uint8, uint16, int16, float32 and float64 for all but the nearest
            ones, which take any type.

    Raises:
        InvalidParameter: OpenCV refuses the arguments, or does what cannot be expressed: `INTER_AREA` and
            `INTER_LANCZOS4`.
    """
    tensor = read_tensor(x)
    rank = len(tensor.shape)
    if rank not in (2, 3):
        raise InvalidParameter(f"OpenCV takes H, W or H, W, C; x has {rank} dimensions")
    name = read_constant("interpolation", interpolation, _OPENCV_INTERPOLATIONS)
    if name == "INTER_AREA":
        raise InvalidParameter(
            "INTER_AREA averages areas, which neither DirectML nor ONNX Resize does; to shrink by exactly 2 it is the "
            "same as INTER_LINEAR"
        )
    if name == "INTER_LANCZOS4":
        raise InvalidParameter("INTER_LANCZOS4 has 8 taps; the most there are here is 4, with INTER_CUBIC")
    lengths = _opencv_lengths(tensor.shape, dsize, fx, fy)
    if name == "INTER_NEAREST_EXACT":
        lengths = [(length, Fraction(length, n)) for n, (length, _) in zip(tensor.shape[:2], lengths, strict=True)]
    coordinates: Coordinates = "asymmetric" if name == "INTER_NEAREST" else "half_pixel"
    rounding: NearestRounding = "floor" if name == "INTER_NEAREST" else "round_prefer_ceil"
    resized = [axis_of(n, *length, coordinates, rounding) for n, length in zip(tensor.shape[:2], lengths, strict=True)]
    axes = [*resized, *map(untouched, tensor.shape[2:])]
    if name.startswith("INTER_NEAREST"):
        return nearest_resize(tensor, axes, coordinates, rounding)
    if tensor.data_type not in _OPENCV_WEIGHTED:
        raise InvalidParameter(
            f"OpenCV has no {name} of {tensor.data_type}, but of {', '.join(_OPENCV_WEIGHTED)}; convert x first"
        )
    if name == "INTER_CUBIC":
        return resize_node(tensor, axes, **ONNX_CUBIC)
    node = next(resize_nodes(tensor, axes, mode="linear"), None)
    if node is not None:
        return node
    if tensor.data_type in DML_TYPES:
        return build_descriptor(packed(tensor), axes, "linear")[0]
    raise InvalidParameter(uneven(tensor))


def _opencv_lengths(shape: Sequence[int], dsize: object, fx: float, fy: float) -> list[tuple[int, Fraction]]:
    if dsize is not None:
        width, height = read_sizes("dsize", dsize, 2)
        return [(height, Fraction(height, shape[0])), (width, Fraction(width, shape[1]))]
    lengths: list[tuple[int, Fraction]] = []
    for name, n, factor in (("fy", shape[0], fy), ("fx", shape[1], fx)):
        (number,) = read_numbers(name, factor, 1)
        if not number > 0:
            raise InvalidParameter(f"{name} is {number}; give dsize, or fx and fy above 0")
        length = round(n * number)
        if length < 1:
            raise InvalidParameter(f"{name} is {number:g}, which leaves nothing of {n} elements")
        lengths.append((length, simplest_ratio(number, name)))
    if [length for length, _ in lengths] == list(shape[:2]):
        return [(n, Fraction(1)) for n in shape[:2]]  # OpenCV copies an image whose size stays the same
    return lengths
