"""Every element-wise operator on every backend: the numbers of `math` and exact integers, in any layout.

The numbers are those of tests/support/elementwise_oracles.py, which calls nothing of the packages under test, and of
ONNX's reference evaluator, where an operator is the same function there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.conformance.suite import check_bytes
from tests.support import strategies as ours
from tests.support.batches import each
from tests.support.elementwise_oracles import FORMULAS, case_of, packed_case, types_of
from tests.support.onnx_reference import reference_outputs
from tests.support.vectors import Case, all_hold, cases_of, elements, written

from tensorpost.descriptors import BufferTensorDesc, operator_class
from tensorpost_server.backends import Backend
from tensorpost_server.forms import Pointwise
from tensorpost_server.operators import form_of
from tensorpost_server.planning import make_plan

OF_THEIR_OWN = ("Quantization", "Normalization")  # test_quantization.py, test_normalization.py
POINTWISE = {
    case.desc.name: case
    for case in cases_of()
    if isinstance(form_of(case.desc), Pointwise) and operator_class(case.desc.name).facts.family not in OF_THEIR_OWN
}
"""A case of each operator that is computed element by element."""


@each("operator", FORMULAS)
def test_numbers_of_every_type_and_rank(backend: Backend, operator: str):
    cases = [
        packed_case(operator, data_type, attributes, rank=1 + (number + place) % 8)
        for number, data_type in enumerate(types_of(operator))
        for place, attributes in enumerate(FORMULAS[operator].attributes)
        if not ("scale_bias" in attributes and data_type.endswith("64"))  # which DirectML refuses
    ]
    all_hold(cases, lambda case: check_bytes(backend, case))


def test_every_element_wise_operator_has_a_formula():
    by_other_means = {"CAST", *(f"ELEMENT_WISE_BIT_{name}" for name in ("AND", "OR", "XOR", "NOT", "COUNT"))}
    assert POINTWISE.keys() - FORMULAS.keys() == by_other_means


@each("base", ["FLOAT32", "FLOAT16", "INT32", "INT8", "UINT32", "UINT8"])
@each("exponent", ["FLOAT32", "FLOAT16", "INT32", "INT16", "UINT32", "UINT8"])
def test_bases_and_exponents_of_two_types(backend: Backend, base: str, exponent: str):
    types = {"input_tensor": base, "exponent_tensor": exponent}
    check_bytes(backend, case_of("ELEMENT_WISE_POW", types, {}, rank=2))


BITS: Mapping[str, Any] = {
    "ELEMENT_WISE_BIT_AND": lambda a, b: a & b,
    "ELEMENT_WISE_BIT_OR": lambda a, b: a | b,
    "ELEMENT_WISE_BIT_XOR": lambda a, b: a ^ b,
    "ELEMENT_WISE_BIT_NOT": lambda x: ~x,
    "ELEMENT_WISE_BIT_COUNT": lambda x: np.array([int(v).bit_count() for v in x.ravel()], np.uint8).reshape(x.shape),
}


@pytest.mark.parametrize("operator", BITS)
def test_any_bits_of_any_type(backend: Backend, operator: str):
    random = np.random.default_rng(5)
    for data_type in types_of(operator):
        cls, item = operator_class(operator), BufferTensorDesc.packed(data_type, (1,)).item_size
        tensors = {name: {"DataType": data_type, "Sizes": [5, 41]} for name in cls.fields_of_kind("input")}
        desc = cls.completed(tensors)
        inputs = [random.bytes(205 * item) for _ in tensors]
        made = BITS[operator](*[np.frombuffer(x, f"u{item}").reshape(5, 41) for x in inputs])
        check_bytes(backend, Case(f"{operator} {data_type}", desc, tuple(inputs), made.tobytes()))


# ---- layouts ---------------------------------------------------------------------------------------------------------


@each("operators", [list(POINTWISE)[first : first + 7] for first in range(0, len(POINTWISE), 7)])
@given(data=st.data(), slice_bytes=st.sampled_from([1 << 20, 100]))
@settings(max_examples=6, deadline=None)
def test_layouts_change_no_number(
    backends: list[Backend], operators: list[str], data: st.DataObject, slice_bytes: int
) -> None:
    for operator in operators:
        layouts_change_no_number(backends, operator, data, slice_bytes)


def layouts_change_no_number(backends: list[Backend], operator: str, data: st.DataObject, slice_bytes: int) -> None:
    """Packed tensors and strided, transposed and broadcast ones with the same elements have the same answer."""
    known = POINTWISE[operator].desc
    cls, sizes = operator_class(operator), data.draw(ours.sizes(max_elements=60))
    fields: dict[str, Any] = {name: getattr(known, name) for name in cls.fields_of_kind("attribute")}
    packed: dict[str, Any] = {}
    for kind in ("input", "output"):
        for path, tensor in known.tensors(kind):  # pyright: ignore[reportAttributeAccessIssue] # no ONNX node
            name, data_type = path[0], tensor.data_type.name
            of = ours.tensor_descs(data_types=(data_type,), of=sizes, output=kind == "output")
            fields[name], packed[name] = data.draw(of), BufferTensorDesc.packed(data_type, sizes)
    strided, plain = cls(**fields), cls(**{**fields, **packed})
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    inputs, dense = list[bytes](), list[bytes]()
    for slot in strided.inputs:
        count = slot.layout.size_in_bytes // slot.layout.data_type.item_size
        numbers = random.integers(0, 120, count).astype(slot.layout.data_type.dtype)
        inputs.append((numbers / 8 if numbers.dtype.kind == "f" else numbers).astype(numbers.dtype).tobytes())
        inputs[-1] = inputs[-1].ljust(slot.layout.size_in_bytes, b"\0")
        dense.append(np.ascontiguousarray(elements(slot, inputs[-1])).tobytes())
    near = 2.0 if operator in FORMULAS and FORMULAS[operator].ulp else 0.0  # vectors and single elements may differ
    for backend in backends:
        expected = written(strided.outputs[0], computed(backend, plain, dense))
        check_bytes(backend, Case(operator, strided, tuple(inputs), expected, ulp=near, any_nan=True), slice_bytes)


def computed(backend: Backend, desc: Any, inputs: list[bytes]) -> NDArray[Any]:
    """The output of packed tensors."""
    run = backend.start(make_plan(desc, 1 << 20), [memoryview(x) for x in inputs])
    layout = desc.outputs[0].layout
    made = np.frombuffer(bytes(run.compute(0)), layout.data_type.dtype).reshape(layout.sizes).copy()
    run.close()
    return made


# ---- ONNX's reference evaluator --------------------------------------------------------------------------------------

# DirectML's operator to ONNX's, with the attributes of both, and the DataTypes that ONNX's takes of the table's.
FLOATS = ("FLOAT32", "FLOAT16")
ALL = ("FLOAT32", "FLOAT16", "INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8")
Row = tuple[str, Mapping[str, Any], Mapping[str, Any], tuple[str, ...]]
IN_ONNX: Mapping[str, Row] = {
    **{
        f"ELEMENT_WISE_{ours_}": (theirs, {}, {}, FLOATS)
        for ours_, theirs in {
            "ACOS": "Acos", "ASIN": "Asin", "ATAN": "Atan", "CEIL": "Ceil", "FLOOR": "Floor", "COS": "Cos",
            "SIN": "Sin", "TAN": "Tan", "EXP": "Exp", "LOG": "Log", "SQRT": "Sqrt", "RECIP": "Reciprocal",
            "ERF": "Erf", "SINH": "Sinh", "COSH": "Cosh", "TANH": "Tanh", "ASINH": "Asinh", "ACOSH": "Acosh",
            "ATANH": "Atanh", "POW": "Pow",
        }.items()
    },
    **{
        f"ELEMENT_WISE_{ours_}": (theirs, {}, {}, ALL)
        for ours_, theirs in {
            "ADD": "Add", "SUBTRACT": "Sub", "MULTIPLY": "Mul", "MAX": "Max", "MIN": "Min", "SIGN": "Sign",
            "LOGICAL_EQUALS": "Equal", "LOGICAL_GREATER_THAN": "Greater", "LOGICAL_LESS_THAN": "Less",
            "LOGICAL_GREATER_THAN_OR_EQUAL": "GreaterOrEqual", "LOGICAL_LESS_THAN_OR_EQUAL": "LessOrEqual",
        }.items()
    },
    "ELEMENT_WISE_ABS": ("Abs", {}, {}, (*FLOATS, "INT64", "INT32", "INT16", "INT8")),
    "ELEMENT_WISE_NEGATE": ("Neg", {}, {}, (*FLOATS, "INT64", "INT32", "INT16", "INT8")),
    "ELEMENT_WISE_MODULUS_FLOOR": ("Mod", {}, {}, ALL[2:]),
    "ELEMENT_WISE_MODULUS_TRUNCATE": ("Mod", {}, {"fmod": 1}, ALL),
    "ELEMENT_WISE_ROUND": ("Round", {"rounding_mode": "HALVES_TO_NEAREST_EVEN"}, {}, FLOATS),
    "ELEMENT_WISE_IS_NAN": ("IsNaN", {}, {}, FLOATS),
    "ELEMENT_WISE_IS_INFINITY": ("IsInf", {"infinity_mode": "NEGATIVE"}, {"detect_positive": 0}, FLOATS),
    "ELEMENT_WISE_BIT_AND": ("BitwiseAnd", {}, {}, ALL[2:]),
    "ELEMENT_WISE_BIT_OR": ("BitwiseOr", {}, {}, ALL[2:]),
    "ELEMENT_WISE_BIT_XOR": ("BitwiseXor", {}, {}, ALL[2:]),
    "ELEMENT_WISE_BIT_NOT": ("BitwiseNot", {}, {}, ALL[2:]),
    "ELEMENT_WISE_BIT_SHIFT_LEFT": ("BitShift", {}, {"direction": "LEFT"}, ALL[6:]),
    "ELEMENT_WISE_BIT_SHIFT_RIGHT": ("BitShift", {}, {"direction": "RIGHT"}, ALL[6:]),
    "ACTIVATION_ELU": ("Elu", {"alpha": 0.5}, {"alpha": 0.5}, FLOATS),
    "ACTIVATION_CELU": ("Celu", {"alpha": 2.0}, {"alpha": 2.0}, FLOATS[:1]),
    "ACTIVATION_SCALED_ELU": ("Selu", {"alpha": 1.5, "gamma": 2.0}, {"alpha": 1.5, "gamma": 2.0}, FLOATS),
    "ACTIVATION_HARD_SIGMOID": ("HardSigmoid", {"alpha": 0.25, "beta": 0.5}, {"alpha": 0.25, "beta": 0.5}, FLOATS),
    "ACTIVATION_LEAKY_RELU": ("LeakyRelu", {"alpha": 0.25}, {"alpha": 0.25}, FLOATS),
    "ACTIVATION_PARAMETERIZED_RELU": ("PRelu", {}, {}, FLOATS),
    "ACTIVATION_RELU": ("Relu", {}, {}, FLOATS),
    "ACTIVATION_SIGMOID": ("Sigmoid", {}, {}, FLOATS),
    "ACTIVATION_SOFTPLUS": ("Softplus", {"steepness": 1.0}, {}, FLOATS),
    "ACTIVATION_SOFTSIGN": ("Softsign", {}, {}, FLOATS),
    "ACTIVATION_TANH": ("Tanh", {}, {}, FLOATS),
    "ACTIVATION_THRESHOLDED_RELU": ("ThresholdedRelu", {"alpha": 1.5}, {"alpha": 1.5}, FLOATS),
    "ACTIVATION_SHRINK": ("Shrink", {"bias": 0.5, "threshold": 1.5}, {"bias": 0.5, "lambd": 1.5}, FLOATS),
    "ACTIVATION_GELU": ("Gelu", {}, {}, FLOATS[:1]),
    "ACTIVATION_SOFTMAX": ("Softmax", {}, {"axis": -1}, FLOATS),
    "ACTIVATION_LOG_SOFTMAX": ("LogSoftmax", {}, {"axis": -1}, FLOATS),
    "ACTIVATION_HARDMAX": ("Hardmax", {}, {"axis": -1}, FLOATS),
    "ACTIVATION_SOFTMAX1": ("Softmax", {"axes": [0]}, {"axis": 0}, FLOATS),
    "ACTIVATION_LOG_SOFTMAX1": ("LogSoftmax", {"axes": [0]}, {"axis": 0}, FLOATS),
    "ACTIVATION_HARDMAX1": ("Hardmax", {"axes": [0]}, {"axis": 0}, FLOATS),
}  # fmt: skip


@each("operator", IN_ONNX)
def test_numbers_are_those_of_onnx(backend: Backend, operator: str):
    pytest.importorskip("onnx")
    theirs, attributes, onnx_attributes, types = IN_ONNX[operator]
    cls, random = operator_class(operator), np.random.default_rng(7)
    for data_type in types:
        dtype = np.dtype(data_type.lower())
        names = cls.fields_of_kind("input")
        arrays = [_random(random, dtype, (9, 31)) for _ in names]
        if theirs == "BitShift":  # ONNX says nothing of counts of the width and more
            arrays[1] %= dtype.type(8 * dtype.itemsize)
        (expected,) = reference_outputs(theirs, 20, arrays, onnx_attributes)
        fields = {name: {"DataType": data_type, "Sizes": [9, 31]} for name in names}
        desc = cls.completed({**fields, **attributes})
        made = expected.astype(desc.outputs[0].layout.data_type.dtype)
        inexact = made.dtype.kind == "f" and operator not in EXACT
        case = Case(
            f"{operator} {data_type}", desc, tuple(x.tobytes() for x in arrays), made.tobytes(),
            ulp=8 if inexact else 0, absolute=4e-6 if inexact and made.itemsize > 2 else 1e-3 if inexact else 5e-324,
            any_nan=True,
        )  # fmt: skip
        check_bytes(backend, case)


EXACT = {
    *(f"ELEMENT_WISE_{name}" for name in ("CEIL", "FLOOR", "SQRT", "ADD", "SUBTRACT", "MULTIPLY", "MAX", "MIN")),
    *(f"ELEMENT_WISE_{name}" for name in ("SIGN", "ABS", "NEGATE", "MODULUS_TRUNCATE", "ROUND")),
    "ACTIVATION_RELU", "ACTIVATION_THRESHOLDED_RELU", "ACTIVATION_HARDMAX", "ACTIVATION_HARDMAX1",
}  # fmt: skip


def _random(random: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if dtype.kind == "f":
        return (random.standard_normal(shape) * 2).astype(dtype)
    numbers = np.frombuffer(random.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
    return np.where(numbers == 0, numbers.dtype.type(1), numbers)
