"""Regions of interest: pooled, resampled, and the gradient.

Where the pages are silent DirectML was asked (docs/directml.md). ROI_POOLING rounds halves to even; an empty cell is 0,
and a region that is turned round has one row or column, as in Caffe. ROI_ALIGN rounds the samples of a cell up to a
whole number; a sample is outside from 1 before the first element on or beyond the size, and else reads the nearest
place inside, almost as in ONNX; with AlignRegionsToCorners it is outside beyond the outer elements, and one sample
alone lies in the middle of its region. Nearest neighbours round halves up; a region that is turned round has as many
samples as it would have otherwise. Regions of an infinite or undefined place are outside. A batch index outside the
batch is the nearest inside, as in GATHER; a region with one has no gradient, and gives none. Places are computed in
float64 and rounded to float32, sums in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost import descriptors as dml
from tensorpost.descriptors import InterpolationMode, ReduceFunction

from ..forms import Array, Box, BoxFunction
from ..forms.base import go_on
from ..forms.float16 import widen
from ..forms.region_samples import Samples, Sampling
from .quantized import by_name, names_of
from .registry import form_of_class

BLOCK = 1 << 18  # elements that are computed at a time, unless one channel has more


@form_of_class(dml.RoiPoolingOperatorDesc)
def pooling_form(desc: dml.RoiPoolingOperatorDesc) -> BoxFunction:
    """The largest element of each cell; cells overlap where the grid does not divide the region."""
    grid = (desc.pooled_size.height, desc.pooled_size.width)
    sizes = desc.input_tensor.sizes[2:]
    parameters = (("scale", desc.spatial_scale), ("grid", grid))
    work = sum(-(-size // cells) + 1 for size, cells in zip(sizes, grid, strict=True))
    scratch = sizes[1] * max(BLOCK, desc.input_tensor.item_size)
    return BoxFunction(_pool, 2, parameters, max(1, work * sizes[1] // max(1, grid[1])), 1000 * sum(grid), scratch)


def _pool(xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any, scale: float, grid: tuple[int, int]) -> None:
    x, rois = inputs
    (first, last), channels, *spans = box
    out[...] = 0
    for place, (image, *corners) in enumerate(rois[0, 0, first:last].astype("float64").tolist()):
        x1, y1, x2, y2 = [_rounded(corner * scale) for corner in corners]
        whole = x[_nearest(image, x.shape[0]), slice(*channels)]
        rows = list(_cells(y1, y2, grid[0], spans[0], x.shape[2]))
        columns = list(_cells(x1, x2, grid[1], spans[1], x.shape[3]))
        for row, (top, bottom) in rows:
            go_on()
            line = xp.max(whole[:, top:bottom], axis=1)
            for column, (left, right) in columns:
                out[place, :, row, column] = xp.max(line[:, left:right], axis=1)


def _rounded(value: float) -> int:
    if not math.isfinite(value):
        return 0 if math.isnan(value) else int(math.copysign(2**31, value))
    return round(value)


def _nearest(index: float, count: int) -> int:
    return int(min(max(index, 0), count - 1)) if index == index else 0  # NaN is the first


def _cells(low: int, high: int, cells: int, span: tuple[int, int], size: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """The cells of a span with what of the input each has; empty ones are left out."""
    extent = max(high - low + 1, 1)
    for cell in range(*span):
        begin = min(max(cell * extent // cells + low, 0), size)
        end = min(max(-(-(cell + 1) * extent // cells) + low, 0), size)
        if begin < end:
            yield cell - span[0], (begin, end)


# ---- aligned ---------------------------------------------------------------------------------------------------------


def _samplings(desc: Any, image: Sequence[int], grid: Sequence[int]) -> tuple[Sampling, Sampling]:
    """The samplings of rows and of columns."""
    offsets = (getattr(desc, "input_pixel_offset", 0.5), getattr(desc, "output_pixel_offset", -0.5))
    corners = getattr(desc, "align_regions_to_corners", False)
    least, most = desc.minimum_samples_per_output, desc.maximum_samples_per_output
    nearest = desc.interpolation_mode is InterpolationMode.NEAREST_NEIGHBOR
    rows, columns = (
        Sampling(scale, offsets, least, most, corners, cells, size, nearest)
        for scale, cells, size in zip((desc.spatial_scale_y, desc.spatial_scale_x), grid, image, strict=True)
    )
    return rows, columns


@form_of_class(dml.RoiAlignOperatorDesc, dml.RoiAlign1OperatorDesc)
def align_form(desc: Any) -> BoxFunction:
    """The average or the largest of the samples of each cell (DML_ROI_ALIGN1_OPERATOR_DESC)."""
    image, grid = desc.input_tensor.sizes[2:], desc.output_tensor.sizes[2:]
    rows, columns = _samplings(desc, image, grid)
    largest = desc.reduction_function is ReduceFunction.MAX
    parameters = (
        ("rows", rows),
        ("columns", columns),
        ("largest", largest),
        ("outside", desc.out_of_bounds_input_value),
    )
    samples = [axis.most_samples(axis.cells) for axis in (rows, columns)]
    cells = math.prod(grid)
    work = (samples[0] * samples[1] if largest else math.prod(image) + samples[0] + samples[1]) // cells + 4
    scratch = 48 * sum(samples) + 8 * max(BLOCK, _held(rows, columns, largest))
    return BoxFunction(_align, 3, parameters, work, 2000 * sum(grid), scratch)


def _held(rows: Sampling, columns: Sampling, largest: bool) -> int:
    """Elements of one channel that are computed at a time: its image widened, and what samples of it read."""
    samples = min(rows.most_samples(1), rows.most_samples(rows.cells)) * columns.most_samples(columns.cells)
    return rows.size * columns.size + (4 * samples if largest else rows.cells * columns.size)


def _align(
    xp: ModuleType, inputs: Sequence[Any], box: Box, out: Any,
    rows: Sampling, columns: Sampling, largest: bool, outside: float,
) -> None:  # fmt: skip
    x, rois, indices = inputs
    (first, last), (channel, end), *spans = box
    regions = rois.reshape(-1, 4)[first:last].astype("float64").tolist()
    images = indices.reshape(-1)[first:last].tolist()
    step = max(1, BLOCK // _held(rows, columns, largest))
    reduce = _largest if largest else _averaged
    for place, ((x1, y1, x2, y2), index) in enumerate(zip(regions, images, strict=True)):
        down, across = rows.samples(y1, y2, spans[0]), columns.samples(x1, x2, spans[1])
        image = x[_nearest(index, x.shape[0])]
        for low in range(channel, end, step):
            go_on()
            high = min(low + step, end)
            part = image[low:high]
            wide = widen(xp, part) if part.dtype.name == "float16" else part
            reduce(xp, wide, down, across, out[place, low - channel : high - channel], outside)


def _averaged(xp: ModuleType, x: Any, down: Samples, across: Samples, out: Any, outside: float) -> None:
    _, height, width = out.shape
    lines = xp.zeros((x.shape[0], height, x.shape[2]), "float32")
    for row, read, weights in down.averages(xp, height):
        lines[:, row] = xp.matmul(weights, x[:, read])
    made = xp.zeros(out.shape, "float32")
    for column, read, weights in across.averages(xp, width):
        made[..., column] = xp.matmul(lines[..., read], weights)
    if outside:
        inside = down.share(height)[:, None] * across.share(width)
        made += xp.asarray(1 - inside) * np.float32(outside)
    out[...] = made


def _largest(xp: ModuleType, x: Any, down: Samples, across: Samples, out: Any, outside: float) -> None:
    _, height, width = out.shape
    out[...] = outside
    columns = across.bounds(width)
    for row, (top, bottom) in enumerate(down.bounds(height)):
        go_on()
        if top == bottom:
            continue
        lines = xp.max(across.taken(xp, down.taken(xp, x, 1, slice(top, bottom)), 2), axis=1)
        for column, (left, right) in enumerate(columns):
            if left < right:
                made = xp.max(lines[:, left:right], axis=1)
                if (bottom - top) * (right - left) < down.count * across.count:
                    made = xp.maximum(made, np.float32(outside))
                out[:, row, column] = made


# ---- gradients -------------------------------------------------------------------------------------------------------


@form_of_class(dml.RoiAlignGradOperatorDesc)
def gradient_form(desc: dml.RoiAlignGradOperatorDesc) -> Array:
    """The adjoint of ROI_ALIGN1, and the regions' gradient as DirectML answers it, where its page has another formula.

    That is the slope between the elements around each sample, of nearest neighbours too, times the image's extent and
    `Samples.pull`. A sample outside the image gives nothing, and is never the largest.
    """
    grid = desc.input_gradient_tensor.sizes
    image = desc.input_tensor or desc.output_gradient_tensor
    assert image is not None
    rows, columns = _samplings(desc, image.sizes[2:], grid[2:])
    largest = desc.reduction_function is ReduceFunction.MAX
    wanted = (desc.output_gradient_tensor is not None, desc.output_roi_gradient_tensor is not None)
    every = largest or wanted[1]
    parameters = (
        *names_of(desc), ("rows", rows), ("columns", columns), ("largest", largest), ("sizes", image.sizes),
        ("wanted", wanted),
    )  # fmt: skip
    samples = [axis.most_samples(axis.cells) for axis in (rows, columns)]
    work = grid[0] * grid[1] * (4 * samples[0] * samples[1] if every else math.prod(image.sizes[2:]) + sum(samples))
    held = _held(rows, columns, every) * (3 if every else 1)
    scratch = 48 * sum(samples) + 8 * max(BLOCK, held) + 4 * math.prod(image.sizes)
    return Array(_align_gradients, len(desc.inputs), work + 2000 * math.prod(grid), parameters, scratch)


def _align_gradients(
    xp: ModuleType, *inputs: Any, names: tuple[str, ...], rows: Sampling, columns: Sampling, largest: bool,
    sizes: tuple[int, ...], wanted: tuple[bool, bool],
) -> tuple[Any, ...]:  # fmt: skip
    named = by_name(names, inputs)
    gradient, rois, x = named["input_gradient"], named["roi"], named.get("input")
    images = xp.zeros(sizes if wanted[0] else (sizes[0], sizes[1], 0, 0), "float32")
    regions = xp.zeros((gradient.shape[0], 4), "float32")
    step = max(1, BLOCK // (3 * _held(rows, columns, largest or wanted[1])))
    corners, indices = rois.reshape(-1, 4).astype("float64").tolist(), named["batch_indices"].reshape(-1).tolist()
    spans = ((0, rows.cells), (0, columns.cells))
    axes = (rows, columns, replace(rows, nearest=False), replace(columns, nearest=False))
    for place, ((x1, y1, x2, y2), index) in enumerate(zip(corners, indices, strict=True)):
        down, across, between_rows, between_columns = [
            axis.samples(*ends, span)
            for axis, ends, span in zip(axes, ((y1, y2), (x1, x2)) * 2, spans * 2, strict=True)
        ]
        between = (between_rows, between_columns)
        if index >= sizes[0]:
            continue
        for low in range(0, sizes[1], step):
            go_on()
            channels = slice(low, low + step)
            part, target = gradient[place, channels].astype("float32"), images[index, channels]
            source = None if x is None else x[index, channels].astype("float32")
            if largest:
                _largest_gradients(xp, source, part, (down, across), between, target, regions[place], wanted)
                continue
            if wanted[0]:
                _spread(xp, part, down, across, target)
            if wanted[1]:
                _slopes(xp, source, part, between_rows, between_columns, regions[place])
    return tuple([made for made, asked in ((images, wanted[0]), (regions.reshape(rois.shape), wanted[1])) if asked])


def _spread(xp: ModuleType, gradient: Any, down: Samples, across: Samples, target: Any) -> None:
    """Add the adjoint of `_averaged`."""
    channels, height, width = gradient.shape
    lines = xp.zeros((channels, height, target.shape[2]), "float32")
    for column, read, weights in across.averages(xp, width):
        lines[..., read] += gradient[..., column : column + 1] * weights
    for row, read, weights in down.averages(xp, height):
        target[:, read] += lines[:, row : row + 1] * weights[:, None]


def _slopes(xp: ModuleType, x: Any, gradient: Any, down: Samples, across: Samples, region: Any) -> None:
    """Add the gradient of a region whose cells are averages."""
    height = gradient.shape[1]
    cells = xp.asarray(across.cell)
    for row, (top, bottom) in enumerate(down.bounds(height)):
        go_on()
        part = slice(top, bottom)
        above, below = (xp.take(x, xp.asarray(index[part]), axis=1) for index in (down.left, down.right))
        share = xp.take(gradient[:, row], cells, axis=1)[:, None] / (down.count * across.count)
        vertical = xp.sum(across.taken(xp, below - above, 2) * share, axis=(0, 1))
        lines = down.taken(xp, x, 1, part)
        left, right = (xp.take(lines, xp.asarray(index), axis=2) for index in (across.left, across.right))
        horizontal = xp.sum((right - left) * share, axis=(0, 1))
        _add_slopes(xp, region, horizontal, vertical, across, cells, down, row)


def _add_slopes(
    xp: ModuleType, region: Any, horizontal: Any, vertical: Any, across: Samples, column: Any, down: Samples, row: int
) -> None:
    for first, slope, axis, cell in ((0, horizontal, across, column), (1, vertical, down, row)):
        pull = axis.pull(cell)
        region[first] += xp.sum(slope * (1 - pull)) * axis.extent
        region[first + 2] += xp.sum(slope * pull) * axis.extent


def _largest_gradients(
    xp: ModuleType, x: Any, gradient: Any, read: Sequence[Samples], between: Sequence[Samples], target: Any,
    region: Any, wanted: tuple[bool, bool],
) -> None:  # fmt: skip
    """Add the gradients of cells that are their largest sample: the first one, in row-major order."""
    down, across = read
    channels, height, width = gradient.shape
    channel = xp.arange(channels)
    for row, (top, bottom) in enumerate(down.bounds(height)):
        if top == bottom:
            continue
        samples = across.taken(xp, down.taken(xp, x, 1, slice(top, bottom)), 2)
        for column, (begin, end) in enumerate(across.bounds(width)):
            if begin == end:
                continue
            go_on()
            winner = xp.argmax(samples[:, :, begin:end].reshape(channels, -1), axis=1)
            part = gradient[:, row, column]
            rows, columns = winner // (end - begin) + top, winner % (end - begin) + begin
            if wanted[0]:
                (y0, y1, y), (x0, x1, at) = _neighbours(xp, read, rows, columns)
                for i, j, weight in (
                    (y0, x0, (1 - y) * (1 - at)),
                    (y0, x1, (1 - y) * at),
                    (y1, x0, y * (1 - at)),
                    (y1, x1, y * at),
                ):
                    target[channel, i, j] += part * weight
            if wanted[1]:
                (y0, y1, y), (x0, x1, at) = _neighbours(xp, between, rows, columns)
                tl, tr, bl, br = (x[channel, i, j] for i in (y0, y1) for j in (x0, x1))
                vertical = part * ((1 - at) * (bl - tl) + at * (br - tr))
                horizontal = part * ((1 - y) * (tr - tl) + y * (br - bl))
                _add_slopes(xp, region, horizontal, vertical, across, column, down, row)


def _neighbours(xp: ModuleType, axes: Sequence[Samples], rows: Any, columns: Any) -> Iterator[tuple[Any, ...]]:
    """Indices and weights of the elements around these samples, of rows and of columns."""
    for axis, index in zip(axes, (rows, columns), strict=True):
        yield tuple([xp.asarray(array)[index] for array in (axis.left, axis.right, axis.weight.astype(np.float32))])
