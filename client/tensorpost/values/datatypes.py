"""One row per data type: what DirectML, ONNX, the Open Inference Protocol, safetensors and NumPy call it.

Nothing else in the project spells these names twice. A new type is a new row here.

ONNX's types of fewer than 8 bits have a byte for each element here, as in arrays of `ml_dtypes`; of each byte the low
bits count. safetensors packs the elements of its `F4`, so a frame calls ours otherwise: `F4_E2M1_U8`.

Sources: `DirectML.h` (`DML_TENSOR_DATA_TYPE`), `onnx.proto` (`TensorProto.DataType`), the Open Inference Protocol's
table of datatypes with Triton's `BF16`, and the safetensors README.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np

from .extras import install_command

__all__ = ["BOOLEANS", "DATA_TYPES", "ML_DTYPES", "DataType", "TensorDataType", "data_type", "load_ml_dtypes"]

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
        numpy_name: NumPy's name; also our key. Those of `ML_DTYPES` need the package `ml_dtypes`, `str` is a Python
            object.
        directml: DirectML's short name.
        onnx: ONNX's name, as in `tensor(float)`.
        onnx_code: `TensorProto.DataType` number.
        open_inference: the Open Inference Protocol's name.
        safetensors: the name in a frame's head; ours where elements have fewer than 8 bits.
        item_size: bytes per element; 0 for strings, whose elements differ.
        bits: bits of an element where they are fewer than those of its bytes, else 0.
    """

    numpy_name: str
    directml: str | None
    onnx: str
    onnx_code: int
    open_inference: str | None
    safetensors: str | None
    item_size: int
    bits: int = 0

    @property
    def in_ml_dtypes(self) -> bool:
        """Whether NumPy has the type by the package `ml_dtypes` only."""
        return self.numpy_name in ML_DTYPES

    @property
    def is_small(self) -> bool:
        """Whether it is one of `ml_dtypes` with 8 bits or fewer, in a byte."""
        return self.item_size == 1 and self.numpy_name in ML_DTYPES

    @property
    def kind(self) -> str:
        """What the elements are, as NumPy's `dtype.kind` says of its own types: `f`, `i`, `u`, `b`, `c`, `O`.

        `dtype.kind` is `V` for most types of `ml_dtypes`, and not for all.
        """
        return ML_DTYPES.get(self.numpy_name) or _dtype(self.numpy_name).kind

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest number of a type of whole numbers."""
        bits = self.bits or 8 * self.item_size
        return (0, (1 << bits) - 1) if self.kind == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype, little-endian.

        Raises:
            ModuleNotFoundError: a type of `ml_dtypes` without that package; the message names the extra to install.
        """
        if self.numpy_name in ML_DTYPES:
            try:
                import ml_dtypes
            except ModuleNotFoundError as missing:
                message = f"{self.numpy_name} arrays need the package ml_dtypes: {install_command('bfloat16')}"
                raise ModuleNotFoundError(message, name=missing.name) from None
            return np.dtype(getattr(ml_dtypes, self.numpy_name))
        return _dtype(self.numpy_name)


ML_DTYPES: Mapping[str, str] = {
    "bfloat16": "f", "float8_e4m3fn": "f", "float8_e4m3fnuz": "f", "float8_e5m2": "f", "float8_e5m2fnuz": "f",
    "float8_e8m0fnu": "f", "float6_e2m3fn": "f", "float6_e3m2fn": "f", "float4_e2m1fn": "f", "int4": "i", "uint4": "u",
    "int2": "i", "uint2": "u",
}  # fmt: skip
"""Types that NumPy has by the package `ml_dtypes` only, and their `DataType.kind`."""


def load_ml_dtypes() -> None:
    """Let NumPy know the types of `ml_dtypes` by their names, as `np.load` needs it; nothing without the package."""
    with suppress(ModuleNotFoundError):
        importlib.import_module("ml_dtypes")


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
    DataType("float8_e4m3fn",   None, "float8e4m3fn",   17, None, "F8_E4M3",     1),
    DataType("float8_e4m3fnuz", None, "float8e4m3fnuz", 18, None, "F8_E4M3FNUZ", 1),
    DataType("float8_e5m2",     None, "float8e5m2",     19, None, "F8_E5M2",     1),
    DataType("float8_e5m2fnuz", None, "float8e5m2fnuz", 20, None, "F8_E5M2FNUZ", 1),
    DataType("float8_e8m0fnu",  None, "float8e8m0",     24, None, "F8_E8M0",     1),
    DataType("float6_e2m3fn",   None, "float6e2m3",     27, None, "F6_E2M3_U8",  1, 6),
    DataType("float6_e3m2fn",   None, "float6e3m2",     28, None, "F6_E3M2_U8",  1, 6),
    DataType("float4_e2m1fn",   None, "float4e2m1",     23, None, "F4_E2M1_U8",  1, 4),
    DataType("int4",            None, "int4",           22, None, "I4_U8",       1, 4),
    DataType("uint4",           None, "uint4",          21, None, "U4_U8",       1, 4),
    DataType("int2",            None, "int2",           26, None, "I2_U8",       1, 2),
    DataType("uint2",           None, "uint2",          25, None, "U2_U8",       1, 2),
)  # fmt: skip

_BY_NAME: dict[str, DataType] = {}
for _row in DATA_TYPES:
    for _name in (_row.numpy_name, _row.directml, _row.onnx, _row.open_inference, _row.safetensors):
        if _name is not None:
            _BY_NAME[_name] = _row  # systems share spellings, but no spelling has two meanings; a test proves it

_NUMERIC_ROWS = [row for row in DATA_TYPES if row.numpy_name != "str" and not row.in_ml_dtypes]
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


_PREFIXES = ("dml_tensor_data_type_", "onnx.tensorproto.", "tensorproto.", "numpy.", "np.", "torch.")
_WORDS = {
    **{name.lower(): row for name, row in _BY_NAME.items()},
    "half": data_type("float16"), "single": data_type("float32"),
}  # fmt: skip
del _WORDS["f16"]  # safetensors' F16 has 2 bytes; NumPy's f16 has 16, and is not read here


def type_named(word: str) -> DataType:
    """Find a type's row by what people write where a type is asked for: a name of `data_type`, or in other letters.

    So `Float16` and `fp16`, DirectML's `DML_TENSOR_DATA_TYPE_FLOAT16`, ONNX's `tensor(float16)` and
    `TensorProto.FLOAT16`, and NumPy's `half` and `np.float16`. What stands in a file is `data_type`'s business.

    Examples:
        >>> [type_named(word).numpy_name for word in ("tensor(float)", "np.float64", "Int8", "DOUBLE")]
        ['float32', 'float64', 'int8', 'float64']

    Raises:
        KeyError: no system here knows the name; the message lists all types.
    """
    name = word.strip() if word.isascii() else ""
    if name.lower().startswith("tensor(") and name.endswith(")"):
        name = name[len("tensor(") : -1]
    for prefix in _PREFIXES:
        if name.lower().startswith(prefix):
            name = name[len(prefix) :]
            if name == "float" and prefix in ("numpy.", "np."):
                name = "float64"  # which it was in NumPy; the word alone is ONNX's
    with suppress(KeyError):
        return data_type(name)
    row = _WORDS.get(name.lower())
    if row is None:
        names = ", ".join([each.numpy_name for each in DATA_TYPES])
        raise KeyError(
            f"{word[:60]!r} is not a data type; there are {names}, each also by its name in DirectML, ONNX, "
            "safetensors and the Open Inference Protocol, as FLOAT32, float, F32 and FP32"
        )
    return row


def directml_word(value: object) -> object:
    """DirectML's name of the type that a word names (`type_named`); any other value is returned unchanged."""
    if isinstance(value, str):
        with suppress(KeyError):
            return type_named(value.strip()).directml or value.strip()
    return value.strip() if isinstance(value, str) else value
