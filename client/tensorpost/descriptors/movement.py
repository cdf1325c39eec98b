"""Data movement: operators that copy elements to other places, bit for bit.

Sources: the DML_SLICE, DML_SLICE1, DML_SLICE_GRAD, DML_JOIN, DML_SPLIT, DML_PADDING and DML_PADDING1 pages.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

from ..values.datatypes import TensorDataType
from ..values.problems import Violation, counted
from ..values.sentences import named
from .catalogue import pascal_case
from .completion import Given, Inferred, Output, packed, with_size
from .feature_levels import FeatureLevel
from .fields import CEnum, Float, IntArray, ScalarUnion, UInt, UIntArray, count_of
from .operator_desc import OperatorDesc
from .tensor import MOST_TENSORS, BufferTensorDesc, TensorArray

__all__ = [
    "DataTypeOf",
    "JoinOperatorDesc",
    "Padding1OperatorDesc",
    "PaddingMode",
    "PaddingOperatorDesc",
    "Slice1OperatorDesc",
    "SliceGradOperatorDesc",
    "SliceOperatorDesc",
    "SplitOperatorDesc",
]

DataTypeOf = Annotated[TensorDataType, CEnum("DML_TENSOR_DATA_TYPE_")]


class PaddingMode(enum.IntEnum):
    """`DML_PADDING_MODE`: how the elements outside the input are made."""

    CONSTANT = 0
    EDGE = 1
    REFLECTION = 2
    SYMMETRIC = 3
    WRAP = 4


class SliceOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_SLICE`: every Strides[i]-th element from Offsets[i] on, Sizes[i] of them.

    Attributes:
        input_tensor: tensor to read.
        output_tensor: same DataType and rank, with `sizes` as its sizes.
        offsets: the first element along each dimension.
        dimension_count: number of entries of `offsets`; derived.
        sizes: elements to take along each dimension.
        strides: steps, at least 1.
    """

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    offsets: UIntArray
    dimension_count: UInt = count_of("offsets")
    sizes: UIntArray
    strides: UIntArray

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        yield Output("output_tensor", given.tensor("input_tensor").data_type, given.integers("sizes"), named("Sizes"))

    def operator_rules(self) -> Iterator[Violation]:
        """Every step lies inside the input; a stride of 0, of which the page says nothing, is refused."""
        yield from self.same_type_and_rank()
        yield from self.count_rules("dimension_count", "offsets")
        yield from self.one_entry_per_dimension("sizes", "strides")
        steps = zip(self.input_tensor.sizes, self.offsets, self.sizes, self.strides, strict=False)
        for axis, (length, offset, size, stride) in enumerate(steps):
            if stride < 1 or offset + stride * (size - 1) >= length:
                message = f"{size} elements, {stride} apart from {offset} on, do not lie in the input's {length}"
                yield self.broken("window", ("Sizes", axis), message, size, "a window inside the input")


class StridedWindow(OperatorDesc):
    """Base of SLICE1 and its gradient: a window of a whole, of which steps take a part.

    Attributes:
        whole: the field of the tensor that the window lies in.
        part: the field of the tensor of the elements that the steps reach.
    """

    whole: ClassVar[str]
    part: ClassVar[str]

    if TYPE_CHECKING:  # these stand after the tensors in each struct
        input_window_offsets: UIntArray
        input_window_sizes: UIntArray
        input_window_strides: IntArray

    def operator_rules(self) -> Iterator[Violation]:
        """The window lies inside the whole, and the part inside what the steps reach."""
        yield from self.same_type_and_rank()
        yield from self.count_rules("dimension_count", "input_window_offsets")
        yield from self.one_entry_per_dimension("input_window_sizes", "input_window_strides")
        role = "input" if self.whole == "input_tensor" else "output gradient"
        windows = zip(
            getattr(self, self.whole).sizes, getattr(self, self.part).sizes, self.input_window_offsets,
            self.input_window_sizes, self.input_window_strides, strict=False,
        )  # fmt: skip
        for axis, (length, count, offset, size, step) in enumerate(windows):
            most = _reached(size, step)
            if size < 1 or offset + size > length:
                message = (
                    f"the window of {counted(size, 'element')} from {offset} on is not inside the {role}'s "
                    f"{counted(length, 'element')}"
                )
                expected = f"1 to {max(1, length - offset)}"
                yield self.broken("window", ("InputWindowSizes", axis), message, size, expected)
            elif step == 0:
                message = "a step must not be 0"
                yield self.broken("stride-zero", ("InputWindowStrides", axis), message, step, "not 0")
            elif count > most:
                message = f"the steps reach {counted(most, 'element')} of the window, not {count}"
                path = (pascal_case(self.part), "Sizes", axis)
                yield self.broken("output-sizes", path, message, count, f"1 to {most}")


class Slice1OperatorDesc(StridedWindow):
    """`DML_OPERATOR_SLICE1`: every InputWindowStrides[i]-th element of a window; backwards from its end if negative.

    Attributes:
        input_tensor: tensor to read.
        output_tensor: same DataType and rank; as many elements as the steps reach, or fewer.
        dimension_count: number of entries of `input_window_offsets`; derived.
        input_window_offsets: the first element of the window along each dimension.
        input_window_sizes: elements of the window along each dimension, at least 1.
        input_window_strides: steps, not 0.
    """

    whole, part = "input_tensor", "output_tensor"

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    input_window_offsets: UIntArray
    dimension_count: UInt = count_of("input_window_offsets")
    input_window_sizes: UIntArray
    input_window_strides: IntArray

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        """Every element that the steps reach, of which a call may take fewer."""
        windows = zip(given.integers("input_window_sizes"), given.integers("input_window_strides"), strict=False)
        reached = [_reached(size, step) for size, step in windows]
        yield Output("output_tensor", given.tensor("input_tensor").data_type, reached, "")


class SliceGradOperatorDesc(StridedWindow):
    """`DML_OPERATOR_SLICE_GRAD`: lays a gradient where SLICE1 read its elements, over zeros.

    Attributes:
        input_gradient_tensor: tensor to read, of the sizes of SLICE1's output.
        output_gradient_tensor: same DataType and rank, of the sizes of SLICE1's input, which do not follow from others.
        dimension_count: number of entries of `input_window_offsets`; derived.
        input_window_offsets: the first element of SLICE1's window along each dimension.
        input_window_sizes: elements of the window along each dimension, at least 1.
        input_window_strides: steps, not 0; a negative one starts at the window's last element.
    """

    whole, part = "output_gradient_tensor", "input_gradient_tensor"

    input_gradient_tensor: BufferTensorDesc
    output_gradient_tensor: BufferTensorDesc
    input_window_offsets: UIntArray
    dimension_count: UInt = count_of("input_window_offsets")
    input_window_sizes: UIntArray
    input_window_strides: IntArray


def _reached(size: int, step: int) -> int:
    """How many elements of a window steps of this length reach; all for a step of 0, which is refused elsewhere."""
    return 1 + (size - 1) // max(1, abs(step))


class JoinOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_JOIN`: lays tensors one after the other along an axis.

    Attributes:
        input_count: number of entries of `input_tensors`; derived.
        input_tensors: tensors to read, equal in DataType and in all sizes but that of the axis.
        output_tensor: result, as long along the axis as all inputs together.
        axis: a dimension.
    """

    input_tensors: TensorArray
    input_count: UInt = count_of("input_tensors")
    output_tensor: BufferTensorDesc
    axis: UInt

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        tensors = given.tensors("input_tensors")
        axis = given.axis("axis", min([len(tensor.sizes) for tensor in tensors]))
        whole = sum(tensor.sizes[axis] for tensor in tensors)
        yield "output_tensor", packed(tensors[0].data_type, with_size(tensors[0].sizes, axis, whole))

    def operator_rules(self) -> Iterator[Violation]:
        """All tensors agree but in the axis, along which the inputs fill the output."""
        yield from self.same_type_and_rank()
        yield from self.count_is_length("input_count", "input_tensors")
        yield from _parts_fill_whole(self, "output_tensor", "input_tensors", self.axis)


class SplitOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_SPLIT`: cuts a tensor into parts along an axis; the inverse of JOIN.

    Attributes:
        input_tensor: tensor to read.
        output_count: number of entries of `output_tensors`; derived.
        output_tensors: the parts in order, equal in DataType and in all sizes but that of the axis.
        axis: a dimension.
    """

    input_tensor: BufferTensorDesc
    output_tensors: TensorArray
    output_count: UInt = count_of("output_tensors")
    axis: UInt

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """Parts of equal size where there is an OutputCount alone, if the axis can be cut so."""
        source, count = given.tensor("input_tensor"), given.integer("output_count")
        axis = given.axis("axis", len(source.sizes))
        if 0 < count <= MOST_TENSORS and source.sizes[axis] % count == 0:
            part = packed(source.data_type, with_size(source.sizes, axis, source.sizes[axis] // count))
            yield "output_tensors", [part] * min(count, source.sizes[axis])

    def operator_rules(self) -> Iterator[Violation]:
        """All tensors agree but in the axis, along which the outputs take the whole input."""
        yield from self.same_type_and_rank()
        yield from self.count_is_length("output_count", "output_tensors")
        yield from _parts_fill_whole(self, "input_tensor", "output_tensors", self.axis)


def _parts_fill_whole(desc: OperatorDesc, whole: str, parts: str, axis: int) -> Iterator[Violation]:
    sizes = list(getattr(desc, whole).sizes)
    yield from desc.axis_is_below(len(sizes))
    tensors: tuple[BufferTensorDesc, ...] = getattr(desc, parts)
    if axis >= len(sizes) or any(len(tensor.sizes) != len(sizes) for tensor in tensors):
        return
    for index, tensor in enumerate(tensors):
        wanted = with_size(sizes, axis, tensor.sizes[axis])
        if list(tensor.sizes) != wanted:
            field = "OutputTensors" if parts == "output_tensors" else "InputTensors"
            yield desc.broken(
                "sizes-differ", (field, index, "Sizes"),
                f"{field}[{index}] and the whole must agree in all sizes but that of axis {axis}",
                list(tensor.sizes), str(wanted),
            )  # fmt: skip
    total = sum(tensor.sizes[axis] for tensor in tensors)
    if total != sizes[axis]:
        field = "OutputTensor" if whole == "output_tensor" else "InputTensor"
        yield desc.broken(
            "sizes-do-not-add-up", (field, "Sizes"),
            f"along axis {axis} the parts have {counted(total, 'element')} together, the whole has {sizes[axis]}",
            sizes, f"{counted(total, 'element')} along axis {axis}",
        )  # fmt: skip


class _Padding(OperatorDesc):
    """Base of both versions of PADDING."""

    if TYPE_CHECKING:
        input_tensor: BufferTensorDesc
        padding_mode: PaddingMode

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        source = given.tensor("input_tensor")
        paddings = zip(source.sizes, given.integers("start_padding"), given.integers("end_padding"), strict=False)
        sizes = [sum(three) for three in paddings]
        yield Output("output_tensor", source.data_type, sizes, "the input's with both paddings")

    def operator_rules(self) -> Iterator[Violation]:
        """Types and ranks agree, and there is a padding for each dimension."""
        yield from self.same_type_and_rank()
        yield from self.count_rules("dimension_count", "start_padding")
        yield from self.one_entry_per_dimension("end_padding")

    def level_rules(self, level: FeatureLevel) -> Iterator[Violation]:
        """SYMMETRIC and WRAP are newer than PADDING, WRAP than PADDING1 too."""
        newer = {PaddingMode.SYMMETRIC: FeatureLevel.L3_0, PaddingMode.WRAP: FeatureLevel.L6_4}
        since = newer.get(self.padding_mode, level)
        if level < since:
            name = self.padding_mode.name
            message = named("PaddingMode") + f" {name} needs feature level {since}, not {level}"
            yield self.broken("mode-newer-than-level", ("PaddingMode",), message, name, f"{since} or above")


class PaddingOperatorDesc(_Padding):
    """`DML_OPERATOR_PADDING`: PADDING1 with a constant that is a FLOAT whatever the tensors' type.

    Attributes:
        input_tensor: tensor to read.
        output_tensor: same DataType and rank; as large as the input and both paddings.
        padding_mode: what the elements around the tensor are, see PADDING1; SYMMETRIC needs 3_0, WRAP 6_4.
        padding_value: the constant, cast to the tensors' type: truncated for integers, of which the low bits are kept
            where they do not fit; without effect in other modes.
        dimension_count: number of entries of `start_padding`; derived.
        start_padding: elements before the input along each dimension.
        end_padding: elements after it.
    """

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    padding_mode: Annotated[PaddingMode, CEnum("DML_PADDING_MODE_")]
    padding_value: Float = 0
    start_padding: UIntArray
    dimension_count: UInt = count_of("start_padding")
    end_padding: UIntArray


class Padding1OperatorDesc(_Padding):
    """`DML_OPERATOR_PADDING1`: surrounds a tensor with a constant, or with its own elements continued.

    Attributes:
        input_tensor: tensor to read.
        output_tensor: same DataType and rank; as large as the input and both paddings.
        padding_mode: CONSTANT, EDGE (the border repeated), REFLECTION (mirrored at the border element), SYMMETRIC
            (mirrored after it), WRAP (from the other side; needs 6_4).
        padding_value_data_type: the tensors' DataType.
        padding_value: the constant; without effect in other modes.
        dimension_count: number of entries of `start_padding`; derived.
        start_padding: elements before the input along each dimension.
        end_padding: elements after it.
    """

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    padding_mode: Annotated[PaddingMode, CEnum("DML_PADDING_MODE_")]
    padding_value_data_type: DataTypeOf
    padding_value: ScalarUnion = 0
    start_padding: UIntArray
    dimension_count: UInt = count_of("start_padding")
    end_padding: UIntArray

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        yield "padding_value_data_type", given.tensor("input_tensor").data_type
        yield from super().inferred(given)

    def operator_rules(self) -> Iterator[Violation]:
        """The value has the tensors' type."""
        yield from super().operator_rules()
        yield from scalar_type_is(self, "padding_value_data_type", self.input_tensor.data_type)
        yield from scalar_fits(self, "padding_value", self.padding_value_data_type)


def scalar_type_is(desc: OperatorDesc, field: str, wanted: TensorDataType) -> Iterator[Violation]:
    """The field that says how a `DML_SCALAR_UNION` is read must be the tensors' DataType."""
    found, name = getattr(desc, field), pascal_case(field)
    if found is not wanted:
        message = named(name) + f" must be the tensors' DataType, {wanted.name}"
        yield desc.broken("data-types-differ", (name,), message, found.name, wanted.name)


_LARGEST = {"FLOAT32": 3.4028235677973366e38, "FLOAT16": 65519.99}


def scalar_fits(desc: OperatorDesc, field: str, data_type: TensorDataType) -> Iterator[Violation]:
    """A `DML_SCALAR_UNION` must hold a number of the type it is read as."""
    value = getattr(desc, field)
    name = pascal_case(field)
    if not math.isfinite(value) or (data_type.name in _LARGEST and abs(value) > _LARGEST[data_type.name]):
        message = named(name) + f" is {value}, which is not finite as {data_type.name}; JSON has no infinity and no NaN"
        yield desc.broken("not-finite", (name,), message, str(value), "a finite number")
        return
    if data_type.name.lstrip("U").startswith("INT"):
        signed = not data_type.name.startswith("U")
        low, high = -(signed << (data_type.bits - 1)), (1 << (data_type.bits - signed)) - 1
        if not isinstance(value, int) or not low <= value <= high:
            message = named(name) + f" is {value}, which {data_type.name} cannot hold"
            yield desc.broken("out-of-range", (name,), message, value, f"a whole number from {low} to {high}")
