"""Held tensors of a replica on Ray: the index has their names, and the object store their bytes."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorpost.values.layout import Layout
from tensorpost.values.problems import TensorpostError, Unavailable

from ..engine import Admission
from ..http.wires.held_tensor import HeldTensorRow
from ..http.wires.tensor_index import REASONS, Reservation
from ..http.wires.tensor_store import OpenTensor, TensorPlace
from .index import INLINE_BYTES, Heartbeat, Made
from .index_client import IndexClient
from .upload_memory import UploadMemory

HEARTBEAT_SECONDS = 2.0
"""How often the index is told what the replica does."""

_SOON_SECONDS = 0.02
_FETCH_SECONDS = 120.0
_CLOSE_SECONDS = 60.0
_THREAD_BYTES = 4 << 20
_log = logging.getLogger(__name__)


class RayTensorStore:
    """See `TensorStore`: of all replicas.

    Args:
        admission: the memory budget, in which tensors count while they are received or computed.
        client: calls the index.
    """

    def __init__(self, admission: Admission, client: IndexClient) -> None:
        self._errors: Any = importlib.import_module("ray.exceptions")  # it has no type stubs
        self._admission, self._client, self._files = admission, client, UploadMemory()
        self._open: dict[int, OpenTensor] = {}
        self._used: dict[int, float] = {}
        self._opening: dict[int, asyncio.Task[OpenTensor]] = {}
        self._ended = Counter[int]()
        self._given_back: list[int] = []
        self._told = Heartbeat(0, 0, {}, [])
        self._heartbeats: asyncio.Task[None] | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._tasks = set[asyncio.Task[Any]]()
        client.known = lambda: [(each.held.owner, each.held.name) for each in self._open.values()]

    @property
    def count(self) -> int:
        return self._told.count

    @property
    def size_in_bytes(self) -> int:
        return self._told.size_in_bytes

    @property
    def dropped(self) -> Mapping[str, int]:
        return dict.fromkeys(REASONS, 0) | dict(self._told.dropped)

    def open(self) -> None:
        """Begin; the client of the index is open."""
        self._heartbeats = asyncio.ensure_future(self._send_heartbeats())

    async def use(self, owner: str, name: str) -> OpenTensor:
        held = _held(await self._unless_cancelled(self._client.ask("use", owner, name), self._end_unheard_use))
        tensor = self._open.get(held.number)
        if tensor is None:
            try:
                tensor = await self._opened(held)
            except BaseException:
                self._end_unheard_use((held.number,))
                raise
        tensor.uses += 1
        return tensor

    def end_use(self, tensor: OpenTensor) -> None:
        number = tensor.held.number
        if self._open.get(number) is tensor:
            self._used[number] = time.monotonic()
        self._end_unheard_use((number,))

    async def listed(self, owner: str) -> Sequence[HeldTensorRow]:
        return [_held(row) for row in await self._client.ask("listed", owner)]

    def data_of(self, tensor: HeldTensorRow) -> memoryview | None:
        known = self._open.get(tensor.number)
        return None if known is None else known.data

    async def check_new(self, owner: str, name: str, *, replaces: bool) -> None:
        await self._client.ask("check_new", owner, name, replaces)

    async def place(self, owner: str, name: str | None, layout: Layout, *, replaces: bool = False) -> TensorPlace:
        size = layout.size_in_bytes
        reserve = self._client.ask("reserve", owner, name, layout.data_type.numpy_name, layout.sizes, replaces)
        number, given = await self._unless_cancelled(reserve, self._give_back_unheard)
        try:
            self._admission.hold(size)
        except BaseException:
            self._give_back_unheard((number,))
            raise
        place = TensorPlace(Reservation(number, owner, given, layout, replaces), memoryview(b""), self)
        try:
            if _is_inline(size):
                place.memory = self._admission.buffers.allocate(size)
            elif size <= _THREAD_BYTES:
                place.memory = self._files.allocate(number, size)
            else:
                place.memory = await asyncio.to_thread(self._files.allocate, number, size)
        except BaseException:
            place.close()
            raise
        return place

    async def finish(self, places: Sequence[TensorPlace]) -> list[tuple[HeldTensorRow, bool]]:
        made = [Made(_sent(place.reserved), self._content_of(place)) for place in places]
        named = [(_held(row), replaced) for row, replaced in await self._client.ask("finish", made)]
        for place in places:
            place.is_open = False
            self._let_go(place)
        return named

    def give_back(self, place: TensorPlace) -> None:
        self._let_go(place)
        self._give_back_unheard((place.reserved.number,))

    async def delete(self, owner: str, name: str) -> None:
        await self._client.ask("delete", owner, name)

    async def free(self, owner: str, names: Iterable[str]) -> None:
        try:
            await self._client.ask("free", owner, [*names])
        except TensorpostError as error:  # the request is about something else
            _log.warning("held tensors that a caller does not need were not freed: %s", error.detail)

    def sweep(self) -> None:
        """See `TensorStore.sweep`: the index does it."""

    def close_freed(self) -> None:
        """See `TensorStore.close_freed`: the index says in its answers what is freed."""

    def close(self) -> None:
        for task in (self._heartbeats, *self._tasks):
            if task is not None:
                task.cancel()
        if self._soon is not None:
            self._soon.cancel()
        self._open.clear()

    # ---- bytes -------------------------------------------------------------------------------------------------------

    def _content_of(self, place: TensorPlace) -> bytes | tuple[str, int]:
        size = place.reserved.layout.size_in_bytes
        if _is_inline(size):
            return bytes(place.memory)
        return self._files.path(place.reserved.number), size

    def _let_go(self, place: TensorPlace) -> None:
        place.memory = memoryview(b"")
        self._files.free(place.reserved.number)
        self._admission.let_go(place.reserved.layout.size_in_bytes)

    async def _opened(self, held: HeldTensorRow) -> OpenTensor:
        """The tensor with its bytes, which requests that come at once wait for together."""
        task = self._opening.get(held.number)
        if task is None:
            task = self._opening[held.number] = asyncio.ensure_future(self._fetch(held))
            task.add_done_callback(lambda done: self._end_opening(held.number, done))
        return await asyncio.shield(task)

    def _end_opening(self, number: int, done: asyncio.Task[OpenTensor]) -> None:
        del self._opening[number]
        if not done.cancelled():
            done.exception()  # whoever waits raises it; perhaps nobody does any more

    async def _fetch(self, held: HeldTensorRow) -> OpenTensor:
        content = await self._client.ask("content", held.number)
        if isinstance(content, bytes):
            data = memoryview(content)
        else:
            try:
                if content is None:
                    raise self._errors.ObjectLostError("", "", "")
                async with asyncio.timeout(_FETCH_SECONDS):
                    data = memoryview(await content[0])
            except self._errors.ObjectLostError:
                await self._client.ask("lost", held.number, held.owner, held.name)
                raise Unavailable(f"the held tensor {held.name!r} is being replaced; try again") from None
            except TimeoutError:
                raise Unavailable(
                    f"the node that has the held tensor {held.name!r} did not send it within {_FETCH_SECONDS:g} s; "
                    "try again"
                ) from None
        tensor = self._open[held.number] = OpenTensor(held, data, self)
        self._used[held.number] = time.monotonic()
        return tensor

    # ---- what the index is told --------------------------------------------------------------------------------------

    async def _unless_cancelled(self, question: Any, undo: Any) -> Any:
        """The index's answer. If the request ends before it is there, what it says is undone when it comes."""
        task = asyncio.ensure_future(question)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:

            def ended(done: asyncio.Task[Any]) -> None:
                self._tasks.discard(done)
                if not done.cancelled() and done.exception() is None:
                    undo(done.result())

            self._tasks.add(task)
            task.add_done_callback(ended)
            raise

    def _end_unheard_use(self, row: Sequence[Any]) -> None:
        self._ended[row[0]] += 1
        self._heartbeat_soon()

    def _give_back_unheard(self, reserved: Sequence[Any]) -> None:
        self._given_back.append(reserved[0])
        self._heartbeat_soon()

    def _heartbeat_soon(self) -> None:
        if self._soon is None and self._heartbeats is not None and not self._heartbeats.done():
            self._soon = asyncio.get_running_loop().call_later(_SOON_SECONDS, self._heartbeat_now)

    def _heartbeat_now(self) -> None:
        self._soon = None
        task = asyncio.ensure_future(self._heartbeat())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_heartbeats(self) -> None:
        while True:
            await self._heartbeat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _heartbeat(self) -> None:
        """Tell the index what has ended, and let go of what it has freed, or what was not used here for a while."""
        ended, given_back = self._ended, self._given_back
        self._ended, self._given_back = Counter[int](), []
        try:
            self._told = told = await self._client.ask("heartbeat", dict(ended), given_back, [*self._open])
        except TensorpostError as error:
            self._ended += ended
            self._given_back += given_back
            _log.warning("%s", error.detail)
            return
        before = time.monotonic() - _CLOSE_SECONDS
        idle = [number for number, known in self._open.items() if not known.uses and self._used[number] < before]
        for number in {*told.freed, *idle}:
            self._open.pop(number, None)
            self._used.pop(number, None)


def _is_inline(size_in_bytes: int) -> bool:
    """Whether the index has the bytes itself: of small tensors, and where memory of a process cannot be opened."""
    return size_in_bytes <= INLINE_BYTES or sys.platform != "linux"


def _held(row: Sequence[Any]) -> HeldTensorRow:
    """What the index says of a tensor, by this machine's clock."""
    now, held = time.monotonic(), HeldTensorRow.of_row(row)
    return held._replace(began=now + held.began, used=now + held.used)


def _sent(reserved: Reservation) -> tuple[int, str, str, str, Sequence[int], bool]:
    number, owner, name, layout, replaces = reserved
    return number, owner, name, layout.data_type.numpy_name, layout.sizes, replaces
