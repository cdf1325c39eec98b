"""Frames of HTTP/2 (RFC 9113) as bytes: written, and taken apart. Nothing here reads, writes or waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
FRAME_BYTES = 65_536
"""Largest payload of a frame that is received."""
SMALLEST_FRAME_BYTES = 16_384
"""Largest payload that a peer takes unless it says otherwise; no setting may be less."""
WINDOW_BYTES = 65_535
"""Bytes of a body that may arrive before anybody has asked for them: the initial window."""
LARGEST_WINDOW = 2**31 - 1
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 3, 4, 5, 6

_PRIORITY_BYTES = 5  # before a header block (section 6.2)
_FORBIDDEN = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})


class ErrorCode(IntEnum):
    """RFC 9113, section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """What the caller sent ends the connection.

    Args:
        code: what the caller is told.
        text: what the log is told.
    """

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Http2FrameHead(NamedTuple):
    """The first nine bytes of a frame (section 4.1)."""

    length: int
    kind: int
    flags: int
    number: int


def head_at(data: bytes, at: int) -> Http2FrameHead:
    """The head of the frame that begins there.

    Raises:
        ConnectionFault: its payload is too large.
    """
    whole = int.from_bytes(data[at : at + HEAD_BYTES], "big")
    length = whole >> 48
    if length > FRAME_BYTES:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length:,} bytes")
    return Http2FrameHead(length, whole >> 40 & 0xFF, whole >> 32 & 0xFF, whole & LARGEST_WINDOW)


# ---- written -----------------------------------------------------------------------------------------------------


def frame_head(length: int, kind: int, flags: int, number: int) -> bytes:
    """The head of a frame, whose payload follows."""
    return (length << 48 | kind << 40 | flags << 32 | number).to_bytes(HEAD_BYTES, "big")


def frame(kind: int, flags: int, number: int, payload: bytes | memoryview) -> bytes:
    """A frame."""
    return frame_head(len(payload), kind, flags, number) + payload


def reset_frame(number: int, code: ErrorCode) -> bytes:
    """The frame that ends a stream at once."""
    return frame(RESET, 0, number, code.to_bytes(4, "big"))


def window_frame(number: int, more: int) -> bytes:
    """The frame that lets the peer send so many more bytes."""
    return frame(WINDOW, 0, number, more.to_bytes(4, "big"))


def settings_frame(settings: Sequence[tuple[int, int]]) -> bytes:
    """The frame of settings, each with its value."""
    payload = b"".join([number.to_bytes(2, "big") + value.to_bytes(4, "big") for number, value in settings])
    return frame(SETTINGS, 0, 0, payload)


def goaway_frame(last: int, code: ErrorCode) -> bytes:
    """The frame after which no stream beyond the last one is answered."""
    return frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big"))


# ---- taken apart -------------------------------------------------------------------------------------------------


def without_padding(flags: int, payload: memoryview) -> memoryview:
    """The payload of DATA or HEADERS without its padding (section 6.1).

    Raises:
        ConnectionFault: the padding is longer than the payload.
    """
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]


def header_block(flags: int, payload: memoryview) -> memoryview:
    """The header block, or its first part, in the payload of HEADERS.

    Raises:
        ConnectionFault: there is less than padding and priority take.
    """
    block = without_padding(flags, payload)
    if not flags & HAS_PRIORITY:
        return block
    if len(block) < _PRIORITY_BYTES:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a head is too short for its priority")
    return block[_PRIORITY_BYTES:]


def settings_of(payload: memoryview) -> Iterator[tuple[int, int]]:
    """Settings and their values.

    Raises:
        ConnectionFault: a value is out of bounds.
    """
    for at in range(0, len(payload), 6):
        setting = int.from_bytes(payload[at : at + 2], "big")
        value = int.from_bytes(payload[at + 2 : at + 6], "big")
        if setting == INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "an initial window is too large")
        if setting == MAX_FRAME_SIZE and not SMALLEST_FRAME_BYTES <= value < 1 << 24:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a largest frame is out of bounds")
        yield setting, value


def increment_of(payload: memoryview) -> int:
    """What WINDOW_UPDATE adds to a window.

    Raises:
        ConnectionFault: it is malformed, or adds nothing.
    """
    more = int.from_bytes(payload, "big") & LARGEST_WINDOW
    if len(payload) != 4 or not more:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a window grows by nothing")
    return more


def request_fields(fields: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes] | None:
    """The fields by name; None if they are malformed (section 8.2.1)."""
    by_name, regular = dict[bytes, bytes](), False
    for name, value in fields:
        if name != name.lower() or name in _FORBIDDEN or b"\0" in value or b"\r" in value or b"\n" in value:
            return None
        pseudo = name[:1] == b":"
        if pseudo and (regular or name in by_name):
            return None
        regular = regular or not pseudo
        by_name[name] = value if name not in by_name else by_name[name] + b", " + value
    return by_name if b":method" in by_name and b":path" in by_name and b":scheme" in by_name else None
