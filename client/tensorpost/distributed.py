"""One operator or a graph over many machines of a Ray cluster: `pip install '.[server,ray]'` on all of them.

For outputs that are larger than any one machine. The computing is the server's (`tensorpost_server.chunked_run`), found
by name when it is needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .calls.caller_arrays import Inputs, RequestTemplate, request_template, wire_inputs
from .calls.graph_calls import GraphDocument, GraphInputs, graph_request
from .transport.progress import Progress
from .values.checks import shown, text, whole_number
from .values.graph import Graph
from .values.operation import Operation
from .values.problems import InvalidParameter

__all__ = ["run", "run_graph"]

_CHUNK_BYTES = 64 << 20


def run(
    operation: Operation,
    inputs: Inputs = None,
    *,
    store: str | Path | None = None,
    chunk_bytes: int = _CHUNK_BYTES,
    backend: str = "auto",
    progress: Callable[[Progress], None] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Run an operator, its output cut into chunks that Ray's tasks compute.

    The inputs are put into Ray's object store once and are read there by all tasks of a machine. The parts of a lost
    machine are computed again. The cluster is that of `ray.init`, `RAY_ADDRESS`, or this machine.

    Args:
        operation: a descriptor or `OnnxNode` with one packed output, whose parts can be computed one by one.
        inputs: see `Client.run`.
        store: where to write the output as a Zarr array (version 3, not compressed), a file for each chunk: a path that
            every machine has, or a URL that `fsspec` knows.
        chunk_bytes: the most bytes of a chunk; each task holds one. Default 64 MiB.
        backend: the backend of all chunks; `auto` uses the compiled loops where they exist, else NumPy; `cuda` needs
            `options={"num_gpus": 1}`.
        progress: called at the start and after every chunk with a `Progress`, of which `received` are the bytes written
            and `to_receive` those of the output; `ProgressBar()` shows it. With `store` only.
        options: what each task needs, as `ray.remote` takes it: `{"num_cpus": 1, "memory": 2**30}`.

    Returns:
        With `store` the `zarr.Array`, else the chunks in order, each a pair: its box (begin and end along each axis),
        and the reference of its array.

    Raises:
        InvalidParameter: an argument is wrong, or the operator makes its outputs together.
        ModuleNotFoundError: ray, zarr or the server is not installed.
    """
    template = request_template(operation)
    return _run(operation, template, inputs, store, chunk_bytes, backend, progress, options)


def run_graph(
    graph: GraphDocument,
    inputs: GraphInputs,
    *,
    store: str | Path | None = None,
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
        inputs: arrays by the names of the graph's inputs.
        store: where to write the outputs: a Zarr array for each, below this path by its name; see `run`.
        chunk_bytes: see `run`; also the most bytes of results that are needed as a whole.
        backend: see `run`.
        progress: see `run`; of all outputs together.
        options: see `run`.

    Returns:
        By the names of the outputs what `run` returns.

    Raises:
        InvalidParameter: an argument is wrong, or a node needs too large a result as a whole; the message names both.
        InvalidDescriptor: the graph breaks rules; it lists every violation, each with its node.
        OSError, InvalidJson: the graph's file cannot be read.
        ModuleNotFoundError: ray, zarr or the server is not installed.
    """
    sent = graph_request(graph, inputs)
    return _run(sent.graph, sent.template, sent.arrays, store, chunk_bytes, backend, progress, options)


def _run(
    computed: Graph | Operation, template: RequestTemplate, inputs: Inputs, store: str | Path | None, chunk_bytes: int,
    backend: str, progress: Callable[[Progress], None] | None, options: Mapping[str, Any] | None,
) -> Any:  # fmt: skip
    if store is not None and not isinstance(store, Path):
        text("store", store, "a path or URL")
    text("backend", backend, "the name of one, or 'auto'")
    if progress is not None and (store is None or not callable(progress)):
        raise InvalidParameter(
            f"progress is {shown(progress)}; it must be a function that takes a Progress, and needs a store: "
            "without one no chunk is waited for"
        )
    engine = importlib.import_module("tensorpost_server.chunked_run")

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(Progress(0, 0, done, total))

    return engine.run(
        computed,
        wire_inputs(template, inputs),
        store=store,
        chunk_bytes=whole_number("chunk_bytes", chunk_bytes, 1),
        backend=backend,
        progress=None if progress is None else report,
        options=options or {},
    )
