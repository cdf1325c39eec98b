"""Launch plans of `Pointwise`: the expression as instructions for the kernel `expression`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ...forms import Box
from ...forms.base import coalesced
from ...forms.expression import FUNCTIONS, Expression, FunctionCall, Literal, Operand, is_boolean
from .instructions import BLOCK, CODES, FUSED, LINE, PITCH, REGISTERS, SHORT
from .launch_plan import KINDS, PART_BYTES, SCRATCH, Kernels, LaunchPlan, StridedBuffer

LONG_ROW = 256  # elements from which on a row of float16 is computed by itself, where it lies
SCRATCH_OF_ADDRESSES = 2 * 8 * REGISTERS + LINE  # and what aligns the registers


class NoInstruction(Exception):
    """The kernel cannot compute the expression; the message says why."""


@dataclass(slots=True)
class Instructions:
    """An expression in the order it is computed.

    Attributes:
        inputs: how many registers hold inputs' elements.
        constants: bits of the float32 in the registers after them.
        code: function, result and three operands of each instruction; operands that it does not have are 0.
        registers: how many there are.
    """

    inputs: int
    constants: list[int] = field(default_factory=list[int])
    code: list[tuple[int, int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int, int]])
    registers: int = 0

    @classmethod
    def compiled(cls, expression: Expression, inputs: int) -> Instructions:
        """Instructions for an expression of this many inputs; equal parts are computed once.

        Raises:
            NoInstruction: there is no instruction for a function, or there are too few registers.
        """
        found = cls(inputs)
        order: list[FunctionCall] = []
        uses: dict[Expression, int] = {}
        constants: dict[Expression, int] = {}

        def visit(part: Expression) -> None:
            uses[part] = uses.get(part, 0) + 1
            if uses[part] > 1:
                return
            match part:
                case Literal(value):
                    constants[part] = inputs + len(constants)
                    found.constants.append(int(np.float32(value).view(np.int32)))
                case FunctionCall(_, arguments):
                    for argument in arguments:
                        visit(argument)
                    order.append(part)
                case _:
                    pass

        root = _plain(expression)
        if not isinstance(root, FunctionCall):
            root = FunctionCall("maximum", (root, root))  # the element itself, through the output's type
        visit(root)
        free: list[int] = []
        registers: dict[Expression, int] = dict(constants)
        found.registers = inputs + len(constants)
        for part in order:
            operands = [_register(argument, registers) for argument in part.arguments]
            if free:
                result = free.pop()
            else:
                result = found.registers
                found.registers += 1
            registers[part] = result
            a, b, c = (*operands, 0, 0)[:3]
            found.code.append((CODES[part.function], result, a, b, c))
            for argument in part.arguments:  # only now, so that no instruction writes what it reads
                uses[argument] -= 1
                if isinstance(argument, FunctionCall) and uses[argument] == 0:
                    free.append(registers[argument])
        if found.registers > REGISTERS:
            raise NoInstruction(f"the expression needs {found.registers} registers")
        return found

    @property
    def constants_are_halves(self) -> bool:
        """Whether float16 holds every constant."""
        values = np.array(self.constants, np.int32).view(np.float32)
        with np.errstate(over="ignore"):
            return np.array_equal(values.astype(np.float16), values, equal_nan=True)


def _register(part: Expression, registers: dict[Expression, int]) -> int:
    return part.index if isinstance(part, Operand) else registers[part]


def is_truth(expression: Expression) -> bool:
    """Whether the expression is a truth value, or made of such by bitwise functions."""
    if not isinstance(expression, FunctionCall):
        return False
    bitwise = FUNCTIONS[expression.function].of_truth or expression.function == "invert"
    return is_boolean(expression) or (bool(bitwise) and all(map(is_truth, expression.arguments)))


def _plain(expression: Expression) -> Expression:
    """The expression in the functions that have instructions."""
    if not isinstance(expression, FunctionCall):
        return expression
    for name, formula in FUSED.items():
        found: list[Expression] = []
        if _is_of(formula, expression, found):
            return FunctionCall(name, (_plain(found[0]),))
    name, arguments = expression.function, tuple([_plain(argument) for argument in expression.arguments])
    if all(map(is_truth, expression.arguments)):
        if name == "invert":
            return FunctionCall("subtract", (Literal(1), *arguments))
        name = FUNCTIONS[name].of_truth or name
    if name not in CODES:
        raise NoInstruction(f"it has no loop for {name}")
    return FunctionCall(name, arguments)


def _is_of(formula: Expression, expression: Expression, found: list[Expression]) -> bool:
    """Whether the expression is the formula of some operand, which is then all that is found."""
    match formula, expression:
        case Operand(), _:
            found.append(expression)
            return found[0] == expression
        case FunctionCall(name, parts), FunctionCall(other, arguments) if name == other:
            return all(_is_of(part, argument, found) for part, argument in zip(parts, arguments, strict=True))
        case _:
            return formula == expression


def numeric_operands(expression: Expression) -> frozenset[int]:
    """The inputs whose elements are numbers in the expression, not only conditions."""
    if isinstance(expression, Operand):
        return frozenset({expression.index})
    if not isinstance(expression, FunctionCall):
        return frozenset()
    parts = expression.arguments
    if expression.function == "where" and isinstance(parts[0], Operand):
        parts = parts[1:]
    return frozenset[int]().union(*map(numeric_operands, parts))


@dataclass(frozen=True, slots=True)
class ExpressionPlanner:
    """Plans of `Pointwise` in float32.

    Attributes:
        kernels: the compiled ones.
        instructions: what is computed.
    """

    group: ClassVar[str] = "expressions"
    part_bytes = PART_BYTES
    kernels: Kernels
    instructions: Instructions

    def plan(self, sources: Sequence[StridedBuffer], target: StridedBuffer, box: Box, output: int) -> LaunchPlan:
        buffers = (target, *sources)
        axes = [(stop - start, *[b.strides[dim] for b in buffers]) for dim, (start, stop) in enumerate(box)]
        walk = coalesced(sorted(axes, key=lambda axis: -axis[1]))
        columns = walk.pop() if walk else (1, *[buffer.item for buffer in buffers])
        rows = walk.pop() if walk else (1, *[0] * len(buffers))
        made = self.instructions
        begins = [sum([start * step for (start, _), step in zip(box, b.strides, strict=True)]) for b in sources]
        parameters = [
            len(walk), target.offset, 0, rows[0], columns[0], target.kind, rows[1], columns[1],
            len(sources), len(made.constants), len(made.code),
            *self._in_place(buffers, columns),
        ]  # fmt: skip
        blocks = [(1, target.block), (2, SCRATCH)]
        for number, (source, begin) in enumerate(zip(sources, begins, strict=True)):
            blocks.append((len(parameters), source.block))
            parameters += (source.offset + begin, source.kind, rows[2 + number], columns[2 + number])
        parameters += made.constants
        for instruction in made.code:
            parameters += instruction
        for axis in walk:
            parameters += axis
        plan = LaunchPlan(scratch=SCRATCH_OF_ADDRESSES + PITCH * made.registers)
        plan.launch(self.kernels["expression"], parameters, blocks)
        return plan

    def _in_place(self, buffers: Sequence[StridedBuffer], columns: Sequence[int]) -> tuple[int, int]:
        """Type and elements of a block: whole rows where one instruction reads and writes them where they lie.

        For all else, blocks become float32 first.
        """
        made, kind = self.instructions, buffers[0].kind
        rows = all(b.kind == kind and step == b.item for b, step in zip(buffers, columns[1:], strict=True))
        block = BLOCK if made.constants else max(BLOCK, columns[0])
        if len(made.code) == 1 and rows and kind == KINDS["<f4"]:
            return kind, block
        halves = kind == KINDS["<f2"] and columns[0] >= LONG_ROW and made.constants_are_halves
        if len(made.code) == 1 and rows and halves and made.code[0][0] < len(SHORT):
            return kind, block
        return KINDS["<f4"], BLOCK
