"""ONNX Tile and Resize again, index by index, in exact fractions; written from the operators' text alone.

It takes what a caller would send (attributes and small inputs), not what the packages under test made of it. Nothing is
rounded on the way: a float32 scale is the fraction it stands for, weights and sums are fractions, and integers are
rounded from the exact value. Its own error is therefore 0. Two things are as tensorpost defines them: a size computed
from scales is the floor of a float64 product, and an integer result short of a whole number (or of a tie) by less than
2^-32 counts as there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Axis", "Request", "exact", "resize", "tile"]

HALF = Fraction(1, 2)
NEAR = Fraction(1, 1 << 32)
Tap = tuple[int, Fraction]


def tile(x: NDArray[Any], repeats: Sequence[int]) -> NDArray[Any]:
    """`output[j0, j1, ...] = input[j0 mod in0, j1 mod in1, ...]`."""
    shape = tuple(size * count for size, count in zip(x.shape, repeats, strict=True))
    out = np.empty(shape, x.dtype)
    for place in itertools.product(*map(range, shape)):
        out[place] = x[tuple(o % size for o, size in zip(place, x.shape, strict=True))]
    return out


@dataclass(frozen=True)
class Request:
    """A Resize node as a caller writes it; defaults are those of Resize-19."""

    scales: Sequence[float] | None = None
    sizes: Sequence[int] | None = None
    roi: Sequence[float] | None = None
    axes: Sequence[int] | None = None
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    antialias: int = 0
    policy: str = "stretch"
    legacy: bool = False  # Resize-10 and Upsample: asymmetric, floor from scale 1 up and ceil below

    def attributes(self) -> dict[str, Any]:
        """ONNX's attributes, without defaults."""
        names = {
            "mode": "mode",
            "coordinates": "coordinate_transformation_mode",
            "nearest_mode": "nearest_mode",
            "cubic_coeff_a": "cubic_coeff_a",
            "exclude_outside": "exclude_outside",
            "extrapolation_value": "extrapolation_value",
            "antialias": "antialias",
            "policy": "keep_aspect_ratio_policy",
        }
        usual = Request()
        chosen: dict[str, Any] = {
            onnx: getattr(self, ours) for ours, onnx in names.items() if getattr(self, ours) != getattr(usual, ours)
        }
        return chosen if self.axes is None else {**chosen, "axes": list(self.axes)}

    def inputs(self) -> dict[str, Any]:
        """ONNX's small inputs, in the types of the signature."""
        arrays: dict[str, Any] = {}
        if self.roi is not None:
            arrays["roi"] = np.array(self.roi, np.float32)
        if self.scales is not None:
            arrays["scales"] = np.array(self.scales, np.float32)
        if self.sizes is not None:
            arrays["sizes"] = np.array(self.sizes, np.int64)
        return arrays


@dataclass(frozen=True)
class Axis:
    """One axis of a request: lengths, the scale of the coordinates, and the region for tf_crop_and_resize."""

    n: int
    length: int
    scale: Fraction
    start: Fraction = Fraction(0)
    end: Fraction = Fraction(1)


def exact(value: Any) -> Fraction:
    """The fraction that a number, of any width, stands for."""
    return Fraction(int(value)) if isinstance(value, (int, np.integer, np.bool_)) else Fraction(float(value))


def _float32(value: float) -> Fraction:
    return Fraction(float(np.float32(value)))


def axes_of(request: Request, shape: Sequence[int]) -> list[Axis]:
    """Every axis, also axes that are not resized."""
    rank = len(shape)
    named = [axis % rank for axis in request.axes] if request.axes is not None else list(range(rank))
    axes = [Axis(n, n, Fraction(1)) for n in shape]
    for i, axis in enumerate(named):
        n, start, end = shape[axis], Fraction(0), Fraction(1)
        if request.roi is not None and request.coordinates == "tf_crop_and_resize":
            start, end = _float32(request.roi[i]), _float32(request.roi[len(named) + i])
        if request.sizes is not None:
            length = request.sizes[i]
            scale = Fraction(length, n) if n else Fraction(1)
            if request.policy != "stretch":
                pick: Callable[..., Fraction] = min if request.policy == "not_larger" else max
                scale = pick(Fraction(size, shape[a]) for size, a in zip(request.sizes, named, strict=True))
                length = math.floor(scale * n + HALF)
        else:
            assert request.scales is not None
            scale = _float32(request.scales[i])
            length = math.floor(n * (float(end) - float(start)) * float(scale))
        axes[axis] = Axis(n, length, scale, start, end)
    return axes


def coordinate(request: Request, axis: Axis, o: int) -> Fraction:
    """x_original of ONNX's text."""
    n, length, s = axis.n, axis.length, axis.scale
    mode = "asymmetric" if request.legacy else request.coordinates
    if mode == "tf_crop_and_resize":
        if length > 1:
            return axis.start * (n - 1) + o * (axis.end - axis.start) * (n - 1) / (length - 1)
        return HALF * (axis.start + axis.end) * (n - 1)
    if s == 1 and length == n:
        return Fraction(o)  # an axis that is not resized is copied
    match mode:
        case "half_pixel":
            return (o + HALF) / s - HALF
        case "half_pixel_symmetric":
            adjustment = length / (s * n)
            return Fraction(n, 2) * (1 - adjustment) + (o + HALF) / s - HALF
        case "pytorch_half_pixel":
            return (o + HALF) / s - HALF if length > 1 else Fraction(0)
        case "align_corners":
            return Fraction(o * (n - 1), length - 1) if length > 1 else Fraction(0)
        case "asymmetric":
            return o / s
        case "tf_half_pixel_for_nn":
            return (o + HALF) / s
        case _:
            raise AssertionError(mode)


def _nearest(request: Request, axis: Axis, x: Fraction) -> int:
    how = request.nearest_mode
    if request.legacy:
        how = "floor" if axis.scale >= 1 else "ceil"
    match how:
        case "round_prefer_floor":
            return math.ceil(x - HALF)
        case "round_prefer_ceil":
            return math.floor(x + HALF)
        case "floor":
            return math.floor(x)
        case "ceil":
            return math.ceil(x)
        case _:
            raise AssertionError(how)


def _filter(request: Request, t: Fraction) -> Fraction:
    t = abs(t)
    if request.mode == "linear":
        return max(Fraction(0), 1 - t)
    a = _float32(request.cubic_coeff_a)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    if t < 2:
        return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
    return Fraction(0)


def taps(request: Request, axis: Axis, o: int) -> list[Tap] | None:
    """Input indices, no index twice, and weights of one output index; None if its x is outside and extrapolated."""
    x = coordinate(request, axis, o)
    if request.coordinates == "tf_crop_and_resize" and not 0 <= x <= axis.n - 1:
        return None
    last = axis.n - 1
    if request.mode == "nearest":
        return [(min(max(_nearest(request, axis, x), 0), last), Fraction(1))]
    stretch = max(Fraction(1), 1 / axis.scale) if request.antialias else Fraction(1)
    reach = math.ceil((1 if request.mode == "linear" else 2) * stretch) + 1
    around = range(math.floor(x) - reach, math.floor(x) + reach + 1)
    weighed = [(i, _filter(request, (i - x) / stretch)) for i in around]
    if request.exclude_outside:
        weighed = [(i, w) for i, w in weighed if 0 <= i <= last]
    total = sum(w for _, w in weighed)
    if not (request.exclude_outside or stretch > 1):
        total = Fraction(1)
    once: dict[int, Fraction] = {}
    for i, w in weighed:
        if w:
            inside = min(max(i, 0), last)
            once[inside] = once.get(inside, Fraction(0)) + w / total
    return sorted(once.items())


def resize(request: Request, x: NDArray[Any]) -> NDArray[Any]:
    """The output: fractions for real types, elements of the input's dtype for nearest."""
    axes = axes_of(request, x.shape)
    shape = tuple(axis.length for axis in axes)
    if request.mode == "nearest":
        return _fill(request, x, axes, np.empty(shape, x.dtype))
    values = np.empty(x.shape, object)
    for place in np.ndindex(x.shape):
        values[place] = exact(x[place])
    integer = x.dtype.kind in "iu"
    if request.antialias and integer:
        # Each axis is rounded to the type before the next one, the last axis first.
        for axis in reversed(range(x.ndim)):
            same = axes[axis].length == axes[axis].n
            if same and all(taps(request, axes[axis], o) == [(o, Fraction(1))] for o in range(axes[axis].n)):
                continue  # nothing to round: an axis that is not resized, or a region that is the whole axis
            alone = [axes[i] if i == axis else Axis(size, size, Fraction(1)) for i, size in enumerate(values.shape)]
            values = _fill(request, values, alone, np.empty(tuple(a.length for a in alone), object))
            values = _mapped(values, lambda v: _saturated(_half_away(v), x.dtype))
        for place in _places(shape):
            if any(taps(request, axis, o) is None for axis, o in zip(axes, place, strict=True)):
                values[place] = Fraction(_element(_float32(request.extrapolation_value), x.dtype))
        return values
    values = _fill(request, values, axes, np.empty(shape, object))
    return _mapped(values, lambda v: _saturated(_toward_zero(v), x.dtype)) if integer else values


def _fill(request: Request, x: NDArray[Any], axes: Sequence[Axis], out: NDArray[Any]) -> NDArray[Any]:
    for place in np.ndindex(out.shape):
        per_axis = [taps(request, axis, o) for axis, o in zip(axes, place, strict=True)]
        known = [t for t in per_axis if t is not None]
        if len(known) < len(per_axis):
            value = _float32(request.extrapolation_value)
            out[place] = value if out.dtype == object else _element(value, out.dtype)
        elif request.mode == "nearest":
            out[place] = x[tuple(t[0][0] for t in known)]
        else:
            out[place] = sum((_product(pick, x) for pick in itertools.product(*known)), Fraction(0))
    return out


def _product(pick: Sequence[Tap], x: NDArray[Any]) -> Fraction:
    weight = Fraction(1)
    for _, w in pick:
        weight *= w
    return weight * x[tuple(i for i, _ in pick)]


def _element(value: Fraction, dtype: np.dtype[Any]) -> Any:
    return _saturated(math.trunc(value), dtype) if dtype.kind in "iu" else float(value)


def _mapped(values: NDArray[Any], how: Callable[[Fraction], int]) -> NDArray[Any]:
    out = np.empty(values.shape, object)
    for place in _places(values.shape):
        out[place] = Fraction(how(values[place]))
    return out


def _places(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, shape))


def _toward_zero(value: Fraction) -> int:
    whole = math.floor(abs(value) + NEAR)
    return whole if value >= 0 else -whole


def _half_away(value: Fraction) -> int:
    whole = math.floor(abs(value) + HALF + NEAR)
    return whole if value >= 0 else -whole


def _saturated(whole: int, dtype: np.dtype[Any]) -> int:
    limits = np.iinfo(dtype)
    return min(max(whole, int(limits.min)), int(limits.max))
