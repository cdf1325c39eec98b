"""Media types of requests and responses: npy and a query, a frame, or plain JSON.

Content-Type selects the reader. Accept selects the writer; without it, the response has the media type of the request.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import NamedTuple

from tensorpost import frame
from tensorpost.problems import InvalidParameter, NotAcceptable, UnsupportedMediaType

__all__ = ["MOST_KEY_BYTES", "MediaType", "RequestFormat", "refuse_content_encoding", "refuse_unknown_type"]


MOST_KEY_BYTES = 4096
"""Longest query and head of a body that are kept in the call cache, together. Ours have a few hundred bytes."""


class MediaType(enum.Enum):
    """A media type that is read and written here."""

    NPY = frame.NPY_MEDIA_TYPE
    FRAME = frame.MEDIA_TYPE
    JSON = "application/json"

    __hash__ = object.__hash__  # Enum's own is written in Python, and members are part of every key of the call cache


_MEDIA_TYPES: Mapping[str, MediaType] = {
    **{media_type.value: media_type for media_type in MediaType},
    **dict.fromkeys(frame.ALSO_READ, MediaType.FRAME),
}
_EXACT: Mapping[bytes | None, MediaType] = {name.encode(): media_type for name, media_type in _MEDIA_TYPES.items()}
_NPY_START = b"\x93NUMPY\x01\x00"
_MOST_RANGES = 64  # media types in Accept; browsers send 8
_KNOWN = ", ".join(media_type.value for media_type in MediaType)


class RequestFormat(NamedTuple):
    """How a request is read and its response is written."""

    request: MediaType
    response: MediaType

    @property
    def may_replay(self) -> bool:
        """See `CallFormat.may_replay`."""
        return self.request is not MediaType.JSON

    def head_length(self, begin: bytes | memoryview) -> int:
        """See `CallFormat.head_length`."""
        if self.request is MediaType.NPY:
            length = 10 + int.from_bytes(begin[8:10], "little") if bytes(begin[:8]) == _NPY_START else 0
        elif self.request is MediaType.FRAME:
            length = 8 + int.from_bytes(begin[:8], "little")
        else:
            length = 0
        return length if length <= MOST_KEY_BYTES and length <= len(begin) else 0

    @classmethod
    def of(cls, headers: Mapping[bytes, bytes], body_bytes: int) -> RequestFormat:
        """The format that the header fields name. An empty body needs no Content-Type; it counts as npy.

        Raises:
            UnsupportedMediaType: no Content-Type, one that is not read here, or a compressed body.
            InvalidParameter: Accept has a malformed quality.
            NotAcceptable: no media type in Accept can be written.
        """
        content_type, accept = headers.get(b"content-type"), headers.get(b"accept")
        request = _EXACT.get(content_type)  # as most callers write it, without parameters
        if request is None:
            request = MediaType.NPY if content_type is None and not body_bytes else _request_type(content_type)
        refuse_content_encoding(headers)
        return cls(request, request if accept is None else _response_type(accept.decode("latin-1"), request))


def refuse_unknown_type(headers: Mapping[bytes, bytes]) -> None:
    """Accept only bodies of media types that are read here; a web page may post others to any host without asking it.

    Source: WHATWG Fetch, "CORS-safelisted request-header".

    Raises:
        UnsupportedMediaType: no Content-Type, or another.
    """
    _request_type(headers.get(b"content-type"))


def refuse_content_encoding(headers: Mapping[bytes, bytes]) -> None:
    """Accept only bodies without a content coding (RFC 9110, section 8.4).

    Raises:
        UnsupportedMediaType: the body is compressed.
    """
    encoding = headers.get(b"content-encoding", b"").decode("latin-1")
    if encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            f"Content-Encoding {encoding[:80]!r} is not read here; send the body uncompressed",
            extra={"accept_encoding": "identity"},
        )


def _request_type(content_type: bytes | None) -> MediaType:
    name = (content_type or b"").decode("latin-1").partition(";")[0].strip().lower()
    if name in _MEDIA_TYPES:
        return _MEDIA_TYPES[name]
    what = f"Content-Type {name[:80]!r} is not read here" if name else "there is no Content-Type"
    raise UnsupportedMediaType(f"{what}; send {_KNOWN}", extra={"accept": _KNOWN})


def _response_type(accept: str, request: MediaType) -> MediaType:
    """The writer for an Accept header (RFC 9110, section 12.5.1); a wildcard selects the request's media type."""
    if accept == "*/*":
        return request
    if (count := accept.count(",") + 1) > _MOST_RANGES:
        raise InvalidParameter(f"Accept names {count:,} media types; at most {_MOST_RANGES} are read")
    ranked: list[tuple[float, int, MediaType]] = []
    excluded: set[MediaType] = set()
    for order, item in enumerate(accept.split(",")):
        name, *parameters = [part.strip().lower() for part in item.split(";")]
        quality = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        if not re.fullmatch(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?", quality):
            raise InvalidParameter(f"Accept has the malformed quality {quality[:40]!r}; send a number from 0 to 1")
        weight = float(quality)
        media_type = request if name in ("*/*", "application/*") else _MEDIA_TYPES.get(name)
        if media_type is not None and weight > 0:
            ranked.append((-weight, order, media_type))
        elif media_type is not None and name in _MEDIA_TYPES:
            excluded.add(media_type)
    ranked = [entry for entry in ranked if entry[2] not in excluded]
    if not ranked:
        raise NotAcceptable(f"nothing in Accept {accept[:80]!r} can be written here; there are {_KNOWN}")
    return min(ranked, key=lambda entry: entry[:2])[2]
