"""What the README and its neighbours promise, run: the curl lines, the Python block, the demo, the make targets."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.support.live_server import live_server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ADDRESS = "localhost:8000"
X = np.arange(1, 7, dtype=np.float32).reshape(1, 1, 2, 3)
# Linear, twice the size, pixel centres aligned: the neighbours' weights are 1/4 and 3/4. By hand.
TWICE = [
    [1.0, 1.25, 1.75, 2.25, 2.75, 3.0],
    [1.75, 2.0, 2.5, 3.0, 3.5, 3.75],
    [3.25, 3.5, 4.0, 4.5, 5.0, 5.25],
    [4.0, 4.25, 4.75, 5.25, 5.75, 6.0],
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with live_server() as url:
        yield url.removeprefix("http://")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed, and the lines are for curl")
def test_the_curl_lines(address: str, tmp_path: Path) -> None:
    (block,) = blocks("bash")
    picture = np.random.default_rng(3).integers(0, 256, (6, 4, 3), np.uint8)
    (tmp_path / "demo-output").mkdir()
    Image.fromarray(picture).save(tmp_path / "demo-output" / "before.png")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.replace(ADDRESS, address)],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip

    assert run.stderr == ""
    np.testing.assert_array_equal(X, np.load(tmp_path / "x.npy"))
    np.testing.assert_array_equal(np.block([[X] * 3] * 3), np.load(tmp_path / "y.npy"))
    # Pixel centres at half the size lie between four pixels.
    means = picture.reshape(3, 2, 2, 2, 3).mean((1, 3))
    assert np.abs(np.asarray(Image.open(tmp_path / "half.png")) - means).max() <= 1
    image = np.load(tmp_path / "image.npy")
    assert image.shape == (1, 3, 224, 224)
    corner = (picture[0, 0] - np.array([123.675, 116.28, 103.53])) / [58.395, 57.12, 57.375]  # no other pixel is near
    np.testing.assert_allclose(image[0, :, 0, 0], corner, rtol=1e-5)
    printed = [json.loads(line) for line in run.stdout.replace("}{", "}\n{").splitlines()]
    for answer in printed[:2]:
        (output,) = answer["tensors"].values()
        np.testing.assert_array_equal(TWICE, np.reshape(output["data"], (4, 6)))
    assert printed[2]["status"] == 422
    assert [violation["path"] for violation in printed[2]["violations"]] == ["$.desc.Repeats[2]"]
    seen = len(printed) + len([file for file in tmp_path.iterdir() if file.is_file()])
    assert block.count("curl ") == seen, "a line whose answer is not looked at above"


def test_the_python_block(address: str) -> None:
    (block,) = blocks("python")
    names: dict[str, object] = {}
    exec(compile(block.replace(ADDRESS, address), "README.md", "exec"), names)

    np.testing.assert_array_equal(np.block([[X] * 3] * 3), np.asarray(names["tiled"]))
    for name in ("doubled", "resized", "upsampled"):
        np.testing.assert_array_equal(TWICE, np.asarray(names[name])[0, 0])
    assert names["received"] == 240_000_000
    image = np.asarray(names["image"])
    assert (image.shape, image.dtype) == ((1, 3, 224, 224), np.float32)


def test_the_demo(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py", "--output", tmp_path, "--readme-images", tmp_path / "docs"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip

    assert "Every byte is what numpy.tile gives" in run.stdout
    assert "The server has been stopped" in run.stdout
    before, after = (np.asarray(Image.open(tmp_path / f"{name}.png")) for name in ("before", "after"))
    np.testing.assert_array_equal(np.tile(before, (2, 3, 1)), after)
    shrunk = [np.asarray(Image.open(tmp_path / f"{way}.png")) for way in ("nearest", "linear", "linear-antialiased")]
    assert {picture.shape for picture in shrunk} == {(75, 112, 3)}
    assert len({picture.tobytes() for picture in shrunk}) == 3, "two ways of shrinking gave the same picture"
    for name in ("tile", "resample"):
        assert 10_000 < (tmp_path / "docs" / f"{name}.png").stat().st_size < 150_000


@pytest.mark.skipif(sys.platform != "linux", reason="the peaks are read from /proc")
def test_the_proof_of_constant_memory_in_small(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--only=memory", "--gibibytes=0.25", f"--json={tmp_path / 'memory.json'}"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert run.returncode == 0, run.stdout + run.stderr
    assert "268,435,456 bytes arrived" in run.stdout
    assert "missed" not in run.stdout


def test_the_readmes_pictures_are_small() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)

    assert len(pictures) == 3
    for picture in pictures:
        assert (ROOT / picture).stat().st_size < 150_000
