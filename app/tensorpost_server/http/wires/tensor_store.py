"""Held tensors: those that the server keeps for their caller, each by its owner and name.

The bytes of a tensor never change. Replacing or deleting one takes its name away; its memory is given back when the
last request that reads it has ended. What it takes is part of the memory budget until then.

Which tensors there are, and which process reads them, is in the database that all processes share; a process has the
bytes of those open that it has used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tensorpost.values.layout import Layout
from tensorpost.values.problems import TensorpostError

from ...engine import Admission
from ...settings import Settings
from ...shared.process_group import ProcessGroup
from .held_tensor import HeldTensorRow
from .tensor_index import Reservation, TensorIndex, TensorLimits, full
from .tensor_memory import OwnMemory, SharedMemoryFiles, TensorMemory

MOST_MAPPED_BYTES = 64 << 20
"""Bytes of freed tensors that other processes may map until their next `sweep`; each of them keeps the memory."""

_log = logging.getLogger(__name__)


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
        self._store.end_use(self)


@dataclass(slots=True, eq=False)
class TensorPlace:
    """Room for a tensor that is being received or computed; ended by `finish` or `close`.

    Attributes:
        reserved: the tensor.
        memory: where its bytes go.
        is_open: whether the tensor is not there yet.
    """

    reserved: Reservation
    memory: memoryview
    _store: TensorStore
    is_open: bool = True

    async def finish(self) -> tuple[HeldTensorRow, bool]:
        """Give the tensor its name; all of its bytes have been written.

        Returns:
            The tensor, and whether it took the place of another one.

        Raises:
            TensorExists, TensorGone: see `TensorStore.finish`.
        """
        (made,) = await self._store.finish([self])
        return made

    def close(self) -> None:
        """Give the room back, unless the tensor is there."""
        if self.is_open:
            self.is_open = False
            self._store.give_back(self)


class TensorStore(Protocol):
    """The held tensors, as a process sees them. Used from the event loop's thread only."""

    @property
    def count(self) -> int:
        """How many tensors have a name."""
        ...

    @property
    def size_in_bytes(self) -> int:
        """The memory of all tensors."""
        ...

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many tensors have lost their name, by the reason."""
        ...

    async def use(self, owner: str, name: str) -> OpenTensor:
        """The caller's tensor of this name, in use until `release`.

        Raises:
            TensorGone: there was one, and the message says when and why it went.
            TensorNotFound: there is none; nothing tells whether another caller has one.
        """
        ...

    def end_use(self, tensor: OpenTensor) -> None:
        """A request does not read the tensor any more; called by it."""
        ...

    async def listed(self, owner: str) -> Sequence[HeldTensorRow]:
        """The caller's tensors, by name."""
        ...

    def data_of(self, tensor: HeldTensorRow) -> memoryview | None:
        """The bytes of a tensor, where this process has them open."""
        ...

    async def check_new(self, owner: str, name: str, *, replaces: bool) -> None:
        """Refuse a name that a new tensor cannot have.

        Raises:
            InvalidParameter: it is none.
            TensorExists: there is a tensor of this name, which shall not be replaced.
        """
        ...

    async def place(self, owner: str, name: str | None, layout: Layout, *, replaces: bool = False) -> TensorPlace:
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
        ...

    async def finish(self, places: Sequence[TensorPlace]) -> list[tuple[HeldTensorRow, bool]]:
        """Give tensors their names, all of them or none; all of their bytes have been written.

        Returns:
            Each tensor, and whether it took the place of another one.

        Raises:
            TensorExists: another request has made one of these names meanwhile.
            TensorGone: the room was given up meanwhile, which only happens where an index on another machine is lost.
        """
        ...

    def give_back(self, place: TensorPlace) -> None:
        """A tensor does not come; called by its place."""
        ...

    async def delete(self, owner: str, name: str) -> None:
        """Take a tensor's name away.

        Raises:
            TensorGone, TensorNotFound: see `use`.
        """
        ...

    async def free(self, owner: str, names: Iterable[str]) -> None:
        """Delete tensors that nobody refers to any more; names that there are not are passed over."""
        ...

    def sweep(self) -> None:
        """Drop tensors that were not used for too long, or held for too long; called every few seconds."""
        ...

    def close_freed(self) -> None:
        """Let go of tensors that other processes have freed."""
        ...

    def close(self) -> None:
        """Let go of all tensors; those that nobody else has are gone then."""
        ...


@dataclass(slots=True)
class ProcessTensorStore:
    """See `TensorStore`: of the processes of one machine. Nothing of it waits.

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
    _index: TensorIndex = field(init=False)
    _memory: TensorMemory = field(init=False)
    _open: dict[int, OpenTensor] = field(default_factory=dict[int, OpenTensor])
    _version: int = -1
    _mapped_elsewhere: int = 0
    _later: dict[int, Callable[[], None]] = field(default_factory=dict[int, Callable[[], None]])

    def __post_init__(self) -> None:
        folder, admission = self.group.folder, self.admission
        self._index = TensorIndex(
            TensorLimits.of(self.settings), self.group.database, self._hold, admission.let_go, self._free
        )  # fmt: skip
        self._memory = OwnMemory(self.admission.buffers) if folder is None else SharedMemoryFiles(folder)

    @property
    def count(self) -> int:
        return self._index.count

    @property
    def size_in_bytes(self) -> int:
        return self.admission.counts.held_bytes

    @property
    def dropped(self) -> Mapping[str, int]:
        return self._index.dropped

    async def use(self, owner: str, name: str) -> OpenTensor:
        held = self._index.use(owner, name, self.group.place)
        known = self._open.get(held.number)
        if known is None:
            try:
                known = OpenTensor(held, self._memory.open(held.number, held.layout.size_in_bytes), self)
            except BaseException:
                self._end_uses(held.number)
                raise
            self._open[held.number] = known
        known.uses += 1
        return known

    def end_use(self, tensor: OpenTensor) -> None:
        if not tensor.uses:
            self._end_uses(tensor.held.number)

    async def listed(self, owner: str) -> Sequence[HeldTensorRow]:
        self._do_later()
        self.close_freed()
        return self._index.listed(owner)

    def data_of(self, tensor: HeldTensorRow) -> memoryview | None:
        known = self._open.get(tensor.number)
        return None if known is None else known.data

    async def check_new(self, owner: str, name: str, *, replaces: bool) -> None:
        self._index.check_new(owner, name, replaces=replaces)

    async def place(self, owner: str, name: str | None, layout: Layout, *, replaces: bool = False) -> TensorPlace:
        self._do_later()
        self.close_freed()
        reserved = self._index.reserve(owner, name, layout, self.group.place, replaces=replaces)
        place = TensorPlace(reserved, memoryview(b""), self)
        try:
            place.memory = self._memory.allocate(reserved.number, layout.size_in_bytes)
        except BaseException:
            place.close()
            raise
        return place

    async def finish(self, places: Sequence[TensorPlace]) -> list[tuple[HeldTensorRow, bool]]:
        made = self._index.finish([place.reserved for place in places])
        for place, (held, _) in zip(places, made, strict=True):
            place.is_open = False
            self._open[held.number] = OpenTensor(held, place.memory.toreadonly(), self)
        return made

    def give_back(self, place: TensorPlace) -> None:
        place.memory = memoryview(b"")
        number = place.reserved.number
        self._do_or_later(number, partial(self._index.give_back, number))

    async def delete(self, owner: str, name: str) -> None:
        self._index.delete(owner, name)

    async def free(self, owner: str, names: Iterable[str]) -> None:
        self._index.free(owner, names)

    def sweep(self) -> None:
        self._do_later()
        self._index.sweep()
        self.close_freed()

    def close_freed(self) -> None:
        version = self.group.database.version
        if version == self._version:
            return
        self._version = version
        there = {number for (number,) in self.group.database.connection.execute("SELECT number FROM tensors")}
        for number in [number for number in self._open if number not in there]:
            del self._open[number]

    def close(self) -> None:
        if not self.group.is_shared:
            self._index.drop_all()
        self._open.clear()

    def _hold(self, size_in_bytes: int) -> None:
        """Count the bytes of a new tensor, which are kept like those of graphs."""
        admission = self.admission
        if admission.kept_bytes + size_in_bytes > admission.memory_bytes // 2:
            raise full(
                "the memory of all that stays here", admission.kept_bytes + size_in_bytes,
                admission.memory_bytes // 2, "memory_bytes", ", half of it",
            )  # fmt: skip
        admission.hold(size_in_bytes)

    def _free(self, numbers: Sequence[int], size_in_bytes: int) -> None:
        """Give back the memory of tensors that are not in the database any more."""
        for number in numbers:
            self._open.pop(number, None)
            self._memory.free(number)
        self._mapped_elsewhere += size_in_bytes
        if self._mapped_elsewhere > MOST_MAPPED_BYTES:
            self._mapped_elsewhere = 0
            self.when_freed()

    def _end_uses(self, number: int) -> None:
        """No request of this process reads a tensor any more."""

        def end() -> None:
            if (known := self._open.get(number)) is None or not known.uses:  # else there is another use since
                self._index.end_use(number, self.group.place)

        self._do_or_later(number, end)

    def _do_or_later(self, number: int, action: Callable[[], None]) -> None:
        """Do what a request that ends has to do, whose answer does not depend on it; once more with `sweep`."""
        try:
            action()
        except TensorpostError as error:
            self._later[number] = action
            _log.warning("a held tensor that is not used any more is freed later: %s", error)

    def _do_later(self) -> None:
        """Do what has failed before."""
        for number, action in [*self._later.items()]:
            del self._later[number]
            self._do_or_later(number, action)
