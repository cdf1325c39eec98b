"""Pictures, read and written by Pillow in child processes: its decoders work on what callers sent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorpost.bodies.images import WORKING_BYTES_PER_PIXEL, EncodedImage
from tensorpost.values.problems import InvalidFrame, NotAcceptable, from_problem

from ..forms.base import away_from_processor, raise_if_abandoned
from .process import FunctionRefused
from .process_pool import ProcessPool

PICTURES = ProcessPool(
    "Pillow", ("PIL.Image", "tensorpost.bodies.images"), seconds=120.0, setting="TENSORPOST_PICTURE_SECONDS",
    name="pillow",
)  # fmt: skip

_HEAD_BYTES_PER_PIXEL = 16
"""Canvases that libwebp takes for a head. Nothing is written to them before it decodes, so they take no pages."""
_LONG_PIXELS = 1 << 18
"""Pixels that a codec may take a second for: AVIF of noise."""
_LEAST_BYTES = 64 << 20
"""Tables of codecs, Pillow's modules, and texts in a PNG, of which Pillow reads at most this much."""


def open_picture(content: bytes, name: str, max_pixels: int) -> EncodedImage:
    """Read a picture's head; its content decides the format. No pixel is decoded.

    Args:
        content: the whole file.
        name: what messages call it.
        max_pixels: most that it may have.

    Raises:
        InvalidFrame: see `tensorpost.images.open_image`.
        LimitExceeded: it has more pixels, or reading it took too long.
        LibraryFailed: Pillow ended its process, or needed too much memory.
        LibraryUnavailable: there is no process for it.
        ModuleNotFoundError: Pillow is not installed.
    """
    canvas = max_pixels if content[8:12] == b"WEBP" else 0
    memory = _LEAST_BYTES + 2 * len(content) + _HEAD_BYTES_PER_PIXEL * canvas
    file = np.frombuffer(content, np.uint8)
    answer, _ = _call("open_picture", {"name": name, "max_pixels": max_pixels}, file, name, memory, key=content)
    kind, *numbers = answer["picture"]
    height, width, channels, depth, orientation = map(int, numbers)
    return EncodedImage(name, content, str(kind), height, width, channels, depth, orientation)


def decode_picture(image: EncodedImage) -> NDArray[Any]:
    """The pixels, upright, of `image.shape`: uint8, or uint16 where the file has 16 bits.

    Raises:
        InvalidFrame: the file is broken.
        LimitExceeded: decoding it took too long.
        LibraryFailed: Pillow ended its process, or needed too much memory.
        LibraryUnavailable: there is no process for it.
    """
    height, width, channels = image.shape
    size = height * width * channels * (image.depth // 8)
    said = (image.format, height, width, channels, image.depth, image.orientation)
    memory = _LEAST_BYTES + 2 * len(image.content) + image.working_bytes + 2 * size
    file = np.frombuffer(image.content, np.uint8)
    _, found = _call(
        "decode_picture", {"name": image.name, "picture": said}, file, image.name, memory, size + 64, image.content,
        height * width,
    )  # fmt: skip
    (pixels,) = found
    if pixels.shape != image.shape or pixels.itemsize != image.depth // 8:
        raise InvalidFrame(f"{image.name} has other pixels than its header announces")
    return pixels


def encode_picture(array: NDArray[Any], image_format: str) -> bytes:
    """Write an array as a picture; see `tensorpost.images.encode_image`.

    Raises:
        NotAcceptable: Pillow does not write it.
        LimitExceeded: writing it took too long.
        LibraryFailed: Pillow ended its process, or needed too much memory.
        LibraryUnavailable: there is no process for it.
    """
    pixels = array.shape[0] * array.shape[1]
    most = 2 * array.nbytes + (1 << 16)  # what cannot be compressed becomes a little longer
    memory = _LEAST_BYTES + pixels * WORKING_BYTES_PER_PIXEL + 2 * most
    packed = np.ascontiguousarray(array)
    try:
        _, (content,) = _call(
            "encode_picture", {"format": image_format}, packed, "the output", memory, most, pixels=pixels
        )
    except FunctionRefused as refused:
        raise NotAcceptable(f"the output cannot be written as {image_format}: {refused.message}") from None
    return content.tobytes()


def _call(
    function: str, arguments: dict[str, Any], array: NDArray[Any], subject: str, memory: int, output: int = 0,
    key: bytes = b"", pixels: int = 0,
) -> tuple[dict[str, Any], list[Any]]:  # fmt: skip
    """A call of a process of Pillow; errors of ours that it answers with are raised."""
    if not PICTURES.installed:
        raise ModuleNotFoundError("No module named 'PIL'", name="PIL")
    with away_from_processor():
        answer, arrays = PICTURES.call(
            function, arguments, [array], subject=subject, memory_bytes=memory, output_bytes=output, key=key,
            check=raise_if_abandoned, long=pixels > _LONG_PIXELS,
        )  # fmt: skip
    if (problem := answer.get("problem")) is not None:
        raise from_problem(problem, 400)
    return answer, arrays
