"""The page at `/`, used as people use it: by mouse, by keyboard, by a screen reader, with a key, on a phone."""

# ruff: noqa: RUF001  # the page writes shapes and weights with a multiplication sign
from __future__ import annotations

import base64
import io
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
from tests.browser.page_actions import changed_by, copied, opened, saved, slide, table
from tests.support.browser import MISSING, NODE
from tests.support.http_app import serving

from tensorpost_server import commands

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

ROOT = Path(__file__).parents[2]
AXE = Path(__file__).with_name("axe.min.js")
# What DirectML.h declares of the names that the copied structs use, written down from its documentation.
HEADER = """
#define NULL 0
typedef unsigned int UINT; typedef unsigned long long UINT64; typedef float FLOAT;
enum DML_TENSOR_DATA_TYPE { DML_TENSOR_DATA_TYPE_UNKNOWN, DML_TENSOR_DATA_TYPE_FLOAT32 };
enum DML_TENSOR_FLAGS { DML_TENSOR_FLAG_NONE };
enum DML_TENSOR_TYPE { DML_TENSOR_TYPE_INVALID, DML_TENSOR_TYPE_BUFFER };
enum DML_INTERPOLATION_MODE { DML_INTERPOLATION_MODE_NEAREST_NEIGHBOR, DML_INTERPOLATION_MODE_LINEAR };
enum DML_AXIS_DIRECTION { DML_AXIS_DIRECTION_INCREASING, DML_AXIS_DIRECTION_DECREASING };
enum DML_OPERATOR_TYPE { DML_OPERATOR_INVALID, DML_OPERATOR_RESAMPLE2 = 161 };
struct DML_BUFFER_TENSOR_DESC { DML_TENSOR_DATA_TYPE DataType; DML_TENSOR_FLAGS Flags; UINT DimensionCount;
  const UINT* Sizes; const UINT* Strides; UINT64 TotalTensorSizeInBytes; UINT GuaranteedBaseOffsetAlignment; };
struct DML_TENSOR_DESC { DML_TENSOR_TYPE Type; const void* Desc; };
struct DML_OPERATOR_DESC { DML_OPERATOR_TYPE Type; const void* Desc; };
struct DML_RESAMPLE2_OPERATOR_DESC { const DML_TENSOR_DESC* InputTensor; const DML_TENSOR_DESC* OutputTensor;
  DML_INTERPOLATION_MODE InterpolationMode; DML_AXIS_DIRECTION RoundingDirection; UINT DimensionCount;
  const FLOAT* Scales; const FLOAT* InputPixelOffsets; const FLOAT* OutputPixelOffsets; };
"""


def test_drop_a_picture_move_a_slider_and_run_the_copied_lines(server: str, browser: Any, tmp_path: Path) -> None:
    picture = np.random.default_rng(13).integers(0, 256, (5, 7, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "png")
    drop = """([data, name]) => {
        const transfer = new DataTransfer();
        transfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name, {type: "image/png"}));
        document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
    }"""
    tensor = np.moveaxis(picture, -1, 0)[None]
    with opened(browser, server) as page:
        changed_by(page, lambda: page.evaluate(drop, [base64.b64encode(file.getvalue()).decode(), "noise.png"]))
        changed_by(page, lambda: page.select_option("#type", "uint8"))
        slide(page, "Copies across", 3)

        input_, output = saved(page, "#input"), saved(page, "#output")
        assert np.array_equal(np.load(io.BytesIO(input_)), tensor)
        assert np.array_equal(np.load(io.BytesIO(output)), np.tile(tensor, (1, 1, 2, 3)))
        assert [reads for _, reads in table(page)] == [f"{index} × 1" for index in (0, 1, 2, 3) * 3]

        box = page.locator("#output canvas").bounding_box()  # a little below the middle: row 5 of 10, column 10 of 21
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2 + 3)
        pixel = ", ".join(map(str, picture[0, 3]))
        assert page.inner_text("#output .readout") == f"row 5, column 10: {pixel}"

        page.mouse.move(0, 0)
        scales = [
            page.inner_text(f"{figure} .readout").split()[-2] for figure in ("#input", "#output")
        ]  # "... shown at 60 x"
        input_scale, output_scale = map(float, scales)
        assert input_scale == pytest.approx(output_scale * 3, rel=0.01)  # both are as wide as the box
        assert "Estimate: less than 1 ms" in page.inner_text("#verdict")

        (tmp_path / "input.npy").write_bytes(input_)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
        for language, command in (
            ("curl", ["sh", "-c"]),
            ("python", [sys.executable, "-c"]),
            ("javascript", [str(NODE), "--input-type=module", "-e"]),
        ):
            text = copied(page, language)
            (tmp_path / "output.npy").unlink(missing_ok=True)
            subprocess.run([*command, text], cwd=tmp_path, env=environment, check=True, timeout=60)
            assert (tmp_path / "output.npy").read_bytes() == output, text
            assert page.inner_text("#code-hint") == "input.npy is what Save beside Input gives."

        (tmp_path / "noise.png").write_bytes(file.getvalue())
        subprocess.run(["sh", "-c", copied(page, "picture")], cwd=tmp_path, check=True, timeout=60)
        assert np.array_equal(np.asarray(Image.open(tmp_path / "output.png")), np.tile(picture, (2, 3, 1)))

        changed_by(page, lambda: page.check("[name=kind][value='onnx:Resize']", force=True))
        text, output = copied(page, "python"), saved(page, "#output")
        subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=environment, check=True, timeout=60)
        assert (tmp_path / "output.npy").read_bytes() == output, text


def test_a_picture_that_was_reduced_says_so(server: str, browser: Any, tmp_path: Path) -> None:
    Image.new("RGB", (902, 600)).save(tmp_path / "cat.png")
    with opened(browser, server) as page:
        changed_by(page, lambda: page.select_option("#type", "uint8"))
        changed_by(page, lambda: page.set_input_files("#file", tmp_path / "cat.png"))
        assert page.inner_text("#input .about").endswith("reduced from 902 × 600 (Longest side)")
        assert page.is_hidden("#tab-picture")
        assert "(curl, picture), set Longest side to “as it is”" in page.inner_text("#code-hint")

        changed_by(page, lambda: page.select_option("#longest", "0"))
        assert "reduced" not in page.inner_text("#input .about") + page.inner_text("#code-hint")
        assert page.is_visible("#tab-picture")

        page.check("[name=kind][value=any]", force=True)
        changed_by(page, lambda: page.select_option("#operator", "directml:element_wise_clip"))
        assert page.text_content("#summary code") == "max(Min, min(x, Max))"
        assert "`" not in page.text_content("#summary")


def test_resampling_by_keyboard_alone(server: str, browser: Any) -> None:
    with opened(browser, server) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the result"
        for _ in range(5):
            page.keyboard.press("Tab")
        changed_by(page, lambda: page.keyboard.press("Enter"))
        assert page.inner_text("#input .about").startswith("numbers · float32 · 1 × 1 × 2 × 3")

        for _ in range(2):  # the file, the operator
            page.keyboard.press("Tab")
        changed_by(page, lambda: page.keyboard.press("ArrowRight"))
        assert page.evaluate("document.activeElement.value") == "directml:resample2"
        # Half-pixel centres at twice the size: output 1 is at (1 + 0.5) / 2 - 0.5 = 0.25, between the elements 0 and 1.
        assert table(page)[:3] == [["0", "0 × 1"], ["1", "0 × 0.75 + 1 × 0.25"], ["2", "0 × 0.25 + 1 × 0.75"]]
        assert "5_1 or later" in page.inner_text("#verdict")

        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.dataset.slider") == "Scale"
        changed_by(page, lambda: page.keyboard.press("PageUp"))
        sizes = [int(size) for size in re.findall(r"\d+", page.inner_text("#output .about").split("·")[1])]
        assert sizes > [1, 1, 4, 6]

        page.focus("#output canvas")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#announcer").startswith("Output, row 0, column 1: ")
        page.keyboard.press("+")
        assert page.inner_text("#zoom") == "2 ×"

        page.focus("[role=tab][aria-selected=true]")
        page.keyboard.press("ArrowLeft")  # round to the last one
        page.wait_for_selector("#code:has-text('#include')")
        if compiler := shutil.which("g++"):
            structs = page.inner_text("#code").replace("#include <DirectML.h>", HEADER)
            code = ["-std=c++20", "-Wall", "-Werror", "-fsyntax-only", "-x", "c++", "-"]
            found = subprocess.run([compiler, *code], check=False, input=structs, text=True, capture_output=True)
            assert found.returncode == 0, found.stderr + structs


def test_mistakes_are_said_at_the_field_and_a_key_is_asked_for(browser: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys.jsonl"
    key = commands.add_key(keys, "anna")
    with serving(backend="numpy", keys_file=keys) as found:
        page = browser.new_page()
        page.goto(found.url)
        page.wait_for_selector("#key[open]")
        page.fill("#key-text", "tp_wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key-error:has-text('no such key')")
        page.fill("#key-text", key)
        page.keyboard.press("Enter")
        page.wait_for_selector("#result[data-round]")
        assert (
            page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])") == '[{},{},""]'
        )
        page.click("#tab-curl")
        page.wait_for_selector("#code:has-text('TENSORPOST_API_KEY')")
        assert key not in page.content()

        page.click("#more summary")
        page.fill("[data-field=Repeats]", "1, 1, 0, 2")
        page.wait_for_selector("[data-field=Repeats][aria-invalid=true]")
        assert "Repeats[2] every repeat must be larger than 0" in page.inner_text("#verdict")
        assert page.inner_text(".field:has([data-field=Repeats]) .error") == "every repeat must be larger than 0"
        page.fill("[data-field=Repeats]", "1, 1, two, 2")
        page.wait_for_selector("#verdict:has-text('“two” is not a number')")
        page.wait_for_selector("#code:has-text('This call is not valid yet.')")
        assert page.is_disabled("#copy")
        page.fill("[data-field=Repeats]", "1, 1, 1, 2")
        page.wait_for_selector("#code:has-text('repeats=1,1,1,2')")
        page.fill("[data-field=Repeats]", "1, 1, 0, 2")
        page.wait_for_selector("#code:has-text('This call is not valid yet.')")
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_nothing_is_cut(server: str, browser: Any, scheme: str) -> None:
    with opened(browser, server, viewport={"width": 1360, "height": 900}, color_scheme=scheme) as page:
        changed_by(page, lambda: page.check("[name=kind][value='directml:resample2']", force=True))
        page.click("#more summary")
        page.click("#taps-card summary")
        page.evaluate(AXE.read_text("utf-8"))
        found = page.evaluate("axe.run()")
        serious = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in serious] == []
        assert len(found["passes"]) > 20, "axe did not look at the page"
        for width in (1360, 900, 360):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") == width
