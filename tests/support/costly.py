"""Requests of few bytes that read very much."""

from __future__ import annotations

from tensorpost.descriptors import AxisDirection, BufferTensorDesc, InterpolationMode, Resample3OperatorDesc

__all__ = ["means_of_columns"]


def means_of_columns(rows: int, columns: int) -> Resample3OperatorDesc:
    """4 bytes of input that stand for rows of bytes, and one row that is their mean."""
    return Resample3OperatorDesc(
        input_tensor=BufferTensorDesc(
            data_type="UINT8", sizes=(rows, columns), strides=(0, 0), total_tensor_size_in_bytes=4
        ),
        output_tensor=BufferTensorDesc.packed("UINT8", (1, columns)),
        interpolation_mode=InterpolationMode.LINEAR, rounding_direction=AxisDirection.DECREASING, scales=(1 / rows, 1),
        input_pixel_offsets=(0.5, 0.5), output_pixel_offsets=(-0.5, -0.5), antialiased=True,
    )  # fmt: skip
