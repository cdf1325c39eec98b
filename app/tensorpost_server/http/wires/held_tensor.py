"""What the database says of a held tensor."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tensorpost.values.datatypes import data_type
from tensorpost.values.layout import Layout

COLUMNS = """number, owner, name, data_type, sizes, created, began, used,
    EXISTS (SELECT 1 FROM tensor_uses WHERE tensor_uses.number = tensors.number)"""
"""The columns of the table `tensors` that `HeldTensorRow.of_row` reads."""


@lru_cache(maxsize=256)
def _layout(kind: str, sizes: str) -> Layout:
    """A packed layout; making one takes longer than reading the row."""
    return Layout.row_major(data_type(kind), tuple(json.loads(sizes)))


class HeldTensorRow(NamedTuple):
    """A tensor as it was when the database was read.

    Attributes:
        number: a number that no other tensor of this server has.
        owner: the caller that it belongs to.
        name: its name.
        layout: type and sizes; packed.
        created: when it was made, seconds since 1970.
        began: when it was made, by the system's monotonic clock.
        used: when it was used last, by the same.
        is_in_use: whether a request reads it.
    """

    number: int
    owner: str
    name: str
    layout: Layout
    created: float
    began: float
    used: float
    is_in_use: bool

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> HeldTensorRow:
        """Read a row of `COLUMNS`."""
        number, owner, name, kind, sizes, created, began, used, is_in_use = row
        return cls(number, owner, name, _layout(kind, sizes), created, began, used, bool(is_in_use))

    @property
    def tag(self) -> str:
        """What tells it from any other tensor, also of the same name."""
        return f"{self.name}#{self.number}@{self.created!r}"

    def describe(self, copies: Sequence[str] = ()) -> dict[str, Any]:
        """What the service says of it.

        Args:
            copies: the devices that have a copy of it.
        """
        row, now = self.layout.data_type, time.monotonic()
        return {
            "name": self.name,
            "data_type": row.directml or row.numpy_name.upper(),
            "dtype": row.numpy_name,
            "sizes": list(self.layout.sizes),
            "size_in_bytes": self.layout.size_in_bytes,
            "device": ", ".join(["host memory", *copies]),
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.created)),
            "age_seconds": round(now - self.began, 1),
            "idle_seconds": 0.0 if self.is_in_use else round(now - self.used, 1),
        }
