"""Pooling: averages, largest elements and norms of windows that slide over the spatial dimensions.

Sources: the pages of DML_AVERAGE_POOLING and DML_AVERAGE_POOLING1, DML_MAX_POOLING to DML_MAX_POOLING2, DML_LP_POOLING
and DML_LP_POOLING1, DML_QUANTIZED_LINEAR_AVERAGE_POOLING, DML_MAX_UNPOOLING, and of the gradients. A dilated window has
the extent `(WindowSize - 1) * Dilations + 1`, which the pages' formula of sizes leaves out. Outputs may be rounded up,
as
ONNX Runtime asks for with `ceil_mode`; elements that such windows reach beyond the padding do not count.
MAX_POOLING_GRAD takes
sizes rounded down only, as DirectML does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ..values.problems import Violation
from .completion import Given, Inferred, packed
from .fields import Bool, UInt, UIntArray, count_of
from .operator_desc import OperatorDesc
from .quantized import Quantized
from .sliding_window import SlidingWindow, spatial_sizes
from .tensor import BufferTensorDesc

__all__ = [
    "AveragePooling1OperatorDesc",
    "AveragePoolingGradOperatorDesc",
    "AveragePoolingOperatorDesc",
    "LpPooling1OperatorDesc",
    "LpPoolingOperatorDesc",
    "MaxPooling1OperatorDesc",
    "MaxPooling2OperatorDesc",
    "MaxPoolingGradOperatorDesc",
    "MaxPoolingOperatorDesc",
    "MaxUnpoolingOperatorDesc",
    "Pooling",
    "QuantizedLinearAveragePoolingOperatorDesc",
]


_OF_ONE_TYPE = ("input_tensor", "output_tensor", "input_gradient_tensor", "output_gradient_tensor")


class Pooled(OperatorDesc):
    """The tensors of a pool.

    Attributes:
        input_tensor: N x C x spatial.
        output_tensor: N x C x spatial, of the same DataType.
    """

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc


class PooledWithIndices(Pooled):
    """The tensors of a pool that also says where its elements are from.

    Attributes:
        output_indices_tensor: UINT32 or UINT64, of the output's sizes: the place of each element in the input, counted
            in row-major order over all dimensions, batch and channels included; or absent.
    """

    output_indices_tensor: BufferTensorDesc | None = None


class Pooling(SlidingWindow):
    """Base of pools: the arrays of their windows.

    Attributes:
        dimension_count: spatial dimensions; derived.
        strides: steps of the window.
        window_size: elements of the window along each spatial dimension.
        start_padding: entries before each spatial dimension.
        end_padding: entries after it.
        forward_tensors: the names of the fields for the forward operator's input and output.
        rounded_up: whether sizes may be rounded up.
    """

    forward_tensors: ClassVar[tuple[str, str]] = ("input_tensor", "output_tensor")
    rounded_up: ClassVar[bool] = True

    strides: UIntArray
    dimension_count: UInt = count_of("strides")
    window_size: UIntArray
    start_padding: UIntArray
    end_padding: UIntArray

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """Steps of 1, no padding, sizes rounded down; padding is not averaged."""
        source, target = cls.forward_tensors
        known = given.tensor(source)
        spatial = len(known.sizes) - 2
        if spatial < 1:
            return
        yield from cls.spatial_defaults(spatial).items()
        if "include_padding" in cls.model_fields:
            yield "include_padding", False
        arrays = cls.spatial_arrays(given, spatial)
        if arrays is not None:
            sizes = spatial_sizes(known.sizes[2:], arrays["window_size"], arrays)
            zero = given.structure(BufferTensorDesc, "output_zero_point_tensor")
            yield target, packed((zero or known).data_type, [*known.sizes[:2], *[max(0, size) for size in sizes]])
        yield from super().inferred(given)

    def type_rules(self) -> Iterator[Violation]:
        """Which tensors agree in DataType and DimensionCount: all but indices."""
        yield from self.same_data_type(*_OF_ONE_TYPE)
        yield from self.same_dimension_count()

    def operator_rules(self) -> Iterator[Violation]:
        """Types, ranks and sizes fit; the window is no larger than the padded input."""
        yield from self.type_rules()
        source, target = (getattr(self, name).sizes for name in self.forward_tensors)
        wrong = list(self.spatial_rules(len(source)))
        yield from wrong
        if any(v.code != "count-disagrees" for v in wrong) or len(source) < 3 or len(target) != len(source):
            return
        arrays = self.spatial()
        sizes = spatial_sizes(source[2:], self.window_size, arrays)
        if any(size < 1 for size in sizes):
            message = f"the output would have the spatial sizes {sizes}: the window is larger than the padded input"
            yield self.broken("window", ("WindowSize",), message, list(self.window_size), "a smaller window")
            return
        why = "batch, channels and what windows, strides and padding leave, rounded down"
        if self.rounded_up:
            longer = {**arrays, "end_padding": [n + s - 1 for n, s in zip(self.end_padding, self.strides, strict=True)]}
            larger = spatial_sizes(source[2:], self.window_size, longer)
            sizes = [up if out == up else down for out, up, down in zip(target[2:], larger, sizes, strict=True)]
            why += " or up"
        yield from self.sizes_are([*source[:2], *sizes], why, self.forward_tensors[1])
        yield from self.sizes_are(target, "those of OutputTensor", "output_indices_tensor")
        if getattr(self, "p", 1) == 0:
            yield self.broken("zero", ("P",), "must be at least 1 (the page does not say so)", 0, "at least 1")


class DilatedPooling(Pooling):
    """Base of pools whose windows have gaps.

    Attributes:
        dilations: distance between the window's elements.
    """

    dilations: UIntArray


class AveragePoolingOperatorDesc(Pooling, Pooled):
    """`DML_OPERATOR_AVERAGE_POOLING`: the average of each window.

    Attributes:
        include_padding: whether padding counts as zeros, or does not count; an average of nothing is 0.
    """

    include_padding: Bool


class AveragePooling1OperatorDesc(DilatedPooling, Pooled):
    """`DML_OPERATOR_AVERAGE_POOLING1`: the average of each window, which may be dilated.

    Attributes:
        include_padding: whether padding counts as zeros, or does not count; an average of nothing is 0.
    """

    include_padding: Bool


class MaxPoolingOperatorDesc(Pooling, Pooled):
    """`DML_OPERATOR_MAX_POOLING`: the largest element of each window, or NaN if there is one; padding never is."""


class MaxPooling1OperatorDesc(Pooling, PooledWithIndices):
    """`DML_OPERATOR_MAX_POOLING1`: the largest element of each window and, if asked for, where it is."""


class MaxPooling2OperatorDesc(DilatedPooling, PooledWithIndices):
    """`DML_OPERATOR_MAX_POOLING2`: the largest element of each window, which may be dilated, and where it is."""


class LpPoolingOperatorDesc(Pooling, Pooled):
    """`DML_OPERATOR_LP_POOLING`: `(sum of |x|^P)^(1/P)` over each window.

    Attributes:
        p: the norm's exponent, at least 1.
    """

    p: UInt


class LpPooling1OperatorDesc(DilatedPooling, Pooled):
    """`DML_OPERATOR_LP_POOLING1`: `(sum of |x|^P)^(1/P)` over each window, which may be dilated.

    Attributes:
        p: the norm's exponent, at least 1.
    """

    p: UInt


class QuantizedPooled(Quantized):
    """The tensors of a quantized pool.

    Attributes:
        input_tensor: N x C x spatial, INT8 or UINT8.
        input_scale_tensor: one value or one for each channel.
        input_zero_point_tensor: zero points, one for each scale, of the input's DataType; absent for 0.
        output_scale_tensor: one value or one for each channel.
        output_zero_point_tensor: zero points, one for each scale, of the output's DataType; absent for 0.
        output_tensor: N x C x spatial, of the input's DataType.
    """

    input_tensor: BufferTensorDesc
    input_scale_tensor: BufferTensorDesc
    input_zero_point_tensor: BufferTensorDesc | None = None
    output_scale_tensor: BufferTensorDesc
    output_zero_point_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc


class QuantizedLinearAveragePoolingOperatorDesc(DilatedPooling, QuantizedPooled):
    """`DML_OPERATOR_QUANTIZED_LINEAR_AVERAGE_POOLING`: the average of each window of a quantized tensor, quantized.

    Attributes:
        include_padding: whether padding counts as zeros, which are the zero point; an average of nothing is 0.
    """

    include_padding: Bool

    def type_rules(self) -> Iterator[Violation]:
        """Input and output agree in type and rank, and with their zero points in type; parameters have their sizes.

        That a scale and its zero point have equal sizes is CreateOperator's rule (DirectML 1.15.4).
        """
        yield from self.same_data_type("input_tensor", "output_tensor")
        yield from self.same_dimension_count("input_tensor", "output_tensor")
        channels = (*self.input_tensor.sizes, 1, 1)[1]
        for name in ("input", "output"):
            yield from self.same_data_type(f"{name}_tensor", f"{name}_zero_point_tensor")
            parameters = (f"{name}_scale_tensor", f"{name}_zero_point_tensor")
            yield from self.one_value_or(channels, 1, "channel", *parameters, flat=True)
            yield from self.same_dimension_count(*parameters)
            scale, sizes = self.names_of_fields()[parameters[0]], getattr(self, parameters[0]).sizes
            yield from self.sizes_are(sizes, f"{scale}.Sizes", parameters[1], code="parameter-sizes")


class AveragePoolingGradients(OperatorDesc):
    """The tensors of AVERAGE_POOLING's gradient.

    Attributes:
        input_gradient_tensor: gradient of AVERAGE_POOLING's output, of its sizes.
        output_gradient_tensor: gradient of its input, of the input's sizes and the same DataType.
    """

    input_gradient_tensor: BufferTensorDesc
    output_gradient_tensor: BufferTensorDesc


class MaxPoolingGradients(OperatorDesc):
    """The tensors of MAX_POOLING2's gradient.

    Attributes:
        input_tensor: MAX_POOLING2's input.
        input_gradient_tensor: gradient of its output, of the output's sizes.
        output_gradient_tensor: gradient of its input, of the input's sizes; all three have one DataType.
    """

    input_tensor: BufferTensorDesc
    input_gradient_tensor: BufferTensorDesc
    output_gradient_tensor: BufferTensorDesc


class AveragePoolingGradOperatorDesc(Pooling, AveragePoolingGradients):
    """`DML_OPERATOR_AVERAGE_POOLING_GRAD`: what each output of AVERAGE_POOLING averaged gets its share of the gradient.

    Attributes:
        include_padding: whether padding counted as zeros.
    """

    forward_tensors = ("output_gradient_tensor", "input_gradient_tensor")

    include_padding: Bool


class MaxPoolingGradOperatorDesc(DilatedPooling, MaxPoolingGradients):
    """`DML_OPERATOR_MAX_POOLING_GRAD`: the largest element of each window of MAX_POOLING2 gets the gradient."""

    rounded_up = False
    forward_tensors = ("input_tensor", "input_gradient_tensor")
    outputs_like: ClassVar = {"output_gradient_tensor": "input_tensor"}


class MaxUnpoolingOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_MAX_UNPOOLING`: zeros, with each element of the input where its index says.

    Attributes:
        input_tensor: N x C x H x W.
        indices_tensor: UINT32 or UINT64, of the input's sizes: places in the output, in row-major order over all
            dimensions, batch and channels included. One beyond the output writes nothing; of equal ones, one writes.
        output_tensor: result, of any sizes and the input's DataType.
    """

    input_tensor: BufferTensorDesc
    indices_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc

    def operator_rules(self) -> Iterator[Violation]:
        """Types, ranks and the sizes of the indices fit."""
        yield from self.same_data_type("input_tensor", "output_tensor")
        yield from self.same_dimension_count()
        yield from self.sizes_are(self.input_tensor.sizes, "those of InputTensor", "indices_tensor", code="index-sizes")
