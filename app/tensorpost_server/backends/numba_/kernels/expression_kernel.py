# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# As memory.py: numba types this file.
# ruff: noqa: ARG001  # all instructions take three operands
"""The kernel of `Pointwise`: runs the instructions of an expression on blocks that stay in the first-level cache.

A register is a block of float32. The inputs' registers come first, then the constants', then those of results. Every
instruction is a loop over one block, so the choice of the instruction costs nothing beside it, and one kernel serves
every expression. An input or output that is a row of float32 already is used where it lies. The instructions of
`SHORT` exist a second time for an expression of one instruction on rows of float16: they widen and round in registers
of the CPU.
"""

from __future__ import annotations

from numba import types

from ..instructions import BLOCK, CODES, LINE, PITCH, REGISTERS
from ..instructions import SHORT as SHORT_NAMES
from . import float32_math, float64_math
from .memory import called, float_to_half, floats, indices, inlined, longs, not_inlined, prefetch, words2
from .row_types import F16, F32, load, read_f16, read_f32, store, write_f16, write_f32

# Parameters.
E_OUTER, E_TARGET, E_SCRATCH = 0, 1, 2
E_ROWS, E_COLUMNS, E_TARGET_KIND, E_TARGET_ROW, E_TARGET_STEP = 3, 4, 5, 6, 7
E_INPUTS, E_CONSTANTS, E_INSTRUCTIONS = 8, 9, 10
E_COMPUTED_KIND = 11  # F32; F16 if one instruction computes rows of float16 where they lie
E_BLOCK, E_LISTS = 12, 13  # BLOCK, or more elements if one instruction computes rows where they lie
# From E_LISTS on: inputs, INPUT numbers each; constants, the bits of one float32 each; instructions; outer axes, each
# an extent, the target's stride and every input's.
INPUT, I_ADDRESS, I_KIND, I_ROW, I_STEP = 4, 0, 1, 2, 3
INSTRUCTION, N_CODE, N_RESULT, N_A, N_B, N_C = 5, 0, 1, 2, 3, 4

PART = 2048  # elements of a long row between two looks at what comes next; with the result, half of a first-level cache
# Scratch memory: where each register is, where each input's line begins, then the registers' own memory.
AT_LINES, AT_MEMORY = 8 * REGISTERS, 2 * 8 * REGISTERS


def _unary(function):
    def typed_loop(pointer, read, write):
        @called
        def run_block(result, a, b, c, count):
            not_inlined()
            out, x = pointer(result), pointer(a)
            for i in range(count):
                write(out, i, function(read(x, i)))

        return run_block

    return typed_loop


def _binary(function):
    def typed_loop(pointer, read, write):
        @called
        def run_block(result, a, b, c, count):
            not_inlined()
            out, x, y = pointer(result), pointer(a), pointer(b)
            for i in range(count):
                write(out, i, function(read(x, i), read(y, i)))

        return run_block

    return typed_loop


def _long_unary(function, below=0, function_below=None):
    """A loop that computes much for each element, and so has the next elements read meanwhile.

    Where all of a part's elements have magnitudes whose bits are less than `below`, `function_below` has computed them.
    It is tried in each part, but for those after one that had others.
    """

    def typed_loop(pointer, read, write):
        item = 4 if pointer is floats else 2

        @called
        def run_block(result, a, b, c, count):
            not_inlined()
            out, x, tried = pointer(result), pointer(a), below > 0
            for start in range(0, count, PART):
                stop = min(start + PART, count)
                if count > BLOCK:
                    for line in range(0, PART * item, LINE):
                        prefetch(a + (start + PART) * item + line)
                if below:
                    largest = types.int32(0)
                    if tried:
                        for i in range(start, stop):
                            value = read(x, i)
                            largest = max(largest, float32_math.magnitude_bits(value))
                            write(out, i, function_below(value))
                    else:
                        for i in range(start, stop):
                            largest = max(largest, float32_math.magnitude_bits(read(x, i)))
                    done, tried = tried, largest < below
                    if done and tried:
                        continue
                for i in range(start, stop):
                    write(out, i, function(read(x, i)))

        return run_block

    return typed_loop


def _where(pointer, read, write):
    @called
    def run_block(result, a, b, c, count):
        not_inlined()
        out, condition, x, y = pointer(result), pointer(a), pointer(b), pointer(c)
        for i in range(count):
            write(out, i, float32_math.choice(read(condition, i), read(x, i), read(y, i)))

    return run_block


def _number_of(truth):
    """A truth value is 1 or 0."""

    @inlined
    def number(x, y):
        return types.float32(1) if truth(x, y) else types.float32(0)

    return number


SHORT = {
    "add": _binary(inlined(lambda x, y: x + y)),
    "subtract": _binary(inlined(lambda x, y: x - y)),
    "multiply": _binary(inlined(lambda x, y: x * y)),
    "divide": _binary(inlined(lambda x, y: x / y)),
    "negative": _unary(inlined(lambda x: -x)),
    "absolute": _unary(float32_math.absolute),
    "maximum": _binary(float32_math.maximum),
    "minimum": _binary(float32_math.minimum),
    "exp": _long_unary(float32_math.exp, float32_math.EXP_NORMAL, float32_math.exp_normal),
    "gelu": _long_unary(float32_math.gelu),
    "log": _long_unary(float32_math.log),
    "sqrt": _unary(float32_math.sqrt),
    "tanh": _long_unary(float32_math.tanh),
    "erf": _long_unary(float32_math.erf),
    "less": _binary(_number_of(inlined(lambda x, y: x < y))),
    "less_equal": _binary(_number_of(inlined(lambda x, y: x <= y))),
    "equal": _binary(_number_of(inlined(lambda x, y: x == y))),
    "not_equal": _binary(_number_of(inlined(lambda x, y: x != y))),
    "where": _where,
}
"""Loops over rows of a type, by the functions' names in `forms.expression`: those as short as a conversion.

Not floor and its kin, which LLVM would compute in float16, element by element."""

INSTRUCTIONS = {
    **{
        name: typed_loop(floats, read_f32, write_f32)
        for name, typed_loop in {
            **SHORT,
            "floor": _unary(float32_math.floor),
            "ceil": _unary(float32_math.ceil),
            "trunc": _unary(float32_math.trunc),
            "rint": _unary(float32_math.rint),
            "expm1": _unary(float64_math.expm1),
            "log1p": _unary(float64_math.log1p),
            "arcsin": _unary(float64_math.arcsin),
            "arccos": _unary(float64_math.arccos),
            "arctan": _unary(float64_math.arctan),
            "sinh": _unary(float64_math.sinh),
            "cosh": _unary(float64_math.cosh),
            "arcsinh": _unary(float64_math.arcsinh),
            "arccosh": _unary(float64_math.arccosh),
            "arctanh": _unary(float64_math.arctanh),
            "arctan2": _binary(float64_math.arctan2),
            "power": _binary(float64_math.power),
        }.items()
    },
    "sin": float64_math.sin,
    "cos": float64_math.cos,
    "tan": float64_math.tan,
    "fmod": float64_math.fmod,
}
"""Loops over rows of float32, of all instructions."""


def _dispatch(first, functions):
    """A function that runs number `code` of the functions, of which the first has number `first`: a binary search."""
    if len(functions) == 1:
        (only,) = functions

        @inlined
        def run_only(code, result, a, b, c, count):
            only(result, a, b, c, count)

        return run_only
    middle = first + len(functions) // 2
    lower, upper = _dispatch(first, functions[: middle - first]), _dispatch(middle, functions[middle - first :])

    @inlined
    def run(code, result, a, b, c, count):
        if code < middle:
            lower(code, result, a, b, c, count)
        else:
            upper(code, result, a, b, c, count)

    return run


run_f32 = _dispatch(0, [INSTRUCTIONS[name] for name in CODES])
run_f16 = _dispatch(0, [SHORT[name](words2, read_f16, write_f16) for name in SHORT_NAMES])


@inlined
def fill(result, value, count):
    out = floats(result)
    for i in range(count):
        out[i] = value


@inlined
def fill_f16(result, value, count):
    out = words2(result)
    for i in range(count):
        out[i] = float_to_half(value)


@inlined
def size_of(kind):
    return 4 if kind == F32 else 2 if kind == F16 else 1


@inlined
def load_block(kind, source, row_step, step, rows, columns, register):
    """Rows of an input into a register, one after the other."""
    if row_step == columns * step:
        columns, rows = rows * columns, 1
    for row in range(rows):
        first, target = source + row * row_step, register + 4 * row * columns
        load(kind, first, step, 1 if step == 0 else columns, target)
        if step == 0 and columns > 1:
            fill(target + 4, floats(target)[0], columns - 1)


def expression(p):
    """An expression of inputs' elements, block after block."""
    where_is, lines = longs(p[E_SCRATCH]), longs(p[E_SCRATCH] + AT_LINES)
    memory = (p[E_SCRATCH] + AT_MEMORY + LINE - 1) & -LINE  # a vector that lies in two cache lines takes twice as long
    inputs, constants, instructions = p[E_INPUTS], p[E_CONSTANTS], p[E_INSTRUCTIONS]
    at_constants = E_LISTS + INPUT * inputs
    at_instructions = at_constants + constants
    at_axes = at_instructions + INSTRUCTION * instructions
    rows, columns, kind = p[E_ROWS], p[E_COLUMNS], p[E_TARGET_KIND]
    item, target_row, target_step = size_of(kind), p[E_TARGET_ROW], p[E_TARGET_STEP]
    computed = p[E_COMPUTED_KIND]
    computed_item, block = size_of(computed), p[E_BLOCK]
    block_rows = 1 if computed == F16 else max(1, block // columns)
    for register in range(inputs + constants):
        where_is[register] = memory + PITCH * register
    for constant in range(constants):
        register = memory + PITCH * (inputs + constant)
        indices(register)[0] = p[at_constants + constant]
        if computed == F16:
            fill_f16(register, floats(register)[0], BLOCK)
        else:
            fill(register, floats(register)[0], BLOCK)
    total = 1
    for axis in range(p[E_OUTER]):
        total *= p[at_axes + axis * (2 + inputs)]
    for number in range(total):
        target, rest = p[E_TARGET], number
        for i in range(inputs):
            lines[i] = p[E_LISTS + INPUT * i + I_ADDRESS]
        for back in range(p[E_OUTER]):
            axis = at_axes + (p[E_OUTER] - 1 - back) * (2 + inputs)
            extent = p[axis]
            at = rest % extent
            rest //= extent
            target += at * p[axis + 1]
            for i in range(inputs):
                lines[i] += at * p[axis + 2 + i]
        row = 0
        while row < rows:
            count_rows = min(block_rows, rows - row)
            column = 0
            while column < columns:  # a range of unknown step would be a check that raises an error
                width = min(block, columns - column)
                count = count_rows * width
                for i in range(inputs):
                    entry = E_LISTS + INPUT * i
                    source_kind, row_step, step = p[entry + I_KIND], p[entry + I_ROW], p[entry + I_STEP]
                    first = lines[i] + row * row_step + column * step
                    in_place = source_kind == computed and step == computed_item
                    if in_place and (count_rows == 1 or row_step == computed_item * width):
                        where_is[i] = first
                        continue
                    where_is[i] = memory + PITCH * i  # the input may have been read in place before
                    if row == 0 or row_step != 0 or width != columns:
                        load_block(source_kind, first, row_step, step, count_rows, width, where_is[i])
                out = target + row * target_row + column * target_step
                in_place = kind == computed and target_step == item
                direct = in_place and (count_rows == 1 or target_row == item * width)
                result = out
                for instruction in range(instructions):
                    entry = at_instructions + INSTRUCTION * instruction
                    result = memory + PITCH * p[entry + N_RESULT]
                    if direct and instruction == instructions - 1:
                        result = out
                    where_is[p[entry + N_RESULT]] = result
                    code, first, second = p[entry + N_CODE], where_is[p[entry + N_A]], where_is[p[entry + N_B]]
                    if computed == F16:
                        run_f16(code, result, first, second, where_is[p[entry + N_C]], count)
                    else:
                        run_f32(code, result, first, second, where_is[p[entry + N_C]], count)
                if not direct:
                    if count_rows == 1 or target_row == item * width:
                        store(kind, out, target_step, count, result)
                    else:
                        for one in range(count_rows):
                            store(kind, out + one * target_row, target_step, width, result + 4 * one * width)
                column += width
            row += count_rows
