"""`tensorpost resample`, against the real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.support.command_line import Done, invoke
from tests.support.live_server import default_server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with default_server() as address:
        yield address


def resample(url: str, *arguments: str) -> Done:
    return invoke("resample", *arguments, "--url", url)


def test_a_picture_grows_by_scale(url: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in.png", tmp_path / "out.png"
    pixels = np.array([[[0, 10, 20], [100, 110, 120]]], np.uint8)
    Image.fromarray(pixels).save(source)

    done = resample(url, str(source), "-o", str(target), "--scale", "2")

    assert done.returncode == 0, done.stderr
    # Centres at x = -0.25, 0.25, 0.75, 1.25: 0, 25, 75, 100 in the first channel, in both rows.
    assert np.asarray(Image.open(target))[:, :, 0].tolist() == [[0, 25, 75, 100], [0, 25, 75, 100]]


def test_an_array_is_resized_along_the_axes_given(url: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"
    np.save(source, np.array([[10, 20, 30]], np.float32))

    done = resample(url, str(source), "-o", str(target), "--size", "6", "--axes", "-1", "--mode", "nearest")

    assert done.returncode == 0, done.stderr
    assert np.load(target).tolist() == [[10, 10, 20, 20, 30, 30]]


@pytest.mark.parametrize(
    ("option", "expected"),
    [("--antialias", [8 * 3.5 / 14, 8 * 0.5 / 14]), ("--antialias-directml", [2, 0])],  # by hand, as in test_resampling
)
def test_each_filter_has_an_option(url: str, tmp_path: Path, option: str, expected: list[float]) -> None:
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"
    np.save(source, np.array([0, 0, 8, 0, 0, 0, 0, 0], np.float32))

    done = resample(url, str(source), "-o", str(target), "--size", "2", "--axes", "0", option)

    assert done.returncode == 0, done.stderr
    assert np.load(target) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--scale", "2", "--size", "4"), 2, "exactly one of --scale and --size"),
        ((), 2, "exactly one of --scale and --size"),
        (("--scale", "two"), 2, "'two' is not a number or a list"),
        (("--scale", "0"), 2, "above 0"),
        (("--scale", "2", "--axes", "5"), 1, "5"),
        (("--scale", "2", "--mode", "cubic"), 2, "cubic"),
        (("--scale", "0.25", "--mode", "nearest", "--antialias"), 2, "antialias"),
        (("--scale", "0.25", "--antialias", "--antialias-directml"), 2, "not both"),
        (("--scale", "0.25", "--antialias", "--level", "6_3"), 2, "--antialias-directml"),
    ],
)
def test_what_is_wrong_is_said(url: str, tmp_path: Path, arguments: tuple[str, ...], status: int, said: str) -> None:
    source = tmp_path / "in.npy"
    np.save(source, np.zeros((2, 3), np.float32))

    done = resample(url, str(source), "-o", str(tmp_path / "out.npy"), *arguments)

    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
    assert not (tmp_path / "out.npy").exists()
