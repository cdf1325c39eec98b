"""What the HTTP head of an inference says about its body and its response; and the JSON part of the body."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

from tensorpost.values.problems import InvalidParameter

from ..bounded_cache import MOST_KEY_BYTES
from .content_coding import Coding, request_coding, response_coding

JSON_LENGTH = b"inference-header-content-length"
"""The header field with the length of the JSON part, bytes."""


class InferFormat(NamedTuple):
    """What the header fields of an inference say about its body and its response; see `CallFormat`.

    Attributes:
        json_bytes: length of the JSON part, which the tensors' bytes follow; None if the whole body is JSON.
        content_coding: how the request's body is compressed; None for not at all.
        response_coding: how the response's body is compressed; None for not at all.
    """

    json_bytes: int | None
    content_coding: Coding | None
    response_coding: Coding | None

    @classmethod
    def from_headers(cls, fields: Mapping[bytes, bytes], length: int) -> InferFormat:
        """The format that the header fields name.

        Raises:
            InvalidParameter: Inference-Header-Content-Length is no number, or more than the body has.
            UnsupportedMediaType: another Content-Encoding than gzip and deflate.
        """
        sent, coding = fields.get(JSON_LENGTH), request_coding(fields.get(b"content-encoding"))
        json_bytes = None
        if sent is not None:
            digits = sent.strip()
            if not digits.isdigit() or len(digits) > 18:
                raise InvalidParameter(
                    f"Inference-Header-Content-Length {sent[:40].decode('latin-1')!r} is no number of bytes"
                )
            json_bytes = int(digits)
            if coding is None and json_bytes > length:
                raise InvalidParameter(
                    f"Inference-Header-Content-Length is {json_bytes:,}, but the body has {length:,} bytes"
                )
        return cls(json_bytes, coding, response_coding(fields.get(b"accept-encoding")))

    @property
    def may_replay(self) -> bool:
        return bool(self.json_bytes) and self.content_coding is None and self.response_coding is None

    def head_length(self, begin: bytes | memoryview) -> int:
        length = self.json_bytes or 0
        return length if self.may_replay and length <= MOST_KEY_BYTES and length <= len(begin) else 0

    def text_bytes(self, length: int) -> int:
        """See `CallFormat.text_bytes`; of a compressed body, whatever its length, as many as there may be."""
        if self.json_bytes is not None:
            return self.json_bytes
        return length if self.content_coding is None else sys.maxsize


class JsonPart:
    """Collects the JSON part of a body from pieces; see `HeadCollector`."""

    def __init__(self, length: int) -> None:
        self.head: bytes | None = None
        self.wanted = length
        self._collected = bytearray()

    @property
    def missing(self) -> int:
        """Bytes that have not come."""
        return self.wanted - len(self._collected)

    def feed(self, data: bytes | memoryview) -> int:
        """Take what belongs to it; returns how many bytes that was."""
        part = memoryview(data)[: self.missing]
        self._collected += part
        if not self.missing:
            self.head = bytes(self._collected)
        return len(part)
