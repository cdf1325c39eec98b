"""`AsyncClient`: the calls of `Client`, for asyncio. Written by `generate_async_client.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .calls import api_calls as api
from .calls import held_calls
from .calls.api_calls import RequestOptions
from .calls.array_like import TensorLike
from .calls.caller_arrays import Inputs, Outputs, resample_arrays, tile_call
from .calls.cuda_arrays import checked_setting
from .calls.held_tensors import HeldTensor, KeepNames, KeepOutputs
from .calls.mapped_calls import map_graph
from .calls.numpy_calls import NumpyCalls
from .calls.resampling import Antialias, ResamplingMode
from .calls.results import Result, StoredGraph, Validation
from .calls.shared_regions import RegionPool
from .descriptors.feature_levels import FeatureLevel
from .network.options import (
    DEFAULT_BLOCK_BYTES,
    DEFAULT_CHUNK_BYTES,
    DEFAULT_LIMITS,
    DEFAULT_RETRIES,
    DEFAULT_TIMEOUT_SECONDS,
    NO_HEADERS,
    Limits,
    Timeout,
)
from .network.runtime import AsyncioRuntime
from .onnx import NEWEST_OPSET
from .transport.many_servers import ManyServers, new_transport
from .transport.one_server import Transport
from .transport.progress import MapProgress, Progress
from .values.operation import Operation

if TYPE_CHECKING:  # for annotations only: they take long to load, and are rarely needed
    import ssl

    import httpx

    from .calls.graph_calls import GraphDocument, GraphInputs, InputValue, ModelInputs
    from .calls.model_calls import ModelSource
    from .calls.preprocessing import PictureLayout
    from .values.tensor_box import BoxIndex

__all__ = ["AsyncClient"]

Scalar = TypeVar("Scalar", bound=np.generic)


class AsyncClient(NumpyCalls):
    """A connection to a tensorpost server, for asyncio. The same calls as `Client`, to be awaited.

    May be shared between tasks of one event loop. A task that is cancelled closes its connection. `progress` functions
    are called on the event loop and must not block.

    Args:
        base_url: see `Client`.
        timeout: see `Client`.
        limits: see `Client`.
        retries: see `Client`.
        api_key: see `Client`.
        headers: see `Client`.
        tls: see `Client`.
        uds: see `Client`.
        http_client: an `httpx.AsyncClient`; see `Client`.
        shared_memory: see `Client`.
        cuda_shared_memory: see `Client`.

    Examples:
        >>> async def three_by_three(x):
        ...     async with AsyncClient("http://127.0.0.1:8000") as tp:
        ...         return await tp.tile(x, (1, 1, 3, 3))

    Raises:
        InvalidParameter: an argument is malformed.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        *,
        timeout: float | Timeout | None = DEFAULT_TIMEOUT_SECONDS,
        limits: Limits = DEFAULT_LIMITS,
        retries: int = DEFAULT_RETRIES,
        api_key: str | Path | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        tls: ssl.SSLContext | bool = True,
        uds: str | None = None,
        http_client: httpx.AsyncClient | None = None,
        shared_memory: bool = False,
        cuda_shared_memory: bool = False,
    ) -> None:
        runtime = AsyncioRuntime()

        def transport(url: str, address: str | None) -> Transport:
            return Transport(runtime, url, timeout, limits, retries, api_key, headers, tls, uds, http_client, address)

        self._transport: Transport | ManyServers = new_transport(base_url, transport, uds, shared_memory)
        self._regions = RegionPool.of_setting(shared_memory)
        self._cuda_shared_memory = checked_setting(cuda_shared_memory)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._transport.origin} over {self.transport}>"

    @property
    def transport(self) -> str:
        """How calls are sent: `own sockets, TCP`, `own sockets, TLS`, `own sockets, Unix` or `httpx, for a proxy`.

        See `Client.transport`.
        """
        return str(self._transport.sender)

    @property
    def cuda_shared_memory(self) -> bool:
        """Whether held tensors are shared with the server on a GPU."""
        return self._cuda_shared_memory

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections, and free held tensors that only its handles refer to. It cannot be used afterwards."""
        await api.close(self._transport, self._regions)

    # ---- operators ---------------------------------------------------------------------------------------------------

    async def tile(
        self,
        x: NDArray[Scalar] | TensorLike,
        repeats: int | Sequence[int],
        *,
        out: NDArray[Scalar] | None = None,
        backend: str | None = None,
        device: int | None = None,
        feature_level: str | int | FeatureLevel | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> NDArray[Scalar]:
        """Lay copies of an array side by side, as `numpy.tile` does.

        See `Client.tile`.
        """
        call = tile_call(x, repeats, out, directml=feature_level is not None)
        y = await self.run(
            call.operation, call.array, out=call.out, backend=backend, device=device, feature_level=feature_level,
            progress=progress,
        )  # fmt: skip
        return y.reshape(call.shape) if out is None else out

    async def resample(
        self,
        x: NDArray[Scalar] | TensorLike,
        *,
        sizes: int | Sequence[int] | None = None,
        scales: float | Sequence[float] | None = None,
        axes: int | Sequence[int] | None = None,
        mode: ResamplingMode = "linear",
        antialias: Antialias = False,
        out: NDArray[Scalar] | None = None,
        backend: str | None = None,
        device: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> NDArray[Scalar]:
        """Resize an array along any of its axes, pixel centres aligned, edges repeated.

        See `Client.resample`.
        """
        plan, source, target = resample_arrays(
            x, out, sizes=sizes, scales=scales, axes=axes, mode=mode, antialias=antialias
        )
        y = await self.run(
            plan.operation, source, out=target, backend=backend, device=device, progress=progress
        )  # fmt: skip
        return y.reshape(plan.output_shape) if out is None else out

    async def onnx(
        self,
        op_type: str,
        *inputs: Any,
        opset: int = NEWEST_OPSET,
        outputs: int | None = None,
        out: Outputs = None,
        backend: str | None = None,
        device: int | None = None,
        progress: Callable[[Progress], None] | None = None,
        rows: slice | None = None,
        keep: KeepNames = False,
        **attributes: Any,
    ) -> Any:
        """Run an ONNX operator in the version of the opset.

        See `Client.onnx`.
        """
        options = RequestOptions(backend, device, None, progress, rows, KeepOutputs.of(keep, self))
        asked = api.OnnxCall(op_type, inputs, opset, outputs, attributes)
        result = await api.compute_onnx(self._transport, asked, out, options, self._regions)
        return result.array if len(result.arrays) == 1 else tuple(result.arrays.values())

    async def run(
        self,
        desc: Operation,
        inputs: Inputs = None,
        *,
        out: Outputs = None,
        backend: str | None = None,
        device: int | None = None,
        feature_level: str | int | FeatureLevel | None = None,
        progress: Callable[[Progress], None] | None = None,
        rows: slice | None = None,
        keep: KeepNames = False,
    ) -> Any:
        """Run any operator descriptor, or an ONNX node.

        See `Client.run`.
        """
        result = await self.call(
            desc,
            inputs,
            out=out,
            backend=backend,
            device=device,
            feature_level=feature_level,
            progress=progress,
            rows=rows,
            keep=keep,
        )
        return result.array if len(result.arrays) == 1 else tuple(result.arrays.values())

    async def call(
        self,
        desc: Operation,
        inputs: Inputs = None,
        *,
        out: Outputs = None,
        backend: str | None = None,
        device: int | None = None,
        feature_level: str | int | FeatureLevel | None = None,
        progress: Callable[[Progress], None] | None = None,
        rows: slice | None = None,
        keep: KeepNames = False,
    ) -> Result[Any]:
        """`run` with what the server says beside the output: backend, device, timing and request id."""
        options = RequestOptions(backend, device, feature_level, progress, rows, KeepOutputs.of(keep, self))
        return await api.compute(self._transport, desc, inputs, out, options, self._regions)

    def stream(
        self,
        desc: Operation,
        inputs: Inputs = None,
        *,
        backend: str | None = None,
        device: int | None = None,
        feature_level: str | int | FeatureLevel | None = None,
        progress: Callable[[Progress], None] | None = None,
        rows: slice | None = None,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
    ) -> AsyncGenerator[Any, None]:
        """Run an operator and take its output block by block, in order, in constant memory.

        See `Client.stream`.
        Python closes an asynchronous generator that is left early only some time later. To close the connection
        at once: `async with contextlib.aclosing(tp.stream(...)) as blocks`.
        """
        options = RequestOptions(backend, device, feature_level, progress, rows)
        return api.stream(self._transport, desc, inputs, block_bytes, options)

    async def write_zarr(
        self,
        desc: Operation | GraphDocument,
        inputs: Inputs | GraphInputs,
        path: str | PathLike[str],
        *,
        shape: Sequence[int] | None = None,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        backend: str | None = None,
        device: int | None = None,
        feature_level: str | int | FeatureLevel | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Run an operator, ONNX node or graph and write its output as a Zarr array on disk, in constant memory.

        See `Client.write_zarr`.
        """
        options = RequestOptions(backend, device, feature_level, progress)
        await api.write_zarr(self._transport, desc, inputs, path, shape, chunk_bytes, options)

    # ---- graphs ------------------------------------------------------------------------------------------------------

    async def run_graph(
        self,
        graph: GraphDocument,
        inputs: GraphInputs,
        *,
        out: Outputs = None,
        backend: str | None = None,
        device: int | None = None,
        feature_level: str | int | FeatureLevel | None = None,
        progress: Callable[[Progress], None] | None = None,
        rows: slice | None = None,
        keep: KeepNames = False,
    ) -> dict[str, Any]:
        """Run several operators in one request: only the graph's inputs and outputs travel.

        See `Client.run_graph`.
        """
        options = RequestOptions(backend, device, feature_level, progress, rows, KeepOutputs.of(keep, self))
        return await api.compute_graph(self._transport, graph, inputs, out, options)

    async def run_model(
        self,
        model: ModelSource,
        inputs: ModelInputs | InputValue,
        outputs: Sequence[str] | None = None,
        *,
        out: Outputs = None,
        backend: str | None = None,
        device: int | None = None,
        progress: Callable[[Progress], None] | None = None,
        rows: slice | None = None,
        keep: KeepNames = False,
    ) -> dict[str, Any]:
        """Run an ONNX model, which the client reads and sends as a graph; see docs/models.md.

        See `Client.run_model`.
        """
        options = RequestOptions(backend, device, None, progress, rows, KeepOutputs.of(keep, self))
        return await api.compute_model(self._transport, model, inputs, outputs, out, options)

    async def store(
        self,
        graph: GraphDocument | ModelSource,
        name: str | None = None,
        *,
        weights: Mapping[str, InputValue] | None = None,
        version: int | None = None,
        max_batch_size: int | None = None,
        max_queue_delay_microseconds: int = 0,
    ) -> StoredGraph:
        """Store a graph or an ONNX model on the server; calls of it send nothing but tensors.

        See `Client.store`.
        """
        batches = max_batch_size, max_queue_delay_microseconds
        return await api.store_graph(self._transport, graph, name, weights, version, batches, self.run_stored)

    async def run_stored(
        self,
        graph: StoredGraph | str,
        inputs: GraphInputs | InputValue,
        *,
        version: int | None = None,
        out: Outputs = None,
        backend: str | None = None,
        device: int | None = None,
        feature_level: str | int | FeatureLevel | None = None,
        progress: Callable[[Progress], None] | None = None,
        rows: slice | None = None,
        keep: KeepNames = False,
    ) -> dict[str, Any]:
        """Call a stored graph; the handle that `store` returns does the same when it is called.

        See `Client.run_stored`.
        """
        options = RequestOptions(backend, device, feature_level, progress, rows, KeepOutputs.of(keep, self))
        return await api.compute_stored(self._transport, graph, inputs, out, options, version)

    async def stored_graph(self, name: str, version: int | None = None) -> StoredGraph:
        """A stored graph by its name, as `store` returned it.

        See `Client.stored_graph`.
        """
        return await api.stored_graph(self._transport, name, version, self.run_stored)

    async def stored_graphs(self) -> list[StoredGraph]:
        """All stored graphs that may be called, each version: those of this key, and the server's own.

        See `Client.stored_graphs`.
        """
        return await api.stored_graphs(self._transport, self.run_stored)

    async def delete_graph(self, name: str, version: int | None = None) -> None:
        """Delete a stored graph. Calls of it that are in progress are completed.

        See `Client.delete_graph`.
        """
        await api.delete_graph(self._transport, name, version)

    def stream_graph(
        self,
        graph: GraphDocument,
        inputs: GraphInputs,
        *,
        backend: str | None = None,
        device: int | None = None,
        feature_level: str | int | FeatureLevel | None = None,
        progress: Callable[[Progress], None] | None = None,
        rows: slice | None = None,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
    ) -> AsyncGenerator[Any, None]:
        """Run a graph and yield its outputs as `TensorBlock`s, one output after the other, in constant memory.

        See `Client.stream_graph`.
        """
        options = RequestOptions(backend, device, feature_level, progress, rows)
        return api.stream_graph(self._transport, graph, inputs, block_bytes, options)

    def map(
        self,
        graph: GraphDocument,
        inputs: Iterable[GraphInputs | InputValue],
        *,
        in_flight: int = 8,
        retry_seconds: float = 60.0,
        backend: str | None = None,
        device: int | None = None,
        feature_level: str | int | FeatureLevel | None = None,
        progress: Callable[[MapProgress], None] | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Run a graph on each of many inputs, several at a time, and yield the outputs in the order of the inputs.

        See `Client.map`.
        """
        options = RequestOptions(backend, device, feature_level)
        return map_graph(self._transport, graph, inputs, in_flight, retry_seconds, progress, options)

    async def preprocess(
        self,
        files: Iterable[InputValue],
        *,
        size: int | Sequence[int] = 224,
        crop: int | Sequence[int] | None = None,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        layout: PictureLayout = "NCHW",
        dtype: DTypeLike = "float32",
        in_flight: int = 8,
        retry_seconds: float = 60.0,
        backend: str | None = None,
        device: int | None = None,
        progress: Callable[[MapProgress], None] | None = None,
    ) -> NDArray[Any]:
        """Make the batch that a model reads from photographs, each in one request; files are sent unchanged.

        See `Client.preprocess`.
        """
        from .calls.preprocessing import Preprocessing, preprocess  # it needs operators, which load when they are named

        how = Preprocessing.of(size, crop, mean, std, layout, dtype)
        options = RequestOptions(backend, device)
        return await preprocess(self._transport, files, how, in_flight, retry_seconds, progress, options)

    # ---- held tensors ------------------------------------------------------------------------------------------------

    async def put(self, x: TensorLike | InputValue, name: str | None = None, *, replace: bool = False) -> HeldTensor:
        """Send a tensor that the server is to hold; calls that get the handle send nothing but its name.

        See `Client.put`.
        """
        return await held_calls.put_tensor(self._transport, x, name, replace, self)

    async def get_tensor(self, tensor: HeldTensor | str, box: BoxIndex | None = None) -> NDArray[Any]:
        """The elements of a held tensor, or of a part of it, which alone travel; `held[0:10, :, ::2]` does the same.

        See `Client.get_tensor`.
        """
        return await held_calls.get_tensor(self._transport, tensor, box)

    async def get_cupy(self, tensor: HeldTensor | str) -> Any:
        """The elements of a held tensor on the GPU, as a CuPy array of this process; none travels.

        See `Client.get_cupy`.
        """
        return await held_calls.get_cupy(self._transport, tensor)

    async def tensor(self, name: str) -> HeldTensor:
        """A held tensor by its name; the handle does not free it.

        See `Client.tensor`.
        """
        return await held_calls.held_tensor(self._transport, name, self)

    async def tensors(self) -> list[HeldTensor]:
        """The held tensors of this key, by name.

        See `Client.tensors`.
        """
        return await held_calls.held_tensors(self._transport, self)

    async def delete_tensor(self, tensor: HeldTensor | str) -> None:
        """Free a held tensor; calls that read it are finished.

        See `Client.delete_tensor`.
        """
        await held_calls.delete_tensor(self._transport, tensor)

    # ---- questions ---------------------------------------------------------------------------------------------------

    async def validate(
        self, desc: Operation | Mapping[str, Any], *, feature_level: str | int | FeatureLevel | None = None
    ) -> Validation:
        """Ask the server whether it would accept a descriptor, or a document that may be invalid.

        See `Client.validate`.
        """
        return await api.validate(self._transport, desc, feature_level)

    async def operators(self) -> Mapping[str, Any]:
        """The server's operators, each with its attributes and support by feature level."""
        return await api.document(self._transport, "/v1/operators")

    async def operator(self, name: str) -> Mapping[str, Any]:
        """One operator: `tile`, `TILE` or `DML_OPERATOR_TILE`.

        See `Client.operator`.
        """
        return await api.document(self._transport, "/v1/operators", name)

    async def devices(self) -> Mapping[str, Any]:
        """The server's backends and devices, and why some are not used."""
        return await api.document(self._transport, "/v1/devices")

    async def limits(self) -> Mapping[str, Any]:
        """The limits of requests and what is in use: the document of `GET /v1/limits`.

        See `Client.limits`.
        """
        return await api.document(self._transport, "/v1/limits")

    async def live(self) -> bool:
        """Whether a server runs there; False, without retries, if it cannot be reached or does not answer in time."""
        return await api.health(self._transport, "/v2/health/live")

    async def ready(self) -> bool:
        """Whether the server takes requests now, without retries. False while it starts, drains or is unreachable."""
        return await api.health(self._transport, "/v2/health/ready")
