"""Pictures as inputs of graphs and models, through the SDK and on the command line, against the real server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.command_line import invoke

from tensorpost import Client
from tensorpost.problems import InvalidDescriptor, InvalidParameter

Image = pytest.importorskip("PIL.Image", reason="the pictures of these tests are made by Pillow")

COLOURS = np.random.default_rng(20_261_129).integers(0, 256, (8, 6, 3), np.uint8)
CLEAR = np.dstack([COLOURS, COLOURS[..., 0]])
RGBA = "'photo' is a picture of 4 channels (RGBA), and the input of the {} has 3; convert the picture first, "
RGBA += 'as Pillow does: image.convert("RGB")'


def turned(*sizes: int | str) -> dict[str, Any]:
    """A graph that exchanges rows and columns of a picture of these sizes."""
    perm = [0, 2, 1, 3] if len(sizes) == 4 else [1, 0, 2]
    node = {"name": "y", "op_type": "Transpose", "inputs": "photo", "attributes": {"perm": perm}}
    return {"inputs": {"photo": {"data_type": "UINT8", "sizes": [*sizes]}}, "nodes": [node], "outputs": {"y": "y"}}


BATCH, SINGLE = turned(1, "h", "w", 3), turned("h", "w", 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, pixels in (("photo", COLOURS), ("clear", CLEAR), ("grey", COLOURS[..., 0])):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    (tmp_path / "graph.json").write_text(json.dumps(BATCH))
    return tmp_path


def forms(path: Path) -> list[Any]:
    """A picture as its path, the bytes of its file, and Pillow's object."""
    return [str(path), path.read_bytes(), Image.open(path)]


Run = Callable[[Client, Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
RUNS: Mapping[str, Run] = {
    "run_graph": lambda tp, graph, inputs: tp.run_graph(graph, inputs),
    "map": lambda tp, graph, inputs: next(iter(tp.map(graph, [inputs]))),
    "stored": lambda tp, graph, inputs: tp.run_graph(tp.store(graph, "pictures"), inputs),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_picture_has_the_axes_that_the_graph_declares(server_url: str, folder: Path, run: Run) -> None:
    with Client(server_url) as tp:
        for picture in forms(folder / "photo.png"):
            y = run(tp, BATCH, {"photo": picture})["y"]
            np.testing.assert_array_equal(y, COLOURS.swapaxes(0, 1)[np.newaxis], strict=True)
            y = run(tp, SINGLE, {"photo": picture})["y"]
            np.testing.assert_array_equal(y, COLOURS.swapaxes(0, 1), strict=True)
        for picture in forms(folder / "grey.png"):
            assert run(tp, turned(1, "h", "w", 1), {"photo": picture})["y"].shape == (1, 6, 8, 1)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_channels_that_do_not_fit_are_named(server_url: str, folder: Path, run: Run) -> None:
    with Client(server_url) as tp:
        for graph in (BATCH, SINGLE):
            for picture in forms(folder / "clear.png"):
                with pytest.raises(InvalidDescriptor) as error:
                    run(tp, graph, {"photo": picture})
                assert RGBA.format("graph") in error.value.detail
                assert len(error.value.violations) == 1
            rgb = Image.open(folder / "clear.png").convert("RGB")
            assert run(tp, graph, {"photo": rgb})["y"].size == COLOURS.size


def test_a_picture_beside_other_inputs(server_url: str, folder: Path) -> None:
    graph = turned("h", "w", 3)
    graph["inputs"]["by"] = {"data_type": "UINT8", "sizes": [1]}
    graph["nodes"].append({"name": "z", "op_type": "Max", "inputs": ["y", "by"]})
    graph["outputs"] = {"z": "z"}
    with Client(server_url) as tp:
        for picture in forms(folder / "photo.png"):
            z = tp.run_graph(graph, {"photo": picture, "by": np.array([9], np.uint8)})["z"]
            np.testing.assert_array_equal(z, np.maximum(COLOURS.swapaxes(0, 1), 9))


@pytest.mark.parametrize("sizes", ["n, h, w, 3", "h, w, 3"])
def test_a_model_takes_a_picture(server_url: str, folder: Path, sizes: str) -> None:
    onnx = pytest.importorskip("onnx", reason="models for this test are made by the package onnx")
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        m (uint8[{sizes}] photo) => (uint8[{sizes}] y) {{ y = Abs(photo) }}"""
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    with Client(server_url) as tp:
        for picture in forms(folder / "photo.png"):
            y = tp.run_model(folder / "model.onnx", {"photo": picture})["y"]
            np.testing.assert_array_equal(y.reshape(COLOURS.shape), COLOURS)
            assert y.ndim == sizes.count(",") + 1
        for picture in forms(folder / "clear.png"):
            with pytest.raises((InvalidParameter, InvalidDescriptor)) as error:
                tp.run_model(folder / "model.onnx", {"photo": picture})
            assert RGBA.format("model") in error.value.detail
    done = invoke("model", "run", "model.onnx", "photo=photo.png", "-o", "y=y.npy", "--url", server_url, cwd=folder)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(folder / "y.npy").reshape(COLOURS.shape), COLOURS)
    done = invoke("model", "run", "model.onnx", "photo=clear.png", "-o", "y=y.npy", "--url", server_url, cwd=folder)
    assert (done.returncode, RGBA.format("model") in " ".join(done.stderr.split())) == (1, True)


def test_on_the_command_line(server_url: str, folder: Path) -> None:
    at = ("--url", server_url)
    assert invoke("graph", "store", "graph.json", "--name", "turned", *at, cwd=folder).returncode == 0
    for command in (("run", "graph.json"), ("call", "turned")):
        done = invoke("graph", *command, "photo=clear.png", "-o", "y=y.png", *at, cwd=folder)
        assert (done.returncode, RGBA.format("graph") in " ".join(done.stderr.split())) == (1, True), done.stderr
        done = invoke("graph", *command, "photo=photo.png", "-o", "y=y.png", *at, cwd=folder)
        assert done.returncode == 0, done.stderr
        np.testing.assert_array_equal(np.asarray(Image.open(folder / "y.png")), COLOURS.swapaxes(0, 1))
    done = invoke("graph", "check", "graph.json", "photo=clear.png", cwd=folder)
    assert (done.returncode, RGBA.format("graph") in " ".join(done.stderr.split())) == (1, True)


def test_an_array_is_what_it_is(server_url: str) -> None:
    """Only pictures get a batch; of an array without one, the graph says so."""
    with (
        Client(server_url) as tp,
        pytest.raises(InvalidDescriptor, match="4 dimensions in the graph, and 3 dimensions"),
    ):
        tp.run_graph(BATCH, {"photo": COLOURS})
