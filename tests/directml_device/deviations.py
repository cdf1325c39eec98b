"""Where answers differ from DirectML's by more than rounding: rules that say of each element why.

A rule names operators and a condition on the call, and what the two numbers may then be. What no rule covers fails a
test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.descriptors import OperatorDesc

__all__ = ["DEVIATIONS", "UNITS", "Compared", "Deviation", "explained"]

Array = NDArray[Any]
UNITS = 8
"""Of the last place, of the larger of two numbers: what counts as rounding."""


@dataclass(frozen=True)
class Compared:
    """One output of a call, computed twice.

    Attributes:
        desc: the descriptor.
        inputs: the elements of the inputs.
        mine: what tensorpost computed.
        theirs: what DirectML answered.
    """

    desc: OperatorDesc
    inputs: Sequence[Array]
    mine: Array
    theirs: Array

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

    def within(self, absolute: float, relative: float = 0.0) -> Array:
        """Both are finite and near; FLOAT16 has its own rounding beside that."""
        with np.errstate(all="ignore"):
            size = np.abs(self.mine.astype(np.float64))
            rounding = 2**-10 * size if self.mine.dtype == np.float16 else 0.0
            return self.distance() <= absolute + relative * size + rounding

    @property
    def special(self) -> bool:
        """Whether NaN or an infinity is among the inputs."""
        return any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in self.inputs)

    @property
    def largest(self) -> float:
        """The product of the largest finite magnitudes of the inputs."""
        found = 1.0
        for array in self.inputs:
            with np.errstate(all="ignore"):
                finite = np.abs(array.astype(np.float64))[np.isfinite(array)]
            found *= max(1.0, float(finite.max())) if finite.size else 1.0
        return found


@dataclass(frozen=True)
class Deviation:
    """A known way to differ.

    Attributes:
        reason: for the page.
        operators: short names; empty for all.
        covers: the elements that it explains, in calls that it is for.
    """

    reason: str
    operators: frozenset[str]
    covers: Callable[[Compared], Array | bool]


def _names(prefix: str, names: str) -> frozenset[str]:
    return frozenset(prefix + name for name in names.split())


def _linear(seen: Compared) -> bool:
    return getattr(seen.desc, "interpolation_mode", 0) == 1


def _steps_of_other_axes(seen: Compared) -> bool:
    desc: Any = seen.desc
    usual = set(desc.input_pixel_offsets) == {0.5} and set(desc.output_pixel_offsets) == {-0.5}
    return _linear(seen) and desc.antialiased and not usual and max(desc.scales) >= 0.5 > min(desc.scales)


def _of_doubtful_powers(seen: Compared) -> Array:
    """Of 0 and infinity, and what overflows on the way."""
    extreme = ~np.isfinite(seen.mine) | ~np.isfinite(seen.theirs) | (seen.theirs == 0)
    return seen.within(1e-6, 4e-5) | extreme


def _index_outside(seen: Compared) -> bool:
    """Some index of GATHER or SCATTER_ELEMENTS is outside the axis."""
    sizes, axis = seen.inputs[0].shape, getattr(seen.desc, "axis", 0)
    return bool(((seen.inputs[1] < -sizes[axis]) | (seen.inputs[1] >= sizes[axis])).any())


def _length_outside(seen: Compared) -> bool:
    """Some length of a sequence is beyond it."""
    names = [slot.name for slot in seen.desc.inputs]
    if "sequence_lengths" not in names:
        return False
    lengths, axis = seen.inputs[names.index("sequence_lengths")], getattr(seen.desc, "axis", 1)
    return bool((lengths > seen.inputs[0].shape[axis]).any())


_FORWARD = frozenset({"UPSAMPLE_2D", "RESAMPLE", "RESAMPLE1", "RESAMPLE2", "RESAMPLE3"})
_QUANTIZED = frozenset(
    {
        "ELEMENT_WISE_QUANTIZE_LINEAR", "DYNAMIC_QUANTIZE_LINEAR", "QUANTIZE", "QUANTIZED_LINEAR_CONVOLUTION",
        "QUANTIZED_LINEAR_MATRIX_MULTIPLY", "QUANTIZED_LINEAR_AVERAGE_POOLING", "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
    }
)  # fmt: skip
_NORMALIZED = _names(
    "",
    "BATCH_NORMALIZATION BATCH_NORMALIZATION_GRAD BATCH_NORMALIZATION_TRAINING BATCH_NORMALIZATION_TRAINING_GRAD "
    "LOCAL_RESPONSE_NORMALIZATION LOCAL_RESPONSE_NORMALIZATION_GRAD MEAN_VARIANCE_NORMALIZATION "
    "MEAN_VARIANCE_NORMALIZATION1 MEAN_VARIANCE_NORMALIZATION2 LP_NORMALIZATION ADAM_OPTIMIZER",
)
_SUMS = _NORMALIZED | _FORWARD | {"RESAMPLE_GRAD", "RESAMPLE_GRAD1", "GEMM", "CONVOLUTION", "REDUCE"}
_ARC = _names("ELEMENT_WISE_", "ACOS ASIN ATAN ATAN_YX")
_CURVES = _names("ELEMENT_WISE_", "ERF TANH ASINH ACOSH ATANH SINH COSH EXP LOG") | _names(
    "ACTIVATION_",
    "CELU ELU GELU LOG_SOFTMAX LOG_SOFTMAX1 PARAMETRIC_SOFTPLUS SCALED_ELU SCALED_TANH SIGMOID SOFTMAX SOFTMAX1 "
    "SOFTPLUS SWISH TANH",
)
_RECURRENT = frozenset({"RNN", "GRU", "LSTM"})
_POOLING = frozenset({"AVERAGE_POOLING", "AVERAGE_POOLING1", "MAX_POOLING", "MAX_POOLING1", "MAX_POOLING2"})
_FUSED = frozenset({"GEMM", "CONVOLUTION", "ELEMENT_WISE_ADD1"})

DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "RESAMPLE3 antialiased, with offsets other than 0.5 and -0.5: axes that are not filtered go through steps too",
        frozenset({"RESAMPLE3"}), _steps_of_other_axes,
    ),
    Deviation(
        "a region of thousands of elements: which samples lie inside shows their rounding in FLOAT32",
        frozenset({"ROI_ALIGN", "ROI_ALIGN1"}), lambda seen: bool((np.abs(seen.inputs[1].astype(float)) > 4096).any()),
    ),
    Deviation(
        "LINEAR of INT8 and UINT8: the sum is truncated, and beside a whole number its rounding shows",
        _FORWARD, lambda seen: (seen.distance() <= 1) & (seen.mine.dtype.kind in "iu" and _linear(seen)),
    ),
    Deviation(
        "arc functions are approximated to 7e-5", _ARC, lambda seen: seen.within(1e-4, 4e-5),
    ),
    Deviation(
        "functions are approximated, to 5e-7 or 1e-5 of the value", _CURVES, lambda seen: seen.within(1e-6, 2e-5),
    ),
    Deviation(
        "FLOAT16: the logarithm of the sum is rounded before it is taken off",
        _names("ACTIVATION_", "LOG_SOFTMAX LOG_SOFTMAX1"), lambda seen: seen.within(2**-9 * seen.largest),
    ),
    Deviation(
        "powers go by logarithms: those of 0 and of infinity, and what overflows on the way",
        _names("ELEMENT_WISE_", "POW CONSTANT_POW"), _of_doubtful_powers,
    ),
    Deviation(
        "the order of sums shows where they cancel", _SUMS, lambda seen: seen.within(4e-6 * seen.largest),
    ),
    Deviation(
        "remainders are those of a quotient in FLOAT32", _names("ELEMENT_WISE_", "MODULUS_TRUNCATE MODULUS_FLOOR"),
        lambda seen: seen.within(2e-7 * seen.largest),
    ),
    Deviation(
        "a NaN loses against a number", _NORMALIZED | _ARC | _CURVES | _FUSED | _RECURRENT | _POOLING | _names(
            "ELEMENT_WISE_", "CLIP CLIP1 MAX MIN THRESHOLD CLIP_GRAD CLIP_GRAD1") | _names(
            "ACTIVATION_", "RELU HARD_SIGMOID HARDMAX HARDMAX1 THRESHOLDED_RELU LEAKY_RELU SHRINK") | {
            "REDUCE", "TOP_K", "TOP_K1"},
        lambda seen: np.isnan(seen.mine) & seen.special,
    ),
    Deviation(
        "an infinity times 0, or less itself, is NaN on the way", _SUMS | _CURVES | _FUSED | _RECURRENT | _names(
            "ACTIVATION_", "HARD_SWISH SOFTSIGN THRESHOLDED_RELU") | _names(
            "ELEMENT_WISE_", "MODULUS_TRUNCATE MODULUS_FLOOR"),
        lambda seen: np.isnan(seen.theirs) & seen.special,
    ),
    Deviation(
        "a NaN has no place in the order",
        _POOLING | {"TOP_K", "TOP_K1", "ARGMIN", "ARGMAX", "ACTIVATION_HARDMAX", "ACTIVATION_HARDMAX1"},
        lambda seen: seen.special,
    ),
    Deviation(
        "Max is taken modulo the type's range where it is beyond", frozenset({"ELEMENT_WISE_CLIP_GRAD"}),
        lambda seen: seen.mine.dtype.kind in "iu",
    ),
    Deviation(
        "a result beyond FLOAT16 is the largest number, not infinity: rounded toward zero, under Wine", frozenset(),
        lambda seen: (np.abs(seen.theirs) == 65504) & np.isinf(seen.mine),
    ),
    Deviation(
        "an index outside the axis reads or writes another element, or none",
        frozenset({"GATHER", "SCATTER_ELEMENTS"}), _index_outside,
    ),
    Deviation(
        "with a ScaleBias the least integer stays itself", frozenset({"ELEMENT_WISE_ABS"}),
        lambda seen: seen.mine.dtype.kind == "i" and seen.theirs == np.iinfo(seen.mine.dtype).min,
    ),
    Deviation(
        "a length beyond the sequence: elements beyond it are read as the last one, a last state is 0",
        _RECURRENT, _length_outside,
    ),
    Deviation(
        "a window wholly in the padding has no average, and the least finite number as its maximum", _POOLING,
        lambda seen: np.isnan(seen.theirs) & (seen.mine == 0) | np.isinf(seen.mine) & (np.abs(seen.theirs) > 65000),
    ),
    Deviation(
        "a scale that is NaN, infinite or 0 gives the zero point", _QUANTIZED,
        lambda seen: seen.mine.dtype.kind in "iu" and (seen.special or any((x == 0).any() for x in seen.inputs)),
    ),
    Deviation(
        "a quotient beside a half is rounded to its other side", _QUANTIZED,
        lambda seen: (seen.mine.dtype.kind in "iu") & (seen.distance() <= 1),
    ),
    Deviation(
        "NEAREST where a coordinate is whole but for its rounding in FLOAT32: the neighbour",
        frozenset({"RESAMPLE1", "RESAMPLE2", "RESAMPLE3"}), lambda seen: not _linear(seen),
    ),
    Deviation(
        "a Scale of 1 and a Bias of 0 are left out, where ours goes through FLOAT32",
        frozenset({"ELEMENT_WISE_THRESHOLD"}),
        lambda seen: seen.mine.dtype.kind in "iu",
    ),
    Deviation(
        "a sum with its bias beyond 32 bits", frozenset({"QUANTIZED_LINEAR_CONVOLUTION"}),
        lambda seen: max(float(np.abs(array.astype(float)).max()) for array in seen.inputs if array.size) > 2**28,
    ),
    Deviation(
        "a LocalSize beyond the tensor overflows", frozenset({"LOCAL_RESPONSE_NORMALIZATION_GRAD"}),
        lambda seen: getattr(seen.desc, "local_size", 0) > 2**16,
    ),
    Deviation(
        "a MaskFilterValue beyond FLOAT16 is minus infinity there, and NaN where it is all that there is",
        frozenset({"MULTIHEAD_ATTENTION", "MULTIHEAD_ATTENTION1"}),
        lambda seen: np.isnan(seen.theirs) & (getattr(seen.desc, "mask_filter_value", 0.0) < -65504),
    ),
    Deviation(
        "powers of a sum that cancels are NaN on the way, with a Beta of 0 too",
        frozenset({"LOCAL_RESPONSE_NORMALIZATION_GRAD"}), lambda seen: np.isnan(seen.theirs),
    ),
    Deviation(
        "a number on the way overflows", _names("ELEMENT_WISE_", "ASINH ACOSH"),
        lambda seen: np.isinf(seen.theirs) | np.isinf(seen.mine),
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
