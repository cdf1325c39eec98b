"""Functions of a child process that read and write pictures by Pillow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .refusal import FunctionRefusal


def open_picture(head: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Read a file's head, see `tensorpost.images.open_image`; the answer is `picture`, or else `problem`."""
    from tensorpost.bodies.images import open_image  # in processes of Pillow only
    from tensorpost.values.problems import TensorpostError

    _use_one_thread()
    try:
        found = open_image(arrays[0].tobytes(), head["name"], max_pixels=head["max_pixels"])
    except TensorpostError as error:
        return {"problem": error.to_problem()}, []
    sizes = (found.height, found.width, found.channels, found.depth, found.orientation)
    return {"picture": (found.format, *sizes)}, []


def decode_picture(head: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Decode a file whose head was read; `picture` is what `open_picture` said. The answer may be `problem`."""
    from tensorpost.bodies.images import EncodedImage
    from tensorpost.values.problems import TensorpostError

    _use_one_thread()
    try:
        return {}, [EncodedImage(head["name"], arrays[0].tobytes(), *head["picture"]).decode()]
    except TensorpostError as error:
        return {"problem": error.to_problem()}, []


def encode_picture(head: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Write an array as a picture, see `tensorpost.images.encode_image`.

    Raises:
        FunctionRefusal: Pillow does not write it, of the kind `inputs`.
    """
    from tensorpost.bodies.images import encode_image
    from tensorpost.values.library_message import library_message

    _use_one_thread()
    try:
        content = encode_image(arrays[0], head["format"])
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise errors of every class
        raise FunctionRefusal("inputs", library_message(error)) from error
    return {}, [np.frombuffer(content, np.uint8)]


def _use_one_thread() -> None:
    """AVIF's codecs would start a thread for each processor, whose stacks count as memory of the call."""
    try:
        from PIL import AvifImagePlugin
    except ImportError:  # a Pillow that was built without it
        return
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
