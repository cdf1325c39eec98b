# ruff: noqa: T201  # a demo prints
"""Starts a server, sends it a photograph through the SDK, and writes what comes back into a folder of pictures.

Run it with `make demo`, or `python examples/demo.py --help`.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import skimage
from PIL import Image, ImageDraw

from tensorpost import BufferTensorDesc, Client, OperatorDesc, Result, TileOperatorDesc, parse_operator

REPEATS = (1, 1, 2, 3)
SHRINK = 0.25
PAPER = (255, 255, 255)
INK = (40, 40, 40)
MARGIN = 12


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the pictures")
    parser.add_argument("--readme-images", type=Path, help="also write the README's small pictures into this folder")
    chosen = parser.parse_args(arguments)
    chosen.output.mkdir(parents=True, exist_ok=True)

    with running_server() as url, Client(url) as tp:
        photo = read_photo(chosen.output)
        sheets = {"tile": show_tile(tp, photo, chosen.output), "resample": show_resample(tp, photo, chosen.output)}
    print("\nThe server has been stopped.")
    if chosen.readme_images:
        write_readme_images(sheets, chosen.readme_images)
    print(NEXT)


NEXT = """
To go on:
  make serve                                  a server of your own, on 127.0.0.1:8000; Ctrl+C stops it
  http://127.0.0.1:8000/                      its page: any operator on a picture or an array of yours
  http://127.0.0.1:8000/docs                  every request it understands, to try in the browser
  .venv/bin/tensorpost operators              every operator
  README.md                                   the same calls from curl and from Python"""


@contextlib.contextmanager
def running_server() -> Iterator[str]:
    """A server in a process of its own, on a free port; its address is the last word of the line it prints."""
    command = [sys.executable, "-m", "tensorpost", "serve", "--port", "0", "--log-level", "warning"]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 # this interpreter, our words
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start: {' '.join(command)} ended with status {process.wait()}")
        url = line.split()[-1]
        print(f"1. Started a server at {url} in {time.perf_counter() - begin:.1f} s")
        with Client(url) as tp:
            devices = [row for row in tp.devices()["devices"] if row["auto"] and row["device"]]
        print("   It computes on: " + "; ".join(f"{row['name']}, {row['device']}" for row in devices))
        yield url
    finally:
        process.terminate()
        process.wait()


def read_photo(output: Path) -> np.ndarray[Any, Any]:
    """The cat that scikit-image ships, as a tensor of batch, channel, row and column."""
    path = Path(skimage.__file__).parent / "data" / "chelsea.png"
    picture = Image.open(path).convert("RGB")
    picture.save(output / "before.png")
    tensor = np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1)[None])
    print(f"\n2. Read a photograph of {picture.width} x {picture.height} pixels, {path.name} of scikit-image")
    print(f"   As a tensor: {in_words(tensor)}")
    print(f"   wrote {output / 'before.png'}")
    return tensor


def show_tile(tp: Client, photo: np.ndarray[Any, Any], output: Path) -> Image.Image:
    """Lay copies of the photograph side by side, check the answer, and draw before and after."""
    print(f"\n3. TILE with Repeats {list(REPEATS)}")
    result = timed(lambda: tp.call(TileOperatorDesc.of(describe(photo), REPEATS), photo))
    np.testing.assert_array_equal(result.array, np.tile(photo, REPEATS))
    print("   Every byte is what numpy.tile gives")
    save(result.array, output / "after.png")
    return sheet([("before", picture_of(photo)), ("after", picture_of(result.array).resize((676, 300)))])


def show_resample(tp: Client, photo: np.ndarray[Any, Any], output: Path) -> Image.Image:
    """Shrink the photograph in three ways and draw them side by side, enlarged so that the difference shows."""
    ways = {
        "nearest": {"InterpolationMode": "NEAREST_NEIGHBOR"},
        "linear": {"InterpolationMode": "LINEAR"},
        "linear, antialiased": {"InterpolationMode": "LINEAR", "Antialiased": True},
    }
    drawn: list[tuple[str, Image.Image]] = []
    for number, (name, fields) in enumerate(ways.items(), start=4):
        print(f"\n{number}. RESAMPLE3 to {SHRINK:.0%} of height and width: {name}")
        result = timed(lambda fields=fields: tp.call(resample(photo, fields), photo))
        small = save(result.array, output / f"{name.replace(', ', '-')}.png")
        drawn.append((name, small.resize((small.width * 2, small.height * 2), Image.Resampling.NEAREST)))
    side_by_side = sheet(drawn)
    side_by_side.save(output / "resampled.png")
    print(f"\n   wrote {output / 'resampled.png'}, the three of them side by side")
    return side_by_side


def resample(photo: np.ndarray[Any, Any], fields: dict[str, Any]) -> OperatorDesc:
    """The descriptor; what is left out (output tensor, pixel offsets) follows from the rest."""
    desc = {
        "InputTensor": {"DataType": photo.dtype.name.upper(), "Sizes": photo.shape},
        "RoundingDirection": "DECREASING",
        "Scales": [1, 1, SHRINK, SHRINK],
        **fields,
    }
    return parse_operator({"type": "RESAMPLE3", "desc": desc}, complete=True)


def timed(call: Callable[[], Result[Any]]) -> Result[Any]:
    """Make a call and print how long it took here, and how long each stage took over there."""
    begin = time.perf_counter()
    result = call()
    took = time.perf_counter() - begin
    stages = ", ".join(f"{name} {ms:.2f}" for name, ms in result.server_timing.items())
    print(f"   Answer: {in_words(result.array)}, after {took * 1e3:.1f} ms")
    print(f"   computed by {result.backend} on {result.device}; milliseconds there: {stages}")
    return result


def describe(tensor: np.ndarray[Any, Any]) -> BufferTensorDesc:
    """The tensor's description, as DirectML has it."""
    return BufferTensorDesc.packed(tensor.dtype.name.upper(), tensor.shape)


def in_words(tensor: np.ndarray[Any, Any]) -> str:
    """Type, sizes and bytes."""
    return f"{tensor.dtype} of sizes {' x '.join(map(str, tensor.shape))}, {tensor.nbytes:,} bytes"


def picture_of(tensor: np.ndarray[Any, Any]) -> Image.Image:
    """The first picture of a batch."""
    return Image.fromarray(np.ascontiguousarray(tensor[0].transpose(1, 2, 0)))


def save(tensor: np.ndarray[Any, Any], path: Path) -> Image.Image:
    """Write the first picture of a batch."""
    picture = picture_of(tensor)
    picture.save(path)
    print(f"   wrote {path}, {picture.width} x {picture.height} pixels")
    return picture


def sheet(pictures: Sequence[tuple[str, Image.Image]]) -> Image.Image:
    """The pictures side by side, each under its name."""
    width = sum(picture.width + MARGIN for _, picture in pictures) + MARGIN
    height = max(picture.height for _, picture in pictures) + 3 * MARGIN + MARGIN // 2
    paper = Image.new("RGB", (width, height), PAPER)
    draw, left = ImageDraw.Draw(paper), MARGIN
    for name, picture in pictures:
        draw.text((left, MARGIN // 2), name, fill=INK, font_size=15)
        paper.paste(picture, (left, 2 * MARGIN + MARGIN // 2))
        left += picture.width + MARGIN
    return paper


def write_readme_images(sheets: dict[str, Image.Image], folder: Path) -> None:
    """Small enough for a README: at most 800 pixels wide, 128 colours."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, paper in sheets.items():
        path = folder / f"{name}.png"
        paper.thumbnail((800, 400), Image.Resampling.LANCZOS)
        paper.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
        print(f"wrote {path}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
