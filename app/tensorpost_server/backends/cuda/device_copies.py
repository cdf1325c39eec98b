"""Copies of host memory that stays: of held tensors, and of constants of stored graphs.

The host memory has the truth, so a copy that no run reads may be dropped at any time, and is uploaded again when it is
next needed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tensorpost.values.layout import Layout

from ..device_run import KeptArray


@dataclass(slots=True, eq=False)
class _CopiedMemory:
    """Memory of which there is, or was, a copy.

    Attributes:
        array: the copy; None after it was dropped.
        size_in_bytes: device memory that it takes.
        reader: what the runs that read it hold.
    """

    array: Any
    size_in_bytes: int
    reader: weakref.ref[KeptArray]

    @property
    def is_read(self) -> bool:
        return self.reader() is not None


class DeviceCopies:
    """The copies on one device, by the identity of the memory and by how it is read; used on any thread.

    Args:
        upload: makes the copy of some memory; the array can be read when it returns.

    Attributes:
        dropped: how many copies were dropped, since memory was short.
        uploaded_again: how many copies were made of memory whose copy had been dropped.
    """

    def __init__(self, upload: Callable[[Layout, memoryview], Any]) -> None:
        self._upload = upload
        self.dropped = self.uploaded_again = 0
        self._copies: dict[tuple[int, Layout], _CopiedMemory] = {}  # the one that was used least recently first
        # Memory may be collected anywhere, also while this thread holds a lock, so its copy is taken out without one:
        # each step is atomic. No array is freed within `_lock`, since CuPy's pool has a lock of its own.
        self._lock = threading.Lock()
        self._uploading = threading.Lock()  # so that threads that need the same copy make one

    def get(self, layout: Layout, data: memoryview) -> KeptArray:
        """The array of some memory, uploaded if there is no copy; freed with that memory.

        Raises:
            OutOfDeviceMemory: there is no room for it.
        """
        key, found = (id(data), layout), self.find(layout, data)
        if found is None:
            with self._uploading:
                found = self._found(key)
                if found is None:
                    found = KeptArray(self._upload(layout, data))
                    self._add(key, data, found)
        return found

    def find(self, layout: Layout, data: memoryview) -> KeptArray | None:
        """The array of some memory; None if there is no copy."""
        return self._found((id(data), layout))

    def has_copy(self, data: memoryview) -> bool:
        """Whether there is a copy of this memory, read in whatever way."""
        return any(
            identity == id(data) and each.array is not None for (identity, _), each in self._copies.copy().items()
        )

    @property
    def size_in_bytes(self) -> int:
        """Device memory of all copies."""
        return sum([each.size_in_bytes for each in self._copies.copy().values() if each.array is not None])

    @property
    def count(self) -> int:
        """How many copies there are."""
        return sum([each.array is not None for each in self._copies.copy().values()])

    def give_way(self, size_in_bytes: int) -> Iterator[int]:
        """Drop copies that no run reads, the one that was used least recently first.

        Args:
            size_in_bytes: how much memory is wanted.

        Yields:
            The bytes of what was dropped, each time they are as many as are wanted, or nothing is left to drop.
        """
        while True:
            arrays, freed = list[Any](), 0
            with self._lock:
                for each in self._copies.copy().values():
                    if freed >= size_in_bytes:
                        break
                    if each.array is not None and not each.is_read:
                        arrays.append(each.array)
                        each.array, freed = None, freed + each.size_in_bytes
                self.dropped += len(arrays)
            if not arrays:
                return
            arrays.clear()
            yield freed

    def clear(self) -> None:
        """Forget all copies; the device is closed."""
        self._copies.clear()

    def _found(self, key: tuple[int, Layout]) -> KeptArray | None:
        with self._lock:
            found = self._copies.get(key)
            if found is None or found.array is None:
                return None
            del self._copies[key]
            self._copies[key] = found  # now the one that was used last
            reader = found.reader()
            if reader is None:
                reader = KeptArray(found.array)
                found.reader = weakref.ref(reader)
            return reader

    def _add(self, key: tuple[int, Layout], data: memoryview, made: KeptArray) -> None:
        with self._lock:
            before = self._copies.pop(key, None)
            if before is None:
                weakref.finalize(data, self._copies.pop, key, None).atexit = False
            else:
                self.uploaded_again += 1
            self._copies[key] = _CopiedMemory(made.array, key[1].size_in_bytes, weakref.ref(made))
