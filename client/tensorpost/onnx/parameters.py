"""What nodes compute, as typed values without anything of an operator's version: made by rules, read by forms."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from .tensor import Shape


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of an operator that has none, and the base of all others."""

    def named(self) -> tuple[tuple[str, Any], ...]:
        """Name and value of each, in order."""
        return tuple([(field.name, getattr(self, field.name)) for field in fields(self)])


@dataclass(frozen=True, slots=True)
class BroadcastParameters(Parameters):
    """The sizes of every tensor in the output's rank, 1 where it is repeated; none if all have the output's shape."""

    input_sizes: tuple[Shape, ...] = ()


@dataclass(frozen=True, slots=True)
class AxisParameters(Parameters):
    """The axis along which it is computed."""

    axis: int


@dataclass(frozen=True, slots=True)
class AxesParameters(Parameters):
    """The axes along which it is computed, together."""

    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PositionParameters(AxesParameters):
    """Whether the last of equal elements counts, or the first."""

    last: bool


@dataclass(frozen=True, slots=True)
class TopKParameters(Parameters):
    """How many of the largest, or of the smallest, elements of each line are taken, in order."""

    axis: int
    k: int
    largest: bool


@dataclass(frozen=True, slots=True)
class ScanParameters(Parameters):
    """The axis along which a scan runs, whether from its end, and whether it leaves out the element itself."""

    axis: int
    backward: bool
    exclusive: bool


@dataclass(frozen=True, slots=True)
class GemmParameters(Parameters):
    """`alpha * A B + beta * C`, with A and B transposed or not; `inner` is the length of their sums."""

    transposed: tuple[bool, bool]
    alpha: float
    beta: float
    inner: int


@dataclass(frozen=True, slots=True)
class MatMulParameters(Parameters):
    """A product of matrices.

    Attributes:
        whole: the batch, rows and columns of the product, with those that a vector does not have.
        inner: the length of the sums.
        zeros: names of the zero points that there are; None where integers have none.
    """

    whole: Shape
    inner: int
    zeros: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class BlockedScaleParameters(Parameters):
    """A scale for each `block` elements along the axis."""

    axis: int
    block: int


@dataclass(frozen=True, slots=True)
class TransposeParameters(Parameters):
    """Axis i of the output is axis `perm[i]` of the input."""

    perm: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExpandParameters(Parameters):
    """The input's sizes in the output's rank."""

    aligned: Shape


@dataclass(frozen=True, slots=True)
class SliceParameters(Parameters):
    """The first element along each axis, and the step to the next one, which may be negative."""

    start: tuple[int, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PadParameters(Parameters):
    """Elements before the first along each axis, negative where some are cut off, and what they are."""

    before: tuple[int, ...]
    mode: str
    value: int | float


@dataclass(frozen=True, slots=True)
class BlockParameters(Parameters):
    """The side of a square of elements that is a run of channels; DCR or CRD: in which order those are numbered."""

    block: int
    mode: str


@dataclass(frozen=True, slots=True)
class ShapeParameters(Parameters):
    """The sizes that are the output."""

    values: Shape


@dataclass(frozen=True, slots=True)
class ConstantParameters(Parameters):
    """The number that every element of the output is."""

    value: int | float


@dataclass(frozen=True, slots=True)
class RangeParameters(Parameters):
    """The first element, and the difference from one to the next."""

    start: int | float
    delta: int | float


@dataclass(frozen=True, slots=True)
class BatchParameters(Parameters):
    """How many leading axes data and indices share."""

    batch: int


@dataclass(frozen=True, slots=True)
class ReductionParameters(Parameters):
    """How updates are combined with what is there: none, add, mul, max or min."""

    reduction: str


@dataclass(frozen=True, slots=True)
class ScatterParameters(AxisParameters):
    """How updates are combined with what is there, along the axis that indices count along."""

    reduction: str


@dataclass(frozen=True, slots=True)
class OneHotParameters(Parameters):
    """The axis that is added, and its length."""

    axis: int
    depth: int


@dataclass(frozen=True, slots=True)
class SequenceParameters(Parameters):
    """The axis along which sequences run: 0, or 1 where the batch is 0."""

    time: int


@dataclass(frozen=True, slots=True)
class DiagonalParameters(Parameters):
    """Which diagonal: 0 is the main one, positive ones lie above it."""

    k: int


@dataclass(frozen=True, slots=True)
class TriangleParameters(DiagonalParameters):
    """Whether what lies above the diagonal is kept, or what lies below it."""

    upper: bool


@dataclass(frozen=True, slots=True)
class FourierParameters(Parameters):
    """The axis, how many elements are transformed, backwards or not, and whether half of the spectrum is kept."""

    axis: int
    length: int
    inverse: bool
    onesided: bool


@dataclass(frozen=True, slots=True)
class FramesParameters(Parameters):
    """The distance of frames, their length, and whether half of the spectrum is kept."""

    step: int
    length: int
    onesided: bool


@dataclass(frozen=True, slots=True)
class ModelParameters(Parameters):
    """A model of the one node, as `onnx.ModelProto` in bytes, for ONNX Runtime."""

    model: bytes


class BoundedResult(NamedTuple):
    """A result whose sizes depend on elements.

    Attributes:
        name: its name in ONNX.
        data_type: NumPy name of its type.
        elements: the most elements that it may have.
        rank: how many sizes it has.
    """

    name: str
    data_type: str
    elements: int
    rank: int


@dataclass(frozen=True, slots=True)
class BoundedParameters(ModelParameters):
    """The results of a node of which the sizes depend on elements, and its model."""

    results: tuple[BoundedResult, ...]
