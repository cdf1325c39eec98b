"""Files and pipes for the command line: npy, safetensors and pictures in and out, npz in."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import secrets
import stat
import sys
import zipfile
import zlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from ..bodies.frame import HEAD_ALIGNMENT, HeadReader, NpyHeadReader, encode_head, encode_npy_head
from ..bodies.images import IMAGE_FORMATS, open_image, unwritable
from ..bodies.npy import NPY_MAGIC
from ..calls.zarr_store import check_store
from ..values.datatypes import DataType, load_ml_dtypes
from ..values.problems import InvalidFrame, InvalidParameter, InvalidRequest, LimitExceeded, counted

PIPE = "-"
ZARR = "zarr"
SAFETENSORS = "safetensors"
FORMATS = {
    ".npy": "npy",
    ".safetensors": SAFETENSORS,
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".webp": "WEBP",
    ".avif": "AVIF",
    ".zarr": ZARR,
}
_ZIP_MAGIC = b"PK\x03\x04"
_SAFETENSORS_START = re.compile(rb".{4}\x00{4}\{", re.DOTALL)  # a length of 32 bits, and the brace of its JSON text
_START_BYTES = 9  # that tell the formats apart
_PIECE_BYTES = 1 << 20  # read from a pipe at a time


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """An array that was read.

    Attributes:
        array: the elements; of a picture height, width and, unless it is grey, channels.
        format: `npy` (also of npz and safetensors), or one of `IMAGE_FORMATS`.
    """

    array: NDArray[Any]
    format: str

    @property
    def is_picture(self) -> bool:
        """Whether it was read from a picture."""
        return self.format != "npy"


def picture_axes(shape: Sequence[int]) -> str:
    """`64 rows x 48 columns x 3 channels`: what the axes of a picture are that was read."""
    nouns = ("row", "column", "channel")
    return " x ".join(counted(count, noun) for count, noun in zip(shape, nouns, strict=False))


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
        InvalidParameter: it has no suffix of a format that can be written.
    """
    if path == PIPE:
        return None
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise InvalidParameter(
            f"{path!r} has no suffix of a format that can be written; end it in {', '.join(FORMATS)}"
        )
    return FORMATS[suffix]


def standard_input() -> BinaryIO:
    """Standard input, as bytes.

    Raises:
        InvalidParameter: it is closed.
    """
    if cast("object", sys.stdin) is None:
        raise InvalidParameter("standard input is closed; name a file instead of -")
    return sys.stdin.buffer


def read_array(path: str) -> Source:
    """Read an npy or safetensors file (mapped, not loaded), an npz archive, or a picture; `-` is standard input.

    The content decides which of them it is, not the name.

    Raises:
        OSError: the file cannot be opened.
        InvalidFrame: it is neither, or broken.
        InvalidParameter: standard input is closed, or the file has several arrays.
        ModuleNotFoundError: a picture without Pillow; the message names the extra to install.
    """
    arrays = read_arrays(path)
    if len(arrays) != 1:
        names = ", ".join(arrays)[:200]
        raise InvalidParameter(
            f"{_name(path)} holds {counted(len(arrays), 'array')} ({names}), and this command takes one"
        )
    return next(iter(arrays.values()))


def read_arrays(path: str) -> Mapping[str, Source]:
    """The arrays of a file by name.

    The array of an npy file or a picture has an empty name, and so has the only one of a safetensors file.

    Raises:
        OSError, InvalidFrame, InvalidParameter, ModuleNotFoundError: whatever `read_array` refuses.
    """
    if path == PIPE:
        return _read_stream(path, standard_input(), None)
    with Path(path).open("rb") as file:
        return _read_stream(path, file, file if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None)


def read_raw(path: str, data_type: DataType, shape: tuple[int, ...]) -> NDArray[Any]:
    """Read the elements of a file that has nothing else, row-major and little-endian; `-` is standard input.

    Raises:
        OSError: the file cannot be opened.
        InvalidParameter: it has more or fewer bytes, or standard input is closed.
    """
    wanted = data_type.item_size * math.prod(shape)
    content: Any = standard_input().read() if path == PIPE else None
    found = Path(path).stat().st_size if content is None else len(content)
    if found != wanted:
        sizes = ",".join(map(str, shape))
        raise InvalidParameter(
            f"{_name(path)} has {found:,} bytes, and {data_type.numpy_name} of sizes {sizes} has {wanted:,}; check "
            "--data-type and --sizes"
        )
    if content is None:
        return np.memmap(path, data_type.dtype, "r", shape=shape)
    return np.frombuffer(content, data_type.dtype).reshape(shape)


def _read_stream(path: str, stream: BinaryIO, file: BinaryIO | None) -> Mapping[str, Source]:
    """Read what a stream begins with; `file` is the same if it can be mapped."""
    start = stream.read(_START_BYTES)
    pipe = _Pipe(stream, start)
    if start.startswith(_ZIP_MAGIC):
        if file is not None:
            file.seek(0)
        return _read_npz(path, BytesIO(pipe.read()) if file is None else file)
    if _SAFETENSORS_START.match(start):
        with _refused_as(path, SAFETENSORS):
            return _read_safetensors(pipe, file)
    if not start.startswith(NPY_MAGIC):
        return {"": _read_picture(path, pipe)}
    with _refused_as(path, "npy"):
        return {"": Source(_read_npy(pipe, file), "npy")}


@contextlib.contextmanager
def _refused_as(path: str, file_format: str) -> Generator[None]:
    """Say in a refusal which file cannot be read, and as what."""
    try:
        yield
    except LimitExceeded as error:
        raise InvalidFrame(
            f"{_name(path)} cannot be read as {file_format}: its head announces {error.extra['actual']:,} bytes of "
            f"text; at most {error.extra['limit']:,} are read"
        ) from None
    except InvalidRequest as error:
        raise InvalidFrame(f"{_name(path)} cannot be read as {file_format}: {error.detail}") from None


def _read_safetensors(pipe: _Pipe, file: BinaryIO | None) -> Mapping[str, Source]:
    reader = HeadReader(content_length=None if file is None else os.fstat(file.fileno()).st_size)
    rest = b""
    while reader.head is None and (piece := pipe.read(reader.missing)):
        rest = piece[reader.feed(piece) :]
    head = reader.finish()
    body: Any = _read_body(pipe, rest, head.body_bytes) if file is None else b""
    if file is not None and head.body_bytes:
        body = np.memmap(file, np.uint8, "r", head.head_bytes, (head.body_bytes,))
    names = head.names if len(head.tensors) != 1 else ("",)
    return {
        name: Source(np.frombuffer(body[t.begin : t.end], t.data_type.dtype).reshape(t.shape), "npy")
        for name, t in zip(names, head.tensors, strict=True)
    }


def _read_body(pipe: _Pipe, start: bytes, announced: int) -> bytearray:
    body = bytearray(start[:announced])  # grows with what comes, never by what was announced
    while len(body) < announced and (piece := pipe.read(min(_PIECE_BYTES, announced - len(body)))):
        body += piece
    _expect_bytes(announced, len(body))
    return body


def _read_npz(path: str, file: BinaryIO) -> Mapping[str, Source]:
    load_ml_dtypes()
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: Source(archive[name], "npy") for name in archive.files}
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, NotImplementedError, AttributeError):
        raise InvalidFrame(
            f"{_name(path)} cannot be read as npz: it is not a complete archive of arrays of numbers"
        ) from None


def _read_npy(pipe: _Pipe, file: BinaryIO | None) -> NDArray[Any]:
    reader = NpyHeadReader(any_order=True)
    rest = b""
    while reader.head is None and (piece := pipe.read(HEAD_ALIGNMENT)):
        rest = piece[reader.feed(piece) :]
    head = reader.finish()
    dtype = head.data_type.dtype.newbyteorder(">" if head.big_endian else "<")
    order = "F" if head.column_major else "C"
    if head.body_bytes == 0:
        return np.empty(head.shape, dtype)
    if file is not None:
        _expect_bytes(head.body_bytes, os.fstat(file.fileno()).st_size - head.head_bytes)
        return np.memmap(file, dtype, "r", head.head_bytes, head.shape, order)
    return np.frombuffer(_read_body(pipe, rest, head.body_bytes), dtype).reshape(head.shape, order=order)


def _expect_bytes(announced: int, found: int) -> None:
    if found < announced:
        raise InvalidFrame(f"its head announces {announced:,} bytes of elements, and only {found:,} follow")


def _read_picture(path: str, pipe: _Pipe) -> Source:
    """The pixels: height, width and, unless it is grey, channels."""
    content = pipe.read()
    try:
        image = open_image(content, _name(path))
    except InvalidFrame as error:
        raise InvalidFrame(
            error.detail.replace("is not a picture", "is neither npy, npz, safetensors nor a picture")
        ) from None
    pixels = image.decode()
    return Source(pixels[:, :, 0] if image.channels == 1 else pixels, image.format)


def picture_shape(sizes: Sequence[int]) -> tuple[int, ...]:
    """The shape of a picture: that of a batch of one without its first axis."""
    return tuple(sizes[1:] if len(sizes) == 4 and sizes[0] == 1 else sizes)


def check_picture(dtype: np.dtype[Any], shape: Sequence[int], picture_format: str) -> None:
    """Refuse an array that cannot be written as a picture.

    Raises:
        InvalidParameter: it is none, or the format has no such pictures.
    """
    reason = unwritable(dtype, shape, picture_format)
    if reason is not None:
        others = [
            suffix
            for suffix, name in FORMATS.items()
            if name == "npy" or (name in IMAGE_FORMATS and unwritable(dtype, shape, name) is None)
        ]
        raise InvalidParameter(f"{reason}; write {' or '.join(reversed(others))} instead")


def check_row_format(file_format: str | None) -> None:
    """Refuse a format that some rows of an output cannot be written in.

    Raises:
        InvalidParameter: it is a picture or Zarr.
    """
    if file_format not in (None, "npy", SAFETENSORS, "bin"):
        raise InvalidParameter(f"--rows writes no {file_format}; end -o in .npy or .safetensors")


def check_destination(path: str) -> None:
    """Refuse a path that cannot be written, before any work is done.

    Raises:
        OSError: its folder does not exist or cannot be written to, or it is a folder or a file that is read-only.
        InvalidParameter: standard output is closed.
    """
    if path == PIPE:
        if cast("object", sys.stdout) is None:
            raise InvalidParameter("standard output is closed; write to a file with -o")
        return
    if Path(path).suffix.lower() == ".zarr":
        check_store(path)
        return
    target = _target(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; name a file in it", path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "its folder does not exist", path)
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "is not writeable", path)
    if not os.access(target.parent, os.W_OK) and (target.is_file() or not target.exists()):
        raise PermissionError(errno.EACCES, "its folder is not writeable", path)


@contextlib.contextmanager
def destination(path: str) -> Generator[BinaryIO]:
    """Open a file, or standard output (`-`), for writing. A file appears under its name only when it is complete.

    A link stays one: what it points to is written. A file that was there keeps its permissions.

    Raises:
        OSError, InvalidParameter: whatever `check_destination` refuses.
    """
    check_destination(path)
    target = _target(path)
    if path == PIPE:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif target.exists() and not target.is_file():  # /dev/null and its like are written to, never replaced
        with target.open("wb") as file:
            yield file
    else:
        part = target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}.part")
        try:
            with part.open("xb") as file:
                if target.exists() and target.stat().st_mode != part.stat().st_mode:
                    part.chmod(target.stat().st_mode & 0o777)
                yield file
            part.replace(target)
        except OSError as error:
            if error.filename in (None, str(part)):  # a full disk names no file, and the caller named the finished one
                error.filename = path
            raise
        finally:
            part.unlink(missing_ok=True)


def _target(path: str) -> Path:
    return Path(os.path.realpath(path))


def tensor_head(
    file_format: str | None, name: str, data_type: DataType, shape: tuple[int, ...], op: str | None = None
) -> bytes:
    """What a file of one tensor begins with: npy, or safetensors.

    Args:
        file_format: `safetensors`; every other format is npy, which pipes carry.
        name: the tensor's name, which npy does not hold.
        data_type: its type.
        shape: its sizes.
        op: the document of the operation that made it, as metadata of safetensors.

    Raises:
        InvalidParameter: the format does not have the type.
    """
    if file_format == SAFETENSORS:
        return encode_head([(name, data_type, shape)], {} if op is None else {"op": op})
    return encode_npy_head(data_type, shape)


def write_blocks(file: BinaryIO, head: bytes, blocks: Iterable[memoryview]) -> None:
    """Write a head and blocks; nothing at all until the first block is there."""
    for block in blocks:
        if head:
            file.write(head)
            head = b""
        file.write(block)


def _name(path: str) -> str:
    return "standard input" if path == PIPE else path
