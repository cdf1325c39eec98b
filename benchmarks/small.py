"""Small requests: how many a second, and how long each takes, from 1, 8 and 64 connections.

The job is Tile x2x2 of a 1x3x8x8 float32 tensor: 768 bytes in, 3 KiB out. The peers are a FastAPI route and, where
their environments are named, other products. Each is asked in turn with us.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPConnection
from pathlib import Path

import numpy as np

from tensorpost import frame
from tensorpost.values.datatypes import data_type

from . import load, servers
from .bench import Bench
from .peers.jobs import REPEATS, compare, tensor
from .peers.products import Conversation, Product, found
from .report import Cell, Figure, Table, Target

PRODUCTS_TITLE = "Against other products"
CONNECTIONS = (1, 8, 64)
FASTAPI = Target("small Tile at 64 connections, requests per second against a minimal FastAPI binary route", 2.5)
PRODUCTS = Target("small Tile at 64 connections, requests per second against the best peer product", 10)
LATENCY = Target("small Tile at 1 connection, p50 against the best peer product", 0.25, at_most=True)
COLUMNS = (
    "against", "asked by", "connections", "ours, req/s", "theirs, req/s", "ratio",
    "ours, p50 us", "theirs, p50 us", "p50 ratio", "ours, p99 us", "theirs, p99 us",
)  # fmt: skip
Ask = Callable[[int, float], load.Load]


def measure(bench: Bench) -> Iterator[Table]:
    """The tables: against FastAPI, then against the products."""
    bench.note(
        f"HTTP load is made by {load.generator()}. Answers are compared before and after the load; the status of "
        "each answer is checked."
    )
    bench.note("Figures are lower quartiles of several runs of a second, taken in turn.")
    with servers.tensorpost() as ours, servers.uvicorn("benchmarks.routes:app") as plain:
        here = ours_by_http(ours.port)
        there = _by_http(plain.port, fastapi_request(), _raw)
        yield Table(
            "Against a FastAPI route",
            COLUMNS,
            tuple(_rows(bench, "FastAPI route", load.generator().split()[0], here, there, FASTAPI, None)),
        )
    if products := found(bench):
        bench.note(
            "Products with a client of their own are asked by it, from as many threads as connections; we beside them "
            "first by HTTP load, then by our SDK from as many threads (each side's client is most of its time)."
        )
        yield Table(PRODUCTS_TITLE, COLUMNS, tuple(_against(bench, products)))


# ---- who is asked, and how -------------------------------------------------------------------------------------------


def our_request() -> load.Request:
    """The job as an npy file, the operator in the query."""
    x = tensor("small")
    body = frame.encode_npy_head(data_type(x.dtype), x.shape) + x.tobytes()
    path = f"/v1/operators/tile?repeats={','.join(map(str, REPEATS))}"
    return load.Request(path, {"content-type": "application/x-npy"}, body)


def fastapi_request() -> load.Request:
    """The job as raw bytes, everything else in the query."""
    x = tensor("small")
    path = f"/tile?shape={','.join(map(str, x.shape))}&repeats={','.join(map(str, REPEATS))}"
    return load.Request(path, {"content-type": "application/octet-stream"}, x.tobytes())


def ours_by_http(port: int) -> Ask:
    """Our service under load."""
    return _by_http(port, our_request(), lambda body: np.frombuffer(body[128:], np.float32))


def _raw(body: bytes) -> np.ndarray:
    return np.frombuffer(body, np.float32)


def _by_http(port: int, request: load.Request, read: Callable[[bytes], np.ndarray]) -> Ask:
    """A service under load, its answers compared before and after."""

    def check() -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", request.path, request.body, dict(request.headers))
        compare(request.path, "small", read(connection.getresponse().read()))
        connection.close()

    def ask(connections: int, seconds: float) -> load.Load:
        check()
        result = load.put(port, request, connections, seconds)
        check()
        return result

    return ask


def _by_client(client: Conversation) -> Ask:
    """A service under the load of its own client, its answers compared before and after."""

    def ask(connections: int, seconds: float) -> load.Load:
        client.check("small")
        result = client.load(connections, seconds)
        client.check("small")
        return result

    return ask


# ---- rows ------------------------------------------------------------------------------------------------------------


def _against(bench: Bench, products: Sequence[tuple[Product, Path]]) -> Iterator[tuple[Cell, ...]]:
    """Rows for every product that runs."""
    for product, python in products:
        try:
            with servers.tensorpost() as ours, product.asked(python) as asker:
                by_http = ours_by_http(ours.port)
                if product.request is not None:
                    assert product.read is not None
                    theirs = _by_http(asker.port, product.request(tensor("small")), product.read)
                    yield from _rows(bench, product.name, product.client, by_http, theirs, PRODUCTS, LATENCY)
                    continue
                assert isinstance(asker, Conversation)
                theirs = _by_client(asker)
                yield from _rows(
                    bench, product.name, f"{product.client}; we by HTTP load", by_http, theirs, PRODUCTS, LATENCY
                )
                with Conversation([sys.executable], ours.port, "ask_tensorpost") as sdk:
                    words = f"{product.client}; we by our SDK"
                    yield from _rows(bench, product.name, words, _by_client(sdk), theirs, None, None)
        except (RuntimeError, OSError) as error:
            bench.leave_out(f"{product.name}, small requests: {error}")


def _rows(
    bench: Bench, name: str, client: str, ours: Ask, theirs: Ask, rate: Target | None, latency: Target | None
) -> Iterator[tuple[Cell, ...]]:
    """A row for each number of connections; the targets are for the most and for one."""
    sides: Mapping[str, Ask] = {"ours": ours, "theirs": theirs}
    for connections in CONNECTIONS:
        bench.doing(f"small: {name}, {connections} connections")
        loads: dict[str, list[load.Load]] = {side: [] for side in sides}
        for number in range(5 if rate is FASTAPI and not bench.quick else 2):
            for side in sorted(sides, reverse=number % 2 == 1):
                loads[side].append(sides[side](connections, 1))
        seconds = {side: _quartile([1 / one.rate for one in found]) for side, found in loads.items()}
        p50 = {side: _quartile([one.p50 for one in found]) for side, found in loads.items()}
        p99 = {side: _quartile([one.p99 for one in found]) for side, found in loads.items()}
        yield (
            name,
            client,
            Figure(connections, 0),
            *(Figure(1 / seconds[side], 0) for side in sides),
            Figure(seconds["theirs"] / seconds["ours"], target=rate if connections == CONNECTIONS[-1] else None),
            *(Figure(p50[side] * 1e6, 0) for side in sides),
            Figure(p50["ours"] / p50["theirs"], target=latency if connections == 1 else None),
            *(Figure(p99[side] * 1e6, 0) for side in sides),
        )


def _quartile(values: list[float]) -> float:
    return float(np.quantile(values, 0.25))
