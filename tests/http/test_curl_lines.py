"""The shell lines of http.md, wire.md and tensors.md in docs, run as they stand, and what they wrote."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.support.live_server import default_server

DOCS = Path(__file__).parents[2] / "docs"
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="the lines are for curl, which is not installed")


def run_lines(page: str, folder: Path) -> None:
    """Run all shell lines of a page in a folder."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", DOCS.joinpath(page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    with default_server() as url:
        for block in blocks:
            script = block.replace("curl ", "curl -sS ").replace("localhost:8000", url.removeprefix("http://"))
            done = subprocess.run(
                ["sh", "-ec", script], check=False, cwd=folder, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, (block, done.stdout, done.stderr)


@needs_curl
def test_the_curl_lines_of_the_page_work(tmp_path: Path):
    pixels = np.random.default_rng(13).integers(0, 256, (6, 4, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    run_lines("http.md", tmp_path)
    assert (tmp_path / "tiled.bin").read_bytes() == (tmp_path / "joined.bin").read_bytes() == bytes(48)
    assert (tmp_path / "rest.bin").read_bytes() == bytes(24)
    with Image.open(tmp_path / "big.webp") as image:
        assert (image.format, image.size) == ("WEBP", (8, 12))


@needs_curl
def test_a_tensor_with_strides_is_sent_as_its_buffer(tmp_path: Path):
    np.save(tmp_path / "rows.npy", np.array([1, 2, 3, 0, 4, 5, 6], np.float32).view(np.uint8))

    run_lines("wire.md", tmp_path)

    assert np.load(tmp_path / "tiled.npy").tolist() == [[1, 2, 3, 1, 2, 3], [4, 5, 6, 4, 5, 6]]


@needs_curl
def test_a_tensor_is_held_read_and_deleted(tmp_path: Path):
    mask = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "mask.npy", mask)

    run_lines("tensors.md", tmp_path)

    assert np.load(tmp_path / "tiled.npy").tolist() == np.tile(mask[:1], (2, 2)).tolist()
