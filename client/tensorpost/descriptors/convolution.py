"""Convolutions: CONVOLUTION, CONVOLUTION_INTEGER and QUANTIZED_LINEAR_CONVOLUTION.

Sources: the DML_CONVOLUTION, DML_CONVOLUTION_INTEGER and DML_QUANTIZED_LINEAR_CONVOLUTION pages; sizes as DirectMLX
infers them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

from ..values.datatypes import TensorDataType
from ..values.problems import Violation
from .activation import Activation, WithFusedActivation, fused
from .clip import ElementWiseClipOperatorDesc
from .completion import Given, Inferred, packed
from .fields import CEnum, UInt, UIntArray, count_of
from .quantized import Quantized
from .sliding_window import SlidingWindow, spatial_sizes
from .tensor import BufferTensorDesc

__all__ = [
    "ConvolutionDirection",
    "ConvolutionIntegerOperatorDesc",
    "ConvolutionMode",
    "ConvolutionOperatorDesc",
    "QuantizedLinearConvolutionOperatorDesc",
]


class ConvolutionMode(enum.IntEnum):
    """`DML_CONVOLUTION_MODE`: whether the filter is reversed before it slides over the input."""

    CONVOLUTION = 0
    CROSS_CORRELATION = 1


class ConvolutionDirection(enum.IntEnum):
    """`DML_CONVOLUTION_DIRECTION`: BACKWARD is the transposed convolution."""

    FORWARD = 0
    BACKWARD = 1


FusedIntoConvolution = Annotated[Activation | ElementWiseClipOperatorDesc, *fused(ElementWiseClipOperatorDesc)]


class Convolving(SlidingWindow):
    """Base of convolutions: `N x C x spatial` inputs, `output channels x (C / groups) x spatial` filters.

    Attributes:
        output_type: DataType of an output that is left out; None for the input's.
        backward: whether the convolution is transposed.
    """

    output_type: ClassVar[TensorDataType | None] = None

    if TYPE_CHECKING:
        input_tensor: BufferTensorDesc
        filter_tensor: BufferTensorDesc
        output_tensor: BufferTensorDesc
        dilations: UIntArray
        group_count: UInt

    @property
    def backward(self) -> bool:
        """Forward, unless there is a Direction."""
        return getattr(self, "direction", ConvolutionDirection.FORWARD) is ConvolutionDirection.BACKWARD

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """Forward, steps of 1, no padding and one group where they are left out."""
        source, window = given.tensor("input_tensor"), given.tensor("filter_tensor")
        spatial = len(source.sizes) - 2
        if len(source.sizes) != len(window.sizes) or spatial < 1:
            return
        forward = ConvolutionDirection.FORWARD
        if "direction" in cls.model_fields:
            yield from (("mode", ConvolutionMode.CROSS_CORRELATION), ("direction", forward))
        yield "group_count", 1
        yield from cls.spatial_defaults(spatial).items()
        arrays = cls.spatial_arrays(given, spatial)
        groups = given.integer("group_count") if given.has("group_count") else 1
        if arrays is not None:
            backward = given.member("direction", ConvolutionDirection, "DML_CONVOLUTION_DIRECTION_", forward) != forward
            sizes = spatial_sizes(source.sizes[2:], window.sizes[2:], arrays, backward=backward)
            channels = window.sizes[1] * groups if backward else window.sizes[0]
            made = [source.sizes[0], channels, *[max(0, size) for size in sizes]]
            zero = given.structure(BufferTensorDesc, "output_zero_point_tensor")
            yield "output_tensor", packed(cls.output_type or (zero or source).data_type, made)

    def type_rules(self) -> Iterator[Violation]:
        """Which tensors agree in DataType and DimensionCount: all of them."""
        yield from self.same_type_and_rank()

    def operator_rules(self) -> Iterator[Violation]:
        """Types, ranks, channels and sizes fit."""
        yield from self.type_rules()
        source, window, rank = self.input_tensor.sizes, self.filter_tensor.sizes, len(self.input_tensor.sizes)
        wrong = list(self.spatial_rules(rank))
        yield from wrong
        if any(v.code != "count-disagrees" for v in wrong) or rank < 3:
            return
        if len(window) != rank or len(self.output_tensor.sizes) != rank:
            return
        channels = window[1] * self.group_count if self.backward else window[0]
        inputs = window[0] if self.backward else window[1] * self.group_count
        if self.group_count == 0 or source[1] != inputs or source[1] % self.group_count or channels % self.group_count:
            message = f"the filter and {self.group_count} groups need {inputs} input channels, not {source[1]}"
            yield self.broken(
                "channels", ("FilterTensor", "Sizes"), message, list(window), f"{source[1]} input channels"
            )
            return
        sizes = spatial_sizes(source[2:], window[2:], self.spatial(), backward=self.backward)
        if any(size < 1 for size in sizes):
            message = f"the output would have the spatial sizes {sizes}: the filter is larger than the padded input"
            yield self.broken("filter-too-large", ("FilterTensor", "Sizes"), message, list(window), "smaller filters")
            return
        if self.backward:
            # Clients of DirectML leave OutputPadding at 0 and ask for a larger output; all of it is sums.
            sizes = [max(size, out) for size, out in zip(sizes, self.output_tensor.sizes[2:], strict=True)]
        why = "the batch, the filter's output channels and what strides, dilations and padding leave"
        yield from self.sizes_are([source[0], channels, *sizes], why, "output_tensor")
        yield from self.sizes_are([1, channels, *[1] * (rank - 2)], "1, the output channels and ones", "bias_tensor")


class ConvolutionOperatorDesc(Convolving, WithFusedActivation):
    """`DML_OPERATOR_CONVOLUTION`: slides filters over 1 to 3 spatial dimensions, or transposes that.

    Attributes:
        input_tensor: N x C x spatial.
        filter_tensor: output channels x (input channels / groups) x spatial; BACKWARD: input channels x (output
            channels / groups) x spatial.
        bias_tensor: 1 x output channels x ones, or absent.
        output_tensor: N x output channels x spatial.
        mode: CROSS_CORRELATION, as neural networks have it, or CONVOLUTION, which reverses the filter.
        direction: FORWARD, or BACKWARD for the transposed convolution.
        dimension_count: spatial dimensions; derived.
        strides: steps of the filter.
        dilations: distance between the filter's elements.
        start_padding: zeros before each spatial dimension.
        end_padding: zeros after it.
        output_padding: zeros appended to the output.
        group_count: groups of channels.
        fused_activation: applied to the result; absent for none.
    """

    input_tensor: BufferTensorDesc
    filter_tensor: BufferTensorDesc
    bias_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc
    mode: Annotated[ConvolutionMode, CEnum("DML_CONVOLUTION_MODE_")]
    direction: Annotated[ConvolutionDirection, CEnum("DML_CONVOLUTION_DIRECTION_")]
    strides: UIntArray
    dimension_count: UInt = count_of("strides")
    dilations: UIntArray
    start_padding: UIntArray
    end_padding: UIntArray
    output_padding: UIntArray
    group_count: UInt
    fused_activation: FusedIntoConvolution | None = None

    def type_rules(self) -> Iterator[Violation]:
        yield from super().type_rules()
        yield from self.fused_rules()


class QuantizedConvolution(Convolving, Quantized):
    """Base of forward convolutions of 8-bit tensors, with zero points of one value or of one per output channel."""

    def type_rules(self) -> Iterator[Violation]:
        """Tensors agree in DimensionCount, each with its zero point in DataType; parameters have their sizes."""
        yield from self.same_dimension_count("input_tensor", "filter_tensor", "bias_tensor", "output_tensor")
        for name in ("input", "filter", "output"):
            yield from self.same_data_type(f"{name}_tensor", f"{name}_zero_point_tensor")
            parameters = (f"{name}_scale_tensor", f"{name}_zero_point_tensor")
            if getattr(self, parameters[0], None) is not None:
                yield from self.same_dimension_count(*parameters)
            channels = self.filter_tensor.sizes[0] if name == "filter" else 1
            yield from self.one_value_or(channels, 1, "output channel", *parameters)


class ConvolutionIntegerOperatorDesc(QuantizedConvolution):
    """`DML_OPERATOR_CONVOLUTION_INTEGER`: the exact sums of a forward convolution of 8-bit integers.

    Attributes:
        input_tensor: N x C x spatial; padding counts as its zero point.
        input_zero_point_tensor: one value of the same DataType, or absent for 0.
        filter_tensor: output channels x (C / groups) x spatial.
        filter_zero_point_tensor: one value or one for each output channel, or absent for 0.
        output_tensor: INT32, N x output channels x spatial; sums wrap.
        dimension_count: spatial dimensions; derived.
        strides: steps of the filter.
        dilations: distance between the filter's elements.
        start_padding: entries before each spatial dimension.
        end_padding: entries after it.
        group_count: groups of channels.
    """

    output_type = TensorDataType.INT32

    input_tensor: BufferTensorDesc
    input_zero_point_tensor: BufferTensorDesc | None = None
    filter_tensor: BufferTensorDesc
    filter_zero_point_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc
    strides: UIntArray
    dimension_count: UInt = count_of("strides")
    dilations: UIntArray
    start_padding: UIntArray
    end_padding: UIntArray
    group_count: UInt


class QuantizedLinearConvolutionOperatorDesc(QuantizedConvolution):
    """`DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION`: a forward convolution of quantized tensors, quantized again.

    Attributes:
        input_tensor: N x C x spatial, INT8 or UINT8; padding counts as its zero point.
        input_scale_tensor: scale of the input, one value.
        input_zero_point_tensor: one value of the input's DataType, or absent for 0.
        filter_tensor: output channels x (C / groups) x spatial.
        filter_scale_tensor: one value or one for each output channel.
        filter_zero_point_tensor: zero points, one for each scale, of the filter's DataType, or absent for 0.
        bias_tensor: INT32, 1 x output channels x ones, in units of the input's scale times the filter's; or absent.
        output_scale_tensor: scale of the output, one value.
        output_zero_point_tensor: one value of the output's DataType, or absent for 0.
        output_tensor: N x output channels x spatial.
        dimension_count: spatial dimensions; derived.
        strides: steps of the filter.
        dilations: distance between the filter's elements.
        start_padding: entries before each spatial dimension.
        end_padding: entries after it.
        group_count: groups of channels.
    """

    input_tensor: BufferTensorDesc
    input_scale_tensor: BufferTensorDesc
    input_zero_point_tensor: BufferTensorDesc | None = None
    filter_tensor: BufferTensorDesc
    filter_scale_tensor: BufferTensorDesc
    filter_zero_point_tensor: BufferTensorDesc | None = None
    bias_tensor: BufferTensorDesc | None = None
    output_scale_tensor: BufferTensorDesc
    output_zero_point_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc
    strides: UIntArray
    dimension_count: UInt = count_of("strides")
    dilations: UIntArray
    start_padding: UIntArray
    end_padding: UIntArray
    group_count: UInt
