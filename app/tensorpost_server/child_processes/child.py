"""The main program of a child process; its arguments are `CONNECTION SEGMENT SERVER LIBRARIES`.

It answers one call at a time, each with its own limits of memory and processor time, and ends when the server has gone.
It can write no file and dumps no core.
"""

from __future__ import annotations

import importlib
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import connection as connections
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from ..machine import free_unused_memory, private_memory
from .messages import receive, send_parts, travels
from .onnx_functions import (
    forget_plain_sessions,
    forget_sessions,
    infer_node,
    run_model,
    version_of_schema,
    weighted_bytes,
)
from .picture_functions import decode_picture, encode_picture, open_picture
from .refusal import FunctionRefusal
from .segment import SharedSegment

ChildFunction: TypeAlias = Callable[[Mapping[str, Any], list[Any]], tuple[dict[str, Any], list[Any]]]

FUNCTIONS: Mapping[str, ChildFunction] = {
    "decode_picture": decode_picture,
    "encode_picture": encode_picture,
    "forget_sessions": forget_sessions,
    "infer_node": infer_node,
    "open_picture": open_picture,
    "run_model": run_model,
    "version_of_schema": version_of_schema,
}

_NICER = 5  # as the threads that compute in the server
_PARENT_CHECK_SECONDS = 0.5
_KEPT_SECONDS = 30.0
"""Seconds without a call after which sessions without weights are dropped and unused memory is given back."""
_MOST_KEPT_BYTES = 32 << 20
"""What a process may keep of the calls before, as sessions and as memory that its allocator holds."""
_MOST_MAPPED_BYTES = 64 << 20
"""What may stay mapped after that was given back, since pages between those in use stay mapped; beyond it the process
ends. With 32 MiB, ResNet-50 ended it in 3 calls of 10."""
_MOST_TRACEBACK = 8000  # characters, the last ones
_STACK_BYTES = 9 << 20  # of a thread that a library starts; untouched pages of it count in the limit


def main() -> None:
    """Answer calls until the server closes the connection."""
    server = int(sys.argv[3])
    kind = connections.PipeConnection if sys.platform == "win32" else connections.Connection
    connection = kind(int(sys.argv[1]))
    segment = SharedSegment(int(sys.argv[2])) if int(sys.argv[2]) >= 0 else None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C ends the server, which ends this
    if sys.platform == "linux":
        _limit_for_good()
    threading.Thread(target=_end_without, args=(server,), daemon=True).start()
    for library in sys.argv[4].split(","):
        importlib.import_module(library)
    _close_standard_error()
    base = private_memory()
    connection.send_bytes(b"ready")
    while True:
        if not connection.poll(_KEPT_SECONDS):
            _give_back()
            connection.poll(None)
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return
        connection.send_bytes(b"".join(_answer(message, segment, base)))


def _answer(message: bytes, segment: SharedSegment | None, base: int) -> list[bytes | memoryview]:
    head, arrays = receive(message, segment)
    found: dict[str, Any] = {}
    made: list[Any] = []
    try:
        _limit_for(head)
        found, made = FUNCTIONS[head["function"]](head, arrays)
        if any(not (isinstance(array, np.ndarray) and travels(cast("Any", array).dtype)) for array in made):
            raise FunctionRefusal("inputs", "an output is not a tensor of a supported type")
        if SharedSegment.bytes_of([array.nbytes for array in made]) > head["output_bytes"]:
            raise FunctionRefusal("inputs", "the sizes of its outputs differ from those that were inferred")
    except FunctionRefusal as refusal:
        found, made = {"refused": refusal.kind, "message": str(refusal)}, []
    except MemoryError:
        found, made = {"refused": "memory", "message": ""}, []
    except Exception as error:  # noqa: BLE001 # the server says so, and ends this process, whose state nobody knows
        found = {
            "refused": "fault",
            "error": type(error).__name__,
            "message": traceback.format_exc()[-_MOST_TRACEBACK:],
        }
        made = []
    finally:
        _unlimit()
    own = base + sum([array.nbytes for array in made]) + weighted_bytes()
    if private_memory() > own + _MOST_KEPT_BYTES:
        _give_back()
        found["retiring"] = private_memory() > own + _MOST_MAPPED_BYTES
    return send_parts(found, made, segment, head["outputs_at"])


def _give_back() -> None:
    """Drop what is kept for later calls, but for weights, whose memory is bounded by `session_bytes`."""
    forget_plain_sessions()
    free_unused_memory()


def _end_without(server: int) -> None:
    """End this process when the server has ended while a library computes."""
    while os.getppid() == server or sys.platform == "win32":
        time.sleep(_PARENT_CHECK_SECONDS)
    os._exit(1)


def _close_standard_error() -> None:
    """Let what libraries write about callers' nodes go nowhere; until now it said why a process cannot start."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _limit_for_good() -> None:
    """No core dumps, no files, a lower priority, and the first to be ended when the machine has no memory left."""
    import resource  # not there on Windows

    with suppress(OSError):  # /proc may be read-only
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICER, os.getpriority(os.PRIO_PROCESS, 0)))


def _limit_for(head: Mapping[str, Any]) -> None:
    """Limit memory that is written to, and processor time, for one call; on Linux only."""
    if sys.platform != "linux":
        return
    import resource

    stacks = _STACK_BYTES * head["threads"]
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (private_memory() + stacks + head["memory_bytes"], most))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = used.ru_utime + used.ru_stime + head["seconds"] * head["threads"]
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds) + 1, most))


def _unlimit() -> None:
    if sys.platform == "linux":
        import resource

        for kind in (resource.RLIMIT_DATA, resource.RLIMIT_CPU):
            _, most = resource.getrlimit(kind)
            resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        main()
