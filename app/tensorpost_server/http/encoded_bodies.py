"""Bodies whose tensors have to be decoded: pictures and npz. Sizes are known before, and judged, as of any body.

The body is received whole, its head is read on a thread, the call is parsed and planned, memory is reserved, and then a
thread decodes the tensors into that memory.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np

from tensorpost.bodies.frame import NpyHead, NpyHeadReader
from tensorpost.bodies.images import EncodedImage
from tensorpost.descriptors.tensor import MOST_TENSORS
from tensorpost.values.datatypes import DataType, data_type
from tensorpost.values.library_message import reading
from tensorpost.values.problems import InvalidFrame, LimitExceeded

from ..child_processes.pictures import decode_picture, open_picture
from ..settings import Settings
from .media_types import Pixels

_END_BYTES = 22  # of a ZIP archive's end record without a comment (APPNOTE.TXT, section 4.3.16)
_END64_BYTES = 20  # of the record before it, which archives with more than 4 GiB have (section 4.3.15)
_DIRECTORY_BYTES_PER_TENSOR = 1024  # a name of an array, and what NumPy adds
_BLOCK_BYTES = 1 << 20  # read from an archive at a time
_SUFFIX = ".npy"
_NO_ARCHIVE = "the npz archive cannot be read"


def _refuse_too_large(size_in_bytes: int, settings: Settings) -> None:
    if size_in_bytes > settings.max_body_bytes:
        raise LimitExceeded.of(
            "what the body unpacks to", size_in_bytes, settings.max_body_bytes, "TENSORPOST_MAX_BODY_BYTES"
        )


# ---- pictures --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A picture as the tensor 1, height, width, channels; or as `pixels` says, and without the 1 if it is no batch."""

    name: str
    image: EncodedImage
    pixels: Pixels
    is_batch: bool = True

    @classmethod
    def read(cls, content: bytes, media_type: str, name: str, pixels: Pixels, settings: Settings) -> Picture:
        """Read a picture's head.

        Raises:
            InvalidFrame: it is not a picture of this media type, or broken.
            LimitExceeded: it is too large.
        """
        image = open_picture(content, "the body", settings.max_image_pixels)
        if media_type != f"image/{image.format.lower()}":
            raise InvalidFrame(
                f"the body is not what its Content-Type says; it is a {image.format} picture: send it with "
                f"Content-Type image/{image.format.lower()}"
            )
        picture = cls(name, image, pixels)
        ((_, row, shape),) = picture.tensors
        _refuse_too_large(row.item_size * int(np.prod(shape, dtype=object)), settings)
        return picture

    @property
    def tensors(self) -> Sequence[tuple[str, DataType, tuple[int, ...]]]:
        height, width, channels = self.image.shape
        shape = (height, width, channels) if self.pixels.layout == "NHWC" else (channels, height, width)
        row = data_type(self.pixels.dtype or f"uint{self.image.depth}")
        return [(self.name, row, (1, *shape) if self.is_batch else shape)]

    @property
    def working_bytes(self) -> int:
        height, width, channels = self.image.shape
        # The file and the pixels lie in memory that is shared with the process that decodes them, too.
        shared = len(self.image.content) + height * width * channels * (self.image.depth // 8)
        return self.image.working_bytes + 2 * shared

    def decode_into(self, memory: Sequence[memoryview], first: int = 0) -> None:
        ((_, row, shape),) = self.tensors
        pixels = decode_picture(self.image)
        if self.pixels.layout == "NCHW":
            pixels = np.moveaxis(pixels, 2, 0)
        target = np.frombuffer(memory[0], row.dtype).reshape(shape[-3:])
        if row.dtype.kind == "f":
            np.divide(pixels, np.float32((1 << self.image.depth) - 1), out=target, dtype=np.float32)
        else:
            np.copyto(target, pixels)


# ---- npz -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Npz:
    """What `numpy.savez` and `numpy.savez_compressed` write: a ZIP archive of npy files, a tensor each."""

    archive: zipfile.ZipFile
    content_bytes: int
    heads: Sequence[tuple[str, zipfile.ZipInfo, NpyHead]]

    @classmethod
    def read(cls, content: bytes, settings: Settings, names: Callable[[int], Sequence[str]]) -> Npz:
        """Read the archive's directory, and the head of each array.

        Args:
            content: the body.
            settings: the limits.
            names: returns the names of a number of tensors, in order; they replace arr_0, arr_1, ..., which
                `np.savez(file, a, b)` writes.

        Raises:
            InvalidFrame: it is not an archive of npy files, or broken.
            LimitExceeded: what it unpacks to is too large.
        """
        _check_directory(content)
        with reading(_NO_ARCHIVE):
            archive = zipfile.ZipFile(BytesIO(content))
            members = archive.infolist()
            _refuse_too_large(sum([member.file_size for member in members]), settings)
            heads = [(_tensor_name(member), member, _head_of(archive, member, settings)) for member in members]
        if len({name for name, _, _ in heads}) != len(heads):
            raise InvalidFrame("the npz archive has two arrays of the same name")
        by_position = dict(zip([f"arr_{index}" for index in range(len(heads))], names(len(heads)), strict=False))
        if by_position.keys() == {name for name, _, _ in heads}:
            heads = [(by_position[name], member, head) for name, member, head in heads]
        return cls(archive, len(content), heads)

    @property
    def tensors(self) -> Sequence[tuple[str, DataType, tuple[int, ...]]]:
        return [(name, head.data_type, head.shape) for name, _, head in self.heads]

    @property
    def working_bytes(self) -> int:
        return self.content_bytes + 2 * _BLOCK_BYTES

    def decode_into(self, memory: Sequence[memoryview], first: int = 0) -> None:
        with reading(_NO_ARCHIVE):
            for view, (name, member, head) in zip(memory, self.heads[first:], strict=False):
                with self.archive.open(member) as file:
                    file.read(head.head_bytes)
                    at = 0
                    while block := file.read(_BLOCK_BYTES):
                        view[at : at + len(block)] = block
                        at += len(block)
                if at != len(view):
                    raise InvalidFrame(f"array {name!r} has {at:,} bytes of elements; its head announces {len(view):,}")


def _check_directory(content: bytes) -> None:
    """Refuse archives with a directory of another size than a few arrays need, before it is read."""
    if not content:
        raise InvalidFrame("the body is empty")
    end = content[-_END_BYTES:]
    if content[:4] not in (b"PK\x03\x04", b"PK\x05\x06") or end[:4] != b"PK\x05\x06":
        raise InvalidFrame(
            "the body is not an npz archive, which is a ZIP file of npy files; it must end with its directory"
        )
    size = int.from_bytes(end[12:16], "little")
    far = content[-_END_BYTES - _END64_BYTES : -_END_BYTES][:4] == b"PK\x06\x07"
    if far or size > MOST_TENSORS * _DIRECTORY_BYTES_PER_TENSOR:
        raise InvalidFrame(f"the npz archive is too large or has more than {MOST_TENSORS:,} arrays; send a frame")


def _tensor_name(member: zipfile.ZipInfo) -> str:
    if not member.filename.endswith(_SUFFIX):
        raise InvalidFrame(
            f"the archive has {member.filename[:60]!r}, which is not an npy file; an npz archive holds nothing else"
        )
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InvalidFrame("the npz archive is compressed in a way that NumPy does not use")
    return member.filename.removesuffix(_SUFFIX)


def _head_of(archive: zipfile.ZipFile, member: zipfile.ZipInfo, settings: Settings) -> NpyHead:
    reader = NpyHeadReader(max_head_bytes=settings.max_head_bytes, content_length=member.file_size)
    with archive.open(member) as file:
        while reader.head is None and (part := file.read(max(1, min(reader.missing, 1 << 16)))):
            reader.feed(part)
    return reader.finish()
