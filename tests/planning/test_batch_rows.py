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
    "a dropout that drops nothing": (_X, "y = Dropout(x, r, t)", "<float r = {0.5}, bool t = {0}>"),
    "a norm of each row": (_X, "y = LpNormalization <p = 1> (x)", ""),
    "an equation of each row": (
        "(float[n, 3] x) => (float[n, 4] y)", 'y = Einsum <equation = "bi,ij->bj"> (x, v)',
        _TABLE.replace(" w ", " v "),
    ),
    "a constant of a constant": (_X, "q = Sqrt(w) y = Add(x, q)", "<float[3] w = {1, 2, 3}>"),
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
    "divided by a function of the number of rows": (
        _X, "s = Shape <end = 1> (x) f = Cast <to = 1> (s) q = Sqrt(f) y = Div(x, q)", "",
    ),
    "divided by many copies of the number of rows": (
        "(float[n, 300000] x) => (float[n, 300000] y)",
        "s = Shape <end = 1> (x) f = Cast <to = 1> (s) c = Expand(f, k) y = Mul(x, c)", "<int64[1] k = {300000}>",
    ),
    "more than two rows": (
        _X, "s = Shape <end = 1> (x) g = Greater(s, k) q = Cast <to = 1> (g) y = Add(x, q)", "<int64[1] k = {2}>",
    ),
    "two rows at most": (
        _X, "s = Shape <end = 1> (x) m = Min(s, k) q = Cast <to = 1> (m) y = Add(x, q)", "<int64[1] k = {2}>",
    ),
    "added to the first row": (
        _X, "y = ScatterND <reduction = \"add\"> (x, i, u)", "<int64[1, 2] i = {0, 0}, float[1] u = {5}>",
    ),
    "multiplied in the second row": (
        _X, "y = ScatterElements <axis = 0, reduction = \"mul\"> (x, i, u)",
        "<int64[1, 1] i = {0}, float[1, 1] u = {5}>",
    ),
    "mean and variance of all": (_X, "y = MeanVarianceNormalization <axes = [0, 1]> (x)", ""),
    "a layer of all rows": (
        _X, "y = LayerNormalization <axis = 0> (x, s)", "<float[3] s = {1, 2, 3}>",
    ),
    "a sum over rows": (_X, 'y = Einsum <equation = "ij,kj->ij"> (x, x)', ""),
    "padded by the number of rows": (
        _X, "s = Shape <end = 1> (x) f = Cast <to = 1> (s) q = Squeeze(f) p = Pad(x, k, q) y = Slice(p, b, e, a)",
        "<int64[4] k = {0, 1, 0, 0}, int64[1] b = {0}, int64[1] e = {3}, int64[1] a = {1}>",
    ),
    "the places of maxima in all rows": (
        "(float[n, 1, 4, 4] x) => (int64[n, 1, 2, 2] y)",
        "z, y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)", "",
    ),
    "a softmax of as many elements as rows": (
        "(float[n, 6] x) => (float[n, 6] y)", "r = Reshape(x, k) t = Softmax <axis = 1> (r) y = Reshape(t, j)",
        "<int64[2] k = {6, -1}, int64[2] j = {-1, 6}>",
    ),
}  # fmt: skip
REFUSED = {
    "a norm over rows": (_X, "y = LpNormalization <axis = 0, p = 1> (x)", ""),
    "a norm of all rows of one number": ("(float[n] x) => (float[n] y)", "y = LpNormalization <p = 1> (x)", ""),
    "more than three rows": (
        _X, "s = Shape <end = 1> (x) g = Greater(s, k) q = Cast <to = 1> (g) y = Add(x, q)", "<int64[1] k = {3}>",
    ),
    "64 rows": (
        _X, "s = Shape <end = 1> (x) g = Greater(s, k) q = Cast <to = 1> (g) y = Add(x, q)", "<int64[1] k = {63}>",
    ),
    "dropped at random": (_X, "y = Dropout <seed = 3> (x, r, t)", "<float r = {0.5}, bool t = {1}>"),
    "drawn at random": (_X, "r = RandomUniformLike <seed = 3.0> (x) y = Add(x, r)", ""),
    "drawn with chances": (_X, "y = Bernoulli(x)", ""),
    "steps in time along rows": (
        "(float[n, 1, 2] x) => (float[n, 1, 1, 2] y)", "y = RNN <hidden_size = 2> (x, w, r)",
        "<float[1, 2, 2] w = {1, 2, 3, 4}, float[1, 2, 2] r = {1, 2, 3, 4}>",
    ),
    "an equation without an output": (_X, 'y = Einsum <equation = "ij"> (x)', ""),
    "an equation with the letter twice": (
        "(float[n, 3] x) => (float[n] y)", 'y = Einsum <equation = "ij,ik->i"> (x, i)', "<float[1, 3] i = {1, 2, 3}>",
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
    text = f'<ir_version: 8, opset_import: ["": 18]> m {signature} {weights} {{ {body} }}'
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

    return why_rows_mix(graph_of, 64)


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


@pytest.mark.parametrize("name", REFUSED)
def test_calls_that_draw_numbers_or_know_how_many_rows_there_are(name: str) -> None:
    assert reason(model_of(*REFUSED[name])) is not None


@pytest.mark.parametrize("name", OTHER_SIZES)
def test_outputs_that_have_no_rows_of_their_own(name: str) -> None:
    *model, says = OTHER_SIZES[name]
    assert says in (reason(model_of(*model)) or "")


def test_a_node_of_onnx_runtime_is_the_word_of_whoever_stores_it() -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    weights = "<float[1, 3, 2, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>"
    assert reason(model_of("(float[n, 3, 8, 8] x) => (float[n, 1, 7, 7] y)", "y = Conv(x, w)", weights)) is None
