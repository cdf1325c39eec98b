"""`InferredNode`: a node of which everything is known, whatever it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..values.operation import Slot
from .operator_schema import AttributeValue, InputValues, OnnxSchema
from .parameters import Parameters
from .tensor import OnnxTensor

AnyParameters = TypeVar("AnyParameters", bound=Parameters)


@dataclass(frozen=True, slots=True, init=False)
class InferredNode:
    """The fields of `OnnxNode`, which describes them."""

    op_type: str
    opset: int
    tensors: tuple[tuple[str, OnnxTensor], ...]
    values: tuple[tuple[str, InputValues], ...]
    attributes: tuple[tuple[str, AttributeValue], ...]
    results: tuple[tuple[str, OnnxTensor], ...]
    # What follows from the fields above costs nothing to compare, but much to hash.
    schema: OnnxSchema = field(hash=False, repr=False)
    meaning: Parameters = field(hash=False, repr=False)
    warnings: tuple[str, ...] = field(hash=False)

    @property
    def input(self) -> OnnxTensor:
        """Type and shape of the first tensor it works on."""
        return self.tensors[0][1]

    @property
    def output(self) -> OnnxTensor:
        """Type and shape of the first result."""
        return self.results[0][1]

    @property
    def inputs(self) -> tuple[Slot, ...]:
        """See `Operation.inputs`: the tensors that are worked on; other inputs are in the document, by value."""
        return tuple([Slot(name, tensor.layout) for name, tensor in self.tensors])

    @property
    def outputs(self) -> tuple[Slot, ...]:
        """See `Operation.outputs`."""
        return tuple([Slot(name, tensor.layout) for name, tensor in self.results])

    @property
    def parameters(self) -> tuple[tuple[str, Any], ...]:
        """The meaning as pairs of name and value."""
        return self.meaning.named()

    def parameters_as(self, cls: type[AnyParameters]) -> AnyParameters:
        """The meaning, which is of this class: the rule of the node's operator makes no other."""
        assert isinstance(self.meaning, cls), f"{self.op_type} has {type(self.meaning).__name__}, not {cls.__name__}"
        return self.meaning

    def value(self, name: str) -> InputValues | None:
        """The entries of a small input; None if it was left out."""
        return dict(self.values).get(name)

    def attribute(self, name: str) -> AttributeValue | None:
        """An attribute's value, its default included; None if it has neither."""
        return dict(self.attributes).get(name)
