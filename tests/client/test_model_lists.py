"""Models whose inputs and outputs are sequences and optional values: worked by hand, and beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from tests.support.live_server import default_server

import onnx
from onnx import parser
from tensorpost import AsyncClient, Client
from tensorpost.calls.model_calls import load_model
from tensorpost.problems import InvalidDescriptor, InvalidParameter


def floats(*values: Any) -> NDArray[Any]:
    return np.array(values, np.float32)


A, B = floats(1, -2), floats(3, 4, 5)


def model(signature: str, nodes: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> lists {signature} {{ {nodes} }}')


INSERT = model("(seq(float) s, float[n] x) => (seq(float) y)", "y = SequenceInsert (s, x)")
SPLIT = model(
    "(float[n] x) => (seq(float) y, float[n] z)",
    "sizes = Constant <value_ints = [2, 1]> () y = SplitToSequence <axis: int = 0> (x, sizes) z = Neg (x)",
)
OPTIONAL = model(
    "(optional(float[n]) o, float[n] x) => (bool there, float[n] z)",
    """there = OptionalHasElement (o)
       z = If (there) <then_branch = a () => (float[n] t) { e = OptionalGetElement (o) t = Add (e, x) },
                       else_branch = b () => (float[n] f) { f = Neg (x) }>""",
)
OPTIONAL_LIST = model("(optional(seq(float)) o) => (int64 n)", "s = OptionalGetElement (o) n = SequenceLength (s)")
WRAPPED = model("(float[n] x) => (optional(float[n]) y, float[n] z)", "y = Optional (x) z = Identity (x)")
LENGTH = model("(seq(float) s) => (int64 n)", "n = SequenceLength (s)")
COMPUTED = model(
    "(seq(float) s, float[n] x) => (seq(float) y)", "p = NonZero (x) f = Cast <to = 1> (p) y = SequenceInsert (s, f)"
)


@pytest.fixture(scope="module")
def tp() -> Iterator[Client]:
    with default_server() as url, Client(url) as client:
        yield client


def listed(found: Any) -> list[list[float]]:
    return [each.tolist() for each in found]


def test_a_sequence_in_and_out(tp: Client) -> None:
    found = tp.run_model(INSERT, {"s": [A, B], "x": floats(7)})
    assert listed(found["y"]) == [[1, -2], [3, 4, 5], [7]]
    session = onnxruntime.InferenceSession(INSERT.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"s": [A, B], "x": floats(7)})
    assert listed(found["y"]) == listed(wanted)


def test_a_sequence_without_elements(tp: Client) -> None:
    assert listed(tp.run_model(INSERT, {"s": [], "x": A})["y"]) == [[1, -2]]
    assert tp.run_model(LENGTH, [])["n"] == 0
    assert tp.run_model(LENGTH, [A, B])["n"] == 2  # the only input may be given by itself
    with pytest.raises(InvalidDescriptor, match="the outputs have no tensors"):
        tp.run_model(model("(seq(float) s) => (seq(float) y)", "y = Identity (s)"), {"s": []})


def test_tensors_beside_a_sequence(tp: Client) -> None:
    found = tp.run_model(SPLIT, {"x": B})
    assert [*found] == ["y", "z"]
    assert listed(found["y"]) == [[3, 4], [5]]
    assert found["z"].tolist() == [-3, -4, -5]
    assert [*tp.run_model(SPLIT, {"x": B}, outputs=["z"])] == ["z"]


@pytest.mark.parametrize(
    ("inputs", "there", "wanted"),
    [
        ({"o": floats(10, 20), "x": A}, True, [11, 18]),
        ({"o": None, "x": A}, False, [-1, 2]),
        ({"x": A}, False, [-1, 2]),
    ],
)
def test_an_optional_value(tp: Client, inputs: Any, there: bool, wanted: list[float]) -> None:
    found = tp.run_model(OPTIONAL, inputs)
    assert bool(found["there"]) is there
    assert found["z"].tolist() == wanted


def test_an_optional_sequence_and_an_optional_output(tp: Client) -> None:
    assert tp.run_model(OPTIONAL_LIST, {"o": [A, B, A]})["n"] == 3
    found = tp.run_model(WRAPPED, {"x": A})
    assert (found["y"].tolist(), found["z"].tolist()) == ([1, -2], [1, -2])


async def of_async(url: str) -> Any:
    async with AsyncClient(url) as client:
        return await client.run_model(INSERT, {"s": [A], "x": B})


def test_the_asynchronous_client() -> None:
    import asyncio

    with default_server() as url:
        assert listed(asyncio.run(of_async(url))["y"]) == [[1, -2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("made", "inputs", "words"),
    [
        (INSERT, {"s": A, "x": A}, "is a sequence: give a list of tensors, not ndarray"),
        (INSERT, {"x": A}, "is missing; it is a sequence"),
        (INSERT, {"s": [A] * 1025, "x": A}, r"a sequence of 1,025 tensors"),
        (INSERT, {"s": [A], "x": A, "z": A}, "no input 'z'"),
        (COMPUTED, {"s": [A], "x": A}, "all of its inputs and outputs must be tensors"),
    ],
)
def test_what_is_wrong_is_named(tp: Client, made: onnx.ModelProto, inputs: Any, words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        tp.run_model(made, inputs)


def test_memory_and_kept_outputs_are_for_tensors(tp: Client) -> None:
    with pytest.raises(InvalidParameter, match="out and keep are for outputs that are tensors"):
        tp.run_model(INSERT, {"s": [A], "x": A}, keep=True)
    with pytest.raises(InvalidParameter, match="out and keep are for outputs that are tensors"):
        tp.run_model(INSERT, {"s": [A], "x": A}, out={"y": A})


def test_elsewhere_they_are_refused() -> None:
    """A stored model and POST /v1/onnx have tensors only."""
    with pytest.raises(InvalidDescriptor, match="'s' is a sequence, a map or an optional value"):
        load_model(INSERT)
