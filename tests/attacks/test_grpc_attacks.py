"""What callers of gRPC may try: messages without a key, bombs, streams that send nothing, floods of frames, silence."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.http2 import (
    CONTINUATION,
    DATA,
    HEADERS,
    PING,
    PRIORITY,
    PUSH,
    RESET,
    SETTINGS,
    WINDOW,
    Http2Wire,
    frame,
    head,
    literal,
    message,
)
from tests.support.http_app import NPY, Serving, eventually, npy_bytes, request_bytes, serving

from tensorpost_server import machine
from tensorpost_server.http.access.api_keys import ApiKey, digest, new_key, write_keys
from tensorpost_server.http.connection.call_slots import FEWEST_SLOTS
from tensorpost_server.http.grpc.grpc_messages import grpc_messages

MIB = 1 << 20
STRINGS = 5_000_000
CERTIFICATE = Path(__file__).parent.parent / "support" / "loopback.pem"
OTHER = "127.0.0.2"
OK, INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAUTHENTICATED = (
    0,
    3,
    4,
    8,
    12,
    13,
    16,
)
PROTOCOL_ERROR, FLOW_CONTROL, STREAM_CLOSED, FRAME_SIZE, COMPRESSION, CALM = 1, 3, 5, 6, 9, 11


def request(contents: bytes = b"", raw: bytes = b"", **parameters: str) -> bytes:
    """A ModelInferRequest of tile: an input of FP32, its contents as they are given, or its raw elements."""
    kind = grpc_messages()["ModelInferRequest"]
    found = kind(model_name="tile", inputs=[{"name": "input", "datatype": "FP32", "shape": [len(raw) // 4]}])
    for name, text in ({"repeats": "[2]"} | parameters).items():
        found.parameters[name].string_param = text
    if raw:
        found.raw_input_contents.append(raw)
    return found.SerializeToString() + contents


SMALL = request(raw=np.arange(2, dtype=np.float32).tobytes())


def field(number: int, data: bytes) -> bytes:
    """A field of bytes (Protocol Buffers, "Encoding")."""
    size, found = len(data), bytearray([number << 3 | 2])
    while size > 0x7F:
        found.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(found) + bytes([size]) + data


def strings(count: int) -> bytes:
    """A request with so many empty strings."""
    tensor = field(1, b"input") + field(2, b"BYTES") + field(5, b"\x42\x00" * count)
    return request() + field(5, tensor)


@contextlib.contextmanager
def grpc_server(**settings: Any) -> Iterator[tuple[Serving, int]]:
    with serving(grpc_port=0, **settings) as server:
        yield server, server.app.state.grpc_port
        eventually(server.idle, "all memory is released")


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Serving, int]]:
    with grpc_server(memory_bytes=512 * MIB) as found:
        yield found


def keys_of(folder: Path, **options: Any) -> tuple[Path, str]:
    """A file with a key, and the key."""
    file, key = folder / "keys", new_key()
    now = "2026-01-01T00:00:00Z"
    values = {"name": "ours", "sha256": digest(key.encode()), "scopes": ["run"], "created": now, **options}
    write_keys(file, [ApiKey.model_validate(values)])
    return file, key


def one(
    port: int, body: bytes | None, *fields: tuple[bytes, bytes], path: bytes = b"ModelInfer", source: str = OTHER
) -> int | None:
    """The status of a call on a connection of its own."""
    with Http2Wire(port, source) as wire:
        wire.call(1, path, body, fields)
        return wire.status(1)


def test_a_call_is_answered(server: tuple[Serving, int]):
    """The caller of these tests does what a client does."""
    assert one(server[1], message(SMALL)) == OK
    assert one(server[1], message(gzip.compress(SMALL), compressed=True), (b"grpc-encoding", b"gzip")) == OK
    assert one(server[1], message(zlib.compress(SMALL), compressed=True), (b"grpc-encoding", b"deflate")) == OK
    large = request(raw=bytes(24_000))
    assert one(server[1], message(gzip.compress(large), compressed=True), (b"grpc-encoding", b"gzip")) == OK


@pytest.mark.parametrize(
    "path", [b"/\xff\xfe", b"/inference.GRPCInferenceService/\xff", b"/grpc.health.v1.Health/Check", b"Nothing"]
)
def test_methods_that_are_not_there(server: tuple[Serving, int], path: bytes):
    """One path that was no UTF-8 ended grpc.aio's server, without a key."""
    assert one(server[1], message(b""), path=path) == UNIMPLEMENTED
    assert one(server[1], message(b""), path=b"ServerLive") == OK


@pytest.mark.parametrize("body", [b"", b"\0\0", b"\0\0\0\0\5abc", b"\2\0\0\0\0"])
def test_bodies_that_are_no_messages(server: tuple[Serving, int], body: bytes):
    assert one(server[1], body) == INTERNAL


@pytest.mark.parametrize(
    "data", [b"\x0a\xff", b"\x0b" * 9, field(5, b"\xff" * 50), field(7, bytes(5000)) + b"\x0f", b"\xff" * 5000]
)
def test_messages_that_are_no_requests(server: tuple[Serving, int], data: bytes):
    assert one(server[1], message(data)) == INVALID_ARGUMENT


# ---- before the key, and within the budget ---------------------------------------------------------------------------


def growth(call: Any) -> tuple[Any, int]:
    """What a call returns, and the most that the process grew meanwhile, bytes."""
    before = most = machine.resident_memory() or 0
    done = threading.Event()

    def look() -> None:
        nonlocal most
        while not done.wait(0.005):
            most = max(most, machine.resident_memory() or 0)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        return call(), most - before
    finally:
        done.set()
        thread.join()


def test_nothing_is_decoded_before_the_key(tmp_path: Path):
    """9 KiB of gzip stopped the loop for 2.9 s and took 1.5 GB; six messages of 0.4 MiB took 5.4 GB."""
    bomb = message(gzip.compress(strings(STRINGS)), compressed=True)
    assert len(bomb) < 20_000
    large = message(strings(200_000))
    file, key = keys_of(tmp_path)
    with grpc_server(keys_file=file) as (server, port):
        for fields, expected in (((), UNAUTHENTICATED), (((b"x-api-key", key.encode()),), RESOURCE_EXHAUSTED)):
            coded = (*fields, (b"grpc-encoding", b"gzip"))
            found, grown = growth(lambda coded=coded: [one(port, bomb, *coded) for _ in range(3)])
            assert found == [expected] * 3
            assert grown < 100 * MIB
        found, grown = growth(lambda: [one(port, large) for _ in range(6)])
        assert found == [UNAUTHENTICATED] * 6
        assert grown < 20 * MIB
        with Http2Wire(port) as wire:  # neither has the message arrived, nor must it
            wire.send(frame(HEADERS, 4, 1, head(b"ModelInfer")) + frame(DATA, 0, 1, message(b"", length=2**31 - 1)))
            assert wire.status(1) == UNAUTHENTICATED
        assert one(port, message(SMALL), (b"x-api-key", key.encode())) == OK
        assert server.idle()


def test_what_is_announced_is_reserved_or_refused_before_it_arrives(server: tuple[Serving, int]):
    with Http2Wire(server[1]) as wire:
        wire.send(frame(HEADERS, 4, 1, head(b"ModelInfer")) + frame(DATA, 0, 1, message(b"", length=600 * MIB)))
        assert wire.status(1) == RESOURCE_EXHAUSTED  # beyond the budget
        wire.send(frame(HEADERS, 4, 3, head(b"ModelInfer")) + frame(DATA, 0, 3, message(b"", length=2**31)))
        assert wire.status(3) == RESOURCE_EXHAUSTED  # beyond the largest body
        wire.send(frame(HEADERS, 4, 5, head(b"ModelInfer")) + frame(DATA, 0, 5, message(b"", length=300 * MIB)))
        eventually(lambda: server[0].service.admission.bytes_in_flight >= 300 * MIB, "it is reserved")
        wire.send(frame(HEADERS, 4, 7, head(b"ModelInfer")) + frame(DATA, 0, 7, message(b"", length=300 * MIB)))
        assert wire.status(7) == RESOURCE_EXHAUSTED  # beyond what is left of it
    eventually(server[0].idle, "a connection that is gone gives its memory back")
    buffers = server[0].service.admission.buffers
    eventually(lambda: not buffers.allocated_bytes, "and nothing refers to it, not even for the garbage collector")


@pytest.mark.parametrize("data", [
    strings(400_000), request() + field(6, b"") * 5000, request(raw=bytes(8192)) + field(7, b"") * 5000,
    request() + field(4, field(1, b"a")) * 4500,
], ids=["elements", "outputs", "raw contents", "parameters"])  # fmt: skip
def test_counts_are_bounded(server: tuple[Serving, int], data: bytes):
    found, grown = growth(lambda: one(server[1], message(data)))
    assert found in (INVALID_ARGUMENT, RESOURCE_EXHAUSTED)
    assert grown < 100 * MIB


# ---- streams that send nothing ---------------------------------------------------------------------------------------


def test_silent_streams_make_room():
    """300 of them answered RESOURCE_EXHAUSTED to everybody, health included."""
    with grpc_server(max_requests=16) as (_, port), contextlib.ExitStack() as stack:
        for _ in range(3):
            wire = stack.enter_context(Http2Wire(port, OTHER))
            for number in range(1, 200, 2):
                wire.call(number, b"ModelStreamInfer" if number % 4 == 1 else b"ModelInfer", None)
        # Their own caller may be refused as long as a busy machine has not seen that they are silent.
        eventually(lambda: one(port, message(SMALL), source=OTHER) == OK, "silent calls make room for their caller")
        with Http2Wire(port) as ours:
            for number in range(1, 41, 2):
                ours.call(number, b"ModelInfer", message(SMALL))
                assert ours.status(number) == OK
        assert one(port, None, path=b"ServerLive") == OK, "asked for health, and sent no message"


def test_a_stream_that_waits_for_too_long_ends():
    with grpc_server(grpc_idle_seconds=0.3, receive_timeout_seconds=0.2) as (_, port), Http2Wire(port) as wire:
        wire.call(1, b"ModelStreamInfer", None)
        wire.send(frame(DATA, 0, 1, message(SMALL)))
        assert wire.status(1) == DEADLINE_EXCEEDED
        for number, part in ((3, b"\0\0"), (5, message(b"abc", length=9)), (7, message(b"abc", length=90_000))):
            wire.call(number, b"ModelInfer", None)
            wire.send(frame(DATA, 0, number, part))
            assert wire.status(number) == DEADLINE_EXCEEDED, part


def test_a_deadline_of_the_caller(server: tuple[Serving, int]):
    assert one(server[1], None, (b"grpc-timeout", b"100m")) == DEADLINE_EXCEEDED
    assert one(server[1], message(SMALL), (b"grpc-timeout", b"20S")) == OK
    assert one(server[1], message(SMALL), (b"grpc-timeout", b"soon")) == INVALID_ARGUMENT


# ---- frames ----------------------------------------------------------------------------------------------------------

CALL = frame(HEADERS, 4, 1, head(b"ModelInfer"))
FAULTS = {
    "a frame that is too large": (FRAME_SIZE, frame(DATA, 0, 1, bytes(65_537))),
    "data before a request": (PROTOCOL_ERROR, frame(DATA, 0, 1, b"a")),
    "a window before a request": (PROTOCOL_ERROR, frame(WINDOW, 0, 1, b"\0\0\0\1")),
    "an even number": (PROTOCOL_ERROR, frame(HEADERS, 4, 2, head(b"ModelInfer"))),
    "more padding than payload": (PROTOCOL_ERROR, CALL + frame(DATA, 8, 1, b"\x05abc")),
    "a head that is too short": (FRAME_SIZE, frame(HEADERS, 0x24, 1, b"ab")),
    "a block that is not continued": (PROTOCOL_ERROR, frame(HEADERS, 0, 1, b"") + frame(PING, 0, 0, bytes(8))),
    "nothing to continue": (PROTOCOL_ERROR, frame(CONTINUATION, 4, 1, b"")),
    "a push": (PROTOCOL_ERROR, frame(PUSH, 4, 1, bytes(4))),
    "a window that grows by nothing": (PROTOCOL_ERROR, frame(WINDOW, 0, 0, bytes(4))),
    "a window that is too large": (FLOW_CONTROL, frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff") * 2),
    "more than the window": (
        FLOW_CONTROL, frame(HEADERS, 4, 1, head(b"ModelStreamInfer"))
        + frame(DATA, 0, 1, message(b"", length=16_000) + bytes(60_000)) * 2,
    ),
    "data after the end": (STREAM_CLOSED, CALL + frame(DATA, 1, 1, bytes(1)) + frame(DATA, 1, 1, bytes(1))),
    "settings of another length": (FRAME_SIZE, frame(SETTINGS, 0, 0, bytes(5))),
    "a ping of another length": (FRAME_SIZE, frame(PING, 0, 0, bytes(7))),
    "an unknown field": (COMPRESSION, frame(HEADERS, 4, 1, b"\xff\x80\x01")),
    "an integer without end": (COMPRESSION, frame(HEADERS, 4, 1, b"\xff" * 20)),
    "a list of fields that is too large": (
        COMPRESSION, frame(HEADERS, 4, 1, b"\x40" + literal(b"a" * 100, b"b" * 120)[1:] + b"\xbe" * 8000),
    ),
    "a block that is too large": (CALM, frame(HEADERS, 0, 1, bytes(16_000)) + frame(CONTINUATION, 0, 1, bytes(16_000))),
    "pings": (CALM, frame(PING, 0, 0, bytes(8)) * 4000),
    "settings": (CALM, frame(SETTINGS, 0, 0, b"\0\3\0\0\0\1") * 150),
    "settings of many windows": (CALM, CALL + frame(SETTINGS, 0, 0, b"\0\4\0\0\xea\x60" * 2000)),
    "three sizes of the table": (COMPRESSION, frame(HEADERS, 4, 1, b"\x20" * 3)),
    "acknowledged settings": (CALM, frame(SETTINGS, 1) * 4000),
    "priorities": (CALM, frame(PRIORITY, 0, 1, bytes(5)) * 4000),
    "empty continuations": (CALM, frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, b"") * 4000),
    "empty data": (CALM, CALL + frame(DATA, 0, 1, b"") * 4000),
    "windows": (CALM, frame(WINDOW, 0, 0, b"\0\0\0\1") * 4000),
    "unknown frames": (CALM, frame(0x77, 0, 1, b"a") * 4000),
    "rapid resets": (CALM, b"".join([
        frame(HEADERS, 4, number, head(b"ModelInfer")) + frame(RESET, 0, number, b"\0\0\0\x08")
        for number in range(1, 2000, 2)
    ])),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_frames_that_end_the_connection(server: tuple[Serving, int], name: str):
    code, data = FAULTS[name]
    with Http2Wire(server[1], OTHER) as wire:
        wire.send(data)
        assert wire.goaway() in (code, None if len(data) > 8192 else code)  # None: a reset of TCP overtook it
    assert one(server[1], message(SMALL)) == OK


def test_trailers_of_requests_that_were_answered_are_counted(server: tuple[Serving, int]):
    """Each block was decoded, at no cost to its caller: one connection held the event loop for seconds."""
    with Http2Wire(server[1], OTHER) as wire:
        wire.call(1, b"ServerLive", message(b""))
        assert wire.status(1) == OK
        wire.send(frame(HEADERS, 5, 1, literal(b"x", b"y") * 480) * 40)
        assert wire.goaway() in (CALM, None)


def test_bytes_that_are_no_http2(server: tuple[Serving, int]):
    with socket.create_connection(("127.0.0.1", server[1]), 20) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        found = b""
        while part := plain.recv(4096):
            found += part
    assert found[-17:-8] == frame(7, 0, 0, bytes(8))[:9]


def test_an_answer_that_is_not_read_waits():
    """Its rest is not written anywhere before the caller opens its windows; a caller that never does is gone."""
    raw = bytes(8 * MIB)
    with grpc_server(send_timeout_seconds=0.3) as (server, port), Http2Wire(port) as wire:
        wire.call(1, b"ModelInfer", None)
        data = message(request(raw=raw))
        sent = 0
        for kind, _, number, payload in wire.frames():
            if sent < 65_535:
                sent += 65_535
                for at in range(0, 65_535, 16_384):
                    wire.send(frame(DATA, 0, 1, data[at : min(at + 16_384, 65_535)]))
            if kind == WINDOW and number == 1 and int.from_bytes(payload, "big") > MIB:
                for at in range(65_535, len(data), 16_384):
                    wire.send(frame(DATA, int(at + 16_384 >= len(data)), 1, data[at : at + 16_384]))
            if kind == DATA:
                break
        eventually(lambda: not [*wire.frames()], "the connection is closed")
        eventually(server.idle, "its memory is released")


def calls(count: int, repeats: int) -> bytes:
    """Calls on a connection, from stream 1 on: each answer has so many times 16,000 bytes."""
    body = message(request(raw=bytes(16_000), repeats=f"[{repeats}]"))
    return b"".join([
        frame(HEADERS, 4, number, head(b"ModelInfer")) + frame(DATA, 1, number, body)
        for number in range(1, 2 * count, 2)
    ])  # fmt: skip


def computed(server: Serving) -> int:
    """The calls that were computed."""
    stats = server.ask(request_bytes("GET", "/v2/models/tile/stats", b"", {"host": "localhost"})).json()
    return stats["model_stats"][0]["inference_count"]


def test_a_connection_whose_answers_wait_computes_few_of_its_calls():
    """A hundred were computed, and all answers were held."""
    count = 60
    with grpc_server() as (server, port), Http2Wire(port) as wire:
        wire.send(calls(count, 64))
        for number in range(201, 221, 2):  # streams that are idle take no slots
            wire.call(number, b"ModelStreamInfer", None)
        eventually(lambda: computed(server) > 0, "the first are computed")
        time.sleep(0.3)
        assert server.service.admission.requests_in_flight <= FEWEST_SLOTS
        assert computed(server) <= FEWEST_SLOTS
        assert one(port, message(SMALL)) == OK, "another connection"
        wire.send(frame(SETTINGS, 0, 0, b"\0\4\x40\0\0\0") + frame(WINDOW, 0, 0, b"\x40\0\0\0"))
        ended = [
            number for kind, flags, number, _ in frames_until(wire, count) if kind == HEADERS and flags & 1
        ]  # fmt: skip
        assert sorted(ended) == [*range(1, 2 * count, 2)], "all are answered when it reads"


def frames_until(wire: Http2Wire, count: int) -> Iterator[tuple[int, int, int, bytes]]:
    """Frames, until so many calls have ended."""
    for found in wire.frames():
        yield found
        count -= found[0] == HEADERS and found[1] & 1
        if not count:
            return


def test_a_caller_that_closes_while_it_does_not_read_is_noticed():
    """Nothing was read from it either, so that its end was found out only when its answer was too slow."""
    with grpc_server() as (server, port), Http2Wire(port) as wire:
        wire.send(frame(SETTINGS, 0, 0, b"\0\4\x40\0\0\0") + frame(WINDOW, 0, 0, b"\x40\0\0\0"))
        wire.send(calls(4, 2048))
        eventually(lambda: computed(server) > 0, "an answer fills what the system holds")
        time.sleep(0.3)
        wire.socket.shutdown(socket.SHUT_WR)
        eventually(server.idle, "its calls are ended")


def test_silent_handshakes_of_tls():
    """A handshake that says nothing ends after the time for a head; others are served meanwhile."""
    import ssl

    with (
        grpc_server(tls_certificate=CERTIFICATE, head_timeout_seconds=0.5) as (_, port),
        contextlib.ExitStack() as stack,
    ):
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(50)]
        context = ssl.create_default_context(cafile=CERTIFICATE)
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])
        plain = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
        with context.wrap_socket(plain) as secure:
            secure.sendall(
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS) + frame(HEADERS, 5, 1, head(b"ServerLive"))
            )
            found = b""
            while b"grpc-status" not in found:
                found += secure.recv(4096)
        assert [each.recv(1) for each in silent] == [b""] * len(silent)
        unnamed = ssl.create_default_context(cafile=CERTIFICATE)
        unnamed.check_hostname = False
        plain = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
        with unnamed.wrap_socket(plain) as secure, contextlib.suppress(ConnectionError):
            assert secure.recv(4096) == b"", "without h2 in ALPN it is no HTTP/2 (RFC 9113, section 3.2)"


# ---- quotas ----------------------------------------------------------------------------------------------------------


def test_a_quota_counts_http_and_grpc_together(tmp_path: Path):
    """One key, both ports at the same time: no more requests than it may make in a minute are answered."""
    file, key = keys_of(tmp_path, requests_per_minute=12)
    fields = {"x-api-key": key}
    statuses: list[int | None] = []
    with grpc_server(keys_file=file) as (server, port):

        def http() -> None:
            for _ in range(10):
                answer = server.ask(
                    request_bytes("POST", "/v1/operators/tile?repeats=2", npy_bytes([1, 2]), NPY | fields)
                )
                statuses.append(OK if answer.status == 200 else {429: RESOURCE_EXHAUSTED}[answer.status])

        def grpc() -> None:
            for _ in range(10):
                statuses.append(one(port, message(SMALL), (b"x-api-key", key.encode())))

        threads = [threading.Thread(target=each) for each in (http, grpc)]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        more = int((time.monotonic() - begin) * 12 / 60) + 1
    counts = Counter(statuses)
    assert set(counts) == {OK, RESOURCE_EXHAUSTED}
    assert 12 <= counts[OK] <= 12 + more
