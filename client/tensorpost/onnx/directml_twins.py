"""DirectML's operators that are the same function as an ONNX node, and what makes their descriptors.

Operators whose results differ in DirectML are left out: magnitudes and signs of integers, their quotients and
remainders, sums of
them that overflow, Clip (which bound wins), casts of floating-point numbers to integers, indices outside of their axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import descriptors as dml
from ..values.datatypes import TensorDataType
from .inferred_node import InferredNode
from .parameters import BroadcastParameters
from .tensor import OnnxTensor, Shape

if TYPE_CHECKING:
    from ..descriptors import BufferTensorDesc, OperatorDesc

MOST_DIMENSIONS = 8
FLOATS = ("float32", "float16")
INPUT = ("input_tensor",)

DescriptorFields: TypeAlias = Mapping[str, Any]
DirectmlTwin: TypeAlias = Callable[[InferredNode, int], "OperatorDesc"]
"""Makes the descriptor of a node; the number is the fewest dimensions that a feature level takes.

Raises:
    NotExpressible: the node has no twin.
"""


class NotExpressible(Exception):
    """Why a node has no DirectML operator of the same function."""


def untranslated(node: InferredNode, least_rank: int) -> OperatorDesc:
    """The row of an operator that DirectML does not have, or computes differently."""
    del least_rank
    raise NotExpressible(f"{node.op_type} is computed by ONNX's definition; there is no translation to DirectML")


def directml_type(tensor: OnnxTensor) -> TensorDataType:
    """The type that the elements' bits travel as."""
    name = "uint8" if tensor.data_type == "bool" else tensor.data_type
    if name.upper() not in TensorDataType.__members__:
        raise NotExpressible(f"DirectML has no {tensor.data_type}")
    return TensorDataType[name.upper()]


def padded(shape: Sequence[int], least_rank: int) -> Shape:
    """A shape with as many sizes of 1 in front as a level wants, at least one dimension."""
    if len(shape) > MOST_DIMENSIONS:
        raise NotExpressible(f"{len(shape)} dimensions are more than DirectML's {MOST_DIMENSIONS}")
    return (1,) * (max(least_rank, 1) - len(shape)) + tuple(shape)


def packed(tensor: OnnxTensor, least_rank: int, shape: Shape | None = None) -> BufferTensorDesc:
    """The tensor, with its own shape or another one of as many elements."""
    sizes = padded(tensor.shape if shape is None else shape, least_rank)
    return dml.BufferTensorDesc.packed(directml_type(tensor), sizes)


def spread(tensor: OnnxTensor, aligned: Sequence[int], output: Sequence[int]) -> BufferTensorDesc:
    """The tensor with the output's sizes, and strides of 0 where it has one element for all."""
    return strided(tensor, output, spread_strides(aligned, output))


def spread_strides(aligned: Sequence[int], output: Sequence[int]) -> list[int]:
    """Strides of a packed tensor of the aligned sizes, 0 where it has one element for all of the output's."""
    sizes = zip(aligned, output, strict=True)
    return [0 if size == 1 < whole else math.prod(aligned[axis + 1 :]) for axis, (size, whole) in enumerate(sizes)]


def strided(tensor: OnnxTensor, sizes: Sequence[int], strides: Sequence[int]) -> BufferTensorDesc:
    """The tensor's elements by strides, those of leading dimensions left out."""
    whole = (0,) * (len(sizes) - len(strides)) + tuple(strides)
    return dml.BufferTensorDesc(data_type=directml_type(tensor), sizes=tuple(sizes), strides=whole)


def shifted(node: InferredNode, axes: Sequence[int], least_rank: int) -> tuple[int, ...]:
    """Axes of the first tensor, counted in `padded`."""
    more = len(padded(node.input.shape, least_rank)) - len(node.input.shape)
    return tuple([axis + more for axis in axes])


def require_floats(node: InferredNode, reason: str) -> None:
    """Refuse a node of other types than DirectML's floating-point ones."""
    if node.input.data_type not in FLOATS:
        raise NotExpressible(reason)


def descriptor(name: str, **fields: Any) -> OperatorDesc:
    """The descriptor of DirectML's operator of this name."""
    return dml.operator_class(name)(**fields)


def mapped(name: str, node: InferredNode, least_rank: int, **fields: Any) -> OperatorDesc:
    """An operator of one tensor in and one out, both with the node's shapes."""
    tensors = {"input_tensor": packed(node.input, least_rank), "output_tensor": packed(node.output, least_rank)}
    return descriptor(name, **tensors, **fields)


def no_fields(node: InferredNode) -> DescriptorFields:
    """The other fields of an operator that has none."""
    del node
    return {}


@dataclass(frozen=True, slots=True)
class ElementWiseTwin:
    """A function of elements, a `DirectmlTwin`. The server computes ONNX's operator by the formula of DirectML's.

    Attributes:
        operator: DirectML's operator.
        tensors: its fields of the inputs, in the node's order.
        types: types of the first tensor for which the function is the same; all if empty.
        fields: its other fields.
    """

    operator: str
    tensors: tuple[str, ...] = INPUT
    types: Sequence[str] = ()
    fields: Callable[[InferredNode], DescriptorFields] = no_fields

    def __call__(self, node: InferredNode, least_rank: int) -> OperatorDesc:
        """The descriptor of a node."""
        tensors = [tensor for _, tensor in node.tensors]
        if self.types and tensors[0].data_type not in self.types:
            raise NotExpressible(
                f"of {tensors[0].data_type} DirectML's {self.operator} is another function, or does not exist"
            )
        if len(tensors) != len(self.tensors):
            raise NotExpressible(f"DirectML's {self.operator} has {len(self.tensors)} inputs, not {len(tensors)}")
        aligned = node.parameters_as(BroadcastParameters).input_sizes or [tensor.shape for tensor in tensors]
        output = padded(node.output.shape, least_rank)
        inputs = {
            field: spread(tensor, (1,) * (len(output) - len(sizes)) + tuple(sizes), output)
            for field, tensor, sizes in zip(self.tensors, tensors, aligned, strict=True)
        }
        return descriptor(self.operator, **inputs, output_tensor=packed(node.output, least_rank), **self.fields(node))


def unary(name: str, types: Sequence[str] = FLOATS) -> ElementWiseTwin:
    """ELEMENT_WISE_* of one tensor."""
    return ElementWiseTwin(f"ELEMENT_WISE_{name}", types=types)


def binary(name: str, types: Sequence[str] = ()) -> ElementWiseTwin:
    """ELEMENT_WISE_* of two tensors."""
    return ElementWiseTwin(f"ELEMENT_WISE_{name}", ("a_tensor", "b_tensor"), types)


def activation(name: str, **attributes: str) -> ElementWiseTwin:
    """ACTIVATION_*; `attributes` gives, for each of DirectML's fields, the node's attribute that it is taken from."""
    return ElementWiseTwin(
        f"ACTIVATION_{name}",
        types=FLOATS,
        fields=lambda node: {field: node.attribute(attribute) for field, attribute in attributes.items()},
    )
