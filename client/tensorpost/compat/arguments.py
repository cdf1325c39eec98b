"""Reading arguments as the libraries take them: an array or its description, sizes, factors, named constants.

What cannot be read is an `InvalidParameter` that names the argument, what it was and what it must be.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ..descriptors import BufferTensorDesc
from ..onnx import OnnxTensor
from ..values.datatypes import BOOLEANS
from ..values.problems import InvalidParameter, entry_count, nearest

Described: TypeAlias = NDArray[Any] | BufferTensorDesc | OnnxTensor
"""What is resized: of an array only dtype and shape count."""


def read_tensor(x: object) -> OnnxTensor:
    """Type and shape of what is resized."""
    if isinstance(x, OnnxTensor):
        tensor = x
    elif isinstance(x, BufferTensorDesc):
        tensor = OnnxTensor(x.data_type.name, x.sizes)
    elif isinstance(x, np.ndarray):
        tensor = OnnxTensor.describe(x)
    else:
        raise InvalidParameter(
            f"x must be a NumPy array, a BufferTensorDesc or an OnnxTensor, not {type(x).__name__}; tensor.numpy() or "
            "np.asarray(image) make an array"
        )
    if not tensor.shape or 0 in tensor.shape:
        raise InvalidParameter(f"x has the shape {tensor.shape}; there is nothing to resize")
    return tensor


def no_such(name: str, value: object, known: Sequence[str]) -> str:
    """The sentence about a name that is none of the known ones."""
    guess = next((name for name in known if value and name.startswith(str(value))), None) or nearest(str(value), known)
    hint = f". Did you mean {guess!r}?" if guess else ""
    return f"{name} is {str(value)[:40]!r}; it must be one of {', '.join(known)}{hint}"


def read_constant(name: str, value: object, known: Mapping[str, int]) -> str:
    """The name of a library's constant, given as name or number."""
    if isinstance(value, str):
        if value not in known:
            raise InvalidParameter(no_such(name, value, list(known)))
        return value
    number = _whole(name, value)
    found = next((key for key, constant in known.items() if constant == number), None)
    if found is None:
        raise InvalidParameter(
            f"{name} is {number}; it must be one of " + ", ".join(f"{known[k]} ({k})" for k in known)
        )
    return found


def _listed(name: str, given: object, count: int) -> list[object]:
    """One entry per axis; a single number is repeated."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        return [given] * count
    entries = list(cast("Iterable[object]", given))
    if len(entries) != count:
        raise InvalidParameter(f"{name} has {entry_count(len(entries))}; it must have {count}")
    return entries


def read_sizes(name: str, given: object, count: int, least: int = 1) -> tuple[int, ...]:
    """Whole numbers of `least` or more, one per axis; a single one is repeated."""
    sizes = tuple(_whole(name, entry) for entry in _listed(name, given, count))
    if min(sizes) < least:
        raise InvalidParameter(f"{name} is {given!r}; every entry must be {least} or more")
    return sizes


def _whole(name: str, value: object) -> int:
    try:
        if isinstance(value, BOOLEANS):
            raise TypeError
        return operator.index(cast("Any", value))
    except TypeError:
        raise InvalidParameter(f"{name} has {str(value)[:40]!r}; it must be whole numbers") from None


def read_numbers(name: str, given: object, count: int) -> tuple[float, ...]:
    """Numbers, one per axis; a single one is repeated."""
    numbers: list[float] = []
    for entry in _listed(name, given, count):
        try:
            if isinstance(entry, (bool, str, bytes)):
                raise TypeError
            numbers.append(float(cast("Any", entry)))
        except (TypeError, ValueError, OverflowError):
            raise InvalidParameter(f"{name} has {str(entry)[:40]!r}; it must be numbers") from None
    return tuple(numbers)
