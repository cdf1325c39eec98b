"""Mutated nodes that ONNX Runtime computes, against a real server: `python -m benchmarks.soak.onnx_fuzz --count 30000`.

The seeds are the node tests of the package onnx, of the operators that tensorpost has no row for. A mutation changes
attributes, shapes, types, inputs given by value and elements of tensors. Whatever comes of it, the server answers with
a status that its OpenAPI document declares, goes on, and has no more memory in use at the end than after the first.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from safetensors.numpy import save
from tests.support.http_app import FRAME, Wire, request_bytes
from tests.support.onnx_nodes import data_arrays
from tests.support.processes import descendants

from tensorpost.onnx import OnnxNode
from tensorpost.onnx.schemas import is_own
from tensorpost.values.problems import TensorpostError

from .. import servers
from ..servers import Server, resident
from .finding import LOCAL, SMALL, Finding, ask, settled

COUNT = 30_000
CALLERS = 4
WARM_UP = 400
HANG_SECONDS = 60.0
MORE_BYTES = 96 << 20
"""Bytes by which the server may be larger at the end: what its three processes keep of the calls before."""
MIB = 1 << 20
DECLARED = frozenset((501, 503, 504))
SETTINGS: dict[str, Any] = {
    "memory_bytes": 1 << 30, "max_seconds": 3, "max_work": 10**9, "onnx_processes": 2, "retry_after_seconds": 0,
}  # fmt: skip

Seed = tuple[dict[str, Any], dict[str, Any]]


def onnx_fuzz(seconds: float, count: int = COUNT, seed: int = 22) -> Iterator[Finding]:
    """Send mutated nodes for so many seconds, at most so many, then look at what is left in use."""
    with servers.tensorpost(**SETTINGS) as server:
        for index in range(WARM_UP):
            call(server.port, None, *mutated(random.Random(f"{seed} warm {index}")))
        before, processes = held(server), descendants(server.process)
        end, each = time.monotonic() + seconds, -(-count // CALLERS)
        with ThreadPoolExecutor(CALLERS) as threads:
            found = [*threads.map(partial(caller, server.port, seed, each, end), range(CALLERS))]
        statuses = sum([one.statuses for one in found], Counter[int]())
        faults = [fault for one in found for fault in one.faults]
        alive = ask(server.port, SMALL).status == 200 and servers_process_exists(server)
        left = settled(server.port)
        after = settled_memory(server, before)
        restarted = len(descendants(server.process) - processes)
    total = sum(statuses.values()) + len(faults)
    undeclared = {status: n for status, n in statuses.items() if status >= 500 and status not in DECLARED}
    seen = (
        f"{', '.join(f'{n:,} of {status}' for status, n in sorted(statuses.items()))}; {len(faults)} hangs and closed "
        f"connections; {sum(undeclared.values())} undeclared 5xx; the server {'goes on' if alive else 'has ended'}, "
        f"{restarted} of its processes are others; {(after - before) / MIB:+.0f} MiB, from {before / MIB:.0f}"
    )
    seen += f"; in use at the end: {left}" if left else ""
    seen += f"; first: {faults[0]}" if faults else ""
    holds = alive and not undeclared and not faults and not left and after - before <= MORE_BYTES
    yield Finding(f"{total:,} mutated nodes for ONNX Runtime, seed {seed}", seen, holds)


def servers_process_exists(server: Server) -> bool:
    """Whether the process that was started is still there: nothing started another one in its place."""
    with contextlib.suppress(OSError):
        os.kill(server.process, 0)
        return True
    return False


def held(server: Server) -> int:
    """Memory of a server and of its processes, bytes; shared pages count in each."""
    total = resident(server.process)
    for process in descendants(server.process):
        with contextlib.suppress(OSError, RuntimeError):  # it has just ended
            total += resident(process)
    return total


def settled_memory(server: Server, before: int, seconds: float = 60) -> int:
    """The memory when it has had time to be given back."""
    end = time.monotonic() + seconds
    while (now := held(server)) > before + MORE_BYTES / 2 and time.monotonic() < end:
        time.sleep(1)
    return now


@dataclass
class Seen:
    """What one caller saw: answers by status, and what is no answer."""

    statuses: Counter[int]
    faults: list[str]


def caller(port: int, seed: int, count: int, end: float, number: int) -> Seen:
    """Send nodes one after another on one connection."""
    seen, wire = Seen(Counter(), []), connect(port)
    for index in range(count):
        if time.monotonic() > end:
            break
        op_type, body = mutated(random.Random(f"{seed} {number} {index}"))
        try:
            status, closes = exchange(wire, op_type, body)
            seen.statuses[status] += 1
            if status >= 500 and status not in DECLARED:
                print(f"{number} {index}: {status} for {op_type}, {len(body)} bytes", file=sys.stderr, flush=True)
        except (OSError, EOFError) as error:
            seen.faults.append(f"{number} {index}: {op_type}, {error!r}")
            closes = True
        if closes:
            wire.close()
            try:
                wire = connect(port)
            except OSError as error:
                seen.faults.append(f"{number} {index}: cannot connect, {error!r}")
                break
    wire.close()
    return seen


def connect(port: int) -> Wire:
    """A connection that waits for as long as nothing may take."""
    wire = Wire("127.0.0.1", port)
    wire.socket.settimeout(HANG_SECONDS)
    return wire


def call(port: int, wire: Wire | None, op_type: str, body: bytes) -> int:
    """The status of one node, on a connection of its own if none is given."""
    with contextlib.closing(wire or connect(port)) as own:
        return exchange(own, op_type, body)[0]


def exchange(wire: Wire, op_type: str, body: bytes) -> tuple[int, bool]:
    """The status of one node, and whether the connection ends with it."""
    wire.send(request_bytes("POST", f"/v1/onnx/{op_type}", body, FRAME | LOCAL))
    answer = wire.answer()
    return answer.status, answer.headers.get("connection", "").lower() == "close"


# ---- mutations -------------------------------------------------------------------------------------------------------


@cache
def seeds() -> tuple[Seed, ...]:
    """A node document without its tensors, and the tensors, of each case that is accepted as it is."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cases divide by zero
        cases: list[Any] = collect_testcases(None)  # pyright: ignore[reportArgumentType] # None is for all
    found: list[Seed] = []
    for case in cases:
        if case.model is None:
            continue
        graph = case.model.graph
        if len(graph.node) != 1 or graph.node[0].domain or is_own(graph.node[0].op_type):
            continue
        opset = min(case.model.opset_import[0].version, 22)
        values = dict(zip([each.name for each in graph.input], case.data_sets[0][0], strict=False))
        with contextlib.suppress(TensorpostError, KeyError, TypeError, AttributeError):  # what no request can hold
            node = OnnxNode.from_node_proto(graph.node[0], opset, values)
            arrays = data_arrays(node, graph.node[0].input, values)
            document = node.to_json()
            numeric = all(array.dtype.kind in "biuf" for array in arrays.values())
            if numeric and sum(array.nbytes for array in arrays.values()) < MIB:
                found.append((document, arrays))
    found += [
        ({"op_type": name, "opset": 1, "attributes": attributes, "inputs": {}}, {})
        for name, attributes in (
            ("RandomUniform", {"shape": [3], "low": 0.0, "high": 1.0}),
            ("RandomNormal", {"shape": [3], "mean": 0.0, "scale": 1.0}),
        )
    ]
    found += [
        ({"op_type": name, "opset": 1, "attributes": attributes, "inputs": {}}, {"input": np.ones(3, np.float32)})
        for name, attributes in (
            ("RandomUniformLike", {"low": 0.0, "high": 1.0}),
            ("RandomNormalLike", {"mean": 0.0, "scale": 1.0}),
        )
    ]
    return tuple(found)


INTEGERS = (0, 1, -1, 2, 3, -2, 7, 64, 1000, 1_500_000, 2**31 - 1, -(2**31), 2**31, 2**40, -(2**63), 2**63 - 1)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, -1e38, 3.4e38, 2.5, "NaN", "Infinity", "-Infinity")
ATTRIBUTES = (
    "auto_pad", "axis", "ceil_mode", "dilations", "group", "kernel_shape", "output_shape", "p", "pads",
    "sampling_ratio", "size", "storage_order", "strides",
)  # fmt: skip
TYPES = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool")


def mutated(draw: random.Random) -> tuple[str, bytes]:
    """The operator and the body of a request: one to three changes of a seed, now and then none."""
    document, arrays = copy.deepcopy(draw.choice(seeds()))
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
        draw.choice((change_attribute, change_attribute, change_value, change_shape, change_type, change_elements))(
            draw, document, arrays
        )
    inputs = {name: value for name, value in document["inputs"].items() if isinstance(value, (list, int, float))}
    named = {"opset": document["opset"], "attributes": document["attributes"], "inputs": inputs}
    if "outputs" in document:
        named["outputs"] = document["outputs"]
    return document["op_type"], save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()}, {"op": json.dumps(named)}
    )


def other(draw: random.Random, value: Any) -> Any:
    """Another value, mostly of the same kind."""
    match value:
        case bool() | int():
            return draw.choice((*INTEGERS, value + 1, -value))
        case float():
            return draw.choice((*NUMBERS, value * 2, -value))
        case str():
            return draw.choice((value[:-1], value + value, value[::-1], "SAME_UPPER", "linear", ""))
        case list() if value:
            changed = list(value)
            match draw.randrange(5):
                case 0:
                    changed.pop(draw.randrange(len(changed)))
                case 1:
                    changed.append(draw.choice(changed))
                case 2:
                    changed = [other(draw, each) for each in changed]
                case _:
                    index = draw.randrange(len(changed))
                    changed[index] = other(draw, changed[index])
            return changed
        case list():
            return [draw.choice(INTEGERS)]
        case _:
            return value


def change_attribute(draw: random.Random, document: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Change, drop or add an attribute."""
    del arrays
    attributes = document["attributes"]
    match draw.randrange(8):
        case 0 if attributes:
            del attributes[draw.choice([*attributes])]
        case 1:
            attributes[draw.choice(ATTRIBUTES)] = draw.choice(
                ("SAME_UPPER", [1, 1, 1, 1], [2, 2], draw.choice(INTEGERS), [0, 0])
            )
        case _ if attributes:
            name = draw.choice([*attributes])
            attributes[name] = other(draw, attributes[name])
        case _:
            pass


def change_value(draw: random.Random, document: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Change an input that is given by value, or give one of the tensors by value."""
    given = [name for name, value in document["inputs"].items() if isinstance(value, list)]
    small = [name for name, array in arrays.items() if array.size <= 16 and array.dtype.kind in "iuf"]
    if given and draw.random() < 0.7:
        name = draw.choice(given)
        document["inputs"][name] = other(draw, document["inputs"][name])
    elif small:
        name = draw.choice(small)
        document["inputs"][name] = [float(n) if array_is_float(arrays[name]) else int(n) for n in arrays[name].ravel()]
        del arrays[name]


def array_is_float(array: Any) -> bool:
    """Whether its elements may have fractions."""
    return array.dtype.kind == "f"


def change_shape(draw: random.Random, document: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Drop, repeat or reshape a tensor."""
    del document
    if not arrays:
        return
    name = draw.choice([*arrays])
    array = arrays[name]
    match draw.randrange(5):
        case 0:
            del arrays[name]
        case 1:
            arrays[name] = array.reshape(-1)
        case 2:
            arrays[name] = array[None]
        case 3 if array.ndim:
            axis = draw.randrange(array.ndim)
            arrays[name] = np.take(array, range(draw.randrange(array.shape[axis] + 1)), axis)
        case _ if array.ndim and array.size < 10_000:
            arrays[name] = np.concatenate([array, array], draw.randrange(array.ndim))
        case _:
            pass


def change_type(draw: random.Random, document: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Convert a tensor."""
    del document
    if arrays:
        name = draw.choice([*arrays])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the other type cannot hold
            arrays[name] = arrays[name].astype(draw.choice(TYPES))


def change_elements(draw: random.Random, document: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Put extreme numbers among the elements of a tensor; indices point anywhere then."""
    del document
    filled = [name for name, array in arrays.items() if array.size and array.dtype.kind in "iuf"]
    if not filled:
        return
    name = draw.choice(filled)
    array = arrays[name] = np.array(arrays[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the type cannot hold
        for _ in range(draw.randrange(1, 4)):
            value = float(draw.choice(NUMBERS)) if array.dtype.kind == "f" else draw.choice(INTEGERS)
            array.reshape(-1)[draw.randrange(array.size)] = np.array(value).astype(array.dtype)


def main() -> int:
    """Run it alone; 1 if it does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak.onnx_fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help=f"nodes; default {COUNT:,}")
    parser.add_argument("--seconds", type=float, default=3600, help="for all of them at most; default 3600")
    parser.add_argument("--seed", type=int, default=22)
    options = parser.parse_args()
    holds = True
    for found in onnx_fuzz(options.seconds, options.count, options.seed):
        print(f"{found.done} | {found.seen} | {found.holds}", flush=True)
        holds = holds and found.holds is not False
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
