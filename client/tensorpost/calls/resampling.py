"""Resampling by sizes or scales, nearest or linear, as one DirectML descriptor; with a filter as one ONNX Resize.

Sources: the DML_RESAMPLE2_OPERATOR_DESC and DML_RESAMPLE3_OPERATOR_DESC pages. Where they leave a choice, tensorpost's:

* Pixel centres are aligned: output index o reads the input at `x = (o + 0.5) / scale - 0.5`. Nearest rounds halves up.
  This is RESAMPLE's own rule, and that of ONNX Resize-19 with `half_pixel` and `round_prefer_ceil`.
* DirectML's Scale is a 32-bit float, which cannot hold 0.7. A scale is therefore read as the simplest fraction that
  has the same 32-bit float: 0.7 is 7/10, so 10 elements become 7, and 0.1 of 100 elements is the same as sizes of 10.
  (ONNX uses the exact value of the float32, so its Resize makes 6 elements of those 10.)
* Nearest picks the element that exact arithmetic picks. A float32 quotient can fall just short of a whole number that
  exact arithmetic meets, and floor then gives the neighbour. Every index is compared; on an axis where one differs,
  InputPixelOffset moves x by half the distance between two possible coordinates, which changes no exact result, and
  keeps rounding errors from crossing a whole number.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from .. import descriptors as dml
from ..descriptors.catalogue import facts_of
from ..onnx import OnnxNode, OnnxTensor, ResizeAxis
from ..values.checks import entries_of, real_number, shown, whole_number
from ..values.datatypes import TensorDataType, data_type
from ..values.problems import InvalidParameter, counted, entry_count, nearest
from ..values.sentences import named
from .directml_axes import ResamplingMode, build_descriptor
from .held_tensors import HeldTensor
from .resize_nodes import FILTERED, resize_node

__all__ = [
    "DML_TYPES",
    "Antialias",
    "Resampling",
    "ResamplingMode",
    "antialias_of",
    "build_descriptor",
    "mode_of",
    "resample_desc",
    "resampling",
    "simplest_ratio",
]

Antialias = bool | Literal["directml"]
"""True for the filter of Pillow and PyTorch, `directml` for RESAMPLE3's, False for none."""

DML_TYPES = tuple(t.row.numpy_name for t in facts_of("RESAMPLE2").rows("InputTensor")[-1].data_types)
"""NumPy names of the types that the Resample family takes at the newest feature level."""

_MOST_DIMENSIONS = facts_of("RESAMPLE2").rows("InputTensor")[-1].dimension_counts[1]
_NO_DESCRIPTOR = (
    "antialias=True is the filter of Pillow and PyTorch, which is sent as ONNX Resize; no DirectML descriptor has it. "
    "Run resampling(...).operation, or say antialias='directml' for RESAMPLE3's filter"
)


@dataclass(frozen=True, slots=True)
class Resampling:
    """A resample that can be run, and the shapes around it.

    DirectML takes at most 4 dimensions, so adjacent dimensions that are not resized are merged into one. The order of
    the elements does not change: send `x.reshape(sent_shape)`, and reshape the result to `output_shape`. Up
    to 4 dimensions, and with the filter of Pillow, these reshapes change nothing.

    Attributes:
        operation: what to run: RESAMPLE2; RESAMPLE3 with `antialias="directml"`; ONNX Resize with `antialias=True`.
        input_shape: the caller's shape.
        output_shape: the result's shape, with as many dimensions.
        misses: output indices, added up over the axes, at which nearest picks the neighbour of the right element,
            since float32 cannot hold the coordinate well enough. Always 0 for linear. For nearest it can be above 0
            only where an axis has thousands of elements and its ratio is not a simple fraction (of an axis longer than
            2^24, every index counts, without a comparison); ONNX Resize is exact there too.
    """

    operation: dml.Resample2OperatorDesc | dml.Resample3OperatorDesc | OnnxNode
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    misses: int = 0

    @property
    def desc(self) -> dml.Resample2OperatorDesc | dml.Resample3OperatorDesc:
        """The operation as a DirectML descriptor.

        Raises:
            InvalidParameter: it is an ONNX node, as `antialias=True` asks for.
        """
        if isinstance(self.operation, OnnxNode):
            raise InvalidParameter(_NO_DESCRIPTOR)
        return self.operation

    @property
    def sent_shape(self) -> tuple[int, ...]:
        """The shape in which the input is sent."""
        return self.operation.inputs[0].layout.sizes

    @property
    def received_shape(self) -> tuple[int, ...]:
        """The shape in which the output is received."""
        return self.operation.outputs[0].layout.sizes


def resample_desc(
    tensor: NDArray[Any] | dml.BufferTensorDesc,
    *,
    sizes: int | Sequence[int] | None = None,
    scales: float | Sequence[float] | None = None,
    axes: int | Sequence[int] | None = None,
    mode: ResamplingMode = "linear",
    antialias: Literal[False, "directml"] = False,
) -> dml.OperatorDesc:
    """The descriptor of `resampling`, for tensors of at most 4 dimensions, where no shape changes.

    Args:
        tensor: see `resampling`.
        sizes: see `resampling`.
        scales: see `resampling`.
        axes: see `resampling`.
        mode: see `resampling`.
        antialias: `directml` for RESAMPLE3's filter. No descriptor has the filter that True stands for.

    Examples:
        >>> desc = resample_desc(np.zeros((480, 640, 3), np.float32), scales=0.5, axes=(0, 1))
        >>> desc.output_tensor.sizes, desc.scales
        ((240, 320, 3), (0.5, 0.5, 1.0))

    Raises:
        InvalidParameter: whatever `resampling` refuses, `antialias=True`, and a tensor of more than 4 dimensions.
        InvalidDescriptor: whatever `resampling` refuses.
    """
    if antialias_of(antialias) is True:
        raise InvalidParameter(_NO_DESCRIPTOR)
    plan = resampling(tensor, sizes=sizes, scales=scales, axes=axes, mode=mode, antialias=antialias)
    if len(plan.input_shape) > _MOST_DIMENSIONS:
        raise InvalidParameter(
            f"a descriptor of the Resample family has at most {_MOST_DIMENSIONS} dimensions, not "
            f"{len(plan.input_shape)}; resampling() merges those that are not resized and says how to reshape"
        )
    return plan.desc


def resampling(
    tensor: NDArray[Any] | dml.BufferTensorDesc,
    *,
    sizes: int | Sequence[int] | None = None,
    scales: float | Sequence[float] | None = None,
    axes: int | Sequence[int] | None = None,
    mode: ResamplingMode = "linear",
    antialias: Antialias = False,
) -> Resampling:
    """What to send to resize an array along any of its axes, pixel centres aligned, edges repeated.

    The operation is RESAMPLE2, except with `antialias`. There every resized axis has OutputPixelOffset -0.5 and, for
    linear,
    InputPixelOffset 0.5. For nearest RoundingDirection is DECREASING (floor) and InputPixelOffset 0, which is half up;
    it is lowered by half an input pixel or less on an axis where float32 would otherwise miss an element (see the
    module). Every other axis has Scale 1 and offsets 0.5 and -0.5.

    Args:
        tensor: the array, or its descriptor: float32, float16, int8 or uint8; with `antialias=True` whatever ONNX
            Resize takes.
        sizes: elements of the result along each of `axes`; Scale is then result size / input size.
        scales: factors along each of `axes`, larger than 0; the result has floor(size * scale) elements, and Scale is
            the factor itself. Exactly one of `sizes` and `scales` is given. See the module for how a scale is read.
        axes: the axes that `sizes` or `scales` refer to, negative ones counted from the end; all others keep their
            sizes.
            None means every axis, in order. A single number for `sizes` or `scales` applies to each of `axes`, which
            must then be given: rows and columns are `(-2, -1)` of N, C, H, W and `(0, 1)` of H, W, C.
        mode: `linear` (int8 and uint8 results are truncated toward zero), or `nearest`, which copies bit for bit.
        antialias: filter while shrinking; linear only. True is the filter of Pillow (`BILINEAR`) and PyTorch
            (`antialias=True`): ONNX Resize with `antialias` and `exclude_outside`, which rounds integers after each
            axis, the last axis first. `"directml"` is RESAMPLE3 with Antialiased TRUE, which filters each axis whose
            scale is below 1/2, in steps of halves. DirectML's own steps are not published, so its numbers differ from
            those computed here by more than rounding. Photographs of uint8 differ from Pillow's by at most 1 of 255
            with True and by up to 67 with `"directml"`; docs/compat.md has the measurement.

    Raises:
        InvalidParameter: the arguments are wrong, or ask for what the Resample family does not have; the message says
            what does.
        InvalidDescriptor: the result exceeds a limit of DirectML.
    """
    name, shape = _described(tensor)
    filtered = antialias_of(antialias) is True
    ratios: dict[int, tuple[int, Fraction]] = {}
    with contextlib.suppress(InvalidParameter):  # said below, after what comes first
        ratios.update(_ratios(shape, sizes, scales, axes))
    instead = _onnx_resize(ratios, sized=sizes is not None)
    message = ""
    for check in (
        lambda: None if filtered else _check_type(name, instead),
        lambda: mode_of(mode, antialias=bool(antialias), instead=instead),
        lambda: _ratios(shape, sizes, scales, axes),
    ):
        try:
            check()
        except InvalidParameter as error:
            message = message + ". Also: " + error.detail if message else error.detail
    if message:
        raise InvalidParameter(message)
    whole = [_resized(size, *ratios[axis]) if axis in ratios else _copied(size) for axis, size in enumerate(shape)]
    output_shape = tuple(axis.output_length for axis in whole)
    if filtered:
        if isinstance(tensor, dml.BufferTensorDesc) and not tensor.is_packed:
            raise InvalidParameter(
                "antialias=True is sent as ONNX Resize, whose tensors have no strides or padding; send a packed one"
            )
        return Resampling(resize_node(OnnxTensor(name, shape), whole, mode="linear", **FILTERED), shape, output_shape)
    element, mode = TensorDataType[cast("str", data_type(name).directml)], mode_of(mode)
    parts = whole if len(whole) <= _MOST_DIMENSIONS else _merged(whole)
    if len(parts) > _MOST_DIMENSIONS:
        raise InvalidParameter(
            f"{len(parts)} dimensions are left after merging neighbours that are not resized, and DirectML resamples "
            f"{_MOST_DIMENSIONS}; resize some axes in a call of their own, or send ONNX Resize, which has no limit"
        )
    if isinstance(tensor, dml.BufferTensorDesc) and len(parts) == len(whole):
        described = tensor
    elif isinstance(tensor, dml.BufferTensorDesc) and not tensor.is_packed:
        raise InvalidParameter(
            f"a tensor of {len(whole)} dimensions with strides or padding cannot be merged into "
            f"{_MOST_DIMENSIONS}; send a packed one"
        )
    else:
        described = dml.BufferTensorDesc.packed(element, [part.length for part in parts])
    desc, misses = build_descriptor(described, parts, mode, antialias=bool(antialias))
    return Resampling(desc, shape, output_shape, misses)


# ---- reading the arguments -------------------------------------------------------------------------------------------


def _described(tensor: object) -> tuple[str, tuple[int, ...]]:
    if isinstance(tensor, dml.BufferTensorDesc):
        name, shape = tensor.data_type.name.lower(), tensor.sizes
    elif isinstance(tensor, (np.ndarray, HeldTensor)):
        array = cast("NDArray[Any]", tensor)
        name, shape = array.dtype.name, array.shape
    else:
        raise InvalidParameter(
            f"x must be a NumPy array or a BufferTensorDesc, not {type(tensor).__name__}; np.asarray(x) makes an array"
        )
    if not shape:
        raise InvalidParameter(named("x") + " has no dimensions, so there is no axis to resample")
    if 0 in shape:
        raise InvalidParameter(
            named("x") + f" has the shape {shape} and no elements; DirectML has no empty tensors, ONNX Resize does"
        )
    return name, shape


def _onnx_resize(ratios: Mapping[int, tuple[int, Fraction]], *, sized: bool) -> str:
    """The same by ONNX Resize, as a call without its end; dots stand for what could not be read."""
    if not ratios:
        return 'tp.onnx("Resize", x, scales=[...], axes=[...]'
    numbers = [
        size if sized else int(ratio) if ratio.denominator == 1 else float(ratio) for size, ratio in ratios.values()
    ]
    return f'tp.onnx("Resize", x, {"sizes" if sized else "scales"}={numbers}, axes={[*ratios]}'


def _check_type(name: str, onnx: str) -> None:
    if name not in DML_TYPES:
        instead = {
            "bool": "x.view(np.uint8) has the same bytes to copy by nearest, and ONNX Resize takes bool",
            "bfloat16": "ONNX Resize takes it",
        }.get(
            name,
            "convert it first, as in x.astype(np.float32), or in a graph by Cast; or send ONNX Resize, which takes it "
            "and answers in the same type" + (", with fractions cut off" if name[:1] in "iu" else ""),
        )
        raise InvalidParameter(
            f"DirectML's Resample family takes {', '.join(DML_TYPES)}, not {name}; {instead}: "
            f'{onnx}, mode="linear"), or mode="nearest" with nearest_mode="round_prefer_ceil"'
        )


def antialias_of(value: object) -> Antialias:
    """The choice of a filter.

    Raises:
        InvalidParameter: there is no such choice.
    """
    if isinstance(value, bool):
        return value
    if value == "directml":
        return "directml"
    raise InvalidParameter(
        f"antialias is {shown(value)}; it must be True for the filter of Pillow and PyTorch, 'directml' for that of "
        "RESAMPLE3, or False"
    )


def mode_of(name: object, *, antialias: bool = False, instead: str = _onnx_resize({}, sized=False)) -> ResamplingMode:
    """The mode of this name.

    Args:
        name: the mode's name as the caller gave it, in either case.
        antialias: whether it must have a filter.
        instead: the same by ONNX Resize, for the message about cubic; see `_onnx_resize`.

    Raises:
        InvalidParameter: there is none, or it cannot be antialiased.
    """
    name = name.lower() if isinstance(name, str) else name
    name = "nearest" if name == "nearest_neighbor" else name
    if name in ("cubic", "bicubic"):
        raise InvalidParameter(
            f'mode is {name!r}, and DirectML has no cubic interpolation; ONNX Resize has: {instead}, mode="cubic")'
        )
    if name not in ("linear", "nearest"):
        guess = nearest(str(name), ("linear", "nearest"))
        hint = f". Did you mean {guess!r}?" if guess else ""
        raise InvalidParameter(f"mode is {str(name)[:40]!r}; it must be 'linear' or 'nearest'{hint}")
    if antialias and name == "nearest":
        raise InvalidParameter("antialias needs a filter, which nearest does not have; use mode='linear'")
    return name


def _ratios(shape: Sequence[int], sizes: object, scales: object, axes: object) -> dict[int, tuple[int, Fraction]]:
    """Output size and exact ratio of every axis that is resized."""
    if (sizes is None) == (scales is None):
        state = "both are" if sizes is not None else "neither is"
        raise InvalidParameter(
            "exactly one of " + named("sizes") + " and " + named("scales") + f" must be given, but {state}"
        )
    name, lengths = ("sizes", sizes) if scales is None else ("scales", scales)
    if isinstance(lengths, (str, bytes)):
        message = f" is {shown(lengths)}, a text; it must be a number or a sequence of numbers"
        raise InvalidParameter(named(name) + message)
    resized = range(len(shape)) if axes is None else _axes(axes, len(shape))
    entries = _entries(name, lengths, len(resized), all_axes=axes is None)
    ratios: dict[int, tuple[int, Fraction]] = {}
    for index, (axis, entry) in enumerate(zip(resized, entries, strict=True)):
        place, size = named(name, index), shape[axis]
        if name == "sizes":
            output = whole_number(place, entry)
            if output < 1:
                raise InvalidParameter(place + f" is {output}; a result has at least 1 element along every axis")
            ratios[axis] = output, Fraction(output, size)
        else:
            ratio = simplest_ratio(real_number(place, entry), place)
            output = math.floor(size * ratio)
            if output < 1:
                message = f" is {float(ratio):g}, which leaves none of the {size} elements of axis {axis}"
                raise InvalidParameter(place + message)
            ratios[axis] = output, ratio
    return ratios


def _axes(value: object, rank: int) -> Sequence[int]:
    axes: list[int] = []
    entries = entries_of(value)
    for index, entry in enumerate([value] if entries is None else entries):
        place = named("axes", index)
        axis = whole_number(place, entry)
        if not -rank <= axis < rank:
            dimensions = named("x") + f" has {counted(rank, 'dimension')}; axes go from {-rank} to {rank - 1}"
            raise InvalidParameter(place + f" is {axis}, but " + dimensions)
        if axis % rank in axes:
            raise InvalidParameter(place + f" is {axis}, an axis that was named before; name each axis once")
        axes.append(axis % rank)
    return axes


def _entries(name: str, value: object, count: int, *, all_axes: bool) -> list[object]:
    """One entry per axis; a single number is repeated."""
    if np.ndim(cast("Any", value)) == 0:
        if all_axes:
            message = " is a single number, which holds for every axis in " + named("axes")
            raise InvalidParameter(
                named(name) + message + "; name them, as in axes=(-2, -1) for the rows and columns of N, C, H, W or "
                "axes=(0, 1) for those of H, W, C"
            )
        return [value] * count
    entries = entries_of(value) or []
    if len(entries) != count:
        axes = named("x") + " has" if all_axes else named("axes") + " names"
        message = named(name) + f" has {entry_count(len(entries))} but " + axes + f" {counted(count, 'dimension')}"
        more = ", or say in " + named("axes") + " which are meant" if all_axes else ""
        raise InvalidParameter(message + "; give one for each" + more)
    return entries


def simplest_ratio(scale: float, what: str = "scale") -> Fraction:
    """The fraction of the smallest denominator (to within a factor of 2) that has the same 32-bit float.

    Examples:
        >>> simplest_ratio(0.7), simplest_ratio(1 / 3), simplest_ratio(0.5)
        (Fraction(7, 10), Fraction(1, 3), Fraction(1, 2))

    Raises:
        InvalidParameter: not a finite number above 0, also as a 32-bit float.
    """
    with np.errstate(over="ignore", under="ignore"):
        target = np.float32(scale)
    if not (np.isfinite(target) and target > 0):
        raise InvalidParameter(what + f" is {scale}; it must be a number above 0 that a 32-bit float can hold")
    exact, limit = Fraction(scale), 1
    while True:
        ratio = exact.limit_denominator(limit)
        if ratio > 0 and np.float32(float(ratio)) == target:
            return ratio
        limit *= 2


# ---- making the axes -------------------------------------------------------------------------------------------------


def _copied(size: int) -> ResizeAxis:
    return ResizeAxis(size, size, Fraction(1), nearest_mode="round_prefer_ceil")


def _resized(size: int, output_size: int, ratio: Fraction) -> ResizeAxis:
    step = 1 / ratio
    return ResizeAxis(size, output_size, ratio, step, (step - 1) / 2, "round_prefer_ceil")


def _merged(axes: Sequence[ResizeAxis]) -> list[ResizeAxis]:
    """Copied axes that stand side by side become one; their elements lie in one row anyway."""
    merged: list[ResizeAxis] = []
    for axis in axes:
        if merged and axis.is_copied and merged[-1].is_copied:
            merged[-1] = _copied(merged[-1].length * axis.length)
        else:
            merged.append(axis)
    return merged
