"""Graphs over HTTP: drawn ones in both wordings, compared with their nodes one after another, and broken ones.

What NumPy computes is compared byte by byte with the nodes computed alone in this process. A broken graph is refused
with the place of what is wrong.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from tests.conformance.test_graphs import node_by_node, without_nan
from tests.support.graph_cases import BREAKS, GraphCase, drawn_graph, drawn_photograph, layouts_of
from tests.support.http_app import PATIENCE, Wire, request_bytes, split_frame

from tensorpost import to_dml_graph
from tensorpost.bodies.frame import MEDIA_TYPE, encode_head
from tensorpost.graphs.graph_document import input_names, read_graph
from tensorpost.values.datatypes import data_type
from tensorpost.values.problems import InvalidDescriptor
from tensorpost_server.backends.numpy_ import NumpyBackend

from .. import servers
from .finding import LOCAL, Finding, in_processes, settled
from .operator_fuzz import GROWTH, LEAST_FOR_GROWTH, MIB, is_alive, resident_bytes, wrong_with

CALLS_PER_SECOND = 80
"""The factor that makes a count of a row's time."""
THREADS, PROCESSES = 4, 2
COMPARED = 0.5
"""The share of answers of NumPy that are computed again in the caller's process."""
_HEADERS = {"content-type": MEDIA_TYPE, "accept": MEDIA_TYPE, **LOCAL}
_VALUES: tuple[Any, ...] = (None, -1, 0, 3, 1 << 40, 0.5, "", "x", "n0", [], [{}], {}, True, ["x", "x"])


def graph_fuzz(seconds: float) -> Iterator[Finding]:
    """Make as many calls as the time is for; it takes as long as it takes."""
    count = max(200, round(seconds * CALLS_PER_SECOND))
    with servers.tensorpost(metrics=1, max_seconds=10) as server:
        samples: list[int] = []
        jobs = [partial(some, server.port, count // PROCESSES, seed) for seed in range(PROCESSES)]
        outcomes, wrong, begin = Counter[str](), list[str](), time.monotonic()
        for found in in_processes(jobs, lambda: samples.append(resident_bytes(server.process))):
            outcomes += found[0]
            wrong += found[1]
        took, alive = time.monotonic() - begin, is_alive(server.port)
        left = settled(server.port) if alive else {}
        now = resident_bytes(server.process)
    after_third = samples[len(samples) // 3] if samples else now
    spelled = ", ".join(f"{number:,} {what}" for what, number in sorted(outcomes.items()))
    memory = f"resident {after_third / MIB:.0f} MiB after a third, {now / MIB:.0f} at the end"
    seen = f"{len(wrong)} wrong; server {'alive' if alive else 'ENDED'}; {memory}; in use: {left or 'nothing'}"
    holds = alive and not wrong and not left and (now <= GROWTH * after_third or count < LEAST_FOR_GROWTH)
    yield Finding(f"{count:,} graphs: {spelled}", "; ".join([f"{seen}; {took:.0f} s", *wrong[:5]]), holds)


def some(port: int, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Make so many calls from this process's connections; what came of them, and what was wrong."""

    def one(number: int) -> tuple[Counter[str], list[str]]:
        outcomes, wrong, wire = Counter[str](), list[str](), None
        for at in range(count // THREADS):
            label = f"seed {seed}.{number}.{at}"
            chance = random.Random(label)
            case, document, is_broken = _drawn(chance)
            backend = chance.choice(["numpy", "numpy", "auto"])
            request = request_bytes("POST", f"/v1/graphs?backend={backend}", _body(case, document), _HEADERS)
            try:
                wire = wire or Wire("127.0.0.1", port)
                wire.send(request)
                answer = wire.answer()
            except (OSError, EOFError) as error:
                late = isinstance(error, TimeoutError)
                outcomes["hung" if late else "cut off"] += 1
                wrong.append(f"{label}: {f'no answer in {PATIENCE} s' if late else repr(error)}")
                wire = None
                continue
            outcomes[f"{'broken' if is_broken else 'drawn'} {answer.status}"] += 1
            if answer.headers.get("connection") == "close":
                wire.close()
                wire = None
            trouble = wrong_with(answer.status, answer.headers, answer.body)
            if not trouble and not is_broken and answer.status == 200 and backend == "numpy":
                if chance.random() < COMPARED:
                    outcomes["compared"] += 1
                    trouble = _different(case, document, answer.body)
            elif not trouble and answer.status == 422 and not json.loads(answer.body).get("violations"):
                trouble = "422 without a violation"
            if trouble:
                wrong.append(f"{label}: {trouble}: {json.dumps(document)[:400]}")
        if wire is not None:
            wire.close()
        return outcomes, wrong

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(one, range(THREADS)))
    return sum((outcomes for outcomes, _ in found), Counter[str]()), [each for _, wrong in found for each in wrong]


def _drawn(chance: random.Random) -> tuple[GraphCase, dict[str, Any], bool]:
    """A graph, its document as it is sent, and whether something was changed in it."""
    case = drawn_photograph(chance) if chance.random() < 0.1 else drawn_graph(chance, 16)
    document = copy.deepcopy(case.document)
    if chance.random() < 0.3:
        with contextlib.suppress(InvalidDescriptor):  # a node of ONNX alone
            document = to_dml_graph(document, case.inputs)
    if chance.random() < 0.6:
        return case, document, False
    if "nodes" in document and chance.random() < 0.5:
        chance.choice([*BREAKS.values()])(document, chance)
        return case, document, True
    return case, _mutated(document, chance), True


def _mutated(value: Any, chance: random.Random) -> Any:
    if isinstance(value, (dict, list)) and value and chance.random() < 0.9:
        key = chance.choice([*value] if isinstance(value, dict) else range(len(value)))
        if chance.random() < 0.1:
            del value[key]
        else:
            value[key] = _mutated(value[key], chance)
        return value
    return copy.deepcopy(chance.choice(_VALUES))


def _body(case: GraphCase, document: Any) -> bytes:
    names = input_names(document) if isinstance(document, dict) and "Nodes" in document else [*case.inputs]
    arrays = [np.ascontiguousarray(array) for array in case.inputs.values()]
    entries = [(name, data_type(array.dtype), array.shape) for name, array in zip(names, arrays, strict=False)]
    head = encode_head(entries, {"graph": json.dumps(document)})
    return head + b"".join([array.tobytes() for array in arrays[: len(entries)]])


def _different(case: GraphCase, document: Mapping[str, Any], body: bytes) -> str:
    """How the answer differs from the nodes one after another; empty if it does not."""
    arrays = dict(zip(input_names(document), case.inputs.values(), strict=True))
    graph = read_graph(document, layouts_of(arrays))
    expected = node_by_node(NumpyBackend(), graph, [arrays[slot.name].tobytes() for slot in graph.inputs])
    tensors = split_frame(body)[1]
    for slot, ours, theirs in zip(graph.output_slots, tensors.values(), expected, strict=True):
        if without_nan(slot, bytes(ours)) != without_nan(slot, theirs):
            return f"{slot.name} differs"
    return ""
