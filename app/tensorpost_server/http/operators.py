"""`/v1/operators`: the catalogue, and running an operator."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tensorpost.descriptors import OPERATORS, OperatorDesc, operator_class
from tensorpost.descriptors.operator_desc import slot_name
from tensorpost.onnx import ONNX_OPERATORS

from . import examples
from .directml import DIRECTML
from .execution import Execution, ExecutionResponse
from .service import service_of

__all__ = ["catalogue_entry", "router"]

router = APIRouter(prefix="/v1/operators", tags=["operators"])


@router.get("", summary="List the operators")
async def list_operators() -> JSONResponse:
    """Every DirectML operator with its fields, types and support by feature level; every ONNX operator and version."""
    onnx = [schema.to_json() for schema in ONNX_OPERATORS]
    return JSONResponse({"operators": [catalogue_entry(cls) for cls in OPERATORS], "onnx": onnx})


_NAME = {"name": "operator", "in": "path", "required": True, "schema": {"type": "string"}, "example": "tile"}


@router.get("/{operator}", summary="Describe an operator", openapi_extra={"parameters": [_NAME]})
async def describe_operator(request: Request) -> JSONResponse:
    """One operator's fields, types and support by feature level, with the JSON schema of its descriptor."""
    cls = operator_class(request.path_params["operator"])
    return JSONResponse({**catalogue_entry(cls), "json_schema": cls.model_json_schema(by_alias=True)})


def catalogue_entry(cls: type[OperatorDesc]) -> dict[str, Any]:
    """What the catalogue says about an operator."""
    required = {name: info.is_required() for name, info in cls.model_fields.items()}
    attributes = cls.attribute_fields()
    tensors = (*cls.fields_of_kind("input"), *cls.fields_of_kind("output"))
    return {
        "name": cls.operator_type.lower(),
        "type": f"DML_OPERATOR_{cls.operator_type}",
        "value": cls.facts.number,
        "summary": cls.summary,
        "approximate": cls.approximation,
        "fields": [
            {
                "name": info.alias or name,
                "kind": "input"
                if name in cls.fields_of_kind("input")
                else "output"
                if name in tensors
                else "attribute",
                "required": required[name],
                **({"tensor": slot_name(name)} if name in tensors else {}),
                **({"query": name} if name in attributes else {}),
            }
            for name, info in cls.model_fields.items()
        ],
        "support": [
            {
                "feature_level": str(row.since),
                "dimension_counts": {"lowest": row.dimension_counts[0], "highest": row.dimension_counts[1]},
                "data_types": [data_type.name for data_type in row.data_types],
            }
            for row in cls.facts.rows(cls.facts.of_kind("output")[0].name)
        ],
    }


@router.post(
    "/{operator}",
    summary="Run an operator",
    response_class=Response,
    openapi_extra=examples.run_operator_openapi(),
)
async def run_operator(request: Request) -> Response:
    """Post an operator and its tensors; the result comes back as raw bytes, streamed while it is made.

    The answer has the form of the request unless Accept says otherwise. Its headers are complete and true before the
    first byte: Content-Length, Server-Timing (milliseconds per stage up to the first slice), Tensorpost-Backend,
    Tensorpost-Device and X-Request-ID.
    """
    return ExecutionResponse(Execution(service_of(request), request.scope, request.path_params["operator"], DIRECTML))
