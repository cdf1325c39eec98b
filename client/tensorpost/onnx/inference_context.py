"""`InferenceContext`: what a node was given, as the rule of its operator reads it to infer the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from ..values.sentences import named
from .operator_schema import OnnxSchema
from .parameters import Parameters
from .report import Path, Report
from .tensor import OnnxTensor, Shape


class Broken(Exception):
    """A rule is broken; the report says which."""


class InferredOutputs(NamedTuple):
    """What a rule infers.

    Attributes:
        shapes: shapes of the outputs, in the signature's order; those that are not wanted may be among them.
        parameters: what is computed.
        types: NumPy names of the outputs' types, where their type variables do not say them.
    """

    shapes: Sequence[Shape]
    parameters: Parameters = Parameters()
    types: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class InferenceContext:
    """What a node was given: read, of the right types, but not yet looked at together.

    Attributes:
        schema: the version of the operator.
        tensors: type and shape of the tensors that are worked on, by name.
        values: the small inputs, by name.
        attributes: values by attribute name, for the attributes that have one.
        types: what the type variables stand for.
        outputs: how many outputs the node has; None for those that every node of this kind has. Split before opset 18
            makes this number of equal parts.
        report: where broken rules are noted.
        is_bounded: whether results whose sizes depend on elements are as large as they may be (`BoundedNode`).
    """

    schema: OnnxSchema
    tensors: Mapping[str, OnnxTensor]
    values: Mapping[str, tuple[int | float, ...]]
    attributes: Mapping[str, Any]
    types: Mapping[str, str]
    outputs: int | None
    report: Report
    is_bounded: bool = False

    @property
    def since(self) -> int:
        """The version's number."""
        return self.schema.since_version

    @property
    def first(self) -> OnnxTensor:
        """The first tensor."""
        return next(iter(self.tensors.values()))

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of all tensors."""
        return [tensor.shape for tensor in self.tensors.values()]

    def refuse(self, code: str, path: Path, message: str, value: object, expected: str) -> NoReturn:
        """Note a broken rule and end.

        Raises:
            Broken: every call ends with it.
        """
        self.report.add(code, path, message, value, expected)
        raise Broken

    def place(self, name: str) -> Path:
        """The path of an attribute or a small input, whichever this version has."""
        return ("inputs", name) if self.schema.input(name) is not None else ("attributes", name)

    def numbers(self, name: str) -> tuple[int | float, ...] | None:
        """Numbers of an attribute or of a small input, whichever this version has; None if they are left out."""
        value: Any = self.values.get(name, self.attributes.get(name))
        return value if value is None or hasattr(value, "__len__") else (value,)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """`numbers`, as whole ones."""
        numbers = self.numbers(name)
        return None if numbers is None else tuple(map(int, numbers))

    def integer(self, name: str, default: int | None = None) -> int:
        """One whole number."""
        numbers = self.integers(name)
        if numbers is None and default is not None:
            return default
        if numbers is None or len(numbers) != 1:
            self.refuse("array-length", self.place(name), named(name) + " must be one number", numbers, "one number")
        return numbers[0]

    def axis(self, name: str, rank: int, default: int | None = None, *, end: bool = False) -> int:
        """An axis counted from the front; negative ones count from the end in every version, our choice.

        Args:
            name: name of the attribute or small input.
            rank: how many dimensions the tensor has.
            default: if it is left out.
            end: whether the axis after the last one is legal.
        """
        return self._axis(self.integer(name, default), rank + end, self.place(name), rank)

    def axes(self, name: str, rank: int) -> tuple[int, ...] | None:
        """Distinct axes as `axis`, in the order they were given; None if they are left out."""
        numbers = self.integers(name)
        if numbers is None:
            return None
        path = self.place(name)
        axes = tuple(self._axis(axis, rank, (*path, index), rank) for index, axis in enumerate(numbers))
        if len(set(axes)) < len(axes):
            self.refuse("axis-repeated", path, named(name) + " names an axis twice", list(numbers), "distinct axes")
        return axes

    def _axis(self, axis: int, stop: int, path: Path, rank: int) -> int:
        if not -rank <= axis < stop:
            message = (named("axis") if path[-1] == "axis" else "axis") + f" {axis} does not exist in {rank} dimensions"
            self.refuse("axis-out-of-range", path, message, axis, f"{-rank} to {stop - 1}")
        return axis + rank if axis < 0 else axis
