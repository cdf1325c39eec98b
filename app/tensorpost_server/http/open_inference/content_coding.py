"""Content codings of `/v2`: gzip and deflate, the latter in zlib's wrapper (RFC 9110, section 8.4.1).

A response is compressed only if the caller accepts exactly one of the two, which is what tritonclient sends when its
user asks for compression. Its asynchronous client names several by default and reads none of them in JSON.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from tensorpost.values.problems import InvalidRequest, LimitExceeded, UnsupportedMediaType

from ..background_threads import CallerThreads

Coding: TypeAlias = Literal["gzip", "deflate"]

_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_LEVEL = 1  # tensors hardly shrink more at higher ones
_STEP_BYTES = 1 << 20
_PIECE = 1 << 16  # of a body, given to the decompressor at a time


def request_coding(content_encoding: bytes | None) -> Coding | None:
    """The coding of a request's body; None if it has none.

    Raises:
        UnsupportedMediaType: any other.
    """
    name = (content_encoding or b"").strip().lower()
    if name in (b"", b"identity"):
        return None
    if name not in (b"gzip", b"deflate"):
        raise UnsupportedMediaType(
            f"Content-Encoding {name[:80].decode('latin-1')!r} is not supported; send gzip, deflate or none",
            extra={"accept_encoding": "gzip, deflate"},
        )
    return "gzip" if name == b"gzip" else "deflate"


def response_coding(accept_encoding: bytes | None) -> Coding | None:
    """The coding of the response: the only one that the field names, else None."""
    name = (accept_encoding or b"").strip().lower()
    return "gzip" if name == b"gzip" else "deflate" if name == b"deflate" else None


async def decompressed(
    data: bytes | memoryview, coding: Coding, limit: int, reserve: Callable[[int], object], threads: CallerThreads,
    setting: str = "TENSORPOST_MAX_BODY_BYTES",
) -> bytes:  # fmt: skip
    """The plain body. It is made block by block, and memory is reserved for each before the next one.

    Raises:
        LimitExceeded: the plain body is above the limit.
        InvalidRequest: it is not a body of this coding, or not a whole one.
        TooBusy: the memory is not there now.
    """
    reader, parts, length, at = zlib.decompressobj(_WINDOW[coding]), list[bytes](), 0, 0
    left = b""  # of a piece of the body: of a longer one each block would copy what is left
    while not reader.eof:
        if not left:
            left, at = bytes(data[at : at + _PIECE]), at + _PIECE
        is_last = at >= len(data)
        try:
            part = await threads.run(True, reader.decompress, left, _STEP_BYTES)
        except zlib.error as error:
            raise InvalidRequest(f"the body is not {coding}: {error}") from None
        left = reader.unconsumed_tail
        if not part and not left and is_last and not reader.eof:
            raise InvalidRequest(f"the {coding} body is incomplete")
        length += len(part)
        if length > limit:
            raise LimitExceeded.of("the plain request body", length, limit, setting)
        reserve(2 * len(part))  # the blocks, and the whole that is made of them
        parts.append(part)
    unused = len(reader.unused_data) + max(0, len(data) - at)
    if unused:
        raise InvalidRequest(f"{unused:,} bytes follow the end of the {coding} body")
    return await threads.run(length > _STEP_BYTES, b"".join, parts)


def compressed(parts: Iterable[bytes | bytearray], coding: Coding) -> bytes:
    """The parts, one after the other, compressed with the coding."""
    writer = zlib.compressobj(_LEVEL, wbits=_WINDOW[coding])
    return b"".join([*map(writer.compress, parts), writer.flush()])
