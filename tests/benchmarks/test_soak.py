"""Rows of `make soak` in seconds: that they run, and hold where a busy machine does not count."""

from __future__ import annotations

import sys

import pytest
from benchmarks.soak import attacks, graph_fuzz, lifecycle, mixed, operator_fuzz, picture_fuzz
from benchmarks.soak.finding import Finding, Latency, settled
from tests.conformance.wire import requests
from tests.support.http_app import request_bytes, serving
from tests.support.vectors import cases_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the soak reads /proc")


def test_mixed_requests_have_no_wrong_byte() -> None:
    (found,) = mixed.mixed(1)

    assert found.holds, found.seen
    assert found.done.startswith("500 mixed requests from 64 connections")


def test_a_wrong_byte_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        monkeypatch.setattr(
            mixed, "good_cases", lambda: [mixed.Case(mixed.SMALL, lambda answer: answer.body == b"other")]
        )
        outcomes, wrong = mixed.some(server.port, 40, 0)
        assert not settled(server.port)

    assert outcomes.total() == 40
    assert len(wrong) == outcomes["answered"]


def test_smuggled_requests_are_bodies_beside_a_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    only = tuple(attack for attack in attacks.ATTACKS if attack.target is attacks.smuggled)
    monkeypatch.setattr(attacks, "ATTACKS", only)
    monkeypatch.setattr(Latency, "holds_beside", lambda *_: True)  # a busy machine is slow, not wrong

    (found,) = attacks.attacks(1)

    assert found.holds, found.seen
    assert "answers (400, 200)" in found.seen


def test_what_clients_held_is_released() -> None:
    with serving(receive_timeout_seconds=1, send_timeout_seconds=1, head_timeout_seconds=1) as server:
        found: list[Finding] = [
            lifecycle.killed_clients(server.port, 1),
            lifecycle.until_released(server.port, "half open", lambda: lifecycle.half_open(server.port)),
        ]

    assert [each.holds for each in found] == [True, True], found


def test_latencies_are_judged_against_those_alone() -> None:
    alone = Latency([0.001] * 100, [0.004] * 100)

    assert Latency([0.049] * 100, [0.0119] * 100).holds_beside(alone)
    assert not Latency([0.051] * 100, [0.004] * 100).holds_beside(alone)
    assert not Latency([0.001] * 100, [0.0121] * 100).holds_beside(alone)


def test_drawn_and_broken_graphs_are_answered_or_refused() -> None:
    with serving() as server:
        outcomes, wrong = graph_fuzz.some(server.port, 120, 0)
        assert not settled(server.port)

    assert wrong == []
    assert outcomes["compared"] > 5
    assert outcomes["broken 422"] > 20


def test_operators_with_hostile_data_are_answered_or_refused() -> None:
    with serving() as server:
        outcomes, wrong = operator_fuzz.some(server.port, 120, 0)
        assert not settled(server.port)

    assert wrong == []
    assert outcomes["compared"] > 0
    assert outcomes["200"] + outcomes["422"] + outcomes["400"] + outcomes["413"] == 120, outcomes


def test_another_byte_and_a_fault_of_the_server_are_seen() -> None:
    case = cases_of("GATHER")[0]
    (request,) = requests(case, "frame")
    with serving() as server:
        answer = server.ask(request_bytes("POST", request.path, request.body, request.headers))
    media_type, other = answer.headers["content-type"], answer.body[:-1] + bytes([answer.body[-1] ^ 1])

    assert operator_fuzz.different(case, request, media_type, answer.body) == ""
    assert "wrong" in operator_fuzz.different(case, request, media_type, other)
    problem = {"content-type": "application/problem+json"}
    assert operator_fuzz.wrong_with(500, problem, b'{"detail": "an unexpected error, see the log"}')
    assert not operator_fuzz.wrong_with(503, problem, b'{"detail": "no memory is left, try again later"}')
    assert operator_fuzz.wrong_with(422, problem, b'{"detail": ""}')
    assert operator_fuzz.wrong_with(502, {"content-type": "text/html"}, b"<html>")


def test_mutated_pictures_are_answered_by_name() -> None:
    with serving(max_image_pixels=1 << 20) as server:
        outcomes, wrong = picture_fuzz.some(server.port, 800, 0)
        assert not settled(server.port)

    assert not wrong, wrong[:3]
    assert outcomes.total() == 800
    assert outcomes["200"] > 40
