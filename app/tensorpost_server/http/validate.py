"""`/v1/validate`: what DirectML says about an operator document, without any tensor."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from tensorpost.descriptors import NEWEST, FeatureLevel, OperatorDesc, parse_operator
from tensorpost.onnx import OnnxNode, lower
from tensorpost.problems import InvalidDescriptor, Violation
from tensorpost.strict_json import read_json

from .calls import read_options
from .examples import tile_document
from .fields import fields_of, text_of
from .forms import refuse_encoding
from .lengths import content_length
from .service import service_of
from .streams import Body

__all__ = ["router"]

router = APIRouter(prefix="/v1/validate", tags=["operators"])

_OPENAPI = {
    "parameters": [
        {
            "name": "feature_level", "in": "query", "required": False, "schema": {"type": "string"},
            "description": "DirectML feature level, 1_0 to 6_4; default the newest", "example": "2_1",
        }
    ],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}, "example": tile_document()}},
    },
}  # fmt: skip


@router.post("", summary="Validate an operator document", openapi_extra=_OPENAPI)
async def validate(request: Request) -> JSONResponse:
    """The verdict, every violation, the output's description, byte sizes, and the lowest feature level.

    The body is an operator document, `{"type": ..., "desc": {...}}`, or an ONNX node document, `{"op_type": ...,
    "opset": ..., "inputs": {...}, "attributes": {...}}`; for a node, `lowering` says how well one DirectML operator of
    that level can express it, and `warnings` what other implementations answer differently. The answer is 200 whether
    the document is valid or not; 4xx means that the question itself could not be read.
    """
    service = service_of(request)
    given, _ = read_options(request.url.query, ["feature_level"], [])
    level = FeatureLevel.parse(given.get("feature_level", NEWEST))
    settings = service.settings
    fields = fields_of(request.scope["headers"])
    refuse_encoding(text_of(fields.get(b"content-encoding")))
    length = content_length(fields.get(b"content-length"), settings.max_body_bytes)
    body = Body(request.receive, length, settings.receive_timeout_seconds)
    document: Any = read_json(await body.whole(settings.max_json_bytes, "TENSORPOST_MAX_JSON_BYTES"))
    if _is_node(document):
        # In a thread, and counted as a request: every coordinate of every axis is compared, which can take a second.
        with service.admission.admit(length):
            return JSONResponse(await asyncio.to_thread(_node_verdict, level, document))
    try:
        desc = parse_operator(document, complete=True)
    except InvalidDescriptor as error:
        return JSONResponse(_verdict(level, error.violations))
    return JSONResponse(_verdict(level, [v.under("desc") for v in desc.unsupported_at(level)], desc))


def _verdict(level: FeatureLevel, violations: Any, desc: OperatorDesc | None = None) -> dict[str, Any]:
    found: list[Violation] = list(violations)
    verdict: dict[str, Any] = {
        "valid": not found,
        "feature_level": str(level),
        "violations": [violation.to_json() for violation in found],
        "lowest_feature_level": None,
        "op": None,
        "output": None,
        "input_bytes": None,
        "output_bytes": None,
    }
    if desc is not None:
        lowest = desc.lowest_feature_level()
        output = getattr(desc, desc.fields_of_kind("output")[0])
        verdict |= {
            "lowest_feature_level": None if lowest is None else str(lowest),
            "op": desc.to_document(),
            "output": output.to_json(),
            "input_bytes": sum(getattr(desc, name).layout.size_in_bytes for name in desc.fields_of_kind("input")),
            "output_bytes": output.layout.size_in_bytes,
        }
    return verdict


def _is_node(document: object) -> bool:
    return isinstance(document, dict) and "op_type" in cast("dict[str, object]", document)


def _node_verdict(level: FeatureLevel, document: object) -> dict[str, Any]:
    try:
        node = OnnxNode.from_json(document)
    except InvalidDescriptor as error:
        return _verdict(level, error.violations) | {"lowering": None, "warnings": []}
    lowering = lower(node, level)
    descriptor = lowering.descriptor
    lowest = None if descriptor is None else descriptor.lowest_feature_level()
    return _verdict(level, []) | {
        "lowest_feature_level": None if lowest is None else str(lowest),
        "op": node.to_json(),
        "output": node.output.to_json(),
        "input_bytes": node.input.size_in_bytes,
        "output_bytes": node.output.size_in_bytes,
        "warnings": list(node.warnings),
        "lowering": {
            "verdict": lowering.verdict.value,
            "reason": lowering.reason,
            "op": None if descriptor is None else descriptor.to_document(),
        },
    }
