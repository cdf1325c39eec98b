"""What to send for the resizing that other libraries do: PyTorch, OpenCV, Pillow, SciPy and WebNN.

Each function takes the arguments of the library's own and returns what `Client.run` sends: a DirectML descriptor, or
an ONNX node where that is nearer. It needs the array's dtype and shape only, and none of the libraries. What a library
does and this project cannot is refused with the reason; nothing is replaced by something similar.

Three rules hold for all of them:

* Nearest picks the element that the library's formula picks in exact arithmetic, checked at every index when the
  descriptor is made. The libraries compute the same formula in floating point, where a coordinate that should be a
  whole number can fall just below it; at those few indices they pick the neighbour.
* PyTorch computes linear coordinates in float32, as RESAMPLE2 does, and WebNN's tests allow for that. OpenCV, Pillow
  and SciPy compute them in float64; for those it is ONNX Resize, whose coordinates are exact here.
* Linear and cubic results of integer types are truncated toward zero here, once, as DirectML and ONNX Runtime do. Where
  a library rounds after each axis, ONNX's antialias does so too, and is what is sent.

`docs/compat.md` has a table of all that is covered, with the differences that were measured.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from .descriptors import BufferTensorDesc, OperatorDesc
from .onnx import OnnxNode, OnnxTensor, ResizeAxis, Resizing
from .problems import InvalidParameter, nearest
from .resampling import DML_TYPES, build_descriptor, simplest_ratio

__all__ = ["opencv_resize", "pillow_resize", "scipy_zoom", "torch_interpolate", "webnn_resample2d"]

Described: TypeAlias = NDArray[Any] | BufferTensorDesc | OnnxTensor
Coordinates = Literal["half_pixel", "asymmetric", "align_corners"]
Rounding = Literal["round_prefer_ceil", "round_prefer_floor", "floor"]

_OPSET = 19
_MOST_DML_DIMENSIONS = 4
_ONNX_CUBIC: Mapping[str, Any] = {"mode": "cubic", "cubic_coeff_a": -0.75}
_PILLOW_CUBIC: Mapping[str, Any] = {"mode": "cubic", "cubic_coeff_a": -0.5}
_FILTERED: Mapping[str, Any] = {"antialias": 1, "exclude_outside": 1}
_OPENCV_INTERPOLATIONS = {
    "INTER_NEAREST": 0, "INTER_LINEAR": 1, "INTER_CUBIC": 2, "INTER_AREA": 3, "INTER_LANCZOS4": 4,
    "INTER_LINEAR_EXACT": 5, "INTER_NEAREST_EXACT": 6,
}  # fmt: skip
_OPENCV_WEIGHTED = ("uint8", "uint16", "int16", "float32", "float64")
_PILLOW_FILTERS = {"NEAREST": 0, "LANCZOS": 1, "BILINEAR": 2, "BICUBIC": 3, "BOX": 4, "HAMMING": 5}
_PILLOW_TYPES = ("uint8", "uint16", "int32", "float32", "bool")
_TORCH_RANKS = {"linear": 3, "bilinear": 4, "trilinear": 5, "bicubic": 4}
_SCIPY_EDGES = ("nearest", "reflect", "grid-mirror")
_SCIPY_MODES = (*_SCIPY_EDGES, "constant", "grid-constant", "mirror", "wrap", "grid-wrap")


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


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
        align_corners: for the linear modes and `bicubic` only; None means False.
        recompute_scale_factor: take size / input size for the scale, in place of `scale_factor` itself.
        antialias: for `bilinear` and `bicubic`.

    Raises:
        InvalidParameter: PyTorch refuses the arguments, or does what cannot be expressed: mode `area`; `align_corners`
            with `antialias`; a shrinking `bicubic` of uint8 without antialias.
    """
    tensor = _tensor(x)
    rank = len(tensor.shape)
    if mode == "area":
        raise InvalidParameter(
            "mode='area' averages whole blocks, which neither DirectML nor ONNX Resize does; antialias=True with "
            "'bilinear' filters too"
        )
    modes = ("nearest", "nearest-exact", *_TORCH_RANKS)
    if mode not in modes:
        raise InvalidParameter(_no_such("mode", mode, modes))
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
    rounding: Rounding = "round_prefer_ceil"
    if mode == "nearest":
        coordinates, rounding = "asymmetric", "floor"
    lengths = _torch_lengths(tensor.shape[2:], size, scale_factor, recompute_scale_factor)
    if mode != "bicubic" or antialias or tensor.data_type == "uint8":
        # PyTorch copies an axis whose length stays the same, whatever the factor was.
        lengths = [
            (n, Fraction(1)) if length[0] == n else length for n, length in zip(tensor.shape[2:], lengths, strict=True)
        ]
    resized = [_axis(n, *length, coordinates, rounding) for n, length in zip(tensor.shape[2:], lengths, strict=True)]
    axes = [*map(_untouched, tensor.shape[:2]), *resized]
    if not weighted:
        return _nearest(tensor, axes, coordinates, rounding)
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
            (length, Fraction(length, n)) for n, length in zip(shape, _sizes("size", size, len(shape)), strict=True)
        ]
    found: list[tuple[int, Fraction]] = []
    for index, (n, factor) in enumerate(zip(shape, _numbers("scale_factor", scale_factor, len(shape)), strict=True)):
        ratio = simplest_ratio(factor, f"scale_factor[{index}]")
        length = math.floor(n * factor)  # in float64, as PyTorch has it
        if length < 1:
            raise InvalidParameter(f"scale_factor[{index}] is {factor:g}, which leaves nothing of {n} elements")
        found.append((length, Fraction(length, n) if recompute else ratio))
    return found


def _torch_weighted(
    tensor: OnnxTensor, axes: Sequence[ResizeAxis], mode: str, coordinates: Coordinates, antialias: bool
) -> OperatorDesc | OnnxNode:
    placed = {"coordinate_transformation_mode": coordinates}
    linear = mode != "bicubic"
    filtered: Mapping[str, Any] = {"mode": "linear"} if linear else _PILLOW_CUBIC
    plain: Mapping[str, Any] = {"mode": "linear"} if linear else _ONNX_CUBIC
    if tensor.data_type not in ("float16", "float32", "float64", "bfloat16", "uint8"):
        raise InvalidParameter(
            f"PyTorch has no {mode!r} of {tensor.data_type}, but of floating-point types and uint8; convert x first"
        )
    if antialias:
        return _node(tensor, axes, **filtered, **_FILTERED, **placed)
    if tensor.data_type == "uint8":
        if mode not in ("bilinear", "bicubic"):
            raise InvalidParameter(f"PyTorch has no {mode!r} of uint8; convert x to float32 first")
        if all(axis.scale >= 1 for axis in axes):
            return _node(tensor, axes, **plain, **placed, antialias=1)
        if not linear:
            raise InvalidParameter(
                "PyTorch rounds and clips a bicubic of uint8 after each axis, and ONNX does so only with antialias, "
                "which filters an axis that shrinks; convert x to float32 first, or use antialias=True"
            )
    if linear and tensor.data_type in DML_TYPES and len(axes) <= _MOST_DML_DIMENSIONS:
        return build_descriptor(_packed(tensor), axes, "linear")[0]
    return _node(tensor, axes, **plain, **placed)


# ---- OpenCV ----------------------------------------------------------------------------------------------------------


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
    tensor = _tensor(x)
    rank = len(tensor.shape)
    if rank not in (2, 3):
        raise InvalidParameter(f"OpenCV takes H, W or H, W, C; x has {rank} dimensions")
    name = _constant("interpolation", interpolation, _OPENCV_INTERPOLATIONS)
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
    rounding: Rounding = "floor" if name == "INTER_NEAREST" else "round_prefer_ceil"
    resized = [_axis(n, *length, coordinates, rounding) for n, length in zip(tensor.shape[:2], lengths, strict=True)]
    axes = [*resized, *map(_untouched, tensor.shape[2:])]
    if name.startswith("INTER_NEAREST"):
        return _nearest(tensor, axes, coordinates, rounding)
    if tensor.data_type not in _OPENCV_WEIGHTED:
        raise InvalidParameter(
            f"OpenCV has no {name} of {tensor.data_type}, but of {', '.join(_OPENCV_WEIGHTED)}; convert x first"
        )
    if name == "INTER_CUBIC":
        return _node(tensor, axes, **_ONNX_CUBIC)
    node = next(_nodes(tensor, axes, mode="linear"), None)
    if node is not None:
        return node
    if tensor.data_type in DML_TYPES:
        return build_descriptor(_packed(tensor), axes, "linear")[0]
    raise InvalidParameter(_uneven(tensor))


def _opencv_lengths(shape: Sequence[int], dsize: object, fx: float, fy: float) -> list[tuple[int, Fraction]]:
    if dsize is not None:
        width, height = _sizes("dsize", dsize, 2)
        return [(height, Fraction(height, shape[0])), (width, Fraction(width, shape[1]))]
    found: list[tuple[int, Fraction]] = []
    for name, n, factor in (("fy", shape[0], fy), ("fx", shape[1], fx)):
        (number,) = _numbers(name, factor, 1)
        if not number > 0:
            raise InvalidParameter(f"{name} is {number}; give dsize, or fx and fy above 0")
        length = round(n * number)
        if length < 1:
            raise InvalidParameter(f"{name} is {number:g}, which leaves nothing of {n} elements")
        found.append((length, simplest_ratio(number, name)))
    if [length for length, _ in found] == list(shape[:2]):
        return [(n, Fraction(1)) for n in shape[:2]]  # OpenCV copies an image whose size stays the same
    return found


# ---- Pillow ----------------------------------------------------------------------------------------------------------


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
        premultiplied: says that the last of 2 or 4 channels is no alpha to multiply by: an image of mode La, RGBa,
            RGBX or CMYK.

    Raises:
        InvalidParameter: Pillow refuses the arguments, or does what cannot be expressed: `BOX`, `HAMMING`, `LANCZOS`,
            and the multiplying by alpha of modes LA and RGBA.
    """
    tensor = _tensor(x)
    rank = len(tensor.shape)
    if rank not in (2, 3):
        raise InvalidParameter(f"an image is H, W or H, W, C; x has {rank} dimensions")
    if tensor.data_type not in _PILLOW_TYPES or (rank == 3 and tensor.data_type != "uint8"):
        raise InvalidParameter(
            f"Pillow has no images of {tensor.data_type} with {rank} dimensions, but of {', '.join(_PILLOW_TYPES)}; "
            "several channels are always uint8"
        )
    name = _constant("resample", resample, _PILLOW_FILTERS)
    if name in ("BOX", "HAMMING", "LANCZOS"):
        raise InvalidParameter(
            f"neither DirectML nor ONNX Resize has Pillow's {name} filter; BILINEAR and BICUBIC they do"
        )
    width, height = _sizes("size", size, 2)
    ratios = [(height, Fraction(height, tensor.shape[0])), (width, Fraction(width, tensor.shape[1]))]
    resized = [_axis(n, *length, "half_pixel") for n, length in zip(tensor.shape[:2], ratios, strict=True)]
    axes = [*resized, *map(_untouched, tensor.shape[2:])]
    if name == "NEAREST" or tensor.data_type == "bool":
        return _nearest(tensor, axes, "half_pixel", "round_prefer_ceil")
    if rank == 3 and tensor.shape[2] in (2, 4) and not premultiplied:
        raise InvalidParameter(
            f"Pillow multiplies the channels of LA and RGBA by alpha before it filters, which is not done here; send "
            f"image.convert('La') or image.convert('RGBa') with premultiplied=True and convert back. For "
            f"{tensor.shape[2]} channels without alpha, such as CMYK, say premultiplied=True too"
        )
    filter_ = _PILLOW_CUBIC if name == "BICUBIC" else {"mode": "linear"}
    return _node(tensor, axes, **filter_, **_FILTERED)


# ---- SciPy -----------------------------------------------------------------------------------------------------------


def scipy_zoom(
    x: Described, zoom: float | Sequence[float], *, order: int, mode: str = "constant", grid_mode: bool = False
) -> OperatorDesc | OnnxNode:
    """`scipy.ndimage.zoom`.

    What is sent, with sizes of `round(size * zoom)`, halves to even:

    * order 0: RESAMPLE2, rounding halves up, with corners aligned (Scale = (size - 1) / (input size - 1), offsets 0) or
      with `grid_mode` pixel centres; InputPixelOffset may be lowered a little, see `tensorpost.resampling`. For types
      that DirectML lacks, or more than 4 dimensions, ONNX Resize.
    * order 1: ONNX Resize, linear, with align_corners or with `grid_mode` half_pixel. Integer results are truncated,
      where SciPy rounds.

    With SciPy's default `mode="constant"` its own rounding can put the last coordinate beyond the last element, and the
    last element of an axis then becomes 0. What is sent keeps the last element.

    Args:
        x: any shape.
        zoom: factors along every axis; a single number holds for all.
        order: 0 or 1. SciPy's own default is 3.
        mode: how SciPy goes on beyond the edges. Without `grid_mode` nothing lies there, so any will do. With it
            `nearest`, `reflect` or `grid-mirror`, which agree within the half pixel that is needed.
        grid_mode: pixel centres instead of corners.

    Raises:
        InvalidParameter: SciPy refuses the arguments, or does what cannot be expressed: orders above 1, and with
            `grid_mode` other edges, which mix in other values.
    """
    tensor = _tensor(x)
    if order not in (0, 1):
        raise InvalidParameter(
            f"order is {order!r}; a spline above order 1 weighs all elements, which neither DirectML nor ONNX Resize "
            "does. Use order 0 or 1"
        )
    if mode not in _SCIPY_MODES:
        raise InvalidParameter(_no_such("mode", mode, _SCIPY_MODES))
    if grid_mode and mode not in _SCIPY_EDGES:
        raise InvalidParameter(
            f"with grid_mode the outermost coordinates lie up to half a pixel outside, where mode={mode!r} does not "
            f"repeat the edge; use one of {', '.join(_SCIPY_EDGES)}"
        )
    if tensor.data_type in ("float16", "bfloat16", "str"):
        raise InvalidParameter(f"SciPy does not zoom {tensor.data_type}; convert x first")
    coordinates: Coordinates = "half_pixel" if grid_mode else "align_corners"
    axes: list[ResizeAxis] = []
    for index, (n, factor) in enumerate(zip(tensor.shape, _numbers("zoom", zoom, len(tensor.shape)), strict=True)):
        length = round(n * factor) if math.isfinite(factor) else 0
        if length < 1:
            raise InvalidParameter(f"zoom[{index}] is {factor:g}, which leaves nothing of {n} elements")
        axes.append(_axis(n, length, Fraction(length, n), coordinates))
    if order == 0:
        return _nearest(tensor, axes, coordinates, "round_prefer_ceil")
    if tensor.data_type == "bool":
        raise InvalidParameter("order 1 of bool is no weighted average in SciPy; use order 0, or convert x first")
    return _node(tensor, axes, mode="linear", coordinate_transformation_mode=coordinates)


# ---- WebNN -----------------------------------------------------------------------------------------------------------


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
    tensor = _tensor(x)
    if len(tensor.shape) != 4:
        raise InvalidParameter(f"resample2d takes 4 dimensions; x has {len(tensor.shape)}")
    if tensor.data_type not in DML_TYPES:
        raise InvalidParameter(f"resample2d takes {', '.join(DML_TYPES)}, not {tensor.data_type}; convert x first")
    if mode not in ("nearest-neighbor", "linear"):
        raise InvalidParameter(_no_such("mode", mode, ("nearest-neighbor", "linear")))
    chosen = _sizes("axes", axes, 2, least=0)
    if chosen[0] == chosen[1] or max(chosen) > 3:
        raise InvalidParameter(f"axes are {list(chosen)}; they must be two different ones of 0 to 3")
    if sizes is not None:
        lengths = _sizes("sizes", sizes, 2)
    else:
        factors = _numbers("scales", scales, 2)
        lengths = tuple(
            math.floor(tensor.shape[axis] * simplest_ratio(factor, "scales"))
            for axis, factor in zip(chosen, factors, strict=True)
        )
        if 0 in lengths:
            raise InvalidParameter(f"scales are {list(factors)}, which leaves nothing of {list(tensor.shape)}")
    outputs = dict(zip(chosen, lengths, strict=True))
    resized = [
        _axis(n, outputs[index], Fraction(outputs[index], n), "half_pixel", "round_prefer_floor")
        if index in outputs
        else _untouched(n)
        for index, n in enumerate(tensor.shape)
    ]
    if mode == "linear":
        return build_descriptor(_packed(tensor), resized, "linear")[0]
    return _nearest(tensor, resized, "half_pixel", "round_prefer_floor")


# ---- reading arguments -----------------------------------------------------------------------------------------------


def _tensor(x: object) -> OnnxTensor:
    """Type and shape of what is resized."""
    if isinstance(x, OnnxTensor):
        tensor = x
    elif isinstance(x, BufferTensorDesc):
        tensor = OnnxTensor(x.data_type.name, x.sizes)
    elif isinstance(x, np.ndarray):
        tensor = OnnxTensor.describe(x)
    else:
        raise InvalidParameter(
            f"x must be a NumPy array, a BufferTensorDesc or an OnnxTensor, not {type(x).__name__}; tensor.numpy() or "
            "np.asarray(image) make an array"
        )
    if not tensor.shape or 0 in tensor.shape:
        raise InvalidParameter(f"x has the shape {tensor.shape}; there is nothing to resize")
    return tensor


def _no_such(name: str, value: object, known: Sequence[str]) -> str:
    guess = next((name for name in known if value and name.startswith(str(value))), None) or nearest(str(value), known)
    hint = f". Did you mean {guess!r}?" if guess else ""
    return f"{name} is {str(value)[:40]!r}; it must be one of {', '.join(known)}{hint}"


def _constant(name: str, value: object, known: Mapping[str, int]) -> str:
    """The name of a library's constant, given as name or number."""
    if isinstance(value, str):
        if value not in known:
            raise InvalidParameter(_no_such(name, value, list(known)))
        return value
    number = _whole(name, value)
    found = next((key for key, constant in known.items() if constant == number), None)
    if found is None:
        raise InvalidParameter(
            f"{name} is {number}; it must be one of " + ", ".join(f"{known[k]} ({k})" for k in known)
        )
    return found


def _listed(name: str, given: object, count: int) -> list[object]:
    """One entry per axis; a single number is repeated."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        return [given] * count
    entries = list(cast("Iterable[object]", given))
    if len(entries) != count:
        raise InvalidParameter(f"{name} has {len(entries)} entries; it must have {count}")
    return entries


def _sizes(name: str, given: object, count: int, least: int = 1) -> tuple[int, ...]:
    sizes = tuple(_whole(name, entry) for entry in _listed(name, given, count))
    if min(sizes) < least:
        raise InvalidParameter(f"{name} is {given!r}; every entry must be {least} or more")
    return sizes


def _whole(name: str, value: object) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(cast("Any", value))
    except TypeError:
        raise InvalidParameter(f"{name} has {str(value)[:40]!r}; it must be whole numbers") from None


def _numbers(name: str, given: object, count: int) -> tuple[float, ...]:
    numbers: list[float] = []
    for entry in _listed(name, given, count):
        try:
            if isinstance(entry, (bool, str, bytes)):
                raise TypeError
            numbers.append(float(cast("Any", entry)))
        except (TypeError, ValueError, OverflowError):
            raise InvalidParameter(f"{name} has {str(entry)[:40]!r}; it must be numbers") from None
    return tuple(numbers)


# ---- what is sent ----------------------------------------------------------------------------------------------------


def _untouched(n: int) -> ResizeAxis:
    return ResizeAxis(n, n, Fraction(1))


def _axis(
    n: int, length: int, ratio: Fraction, coordinates: Coordinates, rounding: Rounding = "round_prefer_ceil"
) -> ResizeAxis:
    """The axis in exact numbers, by ONNX's formulas."""
    if coordinates == "align_corners":
        step = Fraction(n - 1, length - 1) if length > 1 else Fraction(0)
        return ResizeAxis(n, length, ratio, step, nearest_mode=rounding)
    step = 1 / ratio
    offset = (step - 1) / 2 if coordinates == "half_pixel" else Fraction(0)
    return ResizeAxis(n, length, ratio, step, offset, rounding)


def _packed(tensor: OnnxTensor) -> BufferTensorDesc:
    return BufferTensorDesc.packed(tensor.row.dtype, tensor.shape)


def _nearest(
    tensor: OnnxTensor, axes: Sequence[ResizeAxis], coordinates: Coordinates, rounding: Rounding
) -> OperatorDesc | OnnxNode:
    """A descriptor if it picks the right element at every index, otherwise an ONNX node, which always does."""
    if tensor.data_type in DML_TYPES and len(axes) <= _MOST_DML_DIMENSIONS:
        desc, misses = build_descriptor(_packed(tensor), axes, "nearest")
        if not misses:
            return desc
    attributes = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    for node in _nodes(tensor, axes, **attributes):
        if isinstance(node.meaning, Resizing) and all(map(_picks_the_same, node.meaning.axes, axes)):
            return node
    raise InvalidParameter(_uneven(tensor))


def _picks_the_same(one: ResizeAxis, other: ResizeAxis) -> bool:
    return np.array_equal(one.nearest(0, one.output_length), other.nearest(0, other.output_length))


def _node(tensor: OnnxTensor, axes: Sequence[ResizeAxis], **attributes: Any) -> OnnxNode:
    node = next(_nodes(tensor, axes, **attributes), None)
    if node is None:
        raise InvalidParameter(_uneven(tensor))
    return node


def _nodes(tensor: OnnxTensor, axes: Sequence[ResizeAxis], **attributes: Any) -> Iterator[OnnxNode]:
    """ONNX Resize with these axes: by sizes wherever the scale follows from them, otherwise by scales.

    ONNX takes a float32 scale at its word, so that one a little below 7/10 makes 6 of 10 elements. The next float32
    below and above are tried too; what has another size is left out.
    """
    wanted = tuple(axis.output_length for axis in axes)
    if all(axis.scale * axis.length == axis.output_length for axis in axes):
        yield OnnxNode.of("Resize", {"X": tensor, "sizes": wanted}, opset=_OPSET, **attributes)
        return
    ratios = np.array([float(axis.scale) for axis in axes])
    rounded = ratios.astype(np.float32)
    below = np.where(rounded > ratios, np.nextafter(rounded, np.float32(0)), rounded)
    above = np.where(rounded < ratios, np.nextafter(rounded, np.float32(np.inf)), rounded)
    for scales in (rounded, below, above):
        node = OnnxNode.of("Resize", {"X": tensor, "scales": scales}, opset=_OPSET, **attributes)
        if node.output.shape == wanted:
            yield node


def _uneven(tensor: OnnxTensor) -> str:
    return (
        f"for {tensor.data_type} of {len(tensor.shape)} dimensions this factor is sent as the float32 scale of ONNX "
        "Resize, which gives another size or other elements; give the size in place of the factor"
    )
