"""What people expect of any HTTP service: HEAD, OPTIONS, CORS, pages of errors, bodies of unknown length, /redoc."""

from __future__ import annotations

import html
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import (
    JSON,
    NPY,
    AppClient,
    Serving,
    assert_problem,
    eventually,
    http_app,
    npy_array,
    npy_bytes,
    request_bytes,
    serving,
)

TILE = "/v1/operators/tile?repeats=1,2"
X = np.arange(6, dtype=np.float32).reshape(2, 3)
PAGE = "https://app.example"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app(backend="numpy", max_body_bytes=1 << 20, allowed_origins=PAGE) as client:
        yield client


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(backend="numpy", max_body_bytes=1 << 20, allowed_origins=PAGE) as found:
        yield found


# ---- HEAD and OPTIONS ------------------------------------------------------------------------------------------------


def test_head_is_get_without_a_body(app: AppClient):
    for path in ("/v1/operators", "/v1/operators/tile", "/docs", "/redoc", "/openapi.json", "/v1/examples/tile.npy"):
        head, get = app.request("HEAD", path), app.get(path)
        assert (head.status_code, head.content) == (200, b""), path
        for name in ("content-type", "content-length"):
            assert head.headers[name] == get.headers[name], path
    assert (app.request("HEAD", "/nothing").status_code, app.request("HEAD", "/nothing").content) == (404, b"")


def test_head_leaves_the_connection_usable(server: Serving):
    with server.wire() as wire:
        wire.send(request_bytes("HEAD", "/v1/operators"))
        assert wire.head()[0] == 200
        wire.send(request_bytes("POST", TILE, npy_bytes(X), NPY))
        np.testing.assert_array_equal(npy_array(wire.answer().body), np.tile(X, (1, 2)))


def test_options_says_what_a_path_takes(app: AppClient):
    for path, allow in (
        ("/v1/operators/tile", "GET, HEAD, POST, OPTIONS"),
        ("/v1/devices", "GET, HEAD, OPTIONS"),
        ("/v1/validate", "POST, OPTIONS"),
    ):
        answer = app.request("OPTIONS", path)
        assert (answer.status_code, answer.headers["allow"], answer.content) == (204, allow, b"")
        assert assert_problem(app.request("DELETE", path), 405, "method-not-allowed")["allow"] == allow
    assert_problem(app.request("OPTIONS", "/nothing"), 404, "not-found")


# ---- CORS ------------------------------------------------------------------------------------------------------------


def test_a_page_that_is_allowed_may_ask_send_and_read(server: Serving):
    ask = {
        "origin": PAGE, "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,tensorpost-shape",
    }  # fmt: skip
    with server.wire() as wire:
        wire.send(request_bytes("OPTIONS", TILE, headers={**ask, "content-length": None}))
        status, headers = wire.head()
    assert (status, headers["access-control-allow-origin"]) == (204, PAGE)
    assert "POST" in headers["access-control-allow-methods"]
    assert headers["access-control-allow-headers"] == ask["access-control-request-headers"]

    request = request_bytes("POST", TILE, npy_bytes(X), NPY | {"origin": PAGE})
    for _ in range(3):  # small calls are replayed from the second on; these must not lose their header fields
        answer = server.ask(request)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, PAGE)
        assert "Tensorpost-Shape" in answer.headers["access-control-expose-headers"]
        assert "Origin" in answer.headers["vary"]
    refused = server.ask(request_bytes("POST", "/v1/operators/tiel", npy_bytes(X), NPY | {"origin": PAGE}))
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (404, PAGE)


def test_other_pages_are_refused_and_told_nothing(app: AppClient):
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}):
        for method in ("OPTIONS", "POST"):
            answer = app.request(
                method, TILE, content=b"", headers={**headers, "access-control-request-method": "POST"}
            )
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers
    same = app.get("/v1/operators", headers={"origin": "http://test"})
    assert (same.status_code, "access-control-allow-origin" in same.headers) == (200, False)


def test_a_preflight_needs_no_key_and_the_call_does(tmp_path: Any):
    keys = tmp_path / "keys.json"
    keys.write_bytes(b"")
    keys.chmod(0o600)
    with http_app(backend="numpy", allowed_origins="*", keys_file=keys) as app:
        ask = {"origin": PAGE, "access-control-request-method": "POST"}
        assert app.request("OPTIONS", TILE, headers=ask).status_code == 204
        answer = app.post(TILE, npy_bytes(X), NPY | {"origin": PAGE})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, PAGE)


# ---- errors in a browser ---------------------------------------------------------------------------------------------


def test_a_browser_sees_the_real_error_as_a_page(app: AppClient):
    for method, path, body, status, said in (
        ("GET", "/nothing<script>", b"", 404, "there is nothing at /nothing"),
        ("GET", "/v1/operators/tiel", b"", 404, "did you mean"),
        ("POST", "/v1/operators/tile?repeats=1,0", npy_bytes(X), 422, "every repeat must be larger than 0"),
        ("PUT", "/v1/operators/tile", b"", 405, "PUT is not allowed"),
    ):
        answer = app.request(method, path, content=body, headers=NPY | {"accept": BROWSER})
        assert answer.status_code == status
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert said in html.unescape(answer.text)
        assert "<script" not in answer.text
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert answer.headers["x-request-id"] in answer.text
        for accept in ("*/*", "application/json", "text/html, application/json"):
            other = app.request(method, path, content=body, headers=NPY | {"accept": accept})
            assert other.headers["content-type"] == "application/problem+json"
            assert "accept" in other.headers["vary"].lower()


def test_redoc_loads_everything_from_here(app: AppClient):
    page = app.get("/redoc")
    assert page.status_code == 200
    assert "worker-src blob:" in page.headers["content-security-policy"]
    assert "worker-src" not in app.get("/docs").headers["content-security-policy"]


# ---- chunked bodies --------------------------------------------------------------------------------------------------


def chunked(path: str, body: bytes, headers: dict[str, Any], size: int = 50, end: bytes = b"0\r\n\r\n") -> bytes:
    head = request_bytes("POST", path, b"", {**headers, "content-length": None, "transfer-encoding": "chunked"})
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end


@pytest.mark.parametrize("protocol", ["direct", "httptools", "h11"])
def test_a_body_may_come_in_chunks(protocol: Any):
    with serving(backend="numpy", max_body_bytes=100_000, http_protocol=protocol) as server:
        big = np.zeros((150, 150), np.float32)
        for x in (X, big[:100]):
            answer = server.ask(chunked(TILE, npy_bytes(x), NPY, 1000))
            np.testing.assert_array_equal(npy_array(answer.body), np.tile(x, (1, 2)))
        document = {"type": "TILE", "desc": {"InputTensor": {"DataType": "FLOAT32", "Sizes": [2]}, "Repeats": [2]}}
        answer = server.ask(chunked("/v1/validate", json.dumps(document).encode(), JSON))
        assert answer.json()["valid"] is True
        with server.wire() as wire:  # two, one after the other
            wire.send(chunked(TILE, npy_bytes(X), NPY) * 2)
            assert wire.answer().body == wire.answer().body
        assert_problem(server.ask(chunked(TILE, npy_bytes(X)[:-4], NPY)), 400, "body-length-mismatch")
        problem = assert_problem(server.ask(chunked(TILE, npy_bytes(big) * 2, NPY, 30_000)), 413, "limit-exceeded")
        assert problem["setting"] == "TENSORPOST_MAX_BODY_BYTES"
        with server.wire() as wire:  # one that ends in the middle
            wire.send(chunked(TILE, npy_bytes(big[:50]), NPY, 1000, end=b""))
            wire.hang_up()
        eventually(server.idle, "all memory is released")


def test_a_chunked_body_reserves_what_it_takes():
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield bytes(100_000)

    with http_app(backend="numpy", memory_bytes=1 << 20) as app:
        problem = assert_problem(app.post(TILE, pieces()), 413, "limit-exceeded")
        assert problem["setting"] == "TENSORPOST_MEMORY_BYTES"
        assert app.in_use() == {"bytes_in_flight": 0, "requests_in_flight": 0}
