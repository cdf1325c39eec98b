"""One operator or a graph over many machines of a Ray cluster: `pip install '.[server,ray]'` on all of them.

For tensors that are larger than any one machine: outputs that are written to Zarr or stay on the cluster, and inputs
that lie there. The computing is the server's (`tensorpost_server.chunked_run`), found by name when it is needed.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .calls.array_like import TensorLike, as_array
from .calls.caller_arrays import Inputs, RequestTemplate, TensorData, arrays_by_name, request_template, wire_inputs
from .calls.cuda_arrays import is_on_gpu
from .calls.graph_calls import GraphDocument, InputValue, graph_request
from .transport.progress import Progress
from .values.checks import entries_of, shown, text, whole_number
from .values.datatypes import DataType, data_type
from .values.graph import Graph
from .values.layout import Layout
from .values.operation import Operation
from .values.problems import InvalidParameter
from .values.tensor_box import BoxIndex, box_text, read_box

__all__ = ["HeldArray", "put", "read_zarr", "run", "run_graph"]

_CHUNK_BYTES = 64 << 20


class ArrayInBoxes(Protocol):
    """An array whose elements are read box by box: `np.load(path, mmap_mode="r")`, a `zarr.Array`, one of h5py."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __getitem__(self, box: Any, /) -> Any: ...


class HeldArray:
    """An array that a Ray cluster holds: its chunks are objects in the object stores of the nodes.

    `put`, `read_zarr` and runs with `keep` make it, and runs take it as an input. It may be larger than any one
    machine: no process has it whole, unless all of it is asked for. It belongs to the program that made it, lives until
    that ends or it is deleted or collected, and its elements never change. Ray spills chunks to a node's disk when the
    node's object store is full.

    The chunks of a lost node are read from their store or computed again when they are needed, if what they were
    computed from is still there. Those of an array that was put are not; reading them raises `TensorGone`.

    Attributes:
        shape: its sizes.
        dtype: the type of its elements.
        data_type: the same, with its names.
        chunks: sizes of a chunk; those at the ends of axes are smaller.
        held_chunks: the server's part of it, for runs.
    """

    __slots__ = ("chunks", "data_type", "dtype", "held_chunks", "shape")

    __array_priority__ = 0
    __iter__ = None  # its elements come in boxes, not one by one

    def __init__(self, held: Any) -> None:
        self.held_chunks = held
        self.shape: tuple[int, ...] = held.layout.sizes
        self.data_type: DataType = held.layout.data_type
        self.dtype: np.dtype[Any] = np.dtype(self.data_type.dtype)
        self.chunks: tuple[int, ...] = held.chunks.shape

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

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a held array without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<HeldArray: {self.data_type.numpy_name} of shape {self.shape}, in chunks of {self.chunks}>"

    def bytes_by_node(self) -> dict[str, int]:
        """Bytes of the chunks in each node's object store, by Ray's id of the node. Chunks below 100 KiB are not there.

        Raises:
            TensorGone: the array was deleted.
        """
        return self.held_chunks.bytes_by_node()

    def get(self, box: BoxIndex | None = None) -> NDArray[Any]:
        """The elements, or a box of them, which tasks cut out on the nodes where the chunks lie: only the box travels.

        Args:
            box: what would stand in brackets behind an array: indices and slices with steps above 0. Default: all.

        Raises:
            InvalidParameter: there is no such box.
            TensorGone: the array was deleted, or a chunk of the box was lost and cannot be made again.
        """
        return self.held_chunks.read(() if box is None else read_box(box_text(box)))

    def __getitem__(self, box: BoxIndex) -> NDArray[Any]:
        box_text(box)  # refuses None, which means all to `get`
        return self.get(box)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a held array is on a cluster; its elements come as a copy")
        return self.get() if dtype is None else np.asarray(self.get(), dtype)

    def write_zarr(self, store: str | Path) -> Any:
        """Write it as a Zarr array (version 3, not compressed), a file for each chunk, each by a task where it lies.

        Args:
            store: a path that every machine has, or a URL that `fsspec` knows.

        Returns:
            The `zarr.Array`.

        Raises:
            TensorGone: see `get`.
            ModuleNotFoundError: zarr is not installed.
        """
        return self.held_chunks.write_zarr(_store(store))

    def delete(self) -> None:
        """Free the memory of the chunks. Deleting again does nothing; reading raises `TensorGone`."""
        self.held_chunks.delete()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.delete()


JobInputs: TypeAlias = Inputs | HeldArray | Sequence[TensorData | HeldArray] | Mapping[str, TensorData | HeldArray]
"""An operator's inputs, see `Inputs`; any of them may lie on the cluster."""
JobGraphInputs: TypeAlias = Mapping[str, InputValue | HeldArray]
"""The inputs of a graph by name; any of them may lie on the cluster."""


def put(
    x: TensorLike | ArrayInBoxes, *, chunk_bytes: int = _CHUNK_BYTES, chunks: Sequence[int] | None = None
) -> HeldArray:
    """Hold an array on a Ray cluster, its chunks spread over the nodes.

    Chunk after chunk is sent, a few at a time. The cluster is that of `ray.init`, `RAY_ADDRESS`, or this machine.

    Args:
        x: an array, or what NumPy can make one of. What has `shape`, a NumPy `dtype` and boxes, such as
            `np.load(path, mmap_mode="r")`, is read chunk by chunk, so that it need not fit into memory.
        chunk_bytes: the most bytes of a chunk, which is a run of the array's bytes. Default 64 MiB.
        chunks: sizes of a chunk instead, one for each axis.

    Raises:
        InvalidParameter: an argument is wrong.
        Unavailable: a node was lost meanwhile.
        ModuleNotFoundError: ray or the server is not installed.
    """
    given: Any = x
    in_boxes = isinstance(getattr(x, "dtype", None), np.dtype) and hasattr(x, "shape") and not is_on_gpu(x)
    array: Any = given if in_boxes and not isinstance(x, np.ndarray) else as_array("x", given)
    try:
        kind = data_type(array.dtype)
    except KeyError:
        raise InvalidParameter(f"x is an array of {array.dtype}; held arrays are numbers and booleans") from None
    layout = Layout.row_major(kind, tuple([int(size) for size in array.shape]))
    most = whole_number("chunk_bytes", chunk_bytes, 1)
    return HeldArray(_engine().put(array, layout, most, _chunk_sizes(chunks, layout.sizes)))


def read_zarr(store: str | Path, *, chunk_bytes: int = _CHUNK_BYTES, chunks: Sequence[int] | None = None) -> HeldArray:
    """Hold a Zarr array on a Ray cluster; tasks on all nodes read its chunks.

    Chunks of a lost node are read again, so the store must not change while the array is held.

    Args:
        store: the array's path, which every machine has, or a URL that `fsspec` knows.
        chunk_bytes: the most bytes of a chunk, which has whole chunks (or shards) of the store, at least one. Default
            64 MiB.
        chunks: sizes of a chunk instead, one for each axis.

    Raises:
        InvalidParameter: an argument is wrong, or Zarr's type is none of numbers and booleans.
        ModuleNotFoundError: ray, zarr or the server is not installed.
        Exception: whatever zarr raises if there is no such array.
    """
    most = whole_number("chunk_bytes", chunk_bytes, 1)
    return HeldArray(_engine().read_zarr(_store(store), most, _chunk_sizes(chunks, None)))


def run(
    operation: Operation,
    inputs: JobInputs = None,
    *,
    store: str | Path | None = None,
    keep: bool = False,
    chunk_bytes: int = _CHUNK_BYTES,
    backend: str = "auto",
    progress: Callable[[Progress], None] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Run an operator, its output cut into chunks that Ray's tasks compute.

    The inputs are put into Ray's object store once and are read there by all tasks of a machine; of a held array each
    task reads what its chunk depends on. The parts of a lost machine are computed again. The cluster is that of
    `ray.init`, `RAY_ADDRESS`, or this machine.

    Args:
        operation: a descriptor or `OnnxNode` with one packed output, whose parts can be computed one by one.
        inputs: see `Client.run`; also `HeldArray`s.
        store: where to write the output as a Zarr array (version 3, not compressed), a file for each chunk: a path that
            every machine has, or a URL that `fsspec` knows.
        keep: whether the output stays on the cluster, as a held array.
        chunk_bytes: the most bytes of a chunk; each task holds one, and at most as many bytes of each held array, for
            which chunks are made smaller if need be. Default 64 MiB.
        backend: the backend of all chunks; `auto` uses the compiled loops where they exist, else NumPy; `cuda` needs
            `options={"num_gpus": 1}`.
        progress: called at the start and after every chunk with a `Progress`, of which `received` are the bytes that
            are computed and `to_receive` those of the output; `ProgressBar()` shows it. With `store` or `keep` only.
        options: what each task needs, as `ray.remote` takes it: `{"num_cpus": 1, "memory": 2**30}`.

    Returns:
        With `store` the `zarr.Array`, with `keep` a `HeldArray`, else the chunks in order, each a pair: its box (begin
        and end along each axis), and the reference of its array.

    Raises:
        InvalidParameter: an argument is wrong, or the operator makes its outputs together, or an element of its output
            depends on more of a held array than `chunk_bytes`.
        TensorGone: a held array was deleted, or a chunk of it was lost and cannot be made again.
        ModuleNotFoundError: ray, zarr or the server is not installed.
    """
    template = request_template(operation)
    given = _operands(template, inputs)
    return _run(operation, given, store, keep, chunk_bytes, backend, progress, options)


def run_graph(
    graph: GraphDocument,
    inputs: JobGraphInputs,
    *,
    store: str | Path | None = None,
    keep: bool = False,
    chunk_bytes: int = _CHUNK_BYTES,
    backend: str = "auto",
    progress: Callable[[Progress], None] | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a graph, its outputs cut into chunks that Ray's tasks compute.

    A task computes its chunk with all that it depends on: element-wise nodes, and nodes that only those read, box by
    box; results that another node needs as a whole in full, in each task again. All of the latter together may take
    `chunk_bytes`.

    Args:
        graph: the graph as a dict, or the path of a JSON file with one; see docs/graphs.md.
        inputs: arrays by the names of the graph's inputs, or `HeldArray`s.
        store: where to write the outputs: a Zarr array for each, below this path by its name; see `run`.
        keep: whether the outputs stay on the cluster; see `run`.
        chunk_bytes: see `run`; also the most bytes of results that are needed as a whole.
        backend: see `run`.
        progress: see `run`; of all outputs together.
        options: see `run`.

    Returns:
        By the names of the outputs what `run` returns.

    Raises:
        InvalidParameter: an argument is wrong, or a node needs too large a result as a whole, or too much of a held
            array for one element; the message names both.
        InvalidDescriptor: the graph breaks rules; it lists every violation, each with its node.
        TensorGone: see `run`.
        OSError, InvalidJson: the graph's file cannot be read.
        ModuleNotFoundError: ray, zarr or the server is not installed.
    """
    held = {name: each for name, each in inputs.items() if isinstance(each, HeldArray)}
    shapes = {name: np.broadcast_to(np.zeros((), each.dtype), each.shape) for name, each in held.items()}
    sent = graph_request(graph, cast("Mapping[str, InputValue]", {**inputs, **shapes}))
    given = _operands(sent.template, {**sent.arrays, **held})
    return _run(sent.graph, given, store, keep, chunk_bytes, backend, progress, options)


def _engine() -> Any:
    return importlib.import_module("tensorpost_server.chunked_run")


def _store(store: object) -> str | Path:
    return store if isinstance(store, Path) else text("store", store, "a path or URL")


def _chunk_sizes(chunks: object, sizes: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The sizes of chunks that a caller named.

    Raises:
        InvalidParameter: they are no whole numbers of at least 1, or not one for each axis.
    """
    if chunks is None:
        return None
    entries = entries_of(chunks)
    if entries is None or (sizes is not None and len(entries) != len(sizes)):
        raise InvalidParameter(f"chunks is {shown(chunks)}; it must have a size for each axis of {shown(sizes)}")
    return tuple([whole_number("chunks", entry, 1) for entry in entries])


def _operands(template: RequestTemplate, inputs: JobInputs) -> list[Any]:
    """The bytes of each input in wire order, or the held array.

    Raises:
        InvalidParameter: an input is missing or unknown, or its type or shape is not what the slot says.
    """
    given, sent = cast("Inputs", inputs), cast("object", inputs)
    several = cast("Mapping[str, object]", sent).values() if isinstance(sent, Mapping) else sent
    each_of = cast("Iterable[object]", several) if isinstance(sent, (list, tuple, Mapping)) else [sent]
    if not any(isinstance(each, HeldArray) for each in each_of):
        return [*wire_inputs(template, given)]
    by_name = arrays_by_name(template, given)
    held = {name: each for name, each in by_name.items() if isinstance(each, HeldArray)}
    others = tuple([slot for slot in template.inputs if slot.name not in held])
    left = {name: each for name, each in by_name.items() if name not in held}
    if by_name.keys() != {slot.name for slot in template.inputs}:
        names = ", ".join([slot.name for slot in template.inputs])
        raise InvalidParameter(f"{template.name} has the inputs {names}; got {', '.join(map(str, by_name))}")
    views = dict(zip([slot.name for slot in others], wire_inputs(replace(template, inputs=others), left), strict=True))
    for slot in template.inputs:
        array, layout = held.get(slot.name), slot.layout
        if array is not None and not (layout.packed and (array.dtype, array.shape) == (_dtype(layout), layout.sizes)):
            wanted = "" if layout.packed else ", with strides or padding, which a held array has not"
            raise InvalidParameter(
                f"{slot.name} is a held array of {array.dtype.name} and shape {array.shape}, but its descriptor says "
                f"{_dtype(layout).name} of {layout.sizes}{wanted}; change one of them"
            )
    chunks = {name: array.held_chunks for name, array in held.items()}
    return [chunks.get(slot.name, views.get(slot.name)) for slot in template.inputs]


def _dtype(layout: Layout) -> np.dtype[Any]:
    return np.dtype(layout.data_type.dtype)


def _run(
    computed: Graph | Operation, inputs: Sequence[Any], store: str | Path | None, keep: object, chunk_bytes: int,
    backend: str, progress: Callable[[Progress], None] | None, options: Mapping[str, Any] | None,
) -> Any:  # fmt: skip
    if store is not None:
        _store(store)
    if not isinstance(keep, bool) or (keep and store is not None):
        raise InvalidParameter(
            f"keep is {shown(keep)} and store {shown(None if store is None else str(store))}; keep is True or False, "
            "and True without a store: write what is held by write_zarr"
        )
    text("backend", backend, "the name of one, or 'auto'")
    if progress is not None and ((store is None and not keep) or not callable(progress)):
        raise InvalidParameter(
            f"progress is {shown(progress)}; it must be a function that takes a Progress, and needs a store or keep: "
            "without one no chunk is waited for"
        )

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(Progress(0, 0, done, total))

    made: Any = _engine().run(
        computed,
        inputs,
        store=store,
        keep=keep,
        chunk_bytes=whole_number("chunk_bytes", chunk_bytes, 1),
        backend=backend,
        progress=None if progress is None else report,
        options=options or {},
    )
    if not keep:
        return made
    if isinstance(computed, Graph):
        return {name: HeldArray(each) for name, each in made.items()}
    return HeldArray(made)
