"""Which protocol and loop uvicorn is given, with and without the packages that make them fast."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.http_app import NPY, app_settings, npy_bytes, request_bytes, serving

from tensorpost.values.problems import InvalidParameter
from tensorpost_server import serving as module
from tensorpost_server.http.connection.fallback_protocol import FallbackProtocol
from tensorpost_server.http.connection.protocol import DirectProtocol
from tensorpost_server.http.connection.timeouts import ConnectionLimits
from tensorpost_server.serving import choose_protocol

Hide = Callable[..., None]


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    def hide(*names: str) -> None:
        monkeypatch.setattr(module, "find_spec", lambda name: None if name in names else object())

    return hide


WINDOWS = sys.platform == "win32"
LINUX = pytest.param("linux", marks=pytest.mark.skipif(WINDOWS, reason="Windows lacks what Linux's loop asks for"))


@pytest.mark.parametrize("system", [LINUX, "win32"])
def test_the_best_there_is(hide: Hide, monkeypatch: pytest.MonkeyPatch, system: str):
    monkeypatch.setattr(sys, "platform", system)
    hide()
    found = choose_protocol(app_settings())

    assert (found.http, found.missing) == ("direct", ())
    assert found.loop == ("asyncio" if system == "win32" else "uvloop")
    assert isinstance(found.protocol, type)
    assert issubclass(found.protocol, DirectProtocol)


def test_without_httptools_it_is_the_slow_one_and_says_so(hide: Hide):
    hide("httptools", "uvloop")
    found = choose_protocol(app_settings())

    assert (found.http, found.protocol, found.loop) == ("h11", "h11", "asyncio")
    assert f"not installed: httptools{'' if WINDOWS else ', uvloop'}" in found.words  # which Windows has not


@pytest.mark.parametrize("wished", ["direct", "httptools"])
def test_what_is_asked_for_and_not_there_is_refused(hide: Hide, wished: str):
    hide("httptools")
    with pytest.raises(InvalidParameter, match="needs httptools"):
        choose_protocol(app_settings(http_protocol=wished))


def test_a_wish(hide: Hide):
    hide()
    assert choose_protocol(app_settings(http_protocol="h11")).protocol == "h11"
    assert choose_protocol(app_settings(http_protocol="httptools")).protocol is FallbackProtocol


def test_the_limits_are_the_settings():
    settings = app_settings(
        max_http_head_bytes=5000, head_timeout_seconds=1, receive_timeout_seconds=2, send_timeout_seconds=3,
        min_bytes_per_second=4, max_drain_bytes=6,
    )  # fmt: skip
    protocol: Any = choose_protocol(settings).protocol

    assert protocol.limits == ConnectionLimits(5000, 1, 2, 3, 4, 6)
    assert ConnectionLimits.from_settings(app_settings()) == ConnectionLimits(), (
        "the defaults are those of the settings"
    )


@pytest.mark.parametrize("wished", ["direct", "httptools", "h11"])
def test_the_application_answers_alike_behind_each(wished: str):
    body = npy_bytes([[0.0, 1.0]] * 40_000)
    with serving(http_protocol=wished) as server:
        answer = server.ask(request_bytes("POST", "/v1/operators/tile?repeats=1,2", body, NPY))
        server.assert_serves_on()
    assert answer.status == 200
    assert answer.body == npy_bytes([[0.0, 1.0, 0.0, 1.0]] * 40_000)
