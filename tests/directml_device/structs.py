"""Documents of descriptors as C structs of `DirectML.h`, without any rule: illegal ones too, but never a bad pointer.

Written from the header's layout for 64-bit processors; of the package under test only the catalogue's list of fields is
used. Arrays have room behind them, so that a count that is too large reads ones and no foreign memory.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any

from tensorpost.descriptors.catalogue import facts_of

from .descriptor_cases import NUMBERS, Json

__all__ = ["OperatorMemory", "TypedDesc"]

ROOM = 16  # entries that an array has at least


class BufferTensor(ctypes.Structure):
    """DML_BUFFER_TENSOR_DESC."""

    _fields_ = (
        ("DataType", c_uint32), ("Flags", c_uint32), ("DimensionCount", c_uint32), ("Sizes", c_void_p),
        ("Strides", c_void_p), ("TotalTensorSizeInBytes", c_uint64), ("GuaranteedBaseOffsetAlignment", c_uint32),
    )  # fmt: skip


class TypedDesc(ctypes.Structure):
    """DML_TENSOR_DESC and DML_OPERATOR_DESC."""

    _fields_ = (("Type", c_uint32), ("Desc", c_void_p))


_IN_PLACE: dict[str, Any] = {
    "UINT": c_uint32, "BOOL": c_uint32, "INT": c_int32, "FLOAT": c_float, "SIZE_2D": c_uint32 * 2,
    "SCALAR_UNION": c_uint64,
}  # fmt: skip
_ENTRIES: dict[str, Any] = {"UINT_ARRAY": c_uint32, "INT_ARRAY": c_int32, "FLOAT_ARRAY": c_float}
_SCALARS = {1: "f", 2: "e", 3: "I", 4: "H", 5: "B", 6: "i", 7: "h", 8: "b", 9: "d", 10: "Q", 11: "q"}


class OperatorMemory:
    """A descriptor's struct with all that it points to.

    Args:
        operator: short name.
        fields: as in `DescriptorCase`.

    Attributes:
        desc: its DML_OPERATOR_DESC.
    """

    def __init__(self, operator: str, fields: Json) -> None:
        self._kept: list[Any] = []
        self.desc = self._operator(operator, fields)

    def _at(self, value: Any) -> int:
        self._kept.append(value)
        return ctypes.addressof(value)

    def _operator(self, operator: str, values: Json) -> TypedDesc:
        facts = facts_of(operator)
        layout = [(field.name, _IN_PLACE.get(field.type, c_void_p)) for field in facts.fields]
        made = type(operator, (ctypes.Structure,), {"_fields_": layout})()
        for field in facts.fields:
            value = values.get(field.name)
            if value is not None:
                setattr(made, field.name, self._value(field.type, value, values))
        return TypedDesc(facts.number, self._at(made))

    def _value(self, kind: str, value: Any, values: Json) -> Any:
        if kind in _ENTRIES:
            return self._array(_ENTRIES[kind], value)
        match kind:
            case "TENSOR_DESC":
                return self._at(self._tensor(value))
            case "TENSOR_DESC_ARRAY":
                entries = [self._tensor(part) for part in value]
                return self._at((TypedDesc * max(ROOM, len(entries)))(*entries))
            case "OPERATOR_DESC":
                return self._at(self._operator(value["Type"], value["Desc"]))
            case "OPERATOR_DESC_ARRAY":
                entries = [self._operator(part["Type"], part["Desc"]) for part in value]
                return self._at((TypedDesc * max(ROOM, len(entries)))(*entries))
            case "SCALE_BIAS":
                return self._at((c_float * 2)(value["Scale"], value["Bias"]))
            case "SIZE_2D":
                return (c_uint32 * 2)(value["Width"], value["Height"])
            case "SCALAR_UNION":
                return _scalar(value, next(values[name] for name in values if name.endswith("DataType")))
            case "FLOAT":
                return value
            case _:
                return int(value)

    def _array(self, entry: Any, numbers: Sequence[Any]) -> int:
        return self._at((entry * max(ROOM, len(numbers)))(*numbers, *[1] * max(0, ROOM - len(numbers))))

    def _tensor(self, value: Json) -> TypedDesc:
        data_type, strides = value["DataType"], value["Strides"]
        made = BufferTensor(
            DataType=NUMBERS[data_type] if isinstance(data_type, str) else data_type,
            Flags=value["Flags"],
            DimensionCount=value["DimensionCount"],
            Sizes=self._array(c_uint32, value["Sizes"]),
            Strides=None if strides is None else self._array(c_uint32, strides),
            TotalTensorSizeInBytes=value["TotalTensorSizeInBytes"],
            GuaranteedBaseOffsetAlignment=value["GuaranteedBaseOffsetAlignment"],
        )
        return TypedDesc(1, self._at(made))  # DML_TENSOR_TYPE_BUFFER


def _scalar(value: float, data_type: int) -> int:
    """A DML_SCALAR_UNION: the number's bits in its type; what an integer type cannot hold as low bits or as FLOAT64."""
    code = _SCALARS.get(data_type, "q")
    if code in "fed":
        try:
            return int.from_bytes(struct.pack(f"<{code}", value), "little")
        except (OverflowError, struct.error):
            return int.from_bytes(struct.pack(f"<{code}", math.copysign(math.inf, value)), "little")
    if not math.isfinite(value):
        return int.from_bytes(struct.pack("<d", value), "little")
    return int(value) % (1 << 8 * struct.calcsize(code))
