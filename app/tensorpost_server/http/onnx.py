"""`/v1/onnx`: the ONNX dialect. An operator type, an opset and attributes become a node; its tensors are ONNX's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tensorpost.onnx import NEWEST_OPSET, ONNX_OPERATORS, OnnxNode, OnnxSchema, OnnxTensor, find_schema
from tensorpost.problems import InvalidFrame, InvalidParameter

from . import examples
from .calls import Call, Tensor, match_names, read_document, read_options
from .execution import Execution, ExecutionResponse
from .service import service_of

__all__ = ["ONNX", "OnnxDialect", "router"]

router = APIRouter(prefix="/v1/onnx", tags=["onnx"])


@router.get("", summary="List the ONNX operators")
async def list_onnx_operators() -> JSONResponse:
    """Every version of every ONNX operator here: inputs, types and attributes with their defaults."""
    return JSONResponse({"operators": [schema.to_json() for schema in ONNX_OPERATORS]})


@router.post(
    "/{op_type}", summary="Run an ONNX node", response_class=Response, openapi_extra=examples.run_onnx_openapi()
)
async def run_onnx(request: Request) -> Response:
    """Post an ONNX node and its tensors; the result comes back as raw bytes, streamed while it is made.

    Small inputs (repeats, scales, sizes, roi) stand in the query, in the node document, or travel as tensors of a
    frame. Answers are as for `/v1/operators`.
    """
    return ExecutionResponse(Execution(service_of(request), request.scope, request.path_params["op_type"], ONNX))


class OnnxDialect:
    """`/v1/onnx/{op_type}?opset=19`. See `Dialect` for the methods."""

    def check_name(self, name: str) -> None:
        """Raises UnknownOperator, with the nearest name."""
        find_schema(name, NEWEST_OPSET)

    def lone_tensor(self, name: str) -> str:
        """The tensor that the node works on; it has the same name in every version."""
        return _versions(name)[0].data_input.name

    def value_names(self, name: str) -> frozenset[str]:
        """The inputs that decide the output's shape, in any version; the node refuses those that its own has not."""
        return frozenset(entry.name for schema in _versions(name) for entry in schema.value_inputs)

    def understand(
        self, name: str, query: str, tensors: Sequence[Tensor], document: str | None, values: Mapping[str, Any]
    ) -> Call:
        """The node comes from the document or the query; what the tensors say may be left out.

        Raises:
            InvalidJson: the document is not JSON.
            InvalidParameter: a query parameter that is repeated or doubles the document; no such opset.
            InvalidDescriptor: the node breaks a rule of ONNX.
            InvalidFrame: the tensors do not fit the node.
        """
        parameters, options = read_options(query, (), ["backend", "device"])
        opset = _opset(parameters.pop("opset", None))
        members = read_document(document, parameters)
        data = self.lone_tensor(name)
        match_names(tensors, [data], sorted(self.value_names(name)))
        announced = next(tensor for tensor in tensors if tensor.name == data)
        tensor = OnnxTensor(announced.data_type.numpy_name, announced.shape)
        if members is None:
            node = OnnxNode.from_query(name, NEWEST_OPSET if opset is None else opset, parameters, tensor, values)
        else:
            node = OnnxNode.from_json(_completed(members, name, opset, data, tensor, values))
        if node.input != tensor:
            raise InvalidFrame(
                f"tensor {data!r} is {tensor.to_json()} in the body, but {node.input.to_json()} in the document"
            )
        return Call(node, node.to_json_text(), options)


ONNX = OnnxDialect()


def _versions(name: str) -> list[OnnxSchema]:
    return [schema for schema in ONNX_OPERATORS if schema.op_type == name]


def _opset(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise InvalidParameter(
            f"opset {text[:40]!r} is not a number; send one from 1 to {NEWEST_OPSET}", extra={"parameter": "opset"}
        )
    return int(text)


def _completed(
    members: Mapping[str, Any], name: str, opset: int | None, data: str, tensor: OnnxTensor, values: Mapping[str, Any]
) -> dict[str, Any]:
    """The node document with what the path and the tensors say."""
    if members.get("op_type", name) != name:
        raise InvalidParameter(
            f"the path names {name} but the document's op_type is {str(members['op_type'])[:60]!r}; "
            "post to the operator that the document describes"
        )
    if opset is not None and members.get("opset", opset) != opset:
        raise InvalidParameter(f"the query says opset {opset}, the document {members['opset']!r}; send it once")
    inputs: Any = members.get("inputs", {})
    if isinstance(inputs, Mapping):
        given = cast("Mapping[str, Any]", inputs)
        twice = sorted(given.keys() & values.keys())
        if twice:
            raise InvalidFrame(f"{', '.join(twice)} stand in the node document and among the tensors; send each once")
        inputs = {data: tensor.to_json(), **given, **values}
    return {"opset": NEWEST_OPSET if opset is None else opset, **members, "op_type": name, "inputs": inputs}
