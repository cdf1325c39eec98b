from __future__ import annotations

from typing import Any

import httpx
import pytest

from tensorpost import AsyncClient, Client, Timeout
from tensorpost.network.origin import Origin
from tensorpost.transport.httpx_sender import HttpxSender
from tensorpost.transport.socket_sender import SocketSender
from tensorpost.values.problems import InvalidParameter


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def origin(url: str, **options: Any) -> Origin:
    defaults: dict[str, Any] = {"headers": {}, "timeout": Timeout(), "tls": True, "uds": None}
    return Origin.parse(url, **{**defaults, **options})


@pytest.mark.parametrize(
    ("url", "authority", "prefix"),
    [
        ("localhost:8000", "localhost:8000", ""),
        ("127.0.0.1", "127.0.0.1", ""),
        ("[::1]:8000/p", "[::1]:8000", "/p"),
        ("gpu-box:8000/tensors", "gpu-box:8000", "/tensors"),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", ""),
        ("http://127.0.0.1:8000/", "127.0.0.1:8000", ""),
        ("http://example.org", "example.org", ""),
        ("http://example.org:80", "example.org", ""),
        ("https://example.org:80/tensors/", "example.org:80", "/tensors"),
        ("http://[::1]:9", "[::1]:9", ""),
    ],
)
def test_a_base_url_is_read(url: str, authority: str, prefix: str) -> None:
    found = origin(url)

    assert authority == found.authority
    assert prefix == found.prefix


@pytest.mark.parametrize(
    "url",
    [
        "",
        "text",
        "ftp://x",
        "localhost:port",
        "user@localhost:8000",
        "http://",
        "http://x:port",
        "http://x?y=1",
        "http://x#y",
        "http://u:p@x",
        "http://x/a b",
        "http://x/\u00e4",
    ],
)
@pytest.mark.parametrize("cls", [Client, AsyncClient])
def test_what_is_no_base_url_is_refused(cls: type[Client] | type[AsyncClient], url: str) -> None:
    with pytest.raises(InvalidParameter, match="base_url"):
        cls(url)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": -1}, "timeout is -1"),
        ({"timeout": True}, "timeout is True"),
        ({"timeout": "5"}, "timeout is '5'"),
        ({"timeout": httpx.Timeout(5.0)}, "tensorpost.Timeout"),
        ({"retries": -1}, "retries is -1"),
        ({"headers": {"a": "b\r\nc: d"}}, "header 'a'"),
        ({"headers": {"a\n": "b"}}, "header"),
        ({"headers": {"": "b"}}, "header"),
        ({"headers": {"a b": "c"}}, "header 'a b'"),
        ({"headers": {"a": " b"}}, "header 'a'"),
        ({"headers": {"a": "b "}}, "header 'a'"),
        ({"timeout": float("inf")}, "timeout is inf"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"timeout": 1e10}, "at most 1,000,000 seconds"),
        ({"base_url": "http://x:0"}, "port 0"),
        ({"base_url": "http://\u00fc..b"}, "no host that can be looked up"),
        ({"base_url": "https://x", "uds": "/tmp/s"}, "Unix socket"),
        ({"headers": {"a:": "b"}}, "header"),
        ({"headers": {"a": "\N{SNOWMAN}"}}, "header 'a'"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        Client(**{"base_url": "http://127.0.0.1:1", **options})


@pytest.mark.parametrize("url", ["http://example.org", "https://example.org"])
@pytest.mark.parametrize("cls", [Client, AsyncClient])
def test_both_schemes_go_through_sockets(cls: Any, url: str) -> None:
    assert isinstance(cls(url)._transport.sender, SocketSender)


def test_proxies_of_the_environment_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")

    assert origin("http://example.org").proxy() == "http://proxy.example:3128"
    assert origin("https://example.org").proxy() is None
    assert origin("http://inside.example").proxy() is None
    assert isinstance(Client("http://example.org")._transport.sender, HttpxSender)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://127.9.9.9", "http://localhost:1", "http://[::1]:1"])
def test_this_machine_is_never_asked_for_through_a_proxy(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("all_proxy", "http://proxy.example:3128")

    assert origin(url).proxy() is None
    assert origin("http://example.org").proxy() == "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("said", "used"),
    [("proxy.example:3128", "http://proxy.example:3128"), ("//proxy.example", "http:////proxy.example")],
)
def test_a_proxy_without_a_scheme_is_one_of_http(monkeypatch: pytest.MonkeyPatch, said: str, used: str) -> None:
    monkeypatch.setenv("http_proxy", said)

    assert origin("http://example.org").proxy() == used


@pytest.mark.parametrize(
    ("bypassed", "direct"),
    [("example.org:8000", True), ("example.org:80", False), (".org:8000", True), ("example.org", True), ("*", True)],
)
def test_no_proxy_may_name_a_port(monkeypatch: pytest.MonkeyPatch, bypassed: str, direct: bool) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", bypassed)

    assert (origin("http://example.org:8000").proxy() is None) is direct


def test_credentials_of_a_proxy_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://user:secret@proxy.example:1080")

    with pytest.raises(InvalidParameter, match=r"the proxy 'socks5://proxy\.example'") as caught:
        Client("https://example.org")

    assert "secret" not in str(caught.value)


def test_a_proxy_that_is_no_url_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:port")

    with pytest.raises(InvalidParameter, match="proxy from the environment is not a URL"):
        Client("https://example.org")


def test_a_name_in_other_letters_is_looked_up_as_the_network_knows_it() -> None:
    assert origin("http://b\u00fccher.example:8000").authority == "xn--bcher-kva.example:8000"


def test_a_kind_of_proxy_that_is_not_supported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://proxy.example:1080")

    with pytest.raises(InvalidParameter, match="socks5"):
        Client("https://example.org")
