"""Normalization: by mean and variance, by a norm, by the neighbours.

Sources: the DML_MEAN_VARIANCE_NORMALIZATION pages, those of LP_NORMALIZATION, LOCAL_RESPONSE_NORMALIZATION and
BATCH_NORMALIZATION. What they leave open stands with each formula in the server's `operators/normalization.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ..values.problems import Violation
from ..values.sentences import named
from .activation import FusedActivation, WithFusedActivation
from .elementwise_base import UnaryWithoutScale
from .feature_levels import FeatureLevel
from .fields import Bool, Float, UInt, UIntArray, count_of
from .tensor import BufferTensorDesc

__all__ = [
    "AxesNormalization",
    "BatchNormalizationOperatorDesc",
    "LocalResponseNormalizationOperatorDesc",
    "LpNormalizationOperatorDesc",
    "MeanVarianceNormalization",
    "MeanVarianceNormalization1OperatorDesc",
    "MeanVarianceNormalization2OperatorDesc",
    "MeanVarianceNormalizationOperatorDesc",
    "Normalization",
]


def _is_images(
    desc: MeanVarianceNormalizationOperatorDesc | LocalResponseNormalizationOperatorDesc,
) -> Iterator[Violation]:
    sizes = list(desc.input_tensor.sizes)
    if len(sizes) != 4:
        message = f"{desc.operator_type} takes N, C, H, W, not {len(sizes)} dimensions"
        yield desc.broken("dimension-count", ("InputTensor", "Sizes"), message, sizes, "4 dimensions")


class Normalization(WithFusedActivation):
    """Base of operators that shift and scale elements by tensors which are broadcast by sizes of 1."""

    outputs_like: ClassVar = {"output_tensor": "input_tensor"}

    def operator_rules(self) -> Iterator[Violation]:
        """All tensors agree in type and rank; each size of an input is that of the first, or 1."""
        yield from self.same_type_and_rank()
        sizes = self.tensors("input")[0][1].sizes
        for path, tensor in self.tensors("input"):
            if len(tensor.sizes) == len(sizes):
                wanted = [own if own == 1 else size for own, size in zip(tensor.sizes, sizes, strict=True)]
                yield from self.sizes_are(wanted, "the input's, or 1", str(path[0]))


class MeanVarianceNormalization(Normalization):
    """Base of normalizations by the mean and the variance of the tensor itself.

    Attributes:
        input_tensor: tensor to read.
        scale_tensor: factors; absent for 1.
        bias_tensor: summands; absent for 0.
        output_tensor: result, of the input's sizes.
    """

    input_tensor: BufferTensorDesc
    scale_tensor: BufferTensorDesc | None = None
    bias_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc

    def level_rules(self, level: FeatureLevel) -> Iterator[Violation]:
        """See `WithFusedActivation`; below 5_2 there are a scale and a bias, or neither."""
        yield from super().level_rules(level)
        if level < FeatureLevel.L5_2 and (self.scale_tensor is None) != (self.bias_tensor is None):
            missing = "ScaleTensor" if self.scale_tensor is None else "BiasTensor"
            message = f"ScaleTensor and BiasTensor without each other need feature level 5_2, not {level}"
            yield self.broken("tensor-missing", (missing,), message, None, "both or neither, or level 5_2")


class MeanVarianceNormalizationOperatorDesc(MeanVarianceNormalization):
    """`DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION`: subtracts the mean of each image, and divides by the deviation.

    Attributes:
        cross_channel: whether all channels are one image.
        normalize_variance: whether to divide by the square root of the variance and Epsilon.
        epsilon: usually 1e-5.
        fused_activation: applied to the result; absent for none.
    """

    cross_channel: Bool
    normalize_variance: Bool
    epsilon: Float
    fused_activation: FusedActivation | None = None

    def operator_rules(self) -> Iterator[Violation]:
        yield from super().operator_rules()
        yield from _is_images(self)


class AxesNormalization(MeanVarianceNormalization):
    """Base of normalizations along some axes together."""

    axes: UIntArray
    axis_count: UInt = count_of("axes")

    def operator_rules(self) -> Iterator[Violation]:
        yield from super().operator_rules()
        yield from self.count_is_length("axis_count", "axes")
        yield from self.axes_are_below(len(self.input_tensor.sizes))


class MeanVarianceNormalization1OperatorDesc(AxesNormalization):
    """`DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1`: subtracts the mean along axes, and divides by the deviation.

    Attributes:
        axes: dimensions; one that is there twice counts once.
        axis_count: number of entries of `axes`; derived.
        normalize_variance: whether to divide by the square root of the variance and Epsilon.
        epsilon: usually 1e-5.
        fused_activation: applied to the result; absent for none.
    """

    normalize_variance: Bool
    epsilon: Float
    fused_activation: FusedActivation | None = None

    def level_rules(self, level: FeatureLevel) -> Iterator[Violation]:
        """See `MeanVarianceNormalization`; below 4_0 the scale and the bias have an element for each channel."""
        yield from super().level_rules(level)
        for path, tensor in self.tensors("input"):
            channels = self.input_tensor.sizes[1:2]
            if level < FeatureLevel.L4_0 and tensor.sizes[1:2] != channels:
                name = "ScaleTensor" if path[0] == "scale_tensor" else "BiasTensor"
                message = f"one {name} for all channels needs feature level 4_0, not {level}"
                found = list(tensor.sizes)
                yield self.broken("broadcast", (name, "Sizes"), message, found, f"{list(channels)} channels, or 4_0")


class MeanVarianceNormalization2OperatorDesc(AxesNormalization):
    """`DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION2`: as MEAN_VARIANCE_NORMALIZATION1, with or without the mean.

    Attributes:
        axes: dimensions; one that is there twice counts once.
        axis_count: number of entries of `axes`; derived.
        use_mean: whether to subtract the mean; without it the variance is the mean of the squares.
        use_variance: whether to divide by the square root of the variance and Epsilon.
        epsilon: usually 1e-5.
        fused_activation: applied to the result; absent for none.
    """

    use_mean: Bool
    use_variance: Bool
    epsilon: Float
    fused_activation: FusedActivation | None = None


class BatchNormalizationOperatorDesc(Normalization):
    """`DML_OPERATOR_BATCH_NORMALIZATION`: `FusedActivation(Scale * (x - Mean) / sqrt(Variance + Epsilon) + Bias)`.

    Attributes:
        input_tensor: tensor to read.
        mean_tensor: the input's sizes, or 1 instead of some; usually 1 x C x 1 x 1.
        variance_tensor: 1 or the input's size along each dimension, as for the next two.
        scale_tensor: factors of the normalized elements.
        bias_tensor: what is added to the products.
        output_tensor: result, of the input's sizes.
        spatial: whether mean and variance are one value per channel; ignored from level 4_0 on.
        epsilon: usually 1e-5.
        fused_activation: applied to the result; absent for none.
    """

    input_tensor: BufferTensorDesc
    mean_tensor: BufferTensorDesc
    variance_tensor: BufferTensorDesc
    scale_tensor: BufferTensorDesc
    bias_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    spatial: Bool = True
    epsilon: Float
    fused_activation: FusedActivation | None = None

    def level_rules(self, level: FeatureLevel) -> Iterator[Violation]:
        """See `WithFusedActivation`; below 4_0 Spatial must be set if the statistics are those of whole images."""
        yield from super().level_rules(level)
        images = self.input_tensor.sizes[2:]
        alone = all(tensor.sizes[2:] == images for tensor in (self.mean_tensor, self.variance_tensor))
        if level < FeatureLevel.L4_0 and not (self.spatial or alone):
            message = (
                "a mean or variance of whole images without "
                + named("Spatial")
                + f" needs feature level 4_0, not {level}"
            )
            yield self.broken("spatial", ("Spatial",), message, self.spatial, "true, or level 4_0")


class LpNormalizationOperatorDesc(UnaryWithoutScale):
    """`DML_OPERATOR_LP_NORMALIZATION`: divides the elements along an axis by their norm.

    Attributes:
        axis: a dimension.
        epsilon: usually 1e-5; added to the square of the norm, as DirectML has it.
        p: 1 for the sum of absolute values, 2 for the square root of the sum of squares.
    """

    axis: UInt
    epsilon: Float
    p: UInt

    def operator_rules(self) -> Iterator[Violation]:
        yield from super().operator_rules()
        yield from self.axis_is_below(len(self.input_tensor.sizes))
        if self.p not in (1, 2):
            message = named("P") + f" is {self.p}, but this norm is not supported"
            yield self.broken("p", ("P",), message, self.p, "1 or 2")


class LocalResponseNormalizationOperatorDesc(UnaryWithoutScale):
    """`DML_OPERATOR_LOCAL_RESPONSE_NORMALIZATION`: `x / (Bias + Alpha / LocalSize * sum of squares nearby)^Beta`.

    Attributes:
        cross_channel: whether the neighbours are those of other channels, not those of the same image.
        local_size: elements of the neighbourhood along each of its dimensions.
        alpha: usually 1e-4.
        beta: exponent of the denominator; usually 0.75.
        bias: what the sum of squares is added to; usually 1.
    """

    cross_channel: Bool
    local_size: UInt
    alpha: Float
    beta: Float
    bias: Float

    def operator_rules(self) -> Iterator[Violation]:
        """See `ElementWise`; the tensors have four dimensions, and the element itself is in its neighbourhood."""
        yield from super().operator_rules()
        if self.local_size == 0:
            yield self.broken("zero", ("LocalSize",), "must be at least 1", 0, "at least 1")
        yield from _is_images(self)
