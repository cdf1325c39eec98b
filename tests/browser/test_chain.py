"""Chains on the page at `/`: several operators in one request, step by step, by mouse and by keyboard."""

# ruff: noqa: RUF001  # the page writes shapes with a multiplication sign
from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.browser.page_actions import changed_by, copied, opened, saved
from tests.support.browser import MISSING, NODE

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

ROOT = Path(__file__).parents[2]
AXE = Path(__file__).with_name("axe.min.js")
# What DirectML.h declares of the names that the copied function uses, written down from its documentation.
HEADER = """
#define NULL 0
#define FAILED(result) ((result) < 0)
#define IID_PPV_ARGS(pointer) 0, (void**)(pointer)
typedef int HRESULT; typedef unsigned int UINT; typedef unsigned long long UINT64, SIZE_T; typedef float FLOAT;
typedef unsigned char UINT8;
enum DML_TENSOR_DATA_TYPE { DML_TENSOR_DATA_TYPE_FLOAT32 = 1, DML_TENSOR_DATA_TYPE_UINT8 = 4, DML_TENSOR_DATA_TYPE_UINT32 = 6 };
enum DML_TENSOR_FLAGS { DML_TENSOR_FLAG_NONE };
enum DML_TENSOR_TYPE { DML_TENSOR_TYPE_INVALID, DML_TENSOR_TYPE_BUFFER };
enum DML_EXECUTION_FLAGS { DML_EXECUTION_FLAG_NONE };
enum DML_AXIS_DIRECTION { DML_AXIS_DIRECTION_INCREASING, DML_AXIS_DIRECTION_DECREASING };
enum DML_OPERATOR_TYPE { DML_OPERATOR_ELEMENT_WISE_CLIP, DML_OPERATOR_JOIN, DML_OPERATOR_TILE, DML_OPERATOR_TOP_K1 };
enum DML_GRAPH_NODE_TYPE { DML_GRAPH_NODE_TYPE_INVALID, DML_GRAPH_NODE_TYPE_OPERATOR, DML_GRAPH_NODE_TYPE_CONSTANT };
enum DML_GRAPH_EDGE_TYPE { DML_GRAPH_EDGE_TYPE_INVALID, DML_GRAPH_EDGE_TYPE_INPUT, DML_GRAPH_EDGE_TYPE_OUTPUT,
  DML_GRAPH_EDGE_TYPE_INTERMEDIATE };
struct DML_BUFFER_TENSOR_DESC { DML_TENSOR_DATA_TYPE DataType; DML_TENSOR_FLAGS Flags; UINT DimensionCount;
  const UINT* Sizes; const UINT* Strides; UINT64 TotalTensorSizeInBytes; UINT GuaranteedBaseOffsetAlignment; };
struct DML_TENSOR_DESC { DML_TENSOR_TYPE Type; const void* Desc; };
struct DML_OPERATOR_DESC { DML_OPERATOR_TYPE Type; const void* Desc; };
struct DML_SCALE_BIAS { FLOAT Scale; FLOAT Bias; };
struct DML_TILE_OPERATOR_DESC { const DML_TENSOR_DESC* InputTensor; const DML_TENSOR_DESC* OutputTensor;
  UINT RepeatsCount; const UINT* Repeats; };
struct DML_ELEMENT_WISE_CLIP_OPERATOR_DESC { const DML_TENSOR_DESC* InputTensor; const DML_TENSOR_DESC* OutputTensor;
  const DML_SCALE_BIAS* ScaleBias; FLOAT Min; FLOAT Max; };
struct DML_JOIN_OPERATOR_DESC { UINT InputCount; const DML_TENSOR_DESC* InputTensors; const DML_TENSOR_DESC* OutputTensor;
  UINT Axis; };
struct DML_TOP_K1_OPERATOR_DESC { const DML_TENSOR_DESC* InputTensor; const DML_TENSOR_DESC* OutputValueTensor;
  const DML_TENSOR_DESC* OutputIndexTensor; UINT Axis; UINT K; DML_AXIS_DIRECTION AxisDirection; };
struct IDMLOperator; struct IDMLCompiledOperator;
struct DML_OPERATOR_GRAPH_NODE_DESC { IDMLOperator* Operator; const char* Name; };
struct DML_CONSTANT_DATA_GRAPH_NODE_DESC { const void* Data; SIZE_T DataSize; const char* Name; };
struct DML_GRAPH_NODE_DESC { DML_GRAPH_NODE_TYPE Type; const void* Desc; };
struct DML_INPUT_GRAPH_EDGE_DESC { UINT GraphInputIndex; UINT ToNodeIndex; UINT ToNodeInputIndex; const char* Name; };
struct DML_OUTPUT_GRAPH_EDGE_DESC { UINT FromNodeIndex; UINT FromNodeOutputIndex; UINT GraphOutputIndex; const char* Name; };
struct DML_INTERMEDIATE_GRAPH_EDGE_DESC { UINT FromNodeIndex; UINT FromNodeOutputIndex; UINT ToNodeIndex;
  UINT ToNodeInputIndex; const char* Name; };
struct DML_GRAPH_EDGE_DESC { DML_GRAPH_EDGE_TYPE Type; const void* Desc; };
struct DML_GRAPH_DESC { UINT InputCount; UINT OutputCount; UINT NodeCount; const DML_GRAPH_NODE_DESC* Nodes;
  UINT InputEdgeCount; const DML_GRAPH_EDGE_DESC* InputEdges; UINT OutputEdgeCount; const DML_GRAPH_EDGE_DESC* OutputEdges;
  UINT IntermediateEdgeCount; const DML_GRAPH_EDGE_DESC* IntermediateEdges; };
struct IDMLDevice1 { HRESULT CreateOperator(const DML_OPERATOR_DESC*, int, void**);
  HRESULT CompileGraph(const DML_GRAPH_DESC*, DML_EXECUTION_FLAGS, int, void**); };
namespace Microsoft { namespace WRL { template <class T> struct ComPtr { T* held; T* Get() { return held; }
  T** operator&() { return &held; } }; } }
"""


def choose(page: Any, operator: str) -> None:
    """Put an operator into the form; what is shown is the chain with it."""
    changed_by(page, lambda: pick(page, operator))


def pick(page: Any, operator: str) -> None:
    page.check("[name=kind][value=any]", force=True)
    page.select_option("#operator", operator)


def add(page: Any) -> None:
    changed_by(page, lambda: page.click("#step-add"))


def fill(page: Any, field: str, text: str) -> None:
    if not page.get_attribute("#more", "open") == "":
        page.click("#more summary")
    changed_by(page, lambda: page.fill(f"[data-field={field}]", text))


def look_at(page: Any, place: int) -> None:
    changed_by(page, lambda: page.click(f"#steps li:nth-child({place}) .show"))


def titles(page: Any) -> list[str]:
    return page.eval_on_selector_all("#steps li span", "spans => spans.map(span => span.textContent)")


def shown_array(page: Any) -> Any:
    return np.load(io.BytesIO(saved(page, "#output")))


def saved_chain(page: Any) -> dict[str, Any]:
    with page.expect_download() as download:
        page.click("#chain-save")
    assert download.value.suggested_filename == "chain.json"
    return json.loads(Path(download.value.path()).read_text("utf-8"))


def three_steps(page: Any) -> None:
    """Tile, Clip, and the opposite, of bytes: 255 - min(max(x, 60), 200)."""
    changed_by(page, lambda: page.select_option("#type", "uint8"))
    add(page)
    choose(page, "directml:element_wise_clip")
    fill(page, "Min", "60")
    fill(page, "Max", "200")
    add(page)
    choose(page, "onnx:BitwiseNot")
    add(page)


def photograph() -> Any:
    """The page's own picture as N x C x H x W."""
    with Image.open(ROOT / "app/tensorpost_server/playground/sample.webp") as image:
        return np.moveaxis(np.asarray(image.convert("RGB")), -1, 0)[None]


def test_three_steps_each_looked_at_and_every_copied_form(server: str, browser: Any, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    with opened(browser, server) as page:
        three_steps(page)
        assert titles(page) == ["1. tile", "2. element_wise_clip", "3. BitwiseNot"]
        input_ = saved(page, "#input")
        picture = np.load(io.BytesIO(input_))
        tiled = np.concatenate([np.concatenate([picture, picture], axis=2)] * 2, axis=3)
        clipped = np.where(tiled < 60, 60, np.where(tiled > 200, 200, tiled))
        assert np.array_equal(picture, photograph())
        assert np.array_equal(shown_array(page), 255 - clipped)
        assert page.inner_text("#steps li:nth-child(2) small") == f"uint8 {' × '.join(map(str, tiled.shape))}"

        look_at(page, 1)
        assert np.array_equal(shown_array(page), tiled)
        assert page.input_value("[data-slider='Copies down']") == "2"
        look_at(page, 2)
        assert np.array_equal(shown_array(page), clipped)
        assert page.input_value("[data-field=Max]") == "200"
        assert "These are the first 2 of 3 steps" in page.inner_text("#code-hint")
        look_at(page, 3)
        output = saved(page, "#output")

        (tmp_path / "input.npy").write_bytes(input_)
        for language, command in (
            ("curl", ["sh", "-c"]),
            ("python", [sys.executable, "-c"]),
            ("javascript", [str(NODE), "--input-type=module", "-e"]),
        ):
            text = copied(page, language)
            (tmp_path / "output.npy").unlink(missing_ok=True)
            subprocess.run([*command, text], cwd=tmp_path, env=environment, check=True, timeout=60)
            assert (tmp_path / "output.npy").read_bytes() == output, text
        assert "tp.run_graph(graph" in copied(page, "python")
        page.click("#tab-c")
        page.wait_for_selector("#code:has-text('Step 3, BitwiseNot, is an ONNX node')")

        # What is saved is what is copied, and what the command line takes.
        document = saved_chain(page)
        assert document == json.loads(copied(page, "json"))
        (tmp_path / "chain.json").write_text(json.dumps(document), "utf-8")
        arguments = ["graph", "run", "chain.json", "input=input.npy", "-o", "output=again.npy", "--url", server]
        command = [sys.executable, "-m", "tensorpost", *arguments]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60)
        assert np.array_equal(np.load(tmp_path / "again.npy"), 255 - clipped)


def test_a_saved_chain_is_opened_again(server: str, browser: Any, tmp_path: Path) -> None:
    with opened(browser, server) as page:
        three_steps(page)
        document, expected = saved_chain(page), shown_array(page)
    (tmp_path / "chain.json").write_text(json.dumps(document), "utf-8")
    with opened(browser, server) as page:
        changed_by(page, lambda: page.set_input_files("#chain-file", tmp_path / "chain.json"))
        assert page.input_value("#type") == "uint8"
        assert np.array_equal(shown_array(page), expected)
        assert saved_chain(page) == document
        look_at(page, 2)
        assert (page.input_value("[data-field=Min]"), page.input_value("#operator")) == ("60", "directml:element_wise_clip")
