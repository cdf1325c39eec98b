"""`map`: one graph over many inputs, several calls at a time."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sized
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from numpy.typing import NDArray

from ..transport.many_servers import ManyServers
from ..transport.one_server import Transport, worth_retrying
from ..transport.progress import MapProgress
from ..values.checks import real_number, shown, whole_number
from ..values.problems import IncompleteBody, InvalidParameter, TensorpostError
from .api_calls import RequestOptions, compute_graph

if TYPE_CHECKING:
    from .graph_calls import GraphDocument, GraphInputs, InputValue

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.2, 2.0  # before a call is repeated; doubled each time

ArraysByName = dict[str, NDArray[Any]]


def map_graph(
    transport: Transport | ManyServers,
    graph: GraphDocument,
    inputs: Iterable[GraphInputs | InputValue],
    in_flight: int,
    retry_seconds: float,
    progress: Callable[[MapProgress], None] | None,
    options: RequestOptions,
) -> AsyncGenerator[ArraysByName]:
    """The outputs of a graph for each of many inputs, in their order; see `Client.map`.

    Raises `InvalidParameter` at once for what is wrong with the arguments but for the inputs.
    """
    from .graph_calls import graph_document  # operators load when they are named
    from .results import StoredGraph

    document = graph if isinstance(graph, StoredGraph) else graph_document(graph)
    whole_number("in_flight", in_flight, 1)
    if real_number("retry_seconds", retry_seconds) < 0:
        raise InvalidParameter(f"retry_seconds is {retry_seconds}; it must be 0 or more")
    if progress is not None and not callable(progress):
        raise InvalidParameter(f"progress is {shown(progress)}; it must be a function that takes a MapProgress")
    if not isinstance(cast("object", inputs), Iterable):
        raise InvalidParameter(f"inputs is {shown(inputs)}; it must be an iterable of what run_graph takes as inputs")

    def call(item: GraphInputs | InputValue) -> Awaitable[ArraysByName]:
        return repeated(transport, document, item, retry_seconds, options)

    return in_order(transport, inputs, call, in_flight, progress)


async def in_order(
    transport: Transport | ManyServers,
    inputs: Iterable[Any],
    call: Callable[[Any], Awaitable[ArraysByName]],
    in_flight: int,
    progress: Callable[[MapProgress], None] | None,
) -> AsyncGenerator[ArraysByName]:
    """The results of a call for each of many inputs, in their order.

    Args:
        transport: the way to the server.
        inputs: taken as they are needed.
        call: called beside the caller, several times at once.
        in_flight: how many at once.
        progress: told after each result.
    """
    total = len(inputs) if isinstance(inputs, Sized) else None
    tasks = transport.runtime.tasks(in_flight)
    begun: deque[tuple[Any, Awaitable[ArraysByName]]] = deque()
    done = 0
    try:
        items = iter(inputs)
        ended = False
        while not ended or begun:
            while not ended and len(begun) < in_flight:
                for item in items:
                    begun.append((item, tasks.start(partial(call, item))))
                    break
                else:
                    ended = True
            if begun:
                item, task = begun.popleft()
                try:
                    result = await task
                except TensorpostError as error:
                    error.detail = f"{_named(item, done)}: {error.detail}"
                    raise
                done += 1
                if progress is not None:
                    progress(MapProgress(done, total))
                yield result
    finally:
        await tasks.close()


def _named(item: object, place: int) -> str:
    """What messages call an input: the path of a file, or its place."""
    return os.fspath(item) if isinstance(item, (str, os.PathLike)) else f"inputs[{place}]"


async def repeated(
    transport: Transport | ManyServers, document: GraphDocument, item: object, seconds: float, options: RequestOptions
) -> ArraysByName:
    """One call, repeated while its error may pass and there is time.

    Args:
        transport: the way to the server.
        document: the graph.
        item: its inputs, or its only input.
        seconds: how long it is repeated.
        options: see `compute_graph`.
    """
    from .graph_calls import inputs_of  # operators load when they are named

    inputs = inputs_of(cast("Any", document), item)
    until, wait = time.monotonic() + seconds, _FIRST_WAIT_SECONDS
    while True:
        try:
            return await compute_graph(transport, document, inputs, None, options)
        except TensorpostError as error:
            may_pass = worth_retrying(error) or isinstance(error, IncompleteBody)
            if not may_pass or time.monotonic() + wait > until:
                raise
        await transport.runtime.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
