"""`DML_GRAPH_DESC` as JSON: its rules 1 to 17, each kept and broken, and both wordings of one graph."""

from __future__ import annotations

import base64
import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.conformance.test_graphs import outputs_of
from tests.support.graph_cases import drawn_graph

from tensorpost import from_dml_graph, to_dml_graph
from tensorpost.descriptors import FeatureLevel
from tensorpost.graphs.graph_document import input_names, read_graph
from tensorpost.problems import InvalidDescriptor, TensorpostError, UnsupportedAtLevel
from tensorpost.values.datatypes import data_type
from tensorpost.values.graph import GraphConstant, GraphInput, NodeOutput
from tensorpost.values.layout import Layout
from tensorpost.values.problems import json_path
from tensorpost_server.backends.numpy_ import NumpyBackend

Document = dict[str, Any]


def tensor(*sizes: int, kind: str = "FLOAT32", **more: Any) -> Document:
    return {"DataType": kind, "Sizes": list(sizes), **more}


def operator(kind: str, **desc: Any) -> Document:
    return {
        "Type": "DML_GRAPH_NODE_TYPE_OPERATOR",
        "Desc": {"Operator": {"type": kind, "desc": desc}, "Name": kind.lower()},
    }


def constant(data: bytes) -> Document:
    return {"Type": "CONSTANT", "Desc": {"Data": base64.b64encode(data).decode(), "DataSize": len(data)}}


def into(index: int, node: int, place: int) -> Document:
    return {"Type": "INPUT", "Desc": {"GraphInputIndex": index, "ToNodeIndex": node, "ToNodeInputIndex": place}}


def out(node: int, place: int, index: int) -> Document:
    desc = {"FromNodeIndex": node, "FromNodeOutputIndex": place, "GraphOutputIndex": index}
    return {"Type": "DML_GRAPH_EDGE_TYPE_OUTPUT", "Desc": desc}


def between(source: int, output: int, node: int, place: int) -> Document:
    desc = {"FromNodeIndex": source, "FromNodeOutputIndex": output, "ToNodeIndex": node, "ToNodeInputIndex": place}
    return {"Type": "INTERMEDIATE", "Desc": desc}


def add(*sizes: int, **b: Any) -> Document:
    return operator(
        "ELEMENT_WISE_ADD", ATensor=tensor(*sizes), BTensor=tensor(*sizes, **b), OutputTensor=tensor(*sizes)
    )


def relu(*sizes: int, **more: Any) -> Document:
    return operator("ACTIVATION_RELU", InputTensor=tensor(*sizes, **more), OutputTensor=tensor(*sizes))


def graph(nodes: list[Any], inputs: list[Any], outputs: list[Any], middle: list[Any], **more: Any) -> Document:
    indices = {edge["Desc"]["GraphInputIndex"] for edge in inputs}
    return {"InputCount": len(indices), "OutputCount": len(outputs), "Nodes": nodes, "InputEdges": inputs,
            "OutputEdges": outputs, "IntermediateEdges": middle, **more}  # fmt: skip


def chain() -> Document:
    """y = relu(x + b), with b a constant of 6 numbers."""
    b = np.array([-9, 1, -9, 1, -9, 1], np.float32)
    return graph(
        [relu(2, 3), add(2, 3), constant(b.tobytes())], [into(0, 1, 0)], [out(0, 0, 0)],
        [between(1, 0, 0, 0), between(2, 0, 1, 1)],
    )  # fmt: skip


def run(document: Document, *inputs: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    sent = {
        name: Layout.row_major(data_type(array.dtype), array.shape)
        for name, array in zip(input_names(document), inputs, strict=True)
    }
    read = read_graph(document, sent)
    made = outputs_of(NumpyBackend(), read, [array.tobytes() for array in inputs], 1 << 20)
    slots = read.output_slots
    return [
        np.frombuffer(data, slot.layout.data_type.dtype).reshape(slot.layout.sizes)
        for slot, data in zip(slots, made, strict=True)
    ]


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_graph_in_any_order_of_nodes_is_computed():
    (y,) = run(chain(), X)

    np.testing.assert_array_equal(y, [[0, 2, 0], [4, 0, 6]])
    read = read_graph(chain(), None)
    assert [(node.name, node.inputs) for node in read.nodes] == [
        ("element_wise_add", (GraphInput(0), GraphConstant(0))),
        ("activation_relu", (NodeOutput(0, 0),)),
    ]
    assert read.output_names == ("output_0",)


def test_counts_that_are_given_are_those_of_the_arrays():
    counts = {"NodeCount": 3, "InputEdgeCount": 1, "OutputEdgeCount": 1, "IntermediateEdgeCount": 2}
    read_graph(chain() | counts, None)
    for name in counts:
        refused(chain() | {name: 7}, f"$.{name}", "is 7, and ")


def refused(document: Any, path: str, words: str, level: FeatureLevel = FeatureLevel.L6_4) -> None:
    with pytest.raises(InvalidDescriptor) as caught:
        read_graph(document, None, level=level)
    found = [(json_path(each.path), each.message) for each in caught.value.violations]
    assert any(where.startswith(path) and words in message for where, message in found), found


def changed(change: Callable[[Document], object], document: Document | None = None) -> Document:
    made = copy.deepcopy(chain() if document is None else document)
    change(made)
    return made


def connected(document: Document, index: int, **numbers: int) -> Document:
    document["IntermediateEdges"][index]["Desc"].update(numbers)
    return document


OWNED: Document = {"Flags": "OWNED_BY_DML"}
GRU_SIZES: Document = {
    "InputTensor": tensor(1, 1, 1, 2), "WeightTensor": tensor(1, 1, 6, 2), "RecurrenceTensor": tensor(1, 1, 6, 2),
    "OutputSingleTensor": tensor(1, 1, 1, 2), "ActivationDescCount": 2, "Direction": "FORWARD",
    "ActivationDescs": [{"Type": "ACTIVATION_SIGMOID", "Desc": {}}, {"Type": "ACTIVATION_TANH", "Desc": {}}],
    "LinearBeforeReset": False,
}  # fmt: skip
RULES: dict[str, tuple[Document, str, str]] = {
    "1, a circle": (
        graph([add(2, 3), relu(2, 3)], [into(0, 0, 0)], [out(1, 0, 0)], [between(0, 0, 1, 0), between(1, 0, 0, 1)]),
        "$.IntermediateEdges",
        "form a cycle",
    ),
    "2, an input": (
        graph([add(2, 3)], [into(0, 0, 0)], [out(0, 0, 0)], []),
        "$.Nodes[0]",
        "BTensor of 'element_wise_add' is not connected",
    ),
    "2, an output": (
        graph([relu(2, 3), relu(2, 3)], [into(0, 0, 0), into(0, 1, 0)], [out(0, 0, 0)], []),
        "$.Nodes[1]",
        "OutputTensor of 'activation_relu' is not connected",
    ),
    "2, a constant": (
        graph([relu(2, 3), constant(b"abcd")], [into(0, 0, 0)], [out(0, 0, 0)], []),
        "$.Nodes[1]",
        "not connected",
    ),
    "3": (
        graph([relu(2, 3), relu(2, 3, **OWNED)], [into(0, 0, 0)], [out(1, 0, 0)], [between(0, 0, 1, 0)]),
        "$.IntermediateEdges[0].Desc",
        "OWNED_BY_DML, so only an input of the graph may feed it",
    ),
    "4": (
        graph([relu(2, 3), relu(2, 3, **OWNED)], [into(0, 0, 0), into(0, 1, 0)], [out(0, 0, 0), out(1, 0, 1)], []),
        "$.InputEdges",
        "of which one is OWNED_BY_DML",
    ),
    "5": (
        graph([relu(2, 3), relu(2, 4)], [into(0, 0, 0)], [out(1, 0, 0)], [between(0, 0, 1, 0)]),
        "$.Nodes[1]",
        "has 32 bytes, and what 'activation_relu' makes 24",
    ),
    "5, one input": (
        graph([relu(2, 3), relu(2, 4)], [into(0, 0, 0), into(0, 1, 0)], [out(0, 0, 0), out(1, 0, 1)], []),
        "$.InputEdges",
        "24 bytes, and InputTensor of 'activation_relu', 32 bytes",
    ),
    "5, a constant": (
        changed(lambda d: d["Nodes"].__setitem__(2, constant(bytes(20)))),
        "$.Nodes[1]",
        "has 24 bytes, and the constant 'Nodes[2]' 20",
    ),
    "8, a type": (
        changed(lambda d: d["InputEdges"][0].update(Type="OUTPUT")),
        "$.InputEdges[0].Type",
        "Type must be DML_GRAPH_EDGE_TYPE_INPUT",
    ),
    "8, invalid": (
        changed(lambda d: d["Nodes"][0].update(Type="INVALID")),
        "$.Nodes[0].Type",
        "DML_GRAPH_NODE_TYPE_OPERATOR or",
    ),
    "8, a Desc": (
        changed(lambda d: d["InputEdges"][0].update(Desc=3)),
        "$.InputEdges[0].Desc",
        "must be a JSON object",
    ),
    "8, a member": (
        changed(lambda d: d["InputEdges"][0]["Desc"].update(FromNodeIndex=0)),
        "$.InputEdges[0].Desc.FromNodeIndex",
        "has no member",
    ),
    "9, a node": (
        connected(chain(), 0, FromNodeIndex=9),
        "$.IntermediateEdges[0].Desc.FromNodeIndex",
        "the index of a node: 0 to 2",
    ),
    "9, an input": (
        connected(chain(), 0, ToNodeInputIndex=1),
        "$.IntermediateEdges[0].Desc.ToNodeInputIndex",
        "an input of 'activation_relu', which has 1",
    ),
    "9, a graph input": (
        changed(lambda d: d["InputEdges"][0]["Desc"].update(GraphInputIndex=1)),
        "$.InputEdges[0].Desc.GraphInputIndex",
        "0 to 0",
    ),
    "9, no number": (
        connected(chain(), 0, ToNodeIndex=True),
        "$.IntermediateEdges[0].Desc.ToNodeIndex",
        "the index of a node",
    ),
    "10, an input": (
        changed(lambda d: d["InputEdges"].append(into(0, 1, 0))),
        "$.InputEdges[1].Desc.ToNodeInputIndex",
        "has two edges",
    ),
    "10, an output": (
        changed(lambda d: d["OutputEdges"].append(out(1, 0, 0))),
        "$.OutputEdges[1].Desc.GraphOutputIndex",
        "exactly one",
    ),
    "10, no output": (changed(lambda d: d.update(OutputCount=2)), "$.OutputEdges", "output 1 of the graph has no edge"),
    "11": (
        graph(
            [operator("GRU", **GRU_SIZES)],
            [into(0, 0, 0), into(1, 0, 1), into(2, 0, 2), into(3, 0, 3)],
            [out(0, 1, 0)],
            [],
        ),
        "$.InputEdges[3].Desc.ToNodeInputIndex",
        "BiasTensor of 'gru' is not described",
    ),
    "14": (
        changed(lambda d: d["OutputEdges"][0]["Desc"].update(FromNodeIndex=2)),
        "$.OutputEdges[0].Desc.FromNodeIndex",
        "put an operator between them",
    ),
    "16": (
        graph([add(2, 3)], [into(0, 0, 0)], [out(0, 0, 0)], [between(0, 0, 0, 1)]),
        "$.IntermediateEdges",
        "form a cycle",
    ),
    "17, nodes": (graph([], [], [], []) | {"OutputCount": 1}, "$.Nodes", "at least one node"),
    "17, outputs": (changed(lambda d: d.update(OutputCount=0)), "$.OutputCount", "1 to 1000"),
    "an operator": (
        changed(lambda d: d["Nodes"][1]["Desc"]["Operator"]["desc"].pop("BTensor")),
        "$.Nodes[1].Desc.Operator.desc.BTensor",
        "required",
    ),
    "its name": (
        changed(lambda d: d["Nodes"][1]["Desc"]["Operator"].update(type="ADDD")),
        "$.Nodes[1].Desc.Operator.type",
        "there is no operator",
    ),
    "data": (changed(lambda d: d["Nodes"][2]["Desc"].update(Data="!")), "$.Nodes[2].Desc.Data", "in base64"),
    "its size": (
        changed(lambda d: d["Nodes"][2]["Desc"].update(DataSize=3)),
        "$.Nodes[2].Desc.DataSize",
        "DataSize is 3, and Data has 24 bytes",
    ),
    "an array": (changed(lambda d: d.update(InputEdges=3)), "$.InputEdges", "must be a list"),
    "a count": (changed(lambda d: d.update(InputCount=-1)), "$.InputCount", "0 to 1000"),
    "a member": (changed(lambda d: d.update(Edges=[])), "$.Edges", "has no member 'Edges'"),
    "strides of an output": (
        graph(
            [operator("ACTIVATION_RELU", InputTensor=tensor(2, 3), OutputTensor=tensor(2, 3, Strides=[4, 1]))],
            [into(0, 0, 0)],
            [out(0, 0, 0)],
            [],
        ),
        "$.Nodes[0].Desc.Operator.desc.OutputTensor.Strides",
        "OutputTensor of 'activation_relu' has Strides; tensorpost computes graphs whose nodes make packed tensors",
    ),
    "an operator in DirectML's spelling": (
        changed(
            lambda d: d["Nodes"][0]["Desc"].update(
                Operator={"Type": "DML_OPERATOR_ACTIVATION_RELU", "Desc": {"InputTensor": None}}
            )
        ),
        "$.Nodes[0].Desc.Operator.Desc.InputTensor",
        "InputTensor must be a JSON object: it is required, and cannot be null",
    ),
    "a node that reads itself": (
        graph([add(2, 3)], [into(0, 0, 0)], [out(0, 0, 0)], [between(0, 0, 0, 1)]),
        "$.IntermediateEdges",
        "form a cycle",
    ),
    "a circle of other sizes": (
        graph(
            [operator("JOIN", InputTensors=[tensor(2, 3), tensor(2, 3)], OutputTensor=tensor(4, 3), Axis=0)],
            [into(0, 0, 0)],
            [out(0, 0, 0)],
            [between(0, 0, 0, 1)],
        ),
        "$.IntermediateEdges",
        "form a cycle",
    ),
    "a count of several": (changed(lambda d: d.update(NodeCount=2)), "$.NodeCount", "Nodes has 3 entries"),
    "bytes of the rounding": (
        graph(
            [
                operator(
                    "ELEMENT_WISE_IDENTITY", InputTensor=tensor(6, kind="UINT8"), OutputTensor=tensor(6, kind="UINT8")
                ),
                operator(
                    "ELEMENT_WISE_IDENTITY", InputTensor=tensor(2, kind="INT32"), OutputTensor=tensor(2, kind="INT32")
                ),
            ],
            [into(0, 0, 0)],
            [out(1, 0, 0)],
            [between(0, 0, 1, 0)],
        ),
        "$.Nodes[1]",
        "reads 8 bytes, and 'element_wise_identity' makes 6",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_named_with_its_place(rule: str):
    document, path, words = RULES[rule]
    refused(document, path, words)


def test_all_broken_rules_are_named_at_once():
    document = changed(lambda d: d.update(OutputCount=0, Edges=[]))
    document["Nodes"][0]["Type"] = "INVALID"
    document["Nodes"][1]["Desc"]["Operator"]["desc"].pop("BTensor")
    with pytest.raises(InvalidDescriptor) as caught:
        read_graph(document, None)

    paths = {json_path(each.path) for each in caught.value.violations}
    assert {"$.OutputCount", "$.Edges", "$.Nodes[0].Type", "$.Nodes[1].Desc.Operator.desc.BTensor"} <= paths


def test_levels_of_the_graph_its_constants_and_its_nodes():
    without = graph([relu(2, 3)], [into(0, 0, 0)], [out(0, 0, 0)], [])
    read_graph(without, None, level=FeatureLevel.L3_0)
    for document, level, words in (
        (without, FeatureLevel.L2_0, "a graph needs feature level 2_1, not 2_0"),
        (chain(), FeatureLevel.L6_1, "a node of Type CONSTANT needs feature level 6_2, not 6_1"),
        (
            graph([relu(2, 3)], [into(0, 0, 0)], [out(0, 0, 0)], []),
            FeatureLevel.L2_1,
            "dimensions at feature level 2_1",
        ),
    ):
        with pytest.raises(UnsupportedAtLevel, match=words):
            read_graph(document, None, level=level)


def test_bytes_are_reinterpreted():
    """Rule 6: other sizes, another type, and strides that repeat or permute."""
    floats = graph(
        [operator("ELEMENT_WISE_IDENTITY", InputTensor=tensor(2, 3), OutputTensor=tensor(2, 3)),
         operator("ELEMENT_WISE_BIT_NOT", InputTensor=tensor(6, kind="UINT32"), OutputTensor=tensor(6, kind="UINT32"))],
        [into(0, 0, 0)], [out(1, 0, 0)], [between(0, 0, 1, 0)],
    )  # fmt: skip
    (bits,) = run(floats, X)
    np.testing.assert_array_equal(bits, ~X.view(np.uint32).reshape(-1))

    turned = graph(
        [
            relu(2, 3),
            operator(
                "ELEMENT_WISE_ADD",
                ATensor=tensor(3, 2, Strides=[1, 3]),
                BTensor=tensor(3, 2),
                OutputTensor=tensor(3, 2),
            ),
        ],
        [into(0, 0, 0), into(1, 1, 1)],
        [out(1, 0, 0)],
        [between(0, 0, 1, 0)],
    )
    other = np.full((3, 2), 0.5, np.float32)
    np.testing.assert_array_equal(run(turned, X, other)[0], X.T + 0.5)

    square = graph(
        [relu(3, 3), operator("ACTIVATION_RELU", InputTensor=tensor(3, 3, Strides=[1, 3]), OutputTensor=tensor(3, 3))],
        [into(0, 0, 0)], [out(1, 0, 0)], [between(0, 0, 1, 0)],
    )  # fmt: skip
    nine = np.arange(9, dtype=np.float32).reshape(3, 3)
    np.testing.assert_array_equal(run(square, nine)[0], nine.T)

    bias = operator(
        "ELEMENT_WISE_ADD", ATensor=tensor(2, 3), BTensor=tensor(2, 3, Strides=[0, 1]), OutputTensor=tensor(2, 3)
    )
    spread = graph([bias], [into(0, 0, 0), into(1, 0, 1)], [out(0, 0, 0)], [])
    np.testing.assert_array_equal(run(spread, X, np.array([10, 20, 30], np.float32))[0], X + np.array([10, 20, 30]))


def test_one_output_may_be_read_many_times_and_one_input_too():
    """Rule 12, rule 15 (an input that nothing reads), and two chains between the same nodes (rule 16)."""
    document = graph(
        [relu(2, 3), add(2, 3)], [into(2, 0, 0)], [out(0, 0, 0), out(1, 0, 1), out(0, 0, 2)],
        [between(0, 0, 1, 0), between(0, 0, 1, 1)], InputCount=4,
    )  # fmt: skip
    assert input_names(document) == ["input_2"]
    first, doubled, again = run(document, X - 2)

    np.testing.assert_array_equal(first, np.maximum(X - 2, 0))
    np.testing.assert_array_equal(doubled, 2 * first)
    np.testing.assert_array_equal(again, first)


def test_positions_count_optional_tensors_that_are_absent():
    """GRU without a bias and without the whole sequence: HiddenInit is input 4, OutputSingleTensor output 1."""
    sizes = GRU_SIZES | {"HiddenInitTensor": tensor(1, 1, 1, 2)}
    document = graph(
        [operator("GRU", **sizes)], [into(0, 0, 0), into(1, 0, 1), into(2, 0, 2), into(3, 0, 4)], [out(0, 1, 0)], []
    )
    zeros = [np.zeros(shape, np.float32) for shape in ((1, 1, 1, 2), (1, 1, 6, 2), (1, 1, 6, 2))]
    hidden = np.array([[[[0.5, -2]]]], np.float32)
    (y,) = run(document, *zeros, hidden)

    np.testing.assert_allclose(y, hidden / 2)  # gates of 0 are sigmoid(0) = 1/2, the candidate tanh(0) = 0
    refused(
        changed(lambda d: d["OutputEdges"][0]["Desc"].update(FromNodeOutputIndex=0), document),
        "$.OutputEdges[0]",
        "OutputSequenceTensor of 'gru' is not described",
    )


def test_arrays_of_tensors_take_one_position_each():
    joined = operator("JOIN", InputTensors=[tensor(1, 3), tensor(1, 3)], OutputTensor=tensor(2, 3), Axis=0)
    parts = operator("SPLIT", InputTensor=tensor(2, 3), OutputTensors=[tensor(1, 3), tensor(1, 3)], Axis=0)
    document = graph([joined, parts], [into(0, 1, 0)], [out(0, 0, 0)], [between(1, 1, 0, 0), between(1, 0, 0, 1)])

    np.testing.assert_array_equal(run(document, X)[0], X[::-1])


def test_a_constant_may_be_shorter_by_the_rounding():
    """ONNX Runtime passes a scalar of UINT8 as one byte, where the descriptor says 4."""
    sizes = {
        "ATensor": tensor(4, kind="UINT8"),
        "BTensor": tensor(4, kind="UINT8", Strides=[0]),
        "OutputTensor": tensor(4, kind="UINT8"),
    }
    document = graph(
        [operator("ELEMENT_WISE_ADD", **sizes), constant(b"\x05")],
        [into(0, 0, 0)],
        [out(0, 0, 0)],
        [between(1, 0, 0, 1)],
    )

    np.testing.assert_array_equal(run(document, np.arange(4, dtype=np.uint8))[0], [5, 6, 7, 8])


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({}, "'input_0' was not sent; the body has no tensor"),
        ({"input_0": ("float32", (2, 4))}, "'input_0' has 24 bytes in the graph, and 32 were sent"),
        ({"input_0": ("int32", (2, 3))}, "'input_0' is float32 in the graph, and int32 was sent"),
        ({"input_0": ("float32", (2, 3)), "x": ("uint8", (1,))}, "the graph reads no input 'x'; it reads 'input_0'"),
    ],
)
def test_other_tensors_than_the_graph_reads_are_named(sent: dict[str, tuple[str, tuple[int, ...]]], words: str):
    layouts = {name: Layout.row_major(data_type(kind), sizes) for name, (kind, sizes) in sent.items()}
    with pytest.raises(InvalidDescriptor, match=words):
        read_graph(chain(), layouts)


def test_sizes_and_bytes_of_an_input_may_be_others():
    for array in (X.reshape(6), X.view(np.uint8)):
        np.testing.assert_array_equal(run(chain(), array)[0], [[0, 2, 0], [4, 0, 6]])


# ---- both wordings ---------------------------------------------------------------------------------------------------


def test_drawn_graphs_are_the_same_in_both_wordings():
    """Those whose nodes all have an operator of DirectML; the structs give the bytes of the document."""
    done = 0
    for seed in range(300):
        case = drawn_graph(random.Random(seed), 6)
        try:
            structs = to_dml_graph(case.document, case.inputs)
        except InvalidDescriptor:
            continue
        done += 1
        inputs = [case.inputs[slot.name] for slot in case.read().inputs]
        expected = outputs_of(NumpyBackend(), case.read(), [array.tobytes() for array in inputs], 1 << 20)
        again = from_dml_graph(structs)
        for document in (structs, again):
            made = outputs_of(
                NumpyBackend(), read_graph(document, None), [array.tobytes() for array in inputs], 1 << 20
            )
            assert len(made) == len(expected)
            for ours, theirs in zip(made, expected, strict=True):
                assert ours == theirs, f"seed {seed}"
        assert from_dml_graph(to_dml_graph(again)) == again
    assert done > 30


def one_node(node: Document, *outputs: str) -> Document:
    return {
        "inputs": {"x": {"data_type": "FLOAT32", "sizes": [4]}},
        "nodes": [{"inputs": "x", **node}],
        "outputs": {name: name for name in outputs},
    }


def test_a_node_without_an_operator_of_directml_is_named():
    with pytest.raises(InvalidDescriptor, match="node 'bounded', Clip-13, has no DirectML operator of its own"):
        to_dml_graph(one_node({"name": "bounded", "op_type": "Clip"}, "bounded"))


def test_an_output_that_nothing_reads_is_named():
    parts = {"name": "parts", "type": "SPLIT", "desc": {"Axis": 0, "OutputCount": 2}}
    with pytest.raises(InvalidDescriptor, match="nothing reads output_0 of node 'parts'"):
        to_dml_graph(one_node(parts, "parts.output_1"))


def test_a_tensor_may_be_described_beside_its_source():
    described = tensor(2, 3, Strides=[0, 1])
    node: Document = {"name": "y", "type": "ELEMENT_WISE_ADD", "inputs": ["x", "b"], "desc": {"BTensor": described}}
    document = {
        "inputs": {"x": {"data_type": "FLOAT32", "sizes": [2, 3]}, "b": {"data_type": "FLOAT32", "sizes": [3]}},
        "nodes": [node],
        "outputs": {"y": "y"},
    }
    read = read_graph(document, None)
    (made,) = outputs_of(NumpyBackend(), read, [X.tobytes(), np.array([1, 2, 3], np.float32).tobytes()], 1 << 20)
    np.testing.assert_array_equal(np.frombuffer(made, np.float32).reshape(2, 3), X + np.array([1, 2, 3]))

    node["desc"]["BTensor"] = tensor(2, 3, Strides=[3, 1])
    with pytest.raises(InvalidDescriptor, match="input b has 24 bytes in desc, and the tensor that it reads has 12"):
        read_graph(document, None)


def test_mutants_of_a_document_are_read_or_refused():
    chance = random.Random(3)
    values: list[Any] = [
        None,
        -1,
        0,
        1,
        2,
        1 << 40,
        1.5,
        "",
        "INPUT",
        "CONSTANT",
        [],
        [{}],
        {},
        True,
        "AAAA",
        [[]],
        {"Type": "OPERATOR"},
    ]

    def mutate(value: Any) -> Any:
        if isinstance(value, (dict, list)) and value and chance.random() < 0.85:
            key = chance.choice([*value] if isinstance(value, dict) else range(len(value)))
            if chance.random() < 0.1:
                del value[key]
            else:
                value[key] = mutate(value[key])
            return value
        return copy.deepcopy(chance.choice(values))

    refusals = 0
    for _ in range(2000):
        try:
            read_graph(mutate(copy.deepcopy(chain())), None)
        except TensorpostError:
            refusals += 1
    assert 1000 < refusals < 2000
