"""Pictures of the pages, on a desktop and a phone, light and dark: `python -m tests.browser.screenshots FOLDER`.

The pages are the one at `/`, `/docs`, and those of operators. Without a folder, the two that the documents show are
made anew in docs/images.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from tests.support.browser import MISSING, open_browser
from tests.support.http_app import serving

IMAGES = Path(__file__).parents[2] / "docs/images"
SIZES = {"desktop": {"width": 1280, "height": 820}, "phone": {"width": 390, "height": 844}}
SHOWN = {("desktop", "light"): "playground.png", ("phone", "dark"): "playground-phone.png"}
PAGES = {
    "playground": ("", "#result[data-round]"),
    "docs": ("/docs", "h1"),
    "operator": ("/docs/operators/resample2", "h1"),
    "onnx-operator": ("/docs/onnx/Resize", "h1"),
}
"""The path of each page, and what is there when it is complete."""
COLOURS = 200  # of a picture in the documents


def main(folder: Path | None) -> None:
    """Take the pictures."""
    if MISSING is not None:
        raise SystemExit(MISSING)
    with serving() as server, open_browser() as browser:
        for device, viewport in SIZES.items():
            for scheme in ("light", "dark"):
                if folder is None and (device, scheme) not in SHOWN:
                    continue
                context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")  # pyright: ignore[reportArgumentType] # two of Playwright's literals
                page = context.new_page()
                for name, (path, complete) in PAGES.items():
                    if folder is None and name != "playground":
                        continue
                    page.goto(server.url + path)
                    page.wait_for_selector(complete)
                    if folder is None:
                        shown(page, device)
                        save(page.screenshot(), IMAGES / SHOWN[device, scheme])
                    else:
                        page.screenshot(path=folder / f"{name}-{device}-{scheme}.png", full_page=name != "docs")
                context.close()


def shown(page: Any, device: str) -> None:
    """What the documents say of the picture: Resample on a desktop; on a phone Tile, from the verdict on."""
    if device == "desktop":
        before = page.get_attribute("#result", "data-round")
        page.check("input[value='directml:resample2']")
        page.wait_for_selector(f"#result:not(.stale):not([data-round='{before}'])")
    else:
        page.evaluate("document.querySelector('#verdict').closest('.card').scrollIntoView()")


def save(content: bytes, path: Path) -> None:
    """In few colours, since the repository keeps every version."""
    with Image.open(io.BytesIO(content)) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    sys.stdout.write(f"{path}: {path.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
