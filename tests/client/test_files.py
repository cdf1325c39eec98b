"""What the command line reads and writes: npy files and pipes, pictures, and where results go."""

from __future__ import annotations

import io
import os
import stat
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy_format
from PIL import Image

from tensorpost.bodies.images import encode_image
from tensorpost.command_line.files import check_destination, check_picture, destination, read_array
from tensorpost.values.problems import InvalidFrame, InvalidParameter

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


class Standard:
    """A standard stream with bytes behind it."""

    def __init__(self, content: bytes = b"") -> None:
        self.buffer = io.BytesIO(content)


def both_ways(monkeypatch: pytest.MonkeyPatch, folder: Path, content: bytes) -> list[Any]:
    """The array of this content, or what reading it raises: first as a file, then as standard input."""
    (folder / "x").write_bytes(content)
    monkeypatch.setattr("sys.stdin", Standard(content))
    found: list[Any] = []
    for path in (str(folder / "x"), "-"):
        try:
            found.append(read_array(path).array)
        except InvalidFrame as error:
            found.append(error)
    return found


def saved(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    npy_format.write_array(file, array, version=version)
    return file.getvalue()


def npy_of(text: str, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + body


# ---- npy -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    "array",
    [
        X,
        np.asfortranarray(X),
        X.astype(">f4"),
        np.asfortranarray(X.astype(">i8")),
        X.astype(bool),
        X.astype(np.complex128),
        X.astype(np.int8),
        np.array(3.5),
        np.zeros((0, 3), np.float32),
        np.asfortranarray(np.zeros((2, 0, 3), ">u2")),
    ],
    ids=["plain", "fortran", "big", "big-fortran", "bool", "complex", "int8", "0-d", "empty", "empty-fortran"],
)
def test_what_numpy_saves_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, array: np.ndarray, version: tuple[int, int]
) -> None:
    """Bytes behind the array are left alone, as `numpy.load` leaves them: several arrays may stand in one file."""
    for found in both_ways(monkeypatch, tmp_path, saved(array, version) + b"more"):
        np.testing.assert_array_equal(found, array, strict=True)


def test_a_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)

    found = read_array(str(tmp_path / "x.npy")).array

    assert isinstance(found, np.memmap)
    assert not found.flags.writeable


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes with names in folders")
def test_a_named_pipe_is_read_as_the_pipe_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    writer = threading.Thread(target=(tmp_path / "x").write_bytes, args=(saved(X),), daemon=True)
    writer.start()

    np.testing.assert_array_equal(read_array(str(tmp_path / "x")).array, X)
    writer.join(10)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, }"), "cannot be read at its byte"),
        (npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (\"\"\"a"), "the text of a dict"),
        (npy_of("(" * 60 + ")" * 60), "the text of a dict"),
        (npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (10**9,)}"), "whole numbers"),
        (npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 10000)}"), "40,000,000,000 bytes.*only 0"),
        (npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", bytes(11)), "12 bytes.*only 11"),
        (npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}"), "0 or larger"),
        (npy_of("{'descr': '|O', 'fortran_order': False, 'shape': (3,)}"), "Python objects"),
        (npy_of("{'descr': '<M8[s]', 'fortran_order': False, 'shape': (3,)}"), "dates"),
        (npy_of("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}"), "structured"),
        (b"\x93NUMPY\x09\x00", "version 9.0"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "announces 4,294,967,295 bytes of text; at most 65,536"),
        (b"\x93NUMPY", "inside its head"),
    ],
)
def test_a_broken_npy_is_named_with_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, said: str
) -> None:
    for name, found in zip(
        (str(tmp_path / "x"), "standard input"), both_ways(monkeypatch, tmp_path, content), strict=True
    ):
        assert isinstance(found, InvalidFrame)
        assert found.detail.startswith(f"{name} cannot be read as npy: ")
        found.detail = found.detail.removeprefix(name)
        with pytest.raises(InvalidFrame, match=said):
            raise found


# ---- pictures --------------------------------------------------------------------------------------------------------


def png(depth: int, colour: int, rows: list[bytes], width: int, transparent: bytes | None = None) -> bytes:
    """A PNG written by hand, after PNG (Third Edition) sections 5 and 11: Pillow writes few of these."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + len(rows).to_bytes(4, "big") + bytes([depth, colour, 0, 0, 0])
    trns = b"" if transparent is None else chunk(b"tRNS", transparent)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + trns + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "pixels"),
    [
        (png(8, 0, [b"\x05\x07"], 2, b"\0\x07"), [[[5, 255], [7, 0]]]),
        (png(8, 2, [b"\1\2\3\1\2\4"], 2, b"\0\1\0\2\0\3"), [[[1, 2, 3, 0], [1, 2, 4, 255]]]),
        (png(4, 0, [b"\x5a"], 2, b"\0\x0a"), [[[0x55, 255], [0xAA, 0]]]),
        (png(2, 0, [b"\x1b"], 4, b"\0\1"), [[[0, 255], [85, 0], [170, 255], [255, 255]]]),
        (png(1, 0, [b"\x40"], 2, b"\0\1"), [[[0, 255], [255, 0]]]),
        (png(1, 0, [b"\x40"], 2, b"\0\0"), [[[0, 0], [255, 255]]]),
        (png(8, 0, [b"\x05\x07"], 2), [[5, 7]]),
        (png(16, 0, [b"\x12\x34\xff\xfe"], 2), [[0x1234, 0xFFFE]]),
        (png(16, 0, [b"\x12\x34\xff\xfe"], 2, b"\xff\xfe"), [[[0x1234, 0xFFFF], [0xFFFE, 0]]]),
        (png(16, 2, [b"\x12\x34\1\2\xff\xfe"], 1), [[[0x1234, 0x0102, 0xFFFE]]]),
        (png(16, 2, [b"\x12\x34\1\2\xff\xfe"], 1, b"\x12\x34\1\2\xff\xfe"), [[[0x1234, 0x0102, 0xFFFE, 0]]]),
        (png(16, 4, [b"\x12\x34\xff\xfe"], 1), [[[0x1234, 0xFFFE]]]),
        (png(16, 6, [b"\x12\x34\1\2\0\7\xff\xfe"], 1), [[[0x1234, 0x0102, 7, 0xFFFE]]]),
    ],
    ids=[
        "grey",
        "colour",
        "4 bits",
        "2 bits",
        "1 bit, white",
        "1 bit, black",
        "opaque",
        "16 bits",
        "16 and a key",
        "16 of RGB",
        "16 of RGB and a key",
        "16 of grey and alpha",
        "16 of RGBA",
    ],
)
def test_every_value_of_a_png_is_kept_its_transparent_one_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, pixels: list[Any]
) -> None:
    for found in both_ways(monkeypatch, tmp_path, content):
        assert found.tolist() == pixels


@pytest.mark.parametrize(
    "content",
    [png(8, 0, [b"\x05"], 1, b"\0"), png(8, 0, [b"\x05"], 1)[:30], b"\x89PNG\r\n\x1a\n\0\0\0\5IHDR\0\0\0\1\0"],
)
def test_a_broken_png_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> None:
    """Pillow raises ValueError for chunks that are too short."""
    for found in both_ways(monkeypatch, tmp_path, content):
        assert isinstance(found, InvalidFrame)
        assert "picture" in found.detail


@pytest.mark.parametrize(("kind", "most"), [("WEBP", 16_383), ("JPEG", 65_500)])
@pytest.mark.parametrize("wide", [True, False])
def test_a_picture_larger_than_its_format_is_refused(kind: str, most: int, wide: bool) -> None:
    def shape(side: int) -> tuple[int, int]:
        return (1, side) if wide else (side, 1)

    largest = np.zeros(shape(most), np.uint8)
    check_picture(largest.dtype, largest.shape, kind)
    with Image.open(io.BytesIO(encode_image(largest, kind))) as image:
        assert image.size == shape(most)[::-1]
    with pytest.raises(InvalidParameter, match=f"{kind} has at most {most:,} pixels"):
        check_picture(largest.dtype, shape(most + 1), kind)
    check_picture(largest.dtype, shape(1 << 20), "PNG")


# ---- destinations ----------------------------------------------------------------------------------------------------


def write(path: Path | str, content: bytes = b"new") -> None:
    with destination(str(path)) as file:
        file.write(content)


def test_a_folder_that_is_not_there_is_said_of_the_path_that_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    for refuse in (check_destination, write):
        with pytest.raises(FileNotFoundError) as caught:
            refuse("nodir/y.npy")
        assert (caught.value.filename, caught.value.strerror) == ("nodir/y.npy", "its folder does not exist")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder"):
        check_destination(str(tmp_path))


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
def test_what_is_read_only_is_found_before_any_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the bits, and not by what may be done: root may do everything."""
    monkeypatch.setattr(os, "access", lambda path, _: bool(Path(path).stat().st_mode & 0o200))
    old = tmp_path / "y.npy"
    old.write_bytes(b"old")
    check_destination(str(old))

    old.chmod(0o444)
    with pytest.raises(PermissionError, match="is not writeable"):
        check_destination(str(old))
    tmp_path.chmod(0o555)
    with pytest.raises(PermissionError, match="its folder is not writeable"):
        check_destination(str(tmp_path / "new.npy"))
    tmp_path.chmod(0o755)


@pytest.mark.skipif(os.name != "posix", reason="symbolic links need a privilege on Windows")
@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_one_and_what_it_points_to_is_written(tmp_path: Path, there: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, real = tmp_path / "link.npy", tmp_path / "elsewhere" / "real.npy"
    link.symlink_to("elsewhere/real.npy")
    if there:
        real.write_bytes(b"old")

    write(link)

    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert [path.name for path in real.parent.iterdir()] == ["real.npy"]


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_file_that_is_written_again_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "y.npy"
    path.write_bytes(b"old")
    path.chmod(mode)

    write(path)

    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_has_the_permissions_that_any_new_file_has(tmp_path: Path) -> None:
    (tmp_path / "any").touch()

    write(tmp_path / "y.npy")

    assert (tmp_path / "y.npy").stat().st_mode == (tmp_path / "any").stat().st_mode


@pytest.mark.parametrize("filename", [None, "somebody else's"])
def test_a_disk_that_is_full_is_said_of_the_path_that_was_given(tmp_path: Path, filename: str | None) -> None:
    def fail() -> None:
        with destination(str(tmp_path / "y.npy")):
            raise OSError(28, "No space left on device", filename)

    with pytest.raises(OSError, match="No space left") as caught:
        fail()

    assert caught.value.filename == (filename or str(tmp_path / "y.npy"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["stdin", "stdout"])
def test_a_closed_stream_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(f"sys.{name}", None)

    with pytest.raises(InvalidParameter, match="is closed"):
        read_array("-") if name == "stdin" else check_destination("-")
