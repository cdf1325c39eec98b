"""Header fields of a request by name, each looked up once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["fields_of", "text_of"]


def fields_of(headers: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
    """The fields by their lower-case names; one that was sent several times is joined with commas.

    A list (Accept) means the same in one line or in several. Of a field that is no list (Content-Length), two lines
    make a value that no reader takes, so the request is refused instead of read in one of two ways.

    Source: RFC 9110, sections 5.2 and 5.3.

    Args:
        headers: as ASGI has them: names in lower case.
    """
    fields = dict(headers)
    if len(fields) != len(headers):
        lists: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            lists.setdefault(name, []).append(value)
        fields = {name: b", ".join(values) for name, values in lists.items()}
    return fields


def text_of(value: bytes | None) -> str | None:
    """A field's value as text, byte for byte (RFC 9110, section 5.5)."""
    return None if value is None else value.decode("latin-1")
