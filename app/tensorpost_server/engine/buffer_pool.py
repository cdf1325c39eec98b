"""A pool of large buffers, which are used again after their last view is gone.

Fresh memory costs a page fault for each page that is first written to, and what the C library cannot keep is fresh
every time. A buffer returns to the pool when the last view of it is garbage-collected, on whatever thread that happens:
there is no call that frees one, so none can be freed too early.
"""

from __future__ import annotations

import mmap
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

SMALLEST = 32 << 20
"""Bytes from which on blocks are kept. Up to here glibc keeps freed memory itself (mallopt(3), M_MMAP_THRESHOLD), and a
block of ours was no faster: filling 64 and 256 MiB took 0.6 to 0.7 times as long, 16 MiB and less as long or longer."""

KEEP_SECONDS = 30.0
"""How long a block may lie unused; longer than the pause between two bursts of calls, shorter than the time after which
memory that is held unused would be missed elsewhere."""


class BufferPool:
    """Allocates memory, and keeps what was released for the next request of about the same size.

    May be used from any thread.

    Args:
        keep_bytes: most bytes to keep unused; 0 keeps nothing.
        clock: seconds, ascending.

    Attributes:
        reused: allocations that needed no fresh memory.
    """

    def __init__(self, keep_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.keep_bytes = keep_bytes
        self.reused = 0
        self._clock = clock
        self._kept: dict[int, deque[tuple[float, mmap.mmap]]] = {}  # by size; the longest unused first
        self._kept_bytes = 0
        self._allocated_bytes = 0
        # A view may die anywhere, also inside `allocate` when the garbage collector runs there, so a release must not
        # wait for the lock. Appending is atomic.
        self._released: deque[mmap.mmap] = deque()
        self._lock = threading.Lock()

    def allocate(self, size_in_bytes: int) -> memoryview:
        """Writable memory with undefined content, in use for as long as this view or any view made from it exists.

        It may hold bytes of another request: it must be written before it is read.

        Raises:
            MemoryError: the system does not have this much memory now.
        """
        if size_in_bytes < SMALLEST or not self.keep_bytes:
            return np.empty(size_in_bytes, np.uint8).data
        size = _rounded(size_in_bytes)
        with self._lock:
            self._collect_released()
            same = self._kept.get(size)
            block = same.pop()[1] if same else None
            if block is not None:
                self._kept_bytes -= size
                self.reused += 1
            self._allocated_bytes += size
        if block is None:
            try:
                block = mmap.mmap(-1, size)
            except OSError as error:
                with self._lock:
                    self._allocated_bytes -= size
                raise MemoryError(f"the system has no {size:,} bytes: {error}") from error
            if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux; NumPy asks for the same
                block.madvise(mmap.MADV_HUGEPAGE)
        # Arrays that are made of the view refer to the view, and it to this array, of which there is no other view.
        owner = np.frombuffer(block, np.uint8, size_in_bytes)
        weakref.finalize(owner, self._released.append, block).atexit = False
        return owner.data

    def trim(self, keep_seconds: float = KEEP_SECONDS) -> None:
        """Free buffers that have been unused for `keep_seconds`, and those beyond `keep_bytes`."""
        with self._lock:
            self._collect_released()
            before = self._clock() - keep_seconds
            while self._kept_bytes and (oldest := self._oldest()) is not None and oldest[0] <= before:
                self._drop(oldest[1])

    @property
    def kept_bytes(self) -> int:
        """Bytes in buffers that are unused now."""
        with self._lock:
            self._collect_released()
            return self._kept_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes in use now, rounded up to whole buffers; allocations below SMALLEST are not counted."""
        with self._lock:
            self._collect_released()
            return self._allocated_bytes

    def _collect_released(self) -> None:
        while self._released:
            block = self._released.popleft()
            size = len(block)
            self._allocated_bytes -= size
            self._kept.setdefault(size, deque()).append((self._clock(), block))
            self._kept_bytes += size
        while self._kept_bytes > self.keep_bytes and (oldest := self._oldest()) is not None:
            self._drop(oldest[1])

    def _oldest(self) -> tuple[float, int] | None:
        """The release time of the buffer that was released first, and its size; None if none is kept."""
        return min(((same[0][0], size) for size, same in self._kept.items() if same), default=None)

    def _drop(self, size: int) -> None:
        self._kept[size].popleft()  # unmapped with its last reference
        self._kept_bytes -= size
        if not self._kept[size]:
            del self._kept[size]


def _rounded(size: int) -> int:
    """The size rounded up to a quarter step between powers of two; at most a quarter is unused.

    Unused pages take no memory, because they are never written.
    """
    step = 1 << max(0, (size - 1).bit_length() - 3)
    return -(-size // step) * step
