"""Pictures as arrays: PNG, JPEG, WebP and AVIF, read and written by Pillow, which is loaded when one is met.

A picture's head tells its size before a pixel is decoded, so that memory can be judged first. Pixel values stay as they
are stored: no colour profile and no gamma is applied. The orientation in EXIF is, as browsers do.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ..values.extras import install_command
from ..values.library_message import reading
from ..values.problems import InvalidFrame, LimitExceeded

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["IMAGE_FORMATS", "WORKING_BYTES_PER_PIXEL", "EncodedImage", "encode_image", "image_formats", "open_image"]
__all__ += ["picture_format", "unwritable"]

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "AVIF")

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_MAGICS = (("PNG", _PNG_MAGIC), ("JPEG", b"\xff\xd8\xff"))
_AVIF_BRANDS = (b"avif", b"avis", b"mif1", b"msf1")
_MOST_SEGMENTS = 512  # of a JPEG before its pixels; a colour profile has at most 255
_MOST_SCANS = 100  # of a JPEG; progressive ones have about 10, and each may touch every pixel
_ORIENTATION = 0x0112  # EXIF's tag
# Nothing is lost where the format allows it. JPEG always loses a little, and 95 is the most its own manual advises.
# Little effort is made: files are 2 to 8% larger than by Pillow's defaults, in half the time or less.
_SAVE_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "PNG": {"compress_level": 3},
    "WEBP": {"lossless": True, "exact": True, "quality": 20, "method": 1},  # for lossless, quality is effort
    "JPEG": {"quality": 95},
    "AVIF": {"quality": 90, "subsampling": "4:4:4", "speed": 10},
}
# Pixels on a side, where libwebp (WEBP_MAX_DIMENSION), libjpeg (JPEG_MAX_DIMENSION) and AV1's headers stop.
_LARGEST_SIDE = {"WEBP": 16_383, "JPEG": 65_500, "AVIF": 65_536}

WORKING_BYTES_PER_PIXEL = 48
"""Memory that reading or writing a picture takes at most: the codec's canvases and Pillow's copies. Writing AVIF and
WebP takes the most, 43 and 33, reading PNG of 16 bits and WebP 24 and 20."""


@cache
def image_formats() -> tuple[str, ...]:
    """The formats that this Pillow reads and writes, of `IMAGE_FORMATS`; none without Pillow."""
    try:
        from PIL import features
    except ModuleNotFoundError:
        return ()
    needed = {"PNG": "zlib", "JPEG": "jpg", "WEBP": "webp", "AVIF": "avif"}
    return tuple(name for name in IMAGE_FORMATS if features.check(needed[name]))


@dataclass(frozen=True, slots=True, eq=False)
class EncodedImage:
    """A picture whose head was read and whose pixels were not decoded.

    Attributes:
        name: what messages call it.
        content: the whole file.
        format: name of the picture's format, one of `IMAGE_FORMATS`.
        height: rows of pixels, once the picture is upright.
        width: columns of pixels, once the picture is upright.
        channels: 1 grey, 2 grey and alpha, 3 colour, 4 colour and alpha.
        depth: bits per channel, 8 or 16.
        orientation: EXIF's, 1 to 8.
    """

    name: str
    content: bytes
    format: str
    height: int
    width: int
    channels: int
    depth: int
    orientation: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return self.height, self.width, self.channels

    @property
    def working_bytes(self) -> int:
        """Estimate of the memory that `decode` takes beside the array."""
        return self.height * self.width * WORKING_BYTES_PER_PIXEL

    def decode(self) -> NDArray[Any]:
        """The pixels, upright, of `shape`: uint8, or uint16 where the file has 16 bits.

        Raises:
            InvalidFrame: the file is broken.
        """
        with reading(_refusal(self.name)):
            pixels = _ORIENT[self.orientation](_decoded(self))
        if pixels.shape != self.shape or pixels.itemsize != self.depth // 8:
            raise InvalidFrame(f"{self.name} has other pixels than its header announces")
        return np.ascontiguousarray(pixels)


_ORIENT: Mapping[int, Callable[[NDArray[Any]], NDArray[Any]]] = {
    # CIPA DC-008 (EXIF 2.32), section 4.6.4, tag Orientation: where the file's first row and column are.
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: x[::-1].swapaxes(0, 1),
    7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
    8: lambda x: x[:, ::-1].swapaxes(0, 1),
}


def open_image(content: bytes, name: str = "the picture", *, max_pixels: int | None = None) -> EncodedImage:
    """Read a picture's head; its content decides the format. No pixel is decoded.

    Args:
        content: the whole file.
        name: what messages call it.
        max_pixels: most that it may have.

    Raises:
        InvalidFrame: it is not a picture of a known format, broken, animated, or has channels that Pillow would cut.
        LimitExceeded: it has more pixels.
        ModuleNotFoundError: Pillow is not installed; the message names the extra.
    """
    kind = picture_format(content)
    _pillow()
    if kind is None or kind not in image_formats():
        known = ", ".join(image_formats())
        also = f"; {kind} needs a Pillow that was built with it" if kind else ""
        raise InvalidFrame(f"{name} is not a picture of a supported format ({known}){also}")
    check = _Check(name, max_pixels)
    with reading(_refusal(name)):
        return _HEADS[kind](content, check)


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    max_pixels: int | None

    def size(self, width: int, height: int) -> None:
        if self.max_pixels is not None and width * height > self.max_pixels:
            raise LimitExceeded.of(
                f"{self.name} of {width:,} x {height:,}", width * height, self.max_pixels,
                "TENSORPOST_MAX_IMAGE_PIXELS", "pixels,",
            )  # fmt: skip
        if not width or not height:
            raise InvalidFrame(f"{self.name} has no pixels")

    def frames(self, count: int) -> None:
        if count > 1:
            raise InvalidFrame(f"{self.name} is animated; send one picture at a time")


def _refusal(name: str) -> str:
    return f"{name} cannot be read as a picture"


def picture_format(content: bytes) -> str | None:
    """The format that a file begins like, one of `IMAGE_FORMATS`; None if it is no picture of these."""
    start = content[:16]
    for name, magic in _MAGICS:
        if start.startswith(magic):
            return name
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "WEBP"
    return "AVIF" if start[4:8] == b"ftyp" and start[8:12] in _AVIF_BRANDS else None


# ---- heads -----------------------------------------------------------------------------------------------------------


def _png_head(content: bytes, check: _Check) -> EncodedImage:
    """Source: PNG (Third Edition), sections 5.3 (chunks), 11.2.1 (IHDR) and 11.3.3.5 (eXIf)."""
    if content[12:16] != b"IHDR" or len(content) < 33:
        raise InvalidFrame(f"{check.name} cannot be read as a picture: IHDR is not its first chunk")
    width, height, depth, colour = struct.unpack(">IIBB", content[16:26])
    check.size(width, height)
    at, count, exif = 8, 0, b""
    while at + 8 <= len(content):
        length, kind = struct.unpack(">I4s", content[at : at + 8])
        if kind == b"acTL":
            check.frames(2)
        elif kind == b"eXIf":
            exif = content[at + 8 : at + 8 + length]
        elif kind == b"IEND":
            break
        at, count = at + 12 + length, count + 1
        if count > 1000 + len(content) // 1024:  # each is a step in Python, here and in Pillow
            raise InvalidFrame(f"{check.name} is cut into too many small chunks")
    image = _image("PNG", content)
    wide = depth == 16
    channels = {0: 1, 2: 3, 4: 2, 6: 4}.get(colour, 3) + ("transparency" in image.info)
    return _encoded(check, content, "PNG", width, height, channels, 16 if wide else 8, _exif_orientation(exif))


def _jpeg_head(content: bytes, check: _Check) -> EncodedImage:
    """Source: ITU-T T.81, section B.1.1: markers and their segments."""
    at = count = 2
    while content[at : at + 1] == b"\xff" and count <= _MOST_SEGMENTS and content[at + 1 : at + 2] != b"\xda":
        fill = content[at + 1 : at + 2] in (b"\xff", b"\x01", b"\x00")
        at += 1 if fill else 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        count += 1
    if count > _MOST_SEGMENTS:
        raise InvalidFrame(f"{check.name} has more than {_MOST_SEGMENTS} segments before its pixels")
    if content.count(b"\xff\xda", at) > _MOST_SCANS:
        raise InvalidFrame(f"{check.name} has more than {_MOST_SCANS} scans")
    image = _image("JPEG", content)
    check.size(*image.size)
    channels = 1 if image.mode == "L" else 3
    return _encoded(check, content, "JPEG", *image.size, channels, 8, _orientation_of(image))


def _webp_head(content: bytes, check: _Check) -> EncodedImage:
    """Pillow's decoder takes memory for the canvas when it is made, so its size is read here before that.

    Source: the WebP container specification (VP8X), RFC 6386 section 9.1 (VP8), the lossless bitstream (VP8L).
    """
    kind, rest = content[12:16], content[20:30]
    if kind == b"VP8X":
        size = [1 + int.from_bytes(rest[at : at + 3], "little") for at in (4, 7)]
    elif kind == b"VP8L":
        bits = int.from_bytes(rest[1:5], "little")
        size = [1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)]
    else:
        size = [int.from_bytes(rest[at : at + 2], "little") & 0x3FFF for at in (6, 8)]
    check.size(size[0], size[1])
    image = _image("WEBP", content)
    check.frames(getattr(image, "n_frames", 1))
    return _encoded(check, content, "WEBP", *image.size, 4 if image.mode == "RGBA" else 3, 8, _orientation_of(image))


_PIXI = re.compile(rb"pixi\0\0\0\0([\x01-\x04])", re.DOTALL)  # ISO/IEC 23008-12, section 6.5.6: bits of each channel


def _avif_head(content: bytes, check: _Check) -> EncodedImage:
    image = _image("AVIF", content)  # parses the boxes only
    check.size(*image.size)
    check.frames(getattr(image, "n_frames", 1))
    item = _PIXI.search(content[: 1 << 16])
    bits = max(content[item.end() : item.end() + item[1][0]], default=8) if item else 8
    if bits > 8:
        raise InvalidFrame(
            f"{check.name} has {bits} bits per channel, of which Pillow keeps 8 for AVIF; send PNG with 16 bits"
        )
    return _encoded(check, content, "AVIF", *image.size, 4 if image.mode == "RGBA" else 3, 8, _orientation_of(image))


_HEADS: Mapping[str, Callable[[bytes, _Check], EncodedImage]] = {
    "PNG": _png_head, "JPEG": _jpeg_head, "WEBP": _webp_head, "AVIF": _avif_head,
}  # fmt: skip


def _encoded(
    check: _Check, content: bytes, kind: str, width: int, height: int, channels: int, depth: int, orientation: int
) -> EncodedImage:
    if orientation > 4:
        width, height = height, width
    return EncodedImage(check.name, content, kind, height, width, channels, depth, orientation)


def _image(kind: str, content: bytes) -> Image:
    """Pillow's object, nothing of which was decoded. `Image.open` has limits and warnings of its own."""
    from PIL import JpegImagePlugin, PngImagePlugin, WebPImagePlugin

    if kind == "AVIF":
        from PIL import AvifImagePlugin

        return AvifImagePlugin.AvifImageFile(BytesIO(content))
    cls = {"PNG": PngImagePlugin.PngImageFile, "JPEG": JpegImagePlugin.JpegImageFile}
    return cls.get(kind, WebPImagePlugin.WebPImageFile)(BytesIO(content))


def _orientation_of(image: Image) -> int:
    return _known_orientation(image.getexif())


def _exif_orientation(exif: bytes) -> int:
    from PIL import Image

    parsed = Image.Exif()
    if exif:
        parsed.load(exif)
    return _known_orientation(parsed)


def _known_orientation(exif: Mapping[int, Any]) -> int:
    orientation = exif.get(_ORIENTATION, 1)
    return orientation if orientation in _ORIENT else 1  # others are reserved


# ---- pixels ----------------------------------------------------------------------------------------------------------


def _decoded(source: EncodedImage) -> NDArray[Any]:
    """The pixels as they lie in the file: height, width, channels."""
    image = _image(source.format, source.content)
    if source.depth == 16:
        pixels = _pixels_of_16_bits(image, source)
    else:
        if "transparency" in image.info and image.mode in ("1", "L", "RGB"):
            return _with_transparency(image, source.content[24])
        wanted = ("L", "LA", "RGB", "RGBA")[source.channels - 1]
        pixels = np.asarray(image if image.mode == wanted else image.convert(wanted))
    return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]


def _pixels_of_16_bits(image: Image, source: EncodedImage) -> NDArray[Any]:
    """A PNG of 16 bits. Pillow keeps one byte of colour's two; asked twice, it gives both."""
    key = image.info.get("transparency")
    if image.mode == "I;16":
        pixels = np.asarray(image).astype(np.uint16, copy=False)[:, :, np.newaxis]
    elif source.channels == 2:
        # Grey and alpha of 16 bits are as many bytes as RGBA of 8, and filtered alike.
        pixels = _raw_pixels(image, "RGBA").view(">u2").astype(np.uint16)
    else:
        pixels = _raw_pixels(image, f"{image.mode};16B").astype(np.uint16)
        pixels <<= 8
        pixels |= _raw_pixels(_image("PNG", source.content), f"{image.mode};16L")
    if key is None:
        return pixels
    opaque = (pixels != np.array(key, np.uint16)).any(axis=2, keepdims=True)
    return np.concatenate([pixels, np.where(opaque, np.uint16(0xFFFF), np.uint16(0))], axis=2)


def _raw_pixels(image: Image, raw_mode: str) -> NDArray[Any]:
    """The pixels as Pillow's decoder unpacks them in another way than it would choose."""
    tiles = cast("Any", image)
    tiles.tile = [tile._replace(args=raw_mode) for tile in tiles.tile]
    return np.asarray(image)


def _with_transparency(image: Image, depth: int) -> NDArray[Any]:
    """Grey or colour with the one value that is transparent (PNG's tRNS) as a channel of its own.

    The value is one of the file's; Pillow stretches grey of fewer than 8 bits to 0 to 255, but not this value.
    """
    pixels = np.asarray(image.convert("L") if image.mode == "1" else image)
    key = np.array(image.info["transparency"])
    if image.mode == "L":
        most = (1 << depth) - 1
        key = (key & most) * (255 // most)
    opaque = pixels != (key & 255)
    if opaque.ndim == 3:
        opaque = opaque.any(axis=2)
    return np.dstack([pixels, np.where(opaque, np.uint8(255), np.uint8(0))])


# ---- writing ---------------------------------------------------------------------------------------------------------


def unwritable(dtype: np.dtype[Any], shape: Sequence[int], image_format: str) -> str | None:
    """Why an array cannot be written as a picture of this format; None if it can.

    Args:
        dtype: uint8 or uint16.
        shape: height and width, or height, width and 1 to 4 channels.
        image_format: name of the picture's format, one of `IMAGE_FORMATS`.
    """
    channels = 1 if len(shape) == 2 else shape[2] if len(shape) == 3 else 0
    if dtype.name not in ("uint8", "uint16") or not 1 <= channels <= 4 or 0 in shape:
        return (
            f"{dtype.name} of shape {tuple(shape)} is not a picture: a picture is uint8 or uint16 of height and width, "
            "or of height, width and 1 to 4 channels"
        )
    if image_format == "JPEG" and channels in (2, 4):
        return "JPEG has no transparency"
    if image_format != "PNG" and dtype == np.uint16:
        return f"{image_format} has 8 bits per channel, and this has 16"
    most = _LARGEST_SIDE.get(image_format)
    if most is not None and max(shape[:2]) > most:
        return (
            f"{image_format} has at most {most:,} pixels on each side, and this is {shape[1]:,} wide and "
            f"{shape[0]:,} high"
        )
    return None


def encode_image(array: NDArray[Any], image_format: str) -> bytes:
    """Write an array that is not `unwritable` as a picture: without loss, but for JPEG (quality 95) and AVIF (90).

    Raises:
        ModuleNotFoundError: Pillow is not installed; the message names the extra.
    """
    module = _pillow()
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype.itemsize == 2 and array.ndim == 3:
        return _png_of_16_bits(array)
    out = BytesIO()
    module.fromarray(np.ascontiguousarray(array)).save(out, image_format, **_SAVE_OPTIONS[image_format])
    return out.getvalue()


def _png_of_16_bits(array: NDArray[Any]) -> bytes:
    """A PNG of 16 bits with more than one channel, which Pillow does not write. Each row is filtered by that above it.

    Source: PNG (Third Edition), sections 5 (chunks), 9.2 (filter 2, Up) and 11.2.1 (colour types).
    """
    height, width, channels = array.shape
    rows = np.ascontiguousarray(array, ">u2").reshape(height, -1).view(np.uint8)
    filtered = np.empty((height, 1 + rows.shape[1]), np.uint8)
    filtered[:, 0], filtered[0, 1:] = 2, rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    head = struct.pack(">IIBBBBB", width, height, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(filtered.data, 3)), (b"IEND", b""))
    return _PNG_MAGIC + b"".join(
        [
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        ]
    )


def _pillow() -> Any:
    try:
        import PIL.Image
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"pictures need the package Pillow: {install_command('images')}", name=missing.name
        ) from None
    return PIL.Image
