"""The formulas of the pages: they name fields, and those of single elements give the results that are shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.support.openapi_examples import arrays_of

from tensorpost.descriptors import operator_names
from tensorpost.descriptors.catalogue import pascal_case
from tensorpost.reference.operator_reference import operator_reference

by_name = pytest.mark.parametrize("name", operator_names())
_OTHER_CAPITALS = {
    "C",
    "DECREASING",
    "CROSS_CORRELATION",
    "FORWARD",
    "DataType",
    "H",
    "NaN",
    "Philox",
    "T",
    "Height",
    "Width",
}
"""Words of formulas that are no fields: values of enums, letters that the formula itself explains, members."""

_SAME = ("cos", "sin", "tan", "sinh", "cosh", "tanh", "sqrt", "floor", "ceil", "trunc")
_FUNCTIONS: Mapping[str, Any] = {
    **{name: getattr(np, name) for name in _SAME},
    **{name: getattr(np, f"arc{name[1:]}") for name in ("acos", "asin", "atan", "asinh", "acosh", "atanh")},
    "atan2": np.arctan2,
    "ln": np.log,
    "erf": np.vectorize(math.erf),
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
    "where": np.where,
    "e": math.e,
}
_OTHER_WORDS = re.compile(
    "saturate|number of|maximum|sum|rounded|in the|is NaN|infinite|bit by|element|FusedActivation|"
    r"QuantizationTensors|mean|[&~]|<<|>>| \| "
)
"""What Python has no word for, or takes another one for."""
_LARGE = "ELEMENT_WISE_DIFFERENCE_SQUARE"  # its example has products that a float64 cannot hold
OF_ONE_ELEMENT = [
    name
    for name in operator_names()
    if re.match(r"y = ", operator_reference(name).formula)
    and not _OTHER_WORDS.search(operator_reference(name).formula)
    and name != _LARGE
]


@by_name
def test_a_formula_names_fields_only(name: str) -> None:
    reference = operator_reference(name)
    fields = {each.name for each in reference.fields}
    known = fields | {re.sub("Tensors?$", "", each) for each in fields} | _OTHER_CAPITALS | {*operator_names()}
    known |= {letter for letter in "AB" if f"{letter}Tensor" in fields}

    words = set(re.findall(r"\b[A-Z]\w*", reference.formula))
    assert words <= known, words - known
    assert re.match(r"y = |Output\w*(\[|,? | =)|[HC]\[t\] = ", reference.formula), "it says what is computed"
    assert reference.formula.count("(") == reference.formula.count(")")


def expression(formula: str) -> str:
    """`y = x if x >= 0, else Alpha * x` as an expression of NumPy."""
    text = re.sub(r"\|(\w+)\|", r"abs(\1)", formula.removeprefix("y = ")).replace("^", "**")
    if " if " not in text:
        return text
    *conditions, found = re.split(r", (?:else )?", text)
    for condition in reversed(conditions):
        value, _, test = condition.partition(" if ")
        test = re.sub(r"(?<![!<>=])=(?!=)", "==", test)
        for word, sign in ((" and ", " & "), (" or ", " | ")):
            if word in test:
                test = sign.join(f"({part})" for part in test.split(word))
        found = f"where({test}, {value}, {found})"
    return found


@pytest.mark.parametrize("name", OF_ONE_ELEMENT)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_formula_gives_the_result_that_is_shown(name: str) -> None:
    reference = operator_reference(name)
    sent = {each: x.astype(np.float64) for each, x in arrays_of(reference.example.call["tensors"]).items()}
    desc = reference.example.call["op"]["desc"]
    scaled = desc.get("ScaleBias") or {"Scale": 1, "Bias": 0}
    scope: dict[str, Any] = {**_FUNCTIONS, "ZeroPoint": 0}
    scope |= {field: value for field, value in desc.items() if isinstance(value, int | float)}
    scope |= {each if len(each) == 1 else pascal_case(each): x for each, x in sent.items()}
    if "input" in sent:
        scope["x"] = sent["input"] * scaled["Scale"] + scaled["Bias"]
    (expected,) = arrays_of(reference.example.outputs).values()

    found = eval(expression(reference.formula), scope)
    if expected.dtype.kind in "iu":
        found = np.trunc(found).astype(np.int64).astype(expected.dtype)  # integers wrap, quotients are truncated
    near = 2e-3 if expected.itemsize == 2 else 1e-5
    np.testing.assert_allclose(found, expected.astype(np.float64), rtol=near, atol=1e-6)


def test_most_operators_of_elements_have_a_formula_that_is_computed() -> None:
    assert len(OF_ONE_ELEMENT) > 50
    assert expression("y = x if x > 0, else Alpha * x") == "where(x > 0, x, Alpha * x)"
