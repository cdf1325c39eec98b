"""The endpoints of `/v2` that compute nothing: metadata, configuration, statistics, the model repository.

Requests are read as raw bytes: clients send no Content-Type, or a wrong one. `operator_dispatch.py` takes the
inferences before FastAPI's routing; their route here is for the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tensorpost.bodies.strict_json import read_json
from tensorpost.values.problems import InvalidParameter, LimitExceeded, NoBackend, NotReady

from ...settings import Settings
from ...shared.siblings import CHANGE_SECONDS
from ..background_threads import INLINE_TEXT_BYTES, CallerThreads
from ..caller_address import caller_of
from ..caller_watch import CallerWatch
from ..headers import header_fields
from ..open_inference.cuda_region import has_sharing_worker, sharing_worker
from ..open_inference.load_request import LOAD_MEMORY_FACTOR, LoadRequest, VersionFile, read_load_request
from ..open_inference.models import VERSION, Model
from ..open_inference.shared_memory import RegionKind
from ..open_inference.statistics import joined_statistics
from ..service import Service, service_of
from ..wires.graph_folder import read_graph_folder
from ..wires.graph_sources import read_source, reading_bytes
from ..wires.graph_store import GraphVersion
from ..wires.model_config import configured_batches
from ..wires.shared_graphs import FOLDER_QUESTION, StoredContent
from .whole_body import receive_whole

_EXTENSIONS = ("binary_tensor_data", "parameters", "model_configuration", "statistics", "model_repository")
_MOST_BODY_BYTES = 64 * 1024  # of a request that holds no tensors
_TAGS: list[Any] = ["open inference"]

STATISTICS_QUESTION = "statistics"
"""What a process asks the others for; `own_statistics` is the answer."""

_MODEL: dict[str, Any] = {
    "parameters": [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}, "example": "tile"}]
}

_REGION: dict[str, Any] = {
    "parameters": [{"name": "region", "in": "path", "required": True, "schema": {"type": "string"}, "example": "x"}]
}

router = APIRouter(tags=_TAGS)


@router.get("/v2", summary="What this server is")
async def server_metadata(request: Request) -> JSONResponse:
    """Name, version and extensions of the Open Inference Protocol."""
    service = service_of(request)
    enabled = service.regions.enabled
    shared = ["system_shared_memory"] if enabled["system"] else []
    if enabled["cuda"] and service.pool is not None and has_sharing_worker(service.pool):
        shared.append("cuda_shared_memory")
    return JSONResponse({"name": "tensorpost", "version": version("tensorpost"), "extensions": [*_EXTENSIONS, *shared]})


@router.get("/v2/models", summary="List the models")
async def list_models(request: Request) -> JSONResponse:
    """Names of all models: presets, stored graphs, then every operator."""
    return JSONResponse({"models": list(service_of(request).model_names(request.scope))})


@router.get("/v2/models/stats", summary="Statistics of every model that was called")
async def all_statistics(request: Request) -> JSONResponse:
    """Counts and nanoseconds since the start."""
    return await _statistics(request, None)


@router.get("/v2/models/{model}", summary="A model's inputs and outputs", openapi_extra=_MODEL)
@router.get("/v2/models/{model}/versions/{version}", include_in_schema=False)
async def model_metadata(request: Request) -> JSONResponse:
    """Names, datatypes and shapes, -1 for a free size. Requests may have other datatypes that the operator takes."""
    model = _model(request)
    return JSONResponse(model.to_metadata(service_of(request).versions_of(request.scope, model)))


@router.get("/v2/models/{model}/ready", summary="Will the model's requests be served?", openapi_extra=_MODEL)
@router.get("/v2/models/{model}/versions/{version}/ready", include_in_schema=False)
async def model_ready(request: Request) -> JSONResponse:
    """200 if they will; 503 while starting or draining."""
    model, service = _model(request), service_of(request)
    if not service.ready:
        raise NotReady("the server is starting or stopping; try again")
    return JSONResponse({"name": model.name, "ready": True})


@router.get("/v2/models/{model}/config", summary="A model's configuration", openapi_extra=_MODEL)
@router.get("/v2/models/{model}/versions/{version}/config", include_in_schema=False)
async def model_config(request: Request) -> JSONResponse:
    """Triton's ModelConfig as JSON; `parameters.attributes_schema` is a JSON Schema of the attributes."""
    model = _model(request)
    return JSONResponse(model.to_config(service_of(request).versions_of(request.scope, model)))


@router.get("/v2/models/{model}/stats", summary="Statistics of a model", openapi_extra=_MODEL)
@router.get("/v2/models/{model}/versions/{version}/stats", include_in_schema=False)
async def model_statistics(request: Request) -> JSONResponse:
    """Counts and nanoseconds since the start."""
    return await _statistics(request, _model(request))


@router.post("/v2/models/{model}/infer", summary="Run a model", openapi_extra=_MODEL)
@router.post("/v2/models/{model}/versions/{version}/infer", include_in_schema=False)
async def infer(request: Request) -> Response:
    """JSON, then the bytes of binary tensors; `Inference-Header-Content-Length` says how long the JSON is."""
    del request
    raise AssertionError("`OperatorDispatch` answers before the routing; the route is there for the OpenAPI document")


@router.post("/v2/repository/index", summary="List the models and their states")
async def repository_index(request: Request) -> JSONResponse:
    """Every version of every model is READY."""
    await _body(request)
    service = service_of(request)
    versions: dict[str, list[str]] = {}
    for graph in service.graphs.listed(service.owner_of(request.scope)):
        versions.setdefault(graph.name, []).append(str(graph.version))
    return JSONResponse([
        {"name": name, "version": version, "state": "READY", "reason": ""}
        for name in service.model_names(request.scope)
        for version in versions.get(name, [VERSION])
    ])  # fmt: skip


@router.post(
    "/v2/repository/models/{model}/load", summary="Load a model", openapi_extra=_MODEL, response_class=Response
)
async def load_model(request: Request) -> Response:
    """Store a model as Triton's clients send one: `{"parameters": {"file:1/model.onnx": "base64", "config": "{}"}}`.

    The file is kept as by `PUT /v1/graphs/{name}`, and the version is that of its path; of files of several versions,
    the `version_policy` of the configuration chooses, the latest by default, and all versions of before are replaced.
    `config` is Triton's ModelConfig as JSON. Without a file, a graph of the folder TENSORPOST_GRAPHS is read again;
    operators and the caller's graphs are loaded already: 200, or 404 for one that there is not.
    """
    service, settings, name = service_of(request), service_of(request).settings, request.path_params["model"]
    owner, caller = service.owner_of(request.scope), caller_of(request.scope)
    threads = CallerThreads(service.slow_threads, caller)
    with service.admission.admit(0, caller) as ticket, CallerWatch(request.receive) as watch:
        body = await receive_whole(request, settings, ticket)
        watch.start()
        ticket.grow(LOAD_MEMORY_FACTOR * len(body))
        load = await threads.run(len(body) > INLINE_TEXT_BYTES, read_load_request, body)
        if load.files:
            ticket.grow(sum([reading_bytes(file.content, None, settings) for file in load.files]))
            versions = [await threads.run(True, _read_version, file, name, load, settings) for file in load.files]
            stored = [StoredContent(file.version, file.content, None) for file in load.files]
            async with service.shared_graphs.staged(stored) as staged:
                service.graphs.put(owner, name, versions)
                await service.shared_graphs.publish(owner, name, staged)
            return Response()
        has_file = not service.models.has(name) and not service.graphs.is_of(owner, name)
        if has_file and settings.graphs is not None:
            files = await threads.run(True, read_graph_folder, settings.graphs, settings, name)
            service.graphs.take_files(files, name)
            await service.group.siblings.ask(FOLDER_QUESTION, name, seconds=CHANGE_SECONDS)
    model = _model(request)
    if load.config is not None:
        if model.stored is None:
            raise NoBackend("the configuration of an operator cannot be changed")
        known = {each.version: each.source for each in service.graphs.versions(owner, name)}
        chosen = known if load.policy is None else load.policy.choose(known.keys())
        batches = {
            version: await threads.run(True, configured_batches, load.config, name, known[version], None)
            for version in chosen
        }
        async with service.shared_graphs.staged() as staged:
            service.graphs.configure(owner, name, batches, dropped=known.keys() - batches.keys())
            await service.shared_graphs.publish(owner, name, staged)
    return Response()


def _read_version(file: VersionFile, name: str, load: LoadRequest, settings: Settings) -> GraphVersion:
    source = read_source(file.content, None, settings)
    return GraphVersion.of(
        file.content, source, file.version, configured_batches(load.config, name, source, file.name)
    )  # fmt: skip


@router.post(
    "/v2/repository/models/{model}/unload", summary="Unload a model", openapi_extra=_MODEL, response_class=Response
)
async def unload_model(request: Request) -> Response:
    """A stored graph of the caller is deleted, all its versions; operators, and the server's graphs, stay."""
    model, service = _model(request), service_of(request)
    if model.stored is None:
        raise NoBackend("operators cannot be unloaded")
    owner = service.owner_of(request.scope)
    async with service.shared_graphs.staged() as staged:
        service.graphs.delete(owner, model.name)
        await service.shared_graphs.publish(owner, model.name, staged)
    return Response()


@router.api_route("/v2/trace/setting", methods=["GET", "POST"], include_in_schema=False)
@router.api_route("/v2/models/{model}/trace/setting", methods=["GET", "POST"], include_in_schema=False)
@router.api_route("/v2/logging", methods=["GET", "POST"], include_in_schema=False)
async def not_offered(request: Request) -> Response:
    """Always refused."""
    del request
    raise NoBackend("trace and log settings are not offered; the server's own settings decide what is recorded")


@router.get("/v2/cudasharedmemory/status", name="cuda_region_status", summary="List the regions of CUDA shared memory")
@router.get("/v2/systemsharedmemory/status", summary="List the regions of shared memory")
@router.get("/v2/systemsharedmemory/region/{region}/status", include_in_schema=False)
@router.get("/v2/cudasharedmemory/region/{region}/status", include_in_schema=False)
async def region_status(request: Request) -> JSONResponse:
    """The caller's own regions; none where shared memory of this kind is off."""
    kind, regions, name = _region_kind(request), service_of(request).regions, request.path_params.get("region")
    if not regions.enabled[kind] and name is None:
        return JSONResponse([])
    return JSONResponse(regions.status(name, _region_owner(request, kind), kind))


@router.post(
    "/v2/systemsharedmemory/region/{region}/register",
    summary="Register a region",
    openapi_extra=_REGION,
    response_class=Response,
)
async def register_region(request: Request) -> Response:
    """`{"key": "/name", "offset": 0, "byte_size": 1024}`: a shared memory object, and the part of it to use."""
    owner, document = _region_owner(request, "system"), await _body(request)
    service_of(request).regions.register_system(
        request.path_params["region"], document.get("key"), document.get("offset"), document.get("byte_size"), owner
    )
    return Response()


@router.post(
    "/v2/cudasharedmemory/region/{region}/register",
    summary="Register a region of a CUDA device",
    openapi_extra=_REGION,
    response_class=Response,
)
async def register_cuda_region(request: Request) -> Response:
    """`{"raw_handle": {"b64": "..."}, "device_id": 0, "byte_size": 1024}`: the handle of another process's memory."""
    document, service = await _body(request), service_of(request)
    worker = sharing_worker(service.workers(), document.get("device_id"))  # without a device, the setting is no help
    owner = _region_owner(request, "cuda")
    await service.regions.register_cuda(
        request.path_params["region"], document.get("raw_handle"), document.get("byte_size"), owner, worker
    )
    return Response()


@router.post(
    "/v2/cudasharedmemory/unregister",
    name="unregister_cuda_region",
    summary="Unregister every CUDA region",
    response_class=Response,
)
@router.post("/v2/systemsharedmemory/unregister", summary="Unregister every region", response_class=Response)
@router.post("/v2/systemsharedmemory/region/{region}/unregister", include_in_schema=False)
@router.post("/v2/cudasharedmemory/region/{region}/unregister", include_in_schema=False)
async def unregister_region(request: Request) -> Response:
    """200, even if the region does not exist. Calls that use it are completed first."""
    kind, regions = _region_kind(request), service_of(request).regions
    if regions.enabled[kind]:
        regions.unregister(request.path_params.get("region"), _region_owner(request, kind), kind)
    return Response()


def _region_kind(request: Request) -> RegionKind:
    return "cuda" if request.scope["route"].path.startswith("/v2/cuda") else "system"


def _region_owner(request: Request, kind: RegionKind) -> str:
    return service_of(request).regions.check(request.scope, header_fields(request.scope["headers"]), kind)


def _model(request: Request) -> Model:
    path: Mapping[str, str] = request.path_params
    return service_of(request).model(request.scope, path["model"], path.get("version"))


async def _statistics(request: Request, model: Model | None) -> JSONResponse:
    service = service_of(request)
    name, versions = None if model is None else model.name, list[int]()
    if model is not None:
        named = "version" in request.path_params
        versions = [int(each) for each in ([model.version] if named else service.versions_of(request.scope, model))]
    asked = service.owner_of(request.scope), name, versions
    others = await service.group.siblings.ask(STATISTICS_QUESTION, *asked)
    return JSONResponse(joined_statistics([await own_statistics(service, *asked), *others]))


async def own_statistics(service: Service, owner: str, name: str | None, versions: list[int]) -> dict[str, Any]:
    """The statistics of this process: of versions of a model, or of all models."""
    if service.records is not None:
        service.records.flush()
    statistics = service.model_statistics
    return statistics.to_json(owner) if name is None else statistics.of_model(owner, name, versions)


async def _body(request: Request) -> Mapping[str, Any]:
    """The JSON object in the body; empty for an empty body."""
    text = bytearray()
    async for part in request.stream():
        text += part
        if len(text) > _MOST_BODY_BYTES:
            raise LimitExceeded(
                f"the body has more than {_MOST_BODY_BYTES:,} bytes, the most that is read at this path",
                extra={"limit": _MOST_BODY_BYTES},
            )
    document: object = read_json(text) if text.strip() else {}
    if not isinstance(document, Mapping):
        raise InvalidParameter("the body must be a JSON object, or empty")
    return cast("Mapping[str, Any]", document)
