"""Graphs of several long steps that nobody waits for any more: they end between steps, and between blocks of a step."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from tests.support.http_app import (
    JSON,
    PATIENCE,
    Answer,
    Serving,
    Wire,
    assert_problem,
    eventually,
    request_bytes,
    serving,
    use_backend,
)
from tests.support.watched_steps import WatchedBackend, chain, tensor_in_json

from tensorpost_server.engine import InlineLimits
from tensorpost_server.forms.base import Abandoned, go_on

STEPS = [f"n{at}" for at in range(6)]
BODY = json.dumps({"graph": chain(*STEPS), "tensors": {"x": tensor_in_json(1, 2)}}).encode()
ENDS = ["the caller leaves", "the deadline passes", "the server stops", "it has computed too long"]


@pytest.fixture(params=[None, InlineLimits(steps=0)], ids=["small", "large"])
def limits(request: pytest.FixtureRequest) -> InlineLimits | None:
    """A small plan is computed by one call of the worker's thread, another one part by part."""
    return request.param


def settings_for(how: str) -> dict[str, Any]:
    return {"max_seconds": 0.5} if how == "it has computed too long" else {}


def request_for(how: str) -> bytes:
    wait = {"prefer": "wait=1"} if how == "the deadline passes" else {}
    return request_bytes("POST", "/v1/graphs", BODY, {**JSON, **wait})


def end(how: str, server: Serving, wire: Wire) -> Answer | None:
    """Let the request end in this way; its answer, if the caller is still there."""
    if how == "the caller leaves":
        wire.hang_up()
        return None
    if how == "the server stops":
        server.service.draining = True
        server.server.config.timeout_graceful_shutdown = 1
        server.server.should_exit = True
    return wire.answer()


REFUSALS = {
    "the deadline passes": (504, "deadline-exceeded"),
    "the server stops": (503, "not-ready"),
    "it has computed too long": (413, "limit-exceeded"),
}


def use(server: Serving, backend: WatchedBackend, limits: InlineLimits | None) -> Any:
    used = use_backend(server.service, backend, slices_ahead=0)
    used.__enter__()
    worker = server.service.workers().workers["numpy"]
    if limits is not None:
        worker.inline = limits
    worker.costs.max_seconds = server.service.settings.max_seconds
    return used


@pytest.mark.parametrize("how", ENDS)
def test_a_step_ends_at_its_next_block_and_no_other_begins(how: str, limits: InlineLimits | None) -> None:
    stopped = list[str]()

    def blocks(name: str) -> None:
        if name == "n2":
            try:
                for _ in range(int(PATIENCE / 0.005)):
                    time.sleep(0.005)
                    go_on()
            except BaseException as error:
                stopped.append(type(error).__name__)
                raise

    backend = WatchedBackend(blocks)
    with serving(**settings_for(how)) as server:
        used = use(server, backend, limits)
        with server.wire() as wire:
            wire.send(request_for(how))
            eventually(lambda: "n2" in backend.begun, "the third step is begun")
            answer = end(how, server, wire)
            eventually(server.idle, "everything is given back", PATIENCE / 2)
        used.__exit__(None, None, None)

    if answer is not None:
        assert_problem(answer, *REFUSALS[how])
    assert backend.begun == STEPS[:3]
    assert len(stopped) == 1
    assert Abandoned.__name__ in stopped or how == "it has computed too long"


@pytest.mark.parametrize("how", ENDS[:2])
def test_a_step_without_blocks_is_the_last_one(how: str) -> None:
    """Whoever waits for a library cannot be stopped: the step ends, and the next one does not begin."""
    go = threading.Event()
    backend = WatchedBackend(lambda name: name == "n2" and go.wait(PATIENCE))
    with serving() as server:
        used = use(server, backend, InlineLimits(steps=0))
        with server.wire() as wire:
            wire.send(request_for(how))
            eventually(lambda: "n2" in backend.begun, "the third step is begun")
            timer = threading.Timer(1.5, go.set)
            timer.start()
            end(how, server, wire)
            eventually(server.idle, "everything is given back")
            eventually(lambda: backend.closed_runs == 1, "its run is closed")
            timer.join()
        used.__exit__(None, None, None)

    assert backend.begun == STEPS[:3]
