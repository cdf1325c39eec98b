"""Child processes of ONNX Runtime: what a call gets when its process fails, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.http_app import PATIENCE, eventually
from tests.support.processes import remaining

from tensorpost.values.onnx_package import infer_model
from tensorpost.values.problems import LibraryFailed, LibraryUnavailable, LimitExceeded
from tensorpost_server.child_processes import process
from tensorpost_server.child_processes.messages import INLINE_BYTES, MalformedMessage, receive, send_parts
from tensorpost_server.child_processes.process import FunctionRefused
from tensorpost_server.child_processes.process_pool import ProcessPool
from tensorpost_server.child_processes.segment import SharedSegment

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory and memory without a name are Linux's")
KERNEL = 1_500_000
ENDLESS = {"kernel_shape": [KERNEL], "pads": [KERNEL - 1, KERNEL - 1]}


def model(op_type: str, version: int, tensors: dict[str, tuple[int, ...]], **attributes: Any) -> Any:
    """A model of one node, of float32 tensors."""
    pytest.importorskip("onnx", reason="onnx is not installed; it has no wheel for every Python")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; it has no wheel for every Python")
    node = {
        "op_type": op_type, "version": version, "inputs": [*tensors], "outputs": ["Y"],
        "tensors": [(name, 1, shape) for name, shape in tensors.items()], "attributes": attributes, "constants": [],
    }  # fmt: skip
    found = infer_model(node)
    assert not found.problem
    return np.frombuffer(found.model, np.uint8)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    found = ProcessPool("ONNX Runtime", ("onnxruntime",), seconds=60, setting="TENSORPOST_MAX_SECONDS")
    yield found
    found.close()


def call(
    pool: ProcessPool, made: Any, *inputs: Any, key: bytes = b"", memory_bytes: int = 64 << 20, **more: Any
) -> Any:
    output_bytes = more.pop("output_bytes", 1 << 20)
    names = ["X"] if inputs else []
    return pool.call(
        "run_model", {"names": names}, [made, *inputs], subject="a node", memory_bytes=memory_bytes,
        output_bytes=output_bytes, key=key, **more,
    )[1]  # fmt: skip


@pytest.mark.parametrize("size", [2, 300], ids=["in the message", "in shared memory"])
def test_a_call_computes_what_onnx_runtime_computes(pool: ProcessPool, size: int) -> None:
    x = np.random.default_rng(0).random((1, 1, size, size), np.float32)

    for _ in range(2):  # the second one has the session of the first
        (pooled,) = call(pool, model("GlobalMaxPool", 1, {"X": x.shape}), x)
        assert pooled.tolist() == [[[[x.max()]]]]
    (same,) = call(pool, model("MaxPool", 12, {"X": x.shape}, kernel_shape=[1, 1]), x)
    assert np.array_equal(same, x)


def test_a_process_that_the_library_ends_is_replaced_and_the_node_refused(pool: ProcessPool) -> None:
    failing, key = model("RandomUniform", 1, {}, shape=[3], low=1.0, high=-1.0), b"random"
    before = pool.state.ended.get("failed", 0)

    reasons: list[str] = []
    for _ in range(3):
        with pytest.raises(LibraryFailed) as failed:
            call(pool, failing, key=key)
        reasons.append(failed.value.extra["reason"])

    assert reasons == ["ended", "ended", "refused"]
    assert pool.state.ended["failed"] == before + 2
    assert call(pool, model("Det", 11, {"X": (2, 2)}), np.eye(2, dtype=np.float32))[0].reshape(-1).tolist() == [1]


def test_elements_of_one_call_refuse_no_other_call(pool: ProcessPool, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, key = model("LpPool", 11, {"X": (1, 1, 40)}, **ENDLESS), b"pool"
    det = model("Det", 11, {"X": (2, 2)})
    call(pool, det, np.eye(2, dtype=np.float32))
    monkeypatch.setattr(pool, "seconds", 0.3)
    for _ in range(2):
        with pytest.raises(LimitExceeded):
            call(pool, slow, np.ones((1, 1, 40), np.float32), key=key)
    with pytest.raises(LibraryFailed, match="small tensors has ended a process"):
        call(pool, slow, np.ones((1, 1, 40), np.float32), key=key)
    with pytest.raises(LimitExceeded):
        call(pool, slow, np.zeros((1, 1, 40), np.float32), key=key)


def test_a_call_ends_after_its_time_and_when_nobody_waits_for_it(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, endless = np.ones((1, 1, 700), np.float32), model("LpPool", 11, {"X": (1, 1, 700)}, **ENDLESS)
    call(pool, model("Det", 11, {"X": (2, 2)}), np.eye(2, dtype=np.float32))  # it has started
    (first,) = pool.pids
    before = pool.state.ended
    monkeypatch.setattr(pool, "seconds", 0.3)

    with pytest.raises(LimitExceeded, match=r"longer than the 0\.3 s .*TENSORPOST_MAX_SECONDS"):
        call(pool, endless, x, output_bytes=8 << 20)

    assert not remaining({first})
    monkeypatch.setattr(pool, "seconds", 60)
    begin = time.monotonic()

    class Left(Exception):
        """The caller has left."""

    def check() -> None:
        if time.monotonic() > begin + 0.3:
            raise Left

    with pytest.raises(Left):
        call(pool, endless, x, output_bytes=8 << 20, check=check)
    assert pool.state.ended["timed_out"] == before["timed_out"] + 1
    assert pool.state.ended["abandoned"] == before["abandoned"] + 1


@linux
def test_a_short_call_does_not_wait_for_long_ones() -> None:
    """One caller's two nodes of 20 s held every process, and a 3 x 3 determinant of another caller for as long."""
    x, endless = np.ones((1, 1, 700), np.float32), model("LpPool", 11, {"X": (1, 1, 700)}, **ENDLESS)
    short = model("Det", 11, {"X": (2, 2)})
    pool = ProcessPool("ONNX Runtime", ("onnxruntime",), seconds=60)
    pool.open(2, ahead=True)

    class Done(Exception):
        """The short call has its result."""

    done, waiting = threading.Event(), set[int]()

    def check() -> None:
        waiting.add(threading.get_ident())
        if done.is_set():
            raise Done

    def compute() -> None:
        with pytest.raises(Done):
            call(pool, endless, x, output_bytes=8 << 20, check=check, long=True)

    threads = [threading.Thread(target=compute) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(waiting) == 4, "two have a process, and two wait for one", 60)
    try:
        found = call(pool, short, np.eye(2, dtype=np.float32), check=give_up_at(time.monotonic() + 30))
        assert found[0].reshape(-1).tolist() == [1]
        assert len(pool.pids) == 3
    finally:
        done.set()
        for thread in threads:
            thread.join()
        pool.close()


def give_up_at(end: float) -> Callable[[], None]:
    def check() -> None:
        assert time.monotonic() < end, "a short call waits for long ones"

    return check


@linux
def test_memory_beyond_what_a_call_may_take_is_refused(pool: ProcessPool) -> None:
    large = model("RandomNormal", 1, {}, shape=[64 << 20])  # 256 MiB

    with pytest.raises(LibraryFailed) as failed:
        call(pool, large, memory_bytes=64 << 20, output_bytes=257 << 20)

    assert failed.value.extra == {"reason": "memory", "limit": 64 << 20}
    assert call(pool, model("Det", 11, {"X": (2, 2)}), np.eye(2, dtype=np.float32))[0].reshape(-1).tolist() == [1]


def test_outputs_of_other_sizes_than_were_inferred_are_refused(pool: ProcessPool) -> None:
    with pytest.raises(FunctionRefused, match="differ from those that were inferred"):
        call(pool, model("RandomNormal", 1, {}, shape=[1000]), output_bytes=64)


@linux
def test_a_process_that_is_killed_from_outside_is_no_fault_of_the_node(pool: ProcessPool) -> None:
    x, endless = np.ones((1, 1, 700), np.float32), model("LpPool", 11, {"X": (1, 1, 700)}, **ENDLESS)
    call(pool, model("Det", 11, {"X": (2, 2)}), np.eye(2, dtype=np.float32))
    (pid,) = pool.pids
    threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()

    with pytest.raises(LibraryUnavailable) as failed:
        call(pool, endless, x, output_bytes=8 << 20, key=b"killed")

    assert failed.value.extra["retry_after_seconds"] == 1
    eventually(lambda: pool.pids != [pid], "another process was started")


@linux
def test_a_process_gets_no_secrets_and_no_files(pool: ProcessPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOST_API_KEYS", "secret")
    pool.close()
    call(pool, model("Det", 11, {"X": (2, 2)}), np.eye(2, dtype=np.float32))
    (pid,) = pool.pids

    assert b"TENSORPOST_" not in Path(f"/proc/{pid}/environ").read_bytes()
    files = {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()}
    assert not [name for name in files if not name.startswith(("socket:", "/memfd:", "/dev/null"))]


def test_a_process_that_cannot_start_is_named() -> None:
    missing = ProcessPool("a library", ("no_such_library",), seconds=1)

    assert not missing.installed
    missing.open(2, ahead=True)  # starts none
    assert missing.pids == []
    with pytest.raises(LibraryUnavailable):
        missing.call("run_model", {}, subject="a node", memory_bytes=1)
    assert missing.state.version is None


@linux
def test_arrays_of_any_type_and_size_travel_and_garbage_does_not() -> None:
    segment = SharedSegment()
    try:
        for count in (0, 1, 7, INLINE_BYTES):
            arrays = [np.arange(count, dtype=kind) for kind in ("int8", "float16", "float64", "uint16")]
            segment.reserve(SharedSegment.bytes_of([array.nbytes for array in arrays]))
            head, found = receive(b"".join(send_parts({"a": 1}, arrays, segment)), segment)
            assert head["a"] == 1
            assert all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(arrays, found, strict=True))
            del found
            segment.trim()
        whole = b"".join(send_parts({}, [np.zeros(4)], None))
        for message in (b"", b"1", whole[:-1], whole[:9], b"\xff" * 40, whole.replace(b"float64", b"object_")):
            with pytest.raises(MalformedMessage):
                receive(message, segment)
        with pytest.raises(MalformedMessage):
            receive(whole.replace(b"-1", b"99"), None)
        with pytest.raises(MalformedMessage):
            receive(whole.replace(b"[4]", b"[-]"), segment)
    finally:
        segment.close()


@linux
def test_an_error_that_nobody_expected_is_logged_and_named(pool: ProcessPool, caplog: pytest.LogCaptureFixture) -> None:
    before = pool.state.ended.get("failed", 0)

    with pytest.raises(LibraryFailed, match="KeyError") as failed:  # there is no such function
        pool.call("no_function", {}, subject="a node", memory_bytes=64 << 20)

    assert failed.value.extra == {"reason": "ended", "ended_by": "KeyError"}
    assert "in _answer" in caplog.text
    assert pool.state.ended["failed"] == before + 1
    (pooled,) = call(pool, model("Relu", 14, {"X": (1,)}), np.array([-1], np.float32))
    assert pooled.tolist() == [0]


@linux
@pytest.mark.parametrize("half", ["answer", "call"])
def test_a_process_that_stops_in_the_middle_of_a_message_is_ended(
    monkeypatch: pytest.MonkeyPatch, half: str
) -> None:  # fmt: skip
    monkeypatch.setattr(process, "STALL_SECONDS", 1)
    child = process.ChildProcess(("json",))
    head = {"function": "version_of_schema", "seconds": 60, "memory_bytes": 1 << 20, "threads": 1}
    arrays: list[Any] = []
    ours, theirs = Pipe()
    if half == "call":
        os.kill(child.pid, signal.SIGSTOP)
        arrays.append(np.zeros(32 << 20, np.uint8))
        monkeypatch.setattr(child, "_ready", True)
        child._close_segment()
    else:
        process._limit_waits(ours.fileno())
        monkeypatch.setattr(child, "_connection", ours)
        monkeypatch.setattr(child, "_ready", True)
        os.write(theirs.fileno(), struct.pack("!i", 1000) + b"{")
    begin = time.monotonic()

    with pytest.raises(process.ChildEnded) as ended:
        child.call(head, arrays, 0, lambda: None)

    assert not ended.value.cause, "whatever stopped it, the call is not to blame"

    assert time.monotonic() - begin < PATIENCE
    assert child.ended
