"""What one caller can take from the others: quotas over HTTP and gRPC, regions, caches; and clocks that jump."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.http_app import NPY, Answer, Wire, npy_bytes, request_bytes

from tensorpost_server.http.access.api_keys import ApiKey, digest, write_keys

from .. import servers
from ..servers import answers, free_port, resident, running
from .finding import LIVE, LOCAL, SMALL, Finding, ask, well_behaved

AT_ONCE = 14
QUOTA, ANSWER = 1 << 20, 4_000_000
"""Bytes of a key a minute, and of one answer."""
MIB = 1 << 20
HEADS = 5000
MOST_REGIONS = 1024
_JUMPING = """
import signal, sys, time
real, step = time.time, [0.0]
time.time = lambda: real() + step[0]
time.time_ns = lambda: int(time.time() * 1e9)
def jump(number, _):
    step[0] += 86400.0 if number == signal.SIGUSR1 else -86400.0
signal.signal(signal.SIGUSR1, jump)
signal.signal(signal.SIGUSR2, jump)
from tensorpost.__main__ import main
sys.argv = ["tensorpost", *sys.argv[1:]]
main()
"""


def callers(_seconds: float) -> Iterator[Finding]:
    """One after the other."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "keys")
        yield quotas(path)
        yield regions(path)
        yield clocks(path)
    yield caches()


def keys(path: Path, names: Sequence[str], **limits: Any) -> None:
    """Write a file of keys, each the name of its caller."""
    now = datetime.now(UTC)
    write_keys(
        path,
        [ApiKey(name=name, sha256=digest(name.encode()), scopes=("run",), created=now, **limits) for name in names],
    )


def post(path: str, body: bytes, key: str, headers: dict[str, str] | None = None) -> bytes:
    """A request with a key."""
    return request_bytes("POST", path, body, {**LOCAL, **(headers or {}), "x-api-key": key})


# ---- quotas ----------------------------------------------------------------------------------------------------------


def quotas(path: Path) -> Finding:
    """One key's quota of bytes, used by so many answers at once over HTTP and as many over gRPC."""
    done = f"{AT_ONCE} answers of {ANSWER:,} bytes over HTTP and {AT_ONCE} over gRPC at once, {QUOTA:,} bytes a minute"
    try:
        grpc_client: Any = importlib.import_module("tritonclient.grpc")
    except ModuleNotFoundError:
        return Finding(done, "tritonclient is not installed", holds=None)
    keys(path, ["anna"], bytes_per_minute=QUOTA)
    body = npy_bytes(np.zeros(1000, np.uint8), "uint8")
    sent = post(f"/v1/operators/tile?repeats={ANSWER // 1000}", body, "anna", NPY)
    port = free_port()
    with servers.tensorpost(keys_file=path, grpc_port=port) as server, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(contextlib.closing(Wire("127.0.0.1", server.port))) for _ in range(AT_ONCE)]
        client = stack.enter_context(grpc_client.InferenceServerClient(f"127.0.0.1:{port}"))
        given = grpc_client.InferInput("input", [1000], "UINT8")
        given.set_data_from_numpy(np.zeros(1000, np.uint8))

        def infer(_number: int) -> int:
            try:
                repeats = {"repeats": json.dumps([ANSWER // 1000])}
                found = client.infer("tile", [given], headers={"x-api-key": "anna"}, parameters=repeats)
            except grpc_client.InferenceServerException:
                return 0
            return int(found.as_numpy("output").nbytes)

        for wire in wires:
            wire.send(sent[:-500])
        time.sleep(0.3)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            over_grpc = pool.map(infer, range(AT_ONCE))
            for wire in wires:
                wire.send(sent[-500:])
            over_http = [wire.answer() for wire in wires]
            received = sum([len(answer.body) for answer in over_http if answer.status == 200]) + sum(over_grpc)
    statuses = Counter([answer.status for answer in over_http])
    seen = f"{received:,} bytes of answers, {received / QUOTA:.1f} quotas; HTTP answers {dict(statuses)}"
    return Finding(done, seen, received <= QUOTA + ANSWER + 1000 and {*statuses} <= {200, 429})


# ---- regions ---------------------------------------------------------------------------------------------------------


def regions(path: Path) -> Finding:
    """Four callers register regions under the same names, each until it is refused."""
    names = ("anna", "bob", "carl", "dora")
    keys(path, names)
    key = f"soak-{os.getpid()}"
    with tempfile.NamedTemporaryFile(prefix=key, dir="/dev/shm") as region:
        region.truncate(4096)
        document = json.dumps({"key": Path(region.name).name, "byte_size": 4096}).encode()
        registered, refusals, foreign = dict[str, int](), list[Answer](), 0
        with servers.tensorpost(keys_file=path, shared_memory=1) as server:
            for name in names:
                listed = request_bytes("GET", "/v2/systemsharedmemory/status", headers=LOCAL | {"x-api-key": name})
                foreign += len(ask(server.port, listed).json())
                with contextlib.closing(Wire("127.0.0.1", server.port)) as wire:
                    for number in range(MOST_REGIONS + 1):
                        wire.send(post(f"/v2/systemsharedmemory/region/{number}/register", document, name))
                        answer = wire.answer()
                        if answer.status != 200:
                            refusals.append(answer)
                            break
                        registered[name] = number + 1
    statuses = sorted({answer.status for answer in refusals})
    of_bytes = sum([b"bytes" in answer.body for answer in refusals])
    seen = f"{registered}, then {statuses}; {foreign} regions of others seen; {of_bytes} refusals speak of bytes"
    holds = len(registered) == len(names) and statuses == [413] and not foreign and not of_bytes
    return Finding(f"{len(names)} callers register regions of the same names until they are refused", seen, holds)


# ---- clocks ----------------------------------------------------------------------------------------------------------


def clocks(path: Path) -> Finding:
    """The clock of the day jumps by a day, forth and back, under keys with quotas and with an end, and deadlines."""
    now = datetime.now(UTC)
    write_keys(
        path,
        [
            ApiKey(name="quota", sha256=digest(b"quota"), scopes=("run",), created=now, requests_per_minute=2),
            ApiKey(name="ends", sha256=digest(b"ends"), scopes=("run",), created=now, expires=now + timedelta(hours=1)),
        ],
    )
    body = npy_bytes([1, 2])

    def statuses(port: int) -> list[int]:
        patient = NPY | {"prefer": "wait=30"}
        return [
            ask(port, post("/v1/operators/tile?repeats=2", body, name, patient)).status for name in ("quota", "ends")
        ]

    command = partial(_jumping_server)
    with (
        running(
            "tensorpost", command, answers("/v2/health/ready"), environment={"TENSORPOST_KEYS_FILE": str(path)}
        ) as server,
        contextlib.closing(Wire("127.0.0.1", server.port)) as idle,
    ):
        idle.send(LIVE)
        idle.answer()
        found = [statuses(server.port), statuses(server.port)]
        for sign in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR2):
            os.kill(server.process, sign)
            time.sleep(1.2)
            found.append(statuses(server.port))
        idle.send(LIVE)
        still = idle.answer().status
    expected = [[200, 200], [200, 200], [429, 401], [429, 200], [429, 200]]
    seen = f"statuses of the key with the quota and of the one that ends {found}; an idle connection answers {still}"
    return Finding(
        "a clock that jumps by a day, forth, back and further back", seen, found == expected and still == 200
    )


def _jumping_server(port: int) -> list[str]:
    return [sys.executable, "-c", _JUMPING, "serve", "--port", str(port), "--log-level", "warning"]


# ---- caches ----------------------------------------------------------------------------------------------------------


def caches() -> Finding:
    """One caller fills the caches of calls with heads that never come again, as long as are kept; another goes on."""
    body = npy_bytes([1, 2])
    with servers.tensorpost() as server, contextlib.closing(Wire("127.0.0.1", server.port)) as wire:
        alone = well_behaved(server.port, 1)
        before = resident(server.process)
        for number in range(HEADS):
            path, filler = f"/v1/operators/tile?repeats={number + 1}", {"x-filler": "y" * 3000}
            wire.send(request_bytes("POST", path, body, NPY | LOCAL | filler))
            assert wire.answer().status == 200
        after = resident(server.process)
        beside = well_behaved(server.port, 1)
        small = ask(server.port, SMALL).status
    seen = (
        f"resident {before / MIB:.0f} MiB before, {after / MIB:.0f} after; another caller {alone.milliseconds} before, "
        f"{beside.milliseconds} after"
    )
    holds = small == 200 and after < before + 64 * MIB and beside.holds_beside(alone)
    return Finding(f"{HEADS:,} calls whose heads never come again, of 3 KB each", seen, holds)
