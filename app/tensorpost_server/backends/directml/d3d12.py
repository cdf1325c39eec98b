"""Interfaces, methods, structs and constants of DXGI, Direct3D 12 and DirectML, as far as they are used here.

Identifiers, places in the tables and layouts are those of Microsoft's Win32 metadata and of `DirectML.h`.
"""

from __future__ import annotations

from ctypes import c_int32, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p

from .c_structs import Struct

# Interface identifiers
IID_FACTORY = "770aae78-f26f-4dba-a829-253c83d1b387"  # IDXGIFactory1
IID_DXGI_DEVICE = "54ec77fa-1377-44e6-8c32-88fd5f44c84c"  # IDXGIDevice
IID_DEBUG = "344488b7-6846-474b-b989-f027448245e0"  # ID3D12Debug
IID_INFO_QUEUE = "0742a90b-c387-483f-b946-30a7e4e61458"  # ID3D12InfoQueue
IID_DEVICE = "189819f1-1db6-4b57-be54-1821339b85f7"  # ID3D12Device
IID_QUEUE = "0ec870a6-5d7e-4c22-8cfc-5baae07616ed"  # ID3D12CommandQueue
IID_ALLOCATOR = "6102dee4-af59-4b09-b999-b44d73f09b24"  # ID3D12CommandAllocator
IID_LIST = "5b160d0f-ac1b-4185-8ba8-b3ae42a5a455"  # ID3D12GraphicsCommandList
IID_FENCE = "0a753dcf-c4d8-4b91-adf6-be5a60d95a76"  # ID3D12Fence
IID_RESOURCE = "696442be-a72e-4059-bc79-5b5c98040fad"  # ID3D12Resource
IID_HEAP = "8efb471d-616c-4f49-90f7-127bb763fa51"  # ID3D12DescriptorHeap
IID_DML_DEVICE = "6dbd6437-96fd-423f-a98c-ae5e7c2a573f"  # IDMLDevice
IID_DML_DEVICE1 = "a0884f9a-d2be-4355-aa5d-5901281ad1d2"  # IDMLDevice1
IID_DML_OPERATOR = "26caae7a-3081-4633-9581-226fbe57695d"  # IDMLOperator
IID_DML_COMPILED = "6b15e56a-bf5c-4902-92d8-da3a650afea4"  # IDMLCompiledOperator
IID_DML_INITIALIZER = "427c1113-435c-469c-8676-4d5dd072f813"  # IDMLOperatorInitializer
IID_DML_TABLE = "29c687dc-de74-4e3b-ab00-1168f2fc3cfc"  # IDMLBindingTable
IID_DML_RECORDER = "e6857a76-2e3e-4fdd-bff4-5d2ba10fb453"  # IDMLCommandRecorder

# Places of methods in their tables
FACTORY_ENUM_ADAPTERS = 12
ADAPTER_CHECK_INTERFACE, ADAPTER_GET_DESC = 9, 10
DEBUG_ENABLE = 3
INFO_CLEAR, INFO_GET, INFO_COUNT = 4, 5, 8
DEVICE_QUEUE, DEVICE_ALLOCATOR, DEVICE_LIST, DEVICE_HEAP = 8, 9, 12, 14
DEVICE_RESOURCE, DEVICE_FENCE, DEVICE_REMOVED_REASON = 27, 36, 37
QUEUE_EXECUTE, QUEUE_SIGNAL = 10, 14
ALLOCATOR_RESET = 8
LIST_CLOSE, LIST_RESET, LIST_COPY, LIST_BARRIER, LIST_SET_HEAPS = 9, 10, 15, 26, 28
FENCE_COMPLETED, FENCE_SET_EVENT = 8, 9
RESOURCE_MAP = 8
HEAP_CPU_START, HEAP_GPU_START = 9, 10
DML_CHECK_FEATURE, DML_CREATE_OPERATOR, DML_COMPILE, DML_INITIALIZER = 7, 8, 9, 10
DML_RECORDER, DML_TABLE, DML_REMOVED_REASON, DML_COMPILE_GRAPH = 11, 12, 15, 17
DISPATCHABLE_PROPERTIES = 8
TABLE_INPUTS, TABLE_OUTPUTS, TABLE_TEMPORARY, TABLE_PERSISTENT, TABLE_RESET = 8, 9, 10, 11, 12
RECORDER_DISPATCH = 8
QUERY_INTERFACE = 0

# Constants
SOFTWARE_ADAPTER = 2  # DXGI_ADAPTER_FLAG_SOFTWARE
LOWEST_D3D = 0xB000  # D3D_FEATURE_LEVEL_11_0
LOWEST_DML = 0x1000  # DML_FEATURE_LEVEL_1_0
DML_DEBUG = 1  # DML_CREATE_DEVICE_FLAG_DEBUG
FEATURE_DATA_TYPE, FEATURE_LEVELS = 0, 1  # DML_FEATURE
DIRECT = 0  # D3D12_COMMAND_LIST_TYPE_DIRECT
NO_TIMEOUT = 1  # D3D12_COMMAND_QUEUE_FLAG_DISABLE_GPU_TIMEOUT
HEAP_DEFAULT, HEAP_UPLOAD, HEAP_READBACK = 1, 2, 3  # D3D12_HEAP_TYPE
STATE_COMMON, STATE_UNORDERED_ACCESS = 0, 8  # D3D12_RESOURCE_STATES
STATE_COPY_TARGET, STATE_GENERIC_READ = 0x400, 0xAC3
ALLOW_UNORDERED_ACCESS = 4  # D3D12_RESOURCE_FLAG_ALLOW_UNORDERED_ACCESS
BINDING_NONE, BINDING_BUFFER, BINDING_BUFFER_ARRAY = 0, 1, 2  # DML_BINDING_TYPE

# HRESULTs
E_INVALIDARG, E_OUTOFMEMORY = 0x80070057, 0x8007000E
DXGI_ERROR_NOT_FOUND, DXGI_ERROR_UNSUPPORTED = 0x887A0002, 0x887A0004
DEVICE_HUNG = 0x887A0006
LOST = {
    0x887A0005: "DXGI_ERROR_DEVICE_REMOVED",
    DEVICE_HUNG: "DXGI_ERROR_DEVICE_HUNG",
    0x887A0007: "DXGI_ERROR_DEVICE_RESET",
    0x887A0020: "DXGI_ERROR_DRIVER_INTERNAL_ERROR",
}


class BindingProperties(Struct):
    """`DML_BINDING_PROPERTIES` as a ctypes structure."""

    _fields_ = (("RequiredDescriptorCount", c_uint32), ("TemporaryResourceSize", c_uint64),
                ("PersistentResourceSize", c_uint64))  # fmt: skip


class BufferBinding(Struct):
    """`DML_BUFFER_BINDING` as a ctypes structure."""

    _fields_ = (("Buffer", c_void_p), ("Offset", c_uint64), ("SizeInBytes", c_uint64))


class BufferArrayBinding(Struct):
    """`DML_BUFFER_ARRAY_BINDING` as a ctypes structure."""

    _fields_ = (("BindingCount", c_uint32), ("Bindings", c_void_p))


class BindingTableDesc(Struct):
    """`DML_BINDING_TABLE_DESC` as a ctypes structure."""

    _fields_ = (("Dispatchable", c_void_p), ("CPUDescriptorHandle", c_uint64), ("GPUDescriptorHandle", c_uint64),
                ("SizeInDescriptors", c_uint32))  # fmt: skip


class LevelsQuery(Struct):
    """`DML_FEATURE_QUERY_FEATURE_LEVELS` as a ctypes structure."""

    _fields_ = (("RequestedFeatureLevelCount", c_uint32), ("RequestedFeatureLevels", c_void_p))


class HeapProperties(Struct):
    """`D3D12_HEAP_PROPERTIES` as a ctypes structure."""

    _fields_ = (("Type", c_int32), ("CPUPageProperty", c_int32), ("MemoryPoolPreference", c_int32),
                ("CreationNodeMask", c_uint32), ("VisibleNodeMask", c_uint32))  # fmt: skip


class ResourceDesc(Struct):
    """`D3D12_RESOURCE_DESC` as a ctypes structure."""

    _fields_ = (
        ("Dimension", c_int32), ("Alignment", c_uint64), ("Width", c_uint64), ("Height", c_uint32),
        ("DepthOrArraySize", c_uint16), ("MipLevels", c_uint16), ("Format", c_int32), ("SampleCount", c_uint32),
        ("SampleQuality", c_uint32), ("Layout", c_int32), ("Flags", c_int32),
    )  # fmt: skip


class ResourceBarrier(Struct):
    """D3D12_RESOURCE_BARRIER with its D3D12_RESOURCE_TRANSITION_BARRIER."""

    _fields_ = (("Type", c_int32), ("Flags", c_int32), ("Resource", c_void_p), ("Subresource", c_uint32),
                ("StateBefore", c_int32), ("StateAfter", c_int32))  # fmt: skip


class DescriptorHeapDesc(Struct):
    """`D3D12_DESCRIPTOR_HEAP_DESC` as a ctypes structure."""

    _fields_ = (("Type", c_int32), ("NumDescriptors", c_uint32), ("Flags", c_int32), ("NodeMask", c_uint32))


class QueueDesc(Struct):
    """`D3D12_COMMAND_QUEUE_DESC` as a ctypes structure."""

    _fields_ = (("Type", c_int32), ("Priority", c_int32), ("Flags", c_int32), ("NodeMask", c_uint32))


class AdapterDesc(Struct):
    """`DXGI_ADAPTER_DESC1` as a ctypes structure."""

    _fields_ = (
        ("Description", c_uint16 * 128), ("VendorId", c_uint32), ("DeviceId", c_uint32), ("SubSysId", c_uint32),
        ("Revision", c_uint32), ("DedicatedVideoMemory", c_size_t), ("DedicatedSystemMemory", c_size_t),
        ("SharedSystemMemory", c_size_t), ("AdapterLuid", c_uint64), ("Flags", c_uint32),
    )  # fmt: skip


class Message(Struct):
    """D3D12_MESSAGE, whose text follows it in the same block."""

    _fields_ = (("Category", c_int32), ("Severity", c_int32), ("ID", c_int32), ("pDescription", c_void_p),
                ("DescriptionByteLength", c_size_t))  # fmt: skip
