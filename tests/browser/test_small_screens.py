"""A volume's planes, beside each tensor; and what a phone shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.browser.page_actions import changed_by, opened

PHONE = {"viewport": {"width": 360, "height": 740}}


def picture(page: Any, figure: str) -> str:
    return page.evaluate(f"document.querySelector('#{figure} canvas').toDataURL()")


def test_a_plane_is_chosen_for_the_input_and_for_the_output(server: str, browser: Any, tmp_path: Path) -> None:
    volume = np.arange(5 * 16 * 16, dtype=np.float32).reshape(5, 16, 16) % 97
    np.save(tmp_path / "volume.npy", volume)
    with opened(browser, server) as page:
        assert page.locator("#input .plane").is_hidden()
        changed_by(page, lambda: page.set_input_files("#file", tmp_path / "volume.npy"))
        planes = {figure: page.locator(f"#{figure} .plane input") for figure in ("input", "output")}
        assert planes["input"].get_attribute("max") == "4"
        for chosen, other in (("input", "output"), ("output", "input")):
            before = {figure: picture(page, figure) for figure in planes}
            planes[chosen].fill("2")
            assert picture(page, chosen) != before[chosen]
            assert picture(page, other) == before[other]


def test_a_phone_shows_pictures_as_wide_as_it_is_and_the_whole_drawing(server: str, browser: Any) -> None:
    with opened(browser, server, **PHONE) as page:
        changed_by(page, lambda: page.check("[name=kind][value='directml:resample2']", force=True))
        page.wait_for_selector("#taps svg")
        for figure in ("input", "output"):
            box = page.locator(f"#{figure} canvas").bounding_box()
            assert box["width"] >= 330
        drawing, around = page.locator("#taps svg").bounding_box(), page.locator("#taps").bounding_box()
        assert drawing["width"] <= around["width"] + 1
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
