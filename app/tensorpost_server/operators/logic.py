"""Comparisons, logical and bit operations as expressions.

Choices where the pages are silent: comparisons are IEEE 754's, so NaN is unequal to everything; whatever is not 0 is
true, and true is 1.

Shifts are by the counts that DirectML's answers show: of elements of up to 32 bits by the low 5 bits of the count, as
Direct3D shifts 32-bit registers, so that 8 and 16 bits are shifted out by more than their width; of 64 bits by the low
32 bits of the count, from 32 on by 32 and the low 5 bits.
"""

from __future__ import annotations

from tensorpost import descriptors as dml
from tensorpost.descriptors import OperatorDesc

from ..forms import Pointwise
from ..forms.expression import Expression, call, operand, where
from .elementwise_base import FORMULAS, Formula, binary, operands, pointwise, unary
from .registry import form_of_class


def _is_true(x: Expression) -> Expression:
    return call("not_equal", x, 0)


binary(dml.ElementWiseLogicalEqualsOperatorDesc, lambda a, b: call("equal", a, b))
binary(dml.ElementWiseLogicalGreaterThanOperatorDesc, lambda a, b: a > b)
binary(dml.ElementWiseLogicalLessThanOperatorDesc, lambda a, b: a < b)
binary(dml.ElementWiseLogicalGreaterThanOrEqualOperatorDesc, lambda a, b: a >= b)
binary(dml.ElementWiseLogicalLessThanOrEqualOperatorDesc, lambda a, b: a <= b)
binary(dml.ElementWiseLogicalAndOperatorDesc, lambda a, b: _is_true(a) & _is_true(b))
binary(dml.ElementWiseLogicalOrOperatorDesc, lambda a, b: _is_true(a) | _is_true(b))
binary(dml.ElementWiseLogicalXorOperatorDesc, lambda a, b: _is_true(a) ^ _is_true(b))
unary(dml.ElementWiseLogicalNotOperatorDesc, lambda x: call("equal", x, 0))
unary(dml.ElementWiseIsNanOperatorDesc, lambda x: call("not_equal", x, x))


@form_of_class(dml.ElementWiseBitShiftLeftOperatorDesc, dml.ElementWiseBitShiftRightOperatorDesc)
def shift_form(desc: dml.ElementWiseBitShiftLeftOperatorDesc | dml.ElementWiseBitShiftRightOperatorDesc) -> Pointwise:
    """Shifts by counts of 5 bits; for elements of 64 bits a sixth is set where any of the count's bits 5 to 31 is."""
    a, b = operand(0), operand(1)
    count = b & 31
    if desc.a_tensor.item_size == 8:
        count = count | where(b & 0xFFFFFFE0, 32, 0)
    return pointwise(desc, a << count if isinstance(desc, dml.ElementWiseBitShiftLeftOperatorDesc) else a >> count)


@form_of_class(dml.ElementWiseIsInfinityOperatorDesc)
def is_infinity_form(desc: dml.ElementWiseIsInfinityOperatorDesc) -> Pointwise:
    """Equal to one infinity, or to either."""
    infinity = float("-inf" if desc.infinity_mode is dml.InfinityMode.NEGATIVE else "inf")
    x = abs(operand(0)) if desc.infinity_mode is dml.InfinityMode.EITHER else operand(0)
    return pointwise(desc, call("equal", x, infinity))


_BITWISE: dict[type[OperatorDesc], Formula] = {
    dml.ElementWiseBitAndOperatorDesc: lambda _, x: x[0] & x[1],
    dml.ElementWiseBitOrOperatorDesc: lambda _, x: x[0] | x[1],
    dml.ElementWiseBitXorOperatorDesc: lambda _, x: x[0] ^ x[1],
    dml.ElementWiseBitNotOperatorDesc: lambda _, x: ~x[0],
}
FORMULAS.update({cls.operator_type: formula for cls, formula in _BITWISE.items()})


@form_of_class(*_BITWISE)
def bitwise_form(desc: OperatorDesc) -> Pointwise:
    """Bitwise functions, of elements of any type taken as unsigned integers of the same width."""
    bits = f"uint{8 * desc.outputs[0].layout.data_type.item_size}"
    expression = _BITWISE[type(desc)](desc, operands(desc))
    return Pointwise(expression, (bits,) * len(desc.inputs), bits, of_bits=True)


@form_of_class(dml.ElementWiseBitCountOperatorDesc)
def bit_count_form(desc: dml.ElementWiseBitCountOperatorDesc) -> Pointwise:
    """Sums of neighbouring bits, of pairs and of four, side by side; a product then adds all bytes in the highest."""
    width = 8 * desc.input_tensor.item_size
    ones, x = 2**width - 1, operand(0)
    pairs = x - ((x >> 1) & ones // 3)
    fours = (pairs & ones // 5) + ((pairs >> 2) & ones // 5)
    eights = (fours + (fours >> 4)) & ones // 17
    return Pointwise((eights * (ones // 255)) >> (width - 8), (f"uint{width}",), f"uint{width}", of_bits=True)
