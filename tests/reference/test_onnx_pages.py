"""The pages of ONNX's operators: what the schema has, and code that runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import JSON, AppClient, Serving, http_app, serving
from tests.support.openapi_examples import arrays_of, same_arrays, same_outputs

from tensorpost.onnx import ONNX_OPERATORS
from tensorpost.problems import UnknownOperator
from tensorpost.reference.onnx_page import onnx_names, onnx_page, onnx_python_lines, onnx_reference
from tensorpost.reference.operator_page import curl_line
from tensorpost.reference.page_blocks import PageTable

WITH_EXAMPLE = [name for name in onnx_names() if onnx_reference(name).example is not None]


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app(backend="numpy") as client:
        yield client


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(backend="numpy") as found:
        yield found


def test_every_operator_has_a_page() -> None:
    assert set(onnx_names()) == {schema.op_type for schema in ONNX_OPERATORS}
    assert len(WITH_EXAMPLE) > 60
    for name in onnx_names():
        reference = onnx_reference(name)
        tables = {block.heads[0]: block for block in onnx_page(reference) if isinstance(block, PageTable)}
        attributes = tables["Attribute"].rows if "Attribute" in tables else ()
        inputs = tables["Input"].rows if "Input" in tables else ()
        assert [row[0] for row in attributes] == [f"`{each.name}`" for each in reference.newest.attributes]
        assert [row[0] for row in inputs] == [f"`{each.name}`" for each in reference.newest.inputs]
        assert all(all(row) and len(row) == len(table.heads) for table in tables.values() for row in table.rows)


def test_what_resize_says() -> None:
    resize = onnx_reference("resize")
    (attributes,) = [b for b in onnx_page(resize) if isinstance(b, PageTable) and b.heads[0] == "Attribute"]
    rows = {row[0]: row[1:] for row in attributes.rows}

    assert rows["`mode`"] == ("STRING", '`"nearest"`', "nearest, linear, cubic")
    assert rows["`axes`"] == ("INTS", "absent", "any")
    assert resize.twins == ("RESAMPLE2",)
    assert [schema.since_version for schema in resize.versions] == [10, 11, 13, 18, 19]


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_the_code_that_is_shown_computes_what_is_shown(
    name: str, app: AppClient, server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = onnx_reference(name).example
    assert example is not None
    words = shlex.split(curl_line(example, "http://test"))
    answer = app.post(words[2], words[words.index("--data") + 1].encode(), JSON)
    assert same_outputs(answer.json()["tensors"], example.outputs)

    monkeypatch.setenv("TENSORPOST_URL", server.url)
    scope: dict[str, Any] = {}
    exec(onnx_python_lines(example), scope)
    several = [scope["outputs"]] if isinstance(scope["outputs"], np.ndarray) else scope["outputs"]
    assert same_arrays(several, [*arrays_of(example.outputs).values()])


def test_a_name_that_is_not_there_gets_the_one_that_may_be_meant() -> None:
    with pytest.raises(UnknownOperator, match="did you mean 'Resize'"):
        onnx_reference("Resise")
