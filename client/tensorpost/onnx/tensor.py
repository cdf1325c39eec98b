"""`OnnxTensor`: the element type and shape of a tensor, without its elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from ..values.datatypes import BOOLEANS, DATA_TYPES, DataType, data_type
from ..values.layout import Layout
from ..values.problems import InvalidDescriptor, Violation, nearest

__all__ = ["MAX_RANK", "OnnxTensor", "too_large"]

Shape = tuple[int, ...]
"""Elements per dimension."""

MAX_RANK = 64
"""Most dimensions of a tensor: those of a NumPy array (`NPY_MAXDIMS` since NumPy 2.0). ONNX names no limit."""

_INT64 = 1 << 63
_SOURCE = "ONNX IR, tensor types"
_TYPES = ", ".join(row.onnx for row in DATA_TYPES)

# (container, type) -> why the container cannot hold it, and what can
_NOT_CARRIED: Mapping[tuple[str, str], str] = {
    ("npy", "str"): "npy elements have one fixed size, and object arrays would need pickle",
    ("frame", "str"): "a frame's dtypes are those of safetensors, all of fixed size",
    ("frame", "complex128"): "safetensors has no complex128; send an npy body, or, for Tile, "
    "x.view(np.uint64).reshape(*x.shape, 2) with one more repeat of 1",
}


@dataclass(frozen=True)
class OnnxTensor:
    """Element type and shape of an ONNX tensor. Sizes of 0 and rank 0 are fine; the elements are packed, row-major.

    Attributes:
        data_type: NumPy's name of the element type; any name in `DATA_TYPES` or a NumPy dtype may be given.
        shape: elements per dimension.

    Examples:
        >>> OnnxTensor("float", (1, 2)) == OnnxTensor("FLOAT32", [1, 2])
        True

    Raises:
        InvalidDescriptor: an unknown type, or sizes that are not whole numbers from 0 to 2^63 - 1.
    """

    data_type: str
    shape: tuple[int, ...]

    def __init__(self, data_type: object, shape: Sequence[int]) -> None:
        violations: list[Violation] = []
        name = _type_name(data_type, violations)
        sizes = _sizes(shape, violations)
        if not violations and too_large(name, sizes):
            violations.append(
                Violation(
                    "tensor-too-large", ("shape",), "the tensor's bytes do not fit a signed 64-bit number",
                    list(sizes), "fewer than 2^63 bytes", "tensorpost's limit",
                )
            )  # fmt: skip
        if violations:
            raise InvalidDescriptor.of(violations)
        object.__setattr__(self, "data_type", name)
        object.__setattr__(self, "shape", sizes)

    @classmethod
    def describe(cls, array: Any) -> OnnxTensor:
        """The type and shape of an array.

        Raises:
            InvalidDescriptor: its dtype is not an ONNX type.
        """
        return cls("str" if getattr(array.dtype, "kind", "") in "OUST" else array.dtype, array.shape)

    @classmethod
    def from_json(cls, document: object) -> OnnxTensor:
        """Read `{"data_type": "float", "shape": [1, 2]}`.

        Raises:
            InvalidDescriptor: rules are broken; it lists every violation, with paths from this object.
        """
        if not isinstance(document, Mapping):
            raise InvalidDescriptor.of(
                [Violation("not-an-object", (), 'describe the tensor as {"data_type": ..., "shape": [...]}', document)]
            )
        members = cast("Mapping[str, Any]", document)
        violations = [
            Violation("field-missing", (key,), f"a tensor needs its {key}", None, f"the {key}", _SOURCE)
            for key in ("data_type", "shape")
            if key not in members
        ]
        for key in members:
            if key not in ("data_type", "shape"):
                guess = nearest(key, ("data_type", "shape"))
                hint = f"; did you mean {guess!r}?" if guess else ""
                message = f"a tensor has data_type and shape only{hint}"
                violations.append(
                    Violation("field-unknown", (key,), message, members[key], "data_type, shape", _SOURCE)
                )
        if "data_type" in members:
            _type_name(members["data_type"], violations)
        if "shape" in members:
            _sizes(members["shape"], violations)
        if violations:
            raise InvalidDescriptor.of(violations)
        return cls(members["data_type"], members["shape"])

    def to_json(self) -> dict[str, Any]:
        """`{"data_type": "float", "shape": [1, 2]}`, with ONNX's name of the type."""
        return {"data_type": self.row.onnx, "shape": list(self.shape)}

    @cached_property
    def row(self) -> DataType:
        """The type's row in `DATA_TYPES`."""
        return data_type(self.data_type)

    @cached_property
    def layout(self) -> Layout:
        """Where its elements lie: packed, row-major."""
        return Layout.row_major(self.row, self.shape)

    @property
    def element_count(self) -> int:
        """The product of the shape; 1 for rank 0."""
        return math.prod(self.shape)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the packed elements; 0 for strings, whose elements differ."""
        return self.element_count * self.row.item_size

    def require_carriable(self, container: str) -> None:
        """Refuse a type that a body of this kind cannot hold. Strings travel in neither, but as JSON.

        Args:
            container: `npy` or `frame`.

        Raises:
            InvalidDescriptor: the message says why, and what to do instead.
        """
        reason = _NOT_CARRIED.get((container, self.data_type))
        if reason is None:
            return
        if self.data_type == "str":
            reason += "; JSON does, and Client.run and Client.onnx take strings whole"
        message = f"tensor({self.row.onnx}) cannot travel in this body: {reason}"
        raise InvalidDescriptor.of([
            Violation("type-not-carried", ("data_type",), message, self.row.onnx, "", "npy and safetensors formats")
        ])  # fmt: skip


def too_large(data_type_name: str, shape: Sequence[int]) -> bool:
    """Whether the elements' count or bytes exceed int64, not counting sizes of 0.

    NumPy refuses such shapes too, even if another size is 0.
    """
    return math.prod(filter(None, shape)) * max(1, data_type(data_type_name).item_size) >= _INT64


def _type_name(value: object, violations: list[Violation]) -> str:
    try:
        return data_type(cast("Any", value)).numpy_name
    except KeyError:
        guess = nearest(value, [row.onnx for row in DATA_TYPES]) if isinstance(value, str) else None
        hint = f"; did you mean {guess!r}?" if guess else ""
        message = f"{str(value)[:60]!r} is not an element type known here{hint}"
        violations.append(
            Violation("data-type-unknown", ("data_type",), message, str(value), f"one of {_TYPES}", _SOURCE)
        )
        return ""


def _sizes(value: object, violations: list[Violation]) -> tuple[int, ...]:
    if hasattr(value, "tolist"):
        value = cast("Any", value).tolist()
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        violations.append(
            Violation("not-an-array", ("shape",), "a shape is an array of whole numbers", value, "", _SOURCE)
        )
        return ()
    items = cast("Sequence[object]", value)
    if len(items) > MAX_RANK:
        message = f"the shape has {len(items)} dimensions; at most {MAX_RANK} are possible here"
        violations.append(Violation("rank", ("shape",), message, len(items), f"at most {MAX_RANK}", "NumPy's limit"))
        return ()
    sizes: list[int] = []
    for axis, item in enumerate(items):
        try:
            size = -1 if isinstance(item, BOOLEANS) else operator.index(cast("Any", item))
        except TypeError:
            size = -1
        if not 0 <= size < _INT64:
            message = f"size {axis} of the shape is not a whole number from 0 up"
            violations.append(Violation("size", ("shape", axis), message, item, "0 to 2^63 - 1", _SOURCE))
        sizes.append(size)
    return tuple(sizes)
