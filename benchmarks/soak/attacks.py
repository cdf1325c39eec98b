"""Each attack in turn beside a well-behaved caller, compared with a caller beside another server that is attacked."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from tests.attacks.test_connection_attacks import HOST, INNER, VALIDATE
from tests.attacks.test_parse_attacks import LONG_REQUESTS
from tests.support.http_app import FRAME, JSON, NPY, Wire, frame_bytes, npy_bytes, request_bytes

from .. import servers
from ..machine import BUSY, busy_cores
from ..servers import Server, resident
from .finding import LOCAL, SMALL, Finding, beside, processor_seconds, settled, well_behaved

MIB = 1 << 20
IDLE_BYTES, AHEAD_BYTES = 64 << 10, 640 << 10
"""What a connection may cost that is idle, and one that sends ahead and reads nothing: what one read brought, and the
responses that were begun."""
OTHER = "127.0.0.2"
"""The attackers' address; the well-behaved caller's is 127.0.0.1."""


def attacks(seconds: float, *, named: str = "") -> Iterator[Finding]:
    """Make the attacks whose names have these words; each takes an equal part of the time.

    The attackers and what they make a server do take processor time from everybody on the machine. So the latencies
    are compared with those of a server that is left alone while another one is attacked in the same way.
    """
    each = seconds / (2.1 * len(ATTACKS))
    others = busy_cores() or 0.0
    judged = others <= BUSY
    with servers.tensorpost() as other:
        for attack in ATTACKS:
            if named not in attack.name:
                continue
            yield attacked(attack, each, other, others if not judged else None)


def attacked(attack: Attack, each: float, other: Server, others: float | None) -> Finding:
    """What one attack does to a server, and to the neighbours of another one; latencies are judged if no others."""
    with servers.tensorpost(**attack.settings) as server:
        well_behaved(server.port, 0.3)
        alone = well_behaved(server.port, 0.3 * each)
        with beside(partial(attack.target, other.port)):
            time.sleep(min(1.0, each / 4))  # until it is in full swing
            floor = well_behaved(server.port, each / 2)
        settled(other.port)
        before = Before(resident(server.process), processor_seconds(server.process))
        with beside(partial(attack.target, server.port)):
            time.sleep(min(1.0, each / 4))
            if attack.new_connections:
                well_behaved(server.port, 0.3)
                floor = well_behaved(server.port, 0.3 * each)
            during = well_behaved(server.port, each, new_connections=attack.new_connections)
            more = attack.judge(server, before)
        left = settled(server.port)
    holds = (during.holds_beside(floor) or others is not None) and not left
    compared = "on kept connections" if attack.new_connections else "beside another server that is attacked"
    seen = f"{during}; {compared} {floor.milliseconds}; alone {alone.milliseconds}"
    if more is not None:
        holds = holds and more[1]
        seen += f"; {more[0]}"
    seen += "" if others is None else f"; latencies not judged, since others kept {others:.1f} cores busy"
    return Finding(attack.name, seen + (f"; in use at the end: {left}" if left else ""), holds)


@dataclass(frozen=True)
class Before:
    """Resident bytes and processor seconds of a server before an attack."""

    resident: int
    processor: float


def nothing_more(_server: Server, _before: Before) -> tuple[str, bool] | None:
    """The latencies are all that counts."""
    return None


@dataclass(frozen=True)
class Attack:
    """An attack.

    Attributes:
        name: what is done, with counts.
        target: does it until it is killed, given the port.
        judge: what else is looked at when it has been going on for a while, and whether that is as it should be.
        settings: variables of the server's environment.
        new_connections: whether the well-behaved caller opens a connection for each request.
    """

    name: str
    target: Callable[[int], object]
    judge: Callable[[Server, Before], tuple[str, bool] | None] = nothing_more
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    new_connections: bool = False


def opened(port: int, count: int, data: bytes = b"", receive_buffer: int | None = None) -> list[socket.socket]:
    """Connections from the attackers' address, on each of which this was sent."""
    found: list[socket.socket] = []
    for _ in range(count):
        each = socket.socket()
        if receive_buffer is not None:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        each.bind((OTHER, 0))
        with contextlib.suppress(OSError):
            each.connect(("127.0.0.1", port))
            each.setblocking(False)
            each.send(data) if data else None
        found.append(each)
    return found


def hold(port: int, count: int, data: bytes = b"", receive_buffer: int | None = None) -> None:
    """Keep such connections, and open them again every two seconds."""
    while True:
        held = opened(port, count, data, receive_buffer)
        time.sleep(2)
        for each in held:
            each.close()


def repeat(port: int, connections: int, *requests: bytes) -> None:
    """Make these requests over and over from so many connections, and read the answers whole."""

    def one() -> None:
        while True:
            with contextlib.suppress(OSError, EOFError), contextlib.closing(Wire("127.0.0.1", port)) as wire:
                while True:
                    for data in requests:
                        wire.send(data)
                        status, fields = wire.head()
                        left = int(fields["content-length"])
                        while left:
                            left -= len(wire.read(min(left, MIB)))
                        if status in (429, 503):
                            time.sleep(1)

    threads = [threading.Thread(target=one, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def leave(port: int, data: bytes) -> None:
    """Make a request and reset its connection, over and over."""
    while True:
        with contextlib.suppress(OSError):
            wire = Wire("127.0.0.1", port)
            wire.send(data)
            time.sleep(0.02)
            wire.hang_up()


def as_json(elements: int) -> bytes:
    """A request of 300 bytes for so many float64 as JSON."""
    document = '{"tensors":{"input":{"dtype":"F64","shape":[1],"data":[0.1]}}}'
    return request_bytes("POST", f"/v1/operators/tile?repeats={elements}", document.encode(), JSON | LOCAL)


def long_requests(*names: str) -> list[bytes]:
    """The requests of these names of `tests/attacks/test_parse_attacks.py`, for this host."""
    return [LONG_REQUESTS[name]().replace(b"host: test\r\n", b"host: localhost\r\n", 1) for name in names]


def stream_bomb() -> bytes:
    """A mebibyte of float64 that becomes 2 GiB, interpolated."""
    body = npy_bytes(np.random.default_rng(0).random((512, 256)))
    return request_bytes("POST", "/v1/onnx/Resize?opset=19&mode=linear&sizes=16384,16384", body, NPY | LOCAL)


def work_bomb() -> bytes:
    """Four bytes that stand for twenty million elements, all of which are read."""
    count = 20_000_000
    source = {"DataType": "FLOAT32", "Sizes": [1, 1, 1, count], "Strides": [0] * 4, "TotalTensorSizeInBytes": 4}
    desc = {
        "InputTensor": source, "OutputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 1, 64]},
        "InterpolationMode": "LINEAR", "RoundingDirection": "DECREASING", "Antialiased": True,
        "Scales": [1, 1, 1, 64 / count],
    }  # fmt: skip
    metadata = {"op": json.dumps({"type": "RESAMPLE3", "desc": desc})}
    body = frame_bytes({"input": ("U8", [4], bytes(4))}, metadata)
    return request_bytes("POST", "/v1/operators/resample3", body, FRAME | LOCAL)


def smuggled(port: int) -> None:
    """A length with white space beside Upgrade, whose body looks like a request; another answer for it is an error."""
    fields = (
        HOST.replace(b"test", b"localhost") + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: \t74 \r\n\r\n"
    )
    with contextlib.closing(Wire("127.0.0.1", port)) as wire:
        while True:
            wire.send(VALIDATE + fields + INNER + SMALL)
            found = [wire.answer().status, wire.answer().status]
            assert found == [400, 200], found


def growth(connections: int, most: int = IDLE_BYTES) -> Callable[[Server, Before], tuple[str, bool]]:
    """How much resident memory each of so many connections costs."""

    def judge(server: Server, before: Before) -> tuple[str, bool]:
        each = (resident(server.process) - before.resident) / connections
        return f"{each / 1024:.0f} KiB for a connection", each <= most + 4 * MIB / connections

    return judge


def still_answered(server: Server, _before: Before) -> tuple[str, bool]:
    """Whether a request is divided as the attack expects; its process would have ended."""
    with contextlib.closing(Wire("127.0.0.1", server.port)) as wire:
        fields = HOST.replace(b"test", b"localhost") + b"Upgrade: h2c\r\nContent-Length: 74 \r\n\r\n"
        wire.send(VALIDATE + fields + INNER + SMALL)
        found = (wire.answer().status, wire.answer().status)
    return f"answers {found}", found == (400, 200)


def work_of_leavers(server: Server, _before: Before) -> tuple[str, bool]:
    """Processor time in the two seconds after callers have left; one of theirs would take longer."""
    for _ in range(20):
        wire = Wire("127.0.0.1", server.port)
        wire.send(work_bomb())
        wire.hang_up()
    time.sleep(0.5)
    begin = processor_seconds(server.process)
    time.sleep(0.5)
    used = processor_seconds(server.process) - begin
    return f"{used:.2f} s of processor time in the second half second after 20 left", used < 0.5


def busy(port: int, connections: int) -> None:
    """So many connections that are never idle."""
    threads = [threading.Thread(target=repeat, args=(port, connections // 4, SMALL), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


STOPPED = SMALL[:-1]
BUSY_CONNECTIONS, SLOW_READERS = 1000, 256
AHEAD = (request_bytes("GET", "/", headers=LOCAL | {"content-length": None}) * 24_000)[: 586 << 10]
ATTACKS = (
    Attack(
        "50 connections of 586 KB of requests each, answers never read",
        partial(hold, count=50, data=AHEAD, receive_buffer=4096), growth(50, AHEAD_BYTES),
    ),
    Attack(
        "1,000 connections that send half a head",
        partial(hold, count=1000, data=b"GET / HTTP/1.1\r\nHost: local"), growth(1000),
    ),
    Attack(
        "64 connections of 300 bytes that ask for 65,536 float64 as JSON",
        lambda port: repeat(port, 64, as_json(65_536)),
    ),
    Attack(
        "8 connections of JSON: 1 MiB nested, 21,000 tensors, nested for /v1/validate",
        lambda port: repeat(port, 8, *long_requests("nested data", "21,000 tensors", "validate, nested")),
    ),
    Attack(
        "8 connections of heads: a frame of 13,000 entries, queries of 60 KB",
        lambda port: repeat(
            port, 8, *long_requests("frame of 13,000 entries", "repeats of 30,000 names", "30,000 parameters")
        ),
    ),
    Attack("callers of JSON who reset their connection", lambda port: leave(port, as_json(60_000)), work_of_leavers),
    *(
        Attack(
            f"{count} bombs of 1 MB of float64 that become 2 GiB", lambda port, n=count: repeat(port, n, stream_bomb())
        )
        for count in (4, 32)
    ),
    *(
        Attack(
            f"{count} bombs of 4 bytes that stand for 20,000,000", lambda port, n=count: repeat(port, n, work_bomb())
        )
        for count in (4, 32)
    ),
    Attack("bodies that look like requests, beside Upgrade and white space", smuggled, still_answered),
    Attack("256 uploads that stop after their heads", partial(hold, count=256, data=STOPPED)),
    Attack(
        f"{BUSY_CONNECTIONS:,} busy connections; the caller's requests on new ones",
        partial(busy, connections=BUSY_CONNECTIONS), new_connections=True,
    ),
    Attack(
        f"{SLOW_READERS} readers of 64 MiB who read nothing",
        partial(
            hold, count=SLOW_READERS, receive_buffer=4096,
            data=request_bytes("POST", "/v1/operators/tile?repeats=65536", npy_bytes(np.zeros(256)), NPY | LOCAL),
        ),
    ),
)  # fmt: skip
