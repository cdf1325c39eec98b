"""Element-wise operators with a lower or an upper bound, and their gradients.

Sources: the DML_ELEMENT_WISE_CLIP, CLIP1, THRESHOLD, CLIP_GRAD and CLIP_GRAD1 pages.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..values.problems import Violation
from ..values.sentences import named
from .completion import Given, Inferred
from .elementwise_base import ElementWiseGradient, Unary
from .fields import Float, ScalarUnion
from .movement import DataTypeOf, scalar_fits
from .operator_desc import OperatorDesc

__all__ = [
    "ElementWiseClip1OperatorDesc",
    "ElementWiseClipGrad1OperatorDesc",
    "ElementWiseClipGradOperatorDesc",
    "ElementWiseClipOperatorDesc",
    "ElementWiseThresholdOperatorDesc",
]


class ElementWiseClipOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_CLIP`: `max(Min, min(x, Max))`, so that Min wins where it is larger than Max.

    Attributes:
        min: lower bound, cast to the tensor's type: truncated and saturated for integers.
        max: upper bound, likewise.
    """

    min: Float
    max: Float


class TypedBounds(OperatorDesc):
    """Base of operators with bounds of the tensors' own type.

    Attributes:
        min_max_data_type: DataType of the bounds, the tensors' own.
        min: lower bound.
        max: upper bound.
    """

    min_max_data_type: DataTypeOf
    min: ScalarUnion
    max: ScalarUnion

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        yield "min_max_data_type", given.tensor("input_tensor").data_type
        yield from super().inferred(given)

    def operator_rules(self) -> Iterator[Violation]:
        """The bounds have the tensors' DataType, and fit it."""
        yield from super().operator_rules()
        (_, output), *_ = self.tensors("output")
        if self.min_max_data_type is not output.data_type:
            found, name = self.min_max_data_type.name, output.data_type.name
            message = named("MinMaxDataType") + f" must be the output's DataType, {name}"
            yield self.broken("data-types-differ", ("MinMaxDataType",), message, found, name)
        for field in ("min", "max"):
            yield from scalar_fits(self, field, self.min_max_data_type)


class ElementWiseClip1OperatorDesc(TypedBounds, Unary):
    """`DML_OPERATOR_ELEMENT_WISE_CLIP1`: `max(Min, min(x, Max))` with bounds of the tensor's own type.

    Attributes:
        min_max_data_type: DataType of the bounds, the tensors' own.
        min: lower bound; it wins where it is larger than Max.
        max: upper bound.
    """


class ElementWiseThresholdOperatorDesc(Unary):
    """`DML_OPERATOR_ELEMENT_WISE_THRESHOLD`: `max(x, Min)`.

    Attributes:
        min: lower bound, cast to the tensor's type: truncated and saturated for integers.
    """

    min: Float


class ElementWiseClipGradOperatorDesc(ElementWiseGradient):
    """`DML_OPERATOR_ELEMENT_WISE_CLIP_GRAD`: the gradient where the input lies between Min and Max, else 0.

    Attributes:
        min: cast to the tensors' type as CLIP casts it; 0 from there down.
        max: 0 from there up.
    """

    min: Float
    max: Float


class ElementWiseClipGrad1OperatorDesc(TypedBounds, ElementWiseGradient):
    """`DML_OPERATOR_ELEMENT_WISE_CLIP_GRAD1`: CLIP_GRAD with bounds of the tensors' own type.

    Attributes:
        min_max_data_type: DataType of the bounds, the tensors' own.
        min: 0 from there down.
        max: 0 from there up.
    """
