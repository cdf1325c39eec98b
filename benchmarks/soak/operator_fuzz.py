"""Every operator with real tensors over HTTP: legal calls and calls that were changed a little, with hostile data.

Indices, lengths and regions lead out of every range, elements are NaN, infinite or any bits, attributes and sizes are
changed. Whatever the call, its answer is whole, or a refusal with its reason; what is computed by NumPy is compared
with the same form computed in this process.
"""

from __future__ import annotations

import copy
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tests.conformance.wire import Request, answer_bytes, requests
from tests.support.http_app import PATIENCE, Wire, request_bytes, split_frame
from tests.support.index_cases import ADDRESSING, INDEXED, drawn_case, hostile
from tests.support.vectors import Case, vectors_files

from tensorpost.descriptors import parse_operator
from tensorpost.onnx import OnnxNode
from tensorpost.values.operation import Operation
from tensorpost.values.problems import TensorpostError
from tensorpost_server.backends.numpy_ import NumpyBackend
from tensorpost_server.planning import make_plan

from .. import servers
from ..servers import resident
from .finding import LIVE, LOCAL, Finding, ask, in_processes, settled

CALLS_PER_SECOND = 600
"""The factor that makes a count of a row's time: 30,000 calls in its part of ten minutes."""
CONNECTIONS, PROCESSES = 8, 2
DECLARED = (429, 501, 503, 504, 507)
"""Statuses above 422 that the service promises for calls that it cannot compute now, or not here."""
COMPARED = 0.25
"""The share of answers of NumPy that are computed again in the caller's process."""
MIB = 1 << 20
SLICE_BYTES, MOST_OUTPUT = 2 * MIB, MIB
GROWTH = 1.1
"""The factor by which the server may have grown between the end of the first third and the end."""
LEAST_FOR_GROWTH = 20_000
"""Calls: with fewer, caches of plans are still being filled."""
_NUMBERS = (0, 1, 2, 3, 5, 8, -1, 255, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**64, 0.5, -0.0, 1e-45, 1e30, -1e30, 1e400)
_OTHERS = (None, True, "", "x", "FLOAT32", "INT64", "UINT4", [], {}, [0], [1] * 9, float("nan"))
CASES = [case for file in vectors_files() for case in file.cases]


def operator_fuzz(seconds: float) -> Iterator[Finding]:
    """Make as many calls as the time is for; it takes as long as it takes."""
    count = max(400, round(seconds * CALLS_PER_SECOND))
    with servers.tensorpost(metrics=1, max_output_bytes=MOST_OUTPUT, max_seconds=10) as server:
        samples: list[int] = []
        begin = time.monotonic()
        jobs = [partial(some, server.port, count // PROCESSES, seed) for seed in range(PROCESSES)]
        outcomes, wrong = Counter[str](), list[str]()
        for found in in_processes(jobs, lambda: samples.append(resident_bytes(server.process))):
            outcomes += found[0]
            wrong += found[1]
        took = time.monotonic() - begin
        alive = is_alive(server.port)
        left = settled(server.port) if alive else {}
        now = resident_bytes(server.process)
    after_third = samples[len(samples) // 3] if samples else now
    judged = count >= LEAST_FOR_GROWTH
    memory = f"resident {after_third / MIB:.0f} MiB after a third, {now / MIB:.0f} at the end"
    if not judged:
        memory += f" (judged from {LEAST_FOR_GROWTH:,} calls on)"
    spelled = ", ".join(f"{number:,} {what}" for what, number in sorted(outcomes.items()))
    seen = f"{len(wrong)} wrong; server {'alive' if alive else 'ENDED'}; {memory}; in use: {left or 'nothing'}"
    holds = alive and not wrong and not left and (now <= GROWTH * after_third or not judged)
    done = f"{count:,} calls of {len({case.desc.name for case in CASES})} operators with data: {spelled}"
    yield Finding(done, "; ".join([f"{seen}; {took:.0f} s", *wrong[:5]]), holds)


def resident_bytes(process: int) -> int:
    try:
        return resident(process)
    except (OSError, RuntimeError):  # it has ended, which the outcome says
        return 0


def is_alive(port: int) -> bool:
    try:
        return ask(port, LIVE).status == 200
    except (OSError, EOFError):
        return False


def some(port: int, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Make so many calls from this process's connections; what came of them, and what was wrong."""
    threads = CONNECTIONS // PROCESSES

    def one(number: int) -> tuple[Counter[str], list[str]]:
        random = np.random.default_rng([seed, number])
        outcomes, wrong, wire = Counter[str](), list[str](), None
        for at in range(count // threads + (number < count % threads)):
            case, request, backend = drawn_call(random)
            label = f"seed {seed}.{number}.{at}, {backend}, {case.desc.name}"
            try:
                wire = wire or Wire("127.0.0.1", port)
                wire.send(request_bytes("POST", request.path, request.body, {**request.headers, **LOCAL}))
                answer = wire.answer()
            except TimeoutError:
                wrong.append(f"{label}: no answer in {PATIENCE} seconds: {shown(request)}")
                outcomes["hung"] += 1
                wire = None
                continue
            except (OSError, EOFError) as error:
                wrong.append(f"{label}: {type(error).__name__}: {error}: {shown(request)}")
                outcomes["cut off"] += 1
                wire = None
                continue
            outcomes[str(answer.status)] += 1
            if answer.headers.get("connection") == "close":
                wire.close()
                wire = None
            if trouble := wrong_with(answer.status, answer.headers, answer.body):
                wrong.append(f"{label}: {trouble}: {shown(request)}")
            elif answer.status == 200 and backend == "numpy" and random.random() < COMPARED:
                outcomes["compared"] += 1
                if trouble := different(case, request, answer.headers["content-type"], answer.body):
                    wrong.append(f"{label}: {trouble}: {shown(request)}")
        if wire is not None:
            wire.close()
        return outcomes, wrong

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(one, range(threads)))
    return sum((outcomes for outcomes, _ in found), Counter[str]()), [each for _, wrong in found for each in wrong]


def wrong_with(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """What is wrong with an answer as such; empty if nothing is."""
    if status == 200:
        return ""
    if headers.get("content-type") != "application/problem+json":
        return f"{status} that is no problem document: {body[:200]!r}"
    problem = json.loads(body)
    if status >= 500 and status not in DECLARED:
        return f"{status} {problem.get('detail')}"
    return "" if len(problem.get("detail", "")) > 15 else f"{status} without a reason"


def shown(request: Request) -> str:
    """The call, for whoever looks into it."""
    head, buffers = split_frame(request.body)
    data = {name: buffer[:64].hex() for name, buffer in buffers.items()}
    return f"POST {request.path} {head.get('__metadata__', {}).get('op')} {data}"


# ---- the same again, here --------------------------------------------------------------------------------------------


def different(case: Case, request: Request, media_type: str, body: bytes) -> str:
    """How an answer differs from what the form computes here; empty if it does not."""
    document = split_frame(request.body)[0]["__metadata__"]["op"]
    try:
        operation = operation_of(json.loads(document))
    except TensorpostError:
        return ""  # what was left out follows from the tensors, which only the service reads
    case = replace(case, desc=operation)
    answer = answer_bytes(case, media_type, body)
    plan = make_plan(operation, SLICE_BYTES)
    run = NumpyBackend().start(plan, [memoryview(data) for data in case.inputs])
    parts = [bytes(run.compute(index)) + bytes(piece.padding) for index, piece in enumerate(plan.slices)]
    run.close()
    expected = replace(case, expected=b"".join(parts), any_nan=True, ulp=4)  # sums may be of another order
    try:
        expected.check(answer)
    except AssertionError as error:
        return f"other bytes than here: {error}"
    return ""


def operation_of(document: Mapping[str, Any]) -> Operation:
    """The operation of a document, as the service reads it.

    Raises:
        TensorpostError: it is none.
    """
    return OnnxNode.from_json(document) if "op_type" in document else parse_operator(document, complete=True)


# ---- drawing calls ---------------------------------------------------------------------------------------------------


def drawn_call(random: np.random.Generator) -> tuple[Case, Request, str]:
    """A call, its request, and the backend that it asks for."""
    case = _drawn(random)
    (request,) = requests(case, "frame")
    backend = str(random.choice(["numpy", "auto"]))
    if random.random() < 0.35:
        request = replace(request, body=_changed_document(random, request.body))
    path = request.path.replace("backend=numpy", f"backend={backend}")
    return case, replace(request, path=path), backend


def _drawn(random: np.random.Generator) -> Case:
    if random.random() < 0.4:
        return drawn_case(random, INDEXED[int(random.integers(len(INDEXED)))])
    case = CASES[int(random.integers(len(CASES)))]
    chance = random.random()
    if chance < 0.2:
        return case
    if chance < 0.6:
        return hostile(case, random, ADDRESSING.get(case.desc.name, ()))
    if chance < 0.8:
        return hostile(case, random, [slot.name for slot in case.desc.inputs])
    return replace(case, inputs=tuple([random.bytes(len(data)) for data in case.inputs]))


def _changed_document(random: np.random.Generator, body: bytes) -> bytes:
    """The same tensors with one or two members of the operation's document changed, or one left out."""
    head, buffers = split_frame(body)
    document = json.loads(head["__metadata__"]["op"])
    for _ in range(int(random.integers(1, 3))):
        _change(random, document)
    head["__metadata__"]["op"] = json.dumps(document)
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(buffers.values())


def _change(random: np.random.Generator, document: Any) -> None:
    """Change a leaf or leave out a member, somewhere below the first level."""
    places: list[tuple[Any, Any]] = []

    def visit(part: Any) -> None:
        keys: Any = part.keys() if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
        for key in keys:
            places.append((part, key))
            visit(part[key])

    visit(document.get("desc", document))
    if not places:
        return
    part, key = places[int(random.integers(len(places)))]
    chance = random.random()
    if chance < 0.1:
        del part[key]
    elif chance < 0.3:
        part[key] = copy.deepcopy(_OTHERS[int(random.integers(len(_OTHERS)))])
    elif isinstance(part[key], (int, float)) and chance < 0.6:
        part[key] = part[key] + int(random.integers(-1, 2))
    else:
        part[key] = _NUMBERS[int(random.integers(len(_NUMBERS)))]
