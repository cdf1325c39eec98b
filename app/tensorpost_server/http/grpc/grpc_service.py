"""The Open Inference Protocol's gRPC service: each call is a request of `/v2` within this process.

So there is one translator, and admission, access control, queues, metrics, statistics and the access log are the same.
The key is checked before anything of a message is taken; questions of health are answered without their message, from
callers whose connections are beyond the budget too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from starlette.types import ASGIApp, Message

from tensorpost.values.extras import install_command
from tensorpost.values.problems import InvalidParameter, TensorpostError

from ...listener import listen_for_grpc
from ...settings import setting_variable
from ..background_threads import INLINE_TEXT_BYTES, CallerThreads
from ..bounded_cache import BoundedCache
from ..caller_address import FORWARDED_FOR, network_of
from ..connection.acceptor import Acceptor
from ..connection.http2 import Http2Connection
from ..connection.http2_stream import Http2Shared, Stream
from ..connection.timeouts import ConnectionLimits
from ..connection.tls import grpc_files
from ..connection.whole_messages import WHOLE_MESSAGES, ReceiveFunction, ReplayFunction, WholeMessages
from ..open_inference.infer_format import JSON_LENGTH
from ..open_inference.inference_wire import CODEC
from ..request_body import ClientDisconnected
from ..service import Service
from .grpc_calls import GrpcCall, OpenCalls, Refused
from .grpc_codec import GrpcCodec, length_prefix, parsed, split_message
from .grpc_messages import METHODS, PACKAGE, grpc_messages
from .grpc_queries import QUERIES, model_path

_MOST_MESSAGE_BYTES = 2**31 - 1  # protobuf's own limit
_MOST_SMALL_MESSAGE_BYTES = 64 * 1024  # of a request that holds no tensors
_MOST_WHOLE_BYTES = 1 << 20  # of a body that is handed over in one piece, which costs a copy
_COPIED_BYTES = 4 << 20  # of a longer body that are copied at a time
_MOST_REPLAYS = 256
_CALLS_PER_REQUEST = 4  # calls that may be open, streams that wait among them, for each request that may be in flight
_PARSED_BYTES = 64  # most memory that a byte of a message takes while it is parsed: an empty tensor has two
_LOAD_MEMORY_FACTOR = 5  # of a message with a model: its bytes as a message, in base64, in JSON, and as a request
_BACKLOG = 2048
_DRAIN_SECONDS = 5.0
_PASSED_ON = (b"authorization", b"x-api-key", b"x-request-id", b"traceparent", b"forwarded", b"x-forwarded-for")
_INFER_RESPONSE = 2  # number of the field
_HEALTH = ("ServerLive", "ServerReady")

_log = logging.getLogger(__name__)


class _WholeAnswer(NamedTuple):
    """The whole answer to a request of `/v2`."""

    headers: Mapping[bytes, bytes]
    body: Sequence[bytes]


class GrpcServer:
    """Serves the gRPC service.

    Attributes:
        port: the port that it listens on; 0 before the start.

    Raises:
        InvalidParameter: the packages of the extra `grpc` are missing.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service, self._settings = app, service, service.settings
        try:
            self._messages = grpc_messages()
        except ModuleNotFoundError as missing:
            raise InvalidParameter(
                f"{setting_variable('grpc_port')} needs the package {missing.name}: "
                + install_command("server", "grpc")
            ) from None
        self._methods = {f"/{PACKAGE}.GRPCInferenceService/{name}".encode(): self._method(name) for name in METHODS}
        self._health = {path for path in self._methods if path.decode().endswith(_HEALTH)}
        settings = self._settings
        most = service.group.share_of(_CALLS_PER_REQUEST * settings.max_requests)
        self._open = OpenCalls(most, settings.caller_share)
        self._replays = BoundedCache[tuple[bytes, ...], ReplayFunction](_MOST_REPLAYS)
        self._shared: Http2Shared | None = None
        self._listener: socket.socket | None = None
        self._acceptor: Acceptor | asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen.

        Raises:
            InvalidParameter: the port is taken, the address is not this machine's, or a certificate cannot be used.
        """
        settings, loop = self._settings, asyncio.get_running_loop()
        files = grpc_files(settings)
        limits = ConnectionLimits.of_grpc(settings)
        shared = self._shared = Http2Shared(
            limits,
            settings.keep_alive_seconds,
            settings.grpc_idle_seconds,
            self._handle,
            loop,
            self._service.group.grpc_connections,
        )
        passed = self._service.group.grpc_listener
        listener = listen_for_grpc(settings.host, settings.grpc_port or 0) if passed is None else passed
        self._listener = listener
        self.port = listener.getsockname()[1]

        def connection() -> Http2Connection:
            if files is not None:
                files.reload_if_changed()  # before the handshake
            return Http2Connection(shared)

        tls = None if files is None else files.context
        budget = shared.budget

        def should_wait() -> bool:
            return budget.has_more_than_others

        if sys.platform == "win32":
            self._acceptor = await loop.create_server(connection, sock=listener, ssl=tls)
        else:
            self._acceptor = Acceptor(listener, _BACKLOG, connection, tls, shared.connections, limits, should_wait)

    async def stop(self) -> None:
        """Take no more calls, and let those that run end."""
        if self._acceptor is None or self._shared is None or self._listener is None:
            return
        self._acceptor.close()
        self._listener.close()
        self._shared.draining = True
        connections: list[Http2Connection] = [*self._shared.connections]
        for connection in connections:
            connection.drain()
        loop = asyncio.get_running_loop()
        end = loop.time() + _DRAIN_SECONDS
        while self._shared.connections and loop.time() < end:
            await asyncio.sleep(0.01)
        for connection in [*self._shared.connections]:
            connection.transport.abort()
        await self._acceptor.wait_closed()

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _method(self, name: str) -> Callable[[GrpcCall], Awaitable[None]]:
        """What answers the calls of a method."""
        if name == "ModelInfer":
            return self._model_infer
        if name == "ModelStreamInfer":
            return self._stream
        request, response = [self._messages[kind] for kind in METHODS[name]]
        query = QUERIES[name]

        async def ask(call: GrpcCall) -> None:
            data: bytes | memoryview | None = b""
            if query.has_file:
                data = await self._read(call)
                if len(data or b"") > INLINE_TEXT_BYTES:
                    self._reserve(call, _LOAD_MEMORY_FACTOR * len(data or b""))
            elif name not in _HEALTH:
                data = await call.read(_MOST_SMALL_MESSAGE_BYTES, "", self._slow(call))
            threads, large = CallerThreads(self._service.parsing, call.caller), len(data or b"") > INLINE_TEXT_BYTES
            message = await threads.run(large, parsed, request, data or b"")
            path = query.path if isinstance(query.path, str) else query.path(message)
            if query.flag:
                fields = {query.flag: await self._is(call, path)}
            else:
                parts = [] if query.document is None else [await threads.run(large, query.body, message)]
                fields = query.fields(await self._json(call, query.method, path, parts))
            call.answer([response(**fields).SerializeToString()])

        return ask

    async def _handle(self, stream: Stream) -> None:
        """Answer a request of HTTP/2."""
        call = GrpcCall(stream, self._service.admission)
        if not call.is_grpc:
            call.end_as_no_grpc()
            return
        try:
            async with asyncio.timeout(call.seconds):
                await self._call(stream, call)
        except Refused as refused:
            call.end(refused)
        except TensorpostError as error:
            call.end(Refused.of(error))
        except TimeoutError:
            call.end(Refused("DEADLINE_EXCEEDED", "the time that the call was given is over"))
        except Exception as error:  # noqa: BLE001 # whatever the application raises, the caller gets a status
            _log.exception("a call of gRPC failed: %r", error)
            call.end(Refused("INTERNAL", "the server failed; its log has the details"))
        finally:
            call.release()

    async def _call(self, stream: Stream, call: GrpcCall) -> None:
        path = call.fields[b":path"]
        method = self._methods.get(path)
        if method is None:
            raise Refused("UNIMPLEMENTED", f"there is no method {path[:100].decode('ascii', 'replace')}")
        if path in self._health:
            await method(call)
            return
        if stream.connection.health_only:
            raise Refused(
                "RESOURCE_EXHAUSTED", "too many connections are open; this one may use the health endpoints only"
            )
        call.caller = await self._caller(call, path)
        self._open.add(stream, call.caller)
        try:
            await method(call)
        finally:
            self._open.remove(stream, call.caller)

    async def _caller(self, call: GrpcCall, path: bytes) -> str:
        """Whose call it is, once its key is known to be good."""
        peer, service = call.peer, self._service
        address = None if peer is None else peer[0]
        if service.proxies is not None:
            address = service.proxies.caller(address, call.fields.get(FORWARDED_FOR))
        method, asked = "POST" if b"Infer" in path.rpartition(b"/")[2] else "GET", f"/v2{quote(path)}"
        if path.endswith(b"/RepositoryModelLoad"):
            method, asked = "POST", "/v2/repository/models/any/load"  # which needs a scope of its own
        try:
            name = service.access.caller(method, asked, call.fields)
        except TensorpostError:
            await self._ask(call, method, asked)
            raise
        return name or network_of(address or "local")

    def _slow(self, call: GrpcCall) -> CallerThreads:
        return CallerThreads(self._service.slow_threads, call.caller)

    # ---- requests of /v2 ---------------------------------------------------------------------------------------------

    async def _ask(
        self, call: GrpcCall, method: str, path: str, parts: Sequence[bytes | memoryview] = (),
        fields: Mapping[bytes, bytes] | None = None, codec: GrpcCodec | None = None,
    ) -> _WholeAnswer:  # fmt: skip
        """One request within this process."""
        sent, length = call.fields, sum(map(len, parts))
        headers = {
            b"host": b"localhost", b"content-length": str(length).encode(), **(fields or {}),
            **{name: sent[name] for name in _PASSED_ON if name in sent},
        }  # fmt: skip
        # As the server does with the heads of HTTP: whoever asks the same with other elements is answered before ASGI.
        key, is_small = (
            (path.encode(), b"" if codec is None else codec.key, *headers, *headers.values()),
            length <= _MOST_WHOLE_BYTES,
        )
        address = None if call.peer is None else call.peer[0]
        if is_small and (known := self._replays.get(key)) and (response := known(b"".join(parts), address)):
            return _WholeAnswer(_fields(response[0]), [response[1]])
        scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": unquote(path), "raw_path": path.encode(), "query_string": b"", "root_path": "", "state": {},
            "headers": [*headers.items()], "client": call.peer, "server": ("127.0.0.1", self.port), CODEC: codec,
        }  # fmt: skip
        left = [*parts] if is_small else _pieces(parts)
        statuses, answer_headers, answer = list[int](), dict[bytes, bytes](), list[bytes]()

        refusals = list[Refused]()

        async def receive() -> Message:
            if left:
                if not is_small:
                    await asyncio.sleep(0)  # others have turns between its pieces
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
                size = int(answer_headers.get(b"content-length", b"0"))
                try:
                    if size > _MOST_MESSAGE_BYTES - (1 << 20):
                        raise Refused("RESOURCE_EXHAUSTED", "the answer is larger than a message can be (2 GiB)")
                    if size > _MOST_WHOLE_BYTES:
                        self._reserve(call, size)  # it is sent when it is whole
                except Refused as refused:
                    refusals.append(refused)
                    raise ClientDisconnected from None  # ends the request, whose status says that it is answered
            elif part := message.get("body"):
                answer.append(bytes(part))

        def receive_whole() -> bytes:
            whole = b"".join(left)
            left.clear()
            return whole

        def send_whole(
            lines: bytes, body: bytes, replay: ReplayFunction | None = None, receive: ReceiveFunction | None = None
        ) -> bool:
            del receive  # messages are collected whole
            statuses.append(200)
            answer_headers.update(_fields(lines))
            answer.append(body)
            if replay is not None:
                self._replays.put(key, replay)
            return True

        if is_small:
            scope["extensions"] = {WHOLE_MESSAGES: {"whole_messages": WholeMessages(receive_whole, send_whole)}}
        await self._app(scope, receive, send)
        if refusals:
            raise refusals[0]
        if statuses != [200]:
            document = json.loads(b"".join(answer) or b"{}")
            raise Refused.of_http(sum(statuses), str(document.get("error", "the server failed")))
        return _WholeAnswer(answer_headers, answer)

    async def _json(self, call: GrpcCall, method: str, path: str, parts: Sequence[bytes] = ()) -> Any:
        text = b"".join((await self._ask(call, method, path, parts)).body)
        return json.loads(text) if text else {}

    async def _is(self, call: GrpcCall, path: str) -> bool:
        """Whether the answer to a question is 200."""
        try:
            await self._ask(call, "GET", path)
        except Refused as refused:
            if refused.status in ("UNAVAILABLE", "NOT_FOUND"):
                return False
            raise
        return True

    # ---- inferences --------------------------------------------------------------------------------------------------

    async def _read(self, call: GrpcCall) -> bytes | memoryview | None:
        """The next request; None after the last one."""
        settings = self._settings
        most = min(settings.max_body_bytes + settings.max_json_bytes, _MOST_MESSAGE_BYTES)
        return await call.read(most, setting_variable("max_body_bytes"), self._slow(call))

    async def _infer(self, call: GrpcCall, data: bytes | memoryview) -> list[bytes | memoryview]:
        """The serialized response to a request, in pieces."""
        settings = self._settings
        parts, raw = split_message(data)
        head = b"".join(parts)
        if len(head) > settings.max_json_bytes:
            raise Refused(
                "RESOURCE_EXHAUSTED", f"the message has {len(head):,} bytes beside raw_input_contents, and at most "
                f"{settings.max_json_bytes:,} are read; send tensors there (setting "
                f"{setting_variable('max_json_bytes')})",
            )  # fmt: skip
        large = len(head) > INLINE_TEXT_BYTES
        if large:
            self._reserve(call, _PARSED_BYTES * len(head))
        threads = CallerThreads(self._service.parsing, call.caller)
        message = await threads.run(large, parsed, self._messages["ModelInferRequest"], head)
        path = f"{model_path(message.model_name, message.model_version)}/infer"
        fields = {JSON_LENGTH: str(len(head)).encode()}
        codec = GrpcCodec(self._messages["ModelInferResponse"], message, [len(tensor) for tensor in raw])
        try:
            answer = await self._ask(call, "POST", path, [head, *raw], fields, codec)
        except Refused as refused:
            refused.id = message.id
            raise
        return list(answer.body)

    def _reserve(self, call: GrpcCall, size_in_bytes: int) -> None:
        try:
            call.reserve(size_in_bytes)
        except TensorpostError as error:
            raise Refused.of(error) from None

    async def _model_infer(self, call: GrpcCall) -> None:
        data = await self._read(call)
        if data is None:
            raise Refused("INTERNAL", "the call ends without a message")
        call.answer(await self._infer(call, data))
        await call.sent()

    async def _stream(self, call: GrpcCall) -> None:
        """Answer each request of a stream in its turn; a refusal is an answer too."""
        kind = self._messages["ModelStreamInferResponse"]
        while (data := await self._read(call)) is not None:
            try:
                response = await self._infer(call, data)
                call.answer([length_prefix(_INFER_RESPONSE, sum(map(len, response))), *response], last=False)
            except Refused as refused:
                failed = self._messages["ModelInferResponse"](id=refused.id)
                call.answer([kind(error_message=refused.text, infer_response=failed).SerializeToString()], last=False)
            await call.sent()
        call.end()


def _pieces(parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """The parts of a long body, cut where too many bytes would be copied at a time."""
    return [
        view[at : at + _COPIED_BYTES] for view in map(memoryview, parts) for at in range(0, len(view), _COPIED_BYTES)
    ]


def _fields(lines: bytes) -> dict[bytes, bytes]:
    """The header fields that `field_lines` wrote."""
    return {name: value for name, _, value in [line.partition(b": ") for line in lines.split(b"\r\n")]}
