"""`/v1/graphs`: storing graphs and models, listing, describing and deleting them. Calls of them are dispatched."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tensorpost.descriptors import NEWEST
from tensorpost.graphs.graph_levels import lowest_level_of
from tensorpost.graphs.graph_picture import svg_of
from tensorpost.onnx.model_reader import MODEL_MEDIA_TYPE
from tensorpost.values.graph import Graph
from tensorpost.values.problems import InvalidParameter, NotAcceptable

from ...planning import Plan, make_plan
from ...settings import Settings
from ..background_threads import CallerThreads
from ..caller_address import caller_of
from ..caller_watch import CallerWatch
from ..documents import examples
from ..headers import header_fields
from ..media_types import refuse_content_encoding
from ..service import service_of
from ..wires.call_parser import read_query, refuse_unknown
from ..wires.graph_sources import (
    DeclaredTensor,
    GraphSource,
    declared_layouts,
    read_source,
    reading_bytes,
)
from ..wires.graph_store import GraphVersion, StoreEntry
from ..wires.model_config import BATCH_PARAMETERS, batches_from_query
from ..wires.shared_graphs import GraphUses, StoredContent
from ..wires.version_policy import LARGEST_VERSION, version_number
from .json_document import JsonDocument
from .operator_routes import plan_cost
from .whole_body import receive_whole

router = APIRouter(tags=["graphs"])

_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}, "example": "small"}
_VERSION: dict[str, Any] = {
    "name": "version", "in": "query", "schema": {"type": "integer", "minimum": 1},
    "description": "The version, for a graph of which several are stored at a time. Default: the highest number.",
}  # fmt: skip
_OF_ONE: dict[str, Any] = {**_VERSION, "description": "The only version to delete. Default: all of them."}
_STORED_AS: dict[str, Any] = {
    **_VERSION,
    "description": "Store it as this version, beside others of the name. Default: as 1, in place of all of them.",
}
_BATCHES: list[dict[str, Any]] = [
    {
        "name": "max_batch_size", "in": "query", "schema": {"type": "integer", "minimum": 1},
        "description": "Compute calls that wait together, up to so many rows: the first sizes of their tensors.",
    },
    {
        "name": "max_queue_delay_microseconds", "in": "query",
        "schema": {"type": "integer", "minimum": 0, "default": 0},
        "description": "How long a call may wait for others although nothing is computed; needs `max_batch_size`.",
    },
]  # fmt: skip
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object"}, "example": examples.graph_call()["graph"]},
            MODEL_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}},
            "application/vnd.safetensors": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
_TENSORS: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {"schema": {"type": "object"}, "example": {"tensors": examples.graph_call()["tensors"]}}
    },
}
_MOST_DIGITS = 10
_DISPATCHED = "`OperatorDispatch` answers before the routing; the route is there for the OpenAPI document"


@router.get("/v1/graphs", summary="List the stored graphs")
async def list_graphs(request: Request) -> JsonDocument:
    """The caller's stored graphs and the server's own, each version with bytes, age and idle time."""
    service = service_of(request)
    uses = await service.shared_graphs.uses_elsewhere()
    graphs = service.graphs.listed(service.owner_of(request.scope))
    return JsonDocument({"graphs": [_entry(graph, uses) for graph in graphs]})


@router.put("/v1/graphs", summary="Store a graph under its digest", openapi_extra={**_BODY, "parameters": _BATCHES})
async def store_graph_by_digest(request: Request) -> JsonDocument:
    """The same as `PUT /v1/graphs/{name}`, with the SHA-256 of the body as the name."""
    return await _store(request, None)


@router.put(
    "/v1/graphs/{name}", summary="Store a graph", openapi_extra={**_BODY, "parameters": [_NAME, _STORED_AS, *_BATCHES]}
)
async def store_graph(request: Request) -> JsonDocument:
    """Keep a graph for calls by its name, which send nothing but tensors: `POST /v1/graphs/{name}`.

    The body is a graph's document (see `POST /v1/graphs`), an ONNX model (application/onnx), or a frame with the graph
    in its metadata and with tensors that are inputs of the graph and are kept with it. Without a Content-Type the first
    bytes decide. A graph of the same name is replaced; `?version=2` replaces this version alone, and calls that name
    no version go to the highest number. What is not called for a day is dropped
    (TENSORPOST_STORED_GRAPH_IDLE_SECONDS). With `max_batch_size`, calls that wait are computed together, where each row
    of the outputs depends on the same row of the inputs only.
    """
    return await _store(request, request.path_params["name"])


@router.post(
    "/v1/graphs/{name}",
    summary="Run a stored graph",
    response_class=Response,
    openapi_extra={"parameters": [_NAME, _VERSION], "requestBody": _TENSORS},
)
async def run_stored_graph() -> Response:
    """Post the input tensors of a stored graph; its outputs come back as raw bytes, as from `POST /v1/graphs`."""
    raise AssertionError(_DISPATCHED)


@router.get("/v1/graphs/{name}", summary="Describe a stored graph", openapi_extra={"parameters": [_NAME, _VERSION]})
async def describe_graph(request: Request) -> Response:
    """Its inputs and outputs, document, digest and bytes; and, with `Accept: image/svg+xml`, a picture of it.

    `cost`, `lowest_feature_level` and the picture need numbers for all sizes of its inputs. `?sizes=h:480,w:640` gives
    them for names of sizes.
    """
    service = service_of(request)
    owner, name, parameters = service.owner_of(request.scope), request.path_params["name"], _parameters(request)
    refuse_unknown(parameters, ["sizes", "version"])
    graph = service.graphs.find(owner, name, parameters.get("version"))
    wants_picture = "image/svg+xml" in request.headers.get("accept", "")
    threads = CallerThreads(service.slow_threads, caller_of(request.scope))
    found = await threads.run(True, _specialised, graph.source, _sizes(parameters.get("sizes", "")), service.settings)
    if wants_picture:
        if found is None:
            raise NotAcceptable("the sizes of its inputs are not known; give them, as in ?sizes=h:480,w:640")
        return Response(svg_of(found[0]), media_type="image/svg+xml")
    uses = await service.shared_graphs.uses_elsewhere()
    described = await threads.run(True, _description, graph, service.graphs.versions(owner, name), uses)
    level = None if found is None else lowest_level_of(found[0])
    cost = None if found is None else plan_cost(service, found[1])
    return JsonDocument(described | {"lowest_feature_level": None if level is None else str(level), "cost": cost})


@router.delete(
    "/v1/graphs/{name}",
    summary="Delete a stored graph",
    status_code=204,
    response_class=Response,
    openapi_extra={"parameters": [_NAME, _OF_ONE]},
)
async def delete_graph(request: Request) -> Response:
    """Delete a stored graph, or a version of it. Calls of it that are in progress are completed."""
    service, parameters = service_of(request), _parameters(request)
    refuse_unknown(parameters, ["version"])
    owner, name = service.owner_of(request.scope), request.path_params["name"]
    async with service.shared_graphs.staged() as staged:
        service.graphs.delete(owner, name, parameters.get("version"))
        await service.shared_graphs.publish(owner, name, staged)
    return Response(status_code=204)


async def _store(request: Request, name: str | None) -> JsonDocument:
    service = service_of(request)
    settings, fields, owner = service.settings, header_fields(request.scope["headers"]), service.owner_of(request.scope)
    refuse_content_encoding(fields)
    parameters = _parameters(request)
    refuse_unknown(parameters, [*BATCH_PARAMETERS, "version"])
    version = _version_to_store(parameters, name)
    caller = caller_of(request.scope)
    with service.admission.admit(0, caller) as ticket, CallerWatch(request.receive) as watch:
        content = await receive_whole(request, settings, ticket)
        watch.start()
        kind = request.headers.get("content-type")
        ticket.grow(reading_bytes(content, kind, settings))
        threads = CallerThreads(service.slow_threads, caller)
        source = await threads.run(True, read_source, content, kind, settings)
        batches = await threads.run(bool(parameters), batches_from_query, parameters, source)
    stored = GraphVersion.of(content, source, version or 1, batches)
    async with service.shared_graphs.staged([StoredContent(stored.version, content, kind)]) as staged:
        graph, is_new = service.graphs.put(owner, name, [stored], keeps_others=version is not None)
        await service.shared_graphs.publish(owner, graph.name, staged)
    described = await threads.run(True, _description, graph, service.graphs.versions(owner, graph.name), {})
    location = f"/v1/graphs/{graph.name}" + ("" if version is None else f"?version={version}")
    return JsonDocument(described, 201 if is_new else 200, {"Location": location})


def _parameters(request: Request) -> dict[str, str]:
    return read_query(request.url.query)


def _version_to_store(parameters: Mapping[str, str], name: str | None) -> int | None:
    """The version in the query of `PUT`; None if there is none.

    Raises:
        InvalidParameter: it is no version, or the graph has no name.
    """
    text = parameters.get("version")
    if text is None:
        return None
    if name is None:
        raise InvalidParameter(
            "a version needs a name, as in PUT /v1/graphs/NAME?version=2", extra={"parameter": "version"}
        )
    version = version_number(text)
    if version is None:
        raise InvalidParameter(
            f"version is {text[:40]!r}; it must be a whole number from 1 to {LARGEST_VERSION:,}",
            extra={"parameter": "version"},
        )
    return version


def _entry(graph: StoreEntry, uses: GraphUses) -> dict[str, Any]:
    calls, last = uses.get((graph.owner, graph.name, graph.version), (0, 0.0))
    return {
        "name": graph.name,
        "version": graph.version,
        "kind": graph.source.kind,
        "digest": f"sha256:{graph.digest}",
        "owner": "server" if graph.owner is None else "caller",
        "nodes": graph.source.node_count,
        "size_in_bytes": graph.size_in_bytes,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(graph.created)),
        "idle_seconds": round(time.monotonic() - max(graph.used, last), 1),
        "calls": graph.calls + calls,
    }


def _description(graph: StoreEntry, versions: Sequence[StoreEntry], uses: GraphUses) -> dict[str, Any]:
    def entries(tensors: list[DeclaredTensor]) -> list[dict[str, Any]]:
        return [tensor.to_json() for tensor in tensors]

    source = graph.source
    return _entry(graph, uses) | {
        "versions": [each.version for each in versions],
        "max_batch_size": 0 if graph.batches is None else graph.batches.max_batch_size,
        "max_queue_delay_microseconds": None if graph.batches is None else graph.batches.max_queue_delay_microseconds,
        "inputs": entries([*source.inputs]),
        "outputs": entries([*source.outputs]),
        "document": source.document,
    }


def _sizes(text: str) -> dict[str, int]:
    """`h:480,w:640`, read."""
    found: dict[str, int] = {}
    for item in filter(None, text.split(",")):
        name, _, size = item.partition(":")
        if not name or not size.isascii() or not size.isdigit() or len(size) > _MOST_DIGITS:
            raise InvalidParameter(
                f"sizes has {item[:60]!r}; it must be as in sizes=h:480,w:640", extra={"parameter": "sizes"}
            )
        found[name] = int(size)
    return found


def _specialised(source: GraphSource, sizes: Mapping[str, int], settings: Settings) -> tuple[Graph, Plan] | None:
    """The graph and its plan for these sizes; None if not all of them are known."""
    sent = declared_layouts(source, sizes)
    if sent is None or source.value_names:
        return None
    graph = source.graph(sent, {}, None, NEWEST, settings.max_graph_nodes)
    return graph, make_plan(graph, settings.slice_bytes)
