"""Convolutions by cuDNN, where it is installed: forward convolutions of packed tensors in true float32 and float64.

cuDNN's C functions are called directly. Its descriptors are made once for each convolution; a handle belongs to a
thread and computes on that thread's stream. TensorFloat-32 stays off: products are those of float32.

Source: cuDNN API, "cudnn_ops Library" and "cudnn_cnn Library".
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import threading
from collections.abc import Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...forms.convolutions import Convolution

_log = logging.getLogger(__name__)

_LIBRARIES = ("libcudnn.so.9", "libcudnn.so.8")
_KEPT = 512  # convolutions, whose descriptors are kept
_TRIED = 16  # algorithms
# cudnnDataType_t, cudnnTensorFormat_t, cudnnConvolutionMode_t, cudnnMathType_t
_TYPES = {"float32": 0, "float64": 1, "float16": 2}
# cudnnStatus_t: bad parameters and what is not supported, before version 9; there they are in the 2000s and 3000s.
_UNSUPPORTED = (3, 9)
_FLOAT, _DOUBLE, _NCHW, _CROSS_CORRELATION = 0, 1, 0, 1
_DEFAULT_MATH, _TENSOR_MATH, _FMA_MATH = 0, 1, 3
_MATH = {"float32": _FMA_MATH, "float64": _FMA_MATH, "float16": _TENSOR_MATH}
_ALLOWED = {kind: ((_DEFAULT_MATH, _FMA_MATH, _TENSOR_MATH) if kind == "float16" else (_FMA_MATH,)) for kind in _MATH}
_WORKSPACE_BYTES = 256 << 20
"""Device memory that an algorithm may take beside the tensors."""


class CudnnError(RuntimeError):
    """A function of cuDNN failed.

    Attributes:
        is_final: whether it does not compute such a convolution, and would not the next time.
    """

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class _Algorithm(ctypes.Structure):
    """An algorithm and what was measured of it: `cudnnConvolutionFwdAlgoPerf_t`."""

    _fields_ = (
        ("algo", ctypes.c_int), ("status", ctypes.c_int), ("time", ctypes.c_float), ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int), ("math_type", ctypes.c_int), ("reserved", ctypes.c_int * 3),
    )  # fmt: skip


class _Prepared:
    """The descriptors of a convolution, and how it is computed; they are destroyed with it.

    Attributes:
        x: `cudnnTensorDescriptor_t` of the input.
        y: `cudnnTensorDescriptor_t` of the output.
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
        self._prepared: dict[Hashable, _Prepared | None] = {}  # None: not computed by it
        self._lock = threading.Lock()

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
        stream, device = cupy.cuda.get_current_stream().ptr, int(cupy.cuda.runtime.getDevice())
        handle, out = self._handle(device, stream), cupy.empty(form.sizes, x.dtype)
        pads = tuple([before for before, _ in padding])
        key = (device, form, x.dtype.name, x.shape, filters.shape, pads)
        prepared = self._prepared.get(key)
        if prepared is None and key not in self._prepared:
            if cupy.cuda.get_current_stream().is_capturing():
                raise RuntimeError("algorithms are not measured while a stream is captured")
            try:
                prepared = self._prepare(cupy, handle, form, pads, x, filters, out)
            except CudnnError as error:
                _log.warning("cuDNN does not compute %s of %s: %s", form, x.shape, error)
                if not error.is_final:
                    return None  # it is tried again with the next call
                prepared = None
            with self._lock:
                self._prepared[key] = prepared
                while len(self._prepared) > _KEPT:
                    self._prepared.pop(next(iter(self._prepared)))
        if prepared is None:
            return None
        workspace = cupy.empty(prepared.workspace_bytes, "uint8")
        one, zero = _scalars(x)
        self._call(
            "cudnnConvolutionForward", handle, ctypes.byref(one), prepared.x, _at(x), prepared.filters, _at(filters),
            prepared.convolution, prepared.algorithm, _at(workspace), ctypes.c_size_t(prepared.workspace_bytes),
            ctypes.byref(zero), prepared.y, _at(out),
        )  # fmt: skip
        return out

    def _prepare(
        self, cupy: Any, handle: ctypes.c_void_p, form: Convolution, pads: Sequence[int], x: Any, filters: Any, out: Any
    ) -> _Prepared:
        """The descriptors of a convolution, and the algorithm that is the fastest when all are tried on these arrays.

        By cuDNN's estimates instead, ResNet-50 took 52 ms for 32 pictures on an H100.

        Raises:
            CudnnError: there is none.
        """
        spare = max(0, 2 - len(pads))  # cuDNN has at least two spatial axes
        window, code = form.window, _TYPES[x.dtype.name]
        made = _Prepared(self._library)
        self._set_tensor(made.x, code, (*x.shape, *[1] * spare))
        self._set_tensor(made.y, code, (*form.sizes, *[1] * spare))
        sizes = (*filters.shape, *[1] * spare)
        self._call("cudnnSetFilterNdDescriptor", made.filters, code, _NCHW, len(sizes), _ints(sizes))
        self._call(
            "cudnnSetConvolutionNdDescriptor", made.convolution, len(pads) + spare, _ints((*pads, *[0] * spare)),
            _ints((*window.strides, *[1] * spare)), _ints((*window.dilations, *[1] * spare)), _CROSS_CORRELATION,
            _DOUBLE if x.dtype.name == "float64" else _FLOAT,
        )  # fmt: skip
        self._call("cudnnSetConvolutionGroupCount", made.convolution, form.groups)
        self._call("cudnnSetConvolutionMathType", made.convolution, _MATH[x.dtype.name])
        found, tried = ctypes.c_int(), (_Algorithm * _TRIED)()
        workspace = _workspace(cupy)
        self._call(
            "cudnnFindConvolutionForwardAlgorithmEx", handle, made.x, _at(x), made.filters, _at(filters),
            made.convolution, made.y, _at(out), _TRIED, ctypes.byref(found), tried, _at(workspace),
            ctypes.c_size_t(workspace.nbytes),
        )  # fmt: skip
        for row in tried[: found.value]:
            if row.status == 0 and row.determinism and row.math_type in _ALLOWED[x.dtype.name]:
                made.algorithm, made.workspace_bytes = row.algo, row.memory
                self._call("cudnnSetConvolutionMathType", made.convolution, row.math_type)
                return made
        raise CudnnError("it has no algorithm", is_final=True)

    def _set_tensor(self, descriptor: ctypes.c_void_p, code: int, sizes: Sequence[int]) -> None:
        strides, step = list[int](), 1
        for size in reversed(sizes):
            strides.insert(0, step)
            step *= size
        self._call("cudnnSetTensorNdDescriptor", descriptor, code, len(sizes), _ints(sizes), _ints(strides))

    def _handle(self, device: int, stream: int) -> ctypes.c_void_p:
        """The handle of this thread, which computes on this stream of this device."""
        found = getattr(self._handles, "found", None)
        if found is None or found[0] != device:
            made = ctypes.c_void_p()
            self._call("cudnnCreate", ctypes.byref(made))
            found = self._handles.found = (device, made)
            self._handles.stream = None
        if self._handles.stream != stream:
            self._call("cudnnSetStream", found[1], ctypes.c_void_p(stream))
            self._handles.stream = stream
        return found[1]

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            text = self._library.cudnnGetErrorString(status)
            is_final = status in _UNSUPPORTED or 2000 <= status < 4000
            raise CudnnError(f"{function}: {text.decode('ascii', 'replace') if text else status}", is_final=is_final)


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


def _workspace(cupy: Any) -> Any:
    """Memory for algorithms to be tried with; less of it where the device has little."""
    for size in (_WORKSPACE_BYTES, _WORKSPACE_BYTES >> 4):
        with suppress(cupy.cuda.memory.OutOfMemoryError):
            return cupy.empty(size, "uint8")
    return cupy.empty(0, "uint8")


def _scalars(x: Any) -> tuple[Any, Any]:
    """One and zero, of the type that factors have."""
    scalar = ctypes.c_double if x.dtype.name == "float64" else ctypes.c_float
    return scalar(1), scalar(0)


def _ints(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int * len(numbers))(*numbers)


def _at(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.data.ptr)
