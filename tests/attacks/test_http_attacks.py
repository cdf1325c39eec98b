"""Ideas for abuse of the server, tried over bare sockets against a real one.

After each, no memory may be in use and the next caller must be served. The ideas:

1. **Smuggling**: a request that two readers divide differently (Content-Length beside Transfer-Encoding, two lengths,
   obscured encodings), or whose body looks like a request. There are exactly as many answers as requests.
2. **A body behind a refusal**: the refusal does not wait for it, and it is never taken for the next request.
3. **Many connections that send half a head, or nothing.** They hold no memory of the budget; others are served.
4. **Uploads that stop, to hold the budget.** Others are refused at once, health answers, and after the receive
   timeout the budget is whole again.
5. **Readers that stop, to keep outputs in memory.** Each holds a few slices at most, and those are in its ticket.
6. **Small requests for huge outputs, on many connections, cut off at random.** The work stops with the caller.
7. **Strides and sizes that want to read the memory behind a buffer.** Every byte of an answer is the caller's.
8. **Padding that shows what was in the memory before.** It is zero.
9. **A pickle, or Python, in an npy file.** Nothing of it runs.
10. **Compressed bodies that unpack to gigabytes.** Not unpacked: 415.
11. **Paths that climb**: `..` and its encodings, in operators and in the files of the documentation page.
12. **Names that look alike** to a careless comparison (a dotless i, a full-width letter).
13. **Text that wants to be a header or a page**: request ids, query values and names are echoed in JSON only, escaped.
14. **What is no HTTP**: other protocols, versions, binary rubbish.
15. **Calls that differ in one detail, alternating**, to get the answer that was cached for the other.
16. **Numbers that are expensive**: thousands of digits in the query, exponents, deep brackets.
17. **A head of HTTP without end**, also in pieces, and also as trailers of a body in chunks.
18. **A byte now and then**, in a head, a body or in reading an answer, to keep memory and sockets for ever.
19. **A long pipeline of huge outputs whose caller is gone.** The one that runs stops; the others never begin.
20. **An upgrade with a body that looks like a request.** The body is a body.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import oracles
from tests.support.http_app import (
    FRAME,
    JSON,
    NPY,
    Answer,
    AppClient,
    Controlled,
    Serving,
    assert_problem,
    eventually,
    frame_bytes,
    http_app,
    npy_array,
    npy_bytes,
    request_bytes,
    serving,
    split_frame,
    use_backend,
)

from tensorpost.descriptors import parse_operator
from tensorpost.values.problems import InvalidDescriptor

TILE = "/v1/operators/tile"
LIVE = request_bytes("GET", "/v2/health/live")
MEMORY = 20_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(
        memory_bytes=MEMORY,
        max_output_bytes=1 << 40,
        slice_bytes=65536,
        receive_timeout_seconds=2,
        numpy_threads=2,
        caller_share=1,
    ) as found:
        yield found


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app() as client:
        yield client


def answers(server: Serving, data: bytes, most: int) -> list[Answer]:
    """What comes back until the server hangs up or a last, honest request is answered."""
    found: list[Answer] = []
    with server.wire() as wire:
        try:
            wire.send(data + request_bytes("GET", "/v1/last"))
            while len(found) < most:
                found.append(wire.answer())
                if b"/v1/last" in found[-1].body:
                    return found
        except (EOFError, ConnectionError):
            return found
    raise AssertionError(f"more than {most} answers: {found}")


# ---- 1, 2 ------------------------------------------------------------------------------------------------------------

INNER = request_bytes("GET", "/v1/devices")
POST = f"POST {TILE}?repeats=2 HTTP/1.1\r\nHost: test\r\nContent-Type: application/x-npy\r\n".encode()


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        b"Content-Length: 4\r\nContent-Length: 400\r\n",
        b"Content-Length: 4\r\nContent-Length: 4\r\n",
        b"Content-Length: 4, 400\r\n",
        b"Content-Length: +4\r\n",
        b"Content-Length: 0x4\r\n",
        b"Content-Length: -4\r\n",
        b"Content-Length: 4 4\r\n",
        b"Content-Length:\r\n",
        b"Content-Length : 4\r\n",
        b"Content-Length\r\n : 4\r\n",
        b"Content-Length: 99999999999999999999999999\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: \x0bchunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"X: y\nContent-Length: 4\r\n",
        b"X: y\rContent-Length: 4\r\n",
        b"X\0: y\r\nContent-Length: 4\r\n",
    ],
)
def test_01_a_request_that_could_be_divided_in_two_ways(server: Serving, head: bytes):
    # The body is "0\r\n\r\n" to one reader, and the start of something longer to another; then comes another request.
    (answer,) = answers(server, POST + head + b"\r\n" + b"0\r\n\r\n" + INNER, 4)

    assert (answer.status, answer.headers["connection"]) == (400, "close")
    server.assert_serves_on()


def test_01_the_same_request_told_plainly_is_divided_in_the_right_place(server: Serving):
    found = answers(server, POST + b"Content-Length: 5\r\n\r\n" + b"0\r\n\r\n" + INNER, 4)

    assert [answer.status for answer in found] == [400, 200, 404]


def test_01_a_body_that_looks_like_a_request(server: Serving):
    body = INNER * 5

    found = answers(server, request_bytes("POST", TILE + "?repeats=2", body, NPY), 3)

    assert [answer.status for answer in found] == [400, 404]
    assert_problem(found[0], 400, "invalid-frame")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/operators/tiel", NPY, 404),
        (TILE, {}, 415),
        (TILE + "?repeats=2", NPY | {"accept": "text/csv"}, 400),  # that the body is no npy comes first
        (TILE + "?repeats=0", NPY, 400),
        (TILE, JSON, 400),
        ("/v1/validate?x=1", JSON, 400),
        ("/nowhere", {}, 404),
        ("/v1/limits", {}, 405),
        ("/v2/health/live", {}, 405),
    ],
)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "after the answer"])
def test_02_a_body_behind_a_refusal_is_no_request(
    server: Serving, path: str, headers: dict[str, str], status: int, later: bool
):
    body = INNER * 3
    data = request_bytes("POST", path, body, headers)
    with server.wire() as wire:
        if later and status != 400:
            wire.send(data[: -len(body)])
            assert status == wire.answer().status
            wire.send(body)
        else:
            wire.send(data)
            assert status == wire.answer().status
        wire.send(request_bytes("POST", TILE + "?repeats=2", npy_bytes([1]), NPY))
        answer = wire.answer()

    assert answer.status == 200
    np.testing.assert_array_equal([1, 1], npy_array(answer.body))


def test_02_a_large_body_behind_a_refusal_is_thrown_away(server: Serving):
    rest = bytes(1 << 20)
    with server.wire() as wire:
        wire.send(request_bytes("POST", "/v1/operators/tiel", b"", NPY | {"content-length": 30 << 20}))
        assert_problem(wire.answer(), 404, "unknown-operator")
        for _ in range(30):
            wire.send(rest)
        wire.send(LIVE)
        assert wire.answer().body == b'{"live":true}\n'
    assert server.idle()


# ---- 3 to 6: holding on ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"GET ", POST, POST + b"Content-Length: 9000\r\n\r\n", POST + b"X: " + b"y" * 1000]
)
def test_03_connections_that_say_half_of_something(server: Serving, data: bytes):
    wires = [server.wire() for _ in range(100)]
    try:
        for each in wires:
            each.__enter__().send(data)
        assert server.idle(), "half a head has memory of the budget"
        assert server.ask(LIVE).status == 200
    finally:
        for each in wires:
            each.__exit__(None, None, None)
    server.assert_serves_on()


def test_04_uploads_that_stop(server: Serving):
    # Three of 6 MB each: a fourth does not fit into 20 MB.
    upload = request_bytes("POST", TILE + "?repeats=1", npy_bytes(np.zeros(6_000_000, np.uint8)), NPY)
    wires = [server.wire() for _ in range(3)]
    try:
        opened = [each.__enter__() for each in wires]
        for wire in opened:
            wire.send(upload[:5_000_000])
        eventually(lambda: server.service.admission.requests_in_flight == 3, "three uploads are let in")
        problem = assert_problem(server.ask(upload[:-6_000_000]), 429, "too-busy")
        assert problem["setting"] == "TENSORPOST_MEMORY_BYTES"
        assert server.ask(LIVE).status == 200
        assert server.service.admission.requests_in_flight == 3, "who was refused had to wait"
        for wire in opened:
            assert_problem(wire.answer(), 408, "receive-timeout")
    finally:
        for each in wires:
            each.__exit__(None, None, None)
    assert server.ask(upload).status == 200
    server.assert_serves_on()


def test_05_readers_that_stop(server: Serving):
    # Five slices each: what is sent, one more, and three ahead; the sockets' buffers are the system's.
    with use_backend(server.service, Controlled(threads=2)):
        wires = [server.wire(receive_buffer=4096) for _ in range(20)]
        try:
            for each in wires:
                wire = each.__enter__()
                wire.send(request_bytes("POST", TILE + "?repeats=50000", npy_bytes(np.zeros(65536, np.uint8)), NPY))
                wire.read(1000)
            admission = server.service.admission
            assert (admission.requests_in_flight, admission.bytes_in_flight) == (20, 20 * 6 * 65536)
            assert server.ask(request_bytes("POST", TILE + "?repeats=2", npy_bytes([1]), NPY)).status == 200
        finally:
            for each in wires:
                each.__exit__(None, None, None)
    server.assert_serves_on()


def test_06_callers_that_come_and_go(server: Serving):
    dice = random.Random(6)
    small = request_bytes("POST", TILE + "?repeats=3", npy_bytes(np.zeros(1000, np.uint8)), NPY)
    huge = request_bytes("POST", TILE + "?repeats=4000000", npy_bytes(np.zeros(1000, np.uint8)), NPY)
    for _ in range(150):
        data = dice.choice([small, huge])
        with server.wire() as wire:
            wire.send(data[: dice.choice([len(data), dice.randrange(len(data))])])
            if dice.random() < 0.5:
                wire.socket.settimeout(0.002)
                with contextlib.suppress(TimeoutError):
                    wire.socket.recv(dice.randrange(1, 100_000))
            if dice.random() < 0.5:
                wire.hang_up()
    server.assert_serves_on()


# ---- 7, 8: memory that is not the caller's ---------------------------------------------------------------------------

_SMALL = st.one_of(st.integers(0, 5), st.sampled_from([7, 64, 2**16, 2**31, 2**32 - 1]))


@st.composite
def _wild_tensors(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = {
        "DataType": draw(st.sampled_from(["UINT8", "INT16", "FLOAT32", "INT64"])),
        "Sizes": draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    }
    if draw(st.booleans()):
        found["Strides"] = draw(st.lists(_SMALL, min_size=len(found["Sizes"]), max_size=len(found["Sizes"])))
    if draw(st.booleans()):
        found["TotalTensorSizeInBytes"] = draw(st.integers(0, 40)) * 4
    return found


@given(
    source=_wild_tensors(),
    target=st.none() | _wild_tensors(),
    repeats=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    size=st.integers(0, 160),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_07_strides_that_want_what_lies_behind_the_buffer(
    app: AppClient, source: dict[str, Any], target: dict[str, Any] | None, repeats: list[int], size: int
):
    rank = len(source["Sizes"])
    desc: dict[str, Any] = {"InputTensor": source, "Repeats": repeats[:rank]}
    if target is not None:
        sizes = [s * r for s, r in zip(source["Sizes"], repeats, strict=False)]
        desc["OutputTensor"] = {**target, "DataType": source["DataType"], "Sizes": sizes}
        if "Strides" in target:
            desc["OutputTensor"]["Strides"] = (target["Strides"] * 3)[:rank]
    document = {"type": "TILE", "desc": desc}
    buffer = bytes(1 + at % 250 for at in range(size))  # no zeros: what was not the caller's would show

    answer = app.post(TILE, frame_bytes({"input": ("U8", [size], buffer)}, {"op": json.dumps(document)}), FRAME)

    if answer.status_code != 200:
        assert answer.status_code in (400, 413, 422), answer.text
        return
    try:
        parsed: Any = parse_operator(document, complete=True)
    except InvalidDescriptor:
        pytest.fail("a descriptor that breaks a rule was run")
    output = split_frame(answer.content)[1]["output"]
    assert oracles.tile_oracle(parsed, buffer)[: len(output)] == output  # raises if it reads outside the buffer


def test_08_padding_shows_nothing(app: AppClient):
    desc = {
        "InputTensor": {"DataType": "UINT8", "Sizes": [1]},
        "OutputTensor": {"DataType": "UINT8", "Sizes": [100], "Strides": [1000], "TotalTensorSizeInBytes": 100_000},
        "Repeats": [100],
    }
    body = frame_bytes({"input": ("U8", [1], b"\7")}, {"op": json.dumps({"type": "TILE", "desc": desc})})
    for _ in range(20):
        secret = bytearray(b"secret! " * 12_500)  # freed at once, so that its memory is what comes next
        del secret
        output = split_frame(app.post(TILE, body, FRAME).content)[1]["output"]
        assert (b"\7" + bytes(999)) * 100 == output


# ---- 9 to 16 ---------------------------------------------------------------------------------------------------------


class _Exploit:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_09_a_pickle_does_not_run(app: AppClient, tmp_path: Path):
    target = tmp_path / "made"
    body = npy_bytes(np.array([_Exploit(target)], object))

    assert_problem(app.post(TILE + "?repeats=1", body), 400, "invalid-frame")
    assert not target.exists()
    np.load(io.BytesIO(body), allow_pickle=True)
    assert target.exists(), "the exploit is none, so nothing was shown"


def test_10_compressed_bodies_are_not_unpacked(app: AppClient):
    bomb = gzip.compress(bytes(50_000_000))
    for encoding in ("gzip", "deflate", "br", "zstd", "gzip, identity", "GZIP", "x"):
        for path, headers in ((TILE + "?repeats=1", NPY), (TILE, JSON), ("/v1/validate", JSON)):
            answer = app.post(path, bomb, headers | {"content-encoding": encoding})
            assert_problem(answer, 415, "unsupported-media-type")
    assert app.post(TILE + "?repeats=1", npy_bytes([1]), NPY | {"content-encoding": "identity"}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/operators/../../etc/passwd", "/v1/operators/..%2f..%2fetc%2fpasswd", "/v1/operators/%2e%2e/limits",
        "/v1/examples/..%2f..%2fpyproject.toml", "/static-offline-docs/../../../../etc/passwd",
        "/static-offline-docs/..%2f..%2f..%2f..%2f..%2fetc%2fpasswd", "/static-offline-docs/%00", "//etc/passwd",
        "/static-offline-docs/....//....//etc/passwd", "/v1/operators/tile%00.npy", "/v1/operators/file:%2f%2f%2fetc",
    ],
)  # fmt: skip
def test_11_paths_that_climb(server: Serving, path: str):
    for method in ("GET", "POST"):
        answer = server.ask(request_bytes(method, path, npy_bytes([1]), NPY))
        assert answer.status in (404, 405)
        assert b"root:" not in answer.body
        assert_problem(answer, answer.status, answer.json()["type"].rpartition(":")[2])


@pytest.mark.parametrize(
    "name", ["t\u0131le", "\uff54ile", "ti\u017fe", "tile ", " tile", "tile\n", "\u212aile", "ti\u00adle"]
)
def test_12_names_that_look_alike(app: AppClient, name: str):
    path = "/v1/operators/" + quote(name)
    for answer in (app.post(path + "?repeats=1", npy_bytes([1])), app.get(path)):
        assert_problem(answer, 404, "unknown-operator")


def test_13_text_that_wants_to_be_a_page(app: AppClient):
    script = "<script>alert(1)</script>"
    asked = [
        app.get(f"/v1/operators/{script}"),
        app.get(f"/{script}"),
        app.post(TILE + f"?{script}=1", npy_bytes([1])),
        app.post(TILE + f"?repeats={script}", npy_bytes([1])),
        app.post(TILE + f"?repeats=1&backend={script}", npy_bytes([1])),
        app.post(TILE, npy_bytes([1]), {"content-type": script}),
        app.post(TILE, npy_bytes([1]), NPY | {"accept": script}),
        app.request("DELETE", "/v1/limits", headers={"x-request-id": script}),
    ]
    for answer in asked:
        assert 400 <= answer.status_code < 500
        assert answer.headers["content-type"] == "application/problem+json"
        assert all(script not in value for value in answer.headers.values())
        assert len(answer.content) < 5000


def test_13_text_that_wants_to_be_a_header(server: Serving):
    inject = "a%0d%0aX-Injected:%20yes"
    for target in (f"/v1/operators/{inject}", f"{TILE}?backend={inject}", f"{TILE}?repeats={inject}", f"/{inject}"):
        answer = server.ask(request_bytes("POST", target, npy_bytes([1]), NPY))
        assert "x-injected" not in answer.headers
        assert 400 <= answer.status < 500
    metadata = {"op": json.dumps({"type": "TILE", "desc": {"Repeats": [1]}}), "id": "1\r\nX-Injected: yes"}
    answer = server.ask(request_bytes("POST", TILE, frame_bytes({"input": ("U8", [1], b"x")}, metadata), FRAME))
    assert answer.status == 200
    assert "x-injected" not in answer.headers
    assert metadata["id"] == split_frame(answer.body)[0]["__metadata__"]["id"]


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 1000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /v2/health/live\r\n\r\n", b"GET /v2/health/live HTTP/9.9\r\n\r\n", b"\x93NUMPY\x01\x00v\x00{",
        b"GET  /v2/health/live HTTP/1.1\r\n\r\n", b"GET \xff\xfe HTTP/1.1\r\nHost: test\r\n\r\n",
        b"POST * HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n", b"get / HTTP/1.1\r\n\r\n",
        b"GET http://elsewhere/v2/health/live HTTP/1.1\r\nHost: [\r\n\r\n",
        b"CONNECT test:443 HTTP/1.1\r\nHost: test:443\r\n\r\n",
    ],
)  # fmt: skip
def test_14_what_is_no_http(server: Serving, data: bytes):
    with server.wire() as wire:
        wire.send(data)
        wire.socket.settimeout(0.2)
        try:
            first = wire.socket.recv(15)
        except (TimeoutError, ConnectionResetError):
            first = b""
    assert not first or first[9:10] in b"24", f"a fault: {first!r}"
    server.assert_serves_on()


def test_14_an_upgrade_is_not_taken(server: Serving):
    answer = server.ask(
        request_bytes(
            "GET",
            "/v2/health/live",
            headers={"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": 13},
        )
    )
    assert (answer.status, answer.body) == (200, b'{"live":true}\n')


def test_15_calls_that_differ_in_one_detail(app: AppClient):
    calls: list[tuple[str, bytes, dict[str, str], bytes]] = []
    for data, dtype in ((b"\1\2\3\4", "U8"), (b"\5\6\7\10", "I8"), (b"\1\2\3\4", "U16"), (b"\1\2\3\4", "F32")):
        count = 4 // int({"U8": 1, "I8": 1, "U16": 2, "F32": 4}[dtype])
        for repeats in (1, 2):
            op = {"op": json.dumps({"type": "TILE", "desc": {"Repeats": [repeats]}})}
            calls.append((TILE, frame_bytes({"input": (dtype, [count], data)}, op), FRAME, data * repeats))
            calls.append((TILE + "?backend=null", calls[-1][1], FRAME, bytes(4 * repeats)))
            calls.append((TILE + "?backend=numpy", calls[-1][1], FRAME, data * repeats))
    dice = random.Random(15)
    for path, body, headers, expected in dice.choices(calls, k=200):
        head, buffers = split_frame(app.post(path, body, headers).content)
        sent, _ = split_frame(body)
        assert expected == buffers["output"]
        assert sent["input"]["dtype"] == head["output"]["dtype"]


@pytest.mark.parametrize(
    "value",
    [
        "9" * 5000,
        "1e400",
        "-" * 5000,
        "[" * 5000,
        '{"a":' * 1000,
        "1," * 5000,
        "0x" + "f" * 5000,
        "NaN",
        "1_000",
        "\u0661",
    ],
)
def test_16_numbers_that_are_expensive(app: AppClient, value: str):
    for name in ("repeats", "output_sizes", "backend", "feature_level"):
        begin = time.process_time()
        answer = app.post(TILE, npy_bytes([1]), params={name: value})
        assert answer.status_code in (400, 422)
        assert_problem(answer, answer.status_code, answer.json()["type"].rpartition(":")[2])
        assert time.process_time() - begin < 2


def test_17_a_head_without_end(server: Serving):
    with server.wire() as wire:
        begin = time.process_time()
        wire.send(b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\nX: " + b"a" * (1 << 20) + b"\r\n\r\n")
        answer = wire.answer()
        assert time.process_time() - begin < 2
        assert wire.is_closed()
    assert (answer.status, answer.headers["connection"]) == (431, "close")
    assert b"TENSORPOST_MAX_HTTP_HEAD_BYTES" in answer.body
    server.assert_serves_on()


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /v2/health/live HTTP/1.1\r\nX: ",
        b"GET /v2/health/live",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1;",
    ],
    ids=["a field", "the target", "a trailer", "a chunk"],
)
def test_17_a_head_without_end_in_pieces(server: Serving, begin: bytes):
    with server.wire() as wire:
        wire.send(begin)
        with pytest.raises((EOFError, OSError)):  # noqa: PT012 # after a refusal, or at once
            for _ in range(5000):
                wire.send(b"a" * 1000)
            while True:
                assert wire.answer().status == 431
    server.assert_serves_on()


@pytest.fixture(scope="module")
def hasty() -> Iterator[Serving]:
    with serving(
        head_timeout_seconds=0.3, receive_timeout_seconds=0.3, send_timeout_seconds=0.3, min_bytes_per_second=50_000,
        max_output_bytes=1 << 40, slice_bytes=65536,
    ) as found:  # fmt: skip
        yield found


def connections(server: Serving) -> int:
    return len(server.server.server_state.connections)


def test_18_a_byte_of_a_tensor_now_and_then(hasty: Serving):
    data = request_bytes("POST", TILE + "?repeats=1", npy_bytes(np.zeros(6_000_000, np.uint8)), NPY)
    with hasty.wire() as wire:
        wire.send(data[:1_000_000])
        eventually(lambda: not hasty.idle(), "memory is in use")
        for at in range(1000):
            time.sleep(0.02)
            try:
                wire.send(data[1_000_000 + at : 1_000_001 + at])
            except OSError:
                break
        else:
            pytest.fail("it may go on")
    eventually(lambda: connections(hasty) == 0, "the socket comes back")
    hasty.assert_serves_on()


def test_18_a_byte_of_a_head_now_and_then(hasty: Serving):
    with hasty.wire() as wire:
        for byte in b"GET /v2/health/live HTTP/1.1\r\nX: " + b"a" * 1000:
            try:
                wire.send(bytes([byte]))
            except OSError:
                break
            time.sleep(0.02)
        else:
            pytest.fail("it may go on")
    eventually(lambda: connections(hasty) == 0, "the socket comes back")


@pytest.mark.parametrize("reads", [0, 100], ids=["nothing", "some bytes now and then"])
def test_18_an_answer_that_is_hardly_read(hasty: Serving, reads: int):
    with use_backend(hasty.service, Controlled()), hasty.wire(receive_buffer=4096) as wire:
        wire.send(request_bytes("POST", TILE + "?repeats=50000", npy_bytes(np.zeros(65536, np.uint8)), NPY))
        wire.read(1000)
        end = time.monotonic() + 10
        while connections(hasty) and time.monotonic() < end:
            time.sleep(0.05)
            with contextlib.suppress(OSError):
                wire.socket.recv(max(1, reads)) if reads else None
        assert connections(hasty) == 0, "the socket comes back while the caller still has its end"
    hasty.assert_serves_on()


def test_19_a_pipeline_whose_caller_is_gone(server: Serving):
    backend = Controlled(threads=2)
    huge = request_bytes("POST", TILE + "?repeats=60000", npy_bytes(np.zeros(65536, np.uint8)), NPY)
    with use_backend(server.service, backend):
        with server.wire() as wire:
            wire.send(huge * 3)
            wire.read(300_000)
            wire.hang_up()
        eventually(server.idle, "all memory is released")
        eventually(lambda: backend.closed_runs == backend.started, "the run is closed")
        time.sleep(0.1)
        assert len(backend.begun) < 5000
        assert backend.started == 1
    server.assert_serves_on()


@pytest.mark.parametrize("length", [0, 200_000], ids=["small", "large"])
@pytest.mark.parametrize("apart", [False, True], ids=["at once", "apart"])
def test_20_an_upgrade_with_a_body_that_looks_like_a_request(server: Serving, length: int, apart: bool):
    body = INNER + bytes(length)
    more = NPY | {"connection": "upgrade", "upgrade": "h2c"}
    data = request_bytes("POST", TILE + "?repeats=2", body, more)
    with server.wire() as wire:
        wire.send(data[: -len(body)] if apart else data)
        if apart:
            time.sleep(0.02)
            wire.send(body)
        assert_problem(wire.answer(), 400, "invalid-frame")
        wire.send(request_bytes("GET", "/v1/last"))
        assert_problem(wire.answer(), 404, "not-found")
    server.assert_serves_on()
