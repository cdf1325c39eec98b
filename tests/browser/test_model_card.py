"""An ONNX model on the page at `/`: opened, filled with the page's picture, run, looked at, and copied."""

# ruff: noqa: RUF001  # the page writes shapes with a multiplication sign
from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.browser.page_actions import opened
from tests.support.browser import MISSING
from tests.support.http_app import eventually, serving

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
onnx = pytest.importorskip("onnx", reason="models for these tests are made by the package onnx")

ROOT = Path(__file__).parents[2]
AXE = Path(__file__).with_name("axe.min.js")


def model(text: str) -> dict[str, Any]:
    """A file to choose."""
    content = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}').SerializeToString()
    return {"name": "my model.onnx", "mimeType": "application/octet-stream", "buffer": content}


MEANS = """means (float[n, 3, 16, 24] x) => (float[n, 3] y, float[n, 3, 16, 24] z)
    { m = ReduceMean <axes = [2, 3], keepdims = 0> (x) y = Neg(m) z = Neg(x) }"""
TWO = """two (float[n, 4] x, float[4] w) => (float[n, 4] y) { y = Mul(x, w) }"""


def open_model(page: Any, file: dict[str, Any]) -> None:
    page.set_input_files("#file", file)
    page.wait_for_selector("#model[data-round]")


def changed(page: Any, action: Any) -> None:
    """Do something, and wait until the model has been run again."""
    before = page.get_attribute("#model", "data-round")
    action()
    page.wait_for_selector(f"#model:not([data-round='{before}'])")


def downloaded(page: Any, selector: str) -> Any:
    with page.expect_download() as download:
        page.click(selector)
    return np.load(io.BytesIO(Path(download.value.path()).read_bytes()))


def photograph(size: tuple[int, int]) -> Any:
    """The page's picture in another size, as channels x height x width from 0 to 1; each pixel a mean of many."""
    with Image.open(ROOT / "app/tensorpost_server/playground/sample.webp") as image:
        small = image.convert("RGB").resize(size, Image.Resampling.BOX)
    return np.moveaxis(np.asarray(small), -1, 0) / 255


def test_a_model_is_opened_run_on_the_picture_and_copied(server: str, browser: Any, tmp_path: Path) -> None:
    file = model(MEANS)
    with opened(browser, server) as page:
        assert not page.is_visible("#model")
        open_model(page, file)
        assert "my model.onnx" in page.inner_text("#model-about")
        assert "3 nodes" in page.inner_text("#model-about")
        assert "n × 3 × 16 × 24" in page.inner_text("#model-inputs")

        x = downloaded(page, "[aria-label='Save x as npy']")
        assert (x.shape, x.dtype) == ((1, 3, 16, 24), np.float32)
        np.testing.assert_allclose(x[0], photograph((24, 16)), atol=0.15)  # the browser's filter is another one
        assert abs(float(x.mean()) - photograph((24, 16)).mean()) < 0.01
        y, z = (downloaded(page, f"[aria-label='Save {name} as npy']") for name in "yz")
        np.testing.assert_allclose(y, -x.mean((2, 3)), rtol=1e-5)
        np.testing.assert_array_equal(z, -x)
        rows = page.eval_on_selector_all(
            "[aria-label='Largest values of y'] tbody tr", "rows => rows.map(row => row.textContent)"
        )
        assert len(rows) == 3
        assert int(rows[0][0]) == int(np.argmax(y))
        assert page.get_attribute("#model-outputs canvas", "aria-label") == "z: float32, 1 × 3 × 16 × 24"

        changed(page, lambda: page.select_option("[aria-label='Range of the picture for x']", "imagenet"))
        normal = downloaded(page, "[aria-label='Save x as npy']")
        mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        np.testing.assert_allclose(normal[0], (x[0] - mean[:, None, None]) / deviation[:, None, None], atol=1e-5)
        changed(page, lambda: page.click("[data-sample=card]"))
        assert not np.allclose(downloaded(page, "[aria-label='Save x as npy']"), normal)

        np.save(tmp_path / "x.npy", x)
        (tmp_path / file["name"]).write_bytes(file["buffer"])
        page.click("#model details summary")
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
        for language, command in (("curl", ["sh", "-c"]), ("python", [sys.executable, "-c"])):
            page.click(f"[data-copy='#model-{language}']")
            shown = page.text_content(f"#model-{language}")
            eventually(
                lambda shown=shown: page.evaluate("navigator.clipboard.readText()") == shown, "the clipboard holds it"
            )
            subprocess.run([*command, shown], cwd=tmp_path, env=environment, check=True, timeout=60)
        with np.load(tmp_path / "output.npz") as found:
            np.testing.assert_array_equal(found["z"], -x)
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), -x.mean((2, 3)), rtol=1e-5)

        page.click("#model-close")
        assert not page.is_visible("#model")


def test_sides_that_the_model_leaves_open_are_chosen(server: str, browser: Any) -> None:
    free = """free (float[n, h, w, 1] x) => (float[n, h, w, 1] y) { y = Neg(x) }"""
    with opened(browser, server) as page:
        open_model(page, model(free))
        shape = downloaded(page, "[aria-label='Save x as npy']").shape
        assert shape[0] == shape[3] == 1
        assert {side % 32 for side in shape[1:3]} == {0}
        sides = "[aria-label='Rows and columns of the picture for x']"
        changed(page, lambda: (page.fill(sides, "40, 60"), page.press(sides, "Tab")))
        x, y = (downloaded(page, f"[aria-label='Save {name} as npy']") for name in "xy")
        assert x.shape == (1, 40, 60, 1)
        np.testing.assert_array_equal(y, -x)
        grey = np.tensordot(photograph((60, 40)), [0.299, 0.587, 0.114], axes=(0, 0))
        np.testing.assert_allclose(x[0, ..., 0], grey, atol=0.15)
        page.fill(sides, "40")
        page.press(sides, "Tab")
        page.wait_for_selector("#model-error:has-text('two whole numbers')")


def test_inputs_are_numbers_files_and_what_does_not_fit_is_said(server: str, browser: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(8, dtype=np.float32).reshape(2, 4))
    np.save(tmp_path / "wrong.npy", np.arange(8, dtype=np.float32))
    with opened(browser, server) as page:
        open_model(page, model(TWO))
        assert downloaded(page, "[aria-label='Save y as npy']").tolist() == [[0, 0, 0, 0]]
        page.select_option("#model-input-0", "file")
        assert "Choose a file for x" in page.inner_text("#model-error")
        page.set_input_files("[aria-label='File for x']", tmp_path / "wrong.npy")
        page.wait_for_selector("#model-error:has-text('has the shape 8, and the model takes n × 4')")
        changed(page, lambda: page.set_input_files("[aria-label='File for x']", tmp_path / "x.npy"))
        changed(
            page,
            lambda: (page.fill("[aria-label='Number for w']", "2"), page.press("[aria-label='Number for w']", "Tab")),
        )
        np.testing.assert_array_equal(
            downloaded(page, "[aria-label='Save y as npy']"), 2 * np.arange(8, dtype=np.float32).reshape(2, 4)
        )
        assert page.inner_text("#model-outputs .values") == "0, 2, 4, 6, 8, 10, 12, 14"


def test_what_the_server_refuses_is_said_at_the_model(browser: Any) -> None:
    with serving(backend="numpy", max_stored_graphs=0) as server, browser.new_context() as context:
        page = context.new_page()
        page.goto(server.url)
        page.wait_for_selector("#result[data-round]")
        page.set_input_files("#file", model(TWO))
        page.wait_for_selector("#model-error:has-text('TENSORPOST_MAX_STORED_GRAPHS')")
        page.set_input_files("#file", {"name": "x.onnx", "mimeType": "", "buffer": b"nothing"})
        page.wait_for_selector("#model-error:has-text('ONNX')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_model(server: str, browser: Any, scheme: str) -> None:
    with opened(browser, server, color_scheme=scheme, viewport={"width": 390, "height": 844}) as page:
        open_model(page, model(MEANS))
        page.click("#model details summary")
        page.evaluate(AXE.read_text("utf-8"))
        found = page.evaluate("axe.run('#model')")
        serious = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in serious] == []
        assert page.evaluate("document.documentElement.scrollWidth") == 390
