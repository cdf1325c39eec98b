"""Messages of a child process that lie: it has met what strangers sent, and the server believes no number of it."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorpost_server.child_processes.messages import MalformedMessage, receive, send_parts
from tensorpost_server.child_processes.process import ChildEnded, ChildProcess, FunctionRefused
from tensorpost_server.child_processes.segment import KEPT_SEGMENT_BYTES, SharedSegment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is shared on Linux only")
SEGMENT_BYTES = 1 << 16


def message(arrays: Any, data: bytes = b"") -> bytes:
    text = json.dumps({"arrays": arrays}).encode()
    return struct.pack("<I", len(text)) + text + data


@pytest.mark.parametrize(
    "arrays",
    [
        [["uint8", [-1], 0]],
        [["uint8", [-5], 8]],
        [["uint8", [-1], -1]],
        [["uint8", [-2, -3], 0]],
        [["uint8", [4], -8]],
        [["uint8", [SEGMENT_BYTES], 1]],
        [["uint8", [4], 2**70]],
        [["uint8", [2**70], 0]],
        [["uint8", [2**70], -1]],
        [["uint8", [2**32, 2**32], 0]],
        [["uint8", [0, 2**70], 0]],
        [["uint8", [2.0], 0]],
        [["uint8", [float("inf")], 0]],
        [["uint8", [True], 0]],
        [["uint8", [2], 0.5]],
        [["uint8", [2], float("nan")]],
        [["uint8", [2], None]],
        [["uint8", 2, 0]],
        [["object", [2], 0]],
        [["uint8", [2]]],
        7,
        None,
    ],
)
def test_places_and_sizes_that_lie(arrays: Any) -> None:
    segment = SharedSegment()
    try:
        segment.reserve(SEGMENT_BYTES)
        segment.array("uint8", [SEGMENT_BYTES], 0)  # it is mapped
        with pytest.raises(MalformedMessage):
            receive(message(arrays, bytes(64)), segment)
    finally:
        segment.close()


@pytest.mark.parametrize("text", [b"[" * 200_000, b"1" * 200_000, b"[]", b"7", b'"arrays"', b"null", b"{}"])
def test_heads_that_are_none(text: bytes) -> None:
    with pytest.raises(MalformedMessage):
        receive(struct.pack("<I", len(text)) + text, None)


@pytest.fixture
def process() -> Iterator[ChildProcess]:
    found = ChildProcess(("numpy",))
    yield found
    found.close()


def shared_bytes() -> int:
    """Pages of the memory that is shared with processes; mapping it holds a second descriptor."""
    found: set[int] = set()
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor that lists them
            if str(file.readlink()).startswith("/memfd:tensorpost-child"):
                found.add(file.stat().st_blocks * 512)
    return max(found)


def call(process: ChildProcess, output_bytes: int, *inputs: Any) -> Any:
    head = {"function": "encode_picture", "format": "none", "seconds": 20, "memory_bytes": 1 << 28, "threads": 1}
    return process.call(head, inputs, output_bytes, lambda: None)


def test_an_answer_with_more_bytes_than_were_reserved(process: ChildProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same place named many times would be copied as often."""
    lie = message([["uint8", [64], -1]] + [["uint8", [SEGMENT_BYTES], 0]] * 100, bytes(64))
    monkeypatch.setattr(
        "tensorpost_server.child_processes.process.receive", lambda _, segment: receive(lie, segment)
    )  # what the process sent
    with pytest.raises(ChildEnded):
        call(process, SEGMENT_BYTES, np.zeros((1, 1, 3), np.uint8))


def test_a_refused_call_leaves_no_memory(process: ChildProcess) -> None:
    """Inputs of 240 MiB of refused calls stayed in the memory that a process shares, outside of the budget."""
    with pytest.raises(FunctionRefused):
        call(process, 0, np.ones((2048, 2048, 3), np.uint8))

    assert shared_bytes() <= KEPT_SEGMENT_BYTES


def test_arrays_without_elements_and_without_dimensions_travel() -> None:
    arrays = [np.empty((0, 3), np.int8), np.array(7, np.int32), np.ones((1, 1), np.float64)]
    _, found = receive(b"".join(send_parts({}, arrays, None)), None)
    assert [(each.dtype, each.shape) for each in found] == [(each.dtype, each.shape) for each in arrays]
