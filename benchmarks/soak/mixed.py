"""Mixed requests of every size, operator and form from 64 connections, some malformed and some cut off.

Every answer is compared whole: the first one to each request with what NumPy says, the others with the first.
"""

from __future__ import annotations

import io
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image
from tests.support.http_app import (
    FRAME,
    JSON,
    NPY,
    Answer,
    Wire,
    frame_bytes,
    npy_array,
    npy_bytes,
    request_bytes,
    split_frame,
)

from .. import servers
from ..servers import resident
from .finding import LIVE, LOCAL, SMALL, Finding, in_processes, settled

CONNECTIONS, PROCESSES = 64, 2
REQUESTS_PER_SECOND = 500
"""The factor that makes a count of a row's time; on two cores, the callers' own work included."""
MALFORMED, CUT = 0.01, 0.02
WARM_UP = 0.15
GROWTH = 1.05
LEAST_FOR_GROWTH = 20_000
"""Requests: with fewer, memory is still being warmed up."""
SIZES = (1, 10, 100, 1000, 10_000, 100_000, 1_000_000)
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """A request, and whether an answer is right."""

    sent: bytes
    is_right: Callable[[Answer], bool]


def mixed(seconds: float) -> Iterator[Finding]:
    """Make as many requests as the time is for; it takes as long as it takes."""
    count = max(400, round(seconds * REQUESTS_PER_SECOND))
    with servers.tensorpost(metrics=1) as server:
        samples: list[int] = []
        begin = time.monotonic()
        jobs = [partial(some, server.port, count // PROCESSES, seed) for seed in range(PROCESSES)]
        outcomes, wrong = Counter[str](), list[str]()
        for found in in_processes(jobs, lambda: samples.append(resident(server.process))):
            outcomes += found[0]
            wrong += found[1]
        took = time.monotonic() - begin
        left = settled(server.port)
    samples = samples[int(len(samples) * WARM_UP) :]
    third = max(1, len(samples) // 3)
    first, last = float(np.mean(samples[:third])), float(np.mean(samples[-third:]))
    judged = count >= LEAST_FOR_GROWTH
    memory = f"resident {first / MIB:.0f} MiB in the first third after the warm-up, {last / MIB:.0f} in the last"
    seen = f"{len(wrong)} wrong answers; {memory}; in use at the end: {left or 'nothing'}; {took:.0f} s"
    if not judged:
        seen += f" (memory is judged from {LEAST_FOR_GROWTH:,} requests on)"
    done = f"{outcomes.total():,} mixed requests from {CONNECTIONS} connections: {spelled(outcomes)}"
    holds = not wrong and not left and (last <= GROWTH * first or not judged) and outcomes.total() >= count - PROCESSES
    yield Finding(done, "; ".join([seen, *wrong[:3]]), holds)


def spelled(counter: Counter[str]) -> str:
    """Counts in words."""
    return ", ".join(f"{count:,} {what}" for what, count in sorted(counter.items()))


def some(port: int, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Make so many requests from this process's connections."""
    known: dict[int, bytes] = {}
    cases, refused = good_cases(), malformed_cases()
    threads = CONNECTIONS // PROCESSES

    def one(number: int) -> tuple[Counter[str], list[str]]:
        dice = random.Random(f"{seed} {number}")
        outcomes, wrong, wire = Counter[str](), list[str](), None
        for _ in range(count // threads + (number < count % threads)):
            chance = dice.random()
            index = dice.randrange(len(cases))
            case = dice.choice(refused) if chance < MALFORMED else cases[index]
            what = "malformed" if chance < MALFORMED else "cut off" if chance < MALFORMED + CUT else "answered"
            try:
                wire = wire or Wire("127.0.0.1", port)
                if what == "cut off":
                    wire.send(case.sent[: dice.randrange(len(case.sent))])
                    (wire.hang_up if dice.random() < 0.5 else wire.close)()
                    wire = None
                else:
                    wire.send(case.sent)
                    answer = wire.answer()
                    right = answer.body == known[index] if what == "answered" and index in known else None
                    if right is None:
                        right = case.is_right(answer)
                        if what == "answered" and right and answer.headers["content-type"] in (*NPY.values(),):
                            known[index] = answer.body
                    if not right:
                        wrong.append(f"{what} {index}: {answer.status} {answer.body[:200]!r}")
                    if what == "malformed" or answer.headers.get("connection") == "close":
                        wire.close()
                        wire = None
            except (OSError, EOFError) as error:
                wrong.append(f"{what} {index}: {type(error).__name__}: {error}")
                wire = None
            outcomes[what] += 1
        if wire is not None:
            wire.close()
        return outcomes, wrong

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(one, range(threads)))
    return sum((outcomes for outcomes, _ in found), Counter[str]()), [each for _, wrong in found for each in wrong]


# ---- the requests ----------------------------------------------------------------------------------------------------


def equal(expected: np.ndarray[Any, Any], read: Callable[[bytes], np.ndarray[Any, Any]], answer: Answer) -> bool:
    """Whether it is 200, and the same array bit for bit."""
    if answer.status != 200:
        return False
    found = read(answer.body)
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


def post(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """A POST of it."""
    return request_bytes("POST", path, body, {**headers, **LOCAL})


def of_frame(name: str, like: np.ndarray[Any, Any]) -> Callable[[bytes], np.ndarray[Any, Any]]:
    """Reads a tensor of a frame."""
    return lambda body: np.frombuffer(split_frame(body)[1][name], like.dtype).reshape(like.shape)


def of_json(like: np.ndarray[Any, Any]) -> Callable[[bytes], np.ndarray[Any, Any]]:
    """Reads the output of a JSON answer."""
    return lambda body: np.array(json.loads(body)["tensors"]["output"]["data"], like.dtype).reshape(like.shape)


def good_cases() -> list[Case]:
    """Requests of DirectML and ONNX, as npy, frame and JSON, and questions, with what NumPy says."""
    random_ = np.random.default_rng(11)
    cases: list[Case] = []
    for size in SIZES:
        for dtype in ("uint8", "float32", "int64"):
            x = random_.integers(0, 100, size).astype(dtype)
            tiled = np.tile(x, 2)
            cases.append(
                Case(post("/v1/operators/tile?repeats=2", npy_bytes(x), NPY), partial(equal, tiled, npy_array))
            )
            cases.append(Case(post("/v1/onnx/Tile?repeats=2", npy_bytes(x), NPY), partial(equal, tiled, npy_array)))
        x = random_.random(size * 4).astype(np.float32)
        path = f"/v1/operators/resample?interpolation_mode=NEAREST_NEIGHBOR&output_sizes={size}"
        cases.append(Case(post(path, npy_bytes(x), NPY), partial(equal, x[2::4], npy_array)))
        most = partial(equal, x.max(keepdims=True), npy_array)
        cases.append(Case(post("/v1/operators/reduce?function=MAX&axes=0", npy_bytes(x), NPY), most))
        a, b = (random_.integers(-1000, 1000, size).astype(np.float32) for _ in range(2))
        tensors = {name: ("F32", [size], y.tobytes()) for name, y in (("a", a), ("b", b))}
        total = a + b
        added = partial(equal, total, of_frame("output", total))
        cases.append(Case(post("/v1/operators/element_wise_add", frame_bytes(tensors, {}), FRAME), added))
        if size <= 1000:
            document = json.dumps(
                {"tensors": {"input": {"dtype": "F32", "shape": [size], "data": a.tolist()}}}
            ).encode()
            tiled = np.tile(a, 3)
            cases.append(
                Case(post("/v1/operators/tile?repeats=3", document, JSON), partial(equal, tiled, of_json(tiled)))
            )
    pixels = random_.integers(0, 256, (40, 60, 3)).astype(np.uint8)
    picture = io.BytesIO()
    Image.fromarray(pixels).save(picture, "PNG")
    headers = {"content-type": "image/png", "accept": "application/x-npy"}
    expected = partial(equal, np.tile(pixels[np.newaxis], (1, 2, 3, 1)), npy_array)
    cases.append(Case(post("/v1/operators/tile?repeats=1,2,3,1", picture.getvalue(), headers), expected))
    for path in ("/v1/limits", "/v1/devices", "/v1/operators/tile", "/v2/health/ready"):
        cases.append(Case(LIVE.replace(b"/v2/health/live", path.encode(), 1), lambda answer: answer.status == 200))
    call = b'{"type":"TILE","desc":{"InputTensor":{"DataType":"FLOAT32","Sizes":[2]},"Repeats":[3]}}'
    cases.append(Case(post("/v1/validate", call, JSON), lambda answer: answer.json()["valid"] is True))
    return cases


def malformed_cases() -> list[Case]:
    """Requests that must be refused, each with its status."""
    body = npy_bytes([1, 2])
    found = {
        b"nonsense\r\n\r\n": 400,
        SMALL.replace(b"host: localhost\r\n", b"", 1): 400,
        SMALL.replace(b"host: localhost", b"host: evil.example", 1): 403,
        SMALL.replace(b"content-length: ", b"transfer-encoding: chunked\r\ncontent-length: ", 1): 400,
        post("/v1/operators/tile?repeats=0", body, NPY): 422,
        post("/v1/operators/tile?repeats=x", body, NPY): 422,
        post("/v1/operators/nothing", body, NPY): 404,
        post("/v1/operators/tile?repeats=2", body[:-1], NPY): 400,
        post("/v1/operators/tile?repeats=2", b"\x93NUMPX" + body[6:], NPY): 400,
        post("/v1/operators/tile?repeats=2", body, {"content-type": "text/plain"}): 415,
        post("/v1/operators/tile?repeats=2", body, {**NPY, "accept": "image/gif"}): 406,
        post("/v1/operators/tile", b'{"tensors":', JSON): 400,
        post("/v1/operators/tile", b"\xff" * 8 + b"{}", FRAME): 413,
    }
    return [Case(sent, lambda answer, expected=status: answer.status == expected) for sent, status in found.items()]
