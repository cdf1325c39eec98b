"""Every element-wise operator and activation again, on Python's numbers: `math` in float64, exact integers.

Written from the pages' formulas and nothing of the packages under test. A formula takes an element of each input and
the attributes; FLOAT attributes are float32 numbers, and a ScaleBias was applied before. Its result is rounded to the
output's type once; integers wrap, those of 8 and 16 bits of some operators are limited as DirectML's are
(`_integer`), and floating-point results of integer operators are truncated and saturated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.support.operator_cases import saturated, wrapped
from tests.support.vectors import Case, written

from tensorpost.descriptors import FeatureLevel, OperatorDesc, operator_class

__all__ = ["FORMULAS", "Formula", "answers", "numbers", "packed_case", "types_of"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Formula:
    """How an operator's answers are known.

    Attributes:
        function: of an element of each input, and the attributes by Python's names.
        ulp: units in the last place that FLOAT32 results may be off by; FLOAT16 ones by one if this is not 0.
        absolute: how much any result may be off by.
        attributes: the attributes to try.
        output: DataType of an output of a type of its own.
    """

    function: Callable[..., Any]
    ulp: float = 0
    absolute: float = 5e-324  # the sign of a zero, and nothing else
    attributes: tuple[Mapping[str, Any], ...] = ({},)
    output: str | None = None


def real(function: Callable[..., float]) -> Callable[..., float]:
    """A function of `math` as IEEE 754 has it: NaN outside its domain, infinite beyond the range."""

    def total(*values: float, **attributes: float) -> float:
        try:
            return function(*values, **attributes)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return total


def _log(x: float) -> float:
    return -math.inf if x == 0 else math.log(x)


def _odd(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: math.copysign(real(function)(abs(x)), x)


def _atanh(x: float) -> float:
    return math.copysign(math.inf, x) if abs(x) == 1 else real(math.atanh)(x)


def _tan(x: float) -> float:
    return math.tan(x)


def _divided(a: Any, b: Any) -> Any:
    if isinstance(a, int):
        negative = (a < 0) != (b < 0)
        return (1 if a < 0 else -1) if b == 0 else (abs(a) // abs(b)) * (-1 if negative else 1)
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, int):
        return a if b == 0 else a - b * _divided(a, b)
    return real(math.fmod)(a, b)


def _modulus_floor(a: Any, b: Any) -> Any:
    if isinstance(a, int):
        return _divided(a, 0) if b == 0 else a % b
    rest = _remainder(a, b)
    return rest + b if rest and (rest < 0) != (b < 0) else math.copysign(rest, b)


def _pow(x: Any, e: Any) -> Any:
    """As on the page: what is below 0 has whole powers only, -infinity too."""
    if isinstance(x, int) and isinstance(e, int):
        if e >= 0:
            return pow(x, e, 2**64)  # the low bits are all that is kept
        return 1 if x == 1 else (1 if e % 2 == 0 else -1) if x == -1 else 0
    x, e = float(x), float(e)
    if x < 0 and math.isfinite(e) and e != math.trunc(e):
        return math.nan
    if x == 0 and e < 0:
        odd = e % 2 == 1
        return math.copysign(math.inf, x) if odd else math.inf
    try:
        return math.pow(x, e)
    except ValueError:
        return math.nan
    except OverflowError:
        return -math.inf if x < 0 and e % 2 == 1 else math.inf


def _larger(a: Any, b: Any) -> Any:
    return a if a != a else b if b != b else max(a, b)


def _smaller(a: Any, b: Any) -> Any:
    return a if a != a else b if b != b else min(a, b)


def _single(value: float) -> float:
    """What float32 makes of it, as an intermediate result."""
    with np.errstate(all="ignore"):
        return float(np.float32(value))


def _mean(a: Any, b: Any) -> Any:
    return _single(a + b) / 2


def _rounded(x: float, rounding_mode: str) -> float:
    if not math.isfinite(x):
        return x
    whole = {
        "HALVES_TO_NEAREST_EVEN": round, "TOWARD_ZERO": math.trunc,
        "TOWARD_INFINITY": lambda v: int(math.copysign(math.floor(abs(v) + 0.5), v)),
    }[rounding_mode](x)  # fmt: skip
    return math.copysign(whole, x)


def _in_type(bound: float, like: Any) -> Any:
    return int(bound) if isinstance(like, int) else bound


def _clip(x: Any, min: float, max: float) -> Any:  # noqa: A002 # the fields' names
    return _larger(_smaller(x, _in_type(max, x)), _in_type(min, x))


def _clip_grad(x: Any, gradient: Any, min: float, max: float) -> Any:  # noqa: A002
    return 0 if x <= _in_type(min, x) or x >= _in_type(max, x) else gradient


def _infinite(x: float, infinity_mode: str) -> bool:
    return {"EITHER": math.isinf(x), "POSITIVE": x == math.inf, "NEGATIVE": x == -math.inf}[infinity_mode]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0 if x == x else x


def _softplus(x: float) -> float:
    return x if not x < 700 else math.log1p(math.exp(x))


def _expm1(x: float) -> float:
    return real(math.expm1)(x)


def _gelu(x: float) -> float:
    return -0.0 if x == -math.inf else 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def _hard_sigmoid(x: float, alpha: float, beta: float) -> float:
    return _larger(0.0, _smaller(alpha * x + beta, 1.0))


def _gate(x: float, gate: float) -> float:
    return -0.0 if gate == 0 and math.isinf(x) else x * gate


def _shrink(x: Any, bias: float, threshold: float) -> Any:
    if isinstance(x, int):
        x = _single(x)
        shrunk = _single(x - bias if x > threshold else x + bias if x < -threshold else 0)
        return float(round(shrunk))
    return x - bias if x > threshold else x + bias if x < -threshold else 0.0


def _sign(x: Any) -> int:
    return (x > 0) - (x < 0)


def _celu(x: float, alpha: float) -> float:
    return _larger(0.0, x) + _smaller(0.0, alpha * _expm1(x / alpha))


SCALED = ({}, {"scale_bias": {"scale": 2.0, "bias": -1.0}}, {"scale_bias": {"scale": -0.5, "bias": 0.25}})
MODES = tuple({"rounding_mode": mode} for mode in ("HALVES_TO_NEAREST_EVEN", "TOWARD_ZERO", "TOWARD_INFINITY"))
BOUNDS = ({"min": -2.5, "max": 3.75}, {"min": 3.0, "max": 1.0}, {"min": -1e30, "max": 1e30})
ALPHAS = ({"alpha": 1.0}, {"alpha": 0.25}, {"alpha": -2.0})


def unary(function: Callable[[float], float], ulp: float = 0) -> Formula:
    return Formula(function, ulp, attributes=SCALED)


FORMULAS: dict[str, Formula] = {
    "ELEMENT_WISE_IDENTITY": unary(lambda x: x),
    "ELEMENT_WISE_ABS": unary(abs),
    "ELEMENT_WISE_ACOS": unary(real(math.acos), 2),
    "ELEMENT_WISE_ASIN": unary(real(math.asin), 2),
    "ELEMENT_WISE_ATAN": unary(math.atan, 2),
    "ELEMENT_WISE_CEIL": unary(lambda x: float(math.ceil(x)) if math.isfinite(x) else x),
    "ELEMENT_WISE_FLOOR": unary(lambda x: float(math.floor(x)) if math.isfinite(x) else x),
    "ELEMENT_WISE_COS": unary(real(math.cos), 2),
    "ELEMENT_WISE_SIN": unary(real(math.sin), 2),
    "ELEMENT_WISE_TAN": unary(real(_tan), 4),
    "ELEMENT_WISE_EXP": unary(real(math.exp), 2),
    "ELEMENT_WISE_LOG": unary(real(_log), 2),
    "ELEMENT_WISE_SQRT": unary(real(math.sqrt)),
    "ELEMENT_WISE_RECIP": unary(lambda x: _divided(1.0, x)),
    "ELEMENT_WISE_ERF": unary(math.erf, 3),
    "ELEMENT_WISE_SINH": unary(_odd(math.sinh), 3),
    "ELEMENT_WISE_COSH": unary(real(math.cosh), 2),
    "ELEMENT_WISE_TANH": unary(math.tanh, 3),
    "ELEMENT_WISE_ASINH": unary(_odd(math.asinh), 4),
    "ELEMENT_WISE_ACOSH": unary(real(math.acosh), 4),
    "ELEMENT_WISE_ATANH": unary(_atanh, 4),
    "ELEMENT_WISE_CONSTANT_POW": Formula(
        lambda x, exponent: _pow(float(x), exponent), 4,
        attributes=tuple({"exponent": e} for e in (0.0, 1.0, 2.0, 3.0, -1.0, 0.5, -0.5, -3.0, 2.5)),
    ),
    "ELEMENT_WISE_THRESHOLD": Formula(
        lambda x, min: _larger(x, _in_type(min, x)), attributes=({"min": -2.75}, {"min": 3.5}, {"min": 0.0})  # noqa: A006
    ),
    "ELEMENT_WISE_CLIP": Formula(_clip, attributes=BOUNDS[:2]),
    "ELEMENT_WISE_CLIP1": Formula(_clip, attributes=({"min": 2, "max": 5}, {"min": 7, "max": 1})),
    "ELEMENT_WISE_CLIP_GRAD": Formula(_clip_grad, attributes=BOUNDS[:2]),
    "ELEMENT_WISE_CLIP_GRAD1": Formula(_clip_grad, attributes=({"min": 2, "max": 5}, {"min": 7, "max": 1})),
    "ELEMENT_WISE_ROUND": Formula(_rounded, attributes=MODES),
    "ELEMENT_WISE_SIGN": Formula(_sign),
    "ELEMENT_WISE_NEGATE": Formula(lambda x: -x),
    "ELEMENT_WISE_ADD": Formula(lambda a, b: a + b),
    "ELEMENT_WISE_ADD1": Formula(
        lambda a, b, fused_activation: max(0.0, a + b) if fused_activation and a + b == a + b else a + b,
        attributes=({"fused_activation": None}, {"fused_activation": {"type": "ACTIVATION_RELU", "desc": {}}}),
    ),
    "ELEMENT_WISE_SUBTRACT": Formula(lambda a, b: a - b),
    "ELEMENT_WISE_MULTIPLY": Formula(lambda a, b: a * b),
    "ELEMENT_WISE_DIVIDE": Formula(_divided),
    "ELEMENT_WISE_MAX": Formula(_larger),
    "ELEMENT_WISE_MIN": Formula(_smaller),
    "ELEMENT_WISE_MEAN": Formula(_mean),
    "ELEMENT_WISE_DIFFERENCE_SQUARE": Formula(
        lambda a, b: (a - b) ** 2 if isinstance(a, int) else _single(_single(a - b) * _single(a - b))
    ),
    "ELEMENT_WISE_MODULUS_TRUNCATE": Formula(_remainder),
    "ELEMENT_WISE_MODULUS_FLOOR": Formula(_modulus_floor),
    "ELEMENT_WISE_ATAN_YX": Formula(math.atan2, 4),
    "ELEMENT_WISE_POW": Formula(_pow, 4),
    "ELEMENT_WISE_IF": Formula(lambda condition, a, b: a if condition else b),
    "ELEMENT_WISE_LOGICAL_EQUALS": Formula(lambda a, b: a == b, output="UINT8"),
    "ELEMENT_WISE_LOGICAL_GREATER_THAN": Formula(lambda a, b: a > b, output="UINT32"),
    "ELEMENT_WISE_LOGICAL_LESS_THAN": Formula(lambda a, b: a < b, output="UINT8"),
    "ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL": Formula(lambda a, b: a >= b, output="UINT8"),
    "ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL": Formula(lambda a, b: a <= b, output="UINT32"),
    "ELEMENT_WISE_LOGICAL_AND": Formula(lambda a, b: bool(a and b)),
    "ELEMENT_WISE_LOGICAL_OR": Formula(lambda a, b: bool(a or b)),
    "ELEMENT_WISE_LOGICAL_XOR": Formula(lambda a, b: bool(a) != bool(b)),
    "ELEMENT_WISE_LOGICAL_NOT": Formula(lambda x: not x),
    "ELEMENT_WISE_IS_NAN": Formula(math.isnan, output="UINT32"),
    "ELEMENT_WISE_IS_INFINITY": Formula(
        _infinite, attributes=tuple({"infinity_mode": m} for m in ("EITHER", "POSITIVE", "NEGATIVE")), output="UINT8"
    ),
    "ELEMENT_WISE_BIT_SHIFT_LEFT": Formula(lambda a, b: a << b if b < 64 else 0),
    "ELEMENT_WISE_BIT_SHIFT_RIGHT": Formula(lambda a, b: a >> b if b < 64 else 0),
    "ACTIVATION_ELU": Formula(lambda x, alpha: x if x >= 0 else alpha * _expm1(x), 4, attributes=ALPHAS),
    "ACTIVATION_CELU": Formula(_celu, 4, attributes=ALPHAS),
    "ACTIVATION_SCALED_ELU": Formula(
        lambda x, alpha, gamma: gamma * x if x > 0 else gamma * alpha * _expm1(x), 5,
        attributes=({"alpha": 1.6732, "gamma": 1.0507}, {"alpha": 2.0, "gamma": -0.5}),
    ),
    "ACTIVATION_HARD_SIGMOID": Formula(
        _hard_sigmoid, attributes=({"alpha": 0.25, "beta": 0.5}, {"alpha": -2.0, "beta": 0.0})
    ),
    "ACTIVATION_IDENTITY": Formula(lambda x: x),
    "ACTIVATION_LEAKY_RELU": Formula(
        lambda x, alpha: x if x >= 0 else alpha * x,
        attributes=({"alpha": 0.01}, {"alpha": -3.0}),
    ),
    "ACTIVATION_LINEAR": Formula(lambda x, alpha, beta: alpha * x + beta, attributes=({"alpha": -0.5, "beta": 2.0},)),
    "ACTIVATION_PARAMETRIC_SOFTPLUS": Formula(
        lambda x, alpha, beta: alpha * _softplus(_single(beta * x)), 5,
        attributes=({"alpha": 0.5, "beta": 2.0}, {"alpha": 3.0, "beta": -1.0}),
    ),
    "ACTIVATION_RELU": Formula(lambda x: _larger(0, x)),
    "ACTIVATION_GELU": Formula(_gelu, 4, 5e-7),
    "ACTIVATION_SCALED_TANH": Formula(
        lambda x, alpha, beta: alpha * math.tanh(beta * x), 4,
        attributes=({"alpha": 1.0, "beta": 0.5}, {"alpha": -1.7, "beta": 2.0}),
    ),
    "ACTIVATION_SIGMOID": Formula(_sigmoid, 4),
    "ACTIVATION_SOFTPLUS": Formula(
        lambda x, steepness: _softplus(_single(steepness * x)) / steepness, 5,
        attributes=tuple({"steepness": s} for s in (1.0, 2.0, 0.5, -1.0)),
    ),
    "ACTIVATION_SOFTSIGN": Formula(lambda x: math.copysign(1, x) if math.isinf(x) else x / (1 + abs(x)), 2),
    "ACTIVATION_TANH": Formula(math.tanh, 3),
    "ACTIVATION_THRESHOLDED_RELU": Formula(
        lambda x, alpha: x if x > alpha else 0.0, attributes=({"alpha": 1.0}, {"alpha": -1.0})
    ),
    "ACTIVATION_SHRINK": Formula(
        _shrink,
        attributes=tuple({"bias": bias, "threshold": at} for bias, at in ((0.0, 0.5), (1.5, 2.5), (1.0, -1.0))),
    ),
    "ACTIVATION_SWISH": Formula(
        lambda x, sigmoid_input_scale: _gate(x, _sigmoid(sigmoid_input_scale * x)), 5, 1e-41,
        attributes=({"sigmoid_input_scale": 1.0}, {"sigmoid_input_scale": -2.0}),
    ),
    "ACTIVATION_HARD_SWISH": Formula(
        lambda x, alpha, beta: _gate(x, _hard_sigmoid(x, alpha, beta)), 2,
        attributes=({"alpha": 0.25, "beta": 0.5}, {"alpha": -1.0, "beta": 0.0}),
    ),
    "ACTIVATION_PARAMETERIZED_RELU": Formula(lambda x, slope: x if x >= 0 else slope * x),
    "ACTIVATION_RELU_GRAD": Formula(lambda x, gradient: gradient if x > 0 else 0),
}  # fmt: skip
"""By operator. The BIT_* operators of any type are taken by their bits, in test_elementwise.py, and CAST has a strategy
of its own in operator_cases.py."""

_FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 0.25, -0.25, 1.5, -1.5, 2.5, -2.5, 2.0, 3.0, -3.0, 1e-3, -1e-3, 1.0009765625,
    -7.3, 20.0, -20.0, 88.5, -88.5, 1000.0, -100.5, 60000.0, 65504.0, -65504.0, math.inf, -math.inf, math.nan,
)  # fmt: skip
_OF_FLOAT32 = (1e-40, -1e-40, 1e-20, 16777215.0, -1e10, 1e30, 3.4028234663852886e38, -3.4028234663852886e38, 0.99999994)
_OF_FLOAT16 = (6e-8, -6e-8, 2048.0, 0.99951171875)


def numbers(data_type: str) -> Array:
    """Numbers of the type at which functions bend."""
    dtype = np.dtype(data_type.lower())
    if dtype.kind == "f":
        return np.array(_FLOATS + (_OF_FLOAT16 if dtype.itemsize == 2 else _OF_FLOAT32), dtype)
    limits, wide = np.iinfo(dtype), 2**53 + 1
    values = [0, 1, 2, 3, 4, 5, 7, 8, 31, 32, 100, limits.max, limits.max - 1, limits.max // 2 + 1]
    values += [-1, -2, -3, -7, -100, int(limits.min), int(limits.min) + 1] if dtype.kind == "i" else []
    values += [wide, limits.max - 1023] if dtype.itemsize == 8 else []
    return np.array(sorted({int(value) for value in values}), dtype)


def types_of(operator: str) -> list[str]:
    """The DataTypes of the operator's first tensor at the newest level."""
    facts = operator_class(operator).facts
    field = "ATensor" if operator == "ELEMENT_WISE_IF" else facts.fields[0].name
    row = facts.row_at(FeatureLevel.L6_4, field)
    assert row is not None
    return [data_type.name for data_type in row.data_types]


def answers(desc: OperatorDesc, *arrays: Array) -> Array:
    """The operator's output, element by element, as an array of its type."""
    formula = FORMULAS[desc.operator_type]
    dtype = desc.outputs[0].layout.data_type.dtype
    fields = {name: getattr(desc, name) for name in desc.fields_of_kind("attribute")}
    scale_bias = fields.pop("scale_bias", None)
    fields.pop("min_max_data_type", None)
    fields = {
        name: getattr(value, "name", value) if isinstance(value, int) else value for name, value in fields.items()
    }
    if np.dtype("float16") in (arrays[0].dtype, dtype):
        fields = {name: _half(value) if name in ("min", "max") else value for name, value in fields.items()}
    first = arrays[0]
    if scale_bias is not None and first.dtype.kind == "f":
        with np.errstate(all="ignore"):
            wide = np.dtype("float64" if first.itemsize == 8 else "float32").type
            first = first.astype(wide) * wide(scale_bias.scale) + wide(scale_bias.bias)
    elif scale_bias is not None:
        first = first.astype(np.float32) * np.float32(scale_bias.scale) + np.float32(scale_bias.bias)
    rest = list(arrays[1:])
    if scale_bias is not None and desc.operator_type.endswith("_POW") and rest:
        first, *rest = [_scaled_operand(array, scale_bias) for array in arrays]
    rows = zip(*[array.ravel().tolist() for array in (first, *rest)], strict=True)
    if arrays[0].dtype.kind != "f" and first.dtype.kind != "f":
        made = [_integer(desc.operator_type.removeprefix("ELEMENT_WISE_"), dtype, row, fields) for row in rows]
    else:
        made = [formula.function(*row, **fields) for row in rows]
    return _stored(made, dtype).reshape(arrays[0].shape)


def _scaled_operand(array: Array, scale_bias: Any) -> Array:
    """An operand of POW as DirectML computes with it: float32, integers truncated and saturated."""
    with np.errstate(all="ignore"):
        made = array.astype(np.float32) * np.float32(scale_bias.scale) + np.float32(scale_bias.bias)
    if array.dtype.kind == "f":
        return made
    return np.array([saturated(value, array.dtype) for value in made.ravel().tolist()], array.dtype)


def _integer(name: str, dtype: np.dtype[Any], row: Sequence[Any], fields: Mapping[str, Any]) -> Any:
    """An element of integers, which may have a FLOAT exponent, as DirectML computes it."""
    function = (FORMULAS.get(f"ELEMENT_WISE_{name}") or FORMULAS[name]).function
    if name == "MEAN":
        return _divided(int(wrapped(sum(row), dtype)), 2)
    if name == "MODULUS_TRUNCATE" and dtype.kind == "u" and row[1] == 0:
        return -1
    if name.startswith("BIT_SHIFT"):
        low = row[1] % 2**32
        return function(row[0], low % 32 + 32 * (dtype.itemsize == 8 and low >= 32))
    made = function(*row, **fields)
    if name in ("ABS", "NEGATE", "POW") and dtype.itemsize < 4 and isinstance(made, int):
        limits = np.iinfo(dtype)
        return min(max(int(wrapped(made, np.dtype(f"{dtype.kind}4"))), int(limits.min)), int(limits.max))
    return made


def _half(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float16(value))


def _stored(made: Sequence[Any], dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return np.array(made, np.float64).astype(dtype)
    if any(isinstance(value, float) for value in made):
        return np.array([saturated(value, dtype) for value in made], dtype)
    return wrapped(made, dtype)


def packed_case(operator: str, data_type: str, attributes: Mapping[str, Any], rank: int) -> Case:
    """A call with every combination of `numbers`, of any rank, and its answer."""
    cls = operator_class(operator)
    names = list(cls.fields_of_kind("input"))
    types = dict.fromkeys(names, data_type) | ({"condition_tensor": "UINT8"} if "condition_tensor" in names else {})
    return case_of(operator, types, attributes, rank)


def case_of(operator: str, types: Mapping[str, str], attributes: Mapping[str, Any], rank: int) -> Case:
    """A call with every combination of `numbers` of these types, and its answer."""
    formula, names = FORMULAS[operator], list(types)
    chosen = [numbers(types[name]) for name in names]
    if len(names) == 3:
        chosen = [values[:: max(1, len(values) // 9)] for values in chosen]
    grids = [grid.reshape(-1) for grid in np.meshgrid(*chosen, indexing="ij")]
    sizes = _sizes(grids[0].size, rank)
    fields: dict[str, Any] = {name: {"DataType": types[name], "Sizes": sizes} for name in names}
    if formula.output is not None:
        fields["output_tensor"] = {"DataType": formula.output, "Sizes": sizes}
    desc = operator_class(operator).completed({**fields, **{n: v for n, v in attributes.items() if v is not None}})
    arrays = [grid.reshape(sizes) for grid in grids]
    expected = answers(desc, *arrays)
    ulp = 0.0 if not formula.ulp else 1.0 if expected.dtype.itemsize == 2 else formula.ulp
    return Case(
        f"{operator} {list(types.values())} {dict(attributes)}", desc, tuple(array.tobytes() for array in arrays),
        written(desc.outputs[0], expected), ulp=ulp, absolute=formula.absolute, any_nan=True,
    )  # fmt: skip


def _sizes(count: int, rank: int) -> list[int]:
    """As many sizes, of which the product is the count: its small factors first."""
    sizes: list[int] = []
    for factor in itertools.islice(_factors(count), rank - 1):
        sizes.append(factor)
        count //= factor
    return [1] * (rank - 1 - len(sizes)) + [*sizes, count]


def _factors(count: int) -> Iterator[int]:
    factor = 2
    while factor * factor <= count:
        if count % factor == 0:
            yield factor
            count //= factor
        else:
            factor += 1
