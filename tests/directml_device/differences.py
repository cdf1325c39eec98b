"""Where the validation of descriptors differs from DirectML's, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it reads this module
    from .validation import Judged

__all__ = ["DIFFERENCES", "Difference", "difference_of"]


@dataclass(frozen=True)
class Difference:
    """Descriptors that DirectML accepts and tensorpost refuses; none are known of the other kind.

    Attributes:
        what: the descriptors, in a few words.
        rules: our codes; what breaks others too is another matter.
        reason: why tensorpost refuses them.
        operators: those that it is for; empty for all.
    """

    what: str
    rules: frozenset[str]
    reason: str
    operators: tuple[str, ...] = ()

    def covers(self, item: Judged, codes: Sequence[str]) -> bool:
        """Whether this is a descriptor of that kind."""
        broken = {code.partition("@")[0] for code in codes}
        return (
            item.accepted
            and bool(broken)
            and broken <= self.rules
            and (not self.operators or item.operator in self.operators)
        )


_WINDOWED = (
    "CONVOLUTION", "CONVOLUTION_INTEGER", "QUANTIZED_LINEAR_CONVOLUTION", "AVERAGE_POOLING", "AVERAGE_POOLING1",
    "LP_POOLING", "LP_POOLING1", "MAX_POOLING", "MAX_POOLING1", "MAX_POOLING2", "QUANTIZED_LINEAR_AVERAGE_POOLING",
    "AVERAGE_POOLING_GRAD",
)  # fmt: skip
DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "NaN or infinity in a FLOAT, FLOAT_ARRAY, DML_SCALE_BIAS or DML_SCALAR_UNION", frozenset({"not-finite"}),
        "JSON has neither NaN nor infinity, so that no request can carry them",
    ),
    Difference(
        "a number that its type cannot hold, in a DML_SCALAR_UNION", frozenset({"out-of-range", "not-finite"}),
        "the union has bits only; a document has a number, and one that does not fit is a mistake",
    ),
    Difference(
        "output strides that let elements share an address", frozenset({"strides-overlap"}),
        "DirectML refuses strides of 0, two equal strides, and an extent of fewer elements than the sizes multiply to; "
        "other overlapping elements it writes in an undefined order. tensorpost takes strides only if each is larger "
        "than what the smaller ones reach, so that an output is runs of bytes",
    ),
    Difference(
        "an output of other spatial sizes than follow from strides, dilations, windows and padding",
        frozenset({"output-sizes", "strides-overlap", "columns"}),
        "DirectML does not check spatial sizes of these outputs (it took each of 1 to 10 entries, in 360 windows and "
        "three convolutions) and computes what there is room for; other sizes are mistakes", _WINDOWED,
    ),
    Difference(
        "padding of 2^31 and more", frozenset({"output-sizes"}),
        "its sum with the input's size wraps around in DirectML", ("MAX_POOLING_GRAD",),
    ),
    Difference(
        "a step, a dilation or a window of 0", frozenset({"zero"}),
        "DirectML does not check them; such a window does not exist", _WINDOWED,
    ),
    Difference(
        "a window of 0", frozenset({"window"}), "DirectML does not check it; a window has at least one element",
        ("SLICE_GRAD",),
    ),
    Difference(
        "a window or filter larger than the padded input", frozenset({"window", "filter-too-large"}),
        "DirectML does not check it; such a window does not exist", (*_WINDOWED, "MAX_POOLING_GRAD"),
    ),
    Difference(
        "tensors of one call with more dimensions of 1 in front than others",
        frozenset({"dimension-counts-differ"}),
        "DirectML compares sizes from the last dimension on; the page requires one rank for all tensors",
        ("CONVOLUTION_INTEGER", "SCATTER_ND", "MATRIX_MULTIPLY_INTEGER", "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
         "QUANTIZED_LINEAR_MATRIX_MULTIPLY", "QUANTIZED_LINEAR_CONVOLUTION", "ONE_HOT"),
    ),
    Difference(
        "an image with another dimension behind", frozenset({"dimension-count"}),
        "DirectML reads as many sizes as DimensionCount says and ignores others; an image has no others",
        ("UNFOLD", "FOLD"),
    ),
    Difference(
        "a DimensionCount that is not the number of spatial dimensions",
        frozenset({"array-length", "dimension-count", "dimension-counts-differ"}),
        "DirectML reads as many entries as there are spatial dimensions; no page says what others mean",
        (*_WINDOWED, "MAX_POOLING_GRAD"),
    ),
    Difference(
        "no Axes, or more than 8, so that one is repeated", frozenset({"dimension-count", "array-length"}),
        "no array of a document is empty or has more than 8 entries",
        ("REDUCE", "ARGMIN", "ARGMAX", "ACTIVATION_SOFTMAX1", "ACTIVATION_LOG_SOFTMAX1", "ACTIVATION_HARDMAX1",
         "MEAN_VARIANCE_NORMALIZATION1", "MEAN_VARIANCE_NORMALIZATION2"),
    ),
    Difference(
        "a BOOL that is neither 0 nor 1", frozenset({"not-a-bool"}), "a document contains true or false",
    ),
    Difference(
        "a MinMaxDataType that is not the tensors'",
        frozenset({"data-types-differ", "enum-unknown", "out-of-range", "not-finite"}),
        "DirectML reads the tensors' type and ignores this one; a document's numbers are of one type",
        ("ELEMENT_WISE_CLIP1", "ELEMENT_WISE_CLIP_GRAD1"),
    ),
    Difference(
        "parameters of sizes that no channel has", frozenset({"parameter-sizes"}),
        "DirectML does not check the sizes of some of them", ("QUANTIZED_LINEAR_AVERAGE_POOLING",),
    ),
    Difference(
        "an undefined value of an enum", frozenset({"enum-unknown"}), "no page defines its meaning",
        ("MULTIHEAD_ATTENTION", "MULTIHEAD_ATTENTION1", "RNN", "GRU", "LSTM"),
    ),
    Difference(
        "a negative ClipThreshold", frozenset({"clip-threshold"}), "it must not be negative", ("LSTM",),
    ),
    Difference(
        "a Beta1 or Beta2 that is not from 0 to 1", frozenset({"beta"}),
        "DirectML does not check it; it is the weight of a mean", ("ADAM_OPTIMIZER",),
    ),
    Difference(
        "a MaskType without a MaskTensor", frozenset({"mask-type"}),
        "DirectML then ignores the type; a document has NONE",
        ("MULTIHEAD_ATTENTION", "MULTIHEAD_ATTENTION1"),
    ),
    Difference(
        "A and B of different types", frozenset({"data-types-differ"}), "its page has one type for both",
        ("MATRIX_MULTIPLY_INTEGER_TO_FLOAT",),
    ),
)  # fmt: skip


def difference_of(item: Judged, codes: Sequence[str]) -> Difference | None:
    """The known difference that a descriptor is of; None if the verdicts agree or nobody knows why not."""
    return next((known for known in DIFFERENCES if known.covers(item, codes)), None)
