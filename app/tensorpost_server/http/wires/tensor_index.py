"""Which held tensors there are: their names, owners, uses and lifetimes, and why others are not there any more.

The processes of one machine have this in the database that they share; on Ray, an actor has it for all replicas.
"""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from tensorpost.values.layout import Layout
from tensorpost.values.problems import (
    InsufficientStorage,
    InvalidParameter,
    TensorExists,
    TensorGone,
    TensorNotFound,
    nearest,
)

from ...settings import Settings, setting_variable
from ...shared.shared_database import SharedDatabase
from .held_tensor import COLUMNS, HeldTensorRow

MOST_GONE = 4096
"""Names of tensors that are not there any more of which the reason is known; a few hundred bytes each."""

REASONS = ("deleted", "replaced", "idle", "expired", "lost")
"""Why a tensor lost its name."""

LOST_WITH_SERVER = "held tensors are lost when the server stops"
"""Why there may have been a tensor of which nothing is known."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_NAMED = f"SELECT {COLUMNS} FROM tensors WHERE name IS NOT NULL"  # noqa: S608 # of constants


class TensorLimits(NamedTuple):
    """The settings of these names.

    Attributes:
        max_held_tensors: tensors of one caller.
        max_held_tensor_bytes: bytes of the tensors of one caller.
        held_tensor_idle_seconds: how long a tensor stays that nobody uses.
        held_tensor_seconds: how long a tensor stays in all; 0 for no limit.
    """

    max_held_tensors: int
    max_held_tensor_bytes: int
    held_tensor_idle_seconds: float
    held_tensor_seconds: float

    @classmethod
    def of(cls, settings: Settings) -> TensorLimits:
        """The limits of these settings."""
        return cls(
            settings.max_held_tensors, settings.max_held_tensor_bytes, settings.held_tensor_idle_seconds,
            settings.held_tensor_seconds,
        )  # fmt: skip


class Reservation(NamedTuple):
    """A tensor that is being received or computed.

    Attributes:
        number: the tensor's number.
        owner: its caller.
        name: the name that it is to have.
        layout: type and sizes; packed.
        replaces: whether it may take the place of another tensor of this name.
    """

    number: int
    owner: str
    name: str
    layout: Layout
    replaces: bool


@dataclass(slots=True)
class TensorIndex:
    """The held tensors, without their bytes. Used from one thread of each process.

    Attributes:
        limits: what a caller may hold, and for how long.
        database: where it is written.
        hold: counts the bytes of a new tensor, within a transaction, or refuses them.
        let_go: ends the counting of bytes within a transaction, or undoes what one has counted that failed.
        freed: called after a transaction with the numbers of tensors that nobody needs any more, and their bytes.
        absent: what is said of a name of which nothing is known.
    """

    limits: TensorLimits
    database: SharedDatabase
    hold: Callable[[int], object]
    let_go: Callable[[int], object]
    freed: Callable[[Sequence[int], int], object]
    absent: str = LOST_WITH_SERVER
    _freed: list[int] = field(default_factory=list[int])  # in this transaction
    _moved: int = 0  # bytes that this transaction counts as held, less those that it gives back

    @property
    def count(self) -> int:
        """How many tensors have a name."""
        return int(self._rows.execute("SELECT count(name) FROM tensors").fetchone()[0])

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many tensors have lost their name, by the reason."""
        return dict.fromkeys(REASONS, 0) | dict(self._rows.execute("SELECT reason, count FROM tensors_dropped"))

    def use(self, owner: str, name: str, place: int) -> HeldTensorRow:
        """The caller's tensor of this name, in use at a place until `end_use`.

        Raises:
            TensorGone: there was one, and the message says when and why it went.
            TensorNotFound: there is none; nothing tells whether another caller has one.
        """
        with self._change() as database:
            held = self._current(owner, name)
            if held is not None:
                database.execute("INSERT OR IGNORE INTO tensor_uses VALUES (?, ?)", (held.number, place))
        if held is None:
            raise self._missing(owner, name)
        return held

    def end_use(self, number: int, place: int) -> None:
        """Nobody at a place reads a tensor any more."""
        with self._change() as database:
            database.execute("DELETE FROM tensor_uses WHERE number = ? AND place = ?", (number, place))
            query = "UPDATE tensors SET used = ? WHERE number = ? RETURNING name"
            row = database.execute(query, (time.monotonic(), number)).fetchone()
            if row is not None and row[0] is None:
                self._free_unless_used(number)

    def listed(self, owner: str) -> Sequence[HeldTensorRow]:
        """The caller's tensors, by name."""
        self.sweep()
        rows = self._rows.execute(f"{_NAMED} AND owner = ? ORDER BY name", (owner,))
        return [HeldTensorRow.of_row(row) for row in rows]

    def check_new(self, owner: str, name: str, *, replaces: bool) -> None:
        """Refuse a name that a new tensor cannot have.

        Raises:
            InvalidParameter: it is none.
            TensorExists: there is a tensor of this name, which shall not be replaced.
        """
        self._check_new(owner, name, replaces=replaces)

    def reserve(self, owner: str, name: str | None, layout: Layout, place: int, *, replaces: bool) -> Reservation:
        """Count a tensor that a process at a place will have.

        Args:
            owner: its caller.
            name: the name that it is to have; None for one that is made here.
            layout: type and sizes; packed.
            place: the process.
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
                (owner, name, place, kind, sizes, size, time.time(), now, now),
            ).lastrowid
            assert number is not None
            self.hold(size)
            self._moved += size
        return Reservation(number, owner, name, layout, replaces)

    def finish(self, reservations: Sequence[Reservation]) -> list[tuple[HeldTensorRow, bool]]:
        """Give tensors their names, all of them or none; all of their bytes have been written.

        Returns:
            Each tensor, and whether it took the place of another one.

        Raises:
            TensorExists: another request has made one of these names meanwhile.
            TensorGone: nothing was heard of the process for so long that its reservations were given up.
        """
        made: list[tuple[HeldTensorRow, bool]] = []
        with self._change() as database:
            befores = [self._check_new(each.owner, each.name, replaces=each.replaces) for each in reservations]
            for each, before in zip(reservations, befores, strict=True):
                if before is not None:
                    self._drop(before, "replaced")
                created, now = time.time(), time.monotonic()
                database.execute("DELETE FROM tensors_gone WHERE owner = ? AND name = ?", (each.owner, each.name))
                given = database.execute(
                    "UPDATE tensors SET name = reserved, reserved = NULL, place = NULL, created = ?, began = ?, "
                    "used = ? WHERE number = ? AND reserved IS NOT NULL",
                    (created, now, now, each.number),
                )
                if not given.rowcount:
                    raise _gone(each.name, "was given up while it was made", "lost")
                held = HeldTensorRow(
                    each.number, each.owner, each.name, each.layout, created, now, now, is_in_use=False
                )
                made.append((held, before is not None))
        return made

    def give_back(self, number: int) -> None:
        """A tensor that was reserved does not come."""
        with self._change() as database:
            query = "DELETE FROM tensors WHERE number = ? AND reserved IS NOT NULL RETURNING size"
            if (row := database.execute(query, (number,)).fetchone()) is not None:
                self._let_go(number, row[0])

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
        now, limits = time.monotonic(), self.limits
        before = now - limits.held_tensor_idle_seconds
        if limits.held_tensor_seconds:
            before = max(before, now - limits.held_tensor_seconds)
        # None can be over that was used since then and is not older.
        rows = self._rows.execute(f"{_NAMED} AND (used <= ? OR began <= ?)", (before, before)).fetchall()
        for tensor in map(HeldTensorRow.of_row, rows):
            if self._reason_to_drop(tensor) is not None:
                with self._change():
                    self._current(tensor.owner, tensor.name)

    def lose(self, number: int) -> None:
        """The bytes of a tensor are not there any more."""
        with self._change() as database:
            row = database.execute(f"{_NAMED} AND number = ?", (number,)).fetchone()
            if row is not None:
                self._drop(HeldTensorRow.of_row(row), "lost")

    def note_lost(self, owner: str, name: str) -> None:
        """Another index, which is lost, had a tensor of this name."""
        with self._change() as database:
            query = "SELECT 1 FROM tensors_gone WHERE owner = ? AND name = ?"
            known = database.execute(query, (owner, name)).fetchone()
            if known is None and self._named(owner, name) is None:
                self._note_gone(owner, name, "lost")

    def check(self, owner: str, name: str) -> None:
        """Refuse a name that no tensor has.

        Raises:
            TensorGone, TensorNotFound: see `use`.
        """
        if self._named(owner, name) is None:
            raise self._missing(owner, name)

    def end_place(self, place: int) -> None:
        """A process has ended: it reads nothing and makes nothing any more."""
        with self._change() as database:
            reserved = database.execute("DELETE FROM tensors WHERE place = ? RETURNING number, size", (place,))
            for number, size in reserved.fetchall():
                self._let_go(number, size)
            used = database.execute("DELETE FROM tensor_uses WHERE place = ? RETURNING number", (place,)).fetchall()
            for (number,) in used:
                self._free_unless_used(number)

    def drop_all(self) -> None:
        """Delete all tensors."""
        with self._change() as database:
            for row in database.execute(_NAMED).fetchall():
                self._drop(HeldTensorRow.of_row(row), "deleted")

    @property
    def _rows(self) -> sqlite3.Connection:
        return self.database.connection

    @contextmanager
    def _change(self) -> Generator[sqlite3.Connection]:
        """A transaction; the memory that it frees is given back when it has been written, so that no row lacks it."""
        self._freed, self._moved = [], 0
        try:
            with self.database.change() as database:
                yield database
        except BaseException:
            self.let_go(self._moved)
            raise
        if self._freed:
            self.freed(self._freed, -self._moved)

    def _let_go(self, number: int, size_in_bytes: int) -> None:
        """Count a tensor no more that nobody needs, within a transaction."""
        self.let_go(size_in_bytes)
        self._moved -= size_in_bytes
        self._freed.append(number)

    def _named(self, owner: str, name: str) -> HeldTensorRow | None:
        row = self._rows.execute(f"{_NAMED} AND owner = ? AND name = ?", (owner, name)).fetchone()
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
        if (gone := self._rows.execute(query, (owner, name)).fetchone()) is not None:
            reason, when = gone
            return _gone(name, f"{self._why(reason)} at {_clock(when)}", reason)
        query = "SELECT name FROM tensors WHERE owner = ? AND name IS NOT NULL"
        guess = nearest(name, [each for (each,) in self._rows.execute(query, (owner,))])
        hint = f"; did you mean {guess!r}?" if guess else ""
        return TensorNotFound(
            f"there is no held tensor {name[:100]!r}{hint}; {self.absent}",
            extra={"tensor": name[:100], "nearest": guess},
        )

    def _check_limits(self, owner: str, name: str, size: int, *, replaces: bool) -> None:
        query = "SELECT count(name) + count(reserved), total(size) FROM tensors WHERE owner = ?"
        count, own_bytes = self._rows.execute(query, (owner,)).fetchone()
        limits = self.limits
        if count >= limits.max_held_tensors and not (replaces and self._named(owner, name) is not None):
            raise full("the number of your held tensors", count + 1, limits.max_held_tensors, "max_held_tensors")
        if own_bytes + size > limits.max_held_tensor_bytes:
            raise full(
                "the memory of your held tensors", int(own_bytes) + size, limits.max_held_tensor_bytes,
                "max_held_tensor_bytes",
            )  # fmt: skip

    def _reason_to_drop(self, tensor: HeldTensorRow) -> str | None:
        """Why a tensor is not to be kept any longer."""
        limits, now = self.limits, time.monotonic()
        if limits.held_tensor_seconds and now - tensor.began >= limits.held_tensor_seconds:
            return "expired"
        idle = not tensor.is_in_use and now - tensor.used >= limits.held_tensor_idle_seconds
        return "idle" if idle else None

    def _why(self, reason: str) -> str:
        limits = self.limits
        return {
            "deleted": "was deleted",
            "lost": "was lost with the machine or the process that had it",
            "idle": (
                f"was freed after {limits.held_tensor_idle_seconds:,} s without a use (setting "
                f"{setting_variable('held_tensor_idle_seconds')})"
            ),
            "expired": (
                f"was freed {limits.held_tensor_seconds:,} s after it was made (setting "
                f"{setting_variable('held_tensor_seconds')})"
            ),
        }[reason]

    def _drop(self, tensor: HeldTensorRow, reason: str) -> None:
        """Take a tensor's name away, within a transaction."""
        database = self._rows
        database.execute("UPDATE tensors SET name = NULL WHERE number = ?", (tensor.number,))
        database.execute(
            "INSERT INTO tensors_dropped VALUES (?, 1) ON CONFLICT (reason) DO UPDATE SET count = count + 1", (reason,)
        )
        if reason != "replaced":
            self._note_gone(tensor.owner, tensor.name, reason)
        self._free_unless_used(tensor.number)

    def _note_gone(self, owner: str, name: str, reason: str) -> None:
        added = self._rows.execute(
            "INSERT OR REPLACE INTO tensors_gone (owner, name, reason, at) VALUES (?, ?, ?, ?)",
            (owner, name, reason, time.time()),
        ).lastrowid
        assert added is not None
        self._rows.execute("DELETE FROM tensors_gone WHERE id <= ?", (added - MOST_GONE,))

    def _free_unless_used(self, number: int) -> None:
        """Let go of a tensor that has no name and that no request reads, within a transaction."""
        row = self._rows.execute(
            "DELETE FROM tensors WHERE number = ? AND name IS NULL AND reserved IS NULL "
            "AND NOT EXISTS (SELECT 1 FROM tensor_uses WHERE tensor_uses.number = tensors.number) RETURNING size",
            (number,),
        ).fetchone()
        if row is not None:
            self._let_go(number, row[0])


def full(what: str, actual: int, limit: int, setting: str, part: str = "") -> InsufficientStorage:
    """The error for a tensor that would exceed a setting, or a part of it."""
    named = setting_variable(setting) + part
    unit = "" if setting == "max_held_tensors" else " bytes"
    return InsufficientStorage(
        f"{what} would be {actual:,}{unit}, and this server allows {limit:,} (setting {named}); delete held tensors",
        extra={"limit": limit, "actual": actual, "setting": named},
    )


def _gone(name: str, why: str, reason: str) -> TensorGone:
    return TensorGone(f"the held tensor {name!r} {why}; send it again", extra={"tensor": name, "reason": reason})


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
