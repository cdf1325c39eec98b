"""`BoundedCache`: a dictionary of bounded length, below everything else of the server's HTTP side."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

MOST_KEY_BYTES = 4096
"""Longest HTTP head, and longest query and head of a body together, that are a key of a cache.

Those that the SDK sends have a few hundred bytes.
"""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedCache(dict[Key, Value], Generic[Key, Value]):
    """A dictionary that drops its oldest entry when it is full (first in, first out).

    A hit is a look-up in a dictionary; `cachetools` takes twice as long for it, because it keeps an order of use.
    """

    def __init__(self, most_entries: int) -> None:
        super().__init__()
        self.most_entries = most_entries

    def put(self, key: Key, value: Value) -> None:
        """Add an entry, or replace it."""
        if key not in self and len(self) >= self.most_entries:
            del self[next(iter(self))]
        self[key] = value
