"""`/v1/operators`: the catalogue, and running an operator."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tensorpost import frame
from tensorpost.datatypes import data_type
from tensorpost.descriptors import OPERATORS, OperatorDesc, operator_class
from tensorpost.frame import HeadReader, NpyHeadReader
from tensorpost.problems import InvalidFrame, LimitExceeded, NotAcceptable
from tensorpost.strict_json import read_json

from ..backends import Plan
from ..engine import Stages, Ticket, Worker, make_plan
from . import examples
from .forms import (
    Call,
    Form,
    Tensor,
    answer_form,
    call_from,
    metadata_of,
    request_form,
    tensors_of_document,
)
from .lengths import content_length
from .service import Service, service_of
from .streams import Body, CallerGone, send_stream

__all__ = ["catalogue_entry", "router"]

router = APIRouter(prefix="/v1/operators", tags=["operators"])


@router.get("", summary="List the operators")
async def list_operators() -> JSONResponse:
    """Every operator with its fields, types and support by feature level."""
    return JSONResponse({"operators": [catalogue_entry(cls) for cls in OPERATORS]})


@router.get("/{operator}", summary="Describe an operator")
async def describe_operator(operator: str) -> JSONResponse:
    """One operator's fields, types and support by feature level, with the JSON schema of its descriptor."""
    cls = operator_class(operator)
    return JSONResponse({**catalogue_entry(cls), "json_schema": cls.model_json_schema(by_alias=True)})


def catalogue_entry(cls: type[OperatorDesc]) -> dict[str, Any]:
    """What the catalogue says about an operator."""
    required = {name: info.is_required() for name, info in cls.model_fields.items()}
    attributes = cls.attribute_fields()
    tensors = (*cls.input_fields, *cls.output_fields)
    return {
        "name": cls.operator_type.lower(),
        "type": f"DML_OPERATOR_{cls.operator_type}",
        "value": cls.operator_value,
        "summary": cls.summary,
        "approximate": cls.approximate,
        "fields": [
            {
                "name": info.alias or name,
                "kind": "input" if name in cls.input_fields else "output" if name in tensors else "attribute",
                "required": required[name],
                **({"tensor": cls.slot_name(name)} if name in tensors else {}),
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
            for row in cls.support
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
    return Execution(request)


class Execution(Response):
    """Reads a call, runs it, and streams the answer; plain ASGI, so that no layer in between buffers a body."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Head, plan, admission, tensors, kernel, answer: in this order, and nothing before its turn."""
        del scope
        request, service, stages = self._request, service_of(self._request), Stages()
        settings, pool = service.settings, service.workers()
        body = Body(receive, content_length(request, service), settings.receive_timeout_seconds)
        form = request_form(request.headers.get("content-type"))
        answer = answer_form(request.headers.get("accept"), form)
        try:
            with stages.stage("head"):
                call, arrays = await _read_call(request, service, body, form)
            with stages.stage("plan"):
                plan = make_plan(call.desc, settings.slice_bytes)
                _check_output(plan, answer, service)
                worker = pool.choose(plan, call.options.backend)
            with stages.stage("admit"):
                ticket = service.admission.admit(_bytes_needed(plan, call, worker, service))
            with ticket:
                with stages.stage("receive"):
                    inputs = await _receive(call, plan, arrays, body, ticket)
                await _answer(send, receive, call, plan, worker, inputs, answer, stages, service)
        except CallerGone:
            return


async def _read_call(request: Request, service: Service, body: Body, form: Form) -> tuple[Call, list[Any] | None]:
    """Everything before the tensors' bytes; for JSON, the tensors too."""
    operator, query = request.path_params["operator"], request.url.query
    settings = service.settings
    operator_class(operator)  # an unknown operator is refused before anything is read
    if form is Form.JSON:
        document = read_json(await body.whole(settings.max_json_bytes, "TENSORPOST_MAX_JSON_BYTES"))
        described, arrays, tensors, id_ = tensors_of_document(document)
        return call_from(operator, query, tensors, described, id_), arrays
    if form is Form.NPY:
        npy = NpyHeadReader(max_head_bytes=settings.max_head_bytes, content_length=body.length)
        await body.head(npy)
        head = npy.finish()
        slots = [name.removesuffix("_tensor") for name in operator_class(operator).input_fields]
        if len(slots) != 1:
            raise InvalidFrame(f"npy holds one tensor, the operator takes {', '.join(slots)}; send a frame")
        return call_from(operator, query, [Tensor(slots[0], head.data_type, head.shape, head.body_bytes)]), None
    reader = HeadReader(max_head_bytes=settings.max_head_bytes, content_length=body.length)
    await body.head(reader)
    frame_head = reader.finish()
    tensors = [Tensor(entry.name, entry.data_type, entry.shape, entry.nbytes) for entry in frame_head.tensors]
    metadata = frame_head.metadata
    return call_from(operator, query, tensors, metadata.get("op"), metadata.get("id")), None


def _check_output(plan: Plan, answer: Form, service: Service) -> None:
    """Refuse an output that is too large, or that the answer's form cannot hold, before memory is taken."""
    settings, layout = service.settings, plan.output.layout
    if plan.output_bytes > settings.max_output_bytes:
        raise LimitExceeded.of(
            "the output", plan.output_bytes, settings.max_output_bytes, "TENSORPOST_MAX_OUTPUT_BYTES"
        )
    if answer is not Form.FRAME and not layout.packed:
        raise NotAcceptable(
            f"{answer.value} holds packed tensors only, and OutputTensor has strides or padding; "
            f"accept {Form.FRAME.value}"
        )
    elements = plan.output_bytes // max(1, layout.data_type.item_size)
    if answer is Form.JSON and elements > settings.max_json_elements:
        raise LimitExceeded.of(
            "the output as JSON numbers", elements, settings.max_json_elements, "TENSORPOST_MAX_JSON_ELEMENTS",
            f"elements, so accept {Form.NPY.value} or {Form.FRAME.value} for it;",
        )  # fmt: skip


def _bytes_needed(plan: Plan, call: Call, worker: Worker, service: Service) -> int:
    """Inputs as they arrive, and as many slices as may exist at the same time."""
    inputs = sum(tensor.size_in_bytes for tensor in call.tensors)
    slices = min(len(plan.slices), service.settings.slices_ahead + 2)
    del worker
    return inputs + min(plan.output_bytes, slices * service.settings.slice_bytes)


async def _receive(
    call: Call, plan: Plan, arrays: Sequence[Any] | None, body: Body, ticket: Ticket
) -> list[memoryview]:
    """The inputs' bytes in binding order, straight from the socket into memory of the ticket."""
    if arrays is None:
        memory = [ticket.memory(tensor.size_in_bytes) for tensor in call.tensors]
        await body.into(memory)
    else:
        memory = [np.ascontiguousarray(array).data.cast("B") for array in arrays]
    by_name = {tensor.name: block for tensor, block in zip(call.tensors, memory, strict=True)}
    return [by_name[slot.name] for slot in plan.inputs]


async def _answer(
    send: Send, receive: Receive, call: Call, plan: Plan, worker: Worker, inputs: Sequence[memoryview], answer: Form,
    stages: Stages, service: Service,
) -> None:  # fmt: skip
    layout, backend = plan.output.layout, worker.backend
    slices = worker.run(plan, inputs)
    if answer is Form.JSON:
        with stages.stage("compute"):
            data = b"".join([bytes(block) async for block in slices])  # small: `_check_output` bounded it
        tensor = frame.tensor_to_json(layout.view(data))
        metadata: dict[str, Any] = {**metadata_of(call, backend.name, backend.device)}
        metadata["op"] = call.desc.to_document()
        body = json.dumps({**metadata, "tensors": {plan.output.name: tensor}}, allow_nan=False).encode()
        head, slices = body, _nothing()
        length = len(body)
    else:
        if answer is Form.NPY:
            head = frame.encode_npy_head(layout.data_type, layout.sizes)
        elif layout.packed:
            entry = (plan.output.name, layout.data_type, layout.sizes)
            head = frame.encode_head([entry], metadata_of(call, backend.name, backend.device))
        else:
            entry = (plan.output.name, _U8, (layout.size_in_bytes,))
            head = frame.encode_head([entry], metadata_of(call, backend.name, backend.device))
        length = len(head) + layout.size_in_bytes
    headers = [
        (b"content-type", answer.value.encode()),
        (b"content-length", str(length).encode()),
        (b"tensorpost-backend", backend.name.encode()),
        (b"tensorpost-device", backend.device.encode()),
    ]
    await send_stream(send, receive, headers, [memoryview(head)], slices, stages, service.settings.send_timeout_seconds)


_U8 = data_type("U8")


async def _nothing() -> AsyncGenerator[memoryview]:
    for block in ():
        yield block
