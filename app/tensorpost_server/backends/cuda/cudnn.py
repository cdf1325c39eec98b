"""Convolutions by cuDNN, where it is installed: forward convolutions of packed tensors in true float32 and float64.

cuDNN's C functions are called directly. Its descriptors are made once for each convolution; a handle belongs to a
thread and computes on that thread's stream. TensorFloat-32 stays off: products are those of float32.

Source: cuDNN API, "cudnn_ops Library" and "cudnn_cnn Library".
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...forms.convolutions import Convolution

_LIBRARIES = ("libcudnn.so.9", "libcudnn.so.8")
_KEPT = 512  # convolutions, whose descriptors are kept
_ASKED = 8  # algorithms that cuDNN is asked about
# cudnnDataType_t, cudnnTensorFormat_t, cudnnConvolutionMode_t, cudnnMathType_t
_TYPES = {"float32": 0, "float64": 1, "float16": 2}
_FLOAT, _DOUBLE, _NCHW, _CROSS_CORRELATION, _FMA_MATH = 0, 1, 0, 1, 3
_WORKSPACE_BYTES = 256 << 20
"""Device memory that an algorithm may take beside the tensors."""


class CudnnError(RuntimeError):
    """A function of cuDNN failed."""


class _Algorithm(ctypes.Structure):
    """`cudnnConvolutionFwdAlgoPerf_t`."""

    _fields_ = (
        ("algo", ctypes.c_int), ("status", ctypes.c_int), ("time", ctypes.c_float), ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int), ("math_type", ctypes.c_int), ("reserved", ctypes.c_int * 3),
    )  # fmt: skip


class _Prepared:
    """The descriptors of a convolution, and how it is computed; they are destroyed with it.

    Attributes:
        x: `cudnnTensorDescriptor_t` of the input.
        y: that of the output.
        filters: `cudnnFilterDescriptor_t`.
        convolution: `cudnnConvolutionDescriptor_t`.
        algorithm: `cudnnConvolutionFwdAlgo_t`.
        workspace_bytes: device memory that it takes.
    """

    algorithm = 0
    workspace_bytes = 0

    def __init__(self, library: Any) -> None:
        self._library = library
        self._created: list[tuple[str, ctypes.c_void_p]] = []
        self.x, self.y = self._create("TensorDescriptor"), self._create("TensorDescriptor")
        self.filters = self._create("FilterDescriptor")
        self.convolution = self._create("ConvolutionDescriptor")

    def _create(self, kind: str) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        if getattr(self._library, f"cudnnCreate{kind}")(ctypes.byref(made)):
            raise CudnnError(f"cudnnCreate{kind}")
        self._created.append((kind, made))
        return made

    def __del__(self) -> None:
        for kind, made in self._created:
            getattr(self._library, f"cudnnDestroy{kind}")(made)


class Cudnn:
    """The library.

    Raises:
        OSError: it is not installed.
    """

    def __init__(self) -> None:
        self._library = _load()
        self._library.cudnnGetErrorString.restype = ctypes.c_char_p
        self._library.cudnnGetVersion.restype = ctypes.c_size_t
        self.version = int(self._library.cudnnGetVersion())
        self._handles = threading.local()
        self._prepared = lru_cache(_KEPT)(self._prepare)

    def convolve(self, cupy: Any, form: Convolution, x: Any, filters: Any) -> Any | None:
        """The convolution, on the current stream; None if cuDNN does not compute it.

        Args:
            cupy: the module.
            form: what is computed.
            x: the input, on the current device.
            filters: the filters.
        """
        if not takes(form, x.dtype.name):
            return None
        padding = _padding(form, x.shape[2:])
        if padding is None:
            return None
        x, filters = cupy.ascontiguousarray(x), cupy.ascontiguousarray(filters)
        if any(before != after for before, after in padding):
            x = cupy.pad(x, [(0, 0), (0, 0), *padding])
            padding = [(0, 0)] * len(padding)
        handle = self._handle(cupy.cuda.get_current_stream().ptr)
        device = int(cupy.cuda.runtime.getDevice())
        pads = tuple([before for before, _ in padding])
        try:
            prepared = self._prepared(device, form, x.dtype.name, x.shape, filters.shape, pads)
        except CudnnError:
            return None
        out = cupy.empty(form.sizes, x.dtype)
        workspace = cupy.empty(prepared.workspace_bytes, "uint8")
        scalar = ctypes.c_double if x.dtype.name == "float64" else ctypes.c_float
        one, zero = scalar(1), scalar(0)
        self._call(
            "cudnnConvolutionForward", handle, ctypes.byref(one), prepared.x, _at(x), prepared.filters, _at(filters),
            prepared.convolution, prepared.algorithm, _at(workspace), ctypes.c_size_t(prepared.workspace_bytes),
            ctypes.byref(zero), prepared.y, _at(out),
        )  # fmt: skip
        return out

    def _prepare(
        self, device: int, form: Convolution, kind: str, shape: Sequence[int], filters: Sequence[int],
        pads: Sequence[int],
    ) -> _Prepared:  # fmt: skip
        """The descriptors of a convolution, and its fastest algorithm by cuDNN's own estimate."""
        del device  # of the cache: algorithms are those of the device
        spare = max(0, 2 - len(pads))  # cuDNN has at least two spatial axes
        window, code = form.window, _TYPES[kind]
        made = _Prepared(self._library)
        self._set_tensor(made.x, code, (*shape, *[1] * spare))
        self._set_tensor(made.y, code, (*form.sizes, *[1] * spare))
        sizes = (*filters, *[1] * spare)
        self._call("cudnnSetFilterNdDescriptor", made.filters, code, _NCHW, len(sizes), _ints(sizes))
        self._call(
            "cudnnSetConvolutionNdDescriptor", made.convolution, len(pads) + spare, _ints((*pads, *[0] * spare)),
            _ints((*window.strides, *[1] * spare)), _ints((*window.dilations, *[1] * spare)), _CROSS_CORRELATION,
            _DOUBLE if kind == "float64" else _FLOAT,
        )  # fmt: skip
        self._call("cudnnSetConvolutionGroupCount", made.convolution, form.groups)
        if kind != "float16":
            self._call("cudnnSetConvolutionMathType", made.convolution, _FMA_MATH)
        found, asked = ctypes.c_int(), (_Algorithm * _ASKED)()
        handle = self._handles.handle
        self._call(
            "cudnnGetConvolutionForwardAlgorithm_v7", handle, made.x, made.filters, made.convolution, made.y, _ASKED,
            ctypes.byref(found), asked,
        )  # fmt: skip
        for row in asked[: found.value]:
            if row.status == 0 and row.memory <= _WORKSPACE_BYTES:
                made.algorithm, made.workspace_bytes = row.algo, row.memory
                return made
        raise CudnnError("no algorithm")

    def _set_tensor(self, descriptor: ctypes.c_void_p, code: int, sizes: Sequence[int]) -> None:
        strides, step = list[int](), 1
        for size in reversed(sizes):
            strides.insert(0, step)
            step *= size
        self._call("cudnnSetTensorNdDescriptor", descriptor, code, len(sizes), _ints(sizes), _ints(strides))

    def _handle(self, stream: int) -> ctypes.c_void_p:
        """The handle of this thread, which computes on this stream."""
        if not hasattr(self._handles, "handle"):
            handle = ctypes.c_void_p()
            self._call("cudnnCreate", ctypes.byref(handle))
            self._handles.handle, self._handles.stream = handle, None
        if self._handles.stream != stream:
            self._call("cudnnSetStream", self._handles.handle, ctypes.c_void_p(stream))
            self._handles.stream = stream
        return self._handles.handle

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            text = self._library.cudnnGetErrorString(status)
            raise CudnnError(f"{function}: {text.decode('ascii', 'replace') if text else status}")


def takes(form: Convolution, kind: str) -> bool:
    """Whether cuDNN may compute it: cross-correlations over one to three axes of floats."""
    return kind in _TYPES and not form.window.transposed and 1 <= len(form.window.taps) <= 3


def _padding(form: Convolution, sizes: Sequence[int]) -> list[tuple[int, int]] | None:
    """The zeros before and after each spatial axis; None if some entries of the input are left out before."""
    window = form.window
    found: list[tuple[int, int]] = []
    for size, out, taps, stride, dilation, start in zip(
        sizes, form.sizes[2:], window.taps, window.strides, window.dilations, window.start, strict=True
    ):
        if start < 0:
            return None
        last = (out - 1) * stride + (taps - 1) * dilation + 1 - start  # entries that are read, from the first one on
        # With as many zeros after as before, cuDNN makes as many outputs, or more.
        if (size + 2 * start - (taps - 1) * dilation - 1) // stride + 1 == out:
            found.append((start, start))
        else:
            found.append((start, max(0, last - size)))
            if (size + start + found[-1][1] - (taps - 1) * dilation - 1) // stride + 1 != out:
                return None
    return found


def _load() -> Any:
    """The library of the package that brings it, else the system's."""
    package = importlib.util.find_spec("nvidia")
    folders = [Path(each) / "cudnn" / "lib" for each in (package.submodule_search_locations or ())] if package else []
    for name in _LIBRARIES:
        for folder in folders:
            if (folder / name).exists():
                return ctypes.CDLL(str(folder / name))
    for name in _LIBRARIES[:-1]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return ctypes.CDLL(_LIBRARIES[-1])


def _ints(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int * len(numbers))(*numbers)


def _at(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.data.ptr)
