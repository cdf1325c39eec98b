"""Reading graphs: what a document means, and what is said of one that is broken."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import numpy as np
import pytest
from tests.support.batches import each
from tests.support.graph_cases import BREAKS, drawn_graph, layouts_of

from tensorpost.descriptors import FeatureLevel
from tensorpost.graphs import graph_document
from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.graph import GraphConstant, GraphInput, NodeOutput
from tensorpost.values.problems import InvalidDescriptor

PHOTO = {"photo": np.zeros((1, 4, 6, 3), np.uint8)}
DOCUMENT: dict[str, Any] = {
    "inputs": {"photo": {"data_type": "UINT8", "sizes": [1, "h", "w", 3]}},
    "constants": {"mean": {"dtype": "F32", "shape": [3], "data": [124, 116, 104]}},
    "nodes": [
        {"name": "c", "op_type": "Sub", "opset": 21, "inputs": ["f", "mean"]},
        {"name": "f", "op_type": "Cast", "opset": 21, "inputs": ["photo"], "attributes": {"to": 1}},
        {"name": "small", "type": "DML_OPERATOR_RESAMPLE", "inputs": {"InputTensor": "c"},
         "desc": {"InterpolationMode": "LINEAR", "Scales": [1, 0.5, 0.5, 1]}},
        {"name": "parts", "op_type": "Split", "opset": 21, "inputs": "small", "outputs": 3,
         "attributes": {"axis": 3, "num_outputs": 3}},
    ],
    "outputs": {"red": "parts.outputs_0", "all": "small"},
}  # fmt: skip


def broken(document: Any, arrays: dict[str, Any] | None = None, **options: Any) -> dict[str, str]:
    """The messages of what is wrong, by path."""
    with pytest.raises(InvalidDescriptor) as caught:
        read_graph(document, layouts_of(PHOTO if arrays is None else arrays), **options)
    return {found.where: found.message for found in caught.value.violations}


def changed(**members: Any) -> dict[str, Any]:
    return {**copy.deepcopy(DOCUMENT), **members}


def test_nodes_are_in_an_order_in_which_each_reads_what_is_there():
    graph = read_graph(DOCUMENT, layouts_of(PHOTO))

    assert [node.name for node in graph.nodes] == ["f", "c", "small", "parts"]
    assert [node.inputs for node in graph.nodes] == [
        (GraphInput(0),), (NodeOutput(0, 0), GraphConstant(0)), (NodeOutput(1, 0),), (NodeOutput(2, 0),),
    ]  # fmt: skip
    assert [(slot.name, slot.layout.sizes) for slot in graph.output_slots] == [
        ("red", (1, 2, 3, 1)), ("all", (1, 2, 3, 3)),
    ]  # fmt: skip
    assert graph.constants[0][1] == np.array([124, 116, 104], np.float32).tobytes()


def test_without_tensors_the_declared_sizes_count():
    sizes = {"photo": {"data_type": "uint8", "sizes": [1, 4, 6, 3]}}

    assert read_graph(changed(inputs=sizes), None) == read_graph(DOCUMENT, layouts_of(PHOTO))
    with pytest.raises(InvalidDescriptor, match="as numbers"):
        read_graph(DOCUMENT, None)


def test_inputs_of_a_node_may_be_one_name_a_list_or_an_object():
    one, several, named = (
        changed(nodes=[{"name": "t", "type": "TILE", "inputs": inputs, "desc": {"Repeats": [1, 2, 1, 1]}}],
                outputs={"y": "t"}, constants={})
        for inputs in ("photo", ["photo"], {"input": "photo"})
    )  # fmt: skip

    assert read_graph(one, layouts_of(PHOTO)) == read_graph(several, layouts_of(PHOTO))
    assert read_graph(one, layouts_of(PHOTO)) == read_graph(named, layouts_of(PHOTO))


def test_inputs_of_any_number_may_be_a_list_by_their_name():
    node = {"name": "y", "op_type": "Concat", "opset": 13, "attributes": {"axis": 0}}
    one, other = (
        read_graph(
            {"inputs": {"photo": {}}, "nodes": [{**node, "inputs": inputs}], "outputs": {"y": "y"}}, layouts_of(PHOTO)
        )
        for inputs in ({"inputs": ["photo", "photo"]}, ["photo", "photo"])
    )  # fmt: skip

    assert one == other
    assert one.output_slots[0].layout.sizes == (2, 4, 6, 3)


def test_the_document_of_the_docstring_is_a_graph():
    text = (graph_document.__doc__ or "").partition("\n\n")[2].partition("\n\nA tensor")[0]

    assert len(read_graph(json.loads(text), layouts_of(PHOTO)).nodes) == 3


def test_an_input_that_is_described_reads_no_tensor():
    described = {"A": "photo", "B": {"data_type": 2, "shape": [1]}}
    nodes = [{"name": "y", "op_type": "Add", "opset": 14, "inputs": described}]

    assert broken({"inputs": {"photo": {}}, "nodes": nodes, "outputs": {"y": "y"}})


def test_a_constant_may_be_what_decides_the_sizes():
    nodes = [{"name": "t", "op_type": "Tile", "opset": 13, "inputs": ["photo", "twice"]}]
    constants = {"twice": {"dtype": "I64", "shape": [4], "data": [1, 2, 1, 1]}}

    graph = read_graph(changed(nodes=nodes, outputs={"y": "t"}, constants=constants), layouts_of(PHOTO))

    assert graph.output_slots[0].layout.sizes == (1, 8, 6, 3)
    assert graph.nodes[0].inputs == (GraphInput(0),)


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"nodes": [{"name": "a", "op_type": "Relu", "inputs": ["a"]}]}, "$.nodes[0].inputs", "cycle: a <- a"),
        ({"outputs": {"y": "smal"}}, "$.outputs.y", "did you mean 'small'?"),
        ({"outputs": {"y": "parts"}}, "$.outputs.y", "which has parts.outputs_0, parts.outputs_1, parts.outputs_2"),
        ({"outputs": {"y": "photo"}}, "$.outputs.y", "not computed by a node"),
        ({"outputs": {}}, "$.outputs", "must name the tensors"),
        ({"nodes": []}, "$.nodes", "at least one node"),
        ({"extra": 1}, "$.extra", "no member 'extra'"),
        ({"inputs": {"photo": {"data_type": "FLOAT32"}}}, "$.inputs.photo.data_type", "uint8 was sent"),
        ({"inputs": {"photo": {"sizes": ["n", "n", 6, 3]}}}, "$.inputs.photo.sizes[1]", "'n' is 4 here, and 1 in"),
        ({"inputs": {"photo": {"sizes": [1, 4, 6]}}}, "$.inputs.photo.sizes", "4 dimensions as it was sent"),
        ({"inputs": {"picture": {}}}, "$.inputs.picture", "was not sent; the body has 'photo'"),
        ({"constants": {"mean": {"dtype": "F32", "shape": [2], "data": [1]}}}, "$.constants.mean.data", "needs 2"),
        ({"constants": {"photo": {"dtype": "F32", "shape": [], "data": [1]}}}, "$.constants.photo", "is used twice"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(change: dict[str, Any], path: str, message: str):
    found = broken(changed(**change))

    assert message in found[path], found


def test_everything_that_is_wrong_is_named_at_once_and_its_consequences_are_not():
    document = copy.deepcopy(DOCUMENT)
    document["nodes"][1]["op_type"] = "Castt"
    document["nodes"][2]["desc"]["Scales"] = [1, 2]
    document["nodes"].append({"name": "s", "type": "RESAMPLE", "inputs": "photo", "desc": {"Scales": [1, 1]}})
    document["outputs"]["y"] = "s"

    found = broken(document)

    assert {path.partition("].")[0] for path in found} == {"$.nodes[1", "$.nodes[4"}
    assert "did you mean" in found["$.nodes[1].op_type"]


def test_a_descriptor_is_read_at_the_feature_level():
    nodes = [{"name": "t", "type": "TILE", "inputs": "photo", "desc": {"Repeats": [1, 1, 1, 1]}}]
    found = broken(changed(nodes=nodes, outputs={"y": "t"}, constants={}), level=FeatureLevel.parse("2_0"))

    assert any(path.startswith("$.nodes[0].desc") for path in found)


def test_a_graph_has_no_more_nodes_than_it_may():
    assert "at most 3 are computed" in broken(DOCUMENT, most_nodes=3)["$.nodes"]


def test_many_nodes_in_a_row_are_read():
    nodes = [{"name": f"n{at}", "op_type": "Relu", "inputs": [f"n{at - 1}" if at else "x"]} for at in range(1000)]
    document = {"inputs": {"x": {}}, "nodes": nodes[::-1], "outputs": {"y": "n999"}}

    graph = read_graph(document, layouts_of({"x": np.zeros(3, np.float32)}))

    assert [node.name for node in graph.nodes] == [f"n{at}" for at in range(1000)]


@each("name", BREAKS)
def test_a_broken_graph_is_refused_with_a_place(name: str):
    for seed in range(20):
        chance = random.Random(f"{name} {seed}")
        case = drawn_graph(chance, 8)
        document = copy.deepcopy(case.document)
        BREAKS[name](document, chance)

        with pytest.raises(InvalidDescriptor) as caught:
            read_graph(document, layouts_of(case.inputs))

        assert all(found.path and found.message for found in caught.value.violations)


@pytest.mark.parametrize("document", [None, 7, "graph", [], [1]])
def test_what_is_no_object_is_no_graph(document: Any):
    assert "must be a JSON object" in broken(document)["$"]
