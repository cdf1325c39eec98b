"""Quotas that several processes take from: token buckets in a file that all of them map."""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .shared_folder import allocate

ROWS = 8192
"""Buckets that are not full at a time; a full one is the same as one that nobody has used."""

_ROW = struct.Struct("<16sddd")  # key, level, time of the level, tokens a minute
_PROBES = 128


class BucketState(NamedTuple):
    """The state of a bucket.

    Attributes:
        level: tokens that are left; below 0 there is a debt.
        since: when that was so, by the system's monotonic clock.
    """

    level: float
    since: float


class SharedBuckets:
    """The buckets by key; each change is made with `lock` held. Used from one thread of each process.

    Args:
        path: the file, which `create` has made.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), 0)

    @staticmethod
    def create(path: Path) -> None:
        """Make the file, in which every bucket is full."""
        with path.open("wb") as file:
            allocate(file.fileno(), ROWS * _ROW.size)

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()
        self._file.close()

    @contextmanager
    def lock(self) -> Generator[None]:
        """Keep the other processes from changing a bucket; not to be held twice."""
        import fcntl  # not there on Windows

        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def read(self, key: str, most: float, now: float) -> BucketState:
        """The state of a bucket; that of a full one where it has no row."""
        wanted = _digest(key)
        for row in _probed(wanted):
            found, level, since, per_minute = _ROW.unpack_from(self._map, row * _ROW.size)
            if found == wanted and per_minute == most:
                return BucketState(level, since)
        return BucketState(most, now)

    def write(self, key: str, most: float, state: BucketState) -> None:
        """Keep the state of a bucket. Where no row is free, that of the bucket which is full soonest is used."""
        wanted, best, soonest = _digest(key), -1, float("inf")
        for row in _probed(wanted):
            found, level, since, per_minute = _ROW.unpack_from(self._map, row * _ROW.size)
            if found == wanted:
                best = row
                break
            full_at = since + 60 * (per_minute - level) / per_minute if per_minute else 0.0
            if full_at < soonest:
                best, soonest = row, full_at
        _ROW.pack_into(self._map, best * _ROW.size, wanted, state.level, state.since, most)


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


def _probed(wanted: bytes) -> range:
    begin = int.from_bytes(wanted[:4], "little") % (ROWS - _PROBES)
    return range(begin, begin + _PROBES)
