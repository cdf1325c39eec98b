"""DXGI, Direct3D 12 and DirectML as COM objects in Python: called through tables of functions, as the real ones are.

Structs are taken apart with `struct` by the layouts of Microsoft's headers, not with the classes under test. Operators
are made into descriptors of `tensorpost.descriptors`, so what those forbid is refused with E_INVALIDARG, and are
computed by the backend numpy.
"""

from __future__ import annotations

import ctypes
import struct
import uuid
from collections.abc import Callable
from ctypes import c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any

from tensorpost import descriptors as dml
from tensorpost.problems import TensorpostError
from tensorpost_server.backends.directml.raw import Libraries
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import make_plan

__all__ = ["FakeWindows"]

E_INVALIDARG = -0x7FF8FFA9  # 0x80070057
IDS = {
    "IDXGIFactory1": "770aae78-f26f-4dba-a829-253c83d1b387", "ID3D12Device": "189819f1-1db6-4b57-be54-1821339b85f7",
    "ID3D12CommandQueue": "0ec870a6-5d7e-4c22-8cfc-5baae07616ed",
    "ID3D12CommandAllocator": "6102dee4-af59-4b09-b999-b44d73f09b24",
    "ID3D12GraphicsCommandList": "5b160d0f-ac1b-4185-8ba8-b3ae42a5a455",
    "ID3D12Fence": "0a753dcf-c4d8-4b91-adf6-be5a60d95a76", "ID3D12Resource": "696442be-a72e-4059-bc79-5b5c98040fad",
    "ID3D12DescriptorHeap": "8efb471d-616c-4f49-90f7-127bb763fa51",
    "IDMLDevice": "6dbd6437-96fd-423f-a98c-ae5e7c2a573f", "IDMLOperator": "26caae7a-3081-4633-9581-226fbe57695d",
    "IDMLCompiledOperator": "6b15e56a-bf5c-4902-92d8-da3a650afea4",
    "IDMLOperatorInitializer": "427c1113-435c-469c-8676-4d5dd072f813",
    "IDMLBindingTable": "29c687dc-de74-4e3b-ab00-1168f2fc3cfc",
    "IDMLCommandRecorder": "e6857a76-2e3e-4fdd-bff4-5d2ba10fb453",
    "IDXGIDevice": "54ec77fa-1377-44e6-8c32-88fd5f44c84c",
}  # fmt: skip
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
class FakeWindows:
    """A machine with one adapter.

    Attributes:
        removed: GetDeviceRemovedReason says so after each run.
        no_device: D3D12CreateDevice fails.
        ties_go_down: nearest takes the lower neighbour.
        persistent: bytes that a compiled operator wants to keep.
        wrong: what was done wrongly; must stay empty.
    """

    removed: bool = False
    no_device: bool = False
    ties_go_down: bool = False
    persistent: int = 0
    wrong: list[str] = field(default_factory=list[str])
    objects: dict[int, FakeObject] = field(default_factory=dict[int, FakeObject])
    released: list[str] = field(default_factory=list[str])

    def libraries(self) -> Libraries:
        make = ctypes.CFUNCTYPE
        return Libraries(
            create_factory=make(I32, P, P)(self.guarded("CreateDXGIFactory1", I32, self._factory)),
            create_device=make(I32, P, I32, P, P)(self.guarded("D3D12CreateDevice", I32, self._device)),
            create_dml_device=make(I32, P, I32, I32, P, P)(self.guarded("DMLCreateDevice1", I32, self._dml)),
        )

    @property
    def alive(self) -> list[str]:
        return [found.name for found in self.objects.values() if found.alive]

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

    def _get(self, address: int, name: str) -> FakeObject:
        found = self.objects[address]
        assert found.name == name, f"{found.name} in place of {name}"
        assert found.alive, f"{name} was released"
        return found

    # -- DXGI and Direct3D --

    def _factory(self, iid: int, out: int) -> int:
        def adapter(index: int, out: int) -> int:
            if index:
                return -0x7785FFFE  # DXGI_ERROR_NOT_FOUND
            methods = {9: (I32, [P, P], driver), 10: (I32, [P], describe)}
            return self._give("IDXGIAdapter1", None, out, methods)

        def driver(iid: int, version: int) -> int:
            assert ctypes.string_at(iid, 16) == uuid.UUID(IDS["IDXGIDevice"]).bytes_le
            ctypes.memmove(version, struct.pack("<4H", 4, 3, 2, 31), 8)
            return 0

        def describe(desc: int) -> int:
            name = "Fake GPU \u00b5".encode("utf-16-le").ljust(256, b"\0")
            ctypes.memmove(desc, name + struct.pack("<4I3QQI4x", 0x10DE, 0x2330, 7, 1, 8 << 30, 0, 1 << 30, 9, 0), 312)
            return 0

        return self._give("IDXGIFactory1", iid, out, {12: (I32, [U32, P], adapter)})

    def _device(self, adapter: int, level: int, iid: int, out: int) -> int:
        self._get(adapter, "IDXGIAdapter1")
        assert level == 0xB000
        if self.no_device:
            return -0x7785FFFC  # DXGI_ERROR_UNSUPPORTED
        return self._give(
            "ID3D12Device", iid, out,
            {
                8: (I32, [P, P, P], self._queue),
                9: (I32, [I32, P, P], self._allocator),
                12: (I32, [U32, I32, P, P, P, P], self._list),
                14: (I32, [P, P, P], self._heap),
                27: (I32, [P, I32, P, I32, P, P, P], self._resource),
                36: (I32, [U64, I32, P, P], self._fence),
            },
        )  # fmt: skip

    def _queue(self, desc: int, iid: int, out: int) -> int:
        assert struct.unpack("<iiiI", ctypes.string_at(desc, 16)) == (0, 0, 0, 0)

        def execute(count: int, lists: int) -> None:
            assert count == 1
            commands = self._get(c_void_p.from_address(lists).value or 0, "ID3D12GraphicsCommandList")
            assert commands.state["closed"]
            for command in commands.state["commands"]:
                command()

        def signal(fence: int, value: int) -> int:
            self._get(fence, "ID3D12Fence").state["value"] = value
            return 0

        methods = {10: (None, [U32, P], execute), 14: (I32, [P, U64], signal)}
        return self._give("ID3D12CommandQueue", iid, out, methods)

    def _allocator(self, kind: int, iid: int, out: int) -> int:
        assert kind == 0, "direct"
        return self._give("ID3D12CommandAllocator", iid, out, {})

    def _list(self, mask: int, kind: int, allocator: int, state: int | None, iid: int, out: int) -> int:
        assert (mask, kind, state) == (0, 0, None)
        self._get(allocator, "ID3D12CommandAllocator")
        own: dict[str, Any] = {"commands": [], "closed": False, "heap": None}

        def close() -> int:
            own["closed"] = True
            return 0

        def set_heaps(count: int, heaps: int) -> None:
            assert count == 1
            own["heap"] = self._get(c_void_p.from_address(heaps).value or 0, "ID3D12DescriptorHeap")

        methods = {9: (I32, [], close), 28: (None, [U32, P], set_heaps)}
        status = self._give("ID3D12GraphicsCommandList", iid, out, methods)
        self.objects[c_void_p.from_address(out).value or 0].state = own
        return status

    def _heap(self, desc: int, iid: int, out: int) -> int:
        kind, count, flags, _ = struct.unpack("<iIiI", ctypes.string_at(desc, 16))
        assert (kind, flags) == (0, 1), "CBV_SRV_UAV, shader visible"

        def handle(of: int) -> Callable[[int], int]:
            def give(result: int) -> int:
                c_uint64.from_address(result).value = of
                return result

            return give

        methods = {9: (P, [P], handle(1000)), 10: (P, [P], handle(2000))}
        return self._give("ID3D12DescriptorHeap", iid, out, methods, count=count)

    def _resource(self, heap: int, flags: int, desc: int, state: int, clear: int | None, iid: int, out: int) -> int:
        assert struct.unpack("<iiiII", ctypes.string_at(heap, 20)) == (4, 3, 1, 0, 0), "custom, write-back, L0"
        fields = struct.unpack("<i4xQQIHHiIIii", ctypes.string_at(desc, 56)[:52])
        size = fields[2]
        assert fields == (1, 0, size, 1, 1, 1, 0, 1, 0, 1, 4), "a buffer with unordered access"
        assert (flags, state, clear) == (0, 8, None)
        assert size % 256 == 0
        memory = ctypes.create_string_buffer(b"\xaa" * size, size)

        def map_(part: int, read: int | None, out: int) -> int:
            assert (part, read) == (0, None)
            c_void_p.from_address(out).value = ctypes.addressof(memory)
            return 0

        def unmap(part: int, written: int | None) -> None:
            assert (part, written) == (0, None)

        methods = {8: (I32, [U32, P, P], map_), 9: (None, [U32, P], unmap)}
        return self._give("ID3D12Resource", iid, out, methods, memory=memory)

    def _fence(self, value: int, flags: int, iid: int, out: int) -> int:
        assert (value, flags) == (0, 0)
        found: list[FakeObject] = []

        def wait(value: int, event: int | None) -> int:
            assert found[0].state["value"] == value, "it would wait for ever"
            assert event is None
            return 0

        status = self._give("ID3D12Fence", iid, out, {9: (I32, [U64, P], wait)}, value=value)
        found.append(self.objects[c_void_p.from_address(out).value or 0])
        return status

    # -- DirectML --

    def _dml(self, device: int, flags: int, level: int, iid: int, out: int) -> int:
        self._get(device, "ID3D12Device")
        assert (flags, level) == (0, 0x1000)
        return self._give(
            "IDMLDevice", iid, out,
            {
                7: (I32, [I32, U32, P, U32, P], self._features),
                8: (I32, [P, P, P], self._operator),
                9: (I32, [P, I32, P, P], self._compile),
                10: (I32, [U32, P, P, P], self._initializer),
                11: (I32, [P, P], self._recorder),
                12: (I32, [P, P, P], self._table),
                15: (I32, [], lambda: -0x7785FFFB if self.removed else 0),
            },
        )  # fmt: skip

    def _features(self, feature: int, query_size: int, query: int, size: int, out: int) -> int:
        assert (feature, query_size, size) == (1, 16, 4)
        count, levels = struct.unpack("<I4xQ", ctypes.string_at(query, 16))
        asked = struct.unpack(f"<{count}I", ctypes.string_at(levels, 4 * count))
        assert 0x6400 in asked
        c_uint32.from_address(out).value = max(level for level in asked if level <= 0x6200)
        return 0

    def _operator(self, desc: int, iid: int, out: int) -> int:
        kind, inner = struct.unpack("<i4xQ", ctypes.string_at(desc, 16))
        try:
            made = _descriptor(kind, inner)
        except TensorpostError:
            return E_INVALIDARG
        return self._give("IDMLOperator", iid, out, {}, desc=made)

    def _compile(self, operator: int, flags: int, iid: int, out: int) -> int:
        assert flags == 0
        desc = self._get(operator, "IDMLOperator").state["desc"]
        methods = {8: (P, [P], _properties(3, 100, self.persistent))}
        return self._give("IDMLCompiledOperator", iid, out, methods, desc=desc, ready=False)

    def _initializer(self, count: int, operators: int, iid: int, out: int) -> int:
        assert count == 1
        compiled = self._get(c_void_p.from_address(operators).value or 0, "IDMLCompiledOperator")
        methods = {8: (P, [P], _properties(5, 0, 0))}
        return self._give("IDMLOperatorInitializer", iid, out, methods, compiled=compiled)

    def _table(self, desc: int, iid: int, out: int) -> int:
        own: dict[str, Any] = {}

        def reset(desc: int) -> int:
            dispatchable, cpu, gpu, count = struct.unpack("<QQQI", ctypes.string_at(desc, 28))
            assert (cpu, gpu, count) == (1000, 2000, 5), "the larger count of the two"
            own.clear()
            own["of"] = self.objects[dispatchable]
            return 0

        def bind(name: str, desc: int) -> None:
            kind, inner = struct.unpack("<i4xQ", ctypes.string_at(desc, 16))
            buffer, offset, size = struct.unpack("<QQQ", ctypes.string_at(inner, 24))
            assert (kind, offset) == (1, 0)
            memory = self._get(buffer, "ID3D12Resource").state["memory"]
            assert size <= len(memory)
            own[name] = (memory, size)

        def counted(name: str) -> Callable[[int, int], None]:
            def call(count: int, desc: int) -> None:
                assert count == 1
                bind(name, desc)

            return call

        reset(desc)
        methods = {
            8: (None, [U32, P], counted("input")), 9: (None, [U32, P], counted("output")),
            10: (None, [P], lambda desc: bind("temporary", desc)),
            11: (None, [P], lambda desc: bind("persistent", desc)), 12: (I32, [P], reset),
        }  # fmt: skip
        return self._give("IDMLBindingTable", iid, out, methods, bound=own)

    def _recorder(self, iid: int, out: int) -> int:
        def record(commands: int, dispatchable: int, table: int) -> None:
            into, what = self._get(commands, "ID3D12GraphicsCommandList"), self.objects[dispatchable]
            assert into.state["heap"] is not None
            assert not into.state["closed"]
            bound = dict(self._get(table, "IDMLBindingTable").state["bound"])
            assert bound.pop("of") is what
            into.state["commands"].append(lambda: self._dispatch(what, bound))

        return self._give("IDMLCommandRecorder", iid, out, {8: (None, [P, P, P], record)})

    def _dispatch(self, what: FakeObject, bound: dict[str, tuple[Any, int]]) -> None:
        if what.name == "IDMLOperatorInitializer":
            kept = {"output"} if self.persistent else set[str]()
            assert bound.keys() == kept, "the persistent buffer is the initializer's output"
            what.state["compiled"].state["ready"] = True
            if self.persistent:
                bound["output"][0][0] = b"k"
            return
        assert what.state["ready"], "it was not initialized"
        assert bound.keys() == {"input", "output", "temporary"} | ({"persistent"} if self.persistent else set[str]())
        if self.persistent:
            assert bound["persistent"][0][0] == b"k", "what the initializer wrote"
        plan = make_plan(what.state["desc"], 1 << 20)
        (source, size), (target, out_size) = bound["input"], bound["output"]
        run = NumpyBackend().start(plan, [memoryview(bytes(source[:size]))])
        answer = bytes(run.compute(0))
        assert len(answer) == out_size
        if self.ties_go_down and "RESAMPLE" in what.state["desc"].operator_type:
            answer = struct.pack("<2f", 0, 2)
        ctypes.memmove(target, answer, len(answer))


def _properties(*numbers: int) -> Callable[[int], int]:
    def give(result: int) -> int:
        ctypes.memmove(result, struct.pack("<I4xQQ", *numbers), 24)
        return result

    return give


def _numbers(address: int, count: int, code: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{count}{code}", ctypes.string_at(address, 4 * count))


def _tensor(address: int) -> dml.BufferTensorDesc:
    kind, inner = struct.unpack("<i4xQ", ctypes.string_at(address, 16))
    layout = struct.unpack("<iiI4xQQQI4x", ctypes.string_at(inner, 48))
    data_type, flags, count, sizes, strides, total, alignment = layout
    assert (kind, data_type, flags, alignment) == (1, 1, 0, 0)
    return dml.BufferTensorDesc(
        data_type="FLOAT32", sizes=_numbers(sizes, count, "I"),
        strides=_numbers(strides, count, "I") if strides else None, total_tensor_size_in_bytes=total,
    )  # fmt: skip


def _descriptor(kind: int, address: int) -> dml.OperatorDesc:
    def fields(layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, ctypes.string_at(address, struct.calcsize(layout)))

    if kind == 70:
        source, target, count, repeats = fields("<QQI4xQ")
        copies = tuple(_numbers(repeats, count, "I"))
        return dml.TileOperatorDesc(input_tensor=_tensor(source), output_tensor=_tensor(target), repeats=copies)
    if kind == 66:
        source, target, width, height, mode = fields("<QQIIi4x")
        return dml.Upsample2DOperatorDesc(
            input_tensor=_tensor(source), output_tensor=_tensor(target), interpolation_mode=mode,
            scale_size={"Width": width, "Height": height},  # pyright: ignore[reportArgumentType] # DirectML's names
        )  # fmt: skip
    if kind == 96:
        source, target, mode, count, scales = fields("<QQiIQ")
        return dml.ResampleOperatorDesc(
            input_tensor=_tensor(source), output_tensor=_tensor(target), interpolation_mode=mode,
            scales=tuple(_numbers(scales, count, "f")),
        )  # fmt: skip
    source, target, mode, count, *arrays = fields("<QQiIQQQ")
    scales, inputs, outputs = (_numbers(array, count, "f") for array in arrays)
    given = {
        "interpolation_mode": mode, "scales": scales, "input_pixel_offsets": inputs, "output_pixel_offsets": outputs,
    }  # fmt: skip
    if kind == 116:
        return dml.Resample1OperatorDesc(input_tensor=_tensor(source), output_tensor=_tensor(target), **given)
    assert kind == 134
    return dml.ResampleGradOperatorDesc(
        input_gradient_tensor=_tensor(source), output_gradient_tensor=_tensor(target), **given
    )
