"""Graphs through the clients and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from tensorpost import from_dml_graph, to_dml_graph
from tensorpost.command_line.cli import app as command_line
from tensorpost.problems import InvalidDescriptor, InvalidJson, InvalidParameter

GRAPH: dict[str, Any] = {
    "inputs": {"photo": {"data_type": "UINT8", "sizes": [1, "h", "w", 3]}},
    "nodes": [
        {"name": "small", "type": "RESAMPLE", "inputs": "photo",
         "desc": {"InterpolationMode": "NEAREST_NEIGHBOR", "Scales": [1, 0.5, 0.5, 1]}},
        {"name": "f", "op_type": "Cast", "inputs": "small", "attributes": {"to": "float32"}},
        {"name": "chw", "op_type": "Transpose", "inputs": "f", "attributes": {"perm": [0, 3, 1, 2]}},
    ],
    "outputs": {"image": "chw", "small": "small"},
}  # fmt: skip
PHOTO = np.random.default_rng(1).integers(0, 255, (1, 4, 6, 3), np.uint8)
SMALL = PHOTO[:, ::2, ::2]  # halves are rounded down


def test_arrays_go_in_and_come_back_by_name(connect: Callable[..., Any], server_url: str, tmp_path: Path):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(GRAPH))
    tp = connect(server_url)
    found = tp.run_graph(GRAPH, {"photo": PHOTO})
    again = tp.run_graph(path, {"photo": PHOTO}, backend="numpy")
    out = np.empty((1, 2, 3, 3), np.uint8)
    tp.run_graph(str(path), {"photo": PHOTO}, out={"small": out})

    assert list(found) == ["image", "small"]
    np.testing.assert_array_equal(found["small"], SMALL)
    np.testing.assert_array_equal(found["image"], SMALL.transpose(0, 3, 1, 2).astype(np.float32))
    np.testing.assert_array_equal(again["image"], found["image"])
    np.testing.assert_array_equal(out, SMALL)


def test_arrays_of_any_layout_and_byte_order_are_sent_as_they_are_meant(connect: Callable[..., Any], server_url: str):
    graph = {"inputs": {"x": {}}, "nodes": [{"name": "y", "op_type": "Neg", "inputs": "x"}], "outputs": {"y": "y"}}
    x = np.arange(6, dtype=">f4").reshape(2, 3)
    tp = connect(server_url)
    for given in (x, x.T, x[:, ::2]):
        np.testing.assert_array_equal(tp.run_graph(graph, {"x": given})["y"], -given)


def test_a_number_stays_without_dimensions(connect: Callable[..., Any], server_url: str):
    graph = {"inputs": {"x": {}}, "nodes": [{"name": "y", "op_type": "Neg", "inputs": "x"}], "outputs": {"y": "y"}}

    assert connect(server_url).run_graph(graph, {"x": np.float32(3)})["y"].shape == ()


def test_a_graph_is_validated(connect: Callable[..., Any], server_url: str):
    tp, sizes = connect(server_url), {"photo": {"data_type": "UINT8", "sizes": [1, 4, 6, 3]}}

    found = tp.validate({**GRAPH, "inputs": sizes})

    assert (found.operator, found.input_bytes) == (None, PHOTO.nbytes)
    assert found.document["nodes"]["chw"][0]["shape"] == [1, 3, 2, 3]
    assert "lowest feature level" in found._repr_html_()
    with pytest.raises(InvalidDescriptor, match=r"\$\.inputs\.photo"):
        tp.validate(GRAPH)


def test_outputs_are_streamed_one_after_the_other(connect: Callable[..., Any], server_url: str):
    tp = connect(server_url)
    blocks = [
        (block.output, block.start, bytes(block.data))
        for block in tp.stream_graph(GRAPH, {"photo": PHOTO}, block_bytes=50)
    ]

    assert [name for name, _, _ in blocks] == ["image", "image", "small"]
    assert b"".join(data for name, _, data in blocks if name == "small") == SMALL.tobytes()


def test_what_is_wrong_is_said_before_anything_is_sent():
    from tensorpost import Client

    with Client("http://127.0.0.1:1") as tp:
        with pytest.raises(InvalidDescriptor, match="was not sent"):
            tp.run_graph(GRAPH, {"foto": PHOTO})
        with pytest.raises(InvalidParameter, match="a mapping from the names"):
            tp.run_graph(GRAPH, PHOTO)  # pyright: ignore[reportArgumentType] # what is tried
        for wrong in (np.array(["a"]), np.array([1], "M8[s]")):
            with pytest.raises(InvalidParameter, match="graphs compute numbers and booleans"):
                tp.run_graph(GRAPH, {"photo": wrong})
        with pytest.raises(InvalidParameter, match="a dict, or the path"):
            tp.run_graph(7, {"photo": PHOTO})  # pyright: ignore[reportArgumentType] # what is tried
        with pytest.raises(FileNotFoundError):
            tp.run_graph("no such file", {"photo": PHOTO})


def test_a_file_that_is_no_json_is_named(tmp_path: Path):
    from tensorpost import Client

    path = tmp_path / "graph.json"
    path.write_text("{")
    with Client("http://127.0.0.1:1") as tp, pytest.raises(InvalidJson, match=r"graph\.json"):
        tp.run_graph(path, {})


def ran(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(command_line, ["graph", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.json").write_text(json.dumps(GRAPH))
    np.save("photo.npy", PHOTO)
    return tmp_path


def test_the_command_writes_a_file_for_each_output(server_url: str, folder: Path):
    files = ("-o", "image=image.npy", "-o", "small=small.png")

    assert ran("run", "graph.json", "photo=photo.npy", *files, "--url", server_url)[0] == 0
    assert (
        ran("run", "graph.json", "photo=small.png", "-o", "image=b.npy", "-o", "small=b.npy", "--url", server_url)[0]
        == 0
    )

    np.testing.assert_array_equal(np.load("image.npy"), SMALL.transpose(0, 3, 1, 2).astype(np.float32))
    assert np.load("b.npy").shape[0] == 1, "a picture is a batch of one here"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["photo=photo.npy", "-o", "small=a.npy"], "the graph has the outputs image, small"),
        (["photo.npy", "-o", "small=a.npy"], "names no file; write NAME=FILE"),
        (["photo=photo.npy", "photo=photo.npy", "-o", "small=a.npy"], "has two files"),
        (["photo=photo.npy", "-o", "small=a.npy", "-o", "image=a.png"], "write .npy"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_the_command_says_what_to_change(arguments: list[str], message: str):
    code, _, said = ran("run", "graph.json", *arguments, "--url", "http://127.0.0.1:1")

    assert code == 1
    assert message in said


@pytest.mark.usefixtures("folder")
def test_the_command_for_operators_names_the_one_for_graphs():
    result = CliRunner().invoke(command_line, ["validate", "graph.json"])

    assert result.exit_code == 1
    assert "tensorpost graph check graph.json" in " ".join(result.stderr.split())


@pytest.mark.usefixtures("folder")
def test_a_graph_is_checked_without_a_server():
    code, said, _ = ran("check", "graph.json", "photo=photo.npy")
    refused, _, why = ran("check", "graph.json")

    assert code == 0
    assert "Transpose-25  float32  1x3x2x3" in said
    assert refused == 1
    assert "$.inputs.photo" in why


# ---- DirectML's structs, and pictures of graphs ----------------------------------------------------------------------

NUMBERS = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
BOUNDED: dict[str, Any] = {
    "inputs": {"x": {"data_type": "FLOAT32", "sizes": [2, 3]}},
    "constants": {"half": {"dtype": "F32", "shape": [1], "data": [0.5]}},
    "nodes": [
        {"name": "y", "op_type": "Relu", "inputs": "x"},
        {"name": "z", "op_type": "Mul", "inputs": ["y", "half"]},
    ],
    "outputs": {"z": "z", "y": "y"},
}


def test_structs_of_directml_are_run_streamed_and_validated(connect: Callable[..., Any], server_url: str):
    structs = to_dml_graph(BOUNDED)
    tp = connect(server_url)
    found = tp.run_graph(structs, {"input_0": NUMBERS})
    blocks = [*tp.stream_graph(structs, {"input_0": NUMBERS})]

    assert [*found] == ["output_0", "output_1"]
    np.testing.assert_array_equal(found["output_0"], np.maximum(NUMBERS, 0) / 2)
    np.testing.assert_array_equal(found["output_1"], np.maximum(NUMBERS, 0))
    assert b"".join([block.data for block in blocks]) == found["output_0"].tobytes() + found["output_1"].tobytes()
    assert tp.validate(structs).lowest_feature_level is not None
    structs["IntermediateEdges"][0]["Desc"]["ToNodeInputIndex"] = 5
    with pytest.raises(InvalidDescriptor, match=r"IntermediateEdges\[0\].Desc.ToNodeInputIndex"):
        tp.run_graph(structs, {"input_0": NUMBERS})
    with pytest.raises(InvalidDescriptor, match="ToNodeInputIndex"):
        tp.validate(structs)


def test_structs_and_names_are_printed_from_each_other(tmp_path: Path):
    source, structs, again = tmp_path / "a.json", tmp_path / "dml.json", tmp_path / "again.json"
    source.write_text(json.dumps(BOUNDED))
    run = CliRunner().invoke
    assert run(command_line, ["graph", "to-dml", str(source), "-o", str(structs)]).exit_code == 0
    assert json.loads(structs.read_text()) == to_dml_graph(BOUNDED)
    assert run(command_line, ["graph", "from-dml", str(structs), "-o", str(again)]).exit_code == 0
    assert json.loads(again.read_text()) == from_dml_graph(structs)
    printed = run(command_line, ["graph", "from-dml", str(structs)])
    assert json.loads(printed.stdout) == from_dml_graph(structs)


def test_a_graph_is_shown_as_a_table_and_as_a_picture(tmp_path: Path):
    source, picture, photo = tmp_path / "a.json", tmp_path / "a.svg", tmp_path / "photo.npy"
    source.write_text(json.dumps(GRAPH))
    np.save(photo, PHOTO)
    result = CliRunner().invoke(command_line, ["graph", "show", str(source), f"photo={photo}"])
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["input", "photo", "uint8", "1x4x6x3"] in rows
    assert ["RESAMPLE", "small", "photo", "uint8", "1x2x3x3"] in rows
    assert ["output", "image", "chw", "float32", "1x3x2x3"] in rows
    escaped = json.loads(json.dumps(BOUNDED).replace('"y"', '"<&y"'))
    source.write_text(json.dumps(escaped))
    assert CliRunner().invoke(command_line, ["graph", "show", str(source), "-o", str(picture)]).exit_code == 0
    root = ElementTree.fromstring(picture.read_text())
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    boxes, lines = (len([*root.iter(f"{{http://www.w3.org/2000/svg}}{tag}")]) for tag in ("rect", "path"))
    assert {"x", "half", "<&y: Relu-14", "z: Mul-14", "float32 2x3"} <= set(texts)
    assert (boxes, lines) == (6, 5)  # an input, a constant, two nodes, two outputs; each reads one, z two

    refused = CliRunner().invoke(command_line, ["graph", "show", str(source), "-o", str(tmp_path / "graph.png")])
    assert refused.exit_code != 0
    assert "write a name that ends in .svg" in " ".join(refused.output.split())
    assert not (tmp_path / "graph.png").exists()
    refused = CliRunner().invoke(command_line, ["graph", "show", str(tmp_path / "none.json")])
    assert refused.exit_code != 0
    assert "none.json" in refused.output
