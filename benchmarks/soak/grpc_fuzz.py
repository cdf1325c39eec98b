"""gRPC: mutated messages on real channels, and attacks on its port beside a well-behaved caller."""

from __future__ import annotations

import contextlib
import gzip
import random
import socket
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from tests.attacks.test_grpc_attacks import SMALL, STRINGS, keys_of, request, strings
from tests.support.http2 import DATA, HEADERS, PING, RESET, SETTINGS, Http2Wire, frame, head, message

from tensorpost_server.http.grpc.grpc_messages import METHODS, PACKAGE, grpc_messages

from .. import servers
from ..machine import BUSY, busy_cores
from ..servers import free_port, resident
from .finding import Finding, beside, settled, well_behaved

MIB = 1 << 20
MESSAGES = 30_000
AT_ONCE = 8
SECONDS = 20.0
"""A call that takes longer hangs; the machine may be busy."""
OTHER = "127.0.0.2"
DECLARED = {
    "OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "UNAUTHENTICATED",
    "PERMISSION_DENIED",
}  # fmt: skip
"""What a mutated message may be answered with; all others are faults of the server."""
MODELS = ("tile", "top_k", "onnx.resize", "onnx.tile", "onnx.concat", "element_wise_add1", "resample2", "nothing")


def grpc_attacks(seconds: float) -> Iterator[Finding]:
    """The fuzz, then each attack for an equal part of the time."""
    yield fuzzed(MESSAGES if seconds >= 20 else 3000)
    for name, attack in ATTACKS.items():
        yield attacked(name, attack, max(2.0, seconds / (4 * len(ATTACKS))))


# ---- mutated messages ------------------------------------------------------------------------------------------------


def fuzzed(count: int) -> Finding:
    """Mutated messages, with and without a key, compressed ones among them."""
    grpc: Any = import_module("grpc")
    port, found = free_port(), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        file, key = keys_of(Path(folder))
        with servers.tensorpost(grpc_port=port, keys_file=file, log_level="error") as server:
            channels = [
                grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])
                for _ in range(AT_ONCE)
            ]

            def several(numbers: range, index: int) -> None:
                chance = random.Random(numbers.start)
                for number in numbers:
                    found[one(grpc, channels[index], chance, key if number % 4 else None)] += 1

            def all_of(first: int, last: int) -> None:
                step = -(-(last - first) // AT_ONCE)
                with ThreadPoolExecutor(AT_ONCE) as pool:
                    jobs = [
                        pool.submit(several, range(begin, min(begin + step, last)), index)
                        for index, begin in enumerate(range(first, last, step))
                    ]
                    for job in jobs:
                        job.result()

            all_of(0, count // 10)
            before = resident(server.process)
            all_of(count // 10, count)
            for number in range(count // 20):
                found[framed(port, random.Random(number), key)] += 1
            for channel in channels:
                channel.close()
            left = settled_with(server.port, key)
            grown = resident(server.process) - before
            lives = one(grpc, grpc.insecure_channel(f"127.0.0.1:{port}"), None, key) == "OK"
    undeclared = {name: number for name, number in found.items() if name not in DECLARED}
    seen = f"{dict(found.most_common())}; grown by {grown / MIB:.0f} MiB; in use at the end: {left or 'nothing'}"
    return Finding(
        f"{count + count // 20:,} mutated messages of gRPC, a quarter of them without a key", seen,
        lives and not undeclared and not left and grown < 96 * MIB,
    )  # fmt: skip


def one(grpc: Any, channel: Any, chance: random.Random | None, key: str | None) -> str:
    """The status of one call, unchanged without chance."""
    name, data, compression = "ModelInfer", SMALL, None
    if chance is not None:
        name = chance.choice(["ModelInfer"] * 12 + ["ModelStreamInfer"] * 2 + [*METHODS])
        data = mutated(seed(chance, name), chance)
        compression = chance.choice([None, None, grpc.Compression.Gzip, grpc.Compression.Deflate])
    make = channel.stream_stream if name == "ModelStreamInfer" else channel.unary_unary
    call = make(f"/{PACKAGE}.GRPCInferenceService/{name}")
    options = {"timeout": SECONDS, "metadata": (("x-api-key", key),) if key else (), "compression": compression}
    try:
        if name == "ModelStreamInfer":
            for _ in call(iter([data, data]), **options):
                pass
        else:
            call(data, **options)
    except grpc.RpcError as error:
        status = error.code().name
    else:
        status = "OK"
    health = name in ("ServerLive", "ServerReady")
    if key is None and not health and status != "UNAUTHENTICATED":
        return f"{status} without a key"
    return status


def seed(chance: random.Random, name: str) -> bytes:
    """A message that is right, or nearly."""
    kind = grpc_messages()[METHODS[name][0]]
    if "Infer" not in name:
        names = [field.name for field in kind.DESCRIPTOR.fields if field.type == field.TYPE_STRING]
        return kind(**dict.fromkeys(names, chance.choice(MODELS))).SerializeToString()
    shape = [chance.choice([0, 1, 2, 3, 64]) for _ in range(chance.randrange(4))]
    datatype = chance.choice(["FP32", "INT8", "BYTES", "BOOL", "FP16", "UINT64", "FP33"])
    tensor: dict[str, Any] = {
        "name": chance.choice(["input", "input_0", "X", ""]),
        "datatype": datatype,
        "shape": shape,
    }
    found = kind(model_name=chance.choice(MODELS), id=str(chance.random()))
    count = int(np.prod(shape, dtype=np.int64))
    if datatype in ("BYTES", "UINT64", "BOOL") and chance.random() < 0.7:
        field = {"BYTES": "bytes_contents", "UINT64": "uint64_contents", "BOOL": "bool_contents"}[datatype]
        tensor["contents"] = {field: [{"BYTES": b"ab", "UINT64": 1 << 60, "BOOL": True}[datatype]] * count}
    else:
        found.raw_input_contents.append(chance.randbytes(count * chance.choice([1, 2, 4, 4, 4, 8])))
    found.inputs.add(**tensor)
    for parameter in chance.sample(["repeats", "axis", "k", "sizes", "scales", "timeout", "binary_data_output"], 3):
        text = chance.choice(["[1,2]", "2", "-1", "[[", "1e400", "nan", "9" * 400, '"linear"'])
        found.parameters[parameter].string_param = text
    return found.SerializeToString()


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The same with a few bytes changed, cut out, or repeated."""
    found = bytearray(data)
    for _ in range(chance.choice([0, 1, 1, 2, 4, 16])):
        at = chance.randrange(len(found) + 1)
        what = chance.random()
        if what < 0.5 and at < len(found):
            found[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif what < 0.65:
            del found[at : at + chance.randrange(1, 20)]
        elif what < 0.9:
            part = bytes(found[at : at + chance.randrange(1, 200)])
            found[at:at] = part * chance.choice([1, 1, 1, 2, 100, 1000])
        else:
            found[at:at] = chance.randbytes(chance.randrange(1, 20))
    return bytes(found[: 2 * MIB])


def framed(port: int, chance: random.Random, key: str) -> str:
    """A call whose prefix, compressed bytes or frames are mutated; every end of it is an answer."""
    coding = chance.choice([b"gzip", b"deflate", b"identity", b"snappy"])
    data = {b"gzip": gzip.compress, b"deflate": zlib.compress}.get(coding, bytes)(seed(chance, "ModelInfer"))
    body = message(mutated(data, chance), compressed=chance.random() < 0.8)
    fields = ((b"x-api-key", key.encode()), (b"grpc-encoding", coding))
    frames = frame(HEADERS, 4, 1, head(b"ModelInfer", fields)) + frame(DATA, 1, 1, body[:60_000])
    try:
        with Http2Wire(port, timeout=SECONDS) as wire:
            wire.send(mutated(frames, chance)[:60_000] if chance.random() < 0.7 else frames)
            wire.socket.shutdown(socket.SHUT_WR)
            for _ in wire.frames():
                pass
    except TimeoutError:
        return "hangs"
    except OSError:
        pass
    return "OK"


def settled_with(port: int, key: str, seconds: float = 30.0) -> dict[str, int]:
    """See `settled`, where a key is wanted."""
    from http.client import HTTPConnection
    from json import loads

    end = time.monotonic() + seconds
    while True:
        connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        connection.request("GET", "/v1/limits", headers={"x-api-key": key})
        used = {name: value for name, value in loads(connection.getresponse().read())["in_use"].items() if value}
        connection.close()
        if not used or time.monotonic() > end:
            return used
        time.sleep(0.1)


# ---- attacks ---------------------------------------------------------------------------------------------------------


def attacked(name: str, target: Callable[[int], object], seconds: float) -> Finding:
    """What an attack on the port of gRPC does to a server, and to the neighbours of another one."""
    port, others = free_port(), busy_cores() or 0.0
    with servers.tensorpost(grpc_port=port) as server:
        other_port = free_port()
        with servers.tensorpost(grpc_port=other_port), beside(partial(target, other_port)):
            time.sleep(0.5)
            floor = well_behaved(server.port, seconds)
        before = resident(server.process)
        with beside(partial(target, port)):
            time.sleep(0.5)
            during = well_behaved(server.port, seconds)
            answered = [asked(port, path, body) for path, body in ((b"ServerLive", b""), (b"ModelInfer", SMALL)) * 5]
        left = settled(server.port)
        grown = (resident(server.process, "VmHWM") - before) / MIB
    judged = others <= BUSY
    seen = f"{during}; beside another server that is attacked {floor.milliseconds}; at most {grown:.0f} MiB more"
    seen += f"; statuses of others {sorted(set(answered), key=str)}"
    seen += "" if judged else f"; latencies not judged, since others kept {others:.1f} cores busy"
    holds = (during.holds_beside(floor) or not judged) and set(answered) == {0} and not left and grown < 256
    return Finding(f"gRPC: {name}", seen + (f"; in use at the end: {left}" if left else ""), holds)


def asked(port: int, path: bytes, body: bytes) -> int | None:
    """The status of a call from the well-behaved caller's address."""
    try:
        with Http2Wire(port, timeout=SECONDS) as wire:
            wire.call(1, path, message(body))
            return wire.status(1)
    except OSError:
        return None


def repeated(*calls: Callable[[Http2Wire, int], object], connections: int = 4) -> Callable[[int], None]:
    """Attackers who do this on connection after connection, with a number for each call of one."""

    def attack(port: int) -> None:
        def go_on() -> None:
            while True:
                with contextlib.suppress(OSError), Http2Wire(port, OTHER) as wire:
                    for number in range(1, 401, 2):
                        for call in calls:
                            call(wire, number)

        threads = [threading.Thread(target=go_on, daemon=True) for _ in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return attack


def held(connections: int, streams: int) -> Callable[[int], None]:
    """Streams that send nothing, opened again every two seconds."""

    def attack(port: int) -> None:
        while True:
            with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
                for _ in range(connections):
                    wire = stack.enter_context(Http2Wire(port, OTHER))
                    for number in range(1, 2 * streams, 2):
                        wire.call(number, b"ModelStreamInfer", None)
                time.sleep(2)

    return attack


def silent(port: int) -> None:
    """Connections that say nothing at all, opened again every two seconds."""
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for _ in range(1000):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), 5, (OTHER, 0)))
            time.sleep(2)


def called(body: bytes, *fields: tuple[bytes, bytes]) -> Callable[[Http2Wire, int], object]:
    """A call, and its status."""

    def call(wire: Http2Wire, number: int) -> None:
        wire.call(number, b"ModelInfer", body, fields)
        wire.status(number)

    return call


def sent(data: Callable[[int], bytes]) -> Callable[[Http2Wire, int], object]:
    """What sends frames, given the number of a call."""
    return lambda wire, number: wire.send(data(number))


BOMB = message(gzip.compress(strings(STRINGS)), compressed=True)
CALL = head(b"ModelInfer")
ATTACKS: dict[str, Callable[[int], object]] = {
    "9 KiB of gzip that are 5,000,000 empty strings": repeated(called(BOMB, (b"grpc-encoding", b"gzip"))),
    "0.4 MiB of empty strings": repeated(called(message(strings(200_000)))),
    "300 streams that send nothing": held(3, 100),
    "2,000 streams that send nothing": held(20, 100),
    "messages of 512 MiB that are announced and not sent": repeated(
        sent(lambda number: frame(HEADERS, 4, number, CALL) + frame(DATA, 0, number, message(b"", length=512 * MIB)))
    ),
    "1,000 connections that say nothing": silent,
    "pings": repeated(sent(lambda _: frame(PING, 0, 0, bytes(8)) * 100)),
    "settings": repeated(sent(lambda _: frame(SETTINGS, 0, 0, b"\0\4\0\0\xff\xff") * 100)),
    "requests that are reset at once": repeated(
        sent(lambda number: frame(HEADERS, 4, number, CALL) + frame(RESET, 0, number, b"\0\0\0\x08"))
    ),
    "answers of 8 MiB that are not read": repeated(
        sent(lambda number: frame(HEADERS, 4, number, CALL) + frame(DATA, 1, number, message(request(
            raw=bytes(16_000), repeats="[512]"
        ))))
    ),
}  # fmt: skip
