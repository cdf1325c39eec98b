"""Arrays from lists, numbers, pictures of Pillow, tensors of PyTorch, and anything else that NumPy can read."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Set
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..values.datatypes import ML_DTYPES, DataType, data_type
from ..values.problems import InvalidParameter
from .cuda_arrays import is_on_gpu
from .held_tensors import HeldTensor

# Modes of Pillow whose numbers are grey or colour as they are; those of the others are places in a palette, or inks.
_PICTURE_MODES = ("1", "L", "LA", "RGB", "RGBA", "I", "F")


class HasArrayInterface(Protocol):
    """What NumPy reads without a copy: pictures of Pillow, for one."""

    @property
    def __array_interface__(self) -> Mapping[str, Any]: ...


class HasDlpack(Protocol):
    """What speaks DLPack: the arrays of most libraries."""

    def __dlpack__(self) -> Any: ...


TensorLike: TypeAlias = ArrayLike | HasArrayInterface | HasDlpack
"""What `as_array` makes an array of."""


def as_array(name: str, value: object, *, texts: bool = False) -> NDArray[Any]:
    """Convert a value to an array. An array is returned unchanged; other values are copied only where NumPy must.

    Taken are numbers, lists and tuples of numbers, and whatever has `__array__`, `__array_interface__`, `__dlpack__` or
    the buffer protocol. A held tensor is returned as it is. A PyTorch tensor is detached and brought to the CPU,
    bfloat16 included; arrays of CuPy, and others that lie on a CUDA device as DLPack says, are brought there too.

    Args:
        name: its name in messages.
        value: the array, or a value that can be converted to one.
        texts: whether a list may also hold texts, as an array may.

    Raises:
        InvalidParameter: it is none of these, holds no numbers, or has a mask or a palette.
        ModuleNotFoundError: a bfloat16 tensor without the package `ml_dtypes`.
    """
    if isinstance(value, HeldTensor):
        return cast("NDArray[Any]", value)  # which has type and shape, and whose elements stay where they are
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        refuse_mask(name, array)
        if array.dtype.kind == "O":
            for index, item in enumerate(array.flat):
                if not isinstance(item, (str, bytes)):
                    raise InvalidParameter(
                        f"{name} is an array of objects that are not texts: element {index} is a "
                        f"{type(item).__name__}; convert it, as in x.astype(np.float64)"
                    )
        return array
    if value is None or isinstance(value, (str, Mapping, Set)):
        raise _no_array(name, cast("object", value))
    try:
        if type(value).__module__.partition(".")[0] == "torch":
            array = _of_torch(cast("Any", value))
        elif type(value).__module__.startswith("PIL."):
            array = _of_picture(name, cast("Any", value))
        elif type(value).__module__.partition(".")[0] == "cupy":
            array = cast("Any", value).get()
        elif not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
            given = cast("Any", value)
            # The producer copies what the CPU cannot read, if it is asked.
            array = np.from_dlpack(given, device="cpu") if is_on_gpu(given) else np.from_dlpack(given)
        elif isinstance(value, (bytes, bytearray)):
            array = np.frombuffer(value, np.uint8)
        else:
            array = np.asarray(cast("Any", value))
    except InvalidParameter:
        raise
    except (TypeError, ValueError, BufferError, RuntimeError, OverflowError) as error:
        raise _no_array(name, value, f": {error}") from None
    if isinstance(value, (list, tuple)):
        for item in cast("list[object]", value):
            refuse_mask(name, item)
    if array.dtype.kind in ("OSV" if texts else "OUSV") and not _is_extended(array.dtype):
        if array.dtype.kind == "O" and all(isinstance(item, int) for item in array.flat):
            raise InvalidParameter(f"{name} holds whole numbers that do not fit 64 bits")
        raise _no_array(name, cast("object", value))
    return array


def as_array_of(name: str, value: object, row: DataType) -> NDArray[Any]:
    """Convert a value to an array. Lists and numbers get the given type if they fit it; arrays keep their own.

    Raises:
        InvalidParameter: whatever `as_array` refuses, or a number that does not fit the type.
    """
    array = as_array(name, value)
    if not isinstance(value, (list, tuple, int, float, complex)) or array.dtype == row.dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(row.dtype)
        # Decimals go to the nearest value of a floating-point type; anything else must be kept.
        lossy = row.kind in "biu" and not np.array_equal(converted.astype(array.dtype), array)
        lossy = lossy or (array.dtype.kind == "c" and row.kind != "c")
        lossy = lossy or bool(
            (~np.isfinite(converted.astype(np.float64)) & np.isfinite(array.astype(np.float64))).any()
        )
    if lossy:
        raise InvalidParameter(f"{name} holds numbers that {row.numpy_name} cannot hold")
    return converted


def is_nested_numbers(value: object) -> bool:
    """Whether it is a list or tuple of numbers, or of such lists; what tells a tensor from a sequence of tensors."""
    while isinstance(value, (list, tuple)) and value:
        value = cast("Any", value)[0]
    return isinstance(value, (bool, int, float, complex, np.generic))


def refuse_mask(name: str, array: object, instead: str = "fill it first: x.filled(value)") -> None:
    """Refuse a masked array, whose mask would be lost.

    Raises:
        InvalidParameter: it is one.
    """
    # numpy.ma takes long to load, and there is no masked array where nobody has loaded it.
    if "numpy.ma" in sys.modules and isinstance(array, np.ma.MaskedArray):
        raise InvalidParameter(f"{name} is a masked array, and a tensor has no mask; {instead}")


def _of_picture(name: str, image: Any) -> NDArray[Any]:
    mode = str(image.mode)
    if mode not in _PICTURE_MODES and not mode.startswith("I;16"):
        wanted = "RGBA" if mode.endswith(("A", "a")) or "transparency" in image.info else "RGB"
        raise InvalidParameter(
            f"{name} is a picture of mode {mode}, whose numbers are not colours by themselves; convert it first: "
            f"{name}.convert({wanted!r})"
        )
    return np.asarray(image)


def _of_torch(tensor: Any) -> NDArray[Any]:
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        import torch  # pyright: ignore[reportMissingImports] # the caller's own; it is not a dependency

        return tensor.view(torch.int16).numpy().view(data_type("bfloat16").dtype)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] # NumPy has no bfloat16, the bits are the same
    return tensor.numpy()


def _is_extended(dtype: np.dtype[Any]) -> bool:
    """Whether it is a type of ml_dtypes, most of which NumPy calls void."""
    return dtype.name in ML_DTYPES


def _no_array(name: str, value: object, why: str = "") -> InvalidParameter:
    return InvalidParameter(
        f"{name} must be an array or what NumPy can make one of (numbers, lists, pictures, tensors), not "
        f"{type(value).__name__}{why}"
    )
