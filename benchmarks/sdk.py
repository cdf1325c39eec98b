"""The SDK against stock httpx and bare sockets, all taken in turn.

The peer is a bare socket server in a process of its own: it takes a body with `recv_into` and answers a frame from
fixed memory, so that the client is the limit. `receive` sends 3 KiB and gets the size, `send` the other way round,
`both` sends and gets it. Every way's results are compared, before and after it is timed: what came byte by byte, what
was sent by the CRC that the peer saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import httpx
import numpy as np

from tensorpost import AsyncClient, BufferTensorDesc, Client, TileOperatorDesc
from tensorpost.bodies.frame import MEDIA_TYPE, encode_head
from tensorpost.calls.resampling import resampling
from tensorpost.descriptors import OperatorDesc
from tensorpost.values.datatypes import data_type

from .bench import Bench
from .report import Cell, Figure, Table, Target
from .servers import ROOT
from .sockets import CERTIFICATE, MIB, TOGETHER, connected, receive_head, request, send, trusting
from .timing import Times, in_turn

KIB = 1 << 10
SMALL = 3 * KIB  # the other direction of a one-way job
LARGEST = 256 * MIB
METADATA = {"backend": "none", "device": "none"}
RECEIVE = Target("SDK receive 256 MiB, speed against httpx `.content`", 6)
SMALL_CALL = Target("SDK small call, time against the same bytes over a bare socket", 2.5, at_most=True)


def pattern(count: int) -> np.ndarray[Any, Any]:
    """Bytes that are wrong when shifted, repeated or left out."""
    return np.resize(np.arange(251, dtype=np.uint8), count)


# ---- the peer --------------------------------------------------------------------------------------------------------


@lru_cache
def answer_head(shape: tuple[int, ...]) -> bytes:
    return encode_head([("output", data_type("uint8"), shape)], METADATA)


def serve(path: str) -> None:
    """Serve on a TCP port, a TCP port with TLS and this Unix socket; print the ports; end when standard input does.

    A request's path is `/<plain|crc>/<sizes of the output>/...`.
    """
    source = pattern(LARGEST).data
    tcp = socket.create_server(("127.0.0.1", 0), backlog=64)
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(path)
    unix.listen(64)
    secured = socket.create_server(("127.0.0.1", 0), backlog=64)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)

    def converse(connection: socket.socket, *, tls: bool) -> None:
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            connection = context.wrap_socket(connection, server_side=True)
        room = memoryview(bytearray(4 * MIB))
        while True:
            data = b""
            while b"\r\n\r\n" not in data:
                more = connection.recv(64 * KIB)
                if not more:
                    return
                data += more
            head, _, body = data.partition(b"\r\n\r\n")
            line, *fields = head.lower().split(b"\r\n")
            _, check, sizes, *_ = line.split(b" ")[1].split(b"/")
            length = int(dict(field.split(b": ", 1) for field in fields)[b"content-length"])
            crc, got = zlib.crc32(body) if check == b"crc" else 0, len(body)
            while got < length:
                count = connection.recv_into(room)
                got += count
                if check == b"crc":
                    crc = zlib.crc32(room[:count], crc)
            shape = tuple(int(size) for size in sizes.split(b"x"))
            frame = answer_head(shape)
            total = len(frame) + int(np.prod(shape))
            lines = (f"content-type: {MEDIA_TYPE}", f"content-length: {total}", f"x-request-id: {crc}")
            whole = "\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode() + frame
            if total < 64 * KIB:
                connection.sendall(whole + source[: total - len(frame)])
            else:
                connection.sendall(whole)
                connection.sendall(source[: total - len(frame)])

    def accept(listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            options = {"tls": listener is secured}
            threading.Thread(target=converse, args=(connection,), kwargs=options, daemon=True).start()

    for listener in (tcp, unix, secured):
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
    print(tcp.getsockname()[1], secured.getsockname()[1], flush=True)
    sys.stdin.read()


@contextlib.contextmanager
def peer() -> Iterator[tuple[str, str, str]]:
    """The peer's base URL, the one with TLS, and the path of its Unix socket."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/s"
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys; from benchmarks.sdk import serve; serve(sys.argv[1])", path],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            plain, secured = process.stdout.readline().split()
            yield f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{secured}", path
        finally:
            process.stdin.close()
            process.wait(10)
            process.stdout.close()


# ---- what is asked ---------------------------------------------------------------------------------------------------


class Job:
    """One call: so many bytes there, so many back, as an operator of the SDK and as plain bytes."""

    def __init__(self, sent: int, received: int) -> None:
        self.x = pattern(sent)
        self.out = np.empty(received, np.uint8)
        self.out.fill(0)  # mapped in: what memory costs the first time is the row without `out`
        self.expected = pattern(received)
        self.desc: OperatorDesc
        if received < sent:
            self.x = self.x.reshape(1, 1, 1, -1)
            self.out = self.out.reshape(1, 1, 1, -1)
            self.desc = resampling(self.x, sizes=received, axes=3, mode="nearest").desc
        else:
            self.desc = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", (sent,)), (received // sent,))
        op = {"op": self.desc.to_document_text()}
        (name,) = (slot.name for slot in self.desc.inputs)
        self.head = encode_head([(name, data_type("uint8"), self.x.shape)], op)
        self.body = [memoryview(self.head), self.x.reshape(-1).data]  # what the SDK sends as well
        self.bytes = b"".join(self.body)
        self.crc = zlib.crc32(self.bytes)
        self.frame_head_bytes = len(encode_head([("output", data_type("uint8"), self.out.shape)], METADATA))
        self.sizes = "x".join(map(str, self.out.shape))
        self.headers = {"content-type": MEDIA_TYPE, "content-length": str(len(self.bytes))}

    def path(self, *, check: bool) -> str:
        return f"/{'crc' if check else 'plain'}/{self.sizes}"


@dataclass
class Said:
    """What a call got: the tensor's bytes, and the CRC of what it sent."""

    data: Any
    crc: int


Call = Callable[[bool], Said]


# ---- the ways to ask -------------------------------------------------------------------------------------------------


def raw(url: str, job: Job) -> Call:
    """The ceiling: nothing between the memory and the socket but what HTTP needs."""
    sock = connected(int(url.rpartition(":")[2]))
    if url.startswith("https"):
        sock = trusting().wrap_socket(sock)
    room = np.empty(job.frame_head_bytes + job.expected.size, np.uint8).data
    room[:] = bytes(len(room))

    def call(check: bool) -> Said:
        parts = [memoryview(job.bytes)]
        send(sock, request(job.path(check=check), parts, {}), parts)
        answer = receive_head(sock)
        room[: len(answer.rest)] = answer.rest
        got = len(answer.rest)
        while got < len(room):
            got += sock.recv_into(room[got:])
        return Said(room[job.frame_head_bytes :], int(answer.fields[b"x-request-id"]))

    return call


def raw_async(url: str, job: Job, loop: asyncio.AbstractEventLoop) -> Call:
    """The ceiling on asyncio: the loop's own operations on a socket."""
    sock = connected(int(url.rpartition(":")[2]))
    sock.setblocking(False)
    room = np.empty(job.frame_head_bytes + job.expected.size, np.uint8).data
    room[:] = bytes(len(room))

    async def ask(check: bool) -> Said:
        head = request(job.path(check=check), [memoryview(job.bytes)], {})
        for part in [head + job.bytes] if len(job.bytes) < TOGETHER else [head, job.bytes]:
            await loop.sock_sendall(sock, part)
        data = b""
        while b"\r\n\r\n" not in data:
            data += await loop.sock_recv(sock, 64 * KIB)
        head, _, rest = data.partition(b"\r\n\r\n")
        room[: len(rest)] = rest
        got = len(rest)
        while got < len(room):
            got += await loop.sock_recv_into(sock, room[got:])
        (crc,) = (line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"x-request-id"))
        return Said(room[job.frame_head_bytes :], int(crc))

    return lambda check: loop.run_until_complete(ask(check))


def ours(url: str, job: Job, *, out: bool, uds: str | None = None) -> Call:
    """`tensorpost.Client`: descriptor in, array out."""
    tls = trusting() if url.startswith("https") else True
    clients = [Client(url + job.path(check=check), uds=uds, tls=tls) for check in (False, True)]

    def call(check: bool) -> Said:
        result = clients[check].call(job.desc, job.x, out=job.out if out else None)
        return Said(result.array, int(result.request_id or 0))

    return call


def ours_async(url: str, job: Job, loop: asyncio.AbstractEventLoop) -> Call:
    """`tensorpost.AsyncClient` on asyncio's own loop."""
    clients = [AsyncClient(url + job.path(check=check)) for check in (False, True)]

    async def ask(check: bool) -> Said:
        result = await clients[check].call(job.desc, job.x, out=job.out)
        return Said(result.array, int(result.request_id or 0))

    return lambda check: loop.run_until_complete(ask(check))


def content(http: httpx.Client, url: str, job: Job) -> Call:
    """What one writes first: `content=bytes`, `response.content`."""

    def call(check: bool) -> Said:
        response = http.post(url + job.path(check=check), content=job.bytes, headers=job.headers)
        return Said(memoryview(response.content)[job.frame_head_bytes :], int(response.headers["x-request-id"]))

    return call


def parts(http: httpx.Client, url: str, job: Job) -> Call:
    """What one writes who has measured: parts of 1 MiB out, `iter_raw` into an array."""
    room = memoryview(bytearray(job.frame_head_bytes + job.expected.size))

    def views() -> Iterator[Any]:
        for view in job.body:
            for start in range(0, len(view), MIB):
                yield view[start : start + MIB]

    def call(check: bool) -> Said:
        url_ = url + job.path(check=check)
        with http.stream("POST", url_, content=views(), headers=job.headers) as response:
            got = 0
            for part in response.iter_raw():
                room[got : got + len(part)] = part
                got += len(part)
        return Said(room[job.frame_head_bytes :], int(response.headers["x-request-id"]))

    return call


def parts_async(http: httpx.AsyncClient, url: str, job: Job, loop: asyncio.AbstractEventLoop) -> Call:
    """The same with httpx on asyncio."""
    room = memoryview(bytearray(job.frame_head_bytes + job.expected.size))

    async def views() -> AsyncIterator[Any]:
        for view in job.body:
            for start in range(0, len(view), MIB):
                yield view[start : start + MIB]

    async def ask(check: bool) -> Said:
        url_ = url + job.path(check=check)
        async with http.stream("POST", url_, content=views(), headers=job.headers) as response:
            got = 0
            async for part in response.aiter_raw():
                room[got : got + len(part)] = part
                got += len(part)
        return Said(room[job.frame_head_bytes :], int(response.headers["x-request-id"]))

    return lambda check: loop.run_until_complete(ask(check))


RAW, STOCK, PARTS = "sockets, bare", "httpx: .content, content=bytes", "httpx: iter_raw, 1 MiB parts"
PLAIN = "tensorpost.Client"
QUICK = (RAW, PLAIN, "tensorpost.Client, out=", STOCK, PARTS)


def ways(
    url: str, secured: str, uds: str, job: Job, loop: asyncio.AbstractEventLoop, kept: contextlib.ExitStack
) -> dict[str, Call]:
    """Every way, with a connection of its own that is used again."""

    def http() -> httpx.Client:
        return kept.enter_context(httpx.Client(timeout=None, trust_env=False))

    def ahttp() -> httpx.AsyncClient:
        client = httpx.AsyncClient(timeout=None, trust_env=False)
        kept.callback(lambda: loop.run_until_complete(client.aclose()))
        return client

    return {
        RAW: raw(url, job),
        PLAIN: ours(url, job, out=False),
        "tensorpost.Client, out=": ours(url, job, out=True),
        "tensorpost.Client, out=, Unix socket": ours(url, job, out=True, uds=uds),
        "sockets, bare, asyncio": raw_async(url, job, loop),
        "tensorpost.AsyncClient, out=": ours_async(url, job, loop),
        "sockets, bare, TLS": raw(secured, job),
        "tensorpost.Client, out=, TLS": ours(secured, job, out=True),
        STOCK: content(http(), url, job),
        PARTS: parts(http(), url, job),
        "httpx async: aiter_raw, 1 MiB parts": parts_async(ahttp(), url, job, loop),
    }


# ---- measuring -------------------------------------------------------------------------------------------------------


def compare(name: str, call: Call, job: Job) -> None:
    """Fail if a way gets or sends anything wrong."""
    said = call(True)
    if said.crc != job.crc:
        raise RuntimeError(f"{name}: the peer got other bytes than were to be sent")
    found = np.frombuffer(np.ascontiguousarray(said.data), np.uint8)
    np.testing.assert_array_equal(found, job.expected, err_msg=name)


def timed(calls: Mapping[str, Call], job: Job, seconds: float) -> dict[str, Times]:
    """Times of each way, which are compared before and after."""
    for name, call in calls.items():
        compare(name, call, job)
    took = in_turn({name: partial(call, False) for name, call in calls.items()}, least=4, seconds=seconds)
    for name, call in calls.items():
        compare(name, call, job)
    return took


def measure(bench: Bench) -> Iterator[Table]:
    """One table per direction: ways down, sizes across."""
    bench.note("Microseconds for 3 KiB, else GB/s, at the lower quartile, against a server of bare sockets.")
    bench.note("httpx without timeouts; with its default timeout, sending bytes of this size is far slower still.")
    sizes = [SMALL, MIB, 16 * MIB, LARGEST]
    found: dict[str, dict[int, dict[str, Times]]] = {"receive": {}, "send": {}, "both": {}}
    with peer() as (url, secured, uds), asyncio.Runner() as runner:
        for size in sizes:
            for direction, job in (
                ("receive", (SMALL, size // SMALL * SMALL)),
                ("send", (size, min(size, SMALL))),
                ("both", (size, size)),
            ):
                if (size == SMALL and direction != "both") or (bench.quick and size > MIB and direction != "receive"):
                    continue
                bench.doing(f"sdk: {direction} {size // KIB} KiB")
                with contextlib.ExitStack() as kept:
                    made = Job(*job)
                    calls = ways(url, secured, uds, made, runner.get_loop(), kept)
                    if bench.quick:
                        calls = {name: calls[name] for name in QUICK}
                    found[direction][size] = timed(calls, made, 0.5 if bench.quick else 2.5 if size < LARGEST else 9.0)
    for direction, by_size in found.items():
        yield _table(direction, by_size)


def _table(direction: str, by_size: Mapping[int, Mapping[str, Times]]) -> Table:
    """Rates, and ratios at the largest size."""
    smallest, largest = min(by_size), max(by_size)
    names = [f"{size // KIB} KiB, us" if size < MIB else f"{size // MIB} MiB, GB/s" for size in by_size]
    against = {"bare sockets": RAW, "httpx .content": STOCK, "httpx parts": PARTS}
    rows: list[tuple[Cell, ...]] = []
    for way in next(iter(by_size.values())):
        rates = [
            Figure(took[way].quartile * 1e6, 0) if size < MIB else Figure(size / took[way].quartile / 1e9)
            for size, took in by_size.items()
        ]
        judged = direction == "receive" and largest == LARGEST and way == PLAIN
        ratios = [
            Figure(
                by_size[largest][other].quartile / by_size[largest][way].quartile,
                target=RECEIVE if judged and other == STOCK else None,
            )
            for other in against.values()
        ]
        if smallest < MIB:
            calls = by_size[smallest]
            ratio = calls[way].quartile / calls[RAW].quartile
            ratios.insert(0, Figure(ratio, target=SMALL_CALL if way == PLAIN else None))
        rows.append((way, *rates, *ratios))
    times = [f"{smallest // KIB} KiB, time against bare sockets"] if smallest < MIB else []
    columns = ("way", *names, *times, *(f"{largest // MIB} MiB against {name}" for name in against))
    return Table(f"{direction.capitalize()}", columns, tuple(rows))
