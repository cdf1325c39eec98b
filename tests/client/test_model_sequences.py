"""Sequences and optional values within models, beside ONNX Runtime, which runs the models as they are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

import onnx
from onnx import TensorProto, helper, numpy_helper
from tensorpost import Client
from tensorpost.calls.model_calls import load_model, model_call
from tensorpost.problems import InvalidDescriptor

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.arange(12, dtype=np.float32).reshape(3, 4)
CONSTANTS: Mapping[str, Any] = {
    "zero": np.int64(0), "one": np.int64(1), "last": np.int64(-1), "three": np.int64(3),
    "sizes": np.array([1, 3], np.int64), "line": np.array([-1], np.int64), "half": np.array(0.5, np.float32),
    "true": np.array(True), "nan": np.array(np.nan, np.float32), "plane": np.array([[1]]),
}  # fmt: skip
node = helper.make_node


def model_of(nodes: list[Any], *outputs: str, opset: int = 17) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, ["n", "m"])],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items()],
    )  # fmt: skip
    made = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
    return onnx.shape_inference.infer_shapes(made)


def halves() -> onnx.ModelProto:
    """SequenceMap over two sequences and a tensor, with a constant of its own and one of the graph outside."""
    body = helper.make_graph(
        [node("Mul", ["part", "half"], ["m"]), node("Add", ["m", "other"], ["s"]), node("Sub", ["s", "whole"], ["d"]),
         node("Constant", [], ["k"], value_float=2.0), node("Add", ["d", "k"], ["out"]),
         node("Shape", ["part"], ["sizes_"])],
        "body",
        [helper.make_tensor_value_info(name, FLOAT, None) for name in ("part", "other", "whole")],
        [helper.make_tensor_value_info("out", FLOAT, None), helper.make_tensor_value_info("sizes_", INT64, None)],
    )  # fmt: skip
    return model_of(
        [
            node("SplitToSequence", ["x", "one"], ["parts"], axis=0),
            node("Neg", ["x"], ["n"]),
            node("SplitToSequence", ["n", "one"], ["others"], axis=0),
            node("ReduceMax", ["x"], ["whole"], keepdims=1),
            node("SequenceMap", ["parts", "others", "whole"], ["mapped", "shapes"], body=body),
            node("ConcatFromSequence", ["mapped"], ["y"], axis=1),
            node("ConcatFromSequence", ["shapes"], ["z"], axis=0, new_axis=1),
        ],
        "y", "z",
    )  # fmt: skip


def edited() -> onnx.ModelProto:
    return model_of(
        [
            node("Relu", ["x"], ["r"]),
            node("SequenceConstruct", ["x", "r"], ["two"]),
            node("Neg", ["x"], ["n"]),
            node("SequenceInsert", ["two", "n", "one"], ["three_"]),
            node("SequenceInsert", ["three_", "x"], ["four"]),
            node("SequenceErase", ["four", "zero"], ["rest"]),
            node("SequenceErase", ["rest"], ["end"]),
            node("SequenceLength", ["end"], ["length"]),
            node("SequenceAt", ["end", "last"], ["at"]),
            node("SequenceAt", ["end", "zero"], ["first"]),
            node("Add", ["at", "first"], ["y"]),
            node("Identity", ["length"], ["z"]),
        ],
        "y", "z",
    )  # fmt: skip


def split() -> onnx.ModelProto:
    return model_of(
        [
            node("SplitToSequence", ["x", "three"], ["by_three"], axis=-1),
            node("SequenceAt", ["by_three", "one"], ["y"]),
            node("SplitToSequence", ["x", "sizes"], ["by_sizes"], axis=1),
            node("SequenceAt", ["by_sizes", "last"], ["z"]),
            node("SplitToSequence", ["x"], ["rows"], axis=0, keepdims=0),
            node("ConcatFromSequence", ["rows"], ["w"], axis=0),
        ],
        "y", "z", "w",
    )  # fmt: skip


def computed_position() -> onnx.ModelProto:
    """The place of a tensor, and a size of a split, are computed from elements."""
    return model_of(
        [
            node("SplitToSequence", ["x", "one"], ["rows"], axis=0),
            node("ReduceMax", ["x"], ["most"], keepdims=0),
            node("Cast", ["most"], ["number"], to=INT64),
            node("Mod", ["number", "three"], ["place"]),
            node("SequenceAt", ["rows", "place"], ["row"]),
            node("Neg", ["row"], ["y"]),
        ],
        "y",
    )


def from_sizes() -> onnx.ModelProto:
    """What is chosen from elements, and how much, is split and joined again."""
    return model_of(
        [
            node("NonZero", ["x"], ["places"]),
            node("SplitToSequence", ["places", "one"], ["axes"], axis=0),
            node("SequenceAt", ["axes", "one"], ["columns"]),
            node("SequenceInsert", ["axes", "columns", "zero"], ["all"]),
            node("ConcatFromSequence", ["all"], ["y"], axis=0),
        ],
        "y",
    )


def own_names() -> onnx.ModelProto:
    """Tensors that are called like those that are made of the sequences, and of the branch that is taken."""
    graph = partial(helper.make_graph, inputs=[], outputs=[helper.make_tensor_value_info("u2", FLOAT, None)])
    choice: dict[str, Any] = {
        "then_branch": graph([node("Neg", ["x"], ["u"]), node("Exp", ["u"], ["u2"])], "then"),
        "else_branch": graph([node("Abs", ["x"], ["u"]), node("Exp", ["u"], ["u2"])], "other"),
    }
    numbers = {"parts/sizes": [3, 1], "parts/axis": [7], "expanded/1/parts/sizes": [2, 2], "expanded/4/half": 0.25}
    body = helper.make_graph(
        [node("Mul", ["part", "half"], ["twice"]), node("Add", ["twice", "half"], ["out"])], "body",
        [helper.make_tensor_value_info("part", FLOAT, None)], [helper.make_tensor_value_info("out", FLOAT, None)],
        [numpy_helper.from_array(np.array([3], np.float32), "half")],
    )  # fmt: skip
    constants = [
        node("Constant", [], [name], value=numpy_helper.from_array(np.array(value, np.float32)))
        for name, value in numbers.items()
    ]
    return model_of(
        [
            *constants,
            node("Abs", ["x"], ["parts/0"]),
            node("Sqrt", ["parts/0"], ["If/u"]),
            node("Exp", ["x"], ["expanded/1/parts/0"]),
            node("SplitToSequence", ["x", "one"], ["parts"], axis=0),
            node("SequenceMap", ["parts"], ["mapped"], body=body),
            node("ConcatFromSequence", ["mapped"], ["joined"], axis=0),
            node("If", ["true"], ["branch"], **choice),
            node("Sum", ["parts/0", "If/u", "expanded/1/parts/0", "joined", "branch", "parts/axis"], ["y"]),
            node("Concat", [*numbers][:3], ["z"], axis=0),
            node("NonZero", ["y"], ["places"]),
            node("SplitToSequence", ["places", "one"], ["later"], axis=0),
            node("SequenceAt", ["later", "zero"], ["rows"]),
            node("SequenceAt", ["parts", "last"], ["end"]),
            node("Gather", ["end", "rows"], ["none"], axis=1),
            node("Mul", ["none", "expanded/4/half"], ["w"]),
        ],
        "y", "z", "w", "rows",
    )  # fmt: skip


def optional() -> onnx.ModelProto:
    kind = helper.make_tensor_type_proto(FLOAT, None)
    return model_of(
        [
            node("Abs", ["x"], ["r"]),
            node("Optional", ["r"], ["maybe"]),
            node("Optional", [], ["none"], type=kind),
            node("OptionalHasElement", ["maybe"], ["y"]),
            node("OptionalHasElement", ["none"], ["z"]),
            node("OptionalGetElement", ["maybe"], ["element"]),
            node("Neg", ["element"], ["w"]),
        ],
        "y", "z", "w",
    )  # fmt: skip


def by_branch() -> onnx.ModelProto:
    """A branch that is known, which makes a sequence."""
    then = helper.make_graph(
        [node("SequenceConstruct", ["x", "x"], ["t"])], "then", [],
        [helper.make_tensor_sequence_value_info("t", FLOAT, None)],
    )  # fmt: skip
    other = helper.make_graph(
        [node("SequenceConstruct", ["x"], ["e"])], "other", [],
        [helper.make_tensor_sequence_value_info("e", FLOAT, None)],
    )  # fmt: skip
    return model_of(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["rows"]),
            node("Greater", ["rows", "one"], ["many"]),
            node("If", ["many"], ["list"], then_branch=then, else_branch=other),
            node("ConcatFromSequence", ["list"], ["y"], axis=0),
        ],
        "y",
    )


@pytest.mark.parametrize(
    "make",
    [halves, edited, split, computed_position, from_sizes, optional, by_branch, own_names],
    ids=lambda make: make.__name__,
)
def test_models_give_what_onnx_runtime_gives(server_url: str, make: Any) -> None:
    model = make()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with Client(server_url) as tp:
        for x in (X, X[:2], -X, X % 3):
            expected: list[NDArray[Any]] = session.run(None, {"x": x})  # pyright: ignore[reportAssignmentType] # of tensors
            found = tp.run_model(model, x)
            for array, wanted in zip(found.values(), expected, strict=True):
                if make is own_names:  # an Exp is within a unit in the last place, whoever computes it
                    np.testing.assert_allclose(array, wanted, rtol=1e-6, strict=True)
                    continue
                assert (array.dtype, array.shape) == (np.asarray(wanted).dtype, np.asarray(wanted).shape)
                assert array.tobytes() == np.asarray(wanted).tobytes()


def test_more_parts_than_split_takes_by_value(server_url: str) -> None:
    model = model_of(
        [
            node("SplitToSequence", ["x", "three"], ["parts"], axis=1),
            node("SequenceAt", ["parts", "last"], ["end"]),
            node("SequenceInsert", ["parts", "end", "zero"], ["more"]),
            node("ConcatFromSequence", ["more"], ["y"], axis=1),
        ],
        "y",
    )
    x = np.arange(1000, dtype=np.float32).reshape(2, 500)
    with Client(server_url) as tp:
        found = tp.run_model(model, x)
    assert found["y"].tolist() == np.concatenate([x[:, 498:], x], axis=1).tolist()


def test_they_cost_no_node() -> None:
    call = model_call(edited(), X, None)
    assert sorted([each["op_type"] for each in call.document["nodes"]]) == ["Add", "Identity", "Neg", "Relu"]


TAKEN = node("SequenceAt", ["s", "one"], ["y"])


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (node("SequenceConstruct", ["x"], ["s"]), node("Neg", ["s"], ["y"]), "'s' is a sequence or an optional value"),
        (node("Neg", ["x"], ["s"]), TAKEN, "'s', which is no sequence that a node before it makes"),
        (node("SequenceConstruct", ["x"], ["s"]), TAKEN, "the position 1 in a sequence of 1 place"),
        (
            node("SequenceEmpty", [], ["s"]),
            node("ConcatFromSequence", ["s"], ["y"], axis=0),
            "a sequence of no tensors",
        ),
        (node("SplitToSequence", ["x", "sizes"], ["s"]), TAKEN, r"splits 3 elements into \[1, 3\]"),
        (node("SplitToSequence", ["x"], ["s"], axis=2), TAKEN, "the axis 2 of 2 dimensions"),
        (node("Optional", [], ["o"]), node("OptionalGetElement", ["o"], ["y"]), "an optional value that has none"),
        (node("SequenceEmpty", [], ["s"]), node("Identity", [], ["y"]), r"node\[1\].*needs the input input"),
        (
            node("SequenceConstruct", ["x"], ["t"]),
            node("SequenceInsert", ["t"], ["y"]),
            r"the inputs \['t'\]; SequenceInsert takes 2 to 3",
        ),
        (node("SplitToSequence", [], ["s"]), TAKEN, r"the inputs \[\]; SplitToSequence takes 1 to 2"),
        (node("SequenceConstruct", ["x", ""], ["s"]), TAKEN, "SequenceConstruct takes 1 or more"),
        (node("SequenceEmpty", [], ["s"]), node("OptionalGetElement", [], ["y"]), "OptionalGetElement takes 1"),
        (node("SequenceConstruct", ["x"], ["s"]), node("SequenceAt", ["s"], ["y"]), "SequenceAt takes 2"),
        (node("SplitToSequence", ["x", "nan"], ["s"]), TAKEN, "'nan', the input 1 of .* is float32 of shape"),
        (node("SplitToSequence", ["x", "plane"], ["s"]), TAKEN, r"is int64 of shape \[1, 1\].*a line of numbers"),
        (node("SplitToSequence", ["x", "zero"], ["s"]), TAKEN, "splits 3 elements into parts of 0"),
        (
            node("SequenceConstruct", ["x"], ["s"]),
            node("SequenceAt", ["s", "nan"], ["y"]),
            "it must be int32 or int64, one number",
        ),
        (
            node("SequenceConstruct", ["x"], ["s"]),
            node("SequenceAt", ["s", "sizes"], ["y"]),
            r"is int64 of shape \[2\]; it must be",
        ),
        (node("SplitToSequence", ["x"], ["s"], axis=1.5), TAKEN, "the attribute axis of .* of another type than INT"),
        (node("SplitToSequence", ["x"], ["s"], axes=1), TAKEN, "has the attribute 'axes'; SplitToSequence has axis, "),
        (
            node("SequenceConstruct", ["x"], ["s"]),
            node("ConcatFromSequence", ["s"], ["y"]),
            "needs the attribute axis",
        ),
    ],
)
def test_what_is_wrong_is_named(first: Any, second: Any, words: str) -> None:
    graph = helper.make_graph(
        [first, second], "g", [helper.make_tensor_value_info("x", FLOAT, [3, 4])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items()],
    )  # fmt: skip
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])

    with pytest.raises(InvalidDescriptor, match=words):
        model_call(model, X, None)


def test_sequences_of_calls_are_refused_by_name() -> None:
    """Where a model is stored, or sent by HTTP; `run_model` takes and gives them."""
    graph = helper.make_graph(
        [node("SequenceConstruct", ["x"], ["made"])], "g", [helper.make_tensor_value_info("x", FLOAT, [3, 4])],
        [helper.make_tensor_sequence_value_info("made", FLOAT, None)],
    )  # fmt: skip
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])

    with pytest.raises(
        InvalidDescriptor, match=r"graph\.output\.made: 'made' is a sequence, a map or an optional value"
    ):
        load_model(model)


def test_sequences_that_become_too_many_nodes_are_refused() -> None:
    """A thousand rows, each mapped twice by a body of eight nodes."""
    names = [f"t{place}" for place in range(9)]
    inner = [node("Neg", [names[place]], [names[place + 1]]) for place in range(8)]
    body = helper.make_graph(
        inner, "body", [helper.make_tensor_value_info("t0", FLOAT, None)],
        [helper.make_tensor_value_info("t8", FLOAT, None)],
    )  # fmt: skip
    nodes = [
        node("SplitToSequence", ["x", "one"], ["rows"], axis=0),
        node("SequenceMap", ["rows"], ["once"], body=body),
        node("SequenceMap", ["once"], ["twice"], body=body),
        node("ConcatFromSequence", ["twice"], ["y"], axis=0),
    ]

    with pytest.raises(InvalidDescriptor, match="more than 10,000 nodes once its sequences are written out"):
        model_call(model_of(nodes, "y"), np.zeros((1000, 1), np.float32), None)
    with pytest.raises(InvalidDescriptor, match="makes a sequence of 1,025 tensors"):
        model_call(model_of(nodes, "y"), np.zeros((1025, 1), np.float32), None)


def test_the_constants_of_a_mapped_body_are_there_once() -> None:
    weights = [np.full(100, place, np.float32) for place in range(3)]
    body = helper.make_graph(
        [node("Sum", ["part", "w0", "w1", "w2"], ["out"])], "body",
        [helper.make_tensor_value_info("part", FLOAT, None)], [helper.make_tensor_value_info("out", FLOAT, None)],
        [numpy_helper.from_array(weight, f"w{place}") for place, weight in enumerate(weights)],
    )  # fmt: skip
    model = model_of(
        [
            node("SplitToSequence", ["x", "one"], ["rows"], axis=0),
            node("SequenceMap", ["rows"], ["sums"], body=body),
            node("ConcatFromSequence", ["sums"], ["y"], axis=0),
        ],
        "y",
    )
    call = model_call(model, np.zeros((50, 1), np.float32), None)
    assert len(call.arrays) == 1 + len(weights)


def test_copies_of_a_body_with_very_many_names_are_refused() -> None:
    body = helper.make_graph(
        [node("Sum", ["part"] * 500, ["out"])], "body", [helper.make_tensor_value_info("part", FLOAT, None)],
        [helper.make_tensor_value_info("out", FLOAT, None)],
    )  # fmt: skip
    nodes = [
        node("SplitToSequence", ["x", "one"], ["rows"], axis=0),
        node("SequenceMap", ["rows"], ["sums"], body=body),
        node("SequenceLength", ["sums"], ["y"]),
    ]
    with pytest.raises(InvalidDescriptor, match="the names of the tensors in 1000 copies of the body"):
        model_call(model_of(nodes, "y"), np.zeros((1000, 1), np.float32), None)


def test_what_splits_into_too_many_is_refused_before_memory_is_taken() -> None:
    model = model_of([node("SplitToSequence", ["x"], ["s"]), node("SequenceLength", ["s"], ["y"])], "y")
    x = np.zeros((1 << 21, 0), np.float32)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidDescriptor, match="makes a sequence of 2,097,152 tensors"):
            model_call(model, x, None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
