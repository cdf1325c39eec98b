"""Expressions of a `Pointwise` form: written once as formulas, rendered by each backend.

An expression is a tree of frozen values: operands (the element of an input), constants and calls of the functions in
`FUNCTIONS`. Python's operators build it, and the functions of this module:

>>> x, y = operand(0), operand(1)
>>> sorted(maximum(x * 2.0, y).functions())
['maximum', 'multiply']

`evaluate` renders it with an array library; the backends numba and cuda render it themselves.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from .special import erf


class Expression:
    """A formula for one output element."""

    __slots__ = ()

    def functions(self) -> frozenset[str]:
        """The names of all functions in it."""
        return frozenset()

    def __add__(self, other: ExpressionLike) -> Expression:
        return call("add", self, other)

    def __radd__(self, other: ExpressionLike) -> Expression:
        return call("add", other, self)

    def __sub__(self, other: ExpressionLike) -> Expression:
        return call("subtract", self, other)

    def __rsub__(self, other: ExpressionLike) -> Expression:
        return call("subtract", other, self)

    def __mul__(self, other: ExpressionLike) -> Expression:
        return call("multiply", self, other)

    def __rmul__(self, other: ExpressionLike) -> Expression:
        return call("multiply", other, self)

    def __truediv__(self, other: ExpressionLike) -> Expression:
        return call("divide", self, other)

    def __rtruediv__(self, other: ExpressionLike) -> Expression:
        return call("divide", other, self)

    def __neg__(self) -> Expression:
        return call("negative", self)

    def __abs__(self) -> Expression:
        return call("absolute", self)

    def __lt__(self, other: ExpressionLike) -> Expression:
        return call("less", self, other)

    def __le__(self, other: ExpressionLike) -> Expression:
        return call("less_equal", self, other)

    def __gt__(self, other: ExpressionLike) -> Expression:
        return call("less", other, self)

    def __ge__(self, other: ExpressionLike) -> Expression:
        return call("less_equal", other, self)

    def __and__(self, other: ExpressionLike) -> Expression:
        return call("bitwise_and", self, other)

    def __or__(self, other: ExpressionLike) -> Expression:
        return call("bitwise_or", self, other)

    def __xor__(self, other: ExpressionLike) -> Expression:
        return call("bitwise_xor", self, other)

    def __lshift__(self, other: ExpressionLike) -> Expression:
        return call("left_shift", self, other)

    def __rshift__(self, other: ExpressionLike) -> Expression:
        return call("right_shift", self, other)

    def __invert__(self) -> Expression:
        return call("invert", self)


ExpressionLike = Expression | float | int | bool


@dataclass(frozen=True, slots=True, eq=True)
class Operand(Expression):
    """The element of an input at the output's coordinate.

    Attributes:
        index: which input, in binding order.
    """

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Literal(Expression):
    """A number of the type that the expression is computed in. 0.0 and -0.0 are not equal as constants; NaN is to NaN.

    Attributes:
        value: the number; a Python int keeps all its digits.
    """

    value: float | int | bool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash(repr(self.value))


@dataclass(frozen=True, slots=True, eq=True)
class FunctionCall(Expression):
    """A function of expressions.

    Attributes:
        function: a name in `FUNCTIONS`.
        arguments: expressions, as many as the function takes.
    """

    function: str
    arguments: tuple[Expression, ...]

    def functions(self) -> frozenset[str]:
        return frozenset({self.function}).union(*[argument.functions() for argument in self.arguments])


class NumbaLoop(enum.Enum):
    """The loop that the numba backend has for a function of float32."""

    SHORT = "no longer than a conversion, so that there is one for rows of float16 too"
    FLOAT32 = "for rows of float32"
    NONE = "none: NumPy computes what has this function in it"


@dataclass(frozen=True, slots=True)
class Function:
    """How each backend renders a function.

    Attributes:
        numpy: the name of the array library's function, with `out=` as a ufunc has it; or a function `(xp, *arrays)`
            that returns a new array, for what array libraries lack.
        c: a C expression of `{0}`, `{1}`, `{2}`; overloaded functions of CUDA's C++ take float, double and integers.
        loop: what loop there is under the function's name in the numba backend's `kernels/expression_kernel.py`.
        boolean: whether the result is a truth value rather than a number of the computed type.
        converts: whether the result is of another type than the arguments.
        of_truth: the function that is the same for truth values as numbers, 1 and 0; empty if there is none.
    """

    numpy: str | Callable[..., Any]
    c: str
    loop: NumbaLoop
    boolean: bool = False
    converts: bool = False
    of_truth: str = ""


def _where(xp: ModuleType, condition: Any, if_true: Any, if_false: Any) -> Any:
    return xp.where(condition, if_true, if_false)


def _divide_integers(xp: ModuleType, a: Any, b: Any) -> Any:
    floor = xp.floor_divide(a, b)  # 0 where the divisor is 0
    return floor + ((floor * b != a) & ((a < 0) != (b < 0)) & (b != 0)).astype(floor.dtype)


def _power_integers(xp: ModuleType, a: Any, b: Any) -> Any:
    inverse = xp.where(a == 1, 1, xp.where(a == -1, 1 - 2 * (b & 1), 0))
    return xp.where(b < 0, inverse, xp.power(a, xp.maximum(b, 0))).astype(a.dtype)


def _saturate(xp: ModuleType, x: Any, integer: str) -> Any:
    """Toward zero, NaN as 0."""
    limits = np.iinfo(integer)
    wide = xp.clip(x.astype("float64"), float(limits.min), float(limits.max))
    return xp.where(x == x, wide, 0.0).astype(integer)


def _as_integer(xp: ModuleType, x: Any, integer: str) -> Any:
    """Modulo the range of the integers."""
    return xp.asarray(x).astype(integer)


FUNCTIONS: Mapping[str, Function] = {
    "add": Function("add", "({0} + {1})", NumbaLoop.SHORT),
    "subtract": Function("subtract", "({0} - {1})", NumbaLoop.SHORT),
    "multiply": Function("multiply", "({0} * {1})", NumbaLoop.SHORT),
    "divide": Function("divide", "({0} / {1})", NumbaLoop.SHORT),
    "divide_integers": Function(_divide_integers, "({1} == 0 ? 0 : {0} / {1})", NumbaLoop.NONE),  # toward zero
    "negative": Function("negative", "(-{0})", NumbaLoop.SHORT),
    "absolute": Function("absolute", "tp_abs({0})", NumbaLoop.SHORT),
    "maximum": Function("maximum", "tp_max({0}, {1})", NumbaLoop.SHORT),  # NaN wins
    "minimum": Function("minimum", "tp_min({0}, {1})", NumbaLoop.SHORT),
    "exp": Function("exp", "exp({0})", NumbaLoop.SHORT),
    "log": Function("log", "log({0})", NumbaLoop.SHORT),
    "sqrt": Function("sqrt", "sqrt({0})", NumbaLoop.SHORT),
    "tanh": Function("tanh", "tanh({0})", NumbaLoop.SHORT),
    "erf": Function(erf, "tp_erf({0})", NumbaLoop.SHORT),
    "floor": Function("floor", "floor({0})", NumbaLoop.FLOAT32),
    "ceil": Function("ceil", "ceil({0})", NumbaLoop.FLOAT32),
    "trunc": Function("trunc", "trunc({0})", NumbaLoop.FLOAT32),
    "rint": Function("rint", "rint({0})", NumbaLoop.FLOAT32),  # ties to even
    "less": Function("less", "({0} < {1})", NumbaLoop.SHORT, boolean=True),
    "less_equal": Function("less_equal", "({0} <= {1})", NumbaLoop.SHORT, boolean=True),
    "equal": Function("equal", "({0} == {1})", NumbaLoop.SHORT, boolean=True),
    "not_equal": Function("not_equal", "({0} != {1})", NumbaLoop.SHORT, boolean=True),
    "bitwise_and": Function("bitwise_and", "({0} & {1})", NumbaLoop.NONE, of_truth="minimum"),
    "bitwise_or": Function("bitwise_or", "({0} | {1})", NumbaLoop.NONE, of_truth="maximum"),
    "bitwise_xor": Function("bitwise_xor", "({0} ^ {1})", NumbaLoop.NONE, of_truth="not_equal"),
    "invert": Function("invert", "(~{0})", NumbaLoop.NONE),
    "expm1": Function("expm1", "expm1({0})", NumbaLoop.FLOAT32),
    "log1p": Function("log1p", "log1p({0})", NumbaLoop.FLOAT32),
    "sin": Function("sin", "sin({0})", NumbaLoop.FLOAT32),
    "cos": Function("cos", "cos({0})", NumbaLoop.FLOAT32),
    "tan": Function("tan", "tan({0})", NumbaLoop.FLOAT32),
    "arcsin": Function("arcsin", "asin({0})", NumbaLoop.FLOAT32),
    "arccos": Function("arccos", "acos({0})", NumbaLoop.FLOAT32),
    "arctan": Function("arctan", "atan({0})", NumbaLoop.FLOAT32),
    "sinh": Function("sinh", "sinh({0})", NumbaLoop.FLOAT32),
    "cosh": Function("cosh", "cosh({0})", NumbaLoop.FLOAT32),
    "arcsinh": Function("arcsinh", "asinh({0})", NumbaLoop.FLOAT32),
    "arccosh": Function("arccosh", "acosh({0})", NumbaLoop.FLOAT32),
    "arctanh": Function("arctanh", "atanh({0})", NumbaLoop.FLOAT32),
    "arctan2": Function("arctan2", "atan2({0}, {1})", NumbaLoop.FLOAT32),
    "power": Function("power", "pow({0}, {1})", NumbaLoop.FLOAT32),
    "power_integers": Function(_power_integers, "tp_power({0}, {1})", NumbaLoop.NONE),  # toward zero
    "fmod": Function("fmod", "tp_fmod({0}, {1})", NumbaLoop.FLOAT32),  # the sign of the first; integers by 0 are 0
    "saturate_int32": Function(
        partial(_saturate, integer="int32"), "tp_saturate<i32>({0})", NumbaLoop.NONE, converts=True
    ),
    "saturate_uint32": Function(
        partial(_saturate, integer="uint32"), "tp_saturate<u32>({0})", NumbaLoop.NONE, converts=True
    ),
    "as_int32": Function(
        partial(_as_integer, integer="int32"), "(i32)({0})", NumbaLoop.NONE, converts=True
    ),  # integers modulo 2^32
    "as_uint32": Function(partial(_as_integer, integer="uint32"), "(u32)({0})", NumbaLoop.NONE, converts=True),
    "as_int64": Function(partial(_as_integer, integer="int64"), "(i64)({0})", NumbaLoop.NONE, converts=True),
    "left_shift": Function("left_shift", "tp_shift_left({0}, {1})", NumbaLoop.NONE),  # 0 from the type's width on
    "right_shift": Function("right_shift", "tp_shift_right({0}, {1})", NumbaLoop.NONE),
    "where": Function(_where, "({0} ? {1} : {2})", NumbaLoop.SHORT),
}
"""Every function that a formula may use; a new one is a new row, and a kernel's loop if it says that there is one.

`a > b` is `less(b, a)`.
"""


def operand(index: int) -> Expression:
    """The element of input `index`."""
    return Operand(index)


def call(function: str, *arguments: ExpressionLike) -> Expression:
    """A function of `FUNCTIONS` on expressions and numbers.

    Raises:
        KeyError: there is no such function.
    """
    if function not in FUNCTIONS:
        raise KeyError(f"there is no function {function!r}; there are {', '.join(FUNCTIONS)}")
    return FunctionCall(function, tuple([a if isinstance(a, Expression) else Literal(a) for a in arguments]))


def where(condition: Expression, if_true: ExpressionLike, if_false: ExpressionLike) -> Expression:
    """One of two values, by a truth value or a number that is not 0."""
    return call("where", condition, if_true, if_false)


def maximum(a: ExpressionLike, b: ExpressionLike) -> Expression:
    """The larger of two values; NaN if either is NaN."""
    return call("maximum", a, b)


def minimum(a: ExpressionLike, b: ExpressionLike) -> Expression:
    """The smaller of two values; NaN if either is NaN."""
    return call("minimum", a, b)


def is_boolean(expression: Expression) -> bool:
    """Whether the expression is a truth value."""
    return isinstance(expression, FunctionCall) and FUNCTIONS[expression.function].boolean


def evaluate(
    xp: ModuleType, expression: Expression, operands: Sequence[Any], compute: np.dtype[Any], out: Any = None,
    known: dict[int, Any] | None = None,
) -> Any:  # fmt: skip
    """The expression on arrays.

    Args:
        xp: `numpy` or `cupy`.
        expression: what to compute.
        operands: an array for each input, of the types that the expression is computed in.
        compute: the type of constants.
        out: array for the result, of the result's own type; None makes one. Temporaries take a few blocks of its size.
        known: results by the identity of their expression, which is computed once; None to compute each.
    """
    if known is not None and id(expression) in known:
        return known[id(expression)]
    match expression:
        case Operand(index):
            if out is None:
                return operands[index]
            out[...] = operands[index]
            return out
        case Literal(value):
            if out is None:
                return compute.type(value)
            out[...] = compute.type(value)
            return out
        case FunctionCall(name, arguments):
            made = [evaluate(xp, argument, operands, compute, None, known) for argument in arguments]
            function = FUNCTIONS[name].numpy
            if isinstance(function, str) and out is not None:
                return getattr(xp, function)(*made, out=out)
            result = getattr(xp, function)(*made) if isinstance(function, str) else function(xp, *made)
            if out is None:
                if known is not None:
                    known[id(expression)] = result
                return result
            out[...] = result
            return out
        case _:
            raise AssertionError(f"{type(expression).__name__} is not an expression")
