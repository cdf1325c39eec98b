"""What element-wise operators share: every output element follows from the input elements at the same coordinate.

Sources: the DML_ELEMENT_WISE_*_OPERATOR_DESC and DML_ACTIVATION_*_OPERATOR_DESC pages. All tensors have equal sizes; an
input is broadcast by strides of 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ..values.datatypes import TensorDataType
from ..values.problems import Violation
from .base import Descriptor
from .completion import Given, Output
from .fields import Float
from .operator_desc import OperatorDesc
from .tensor import BufferTensorDesc

__all__ = ["Binary", "ElementWise", "ElementWiseGradient", "ScaleBias", "Unary", "UnaryWithoutScale"]


class ScaleBias(Descriptor):
    """`DML_SCALE_BIAS`: what is done to each input element first, `x * Scale + Bias`.

    Attributes:
        scale: factor of the element.
        bias: what is added to the product.
    """

    scale: Float
    bias: Float


class ElementWise(OperatorDesc):
    """Base of operators whose tensors all have equal sizes.

    Attributes:
        typed_like: the input whose DataType the output has, and all other inputs but those in `other_types`.
        other_types: tensors whose DataType is their own.
        output_type: DataType of an output in `other_types` that is left out; None if it cannot be.
    """

    typed_like: ClassVar[str] = "input_tensor"
    other_types: ClassVar[frozenset[str]] = frozenset()
    output_type: ClassVar[TensorDataType | None] = None

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        source = given.tensor(cls.typed_like)
        (output,) = cls.fields_of_kind("output")
        data_type = cls.output_type if output in cls.other_types else source.data_type
        yield Output(output, data_type, source.sizes, "the sizes of every other tensor")

    def operator_rules(self) -> Iterator[Violation]:
        """All tensors agree in sizes, and in types but for those whose type is their own."""
        fields = [path[0] for path, _ in self.tensors()]
        yield from self.same_type_and_rank(*[field for field in fields if field not in self.other_types])
        sizes = getattr(self, self.typed_like).sizes
        yield from self.sizes_are(sizes, "the sizes of every other tensor", *self.fields_of_kind("input"))


class Unary(ElementWise):
    """Base of operators of one input, to which a scale and a bias may be applied first."""

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    scale_bias: ScaleBias | None = None

    def operator_rules(self) -> Iterator[Violation]:
        """See `ElementWise`; elements of 64 bits are not scaled, as DirectML has it (the pages do not say so)."""
        yield from super().operator_rules()
        scaled, data_type = self.scale_bias, self.input_tensor.data_type
        if scaled is not None and data_type.bits == 64 and (scaled.scale, scaled.bias) != (1, 0):
            message = f"{data_type.name} has 64 bits, and DirectML does not scale such elements"
            found = scaled.to_json()
            yield self.broken("scale-bias", ("ScaleBias",), message, found, "null, or a Scale of 1 and a Bias of 0")


class Binary(ElementWise):
    """Base of operators of two inputs."""

    typed_like = "a_tensor"

    a_tensor: BufferTensorDesc
    b_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc


class UnaryWithoutScale(ElementWise):
    """Base of operators of one input without ScaleBias."""

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc


class ElementWiseGradient(ElementWise):
    """Base of operators that pass a gradient on where a condition on the input holds."""

    input_tensor: BufferTensorDesc
    input_gradient_tensor: BufferTensorDesc
    output_gradient_tensor: BufferTensorDesc
