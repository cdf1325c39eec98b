"""PyTorch: `interpolate` as a RESAMPLE2, or an ONNX Resize where that is nearer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from ..calls.resampling import DML_TYPES, build_descriptor, simplest_ratio
from ..calls.resize_nodes import FILTERED, resize_node
from ..descriptors import OperatorDesc
from ..onnx import OnnxNode, OnnxTensor, ResizeAxis
from ..values.problems import InvalidParameter
from .arguments import Described, no_such, read_numbers, read_sizes, read_tensor
from .sent_resize import (
    MOST_DML_DIMENSIONS,
    ONNX_CUBIC,
    PILLOW_CUBIC,
    Coordinates,
    NearestRounding,
    axis_of,
    nearest_resize,
    packed,
    untouched,
)

__all__ = ["torch_interpolate"]

_TORCH_RANKS = {"linear": 3, "bilinear": 4, "trilinear": 5, "bicubic": 4}


def torch_interpolate(
    x: Described,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> OperatorDesc | OnnxNode:
    """`torch.nn.functional.interpolate`.

    What is sent, for float32 and float16 of up to 4 dimensions:

    * `nearest`: RESAMPLE2 with offsets 0, rounding down. `nearest-exact`: RESAMPLE2 with OutputPixelOffset -0.5,
      rounding down. In both InputPixelOffset may be lowered a little, see `tensorpost.resampling`. uint8 as well.
    * `linear`, `bilinear`: RESAMPLE2, Scale = size / input size or the factor, offsets 0.5 and -0.5; with
      `align_corners` Scale = (size - 1) / (input size - 1), offsets 0.
    * `bicubic`: ONNX Resize, cubic with coefficient -0.75.
    * `antialias`: ONNX Resize with antialias and exclude_outside; for `bicubic` with coefficient -0.5.

    Other dtypes, 5 dimensions, and axes of thousands of elements on which float32 would miss an element in nearest, are
    ONNX Resize with the same meaning, computed more exactly. uint8, of which PyTorch has `bilinear` and `bicubic`: when
    no axis shrinks, ONNX Resize with antialias, which at such scales changes nothing but rounds after each axis as
    PyTorch does. When an axis shrinks, `bilinear` without antialias is RESAMPLE2, which truncates where PyTorch rounds.

    PyTorch 2.13 itself is wrong in one case: with `antialias`, an output 1 wide and a height that changes, every row
    repeats the first. What is sent computes each row.

    Args:
        x: N, C and 1 to 3 further dimensions, of which the latter are resized.
        size: elements of the result along each of them; a single number holds for all.
        scale_factor: factors along each of them; a single number holds for all.
        mode: `nearest`, `nearest-exact`, `linear`, `bilinear`, `trilinear` or `bicubic`.
        align_corners: whether the corners' centres are aligned; linear modes and `bicubic` only; None means False.
        recompute_scale_factor: take size / input size for the scale, in place of `scale_factor` itself.
        antialias: whether to filter while shrinking; `bilinear` and `bicubic` only.

    Raises:
        InvalidParameter: PyTorch refuses the arguments, or does what cannot be expressed: mode `area`; `align_corners`
            with `antialias`; a shrinking `bicubic` of uint8 without antialias.
    """
    tensor = read_tensor(x)
    rank = len(tensor.shape)
    if mode == "area":
        raise InvalidParameter(
            "mode='area' averages whole blocks, which neither DirectML nor ONNX Resize does; antialias=True with "
            "'bilinear' filters too"
        )
    modes = ("nearest", "nearest-exact", *_TORCH_RANKS)
    if mode not in modes:
        raise InvalidParameter(no_such("mode", mode, modes))
    if not 3 <= rank <= 5 or rank != _TORCH_RANKS.get(mode, rank):
        wants = f"{_TORCH_RANKS[mode]}" if mode in _TORCH_RANKS else "3, 4 or 5"
        raise InvalidParameter(f"mode={mode!r} takes {wants} dimensions, batch and channels included; x has {rank}")
    weighted = mode in _TORCH_RANKS
    if align_corners is not None and not weighted:
        raise InvalidParameter(f"align_corners is for {', '.join(_TORCH_RANKS)}, not for {mode!r}; leave it out")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise InvalidParameter(f"antialias is for 'bilinear' and 'bicubic', not for {mode!r}; leave it out")
    if antialias and align_corners:
        raise InvalidParameter(
            "with antialias PyTorch scales by (input - 1) / (output - 1) but centres as if corners were not aligned, "
            "which nothing here expresses; use align_corners=False"
        )
    coordinates: Coordinates = "align_corners" if align_corners else "half_pixel"
    rounding: NearestRounding = "round_prefer_ceil"
    if mode == "nearest":
        coordinates, rounding = "asymmetric", "floor"
    lengths = _torch_lengths(tensor.shape[2:], size, scale_factor, recompute_scale_factor)
    if mode != "bicubic" or antialias or tensor.data_type == "uint8":
        # PyTorch copies an axis whose length stays the same, whatever the factor was.
        lengths = [
            (n, Fraction(1)) if length[0] == n else length for n, length in zip(tensor.shape[2:], lengths, strict=True)
        ]
    resized = [axis_of(n, *length, coordinates, rounding) for n, length in zip(tensor.shape[2:], lengths, strict=True)]
    axes = [*map(untouched, tensor.shape[:2]), *resized]
    if not weighted:
        return nearest_resize(tensor, axes, coordinates, rounding)
    return _torch_weighted(tensor, axes, mode, coordinates, antialias)


def _torch_lengths(
    shape: Sequence[int], size: object, scale_factor: object, recompute: bool | None
) -> list[tuple[int, Fraction]]:
    if (size is None) == (scale_factor is None):
        state = "both are" if size is not None else "neither is"
        raise InvalidParameter(f"exactly one of size and scale_factor must be given, but {state}")
    if scale_factor is None:
        if recompute:
            raise InvalidParameter("recompute_scale_factor needs scale_factor; with size the scale follows from it")
        return [
            (length, Fraction(length, n)) for n, length in zip(shape, read_sizes("size", size, len(shape)), strict=True)
        ]
    lengths: list[tuple[int, Fraction]] = []
    factors = read_numbers("scale_factor", scale_factor, len(shape))
    for index, (n, factor) in enumerate(zip(shape, factors, strict=True)):
        ratio = simplest_ratio(factor, f"scale_factor[{index}]")
        length = math.floor(n * factor)  # in float64, as PyTorch has it
        if length < 1:
            raise InvalidParameter(f"scale_factor[{index}] is {factor:g}, which leaves nothing of {n} elements")
        lengths.append((length, Fraction(length, n) if recompute else ratio))
    return lengths


def _torch_weighted(
    tensor: OnnxTensor, axes: Sequence[ResizeAxis], mode: str, coordinates: Coordinates, antialias: bool
) -> OperatorDesc | OnnxNode:
    placed = {"coordinate_transformation_mode": coordinates}
    linear = mode != "bicubic"
    filtered: Mapping[str, Any] = {"mode": "linear"} if linear else PILLOW_CUBIC
    plain: Mapping[str, Any] = {"mode": "linear"} if linear else ONNX_CUBIC
    if tensor.data_type not in ("float16", "float32", "float64", "bfloat16", "uint8"):
        raise InvalidParameter(
            f"PyTorch has no {mode!r} of {tensor.data_type}, but of floating-point types and uint8; convert x first"
        )
    if antialias:
        return resize_node(tensor, axes, **filtered, **FILTERED, **placed)
    if tensor.data_type == "uint8":
        if mode not in ("bilinear", "bicubic"):
            raise InvalidParameter(f"PyTorch has no {mode!r} of uint8; convert x to float32 first")
        if all(axis.scale >= 1 for axis in axes):
            return resize_node(tensor, axes, **plain, **placed, antialias=1)
        if not linear:
            raise InvalidParameter(
                "PyTorch rounds and clips a bicubic of uint8 after each axis, and ONNX does so only with antialias, "
                "which filters an axis that shrinks; convert x to float32 first, or use antialias=True"
            )
    if linear and tensor.data_type in DML_TYPES and len(axes) <= MOST_DML_DIMENSIONS:
        return build_descriptor(packed(tensor), axes, "linear")[0]
    return resize_node(tensor, axes, **plain, **placed)
