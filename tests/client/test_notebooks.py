"""What notebooks show: the example runs cell by cell, and drawings are compared with layouts worked out by hand."""

from __future__ import annotations

import ast
import base64
import io
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from tests.support.live_server import live_server

from tensorpost import BufferTensorDesc, Client, Progress, ProgressBar, Result, TileOperatorDesc
from tensorpost.onnx import OnnxNode

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def shown(value: Any) -> ElementTree.Element:
    """What a notebook would show of a value; an error if it is not well-formed."""
    return ElementTree.fromstring(f"<div>{value._repr_html_()}</div>")


def texts(svg: ElementTree.Element) -> list[str]:
    return [str(each.text) for each in svg.iter("{http://www.w3.org/2000/svg}text")]


def test_the_notebook_runs_and_every_cell_shows_something_well_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    found: list[str] = []
    with live_server(TENSORPOST_BACKEND="numpy") as url:
        monkeypatch.setenv("TENSORPOST_URL", url)
        for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
            if cell["cell_type"] != "code":
                continue
            body = ast.parse("".join(cell["source"])).body
            last = body.pop() if isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, []), str(NOTEBOOK), "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)
                found.append(type(value).__name__)
                if hasattr(value, "_repr_html_"):
                    shown(value)
        names["tp"].close()

    assert found == ["BufferTensorDesc", "BufferTensorDesc", "TileOperatorDesc", "Validation", "Result", "tuple"]


@pytest.mark.parametrize(
    ("sizes", "strides", "elements", "buffer", "unused"),
    [
        # Rows that are five apart and three long: 3 and 4 are between them.
        ((2, 3), (5, 1), "0 1 2 5 6 7", "0 1 2 3 4 5 6 7", {3, 4}),
        ((2, 2), (0, 1), "0 1 0 1", "0 1", set[int]()),
        ((3,), None, "0 1 2", "0 1 2", set[int]()),
        ((2, 2), (1, 2), "0 2 1 3", "0 1 2 3", set[int]()),
    ],
)
def test_a_drawing_of_strides(
    sizes: tuple[int, ...], strides: tuple[int, ...] | None, elements: str, buffer: str, unused: set[int]
) -> None:
    drawing = shown(BufferTensorDesc(data_type="FLOAT32", sizes=sizes, strides=strides))

    said = texts(drawing)
    title = next(index for index, text in enumerate(said) if "buffer" in text)
    assert (" ".join(said[:title]), " ".join(said[title + 1 :])) == (elements, buffer)
    cells = [*drawing.iter("{http://www.w3.org/2000/svg}rect")][title:]
    assert {index for index, cell in enumerate(cells) if cell.get("fill") == "none"} == unused


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_result_shows_pictures_and_numbers_and_escapes_what_it_is_told(channels_last: bool) -> None:
    planes = np.random.default_rng(5).integers(0, 256, (1, 3, 20, 30), np.uint8)
    picture = np.moveaxis(planes, 1, -1) if channels_last else planes
    arrays, timing = {"a": picture, "<b>": np.array([1.5, np.nan])}, {"head": 1.0, "compute": 3.0}
    result = Result(arrays, "numpy", "<cpu>", timing, None)

    page = shown(result)
    image = next(page.iter("img"))
    png = base64.b64decode(str(image.get("src")).partition(",")[2])
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), np.moveaxis(planes[0], 0, -1))
    words = "".join(page.itertext())
    assert "<b>" in words
    assert "numpy, <cpu>" in words
    assert "[1.5 nan]" in words
    assert [each.get("style", "")[:11] for each in page.iter("div") if "hsl" in each.get("style", "")] == [
        "width:25.00", "width:75.00",
    ]  # fmt: skip


@pytest.mark.parametrize(("value", "words"), [(np.nan, "0 is black, 1 is white"), (5.0, "5 is black, 5 is white")])
def test_a_picture_of_equal_elements_says_what_its_grey_stands_for(value: float, words: str) -> None:
    result = Result({"a": np.full((32, 32), value, np.float32)}, "numpy", "cpu", {}, None)

    assert str(next(shown(result).iter("img")).get("title")) == words


def test_an_onnx_node_shows_its_attributes_and_tensors() -> None:
    x = np.zeros((1, 1, 2, 2), np.float32)
    node = OnnxNode.of("Resize", {"X": x, "scales": [1, 1, 2, 3]}, opset=19, mode="cubic")

    words = " ".join(shown(node).itertext())

    assert "cubic" in words
    assert "sizes (1, 1, 4, 6)" in words


def test_a_progress_bar_tells_the_rate_and_the_time_left() -> None:
    mebibyte, seconds, file = 1 << 20, iter([0.0, 1.0, 1.05, 2.0, 4.0]), io.StringIO()
    bar = ProgressBar(file, lambda: next(seconds))
    for sent, received, expected in ((0, 0, None), (10, 0, None), (10, 0, None), (10, 10, 30), (10, 30, 30)):
        whole = None if expected is None else expected * mebibyte
        bar(Progress(sent * mebibyte, 10 * mebibyte, received * mebibyte, whole))

    lines = [re.sub(r" +", " ", line).strip() for line in file.getvalue().split("\r")[1:]]
    assert lines == [
        "sending [........................] 0.0 of 10.0 MiB",
        "computing [########################] 10.0 of 10.0 MiB, 10 MiB/s",
        # 20 of 40 MiB in two seconds: 10 a second, so the other 20 take two more. The call after 0.05 s drew nothing.
        "receiving [############............] 20.0 of 40.0 MiB, 10 MiB/s, 2 s left",
        "receiving [########################] 40.0 of 40.0 MiB, 10 MiB/s",
    ]
    assert file.getvalue().endswith("\n")


def test_a_progress_bar_writes_no_carriage_return_into_a_pipe(capsys: pytest.CaptureFixture[str]):
    bar = ProgressBar()
    for received in (0, 512, 1024):
        bar(Progress(sent=0, to_send=0, received=received, to_receive=1024))

    lines = capsys.readouterr().err
    assert (lines.count("\n"), "\r" in lines) == (1, False)


def test_a_validation_prints_as_one_short_line():
    with live_server(TENSORPOST_BACKEND="numpy") as url, Client(url) as tp:
        said = tp.validate(TileOperatorDesc.of(BufferTensorDesc.packed("FLOAT32", (2, 3)), (1, 2)))

    levels = f"feature level {said.feature_level}, lowest {said.lowest_feature_level}"
    assert repr(said) == f"<Validation of TILE: valid, {levels}, 24 bytes in, 48 bytes out>"
