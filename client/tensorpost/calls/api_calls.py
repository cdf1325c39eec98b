"""The calls of the service's HTTP API, as coroutines that `Client` and `AsyncClient` share.

A request's body is a tuple of views of the caller's memory, never joined, so that it can be repeated. Output memory is
taken after the head of the answer was found right.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote, urlencode

import numpy as np
from numpy.typing import NDArray

from ..bodies.frame import MEDIA_TYPE, encode_head
from ..descriptors.feature_levels import FeatureLevel
from ..onnx.bounded_node import BoundedNode, node_class
from ..onnx.node import OnnxNode
from ..onnx.server_answers import PackageQuestion, SchemaQuestion, keep_answer, take_question
from ..onnx.strings import StringCall, StringTable, has_strings, numbers_node, text_array
from ..transport.http1 import Request
from ..transport.many_servers import ManyServers
from ..transport.one_server import Transport
from ..transport.progress import Progress
from ..values.checks import shown, text, whole_number
from ..values.datatypes import data_type
from ..values.layout import Layout
from ..values.onnx_package import InferredModel, SchemaVersion
from ..values.operation import Operation, Slot
from ..values.problems import (
    ConnectionProblem,
    InvalidDescriptor,
    InvalidParameter,
    NoBackend,
    ServerFault,
    Unavailable,
    Violation,
)
from .array_like import as_array
from .caller_arrays import (
    Inputs,
    Outputs,
    RequestTemplate,
    arrays_by_name,
    check_out,
    held_inputs,
    onnx_node,
    output_memory,
    request_template,
    wire_inputs,
)
from .held_calls import free_all, keep_outputs
from .held_tensors import KeepOutputs
from .output_part import part_template, row_bounds
from .results import Result, ServerTiming, StoredGraph, TensorBlock, Validation
from .resumed_answer import ResumedAnswer
from .shared_calls import close_regions, compute_shared, model_of
from .shared_regions import RegionPool

if TYPE_CHECKING:
    from ..bodies.answer_rows import OutputRows
    from .graph_calls import GraphDocument, GraphInputs, GraphRequest, InputValue, ModelInputs
    from .model_calls import ModelSource

_ACCEPT_JSON = (("accept", "application/json"),)
_SEND_JSON = (("content-type", "application/json"), *_ACCEPT_JSON)
_FRAME = (("content-type", MEDIA_TYPE), ("accept", MEDIA_TYPE))


class RequestOptions(NamedTuple):
    """The options of an operator's request, in addition to its inputs."""

    backend: str | None = None
    device: int | None = None
    feature_level: str | int | FeatureLevel | None = None
    progress: Callable[[Progress], None] | None = None
    rows: slice | None = None
    keep: KeepOutputs | None = None


def _request(template: RequestTemplate, inputs: Inputs, options: RequestOptions) -> Request:
    body = (memoryview(template.head), *wire_inputs(template, inputs))
    if options == _NO_OPTIONS:
        return Request("POST", template.endpoint, _FRAME, body)
    query = _query(template.endpoint, options)
    target = template.endpoint + (f"?{urlencode(query)}" if query else "")
    return Request("POST", target, _FRAME, body, _reported(options.progress))


def _reported(progress: Callable[[Progress], None] | None) -> Callable[[Progress], None] | None:
    if progress is not None and not callable(progress):
        raise InvalidParameter(f"progress is {shown(progress)}; it must be a function that takes a Progress")
    return progress


def _query(endpoint: str, options: RequestOptions) -> dict[str, str]:
    """The options as parameters."""
    backend, device, feature_level, _, rows, _ = options
    query: dict[str, str] = {}
    if backend is not None:
        query["backend"] = text("backend", backend, "the name of one, as devices() lists them, or 'auto'")
    if device is not None:
        query["device"] = str(whole_number("device", device, 0, ", as devices() counts them"))
    if feature_level is not None:
        if endpoint.startswith("/v1/onnx/"):
            raise InvalidParameter("feature levels belong to DirectML's operators; an ONNX node has an opset instead")
        query["feature_level"] = str(FeatureLevel.parse(feature_level))
    if rows is not None:
        begin, end = row_bounds(rows)
        query["rows"] = f"{begin}:{'' if end is None else end}"
    return query


_NO_OPTIONS = RequestOptions()


async def compute(
    transport: Transport | ManyServers, operation: Operation, inputs: Inputs, out: Outputs, options: RequestOptions,
    regions: RegionPool | None = None,
) -> Result[Any]:  # fmt: skip
    """Run an operation and receive its outputs whole; in shared memory if there is a pool of regions and it pays.

    Raises:
        InvalidParameter: an argument is wrong; nothing was sent.
        TensorpostError: what the server refused, or `ConnectionProblem`s.
    """
    if has_strings(operation):
        return await _compute_strings(transport, cast("OnnxNode", operation), inputs, out, options, regions)
    if isinstance(operation, BoundedNode):
        return await _compute_bounded(transport, operation, inputs, out, options)
    template, inputs = held_inputs(request_template(operation), inputs)
    if options.keep is not None:
        return await _kept(
            transport, template, _request(template, inputs, options._replace(keep=None)), out, options.keep
        )
    pays = regions is not None and options.progress is None and options.rows is None and template.may_resume
    if regions is not None and pays and (model := model_of(template)) is not None:
        document, memory = operation.to_document_text(), wire_inputs(template, inputs)
        return await compute_shared(
            transport, regions, model, template, document, memory, out, _query(template.endpoint, options)
        )
    return await _received(transport, template, _request(template, inputs, options), out, options.rows)


class OnnxCall(NamedTuple):
    """The node that `Client.onnx` was given."""

    op_type: str
    inputs: Sequence[Any]
    opset: int
    outputs: int | None
    attributes: Mapping[str, Any]


async def compute_onnx(
    transport: Transport | ManyServers, asked: OnnxCall, out: Outputs, options: RequestOptions,
    regions: RegionPool | None = None,
) -> Result[Any]:  # fmt: skip
    """Run an ONNX operator. Where the package onnx is needed and not installed, the server is asked instead.

    Raises:
        InvalidParameter, InvalidDescriptor, UnknownOperator: an argument is wrong, or the node breaks a rule.
        TensorpostError: what the server refused, or `ConnectionProblem`s.
    """
    while True:
        take_question()  # of an earlier call
        try:
            node, arrays = onnx_node(*asked, kind=node_class(asked.op_type))
        except (NoBackend, ModuleNotFoundError):
            question = take_question()
            if question is None:
                raise
        else:
            return await compute(transport, node, arrays, out, options, regions)
        keep_answer(question, await _answered(transport, question))


async def _compute_bounded(
    transport: Transport | ManyServers, node: BoundedNode, inputs: Inputs, out: Outputs, options: RequestOptions
) -> Result[Any]:
    """Run a node whose sizes depend on elements; the answer says them."""
    op = {"op": json.dumps(node.asked_document(), separators=(",", ":"))}
    head = encode_head([(slot.name, slot.layout.data_type, slot.layout.sizes) for slot in node.inputs], op)
    template, given = held_inputs(RequestTemplate(node.name, node.endpoint, node.inputs, (), head), inputs)
    request = _request(template, given, options._replace(keep=None))
    if options.keep is not None:
        _refuse_out(out)
        return await keep_outputs(transport, request, node.result_names, options.keep)
    return await _any_outputs(transport, request, out)


async def _answered(transport: Transport | ManyServers, question: PackageQuestion) -> SchemaVersion | InferredModel:
    """Ask the server what the package onnx says."""
    if isinstance(question, SchemaQuestion):
        target = f"/v1/onnx/{quote(question.op_type, safe='')}?opset={question.opset}"
        async with await transport.ask(Request("GET", target, _ACCEPT_JSON)) as response:
            said = await response.json()
        try:
            return int(said["since_version"]), dict(said["signature"])
        except (KeyError, TypeError, ValueError) as error:
            raise response.fault(f"the description of {question.op_type} cannot be understood ({error!r})") from error
    body = memoryview(question.text.encode())
    async with await transport.ask(Request("POST", "/v1/validate", _SEND_JSON, (body,))) as response:
        said = await response.json()
    try:
        if not said["valid"]:
            raise InvalidDescriptor.of([Violation.from_json(each) for each in said["violations"]])
        made = [(each["name"], data_type(each["dtype"]).onnx_code, each["shape"]) for each in said["outputs"]]
    except (KeyError, TypeError) as error:
        raise response.fault(f"the answer to a validation cannot be understood ({error!r})") from error
    return InferredModel("", b"", made)


async def compute_graph(
    transport: Transport | ManyServers, graph: GraphDocument, inputs: GraphInputs, out: Outputs, options: RequestOptions
) -> dict[str, NDArray[Any]]:
    """Run a graph and receive its outputs whole, by their names.

    Raises:
        InvalidParameter, InvalidDescriptor: an argument is wrong; nothing was sent.
        TensorpostError: what the server refused, or `ConnectionProblem`s.
    """
    from .graph_calls import graph_request  # operators load when they are named

    if isinstance(graph, StoredGraph):
        return await compute_stored(transport, graph, inputs, out, options)
    sent = _with_held(graph_request(graph, inputs))
    if options.keep is not None:
        request = _graph_request(sent, options._replace(keep=None))
        return dict((await _kept(transport, sent.template, request, out, options.keep)).arrays)
    result = await _received(transport, sent.template, _graph_request(sent, options), out, options.rows)
    return dict(result.arrays)


async def compute_model(
    transport: Transport | ManyServers, model: ModelSource, inputs: ModelInputs | InputValue,
    outputs: Sequence[str] | None, out: Outputs, options: RequestOptions,
) -> dict[str, Any]:  # fmt: skip
    """Run an ONNX model and receive its outputs whole, by their names; see `Client.run_model`."""
    from .model_calls import ModelCall, model_request  # operators load when they are named

    call = model_request(model, inputs, outputs)
    if isinstance(call, ModelCall) and call.lists:
        from ..graphs.model_lists import with_lists  # few models have sequences

        if out is not None or options.keep is not None:
            raise InvalidParameter("out and keep are for outputs that are tensors; the model has sequences among them")
        found = await compute_graph(transport, call.document, call.arrays, None, options)
        return with_lists(found, call.lists, call.outputs)
    if isinstance(call, ModelCall):
        return await compute_graph(transport, call.document, call.arrays, out, options)
    query = urlencode({**call.query, **_query("/v1/onnx", options)})
    fields = (("content-type", call.media_type), ("accept", MEDIA_TYPE))
    request = Request("POST", f"/v1/onnx?{query}", fields, call.parts(), _reported(options.progress))
    return await _found(transport, request, call.outputs, out, options)


async def store_graph(
    transport: Transport | ManyServers, graph: GraphDocument | ModelSource, name: str | None,
    weights: Mapping[str, InputValue] | None, version: int | None, batches: tuple[int | None, int],
    run: Callable[..., Any],
) -> StoredGraph:  # fmt: skip
    """Store a graph; see `Client.store`."""
    from .stored_graphs import batch_query, graph_target, store_request  # few callers need it

    if name is not None:
        text("name", name, "the name that the graph is to have on the server")
    elif version is not None:
        raise InvalidParameter("a version needs a name: store(graph, name=..., version=...)")
    media_type, body = store_request(graph, weights)
    fields = (("content-type", media_type), *_ACCEPT_JSON)
    target = graph_target(name, version, batch_query(*batches))
    async with await transport.ask(Request("PUT", target, fields, tuple(body))) as response:
        said = await response.json()
    return _described(said, run, version)


async def stored_graph(
    transport: Transport | ManyServers, name: str, version: int | None, run: Callable[..., Any]
) -> StoredGraph:  # fmt: skip
    """A stored graph by its name; see `Client.stored_graph`."""
    from .stored_graphs import graph_target  # few callers need it

    target = graph_target(text("name", name, "the name of a stored graph"), version)
    async with await transport.ask(Request("GET", target, _ACCEPT_JSON)) as response:
        return _described(await response.json(), run, version)


async def stored_graphs(transport: Transport | ManyServers, run: Callable[..., Any]) -> list[StoredGraph]:
    """All stored graphs; see `Client.stored_graphs`."""
    said = await document(transport, "/v1/graphs")
    return [await stored_graph(transport, str(each["name"]), int(each["version"]), run) for each in said["graphs"]]


async def delete_graph(transport: Transport | ManyServers, name: str, version: int | None) -> None:
    """Delete a stored graph; see `Client.delete_graph`."""
    from .stored_graphs import graph_target  # few callers need it

    target = graph_target(text("name", name, "the name of a stored graph"), version)
    async with await transport.ask(Request("DELETE", target, ())) as response:
        await response.finish()


async def compute_stored(
    transport: Transport | ManyServers, graph: StoredGraph | str, inputs: GraphInputs | InputValue, out: Outputs,
    options: RequestOptions, version: int | None = None,
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Call a stored graph and receive its outputs whole, by their names; see `Client.run_stored`."""
    from .stored_graphs import graph_target, stored_call  # few callers need it

    if not isinstance(graph, StoredGraph) or version not in (None, graph.version):
        name = graph.name if isinstance(graph, StoredGraph) else text("graph", graph, "a StoredGraph, or its name")
        graph = await stored_graph(transport, name, version, dict)  # its description; it is not called by itself
    media_type, body = stored_call(graph, inputs)
    target = graph_target(graph.name, graph.version, _query("/v1/graphs", options))
    fields = (("content-type", media_type), ("accept", MEDIA_TYPE))
    request = Request("POST", target, fields, tuple(body), _reported(options.progress))
    return await _found(transport, request, graph.outputs, out, options)


async def _found(
    transport: Transport | ManyServers, request: Request, outputs: Sequence[str], out: Outputs, options: RequestOptions
) -> dict[str, NDArray[Any]]:
    """The outputs of a call, of which the answer says the types and sizes."""
    if options.keep is not None:
        _refuse_out(out)
        return dict((await keep_outputs(transport, request, outputs, options.keep)).arrays)
    return dict((await _any_outputs(transport, request, out)).arrays)


async def _any_outputs(transport: Transport | ManyServers, request: Request, out: Outputs) -> Result[Any]:
    """The tensors of an answer that is a frame, whatever there is in it."""
    arrays: dict[str, NDArray[Any]] = {}
    async with await transport.ask(request) as response:
        head = await response.any_frame_head()
        slots = tuple([Slot(each.name, Layout.row_major(each.data_type, each.shape)) for each in head.tensors])
        for slot, memory in zip(slots, check_out(slots, out), strict=True):
            target_memory, arrays[slot.name] = output_memory(slot, memory)
            await response.fill(target_memory)
        await response.finish()
    timing, about = ServerTiming(response.headers.get("server-timing", "")), head.metadata
    return Result(arrays, about.get("backend", ""), about.get("device", ""), timing, response.request_id)


def _described(said: Mapping[str, Any], run: Callable[..., Any], version: int | None) -> StoredGraph:
    try:
        return StoredGraph.from_document(said, run, version)
    except (KeyError, TypeError, ValueError) as error:
        raise ServerFault(f"the description of a stored graph cannot be understood ({error!r})") from error


def _graph_request(sent: GraphRequest, options: RequestOptions) -> Request:
    if isinstance(sent.body, dict):
        return _request(sent.template, sent.body, options)
    query = urlencode({"graph": sent.document, **_query(sent.template.endpoint, options)}, quote_via=quote)
    fields = (("content-type", f"image/{sent.body.format.lower()}"), ("accept", MEDIA_TYPE))
    target = f"{sent.template.endpoint}?{query}"
    return Request("POST", target, fields, (memoryview(sent.body.content),), _reported(options.progress))


def _with_held(sent: GraphRequest) -> GraphRequest:
    """The request, if some of its inputs are held tensors without those."""
    if not isinstance(sent.body, dict):
        return sent
    template, body = held_inputs(sent.template, sent.body)
    return sent._replace(template=template, body=cast("dict[str, NDArray[Any]]", body))


async def _kept(
    transport: Transport | ManyServers, template: RequestTemplate, request: Request, out: Outputs, keep: KeepOutputs
) -> Result[Any]:
    _refuse_out(out)
    return await keep_outputs(transport, request, [slot.name for slot in template.outputs], keep)


def _refuse_out(out: Outputs) -> None:
    if out is not None:
        raise InvalidParameter("out receives outputs, and with keep they stay on the server; leave one of them out")


def stream_graph(
    transport: Transport | ManyServers, graph: GraphDocument, inputs: GraphInputs, block_bytes: int,
    options: RequestOptions,
) -> AsyncGenerator[TensorBlock]:  # fmt: skip
    """A graph's outputs block by block; see `stream`."""
    from .graph_calls import graph_request  # operators load when they are named

    sent = _with_held(graph_request(graph, inputs))
    block_bytes = whole_number("block_bytes", block_bytes, 1)
    template, rows = _wanted(sent.template, options.rows)
    return _blocks(transport, _graph_request(sent, options), template, rows, block_bytes, named=True)


def _wanted(template: RequestTemplate, rows: slice | None) -> tuple[RequestTemplate, OutputRows | None]:
    """The template with the outputs that are received, and the rows of the only one; None for all of each."""
    return (template, None) if rows is None else part_template(template, rows)


async def _received(
    transport: Transport | ManyServers, template: RequestTemplate, request: Request, out: Outputs, wanted: slice | None
) -> Result[Any]:
    template, rows = _wanted(template, wanted)
    memories = check_out(template.outputs, out)
    arrays: dict[str, NDArray[Any]] = {}
    async with await ResumedAnswer.ask(transport, template, request, rows=rows) as answer:
        response, metadata = answer.response, answer.metadata
        for slot, memory in zip(template.outputs, memories, strict=True):
            target, arrays[slot.name] = output_memory(slot, memory)
            await answer.fill(target)
        await answer.finish()
    timing = ServerTiming(response.headers.get("server-timing", ""))
    return Result(arrays, metadata.get("backend", ""), metadata.get("device", ""), timing, response.request_id)


async def _compute_strings(
    transport: Transport | ManyServers, node: OnnxNode, inputs: Inputs, out: Outputs, options: RequestOptions,
    regions: RegionPool | None,
) -> Result[Any]:  # fmt: skip
    """Run a node on the numbers of its strings; the strings stay here.

    Raises:
        InvalidParameter: whatever `compute` refuses; or an `out` is given, into which strings cannot be received.
        InvalidDescriptor: the operator does more with strings than to move or compare them.
    """
    if options.keep is not None:
        raise InvalidParameter("strings are not held; leave keep out")
    if out is not None:
        raise InvalidParameter("out cannot take strings; leave it out, and a new array is made")
    arrays = arrays_by_name(node, inputs)
    numbers, like = numbers_node(node), np.dtype(object)
    strings = StringCall(node, StringTable())
    for name, tensor in node.tensors:
        if tensor.data_type == "str" and name in arrays:
            array = as_array(name, arrays[name], texts=True)
            like = array.dtype if array.dtype.kind == "T" else like
            arrays[name] = strings.read(strings.table.numbers_of_array(name, array))
    wanted = {name for name, _ in numbers.tensors}  # a Cast does not read what it is like
    arrays = {name: array for name, array in arrays.items() if name in wanted}
    result = await compute(transport, numbers, arrays, None, options, regions)
    texts = {name for name, tensor in node.results if tensor.data_type == "str"}
    found = {
        name: text_array(strings.written(array.tobytes()), array.shape, like) if name in texts else array
        for name, array in result.arrays.items()
    }
    return replace(result, arrays=found)


def stream(
    transport: Transport | ManyServers, operation: Operation, inputs: Inputs, block_bytes: int, options: RequestOptions
) -> AsyncGenerator[memoryview | TensorBlock]:
    """An operation's outputs block by block. The request is sent when the first block is asked for.

    Raises `InvalidParameter` at once, as `compute` does.
    """
    template, inputs = held_inputs(request_template(operation), inputs)
    block_bytes = whole_number("block_bytes", block_bytes, 1)
    several, request = len(template.outputs) > 1, _request(template, inputs, options)
    template, rows = _wanted(template, options.rows)
    return _blocks(transport, request, template, rows, block_bytes, named=several)


async def _blocks(
    transport: Transport | ManyServers, request: Request, template: RequestTemplate, rows: OutputRows | None,
    block_bytes: int, *, named: bool,
) -> AsyncGenerator[Any]:  # fmt: skip
    left = sum([slot.layout.size_in_bytes for slot in template.outputs])
    async with await ResumedAnswer.ask(transport, template, request, sealed=True, rows=rows) as answer:
        for slot in template.outputs:
            for start in range(0, slot.layout.size_in_bytes, block_bytes):
                # New memory for each block: a caller may keep one while the next comes.
                data = np.empty(min(block_bytes, slot.layout.size_in_bytes - start), np.uint8).data
                await answer.fill(data)
                left -= len(data)
                if left == 0:
                    await answer.finish()
                yield TensorBlock(slot.name, start, data) if named else data
        await answer.finish()


async def write_zarr(
    transport: Transport | ManyServers, operation: Operation | GraphDocument, inputs: Inputs | GraphInputs,
    path: str | PathLike[str], shape: Sequence[int] | None, chunk_bytes: int, options: RequestOptions,
) -> None:  # fmt: skip
    """Write the output of an operation or a graph as a Zarr array; see `Client.write_zarr`."""
    from . import zarr_store  # few callers need it

    if isinstance(operation, (Mapping, str, PathLike)):
        from .graph_calls import graph_request  # operators load when they are named

        sent = graph_request(operation, cast("GraphInputs", inputs))
        _refuse_held(_with_held(sent).template)
        template, request = sent.template, _graph_request(sent, options)
    else:
        template = request_template(cast("Operation", operation))
        _refuse_held(held_inputs(template, cast("Inputs", inputs))[0])
        request = _request(template, cast("Inputs", inputs), options)
    array = zarr_store.ZarrArray.of(template, shape, whole_number("chunk_bytes", chunk_bytes, 1))
    await zarr_store.write_zarr(transport, template, request, array, path)


def _refuse_held(template: RequestTemplate) -> None:
    if not template.may_resume:
        raise InvalidParameter(
            "write_zarr continues where it stopped only with the inputs themselves; pass arrays, not held tensors"
        )


async def close(transport: Transport | ManyServers, regions: RegionPool | None) -> None:
    """Close all connections, and give shared memory and held tensors back."""
    if regions is not None:
        await close_regions(transport, regions)
    await free_all(transport)
    await transport.close()


async def document(transport: Transport | ManyServers, path: str, *segments: str) -> Any:
    """GET a JSON document. `segments` are appended to the path, percent-encoded.

    Raises:
        InvalidParameter: a segment is not text.
    """
    for segment in segments:
        text("name", segment, "the name of an operator, for instance 'TILE'")
    target = "/".join([path, *(quote(segment, safe="") for segment in segments)])
    async with await transport.ask(Request("GET", target, _ACCEPT_JSON)) as response:
        return await response.json()


async def health(transport: Transport | ManyServers, path: str) -> bool:
    """Whether a health page answers with success; False without a server, or if it is busy or draining."""
    try:
        async with await transport.ask(Request("GET", path, _ACCEPT_JSON), repeat=False) as response:
            await response.read()
    except (ConnectionProblem, Unavailable):
        return False
    return True


async def validate(
    transport: Transport | ManyServers,
    operation: Operation | Mapping[str, Any],
    feature_level: str | int | FeatureLevel | None,
) -> Validation:
    """Ask a server whether it would accept a descriptor."""
    if isinstance(operation, Mapping):
        try:
            body = json.dumps(operation, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidParameter(f"the operator document cannot be written as JSON: {error}") from None
    else:
        body = operation.to_document_text()
    level = "" if feature_level is None else f"?feature_level={FeatureLevel.parse(feature_level)}"
    request = Request("POST", "/v1/validate" + level, _SEND_JSON, (memoryview(body.encode()),))
    async with await transport.ask(request) as response:
        said = await response.json()
    try:
        return Validation.from_document(said, response.request_id)
    except (KeyError, TypeError, AttributeError, InvalidParameter) as error:
        raise response.fault(f"the answer to a validation cannot be understood ({error!r})") from error
