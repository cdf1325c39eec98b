"""Pictures as inputs of graphs and models: the axes that they get, and what is said where their channels do not fit.

A picture is a batch of one, 1, height, width and channels, and has no batch where the input is declared with three
dimensions. Channels are never dropped or added: what becomes of transparency is the caller's decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..values.problems import InvalidDescriptor, Violation, counted

__all__ = ["DeclaredSizes", "declared_picture", "is_batch", "picture_tensor", "wrong_channels"]

DeclaredSizes: TypeAlias = Sequence[int | str | None] | None
"""Sizes of an input as a graph or a model declares them: numbers, names, None for any; None if it declares none."""

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_WORDS = {1: "grey", 2: "grey and alpha", 3: "RGB", 4: "RGBA"}


def is_batch(sizes: DeclaredSizes) -> bool:
    """Whether a picture is a batch of one for an input of these sizes."""
    return sizes is None or len(sizes) != 3


def picture_tensor(pixels: NDArray[Any], sizes: DeclaredSizes) -> NDArray[Any]:
    """A picture as the tensor of an input.

    Args:
        pixels: height and width, or height, width and channels.
        sizes: the input's.
    """
    whole = pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
    return whole[np.newaxis] if is_batch(sizes) else whole


def declared_picture(name: str, pixels: NDArray[Any], sizes: DeclaredSizes, what: str) -> NDArray[Any]:
    """The pixels with a batch and with channels, where the input declares three or four dimensions; else unchanged.

    Args:
        name: the input's name.
        pixels: height and width, or height, width and channels.
        sizes: the input's.
        what: what has the input: `graph` or `model`.

    Raises:
        InvalidDescriptor: the number of channels is another one.
    """
    if sizes is None or len(sizes) not in (3, 4):
        return pixels
    tensor = picture_tensor(pixels, sizes)
    if (violation := wrong_channels(name, tensor.shape, sizes, what)) is not None:
        raise InvalidDescriptor.of([violation])
    return tensor


def wrong_channels(
    name: str, shape: Sequence[int], sizes: DeclaredSizes, what: str, *, channels_last: bool = True
) -> Violation | None:
    """What is wrong with the number of a picture's channels; None if it is the input's, or if that is not the reason.

    Args:
        name: the input's name.
        shape: sizes of the picture's tensor.
        sizes: the input's.
        what: what has the input: `graph` or `model`.
        channels_last: whether channels are the last axis of the tensor; else they come before height and width.
    """
    if sizes is None or len(sizes) != len(shape) or len(shape) < 3:
        return None
    axis = len(shape) - (1 if channels_last else 3)
    channels, wanted = shape[axis], sizes[axis]
    if not isinstance(wanted, int) or wanted == channels or wanted not in _MODES or channels not in _MODES:
        return None
    turned = [*shape]
    turned.insert(len(shape) - (3 if channels_last else 1), turned.pop(axis))
    if all(not isinstance(size, int) or size == got for size, got in zip(sizes, turned, strict=True)):
        return None  # the order of the axes is the reason
    message = (
        f"{name!r} is a picture of {counted(channels, 'channel')} ({_WORDS[channels]}), and the input of the {what} "
        f'has {wanted}; convert the picture first, as Pillow does: image.convert("{_MODES[wanted]}")'
    )
    return Violation("input-sizes", ("inputs", name, "sizes", axis), message, channels, str(wanted))
