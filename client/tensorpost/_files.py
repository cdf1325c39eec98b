"""Files and pipes for the command line: npy and pictures in and out. Pillow is loaded only when a picture is met."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from .problems import InvalidFrame, InvalidParameter

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["FORMATS", "Source", "destination", "format_of", "picture_bytes", "read_array"]

PIPE = "-"
FORMATS = {".npy": "npy", ".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
_NPY_MAGIC = b"\x93NUMPY"
_MODES_KEPT = ("L", "LA", "RGB", "RGBA", "I;16")
# Nothing is lost where the format allows it; JPEG always loses a little, and 95 is the most its own manual advises.
_SAVE_OPTIONS: dict[str, dict[str, Any]] = {"PNG": {}, "WEBP": {"lossless": True}, "JPEG": {"quality": 95}}


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """An array that was read.

    Attributes:
        array: the elements; of a picture height, width and, unless it is grey, channels.
        format: `npy`, `PNG`, `JPEG` or `WEBP`.
    """

    array: NDArray[Any]
    format: str

    @property
    def is_picture(self) -> bool:
        """Whether it was read from a picture."""
        return self.format != "npy"


class _Pipe:
    """A stream that cannot seek, with the bytes already taken from it put back."""

    def __init__(self, stream: BinaryIO, start: bytes) -> None:
        self._stream = stream
        self._start = start

    def read(self, size: int = -1) -> bytes:
        start = self._start if size < 0 else self._start[:size]
        self._start = self._start[len(start) :]
        return start + self._stream.read(size - len(start) if size >= 0 else -1)


def format_of(path: str) -> str | None:
    """The format a file's name stands for; None for a pipe.

    Raises:
        InvalidParameter: none that is written here.
    """
    if path == PIPE:
        return None
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise InvalidParameter(f"{path!r} names no format that is written here; end it in {', '.join(FORMATS)}")
    return FORMATS[suffix]


def read_array(path: str) -> Source:
    """Read an npy file (mapped, not loaded) or a picture, from a path or from standard input (`-`).

    The content decides which of the two it is, not the name.

    Raises:
        OSError: the file cannot be opened.
        InvalidFrame: it is neither, or broken.
        ModuleNotFoundError: a picture without Pillow; the message names the extra to install.
    """
    if path == PIPE:
        stream = sys.stdin.buffer
        start = stream.read(len(_NPY_MAGIC))
        pipe = _Pipe(stream, start)
        return _read_npy(path, pipe) if start == _NPY_MAGIC else _read_picture(path, pipe)
    with Path(path).open("rb") as file:
        start = file.read(len(_NPY_MAGIC))
        if start != _NPY_MAGIC:
            return _read_picture(path, _Pipe(file, start))
    return _read_npy(path, None)


def _read_npy(path: str, pipe: _Pipe | None) -> Source:
    try:
        if pipe is None:
            return Source(cast("NDArray[Any]", np.load(path, mmap_mode="r", allow_pickle=False)), "npy")
        return Source(npy.read_array(cast("Any", pipe), allow_pickle=False), "npy")
    except ValueError as error:
        raise InvalidFrame(f"{_name(path)} cannot be read as npy: {error}") from None


def _read_picture(path: str, pipe: _Pipe) -> Source:
    from io import BytesIO

    image_module, ops, unreadable = _pillow()
    content = pipe.read()
    try:
        with image_module.open(BytesIO(content), formats=["PNG", "JPEG", "WEBP"]) as image:
            if getattr(image, "n_frames", 1) > 1:
                raise InvalidFrame(f"{_name(path)} is animated; send one picture at a time")
            upright: Image = ops.exif_transpose(image)
            if upright.mode not in _MODES_KEPT:
                grey = upright.mode == "1"
                transparent = "transparency" in upright.info
                upright = upright.convert("L" if grey else "RGBA" if transparent else "RGB")
            return Source(np.asarray(upright), image.format or "PNG")
    except unreadable:
        raise InvalidFrame(f"{_name(path)} is neither npy nor a PNG, JPEG or WebP picture") from None
    except (OSError, SyntaxError, image_module.DecompressionBombError) as error:
        raise InvalidFrame(f"{_name(path)} cannot be read as a picture: {error}") from None


def picture_bytes(array: NDArray[Any], picture_format: str) -> bytes:
    """Write an array as a picture.

    Raises:
        InvalidParameter: the array is none, or the format has no such pictures.
        ModuleNotFoundError: without Pillow; the message names the extra to install.
    """
    from io import BytesIO

    image_module, _, _ = _pillow()
    grey = array.ndim == 2 and array.dtype.name in ("uint8", "uint16")
    colour = array.ndim == 3 and array.dtype == np.uint8 and array.shape[2] in (2, 3, 4)
    if not grey and not colour:
        raise InvalidParameter(
            f"{array.dtype} of shape {array.shape} is no picture: that is uint8 of height, width and 2 to 4 channels, "
            "or uint8 or uint16 of height and width; write .npy instead"
        )
    if picture_format == "JPEG" and array.ndim == 3 and array.shape[2] != 3:
        raise InvalidParameter("JPEG has no transparency; write .png or .webp instead")
    if picture_format != "PNG" and array.dtype == np.uint16:
        raise InvalidParameter(f"{picture_format} has 8 bits per channel; write .png instead")
    out = BytesIO()
    image_module.fromarray(array).save(out, picture_format, **_SAVE_OPTIONS[picture_format])
    return out.getvalue()


@contextlib.contextmanager
def destination(path: str) -> Generator[BinaryIO]:
    """Open a file, or standard output (`-`), for writing. A file appears under its name only when it is complete."""
    target = Path(path)
    if path == PIPE:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif target.exists() and not target.is_file():  # /dev/null and its like are written to, never replaced
        with target.open("wb") as file:
            yield file
    else:
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with part.open("xb") as file:
                yield file
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


def write_blocks(file: BinaryIO, head: bytes, blocks: Iterable[memoryview]) -> None:
    """Write a head and blocks; nothing at all until the first block is there."""
    for block in blocks:
        if head:
            file.write(head)
            head = b""
        file.write(block)


def _name(path: str) -> str:
    return "standard input" if path == PIPE else path


def _pillow() -> tuple[Any, Any, type[Exception]]:
    try:
        import PIL.Image
        import PIL.ImageOps
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "pictures need the package Pillow: pip install 'tensorpost[images]'", name=missing.name
        ) from None
    return PIL.Image, PIL.ImageOps, PIL.UnidentifiedImageError
