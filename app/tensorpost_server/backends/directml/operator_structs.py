"""Operators and tensors as DirectML's C structs, laid out by ctypes: what the probes ask DirectML itself to do.

A struct points to others and to arrays, and `Operator.keeps` holds them. Numbers and layouts are those of Microsoft's
Win32 metadata, for 64-bit processors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

__all__ = [
    "BufferTensorDesc",
    "Operator",
    "Resample1Desc",
    "ResampleDesc",
    "Struct",
    "Tensor",
    "TileDesc",
    "TypedDesc",
    "Upsample2DDesc",
    "array_of",
]


class Struct(ctypes.Structure):
    """A C struct that is passed by its address and keeps what it points to."""

    @property
    def at(self) -> c_void_p:
        """Its address."""
        return c_void_p(ctypes.addressof(self))


class BufferTensorDesc(Struct):
    """DML_BUFFER_TENSOR_DESC."""

    _fields_ = (
        ("DataType", c_int32), ("Flags", c_int32), ("DimensionCount", c_uint32), ("Sizes", c_void_p),
        ("Strides", c_void_p), ("TotalTensorSizeInBytes", c_uint64), ("GuaranteedBaseOffsetAlignment", c_uint32),
    )  # fmt: skip


class TypedDesc(Struct):
    """DML_TENSOR_DESC, DML_OPERATOR_DESC and DML_BINDING_DESC: a number and a pointer."""

    _fields_ = (("Type", c_int32), ("Desc", c_void_p))


class TileDesc(Struct):
    """DML_TILE_OPERATOR_DESC."""

    _fields_ = (("InputTensor", c_void_p), ("OutputTensor", c_void_p), ("RepeatsCount", c_uint32),
                ("Repeats", c_void_p))  # fmt: skip


class Upsample2DDesc(Struct):
    """DML_UPSAMPLE_2D_OPERATOR_DESC; ScaleSize is a DML_SIZE_2D."""

    _fields_ = (("InputTensor", c_void_p), ("OutputTensor", c_void_p), ("Width", c_uint32), ("Height", c_uint32),
                ("InterpolationMode", c_int32))  # fmt: skip


class ResampleDesc(Struct):
    """DML_RESAMPLE_OPERATOR_DESC."""

    _fields_ = (("InputTensor", c_void_p), ("OutputTensor", c_void_p), ("InterpolationMode", c_int32),
                ("ScaleCount", c_uint32), ("Scales", c_void_p))  # fmt: skip


class Resample1Desc(Struct):
    """DML_RESAMPLE1_OPERATOR_DESC, and DML_RESAMPLE_GRAD_OPERATOR_DESC with the gradients in place of the tensors."""

    _fields_ = (*ResampleDesc._fields_, ("InputPixelOffsets", c_void_p), ("OutputPixelOffsets", c_void_p))


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator's description, ready to be created.

    Attributes:
        name: for messages.
        value: DML_OPERATOR_TYPE.
        desc: its struct.
        keeps: what the struct points to; must live as long.
    """

    name: str
    value: int
    desc: Struct
    keeps: tuple[Any, ...]

    @classmethod
    def tile(cls, tensors: Sequence[Tensor], repeats: Sequence[int]) -> Operator:
        """DML_OPERATOR_TILE."""
        array = array_of(c_uint32, repeats)
        source, target = [tensor.struct() for tensor in tensors]
        desc = TileDesc(source[0].at, target[0].at, len(repeats), ctypes.addressof(array))
        return cls("TILE", 70, desc, (source, target, array))

    @classmethod
    def upsample_2d(cls, tensors: Sequence[Tensor], width: int, height: int, mode: int) -> Operator:
        """DML_OPERATOR_UPSAMPLE_2D."""
        source, target = [tensor.struct() for tensor in tensors]
        desc = Upsample2DDesc(source[0].at, target[0].at, width, height, mode)
        return cls("UPSAMPLE_2D", 66, desc, (source, target))

    @classmethod
    def resample(cls, tensors: Sequence[Tensor], mode: int, scales: Sequence[float]) -> Operator:
        """DML_OPERATOR_RESAMPLE."""
        array = array_of(c_float, scales)
        source, target = [tensor.struct() for tensor in tensors]
        desc = ResampleDesc(source[0].at, target[0].at, mode, len(scales), ctypes.addressof(array))
        return cls("RESAMPLE", 96, desc, (source, target, array))

    @classmethod
    def resample1(
        cls, tensors: Sequence[Tensor], mode: int, scales: Sequence[float], offsets: tuple[float, float], *,
        gradient: bool = False,
    ) -> Operator:  # fmt: skip
        """DML_OPERATOR_RESAMPLE1, or DML_OPERATOR_RESAMPLE_GRAD; the same offsets on every axis."""
        arrays = [array_of(c_float, values) for values in (scales, *([offset] * len(scales) for offset in offsets))]
        source, target = [tensor.struct() for tensor in tensors]
        first, second, third = map(ctypes.addressof, arrays)
        desc = Resample1Desc(source[0].at, target[0].at, mode, len(scales), first, second, third)
        name, value = ("RESAMPLE_GRAD", 134) if gradient else ("RESAMPLE1", 116)
        return cls(name, value, desc, (source, target, *arrays))


@dataclass(frozen=True, slots=True)
class Tensor:
    """A FLOAT32 buffer tensor.

    Attributes:
        sizes: elements per dimension.
        strides: in elements; None for packed.
        elements: elements of the whole buffer.
    """

    sizes: tuple[int, ...]
    elements: int
    strides: tuple[int, ...] | None = None

    def struct(self) -> tuple[TypedDesc, Any]:
        """The DML_TENSOR_DESC, and what it points to."""
        sizes = array_of(c_uint32, self.sizes)
        strides = None if self.strides is None else array_of(c_uint32, self.strides)
        inner = BufferTensorDesc(
            DataType=1,  # FLOAT32
            DimensionCount=len(self.sizes),
            Sizes=ctypes.addressof(sizes),
            Strides=None if strides is None else ctypes.addressof(strides),
            TotalTensorSizeInBytes=4 * self.elements,
        )
        return TypedDesc(1, inner.at), (sizes, strides, inner)


def array_of(element: Any, values: Sequence[Any]) -> Any:
    """The values in memory, as a C array."""
    return (element * len(values))(*values)
