"""Pillow: `Image.resize` as a RESAMPLE2 for nearest, a filtering ONNX Resize for what is weighted."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ..calls.resize_nodes import FILTERED, resize_node
from ..descriptors import OperatorDesc
from ..onnx import OnnxNode
from ..values.problems import InvalidParameter
from .arguments import Described, read_constant, read_sizes, read_tensor
from .sent_resize import PILLOW_CUBIC, axis_of, nearest_resize, untouched

__all__ = ["pillow_resize"]

_PILLOW_FILTERS = {"NEAREST": 0, "LANCZOS": 1, "BILINEAR": 2, "BICUBIC": 3, "BOX": 4, "HAMMING": 5}
_PILLOW_TYPES = ("uint8", "uint16", "int32", "float32", "bool")


def pillow_resize(
    x: Described, size: Sequence[int], resample: int | str = "BICUBIC", *, premultiplied: bool = False
) -> OperatorDesc | OnnxNode:
    """`PIL.Image.Image.resize`, on the array that `numpy.asarray(image)` makes.

    What is sent:

    * `NEAREST`: RESAMPLE2 with OutputPixelOffset -0.5, rounding down; InputPixelOffset may be lowered a little, see
      `tensorpost.resampling`. For types that DirectML lacks ONNX Resize.
    * `BILINEAR` and `BICUBIC`: ONNX Resize with antialias and exclude_outside, half_pixel; the cubic coefficient is
      -0.5. Integers are rounded after each axis, as in Pillow: first along the width, then along the height. Pillow 13
      takes the height first where it shrinks and the width grows, and for some sizes where both shrink, the height
      more; there integer results differ more. To resize `x.swapaxes(0, 1)` to the reversed size, and to swap back,
      gives that order.

    `box` and `reducing_gap` have no counterpart: crop first.

    Args:
        x: H, W or H, W, C: uint8 (L, RGB and so on), uint16 (I;16), int32 (I), float32 (F), or bool (1), which Pillow
            resizes by nearest, whatever is asked for.
        size: (width, height) of the result.
        resample: Pillow's constant or its name.
        premultiplied: says that the last of 2 or 4 channels is not an alpha to multiply by: an image of mode La, RGBa,
            RGBX or CMYK.

    Raises:
        InvalidParameter: Pillow refuses the arguments, or does what cannot be expressed: `BOX`, `HAMMING`, `LANCZOS`,
            and the multiplying by alpha of modes LA and RGBA.
    """
    tensor = read_tensor(x)
    rank = len(tensor.shape)
    if rank not in (2, 3):
        raise InvalidParameter(f"an image is H, W or H, W, C; x has {rank} dimensions")
    if tensor.data_type not in _PILLOW_TYPES or (rank == 3 and tensor.data_type != "uint8"):
        raise InvalidParameter(
            f"Pillow has no images of {tensor.data_type} with {rank} dimensions, but of {', '.join(_PILLOW_TYPES)}; "
            "several channels are always uint8"
        )
    name = read_constant("resample", resample, _PILLOW_FILTERS)
    if name in ("BOX", "HAMMING", "LANCZOS"):
        raise InvalidParameter(
            f"neither DirectML nor ONNX Resize has Pillow's {name} filter; BILINEAR and BICUBIC they do"
        )
    width, height = read_sizes("size", size, 2)
    ratios = [(height, Fraction(height, tensor.shape[0])), (width, Fraction(width, tensor.shape[1]))]
    resized = [axis_of(n, *length, "half_pixel") for n, length in zip(tensor.shape[:2], ratios, strict=True)]
    axes = [*resized, *map(untouched, tensor.shape[2:])]
    if name == "NEAREST" or tensor.data_type == "bool":
        return nearest_resize(tensor, axes, "half_pixel", "round_prefer_ceil")
    if rank == 3 and tensor.shape[2] in (2, 4) and not premultiplied:
        raise InvalidParameter(
            f"Pillow multiplies the channels of LA and RGBA by alpha before it filters, which is not done here; send "
            f"image.convert('La') or image.convert('RGBa') with premultiplied=True and convert back. For "
            f"{tensor.shape[2]} channels without alpha, such as CMYK, say premultiplied=True too"
        )
    filter_ = PILLOW_CUBIC if name == "BICUBIC" else {"mode": "linear"}
    return resize_node(tensor, axes, **filter_, **FILTERED)
