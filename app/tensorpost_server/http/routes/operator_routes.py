"""`/v1/operators`, `/v1/onnx` and `/v1/validate`: the catalogues, running an operator, validating a document."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, cast

from fastapi import APIRouter
from pydantic.fields import FieldInfo
from starlette.requests import Request
from starlette.responses import Response

from tensorpost.bodies.strict_json import read_json
from tensorpost.descriptors import NEWEST, OPERATORS, FeatureLevel, OperatorDesc, parse_operator
from tensorpost.descriptors.catalogue import FieldFacts, OperatorFacts
from tensorpost.descriptors.documents import fields_filled_in, left_out, operator_members
from tensorpost.graphs.graph_document import read_graph
from tensorpost.graphs.graph_levels import lowest_level_of
from tensorpost.graphs.omitted_fields import omitted_fields
from tensorpost.onnx import NEWEST_OPSET, ONNX_OPERATORS, lower
from tensorpost.onnx.bounded_node import BoundedNode, node_class
from tensorpost.onnx.package import since_version
from tensorpost.onnx.proto_node import is_by_onnx_runtime
from tensorpost.onnx.schemas import is_own, schema_of
from tensorpost.values.graph import Graph
from tensorpost.values.operation import Operation, Slot
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter, Unavailable, Violation

from ...planning import Plan, make_device_plan, make_plan
from ..background_threads import INLINE_TEXT_BYTES, CallerThreads
from ..caller_address import caller_of
from ..caller_watch import CallerWatch
from ..calls.prepared_call import check_constants, slices_bytes
from ..documents import examples
from ..documents.conformance import conformance_of
from ..headers import FRAMING, Framing, content_length, header_fields
from ..media_types import refuse_content_encoding, require_json
from ..request_body import RequestBody, receive_chunked, whole_json
from ..service import Service, service_of
from ..wires.call_parser import MOST_JSON_CONTAINERS, query_number, read_query, refuse_unknown
from ..wires.directml_dialect import served_operator
from .json_document import JsonDocument

router = APIRouter()

_DISPATCHED = "`OperatorDispatch` answers before the routing; the route is there for the OpenAPI document"
_OPERATOR = {"name": "operator", "in": "path", "required": True, "schema": {"type": "string"}, "example": "tile"}


@router.get("/v1/operators/", include_in_schema=False)
@router.get("/v1/operators", summary="List the operators", tags=["operators"])
async def list_operators(request: Request) -> JsonDocument:
    """Every DirectML operator with its fields, types and support by feature level; every ONNX operator and version.

    `conformance` says of each opened backend how it computes the operator's test cases, and how near the results are.
    """
    onnx = [schema.to_json() for schema in ONNX_OPERATORS]
    opened = _opened_backends(request)
    return JsonDocument({"operators": [catalogue_entry(cls, opened) for cls in OPERATORS], "onnx": onnx})


@router.get(
    "/v1/operators/{operator}",
    summary="Describe an operator",
    tags=["operators"],
    openapi_extra={"parameters": [_OPERATOR]},
)
async def describe_operator(request: Request) -> JsonDocument:
    """One operator's fields, types and support by feature level, with the JSON schema of its descriptor."""
    cls = served_operator(request.path_params["operator"])
    entry = catalogue_entry(cls, _opened_backends(request))
    return JsonDocument({**entry, "json_schema": cls.model_json_schema(by_alias=True)})


def _opened_backends(request: Request) -> Collection[str]:
    pool = service_of(request).pool
    return set() if pool is None else {worker.backend.name for worker in pool.workers.values()}


def catalogue_entry(cls: type[OperatorDesc], backends: Collection[str]) -> dict[str, Any]:
    """The description of an operator in the catalogue, and how these backends compute it."""
    facts = cls.facts
    return {
        "name": cls.operator_type.lower(),
        "type": f"DML_OPERATOR_{cls.operator_type}",
        "value": facts.number,
        "feature_level": str(facts.since),
        "summary": cls.summary,
        "conformance": conformance_of(cls.operator_type, backends),
        "fields": [_field_entry(facts, field, cls.model_fields[field.attribute_name]) for field in facts.fields],
    }


def _field_entry(facts: OperatorFacts, field: FieldFacts, info: FieldInfo) -> dict[str, Any]:
    """A field: an attribute with its query parameter, or a tensor with its name in a frame and what it may be."""
    entry = {"name": field.name, "kind": field.kind, "type": field.type}
    entry |= {"required": info.is_required(), "array": field.is_array}
    if field.kind == "attribute":
        return entry | {"query": field.attribute_name}
    support = [
        {
            "feature_level": str(row.since),
            "dimension_counts": {"lowest": row.dimension_counts[0], "highest": row.dimension_counts[1]},
            "data_types": [data_type.name for data_type in row.data_types],
            **({"functions": list(row.functions)} if row.functions else {}),
        }
        for name, rows in facts.tables()
        if name == field.name
        for row in rows
    ]
    name = field.slot_name
    if field.is_array:
        name += "_0"
    elif field.kind == "output" and len(facts.fields_by_kind["output"]) == 1:
        name = "output"
    return entry | {"optional": field.optional, "tensor": name, "support": support}


@router.post(
    "/v1/operators/{operator}",
    summary="Run an operator",
    tags=["operators"],
    response_class=Response,
    openapi_extra={"parameters": [_OPERATOR]},
)
async def run_operator() -> Response:
    """Post an operator and its tensors; the result comes back as raw bytes, streamed while it is made.

    The answer has the form of the request unless Accept says otherwise. Its headers are complete and true before the
    first byte: Content-Length, Server-Timing (milliseconds per stage up to the first slice), Tensorpost-Backend,
    Tensorpost-Device and X-Request-ID.
    """
    raise AssertionError(_DISPATCHED)


_GRAPH_OPENAPI = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object"},
                "examples": {
                    "with names": {"value": examples.graph_call()},
                    "in DirectML's structs": {"value": examples.dml_graph_call()},
                },
            }
        },
    },
}


@router.post(
    "/v1/graphs", summary="Run a graph", tags=["operators"], response_class=Response, openapi_extra=_GRAPH_OPENAPI
)
async def run_graph() -> Response:
    """Post a graph of operators and ONNX nodes with its input tensors; its outputs come back as raw bytes.

    The graph stands in a frame's metadata under `graph`, in the member `graph` of a JSON body beside `tensors`, or in
    the query parameter `graph` if the body is an npy file, a picture, raw bytes or an npz archive: a document with
    names, or `DML_GRAPH_DESC` as JSON. What lies between the nodes never travels. Answers are as for `/v1/operators`.
    """
    raise AssertionError(_DISPATCHED)


@router.get("/v1/onnx/", include_in_schema=False)
@router.get("/v1/onnx", summary="List the ONNX operators", tags=["onnx"])
async def list_onnx_operators() -> JsonDocument:
    """Every version of every ONNX operator here: inputs, types and attributes with their defaults."""
    return JsonDocument({"operators": [schema.to_json() for schema in ONNX_OPERATORS]})


@router.get(
    "/v1/onnx/{op_type}",
    summary="Describe an ONNX operator",
    tags=["onnx"],
    openapi_extra={
        "parameters": [
            {**_OPERATOR, "name": "op_type", "example": "Resize"},
            {"name": "opset", "in": "query", "required": False, "schema": {"type": "integer"},
             "description": "The opset of the default domain; default the newest known."},
        ]
    },
)  # fmt: skip
async def describe_onnx_operator(request: Request) -> JsonDocument:
    """The version of an ONNX operator that an opset means: inputs, types, attributes with their defaults.

    `signature` is what the package onnx says of an operator that ONNX Runtime computes.
    """
    op_type, parameters = request.path_params["op_type"], read_query(request.url.query)
    refuse_unknown(parameters, ["opset"])
    text = parameters.get("opset", str(NEWEST_OPSET))
    opset = query_number("opset", text, "is not the number of an opset")
    schema = await asyncio.to_thread(schema_of, op_type, opset)  # which may ask another process
    document = schema.to_json()
    if not is_own(schema.op_type):
        version = await asyncio.to_thread(since_version, op_type, opset)
        document["signature"] = None if isinstance(version, str) else version[1]
    return JsonDocument(document)


_MODEL_OPENAPI = {
    "parameters": [
        {
            "name": "outputs", "in": "query", "required": False, "schema": {"type": "string"},
            "description": "Names of the model's outputs that are wanted, separated by commas; default all.",
        }
    ],
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object", "required": ["model"],
                    "properties": {"model": {"type": "string", "format": "binary", "description": "The ONNX file."}},
                    "additionalProperties": {"type": "string", "format": "binary", "description": "An npy file."},
                }
            }
        },
    },
}  # fmt: skip


@router.post(
    "/v1/onnx", summary="Run an ONNX model", tags=["onnx"], response_class=Response, openapi_extra=_MODEL_OPENAPI
)
async def run_model() -> Response:
    """Post an ONNX model and its inputs as multipart/form-data; its outputs come back as raw bytes.

    The part `model` is the file; every other part is an input by its name, an npy file or a picture:
    `curl --fail-with-body -F model=@model.onnx -F x=@x.npy localhost:8000/v1/onnx -o y.npy`.
    Answers are as for `/v1/graphs`.
    """
    raise AssertionError(_DISPATCHED)


@router.post(
    "/v1/onnx/{op_type}",
    summary="Run an ONNX node",
    tags=["onnx"],
    response_class=Response,
    openapi_extra={"parameters": [{**_OPERATOR, "name": "op_type", "example": "Resize"}]},
)
async def run_onnx() -> Response:
    """Post an ONNX node and its tensors; the result comes back as raw bytes, streamed while it is made.

    Small inputs (repeats, scales, sizes, roi) stand in the query, in the node document, or travel as tensors of a
    frame. Answers are as for `/v1/operators`.
    """
    raise AssertionError(_DISPATCHED)


_VALIDATE_OPENAPI = {
    "parameters": [
        {
            "name": "feature_level", "in": "query", "required": False, "schema": {"type": "string"},
            "description": "DirectML feature level, 1_0 to 6_4; default the newest",
        },
        {
            "name": "strict", "in": "query", "required": False, "schema": {"type": "string", "enum": ["0", "1"]},
            "description": "1: an operator document that leaves fields out is not valid; default 0, they are filled in",
        },
    ],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}, "example": examples.tile_document()}},
    },
}  # fmt: skip


@router.post(
    "/v1/validate",
    summary="Validate an operator document or a graph",
    tags=["operators"],
    openapi_extra=_VALIDATE_OPENAPI,
)
async def validate(request: Request) -> JsonDocument:
    """The verdict, every violation, the bytes and cost of the call, the output's description, the lowest feature level.

    `cost` is about what the call would take on the device that would be chosen now: `work` counts the elements that are
    read and combined, `seconds` are those of computing, `memory_bytes` is what is reserved before the body is read:
    inputs and constants, results that are computed in full before the answer begins, as those between the nodes of a
    graph (`held_bytes`, the most that they take at a time), what is being computed, and parts of the answer that wait
    to be sent. It is null for a document that is not valid.

    The body is an operator document, `{"type": ..., "desc": {...}}`, or an ONNX node document, `{"op_type": ...,
    "opset": ..., "inputs": {...}, "attributes": {...}}`; for a node, `lowering` says how well one DirectML operator of
    that level can express it, and `warnings` what other implementations answer differently. Sizes that depend on
    elements, as those that NonZero makes, are null, and bytes are then the most that there may be. A graph is the
    document of `/v1/graphs`, with numbers for all sizes of its inputs; `nodes` has the tensors that each node makes,
    with their bytes. `filled_in` names the fields that an operator document leaves out and that were completed, since
    they have a default or follow from the rest (`Scales`; `node.Scales` of a node of a graph); `strict=1` makes each of
    them a violation. It is null for an ONNX node document, for which there is no `strict`. The answer is 200 whether
    the document is valid or not; 4xx means that the question itself could not be read, or that the document is too
    large.
    """
    service = service_of(request)
    sent = read_query(request.url.query)
    refuse_unknown(sent, ["feature_level", "strict"])
    strict = sent.get("strict", "0")
    if strict not in ("0", "1"):
        raise InvalidParameter(f"strict is {strict[:20]!r}; it must be 1, to refuse what was left out, or 0")
    level = FeatureLevel.parse(sent.get("feature_level", NEWEST))
    settings = service.settings
    fields = header_fields(request.scope["headers"])
    require_json(fields)
    refuse_content_encoding(fields)
    with service.admission.admit(0) as ticket, CallerWatch(request.receive) as watch:
        framing: Framing = request.scope[FRAMING]
        if framing.chunked:
            chunks = await receive_chunked(
                request.receive, settings.max_json_bytes, settings.receive_timeout_seconds, ticket.grow
            )
            length = len(chunks)
            body = RequestBody(request.receive, length, settings.receive_timeout_seconds)
            body.supply(memoryview(chunks))
        else:
            length = content_length(framing.length, settings.max_body_bytes)
            body = RequestBody(request.receive, length, settings.receive_timeout_seconds)
        text = await whole_json(body, settings, ticket.grow)
        watch.start()
        large, caller = length > INLINE_TEXT_BYTES, caller_of(request.scope)
        threads, slow_threads = CallerThreads(service.parsing, caller), CallerThreads(service.slow_threads, caller)
        document = await threads.run(large, read_json, text, max_containers=MOST_JSON_CONTAINERS)
        # Every coordinate of every axis of a node is compared, which can take a second.
        operation: Operation | Graph | None
        if strict == "1" and _has(document, "op_type"):
            raise InvalidParameter("strict is for fields of DirectML's operators; leave it out for ONNX nodes")
        if _has(document, "nodes") or _has(document, "Nodes"):
            most = settings.max_graph_nodes
            verdict, operation = await slow_threads.run(True, _graph_verdict, level, document, most, strict == "1")
        elif _has(document, "op_type"):
            verdict, operation = await slow_threads.run(True, _node_verdict, level, document)
        else:
            verdict, operation = await threads.run(large, _descriptor_verdict, level, document, strict == "1")
        cost = None
        if operation is not None and verdict["valid"]:
            is_graph = isinstance(operation, Graph)
            if isinstance(operation, Graph):
                check_constants(operation, settings)
            planning = slow_threads if is_graph else threads
            plan = await planning.run(large or is_graph, make_plan, operation, settings.slice_bytes)
            cost = await planning.run(is_graph, plan_cost, service, plan)
        return JsonDocument(verdict | {"cost": cost})


def plan_cost(service: Service, plan: Plan) -> dict[str, Any] | None:
    """Estimate of what the plan would take on the device that would be chosen now; None if there is none for it."""
    workers = service.workers()
    try:
        worker = workers.choose(plan)
        if plan.libraries and workers.has_devices:
            on_device = make_device_plan(plan.graph, service.settings.slice_bytes)
            if on_device is not None and not (chosen := workers.choose(on_device)).backend.inline:
                plan, worker = on_device, chosen
    except Unavailable:
        return None
    seconds = worker.costs.seconds(plan)
    memory = (
        plan.input_bytes + plan.constant_bytes + slices_bytes(plan, service.settings) + worker.backend.held_bytes(plan)
    )
    return {
        "backend": worker.computed_by(plan),
        "device": worker.backend.device,
        "work": plan.work,
        "seconds": float(f"{seconds:.2g}"),
        "memory_bytes": memory,
        "held_bytes": plan.held_bytes,
        "summary": f"this would take about {_in_units(seconds, _TIMES)} and {_in_units(memory, _SIZES, digits=3)}",
    }


_TIMES = (("s", 1), ("ms", 1e-3), ("\N{MICRO SIGN}s", 1e-6), ("ns", 1e-9))
_SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))


def _in_units(amount: float, units: Sequence[tuple[str, float]], digits: int = 2) -> str:
    """`60 ns`, `1.5 MiB`: in the largest unit of which there is one, or in the last."""
    unit, factor = next((each for each in units if amount >= each[1]), units[-1])
    return f"{float(f'{amount / factor:.{digits}g}'):,.12g} {unit}"


def _descriptor_verdict(level: FeatureLevel, document: Any, strict: bool) -> tuple[dict[str, Any], Operation | None]:
    try:
        desc = parse_operator(document, complete=True)
    except InvalidDescriptor as error:
        return _verdict(level, error.violations), None
    _, member = operator_members(document)
    filled_in = fields_filled_in(document, desc)
    found = left_out(member, filled_in, desc.operator_type) if strict else []
    found += [violation.prefixed(member) for violation in desc.unsupported_at(level)]
    return _verdict(level, found, desc) | {"filled_in": filled_in}, desc


_OF_AN_OPERATION = (
    "lowest_feature_level", "op", "output", "inputs", "outputs", "input_bytes", "output_bytes", "filled_in",
)  # fmt: skip
"""Members of a verdict that are null where the document means no operation."""


def _verdict(level: FeatureLevel, violations: Sequence[Violation], desc: OperatorDesc | None = None) -> dict[str, Any]:
    verdict: dict[str, Any] = {
        "valid": not violations,
        "feature_level": str(level),
        "violations": [violation.to_json() for violation in violations],
        **dict.fromkeys(_OF_AN_OPERATION),
    }
    if desc is not None:
        lowest = desc.lowest_feature_level()
        outputs = [tensor for _, tensor in desc.tensors("output")]
        verdict |= {
            "lowest_feature_level": None if lowest is None else str(lowest),
            "op": desc.to_document(),
            "output": outputs[0].to_json(),
            **_sizes(desc.inputs, desc.outputs),
        }
    return verdict


def _graph_verdict(
    level: FeatureLevel, document: Any, most_nodes: int, strict: bool
) -> tuple[dict[str, Any], Graph | None]:
    try:
        graph = read_graph(document, None, level=level, most_nodes=most_nodes)
    except InvalidDescriptor as error:
        return _verdict(level, error.violations) | {"nodes": None, "onnx_runtime": None}, None
    nodes = {node.name: _tensor_entries(node.operation.outputs) for node in graph.nodes}
    lowest, omitted = lowest_level_of(graph), omitted_fields(document, graph)
    found = [violation for each in omitted for violation in each.violations] if strict else []
    verdict = _verdict(level, found) | {
        "lowest_feature_level": None if lowest is None else str(lowest),
        "nodes": nodes,
        "filled_in": [name for each in omitted for name in each.names],
        "onnx_runtime": [node.name for node in graph.nodes if is_by_onnx_runtime(node.operation)],
        **_sizes(graph.inputs, graph.output_slots),
    }
    return verdict, graph


def _sizes(inputs: Sequence[Slot], outputs: Sequence[Slot]) -> dict[str, Any]:
    """Tensors with their bytes, and the sums of those."""
    return {
        "inputs": _tensor_entries(inputs),
        "outputs": _tensor_entries(outputs),
        "input_bytes": sum([slot.layout.size_in_bytes for slot in inputs]),
        "output_bytes": sum([slot.layout.size_in_bytes for slot in outputs]),
    }


def _tensor_entries(slots: Sequence[Slot]) -> list[dict[str, Any]]:
    """What travels of each tensor: with strides or padding its whole buffer, as bytes."""

    def entry(slot: Slot) -> dict[str, Any]:
        layout = slot.layout
        return {
            "name": slot.name,
            "dtype": layout.data_type.numpy_name if layout.packed else "uint8",
            "shape": list(layout.sizes) if layout.packed else [layout.size_in_bytes],
            "size_in_bytes": layout.size_in_bytes,
        }

    return [entry(slot) for slot in slots]


def _has(document: object, member: str) -> bool:
    return isinstance(document, dict) and member in cast("dict[str, object]", document)


def _node_verdict(level: FeatureLevel, document: object) -> tuple[dict[str, Any], Operation | None]:
    try:
        node = node_class(cast("dict[str, object]", document)["op_type"]).from_json(document)
    except InvalidDescriptor as error:
        return _verdict(level, error.violations) | {"lowering": None, "warnings": []}, None
    lowering = lower(node, level)
    descriptor = lowering.descriptor
    lowest = None if descriptor is None else descriptor.lowest_feature_level()
    verdict = _verdict(level, []) | {
        "lowest_feature_level": None if lowest is None else str(lowest),
        "op": node.to_json(),
        "output": node.output.to_json(),
        **_sizes(node.inputs, node.outputs),
        "warnings": list(node.warnings),
        "lowering": {
            "verdict": lowering.verdict.value,
            "reason": lowering.reason,
            "op": None if descriptor is None else descriptor.to_document(),
        },
    }
    if isinstance(node, BoundedNode):
        verdict |= _unknown_sizes(node)
    return verdict, node


def _unknown_sizes(node: BoundedNode) -> dict[str, Any]:
    """What is different if sizes depend on elements: they are null, and bytes are the most that there may be."""
    outputs = [
        {
            "name": name,
            "dtype": result.data_type,
            "shape": [None] * result.rank,
            "size_in_bytes": tensor.size_in_bytes,
        }
        for name, result, (_, tensor) in zip(node.result_names, node.bounds, node.results, strict=False)
    ]
    shape = {"data_type": node.output.row.onnx, "shape": outputs[0]["shape"]}
    total = sum([tensor.size_in_bytes for _, tensor in node.results[:-1]])
    return {"op": node.asked_document(), "output": shape, "outputs": outputs, "output_bytes": total}
