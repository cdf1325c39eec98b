"""Calls whose tensors travel in shared memory: as inferences of `/v2`, which takes the same operation documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

from ..onnx.schemas import is_own
from ..transport.http1 import Request
from ..transport.many_servers import ManyServers
from ..transport.one_server import Transport
from ..values.problems import NoBackend, RegionNotFound, TensorpostError, Unavailable
from .caller_arrays import Outputs, RequestTemplate, check_out, output_memory, wire_form
from .results import Result, ServerTiming
from .shared_regions import LEAST_BYTES, OwnRegion, RegionPool

_JSON = (("content-type", "application/json"), ("accept", "application/json"))


def model_of(template: RequestTemplate) -> str | None:
    """The operation's model in `/v2`; None without one, for small tensors, or for types that are not the protocol's."""
    slots = (*template.inputs, *template.outputs)
    if sum([slot.layout.size_in_bytes for slot in slots]) < LEAST_BYTES:
        return None
    if any(slot.layout.data_type.open_inference is None for slot in slots):
        return None
    _, _, dialect, name = template.endpoint.split("/")
    if dialect == "onnx":
        return f"onnx.{name.lower()}" if is_own(name) else None
    return name


async def compute_shared(
    transport: Transport | ManyServers, regions: RegionPool, model: str, template: RequestTemplate, operation: str,
    inputs: list[memoryview], out: Outputs, options: Mapping[str, str],
) -> Result[Any]:  # fmt: skip
    """Run an operation with its tensors in shared memory.

    Args:
        transport: connections to the server.
        regions: the client's shared memory.
        model: name of the operation's model in the Open Inference Protocol.
        template: the operation's inputs and outputs.
        operation: its document.
        inputs: bytes of each input.
        out: memory for the outputs, as `compute` takes it.
        options: backend, device and feature level.

    Raises:
        InvalidParameter: an argument is wrong; nothing was sent.
        Unavailable: the server's shared memory is turned off.
        TensorpostError: what the server refused, or `ConnectionProblem`s.
    """
    memories = check_out(template.outputs, out)
    sizes = [*map(len, inputs), *[slot.layout.size_in_bytes for slot in template.outputs]]
    try:
        return await _compute_once(
            transport, regions, regions.take(sizes), sizes, model, template, operation, inputs, memories, options
        )
    except RegionNotFound:  # the server is another one than before, or dropped it; a new region is registered first
        return await _compute_once(
            transport, regions, regions.new(sizes), sizes, model, template, operation, inputs, memories, options
        )


async def _compute_once(
    transport: Transport | ManyServers, regions: RegionPool, region: OwnRegion, sizes: list[int], model: str,
    template: RequestTemplate, operation: str, inputs: list[memoryview], given: Sequence[NDArray[Any] | None],
    options: Mapping[str, str],
) -> Result[Any]:  # fmt: skip
    """`compute_shared` in this region, which is kept for the next call if all goes well."""
    try:
        parts = region.parts(sizes)
        for (_, memory), data in zip(parts, inputs, strict=False):
            memory[:] = data
        if not region.registered:
            await _register(transport, region)
        headers, request_id = await _infer(transport, region, model, template, operation, parts, options)
        arrays: dict[str, NDArray[Any]] = {}
        for slot, array, (_, memory) in zip(template.outputs, given, parts[len(inputs) :], strict=True):
            target, arrays[slot.name] = output_memory(slot, array)
            target[:] = memory
    except BaseException as error:
        # The server may still write there; it is told to forget the region, and the next call takes another one.
        region.close()
        if not isinstance(error, RegionNotFound):
            with suppress(TensorpostError):
                await _unregister(transport, region)
        raise
    regions.give_back(region)
    timing = ServerTiming(headers.get("server-timing", ""))
    device = headers.get("tensorpost-device", "")
    return Result(arrays, headers.get("tensorpost-backend", ""), device, timing, request_id)


async def close_regions(transport: Transport | ManyServers, regions: RegionPool) -> None:
    """Unregister and free every region."""
    for region in regions.empty():
        region.close()
        with suppress(TensorpostError):  # the server drops it in half a minute
            await _unregister(transport, region)


async def _infer(
    transport: Transport | ManyServers, region: OwnRegion, model: str, template: RequestTemplate, operation: str,
    parts: list[tuple[int, memoryview]], options: Mapping[str, str],
) -> tuple[Mapping[str, str], str | None]:  # fmt: skip
    entries: list[dict[str, Any]] = []
    for slot, (offset, memory) in zip((*template.inputs, *template.outputs), parts, strict=True):
        row, shape = wire_form(slot)
        place = {
            "shared_memory_region": region.name, "shared_memory_offset": offset, "shared_memory_byte_size": len(memory),
        }  # fmt: skip
        entries.append({"name": slot.name, "datatype": row.open_inference, "shape": shape, "parameters": place})
    count = len(template.inputs)
    wanted = [{"name": entry["name"], "parameters": entry["parameters"]} for entry in entries[count:]]
    document = {"inputs": entries[:count], "outputs": wanted, "parameters": {"op": operation, **options}}
    body = memoryview(json.dumps(document, separators=(",", ":")).encode())
    async with await transport.ask(Request("POST", f"/v2/models/{model}/infer", _JSON, (body,))) as response:
        await response.read()
        return response.headers, response.request_id


async def _register(transport: Transport | ManyServers, region: OwnRegion) -> None:
    body = json.dumps({"key": f"/{region.name}", "byte_size": region.size}).encode()
    path = f"/v2/systemsharedmemory/region/{region.name}/register"
    try:
        async with await transport.ask(Request("POST", path, _JSON, (memoryview(body),))) as response:
            await response.read()
    except NoBackend as error:  # what the server calls everything that it does not offer
        raise Unavailable(
            "this server takes no tensors in shared memory: start it with the setting TENSORPOST_SHARED_MEMORY=1, or "
            "make the client without shared_memory=True",
            status=error.status, request_id=error.request_id,
        ) from error  # fmt: skip
    region.registered = True
    region.unlink()


async def _unregister(transport: Transport | ManyServers, region: OwnRegion) -> None:
    if region.registered:
        path = f"/v2/systemsharedmemory/region/{region.name}/unregister"
        async with await transport.ask(Request("POST", path, _JSON, ()), repeat=False) as response:
            await response.read()
