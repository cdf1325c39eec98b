"""Regions of interest: rectangles of an image, pooled or resampled to one size.

Sources: the DML_ROI_POOLING, DML_ROI_ALIGN, DML_ROI_ALIGN1 and DML_ROI_ALIGN_GRAD pages. What they leave open is
tensorpost's choice, and stands with the formulas in the server's `operators/roi.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

from ..values.problems import Violation
from ..values.sentences import named
from .completion import Given, Inferred, Output, packed
from .fields import UINT_MAX, Bool, CEnum, Float, UInt
from .operator_desc import OperatorDesc
from .reduction import ReduceFunction
from .resample import Interpolation, Size2D
from .tensor import BufferTensorDesc

__all__ = [
    "RoiAlign1OperatorDesc",
    "RoiAlignGradOperatorDesc",
    "RoiAlignOperatorDesc",
    "RoiPoolingOperatorDesc",
]


_OF_ONE_TYPE = (
    "input_tensor", "input_gradient_tensor", "roi_tensor", "output_tensor", "output_gradient_tensor",
    "output_roi_gradient_tensor",
)  # fmt: skip


class RoiPoolingOperatorDesc(OperatorDesc):
    """`DML_OPERATOR_ROI_POOLING`: the largest element of each cell of a grid over each region.

    Attributes:
        input_tensor: N x C x H x W.
        roi_tensor: 1 x 1 x R x 5, of the same DataType: a batch index, x1, y1, x2 and y2, corners included.
        output_tensor: R x C x pooled height x pooled width, of the same DataType.
        spatial_scale: factor of the coordinates, which are rounded afterwards.
        pooled_size: cells of the grid.
    """

    input_tensor: BufferTensorDesc
    roi_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    spatial_scale: Float
    pooled_size: Size2D

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """A scale of 1 too."""
        yield "spatial_scale", 1.0
        yield from super().inferred(given)

    @classmethod
    def output_layouts(cls, given: Given) -> Iterator[Output]:
        source, regions = given.tensor("input_tensor"), given.tensor("roi_tensor")
        size = given.structure(Size2D, "pooled_size")
        if size is not None and len(source.sizes) == len(regions.sizes) == 4:
            sizes = [regions.sizes[2], source.sizes[1], size.height, size.width]
            yield Output("output_tensor", source.data_type, sizes, "regions, channels and " + named("PooledSize"))

    def operator_rules(self) -> Iterator[Violation]:
        """Types, ranks and sizes fit."""
        yield from self.same_type_and_rank()
        regions = self.roi_tensor.sizes
        if len(self.input_tensor.sizes) == len(regions) == 4:
            wanted = [1, 1, regions[2], 5]
            yield from self.sizes_are(wanted, "five numbers for each region", "roi_tensor", code="roi-sizes")


class RoiAligning(OperatorDesc):
    """Base of what resamples regions, and of its gradient.

    Attributes:
        image_tensors: the fields of tensors of the image's sizes.
        grid_tensor: the field of the tensor that has a grid for each region.
    """

    image_tensors: ClassVar[tuple[str, ...]] = ("input_tensor",)
    grid_tensor: ClassVar[str] = "output_tensor"

    if TYPE_CHECKING:
        roi_tensor: BufferTensorDesc
        batch_indices_tensor: BufferTensorDesc
        reduction_function: ReduceFunction
        spatial_scale_x: Float
        spatial_scale_y: Float
        minimum_samples_per_output: UInt
        maximum_samples_per_output: UInt

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """ONNX's RoiAlign: averages of as many samples as a region has elements."""
        defaults = {
            "reduction_function": ReduceFunction.AVERAGE, "spatial_scale_x": 1.0, "spatial_scale_y": 1.0,
            "input_pixel_offset": 0.5, "output_pixel_offset": -0.5, "out_of_bounds_input_value": 0.0,
            "minimum_samples_per_output": 1, "maximum_samples_per_output": UINT_MAX, "align_regions_to_corners": False,
        }  # fmt: skip
        yield from [pair for pair in defaults.items() if pair[0] in cls.model_fields]

    def operator_rules(self) -> Iterator[Violation]:
        """Types and sizes fit; samples are averaged, or the largest counts."""
        images = [getattr(self, name) for name in self.image_tensors]
        image = next((tensor for tensor in images if tensor is not None), None)
        grid = getattr(self, self.grid_tensor)
        yield from self.same_data_type(*_OF_ONE_TYPE)
        yield from self.same_dimension_count(*self.image_tensors, self.grid_tensor)
        rois, indices = self.roi_tensor.sizes, self.batch_indices_tensor.sizes
        count = rois[-2] if len(rois) > 1 else 1
        lines = [*[1] * (len(rois) - 2), count, 4]
        yield from self.sizes_are(lines[-len(rois) :], "four numbers for each region", "roi_tensor", code="roi-sizes")
        entries = [*[1] * (len(indices) - 1), count]
        yield from self.sizes_are(entries, "one for each region", "batch_indices_tensor", code="index-sizes")
        if len(grid.sizes) == 4 and (image is None or len(image.sizes) == 4):
            channels = grid.sizes[1] if image is None else image.sizes[1]
            yield from self.sizes_are(
                [count, channels, *grid.sizes[2:]], "regions and channels before the grid", self.grid_tensor
            )
        for name in ("SpatialScaleX", "SpatialScaleY"):
            scale = self.spatial_scale_x if name == "SpatialScaleX" else self.spatial_scale_y
            if scale < 0:  # as DirectML; ROI_POOLING takes it
                yield self.broken("scale-negative", (name,), "must be 0 or more", scale, "at least 0")
        least, most = self.minimum_samples_per_output, self.maximum_samples_per_output
        if not 1 <= least <= most:
            message = "must be at least 1 and at most " + named("MaximumSamplesPerOutput") + f", which is {most}"
            yield self.broken("samples", ("MinimumSamplesPerOutput",), message, least, f"1 to {most}")
        if self.reduction_function not in (ReduceFunction.AVERAGE, ReduceFunction.MAX):
            found = self.reduction_function.name
            yield self.broken("function", ("ReductionFunction",), "must be AVERAGE or MAX", found, "AVERAGE or MAX")


class RoiAlignTensors(RoiAligning):
    """The tensors of what resamples regions, and how it does.

    Attributes:
        input_tensor: N x C x H x W.
        roi_tensor: R x 4, with or without leading ones, of the same DataType: x1, y1, x2 and y2.
        batch_indices_tensor: R, with or without leading ones; UINT32 or UINT64: which image each region is of. One
            beyond the batch is the last image.
        output_tensor: R x C x grid, of the same DataType.
        reduction_function: AVERAGE, or MAX of a cell's samples.
        interpolation_mode: NEAREST_NEIGHBOR or LINEAR.
        spatial_scale_x: factor of x1 and x2.
        spatial_scale_y: factor of y1 and y2.
    """

    input_tensor: BufferTensorDesc
    roi_tensor: BufferTensorDesc
    batch_indices_tensor: BufferTensorDesc
    output_tensor: BufferTensorDesc
    reduction_function: Annotated[ReduceFunction, CEnum("DML_REDUCE_FUNCTION_")]
    interpolation_mode: Interpolation
    spatial_scale_x: Float
    spatial_scale_y: Float


class RoiAlignOperatorDesc(RoiAlignTensors):
    """`DML_OPERATOR_ROI_ALIGN`: resamples each region to a grid, as ROI_ALIGN1 with offsets of 0.5 and -0.5.

    Attributes:
        out_of_bounds_input_value: what a sample outside the image reads.
        minimum_samples_per_output: samples along each axis of a cell, at least.
        maximum_samples_per_output: samples along each axis of a cell, at most; between the two bounds as many as a cell
            has elements, rounded up.
    """

    out_of_bounds_input_value: Float
    minimum_samples_per_output: UInt
    maximum_samples_per_output: UInt


class RoiAlign1OperatorDesc(RoiAlignTensors):
    """`DML_OPERATOR_ROI_ALIGN1`: resamples each region to a grid, with any offsets of the samples.

    Attributes:
        input_pixel_offset: usually 0.5.
        output_pixel_offset: usually -0.5.
        out_of_bounds_input_value: what a sample outside the image reads.
        minimum_samples_per_output: samples along each axis of a cell, at least.
        maximum_samples_per_output: samples along each axis of a cell, at most; between the two bounds as many as a cell
            has elements, rounded up.
        align_regions_to_corners: whether the first and the last sample lie on the corners of the region.
    """

    input_pixel_offset: Float
    output_pixel_offset: Float
    out_of_bounds_input_value: Float
    minimum_samples_per_output: UInt
    maximum_samples_per_output: UInt
    align_regions_to_corners: Bool


class RoiAlignGradOperatorDesc(RoiAligning):
    """`DML_OPERATOR_ROI_ALIGN_GRAD`: the gradients of ROI_ALIGN1 with respect to the image and to the regions.

    Attributes:
        input_tensor: ROI_ALIGN1's input, needed for MAX and for the gradient of the regions; else it may be absent.
        input_gradient_tensor: R x C x grid.
        roi_tensor: R x 4, with or without leading ones: x1, y1, x2 and y2.
        batch_indices_tensor: R, with or without leading ones.
        output_gradient_tensor: gradient of the image, of its sizes; absent if it is not wanted.
        output_roi_gradient_tensor: gradient of the regions, of their sizes; absent if it is not wanted.
        reduction_function: AVERAGE, or MAX of a cell's samples.
        interpolation_mode: NEAREST_NEIGHBOR or LINEAR.
        spatial_scale_x: factor of x1 and x2.
        spatial_scale_y: factor of y1 and y2.
        input_pixel_offset: usually 0.5.
        output_pixel_offset: usually -0.5.
        minimum_samples_per_output: samples along each axis of a cell, at least.
        maximum_samples_per_output: samples along each axis of a cell, at most.
        align_regions_to_corners: whether the first and the last sample lie on the corners of the region.
    """

    image_tensors = ("input_tensor", "output_gradient_tensor")
    grid_tensor = "input_gradient_tensor"

    input_tensor: BufferTensorDesc | None = None
    input_gradient_tensor: BufferTensorDesc
    roi_tensor: BufferTensorDesc
    batch_indices_tensor: BufferTensorDesc
    output_gradient_tensor: BufferTensorDesc | None = None
    output_roi_gradient_tensor: BufferTensorDesc | None = None
    reduction_function: Annotated[ReduceFunction, CEnum("DML_REDUCE_FUNCTION_")]
    interpolation_mode: Interpolation
    spatial_scale_x: Float
    spatial_scale_y: Float
    input_pixel_offset: Float
    output_pixel_offset: Float
    minimum_samples_per_output: UInt
    maximum_samples_per_output: UInt
    align_regions_to_corners: Bool

    @classmethod
    def inferred(cls, given: Given) -> Inferred:
        """The image's gradient too, if no output is named and there is an input."""
        yield from super().inferred(given)
        if not given.has("output_roi_gradient_tensor"):
            source = given.tensor("input_tensor")
            yield "output_gradient_tensor", packed(source.data_type, source.sizes)

    def operator_rules(self) -> Iterator[Violation]:
        """See `RoiAligning`; each requested gradient needs the tensors it is computed from."""
        yield from super().operator_rules()
        if self.output_gradient_tensor is None and self.output_roi_gradient_tensor is None:
            message = "OutputGradientTensor and OutputROIGradientTensor are both absent; ask for one at least"
            yield self.broken("no-output", ("OutputGradientTensor",), message, None, "a tensor")
        if self.input_tensor is not None:
            why = "those of InputTensor"
            yield from self.sizes_are(self.input_tensor.sizes, why, "output_gradient_tensor")
        elif self.output_roi_gradient_tensor is not None or self.reduction_function is ReduceFunction.MAX:
            message = "is needed for OutputROIGradientTensor and for MAX"
            yield self.broken("input-missing", ("InputTensor",), message, None, "a tensor")
        yield from self.sizes_are(self.roi_tensor.sizes, "those of ROITensor", "output_roi_gradient_tensor")
