"""Connections between calls: which are used again, which are closed, and how many there are."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tensorpost import Limits, Timeout
from tensorpost.network.connection import Connection
from tensorpost.network.connection_pool import ConnectionPool
from tensorpost.network.deadline import Deadline
from tensorpost.network.origin import Origin
from tensorpost.network.runtime import AsyncioRuntime, Runtime, ThreadRuntime, run_blocking
from tensorpost.values.problems import InvalidParameter, RequestTimeout


def patience(seconds: float | None = None, runtime: Runtime | None = None) -> Deadline:
    """Of a call that waits for a connection for so long."""
    origin = Origin.parse("http://peer", headers={}, timeout=Timeout(pool=seconds), tls=True, uds=None)
    return Deadline(runtime or ThreadRuntime(), origin)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Pairs:
    """Connections, with the sockets at their other ends."""

    sockets: list[tuple[socket.socket, socket.socket]]

    def connection(self, index: int) -> Connection:
        return Connection(self.sockets[index][0])


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    made = [socket.socketpair() for _ in range(4)]
    for ours, _ in made:
        ours.setblocking(False)
    yield Pairs(made)
    for ours, theirs in made:
        ours.close()
        theirs.close()


def pool_of(limits: Limits | None = None, **options: Any) -> ConnectionPool:
    return ConnectionPool(limits or Limits(), **options)


def acquire(pool: ConnectionPool, seconds: float | None = None) -> Any:
    return run_blocking(pool.acquire(patience(seconds)))


def use(pool: ConnectionPool, connection: Connection) -> None:
    """Make a connection, use it, and give it back."""
    assert acquire(pool) is None
    pool.release(connection, reusable=True)


def is_closed(connection: Connection) -> bool:
    return connection.sock.fileno() == -1


def test_the_connection_used_last_is_used_next(pairs: Pairs) -> None:
    pool = pool_of()
    first, second = pairs.connection(0), pairs.connection(1)
    for _ in range(2):
        acquire(pool)
    for connection in (first, second):
        pool.release(connection, reusable=True)

    assert [acquire(pool), acquire(pool), acquire(pool)] == [second, first, None]


def test_a_connection_that_cannot_be_used_again_is_closed(pairs: Pairs) -> None:
    pool, broken = pool_of(), pairs.connection(0)
    acquire(pool)
    pool.release(broken)

    assert is_closed(broken)
    assert acquire(pool) is None


@pytest.mark.parametrize("sends", [b"", b"HTTP/1.1 408 Request Timeout\r\n\r\n"], ids=["hangs up", "speaks unasked"])
def test_a_connection_on_which_anything_came_is_closed(pairs: Pairs, sends: bytes) -> None:
    pool = pool_of()
    dead, alive = pairs.connection(0), pairs.connection(1)
    acquire(pool)
    acquire(pool)
    pool.release(alive, reusable=True)
    pool.release(dead, reusable=True)
    theirs = pairs.sockets[0][1]
    theirs.sendall(sends)
    theirs.close()

    assert acquire(pool) is alive
    assert is_closed(dead)


def test_an_idle_connection_expires(pairs: Pairs) -> None:
    clock = Clock()
    pool = pool_of(Limits(keepalive_expiry=5), clock=clock)
    old, young = pairs.connection(0), pairs.connection(1)
    acquire(pool)
    acquire(pool)
    pool.release(old, reusable=True)
    clock.now += 4
    pool.release(young, reusable=True)
    clock.now += 1.5

    assert [acquire(pool), acquire(pool)] == [young, None]
    assert is_closed(old)


def test_without_an_expiry_it_does_not(pairs: Pairs) -> None:
    clock = Clock()
    pool = pool_of(Limits(keepalive_expiry=None), clock=clock)
    connection = pairs.connection(0)
    use(pool, connection)
    clock.now += 1e9

    assert acquire(pool) is connection


@pytest.mark.parametrize(("most", "kept"), [(0, 0), (1, 1), (2, 2), (None, 3)])
def test_so_many_idle_connections_are_kept_and_the_oldest_go(pairs: Pairs, most: int | None, kept: int) -> None:
    pool = pool_of(Limits(max_keepalive_connections=most))
    connections = [pairs.connection(index) for index in range(3)]
    for _ in connections:
        acquire(pool)
    for connection in connections:
        pool.release(connection, reusable=True)

    assert [is_closed(connection) for connection in connections] == [True] * (3 - kept) + [False] * kept


def test_closing_closes_the_idle_ones_at_once_and_the_others_when_they_come_back(pairs: Pairs) -> None:
    pool = pool_of()
    idle, busy = pairs.connection(0), pairs.connection(1)
    acquire(pool)
    acquire(pool)
    pool.release(idle, reusable=True)
    pool.close()

    assert (is_closed(idle), is_closed(busy)) == (True, False)
    pool.release(busy, reusable=True)
    assert is_closed(busy)
    with pytest.raises(RuntimeError, match="closed"):
        acquire(pool)


# ---- no more than there may be ---------------------------------------------------------------------------------------


def test_a_call_more_than_there_are_connections_waits_for_one() -> None:
    pool = pool_of(Limits(max_connections=1))
    acquire(pool)
    threading.Timer(0.1, pool.release).start()
    begin = time.monotonic()

    acquire(pool, seconds=10)

    assert 0.05 < time.monotonic() - begin < 5


def test_the_one_that_waited_longest_is_next() -> None:
    pool = pool_of(Limits(max_connections=1))
    acquire(pool)
    order: list[int] = []

    def wait(number: int) -> None:
        acquire(pool, seconds=10)
        order.append(number)
        pool.release()

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(3)]
    for count, thread in enumerate(threads, 1):
        thread.start()
        while len(pool._waiting) < count:
            time.sleep(0.001)
    pool.release()
    for thread in threads:
        thread.join(10)

    assert order == [0, 1, 2]


def test_it_does_not_wait_for_ever() -> None:
    pool = pool_of(Limits(max_connections=2))
    acquire(pool, seconds=0.01)
    acquire(pool, seconds=0.01)

    with pytest.raises(RequestTimeout, match=r"all 2 connections were in use for 0\.01 seconds") as caught:
        acquire(pool, seconds=0.01)
    assert caught.value.extra == {"phase": "pool"}


def test_closing_wakes_no_one_but_who_is_next_finds_it_closed() -> None:
    pool = pool_of(Limits(max_connections=1))
    acquire(pool)
    threading.Timer(0.05, pool.close).start()
    threading.Timer(0.1, pool.release).start()

    with pytest.raises(RuntimeError, match="closed"):
        acquire(pool, seconds=10)


def test_tasks_wait_for_a_connection_too() -> None:
    async def play() -> float:
        pool = ConnectionPool(Limits(max_connections=1))
        await pool.acquire(patience(None, AsyncioRuntime()))
        with pytest.raises(RequestTimeout, match="all 1 connections"):
            await pool.acquire(patience(0.01, AsyncioRuntime()))
        asyncio.get_running_loop().call_later(0.1, pool.release)
        begin = time.monotonic()
        await pool.acquire(patience(10, AsyncioRuntime()))
        return time.monotonic() - begin

    assert 0.05 < asyncio.run(play()) < 5


@pytest.mark.parametrize("released", ["before", "after"])
def test_a_task_that_is_cancelled_while_it_waits_takes_no_place(released: str) -> None:
    async def play() -> None:
        pool = ConnectionPool(Limits(max_connections=1))
        await pool.acquire(patience(None, AsyncioRuntime()))
        waiting = asyncio.ensure_future(pool.acquire(patience(None, AsyncioRuntime())))
        await asyncio.sleep(0)
        if released == "before":
            pool.release()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        if released == "after":
            pool.release()
        await pool.acquire(patience(0.5, AsyncioRuntime()))

    asyncio.run(play())


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout", "waits"),
    [
        (60.0, (5.0, 60.0, 60.0, 60.0)),
        (2, (2, 2, 2, 2)),
        (None, (5.0, None, None, None)),
        (Timeout(), (5.0, 60.0, 60.0, 60.0)),
        (Timeout(connect=None, read=1, write=2, pool=3), (None, 1, 2, 3)),
    ],
)
def test_a_timeout_is_a_wait_for_each_phase(timeout: float | Timeout | None, waits: tuple[float | None, ...]) -> None:
    found = Timeout.from_value(timeout)

    assert (found.connect, found.read, found.write, found.pool) == waits


@pytest.mark.parametrize("name", ["connect", "read", "write", "pool", "total"])
@pytest.mark.parametrize("seconds", [0, -1, "1", True, float("nan")])
def test_a_wait_that_is_none_is_refused(name: str, seconds: object) -> None:
    with pytest.raises(InvalidParameter, match=f"timeout's {name}"):
        Timeout(**{name: seconds})  # pyright: ignore[reportArgumentType] # that is the point


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_connections", 0),
        ("max_connections", 1.0),
        ("max_connections", True),
        ("max_keepalive_connections", -1),
        ("keepalive_expiry", 0),
        ("keepalive_expiry", "1"),
    ],
)
def test_limits_that_cannot_be_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidParameter, match=name):
        Limits(**{name: value})  # pyright: ignore[reportArgumentType] # that is the point
