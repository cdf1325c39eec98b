"""`preprocess`: photographs to the batch that a model reads, each by one graph."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..bodies.images import EncodedImage
from ..transport.many_servers import ManyServers
from ..transport.one_server import Transport
from ..transport.progress import MapProgress
from ..values.checks import entries_of, real_number, shown, whole_number
from ..values.datatypes import data_type, type_named
from ..values.problems import InvalidParameter, counted
from .api_calls import RequestOptions
from .graph_builder import GraphBuilder
from .graph_calls import InputValue, read_input
from .mapped_calls import in_order, repeated

PictureLayout = Literal["NCHW", "NHWC"]
CHANNELS = 3
_INPUT = "photo"


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How each photograph is processed.

    Attributes:
        size: rows and columns of the result of the resize; with `crop`, the first is the length of the shorter side.
        crop: rows and columns of the middle part that is kept; None for all of it.
        mean: what is subtracted from each channel, of numbers from 0 to 1.
        deviation: what each channel is divided by.
        channels_last: whether channels are the last axis; else they come before rows and columns.
        dtype: the element type of the result.
    """

    size: tuple[int, int]
    crop: tuple[int, int] | None
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    channels_last: bool
    dtype: np.dtype[Any]

    @classmethod
    def of(
        cls, size: object, crop: object, mean: object, std: object, layout: object, dtype: DTypeLike
    ) -> Preprocessing:
        """Read the arguments of `Client.preprocess`.

        Raises:
            InvalidParameter: one is wrong.
        """
        if layout not in ("NCHW", "NHWC"):
            raise InvalidParameter(f"layout is {shown(layout)}; it must be 'NCHW' or 'NHWC'")
        kind = _float_type(dtype)
        sides, part = _sides("size", size), None if crop is None else _sides("crop", crop)
        if part is not None:
            if sides[0] != sides[1]:
                raise InvalidParameter("with crop, size is one number: the length of the shorter side")
            if max(part) > sides[0]:
                raise InvalidParameter(f"crop is {part}, and the shorter side has {sides[0]} pixels after the resize")
        return cls(sides, part, _per_channel("mean", mean, 0.0), _per_channel("std", std, 1.0), layout == "NHWC", kind)

    def graph(self, rows: int, columns: int, channels: int, dtype: str) -> dict[str, Any]:
        """The graph for a picture of these sizes and this type, with the result `image`."""
        g = GraphBuilder()
        photo = g.input(_INPUT, dtype, (1, rows, columns, channels))
        kept = 1 if channels < CHANNELS else CHANNELS  # grey, or colour; without transparency
        x: Any = photo if channels == kept else photo[..., :kept]
        sizes = self.size if self.crop is None else _shorter_side(rows, columns, self.size[0])
        x = g.onnx(
            "Resize", x.astype(np.float32), sizes=sizes, axes=[1, 2], mode="linear", antialias=1, exclude_outside=1
        )
        if self.crop is not None:
            top, left = (round((whole - part) / 2) for whole, part in zip(sizes, self.crop, strict=True))
            x = x[:, top : top + self.crop[0], left : left + self.crop[1]]
        x = x / np.float32(255 if dtype == "uint8" else 65535)
        if kept < CHANNELS:
            x = g.tile(x, (1, 1, 1, CHANNELS))
        x = (x - np.array(self.mean, np.float32)) / np.array(self.deviation, np.float32)
        if not self.channels_last:
            x = x.transpose(0, 3, 1, 2)
        return g.build(image=x.astype(self.dtype, copy=False))

    @property
    def shape(self) -> tuple[int, int, int]:
        """The sizes of the result for one photograph."""
        rows, columns = self.crop or self.size
        return (rows, columns, CHANNELS) if self.channels_last else (CHANNELS, rows, columns)


def _float_type(dtype: DTypeLike) -> np.dtype[Any]:
    try:
        row = type_named(dtype) if isinstance(dtype, str) else data_type(np.dtype(dtype))
    except (KeyError, TypeError):
        row = None
    if row is None or row.numpy_name not in ("float32", "float16"):
        named = shown(dtype) if row is None else row.numpy_name
        raise InvalidParameter(f"dtype is {named}; it must be float32 or float16")
    return row.dtype


def _sides(name: str, value: object) -> tuple[int, int]:
    entries = entries_of(value)
    numbers = [value, value] if entries is None else entries
    if len(numbers) != 2:
        raise InvalidParameter(f"{name} is {shown(value)}; it must be one number, or rows and columns")
    rows, columns = (whole_number(name, number, 1) for number in numbers)
    return rows, columns


def _per_channel(name: str, value: object, default: float) -> tuple[float, ...]:
    if value is None:
        return (default,) * CHANNELS
    entries = entries_of(value)
    numbers = [value] * CHANNELS if entries is None else entries
    if len(numbers) != CHANNELS:
        raise InvalidParameter(
            f"{name} has {counted(len(numbers), 'number')}; it has one for all channels, or {CHANNELS}"
        )
    found = tuple([real_number(f"{name}[{place}]", number) for place, number in enumerate(numbers)])
    if name == "mean" and max(found) > 1:
        raise InvalidParameter(
            f"mean is {shown(value)}; means are of values from 0 to 1: divide those of values up to 255 by 255"
        )
    if name == "std" and 0 in found:
        raise InvalidParameter("std has a 0; pixels are divided by it, so every entry must be other than 0")
    return found


def _shorter_side(rows: int, columns: int, length: int) -> tuple[int, int]:
    """The sizes with their shorter side of this length and about the same ratio, as torchvision's Resize has them."""
    if rows <= columns:
        return length, int(length * columns / rows)
    return int(length * rows / columns), length


async def preprocess(
    transport: Transport | ManyServers,
    files: Iterable[InputValue],
    how: Preprocessing,
    in_flight: int,
    retry_seconds: float,
    progress: Callable[[MapProgress], None] | None,
    options: RequestOptions,
) -> NDArray[Any]:
    """The batch of the photographs; see `Client.preprocess`."""
    if isinstance(files, (str, bytes, os.PathLike)):
        raise InvalidParameter(f"files is {shown(files)}; it must be a list of photographs, even for a single one")
    photos: Sequence[InputValue] = [*files]
    whole_number("in_flight", in_flight, 1)
    batch = np.empty((len(photos), *how.shape), how.dtype)

    def call(photo: InputValue) -> Awaitable[dict[str, NDArray[Any]]]:
        picture = _picture(photo)
        if isinstance(picture, EncodedImage):
            graph = how.graph(picture.height, picture.width, picture.channels, f"uint{picture.depth}")
        else:
            _, rows, columns, channels = picture.shape
            graph = how.graph(rows, columns, channels, str(picture.dtype))
        return repeated(transport, graph, {_INPUT: picture}, retry_seconds, options)

    place = 0
    async for result in in_order(transport, photos, call, in_flight, progress):
        batch[place] = result["image"][0]
        place += 1
    return batch


def _picture(photo: object) -> EncodedImage | NDArray[Any]:
    """A photograph as its file, or as an array of 1, rows, columns and channels."""
    value = read_input("a photograph", photo)
    if isinstance(value, EncodedImage):
        return value
    array = value[..., np.newaxis] if value.ndim == 2 else value
    array = array[np.newaxis] if array.ndim == 3 else array
    if array.ndim != 4 or len(array) != 1 or array.shape[3] not in (1, 2, 3, 4) or array.dtype.name not in _PIXELS:
        raise InvalidParameter(
            f"a photograph is an array of {value.dtype} of the shape {value.shape}; it must be uint8 or uint16 of "
            "rows, columns and 1 to 4 channels"
        )
    return array


_PIXELS = ("uint8", "uint16")
