"""The measuring itself: who is called how often and in which order, what counts as an answer, what counts as right."""

import contextlib
import itertools
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from benchmarks.kernels import DTYPES, RESAMPLINGS, Resampling, Tiling, ours
from benchmarks.load import Request, by_loop
from benchmarks.peers import products
from benchmarks.peers.jobs import compare, tensor
from benchmarks.servers import answers, running
from benchmarks.timing import Times, in_turn

from tensorpost_server.backends import load_backend

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
OK_TIMED = b"HTTP/1.1 200 OK\r\nServer-Timing: compute;dur=0.2\r\nContent-Length: 2\r\n\r\nok"


def test_calls_take_turns_and_each_begins_a_round() -> None:
    said: list[str] = []
    took = in_turn({name: lambda name=name: said.append(name) for name in "abc"}, least=3)

    assert "".join(said) == "abc" + "abc" + "bca" + "cab"  # once without counting, then three rounds
    assert [len(times.seconds) for times in took.values()] == [3, 3, 3]


def test_calls_in_a_row_count_and_those_after_a_pause_do_not() -> None:
    said: list[str] = []
    took = in_turn(
        {name: lambda name=name: said.append(name) for name in "ab"}, least=1, warm_up=2, in_a_row=3, pause=0.001
    )

    assert "".join(said) == "aaaaabbbbb"
    assert [len(times.seconds) for times in took.values()] == [3, 3]


def test_the_lower_quartile_is_not_moved_by_slow_rounds() -> None:
    assert Times([1.0, 1.0, 1.0, 50.0, 90.0]).quartile == 1.0
    assert Times([3.0, 2.0]).best == 2.0


@pytest.fixture
def answer(request: pytest.FixtureRequest) -> Iterator[int]:
    """A server that gives these bytes to whatever comes, or several in turn: its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def converse(connection: socket.socket) -> None:
            answers = itertools.cycle(request.param if isinstance(request.param, tuple) else (request.param,))
            with connection, contextlib.suppress(ConnectionError):  # a caller may hang up whenever it likes
                while connection.recv(4096):
                    connection.sendall(next(answers))

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=converse, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield int(listener.getsockname()[1])
        with contextlib.suppress(OSError):  # Windows shuts no listening socket down
            listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("answer", [OK, (OK, OK_TIMED)], indirect=True)
def test_our_load_generator_counts_answers(answer: int) -> None:
    load = by_loop(answer, Request("/", {}, b"x"), connections=3, seconds=0.1)

    assert load.rate > 100
    assert 0 < load.p50 <= load.p99 < 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno", "503"),
        (b"HTTP/1.1 200 OK\r\n\r\nok", "without Content-Length"),
        (OK + b"more", "more"),
    ],
    indirect=["answer"],
)
def test_our_load_generator_counts_nothing_else(answer: int, words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        by_loop(answer, Request("/", {}, b"x"), connections=2, seconds=0.5)


def test_a_server_that_ends_is_reported_with_what_it_said() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]

    with (
        pytest.raises(RuntimeError, match=r"(?s)peer ended with status 1.*no such model"),
        running("peer", lambda _: command, answers("/")),
    ):
        pytest.fail("it never answered")


@pytest.mark.parametrize(
    ("case", "dtype", "definition"),
    [
        (Resampling("nearest", 2), "uint8", lambda x: x.repeat(2, axis=2).repeat(2, axis=3)),
        (Resampling("linear", 0.5), "float32", lambda x: x.reshape(1, 3, -1, 2, x.shape[3] // 2, 2).mean((3, 5))),
        (Tiling("rows", (1, 8), (2, 2)), "float32", lambda x: np.concatenate([np.concatenate([x, x], 1)] * 2)),
    ],
)
def test_what_kernels_return_is_compared_with_the_definition(case, dtype, definition, monkeypatch) -> None:
    monkeypatch.setattr("benchmarks.kernels.OUTPUT_BYTES", 1 << 16)
    x = case.input(dtype)
    y = definition(x).astype(dtype)

    assert case.wrong(y, x) is None
    assert case.wrong(np.roll(y, 1, axis=-1), x) is not None
    assert case.wrong(y[:-1] if y.ndim == 2 else y[..., :-1], x) is not None


def test_our_kernels_return_what_the_benchmark_wants(monkeypatch) -> None:
    monkeypatch.setattr("benchmarks.kernels.OUTPUT_BYTES", 1 << 16)
    backend = load_backend("numpy")()
    with ThreadPoolExecutor(1) as pool:
        for case, dtype in itertools.product(RESAMPLINGS, DTYPES):
            x = case.input(dtype)
            _, whole = ours(backend, case.descriptor(x), [x], pool)
            assert case.wrong(whole(), x) is None, f"{case} of {dtype}"


def test_another_products_answer_is_compared_whole() -> None:
    y = np.tile(tensor("small"), (1, 1, 2, 2))
    compare("peer", "small", y)
    y[0, 2, 15, 15] += 1

    with pytest.raises(RuntimeError, match="peer answers the small job with other elements"):
        compare("peer", "small", y)


def test_every_product_is_asked_by_http_or_by_a_program_of_its_own() -> None:
    here = products.servers.ROOT / "benchmarks" / "peers"
    for product in products.PRODUCTS:
        assert (here / f"{product.module}.py").exists()
        if product.request is None:
            assert (here / f"{product.asks[0]}.py").exists()
        else:
            assert product.read is not None
            assert product.request(tensor("small")).path.startswith("/")
        assert all("==" in package for package in product.packages)
