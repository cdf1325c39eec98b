"""Where answers differ from DirectML's by more than rounding: rules that say of each element why.

A rule names operators and a condition on the call, and says what DirectML's number may then be: how near, which values,
or which of those in the inputs. What no rule covers fails a test; another damages answers, and wants that seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tensorpost.descriptors import OperatorDesc

__all__ = ["DEVIATIONS", "FOLLOWS", "UNITS", "Compared", "Deviation", "explained"]

Array = NDArray[Any]
Covered = Array | bool
UNITS = 8
"""Of the last place, of the larger of two numbers: what counts as rounding."""

Follows = Literal["tensorpost", "DirectML", "both", "silent", "undefined", "literal"]
FOLLOWS: dict[Follows, str] = {
    "tensorpost": "tensorpost",
    "DirectML": "DirectML",
    "both": "both: it promises no accuracy",
    "silent": "the page is silent",
    "undefined": "the page leaves it undefined",
    "literal": "DirectML, if the formula of the page is taken literally; tensorpost takes its limit",
}
"""Which of us follows the operator's page, in words."""


@dataclass(frozen=True)
class Compared:
    """One output of a call, computed twice.

    Attributes:
        desc: the descriptor.
        inputs: the elements of the inputs.
        mine: what tensorpost computed.
        theirs: what DirectML answered.
        name: the output's slot.
    """

    desc: OperatorDesc
    inputs: Sequence[Array]
    mine: Array
    theirs: Array
    name: str = "output"

    def wrong(self) -> Array:
        """The elements that differ by more than rounding."""
        mine, theirs = self.mine, self.theirs
        if mine.dtype.kind != "f":
            return mine != theirs
        with np.errstate(all="ignore"):
            unit = np.spacing(np.maximum(np.abs(mine), np.abs(theirs))).astype(np.float64)
            near = self.distance() <= UNITS * unit
        return ~(near | (mine == theirs) | (np.isnan(mine) & np.isnan(theirs)))

    def distance(self) -> Array:
        """Between the numbers; NaN where one is not finite."""
        with np.errstate(all="ignore"):
            return np.abs(self.mine.astype(np.float64) - self.theirs.astype(np.float64))

    def within(self, absolute: float | Array, relative: float = 0.0) -> Array:
        """Both are finite and near; FLOAT16 has its own rounding beside that."""
        with np.errstate(all="ignore"):
            size = np.abs(self.mine.astype(np.float64))
            rounding = 2**-10 * size if self.half else 0.0
            near = self.distance() <= absolute + relative * size + rounding
            return near & np.isfinite(self.mine) & np.isfinite(self.theirs)

    @property
    def half(self) -> bool:
        """Whether the output is FLOAT16."""
        return self.mine.dtype == np.float16

    @property
    def integer(self) -> bool:
        """Whether the output is of integers."""
        return self.mine.dtype.kind in "iu"

    @property
    def floats(self) -> list[Array]:
        """The floating-point inputs."""
        return [array for array in self.inputs if array.dtype.kind == "f"]

    @property
    def largest(self) -> float:
        """The product of the largest finite magnitudes of the inputs, of those above 1."""
        found = 1.0
        for array in self.inputs:
            with np.errstate(all="ignore"):
                finite = np.abs(array.astype(np.float64))[np.isfinite(array)]
            found *= max(1.0, float(finite.max())) if finite.size else 1.0
        return found

    def somewhere(self, test: Callable[[Array], Array]) -> bool:
        """Whether an element of a floating-point input passes."""
        return any(test(array).any() for array in self.floats)

    def here(self, test: Callable[[Array], Array]) -> Array:
        """Where an element of an input of the output's sizes passes, at the same place."""
        passes = [test(array) for array in self.floats if array.shape == self.mine.shape]
        return np.logical_or.reduce(passes) if passes else np.zeros(self.mine.shape, bool)

    def among_inputs(self, *others: float) -> Array:
        """Where DirectML's number is an element of an input, or one of some others."""
        return np.isin(self.theirs, np.concatenate([*[array.ravel() for array in self.inputs], np.asarray(others)]))

    def is_one_of(self, *numbers: float) -> Covered:
        """Where DirectML's number, of floating point, is one of these in the output's type."""
        return not self.integer and np.isin(self.theirs, np.asarray(numbers, np.float64).astype(self.mine.dtype))

    def between_inputs(self, *others: float, beyond: float = 0.0) -> Array:
        """Where DirectML's number is between the finite elements of the first input and some others, roughly.

        Args:
            others: numbers that count as elements.
            beyond: how far outside it may be, in shares of the distance between the least and the largest.
        """
        first = self.inputs[0].astype(np.float64)
        known = np.concatenate([first[np.isfinite(first)], np.asarray(others, np.float64)])
        if not known.size:
            return np.zeros(self.mine.shape, bool)
        low, high = known.min(), known.max()
        room = beyond * (high - low) + 1e-3 * max(abs(low), abs(high)) + self.integer
        return (self.theirs >= low - room) & (self.theirs <= high + room)


@dataclass(frozen=True)
class Deviation:
    """A known way to differ.

    Attributes:
        reason: for the page.
        operators: short names; empty for all.
        follows: which of us follows the operator's page.
        covers: the elements that it explains, in calls that it is for.
    """

    reason: str
    operators: frozenset[str]
    follows: Follows
    covers: Callable[[Compared], Covered]


def _names(prefix: str, names: str) -> frozenset[str]:
    return frozenset(prefix + name for name in names.split())


def _attributes(desc: Any) -> list[float]:
    """The numbers of a descriptor, such as the bounds of CLIP."""
    values = [getattr(desc, field.attribute_name) for field in desc.facts.fields if field.kind == "attribute"]
    return [float(value) for value in values if isinstance(value, (int, float))]


# ---- what rules look at ----------------------------------------------------------------------------------------------


def _linear(seen: Compared) -> bool:
    return getattr(seen.desc, "interpolation_mode", 0) == 1


def _steps_of_other_axes(seen: Compared) -> Covered:
    desc: Any = seen.desc
    usual = set(desc.input_pixel_offsets) == {0.5} and set(desc.output_pixel_offsets) == {-0.5}
    if not (_linear(seen) and desc.antialiased and not usual and max(desc.scales) >= 0.5 > min(desc.scales)):
        return False
    return seen.between_inputs()


def _beside_a_boundary(seen: Compared) -> Array:
    """Outputs with a coordinate that is a half or a whole number but for the rounding of a Scale, no power of 2."""
    desc: Any = seen.desc
    found = np.zeros(seen.mine.shape, bool)
    offsets = zip(desc.scales, desc.input_pixel_offsets, desc.output_pixel_offsets, strict=True)
    for axis, (scale, first, second) in enumerate(offsets):
        if np.frexp(scale)[0] == 0.5:
            continue
        place = (np.arange(seen.mine.shape[axis]) - second) / float(np.float32(scale))
        near = np.zeros(place.shape, bool)
        for number in (place, place - first):
            near |= np.abs(2 * number - np.rint(2 * number)) < 2e-6 * np.maximum(1, np.abs(number))
        found |= near.reshape([-1 if dimension == axis else 1 for dimension in range(found.ndim)])
    return found


def _rounded_coordinate(seen: Compared) -> Covered:
    if not _linear(seen):
        return _beside_a_boundary(seen) & seen.among_inputs()
    offsets: Sequence[float] = seen.desc.input_pixel_offsets  # pyright: ignore[reportAttributeAccessIssue] # of RESAMPLE*
    if min(offsets) >= 0 and max(offsets) <= 1:
        return False  # the neighbours change, but not the number between them
    return _beside_a_boundary(seen) & seen.between_inputs(beyond=max(map(abs, offsets)))


def _one_dimension(seen: Compared) -> Covered:
    offsets: Sequence[float] = seen.desc.input_pixel_offsets  # pyright: ignore[reportAttributeAccessIssue] # of RESAMPLE*
    outside = _linear(seen) and len(offsets) == 1 and not 0 <= offsets[0] <= 1
    return outside and seen.among_inputs()


def _powers(seen: Compared) -> Covered:
    """To 4e-6 of the value or to 1; of 0 anything that a logarithm of -infinity gives."""
    of_zero = (seen.inputs[0] == 0) & np.isin(seen.theirs, (0.0, np.inf, -np.inf, np.nan))
    return seen.within(float(seen.integer), 4e-6) | of_zero


def _remainders(seen: Compared) -> Array:
    """Off by the rounding of the quotient, or a whole divisor beside that."""
    a, b = (np.abs(array.astype(np.float64)) for array in seen.inputs[:2])
    off, room = seen.distance(), 2e-7 * a
    return (off <= room) | (np.abs(off - b) <= room) | (off <= room + b) & (a > 2**20 * b)


def _of_activation(seen: Compared) -> Covered:
    fused = getattr(seen.desc, "fused_activation", None)
    return fused is not None and np.isnan(seen.mine) & seen.is_one_of(0.0, *_attributes(fused))


def _of_ordered(seen: Compared) -> Covered:
    """Indices of elements there are, values of the input, or ones and zeros."""
    if not seen.somewhere(np.isnan):
        return False
    if seen.integer:
        return seen.theirs < seen.inputs[0].size
    ones = seen.desc.operator_type.startswith("ACTIVATION_HARDMAX")
    return np.isin(seen.theirs, (0.0, 1.0)) if ones else np.isnan(seen.theirs) | seen.among_inputs()


def _adam_moments(seen: Compared) -> Covered:
    """Moments off by the rounding of what was taken off and added again, and the step by those."""
    desc: Any = seen.desc
    parameters, first, second, gradient = (array.astype(np.float64) for array in seen.inputs[:4])
    unit = 2.0 ** (-9 if seen.half else -22)
    if seen.name == "output_first_moment":
        return seen.within(unit * (np.abs(first) + np.abs(gradient)))
    off = unit * (np.abs(second) + gradient**2)
    if seen.name == "output_second_moment":
        return seen.within(off)
    moment = desc.beta2 * second + (1 - desc.beta2) * gradient**2
    largest, least = (np.sqrt(np.maximum(moment + sign * off, 0)) + desc.epsilon for sign in (1, -1))
    return seen.within(np.abs(seen.mine - parameters) * (largest / least - 1))


def _of_recurrent(seen: Compared) -> Array:
    """Limited to the numbers of the type, so that no infinity and no NaN is left."""
    return np.isfinite(seen.theirs) | (np.isinf(seen.theirs) & seen.half)


def _index_outside(seen: Compared) -> Covered:
    """Some index of GATHER or SCATTER_ELEMENTS is outside the axis."""
    sizes, axis = seen.inputs[0].shape, getattr(seen.desc, "axis", 0)
    outside = (seen.inputs[1] < -sizes[axis]) | (seen.inputs[1] >= sizes[axis])
    return seen.among_inputs(0.0) if outside.any() else False


def _length_outside(seen: Compared) -> Covered:
    """In rows of a batch whose length is beyond the sequence: zeros as the last state."""
    names = [slot.name for slot in seen.desc.inputs]
    if "sequence_lengths" not in names:
        return False
    rows = seen.inputs[names.index("sequence_lengths")].ravel() > seen.inputs[0].shape[1]
    last = seen.theirs == 0 if "single" in seen.name else False
    return rows[:, None] & last


def _bound_outside(seen: Compared) -> bool:
    limits, bounds = np.iinfo(seen.mine.dtype), _attributes(seen.desc)
    return min(bounds) < limits.min or max(bounds) > limits.max


def _no_quotient(seen: Compared) -> Covered:
    """The zero point, or 0, where x / scale is no number."""
    if not seen.integer:
        return False
    odd = seen.here(lambda x: ~np.isfinite(x) | (x == 0))
    if seen.desc.operator_type != "ELEMENT_WISE_QUANTIZE_LINEAR":
        odd = np.bool_(seen.somewhere(lambda x: ~np.isfinite(x) | (x == 0)))
    zero_points = [array.ravel() for array in seen.inputs if array.dtype == seen.mine.dtype]
    return odd & np.isin(seen.theirs, np.concatenate([*zero_points, [0]]))


# ---- the rules -------------------------------------------------------------------------------------------------------

_FORWARD = frozenset({"UPSAMPLE_2D", "RESAMPLE", "RESAMPLE1", "RESAMPLE2", "RESAMPLE3"})
_NORMALIZED = _names(
    "",
    "BATCH_NORMALIZATION BATCH_NORMALIZATION_GRAD BATCH_NORMALIZATION_TRAINING BATCH_NORMALIZATION_TRAINING_GRAD "
    "LOCAL_RESPONSE_NORMALIZATION_GRAD MEAN_VARIANCE_NORMALIZATION MEAN_VARIANCE_NORMALIZATION1 "
    "MEAN_VARIANCE_NORMALIZATION2",
)
_SUMS = _NORMALIZED | _FORWARD | {"RESAMPLE_GRAD", "RESAMPLE_GRAD1", "GEMM", "CONVOLUTION", "REDUCE"}
_ARC = _names("ELEMENT_WISE_", "ACOS ASIN ATAN ATAN_YX")
_CURVES = _names("ELEMENT_WISE_", "ERF TANH ASINH ACOSH ATANH SINH COSH EXP LOG") | _names(
    "ACTIVATION_",
    "CELU ELU GELU LOG_SOFTMAX LOG_SOFTMAX1 PARAMETRIC_SOFTPLUS SCALED_ELU SCALED_TANH SIGMOID SOFTMAX SOFTMAX1 "
    "SOFTPLUS SWISH TANH",
)
_RECURRENT = frozenset({"RNN", "GRU", "LSTM"})
_FUSED = frozenset({"GEMM", "CONVOLUTION", "ELEMENT_WISE_ADD1"})
_LARGEST = frozenset({"MAX_POOLING", "MAX_POOLING1", "MAX_POOLING2"})
_QUARTERS = (np.pi / 4, 3 * np.pi / 4)

DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "RESAMPLE3 antialiased, with offsets other than 0.5 and -0.5: axes that are not filtered go through steps too",
        frozenset({"RESAMPLE3"}), "tensorpost", _steps_of_other_axes,
    ),
    Deviation(
        "a region of thousands of elements: which samples lie inside shows their rounding in FLOAT32",
        frozenset({"ROI_ALIGN", "ROI_ALIGN1"}), "both",
        lambda seen: (np.abs(seen.inputs[1].astype(float)) > 4096).any()
        & seen.between_inputs(getattr(seen.desc, "out_of_bounds_input_value", 0.0)),
    ),
    Deviation(
        "LINEAR of INT8 and UINT8: the sum is truncated, and beside a whole number its rounding shows",
        _FORWARD, "silent", lambda seen: (seen.distance() <= 1) & (seen.mine.dtype.kind in "iu" and _linear(seen)),
    ),
    Deviation(
        "a coordinate that is a half or a whole number but for its rounding in FLOAT32: the neighbour",
        frozenset({"RESAMPLE1", "RESAMPLE2", "RESAMPLE3"}), "both", _rounded_coordinate,
    ),
    Deviation(
        "LINEAR of one dimension, with an InputPixelOffset outside 0 to 1: at the end the element itself",
        frozenset({"RESAMPLE1", "RESAMPLE2", "RESAMPLE3"}), "DirectML", _one_dimension,
    ),
    Deviation(
        "arc functions are approximated to 7e-5", _ARC, "both", lambda seen: seen.within(7.5e-5),
    ),
    Deviation(
        "functions are approximated, to 5e-7 or 3e-6 of the value", _CURVES, "both",
        lambda seen: seen.within(5e-7, 3e-6),
    ),
    Deviation(
        "FLOAT16: the logarithm of the sum is rounded before it is taken off",
        _names("ACTIVATION_", "LOG_SOFTMAX LOG_SOFTMAX1"), "both",
        lambda seen: seen.within(2**-10 * seen.largest) & seen.half,
    ),
    Deviation(
        "powers go by logarithms, to 4e-6 of the value; an integer may be one less, and a power of 0 be 0",
        _names("ELEMENT_WISE_", "POW CONSTANT_POW"), "tensorpost", _powers,
    ),
    Deviation(
        "the order of sums shows where they cancel", _SUMS, "both", lambda seen: seen.within(1e-6 * seen.largest),
    ),
    Deviation(
        "FLOAT16: means and sums are FLOAT16 on the way, which shows where they cancel", _NORMALIZED, "silent",
        lambda seen: seen.within(2**-10 * seen.largest) & seen.half,
    ),
    Deviation(
        "a moment is `old + (1 - beta) * (new - old)`, whose rounding shows in the step", frozenset({"ADAM_OPTIMIZER"}),
        "both", _adam_moments,
    ),
    Deviation(
        "log(x + sqrt(x * x + 1)) cancels below 0", frozenset({"ELEMENT_WISE_ASINH"}), "both",
        lambda seen: seen.within(2e-7 * np.sinh(seen.mine.astype(np.float64)) ** 2) & (seen.mine < 0),
    ),
    Deviation(
        "integers beyond FLOAT16 are infinite on the way, and NaN when they are subtracted",
        frozenset({"MATRIX_MULTIPLY_INTEGER_TO_FLOAT"}), "tensorpost",
        lambda seen: np.isnan(seen.theirs) & np.isinf(seen.mine) & seen.half,
    ),
    Deviation(
        "remainders are those of a quotient in FLOAT32", _names("ELEMENT_WISE_", "MODULUS_TRUNCATE MODULUS_FLOOR"),
        "tensorpost", _remainders,
    ),
    Deviation(
        "a NaN loses against a number: against a bound, 0 or 1",
        _names("ELEMENT_WISE_", "CLIP CLIP1 THRESHOLD CLIP_GRAD CLIP_GRAD1") | _names(
            "ACTIVATION_", "RELU CELU HARD_SIGMOID THRESHOLDED_RELU"),
        "silent", lambda seen: np.isnan(seen.mine) & seen.here(np.isnan) & seen.is_one_of(
            0.0, 1.0, *_attributes(seen.desc)),
    ),
    Deviation(
        "a NaN loses against a number of the input",
        _LARGEST | {"TOP_K", "TOP_K1", "REDUCE", "ELEMENT_WISE_MAX", "ELEMENT_WISE_MIN"}, "silent",
        lambda seen: np.isnan(seen.mine) & seen.among_inputs(),
    ),
    Deviation(
        "a fused activation makes a number of a NaN: 0, or its bound", _FUSED, "silent", _of_activation,
    ),
    Deviation(
        "the angle of a NaN is that of a diagonal", _names("ELEMENT_WISE_", "ATAN ATAN_YX"), "silent",
        lambda seen: np.isnan(seen.mine) & seen.here(np.isnan) & np.logical_or.reduce(
            [np.abs(np.abs(seen.theirs.astype(float)) - angle) < 4e-4 for angle in _QUARTERS]),
    ),
    Deviation(
        "a line with a NaN: it loses, and the logarithm is that of a very small sum",
        _names("ACTIVATION_", "LOG_SOFTMAX LOG_SOFTMAX1"), "silent",
        lambda seen: np.isnan(seen.mine) & (np.abs(seen.theirs) <= 104 + seen.largest),
    ),
    Deviation(
        "a NaN, or an infinity, of a state is limited to the largest numbers", _RECURRENT, "silent",
        lambda seen: ~np.isfinite(seen.mine) & seen.somewhere(lambda x: ~np.isfinite(x)) & _of_recurrent(seen),
    ),
    Deviation(
        "an infinite gradient is infinite where NaN is added to it", frozenset({"LOCAL_RESPONSE_NORMALIZATION_GRAD"}),
        "silent", lambda seen: np.isnan(seen.mine) & np.isinf(seen.theirs) & seen.here(np.isinf),
    ),
    Deviation(
        "an infinity times 0, or less itself, is NaN on the way", _CURVES | _names(
            "ACTIVATION_", "HARD_SWISH SOFTSIGN THRESHOLDED_RELU") | _names(
            "ELEMENT_WISE_", "MODULUS_TRUNCATE MODULUS_FLOOR ADD1"), "literal",
        lambda seen: np.isnan(seen.theirs) & seen.here(lambda x: ~np.isfinite(x)),
    ),
    Deviation(
        "an infinity times 0, or less itself, is NaN in a sum",
        (_SUMS | _RECURRENT | {"ADAM_OPTIMIZER"}) - {"REDUCE"}, "literal",
        lambda seen: np.isnan(seen.theirs) & (np.isinf(seen.mine) | seen.somewhere(np.isinf)),
    ),
    Deviation(
        "a NaN has no place in the order",
        _LARGEST | {"TOP_K", "TOP_K1", "ARGMIN", "ARGMAX", "ACTIVATION_HARDMAX", "ACTIVATION_HARDMAX1"}, "silent",
        _of_ordered,
    ),
    Deviation(
        "a bound beyond the type's range is taken modulo, so that nothing passes",
        frozenset({"ELEMENT_WISE_CLIP_GRAD"}), "silent",
        lambda seen: seen.integer and (seen.theirs == 0) & _bound_outside(seen),
    ),
    Deviation(
        "a result beyond FLOAT16 is the largest number, not infinity: rounded toward zero, under Wine", frozenset(),
        "both", lambda seen: seen.half & np.isinf(seen.mine) & (seen.theirs == np.copysign(65504, seen.mine)),
    ),
    Deviation(
        "an index outside the axis reads or writes another element, or none",
        frozenset({"GATHER", "SCATTER_ELEMENTS"}), "undefined", _index_outside,
    ),
    Deviation(
        "a length beyond the sequence: the last state is 0", _RECURRENT, "undefined", _length_outside,
    ),
    Deviation(
        "a window wholly in the padding has no average: NaN", frozenset({"AVERAGE_POOLING", "AVERAGE_POOLING1"}),
        "silent", lambda seen: np.isnan(seen.theirs) & (seen.mine == 0),
    ),
    Deviation(
        "a window wholly in the padding, or of -infinity: the least finite number, and no index", _LARGEST, "silent",
        lambda seen: seen.theirs < seen.inputs[0].size if seen.integer and seen.somewhere(np.isinf) else (
            np.isneginf(seen.mine) & (seen.theirs == np.finfo(seen.mine.dtype).min) if not seen.integer else False),
    ),
    Deviation(
        "a quotient that is no number gives the zero point, or 0",
        frozenset({"ELEMENT_WISE_QUANTIZE_LINEAR", "DYNAMIC_QUANTIZE_LINEAR", "QUANTIZE"}), "silent", _no_quotient,
    ),
    Deviation(
        "a quotient beside a half is rounded to its other side",
        frozenset({"ELEMENT_WISE_QUANTIZE_LINEAR", "DYNAMIC_QUANTIZE_LINEAR"}), "both",
        lambda seen: seen.integer & (seen.distance() <= 1),
    ),
    Deviation(
        "a sum with its bias beyond 32 bits wraps", frozenset({"QUANTIZED_LINEAR_CONVOLUTION"}), "silent",
        lambda seen: max(float(np.abs(array.astype(float)).max()) for array in seen.inputs if array.size) > 2**30,
    ),
    Deviation(
        "a LocalSize beyond the tensor overflows", frozenset({"LOCAL_RESPONSE_NORMALIZATION_GRAD"}), "silent",
        lambda seen: getattr(seen.desc, "local_size", 0) > 2**16,
    ),
    Deviation(
        "a MaskFilterValue beyond FLOAT16 is minus infinity there, and NaN where it is all that there is",
        frozenset({"MULTIHEAD_ATTENTION", "MULTIHEAD_ATTENTION1"}), "silent",
        lambda seen: np.isnan(seen.theirs) & seen.half & (getattr(seen.desc, "mask_filter_value", 0.0) < -65504),
    ),
    Deviation(
        "powers of a sum that cancels are NaN on the way, with a Beta of 0 too",
        frozenset({"LOCAL_RESPONSE_NORMALIZATION_GRAD"}), "tensorpost",
        lambda seen: np.isnan(seen.theirs) & (getattr(seen.desc, "alpha", 0.0) < 0) | (
            np.isnan(seen.theirs) & seen.half & (seen.largest > 256)),
    ),
    Deviation(
        "a number on the way overflows, or vanishes: infinity", _names("ELEMENT_WISE_", "ASINH ACOSH"), "tensorpost",
        lambda seen: np.isinf(seen.theirs) & seen.here(lambda x: np.abs(x) > 200),
    ),
)  # fmt: skip


def explained(seen: Compared) -> tuple[list[str], Array]:
    """The reasons why an output differs, and the elements for which there is none."""
    left, reasons = seen.wrong(), list[str]()
    name = seen.desc.operator_type
    for known in DEVIATIONS:
        if (name in known.operators or not known.operators) and left.any():
            with np.errstate(all="ignore"):
                covered = left & known.covers(seen)
            if covered.any():
                reasons.append(known.reason)
                left = left & ~covered
    return reasons, left
