"""What a newcomer tries with curl and nothing but the README, against a real server: pictures, graphs and models."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image
from tests.support.http_app import npy_array, split_frame
from tests.support.live_server import default_server

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the calls are made by curl")

COLOURS = np.random.default_rng(20_261_128).integers(0, 256, (8, 6, 3), np.uint8)
EXAMPLES = Path(__file__).parents[2] / "examples"
PNG = ("-H", "content-type: image/png")
TURNED = {"name": "turned", "op_type": "Transpose", "inputs": "photo", "attributes": {"perm": [0, 2, 1, 3]}}
FLOATS = {"name": "floats", "op_type": "Cast", "inputs": "photo", "attributes": {"to": "float32"}}


class Answer(NamedTuple):
    """What curl received."""

    status: int
    media_type: str
    body: bytes

    @property
    def detail(self) -> str:
        """The sentence of a problem document."""
        return str(json.loads(self.body)["detail"])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with default_server() as address:
        yield address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Image.fromarray(COLOURS).save(tmp_path / "photo.png")
    shutil.copy(EXAMPLES / "pipeline.json", tmp_path)
    return tmp_path


def curl(folder: Path, url: str, path: str, *arguments: str) -> Answer:
    """Call the server as curl does by itself, which accepts `*/*`."""
    done = subprocess.run(
        ["curl", "-sS", "-o", "body", "-w", "%{http_code} %{content_type}", *arguments, url + path],
        check=True, cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    status, _, media_type = done.stdout.partition(" ")
    return Answer(int(status), media_type, (folder / "body").read_bytes())


def graph(folder: Path, nodes: list[Any], outputs: list[str], sizes: list[Any] | None = None) -> str:
    """Write a graph of a picture, and return the argument of curl that sends it in the query."""
    declared = {"data_type": "UINT8", "sizes": sizes or [1, "h", "w", 3]}
    document = {"inputs": {"photo": declared}, "nodes": nodes, "outputs": {name: name for name in outputs}}
    (folder / "graph.json").write_text(json.dumps(document), "utf-8")
    return "graph@graph.json"


# ---- what comes back without Accept ----------------------------------------------------------------------------------


def test_without_accept_a_picture_comes_back_where_the_output_is_one(url: str, folder: Path):
    answer = curl(
        folder, url, "/v1/graphs", "--url-query", graph(folder, [TURNED], ["turned"]), *PNG,
        "--data-binary", "@photo.png",
    )  # fmt: skip
    assert (answer.status, answer.media_type) == (200, "image/png")
    with Image.open(folder / "body") as image:
        np.testing.assert_array_equal(np.asarray(image), COLOURS.swapaxes(0, 1))


def test_without_accept_an_array_of_numbers_comes_back_as_npy(url: str, folder: Path):
    answer = curl(folder, url, "/v1/graphs", "--url-query", "graph@pipeline.json", *PNG, "--data-binary", "@photo.png")
    assert (answer.status, answer.media_type) == (200, "application/x-npy")
    assert (npy_array(answer.body).dtype, npy_array(answer.body).shape) == (np.float32, (1, 3, 224, 224))
    path = "/v1/operators/cast?output_data_type=FLOAT32"
    answer = curl(folder, url, path, *PNG, "--data-binary", "@photo.png")
    np.testing.assert_array_equal(npy_array(answer.body), COLOURS[np.newaxis].astype(np.float32), strict=True)


@pytest.mark.parametrize("is_multipart", [False, True])
def test_without_accept_several_outputs_come_back_as_a_frame(url: str, folder: Path, *, is_multipart: bool):
    document = graph(folder, [TURNED, FLOATS], ["turned", "floats"])
    sent = ("--url-query", document, *PNG, "--data-binary", "@photo.png")
    if is_multipart:
        sent = ("-F", "graph=@graph.json", "-F", "photo=@photo.png")
    answer = curl(folder, url, "/v1/graphs", *sent)
    assert (answer.status, answer.media_type) == (200, "application/vnd.safetensors")
    head, buffers = split_frame(answer.body)
    assert (head["turned"]["dtype"], head["floats"]["dtype"]) == ("U8", "F32")
    np.testing.assert_array_equal(np.frombuffer(buffers["floats"], "<f4"), COLOURS.ravel())


def test_a_type_that_is_named_is_answered_or_refused(url: str, folder: Path):
    sent = ("--url-query", "graph@pipeline.json", *PNG, "--data-binary", "@photo.png")
    answer = curl(folder, url, "/v1/graphs", *sent, "-H", "accept: image/png")
    assert (answer.status, answer.detail.startswith("the output is float32 of shape [1, 3, 224, 224]")) == (406, True)
    answer = curl(folder, url, "/v1/graphs", *sent, "-H", "accept: image/png, application/x-npy;q=0.5")
    assert (answer.status, answer.media_type) == (200, "application/x-npy")
