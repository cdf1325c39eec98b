"""ASGI middleware: request ids, callers, records of requests, and operator calls without FastAPI's routing.

FastAPI's routing and dependency injection take longer than a small operator (benchmarks/small.py). Its routes for
operators exist for the OpenAPI document only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorpost.values.problems import NotReady, ServerFault, TensorpostError, Unavailable, UnknownOperator

from .access.access_control import CALLER
from .access.browser_requests import BrowserRequests, send_with_page_policy
from .access.cross_origin import is_preflight, preflight_response, send_for_origin
from .connection.whole_messages import whole_messages
from .error_responses import STATUS, allowed_methods, answer_error, answer_http_exception, answer_options, route_path
from .execution import Execution
from .headers import FRAMING, NO_SNIFFING, Framing, header_fields, request_framing, request_id
from .observability.request_record import Observation, RequestTrace, operator_name
from .open_inference.inference_wire import InferenceWire
from .open_inference.models import Model
from .open_inference.statistics import INFER_PATH
from .service import Service
from .wires.call_parser import read_query
from .wires.dialects import DIALECTS
from .wires.graph_dialect import GRAPH_NAME, GRAPHS_PATH, MODELS_PATH, GraphDialect
from .wires.held_inputs import FREE_FIELD, CallerTensors, fields_without_body, may_refer
from .wires.operator_wire import OperatorWire
from .wires.stored_dialect import StoredDialect
from .wires.tensor_read import TENSORS_PATH, TensorReadWire


class OperatorDispatch:
    """ASGI middleware that runs `POST {path of a dialect}/{operator}` and passes everything else on.

    It sets `scope["tensorpost.request_id"]` and the header `X-Request-ID` of every response, and reports each request
    that has ended to `Service.records`.

    Callers that `AccessControl` does not let in are refused.
    """

    __slots__ = ("_app", "_browsers", "_service")

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._browsers = BrowserRequests(service.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run an operator, or pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        fields = header_fields(scope["headers"])
        if (proxies := self._service.proxies) is not None:
            proxies.set_client(scope, fields)
        client = scope.get("client")
        scope[CALLER] = client[0] if client else "local"  # until a key is known
        id_ = scope["tensorpost.request_id"] = request_id(fields.get(b"x-request-id"))
        observation = Observation(scope, id_)
        if self._service.traces is not None:
            observation.trace = RequestTrace.from_headers(fields)
        try:
            await self._answer(scope, receive, send, fields, id_, observation)
        except Exception as error:  # the application answers it outside of here, or the connection breaks
            kind = Unavailable if isinstance(error, MemoryError) else ServerFault
            observation.reason = error.code if isinstance(error, TensorpostError) else kind.code
            if observation.status is None:
                observation.status = STATUS[kind]
            raise
        finally:
            scope.pop("extensions", None)  # the server's refer to the request, whose objects are freed at once without
            if self._service.records is not None:
                self._service.records.add(observation.record(scope))

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, fields: Mapping[bytes, bytes], id_: str,
        observation: Observation,
    ) -> None:  # fmt: skip

        async def send_observed(message: Message) -> None:
            observation.sending(message)
            await send(message)

        request = Request(scope)
        try:
            scope[FRAMING] = request_framing(fields, scope["http_version"])
        except TensorpostError as error:
            response = answer_error(request, error)
            response.headers["Connection"] = "close"  # where the next request begins is not known
            await response(scope, receive, send_observed)
            return
        try:
            self._browsers.check(scope, fields)
        except HTTPException as error:
            await answer_http_exception(request, error)(scope, receive, send_observed)
            return
        origin = self._browsers.foreign_origin(fields)
        if origin is not None:
            send = send_for_origin(send, origin)
            if is_preflight(scope["method"], fields):
                methods = ", ".join(allowed_methods(request)) or "GET, HEAD, OPTIONS"
                await preflight_response(fields, methods)(scope, receive, send_observed)
                return
        path = route_path(scope)
        try:
            receive, send = self._service.access.admit(scope, fields, path, receive, send)
        except TensorpostError as error:
            observation.operator = self._called_operator(scope["method"], path)
            await answer_error(request, error)(scope, receive, send_observed)
            return
        if (freed := fields.get(FREE_FIELD)) is not None:
            await self._free(scope, freed)
        if scope["method"] == "OPTIONS":
            try:
                await answer_options(request)(scope, receive, send_observed)
            except HTTPException as error:
                await answer_http_exception(request, error)(scope, receive, send_observed)
            return
        if scope["method"] == "GET" and path.startswith(f"{TENSORS_PATH}/"):
            service = self._service
            tensors = CallerTensors.of(service.tensors, service.owner_of(scope), scope)
            read = TensorReadWire(path.removeprefix(f"{TENSORS_PATH}/"), tensors)
            framing: Framing = scope[FRAMING]
            scope[FRAMING] = framing._replace(length=framing.length or 0)  # a GET needs no Content-Length
            execution = Execution(service, scope, fields, read, None, observation)
            await _run(service, execution, scope, receive, send_observed, observation)
            return
        if scope["method"] == "POST":
            begin, _, name = path.rpartition("/")
            service, dialect = self._service, DIALECTS.get(begin)
            if begin == GRAPHS_PATH and name:
                try:
                    version = read_query(scope["query_string"].decode("latin-1")).get("version")
                    stored = service.graphs.find(service.owner_of(scope), name, version)
                except TensorpostError as error:
                    observation.operator = GRAPH_NAME
                    await answer_error(request, error)(scope, receive, send_observed)
                    return
                stored.use()
                observation.model_version = stored.version
                dialect, name = StoredDialect(stored, service.settings.max_graph_nodes, version), GRAPH_NAME
            elif path in (GRAPHS_PATH, MODELS_PATH):
                query, most = scope["query_string"].decode("latin-1"), service.settings.max_graph_nodes
                dialect, name = GraphDialect(query, most, path == MODELS_PATH), GRAPH_NAME
            # Responses for pages of other origins have header fields that no other response has.
            # A replay would not free what a header field names.
            replays = service.replays and origin is None and FREE_FIELD not in fields
            whole = whole_messages(scope) if replays else None
            if dialect is not None and name:
                observation.operator = GRAPH_NAME if name == GRAPH_NAME else operator_name(begin, name)
                tensors = CallerTensors.of(service.tensors, service.owner_of(scope), scope)
                wire, framing = OperatorWire(dialect, name, tensors), scope[FRAMING]
                if not (framing.chunked or framing.length) and may_refer(scope["query_string"].decode("latin-1")):
                    scope[FRAMING], fields = framing._replace(length=0), fields_without_body(fields)
                execution = Execution(service, scope, fields, wire, whole, observation)
                await _run(service, execution, scope, receive, send, observation)
                return
            if name == "infer" and (inference := INFER_PATH.fullmatch(path)):
                try:
                    model = service.model(scope, inference[1], inference[2])
                except TensorpostError as error:
                    await answer_error(request, error)(scope, receive, send_observed)
                    return
                observation.operator = _model_operator(model)
                if model.stored is not None:
                    model.stored.stored.use()
                    observation.model_version = model.stored.stored.version
                tensors = CallerTensors.of(service.tensors, service.owner_of(scope), scope)
                inferences = InferenceWire(model, service.regions, tensors, scope, fields)
                execution = Execution(service, scope, fields, inferences, whole, observation)
                await _run(service, execution, scope, receive, send, observation)
                return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = id_
                headers[NO_SNIFFING[0]] = NO_SNIFFING[1]
            await send_observed(message)

        if path == request.app.openapi_url:
            await asyncio.to_thread(request.app.openapi)  # takes a second, once
        inner = send_with_page_policy(send_with_id)
        if scope["method"] == "HEAD":  # is a GET whose answer has no body (RFC 9110, section 9.3.2)
            await self._app({**scope, "method": "GET"}, receive, send_head(inner))
            return
        await self._app(scope, receive, inner)

    async def _free(self, scope: Scope, names: bytes) -> None:
        """Free held tensors that the caller's program does not refer to any more."""
        tensors = CallerTensors.of(self._service.tensors, self._service.owner_of(scope), scope)
        if tensors.may_keep:
            await tensors.store.free(tensors.owner, names.decode("latin-1").split(","))

    def _called_operator(self, method: str, path: str) -> str | None:
        """The operator of a call that is not let in; None if the path names none that there is."""
        begin, _, name = path.rpartition("/")
        if method == "POST" and (path in (GRAPHS_PATH, MODELS_PATH) or begin == GRAPHS_PATH):
            return GRAPH_NAME
        if method == "POST" and begin in DIALECTS:
            return operator_name(begin, name)
        if method == "POST" and (inference := INFER_PATH.fullmatch(path)):
            with suppress(UnknownOperator):
                model = self._service.models.find(inference[1], inference[2])
                return _model_operator(model)
        return None


def _model_operator(model: Model) -> str | None:
    """What records call the operator of a model."""
    return GRAPH_NAME if model.stored is not None else operator_name(model.dialect, model.operator)


def send_head(send: Send) -> Send:
    """Send, without the body."""

    async def send_without_body(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_without_body


async def _run(
    service: Service, execution: Execution, scope: Scope, receive: Receive, send: Send, observation: Observation
) -> None:
    """Run an operator, and answer errors that are refusals; unexpected ones are the application's to answer."""
    try:
        await execution.run(receive, send)
        return
    except asyncio.CancelledError:
        # uvicorn cancels what is not done when the time to stop is over, and logs a traceback of what is raised.
        if not service.draining:
            raise
        if execution.begun:
            observation.reason = NotReady.code
            return
        response = answer_error(Request(scope), service.stopped())
        response.headers["Connection"] = "close"
    except TensorpostError as error:
        if execution.begun:
            raise  # the status has been sent; the connection breaks instead
        response = answer_error(Request(scope), error)
    observation.status, observation.sent_bytes = response.status_code, len(response.body)
    await response(scope, receive, send)
