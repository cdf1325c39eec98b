"""`preprocess`: photographs to a batch, against Pillow's filter on planes of float32."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tensorpost import Client, MapProgress
from tensorpost.command_line.cli import app as command_line
from tensorpost.problems import InvalidFrame, InvalidParameter, TensorpostError

RNG = np.random.default_rng(11)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Pixels = np.ndarray[Any, Any]


def photo(rows: int, columns: int, channels: int = 3, top: int = 256) -> Pixels:
    smooth = RNG.uniform(0, top, (rows, columns, channels))
    return smooth.astype(np.uint16 if top > 256 else np.uint8)


def expected(pixels: Pixels, sides: tuple[int, int], crop: tuple[int, int] | None = None) -> Pixels:
    """By Pillow, plane by plane: numbers from 0 to 1, rows, columns and three channels."""
    planes = pixels.reshape(*pixels.shape[:2], -1)
    planes = planes[..., :3] if planes.shape[2] > 2 else np.repeat(planes[..., :1], 3, 2)
    resized = [
        np.asarray(
            Image.fromarray(planes[..., each].astype(np.float32)).resize(
                (sides[1], sides[0]), Image.Resampling.BILINEAR
            )
        )
        for each in range(3)
    ]
    made = np.stack(resized, -1) / (255 if pixels.dtype == np.uint8 else 65535)
    if crop is not None:
        # As torchvision's CenterCrop has it: a half goes to the even number.
        top, left = round((sides[0] - crop[0]) / 2), round((sides[1] - crop[1]) / 2)
        made = made[top : top + crop[0], left : left + crop[1]]
    return made


def near(found: Pixels, wanted: Pixels, step: float = 1e-5) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=step)


def test_pictures_of_every_kind_become_one_batch(connect: Callable[..., Any], server_url: str, tmp_path: Path) -> None:
    pixels = [photo(40, 60), photo(64, 30), photo(20, 20, 4), photo(33, 47, 1), photo(50, 41)]
    buffer = io.BytesIO()
    Image.fromarray(pixels[1]).save(buffer, "png")
    path = tmp_path / "a.png"
    Image.fromarray(pixels[0]).save(path)
    files: list[Any] = [path, buffer.getvalue(), Image.fromarray(pixels[2]), pixels[3][..., 0], pixels[4]]
    seen: list[MapProgress] = []
    batch = connect(server_url).preprocess(files, size=16, in_flight=2, progress=seen.append)

    assert (batch.dtype, batch.shape) == (np.float32, (5, 3, 16, 16))
    for made, each in zip(batch, pixels, strict=True):
        near(made.transpose(1, 2, 0), expected(each, (16, 16)))
    assert seen[-1] == MapProgress(5, 5)


@pytest.fixture(scope="module")
def tp(server_url: str) -> Iterator[Client]:
    with Client(server_url) as client:
        yield client


def test_mean_deviation_layout_and_type(tp: Client) -> None:
    pixels = photo(30, 40)
    wanted = (expected(pixels, (8, 12)) - MEAN) / STD
    near(tp.preprocess([pixels], size=(8, 12), mean=MEAN, std=STD, layout="NHWC")[0], wanted, 1e-4)
    half = tp.preprocess([pixels], size=(8, 12), mean=MEAN, std=STD, dtype=np.float16)
    assert half.dtype == np.float16
    near(half[0].astype(np.float32).transpose(1, 2, 0), wanted, 4e-3)
    near(tp.preprocess([pixels], size=(8, 12), mean=0.5, layout="NHWC")[0], expected(pixels, (8, 12)) - 0.5)


@pytest.mark.parametrize(("rows", "columns", "sides"), [(40, 60, (20, 30)), (60, 40, (30, 20)), (31, 45, (20, 29))])
def test_a_crop_keeps_the_middle_and_the_ratio(tp: Client, rows: int, columns: int, sides: tuple[int, int]) -> None:
    pixels = photo(rows, columns)
    batch = tp.preprocess([pixels], size=20, crop=(14, 10), layout="NHWC")

    near(batch[0], expected(pixels, sides, (14, 10)))


def test_sixteen_bits_are_divided_by_their_own_largest(tp: Client) -> None:
    pixels = photo(20, 24, 1, 65536)
    near(tp.preprocess([pixels], size=8, layout="NHWC")[0], expected(pixels, (8, 8)))


def test_no_photograph_is_an_empty_batch(tp: Client) -> None:
    assert tp.preprocess([]).shape == (0, 3, 224, 224)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layout": "HWC"}, "layout is 'HWC'; it must be 'NCHW' or 'NHWC'"),
        ({"dtype": "uint8"}, "dtype is uint8; it must be float32 or float16"),
        ({"size": (1, 2, 3)}, "size is .*one number, or rows and columns"),
        ({"size": 0}, "size"),
        ({"size": 20, "crop": 30}, "the shorter side has 20 pixels"),
        ({"size": (20, 30), "crop": 10}, "with crop, size is one number"),
        ({"mean": (1, 2)}, "mean has 2 numbers"),
        ({"mean": (0.4, 123.675, 0.4)}, "mean is .*123.675.*; means are of values from 0 to 1: divide .* by 255"),
        ({"mean": 127.5}, "mean is 127.5; means are of values from 0 to 1"),
        ({"std": (1, 0, 1)}, "std has a 0"),
        ({"in_flight": 0}, "in_flight"),
    ],
)
def test_wrong_arguments_are_named(tp: Client, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        tp.preprocess([], **options)


def test_what_is_no_photograph_is_named(tp: Client, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("none")
    with pytest.raises(InvalidParameter, match="must be a list of photographs"):
        tp.preprocess(cast("Any", "a.png"))
    with pytest.raises(InvalidParameter, match=r"float64 of the shape \(2, 3\)"):
        tp.preprocess([np.zeros((2, 3))])
    with pytest.raises(InvalidFrame, match=r"notes\.txt is not a picture"):
        tp.preprocess([text])


def test_a_bad_file_among_many_is_named(tp: Client, server_url: str, tmp_path: Path) -> None:
    """Also where the server finds out that it is bad."""
    files = [tmp_path / f"{name}.png" for name in ("good", "bad", "better")]
    for file in files:
        Image.fromarray(photo(40, 30)).save(file)
    files[1].write_bytes(files[1].read_bytes()[:-2000])
    with pytest.raises(TensorpostError, match=r"bad\.png: the body cannot be read as a picture"):
        tp.preprocess(files, size=8)
    with pytest.raises(TensorpostError, match=r"^inputs\[1\]: the body cannot be read as a picture"):
        tp.preprocess([file.read_bytes() for file in files], size=8)
    names = [*map(str, files)]
    arguments = ["preprocess", *names, "-o", str(tmp_path / "batch.npy"), "--url", server_url, "--size", "8"]
    found = CliRunner().invoke(command_line, arguments)
    assert found.exit_code != 0
    assert "bad.png: the body cannot be read" in "".join(found.output.split("\n")).replace("  ", " ")


def test_on_the_command_line(server_url: str, tmp_path: Path) -> None:
    pixels, files = [photo(30, 40), photo(44, 26)], [tmp_path / "a.png", tmp_path / "b.png"]
    for each, path in zip(pixels, files, strict=True):
        Image.fromarray(each).save(path)
    target = tmp_path / "batch.npy"
    command = [
        "preprocess",
        *map(str, files),
        "-o",
        str(target),
        "--url",
        server_url,
        "--size",
        "12",
        "--layout",
        "NHWC",
    ]
    result = CliRunner().invoke(command_line, [*command, "--mean", "0.5", "--std", "0.5,0.25,0.2"])
    assert result.exit_code == 0, result.output
    batch = np.load(target)

    assert batch.shape == (2, 12, 12, 3)
    for made, each in zip(batch, pixels, strict=True):
        near(made, (expected(each, (12, 12)) - 0.5) / (0.5, 0.25, 0.2), 1e-4)
    result = CliRunner().invoke(
        command_line, [*command, "--mean", "0.5", "--std", "0.5,0.25,0.2", "-o", str(tmp_path / "batch.safetensors")]
    )
    assert result.exit_code == 0, result.output
    assert tmp_path.joinpath("batch.safetensors").read_bytes().endswith(batch.tobytes())
    for more, words in ((["--mean", "x"], "not a number"), (["--size", "0"], "0"), (["--crop", "40"], "shorter side")):
        refused = CliRunner().invoke(command_line, [*command, *more])
        assert refused.exit_code != 0
        assert words in refused.output


@pytest.mark.parametrize("suffix", [".zarr", ".png"])
def test_other_formats_are_refused_on_the_command_line(tmp_path: Path, suffix: str) -> None:
    result = CliRunner().invoke(command_line, ["preprocess", "x.jpg", "-o", str(tmp_path / f"batch{suffix}")])
    assert result.exit_code == 1
    assert "end -o in .npy" in str(result.exception) + result.output
    assert not list(tmp_path.iterdir())
