"""What a newcomer tries with curl and nothing but the README, against a real server: pictures, graphs and models."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image
from tests.support.command_line import invoke
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


# ---- pictures that do not fit ----------------------------------------------------------------------------------------

PIPELINE = ("--url-query", "graph@pipeline.json", *PNG, "--data-binary")
TO_RGB = 'convert the picture first, as Pillow does: image.convert("RGB")'


@pytest.mark.parametrize("name", ["clear.png", "grey.png"])
def test_channels_that_do_not_fit_are_named(url: str, folder: Path, name: str):
    channels = {
        "clear.png": ("4 channels (RGBA)", COLOURS[..., [0, 1, 2, 0]]),
        "grey.png": ("1 channel (grey)", COLOURS[..., 0]),
    }
    words, pixels = channels[name]
    Image.fromarray(pixels).save(folder / name)
    curl(folder, url, "/v1/graphs/small", "-T", "pipeline.json")
    sent = [
        curl(folder, url, "/v1/graphs", *PIPELINE, f"@{name}"),
        curl(folder, url, "/v1/graphs", "-F", "graph=@pipeline.json", "-F", f"photo=@{name}"),
        curl(folder, url, "/v1/graphs/small", "-F", f"photo=@{name}"),
        curl(folder, url, "/v1/graphs/small", *PNG, "--data-binary", f"@{name}"),
    ]
    for answer in sent:
        assert answer.status == 422
        said = f"'photo' is a picture of {words}, and the input of the graph has 3; {TO_RGB}"
        assert answer.detail == f"$.graph.inputs.photo.sizes[3]: {said}"
    Image.open(folder / name).convert("RGB").save(folder / "rgb.png")
    assert curl(folder, url, "/v1/graphs", *PIPELINE, "@rgb.png").status == 200


def test_a_graph_that_declares_three_dimensions_takes_a_picture_without_a_batch(url: str, folder: Path):
    node = {**TURNED, "attributes": {"perm": [1, 0, 2]}}
    document = graph(folder, [node], ["turned"], ["h", "w", 3])
    for sent in (
        ("--url-query", document, *PNG, "--data-binary", "@photo.png"),
        ("-F", "graph=@graph.json", "-F", "photo=@photo.png", "-H", "accept: image/png"),
    ):
        assert curl(folder, url, "/v1/graphs", *sent).media_type == "image/png"
        with Image.open(folder / "body") as image:
            np.testing.assert_array_equal(np.asarray(image), COLOURS.swapaxes(0, 1))


def test_the_content_type_that_a_graph_would_take_is_named_and_works(url: str, folder: Path):
    declared = {"data_type": "FLOAT32", "sizes": [1, 3, "h", "w"]}
    node = {"name": "y", "op_type": "Neg", "inputs": "x"}
    (folder / "graph.json").write_text(json.dumps({"inputs": {"x": declared}, "nodes": [node], "outputs": {"y": "y"}}))
    sent = ("--url-query", "graph@graph.json", "--data-binary", "@photo.png")
    answer = curl(folder, url, "/v1/graphs", *sent, *PNG)
    found = re.search(r"with curl (-H) '([^']*)'", answer.detail)
    assert answer.status == 422
    assert found is not None
    answer = curl(folder, url, "/v1/graphs", *sent, *found.groups(), "-H", "accept: application/x-npy")
    expected = -np.moveaxis(COLOURS, 2, 0)[np.newaxis].astype(np.float64) / 255
    np.testing.assert_allclose(npy_array(answer.body), expected, rtol=1e-6)


# ---- models ----------------------------------------------------------------------------------------------------------


def model(folder: Path, text: str) -> None:
    """Write the model that computes -x, or |x| of uint8."""
    parser = pytest.importorskip("onnx", reason="models for this test are made by the package onnx").parser
    kind, sizes = text.rstrip("]").split("[")
    operator = "Neg" if kind == "float" else "Abs"
    source = f"""<ir_version: 8, opset_import: ["": 17]>
        m ({kind}[{sizes}] x) => ({kind}[{sizes}] y) {{ y = {operator}(x) }}"""
    (folder / "model.onnx").write_bytes(parser.parse_model(source).SerializeToString())


def model_calls(folder: Path, url: str, file: str, part: str = "") -> list[Answer]:
    """The model with a file, sent with it and stored, as a part and as the body."""
    curl(folder, url, "/v1/graphs/model", "-T", "model.onnx")
    return [
        curl(folder, url, "/v1/onnx", "-F", "model=@model.onnx", "-F", f"x=@{file}{part}"),
        curl(folder, url, "/v1/graphs/model", "-F", f"x=@{file}{part}"),
    ]


@pytest.mark.parametrize("sizes", ["n, h, w, 3", "1, 8, 6, 3", "h, w, 3"])
def test_a_model_of_bytes_channels_last_takes_a_photograph(url: str, folder: Path, sizes: str):
    Image.fromarray(COLOURS).save(folder / "photo.jpg")
    model(folder, f"uint8[{sizes}]")
    with Image.open(folder / "photo.jpg") as image:
        photos = {"photo.png": COLOURS, "photo.jpg": np.asarray(image)}
    for name, pixels in photos.items():
        for answer in model_calls(folder, url, name):
            assert answer.status == 200, answer.body
            np.testing.assert_array_equal(npy_array(answer.body), pixels.reshape(npy_array(answer.body).shape))
            assert npy_array(answer.body).ndim == sizes.count(",") + 1
    answer = curl(folder, url, "/v1/graphs/model", *PNG, "--data-binary", "@photo.png")
    assert (answer.status, answer.media_type) == (200, "image/png")


def test_a_model_of_another_number_of_channels_says_so(url: str, folder: Path):
    Image.fromarray(COLOURS[..., [0, 1, 2, 0]]).save(folder / "clear.png")
    model(folder, "uint8[n, h, w, 3]")
    for answer in model_calls(folder, url, "clear.png"):
        assert answer.status == 400
        assert answer.detail == f"'x' is a picture of 4 channels (RGBA), and the input of the model has 3; {TO_RGB}"


def test_a_model_of_floats_channels_first_names_the_content_type_that_works(url: str, folder: Path):
    model(folder, "float[n, 3, h, w]")
    expected = -np.moveaxis(COLOURS, 2, 0)[np.newaxis].astype(np.float64) / 255
    for answer in model_calls(folder, url, "photo.png"):
        found = re.search(r"with curl -F 'x=@FILE(;[^']*)'", answer.detail)
        assert answer.status == 400
        assert found is not None, answer.detail
        for again in model_calls(folder, url, "photo.png", found[1]):
            np.testing.assert_allclose(npy_array(again.body), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "options"),
    [("n, 3, 16, 16", "--size 16"), ("1, 3, 16, 12", "--size 12x16"), ("1, 16, 12, 3", "--layout")],
)
def test_a_model_of_another_size_names_the_command_that_makes_its_input(
    url: str, folder: Path, sizes: str, options: str
):
    model(folder, f"float[{sizes}]")
    for answer in model_calls(folder, url, "photo.png"):
        found = re.search(r"by: tensorpost (preprocess FILE -o x.npy[^(]*) \(", answer.detail)
        assert answer.status == 400
        assert found is not None, answer.detail
        assert options in found[1]
        done = invoke(*found[1].replace("FILE", "photo.png").split(), "--url", url, cwd=folder)
        assert done.returncode == 0, done.stderr
        for again in model_calls(folder, url, "x.npy"):
            np.testing.assert_array_equal(npy_array(again.body), -np.load(folder / "x.npy"))


# ---- held tensors as inputs of models --------------------------------------------------------------------------------

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
PRODUCT = """<ir_version: 8, opset_import: ["": 17]>
    m (float[n, k] x, float[n, j] w) => (float[n, k] y, float[n, k] minus) { y = Mul(x, w) minus = Neg(x) }"""
RESHAPE = """<ir_version: 8, opset_import: ["": 17]>
    m (float[n, k] x, int64[r] shape) => (float[a, b] y) { y = Reshape(x, shape) }"""


@pytest.fixture
def held(url: str, folder: Path) -> Path:
    """A folder with the model of a product and a file of its input, which the server holds as well."""
    parser = pytest.importorskip("onnx", reason="models for this test are made by the package onnx").parser
    (folder / "model.onnx").write_bytes(parser.parse_model(PRODUCT).SerializeToString())
    (folder / "reshape.onnx").write_bytes(parser.parse_model(RESHAPE).SerializeToString())
    np.save(folder / "x.npy", X)
    np.save(folder / "shape.npy", np.array([3, 2]))
    for name in ("x", "shape"):
        sent = ("-T", f"{name}.npy", "-H", "content-type: application/x-npy")
        assert curl(folder, url, f"/v1/tensors/held-{name}?replace=true", *sent).status in (200, 201)
    return folder


def test_inputs_of_a_model_in_the_body_may_be_held(url: str, held: Path):
    sent = ("-g", "-F", "model=@model.onnx")
    answer = curl(held, url, "/v1/onnx?outputs=y&x=@held-x&w=@held-x[:,1:2]", *sent)
    np.testing.assert_array_equal(npy_array(answer.body), X * X[:, 1:2], strict=True)
    answer = curl(held, url, "/v1/onnx?outputs=y&x=@held-x", *sent, "-F", "w=@x.npy")
    np.testing.assert_array_equal(npy_array(answer.body), X * X, strict=True)
    answer = curl(held, url, "/v1/onnx?outputs=minus&x=@held-x&w=@held-x", *sent)  # which needs no w
    np.testing.assert_array_equal(npy_array(answer.body), -X, strict=True)
    answer = curl(held, url, "/v1/onnx?x=@held-x&shape=@held-shape", "-F", "model=@reshape.onnx")
    np.testing.assert_array_equal(npy_array(answer.body), X.reshape(3, 2), strict=True)
    answer = curl(held, url, "/v1/onnx?outputs=y&x=@held-x&w=@held-x&keep=product&replace=true", *sent)
    assert answer.status == 200, answer.body
    answer = curl(held, url, "/v1/tensors/product")
    np.testing.assert_array_equal(npy_array(answer.body), X * X, strict=True)


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("X=@held-x&w=@held-x", 400, "the model has no input 'X'; did you mean 'x'?; its inputs: x, w"),
        ("input=@held-x&w=@held-x", 400, "the model has no input 'input'; its inputs: x, w"),
        ("x=@held-x", 400, "the model's input 'w' is missing"),
        ("x=@held-x&w=@none", 404, "'none'"),
        ("x=@held-x&w=@held-shape", 400, "int64 of shape [2] was sent"),
    ],
)
def test_a_held_input_that_a_model_has_not_is_refused_with_those_that_it_has(
    url: str, held: Path, query: str, status: int, said: str
):
    answer = curl(held, url, f"/v1/onnx?{query}", "-F", "model=@model.onnx")
    assert (answer.status, said in answer.detail) == (status, True), answer.detail


def test_a_held_input_that_is_in_the_body_too_is_refused(url: str, held: Path):
    answer = curl(held, url, "/v1/onnx?x=@held-x&w=@held-x", "-F", "model=@model.onnx", "-F", "x=@x.npy")
    assert (answer.status, answer.detail) == (400, "the input 'x' is in the body, and refers to a held tensor as well")


def test_a_held_input_that_a_stored_graph_has_not_is_refused_with_those_that_it_has(url: str, held: Path):
    curl(held, url, "/v1/graphs/product", "-T", "model.onnx")
    answer = curl(held, url, "/v1/graphs/product?X=@held-x&w=@held-x", "-X", "POST")
    assert (answer.status, "takes the tensors 'x', 'w'" in answer.detail) == (400, True), answer.detail
