"""Numbers that several processes count together: requests, bytes and connections, in all and of each caller.

A process writes only what it has counted itself, so the numbers of one that ended are taken out by clearing its column.
`lock` makes a look at the numbers and the change that depends on it one step; the system ends the lock of a process
that dies.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, Protocol

from .shared_folder import allocate

ROWS = 4096
"""Callers that are counted together at a time. Those beyond are counted by each process for itself."""

NONE_READY = 1 << 62
"""What `ProcessCounts.least` says where no other process takes connections."""

_PROBES = 64
_KEY_BYTES = 16
_MOST_KNOWN = 2 * ROWS
_TOTAL_KEY = b"\0" * _KEY_BYTES  # of row 0, which is everybody's together


class Count(NamedTuple):
    """What is counted under one key. The user of the numbers says what they are."""

    first: int = 0
    second: int = 0


_NOTHING = Count()
_NO_LOCK: AbstractContextManager[None] = nullcontext()


class ProcessCounts(Protocol):
    """What the other processes have counted; `NoOthers` where there is one process. None is the key of all together."""

    def others(self, key: str | None) -> Count:
        """What the other processes have counted under a key."""
        ...

    def least(self) -> int:
        """The smallest total that another process has which takes connections; NONE_READY if there is none."""
        ...

    def publish(self, key: str | None, first: int, second: int = 0) -> None:
        """Say what this process has under a key; with `lock` held, unless it becomes less."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of held tensors, which belong to no process."""
        ...

    def hold(self, size_in_bytes: int) -> None:
        """Add to the bytes of held tensors, within a transaction of the database."""
        ...

    def lock(self) -> AbstractContextManager[None]:
        """Keep the others from changing the numbers; not to be held twice."""
        ...


class NoOthers:
    """See `ProcessCounts`: there is one process."""

    def __init__(self) -> None:
        self.held_bytes = 0

    def hold(self, size_in_bytes: int) -> None:
        self.held_bytes += size_in_bytes

    def others(self, key: str | None) -> Count:
        del key
        return _NOTHING

    def least(self) -> int:
        return NONE_READY

    def publish(self, key: str | None, first: int, second: int = 0) -> None:
        del key, first, second

    def lock(self) -> AbstractContextManager[None]:
        return _NO_LOCK


class SharedCounts:
    """See `ProcessCounts`: numbers in a file that all processes map. Used from one thread of each.

    Args:
        path: the file, which `create` has made.
        place: the column of this process.
        places: how many columns there are.
    """

    def __init__(self, path: Path, place: int, places: int) -> None:
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), 0)
        self._place, self._places = place, places
        self._numbers = memoryview(self._map)[ROWS * _KEY_BYTES :].cast("q")
        self._ready_at = 2 * places * ROWS
        self._held_at = self._ready_at + places
        self._rows: dict[str | None, tuple[int, bytes]] = {None: (0, _TOTAL_KEY)}

    @staticmethod
    def create(path: Path, places: int) -> None:
        """Make the file, in which nothing is counted."""
        with path.open("wb") as file:
            allocate(file.fileno(), ROWS * _KEY_BYTES + (2 * places * ROWS + places + 1) * 8)

    def close(self) -> None:
        """Let go of the file."""
        self._numbers.release()
        self._map.close()
        self._file.close()

    def set_ready(self, *, is_ready: bool) -> None:
        """Say whether this process takes connections."""
        self._numbers[self._ready_at + self._place] = int(is_ready)

    def clear(self, place: int) -> None:
        """Take out what the process at a place had counted, which has ended."""
        with self.lock():
            self._numbers[self._ready_at + place] = 0
            for row in range(ROWS):
                at = 2 * (row * self._places + place)
                self._numbers[at] = self._numbers[at + 1] = 0

    @property
    def held_bytes(self) -> int:
        return self._numbers[self._held_at]

    def hold(self, size_in_bytes: int) -> None:
        self._numbers[self._held_at] += size_in_bytes

    def others(self, key: str | None) -> Count:
        row = self._find(key)
        if row is None:
            return Count()
        begin, end, mine = 2 * row * self._places, 2 * (row + 1) * self._places, 2 * (row * self._places + self._place)
        numbers = self._numbers
        first = sum(numbers[at] for at in range(begin, end, 2)) - numbers[mine]
        return Count(first, sum(numbers[at] for at in range(begin + 1, end, 2)) - numbers[mine + 1])

    def least(self) -> int:
        numbers, ready = self._numbers, self._ready_at
        others = [
            numbers[2 * place] for place in range(self._places) if place != self._place and numbers[ready + place]
        ]
        return min(others, default=NONE_READY)

    def publish(self, key: str | None, first: int, second: int = 0) -> None:
        row = self._find(key)
        if row is None and key is not None and (first or second):
            row = self._claim(key)
        if row is not None:
            at = 2 * (row * self._places + self._place)
            self._numbers[at], self._numbers[at + 1] = first, second

    @contextmanager
    def lock(self) -> Generator[None]:
        import fcntl  # not there on Windows

        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _find(self, key: str | None) -> int | None:
        """The row of a key; None if it has none."""
        known = self._rows.get(key)
        if known is not None and self._key_of(known[0]) == known[1]:
            return known[0]
        assert key is not None
        wanted = _digest(key)
        return next((row for row in _probed(wanted) if self._remember(key, row, wanted)), None)

    def _claim(self, key: str) -> int | None:
        """A row for a key that has none, of those under which nothing is counted; None if all have something."""
        wanted = _digest(key)
        for row in _probed(wanted):
            begin = 2 * row * self._places
            if not any(self._numbers[begin : begin + 2 * self._places]):
                self._map[row * _KEY_BYTES : (row + 1) * _KEY_BYTES] = wanted
                self._remember(key, row, wanted)
                return row
        return None

    def _remember(self, key: str, row: int, wanted: bytes) -> bool:
        """Whether the row is the key's; it is then found at once."""
        if self._key_of(row) != wanted:
            return False
        if len(self._rows) >= _MOST_KNOWN:
            self._rows = {None: self._rows[None]}
        self._rows[key] = row, wanted
        return True

    def _key_of(self, row: int) -> bytes:
        return self._map[row * _KEY_BYTES : (row + 1) * _KEY_BYTES]


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=_KEY_BYTES).digest()


def _probed(wanted: bytes) -> range:
    """The rows where a key may be; never the first."""
    begin = 1 + int.from_bytes(wanted[:4], "little") % (ROWS - 1 - _PROBES)
    return range(begin, begin + _PROBES)
