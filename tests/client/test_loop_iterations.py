"""Loops whose iterations are written out, since sizes change with them, beside ONNX Runtime, which runs the models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from tests.support.live_server import default_server

import onnx
from onnx import parser
from tensorpost import Client
from tensorpost.calls.model_calls import model_call
from tensorpost.problems import InvalidDescriptor

X = np.random.default_rng(8).standard_normal((3, 4)).astype(np.float32)
INPUTS: Mapping[str, NDArray[Any]] = {"x": X}


def model(body: str) -> onnx.ModelProto:
    """A model from the text of its graph's nodes, which makes y of x."""
    text = f'<ir_version: 8, opset_import: ["": 17]> loops (float[3, 4] x) => (float[p, q] y) {{ {body} }}'
    made: onnx.ModelProto = parser.parse_model(text)
    return made


def loop(nodes: str, *, count: int = 3, state: str = "float[p, q] s", after: str = "float[p, q] t") -> str:
    """The nodes of a Loop that begins with x, and of its body, which makes t of s."""
    return f"""
        count = Constant <value_int: int = {count}> ()
        y = Loop (count, "", x) <body = step (int64 i, bool more, {state}) => (bool more_out, {after})
            {{ more_out = Identity (more) {nodes} }}>"""


GROWS = loop("t = Concat <axis = 0> (s, x)")
SLICES = loop("""
    one = Constant <value_ints = [1]> () from = Reshape (i, one) to = Add (from, one)
    row = Slice (x, from, to) t = Add (s, row)""")
COUNTS = loop("n = Cast <to = 1> (i) t = Add (s, n)", count=4)
SHRINKS = loop("""
    first = Constant <value_ints = [0]> () last = Constant <value_ints = [-1]> () one = Constant <value_ints = [1]> ()
    t = Slice (s, first, last, one)""")
NESTED = loop(
    """
    two = Constant <value_int = 2> ()
    t = Loop (two, "", s) <body = inner (int64 j, bool on, float[p, q] u) => (bool on_out, float[p, q] v)
        { on_out = Identity (on) v = Concat <axis = 1> (u, x) }>""",
    count=1,
)
STACKS = """
    yes = Constant <value = bool {1}> () four = Constant <value_int = 4> ()
    y = Loop ("", yes) <body = step (int64 i, bool more) => (bool more_out, float[p, q] t)
        { more_out = Less (i, four) n = Cast <to = 1> (i) t = Mul (x, n) }>"""
GROWS_AND_STACKS = """
    count = Constant <value_int = 3> ()
    last, all = Loop (count, "", x) <body = step (int64 i, bool more, float[p, q] s)
        => (bool more_out, float[p, q] t, float sum)
        { more_out = Identity (more) t = Concat <axis = 0> (s, x) sum = ReduceSum <keepdims = 0> (t) }>
    axes = Constant <value_ints = [1]> () y = Unsqueeze (all, axes)"""
ENDS = """
    count = Constant <value_int = 9> () yes = Constant <value = bool {1}> () two = Constant <value_int = 2> ()
    y = Loop (count, yes, x) <body = step (int64 i, bool more, float[p, q] s) => (bool more_out, float[p, q] t)
        { more_out = Less (i, two) t = Concat <axis = 0> (s, x) }>"""
NEVER = """
    count = Constant <value_int = 9> () no = Constant <value = bool {0}> ()
    y = Loop (count, no, x) <body = step (int64 i, bool more, float[p, q] s) => (bool more_out, float[p, q] t)
        { more_out = Identity (more) t = Concat <axis = 0> (s, x) }>"""
OF_SEQUENCES = """
    empty = SequenceEmpty <dtype: int = 1> () count = Constant <value_int: int = 3> ()
    list = Loop (count, "", empty) <body = step (int64 i, bool more, seq(float) s)
        => (bool more_out, seq(float) t)
        { more_out = Identity (more) n = Cast <to = 1> (i) row = Mul (x, n) t = SequenceInsert (s, row) }>
    y = ConcatFromSequence <axis: int = 0> (list)"""
OF_DATA = loop(
    """
    places = NonZero (s) n = Size (places) f = Cast <to = 1> (n) t = Add (s, f)""",
    count=2,
)


@pytest.fixture(scope="module")
def tp() -> Iterator[Client]:
    with default_server() as url, Client(url) as client:
        yield client


def by_runtime(made: onnx.ModelProto, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"])
    (found,) = session.run(None, dict(inputs))
    return np.asarray(found)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=name)
        for name, text in {
            "grows": GROWS, "slices": SLICES, "counts": COUNTS, "shrinks": SHRINKS, "nested": NESTED,
            "stacks": STACKS, "grows and stacks": GROWS_AND_STACKS,
            "ends": ENDS, "never": NEVER, "sequences": OF_SEQUENCES, "data": OF_DATA,
        }.items()
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", [None, "numpy"])
def test_loops_give_what_onnx_runtime_gives(tp: Client, text: str, backend: str | None) -> None:
    made = model(text)
    found, wanted = tp.run_model(made, INPUTS, backend=backend)["y"], by_runtime(made, INPUTS)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_a_loop_that_keeps_its_sizes_stays_a_loop() -> None:
    """ONNX Runtime computes it, as often as it says."""
    call = model_call(model(COUNTS), INPUTS, None)
    assert [each["op_type"] for each in call.document["nodes"]] == ["Loop"]


def test_a_number_of_iterations_that_is_computed_is_computed_first(tp: Client) -> None:
    """The sum of x, which is 5, says how often x is appended."""
    made = model("""
        sum = ReduceSum <keepdims = 0> (x) count = Cast <to = 7> (sum)
        y = Loop (count, "", x) <body = step (int64 i, bool more, float[p, q] s) => (bool more_out, float[p, q] t)
            { more_out = Identity (more) t = Concat <axis = 0> (s, x) }>""")
    x = np.zeros((3, 4), np.float32)
    x[0] = [1, 2, 0, 2]
    assert tp.run_model(made, {"x": x})["y"].tolist() == np.tile(x, (6, 1)).tolist()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (loop("t = Concat <axis = 0> (s, x)", count=20_000), "before an iteration"),
        (loop('t = Odd <a: int = 1> (s)'), "in the body of"),
        (STACKS.replace("Less (i, four)", "Greater (i, i)").replace("bool {1}", "bool {0}"), "whose number depends"),
    ],
    ids=["too many", "no operator", "nothing to stack"],
)  # fmt: skip
def test_what_is_not_written_out_is_refused_for_what_it_is(text: str, words: str) -> None:
    with pytest.raises(InvalidDescriptor, match=words):
        model_call(model(text), INPUTS, None)


def test_loops_within_loops_have_an_end() -> None:
    inner = 'w = Loop (many, "", s) <body = inner (int64 j, bool on, float[p, q] u) => (bool on_out, float[p, q] v) '
    inner += "{ on_out = Identity (on) v = Concat <axis = 1> (u, x) }>"
    text = loop(f"many = Constant <value_int = 3000> () {inner} t = Identity (w)", count=3000)
    with pytest.raises(InvalidDescriptor, match=r"in the body of .*before an iteration"):
        model_call(model(text), INPUTS, None)
