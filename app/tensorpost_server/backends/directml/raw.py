"""Direct calls to DirectML, as few as the probes need: create an operator, run it on small tensors, read the output.

Plain `ctypes` on Direct3D 12, DXGI and DirectML: a COM object is a pointer to a table of functions. Slots, GUIDs and
structs are those of Microsoft's Win32 metadata. Windows on 64-bit processors only, where a COM method is called like a
C function; a method that returns a struct takes a pointer to it after `this`, which ctypes must be told.

Buffers lie in a custom heap in system memory that the CPU can map, so that no copies and no barriers are needed. That
is slow, and right for a few bytes.
"""

from __future__ import annotations

import ctypes
import struct
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from ctypes import c_int32, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tensorpost.descriptors import OperatorDesc

from .c_structs import OperatorStruct, Struct, TypedDesc, array_of

__all__ = ["Libraries", "RawDevice", "Refused", "open_libraries"]

# Win32 metadata: interface identifiers
IID_FACTORY = "770aae78-f26f-4dba-a829-253c83d1b387"  # IDXGIFactory1
IID_DXGI_DEVICE = "54ec77fa-1377-44e6-8c32-88fd5f44c84c"  # IDXGIDevice
IID_DEVICE = "189819f1-1db6-4b57-be54-1821339b85f7"  # ID3D12Device
IID_QUEUE = "0ec870a6-5d7e-4c22-8cfc-5baae07616ed"  # ID3D12CommandQueue
IID_ALLOCATOR = "6102dee4-af59-4b09-b999-b44d73f09b24"  # ID3D12CommandAllocator
IID_LIST = "5b160d0f-ac1b-4185-8ba8-b3ae42a5a455"  # ID3D12GraphicsCommandList
IID_FENCE = "0a753dcf-c4d8-4b91-adf6-be5a60d95a76"  # ID3D12Fence
IID_RESOURCE = "696442be-a72e-4059-bc79-5b5c98040fad"  # ID3D12Resource
IID_HEAP = "8efb471d-616c-4f49-90f7-127bb763fa51"  # ID3D12DescriptorHeap
IID_DML_DEVICE = "6dbd6437-96fd-423f-a98c-ae5e7c2a573f"  # IDMLDevice
IID_DML_OPERATOR = "26caae7a-3081-4633-9581-226fbe57695d"  # IDMLOperator
IID_DML_COMPILED = "6b15e56a-bf5c-4902-92d8-da3a650afea4"  # IDMLCompiledOperator
IID_DML_INITIALIZER = "427c1113-435c-469c-8676-4d5dd072f813"  # IDMLOperatorInitializer
IID_DML_TABLE = "29c687dc-de74-4e3b-ab00-1168f2fc3cfc"  # IDMLBindingTable
IID_DML_RECORDER = "e6857a76-2e3e-4fdd-bff4-5d2ba10fb453"  # IDMLCommandRecorder

LOWEST_D3D = 0xB000  # D3D_FEATURE_LEVEL_11_0
LOWEST_DML = 0x1000  # DML_FEATURE_LEVEL_1_0
LEVELS = (0x6400, 0x6300, 0x6200, 0x6100, 0x6000, 0x5200, 0x5100, 0x5000, 0x4100, 0x4000, 0x3100, 0x3000, 0x2100,
          0x2000, 0x1000)  # fmt: skip # DML_FEATURE_LEVEL
FEATURE_LEVELS = 1  # DML_FEATURE_FEATURE_LEVELS
COMMANDS = 0  # D3D12_COMMAND_LIST_TYPE_DIRECT
UNORDERED_ACCESS = 8  # D3D12_RESOURCE_STATE_UNORDERED_ACCESS
BUFFER_ALIGNMENT = 256  # DML_TEMPORARY_BUFFER_ALIGNMENT and DML_PERSISTENT_BUFFER_ALIGNMENT


class BindingProperties(Struct):
    """DML_BINDING_PROPERTIES."""

    _fields_ = (("RequiredDescriptorCount", c_uint32), ("TemporaryResourceSize", c_uint64),
                ("PersistentResourceSize", c_uint64))  # fmt: skip


class BufferBinding(Struct):
    """DML_BUFFER_BINDING."""

    _fields_ = (("Buffer", c_void_p), ("Offset", c_uint64), ("SizeInBytes", c_uint64))


class BindingTableDesc(Struct):
    """DML_BINDING_TABLE_DESC."""

    _fields_ = (("Dispatchable", c_void_p), ("CPUDescriptorHandle", c_uint64), ("GPUDescriptorHandle", c_uint64),
                ("SizeInDescriptors", c_uint32))  # fmt: skip


class LevelsQuery(Struct):
    """DML_FEATURE_QUERY_FEATURE_LEVELS."""

    _fields_ = (("RequestedFeatureLevelCount", c_uint32), ("RequestedFeatureLevels", c_void_p))


class HeapProperties(Struct):
    """D3D12_HEAP_PROPERTIES."""

    _fields_ = (("Type", c_int32), ("CPUPageProperty", c_int32), ("MemoryPoolPreference", c_int32),
                ("CreationNodeMask", c_uint32), ("VisibleNodeMask", c_uint32))  # fmt: skip


class ResourceDesc(Struct):
    """D3D12_RESOURCE_DESC."""

    _fields_ = (
        ("Dimension", c_int32), ("Alignment", c_uint64), ("Width", c_uint64), ("Height", c_uint32),
        ("DepthOrArraySize", c_uint16), ("MipLevels", c_uint16), ("Format", c_int32), ("SampleCount", c_uint32),
        ("SampleQuality", c_uint32), ("Layout", c_int32), ("Flags", c_int32),
    )  # fmt: skip


class DescriptorHeapDesc(Struct):
    """D3D12_DESCRIPTOR_HEAP_DESC."""

    _fields_ = (("Type", c_int32), ("NumDescriptors", c_uint32), ("Flags", c_int32), ("NodeMask", c_uint32))


class QueueDesc(Struct):
    """D3D12_COMMAND_QUEUE_DESC."""

    _fields_ = (("Type", c_int32), ("Priority", c_int32), ("Flags", c_int32), ("NodeMask", c_uint32))


class AdapterDesc(Struct):
    """DXGI_ADAPTER_DESC1."""

    _fields_ = (
        ("Description", c_uint16 * 128), ("VendorId", c_uint32), ("DeviceId", c_uint32), ("SubSysId", c_uint32),
        ("Revision", c_uint32), ("DedicatedVideoMemory", c_size_t), ("DedicatedSystemMemory", c_size_t),
        ("SharedSystemMemory", c_size_t), ("AdapterLuid", c_uint64), ("Flags", c_uint32),
    )  # fmt: skip


class Refused(RuntimeError):
    """A call that returned an error.

    Attributes:
        code: the HRESULT as an unsigned number.
    """

    def __init__(self, what: str, code: int) -> None:
        self.code = code & 0xFFFFFFFF
        super().__init__(f"{what} returned 0x{self.code:08X}")


@dataclass(frozen=True, slots=True)
class Libraries:
    """The three exported functions that create the first objects, as ctypes functions that return an HRESULT."""

    create_factory: Any
    create_device: Any
    create_dml_device: Any


def open_libraries(directml: Path | None) -> Libraries:
    """Load the system's DXGI and Direct3D 12, and DirectML from a file or, without one, the system's.

    Raises:
        OSError: not Windows, or a library is missing.
    """
    load = getattr(ctypes, "WinDLL", None)
    if load is None or ctypes.sizeof(c_void_p) != 8:
        raise OSError("DirectML itself can be asked on 64-bit Windows only")
    return Libraries(
        create_factory=load("dxgi.dll").CreateDXGIFactory1,
        create_device=load("d3d12.dll").D3D12CreateDevice,
        # By its full path: one process should use one DirectML, and ONNX Runtime's own comes first.
        create_dml_device=load(str(directml) if directml else "DirectML.dll").DMLCreateDevice1,
    )


class _Com:
    """A COM object."""

    def __init__(self, address: int | None) -> None:
        self.address = address or 0

    def call(self, slot: int, result: Any, *arguments: Any) -> Any:
        """Call a method by its place in the table; arguments are ctypes values."""
        table = c_void_p.from_address(self.address).value or 0
        function = c_void_p.from_address(table + slot * ctypes.sizeof(c_void_p)).value or 0
        prototype = ctypes.CFUNCTYPE(result, c_void_p, *map(type, arguments))
        return prototype(function)(self.address, *arguments)

    def check(self, slot: int, what: str, *arguments: Any) -> None:
        """Call a method that returns an HRESULT.

        Raises:
            Refused: it is an error.
        """
        code: int = self.call(slot, c_int32, *arguments)
        if code < 0:
            raise Refused(what, code)

    @property
    def at(self) -> c_void_p:
        return c_void_p(self.address)


class RawDevice:
    """One adapter with its Direct3D and DirectML devices. Use it as a context manager.

    Args:
        libraries: the loaded functions of DXGI, Direct3D 12 and DirectML.
        adapter: DXGI's index.

    Raises:
        Refused: there is no such adapter, or a device cannot be created.
    """

    def __init__(self, libraries: Libraries, adapter: int = 0) -> None:
        self._scope = ExitStack()
        with ExitStack() as unless_opened:
            unless_opened.callback(self._scope.close)
            factory = self._out("CreateDXGIFactory1", libraries.create_factory, _guid(IID_FACTORY).at)
            self._adapter = self._made(factory, 12, "EnumAdapters1", c_uint32(adapter))
            self._device = self._out(
                "D3D12CreateDevice",
                libraries.create_device,
                self._adapter.at,
                c_int32(LOWEST_D3D),
                _guid(IID_DEVICE).at,
            )
            self._dml = self._out(
                "DMLCreateDevice1", libraries.create_dml_device, self._device.at, c_int32(0), c_int32(LOWEST_DML),
                _guid(IID_DML_DEVICE).at,
            )  # fmt: skip
            unless_opened.pop_all()

    def __enter__(self) -> RawDevice:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._scope.close()

    def facts(self) -> dict[str, object]:
        """The adapter's name, numbers, memory and driver, and the highest DirectML level."""
        desc, driver = AdapterDesc(), c_int64()
        self._adapter.check(10, "GetDesc1", desc.at)
        facts: dict[str, object] = {
            "description": bytes(desc.Description).decode("utf-16-le", "replace").partition("\0")[0],
            "vendor_id": f"0x{desc.VendorId:04X}",
            "device_id": f"0x{desc.DeviceId:04X}",
            "revision": desc.Revision,
            "dedicated_video_memory_bytes": desc.DedicatedVideoMemory,
            "shared_system_memory_bytes": desc.SharedSystemMemory,
        }
        try:
            self._adapter.check(9, "CheckInterfaceSupport", _guid(IID_DXGI_DEVICE).at, _at(driver))
            numbers = struct.unpack("<4H", struct.pack("<q", driver.value))
            facts["driver_version"] = ".".join(map(str, reversed(numbers)))
        except Refused as refused:
            facts["driver_version"] = f"not told: {refused}"
        level = self._highest_level()
        facts["feature_level"] = f"{level >> 12}_{level >> 8 & 0xF}"
        return facts

    def _highest_level(self) -> int:
        levels, found = array_of(c_uint32, LEVELS), c_uint32()
        query = LevelsQuery(len(LEVELS), ctypes.addressof(levels))
        self._dml.check(
            7, "CheckFeatureSupport", c_int32(FEATURE_LEVELS), c_uint32(ctypes.sizeof(query)), query.at,
            c_uint32(ctypes.sizeof(found)), _at(found),
        )  # fmt: skip
        return found.value

    def binding_properties(self, operator: OperatorDesc) -> dict[str, int]:
        """The binding properties of the compiled operator: descriptors, temporary and persistent bytes.

        Raises:
            Refused: DirectML does not create or compile it.
        """
        return _properties(self._compiled(operator))

    def create(self, operator: OperatorDesc) -> None:
        """Create the operator and release it.

        Raises:
            Refused: DirectML does not create it.
        """
        self._operator(operator)

    def run(self, operator: OperatorDesc, values: Sequence[float], count: int) -> list[float]:
        """Run the operator on FLOAT32 numbers.

        Args:
            operator: of one input and one output.
            values: the input's elements.
            count: the output's elements.

        Raises:
            Refused: a call fails, or GetDeviceRemovedReason says afterwards that the device was removed.
        """
        with ExitStack() as scope:
            keep, self._scope = self._scope, scope
            try:
                return self._run(self._compiled(operator), values, count)
            finally:
                self._scope = keep

    # -- one run, step by step: Direct3D's and DirectML's objects are released in reverse order at its end --

    def _run(self, compiled: _Com, values: Sequence[float], count: int) -> list[float]:
        pointers = array_of(c_void_p, [compiled.address])
        initializer = self._made(
            self._dml, 10, "CreateOperatorInitializer", c_uint32(1), _at(pointers), iid=IID_DML_INITIALIZER
        )
        needs, first = _properties(compiled), _properties(initializer)
        descriptors = max(needs["RequiredDescriptorCount"], first["RequiredDescriptorCount"], 1)
        heap_desc = DescriptorHeapDesc(Type=0, NumDescriptors=descriptors, Flags=1)  # CBV_SRV_UAV, shader visible
        heap = self._made(self._device, 14, "CreateDescriptorHeap", heap_desc.at, iid=IID_HEAP)
        handles: list[int] = []
        for slot in (9, 10):  # GetCPUDescriptorHandleForHeapStart, GetGPUDescriptorHandleForHeapStart
            handle = c_uint64()
            heap.call(slot, c_void_p, _at(handle))
            handles.append(handle.value)
        table_desc = BindingTableDesc(initializer.address, *handles, descriptors)
        table = self._made(self._dml, 12, "CreateBindingTable", table_desc.at, iid=IID_DML_TABLE)
        recorder = self._made(self._dml, 11, "CreateCommandRecorder", iid=IID_DML_RECORDER)
        temporary = self._buffer(max(needs["TemporaryResourceSize"], first["TemporaryResourceSize"]))
        persistent = self._buffer(needs["PersistentResourceSize"])
        source, target = self._buffer(4 * len(values)), self._buffer(4 * count)
        self._write(source, values)

        # The operator's persistent buffer is an output of its initializer.
        if first["TemporaryResourceSize"]:
            self._bind(table, 10, temporary, first["TemporaryResourceSize"])
        if needs["PersistentResourceSize"]:
            self._bind(table, 9, persistent, needs["PersistentResourceSize"], counted=True)
        self._dispatch(recorder, initializer, table, heap)

        table_desc.Dispatchable = compiled.address
        table.check(12, "IDMLBindingTable.Reset", table_desc.at)
        if needs["TemporaryResourceSize"]:
            self._bind(table, 10, temporary, needs["TemporaryResourceSize"])
        if needs["PersistentResourceSize"]:
            self._bind(table, 11, persistent, needs["PersistentResourceSize"])
        self._bind(table, 8, source, 4 * len(values), counted=True)
        self._bind(table, 9, target, 4 * count, counted=True)
        self._dispatch(recorder, compiled, table, heap)
        # Wrong arguments of a method that returns nothing remove the device; only this call reports it.
        self._dml.check(15, "GetDeviceRemovedReason")
        return self._read(target, count)

    def _operator(self, operator: OperatorDesc) -> _Com:
        struct = OperatorStruct.of(operator)
        return self._made(self._dml, 8, f"CreateOperator({struct.name})", struct.desc.at, iid=IID_DML_OPERATOR)

    def _compiled(self, operator: OperatorDesc) -> _Com:
        made = self._operator(operator)
        return self._made(self._dml, 9, f"CompileOperator({operator.name})", made.at, c_int32(0), iid=IID_DML_COMPILED)

    def _bind(self, table: _Com, slot: int, buffer: _Com, size: int, *, counted: bool = False) -> None:
        """Bind one buffer; inputs and outputs come with their count."""
        inner = BufferBinding(buffer.address, 0, size)
        outer = TypedDesc(1, inner.at)  # DML_BINDING_TYPE_BUFFER
        table.call(slot, None, *([c_uint32(1)] if counted else []), outer.at)

    def _dispatch(self, recorder: _Com, what: _Com, table: _Com, heap: _Com) -> None:
        """Record, submit, wait."""
        queue_desc = QueueDesc(Type=COMMANDS)
        queue = self._made(self._device, 8, "CreateCommandQueue", queue_desc.at, iid=IID_QUEUE)
        allocator = self._made(self._device, 9, "CreateCommandAllocator", c_int32(COMMANDS), iid=IID_ALLOCATOR)
        commands = self._made(
            self._device,
            12,
            "CreateCommandList",
            c_uint32(0),
            c_int32(COMMANDS),
            allocator.at,
            c_void_p(),
            iid=IID_LIST,
        )
        fence = self._made(self._device, 36, "CreateFence", c_uint64(0), c_int32(0), iid=IID_FENCE)
        heaps, lists = array_of(c_void_p, [heap.address]), array_of(c_void_p, [commands.address])
        commands.call(28, None, c_uint32(1), _at(heaps))  # SetDescriptorHeaps
        recorder.call(8, None, commands.at, what.at, table.at)  # RecordDispatch
        commands.check(9, "ID3D12GraphicsCommandList.Close")
        queue.call(10, None, c_uint32(1), _at(lists))  # ExecuteCommandLists
        queue.check(14, "ID3D12CommandQueue.Signal", fence.at, c_uint64(1))
        fence.check(9, "SetEventOnCompletion", c_uint64(1), c_void_p())  # without an event it waits

    def _buffer(self, size: int) -> _Com:
        properties = HeapProperties(Type=4, CPUPageProperty=3, MemoryPoolPreference=1)  # CUSTOM, WRITE_BACK, L0
        size = max(BUFFER_ALIGNMENT, -(-size // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT)
        desc = ResourceDesc(  # a buffer, row-major, that shaders may write to
            Dimension=1, Width=size, Height=1, DepthOrArraySize=1, MipLevels=1, SampleCount=1, Layout=1, Flags=4,
        )  # fmt: skip
        return self._made(
            self._device, 27, "CreateCommittedResource", properties.at, c_int32(0), desc.at, c_int32(UNORDERED_ACCESS),
            c_void_p(), iid=IID_RESOURCE,
        )  # fmt: skip

    def _mapped(self, buffer: _Com) -> int:
        address = c_void_p()
        buffer.check(8, "ID3D12Resource.Map", c_uint32(0), c_void_p(), _at(address))
        return address.value or 0

    def _write(self, buffer: _Com, values: Sequence[float]) -> None:
        content = struct.pack(f"<{len(values)}f", *values)
        ctypes.memmove(self._mapped(buffer), content, len(content))
        buffer.call(9, None, c_uint32(0), c_void_p())  # Unmap

    def _read(self, buffer: _Com, count: int) -> list[float]:
        content = ctypes.string_at(self._mapped(buffer), 4 * count)
        buffer.call(9, None, c_uint32(0), c_void_p())  # Unmap
        return list(struct.unpack(f"<{count}f", content))

    # -- objects --

    def _made(self, maker: _Com, slot: int, what: str, *arguments: Any, iid: str | None = None) -> _Com:
        """The object that a method creates; its last arguments are the interface identifier, if any, and the result."""
        address = c_void_p()
        identifier = None if iid is None else _guid(iid)
        last = [] if identifier is None else [identifier.at]
        maker.check(slot, what, *arguments, *last, _at(address))
        return self._owned(address)

    def _out(self, what: str, function: Any, *arguments: Any) -> _Com:
        address = c_void_p()
        code = int(function(*arguments, _at(address)))
        if code < 0 or code > 0x7FFFFFFF:
            raise Refused(what, code)
        return self._owned(address)

    def _owned(self, address: c_void_p) -> _Com:
        made = _Com(address.value)
        self._scope.callback(made.call, 2, c_uint32)  # IUnknown.Release
        return made


def _properties(dispatchable: _Com) -> dict[str, int]:
    """IDMLDispatchable.GetBindingProperties, which returns a struct: its address follows `this`."""
    found = BindingProperties()
    dispatchable.call(8, c_void_p, found.at)
    return {name: int(getattr(found, name)) for name, *_ in BindingProperties._fields_}


class _Guid(Struct):
    _fields_ = (("bytes", ctypes.c_uint8 * 16),)


_GUIDS: dict[str, _Guid] = {}


def _guid(text: str) -> _Guid:
    """The identifier in memory that stays: only its address is passed on."""
    return _GUIDS.setdefault(text, _Guid.from_buffer_copy(uuid.UUID(text).bytes_le))


def _at(value: Any) -> c_void_p:
    return c_void_p(ctypes.addressof(value))
