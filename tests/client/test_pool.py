"""Connections between calls: which are used again, which are closed, and how many there are."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from tensorpost._async_sockets import AsyncPool
from tensorpost._pool import Pool

from tensorpost import Limits, Timeout
from tensorpost.problems import InvalidParameter, RequestTimeout

HERE, THERE = ("127.0.0.1", 1), "/some/socket"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    made = [socket.socketpair() for _ in range(4)]
    yield made
    for ours, theirs in made:
        ours.close()
        theirs.close()


def use(pool: Pool, address: tuple[str, int] | str, sock: socket.socket) -> None:
    """Make a connection, use it, and give it back."""
    pool.admit(None)
    assert pool.take(address) is None
    pool.release(address, sock)


def test_the_connection_used_last_is_used_next(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    pool = Pool(Limits())
    first, second, elsewhere = (ours for ours, _ in pairs[:3])
    for _ in range(3):
        pool.admit(None)
    pool.release(HERE, first)
    pool.release(HERE, second)
    pool.release(THERE, elsewhere)

    assert [pool.take(HERE), pool.take(HERE), pool.take(HERE), pool.take(THERE)] == [second, first, None, elsewhere]


@pytest.mark.parametrize("sends", [b"", b"HTTP/1.1 408 Request Timeout\r\n\r\n"], ids=["hangs up", "speaks unasked"])
def test_a_connection_on_which_anything_came_is_closed(
    pairs: list[tuple[socket.socket, socket.socket]], sends: bytes
) -> None:
    pool = Pool(Limits())
    (dead, theirs), (alive, _) = pairs[:2]
    use(pool, HERE, alive)
    pool.admit(None)
    pool.release(HERE, dead)
    theirs.sendall(sends)
    theirs.close()

    assert pool.take(HERE) is alive
    assert dead.fileno() == -1


def test_an_idle_connection_expires(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    clock = Clock()
    pool = Pool(Limits(keepalive_expiry=5), clock)
    old, young = pairs[0][0], pairs[1][0]
    use(pool, HERE, old)
    clock.now += 4
    use(pool, THERE, young)
    clock.now += 1.5

    assert pool.take(HERE) is None
    assert old.fileno() == -1
    assert pool.take(THERE) is young


def test_without_an_expiry_it_does_not(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    clock = Clock()
    pool = Pool(Limits(keepalive_expiry=None), clock)
    use(pool, HERE, pairs[0][0])
    clock.now += 1e9

    assert pool.take(HERE) is pairs[0][0]


@pytest.mark.parametrize(("most", "kept"), [(0, 0), (1, 1), (2, 2), (None, 3)])
def test_so_many_idle_connections_are_kept_and_the_oldest_go(
    pairs: list[tuple[socket.socket, socket.socket]], most: int | None, kept: int
) -> None:
    pool = Pool(Limits(max_keepalive_connections=most))
    sockets = [ours for ours, _ in pairs[:3]]
    for _ in sockets:
        pool.admit(None)
    for sock in sockets:
        pool.release(HERE, sock)

    assert [sock.fileno() == -1 for sock in sockets] == [True] * (3 - kept) + [False] * kept


def test_idle_connections_to_others_count_and_give_way(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    pool = Pool(Limits(max_connections=2))
    first, second = pairs[0][0], pairs[1][0]
    pool.admit(None)
    pool.admit(None)
    pool.release(HERE, first)
    pool.release(HERE, second)
    pool.admit(None)

    assert pool.take(THERE) is None
    assert (first.fileno(), second.fileno() != -1) == (-1, True)


def test_closing_closes_the_idle_ones_at_once_and_the_others_when_they_come_back(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    pool = Pool(Limits())
    idle, busy = pairs[0][0], pairs[1][0]
    use(pool, HERE, idle)
    pool.admit(None)
    pool.close()

    assert (idle.fileno(), busy.fileno() != -1) == (-1, True)
    pool.release(HERE, busy)
    assert busy.fileno() == -1
    with pytest.raises(RuntimeError, match="closed"):
        pool.admit(None)


# ---- places ----------------------------------------------------------------------------------------------------------


def test_a_call_more_than_there_are_connections_waits_for_one() -> None:
    pool = Pool(Limits(max_connections=1))
    pool.admit(None)
    threading.Timer(0.1, pool.release, (HERE,)).start()
    begin = time.monotonic()

    pool.admit(10)

    assert 0.05 < time.monotonic() - begin < 5


def test_it_does_not_wait_for_ever() -> None:
    pool = Pool(Limits(max_connections=2))
    pool.admit(0.01)
    pool.admit(0.01)

    with pytest.raises(RequestTimeout, match=r"all 2 connections were in use for 0\.01 seconds") as caught:
        pool.admit(0.01)
    assert caught.value.extra == {"phase": "pool"}


def test_tasks_wait_for_a_connection_too() -> None:
    async def play() -> float:
        pool = AsyncPool(Limits(max_connections=1))
        await pool.admit(None)
        with pytest.raises(RequestTimeout, match="all 1 connections"):
            await pool.admit(0.01)
        asyncio.get_running_loop().call_later(0.1, pool.release, HERE)
        begin = time.monotonic()
        await pool.admit(10)
        return time.monotonic() - begin

    assert 0.05 < asyncio.run(play()) < 5


def test_a_task_that_is_cancelled_while_it_waits_takes_no_place() -> None:
    async def play() -> None:
        pool = AsyncPool(Limits(max_connections=1))
        await pool.admit(None)
        waiting = asyncio.ensure_future(pool.admit(None))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        pool.release(HERE)
        await pool.admit(0.5)

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
    found = Timeout.of(timeout)

    assert (found.connect, found.read, found.write, found.pool) == waits


@pytest.mark.parametrize("name", ["connect", "read", "write", "pool"])
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
