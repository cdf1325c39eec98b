"""Frames of HTTP/2 byte by byte, against the layouts that RFC 9113 draws."""

from __future__ import annotations

import pytest

from tensorpost_server.http.connection import frames
from tensorpost_server.http.connection.frames import ConnectionFault, ErrorCode


@pytest.mark.parametrize(("written", "bytes_"), [
    (frames.frame(frames.PING, frames.ACK, 0, b"12345678"), "000008 06 01 00000000 3132333435363738"),
    (frames.frame(frames.DATA, frames.END_STREAM, 0x7FFFFFFF, b""), "000000 00 01 7fffffff"),
    (frames.frame_head(0x012345, frames.HEADERS, 4, 3), "012345 01 04 00000003"),
    (frames.reset_frame(5, ErrorCode.REFUSED_STREAM), "000004 03 00 00000005 00000007"),
    (frames.window_frame(1, 65_536), "000004 08 00 00000001 00010000"),
    (frames.settings_frame([(3, 128), (5, 65_536)]), "00000c 04 00 00000000 0003 00000080 0005 00010000"),
    (frames.goaway_frame(9, ErrorCode.ENHANCE_YOUR_CALM), "000008 07 00 00000000 00000009 0000000b"),
])  # fmt: skip
def test_written(written: bytes, bytes_: str):
    assert written == bytes.fromhex(bytes_)


def test_heads():
    """The first bit of a stream's number is reserved, and means nothing (section 4.1)."""
    data = bytes.fromhex("ff 010000 77 ff 80000003 ff")
    assert frames.head_at(data, 1) == (65_536, 0x77, 0xFF, 3)
    with pytest.raises(ConnectionFault) as fault:
        frames.head_at(bytes.fromhex("010001 00 00 00000001"), 0)
    assert fault.value.code is ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize(("flags", "payload", "block"), [
    (0, "616263", b"abc"), (0, "", b""), (8, "02 6162 0000", b"ab"), (8, "00", b""), (8, "02 0000", b""),
    (0x20, "80000001 10 6162", b"ab"), (0x28, "01 00000001 10 61 00", b"a"), (0x20, "00000001 10", b""),
])  # fmt: skip
def test_padding_and_priority(flags: int, payload: str, block: bytes):
    assert bytes(frames.header_block(flags, memoryview(bytes.fromhex(payload)))) == block


@pytest.mark.parametrize(("flags", "payload", "code"), [
    (8, "", ErrorCode.PROTOCOL_ERROR), (8, "01", ErrorCode.PROTOCOL_ERROR), (8, "04 000000", ErrorCode.PROTOCOL_ERROR),
    (0x20, "00000001", ErrorCode.FRAME_SIZE_ERROR), (0x28, "01 00000001 00", ErrorCode.FRAME_SIZE_ERROR),
])  # fmt: skip
def test_too_little_for_padding_or_priority(flags: int, payload: str, code: ErrorCode):
    with pytest.raises(ConnectionFault) as fault:
        frames.header_block(flags, memoryview(bytes.fromhex(payload)))
    assert fault.value.code is code


def test_settings():
    known = bytes.fromhex("0004 7fffffff 0005 00004000 0005 00ffffff 00ff ffffffff")
    assert [*frames.settings_of(memoryview(known))] == [(4, 2**31 - 1), (5, 16_384), (5, 2**24 - 1), (255, 2**32 - 1)]
    assert [*frames.settings_of(memoryview(b""))] == []
    for malformed, code in (
        ("0004 80000000", ErrorCode.FLOW_CONTROL_ERROR), ("0005 00003fff", ErrorCode.PROTOCOL_ERROR),
        ("0005 01000000", ErrorCode.PROTOCOL_ERROR),
    ):  # fmt: skip
        with pytest.raises(ConnectionFault) as fault:
            list(frames.settings_of(memoryview(bytes.fromhex(malformed))))
        assert fault.value.code is code


def test_windows():
    assert frames.increment_of(memoryview(bytes.fromhex("80000001"))) == 1, "the first bit is reserved"
    assert frames.increment_of(memoryview(bytes.fromhex("7fffffff"))) == 2**31 - 1
    for malformed in ("00000000", "80000000", "000001", "0000000001"):
        with pytest.raises(ConnectionFault):
            frames.increment_of(memoryview(bytes.fromhex(malformed)))


HEAD = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a")]


def test_fields():
    """Section 8.2 and 8.3: equal names are one field; malformed ones make the request malformed."""
    found = frames.request_fields([*HEAD, (b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    assert found == {**dict(HEAD), b"a": b"1, 3", b"b": b"2"}
    for fields in (
        HEAD[1:], HEAD[:2], [*HEAD, HEAD[0]], [(b"a", b"1"), *HEAD], [*HEAD, (b"A", b"1")],
        [*HEAD, (b"connection", b"close")], [*HEAD, (b"a", b"1\r\n")], [*HEAD, (b"a", b"\0")],
    ):  # fmt: skip
        assert frames.request_fields(fields) is None
