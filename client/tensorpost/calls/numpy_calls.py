"""The calls that people write most, in NumPy's words: methods of both clients and of `GraphBuilder`.

Each is one ONNX node. `Client` returns the result, `AsyncClient` an awaitable of it: the methods only hand on what
`run` gives. `GraphBuilder` returns a tensor of its graph. Types are promoted as NumPy does, before anything is sent:
what NumPy computes in a wider type is converted here, and travels in it.

Where NumPy and ONNX differ, it is NumPy's way, but for these: a number that an integer type cannot hold is cast to the
nearest one; `slice` takes no single indices, which would leave out an axis; `split` gives at least two parts.
"""

from __future__ import annotations

import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType, FunctionType
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..onnx import NEWEST_OPSET
from ..transport.progress import Progress
from ..values.datatypes import data_type
from ..values.problems import InvalidParameter
from .array_like import as_array
from .caller_arrays import Outputs, onnx_node
from .held_tensors import HeldTensor

AnyArray = NDArray[Any]
_FAR = 1 << 62  # beyond the end of any axis
Axes = int | Sequence[int] | None


class CallOptions(TypedDict, total=False):
    """The options of every call in addition to its own arguments, as in `Client.run`."""

    out: Outputs
    backend: str | None
    device: int | None
    progress: Callable[[Progress], None] | None
    keep: bool | str


class TensorOfGraph(ABC):
    """Base of values that represent arrays which are computed later: the tensors of `GraphBuilder`."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """The element type."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int | str | None, ...]:
        """The sizes: numbers, names, or None where only the server can know."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @abstractmethod
    def astype(self, dtype: DTypeLike, *, copy: bool = True) -> Any:
        """See `numpy.ndarray.astype`."""

    @abstractmethod
    def reshape(self, *shape: Any) -> Any:
        """See `numpy.ndarray.reshape`."""


class NumpyCalls:
    """Base of both clients and of `GraphBuilder`.

    All methods of clients take the `CallOptions`: out, backend, device, progress and keep, as in `Client.run`.

    Raises:
        InvalidParameter, InvalidDescriptor: the arguments are wrong; nothing was sent.
        TensorpostError: what the server refused, or `ConnectionProblem`s.
    """

    if not TYPE_CHECKING:  # to a type checker, unknown names stay errors

        def __getattr__(self, name: str) -> Any:
            hint = ""
            if not name.startswith("_"):
                from .unknown_names import method_hint  # it is rarely needed

                hint = method_hint(name, [known for known in dir(self) if not known.startswith("_")])
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def _node(self, op_type: str, inputs: Sequence[Any], options: CallOptions, **attributes: Any) -> Any:
        for name in options:
            if name not in CallOptions.__annotations__:
                raise TypeError(f"{_method_name()}() got an unexpected keyword argument {name!r}")
        node, arrays = onnx_node(op_type, inputs, NEWEST_OPSET, None, attributes)
        return cast("Any", self).run(node, arrays, **options)

    # ---- element by element ------------------------------------------------------------------------------------------

    def astype(self, x: ArrayLike, dtype: DTypeLike, **options: Unpack[CallOptions]) -> Any:
        """Elements converted as `numpy.astype` does; integers saturate, and NaN becomes 0."""
        return self._node("Cast", [_array(x)], options, to=data_type(np.dtype(dtype)).onnx_code)

    def add(self, x1: ArrayLike, x2: ArrayLike, **options: Unpack[CallOptions]) -> Any:
        """Sum of two arrays of numbers, as `numpy.add`."""
        return self._node("Add", _promoted(x1=x1, x2=x2), options)

    def subtract(self, x1: ArrayLike, x2: ArrayLike, **options: Unpack[CallOptions]) -> Any:
        """Difference of two arrays of numbers, as `numpy.subtract`."""
        return self._node("Sub", _promoted(x1=x1, x2=x2), options)

    def multiply(self, x1: ArrayLike, x2: ArrayLike, **options: Unpack[CallOptions]) -> Any:
        """Product of two arrays of numbers, element by element, as `numpy.multiply`."""
        return self._node("Mul", _promoted(x1=x1, x2=x2), options)

    def divide(self, x1: ArrayLike, x2: ArrayLike, **options: Unpack[CallOptions]) -> Any:
        """Quotient of two arrays, as `numpy.divide`; integers give float64."""
        return self._node("Div", [_floating(x) for x in _promoted(x1=x1, x2=x2)], options)

    def where(self, condition: ArrayLike, x: ArrayLike, y: ArrayLike, **options: Unpack[CallOptions]) -> Any:
        """Elements of x where the condition holds, else of y, as `numpy.where` with three arguments."""
        return self._node(
            "Where", [_array(condition, "condition").astype(np.bool_, copy=False), *_promoted(x=x, y=y)], options
        )

    def clip(
        self, x: ArrayLike, a_min: float | None = None, a_max: float | None = None, **options: Unpack[CallOptions]
    ) -> Any:
        """Elements limited to the bounds, which are numbers, as `numpy.clip`."""
        array = _array(x)
        bounds = [None if bound is None else np.asarray(bound, array.dtype) for bound in (a_min, a_max)]
        return self._node("Clip", [array, *bounds], options)

    # ---- where elements are ------------------------------------------------------------------------------------------

    def transpose(self, x: ArrayLike, axes: Sequence[int] | None = None, **options: Unpack[CallOptions]) -> Any:
        """The array with its axes permuted, as `numpy.transpose`."""
        array = _array(x)
        order = range(array.ndim)[::-1] if axes is None else axes
        return self._node("Transpose", [array], options, perm=[axis % max(1, array.ndim) for axis in order])

    def broadcast_to(self, x: ArrayLike, shape: int | Sequence[int], **options: Unpack[CallOptions]) -> Any:
        """The array repeated to a shape, as `numpy.broadcast_to`; the result has memory of its own."""
        array = _array(x)
        target = [shape] if isinstance(shape, int) else [*shape]
        if None not in (sizes := [_number(size) for size in array.shape]):
            target = [*np.broadcast_shapes(cast("list[int]", sizes), target)]
        return self._node("Expand", [array, target], options)

    def slice(
        self,
        x: ArrayLike,
        key: slice | EllipsisType | tuple[slice | EllipsisType, ...],
        **options: Unpack[CallOptions],
    ) -> Any:
        """Part of an array, as `x[key]` of slices, which `numpy.s_` writes: `tp.slice(x, np.s_[1:3, ..., ::-1])`."""
        array = _array(x)
        keys = list(key) if isinstance(key, tuple) else [key]
        if not all(part is Ellipsis or isinstance(part, slice) for part in keys) or keys.count(Ellipsis) > 1:
            raise InvalidParameter("key must be of slices and at most one ...; write i:i+1 instead of an index i")
        at = keys.index(Ellipsis) if Ellipsis in keys else len(keys)
        after = len(keys) - at - 1 if at < len(keys) else 0
        parts = [*enumerate(keys[:at]), *enumerate(keys[at + 1 :], array.ndim - after)]
        if len(parts) > array.ndim:
            raise InvalidParameter(f"key has {len(parts)} slices, and x only {array.ndim} dimensions")
        bounds = [_slice_bounds(cast("slice", part)) for _, part in parts]
        inputs = [
            [start for start, _, _ in bounds],
            [stop for _, stop, _ in bounds],
            [axis for axis, _ in parts],
            [step for _, _, step in bounds],
        ]
        return self._node("Slice", [array, *inputs], options)

    def pad(
        self,
        x: ArrayLike,
        pad_width: int | Sequence[int] | Sequence[Sequence[int]],
        mode: str = "constant",
        *,
        constant_values: float = 0,
        **options: Unpack[CallOptions],
    ) -> Any:
        """The array padded, as `numpy.pad`: modes constant, edge, reflect and wrap; one constant for all sides."""
        array = _array(x)
        widths = np.broadcast_to(np.asarray(pad_width, np.int64), (array.ndim, 2))
        value = np.asarray(constant_values, array.dtype)
        return self._node("Pad", [array, widths.T.reshape(-1).tolist(), value], options, mode=mode)

    def concatenate(self, arrays: Sequence[ArrayLike], axis: int | None = 0, **options: Unpack[CallOptions]) -> Any:
        """Arrays joined along an axis, as `numpy.concatenate`."""
        parts = _promoted(**{f"arrays[{index}]": array for index, array in enumerate(arrays)})
        if axis is None:
            parts, axis = [part.reshape(-1) for part in parts], 0
        return self._node("Concat", parts, options, axis=axis)

    def split(
        self, x: ArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0, **options: Unpack[CallOptions]
    ) -> Any:
        """The array cut along an axis, as `numpy.split`: a tuple of at least two parts."""
        array = _array(x)
        length = _length(array, axis)
        if isinstance(indices_or_sections, int):
            if indices_or_sections < 2 or length % indices_or_sections:
                least = "" if indices_or_sections > 1 else "; send at least 2"
                raise InvalidParameter(
                    f"{length} elements cannot be split into {indices_or_sections} equal parts{least}"
                )
            cuts = list(range(0, length, length // indices_or_sections)) if length else [0] * indices_or_sections
        else:
            cuts = [0, *indices_or_sections]
        whole = range(length)
        sizes = [len(whole[start:stop]) for start, stop in zip(cuts, [*cuts[1:], None], strict=True)]
        if len(sizes) < 2 or sum(sizes) != length:
            raise InvalidParameter(f"cuts at {cuts[1:]} make no parts of {length} elements, one after the other")
        return self._node("Split", [array, sizes], options, axis=axis)

    def take(self, x: ArrayLike, indices: ArrayLike, axis: int | None = None, **options: Unpack[CallOptions]) -> Any:
        """Elements by their indices along an axis, as `numpy.take`; an index outside is refused here."""
        array = _array(x)
        array, axis = (array.reshape(-1), 0) if axis is None else (array, axis)
        return self._node("Gather", [array, _indices(indices, _number(array.shape[axis]))], options, axis=axis)

    def take_along_axis(self, x: ArrayLike, indices: ArrayLike, axis: int = -1, **options: Unpack[CallOptions]) -> Any:
        """Elements by indices of their own, as `numpy.take_along_axis`; nothing is broadcast."""
        array = _array(x)
        return self._node("GatherElements", [array, _indices(indices, _number(array.shape[axis]))], options, axis=axis)

    # ---- along axes --------------------------------------------------------------------------------------------------

    def sum(self, x: ArrayLike, axis: Axes = None, *, keepdims: bool = False, **options: Unpack[CallOptions]) -> Any:
        """Sum along axes, as `numpy.sum`; integers and booleans are summed in 64 bits."""
        return self._reduce("ReduceSum", _wide(_array(x)), axis, keepdims, options)

    def prod(self, x: ArrayLike, axis: Axes = None, *, keepdims: bool = False, **options: Unpack[CallOptions]) -> Any:
        """Product along axes, as `numpy.prod`; integers and booleans are multiplied in 64 bits."""
        return self._reduce("ReduceProd", _wide(_array(x)), axis, keepdims, options)

    def mean(self, x: ArrayLike, axis: Axes = None, *, keepdims: bool = False, **options: Unpack[CallOptions]) -> Any:
        """Mean along axes, as `numpy.mean`; integers give float64."""
        return self._reduce("ReduceMean", _floating(_array(x)), axis, keepdims, options)

    def max(self, x: ArrayLike, axis: Axes = None, *, keepdims: bool = False, **options: Unpack[CallOptions]) -> Any:
        """Largest element along axes, as `numpy.max`."""
        return self._reduce("ReduceMax", _array(x), axis, keepdims, options)

    def min(self, x: ArrayLike, axis: Axes = None, *, keepdims: bool = False, **options: Unpack[CallOptions]) -> Any:
        """Smallest element along axes, as `numpy.min`."""
        return self._reduce("ReduceMin", _array(x), axis, keepdims, options)

    def _reduce(self, op_type: str, x: AnyArray, axis: Axes, keepdims: bool, options: CallOptions) -> Any:
        axes = None if axis is None else [axis] if isinstance(axis, int) else list(axis)
        noop = int(axes == [])  # no axes is not all axes
        return self._node(op_type, [x, axes], options, keepdims=int(keepdims), noop_with_empty_axes=noop)

    def argmax(
        self, x: ArrayLike, axis: int | None = None, *, keepdims: bool = False, **options: Unpack[CallOptions]
    ) -> Any:
        """Index of the largest element, as `numpy.argmax`."""
        return self._position("ArgMax", _array(x), axis, keepdims, options)

    def argmin(
        self, x: ArrayLike, axis: int | None = None, *, keepdims: bool = False, **options: Unpack[CallOptions]
    ) -> Any:
        """Index of the smallest element, as `numpy.argmin`."""
        return self._position("ArgMin", _array(x), axis, keepdims, options)

    def _position(self, op_type: str, x: AnyArray, axis: int | None, keepdims: bool, options: CallOptions) -> Any:
        if axis is None:
            x, axis = x.reshape(*(1,) * (x.ndim - 1 if keepdims else 0), -1), -1
        return self._node(op_type, [x], options, axis=axis, keepdims=int(keepdims))

    def cumsum(self, x: ArrayLike, axis: int | None = None, **options: Unpack[CallOptions]) -> Any:
        """Running sum along an axis, as `numpy.cumsum`; integers and booleans are summed in 64 bits."""
        array = _wide(_array(x))
        array, axis = (array.reshape(-1), 0) if axis is None else (array, axis)
        return self._node("CumSum", [array, axis], options)

    def topk(
        self, x: ArrayLike, k: int, axis: int = -1, *, largest: bool = True, **options: Unpack[CallOptions]
    ) -> Any:
        """The k largest or smallest elements along an axis in order, and their indices: a tuple of two arrays."""
        return self._node("TopK", [_array(x), [k]], options, axis=axis, largest=int(largest))

    def softmax(self, x: ArrayLike, axis: int = -1, **options: Unpack[CallOptions]) -> Any:
        """`exp(x) / sum(exp(x))` along an axis, as `scipy.special.softmax`; integers give float64."""
        return self._node("Softmax", [_floating(_array(x))], options, axis=axis)

    def matmul(self, x1: ArrayLike, x2: ArrayLike, **options: Unpack[CallOptions]) -> Any:
        """Matrix product, as `numpy.matmul`, for floating-point numbers and for integers of 32 and 64 bits."""
        return self._node("MatMul", _promoted(x1=x1, x2=x2), options)


for _name, _method in vars(NumpyCalls).items():
    if isinstance(_method, FunctionType) and not _name.startswith("_"):
        _method.__qualname__ = _name  # in Python's own TypeErrors: users know no class of the name NumpyCalls


def _method_name() -> str:
    """The method that the user called, from inside of it."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name.startswith("_"):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_name


def _array(x: object, name: str = "x") -> AnyArray:
    """The array of an argument, as every call reads it; texts among them. A tensor of a graph has the same methods."""
    return (
        cast("AnyArray", x) if isinstance(x, (TensorOfGraph, HeldTensor)) else np.asarray(as_array(name, x, texts=True))
    )


def _number(size: object) -> int | None:
    """A size of an array; None if it is a name in a graph, or not known before the server computes it."""
    return size if isinstance(size, int) else None


def _length(x: AnyArray, axis: int) -> int:
    """The size of an axis.

    Raises:
        InvalidParameter: it is not known in a graph.
    """
    size = _number(x.shape[axis])
    if size is None:
        raise InvalidParameter(
            f"axis {axis} of x has no number in this graph, which is needed here; declare the sizes of its inputs as "
            "numbers, or give the node by its ONNX name: onnx(...)"
        )
    return size


def _slice_bounds(part: slice) -> tuple[int, int, int]:
    """Start, stop and step of a slice, of an axis of any length: ONNX reads negative and far ones as Python does."""
    step = 1 if part.step is None else operator.index(part.step)
    start = (0 if step > 0 else _FAR) if part.start is None else operator.index(part.start)
    stop = (_FAR if step > 0 else -_FAR) if part.stop is None else operator.index(part.stop)
    return start, stop, step


_OF_KIND: Mapping[str, Any] = {"b": True, "u": 1, "i": 1, "f": 1.0, "c": 1j}
"""Numbers of Python, of the kinds that lists have."""


def _promoted(**values: ArrayLike) -> list[AnyArray]:
    """Arrays of the type that NumPy computes them in together; a Python number takes on that of the arrays.

    So do the numbers of a list beside a tensor of a graph, which is no array yet.
    """
    in_graph = any(isinstance(cast("object", x), TensorOfGraph) for x in values.values())
    read: list[Any] = []
    kinds: list[Any] = []
    for name, x in values.items():
        if isinstance(x, (int, float, complex)):
            read.append(x)
            kinds.append(x)
            continue
        array = _array(x, name)
        is_list = in_graph and isinstance(cast("object", x), (list, tuple)) and array.dtype.kind in _OF_KIND
        read.append(array)
        kinds.append(_OF_KIND[array.dtype.kind] if is_list else array.dtype)
    kind = np.result_type(*kinds)
    return [np.asarray(x, kind) if isinstance(x, (int, float, complex)) else x.astype(kind, copy=False) for x in read]


def _wide(x: AnyArray) -> AnyArray:
    """Integers as NumPy sums them."""
    return x.astype(np.uint64 if x.dtype.kind == "u" else np.int64, copy=False) if x.dtype.kind in "iub" else x


def _floating(x: AnyArray) -> AnyArray:
    """Integers as NumPy divides them."""
    return x.astype(np.float64) if x.dtype.kind in "iub" else x


def _indices(indices: ArrayLike, length: int | None) -> AnyArray:
    positions = _array(indices, "indices")
    if positions.dtype.kind not in "iu":
        raise InvalidParameter(f"indices must be integers, not {positions.dtype}")
    positions = positions.astype(np.int64, copy=False)
    if length is None or isinstance(cast("object", positions), (TensorOfGraph, HeldTensor)):
        return positions
    if positions.size and not -length <= int(positions.min()) <= int(positions.max()) < length:
        index = int(positions[(positions < -length) | (positions >= length)].flat[0])
        reach = f"{-length} to {length - 1}" if length else "it takes no index at all"
        raise InvalidParameter(f"index {index} is outside of the axis, which has {length} elements: {reach}")
    return positions
