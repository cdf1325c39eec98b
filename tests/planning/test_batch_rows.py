"""Which graphs' calls may be joined, compared with ONNX's reference evaluator: joined rows are single calls' rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorpost.descriptors import NEWEST
from tensorpost.onnx.model_reader import read_model
from tensorpost.values.graph import Graph
from tensorpost.values.layout import Layout
from tensorpost_server.http.wires.graph_sources import StoredModel
from tensorpost_server.planning.batch_rows import why_rows_mix

onnx = pytest.importorskip("onnx", reason="models for these tests are made by the package onnx")
reference = pytest.importorskip("onnx.reference", reason="models for these tests are computed by the package onnx")

_TABLE = "<float[3, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>"
_X = "(float[n, 3] x) => (float[n, 3] y)"
STAY_APART = {
    "element-wise": (_X, "y = Neg(x)", ""),
    "a row's softmax": (_X, "y = Softmax <axis = 1> (x)", ""),
    "broadcast weights": (_X, "y = Add(x, w)", "<float[3] w = {1, 2, 3}>"),
    "reshaped and back": (
        _X, "s = Shape(x) r = Reshape(x, k) t = Neg(r) y = Reshape(t, s)", "<int64[1] k = {-1}>",
    ),
    "product with weights": ("(float[n, 3] x) => (float[n, 4] y)", "y = MatMul(x, w)", _TABLE),
    "Gemm with a summand": (
        "(float[n, 4] x) => (float[n, 3] y)", "y = Gemm <transB = 1> (x, w, b)",
        _TABLE[:-1] + ", float[3] b = {1, 2, 3}>",
    ),
    "products of stacks": (
        "(float[n, 3, 4] x) => (float[n, 3, 3] y)", "t = Transpose <perm = [0, 2, 1]> (x) y = MatMul(x, t)", "",
    ),
    "a table": ("(int64[n] x) => (float[n, 4] y)", "y = Gather(w, x)", _TABLE),
    "an element of each row": (
        "(float[n, 3, 4] x) => (float[n, 4] y)", "y = Gather <axis = 1> (x, i)", "<int64 i = {1}>",
    ),
    "sums along a row": (_X, "y = CumSum(x, a)", "<int64 a = {1}>"),
    "rows of one number": ("(float[n] x) => (float[n] y)", "y = Mul(x, w)", "<float w = {2}>"),
    "rows of a row": (_X, "a, b = Split <axis = 1> (x, s) y = Concat <axis = 1> (b, a)", "<int64[2] s = {1, 2}>"),
}  # fmt: skip
MIX = {
    "a softmax over rows": (_X, "y = Softmax <axis = 0> (x)", ""),
    "the mean of rows": (_X, "m = ReduceMean <axes = [0], keepdims = 1> (x) y = Sub(x, m)", ""),
    "sums over rows": (_X, "y = CumSum(x, a)", "<int64 a = {0}>"),
    "rows in reverse": (
        _X, "y = Slice(x, s, e, a, t)",
        "<int64[1] s = {-1}, int64[1] e = {-100}, int64[1] a = {0}, int64[1] t = {-1}>",
    ),
    "divided by the number of rows": (
        _X, "s = Shape(x) z = Gather(s, i) f = Cast <to = 1> (z) y = Div(x, f)", "<int64 i = {0}>",
    ),
    "a softmax of as many elements as rows": (
        "(float[n, 6] x) => (float[n, 6] y)", "r = Reshape(x, k) t = Softmax <axis = 1> (r) y = Reshape(t, j)",
        "<int64[2] k = {6, -1}, int64[2] j = {-1, 6}>",
    ),
}  # fmt: skip
OTHER_SIZES = {
    "twice the rows": ("(float[n, 3] x) => (float[m, 3] y)", "y = Concat <axis = 0> (x, x)", "", "first size"),
    "each row with each": (
        "(float[n, 3] x) => (float[n, n] y)", "t = Transpose <perm = [1, 0]> (x) y = MatMul(x, t)", "", "'Transpose'",
    ),
    "an output without inputs": (
        "(float[n, 3] x) => (float[n, 3] y, float[n] z)",
        "y = Neg(x) s = Shape <end = 1> (x) z = ConstantOfShape(s)", "", "'z' does not depend",
    ),
}  # fmt: skip


def model_of(signature: str, body: str, weights: str) -> bytes:
    text = f'<ir_version: 8, opset_import: ["": 17]> m {signature} {weights} {{ {body} }}'
    return onnx.parser.parse_model(text).SerializeToString()


def reason(content: bytes) -> str | None:
    source = StoredModel.of(read_model(content))

    def graph_of(rows: int) -> Graph:
        sent: dict[str, Layout] = {}
        for name, row, sizes in source.inputs:
            assert row is not None
            assert sizes is not None
            sent[name] = Layout.row_major(row, [size if isinstance(size, int) else rows for size in sizes])
        return source.graph(sent, {}, None, NEWEST, 100)

    return why_rows_mix(graph_of)


def parts(content: bytes) -> tuple[Any, Any]:
    """The outputs of three rows computed together, and of each by itself."""
    source, run = StoredModel.of(read_model(content)), reference.ReferenceEvaluator(content)
    (tensor,) = source.inputs
    assert tensor.sizes is not None
    assert tensor.data_type is not None
    sizes = [size if isinstance(size, int) else 3 for size in tensor.sizes]
    x = np.arange(np.prod(sizes)).reshape(sizes).astype(tensor.data_type.dtype)
    x = x % 3 if x.dtype.kind == "i" else np.sin(x)
    alone = [run.run(None, {tensor.name: x[row : row + 1]})[0] for row in range(3)]
    return run.run(None, {tensor.name: x})[0], np.concatenate(alone)


@pytest.mark.parametrize("name", STAY_APART)
def test_calls_whose_rows_stay_apart_may_be_joined(name: str) -> None:
    content = model_of(*STAY_APART[name])
    np.testing.assert_allclose(*parts(content), rtol=1e-5)
    assert reason(content) is None


@pytest.mark.parametrize("name", MIX)
def test_calls_whose_rows_mix_may_not(name: str) -> None:
    content = model_of(*MIX[name])
    joined, alone = parts(content)
    assert not np.allclose(joined, alone)
    assert reason(content) is not None


@pytest.mark.parametrize("name", OTHER_SIZES)
def test_outputs_that_have_no_rows_of_their_own(name: str) -> None:
    *model, says = OTHER_SIZES[name]
    assert says in (reason(model_of(*model)) or "")


def test_a_node_of_onnx_runtime_is_the_word_of_whoever_stores_it() -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    weights = "<float[1, 3, 2, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>"
    assert reason(model_of("(float[n, 3, 8, 8] x) => (float[n, 1, 7, 7] y)", "y = Conv(x, w)", weights)) is None
