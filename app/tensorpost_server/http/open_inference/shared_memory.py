"""System shared memory: regions that callers on the same host registered, to read inputs from and write outputs to.

Bytes are copied by the object's descriptor and never mapped: a caller can make an object shorter at any time, and a
process that touches a mapping past the end of its object is killed (SIGBUS; POSIX, `mmap`).

Source: Triton, "system shared memory" extension.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.types import Scope

from tensorpost.problems import Forbidden, InvalidParameter, InvalidRequest, LimitExceeded, NoBackend, NotFound

from ...settings import Settings, setting_variable
from ..headers import caller_of
from .infer_request import RegionPart

__all__ = ["Region", "SharedMemory"]

_FOLDER = Path("/dev/shm")  # noqa: S108 # where Linux has POSIX shared memory; names are checked below
_KEY = re.compile(r"/?([A-Za-z0-9._-]{1,200})")
_NOT_OURS = "triton_python_backend_shm_region_"
_MOST_REGIONS = 1024
"""Regions that may be registered; each holds a descriptor."""
_MOST_NAME = 256
IDLE_SECONDS = 30.0
"""How long a region whose object has no name any more may be idle before it is dropped: its caller has ended."""


class Region:
    """A part of a shared memory object, open.

    Attributes:
        name: the name that it was registered by.
        key: name of the object.
        offset: place of its first byte in the object.
        size: length in bytes.
        owner: the caller who registered it.
        used: time of its last use, seconds of a clock that never goes back.
    """

    def __init__(self, name: str, key: str, offset: int, size: int, owner: str, descriptor: int) -> None:
        self.name, self.key, self.offset, self.size, self.owner = name, key, offset, size, owner
        self.used = time.monotonic()
        self._descriptor = descriptor
        self._uses = 1

    def to_status(self) -> dict[str, Any]:
        """The entry of a status."""
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.size}

    def acquire(self) -> None:
        """Count one more use; each is ended by `release`."""
        self._uses += 1
        self.used = time.monotonic()

    def release(self) -> None:
        """End a use; with the last one the object is closed."""
        self._uses -= 1
        if not self._uses:
            os.close(self._descriptor)

    @property
    def is_left_behind(self) -> bool:
        """Whether nobody can open the object any more, and nobody has used the region for a while."""
        idle = self._uses == 1 and time.monotonic() - self.used > IDLE_SECONDS
        return idle and not os.fstat(self._descriptor).st_nlink

    def read_into(self, target: memoryview, offset: int) -> None:
        """Copy bytes from the region.

        Args:
            target: filled whole.
            offset: place of the first byte in the region.

        Raises:
            InvalidRequest: the object has become too short.
        """
        done = 0
        while done < len(target):
            count = os.preadv(self._descriptor, [target[done:]], self.offset + offset + done)
            if not count:
                raise self._too_short()
            done += count

    def write(self, source: memoryview, offset: int) -> None:
        """Copy bytes into the region.

        Args:
            source: written whole.
            offset: place of the first byte in the region.

        Raises:
            InvalidRequest: the object has become too short.
        """
        if os.fstat(self._descriptor).st_size < self.offset + offset + len(source):
            raise self._too_short()
        done = 0
        while done < len(source):
            done += os.pwritev(self._descriptor, [source[done:]], self.offset + offset + done)

    def _too_short(self) -> InvalidRequest:
        return InvalidRequest(f"the object {self.key!r} of the region {self.name!r} has become too short")


class SharedMemory:
    """The regions by name; one namespace for all callers, each of whom sees his own only.

    Args:
        settings: `shared_memory` and `shared_memory_prefix`.

    Attributes:
        enabled: whether regions may be registered.

    Raises:
        InvalidParameter: it is turned on where there is none.
    """

    def __init__(self, settings: Settings) -> None:
        self.enabled = settings.shared_memory
        self._prefix = settings.shared_memory_prefix
        self._regions: dict[str, Region] = {}
        if self.enabled and not _FOLDER.is_dir():
            raise InvalidParameter(f"{setting_variable('shared_memory')} is on, but this system has no {_FOLDER}")

    def check(self, scope: Scope, fields: Mapping[bytes, bytes]) -> str:
        """Who calls, if he may use shared memory.

        Raises:
            NoBackend: it is off.
            Forbidden: the caller is not on this host.
        """
        if not self.enabled:
            raise NoBackend(f"client shared memory is disabled ({setting_variable('shared_memory')})")
        client = scope.get("client")
        forwarded = b"forwarded" in fields or b"x-forwarded-for" in fields
        if forwarded or (client and not ipaddress.ip_address(client[0].partition("%")[0]).is_loopback):
            raise Forbidden("shared memory is for callers on this host: by a loopback address or a Unix socket")
        return caller_of(scope)

    def register(self, name: str, key: object, offset: object, size: object, owner: str) -> None:
        """Open an object and give a part of it a name.

        Raises:
            InvalidParameter: a malformed member, or a name that is taken.
            NotFound: there is no such object.
            Forbidden: the object is another user's.
            InvalidRequest: the part does not lie in the object.
            LimitExceeded: there are too many regions.
        """
        if not 0 < len(name) <= _MOST_NAME:
            raise InvalidParameter(f"the name of a region has 1 to {_MOST_NAME} characters")
        found = _KEY.fullmatch(key) if isinstance(key, str) else None
        if found is None or found[1].strip(".") == "" or found[1].startswith(_NOT_OURS):
            raise InvalidParameter(
                f"the key {str(key)[:60]!r} names no shared memory object: letters, digits, '.', '_' and '-' do"
            )
        if not found[1].startswith(self._prefix):
            raise Forbidden(
                f"only keys that begin with {self._prefix!r} may be registered here "
                f"({setting_variable('shared_memory_prefix')})"
            )
        begin, length = _whole("offset", 0 if offset is None else offset), _whole("byte_size", size)
        if not length:
            raise InvalidParameter("byte_size must be 1 or more")
        self.sweep()
        if name in self._regions:
            raise InvalidParameter(f"a region {name!r} is already in manager; unregister it first")
        if len(self._regions) >= _MOST_REGIONS:
            raise LimitExceeded.of("the number of regions", len(self._regions) + 1, _MOST_REGIONS, "unregister some")
        descriptor = _open(found[1])
        try:
            _check(descriptor, found[1], begin, length)
        except BaseException:
            os.close(descriptor)
            raise
        self._regions[name] = Region(name, str(key), begin, length, owner, descriptor)

    def unregister(self, name: str | None, owner: str) -> None:
        """Forget a region, or all of this caller; what runs on them ends first. One that there is not is none."""
        for region in [*self._regions.values()]:
            if region.owner == owner and name in (None, region.name):
                del self._regions[region.name]
                region.release()

    def status(self, name: str | None, owner: str) -> list[dict[str, Any]]:
        """The caller's regions, or the one of this name.

        Raises:
            NotFound: there is none of this name.
        """
        if name is not None:
            return [self._find(name, owner).to_status()]
        return [region.to_status() for region in self._regions.values() if region.owner == owner]

    def use(self, part: RegionPart, owner: str) -> Region:
        """The region that a part belongs to, acquired; the part lies in it.

        Raises:
            NotFound: there is none of this name.
            InvalidRequest: the part does not lie in it.
        """
        region = self._find(part.region, owner)
        if part.offset >= region.size or part.offset + part.size > region.size:
            raise InvalidRequest(
                f"{part.size:,} bytes from {part.offset:,} on do not lie in the region {part.region!r} of "
                f"{region.size:,} bytes"
            )
        region.acquire()
        return region

    def sweep(self) -> None:
        """Drop regions that nobody can use any more."""
        for region in [*self._regions.values()]:
            if region.is_left_behind:
                del self._regions[region.name]
                region.release()

    def close(self) -> None:
        """Forget every region."""
        for region in self._regions.values():
            region.release()
        self._regions.clear()

    def _find(self, name: str, owner: str) -> Region:
        region = self._regions.get(name)
        if region is None or region.owner != owner:
            raise NotFound(f"there is no shared memory region {name[:80]!r}; register it first")
        return region


def _open(key: str) -> int:
    try:
        return os.open(_FOLDER / key, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFound(f"there is no shared memory object {key!r} on this host") from None
    except PermissionError:
        raise Forbidden(f"this server may not open the shared memory object {key!r}") from None
    except OSError as error:
        raise InvalidRequest(f"the shared memory object {key!r} cannot be opened: {error.strerror}") from None


def _check(descriptor: int, key: str, begin: int, length: int) -> None:
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        raise InvalidRequest(f"{key!r} is no shared memory object")
    if about.st_uid != os.geteuid():
        raise Forbidden(f"the shared memory object {key!r} belongs to another user than this server's")
    if begin + length > about.st_size:
        raise InvalidRequest(
            f"{length:,} bytes from {begin:,} on do not lie in the shared memory object {key!r} of "
            f"{about.st_size:,} bytes"
        )


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise InvalidParameter(f"{name} must be a whole number from 0 up, not {str(value)[:40]}")
    return value
