"""ONNX's Fourier transforms by NumPy's, in float64, rounded once.

ONNX Runtime sums in float32 and is beyond the tolerance of ONNX's own tests where a result is 0.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from tensorpost.onnx import OnnxNode
from tensorpost.onnx.parameters import FourierParameters, FramesParameters

from ..forms import Array
from ..forms.base import go_on
from .registry import form_of_node

_AT_A_TIME = 1 << 16
"""Elements that are transformed between two chances for other computations; one line at least."""
_BYTES = 16 * 4  # of complex128, for the input, the result, and what the transform takes


@form_of_node("DFT")
def fourier_form(node: OnnxNode) -> Array:
    """The discrete Fourier transform along an axis."""
    length = node.parameters_as(FourierParameters).length
    count = max(node.input.element_count, node.output.element_count)
    scratch = 16 * count + _BYTES * max(_AT_A_TIME, length)
    return Array(_fourier, 1, _work(count, length), node.meaning.named(), scratch, "numpy")


def _work(count: int, length: int) -> int:
    return count * 4 * max(1, math.ceil(math.log2(length)))


def _fourier(xp: ModuleType, x: Any, axis: int, length: int, inverse: bool, onesided: bool) -> Any:
    del xp  # NumPy: what CuPy needs for this is not installed with it
    lines = np.moveaxis(x, axis, -2)
    shape = lines.shape[:-2]
    lines = lines.reshape(-1, *lines.shape[-2:])
    bins = length // 2 + 1 if onesided and not inverse else length
    made = np.empty((len(lines), bins, 1 if onesided and inverse else 2))
    for begin, end in _parts(len(lines), length):
        part = lines[begin:end]
        if onesided and inverse:
            made[begin:end, :, 0] = np.fft.irfft(_complex(part), length)
            continue
        if part.shape[-1] == 1 and onesided:
            found = np.fft.rfft(part[..., 0].astype(np.float64), length)
        else:
            found = (np.fft.ifft if inverse else np.fft.fft)(_complex(part), length)
        made[begin:end, :, 0], made[begin:end, :, 1] = found.real, found.imag
    return np.moveaxis(made.reshape(*shape, *made.shape[1:]), -2, axis)


def _complex(part: Any) -> Any:
    """Complex numbers of real and imaginary parts, or of real ones alone."""
    found = part[..., 0].astype(np.complex128)
    if part.shape[-1] == 2:
        found.imag = part[..., 1]
    return found


def _parts(lines: int, length: int) -> Any:
    each = max(1, _AT_A_TIME // length)
    for begin in range(0, lines, each):
        go_on()
        yield begin, min(begin + each, lines)


@form_of_node("STFT")
def short_time_form(node: OnnxNode) -> Array:
    """Transforms of frames of a signal, each multiplied by the window."""
    length = node.parameters_as(FramesParameters).length
    count = node.output.element_count
    scratch = 8 * count + _BYTES * max(_AT_A_TIME, length)
    return Array(_short_time, len(node.tensors), _work(count, length), node.meaning.named(), scratch, "numpy")


def _short_time(xp: ModuleType, signal: Any, *window: Any, step: int, length: int, onesided: bool) -> Any:
    del xp  # NumPy
    taper = window[0].astype(np.float64) if window else np.float64(1)
    frames = (signal.shape[1] - length) // step + 1
    made = np.empty((signal.shape[0], frames, length // 2 + 1 if onesided else length, 2))
    for entry, result in zip(signal, made, strict=True):
        numbers = _complex(entry)
        numbers = numbers if entry.shape[-1] == 2 else numbers.real
        views = np.lib.stride_tricks.sliding_window_view(numbers, length)[::step]
        for begin, end in _parts(frames, length):
            part = views[begin:end] * taper
            found = np.fft.rfft(part) if onesided else np.fft.fft(part)
            result[begin:end, :, 0], result[begin:end, :, 1] = found.real, found.imag
    return made
