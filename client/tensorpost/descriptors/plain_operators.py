"""Operators that add nothing to their base but a type and a meaning: each is a row, whose class is built when named.

`plain_operators.pyi`, which `python -m tests.support.families` writes, has them as classes for type checkers.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from .catalogue import operator_of_class, pascal_case

if TYPE_CHECKING:
    from .operator_desc import OperatorDesc

ROWS: Mapping[str, Mapping[str, str]] = {
    "activation.Activation": {
        "ACTIVATION_IDENTITY": "each element itself.",
        "ACTIVATION_RELU": "`max(0, x)`; NaN stays NaN.",
        "ACTIVATION_SIGMOID": "`1 / (1 + e^-x)`.",
        "ACTIVATION_SOFTSIGN": "`x / (1 + |x|)`; 1 and -1 of the infinities, as its limits.",
        "ACTIVATION_TANH": "the hyperbolic tangent.",
        "ACTIVATION_GELU": "`0.5 * x * (1 + erf(x / sqrt(2)))`; -infinity becomes -0, as its limit.",
    },
    "elementwise_base.ElementWiseGradient": {
        "ACTIVATION_RELU_GRAD": "the gradient where the input is above 0, else 0.",
    },
    "elementwise_base.Unary": {
        "ELEMENT_WISE_IDENTITY": "each element itself; changes the strides of a tensor.",
        "ELEMENT_WISE_ABS": "the absolute value of each element.",
        "ELEMENT_WISE_ACOS": "the angle of a cosine, 0 to pi; NaN beyond 1.",
        "ELEMENT_WISE_ASIN": "the angle of a sine, -pi/2 to pi/2; NaN beyond 1.",
        "ELEMENT_WISE_ATAN": "the angle of a tangent, -pi/2 to pi/2.",
        "ELEMENT_WISE_CEIL": "the least whole number that is not below the element.",
        "ELEMENT_WISE_COS": "the cosine of an angle in radians.",
        "ELEMENT_WISE_EXP": "e to the power of each element.",
        "ELEMENT_WISE_FLOOR": "the largest whole number that is not above the element.",
        "ELEMENT_WISE_LOG": "the natural logarithm; -infinity of 0, NaN below.",
        "ELEMENT_WISE_RECIP": "1 / x; infinite where x is 0.",
        "ELEMENT_WISE_SIN": "the sine of an angle in radians.",
        "ELEMENT_WISE_SQRT": "the square root of each element; NaN below 0.",
        "ELEMENT_WISE_TAN": "the tangent of an angle in radians.",
        "ELEMENT_WISE_ERF": "the error function.",
        "ELEMENT_WISE_SINH": "the hyperbolic sine.",
        "ELEMENT_WISE_COSH": "the hyperbolic cosine.",
        "ELEMENT_WISE_TANH": "the hyperbolic tangent.",
        "ELEMENT_WISE_ASINH": "the inverse of the hyperbolic sine.",
        "ELEMENT_WISE_ACOSH": "the inverse of the hyperbolic cosine; NaN below 1.",
        "ELEMENT_WISE_ATANH": "the inverse of the hyperbolic tangent; NaN beyond 1.",
    },
    "elementwise_base.UnaryWithoutScale": {
        "ELEMENT_WISE_LOGICAL_NOT": "1 where the element is 0, else 0.",
        "ELEMENT_WISE_SIGN": "-1, 0 or 1 as the element is below, at or above 0; 0 for NaN.",
        "ELEMENT_WISE_BIT_NOT": "the bits that are not set, of any type.",
        "ELEMENT_WISE_NEGATE": "-x; of the least integer of 8 or 16 bits the largest, of more bits itself.",
    },
    "elementwise_base.Binary": {
        "ELEMENT_WISE_ADD": "the sum of two tensors; integers wrap.",
        "ELEMENT_WISE_DIVIDE": "A / B; integers are truncated toward zero.",
        "ELEMENT_WISE_LOGICAL_AND": "1 where neither element is 0, else 0.",
        "ELEMENT_WISE_LOGICAL_OR": "1 where one of the elements is not 0, else 0.",
        "ELEMENT_WISE_LOGICAL_XOR": "1 where exactly one of the elements is 0, else 0.",
        "ELEMENT_WISE_MAX": "the larger of two elements; NaN if either is NaN.",
        "ELEMENT_WISE_MEAN": "(A + B) / 2; a sum of integers wraps, and is halved toward zero.",
        "ELEMENT_WISE_MIN": "the smaller of two elements; NaN if either is NaN.",
        "ELEMENT_WISE_MULTIPLY": "the product of two tensors; integers wrap.",
        "ELEMENT_WISE_SUBTRACT": "A - B; integers wrap.",
        "ELEMENT_WISE_BIT_SHIFT_LEFT": "A << B; 0 from a count of the width of the type on.",
        "ELEMENT_WISE_BIT_SHIFT_RIGHT": "A >> B; 0 from a count of the width of the type on.",
        "ELEMENT_WISE_MODULUS_TRUNCATE": "the remainder of A / B with the sign of A; exact.",
        "ELEMENT_WISE_MODULUS_FLOOR": "the remainder of A / B with the sign of B.",
        "ELEMENT_WISE_BIT_AND": "the bits that are set in both elements, of any type.",
        "ELEMENT_WISE_BIT_OR": "the bits that are set in one of the elements, of any type.",
        "ELEMENT_WISE_BIT_XOR": "the bits that are set in exactly one of the elements, of any type.",
        "ELEMENT_WISE_ATAN_YX": "the angle of the point (B, A), -pi to pi.",
        "ELEMENT_WISE_DIFFERENCE_SQUARE": "(A - B) * (A - B); integers wrap.",
    },
    "indexing_nd.GatheringNd": {
        "GATHER_ND": "takes parts of the input, each by the first coordinates of its elements.",
    },
    "logic.Comparison": {
        "ELEMENT_WISE_LOGICAL_EQUALS": "whether A is equal to B, as 1 or 0.",
        "ELEMENT_WISE_LOGICAL_GREATER_THAN": "whether A is above B, as 1 or 0.",
        "ELEMENT_WISE_LOGICAL_LESS_THAN": "whether A is below B, as 1 or 0.",
        "ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL": "whether A is not below B, as 1 or 0.",
        "ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL": "whether A is not above B, as 1 or 0.",
    },
    "logic.Predicate": {
        "ELEMENT_WISE_IS_NAN": "1 where the element is a NaN, else 0.",
        "ELEMENT_WISE_BIT_COUNT": "how many bits of the element are set.",
    },
    "reduction.Positions": {
        "ARGMIN": "the position of the smallest element along some axes; of NaN, if there is any.",
        "ARGMAX": "the position of the largest element along some axes; of NaN, if there is any.",
    },
    "reduction.Selection": {
        "TOP_K": "the K largest elements of every line, largest first, and their positions.",
    },
    "softmax.LineActivation": {
        "ACTIVATION_HARDMAX": "1 for the first largest element along the last dimension, else 0.",
        "ACTIVATION_LOG_SOFTMAX": "`ln(e^x / sum(e^x))` along the last dimension.",
        "ACTIVATION_SOFTMAX": "`e^x / sum(e^x)` along the last dimension.",
    },
    "softmax.AxesActivation": {
        "ACTIVATION_SOFTMAX1": "`e^x / sum(e^x)` along some dimensions together.",
        "ACTIVATION_LOG_SOFTMAX1": "`ln(e^x / sum(e^x))` along some dimensions together.",
        "ACTIVATION_HARDMAX1": "1 for the first largest element along some dimensions, else 0.",
    },
    "training.BatchNormalizationGradient": {
        "BATCH_NORMALIZATION_GRAD": "gradients where mean and variance are constants.",
        "BATCH_NORMALIZATION_TRAINING_GRAD": "gradients where both are the input's own.",
    },
}
"""Summary by operator, by the module and the name of the base."""

_building = threading.RLock()  # a class is one for all threads


def plain_operator(name: str) -> type[OperatorDesc]:
    """The class of this name, which is then a name of this module.

    Raises:
        AttributeError: no row is an operator of such a class.
    """
    operator_type = operator_of_class(name)
    base = next((base for base, rows in ROWS.items() if operator_type in rows), None)
    if base is None or operator_type is None or name != f"{pascal_case(operator_type.lower())}OperatorDesc":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, parent = base.partition(".")
    with _building:
        if name not in globals():
            cls: type[OperatorDesc] = getattr(importlib.import_module(f".{module}", __package__), parent)
            words = f"`DML_OPERATOR_{operator_type}`: {ROWS[base][operator_type]}"
            metaclass = cast("Any", type(cls))
            globals()[name] = metaclass(name, (cls,), {"__module__": __name__, "__doc__": words})
        return globals()[name]


__getattr__ = plain_operator
