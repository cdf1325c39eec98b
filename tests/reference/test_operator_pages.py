"""The operators' pages: formulas name fields, examples are right by other sources, code that is shown runs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import JSON, AppClient, Serving, http_app, serving
from tests.support.openapi_examples import arrays_of, same_arrays, same_outputs
from tests.support.vectors import Case, cases_of, elements

import tensorpost
from tensorpost import Client
from tensorpost.command_line.run_command import InputFiles, attributes_of, described_operator
from tensorpost.descriptors import OPERATORS, operator_names
from tensorpost.reference.operator_page import command_line, curl_line, operator_page, python_lines
from tensorpost.reference.operator_reference import OperatorReference, operator_reference
from tensorpost.reference.page_blocks import PageCode, PageTable, blocks_markdown

by_name = pytest.mark.parametrize("name", operator_names())


@pytest.fixture(scope="module")
def app() -> Iterator[AppClient]:
    with http_app(backend="numpy") as client:
        yield client


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(backend="numpy") as found:
        yield found


def of_the_example(case: Case, sent: Mapping[str, Any]) -> bool:
    inputs = [elements(slot, data) for slot, data in zip(case.desc.inputs, case.inputs, strict=True)]
    if [slot.name for slot in case.desc.inputs] != [*sent]:
        return False
    return all(
        x.shape == y.shape and x.dtype == y.dtype and np.array_equal(x, y)
        for x, y in zip(inputs, sent.values(), strict=True)
    )


@pytest.mark.parametrize("name", [name for name in operator_names() if name != "TILE"])  # its example is DirectML's
def test_the_result_that_is_shown_is_that_of_the_vectors(name: str) -> None:
    """The vectors' results are by hand or by other libraries."""
    example = operator_reference(name).example
    sent = arrays_of(example.call["tensors"])
    desc = example.call["op"]["desc"]
    cases = [
        case
        for case in cases_of(name)
        if of_the_example(case, sent) and desc.items() <= json.loads(case.desc.to_document_text())["desc"].items()
    ]
    assert cases, "the example is none of the vectors"
    found = arrays_of(example.outputs)
    assert any(
        all(
            x.shape == y.shape
            and np.allclose(x.astype(np.float64), y.astype(np.float64), rtol=1e-5, atol=max(case.absolute, 1e-6))
            for x, y in zip(found.values(), case.outputs(), strict=True)
        )
        for case in cases
    )


def test_the_result_that_is_shown_for_tile_is_numpys() -> None:
    example = operator_reference("tile").example
    (x,), (y,) = arrays_of(example.call["tensors"]).values(), arrays_of(example.outputs).values()
    np.testing.assert_array_equal(y, np.tile(x, example.call["op"]["desc"]["Repeats"]))


@by_name
def test_the_python_that_is_shown_computes_what_is_shown(
    name: str, server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = operator_reference(name)
    monkeypatch.setenv("TENSORPOST_URL", server.url)
    scope: dict[str, Any] = {}
    exec(python_lines(reference), scope)
    outputs = scope["outputs"]
    several = [outputs] if isinstance(outputs, np.ndarray) else outputs

    assert same_arrays(several, [*arrays_of(reference.example.outputs).values()])


@by_name
def test_the_curl_line_that_is_shown_computes_what_is_shown(name: str, app: AppClient) -> None:
    reference = operator_reference(name)
    words = shlex.split(curl_line(reference.example, "http://test"))

    assert words[:2] == ["curl", "--fail-with-body"]
    answer = app.post(words[2], words[words.index("--data") + 1].encode(), JSON)
    assert answer.status_code == 200, answer.text
    assert same_outputs(answer.json()["tensors"], reference.example.outputs)


def words_of(name: str) -> list[str]:
    return shlex.split(command_line(operator_reference(name)))


@pytest.mark.parametrize("name", [name for name in operator_names() if words_of(name)])
def test_the_command_that_is_shown_means_the_same_operator(name: str, tmp_path: Path) -> None:
    example = operator_reference(name).example
    _, _, operator, *words = words_of(name)
    settings = [value for option, value in pairwise(words) if option == "-s"]
    files: list[str] = []
    for tensor, array in arrays_of(example.call["tensors"]).items():
        np.save(tmp_path / f"{tensor}.npy", array)
        files.append(str(tmp_path / f"{tensor}.npy"))

    found, _ = described_operator(operator, attributes_of(settings), InputFiles.read(files, Client()))

    assert [f"{tensor}.npy" for tensor in example.call["tensors"]] == words[: len(files)]
    scope: dict[str, Any] = {}
    exec(python_lines(operator_reference(name)).partition("with Client()")[0], scope)
    assert found == scope["operator"]


def test_most_operators_have_a_command() -> None:
    assert len([name for name in operator_names() if words_of(name)]) > 150
    assert words_of("gather")[:5] == ["tensorpost", "run", "gather", "input.npy", "indices.npy"]


def test_curl_itself_takes_the_line(server: Serving) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    reference = operator_reference("gather")
    ran = subprocess.run(
        ["sh", "-c", curl_line(reference.example, server.url)], capture_output=True, text=True, check=True, timeout=30
    )
    assert same_outputs(json.loads(ran.stdout)["tensors"], reference.example.outputs)


@by_name
def test_a_page_has_every_field_with_all_that_is_known_of_it(name: str) -> None:
    reference = operator_reference(name)
    page = operator_page(reference)
    (fields,) = [
        block for block in page if isinstance(block, PageTable) and block.heads[0] == "Field" and len(block.heads) > 2
    ]
    (struct,) = [block.text for block in page if isinstance(block, PageCode) and block.language == "cpp"]

    assert [row[0] for row in fields.rows] == [f"`{each.name}`" for each in reference.facts.fields]
    assert all(all(row) for row in fields.rows), "a cell is empty"
    assert re.findall(r" (\w+);", struct) == [each.name for each in reference.facts.fields]
    assert all(len(row) == len(table.heads) for table in page if isinstance(table, PageTable) for row in table.rows)


def test_what_some_fields_say() -> None:
    def field(operator: str, name: str) -> tuple[str, str]:
        (found,) = [each for each in operator_reference(operator).fields if each.name == name]
        return found.default, found.bounds

    assert field("TILE", "Repeats") == ("required", "1 to 8 entries, each 0 to 4,294,967,295")
    assert field("TILE", "RepeatsCount") == ("follows from the rest", "0 to 4,294,967,295")
    assert field("GEMM", "TransA") == ("NONE", "NONE, TRANSPOSE")
    assert field("GEMM", "Alpha") == ("1.0", "finite, 32 bits")
    assert field("GEMM", "CTensor") == ("none", "")
    assert field("GEMM", "OutputTensor") == ("follows from the rest", "")
    assert field("SPLIT", "OutputTensors") == ("required", "")
    assert field("RESAMPLE3", "Antialiased") == ("false", "true or false")


def test_twins_and_differences_of_operators_that_are_known() -> None:
    assert operator_reference("gather").relatives == ("Gather",)
    assert operator_reference("resample2").twins == ("Resize", "Upsample")
    (difference,) = operator_reference("scatter_nd").different_answers
    assert difference.reason == "an index outside is refused, since it would be written elsewhere"
    assert operator_reference("random_generator").not_compared > 0  # Wine cannot compile it
    assert "cases say nothing of DirectML" in blocks_markdown(operator_page(operator_reference("random_generator")))
    assert operator_reference("tile").not_compared == 0


def test_a_name_that_is_not_there_gets_the_one_that_may_be_meant() -> None:
    with pytest.raises(tensorpost.problems.UnknownOperator, match="did you mean 'GATHER'"):
        operator_reference("gathre")


def test_the_reference_as_json_has_the_same_fields() -> None:
    for cls in OPERATORS:
        reference: OperatorReference = operator_reference(cls.operator_type)
        document = json.loads(json.dumps(reference.to_json()))
        assert [each["name"] for each in document["fields"]] == [each.name for each in cls.facts.fields]
        assert document["formula"] == reference.formula


def test_the_struct_has_the_enums_of_the_header():
    # DirectML.h: struct DML_RESAMPLE2_OPERATOR_DESC, struct DML_GEMM_OPERATOR_DESC
    resample, gemm = (blocks_markdown(operator_page(operator_reference(name))) for name in ("resample2", "gemm"))

    assert "    DML_INTERPOLATION_MODE InterpolationMode;" in resample
    assert "    DML_AXIS_DIRECTION RoundingDirection;" in resample
    assert "    UINT DimensionCount;" in resample
    assert "    DML_MATRIX_TRANSFORM TransA;" in gemm


@pytest.mark.parametrize(
    ("operator", "field", "said"),
    [
        ("resample2", "Scales", "required, unless it follows from the other fields"),
        ("resample2", "RoundingDirection", "required"),
        ("gather", "Axis", "required"),
        ("gather", "IndexDimensions", "filled in; `"),
        ("convolution", "Mode", "CROSS_CORRELATION"),
    ],
)
def test_what_is_left_out_is_required_or_filled_in(operator: str, field: str, said: str):
    found = operator_reference(operator).field(field).default

    assert said in found
    assert ("unless" in found) == ("unless" in said)
