"""Which steps are fused, and that what is fused gives the bytes of its parts; drawn graphs are in tests/conformance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.conformance.test_graphs import node_by_node, outputs_of
from tests.support.graph_cases import layouts_of

from tensorpost.graphs.graph_document import read_graph
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.forms.expression import FUNCTIONS
from tensorpost_server.planning import Plan, make_plan

X = np.linspace(-4, 4, 96, dtype=np.float32).reshape(2, 3, 16)
HALF = {"half": {"dtype": "F32", "shape": [], "data": [0.5]}}


def onnx(name: str, op_type: str, inputs: Any, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "op_type": op_type, "opset": 21, "inputs": inputs, "attributes": attributes}


def planned(nodes: list[dict[str, Any]], *outputs: str, x: NDArray[Any] = X, constants: Any = None) -> Plan:
    """The plan, whose bytes are those of the nodes one after another."""
    named = {name: name for name in outputs or (nodes[-1]["name"],)}
    document = {"inputs": {"x": {}}, "constants": constants or {}, "nodes": nodes, "outputs": named}
    graph = read_graph(document, layouts_of({"x": x}))
    expected = node_by_node(NumpyBackend(), graph, [x.tobytes()])
    assert outputs_of(NumpyBackend(), graph, [x.tobytes()], 1 << 20) == expected
    assert outputs_of(NumpyBackend(), graph, [x.tobytes()], 100) == expected
    return make_plan(graph, 1 << 20)


def names(plan: Plan) -> list[str]:
    return [f"{step.name} {type(step.form).__name__}" for step in plan.steps]


def test_a_chain_is_one_step_that_holds_nothing():
    nodes = [
        onnx("a", "Mul", ["x", "half"]), onnx("b", "Relu", ["a"]), onnx("c", "Sigmoid", ["b"]),
        onnx("d", "Tanh", ["c"]),
        onnx("e", "Add", ["d", "half"]),
    ]  # fmt: skip

    plan = planned(nodes, constants=HALF)

    assert names(plan) == ["e Pointwise"]
    assert (plan.stages, plan.held_bytes) == ((), 0)


def test_a_conversion_comes_first_and_last():
    x = np.arange(48, dtype=np.uint8).reshape(3, 16)
    nodes = [
        onnx("f", "Cast", ["x"], to="float32"), onnx("y", "Mul", ["f", "half"]), onnx("h", "Cast", ["y"], to="float16"),
    ]  # fmt: skip

    assert names(planned(nodes, x=x, constants=HALF)) == ["h Pointwise"]


def test_a_float16_is_rounded_though_it_never_leaves():
    nodes = [
        onnx("h", "Cast", ["x"], to="float16"), onnx("y", "Mul", ["h", "h"]), onnx("f", "Cast", ["y"], to="float32"),
        onnx("z", "Exp", ["f"]),
    ]  # fmt: skip

    assert names(planned(nodes)) == ["h Pointwise", "y Pointwise", "z Pointwise"]


def test_what_several_read_and_what_is_sent_is_computed_once():
    shared = [onnx("a", "Exp", ["x"]), onnx("b", "Neg", ["a"]), onnx("c", "Add", ["a", "b"])]

    assert names(planned(shared)) == ["a Pointwise", "c Pointwise"]
    assert names(planned(shared[:2], "a", "b")) == ["a Pointwise", "b Pointwise"]


def test_other_types_and_broadcast_results_are_not_fused():
    integers = [onnx("a", "Add", ["x", "x"]), onnx("b", "Mul", ["a", "a"])]
    row = [onnx("r", "ReduceSum", {"data": "x", "axes": [2]}), onnx("n", "Neg", ["r"]), onnx("y", "Sub", ["x", "n"])]

    assert len(planned(integers, x=np.arange(6, dtype=np.int32)).steps) == 2
    assert names(planned(row)) == ["r Lines", "n Pointwise", "y Pointwise"]


def test_erf_of_a_narrow_result_is_not_fused():
    nodes = [onnx("e", "Erf", ["x"]), onnx("h", "Cast", ["e"], to="float16")]

    assert len(planned(nodes).steps) == 2


@pytest.mark.parametrize(("op_type", "steps"), [("Tanh", 2), ("Sigmoid", 30)])
def test_a_long_chain_is_cut(op_type: str, steps: int):
    """Of at most 40 functions: a Sigmoid has 6, and its operand three times."""
    nodes = [onnx(f"n{at}", op_type, [f"n{at - 1}" if at else "x"]) for at in range(60)]

    assert len(planned(nodes).steps) == steps


def test_element_wise_nodes_come_before_copies_that_repeat():
    nodes = [
        {"name": "t", "type": "TILE", "inputs": "x", "desc": {"Repeats": [3, 1, 2]}},
        onnx("y", "Mul", ["t", "half"]),
        onnx("z", "Exp", ["y"]),
    ]

    plan = planned(nodes, constants=HALF)

    assert names(plan) == ["z Pointwise", "z Copies"]
    assert plan.held_bytes == X.nbytes


def test_they_stay_where_they_have_fewer_elements():
    nodes = [onnx("s", "Slice", {"data": "x", "starts": [0], "ends": [1], "axes": [1]}), onnx("y", "Exp", ["s"])]

    assert names(planned(nodes)) == ["s Copies", "y Pointwise"]


def test_what_is_filled_is_not_computed_before_it_is():
    nodes = [onnx("p", "Pad", {"data": "x", "pads": [0, 0, 1, 0, 0, 1]}), onnx("y", "Exp", ["p"])]

    assert names(planned(nodes)) == ["p Copies", "y Pointwise"]


def test_a_small_tensor_becomes_a_huge_one_in_little_memory():
    x = np.zeros(1 << 20, np.uint8)
    nodes = [
        {"name": "t", "type": "TILE", "inputs": "x", "desc": {"Repeats": [2560]}},
        onnx("f", "Cast", ["t"], to="float32"), onnx("y", "Mul", ["f", "half"]),
    ]  # fmt: skip
    document = {"inputs": {"x": {}}, "constants": HALF, "nodes": nodes, "outputs": {"y": "y"}}

    plan = make_plan(read_graph(document, layouts_of({"x": x})), 4 << 20)

    assert (plan.output_bytes, plan.held_bytes) == (10 << 30, 4 << 20)


def test_what_a_formula_reads_several_times_is_computed_once(monkeypatch: pytest.MonkeyPatch):
    document = {
        "inputs": {"x": {}}, "nodes": [onnx("a", "Floor", ["x"]), onnx("b", "Sigmoid", ["a"])], "outputs": {"b": "b"},
    }  # fmt: skip
    graph = read_graph(document, layouts_of({"x": X}))
    made: list[int] = []
    floor = replace(FUNCTIONS["floor"], numpy=lambda _, x: made.append(1) or np.floor(x))
    monkeypatch.setitem(FUNCTIONS, "floor", floor)

    outputs_of(NumpyBackend(), graph, [X.tobytes()], 1 << 20)

    assert len(made) == 1


SLICE = onnx("s", "Slice", {"data": "x", "starts": [1, 3], "ends": [3, 14], "axes": [1, 2]})
TILE = {"name": "t", "type": "TILE", "inputs": "x", "desc": {"Repeats": [1, 1, 2]}}
PAD = onnx("p", "Pad", {"data": "x", "pads": [0, 1, 2, 0, 0, 3]})


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([SLICE, onnx("y", "Transpose", ["s"], perm=[2, 0, 1])], X[:, 1:3, 3:14].transpose(2, 0, 1)),
        ([onnx("a", "Transpose", ["x"], perm=[2, 0, 1]), onnx("y", "Transpose", ["a"], perm=[1, 0, 2])],
         X.transpose(0, 2, 1)),
        ([TILE, onnx("y", "Slice", {"data": "t", "starts": [5], "ends": [29], "axes": [2]})],
         np.tile(X, 2)[..., 5:29]),
        ([TILE, onnx("y", "Transpose", ["t"], perm=[0, 2, 1])], np.tile(X, 2).transpose(0, 2, 1)),
        ([PAD, onnx("y", "Slice", {"data": "p", "starts": [0, 1], "ends": [3, 20], "axes": [1, 2]})],
         np.pad(X, [(0, 0), (1, 0), (2, 3)])[:, :3, 1:20]),
        ([onnx("a", "Slice", {"data": "x", "starts": [-1], "ends": [-99], "axes": [2], "steps": [-3]}),
          onnx("b", "Transpose", ["a"], perm=[2, 1, 0]), onnx("y", "Slice", {"data": "b", "starts": [1], "ends": [5]})],
         X[..., ::-3].transpose(2, 1, 0)[1:5]),
        ([onnx("a", "Transpose", ["x"], perm=[1, 0, 2]), onnx("r", "Reshape", {"data": "a", "shape": [3, 2, 1, 4, 4]}),
          onnx("y", "Transpose", ["r"], perm=[4, 3, 2, 1, 0])],
         X.transpose(1, 0, 2).reshape(3, 2, 1, 4, 4).transpose(4, 3, 2, 1, 0)),
        ([onnx("a", "Transpose", ["x"], perm=[1, 0, 2]), onnx("b", "Transpose", ["x"], perm=[1, 0, 2]),
          onnx("c", "Concat", ["a", "b"], axis=0), onnx("y", "Slice", {"data": "c", "starts": [2], "ends": [5]})],
         np.concatenate([X.transpose(1, 0, 2)] * 2)[2:5]),
    ],
)  # fmt: skip
def test_copies_of_copies_are_one_step(nodes: list[dict[str, Any]], expected: NDArray[Any]):
    plan = planned(nodes)

    assert names(plan) == ["y Copies"]
    (form,) = [step.form for step in plan.steps]
    out = np.empty(expected.shape, np.float32)
    sources = [X.reshape(slot.layout.sizes) for slot in plan.steps[0].inputs]
    form.fill(np, sources, tuple([(0, size) for size in expected.shape]), out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("why", "nodes"),
    [
        ("a transpose would be made for each repeat",
         [onnx("a", "Transpose", ["x"], perm=[2, 1, 0]), {**TILE, "inputs": "a"}]),
        ("there are two fill values",
         [onnx("a", "Pad", {"data": "x", "pads": [0, 0, 1, 0, 0, 1], "constant_value": "half"}), {**PAD, "inputs": {
             "data": "a", "pads": [0, 1, 0, 0, 0, 0]}}]),
        ("an axis is made of two that lie apart",
         [onnx("a", "Transpose", ["x"], perm=[1, 0, 2]), onnx("r", "Reshape", {"data": "a", "shape": [6, 16]}),
          onnx("y", "Transpose", ["r"], perm=[1, 0])]),
    ],
)  # fmt: skip
def test_other_copies_stay_apart(why: str, nodes: list[dict[str, Any]]):
    assert len(planned(nodes, constants=HALF if "half" in str(nodes) else None).steps) == 2, why


def test_copies_that_several_read_are_made_once():
    nodes = [SLICE, onnx("y", "Transpose", ["s"], perm=[2, 0, 1]), onnx("z", "Transpose", ["s"], perm=[1, 0, 2])]

    assert names(planned(nodes, "y", "z")) == ["s Copies", "y Copies", "z Copies"]


def test_a_reshape_is_no_step():
    nodes = [
        onnx("r", "Reshape", {"data": "x", "shape": [6, 16]}), onnx("e", "Exp", ["r"]), onnx("i", "Identity", ["e"]),
        onnx("f", "Flatten", ["i"], axis=0), onnx("n", "Neg", ["f"]),
        onnx("y", "Unsqueeze", {"data": "n", "axes": [0]}),
    ]  # fmt: skip

    plan = planned(nodes)

    assert names(plan) == ["e Pointwise", "n Pointwise", "y Copies"]  # outputs have their own sizes
    assert plan.outputs[0].layout.sizes == (1, 1, 96)


def test_a_reshape_of_an_input_is_sent_as_it_is():
    assert names(planned([onnx("y", "Reshape", {"data": "x", "shape": [96]})])) == ["y Copies"]
    assert names(planned([onnx("r", "Reshape", {"data": "x", "shape": [96]}), onnx("y", "Exp", ["r"])], "r", "y")) == [
        "r Copies", "y Pointwise",
    ]  # fmt: skip


def mean(of: str, *axes: int, keepdims: int = 1) -> dict[str, Any]:
    return onnx("y", "ReduceMean", {"data": of, "axes": [*axes]}, keepdims=keepdims)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_reduction_of_an_expression_is_one_step(keepdims: int):
    nodes = [onnx("m", "Mul", ["x", "half"]), onnx("s", "Mul", ["m", "m"]), mean("s", 1, 2, keepdims=keepdims)]

    plan = planned(nodes, constants=HALF)

    assert names(plan) == ["y FusedLines" if keepdims else "y SqueezedLines"]
    assert (plan.stages, plan.held_bytes) == ((), 0)
    assert plan.scratch_bytes >= X.nbytes  # a line of each half of it
    (made,) = outputs_of(NumpyBackend(), plan.graph, [X.tobytes()], 1 << 20)
    expected = ((X / 2) ** 2).mean((1, 2), dtype=np.float64)
    np.testing.assert_allclose(np.frombuffer(made, np.float32), expected, rtol=1e-6)


def test_a_variance_is_two_steps():
    nodes = [
        {**mean("x", 2), "name": "m"}, onnx("d", "Sub", ["x", "m"]), onnx("s", "Mul", ["d", "d"]), mean("s", 2),
    ]  # fmt: skip

    plan = planned(nodes)

    assert names(plan) == ["m Lines", "y FusedLines"]
    (made,) = outputs_of(NumpyBackend(), plan.graph, [X.tobytes()], 1 << 20)
    np.testing.assert_allclose(np.frombuffer(made, np.float32), X.var(2, dtype=np.float64).reshape(-1), rtol=1e-5)


@pytest.mark.parametrize(
    ("why", "nodes"),
    [
        ("its intermediate is rounded", [onnx("s", "Cast", ["x"], to="float16"), mean("s", 2)]),
        ("there are no loops for it", [onnx("s", "Abs", ["x"]), {**mean("s", 2), "op_type": "ReduceL2"}]),
        ("nothing is reduced alone", [onnx("s", "Abs", ["x"]), onnx("y", "Softmax", ["s"], axis=2)]),
    ],
)
def test_other_reductions_stay_apart(why: str, nodes: list[dict[str, Any]]):
    assert len(planned(nodes).steps) == 2, why


@pytest.mark.parametrize(
    ("shape", "axis", "fused"),
    [((4, 1 << 18), 1, True), ((4, (1 << 18) + 1), 1, False), ((2048, 128), 0, True), ((2049, 128), 0, False),
     ((4096, 8), 0, True)],
)  # fmt: skip
def test_lines_that_leave_the_cache_are_not_fused(shape: tuple[int, int], axis: int, fused: bool):
    x = np.zeros(shape, np.float32)
    document = {"inputs": {"x": {}}, "nodes": [onnx("s", "Abs", ["x"]), mean("s", axis)], "outputs": {"y": "y"}}

    plan = make_plan(read_graph(document, layouts_of({"x": x})), 1 << 20)

    assert len(plan.steps) == (1 if fused else 2)


def test_a_product_of_a_tensor_with_itself_reads_it_once():
    plan = planned([onnx("a", "Neg", ["x"]), onnx("y", "Mul", ["a", "a"])])

    assert names(plan) == ["y Pointwise"]
    assert len(plan.steps[0].inputs) == 1
