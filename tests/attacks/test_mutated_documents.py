"""Documents of every operator, mutated: whatever is asked for, nothing is a fault of the server."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.http_app import FRAME, JSON, NPY, AppClient, http_app
from tests.support.strategies import json_values
from tests.support.vectors import cases_of, vectors_files

COUNT = int(os.environ.get("MUTATIONS", "1500"))
"""Mutated documents; each goes to `/v1/validate` and, with tensors that it describes, to its operator."""

TYPES = [
    "UNKNOWN", "FLOAT32", "FLOAT16", "UINT32", "UINT16", "UINT8", "INT32", "INT16", "INT8", "FLOAT64", "UINT64",
    "INT64", "UINT4", "INT4", "F32", "", 12, 13, 0, None,
]  # fmt: skip
NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    5,
    7,
    16,
    255,
    2**31,
    2**32 - 1,
    2**32,
    2**63,
    2**64,
    -(2**63),
    0.5,
    1e-45,
    1e308,
    True,
    None,
]
VALUES = [*NUMBERS, "", "1", "LINEAR", "NAN", [], [1], [[]], {}, {"Type": "ACTIVATION_RELU"}, "A" * 300]
REFUSALS = {400, 404, 406, 411, 413, 415, 422, 429, 501}  # 501: no device here can do it


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything inside a document."""
    if isinstance(node, dict):
        for key, member in node.items():
            yield (*path, key)
            yield from places(member, (*path, key))
    elif isinstance(node, list):
        for index, member in enumerate(node):
            yield (*path, index)
            yield from places(member, (*path, index))


def mutated(document: Any, chance: random.Random) -> Any:
    """The document with one to three changes."""
    found = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 2, 3))):
        every = [path for path in places(found) if path not in (("type",), ("op_type",))]
        if not every:
            break
        *above, last = chance.choice(every)
        parent = found
        for step in above:
            parent = parent[step]
        old = parent[last]
        how = chance.random()
        if last in ("DataType", "data_type"):
            parent[last] = chance.choice(TYPES)
        elif how < 0.15:
            del parent[last]
        elif how < 0.3 and isinstance(parent, list):
            parent.insert(last, chance.choice(NUMBERS))
        elif isinstance(old, int | float) and how < 0.9:
            parent[last] = chance.choice([*NUMBERS, old + 1, old * 2, -old])
        else:
            parent[last] = chance.choice(VALUES)
    return found


def documents() -> list[Any]:
    """A document of every case of the vectors."""
    return [json.loads(case.desc.to_document_text()) for case in cases_of()]


def tensors_of(described: Any) -> Iterator[tuple[str, int]]:
    """Names and bytes of small tensors that a document describes, as far as it can be read."""
    for entry in described:
        if entry["size_in_bytes"] <= 65_536:
            yield entry["name"], entry["size_in_bytes"]


def framed(document: Any, inputs: Any) -> bytes:
    """A frame with the document and raw zeros for its inputs."""
    head: dict[str, Any] = {"__metadata__": {"op": json.dumps(document)}}
    at = 0
    for name, size in tensors_of(inputs):
        head[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + bytes(at)


async def ask(app: Any, path: str, body: bytes, content_type: str) -> tuple[int, bytes]:
    """Post to the application without a server; status and body."""
    status, parts, sent = 0, bytearray(), asyncio.Event()

    async def receive() -> Any:
        if not receive_state:
            receive_state.append(1)
            return {"type": "http.request", "body": body, "more_body": False}
        await sent.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status, parts
        if message["type"] == "http.response.start":
            status = message["status"]
        elif len(parts) < 65_536:
            parts += message["body"]

    receive_state: list[int] = []
    headers = [
        (b"host", b"127.0.0.1"),
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": headers, "scheme": "http", "root_path": "", "client": ("127.0.0.1", 1),
        "server": ("test", 80),
    }  # fmt: skip
    try:
        await app(scope, receive, send)
    except Exception as error:  # noqa: BLE001 # what the application raises is what the test looks for
        return 500, repr(error).encode()
    return status, bytes(parts)


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app(max_output_bytes=1 << 20, max_work=10**7, memory_bytes=1 << 28, numpy_threads=1) as found:
        yield found


def path_of(document: Any) -> str:
    if "op_type" in document:
        return f"/v1/onnx/{document['op_type']}"
    return f"/v1/operators/{str(document['type']).lower()}"


def test_nothing_that_is_asked_for_is_a_fault_of_the_server(app: AppClient) -> None:
    chance = random.Random(20261122)  # the same documents each time
    originals = documents()
    statuses = Counter[tuple[str, int]]()
    faults: list[str] = []

    async def attack() -> None:
        for index in range(COUNT):
            document = mutated(
                originals[index % len(originals)] if len(originals) < COUNT else chance.choice(originals), chance
            )
            text = json.dumps(document).encode()
            status, answer = await ask(app.app, "/v1/validate", text, JSON["content-type"])
            statuses["validate", status] += 1
            if status not in REFUSALS | {200}:
                faults.append(f"validate {status} {text.decode()[:600]} {answer[:300]!r}")
                continue
            verdict = json.loads(answer) if status == 200 and len(answer) < 65_536 else {}
            body = framed(document, verdict.get("inputs") or [])
            status, answer = await ask(app.app, path_of(document), body, FRAME["content-type"])
            statuses["run", status] += 1
            if status not in REFUSALS | {200}:
                faults.append(f"run {status} {text.decode()[:600]} {answer[:300]!r}")

    app.run(attack())

    assert not faults, f"{len(faults)} of {COUNT}, {statuses}:\n" + "\n".join(faults[:5])
    assert statuses["validate", 200] > COUNT / 4, statuses
    assert statuses["run", 200] > COUNT / 40, statuses


@pytest.mark.parametrize("data_type", ["INT4", "UINT4", 12, 13, "UNKNOWN", 0])
def test_types_of_4_bits_and_of_none_are_no_fault(app: AppClient, data_type: Any) -> None:
    """In the first and the last case of every operator."""
    cases = [file.cases[place] for file in vectors_files() for place in (0, -1)]
    for document in [json.loads(case.desc.to_document_text()) for case in cases]:
        if "op_type" in document:
            continue
        for path in list(places(document)):
            if path[-1] == "DataType":
                changed = copy.deepcopy(document)
                parent = changed
                for step in path[:-1]:
                    parent = parent[step]
                parent["DataType"] = data_type
                text = json.dumps(changed).encode()
                status, answer = app.run(ask(app.app, "/v1/validate", text, JSON["content-type"]))
                assert status == 200, (text, answer)
                if json.loads(answer)["valid"]:
                    assert data_type not in ("UNKNOWN", 0), "a type without a layout"
                    assert "QUANTIZE" in changed["type"], "others take no elements of 4 bits"
                status, answer = app.run(ask(app.app, path_of(changed), framed(changed, []), FRAME["content-type"]))
                assert status in (400, 422), (text, answer)
                break


# ---- what the OpenAPI document declares ------------------------------------------------------------------------------


def test_no_path_of_the_openapi_document_answers_an_undeclared_fault(app: AppClient) -> None:
    paths = app.get("/openapi.json").json()["paths"]
    operations = [
        (path, method, entry)
        for path, methods in paths.items()
        for method, entry in methods.items()
        if method in ("get", "post")
    ]
    names = st.one_of(st.sampled_from(["tile", "Tile", "Resize", "gather", "resample"]), st.text(max_size=12))
    words = st.one_of(st.text(max_size=30), st.integers().map(str), st.sampled_from(["2", "1,1", "numpy", "0", "[]"]))
    queries = ["repeats", "scales", "sizes", "backend", "device", "feature_level", "opset", "output_sizes", "axis"]

    @given(
        operation=st.sampled_from(operations), name=names,
        query=st.dictionaries(st.one_of(st.sampled_from(queries), st.text(max_size=8)), words, max_size=4),
        media=st.sampled_from([*(each["content-type"] for each in (JSON, NPY, FRAME)), "text/plain", ""]),
        accept=st.one_of(st.none(), st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=30)),
        body=st.one_of(st.binary(max_size=200), json_values().map(lambda value: json.dumps(value).encode())),
    )  # fmt: skip
    @settings(max_examples=300, deadline=None)
    def attack(operation: Any, name: str, query: dict[str, str], media: str, accept: str | None, body: bytes) -> None:
        path, method, entry = operation
        for part in ("operator", "op_type", "name"):
            path = path.replace(f"{{{part}}}", quote(name, "") or "x")
        headers = {"content-type": media} if media else {}
        if accept is not None:
            headers["accept"] = accept
        answer = app.request(method.upper(), path, params=query, headers=headers, content=body)
        declared = {int(status) for status in entry["responses"] if status.isdigit()}
        assert answer.status_code < 500 or answer.status_code in declared | {501}, answer.text
        if answer.status_code >= 400:
            form = "application/json" if path.startswith("/v2/") else "application/problem+json"
            assert answer.headers["content-type"] == form

    attack()
