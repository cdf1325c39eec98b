"""Held tensors: those that the server keeps for their caller, each by its owner and name.

The bytes of a tensor never change. Replacing or deleting one takes its name away; its memory is given back when the
last request that reads it has ended. What it takes is part of the memory budget until then.
"""

from __future__ import annotations

import itertools
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorpost.values.layout import Layout
from tensorpost.values.problems import (
    InsufficientStorage,
    InvalidParameter,
    TensorExists,
    TensorGone,
    TensorNotFound,
    nearest,
)

from ...engine import Admission
from ...settings import Settings, setting_variable
from ..bounded_cache import BoundedCache

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MOST_GONE = 4096
"""Names of tensors that are not there any more of which the reason is known; a few hundred bytes each."""

REASONS = ("deleted", "replaced", "idle", "expired")
"""Why a tensor lost its name."""


@dataclass(slots=True, eq=False)
class StoredTensor:
    """A tensor with its bytes; `acquire` and `release` are called around each use.

    Attributes:
        name: its name.
        owner: the caller that it belongs to.
        layout: type and sizes; packed.
        data: its bytes, which cannot be written.
        number: a number that no other tensor of this server has.
        created: when it was made, seconds since 1970.
        began: when it was made, by the store's clock.
        used: when it was used last, by the store's clock.
    """

    name: str
    owner: str
    layout: Layout
    data: memoryview
    number: int
    created: float
    began: float
    used: float
    _freed: Callable[[StoredTensor], object]
    _uses: int = 1

    def acquire(self) -> None:
        """Count one more use; each is ended by `release`."""
        self._uses += 1

    def release(self) -> None:
        """End a use; with the last one the memory is given back."""
        self._uses -= 1
        self.used = time.monotonic()
        if not self._uses:
            self.data = memoryview(b"")
            self._freed(self)

    @property
    def is_in_use(self) -> bool:
        """Whether a request reads it."""
        return self._uses > 1

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


@dataclass(slots=True)
class _Use:
    """What a caller's tensors take.

    Attributes:
        tensors: how many have a name, or are being received.
        bytes: their memory, and that of tensors without a name which requests still read.
    """

    tensors: int = 0
    bytes: int = 0


@dataclass(slots=True, eq=False)
class TensorPlace:
    """Room for a tensor that is being received or computed; ended by `finish` or `close`.

    Attributes:
        name: the name that the tensor is to have.
        owner: its caller.
        layout: type and sizes.
        replaces: whether it may take the place of another tensor of this name.
        memory: where its bytes go.
    """

    name: str
    owner: str
    layout: Layout
    replaces: bool
    memory: memoryview
    _store: TensorStore
    _is_open: bool = True

    def finish(self) -> tuple[StoredTensor, bool]:
        """Give the tensor its name; all of its bytes have been written.

        Returns:
            The tensor, and whether it took the place of another one.

        Raises:
            TensorExists: another request has made one of this name meanwhile.
        """
        replaced = self._store.add(self)
        self.end()
        return replaced

    def end(self) -> None:
        """The tensor is there, and has the room."""
        self._is_open = False

    def close(self) -> None:
        """Give the room back, unless the tensor is there."""
        if self._is_open:
            self._is_open = False
            self._store.give_back(self.owner, self.layout.size_in_bytes, named=True)


@dataclass(slots=True)
class TensorStore:
    """The held tensors. Used from the event loop's thread only.

    Attributes:
        settings: limits and lifetimes.
        admission: the memory budget.
        dropped: how many tensors have lost their name, by the reason.
        size_in_bytes: memory of all tensors.
    """

    settings: Settings
    admission: Admission
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    size_in_bytes: int = 0
    _tensors: dict[tuple[str, str], StoredTensor] = field(default_factory=dict[tuple[str, str], StoredTensor])
    _uses: dict[str, _Use] = field(default_factory=dict[str, _Use])
    _gone: BoundedCache[tuple[str, str], tuple[str, float]] = field(
        default_factory=lambda: BoundedCache[tuple[str, str], tuple[str, float]](_MOST_GONE)
    )
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def count(self) -> int:
        """How many tensors have a name."""
        return len(self._tensors)

    def find(self, owner: str, name: str) -> StoredTensor:
        """The caller's tensor of this name.

        Raises:
            TensorGone: there was one, and the message says when and why it went.
            TensorNotFound: there is none; nothing tells whether another caller has one.
        """
        found = self._tensors.get((owner, name))
        if found is not None and (reason := self._over(found, time.monotonic())) is not None:
            self._drop(found, reason)
            found = None
        if found is not None:
            found.used = time.monotonic()
            return found
        if (gone := self._gone.get((owner, name))) is not None:
            reason, when = gone
            raise TensorGone(
                f"the held tensor {name!r} {self._why(reason)} at {_clock(when)}; send it again",
                extra={"tensor": name, "reason": reason},
            )
        guess = nearest(name, [each for of, each in self._tensors if of == owner])
        hint = f"; did you mean {guess!r}?" if guess else ""
        raise TensorNotFound(
            f"there is no held tensor {name[:100]!r}{hint}; held tensors are lost when the server stops",
            extra={"tensor": name[:100], "nearest": guess},
        )

    def listed(self, owner: str) -> Sequence[StoredTensor]:
        """The caller's tensors, by name."""
        self.sweep()
        return sorted([each for (of, _), each in self._tensors.items() if of == owner], key=lambda each: each.name)

    def check_new(self, owner: str, name: str, *, replaces: bool) -> None:
        """Refuse a name that a new tensor cannot have.

        Raises:
            InvalidParameter: it is none.
            TensorExists: there is a tensor of this name, which shall not be replaced.
        """
        if not _NAME.fullmatch(name):
            raise InvalidParameter(
                f"a tensor cannot be called {name[:100]!r}; a name has 1 to 100 letters, digits, dots, hyphens and "
                "underscores, and begins with a letter, a digit or an underscore"
            )
        before = self._tensors.get((owner, name))
        if before is not None and not replaces and self._over(before, time.monotonic()) is None:
            raise TensorExists(
                f"there is a held tensor {name!r} already; send replace=true to replace it, or choose another name",
                extra={"tensor": name},
            )

    def place(self, owner: str, name: str | None, layout: Layout, *, replaces: bool = False) -> TensorPlace:
        """Make room for a tensor.

        Args:
            owner: its caller.
            name: the name that it is to have; None for one that the server makes.
            layout: type and sizes; packed.
            replaces: whether it may take the place of another tensor of this name, which counts until then.

        Raises:
            InvalidParameter, TensorExists: see `check_new`.
            InsufficientStorage: a limit of what may stay is reached.
            TooBusy: requests in flight use the memory.
        """
        name = f"t{secrets.token_hex(12)}" if name is None else name
        self.check_new(owner, name, replaces=replaces)
        self.sweep()
        settings, size = self.settings, layout.size_in_bytes
        use = self._uses.get(owner, _Use())
        if use.tensors >= settings.max_held_tensors and not (replaces and (owner, name) in self._tensors):
            raise _full(
                "the number of your held tensors", use.tensors + 1, settings.max_held_tensors, "max_held_tensors"
            )
        if use.bytes + size > settings.max_held_tensor_bytes:
            raise _full(
                "the memory of your held tensors", use.bytes + size, settings.max_held_tensor_bytes,
                "max_held_tensor_bytes",
            )  # fmt: skip
        admission = self.admission
        if admission.kept_bytes + size > admission.memory_bytes // 2:
            what = "the memory of all that stays here"
            raise _full(what, admission.kept_bytes + size, admission.memory_bytes // 2, "memory_bytes", ", half of it")
        admission.keep(size)
        use.tensors, use.bytes = use.tensors + 1, use.bytes + size
        self._uses[owner] = use
        self.size_in_bytes += size
        try:
            return TensorPlace(name, owner, layout, replaces, admission.buffers.allocate(size), self)
        except MemoryError:
            self.give_back(owner, size, named=True)
            raise

    def add(self, place: TensorPlace) -> tuple[StoredTensor, bool]:
        """Give a tensor its name; called by its place."""
        self.check_new(place.owner, place.name, replaces=place.replaces)
        key, now = (place.owner, place.name), time.monotonic()
        before = self._tensors.get(key)
        if before is not None:
            self._drop(before, "replaced")
        self._gone.pop(key, None)
        tensor = StoredTensor(
            place.name, place.owner, place.layout, place.memory.toreadonly(), next(self._numbers), time.time(), now,
            now, self._freed,
        )  # fmt: skip
        self._tensors[key] = tensor
        return tensor, before is not None

    def finish(self, places: Sequence[TensorPlace]) -> list[StoredTensor]:
        """Give several tensors their names, all of them or none; all of their bytes have been written.

        Raises:
            TensorExists: another request has made one of these names meanwhile.
        """
        for place in places:
            self.check_new(place.owner, place.name, replaces=place.replaces)
        return [place.finish()[0] for place in places]

    def delete(self, owner: str, name: str) -> None:
        """Take a tensor's name away.

        Raises:
            TensorGone, TensorNotFound: see `find`.
        """
        self._drop(self.find(owner, name), "deleted")

    def free(self, owner: str, names: Iterable[str]) -> None:
        """Delete tensors that nobody refers to any more; names that there are not are passed over."""
        for name in names:
            if (found := self._tensors.get((owner, name))) is not None:
                self._drop(found, "deleted")

    def sweep(self) -> None:
        """Drop tensors that were not used for too long, or held for too long."""
        now = time.monotonic()
        over = [
            (tensor, reason) for tensor in self._tensors.values() if (reason := self._over(tensor, now)) is not None
        ]
        for tensor, reason in over:
            self._drop(tensor, reason)

    def close(self) -> None:
        """Drop all tensors."""
        for tensor in [*self._tensors.values()]:
            self._drop(tensor, "deleted")

    def give_back(self, owner: str, size_in_bytes: int, *, named: bool) -> None:
        """End what `place` has counted: of a tensor with or without its name."""
        self.size_in_bytes -= size_in_bytes
        self.admission.give_back(size_in_bytes)
        self._uncount(owner, int(named), size_in_bytes)

    def _over(self, tensor: StoredTensor, now: float) -> str | None:
        """Why a tensor is not to be kept any longer."""
        settings = self.settings
        if settings.held_tensor_seconds and now - tensor.began >= settings.held_tensor_seconds:
            return "expired"
        idle = not tensor.is_in_use and now - tensor.used >= settings.held_tensor_idle_seconds
        return "idle" if idle else None

    def _why(self, reason: str) -> str:
        settings = self.settings
        return {
            "deleted": "was deleted",
            "idle": (
                f"was freed after {settings.held_tensor_idle_seconds:,} s without a use (setting "
                f"{setting_variable('held_tensor_idle_seconds')})"
            ),
            "expired": (
                f"was freed {settings.held_tensor_seconds:,} s after it was made (setting "
                f"{setting_variable('held_tensor_seconds')})"
            ),
        }[reason]

    def _drop(self, tensor: StoredTensor, reason: str) -> None:
        key = (tensor.owner, tensor.name)
        del self._tensors[key]
        self.dropped[reason] += 1
        if reason != "replaced":
            self._gone.put(key, (reason, time.time()))
        self._uncount(tensor.owner, 1, 0)
        tensor.release()

    def _freed(self, tensor: StoredTensor) -> None:
        self.give_back(tensor.owner, tensor.layout.size_in_bytes, named=False)

    def _uncount(self, owner: str, tensors: int, size_in_bytes: int) -> None:
        if not tensors and not size_in_bytes:
            return  # nothing of an empty tensor is counted beside its name
        use = self._uses[owner]
        use.tensors, use.bytes = use.tensors - tensors, use.bytes - size_in_bytes
        if not use.tensors and not use.bytes:
            del self._uses[owner]


def _full(what: str, actual: int, limit: int, setting: str, part: str = "") -> InsufficientStorage:
    named = setting_variable(setting) + part
    unit = "" if setting == "max_held_tensors" else " bytes"
    return InsufficientStorage(
        f"{what} would be {actual:,}{unit}, and this server allows {limit:,} (setting {named}); delete held tensors",
        extra={"limit": limit, "actual": actual, "setting": named},
    )


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
