"""Conversions between numbers and small integers, `(q - ZeroPoint) * Scale`.

Sources: the DML_ELEMENT_WISE_QUANTIZE_LINEAR, DEQUANTIZE_LINEAR and QUANTIZED_LINEAR_ADD pages, and those of
DYNAMIC_QUANTIZE_LINEAR, QUANTIZE and DEQUANTIZE; the last two say no more than types, and their rules are what DirectML
was seen to accept. What they leave open stands with each formula in the server's `operators/quantization.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated, ClassVar

from ..values.datatypes import TensorDataType
from ..values.problems import Violation
from .completion import Given, Inferred, Output
from .elementwise_base import ElementWise
from .feature_levels import FeatureLevel
from .fields import CEnum, UInt, count_of
from .operator_desc import OperatorDesc
from .tensor import BufferTensorDesc, TensorArray

__all__ = [
    "BlockQuantization",
    "DequantizeOperatorDesc",
    "DynamicQuantizeLinearOperatorDesc",
    "ElementWiseDequantizeLinearOperatorDesc",
    "ElementWiseQuantizeLinearOperatorDesc",
    "ElementWiseQuantizedLinearAddOperatorDesc",
    "LinearQuantization",
    "QuantizationType",
    "QuantizeOperatorDesc",
]


class QuantizationType(enum.IntEnum):
    """`DML_QUANTIZATION_TYPE`: which tensors say how numbers are quantized."""

    NONE = 0
    SCALE = 1
    SCALE_ZERO_POINT = 2


class LinearQuantization(ElementWise):
    """Base of conversions with a scale and a zero point for each element; strides of 0 make them those of many.

    Attributes:
        integers: the tensors of integers, which agree in DataType.
        input_tensor: what is converted.
        scale_tensor: scales; a scale of 0 divides by zero.
        zero_point_tensor: the integer that stands for 0; absent for 0, from level 6_2 on.
        output_tensor: the result.
    """

    integers: ClassVar[tuple[str, str]]

    input_tensor: BufferTensorDesc
    scale_tensor: BufferTensorDesc
    zero_point_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc

    def operator_rules(self) -> Iterator[Violation]:
        """All tensors have the input's sizes; integers agree in type."""
        yield from self.same_type_and_rank(*self.integers)
        sizes = self.input_tensor.sizes
        yield from self.sizes_are(sizes, "the sizes of every other tensor", "scale_tensor", "zero_point_tensor")

    def level_rules(self, level: FeatureLevel) -> Iterator[Violation]:
        """A zero point is required below 6_2."""
        if self.zero_point_tensor is None and level < FeatureLevel.L6_2:
            message = f"a call without ZeroPointTensor needs feature level 6_2, not {level}"
            yield self.broken("tensor-missing", ("ZeroPointTensor",), message, None, "a tensor, or level 6_2")


class ElementWiseQuantizeLinearOperatorDesc(LinearQuantization):
    """`DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR`: `round(x / Scale) + ZeroPoint` as 8 bits, saturated."""

    integers = ("zero_point_tensor", "output_tensor")

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        """An output of the zero point's DataType, UINT8 without one."""
        (output,), zero_point = super().output_layouts(given), given.structure(BufferTensorDesc, "zero_point_tensor")
        yield output._replace(data_type=zero_point.data_type if zero_point else TensorDataType.UINT8)

    def operator_rules(self) -> Iterator[Violation]:
        """See `LinearQuantization`; the scale has the input's type, and FLOAT32 for integers."""
        yield from super().operator_rules()
        if self.input_tensor.data_type is TensorDataType.INT32:
            yield from self.data_type_is(TensorDataType.FLOAT32, "scale_tensor")
        else:
            yield from self.same_data_type("input_tensor", "scale_tensor")


class ElementWiseDequantizeLinearOperatorDesc(LinearQuantization):
    """`DML_OPERATOR_ELEMENT_WISE_DEQUANTIZE_LINEAR`: `(x - ZeroPoint) * Scale`, of integers of 8 to 32 bits."""

    integers = ("input_tensor", "zero_point_tensor")

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        """An output of the scale's DataType."""
        (output,) = super().output_layouts(given)
        yield output._replace(data_type=given.tensor("scale_tensor").data_type)

    def operator_rules(self) -> Iterator[Violation]:
        yield from super().operator_rules()
        yield from self.same_data_type("scale_tensor", "output_tensor")


class ElementWiseQuantizedLinearAddOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_ELEMENT_WISE_QUANTIZED_LINEAR_ADD`: the sum of two quantized tensors, quantized again.

    Attributes:
        a_tensor: INT8 or UINT8.
        a_scale_tensor: one FLOAT32.
        a_zero_point_tensor: one element of A's DataType; absent for 0.
        b_tensor: INT8 or UINT8, of A's sizes.
        b_scale_tensor: one FLOAT32.
        b_zero_point_tensor: one element of B's DataType; absent for 0.
        output_scale_tensor: one FLOAT32.
        output_zero_point_tensor: one element of the output's DataType; absent for 0.
        output_tensor: INT8 or UINT8, of A's sizes.
    """

    outputs_like: ClassVar = {"output_tensor": "a_tensor"}

    a_tensor: BufferTensorDesc
    a_scale_tensor: BufferTensorDesc
    a_zero_point_tensor: BufferTensorDesc | None = None
    b_tensor: BufferTensorDesc
    b_scale_tensor: BufferTensorDesc
    b_zero_point_tensor: BufferTensorDesc | None = None
    output_scale_tensor: BufferTensorDesc
    output_zero_point_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc

    def operator_rules(self) -> Iterator[Violation]:
        """Each zero point has its tensor's type; scales and zero points are one element."""
        yield from self.same_type_and_rank("a_tensor", "a_zero_point_tensor")
        yield from self.same_data_type("b_tensor", "b_zero_point_tensor")
        yield from self.same_data_type("output_zero_point_tensor", "output_tensor")
        yield from self.sizes_are(self.a_tensor.sizes, "ATensor.Sizes", "b_tensor")
        single = [f"{of}_{what}_tensor" for of in ("a", "b", "output") for what in ("scale", "zero_point")]
        yield from self.sizes_are([1] * len(self.a_tensor.sizes), "one element", *single)


class DynamicQuantizeLinearOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_DYNAMIC_QUANTIZE_LINEAR`: quantizes to 8 bits with the scale that suits the tensor's range.

    Attributes:
        input_tensor: FLOAT32 or FLOAT16.
        output_tensor: INT8 or UINT8, of the input's sizes.
        output_scale_tensor: one FLOAT32: the range with 0 in it, in 255 steps.
        output_zero_point_tensor: one element of the output's DataType.
    """

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    output_scale_tensor: BufferTensorDesc
    output_zero_point_tensor: BufferTensorDesc

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        """All outputs, UINT8 as in ONNX where no DataType is given."""
        sizes = given.tensor("input_tensor").sizes
        output = given.structure(BufferTensorDesc, "output_tensor")
        integer, ones = output.data_type if output else TensorDataType.UINT8, [1] * len(sizes)
        yield Output("output_tensor", integer, sizes, "InputTensor.Sizes")
        yield Output("output_scale_tensor", TensorDataType.FLOAT32, ones, "one element")
        yield Output("output_zero_point_tensor", integer, ones, "one element")

    def operator_rules(self) -> Iterator[Violation]:
        """All tensors agree in rank, integers in type."""
        yield from self.same_type_and_rank("output_tensor", "output_zero_point_tensor")


class BlockQuantization(OperatorDesc):
    """Base of conversions whose scales and zero points are those of a tensor, of an axis or of blocks.

    Attributes:
        integer_tensor: the tensor of integers.
        number_tensor: the tensor of floating-point numbers.
        input_tensor: what is converted.
        quantization_type: SCALE or SCALE_ZERO_POINT.
        quantization_tensor_count: number of entries of `quantization_tensors`; derived.
        quantization_tensors: the scale, of the numbers' DataType, then the zero point, of the integers' and of the
            scale's sizes. Each size divides the input's; the quotient is the number of neighbours that share one. An
            absent zero point is 0 for signed integers, 8 for UINT4, 128 for UINT8, as DirectML has it.
        output_tensor: result, of the input's sizes.
    """

    integer_tensor: ClassVar[str]
    number_tensor: ClassVar[str]

    input_tensor: BufferTensorDesc
    quantization_type: Annotated[QuantizationType, CEnum("DML_QUANTIZATION_TYPE_")]
    quantization_tensors: TensorArray
    quantization_tensor_count: UInt = count_of("quantization_tensors")
    output_tensor: BufferTensorDesc

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        """An output of the DataType that the scale has, or the zero point, if there is one."""
        typed = given.tensors("quantization_tensors")[0 if cls.number_tensor == "output_tensor" else 1 :]
        data_type = typed[0].data_type if typed else None
        yield Output("output_tensor", data_type, given.tensor("input_tensor").sizes, "InputTensor.Sizes")

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """The type too, by the number of tensors."""
        count = len(given.tensors("quantization_tensors"))
        if count <= 2:
            yield "quantization_type", QuantizationType(count)
        yield from super().inferred(given)

    def operator_rules(self) -> Iterator[Violation]:
        """Ranks, types and sizes agree, and the type says how many tensors there are."""
        yield from self.same_dimension_count()
        tensors, wanted = self.quantization_tensors, int(self.quantization_type)
        yield from self.count_is_length("quantization_tensor_count", "quantization_tensors")
        if not 1 <= wanted == len(tensors):
            message = f"{len(tensors)} QuantizationTensors do not fit {self.quantization_type.name}"
            yield self.broken(
                "quantization-type",
                ("QuantizationType",),
                message,
                self.quantization_type.name,
                "SCALE for one tensor, SCALE_ZERO_POINT for two",
            )
        sizes = self.input_tensor.sizes
        for index, (tensor, name) in enumerate(zip(tensors, (self.number_tensor, self.integer_tensor), strict=False)):
            like, path = getattr(self, name).data_type, ("QuantizationTensors", index)
            if tensor.data_type is not like:
                message = f"{tensor.data_type.name} but {like.name} is the type of {name}"
                yield self.broken("data-types-differ", (*path, "DataType"), message, tensor.data_type.name, like.name)
            pairs = zip(sizes, tensor.sizes, strict=False)
            if len(tensor.sizes) == len(sizes) and any(part == 0 or size % part for size, part in pairs):
                message = f"each size must divide that of the input, {list(sizes)}"
                yield self.broken("block-sizes", (*path, "Sizes"), message, list(tensor.sizes), "divisors")
        if len(tensors) == 2 and tensors[0].sizes != tensors[1].sizes:
            found, like = list(tensors[1].sizes), list(tensors[0].sizes)
            message = f"the zero point has the sizes {found}, but the scale {like}"
            yield self.broken("block-sizes", ("QuantizationTensors", 1, "Sizes"), message, found, str(like))


class QuantizeOperatorDesc(BlockQuantization):
    """`DML_OPERATOR_QUANTIZE`: `round(x / Scale) + ZeroPoint` as 8 or 4 bits, halves to even, saturated."""

    integer_tensor, number_tensor = "output_tensor", "input_tensor"


class DequantizeOperatorDesc(BlockQuantization):
    """`DML_OPERATOR_DEQUANTIZE`: `(x - ZeroPoint) * Scale`, of integers of 8 or 4 bits."""

    integer_tensor, number_tensor = "input_tensor", "output_tensor"
