"""Generators: operators without inputs. Source: the DML_FILL_VALUE_SEQUENCE page."""

from __future__ import annotations

from collections.abc import Iterator

from ..problems import Violation
from .fields import Scalar
from .movement import DataTypeOf, scalar_fits, scalar_type_is
from .operator_desc import Given, Inferred, OperatorDesc
from .tensor import BufferTensorDesc

__all__ = ["FillValueSequenceOperatorDesc"]


class FillValueSequenceOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_FILL_VALUE_SEQUENCE`: `ValueStart + k * ValueDelta` for element k in row-major order.

    Attributes:
        output_tensor: tensor to fill.
        value_data_type: the output's DataType.
        value_start: the first element.
        value_delta: what is added for each further one; integers wrap.
    """

    operator_type = "FILL_VALUE_SEQUENCE"

    output_tensor: BufferTensorDesc
    value_data_type: DataTypeOf
    value_start: Scalar
    value_delta: Scalar

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """See `OperatorDesc.inferred`: the values' DataType."""
        yield "value_data_type", given.tensor("output_tensor").data_type

    def operator_rules(self) -> Iterator[Violation]:
        """The values have the output's DataType, and fit it; a delta of -2 may be sent for an unsigned type."""
        yield from scalar_type_is(self, "value_data_type", self.output_tensor.data_type)
        yield from scalar_fits(self, "value_start", self.value_data_type)
        if not isinstance(self.value_delta, int) or self.value_delta >= 0:
            yield from scalar_fits(self, "value_delta", self.value_data_type)
