"""One adapter: its Direct3D 12 and DirectML devices, what they say of themselves, and the operators they make."""

from __future__ import annotations

import ctypes
import struct
from contextlib import suppress
from ctypes import c_int32, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from tensorpost.descriptors.feature_levels import FeatureLevel
from tensorpost.values.datatypes import TensorDataType

from ..base import MOST_DIRECTML_SECONDS
from . import d3d12
from .c_structs import OperatorStruct, array_of
from .com import ComError, ComObject, create, guid, pointer_to
from .device_buffers import DeviceBuffers
from .directml_dll import Libraries
from .graph_compiler import GraphDesc, compile_graph_structs
from .queue import Queue


@dataclass(frozen=True, slots=True)
class Adapter:
    """What DXGI says of an adapter.

    Attributes:
        index: DXGI's, from 0.
        description: its name.
        vendor_id, device_id, revision: numbers that the PCI bus gives the card.
        dedicated_bytes: video memory.
        shared_bytes: ordinary memory that it may use.
        software: whether it is the processor in disguise (WARP).
        driver: the driver's version; None if it is not told.
    """

    index: int
    description: str
    vendor_id: int
    device_id: int
    revision: int
    dedicated_bytes: int
    shared_bytes: int
    software: bool
    driver: str | None


def adapters(libraries: Libraries) -> list[Adapter]:
    """Every adapter of this machine.

    Raises:
        ComError: DXGI fails.
    """
    found: list[Adapter] = []
    factory = create("CreateDXGIFactory1", libraries.create_factory, guid(d3d12.IID_FACTORY).pointer)
    try:
        while True:
            try:
                made = _adapter(factory, len(found))
            except ComError as error:
                if error.code == d3d12.DXGI_ERROR_NOT_FOUND:
                    return found
                raise
            try:
                found.append(_described(made, len(found)))
            finally:
                made.release()
    finally:
        factory.release()


def _adapter(factory: ComObject, index: int) -> ComObject:
    return factory.create(d3d12.FACTORY_ENUM_ADAPTERS, f"EnumAdapters1({index})", c_uint32(index))


def _described(adapter: ComObject, index: int) -> Adapter:
    desc, version = d3d12.AdapterDesc(), c_int64()
    adapter.check(d3d12.ADAPTER_GET_DESC, "GetDesc1", desc)
    driver: str | None = None
    with suppress(ComError):  # it is for people only
        adapter.check(
            d3d12.ADAPTER_CHECK_INTERFACE, "CheckInterfaceSupport", guid(d3d12.IID_DXGI_DEVICE), pointer_to(version)
        )
        driver = ".".join(map(str, reversed(struct.unpack("<4H", struct.pack("<q", version.value)))))
    name = bytes(desc.Description).decode("utf-16-le", "replace").partition("\0")[0]
    return Adapter(
        index, name, desc.VendorId, desc.DeviceId, desc.Revision, desc.DedicatedVideoMemory, desc.SharedSystemMemory,
        bool(desc.Flags & d3d12.SOFTWARE_ADAPTER), driver,
    )  # fmt: skip


class Device:
    """An opened adapter.

    Args:
        libraries: the loaded functions.
        index: DXGI's index of the adapter.
        debug: turn on the debug layers of Direct3D and DirectML; their messages then stand in errors. They need the
            Graphics Tools of Windows and a DirectML.Debug.dll beside DirectML.dll.
        most_seconds: the most time that one operator may take, seconds; then the device counts as hung.

    Attributes:
        adapter: what it is.
        level: DirectML's highest feature level on it.
        data_types: the element types that it has tensors of.
        queue: what is submitted to it.
        buffers: its memory.
        dml: DirectML's device.

    Raises:
        ComError: there is no such adapter, or a device cannot be created.
    """

    def __init__(
        self, libraries: Libraries, index: int = 0, *, debug: bool = False, most_seconds: float = MOST_DIRECTML_SECONDS
    ) -> None:
        self._owned: list[ComObject] = []
        self._info: ComObject | None = None
        self._dml1: ComObject | None = None  # IDMLDevice1, once a graph is compiled
        try:
            self._open(libraries, index, debug, most_seconds)
        except BaseException:
            self._release()
            raise

    def _open(self, libraries: Libraries, index: int, debug: bool, most_seconds: float) -> None:  # private
        own = self._own
        factory = own(create("CreateDXGIFactory1", libraries.create_factory, guid(d3d12.IID_FACTORY).pointer))
        adapter = own(_adapter(factory, index))
        self.adapter = _described(adapter, index)
        if debug:
            layer = own(create("D3D12GetDebugInterface", libraries.get_debug_interface, guid(d3d12.IID_DEBUG).pointer))
            layer.call(d3d12.DEBUG_ENABLE, None)
        self._d3d = own(
            create(
                "D3D12CreateDevice", libraries.create_device, adapter.pointer, c_int32(d3d12.LOWEST_D3D),
                guid(d3d12.IID_DEVICE).pointer,
            )
        )  # fmt: skip
        if debug:
            self._info = own(self._d3d.create(d3d12.QUERY_INTERFACE, "QueryInterface", iid=d3d12.IID_INFO_QUEUE))
        self.dml = own(
            create(
                "DMLCreateDevice1", libraries.create_dml_device, self._d3d.pointer,
                c_int32(d3d12.DML_DEBUG if debug else 0), c_int32(d3d12.LOWEST_DML), guid(d3d12.IID_DML_DEVICE).pointer,
            )
        )  # fmt: skip
        self.level = self._highest_level()
        self.data_types = frozenset([kind for kind in TensorDataType if kind and self._has(kind)])
        self.queue = Queue(self._d3d, self.dml, libraries.new_event(), most_seconds)
        self.buffers = DeviceBuffers(self._d3d, self.queue.retire, self.queue.drain)

    # ---- what the device says ----------------------------------------------------------------------------------------

    def _highest_level(self) -> FeatureLevel:
        known = sorted(FeatureLevel, reverse=True)
        levels, found = array_of(c_uint32, known), c_uint32()
        query = d3d12.LevelsQuery(len(known), ctypes.addressof(levels))
        self._check_feature(d3d12.FEATURE_LEVELS, query, found)
        return FeatureLevel.parse(found.value)

    def _has(self, kind: TensorDataType) -> bool:
        found = c_int32()
        try:
            self._check_feature(d3d12.FEATURE_DATA_TYPE, c_int32(kind), found)
        except ComError:
            return False  # a type that this DirectML has not heard of
        return bool(found.value)

    def _check_feature(self, feature: int, query: Any, found: Any) -> None:
        self.dml.check(
            d3d12.DML_CHECK_FEATURE, "CheckFeatureSupport", c_int32(feature), c_uint32(ctypes.sizeof(query)),
            pointer_to(query), c_uint32(ctypes.sizeof(found)), pointer_to(found),
        )  # fmt: skip

    def messages(self) -> str:
        """What the debug layers have said since this was last asked; empty without them."""
        if self._info is None:
            return ""
        said: list[str] = []
        for index in range(self._info.call(d3d12.INFO_COUNT, c_uint64)):
            size = c_uint64()
            self._info.call(d3d12.INFO_GET, c_int32, c_uint64(index), c_void_p(), pointer_to(size))
            block = ctypes.create_string_buffer(size.value)
            self._info.check(d3d12.INFO_GET, "GetMessage", c_uint64(index), block, pointer_to(size))
            message = d3d12.Message.from_buffer(block)
            said.append(
                ctypes.string_at(message.pDescription, message.DescriptionByteLength).decode("utf-8", "replace")
            )
        self._info.call(d3d12.INFO_CLEAR, None)
        return "; ".join(text.rstrip("\0").strip() for text in said)

    # ---- operators ---------------------------------------------------------------------------------------------------

    def create_operator(self, desc: OperatorStruct) -> ComObject:
        """An operator as DirectML has checked it; the caller releases it.

        Raises:
            ComError: DirectML does not create it; with the debug layer's words.
        """
        what = f"CreateOperator({desc.name})"
        try:
            return self.dml.create(d3d12.DML_CREATE_OPERATOR, what, desc.desc, iid=d3d12.IID_DML_OPERATOR)
        except ComError as error:
            raise ComError(what, error.code, self.messages()) from None

    def compile_operator(self, desc: OperatorStruct) -> ComObject:
        """An operator, created and compiled; it must be initialized before it is dispatched. The caller releases it.

        Raises:
            ComError: DirectML does not create or compile it.
        """
        operator, what = self.create_operator(desc), f"CompileOperator({desc.name})"
        try:
            return self.dml.create(d3d12.DML_COMPILE, what, operator.pointer, c_int32(0), iid=d3d12.IID_DML_COMPILED)
        except ComError as error:
            raise ComError(what, error.code, self.messages()) from None
        finally:
            operator.release()

    def compile_graph(self, desc: GraphDesc) -> ComObject:
        """A graph, compiled whole; it must be initialized before it is dispatched. The caller releases it.

        Raises:
            ComError: DirectML does not create one of its operators, or does not compile it.
        """
        operators: list[ComObject] = []
        what = f"CompileGraph({len(desc.nodes)} nodes)"
        try:
            for node in desc.nodes:
                operators.append(self.create_operator(OperatorStruct.from_desc(node)))
            if self._dml1 is None:
                made = self.dml.create(d3d12.QUERY_INTERFACE, "QueryInterface", iid=d3d12.IID_DML_DEVICE1)
                self._dml1 = self._own(made)
            struct_, kept = compile_graph_structs(desc, operators)
            compiled = self._dml1.create(d3d12.DML_COMPILE_GRAPH, what, struct_, c_int32(0), iid=d3d12.IID_DML_COMPILED)
            del kept  # DirectML has read it
            return compiled
        except ComError as error:
            raise ComError(str(error).partition(" returned")[0], error.code, self.messages()) from None
        finally:
            for operator in operators:
                operator.release()

    def create_initializer(self, compiled: ComObject) -> ComObject:
        """What initializes one compiled operator; the caller retires it."""
        pointers = array_of(c_void_p, [compiled.address])
        return self.dml.create(
            d3d12.DML_INITIALIZER, "CreateOperatorInitializer", c_uint32(1), pointers, iid=d3d12.IID_DML_INITIALIZER
        )

    def close(self) -> None:
        """Give everything back."""
        with suppress(ComError):  # the device was removed
            self.buffers.trim()
        self.queue.close()
        self._release()

    def _own(self, made: ComObject) -> ComObject:
        self._owned.append(made)
        return made

    def _release(self) -> None:
        while self._owned:
            self._owned.pop().release()


def binding_properties(dispatchable: ComObject) -> d3d12.BindingProperties:
    """IDMLDispatchable.GetBindingProperties, which returns a struct: its address follows `this`."""
    found = d3d12.BindingProperties()
    dispatchable.call(d3d12.DISPATCHABLE_PROPERTIES, c_void_p, found.pointer)
    return found
