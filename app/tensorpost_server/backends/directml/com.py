"""COM objects through plain `ctypes`: a pointer to a table of functions, called by their places in the table.

64-bit processors only, where a COM method is called like a C function; a method that returns a struct takes a pointer
to it after `this`, which ctypes must be told.
"""

from __future__ import annotations

import ctypes
import uuid
from ctypes import c_int32, c_uint8, c_uint32, c_void_p
from functools import cache
from typing import Any

from .c_structs import Struct

RELEASE = 2  # IUnknown


class ComError(RuntimeError):
    """A call that returned an error.

    Attributes:
        code: the HRESULT as an unsigned number.
    """

    def __init__(self, what: str, code: int, said: str = "") -> None:
        self.code = code & 0xFFFFFFFF
        super().__init__(f"{what} returned 0x{self.code:08X}" + (f": {said}" if said else ""))


class ComObject:
    """An object that is released once.

    Attributes:
        address: where it is; 0 after it was released.
    """

    __slots__ = ("address",)

    def __init__(self, address: int) -> None:
        self.address = address

    @property
    def pointer(self) -> c_void_p:
        """Its address as an argument."""
        return c_void_p(self.address)

    def call(self, slot: int, result: Any, *arguments: Any) -> Any:
        """Call a method by its place in the table.

        Args:
            slot: counted from 0.
            result: the ctypes type that is returned; None for nothing.
            arguments: ctypes values; structs and arrays are passed by their addresses.
        """
        passed = [pointer_to(one) if isinstance(one, (ctypes.Structure, ctypes.Array)) else one for one in arguments]
        table = c_void_p.from_address(self.address).value or 0
        function = c_void_p.from_address(table + slot * ctypes.sizeof(c_void_p)).value or 0
        prototype = ctypes.CFUNCTYPE(result, c_void_p, *map(type, passed))
        return prototype(function)(self.address, *passed)

    def check(self, slot: int, what: str, *arguments: Any) -> None:
        """Call a method that returns an HRESULT.

        Raises:
            ComError: it is an error.
        """
        code: int = self.call(slot, c_int32, *arguments)
        if code < 0:
            raise ComError(what, code)

    def create(self, slot: int, what: str, *arguments: Any, iid: str | None = None) -> ComObject:
        """The object that a method creates; its last arguments are the interface identifier, if any, and the result.

        Raises:
            ComError: it creates none.
        """
        address = c_void_p()
        self.check(slot, what, *arguments, *([guid(iid)] if iid else []), pointer_to(address))
        return ComObject(address.value or 0)

    def release(self) -> None:
        """Give up this reference; once is enough."""
        if self.address:
            self.call(RELEASE, c_uint32)
            self.address = 0


def create(what: str, function: Any, *arguments: Any) -> ComObject:
    """The object that an exported function creates.

    Raises:
        ComError: it creates none.
    """
    address = c_void_p()
    code = int(function(*arguments, pointer_to(address)))
    if code < 0 or code > 0x7FFFFFFF:
        raise ComError(what, code)
    return ComObject(address.value or 0)


class _Guid(Struct):
    _fields_ = (("bytes", c_uint8 * 16),)


@cache
def guid(text: str) -> _Guid:
    """An interface's identifier in memory that stays: only its address is passed on."""
    return _Guid.from_buffer_copy(uuid.UUID(text).bytes_le)


def pointer_to(value: Any) -> c_void_p:
    """The address of a ctypes value."""
    return c_void_p(ctypes.addressof(value))
