"""Pictures in bodies as inputs of graphs and models: the axes that they get, and what fits where they do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from tensorpost.bodies.picture_inputs import is_batch, wrong_channels
from tensorpost.values.datatypes import DataType
from tensorpost.values.problems import InvalidDescriptor, InvalidParameter, Violation

from .encoded_bodies import Picture
from .media_types import Pixels

_COLOURS = 3
_WORDS = {"NHWC": "channels last", "NCHW": "channels first", None: "whole numbers", "float32": "float32 from 0 to 1"}
_PREPARED = ("float32", "float16")  # types that `tensorpost preprocess` writes

BodyPart = TypeVar("BodyPart")


class DeclaredInput(Protocol):
    """An input of a graph or a model, as far as it is known before tensors arrive. See `DeclaredTensor`."""

    @property
    def name(self) -> str: ...
    @property
    def data_type(self) -> DataType | None: ...
    @property
    def sizes(self) -> tuple[int | str | None, ...] | None: ...


DeclaredInputs = Mapping[str, DeclaredInput]
"""DeclaredInputs by name; without entries where nothing is known of them."""


def as_declared(part: BodyPart, inputs: DeclaredInputs) -> BodyPart:
    """A picture with the axes that its input has; every other part of a body as it is."""
    declared = inputs.get(part.name) if isinstance(part, Picture) else None
    if declared is None or not isinstance(part, Picture):
        return part
    return replace(part, is_batch=is_batch(declared.sizes))


def channel_violations(parts: Sequence[object], inputs: DeclaredInputs, what: str) -> list[Violation]:
    """What is wrong with the number of the channels of pictures."""
    found: list[Violation] = []
    for part in parts:
        declared = inputs.get(part.name) if isinstance(part, Picture) else None
        if declared is not None and isinstance(part, Picture):
            ((_, _, shape),) = part.tensors
            is_last = part.pixels.layout == "NHWC"
            violation = wrong_channels(part.name, shape, declared.sizes, what, channels_last=is_last)
            found += [] if violation is None else [violation]
    return found


def explain(
    error: InvalidDescriptor | InvalidParameter, parts: Sequence[object], inputs: DeclaredInputs, *, in_parts: bool
) -> None:
    """Say in an error about inputs what a picture among them can be, or how it becomes what is declared.

    Args:
        error: names the inputs that are wrong: in the paths of its violations, or in its detail.
        parts: the body's.
        inputs: the declared ones.
        in_parts: whether the picture is a part of the body; else it is the body.
    """
    for part in parts:
        declared = inputs.get(part.name) if isinstance(part, Picture) else None
        if declared is None or not isinstance(part, Picture):
            continue
        if isinstance(error, InvalidDescriptor):
            is_wrong = any(("inputs", part.name) == each.path[1:3] for each in error.violations)
        else:
            is_wrong = f"input {part.name!r}" in error.detail
        if is_wrong:
            error.detail += other_media_type(part, partial(_fits, declared), in_parts=in_parts) or _preparation(
                part, declared
            )


def other_media_type(picture: Picture, fits: Callable[[Picture], bool], *, in_parts: bool) -> str:
    """The Content-Type with which a picture fits, as the rest of a message; empty if there is none.

    Args:
        picture: does not fit.
        fits: whether a picture does.
        in_parts: whether the picture is a part of the body; else it is the body.
    """
    layout, dtype = picture.pixels
    turned = "NCHW" if layout == "NHWC" else "NHWC"
    scaled = "float32" if dtype is None else None
    for other in (Pixels(layout, scaled), Pixels(turned, dtype), Pixels(turned, scaled)):
        if not fits(replace(picture, pixels=other)):
            continue
        media_type = other.media_type(f"image/{picture.image.format.lower()}")
        changed = [_WORDS[new] for new, old in ((other.dtype, dtype), (other.layout, layout)) if new != old]
        sent = f"-H 'content-type: {media_type}'"
        if in_parts:
            sent = f"-F '{picture.name}=@FILE;type={media_type.replace(' ', '')}'"
        return (
            f"; {picture.name!r} is a picture, which is {', '.join(changed)}, with the Content-Type {media_type} "
            f"(with curl {sent})"
        )
    return ""


def _preparation(picture: Picture, declared: DeclaredInput) -> str:
    """The command that makes such a tensor of a photograph; empty if it is not of this kind."""
    sizes, kind = declared.sizes, declared.data_type
    if sizes is None or len(sizes) != 4 or (isinstance(sizes[0], int) and sizes[0] != 1) or kind is None:
        return ""
    layout = next((each for each, axis in (("NCHW", 1), ("NHWC", 3)) if sizes[axis] == _COLOURS), None)
    if layout is None or kind.numpy_name not in _PREPARED:
        return ""
    height, width = sizes[2:] if layout == "NCHW" else sizes[1:3]
    options = ""
    if isinstance(height, int) and isinstance(width, int):
        options = f" --size {height}" if height == width else f" --size {width}x{height}"
    options += "" if layout == "NCHW" else f" --layout {layout}"
    options += "" if kind.numpy_name == "float32" else f" --dtype {kind.numpy_name}"
    file = f"{picture.name}.npy"
    also = "" if picture.image.channels in (1, _COLOURS) else ", without its transparency,"
    return (
        f"; a photograph becomes such a tensor{also} by: tensorpost preprocess FILE -o {file}{options} (--mean and "
        f"--std normalize it); send {file} in its place"
    )


def _fits(declared: DeclaredInput, picture: Picture) -> bool:
    ((_, row, shape),) = picture.tensors
    if declared.data_type not in (None, row) or declared.sizes is None or len(declared.sizes) != len(shape):
        return False
    return all(not isinstance(size, int) or size == got for size, got in zip(declared.sizes, shape, strict=True))
