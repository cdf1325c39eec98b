"""Attacks by web pages: what a user of this machine visits must neither call the service nor read its answers."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from tests.support.http_app import (
    NPY,
    AppClient,
    Serving,
    assert_problem,
    http_app,
    npy_bytes,
    request_bytes,
    serving,
)

TILE = "/v1/operators/tile?repeats=2"


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app() as found:
        yield found


@pytest.fixture(scope="module", params=["direct", "h11"])
def server(request: pytest.FixtureRequest) -> Iterator[Serving]:
    with serving(allowed_hosts=None, http_protocol=request.param) as found:
        yield found


def statuses(server: Serving, headers: dict[str, Any]) -> set[int]:
    """The answers to a small call, twice, so that a replay would be seen, and to a question."""
    call = request_bytes("POST", TILE, npy_bytes([1]), NPY | headers)
    with server.wire() as wire:
        found: set[int] = set()
        for data in (call, call, request_bytes("GET", "/v1/limits", headers=headers)):
            wire.send(data)
            found.add(wire.answer().status)
    return found


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "[::1]", "a.localhost"]
)
def test_loopback_hosts_are_let_in(server: Serving, host: str):
    assert statuses(server, {"host": host}) == {200}


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "127.1"],
)
def test_a_name_that_was_rebound_to_loopback_is_refused(server: Serving, host: str):
    """All of it was answered with 200, and the page could read it."""
    assert statuses(server, {"host": "localhost"}) == {200}
    assert statuses(server, {"host": host}) == {403}
    assert_problem(server.ask(request_bytes("GET", "/v1/limits", headers={"host": host})), 403, "invalid-request")


def test_hosts_by_setting():
    with serving(allowed_hosts="tensors.example, other:81") as server:
        assert statuses(server, {"host": "tensors.example:80"}) == statuses(server, {"host": "other:81"}) == {200}
        assert statuses(server, {"host": "other"}) == statuses(server, {"host": "localhost"}) == {403}


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:1", "http://localhost.evil.example"]
)
def test_pages_of_other_origins_may_not_call(server: Serving, origin: str):
    assert statuses(server, {"host": "localhost:8000", "origin": origin}) == {403}


def test_our_own_page_and_pages_by_setting_may_call(server: Serving):
    assert statuses(server, {"host": "localhost:8000", "origin": "http://localhost:8000"}) == {200}
    with serving(allowed_origins="https://a.example") as other:
        assert statuses(other, {"origin": "https://a.example"}) == {200}
        assert statuses(other, {"origin": "https://b.example"}) == {403}


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_validate_takes_no_media_type_that_any_page_may_post(app: AppClient, content_type: str | None):
    """text/plain was read as JSON."""
    headers = {} if content_type is None else {"content-type": content_type}
    assert_problem(app.post("/v1/validate", b"{}", headers), 415, "unsupported-media-type")
    headers = {"content-type": "application/json; charset=utf-8"}
    assert app.post("/v1/validate", b"{}", headers).status_code == 200


def test_no_answer_is_sniffed(server: Serving):
    call = request_bytes("POST", TILE, npy_bytes([1]), NPY | {"host": "localhost"})
    for data in (
        call,
        call,  # a replay
        request_bytes("GET", "/docs", headers={"host": "localhost"}),
        request_bytes("GET", "/v1/limits", headers={"host": "localhost"}),
        request_bytes("GET", "/nowhere", headers={"host": "localhost"}),
        request_bytes("GET", "/v1/limits", headers={"host": "evil.example"}),
        request_bytes("POST", "/v1/operators/none", headers={"host": "localhost"}),
    ):
        assert server.ask(data).headers["x-content-type-options"] == "nosniff", data


class Scripts(HTMLParser):
    """Inline scripts and addresses of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.addresses: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self._in_script = tag == "script" and "src" not in found
        self.addresses += [value for name, value in attrs if name in ("src", "href") and value is not None]
        assert not any(name.startswith("on") for name in found), "a policy without unsafe-inline stops it"

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.inline.append(data)


def test_pages_have_a_policy_and_still_work_without_a_network(app: AppClient):
    answer = app.get("/docs")
    policy = dict(each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    page = Scripts()
    page.feed(answer.text)
    assert page.inline
    for script in page.inline:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy["script-src"]
    assert "unsafe" not in policy["script-src"]
    for address in page.addresses:
        assert address.startswith(("/", "#")), "only this server is asked"
        assert address.startswith("#") or app.get(address).status_code == 200
    assert "content-security-policy" not in app.get("/v1/limits").headers
