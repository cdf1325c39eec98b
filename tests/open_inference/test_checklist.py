"""The fourteen things without which some real client of the Open Inference Protocol fails.

The requests are those that perf_analyzer 2.60 sends (`make perf-analyzer` runs it): JSON whose length is in the header,
`"id": ""`, every output asked for by name, form-urlencoded registrations, all shared memory unregistered first.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.http_app import Answer, Serving, request_bytes, serving

from tensorpost_server.settings import Settings

HEADER = "Inference-Header-Content-Length"
FORM = {"content-type": "application/x-www-form-urlencoded"}
THUMB = {"operator": "tile", "attributes": {"repeats": [2]}, "shape": [3], "datatype": "FP32"}
TENSOR = {"name": "input", "shape": [3], "datatype": "FP32"}
NUMBERS = struct.pack("<3f", 1, 2, 3)
GETS = ("", "/health/live", "/health/ready", "/models", "/models/stats", "/models/thumb", "/models/thumb/config",
        "/models/thumb/ready", "/models/thumb/stats", "/models/thumb/versions/1", "/models/thumb/versions/1/config",
        "/models/thumb/versions/1/ready", "/models/thumb/versions/1/stats", "/systemsharedmemory/status",
        "/cudasharedmemory/status")  # fmt: skip
POSTS = ("/repository/index", "/repository/models/thumb/load", "/systemsharedmemory/unregister",
         "/cudasharedmemory/unregister", "/systemsharedmemory/region/nothing/unregister",
         "/cudasharedmemory/region/nothing/unregister")  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(presets={"thumb": THUMB}, shared_memory=True) as found:
        yield found


@pytest.fixture
def key() -> Iterator[str]:
    path = Path("/dev/shm") / f"tensorpost_checklist_{os.getpid()}"
    path.write_bytes(bytes(mmap.PAGESIZE))
    yield f"/{path.name}"
    path.unlink()


def ask(server: Serving, method: str, path: str, body: bytes = b"", headers: Mapping[str, Any] | None = None) -> Answer:
    return server.ask(request_bytes(method, f"/v2{path}", body, headers))


def infer(server: Serving, path: str = "/models/thumb/infer", data: bytes = NUMBERS, **members: Any) -> Answer:
    """A call as the C++ client writes it."""
    document = {
        "id": "",
        "inputs": [TENSOR | {"parameters": {"binary_data_size": len(data)}}],
        "outputs": [{"name": "output", "parameters": {"binary_data": True}}],
        **members,
    }
    text = json.dumps(document).encode()
    return ask(server, "POST", path, text + data, {HEADER: len(text), "content-type": "application/octet-stream"})


def answered(answer: Answer) -> dict[str, Any]:
    return json.loads(answer.body[: int(answer.headers.get(HEADER.lower(), len(answer.body)))])


def test_1_success_is_200(server: Serving):
    assert {path: ask(server, "GET", path).status for path in GETS} == dict.fromkeys(GETS, 200)
    assert {path: ask(server, "POST", path, b"", FORM).status for path in POSTS} == dict.fromkeys(POSTS, 200)
    assert infer(server).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [("GET", "/nothing", b"", 404), ("GET", "/models/tlie", b"", 404), ("GET", "/models/thumb/infer", b"", 405),
     ("POST", "/models/thumb/infer", b"[", 400), ("POST", "/models/tlie/infer", b"{}", 404),
     ("GET", "/logging", b"", 501), ("POST", "/systemsharedmemory/region/r/register", b"{}", 400),
     ("POST", "/cudasharedmemory/region/r/register", b"{}", 501)],
)  # fmt: skip
def test_2_refusals_are_json_with_the_member_error(server: Serving, method: str, path: str, body: bytes, status: int):
    answer = ask(server, method, path, body)

    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    assert isinstance(answer.json()["error"], str)


@pytest.mark.parametrize("content_type", [None, "application/octet-stream", "application/x-www-form-urlencoded"])
def test_3_and_5_content_type_is_not_looked_at_and_outputs_elsewhere_have_no_parameters(
    server: Serving, key: str, content_type: str | None
):
    types = {"content-type": content_type}
    region = json.dumps({"key": key, "offset": 0, "byte_size": 64}).encode()
    assert ask(server, "POST", "/systemsharedmemory/region/mine/register", region, types).status == 200
    to_region = {"shared_memory_region": "mine", "shared_memory_byte_size": 32, "shared_memory_offset": 8}
    from_json = TENSOR | {"data": [1.5, -2, 0]}
    for parameters in (to_region, {"binary_data": False}):
        outputs = [{"name": "output", "parameters": parameters}]
        text = json.dumps({"inputs": [from_json], "outputs": outputs}).encode()
        (output,) = answered(ask(server, "POST", "/models/thumb/infer", text, types))["outputs"]
        assert (output["name"], output["shape"], output["datatype"]) == ("output", [6], "FP32")
        assert "parameters" not in output
        assert output.get("data") == (None if parameters is to_region else [1.5, -2, 0] * 2)
    assert ask(server, "POST", "/systemsharedmemory/unregister", b"", types).status == 200
    assert struct.unpack_from("<6f", (Path("/dev/shm") / key[1:]).read_bytes(), 8) == (1.5, -2, 0) * 2


def test_4_the_header_says_how_much_of_the_body_is_json(server: Serving):
    document = json.dumps({"inputs": [TENSOR | {"data": [1, 2, 3]}]}).encode()
    for body, headers in ((document, {HEADER: len(document)}), (document, {}), (NUMBERS, {HEADER: 0})):
        answer = ask(server, "POST", "/models/thumb/infer", body, headers)
        (output,) = answered(answer)["outputs"]
        if body is NUMBERS:  # a raw request; its answer is binary
            assert answer.body[int(answer.headers[HEADER.lower()]) :] == 2 * NUMBERS
        else:
            assert output["data"] == [1, 2, 3, 1, 2, 3]
    assert infer(server).body.endswith(2 * NUMBERS)


def test_6_versions_are_decimal_integers(server: Serving):
    assert ask(server, "GET", "/models/thumb").json()["versions"] == ["1"]
    assert answered(infer(server))["model_version"] == "1"
    (stats,) = ask(server, "GET", "/models/thumb/stats").json()["model_stats"]
    assert stats["version"] == "1"


def test_7_and_11_statistics_are_listed_and_add_up(server: Serving):
    def counts() -> dict[str, int]:
        (stats,) = ask(server, "GET", "/models/thumb/versions/1/stats").json()["model_stats"]
        members = stats["inference_stats"].values()
        assert all(type(each[name]) is int and each[name] >= 0 for each in members for name in ("count", "ns"))
        return {name: each["count"] for name, each in stats["inference_stats"].items()}

    assert "statistics" in ask(server, "GET", "").json()["extensions"]
    before = counts()
    for _ in range(5):  # parsed, prepared, replayed
        infer(server)
    grown = {name: count - before[name] for name, count in counts().items()}
    expected = dict.fromkeys(("success", "queue", "compute_input", "compute_infer", "compute_output"), 5)
    assert grown == {**expected, "fail": 0, "cache_hit": 0, "cache_miss": 0}


def test_8_nothing_is_compressed_for_several_codings(server: Serving):
    for accepted in ("gzip, deflate, br", "gzip, deflate, br, zstd", "br", "identity"):
        headers = {"accept-encoding": accepted}
        text = json.dumps({"inputs": [TENSOR | {"data": [1, 2, 3]}]}).encode()
        for answer in (ask(server, "GET", "", b"", headers), ask(server, "POST", "/models/thumb/infer", text, headers)):
            assert "content-encoding" not in answer.headers
            assert answer.json()


def test_9_the_id_is_echoed_unless_it_is_empty(server: Serving):
    assert answered(infer(server, id="a 7"))["id"] == "a 7"
    assert "id" not in answered(infer(server, id=""))


def test_10_unregistering_is_200_without_shared_memory():
    with serving() as server:
        assert {path: ask(server, "POST", path, b"", FORM).status for path in POSTS[2:]} == dict.fromkeys(
            POSTS[2:], 200
        )
        assert ask(server, "POST", "/systemsharedmemory/region/r/register", b"{}").status == 501


def test_12_idle_connections_stay_open_for_75_seconds():
    assert Settings().keep_alive_seconds >= 75


def test_13_and_14_names_are_one_segment_and_paths_need_no_redirect(server: Serving):
    assert not [name for name in ask(server, "GET", "/models").json()["models"] if "/" in name]
    for rest in ("", "/config", "/ready"):
        with_version, without = (ask(server, "GET", f"/models/thumb{part}{rest}") for part in ("/versions/1", ""))
        assert with_version.body == without.body
        assert ask(server, "GET", f"/models/thumb{rest}/").status == 404, "a redirect is an error to most clients"
    assert infer(server, "/models/thumb/versions/1/infer").body == infer(server).body
