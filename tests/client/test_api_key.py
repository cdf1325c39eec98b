"""The client's API key: where it comes from, where it goes, and where it never shows."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.support.http_app import eventually
from tests.support.live_server import live_server

from tensorpost import AsyncClient, Client
from tensorpost.network.origin import Origin
from tensorpost.values.problems import (
    ConnectionProblem,
    InvalidParameter,
    QuotaExceeded,
    TensorpostError,
    Unauthenticated,
)
from tensorpost_server import commands

KEY = "tp_" + "k" * 43
POSIX = pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
CLIENTS = pytest.mark.parametrize("kind", [Client, AsyncClient])
X = np.array([1, 2], np.int32)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("TENSORPOST_")]:
        monkeypatch.delenv(name)


class Listener:
    """A server that keeps the heads it gets, and answers each with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.heads: list[str] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                head = b""
                while b"\r\n\r\n" not in head and (piece := connection.recv(65536)):
                    head += piece
                if head:
                    self.heads.append(head.decode("latin-1").lower())
                    connection.sendall(self._answer)

    def close(self) -> None:
        with suppress(OSError):  # Windows shuts no listening socket down; closing it wakes accept() there
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)


EMPTY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


@contextmanager
def listening(answer: bytes = EMPTY) -> Iterator[Listener]:
    listener = Listener(answer)
    try:
        yield listener
    finally:
        listener.close()


def ask(kind: Any, *arguments: Any, **options: Any) -> Any:
    """Ask for the limits, by either client."""

    async def waiting() -> Any:
        async with kind(*arguments, **options) as tp:
            return await tp.limits()

    if kind is AsyncClient:
        return asyncio.run(waiting())
    with kind(*arguments, **options) as tp:
        return tp.limits()


def sent(kind: Any = Client, **options: Any) -> str | None:
    """What a client sends as Authorization."""
    with listening() as listener:
        ask(kind, listener.url, **options)
    (head,) = listener.heads
    found = [line.partition(": ")[2] for line in head.split("\r\n") if line.startswith("authorization:")]
    assert "x-api-key" not in head
    return found[0] if found else None


def key_file(path: Path, text: str = KEY + "\n", mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


# ---- where it comes from ---------------------------------------------------------------------------------------------


@CLIENTS
def test_the_argument(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOST_API_KEY", "tp_other")

    assert sent(kind, api_key=KEY) == f"bearer {KEY}".lower()


@CLIENTS
def test_the_environment(kind: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sent(kind) is None
    monkeypatch.setenv("TENSORPOST_API_KEY_FILE", str(key_file(tmp_path / "key", "tp_file")))
    assert sent(kind) == "bearer tp_file"
    monkeypatch.setenv("TENSORPOST_API_KEY", KEY)
    assert sent(kind) == f"bearer {KEY}".lower()
    assert sent(kind, api_key="") is None
    assert sent(kind, headers={"Authorization": "Basic mine"}) == "basic mine"


@CLIENTS
def test_a_file(kind: Any, tmp_path: Path) -> None:
    assert sent(kind, api_key=key_file(tmp_path / "key")) == f"bearer {KEY}".lower()


@POSIX
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    file = key_file(tmp_path / "key", mode=mode)

    with pytest.raises(InvalidParameter, match=rf"mode {mode:04o}, so others may .* chmod 600") as caught:
        Client(api_key=file)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("two words", "api_key holds no API key"),
        ("anna.key", "api_key looks like the path of a file, .* pass a pathlib.Path"),
        ("~/anna", "api_key looks like the path of a file, .* pass a pathlib.Path"),
        (KEY + "\r\nX: y", "api_key holds no API key"),
        (KEY + "é", "api_key holds no API key"),
        (7, "api_key is of type int"),
        (b"tp_x", "api_key is of type bytes"),
        (Path("not-there"), "not-there with the API key cannot be read: No such file"),
    ],
)
def test_what_is_no_key_is_refused_and_not_shown(key: Any, said: str) -> None:
    with pytest.raises(InvalidParameter, match=said) as caught:
        Client(api_key=key)
    assert "kkk" not in str(caught.value)
    assert "two words" not in str(caught.value)


def test_two_ways_at_once_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="an api_key and a header Authorization; give one"):
        Client(api_key=KEY, headers={"authorization": "Bearer x"})


def test_an_empty_file_is_no_key(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="holds no API key"):
        Client(api_key=key_file(tmp_path / "key", "\n"))


# ---- where it goes ---------------------------------------------------------------------------------------------------


@CLIENTS
def test_the_environment_s_key_belongs_to_the_environment_s_server(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOST_API_KEY", KEY)
    monkeypatch.setenv("TENSORPOST_URL", "http://127.0.0.1:1")  # another port is another origin
    assert sent(kind) is None
    assert sent(kind, api_key=KEY) is not None

    with listening() as listener:
        monkeypatch.setenv("TENSORPOST_URL", f"{listener.url}/prefix")
        ask(kind, listener.url)
    assert KEY.lower() in listener.heads[0]


@CLIENTS
@pytest.mark.parametrize("own_httpx", [False, True])
def test_a_redirect_to_another_origin_takes_no_key_along(kind: Any, *, own_httpx: bool) -> None:
    with listening() as other:
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {other.url}/v1/limits\r\nContent-Length: 0\r\n\r\n"
        with listening(moved.encode()) as first:
            if own_httpx and kind is Client:
                with httpx.Client(follow_redirects=True, trust_env=False) as http:
                    ask(kind, first.url, api_key=KEY, http_client=http)
            elif own_httpx:
                http = httpx.AsyncClient(follow_redirects=True, trust_env=False)
                ask(kind, first.url, api_key=KEY, http_client=http)
            else:
                with pytest.raises(TensorpostError):
                    ask(kind, first.url, api_key=KEY)

    assert KEY.lower() in first.heads[0]
    assert len(other.heads) == (1 if own_httpx else 0)
    assert not any(KEY.lower() in head for head in other.heads)


@CLIENTS
def test_a_proxy_of_an_https_server_gets_no_key(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with pytest.raises(ConnectionProblem) as caught:
            ask(kind, "https://tensorpost.example", api_key=KEY, retries=0)

    assert proxy.heads[0].startswith("connect tensorpost.example:443 ")
    assert not any(KEY.lower() in head for head in proxy.heads)
    assert KEY not in str(caught.value)


# ---- where it never shows --------------------------------------------------------------------------------------------


def test_nothing_that_python_shows_has_the_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with Client("http://127.0.0.1:1", api_key=KEY, retries=0) as tp:
        origin = tp._transport.origin
        assert isinstance(origin, Origin)
        assert dict(origin.fields)["authorization"] == f"Bearer {KEY}", "it is there"
        for shown in (repr(tp), str(tp), repr(origin), str(origin), repr(tp._transport), repr(tp._transport.sender)):
            assert KEY not in shown
        with pytest.raises(ConnectionProblem) as caught:
            tp.limits()
    for shown in (str(caught.value), repr(caught.value), str(caught.value.extra), caplog.text):
        assert KEY not in shown


def test_a_head_that_cannot_be_sent_does_not_show_it() -> None:
    from tensorpost.transport.http1 import encode_head

    with pytest.raises(ValueError, match="no valid request head") as caught:
        encode_head("GET", "/ x", (("authorization", f"Bearer {KEY}"),))
    assert KEY not in str(caught.value)


# ---- with a real server ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    file = tmp_path_factory.mktemp("keys") / "keys.jsonl"
    return file, commands.add_key(file, "anna"), commands.add_key(file, "slow", requests_per_minute=1)


@pytest.fixture(scope="module")
def url(keys: tuple[Path, str, str]) -> Iterator[str]:
    with live_server(TENSORPOST_KEYS_FILE=keys[0]) as found:
        yield found


@CLIENTS
def test_a_real_server(kind: Any, url: str, keys: tuple[Path, str, str]) -> None:
    async def waiting(key: str) -> Any:
        async with AsyncClient(url, api_key=key) as tp:
            return [await tp.tile(X, (2,)) for _ in range(4)]

    def tiled(key: str) -> Any:
        if kind is AsyncClient:
            return asyncio.run(waiting(key))
        with Client(url, api_key=key) as tp:
            return [tp.tile(X, (2,)) for _ in range(4)]

    for result in tiled(keys[1]):
        np.testing.assert_array_equal(result, [1, 2, 1, 2])
    for wrong in ("", KEY):
        with pytest.raises(Unauthenticated) as caught:
            tiled(wrong)
        assert caught.value.status == 401
        assert KEY not in str(caught.value)


def test_health_is_open(url: str) -> None:
    with Client(url, api_key="") as tp:
        assert tp.ready()


def test_a_quota_that_is_used_up(url: str, keys: tuple[Path, str, str]) -> None:
    with Client(url, api_key=keys[2], retries=0) as tp:
        tp.limits()
        with pytest.raises(QuotaExceeded) as caught:
            tp.limits()
    assert caught.value.status == 429
    assert 0 < caught.value.extra["retry_after_seconds"] <= 60


def test_a_key_that_is_revoked_while_the_client_is_connected(url: str, keys: tuple[Path, str, str]) -> None:
    key = commands.add_key(keys[0], "leaving")
    with Client(url, api_key=key) as tp:
        eventually(lambda: _is_let_in(tp), "a new key is taken without a restart")
        for _ in range(4):
            tp.tile(X, (3,))  # replayed by now
        commands.revoke_key(keys[0], "leaving")
        eventually(lambda: not _is_let_in(tp), "a revoked key is refused")
    with Client(url, api_key=keys[1]) as tp:
        assert _is_let_in(tp)


def _is_let_in(tp: Client) -> bool:
    try:
        tp.tile(X, (3,))
    except Unauthenticated:
        return False
    return True
