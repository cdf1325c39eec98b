"""Reading arguments as the libraries take them: an array or its description, sizes, factors, named constants.

What cannot be read is an `InvalidParameter` that names the argument, what it was and what it must be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..descriptors import BufferTensorDesc
from ..onnx import OnnxTensor
from ..values.checks import entries_of, real_number, whole_number
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
    number = whole_number(name, value)
    constant = next((key for key in known if known[key] == number), None)
    if constant is None:
        raise InvalidParameter(
            f"{name} is {number}; it must be one of " + ", ".join(f"{known[k]} ({k})" for k in known)
        )
    return constant


def _entries(name: str, value: object, count: int) -> list[tuple[str, object]]:
    """One entry per axis, each with its name; a single number is repeated."""
    entries = entries_of(value)
    if entries is None:
        return [(name, value)] * count
    if len(entries) != count:
        raise InvalidParameter(f"{name} has {entry_count(len(entries))}; it must have {count}")
    return [(f"{name}[{index}]", entry) for index, entry in enumerate(entries)]


def read_sizes(name: str, value: object, count: int, least: int = 1) -> tuple[int, ...]:
    """Whole numbers of `least` or more, one per axis; a single one is repeated."""
    return tuple([whole_number(place, entry, least) for place, entry in _entries(name, value, count)])


def read_numbers(name: str, value: object, count: int) -> tuple[float, ...]:
    """Numbers, one per axis; a single one is repeated."""
    return tuple([real_number(place, entry) for place, entry in _entries(name, value, count)])
