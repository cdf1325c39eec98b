"""ONNX's Fourier transforms: shapes and parameters; a row of `TRANSFORMS` for each."""

from __future__ import annotations

from collections.abc import Mapping

from .directml_twins import untranslated
from .inference_context import InferenceContext, InferredOutputs
from .operator_row import OperatorRow
from .parameters import FourierParameters, FramesParameters
from .tensor import Shape

__all__ = ["TRANSFORMS"]


def _fourier(context: InferenceContext) -> InferredOutputs:
    """The last dimension is the real part, or real and imaginary part; the axis is one of the others."""
    shape = context.first.shape
    _check_parts(context, "input", shape, 2)
    name, default = ("axis", 1) if context.since < 20 else ("axis", -2)
    axis = context.axis(name, len(shape), default)
    if axis == len(shape) - 1:
        message = f"axis {axis} is that of real and imaginary parts, of which nothing is transformed"
        context.refuse("axis-out-of-range", context.place(name), message, axis, f"another axis than {axis}")
    inverse, onesided = (bool(context.attributes[each]) for each in ("inverse", "onesided"))
    if onesided and shape[-1] != (2 if inverse else 1):
        expected = (
            "complex numbers, with a last dimension of 2" if inverse else "real numbers, with a last dimension of 1"
        )
        message = f"onesided={int(onesided)} with inverse={int(inverse)} takes {expected}"
        context.refuse("shape", ("inputs", "input"), message, list(shape), expected)
    length = context.integer("dft_length", 2 * (shape[axis] - 1) if onesided and inverse else shape[axis])
    if length < 1 or shape[axis] < 1:
        message = f"a transform of {length} of {shape[axis]} elements is none"
        context.refuse("value", ("inputs", "dft_length"), message, length, "1 or more")
    made = length // 2 + 1 if onesided and not inverse else length
    parts = 1 if onesided and inverse else 2
    output = (*shape[:axis], made, *shape[axis + 1 : -1], parts)
    return InferredOutputs([output], FourierParameters(axis, length, inverse, onesided))


def _short_time(context: InferenceContext) -> InferredOutputs:
    shape, window = context.first.shape, context.tensors.get("window")
    _check_parts(context, "signal", shape, 3)
    step, onesided = context.integer("frame_step"), bool(context.attributes["onesided"])
    if window is not None and len(window.shape) != 1:
        context.refuse("rank", ("inputs", "window"), "window must be a vector", list(window.shape), "1 dimension")
    length = context.integer("frame_length", shape[1] if window is None else window.shape[0])
    if window is not None and window.shape != (length,):
        message = f"the window has {window.shape[0]} elements, and frame_length is {length}"
        context.refuse("shapes-differ", ("inputs", "window"), message, list(window.shape), f"[{length}]")
    if not 1 <= length <= shape[1] or step < 1:
        message = f"there are no frames of {length} elements, {step} apart, in {shape[1]}"
        context.refuse("window", ("inputs", "frame_length"), message, length, f"1 to {shape[1]}, a step of 1 or more")
    if onesided and shape[2] == 2:
        message = "onesided=1 takes a real signal, with a last dimension of 1; set onesided=0"
        context.refuse("attribute-value", ("attributes", "onesided"), message, 1, "0")
    frames = (shape[1] - length) // step + 1
    output = (shape[0], frames, length // 2 + 1 if onesided else length, 2)
    return InferredOutputs([output], FramesParameters(step, length, onesided))


def _check_parts(context: InferenceContext, name: str, shape: Shape, rank: int) -> None:
    """Refuse a tensor without real and imaginary parts in its last dimension."""
    if len(shape) < rank or (rank == 3 and len(shape) != 3) or shape[-1] not in (1, 2):
        message = f"{context.schema.name} takes real numbers (a last dimension of 1) or complex ones (2)"
        expected = "batch, length, 1 or 2" if rank == 3 else "2 dimensions or more, the last one 1 or 2"
        context.refuse("shape", ("inputs", name), message, list(shape), expected)


TRANSFORMS: Mapping[str, OperatorRow] = {
    "DFT": OperatorRow(_fourier, untranslated, "dft_length axis"),
    "STFT": OperatorRow(_short_time, untranslated, "frame_step frame_length"),
}
