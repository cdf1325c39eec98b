"""Functions of a child process that call ONNX Runtime and the package onnx."""

from __future__ import annotations

import importlib
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensorpost.values.onnx_package import infer_model, schema_version

from .refusal import FunctionRefusal

_MOST_SESSIONS = 32
_MOST_KEPT_MODEL_BYTES = 256 << 10
"""A larger model holds constants by value; its session is not kept, for it holds them too. ResNet-50 has
20 KiB without its weights."""

_sessions: OrderedDict[bytes, Any] = OrderedDict()
_OUT_OF_MEMORY = ("bad alloc", "bad_alloc", "failed to allocate", "out of memory", "cannot allocate memory")


def version_of_schema(head: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """See `tensorpost.values.onnx_package.schema_version`; the answer is `version`."""
    del arrays
    return {"version": schema_version(head["op_type"], head["opset"])}, []


def infer_node(head: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """See `tensorpost.values.onnx_package.infer_model`; the answer is `problem`, `outputs`, and the model's bytes."""
    del arrays
    found = infer_model(head["node"])
    return {"problem": found.problem, "outputs": found.outputs}, [np.frombuffer(found.model, np.uint8)]


def run_model(head: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Compute a model; the first array is the model, the others are the inputs in the order of `names`.

    Raises:
        FunctionRefusal: ONNX Runtime does not compute the model (`unsupported`), or not these inputs (`inputs`).
    """
    model, *inputs = arrays
    session = _session(model.tobytes(), head["threads"])
    try:
        found = session.run(None, dict(zip(head["names"], inputs, strict=True)))
    except MemoryError:
        raise
    except Exception as error:  # its exceptions are of C++
        raise _refusal("inputs", error) from error
    return {}, [np.ascontiguousarray(array) for array in found]


def _session(model: bytes, threads: int) -> Any:
    """The session of a model: a kept one, or a new one that computes nothing while it is made."""
    known = _sessions.get(model)
    if known is not None:
        _sessions.move_to_end(model)
        return known
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # what is wrong is raised
    # Constants are not folded while the session is made, and an arena would keep the memory of the largest call.
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except MemoryError:
        raise
    except Exception as error:  # its exceptions are of C++
        raise _refusal("unsupported", error) from error
    if len(model) <= _MOST_KEPT_MODEL_BYTES:
        _sessions[model] = session
        if len(_sessions) > _MOST_SESSIONS:
            _sessions.popitem(last=False)
    return session


def forget_sessions() -> None:
    """Drop all kept sessions."""
    _sessions.clear()


def _refusal(kind: str, error: Exception) -> FunctionRefusal:
    text = str(error)
    if any(words in text.lower() for words in _OUT_OF_MEMORY):
        return FunctionRefusal("memory", "")
    version = getattr(sys.modules.get("onnxruntime"), "__version__", "")
    return FunctionRefusal(kind, f"{version}\n{text}"[:4000])
