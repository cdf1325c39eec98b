"""Element-wise operators: every output element follows from the input elements at the same coordinate.

Sources: the DML_ELEMENT_WISE_*_OPERATOR_DESC pages and DML_CAST_OPERATOR_DESC. All tensors have equal sizes; an input
is broadcast by strides of 0. What the pages leave open is tensorpost's choice, and stands with each formula in the
server's `operators/elementwise.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ..datatypes import TensorDataType
from ..problems import Violation
from .base import Descriptor
from .fields import Float
from .operator_desc import Given, Inferred, OperatorDesc, packed
from .tensor import BufferTensorDesc

__all__ = [
    "Binary",
    "CastOperatorDesc",
    "ElementWise",
    "ElementWiseAbsOperatorDesc",
    "ElementWiseAddOperatorDesc",
    "ElementWiseClipOperatorDesc",
    "ElementWiseDivideOperatorDesc",
    "ElementWiseExpOperatorDesc",
    "ElementWiseIdentityOperatorDesc",
    "ElementWiseIfOperatorDesc",
    "ElementWiseMaxOperatorDesc",
    "ElementWiseMinOperatorDesc",
    "ElementWiseMultiplyOperatorDesc",
    "ElementWiseSubtractOperatorDesc",
    "ScaleBias",
    "Unary",
]


class ScaleBias(Descriptor):
    """`DML_SCALE_BIAS`: what is done to each input element first, `x * Scale + Bias`.

    Attributes:
        scale: factor.
        bias: summand.
    """

    scale: Float
    bias: Float


class ElementWise(OperatorDesc):
    """Base of operators whose tensors all have equal sizes.

    Attributes:
        typed_like: the input whose DataType the output has, and all other inputs but those in `other_types`.
        other_types: tensors whose DataType is their own.
    """

    typed_like: ClassVar[str] = "input_tensor"
    other_types: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """See `OperatorDesc.inferred`: the output, if its type follows."""
        source = given.tensor(cls.typed_like)
        if "output_tensor" not in cls.other_types:
            yield "output_tensor", packed(source.data_type, source.sizes)

    def operator_rules(self) -> Iterator[Violation]:
        """All tensors agree in sizes, and in types but for those whose type is their own."""
        fields = [path[0] for path, _ in self.tensors()]
        yield from self.same_type_and_rank(*[field for field in fields if field not in self.other_types])
        sizes = getattr(self, self.typed_like).sizes
        yield from self.sizes_are(sizes, "the sizes of every other tensor", *fields)


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
            message = f"{data_type.name} has 64 bits, and DirectML scales no such elements"
            found = scaled.to_json()
            yield self.broken("scale-bias", ("ScaleBias",), message, found, "null, or a Scale of 1 and a Bias of 0")


class Binary(ElementWise):
    """Base of operators of two inputs."""

    typed_like = "a_tensor"

    a_tensor: BufferTensorDesc
    b_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc


class ElementWiseIdentityOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_IDENTITY`: each element itself; changes the strides of a tensor."""

    operator_type = "ELEMENT_WISE_IDENTITY"


class ElementWiseAbsOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_ABS`: the absolute value of each element."""

    operator_type = "ELEMENT_WISE_ABS"


class ElementWiseExpOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_EXP`: e to the power of each element."""

    operator_type = "ELEMENT_WISE_EXP"


class ElementWiseClipOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_CLIP`: `max(Min, min(x, Max))`, so that Min wins where it is larger than Max.

    Attributes:
        min: lower bound, cast to the tensor's type: truncated and saturated for integers.
        max: upper bound, likewise.
    """

    operator_type = "ELEMENT_WISE_CLIP"

    min: Float
    max: Float


class ElementWiseAddOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_ADD`: the sum of two tensors; integers wrap."""

    operator_type = "ELEMENT_WISE_ADD"


class ElementWiseSubtractOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_SUBTRACT`: A - B; integers wrap."""

    operator_type = "ELEMENT_WISE_SUBTRACT"


class ElementWiseMultiplyOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MULTIPLY`: the product of two tensors; integers wrap."""

    operator_type = "ELEMENT_WISE_MULTIPLY"


class ElementWiseDivideOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_DIVIDE`: A / B; integers are truncated toward zero."""

    operator_type = "ELEMENT_WISE_DIVIDE"


class ElementWiseMaxOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MAX`: the larger of two elements; NaN if either is NaN."""

    operator_type = "ELEMENT_WISE_MAX"


class ElementWiseMinOperatorDesc(Binary):
    """`DML_OPERATOR_ELEMENT_WISE_MIN`: the smaller of two elements; NaN if either is NaN."""

    operator_type = "ELEMENT_WISE_MIN"


class ElementWiseIfOperatorDesc(ElementWise):
    """`DML_OPERATOR_ELEMENT_WISE_IF`: the element of A where the condition is not 0, else that of B, bit for bit.

    Attributes:
        condition_tensor: UINT8.
        a_tensor: what is taken where the condition holds.
        b_tensor: what is taken elsewhere.
        output_tensor: of A's DataType.
    """

    operator_type = "ELEMENT_WISE_IF"
    typed_like = "a_tensor"
    other_types = frozenset({"condition_tensor"})

    condition_tensor: BufferTensorDesc
    a_tensor: BufferTensorDesc
    b_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc

    def operator_rules(self) -> Iterator[Violation]:
        """See `ElementWise`; the condition is UINT8 at every level."""
        yield from super().operator_rules()
        yield from self.data_type_is(TensorDataType.UINT8, "condition_tensor")


class CastOperatorDesc(ElementWise):
    """`DML_OPERATOR_CAST`: converts each element to the output's DataType.

    The page defines no conversion; tensorpost's choice: integers keep their low bits; what becomes a floating-point
    number is rounded to nearest even; floating-point numbers become integers toward zero, saturated, NaN becomes 0.
    """

    operator_type = "CAST"
    other_types = frozenset({"output_tensor"})

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
