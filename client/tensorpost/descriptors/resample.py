"""The Resample family: scale any dimensions by 32-bit factors, with nearest-neighbour or linear interpolation.

Sources: the DML_UPSAMPLE_2D_OPERATOR_DESC, DML_RESAMPLE_OPERATOR_DESC and DML_RESAMPLE1 to DML_RESAMPLE3 pages,
`DirectML.h`, and "DirectML feature level history".

The output's sizes are whatever OutputTensor says: a scale need not be output size / input size. Input that falls beyond
the output is cropped, and output beyond the input repeats the edge. The members differ in fields and in how nearest
rounds the coordinate `x = (o - OutputPixelOffset) / Scale - InputPixelOffset` of output index o:

====================  ==================  ==================================================
operator              offsets             nearest index of x, before clamping to the input
====================  ==================  ==================================================
UPSAMPLE_2D           0.5 and -0.5        floor(x + 0.5)
RESAMPLE              0.5 and -0.5        floor(x + 0.5)
RESAMPLE1             given               floor(x + 0.5)
RESAMPLE2, RESAMPLE3  given               floor(x) for DECREASING, ceil(x) for INCREASING
====================  ==================  ==================================================

The adjoints are in `resample_grad.py`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast

from pydantic import Field, ValidationError
from pydantic_core import PydanticCustomError

from tensorpost.datatypes import TensorDataType as T
from tensorpost.problems import Violation

from .base import Descriptor, OperatorDesc, postponed_rules
from .feature_levels import FeatureLevel, SupportRow
from .fields import UINT_MAX, Bool, CEnum, FloatArray, UInt, length_of, pascal_case, to_float32, to_float_list
from .tensor import BufferTensorDesc

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    # What the constructors take is wider than what the fields hold.
    TensorLike = BufferTensorDesc | Mapping[str, Any]
    Floats = Sequence[float] | NDArray[np.floating[Any]]

__all__ = [
    "AxisDirection",
    "Direction",
    "Interpolation",
    "InterpolationMode",
    "Resample1OperatorDesc",
    "Resample2OperatorDesc",
    "Resample3OperatorDesc",
    "ResampleFamily",
    "ResampleOperatorDesc",
    "Size2D",
    "Upsample2DOperatorDesc",
]

D = TypeVar("D", bound=Descriptor)
_FLOATS = (T.FLOAT32, T.FLOAT16)
_WITH_8_BITS = (*_FLOATS, T.INT8, T.UINT8)


class InterpolationMode(enum.IntEnum):
    """`DML_INTERPOLATION_MODE`: copy the nearest element, or blend the two neighbours of every axis."""

    NEAREST_NEIGHBOR = 0
    LINEAR = 1


class AxisDirection(enum.IntEnum):
    """`DML_AXIS_DIRECTION`: as a RoundingDirection, INCREASING is ceil and DECREASING is floor."""

    INCREASING = 0
    DECREASING = 1


Interpolation = Annotated[InterpolationMode, CEnum("DML_INTERPOLATION_MODE_")]
Direction = Annotated[AxisDirection, CEnum("DML_AXIS_DIRECTION_")]


class Size2D(Descriptor):
    """`DML_SIZE_2D`.

    Attributes:
        width: along the last dimension.
        height: along the last dimension but one.
    """

    width: UInt
    height: UInt

    if TYPE_CHECKING:

        def __init__(self, *, width: int = ..., height: int = ..., **data: Any) -> None: ...

        def __hash__(self) -> int: ...  # Pydantic makes it, since the model is frozen


class ResampleFamily(OperatorDesc):
    """What the members with arrays share. `array_fields` and `count_field` name them; the first array is the scales."""

    array_fields: ClassVar[tuple[str, ...]] = ("scales", "input_pixel_offsets", "output_pixel_offsets")
    count_field: ClassVar[str] = "dimension_count"
    forward_fields: ClassVar[tuple[str, str]] = ("input_tensor", "output_tensor")  # as the forward operator has them

    @classmethod
    def complete(cls, desc: Mapping[str, Any]) -> dict[str, Any]:
        """Add what was left out and follows from the rest, as DirectMLX does.

        An output tensor gets the sizes floor(input size * scale), exact for the 32-bit scale. Scales become output size
        / input size, rounded to 32 bits; offsets become 0.5 (input) and -0.5 (output). A gradient operator cannot know
        the size of the forward input from that of the forward output, so it completes no tensor.
        """
        desc = dict(desc)
        given = _Given(desc)
        source, target = (given.structure(BufferTensorDesc, name) for name in cls.forward_fields)
        known = source or target
        if known is not None:
            for name, value in (("input_pixel_offsets", 0.5), ("output_pixel_offsets", -0.5)):
                if name in cls.array_fields and not given.has(name):
                    desc[pascal_case(name)] = [value] * len(known.sizes)
        if source is not None and target is not None and not given.has("scales"):
            pairs = zip(source.sizes, target.sizes, strict=False)
            desc["Scales"] = [out / size if size else 0.0 for size, out in pairs]
        scales = given.floats("scales")
        completes = cls.forward_fields[1] in cls.output_fields and not given.has(cls.forward_fields[1])
        if completes and source is not None and scales is not None:
            # What is wrong with a scale or with their count is left for the rules to name.
            pairs = zip(source.sizes, scales, strict=False)
            sizes = [math.floor(size * Fraction(scale)) if scale > 0 else size for size, scale in pairs]
            sizes += source.sizes[len(sizes) :]
            desc[pascal_case(cls.forward_fields[1])] = {"DataType": source.data_type, "Sizes": sizes}
        return desc

    def rules(self) -> Iterator[Violation]:
        """Every broken rule of the operator's page, and of its tensors.

        The pages say nothing of scales that are not positive; that they are refused is tensorpost's choice.
        """
        yield from self.tensor_rules()
        yield from self.same_type_and_rank()
        yield from self.count_rules(self.count_field, self.array_fields[0])
        rank = len(next(iter(self.tensors().values())).sizes)
        for field in self.array_fields[1:]:
            values = getattr(self, field)
            if len(values) != rank:
                name = pascal_case(field)
                yield Violation(
                    "array-length", (name,),
                    f"{name} has {len(values)} entries but the tensors have {rank} dimensions; "
                    "send one entry per dimension", list(values), f"{rank} entries", self._page(),
                )  # fmt: skip
        for axis, scale in enumerate(getattr(self, self.array_fields[0])):
            if scale <= 0:
                yield Violation(
                    "scale-not-positive", ("Scales", axis),
                    "every scale must be larger than 0 after rounding to 32 bits", scale, "a finite number above 0",
                    "tensorpost's rule; DirectML is silent",
                )  # fmt: skip


class _Given:
    """A document's fields under either spelling, as far as they can be read; what cannot is for the constructor."""

    def __init__(self, desc: Mapping[str, Any]) -> None:
        self._desc = desc

    def has(self, name: str) -> bool:
        return name in self._desc or pascal_case(name) in self._desc

    def _value(self, name: str) -> object:
        return self._desc.get(pascal_case(name), self._desc.get(name))

    def structure(self, cls: type[D], name: str) -> D | None:
        try:
            with postponed_rules():  # broken rules are named when the whole is read
                return cls.model_validate(self._value(name))
        except ValidationError:
            return None

    def floats(self, name: str) -> list[float] | None:
        try:
            return [to_float32(item) for item in cast("Sequence[object]", to_float_list(self._value(name)))]
        except PydanticCustomError:
            return None


class Upsample2DOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_UPSAMPLE_2D`: scale the last two dimensions by whole numbers, pixel centres aligned.

    Attributes:
        input_tensor: N, C, H, W or N, C, D, H, W.
        output_tensor: same DataType; the input's sizes with H and W multiplied by the scales.
        scale_size: factors of width and height, each from 1 to UINT_MAX / input size.
        interpolation_mode: NEAREST_NEIGHBOR or LINEAR, which is bilinear in H and W.

    Raises:
        InvalidDescriptor: with every rule that is broken.
    """

    operator_type: ClassVar[str] = "UPSAMPLE_2D"
    operator_value: ClassVar[int] = 66
    summary: ClassVar[str] = "Scales height and width by whole numbers, nearest neighbour or bilinear."
    support: ClassVar[tuple[SupportRow, ...]] = (SupportRow(FeatureLevel.L1_0, (4, 5), _FLOATS),)

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    scale_size: Size2D
    interpolation_mode: Interpolation

    if TYPE_CHECKING:
        # What the constructor takes; `data` are the same by DirectML's names.
        def __init__(
            self,
            *,
            input_tensor: TensorLike = ...,
            output_tensor: TensorLike = ...,
            scale_size: Size2D | Mapping[str, int] = ...,
            interpolation_mode: InterpolationMode | str | int = ...,
            **data: Any,
        ) -> None: ...

        def __hash__(self) -> int: ...  # Pydantic makes it, since the model is frozen

    @property
    def scales(self) -> tuple[float, ...]:
        """One factor per dimension, as RESAMPLE has them; 1 for all but the last two."""
        untouched = (1.0,) * (len(self.input_tensor.sizes) - 2)
        return (*untouched, float(self.scale_size.height), float(self.scale_size.width))

    @classmethod
    def complete(cls, desc: Mapping[str, Any]) -> dict[str, Any]:
        """Add a packed OutputTensor if there is none and it follows from the rest."""
        desc = dict(desc)
        given = _Given(desc)
        source, scale = given.structure(BufferTensorDesc, "input_tensor"), given.structure(Size2D, "scale_size")
        if source is None or scale is None or given.has("output_tensor") or len(source.sizes) < 2:
            return desc
        *untouched, height, width = source.sizes
        # A product that is too large is the scale's fault, which the rules name.
        products = [min(height * scale.height, UINT_MAX), min(width * scale.width, UINT_MAX)]
        desc["OutputTensor"] = {"DataType": source.data_type, "Sizes": [*untouched, *products]}
        return desc

    def rules(self) -> Iterator[Violation]:
        """Every broken rule of the DML_UPSAMPLE_2D_OPERATOR_DESC page, and of its tensors."""
        yield from self.tensor_rules()
        yield from self.same_type_and_rank()
        sizes = self.input_tensor.sizes
        if len(sizes) not in (4, 5):
            yield Violation(
                "dimension-count", ("InputTensor", "Sizes"),
                f"UPSAMPLE_2D takes N, C, H, W or N, C, D, H, W, not {len(sizes)} dimensions", list(sizes),
                "4 or 5 dimensions", self._page(),
            )  # fmt: skip
            return
        legal = all(sizes)
        for name, scale, size in (
            ("Height", self.scale_size.height, sizes[-2]),
            ("Width", self.scale_size.width, sizes[-1]),
        ):
            most = UINT_MAX // max(1, size)
            if not 0 < scale <= most:
                legal = False
                yield Violation(
                    "scale-size", ("ScaleSize", name),
                    f"{name} must be larger than 0 and at most UINT_MAX / input size, which is {most}", scale,
                    f"1 to {most}", self._page(),
                )  # fmt: skip
        want = [*sizes[:-2], sizes[-2] * self.scale_size.height, sizes[-1] * self.scale_size.width]
        if legal and len(self.output_tensor.sizes) == len(sizes) and list(self.output_tensor.sizes) != want:
            yield Violation(
                "output-sizes", ("OutputTensor", "Sizes"),
                f"OutputTensor.Sizes must be the input's with height and width times ScaleSize, which is {want}",
                list(self.output_tensor.sizes), str(want), self._page(),
            )  # fmt: skip


class ResampleOperatorDesc(ResampleFamily):
    """`DML_OPERATOR_RESAMPLE`: scale any dimensions, pixel centres aligned; nearest rounds halves up.

    Attributes:
        input_tensor: tensor to read.
        output_tensor: same DataType and rank; any sizes: the scaled input is cropped, or its edge repeated, to fit.
        interpolation_mode: NEAREST_NEIGHBOR or LINEAR.
        scales: one factor per dimension, 32-bit, finite and above 0.
        scale_count: derived; must agree with `scales` if given.

    Raises:
        InvalidDescriptor: with every rule that is broken.
    """

    operator_type: ClassVar[str] = "RESAMPLE"
    operator_value: ClassVar[int] = 96
    summary: ClassVar[str] = "Scales any dimensions by factors, nearest neighbour or linear, pixel centres aligned."
    support: ClassVar[tuple[SupportRow, ...]] = (
        SupportRow(FeatureLevel.L2_0, (4, 4), _FLOATS),
        SupportRow(FeatureLevel.L5_1, (1, 4), _FLOATS),
        SupportRow(FeatureLevel.L6_2, (1, 4), _WITH_8_BITS),
    )
    array_fields: ClassVar[tuple[str, ...]] = ("scales",)
    count_field: ClassVar[str] = "scale_count"

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    interpolation_mode: Interpolation
    scales: FloatArray
    scale_count: UInt = Field(default_factory=length_of("scales"))

    if TYPE_CHECKING:
        # What the constructor takes; `data` are the same by DirectML's names.
        def __init__(
            self,
            *,
            input_tensor: TensorLike = ...,
            output_tensor: TensorLike = ...,
            interpolation_mode: InterpolationMode | str | int = ...,
            scales: Floats = ...,
            scale_count: int = ...,
            **data: Any,
        ) -> None: ...

        def __hash__(self) -> int: ...  # Pydantic makes it, since the model is frozen


class Resample1OperatorDesc(ResampleFamily):
    """`DML_OPERATOR_RESAMPLE1`: RESAMPLE with the pixel offsets chosen by the caller; nearest rounds halves up.

    Attributes:
        input_tensor: tensor to read.
        output_tensor: same DataType and rank; any sizes: the scaled input is cropped, or its edge repeated, to fit.
        interpolation_mode: NEAREST_NEIGHBOR or LINEAR.
        scales: one factor per dimension, 32-bit, finite and above 0.
        input_pixel_offsets: added to input coordinates before scaling; 0.5 for pixel centres.
        output_pixel_offsets: added after scaling; -0.5 for pixel centres.
        dimension_count: derived; must agree with the arrays if given.

    Raises:
        InvalidDescriptor: with every rule that is broken.
    """

    operator_type: ClassVar[str] = "RESAMPLE1"
    operator_value: ClassVar[int] = 116
    summary: ClassVar[str] = "Scales any dimensions by factors with chosen pixel offsets; nearest rounds halves up."
    support: ClassVar[tuple[SupportRow, ...]] = (
        SupportRow(FeatureLevel.L2_1, (4, 4), _FLOATS),
        # The page's own table for these levels is not public; they are taken from RESAMPLE's.
        SupportRow(FeatureLevel.L5_1, (1, 4), _FLOATS),
        SupportRow(FeatureLevel.L6_2, (1, 4), _WITH_8_BITS),
    )

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    interpolation_mode: Interpolation
    scales: FloatArray
    input_pixel_offsets: FloatArray
    output_pixel_offsets: FloatArray
    dimension_count: UInt = Field(default_factory=length_of("scales"))

    if TYPE_CHECKING:
        # What the constructor takes; `data` are the same by DirectML's names.
        def __init__(
            self,
            *,
            input_tensor: TensorLike = ...,
            output_tensor: TensorLike = ...,
            interpolation_mode: InterpolationMode | str | int = ...,
            scales: Floats = ...,
            input_pixel_offsets: Floats = ...,
            output_pixel_offsets: Floats = ...,
            dimension_count: int = ...,
            **data: Any,
        ) -> None: ...

        def __hash__(self) -> int: ...  # Pydantic makes it, since the model is frozen


class Resample2OperatorDesc(ResampleFamily):
    """`DML_OPERATOR_RESAMPLE2`: RESAMPLE1 where nearest takes the floor or the ceiling, with no half added.

    To round halves up as RESAMPLE1 does, use DECREASING and lower every InputPixelOffset by 0.5. (The page says to
    lower OutputPixelOffsets; that shifts by 0.5 / Scale and gives other pixels for most scales.)

    Attributes:
        input_tensor: tensor to read.
        output_tensor: same DataType and rank; any sizes: the scaled input is cropped, or its edge repeated, to fit.
        interpolation_mode: NEAREST_NEIGHBOR or LINEAR.
        rounding_direction: INCREASING (ceil) or DECREASING (floor); LINEAR ignores it. Required, as in the C struct.
        scales: one factor per dimension, 32-bit, finite and above 0.
        input_pixel_offsets: added to input coordinates before scaling; 0.5 for pixel centres.
        output_pixel_offsets: added after scaling; -0.5 for pixel centres.
        dimension_count: derived; must agree with the arrays if given.

    Raises:
        InvalidDescriptor: with every rule that is broken.
    """

    operator_type: ClassVar[str] = "RESAMPLE2"
    operator_value: ClassVar[int] = 161
    summary: ClassVar[str] = "Scales any dimensions by factors with chosen pixel offsets and rounding direction."
    support: ClassVar[tuple[SupportRow, ...]] = (
        SupportRow(FeatureLevel.L5_1, (1, 4), _FLOATS),
        SupportRow(FeatureLevel.L6_2, (1, 4), _WITH_8_BITS),
    )

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    interpolation_mode: Interpolation
    rounding_direction: Direction
    scales: FloatArray
    input_pixel_offsets: FloatArray
    output_pixel_offsets: FloatArray
    dimension_count: UInt = Field(default_factory=length_of("scales"))

    if TYPE_CHECKING:
        # What the constructor takes; `data` are the same by DirectML's names.
        def __init__(
            self,
            *,
            input_tensor: TensorLike = ...,
            output_tensor: TensorLike = ...,
            interpolation_mode: InterpolationMode | str | int = ...,
            rounding_direction: AxisDirection | str | int = ...,
            scales: Floats = ...,
            input_pixel_offsets: Floats = ...,
            output_pixel_offsets: Floats = ...,
            dimension_count: int = ...,
            **data: Any,
        ) -> None: ...

        def __hash__(self) -> int: ...  # Pydantic makes it, since the model is frozen


class Resample3OperatorDesc(ResampleFamily):
    """`DML_OPERATOR_RESAMPLE3`: RESAMPLE2 that can filter while it shrinks.

    With Antialiased TRUE and LINEAR, an axis with Scale < 0.5 is filtered by a triangle of half-width 1 / Scale, its
    weights normalized and the edge repeated; every other axis is plain LINEAR. This is the page's formula read axis by
    axis. DirectML itself is reported to halve in steps, so its numbers differ.

    Attributes:
        input_tensor: tensor to read.
        output_tensor: same DataType and rank; any sizes: the scaled input is cropped, or its edge repeated, to fit.
        interpolation_mode: NEAREST_NEIGHBOR or LINEAR.
        rounding_direction: INCREASING (ceil) or DECREASING (floor); LINEAR ignores it. Required, as in the C struct.
        scales: one factor per dimension, 32-bit, finite and above 0.
        input_pixel_offsets: added to input coordinates before scaling; 0.5 for pixel centres.
        output_pixel_offsets: added after scaling; -0.5 for pixel centres.
        dimension_count: derived; must agree with the arrays if given.
        antialiased: default FALSE; NEAREST_NEIGHBOR ignores it.

    Raises:
        InvalidDescriptor: with every rule that is broken.
    """

    operator_type: ClassVar[str] = "RESAMPLE3"
    operator_value: ClassVar[int] = 175
    summary: ClassVar[str] = "As RESAMPLE2, with an optional triangle filter against aliasing when shrinking."
    approximate: ClassVar[str | None] = (
        "with Antialiased TRUE: DirectML's own steps are not published; ours is the documented filter"
    )
    support: ClassVar[tuple[SupportRow, ...]] = (SupportRow(FeatureLevel.L6_4, (1, 4), _WITH_8_BITS),)

    input_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    interpolation_mode: Interpolation
    rounding_direction: Direction
    scales: FloatArray
    input_pixel_offsets: FloatArray
    output_pixel_offsets: FloatArray
    dimension_count: UInt = Field(default_factory=length_of("scales"))
    antialiased: Bool = False

    if TYPE_CHECKING:
        # What the constructor takes; `data` are the same by DirectML's names.
        def __init__(
            self,
            *,
            input_tensor: TensorLike = ...,
            output_tensor: TensorLike = ...,
            interpolation_mode: InterpolationMode | str | int = ...,
            rounding_direction: AxisDirection | str | int = ...,
            scales: Floats = ...,
            input_pixel_offsets: Floats = ...,
            output_pixel_offsets: Floats = ...,
            dimension_count: int = ...,
            antialiased: bool = ...,
            **data: Any,
        ) -> None: ...

        def __hash__(self) -> int: ...  # Pydantic makes it, since the model is frozen
