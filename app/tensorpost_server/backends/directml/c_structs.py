"""Operator descriptors as the C structs of `DirectML.h`, for 64-bit processors.

The catalogue lists each struct's fields in order with their schema types, and ctypes aligns them as C does. No operator
is named here.

===================================  ===============================================================================
schema type                          in the struct
===================================  ===============================================================================
UINT, INT, FLOAT, BOOL               4 bytes; enums are UINT
SIZE_2D                              two UINT in place: width, height
SCALAR_UNION                         8 bytes in place; its first bytes are a number of the DataType in another field
TENSOR_DESC, OPERATOR_DESC           pointer to a `TypedDesc`, null if absent
TENSOR_DESC_ARRAY, ..., UINT_ARRAY   pointer to the first entry; the count is a field of its own
SCALE_BIAS                           pointer to two FLOAT, null if absent
===================================  ===============================================================================
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from tensorpost.descriptors import BufferTensorDesc, OperatorDesc, TensorFlags
from tensorpost.descriptors.catalogue import facts_of
from tensorpost.values.datatypes import TensorDataType


class Struct(ctypes.Structure):
    """A C struct that is passed by its address."""

    @property
    def pointer(self) -> c_void_p:
        """Its address."""
        return c_void_p(ctypes.addressof(self))


class BufferTensorStruct(Struct):
    """`DML_BUFFER_TENSOR_DESC` as a ctypes structure."""

    _fields_ = (
        ("DataType", c_int32), ("Flags", c_int32), ("DimensionCount", c_uint32), ("Sizes", c_void_p),
        ("Strides", c_void_p), ("TotalTensorSizeInBytes", c_uint64), ("GuaranteedBaseOffsetAlignment", c_uint32),
    )  # fmt: skip


class TypedDesc(Struct):
    """DML_TENSOR_DESC, DML_OPERATOR_DESC and DML_BINDING_DESC: a number and a pointer."""

    _fields_ = (("Type", c_int32), ("Desc", c_void_p))


_IN_PLACE: dict[str, Any] = {
    "UINT": c_uint32, "INT": c_int32, "FLOAT": c_float, "BOOL": c_int32, "SIZE_2D": c_uint32 * 2,
    "SCALAR_UNION": c_uint64,
}  # fmt: skip
_NUMBERS: dict[str, Any] = {"UINT_ARRAY": c_uint32, "INT_ARRAY": c_int32, "FLOAT_ARRAY": c_float}


@cache
def struct_class(operator_type: str) -> type[Struct]:
    """The struct of an operator, for instance DML_TILE_OPERATOR_DESC for `TILE`.

    Raises:
        KeyError: DirectML has no operator of this short name.
    """
    fields = [(facts.name, _IN_PLACE.get(facts.type, c_void_p)) for facts in facts_of(operator_type).fields]
    return type(operator_type, (Struct,), {"_fields_": fields})


@dataclass(frozen=True, slots=True)
class OperatorStruct:
    """A descriptor in memory, ready to be passed to DirectML.

    Attributes:
        name: the operator's short name, for messages.
        desc: its DML_OPERATOR_DESC.
        memory: what the pointers in it point to; it lives as long as this object.
    """

    name: str
    desc: TypedDesc
    memory: list[Any]

    @classmethod
    def from_desc(cls, desc: OperatorDesc, *, owned: bool = True) -> OperatorStruct:
        """Lay out a descriptor. Its rules are not looked at; DirectML has its own.

        Args:
            desc: the descriptor.
            owned: keep the flag OWNED_BY_DML. Without it, every input is bound to each dispatch.
        """
        memory = _Memory(owned)
        return cls(desc.operator_type, memory.operator(desc), memory.kept)


@dataclass(frozen=True, slots=True)
class _Memory:
    """Makes structs and keeps what they point to."""

    owned: bool
    kept: list[Any] = field(default_factory=list[Any])

    def pointer(self, value: Any) -> int:
        """The address of a ctypes value, which is kept from now on."""
        self.kept.append(value)
        return ctypes.addressof(value)

    def operator(self, desc: OperatorDesc, *, fused: bool = False) -> TypedDesc:
        """A DML_OPERATOR_DESC; the tensors of a fused activation are null, its descriptor's are placeholders."""
        struct = struct_class(desc.operator_type)()
        for facts in desc.facts.fields:
            value = getattr(desc, facts.attribute_name)
            if value is not None and not (fused and facts.kind != "attribute"):
                setattr(struct, facts.name, self.value(desc, facts.type, value))
        return TypedDesc(desc.facts.number, self.pointer(struct))

    def value(self, desc: OperatorDesc, schema_type: str, value: Any) -> Any:
        """What stands in the struct for a field of this schema type."""
        match schema_type:
            case "TENSOR_DESC":
                return self.pointer(self.tensor(value))
            case "TENSOR_DESC_ARRAY":
                return self.pointer(array_of(TypedDesc, [self.tensor(tensor) for tensor in value]))
            case "OPERATOR_DESC":
                return self.pointer(self.operator(value, fused=True))
            case "OPERATOR_DESC_ARRAY":
                return self.pointer(array_of(TypedDesc, [self.operator(part, fused=True) for part in value]))
            case "SCALE_BIAS":
                return self.pointer(array_of(c_float, (value.scale, value.bias)))
            case "SIZE_2D":
                return array_of(c_uint32, (value.width, value.height))
            case "SCALAR_UNION":
                types = [getattr(desc, name) for name in desc.fields_of_kind("attribute") if name.endswith("data_type")]
                return scalar_bits(value, types[0])
            case _:
                return self.pointer(array_of(_NUMBERS[schema_type], value)) if schema_type in _NUMBERS else value

    def tensor(self, desc: BufferTensorDesc) -> TypedDesc:
        """A DML_TENSOR_DESC of a buffer tensor."""
        struct = BufferTensorStruct(
            DataType=desc.data_type,
            Flags=desc.flags if self.owned else desc.flags & ~TensorFlags.OWNED_BY_DML,
            DimensionCount=len(desc.sizes),
            Sizes=self.pointer(array_of(c_uint32, desc.sizes)),
            Strides=None if desc.strides is None else self.pointer(array_of(c_uint32, desc.strides)),
            TotalTensorSizeInBytes=desc.total_tensor_size_in_bytes,
            GuaranteedBaseOffsetAlignment=desc.guaranteed_base_offset_alignment,
        )
        return TypedDesc(1, self.pointer(struct))  # DML_TENSOR_TYPE_BUFFER


def scalar_bits(value: float, data_type: TensorDataType) -> int:
    """A number as the bits of its type, zeros above; integers wrap, so that a delta of -2 suits unsigned types."""
    if data_type.name.startswith("FLOAT"):
        return int.from_bytes(np.array(value, data_type.name.lower()).tobytes(), "little")
    return int(value) % (1 << data_type.bits)


def array_of(element: Any, values: Sequence[Any]) -> Any:
    """The values in memory, as a C array."""
    return (element * len(values))(*values)
