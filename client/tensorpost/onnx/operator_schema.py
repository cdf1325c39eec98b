"""What a version of an ONNX operator says of its inputs, outputs and attributes, as frozen values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from ..values.datatypes import data_type

AttributeType = Literal["FLOAT", "INT", "STRING", "TENSOR", "FLOATS", "INTS"]
InputValues = tuple[int | float, ...]
"""The numbers of a small input."""
AttributeValue = str | int | float | tuple[int, ...] | tuple[float, ...] | tuple[str, int | float]
_NumpyName = str  # NumPy's name, the key of `DATA_TYPES`


@dataclass(frozen=True, slots=True)
class OnnxInput:
    """One input of an operator.

    Attributes:
        name: its formal name.
        types: NumPy names of the element types it may have.
        optional: whether it may be left out.
        data: whether it is a tensor that is worked on, described by type and shape. The others are small, decide the
            output's shape, and belong to the node by value.
        variable: the type that it shares with other inputs and outputs, as in `T`; empty if with none.
        variadic: whether any number of tensors may stand here, named `name_0` and so on.
    """

    name: str
    types: tuple[_NumpyName, ...]
    optional: bool = False
    data: bool = False
    variable: str = ""
    variadic: bool = False


@dataclass(frozen=True, slots=True)
class OnnxOutput:
    """One output of an operator.

    Attributes:
        name: its formal name.
        types: NumPy names of the element types it may have.
        variable: the type that it shares with inputs and other outputs; see `OnnxInput`.
        optional: whether a node may leave it out.
        variadic: whether there is any number of them.
    """

    name: str
    types: tuple[_NumpyName, ...]
    variable: str = ""
    optional: bool = False
    variadic: bool = False


@dataclass(frozen=True, slots=True)
class OnnxAttribute:
    """One attribute of an operator.

    Attributes:
        name: its name.
        type: ONNX's attribute type; FLOAT is 32 bits wide.
        default: the value when it is left out; None if there is none.
        choices: the values it may have; empty if any.
        required: whether it must be given.
    """

    name: str
    type: AttributeType
    default: str | int | float | tuple[int, ...] | None = None
    choices: tuple[str | int, ...] = ()
    required: bool = False


@dataclass(frozen=True)
class OnnxSchema:
    """One version of an operator.

    Attributes:
        op_type: its name, as in `Resize`.
        since_version: the opset that brought this version; also the version's number.
        last_opset: the last opset that means this version; None if it is the newest.
        inputs: what it takes, in order.
        attributes: the attributes that a node may have.
        summary: what it does, in a sentence; empty where ONNX's page says it.
        outputs: what it makes, in order.
    """

    op_type: str
    since_version: int
    last_opset: int | None
    inputs: tuple[OnnxInput, ...]
    attributes: tuple[OnnxAttribute, ...]
    summary: str = ""
    outputs: tuple[OnnxOutput, ...] = (OnnxOutput("output", ()),)

    @cached_property
    def name(self) -> str:
        """Operator and version, as in `Resize-19`."""
        return f"{self.op_type}-{self.since_version}"

    @cached_property
    def data_inputs(self) -> tuple[OnnxInput, ...]:
        """The tensors that are worked on."""
        return tuple([entry for entry in self.inputs if entry.data])

    @cached_property
    def value_inputs(self) -> tuple[OnnxInput, ...]:
        """The small inputs that are part of the node."""
        return tuple([entry for entry in self.inputs if not entry.data])

    def input(self, name: str) -> OnnxInput | None:
        """The input of that name."""
        return next((entry for entry in self.inputs if entry.name == name), None)

    def attribute(self, name: str) -> OnnxAttribute | None:
        """The attribute of that name."""
        return next((entry for entry in self.attributes if entry.name == name), None)

    def with_values(self, names: Collection[str]) -> OnnxSchema:
        """The same with these inputs as small ones, by value."""
        inputs = tuple([replace(entry, data=False) if entry.name in names else entry for entry in self.inputs])
        return replace(self, inputs=inputs)

    def to_json(self) -> dict[str, Any]:
        """The entry of a catalogue, with ONNX's names for types."""
        return {
            "op_type": self.op_type,
            "since_version": self.since_version,
            "last_opset": self.last_opset,
            "summary": self.summary,
            "inputs": [
                {
                    "name": entry.name,
                    "types": [data_type(name).onnx for name in entry.types],
                    "optional": entry.optional,
                    "role": "tensor" if entry.data else "value",
                }
                | ({"variadic": True} if entry.variadic else {})
                for entry in self.inputs
            ],
            "attributes": [
                {
                    "name": entry.name,
                    "type": entry.type,
                    "required": entry.required,
                    "default": list(entry.default) if isinstance(entry.default, tuple) else entry.default,
                    "choices": list(entry.choices),
                }
                for entry in self.attributes
            ],
        }
