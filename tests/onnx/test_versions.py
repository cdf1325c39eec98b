"""Every version of every ONNX operator against ONNX Runtime's CPU provider, where it has the version and the type.

A sample gives tensors, and settings by name: a setting is an attribute in versions that have it as one and an input in
the others. Versions before opset 7, which ONNX Runtime does not compute, must answer as the oldest that it does.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from tests.support.onnx_nodes import compute, runtime

from tensorpost.onnx import ONNX_OPERATORS, OnnxNode, OnnxSchema
from tensorpost.onnx.schemas import WRITTEN_BY_HAND
from tensorpost.values.problems import InvalidDescriptor

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python")

RNG = np.random.default_rng(7)
X = RNG.uniform(-3, 3, (2, 3, 4)).astype(np.float32)
POSITIVE = RNG.uniform(1, 3, (2, 3, 4)).astype(np.float32)
UNIT = RNG.uniform(-0.9, 0.9, (2, 3, 4)).astype(np.float32)
ODD = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-42, 0.5, -2.5], np.float32)
ROW = RNG.uniform(-3, 3, (4,)).astype(np.float32)
I = RNG.integers(-9, 9, (2, 3, 4))  # noqa: E741 # integers
I32 = I.astype(np.int32)
B1, B2 = I > 0, I % 2 == 0
U8 = RNG.integers(0, 255, (2, 3, 4)).astype(np.uint8)
NCHW = RNG.uniform(-3, 3, (2, 8, 2, 4)).astype(np.float32)
A, B, C = (RNG.uniform(-1, 1, shape).astype(np.float32) for shape in ((3, 4), (4, 5), (3, 5)))
INT64 = np.int64

Sample = tuple[list[Any], dict[str, Any]]
UNARY = (
    "Abs Ceil Cos Elu Erf Exp Floor HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Mish Neg Reciprocal Relu "
    "Round Selu Shrink Sigmoid Sign Sin Sinh Cosh Softplus Softsign Tan Tanh Atan Asinh ThresholdedRelu Celu Swish"
)
REDUCTIONS = ("L1", "L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
SAMPLES: dict[str, list[Sample]] = {
    **{name: [([X], {}), ([ODD], {})] for name in UNARY.split()},
    "Gelu": [([X], {}), ([X], {"approximate": "tanh"})],  # of -infinity its limit, where ONNX Runtime has NaN
    **{name: [([UNIT], {})] for name in ("Acos", "Asin", "Atanh")},
    **{name: [([POSITIVE], {})] for name in ("Acosh", "Log", "Sqrt", "ReduceLogSum")},
    **{name: [([X, ROW], {}), ([I32, I32[:, :1]], {})] for name in ("Add", "Sub", "Mul")},
    "Div": [([X, ROW], {}), ([I32, np.array([[3], [-2], [5]], np.int32)], {})],
    "Mod": [([I, np.array([3, -2, 5, 7])], {"fmod": 0}), ([X, ROW], {"fmod": 1})],
    "Pow": [([POSITIVE, ROW], {}), ([POSITIVE, np.array(2.0, np.float32)], {})],
    "Max": [([X, ROW, X[:1]], {}), ([X], {})],
    "Min": [([X, ROW, X[:1]], {})],
    "Sum": [([X, X + 1, X[:1]], {}), ([X, X], {})],
    "Mean": [([X, X + 1, X[:1]], {})],
    **{name: [([B1, B2[:1]], {})] for name in ("And", "Or", "Xor")},
    "Not": [([B1], {})],
    **{name: [([X], {}), ([np.zeros((3, 0, 2), np.int8)], {})] for name in ("Shape", "Size")},
    **{name: [([X, ROW], {}), ([I, I[:1]], {})] for name in ("Equal", "Greater", "Less")},
    **{name: [([X, ROW], {})] for name in ("GreaterOrEqual", "LessOrEqual")},
    "BitShift": [([U8, U8 % 9], {"direction": "LEFT"}), ([U8, U8 % 9], {"direction": "RIGHT"})],
    **{name: [([I32, I32[:1]], {})] for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    "BitwiseNot": [([I32], {})],
    "PRelu": [([X, ROW], {}), ([X, np.array(0.25, np.float32)], {})],
    "Where": [([B1, X, ROW], {})],
    "Clip": [([X], {"min": np.float32(-1), "max": np.float32(0.5)}), ([X], {"max": np.float32(0.5)}), ([X], {})],
    "Cast": [([X], {"to": code}) for code in (1, 6, 7, 9, 10, 11)] + [([I], {"to": 2}), ([B1], {"to": 1})],
    "CastLike": [([X, I], {})],
    **{name: [([X], {}), ([X], {"axis": 1}), ([X], {"axis": 0})] for name in ("Softmax", "LogSoftmax", "Hardmax")},
    "BitCast": [([X], {"to": 6}), ([I32], {"to": 1})],
    "SwiGLU": [([X, X * 2], {}), ([X, X], {"alpha": 1.5})],
    "DFT": [([X[..., :2].copy()], {"axis": 1}), ([X[..., :1].copy()], {"axis": 1, "onesided": 1}),
            ([X[..., :2].copy()], {"axis": 0, "inverse": 1, "dft_length": [5]})],
    "STFT": [([X[..., :1].copy()], {"frame_step": [1], "frame_length": [2]}),
             ([X[..., :1].copy(), np.array([0.5, 1], np.float32)], {"frame_step": [2], "onesided": 0})],
    "Concat": [([X, X[:, :1], X], {"axis": 1}), ([I, I], {"axis": 0})],
    "DepthToSpace": [([NCHW], {"blocksize": 2}), ([NCHW], {"blocksize": 2, "mode": "CRD"})],
    "SpaceToDepth": [([NCHW], {"blocksize": 2})],
    "Expand": [([X[:, :1]], {"shape": [5, 1, 3, 1]}), ([X], {"shape": [1]})],
    "Flatten": [([NCHW], {}), ([NCHW], {"axis": 0}), ([NCHW], {"axis": 3})],
    "Gather": [([X, np.array([[2, 0], [-1, 1]])], {"axis": 1}), ([X, np.array(1)], {})],
    "GatherElements": [([X, np.array([[[0, 1, 0, 1]] * 3])], {"axis": 0}), ([X, I % 4], {"axis": 2})],
    "GatherND": [([X, np.array([[0, 1], [1, -1]])], {}), ([X, np.array([[1], [2]])], {"batch_dims": 1})],
    "Reshape": [([X], {"shape": [0, -1, 2]}), ([X], {"shape": [24]})],
    "Slice": [
        ([X], {"starts": [1, 0], "ends": [3, -1], "axes": [1, 2]}),
        ([X], {"starts": [0, -100], "ends": [1, 2**31]}),
        ([X], {"starts": [-1, 3], "ends": [-100, 0], "axes": [1, 2], "steps": [-1, -2]}),
    ],
    "Split": [([X], {"split": [1, 2], "axis": 1}), ([X], {"split": [2, 2], "axis": 2})],
    "Squeeze": [([X[:, :1]], {"axes": [1]}), ([X[:1, :, :1]], {})],
    "Unsqueeze": [([X], {"axes": [0, 2]})],
    "Transpose": [([X], {"perm": [2, 0, 1]}), ([X], {})],
    "Pad": [
        ([X], {"pads": [1, 0, -1, 0, 2, 1], "constant_value": np.float32(1.5)}),
        ([X], {"pads": [1, 0, 3, 1, 2, 0], "mode": "reflect"}), ([X], {"pads": [1, 0, 2, 0, 2, 5], "mode": "edge"}),
        ([X], {"pads": [1, 0, 2, 0, 2, 5], "mode": "wrap"}),
    ],
    "OneHot": [([np.array([[0, 3], [-1, 9]]), np.array([5, 7], np.float32)], {"depth": 4, "axis": 1})],
    "Scatter": [([X, I[:1] % 3, X[:1] * 2], {"axis": 1})],
    "ScatterElements": [
        ([X, I[:1] % 3, X[:1] * 2], {"axis": 1}),
        *[([X, I[:1] % 3, X[:1] * 2], {"axis": 1, "reduction": name}) for name in ("add", "mul", "max", "min")],
    ],
    "ScatterND": [([X, np.array([[0, 1], [1, 2]]), X[0, :2]], {}),
                  ([X, np.array([[0, 1], [0, 1]]), X[0, :2]], {"reduction": "add"})],
    "ConstantOfShape": [([], {"input": [2, 3]})],
    "Range": [([], {"start": np.float32(1), "limit": np.float32(3), "delta": np.float32(0.3)}),
              ([], {"start": INT64(9), "limit": INT64(-2), "delta": INT64(-3)})],
    "EyeLike": [([A], {"k": 1}), ([A], {"dtype": 7})],
    "Trilu": [([X], {"k": 1}), ([X], {"upper": 0})],
    "ReverseSequence": [([X[0].T.copy(), np.array([1, 4, 2])], {})],
    **{f"Reduce{name}": [([X], {}), ([X], {"axes": [1], "keepdims": 0}), ([X], {"axes": [0, -1]}),
                         ([I32], {"axes": [2]})] for name in REDUCTIONS},
    **{name: [([X], {"axis": 1}), ([X], {"keepdims": 0}), ([I32], {"axis": 2, "select_last_index": 1})]
       for name in ("ArgMax", "ArgMin")},
    "TopK": [([X], {"K": [2], "k": 2, "axis": 1}), ([X], {"K": [3], "largest": 0})],
    "CumSum": [([X], {"axis": INT64(1)}), ([X], {"axis": INT64(-1), "reverse": 1, "exclusive": 1})],
    "CumProd": [([X], {"axis": INT64(1)})],
    "Gemm": [([A, B, C], {}), ([A.T.copy(), B.T.copy(), C[:1]], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
             ([A, B], {})],
    "MatMul": [([X, X.transpose(0, 2, 1).copy()], {}), ([X, ROW], {}), ([ROW, B], {}), ([ROW, ROW], {})],
    "MatMulInteger": [([U8[0], U8[0].T.copy()], {}), ([U8[0], U8[0].T.copy(), np.uint8(3), np.uint8(9)], {})],
    "QuantizeLinear": [([X, np.float32(0.03)], {}), ([X, np.float32(0.03), np.int8(5)], {}),
                       ([X, np.array([0.1, 0.01, 0.5], np.float32), np.array([0, 9, 200], np.uint8)], {"axis": 1})],
    "DequantizeLinear": [([U8, np.float32(0.03), np.uint8(100)], {}),
                         ([U8, np.array([0.1, 0.01, 0.5], np.float32)], {"axis": 1})],
    "DynamicQuantizeLinear": [([X], {})],
}  # fmt: skip
NOT_THERE = {"data-type-unsupported", "attribute-value", "attribute-type", "input-missing"}  # in this version
NOT_ALIKE = {*NOT_THERE, "shapes-differ", "input-type", "data-types-differ"}  # without broadcasts; Split-1's sizes
EXACT = {"Round", "Floor", "Ceil", "Abs", "Neg", "Relu", "Sign", "Where", "Transpose", "Concat", "Slice", "Pad"}
UNLIKE = {
    # operator: why ONNX Runtime's answer is not compared
    "HardSwish": "of infinities, the CPU provider's approximation and the text differ",
}


def call(schema: OnnxSchema, tensors: list[Any], settings: dict[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
    """Inputs by position and attributes for this version; None if it has no such setting."""
    left, arrays, attributes = list(tensors), list[Any](), dict[str, Any]()
    used = set[str]()
    for slot in schema.inputs:
        if slot.variadic:
            arrays, left = [*arrays, *left], []
        elif slot.name in settings:
            used.add(slot.name)
            value = settings[slot.name]
            arrays.append(value if hasattr(value, "dtype") else np.asarray(value, INT64))
        elif slot.data and left:
            arrays.append(left.pop(0))
        elif slot.optional or not slot.data:
            arrays.append(None)
    for name, value in settings.items():
        if name in used or (schema.op_type == "TopK" and name in ("k", "K") and schema.attribute(name) is None):
            continue
        own = name if schema.attribute(name) else {"constant_value": "value", "pads": "paddings"}.get(name, name)
        if schema.attribute(own) is None:
            return None
        attributes[own] = value.item() if hasattr(value, "item") else value
    while arrays and arrays[-1] is None:
        arrays.pop()
    return (arrays, attributes) if not left else None


def ours(schema: OnnxSchema, arrays: list[Any], attributes: dict[str, Any]) -> list[Any]:
    names = [slot.name for slot in schema.inputs if not slot.variadic]
    names += [f"{slot.name}_{at}" for slot in schema.inputs if slot.variadic for at in range(len(arrays))]
    given = {name: np.asarray(x) for name, x in zip(names, arrays, strict=False) if x is not None}
    node = OnnxNode.of(schema.op_type, given, opset=schema.since_version, **attributes)
    return compute(node, {slot.name: given[slot.name] for slot in node.inputs}, slice_bytes=48)


def theirs(schema: OnnxSchema, arrays: list[Any], attributes: dict[str, Any], outputs: int) -> list[Any] | None:
    """ONNX Runtime's answer; None if it has no such version or type."""
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")

    opset = schema.since_version
    arrays = [None if x is None else np.asarray(x) for x in arrays]
    try:
        return runtime(schema.op_type, opset, arrays, outputs, **attributes)
    except (state.NotImplemented, state.Fail, state.InvalidGraph, state.InvalidArgument):
        return None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_version_agrees_with_onnx_runtime() -> None:
    compared, wrong = set[str](), list[str]()
    for schema in ONNX_OPERATORS:
        if schema.op_type in WRITTEN_BY_HAND or schema.op_type in UNLIKE or not 7 <= schema.since_version <= 26:
            continue
        for number, (tensors, settings) in enumerate(SAMPLES[schema.op_type]):
            what = call(schema, tensors, settings)
            if what is None:
                continue
            try:
                found = ours(schema, *what)
            except InvalidDescriptor as error:
                if not {violation.code for violation in error.violations} <= NOT_THERE:
                    wrong.append(f"{schema.name} sample {number}: {error.detail}")
                continue
            expected = theirs(schema, *what, len(found))
            if expected is None:
                continue
            compared.add(schema.op_type)
            for a, b in zip(found, expected, strict=True):
                same = (a.dtype, a.shape) == (b.dtype, b.shape)
                near = 0 if schema.op_type in EXACT else 2e-6
                if not same or not np.allclose(a, b, rtol=near, atol=near, equal_nan=True):
                    wrong.append(f"{schema.name} sample {number}: {a} is not {b}")
    assert not wrong, "\n".join(wrong)
    assert len(compared) >= 100, sorted({s.op_type for s in ONNX_OPERATORS} - compared - WRITTEN_BY_HAND)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_older_versions_mean_what_their_successors_mean() -> None:
    """Of an operator's versions that take a sample alike, all answer alike."""
    compared = 0
    for op_type, samples in SAMPLES.items():
        # The default axis of softmax, and what it means, changed in 13; Selu's default numbers in 6.
        if op_type in ("Softmax", "LogSoftmax", "Hardmax", "Selu"):
            continue
        versions = [schema for schema in ONNX_OPERATORS if schema.op_type == op_type]
        for tensors, settings in samples:
            answers: list[list[Any]] = []
            for schema in versions:
                what = call(schema, tensors, settings)
                if what is None:
                    continue
                try:
                    answers.append(ours(schema, *what))
                except InvalidDescriptor as error:
                    if not {violation.code for violation in error.violations} <= NOT_ALIKE:
                        raise
            for answer in answers[1:]:
                compared += 1
                for a, b in zip(answer, answers[0], strict=True):
                    np.testing.assert_array_equal(a, b, err_msg=op_type)
    assert compared > 250


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize(
    ("shape", "axis", "aligned"),
    [
        ((), None, (1, 1, 1, 1)), ((1, 1), None, (1, 1, 1, 1)), ((1,), None, (1, 1, 1, 1)), ((1,), 2, (1, 1, 1, 1)),
        ((5,), None, (1, 1, 1, 5)), ((4, 5), None, (1, 1, 4, 5)), ((3, 4), 1, (1, 3, 4, 1)), ((2,), 0, (2, 1, 1, 1)),
    ],
)  # fmt: skip
def test_the_first_versions_broadcast_as_their_text_says(
    opset: int, shape: tuple[int, ...], axis: int | None, aligned: tuple[int, ...]
) -> None:
    """The examples of Add-6; Add-1 says the same of one element in words."""
    a, b = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32), RNG.standard_normal(shape).astype(np.float32)
    attributes = {"broadcast": 1} if axis is None else {"broadcast": 1, "axis": axis}
    node = OnnxNode.of("Add", {"A": a, "B": b}, opset=opset, **attributes)
    (found,) = compute(node, {"A": a, "B": b})
    np.testing.assert_array_equal(found, a + b.reshape(aligned))


def test_every_operator_has_a_sample() -> None:
    assert SAMPLES.keys() == {schema.op_type for schema in ONNX_OPERATORS} - WRITTEN_BY_HAND


def test_cast_1_names_its_type() -> None:
    node = OnnxNode.of("Cast", {"input": X}, opset=1, to="FLOAT16")
    assert node.output.data_type == "float16"
    assert node == OnnxNode.from_json(node.to_json())
