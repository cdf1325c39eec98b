"""Tiny tensors as plain JSON: `{"dtype": "F32", "shape": [2], "data": [0.1, 2.0]}`, both ways.

The rules of this file, besides those of `bodies/heads.py`:

1. Every finite value goes out and comes back as the same bits. What JSON cannot say, NaN and infinity, is not written.
2. Numbers must suit the type; nothing is truncated, wrapped or turned from a boolean into a number.
3. The array's memory is in proportion to the document: data and shape agree before an array is made.

Everything here is tensorpost's choice; the names of the types in `dtype` are those of the safetensors README.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..values.datatypes import DATA_TYPES, DataType
from ..values.problems import InvalidDescriptor, InvalidParameter, Violation, json_path
from .heads import ANY_NAME, JsonPath, is_array, is_object, shape_violation

__all__ = ["json_type", "tensor_from_json", "tensor_to_json"]

_MOST_VIOLATIONS = 8  # of a JSON tensor's elements; a million wrong numbers need no million messages
_OUR_JSON = "tensorpost's JSON form of a tensor"

_TYPES = tuple(row for row in DATA_TYPES if row.safetensors is not None and row.numpy_name != "complex64")
_KEYS = ("dtype", "shape", "data")
# What a JSON reader makes of an element, by NumPy's kind of dtype; bool is not int here.
_INTEGER = (frozenset({int}), "a whole number, without a decimal point")
_ELEMENTS = {"b": (frozenset({bool}), "true or false"), "i": _INTEGER, "u": _INTEGER}
_TEXT = frozenset({str})
_REAL = (frozenset({int, float}), "a number")


def tensor_to_json(array: NDArray[Any]) -> dict[str, Any]:
    """Write a small array as plain JSON: `{"dtype": "F32", "shape": [2], "data": [0.1, 2.0]}`.

    The data is flat, row-major. Floats have short decimals that read back to the same bits, integers are exact
    (readers that hold numbers as float64, browsers for one, round integers beyond 2^53). -0.0 is kept.

    Raises:
        InvalidParameter: NaN or infinity, which JSON cannot represent; complex numbers, text and other types.
    """
    array = np.asarray(array)
    row = json_type(array)
    flat = array.ravel()
    if row.kind in "biu" or row.numpy_name == "float64":
        data: list[Any] = flat.tolist()
    else:
        short = np.array([float(str(element)) for element in flat], np.float64)
        # Seldom, decimals that are right for the narrow type land beside it when read as float64 first.
        data = np.where(short.astype(flat.dtype) == flat, short, flat.astype(np.float64)).tolist()
    return {"dtype": row.safetensors, "shape": list(array.shape), "data": data}


def json_type(array: NDArray[Any]) -> DataType:
    """The data type of an array that can be written as plain JSON.

    Raises:
        InvalidParameter: NaN or infinity, which JSON cannot represent; complex numbers, text and other types.
    """
    row = ANY_NAME.get(array.dtype.name)
    if row not in _TYPES:
        raise InvalidParameter(
            f"an array of {array.dtype} has no JSON form here; JSON tensors hold numbers and booleans"
        )
    if row.kind not in "biu":
        with np.errstate(invalid="ignore"):  # a signalling NaN is refused like any other
            bad = np.flatnonzero(~np.isfinite(array.astype(np.float64)))
        if bad.size:
            place = json_path(map(int, np.unravel_index(int(bad[0]), array.shape)))[1:] or "[]"
            raise InvalidParameter(
                f"{bad.size} of {array.size} elements are not finite, the first at {place}: JSON cannot "
                "represent NaN or infinity; ask for a binary form, npy or a frame (safetensors)"
            )
    return row


def tensor_from_json(document: Mapping[str, Any], *, path: tuple[str | int, ...] = ()) -> NDArray[Any]:
    """Read `{"dtype": ..., "shape": [...], "data": [...]}`, the data nested like the shape, or flat.

    Numbers must suit the type: no fractions or decimal points in integers, nothing out of range, `true` and `false` in
    booleans and nowhere else. Decimals are rounded to the nearest value. NaN and infinities, which only reach this
    function if the JSON's reader let them pass, are kept in floating-point types.

    Args:
        document: the parsed JSON object; `dtype` may be any of the type's names.
        path: where the object stands in the whole document, for the paths of violations.

    Returns:
        A new row-major array, its memory in proportion to the document; of strings an array of objects.

    Raises:
        InvalidDescriptor: the document is not such a tensor; up to 8 violations say where, by JSON path.
        ModuleNotFoundError: bfloat16 without the package `ml_dtypes`.
    """
    row, sizes, data = _members(document, path)
    flat, grid = _flat_data(data, sizes, (*path, "data"))
    count = math.prod(sizes)
    if len(flat) != count:
        raise _invalid(
            "data-count", (*path, "data"), f"has {len(flat):,} elements; shape {list(sizes)} needs {count:,}",
            len(flat), f"{count:,} elements",
        )  # fmt: skip

    def refuse(code: str, wrong: Iterable[int], expected: str) -> NoReturn:
        places = ((index, map(int, np.unravel_index(index, grid))) for index in wrong)
        raise InvalidDescriptor.of(
            [
                Violation(code, (*path, "data", *place), f"must be {expected}", flat[index], expected, _OUR_JSON)
                for index, place in itertools.islice(places, _MOST_VIOLATIONS)
            ]
        )

    dtype = row.dtype
    if row.kind == "O":
        if not _TEXT.issuperset(map(type, flat)):
            refuse("element-type", (i for i, x in enumerate(flat) if type(x) is not str), "a text")
        strings = np.empty(count, object)
        strings[:] = flat
        return strings.reshape(sizes)
    allowed, words = _ELEMENTS.get(row.kind, _REAL)
    if not allowed.issuperset(map(type, flat)):
        refuse("element-type", (i for i, x in enumerate(flat) if type(x) not in allowed), words)
    if row.kind in "iu":
        low, high = row.limits
        if flat and (min(flat) < low or max(flat) > high):
            wrong = (i for i, x in enumerate(flat) if not low <= x <= high)
            refuse("element-range", wrong, f"from {low} to {high} in {row.numpy_name}")
    if row.kind in "biu":
        return np.array(flat, np.int8 if row.is_small else dtype).astype(dtype).reshape(sizes)
    too_large = f"small enough for {row.numpy_name}"
    try:
        wide = np.array(flat, np.float64)
    except OverflowError:
        most = sys.float_info.max
        refuse("element-range", (i for i, x in enumerate(flat) if type(x) is int and abs(x) > most), too_large)
    with np.errstate(over="ignore"):
        array = wide.astype(dtype)
    infinite = np.flatnonzero(np.isinf(array) & np.isfinite(wide))
    if infinite.size:
        refuse("element-range", map(int, infinite), too_large)
    return array.reshape(sizes)


def _members(document: object, path: JsonPath) -> tuple[DataType, tuple[int, ...], object]:
    keys = ", ".join(_KEYS)
    if not is_object(document):
        raise _invalid("not-an-object", path, f"must be an object with the members {keys}", document, keys)
    missing = [(key, "field-missing", "is required") for key in _KEYS if key not in document]
    unknown = [(key, "field-unknown", "is not a member of a tensor") for key in document if key not in _KEYS]
    if missing or unknown:
        raise InvalidDescriptor.of(
            [
                Violation(code, (*path, key), message, document.get(key), keys, _OUR_JSON)
                for key, code, message in [*missing, *unknown][:_MOST_VIOLATIONS]
            ]
        )
    dtype, shape, data = (document[key] for key in _KEYS)
    row = ANY_NAME.get(dtype) if isinstance(dtype, str) else None
    if row is None or (row not in _TYPES and row.numpy_name != "str"):
        message = "is not a data type that JSON numbers, booleans or texts can express"
        names = ", ".join(row.safetensors or "" for row in _TYPES)
        raise _invalid("data-type-unknown", (*path, "dtype"), message, dtype, names)
    if not is_array(shape):
        raise _invalid("not-an-array", (*path, "shape"), "must be an array of sizes", shape, "for instance [3, 64]")
    broken = shape_violation(row, shape)
    if broken is not None:
        raise InvalidDescriptor.of([broken.prefixed(*path, "shape")])
    return row, tuple(shape), data


def _flat_data(data: object, sizes: tuple[int, ...], path: JsonPath) -> tuple[list[Any], tuple[int, ...]]:
    """The elements in a row, and the shape they stood in, for the paths of violations."""
    if not is_array(data):
        if sizes:
            message = "must be an array of elements, flat or nested like shape"
            raise _invalid("not-an-array", path, message, data, "an array")
        return [data], ()
    if not any(map(is_array, data)):
        return data, (len(data),)
    flat: list[Any] = []

    def descend(node: object, sizes: tuple[int, ...], place: tuple[int, ...]) -> None:
        # One level per size, so never deeper than MOST_DIMENSIONS.
        if not sizes:
            flat.append(node)
        elif not is_array(node) or len(node) != sizes[0]:
            value = f"{len(node):,} elements" if is_array(node) else "not an array"
            message = f"is {value}; data that nests must follow shape: {sizes[0]:,} elements here"
            raise _invalid("data-nesting", (*path, *place), message, value, f"{sizes[0]} elements")
        elif len(sizes) == 1:
            flat.extend(node)
        else:
            for index, child in enumerate(node):
                descend(child, sizes[1:], (*place, index))

    descend(data, sizes, ())
    return flat, sizes


def _invalid(code: str, path: JsonPath, message: str, value: object, expected: str) -> InvalidDescriptor:
    return InvalidDescriptor.of([Violation(code, path, message, value, expected, _OUR_JSON)])
