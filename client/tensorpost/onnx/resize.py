"""What a Resize or Upsample node of any version means: per axis, which place of the input each output index reads.

Sources: ONNX Resize-10, -11, -13, -18 and -19, Upsample-7 and -9. tensorpost's choices where they are silent or
disagree:

* Sizes are computed in double precision, as ONNX's shape inference does; where float32, which ONNX Runtime uses, gives
  another size, the node carries a warning.
* Coordinates are exact ratios of whole numbers. A float32 scale stands for exactly the number it is.
* Resize-10 and Upsample name no coordinate rule: it is asymmetric, and nearest takes the floor on an axis whose scale
  is 1 or more and the ceiling below 1, as ONNX Runtime's CPU provider does.
* An axis of scale 1 whose length stays the same is copied, whatever the coordinate mode, except in tf_crop_and_resize.
* An empty roi, scales or sizes counts as not given.
* Cubic works on every rank and on any number of axes, as the text has it ("N-cubic for N-D").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from ..values.problems import counted, entry_count
from ..values.sentences import named
from .exact_lines import floors
from .inference_context import Broken, InferenceContext, InferredOutputs
from .operator_row import OperatorRow
from .operator_schema import InputValues
from .parameters import Parameters
from .tensor import too_large

__all__ = ["NearestMode", "ResizeAxis", "ResizeMode", "Resizing", "resizing"]

ResizeMode = Literal["nearest", "linear", "cubic"]
NearestMode = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]

MOST_STRETCH = 1 << 18  # of an antialiasing filter: its weights for one output take about 50 MB
_CROP = "tf_crop_and_resize"
_EXACT_IN_INT64 = 1 << 61  # coordinates are doubled to be rounded
_PYTHON_INTEGERS = 1 << 12  # computed without a pause; some milliseconds
_AT_ONCE = 1 << 20  # outputs whose indices are made at a time
_ZERO, _ONE, _HALF = Fraction(0), Fraction(1), Fraction(1, 2)


@dataclass(frozen=True, slots=True)
class ResizeAxis:
    """One axis: output index o reads the input at `x = step * o + offset`, in input pixels, exactly.

    Attributes:
        length: the input's length.
        output_length: the output's length.
        scale: what the coordinates are computed with; below 1, antialiasing stretches the filter by 1 / scale.
        step: input pixels from one output index to the next.
        offset: the coordinate of output index 0.
        nearest_mode: how nearest picks an index from x.
    """

    length: int
    output_length: int
    scale: Fraction
    step: Fraction = _ONE
    offset: Fraction = _ZERO
    nearest_mode: NearestMode = "round_prefer_floor"

    @property
    def is_copied(self) -> bool:
        """Whether every output index reads exactly the input element of the same index."""
        return self.length == self.output_length and self.offset == 0 and (self.step == 1 or self.length == 1)

    @property
    def inside(self) -> tuple[int, int]:
        """The half-open range of output indices whose x lies in [0, length - 1]; x is monotone, so there is one."""
        if self.step == 0:
            return (0, self.output_length) if 0 <= self.offset <= self.length - 1 else (0, 0)
        ends = sorted((-self.offset / self.step, (self.length - 1 - self.offset) / self.step))
        first, stop = max(0, math.ceil(ends[0])), min(self.output_length, math.floor(ends[1]) + 1)
        return (first, stop) if first < stop else (0, 0)

    def coordinates(self, start: int, stop: int) -> tuple[NDArray[Any], int]:
        """The x of outputs start to stop - 1, exactly.

        Returns:
            Numerators, int64 or where that is too narrow Python integers, and their common denominator.
        """
        step, first, denominator = self._numerators
        dtype: Any = np.int64 if self._fits_int64 else object
        return np.arange(start, stop).astype(dtype) * step + first, denominator

    @property
    def _numerators(self) -> tuple[int, int, int]:
        """Step, offset, and 1, in units that make them whole."""
        step, offset = self.step, self.offset
        one = math.lcm(step.denominator, offset.denominator)
        return step.numerator * (one // step.denominator), offset.numerator * (one // offset.denominator), one

    @property
    def _fits_int64(self) -> bool:
        """Whether all coordinates do, in these units; of the whole axis, so that parts of it get the same weights."""
        step, first, one = self._numerators
        return abs(step) * max(self.output_length, 1) + abs(first) + one * max(self.length, 1) < _EXACT_IN_INT64

    def places(self, start: int, stop: int, *, crops: bool = False) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The x of outputs start to stop - 1 for a filter: `floor(x)`, and `x - floor(x)` rounded once.

        Args:
            start: first output.
            stop: one past the last.
            crops: clamp x to [0, length - 1] first.
        """
        base, beyond = np.empty(stop - start, np.int64), np.empty(stop - start)
        # NumPy computes with Python integers without releasing the interpreter, and each takes up to 200 bytes.
        width = max(1, stop - start) if self._fits_int64 else _PYTHON_INTEGERS
        for first in range(start, stop, width):
            x, one = self.coordinates(first, min(first + width, stop))
            if crops:
                x = x.clip(0, (self.length - 1) * one)
            part = slice(first - start, first - start + len(x))
            base[part], beyond[part] = x // one, (x % one) / one
        return base, beyond

    def nearest(self, start: int, stop: int) -> NDArray[np.int64]:
        """The input index that `nearest_mode` picks for outputs start to stop - 1, clamped to the input."""
        if not self._fits_int64:
            return self._nearest_of_any(start, stop)
        x, one = self.coordinates(start, stop)
        match self.nearest_mode:
            case "round_prefer_floor":
                index = -((one - 2 * x) // (2 * one))
            case "round_prefer_ceil":
                index = (2 * x + one) // (2 * one)
            case "floor":
                index = x // one
            case "ceil":
                index = -(-x // one)
        return index.clip(0, self.length - 1).astype(np.int64)

    def _nearest_of_any(self, start: int, stop: int) -> NDArray[np.int64]:
        """`nearest`, where numerators do not fit int64."""
        step, offset, last = self.step, self.step * start + self.offset, self.length - 1
        found = np.empty(stop - start, np.int64)
        if step == 0:
            begin, end = 0, len(found)
            offset = min(max(offset, _ZERO), Fraction(last))
        else:
            # x is monotone: the first outputs may lie before one end of the input, and the last ones beyond the other.
            near, far = (0, last) if step > 0 else (last, 0)
            begin = min(max(math.ceil((near - offset) / step), 0), len(found))
            end = min(max(math.floor((far - offset) / step) + 1, 0), len(found))
            found[:begin], found[end:] = near, far
        for first in range(begin, end, _AT_ONCE):
            count = min(_AT_ONCE, end - first)
            x = step * first + offset
            match self.nearest_mode:
                case "round_prefer_floor":
                    index = -floors(-step, _HALF - x, count)
                case "round_prefer_ceil":
                    index = floors(step, x + _HALF, count)
                case "floor":
                    index = floors(step, x, count)
                case "ceil":
                    index = -floors(-step, -x, count)
            found[first : first + count] = index
        return found


@dataclass(frozen=True, slots=True)
class Resizing(Parameters):
    """A resize whose axes are resolved to coordinates.

    Attributes:
        mode: nearest, linear or cubic.
        axes: one entry per dimension of the tensor.
        coordinates: the coordinate transformation mode that `axes` was computed with.
        cubic_coeff_a: the parameter of the cubic filter.
        exclude_outside: give taps outside the input weight 0, and the others all of it.
        antialias: stretch the filter on axes whose scale is below 1.
        extrapolation_value: what an output element is if its x lies outside the input along any axis; None if no such
            rule holds (all modes but tf_crop_and_resize) or no element is outside.
    """

    mode: ResizeMode
    axes: tuple[ResizeAxis, ...]
    coordinates: str
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation_value: float | None = None


def resizing(context: InferenceContext) -> InferredOutputs:
    """The output's shape, and per axis which place of the input each output index reads."""
    mode = cast("ResizeMode", context.attributes.get("mode", "nearest"))
    data_type = context.first.data_type
    _attribute_rules(context, mode)
    axes = _axes(context)
    if axes is None:
        _scale_rules(context, None)
        raise Broken
    _scale_rules(context, len(axes))
    roi = _roi(context, axes)
    sizes, scales = _numbers(context, "sizes"), _numbers(context, "scales")
    if context.report.violations:
        raise Broken
    if sizes is not None:
        resized = _by_sizes(context, axes, [int(size) for size in sizes])
    else:
        resized = _by_scales(context, axes, scales or (), roi)
    shape = tuple([axis.output_length for axis in resized])
    if not context.report.violations and too_large(data_type, shape):
        name = "sizes" if sizes is not None else "scales"
        context.report.add(
            "output-too-large", context.place(name),
            f"the output would have the shape {list(shape)}, whose bytes do not fit a signed 64-bit number",
            list(context.values.get(name, ())), "an output of fewer than 2^63 bytes",
        )  # fmt: skip
    if context.report.violations:
        raise Broken
    placed = [_place_axis(context, axis, roi.get(index)) for index, axis in enumerate(resized)]
    outside = _coordinates(context) == _CROP and any(axis.inside != (0, axis.output_length) for axis in placed)
    if outside and data_type == "str":
        context.report.add(
            "mode-type", ("inputs", "roi"),
            "the roi reaches outside the input, where the output is extrapolation_value, which is not a string",
            list(context.values["roi"]), "a roi inside the input",
        )  # fmt: skip
        raise Broken
    if context.attributes.get("antialias") == 1:
        for axis, place in enumerate(placed):
            if place.scale * MOST_STRETCH < 1 and place.output_length:
                context.report.add(
                    "antialias-too-wide", ("attributes", "antialias"),
                    f"axis {axis} shrinks by {float(1 / place.scale):.3g}, and each output would read twice as "
                    f"many elements; at most {MOST_STRETCH} can be filtered here", float(place.scale),
                    f"a scale of at least 1/{MOST_STRETCH}, or antialias 0",
                )  # fmt: skip
                raise Broken
    parameters = Resizing(
        mode=mode,
        axes=tuple(placed),
        coordinates=_coordinates(context),
        cubic_coeff_a=float(cast("float", context.attributes.get("cubic_coeff_a", -0.75))),
        exclude_outside=bool(context.attributes.get("exclude_outside", 0)),
        antialias=bool(context.attributes.get("antialias", 0)),
        extrapolation_value=cast("float", context.attributes["extrapolation_value"]) if outside else None,
    )
    return InferredOutputs([shape], parameters, {"output": data_type})


def _coordinates(context: InferenceContext) -> str:
    return str(context.attributes.get("coordinate_transformation_mode", "asymmetric"))


def _numbers(context: InferenceContext, name: str) -> InputValues | None:
    """A small input's entries, or Upsample-7's attribute; None if it was left out or is empty."""
    return context.numbers(name) or None


def _attribute_rules(context: InferenceContext, mode: ResizeMode) -> None:
    if context.attributes.get("antialias") == 1 and mode == "nearest":
        context.report.add(
            "antialias-nearest", ("attributes", "antialias"),
            "antialias needs a filter to stretch, which nearest does not have; use linear or cubic", 1,
            "0, or mode linear or cubic",
        )  # fmt: skip
    if mode != "nearest" and context.first.data_type in ("bool", "str"):
        context.report.add(
            "mode-type", ("attributes", "mode"),
            f"{mode} computes weighted averages, which do not exist for tensor({context.first.row.onnx}); use nearest",
            mode, "nearest",
        )  # fmt: skip
    policy = context.attributes.get("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch" and _numbers(context, "scales") is not None:
        context.report.add(
            "policy-with-scales", ("attributes", "keep_aspect_ratio_policy"),
            f"{policy} says how to read sizes, but scales is given; send sizes, or leave the policy out", policy,
            "stretch",
        )  # fmt: skip


def _axes(context: InferenceContext) -> tuple[int, ...] | None:
    """The axes that scales, sizes and roi speak of, from 0 up; None if they are wrong."""
    rank = len(context.first.shape)
    if "axes" not in context.attributes:
        return tuple(range(rank))
    axes = cast("tuple[int, ...]", context.attributes["axes"])
    before = len(context.report.violations)
    seen: dict[int, int] = {}
    for index, axis in enumerate(axes):
        if not -rank <= axis < rank:
            context.report.add(
                "axis-out-of-range", ("attributes", "axes", index),
                f"axis {axis} does not exist in an input of {rank} dimensions", axis,
                f"{-rank} to {rank - 1}" if rank else "an input of rank 1 or more",
            )  # fmt: skip
        elif axis % rank in seen:
            context.report.add(
                "axis-repeated", ("attributes", "axes", index),
                f"axis {axis} is the same as " + named("axes", seen[axis % rank]) + "; name each axis once", axis,
                "axes that differ",
            )  # fmt: skip
        else:
            seen[axis % rank] = index
    return tuple(seen) if len(context.report.violations) == before else None


def _scale_rules(context: InferenceContext, count: int | None) -> None:
    sizes, scales = _numbers(context, "sizes"), _numbers(context, "scales")
    readable = not (_is_wrong(context, "scales") or _is_wrong(context, "sizes"))
    if context.schema.input("sizes") and readable and (sizes is None) == (scales is None):
        state = "both are" if sizes is not None else "neither is"
        context.report.add(
            "scales-or-sizes", ("inputs", "scales"),
            "exactly one of " + named("scales") + f" and sizes must be given, but {state} (an empty one counts as not "
            "given)",
            None if scales is None else list(scales), "one of scales and sizes",
        )  # fmt: skip
    of_what = "axes names" if "axes" in context.attributes else "the input has"
    for name, entries in (("scales", scales), ("sizes", sizes)):
        if entries is not None and count is not None and len(entries) != count:
            context.report.add(
                "array-length", context.place(name),
                named(name) + f" has {entry_count(len(entries))} but {of_what} {counted(count, 'dimension')}; "
                "send one entry for each", list(entries), entry_count(count),
            )  # fmt: skip
    if scales is None and not context.schema.input("sizes") and count and _was_sent(context, "scales"):
        context.report.add(
            "array-length", context.place("scales"),
            named("scales") + f" is empty but the input has {counted(count, 'dimension')}", [], entry_count(count),
        )  # fmt: skip
    at_least_1 = context.schema.op_type == "Upsample"
    for index, scale in enumerate(scales or ()):
        if not (math.isfinite(scale) and scale > 0) or (at_least_1 and scale < 1):
            expected = "a finite number, 1 or more" if at_least_1 else "a finite number larger than 0"
            context.report.add(
                "scale-range", (*context.place("scales"), index),
                named("scales", index) + f" is {scale}; it must be {expected}",
                scale if math.isfinite(scale) else str(scale), expected,
            )  # fmt: skip
    for index, size in enumerate(sizes or ()):
        if size < 0:
            context.report.add(
                "size-negative", ("inputs", "sizes", index),
                named("sizes", index) + f" is {size}; it cannot be negative", size, "0 or more",
            )  # fmt: skip


def _is_wrong(context: InferenceContext, name: str) -> bool:
    """Whether it was found wrong already, or missing; what follows from that is not a mistake of its own."""
    return any(violation.path[:2] == context.place(name) for violation in context.report.violations)


def _was_sent(context: InferenceContext, name: str) -> bool:
    return name in (context.values if context.schema.input(name) else context.attributes)


def _roi(context: InferenceContext, axes: tuple[int, ...]) -> dict[int, tuple[Fraction, Fraction]]:
    """Axis to (start, end), for tf_crop_and_resize only; other modes must still send a roi of the right length."""
    roi, count = _numbers(context, "roi"), len(axes)
    crops = _coordinates(context) == _CROP
    if _is_wrong(context, "roi"):
        return {}
    if roi is None:
        if crops and (count or not _was_sent(context, "roi")):
            context.report.add(
                "roi-missing", ("inputs", "roi"),
                "tf_crop_and_resize reads the region to crop from roi: all starts, then all ends", None,
                f"{2 * count} numbers",
            )  # fmt: skip
        return {}
    if len(roi) != 2 * count:
        of_what = "the axes" if "axes" in context.attributes else "the input's dimensions"
        context.report.add(
            "array-length", ("inputs", "roi"),
            named("roi") + f" has {entry_count(len(roi))}; it needs a start for each of {of_what}, then an end "
                "for each",
            list(roi),
            f"{2 * count} numbers" + ("" if crops else f", or none, since {_coordinates(context)} does not use them"),
        )  # fmt: skip
        return {}
    for index, edge in enumerate(roi):
        if not math.isfinite(edge):
            message = named("roi", index) + f" is {edge}; it must be finite"
            context.report.add("roi-not-finite", ("inputs", "roi", index), message, str(edge), "a finite number")
            return {}
    if not crops:
        return {}
    edges = [Fraction(edge) for edge in roi]
    return {axis: (edges[i], edges[i + count]) for i, axis in enumerate(axes)}


# -- sizes --


def _by_sizes(context: InferenceContext, axes: tuple[int, ...], sizes: Sequence[int]) -> list[ResizeAxis]:
    shape = context.first.shape
    policy = str(context.attributes.get("keep_aspect_ratio_policy", "stretch"))
    resized = [_unchanged(length) for length in shape]
    for index, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        if shape[axis] == 0 and (size or policy != "stretch"):
            context.report.add(
                "empty-axis", ("inputs", "sizes", index),
                f"axis {axis} of the input is empty; it cannot become {counted(size, 'element')} long", size,
                "0, and no aspect ratio to keep",
            )  # fmt: skip
        elif policy == "stretch":
            # An output of length 0 has no coordinates; its scale of 0 would only divide by zero.
            resized[axis] = ResizeAxis(shape[axis], size, Fraction(size, shape[axis]) if size else _ONE)
    if policy == "stretch" or any(shape[axis] == 0 for axis in axes):
        return resized
    ratios = [Fraction(size, shape[axis]) for axis, size in zip(axes, sizes, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    for axis in axes:
        length = math.floor(scale * shape[axis] + _HALF)
        _warn_of_float32(context, f"{policy} of sizes", axis, length, _in_float32(shape[axis], scale, 0.5))
        resized[axis] = ResizeAxis(shape[axis], length, scale or _ONE)
    return resized


def _by_scales(
    context: InferenceContext, axes: tuple[int, ...], scales: InputValues, roi: Mapping[int, tuple[Fraction, Fraction]]
) -> list[ResizeAxis]:
    resized = [_unchanged(length) for length in context.first.shape]
    for index, (axis, scale) in enumerate(zip(axes, scales, strict=True)):
        length, factor = context.first.shape[axis], 1.0
        if axis in roi:
            start, end = roi[axis]
            factor = float(end) - float(start)
        extent = length * factor * float(scale)
        if extent < 0 or not math.isfinite(extent):
            context.report.add(
                "roi-reversed", ("inputs", "roi", index),
                f"roi of axis {axis} times scales[{index}] gives the length {extent}; to read an axis backwards or "
                "far beyond its ends, send sizes in place of scales", float(roi[axis][0]) if axis in roi else scale,
                "an end after the start",
            )  # fmt: skip
            continue
        output = math.floor(extent)
        if factor == 1.0:
            _warn_of_float32(context, f"scales[{index}]", axis, output, _in_float32(length, scale))
        elif output != (uncropped := math.floor(length * float(scale))):
            context.report.warnings.append(
                f"axis {axis}: {counted(output, 'element')}, since the text of {context.schema.name} multiplies by "
                f"the roi's extent too; ONNX's shape inference and ONNX Runtime do not, and give {uncropped}; send "
                "sizes to have one answer everywhere"
            )
        resized[axis] = ResizeAxis(length, output, Fraction(float(scale)))
    return resized


def _warn_of_float32(context: InferenceContext, what: str, axis: int, length: int, in_float32: int | None) -> None:
    if in_float32 not in (None, length):
        context.report.warnings.append(
            f"axis {axis}: {what} gives {counted(length, 'element')} here and in ONNX's shape inference, which use "
            f"double precision, but {in_float32} in float32, as in ONNX Runtime; send sizes with the policy "
            "stretch to have one answer everywhere"
        )


# -- coordinates --


def _place_axis(context: InferenceContext, axis: ResizeAxis, roi: tuple[Fraction, Fraction] | None) -> ResizeAxis:
    nearest_mode = cast("NearestMode | None", context.attributes.get("nearest_mode"))
    if nearest_mode is None:  # Resize-10 and Upsample
        nearest_mode = "floor" if axis.scale >= 1 else "ceil"
    axis = replace(axis, nearest_mode=nearest_mode)
    n, last, scale = axis.length, axis.output_length - 1, axis.scale
    if _coordinates(context) == _CROP:
        start, end = roi or (_ZERO, _ONE)
        if last > 0:
            return replace(axis, step=(end - start) * (n - 1) / last, offset=start * (n - 1))
        return replace(axis, step=_ZERO, offset=(start + end) * (n - 1) / 2)
    if (n == axis.output_length and scale == 1) or last < 0:
        return axis
    match _coordinates(context):
        case "half_pixel":
            return replace(axis, step=1 / scale, offset=(1 / scale - 1) / 2)
        case "half_pixel_symmetric":
            return replace(axis, step=1 / scale, offset=(n - 1) * _HALF - last / (2 * scale))
        case "pytorch_half_pixel" if last:
            return replace(axis, step=1 / scale, offset=(1 / scale - 1) / 2)
        case "align_corners" if last:
            return replace(axis, step=Fraction(n - 1, last))
        case "pytorch_half_pixel" | "align_corners":
            return replace(axis, step=_ZERO)
        case "tf_half_pixel_for_nn":
            return replace(axis, step=1 / scale, offset=1 / (2 * scale))
        case _:
            return replace(axis, step=1 / scale)


def _unchanged(length: int) -> ResizeAxis:
    return ResizeAxis(length, length, _ONE)


def _in_float32(length: int, scale: Fraction | float, add: float = 0.0) -> int | None:
    """The size that float32 arithmetic gives; None where that overflows."""
    with np.errstate(over="ignore"):
        extent = np.float32(length) * np.float32(float(scale)) + np.float32(add)
    return math.floor(float(extent)) if np.isfinite(extent) else None


RESIZE_ROW = OperatorRow(resizing, None, reads_broken=True)
