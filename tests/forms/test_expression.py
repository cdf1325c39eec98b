"""Expressions: what they are as values, as arrays, and as C."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tensorpost_server.forms.expression import FUNCTIONS, call, evaluate, is_boolean, operand, where

X, Y = operand(0), operand(1)
F32 = np.dtype(np.float32)
PYTHONS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "negative": lambda a: -a,
    "absolute": abs,
    "maximum": max,
    "minimum": min,
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "tanh": math.tanh,
    "erf": math.erf,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "rint": round,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "expm1": math.expm1,
    "log1p": math.log1p,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "arcsin": lambda a: math.asin(a) if a <= 1 else math.nan,
    "arccos": lambda a: math.acos(a) if a <= 1 else math.nan,
    "arctan": math.atan,
    "arctan2": math.atan2,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "arcsinh": math.asinh,
    "arccosh": lambda a: math.acosh(a) if a >= 1 else math.nan,
    "arctanh": lambda a: math.atanh(a) if a < 1 else math.nan,
    "power": math.pow,
    "fmod": math.fmod,
    "where": lambda a, b, c: b if a else c,
}
INTEGERS: dict[str, Any] = {
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "invert": lambda a: ~a,
    "divide_integers": lambda a, b: int(a / b) if b else 0,
    "power_integers": lambda a, b: a**b if b >= 0 else int(1 / a) if a else 0,
    "left_shift": lambda a, b: a << b if 0 <= b < 32 else 0,
    "right_shift": lambda a, b: a >> b if 0 <= b < 32 else -(a < 0),
}
SATURATED = {"saturate_int32": (-(2**31), 2**31 - 1), "saturate_uint32": (0, 2**32 - 1)}
CONVERTED = {"as_int32": [-(2**31), 0, -1], "as_uint32": [2**31, 0, 2**32 - 1], "as_int64": [2**31, 2**32, -1]}


def arity(name: str) -> int:
    """How many arguments the function takes, by what its C reads."""
    return max(int(digit) for digit in "012" if f"{{{digit}}}" in FUNCTIONS[name].c) + 1


def test_every_function_is_tested():
    assert FUNCTIONS.keys() == PYTHONS.keys() | INTEGERS.keys() | SATURATED.keys() | CONVERTED.keys()


@pytest.mark.parametrize("name", list(PYTHONS))
def test_a_function_of_floats_is_pythons(name: str):
    values = np.array([0.25, 0.5, 1.5, 2.5, 7.75])
    arguments = [np.roll(values, shift) for shift in range(arity(name))]

    with np.errstate(invalid="ignore"):
        result = evaluate(np, call(name, *map(operand, range(len(arguments)))), arguments, np.dtype(np.float64))

    expected = [PYTHONS[name](*row) for row in zip(*[a.tolist() for a in arguments], strict=True)]
    np.testing.assert_allclose(result, expected, rtol=1e-14)


@pytest.mark.parametrize("name", list(SATURATED))
def test_floats_are_truncated_and_saturated(name: str):
    low, high = SATURATED[name]
    values = np.array([1.9, -1.9, 2.0**31, 2.0**32, -(2.0**31), -(2.0**32), np.inf, -np.inf, np.nan], np.float32)

    with np.errstate(invalid="ignore"):  # as `Pointwise.fill` does
        result = evaluate(np, call(name, operand(0)), [values], np.dtype(np.float32))

    numbers = [1, -1, 2**31, 2**32, -(2**31), -(2**32), 2**40, -(2**40), 0]
    assert result.tolist() == [min(max(number, low), high) for number in numbers]


@pytest.mark.parametrize("name", list(CONVERTED))
def test_integers_become_those_of_another_width_modulo_its_range(name: str):
    result = evaluate(np, call(name, operand(0)), [np.array([2**31, 2**32, -1])], np.dtype(np.float32))

    assert result.tolist() == CONVERTED[name]
    assert result.dtype.name == name.removeprefix("as_")


@pytest.mark.parametrize("name", list(INTEGERS))
def test_a_function_of_integers_is_pythons(name: str):
    values = np.array([-7, 3, 0, 6, -2], np.int32)
    arguments = [np.roll(values, shift) for shift in range(arity(name))]

    with np.errstate(divide="ignore"):  # as `Pointwise.fill` does
        result = evaluate(np, call(name, *map(operand, range(len(arguments)))), arguments, np.dtype(np.int32))

    assert result.tolist() == [INTEGERS[name](*row) for row in zip(*[a.tolist() for a in arguments], strict=True)]


def test_operators_of_python_build_the_calls():
    built = where((X < 1.0) & ~(X >= Y), -X / 2.0, abs(Y - 3.0) * X + 1.0)
    x, y = np.array([0.0, 2.0, -5.0]), np.array([1.0, 0.5, -7.0])

    result = evaluate(np, built, [x, y], np.dtype(np.float64))

    np.testing.assert_array_equal(result, np.where((x < 1) & ~(x >= y), -x / 2, abs(y - 3) * x + 1))


def test_an_expression_is_a_value():
    one, other = (call("exp", X * 2.0 + Y) for _ in range(2))

    assert one == other == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(other)
    assert X + 0.0 != X + -0.0, "plans and registers are kept by equality, and these two are different numbers"
    assert one.functions() == {"exp", "multiply", "add"}
    assert is_boolean(X < Y)
    assert not is_boolean(one)


def test_constants_have_the_computed_type():
    assert evaluate(np, X + 0.1, [np.zeros(1, np.float32)], F32).dtype == np.float32
    assert evaluate(np, X + 2**53 + 1, [np.zeros(1, np.int64)], np.dtype(np.int64)).tolist() == [2**53 + 1]


@pytest.mark.parametrize("built", [X, X + 1.0, call("erf", X), where(X < 1.0, X, 2.0), call("add", 1.0, 2.0)])
def test_a_result_goes_where_it_should(built: Any):
    x, out = np.linspace(0, 2, 5, dtype=np.float32), np.empty(5, np.float32)

    assert evaluate(np, built, [x], F32, out) is out

    np.testing.assert_array_equal(out, np.broadcast_to(evaluate(np, built, [x], F32), 5))


def test_an_unknown_function_is_refused():
    with pytest.raises(KeyError, match="there is no function 'cbrt'"):
        call("cbrt", X)


def test_what_stands_in_an_expression_several_times_is_computed_once(monkeypatch: pytest.MonkeyPatch):
    made: list[int] = []
    monkeypatch.setitem(FUNCTIONS, "exp", replace(FUNCTIONS["exp"], numpy=lambda _, x: made.append(1) or np.exp(x)))
    shared = call("exp", X)
    x = np.array([0.5, 1.5])

    once = evaluate(np, shared * shared + shared, [x], np.dtype(np.float64), None, {})

    assert len(made) == 1
    np.testing.assert_array_equal(once, evaluate(np, shared * shared + shared, [x], np.dtype(np.float64)))
    assert len(made) == 4
