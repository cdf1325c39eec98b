"""DXGI, Direct3D 12 and DirectML as COM objects in Python: called through tables of functions, as the real ones are.

Structs are taken apart with `struct` by the layouts of Microsoft's headers, not with the classes under test. Operators
are made into descriptors of `tensorpost.descriptors`, so what those forbid is refused with E_INVALIDARG, and are
computed by the backend numpy.

The queue is as late as it may be: what was submitted runs when somebody waits for it. What is released, mapped memory
that is written, or a descriptor heap that is used again before that, is then wrong, and so is a buffer in a state that
the command does not allow.
"""

from __future__ import annotations

import ctypes
import struct
import uuid
from collections import deque
from collections.abc import Callable
from ctypes import c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any

from tensorpost import descriptors as dml
from tensorpost.descriptors import operator_class
from tensorpost.descriptors.catalogue import OperatorFacts, facts_of, operator_names
from tensorpost.graphs.dml_graph import positions
from tensorpost.values.problems import TensorpostError
from tensorpost_server.backends.directml.directml_dll import Libraries
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import make_plan

__all__ = ["FakeWindows"]

E_INVALIDARG, E_FAIL, E_OUTOFMEMORY = -0x7FF8FFA9, -0x7FFFBFFB, -0x7FF8FFF2
NOT_FOUND, UNSUPPORTED, REMOVED = -0x7785FFFE, -0x7785FFFC, -0x7785FFFB  # DXGI_ERROR_...
IDS = {
    "IDXGIFactory1": "770aae78-f26f-4dba-a829-253c83d1b387", "ID3D12Device": "189819f1-1db6-4b57-be54-1821339b85f7",
    "ID3D12CommandQueue": "0ec870a6-5d7e-4c22-8cfc-5baae07616ed",
    "ID3D12CommandAllocator": "6102dee4-af59-4b09-b999-b44d73f09b24",
    "ID3D12GraphicsCommandList": "5b160d0f-ac1b-4185-8ba8-b3ae42a5a455",
    "ID3D12Fence": "0a753dcf-c4d8-4b91-adf6-be5a60d95a76", "ID3D12Resource": "696442be-a72e-4059-bc79-5b5c98040fad",
    "ID3D12DescriptorHeap": "8efb471d-616c-4f49-90f7-127bb763fa51",
    "ID3D12Debug": "344488b7-6846-474b-b989-f027448245e0", "ID3D12InfoQueue": "0742a90b-c387-483f-b946-30a7e4e61458",
    "IDMLDevice": "6dbd6437-96fd-423f-a98c-ae5e7c2a573f", "IDMLDevice1": "a0884f9a-d2be-4355-aa5d-5901281ad1d2",
    "IDMLOperator": "26caae7a-3081-4633-9581-226fbe57695d",
    "IDMLCompiledOperator": "6b15e56a-bf5c-4902-92d8-da3a650afea4",
    "IDMLOperatorInitializer": "427c1113-435c-469c-8676-4d5dd072f813",
    "IDMLBindingTable": "29c687dc-de74-4e3b-ab00-1168f2fc3cfc",
    "IDMLCommandRecorder": "e6857a76-2e3e-4fdd-bff4-5d2ba10fb453",
    "IDXGIDevice": "54ec77fa-1377-44e6-8c32-88fd5f44c84c",
}  # fmt: skip
COMMON, UNORDERED_ACCESS, COPY_TARGET, COPY_SOURCE = 0, 8, 0x400, 0x800
Method = tuple[Any, list[Any], Callable[..., Any]]
P, U32, I32, U64 = c_void_p, c_uint32, c_int32, c_uint64


class FakeObject:
    """A COM object: a pointer to a table of functions."""

    def __init__(self, world: FakeWindows, name: str, methods: dict[int, Method], **state: Any) -> None:
        self.name, self.state, self.alive = name, state, True
        slots: dict[int, Method] = {2: (U32, [], lambda: world.release(self)), **methods}
        self.functions: list[Any] = []
        table = (c_void_p * (max(slots) + 1))()
        for slot, (result, arguments, body) in slots.items():
            function = ctypes.CFUNCTYPE(result, P, *arguments)(world.guarded(f"{name}[{slot}]", result, body))
            self.functions.append(function)
            table[slot] = ctypes.cast(function, P).value
        self.table, self.head = table, c_void_p(ctypes.addressof(table))
        self.address = ctypes.addressof(self.head)
        world.objects[self.address] = self


@dataclass
class FakeEvent:
    """What a fence sets; a wait for it runs what was submitted."""

    windows: FakeWindows
    handle: int = 77

    def wait(self, seconds: float) -> bool:
        assert seconds > 0
        if not self.windows.hung:
            self.windows.waits.pop()()
        return not self.windows.hung

    def close(self) -> None:
        self.windows.alive_events -= 1


@dataclass
class FakeWindows:
    """A machine with one adapter, and perhaps the processor as another.

    Attributes:
        software: whether there is a software adapter as well, with index 1.
        no_device: D3D12CreateDevice fails.
        level: DirectML's highest.
        without: data types that the device has no tensors of.
        not_compiled: operators that CompileOperator fails for.
        persistent: bytes that a compiled operator wants to keep.
        temporary: bytes that it wants for each dispatch.
        descriptors: how many it needs.
        memory_bytes: of all buffers in the default heap.
        dispatches_left: after so many the device is removed.
        ties_go_down: nearest takes the lower neighbour.
        said: what the debug layer says when an operator is refused, or something bound that removes the device.
        hung: no wait ends.
        bound: the bytes of every input of every dispatch.
        overwritten: the bytes that every output of every dispatch held before it.
        wrong: what was done wrongly; must stay empty.
    """

    software: bool = False
    no_device: bool = False
    level: int = 0x6400
    without: tuple[int, ...] = ()
    not_compiled: tuple[str, ...] = ()
    persistent: int = 0
    temporary: int = 100
    descriptors: int = 3
    memory_bytes: int = 1 << 30
    dispatches_left: int = 1 << 30
    ties_go_down: bool = False
    said: str = ""
    hung: bool = False
    wrong: list[str] = field(default_factory=list[str])
    objects: dict[int, FakeObject] = field(default_factory=dict[int, FakeObject])
    released: list[str] = field(default_factory=list[str])
    calls: list[str] = field(default_factory=list[str])
    bound: list[bytes] = field(default_factory=list[bytes])
    overwritten: list[bytes] = field(default_factory=list[bytes])
    debug: list[str] = field(default_factory=list[str])
    messages: list[bytes] = field(default_factory=list[bytes])
    pending: deque[Callable[[], None]] = field(default_factory=deque[Callable[[], None]])
    waits: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    alive_events: int = 0

    def _event(self) -> Any:
        self.alive_events += 1
        return FakeEvent(self)

    def libraries(self) -> Libraries:
        def exported(name: str, body: Callable[..., int], *arguments: Any) -> Any:
            return ctypes.CFUNCTYPE(I32, *arguments)(self.guarded(name, I32, body))

        return Libraries(
            exported("CreateDXGIFactory1", self._factory, P, P),
            exported("D3D12CreateDevice", self._device, P, I32, P, P),
            exported("DMLCreateDevice1", self._dml, P, I32, I32, P, P),
            exported("D3D12GetDebugInterface", self._debug_layer, P, P), self._event, "1.2.3.4", "DirectML.dll",
        )  # fmt: skip

    @property
    def alive(self) -> list[str]:
        return [found.name for found in self.objects.values() if found.alive] + ["event"] * self.alive_events

    @property
    def removed(self) -> bool:
        return self.dispatches_left < 0

    def guarded(self, name: str, result: Any, body: Callable[..., Any]) -> Callable[..., Any]:
        """A callback cannot raise into C: what it would raise is kept in `wrong`."""
        is_method = "[" in name

        def call(*arguments: Any) -> Any:
            try:
                answer = body(*(arguments[1:] if is_method else arguments))
            except Exception as error:  # noqa: BLE001 # see above
                self.wrong.append(f"{name}: {error!r}")
                answer = E_INVALIDARG if result is I32 else 0
            return None if result is None else answer or 0

        return call

    def release(self, found: FakeObject) -> int:
        assert found.alive, f"{found.name} is released twice"
        found.alive = False
        self.released.append(found.name)
        return 0

    def _give(self, name: str, iid: int | None, out: int, methods: dict[int, Method], **state: Any) -> int:
        if iid is not None:
            assert ctypes.string_at(iid, 16) == uuid.UUID(IDS[name]).bytes_le, f"the identifier of {name}"
        made = FakeObject(self, name, methods, **state)
        c_void_p.from_address(out).value = made.address
        return 0

    def _made(self, out: int) -> FakeObject:
        return self.objects[c_void_p.from_address(out).value or 0]

    def _get(self, address: int | None, name: str) -> FakeObject:
        found = self.objects[address or 0]
        assert found.name == name, f"{found.name} in place of {name}"
        assert found.alive, f"{name} was released"
        return found

    # -- DXGI and Direct3D --

    def _factory(self, iid: int, out: int) -> int:
        def adapter(index: int, out: int) -> int:
            if index > self.software:
                return NOT_FOUND
            methods = {9: (I32, [P, P], driver), 10: (I32, [P], lambda desc: describe(index, desc))}
            return self._give("IDXGIAdapter1", None, out, methods)

        def driver(iid: int, version: int) -> int:
            assert ctypes.string_at(iid, 16) == uuid.UUID(IDS["IDXGIDevice"]).bytes_le
            ctypes.memmove(version, struct.pack("<4H", 4, 3, 2, 31), 8)
            return 0

        def describe(index: int, desc: int) -> int:
            name = ("Basic Render Driver" if index else "Fake GPU \u00b5").encode("utf-16-le").ljust(256, b"\0")
            numbers = (0x10DE, 0x2330, 7, 1, 8 << 30, 0, 1 << 30, 9, 2 * index)
            ctypes.memmove(desc, name + struct.pack("<4I3QQI4x", *numbers), 312)
            return 0

        return self._give("IDXGIFactory1", iid, out, {12: (I32, [U32, P], adapter)})

    def _debug_layer(self, iid: int, out: int) -> int:
        return self._give("ID3D12Debug", iid, out, {3: (None, [], lambda: self.debug.append("Direct3D"))})

    def _device(self, adapter: int, level: int, iid: int, out: int) -> int:
        self._get(adapter, "IDXGIAdapter1")
        assert level == 0xB000
        if self.no_device:
            return UNSUPPORTED
        return self._give(
            "ID3D12Device", iid, out,
            {
                0: (I32, [P, P], self._info_queue),
                8: (I32, [P, P, P], self._queue),
                9: (I32, [I32, P, P], self._allocator),
                12: (I32, [U32, I32, P, P, P, P], self._list),
                14: (I32, [P, P, P], self._heap),
                27: (I32, [P, I32, P, I32, P, P, P], self._resource),
                36: (I32, [U64, I32, P, P], self._fence),
                37: (I32, [], lambda: REMOVED if self.removed else 0),
            },
        )  # fmt: skip

    def _info_queue(self, iid: int, out: int) -> int:
        def message(index: int, block: int | None, size: int) -> int:
            text = self.messages[index]
            if block is not None:
                assert c_uint64.from_address(size).value == 32 + len(text)
                ctypes.memmove(block, struct.pack("<iii4xQQ", 9, 1, 1000, block + 32, len(text)) + text, 32 + len(text))
            c_uint64.from_address(size).value = 32 + len(text)
            return 0

        methods = {
            4: (None, [], self.messages.clear), 5: (I32, [U64, P, P], message),
            8: (U64, [], lambda: len(self.messages)),
        }  # fmt: skip
        assert self.debug == ["Direct3D"], "the debug layer must be on before the device is made"
        return self._give("ID3D12InfoQueue", iid, out, methods)

    def _queue(self, desc: int, iid: int, out: int) -> int:
        assert struct.unpack("<iiiI", ctypes.string_at(desc, 16)) == (0, 0, 1, 0), "direct, without a time limit"

        def execute(count: int, lists: int) -> None:
            assert count == 1
            own = self._get(c_void_p.from_address(lists).value, "ID3D12GraphicsCommandList").state
            assert own["closed"]
            assert own["allocator"].state["commands"] is own["commands"], "its allocator was reset"
            commands, touched = own["commands"], own["touched"]
            own["allocator"].state["busy"] += 1
            for used in (own["heap"],) if own["heap"] else ():
                used.state["busy"] += 1

            def run(heap: Any = own["heap"], allocator: Any = own["allocator"]) -> None:
                for command in commands:
                    command()
                for resource in touched:
                    resource.state["state"] = resource.state["rests"]
                allocator.state["busy"] -= 1
                if heap:
                    heap.state["busy"] -= 1

            self.pending.append(run)

        def signal(fence: int, value: int) -> int:
            found = self._get(fence, "ID3D12Fence")
            self.pending.append(lambda: found.state.update(value=value))
            return 0

        methods = {10: (None, [U32, P], execute), 14: (I32, [P, U64], signal)}
        return self._give("ID3D12CommandQueue", iid, out, methods)

    def _allocator(self, kind: int, iid: int, out: int) -> int:
        def reset() -> int:
            own = self._get(found[0].address, "ID3D12CommandAllocator").state
            assert not own["busy"], "it is in use"
            own["commands"] = None
            return 0

        assert kind == 0, "direct"
        status = self._give("ID3D12CommandAllocator", iid, out, {8: (I32, [], reset)}, busy=0, commands=None)
        found = [self._made(out)]
        return status

    def _list(self, mask: int, kind: int, allocator: int, state: int | None, iid: int, out: int) -> int:
        assert (mask, kind, state) == (0, 0, None)
        own: dict[str, Any] = {"closed": True}

        def reset(allocator: int, state: int | None) -> int:
            assert own["closed"], "it is open already"
            memory = self._get(allocator, "ID3D12CommandAllocator")
            commands: list[Callable[[], None]] = []
            memory.state["commands"] = commands
            own.update(commands=commands, touched=[], closed=False, heap=None, allocator=memory, states={})
            return 0

        def close() -> int:
            assert not own["closed"]
            own["closed"] = True
            return 0

        def set_heaps(count: int, heaps: int) -> None:
            assert count == 1
            own["heap"] = self._get(c_void_p.from_address(heaps).value, "ID3D12DescriptorHeap")

        def copy(target: int, offset: int, source: int, begin: int, size: int) -> None:
            to, of = self._get(target, "ID3D12Resource"), self._get(source, "ID3D12Resource")
            own["touched"] += [to, of]

            def command() -> None:
                assert to.alive, "a buffer was released before the queue had used it"
                assert of.alive, "a buffer was released before the queue had used it"
                self._use(to, COPY_TARGET)
                self._use(of, COPY_SOURCE)
                assert offset + size <= len(to.state["memory"])
                assert begin + size <= len(of.state["memory"])
                ctypes.memmove(
                    ctypes.addressof(to.state["memory"]) + offset, ctypes.addressof(of.state["memory"]) + begin, size
                )

            own["commands"].append(command)

        def barrier(count: int, barriers: int) -> None:
            for index in range(count):
                kind, flags, resource, part, before, after = struct.unpack(
                    "<iiQIii4x", ctypes.string_at(barriers + 32 * index, 32)
                )
                assert (kind, flags, part) == (0, 0, 0xFFFFFFFF)
                found = self._get(resource, "ID3D12Resource")

                def command(found: FakeObject = found, before: int = before, after: int = after) -> None:
                    assert found.state["state"] == before, f"it is in state {found.state['state']}, not {before}"
                    found.state["state"] = after

                own["commands"].append(command)

        methods = {
            9: (I32, [], close), 10: (I32, [P, P], reset), 15: (None, [P, U64, P, U64, U64], copy),
            26: (None, [U32, P], barrier), 28: (None, [U32, P], set_heaps),
        }  # fmt: skip
        reset(allocator, None)
        status = self._give("ID3D12GraphicsCommandList", iid, out, methods)
        self._made(out).state = own
        return status

    @staticmethod
    def _use(resource: FakeObject, state: int) -> None:
        """A buffer in COMMON is promoted; one in a staging heap is in its state for ever."""
        own = resource.state
        if own["state"] == COMMON:
            own["state"] = state
        allowed = {COPY_SOURCE: (COPY_SOURCE, 0xAC3), COPY_TARGET: (COPY_TARGET,)}.get(state, (state,))
        assert own["state"] in allowed, f"a buffer in state {own['state']:#x} is used as {state:#x}"

    def _heap(self, desc: int, iid: int, out: int) -> int:
        kind, count, flags, _ = struct.unpack("<iIiI", ctypes.string_at(desc, 16))
        assert (kind, flags) == (0, 1), "CBV_SRV_UAV, shader visible"

        def handle(offset: int) -> Callable[[int], int]:
            def give(result: int) -> int:
                c_uint64.from_address(result).value = found[0].address + offset
                return result

            return give

        methods = {9: (P, [P], handle(1)), 10: (P, [P], handle(2))}
        status = self._give("ID3D12DescriptorHeap", iid, out, methods, count=count, busy=0)
        found = [self._made(out)]
        return status

    def _resource(self, heap: int, flags: int, desc: int, state: int, clear: int | None, iid: int, out: int) -> int:
        kind, *others = struct.unpack("<iiiII", ctypes.string_at(heap, 20))
        assert others == [0, 0, 0, 0]
        fields = struct.unpack("<i4xQQIHHiIIii", ctypes.string_at(desc, 56)[:52])
        size = fields[2]
        for_shaders = 4 if kind == 1 else 0
        assert fields == (1, 0, size, 1, 1, 1, 0, 1, 0, 1, for_shaders), "a buffer"
        assert (flags, clear) == (0, None)
        assert state == {1: COMMON, 2: 0xAC3, 3: COPY_TARGET}[kind], "the state of this heap"
        if kind == 1 and self.device_bytes + size > self.memory_bytes:
            return E_OUTOFMEMORY
        memory = ctypes.create_string_buffer(b"\xaa" * size, size)

        def map_(part: int, read: int | None, out: int) -> int:
            assert (part, read) == (0, None)
            assert kind != 1, "the processor does not see device memory"
            c_void_p.from_address(out).value = ctypes.addressof(memory)
            return 0

        methods = {8: (I32, [U32, P, P], map_)}
        return self._give(
            "ID3D12Resource", iid, out, methods, memory=memory, state=state, rests=state, device=kind == 1
        )

    @property
    def device_bytes(self) -> int:
        return sum(
            len(found.state["memory"])
            for found in self.objects.values()
            if found.name == "ID3D12Resource" and found.alive and found.state["device"]
        )

    def _fence(self, value: int, flags: int, iid: int, out: int) -> int:
        assert (value, flags) == (0, 0)

        def wait(value: int, event: int | None) -> int:
            assert event == FakeEvent.handle

            def until_done() -> None:
                while found[0].state["value"] < value and not self.removed:
                    assert self.pending, "it would wait for ever"
                    self.pending.popleft()()

            self.waits.append(until_done)
            return 0

        def completed() -> int:
            return (1 << 64) - 1 if self.removed else found[0].state["value"]

        status = self._give("ID3D12Fence", iid, out, {8: (U64, [], completed), 9: (I32, [U64, P], wait)}, value=value)
        found = [self._made(out)]
        return status

    # -- DirectML --

    def _dml(self, device: int, flags: int, level: int, iid: int, out: int) -> int:
        self._get(device, "ID3D12Device")
        assert (flags, level) == (len(self.debug), 0x1000)
        return self._give(
            "IDMLDevice", iid, out,
            {
                0: (I32, [P, P], self._device1),
                7: (I32, [I32, U32, P, U32, P], self._features),
                8: (I32, [P, P, P], self._operator),
                9: (I32, [P, I32, P, P], self._compile),
                10: (I32, [U32, P, P, P], self._initializer),
                11: (I32, [P, P], self._recorder),
                12: (I32, [P, P, P], self._table),
                15: (I32, [], lambda: REMOVED if self.removed else 0),
            },
        )  # fmt: skip

    def _features(self, feature: int, query_size: int, query: int, size: int, out: int) -> int:
        if feature == 0:
            assert (query_size, size) == (4, 4)
            c_int32.from_address(out).value = c_int32.from_address(query).value not in self.without
            return 0
        assert (feature, query_size, size) == (1, 16, 4)
        count, levels = struct.unpack("<I4xQ", ctypes.string_at(query, 16))
        asked = struct.unpack(f"<{count}I", ctypes.string_at(levels, 4 * count))
        assert 0x6400 in asked
        c_uint32.from_address(out).value = max(level for level in asked if level <= self.level)
        return 0

    def _operator(self, desc: int, iid: int, out: int) -> int:
        kind, inner = struct.unpack("<i4xQ", ctypes.string_at(desc, 16))
        try:
            made = _descriptor(facts_of(operator_names()[kind - 1]), inner)
        except TensorpostError:
            self.messages += [self.said.encode() + b"\0"] if self.said else []
            return E_INVALIDARG
        return self._give("IDMLOperator", iid, out, {}, desc=made)

    def _compile(self, operator: int, flags: int, iid: int, out: int) -> int:
        assert flags == 0
        desc = self._get(operator, "IDMLOperator").state["desc"]
        self.calls.append(f"compile {desc.operator_type}")
        if desc.operator_type in self.not_compiled:
            return E_FAIL
        methods = {8: (P, [P], _properties(self.descriptors, self.temporary, self.persistent))}
        return self._give("IDMLCompiledOperator", iid, out, methods, desc=desc, ready=False)

    def _device1(self, iid: int, out: int) -> int:
        return self._give("IDMLDevice1", iid, out, {17: (I32, [P, I32, P, P], self._compile_graph)})

    def _compile_graph(self, desc: int, flags: int, iid: int, out: int) -> int:
        assert flags == 0
        inputs, outputs, count, nodes, *edges = struct.unpack("<3I4xQI4xQI4xQI4xQ", ctypes.string_at(desc, 72))
        operators: list[dml.OperatorDesc] = []
        for kind, inner in _typed(nodes, count):
            assert kind == 1, "a node is an operator"
            (operator, _) = struct.unpack("<QQ", ctypes.string_at(inner, 16))
            operators.append(self._get(operator, "IDMLOperator").state["desc"])
        found: dict[int, list[tuple[int, ...]]] = {}
        for kind, at in ((1, 0), (2, 2), (3, 4)):
            typed = _typed(edges[at + 1], edges[at])
            assert all(each == kind for each, _ in typed)
            numbers = 4 if kind == 3 else 3
            found[kind] = [struct.unpack(f"<{numbers}I", ctypes.string_at(inner, 4 * numbers)) for _, inner in typed]
        self.calls.append(f"compile a graph of {count}")
        if "GRAPH" in self.not_compiled:
            return E_FAIL
        methods = {8: (P, [P], _properties(self.descriptors, self.temporary, self.persistent))}
        made = FakeGraph(inputs, outputs, operators, found[1], found[2], found[3])
        return self._give("IDMLCompiledOperator", iid, out, methods, graph=made, ready=False)

    def _initializer(self, count: int, operators: int, iid: int, out: int) -> int:
        assert count == 1
        compiled = self._get(c_void_p.from_address(operators).value, "IDMLCompiledOperator")
        methods = {8: (P, [P], _properties(self.descriptors + 2, 0, 0))}
        return self._give("IDMLOperatorInitializer", iid, out, methods, compiled=compiled)

    def _table(self, desc: int, iid: int, out: int) -> int:
        own: dict[str, Any] = {}

        def reset(desc: int) -> int:
            dispatchable, cpu, gpu, count = struct.unpack("<QQQI", ctypes.string_at(desc, 28))
            heap = self._get(cpu - 1, "ID3D12DescriptorHeap")
            assert gpu == cpu + 1
            assert not heap.state["busy"], "its descriptors are in use"
            needed = self.descriptors + 2 * (self.objects[dispatchable].name == "IDMLOperatorInitializer")
            assert needed <= count <= heap.state["count"]
            own.clear()
            own.update(of=self.objects[dispatchable], heap=heap)
            return 0

        def array(inner: int) -> list[tuple[FakeObject, int] | None]:
            count, entries = struct.unpack("<I4xQ", ctypes.string_at(inner, 16))
            found: list[tuple[FakeObject, int] | None] = []
            for index in range(count):
                address, offset, size = struct.unpack("<QQQ", ctypes.string_at(entries + 24 * index, 24))
                assert offset == 0
                found.append((self._get(address, "ID3D12Resource"), size) if address else None)
            return found

        def buffer(desc: int) -> tuple[FakeObject, int] | None:
            kind, inner = struct.unpack("<i4xQ", ctypes.string_at(desc, 16))
            if kind == 0:
                return None
            address, offset, size = struct.unpack("<QQQ", ctypes.string_at(inner, 24))
            assert (kind, offset) == (1, 0)
            resource = self._get(address, "ID3D12Resource")
            assert size <= len(resource.state["memory"])
            assert size % 4 == 0
            return resource, size

        def counted(name: str) -> Callable[[int, int], None]:
            def call(count: int, descs: int) -> None:
                kind, inner = struct.unpack("<i4xQ", ctypes.string_at(descs, 16))
                if kind == 2:
                    assert (name, count, own["of"].name) == ("inputs", 1, "IDMLOperatorInitializer")
                    own[name] = array(inner)
                    return
                own[name] = [buffer(descs + 16 * index) for index in range(count)]

            return call

        def single(name: str) -> Callable[[int], None]:
            return lambda desc: own.update({name: [buffer(desc)]})

        reset(desc)
        methods = {
            8: (None, [U32, P], counted("inputs")), 9: (None, [U32, P], counted("outputs")),
            10: (None, [P], single("temporary")), 11: (None, [P], single("persistent")), 12: (I32, [P], reset),
        }  # fmt: skip
        return self._give("IDMLBindingTable", iid, out, methods, bound=own)

    def _recorder(self, iid: int, out: int) -> int:
        def record(commands: int, dispatchable: int, table: int) -> None:
            own, what = self._get(commands, "ID3D12GraphicsCommandList").state, self.objects[dispatchable]
            bound = dict(self._get(table, "IDMLBindingTable").state["bound"])
            assert own["heap"] is bound.pop("heap")
            assert not own["closed"]
            assert bound.pop("of") is what
            own["touched"] += [one[0] for buffers in bound.values() for one in buffers if one]
            own["commands"].append(lambda: self._dispatch(what, bound))

        return self._give("IDMLCommandRecorder", iid, out, {8: (None, [P, P, P], record)})

    def _dispatch(self, what: FakeObject, bound: dict[str, list[tuple[FakeObject, int] | None]]) -> None:
        assert what.alive, f"{what.name} was released before the queue had used it"
        for buffers in bound.values():
            for one in filter(None, buffers):
                assert one[0].alive, "a buffer was released before the queue had used it"
                self._use(one[0], UNORDERED_ACCESS)
        if what.name == "IDMLOperatorInitializer":
            outputs = {"outputs"} if self.persistent else set[str]()
            assert bound.keys() - {"inputs"} == outputs, "persistent: its only output"
            if "inputs" in bound:
                given = [None if one is None else bytes(_memory(one))[: one[1]] for one in bound["inputs"]]
                what.state["compiled"].state["graph"].owned = given
            what.state["compiled"].state["ready"] = True
            if self.persistent:
                _memory(bound["outputs"][0])[0] = b"k"
            return
        self.dispatches_left -= 1
        if self.removed:
            self.messages += [self.said.encode() + b"\0"] if self.said else []
            return
        assert what.state["ready"], "it was not initialized"
        wanted = {name for name in ("persistent", "temporary") if getattr(self, name)}
        if "graph" in what.state:
            self._dispatch_graph(what.state["graph"], bound, wanted)
            return
        desc: dml.OperatorDesc = what.state["desc"]
        self.calls.append(f"dispatch {desc.operator_type}")
        assert bound.keys() - {"inputs"} == {"outputs"} | wanted
        if self.persistent:
            assert _memory(bound["persistent"][0])[0] == b"k", "what the initializer wrote"
        for kind in ("input", "output"):
            sizes: list[int | None] = []
            for name in desc.fields_of_kind(kind):
                value: Any = getattr(desc, name)
                sizes += [
                    one and one.total_tensor_size_in_bytes for one in (value if isinstance(value, tuple) else [value])
                ]
            assert [one and one[1] for one in bound.get(f"{kind}s", [])] == sizes, f"what is bound as {kind}s"
        plan = make_plan(desc, 1 << 20)
        given = [bytes(_memory(one))[: one[1]] for one in bound.get("inputs", []) if one]
        self.bound += given
        run = NumpyBackend().start(plan, [memoryview(data) for data in given])
        places = [one for one in bound["outputs"] if one]
        self.overwritten += [bytes(_memory(one))[: one[1]] for one in places]
        for index, piece in enumerate(plan.slices):
            answer = bytes(run.compute(index))
            if self.ties_go_down and "RESAMPLE" in desc.operator_type and len(answer) == 8:
                answer = struct.pack("<2f", 0, 2)
            ctypes.memmove(ctypes.addressof(_memory(places[piece.output])) + piece.begin, answer, len(answer))

    def _dispatch_graph(
        self, graph: FakeGraph, bound: dict[str, list[tuple[FakeObject, int] | None]], wanted: set[str]
    ) -> None:
        self.calls.append(f"dispatch a graph of {len(graph.operators)}")
        assert bound.keys() - {"inputs"} == {"outputs"} | wanted
        given = [None if one is None else bytes(_memory(one))[: one[1]] for one in bound.get("inputs", [])]
        assert len(given) in (0, graph.inputs)
        assert len(bound["outputs"]) == graph.outputs
        for place, constant in enumerate(graph.owned):
            assert constant is None or given[place] is None, "it was bound when the graph was initialized"
            given[place] = given[place] if constant is None else constant
        for place, answer in enumerate(graph.computed(given)):
            target = bound["outputs"][place]
            assert target is not None
            assert target[1] == len(answer)
            ctypes.memmove(ctypes.addressof(_memory(target)), answer, len(answer))


@dataclass
class FakeGraph:
    """A graph as its structs said it; computed by NumPy, node by node.

    Attributes:
        inputs: how many there are.
        outputs: how many there are.
        operators: the descriptors of the nodes.
        into: input edges.
        out: output edges.
        between: intermediate edges.
        owned: what it was initialized with, by input.
    """

    inputs: int
    outputs: int
    operators: list[dml.OperatorDesc]
    into: list[tuple[int, ...]]
    out: list[tuple[int, ...]]
    between: list[tuple[int, ...]]
    owned: list[bytes | None] = field(default_factory=list[bytes | None])

    def computed(self, given: list[bytes | None]) -> list[bytes]:
        """The bytes of the outputs."""
        made: dict[tuple[int, int], bytes] = {}
        left = [*range(len(self.operators))]
        while left:
            for number in left:
                sources = {at: given[index] for index, node, at in self.into if node == number}
                ready = [(of, place, at) for of, place, node, at in self.between if node == number]
                if all((of, place) in made for of, place, _ in ready):
                    sources |= {at: made[of, place] for of, place, at in ready}
                    break
            else:
                raise AssertionError("nodes read each other in a circle")
            left.remove(number)
            desc = self.operators[number]
            blocks = [sources[at] for at in sorted(sources)]
            plan = make_plan(desc, 1 << 30)
            run = NumpyBackend().start(plan, [memoryview(block or b"") for block in blocks])
            there = [at for at, each in enumerate(positions(desc, "output")) if each.tensor is not None]
            found = {at: bytearray() for at in there}
            for index, piece in enumerate(plan.slices):
                found[there[piece.output]] += run.compute(index)
            for at, tensor in zip(there, [tensor for _, tensor in desc.tensors("output")], strict=True):
                made[number, at] = bytes(found[at]).ljust(tensor.total_tensor_size_in_bytes, b"\0")
        by_output = {index: made[node, place] for node, place, index in self.out}
        return [by_output[index] for index in range(self.outputs)]


def _typed(address: int, count: int) -> list[tuple[int, int]]:
    return [struct.unpack("<i4xQ", ctypes.string_at(address + 16 * index, 16)) for index in range(count)]


def _memory(bound: tuple[FakeObject, int] | None) -> Any:
    assert bound is not None
    return bound[0].state["memory"]


def _properties(*numbers: int) -> Callable[[int], int]:
    def give(result: int) -> int:
        ctypes.memmove(result, struct.pack("<I4xQQ", *numbers), 24)
        return result

    return give


def _tensor(address: int) -> dml.BufferTensorDesc:
    kind, inner = struct.unpack("<i4xQ", ctypes.string_at(address, 16))
    layout = struct.unpack("<iiI4xQQQI4x", ctypes.string_at(inner, 48))
    data_type, flags, count, sizes, strides, total, alignment = layout
    assert (kind, flags & ~1, alignment) == (1, 0, 0)
    return dml.BufferTensorDesc(
        data_type=data_type, sizes=_numbers(sizes, count, "I"),
        strides=_numbers(strides, count, "I") if strides else None, total_tensor_size_in_bytes=total,
    )  # fmt: skip


def _numbers(address: int, count: int, code: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{count}{code}", ctypes.string_at(address, 4 * count))


_CODES = {"UINT": "I", "INT": "i", "BOOL": "i", "FLOAT": "f", "SIZE_2D": "II", "SCALAR_UNION": "Q"}


def _descriptor(facts: OperatorFacts, address: int) -> dml.OperatorDesc:
    """The operator's fields out of its struct; an array has as many entries as the last count before it says."""
    fields: dict[str, Any] = {}
    offset = count = 0
    for one in facts.fields:
        code = _CODES.get(one.type, "Q")
        step = 8 if code == "Q" else 4
        offset += -offset % step
        value = struct.unpack("<" + code, ctypes.string_at(address + offset, struct.calcsize("<" + code)))
        offset += struct.calcsize("<" + code)
        (first, *_) = value
        if one.type == "SIZE_2D":
            fields[one.attribute_name] = {"Width": value[0], "Height": value[1]}
        elif code == "Q" and not first:
            continue
        elif one.type == "TENSOR_DESC":
            fields[one.attribute_name] = _tensor(first)
        elif one.type == "TENSOR_DESC_ARRAY":
            fields[one.attribute_name] = [_tensor(first + 16 * index) for index in range(count)]
        elif one.is_array:
            fields[one.attribute_name] = _numbers(first, count, _CODES[one.type.removesuffix("_ARRAY")])
        else:
            fields[one.attribute_name] = bool(first) if one.type == "BOOL" else first
            count = first if one.name.endswith("Count") else count
    return operator_class(facts.name)(**fields)
