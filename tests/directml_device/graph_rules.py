"""The rules of `DML_GRAPH_DESC` against DirectML itself: what CompileGraph accepts, and what it refuses.

`tools/directml python -m tests.directml_device.graph_rules [FIRST]`, on Windows or under Wine. A JSON line for each
case of `tests/contract/test_dml_graph.py` that structs can express, flushed at once: where a call ends the process, the
last line says which case it was, and FIRST goes on behind it.
"""

from __future__ import annotations

import base64
import ctypes
import json
import sys
from collections.abc import Sequence
from ctypes import c_char_p, c_int32, c_size_t, c_void_p
from typing import Any

from tests.contract.test_dml_graph import RULES, add, between, chain, graph, into, out, relu

from tensorpost.descriptors import parse_operator
from tensorpost.graphs.graph_document import read_graph
from tensorpost.values.problems import TensorpostError
from tensorpost_server.backends.directml import d3d12
from tensorpost_server.backends.directml.c_structs import OperatorStruct, array_of
from tensorpost_server.backends.directml.com import ComError
from tensorpost_server.backends.directml.device import Device
from tensorpost_server.backends.directml.directml_dll import open_libraries
from tensorpost_server.backends.directml.graph_compiler import (
    EdgeStruct,
    GraphDescStruct,
    IntermediateEdgeStruct,
    OperatorNodeStruct,
    TypedGraphDesc,
)

KINDS = {"OPERATOR": 1, "CONSTANT": 2, "INPUT": 1, "OUTPUT": 2, "INTERMEDIATE": 3, "INVALID": 0}

KEPT: dict[str, Any] = {
    "a chain": chain(),
    "12, one output read twice": graph(
        [relu(2, 3), add(2, 3)], [into(0, 0, 0)], [out(1, 0, 0)], [between(0, 0, 1, 0), between(0, 0, 1, 1)]
    ),
    "12, one output is two outputs": graph([relu(2, 3)], [into(0, 0, 0)], [out(0, 0, 0), out(0, 0, 1)], []),
    "15, an input that nothing reads": graph([relu(2, 3)], [into(0, 0, 0)], [out(0, 0, 0)], [], InputCount=2),
    "any order of nodes": graph(
        [relu(2, 3), relu(2, 3)], [into(0, 1, 0)], [out(0, 0, 0)], [between(1, 0, 0, 0)]
    ),
}  # fmt: skip


class ConstantNodeStruct(ctypes.Structure):
    """`DML_CONSTANT_DATA_GRAPH_NODE_DESC` as a ctypes structure."""

    _fields_ = (("Data", c_void_p), ("DataSize", c_size_t), ("Name", c_char_p))


def directml_says(device: Device, document: Any) -> str:
    """`S_OK`, or what DirectML refuses the graph with.

    Raises:
        KeyError, TypeError, AttributeError, ValueError: no structs express it.
    """
    kept: list[Any] = []
    operators: list[Any] = []

    def typed(entries: Sequence[tuple[int, Any]]) -> int | None:
        structs = [TypedGraphDesc(kind, ctypes.addressof(each)) for kind, each in entries]
        kept.append(array_of(TypedGraphDesc, structs))
        return ctypes.addressof(kept[-1]) if structs else None

    def kind_of(entry: Any) -> int:
        return KINDS[entry["Type"].rpartition("_")[2]]

    def edges(name: str, cls: Any) -> list[tuple[int, Any]]:
        found = [(kind_of(edge), cls(*[int(n) for n in edge["Desc"].values()], None)) for edge in document[name]]
        kept.append(found)
        return found

    nodes: list[tuple[int, Any]] = []
    try:
        for node in document["Nodes"]:
            desc = node["Desc"]
            if "Operator" in desc:
                described = parse_operator(desc["Operator"], complete=True)
                operators.append(device.create_operator(OperatorStruct.from_desc(described)))
                nodes.append((kind_of(node), OperatorNodeStruct(operators[-1].address, None)))
            else:
                data = ctypes.create_string_buffer(base64.b64decode(desc["Data"], validate=True))
                kept.append(data)
                nodes.append((kind_of(node), ConstantNodeStruct(ctypes.addressof(data), desc["DataSize"], None)))
        kept.append(nodes)
        inputs, outputs = edges("InputEdges", EdgeStruct), edges("OutputEdges", EdgeStruct)
        middle = edges("IntermediateEdges", IntermediateEdgeStruct)
        if min(document["InputCount"], document["OutputCount"]) < 0:
            raise ValueError
        struct_ = GraphDescStruct(
            document["InputCount"], document["OutputCount"], len(nodes), typed(nodes), len(inputs), typed(inputs),
            len(outputs), typed(outputs), len(middle), typed(middle),
        )  # fmt: skip
        device1 = device.dml.create(d3d12.QUERY_INTERFACE, "QueryInterface", iid=d3d12.IID_DML_DEVICE1)
        try:
            device1.create(
                d3d12.DML_COMPILE_GRAPH, "CompileGraph", struct_, c_int32(0), iid=d3d12.IID_DML_COMPILED
            ).release()
        except ComError as error:
            return f"0x{error.code:08X}"
        except OSError as error:
            return f"CompileGraph itself fails: {error}"
        finally:
            device1.release()
        return "S_OK"
    finally:
        for operator in operators:
            operator.release()


def main(first: int) -> None:
    """Ask for each case and print what DirectML and tensorpost say."""
    cases = {**KEPT, **{name: document for name, (document, _, _) in RULES.items()}}
    device = Device(open_libraries())
    for number, (name, document) in enumerate(cases.items()):
        if number < first:
            continue
        try:
            read_graph(document, None)
            ours = "accepted"
        except TensorpostError as error:
            ours = f"refused: {error.detail}"[:100]
        print(json.dumps({"asking": number, "case": name}), flush=True)
        try:
            theirs = directml_says(device, document)
        except (KeyError, TypeError, AttributeError, ValueError, TensorpostError) as error:
            theirs = f"not expressible ({type(error).__name__})"
        print(json.dumps({"case": name, "directml": theirs, "tensorpost": ours}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
