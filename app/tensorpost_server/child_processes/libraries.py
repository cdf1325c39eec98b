"""The libraries that run in child processes, and the calls of theirs that the rest of the server makes.

| pool | module | calls |
| --- | --- | --- |
| `ONNX` | `onnx` | versions of operators; the check of a node, and the inference of its outputs |
| `ONNX_RUNTIME` | `onnxruntime` | computing a model of one node or several |
| `PICTURES` | Pillow | reading and writing pictures |

Pools belong to the process and not to an application: plans are values of the process too, and are run by Ray's
processes and by tests without any application. Applications open and close them, the last one for all.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from tensorpost.onnx.package import PackageCalls, call_package_by
from tensorpost.values.onnx_package import InferredModel, SchemaVersion

from ..forms.base import away_from_processor, raise_if_abandoned
from .pictures import PICTURES
from .process import FunctionRefused
from .process_pool import ProcessPool

_INFER_SECONDS = 10.0
_INFER_BYTES = 128 << 20
"""Time and memory for a node's check and inference, which nothing was reserved for; most take a millisecond."""
_MOST_MODEL_BYTES = 8 << 20
"""Largest size of a model without its constants: names, shapes and attributes."""
_MOST_KEPT_NODES = 2048
_MOST_KEPT_TEXT = 2048
"""Nodes whose inference is kept, and the characters of each: a network has a hundred, of which each would cross to the
process and back whenever it is sent, half a millisecond. At most 20 MiB."""

ONNX = ProcessPool("the package onnx", ("onnx", "onnx.checker", "onnx.shape_inference"),
                   seconds=_INFER_SECONDS)  # fmt: skip
ONNX_RUNTIME = ProcessPool("ONNX Runtime", ("onnxruntime",), seconds=600.0, setting="TENSORPOST_MAX_SECONDS")

LIBRARIES = (ONNX, ONNX_RUNTIME, PICTURES)


@dataclass(slots=True)
class _Applications:
    """The applications of this process that have opened the libraries.

    Attributes:
        lock: held while this changes.
        count: how many there are.
        before: what called the package onnx before the first of them.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0
    before: PackageCalls = field(default_factory=PackageCalls)


_applications = _Applications()


def open_libraries(processes: int, threads: int, seconds: float, session_bytes: int, *, ahead: bool) -> None:
    """Have the libraries called in child processes, and start these. Each call needs one of `close_libraries`.

    Args:
        processes: how many compute with ONNX Runtime at most.
        threads: how many threads each of these may use.
        seconds: the longest that one computation may take.
        session_bytes: memory of sessions with their weights that all of them may keep.
        ahead: whether the processes are started now; else with the first calls.
    """
    with _applications.lock:
        _applications.count += 1
        if _applications.count == 1:
            _applications.before = call_package_by(PackageCalls(_schema_version, _infer_model, is_server=True))
        ONNX_RUNTIME.threads, ONNX_RUNTIME.seconds = threads, seconds
        ONNX_RUNTIME.session_bytes = session_bytes // processes
        ONNX.open(1, ahead=ahead)
        ONNX_RUNTIME.open(processes, ahead=ahead)


def close_libraries() -> None:
    """End the processes, if no other application uses them."""
    with _applications.lock:
        _applications.count -= 1
        if not _applications.count:
            call_package_by(_applications.before)
            _inferred.cache_clear()
            ONNX.close()
            ONNX_RUNTIME.close()
            ONNX_RUNTIME.session_bytes = 0
            PICTURES.close()


def _schema_version(op_type: str, opset: int) -> SchemaVersion | str | None:
    """See `tensorpost.values.onnx_package.schema_version`."""
    _require_onnx()
    with away_from_processor():
        answer, _ = ONNX.call(
            "version_of_schema", {"op_type": op_type, "opset": opset}, subject=op_type[:60], memory_bytes=_INFER_BYTES,
            check=raise_if_abandoned,
        )  # fmt: skip
    match answer["version"]:
        case [int() as since, row]:
            return since, cast("dict[str, Any]", row)
        case found:
            return cast("str | None", found)


def _infer_model(node: Mapping[str, Any]) -> InferredModel:
    """See `tensorpost.values.onnx_package.infer_model`."""
    _require_onnx()
    text = json.dumps(node)  # takes long for long constants, so not while others have this thread's place
    return (_inferred if len(text) <= _MOST_KEPT_TEXT else _inferred.__wrapped__)(text)


@lru_cache(maxsize=_MOST_KEPT_NODES)
def _inferred(text: str) -> InferredModel:
    node = json.loads(text)
    constants = sum([len(values) for _, _, values in node["constants"]])
    try:
        with away_from_processor():
            answer, (model,) = ONNX.call(
                "infer_node", {"node": node}, subject=f"{node['op_type']}-{node['version']}",
                memory_bytes=_INFER_BYTES, output_bytes=_MOST_MODEL_BYTES + 16 * constants, key=text.encode(),
                check=raise_if_abandoned,
            )  # fmt: skip
    except FunctionRefused as refusal:  # the model is larger
        return InferredModel(refusal.message)
    outputs = [(name, kind, sizes) for name, kind, sizes in answer["outputs"]]
    return InferredModel(answer["problem"], model.tobytes(), outputs)


def _require_onnx() -> None:
    """Raise ModuleNotFoundError where the package is not installed, as the calls in this process do."""
    if not ONNX.installed:
        raise ModuleNotFoundError("No module named 'onnx'", name="onnx")
