"""`Client`: the calls, blocking.

What a call means is written in `calls/api_calls.py`, once, as a coroutine; here it is run to its end.
`async_client.py` is generated from this file: after a change, run `python client/generate_async_client.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
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
from .network.runtime import ThreadRuntime, iterate_blocking, run_blocking
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

__all__ = ["Client"]

Scalar = TypeVar("Scalar", bound=np.generic)


class Client(NumpyCalls):
    """A connection to a tensorpost server. Blocking; may be shared between threads.

    Args:
        base_url: where the server is; a path in it is kept as a prefix. Default: the variable TENSORPOST_URL, else
            http://127.0.0.1:8000. With several URLs, each call goes to the server with the fewest outstanding bytes
            of this client, and to another one if that server cannot answer. A URL that begins with `dns+http` means
            every address of its host name, which is resolved again every 30 seconds.
        timeout: the longest time in seconds without progress while a request is sent or an answer is awaited or
            received; None means no limit. A long answer that keeps arriving does not time out. A `Timeout` has a
            limit for each phase; with a number, or None, connecting takes at most 5 seconds.
        limits: the largest number of connections, and how many are kept for the next call.
        retries: how often to repeat a call that could not connect, or was refused as too busy (429) or not ready (503).
            Operators have no effects, so repeating is safe. The waits honour `Retry-After`, grow, and are together at
            most 30 seconds per call. If the connection breaks during an answer of one output of 16 MiB or more, the
            client requests the missing rows over another one for up to 30 seconds, unless this is 0.
        api_key: the key for servers that require one, or a `Path` of a file with it, which only its owner may read
            (mode 0600). It is sent to this server only, as `Authorization: Bearer`. Default: the variable
            TENSORPOST_API_KEY, else the file that TENSORPOST_API_KEY_FILE names; if TENSORPOST_URL is set, these apply
            to that server only. An empty text sends no key.
        headers: sent with every request, for instance `{"X-Request-ID": "..."}`.
        tls: how certificates are verified for https: an `ssl.SSLContext`, True for the usual certificate authorities,
            False for no verification.
        uds: path of a Unix domain socket to connect to; the host in `base_url` is then only a name.
        http_client: your own httpx client, which sends every call with its auth, hooks, proxies and mocks. `close`
            leaves it open. Its settings replace `limits`, `tls` and `uds`; `timeout` still applies.
        shared_memory: transfer tensors of 64 KiB and more in shared memory instead of through the socket, to a server
            on the same host that allows it (TENSORPOST_SHARED_MEMORY; Linux). Streams, graphs, calls with `progress`
            and types without a name in the Open Inference Protocol still use the socket.
        cuda_shared_memory: share held tensors on a GPU with a server on the same host that allows it
            (TENSORPOST_CUDA_SHARED_MEMORY; CuPy): `put` of an array on a GPU sends no element, and libraries that
            read a held tensor by DLPack get it on the server's GPU. Both processes must number their GPUs alike.

    `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` are honoured, except for loopback addresses. Calls through
    a proxy use httpx, all others use the SDK's own sockets; `transport` says which.

    Examples:
        >>> with Client("http://127.0.0.1:8000") as tp:                         # doctest: +SKIP  (needs a server)
        ...     y = tp.tile(np.ones((1, 1, 2, 3), np.float32), (1, 1, 3, 3))

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
        http_client: httpx.Client | None = None,
        shared_memory: bool = False,
        cuda_shared_memory: bool = False,
    ) -> None:
        runtime = ThreadRuntime()

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

        With `http_client` it is `httpx, the caller's own`. The SDK's own sockets receive directly into the result;
        httpx copies.
        """
        return str(self._transport.sender)

    @property
    def cuda_shared_memory(self) -> bool:
        """Whether held tensors are shared with the server on a GPU."""
        return self._cuda_shared_memory

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, and free held tensors that only its handles refer to. It cannot be used afterwards."""
        run_blocking(api.close(self._transport, self._regions))

    # ---- operators ---------------------------------------------------------------------------------------------------

    def tile(
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

        The client sends DML_OPERATOR_TILE, or ONNX Tile for arrays that it does not take: bool, bfloat16, complex64,
        and more than 8 dimensions.

        Args:
            x: array of at least one element, or what NumPy can make one of: numbers, lists, a picture of Pillow, a
                tensor of PyTorch, anything with `__array__`, `__dlpack__` or the buffer protocol. An array that is not
                C-contiguous or is big-endian is copied first.
            repeats: copies, at least 1: one number for each dimension. Fewer numbers, or a single one, apply to the
                last dimensions; with more numbers, x gets dimensions of 1 in front.
            out: receive into this array instead of a new one: C-contiguous, writeable, of x's dtype (little-endian) and
                of the result's shape. After an error its content is undefined.
            backend: `auto` or the name of one; default the server's choice.
            device: which device of that backend, counted from 0 (`devices()` lists them); default the least busy one.
            feature_level: DirectML feature level that must support the call, as in `"2_1"`; default the server's.
            progress: called with a `Progress` after every piece of at most 1 MiB. What it raises ends the call.

        Returns:
            `out`, or a new array.

        Raises:
            InvalidParameter, InvalidDescriptor: the arguments are wrong; nothing was sent.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        call = tile_call(x, repeats, out, directml=feature_level is not None)
        y = self.run(
            call.operation, call.array, out=call.out, backend=backend, device=device, feature_level=feature_level,
            progress=progress,
        )  # fmt: skip
        return y.reshape(call.shape) if out is None else out

    def resample(
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

        The client sends DML_OPERATOR_RESAMPLE2, ONNX Resize with `antialias=True`, or RESAMPLE3 with
        `antialias="directml"`. `tensorpost.resampling.resampling` shows the exact operation without sending anything.
        `tensorpost.compat` has the parameters that reproduce torch, OpenCV, Pillow, SciPy and WebNN.

        Args:
            x: array of float32, float16, int8 or uint8, or what NumPy can make one of, as in `tile`. More than 4
                dimensions are allowed if adjacent dimensions that are not resized can be merged, so that 4 remain.
            sizes: elements of the result along each of `axes`.
            scales: factors along each of `axes`; the result has floor(size * scale) elements. Exactly one of `sizes`
                and `scales` is given.
            axes: the axes that `sizes` or `scales` refer to, negative ones counted from the end; None means every
                axis, in order. A single number for `sizes` or `scales` applies to each of `axes`, which must then be
                given.
            mode: `linear` (integers are truncated toward zero) or `nearest` (halves go up), which copies bit for bit.
            antialias: filter while shrinking; linear only. True is the filter of Pillow (`BILINEAR`) and PyTorch
                (`antialias=True`); it takes more types and any number of dimensions, and rounds integers.
                `"directml"` shrinks an axis to less than half by repeated halving, as RESAMPLE3 does. Photographs of
                uint8 differ from Pillow's by at most 1 of 255 with True and by up to 67 with `"directml"`.
            out: array of the result's shape to receive into; see `run`.
            backend: see `run`.
            device: see `run`.
            progress: see `run`.

        Returns:
            `out`, or a new array.

        Raises:
            InvalidParameter: the arguments are wrong or not expressible; nothing was sent.
            InvalidDescriptor: the result exceeds a limit of DirectML.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        plan, source, target = resample_arrays(
            x, out, sizes=sizes, scales=scales, axes=axes, mode=mode, antialias=antialias
        )
        y = self.run(
            plan.operation, source, out=target, backend=backend, device=device, progress=progress
        )  # fmt: skip
        return y.reshape(plan.output_shape) if out is None else out

    def onnx(
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

        Args:
            op_type: the operator's name in ONNX.
            inputs: its inputs by position, with None for an input that is left out, or by their names in ONNX:
                `tp.onnx("Tile", x, repeats)`, `tp.onnx("Resize", x, scales=[2, 2], mode="linear")`,
                `tp.onnx("Concat", a, b, axis=0)`. Data inputs are arrays; inputs that decide the output's shape may
                be sequences of numbers.
            opset: opset of the default domain; default the newest known.
            outputs: how many outputs the node has; default: the required ones.
            out: see `run`.
            backend: see `run`.
            device: see `run`.
            progress: see `run`.
            rows: see `run`.
            keep: see `run`.
            attributes: the operator's attributes by name, and inputs.

        Raises:
            UnknownOperator: there is no such operator here.
            InvalidDescriptor: the node breaks a rule of ONNX, or its type cannot travel; nothing was sent.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        options = RequestOptions(backend, device, None, progress, rows, KeepOutputs.of(keep, self))
        asked = api.OnnxCall(op_type, inputs, opset, outputs, attributes)
        result = run_blocking(api.compute_onnx(self._transport, asked, out, options, self._regions))
        return result.array if len(result.arrays) == 1 else tuple(result.arrays.values())

    def run(
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

        Args:
            desc: the descriptor, or an `OnnxNode`.
            inputs: the input tensor; for operators with several, a sequence in the order of `desc.inputs`, or a mapping
                by name: that of a frame (`a`, `input_1`), or the field of DirectML's struct (`ATensor`,
                `InputTensors` with a list) or of the class (`a_tensor`); left out for operators without inputs.
                Optional tensors that `desc` leaves out are not counted.
                For a packed tensor: an array of its dtype and sizes (copied first if it is not C-contiguous or is
                big-endian), or its bytes. For a tensor with strides or padding: its buffer, as bytes or as a
                one-dimensional contiguous array, of at least TotalTensorSizeInBytes; it is sent unchanged. Subclasses
                of NumPy's array (np.matrix, np.memmap) are used as plain arrays, here and for `out`; masked arrays are
                refused.
            out: receive into this array instead of a new one; for several outputs into a sequence of arrays (None for a
                new one) or a mapping from some of their names. For a packed output an array of its dtype and sizes,
                otherwise a one-dimensional uint8 array of TotalTensorSizeInBytes; C-contiguous and writeable. After an
                error its content is undefined.
            backend: `auto` or the name of one; default the server's choice.
            device: which device of that backend, counted from 0 (`devices()` lists them); default the least busy one.
            feature_level: DirectML feature level that must support the descriptor; default the server's.
            progress: called with a `Progress` after every piece of at most 1 MiB. What it raises ends the call.
            rows: only these rows of the output, a slice as in `np.s_[128:256]`. A row is a run of elements along the
                last axis, or an element of an output with one dimension; the rows of all other axes are counted
                through, from 0. The server computes only the parts of the output that hold them. The operation must
                have one packed output.
            keep: True to have the server hold the outputs, which are returned as `HeldTensor`s; or a name, or for
                several outputs names, to hold them by. A held tensor of such a name is not replaced.

        Returns:
            The output, an array of its sizes; for several outputs, a tuple in the order of `desc.outputs`. With strides
            or padding an array is a view of its buffer; pass `out` to have the buffer itself. With `rows` it has the
            number of rows and the size of the last axis as its shape.

        Raises:
            InvalidParameter: inputs or `out` do not fit the descriptor; nothing was sent.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        result = self.call(
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

    def call(
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
        return run_blocking(api.compute(self._transport, desc, inputs, out, options, self._regions))

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
    ) -> Generator[Any, None, None]:
        """Run an operator and take its output block by block, in order, in constant memory.

        The blocks are the output tensor's bytes, as memoryviews: row-major if it is packed, otherwise the whole buffer.
        Of several outputs, one after the other, they are `TensorBlock`s. Each has memory of its own and stays valid for
        as long as it is kept. Arguments are checked at once; the request is sent when
        the first block is asked for. Leaving the loop early closes the connection.

        Args:
            desc: the descriptor.
            inputs: see `run`.
            backend: see `run`.
            device: see `run`.
            feature_level: see `run`.
            progress: see `run`.
            rows: see `run`.
            block_bytes: bytes of each block but the last, which may be shorter. Default 1 MiB.

        Raises:
            InvalidParameter: inputs do not fit the descriptor; nothing was sent.
            IncompleteBody: while iterating: the answer broke off, and the rest could not be had (see `retries` of
                `Client`). The blocks so far are right.
            CallChanged: while iterating: the answer broke off, and the inputs have changed since the call began.
            TensorpostError: while iterating: what the server refused, or other `ConnectionProblem`s.
        """
        options = RequestOptions(backend, device, feature_level, progress, rows)
        return iterate_blocking(api.stream(self._transport, desc, inputs, block_bytes, options))

    def write_zarr(
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

        The array (version 3, not compressed) is in `path` with the suffix `.part` until it is complete. The same call
        in another process continues where this one stopped, and transfers only what is missing. Neither zarr nor Ray
        is needed.

        Args:
            desc: see `run`, or the graph of `run_graph`; it has one packed output.
            inputs: see `run` and `run_graph`.
            path: a folder that does not exist yet, as in `y.zarr`.
            shape: sizes of the array, if they are not those of the output.
            chunk_bytes: the largest size of a chunk in bytes; each chunk is a file. Default 16 MiB.
            backend: see `run`.
            device: see `run`.
            feature_level: see `run`.
            progress: see `run`.

        Raises:
            InvalidParameter: an argument is wrong, Zarr cannot hold such arrays, or the `.part` folder is not
                that of such a call.
            CallChanged: the `.part` folder belongs to another call or to other inputs; it is not changed.
            OSError: the path exists, or its folder does not.
            TensorpostError: an error of the server, or a `ConnectionProblem`; the chunks that have arrived are kept.
        """
        options = RequestOptions(backend, device, feature_level, progress)
        run_blocking(api.write_zarr(self._transport, desc, inputs, path, shape, chunk_bytes, options))

    # ---- graphs ------------------------------------------------------------------------------------------------------

    def run_graph(
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

        Args:
            graph: the graph as a dict, or the path of a JSON file with one; see docs/graphs.md.
            inputs: arrays by the names of the graph's inputs. A picture, as a path or as the bytes of its file, is a
                tensor of 1, height, width and channels; if it is the only input, its file is sent unchanged. The path
                of an npy file means the array in it.
            out: arrays to receive outputs into, by the names of the outputs; see `run`.
            backend: see `run`.
            device: see `run`.
            feature_level: see `run`.
            progress: see `run`.
            rows: see `run`.
            keep: see `run`.

        Returns:
            The outputs by their names: arrays, or handles with `keep`.

        Examples:
            >>> graph = {
            ...     "inputs": {"photo": {"data_type": "UINT8", "sizes": ["h", "w", 3]}},
            ...     "nodes": [
            ...         {"name": "f", "op_type": "Cast", "inputs": ["photo"], "attributes": {"to": "float32"}},
            ...         {"name": "chw", "op_type": "Transpose", "inputs": ["f"], "attributes": {"perm": [2, 0, 1]}},
            ...     ],
            ...     "outputs": {"image": "chw"},
            ... }
            >>> with Client("http://127.0.0.1:8000") as tp:                     # doctest: +SKIP  (needs a server)
            ...     image = tp.run_graph(graph, {"photo": np.zeros((4, 6, 3), np.uint8)})["image"]

        Raises:
            InvalidParameter, InvalidDescriptor: the graph or an argument is wrong; nothing was sent. Every broken rule
                is listed, with its node.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        options = RequestOptions(backend, device, feature_level, progress, rows, KeepOutputs.of(keep, self))
        return run_blocking(api.compute_graph(self._transport, graph, inputs, out, options))

    def run_model(
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

        A model whose sizes depend on elements (NonZero) is sent itself, and the server computes it in parts.

        Args:
            model: the path or the bytes of an ONNX file, or an `onnx.ModelProto`. It is refused if it needs external
                data, a custom domain, or strings.
            inputs: the model's inputs by name, as in `run_graph`; for a model with one input, the input itself may be
                given. These tensors set the sizes that the model names. A sequence is a list of them, and an optional
                value may be None; so are outputs.
            outputs: names of the outputs to return; default: all.
            out: see `run_graph`.
            backend: see `run`; `onnxruntime` has ONNX Runtime compute the whole model, in a process of the server.
            device: see `run`.
            progress: see `run`.
            rows: see `run`.
            keep: see `run`.

        Returns:
            The outputs by their names: arrays, or handles with `keep`.

        Examples:
            >>> from onnx.parser import parse_model
            >>> text = '<ir_version: 8, opset_import: ["": 17]> relu (float[n] x) => (float[n] y) { y = Relu(x) }'
            >>> with Client("http://127.0.0.1:8000") as tp:                     # doctest: +SKIP  (needs a server)
            ...     y = tp.run_model(parse_model(text), np.array([-1, 2], np.float32))["y"]

        Raises:
            InvalidParameter, InvalidDescriptor, UnknownOperator: the model or an argument is wrong; nothing was sent.
                The message names the node.
            OSError: a file cannot be read.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        options = RequestOptions(backend, device, None, progress, rows, KeepOutputs.of(keep, self))
        return run_blocking(api.compute_model(self._transport, model, inputs, outputs, out, options))

    def store(
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

        Args:
            graph: see `run_graph`; or a model: the path of a file that ends in .onnx, its bytes, or an
                `onnx.ModelProto`.
            name: its name on the server; a stored graph of the same name is replaced. Default: the SHA-256 of what is
                stored. Each API key has its own stored graphs.
            weights: inputs of the graph that are stored with it, by name.
            version: store it as this version, a number from 1, beside other versions of the name. Default: as version
                1, in place of all of them.
            max_batch_size: most rows that calls are joined to, which wait at the same time: their first sizes together.
                Each row of an output must depend on the same row of the inputs only. Default: calls are not joined.
            max_queue_delay_microseconds: how long a call may wait for others although nothing is computed.

        Returns:
            The stored graph, which can be called like a function.

        Examples:
            >>> with Client("http://127.0.0.1:8000") as tp:                     # doctest: +SKIP  (needs a server)
            ...     graph = {"inputs": {"x": {}, "w": {}}, "outputs": {"y": "y"},
            ...              "nodes": [{"name": "y", "op_type": "Mul", "inputs": ["x", "w"]}]}
            ...     scale = tp.store(graph, "scale", weights={"w": np.float32([1, 10])})
            ...     scale(np.float32([[1, 2], [3, 4]]))["y"].tolist()
            [[1.0, 20.0], [3.0, 40.0]]

        Raises:
            InvalidParameter: an argument is wrong; nothing was sent.
            OSError: a file cannot be read.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        batches = max_batch_size, max_queue_delay_microseconds
        return run_blocking(api.store_graph(self._transport, graph, name, weights, version, batches, self.run_stored))

    def run_stored(
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

        Args:
            graph: what `store` or `stored_graph` returned; or its name on the server, which costs one more request: its
                inputs and outputs are read first.
            inputs: its inputs by name, as in `run_graph`; a single input may be given without its name.
            version: the number of its version. Default: the one that the handle is of, or the newest.
            out: see `run_graph`.
            backend: see `run`.
            device: see `run`.
            feature_level: see `run`.
            progress: see `run`.
            rows: see `run`.
            keep: see `run`.

        Returns:
            The outputs by their names: arrays, or handles with `keep`.

        Raises:
            InvalidParameter: an argument is wrong; nothing was sent.
            GraphNotFound: the server no longer has it, or has no such version.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        options = RequestOptions(backend, device, feature_level, progress, rows, KeepOutputs.of(keep, self))
        return run_blocking(api.compute_stored(self._transport, graph, inputs, out, options, version))

    def stored_graph(self, name: str, version: int | None = None) -> StoredGraph:
        """A stored graph by its name, as `store` returned it.

        Args:
            name: its name on the server.
            version: the number of its version. Default: the newest; calls go to the one that is the newest then.

        Raises:
            GraphNotFound: there is none, or no such version; `extra["versions"]` are those that there are.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        return run_blocking(api.stored_graph(self._transport, name, version, self.run_stored))

    def stored_graphs(self) -> list[StoredGraph]:
        """All stored graphs that may be called, each version: those of this key, and the server's own.

        Raises:
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        return run_blocking(api.stored_graphs(self._transport, self.run_stored))

    def delete_graph(self, name: str, version: int | None = None) -> None:
        """Delete a stored graph. Calls of it that are in progress are completed.

        Args:
            name: its name on the server.
            version: the number of the only version to delete. Default: all of them.

        Raises:
            GraphNotFound: there is none, or no such version.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        run_blocking(api.delete_graph(self._transport, name, version))

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
    ) -> Generator[Any, None, None]:
        """Run a graph and yield its outputs as `TensorBlock`s, one output after the other, in constant memory.

        Args:
            graph: see `run_graph`.
            inputs: see `run_graph`.
            backend: see `run`.
            device: see `run`.
            feature_level: see `run`.
            progress: see `run`.
            rows: see `run`.
            block_bytes: see `stream`.

        Raises:
            InvalidParameter, InvalidDescriptor: the graph or an argument is wrong; nothing was sent.
            TensorpostError: while iterating; see `stream`.
        """
        options = RequestOptions(backend, device, feature_level, progress, rows)
        return iterate_blocking(api.stream_graph(self._transport, graph, inputs, block_bytes, options))

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
    ) -> Generator[Any, None, None]:
        """Run a graph on each of many inputs, several at a time, and yield the outputs in the order of the inputs.

        If the server restarts meanwhile, no result is lost: every call is repeated until it is answered.

        Args:
            graph: see `run_graph`.
            inputs: the inputs of `run_graph` for each call; for a graph with one input, arrays, pictures or paths
                without its name. The iterable is read as inputs are needed.
            in_flight: calls at a time, each over its own connection. At most this number of results is kept.
            retry_seconds: how long the call for one input is repeated while the server cannot be reached, refuses it
                as too busy (429) or not ready (503), or breaks off its answer.
            backend: see `run`.
            device: see `run`.
            feature_level: see `run`.
            progress: called with a `MapProgress` after each result, for instance `ProgressBar()`.

        Yields:
            A dict for each of the inputs: the outputs by their names.

        Examples:
            >>> with Client("http://127.0.0.1:8000") as tp:                     # doctest: +SKIP  (needs a server)
            ...     graph = {"inputs": {"x": {}}, "nodes": [{"name": "y", "op_type": "Neg", "inputs": "x"}],
            ...              "outputs": {"y": "y"}}
            ...     [result["y"].tolist() for result in tp.map(graph, [np.arange(2), np.arange(3)])]
            [[0, -1], [0, -1, -2]]

        Raises:
            InvalidParameter: an argument is wrong.
            InvalidParameter, InvalidDescriptor, InvalidFrame, OSError: while iterating: the graph does not take one of
                the inputs, or its file cannot be read.
            TensorpostError: while iterating: what the server refused, or `ConnectionProblem`s.
        """
        options = RequestOptions(backend, device, feature_level)
        return iterate_blocking(map_graph(self._transport, graph, inputs, in_flight, retry_seconds, progress, options))

    def preprocess(
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

        Each photograph is decoded, turned upright, resized with the filter of Pillow's `BILINEAR` and of torch's
        `antialias` in float32, cropped, and divided by 255, or by 65535 if it has 16 bits. Then `mean` is subtracted
        and the result is divided by `std`. Grey is repeated for three channels, and transparency is dropped.

        Args:
            files: paths, the bytes of files, Pillow's pictures, or arrays of rows, columns and channels of uint8.
            size: rows and columns, or one number for both; with `crop` the length of the shorter side.
            crop: rows and columns of the middle part that is kept, or one number for both.
            mean: a number for each channel or one for all, of pixels from 0 to 1, so at most 1; default 0.
            std: the same; default 1.
            layout: `NCHW`, or `NHWC` for channels last.
            dtype: float32 or float16.
            in_flight: see `map`.
            retry_seconds: see `map`.
            backend: see `run`.
            device: see `run`.
            progress: see `map`.

        Returns:
            An array of photographs, channels, rows and columns.

        Examples:
            >>> with Client("http://127.0.0.1:8000") as tp:                     # doctest: +SKIP  (needs a server)
            ...     photos = [np.zeros((300, 400, 3), np.uint8), np.zeros((50, 60), np.uint8)]
            ...     tp.preprocess(photos, size=256, crop=224, mean=(0.485, 0.456, 0.406), dtype="float16").shape
            (2, 3, 224, 224)

        Raises:
            InvalidParameter, InvalidFrame, OSError: an argument is wrong, or a file cannot be read.
            ModuleNotFoundError: a file without Pillow.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        from .calls.preprocessing import Preprocessing, preprocess  # it needs operators, which load when they are named

        how = Preprocessing.of(size, crop, mean, std, layout, dtype)
        options = RequestOptions(backend, device)
        return run_blocking(preprocess(self._transport, files, how, in_flight, retry_seconds, progress, options))

    # ---- held tensors ------------------------------------------------------------------------------------------------

    def put(self, x: TensorLike | InputValue, name: str | None = None, *, replace: bool = False) -> HeldTensor:
        """Send a tensor that the server is to hold; calls that get the handle send nothing but its name.

        Args:
            x: array of numbers or booleans, or what is like one, as in `run_graph`: the file of a picture is sent
                unchanged, and is a tensor of 1, height, width and channels. Whatever speaks DLPack is sent from where
                it lies; from a GPU by way of host memory, or with `cuda_shared_memory` not at all: the server copies.
            name: its name on the server; default one that only the handle knows. Then the tensor is freed with the
                next request after the last handle was collected.
            replace: whether a held tensor of this name gives way; calls that read it are finished with it.

        Returns:
            The handle. `with` frees the tensor at the end of the block.

        Raises:
            InvalidParameter: an argument is wrong, or the client is one of several servers; nothing was sent.
            TensorExists: there is a held tensor of this name.
            InsufficientStorage: the server has no room for it; the setting is named.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        return run_blocking(held_calls.put_tensor(self._transport, x, name, replace, self))

    def get_tensor(self, tensor: HeldTensor | str, box: BoxIndex | None = None) -> NDArray[Any]:
        """The elements of a held tensor, or of a part of it, which alone travel; `held[0:10, :, ::2]` does the same.

        Args:
            tensor: the handle, or the name.
            box: what would stand in brackets behind an array: indices and slices with steps above 0.

        Raises:
            InvalidParameter: there is no such part.
            TensorGone: the server does not hold it any more.
            TensorNotFound: there is none of this name.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        return run_blocking(held_calls.get_tensor(self._transport, tensor, box))

    def get_cupy(self, tensor: HeldTensor | str) -> Any:
        """The elements of a held tensor on the GPU, as a CuPy array of this process; none travels.

        The server copies the tensor within the device into memory that only this client gets the handle of, which this
        process copies again, closes and has freed. So the array is this process's own, and nobody else frees it. Of a
        part, the whole tensor is copied first. Asynchronous work of the current stream is waited for.

        Args:
            tensor: the handle, or the name.

        Raises:
            InvalidParameter: CuPy is not installed, has not the tensor's type, or cannot open the memory: the server is
                on another host or in a container of its own, or its GPU is not visible here.
            Unavailable: the server has no CUDA device or does not share it (TENSORPOST_CUDA_SHARED_MEMORY).
            InsufficientStorage: too much of the device is shared now.
            OutOfDeviceMemory: the device has no room for it.
            TensorGone, TensorNotFound: the server does not hold it.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        return run_blocking(held_calls.get_cupy(self._transport, tensor))

    def tensor(self, name: str) -> HeldTensor:
        """A held tensor by its name; the handle does not free it.

        Args:
            name: its name on the server.

        Raises:
            TensorGone, TensorNotFound: there is none.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        return run_blocking(held_calls.held_tensor(self._transport, name, self))

    def tensors(self) -> list[HeldTensor]:
        """The held tensors of this key, by name.

        Raises:
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        return run_blocking(held_calls.held_tensors(self._transport, self))

    def delete_tensor(self, tensor: HeldTensor | str) -> None:
        """Free a held tensor; calls that read it are finished.

        Args:
            tensor: the handle, or the name.

        Raises:
            TensorGone, TensorNotFound: there is none.
            TensorpostError: what the server refused, or `ConnectionProblem`s.
        """
        run_blocking(held_calls.delete_tensor(self._transport, tensor))

    # ---- questions ---------------------------------------------------------------------------------------------------

    def validate(
        self, desc: Operation | Mapping[str, Any], *, feature_level: str | int | FeatureLevel | None = None
    ) -> Validation:
        """Ask the server whether it would accept a descriptor, or a document that may be invalid.

        `desc.validate_for(feature_level)` answers the same question offline.

        Args:
            desc: a descriptor, an `OnnxNode`, or the JSON document of either; or a graph, with numbers for all sizes
                of its inputs.
            feature_level: DirectML feature level to check against; default the server's.

        Raises:
            UnsupportedAtLevel: valid, but not at this level; every violation is listed.
            InvalidDescriptor: not valid at any level; every violation is listed.
        """
        return run_blocking(api.validate(self._transport, desc, feature_level))

    def operators(self) -> Mapping[str, Any]:
        """The server's operators, each with its attributes and support by feature level."""
        return run_blocking(api.document(self._transport, "/v1/operators"))

    def operator(self, name: str) -> Mapping[str, Any]:
        """One operator: `tile`, `TILE` or `DML_OPERATOR_TILE`.

        Raises:
            UnknownOperator: no operator has this name; the message names the most similar one.
        """
        return run_blocking(api.document(self._transport, "/v1/operators", name))

    def devices(self) -> Mapping[str, Any]:
        """The server's backends and devices, and why some are not used."""
        return run_blocking(api.document(self._transport, "/v1/devices"))

    def limits(self) -> Mapping[str, Any]:
        """The limits of requests and what is in use: the document of `GET /v1/limits`.

        Returns:
            JSON: `limits`, a list of objects with `name`, `value`, `setting` (a variable) and `description`; `in_use`,
            `bytes_in_flight` and `requests_in_flight`; `large_blocks`, bytes; `seconds_per_element`, by device.
        """
        return run_blocking(api.document(self._transport, "/v1/limits"))

    def live(self) -> bool:
        """Whether a server runs there; False, without retries, if it cannot be reached or does not answer in time."""
        return run_blocking(api.health(self._transport, "/v2/health/live"))

    def ready(self) -> bool:
        """Whether the server takes requests now, without retries. False while it starts, drains or is unreachable."""
        return run_blocking(api.health(self._transport, "/v2/health/ready"))
