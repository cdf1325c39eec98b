"""Shared memory: regions that callers on the same host registered, to read inputs from and write outputs to.

Of system shared memory, bytes are copied by the object's descriptor and never mapped: a caller can make an object
shorter at any time, and a process that touches a mapping past the end of its object is killed (SIGBUS; POSIX, `mmap`).

Source: Triton, "system shared memory" and "CUDA shared memory" extensions.
"""

from __future__ import annotations

import errno
import ipaddress
import math
import os
import re
import stat
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

from starlette.types import Scope

from tensorpost.values.problems import (
    Forbidden,
    InvalidParameter,
    InvalidRequest,
    LimitExceeded,
    NoBackend,
    NotFound,
    RegionNotFound,
    TensorpostError,
    Unavailable,
)

from ...engine import Worker
from ...settings import Settings, setting_variable
from ...shared.process_group import ProcessGroup
from ..background_threads import CallerThreads
from ..caller_address import caller_of
from .cuda_region import CudaRegion, memory_handle
from .infer_request import RegionPart
from .shared_region import SharedRegion, whole_number

RegionKind = Literal["system", "cuda"]

_FOLDER = Path("/dev/shm")  # noqa: S108 # where Linux has POSIX shared memory; names are checked below
_KEY = re.compile(r"/?([A-Za-z0-9._-]{1,200})")
_NOT_OURS = "triton_python_backend_shm_region_"
_MOST_REGIONS = 1024
"""Regions that may be registered; each holds a descriptor. A caller has at most `caller_share` of what others left."""
_MOST_NAME = 256
_ANONYMOUS = "anonymous"
_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE))
"""Errors that are no fault of the caller's: no memory, or no descriptor."""
INLINE_COPY_BYTES = 256 * 1024
"""Bytes of shared memory that are copied on the event loop's thread: some 50 microseconds."""
UNLINKED_SECONDS = 30.0
"""How long a region whose object has no name any more may be idle before it is dropped: its caller has ended."""


class SystemRegion(SharedRegion):
    """A part of a shared memory object, open. See `SharedRegion`."""

    kind = "system"

    def __init__(
        self, name: str, key: str, offset: int, size: int, owner: str, descriptor: int, number: int = 0
    ) -> None:
        super().__init__(name, size, owner)
        self.key, self.offset, self.number = key, offset, number
        self._descriptor = descriptor

    def to_status(self) -> dict[str, Any]:
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.size}

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def is_left_behind(self) -> bool:
        """Whether nobody can open the object any more, and nobody has used the region for a while."""
        return self.idle_seconds > UNLINKED_SECONDS and not os.fstat(self._descriptor).st_nlink

    def read_into(self, target: memoryview, offset: int) -> None:
        """Copy bytes from the region.

        Raises:
            InvalidRequest: the object has become too short, or cannot be read.
        """
        done = 0
        with _access(f"the object {self.key!r} of the region {self.name!r} cannot be read"):
            while done < len(target):
                count = os.preadv(self._descriptor, [target[done:]], self.offset + offset + done)
                if not count:
                    raise self._too_short()
                done += count

    def write(self, source: memoryview, offset: int) -> None:
        """Copy bytes into the region.

        Raises:
            InvalidRequest: the object has become too short, or cannot be written to.
            Unavailable: the system has no memory for it: an object's pages are taken when they are first written to.
        """
        if os.fstat(self._descriptor).st_size < self.offset + offset + len(source):
            raise self._too_short()
        done = 0
        with _access(f"the object {self.key!r} of the region {self.name!r} cannot be written to"):
            while done < len(source):
                done += os.pwritev(self._descriptor, [source[done:]], self.offset + offset + done)

    def _too_short(self) -> InvalidRequest:
        return InvalidRequest(f"the object {self.key!r} of the region {self.name!r} has become too short")


AnyRegion: TypeAlias = SystemRegion | CudaRegion


async def read_region(region: AnyRegion, target: memoryview, offset: int, threads: CallerThreads) -> None:
    """Copy bytes from a region to host memory.

    Args:
        region: the region, in use.
        target: where they go.
        offset: where they begin in the region.
        threads: the caller's threads for copies of system shared memory that take long.

    Raises:
        InvalidRequest: the object has become too short, or cannot be read.
    """
    if isinstance(region, CudaRegion):
        if target.nbytes:
            await region.read_into(target, offset)
    else:
        await threads.run(target.nbytes > INLINE_COPY_BYTES, region.read_into, target, offset)


class SharedMemory:
    """The regions of each caller by name: two callers may use the same name, and neither learns of the other's.

    Args:
        settings: `shared_memory`, `shared_memory_prefix`, `cuda_shared_memory` and `caller_share`. Without `keys_file`
            and `jwks_file` all callers are one.
        group: the processes of the server. Each opens the regions of system memory that any of them has registered.

    Attributes:
        enabled: the kinds that may be registered.

    Raises:
        InvalidParameter: it is turned on where there is none.
    """

    def __init__(self, settings: Settings, group: ProcessGroup | None = None) -> None:
        self._group, self._version = ProcessGroup() if group is None else group, -1
        self.enabled: Mapping[RegionKind, bool] = {
            "system": settings.shared_memory,
            "cuda": settings.cuda_shared_memory,
        }
        self._prefix = settings.shared_memory_prefix
        self._share = settings.caller_share
        self._anonymous = settings.keys_file is None and settings.jwks_file is None
        self._regions: dict[str, dict[str, AnyRegion]] = {}  # by owner and name
        if settings.shared_memory and not _FOLDER.is_dir():
            raise InvalidParameter(f"{setting_variable('shared_memory')} is on, but this system has no {_FOLDER}")

    def check(self, scope: Scope, fields: Mapping[bytes, bytes], kind: RegionKind | None = None) -> str:
        """The caller's name, if the caller may use shared memory.

        Raises:
            NoBackend: it is off.
            Forbidden: the caller is not on this host.
        """
        if not (any(self.enabled.values()) if kind is None else self.enabled[kind]):
            name = "cuda_shared_memory" if kind == "cuda" else "shared_memory"
            raise NoBackend(
                f"client {'CUDA ' if kind == 'cuda' else ''}shared memory is disabled ({setting_variable(name)})"
            )
        client = scope.get("client")
        forwarded = b"forwarded" in fields or b"x-forwarded-for" in fields
        if forwarded or (client and not ipaddress.ip_address(client[0].partition("%")[0]).is_loopback):
            raise Forbidden("shared memory is for callers on this host: by a loopback address or a Unix socket")
        return _ANONYMOUS if self._anonymous else caller_of(scope)

    def register_system(self, name: str, key: object, offset: object, size: object, owner: str) -> None:
        """Open an object and give a part of it a name.

        Raises:
            InvalidParameter: a malformed member, or a name that the caller has used already.
            NotFound: there is no such object.
            Forbidden: the object is another user's.
            InvalidRequest: the part does not lie in the object.
            LimitExceeded: the caller has too many regions.
            Unavailable: there is no descriptor for it.
        """
        self._check_name(name)
        object_name = _KEY.fullmatch(key) if isinstance(key, str) else None
        if object_name is None or object_name[1].strip(".") == "" or object_name[1].startswith(_NOT_OURS):
            raise InvalidParameter(
                f"the key {str(key)[:60]!r} cannot name a shared memory object; use letters, digits, '.', '_' and '-'"
            )
        if not object_name[1].startswith(self._prefix):
            raise Forbidden(
                f"only keys that begin with {self._prefix!r} may be registered here "
                f"({setting_variable('shared_memory_prefix')})"
            )
        begin = whole_number("offset", 0 if offset is None else offset)
        length = whole_number("byte_size", size, least=1)
        self._check_room(name, owner)
        descriptor = _open(object_name[1])
        try:
            _check(descriptor, object_name[1], begin, length)
        except BaseException:
            os.close(descriptor)
            raise
        with self._group.database.change() as database:
            row = owner, name, str(key), begin, length, time.monotonic()
            number = database.execute(
                "INSERT INTO regions (owner, name, key, offset, size, used) VALUES (?, ?, ?, ?, ?, ?)", row
            ).lastrowid
        self._add(SystemRegion(name, str(key), begin, length, owner, descriptor, number or 0))

    async def register_cuda(self, name: str, raw_handle: object, size: object, owner: str, worker: Worker) -> None:
        """Open memory of a worker's CUDA device and give it a name.

        Raises:
            InvalidParameter: a malformed member, or a name that the caller has used already.
            InvalidRequest: the handle cannot be opened, or its memory is smaller.
            LimitExceeded: the caller has too many regions.
        """
        self._check_name(name)
        handle, length = memory_handle(raw_handle), whole_number("byte_size", size, least=1)
        self._check_room(name, owner)
        region = await CudaRegion.open(name, handle, length, owner, worker)
        try:
            self._check_room(name, owner)  # another call of the caller may have used the name meanwhile
        except BaseException:
            region.release()
            raise
        self._add(region)

    def unregister(self, name: str | None, owner: str, kind: RegionKind) -> None:
        """Forget one region, or all of this caller; running requests finish first. An unknown name is ignored."""
        self._take_over()
        for region in [*self._of(owner).values()]:
            if region.kind == kind and name in (None, region.name):
                self._forget(region)

    def status(self, name: str | None, owner: str, kind: RegionKind) -> list[dict[str, Any]]:
        """The caller's regions of this kind, or the one of this name.

        Raises:
            RegionNotFound: there is none of this name.
        """
        self._take_over()
        if name is not None:
            return [self._find(name, owner, kind).to_status()]
        return [region.to_status() for region in self._of(owner).values() if region.kind == kind]

    def use(self, part: RegionPart, owner: str) -> AnyRegion:
        """The region that a part belongs to, acquired; the part lies in it.

        Raises:
            RegionNotFound: there is none of this name.
            InvalidRequest: the part does not lie in it.
        """
        self._take_over()
        region = self._find(part.region, owner)
        if part.offset >= region.size or part.offset + part.size > region.size:
            raise InvalidRequest(
                f"{part.size:,} bytes from {part.offset:,} on do not lie in the region {part.region!r} of "
                f"{region.size:,} bytes"
            )
        region.acquire()
        self._note_use(region)
        return region

    def sweep(self) -> None:
        """Drop regions that nobody can use any more."""
        self._take_over()
        for region in self._all():
            if region.is_left_behind and not self._is_used_elsewhere(region):
                self._forget(region)

    def close(self) -> None:
        """Forget every region."""
        for region in self._all():
            self._remove(region)

    def _all(self) -> list[AnyRegion]:
        return [region for regions in self._regions.values() for region in regions.values()]

    def _of(self, owner: str) -> Mapping[str, AnyRegion]:
        return self._regions.get(owner, {})

    def _take_over(self) -> None:
        """Open regions that other processes have registered, and close those that they have unregistered."""
        if not self._group.is_shared or (version := self._group.database.version) == self._version:
            return
        self._version = version
        rows = self._group.database.connection.execute("SELECT number, owner, name, key, offset, size FROM regions")
        there = {row[0]: row for row in rows.fetchall()}
        for region in self._all():
            if isinstance(region, SystemRegion) and there.pop(region.number, None) is None:
                self._remove(region)
        for number, owner, name, key, offset, size in there.values():
            with suppress(TensorpostError):  # its object has no name any more
                self._add(SystemRegion(name, key, offset, size, owner, _open(key.removeprefix("/")), number))

    def _is_used_elsewhere(self, region: AnyRegion) -> bool:
        """Whether another process has used a region of system memory lately."""
        if not isinstance(region, SystemRegion) or not self._group.is_shared:
            return False
        query = "SELECT used FROM regions WHERE number = ?"
        row = self._group.database.connection.execute(query, (region.number,)).fetchone()
        return row is not None and time.monotonic() - row[0] <= UNLINKED_SECONDS

    def _note_use(self, region: AnyRegion) -> None:
        """Let the other processes know that a region is used, once in a while."""
        if not isinstance(region, SystemRegion) or not self._group.is_shared:
            return
        now = time.monotonic()
        query = "UPDATE regions SET used = ? WHERE number = ? AND used < ?"
        self._group.database.connection.execute(query, (now, region.number, now - UNLINKED_SECONDS / 4))

    def _forget(self, region: AnyRegion) -> None:
        """Take a region out, for all processes."""
        if isinstance(region, SystemRegion):
            self._group.database.connection.execute("DELETE FROM regions WHERE number = ?", (region.number,))
        self._remove(region)

    def _add(self, region: AnyRegion) -> None:
        self._regions.setdefault(region.owner, {})[region.name] = region

    def _remove(self, region: AnyRegion) -> None:
        regions = self._regions[region.owner]
        del regions[region.name]
        if not regions:
            del self._regions[region.owner]
        region.release()

    @staticmethod
    def _check_name(name: str) -> None:
        if not 0 < len(name) <= _MOST_NAME:
            raise InvalidParameter(f"the name of a region has 1 to {_MOST_NAME} characters")

    def _check_room(self, name: str, owner: str) -> None:
        """Refuse a name that the caller has used already, and one region too many."""
        self.sweep()
        regions = self._of(owner)
        if name in regions:
            raise InvalidParameter(f"a region {name!r} is already in manager; unregister it first")
        left = _MOST_REGIONS - len(self._all()) + len(regions)  # by the others
        most = math.ceil(self._share * left)
        if len(regions) >= most:
            raise LimitExceeded(
                f"you have {len(regions):,} regions, and the limit is now {most:,}; unregister unused regions "
                f"(setting {setting_variable('caller_share')})",
                extra={
                    "limit": most,
                    "actual": len(regions) + 1,
                    "setting": setting_variable("caller_share"),
                    "unit": "regions",
                },
            )

    def _find(self, name: str, owner: str, kind: RegionKind | None = None) -> AnyRegion:
        region = self._of(owner).get(name)
        if region is None or kind not in (None, region.kind):
            raise RegionNotFound(f"there is no shared memory region {name[:80]!r}; register it first")
        return region


def _open(key: str) -> int:
    with _access(f"the shared memory object {key!r} cannot be opened"):
        try:
            return os.open(_FOLDER / key, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise NotFound(f"there is no shared memory object {key!r} on this host") from None
        except PermissionError:
            raise Forbidden(f"this server may not open the shared memory object {key!r}") from None


@contextmanager
def _access(refusal: str) -> Generator[None]:
    """What the system says of an object becomes an error of ours."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise Unavailable(f"{refusal}: {error.strerror}; free some of it, or try again later") from None
        raise InvalidRequest(f"{refusal}: {error.strerror}") from None


def _check(descriptor: int, key: str, begin: int, length: int) -> None:
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        raise InvalidRequest(f"{key!r} is not a shared memory object")
    if about.st_uid != os.geteuid():
        raise Forbidden(f"the shared memory object {key!r} belongs to another user than this server's")
    if begin + length > about.st_size:
        raise InvalidRequest(
            f"{length:,} bytes from {begin:,} on do not lie in the shared memory object {key!r} of "
            f"{about.st_size:,} bytes"
        )
