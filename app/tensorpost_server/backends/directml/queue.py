"""The command queue of a device: what is recorded, submitted and waited for, and the staging memory of the copies.

Everything is used by one thread. What is submitted runs in order, so a buffer may be lent again as soon as its last use
was submitted, and an object is retired: released once the queue has passed it. Buffers are in the state COMMON between
two submissions (Direct3D promotes them from it and lets them decay to it), so transitions are needed only within one.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from ctypes import c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass

import numpy as np

from . import d3d12
from .c_structs import TypedDesc, array_of
from .com import ComError, ComObject, pointer_to
from .device_buffers import Buffer, make_staging
from .directml_dll import WindowsEvent

STAGING_BYTES = 16 << 20
"""Upload memory, and as much for reading back: each in two halves, one copied by the queue, one by the processor."""

SUBMISSIONS = 4
"""Command allocators: the number of lists that may be under way before the next one waits for the first."""

FEWEST_DESCRIPTORS = 64

Binding = tuple[Buffer, int] | None
"""A buffer and how many of its bytes are bound; None for an optional tensor that is absent."""


@dataclass(slots=True)
class _Half:
    """Half of a staging buffer: how much of it is used, and which submission used it last."""

    begin: int
    used: int = 0
    done: int = 0


@dataclass(slots=True)
class _Submission:
    """What one submission needs until it is done."""

    allocator: ComObject
    done: int = 0
    heap: ComObject | None = None
    handles: tuple[int, int] = (0, 0)
    descriptors: int = 0
    table: ComObject | None = None


class Queue:
    """A command queue with its fence, its one command list and its staging memory.

    Args:
        d3d: the Direct3D device.
        dml: the DirectML device.
        event: the event that the fence sets when a wait is over.
        most_seconds: the most time that a wait may take, seconds; then the device counts as hung.

    Attributes:
        submitted: how many submissions there were; each is waited for by its number.

    Raises:
        ComError: a part of it cannot be created.
    """

    def __init__(self, d3d: ComObject, dml: ComObject, event: WindowsEvent, most_seconds: float) -> None:
        self.d3d, self.dml = d3d, dml
        self._event, self._most_seconds, self._hung = event, most_seconds, False
        self.submitted = 0
        self._owned: list[ComObject] = []
        self._retired: deque[tuple[int, ComObject]] = deque()
        self._submissions: deque[_Submission] = deque()
        try:
            self._open()
        except BaseException:
            self._release()
            raise

    def _open(self) -> None:
        def made(slot: int, what: str, *arguments: object, iid: str) -> ComObject:
            self._owned.append(self.d3d.create(slot, what, *arguments, iid=iid))
            return self._owned[-1]

        direct = c_int32(d3d12.DIRECT)
        desc = d3d12.QueueDesc(Type=d3d12.DIRECT, Flags=d3d12.NO_TIMEOUT)
        self.queue = made(d3d12.DEVICE_QUEUE, "CreateCommandQueue", desc, iid=d3d12.IID_QUEUE)
        self.fence = made(d3d12.DEVICE_FENCE, "CreateFence", c_uint64(0), c_int32(0), iid=d3d12.IID_FENCE)
        for _ in range(SUBMISSIONS):
            allocator = made(d3d12.DEVICE_ALLOCATOR, "CreateCommandAllocator", direct, iid=d3d12.IID_ALLOCATOR)
            self._submissions.append(_Submission(allocator))
        self.commands = made(
            d3d12.DEVICE_LIST, "CreateCommandList", c_uint32(0), direct, self._submissions[0].allocator.pointer,
            c_void_p(), iid=d3d12.IID_LIST,
        )  # fmt: skip
        self.commands.check(d3d12.LIST_CLOSE, "Close")
        self.recorder = self.dml.create(d3d12.DML_RECORDER, "CreateCommandRecorder", iid=d3d12.IID_DML_RECORDER)
        self._owned.append(self.recorder)
        self.upload = make_staging(self.d3d, STAGING_BYTES, d3d12.HEAP_UPLOAD, d3d12.STATE_GENERIC_READ)
        self._owned.append(self.upload.resource)
        self._readback = make_staging(self.d3d, STAGING_BYTES, d3d12.HEAP_READBACK, d3d12.STATE_COPY_TARGET)
        self._owned.append(self._readback.resource)
        self.upload_halves, self._readback_halves = (deque([_Half(0), _Half(STAGING_BYTES // 2)]) for _ in range(2))

    @contextmanager
    def recording(self) -> Generator[Recording]:
        """Record what is submitted at the end; the rest is dropped if something raises inside.

        Raises:
            ComError: a call fails, or the device was removed.
        """
        recording = Recording(self)
        recording.open()
        try:
            yield recording
        except BaseException:
            self.commands.call(d3d12.LIST_CLOSE, c_int32)
            raise
        recording.submit()

    def next_submission(self) -> _Submission:
        """The submission that has rested longest, once it is done."""
        submission = self._submissions[0]
        self._submissions.rotate(-1)
        self.wait(submission.done)
        return submission

    def read(self, source: Buffer, begin: int, target: memoryview) -> None:
        """Copy bytes of a buffer into the processor's memory, and wait for them.

        Args:
            source: a buffer in device memory.
            begin: its first byte that is copied.
            target: writable memory; its length says how much.

        Raises:
            ComError: the device was removed.
        """
        under_way: tuple[_Half, memoryview] | None = None
        for offset in range(0, target.nbytes, STAGING_BYTES // 2):
            part = target[offset : offset + STAGING_BYTES // 2]
            half = self._readback_halves[0]
            self._readback_halves.rotate()
            with self.recording() as recording:
                recording.copy(source, begin + offset, self._readback, half.begin, part.nbytes)
            half.done = self.submitted
            if under_way is not None:
                self._fetch(*under_way)
            under_way = half, part
        if under_way is not None:
            self._fetch(*under_way)

    def _fetch(self, half: _Half, target: memoryview) -> None:
        self.wait(half.done)
        ctypes.memmove(_address(target), self._readback.mapped + half.begin, target.nbytes)

    def retire(self, made: ComObject) -> None:
        """Release an object once everything that was submitted is done."""
        self._retired.append((self.submitted, made))

    def wait(self, number: int) -> None:
        """Wait for a submission, and release what is not used any more.

        Raises:
            ComError: the device was removed, or is hung.
        """
        done: int = self.fence.call(d3d12.FENCE_COMPLETED, c_uint64)
        if done < number:
            handle = c_void_p(self._event.handle)
            self.fence.check(d3d12.FENCE_SET_EVENT, "SetEventOnCompletion", c_uint64(number), handle)
            if self._hung or not self._event.wait(self._most_seconds):
                self._hung = True
                said = f"a submission took more than {self._most_seconds:g} seconds (TENSORPOST_DIRECTML_SECONDS)"
                raise ComError("waiting for the device", d3d12.DEVICE_HUNG, said)
            done = self.fence.call(d3d12.FENCE_COMPLETED, c_uint64)
        # A device that was removed completes every fence at once.
        self.d3d.check(d3d12.DEVICE_REMOVED_REASON, "GetDeviceRemovedReason")
        while self._retired and self._retired[0][0] <= done:
            self._retired.popleft()[1].release()

    def drain(self) -> None:
        """Wait for everything that was submitted.

        Raises:
            ComError: the device was removed.
        """
        self.wait(self.submitted)

    def close(self) -> None:
        """Wait for what is under way, unless the device was removed, and release everything.

        On a hung device all is still in use, so that it is left to the end of the process.
        """
        with suppress(ComError):  # nothing is under way on a device that was removed
            self.drain()
        if not self._hung:
            self._release()
            self._event.close()

    def _release(self) -> None:
        while self._retired:
            self._retired.popleft()[1].release()
        for submission in self._submissions:
            for made in filter(None, (submission.table, submission.heap)):
                made.release()
        while self._owned:
            self._owned.pop().release()


class Recording:
    """The queue's command list while it is open.

    Args:
        queue: whose list it is.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._written: list[Buffer] = []

    def open(self) -> None:
        """Open the list.

        Raises:
            ComError: the device was removed.
        """
        self._own = self._queue.next_submission()
        self._own.allocator.check(d3d12.ALLOCATOR_RESET, "Reset")
        self._queue.commands.check(d3d12.LIST_RESET, "Reset", self._own.allocator.pointer, c_void_p())
        self._written.clear()

    def submit(self) -> None:
        """Close the list and give it to the queue.

        Raises:
            ComError: what was recorded is wrong, or the device was removed.
        """
        queue = self._queue
        queue.commands.check(d3d12.LIST_CLOSE, "Close")
        # Wrong arguments of a method that returns nothing remove the device; only this call reports it.
        queue.dml.check(d3d12.DML_REMOVED_REASON, "IDMLDevice.GetDeviceRemovedReason")
        queue.queue.call(d3d12.QUEUE_EXECUTE, None, c_uint32(1), array_of(c_void_p, [queue.commands.address]))
        queue.submitted += 1
        self._own.done = queue.submitted
        queue.queue.check(d3d12.QUEUE_SIGNAL, "Signal", queue.fence.pointer, c_uint64(queue.submitted))

    def upload(self, source: memoryview, target: Buffer) -> None:
        """Copy memory into a buffer, with zeros up to a multiple of 4 bytes; it was read when this returns.

        The zeros are for operators that read there: an index outside the tensor must not find somebody else's bytes.
        What finds no room in the staging memory is submitted in several parts.

        Raises:
            ComError: the device was removed.
        """
        queue, most, address = self._queue, STAGING_BYTES // 2, _address(source)
        for offset in range(0, source.nbytes, most):
            size = min(most, source.nbytes - offset)
            if queue.upload_halves[0].used + size > most:
                self.submit()
                queue.upload_halves[0].done = queue.submitted
                queue.upload_halves.rotate()
                queue.wait(queue.upload_halves[0].done)
                queue.upload_halves[0].used = 0
                self.open()
            half, padded = queue.upload_halves[0], -(-size // 4) * 4
            begin = half.begin + half.used
            ctypes.memmove(queue.upload.mapped + begin, address + offset, size)
            ctypes.memset(queue.upload.mapped + begin + size, 0, padded - size)
            half.used += -(-size // 16) * 16
            self.copy(queue.upload, begin, target, offset, padded)
        self._written.append(target)

    def copy(self, source: Buffer, begin: int, target: Buffer, offset: int, size: int) -> None:
        """Copy bytes from one buffer into another."""
        self._queue.commands.call(
            d3d12.LIST_COPY, None, target.resource.pointer, c_uint64(offset), source.resource.pointer, c_uint64(begin),
            c_uint64(size),
        )  # fmt: skip

    def dispatch(
        self, dispatchable: ComObject, properties: d3d12.BindingProperties, inputs: Sequence[Binding],
        outputs: Sequence[Binding], temporary: Buffer | None, persistent: Buffer | None = None,
        owned: Sequence[Binding] = (),
    ) -> None:  # fmt: skip
        """Bind everything and record a dispatch; at most one in a recording.

        Args:
            dispatchable: a compiled operator or an initializer.
            properties: what it needs.
            inputs: bindings of the inputs, in binding order.
            outputs: bindings of the outputs, in binding order.
            temporary: buffer for the temporary bytes that it needs, if it needs some.
            persistent: the persistent buffer of a compiled operator that needs one.
            owned: bindings of all inputs of an initializer's operator, None where one is not OWNED_BY_DML; empty if
                none is.

        Raises:
            ComError: there is no memory for descriptors, or the device was removed.
        """
        queue = self._queue
        if self._written:
            barriers = [
                d3d12.ResourceBarrier(
                    0, 0, buffer.resource.address, 0xFFFFFFFF, d3d12.STATE_COPY_TARGET, d3d12.STATE_UNORDERED_ACCESS
                )
                for buffer in self._written
            ]
            count = c_uint32(len(barriers))
            queue.commands.call(d3d12.LIST_BARRIER, None, count, array_of(d3d12.ResourceBarrier, barriers))
        table = self._table(dispatchable, max(1, properties.RequiredDescriptorCount))
        for slot, bound in ((d3d12.TABLE_INPUTS, inputs), (d3d12.TABLE_OUTPUTS, outputs)):
            if bound:
                _bind(table, slot, bound)
        if owned:
            _bind_array(table, owned)
        if temporary is not None:
            _bind_one(table, d3d12.TABLE_TEMPORARY, temporary, properties.TemporaryResourceSize)
        if persistent is not None:
            _bind_one(table, d3d12.TABLE_PERSISTENT, persistent, properties.PersistentResourceSize)
        assert self._own.heap is not None
        queue.commands.call(d3d12.LIST_SET_HEAPS, None, c_uint32(1), array_of(c_void_p, [self._own.heap.address]))
        queue.recorder.call(d3d12.RECORDER_DISPATCH, None, queue.commands.pointer, dispatchable.pointer, table.pointer)

    def _table(self, dispatchable: ComObject, descriptors: int) -> ComObject:
        """This submission's binding table, over its own descriptor heap, reset to what is dispatched."""
        queue, own = self._queue, self._own
        if own.descriptors < descriptors:
            own.descriptors = max(FEWEST_DESCRIPTORS, 1 << (descriptors - 1).bit_length())
            for made in filter(None, (own.table, own.heap)):
                made.release()
            own.table = own.heap = None
            desc = d3d12.DescriptorHeapDesc(Type=0, NumDescriptors=own.descriptors, Flags=1)  # CBV_SRV_UAV, for shaders
            own.heap = queue.d3d.create(d3d12.DEVICE_HEAP, "CreateDescriptorHeap", desc, iid=d3d12.IID_HEAP)
            own.handles = _start(own.heap, d3d12.HEAP_CPU_START), _start(own.heap, d3d12.HEAP_GPU_START)
        desc = d3d12.BindingTableDesc(dispatchable.address, *own.handles, descriptors)
        if own.table is None:
            own.table = queue.dml.create(d3d12.DML_TABLE, "CreateBindingTable", desc, iid=d3d12.IID_DML_TABLE)
        else:
            own.table.check(d3d12.TABLE_RESET, "Reset", desc)
        return own.table


def _start(heap: ComObject, slot: int) -> int:
    handle = c_uint64()
    heap.call(slot, c_void_p, pointer_to(handle))  # returns a struct
    return handle.value


def _bind(table: ComObject, slot: int, bound: Sequence[Binding]) -> None:
    buffers = [None if one is None else d3d12.BufferBinding(one[0].resource.address, 0, one[1]) for one in bound]
    descs = [
        TypedDesc(d3d12.BINDING_NONE, None) if one is None else TypedDesc(d3d12.BINDING_BUFFER, one.pointer)
        for one in buffers
    ]
    table.call(slot, None, c_uint32(len(descs)), array_of(TypedDesc, descs))


def _bind_array(table: ComObject, bound: Sequence[Binding]) -> None:
    """Bind the inputs of the only operator of an initializer."""
    buffers = [
        d3d12.BufferBinding(None, 0, 0) if one is None else d3d12.BufferBinding(one[0].resource.address, 0, one[1])
        for one in bound
    ]
    entries = array_of(d3d12.BufferBinding, buffers)
    binding = d3d12.BufferArrayBinding(len(bound), ctypes.addressof(entries))
    descs = array_of(TypedDesc, [TypedDesc(d3d12.BINDING_BUFFER_ARRAY, binding.pointer)])
    table.call(d3d12.TABLE_INPUTS, None, c_uint32(1), descs)


def _bind_one(table: ComObject, slot: int, buffer: Buffer, size: int) -> None:
    binding = d3d12.BufferBinding(buffer.resource.address, 0, size)
    table.call(slot, None, TypedDesc(d3d12.BINDING_BUFFER, binding.pointer))


def _address(memory: memoryview) -> int:
    return np.frombuffer(memory, np.uint8).ctypes.data
