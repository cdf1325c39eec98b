"""`/v1/examples`: a working request body for each media type, and the OpenAPI text that points at them.

OpenAPI documents cannot contain binary bodies, so their examples are `externalValue`s that this server serves. The
tensors are those of the example on the DML_TILE_OPERATOR_DESC page.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.responses import Response

from tensorpost import frame
from tensorpost.datatypes import data_type
from tensorpost.descriptors import BufferTensorDesc, TileOperatorDesc

from ..backends import BACKENDS

__all__ = ["router", "run_onnx_openapi", "run_operator_openapi"]

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


def tile_document() -> dict[str, Any]:
    """The operator document of the example."""
    return _TILE.to_document()


def run_operator_openapi() -> dict[str, Any]:
    """The parts of the operation that FastAPI does not derive: media types, their examples, and the query."""
    example = {
        "op": {"type": "TILE", "desc": {"Repeats": [1, 1, 3, 3]}},
        "tensors": {"input": {"dtype": "F32", "shape": [1, 1, 2, 3], "data": [1, 2, 3, 4, 5, 6]}},
    }
    parameters = [
        ("backend", "query", f"{', '.join(['auto', *BACKENDS])}; a named one is never replaced by another", "numpy"),
        ("device", "query", "which device of the named backend, counted from 0; default the least busy one", "0"),
        ("feature_level", "query", "DirectML feature level to validate at; default the newest", "4_1"),
        ("repeats", "query", "tile: copies per dimension, for forms without an operator document", "1,1,3,3"),
        (
            "output_sizes",
            "query",
            "sizes of the output, where they do not follow; semicolons between outputs",
            "1,1,6,9",
        ),
        ("output_data_type", "query", "DataType of the output, where it does not follow, likewise", "FLOAT32"),
    ]
    return _openapi("operator", "tile", "repeats=1,1,3,3", example, parameters)


def run_onnx_openapi() -> dict[str, Any]:
    """The same for `/v1/onnx`."""
    example = {
        "op": _RESIZE,
        "tensors": {"X": {"dtype": "F32", "shape": [1, 1, 2, 3], "data": [1, 2, 3, 4, 5, 6]}},
    }
    parameters = [
        ("opset", "query", "default-domain opset; default the newest known", "19"),
        ("backend", "query", f"{', '.join(['auto', *BACKENDS])}; a named one is never replaced by another", "numpy"),
        ("device", "query", "which device of the named backend, counted from 0; default the least busy one", "0"),
        ("scales", "query", "any attribute or small input of the operator, lists separated by commas", "1,1,2,2"),
        ("mode", "query", "likewise", "linear"),
    ]
    return _openapi("op_type", "Resize", "opset=19&mode=linear&scales=1,1,2,2", example, parameters)


def _openapi(
    path: str, value: str, query: str, example: dict[str, Any], parameters: list[tuple[str, str, str, str]]
) -> dict[str, Any]:
    name, binary = value.lower(), {"type": "string", "format": "binary"}
    content = {
        frame.NPY_MEDIA_TYPE: {
            "schema": binary,
            "examples": {
                name: {
                    "summary": f"one array; the operator's attributes are in the query (?{query})",
                    "externalValue": f"/v1/examples/{name}.npy",
                }
            },
        },
        frame.MEDIA_TYPE: {
            "schema": binary,
            "examples": {
                name: {
                    "summary": "safetensors layout; the operator document is the metadata's `op`",
                    "externalValue": f"/v1/examples/{name}.safetensors",
                }
            },
        },
        "application/json": {
            "schema": {"type": "object", "required": ["tensors"]},
            "examples": {name: {"summary": "numbers, for tiny tensors", "value": example}},
        },
    }
    problem = json.loads(_PROBLEM)
    answers = {form: {"schema": binary} for form in (frame.NPY_MEDIA_TYPE, frame.MEDIA_TYPE)}
    return {
        "parameters": [
            {"name": path, "in": "path", "required": True, "schema": {"type": "string"}, "example": value},
            *(
                {"name": name, "in": where, "required": False, "schema": {"type": "string"}, "description": text,
                 "examples": {"example": {"value": value}}}
                for name, where, text, value in parameters
            ),
        ],
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": {
                "description": "The output tensor, in the form of the request or as Accept says.",
                "content": {**answers, "application/json": {"schema": {"type": "object"}}},
            },
            "4XX": {
                "description": "What was wrong (RFC 9457).",
                "content": {"application/problem+json": {"schema": {"type": "object"}, "example": problem}},
            },
        },
    }  # fmt: skip


_PROBLEM = """{
  "type": "urn:tensorpost:problem:invalid-descriptor",
  "title": "The operator or tensor description breaks a rule",
  "status": 422,
  "detail": "$.desc.Repeats[2]: every repeat must be larger than 0",
  "violations": [{
    "code": "repeat-zero", "path": "$.desc.Repeats[2]", "message": "every repeat must be larger than 0",
    "value": 0, "expected": "at least 1", "source": "DML_TILE_OPERATOR_DESC"
  }]
}"""
