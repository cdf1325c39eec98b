"""What one call costs from 1 KiB to 1 GiB of output: a Tile over a bare socket, by the SDK, and without a server.

The job is that of `peers`: a float32 tensor tiled two by two, so the input is a quarter of the output. Beyond 1 GiB
(`--gibibytes 10`) the input stays at 256 MiB and only what can stream takes part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tensorpost import BufferTensorDesc, Client, TileOperatorDesc, frame
from tensorpost.values.datatypes import data_type

from . import servers
from .bench import Bench
from .peers.jobs import REPEATS
from .report import Cell, Figure, Table
from .sockets import MIB, Connection, as_bytes
from .timing import in_turn
from .wire import Caller, serving

KIB, GIB = 1 << 10, 1 << 30
SIZES = (KIB, 8 * KIB, 64 * KIB, 512 * KIB, 4 * MIB, 32 * MIB, 256 * MIB, GIB)
LARGEST_QUICK = 4 * MIB
LARGEST_HELD = GIB  # bytes of an output that a caller holds whole
LARGEST_FASTAPI = 256 * MIB  # the route holds three copies
LARGEST_COMPARED = 256 * MIB  # beyond it bytes are counted only
SECONDS = 1.5  # for each size, at least
TITLE = "A call by the size of its output"
WAYS = {
    "NumPy": "`numpy.tile` in the caller's own process, without a server",
    "TCP": "the same bytes over plain TCP, without HTTP and without work: the limit",
    "HTTP": "tensorpost, asked by a bare socket",
    "SDK": "tensorpost, asked by `Client.tile`, which returns a new array",
    "SDK, null": "the same with `backend='null'`, which computes nothing: what HTTP, SDK and server cost",
    "FastAPI": "a FastAPI route with NumPy, asked by a bare socket",
}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Job:
    """A Tile of float32.

    Attributes:
        x: the input, 4-D.
        repeats: how often the input is repeated along each dimension.
    """

    x: Array
    repeats: tuple[int, ...]

    @classmethod
    def of_size(cls, size: int) -> Job:
        """The job whose output has so many bytes, a power of two or a number of GiB."""
        elements = min(size, GIB) // 16
        height = 1 << (elements.bit_length() - 1) // 2
        x = np.resize(np.arange(251, dtype=np.float32), (1, 1, height, elements // height))
        return cls(x, (max(1, size // GIB), *REPEATS[1:]))

    @property
    def nbytes(self) -> int:
        """Bytes of the output."""
        return self.x.nbytes * int(np.prod(self.repeats))


def words(size: int) -> str:
    """A size as the table names it."""
    unit, name = next((unit, name) for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")) if size >= unit)
    return f"{size // unit} {name}"


def in_bytes(size: str) -> int:
    """The bytes of a size in words."""
    number, name = size.split()
    return int(number) * {"KiB": KIB, "MiB": MIB, "GiB": GIB}[name]


def measure(bench: Bench) -> Iterator[Table]:
    """One row per size."""
    for way, text in WAYS.items():
        bench.note(f"{way}: {text}.")
    bench.note(
        "Milliseconds of a whole call at the lower quartile, all ways in turn; the input is a quarter of the size."
    )
    sizes = [size for size in SIZES if not bench.quick or size <= LARGEST_QUICK]
    if bench.gibibytes > 1:
        sizes.append(int(bench.gibibytes) * GIB)
        bench.note("Beyond 1 GiB the input stays at 256 MiB, and the SDK is `Client.stream`, whose blocks are dropped.")
    rows: list[tuple[Cell, ...]] = []
    with contextlib.ExitStack() as kept:
        plain = Caller("TCP", kept.enter_context(Connection(kept.enter_context(serving("TCP")).port)))
        route = kept.enter_context(Connection(kept.enter_context(serving("FastAPI")).port))
        server = kept.enter_context(servers.tensorpost())
        http = kept.enter_context(Connection(server.port))
        tp = kept.enter_context(Client(server.url))
        for size in sizes:
            bench.doing(f"sizes: {words(size)}")
            calls = ways(Job.of_size(size), plain, http, route, tp)
            large = size > LARGEST_COMPARED  # such calls take a second each
            seconds = 0.5 if bench.quick else SECONDS
            took = in_turn(calls, least=2 if large else 3, seconds=seconds, warm_up=0 if large else 1)
            milliseconds = {way: times.quartile * 1e3 for way, times in took.items()}
            cells = [Figure(milliseconds[way], 3) if way in milliseconds else None for way in WAYS]
            rows.append((words(size), *cells))
    yield Table(TITLE, ("output", *(f"{way}, ms" for way in WAYS)), tuple(rows))


def ways(job: Job, plain: Caller, http: Connection, route: Connection, tp: Client) -> dict[str, Callable[[], object]]:
    """The ways that can do a job; what the SDK receives is compared with NumPy's result first."""
    x, repeats, size = job.x, job.repeats, job.nbytes
    listed = ",".join(map(str, repeats))
    head = memoryview(frame.encode_npy_head(data_type(x.dtype), x.shape))
    ours = partial(
        posted, http, f"/v1/operators/tile?repeats={listed}", "application/x-npy", [head, as_bytes(x)], size + 128
    )
    calls: dict[str, Callable[[], object]] = {"TCP": partial(plain.exchange, as_bytes(x), size), "HTTP": ours}
    if size <= LARGEST_HELD:
        local = partial(np.tile, x, repeats)
        sdk = partial(tp.tile, x, repeats)
        if size <= LARGEST_COMPARED and not np.array_equal(sdk(), local()):
            raise RuntimeError(f"the SDK gave other elements than NumPy at {words(size)}")
        calls |= {"NumPy": local, "SDK": sdk, "SDK, null": partial(tp.tile, x, repeats, backend="null")}
    else:
        desc = TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", x.shape), repeats)
        calls |= {"SDK": partial(streamed, tp, desc, x, size)}
    if size <= LARGEST_FASTAPI:
        path = f"/tile?shape={','.join(map(str, x.shape))}&repeats={listed}"
        calls |= {"FastAPI": partial(posted, route, path, "application/octet-stream", [as_bytes(x)], size)}
    return calls


def posted(connection: Connection, path: str, media_type: str, parts: list[memoryview], size: int) -> None:
    """Post a body and count the bytes of the answer."""
    got = 0

    def count(part: memoryview) -> None:
        nonlocal got
        got += len(part)

    connection.post(path, parts, {"content-type": media_type}, count)
    if got != size:
        raise RuntimeError(f"{path} is answered with {got:,} bytes instead of {size:,}")


def streamed(tp: Client, desc: TileOperatorDesc, x: Array, size: int) -> None:
    """Stream an answer and count its bytes."""
    got = sum(len(block) for block in tp.stream(desc, x))
    if got != size:
        raise RuntimeError(f"{got:,} bytes instead of {size:,} were streamed")
