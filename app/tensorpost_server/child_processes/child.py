"""The main program of a child process: `python -m tensorpost_server.child_processes.child CONNECTION SEGMENT LIBRARIES`.

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
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import connection as connections
from typing import Any, TypeAlias

from ..machine import free_unused_memory
from .messages import SharedSegment, receive, send_parts
from .onnx_functions import forget_sessions, infer_node, load_node, run_node
from .refusal import Refusal

__all__ = ["main"]

Function: TypeAlias = Callable[[Mapping[str, Any], list[Any]], tuple[dict[str, Any], list[Any]]]

FUNCTIONS: Mapping[str, Function] = {"infer_node": infer_node, "load_node": load_node, "run_node": run_node}

_NICER = 5  # as the threads that compute in the server
_PARENT_CHECK_SECONDS = 1.0
_MOST_KEPT_BYTES = 64 << 20
"""What a process may keep of the calls before, as sessions and as memory that its allocator holds."""
_STACK_BYTES = 9 << 20  # of a thread that a library starts; untouched pages of it count in the limit


def main() -> None:
    """Answer calls until the server closes the connection."""
    parent = os.getppid()
    kind = connections.PipeConnection if sys.platform == "win32" else connections.Connection
    connection = kind(int(sys.argv[1]))
    segment = SharedSegment(int(sys.argv[2])) if int(sys.argv[2]) >= 0 else None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C ends the server, which ends this
    if sys.platform == "linux":
        _limit_for_good()
    for library in sys.argv[3].split(","):
        importlib.import_module(library)
    threading.Thread(target=_end_without, args=(parent,), daemon=True).start()
    base = data_bytes()
    connection.send_bytes(b"ready")
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return
        parts = _answer(message, segment, base)
        connection.send_bytes(b"".join(parts))


def _answer(message: bytes, segment: SharedSegment | None, base: int) -> list[bytes | memoryview]:
    head, arrays = receive(message, segment)
    found: dict[str, Any] = {}
    made: list[Any] = []
    try:
        _limit_for(head)
        found, made = FUNCTIONS[head["function"]](head, arrays)
        if SharedSegment.bytes_of([array.nbytes for array in made]) > head["output_bytes"]:
            raise Refusal("inputs", "its outputs have other sizes than were inferred")
    except Refusal as refusal:
        found, made = {"refused": refusal.kind, "message": str(refusal)}, []
    except MemoryError:
        found, made = {"refused": "memory", "message": ""}, []
    finally:
        _unlimit()
    if data_bytes() > base + _MOST_KEPT_BYTES:
        forget_sessions()
        free_unused_memory()
        found["retiring"] = data_bytes() - sum([array.nbytes for array in made]) > base + _MOST_KEPT_BYTES
    return send_parts(found, made, segment, head["outputs_at"])


def _end_without(parent: int) -> None:
    """End this process when the server has ended while a library computes."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    os._exit(1)


def _limit_for_good() -> None:
    """No core dumps, no files, a lower priority."""
    import resource  # not there on Windows

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    os.nice(_NICER)


def _limit_for(head: Mapping[str, Any]) -> None:
    """Limit memory that is written to, and processor time, for one call; on Linux only."""
    if sys.platform != "linux":
        return
    import resource

    stacks = _STACK_BYTES * head.get("threads", 1)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + stacks + head["memory_bytes"], most))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = used.ru_utime + used.ru_stime + head["seconds"] * head.get("threads", 1)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds) + 1, most))


def _unlimit() -> None:
    if sys.platform == "linux":
        import resource

        for kind in (resource.RLIMIT_DATA, resource.RLIMIT_CPU):
            _, most = resource.getrlimit(kind)
            resource.setrlimit(kind, (most, most))


def data_bytes() -> int:
    """What RLIMIT_DATA limits: private memory that can be written to, bytes (proc(5), statm, the sixth number)."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        main()
