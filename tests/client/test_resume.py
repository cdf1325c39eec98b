"""Answers whose connection is cut by a proxy: the rest is asked for, and the bytes are those of one answer or an error.

The expected bytes are NumPy's own.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from tests.client.conftest import WAYS
from tests.support.cutting_proxy import CuttingProxy, cutting_proxy
from tests.support.live_server import live_server
from tests.support.raw_server import http_answer, raw_server, read_request

from tensorpost import BufferTensorDesc, Client, Progress, TileOperatorDesc, Timeout
from tensorpost.problems import CallChanged, IncompleteBody

X = np.random.default_rng(0).integers(0, 255, (1, 3, 101, 977), np.uint8)  # rows of 9,770 bytes in the output
REPEATS = (1, 1, 7, 10)
WHOLE = np.tile(X, REPEATS)  # 20.7 MB
DESC = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", X.shape), REPEATS)
MIB = 1 << 20
PROBLEM = "application/problem+json"


def problem(code: str, **extra: str) -> bytes:
    return json.dumps({"type": f"urn:tensorpost:problem:{code}", "detail": "no", **extra}).encode()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with live_server(TENSORPOST_BACKEND="numpy") as url:
        yield url


@pytest.fixture(params=WAYS)
def new_client(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return WAYS[request.param]


def rows_asked(proxy: CuttingProxy) -> list[str]:
    """The rows that each request asks for; empty for all."""
    return [head.partition(b"rows=")[2].partition(b" ")[0].decode() for head in proxy.heads]


@pytest.mark.parametrize("cuts", [[7 * MIB + 123], [300, 9770 * 40, 12 * MIB]])
def test_out_is_filled_over_several_connections(server: str, new_client: Any, cuts: list[int]) -> None:
    with cutting_proxy(server, cuts) as proxy, new_client(proxy.url) as tp:
        out = np.zeros_like(WHOLE)
        assert tp.run(DESC, X, out=out) is out
        np.testing.assert_array_equal(out, WHOLE)
        asked = rows_asked(proxy)
        assert asked[0] == ""
        assert len(asked) >= 2
        assert sum(proxy.passed) < WHOLE.nbytes + 9770 * len(cuts) + 4096  # nothing but a part of a row comes twice


def test_connections_may_be_reset(server: str, new_client: Any) -> None:
    with cutting_proxy(server, [7 * MIB, 14 * MIB]) as proxy, new_client(proxy.url) as tp:
        proxy.resets = True
        np.testing.assert_array_equal(tp.run(DESC, X), WHOLE)


def test_a_stream_goes_on(server: str, new_client: Any) -> None:
    with cutting_proxy(server, [5 * MIB, 10 * MIB]) as proxy, new_client(proxy.url) as tp:
        data = b"".join(tp.stream(DESC, X, block_bytes=300_000))
        assert data == WHOLE.tobytes()
        assert len(proxy.heads) == 3


def test_a_graph_and_its_stream_go_on(server: str, new_client: Any) -> None:
    graph = {
        "inputs": {"x": {"data_type": "uint8", "sizes": [1, 3, "h", "w"]}},
        "nodes": [{"name": "t", "op_type": "Tile", "inputs": {"input": "x", "repeats": [*REPEATS]}}],
        "outputs": {"y": "t"},
    }
    with cutting_proxy(server, [5 * MIB]) as proxy, new_client(proxy.url) as tp:
        np.testing.assert_array_equal(tp.run_graph(graph, {"x": X})["y"], WHOLE)
    with cutting_proxy(server, [5 * MIB]) as proxy, new_client(proxy.url) as tp:
        assert b"".join(block.data for block in tp.stream_graph(graph, {"x": X})) == WHOLE.tobytes()
        assert len(proxy.heads) == 2


def test_inputs_that_changed_are_refused(server: str, new_client: Any) -> None:
    x = X.copy()
    with cutting_proxy(server, [5 * MIB]) as proxy, new_client(proxy.url) as tp:
        blocks = tp.stream(DESC, x)
        received = [next(blocks)]
        x[0, 0, 0, 0] += 1
        with pytest.raises(CallChanged, match="the inputs have changed since the call began") as caught:
            received.extend(blocks)
    assert "the connection broke after" in caught.value.detail
    assert WHOLE.tobytes().startswith(b"".join(received))


def test_the_rest_is_computed_by_what_computed_the_beginning(server: str) -> None:
    """The first connection leads to a server whose default backend answers zeros, the second to one with another."""
    with live_server(TENSORPOST_BACKEND="null") as zeros, cutting_proxy(zeros, [5 * MIB]) as proxy:
        proxy.others.append((1, server))
        with Client(proxy.url) as tp:
            assert not tp.run(DESC, X).any()
        assert b"backend=null" in proxy.heads[1]


def test_progress_is_of_the_whole(server: str, new_client: Any) -> None:
    seen: list[Progress] = []
    with cutting_proxy(server, [5 * MIB]) as proxy, new_client(proxy.url) as tp:
        tp.run(DESC, X, progress=seen.append)
    received = [each.received for each in seen]
    assert received == sorted(received)
    assert seen[-1].received == seen[-1].to_receive
    assert seen[-1].received >= WHOLE.nbytes


def test_without_retries_nothing_is_asked_again(server: str, new_client: Any) -> None:
    with cutting_proxy(server, [5 * MIB]) as proxy, new_client(proxy.url, retries=0) as tp:
        with pytest.raises(IncompleteBody, match="the connection broke after 5,24"):
            tp.run(DESC, X)
        assert len(proxy.heads) == 1


def test_a_small_output_is_not_resumed(server: str) -> None:
    desc = TileOperatorDesc.of(BufferTensorDesc.packed("UINT8", X.shape), (1, 1, 1, 20))
    with cutting_proxy(server, [MIB]) as proxy, Client(proxy.url) as tp:
        with pytest.raises(IncompleteBody):
            tp.run(desc, X)
        assert len(proxy.heads) == 1


def test_connections_that_break_before_every_first_byte_end_the_call(server: str) -> None:
    with cutting_proxy(server, [5 * MIB, 1500, 1500, 1500, 1500]) as proxy, Client(proxy.url) as tp:
        with pytest.raises(IncompleteBody):
            tp.run(DESC, X)
        assert len(proxy.heads) < 5


def test_the_total_of_the_timeout_holds_for_all_connections(server: str) -> None:
    with cutting_proxy(server, [5 * MIB]) as proxy:
        proxy.silent_after = 1  # later connections are accepted and never answered
        begin = time.monotonic()
        with Client(proxy.url, timeout=Timeout(total=2.0)) as tp, pytest.raises(IncompleteBody):
            tp.run(DESC, X)
        assert time.monotonic() - begin < 4


def test_a_server_that_comes_back_is_waited_for() -> None:
    """The port answers nobody for a second; then another server has it."""
    with live_server(TENSORPOST_BACKEND="numpy") as url, cutting_proxy(url, [5 * MIB]) as proxy:
        proxy.refuses_until = time.monotonic() + 1e9

        def come_back() -> None:
            while not proxy.heads or proxy.passed[0] < 5 * MIB:
                time.sleep(0.01)
            time.sleep(1)
            proxy.refuses_until = 0.0

        threading.Thread(target=come_back, daemon=True).start()
        with Client(proxy.url) as tp:
            np.testing.assert_array_equal(tp.run(DESC, X), WHOLE)


@pytest.mark.parametrize(
    ("second", "error"),
    [
        (http_answer("400 Bad Request", problem("invalid-parameter"), PROBLEM), IncompleteBody),
        (http_answer("412 Precondition Failed", problem("call-changed", reason="backend"), PROBLEM), CallChanged),
        (http_answer("200 OK", b"{}", "application/json"), IncompleteBody),
        (http_answer("200 OK", save({"output": WHOLE[0, 0, :5]}), "application/vnd.safetensors"), IncompleteBody),
    ],
    ids=["a server without rows", "another backend", "no frame", "other rows"],
)
def test_what_other_servers_answer_ends_the_call(second: bytes, error: type[Exception]) -> None:
    """Nothing that is not the missing rows is ever joined to what was received."""
    first = http_answer(body=save({"output": WHOLE}, {"backend": "numpy"}), content_type="application/vnd.safetensors")

    def handle(connection: socket.socket, number: int) -> None:
        read_request(connection)
        connection.sendall(first[: 5 * MIB] if number == 1 else second)

    with raw_server(handle) as server:
        with Client(server.url) as tp, pytest.raises(error):
            tp.run(DESC, X)
        assert server.connections == 2


def test_another_of_several_servers_sends_the_rest(server: str) -> None:
    with cutting_proxy(server, [5 * MIB]) as one, cutting_proxy(server, [5 * MIB]) as other:
        with Client([one.url, other.url]) as tp:
            np.testing.assert_array_equal(tp.run(DESC, X), WHOLE)
        assert len(one.heads) + len(other.heads) >= 2
