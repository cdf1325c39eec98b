"""Products: GEMM and CONVOLUTION. Sources: the DML_GEMM and DML_CONVOLUTION pages; sizes as DirectMLX infers them."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Annotated

from ..problems import Violation
from .activation import FusedActivation, WithFusedActivation
from .fields import CEnum, Float, UInt, UIntArray, count_of
from .operator_desc import Given, Inferred, packed
from .tensor import BufferTensorDesc

__all__ = [
    "ConvolutionDirection",
    "ConvolutionMode",
    "ConvolutionOperatorDesc",
    "GemmOperatorDesc",
    "MatrixTransform",
]


class MatrixTransform(enum.IntEnum):
    """`DML_MATRIX_TRANSFORM`."""

    NONE = 0
    TRANSPOSE = 1


class ConvolutionMode(enum.IntEnum):
    """`DML_CONVOLUTION_MODE`: whether the filter is reversed before it slides over the input."""

    CONVOLUTION = 0
    CROSS_CORRELATION = 1


class ConvolutionDirection(enum.IntEnum):
    """`DML_CONVOLUTION_DIRECTION`: BACKWARD is the transposed convolution."""

    FORWARD = 0
    BACKWARD = 1


Transform = Annotated[MatrixTransform, CEnum("DML_MATRIX_TRANSFORM_")]


class GemmOperatorDesc(WithFusedActivation):
    """`DML_OPERATOR_GEMM`: `FusedActivation(Alpha * A' x B' + Beta * C)` on the last two dimensions.

    Attributes:
        a_tensor: M x K matrices, or K x M if `trans_a` is TRANSPOSE; equal leading dimensions in all tensors.
        b_tensor: K x N matrices, or N x K.
        c_tensor: of the output's sizes, or absent; broadcast by strides of 0.
        output_tensor: M x N matrices.
        trans_a: NONE or TRANSPOSE.
        trans_b: NONE or TRANSPOSE.
        alpha: factor of the product.
        beta: factor of C.
        fused_activation: applied to the result; absent for none.
    """

    operator_type = "GEMM"

    a_tensor: BufferTensorDesc
    b_tensor: BufferTensorDesc
    c_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc
    trans_a: Transform = MatrixTransform.NONE
    trans_b: Transform = MatrixTransform.NONE
    alpha: Float = 1.0
    beta: Float = 1.0
    fused_activation: FusedActivation | None = None

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """See `OperatorDesc.inferred`: the output."""
        a, b = given.tensor("a_tensor"), given.tensor("b_tensor")
        if min(len(a.sizes), len(b.sizes)) >= 2:
            rows = _matrix(a.sizes, _transform(given, "trans_a"))[0]
            columns = _matrix(b.sizes, _transform(given, "trans_b"))[1]
            yield "output_tensor", packed(a.data_type, [*a.sizes[:-2], rows, columns])

    def operator_rules(self) -> Iterator[Violation]:
        """All tensors agree in type, rank and leading sizes; the inner sizes are equal."""
        yield from self.same_type_and_rank()
        a, b, rank = self.a_tensor.sizes, self.b_tensor.sizes, len(self.output_tensor.sizes)
        if len(a) != rank or len(b) != rank or rank < 2:
            return
        (rows, inner), (other, columns) = _matrix(a, self.trans_a), _matrix(b, self.trans_b)
        if inner != other:
            message = f"A has {inner} columns and B {other} rows, after TransA and TransB; they must be equal"
            yield self.broken("inner-sizes", ("BTensor", "Sizes"), message, list(b), f"{inner} rows")
        yield from self.sizes_are([*a[:-2], *b[-2:]], "A's before the last two", "b_tensor")
        wanted = [*a[:-2], rows, columns]
        yield from self.sizes_are(wanted, "A's rows and B's columns", "output_tensor", "c_tensor")


def _transform(given: Given, field: str) -> MatrixTransform:
    return given.member(field, MatrixTransform, "DML_MATRIX_TRANSFORM_", MatrixTransform.NONE)


def _matrix(sizes: Sequence[int], transform: int) -> tuple[int, int]:
    return (sizes[-1], sizes[-2]) if transform else (sizes[-2], sizes[-1])


ARRAYS = ("strides", "dilations", "start_padding", "end_padding", "output_padding")
"""Fields of a convolution that have an entry for each spatial dimension."""


class ConvolutionOperatorDesc(WithFusedActivation):
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

    operator_type = "CONVOLUTION"

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
    fused_activation: FusedActivation | None = None

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """See `OperatorDesc.inferred`: forward, steps of 1, no padding and one group where they are left out."""
        source, window = given.tensor("input_tensor"), given.tensor("filter_tensor")
        spatial = len(source.sizes) - 2
        if len(source.sizes) != len(window.sizes) or spatial < 1:
            return
        forward = ConvolutionDirection.FORWARD
        defaults = dict(zip(ARRAYS, ([1] * spatial, [1] * spatial, *[[0] * spatial] * 3), strict=True))
        yield from {
            "mode": ConvolutionMode.CROSS_CORRELATION, "direction": forward, "group_count": 1, **defaults
        }.items()  # fmt: skip
        arrays = [given.integers(name) if given.has(name) else value for name, value in defaults.items()]
        groups = given.integer("group_count") if given.has("group_count") else 1
        if all(len(array) == spatial for array in arrays) and 0 not in arrays[0]:
            backward = given.member("direction", ConvolutionDirection, "DML_CONVOLUTION_DIRECTION_", forward) != forward
            sizes = convolved(source.sizes[2:], window.sizes[2:], arrays, backward=backward)
            channels = window.sizes[1] * groups if backward else window.sizes[0]
            yield "output_tensor", packed(source.data_type, [source.sizes[0], channels, *[max(0, n) for n in sizes]])

    def operator_rules(self) -> Iterator[Violation]:
        """Types, ranks, channels and sizes fit."""
        yield from self.same_type_and_rank()
        source, window, rank = self.input_tensor.sizes, self.filter_tensor.sizes, len(self.input_tensor.sizes)
        yield from self.count_is_length("dimension_count", "strides")
        wrong = list(self.one_entry_per_dimension(*ARRAYS, rank=rank - 2))
        yield from wrong
        for name in ("strides", "dilations"):
            for axis, value in enumerate(getattr(self, name)):
                if value == 0:
                    message = "must be at least 1"
                    wrong.append(self.broken("zero", (name.capitalize(), axis), message, value, "at least 1"))
                    yield wrong[-1]
        if wrong or rank < 3 or len(window) != rank or len(self.output_tensor.sizes) != rank:
            return
        backward = self.direction is ConvolutionDirection.BACKWARD
        channels = window[1] * self.group_count if backward else window[0]
        inputs = window[0] if backward else window[1] * self.group_count
        if self.group_count == 0 or source[1] != inputs or source[1] % self.group_count or channels % self.group_count:
            message = f"the filter and {self.group_count} groups need {inputs} input channels, not {source[1]}"
            yield self.broken(
                "channels", ("FilterTensor", "Sizes"), message, list(window), f"{source[1]} input channels"
            )
            return
        arrays = [list(getattr(self, name)) for name in ARRAYS]
        sizes = convolved(source[2:], window[2:], arrays, backward=backward)
        if any(size < 1 for size in sizes):
            message = f"the output would have the spatial sizes {sizes}: the filter is larger than the padded input"
            yield self.broken("filter-too-large", ("FilterTensor", "Sizes"), message, list(window), "smaller filters")
            return
        if backward:
            # Clients of DirectML leave OutputPadding at 0 and ask for a larger output; all of it is sums.
            sizes = [max(size, out) for size, out in zip(sizes, self.output_tensor.sizes[2:], strict=True)]
        why = "the batch, the filter's output channels and what strides, dilations and padding leave"
        yield from self.sizes_are([source[0], channels, *sizes], why, "output_tensor")
        yield from self.sizes_are([1, channels, *[1] * (rank - 2)], "1, the output channels and ones", "bias_tensor")


def convolved(
    sizes: Sequence[int], window: Sequence[int], arrays: Sequence[Sequence[int]], *, backward: bool
) -> list[int]:
    """The spatial sizes of a convolution's output.

    Args:
        sizes: the input's spatial sizes.
        window: the filter's.
        arrays: strides, dilations, start, end and output padding.
        backward: whether the convolution is transposed.
    """
    found: list[int] = []
    for size, taps, stride, dilation, start, end, extra in zip(sizes, window, *arrays, strict=True):
        extent = (taps - 1) * dilation + 1
        whole = (size - 1) * stride + extent - start - end if backward else (size + start + end - extent) // stride + 1
        found.append(whole + extra)
    return found
