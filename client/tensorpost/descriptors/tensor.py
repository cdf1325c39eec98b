"""`DML_BUFFER_TENSOR_DESC`: the layout of a tensor in a buffer, with every rule proved in exact integers.

Sources: the DML_BUFFER_TENSOR_DESC page, "Using strides to express padding and memory layout" (addressing) and
"DirectML helper functions" (DMLCalcBufferTensorSize). Python integers do not wrap, so the helper's 32-bit overflow
cannot happen here: sizes and strides that need more than 2^32 - 1 elements are refused instead.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from ..values.datatypes import TensorDataType, data_type
from ..values.layout import Layout, is_one_to_one, last_index, packed_strides
from ..values.problems import InvalidDescriptor, InvalidParameter, Violation, entry_count
from .base import Descriptor, json_object
from .fields import CEnum, UInt, UIntArray, WholeNumber, length_of

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

__all__ = [
    "BufferTensorDesc",
    "TensorFlags",
    "is_one_to_one",
    "last_index",
    "minimum_tensor_size_in_bytes",
    "packed_strides",
]

MAX_ELEMENTS = 2**32 - 1
UINT64_MAX = 2**64 - 1
_LEAST_ALIGNMENT = 16  # bytes; the page asks for the element size only, DirectML refuses less than its minimum
_PAGE = "DML_BUFFER_TENSOR_DESC"
_BUFFER_TYPE = ("DML_TENSOR_TYPE_BUFFER", "BUFFER", 1)
_GUIDE = "DxDispatch's guide"


class TensorFlags(enum.IntFlag):
    """`DML_TENSOR_FLAGS`. OWNED_BY_DML is for inputs; here it means the same as NONE, since a request binds once."""

    OWNED_BY_DML = 1


def minimum_tensor_size_in_bytes(
    data_type: TensorDataType, sizes: Sequence[int], strides: Sequence[int] | None = None
) -> int:
    """DMLCalcBufferTensorSize in exact integers: bytes up to the last element, rounded up to a multiple of 4.

    Examples:
        >>> minimum_tensor_size_in_bytes(TensorDataType.FLOAT32, (2, 3), (5, 1))
        32
    """
    elements = math.prod(sizes) if strides is None else last_index(sizes, strides) + 1
    size_in_bytes = (elements * data_type.bits + 7) // 8
    return (size_in_bytes + 3) // 4 * 4


def _from_dtype(value: object) -> object:
    """NumPy dtypes and scalar types are welcome in Python; names and numbers are the enum's business."""
    if not isinstance(value, (np.dtype, type)):
        return value
    try:
        name = data_type(cast("Any", value)).directml
    except KeyError:
        name = None
    if name is None:
        raise PydanticCustomError(
            "enum-unknown", "{found} is not a DML_TENSOR_DATA_TYPE",
            {"found": str(cast("object", value))[:60], "expected": ", ".join(t.name for t in TensorDataType if t)},
        )  # fmt: skip
    return TensorDataType[name]


UInt64 = Annotated[
    int, WholeNumber("UINT64", UINT64_MAX), WithJsonSchema({"type": "integer", "minimum": 0, "maximum": UINT64_MAX})
]


class BufferTensorDesc(Descriptor):
    """`DML_BUFFER_TENSOR_DESC`: type, sizes and layout of a tensor in a buffer.

    Attributes:
        data_type: element type.
        flags: NONE or OWNED_BY_DML (inputs only).
        sizes: elements per dimension, 1 to 8 dimensions, each at least 1.
        dimension_count: derived; must agree with `sizes` if given.
        strides: elements (not bytes) to the next entry of each dimension; None means packed row-major. 0 broadcasts.
        total_tensor_size_in_bytes: size of the buffer range in bytes; 0 means the minimum.
        guaranteed_base_offset_alignment: bytes, a power of two of at least 16; 0 means none.

    Examples:
        >>> BufferTensorDesc(data_type="FLOAT32", sizes=(2, 3), strides=(5, 1)).total_tensor_size_in_bytes
        32

    Raises:
        InvalidDescriptor: rules are broken (DML_BUFFER_TENSOR_DESC page, and the limits beside it); all violations are
            in it.
    """

    data_type: Annotated[TensorDataType, CEnum("DML_TENSOR_DATA_TYPE_", first=_from_dtype)]
    flags: Annotated[TensorFlags, CEnum("DML_TENSOR_FLAG_")] = TensorFlags(0)
    sizes: UIntArray
    dimension_count: UInt = Field(default_factory=length_of("sizes"))
    strides: UIntArray | None = None
    total_tensor_size_in_bytes: UInt64 = Field(default=0, validate_default=True)
    guaranteed_base_offset_alignment: UInt = 0

    if TYPE_CHECKING:
        # What the constructor takes is wider than what the fields hold; `data` are the same by DirectML's names.
        def __init__(
            self,
            *,
            data_type: TensorDataType | DTypeLike | int = ...,
            flags: TensorFlags | str | int = ...,
            sizes: Sequence[int] | NDArray[np.integer[Any]] = ...,
            dimension_count: int = ...,
            strides: Sequence[int] | NDArray[np.integer[Any]] | None = ...,
            total_tensor_size_in_bytes: int = ...,
            guaranteed_base_offset_alignment: int = ...,
            **data: Any,
        ) -> None: ...

        def __hash__(self) -> int: ...  # Pydantic makes it, since the model is frozen

    @classmethod
    def _unwrap(cls, data: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...], list[Violation]]:
        """DxDispatch's long form is `{"Type": "DML_TENSOR_TYPE_BUFFER", "Desc": {...}}`."""
        if "Type" not in data and "Desc" not in data:
            return data, (), []
        kind, rest = data.get("Type", 1), {key: value for key, value in data.items() if key != "Type"}
        found: list[Violation] = []
        if isinstance(kind, bool) or not isinstance(kind, (str, int)) or kind not in _BUFFER_TYPE:
            message, expected = "Type must be DML_TENSOR_TYPE_BUFFER, the only kind DirectML has", "BUFFER or 1"
            found.append(Violation("tensor-type", ("Type",), message, kind, expected, "DML_TENSOR_TYPE"))
        if "Desc" not in rest:
            return rest, (), found
        desc = rest.pop("Desc")
        if rest:
            message, wrong = "a tensor in the long form has the members Type and Desc only", next(iter(rest))
            found.append(Violation("field-unknown", (wrong,), message, rest[wrong], "Type and Desc", _GUIDE))
        fields = json_object(desc)
        if fields is not None:
            return fields, ("Desc",), found
        found.append(Violation("not-an-object", ("Desc",), "Desc must be a JSON object", desc, "an object", _GUIDE))
        raise InvalidDescriptor.of(found)

    @field_validator("total_tensor_size_in_bytes", mode="after")
    @classmethod
    def _default_to_minimum(cls, value: int, info: ValidationInfo) -> int:
        known = info.data
        if value or not {"data_type", "sizes", "strides"} <= known.keys():
            return value
        sizes, strides = known["sizes"], known["strides"]
        if strides is not None and len(strides) != len(sizes):
            return value
        minimum = minimum_tensor_size_in_bytes(known["data_type"], sizes, strides)
        return min(max(minimum, 0), UINT64_MAX - 3)  # what does not fit breaks the element limit; the rules say so

    def _repr_html_(self) -> str:
        from ..values import notebooks as _html  # for notebooks only

        return _html.layout_html(self.layout)

    @classmethod
    def packed(cls, data_type: TensorDataType | str | DTypeLike, sizes: Sequence[int]) -> BufferTensorDesc:
        """A packed row-major tensor of this type and these sizes."""
        return cls(data_type=data_type, sizes=sizes)

    @property
    def effective_strides(self) -> tuple[int, ...]:
        """The strides in elements, packed ones written out."""
        return packed_strides(self.sizes) if self.strides is None else self.strides

    @property
    def element_count(self) -> int:
        """Logical elements: the product of the sizes."""
        return math.prod(self.sizes)

    @property
    def item_size(self) -> int:
        """Bytes per element; 0 for the 4-bit types, which share bytes."""
        return self.data_type.bits // 8

    @property
    def dtype(self) -> np.dtype[Any]:
        """The elements' NumPy dtype, little-endian.

        Raises:
            KeyError: NumPy has no 4-bit types.
        """
        return self.data_type.row.dtype

    @property
    def data_size_in_bytes(self) -> int:
        """Bytes from the first element to the end of the last one, without the rounding to 4."""
        return ((last_index(self.sizes, self.effective_strides) + 1) * self.data_type.bits + 7) // 8

    @property
    def is_packed(self) -> bool:
        """Whether the bytes are the plain row-major array, with nothing but the rounding to 4 after it."""
        if self.strides is not None:
            steps = zip(self.sizes, self.strides, packed_strides(self.sizes), strict=True)
            if any(size > 1 and stride != row_major for size, stride, row_major in steps):
                return False
        return self.total_tensor_size_in_bytes == minimum_tensor_size_in_bytes(self.data_type, self.sizes)

    @cached_property
    def layout(self) -> Layout:
        """Type, sizes, strides and bytes, as the tensor travels and lies in memory.

        A packed tensor's bytes are just its elements, without the rounding up to 4. A tensor of 4-bit elements is a
        line of bytes, with two elements in each (`four_bits.py`).
        """
        if self.data_type.bits == 4:
            size = self.data_size_in_bytes if self.is_packed else self.total_tensor_size_in_bytes
            return Layout.row_major(TensorDataType.UINT8.row, (size,))
        if self.is_packed:
            return Layout.row_major(self.data_type.row, self.sizes)
        strides = self.effective_strides
        return Layout(self.data_type.row, self.sizes, strides, self.total_tensor_size_in_bytes, packed=False)

    def rules(self) -> Iterator[Violation]:
        """Every broken rule of the DML_BUFFER_TENSOR_DESC page and of the limits that go with it."""
        if self.data_type is TensorDataType.UNKNOWN:
            yield Violation(
                "data-type-unknown", ("DataType",), "UNKNOWN is not an element type", "UNKNOWN",
                ", ".join(t.name for t in TensorDataType if t), _PAGE,
            )  # fmt: skip
        if self.dimension_count != len(self.sizes):
            yield Violation(
                "count-disagrees", ("DimensionCount",),
                f"DimensionCount is {self.dimension_count} but Sizes has {entry_count(len(self.sizes))}; "
                "leave it out or send the length", self.dimension_count, str(len(self.sizes)), _PAGE,
            )  # fmt: skip
        for axis, size in enumerate(self.sizes):
            if size == 0:
                yield Violation(
                    "size-zero", ("Sizes", axis),
                    "a size of 0 is an error in DirectML, which has no empty tensors", 0, "at least 1", _PAGE,
                )  # fmt: skip
        if self.strides is not None and len(self.strides) != len(self.sizes):
            yield Violation(
                "array-length", ("Strides",),
                f"Strides has {entry_count(len(self.strides))} but Sizes has {len(self.sizes)}", list(self.strides),
                entry_count(len(self.sizes)), _PAGE,
            )  # fmt: skip
        elif self.data_type.bits and all(self.sizes):
            yield from self._extent_rules()
        alignment = self.guaranteed_base_offset_alignment
        if alignment and (alignment & (alignment - 1) or alignment < _LEAST_ALIGNMENT):
            yield Violation(
                "alignment", ("GuaranteedBaseOffsetAlignment",),
                f"{alignment} is not 0 or a power of two of at least {_LEAST_ALIGNMENT} bytes", alignment,
                f"0, or a power of two from {_LEAST_ALIGNMENT} up", "DML_MINIMUM_BUFFER_TENSOR_ALIGNMENT",
            )  # fmt: skip

    def _extent_rules(self) -> Iterator[Violation]:
        minimum = minimum_tensor_size_in_bytes(self.data_type, self.sizes, self.strides)
        total, elements = self.total_tensor_size_in_bytes, math.prod(self.sizes)
        counts = {
            "Sizes": ("multiply to", elements),
            "Strides": ("reach", elements if self.strides is None else last_index(self.sizes, self.strides) + 1),
            "TotalTensorSizeInBytes": ("holds", total * 8 // self.data_type.bits),
        }
        too_many = [name for name, (_, count) in counts.items() if count > MAX_ELEMENTS]
        if self.strides is None and "Strides" in too_many:
            too_many.remove("Strides")  # packed: the same as Sizes
        if len(too_many) > 1 and total == min(minimum, UINT64_MAX - 3):
            too_many = [name for name in too_many if name != "TotalTensorSizeInBytes"]  # it follows from the others
        for name in too_many:
            verb, count = counts[name]
            yield Violation(
                "too-many-elements", (name,),
                f"{name} {verb} {count} elements; a DirectML buffer tensor has at most 2^32 - 1 = {MAX_ELEMENTS}",
                count, f"at most {MAX_ELEMENTS} elements", _PAGE,
            )  # fmt: skip
        if total < minimum and not too_many:
            yield Violation(
                "total-size-too-small", ("TotalTensorSizeInBytes",),
                f"Sizes and Strides reach {minimum} bytes (rounded up to 4), but the buffer has {total}; raise it "
                "or lower the strides", total, f"at least {minimum}, or 0 to have it computed",
                "DMLCalcBufferTensorSize",
            )  # fmt: skip

    def output_rules(self) -> Iterator[Violation]:
        """What holds for outputs only: one-to-one strides, and no OWNED_BY_DML."""
        if self.flags & TensorFlags.OWNED_BY_DML:
            yield Violation(
                "owned-output", ("Flags",), "OWNED_BY_DML is for input tensors only", "OWNED_BY_DML", "NONE",
                "DML_TENSOR_FLAGS",
            )  # fmt: skip
        if self.strides is None or len(self.strides) != len(self.sizes):
            return
        if all(self.sizes) and not is_one_to_one(self.sizes, self.strides):
            yield Violation(
                "strides-overlap", ("Strides",),
                "two output elements may share one address: ordered by size, each stride must be larger than the "
                "farthest offset that the smaller ones reach", list(self.strides), "one-to-one strides, none of 0",
                "tensorpost's rule for outputs; DirectML is silent",
            )  # fmt: skip

    def view(self, buffer: Any) -> NDArray[Any]:
        """The tensor's elements in a buffer, as an array of `sizes` (4-bit elements: the bytes); no copy.

        Read-only if the buffer is, or if elements share addresses.

        Raises:
            BodyMismatch: the buffer ends before the last element does; nothing was read.
        """
        return self.layout.view(buffer)

    def buffer_of(self, elements: Any) -> NDArray[np.uint8]:
        """A buffer of `total_tensor_size_in_bytes` with these elements at their places, and zeros between them.

        What a tensor with strides or padding is sent as. `view` reads the elements back.

        Args:
            elements: an array of the tensor's type and sizes.

        Raises:
            InvalidParameter: it has another type or other sizes, or elements that share an address (a stride of 0)
                are not the same.
        """
        layout, array = self.layout, np.asarray(elements)
        if array.dtype.newbyteorder("<") != layout.data_type.dtype or array.shape != layout.sizes:
            raise InvalidParameter(
                f"the elements are {array.dtype.name} of shape {array.shape}, but the tensor is "
                f"{layout.data_type.numpy_name} of {layout.sizes}; convert them"
            )
        buffer = np.zeros(self.total_tensor_size_in_bytes, np.uint8)
        places = layout.view(buffer)
        if places.flags.writeable:
            places[...] = array
            return buffer
        # Written at the first coordinate of each axis whose stride is 0; NumPy refuses to write the others.
        kept = tuple([slice(0, 1) if stride == 0 else slice(None) for stride in layout.strides])
        once = np.ndarray(places[kept].shape, places.dtype, buffer.data, 0, places.strides)
        once[...] = array[kept]
        if places.tobytes() != array.astype(layout.data_type.dtype, order="C").tobytes():
            raise InvalidParameter(
                f"with the strides {self.strides} elements share addresses, and these elements differ there; they must "
                "be the same, or have addresses of their own"
            )
        return buffer


MOST_TENSORS = 1024
"""Tensors in one array: DirectML names no limit; this one keeps a document and its frame's head small."""


def _to_tensor_list(value: object) -> object:
    if not isinstance(value, (list, tuple)):
        raise PydanticCustomError("not-an-array", "must be an array of tensors", {"expected": "an array of tensors"})
    tensors = cast("Sequence[object]", value)
    if not 1 <= len(tensors) <= MOST_TENSORS:
        raise PydanticCustomError(
            "tensor-count", "has {length} tensors, not 1 to {most}",
            {"length": len(tensors), "most": MOST_TENSORS, "expected": f"1 to {MOST_TENSORS} tensors"},
        )  # fmt: skip
    return list(tensors)


TensorArray = Annotated[tuple[BufferTensorDesc, ...], BeforeValidator(_to_tensor_list)]
"""`const DML_TENSOR_DESC*` with a count: 1 to `MOST_TENSORS` tensors."""
