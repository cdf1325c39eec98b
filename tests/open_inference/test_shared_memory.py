"""Shared memory: who may register what, how long it stays, and the SDK's use of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import Answer, Serving, Wire, app_settings, eventually, request_bytes, serving

from tensorpost import AsyncClient, Client
from tensorpost.onnx import OnnxNode
from tensorpost.values.problems import InvalidParameter, Unavailable, UnknownOperator
from tensorpost_server.http.access.api_keys import ApiKey, digest, write_keys
from tensorpost_server.http.open_inference import shared_memory
from tensorpost_server.http.open_inference.infer_request import RegionPart
from tensorpost_server.http.open_inference.shared_memory import SharedMemory, SystemRegion

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory is offered on Linux only")

X = np.random.default_rng(3).normal(size=(256, 128)).astype(np.float32)


def left_behind() -> set[str]:
    """Objects of this process and its children that still have a name."""
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(("tensorpost-", "oip-test-"))}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    before = left_behind()
    with serving(shared_memory=True) as found:
        yield found
        eventually(found.idle, "all memory is released")
    assert left_behind() <= before


@pytest.fixture
def key() -> Iterator[str]:
    path = Path(f"/dev/shm/oip-test-{os.getpid()}")
    path.write_bytes(bytes(1000))
    yield path.name
    path.unlink(missing_ok=True)


def regions_of(server: Serving) -> dict[str, Any]:
    return {name: region for of in server.service.regions._regions.values() for name, region in of.items()}


def test_the_sdk_moves_tensors_in_shared_memory_and_leaves_nothing(server: Serving):
    flags = np.random.default_rng(1).integers(0, 2, (300, 300)).astype(bool)
    with Client(server.url, shared_memory=True) as tp, Client(server.url) as plain:
        for _ in range(2):
            np.testing.assert_array_equal(tp.tile(X, (2, 3)), np.tile(X, (2, 3)))
        assert len(regions_of(server)) == 1, "a region is used again"
        assert left_behind() == set(), "an object loses its name at once"
        out = np.empty((512, 128), np.float32)
        assert tp.tile(X, (2, 1), out=out) is out
        np.testing.assert_array_equal(out, np.tile(X, (2, 1)))
        np.testing.assert_array_equal(tp.onnx("Transpose", flags), flags.T)
        np.testing.assert_array_equal(tp.onnx("Concat", X, X, axis=1), np.concatenate([X, X], 1))
        values, indices = tp.onnx("TopK", X, np.array([5]), axis=1)
        expected = plain.onnx("TopK", X, np.array([5]), axis=1)
        np.testing.assert_array_equal(values, expected[0])
        np.testing.assert_array_equal(indices, expected[1])
        np.testing.assert_array_equal(tp.resample(X, scales=2.0, axes=(0,)), plain.resample(X, scales=2.0, axes=(0,)))
        result = tp.call(OnnxNode.of("Tile", {"input": X, "repeats": [1, 2]}, opset=13), X, backend="numpy")
        assert (result.backend, result.server_timing["compute"] >= 0) == ("numpy", True)
        with pytest.raises(InvalidParameter, match="no backend 'nope'"):
            tp.tile(X, (1, 2), backend="nope")
        np.testing.assert_array_equal(tp.tile(X, (1, 2)), np.tile(X, (1, 2)))
        server.on_loop(server.service.regions.close)  # as if the server were another one
        np.testing.assert_array_equal(tp.tile(X, (1, 2)), np.tile(X, (1, 2)))
    assert regions_of(server) == {}

    async def asynchronous() -> None:
        async with AsyncClient(server.url, shared_memory=True) as tp:
            found = await asyncio.gather(*[tp.tile(X * n, (1, 2)) for n in range(4)])
            for n, each in enumerate(found):
                np.testing.assert_array_equal(each, np.tile(X * n, (1, 2)))

    asyncio.run(asynchronous())
    assert regions_of(server) == {}


def test_a_call_survives_that_the_server_knows_no_region_of_the_client(server: Serving):
    async def asynchronous() -> None:
        async with AsyncClient(server.url, shared_memory=True) as tp:
            await asyncio.gather(*[tp.tile(X, (1, 2)) for _ in range(3)])
            assert len(regions_of(server)) > 1
            server.on_loop(server.service.regions.close)  # as if the server were another one
            np.testing.assert_array_equal(await tp.tile(X, (1, 2)), np.tile(X, (1, 2)))

    asyncio.run(asynchronous())
    document = {"inputs": [{"name": "input", "shape": [1], "datatype": "FP32", "parameters": {
        "shared_memory_region": "none", "shared_memory_byte_size": 4}}], "parameters": {"repeats": [1]}}  # fmt: skip
    refused = server.ask(request_bytes("POST", "/v2/models/tile/infer", json.dumps(document).encode()))
    problem = json.loads(refused.body)
    assert (refused.status, problem["type"]) == (404, "urn:tensorpost:problem:region-not-found")


def test_the_sdk_says_when_the_server_allows_none():
    with serving() as server, Client(server.url, shared_memory=True) as tp:
        with pytest.raises(Unavailable, match="TENSORPOST_SHARED_MEMORY=1, or make the client without shared_memory"):
            tp.tile(X, (1, 2))
        assert tp.tile(X[:2, :2], (1, 2)).shape == (2, 4)  # too small for it
        assert left_behind() == set()


def test_a_client_that_is_killed_leaves_nothing(server: Serving, monkeypatch: pytest.MonkeyPatch):
    script = (
        "import numpy as np, os, sys; from tensorpost import Client\n"
        f"Client({server.url!r}, shared_memory=True).tile(np.zeros((256, 256), np.float32), (1, 2))\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert left_behind() == set()
    assert len(regions_of(server)) == 1
    server.on_loop(server.service.regions.sweep)
    assert len(regions_of(server)) == 1, "it may only be idle"
    monkeypatch.setattr(shared_memory, "UNLINKED_SECONDS", 0.0)
    server.on_loop(server.service.regions.sweep)
    assert regions_of(server) == {}


def test_who_may_register_what(server: Serving, key: str, monkeypatch: pytest.MonkeyPatch):
    def register(document: Any, headers: dict[str, str] | None = None) -> tuple[int, str]:
        body = json.dumps(document).encode()
        answer = server.ask(request_bytes("POST", "/v2/systemsharedmemory/region/r/register", body, headers))
        return answer.status, answer.json().get("error", "") if answer.body else ""

    document = {"key": f"/{key}", "offset": 0, "byte_size": 1000}
    for wrong, status, says in (
        ({"byte_size": 1001}, 400, "do not lie"), ({"offset": 1}, 400, "do not lie"),
        ({"byte_size": 0}, 400, "1 or more"),
        ({"byte_size": None}, 400, "whole number"), ({"offset": -1}, 400, "whole number"),
        ({"key": "a/b"}, 400, "cannot name"), ({"key": ".."}, 400, "cannot name"),
        ({"key": "x\0y"}, 400, "cannot name"),
        ({"key": "/triton_python_backend_shm_region_1"}, 400, "cannot name"), ({"key": 7}, 400, "cannot name"),
        ({"key": "/not-there"}, 404, "no shared memory object"),
    ):  # fmt: skip
        found, text = register(document | wrong)
        assert (found, says in text) == (status, True), (wrong, text)
    assert register(document, {"x-forwarded-for": "10.0.0.1"})[0] == 403
    link = Path(f"/dev/shm/{key}-link")
    link.symlink_to("/etc/passwd")
    try:
        assert register(document | {"key": link.name, "byte_size": 10})[0] == 400
    finally:
        link.unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert "another user" in register(document)[1]
    assert regions_of(server) == {}


def test_owners_prefixes_counts_and_addresses(key: str, monkeypatch: pytest.MonkeyPatch):
    regions = SharedMemory(app_settings(shared_memory=True, shared_memory_prefix="oip-"))
    with pytest.raises(Exception, match="begin with 'oip-'"):
        regions.register_system("r", "other", 0, 1, "anna")
    regions.register_system("r", key, 100, 800, "anna")
    with pytest.raises(Exception, match="no shared memory region 'r'"):
        regions.use(RegionPart("r", 0, 10), "bob")
    regions.unregister(None, "bob", "system")
    assert regions.status(None, "bob", "system") == []
    assert regions.status("r", "anna", "system") == [{"name": "r", "key": key, "offset": 100, "byte_size": 800}]
    for offset, size in ((0, 801), (800, 0), (799, 2)):
        with pytest.raises(Exception, match="do not lie"):
            regions.use(RegionPart("r", offset, size), "anna")
    used = regions.use(RegionPart("r", 0, 10), "anna")
    assert isinstance(used, SystemRegion)
    regions.unregister("r", "anna", "system")
    used.write(memoryview(b"12"), 3)  # a request that runs ends first
    assert Path(f"/dev/shm/{key}").read_bytes()[103:105] == b"12"
    descriptor = used._descriptor
    used.release()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)
    with pytest.raises(Exception, match="loopback"):
        regions.check({"client": ("192.0.2.1", 5)}, {})
    assert regions.check({"client": None}, {}) == regions.check({"client": ("127.0.0.2", 5)}, {}), "without keys one"
    with pytest.raises(InvalidParameter, match="shared_memory is 1"):
        Client("http://127.0.0.1:9", shared_memory=1)  # type: ignore[arg-type] # what is refused


NAMES = ("anna", "bob")


def test_names_and_counts_are_each_callers_own(tmp_path: Path, key: str):
    """One caller can neither take all regions nor see that another uses a name."""
    path, now = tmp_path / "keys", datetime.now(UTC)
    write_keys(path, [ApiKey(name=name, sha256=digest(name.encode()), scopes=("run",), created=now) for name in NAMES])

    def ask(caller: str, method: str, target: str, document: Any = None) -> Answer:
        body = b"" if document is None else json.dumps(document).encode()
        return server.ask(request_bytes(method, f"/v2{target}", body, {"x-api-key": caller}))

    whole = {"key": key, "byte_size": 1000}
    tensor = {"name": "input", "shape": [1], "datatype": "UINT8", "parameters": {
        "shared_memory_region": "r", "shared_memory_byte_size": 1}}  # fmt: skip
    infer = {"inputs": [tensor], "parameters": {"repeats": [1]}}
    with serving(shared_memory=True, keys_file=path) as server:
        assert ask("anna", "POST", "/systemsharedmemory/region/r/register", whole).status == 200
        for method, target, document in (
            ("GET", "/systemsharedmemory/region/r/status", None),
            ("POST", "/models/tile/infer", infer),
        ):
            assert ask("anna", method, target, document).status == 200
            answer = ask("bob", method, target, document)
            assert answer.status == 404, answer.body
            assert answer.json()["type"].endswith("region-not-found")
        assert ask("bob", "GET", "/systemsharedmemory/status").json() == []
        assert ask("bob", "POST", "/systemsharedmemory/region/r/register", whole).status == 200
        assert ask("bob", "POST", "/systemsharedmemory/region/r/unregister").status == 200
        assert ask("anna", "POST", "/models/tile/infer", infer).status == 200

        regions = server.service.regions
        most = 0.75 * 1024
        for number in range(1, int(most)):
            regions.register_system(str(number), key, 0, 1, "anna")
        refused = ask("anna", "POST", "/systemsharedmemory/region/more/register", whole)
        assert refused.status == 413
        problem = refused.json()
        assert (problem["limit"], problem["unit"]) == (most, "regions")
        assert "bytes" not in problem["error"]
        assert ask("bob", "POST", "/systemsharedmemory/region/r/register", whole).status == 200


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounts a file system")
def test_an_output_for_which_the_file_system_has_no_memory_is_refused_by_name(tmp_path: Path):
    """An object of 1 MiB that is a hole, in a file system of 64 KiB."""
    serve = tmp_path / "serve.sh"
    serve.write_text(
        "mount -t tmpfs -o size=64k none /dev/shm && truncate -s 1M /dev/shm/oip-hole && "
        f"exec {sys.executable} -m tensorpost serve --port 0 --log-level warning"
    )
    variables = {**os.environ, "TENSORPOST_SHARED_MEMORY": "1", "TENSORPOST_BACKEND": "numpy"}
    command = ["unshare", "-m", "sh", str(serve)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=variables, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            host, _, port = url.removeprefix("http://").partition(":")

            def post(path: str, document: Any) -> Answer:
                with contextlib.closing(Wire(host, int(port))) as wire:
                    wire.send(request_bytes("POST", path, json.dumps(document).encode(), {"host": "localhost"}))
                    return wire.answer()

            hole = {"key": "oip-hole", "byte_size": 1 << 20}
            assert post("/v2/systemsharedmemory/region/r/register", hole).status == 200
            wanted = {"shared_memory_region": "r", "shared_memory_byte_size": 1 << 20}
            infer: Any = {
                "inputs": [{"name": "input", "shape": [1], "datatype": "UINT8", "data": [7]}],
                "outputs": [{"name": "output", "parameters": wanted}],
                "parameters": {"repeats": [1 << 20]},
            }
            answer = post("/v2/models/tile/infer", infer)
            assert answer.status == 503, answer.body
            assert "cannot be written to: No space left" in answer.json()["error"]
            infer["parameters"]["repeats"] = [100]
            wanted["shared_memory_byte_size"] = 100
            assert post("/v2/models/tile/infer", infer).status == 200, "it has pages for these"
        finally:
            process.terminate()


def test_strings_lie_in_a_region(server: Serving, key: str):
    words = b"".join(len(word).to_bytes(4, "little") + word for word in (b"ab", b""))
    Path(f"/dev/shm/{key}").write_bytes(words + bytes(1000))
    document = {"key": key, "offset": 0, "byte_size": 1000}

    def post(path: str, document: Any) -> None:
        assert server.ask(request_bytes("POST", path, json.dumps(document).encode())).status == 200

    post("/v2/systemsharedmemory/region/words/register", document)
    given = {"shared_memory_region": "words", "shared_memory_byte_size": len(words)}
    wanted = {"shared_memory_region": "words", "shared_memory_byte_size": 500, "shared_memory_offset": 100}
    inputs = [
        {"name": "input", "datatype": "BYTES", "shape": [2], "parameters": given},
        {"name": "repeats", "datatype": "INT64", "shape": [1], "data": [2]},
    ]
    post("/v2/models/onnx.tile/infer", {"inputs": inputs, "outputs": [{"name": "output", "parameters": wanted}]})
    assert Path(f"/dev/shm/{key}").read_bytes()[100 : 100 + 2 * len(words)] == words * 2
    post("/v2/systemsharedmemory/unregister", {})


def test_a_document_is_an_operation_of_a_model(server: Serving):
    document = {"type": "TILE", "desc": {"Repeats": [2]}}
    x = {"name": "input", "datatype": "INT8", "shape": [2], "data": [1, 2]}

    def infer(model: str) -> Any:
        text = json.dumps({"inputs": [x], "parameters": {"op": json.dumps(document)}}).encode()
        return server.ask(request_bytes("POST", f"/v2/models/{model}/infer", text)).json()

    assert infer("tile")["outputs"][0]["data"] == [1, 2, 1, 2]
    assert "post to the operator" in infer("slice")["error"]
    with Client(server.url) as tp, pytest.raises(UnknownOperator):
        tp.onnx("Tlie", X)
