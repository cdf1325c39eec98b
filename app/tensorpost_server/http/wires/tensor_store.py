"""Held tensors: those that the server keeps for their caller, each by its owner and name.

The bytes of a tensor never change. Replacing or deleting one takes its name away; its memory is given back when the
last request that reads it has ended. What it takes is part of the memory budget until then.

Which tensors there are, and which process reads them, is in the database that all processes share; a process has the
bytes of those open that it has used.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from tensorpost.values.layout import Layout
from tensorpost.values.problems import (
    InsufficientStorage,
    InvalidParameter,
    TensorExists,
    TensorGone,
    TensorNotFound,
    TensorpostError,
    nearest,
)

from ...engine import Admission
from ...settings import Settings, setting_variable
from ...shared.process_group import ProcessGroup
from .held_tensor import COLUMNS, HeldTensorRow
from .tensor_memory import OwnMemory, SharedMemoryFiles, TensorMemory

MOST_GONE = 4096
"""Names of tensors that are not there any more of which the reason is known; a few hundred bytes each."""

MOST_MAPPED_BYTES = 64 << 20
"""Bytes of freed tensors that other processes may map until their next `sweep`; each of them keeps the memory."""

REASONS = ("deleted", "replaced", "idle", "expired")
"""Why a tensor lost its name."""

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_NAMED = f"SELECT {COLUMNS} FROM tensors WHERE name IS NOT NULL"  # noqa: S608 # of constants


@dataclass(slots=True, eq=False)
class OpenTensor:
    """A tensor with its bytes in this process. Each use, of `TensorStore.use`, is ended by `release`.

    Attributes:
        held: the tensor.
        data: its bytes, which cannot be written.
        uses: how many requests of this process read it.
    """

    held: HeldTensorRow
    data: memoryview
    _store: TensorStore
    uses: int = 0

    @property
    def layout(self) -> Layout:
        """Type and sizes; packed."""
        return self.held.layout

    @property
    def tag(self) -> str:
        """What tells it from any other tensor."""
        return self.held.tag

    def release(self) -> None:
        """End a use. With the last one of a tensor that has no name any more, the memory is given back."""
        self.uses -= 1
        if not self.uses:
            self._store.end_uses(self.held.number)


@dataclass(slots=True, eq=False)
class TensorPlace:
    """Room for a tensor that is being received or computed; ended by `finish` or `close`.

    Attributes:
        number: the tensor's number.
        name: the name that it is to have.
        owner: its caller.
        layout: type and sizes.
        replaces: whether it may take the place of another tensor of this name.
        memory: where its bytes go.
        is_open: whether the tensor is not there yet.
    """

    number: int
    name: str
    owner: str
    layout: Layout
    replaces: bool
    memory: memoryview
    _store: TensorStore
    is_open: bool = True

    def finish(self) -> tuple[HeldTensorRow, bool]:
        """Give the tensor its name; all of its bytes have been written.

        Returns:
            The tensor, and whether it took the place of another one.

        Raises:
            TensorExists: another request has made one of this name meanwhile.
        """
        (made,) = self._store.finish([self])
        return made

    def close(self) -> None:
        """Give the room back, unless the tensor is there."""
        if self.is_open:
            self.is_open = False
            self._store.give_back(self)


@dataclass(slots=True)
class TensorStore:
    """The held tensors. Used from the event loop's thread only.

    Attributes:
        settings: limits and lifetimes.
        admission: the memory budget.
        group: the processes of the server.
        when_freed: called when other processes may still map much that was freed; they are to call `close_freed`.
    """

    settings: Settings
    admission: Admission
    group: ProcessGroup
    when_freed: Callable[[], object] = lambda: None
    _memory: TensorMemory = field(init=False)
    _open: dict[int, OpenTensor] = field(default_factory=dict[int, OpenTensor])
    _version: int = -1
    _freed: list[int] = field(default_factory=list[int])  # in this transaction
    _mapped_elsewhere: int = 0
    _moved: int = 0  # bytes that this transaction counts as held, less those that it gives back
    _later: dict[int, Callable[[], None]] = field(default_factory=dict[int, Callable[[], None]])

    def __post_init__(self) -> None:
        folder = self.group.folder
        self._memory = OwnMemory(self.admission.buffers) if folder is None else SharedMemoryFiles(folder)

    @property
    def count(self) -> int:
        """How many tensors have a name."""
        return int(self._database.execute("SELECT count(name) FROM tensors").fetchone()[0])

    @property
    def size_in_bytes(self) -> int:
        """The memory of all tensors."""
        return self.admission.counts.held_bytes

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many tensors have lost their name, by the reason."""
        return dict.fromkeys(REASONS, 0) | dict(self._database.execute("SELECT reason, count FROM tensors_dropped"))

    def use(self, owner: str, name: str) -> OpenTensor:
        """The caller's tensor of this name, in use until `release`.

        Raises:
            TensorGone: there was one, and the message says when and why it went.
            TensorNotFound: there is none; nothing tells whether another caller has one.
        """
        with self._change() as database:
            held = self._current(owner, name)
            known = None if held is None else self._open.get(held.number)
            if held is not None and (known is None or not known.uses):
                database.execute("INSERT OR IGNORE INTO tensor_uses VALUES (?, ?)", (held.number, self.group.place))
        if held is None:
            raise self._missing(owner, name)
        if known is None:
            try:
                known = OpenTensor(held, self._memory.open(held.number, held.layout.size_in_bytes), self)
            except BaseException:
                self.end_uses(held.number)
                raise
            self._open[held.number] = known
        known.uses += 1
        return known

    def end_uses(self, number: int) -> None:
        """No request of this process reads a tensor any more; called by it."""
        self._do_or_later(number, partial(self._end_uses, number))

    def _end_uses(self, number: int) -> None:
        if (known := self._open.get(number)) is not None and known.uses:
            return  # it was tried again, and there is another use
        with self._change() as database:
            database.execute("DELETE FROM tensor_uses WHERE number = ? AND place = ?", (number, self.group.place))
            query = "UPDATE tensors SET used = ? WHERE number = ? RETURNING name"
            row = database.execute(query, (time.monotonic(), number)).fetchone()
            if row is not None and row[0] is None:
                self._free_unless_used(number)

    def listed(self, owner: str) -> Sequence[HeldTensorRow]:
        """The caller's tensors, by name."""
        self.sweep()
        rows = self._database.execute(f"{_NAMED} AND owner = ? ORDER BY name", (owner,))
        return [HeldTensorRow.of_row(row) for row in rows]

    def data_of(self, tensor: HeldTensorRow) -> memoryview | None:
        """The bytes of a tensor, where this process has them open."""
        known = self._open.get(tensor.number)
        return None if known is None else known.data

    def check_new(self, owner: str, name: str, *, replaces: bool) -> None:
        """Refuse a name that a new tensor cannot have.

        Raises:
            InvalidParameter: it is none.
            TensorExists: there is a tensor of this name, which shall not be replaced.
        """
        self._check_new(owner, name, replaces=replaces)

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
        size, now = layout.size_in_bytes, time.monotonic()
        with self._change() as database:
            self._check_limits(owner, name, size, replaces=replaces)
            sizes, kind = json.dumps(layout.sizes), layout.data_type.numpy_name
            number = database.execute(
                "INSERT INTO tensors (owner, reserved, place, data_type, sizes, size, created, began, used) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (owner, name, self.group.place, kind, sizes, size, time.time(), now, now),
            ).lastrowid
            assert number is not None
            self.admission.hold(size)
            self._moved += size
        place = TensorPlace(number, name, owner, layout, replaces, memoryview(b""), self)
        try:
            place.memory = self._memory.allocate(number, size)
        except BaseException:
            place.close()
            raise
        return place

    def finish(self, places: Sequence[TensorPlace]) -> list[tuple[HeldTensorRow, bool]]:
        """Give tensors their names, all of them or none; all of their bytes have been written.

        Returns:
            Each tensor, and whether it took the place of another one.

        Raises:
            TensorExists: another request has made one of these names meanwhile.
        """
        made: list[tuple[HeldTensorRow, bool]] = []
        with self._change() as database:
            befores = [self._check_new(place.owner, place.name, replaces=place.replaces) for place in places]
            for place, before in zip(places, befores, strict=True):
                if before is not None:
                    self._drop(before, "replaced")
                created, now = time.time(), time.monotonic()
                database.execute("DELETE FROM tensors_gone WHERE owner = ? AND name = ?", (place.owner, place.name))
                database.execute(
                    "UPDATE tensors SET name = reserved, reserved = NULL, place = NULL, created = ?, began = ?, "
                    "used = ? WHERE number = ?",
                    (created, now, now, place.number),
                )
                held = HeldTensorRow(
                    place.number, place.owner, place.name, place.layout, created, now, now, is_in_use=False
                )
                made.append((held, before is not None))
        for place, (held, _) in zip(places, made, strict=True):
            place.is_open = False
            self._open[place.number] = OpenTensor(held, place.memory.toreadonly(), self)
        return made

    def give_back(self, place: TensorPlace) -> None:
        """A tensor does not come; called by its place."""
        place.memory = memoryview(b"")
        self._do_or_later(place.number, partial(self._give_back, place.number, place.layout.size_in_bytes))

    def _give_back(self, number: int, size_in_bytes: int) -> None:
        with self._change() as database:
            database.execute("DELETE FROM tensors WHERE number = ?", (number,))
            self._let_go(number, size_in_bytes)

    def delete(self, owner: str, name: str) -> None:
        """Take a tensor's name away.

        Raises:
            TensorGone, TensorNotFound: see `use`.
        """
        with self._change():
            held = self._current(owner, name)
            if held is not None:
                self._drop(held, "deleted")
        if held is None:
            raise self._missing(owner, name)

    def free(self, owner: str, names: Iterable[str]) -> None:
        """Delete tensors that nobody refers to any more; names that there are not are passed over."""
        with self._change():
            for name in names:
                if (found := self._named(owner, name)) is not None:
                    self._drop(found, "deleted")

    def sweep(self) -> None:
        """Drop tensors that were not used for too long, or held for too long."""
        for number, action in [*self._later.items()]:
            del self._later[number]
            self._do_or_later(number, action)
        now, settings = time.monotonic(), self.settings
        before = now - settings.held_tensor_idle_seconds
        if settings.held_tensor_seconds:
            before = max(before, now - settings.held_tensor_seconds)
        # None can be over that was used since then and is not older.
        rows = self._database.execute(f"{_NAMED} AND (used <= ? OR began <= ?)", (before, before)).fetchall()
        for tensor in map(HeldTensorRow.of_row, rows):
            if self._reason_to_drop(tensor) is not None:
                with self._change():
                    self._current(tensor.owner, tensor.name)
        self.close_freed()

    def close(self) -> None:
        """Let go of all tensors; those of one process are gone then."""
        if not self.group.is_shared:
            with self._change() as database:
                for row in database.execute(_NAMED).fetchall():
                    self._drop(HeldTensorRow.of_row(row), "deleted")
        self._open.clear()

    @property
    def _database(self) -> sqlite3.Connection:
        return self.group.database.connection

    @contextmanager
    def _change(self) -> Generator[sqlite3.Connection]:
        """A transaction; the memory that it frees is given back when it has been written, so that no row lacks it."""
        self._freed, self._moved = [], 0
        try:
            with self.group.database.change() as database:
                yield database
        except BaseException:
            self.admission.let_go(self._moved)
            raise
        for number in self._freed:
            self._open.pop(number, None)
            self._memory.free(number)
        self._mapped_elsewhere += max(0, -self._moved)
        if self._mapped_elsewhere > MOST_MAPPED_BYTES:
            self._mapped_elsewhere = 0
            self.when_freed()

    def _let_go(self, number: int, size_in_bytes: int) -> None:
        """Give back the memory of a tensor, within a transaction."""
        self.admission.let_go(size_in_bytes)
        self._moved -= size_in_bytes
        self._freed.append(number)

    def _do_or_later(self, number: int, action: Callable[[], None]) -> None:
        """Do what a request that ends has to do, whose answer does not depend on it; once more with `sweep`."""
        try:
            action()
        except TensorpostError as error:
            self._later[number] = action
            _log.warning("a held tensor that is not used any more is freed later: %s", error)

    def _named(self, owner: str, name: str) -> HeldTensorRow | None:
        row = self._database.execute(f"{_NAMED} AND owner = ? AND name = ?", (owner, name)).fetchone()
        return None if row is None else HeldTensorRow.of_row(row)

    def _check_new(self, owner: str, name: str, *, replaces: bool) -> HeldTensorRow | None:
        """See `check_new`; the tensor that has the name now."""
        if not _NAME.fullmatch(name):
            raise InvalidParameter(
                f"a tensor cannot be called {name[:100]!r}; a name has 1 to 100 letters, digits, dots, hyphens and "
                "underscores, and begins with a letter, a digit or an underscore"
            )
        before = self._named(owner, name)
        if before is not None and not replaces and self._reason_to_drop(before) is None:
            raise TensorExists(
                f"there is a held tensor {name!r} already; send replace=true to replace it, or choose another name",
                extra={"tensor": name},
            )
        return before

    def _current(self, owner: str, name: str) -> HeldTensorRow | None:
        """The tensor of this name, within a transaction; it is dropped if its time is over."""
        found = self._named(owner, name)
        if found is not None and (reason := self._reason_to_drop(found)) is not None:
            self._drop(found, reason)
            return None
        return found

    def _missing(self, owner: str, name: str) -> TensorNotFound:
        """The error for a name that no tensor has; see `use`."""
        query = "SELECT reason, at FROM tensors_gone WHERE owner = ? AND name = ?"
        if (gone := self._database.execute(query, (owner, name)).fetchone()) is not None:
            reason, when = gone
            return TensorGone(
                f"the held tensor {name!r} {self._why(reason)} at {_clock(when)}; send it again",
                extra={"tensor": name, "reason": reason},
            )
        query = "SELECT name FROM tensors WHERE owner = ? AND name IS NOT NULL"
        guess = nearest(name, [each for (each,) in self._database.execute(query, (owner,))])
        hint = f"; did you mean {guess!r}?" if guess else ""
        return TensorNotFound(
            f"there is no held tensor {name[:100]!r}{hint}; held tensors are lost when the server stops",
            extra={"tensor": name[:100], "nearest": guess},
        )

    def _check_limits(self, owner: str, name: str, size: int, *, replaces: bool) -> None:
        query = "SELECT count(name) + count(reserved), total(size) FROM tensors WHERE owner = ?"
        count, own_bytes = self._database.execute(query, (owner,)).fetchone()
        settings, admission = self.settings, self.admission
        if count >= settings.max_held_tensors and not (replaces and self._named(owner, name) is not None):
            raise _full("the number of your held tensors", count + 1, settings.max_held_tensors, "max_held_tensors")
        if own_bytes + size > settings.max_held_tensor_bytes:
            raise _full(
                "the memory of your held tensors", int(own_bytes) + size, settings.max_held_tensor_bytes,
                "max_held_tensor_bytes",
            )  # fmt: skip
        if admission.kept_bytes + size > admission.memory_bytes // 2:
            what = "the memory of all that stays here"
            raise _full(what, admission.kept_bytes + size, admission.memory_bytes // 2, "memory_bytes", ", half of it")

    def _reason_to_drop(self, tensor: HeldTensorRow) -> str | None:
        """Why a tensor is not to be kept any longer."""
        settings, now = self.settings, time.monotonic()
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

    def _drop(self, tensor: HeldTensorRow, reason: str) -> None:
        """Take a tensor's name away, within a transaction."""
        database = self._database
        database.execute("UPDATE tensors SET name = NULL WHERE number = ?", (tensor.number,))
        database.execute(
            "INSERT INTO tensors_dropped VALUES (?, 1) ON CONFLICT (reason) DO UPDATE SET count = count + 1", (reason,)
        )
        if reason != "replaced":
            added = database.execute(
                "INSERT OR REPLACE INTO tensors_gone (owner, name, reason, at) VALUES (?, ?, ?, ?)",
                (tensor.owner, tensor.name, reason, time.time()),
            ).lastrowid
            assert added is not None
            database.execute("DELETE FROM tensors_gone WHERE id <= ?", (added - MOST_GONE,))
        self._free_unless_used(tensor.number)

    def _free_unless_used(self, number: int) -> None:
        """Give back the memory of a tensor that has no name and that no request reads, within a transaction."""
        row = self._database.execute(
            "DELETE FROM tensors WHERE number = ? AND name IS NULL AND reserved IS NULL "
            "AND NOT EXISTS (SELECT 1 FROM tensor_uses WHERE tensor_uses.number = tensors.number) RETURNING size",
            (number,),
        ).fetchone()
        if row is not None:
            self._let_go(number, row[0])

    def close_freed(self) -> None:
        """Let go of tensors that other processes have freed."""
        version = self.group.database.version
        if version == self._version:
            return
        self._version = version
        there = {number for (number,) in self._database.execute("SELECT number FROM tensors")}
        for number in [number for number in self._open if number not in there]:
            del self._open[number]


def _full(what: str, actual: int, limit: int, setting: str, part: str = "") -> InsufficientStorage:
    named = setting_variable(setting) + part
    unit = "" if setting == "max_held_tensors" else " bytes"
    return InsufficientStorage(
        f"{what} would be {actual:,}{unit}, and this server allows {limit:,} (setting {named}); delete held tensors",
        extra={"limit": limit, "actual": actual, "setting": named},
    )


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
