"""How pointwise.cu is used: a box of a `Pointwise` form as one launch of a kernel made for its expression.

There is one kernel for each expression, its types, and the class of access of each operand: words of up to 16 bytes
where elements are neighbours, one element where an operand repeats it, single elements elsewhere. Constants are passed
as parameters, so that expressions which differ in nothing else share a kernel.

The types inside an expression are those that NumPy gives it, found by computing it on arrays without elements. A
function's result is converted to its type at once, so that small integers wrap and float16 is rounded as in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...forms import Box, Pointwise
from ...forms.base import coalesced, extents
from ...forms.expression import FUNCTIONS, Expression, FunctionCall, Literal, Operand, evaluate
from .geometry import LARGEST_COUNT, alignment, reciprocal
from .launches import MOST_LOOPS, VECTOR, ArrayLayout, Launch, structure
from .variants import Variant

THREADS = 128  # of pointwise.cu
WORDS = 2  # of a thread: with the device full of threads, enough loads are under way
SINGLES = 4  # words of a thread that are one element each
MOST_OPERANDS = 8

STORED = {
    "bool": "Bool", "uint8": "u8", "int8": "i8", "uint16": "u16", "int16": "i16", "uint32": "u32", "int32": "i32",
    "uint64": "u64", "int64": "i64", "float16": "Half", "bfloat16": "BFloat", "float32": "float", "float64": "double",
}  # fmt: skip
"""Types of arrays, by NumPy's names."""
COMPUTED = {**STORED, "bool": "bool", "float16": "float"}
"""Types in expressions; a float16 is a float that is rounded after every function."""
del COMPUTED["bfloat16"]


@dataclass(frozen=True, slots=True)
class _FormulaText:
    """An expression as C++.

    Attributes:
        text: the expression, of `x0` and so on, and `p.constant[i]`.
        constants: their values.
    """

    text: str
    constants: tuple[float | int | bool, ...]


@dataclass(frozen=True, slots=True)
class _OperandLoop:
    """One loop over coordinates: how often, and bytes between the elements of each input and of the output."""

    extent: int
    strides: tuple[int, ...]


def plan_pointwise(form: Pointwise, inputs: Sequence[ArrayLayout], box: Box, out: ArrayLayout) -> list[Launch] | None:
    """The launches that fill a box; more than one only for 2^31 elements or more.

    Args:
        form: what is computed.
        inputs: the input arrays, of the whole output's sizes.
        box: part of the output; not empty.
        out: the array that holds the box.

    Returns:
        None if there is no kernel: a type without C++ type (complex numbers), an element that is not aligned to its
        size, or more operands or loops than a kernel has room for.
    """
    if form.of_bits:
        inputs = [replace(one, dtype=np.dtype(f"u{one.dtype.itemsize}")) for one in inputs]
        out = replace(out, dtype=np.dtype(f"u{out.dtype.itemsize}"))
    if form.computed_in == out.dtype.name == "float16" and _only_moves(form):
        # A choice between elements, which as numbers would lose the bits of some NaN.
        bits = np.dtype("uint16")
        types = tuple(["uint16" if name == "float16" else name for name in form.types])
        form = replace(form, types=types, computed_in="uint16")
        inputs = [replace(one, dtype=bits) if one.dtype.name == "float16" else one for one in inputs]
        out = replace(out, dtype=bits)
    operands = [*inputs, out]
    formula = _formula(form.expression, form.types, form.computed_in)
    if formula is None or len(inputs) > MOST_OPERANDS or any(one.dtype.name not in STORED for one in operands):
        return None
    starts = [sum(low * s for (low, _), s in zip(box, one.strides, strict=True)) for one in inputs] + [0]
    sizes = extents(box)
    axes = [_OperandLoop(size, tuple([one.strides[axis] for one in operands])) for axis, size in enumerate(sizes)]
    loops = _merged(axes)
    unaligned = any(alignment([one.dtype.itemsize, one.address, *one.strides]) < one.dtype.itemsize for one in operands)
    if unaligned or len(loops) > MOST_LOOPS:
        return None
    return _plan(form, formula, operands, loops, starts)


def _only_moves(form: Pointwise) -> bool:
    """Whether the expression is a float16 operand, or one of several by operands of other types."""

    def moves(part: Expression) -> bool:
        match part:
            case Operand(index):
                return form.types[index] == "float16"
            case FunctionCall("where", (Operand(index), if_true, if_false)):
                return form.types[index] != "float16" and moves(if_true) and moves(if_false)
            case _:
                return False

    return moves(form.expression)


def _merged(axes: Sequence[_OperandLoop]) -> list[_OperandLoop]:
    """The same coordinates by as few loops as possible, in the order of the output's memory, innermost last."""
    walk = sorted([(loop.extent, *loop.strides) for loop in axes], key=lambda axis: -abs(axis[-1]))
    return [_OperandLoop(extent, tuple(strides)) for extent, *strides in coalesced(walk)]


def _plan(
    form: Pointwise,
    formula: _FormulaText,
    operands: Sequence[ArrayLayout],
    loops: list[_OperandLoop],
    starts: Sequence[int],
) -> list[Launch]:
    items = [one.dtype.itemsize for one in operands]
    inner, outer = (loops[-1], loops[:-1]) if loops else (_OperandLoop(1, tuple(items)), [])
    elements = _elements_per_word(operands, inner, outer, starts)
    words = SINGLES if elements == 1 else WORDS
    at = low = 0
    if math.prod(loop.extent for loop in loops) > LARGEST_COUNT:
        at = max(range(len(loops)), key=lambda i: loops[i].extent)
        low = loops[at].extent // 2
    elif inner.extent % elements:
        low = inner.extent - inner.extent % elements  # what is left of the only loop is no word
    if low:
        found: list[Launch] = []
        for first, extent in ((0, low), (low, loops[at].extent - low)):
            part = _merged([*loops[:at], _OperandLoop(extent, loops[at].strides), *loops[at + 1 :]])
            moved = [start + first * stride for start, stride in zip(starts, loops[at].strides, strict=True)]
            found += _plan(form, formula, operands, part, moved)
        return found
    variant = pointwise_variant(
        formula,
        form.types,
        form.computed_in,
        [one.dtype.name for one in operands],
        [_access(stride, item) for stride, item in zip(inner.strides, items, strict=True)],
        elements,
        words,
        wide=_largest_offset(loops) + VECTOR > LARGEST_COUNT,
    )
    rows = [(inner.extent // elements, [stride * elements for stride in inner.strides])]
    rows += [(loop.extent, list(loop.strides)) for loop in reversed(outer)]
    count = math.prod(extent for extent, _ in rows)
    parameters = structure(
        structure_type(len(operands) - 1, _constant_type(form.computed_in), len(formula.constants)),
        count=count,
        axes=len(rows),
        step=inner.strides,
        axis=[(extent, *reciprocal(extent), 0, strides) for extent, strides in rows],
        **({"constant": np.array(formula.constants, form.computed_in)} if formula.constants else {}),
    )
    sources = tuple(enumerate(starts[:-1]))
    return [Launch(variant, -(-count // (THREADS * words)), THREADS, parameters, sources, starts[-1])]


def _elements_per_word(
    operands: Sequence[ArrayLayout], inner: _OperandLoop, outer: Sequence[_OperandLoop], starts: Sequence[int]
) -> int:
    """Elements of a word: 16 bytes of the widest type, or fewer where an operand of neighbours is not aligned so."""
    widest = max(one.dtype.itemsize for one in operands)
    elements = VECTOR // widest
    if inner.strides[-1] != operands[-1].dtype.itemsize:
        return 1
    # A word is in one row; of a single row the rest is another launch.
    elements = alignment([elements, inner.extent]) if outer else min(elements, 1 << inner.extent.bit_length() - 1)
    for number, (one, start, stride) in enumerate(zip(operands, starts, inner.strides, strict=True)):
        item = one.dtype.itemsize
        if stride == item:
            places = [one.address + start, *(loop.strides[number] for loop in outer)]
            elements = min(elements, alignment([elements * item, *places]) // item)
    return elements


def _access(stride: int, item: int) -> str:
    return "PACKED" if stride == item else "ONE" if stride == 0 else "APART"


def _largest_offset(loops: Sequence[_OperandLoop]) -> int:
    """The largest distance in bytes between an operand's first element and any other."""
    if not loops:
        return 0
    strides = zip(*[[(loop.extent - 1) * abs(stride) for stride in loop.strides] for loop in loops], strict=True)
    return max(map(sum, strides))


def _constant_type(computed_in: str) -> str:
    return {"float16": "float32", "bool": "uint8"}.get(computed_in, computed_in)


@lru_cache(maxsize=256)
def structure_type(operands: int, constant_type: str, constants: int) -> np.dtype[Any]:
    """`Points` of pointwise.cu for `operands` inputs and `constants` constants."""
    axis = np.dtype(
        [("extent", "<u4"), ("magic", "<u4"), ("shift", "<u4"), ("unused", "<u4"), ("stride", "<i8", (operands + 1,))],
        align=True,
    )
    fields: list[Any] = [("count", "<u4"), ("axes", "<u4")]
    fields += [("step", "<i8", (operands + 1,)), ("axis", axis, (MOST_LOOPS,))]
    if constants:
        fields.append(("constant", constant_type, (constants,)))
    return np.dtype(fields, align=True)


def pointwise_variant(
    formula: _FormulaText,
    types: Sequence[str],
    computed_in: str,
    stored: Sequence[str],
    access: Sequence[str],
    elements: int,
    words: int,
    *,
    wide: bool,
) -> Variant:
    """The kernel for an expression; see pointwise.cu.

    Args:
        formula: the expression as C++.
        types: types that the inputs' elements are converted to.
        computed_in: type of constants.
        stored: NumPy names of the types of the arrays, the output last.
        access: `PACKED`, `ONE` or `APART` for each of them.
        elements: neighbouring outputs of a word.
        words: words of a thread.
        wide: offsets of 64 bits.
    """
    rows = zip(stored[:-1], types, access[:-1], strict=True)
    each = [f"M({n}, {STORED[name]}, {COMPUTED[type_]}, {how})" for n, (name, type_, how) in enumerate(rows)]
    defines = {
        "EACH(M)": " ".join(each),
        "EXPRESSION": formula.text,
        "RESULT": STORED[stored[-1]],
        "RESULT_ACCESS": access[-1],
        "OPERANDS": len(each),
        "CONSTANTS": len(formula.constants),
        "CONSTANT_TYPE": COMPUTED[computed_in].replace("bool", "Bool"),
        "ELEMENTS": elements,
        "WORDS": words,
    }
    prelude = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    return Variant("pointwise.cu", "pointwise", (("WIDE", str(int(wide))),), prelude)


@lru_cache(maxsize=1024)
def _formula(expression: Expression, types: tuple[str, ...], computed_in: str) -> _FormulaText | None:
    """The expression as C++; None if something in it has no C++ type."""
    compute = np.dtype(computed_in)
    if computed_in not in COMPUTED or any(name not in COMPUTED for name in types):
        return None
    empty = [np.empty(0, name) for name in types]
    constants: list[float | int | bool] = []
    places: dict[str, int] = {}

    def type_name(part: Expression) -> str:
        return np.asarray(evaluate(np, part, empty, compute)).dtype.name

    def written(part: Expression) -> str:
        match part:
            case Operand(index):
                return f"x{index}"
            case Literal(value):
                if repr(value) not in places:  # which tells -0.0 from 0.0
                    places[repr(value)] = len(constants)
                    constants.append(value)
                text = f"p.constant[{places[repr(value)]}]"
                return f"widen({text})" if computed_in == "bool" else text
            case FunctionCall(name, arguments):
                return _converted(_called(name, arguments, written, type_name), type_name(part), name)
            case _:
                raise AssertionError(f"{type(part).__name__} is no expression")

    try:
        return _FormulaText(written(expression), tuple(constants))
    except KeyError:  # a type that COMPUTED has not
        return None


def _called(
    name: str,
    arguments: Sequence[Expression],
    written: Callable[[Expression], str],
    type_name: Callable[[Expression], str],
) -> str:
    """A function's C++, its arguments converted to the type that NumPy computes it in."""
    chosen = arguments[1:] if name == "where" else arguments
    common = np.result_type(*[np.dtype(type_name(one)) for one in chosen])
    if not (FUNCTIONS[name].boolean or FUNCTIONS[name].converts or name == "where"):
        common = np.dtype(type_name(FunctionCall(name, tuple(arguments))))
    texts = [f"Converted<{COMPUTED[common.name]}>::of({written(one)})" for one in chosen]
    if name == "where":
        texts = [written(arguments[0]), *texts]
    if name == "invert" and common.kind == "b":
        return f"(!{texts[0]})"
    return FUNCTIONS[name].c.format(*texts)


def _converted(text: str, type_name: str, name: str) -> str:
    """A function's result as its own type: C++ computes small integers as int and float16 as float."""
    if type_name == "float16":
        return text if name == "where" else f"tp_half({text})"
    return f"Converted<{COMPUTED[type_name]}>::of({text})"
