"""The address of a caller: from X-Forwarded-For of a trusted proxy, from the connection elsewhere."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.http_app import (
    NPY,
    Serving,
    app_settings,
    assert_problem,
    eventually,
    npy_bytes,
    request_bytes,
    serving,
)

from tensorpost_server.http import caller_address
from tensorpost_server.http.caller_address import TrustedProxies, caller_of
from tensorpost_server.http.connection.request_turns import RequestTurns
from tensorpost_server.http.headers import header_fields
from tensorpost_server.http.observability.access_log import AccessLog, json_line

TILE = "/v1/operators/tile?repeats=2"
PROXIES = "10.0.0.0/8, 127.0.0.1,::1,fd00::/8"


def call(*forwarded: str) -> bytes:
    """A small call, with these lines of X-Forwarded-For."""
    request = request_bytes("POST", TILE, npy_bytes([1, 2]), NPY)
    return request.replace(
        b"\r\n\r\n", b"".join(b"\r\nX-Forwarded-For: %b" % line.encode() for line in forwarded) + b"\r\n\r\n", 1
    )


def logged(server: Serving) -> Callable[[int], list[str]]:
    """Waits for so many lines of the access log, and returns their callers."""
    batches: list[str] = []
    server.service.observe_by(AccessLog(json_line, batches.append))

    def callers(count: int) -> list[str]:
        eventually(lambda: "".join(batches).count("\n") >= count, "every line is written")
        return [json.loads(line)["caller"] for line in "".join(batches).splitlines()]

    return callers


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "caller"),
    [
        (PROXIES, "127.0.0.1", "192.0.2.7", "192.0.2.7"),
        (PROXIES, "127.0.0.1", None, "127.0.0.1"),
        (PROXIES, "192.0.2.9", "192.0.2.7", "192.0.2.9"),  # anybody can write the field
        (PROXIES, "127.0.0.1", "198.51.100.1, 192.0.2.7", "192.0.2.7"),  # the caller wrote the first
        (PROXIES, "127.0.0.1", "198.51.100.1, 192.0.2.7, 10.1.2.3", "192.0.2.7"),  # two proxies
        (PROXIES, "127.0.0.1", "10.9.9.9,10.1.2.3", "10.9.9.9"),  # a caller within the trusted networks
        (PROXIES, "::1", "2001:DB8:0::1", "2001:db8::1"),
        (PROXIES, "fd00::5", "[2001:db8::1]:443", "2001:db8::1"),
        (PROXIES, "127.0.0.1", "192.0.2.7:50000", "192.0.2.7"),
        (PROXIES, "::ffff:127.0.0.1", "::ffff:192.0.2.7", "192.0.2.7"),  # a socket for both versions
        (PROXIES, "127.0.0.1", "192.0.2.7, unknown", "127.0.0.1"),
        (PROXIES, "127.0.0.1", "192.0.2.7,", "127.0.0.1"),
        (PROXIES, "127.0.0.1", "192.0.2.700", "127.0.0.1"),
        (PROXIES, "127.0.0.1", "192.0.2.7, fe80::1%\x1b[31m", "127.0.0.1"),
        (PROXIES, "127.0.0.1", "192.0.2.7, ,10.0.0.1", "127.0.0.1"),
        (PROXIES, None, "192.0.2.7", None),
        (PROXIES, "127.0.0.1", "192.0.2.7" + ",10.0.0.1" * 16, "192.0.2.7"),
        (PROXIES, "127.0.0.1", "192.0.2.7" + ",10.0.0.1" * 17, "127.0.0.1"),  # no chain is that long
        ("::ffff:10.0.0.1", "10.0.0.1", "192.0.2.7", "192.0.2.7"),  # as a socket for both versions writes addresses
        ("::ffff:10.0.0.0/104", "::ffff:10.1.2.3", "192.0.2.7, 10.255.255.255", "192.0.2.7"),
        ("::ffff:10.0.0.0/104", "11.0.0.0", "192.0.2.7", "11.0.0.0"),
        ("unix", None, "192.0.2.7", "192.0.2.7"),
        ("unix", "127.0.0.1", "192.0.2.7", "127.0.0.1"),
        ("*", "203.0.113.5", "198.51.100.1, 192.0.2.7", "192.0.2.7"),
        ("*", None, "192.0.2.7", "192.0.2.7"),
    ],
)  # fmt: skip
def test_whose_address_it_is(trusted: str, peer: str | None, forwarded: str | None, caller: str | None):
    proxies = TrustedProxies(trusted)
    scope: dict[str, Any] = {"client": None if peer is None else (peer, 4000)}

    proxies.set_client(scope, {} if forwarded is None else {b"x-forwarded-for": forwarded.encode("latin-1")})

    assert (scope["client"] and scope["client"][0]) == caller

    client = scope["client"]
    proxies.set_client(scope, {} if forwarded is None else {b"x-forwarded-for": forwarded.encode("latin-1")})

    assert scope["client"] == client, "the protocol class and the middleware both do it"


@pytest.mark.parametrize("lines", [[b"127.0.0.1," * 6000], [b"127.0.0.1," * 60] * 90], ids=["one line", "many lines"])
@pytest.mark.parametrize("begin", [b"", b"192.0.2.7,"])
def test_few_addresses_of_a_long_field_are_read(lines: list[bytes], begin: bytes, monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    parsed = caller_address._parsed
    monkeypatch.setattr(caller_address, "_parsed", lambda text: read.append(text) or parsed(text))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType] # a spy
    fields = header_fields([(b"x-forwarded-for", begin + line.rstrip(b",")) for line in lines])

    assert TrustedProxies("127.0.0.1").caller("127.0.0.1", fields[b"x-forwarded-for"]) == "127.0.0.1"
    assert len(read) <= 18, "the peer and at most 17 of the field"


def test_callers_of_ipv4_are_told_apart_on_a_socket_for_both_versions():
    assert caller_of({"client": ("::ffff:192.0.2.7", 1)}) == "192.0.2.7"
    assert caller_of({"client": ("2001:db8::1:2:3:4", 1)}) == "2001:db8::/64"


@pytest.mark.parametrize("value", ["10.0.0.1/8", "proxy.example", "*,127.0.0.1", "10.0.0.0/33", "1.2.3.4;5.6.7.8"])
def test_what_names_no_network_is_refused(value: str):
    with pytest.raises(ValidationError, match=r"for instance 10\.0\.0\.0/8,127\.0\.0\.1,::1"):
        app_settings(trusted_proxies=value)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address only")
def test_the_access_log_names_the_caller_of_calls_and_of_their_replays():
    with serving(trusted_proxies="127.0.0.1,10.0.0.0/8") as server:
        callers = logged(server)
        chain = call("192.0.2.7, 10.1.2.3")
        with server.wire() as proxy:
            for request in (chain, chain, chain, call(), call("192.0.2.8", "10.1.2.3"), call("192.0.2.9, junk")):
                proxy.send(request)
                assert proxy.answer().status == 200
        assert callers(6) == ["192.0.2.7", "192.0.2.7", "192.0.2.7", "127.0.0.1", "192.0.2.8", "127.0.0.1"]

        with server.wire(source="127.0.0.2") as stranger:
            for _ in range(2):  # the first is a replay: the head is known
                stranger.send(chain)
                assert stranger.answer().status == 200
        assert callers(8)[6:] == ["127.0.0.2", "127.0.0.2"]


def test_nobody_is_believed_by_default():
    with serving() as server:
        callers = logged(server)
        for _ in range(3):
            assert server.ask(call("192.0.2.7")).status == 200
        assert callers(3) == ["127.0.0.1"] * 3


def test_two_callers_behind_one_proxy_have_budgets_of_their_own():
    with (
        serving(trusted_proxies="127.0.0.1", max_requests=8, caller_share=0.5, max_connections_per_address=1) as server,
        contextlib.ExitStack() as stack,
    ):
        for number in range(4):
            wire = stack.enter_context(server.wire())
            wire.send(call("192.0.2.7")[:-1])
            eventually(lambda n=number: server.service.admission.requests_in_flight > n, "it is admitted")

        refused = assert_problem(server.ask(call("192.0.2.7")), 429, "too-busy")
        assert refused["setting"] == "TENSORPOST_CALLER_SHARE"
        assert server.ask(call("192.0.2.8")).status == 200
        assert [*server.service.admission.held] == ["192.0.2.7"]


def test_requests_of_a_proxy_take_the_turns_of_their_callers(monkeypatch: pytest.MonkeyPatch):
    addresses: list[str | None] = []
    begin = RequestTurns.begin

    def spy(self: RequestTurns, address: str | None, *rest: Any) -> None:
        addresses.append(address)
        begin(self, address, *rest)

    monkeypatch.setattr(RequestTurns, "begin", spy)
    with serving(trusted_proxies="127.0.0.1") as server, server.wire() as proxy:
        for address in ("192.0.2.7", "2001:db8::7"):
            proxy.send(call(address))
            assert proxy.answer().status == 200
    assert addresses == ["192.0.2.7", "2001:db8::7"]
