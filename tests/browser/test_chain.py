"""Chains on the page at `/`: several operators in one request, step by step, by mouse and by keyboard."""

# ruff: noqa: RUF001  # the page writes shapes with a multiplication sign
from __future__ import annotations

import io
import json
import os
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
STUB = Path(__file__).with_name("directml_graph_stub.h")


def choose(page: Any, operator: str) -> None:
    """Put an operator into the form; what is shown is the chain with it."""
    changed_by(page, lambda: pick(page, operator))


def pick(page: Any, operator: str) -> None:
    page.check("[name=kind][value=any]", force=True)
    page.select_option("#operator", operator)


def add(page: Any) -> None:
    changed_by(page, lambda: page.click("#step-add"))


def fill(page: Any, field: str, text: str) -> None:
    if page.get_attribute("#more", "open") is None:
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
        assert (page.input_value("[data-field=Min]"), page.input_value("#operator")) == (
            "60",
            "directml:element_wise_clip",
        )


def use_numbers(page: Any) -> None:
    """The 2 x 3 tensor 1 to 6."""
    changed_by(page, lambda: page.click("[data-sample=numbers]"))


def pick_first(page: Any, operator: str) -> None:
    """The operator alone on the numbers, added as the first step."""
    use_numbers(page)
    choose(page, operator)


def type_constant(page: Any, shape: str, values: str) -> None:
    def typed() -> None:
        page.select_option("#inputs select", "typed")
        page.locator("#inputs input").nth(0).fill(shape)
        page.locator("#inputs input").nth(1).fill(values)

    changed_by(page, typed)


def error_at(page: Any, place: int) -> str:
    page.wait_for_selector(f"#steps li:nth-child({place}) .error")
    return page.inner_text(f"#steps li:nth-child({place}) .error")


def test_what_is_wrong_is_said_at_its_step(server: str, browser: Any) -> None:
    with opened(browser, server) as page:
        three_steps(page)
        look_at(page, 1)
        page.fill("[data-field=Repeats]", "1, 1, 0, 2")
        assert error_at(page, 1) == "Repeats[2] every repeat must be larger than 0"
        assert "Step 1, tile: Repeats[2] every repeat must be larger than 0" in page.inner_text("#verdict")
        assert page.get_attribute("[data-field=Repeats]", "aria-invalid") == "true"
        assert page.locator("#steps .error").count() == 1
        page.wait_for_selector("#code:has-text('This call is not valid yet.')")
        page.fill("[data-field=Repeats]", "1, 1, two, 2")
        page.wait_for_selector("#steps li:nth-child(1) .error:has-text('“two” is not a number')")
        fill(page, "Repeats", "1, 1, 2, 2")
        assert page.locator("#steps .error").count() == 0

        # The last step takes integers only. Steps before it can still be looked at.
        changed_by(page, lambda: page.select_option("#type", "float32"))
        assert "float" in error_at(page, 3)
        assert shown_array(page).dtype == np.float32
        page.click("#steps li:nth-child(3) .show")
        page.wait_for_selector("#verdict:has-text('Step 3, BitwiseNot')")
        page.click("#chain-save")
        page.wait_for_selector("#verdict:has-text('Step 3, BitwiseNot, is not valid yet.')")


def test_what_the_run_refuses_is_said_at_its_step(server: str, browser: Any) -> None:
    violation = {"code": "index", "path": "$.graph.nodes[1].desc.Max", "message": "is refused for this test"}
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(server)
        page.wait_for_selector("#result[data-round]")
        three_steps(page)
        body = json.dumps({"title": "Refused", "status": 422, "violations": [violation]})
        page.route("**/v1/graphs*", lambda route: route.fulfill(status=422, body=body))
        page.click("#run")
        assert error_at(page, 2) == "Max is refused for this test"
        page.wait_for_selector("#verdict:has-text('Step 2, element_wise_clip: Max is refused for this test')")


def test_steps_are_moved_and_removed_by_keyboard(server: str, browser: Any) -> None:
    def press(key: str) -> None:
        changed_by(page, lambda: page.keyboard.press(key))

    def focused() -> str:
        return page.evaluate("document.activeElement.innerText")

    with opened(browser, server) as page:
        pick_first(page, "directml:element_wise_identity")
        fill(page, "ScaleBias", '{"Scale": 2, "Bias": 1}')
        page.focus("#step-add")
        press("Enter")
        choose(page, "directml:element_wise_clip")
        fill(page, "Max", "6")
        assert titles(page) == ["1. element_wise_identity", "Next: element_wise_clip, not added yet"]
        page.focus("#step-add")
        press("Enter")
        assert shown_array(page).ravel().tolist() == [3, 5, 6, 6, 6, 6]

        page.focus("[aria-label^='Move up: Step 2']")
        press("Enter")
        assert titles(page) == ["1. element_wise_clip", "2. element_wise_identity"]
        assert focused() == "1. element_wise_clip\nfloat32 1 × 1 × 2 × 3"  # it cannot move further up
        assert page.inner_text("#chain-hint").startswith("Shown: the result of step 1 of 2.")
        for _ in range(3):  # down, remove, the second step
            page.keyboard.press("Tab")
        press("Space")
        assert focused().startswith("2. element_wise_identity")
        assert shown_array(page).ravel().tolist() == [3, 5, 7, 9, 11, 13]

        page.focus("#step-add")
        press("Enter")  # the same again
        assert titles(page)[2] == "3. element_wise_identity"
        assert shown_array(page).ravel().tolist() == [7, 11, 15, 19, 23, 27]
        fill(page, "ScaleBias", '{"Scale": -1, "Bias": 0}')
        assert shown_array(page).ravel().tolist() == [-3, -5, -7, -9, -11, -13]

        for left in (2, 1, 0):
            page.focus("#steps li:last-child [aria-label^=Remove]")
            press("Enter")
            assert len(titles(page)) == left
        assert page.evaluate("document.activeElement.id") == "step-add"
        page.click("#tab-curl")
        page.wait_for_selector("#code:has-text('/v1/operators/element_wise_clip')")


def test_a_directml_graph_in_c(server: str, browser: Any, tmp_path: Path) -> None:
    with opened(browser, server) as page:
        pick_first(page, "directml:join")
        type_constant(page, "1, 1, 2, 1", "9, 0")
        add(page)
        choose(page, "directml:top_k1")
        fill(page, "K", "2")
        changed_by(page, lambda: page.select_option("[data-field=AxisDirection]", "DECREASING"))
        add(page)
        assert page.eval_on_selector_all("#output .which option", "options => options.map(o => o.value)") == [
            "output_value", "output_index",
        ]  # fmt: skip
        choose(page, "directml:element_wise_clip")
        fill(page, "Max", "6")
        add(page)
        # Rows 1 2 3 and 4 5 6, with 9 and 0 behind them: the two largest are 9 3 and 6 5.
        assert shown_array(page).ravel().tolist() == [6, 3, 6, 5]
        page.click("#tab-c")
        page.wait_for_selector("#code:has-text('CompileGraph')")
        text = page.inner_text("#code")
    assert "Feature level 6_2 or later" in text
    if compiler := shutil.which("g++"):
        code = text.replace("#include <DirectML.h>\n#include <wrl/client.h>", f'#include "{STUB}"')
        code += "int main() { IDMLDevice1 device; IDMLCompiledOperator* made; return CompileChain(&device, &made); }"
        (tmp_path / "chain.cpp").write_text(code, "utf-8")
        command = [compiler, "-std=c++20", "-Wall", "-Werror", "-Wno-uninitialized", "chain.cpp", "-o", "chain"]
        built = subprocess.run(command, check=False, cwd=tmp_path, text=True, capture_output=True)
        assert built.returncode == 0, built.stderr + text
        ran = subprocess.run([tmp_path / "chain"], check=True, text=True, capture_output=True, timeout=60)
        assert ran.stdout.splitlines() == [
            "operator 1", "operator 3", "operator 0", "counts 1 2 4",
            "node 0: join", "node 1: top_k1", "node 2: element_wise_clip", "constant 3: 8 bytes, 9 to 0, join_input_1",
            "input 0 to 0.0", "3.0 to 0.1", "0.0 to 1.0", "1.0 to 2.0",
            "2.0 to output 0", "1.1 to output 1",  # the indices, since DirectML wants every output connected
        ]  # fmt: skip


def test_a_picture_file_is_sent_through_a_chain(server: str, browser: Any, tmp_path: Path) -> None:
    picture = np.random.default_rng(41).integers(0, 256, (5, 7, 3), np.uint8)
    Image.fromarray(picture).save(tmp_path / "noise.png")
    with opened(browser, server) as page:
        changed_by(page, lambda: page.select_option("#type", "uint8"))
        changed_by(page, lambda: page.set_input_files("#file", tmp_path / "noise.png"))
        add(page)
        choose(page, "onnx:BitwiseNot")
        subprocess.run(["sh", "-c", copied(page, "picture")], cwd=tmp_path, check=True, timeout=60)
    with Image.open(tmp_path / "output.png") as output:
        assert np.array_equal(np.asarray(output), 255 - np.tile(picture, (2, 2, 1)))


def test_a_step_that_is_not_added_yet_is_shown_and_copied(server: str, browser: Any) -> None:
    with opened(browser, server) as page:
        pick_first(page, "directml:element_wise_identity")
        fill(page, "ScaleBias", '{"Scale": 2, "Bias": 0}')
        add(page)
        choose(page, "onnx:Cast")
        fill(page, "to", "int32")
        assert page.inner_text("#chain-hint").endswith("It is not added yet.")
        array = shown_array(page)
        assert (array.dtype, array.ravel().tolist()) == (np.int32, [2, 4, 6, 8, 10, 12])
        assert [node["name"] for node in json.loads(copied(page, "json"))["nodes"]] == ["element_wise_identity", "cast"]
        assert [node["name"] for node in saved_chain(page)["nodes"]] == ["element_wise_identity"]


def test_a_chain_too_long_for_an_address_travels_in_the_body(server: str, browser: Any, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    x = np.arange(2400, dtype=np.int32).reshape(1, 1, 40, 60)
    np.save(tmp_path / "x.npy", x)
    with opened(browser, server) as page:
        changed_by(page, lambda: page.set_input_files("#file", tmp_path / "x.npy"))
        choose(page, "directml:element_wise_add")
        type_constant(page, "1, 1, 40, 60", "3")
        add(page)
        output = saved(page, "#output")
        assert np.array_equal(np.load(io.BytesIO(output)), x + 3)
        (tmp_path / "input.safetensors").write_bytes(saved(page, "#input"))
        for language, command in (
            ("curl", ["sh", "-c"]),
            ("python", [sys.executable, "-c"]),
            ("javascript", [str(NODE), "--input-type=module", "-e"]),
        ):
            text = copied(page, language)
            (tmp_path / "output.npy").unlink(missing_ok=True)
            subprocess.run([*command, text], cwd=tmp_path, env=environment, check=True, timeout=60)
            assert (tmp_path / "output.npy").read_bytes() == output, text


PIPELINE = {
    "inputs": {"photo": {"data_type": "UINT8", "sizes": ["h", "w", 3]}},
    "constants": {
        "mean": {"dtype": "F32", "shape": [3], "data": [1, 2, 3]},
        "std": {"dtype": "F32", "shape": [3], "data": [2, 4, 8]},
    },
    "nodes": [
        {"name": "chw", "op_type": "Transpose", "inputs": "scaled", "attributes": {"perm": [2, 0, 1]}},
        {"name": "float", "op_type": "Cast", "opset": 28, "inputs": "photo", "attributes": {"to": "float32"}},
        {"name": "centred", "op_type": "Sub", "inputs": ["float", "mean"]},
        {"name": "scaled", "op_type": "Div", "inputs": {"A": "centred", "B": "std"}},
    ],
    "outputs": {"image": "chw"},
}


def test_a_graph_written_by_hand_is_opened(server: str, browser: Any, tmp_path: Path) -> None:
    photo = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    np.save(tmp_path / "photo.npy", photo)
    (tmp_path / "pipeline.json").write_text(json.dumps(PIPELINE), "utf-8")
    with opened(browser, server) as page:
        page.set_input_files("#chain-file", tmp_path / "pipeline.json")
        page.wait_for_selector("#verdict:has-text('This chain takes a tensor of h × w × 3')")
        assert titles(page) == []
        changed_by(page, lambda: page.click("#run"))
        changed_by(page, lambda: page.set_input_files("#file", tmp_path / "photo.npy"))
        page.wait_for_selector("#input .about:has-text('4 × 5 × 3')")
        changed_by(page, lambda: page.set_input_files("#chain-file", tmp_path / "pipeline.json"))
        assert titles(page) == ["1. Cast", "2. Sub", "3. Div", "4. Transpose"]
        expected = ((photo.astype(np.float32) - [1, 2, 3]) / [2, 4, 8]).transpose(2, 0, 1)
        assert np.array_equal(shown_array(page), expected.astype(np.float32))
        assert [node["name"] for node in saved_chain(page)["nodes"]] == ["float", "centred", "scaled", "chw"]


NEG = {"name": "a", "op_type": "Neg", "inputs": "x"}
ONE_INPUT: dict[str, Any] = {"inputs": {"x": {}}, "nodes": [NEG], "outputs": {"y": "a"}}


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("{", "This file is not JSON"),
        ([], "This is no graph: it must be an object"),
        ({**ONE_INPUT, "nodes": [NEG, {**NEG, "inputs": "a"}]}, "nodes[1] needs a name of its own."),
        ({**ONE_INPUT, "nodes": []}, "nodes must be a list of at least one node"),
        ({**ONE_INPUT, "inputs": {"x": {}, "z": {}}}, "A chain has one input; this graph has 2: x, z."),
        ({**ONE_INPUT, "nodes": [NEG, {**NEG, "name": "b"}]}, "2 nodes read “x”"),
        ({**ONE_INPUT, "nodes": [{**NEG, "op_type": "Nag"}]}, "“a”: there is no operator Nag on this server."),
        ({**ONE_INPUT, "nodes": [{**NEG, "opset": 6}]}, "the page has Neg from opset 13 on, and the file says 6"),
        ({**ONE_INPUT, "nodes": [{**NEG, "attributes": {"axis": 1}}]}, "“a”: the page has no field axis."),
        (
            {**ONE_INPUT, "nodes": [NEG, {"name": "b", "op_type": "Sub", "inputs": ["x", "a"]}], "outputs": {"y": "b"}},
            "2 nodes read “x”",
        ),
        (
            {**ONE_INPUT, "nodes": [NEG, {"name": "b", "op_type": "Neg", "inputs": "a"}]},
            "A chain answers with its last step, “b”; this graph's outputs have “a” too.",
        ),
        ({**ONE_INPUT, "inputs": {"x": {"data_type": "INT8"}}}, "This chain takes INT8; the input here is float32."),
    ],
)  # fmt: skip
def test_what_is_no_chain_is_refused_with_a_sentence(
    server: str, browser: Any, tmp_path: Path, document: Any, sentence: str
) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    (tmp_path / "chain.json").write_text(text, "utf-8")
    with opened(browser, server) as page:
        page.set_input_files("#chain-file", tmp_path / "chain.json")
        page.wait_for_selector(f'#verdict:has-text("{sentence}")')
        assert titles(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_chain_and_nothing_is_cut(server: str, browser: Any, scheme: str) -> None:
    with opened(browser, server, viewport={"width": 1360, "height": 900}, color_scheme=scheme) as page:
        three_steps(page)
        look_at(page, 1)
        changed_by(page, lambda: page.select_option("#type", "float32"))
        error_at(page, 3)
        page.evaluate(AXE.read_text("utf-8"))
        found = page.evaluate("axe.run()")
        serious = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in serious] == []
        for width in (1360, 900, 375, 360):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") == width
