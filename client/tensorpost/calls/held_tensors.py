"""`HeldTensor`: a tensor that the server holds, from `Client.put` or from a call with `keep`."""

from __future__ import annotations

import inspect
import json
import math
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..transport.held_names import HeldNames, TensorLease
from ..values.checks import shown, text, whole_number
from ..values.datatypes import DataType, data_type
from ..values.layout import Layout
from ..values.problems import InvalidParameter, TensorNotFound
from ..values.tensor_box import BoxIndex, box_in_box, box_text, part_of_box, read_box
from .cuda_arrays import CPU, CUDA

KeepNames: TypeAlias = bool | str | Sequence[str | None] | Mapping[str, str]
"""What to hold of a call's outputs: nothing, all under names of their own, one by a name, or several by names."""

AWAIT = "this handle is of an AsyncClient: await held.get() first"


class TensorCalls(Protocol):
    """What a handle asks its client."""

    @property
    def cuda_shared_memory(self) -> bool:
        """Whether tensors are shared with the server on a GPU, see `Client`."""
        ...

    def get_cupy(self, tensor: Any) -> Any:
        """See `Client.get_cupy`."""
        ...

    def get_tensor(self, tensor: Any, box: Any = None) -> Any:
        """See `Client.get_tensor`."""
        ...

    def delete_tensor(self, tensor: Any) -> Any:
        """See `Client.delete_tensor`."""
        ...


class HeldTensor:
    """A tensor that a server holds. Calls take it wherever they take an array, and send nothing but its name.

    A handle that `Client.put` made without a name frees the tensor: at the end of a `with` block, or with the next
    request after the last handle of it was collected. Its elements never change. If the server has freed the tensor or
    has restarted, calls raise `TensorGone`.

    Attributes:
        name: its name on the server.
        shape: its sizes, or those of the part that the handle means.
        dtype: the type of its elements.
        device: where the server holds it.

    Examples:
        >>> from tensorpost import Client
        >>> with Client("http://127.0.0.1:8000") as tp:                         # doctest: +SKIP  (needs a server)
        ...     held = tp.put(np.arange(12, dtype=np.float32).reshape(3, 4))
        ...     held[1:, ::2].tolist(), tp.multiply(held, held)[0].tolist()
        ([[4.0, 6.0], [8.0, 10.0]], [0.0, 1.0, 4.0, 9.0])
    """

    __slots__ = ("_box", "_client", "_layout", "_lease", "_on_gpu", "_whole", "device")

    __array_priority__ = 0
    __iter__ = None  # its elements come in boxes, not one by one
    __hash__ = object.__hash__

    def __init__(
        self, client: TensorCalls, lease: TensorLease, whole: Layout, device: str, *, box: str = "",
        layout: Layout | None = None,
    ) -> None:  # fmt: skip
        self._client, self._lease, self._whole, self.device = client, lease, whole, device
        self._box, self._layout = box, whole if layout is None else layout
        self._on_gpu: Any = None

    @classmethod
    def of_description(
        cls, said: Mapping[str, Any], client: TensorCalls, names: HeldNames, *, is_own: bool
    ) -> HeldTensor:
        """The handle of what a server describes.

        Raises:
            KeyError, TypeError, ValueError: it is no description.
        """
        name = str(said["name"])
        layout = Layout.row_major(data_type(str(said["dtype"])), [int(size) for size in said["sizes"]])
        lease = names.known.get(name) or TensorLease(name, names, is_own=is_own)
        return cls(client, lease, layout, str(said["device"]))

    @property
    def name(self) -> str:
        """See the attributes."""
        return self._lease.name

    @property
    def shape(self) -> tuple[int, ...]:
        """See the attributes."""
        return self._layout.sizes

    @property
    def dtype(self) -> np.dtype[Any]:
        """See the attributes."""
        return self._whole.data_type.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.data_type.item_size

    @property
    def data_type(self) -> DataType:
        """The type of its elements, with its names."""
        return self._whole.data_type

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a held tensor without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        part = f"[{self._box}]" if self._box else ""
        return f"<HeldTensor {self.name}{part}: {self.data_type.numpy_name} of shape {self.shape}, in {self.device}>"

    @property
    def is_reshaped(self) -> bool:
        """Whether it has other sizes than the tensor, or the part, that the server holds."""
        return self.shape != part_of_box(self._whole, read_box(self._box)).layout.sizes

    # ---- its elements ------------------------------------------------------------------------------------------------

    def get(self, box: BoxIndex | None = None) -> Any:
        """The elements, or a part of them: only those travel. An `AsyncClient`'s handle returns an awaitable.

        Of a handle with other sizes (`reshape`), all elements travel, and the part is taken of what arrived.

        Args:
            box: what would stand in brackets behind an array: indices and slices with steps above 0. Default: all.

        Raises:
            InvalidParameter: there is no such part.
            TensorGone: the server does not hold the tensor any more.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        return self._client.get_tensor(self, box)

    def __getitem__(self, box: BoxIndex) -> Any:
        box_text(box)  # refuses None, which means all to `get`
        return self.get(box)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a held tensor is on a server; its elements come as a copy")
        found = cast("NDArray[Any]", _at_once(self.get()))
        return found if dtype is None else np.asarray(found, dtype)

    def __dlpack__(
        self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        """A DLPack capsule of the elements in memory of this process. On the CPU, all of them travel first.

        On a GPU (`__dlpack_device__`, or `dl_device`) none does, see `Client.get_cupy`.

        Args:
            stream: what the consumer computes in, of a GPU.
            max_version: the newest version of DLPack that the consumer knows.
            dl_device: where the elements are wanted, as DLPack numbers devices; default `__dlpack_device__()`.
            copy: False is refused: the server has the tensor, and this process gets a copy.

        Raises:
            BufferError: `copy` is False, or the device is neither the CPU nor the GPU that the server uses.
            TensorGone: the server does not hold the tensor any more.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        if copy is False:
            raise BufferError("a held tensor is on a server; its elements come as a copy")
        options = {} if max_version is None else {"max_version": max_version}
        if stream is not None:
            options["stream"] = stream
        kind, index = self.__dlpack_device__() if dl_device is None else dl_device
        if kind == CPU:
            return self.__array__().__dlpack__(**cast("Any", options))
        if kind != CUDA:
            raise BufferError(f"a held tensor is given to the CPU or to a CUDA device, not to DLPack's device {kind}")
        array, self._on_gpu = self._array_on_gpu(), None
        if int(array.device.id) != index:
            raise BufferError(f"the server shares GPU {array.device.id} with this process, not {index}")
        return array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU; or of a client with `cuda_shared_memory`, the GPU of the server as this process numbers it.

        To know that, the elements are copied there; the next `__dlpack__` gives that copy away.

        Raises:
            TensorpostError: see `Client.get_cupy`.
        """
        if not self._client.cuda_shared_memory:
            return (CPU, 0)
        self._on_gpu = self._array_on_gpu()
        return (CUDA, int(self._on_gpu.device.id))

    def _array_on_gpu(self) -> Any:
        return _at_once(self._client.get_cupy(self)) if self._on_gpu is None else self._on_gpu

    # ---- as an input -------------------------------------------------------------------------------------------------

    def part(self, box: BoxIndex) -> HeldTensor:
        """A handle of a part, which calls take in place of the whole; nothing travels.

        Args:
            box: see `get`.

        Raises:
            InvalidParameter: there is no such part, or this handle has other sizes (`reshape`).
        """
        if self.is_reshaped:
            raise InvalidParameter(f"{self!r} has other sizes than what the server holds; take the part, then reshape")
        written = box_text(box)
        layout = part_of_box(self._layout, read_box(written)).layout
        if self._box:
            written = box_text(tuple(box_in_box(self._whole.sizes, read_box(self._box), read_box(written))))
        packed = Layout.row_major(layout.data_type, layout.sizes)
        return HeldTensor(self._client, self._lease, self._whole, self.device, box=written, layout=packed)

    def reshape(self, *shape: Any) -> HeldTensor:
        """A handle with other sizes of the same elements, one of which may be -1; nothing travels.

        Raises:
            InvalidParameter: the sizes are those of another number of elements.
        """
        several = len(shape) == 1 and isinstance(shape[0], (tuple, list))
        given = cast("Sequence[object]", shape[0] if several else shape)
        sizes = [whole_number("shape", size, -1) for size in given]
        rest = math.prod([size for size in sizes if size >= 0])
        if sizes.count(-1) == 1 and rest and not self.size % rest:
            sizes[sizes.index(-1)] = self.size // rest
        if -1 in sizes or math.prod(sizes) != self.size:
            raise InvalidParameter(f"{self!r} has {self.size:,} elements; shape is {shown(tuple(sizes))}")
        if tuple(sizes) == self.shape:
            return self
        layout = Layout.row_major(self.data_type, sizes)
        return HeldTensor(self._client, self._lease, self._whole, self.device, box=self._box, layout=layout)

    def astype(self, dtype: DTypeLike, *, copy: bool = True) -> HeldTensor:
        """The handle, if that is its type already: other types have to be computed.

        Raises:
            InvalidParameter: it is another type.
        """
        del copy
        if np.dtype(dtype) != self.dtype:
            raise InvalidParameter(
                f"{self!r} would have to be converted to {np.dtype(dtype)}; do that on the server: "
                f"tp.astype(held, {str(np.dtype(dtype))!r}, keep=True)"
            )
        return self

    def to_document(self) -> dict[str, Any]:
        """What refers to it in a call."""
        document: dict[str, Any] = {"tensor": self.name}
        if self._box:
            document["box"] = self._box
        if self._layout is not self._whole:
            document["sizes"] = list(self.shape)
        return document

    # ---- its lifetime ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lease.is_own = False
        with suppress(TensorNotFound):
            self._client.delete_tensor(self.name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lease.is_own = False
        with suppress(TensorNotFound):
            await cast("Awaitable[None]", self._client.delete_tensor(self.name))


@dataclass(frozen=True, slots=True)
class KeepOutputs:
    """The outputs of a call that the server is to hold.

    Attributes:
        names: what the caller gave: True, a name, or names by output or in order.
        client: whom the handles ask.
    """

    names: KeepNames
    client: TensorCalls

    @classmethod
    def of(cls, keep: object, client: TensorCalls) -> KeepOutputs | None:
        """What the argument `keep` says; None for nothing.

        Raises:
            InvalidParameter: it is neither a truth value nor names.
        """
        if keep is False:
            return None
        if keep is True or isinstance(keep, (str, list, tuple, Mapping)):
            return cls(cast("Any", keep), client)
        raise InvalidParameter(f"keep is {shown(keep)}; it must be True, a name, or a name for each output")

    def of_outputs(self, outputs: Sequence[str]) -> tuple[list[str], list[bool]]:
        """The name of each output, and whether it was made here.

        Raises:
            InvalidParameter: there are other names than outputs.
        """
        names: list[str | None]
        if self.names is True:
            names = [None] * len(outputs)
        elif isinstance(self.names, str):
            names = [self.names]
        elif isinstance(self.names, Mapping):
            if unknown := [name for name in self.names if name not in outputs]:
                raise InvalidParameter(f"keep names the output {unknown[0]!r}; there are {', '.join(outputs)}")
            names = [self.names.get(output) for output in outputs]
        else:
            names = [*cast("Sequence[str | None]", self.names)]
        if len(names) != len(outputs):
            raise InvalidParameter(
                f"keep has {len(names)} names, and the outputs are {', '.join(outputs)}; give a name for each, or True"
            )
        for name in names:
            if name is not None:
                text("keep", name, "the name that an output is to have on the server")
        return [new_name() if name is None else name for name in names], [name is None for name in names]


def _at_once(found: Any) -> Any:
    """What a client answers, unless it has to be awaited.

    Raises:
        TypeError: it has.
    """
    if inspect.isawaitable(found):
        if inspect.iscoroutine(found):
            found.close()
        raise TypeError(AWAIT)
    return found


def new_name() -> str:
    """A name for a tensor that nothing but its handles refers to."""
    return f"h{secrets.token_hex(12)}"


def references(held: Mapping[str, HeldTensor]) -> str:
    """What a frame's metadata says of inputs that are held."""
    return json.dumps({name: tensor.to_document() for name, tensor in held.items()}, separators=(",", ":"))
