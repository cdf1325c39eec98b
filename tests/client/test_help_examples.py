"""The example at the end of each command's help, run as it is printed, in a folder with the files that it names."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.support.command_line import invoke

Image = pytest.importorskip("PIL.Image", reason="the pictures of these tests are made by Pillow")

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS = [
    "tile", "resample", "preprocess", "run", "onnx", "operators", "validate", "graph run", "graph check", "graph show",
    "graph to-dml", "graph from-dml", "graph store", "graph call", "graph list", "graph delete", "model run",
    "model check", "model show", "tensor put", "tensor get", "tensor list", "tensor delete",
]  # fmt: skip
"""In an order in which each finds what those before it wrote or stored."""

RESULTS = {
    "cats.png", "big.png", "batch.npy", "joined.npy", "y.npy", "image.npy", "pipeline.svg", "dml.json", "graph.json",
    "model.svg", "slice.npy",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A clone's folder `examples`, and the files that the examples name."""
    onnx = pytest.importorskip("onnx", reason="models for this test are made by the package onnx")
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    pixels = np.random.default_rng(20_261_130).integers(0, 256, (24, 36, 3), np.uint8)
    for name in ("cat.png", "photo.png", "one.jpg", "two.jpg"):
        Image.fromarray(pixels).save(tmp_path / name)
    for name, sizes in {"a": (2, 3), "b": (2, 3), "x": (1, 3, 4, 4), "mask": (2, 3), "volume": (2, 130, 3)}.items():
        np.save(tmp_path / f"{name}.npy", np.ones(sizes, np.float32))
    text = """<ir_version: 8, opset_import: ["": 17]>
        example (float[n, 3, h, w] x) => (float[n, 3, h, w] y) { y = Neg(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    desc = {"InputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 3]}, "Repeats": [1, 1, 1, 2]}
    (tmp_path / "tile.json").write_text(json.dumps({"type": "TILE", "desc": desc}))
    return tmp_path


def example_of(command: str) -> list[str]:
    """The arguments of the example that a command's help ends with."""
    shown = invoke(*command.split(), "--help", env={"NO_COLOR": "1"}).stdout
    _, found, example = shown.partition("Example: tensorpost ")
    assert found, shown
    return shlex.split(example)


def test_each_example_works_as_it_is_printed(server_url: str, folder: Path) -> None:
    at = {"TENSORPOST_URL": server_url}
    assert invoke("tensor", "put", "volume.npy", "volume", cwd=folder, env=at).returncode == 0
    for command in COMMANDS:
        words = example_of(command)
        files = [
            [str(each.relative_to(folder)) for each in folder.glob(word)] if "*" in word else [word] for word in words
        ]
        done = invoke(*[word for each in files for word in each], cwd=folder, env=at)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert words[: len(command.split())] == command.split()
    assert {name for name in RESULTS if not (folder / name).exists()} == set()
    assert np.load(folder / "image.npy").shape == (1, 3, 224, 224)
