"""The Open Inference Protocol's gRPC service: each call is a request of `/v2` within this process.

So there is one translator, and admission, access control, queues, metrics, statistics and the access log are the same.
gRPC receives a message whole before it is seen here, so its memory is bounded by the number of calls
(`TENSORPOST_MAX_REQUESTS`) and by the largest body, not by the memory budget.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from starlette.types import ASGIApp, Message

from tensorpost.extras import install_command
from tensorpost.problems import InvalidParameter

from ...settings import Settings, setting_variable
from ..bounded_cache import BoundedCache
from ..connection.tls import CertificateFiles
from ..connection.whole_messages import WHOLE_MESSAGES, ReplayFunction, WholeMessages
from .grpc_messages import METHODS, PACKAGE, grpc_messages
from .grpc_translation import Refused, infer_document, infer_response, length_prefix

__all__ = ["GrpcServer"]

_MOST_MESSAGE_BYTES = 2**31 - 1  # protobuf's own limit
_MOST_WHOLE_BYTES = 1 << 20  # of a body that is handed over in one piece, which costs a copy
_MOST_REPLAYS = 256
_DRAIN_SECONDS = 5.0
_PASSED_ON = ("authorization", "x-api-key", "x-request-id", "traceparent", "forwarded", "x-forwarded-for")
_INFER_RESPONSE = 2  # number of the field
_STATUS = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED", 411: "INVALID_ARGUMENT", 413: "RESOURCE_EXHAUSTED", 415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
_TYPES = (
    "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
    "STRING", "BF16",
)  # fmt: skip
"""Triton's DataType by its number."""


class _Answer(NamedTuple):
    """The whole answer to a request of `/v2`."""

    headers: Mapping[bytes, bytes]
    body: Sequence[bytes]


class GrpcServer:
    """Serves the gRPC service.

    Args:
        app: the application, whose `/v2` is called.
        settings: `grpc_port`, `host`, the limits and the certificates.

    Attributes:
        port: the port that it listens on; 0 before the start.

    Raises:
        InvalidParameter: the packages of the extra `grpc` are missing.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        try:
            self._grpc: Any = importlib.import_module("grpc")
            self._messages = grpc_messages()
        except ModuleNotFoundError as missing:
            raise InvalidParameter(
                f"{setting_variable('grpc_port')} needs the package {missing.name}: "
                + install_command("server", "grpc")
            ) from None
        self._server: Any = None
        self._credentials: Any = None
        self._replays = BoundedCache[tuple[str, ...], ReplayFunction](_MOST_REPLAYS)
        self.port = 0

    async def start(self) -> None:
        """Listen.

        Raises:
            InvalidParameter: the port is taken, or the address is not this machine's.
        """
        grpc, settings = self._grpc, self._settings
        largest = min(settings.max_body_bytes + settings.max_json_bytes, _MOST_MESSAGE_BYTES)
        options = [
            ("grpc.max_receive_message_length", largest), ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]  # fmt: skip
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=settings.max_requests)
        handlers = {name: self._handler(name, *METHODS[name]) for name in METHODS}
        service = grpc.method_handlers_generic_handler(f"{PACKAGE}.GRPCInferenceService", handlers)
        self._server.add_generic_rpc_handlers((service,))
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            self.port = self._listen(f"{host}:{settings.grpc_port}")
        except RuntimeError as error:
            raise InvalidParameter(f"gRPC cannot listen at {host}:{settings.grpc_port}: {error}") from None
        await self._server.start()

    def _listen(self, address: str) -> int:
        grpc, certificate = self._grpc, self._settings.tls_certificate
        if certificate is None:
            return self._server.add_insecure_port(address)
        key = self._settings.tls_key or certificate
        issuers = None if self._settings.tls_client_ca is None else self._settings.tls_client_ca.read_bytes()
        files = CertificateFiles(self._settings, "new connections of gRPC get")

        def load() -> Any:
            return grpc.ssl_server_certificate_configuration([(key.read_bytes(), certificate.read_bytes())], issuers)

        # gRPC calls the function on a thread of its own before each handshake. Its core holds no reference to the
        # credentials, so they are kept here.
        self._credentials = grpc.dynamic_ssl_server_credentials(load(), lambda: files.reload(load), issuers is not None)
        return self._server.add_secure_port(address, self._credentials)

    async def stop(self) -> None:
        """Take no more calls, and let those that run end."""
        if self._server is not None:
            await self._server.stop(_DRAIN_SECONDS)

    def _handler(self, name: str, request: str, response: str) -> Any:
        kinds = {
            "request_deserializer": self._messages[request].FromString,
            "response_serializer": None if "Infer" in name else self._messages[response].SerializeToString,
        }
        if name == "ModelStreamInfer":
            return self._grpc.stream_stream_rpc_method_handler(self._stream, **kinds)

        async def answer(message: Any, context: Any) -> Any:
            try:
                return await getattr(self, f"_{_snake(name)}")(message, context)
            except Refused as refused:
                await context.abort(getattr(self._grpc.StatusCode, refused.status), refused.text)

        return self._grpc.unary_unary_rpc_method_handler(answer, **kinds)

    # ---- requests of /v2 ---------------------------------------------------------------------------------------------

    async def _ask(
        self, context: Any, method: str, path: str, parts: Sequence[bytes] = (), fields: Mapping[str, str] | None = None
    ) -> _Answer:
        """One request within this process.

        Raises:
            Refused: the answer is not 200.
        """
        sent = {str(name): value for name, value in context.invocation_metadata() or ()}
        length = sum(map(len, parts))
        headers = {
            "host": "localhost", "content-length": str(length), **(fields or {}),
            **{name: sent[name] for name in _PASSED_ON if name in sent},
        }  # fmt: skip
        # As the server does with the heads of HTTP: whoever asks the same with other elements is answered before ASGI.
        key, is_small = (path, *headers, *headers.values()), length <= _MOST_WHOLE_BYTES
        peer = _peer(context.peer())
        address = None if peer is None else peer[0]
        if is_small and (known := self._replays.get(key)) and (response := known(b"".join(parts), address)):
            return _Answer(_fields(response[0]), [response[1]])
        scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": unquote(path), "raw_path": path.encode(), "query_string": b"", "root_path": "", "state": {},
            "headers": [(name.encode(), str(value).encode("latin-1", "replace")) for name, value in headers.items()],
            "client": peer, "server": ("127.0.0.1", self.port),
        }  # fmt: skip
        left = [*parts]
        statuses, answer_headers, answer = list[int](), dict[bytes, bytes](), list[bytes]()

        async def receive() -> Message:
            if left:
                part = left.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(left)}
            if not parts and not answer and not answer_headers:
                return {"type": "http.request", "body": b"", "more_body": False}
            await asyncio.Event().wait()  # a call that is cancelled cancels its task
            raise AssertionError("never set")

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                answer_headers.update(message["headers"])
                if int(answer_headers.get(b"content-length", b"0")) > _MOST_MESSAGE_BYTES - (1 << 20):
                    raise Refused("RESOURCE_EXHAUSTED", "the answer is larger than a message of gRPC can be (2 GiB)")
            elif part := message.get("body"):
                answer.append(bytes(part))

        def receive_whole() -> bytes:
            whole = b"".join(left)
            left.clear()
            return whole

        def send_whole(lines: bytes, body: bytes, replay: ReplayFunction | None = None) -> bool:
            statuses.append(200)
            answer_headers.update(_fields(lines))
            answer.append(body)
            if replay is not None:
                self._replays.put(key, replay)
            return True

        if is_small:
            scope["extensions"] = {WHOLE_MESSAGES: {"whole_messages": WholeMessages(receive_whole, send_whole)}}
        await self._app(scope, receive, send)
        if statuses != [200]:
            document = json.loads(b"".join(answer) or b"{}")
            raise Refused(_STATUS.get(sum(statuses), "INTERNAL"), str(document.get("error", "the server failed")))
        return _Answer(answer_headers, answer)

    async def _json(self, context: Any, method: str, path: str, document: Mapping[str, Any] | None = None) -> Any:
        parts = [] if document is None else [json.dumps(document).encode()]
        text = b"".join((await self._ask(context, method, path, parts)).body)
        return json.loads(text) if text else {}

    # ---- inferences --------------------------------------------------------------------------------------------------

    async def _model_infer(self, message: Any, context: Any) -> bytes:
        """The response, serialized."""
        head, raw = infer_document(message)
        text = json.dumps(head).encode()
        path = f"{_model_path(message.model_name, message.model_version)}/infer"
        answer = await self._ask(
            context, "POST", path, [text, *raw], {"inference-header-content-length": str(len(text))}
        )
        sent = answer.headers.get(b"inference-header-content-length")
        return infer_response(self._messages["ModelInferResponse"], None if sent is None else int(sent), answer.body)

    async def _stream(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[bytes]:
        """Answer each request of a stream in its turn, serialized; a refusal is an answer too."""
        kind = self._messages["ModelStreamInferResponse"]
        async for message in messages:
            try:
                response = await self._model_infer(message, context)
                yield length_prefix(_INFER_RESPONSE, len(response)) + response
            except Refused as refused:
                failed = self._messages["ModelInferResponse"](id=message.id)
                yield kind(error_message=refused.text, infer_response=failed).SerializeToString()

    # ---- everything else ---------------------------------------------------------------------------------------------

    async def _server_live(self, message: Any, context: Any) -> Any:
        del message
        return self._messages["Live"](live=await self._is(context, "/v2/health/live"))

    async def _server_ready(self, message: Any, context: Any) -> Any:
        del message
        return self._messages["Ready"](ready=await self._is(context, "/v2/health/ready"))

    async def _model_ready(self, message: Any, context: Any) -> Any:
        path = f"{_model_path(message.name, message.version)}/ready"
        return self._messages["Ready"](ready=await self._is(context, path))

    async def _is(self, context: Any, path: str) -> bool:
        try:
            await self._ask(context, "GET", path)
        except Refused as refused:
            if refused.status in ("UNAVAILABLE", "NOT_FOUND"):
                return False
            raise
        return True

    async def _server_metadata(self, message: Any, context: Any) -> Any:
        del message
        return self._messages["ServerMetadata"](**await self._json(context, "GET", "/v2"))

    async def _model_metadata(self, message: Any, context: Any) -> Any:
        path = _model_path(message.name, message.version)
        return self._messages["ModelMetadata"](**await self._json(context, "GET", path))

    async def _model_config(self, message: Any, context: Any) -> Any:
        config = await self._json(context, "GET", f"{_model_path(message.name, message.version)}/config")
        for tensor in (*config["input"], *config["output"]):
            tensor["data_type"] = _TYPES.index(tensor["data_type"].removeprefix("TYPE_"))
        return self._messages["ModelConfig"](config=config)

    async def _model_statistics(self, message: Any, context: Any) -> Any:
        path = f"{_model_path(message.name, message.version)}/stats" if message.name else "/v2/models/stats"
        document = await self._json(context, "GET", path)
        for entry in document["model_stats"]:
            for name in ("response_stats", "batch_stats", "memory_usage"):
                del entry[name]
        return self._messages["ModelStatistics"](**document)

    async def _repository_index(self, message: Any, context: Any) -> Any:
        del message
        return self._messages["RepositoryIndex"](models=await self._json(context, "POST", "/v2/repository/index"))

    async def _repository_model_load(self, message: Any, context: Any) -> Any:
        document = {"parameters": dict.fromkeys(message.parameters, "")}
        await self._json(context, "POST", f"/v2/repository/models/{quote(message.model_name)}/load", document)
        return self._messages["Empty"]()

    async def _repository_model_unload(self, message: Any, context: Any) -> Any:
        await self._json(context, "POST", f"/v2/repository/models/{quote(message.model_name)}/unload", {})
        return self._messages["Empty"]()

    async def _system_shared_memory_status(self, message: Any, context: Any) -> Any:
        found = await self._json(context, "GET", f"{_region_path('system', message.name)}/status")
        return self._messages["Regions"](regions={entry["name"]: entry for entry in found})

    async def _system_shared_memory_register(self, message: Any, context: Any) -> Any:
        document = {"key": message.key, "offset": message.offset, "byte_size": message.byte_size}
        await self._json(context, "POST", f"{_region_path('system', message.name)}/register", document)
        return self._messages["Empty"]()

    async def _system_shared_memory_unregister(self, message: Any, context: Any) -> Any:
        await self._json(context, "POST", f"{_region_path('system', message.name)}/unregister", {})
        return self._messages["Empty"]()

    async def _cuda_shared_memory_status(self, message: Any, context: Any) -> Any:
        found = await self._json(context, "GET", f"{_region_path('cuda', message.name)}/status")
        return self._messages["CudaRegions"](regions={entry["name"]: entry for entry in found})

    async def _cuda_shared_memory_register(self, message: Any, context: Any) -> Any:
        handle = {"b64": base64.b64encode(message.raw_handle).decode()}
        document = {"raw_handle": handle, "device_id": message.device_id, "byte_size": message.byte_size}
        await self._json(context, "POST", f"{_region_path('cuda', message.name)}/register", document)
        return self._messages["Empty"]()

    async def _cuda_shared_memory_unregister(self, message: Any, context: Any) -> Any:
        await self._json(context, "POST", f"{_region_path('cuda', message.name)}/unregister", {})
        return self._messages["Empty"]()

    async def _trace_setting(self, message: Any, context: Any) -> Any:
        del message
        return await self._json(context, "GET", "/v2/trace/setting")

    async def _log_settings(self, message: Any, context: Any) -> Any:
        del message
        return await self._json(context, "GET", "/v2/logging")


def _fields(lines: bytes) -> dict[bytes, bytes]:
    """The header fields that `field_lines` wrote."""
    return {name: value for name, _, value in [line.partition(b": ") for line in lines.split(b"\r\n")]}


def _model_path(name: str, version: str) -> str:
    return f"/v2/models/{quote(name, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _region_path(kind: str, name: str) -> str:
    return f"/v2/{kind}sharedmemory" + (f"/region/{quote(name, safe='')}" if name else "")


def _peer(text: str) -> tuple[str, int] | None:
    """The address in `ipv4:127.0.0.1:4000` or `ipv6:%5B::1%5D:4000`; None for a Unix socket."""
    kind, _, rest = text.partition(":")
    address, _, port = rest.replace("%5B", "").replace("%5D", "").replace("[", "").replace("]", "").rpartition(":")
    return (address, int(port)) if kind in ("ipv4", "ipv6") and port.isdigit() else None


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
