"""Page-locked host memory, which a GPU reads and writes without the processor's help, lent out in parts.

Page-locking takes milliseconds per hundred MiB, so one block is locked at the start and parts of it are lent. A part
is free again once the last view of it is gone, on whatever thread that happens; no caller frees it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

PAGE = 4096
"""Parts begin and end at multiples of this: vector loads need alignment, and fewer sizes cause less fragmentation."""


class PinnedMemory:
    """One block of memory, lent out in parts.

    Args:
        block: anything writable with the buffer protocol; kept alive for as long as any part of it is.
        size_in_bytes: how much of it to lend.

    Attributes:
        size_in_bytes: what can be lent, whole pages.
        misses: how often there was no room.
    """

    def __init__(self, block: Any, size_in_bytes: int) -> None:
        self.size_in_bytes = size_in_bytes // PAGE * PAGE
        self._memory = np.frombuffer(block, np.uint8, size_in_bytes) if size_in_bytes else np.empty(0, np.uint8)
        self.misses = 0
        self._free = [(0, self.size_in_bytes)] if self.size_in_bytes else []  # (begin, size), ascending, never adjacent
        # Appending is atomic: a view may die anywhere, also inside `lend` when the garbage collector runs there, so
        # giving back must not wait for the lock.
        self._returned: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()

    def lend(self, size_in_bytes: int) -> memoryview | None:
        """A part with undefined content, or None if there is no room for it; that is counted in `misses`."""
        size = max(1, -(-size_in_bytes // PAGE)) * PAGE
        with self._lock:
            self._take_back()
            # The tightest fit, so that large parts stay whole.
            fitting = [(room, begin, at) for at, (begin, room) in enumerate(self._free) if room >= size]
            if not fitting:
                self.misses += 1
                return None
            room, begin, at = min(fitting)
            self._free[at : at + 1] = [(begin + size, room - size)] if room > size else []
        part = self._memory[begin : begin + size_in_bytes]
        # Views of views refer to the array that owns the memory, past the one in between; a memoryview does not let
        # NumPy look through it.
        part = np.frombuffer(part.data, np.uint8) if size_in_bytes else part
        weakref.finalize(part, self._returned.append, (begin, size)).atexit = False
        return part.data

    @property
    def lent(self) -> int:
        """Bytes lent out now."""
        with self._lock:
            self._take_back()
            return self.size_in_bytes - sum(size for _, size in self._free)

    def _take_back(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())
            self._free.sort()
            joined: list[tuple[int, int]] = []
            for begin, size in self._free:
                if joined and joined[-1][0] + joined[-1][1] == begin:
                    joined[-1] = (joined[-1][0], joined[-1][1] + size)
                else:
                    joined.append((begin, size))
            self._free = joined
