"""The shell lines of docs/http.md, run as they stand against a server, and what they wrote."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.support.live_server import default_server

PAGE = Path(__file__).parents[2] / "docs" / "http.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the lines are for curl, which is not installed")
def test_the_curl_lines_of_the_page_work(tmp_path: Path):
    pixels = np.random.default_rng(13).integers(0, 256, (6, 4, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    with default_server() as url:
        for block in blocks:
            script = block.replace("curl ", "curl -sS ").replace("localhost:8000", url.removeprefix("http://"))
            done = subprocess.run(
                ["sh", "-ec", script], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, (block, done.stdout, done.stderr)
    assert (tmp_path / "tiled.bin").read_bytes() == (tmp_path / "joined.bin").read_bytes() == bytes(48)
    assert (tmp_path / "rest.bin").read_bytes() == bytes(24)
    with Image.open(tmp_path / "big.webp") as image:
        assert (image.format, image.size) == ("WEBP", (8, 12))
