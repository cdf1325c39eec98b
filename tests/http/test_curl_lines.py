"""The shell lines of pages in docs, run against a server, and what they wrote."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.support.live_server import default_server

DOCS = Path(__file__).parents[2] / "docs"
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="the lines are for curl, which is not installed")


def run_lines(page: str, folder: Path, section: str = "", language: str = "sh") -> None:
    """Run all shell lines of a page, or of a section of it, in a folder."""
    text = DOCS.joinpath(page).read_text("utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    commands = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    with default_server() as url:
        for block in blocks:
            script = block.replace("curl ", "curl -sS ").replace("localhost:8000", url.removeprefix("http://"))
            done = subprocess.run(
                ["sh", "-ec", script], check=False, cwd=folder, capture_output=True, text=True, timeout=60, env=commands
            )
            assert done.returncode == 0, (block, done.stdout, done.stderr)


@needs_curl
def test_the_curl_lines_of_the_page_work(tmp_path: Path):
    pixels = np.random.default_rng(13).integers(0, 256, (6, 4, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    run_lines("http.md", tmp_path)
    assert (tmp_path / "tiled.bin").read_bytes() == (tmp_path / "joined.bin").read_bytes() == bytes(48)
    assert (tmp_path / "rest.bin").read_bytes() == bytes(24)
    with Image.open(tmp_path / "big.webp") as image:
        assert (image.format, image.size) == ("WEBP", (8, 12))


@needs_curl
def test_a_model_runs_on_a_photograph(tmp_path: Path):
    onnx = pytest.importorskip("onnx", reason="models for this test are made by the package onnx")
    pixels = np.broadcast_to(np.array([124, 116, 104], np.uint8), (60, 80, 3))
    Image.fromarray(np.ascontiguousarray(pixels)).save(tmp_path / "photo.jpg", quality=100, subsampling=0)
    for name, sizes in (("model", "n, 3, 224, 224"), ("any-size", "n, 3, h, w")):
        text = f"""<ir_version: 8, opset_import: ["": 17]> example (float[{sizes}] x) => (float[n, 3] y)
            {{ y = ReduceMean <axes = [2, 3], keepdims = 0> (x) }}"""
        onnx.save(onnx.parser.parse_model(text), tmp_path / f"{name}.onnx")
    (tmp_path / "examples").mkdir()
    shutil.copy(DOCS.parent / "examples" / "pipeline.json", tmp_path / "examples")

    run_lines("how-to.md", tmp_path, "Run a model on a photograph")

    assert np.load(tmp_path / "x.npy").shape == (1, 3, 224, 224)
    means = np.load(tmp_path / "y.npy")[0] * 255  # of the model of any size, which comes last
    np.testing.assert_allclose(means, [124, 116, 104], atol=2)


@needs_curl
def test_a_tensor_with_strides_is_sent_as_its_buffer(tmp_path: Path):
    np.save(tmp_path / "rows.npy", np.array([1, 2, 3, 0, 4, 5, 6], np.float32).view(np.uint8))

    run_lines("wire.md", tmp_path)

    assert np.load(tmp_path / "tiled.npy").tolist() == [[1, 2, 3, 1, 2, 3], [4, 5, 6, 4, 5, 6]]


@needs_curl
def test_a_tensor_is_held_read_and_deleted(tmp_path: Path):
    onnx = pytest.importorskip("onnx", reason="models for this test are made by the package onnx")
    mask = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "mask.npy", mask)
    text = '<ir_version: 8, opset_import: ["": 17]> m (float[n, k] x) => (float[n, k] y) { y = Neg(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")

    run_lines("tensors.md", tmp_path)

    assert np.load(tmp_path / "tiled.npy").tolist() == np.tile(mask[:1], (2, 2)).tolist()
    assert np.load(tmp_path / "y.npy").tolist() == (-mask).tolist()


@needs_curl
def test_an_error_is_written_where_the_result_would_be(tmp_path: Path):
    run_lines("errors.md", tmp_path)

    assert json.loads((tmp_path / "y.npy").read_text())["status"] == 422


@needs_curl
def test_a_graph_is_called_and_stored(tmp_path: Path):
    pixels = np.random.default_rng(14).integers(0, 256, (480, 640, 3), np.uint8)
    shutil.copytree(DOCS.parent / "examples", tmp_path / "examples")
    (tmp_path / "demo-output").mkdir()
    Image.fromarray(pixels).save(tmp_path / "demo-output" / "before.png")

    run_lines("graphs.md", tmp_path, language="bash")

    assert np.load(tmp_path / "image.npy").shape == (1, 3, 224, 224)
    assert (tmp_path / "pipeline.svg").read_text().startswith("<svg")


@needs_curl
def test_a_model_is_run_and_stored(tmp_path: Path):
    onnx = pytest.importorskip("onnx", reason="models for this test are made by the package onnx")
    text = '<ir_version: 8, opset_import: ["": 17]> m (float[n, 3] x) => (float[n, 3] y) { s = Mul(x, x) y = Relu(s) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")

    run_lines("models.md", tmp_path, language="bash")

    assert np.load(tmp_path / "y.npy").tolist() == [[1, 4, 9]]


COMMAND = re.compile(r"(?<![\w-])curl (?:\\\n|[^\n`])*")
TEXTS = [
    *DOCS.glob("*.md"), DOCS.parent / "README.md", *DOCS.parent.glob("examples/*"),
    *[path for name in ("app", "client") for kind in ("py", "js") for path in DOCS.parent.glob(f"{name}/**/*.{kind}")],
]  # fmt: skip


def test_every_command_that_writes_a_file_fails_where_it_is_refused():
    """Else a problem document stands in the file of the result, and the exit status is 0."""
    found = [(path.name, line[0]) for path in TEXTS for line in COMMAND.finditer(path.read_text("utf-8"))]
    writing = [each for each in found if re.search(r" -o |--output", each[1])]
    assert len(writing) > 20
    assert [each for each in writing if not re.search(r" --fail\b| -f ", each[1])] == []
