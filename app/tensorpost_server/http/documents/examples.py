"""`/v1/examples`: working request bodies of the binary media types, which an OpenAPI document cannot contain.

The tensors are those of the example on the DML_TILE_OPERATOR_DESC page.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.responses import Response

from tensorpost import frame
from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc
from tensorpost.values.datatypes import data_type

router = APIRouter(prefix="/v1/examples", tags=["examples"])

_INPUT = np.arange(1, 7, dtype="<f4").reshape(1, 1, 2, 3)
_TILE = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", _INPUT.shape), (1, 1, 3, 3))

_RESIZE = {"opset": 19, "attributes": {"mode": "linear"}, "inputs": {"scales": [1, 1, 2, 2]}}


@router.get("/tile.npy", summary="An npy body for tile", response_class=Response)
async def tile_npy() -> Response:
    """The 2 x 3 tensor 1 to 6; post it to `/v1/operators/tile?repeats=1,1,3,3`."""
    head = frame.encode_npy_head(data_type("float32"), _INPUT.shape)
    return Response(head + _INPUT.tobytes(), media_type=frame.NPY_MEDIA_TYPE)


@router.get("/tile.safetensors", summary="A frame for tile", response_class=Response)
async def tile_frame() -> Response:
    """The same tensor with its operator document; post it to `/v1/operators/tile`."""
    entry = ("input", data_type("float32"), _INPUT.shape)
    head = frame.encode_head([entry], {"op": _TILE.to_document_text()})
    return Response(head + _INPUT.tobytes(), media_type=frame.MEDIA_TYPE)


@router.get("/resize.npy", summary="An npy body for ONNX Resize", response_class=Response)
async def resize_npy() -> Response:
    """The same tensor; post it to `/v1/onnx/Resize?opset=19&mode=linear&scales=1,1,2,2`."""
    return await tile_npy()


@router.get("/resize.safetensors", summary="A frame for ONNX Resize", response_class=Response)
async def resize_frame() -> Response:
    """The same tensor with its node document; post it to `/v1/onnx/Resize`."""
    head = frame.encode_head([("X", data_type("float32"), _INPUT.shape)], {"op": json.dumps(_RESIZE)})
    return Response(head + _INPUT.tobytes(), media_type=frame.MEDIA_TYPE)


def graph_call() -> dict[str, Any]:
    """A call of a graph as JSON: the tensor is halved, then laid side by side."""
    graph = {
        "inputs": {"x": {"data_type": "FLOAT32", "sizes": [1, 1, "h", "w"]}},
        "constants": {"two": {"dtype": "F32", "shape": [1], "data": [2]}},
        "nodes": [
            {"name": "half", "op_type": "Div", "opset": 21, "inputs": ["x", "two"]},
            {"name": "tiled", "type": "TILE", "inputs": {"InputTensor": "half"}, "desc": {"Repeats": [1, 1, 1, 2]}},
        ],
        "outputs": {"y": "tiled"},
    }
    x = {"dtype": "F32", "shape": [*_INPUT.shape], "data": _INPUT.reshape(-1).tolist()}
    return {"graph": graph, "tensors": {"x": x}}


def dml_graph_call() -> dict[str, Any]:
    """A call of a graph in DirectML's structs: what is negative becomes 0, then the tensor is laid side by side."""
    tile = _TILE.to_document()
    tensor = tile["desc"]["InputTensor"]
    relu = {"type": "DML_OPERATOR_ACTIVATION_RELU", "desc": {"InputTensor": tensor, "OutputTensor": tensor}}
    nodes = [
        {"Type": "DML_GRAPH_NODE_TYPE_OPERATOR", "Desc": {"Operator": operator, "Name": name}}
        for name, operator in (("relu", relu), ("tiled", tile))
    ]

    def edge(kind: str, **desc: int) -> dict[str, Any]:
        return {"Type": f"DML_GRAPH_EDGE_TYPE_{kind}", "Desc": desc}

    graph = {
        "InputCount": 1,
        "OutputCount": 1,
        "Nodes": nodes,
        "InputEdges": [edge("INPUT", GraphInputIndex=0, ToNodeIndex=0, ToNodeInputIndex=0)],
        "OutputEdges": [edge("OUTPUT", FromNodeIndex=1, FromNodeOutputIndex=0, GraphOutputIndex=0)],
        "IntermediateEdges": [
            edge("INTERMEDIATE", FromNodeIndex=0, FromNodeOutputIndex=0, ToNodeIndex=1, ToNodeInputIndex=0)
        ],
    }
    return {"graph": graph, "tensors": {"input_0": graph_call()["tensors"]["x"]}}


def tile_document() -> dict[str, Any]:
    """The operator document of the example."""
    return _TILE.to_document()
