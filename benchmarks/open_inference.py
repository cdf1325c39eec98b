"""tritonclient to us, and to other servers of the Open Inference Protocol: `python -m benchmarks.open_inference`.

    python -m benchmarks.peers install --into build/peers --only pytriton,mlserver
    python -m benchmarks.open_inference --peers build/peers
    python -m benchmarks.page --inference build/open-inference.json      writes the table of docs/open-inference.md

Everybody is asked for the same Tile by the same unmodified client, in turn, while both servers run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton
import tritonclient.utils.shared_memory as regions

from tensorpost import Client

from .__main__ import measured
from .bench import Bench
from .load import Load
from .machine import Machine
from .peers.jobs import REPEATS, SHAPES
from .peers.products import PRODUCTS, Conversation, versions
from .report import Cell, Figure, Run, Table, Target
from .servers import ROOT, answers, free_port, running, tensorpost
from .timing import in_turn

CONNECTIONS = (1, 8, 64)
RATE = Target("small Tile by tritonclient, requests per second against the peer", 3)
SPEED = Target("large Tile by tritonclient, speed against the peer", 3)
SHARED = Target("64 MiB there and back, shared memory against our own HTTP", 3)
OURS = ("input", "output", json.dumps(REPEATS))
THEIRS = ("x", "y")


@dataclass(frozen=True)
class Way:
    """Who is compared with us, by which client each is asked (`http` or `grpc`), and the large jobs."""

    environment: str
    ours: str
    theirs: str
    jobs: tuple[str, ...] = ("16 MiB", "256 MiB")

    @property
    def words(self) -> str:
        return f"tritonclient.{self.ours}" + ("" if self.ours == self.theirs else f"; it by .{self.theirs}")


WAYS = (
    Way("pytriton", "http", "http"),
    Way("pytriton", "grpc", "grpc"),
    Way("mlserver", "http", "grpc"),
    Way("mlserver", "grpc", "grpc", ("16 MiB",)),
)
"""MLServer takes no binary tensors by HTTP, so its gRPC is its fastest. 256 MiB take it half a minute: one row only."""

PEERS = {product.environment: product for product in PRODUCTS}


def measure(bench: Bench) -> Iterator[Table]:
    """Small and large calls against each peer and against the client alone, and shared memory."""
    bench.note("One process of tritonclient asks, with as many threads and client objects as connections.")
    bench.note("An answer made beforehand is that of a server without any work.")
    bench.note("Small: Tile x2x2 of 1x3x8x8 float32, 3 KiB out. Large: GB/s of output; a quarter of it goes in.")
    small: list[tuple[Cell, ...]] = []
    large: list[tuple[Cell, ...]] = []
    for way in WAYS:
        name = PEERS[way.environment].name.partition(",")[0]
        python = None if bench.peers is None else PEERS[way.environment].python(bench.peers)
        if python is None:
            bench.leave_out(f"{name}: it is not installed; python -m benchmarks.peers install --help says how")
            continue
        try:
            with _ours() as ours, _peer(way.environment, python) as theirs:
                asked = [_asked(way.ours, ours, OURS), _asked(way.theirs, theirs, THEIRS)]
                with asked[0] as us, asked[1] as them:
                    small += _small(bench, (name, way.words), us, them)
                    large += _large(bench, (name, way.words), us, them, way.jobs)
        except (RuntimeError, OSError) as error:
            bench.leave_out(f"{name}, {way.words}: {error}")
    columns = ("ours, req/s", "theirs, req/s", "ratio", "ours, p50 us", "theirs, p50 us")
    with _ours() as ours, _peer("canned", sys.executable) as theirs:
        for kind in ("http", "grpc"):
            with _asked(kind, ours, OURS) as us, _asked(kind, theirs, THEIRS) as them:
                names = ("an answer made beforehand", f"tritonclient.{kind}")
                small += _small(bench, names, us, them, None)
                large += _large(bench, names, us, them, ("16 MiB",), None)
    yield Table("Small calls", ("against", "asked by", "connections", *columns), tuple(small))
    yield Table("Large calls", ("against", "asked by", "job", "ours, GB/s", "theirs, GB/s", "ratio"), tuple(large))
    if sys.platform == "linux":
        yield Table("Shared memory", ("by", "HTTP, ms", "shared memory, ms", "ratio"), tuple(_shared(bench)))
    else:
        bench.leave_out("shared memory, which the server has on Linux only")


# ---- who serves and who asks -----------------------------------------------------------------------------------------

Ports = Mapping[str, int]


@contextlib.contextmanager
def _ours() -> Iterator[Ports]:
    port = free_port()
    with tensorpost(grpc_port=port, max_requests=256) as server:
        yield {"http": server.port, "grpc": port}


@contextlib.contextmanager
def _peer(name: str, python: Path | str) -> Iterator[Ports]:
    """Another server, started; it has the two ports that it is given."""
    second = free_port()
    command = [str(python), "-m", f"benchmarks.peers.serve_{name}"]
    ready = answers("/v2/models/tile/ready")
    with running(name, lambda port: [*command, str(port), str(second)], ready, wait=90) as server:
        yield {"http": server.port, "grpc": second}


def _asked(kind: str, ports: Ports, told: tuple[str, ...]) -> Conversation:
    return Conversation([sys.executable, "-W", "ignore"], ports[kind], "ask_triton", kind, *told)


# ---- rows ------------------------------------------------------------------------------------------------------------


def _small(
    bench: Bench, names: tuple[str, str], us: Conversation, them: Conversation, target: Target | None = RATE
) -> Iterator[tuple[Cell, ...]]:
    """Requests per second, in turn; compared after each."""
    for connections in CONNECTIONS:
        bench.doing(f"{', '.join(names)}: small, {connections} connections")
        found: dict[Conversation, list[Load]] = {us: [], them: []}
        for number in range(4 if bench.quick else 6):
            for side in (us, them) if number % 2 else (them, us):
                found[side].append(side.load(connections, 0.4 if bench.quick else 1))
                side.check("small")
        rates = [1 / float(np.quantile([1 / one.rate for one in found[side]], 0.25)) for side in (us, them)]
        p50 = [float(np.quantile([one.p50 for one in found[side]], 0.25)) * 1e6 for side in (us, them)]
        ratio = Figure(rates[0] / rates[1], target=target)
        yield (
            *names,
            Figure(connections, 0),
            *(Figure(rate, 0) for rate in rates),
            ratio,
            *(Figure(each, 0) for each in p50),
        )


def _large(
    bench: Bench, names: tuple[str, str], us: Conversation, them: Conversation, jobs: tuple[str, ...],
    target: Target | None = SPEED,
) -> Iterator[tuple[Cell, ...]]:  # fmt: skip
    """Whole calls, in turn; compared before."""
    for job in jobs:
        bench.doing(f"{', '.join(names)}: {job}")
        for side in (us, them):
            side.check(job)
        calls = {"ours": partial(us.call, job), "theirs": partial(them.call, job)}
        took = in_turn(
            calls, least=1 if bench.quick and job == "256 MiB" else 3, seconds=1 if bench.quick else 4, warm_up=0
        )
        output_bytes = 4 * int(np.prod(SHAPES[job]) * np.prod(REPEATS))
        rates = [output_bytes / times.quartile / 1e9 for times in took.values()]
        yield (*names, job, *(Figure(rate, 3) for rate in rates), Figure(rates[0] / rates[1], target=target))


def _shared(bench: Bench) -> Iterator[tuple[Cell, ...]]:
    """64 MiB in and out by the SDK and by tritonclient, each by HTTP and by shared memory, all in turn."""
    bench.doing("shared memory")
    x = (np.arange(16 << 20) % 251).astype(np.float32)
    name, size = f"/tensorpost_bench_{os.getpid()}", x.nbytes
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(tensorpost(shared_memory=True))
        by_http = stack.enter_context(Client(server.url))
        by_memory = stack.enter_context(Client(server.url, shared_memory=True))
        client = stack.enter_context(triton.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=300.0))
        source, target = (regions.create_shared_memory_region(each, f"{name}_{each}", size) for each in ("x", "y"))
        for each, region in (("x", source), ("y", target)):
            stack.callback(regions.destroy_shared_memory_region, region)
            client.register_system_shared_memory(each, f"{name}_{each}", size)

        def infer(*, shared: bool) -> Any:
            tensor_, output = triton.InferInput("input", list(x.shape), "FP32"), triton.InferRequestedOutput("output")
            if shared:
                regions.set_shared_memory_region(source, [x])
                tensor_.set_shared_memory("x", size)
                output.set_shared_memory("y", size)
            else:
                tensor_.set_data_from_numpy(x)
            answer = client.infer("tile", [tensor_], outputs=[output], parameters={"repeats": "[1]"})
            return regions.get_contents_as_numpy(target, np.float32, x.shape) if shared else answer.as_numpy("output")

        ways: dict[str, Callable[[], Any]] = {
            "Client.tile": partial(by_http.tile, x, (1,)),
            "Client.tile, shared": partial(by_memory.tile, x, (1,)),
            "tritonclient.http": partial(infer, shared=False),
            "tritonclient.http, shared": partial(infer, shared=True),
        }
        for way, call in ways.items():
            if not np.array_equal(call(), x):
                raise RuntimeError(f"{way} answers with other elements than it was sent")
        took = in_turn(ways, least=3 if bench.quick else 8)
        for way in ("Client.tile", "tritonclient.http"):
            plain, shared = took[way].quartile, took[f"{way}, shared"].quartile
            yield way, Figure(plain * 1e3, 1), Figure(shared * 1e3, 1), Figure(plain / shared, target=SHARED)


def main() -> int:
    """Run, print and write. A target that is missed is no failure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open_inference", description=__doc__)
    parser.add_argument("--peers", type=Path, metavar="DIR", help="the other servers' environments")
    parser.add_argument("--quick", action="store_true", help="shorter rows: five minutes instead of eight")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "open-inference.json", help="where to write")
    options = parser.parse_args()
    subprocess.run([sys.executable, "-m", "tensorpost", "warmup"], check=True)
    here = {name: version(name) for name in ("tritonclient", "grpcio")}
    machine = Machine.here({**versions(options.peers), **here})
    print("\n".join(machine.lines()))
    section = measured("inference", "benchmarks.open_inference", Bench(options.quick, options.peers))
    Run(machine, options.quick, (section,)).write(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
