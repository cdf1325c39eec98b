"""Wrong calls of every kind through every surface: each is refused in its words, and in good grammar."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.command_line import invoke
from tests.support.http_app import JSON, NPY, AppClient, http_app, npy_bytes
from tests.support.live_server import live_server

from tensorpost import Client, parse_operator, resampling
from tensorpost.descriptors import operator_class
from tensorpost.onnx import OnnxNode
from tensorpost.reference import operator_reference
from tensorpost.values.problems import TensorpostError, Unauthenticated

EXAMPLES: Mapping[str, Any] = {
    path: row["call"] for path, row in json.loads(operator_reference.EXAMPLES.read_text("utf-8")).items()
}
WRONG: Sequence[Any] = (-7, "foo", [1] * 10, None, {}, [], 2.5, True, [1, "x"])
PYTHON_WORDS = r"\b(?:np|numpy|tp|client)\.\w|parse_operator|OnnxNode|\b(?:None|True|False)\b|\w\(\w+=|<class"
HTTP_WORDS = r"\b(?:GET|POST|HEAD) /|/v1/|\bquery (?:parameter|string)\b|\?\w+="
COMMAND_WORDS = r"\s--(?!data-binary)\w|\btensorpost (?:run|onnx|tile|resample|operators)\b"
PLURALS = (
    r"\b1 (?:entries|inputs|outputs|dimensions|tensors|elements|axes|bytes|numbers|channels|files)\b"
    r"|(?<![\d.,-])(?!1\b)\d+ (?:entry|input|output|dimension|tensor|element|axis|byte|number|channel|file)\b"
)


def refuse_words(said: str, *foreign: str) -> None:
    for pattern in (*foreign, PLURALS):
        found = re.search(pattern, said)
        assert found is None, f"{found[0]!r} in: {said}"


def wrong_documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every operator's example with one field wrong, missing or unknown, and its path."""
    for path, example in EXAMPLES.items():
        op = example["op"]
        for part in ("desc", "attributes", "inputs"):
            members: dict[str, Any] = op.get(part, {})
            for name in members:
                for value in WRONG:
                    yield path, {**op, part: {**members, name: value}}
                yield path, {**op, part: {key: value for key, value in members.items() if key != name}}
        part = "desc" if "desc" in op else "attributes"
        yield path, {**op, part: {**op.get(part, {}), "axess": 1}}


def test_python_speaks_of_no_query_and_no_option():
    refused = 0
    for _, document in islice(wrong_documents(), 0, None, 2):
        try:
            parse_operator(document, complete=True) if "desc" in document else OnnxNode.from_json(document)
        except TensorpostError as error:
            refuse_words(str(error), HTTP_WORDS, COMMAND_WORDS)
            refused += 1
    assert refused > 1500


X = np.ones((1, 1, 2, 3), np.float32)
CALLS: Sequence[Callable[[Client], Any]] = (
    lambda tp: tp.tile(X, -1),
    lambda tp: tp.tile(X, (1, 1, 2, 2.5)),  # pyright: ignore[reportArgumentType] # wrong on purpose
    lambda tp: tp.tile(np.ones(2, np.complex128), 2),
    lambda tp: tp.tile(np.ones(2, np.complex64), 2, feature_level="2_1"),
    lambda tp: tp.resample(X, scales=2),
    lambda tp: tp.resample(X, scales=(2, 2)),
    lambda tp: tp.resample(X, scales=2, axes=9),
    lambda tp: tp.resample(X, scales=2, axes=(2, 3), mode="cubic"),  # pyright: ignore[reportArgumentType] # wrong on purpose
    lambda tp: tp.resample(X.astype(int), scales=2, axes=(2, 3)),
    lambda tp: tp.onnx("Nope", X),
    lambda tp: tp.onnx("Add", X),
    lambda tp: tp.onnx("Neg", X, X),
    lambda tp: tp.onnx("Concat", X),
    lambda tp: tp.run(parse_operator({"type": "JOIN", "desc": {}}, complete=True)),
    lambda tp: tp.run(resampling.resampling(X, scales=2, axes=(2, 3)).desc, [X, X]),
    lambda tp: tp.sum(X, axis=9),
    lambda tp: tp.take(X, [7], axis=3),
    lambda tp: tp.split(X, 5, axis=3),
    lambda tp: tp.pad(X, 1, mode="sideways"),
    lambda tp: tp.concatenate([X, np.ones((2, 2), np.float32)]),
    lambda tp: tp.matmul(X, np.ones(7, np.float32)),
    lambda tp: tp.relu(X),  # pyright: ignore[reportAttributeAccessIssue] # wrong on purpose
)


@pytest.mark.parametrize("call", CALLS)
def test_the_client_speaks_of_no_query_and_no_option(call: Callable[[Client], Any]):
    with Client("http://127.0.0.1:1") as tp, pytest.raises((TensorpostError, AttributeError)) as refused:
        call(tp)
    assert "No server" not in str(refused.value)
    refuse_words(str(refused.value), HTTP_WORDS, COMMAND_WORDS)


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app() as client:
        yield client


def test_http_speaks_no_python_and_of_no_command(app: AppClient):
    body, refused = npy_bytes(np.ones((2, 3), np.float32)), 0

    def check(answer: Any) -> None:
        nonlocal refused
        if answer.status_code != 200:
            problem = answer.json()
            messages = [
                violation["message"] + " " + violation["expected"] for violation in problem.get("violations", [])
            ]
            refuse_words(" ; ".join([problem["detail"], *messages]), PYTHON_WORDS, COMMAND_WORDS)
            refused += 1

    for path, document in islice(wrong_documents(), 0, None, 17):
        check(app.post(path, json.dumps({**EXAMPLES[path], "op": document}), JSON))
        check(app.post(path, body))
    for query in (
        "repeats=-1",
        "repeats=foo",
        "repeats=1",
        "reps=1,2",
        "repeats=[1",
        "repeats=",
        "device=x",
        "backend=x",
    ):
        check(app.post(f"/v1/operators/tile?{query}", body))
    for media_type in (
        "application/x-npz",
        "image/png",
        "application/json",
        "application/octet-stream",
        "text/plain",
        "x",
    ):
        check(app.post("/v1/operators/tile?repeats=1,2", body, NPY | {"content-type": media_type}))
        check(app.post("/v1/operators/tile?repeats=1,2", body, NPY | {"accept": media_type}))
    for path in ("/v1/operators/zzzqqq", "/v1/onnx/zzzqqq", "/v1/operators/tiel", "/nowhere", "/v1/validate"):
        check(app.post(path, body))
    assert refused > 200


def command_lines() -> Iterator[list[str]]:
    """Wrong commands: each has one thing wrong."""
    for path, document in islice(wrong_documents(), 4, None, 61):
        _, _, dialect, name = path.split("/")
        if dialect == "operators":
            known = {
                field.name: field.attribute_name for field in operator_class(name).facts.fields_by_kind["attribute"]
            }
            given = {known[key]: value for key, value in document["desc"].items() if key in known}
        else:
            given = {**document.get("attributes", {}), **document.get("inputs", {})}
        settings = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in given.items()]
        command = ["run", name] if dialect == "operators" else ["onnx", name]
        yield [*command, "x.npy", *[word for setting in settings for word in ("-s", setting)]]
    for repeats in ("2", "2,2,2", "1,1,3,3", "0", "-1", "2.5", "a"):
        yield ["tile", "p.png", "--repeats", repeats]
    for options in (
        "--scale 2,2,2",
        "--scale 0",
        "--scale nan",
        "--size 2,2,2",
        "--scale 2 --axes 2,3",
        "--scale 2 --axes 0,0",
    ):
        yield ["resample", "p.png", *options.split()]
    yield ["tile", "complex.npy", "--repeats", "2"]
    yield ["tile", "empty.npy", "--repeats", "2"]
    yield ["run", "gather", "x.npy"]
    yield ["run", "tile", "p.png"]
    yield ["onnx", "Tile", "p.png", "-s", "repeats=2,2"]


def test_the_command_line_speaks_no_python_and_no_http(tmp_path: Path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "complex.npy", np.ones(2, np.complex128))
    np.save(tmp_path / "empty.npy", np.ones((0, 2), np.float32))
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / "p.png")
    refused = 0
    for arguments in command_lines():
        output = "out.png" if "p.png" in arguments else "y.npy"
        done = invoke(*arguments, "-o", output, "--uds", "nowhere.sock", cwd=tmp_path)
        if "nowhere.sock" not in done.stderr:  # not a call to the server, which is not there
            assert done.returncode in (1, 2), arguments
            refuse_words(" ".join(done.stderr.split()), PYTHON_WORDS, HTTP_WORDS)
            refused += 1
    assert refused > 40


def test_each_surface_says_how_to_send_a_key_there(tmp_path: Path):
    keys = tmp_path / "keys"
    assert invoke("keys", "add", "anna", "--keys-file", keys).returncode == 0
    with live_server(TENSORPOST_KEYS_FILE=keys) as url:
        command = invoke("devices", "--url", url).stderr
        with pytest.raises(Unauthenticated) as refused, Client(url) as tp:
            tp.tile(X, 2)
        with pytest.raises(urllib.error.HTTPError) as answered, urllib.request.urlopen(f"{url}/v1/operators"):
            pass
        problem = json.loads(answered.value.read())

    assert "--api-key-file FILE" in command
    refuse_words(command, PYTHON_WORDS, HTTP_WORDS, "header|api_key=")
    assert "pass api_key= to the client" in str(refused.value)
    refuse_words(str(refused.value), HTTP_WORDS, COMMAND_WORDS, "header")
    assert "send the header Authorization: Bearer KEY" in problem["detail"]
    refuse_words(problem["detail"], PYTHON_WORDS, COMMAND_WORDS, "api_key")
