"""Who may call: keys, scopes, expiry, quotas, rotation without a restart, and replays that look at the key again."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.support.http_app import (
    NPY,
    Answer,
    Serving,
    assert_problem,
    http_app,
    npy_array,
    npy_bytes,
    request_bytes,
    serving,
)

from tensorpost.values.problems import InvalidParameter
from tensorpost_server import commands
from tensorpost_server.http.access import access_control, api_keys, watched_file
from tensorpost_server.http.access.access_control import TokenBucket
from tensorpost_server.http.access.api_keys import ApiKey, read_keys, write_keys
from tensorpost_server.http.observability.access_log import AccessLog, json_line

TILE = "/v1/operators/tile?repeats=2"
BODY = npy_bytes([1, 2])


class Clock:
    """The clocks of `access_control.py`, which stand still until they are told."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def time(self) -> float:
        return datetime(2030, 1, 1, tzinfo=UTC).timestamp() + self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(access_control, "time", clock)
    return clock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.jsonl"


@pytest.fixture
def anna(file: Path) -> str:
    return commands.add_key(file, "anna")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def line(key: str, **members: Any) -> str:
    """A line of the file, written by hand."""
    usual = {
        "name": "anna",
        "sha256": hashlib.sha256(key.encode()).hexdigest(),
        "scopes": ["run"],
        "created": "2026-01-01T00:00:00Z",
    }
    return json.dumps({**usual, **members}) + "\n"


# ---- keys and their file ---------------------------------------------------------------------------------------------


def test_the_file_holds_hashes_and_no_keys(file: Path, anna: str) -> None:
    text = file.read_text()

    assert anna not in text
    assert anna.removeprefix("tp_") not in text
    assert json.loads(text)["sha256"] == hashlib.sha256(anna.encode()).hexdigest()


def test_keys_are_256_random_bits() -> None:
    keys = {api_keys.new_key() for _ in range(100)}

    assert len(keys) == 100
    assert {len(key) for key in keys} == {len("tp_") + 43}  # 43 letters of 6 bits


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
def test_a_new_file_is_its_owner_s_and_a_mode_stays(file: Path, anna: str) -> None:
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    commands.add_key(file, "bert")
    assert file.stat().st_mode & 0o777 == 0o640

    file.chmod(0o666)
    with pytest.raises(InvalidParameter, match="anybody may write to the keys file"):
        read_keys(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no JSON\n", "line 1 .* is not JSON"),
        (line("a") + '{"name": 1, "name": 2}\n', "line 2 .* is not JSON.*name"),
        (line("a", name="white space"), "line 1 .*: name: "),
        (line("a", sha256="tp_pasted-by-mistake"), "line 1 .*: sha256: "),
        (line("a", scopes=[]), "line 1 .*: scopes: "),
        (line("a", scopes=["root"]), r"line 1 .*: scopes\.0: "),
        (line("a", expires="2026-01-01T00:00:00"), "line 1 .*: expires: .*timezone"),
        (line("a", requests_per_minute=0), "line 1 .*: requests_per_minute: "),
        (line("a", extra=1), "line 1 .*: extra: "),
        ("[]\n", "line 1 .*: it: "),
        (line("a") + "\n" + line("b"), "line 3 .*: the name anna occurs twice"),
        (line("a") + line("a", name="bert"), "the same hash under two names"),
        (" " * 2_000_000, "more than 1,048,576 bytes"),
    ],
)
def test_a_file_that_is_wrong_stops_the_start(file: Path, text: str, said: str) -> None:
    file.write_text(text)

    with pytest.raises(InvalidParameter, match=said) as caught, http_app(keys_file=file):
        pass
    assert "pasted-by-mistake" not in str(caught.value)


def test_a_file_that_is_missing_stops_the_start(file: Path) -> None:
    said = r"there is no keys file .*; make one: tensorpost keys add NAME"
    with pytest.raises(InvalidParameter, match=said), http_app(keys_file=file):
        pass


def test_two_commands_cannot_write_at_the_same_time(file: Path, anna: str) -> None:
    before = file.read_bytes()
    new = file.with_name("keys.jsonl.new")
    new.touch()

    with pytest.raises(InvalidParameter, match="another command is writing"):
        commands.add_key(file, "bert")
    assert file.read_bytes() == before
    new.unlink()
    commands.add_key(file, "bert")
    assert not new.exists()


# ---- who is let in ---------------------------------------------------------------------------------------------------

WITHOUT_KEY: list[Mapping[str, str]] = [
    {},
    {"authorization": "Bearer tp_wrong"},
    {"x-api-key": "tp_wrong"},
    {"x-api-key": ""},
    {"authorization": "Basic dXNlcjpwYXNz"},
    {"authorization": "Bearer"},
    {"authorization": "Bearer a b"},
    {"x-api-key": "x" * 10_000},
]


@pytest.mark.parametrize("headers", WITHOUT_KEY, ids=str)
def test_without_a_valid_key_there_is_health_only(file: Path, anna: str, headers: Mapping[str, str]) -> None:
    with http_app(keys_file=file) as app:
        for answer in (
            app.post(TILE, BODY, {**NPY, **headers}),
            app.post("/v1/validate", b"{}", {"content-type": "application/json", **headers}),
            *[
                app.get(path, headers=headers)
                for path in ("/v1/limits", "/v1/devices", "/docs", "/metrics", "/nothing")
            ],
        ):
            problem = assert_problem(answer, 401, "unauthenticated")
            challenge = answer.headers["www-authenticate"]
            assert challenge.startswith('Bearer realm="tensorpost"')
            assert ('error="invalid_token"' in challenge) == bool(headers)  # RFC 6750, section 3.1
            assert not any(value and value in problem["detail"] for value in headers.values() if value != "Bearer")
        assert app.get("/v2/health/live/", headers=headers).status_code == 401
        assert app.get("/v2/models/tile", headers=headers).json()["error"]
        assert app.get("/v2/health/live", headers=headers).status_code == 200
        assert app.get("/v2/health/ready", headers=headers).status_code == 200


def test_a_key_lets_in_by_either_header(file: Path, anna: str) -> None:
    with http_app(keys_file=file) as app:
        for headers in (bearer(anna), {"authorization": f"bearer  {anna}"}, {"x-api-key": anna}):
            answer = app.post(TILE, BODY, {**NPY, **headers})
            np.testing.assert_array_equal(npy_array(answer.content), [1, 2, 1, 2])
        assert app.post(TILE, BODY, {**NPY, **bearer(anna), "x-api-key": anna}).status_code == 200
        two = app.post(TILE, BODY, {**NPY, **bearer(anna), "x-api-key": "tp_other"})
        assert "different keys" in assert_problem(two, 401, "unauthenticated")["detail"]
        twice = app.request("GET", "/v1/limits", headers=[("x-api-key", anna), ("x-api-key", anna)])
        assert_problem(twice, 401, "unauthenticated")


def test_scopes(file: Path, anna: str) -> None:
    admin = commands.add_key(file, "prometheus", scopes=["admin"])
    with http_app(keys_file=file) as app:
        refused = app.post(TILE, BODY, {**NPY, **bearer(admin)})
        assert "lacks the scope 'run'" in assert_problem(refused, 403, "forbidden")["detail"]
        assert 'error="insufficient_scope", scope="run"' in refused.headers["www-authenticate"]
        for path in ("/metrics", "/metrics/"):
            assert_problem(app.get(path, headers=bearer(anna)), 403, "forbidden")
            assert app.get(path, headers=bearer(admin)).status_code in (200, 404)
        for key in (anna, admin):
            assert app.get("/v1/limits", headers=bearer(key)).status_code == 200


def test_limits_show_no_path_and_no_key(file: Path, anna: str, tmp_path: Path) -> None:
    with http_app(keys_file=file, uds=tmp_path / "socket") as app:
        answer = app.get("/v1/limits", headers=bearer(anna))
        assert answer.status_code == 200
        assert str(tmp_path) not in answer.text
        assert anna not in answer.text


def test_a_key_expires(file: Path, clock: Clock) -> None:
    expires = datetime.fromtimestamp(clock.time() + 10, UTC)
    file.write_text(line("tp_short", expires=expires.isoformat()))
    with http_app(keys_file=file) as app:
        assert app.get("/v1/limits", headers=bearer("tp_short")).status_code == 200
        clock.seconds += 10
        answer = app.get("/v1/limits", headers=bearer("tp_short"))
        assert "the key anna has expired" in assert_problem(answer, 401, "unauthenticated")["detail"]


def test_keys_change_without_a_restart(file: Path, anna: str, clock: Clock) -> None:
    with http_app(keys_file=file) as app:

        def status(key: str) -> int:
            return app.get("/v1/limits", headers=bearer(key)).status_code

        new = commands.add_key(file, "anna-2")
        clock.seconds += 1
        assert (status(anna), status(new)) == (200, 200)
        commands.revoke_key(file, "anna")
        clock.seconds += 1
        assert (status(anna), status(new)) == (401, 200)
        file.unlink()
        clock.seconds += 1
        assert status(new) == 401, "a file that is gone lets nobody in"


def test_a_file_that_is_spoilt_changes_nothing_but_the_log(
    file: Path, anna: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with http_app(keys_file=file) as app:
        good = file.read_text()
        file.write_text(good + "{half of a li")
        clock.seconds += 1
        assert app.get("/v1/limits", headers=bearer(anna)).status_code == 200
        assert "line 2 of the keys file" in caplog.text
        file.write_text(good + line("tp_b", name="bert"))
        clock.seconds += 1
        assert app.get("/v1/limits", headers=bearer("tp_b")).status_code == 200


def test_a_revocation_is_not_lost_where_the_file_could_not_be_read(
    file: Path, anna: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no descriptor was free, the key held until the file changed once more."""
    with http_app(keys_file=file) as app:

        def status() -> int:
            clock.seconds += 1
            return app.get("/v1/limits", headers=bearer(anna)).status_code

        assert status() == 200
        commands.revoke_key(file, "anna")
        with monkeypatch.context() as full:
            full.setattr(watched_file.os, "open", mock.Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
            assert [status(), status()] == [200, 200]
        assert caplog.text.count("Too many open files") == 1, "said once"
        assert status() == 401


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes with names in folders")
@pytest.mark.parametrize("writer", [False, True], ids=["nobody writes", "one who says nothing"])
def test_a_pipe_is_no_keys_file(tmp_path: Path, *, writer: bool) -> None:
    """It stopped the event loop until somebody wrote to it; here a process that the test can end."""
    os.mkfifo(tmp_path / "keys")
    held = os.open(tmp_path / "keys", os.O_RDWR) if writer else None
    code = "import sys; from pathlib import Path; from tensorpost_server.http.access.api_keys import read_keys as read"
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}; read(Path(sys.argv[1]))", tmp_path / "keys"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    if held is not None:
        os.close(held)
    assert f"the keys file {tmp_path / 'keys'} is a pipe; a regular file is needed" in ran.stderr


def test_the_file_is_looked_at_once_a_second(
    file: Path, anna: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = watched_file.WatchedFile._look

    def counted(self: watched_file.WatchedFile) -> Any:
        nonlocal looks
        looks += 1
        return look(self)

    monkeypatch.setattr(watched_file.WatchedFile, "_look", counted)
    with http_app(keys_file=file) as app:
        looks = 0
        for _ in range(5):
            app.get("/v1/limits", headers=bearer(anna))
        assert looks == 1
        clock.seconds += 1
        app.get("/v1/limits", headers=bearer(anna))
        assert looks == 2


# ---- quotas ----------------------------------------------------------------------------------------------------------


def test_a_bucket_holds_a_minute_fills_evenly_and_may_be_overdrawn() -> None:
    bucket = TokenBucket(60, 0.0)
    bucket.take(60)
    assert bucket.wait(0.0) == 1.0
    assert bucket.wait(0.5) == 0.5
    assert bucket.wait(1.0) == 0.0
    bucket.take(31)
    assert bucket.wait(1.0) == 31.0  # 30 in debt, and one to be there
    assert bucket.wait(1000.0) == 0.0
    bucket.take(60)
    assert bucket.wait(1000.0) == 1.0, "it holds no more than a minute's"


def test_a_rate(file: Path, anna: str, clock: Clock) -> None:
    bert = commands.add_key(file, "bert", requests_per_minute=2)
    with http_app(keys_file=file) as app:

        def ask(key: str) -> Any:
            return app.get("/v1/limits", headers=bearer(key))

        assert [ask(bert).status_code for _ in range(2)] == [200, 200]
        refused = ask(bert)
        problem = assert_problem(refused, 429, "quota-exceeded")
        assert problem["retry_after_seconds"] == 30
        assert problem["detail"] == "the key bert has used up its 2 requests a minute; wait 30 s"
        assert refused.headers["retry-after"] == "30"
        assert ask(anna).status_code == 200, "one caller's quota is nobody else's"
        clock.seconds += 30
        assert [ask(bert).status_code for _ in range(2)] == [200, 429]


def test_the_log_names_a_caller_who_is_refused(file: Path, anna: str, clock: Clock) -> None:
    bert = commands.add_key(file, "bert", requests_per_minute=1)
    expires = datetime.fromtimestamp(clock.time() - 1, UTC).isoformat()
    file.write_text(file.read_text() + line("tp_old", name="carl", expires=expires))
    lines: list[str] = []
    with http_app(keys_file=file) as app:
        app.service.observe_by(AccessLog(json_line, lines.append))
        app.post(TILE, BODY, {**NPY, **bearer(bert)})
        for path in (TILE, "/v2/models/onnx.tile/infer", "/v1/validate", "/v2/models/none/infer"):
            assert app.post(path, BODY, {**NPY, **bearer(bert)}).status_code == 429
        assert app.get("/metrics", headers=bearer(anna)).status_code == 403
        assert app.post(TILE, BODY, {**NPY, **bearer("tp_old")}).status_code == 401
        assert app.post(TILE, BODY, {**NPY, **bearer("tp_wrong")}).status_code == 401
    found = [json.loads(text) for text in "".join(lines).splitlines()]

    assert [(each["caller"], each["operator"], each["status"]) for each in found] == [
        ("bert", "TILE", 200), ("bert", "TILE", 429), ("bert", "Tile", 429), ("bert", None, 429), ("bert", None, 429),
        ("anna", None, 403), ("carl", "TILE", 401), ("127.0.0.1", "TILE", 401),
    ]  # fmt: skip


def test_a_changed_file_gives_no_quota_back(file: Path, clock: Clock) -> None:
    bert = commands.add_key(file, "bert", requests_per_minute=1)
    with http_app(keys_file=file) as app:
        assert app.get("/v1/limits", headers=bearer(bert)).status_code == 200
        commands.add_key(file, "carl")
        clock.seconds += 1
        assert app.get("/v1/limits", headers=bearer(bert)).status_code == 429


@pytest.mark.parametrize("how", ["in process", "socket", "chunked"])
def test_bytes_of_requests_and_responses_count(file: Path, clock: Clock, how: str) -> None:
    size = len(BODY) + len(npy_bytes([1, 2, 1, 2]))
    bert = commands.add_key(file, "bert", bytes_per_minute=3 * size - 1)

    def statuses(ask: Any) -> list[int]:
        return [ask() for _ in range(4)]

    if how == "in process":
        with http_app(keys_file=file) as app:
            found = statuses(lambda: app.post(TILE, BODY, {**NPY, **bearer(bert)}).status_code)
    else:  # the third one on a socket is a replay, unless it is chunked
        request = request_bytes("POST", TILE, BODY, {**NPY, **bearer(bert)})
        if how == "chunked":
            coding = {"content-length": None, "transfer-encoding": "chunked"}
            request = request_bytes("POST", TILE, b"", {**NPY, **bearer(bert), **coding})
            for part in (BODY[:100], BODY[100:], b""):
                request += b"%x\r\n%b\r\n" % (len(part), part)
        with serving(keys_file=file) as server, server.wire() as wire:

            def ask() -> int:
                wire.send(request)
                return wire.answer().status

            found = statuses(ask)
    assert found == [200, 200, 200, 429]


def test_a_declared_length_beyond_the_limit_is_no_eternal_debt(file: Path, clock: Clock) -> None:
    bert = commands.add_key(file, "bert", bytes_per_minute=60_000)
    with serving(keys_file=file, max_body_bytes=30_000) as server:
        head = request_bytes("POST", TILE, b"", {**NPY, **bearer(bert), "content-length": 10**17})
        assert server.ask(head).status == 413
        assert server.ask(request_bytes("POST", TILE, BODY, {**NPY, **bearer(bert)})).status == 200


def test_answers_at_once_do_not_exceed_a_quota_together(file: Path) -> None:
    """All have begun before the first one is computed; only one may take more than there is."""
    quota, size, count = 100_000, 2_000_000, 14
    bert = commands.add_key(file, "bert", bytes_per_minute=quota)
    body = npy_bytes(np.zeros(1000, np.uint8), "uint8")
    request = request_bytes("POST", f"/v1/operators/tile?repeats={size // 1000}", body, {**NPY, **bearer(bert)})
    with serving(keys_file=file) as server, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(server.wire()) for _ in range(count)]
        for wire in wires:
            wire.send(request[:-500])
        time.sleep(0.3)
        for wire in wires:
            wire.send(request[-500:])
        answers = [wire.answer() for wire in wires]

    statuses = Counter([answer.status for answer in answers])
    assert statuses == {200: 1, 429: count - 1}
    assert sum([len(answer.body) for answer in answers]) < size + quota
    assert all("used up its 100,000 bytes" in answer.json()["detail"] for answer in answers if answer.status == 429)


def test_chunked_bodies_at_once_do_not_exceed_a_quota_together(file: Path) -> None:
    bert = commands.add_key(file, "bert", bytes_per_minute=100_000)
    coding = {"content-length": None, "transfer-encoding": "chunked"}
    head = request_bytes("POST", TILE, b"", {**NPY, **bearer(bert), **coding})
    chunk = b"%x\r\n%b\r\n" % (60_000, bytes(60_000))
    with serving(keys_file=file) as server, server.wire() as one, server.wire() as two:
        for wire in (one, two):
            wire.send(head)
        time.sleep(0.2)
        one.send(chunk * 2)  # alone, one may exceed it
        time.sleep(0.2)
        two.send(chunk)
        assert_problem(two.answer(), 429, "quota-exceeded")
        one.send(b"0\r\n\r\n")
        assert_problem(one.answer(), 400, "invalid-frame")


def test_what_was_reserved_and_not_sent_is_given_back(file: Path, clock: Clock) -> None:
    """The text of 1000 zeros is shorter than their 8000 bytes."""
    quota = 20_000
    bert = commands.add_key(file, "bert", bytes_per_minute=quota)
    headers = {**NPY, **bearer(bert), "accept": "application/json"}
    body = npy_bytes(np.zeros(4, np.float64), "float64")
    taken = 0
    with http_app(keys_file=file) as app:
        while True:
            answer = app.post("/v1/operators/tile?repeats=250", body, headers)
            if answer.status_code != 200:
                break
            taken += len(body) + len(answer.content)
    assert_problem(answer, 429, "quota-exceeded")
    assert taken >= quota, "as much as it may"


# ---- replays ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each request that the protocol could replay, whether it was."""
    done: list[bool] = []
    replay = access_control.AccessControl._replay

    def watched(self: access_control.AccessControl, *arguments: Any) -> Any:
        response = replay(self, *arguments)
        done.append(response is not None)
        return response

    monkeypatch.setattr(access_control.AccessControl, "_replay", watched)
    return done


def ask(server: Serving, key: str, times: int = 1) -> Answer:
    answers = [server.ask(request_bytes("POST", TILE, BODY, {**NPY, **bearer(key)})) for _ in range(times)]
    return answers[-1]


@pytest.fixture
def server(file: Path, anna: str, clock: Clock, replays: list[bool]) -> Iterator[Serving]:
    with serving(keys_file=file) as found:
        assert ask(found, anna, 4).status == 200
        assert replays[-1:] == [True], "the call is replayed, or these tests show nothing"
        yield found


def test_a_revoked_key_is_not_answered_by_a_replay(
    server: Serving, file: Path, anna: str, clock: Clock, replays: list[bool]
) -> None:
    commands.revoke_key(file, "anna")
    clock.seconds += 1

    assert_problem(ask(server, anna), 401, "unauthenticated")
    assert replays[-1] is False


def test_an_expired_key_is_not_answered_by_a_replay(
    server: Serving, file: Path, anna: str, clock: Clock, replays: list[bool]
) -> None:
    (key,) = read_keys(file)
    soon = datetime.fromtimestamp(clock.time() + 60, UTC)
    write_keys(file, [key.model_copy(update={"expires": soon})])
    clock.seconds += 1
    assert ask(server, anna).status == 200
    assert replays[-1] is True
    clock.seconds += 60

    assert_problem(ask(server, anna), 401, "unauthenticated")
    assert replays[-1] is False


def test_a_key_that_lost_its_scope_is_not_answered_by_a_replay(
    server: Serving, file: Path, anna: str, clock: Clock, replays: list[bool]
) -> None:
    (key,) = read_keys(file)
    write_keys(file, [key.model_copy(update={"scopes": ("admin",)})])
    clock.seconds += 1

    assert_problem(ask(server, anna), 403, "forbidden")
    assert replays[-1] is False


def test_replays_count_in_the_rate(server: Serving, file: Path, anna: str, clock: Clock, replays: list[bool]) -> None:
    (key,) = read_keys(file)
    write_keys(file, [key.model_copy(update={"requests_per_minute": 3})])
    clock.seconds += 1
    before = len(replays)

    assert [ask(server, anna).status for _ in range(5)] == [200, 200, 200, 429, 429]
    assert replays[before:] == [True, True, True, False, False]


def test_another_key_gets_no_replay_of_anna_s(server: Serving, replays: list[bool]) -> None:
    before = len(replays)

    assert_problem(ask(server, "tp_" + "x" * 43), 401, "unauthenticated")
    assert len(replays) == before, "its head is another one, so no replay is asked"


# ---- the wire, and names ---------------------------------------------------------------------------------------------


def test_a_refused_body_costs_no_memory_and_keeps_the_connection(file: Path, anna: str) -> None:
    body = npy_bytes(np.zeros(1_000_000, np.float32))
    with serving(keys_file=file) as server, server.wire() as wire:
        wire.send(request_bytes("POST", TILE, body, {**NPY, **bearer("tp_wrong")}))
        assert wire.answer().status == 401
        wire.send(request_bytes("POST", TILE, body, {**NPY, **bearer(anna)}))
        assert wire.answer().status == 200


@pytest.mark.parametrize("keys", [True, False])
def test_the_scope_names_the_caller(file: Path, anna: str, *, keys: bool) -> None:
    seen: list[str] = []

    def before_start(app: Any) -> None:
        def look(request: Request) -> Response:
            seen.append(request.scope["tensorpost.caller"])
            return Response()

        app.router.add_route("/look", look)

    with serving(before_start, **({"keys_file": file} if keys else {})) as server:
        server.ask(request_bytes("GET", "/look", b"", bearer(anna)))

    assert seen == ["anna" if keys else "127.0.0.1"]


def test_no_key_stands_in_a_log_or_an_answer(
    file: Path, anna: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with serving(keys_file=file) as server:
        answers = [ask(server, key) for key in (anna, anna[:-1])]
        commands.revoke_key(file, "anna")
        clock.seconds += 1
        answers.append(ask(server, anna))
    for text in (caplog.text, *[f"{answer.headers}{answer.body!r}" for answer in answers]):
        assert anna[:-1] not in text


def test_keys_that_are_shown_by_python_show_no_secret(anna: str, file: Path) -> None:
    (key,) = read_keys(file)

    assert isinstance(key, ApiKey)
    assert anna not in repr(key)


def test_expiry_by_days_is_counted_from_now(file: Path) -> None:
    commands.add_key(file, "bert", days=90)
    (key,) = read_keys(file)

    assert key.expires is not None
    assert key.expires - key.created == timedelta(days=90)
    assert abs(key.created.timestamp() - time.time()) < 60
    assert not key.has_expired(key.created)
    assert key.has_expired(key.expires)
