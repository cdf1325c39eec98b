"""One row per data type: what DirectML, ONNX, the Open Inference Protocol, safetensors and NumPy call it.

Nothing else in the project spells these names twice. A new type is a new row here.

Sources: `DirectML.h` (`DML_TENSOR_DATA_TYPE`), `onnx.proto` (`TensorProto.DataType`), the Open Inference Protocol's
table of datatypes with Triton's `BF16`, and the safetensors README.
"""

from __future__ import annotations

import enum
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np

from .extras import install_command

__all__ = ["BOOLEANS", "DATA_TYPES", "DataType", "TensorDataType", "data_type"]

BOOLEANS: tuple[type, ...] = (bool, np.bool_)
"""The booleans of Python and NumPy, which are not whole numbers here; NumPy before 2.2 takes its own for such."""


class TensorDataType(enum.IntEnum):
    """`DML_TENSOR_DATA_TYPE`: the element types of a DirectML tensor, with the header's numbers.

    `UNKNOWN` is never valid in a descriptor; `UINT4` and `INT4` belong to quantization operators only.

    Attributes:
        bits: size of one element in bits; 0 for UNKNOWN.
    """

    bits: int

    UNKNOWN = 0
    FLOAT32 = 1
    FLOAT16 = 2
    UINT32 = 3
    UINT16 = 4
    UINT8 = 5
    INT32 = 6
    INT16 = 7
    INT8 = 8
    FLOAT64 = 9
    UINT64 = 10
    INT64 = 11
    UINT4 = 12
    INT4 = 13

    @property
    def row(self) -> DataType:
        """The type's row in `DATA_TYPES`.

        Raises:
            KeyError: UNKNOWN and the 4-bit types, which no array here can carry.
        """
        row = _BY_NAME.get(self.name)
        if row is None:
            raise KeyError(f"{self.name} has no row: no array here can carry it")
        return row


for _member, _bits in zip(TensorDataType, (0, 32, 16, 32, 16, 8, 32, 16, 8, 64, 64, 64, 4, 4), strict=True):
    _member.bits = _bits


@dataclass(frozen=True, slots=True)
class DataType:
    """One element type and its names. A name is None where that system does not have the type.

    Attributes:
        numpy_name: NumPy's name; also our key. `bfloat16` needs the `ml_dtypes` package, `str` is a Python object.
        directml: DirectML's short name.
        onnx: ONNX's name, as in `tensor(float)`.
        onnx_code: `TensorProto.DataType` number.
        open_inference: the Open Inference Protocol's name.
        safetensors: the name in a frame's head.
        item_size: bytes per element; 0 for strings, whose elements differ.
    """

    numpy_name: str
    directml: str | None
    onnx: str
    onnx_code: int
    open_inference: str | None
    safetensors: str | None
    item_size: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype, little-endian.

        Raises:
            ModuleNotFoundError: bfloat16 without `ml_dtypes`; the message names the extra to install.
        """
        if self.numpy_name == "bfloat16":
            try:
                import ml_dtypes
            except ModuleNotFoundError as missing:
                raise ModuleNotFoundError(
                    f"bfloat16 arrays need the package ml_dtypes: {install_command('bfloat16')}", name=missing.name
                ) from None
            return np.dtype(ml_dtypes.bfloat16)
        return _dtype(self.numpy_name)


@cache  # one entry per row of the table
def _dtype(numpy_name: str) -> np.dtype[Any]:
    return np.dtype(object) if numpy_name == "str" else np.dtype(numpy_name).newbyteorder("<")


DATA_TYPES: tuple[DataType, ...] = (
    #        numpy         DirectML   ONNX         code  OIP       safetensors  bytes
    DataType("float32",    "FLOAT32", "float",      1,   "FP32",   "F32",       4),
    DataType("float16",    "FLOAT16", "float16",    10,  "FP16",   "F16",       2),
    DataType("uint32",     "UINT32",  "uint32",     12,  "UINT32", "U32",       4),
    DataType("uint16",     "UINT16",  "uint16",     4,   "UINT16", "U16",       2),
    DataType("uint8",      "UINT8",   "uint8",      2,   "UINT8",  "U8",        1),
    DataType("int32",      "INT32",   "int32",      6,   "INT32",  "I32",       4),
    DataType("int16",      "INT16",   "int16",      5,   "INT16",  "I16",       2),
    DataType("int8",       "INT8",    "int8",       3,   "INT8",   "I8",        1),
    DataType("float64",    "FLOAT64", "double",     11,  "FP64",   "F64",       8),
    DataType("uint64",     "UINT64",  "uint64",     13,  "UINT64", "U64",       8),
    DataType("int64",      "INT64",   "int64",      7,   "INT64",  "I64",       8),
    DataType("bool",       None,      "bool",       9,   "BOOL",   "BOOL",      1),
    DataType("bfloat16",   None,      "bfloat16",   16,  "BF16",   "BF16",      2),
    DataType("complex64",  None,      "complex64",  14,  None,     "C64",       8),
    DataType("complex128", None,      "complex128", 15,  None,     None,        16),
    DataType("str",        None,      "string",     8,   "BYTES",  None,        0),
)  # fmt: skip

_BY_NAME: dict[str, DataType] = {}
for _row in DATA_TYPES:
    for _name in (_row.numpy_name, _row.directml, _row.onnx, _row.open_inference, _row.safetensors):
        if _name is not None:
            _BY_NAME[_name] = _row  # systems share spellings, but no spelling has two meanings; a test proves it

_NUMERIC_ROWS = [row for row in DATA_TYPES if row.numpy_name not in ("bfloat16", "str")]
_BY_NUMPY_CODE = {np.dtype(row.numpy_name).str[1:]: row for row in _NUMERIC_ROWS}  # f4, i1, b1, c8 and so on


def data_type(name: str | np.dtype[Any] | type[Any]) -> DataType:
    """Find a type's row by any of its names, or by a NumPy dtype, scalar type or type code such as `<f4`.

    Mind two pairs: `I8` is safetensors' 8-bit integer and `i8` NumPy's 64-bit one; the text `float` is ONNX's 32-bit
    type and the Python type `float` NumPy's 64-bit one. Byte order is not part of a type.

    Examples:
        >>> data_type("FLOAT32").safetensors, data_type(np.dtype("int8")).directml
        ('F32', 'INT8')

    Raises:
        KeyError: no system here knows the name.
    """
    row = None
    if isinstance(name, str):
        row = _BY_NAME.get(name) or _BY_NUMPY_CODE.get(name.lstrip("<>=|"))
    elif isinstance(cast("object", name), (np.dtype, type)):
        # np.dtype reads None, numbers, lists and dictionaries too; none of those names one type.
        with suppress(TypeError, ValueError):
            row = _BY_NAME.get(np.dtype(name).name)
    if row is None:
        shown = repr(name[:60] if isinstance(name, str) else name)[:80]
        raise KeyError(f"{shown} is not a data type of DirectML, ONNX, Open Inference, safetensors or NumPy")
    return row
