"""Ask DirectML, on Windows or under Wine: `python -m tests.directml_device.ask validation START STOP`, `... facts`
or `... level`.

One JSON line per answer, flushed at once: where a call ends the process, the lines before it are kept, and the line
`{"asking": N}` says which case it was.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
import uuid
from ctypes import POINTER, byref, c_int32, c_uint32, c_void_p, cast
from pathlib import Path
from typing import Any

from .descriptor_cases import OPERATORS, DescriptorCase, cases
from .structs import OperatorMemory

IID_DEVICE = "189819f1-1db6-4b57-be54-1821339b85f7"  # ID3D12Device
IID_DML_DEVICE = "6dbd6437-96fd-423f-a98c-ae5e7c2a573f"  # IDMLDevice
IID_DML_OPERATOR = "26caae7a-3081-4633-9581-226fbe57695d"  # IDMLOperator
LOWEST_D3D = 0xB000  # D3D_FEATURE_LEVEL_11_0
LEVELS = (
    0x1000, 0x2000, 0x2100, 0x3000, 0x3100, 0x4000, 0x4100, 0x5000, 0x5100, 0x5200, 0x6000, 0x6100, 0x6200, 0x6300,
    0x6400,
)  # fmt: skip
NEXT_LEVELS = (0x6500, 0x7000)  # beyond what DirectML.h of 1.15 names


def directml_dll() -> Path:
    """The one that DIRECTML_DLL names; by default that of ONNX Runtime's Windows wheel."""
    if os.environ.get("DIRECTML_DLL"):
        return Path(os.environ["DIRECTML_DLL"])
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        raise OSError("onnxruntime-directml is not installed")
    return Path(spec.origin).parent / "capi" / "DirectML.dll"


def identifier(text: str) -> Any:
    """A GUID in memory."""
    return (ctypes.c_uint8 * 16)(*uuid.UUID(text).bytes_le)


class DirectML:
    """A DirectML device of the default adapter.

    Args:
        level: the least feature level that is asked for.

    Raises:
        OSError: no device; with the HRESULT.
    """

    def __init__(self, level: int = LEVELS[0]) -> None:
        load = getattr(ctypes, "WinDLL")  # noqa: B009 # Windows only
        library = load(str(directml_dll()))
        graphics, self._device = c_void_p(), c_void_p()
        code = load("d3d12.dll").D3D12CreateDevice(None, LOWEST_D3D, byref(identifier(IID_DEVICE)), byref(graphics))
        if code < 0:
            raise OSError(f"D3D12CreateDevice: 0x{code & 0xFFFFFFFF:08X}")
        code = library.DMLCreateDevice1(graphics, 0, level, byref(identifier(IID_DML_DEVICE)), byref(self._device))
        if code < 0:
            raise OSError(f"DMLCreateDevice1: 0x{code & 0xFFFFFFFF:08X}")
        self._create = self._method(8, c_void_p, c_void_p, c_void_p)
        self._check = self._method(7, c_int32, c_uint32, c_void_p, c_uint32, c_void_p)
        self._operator_iid = identifier(IID_DML_OPERATOR)

    def _method(self, slot: int, *arguments: Any) -> Any:
        table = cast(self._device, POINTER(c_void_p))[0]
        address = cast(table, POINTER(c_void_p))[slot]  # pyright: ignore[reportArgumentType] # an address is an int
        return ctypes.CFUNCTYPE(c_int32, c_void_p, *arguments)(address)  # pyright: ignore[reportCallIssue,reportArgumentType] # likewise

    def create_operator(self, case: DescriptorCase) -> int:
        """IDMLDevice::CreateOperator; its HRESULT, or 0xC0000005 where it reads foreign memory."""
        memory, made = OperatorMemory(case.operator, case.fields), c_void_p()
        try:
            code = self._create(self._device, byref(memory.desc), byref(self._operator_iid), byref(made))
        except OSError:  # what Python makes of an access violation
            return 0xC0000005
        if made.value:
            table = cast(made, POINTER(c_void_p))[0]
            release = cast(table, POINTER(c_void_p))[2]  # pyright: ignore[reportArgumentType] # an address is an int
            ctypes.CFUNCTYPE(c_uint32, c_void_p)(release)(made)  # pyright: ignore[reportCallIssue,reportArgumentType] # likewise
        return code & 0xFFFFFFFF

    def highest_level(self, *asked: int) -> int:
        """CheckFeatureSupport with DML_FEATURE_FEATURE_LEVELS: the highest of those that were asked for."""

        class Query(ctypes.Structure):
            _fields_ = (("count", c_uint32), ("levels", c_void_p))

        levels, found = (c_uint32 * len(asked))(*asked), c_uint32()
        query = Query(len(asked), ctypes.addressof(levels))
        code = self._check(self._device, 1, ctypes.sizeof(query), byref(query), 4, byref(found))
        return found.value if code >= 0 else 0

    def supports_type(self, data_type: int) -> bool:
        """CheckFeatureSupport with DML_FEATURE_TENSOR_DATA_TYPE_SUPPORT."""
        query, found = c_uint32(data_type), c_int32()
        code = self._check(self._device, 0, 4, byref(query), 4, byref(found))
        return code >= 0 and bool(found.value)


def facts() -> dict[str, Any]:
    """What can be asked about levels: whether a device is created at each, what it says, and what it then refuses."""
    found: dict[str, Any] = {"devices": {}}
    newest = next(
        case for case in cases(100 * len(OPERATORS))
        if case.operator == "RESAMPLE3" and not case.mutations and case.fields["InputTensor"]["DataType"] == "FLOAT32"
    )  # fmt: skip
    for level in (*LEVELS, *NEXT_LEVELS):
        try:
            device = DirectML(level)
        except OSError as error:
            found["devices"][f"0x{level:04X}"] = str(error)
            continue
        found["devices"][f"0x{level:04X}"] = {
            "highest of all": f"0x{device.highest_level(*LEVELS):04X}",
            "highest up to it": f"0x{device.highest_level(*[other for other in LEVELS if other <= level]):04X}",
            "RESAMPLE3, which is new in 6_4": f"0x{device.create_operator(newest):08X}",
        }
    device = DirectML()
    found["types"] = {str(number): device.supports_type(number) for number in range(15)}
    return found


def main() -> None:
    """See the module."""
    if sys.argv[1] == "level":
        print(json.dumps({"level": f"0x{DirectML().highest_level(*LEVELS):04X}"}), flush=True)
        return
    if sys.argv[1] == "facts":
        print(json.dumps(facts()), flush=True)
        return
    device, (start, stop) = DirectML(), map(int, sys.argv[2:4])
    for case in cases(stop)[start:]:
        print(json.dumps({"asking": case.index}), flush=True)
        print(json.dumps({"case": case.index, "code": f"0x{device.create_operator(case):08X}"}), flush=True)


if __name__ == "__main__":
    main()
