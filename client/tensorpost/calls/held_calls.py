"""The calls of held tensors: sending, reading, listing and deleting them, and calls whose outputs are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlencode

import numpy as np
from numpy.typing import NDArray

from ..bodies.images import EncodedImage
from ..network.deadline import Deadline
from ..network.options import Timeout
from ..transport.held_names import HeldNames, TensorLease
from ..transport.http1 import Request
from ..transport.many_servers import ManyServers
from ..transport.one_server import Transport
from ..transport.response import Response
from ..values.checks import text
from ..values.datatypes import data_type
from ..values.layout import Layout
from ..values.problems import InvalidParameter, NoBackend, TensorExists, TensorpostError
from ..values.tensor_box import BoxIndex, box_text, part_of_box, read_box
from .caller_arrays import bytes_of_array
from .cuda_arrays import ExportedTensor, SharedArray, import_cupy, is_on_gpu, unavailable
from .held_tensors import HeldTensor, KeepOutputs, TensorCalls, new_name
from .results import Result, ServerTiming

_PATH = "/v1/tensors"
_CLOSE_SECONDS = 5.0
_RAW = "application/octet-stream"
_ACCEPT_JSON = (("accept", "application/json"),)

Understood = TypeVar("Understood")


def names_of(transport: Transport | ManyServers) -> HeldNames:
    """The names of held tensors of a client.

    Raises:
        InvalidParameter: the client is one of several servers, each of which holds tensors of its own.
    """
    if isinstance(transport, ManyServers):
        raise InvalidParameter("a tensor is held by one server; use a Client with the URL of that server alone")
    return transport.held


async def put_tensor(
    transport: Transport | ManyServers, value: object, name: str | None, replace: bool, client: TensorCalls
) -> HeldTensor:
    """Send a tensor that the server is to hold; see `Client.put`."""
    names = names_of(transport)
    if isinstance(value, HeldTensor):
        raise InvalidParameter(f"{value!r} is held already")
    if name is not None:
        text("name", name, "the name that the tensor is to have on the server")
    shared = SharedArray.of(value) if client.cuda_shared_memory and is_on_gpu(value) else None
    if shared is None:
        return await _put(transport, _sent(value), name, replace, client, names)
    try:
        await shared.register(transport)
        return await _put(transport, _Sent(_RAW, (), shared.query), name, replace, client, names)
    finally:
        await shared.end(transport)


class _Sent(NamedTuple):
    """What is sent of a tensor: a body of a type, and what the query says of it."""

    media_type: str
    body: tuple[memoryview, ...]
    query: Mapping[str, str]


def _sent(value: object) -> _Sent:
    """A tensor as a body; the elements are not copied unless they have to be put in order."""
    from .graph_calls import read_input  # operators load when they are named

    found = read_input("x", value)
    if isinstance(found, EncodedImage):
        return _Sent(f"image/{found.format.lower()}", (memoryview(found.content),), {})
    array = np.asarray(found)
    row = data_type(array.dtype) if array.dtype.kind not in "OUSMm" else None
    if row is None or not row.item_size:
        raise InvalidParameter(f"x is an array of {array.dtype}; held tensors are numbers and booleans")
    body = bytes_of_array(np.asarray(array, row.dtype, order="C"))
    return _Sent(_RAW, (body,), {"data_type": row.numpy_name, "sizes": ",".join(map(str, array.shape))})


async def _put(
    transport: Transport | ManyServers, sent: _Sent, name: str | None, replace: bool, client: TensorCalls,
    names: HeldNames,
) -> HeldTensor:  # fmt: skip
    query = {**sent.query}
    if name is None or replace:
        query["replace"] = "true"  # a name that is made here is nobody else's, and the request may be repeated
    lease = TensorLease(new_name(), names, is_own=True) if name is None else None  # which the handle takes on
    target = _target(lease.name if lease is not None else str(name)) + (f"?{urlencode(query)}" if query else "")
    fields = ((("content-type", sent.media_type),) if sent.body else ()) + _ACCEPT_JSON
    try:
        response = await transport.ask(Request("PUT", target, fields, sent.body))
    except TensorExists as error:
        error.detail = (
            f"there is a held tensor {name!r} already; write replace=True to replace it, or choose another name"
        )
        raise
    async with response:
        said = await response.json()
        return _read(response, lambda: HeldTensor.of_description(said, client, names, is_own=False))


async def get_cupy(transport: Transport | ManyServers, tensor: HeldTensor | str) -> Any:
    """The elements of a held tensor as a CuPy array; see `Client.get_cupy`."""
    names_of(transport)
    import_cupy()
    name = tensor.name if isinstance(tensor, HeldTensor) else text("tensor", tensor, "a HeldTensor, or its name")
    target = f"{_target(name)}/exports"
    try:
        response = await transport.ask(Request("POST", target, _ACCEPT_JSON))
    except NoBackend as error:
        raise unavailable(error) from error
    async with response:
        said = await response.json()
        export = _read(response, lambda: ExportedTensor.of_answer(said))
    try:
        array = export.copied()
    finally:
        with suppress(TensorpostError):  # it is freed after its time
            async with await transport.ask(Request("DELETE", f"{target}/{export.id}", ()), repeat=False) as ended:
                await ended.finish()
    if isinstance(tensor, HeldTensor) and tensor.to_document() != {"tensor": name}:
        array = array[read_box(tensor.to_document().get("box", ""))].reshape(tensor.shape).copy()
    return array


async def get_tensor(transport: Transport | ManyServers, tensor: HeldTensor | str, box: BoxIndex | None) -> Any:
    """The elements of a held tensor, or a part of them; see `Client.get_tensor`."""
    name, written, sizes = str(tensor), "" if box is None else box_text(box), None
    if isinstance(tensor, HeldTensor):
        if box is not None and tensor.is_reshaped:
            part_of_box(Layout.row_major(tensor.data_type, tensor.shape), read_box(written))  # refuses others at once
            return (await get_tensor(transport, tensor, None))[box]
        document = (tensor if box is None else tensor.part(box)).to_document()
        name, written, sizes = tensor.name, document.get("box", ""), document.get("sizes")
    else:
        text("tensor", tensor, "a HeldTensor, or the name of one")
    target = _target(name) + (f"?{urlencode({'box': written}, safe=',:')}" if written else "")
    async with await transport.ask(Request("GET", target, (("accept", _RAW),))) as response:
        fields = response.headers
        array: NDArray[Any] = _read(
            response,
            lambda: np.empty(
                [int(size) for size in fields["tensorpost-shape"].split(",") if size],
                data_type(fields["tensorpost-dtype"]).dtype,
            ),
        )
        await response.fill(bytes_of_array(array))
        await response.finish()
    return array if sizes is None else array.reshape(sizes)


async def delete_tensor(transport: Transport | ManyServers, tensor: HeldTensor | str) -> None:
    """Free a held tensor; see `Client.delete_tensor`."""
    name = tensor.name if isinstance(tensor, HeldTensor) else text("tensor", tensor, "a HeldTensor, or its name")
    async with await transport.ask(Request("DELETE", _target(name), ())) as response:
        await response.finish()


async def held_tensors(transport: Transport | ManyServers, client: TensorCalls) -> list[HeldTensor]:
    """All held tensors of the caller; see `Client.tensors`."""
    names = names_of(transport)
    async with await transport.ask(Request("GET", _PATH, _ACCEPT_JSON)) as response:
        said = await response.json()
        return _read(
            response,
            lambda: [HeldTensor.of_description(each, client, names, is_own=False) for each in said["tensors"]],
        )


async def free_all(transport: Transport | ManyServers) -> None:
    """Free the tensors that only handles of this client refer to; it is about to be closed."""
    if isinstance(transport, ManyServers) or not transport.held.end():
        return
    timeout = Timeout(_CLOSE_SECONDS, total=_CLOSE_SECONDS)
    deadline = Deadline(transport.runtime, replace(transport.origin, timeout=timeout))
    with suppress(TensorpostError):  # of a server that is gone, nothing is held
        while transport.held.freed:
            async with await transport.ask(
                Request("GET", _PATH, _ACCEPT_JSON), repeat=False, deadline=deadline
            ) as found:
                await found.read()


async def held_tensor(transport: Transport | ManyServers, name: str, client: TensorCalls) -> HeldTensor:
    """A held tensor by its name; see `Client.tensor`."""
    text("name", name, "the name of a held tensor")
    while True:
        for tensor in await held_tensors(transport, client):
            if tensor.name == name:
                return tensor
        await get_tensor(transport, name, None)  # which says why there is none


async def keep_outputs(
    transport: Transport | ManyServers, request: Request, outputs: Sequence[str], keep: KeepOutputs
) -> Result[Any]:
    """Make a call whose outputs the server holds.

    Args:
        transport: the way to the server.
        request: the call.
        outputs: the names of its outputs.
        keep: the names that they are to have.

    Raises:
        InvalidParameter: there are other names than outputs.
        TensorExists: there is a held tensor of such a name.
        TensorpostError: what the server refused, or `ConnectionProblem`s.
    """
    held, (names, made) = names_of(transport), keep.of_outputs(outputs)
    leases = [TensorLease(name, held, is_own=True) for name, own in zip(names, made, strict=True) if own]
    query = {"keep": ",".join(names)} | ({"replace": "true"} if all(made) else {})
    fields = tuple([field for field in request.fields if field[0] != "accept"]) + _ACCEPT_JSON
    target = request.target + ("&" if "?" in request.target else "?") + urlencode(query, safe=",")
    asked = Request("POST", target, fields, request.body, request.report)
    try:
        response = await transport.ask(asked)
    except TensorExists as error:
        name = error.extra.get("tensor")
        error.detail = f"there is a held tensor {name!r} already; delete it first, or keep the output by another name"
        raise
    async with response:
        said = await response.json()
        tensors = _read(
            response,
            lambda: {
                output: HeldTensor.of_description(each, keep.client, held, is_own=False)
                for output, each in said["tensors"].items()
            },
        )
    del leases  # the handles have them now
    timing = ServerTiming(response.headers.get("server-timing", ""))
    arrays = cast("Mapping[str, NDArray[Any]]", cast("object", tensors))  # which are handles here
    return Result(arrays, str(said.get("backend", "")), str(said.get("device", "")), timing, response.request_id)


def _target(name: str) -> str:
    return f"{_PATH}/{quote(name, safe='')}"


def _read(response: Response, make: Callable[[], Understood]) -> Understood:
    """What is made of an answer.

    Raises:
        ServerFault: the answer is none of a tensorpost server.
    """
    try:
        return make()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise response.fault(f"the answer about a held tensor cannot be understood ({error!r})") from error
