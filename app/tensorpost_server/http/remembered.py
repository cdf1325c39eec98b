"""What was lately worked out, by the exact bytes it was worked out from; never more of it than was agreed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Remembered"]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Remembered(Generic[Key, Value]):
    """A cache of pure results, bounded by entries and by bytes. Used from one thread.

    Two generations: what is used moves to the young one, and when that is full it becomes the old one, whose unused
    entries go. A hit in the young one is a single look-up.

    Args:
        most_entries: entries of both generations together.
        most_bytes: sum of the sizes given to `put`, of both generations together.

    Example:
        >>> squares = Remembered[int, int](4, 100)
        >>> squares.put(3, 9, size=8)
        >>> squares.get(3), squares.get(4)
        (9, None)
    """

    __slots__ = ("_most_bytes", "_most_entries", "_old", "_young", "_young_bytes")

    def __init__(self, most_entries: int, most_bytes: int) -> None:
        self._most_entries, self._most_bytes = most_entries // 2, most_bytes // 2
        self._young: dict[Key, tuple[Value, int]] = {}
        self._old: dict[Key, tuple[Value, int]] = {}
        self._young_bytes = 0

    def get(self, key: Key) -> Value | None:
        """The value, or None if it is not there (any more)."""
        found = self._young.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is None:
                return None
            self._keep(key, found)
        return found[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Remember a value that is not there yet; one that is larger than half of all is not remembered.

        Args:
            key: everything that the value was made from.
            value: not None; never changed.
            size: about how many bytes key and value hold.
        """
        if size <= self._most_bytes and self._most_entries:
            self._keep(key, (value, size))

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def _keep(self, key: Key, found: tuple[Value, int]) -> None:
        if len(self._young) >= self._most_entries or self._young_bytes + found[1] > self._most_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0
        self._young[key] = found
        self._young_bytes += found[1]
