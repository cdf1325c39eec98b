"""A part of an answer, requested by rows, and the tag that identifies its call.

A caller whose connection broke requests the missing rows. The tag prevents joining parts of two answers: a server
refuses a request with a tag unless the call, its inputs and the backend are those of the tag.

A row is a run of elements along the last axis; of an output with one dimension or none, an element.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from ..values.layout import Layout
from ..values.problems import InvalidParameter
from ..values.sentences import named

_ROWS = re.compile(r"([0-9]{0,18}):([0-9]{0,18})")
_LEFT_OUT = ("rows", "backend", "device")
"""Query parameters that are not part of a call's digest: the requested part, and what computes it."""


@dataclass(frozen=True, slots=True)
class OutputRows:
    """Some rows of an output.

    Attributes:
        begin: the first of them, counted from 0.
        end: the one after the last of them.
        count: how many rows the whole output has.
        row_bytes: bytes of a row.
        layout: the layout of these rows as a tensor of their own: rows and the last axis, or elements.
    """

    begin: int
    end: int
    count: int
    row_bytes: int
    layout: Layout

    @classmethod
    def of(cls, whole: Layout, begin: int = 0, end: int | None = None) -> Self:
        """The rows of an output from `begin` to before `end`, of all if it is None.

        Raises:
            InvalidParameter: the output has strides or padding, or there are no such rows.
        """
        if not whole.packed:
            raise InvalidParameter(
                named("rows") + " select from a packed output, and this one has strides or padding; leave "
                + named("rows") + " out"
            )  # fmt: skip
        sizes = whole.sizes
        width = sizes[-1] if len(sizes) > 1 else 1
        count = math.prod(sizes[:-1]) if len(sizes) > 1 else math.prod(sizes)
        if math.prod(sizes) == 0:
            raise InvalidParameter(
                named("rows") + " select elements, and this output has none; leave " + named("rows") + " out"
            )
        stop = count if end is None else end
        if not 0 <= begin < stop <= count:
            raise InvalidParameter(
                named("rows")
                + f" is {begin}:{'' if end is None else end}; it must be begin:end with 0 <= begin < end <= {count}, "
                f"where {count} is the number of rows of an output of the sizes {list(sizes)}",
                extra={"parameter": "rows", "rows": count},
            )
        part = (stop - begin, width) if len(sizes) > 1 else (stop - begin,)
        layout = Layout.row_major(whole.data_type, part)
        return cls(begin, stop, count, width * whole.data_type.item_size, layout)

    def after(self, received: int) -> Self:
        """The rows that are not complete once so many of their bytes have arrived: fewer than all of them."""
        begin = self.begin + received // self.row_bytes
        layout = Layout.row_major(self.layout.data_type, (self.end - begin, *self.layout.sizes[1:]))
        return replace(self, begin=begin, layout=layout)

    @property
    def begin_byte(self) -> int:
        """Their first byte in the whole output."""
        return self.begin * self.row_bytes

    @property
    def size_in_bytes(self) -> int:
        """Bytes of these rows."""
        return (self.end - self.begin) * self.row_bytes

    def __str__(self) -> str:
        """The value of the query parameter `rows`: `128:256`, or `128:` up to the last row."""
        return f"{self.begin}:{'' if self.end == self.count else self.end}"


def read_rows(text: str) -> tuple[int, int | None]:
    """Read `128:256`, `:256` or `128:`.

    Raises:
        InvalidParameter: it is something else.
    """
    found = _ROWS.fullmatch(text)
    if found is None:
        raise InvalidParameter(
            f"rows is {text[:40]!r}; it must be begin:end, as in 128:256, :256 or 128:", extra={"parameter": "rows"}
        )
    begin, end = found.groups()
    return int(begin or 0), int(end) if end else None


def call_digest(path: str, query: str, fields: Iterable[str], body: Iterable[memoryview]) -> str:
    """The digest of a call: SHA-256 in hexadecimal digits.

    It is of these lines, each with a line feed, and then of the body: the path; the query without `rows`, `backend` and
    `device`; the values of Content-Type, Tensorpost-Shape and Tensorpost-Dtype, empty for those that were not sent.

    Args:
        path: the path below the server's base URL, as in `/v1/operators/tile`.
        query: the query as it was sent, without its question mark.
        fields: the three values.
        body: the bytes of the body, in order.
    """
    kept = [item for item in query.split("&") if item.partition("=")[0] not in _LEFT_OUT]
    found = hashlib.sha256("".join([f"{line}\n" for line in (path, "&".join(kept), *fields)]).encode())
    for view in body:
        found.update(view)
    return found.hexdigest()


def answer_tag(digest: str, backend: str) -> str:
    """The tag of an answer, for `ETag` and `If-Range`: of which call it is, and what computed it.

    Args:
        digest: see `call_digest`.
        backend: what computed it, as `Tensorpost-Backend` says.
    """
    return f'"{digest}-{backend}"'
