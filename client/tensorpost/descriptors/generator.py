"""Generators: operators whose outputs follow from their attributes, from a few numbers, or replace parts of an input.

Sources: the DML_FILL_VALUE_CONSTANT, FILL_VALUE_SEQUENCE, DIAGONAL_MATRIX, DIAGONAL_MATRIX1, RANDOM_GENERATOR and
DML_RANDOM_GENERATOR_TYPE pages; J. K. Salmon and others, "Parallel Random Numbers: As Easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated, ClassVar

from ..values.datatypes import TensorDataType
from ..values.problems import Violation
from .completion import Given, Inferred
from .fields import CEnum, Float, Int, ScalarUnion
from .movement import DataTypeOf, scalar_fits, scalar_type_is
from .operator_desc import OperatorDesc
from .tensor import BufferTensorDesc

__all__ = [
    "DiagonalMatrix1OperatorDesc",
    "DiagonalMatrixOperatorDesc",
    "FillValueConstantOperatorDesc",
    "FillValueSequenceOperatorDesc",
    "RandomGeneratorOperatorDesc",
    "RandomGeneratorType",
]


class RandomGeneratorType(enum.IntEnum):
    """`DML_RANDOM_GENERATOR_TYPE`: the only one is Philox with 4 words of 32 bits and 10 rounds."""

    PHILOX_4X32_10 = 0


class FillValueConstantOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_FILL_VALUE_CONSTANT`: one value for every element.

    Attributes:
        output_tensor: tensor to fill.
        value_data_type: the output's DataType.
        value: what every element becomes.
    """

    output_tensor: BufferTensorDesc
    value_data_type: DataTypeOf
    value: ScalarUnion

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        yield "value_data_type", given.tensor("output_tensor").data_type

    def operator_rules(self) -> Iterator[Violation]:
        """The value has the output's DataType, and fits it."""
        yield from scalar_type_is(self, "value_data_type", self.output_tensor.data_type)
        yield from scalar_fits(self, "value", self.value_data_type)


class FillValueSequenceOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_FILL_VALUE_SEQUENCE`: `ValueStart + k * ValueDelta` for element k in row-major order.

    Attributes:
        output_tensor: tensor to fill.
        value_data_type: the output's DataType.
        value_start: the first element.
        value_delta: what is added for each further one; integers wrap.
    """

    output_tensor: BufferTensorDesc
    value_data_type: DataTypeOf
    value_start: ScalarUnion
    value_delta: ScalarUnion

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        yield "value_data_type", given.tensor("output_tensor").data_type

    def operator_rules(self) -> Iterator[Violation]:
        """The values have the output's DataType, and fit it; a delta of -2 may be sent for an unsigned type."""
        yield from scalar_type_is(self, "value_data_type", self.output_tensor.data_type)
        yield from scalar_fits(self, "value_start", self.value_data_type)
        if not isinstance(self.value_delta, int) or self.value_delta >= 0:
            yield from scalar_fits(self, "value_delta", self.value_data_type)


class DiagonalMatrixOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_DIAGONAL_MATRIX`: matrices with a value on one diagonal and 0 elsewhere.

    Attributes:
        output_tensor: tensor to fill; its last two dimensions are the matrices', of any height and width.
        offset: column less row of the diagonal's elements; it may lie outside the matrix.
        value: cast to the output's type, as PADDING's.
    """

    output_tensor: BufferTensorDesc
    offset: Int
    value: Float

    def operator_rules(self) -> Iterator[Violation]:
        """There are two dimensions at least."""
        yield from _of_matrices(self, self.output_tensor)


class DiagonalMatrix1OperatorDesc(OperatorDesc):
    """`DML_OPERATOR_DIAGONAL_MATRIX1`: matrices with a value on a band of diagonals, or everywhere but on it.

    Attributes:
        input_tensor: what is not filled; 0 if it is left out.
        output_tensor: result, of the input's sizes and DataType; its last two dimensions are the matrices'.
        value_data_type: the output's DataType.
        value: what the band is filled with.
        diagonal_fill_begin: column less row of the first diagonal of the band.
        diagonal_fill_end: the diagonal after its last. If it is less than the first, all is filled but the diagonals
            from the end up to the begin.
    """

    outputs_like: ClassVar = {"output_tensor": "input_tensor"}

    input_tensor: BufferTensorDesc | None = None
    output_tensor: BufferTensorDesc
    value_data_type: DataTypeOf
    value: ScalarUnion
    diagonal_fill_begin: Int
    diagonal_fill_end: Int

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        source = "input_tensor" if given.value("input_tensor") is not None else "output_tensor"
        yield "value_data_type", given.tensor(source).data_type
        yield from super().inferred(given)

    def operator_rules(self) -> Iterator[Violation]:
        """Input and output agree, there are two dimensions at least, and the value fits."""
        if self.input_tensor is not None:
            yield from self.same_type_and_rank()
        yield from _of_matrices(self, self.output_tensor)
        yield from scalar_type_is(self, "value_data_type", self.output_tensor.data_type)
        yield from scalar_fits(self, "value", self.value_data_type)


def _of_matrices(desc: OperatorDesc, output: BufferTensorDesc) -> Iterator[Violation]:
    if len(output.sizes) < 2:
        message = "a matrix has two dimensions"
        yield desc.broken(
            "dimension-count", ("OutputTensor", "Sizes"), message, list(output.sizes), "2 to 4 dimensions"
        )


class RandomGeneratorOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_RANDOM_GENERATOR`: random bits by Philox 4x32-10, the same for the same state.

    Four elements in row-major order are one block, of the counter plus 0, 1 and so on. The pages leave open in which
    order words are: word 0 of the counter is its lowest, word 0 of a block comes first, as in TensorFlow, whose plugin
    copies its words as they are.

    Attributes:
        input_state_tensor: 6 UINT32: the counter of 128 bits, then the key of 64.
        output_tensor: UINT32, of any sizes.
        output_state_tensor: the state for the next call: the counter plus the blocks that were begun; may be left out.
        type: PHILOX_4X32_10, the only one.
    """

    input_state_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    output_state_tensor: BufferTensorDesc | None = None
    type: Annotated[RandomGeneratorType, CEnum("DML_RANDOM_GENERATOR_TYPE_")] = RandomGeneratorType.PHILOX_4X32_10

    def operator_rules(self) -> Iterator[Violation]:
        """States of 6 UINT32, and an output of UINT32."""
        yield from self.data_type_is(
            TensorDataType.UINT32, "input_state_tensor", "output_tensor", "output_state_tensor"
        )
        state = self.input_state_tensor.sizes
        yield from self.sizes_are([*[1] * (len(state) - 1), 6], "six words", "input_state_tensor", code="state-sizes")
        if self.output_state_tensor is not None:
            other = self.output_state_tensor.sizes
            if len(other) != len(state):
                message = f"the output state has {len(other)} dimensions, the input state {len(state)}"
                where = ("OutputStateTensor", "Sizes")
                yield self.broken("dimension-counts-differ", where, message, list(other), f"{len(state)} dimensions")
            yield from self.sizes_are(state, "InputStateTensor.Sizes", "output_state_tensor")
